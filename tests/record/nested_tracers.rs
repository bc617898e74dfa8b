//! Debuggers and tracers inside of a recording, which can't trace what is traced already.

use agent_snapshot::snapshot::WarningKind;

use crate::support::{MECHANISMS, Place, has, lost, program, stderr};

#[test]
fn debugger_that_can_not_trace_is_named() {
    for words in [&["strace", "true"][..], &["gdb", "-batch", "-ex", "run", "true"]] {
        if !has(words[0]) {
            continue;
        }
        for mechanism in MECHANISMS {
            let place = Place::new();
            let mut command = place.recording();
            command.args(["--report", "summary", "--timeout", "60s", "--mechanism", mechanism, "--"]);
            let output = command.args(words).output().unwrap();
            let snapshot = place.snapshot();
            let warning = snapshot.header().warnings.iter().find(|one| one.kind == WarningKind::NestedTracer);
            let detail = &warning.unwrap_or_else(|| panic!("{mechanism}: {output:?}")).detail;
            assert!(detail.starts_with(&format!("{} (process ", words[0])), "{mechanism}: {detail}");
            let errors = stderr(&output);
            let told = errors.lines().filter(|line| line.starts_with(&format!("agent-snapshot: {detail}")));
            assert_eq!(told.count(), 1, "{mechanism}: {errors}");
            assert_eq!(lost(&snapshot), [], "{mechanism}");
        }
    }
}

#[test]
fn child_of_a_debugger_that_can_not_trace_ends_with_it() {
    for (how, said) in [("attach", "ATTACH EPERM\n"), ("traceme", "TRACEME EPERM\n")] {
        for mechanism in MECHANISMS {
            let place = Place::new();
            let mut command = place.recorder(mechanism);
            let output = command.arg(program("bypass")).args(["fails_to_trace", how]).output().unwrap();
            assert_eq!(String::from_utf8_lossy(&output.stdout), said, "{mechanism}");
            assert_eq!(output.status.code(), Some(7), "{mechanism}: {output:?}");
            let snapshot = place.snapshot();
            let warnings = &snapshot.header().warnings;
            let ended = warnings.iter().find(|warning| warning.kind == WarningKind::Survivors).unwrap();
            assert!(ended.detail.contains("which could not trace it"), "{mechanism}: {ended:?}");
        }
    }
}
