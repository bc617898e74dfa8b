//! Programs made by a seed, recorded by each mechanism; see `test_programs/random/`.
//!
//! `TRUTH_SEED=N` runs one seed alone and shows what its program did; `TRUTH_SEEDS=N` changes how many
//! the slow test runs.

use std::env;
use std::path::{Path, PathBuf};

use agent_snapshot::snapshot::Snapshot;

use crate::truth::{Place, Who, compare, everyone, gaps, lines, scan, told};

const MECHANISMS: [&str; 3] = ["auto", "stops", "every-call"];

pub fn program() -> PathBuf {
    let test = env::current_exe().unwrap();
    let program = test.ancestors().nth(2).unwrap().join("examples/truth_random");
    assert!(program.exists(), "{} is missing: cargo build --examples", program.display());
    program
}

/// Runs the program of a seed; what is wrong in its recording, and what it did.
fn check(program: &Path, seed: u64, who: Who, mechanism: &str) -> Result<(), String> {
    let place = Place::new(who);
    let setup = crate::truth::as_who(who, program)
        .args(["--setup", &seed.to_string()])
        .current_dir(&place.work)
        .output()
        .unwrap();
    assert!(setup.status.success(), "seed {seed}: {}", told(&setup));
    let before = scan(&place.work);
    let output = place.recorder(who, mechanism).arg(program).arg(seed.to_string()).output().unwrap();
    let after = scan(&place.work);
    let failed = |what: String| format!("{what}\n{}", told(&output));
    if !output.status.success() {
        return Err(failed("the program failed".to_owned()));
    }
    let snapshot = Snapshot::open(&place.out).map_err(|error| failed(error.to_string()))?;
    let mut wrong = compare(&place.work, &before, &after, &snapshot);
    wrong.extend(gaps(&snapshot));
    if wrong.is_empty() { Ok(()) } else { Err(failed(lines(&wrong))) }
}

fn check_all(seeds: impl Iterator<Item = u64>) {
    let program = program();
    let only = env::var("TRUTH_SEED").ok().map(|seed| seed.parse::<u64>().unwrap());
    let seeds: Vec<u64> = only.map_or_else(|| seeds.collect(), |seed| vec![seed]);
    let mut failures = Vec::new();
    for who in everyone(&program) {
        for &seed in &seeds {
            for mechanism in MECHANISMS {
                if let Err(how) = check(&program, seed, who, mechanism) {
                    println!("TRUTH_SEED={seed} as {who:?} by {mechanism}: {how}\n");
                    failures.push(format!("{seed} as {who:?} by {mechanism}"));
                }
            }
        }
    }
    assert!(failures.is_empty(), "{} seeds failed: {}", failures.len(), failures.join(", "));
}

#[test]
fn a_few_random_programs_are_recorded_truly() {
    check_all(0..8);
}

#[test]
#[ignore = "slow: hundreds of programs"]
fn slow_random_programs_are_recorded_truly() {
    let count = env::var("TRUTH_SEEDS").ok().map_or(150, |count| count.parse().unwrap());
    check_all(1000..1000 + count);
}
