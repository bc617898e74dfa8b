//! Random programs, recorded by each mechanism; see `test_programs/random/`.
//!
//! `TRUTH_SEED=N` runs one seed alone and shows what its program did; `TRUTH_SEEDS=N` changes how many
//! the slow test runs.

use std::env;

use super::{compare, wrong_gaps};
use crate::support::{MECHANISMS, Namespace, Place, User, lines, program, scan, shown};

/// By each mechanism, in the namespace of the recorder.
const SHARED: [(&str, Namespace); 4] = [
    (MECHANISMS[0], Namespace::Shared),
    (MECHANISMS[1], Namespace::Shared),
    (MECHANISMS[2], Namespace::Shared),
    (MECHANISMS[3], Namespace::Shared),
];

/// Those that can be done here.
fn possible(ways: &[(&'static str, Namespace)]) -> Vec<(&'static str, Namespace)> {
    ways.iter().copied().filter(|(_, namespace)| namespace.is_possible()).collect()
}

/// Runs the program of a seed; what is wrong in its recording, and what it did.
fn check(seed: u64, user: User, mechanism: &str, namespace: Namespace) -> Result<(), String> {
    let place = Place::of(user);
    let program = program("random");
    let setup = place.program(&program).args(["--setup", &seed.to_string()]).output().unwrap();
    assert!(setup.status.success(), "seed {seed}: {}", shown(&setup));
    let before = scan(&place.work);
    let mut command = place.recorder_in(namespace, mechanism);
    let output = command.arg(place.executable(&program)).arg(seed.to_string()).output().unwrap();
    let after = scan(&place.work);
    let failed = |what: String| format!("{what}\n{}", shown(&output));
    if !output.status.success() {
        return Err(failed("the program failed".to_owned()));
    }
    let snapshot = place.snapshot_in(namespace).map_err(failed)?;
    let mut wrong = compare(&place.work, &before, &after, &snapshot);
    wrong.extend(wrong_gaps(&before, &after, &snapshot));
    if wrong.is_empty() { Ok(()) } else { Err(failed(lines(&wrong))) }
}

fn check_all(seeds: impl Iterator<Item = u64>, ways: &[(&str, Namespace)]) {
    let only = env::var("TRUTH_SEED").ok().map(|seed| seed.parse::<u64>().unwrap());
    let seeds: Vec<u64> = only.map_or_else(|| seeds.collect(), |seed| vec![seed]);
    let mut failures = Vec::new();
    for &user in User::all() {
        for &seed in &seeds {
            for &(mechanism, namespace) in ways {
                if let Err(how) = check(seed, user, mechanism, namespace) {
                    println!("TRUTH_SEED={seed} as {user:?} by {mechanism}, {namespace:?}: {how}\n");
                    failures.push(format!("{seed} as {user:?} by {mechanism}, {namespace:?}"));
                }
            }
        }
    }
    assert!(failures.is_empty(), "{} seeds failed: {}", failures.len(), failures.join(", "));
}

#[test]
fn random_programs_are_recorded_correctly() {
    check_all(0..8, &SHARED);
}

#[test]
fn random_programs_in_a_namespace_are_recorded_correctly() {
    check_all(0..8, &possible(&[("auto", Namespace::Bound), ("stops", Namespace::Bubblewrap)]));
}

#[test]
fn random_programs_are_recorded_correctly_as_steps() {
    check_all(0..8, &[("auto", Namespace::Command), ("stops", Namespace::Edit)]);
}

#[test]
#[ignore = "slow: hundreds of programs"]
fn slow_random_programs_are_recorded_correctly_as_steps() {
    let count = env::var("TRUTH_SEEDS").ok().map_or(150, |count| count.parse().unwrap());
    let ways = |namespace| MECHANISMS.map(|mechanism| (mechanism, namespace));
    check_all(3000..3000 + count, &[ways(Namespace::Command), ways(Namespace::Edit)].concat());
}

#[test]
#[ignore = "slow: hundreds of programs"]
fn slow_random_programs_are_recorded_correctly() {
    let count = env::var("TRUTH_SEEDS").ok().map_or(150, |count| count.parse().unwrap());
    check_all(1000..1000 + count, &SHARED);
}

#[test]
#[ignore = "slow: hundreds of programs"]
fn slow_random_programs_in_a_namespace_are_recorded_correctly() {
    let count = env::var("TRUTH_SEEDS").ok().map_or(150, |count| count.parse().unwrap());
    let ways = MECHANISMS.map(|mechanism| (mechanism, Namespace::Bound));
    check_all(2000..2000 + count, &possible(&[&ways[..], &[("auto", Namespace::Bubblewrap)]].concat()));
}
