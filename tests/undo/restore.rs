//! `restore` in place: what it changes, what it refuses and what it says.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
use std::path::Path;

use agent_snapshot::snapshot::{FileRecord, Operation};
use nix::sys::stat::Mode;
use serde_json::Value;

use super::support::*;

#[test]
fn content_modes_and_times_come_back() {
    let scene = Scene::new();
    scene.write("edited", "old");
    scene.write("deleted", "gone");
    scene.write("dir/inner", "inner");
    scene.write("mode", "x");
    let states = States::of(&scene, || {
        scene.write("edited", "new and longer");
        fs::remove_file(scene.at("deleted")).unwrap();
        fs::remove_dir_all(scene.at("dir")).unwrap();
        scene.write("made/deep/er", "new");
        fs::set_permissions(scene.at("mode"), fs::Permissions::from_mode(0o4755)).unwrap();
        symlink("edited", scene.at("link")).unwrap();
    });
    states.there_and_back(&scene);
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

fn make(scene: &Scene, path: &Path, kind: &str, which: &str) {
    let anchor = scene.dir().join(format!("anchor-{which}"));
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
        "to_file" => symlink(scene.dir().join(which), path).unwrap(),
        "to_directory" => symlink(scene.dir(), path).unwrap(),
        "dangling" => symlink(format!("no/such/{which}"), path).unwrap(),
        "fifo" => nix::unistd::mkfifo(path, Mode::from_bits_truncate(0o600)).unwrap(),
        // A name of a file of which nobody knows another one, as in the stores of package managers.
        "hard_link" => fs::hard_link(anchor, path).unwrap(),
        "known_link" => fs::hard_link(scene.at(&format!("known-{which}")), path).unwrap(),
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
fn each_type_becomes_each_other_and_comes_back() {
    let scene = Scene::new();
    for which in ["from", "to"] {
        fs::write(scene.dir().join(format!("anchor-{which}")), format!("anchored {which}")).unwrap();
        scene.write(&format!("known-{which}"), format!("known {which}"));
        fs::write(scene.dir().join(which), "target").unwrap();
    }
    let pairs = || KINDS.into_iter().flat_map(|from| KINDS.into_iter().map(move |to| (from, to)));
    let path = |from, to| scene.at(&format!("{from}-{to}"));
    for (from, to) in pairs() {
        make(&scene, &path(from, to), from, "from");
    }
    let is_known = |path: &[u8]| path.windows(6).any(|part| part == b"known-");
    let states = States::with(&scene, is_known, || {
        for (from, to) in pairs() {
            remove(&path(from, to));
            make(&scene, &path(from, to), to, "to");
        }
    });
    states.there_and_back(&scene);
    for which in ["from", "to"] {
        let anchor = scene.dir().join(format!("anchor-{which}"));
        assert_eq!(fs::read_to_string(anchor).unwrap(), format!("anchored {which}"));
        assert_eq!(fs::read_to_string(scene.dir().join(which)).unwrap(), "target");
    }
}

#[test]
fn a_target_at_neither_state_is_a_conflict_and_nothing_changes() {
    let scene = Scene::new();
    for name in ["a", "b", "c", "d"] {
        scene.write(name, "old");
    }
    let states = States::of(&scene, || {
        for name in ["a", "b", "c"] {
            scene.write(name, "new");
        }
        fs::remove_file(scene.at("d")).unwrap();
    });
    scene.write("b", "mine");
    fs::set_permissions(scene.at("c"), fs::Permissions::from_mode(0o600)).unwrap();
    symlink("x", scene.at("d")).unwrap();
    let now = scan(&scene.root());
    for flags in [&["--before"][..], &[], &["--before", "--dry-run"]] {
        let run = verb("restore", &scene.snap(), flags).expect(1);
        for (name, there) in [
            ("b", "a file of 4 bytes with mode 0644"),
            ("c", "a file of 3 bytes with mode 0600"),
            ("d", "a symlink to x"),
        ] {
            assert!(run.stderr.contains(&format!("/tree/{name}: {there} is there now")), "{}", run.stderr);
        }
        assert!(!run.stderr.contains("/tree/a:"));
        for (path, entry) in scan(&scene.root()) {
            assert_eq!(entry.present, now[&path].present);
        }
    }
    assert!(!scene.dir().join("snap-rescue-1").exists());

    let run = verb("restore", &scene.snap(), &["--before", "--force", "--dry-run"]).expect(0);
    assert!(run.stdout.contains("replace") && run.stdout.contains("4 paths would be put back"), "{run:#?}");
    assert!(!run.stderr.contains("nothing would be changed"), "{run:#?}");
    assert!(run.stderr.contains("--force overwrites what has changed since:"), "{run:#?}");
    assert_eq!(fs::read_to_string(scene.at("b")).unwrap(), "mine");
    verb("restore", &scene.snap(), &["--before", "--force"]).expect(0);
    assert_eq!(fs::read_to_string(scene.at("b")).unwrap(), "old");
    verb("restore", &scene.dir().join("snap-rescue-1"), &["--before"]).expect(0);
    assert_eq!(fs::read_to_string(scene.at("b")).unwrap(), "mine");
    assert_eq!(fs::read_link(scene.at("d")).unwrap(), Path::new("x"));
    assert_eq!(fs::metadata(scene.at("c")).unwrap().mode() & 0o777, 0o600);
    let _ = states;
}

#[test]
fn a_dry_run_prints_the_plan_and_changes_nothing() {
    let scene = Scene::new();
    scene.write("edited", "old");
    scene.write("gone", "x");
    scene.record(|| {
        scene.write("edited", "new");
        fs::remove_file(scene.at("gone")).unwrap();
        scene.write("made", "y");
    });
    let now = scan(&scene.root());
    let run = verb("restore", &scene.snap(), &["--before", "--dry-run"]).expect(0);
    let words: Vec<_> = run.stdout.lines().filter_map(|line| line.split_whitespace().next()).collect();
    assert_eq!(words, ["replace", "create", "remove", "3"], "{}", run.stdout);
    for (path, entry) in scan(&scene.root()) {
        assert_eq!(entry.present, now[&path].present);
    }
    assert_eq!(fs::read_dir(scene.dir()).unwrap().count(), 2);
}

#[test]
fn a_directory_with_unknown_entries_stays_and_is_named() {
    let scene = Scene::new();
    scene.record(|| {
        scene.write("made/known", "x");
        scene.write("made/sub/known", "x");
        symlink("made", scene.at("other")).unwrap();
    });
    scene.write("made/sub/mine", "precious");
    let run = verb("restore", &scene.snap(), &["--before"]).expect(1);
    assert!(
        run.stdout.contains("/tree/made: it holds sub that the snapshot does not know"),
        "{}",
        run.stdout
    );
    assert!(run.stdout.contains("/tree/made/sub: it holds mine that"), "{}", run.stdout);
    let left: Vec<_> = scan(&scene.root()).into_keys().collect();
    assert_eq!(left.len(), 4, "{left:?}");
    assert_eq!(fs::read_to_string(scene.at("made/sub/mine")).unwrap(), "precious");
    let run = verb("restore", &scene.snap(), &["--before"]).expect(1);
    assert!(!run.stdout.contains("rescue"), "{}", run.stdout);
}

#[test]
fn a_path_limits_the_restore_to_what_is_beneath_it() {
    let scene = Scene::new();
    scene.write("dir/file", "old");
    scene.write("dir2/file", "old");
    scene.record(|| {
        scene.write("dir/file", "new");
        scene.write("dir2/file", "new");
    });
    let dir = scene.at("dir");
    verb("restore", &scene.snap(), &["--before", dir.to_str().unwrap()]).expect(0);
    assert_eq!(fs::read_to_string(scene.at("dir/file")).unwrap(), "old");
    assert_eq!(fs::read_to_string(scene.at("dir2/file")).unwrap(), "new");
    let run = verb("restore", &scene.snap(), &["--before", "/no/such/path"]).expect(1);
    assert!(run.stderr.contains("knows nothing of /no/such/path"), "{}", run.stderr);
}

#[test]
fn what_was_only_read_is_put_back_by_name_alone() {
    let scene = Scene::new();
    scene.write("read", "input");
    scene.write("written", "old");
    record_with(
        &scene.root(),
        &scene.snap(),
        |path| path.ends_with(b"/read"),
        || scene.write("written", "new"),
    );
    scene.write("read", "edited since");
    let now = scan(&scene.root());
    verb("restore", &scene.snap(), &["--before"]).expect(0);
    let path = scene.at("read").into_os_string().into_encoded_bytes();
    assert_eq!(scan(&scene.root())[&path].present, now[&path].present);
    let named = scene.at("read");
    verb("restore", &scene.snap(), &["--before", named.to_str().unwrap()]).expect(1);
    verb("restore", &scene.snap(), &["--before", "--force", named.to_str().unwrap()]).expect(0);
    assert_eq!(fs::read_to_string(scene.at("read")).unwrap(), "input");
}

#[test]
fn content_that_can_not_be_had_is_named_and_nothing_changes() {
    use agent_snapshot::snapshot::{BlobOmitted, State};
    let scene = Scene::new();
    scene.write("a", "old");
    scene.write("b", "old b");
    let before = scan(&scene.root());
    scene.write("a", "new");
    scene.write("b", "new b");
    let after = scan(&scene.root());
    commit(&scene.snap(), &header(), |writer| {
        let mut records = records(writer, &before, &after, |_| false);
        for record in &mut records {
            if let (true, State::Present(present)) = (record.path.ends_with(b"/b"), &mut record.before) {
                (present.blob, present.blob_omitted) = (None, Some(BlobOmitted::NoSpace));
            }
        }
        records
    });
    for flags in [&["--before"][..], &["--before", "--force"]] {
        let run = verb("restore", &scene.snap(), flags).expect(1);
        assert!(run.stderr.contains("/tree/b: there was no space for it"), "{}", run.stderr);
        assert_eq!(fs::read_to_string(scene.at("a")).unwrap(), "new");
    }
    verb("restore", &scene.snap(), &[]).expect(0);
}

#[test]
fn another_machine_or_user_needs_foreign() {
    let scene = Scene::new();
    scene.write("tool", "old");
    let before = scan(&scene.root());
    scene.write("tool", "new");
    let after = scan(&scene.root());
    let mut header = header();
    header.host.machine = "sha256:elsewhere".to_owned();
    commit(&scene.snap(), &header, |writer| {
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
    let run = verb("restore", &scene.snap(), &["--before"]).expect(3);
    assert!(run.stderr.contains("on another machine"), "{}", run.stderr);
    assert_eq!(fs::read_to_string(scene.at("tool")).unwrap(), "new");
    verb("restore", &scene.snap(), &["--before", "--foreign"]).expect(0);
    let tool = fs::metadata(scene.at("tool")).unwrap();
    assert_eq!((tool.mode() & 0o7777, tool.uid()), (0o755, nix::unistd::geteuid().as_raw()));
    assert_eq!(fs::read_to_string(scene.at("tool")).unwrap(), "old");
    let run = verb("restore", &scene.snap(), &["--before", "--foreign"]).expect(0);
    assert!(run.stdout.starts_with("nothing to do"), "{}", run.stdout);
}

#[test]
fn json_names_every_change() {
    let scene = Scene::new();
    scene.write("edited", "old");
    scene.record(|| {
        scene.write("edited", "new");
        scene.write("made", "y");
    });
    let run = verb("restore", &scene.snap(), &["--before", "--json"]).expect(0);
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
    assert!(report["rescues"][0]["path"].as_str().unwrap().ends_with("snap-rescue-1"));
}

#[test]
fn a_missing_parent_is_made_again() {
    let scene = Scene::new();
    scene.write("dir/sub/file", "x");
    scene.record(|| fs::remove_file(scene.at("dir/sub/file")).unwrap());
    fs::remove_dir_all(scene.at("dir")).unwrap();
    verb("restore", &scene.snap(), &["--before"]).expect(0);
    assert_eq!(fs::read_to_string(scene.at("dir/sub/file")).unwrap(), "x");
    let rescue = scene.dir().join("snap-rescue-1");
    verb("restore", &rescue, &["--before"]).expect(0);
    assert!(!scene.at("dir").exists());
}

#[test]
fn a_link_in_the_place_of_a_parent_is_not_followed() {
    let scene = Scene::new();
    scene.write("dir/file", "x");
    scene.record(|| fs::remove_file(scene.at("dir/file")).unwrap());
    fs::remove_dir_all(scene.at("dir")).unwrap();
    fs::create_dir(scene.dir().join("outside")).unwrap();
    symlink(scene.dir().join("outside"), scene.at("dir")).unwrap();
    let run = verb("restore", &scene.snap(), &["--before", "--force"]).expect(1);
    assert!(run.stderr.contains("in the place of a directory above it"), "{}", run.stderr);
    assert_eq!(fs::read_dir(scene.dir().join("outside")).unwrap().count(), 0);
}

#[test]
fn a_change_of_metadata_alone_needs_no_content() {
    use agent_snapshot::snapshot::{Operation, State};
    let scene = Scene::new();
    scene.write("modes", "never looked at");
    scene.write("times", "never looked at");
    let before = scan(&scene.root());
    fs::set_permissions(scene.at("modes"), fs::Permissions::from_mode(0o755)).unwrap();
    fs::File::open(scene.at("times")).unwrap().set_modified(std::time::UNIX_EPOCH).unwrap();
    let after = scan(&scene.root());
    commit(&scene.snap(), &header(), |writer| {
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
    states.there_and_back(&scene);
    // An edit since is not of the command's doing and stays.
    scene.write("modes", "edited");
    verb("restore", &scene.snap(), &[]).expect(0);
    assert_eq!(fs::read_to_string(scene.at("modes")).unwrap(), "edited");
    assert_eq!(fs::metadata(scene.at("modes")).unwrap().mode() & 0o777, 0o755);
}

#[test]
fn a_snapshot_that_is_in_use_is_not_restored() {
    let scene = Scene::new();
    scene.write("file", "old");
    scene.record(|| scene.write("file", "new"));
    let user = fs::File::open(scene.snap()).unwrap();
    rustix::fs::flock(&user, rustix::fs::FlockOperation::LockExclusive).unwrap();
    let run = verb("restore", &scene.snap(), &["--before"]).expect(125);
    assert!(run.stderr.contains("is being used by another restore or recording"), "{}", run.stderr);
    drop(user);
    verb("restore", &scene.snap(), &["--before"]).expect(0);
}

/// Makes a bundle of a change in which `name` was a file on a descriptor from before the launch.
fn inherited(scene: &Scene, name: &str, change: impl FnOnce(&mut FileRecord)) {
    let before = scan(&scene.root());
    scene.write("other", "made");
    fs::rename(scene.at("list"), scene.at("moved")).unwrap();
    scene.write("log", "old and more");
    let after = scan(&scene.root());
    commit(&scene.snap(), &header(), |writer| {
        let mut records = records(writer, &before, &after, |_| false);
        let path = scene.at(name).into_os_string().into_encoded_bytes();
        let record = records.iter_mut().find(|record| record.path == path).unwrap();
        record.inherited = true;
        change(record);
        records
    });
}

#[test]
fn an_inherited_file_is_a_target_where_its_name_was_changed() {
    let scene = Scene::new();
    scene.write("list", "precious");
    scene.write("log", "old");
    inherited(&scene, "list", |record| record.operations = Operation::Delete.into());
    verb("restore", &scene.snap(), &["--before"]).expect(0);
    assert_eq!(fs::read_to_string(scene.at("list")).unwrap(), "precious");
    assert_eq!(fs::read_to_string(scene.at("log")).unwrap(), "old");
    assert!(!scene.at("moved").exists());

    let scene = Scene::new();
    scene.write("list", "precious");
    scene.write("log", "old");
    inherited(&scene, "log", |record| record.operations = Operation::Write.into());
    verb("restore", &scene.snap(), &["--before"]).expect(0);
    assert_eq!(fs::read_to_string(scene.at("log")).unwrap(), "old and more");
    verb("verify", &scene.snap(), &[]).expect(1);
    verb("restore", &scene.snap(), &[]).expect(0);
    scene.write("log", "old and more and more");
    let run = verb("verify", &scene.snap(), &[]).expect(0);
    assert!(run.stdout.contains("1 path that output was sent to left out"), "{run:#?}");
    scene.write("log", "old and more");
    verb("restore", &scene.snap(), &["--before", scene.at("log").to_str().unwrap()]).expect(0);
    assert_eq!(fs::read_to_string(scene.at("log")).unwrap(), "old");
}
