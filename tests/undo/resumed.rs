//! The restore after one that was killed: edits in between are not lost.

use std::fs;
use std::io::{Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use nix::sys::signal::{Signal, kill};

use crate::support::*;

/// Runs a restore and kills it when its rescue is complete, before it changes anything.
fn kill_before_changes(place: &Place, flags: &[&str]) -> PathBuf {
    kill_when(place, flags, |unfinished| unfinished.join("manifest.json").exists())
}

/// Runs a restore and kills it when it is about to write into a file.
fn kill_before_writing(place: &Place, flags: &[&str]) -> PathBuf {
    let journal = |unfinished: &Path| fs::read(unfinished.join(".agent-snapshot-restore"));
    let is_writing = |journal: Vec<u8>| String::from_utf8_lossy(&journal).contains(r#""step":"writing""#);
    kill_when(place, flags, |unfinished| journal(unfinished).is_ok_and(is_writing))
}

fn kill_when(place: &Place, flags: &[&str], is_time: impl Fn(&Path) -> bool) -> PathBuf {
    let unfinished = place.base().join("out-rescue-1.unfinished");
    let (_, status) = trace_restore(place, flags, |pid, _| {
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
fn kept(place: &Place, number: u32, path: &str) -> String {
    let rescue = place.base().join(format!("out-rescue-{number}"));
    place.verb_on("cat", &rescue, &["--before", place.at(path).to_str().unwrap()]).expect(0).stdout
}

/// Two files that the command wrote over, one of them also a name of a store's file.
fn prepared() -> (Place, States) {
    let place = Place::new();
    let store = place.base().join("store");
    fs::write(&store, "old").unwrap();
    fs::hard_link(&store, place.at("linked")).unwrap();
    place.write("file", "old");
    place.write("other", "old");
    let states = States::of(&place, || {
        for name in ["linked", "file", "other"] {
            place.write(name, "new");
        }
    });
    (place, states)
}

#[test]
fn edit_in_place_after_a_killed_restore_is_a_conflict() {
    for name in ["file", "linked"] {
        let (place, states) = prepared();
        kill_before_changes(&place, &["--before"]);
        overwrite(&place.at(name), b"my own work");
        let run = place.verb("restore", &["--before"]).expect(1);
        assert!(run.stderr.contains(&format!("/work/{name}: edited since: a file of 11 bytes")), "{run:#?}");
        place.verb("restore", &["--before", "--dry-run"]).expect(1);
        assert_eq!(fs::read_to_string(place.at(name)).unwrap(), "my own work");

        place.verb("restore", &["--before", "--force"]).expect(0);
        states.expect(&place, true);
        assert_eq!(kept(&place, 1, name), "new");
        assert_eq!(kept(&place, 2, name), "my own work");
    }
}

#[test]
fn edit_that_keeps_size_and_mtime_is_kept() {
    let (place, states) = prepared();
    let time = fs::metadata(place.at("file")).unwrap().modified().unwrap();
    kill_before_changes(&place, &["--before"]);
    overwrite(&place.at("file"), b"own");
    fs::File::open(place.at("file")).unwrap().set_modified(time).unwrap();
    place.verb("restore", &["--before", "--force"]).expect(0);
    states.expect(&place, true);
    assert_eq!(kept(&place, 1, "file"), "new");
    assert_eq!(kept(&place, 2, "file"), "own");
}

#[test]
fn edit_after_a_killed_restore_conflicts_with_other_restores() {
    let (place, _) = prepared();
    let unfinished = kill_before_changes(&place, &["--before"]);
    overwrite(&place.at("file"), b"my own work");
    let path = place.at("file");
    for flags in [vec!["--before", path.to_str().unwrap()], vec![]] {
        place.verb("restore", &flags).expect(1);
    }
    place.verb_on("restore", &unfinished, &["--before"]).expect(1);
    assert_eq!(fs::read_to_string(&path).unwrap(), "my own work");
}

/// Kills a restore and leaves a file as if it had been killed while it wrote in place: the first
/// `pages` are those of the state that is put back.
fn torn(pages: usize, old: usize, new: usize) -> (Place, States, PathBuf) {
    let place = Place::new();
    fs::write(place.at("one"), vec![b'o'; old]).unwrap();
    fs::hard_link(place.at("one"), place.at("two")).unwrap();
    fs::hard_link(place.at("one"), place.base().join("store")).unwrap();
    let states = States::of(&place, || place.write("one", vec![b'n'; new]));
    let unfinished = kill_before_writing(&place, &["--before"]);
    overwrite(&place.at("one"), &vec![b'o'; old.min(pages << 12)]);
    (place, states, unfinished)
}

#[test]
fn half_written_file_is_completed_or_restored() {
    for (pages, old, new) in [(2, 20_000, 20_000), (3, 20_000, 9_000), (3, 9_000, 20_000), (1, 9_000, 20_000)]
    {
        let (place, states, _) = torn(pages, old, new);
        let run = place.verb("restore", &["--before"]).expect(0);
        states.expect(&place, true);
        assert!(run.stderr.contains("had been interrupted was completed"), "{run:#?}");
        assert_eq!(kept(&place, 1, "one"), "n".repeat(new));
        assert!(!place.rescue(2).exists());

        let (place, states, unfinished) = torn(pages, old, new);
        place.verb_on("restore", &unfinished, &["--before"]).expect(0);
        states.expect(&place, false);
    }
}

#[test]
fn edit_of_a_half_written_file_is_a_conflict() {
    let (place, _, _) = torn(2, 20_000, 20_000);
    overwrite(&place.at("one"), b"mine");
    let run = place.verb("restore", &["--before"]).expect(1);
    assert!(run.stderr.contains("/work/one: edited since: a file of 20000 bytes"), "{run:#?}");
    assert!(fs::read(place.at("two")).unwrap().starts_with(b"mine"));
}

#[test]
fn verify_and_show_mention_an_interrupted_restore() {
    let (place, _) = prepared();
    place.verb("restore", &["--before", "--dry-run"]).expect(0);
    assert_eq!(place.verb("verify", &[]).expect(0).stderr, "");
    let unfinished = kill_before_changes(&place, &["--before"]);
    let run = place.verb("verify", &[]).expect(0);
    assert!(run.stderr.contains("was interrupted: agent-snapshot restore "), "{run:#?}");
    assert!(run.stderr.contains(unfinished.to_str().unwrap()), "{run:#?}");
    let shown = place.verb("show", &[]).expect(0).stdout;
    let told = |line: &str| line.starts_with("Restore") && line.ends_with(unfinished.to_str().unwrap());
    assert!(shown.lines().any(told), "{shown}");
    place.verb("restore", &["--before"]).expect(0);
    assert_eq!(place.verb("verify", &["--before"]).expect(0).stderr, "");
}

#[test]
fn rescue_names_the_snapshot_it_came_from() {
    let (place, _) = prepared();
    place.verb("restore", &["--before"]).expect(0);
    let rescue = place.rescue(1);
    for run in [place.verb_on("show", &rescue, &["--long"]).expect(0), place.verb_on("diff", &rescue, &[])] {
        assert!(!run.stdout.contains("withheld") && !run.stderr.contains("withheld"), "{run:#?}");
    }
    place.verb_on("restore", &rescue, &["--before"]).expect(0);
    let run = place.verb_on("restore", &rescue, &[]).expect(1);
    let told = format!("what was put back is in {}", &place.out.display());
    assert!(run.stderr.contains(&told), "{run:#?}");
}

#[test]
fn damaged_journal_stops_the_next_restore() {
    let (place, states) = prepared();
    let journal = kill_before_writing(&place, &["--before"]).join(".agent-snapshot-restore");
    let whole = fs::read(&journal).unwrap();
    let mut damaged = whole.clone();
    damaged[100] ^= 1;
    for (bytes, told) in [
        (damaged, "is damaged at record 1"),
        (b"agent-snapshot-restore 2 x y\n".to_vec(), "was written by another version of agent-snapshot"),
    ] {
        fs::write(&journal, bytes).unwrap();
        let run = place.verb("restore", &["--before"]).expect(125);
        assert!(run.stderr.contains(told) && run.stderr.lines().count() == 1, "{run:#?}");
        for name in ["linked", "file", "other"] {
            assert_eq!(fs::read(place.at(name)).unwrap(), b"new");
        }
    }
    // A journal that ends early lacks only steps that were not begun.
    for cut in (0..whole.len()).step_by(7) {
        fs::write(&journal, &whole[..cut]).unwrap();
        place.verb("restore", &["--before", "--dry-run"]).expect(0);
        assert_eq!(fs::read(place.at("linked")).unwrap(), b"new");
    }
    fs::write(&journal, &whole).unwrap();
    place.verb("restore", &["--before"]).expect(0);
    states.expect(&place, true);
}
