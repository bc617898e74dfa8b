//! How long `history` and `cat --at` take in a library of 10,000 recordings.
//!
//! One command is recorded; the others are copies of its snapshot with other paths and times, whose bytes are hard links.
//! `RECORDINGS=N` makes another number.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

#[path = "../tests/support/many.rs"]
mod many;

use many::multiply;

const BINARY: &str = env!("CARGO_BIN_EXE_agent-snapshot");

/// How often each verb runs; the median counts.
const ROUNDS: usize = 11;

fn main() {
    let count = std::env::var("RECORDINGS").map_or(10_000, |count| count.parse().expect("a number"));
    let base = tempfile::tempdir().expect("make a directory");
    let [work, library] = ["work", "library"].map(|name| base.path().join(name));
    fs::create_dir(&work).expect("make a directory");
    let bench = Bench { work, library };
    bench.run(&["run", "--", "sh", "-c", "mkdir directory; echo one > directory/file; echo two > shared"]);
    let begun = Instant::now();
    multiply(&bench.library, count);
    println!("{count} recordings made in {:.1} s", begun.elapsed().as_secs_f64());
    let time = |arguments: &[&str]| {
        let begun = Instant::now();
        bench.run(arguments);
        begun.elapsed()
    };
    println!("{:40} {:7.1} ms", "history shared, which makes the index", ms(time(&["history", "shared"])));
    let at = "2026-01-01T02:00:00Z";
    for arguments in [
        &["history", "shared"][..],
        &["history", "directory77"],
        &["cat", "shared", "--at", at],
        &["restore", "shared", "--at", at, "--dry-run"],
        &["log", "--all"],
        &["run", "--quiet", "--", "true"],
    ] {
        let mut times: Vec<Duration> = (0..ROUNDS).map(|_| time(arguments)).collect();
        times.sort();
        println!("{:40} {:7.1} ms", arguments.join(" "), ms(times[ROUNDS / 2]));
    }
    let size = fs::metadata(bench.library.join("paths.idx")).expect("the index is there").len();
    println!("paths.idx has {} KiB", size >> 10);
}

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1000.0
}

struct Bench {
    work: PathBuf,
    library: PathBuf,
}

impl Bench {
    /// Runs the program, which must succeed.
    fn run(&self, arguments: &[&str]) {
        let mut command = Command::new(BINARY);
        command.args(arguments).current_dir(&self.work).env("AGENT_SNAPSHOT_LIBRARY", &self.library);
        let output = command.stdin(Stdio::null()).output().expect("run the program");
        assert!(output.status.success(), "{arguments:?}: {output:?}");
    }
}
