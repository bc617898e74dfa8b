//! Directories: their entries, and paths through removed ones.

use std::os::fd::{AsFd as _, OwnedFd};
use std::process::Command;
use std::{fs, io};

use agent_snapshot::snapshot::live::digest_of_entries;
use agent_snapshot::snapshot::{Digest, Operation, WarningKind};

use crate::support::{MECHANISMS, Place, assert_same, describe, lost, scan};

#[test]
fn parent_of_a_removed_directory_keeps_its_name() {
    let place = Place::new();
    fs::create_dir(place.at("d")).unwrap();
    let script =
        "cd d && rmdir ../d && echo 1 > ../one && echo 2 > /proc/self/cwd/../two && echo 3 > ..//three";
    let snapshot = place.record(script);
    for name in ["one", "two", "three"] {
        assert!(place.file(&snapshot, name).after.present().is_some());
    }
    assert_eq!(lost(&snapshot), []);
}

#[test]
fn directory_listed_after_a_change_has_its_former_entries() {
    let place = Place::new();
    fs::create_dir(place.at("d")).unwrap();
    for name in ["kept", "moved", "removed", "again"] {
        fs::write(place.at("d").join(name), "").unwrap();
    }
    let snapshot = place.record("cd d; touch new; rm removed again; mv moved ../elsewhere; touch again; ls");
    let entries = ["again", "kept", "moved", "removed"].map(|name| name.as_bytes().to_vec());
    let digest = digest_of_entries(&entries);
    let before = place.file(&snapshot, "d").before.clone();
    assert_eq!(before.present().unwrap().entries_digest, Some(digest));
}

#[test]
fn directory_used_after_a_change_in_it_has_its_former_state() {
    for mechanism in MECHANISMS {
        let place = Place::new();
        place.prepare("mkdir -p gone listed closed/sub; echo > gone/f; touch -d 2020-01-01 gone listed closed/sub closed");
        let before = describe(&scan(&place.at("")), |path| path.ends_with(b"ed"));
        let script = "rm gone/f; rmdir gone; echo > listed/new; ls listed; mkdir closed/one closed/two;
            rmdir closed/sub; chmod 700 closed";
        let mut command = place.recorder(mechanism);
        assert!(command.args(["sh", "-c", script]).output().unwrap().status.success());
        let snapshot = place.snapshot();
        for (name, links) in [("gone", 2), ("listed", 2), ("closed", 3)] {
            let before = place.file(&snapshot, name).before.present().unwrap().clone();
            assert_eq!((before.mtime, before.nlink), (1_577_836_800, links), "{mechanism}: {name}");
        }
        place.verb("restore", &["--before"]).expect(0);
        assert_same(&describe(&scan(&place.at("")), |path| path.ends_with(b"ed")), &before, mechanism);
    }
}

/// The digest of the entries of `directory` before a recording of `command`.
fn entries_before(place: &Place, mut command: Command, directory: &str) -> Option<Digest> {
    assert!(command.status().unwrap().success());
    let snapshot = place.snapshot();
    let file = place.file(&snapshot, directory);
    assert!(file.operations.contains(Operation::Directory), "{file:?}");
    file.before.present().unwrap().entries_digest
}

#[test]
fn directory_that_was_opened_before_the_launch_counts_as_listed() {
    let place = Place::new();
    fs::create_dir(place.at("d")).unwrap();
    place.write("d/f", "");
    let mut command = place.recording();
    let list = "import os; assert os.listdir(3) == ['f']; os.unlink('f', dir_fd=3)";
    command.args(["sh", "-c", "exec python3 -c \"$0\" 3<&0 < /dev/null", list]);
    command.stdin(fs::File::open(place.at("d")).unwrap());
    assert_eq!(entries_before(&place, command, "d"), Some(digest_of_entries(&[b"f".to_vec()])));
}

#[test]
fn directory_that_was_received_counts_as_listed() {
    let place = Place::new();
    fs::create_dir(place.at("d")).unwrap();
    place.write("d/f", "");
    let (ours, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
    let directory = fs::File::open(place.at("d")).unwrap();
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut message = rustix::net::SendAncillaryBuffer::new(&mut space);
    let descriptors = [directory.as_fd()];
    assert!(message.push(rustix::net::SendAncillaryMessage::ScmRights(&descriptors)));
    let byte = [io::IoSlice::new(b"x")];
    rustix::net::sendmsg(&ours, &byte, &mut message, rustix::net::SendFlags::empty()).unwrap();
    let mut command = place.recording();
    let script = "import os, socket\n_, fds, _, _ = socket.recv_fds(socket.socket(fileno=0), 1, 1)\n\
                  assert os.listdir(fds[0]) == ['f']";
    command.args(["python3", "-c", script]).stdin(OwnedFd::from(theirs));
    assert_eq!(entries_before(&place, command, "d"), Some(digest_of_entries(&[b"f".to_vec()])));
}

#[test]
fn dotdot_below_a_removed_directory_resolves_to_nothing() {
    for end in ["", "; : > d"] {
        for seen in ["", "test -e d/../f; "] {
            let place = Place::new();
            place.write("f", "f");
            let script = format!("mkdir d; : > d/x; {seen}rm d/x; rmdir d{end}; cat d/../f");
            assert!(!place.record_with(&[], &script).status.success());
            let snapshot = place.snapshot();
            let recorded = place.recorded(&snapshot);
            let expected = if seen.is_empty() { &[][..] } else { &["f existence"] };
            assert_eq!(recorded.iter().filter(|name| name.starts_with("f ")).collect::<Vec<_>>(), expected);
            assert!(recorded.iter().any(|name| name.starts_with("d ")), "{recorded:?}");
        }
    }
}

#[test]
fn directory_too_deep_to_name_is_reported() {
    let place = Place::new();
    let script =
        "n=$(printf '%0200d' 0); i=0; while [ $i -lt 25 ]; do mkdir $n && cd -P $n && i=$((i + 1)); done
        echo x > f; cat f";
    let (output, snapshot) = place.record_any(script);
    assert_eq!(String::from_utf8_lossy(&output.stdout), "x\n");
    assert_eq!(lost(&snapshot), [WarningKind::UnreadableTracee]);
}
