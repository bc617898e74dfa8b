//! How long `history` and `cat --at` take in a library of 10,000 recordings.
//!
//! One command is recorded; the others are copies of its snapshot with other paths and times, whose bytes are hard links.
//! `RECORDINGS=N` makes another number.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

const BINARY: &str = env!("CARGO_BIN_EXE_agent-snapshot");

/// How often each verb runs; the median counts.
const ROUNDS: usize = 11;

/// One recording of so many changes the path that is looked for.
const SHARE: usize = 500;

fn main() {
    let count = std::env::var("RECORDINGS").map_or(10_000, |count| count.parse().expect("a number"));
    let base = tempfile::tempdir().expect("make a directory");
    let [work, library] = ["work", "library"].map(|name| base.path().join(name));
    fs::create_dir(&work).expect("make a directory");
    let bench = Bench { work, library };
    bench.run(&["run", "--", "sh", "-c", "mkdir directory; echo one > directory/file; echo two > shared"]);
    let begun = Instant::now();
    bench.multiply(count);
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

    /// Makes as many snapshots of the one that is there, with their lines in the log.
    fn multiply(&self, count: usize) {
        let snapshots = self.library.join("snapshots");
        let first =
            fs::read_dir(&snapshots).expect("list").next().expect("one is there").expect("list").path();
        let manifest: Value = read(&first.join("manifest.json"));
        let line: Value = read(&self.library.join("log.jsonl"));
        let mut log = Vec::new();
        for number in 0..count {
            let mut id = String::from("aa");
            (0..6).for_each(|digit| {
                id.push(char::from(b'a' + u8::try_from(number >> (4 * digit) & 15).expect("15 at most")))
            });
            let start =
                jiff::Timestamp::UNIX_EPOCH + jiff::SignedDuration::from_secs(1_767_225_600 + number as i64);
            let (start, end) =
                (start.to_string(), (start + jiff::SignedDuration::from_millis(500)).to_string());
            let mut copy = manifest.clone();
            let whole_id = format!("{id}{}", &manifest["id"].as_str().expect("an id")[8..]);
            (copy["id"], copy["started_at"], copy["finished_at"]) =
                (whole_id.into(), start.as_str().into(), end.as_str().into());
            let files = copy["files"].as_array_mut().expect("records");
            files.retain(|file| {
                !file["path"].as_str().expect("a path").ends_with("/shared") || number % SHARE == 0
            });
            for file in files.iter_mut() {
                let path = file["path"].as_str().expect("a path").to_owned();
                let path = path.replace("/file", &format!("/file{number}"));
                file["path"] = path.replace("/directory", &format!("/directory{}", number % 100)).into();
            }
            files.sort_by(|one, other| one["path"].as_str().cmp(&other["path"].as_str()));
            let directory = snapshots.join(&id);
            fs::create_dir(&directory).expect("make a directory");
            fs::hard_link(first.join("blobs.parquet"), directory.join("blobs.parquet")).expect("link");
            fs::write(directory.join("manifest.json"), copy.to_string()).expect("write");
            let mut line = line.clone();
            (line["id"], line["time"], line["finished"]) = (id.into(), start.into(), end.into());
            log.extend(format!("{line}\n").into_bytes());
        }
        fs::write(self.library.join("log.jsonl"), log).expect("write");
        fs::remove_dir_all(first).expect("remove the first one");
    }
}

fn read(path: &Path) -> Value {
    serde_json::from_slice(&fs::read(path).expect("read")).expect("JSON")
}
