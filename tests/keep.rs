//! `--keep`: what each level records, and what the verbs can do with it.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt as _, MetadataExt as _, symlink};

use agent_snapshot::snapshot::{FileRecord, Keep, Operation, Present, Snapshot};

use crate::support::{
    LEVELS, Place, Run, Tree, User, assert_same, bytes, chmod, describe_recorded, has, json, lost, scan,
};

const MIB: usize = 1 << 20;

/// Bytes that no other file has.
fn unique(name: &str, size: usize) -> Vec<u8> {
    name.bytes().cycle().take(size).collect()
}

/// The files that the command changes: what is before in each, and whether `undo` stores what is after.
const CHANGED: [(&str, usize, bool); 6] = [
    ("small", 5, true),
    ("medium", 500_000, true),
    // The command adds one byte.
    ("limit", MIB - 1, true),
    ("large", MIB, false),
    ("ignored/small", 5, false),
    ("ignored/medium", 500_000, false),
];

/// The files that it creates, with the same sizes.
fn created() -> impl Iterator<Item = (String, usize, bool)> {
    CHANGED.iter().map(|(name, size, stores)| (format!("{name}.new"), size + 1, *stores))
}

const COMMAND: &str = r#"
cat read exec.sh > /dev/null; ./exec.sh; ls listed > /dev/null; test -e asked; test -e missing
for f in small medium limit large ignored/small ignored/medium; do
    cp $f $f.new; printf n >> $f.new; printf c >> $f
done
cat first.read > /dev/null; echo then changed > first.read
rm -r tree; mv old.name new.name; chmod 600 mode; ln source hard.new; rm hard.one; ln -sfn other symlink
"#;

/// A repository with everything that [`COMMAND`] uses.
fn repository(user: User) -> Place {
    let place = Place::of(user);
    for (name, size, _) in CHANGED {
        place.write(name, unique(name, size));
    }
    for name in ["read", "asked", "first.read", "old.name", "mode", "source", "hard.one", "listed/entry"] {
        place.write(name, name);
    }
    place.write("tree/deep/file", "deep");
    symlink("file", place.at("tree/deep/link")).unwrap();
    symlink("read", place.at("symlink")).unwrap();
    place.hard_link("hard.one", "hard.two");
    place.write("exec.sh", "#!/bin/sh\n: nothing\n");
    chmod(place.at("exec.sh"), 0o755);
    place.write(".gitignore", "ignored/\n");
    place.prepare("git init -q; git add .; git commit -qm first");
    place
}

/// The tree without what Git keeps for itself.
fn tree(place: &Place) -> Tree {
    let mut tree = scan(&place.work);
    tree.retain(|path, _| !path.windows(5).any(|part| part == b"/.git"));
    tree
}

/// A recording of [`COMMAND`].
struct Recorded {
    place: Place,
    before: Tree,
    after: Tree,
    snapshot: Snapshot,
}

impl Recorded {
    fn keeping(keep: &str) -> Recorded {
        Recorded::of(User::Current, keep)
    }

    #[track_caller]
    fn of(user: User, keep: &str) -> Recorded {
        let place = repository(user);
        let before = tree(&place);
        let options = ["--keep", keep, "--strict", "--quiet"];
        Run::from(place.record_with(&options, COMMAND)).expect(0);
        let snapshot = place.snapshot();
        Recorded { before, after: tree(&place), snapshot, place }
    }

    fn file(&self, name: &str) -> &FileRecord {
        self.place.file(&self.snapshot, name)
    }

    #[track_caller]
    fn before(&self, name: &str) -> &Present {
        self.file(name).before.present().unwrap_or_else(|| panic!("{name} has no state before"))
    }

    #[track_caller]
    fn after(&self, name: &str) -> &Present {
        self.file(name).after.present().unwrap_or_else(|| panic!("{name} has no state after"))
    }

    fn content(&self, tree: &Tree, name: &str) -> Vec<u8> {
        tree[&self.place.path(name)].content.clone().unwrap()
    }

    #[track_caller]
    fn expect(&self, tree: &Tree, what: &str) {
        let now = describe_recorded(&self::tree(&self.place));
        assert_same(&now, &describe_recorded(tree), what);
    }
}

#[test]
fn bytes_and_digests_are_kept_as_the_level_says() {
    if !has("git") {
        return;
    }
    for keep in LEVELS {
        let recorded = Recorded::keeping(keep);
        let check = |name: &str, stores: bool| {
            let after = recorded.after(name);
            assert_eq!(after.digest, recorded.after[&recorded.place.path(name)].present.digest, "{name}");
            assert_eq!(after.blob.is_some(), stores || keep != "undo", "{keep}: {name}");
            if after.blob.is_some() {
                let content = bytes(&recorded.snapshot, recorded.file(name), false);
                assert!(content == recorded.content(&recorded.after, name), "{keep}: {name}");
            }
        };
        let check_before = |name: &str| {
            let content = bytes(&recorded.snapshot, recorded.file(name), true);
            assert!(content == recorded.content(&recorded.before, name), "{keep}: {name}");
            assert_eq!(
                recorded.before(name).digest,
                recorded.before[&recorded.place.path(name)].present.digest
            );
        };
        for (name, _, stores) in CHANGED {
            check_before(name);
            check(name, stores);
        }
        for (name, _, stores) in created() {
            check(&name, stores);
        }
        for name in ["first.read", "old.name", "mode", "hard.one", "tree/deep/file"] {
            check_before(name);
        }
        for name in ["first.read", "new.name", "mode", "hard.new"] {
            check(name, true);
        }
        assert_eq!(recorded.before("symlink").target.as_deref(), Some(b"read".as_slice()));
        assert_eq!(recorded.before("tree/deep/link").target.as_deref(), Some(b"file".as_slice()));
        // What a level leaves out is no gap.
        assert!(recorded.snapshot.header().complete, "{:?}", recorded.snapshot.header().warnings);
        let omitted = |record: &&FileRecord| {
            [&record.before, &record.after]
                .iter()
                .any(|state| state.present().is_some_and(|present| present.blob_omitted.is_some()))
        };
        assert_eq!(recorded.snapshot.records().into_iter().find(omitted), None, "{keep}");
    }
}

#[test]
fn inputs_have_states_at_the_level_all_alone() {
    if !has("git") {
        return;
    }
    const INPUTS: [(&str, &[Operation]); 3] = [
        ("read", &[Operation::Read]),
        ("exec.sh", &[Operation::Read, Operation::Execute]),
        ("listed", &[Operation::Directory]),
    ];
    for keep in LEVELS {
        let recorded = Recorded::keeping(keep);
        let (place, snapshot) = (&recorded.place, &recorded.snapshot);
        let manifest = json(&place.out.join("manifest.json"));
        assert_eq!(manifest["keep"], keep);
        for (name, operations) in INPUTS {
            let record = recorded.file(name);
            assert!(operations.iter().all(|operation| record.operations.contains(*operation)), "{record:?}");
            assert!(!record.processes.is_empty(), "{keep}: {record:?}");
            assert_eq!(record.is_without_states(), keep != "all", "{keep}: {name}");
            assert_eq!(record.git.is_some(), keep == "all", "{keep}: {name}");
        }
        for name in ["asked", "missing"] {
            assert_eq!(snapshot.find(&place.path(name)).is_some(), keep == "all", "{keep}: {name}");
        }
        let version = &manifest["format_version"];
        if keep == "all" {
            assert_eq!((version.as_u64(), snapshot.header().existence_only), (Some(1), None));
            assert!(recorded.before("exec.sh").digest.is_some() || recorded.file("exec.sh").git.is_some());
            assert!(recorded.before("listed").entries_digest.is_some());
        } else {
            assert_eq!(version, 2);
            assert!(snapshot.header().existence_only.unwrap() >= 2);
            // The other name of a file that lost one, and the directory where names came and went.
            let changed_beside =
                [".", "hard.two", "source"].map(|name| place.at(name).canonicalize().unwrap());
            for path in changed_beside {
                let record = snapshot.find(path.as_os_str().as_encoded_bytes());
                assert!(record.is_none_or(|record| !record.is_without_states()), "{keep}: {record:?}");
            }
        }
    }
}

#[test]
fn undo_works_at_every_level_for_every_user() {
    if !has("git") {
        return;
    }
    for user in User::all() {
        for keep in LEVELS {
            let recorded = Recorded::of(*user, keep);
            recorded.place.verb("verify", &[]).expect(0);
            recorded.place.verb("restore", &["--before"]).expect(0);
            recorded.expect(&recorded.before, keep);
            // The redo is in the rescue.
            recorded.place.verb_on("restore", &recorded.place.rescue(1), &["--before"]).expect(0);
            recorded.expect(&recorded.after, keep);
        }
    }
}

#[test]
fn bytes_of_a_large_file_that_the_command_left_alone_are_not_stored() {
    if !has("git") {
        return;
    }
    for keep in LEVELS {
        let place = repository(User::Current);
        place.write("huge", unique("huge", MIB + 1));
        let files = [("mode", true), ("ignored/small", true), ("huge", false)];
        let mode = |name: &str| fs::metadata(place.at(name)).unwrap().mode() & 0o7777;
        let command = "chmod 600 mode huge ignored/small";
        Run::from(place.record_with(&["--keep", keep, "--strict", "--quiet"], command)).expect(0);
        let snapshot = place.snapshot();
        for (name, stores) in files {
            let record = place.file(&snapshot, name);
            let states = [&record.before, &record.after].map(|state| state.present().unwrap());
            assert!(states[0].digest.is_some() && states[0].digest == states[1].digest, "{record:?}");
            for state in states {
                assert_eq!(state.blob.is_some(), stores || keep != "undo", "{keep}: {record:?}");
                assert_eq!(state.blob_omitted, None);
            }
            let cat = place.verb("cat", &["--before", place.at(name).to_str().unwrap()]).expect(0);
            assert!(cat.stdout.as_bytes() == fs::read(place.at(name)).unwrap(), "{keep}: {name}");
        }

        place.verb("restore", &["--before"]).expect(0);
        assert_eq!(files.map(|(name, _)| mode(name)), [0o644; 3]);
        place.verb_on("restore", &place.rescue(1), &["--before"]).expect(0);
        assert_eq!(files.map(|(name, _)| mode(name)), [0o600; 3]);

        // What was edited since stays, by --merge; without it nothing is done.
        fs::write(place.at("huge"), "\0edited").unwrap();
        place.verb("restore", &["--before"]).expect(1);
        assert_eq!(files.map(|(name, _)| mode(name)), [0o600; 3]);
        let modified = || fs::metadata(place.at("huge")).unwrap().modified().unwrap();
        let edited = modified();
        place.verb("restore", &["--before", "--merge"]).expect(0);
        assert!(modified() >= edited, "the time is not that of other bytes");
        assert_eq!(files.map(|(name, _)| mode(name)), [0o644; 3]);
        assert_eq!(fs::read(place.at("huge")).unwrap(), b"\0edited");
    }
}

/// The paths whose after-bytes `undo` leaves to the live files.
fn left_to_live() -> Vec<String> {
    let changed = CHANGED.iter().map(|(name, size, stores)| ((*name).to_owned(), *size, *stores));
    changed.chain(created()).filter(|(.., stores)| !stores).map(|(name, ..)| name).collect()
}

#[test]
fn after_bytes_are_in_the_snapshot_or_in_the_live_file() {
    if !has("git") {
        return;
    }
    for keep in LEVELS {
        let recorded = Recorded::keeping(keep);
        let place = &recorded.place;
        // While the live file is the same, every level gives its bytes.
        place.verb("diff", &[]).expect(0);
        for name in left_to_live().iter().map(String::as_str).chain(["small", "medium", "limit.new"]) {
            let path = place.at(name);
            let cat = place.verb("cat", &[path.to_str().unwrap(), "--json"]).expect(0);
            let cat: serde_json::Value = serde_json::from_str(&cat.stdout).unwrap();
            let is_live = keep == "undo" && left_to_live().iter().any(|left| left == name);
            assert_eq!(cat["source"], if is_live { "live" } else { "blob" }, "{keep}: {name}");
            let content = recorded.content(&recorded.after, name);
            use base64::Engine as _;
            let found = base64::engine::general_purpose::STANDARD.decode(cat["content"].as_str().unwrap());
            assert!(found.unwrap() == content, "{keep}: {name}");
        }
        place.verb("restore", &[]).expect(0);

        // Then it is not, and each such path is named.
        for name in left_to_live() {
            fs::write(place.at(name), "edited").unwrap();
        }
        fs::write(place.at("small"), "edited").unwrap();
        let (diff, restore) = (place.verb("diff", &[]), place.verb("restore", &["--force"]));
        let small = place.at("small");
        let cat = place.verb("cat", &[small.to_str().unwrap()]).expect(0);
        assert_eq!(cat.stdout.as_bytes(), recorded.content(&recorded.after, "small"));
        if keep == "undo" {
            let (diff, restore) = (diff.expect(1), restore.expect(1));
            for name in left_to_live() {
                let path = place.at(&name);
                assert!(diff.stderr.contains(&format!("diff {name}: its content after")), "{diff:#?}");
                assert!(
                    restore.stderr.contains(&format!("{}: only its digest", path.display())),
                    "{restore:#?}"
                );
                let cat = place.verb("cat", &[path.to_str().unwrap()]).expect(1);
                assert!(
                    cat.stdout.is_empty() && cat.stderr.contains("only its digest was recorded"),
                    "{cat:#?}"
                );
            }
            assert!(diff.stdout.contains("+++ b/first.read"), "the rest is told: {diff:#?}");
            assert_eq!(fs::read(small).unwrap(), b"edited", "nothing was changed");
        } else {
            diff.expect(0);
            restore.expect(0);
            recorded.expect(&recorded.after, keep);
        }
    }
}

#[test]
fn verbs_that_need_inputs_are_refused_by_name_of_the_level() {
    if !has("git") {
        return;
    }
    for keep in LEVELS {
        let recorded = Recorded::keeping(keep);
        let place = &recorded.place;
        place.prepare("git stash -q -u; git checkout -q -- .");
        let [branch, into] = ["branch", "into"].map(|name| place.base().join(name));
        let runs = [
            place.verb("verify", &["--before", "--drift-policy", "off"]),
            place.verb("branch", &[branch.to_str().unwrap()]),
            place.verb("restore", &["--into", into.to_str().unwrap()]),
        ];
        for run in runs {
            if keep == "all" {
                run.expect(0);
                continue;
            }
            let run = run.expect(2);
            let why = format!("was recorded with --keep {keep}: record with --keep all");
            assert!(run.stdout.is_empty() && run.stderr.contains(&why), "{run:#?}");
        }
        for made in [branch, into] {
            assert_eq!(made.exists(), keep == "all", "{keep}: {}", made.display());
        }
    }
}

#[test]
fn verify_compares_inputs_at_the_level_all_alone() {
    if !has("git") {
        return;
    }
    for keep in LEVELS {
        let recorded = Recorded::keeping(keep);
        let place = &recorded.place;
        fs::write(place.at("listed/more"), "").unwrap();
        let verify = place.verb("verify", &["--json"]).expect(i32::from(keep == "all"));
        let verify: serde_json::Value = serde_json::from_str(&verify.stdout).unwrap();
        assert_eq!(verify["keep"], keep);
        assert_eq!(verify["not_kept"].as_u64().unwrap() > 0, keep != "all", "{verify}");
        fs::write(place.at("small"), "edited").unwrap();
        let verify = place.verb("verify", &[]).expect(1);
        assert!(verify.stdout.contains("/work/small"), "{verify:#?}");
    }
}

#[test]
fn what_was_only_read_is_shown_and_has_no_content() {
    if !has("git") {
        return;
    }
    for keep in ["changes", "undo"] {
        let recorded = Recorded::keeping(keep);
        let place = &recorded.place;
        let show = place.verb("show", &[]).expect(0).stdout;
        assert!(show.contains(&format!("Kept        {keep}: ")), "{show}");
        assert!(show.contains("Only read: ") && show.contains("only looked up and not recorded"), "{show}");
        let read = place.verb("show", &["--read", "--json"]).expect(0).stdout;
        let read: serde_json::Value = serde_json::from_str(&read).unwrap();
        let paths: Vec<_> = read["files"].as_array().unwrap().iter().map(|file| &file["path"]).collect();
        let path = place.at("read");
        assert!(paths.contains(&&path.to_str().unwrap().into()), "{read}");
        assert!(paths.is_sorted_by_key(|path| path.as_str()), "{read}");
        assert_eq!(read["keep"], keep);

        let path = path.to_str().unwrap();
        for side in [&["--before"][..], &[]] {
            let cat = place.verb("cat", &[&[path], side].concat()).expect(1);
            assert!(cat.stderr.contains("was not changed, and the recording keeps no states"), "{cat:#?}");
            let restore = place.verb("restore", &[&[path], side].concat()).expect(1);
            assert!(
                restore.stderr.contains("nothing was changed") && restore.stderr.contains(path),
                "{restore:#?}"
            );
            assert_eq!(fs::read(path).unwrap(), b"read");
        }
        let asked = place.verb("cat", &[place.at("asked").to_str().unwrap()]).expect(1);
        assert!(asked.stderr.contains("or only looked it up"), "{asked:#?}");
    }
}

#[test]
fn sparse_file_above_the_limit_by_its_holes_alone_is_stored() {
    let place = Place::new();
    for (name, data) in [("holes", 4096), ("data", 2 * MIB)] {
        let file = File::create(place.at(name)).unwrap();
        file.set_len(1 << 30).unwrap();
        file.write_all_at(&unique(name, data), 1 << 29).unwrap();
    }
    let before = scan_sizes(&place);
    let script = "for f in holes data; do printf x | dd of=$f bs=1 seek=999 conv=notrunc status=none; done";
    Run::from(place.record_with(&["--keep", "undo", "--strict", "--quiet"], script)).expect(0);
    let snapshot = place.snapshot();
    for (name, stores) in [("holes", true), ("data", false)] {
        let record = place.file(&snapshot, name);
        let (before, after) = (record.before.present().unwrap(), record.after.present().unwrap());
        assert!(before.is_sparse() && before.blob.is_some(), "{record:?}");
        assert!(after.is_sparse() && after.blob.is_some() == stores, "{record:?}");
        // The live file gives its holes as holes.
        let copy = place.base().join(name);
        let path = place.at(name);
        let mut cat = place.command();
        cat.arg("cat").args([&place.out, &path]).stdout(File::create(&copy).unwrap());
        assert!(cat.status().unwrap().success());
        let compared = std::process::Command::new("cmp").args([&copy, &path]).output().unwrap();
        assert!(compared.status.success(), "{compared:?}");
        assert!(fs::metadata(&copy).unwrap().blocks() * 512 < 16 << 20, "{name}");
    }
    place.verb("restore", &["--before"]).expect(0);
    assert_eq!(scan_sizes(&place), before);
    assert!(lost(&snapshot).is_empty());
}

fn scan_sizes(place: &Place) -> Vec<(u64, bool)> {
    let sizes = ["holes", "data"].map(|name| {
        let file = fs::metadata(place.at(name)).unwrap();
        (file.len(), file.blocks() * 512 < 16 << 20)
    });
    sizes.to_vec()
}

#[test]
fn without_a_repository_only_the_size_counts() {
    let place = Place::new();
    let script = "head -c 1048576 /dev/zero > limit; head -c 1048577 /dev/zero > above";
    Run::from(place.record_with(&["--keep", "undo", "--quiet"], script)).expect(0);
    let snapshot = place.snapshot();
    assert_eq!(snapshot.header().keep, Keep::Undo);
    let after = |name| place.file(&snapshot, name).after.present().unwrap().clone();
    assert!(after("limit").blob.is_some());
    assert!(after("above").blob.is_none() && after("above").digest.is_some());
}

#[test]
fn new_hard_link_costs_undo_no_bytes_of_a_large_file() {
    for keep in LEVELS {
        let place = Place::new();
        place.write("large", unique("large", MIB + 1));
        place.write("small", "small");
        Run::from(place.record_with(&["--keep", keep, "--quiet"], "ln large one; ln small two")).expect(0);
        let snapshot = place.snapshot();
        for (name, stores) in [("one", keep != "undo"), ("two", true)] {
            let after = place.file(&snapshot, name).after.present().unwrap();
            assert!(after.digest.is_some() && after.blob.is_some() == stores, "{keep}: {after:?}");
        }
        place.verb("restore", &["--before"]).expect(0);
        assert!(!place.at("one").exists() && place.at("large").exists());
    }
}

#[test]
fn what_changes_beside_a_path_is_undone_at_every_level() {
    for keep in LEVELS {
        let place = Place::new();
        place.write("directory/one", "same");
        place.hard_link("directory/one", "two");
        let directory = File::open(place.at("directory")).unwrap();
        directory.set_modified(std::time::UNIX_EPOCH).unwrap();
        let script = "test -e two; ls -d directory; rm directory/one";
        Run::from(place.record_with(&["--keep", keep, "--quiet"], script)).expect(0);
        place.verb("restore", &["--before"]).expect(0);
        assert_eq!(place.inode("directory/one"), place.inode("two"), "{keep}");
        assert_eq!(directory.metadata().unwrap().modified().unwrap(), std::time::UNIX_EPOCH, "{keep}");
    }
}

#[test]
fn external_change_of_what_was_only_read_is_noticed_at_the_level_all_alone() {
    for keep in LEVELS {
        let place = Place::new();
        place.write("read", "input");
        place.write("changed", "old");
        let mut command = place.recording();
        command.args([
            "--keep",
            keep,
            "--quiet",
            "sh",
            "-c",
            "cat read; echo new > changed; echo; read line",
        ]);
        let mut child =
            command.stdin(std::process::Stdio::piped()).stdout(std::process::Stdio::piped()).spawn().unwrap();
        let mut said = [0; 6];
        std::io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut said).unwrap();
        fs::write(place.at("read"), "from outside").unwrap();
        drop(child.stdin.take());
        child.wait().unwrap();
        assert_eq!(!lost(&place.snapshot()).is_empty(), keep == "all", "{keep}");
    }
}
