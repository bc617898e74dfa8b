use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use crate::commands::out::OutputFormat;
use crate::commands::testing::{BundleTrees, Ran, run, run_on};
use crate::snapshot::change::PathEffect;
use crate::snapshot::samples::created;
use crate::snapshot::*;

fn show(trees: &BundleTrees, flags: &[&str]) -> Ran {
    let snap = trees.snap();
    let mut args = vec!["show", snap.to_str().unwrap()];
    args.extend(flags);
    run(&args)
}

/// The lines from the first heading on, without those of `--long`.
fn list(text: &str) -> Vec<&str> {
    let lines = text.lines().skip_while(|line| !line.ends_with(char::is_numeric));
    lines.filter(|line| !line.is_empty()).map(str::trim).collect()
}

fn process(id: u32, parent: Option<u32>, argv: &[&str]) -> RecordedProcess {
    let argv: Vec<Vec<u8>> = argv.iter().map(|arg| arg.as_bytes().to_vec()).collect();
    RecordedProcess {
        id,
        pid: 1000 + id,
        parent,
        image: Exec { exe: b"/bin/x".to_vec(), argv, ..Exec::default() }.into(),
        cwd: b"/".to_vec(),
        exit_status: Some(0),
        execs: Vec::new(),
        started_us: None,
        ended_us: None,
    }
}

fn git(tracked: bool, dirty: bool, ignored: bool) -> Option<GitStatus> {
    let (root, relative_path) = (b"/nowhere/work".to_vec(), b"x".to_vec());
    Some(GitStatus { root, head: None, relative_path, oid: None, tracked, dirty, ignored })
}

fn edit<'r>(records: &'r mut [FileRecord], name: &str) -> &'r mut FileRecord {
    let path = format!("/nowhere/work/{name}").into_bytes();
    records.iter_mut().find(|record| record.path == path).unwrap()
}

/// A bundle with something in every group.
fn full() -> BundleTrees {
    let trees = BundleTrees::new();
    trees.both("same", "x");
    trees.both("read", "input");
    trees.both("stated", "");
    trees.both("mode", "#!");
    fs::set_permissions(trees.after().join("mode"), fs::Permissions::from_mode(0o755)).unwrap();
    BundleTrees::write(&trees.before(), "edited", "0123456789");
    BundleTrees::write(&trees.after(), "edited", "0");
    BundleTrees::write(&trees.before(), "old", "moved");
    BundleTrees::write(&trees.after(), "new", "moved");
    BundleTrees::write(&trees.before(), "gone/f", "gone");
    BundleTrees::write(&trees.after(), "made", "made");
    BundleTrees::write(&trees.after(), "log", "log");
    std::os::unix::fs::symlink("made", trees.after().join("link")).unwrap();
    trees.commit(|records| {
        let rename: &mut [FileRecord] = records;
        trees.rename(rename, "old", "new");
        edit(records, "read").operations = Operations::from(Operation::Read);
        edit(records, "stated").operations = Operations::from(Operation::Existence);
        edit(records, "mode").git = git(true, true, false);
        edit(records, "edited").git = git(true, false, false);
        edit(records, "gone/f").git = git(false, false, true);
        edit(records, "made").git = git(false, false, false);
        edit(records, "log").inherited = true;
        let temporary = State::Absent { tombstone: true };
        records.push(created(b"/nowhere/work/temporary", temporary));
        records.push(created(b"/outside", State::Absent { tombstone: true }));
    });
    trees
}

#[test]
fn each_path_is_in_the_group_of_what_became_of_it() {
    let ran = show(&full(), &[]);
    assert_eq!((ran.status, ran.err.as_str()), (0, ""));
    assert_eq!(
        list(ran.text()),
        [
            "Changed: 2",
            "1 B  tracked    edited  was 10 B",
            "2 B  modified   mode  mode 0644 → 0755",
            "Renamed: 1",
            "5 B             old → new",
            "Created: 2",
            "link → made",
            "4 B  untracked  made",
            "Deleted: 2",
            "gone/",
            "4 B  ignored    gone/f",
            "Made and removed again: 2",
            "temporary",
            "/outside",
            "Written or touched, but unchanged: 1",
            "1 B             same",
            "Written through an inherited descriptor: 1",
            "3 B             log",
            "Only read: 1",
            "5 B             read",
            "1 path was only looked up (--existence lists them)",
        ]
    );
}

#[test]
fn filters_take_what_they_name_and_nothing_else() {
    let trees = full();
    let names = |flags: &[&str]| {
        let flags: Vec<_> = flags.iter().chain(&["--json"]).copied().collect();
        let json = show(&trees, &flags).json();
        let files = json["files"].as_array().unwrap().iter();
        let names = files.map(|file| file["path"].as_str().unwrap().replace("/nowhere/work/", ""));
        names.collect::<Vec<_>>()
    };
    assert_eq!(names(&["--changed"]), ["edited", "mode"]);
    assert_eq!(names(&["--created"]), ["link", "log", "made", "new"]);
    assert_eq!(names(&["--deleted"]), ["gone", "gone/f", "old"]);
    assert_eq!(names(&["--read"]), ["read"]);
    assert_eq!(names(&["--existence"]), ["stated"]);
    assert_eq!(names(&["--changed", "--read"]), ["edited", "mode", "read"]);
    assert_eq!(names(&["--deleted", "/nowhere/work/gone"]), ["gone", "gone/f"]);
    assert_eq!(names(&[]).len(), 14);
    // Parted by a filter, each half of a rename says where the other is.
    assert!(show(&trees, &["--created"]).text().contains("new  from old"));
    assert!(show(&trees, &["--deleted"]).text().contains("old  went to new"));
    assert_eq!(
        list(show(&trees, &["/nowhere/work/stated"]).text()),
        ["Only looked up: 1", "0 B  stated"],
        "a path that is named is shown whatever became of it"
    );
}

#[test]
fn a_path_that_was_not_used_is_a_finding() {
    let ran = show(&full(), &["/nowhere/else"]);
    assert_eq!((ran.status, ran.text()), (1, ""));
    assert!(ran.err.contains("show /nowhere/else: the snapshot has no record of it"), "{}", ran.err);
    let ran = show(&full(), &["--process", "7"]);
    assert_eq!(ran.status, 2);
    assert!(ran.err.contains("no process 7"), "{}", ran.err);
}

#[test]
fn the_json_is_the_manifest_and_what_became_of_each_path() {
    let json = show(&full(), &["--json"]).json();
    assert_eq!(json["command"], serde_json::json!(["true"]));
    assert_eq!(json["start_cwd"], "/nowhere/work");
    assert_eq!(json["seconds"], 1.0);
    assert_eq!(
        json["counts"],
        serde_json::json!({"changed": 2, "created": 4, "deleted": 3, "mount_point": 0, "temporary": 2, "unaltered": 1, "read": 1, "existence": 1})
    );
    let files = json["files"].as_array().unwrap();
    let mode = files.iter().find(|file| file["path"] == "/nowhere/work/mode").unwrap();
    assert_eq!((&mode["status"], &mode["differs"]), (&"changed".into(), &serde_json::json!(["mode"])));
    assert_eq!(mode["after"]["mode"], 0o100_755);
    assert_eq!(mode["git"]["dirty"], true);
    assert_eq!(files.iter().filter(|file| file.get("differs").is_some()).count(), 2);
}

#[test]
fn what_the_recording_has_not_seen_is_said() {
    let mut trees = BundleTrees::new();
    BundleTrees::write(&trees.before(), "big", "x");
    trees.header.complete = false;
    trees.header.exit_status = 137;
    trees.header.exit_signal = Some("SIGKILL".to_owned());
    trees.header.timed_out = true;
    let warning = |kind, lost, count, detail: &str| Warning {
        kind,
        lost,
        count,
        detail: detail.to_owned(),
        processes: vec![1],
    };
    trees.header.warnings = vec![
        warning(WarningKind::IoUring, true, 3, "ring 5 of tid 9"),
        warning(WarningKind::Setuid, false, 1, "sudo ran without its privilege"),
    ];
    let changed = |path: &str| path.as_bytes().to_vec();
    trees.header.suppressed = vec![
        Suppressed {
            rule: ".git".to_owned(),
            reads: 5,
            writes: 1,
            changed: vec![changed("/nowhere/work/.git")],
            changes: None,
            changes_cut: false,
            read: None,
        },
        Suppressed {
            rule: "/usr".to_owned(),
            reads: 7,
            writes: 0,
            changed: Vec::new(),
            changes: None,
            changes_cut: false,
            read: None,
        },
    ];
    trees.commit(|records| {
        let State::Present(before) = &mut records[0].before else { panic!() };
        (before.blob, before.digest, before.blob_omitted) = (None, None, Some(BlobOmitted::NoSpace));
    });
    let ran = show(&trees, &[]);
    for expected in [
        "Status      ended by SIGKILL (137), ended by --timeout, 1.00 s\n",
        "Recorded    2026-01-02 03:04:05 UTC, incomplete\n",
        "Gap         io_uring: ring 5 of tid 9 (3 times)\n",
        "Note        setuid: sudo ran without its privilege\n",
        "Left out    .git (rule .git): changed, not recorded, not to be undone\n",
        "Left out    13 uses of paths by rule: .git, /usr\n",
        "big  its old bytes are not stored: no_space\n",
    ] {
        assert!(ran.text().contains(expected), "{expected}{}", ran.text());
    }
}

#[test]
fn nothing_from_a_snapshot_moves_the_cursor_of_a_terminal() {
    let mut trees = BundleTrees::new();
    let evil = "\x1b[2J\r\n\u{9b}\u{202e}";
    trees.header.command = vec![evil.as_bytes().to_vec(), b"\xff\x1b".to_vec()];
    trees.header.name = Some(evil.to_owned());
    trees.header.session = Some(evil.to_owned());
    trees.header.exit_signal = Some(evil.to_owned());
    trees.header.started_at = evil.to_owned();
    trees.header.start_cwd = b"/nowhere/\x1b[2J".to_vec();
    let root = b"/nowhere".to_vec();
    let head = Some(evil.to_owned());
    trees.header.git_repositories = vec![GitRepository {
        branch: None,
        branch_after: None,
        root: root.clone(),
        head: head.clone(),
        dirty: true,
        head_after: head,
    }];
    trees.header.suppressed = vec![Suppressed {
        rule: evil.to_owned(),
        reads: 1,
        writes: 1,
        changed: vec![b"/\x1b\xff".to_vec()],
        changes: None,
        changes_cut: false,
        read: None,
    }];
    let detail = evil.to_owned();
    trees.header.warnings =
        vec![Warning { kind: WarningKind::Chroot, lost: true, count: 1, detail, processes: vec![] }];
    trees.header.processes = vec![process(1, None, &[evil]), process(2, Some(1), &["\x1b"])];
    trees.header.processes[0].cwd = b"\x1b".to_vec();
    for index in 0..60 {
        let name = [b"d\x1b[2J/".as_slice(), &[0xff, 0x07], format!("{index}").as_bytes()].concat();
        BundleTrees::write(&trees.after(), std::ffi::OsStr::from_bytes(&name), "x");
    }
    std::os::unix::fs::symlink("\x1b[2J", trees.after().join("link")).unwrap();
    trees.commit(|records| {
        for record in records.iter_mut().take(5) {
            record.renamed_from = Some(b"/\x1b".to_vec());
        }
    });
    for flags in [&[][..], &["--long"], &["--created"], &["--processes"], &["--processes", "--long"]] {
        let ran = show(&trees, flags);
        assert_eq!(ran.status, 0, "{}", ran.err);
        let text = String::from_utf8(ran.out).unwrap() + &ran.err;
        let bad = |char: char| char != '\n' && (char.is_control() || char == '\u{202e}');
        assert!(!text.contains(bad), "{flags:?}: {}", text.escape_debug());
    }
    assert_eq!(show(&trees, &["--json"]).json()["files"].as_array().unwrap().len(), 62);
}

#[test]
fn colours_are_for_who_wants_them_and_change_no_text() {
    let trees = full();
    let snap = trees.snap();
    let plain = show(&trees, &[]);
    assert!(!plain.text().contains('\x1b'));
    let args = ["show", snap.to_str().unwrap()];
    let coloured = run_on(OutputFormat { terminal: true, colour: true, width: Some(200) }, &args);
    let text = coloured.text();
    assert!(text.contains("\x1b[1m\x1b[32mCreated: 2\x1b[0m"), "{}", text.escape_debug());
    let mut stripped = String::new();
    for (index, part) in text.split('\x1b').enumerate() {
        stripped += if index == 0 { part } else { part.split_once('m').unwrap().1 };
    }
    assert_eq!(stripped, plain.text());
}

#[test]
fn thousands_of_paths_are_a_page_and_all_are_counted() {
    let trees = BundleTrees::new();
    for index in 0..3000 {
        BundleTrees::write(&trees.before(), format!("src/d{}/f{index}", index % 100), "x");
        BundleTrees::write(&trees.after(), format!("made/f{index}"), "x");
    }
    trees.commit(|_| ());
    let ran = show(&trees, &[]);
    assert!(ran.text().lines().count() < 60, "{}", ran.text());
    for expected in ["Created: 3,001", "Deleted: 3,101", "src/  and 3,100 paths beneath"] {
        assert!(ran.text().contains(expected), "{expected}: {}", ran.text());
    }
    assert!(ran.text().contains("are folded: --long lists them all"), "{}", ran.text());
    for flags in [["--long"], ["--created"]] {
        let ran = show(&trees, &flags);
        assert!(ran.text().contains("made/f2999") && !ran.text().contains("are folded"));
    }
}

#[test]
fn a_renamed_directory_is_one_line() {
    let trees = BundleTrees::new();
    for (tree, dir) in [(trees.before(), "lib"), (trees.after(), "src")] {
        for name in ["a", "deep/b"] {
            BundleTrees::write(&tree, Path::new(dir).join(name), name);
        }
    }
    BundleTrees::write(&trees.after(), "src/new", "");
    trees.commit(|records| {
        for name in ["", "/a", "/deep", "/deep/b"] {
            trees.rename(records, &format!("lib{name}"), &format!("src{name}"));
        }
    });
    let ran = show(&trees, &[]);
    assert_eq!(
        list(ran.text()),
        [
            "Renamed: 4",
            "lib → src/  and 3 paths beneath",
            "Created: 1",
            "0 B  src/new",
            "3 paths are folded: --long lists them all, PATH those beneath it"
        ]
    );
    assert!(show(&trees, &["--long"]).text().contains("lib/deep/b → src/deep/b"));
}

#[test]
fn the_processes_are_a_tree_even_of_a_snapshot_that_makes_them_a_circle() {
    let mut trees = BundleTrees::new();
    trees.header.processes = vec![
        process(1, None, &["make", "all"]),
        process(2, Some(1), &["sh", "-c", "cc -c 'a b.c'"]),
        process(3, Some(2), &["cc", "-c", "a b.c"]),
        process(4, Some(1), &["ld"]),
        process(5, Some(6), &["circle"]),
        process(6, Some(5), &["circle"]),
    ];
    trees.header.processes[2].exit_status = Some(1);
    trees.header.processes[3].exit_status = None;
    BundleTrees::write(&trees.after(), "made", "x");
    trees.commit(|records| records[0].processes = vec![1, 3]);
    let ran = show(&trees, &["--processes"]);
    let tree = ran.text().split_once("\n\n").unwrap().1;
    assert_eq!(
        tree,
        "1  make all  1 path\n\
         2 ├─ sh -c 'cc -c '\\''a b.c'\\'''\n\
         3 │ └─ cc -c 'a b.c'  exit 1, 1 path\n\
         4 └─ ld  end not seen\n\
         5  circle\n\
         6 └─ circle\n"
    );
    assert_eq!(list(show(&trees, &["--process", "3"]).text()), ["Created: 1", "1 B  made"]);
    assert_eq!(show(&trees, &["--process", "4"]).text(), "no such path is in the snapshot\n");
}

#[test]
fn nothing_is_said_of_nothing() {
    let trees = BundleTrees::new();
    trees.both("stated", "");
    trees.commit(|records| records[0].operations = Operations::from(Operation::Existence));
    let ran = show(&trees, &[]);
    let end = "complete\n\nNothing was changed.\n\n1 path was only looked up (--existence lists them)\n";
    assert!(ran.text().ends_with(end), "{}", ran.text());
}

#[test]
fn no_snapshot_is_none() {
    let ran = run(&["show", "/nowhere/at/all"]);
    assert_eq!(ran.status, 3);
    assert!(ran.out.is_empty() && ran.err.starts_with("agent-snapshot: "), "{}", ran.err);
}

/// What `git` says of the time before and after `script`, which is run in a copy of what `setup` made.
fn git_bundle(setup: &str, script: &str) -> BundleTrees {
    let mut trees = BundleTrees::new();
    let run = |directory: &Path, script: &str| {
        let mut shell = std::process::Command::new("sh");
        shell.current_dir(directory).args(["-euc", script]).env_clear();
        shell.env("PATH", std::env::var_os("PATH").unwrap_or_default());
        shell.envs([("HOME", "/nonexistent"), ("GIT_CONFIG_NOSYSTEM", "1"), ("GIT_EDITOR", "true")]);
        shell.envs([("GIT_AUTHOR_NAME", "a"), ("GIT_AUTHOR_EMAIL", "a@b")]);
        shell.envs([("GIT_COMMITTER_NAME", "a"), ("GIT_COMMITTER_EMAIL", "a@b")]);
        let output = shell.output().unwrap();
        assert!(output.status.success(), "{script}: {output:?}");
    };
    run(
        &trees.before(),
        &format!("git init -qb main repo; cd repo; git config core.checkStat minimal; {setup}"),
    );
    fs::remove_dir(trees.after()).unwrap();
    // With the stat data that a copy keeps, Git need not refresh its index.
    run(trees.dir.path(), "cp -a before after");
    let head = |tree: &Path| {
        let text = std::process::Command::new("git")
            .args(["rev-parse", "-q", "--verify", "HEAD"])
            .current_dir(tree.join("repo"))
            .output();
        let text = text.map(|output| String::from_utf8(output.stdout).unwrap().trim().to_owned());
        text.ok().filter(|head| !head.is_empty())
    };
    let before = head(&trees.before());
    run(&trees.after(), script);
    let after = head(&trees.after()).filter(|after| Some(after) != before.as_ref());
    trees.header.git_repositories = vec![GitRepository {
        root: b"/nowhere/work/repo".to_vec(),
        head: before,
        branch: Some("main".to_owned()),
        dirty: false,
        head_after: after,
        branch_after: None,
    }];
    trees.commit(|records| {
        for record in records.iter_mut() {
            let mut names = record.path.split(|byte| *byte == b'/');
            record.is_git_state = names.any(|name| name == b".git" || name == b"x.git");
        }
        let is_added = |record: &FileRecord| {
            record.before.present().is_none() && record.path.windows(9).any(|part| part == b"/objects/")
        };
        records.retain(|record| PathEffect::of(record).lasts() && !is_added(record));
    });
    trees
}

/// The lines of Git's state, with the ids of commits cut out.
fn git_lines(setup: &str, script: &str) -> Vec<String> {
    let ran = show(&git_bundle(setup, script), &[]);
    assert_eq!((ran.status, ran.err.as_str()), (0, ""), "{script}");
    let lines = ran.text().lines().filter_map(|line| line.strip_prefix("Git state   "));
    let is_id = |word: &str| word.len() == 7 && word.bytes().all(|byte| byte.is_ascii_hexdigit());
    let words = |line: &str| {
        let words = line.split(' ').map(|word| {
            let (id, rest) = word.split_at_checked(7).unwrap_or((word, ""));
            if is_id(id) { format!("ID{rest}") } else { word.to_owned() }
        });
        words.collect::<Vec<_>>().join(" ").replace("/nowhere/work", "")
    };
    lines.map(words).collect()
}

const COMMITS: &str =
    "for n in 1 2 3; do echo $n >f; git add f; git commit -qm $n; done; git branch old HEAD~1";

#[test]
fn what_became_of_gits_state_is_one_line() {
    let cases: &[(&str, &str, &[&str])] = &[
        (COMMITS, "cd repo; echo x >f; git commit -qam x", &["/repo: HEAD ID → ID, index"]),
        (
            "",
            "cd repo; echo x >f; git add f; git commit -qm x",
            &["/repo: HEAD no commit → ID, branch main created, index"],
        ),
        (COMMITS, "cd repo; git checkout -q old", &["/repo: HEAD ID → ID, branch main → old, index"]),
        (COMMITS, "cd repo; git checkout -qb new", &["/repo: branch main → new, branch new created"]),
        (COMMITS, "cd repo; git checkout -q --detach", &["/repo: branch main → detached HEAD"]),
        (COMMITS, "cd repo; git branch -qD old", &["/repo: branch old deleted"]),
        (COMMITS, "cd repo; git branch -f old HEAD~2", &["/repo: branch old ID → ID"]),
        (
            &format!("{COMMITS}; git branch b; git pack-refs --all"),
            "cd repo; git branch -qD old b; git tag t; git tag u",
            &["/repo: 2 branches deleted (b, old), 2 tags created (t, u)"],
        ),
        (
            &format!("{COMMITS}; git pack-refs --all"),
            "cd repo; git reset -q --hard old",
            &["/repo: HEAD ID → ID, index"],
        ),
        (
            &format!("{COMMITS}; git pack-refs --all"),
            "cd repo; git branch -f old HEAD",
            &["/repo: branch old ID → ID"],
        ),
        (COMMITS, "cd repo; git pack-refs --all", &["/repo: packed-refs, refs/heads/main, refs/heads/old"]),
        (COMMITS, "cd repo; for n in 1 2 3 4 5 6; do git tag $n; done", &["/repo: 6 tags created"]),
        (
            &format!("{COMMITS}; echo x >f; git stash -q; echo y >f; git stash -q"),
            "cd repo; git stash drop -q; git config user.name x",
            &["/repo: 1 stash dropped, config"],
        ),
        (&format!("{COMMITS}; echo x >f"), "cd repo; git stash -q", &["/repo: 1 stash added, index"]),
        (
            &format!("{COMMITS}; git checkout -q old; echo y >f; git commit -qam y; git checkout -q main"),
            "cd repo; git merge -q old || true",
            &["/repo: merge started, index"],
        ),
        (
            &format!("{COMMITS}; git checkout -q old; echo y >f; git commit -qam y"),
            "cd repo; git rebase -q main || true",
            &["/repo: HEAD ID → ID, branch old → detached HEAD, rebase started, index"],
        ),
        (COMMITS, "cd repo; echo >.git/hooks/pre-commit", &["/repo: hook (pre-commit)"]),
        (COMMITS, "rm -rf repo/.git", &["/repo: repository removed (HEAD was ID on branch main)"]),
        (COMMITS, "git init -q other", &["/other: repository created"]),
        (
            COMMITS,
            "cd repo; git worktree add -q ../w -b side",
            &["/repo: branch side created", "/repo, worktree w: worktree added", "/w: .git"],
        ),
        (COMMITS, "cd repo; git reset -q --hard old", &["/repo: HEAD ID → ID, index"]),
        (COMMITS, "git clone -q --bare repo x.git", &["/x.git: repository created"]),
    ];
    for (setup, script, wanted) in cases {
        assert_eq!(git_lines(setup, script), *wanted, "{script}");
    }
}

#[test]
fn the_records_of_gits_state_are_listed_on_request() {
    let trees = git_bundle(COMMITS, "cd repo; echo x >f; git commit -qam x");
    let paths = |flags: &[&str]| {
        let text = show(&trees, flags).text().to_owned();
        let lines = text.lines().skip_while(|line| !line.starts_with("Git's state: "));
        let names =
            lines.skip(1).filter_map(|line| line.split_whitespace().find(|word| word.contains(".git/")));
        names.map(str::to_owned).collect::<Vec<_>>()
    };
    let changed = ["COMMIT_EDITMSG", "index", "logs/HEAD", "logs/refs/heads/main", "refs/heads/main"];
    let changed = changed.map(|name| format!("repo/.git/{name}"));
    assert_eq!(paths(&["--long"]), changed);
    assert_eq!(paths(&["/nowhere/work/repo/.git"]), changed);
    assert_eq!(paths(&["/nowhere/work/repo/.git/refs"]), changed[4..]);
    assert_eq!(paths(&["/nowhere/work/repo"]), [""; 0]);
    assert_eq!(paths(&[]), [""; 0]);
    let json = show(&trees, &["--json"]).json();
    let names = |key: &str| {
        let files = json[key].as_array().unwrap().iter();
        files.map(|file| file["path"].as_str().unwrap().replace("/nowhere/work/", "")).collect::<Vec<_>>()
    };
    assert_eq!(names("git_files"), changed);
    assert_eq!(names("files"), ["repo/f"]);
    assert_eq!(json["counts"]["changed"], 1);
    assert_eq!(json["git_changes"][0]["repository"], "/nowhere/work/repo");
    assert_eq!(json["git_changes"][0]["changes"][1], "index");
}

#[test]
fn a_command_that_changed_only_gits_state_changed_something() {
    let ran = show(&git_bundle(COMMITS, "cd repo; git tag t"), &[]);
    assert!(ran.text().contains("\nNothing but Git's state was changed.\n"), "{}", ran.text());
}
