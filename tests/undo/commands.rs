//! Real commands, recorded and undone.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::support::*;

/// The tree without what Git keeps for itself, which no restore touches.
fn worktree(root: &Path) -> Tree {
    let mut tree = scan(root);
    tree.retain(|path, _| !path.windows(5).any(|part| part == b"/.git"));
    tree
}

/// Records `script` in the tree with this level; both states.
#[track_caller]
pub fn record_keeping(place: &Place, keep: &str, script: &str) -> States {
    record_from(place, keep, script, |command| command)
}

/// Records `script` in the tree with this level and descriptors of its own; both states.
#[track_caller]
fn record_from(
    place: &Place,
    keep: &str,
    script: &str,
    redirect: impl FnOnce(&mut Command) -> &mut Command,
) -> States {
    let before = worktree(&place.work);
    let mut command = place.recording();
    // What hangs is a failure, not the end of the tests.
    command.args(["--quiet", "--timeout", "300s", "--keep", keep, "--"]);
    command.env_remove("XDG_CONFIG_HOME").args(["sh", "-ec", script]);
    redirect(&mut command);
    Run::from(command.output().unwrap()).expect(0);
    States { before, after: worktree(&place.work) }
}

/// Asserts that the tree is as it was, but for what no record has.
#[track_caller]
fn expect(place: &Place, wanted: &Tree, what: &str) {
    assert_same(&describe_recorded(&worktree(&place.work)), &describe_recorded(wanted), what);
}

/// Undoes and redoes `script` in a tree that `build` makes, at each level, and asserts that verify agrees.
#[track_caller]
pub fn undo(build: &str, script: &str) {
    for keep in LEVELS {
        let what = format!("--keep {keep}: {script}");
        let place = Place::new();
        place.prepare(build);
        let states = record_keeping(&place, keep, script);
        place.verb("verify", &[]).expect(0);
        for _ in 0..2 {
            place.verb("restore", &["--before"]).expect(0);
            expect(&place, &states.before, &what);
            let again = place.verb("restore", &["--before"]).expect(0);
            assert!(again.stdout.starts_with("nothing to do"), "{what}: {again:#?}");
            place.verb("restore", &[]).expect(0);
            expect(&place, &states.after, &what);
        }
        place.verb_on("restore", &place.rescue(4), &["--before"]).expect(0);
        expect(&place, &states.before, &what);
    }
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
fn modes_times_and_new_names_are_undone() {
    undo(FILES, "chmod -R go-rwx src; chmod 4755 src/one");
    undo(FILES, "touch -d '2001-02-03 04:05:06.789' src/one");
    undo(FILES, "ln -f src/one src/two; ln -s /etc dir; ln -sfn two src/link");
    undo(FILES, "cp -a src copy; rm copy/hard; ln copy/two copy/hard");
    undo(FILES, "mkfifo pipe; rm src/one; mkdir src/one; touch src/one/inside");
}

#[test]
fn name_that_got_a_file_of_its_own_keeps_it_while_its_former_one_is_written() {
    let build = "mkdir d; touch e; ln e d/f; ln e g";
    undo(build, "test -e d/f; echo data > e; chmod 700 e; rm g e; touch e; chmod 755 e");
}

#[test]
fn removed_hard_links_are_restored_as_one_file() {
    for keep in LEVELS {
        let place = Place::new();
        place.write("src/two", "x");
        place.hard_link("src/two", "src/hard");
        record_keeping(&place, keep, "rm -rf src");
        place.verb("restore", &["--before"]).expect(0);
        assert_eq!(place.inode("src/two"), place.inode("src/hard"));
    }
}

#[test]
fn renamed_file_keeps_the_hard_links_that_the_recording_does_not_know() {
    for (script, renamed) in [
        ("mv one new", &["one"][..]),
        ("mv one other", &["one"]),
        ("mkdir d; mv one d/new; ln d/new d/more", &["one"]),
        ("mv one t; mv other one", &["one", "other"]),
        ("mv one t; mv other one; mv t other", &["one", "other"]),
        ("mv one src/t; mv src t", &["one", "src/one"]),
    ] {
        for keep in LEVELS {
            let place = Place::new();
            for name in ["one", "other", "src/one"] {
                place.write(name, name);
                fs::hard_link(place.at(name), place.at(name.replace('/', " ")).with_extension("unknown"))
                    .unwrap();
            }
            let inodes = || renamed.iter().map(|name| place.inode(name)).collect::<Vec<_>>();
            let (before, states) = (inodes(), record_keeping(&place, keep, script));
            for _ in 0..2 {
                place.verb("restore", &["--before"]).expect(0);
                assert_eq!(inodes(), before, "{script}");
                expect(&place, &states.before, script);
                place.verb("restore", &[]).expect(0);
                expect(&place, &states.after, script);
            }
        }
    }
}

#[test]
fn renamed_file_comes_back_though_its_bytes_are_not_kept() {
    let place = Place::new();
    place.write("f", "long enough");
    place.write("g", "short");
    let before = scan(&place.work);
    let run = place.recording().args(["--quiet", "--max-blob-bytes", "8", "--", "mv", "f", "g"]).output();
    Run::from(run.unwrap()).expect(0);
    place.verb("restore", &["--before"]).expect(0);
    expect(&place, &before, "mv f g");
}

#[test]
fn more_files_are_renamed_back_than_may_be_open() {
    let place = Place::new();
    (0..200).for_each(|number| place.write(&format!("log.{number}"), number.to_string()));
    let states =
        record_keeping(&place, "undo", "for i in $(seq 199 -1 0); do mv log.$i log.$((i + 1)); done");
    let few = format!("ulimit -n 100; exec {BINARY} restore --before ../out");
    Run::from(place.program("sh").args(["-c", &few]).output().unwrap()).expect(0);
    expect(&place, &states.before, "logs");
}

#[test]
fn names_moved_to_another_inode_are_restored_together() {
    for keep in LEVELS {
        let place = Place::new();
        place.write("one", "");
        place.hard_link("one", "two");
        place.hard_link("one", "stays");
        let script = "chmod 600 stays; touch new; chmod 700 new; mv new one; ln -f one two";
        record_keeping(&place, keep, script);
        for _ in 0..2 {
            place.verb("restore", &["--before"]).expect(0);
            assert_eq!([place.inode("one"), place.inode("two")], [place.inode("stays"); 2]);
            place.verb("restore", &[]).expect(0);
            assert_eq!(place.inode("one"), place.inode("two"));
            assert_ne!(place.inode("one"), place.inode("stays"));
            let again = place.verb("restore", &[]).expect(0);
            assert!(again.stdout.starts_with("nothing to do"), "{again:#?}");
        }
    }
}

#[test]
fn one_name_is_parted_from_a_file_that_another_name_stays_with() {
    for keep in LEVELS {
        let place = Place::new();
        place.write("one", "same");
        place.hard_link("one", "two");
        place.write("other", "same");
        record_keeping(&place, keep, "ln -f other one; ln -f other two");
        place.verb("restore", &["--before", "one"]).expect(0);
        assert_ne!(place.inode("one"), place.inode("other"));
        assert_eq!(place.inode("two"), place.inode("other"));
    }
}

#[test]
fn changes_of_the_inputs_name_are_undone() {
    for script in [
        "mv list list.bak",
        "rm list",
        "mv list list.bak; echo new > list",
        "cat > copy; rm list",
        "echo new > list",
        "chmod 600 list",
    ] {
        let place = Place::new();
        place.write("list", "precious");
        let list = fs::File::open(place.at("list")).unwrap();
        let states = record_from(&place, "all", script, |command| command.stdin(list));
        place.verb("restore", &["--before"]).expect(0);
        expect(&place, &states.before, script);
    }
}

#[test]
fn output_log_is_neither_verified_nor_undone() {
    for append in [true, false] {
        let place = Place::new();
        place.write("log", "old\n");
        let log = fs::File::options().append(append).write(true).open(place.at("log")).unwrap();
        record_from(&place, "all", "echo told; echo made > file", |command| command.stdout(log));
        place.verb("verify", &[]).expect(0);
        fs::write(place.at("log"), "old\ntold\nmore of another command\n").unwrap();
        place.verb("verify", &[]).expect(0);
        place.verb("restore", &["--before"]).expect(0);
        assert!(fs::read_to_string(place.at("log")).unwrap().ends_with("another command\n"));
        assert!(!place.at("file").exists());
    }
}

#[test]
fn name_that_left_a_later_written_file_gets_its_content_back() {
    for keep in LEVELS {
        let place = Place::new();
        place.write("kept", "");
        for name in ["left", "other"] {
            fs::hard_link(place.at("kept"), place.at(name)).unwrap();
        }
        // The one keeps the inode and gets other bytes, the other is a new file with the bytes of before.
        let kept = fs::File::open(place.at("kept")).unwrap();
        let script = "rm left; : > left; chmod 600 left; echo new > kept";
        let states = record_from(&place, keep, script, |command| command.stdin(kept));
        place.verb("restore", &["--before"]).expect(0);
        expect(&place, &states.before, "undo");
        place.verb("restore", &[]).expect(0);
        expect(&place, &states.after, "redo");
    }
}
