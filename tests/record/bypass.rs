//! Ways around a list of path calls: each is closed, or told.

use std::fs;
use std::io::IoSlice;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Output};

use agent_snapshot::snapshot::{Snapshot, WarningKind};
use nix::sys::socket::{ControlMessage, MsgFlags, sendmsg};

use super::transparency::program;
use crate::support::{BINARY, Place, bytes, is_root, lost, stderr};

/// The status of a program that can't do here what it is for.
const SKIPPED: i32 = 77;

/// Whether a command succeeds here; if not, the reason of a skip is printed.
fn works(place: &Place, command: &[&str]) -> bool {
    let mut probe = Command::new(command[0]);
    place.isolate(&mut probe);
    let works = probe.args(&command[1..]).output().is_ok_and(|output| output.status.success());
    if !works {
        println!("skipped: {command:?} does not work here");
    }
    works
}

/// Records a script that may be refused something, and reads the snapshot.
fn record(place: &Place, script: &str) -> (Output, Snapshot) {
    let output = place.record_with(&[], script);
    (output, place.snapshot())
}

#[test]
fn names_of_another_mount_namespace_are_recorded_only_where_they_are_ours() {
    let place = Place::new();
    if !works(&place, &["unshare", "-rm", "true"]) {
        return;
    }
    fs::create_dir(place.work.join("d")).unwrap();
    fs::write(place.work.join("d/f"), "below\n").unwrap();
    fs::write(place.work.join("f"), "ours\n").unwrap();
    // What is absent there and here loses nothing, though its directory is absent, too.
    let (_, snapshot) = record(&place, "unshare -rm sh -c 'cat f; test -e no/such/file'");
    assert_eq!(lost(&snapshot), []);
    assert_eq!(place.recorded(&snapshot), ["f read", "no/such/file existence"]);
    let script = "unshare -rm sh -c 'mount -t tmpfs x d && echo hidden > d/f && ln -s ../f d/l &&
        echo more >> d/l && cat d/f && umount d && cat d/f'";
    let (output, snapshot) = record(&place, script);
    assert_eq!(String::from_utf8_lossy(&output.stdout), "hidden\nbelow\n");
    assert_eq!(lost(&snapshot), [WarningKind::MountNamespace]);
    let inner = place.file(&snapshot, "d/f");
    assert_eq!(bytes(&snapshot, inner, false), b"below\n");
    assert!(snapshot.find(&place.path("d/l")).is_none(), "a link that nobody sees out here");
}

#[test]
fn what_root_may_not_read_without_its_capabilities_is_not_said_to_be_read() {
    let place = Place::new();
    // Dropped from the bounding set, they are gone after the exec: prctl(2), PR_CAPBSET_DROP.
    let drop = "syscall(157, 24, 1, 0, 0, 0); syscall(157, 24, 2, 0, 0, 0); exec";
    if !is_root("capabilities") || !works(&place, &["perl", "-e", "exit"]) {
        return;
    }
    let file = place.work.join("f");
    fs::write(&file, "of another\n").unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
    std::os::unix::fs::chown(&file, Some(65534), Some(65534)).unwrap();
    let (output, snapshot) = record(&place, &format!("perl -e '{drop} \"cat\", \"f\"'"));
    assert!(stderr(&output).contains("Permission denied"), "{}", stderr(&output));
    assert_eq!(place.recorded(&snapshot), ["f existence"]);
}

#[test]
fn what_a_user_namespace_lets_a_program_read_is_what_it_is_said_to_have_read() {
    // unshare(2), CLONE_NEWUSER; and who is root in it.
    let unshare = "use strict; syscall(272, 0x10000000) == 0 or exit 77;
        sub put { open(my $f, '>', $_[0]) or die; print $f $_[1]; close $f }
        put('/proc/self/setgroups', 'deny'); put('/proc/self/uid_map', \"0 $< 1\");
        put('/proc/self/gid_map', '0 '.(0+$().' 1');";
    let place = Place::new();
    let file = place.work.join("f");
    fs::write(&file, "content\n").unwrap();
    let root = nix::unistd::geteuid().is_root();
    // Root loses its power over the files of others, another user gets some over its own.
    fs::set_permissions(&file, fs::Permissions::from_mode(if root { 0o600 } else { 0 })).unwrap();
    if root {
        std::os::unix::fs::chown(&file, Some(1000), Some(1000)).unwrap();
    }
    let script = format!(
        "perl -e '{}'",
        format!("{unshare} print open(my $g, \"<\", \"f\") ? 1 : 0").replace('\'', "'\\''")
    );
    let (output, snapshot) = record(&place, &script);
    if !output.status.success() {
        return println!("skipped: no user namespace can be made: {}", stderr(&output));
    }
    let said = String::from_utf8_lossy(&output.stdout);
    assert_eq!(said, if root { "0" } else { "1" });
    assert_eq!(place.recorded(&snapshot), [if root { "f existence" } else { "f read" }]);
}

#[test]
fn what_is_reached_below_a_mount_is_no_record_of_what_is_above() {
    if !is_root("a mount in the namespace of all") {
        return;
    }
    let place = Place::new();
    if !works(&place, &["unshare", "-m", "true"]) {
        return;
    }
    fs::create_dir(place.work.join("d")).unwrap();
    // The recorder itself is in the namespace, so that nothing stays mounted.
    let script =
        "cd d && mount -t tmpfs x . && echo below > f && cat f && echo above > ../d/f; cd ..; cat d/f";
    let mut command = Command::new("unshare");
    place.isolate(&mut command);
    command.args(["-m", crate::support::BINARY, "--snapshot-dir"]).arg(&place.out).args(["sh", "-c", script]);
    let output = command.output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout), "below\nabove\n");
    // What the recording calls d/f is what is seen at its end: that of the mount.
    let snapshot = place.snapshot();
    assert_eq!(lost(&snapshot), [WarningKind::MountNamespace]);
    assert_eq!(bytes(&snapshot, place.file(&snapshot, "d/f"), false), b"above\n");
}

#[test]
fn a_file_system_whose_large_file_was_just_read_can_be_unmounted() {
    let place = Place::new();
    if !works(&place, &["unshare", "-rm", "mount", "-t", "tmpfs", "x", "/tmp"]) {
        return;
    }
    fs::create_dir(place.work.join("d")).unwrap();
    let script = "mount -t tmpfs x d && head -c 30000000 /dev/zero > d/big && exec \"$@\"";
    let mut command = Command::new("unshare");
    place.isolate(&mut command);
    command.args(["-rm", "sh", "-c", script, "sh", crate::support::BINARY, "--snapshot-dir"]);
    let output = command.arg(&place.out).args(["sh", "-c", "cat d/big > /dev/null; umount d"]).output();
    let output = output.unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    let snapshot = place.snapshot();
    assert_eq!(bytes(&snapshot, place.file(&snapshot, "d/big"), true).len(), 30_000_000);
}

#[test]
fn a_pivoted_root_gives_no_file_a_wrong_name() {
    if !is_root("pivot_root") {
        return;
    }
    let place = Place::new();
    if !works(&place, &["unshare", "-m", "true"]) {
        return;
    }
    fs::create_dir_all(place.work.join("d/old")).unwrap();
    fs::write(place.work.join("d/f"), "content\n").unwrap();
    let script = "unshare -m sh -c 'mount --bind d d && cd d && pivot_root . old && cd / && echo pivoted > f;
        echo new > created; echo above > /old$0/up' $PWD";
    let (_, snapshot) = record(&place, script);
    assert_eq!(fs::read(place.work.join("d/created")).unwrap(), b"new\n");
    assert_eq!(lost(&snapshot), [WarningKind::MountNamespace]);
    assert!(snapshot.find(b"/f").is_none() && snapshot.find(b"/created").is_none());
}

#[test]
fn a_sandbox_of_bubblewrap_is_told() {
    let place = Place::new();
    let sandbox = "bwrap --ro-bind / / --bind . /mnt --proc /proc --dev /dev --unshare-all";
    if !works(&place, &["sh", "-c", &format!("{sandbox} true")]) {
        return;
    }
    fs::write(place.work.join("f"), "old\n").unwrap();
    let script =
        format!("{sandbox} sh -c 'cat f /proc/self/cwd/f; echo new > /mnt/f; cat /dev/stdin < /mnt/f'");
    let (output, snapshot) = record(&place, &script);
    assert_eq!(String::from_utf8_lossy(&output.stdout), "old\nold\nnew\n");
    // What was read by its own name has been changed by one that nobody has out here.
    assert_eq!(lost(&snapshot), [WarningKind::ExternalChange, WarningKind::MountNamespace]);
    assert!(snapshot.find(b"/mnt/f").is_none());
}

#[test]
fn detours_lead_to_the_file_that_they_lead_to() {
    let place = Place::new();
    fs::write(place.work.join("f"), "content\n").unwrap();
    for path in [
        "/proc/self/cwd/f",
        "/usr/..$PWD/f",
        "/proc/$$/cwd/f",
        "/proc/self/root$PWD/f",
        "/dev/fd/7",
        "/proc/$$/fd/7",
    ] {
        let snapshot = place.record(&format!("exec 7> opened; echo x > {path}; cat f 2> /dev/null"));
        let name = if path.ends_with('7') { "opened" } else { "f" };
        assert_eq!(bytes(&snapshot, place.file(&snapshot, name), false), b"x\n", "{path}");
        assert_eq!(lost(&snapshot), [], "{path}");
    }
}

#[test]
fn a_directory_too_deep_to_be_named_is_told() {
    let place = Place::new();
    let script =
        "n=$(printf '%0200d' 0); i=0; while [ $i -lt 25 ]; do mkdir $n && cd -P $n && i=$((i + 1)); done
        echo x > f; cat f";
    let (output, snapshot) = record(&place, script);
    assert_eq!(String::from_utf8_lossy(&output.stdout), "x\n");
    assert_eq!(lost(&snapshot), [WarningKind::UnreadableTracee]);
}

/// Records one way, in a place that is prepared; none where the kernel does not have it.
fn record_way(place: &Place, options: &[&str], arguments: &[&str]) -> Option<(String, Snapshot)> {
    let mut command = place.command();
    command.arg("--snapshot-dir").arg(&place.out).args(options).arg(program("ways")).args(arguments);
    let output = command.output().unwrap();
    if output.status.code() == Some(SKIPPED) {
        println!("skipped: {arguments:?} is not to be had here");
        return None;
    }
    assert!(output.status.success(), "{arguments:?}: {}", stderr(&output));
    Some((String::from_utf8(output.stdout).unwrap(), place.snapshot()))
}

#[test]
fn a_descriptor_received_from_outside_is_recorded() {
    for (writes, expected) in [(true, "f write"), (false, "f read")] {
        let place = Place::new();
        fs::write(place.work.join("f"), "content\n").unwrap();
        let (ours, theirs) = std::os::unix::net::UnixDatagram::pair().unwrap();
        let file = fs::OpenOptions::new().read(!writes).write(writes).open(place.work.join("f")).unwrap();
        let (part, file) = ([IoSlice::new(b"x")], [file.as_raw_fd()]);
        let rights = [ControlMessage::ScmRights(&file)];
        sendmsg::<()>(ours.as_raw_fd(), &part, &rights, MsgFlags::empty(), None).unwrap();
        let mut command = place.command();
        let script = format!("exec {} receive 3<&0 < /dev/null", program("ways").display());
        command.arg("--snapshot-dir").arg(&place.out).args(["sh", "-c", &script]);
        let output = command.stdin(OwnedFd::from(theirs)).output().unwrap();
        assert!(output.status.success(), "{}", stderr(&output));
        let snapshot = place.snapshot();
        assert_eq!(place.recorded(&snapshot), [expected]);
        // Somebody else may have written before us.
        assert_eq!(lost(&snapshot), if writes { vec![WarningKind::LateBeforeState] } else { vec![] });
        assert_eq!(bytes(&snapshot, place.file(&snapshot, "f"), true), b"content\n");
    }
}

#[test]
fn a_received_descriptor_of_what_is_left_out_or_has_no_bytes_is_no_gap() {
    let place = Place::new();
    fs::create_dir(place.work.join("ignored")).unwrap();
    fs::write(place.work.join("ignored/f"), "").unwrap();
    let ignored = place.work.join("ignored");
    let everything = "[]";
    let proc = format!("/proc/{}/comm", std::process::id());
    for (path, list) in [
        (ignored.join("f"), None),
        ("/dev/null".into(), None),
        ("/dev/ptmx".into(), None),
        (proc.as_str().into(), None),
        // Where no rule leaves them out, a device has no bytes, and neither has a file that the kernel makes up.
        ("/dev/null".into(), Some(everything)),
        (proc.as_str().into(), Some(everything)),
    ] {
        let place = Place::new();
        let settings = place.work.with_file_name("config").join("agent-snapshot");
        if let Some(list) = list {
            fs::create_dir(&settings).unwrap();
            fs::write(settings.join("ignore.json"), list).unwrap();
        }
        let (ours, theirs) = std::os::unix::net::UnixDatagram::pair().unwrap();
        let Ok(file) = fs::OpenOptions::new().write(true).open(&path) else {
            println!("skipped: {} can't be opened", path.display());
            continue;
        };
        let (part, file) = ([IoSlice::new(b"x")], [file.as_raw_fd()]);
        let rights = [ControlMessage::ScmRights(&file)];
        sendmsg::<()>(ours.as_raw_fd(), &part, &rights, MsgFlags::empty(), None).unwrap();
        let mut command = place.command();
        let script = format!("exec {} receive 3<&0 < /dev/null", program("ways").display());
        command.arg("--snapshot-dir").arg(&place.out).arg("--strict").arg("--ignore").arg(&ignored);
        let output = command.args(["sh", "-c", &script]).stdin(OwnedFd::from(theirs)).output().unwrap();
        assert!(output.status.success(), "{} {list:?}: {}", path.display(), stderr(&output));
        assert_eq!(lost(&place.snapshot()), [], "{} {list:?}", path.display());
    }
}

#[test]
fn a_descriptor_that_opens_files_unseen_is_told() {
    let ways = program("ways").display().to_string();
    for (with, kind) in [
        ("with_ring", WarningKind::IoUring),
        ("with_group", WarningKind::UnmodelledSyscall),
        ("with_group_to_receive", WarningKind::UnmodelledSyscall),
    ] {
        let place = Place::new();
        let mut command = Command::new(&ways);
        place.isolate(&mut command);
        command.args([with, BINARY, "--snapshot-dir"]).arg(&place.out).args([&ways, "receive"]);
        let output = command.output().unwrap();
        if output.status.code() == Some(77) {
            println!("skipped: {with}: {}", String::from_utf8_lossy(&output.stdout));
            continue;
        }
        assert_eq!(lost(&place.snapshot()), [kind], "{with}: {output:?}");
    }
}

#[test]
fn memory_of_a_process_outside_that_is_written_to_is_told() {
    let place = Place::new();
    fs::write(place.work.join("f"), "content\n").unwrap();
    let mut holder = Command::new("sleep").arg("1000").spawn().unwrap();
    let recorded = record_way(&place, &[], &["write_memory", &holder.id().to_string()]);
    holder.kill().unwrap();
    holder.wait().unwrap();
    let Some((said, snapshot)) = recorded else { return };
    if said.starts_with('E') {
        println!("skipped: {said}");
        return;
    }
    assert_eq!(lost(&snapshot), [WarningKind::UnmodelledSyscall]);
}

#[test]
fn a_descriptor_taken_from_a_process_outside_is_recorded() {
    let place = Place::new();
    fs::write(place.work.join("f"), "content\n").unwrap();
    let mut holder = Command::new("sh");
    place.isolate(&mut holder);
    // Any process of this user may take its descriptors, where nothing forbids it.
    let mut holder = holder.args(["-c", "exec 9>> f; exec sleep 1000"]).spawn().unwrap();
    let pid = holder.id().to_string();
    while fs::read_link(format!("/proc/{pid}/exe")).map_or(true, |exe| !exe.ends_with("sleep")) {
        std::thread::yield_now();
    }
    let recorded = record_way(&place, &[], &["take", &pid]);
    holder.kill().unwrap();
    holder.wait().unwrap();
    let Some((said, snapshot)) = recorded else { return };
    if said.starts_with('E') {
        println!("skipped: {said}");
        return;
    }
    assert_eq!(place.recorded(&snapshot), ["f write"]);
    assert_eq!(lost(&snapshot), [WarningKind::LateBeforeState]);
    assert_eq!(bytes(&snapshot, place.file(&snapshot, "f"), false), b"content\nwritten\n");
}

#[test]
fn a_path_that_another_thread_rewrites_is_told_and_both_files_are_recorded() {
    for (mode, operations, by) in [
        ("read", "read", "thread"),
        ("write", "write", "thread"),
        ("read", "read", "process"),
        ("how", "read", "thread"),
    ] {
        let place = Place::new();
        fs::write(place.work.join("a"), "a\n").unwrap();
        fs::write(place.work.join("b"), "b!\n").unwrap();
        let mut told = false;
        // Whether the two meet is chance, but not for long.
        for _ in 0..40 {
            let Some((said, snapshot)) = record_way(&place, &[], &["race", mode, by]) else { return };
            assert_eq!(said, "a true b true\n");
            let expected = ["a", "b"].map(|name| format!("{name} {operations}"));
            assert_eq!(place.recorded(&snapshot), expected);
            let lost = lost(&snapshot);
            assert!(lost.iter().all(|kind| {
                matches!(kind, WarningKind::PathChangedAfterCheck | WarningKind::LateBeforeState)
            }));
            told = lost.contains(&WarningKind::PathChangedAfterCheck);
            if told {
                break;
            }
        }
        assert!(told, "{mode} {by}");
    }
}

#[test]
fn a_program_without_a_name_has_its_interpreter_and_its_image() {
    for call in ["execve", "execveat"] {
        for what in ["script", "program"] {
            let place = Place::new();
            fs::write(place.work.join("i"), "#!/bin/sh\necho ran $1\n").unwrap();
            fs::set_permissions(place.work.join("i"), fs::Permissions::from_mode(0o755)).unwrap();
            fs::copy(program("ways"), place.work.join("p")).unwrap();
            let Some((said, snapshot)) = record_way(&place, &[], &["unnamed", call, what]) else { return };
            let (seen, recorded, exe) = match what {
                "script" => ("ran word\n", ["i read+execute"], b"/memfd:s (deleted)".to_vec()),
                _ => ("unnamed\n", ["p read+delete"], [&place.path("p"), b" (deleted)".as_slice()].concat()),
            };
            assert!(said.starts_with(seen), "{call} {what}: {said}");
            assert_eq!(place.recorded(&snapshot), recorded, "{call} {what}");
            assert_eq!(lost(&snapshot), []);
            let image = &snapshot.header().processes[0].image;
            assert_eq!(String::from_utf8_lossy(&image.exe), String::from_utf8_lossy(&exe), "{call} {what}");
            assert_eq!(image.argv, [b"named".to_vec(), b"--list".to_vec()]);
        }
    }
}

/// A copy of a test program, whose loader is `ld` in the working directory, copied there.
fn program_with_its_own_loader(place: &Place, name: &str) -> bool {
    let mut bytes = fs::read(program("ways")).unwrap();
    let loader = b"/lib64/ld-linux-x86-64.so.2";
    let Some(at) = bytes.windows(loader.len()).position(|window| window == loader) else {
        println!("skipped: programs have another loader here");
        return false;
    };
    fs::copy(std::str::from_utf8(loader).unwrap(), place.work.join("ld")).unwrap();
    bytes[at..at + loader.len()].fill(0);
    bytes[at..at + 4].copy_from_slice(b"./ld");
    fs::write(place.work.join(name), bytes).unwrap();
    fs::set_permissions(place.work.join(name), fs::Permissions::from_mode(0o755)).unwrap();
    true
}

#[test]
fn an_interpreter_that_binfmt_misc_names_is_executed() {
    // Linux 6.7: a user namespace has interpreters of its own.
    let register = "mount -t binfmt_misc x bm && echo \":t:E::foo::$PWD/i:\" > bm/register";
    for inside in [false, true] {
        let place = Place::new();
        fs::create_dir(place.work.join("bm")).unwrap();
        if !works(&place, &["unshare", "-Urm", "sh", "-c", register])
            || !program_with_its_own_loader(&place, "i")
        {
            return;
        }
        fs::write(place.work.join("x.foo"), "what only its interpreter knows\n").unwrap();
        fs::set_permissions(place.work.join("x.foo"), fs::Permissions::from_mode(0o755)).unwrap();
        let (run, binary) = ("./x.foo 2> /dev/null; echo $?", crate::support::BINARY);
        let record = format!("{binary} --snapshot-dir {}", place.out.display());
        let script = if inside {
            format!("{record} unshare -Urm sh -c '{register} && {run}'")
        } else {
            format!("unshare -Urm sh -c '{register} && {record} sh -c \"$1\"' sh '{run}'")
        };
        let mut command = Command::new("sh");
        place.isolate(&mut command);
        let output = command.args(["-c", &script]).output().unwrap();
        assert_eq!(output.stdout, b"2\n", "{}", stderr(&output));
        let snapshot = place.snapshot();
        let mut recorded = place.recorded(&snapshot);
        recorded.retain(|record| !record.starts_with("bm"));
        let expected = ["i", "ld", "x.foo"].map(|name| format!("{name} read+execute"));
        assert_eq!(recorded, expected, "inside: {inside}");
    }
}

#[test]
fn a_process_that_is_not_dumpable_is_told() {
    let place = Place::new();
    fs::write(place.work.join("f"), "content\n").unwrap();
    let Some((said, snapshot)) = record_way(&place, &[], &["undumpable"]) else { return };
    assert_eq!(said, "0\n");
    if nix::unistd::geteuid().is_root() {
        assert_eq!(place.recorded(&snapshot), ["f read+metadata"]);
    } else {
        // It changed the mode of the file, by a call whose arguments nobody could read.
        assert_eq!(lost(&snapshot), [WarningKind::UnreadableTracee, WarningKind::ExternalChange]);
    }
}

#[test]
fn a_call_of_a_32_bit_program_is_told() {
    let place = Place::new();
    fs::write(place.work.join("f"), "content\n").unwrap();
    let Some((said, snapshot)) = record_way(&place, &[], &["compat", "f"]) else { return };
    assert_eq!(said, "opened true\n");
    assert_eq!(fs::read(place.work.join("f")).unwrap(), b"");
    assert!(lost(&snapshot).contains(&WarningKind::CompatSyscall));
}

#[test]
fn a_call_of_an_x32_program_is_told_where_the_kernel_has_it() {
    let place = Place::new();
    let Some((said, snapshot)) = record_way(&place, &[], &["x32"]) else { return };
    let expected = if said == "1\n" { vec![WarningKind::CompatSyscall] } else { vec![] };
    assert_eq!(lost(&snapshot), expected);
}

#[test]
fn io_uring_is_refused_unless_it_is_allowed_and_then_told() {
    let place = Place::new();
    let Some((said, snapshot)) = record_way(&place, &[], &["ring"]) else { return };
    assert_eq!((said.as_str(), lost(&snapshot)), ("ENOSYS\n", vec![]));
    assert!(snapshot.header().warnings.iter().any(|warning| warning.kind == WarningKind::IoUring));
    let Some((said, snapshot)) = record_way(&place, &["--allow-io-uring"], &["ring"]) else { return };
    if said == "a ring\n" {
        assert_eq!(lost(&snapshot), [WarningKind::IoUring]);
        assert!(!snapshot.header().complete);
    } else {
        println!("skipped: {said}");
    }
}

#[test]
fn a_root_that_another_process_changes_is_seen() {
    if !is_root("chroot") {
        return;
    }
    let place = Place::new();
    fs::create_dir(place.work.join("d")).unwrap();
    let Some((said, snapshot)) = record_way(&place, &[], &["shared_root"]) else { return };
    if said != "exited 0\n1\n" {
        println!("skipped: {said}");
        return;
    }
    assert!(place.work.join("d/f").exists());
    assert!(place.file(&snapshot, "d/f").after.present().is_some());
    assert_eq!(lost(&snapshot), []);
}

#[test]
fn an_inner_recording_says_that_it_is_one() {
    let place = Place::new();
    let inner =
        |options: &str| format!("{} --snapshot-dir ../inner {options} echo ran", crate::support::BINARY);
    let (output, snapshot) = record(&place, &format!("{}; echo $?", inner("")));
    assert_eq!(output.stdout, b"125\n");
    assert!(stderr(&output).contains("another tracer"), "{}", stderr(&output));
    assert!(snapshot.header().warnings.iter().any(|warning| warning.kind == WarningKind::NestedTracer));
    assert!(!place.base().join("inner").exists());
    let output = place.record_with(&[], &inner("--if-unavailable run"));
    assert_eq!(output.stdout, b"ran\n");
    assert_eq!(output.status.code(), Some(0));
}

#[test]
fn a_set_user_id_program_is_told_where_it_has_no_privilege() {
    if nix::unistd::geteuid().is_root() {
        println!("skipped: root has the privilege");
        return;
    }
    let place = Place::new();
    if !works(&place, &["su", "--version"]) {
        return;
    }
    let (output, snapshot) = record(&place, "su --version");
    assert!(output.status.success());
    assert_eq!(lost(&snapshot), []);
    assert!(snapshot.header().warnings.iter().any(|warning| warning.kind == WarningKind::Setuid));
}

#[test]
fn a_core_dump_is_a_file_that_the_command_left() {
    let pattern = fs::read_to_string("/proc/sys/kernel/core_pattern").unwrap_or_default();
    if pattern.trim() != "core" {
        println!("skipped: a core dump is {}", pattern.trim());
        return;
    }
    let place = Place::new();
    fs::write(place.work.join("core"), "there before\n").unwrap();
    let (output, snapshot) =
        record(&place, "ulimit -c unlimited && sh -c 'kill -SEGV $$; echo never'; exit 5");
    assert_eq!(output.status.code(), Some(5), "{}", stderr(&output));
    let core = snapshot.files().iter().find(|file| {
        file.path.starts_with(&place.path("core"))
            && file.operations.contains(agent_snapshot::snapshot::Operation::Write)
    });
    let Some(core) = core else {
        assert_eq!(fs::read(place.work.join("core")).unwrap(), b"there before\n");
        println!("skipped: no core was dumped");
        return;
    };
    assert_eq!(lost(&snapshot), []);
    assert!(bytes(&snapshot, core, false).starts_with(b"\x7fELF"));
    if core.path == place.path("core") {
        assert_eq!(bytes(&snapshot, core, true), b"there before\n");
    }
}

#[test]
fn a_daemon_is_recorded_by_each_way_to_treat_survivors() {
    for survivors in ["wait", "background", "kill"] {
        let place = Place::new();
        nix::unistd::mkfifo(&place.work.join("go"), nix::sys::stat::Mode::S_IRWXU).unwrap();
        let mut command = place.command();
        command.arg("--snapshot-dir").arg(&place.out).args(["--survivors", survivors]);
        let mut child = command.arg(program("ways")).arg("daemon").spawn().unwrap();
        if survivors != "wait" {
            assert!(child.wait().unwrap().success(), "{survivors}");
        }
        if survivors != "kill" {
            assert!(!place.out.join("manifest.json").exists());
            fs::write(place.work.join("go"), "x").unwrap();
        }
        assert!(child.wait().unwrap().success(), "{survivors}");
        // The lock is free when the manifest is there.
        fs::File::open(&place.out).unwrap().lock().unwrap();
        let snapshot = place.snapshot();
        assert_eq!(lost(&snapshot), [], "{survivors}");
        if survivors == "kill" {
            assert!(snapshot.find(&place.path("late")).is_none());
            let warnings = &snapshot.header().warnings;
            assert!(warnings.iter().any(|warning| warning.kind == WarningKind::Survivors));
        } else {
            assert_eq!(bytes(&snapshot, place.file(&snapshot, "late"), false), b"from the daemon\n");
        }
    }
}

#[test]
fn a_signal_to_us_or_to_the_group_reaches_the_command_once() {
    for group in [false, true] {
        let place = Place::new();
        let script =
            "trap 'echo term >> seen' TERM; trap 'exit 4' USR1; echo up; while :; do read line; done";
        let mut command = place.command();
        command.arg("--snapshot-dir").arg(&place.out).args(["bash", "-c", script]);
        std::os::unix::process::CommandExt::process_group(&mut command, 0);
        let mut child =
            command.stdin(std::process::Stdio::piped()).stdout(std::process::Stdio::piped()).spawn().unwrap();
        let mut up = [0; 3];
        std::io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut up).unwrap();
        let pid = i32::try_from(child.id()).unwrap();
        let to = nix::unistd::Pid::from_raw(if group { -pid } else { pid });
        let mut input = child.stdin.take().unwrap();
        nix::sys::signal::kill(to, nix::sys::signal::Signal::SIGTERM).unwrap();
        // bash runs its traps when its read has ended.
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(60);
        while !place.work.join("seen").exists() {
            assert!(std::time::Instant::now() < deadline, "the signal does not come");
            std::io::Write::write_all(&mut input, b"\n").unwrap();
            std::thread::yield_now();
        }
        nix::sys::signal::kill(to, nix::sys::signal::Signal::SIGUSR1).unwrap();
        while child.try_wait().unwrap().is_none() {
            assert!(std::time::Instant::now() < deadline, "the command does not end");
            let _ = std::io::Write::write_all(&mut input, b"\n");
            std::thread::yield_now();
        }
        assert_eq!(child.wait().unwrap().code(), Some(4));
        assert_eq!(fs::read(place.work.join("seen")).unwrap(), b"term\n", "to the group: {group}");
    }
}
