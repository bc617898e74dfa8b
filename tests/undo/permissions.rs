//! Files and directories whose permissions stand in the way of a restore.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, chown};
use std::process::Command;

use agent_snapshot::snapshot::State;

use crate::support::*;

#[test]
fn read_only_directories_are_opened_and_closed_again() {
    let place = Place::new();
    place.write("shut/file", "old");
    place.write("shut/deep/gone", "old");
    for dir in ["shut/deep", "shut"] {
        chmod(place.at(dir), 0o555);
    }
    let before = scan(&place.work);
    for dir in ["shut", "shut/deep"] {
        chmod(place.at(dir), 0o755);
    }
    place.write("shut/file", "new");
    place.write("shut/made", "new");
    fs::remove_file(place.at("shut/deep/gone")).unwrap();
    for dir in ["shut/deep", "shut"] {
        chmod(place.at(dir), 0o555);
    }
    let after = scan(&place.work);
    commit(&place.out, &header(), |writer| records(writer, &before, &after, |_| false));
    let states = States { before, after };
    states.there_and_back(&place);
    chmod(place.at("shut"), 0o755);
    chmod(place.at("shut/deep"), 0o755);
}

#[test]
fn directory_without_permissions_is_restored_with_its_entries() {
    let place = Place::new();
    place.write("dir/sub/file", "old");
    let before = scan(&place.work);
    place.write("dir/sub/file", "new");
    place.write("dir/made", "new");
    let after = scan(&place.work);
    commit(&place.out, &header(), |writer| {
        let mut records = records(writer, &before, &after, |path| path.ends_with(b"/dir"));
        for record in &mut records {
            if let (true, State::Present(present)) = (record.path.ends_with(b"/dir"), &mut record.after) {
                present.mode = libc::S_IFDIR;
                record.operations = agent_snapshot::snapshot::Operation::Metadata.into();
            }
        }
        records
    });
    chmod(place.at("dir"), 0);
    place.verb("restore", &["--before"]).expect(0);
    assert_eq!(fs::metadata(place.at("dir")).unwrap().mode() & 0o7777, 0o755);
    assert_eq!(fs::read_to_string(place.at("dir/sub/file")).unwrap(), "old");
    assert!(!place.at("dir/made").exists());
    place.verb("restore", &[]).expect(0);
    assert_eq!(fs::metadata(place.at("dir")).unwrap().mode() & 0o7777, 0);
    place.verb("restore", &[]).expect(0);
    assert_eq!(fs::metadata(place.at("dir")).unwrap().mode() & 0o7777, 0);
    chmod(place.at("dir"), 0o755);
    assert_eq!(fs::read_to_string(place.at("dir/sub/file")).unwrap(), "new");
}

#[test]
fn dry_run_takes_what_a_closed_directory_hides_to_be_as_recorded() {
    let place = Place::new();
    for name in ["dir/written", "dir/removed", "dir/sub/file", "shut"] {
        place.write(name, "old");
    }
    let script = "echo new > dir/written; rm dir/removed; echo new > dir/sub/file; echo new > shut
        chmod 0 shut dir/sub; chmod 444 dir";
    assert!(place.record_with(&[], script).status.success());
    let planned = place.verb("restore", &["--before", "--dry-run"]).expect(0);
    let mode = |name| fs::metadata(place.at(name)).unwrap().mode() & 0o7777;
    assert_eq!((mode("dir"), mode("shut")), (0o444, 0), "a dry run changes nothing");
    let done = place.verb("restore", &["--before"]).expect(0);
    let changes = |run: &Run| -> Vec<String> {
        let is_change = |line: &&str| line.contains(place.work.to_str().unwrap());
        run.stdout.lines().filter(is_change).map(str::to_owned).collect()
    };
    assert_eq!(changes(&planned), changes(&done));
    for name in ["dir/written", "dir/removed", "dir/sub/file", "shut"] {
        assert_eq!(fs::read_to_string(place.at(name)).unwrap(), "old");
    }

    // What is not as recorded is found by the restore itself.
    place.verb("restore", &[]).expect(0);
    chmod(place.at("dir"), 0o755);
    place.write("dir/written", "mine");
    chmod(place.at("dir"), 0o444);
    place.verb("restore", &["--before", "--dry-run"]);
    place.verb("restore", &["--before"]).expect(1);
    chmod(place.at("dir"), 0o755);
    assert_eq!(fs::read_to_string(place.at("dir/written")).unwrap(), "mine");
}

#[test]
fn refused_restore_leaves_closed_directories_unchanged() {
    let place = Place::new();
    place.write("dir/file", "old");
    place.write("other", "old");
    place.make_bundle(|| {
        place.write("dir/file", "new");
        place.write("other", "new");
    });
    place.write("other", "mine");
    chmod(place.at("dir"), 0);
    place.verb("restore", &["--before"]).expect(1);
    assert_eq!(fs::metadata(place.at("dir")).unwrap().mode() & 0o7777, 0);
    chmod(place.at("dir"), 0o755);
}

#[test]
fn unreadable_file_is_kept_and_replaced() {
    let place = Place::new();
    place.write("file", "old");
    let states = States::of(&place, || place.write("file", "new"));
    let path = place.at("file").into_os_string().into_encoded_bytes();
    // As the command left it, it could not be read when the recording ended.
    let mut after = states.after;
    after.get_mut(&path).unwrap().present.mode = libc::S_IFREG;
    commit(&place.out, &header(), |writer| {
        let mut records = records(writer, &states.before, &after, |_| false);
        for record in &mut records {
            if let State::Present(present) = &mut record.after {
                (present.digest, present.blob) = (None, None);
            }
        }
        records
    });
    chmod(place.at("file"), 0);
    place.verb("restore", &["--before"]).expect(0);
    assert_eq!(fs::read_to_string(place.at("file")).unwrap(), "old");
    place.verb_on("restore", &place.rescue(1), &["--before"]).expect(0);
    assert_eq!(fs::metadata(place.at("file")).unwrap().mode() & 0o7777, 0);
    chmod(place.at("file"), 0o600);
    assert_eq!(fs::read_to_string(place.at("file")).unwrap(), "new");
}

#[test]
fn immutable_files_are_named_before_anything_changes() {
    if !needs_root("chattr +i") {
        return;
    }
    let place = Place::new();
    place.write("file", "old");
    place.write("dir/file", "old");
    place.write("plain", "old");
    place.make_bundle(|| {
        for name in ["file", "dir/file", "plain"] {
            place.write(name, "new");
        }
    });
    let chattr = |flag: &str, name: &str| {
        Command::new("chattr")
            .arg(flag)
            .arg(place.at(name))
            .output()
            .is_ok_and(|output| output.status.success())
    };
    if !chattr("+i", "file") || !chattr("+i", "dir") {
        return println!("skipped: the filesystem has no immutable files");
    }
    let run = place.verb("restore", &["--before"]);
    chattr("-i", "file");
    chattr("-i", "dir");
    let run = run.expect(1);
    assert!(run.stderr.contains("/work/file: it is immutable"), "{}", run.stderr);
    assert!(run.stderr.contains("/work/dir/file: the directory is immutable"), "{}", run.stderr);
    assert_eq!(fs::read_to_string(place.at("plain")).unwrap(), "new");
}

#[test]
fn unwritable_directory_is_named_before_anything_changes() {
    if !needs_root("to become an ordinary user") {
        return;
    }
    let place = Place::of(User::Nobody);
    place.write("theirs/file", "old");
    place.write("mine/file", "old");
    let before = scan(&place.work);
    place.write("theirs/file", "new");
    place.write("mine/file", "new");
    let after = scan(&place.work);
    let mut header = header();
    header.uid = NOBODY;
    commit(&place.out, &header, |writer| records(writer, &before, &after, |_| false));
    give_away(place.base());
    chown(place.at("theirs"), Some(0), Some(0)).unwrap();
    let run = place.verb("restore", &["--before"]).expect(1);
    assert!(run.stderr.contains("/work/theirs/file: the directory can't be written"), "{}", run.stderr);
    assert_eq!(fs::read_to_string(place.at("mine/file")).unwrap(), "new");
}

#[test]
fn xattrs_of_a_file_without_permissions_are_restored() {
    if !needs_root("to become an ordinary user") {
        return;
    }
    let place = Place::of(User::Nobody);
    let flags = rustix::fs::XattrFlags::empty();
    let set = |name: &str, value: &[u8]| rustix::fs::setxattr(place.at(name), "user.mark", value, flags);
    place.write("marked", "x");
    place.write("replaced", "old");
    if set("marked", b"one").is_err() {
        return println!("skipped: the filesystem has no extended attributes");
    }
    set("replaced", b"one").unwrap();
    let shut = |name: &str| chmod(place.at(name), 0o000);
    give_away(place.base());
    ["marked", "replaced"].into_iter().for_each(shut);
    let before = scan(&place.work);
    set("marked", b"two").unwrap();
    fs::remove_file(place.at("replaced")).unwrap();
    place.write("replaced", "new");
    set("replaced", b"two").unwrap();
    give_away(&place.work);
    shut("replaced");
    let after = scan(&place.work);
    let mut header = header();
    header.uid = NOBODY;
    commit(&place.out, &header, |writer| records(writer, &before, &after, |_| false));
    give_away(&place.out);
    let states = States { before, after };
    place.verb("restore", &["--before"]).expect(0);
    states.expect(&place, true);
    place.verb_on("restore", &place.rescue(1), &["--before"]).expect(0);
    states.expect(&place, false);
}

#[test]
fn owner_that_cannot_be_given_back_is_named_whatever_the_content() {
    if !needs_root("to own a file in the directory of another user") {
        return;
    }
    let has_attributes = |place: &Place| set_xattr(place.at("f"), "security.test", b"1").is_ok();
    for script in ["cp f g; mv g f", "sed s/old/new/ f > g; mv g f", "cp f g; chmod 600 g; mv g f"] {
        let place = Place::of(User::Nobody);
        place.write("f", "old\n");
        chown(place.at("f"), Some(0), Some(0)).unwrap();
        chmod(place.at("f"), 0o644);
        let has_attributes = has_attributes(&place);
        let verb = |words: &[&str]| Run::from(place.command().args(words).output().unwrap());
        verb(&["run", "--", "sh", "-c", script]).expect(0);
        for _ in 0..2 {
            let undone = verb(&["undo"]).expect(1);
            let path = place.at("f").display().to_string();
            let owner = format!("{path}: its owner 0:0 can't be given to it");
            let attribute = format!("{path}: its extended attribute security.test can't be given to it");
            for (said, is_expected) in [(owner, true), (attribute, has_attributes)] {
                assert_eq!(
                    undone.stderr.matches(&said).count(),
                    usize::from(is_expected),
                    "{script}: {undone:?}"
                );
            }
            assert_eq!(fs::read_to_string(place.at("f")).unwrap(), "old\n");
            verb(&["redo"]).expect(0);
        }
        let json = verb(&["undo", "--json"]).expect(1).stdout;
        let json: serde_json::Value = serde_json::from_str(&json).unwrap();
        assert!(json["not_given"].to_string().contains("its owner 0:0"), "{json}");
        // It is undone all the same.
        let said = verb(&["undo"]).expect(1).stderr;
        assert!(said.contains("nothing to undo"), "{said}");
    }
}

#[test]
fn attribute_of_the_file_of_another_user_goes_back_if_the_file_may_be_written() {
    if !needs_root("to own a file in the directory of another user") {
        return;
    }
    let place = Place::of(User::Nobody);
    place.write("f", "old\n");
    chown(place.at("f"), Some(0), Some(0)).unwrap();
    chmod(place.at("f"), 0o666);
    if set_xattr(place.at("f"), "user.test", b"1").is_err()
        || !works(place.program("setfattr").arg("--version"))
    {
        return println!("skipped: the filesystem has no extended attributes");
    }
    let verb = |words: &[&str]| Run::from(place.command().args(words).output().unwrap());
    verb(&["run", "--", "setfattr", "-n", "user.test", "-v", "2", "f"]).expect(0);
    verb(&["undo"]).expect(0);
    let xattrs = || {
        scan(&place.work)
            .into_values()
            .find_map(|entry| entry.present.xattrs.get(b"user.test".as_slice()).cloned())
    };
    assert_eq!(xattrs().unwrap(), b"1");
    verb(&["redo"]).expect(0);
    assert_eq!(xattrs().unwrap(), b"2");
}

#[test]
fn what_the_command_has_made_in_a_directory_that_it_closed_is_named() {
    for mode in ["000", "644"] {
        let place = Place::of(User::ordinary());
        place.write("d/f", "old\n");
        let verb = |words: &[&str]| Run::from(place.command().args(words).output().unwrap());
        let script = format!("echo new > d/f; echo > d/gone; rm d/gone; exec 3> d/made; chmod {mode} d");
        verb(&["run", "--", "sh", "-c", &script]).expect(0);
        let made = place.at("d/made").display().to_string();
        let said = format!("left       {made}: nothing is known of what the command left there");
        let undone = verb(&["undo"]).expect(1);
        assert_eq!(undone.stdout.matches("left  ").count(), 1, "{undone:?}");
        assert!(undone.stdout.contains(&said), "{undone:?}");
        assert_eq!(fs::read_to_string(place.at("d/f")).unwrap(), "old\n");
        assert!(place.at("d/made").exists());
        // No other undo would do more.
        let nothing = verb(&["undo"]).expect(1);
        assert!(nothing.stderr.contains("nothing to undo"), "{nothing:?}");
        verb(&["redo"]).expect(0);
        chmod(place.at("d"), 0o755);
        fs::remove_file(place.at("d/made")).unwrap();
        chmod(place.at("d"), u32::from_str_radix(mode, 8).unwrap());
        verb(&["undo", "--json"]).expect(0);
        chmod(place.at("d"), 0o755);
    }
}

#[test]
fn set_id_bit_that_cannot_be_given_back_is_named() {
    if !needs_root("to make a directory of a group that its owner is not in") {
        return;
    }
    for script in ["rm -r d", "chmod 0700 d"] {
        let place = Place::of(User::Nobody);
        place.write("d/f", "old");
        chown(place.at("d"), None, Some(1)).unwrap();
        chmod(place.at("d"), 0o2755);
        chown(&place.work, None, Some(1)).unwrap();
        chmod(&place.work, 0o2755);
        let verb = |words: &[&str]| Run::from(place.command().args(words).output().unwrap());
        verb(&["run", "--", "sh", "-c", script]).expect(0);
        let undone = verb(&["undo"]).expect(1);
        assert!(undone.stderr.contains("its set-group-ID bit can't be given to it"), "{script}: {undone:?}");
        assert_eq!(fs::metadata(place.at("d")).unwrap().mode() & 0o777, 0o755);
        // It is undone all the same.
        assert!(verb(&["undo"]).expect(1).stderr.contains("nothing to undo"));
    }
}
