//! What the benchmarks of whole commands share.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// Runs `script` under `wrapper`: its time and, of a recording, the peak memory in KiB.
pub fn run(here: &Path, wrapper: &[&str], script: &str, recorded: bool) -> (Duration, u64) {
    let line: Vec<&str> = [wrapper, &["sh", "-c", script]].concat();
    let mut command = Command::new(line[0]);
    command.args(&line[1..]).current_dir(here).stdin(Stdio::null()).stdout(Stdio::null());
    // Cargo sets it, and with it every program searches more directories for its libraries.
    command.env_remove("LD_LIBRARY_PATH");
    // Not the developer's, whose table of files without a private key may be there or not.
    command.env("AGENT_SNAPSHOT_LIBRARY", here.join("library"));
    let start = Instant::now();
    let mut child = command.spawn().unwrap();
    let front = child.id();
    // In a thread of its own, so that the end is noticed at once and not at the next look at the memory.
    let watcher = recorded.then(|| thread::spawn(move || watch(front)));
    let status = child.wait().unwrap();
    let time = start.elapsed();
    let peak = watcher.map_or(0, |watcher| watcher.join().unwrap());
    // grep finds nothing, as it should.
    assert!(matches!(status.code(), Some(0 | 1)), "{line:?}: {status}");
    (time, peak)
}

/// The peak memory (VmHWM, KiB) of the tracing process, which `front` has a pidfd of.
fn watch(front: u32) -> u64 {
    let (mut peak, mut tracing) = (0, None);
    loop {
        let stat = fs::read_to_string(format!("/proc/{front}/stat")).unwrap_or_default();
        if stat.is_empty() || stat.contains(") Z ") {
            return peak;
        }
        tracing = tracing.or_else(|| tracing_process(front));
        if let Some(tracing) = tracing {
            let status = fs::read_to_string(format!("/proc/{tracing}/status")).unwrap_or_default();
            let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
            peak = peak.max(line.and_then(|line| line.split_whitespace().next()?.parse().ok()).unwrap_or(0));
        }
        // Often enough for what runs long, and without a share in what runs short.
        thread::sleep(Duration::from_millis(5));
    }
}

fn tracing_process(front: u32) -> Option<u32> {
    let process = |entry: fs::DirEntry| -> Option<u32> {
        let info = fs::read_to_string(entry.path()).ok()?;
        info.lines().find_map(|line| line.strip_prefix("Pid:"))?.trim().parse().ok()
    };
    let entries = fs::read_dir(format!("/proc/{front}/fdinfo")).ok()?;
    entries.flatten().filter_map(process).find(|process| *process != front)
}

/// Runs `script`, which must succeed.
pub fn shell(here: &Path, script: &str) {
    let mut command = Command::new("sh");
    let status = command.args(["-c", script]).current_dir(here).stdout(Stdio::null()).status().unwrap();
    assert!(status.success(), "{script}");
}

/// Compiles the C program `source` to `program`.
pub fn compile(source: &Path, program: &Path) {
    let status = Command::new("cc").args(["-O2", "-o"]).arg(program).arg(source).status().unwrap();
    assert!(status.success(), "cc {}", source.display());
}
