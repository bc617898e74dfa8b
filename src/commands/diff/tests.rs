use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::Path;
use std::process::Command;

use proptest::prelude::*;

use crate::commands::out::OutputFormat;
use crate::commands::testing::{BundleTrees, Ran, run, run_on};
use crate::snapshot::samples::git;
use crate::snapshot::{BlobOmitted, FileRecord, State};

fn diff(trees: &BundleTrees, more: &[&str]) -> Ran {
    let snap = trees.snap();
    run(&[&["diff", snap.to_str().unwrap()], more].concat())
}

/// A copy of the before-tree, to be patched.
fn patched(trees: &BundleTrees) -> std::path::PathBuf {
    let copy = trees.dir.path().join("patched");
    let status = Command::new("cp").arg("-a").arg(trees.before()).arg(&copy).status().unwrap();
    assert!(status.success());
    copy
}

/// What is in a tree: names, types, executable bits, targets, contents; directories only where they
/// hold something, as for Git.
fn listing(tree: &Path) -> Vec<(std::path::PathBuf, u32, Vec<u8>)> {
    let mut all = Vec::new();
    for entry in walkdir::WalkDir::new(tree).sort_by_file_name() {
        let entry = entry.unwrap();
        let name = entry.path().strip_prefix(tree).unwrap().to_owned();
        let kind = entry.file_type();
        if kind.is_symlink() {
            let target = fs::read_link(entry.path()).unwrap().into_os_string().into_encoded_bytes();
            all.push((name, 0o120_000, target));
        } else if kind.is_file() {
            let mode = entry.metadata().unwrap().permissions().mode();
            all.push((name, mode & 0o100, fs::read(entry.path()).unwrap()));
        }
    }
    all
}

fn assert_same(left: &Path, right: &Path, text: &str) {
    let (left, right) = (listing(left), listing(right));
    type Listed = (std::path::PathBuf, u32, Vec<u8>);
    let only = |one: &[Listed], other: &[Listed]| {
        one.iter().filter(|thing| !other.contains(thing)).cloned().collect::<Vec<_>>()
    };
    assert!(left == right, "{:?}\n{:?}\n{text}", only(&left, &right), only(&right, &left));
}

/// The diff, applied by Git to the tree before, gives the tree after; and back again.
fn assert_git_applies(trees: &BundleTrees) -> String {
    let ran = diff(trees, &[]);
    assert_eq!(ran.status, 0, "{}", ran.err);
    let patch = trees.dir.path().join("diff.patch");
    fs::write(&patch, &ran.out).unwrap();
    let copy = patched(trees);
    let text = String::from_utf8_lossy(&ran.out).into_owned();
    if !ran.out.is_empty() {
        git(&copy, &["apply", "--whitespace=nowarn", patch.to_str().unwrap()]);
        assert_same(&copy, &trees.after(), &text);
        git(&copy, &["apply", "-R", "--whitespace=nowarn", patch.to_str().unwrap()]);
    }
    // Git 2.47 forgets the mode of what a reversed deletion makes, of its own diffs as well.
    let bytes =
        |tree: &Path| listing(tree).into_iter().map(|(name, _, bytes)| (name, bytes)).collect::<Vec<_>>();
    assert_eq!(bytes(&copy), bytes(&trees.before()), "{text}");
    text
}

fn chmod(path: &Path, mode: u32) {
    fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
}

fn lines(range: std::ops::Range<u32>) -> String {
    range.map(|number| format!("line {number}\n")).collect()
}

fn everything() -> BundleTrees {
    let trees = BundleTrees::new();
    let (before, after) = (trees.before(), trees.after());
    trees.both("same", "unchanged\n");
    BundleTrees::write(&before, "dir/edited", lines(0..100));
    BundleTrees::write(
        &after,
        "dir/edited",
        lines(0..40) + "inserted\n" + &lines(41..90) + "end\n" + &lines(90..101),
    );
    BundleTrees::write(&after, "new", "new\nfile\n");
    BundleTrees::write(&before, "gone", "gone\n");
    BundleTrees::write(&after, "empty", "");
    BundleTrees::write(&before, "emptied", "text\n");
    BundleTrees::write(&after, "emptied", "");
    BundleTrees::write(&before, "was-empty", "");
    BundleTrees::write(&before, "filled", "");
    BundleTrees::write(&after, "filled", "text\n");
    BundleTrees::write(&before, "no-newline", "a\nb");
    BundleTrees::write(&after, "no-newline", "a\nb\n");
    BundleTrees::write(&before, "loses-newline", "a\nb\n");
    BundleTrees::write(&after, "loses-newline", "a\nc");
    BundleTrees::write(&before, "crlf", "a\r\nb\r\nlone\rreturn\n");
    BundleTrees::write(&after, "crlf", "a\r\nB\r\nlone\rreturn\n");
    BundleTrees::write(&before, "latin", b"caf\xe9\n");
    BundleTrees::write(&after, "latin", b"caf\xe9s\n\xff\n");
    BundleTrees::write(&before, "binary", b"\0\x01\x02");
    BundleTrees::write(
        &after,
        "binary",
        (0..5000_u32).flat_map(|n| (n * 7919).to_le_bytes()).collect::<Vec<_>>(),
    );
    BundleTrees::write(&after, "new.bin", b"\0");
    BundleTrees::write(&before, "gone.bin", [0; 60]);
    BundleTrees::write(&before, "script", "#!/bin/sh\n");
    BundleTrees::write(&after, "script", "#!/bin/sh\n");
    chmod(&after.join("script"), 0o755);
    BundleTrees::write(&before, "edited-script", "#!/bin/sh\n");
    BundleTrees::write(&after, "edited-script", "#!/bin/sh\nexit\n");
    chmod(&before.join("edited-script"), 0o755);
    BundleTrees::write(&after, "new-script", "#!/bin/sh\n");
    chmod(&after.join("new-script"), 0o755);
    symlink("old target", before.join("link")).unwrap();
    symlink("new target", after.join("link")).unwrap();
    symlink("nowhere", after.join("new-link")).unwrap();
    symlink("nowhere", before.join("gone-link")).unwrap();
    BundleTrees::write(&before, "to-link", "file\n");
    symlink("target", after.join("to-link")).unwrap();
    symlink("target", before.join("to-file")).unwrap();
    BundleTrees::write(&after, "to-file", "file\n");
    BundleTrees::write(&before, "to-dir", "file\n");
    BundleTrees::write(&after, "to-dir/inside", "in\n");
    BundleTrees::write(&before, "from-dir/inside", "in\n");
    BundleTrees::write(&before, "from-dir/deeper/inside", "in\n");
    BundleTrees::write(&after, "from-dir", "file\n");
    trees
}

#[test]
fn git_applies_a_diff_of_every_kind_of_change() {
    let trees = everything();
    trees.commit(|_| {});
    let text = assert_git_applies(&trees);
    assert!(!text.contains("same"), "{text}");
    assert!(!text.contains("similarity") && text.contains("GIT binary patch"), "{text}");
}

#[test]
fn git_applies_names_that_need_quoting() {
    use std::os::unix::ffi::OsStrExt as _;
    let names: [&[u8]; 14] = [
        b"with space",
        b" leading",
        b"trailing ",
        b"tab\there",
        b"new\nline",
        b"quote\"d",
        b"back\\slash",
        b"latin-\xe9",
        b"\x1b[31mred",
        b"a/b b/a b",
        b"-dash",
        "gr\u{f6}\u{df}e".as_bytes(),
        "turn\u{202e}ed".as_bytes(),
        b"dir \"x\"/fi le",
    ];
    let trees = BundleTrees::new();
    for (index, name) in names.into_iter().enumerate() {
        let name = Path::new(std::ffi::OsStr::from_bytes(name));
        // Changed, created, deleted, made executable, and both of the latter two without a hunk.
        match index % 4 {
            0 => BundleTrees::write(&trees.before(), name, "old\n"),
            1 => BundleTrees::write(&trees.before(), name, ""),
            _ => {}
        }
        match index % 4 {
            0 => BundleTrees::write(&trees.after(), name, "new\n"),
            2 => BundleTrees::write(&trees.after(), name, ""),
            3 => BundleTrees::write(&trees.after(), name, "\0"),
            _ => {}
        }
        let changed = name.with_file_name(format!("mode {index} {}", index * 7));
        let mut changed = changed.into_os_string();
        changed.push(name.file_name().unwrap());
        for (tree, mode) in [(trees.before(), 0o644), (trees.after(), 0o755)] {
            BundleTrees::write(&tree, &changed, "x\n");
            chmod(&tree.join(&changed), mode);
        }
    }
    trees.commit(|_| {});
    let text = assert_git_applies(&trees);
    assert!(!text.contains('\x1b') && !text.contains('\u{202e}'), "{text}");
}

fn renames() -> BundleTrees {
    let trees = BundleTrees::new();
    BundleTrees::write(&trees.before(), "old name", lines(0..20));
    BundleTrees::write(&trees.after(), "sub/new name", lines(0..20));
    BundleTrees::write(&trees.before(), "edited-from", lines(0..20));
    BundleTrees::write(&trees.after(), "edited-to", lines(1..20));
    chmod(&trees.after().join("edited-to"), 0o755);
    BundleTrees::write(&trees.before(), "rewritten-from", lines(0..20));
    BundleTrees::write(&trees.after(), "rewritten-to", lines(50..70));
    BundleTrees::write(&trees.before(), "chain-1", lines(100..120));
    BundleTrees::write(&trees.after(), "chain-3", lines(100..120));
    BundleTrees::write(&trees.before(), "swap-1", "one\n");
    BundleTrees::write(&trees.after(), "swap-2", "one\n");
    BundleTrees::write(&trees.before(), "swap-2", "two\n");
    BundleTrees::write(&trees.after(), "swap-1", "two\n");
    BundleTrees::write(&trees.before(), "bin-from", b"\0one");
    BundleTrees::write(&trees.after(), "bin-to", b"\0two");
    symlink("t", trees.before().join("link-from")).unwrap();
    symlink("t", trees.after().join("link-to")).unwrap();
    BundleTrees::write(&trees.before(), "dir-from/f", "f\n");
    BundleTrees::write(&trees.after(), "dir-to/f", "f\n");
    BundleTrees::write(&trees.before(), "replaced", "replaced\n");
    BundleTrees::write(&trees.before(), "replacing", "replacing\n");
    BundleTrees::write(&trees.after(), "replaced", "replacing\n");
    trees
}

fn link_renames(trees: &BundleTrees, records: &mut Vec<FileRecord>) {
    let middle = format!("{}/chain-2", trees.cwd).into_bytes();
    let absent = State::Absent { tombstone: true };
    records.push(FileRecord { before: absent.clone(), ..crate::snapshot::samples::created(&middle, absent) });
    for (from, to) in [
        ("old name", "sub/new name"),
        ("edited-from", "edited-to"),
        ("rewritten-from", "rewritten-to"),
        ("chain-1", "chain-2"),
        ("chain-2", "chain-3"),
        ("swap-1", "swap-2"),
        ("swap-2", "swap-1"),
        ("bin-from", "bin-to"),
        ("link-from", "link-to"),
        ("dir-from", "dir-to"),
        ("dir-from/f", "dir-to/f"),
        ("replacing", "replaced"),
    ] {
        trees.rename(records, from, to);
    }
}

#[test]
fn git_applies_renames_and_they_are_told_as_such() {
    let trees = renames();
    trees.commit(|records| link_renames(&trees, records));
    let text = assert_git_applies(&trees);
    let told: Vec<_> = text.lines().filter(|line| line.starts_with("rename from")).collect();
    assert_eq!(
        told,
        ["rename from chain-1", "rename from dir-from/f", "rename from edited-from", "rename from old name",]
    );
    let status = diff(&trees, &["--name-status"]);
    assert_eq!(
        status.text(),
        "D\tbin-from\nA\tbin-to\nR100\tchain-1\tchain-3\nR100\tdir-from/f\tdir-to/f\nR095\tedited-from\tedited-to\n\
         D\tlink-from\nA\tlink-to\nM\treplaced\nD\treplacing\nD\trewritten-from\nA\trewritten-to\n\
         R100\told name\tsub/new name\nM\tswap-1\nM\tswap-2\n"
    );
}

#[test]
fn patch_p1_takes_text_renames_modes_and_links() {
    if Command::new("patch").arg("--version").output().is_err() {
        println!("skipped: there is no patch(1)");
        return;
    }
    let trees = renames();
    // GNU patch takes no binary patch.
    for (tree, name) in [(trees.before(), "bin-from"), (trees.after(), "bin-to")] {
        fs::remove_file(tree.join(name)).unwrap();
    }
    BundleTrees::write(&trees.before(), "with space", "a\nb");
    BundleTrees::write(&trees.after(), "with space", "a\nc");
    BundleTrees::write(&trees.before(), "tab\tand \"quote", "a\n");
    BundleTrees::write(&trees.after(), "tab\tand \"quote", "b\n");
    BundleTrees::write(&trees.after(), "new", "new\n");
    BundleTrees::write(&trees.before(), "gone", "gone\n");
    trees.commit(|records| link_renames(&trees, records));
    let ran = diff(&trees, &[]);
    let patch = trees.dir.path().join("diff.patch");
    fs::write(&patch, &ran.out).unwrap();
    let copy = patched(&trees);
    let output = Command::new("patch").args(["-p1", "-i"]).arg(&patch).current_dir(&copy).output().unwrap();
    assert!(output.status.success(), "{}\n{}", String::from_utf8_lossy(&output.stdout), ran.text());
    assert_eq!(listing(&copy), listing(&trees.after()));
}

#[test]
fn a_file_too_large_for_lines_is_a_binary_patch() {
    let trees = BundleTrees::new();
    let long = "0123456789abcdef\n".repeat(600_000);
    BundleTrees::write(&trees.before(), "long", &long);
    BundleTrees::write(&trees.after(), "long", long.replacen('7', "x", 1));
    trees.commit(|_| {});
    assert!(assert_git_applies(&trees).contains("GIT binary patch\nliteral 10200000\n"));
    assert_eq!(
        diff(&trees, &["--stat"]).text().lines().next(),
        Some(" long | Bin 10200000 -> 10200000 bytes")
    );
}

#[test]
fn object_ids_are_those_of_the_repository() {
    let trees = BundleTrees::new();
    BundleTrees::write(&trees.before(), "f", "one\n");
    BundleTrees::write(&trees.after(), "f", "two\n");
    BundleTrees::write(&trees.after(), "b", "\0");
    let pin = |record: &mut FileRecord| {
        record.git = Some(crate::snapshot::GitStatus {
            root: b"/nowhere/work".to_vec(),
            head: Some("0".repeat(64)),
            relative_path: b"f".to_vec(),
            oid: None,
            tracked: true,
            dirty: false,
            ignored: false,
        });
    };
    trees.commit(|records| records.iter_mut().for_each(pin));
    let copy = trees.dir.path().join("repo");
    fs::create_dir(&copy).unwrap();
    git(&copy, &["init", "-q", "--object-format=sha256"]);
    fs::copy(trees.before().join("f"), copy.join("f")).unwrap();
    git(&copy, &["add", "."]);
    let patch = trees.dir.path().join("diff.patch");
    fs::write(&patch, diff(&trees, &[]).out).unwrap();
    git(&copy, &["apply", "--3way", patch.to_str().unwrap()]);
    assert_eq!(fs::read(copy.join("f")).unwrap(), b"two\n");
    assert_eq!(git(&copy, &["rev-parse", ":f"]), git(&copy, &["hash-object", "f"]));
}

#[test]
fn what_can_not_be_had_is_named_and_the_rest_is_told() {
    let trees = BundleTrees::new();
    BundleTrees::write(&trees.before(), "kept", "a\n");
    BundleTrees::write(&trees.after(), "kept", "b\n");
    BundleTrees::write(&trees.before(), "lost", "aa\n");
    BundleTrees::write(&trees.after(), "lost", "bb\n");
    trees.commit(|records| {
        let State::Present(present) = &mut records[1].before else { panic!() };
        (present.blob, present.blob_omitted) = (None, Some(BlobOmitted::TooLarge));
    });
    let ran = diff(&trees, &[]);
    assert_eq!(ran.status, 1);
    assert!(ran.text().contains("b/kept") && !ran.text().contains("lost"), "{}", ran.text());
    assert!(ran.err.contains("diff lost: its content before the command is unavailable"), "{}", ran.err);
    let names = diff(&trees, &["--name-status"]);
    assert_eq!((names.status, names.text()), (0, "M\tkept\nM\tlost\n"), "no bytes are needed for that");
    let json = diff(&trees, &["--json"]).json();
    assert_eq!(json["unavailable"][0]["path"], "/nowhere/work/lost");
}

#[test]
fn a_lost_mode_change_needs_no_bytes() {
    let trees = BundleTrees::new();
    trees.both("f", "large\n");
    chmod(&trees.after().join("f"), 0o755);
    trees.commit(|records| {
        let record = &mut records[0];
        for state in [&mut record.before, &mut record.after] {
            let State::Present(present) = state else { panic!() };
            (present.blob, present.blob_omitted) = (None, Some(BlobOmitted::TooLarge));
        }
    });
    let ran = diff(&trees, &[]);
    assert_eq!(
        (ran.status, ran.text()),
        (0, "diff --git a/f b/f\nold mode 100644\nnew mode 100755\n"),
        "{}",
        ran.err
    );
}

#[test]
fn exit_code_and_paths_are_as_with_git_diff() {
    let trees = BundleTrees::new();
    BundleTrees::write(&trees.after(), "one", "1\n");
    BundleTrees::write(&trees.after(), "dir/two", "2\n");
    trees.both("same", "same\n");
    trees.commit(|_| {});
    assert_eq!(diff(&trees, &["--exit-code"]).status, 1);
    assert_eq!(diff(&trees, &["--exit-code", "same"]).status, 0);
    assert_eq!(diff(&trees, &["dir", "--name-status"]).text(), "A\tdir/two\n");
    let nothing = diff(&trees, &["none"]);
    assert_eq!((nothing.status, nothing.text()), (1, ""));
    assert!(nothing.err.contains("diff none: the snapshot has no record of it"), "{}", nothing.err);
    assert_eq!(diff(&trees, &["--stat", "--name-status"]).status, 2);
}

#[test]
fn paths_outside_are_named_and_root_tells_all() {
    let mut trees = BundleTrees::new();
    BundleTrees::write(&trees.after(), "inside/f", "1\n");
    BundleTrees::write(&trees.after(), "outside/g", "2\n");
    trees.header.start_cwd = b"/nowhere/work/inside".to_vec();
    trees.commit(|_| {});
    let ran = diff(&trees, &["--name-status"]);
    assert_eq!((ran.status, ran.text()), (0, "A\tf\n"));
    assert!(ran.err.contains("\n  /nowhere/work/outside/g\n"), "{}", ran.err);
    let all = diff(&trees, &["--name-status", "--root"]);
    assert_eq!(all.text(), "A\tnowhere/work/inside/f\nA\tnowhere/work/outside/g\n");
    assert!(!all.err.contains("outside /"), "{}", all.err);
}

#[test]
fn what_a_diff_has_no_words_for_is_said() {
    let trees = BundleTrees::new();
    fs::create_dir(trees.after().join("empty-dir")).unwrap();
    fs::create_dir(trees.before().join("gone-dir")).unwrap();
    BundleTrees::write(&trees.after(), "dir/f", "implies its directory\n");
    nix::unistd::mkfifo(&trees.after().join("fifo"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    trees.both("secret", "s\n");
    chmod(&trees.after().join("secret"), 0o600);
    trees.commit(|_| {});
    let ran = diff(&trees, &[]);
    assert_eq!(ran.status, 0);
    let told: Vec<_> = ran.err.lines().filter(|line| line.starts_with("  ")).collect();
    assert_eq!(
        told,
        [
            "  empty-dir: a directory was made",
            "  fifo: a fifo was made",
            "  gone-dir: a directory was removed",
            "  secret: its mode went from 0644 to 0600",
        ]
    );
    assert_eq!(diff(&trees, &["--exit-code", "secret"]).status, 1);
    let json = diff(&trees, &["--json", "secret"]).json();
    assert_eq!(json["unsupported"][0]["detail"], "its mode went from 0644 to 0600");
}

#[test]
fn inherited_files_are_told_only_when_named() {
    let trees = BundleTrees::new();
    BundleTrees::write(&trees.before(), "log", "");
    BundleTrees::write(&trees.after(), "log", "output\n");
    trees.commit(|records| records[0].inherited = true);
    let ran = diff(&trees, &[]);
    assert_eq!((ran.status, ran.text()), (0, ""));
    assert!(ran.err.ends_with("\n  log\n"), "{}", ran.err);
    assert_eq!(diff(&trees, &["log", "--name-status"]).text(), "M\tlog\n");
}

#[test]
fn stat_sums_up_and_json_has_it_all() {
    let trees = everything();
    trees.commit(|_| {});
    let stat = diff(&trees, &["--stat"]);
    let text = stat.text();
    assert!(text.contains(" binary                 | Bin 3 -> 20000 bytes\n"), "{text}");
    assert!(text.contains(" dir/edited             |   4 +++-\n"), "{text}");
    assert!(text.ends_with(" 27 files changed, 19 insertions(+), 14 deletions(-)\n"), "{text}");

    let json = diff(&trees, &["--json"]).json();
    let changes = json["changes"].as_array().unwrap();
    let of = |name: &str| {
        let path = format!("/nowhere/work/{name}");
        changes.iter().find(|change| change["path"] == path).unwrap_or_else(|| panic!("{name}"))
    };
    assert_eq!(of("to-link")["status"], "type_changed");
    assert_eq!(
        (of("script")["old_mode"].as_str(), of("script")["new_mode"].as_str()),
        (Some("100644"), Some("100755"))
    );
    assert_eq!((of("binary")["binary"].as_bool(), of("binary").get("patch")), (Some(true), None));
    assert!(of("latin")["patch"].as_str().unwrap().contains("+caf\u{e9}s\n+\u{ff}\n"));
    assert!(of("latin")["patch_bytes"].is_string());
    assert_eq!(changes.len(), diff(&trees, &["--name-status"]).text().lines().count());
}

#[test]
fn on_a_terminal_there_are_colours_and_no_escapes_of_a_file() {
    let trees = BundleTrees::new();
    BundleTrees::write(&trees.before(), "f", "a\x1b]0;title\x07\r\n");
    BundleTrees::write(&trees.after(), "f", "b\x1b[2J");
    BundleTrees::write(&trees.after(), "bin", "\0");
    trees.commit(|_| {});
    let snap = trees.snap();
    let args = ["diff", snap.to_str().unwrap()];
    let terminal = OutputFormat { terminal: true, colour: false, width: Some(80) };
    let plain = run_on(terminal, &args);
    assert!(!plain.text().contains('\x1b') && plain.text().contains("+b^[[2J"), "{}", plain.text());
    assert!(plain.text().contains("Binary file, 0 -> 1 bytes"), "{}", plain.text());
    let coloured = run_on(OutputFormat { colour: true, ..terminal }, &args);
    assert!(coloured.text().contains("\x1b[31m-a^[]0;title^G^M\x1b[0m\n"), "{:?}", coloured.text());
    assert!(!coloured.text().contains("\x1b[2J"));
}

#[test]
fn renames_in_a_circle_end() {
    let trees = BundleTrees::new();
    BundleTrees::write(&trees.after(), "a", "a\n");
    BundleTrees::write(&trees.after(), "b", "b\n");
    trees.commit(|records| {
        trees.rename(records, "a", "b");
        trees.rename(records, "b", "a");
    });
    assert_eq!(diff(&trees, &["--name-status"]).text(), "A\ta\nA\tb\n");
}

/// What can be at a name.
#[derive(Debug, Clone)]
enum Thing {
    File(Vec<u8>, bool),
    Link(String),
}

fn thing() -> impl Strategy<Value = Thing> {
    let text = prop::collection::vec(
        prop::sample::select(vec!["a\n", "b\n", "\n", "c d\n", "e", "\r\n", "\u{e4}\n"]),
        0..12,
    )
    .prop_map(|parts| parts.concat().into_bytes());
    let binary = prop::collection::vec(any::<u8>(), 0..80);
    prop_oneof![
        4 => (text, any::<bool>()).prop_map(|(text, executable)| Thing::File(text, executable)),
        1 => (binary, any::<bool>()).prop_map(|(bytes, executable)| Thing::File(bytes, executable)),
        1 => "[a-c /]{1,6}".prop_map(Thing::Link),
    ]
}

fn tree() -> impl Strategy<Value = std::collections::BTreeMap<String, Thing>> {
    let name =
        prop::sample::select(vec!["a", "b", "b c", "d/e", "d/f", "d", "d/g/h", "\u{fc}", "x\"y", "t\tu"]);
    prop::collection::btree_map(name.prop_map(str::to_owned), thing(), 0..7)
}

fn plant(root: &Path, tree: &std::collections::BTreeMap<String, Thing>) {
    for (name, thing) in tree {
        let path = root.join(name);
        // In the order of names a file comes before what would be beneath it.
        if path.ancestors().skip(1).any(|parent| parent.symlink_metadata().is_ok_and(|there| !there.is_dir()))
        {
            continue;
        }
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        match thing {
            Thing::File(bytes, executable) => {
                fs::write(&path, bytes).unwrap();
                chmod(&path, if *executable { 0o755 } else { 0o644 });
            }
            Thing::Link(target) => symlink(target, &path).unwrap(),
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn git_applies_the_diff_of_any_two_trees(before in tree(), after in tree(), renames in any::<[bool; 4]>()) {
        let trees = BundleTrees::new();
        plant(&trees.before(), &before);
        plant(&trees.after(), &after);
        trees.commit(|records| {
            for (pair, wanted) in [("a", "b c"), ("d/e", "a"), ("b", "d"), ("d/g/h", "b")].into_iter().zip(renames) {
                if wanted {
                    trees.rename(records, pair.0, pair.1);
                }
            }
        });
        assert_git_applies(&trees);
    }
}

#[test]
fn gits_state_is_not_in_a_diff() {
    let trees = BundleTrees::new();
    BundleTrees::write(&trees.before(), ".git/HEAD", "ref: refs/heads/main\n");
    BundleTrees::write(&trees.after(), ".git/HEAD", "ref: refs/heads/foo\n");
    trees.commit(|records| records.iter_mut().for_each(|record| record.is_git_state = true));
    for flags in [&["--exit-code"][..], &["--exit-code", "--name-status", "--root"]] {
        let ran = diff(&trees, flags);
        assert_eq!((ran.status, ran.text(), ran.err.as_str()), (0, "", ""), "{flags:?}");
    }
    let json = diff(&trees, &["--json"]).json();
    assert_eq!(json["changes"], serde_json::json!([]));
    assert_eq!(json["unsupported"], serde_json::json!([]));
}
