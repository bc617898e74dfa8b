//! Files of a Git repository: which are pinned to an object of Git, and which are stored.

use std::fs;
use std::io::Read as _;
use std::os::unix::ffi::OsStrExt as _;
use std::process::Stdio;

use agent_snapshot::snapshot::source::Contents;
use agent_snapshot::snapshot::{BlobOmitted, GitStatus, Side, Snapshot, WarningKind};

use crate::support::{BINARY, Place, bytes, has, json, lost};

fn pin(place: &Place, snapshot: &Snapshot, name: &str) -> Option<String> {
    place.file(snapshot, name).git.as_ref().unwrap().oid.clone()
}

#[test]
fn file_of_a_removed_filter_is_stored() {
    if !has("git") {
        return;
    }
    let place = Place::new();
    // It keeps the length, and Git believes the stat data in its index.
    place.prepare(
        "git init -q; git config filter.rot.clean 'tr a-z n-za-m'; echo '*.txt filter=rot' >.gitattributes
         echo hello >f.txt; echo plain >plain; git add .; git commit -qm 1
         git config --remove-section filter.rot; touch -d '+1 minute' .git/index; git diff --quiet",
    );
    let snapshot = place.record("cat f.txt plain");
    assert!(pin(&place, &snapshot, "plain").is_some());
    assert_eq!(pin(&place, &snapshot, "f.txt"), None);
    assert_eq!(bytes(&snapshot, place.file(&snapshot, "f.txt"), true), b"hello\n");
}

#[test]
fn repository_is_dirty_only_if_a_dirty_path_was_observed() {
    if !has("git") {
        return;
    }
    let place = Place::new();
    place.prepare("git init -q; echo 1 >a; echo 1 >b; git add .; git commit -qm 1; echo 2 >b");
    for (script, dirty) in [("cat a", serde_json::Value::Null), ("cat a b", true.into())] {
        place.record(script);
        let manifest = json(&place.out.join("manifest.json"));
        let root = place.work.to_str().unwrap();
        let mut repositories = manifest["git_repositories"].as_array().unwrap().iter();
        let repository = repositories.find(|repository| repository["root"] == root).unwrap();
        assert_eq!(repository["dirty"], dirty, "{script}");
    }
}

#[test]
fn huge_index_is_not_read_into_memory() {
    if !has("git") {
        return;
    }
    let place = Place::new();
    place.prepare(
        "git init -q; echo 1 >a; git add .; git commit -qm 1; echo new >b; truncate -s 40G .git/index",
    );
    // Under a limit, so that a failure does not fill the memory of the machine.
    let script = "cat a b >c; grep VmHWM /proc/$(sed -n 's/TracerPid:\\t//p' /proc/self/status)/status";
    let mut command = place.program("sh");
    command.args(["-c", "ulimit -v 4000000; exec \"$@\"", "sh", BINARY, "--snapshot-dir"]).arg(&place.out);
    let output = command.args(["sh", "-c", script]).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    let peak: u64 = text.split_whitespace().nth(1).unwrap().parse().unwrap();
    assert!(peak < 100 << 10, "{text}");
    let snapshot = place.snapshot();
    assert_eq!(lost(&snapshot), []);
    assert_eq!(place.recorded(&snapshot), ["a read", "b read", "c write"]);
    assert!(
        snapshot.files().iter().all(|file| file.git.is_none() || !file.path.starts_with(&place.path("")))
    );
    for (name, before, content) in [("a", true, "1\n"), ("b", true, "new\n"), ("c", false, "1\nnew\n")] {
        assert_eq!(bytes(&snapshot, place.file(&snapshot, name), before), content.as_bytes());
    }
}

#[test]
fn clean_tracked_files_are_pinned_and_destroyed_ones_stored() {
    if !has("git") {
        return;
    }
    let place = Place::new();
    let oid = place.prepare(
        "git init -q; for f in read deleted changed dirty; do echo $f > $f; done; git add .; git commit -qm one
         echo more >> dirty; git rev-parse HEAD:read",
    );
    let snapshot = place.record("cat read dirty; rm deleted; echo new > changed");
    let pinned = place.file(&snapshot, "read");
    assert_eq!(pinned.git.as_ref().unwrap().oid.as_deref(), Some(oid.trim()));
    assert_eq!(pinned.before.present().unwrap().blob, None);
    assert_eq!(pinned.after.present().unwrap().blob, None);
    for name in ["deleted", "changed"] {
        let file = place.file(&snapshot, name);
        assert!(file.git.as_ref().unwrap().oid.is_some(), "{name}");
        assert_eq!(bytes(&snapshot, file, true), format!("{name}\n").as_bytes());
    }
    let dirty = place.file(&snapshot, "dirty");
    assert_eq!(dirty.git.as_ref().map(|git| (git.oid.is_some(), git.dirty)), Some((false, true)));
    assert_eq!(bytes(&snapshot, dirty, true), b"dirty\nmore\n");
    let root = place.work.as_os_str().as_bytes();
    // The directories of the search path may be in repositories, too.
    let repository = snapshot.header().git_repositories.iter().find(|repository| repository.root == root);
    assert!(repository.is_some_and(|repository| repository.dirty));
}

#[test]
fn pinned_file_is_stored_if_the_command_removes_its_object() {
    if !has("git") {
        return;
    }
    for script in [
        "rm -rf .git",
        "mv .git ../elsewhere",
        "mv .git elsewhere; rm -rf elsewhere",
        "git init -q ../other; rm -rf .git; mv ../other/.git .git",
        "git gc -q; rm -f .git/objects/pack/*",
        "chmod -R u+w .git/objects; for object in .git/objects/??/*; do : >$object; done",
        "git checkout -q --orphan other; git rm -q --cached f; git commit -qm 2; git branch -qD main
         git reflog expire --expire=now --all; git gc -q --prune=now",
        // The same for what it borrows.
        "cd ../borrower; cat f; rm -rf ../work/.git",
        "cd ../borrower; cat f; rm .git/objects/info/alternates",
        "cd ../borrower; cat f; mv ../work/.git ../elsewhere",
        "cd ../linked; cat f; rm -rf ../work/.git/worktrees",
        "cd ../linked; cat f; rm .git",
    ] {
        let place = Place::new();
        place.prepare(
            "git init -qb main; echo old >f; echo kept >kept; git add .; git commit -qm 1
             git clone -qs . ../borrower; git worktree add -q ../linked",
        );
        let names =
            "export GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@b GIT_COMMITTER_NAME=c GIT_COMMITTER_EMAIL=c@d";
        let snapshot = place.record(&format!("{names}; cat f; {script}"));
        assert_eq!(lost(&snapshot), [], "{script}");
        let name = match script.split(['/', ';']).nth(1) {
            Some(directory) if script.starts_with("cd ") => format!("../{directory}/f"),
            _ => "f".to_owned(),
        };
        let path = place.at(&name).canonicalize().unwrap();
        let file = snapshot.find(path.as_os_str().as_bytes()).unwrap();
        assert!(file.git.as_ref().unwrap().oid.is_some(), "{script}");
        fs::write(&path, "new").unwrap();
        for side in Side::BOTH {
            let mut content = Vec::new();
            Contents::new(&snapshot).copy(file, side, &mut content).unwrap();
            assert_eq!(content, b"old\n", "{script}");
        }
    }
}

#[test]
fn pinned_secret_is_withheld_when_its_object_is_gone() {
    if !has("git") || !has("perl") {
        return;
    }
    let place = Place::new();
    place.prepare(
        "git init -q; mkdir d; for f in .env plain; do yes A=b | head -c 2000000 >$f; done
         git add -f .; git commit -qm 1",
    );
    // Neither is read: the call fails.
    let snapshot = place.record("for f in .env plain; do perl -e 'rename shift, q(d)' $f; done; rm -rf .git");
    let before = |name| place.file(&snapshot, name).before.present().unwrap();
    assert_eq!((&before(".env").blob, before(".env").blob_omitted), (&None, Some(BlobOmitted::Withheld)));
    assert!(before("plain").blob.is_some());
}

#[test]
fn pinned_file_that_has_changed_when_its_object_is_gone_is_a_gap() {
    if !has("git") {
        return;
    }
    let place = Place::new();
    place.prepare("git init -q; echo old >f; git add .; git commit -qm 1");
    let mut command = place.recording();
    command.args(["sh", "-c", "cat f; rm -rf .git; read line"]);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    child.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
    fs::write(place.at("f"), "changed").unwrap();
    drop(child.stdin.take());
    child.wait().unwrap();
    let snapshot = place.snapshot();
    assert_eq!(lost(&snapshot), [WarningKind::ExternalChange, WarningKind::ContentOmitted]);
    let before = place.file(&snapshot, "f").before.present().unwrap();
    assert_eq!((&before.blob, before.blob_omitted), (&None, Some(BlobOmitted::Unreadable)));
}

/// Git copes with them, and gix does not open the repository.
#[test]
fn circular_alternates_are_a_gap() {
    if !has("git") {
        return;
    }
    let close = "echo $PWD/../borrower/.git/objects >.git/objects/info/alternates";
    for (before, command) in [(close, "cat r/f"), ("true", &*format!("cat r/f; cd r; {close}; cat g"))] {
        let place = Place::new();
        place.prepare(&format!(
            "git init -q; git init -q r; cd r; echo 1 >f; echo 2 >g; git add .; git commit -qm 1
             git clone -qs . ../borrower; {before}; git status >../status"
        ));
        let snapshot = place.record(command);
        assert_eq!(lost(&snapshot), [WarningKind::ContentOmitted], "{command}");
        let detail = &snapshot.header().warnings[0].detail;
        assert!(detail.contains(place.at("r").to_str().unwrap()), "{detail}");
        // Not those of the repository around it either.
        let last = if before == "true" { "r/g" } else { "r/f" };
        assert_eq!(place.file(&snapshot, last).git, None, "{command}");
        for file in snapshot.files().iter().filter(|file| file.path.ends_with(b"/r/f")) {
            assert_eq!(bytes(&snapshot, file, true), b"1\n", "{command}");
        }
    }
}

#[test]
fn attributes_and_ignore_rules_written_during_the_run_apply() {
    if !has("git") {
        return;
    }
    let place = Place::new();
    // The index is written well after the file, so that its stat data proves what it is the data of.
    place.prepare(
        "git init -q; git config filter.rot.clean 'tr a-z n-za-m'; git config filter.rot.smudge 'tr a-z n-za-m'
         echo '*.txt filter=rot' > .gitattributes; cp .gitattributes attributes; echo '*.log' > rules
         echo hello > f.txt; sleep 0.1; git add .; git commit -qm one; sleep 0.1; touch .git/index",
    );
    let snapshot = place
        .record("cat attributes > .gitattributes; cat f.txt; cat rules > .gitignore; echo hello > x.log");
    let file = place.file(&snapshot, "f.txt");
    let git = file.git.as_ref().unwrap();
    assert_eq!((git.tracked, git.dirty, git.oid.as_deref()), (true, false, None));
    assert_eq!(bytes(&snapshot, file, true), b"hello\n");
    assert!(place.file(&snapshot, "x.log").git.as_ref().unwrap().ignored);
    // The same by a descriptor from before the launch.
    for name in [".gitignore", ".git/info/exclude"] {
        fs::create_dir_all(place.at(".git/info")).unwrap();
        place.write(".gitignore", "");
        let rules = fs::File::create(place.at(name)).unwrap();
        let mut command = place.recording();
        command.args(["sh", "-c", "cat rules; echo hello > x.log"]);
        assert!(command.stdout(rules).status().unwrap().success());
        let snapshot = place.snapshot();
        assert!(place.file(&snapshot, "x.log").git.as_ref().unwrap().ignored, "{name}");
    }
}

#[test]
fn git_state_at_the_end_covers_unchanged_files() {
    if !has("git") {
        return;
    }
    let place = Place::new();
    place.prepare(
        "git init -q; for f in kept added excluded dropped; do echo $f > $f; done; git add kept dropped
         git commit -qm one",
    );
    let known = |script: &str, names: &[&str]| -> Vec<_> {
        let snapshot = place.record(script);
        let of = |git: &Option<GitStatus>| git.as_ref().map(|git| (git.tracked, git.ignored));
        let file = |name: &&str| {
            let file = place.file(&snapshot, name);
            (of(&file.git), of(&file.git_after))
        };
        names.iter().map(file).collect()
    };
    let (tracked, untracked, ignored) = (Some((true, false)), Some((false, false)), Some((false, true)));
    assert_eq!(
        known("cat kept added excluded; echo excluded > .gitignore", &["kept", "added", "excluded"]),
        [(tracked, None), (untracked, None), (untracked, ignored)]
    );
    assert_eq!(
        known(
            "cat kept added dropped; git add added; git rm -q --cached dropped",
            &["kept", "added", "dropped"]
        ),
        [(tracked, None), (untracked, tracked), (tracked, untracked)]
    );
    // Read, and so asked for a pin, when the index has changed.
    let script = "stat kept added dropped; git add dropped; git rm -q --cached added; cat kept added dropped";
    assert_eq!(
        known(script, &["kept", "added", "dropped"]),
        [(tracked, None), (tracked, untracked), (untracked, tracked)]
    );
    // As long as before, and with its time put back.
    let snapshot = place.record("touch -r kept t; printf K 1<> kept; touch -r t kept");
    let file = place.file(&snapshot, "kept");
    let dirty = |git: &Option<GitStatus>| git.as_ref().map(|git| git.dirty);
    assert_eq!((dirty(&file.git), dirty(&file.git_after)), (Some(false), Some(true)));
}

#[test]
fn new_repository_covers_paths_observed_before_it() {
    if !has("git") {
        return;
    }
    let place = Place::new();
    for name in ["r/added", "r/d/untracked", "r/ignored", "outside"] {
        place.write(name, name);
    }
    let snapshot = place.record(
        "cat r/added r/d/untracked r/ignored outside; git init -q r; cd r; echo ignored > .git/info/exclude; git add added",
    );
    let after = |name: &str| {
        let file = place.file(&snapshot, name);
        assert_eq!(file.git, None, "{name}");
        file.git_after.as_ref().map(|git| (git.tracked, git.ignored))
    };
    assert_eq!(after("r/added"), Some((true, false)));
    assert_eq!(after("r/d/untracked"), Some((false, false)));
    assert_eq!(after("r/ignored"), Some((false, true)));
    assert_eq!(after("outside"), None);
}
