//! Descriptors that come from another process.

use std::fs::{self, File};
use std::io::IoSlice;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::net::UnixDatagram;
use std::path::PathBuf;
use std::process::Child;

use agent_snapshot::snapshot::WarningKind;
use nix::sys::socket::{ControlMessage, MsgFlags, sendmsg};

use super::{is_supported, record_scenario};
use crate::support::{BINARY, Place, SKIPPED, bytes, lost, program, shown};

/// Records a command that receives `file` over a socket and writes to it, or reads where it may not.
fn record_receiver(place: &Place, options: &[&str], file: &File) {
    let (ours, theirs) = UnixDatagram::pair().unwrap();
    send_and_record(place, options, "receive", &ours, theirs, file);
}

/// Sends `file` and records a scenario that receives it as it likes.
fn send_and_record(
    place: &Place,
    options: &[&str],
    scenario: &str,
    ours: &UnixDatagram,
    theirs: UnixDatagram,
    file: &File,
) {
    let (part, file) = ([IoSlice::new(b"x")], [file.as_raw_fd()]);
    let rights = [ControlMessage::ScmRights(&file)];
    sendmsg::<()>(ours.as_raw_fd(), &part, &rights, MsgFlags::empty(), None).unwrap();
    let script = format!("exec {} {scenario} 3<&0 < /dev/null", program("bypass").display());
    let mut command = place.recording();
    let output = command.args(options).args(["sh", "-c", &script]).stdin(OwnedFd::from(theirs)).output();
    let output = output.unwrap();
    assert!(output.status.success(), "{}", shown(&output));
}

#[test]
fn descriptor_received_over_a_socket_is_recorded() {
    for (writes, expected) in [(true, "f write"), (false, "f read")] {
        let place = Place::new();
        place.write("f", "content\n");
        let file = File::options().read(!writes).write(writes).open(place.at("f")).unwrap();
        record_receiver(&place, &[], &file);
        let snapshot = place.snapshot();
        assert_eq!(place.recorded(&snapshot), [expected]);
        // Another process may have written before the recorder saw the descriptor.
        assert_eq!(lost(&snapshot), if writes { vec![WarningKind::LateBeforeState] } else { vec![] });
        assert_eq!(bytes(&snapshot, place.file(&snapshot, "f"), true), b"content\n");
    }
}

#[test]
fn descriptor_that_came_with_a_message_whose_header_is_read_only_is_recorded() {
    for scenario in ["receive_and_fault", "receive_and_fault second"] {
        let place = Place::new();
        place.write("f", "content\n");
        let file = File::options().write(true).open(place.at("f")).unwrap();
        let (ours, theirs) = UnixDatagram::pair().unwrap();
        if scenario.ends_with("second") {
            ours.send(b"x").unwrap();
        }
        send_and_record(&place, &[], scenario, &ours, theirs, &file);
        let snapshot = place.snapshot();
        assert_eq!(place.recorded(&snapshot), ["f write"], "{scenario}");
        assert_eq!(lost(&snapshot), [WarningKind::LateBeforeState], "{scenario}");
        assert_eq!(bytes(&snapshot, place.file(&snapshot, "f"), true), b"content\n", "{scenario}");
        assert_eq!(fs::read(place.at("f")).unwrap(), b"written\n", "{scenario}");
    }
}

#[test]
fn received_descriptor_of_an_ignored_or_special_file_loses_nothing() {
    let elsewhere = Place::new();
    elsewhere.write("f", "");
    let proc = PathBuf::from(format!("/proc/{}/comm", std::process::id()));
    // Where no rule leaves them out, a device has no bytes, and neither has a file of procfs.
    let everything = "[]";
    for (path, list) in [
        (elsewhere.at("f"), None),
        ("/dev/null".into(), None),
        ("/dev/ptmx".into(), None),
        (proc.clone(), None),
        ("/dev/null".into(), Some(everything)),
        (proc, Some(everything)),
    ] {
        let place = Place::new();
        if let Some(list) = list {
            let settings = place.config.join("agent-snapshot");
            fs::create_dir(&settings).unwrap();
            fs::write(settings.join("ignore.json"), list).unwrap();
        }
        let Ok(file) = File::options().write(true).open(&path) else {
            println!("skipped: {} can't be opened", path.display());
            continue;
        };
        record_receiver(&place, &["--strict", "--ignore", elsewhere.work.to_str().unwrap()], &file);
        assert_eq!(lost(&place.snapshot()), [], "{} {list:?}", path.display());
    }
}

#[test]
fn inherited_ring_or_fanotify_group_is_reported() {
    let bypass = program("bypass").display().to_string();
    for (with, kind) in [
        ("with_ring", WarningKind::IoUring),
        ("with_group", WarningKind::UnmodelledSyscall),
        ("with_group_to_receive", WarningKind::UnmodelledSyscall),
    ] {
        let place = Place::new();
        let mut command = place.program(&bypass);
        command.args([with, BINARY, "--snapshot-dir"]).arg(&place.out).args([&bypass, "receive"]);
        let output = command.output().unwrap();
        if output.status.code() == Some(SKIPPED) {
            println!("skipped: {with}: {}", shown(&output));
            continue;
        }
        assert_eq!(lost(&place.snapshot()), [kind], "{with}: {output:?}");
    }
}

/// A process that has `f` as descriptor 9.
fn holder(place: &Place) -> Child {
    place.write("f", "content\n");
    // Any process of this user may take its descriptors, where nothing forbids it.
    let mut holder = place.program("sh");
    let holder = holder.args(["-c", "exec 9>> f; exec sleep 1000"]).spawn().unwrap();
    while fs::read_link(format!("/proc/{}/exe", holder.id())).map_or(true, |exe| !exe.ends_with("sleep")) {
        std::thread::yield_now();
    }
    holder
}

#[test]
fn descriptor_taken_with_pidfd_getfd_is_recorded() {
    let [elsewhere, place] = [Place::new(), Place::new()];
    let mut holders = [holder(&elsewhere), holder(&place)];
    let [unrecorded, pid] = [0, 1].map(|at| holders[at].id().to_string());
    let recorded =
        is_supported(&["take", &unrecorded], |_| {}).then(|| record_scenario(&place, &[], &["take", &pid]).1);
    for holder in &mut holders {
        holder.kill().unwrap();
        holder.wait().unwrap();
    }
    let Some(snapshot) = recorded else { return };
    assert_eq!(place.recorded(&snapshot), ["f write"]);
    assert_eq!(lost(&snapshot), [WarningKind::LateBeforeState]);
    assert_eq!(bytes(&snapshot, place.file(&snapshot, "f"), false), b"content\nwritten\n");
}
