//! Names, modes and places that resist, and attributes beyond the mode.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, PermissionsExt as _, chown, symlink};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, UNIX_EPOCH};

use agent_snapshot::snapshot::State;

use crate::support::*;

fn chmod(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
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
fn read_only_directories_are_opened_and_closed_again() {
    let place = Place::new();
    place.write("shut/file", "old");
    place.write("shut/deep/gone", "old");
    for dir in ["shut/deep", "shut"] {
        chmod(&place.at(dir), 0o555);
    }
    let before = scan(&place.work);
    for dir in ["shut", "shut/deep"] {
        chmod(&place.at(dir), 0o755);
    }
    place.write("shut/file", "new");
    place.write("shut/made", "new");
    fs::remove_file(place.at("shut/deep/gone")).unwrap();
    for dir in ["shut/deep", "shut"] {
        chmod(&place.at(dir), 0o555);
    }
    let after = scan(&place.work);
    commit(&place.out, &header(), |writer| records(writer, &before, &after, |_| false));
    let states = States { before, after };
    states.there_and_back(&place);
    chmod(&place.at("shut"), 0o755);
    chmod(&place.at("shut/deep"), 0o755);
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
    chmod(&place.at("dir"), 0);
    place.verb("restore", &["--before"]).expect(0);
    assert_eq!(fs::metadata(place.at("dir")).unwrap().mode() & 0o7777, 0o755);
    assert_eq!(fs::read_to_string(place.at("dir/sub/file")).unwrap(), "old");
    assert!(!place.at("dir/made").exists());
    place.verb("restore", &[]).expect(0);
    assert_eq!(fs::metadata(place.at("dir")).unwrap().mode() & 0o7777, 0);
    place.verb("restore", &[]).expect(0);
    assert_eq!(fs::metadata(place.at("dir")).unwrap().mode() & 0o7777, 0);
    chmod(&place.at("dir"), 0o755);
    assert_eq!(fs::read_to_string(place.at("dir/sub/file")).unwrap(), "new");
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
    chmod(&place.at("dir"), 0);
    place.verb("restore", &["--before"]).expect(1);
    assert_eq!(fs::metadata(place.at("dir")).unwrap().mode() & 0o7777, 0);
    chmod(&place.at("dir"), 0o755);
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
    chmod(&place.at("file"), 0);
    place.verb("restore", &["--before"]).expect(0);
    assert_eq!(fs::read_to_string(place.at("file")).unwrap(), "old");
    place.verb_on("restore", &place.rescue(1), &["--before"]).expect(0);
    assert_eq!(fs::metadata(place.at("file")).unwrap().mode() & 0o7777, 0);
    chmod(&place.at("file"), 0o600);
    assert_eq!(fs::read_to_string(place.at("file")).unwrap(), "new");
}

#[test]
fn times_are_restored_to_the_nanosecond() {
    let place = Place::new();
    let set = |name: &str, time| fs::File::open(place.at(name)).unwrap().set_modified(time).unwrap();
    place.write("new", "1");
    place.write("old", "1");
    set("new", UNIX_EPOCH + Duration::new(4_000_000_000, 999_999_999));
    set("old", UNIX_EPOCH - Duration::new(1_000_000, 1));
    let states = States::of(&place, || {
        place.write("new", "2");
        place.write("old", "2");
    });
    states.there_and_back(&place);
}

#[test]
fn set_id_bits_and_the_sticky_bit_are_restored() {
    let place = Place::new();
    for (name, mode) in [("suid", 0o4755), ("sgid", 0o2755), ("both", 0o6711)] {
        place.write(name, "x");
        chmod(&place.at(name), mode);
    }
    fs::create_dir(place.at("sticky")).unwrap();
    chmod(&place.at("sticky"), 0o1777);
    let states = States::of(&place, || {
        // To write to a file takes its set-ID bits from it.
        place.write("suid", "y");
        chmod(&place.at("suid"), 0o755);
        fs::remove_file(place.at("sgid")).unwrap();
        chmod(&place.at("both"), 0o600);
        chmod(&place.at("sticky"), 0o755);
    });
    states.there_and_back(&place);
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
fn xattrs_and_access_control_lists_are_restored() {
    let place = Place::new();
    let nobody = u32::MAX;
    let list =
        access_list(&[(1, 6, nobody), (2, 4, 1234), (4, 4, nobody), (0x10, 4, nobody), (0x20, 0, nobody)]);
    for name in ["changed", "removed", "replaced", "listed", "dir/inherits"] {
        place.write(name, "x");
    }
    for name in ["changed", "removed", "replaced"] {
        if set_xattr(&place.at(name), "user.mark", b"one").is_err() {
            return println!("skipped: the file system has no extended attributes");
        }
    }
    if set_xattr(&place.at("listed"), "system.posix_acl_access", &list).is_err() {
        return println!("skipped: the file system has no access control lists");
    }
    let states = States::of(&place, || {
        set_xattr(&place.at("changed"), "user.mark", b"two").unwrap();
        rustix::fs::removexattr(place.at("removed"), "user.mark").unwrap();
        fs::remove_file(place.at("replaced")).unwrap();
        place.write("replaced", "y");
        rustix::fs::removexattr(place.at("listed"), "system.posix_acl_access").unwrap();
        set_xattr(&place.at("dir"), "system.posix_acl_default", &list).unwrap();
        fs::remove_file(place.at("dir/inherits")).unwrap();
    });
    states.there_and_back(&place);
}

#[test]
fn xattrs_changed_since_stay() {
    let place = Place::new();
    place.write("file", "x");
    if set_xattr(&place.at("file"), "user.mark", b"one").is_err() {
        return println!("skipped: the file system has no extended attributes");
    }
    let states = States::of(&place, || {
        set_xattr(&place.at("file"), "user.mark", b"two").unwrap();
        chmod(&place.at("file"), 0o600);
    });
    set_xattr(&place.at("file"), "user.mark", b"mine").unwrap();
    set_xattr(&place.at("file"), "user.other", b"mine").unwrap();
    place.verb("restore", &["--before"]).expect(0);
    let path = place.at("file").into_os_string().into_encoded_bytes();
    let now = &scan(&place.work)[&path].present;
    assert_eq!(now.mode, states.before[&path].present.mode);
    assert_eq!(now.xattrs[b"user.mark".as_slice()], b"mine");
    assert_eq!(now.xattrs[b"user.other".as_slice()], b"mine");
}

#[test]
fn owners_capabilities_and_devices_are_restored() {
    if !needs_root("to change owners") {
        return;
    }
    let place = Place::new();
    for name in ["owned", "replaced", "capable"] {
        place.write(name, "x");
        chown(place.at(name), Some(1234), Some(4321)).unwrap();
    }
    symlink("owned", place.at("link")).unwrap();
    std::os::unix::fs::lchown(place.at("link"), Some(1234), Some(4321)).unwrap();
    let mut capability = 0x0200_0000_u32.to_le_bytes().to_vec();
    capability.extend_from_slice(&[0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    let has_capability = set_xattr(&place.at("capable"), "security.capability", &capability).is_ok();
    let device = rustix::fs::makedev(1, 3);
    let node = |name: &str| {
        let kind = rustix::fs::FileType::CharacterDevice;
        let mode = rustix::fs::Mode::RUSR;
        rustix::fs::mknodat(rustix::fs::CWD, place.at(name), kind, mode, device)
    };
    let has_device = node("device").is_ok();
    chmod(&place.at("replaced"), 0o6755);
    let states = States::of(&place, || {
        chown(place.at("owned"), Some(0), Some(0)).unwrap();
        fs::remove_file(place.at("replaced")).unwrap();
        fs::remove_file(place.at("link")).unwrap();
        if has_capability {
            rustix::fs::removexattr(place.at("capable"), "security.capability").unwrap();
        }
        if has_device {
            fs::remove_file(place.at("device")).unwrap();
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
fn file_with_unrecorded_names_is_written_in_place() {
    let place = Place::new();
    let store = place.base().join("store");
    fs::write(&store, "old").unwrap();
    fs::hard_link(&store, place.at("module")).unwrap();
    let states = States::of(&place, || place.write("module", "new and longer"));
    let inode = fs::metadata(&store).unwrap().ino();
    place.verb("restore", &["--before"]).expect(0);
    states.expect(&place, true);
    assert_eq!(fs::read_to_string(&store).unwrap(), "old");
    assert_eq!(fs::metadata(place.at("module")).unwrap().ino(), inode);
    states.there_and_back(&place);
    assert_eq!(fs::metadata(place.at("module")).unwrap().ino(), inode);

    // A tool that replaces the file must not reach the store.
    let place = Place::new();
    let store = place.base().join("store");
    fs::write(&store, "old").unwrap();
    fs::hard_link(&store, place.at("module")).unwrap();
    let states = States::of(&place, || {
        fs::remove_file(place.at("module")).unwrap();
        place.write("module", "new");
    });
    states.there_and_back(&place);
    assert_eq!(fs::read_to_string(&store).unwrap(), "old");
}

#[test]
fn replacing_a_hard_link_leaves_its_other_names_alone() {
    let place = Place::new();
    let store = place.base().join("store");
    fs::write(&store, "stored").unwrap();
    place.write("module", "mine");
    let states = States::of(&place, || {
        fs::remove_file(place.at("module")).unwrap();
        fs::hard_link(&store, place.at("module")).unwrap();
    });
    states.there_and_back(&place);
    assert_eq!(fs::read_to_string(&store).unwrap(), "stored");
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
        return println!("skipped: the file system has no immutable files");
    }
    let run = place.verb("restore", &["--before"]);
    chattr("-i", "file");
    chattr("-i", "dir");
    let run = run.expect(1);
    assert!(run.stderr.contains("/work/file: it is immutable"), "{}", run.stderr);
    assert!(run.stderr.contains("/work/dir/file: the directory is immutable"), "{}", run.stderr);
    assert_eq!(fs::read_to_string(place.at("plain")).unwrap(), "new");
}

/// Sets or clears flags of a path of the tree; false where that is impossible.
fn chattr(place: &Place, flags: &str, name: &str) -> bool {
    let output = Command::new("chattr").arg(flags).arg(place.at(name)).output();
    output.is_ok_and(|output| output.status.success())
}

#[test]
fn inode_flags_are_restored() {
    if !needs_root("chattr +i") {
        return;
    }
    let place = Place::new();
    for name in ["log", "plain", "gone", "dir/file", "dir/removed", "shut/file"] {
        place.write(name, "old");
    }
    if !chattr(&place, "+ad", "log") {
        return println!("skipped: the file system has no inode flags");
    }
    let unlock = || ["log", "plain", "gone", "made", "dir", "shut"].map(|name| chattr(&place, "-iad", name));
    chattr(&place, "+i", "gone");
    chattr(&place, "+i", "shut");
    let states = States::of(&place, || {
        unlock();
        place.write("log", "cut");
        fs::remove_file(place.at("gone")).unwrap();
        place.write("plain", "now immutable");
        place.write("made", "new and immutable");
        place.write("dir/file", "new");
        fs::remove_file(place.at("dir/removed")).unwrap();
        place.write("shut/made", "new");
        for (flags, name) in [("+i", "plain"), ("+i", "made"), ("+a", "dir")] {
            assert!(chattr(&place, flags, name));
        }
    });
    let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| states.there_and_back(&place)));
    unlock();
    done.unwrap();
}

#[test]
fn trusted_xattrs_of_symlinks_are_restored() {
    if !needs_root("trusted attributes") {
        return;
    }
    let place = Place::new();
    let set = |name: &str, value: &[u8]| {
        rustix::fs::lsetxattr(place.at(name), "trusted.mark", value, rustix::fs::XattrFlags::empty())
    };
    symlink("nowhere", place.at("changed")).unwrap();
    symlink("nowhere", place.at("removed")).unwrap();
    if set("changed", b"one").is_err() {
        return println!("skipped: the file system has no such attributes");
    }
    set("removed", b"one").unwrap();
    let states = States::of(&place, || {
        set("changed", b"two").unwrap();
        fs::remove_file(place.at("removed")).unwrap();
    });
    states.there_and_back(&place);
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
fn mount_point_is_written_in_place() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    place.write("file", "old");
    place.write("removed", "old");
    place.make_bundle(|| place.write("file", "new!"));
    fs::write(place.base().join("source"), "new!").unwrap();
    let script = r#"set -e; mount --bind "$1/source" "$1/work/file"; "$2" restore "$1/out" --before"#;
    let run = place.run_unshared(script).expect(0);
    assert!(run.stdout.starts_with("write "), "{}", run.stdout);
    assert_eq!(fs::read_to_string(place.base().join("source")).unwrap(), "old");
    assert_eq!(fs::read_to_string(place.at("file")).unwrap(), "new!");
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
    }];
    commit(&place.out, &header, |writer| records(writer, &before, &after, |_| false));
    let run = place.verb("restore", &["--before"]).expect(0);
    let told = "/repo/.git was changed by the command and not recorded (.git): it is not brought back";
    assert!(run.stderr.contains(told), "{}", run.stderr);
}

#[test]
fn added_xattr_of_a_file_with_other_names_is_removed() {
    let place = Place::new();
    fs::write(place.at("one"), "old").unwrap();
    fs::hard_link(place.at("one"), place.at("two")).unwrap();
    fs::hard_link(place.at("one"), place.base().join("store")).unwrap();
    if set_xattr(&place.at("one"), "user.kept", b"x").is_err() {
        return println!("skipped: the file system has no extended attributes");
    }
    let states = States::of(&place, || {
        place.write("one", "new");
        set_xattr(&place.at("one"), "user.mark", b"x").unwrap();
    });
    states.there_and_back(&place);
    set_xattr(&place.at("one"), "user.mine", b"x").unwrap();
    place.verb("restore", &[]).expect(0);
    place.verb("restore", &["--before"]).expect(0);
    let path = place.at("two").into_os_string().into_encoded_bytes();
    let now = scan(&place.work)[&path].present.xattrs.clone();
    let names: Vec<_> = now.into_keys().collect();
    assert_eq!(names, [b"user.kept".to_vec(), b"user.mine".to_vec()]);
}
