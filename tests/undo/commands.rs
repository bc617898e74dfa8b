//! Real commands, recorded and undone.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::process::Command;

use super::support::*;

/// The tree without what Git keeps for itself, which no restore touches.
fn worktree(root: &Path) -> Tree {
    let mut tree = scan(root);
    tree.retain(|path, _| !path.windows(5).any(|part| part == b"/.git"));
    tree
}

/// Records `script` in the tree; both states.
fn record(scene: &Scene, script: &str) -> Option<States> {
    let before = worktree(&scene.root());
    let output = agent_snapshot()
        .arg("--snapshot-dir")
        .arg(scene.snap())
        .args(["--quiet", "--", "sh", "-ec", script])
        .current_dir(scene.root())
        .env("HOME", scene.dir().join("home"))
        .env_remove("XDG_CONFIG_HOME")
        .env("GIT_CONFIG_NOSYSTEM", "1")
        .output()
        .unwrap();
    let run = Run::from(output);
    if run.status == 125 && run.stderr.contains("trac") {
        println!("skipped: no tracing here: {}", run.stderr);
        return None;
    }
    run.expect(0);
    Some(States { before, after: worktree(&scene.root()) })
}

#[track_caller]
fn expect(scene: &Scene, wanted: &Tree, script: &str) {
    // In no record is the time of a directory that the command never looked at, nor another name of a
    // file that it never used.
    let lines = |tree: &Tree| -> Vec<String> {
        let told = told(tree, |_| false).into_iter();
        told.map(|line| line.split(" = ").next().unwrap_or_default().to_owned()).collect()
    };
    let (now, wanted) = (lines(&worktree(&scene.root())), lines(wanted));
    let differs = |one: &[String], other: &[String]| -> Vec<String> {
        one.iter().filter(|line| !other.contains(line)).cloned().collect()
    };
    let (more, less) = (differs(&now, &wanted), differs(&wanted, &now));
    assert!(more.is_empty() && less.is_empty(), "{script}: is {more:#?}\nand should be {less:#?}");
}

/// Undoes and redoes `script` in a tree that `build` makes, and looks whether verify agrees.
#[track_caller]
fn undo(build: &str, script: &str) {
    let scene = Scene::new();
    fs::create_dir(scene.dir().join("home")).unwrap();
    let built = Command::new("sh")
        .args(["-ec", build])
        .current_dir(scene.root())
        .env("HOME", scene.dir().join("home"))
        .env("GIT_CONFIG_NOSYSTEM", "1")
        .output()
        .unwrap();
    assert!(built.status.success(), "{build}: {}", String::from_utf8_lossy(&built.stderr));
    let Some(states) = record(&scene, script) else { return };
    verb("verify", &scene.snap(), &[]).expect(0);
    for _ in 0..2 {
        verb("restore", &scene.snap(), &["--before"]).expect(0);
        expect(&scene, &states.before, script);
        let again = verb("restore", &scene.snap(), &["--before"]).expect(0);
        assert!(again.stdout.starts_with("nothing to do"), "{script}: {again:#?}");
        verb("restore", &scene.snap(), &[]).expect(0);
        expect(&scene, &states.after, script);
    }
    verb("restore", &scene.dir().join("snap-rescue-4"), &["--before"]).expect(0);
    expect(&scene, &states.before, script);
}

const FILES: &str = "mkdir -p src/deep empty; echo one > src/one; echo two > src/two; \
    printf 'three' > src/deep/three; ln -s one src/link; ln src/two src/hard; touch blank; chmod 755 src/one";

#[test]
fn removals_are_undone() {
    undo(FILES, "rm -rf src");
    undo(FILES, "rm -rf ./* ; echo started again > fresh");
    undo(FILES, "rm src/two src/link; rmdir empty");
    undo(FILES, "find . -type f -delete");
}

#[test]
fn edits_are_undone() {
    undo(FILES, "sed -i s/one/1/ src/one src/two");
    undo(FILES, "echo more >> src/one; : > src/two");
    undo(FILES, "printf X | dd of=src/deep/three bs=1 seek=2 conv=notrunc status=none");
    undo(FILES, "truncate -s 100 src/one; cp src/two src/deep/three");
    undo(FILES, "for i in 1 2 3; do echo $i > src/one; done");
}

#[test]
fn renames_are_undone() {
    undo(FILES, "mv src lib");
    undo(FILES, "mv src lib; ln -s lib src");
    undo(FILES, "mv src/one src/two");
    undo(FILES, "mv src empty/; mv empty/src .; mv src/deep empty");
    undo(FILES, "mkdir new; mv src/* new/; rmdir src/deep 2>/dev/null || rmdir src");
}

#[test]
fn modes_times_and_links_are_undone() {
    undo(FILES, "chmod -R go-rwx src; chmod 4755 src/one");
    undo(FILES, "touch -d '2001-02-03 04:05:06.789' src/one");
    undo(FILES, "ln -f src/one src/two; ln -s /etc dir; ln -sfn two src/link");
    undo(FILES, "cp -a src copy; rm copy/hard; ln copy/two copy/hard");
    undo(FILES, "mkfifo pipe; rm src/one; mkdir src/one; touch src/one/inside");
}

const REPOSITORY: &str = "git init -q; git config user.name a; git config user.email a@b; \
    mkdir src; echo one > src/one; echo two > src/two; printf '*.o\\n' > .gitignore; git add .; \
    git commit -qm first; echo changed > src/one; echo new > src/three; rm src/two; git add -A; git commit -qm second; \
    echo dirty >> src/one; echo object > src/x.o; echo untracked > untracked";

#[test]
fn git_commands_are_undone_in_the_working_tree() {
    if Command::new("git").arg("--version").output().is_err() {
        return println!("skipped: no git");
    }
    undo(REPOSITORY, "git reset -q --hard HEAD~1");
    undo(REPOSITORY, "git clean -fdxq");
    undo(REPOSITORY, "git checkout -q -- .");
    undo(REPOSITORY, "git stash -q -u");
    undo(REPOSITORY, "git mv src lib; git rm -qf lib/three");
}

#[test]
fn a_repository_that_is_removed_comes_back_without_its_own_directory() {
    if Command::new("git").arg("--version").output().is_err() {
        return println!("skipped: no git");
    }
    let scene = Scene::new();
    fs::create_dir(scene.dir().join("home")).unwrap();
    let build = format!("mkdir repo; cd repo; {REPOSITORY}");
    let built = Command::new("sh").args(["-ec", &build]).current_dir(scene.root()).output().unwrap();
    assert!(built.status.success());
    let Some(states) = record(&scene, "rm -rf repo") else { return };
    let run = verb("restore", &scene.snap(), &["--before"]).expect(0);
    expect(&scene, &states.before, "rm -rf repo");
    assert!(run.stderr.contains("/repo/.git was changed by the command"), "{run:#?}");
}

#[test]
fn names_of_one_file_that_went_together_come_back_together() {
    let scene = Scene::new();
    fs::create_dir(scene.dir().join("home")).unwrap();
    scene.write("src/two", "x");
    fs::hard_link(scene.at("src/two"), scene.at("src/hard")).unwrap();
    let Some(_) = record(&scene, "rm -rf src") else { return };
    verb("restore", &scene.snap(), &["--before"]).expect(0);
    let inode = |name| fs::metadata(scene.at(name)).unwrap().ino();
    assert_eq!(inode("src/two"), inode("src/hard"));
}

#[test]
fn names_that_became_another_file_together_are_put_back_together() {
    let scene = Scene::new();
    fs::create_dir(scene.dir().join("home")).unwrap();
    scene.write("one", "");
    fs::hard_link(scene.at("one"), scene.at("two")).unwrap();
    fs::hard_link(scene.at("one"), scene.at("stays")).unwrap();
    let script = "chmod 600 stays; touch new; chmod 700 new; mv new one; ln -f one two";
    let Some(_) = record(&scene, script) else { return };
    let inode = |name| fs::metadata(scene.at(name)).unwrap().ino();
    for _ in 0..2 {
        verb("restore", &scene.snap(), &["--before"]).expect(0);
        assert_eq!([inode("one"), inode("two")], [inode("stays"); 2]);
        verb("restore", &scene.snap(), &[]).expect(0);
        assert_eq!(inode("one"), inode("two"));
        assert_ne!(inode("one"), inode("stays"));
        let again = verb("restore", &scene.snap(), &[]).expect(0);
        assert!(again.stdout.starts_with("nothing to do"), "{again:#?}");
    }
}

/// Records a command whose standard input, or where its output goes, is a file of the tree.
fn record_with(scene: &Scene, script: &str, stdin: &str, stdout: Option<fs::File>) -> bool {
    let mut command = agent_snapshot();
    command.arg("--snapshot-dir").arg(scene.snap()).args(["--quiet", "--", "sh", "-ec", script]);
    command.current_dir(scene.root()).env("HOME", scene.dir().join("home")).env_remove("XDG_CONFIG_HOME");
    command.stdin(fs::File::open(scene.at(stdin)).unwrap());
    if let Some(stdout) = stdout {
        command.stdout(stdout);
    }
    let run = Run::from(command.output().unwrap());
    if run.status == 125 && run.stderr.contains("trac") {
        println!("skipped: no tracing here: {}", run.stderr);
        return false;
    }
    run.expect(0);
    true
}

#[test]
fn what_a_command_does_to_the_name_of_its_input_is_undone() {
    for script in [
        "mv list list.bak",
        "rm list",
        "mv list list.bak; echo new > list",
        "cat > copy; rm list",
        "echo new > list",
        "chmod 600 list",
    ] {
        let scene = Scene::new();
        scene.write("list", "precious");
        let before = scan(&scene.root());
        if !record_with(&scene, script, "list", None) {
            return;
        }
        verb("restore", &scene.snap(), &["--before"]).expect(0);
        expect(&scene, &before, script);
    }
}

#[test]
fn the_log_of_a_command_is_neither_verified_nor_undone() {
    for append in [true, false] {
        let scene = Scene::new();
        scene.write("log", "old\n");
        scene.write("empty", "");
        let log = fs::File::options().append(append).write(true).open(scene.at("log")).unwrap();
        if !record_with(&scene, "echo told; echo made > file", "empty", Some(log)) {
            return;
        }
        verb("verify", &scene.snap(), &[]).expect(0);
        fs::write(scene.at("log"), "old\ntold\nmore of another command\n").unwrap();
        verb("verify", &scene.snap(), &[]).expect(0);
        verb("restore", &scene.snap(), &["--before"]).expect(0);
        assert!(fs::read_to_string(scene.at("log")).unwrap().ends_with("another command\n"));
        assert!(!scene.at("file").exists());
    }
}

#[test]
fn a_name_that_left_a_file_which_was_written_since_gets_its_own_bytes_again() {
    let scene = Scene::new();
    scene.write("kept", "");
    for name in ["left", "other"] {
        fs::hard_link(scene.at("kept"), scene.at(name)).unwrap();
    }
    let before = scan(&scene.root());
    // The one keeps the inode and gets other bytes, the other is a new file with the bytes of before.
    if !record_with(&scene, "rm left; : > left; chmod 600 left; echo new > kept", "kept", None) {
        return;
    }
    let after = scan(&scene.root());
    verb("restore", &scene.snap(), &["--before"]).expect(0);
    expect(&scene, &before, "undo");
    verb("restore", &scene.snap(), &[]).expect(0);
    expect(&scene, &after, "redo");
}
