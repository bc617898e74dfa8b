//! Names, modes and places that resist, and attributes beyond the mode.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, PermissionsExt as _, chown, symlink};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, UNIX_EPOCH};

use agent_snapshot::snapshot::State;

use super::support::*;

fn chmod(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

#[test]
fn odd_names_come_back() {
    let scene = Scene::new();
    let names: [&[u8]; 8] = [b"\n", b"\xff\xfe", b"a\x1b[31m", b" ", b"-rf", b"*?[", b"'\"\\", &[b'n'; 255]];
    for name in names {
        fs::write(scene.root().join(OsStr::from_bytes(name)), "old").unwrap();
    }
    let states = States::of(&scene, || {
        for name in names {
            fs::remove_file(scene.root().join(OsStr::from_bytes(name))).unwrap();
        }
    });
    states.there_and_back(&scene);
}

#[test]
fn directories_that_may_not_be_written_are_opened_for_the_work_and_closed_again() {
    let scene = Scene::new();
    scene.write("shut/file", "old");
    scene.write("shut/deep/gone", "old");
    for dir in ["shut/deep", "shut"] {
        chmod(&scene.at(dir), 0o555);
    }
    let before = scan(&scene.root());
    for dir in ["shut", "shut/deep"] {
        chmod(&scene.at(dir), 0o755);
    }
    scene.write("shut/file", "new");
    scene.write("shut/made", "new");
    fs::remove_file(scene.at("shut/deep/gone")).unwrap();
    for dir in ["shut/deep", "shut"] {
        chmod(&scene.at(dir), 0o555);
    }
    let after = scan(&scene.root());
    commit(&scene.snap(), &header(), |writer| records(writer, &before, &after, |_| false));
    let states = States { before, after };
    states.there_and_back(&scene);
    chmod(&scene.at("shut"), 0o755);
    chmod(&scene.at("shut/deep"), 0o755);
}

#[test]
fn a_directory_that_lost_every_permission_gets_them_back_with_what_is_in_it() {
    let scene = Scene::new();
    scene.write("dir/sub/file", "old");
    let before = scan(&scene.root());
    scene.write("dir/sub/file", "new");
    scene.write("dir/made", "new");
    let after = scan(&scene.root());
    commit(&scene.snap(), &header(), |writer| {
        let mut records = records(writer, &before, &after, |path| path.ends_with(b"/dir"));
        for record in &mut records {
            if let (true, State::Present(present)) = (record.path.ends_with(b"/dir"), &mut record.after) {
                present.mode = libc::S_IFDIR;
                record.operations = agent_snapshot::snapshot::Operation::Metadata.into();
            }
        }
        records
    });
    chmod(&scene.at("dir"), 0);
    verb("restore", &scene.snap(), &["--before"]).expect(0);
    assert_eq!(fs::metadata(scene.at("dir")).unwrap().mode() & 0o7777, 0o755);
    assert_eq!(fs::read_to_string(scene.at("dir/sub/file")).unwrap(), "old");
    assert!(!scene.at("dir/made").exists());
    verb("restore", &scene.snap(), &[]).expect(0);
    assert_eq!(fs::metadata(scene.at("dir")).unwrap().mode() & 0o7777, 0);
    verb("restore", &scene.snap(), &[]).expect(0);
    assert_eq!(fs::metadata(scene.at("dir")).unwrap().mode() & 0o7777, 0);
    chmod(&scene.at("dir"), 0o755);
    assert_eq!(fs::read_to_string(scene.at("dir/sub/file")).unwrap(), "new");
}

#[test]
fn a_refused_restore_leaves_shut_directories_as_they_are() {
    let scene = Scene::new();
    scene.write("dir/file", "old");
    scene.write("other", "old");
    scene.record(|| {
        scene.write("dir/file", "new");
        scene.write("other", "new");
    });
    scene.write("other", "mine");
    chmod(&scene.at("dir"), 0);
    verb("restore", &scene.snap(), &["--before"]).expect(1);
    assert_eq!(fs::metadata(scene.at("dir")).unwrap().mode() & 0o7777, 0);
    chmod(&scene.at("dir"), 0o755);
}

#[test]
fn a_file_that_nobody_may_read_is_kept_and_replaced() {
    let scene = Scene::new();
    scene.write("file", "old");
    let states = States::of(&scene, || scene.write("file", "new"));
    let path = scene.at("file").into_os_string().into_encoded_bytes();
    // As the command left it, it could not be read when the recording ended.
    let mut after = states.after;
    after.get_mut(&path).unwrap().present.mode = libc::S_IFREG;
    commit(&scene.snap(), &header(), |writer| {
        let mut records = records(writer, &states.before, &after, |_| false);
        for record in &mut records {
            if let State::Present(present) = &mut record.after {
                (present.digest, present.blob) = (None, None);
            }
        }
        records
    });
    chmod(&scene.at("file"), 0);
    verb("restore", &scene.snap(), &["--before"]).expect(0);
    assert_eq!(fs::read_to_string(scene.at("file")).unwrap(), "old");
    verb("restore", &scene.dir().join("snap-rescue-1"), &["--before"]).expect(0);
    assert_eq!(fs::metadata(scene.at("file")).unwrap().mode() & 0o7777, 0);
    chmod(&scene.at("file"), 0o600);
    assert_eq!(fs::read_to_string(scene.at("file")).unwrap(), "new");
}

#[test]
fn times_come_back_to_the_nanosecond() {
    let scene = Scene::new();
    let set = |name: &str, time| fs::File::open(scene.at(name)).unwrap().set_modified(time).unwrap();
    scene.write("new", "1");
    scene.write("old", "1");
    set("new", UNIX_EPOCH + Duration::new(4_000_000_000, 999_999_999));
    set("old", UNIX_EPOCH - Duration::new(1_000_000, 1));
    let states = States::of(&scene, || {
        scene.write("new", "2");
        scene.write("old", "2");
    });
    states.there_and_back(&scene);
}

#[test]
fn set_id_bits_and_the_sticky_bit_come_back() {
    let scene = Scene::new();
    for (name, mode) in [("suid", 0o4755), ("sgid", 0o2755), ("both", 0o6711)] {
        scene.write(name, "x");
        chmod(&scene.at(name), mode);
    }
    fs::create_dir(scene.at("sticky")).unwrap();
    chmod(&scene.at("sticky"), 0o1777);
    let states = States::of(&scene, || {
        // To write to a file takes its set-ID bits from it.
        scene.write("suid", "y");
        chmod(&scene.at("suid"), 0o755);
        fs::remove_file(scene.at("sgid")).unwrap();
        chmod(&scene.at("both"), 0o600);
        chmod(&scene.at("sticky"), 0o755);
    });
    states.there_and_back(&scene);
}

fn set_xattr(path: &Path, name: &str, value: &[u8]) -> rustix::io::Result<()> {
    rustix::fs::setxattr(path, name, value, rustix::fs::XattrFlags::empty())
}

/// An access control list (linux/posix_acl_xattr.h) that gives user 1234 what the mask lets through.
fn access_list(tags: &[(u16, u16, u32)]) -> Vec<u8> {
    let mut list = 2_u32.to_le_bytes().to_vec();
    for (tag, permissions, id) in tags {
        list.extend_from_slice(&tag.to_le_bytes());
        list.extend_from_slice(&permissions.to_le_bytes());
        list.extend_from_slice(&id.to_le_bytes());
    }
    list
}

#[test]
fn extended_attributes_and_access_control_lists_come_back() {
    let scene = Scene::new();
    let nobody = u32::MAX;
    let list =
        access_list(&[(1, 6, nobody), (2, 4, 1234), (4, 4, nobody), (0x10, 4, nobody), (0x20, 0, nobody)]);
    for name in ["changed", "removed", "replaced", "listed", "dir/inherits"] {
        scene.write(name, "x");
    }
    for name in ["changed", "removed", "replaced"] {
        if set_xattr(&scene.at(name), "user.mark", b"one").is_err() {
            return println!("skipped: the file system has no extended attributes");
        }
    }
    if set_xattr(&scene.at("listed"), "system.posix_acl_access", &list).is_err() {
        return println!("skipped: the file system has no access control lists");
    }
    let states = States::of(&scene, || {
        set_xattr(&scene.at("changed"), "user.mark", b"two").unwrap();
        rustix::fs::removexattr(scene.at("removed"), "user.mark").unwrap();
        fs::remove_file(scene.at("replaced")).unwrap();
        scene.write("replaced", "y");
        rustix::fs::removexattr(scene.at("listed"), "system.posix_acl_access").unwrap();
        set_xattr(&scene.at("dir"), "system.posix_acl_default", &list).unwrap();
        fs::remove_file(scene.at("dir/inherits")).unwrap();
    });
    states.there_and_back(&scene);
}

#[test]
fn attributes_that_someone_else_changed_since_stay() {
    let scene = Scene::new();
    scene.write("file", "x");
    if set_xattr(&scene.at("file"), "user.mark", b"one").is_err() {
        return println!("skipped: the file system has no extended attributes");
    }
    let states = States::of(&scene, || {
        set_xattr(&scene.at("file"), "user.mark", b"two").unwrap();
        chmod(&scene.at("file"), 0o600);
    });
    set_xattr(&scene.at("file"), "user.mark", b"mine").unwrap();
    set_xattr(&scene.at("file"), "user.other", b"mine").unwrap();
    verb("restore", &scene.snap(), &["--before"]).expect(0);
    let path = scene.at("file").into_os_string().into_encoded_bytes();
    let now = &scan(&scene.root())[&path].present;
    assert_eq!(now.mode, states.before[&path].present.mode);
    assert_eq!(now.xattrs[b"user.mark".as_slice()], b"mine");
    assert_eq!(now.xattrs[b"user.other".as_slice()], b"mine");
}

#[test]
fn owners_capabilities_and_devices_come_back_for_root() {
    if !needs_root("to change owners") {
        return;
    }
    let scene = Scene::new();
    for name in ["owned", "replaced", "capable"] {
        scene.write(name, "x");
        chown(scene.at(name), Some(1234), Some(4321)).unwrap();
    }
    symlink("owned", scene.at("link")).unwrap();
    std::os::unix::fs::lchown(scene.at("link"), Some(1234), Some(4321)).unwrap();
    let mut capability = 0x0200_0000_u32.to_le_bytes().to_vec();
    capability.extend_from_slice(&[0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    let has_capability = set_xattr(&scene.at("capable"), "security.capability", &capability).is_ok();
    let device = rustix::fs::makedev(1, 3);
    let node = |name: &str| {
        let kind = rustix::fs::FileType::CharacterDevice;
        let mode = rustix::fs::Mode::RUSR;
        rustix::fs::mknodat(rustix::fs::CWD, scene.at(name), kind, mode, device)
    };
    let has_device = node("device").is_ok();
    chmod(&scene.at("replaced"), 0o6755);
    let states = States::of(&scene, || {
        chown(scene.at("owned"), Some(0), Some(0)).unwrap();
        fs::remove_file(scene.at("replaced")).unwrap();
        fs::remove_file(scene.at("link")).unwrap();
        if has_capability {
            rustix::fs::removexattr(scene.at("capable"), "security.capability").unwrap();
        }
        if has_device {
            fs::remove_file(scene.at("device")).unwrap();
        }
    });
    states.there_and_back(&scene);
}

#[test]
fn a_socket_that_was_removed_is_made_again() {
    let scene = Scene::new();
    scene.write("file", "x");
    let listener = std::os::unix::net::UnixListener::bind(scene.at("socket")).unwrap();
    scene.record(|| {
        fs::remove_file(scene.at("file")).unwrap();
        fs::remove_file(scene.at("socket")).unwrap();
    });
    verb("restore", &scene.snap(), &["--before"]).expect(0);
    assert!(fs::metadata(scene.at("socket")).unwrap().file_type().is_socket());
    assert!(scene.at("file").exists());
    drop(listener);
}

#[test]
fn a_file_with_names_that_nobody_recorded_is_written_in_place() {
    let scene = Scene::new();
    let store = scene.dir().join("store");
    fs::write(&store, "old").unwrap();
    fs::hard_link(&store, scene.at("module")).unwrap();
    let states = States::of(&scene, || scene.write("module", "new and longer"));
    let inode = fs::metadata(&store).unwrap().ino();
    verb("restore", &scene.snap(), &["--before"]).expect(0);
    states.expect(&scene, true);
    assert_eq!(fs::read_to_string(&store).unwrap(), "old");
    assert_eq!(fs::metadata(scene.at("module")).unwrap().ino(), inode);
    states.there_and_back(&scene);
    assert_eq!(fs::metadata(scene.at("module")).unwrap().ino(), inode);

    // A tool that replaces the file must not reach the store.
    let scene = Scene::new();
    let store = scene.dir().join("store");
    fs::write(&store, "old").unwrap();
    fs::hard_link(&store, scene.at("module")).unwrap();
    let states = States::of(&scene, || {
        fs::remove_file(scene.at("module")).unwrap();
        scene.write("module", "new");
    });
    states.there_and_back(&scene);
    assert_eq!(fs::read_to_string(&store).unwrap(), "old");
}

#[test]
fn a_file_that_became_a_name_of_a_stores_file_leaves_the_store_alone() {
    let scene = Scene::new();
    let store = scene.dir().join("store");
    fs::write(&store, "stored").unwrap();
    scene.write("module", "mine");
    let states = States::of(&scene, || {
        fs::remove_file(scene.at("module")).unwrap();
        fs::hard_link(&store, scene.at("module")).unwrap();
    });
    states.there_and_back(&scene);
    assert_eq!(fs::read_to_string(&store).unwrap(), "stored");
}

#[test]
fn immutable_files_and_directories_are_named_before_anything_changes() {
    if !needs_root("chattr +i") {
        return;
    }
    let scene = Scene::new();
    scene.write("file", "old");
    scene.write("dir/file", "old");
    scene.write("plain", "old");
    scene.record(|| {
        for name in ["file", "dir/file", "plain"] {
            scene.write(name, "new");
        }
    });
    let chattr = |flag: &str, name: &str| {
        Command::new("chattr")
            .arg(flag)
            .arg(scene.at(name))
            .output()
            .is_ok_and(|output| output.status.success())
    };
    if !chattr("+i", "file") || !chattr("+i", "dir") {
        return println!("skipped: the file system has no immutable files");
    }
    let run = verb("restore", &scene.snap(), &["--before"]);
    chattr("-i", "file");
    chattr("-i", "dir");
    let run = run.expect(1);
    assert!(run.stderr.contains("/tree/file: it is immutable"), "{}", run.stderr);
    assert!(run.stderr.contains("/tree/dir/file: the directory is immutable"), "{}", run.stderr);
    assert_eq!(fs::read_to_string(scene.at("plain")).unwrap(), "new");
}

/// Sets or clears flags of a path of the tree; false where that is impossible.
fn chattr(scene: &Scene, flags: &str, name: &str) -> bool {
    let output = Command::new("chattr").arg(flags).arg(scene.at(name)).output();
    output.is_ok_and(|output| output.status.success())
}

#[test]
fn inode_flags_come_back_with_what_they_forbade() {
    if !needs_root("chattr +i") {
        return;
    }
    let scene = Scene::new();
    for name in ["log", "plain", "gone", "dir/file", "dir/removed", "shut/file"] {
        scene.write(name, "old");
    }
    if !chattr(&scene, "+ad", "log") {
        return println!("skipped: the file system has no inode flags");
    }
    let unlock = || ["log", "plain", "gone", "made", "dir", "shut"].map(|name| chattr(&scene, "-iad", name));
    chattr(&scene, "+i", "gone");
    chattr(&scene, "+i", "shut");
    let states = States::of(&scene, || {
        unlock();
        scene.write("log", "cut");
        fs::remove_file(scene.at("gone")).unwrap();
        scene.write("plain", "now immutable");
        scene.write("made", "new and immutable");
        scene.write("dir/file", "new");
        fs::remove_file(scene.at("dir/removed")).unwrap();
        scene.write("shut/made", "new");
        for (flags, name) in [("+i", "plain"), ("+i", "made"), ("+a", "dir")] {
            assert!(chattr(&scene, flags, name));
        }
    });
    let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| states.there_and_back(&scene)));
    unlock();
    done.unwrap();
}

#[test]
fn privileged_attributes_of_symlinks_come_back() {
    if !needs_root("trusted attributes") {
        return;
    }
    let scene = Scene::new();
    let set = |name: &str, value: &[u8]| {
        rustix::fs::lsetxattr(scene.at(name), "trusted.mark", value, rustix::fs::XattrFlags::empty())
    };
    symlink("nowhere", scene.at("changed")).unwrap();
    symlink("nowhere", scene.at("removed")).unwrap();
    if set("changed", b"one").is_err() {
        return println!("skipped: the file system has no such attributes");
    }
    set("removed", b"one").unwrap();
    let states = States::of(&scene, || {
        set("changed", b"two").unwrap();
        fs::remove_file(scene.at("removed")).unwrap();
    });
    states.there_and_back(&scene);
}

#[test]
fn a_directory_of_another_user_is_named_before_anything_changes() {
    if !needs_root("to become an ordinary user") {
        return;
    }
    use std::os::unix::process::CommandExt as _;
    let scene = Scene::new();
    scene.write("theirs/file", "old");
    scene.write("mine/file", "old");
    let before = scan(&scene.root());
    scene.write("theirs/file", "new");
    scene.write("mine/file", "new");
    let after = scan(&scene.root());
    let mut header = header();
    header.uid = 65534;
    commit(&scene.snap(), &header, |writer| records(writer, &before, &after, |_| false));
    let give = |path: &Path| chown(path, Some(65534), Some(65534)).unwrap();
    for path in ["mine", "mine/file", "theirs/file"] {
        give(&scene.at(path));
    }
    give(&scene.dir());
    for entry in fs::read_dir(scene.snap()).unwrap() {
        give(&entry.unwrap().path());
    }
    give(&scene.snap());
    let run = || -> Option<Run> {
        let mut command = agent_snapshot();
        command.uid(65534).gid(65534).arg("restore").arg(scene.snap()).arg("--before");
        Some(command.output().ok()?.into())
    };
    let Some(run) = run() else { return println!("skipped: the binary is in a private directory") };
    let run = run.expect(1);
    assert!(run.stderr.contains("/tree/theirs/file: the directory can't be written"), "{}", run.stderr);
    assert_eq!(fs::read_to_string(scene.at("mine/file")).unwrap(), "new");
}

#[test]
fn a_file_that_something_is_mounted_on_is_written_in_place() {
    if !needs_root("to mount") {
        return;
    }
    let scene = Scene::new();
    scene.write("file", "old");
    scene.write("removed", "old");
    scene.record(|| scene.write("file", "new!"));
    fs::write(scene.dir().join("source"), "new!").unwrap();
    let script = r#"
        mount --bind "$1/source" "$1/tree/file" || exit 77
        "$2" restore "$1/snap" --before
    "#;
    let Some(run) = run_unshared(&scene, script) else { return };
    let run = run.expect(0);
    assert!(run.stdout.starts_with("write "), "{}", run.stdout);
    assert_eq!(fs::read_to_string(scene.dir().join("source")).unwrap(), "old");
    assert_eq!(fs::read_to_string(scene.at("file")).unwrap(), "new!");
}

#[test]
fn what_the_rules_left_out_is_named() {
    use agent_snapshot::snapshot::Suppressed;
    let scene = Scene::new();
    scene.write("file", "old");
    let before = scan(&scene.root());
    scene.write("file", "new");
    let after = scan(&scene.root());
    let mut header = header();
    header.suppressed = vec![Suppressed {
        rule: ".git".to_owned(),
        reads: 1,
        writes: 1,
        changed: vec![b"/repo/.git".to_vec()],
    }];
    commit(&scene.snap(), &header, |writer| records(writer, &before, &after, |_| false));
    let run = verb("restore", &scene.snap(), &["--before"]).expect(0);
    let told = "/repo/.git was changed by the command and not recorded (.git): it is not brought back";
    assert!(run.stderr.contains(told), "{}", run.stderr);
}

#[test]
fn an_attribute_that_the_command_gave_to_a_file_with_other_names_goes_at_once() {
    let scene = Scene::new();
    fs::write(scene.at("one"), "old").unwrap();
    fs::hard_link(scene.at("one"), scene.at("two")).unwrap();
    fs::hard_link(scene.at("one"), scene.dir().join("store")).unwrap();
    if set_xattr(&scene.at("one"), "user.kept", b"x").is_err() {
        return println!("skipped: the file system has no extended attributes");
    }
    let states = States::of(&scene, || {
        scene.write("one", "new");
        set_xattr(&scene.at("one"), "user.mark", b"x").unwrap();
    });
    states.there_and_back(&scene);
    set_xattr(&scene.at("one"), "user.mine", b"x").unwrap();
    verb("restore", &scene.snap(), &[]).expect(0);
    verb("restore", &scene.snap(), &["--before"]).expect(0);
    let path = scene.at("two").into_os_string().into_encoded_bytes();
    let now = scan(&scene.root())[&path].present.xattrs.clone();
    let names: Vec<_> = now.into_keys().collect();
    assert_eq!(names, [b"user.kept".to_vec(), b"user.mine".to_vec()]);
}
