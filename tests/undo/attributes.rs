//! Names, modes and places that resist, and attributes beyond the mode.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, chown, symlink};
use std::process::Command;
use std::time::{Duration, UNIX_EPOCH};

use super::commands::record_keeping;
use crate::support::*;

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
        chmod(place.at(name), mode);
    }
    fs::create_dir(place.at("sticky")).unwrap();
    chmod(place.at("sticky"), 0o1777);
    let states = States::of(&place, || {
        // To write to a file takes its set-ID bits from it.
        place.write("suid", "y");
        chmod(place.at("suid"), 0o755);
        fs::remove_file(place.at("sgid")).unwrap();
        chmod(place.at("both"), 0o600);
        chmod(place.at("sticky"), 0o755);
    });
    states.there_and_back(&place);
}

/// An access control list (linux/posix_acl_xattr.h) that gives user 1234 what the mask lets through.
pub fn access_list(tags: &[(u16, u16, u32)]) -> Vec<u8> {
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
        if set_xattr(place.at(name), "user.mark", b"one").is_err() {
            return println!("skipped: the filesystem has no extended attributes");
        }
    }
    if set_xattr(place.at("listed"), "system.posix_acl_access", &list).is_err() {
        return println!("skipped: the filesystem has no access control lists");
    }
    let states = States::of(&place, || {
        set_xattr(place.at("changed"), "user.mark", b"two").unwrap();
        rustix::fs::removexattr(place.at("removed"), "user.mark").unwrap();
        fs::remove_file(place.at("replaced")).unwrap();
        place.write("replaced", "y");
        rustix::fs::removexattr(place.at("listed"), "system.posix_acl_access").unwrap();
        set_xattr(place.at("dir"), "system.posix_acl_default", &list).unwrap();
        fs::remove_file(place.at("dir/inherits")).unwrap();
    });
    states.there_and_back(&place);
}

#[test]
fn attributes_changed_since_stay() {
    type Change = fn(&Place);
    let changes: [(&str, Change); 3] = [
        ("file", |place| {
            set_xattr(place.at("file"), "user.mark", b"two").unwrap();
            chmod(place.at("file"), 0o600);
        }),
        ("file", |place| place.write("file", "y")),
        ("renamed", |place| fs::rename(place.at("file"), place.at("renamed")).unwrap()),
    ];
    for (number, (left, change)) in changes.into_iter().enumerate() {
        let place = Place::new();
        place.write("file", "x");
        place.hard_link("file", "../link");
        if set_xattr(place.at("file"), "user.mark", b"one").is_err() {
            return println!("skipped: the filesystem has no extended attributes");
        }
        let states = States::of(&place, || change(&place));
        set_xattr(place.at(left), "user.mark", b"mine").unwrap();
        set_xattr(place.at(left), "user.other", b"mine").unwrap();
        if is_root() {
            chown(place.at(left), Some(1234), Some(4321)).unwrap();
        }
        let expect = |name: &str, state: &Tree| {
            let path = place.at(name).into_os_string().into_encoded_bytes();
            let (now, then) = (&scan(&place.work)[&path], &state[&path]);
            assert_eq!((now.present.mode, &now.content), (then.present.mode, &then.content), "{number}");
            for name in ["user.mark", "user.other"] {
                assert_eq!(now.present.xattrs.get(name.as_bytes()).unwrap(), b"mine", "{number}: {name}");
            }
            let owner = if is_root() { (1234, 4321) } else { (then.present.uid, then.present.gid) };
            assert_eq!((now.present.uid, now.present.gid), owner, "{number}");
            assert_eq!(now.present.ino, place.inode("../link"), "{number}");
        };
        place.verb("restore", &["--before"]).expect(0);
        expect("file", &states.before);
        place.verb_on("restore", &place.rescue(1), &["--before"]).expect(0);
        expect(left, &states.after);
    }
}

#[test]
fn what_the_command_gave_goes_although_somebody_has_given_more() {
    if !needs_root("to change owners") {
        return;
    }
    let place = Place::new();
    let nobody = u32::MAX;
    let list = |users: &[u32]| {
        let users = users.iter().map(|user| (2, 4, *user));
        let tags: Vec<_> =
            [(1, 6, nobody)].into_iter().chain(users).chain([(4, 4, nobody), (0x10, 4, nobody)]).collect();
        access_list(&[tags, vec![(0x20, 4, nobody)]].concat())
    };
    let acl = "system.posix_acl_access";
    place.write("file", "x");
    if set_xattr(place.at("file"), acl, &list(&[1])).is_err() {
        return println!("skipped: the filesystem has no access control lists");
    }
    let states = States::of(&place, || {
        place.write("file", "y");
        chown(place.at("file"), Some(1234), None).unwrap();
        set_xattr(place.at("file"), acl, &list(&[1, 2])).unwrap();
    });
    chown(place.at("file"), None, Some(4321)).unwrap();
    set_xattr(place.at("file"), acl, &list(&[1, 2, 3])).unwrap();
    place.verb("restore", &["--before"]).expect(0);
    let path = place.at("file").into_os_string().into_encoded_bytes();
    let (now, before) = (&scan(&place.work)[&path], &states.before[&path]);
    assert_eq!((now.present.uid, now.present.gid), (0, 4321));
    assert_eq!((&now.present.xattrs, &now.content), (&before.present.xattrs, &before.content));
}

#[test]
fn owner_goes_back_although_somebody_has_changed_the_group() {
    if !needs_root("to change owners") {
        return;
    }
    // A set-ID program stays as it is.
    for (mode, back) in [(0o644, (0, 4321)), (0o4755, (1234, 4321))] {
        let place = Place::new();
        place.write("file", "x");
        chmod(place.at("file"), mode);
        record_keeping(&place, "undo", &format!("chown 1234 file; chmod {mode:o} file"));
        chown(place.at("file"), None, Some(4321)).unwrap();
        chmod(place.at("file"), mode);
        let owner = || fs::metadata(place.at("file")).map(|now| (now.uid(), now.gid())).unwrap();
        place.verb("restore", &["--before"]).expect(0);
        assert_eq!(owner(), back, "{mode:o}");
        if back.0 == 0 {
            place.verb_on("restore", &place.rescue(1), &["--before"]).expect(0);
        }
        assert_eq!(owner(), (1234, 4321), "{mode:o}");
    }
}

#[test]
fn attributes_of_another_file_do_not_come_with_its_path() {
    if !needs_root("to change owners") {
        return;
    }
    for change in [
        "echo new > n; mv n file",
        "mv other t; ln -f t file; mv t other",
        "mv file t; mv other file; mv t other",
        "mv file file.1; echo new > file",
    ] {
        let place = Place::new();
        for name in ["file", "other"] {
            place.write(name, name);
            fs::hard_link(place.at(name), place.base().join(name)).unwrap();
        }
        chmod(place.at("file"), 0o4755);
        let before = (describe_recorded(&scan(&place.work)), place.inode("file"));
        record_keeping(&place, "undo", change);
        if set_xattr(place.at("file"), "user.mark", b"mine").is_err() {
            return println!("skipped: the filesystem has no extended attributes");
        }
        chown(place.at("file"), Some(1234), Some(4321)).unwrap();
        place.verb("restore", &["--before"]).expect(0);
        let mut now = scan(&place.work);
        if change.contains("other") {
            // That is where the file is.
            let other = now.get_mut(place.at("other").as_os_str().as_encoded_bytes()).unwrap();
            assert_eq!((other.present.uid, other.present.xattrs.len()), (1234, 1), "{change}");
            (other.present.uid, other.present.gid) = (0, 0);
            other.present.xattrs.clear();
        }
        assert_same(&describe_recorded(&now), &before.0, change);
        assert!(!change.contains("file.1") || place.inode("file") == before.1, "{change}");
    }
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
    let has_capability = set_xattr(place.at("capable"), "security.capability", &capability).is_ok();
    let device = rustix::fs::makedev(1, 3);
    let node = |name: &str| {
        let kind = rustix::fs::FileType::CharacterDevice;
        let mode = rustix::fs::Mode::RUSR;
        rustix::fs::mknodat(rustix::fs::CWD, place.at(name), kind, mode, device)
    };
    let has_device = node("device").is_ok();
    chmod(place.at("replaced"), 0o6755);
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

/// Sets or clears flags of a path of the tree; false where that is impossible.
pub fn chattr(place: &Place, flags: &str, name: &str) -> bool {
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
        return println!("skipped: the filesystem has no inode flags");
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
        return println!("skipped: the filesystem has no such attributes");
    }
    set("removed", b"one").unwrap();
    let states = States::of(&place, || {
        set("changed", b"two").unwrap();
        fs::remove_file(place.at("removed")).unwrap();
    });
    states.there_and_back(&place);
}

#[test]
fn capabilities_outlast_a_change_of_the_owner() {
    if !has("setfattr") || !needs_root("capabilities and owners") {
        return;
    }
    const GIVE: &str = "setfattr -n security.capability -v 0x0100000200040000000000000000000000000000 prog";
    for (command, since) in
        [("chown 1000 prog", ""), (&format!("chown 1000 prog; {GIVE}"), ""), ("chown 1000 prog", GIVE)]
    {
        let place = Place::new();
        place.prepare(&format!("cp /bin/true prog; {}", if since.is_empty() { GIVE } else { ":" }));
        place.record(&format!("{command}; :"));
        place.prepare(if since.is_empty() { ":" } else { since });
        place.run(["restore".as_ref(), "--before".as_ref(), place.out.as_os_str()]).expect(0);
        let shown = place.prepare("stat -c %u prog; getfattr -d -m security prog | grep -c capability || :");
        assert_eq!(shown, "0\n1\n", "{command}, then {since}");
    }
}

#[test]
fn flags_of_a_directory_do_not_come_to_what_is_put_back_in_it() {
    let place = Place::new();
    place.prepare("mkdir d; echo f > d/f; echo g > d/g");
    if !chattr(&place, "+d", "d") {
        return;
    }
    place.record("echo new > d/f; rm d/g");
    place.run(["restore".as_ref(), "--before".as_ref(), place.out.as_os_str()]).expect(0);
    let flags = place.prepare("lsattr d | cut -d' ' -f1 | sort -u");
    assert!(!flags.contains('d'), "{flags}");
}
