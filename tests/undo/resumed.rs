//! A restore that was killed, and what the user does before the next one: nothing of it is lost.

use std::fs;
use std::io::{Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use nix::sys::signal::{Signal, kill};

use super::support::*;

/// Runs a restore and kills it when its rescue is whole, before it changes anything.
fn kill_before_changes(scene: &Scene, flags: &[&str]) -> PathBuf {
    kill_when(scene, flags, |unfinished| unfinished.join("manifest.json").exists())
}

/// Runs a restore and kills it when it is about to write into a file.
fn kill_before_writing(scene: &Scene, flags: &[&str]) -> PathBuf {
    let journal = |unfinished: &Path| fs::read(unfinished.join(".agent-snapshot-restore"));
    let is_writing = |journal: Vec<u8>| String::from_utf8_lossy(&journal).contains(r#""step":"writing""#);
    kill_when(scene, flags, |unfinished| journal(unfinished).is_ok_and(is_writing))
}

fn kill_when(scene: &Scene, flags: &[&str], is_time: impl Fn(&Path) -> bool) -> PathBuf {
    let unfinished = scene.dir().join("snap-rescue-1.unfinished");
    let (_, status) = trace_restore(scene, flags, |pid, _| {
        if is_time(&unfinished) {
            let _ = kill(pid, Signal::SIGKILL);
        }
    });
    assert_eq!(status, None, "it was not killed");
    unfinished
}

/// Writes over the start of a file, which stays the same file.
fn overwrite(path: &Path, content: &[u8]) {
    let inode = fs::metadata(path).unwrap().ino();
    let mut file = fs::File::options().write(true).open(path).unwrap();
    file.seek(SeekFrom::Start(0)).unwrap();
    file.write_all(content).unwrap();
    assert_eq!(fs::metadata(path).unwrap().ino(), inode);
}

/// What the rescue `number` holds of `path`.
fn kept(scene: &Scene, number: u32, path: &str) -> String {
    let rescue = scene.dir().join(format!("snap-rescue-{number}"));
    verb("cat", &rescue, &["--before", scene.at(path).to_str().unwrap()]).expect(0).stdout
}

/// Two files that the command wrote over, one of them also a name of a store's file.
fn scene() -> (Scene, States) {
    let scene = Scene::new();
    let store = scene.dir().join("store");
    fs::write(&store, "old").unwrap();
    fs::hard_link(&store, scene.at("linked")).unwrap();
    scene.write("file", "old");
    scene.write("other", "old");
    let states = States::of(&scene, || {
        for name in ["linked", "file", "other"] {
            scene.write(name, "new");
        }
    });
    (scene, states)
}

#[test]
fn an_edit_in_place_after_a_killed_restore_is_a_conflict() {
    for name in ["file", "linked"] {
        let (scene, states) = scene();
        kill_before_changes(&scene, &["--before"]);
        overwrite(&scene.at(name), b"my own work");
        let run = verb("restore", &scene.snap(), &["--before"]).expect(1);
        assert!(run.stderr.contains(&format!("/tree/{name}: a file of 11 bytes")), "{run:#?}");
        verb("restore", &scene.snap(), &["--before", "--dry-run"]).expect(1);
        assert_eq!(fs::read_to_string(scene.at(name)).unwrap(), "my own work");

        verb("restore", &scene.snap(), &["--before", "--force"]).expect(0);
        states.expect(&scene, true);
        assert_eq!(kept(&scene, 1, name), "new");
        assert_eq!(kept(&scene, 2, name), "my own work");
    }
}

#[test]
fn an_edit_that_keeps_length_and_time_is_kept_too() {
    let (scene, states) = scene();
    let time = fs::metadata(scene.at("file")).unwrap().modified().unwrap();
    kill_before_changes(&scene, &["--before"]);
    overwrite(&scene.at("file"), b"own");
    fs::File::open(scene.at("file")).unwrap().set_modified(time).unwrap();
    verb("restore", &scene.snap(), &["--before", "--force"]).expect(0);
    states.expect(&scene, true);
    assert_eq!(kept(&scene, 1, "file"), "new");
    assert_eq!(kept(&scene, 2, "file"), "own");
}

#[test]
fn an_edit_after_a_killed_restore_is_a_conflict_for_another_command_and_for_its_undo() {
    let (scene, _) = scene();
    let unfinished = kill_before_changes(&scene, &["--before"]);
    overwrite(&scene.at("file"), b"my own work");
    let path = scene.at("file");
    for flags in [vec!["--before", path.to_str().unwrap()], vec![]] {
        verb("restore", &scene.snap(), &flags).expect(1);
    }
    verb("restore", &unfinished, &["--before"]).expect(1);
    assert_eq!(fs::read_to_string(&path).unwrap(), "my own work");
}

/// Kills a restore and leaves a file as if it had been killed while it wrote in place: the first
/// `pages` are those of the state that is put back.
fn torn(pages: usize, old: usize, new: usize) -> (Scene, States, PathBuf) {
    let scene = Scene::new();
    fs::write(scene.at("one"), vec![b'o'; old]).unwrap();
    fs::hard_link(scene.at("one"), scene.at("two")).unwrap();
    fs::hard_link(scene.at("one"), scene.dir().join("store")).unwrap();
    let states = States::of(&scene, || scene.write("one", vec![b'n'; new]));
    let unfinished = kill_before_writing(&scene, &["--before"]);
    overwrite(&scene.at("one"), &vec![b'o'; old.min(pages << 12)]);
    (scene, states, unfinished)
}

#[test]
fn a_file_that_was_half_written_in_place_is_completed_or_put_back() {
    for (pages, old, new) in [(2, 20_000, 20_000), (3, 20_000, 9_000), (3, 9_000, 20_000), (1, 9_000, 20_000)]
    {
        let (scene, states, _) = torn(pages, old, new);
        let run = verb("restore", &scene.snap(), &["--before"]).expect(0);
        states.expect(&scene, true);
        assert!(run.stderr.contains("had been interrupted was completed"), "{run:#?}");
        assert_eq!(kept(&scene, 1, "one"), "n".repeat(new));
        assert!(!scene.dir().join("snap-rescue-2").exists());

        let (scene, states, unfinished) = torn(pages, old, new);
        verb("restore", &unfinished, &["--before"]).expect(0);
        states.expect(&scene, false);
    }
}

#[test]
fn an_edit_of_a_half_written_file_is_a_conflict() {
    let (scene, _, _) = torn(2, 20_000, 20_000);
    overwrite(&scene.at("one"), b"mine");
    let run = verb("restore", &scene.snap(), &["--before"]).expect(1);
    assert!(run.stderr.contains("/tree/one: a file of 20000 bytes"), "{run:#?}");
    assert!(fs::read(scene.at("two")).unwrap().starts_with(b"mine"));
}

#[test]
fn verify_and_show_tell_of_an_interrupted_restore() {
    let (scene, _) = scene();
    verb("restore", &scene.snap(), &["--before", "--dry-run"]).expect(0);
    assert_eq!(verb("verify", &scene.snap(), &[]).expect(0).stderr, "");
    let unfinished = kill_before_changes(&scene, &["--before"]);
    let run = verb("verify", &scene.snap(), &[]).expect(0);
    assert!(run.stderr.contains("was interrupted: the same command completes it"), "{run:#?}");
    assert!(run.stderr.contains(unfinished.to_str().unwrap()), "{run:#?}");
    let shown = verb("show", &scene.snap(), &[]).expect(0).stdout;
    let told = |line: &str| line.starts_with("Restore") && line.ends_with(unfinished.to_str().unwrap());
    assert!(shown.lines().any(told), "{shown}");
    verb("restore", &scene.snap(), &["--before"]).expect(0);
    assert_eq!(verb("verify", &scene.snap(), &["--before"]).expect(0).stderr, "");
}

#[test]
fn a_rescue_tells_where_the_state_is_that_was_put_back() {
    let (scene, _) = scene();
    verb("restore", &scene.snap(), &["--before"]).expect(0);
    let rescue = scene.dir().join("snap-rescue-1");
    for run in [verb("show", &rescue, &["--long"]).expect(0), verb("diff", &rescue, &[])] {
        assert!(!run.stdout.contains("withheld") && !run.stderr.contains("withheld"), "{run:#?}");
    }
    verb("restore", &rescue, &["--before"]).expect(0);
    let run = verb("restore", &rescue, &[]).expect(1);
    let told = format!("what was put back is in {}", scene.snap().display());
    assert!(run.stderr.contains(&told), "{run:#?}");
}

#[test]
fn a_journal_that_is_damaged_stops_the_next_run_and_loses_nothing() {
    let (scene, states) = scene();
    let journal = kill_before_writing(&scene, &["--before"]).join(".agent-snapshot-restore");
    let whole = fs::read(&journal).unwrap();
    let mut damaged = whole.clone();
    damaged[100] ^= 1;
    for (bytes, told) in [
        (damaged, "is damaged at record 1"),
        (b"agent-snapshot-restore 2 x y\n".to_vec(), "was written by another version of agent-snapshot"),
    ] {
        fs::write(&journal, bytes).unwrap();
        let run = verb("restore", &scene.snap(), &["--before"]).expect(125);
        assert!(run.stderr.contains(told) && run.stderr.lines().count() == 1, "{run:#?}");
        for name in ["linked", "file", "other"] {
            assert_eq!(fs::read(scene.at(name)).unwrap(), b"new");
        }
    }
    // Cut anywhere, it tells less, and what it does not tell of was not begun.
    for cut in (0..whole.len()).step_by(7) {
        fs::write(&journal, &whole[..cut]).unwrap();
        verb("restore", &scene.snap(), &["--before", "--dry-run"]).expect(0);
        assert_eq!(fs::read(scene.at("linked")).unwrap(), b"new");
    }
    fs::write(&journal, &whole).unwrap();
    verb("restore", &scene.snap(), &["--before"]).expect(0);
    states.expect(&scene, true);
}
