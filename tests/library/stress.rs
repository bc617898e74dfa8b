//! Many recordings at once, with every verb beside them, and kills.

use std::collections::HashSet;
use std::fs;
use std::os::unix::process::ExitStatusExt as _;
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use agent_snapshot::snapshot::Snapshot;

use super::{library, log, newest, run, verb};
use crate::support::{Place, Random, Run, kill};

/// How many recordings are made at once.
const RECORDERS: usize = 50;

/// How large the library may become.
const MOST: u64 = 2 << 20;

/// The processes of our program in a place, by its home directory.
fn processes(place: &Place) -> Vec<i32> {
    let home = format!("HOME={}", place.home.display());
    let is_here = |pid: &i32| {
        let is_ours = fs::read_to_string(format!("/proc/{pid}/comm"))
            .is_ok_and(|comm| comm.starts_with("agent-snapshot"));
        is_ours
            && fs::read(format!("/proc/{pid}/environ"))
                .is_ok_and(|text| text.split(|byte| *byte == 0).any(|word| word == home.as_bytes()))
    };
    let names = fs::read_dir("/proc").unwrap().flatten();
    names.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).filter(is_here).collect()
}

/// What a verb has done beside the others: killed, stopped by a change that a recorded command made after the check,
/// or ended with one of these.
fn check(place: &Place, arguments: &[&str], expected: &[i32]) {
    let output = place.command().args(arguments).output().unwrap();
    let is_killed = output.status.signal() == Some(9);
    let run = Run::from(output);
    let is_overtaken = run.status == 125 && run.stderr.contains("run the same command again");
    assert!(is_killed || is_overtaken || expected.contains(&run.status), "{arguments:?}: {run:#?}");
    assert!(!run.stderr.contains("panicked"), "{run:#?}");
}

/// What is in the snapshots that a check calls damaged.
fn listing_of_damaged(place: &Place, check: &Run) -> String {
    let damaged = check.stdout.lines().filter_map(|line| line.strip_prefix("damaged: ")?.split(": ").next());
    let listing = |path: &str| {
        let output = Command::new("ls").arg("-la").arg(library(place).join(path)).output().unwrap();
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    damaged.map(listing).collect()
}

#[test]
#[ignore = "a minute or STRESS_SECONDS"]
fn slow_library_stress() {
    let seconds = std::env::var("STRESS_SECONDS").ok().and_then(|seconds| seconds.parse().ok()).unwrap_or(60);
    let place = Place::new();
    let mut protected = HashSet::new();
    for name in ["one", "two", "three"] {
        run(&place, &["--name", name], &format!("echo {name} > {name}"));
        protected.insert(newest(&place));
    }
    run(&place, &[], "echo held > held");
    let held = newest(&place);
    let open = Snapshot::open(&library(&place).join("snapshots").join(&held)).unwrap();
    protected.insert(held);
    let end = Instant::now() + Duration::from_secs(seconds);
    let goes_on = || Instant::now() < end;
    let (recorded, kills) = (AtomicUsize::new(0), AtomicUsize::new(0));
    thread::scope(|scope| {
        let (place, recorded, kills, goes_on, protected) = (&place, &recorded, &kills, &goes_on, &protected);
        for number in 0..RECORDERS {
            scope.spawn(move || {
                while goes_on() {
                    let script =
                        format!("date +%N > f{number}; echo {number} >> shared; mkdir -p d; mv f{number} d");
                    check(place, &["run", "sh", "-c", &script], &[0, 125, 137]);
                    recorded.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        let most = MOST.to_string();
        scope.spawn(move || {
            while goes_on() {
                check(place, &["prune", "--max-size", &most], &[0]);
                check(place, &["prune", "--keep-last", "100"], &[0]);
            }
        });
        scope.spawn(move || {
            let mut random = Random::seeded();
            while goes_on() {
                let listed = place.command().args(["log", "--all", "--json"]).output().unwrap();
                // It may have been killed.
                let Ok(listed) = serde_json::from_slice::<serde_json::Value>(&listed.stdout) else {
                    continue;
                };
                let listed = listed["recordings"].as_array().unwrap();
                if listed.len() > 40 {
                    let id = listed[20 + random.below(listed.len() - 20)]["id"].as_str().unwrap();
                    if !protected.contains(id) {
                        check(place, &["delete", id], &[0, 1]);
                    }
                }
            }
        });
        scope.spawn(move || {
            while goes_on() {
                check(place, &["show", "@"], &[0, 3]);
                check(place, &["log", "--path", "d"], &[0]);
                check(place, &["stats"], &[0]);
                check(place, &["undo"], &[0, 1, 3]);
                check(place, &["redo"], &[0, 1, 3]);
            }
        });
        scope.spawn(move || {
            let mut random = Random::seeded();
            while goes_on() {
                // A few, or now and then all at once: whole recordings with their recorders.
                let ours = processes(place);
                let few = if random.below(16) == 0 { ours.len() } else { ours.len().min(3) };
                let killed = (0..few).filter(|_| kill(ours[random.below(ours.len())])).count();
                kills.fetch_add(killed, Ordering::Relaxed);
            }
        });
    });
    let deadline = Instant::now() + Duration::from_secs(60);
    while !processes(&place).is_empty() {
        assert!(Instant::now() < deadline, "{:?}", processes(&place));
        thread::yield_now();
    }
    println!("{} recordings, {} kills", recorded.into_inner(), kills.into_inner());
    let repaired = verb(&place, &["fsck", "--repair"]);
    assert_eq!(repaired.status, 0, "{repaired:#?}\n{}", listing_of_damaged(&place, &repaired));
    verb(&place, &["fsck"]).expect(0);
    let listed: Vec<String> = log(&place, &["--all", "--reads", "--limit", "100000"])
        .iter()
        .map(|entry| entry["id"].as_str().unwrap().to_owned())
        .collect();
    for id in &listed {
        verb(&place, &["show", id]).expect(0);
    }
    assert!(protected.iter().all(|id| listed.contains(id)), "{listed:?}");
    assert!(listed.len() >= 20);
    // An undo that was killed is completed, or taken back.
    for _ in 0..3 {
        let undo = verb(&place, &["undo", "--skip-conflicts"]);
        assert!([0, 1].contains(&undo.status), "{undo:#?}");
    }
    drop(open);
    verb(&place, &["prune", "--max-size", &MOST.to_string()]).expect(0);
    let stats = verb(&place, &["stats", "--json"]).expect(0);
    let stats: serde_json::Value = serde_json::from_str(&stats.stdout).unwrap();
    assert!(stats["library_size"].as_u64().unwrap() <= MOST, "{stats}");
    verb(&place, &["fsck"]).expect(0);
}
