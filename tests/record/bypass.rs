//! Ways to reach a file that bypass the path syscalls: each is refused, or reported as lost.

use std::fs;
use std::process::Command;

use agent_snapshot::snapshot::WarningKind;

use super::{is_supported, record_scenario};
use crate::support::{Place, is_root, lost, needs_root};

#[test]
fn write_to_the_memory_of_an_untraced_process_is_reported() {
    let mut target = Command::new("sleep").arg("1000").spawn().unwrap();
    let arguments = ["write_memory", &target.id().to_string()];
    let recorded = is_supported(&arguments, |_| {}).then(|| record_scenario(&Place::new(), &[], &arguments));
    target.kill().unwrap();
    target.wait().unwrap();
    let Some((said, snapshot)) = recorded else { return };
    assert_eq!(said, "0\n");
    assert_eq!(lost(&snapshot), [WarningKind::UnmodelledSyscall]);
}

#[test]
fn path_rewritten_by_another_thread_is_reported_and_both_files_recorded() {
    const STOPS: &[&str] = &["--mechanism", "stops"];
    for (mode, operations, by, options) in [
        ("read", "read", "thread", STOPS),
        ("write", "write", "thread", &[]),
        ("read", "read", "process", STOPS),
        ("how", "read", "thread", &[]),
    ] {
        let place = Place::new();
        place.write("a", "a\n");
        place.write("b", "b!\n");
        let mut told = false;
        // Whether the two meet is chance, but not for long.
        for _ in 0..40 {
            told = record_race(&place, options, [mode, by], operations);
            if told {
                break;
            }
        }
        assert!(told, "{mode} {by}");
        // Where there are notifications, the recorder makes an open for reading itself.
        if mode == "read" {
            for _ in 0..5 {
                record_race(&place, &[], [mode, by], operations);
            }
        }
    }
}

/// Records opens of two files whose path is rewritten meanwhile, both of which must be in the recording; whether it warns.
fn record_race(place: &Place, options: &[&str], [mode, by]: [&str; 2], operations: &str) -> bool {
    let (said, snapshot) = record_scenario(place, options, &["race", mode, by]);
    assert_eq!(said, "a true b true\n");
    let expected = ["a", "b"].map(|name| format!("{name} {operations}"));
    assert_eq!(place.recorded(&snapshot), expected);
    let lost = lost(&snapshot);
    assert!(
        lost.iter().all(|kind| {
            matches!(kind, WarningKind::PathChangedAfterCheck | WarningKind::LateBeforeState)
        })
    );
    lost.contains(&WarningKind::PathChangedAfterCheck)
}

#[test]
fn undumpable_process_is_reported() {
    let place = Place::new();
    place.write("f", "content\n");
    let (said, snapshot) = record_scenario(&place, &[], &["undumpable"]);
    assert_eq!(said, "0\n");
    if is_root() {
        assert_eq!(place.recorded(&snapshot), ["f read+metadata"]);
    } else {
        // It changed the mode of the file by a syscall whose arguments could not be read.
        assert_eq!(lost(&snapshot), [WarningKind::UnreadableTracee, WarningKind::ExternalChange]);
    }
}

#[test]
fn compat_syscall_is_reported_as_lost() {
    let prepare = |place: &Place| place.write("f", "content\n");
    if !is_supported(&["compat", "f"], prepare) {
        return;
    }
    let place = Place::new();
    prepare(&place);
    let (said, snapshot) = record_scenario(&place, &[], &["compat", "f"]);
    assert_eq!(said, "opened true\n");
    assert_eq!(fs::read(place.at("f")).unwrap(), b"");
    assert!(lost(&snapshot).contains(&WarningKind::CompatSyscall));
}

#[test]
fn compat_exec_is_reported_as_lost() {
    let program = "/bin/true";
    if !is_supported(&["compat_exec", program], |_| {}) {
        return;
    }
    let (_, snapshot) = record_scenario(&Place::new(), &[], &["compat_exec", program]);
    assert_eq!(lost(&snapshot), [WarningKind::CompatSyscall]);
}

#[test]
fn x32_syscall_is_reported_where_the_kernel_has_it() {
    let place = Place::new();
    let (said, snapshot) = record_scenario(&place, &[], &["x32"]);
    let expected = if said == "1\n" { vec![WarningKind::CompatSyscall] } else { vec![] };
    assert_eq!(lost(&snapshot), expected);
}

#[test]
fn io_uring_is_refused_unless_allowed() {
    let place = Place::new();
    let (said, snapshot) = record_scenario(&place, &[], &["ring"]);
    assert_eq!((said.as_str(), lost(&snapshot)), ("ENOSYS\n", vec![]));
    assert!(snapshot.header().warnings.iter().any(|warning| warning.kind == WarningKind::IoUring));
    if !is_supported(&["ring"], |_| {}) {
        return;
    }
    let (said, snapshot) = record_scenario(&place, &["--allow-io-uring"], &["ring"]);
    assert_eq!(said, "a ring\n");
    assert_eq!(lost(&snapshot), [WarningKind::IoUring]);
    assert!(!snapshot.header().complete);
}

#[test]
fn chroot_by_a_process_that_shares_the_root_is_followed() {
    if !needs_root("chroot(2)") {
        return;
    }
    let place = Place::new();
    fs::create_dir(place.at("d")).unwrap();
    let (said, snapshot) = record_scenario(&place, &[], &["shared_root"]);
    assert_eq!(said, "exited 0\n1\n");
    assert!(place.at("d/f").exists());
    assert!(place.file(&snapshot, "d/f").after.present().is_some());
    assert_eq!(lost(&snapshot), []);
}
