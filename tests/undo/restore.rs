//! `restore` in place: what it changes and reports.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, symlink};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;

use agent_snapshot::snapshot::{FileRecord, Operation};
use nix::sys::stat::Mode;
use serde_json::Value;

use crate::support::*;

#[test]
fn content_modes_and_times_are_restored() {
    let place = Place::new();
    place.write("edited", "old");
    place.write("deleted", "gone");
    place.write("dir/inner", "inner");
    place.write("mode", "x");
    let states = States::of(&place, || {
        place.write("edited", "new and longer");
        fs::remove_file(place.at("deleted")).unwrap();
        fs::remove_dir_all(place.at("dir")).unwrap();
        place.write("made/deep/er", "new");
        chmod(place.at("mode"), 0o4755);
        symlink("edited", place.at("link")).unwrap();
    });
    states.there_and_back(&place);
}

/// What can be at a path.
const KINDS: [&str; 12] = [
    "absent",
    "file",
    "empty",
    "large",
    "directory",
    "full",
    "to_file",
    "to_directory",
    "dangling",
    "fifo",
    "hard_link",
    "known_link",
];

fn make(place: &Place, path: &Path, kind: &str, which: &str) {
    let anchor = place.base().join(format!("anchor-{which}"));
    match kind {
        "absent" => {}
        "file" => fs::write(path, format!("{which} content")).unwrap(),
        "empty" => fs::write(path, "").unwrap(),
        "large" => fs::write(path, which.repeat(100_000)).unwrap(),
        "directory" => fs::create_dir(path).unwrap(),
        "full" => {
            fs::create_dir_all(path.join("sub/deeper")).unwrap();
            fs::write(path.join("file"), which).unwrap();
            fs::write(path.join("sub/deeper/file"), which).unwrap();
            symlink("..", path.join("sub/up")).unwrap();
        }
        "to_file" => symlink(place.base().join(which), path).unwrap(),
        "to_directory" => symlink(place.base(), path).unwrap(),
        "dangling" => symlink(format!("no/such/{which}"), path).unwrap(),
        "fifo" => nix::unistd::mkfifo(path, Mode::from_bits_truncate(0o600)).unwrap(),
        // A file with another name outside of the tree, as in the stores of package managers.
        "hard_link" => fs::hard_link(anchor, path).unwrap(),
        "known_link" => fs::hard_link(place.at(format!("known-{which}")), path).unwrap(),
        other => panic!("{other}"),
    }
}

fn remove(path: &Path) {
    match fs::symlink_metadata(path) {
        Ok(there) if there.is_dir() => fs::remove_dir_all(path).unwrap(),
        Ok(_) => fs::remove_file(path).unwrap(),
        Err(_) => {}
    }
}

#[test]
fn every_file_type_is_restored_over_every_other() {
    let place = Place::new();
    for which in ["from", "to"] {
        fs::write(place.base().join(format!("anchor-{which}")), format!("anchored {which}")).unwrap();
        place.write(&format!("known-{which}"), format!("known {which}"));
        fs::write(place.base().join(which), "target").unwrap();
    }
    let pairs = || KINDS.into_iter().flat_map(|from| KINDS.into_iter().map(move |to| (from, to)));
    let path = |from, to| place.at(format!("{from}-{to}"));
    for (from, to) in pairs() {
        make(&place, &path(from, to), from, "from");
    }
    let is_known = |path: &[u8]| path.windows(6).any(|part| part == b"known-");
    let states = States::with(&place, is_known, || {
        for (from, to) in pairs() {
            remove(&path(from, to));
            make(&place, &path(from, to), to, "to");
        }
    });
    states.there_and_back(&place);
    for which in ["from", "to"] {
        let anchor = place.base().join(format!("anchor-{which}"));
        assert_eq!(fs::read_to_string(anchor).unwrap(), format!("anchored {which}"));
        assert_eq!(fs::read_to_string(place.base().join(which)).unwrap(), "target");
    }
}

#[test]
fn dry_run_prints_the_plan_and_changes_nothing() {
    let place = Place::new();
    place.write("edited", "old");
    place.write("gone", "x");
    place.make_bundle(|| {
        place.write("edited", "new");
        fs::remove_file(place.at("gone")).unwrap();
        place.write("made", "y");
    });
    let now = scan(&place.work);
    let run = place.verb("restore", &["--before", "--dry-run"]).expect(0);
    let words: Vec<_> = run.stdout.lines().filter_map(|line| line.split_whitespace().next()).collect();
    assert_eq!(words, ["replace", "create", "remove", "3"], "{}", run.stdout);
    assert_eq!(scan(&place.work), now);
    assert!(!place.rescue(1).exists());
}

#[test]
fn path_argument_limits_the_restore() {
    let place = Place::new();
    place.write("dir/file", "old");
    place.write("dir2/file", "old");
    place.make_bundle(|| {
        place.write("dir/file", "new");
        place.write("dir2/file", "new");
    });
    let dir = place.at("dir");
    place.verb("restore", &["--before", dir.to_str().unwrap()]).expect(0);
    assert_eq!(fs::read_to_string(place.at("dir/file")).unwrap(), "old");
    assert_eq!(fs::read_to_string(place.at("dir2/file")).unwrap(), "new");
    let run = place.verb("restore", &["--before", "/no/such/path"]).expect(1);
    assert!(run.stderr.contains("has no record of /no/such/path"), "{}", run.stderr);
}

#[test]
fn read_file_is_restored_only_by_name() {
    let place = Place::new();
    place.write("read", "input");
    place.write("written", "old");
    States::with(&place, |path| path.ends_with(b"/read"), || place.write("written", "new"));
    place.write("read", "edited since");
    let now = scan(&place.work);
    place.verb("restore", &["--before"]).expect(0);
    let path = place.at("read").into_os_string().into_encoded_bytes();
    assert_eq!(scan(&place.work)[&path].present, now[&path].present);
    let named = place.at("read");
    place.verb("restore", &["--before", named.to_str().unwrap()]).expect(1);
    place.verb("restore", &["--before", "--force", named.to_str().unwrap()]).expect(0);
    assert_eq!(fs::read_to_string(place.at("read")).unwrap(), "input");
}

#[test]
fn snapshot_of_another_machine_or_user_needs_foreign() {
    let place = Place::new();
    place.write("tool", "old");
    let before = scan(&place.work);
    place.write("tool", "new");
    let after = scan(&place.work);
    let mut header = header();
    header.host.machine = "sha256:elsewhere".to_owned();
    commit(&place.out, &header, |writer| {
        let mut records = records(writer, &before, &after, |_| false);
        for record in &mut records {
            if let agent_snapshot::snapshot::State::Present(present) = &mut record.before
                && record.path.ends_with(b"tool")
            {
                present.mode = libc::S_IFREG | 0o4755;
                present.uid = 12345;
            }
        }
        records
    });
    let run = place.verb("restore", &["--before"]).expect(3);
    assert!(run.stderr.contains("on another machine"), "{}", run.stderr);
    assert_eq!(fs::read_to_string(place.at("tool")).unwrap(), "new");
    place.verb("restore", &["--before", "--foreign"]).expect(0);
    let tool = fs::metadata(place.at("tool")).unwrap();
    assert_eq!((tool.mode() & 0o7777, tool.uid()), (0o755, nix::unistd::geteuid().as_raw()));
    assert_eq!(fs::read_to_string(place.at("tool")).unwrap(), "old");
    let run = place.verb("restore", &["--before", "--foreign"]).expect(0);
    assert!(run.stdout.starts_with("nothing to do"), "{}", run.stdout);
}

#[test]
fn json_names_every_change() {
    let place = Place::new();
    place.write("edited", "old");
    place.make_bundle(|| {
        place.write("edited", "new");
        place.write("made", "y");
    });
    let run = place.verb("restore", &["--before", "--json"]).expect(0);
    let report: Value = serde_json::from_str(&run.stdout).unwrap();
    let changes: Vec<_> = report["changes"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| {
            let name = one["path"].as_str().unwrap().rsplit('/').next().unwrap();
            (name, one["change"].as_str().unwrap())
        })
        .collect();
    assert_eq!(changes, [("edited", "replace"), ("made", "remove")]);
    assert_eq!((&report["applied"], &report["state"]), (&Value::Bool(true), &Value::from("before")));
    assert!(report["rescues"][0]["path"].as_str().unwrap().ends_with("out-rescue-1"));
}

#[test]
fn missing_parent_is_created_again() {
    let place = Place::new();
    place.write("dir/sub/file", "x");
    place.make_bundle(|| fs::remove_file(place.at("dir/sub/file")).unwrap());
    fs::remove_dir_all(place.at("dir")).unwrap();
    place.verb("restore", &["--before"]).expect(0);
    assert_eq!(fs::read_to_string(place.at("dir/sub/file")).unwrap(), "x");
    let rescue = place.rescue(1);
    place.verb_on("restore", &rescue, &["--before"]).expect(0);
    assert!(!place.at("dir").exists());
}

#[test]
fn metadata_change_needs_no_content() {
    use agent_snapshot::snapshot::{Operation, State};
    let place = Place::new();
    place.write("modes", "never looked at");
    place.write("times", "never looked at");
    let before = scan(&place.work);
    chmod(place.at("modes"), 0o755);
    fs::File::open(place.at("times")).unwrap().set_modified(std::time::UNIX_EPOCH).unwrap();
    let after = scan(&place.work);
    commit(&place.out, &header(), |writer| {
        let mut records = records(writer, &before, &after, |_| false);
        for record in &mut records {
            record.operations = Operation::Metadata.into();
            for state in [&mut record.before, &mut record.after] {
                if let State::Present(present) = state {
                    (present.digest, present.blob) = (None, None);
                }
            }
        }
        records
    });
    let states = States { before, after };
    states.there_and_back(&place);
    // An edit since is not of the command's doing and stays.
    place.write("modes", "edited");
    place.verb("restore", &[]).expect(0);
    assert_eq!(fs::read_to_string(place.at("modes")).unwrap(), "edited");
    assert_eq!(fs::metadata(place.at("modes")).unwrap().mode() & 0o777, 0o755);
}

/// Makes a bundle of a change in which `name` was a file on a descriptor from before the launch.
fn inherited(place: &Place, name: &str, change: impl FnOnce(&mut FileRecord)) {
    let before = scan(&place.work);
    place.write("other", "made");
    fs::rename(place.at("list"), place.at("moved")).unwrap();
    place.write("log", "old and more");
    let after = scan(&place.work);
    commit(&place.out, &header(), |writer| {
        let mut records = records(writer, &before, &after, |_| false);
        let path = place.at(name).into_os_string().into_encoded_bytes();
        let record = records.iter_mut().find(|record| record.path == path).unwrap();
        record.inherited = true;
        change(record);
        records
    });
}

#[test]
fn inherited_file_is_restored_only_if_its_name_changed() {
    let place = Place::new();
    place.write("list", "precious");
    place.write("log", "old");
    inherited(&place, "list", |record| record.operations = Operation::Delete.into());
    place.verb("restore", &["--before"]).expect(0);
    assert_eq!(fs::read_to_string(place.at("list")).unwrap(), "precious");
    assert_eq!(fs::read_to_string(place.at("log")).unwrap(), "old");
    assert!(!place.at("moved").exists());

    let place = Place::new();
    place.write("list", "precious");
    place.write("log", "old");
    inherited(&place, "log", |record| record.operations = Operation::Write.into());
    place.verb("restore", &["--before"]).expect(0);
    assert_eq!(fs::read_to_string(place.at("log")).unwrap(), "old and more");
    place.verb("verify", &[]).expect(1);
    place.verb("restore", &[]).expect(0);
    place.write("log", "old and more and more");
    let run = place.verb("verify", &[]).expect(0);
    assert!(run.stdout.contains("1 path left out (the command's output went there)"), "{run:#?}");
    place.write("log", "old and more");
    place.verb("restore", &["--before", place.at("log").to_str().unwrap()]).expect(0);
    assert_eq!(fs::read_to_string(place.at("log")).unwrap(), "old");
}

#[test]
fn names_of_any_bytes_are_restored() {
    let place = Place::new();
    let names: [&[u8]; 8] = [b"\n", b"\xff\xfe", b"a\x1b[31m", b" ", b"-rf", b"*?[", b"'\"\\", &[b'n'; 255]];
    for name in names {
        fs::write(place.work.join(OsStr::from_bytes(name)), "old").unwrap();
    }
    let states = States::of(&place, || {
        for name in names {
            fs::remove_file(place.work.join(OsStr::from_bytes(name))).unwrap();
        }
    });
    states.there_and_back(&place);
}

#[test]
fn removed_socket_is_created_again() {
    let place = Place::new();
    place.write("file", "x");
    let listener = std::os::unix::net::UnixListener::bind(place.at("socket")).unwrap();
    place.make_bundle(|| {
        fs::remove_file(place.at("file")).unwrap();
        fs::remove_file(place.at("socket")).unwrap();
    });
    place.verb("restore", &["--before"]).expect(0);
    assert!(fs::metadata(place.at("socket")).unwrap().file_type().is_socket());
    assert!(place.at("file").exists());
    drop(listener);
}

#[test]
fn ignored_changes_are_named() {
    use agent_snapshot::snapshot::Suppressed;
    let place = Place::new();
    place.write("file", "old");
    let before = scan(&place.work);
    place.write("file", "new");
    let after = scan(&place.work);
    let mut header = header();
    header.suppressed = vec![Suppressed {
        rule: ".git".to_owned(),
        reads: 1,
        writes: 1,
        changed: vec![b"/repo/.git".to_vec()],
        changes: None,
        changes_cut: false,
        read: None,
    }];
    commit(&place.out, &header, |writer| records(writer, &before, &after, |_| false));
    let run = place.verb("restore", &["--before"]).expect(0);
    let told = "/repo/.git was changed by the command and not recorded (.git): it is not brought back";
    assert!(run.stderr.contains(told), "{}", run.stderr);
}

#[test]
fn directory_keeps_its_content_if_its_replacement_fails() {
    if !needs_root("to make a device") {
        return;
    }
    let place = Place::new();
    let device = rustix::fs::makedev(1, 3);
    let kind = rustix::fs::FileType::CharacterDevice;
    let mode = rustix::fs::Mode::RUSR;
    if rustix::fs::mknodat(rustix::fs::CWD, place.at("node"), kind, mode, device).is_err() {
        return println!("skipped: device nodes can't be created here");
    }
    let mut header = header();
    header.host.machine = "sha256:elsewhere".to_owned();
    let before = scan(&place.work);
    fs::remove_file(place.at("node")).unwrap();
    place.write("node/inner/file", "work");
    let after = scan(&place.work);
    commit(&place.out, &header, |writer| records(writer, &before, &after, |_| false));
    let run = place.verb("restore", &["--before", "--foreign"]).expect(1);
    assert!(run.stdout.contains("/work/node: a device can't be brought back"), "{run:#?}");
    assert_eq!(fs::read_to_string(place.at("node/inner/file")).unwrap(), "work");
}

#[test]
fn socket_replaces_a_directory() {
    let place = Place::new();
    let socket = |name: &str| drop(std::os::unix::net::UnixListener::bind(place.at(name)).unwrap());
    socket("node");
    socket("gone");
    let states = States::of(&place, || {
        fs::remove_file(place.at("node")).unwrap();
        fs::remove_file(place.at("gone")).unwrap();
        place.write("node/inner/file", "work");
        socket("made");
    });
    states.there_and_back(&place);
}

#[test]
fn socket_and_fifo_that_were_renamed_keep_the_programs_at_their_other_end() {
    let place = Place::new();
    place.prepare("mkdir d; mkfifo d/fifo");
    let _listener = UnixListener::bind(place.at("d/socket")).unwrap();
    let fifo = File::options().read(true).write(true).open(place.at("d/fifo")).unwrap();
    place.record("mv d/socket s; mv d e");
    let is_at = |socket: &str, name: &str| {
        let is_same = place.inode(name) == fifo.metadata().unwrap().ino();
        (UnixStream::connect(place.at(socket)).is_ok(), is_same)
    };
    assert_eq!(is_at("s", "e/fifo"), (true, true));
    place.verb("restore", &["--before"]).expect(0);
    assert_eq!(is_at("d/socket", "d/fifo"), (true, true));
    place.verb("restore", &[]).expect(0);
    assert_eq!(is_at("s", "e/fifo"), (true, true));
}
