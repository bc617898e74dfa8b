//! What a restore refuses: nothing is changed, and the reason is named.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, symlink};
use std::path::Path;

use nix::fcntl::{Flock, FlockArg};

use crate::support::*;

#[test]
fn target_in_neither_state_is_a_conflict() {
    let place = Place::new();
    for name in ["a", "b", "c", "d"] {
        place.write(name, "old");
    }
    place.make_bundle(|| {
        for name in ["a", "b", "c"] {
            place.write(name, "new");
        }
        fs::remove_file(place.at("d")).unwrap();
    });
    place.write("b", "mine");
    chmod(place.at("c"), 0o600);
    symlink("x", place.at("d")).unwrap();
    let now = scan(&place.work);
    let before = [
        "b: edited since: a file of 4 bytes with mode 0644 is there now",
        "c: its mode was changed since, from 0644 to 0600",
        "d: created since: a symlink to x is there now",
    ];
    let after = [
        before[0],
        "c: edited since: a file of 3 bytes with mode 0600 is there now",
        "d: replaced since: a symlink to x is there now",
    ];
    for (flags, expected) in [(&["--before"][..], before), (&[], after), (&["--before", "--dry-run"], before)]
    {
        let run = place.verb("restore", flags).expect(1);
        let work = format!("{}/", place.work.display());
        let listed = run.stderr.lines().filter_map(|line| line.trim_start().strip_prefix(&work));
        assert_eq!(listed.collect::<Vec<_>>(), expected, "{}", run.stderr);
        assert_eq!(scan(&place.work), now);
    }
    assert!(!place.rescue(1).exists());

    let run = place.verb("restore", &["--before", "--force", "--dry-run"]).expect(0);
    assert!(run.stdout.contains("replace") && run.stdout.contains("4 paths would be put back"), "{run:#?}");
    assert!(!run.stderr.contains("nothing would be changed"), "{run:#?}");
    assert!(run.stderr.contains("--force overwrites what has changed since:"), "{run:#?}");
    assert_eq!(fs::read_to_string(place.at("b")).unwrap(), "mine");
    place.verb("restore", &["--before", "--force"]).expect(0);
    assert_eq!(fs::read_to_string(place.at("b")).unwrap(), "old");
    place.verb_on("restore", &place.rescue(1), &["--before"]).expect(0);
    assert_eq!(fs::read_to_string(place.at("b")).unwrap(), "mine");
    assert_eq!(fs::read_link(place.at("d")).unwrap(), Path::new("x"));
    assert_eq!(fs::metadata(place.at("c")).unwrap().mode() & 0o777, 0o600);
}

#[test]
fn file_that_the_command_only_touched_may_be_edited_since() {
    let place = Place::new();
    for name in ["edited", "touched", "cut"] {
        place.write(name, "old");
    }
    assert!(place.record_with(&[], "echo new > edited; touch touched; truncate -s 3 cut").status.success());
    let read = |name| fs::read_to_string(place.at(name)).unwrap();
    let modified = || fs::metadata(place.at("touched")).unwrap().modified().unwrap();
    for name in ["touched", "cut"] {
        place.write(name, "mine");
    }
    let touched = modified();
    place.verb("restore", &["--before"]).expect(0);
    assert_eq!(["edited", "touched", "cut"].map(read), ["old", "mine", "mine"]);
    assert_eq!(modified(), touched);

    // Who names it wants what it was.
    let named = place.at("touched");
    place.verb("restore", &["--before", "--", named.to_str().unwrap()]).expect(1);
    place.verb("restore", &["--before", "--force", "--", named.to_str().unwrap()]).expect(0);
    assert_eq!(read("touched"), "old");
}

#[test]
fn what_was_moved_or_removed_since_is_said_so() {
    let place = Place::new();
    let names = ["moved", "away", "removed", "sub/here"];
    names.iter().for_each(|name| place.write(name, "before"));
    place.make_bundle(|| names.iter().for_each(|name| place.write(name, name)));
    place.prepare("mv moved sub/other; mv away ..; rm removed");
    // The number of the file is perhaps that of the removed one.
    place.write("another", "removed");
    let run = place.verb("restore", &["--before"]).expect(1);
    let work = place.work.display();
    let listed: Vec<_> = run.stderr.lines().filter(|line| line.starts_with("  ")).collect();
    let expected = [
        format!("  {work}/away: removed since"),
        format!("  {work}/moved: moved since, to {work}/sub/other"),
        format!("  {work}/removed: removed since"),
    ];
    assert_eq!(listed, expected, "{}", run.stderr);
}

#[test]
fn directory_with_unknown_entries_stays_and_is_named() {
    let place = Place::new();
    place.make_bundle(|| {
        place.write("made/known", "x");
        place.write("made/sub/known", "x");
        symlink("made", place.at("other")).unwrap();
    });
    place.write("made/sub/mine", "precious");
    let run = place.verb("restore", &["--before"]).expect(1);
    assert!(
        run.stdout.contains("/work/made: it holds sub that the snapshot does not know"),
        "{}",
        run.stdout
    );
    assert!(run.stdout.contains("/work/made/sub: it holds mine that"), "{}", run.stdout);
    let left: Vec<_> = scan(&place.work).into_keys().collect();
    assert_eq!(left.len(), 4, "{left:?}");
    assert_eq!(fs::read_to_string(place.at("made/sub/mine")).unwrap(), "precious");
    let run = place.verb("restore", &["--before"]).expect(1);
    assert!(!run.stdout.contains("rescue"), "{}", run.stdout);
}

#[test]
fn unavailable_content_is_named_and_nothing_changes() {
    use agent_snapshot::snapshot::{BlobOmitted, State};
    let place = Place::new();
    place.write("a", "old");
    place.write("b", "old b");
    let before = scan(&place.work);
    place.write("a", "new");
    place.write("b", "new b");
    let after = scan(&place.work);
    commit(&place.out, &header(), |writer| {
        let mut records = records(writer, &before, &after, |_| false);
        for record in &mut records {
            if let (true, State::Present(present)) = (record.path.ends_with(b"/b"), &mut record.before) {
                (present.blob, present.blob_omitted) = (None, Some(BlobOmitted::NoSpace));
            }
        }
        records
    });
    for flags in [&["--before"][..], &["--before", "--force"]] {
        let run = place.verb("restore", flags).expect(1);
        assert!(run.stderr.contains("/work/b: there was no space for it"), "{}", run.stderr);
        assert_eq!(fs::read_to_string(place.at("a")).unwrap(), "new");
    }
    place.verb("restore", &[]).expect(0);
}

#[test]
fn symlink_in_place_of_a_parent_is_not_followed() {
    let place = Place::new();
    place.write("dir/file", "x");
    place.make_bundle(|| fs::remove_file(place.at("dir/file")).unwrap());
    fs::remove_dir_all(place.at("dir")).unwrap();
    fs::create_dir(place.base().join("outside")).unwrap();
    symlink(place.base().join("outside"), place.at("dir")).unwrap();
    let run = place.verb("restore", &["--before", "--force"]).expect(1);
    assert!(run.stderr.contains("in the place of a directory above it"), "{}", run.stderr);
    assert_eq!(fs::read_dir(place.base().join("outside")).unwrap().count(), 0);
}

#[test]
fn what_is_in_the_way_is_named_with_an_option_that_leaves_it() {
    let place = Place::new();
    place.write("dir/file", "x");
    place.write("other", "old");
    place.make_bundle(|| {
        fs::remove_file(place.at("dir/file")).unwrap();
        place.write("other", "new");
    });
    fs::remove_dir_all(place.at("dir")).unwrap();
    place.write("dir", "a file");
    for flags in [&["--before"][..], &["--before", "--skip-conflicts"]] {
        let run = place.verb("restore", flags).expect(1);
        assert!(run.stderr.contains("can't be put back (--exclude PATH leaves it):\n"), "{}", run.stderr);
    }
    let excluded = place.at("dir/file").display().to_string();
    place.verb("restore", &["--before", "--exclude", &excluded]).expect(0);
    assert_eq!(fs::read_to_string(place.at("other")).unwrap(), "old");
}

#[test]
fn snapshot_in_use_is_not_restored() {
    let place = Place::new();
    place.write("file", "old");
    place.make_bundle(|| place.write("file", "new"));
    let user = Flock::lock(fs::File::open(&place.out).unwrap(), FlockArg::LockExclusive).unwrap();
    let run = place.verb("restore", &["--before"]).expect(125);
    assert!(run.stderr.contains("is being used by another restore or recording"), "{}", run.stderr);
    drop(user);
    place.verb("restore", &["--before"]).expect(0);
}
