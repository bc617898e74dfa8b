//! Random programs whose processes and threads use the same names at the same time.
//!
//! `RACES_FROM=N RACES_SEEDS=M` runs the seeds from N on, with what each program did where it fails.
//! A seed determines what is done, not in which order: `RACES_REPEAT=N` runs each N times. `RACES_SECONDS=N`
//! begins no more after that time.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use agent_snapshot::snapshot::{Operations, Snapshot, WarningKind};

use super::{Load, mechanism, mechanisms, number, set_up, wrong};
use crate::support::{Namespace, Place, lines, program, scan, shown};
use crate::truth::compare;

/// The components that paths below the tree have.
const COMPONENTS: [&str; 12] = ["a", "b", "c", "d", "e", "n", "repo", "v", "w", "x", "y", "nowhere"];

/// What the program prints when it has written through a mapping.
const MAPPED: &[u8] = b"write to a mapping";

/// Records the program of a seed, undoes and redoes it; what is wrong.
fn check(seed: usize, mechanism: &str, namespace: Namespace) -> Result<(), String> {
    let seed = seed.to_string();
    let (place, before) = set_up(&["fuzz", &seed]);
    let mut command = place.recorder_in(namespace, mechanism);
    let output = command.arg(program("races")).args(["fuzz", &seed]).output().unwrap();
    let after = scan(&place.work);
    let failed = |what: String| format!("{what}\n{}", shown(&output));
    if !output.status.success() {
        return Err(failed("the program failed".to_owned()));
    }
    let snapshot = place.snapshot_in(namespace).map_err(failed)?;
    let mut wrong =
        if output.stderr.windows(MAPPED.len()).any(|said| said == MAPPED) && reports_late(&snapshot) {
            // A write through a mapping can't be stopped: the loss of a before-state was reported, and an
            // undo lacks that content.
            let mut wrong = compare(&place.work, &before, &after, &snapshot);
            wrong.retain(|sentence| !sentence.contains("ChangedWhileReading"));
            wrong
        } else {
            wrong(&place, &before, &after, &snapshot)
        };
    wrong.extend(impossible(&place, &snapshot));
    if wrong.is_empty() { Ok(()) } else { Err(failed(lines(&wrong))) }
}

/// Whether the recording reports that content changed before or while it was stored.
fn reports_late(snapshot: &Snapshot) -> bool {
    let kinds = [WarningKind::ContentOmitted, WarningKind::LateBeforeState];
    snapshot.header().warnings.iter().any(|warning| kinds.contains(&warning.kind))
}

/// The records of changes to paths that no call can have named.
fn impossible(place: &Place, snapshot: &Snapshot) -> Vec<String> {
    let root = place.work.as_os_str().as_encoded_bytes();
    let changed = snapshot.files().iter().filter(|record| record.operations.intersects(Operations::CHANGES));
    let below = changed.filter_map(|record| record.path.strip_prefix(root)?.strip_prefix(b"/"));
    let named = |path: &&[u8]| {
        path.split(|byte| *byte == b'/').all(|name| COMPONENTS.iter().any(|known| known.as_bytes() == name))
    };
    below
        .filter(|path| !named(path))
        .map(|path| format!("{}: was never named", path.escape_ascii()))
        .collect()
}

/// Goes through seeds, two at once, until the time is up; what is wrong with those that failed.
fn check_all(from: usize, count: usize, mechanism: &str, load: bool, namespace: Namespace) -> Vec<String> {
    let (from, count) = (number("RACES_FROM").unwrap_or(from), number("RACES_SEEDS").unwrap_or(count));
    let repeat = number("RACES_REPEAT").unwrap_or(1);
    let (started, most) = (Instant::now(), number("RACES_SECONDS").unwrap_or(usize::MAX) as u64);
    let _load = Load::new(load);
    let (next, failures) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let work = || {
        loop {
            let turn = next.fetch_add(1, Ordering::Relaxed);
            if turn >= count * repeat || started.elapsed().as_secs() >= most {
                return turn;
            }
            let seed = from + turn / repeat;
            if let Err(how) = check(seed, mechanism, namespace) {
                let wrong: Vec<String> = how
                    .lines()
                    .take_while(|line| !line.starts_with("exit status"))
                    .map(str::to_owned)
                    .collect();
                failures.lock().unwrap().push(format!("seed {seed} ({mechanism}): {}", lines(&wrong)));
                println!("RACES_FROM={seed} RACES_SEEDS=1 ({mechanism}): {how}\n");
            }
        }
    };
    let done = std::thread::scope(|scope| {
        let other = scope.spawn(work);
        work().min(other.join().unwrap())
    });
    let failures = failures.into_inner().unwrap();
    let under = if load { ", under load" } else { "" };
    println!("fuzz: {} of {done} wrong ({mechanism}{under})", failures.len());
    failures
}

fn check_each(from: usize, load: bool, namespace: Namespace) {
    let mechanisms = mechanisms();
    let failures: Vec<_> =
        mechanisms.iter().flat_map(|mechanism| check_all(from, 500, mechanism, load, namespace)).collect();
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

#[test]
fn random_races_are_recorded_correctly() {
    let failures = check_all(0, 20, &mechanism(), false, Namespace::Shared);
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

#[test]
fn random_races_in_a_namespace_are_recorded_correctly() {
    if Namespace::Bound.is_possible() {
        let failures = check_all(0, 20, &mechanism(), false, Namespace::Bound);
        assert!(failures.is_empty(), "{}", failures.join("\n"));
    }
}

#[test]
fn random_races_are_recorded_correctly_as_steps() {
    let check = |namespace| check_all(0, 10, &mechanism(), false, namespace);
    let failures = [check(Namespace::Command), check(Namespace::Edit)].concat();
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

#[test]
#[ignore = "slow: hundreds of programs"]
fn slow_random_races_are_recorded_correctly_as_steps() {
    check_each(3000, false, Namespace::Command);
    check_each(4000, false, Namespace::Edit);
}

#[test]
#[ignore = "slow: hundreds of programs"]
fn slow_random_races_are_recorded_correctly() {
    check_each(1000, false, Namespace::Shared);
}

#[test]
#[ignore = "slow: hundreds of programs"]
fn slow_random_races_in_a_namespace_are_recorded_correctly() {
    if Namespace::Bound.is_possible() {
        check_each(3000, false, Namespace::Bound);
    }
}

#[test]
#[ignore = "slow: hundreds of programs"]
fn slow_random_races_under_load_are_recorded_correctly() {
    check_each(2000, true, Namespace::Shared);
}
