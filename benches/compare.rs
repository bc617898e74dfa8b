//! What watching costs: each workload run bare, under do-nothing tracers (`floor.c`, `floor_hybrid.c`), under
//! strace, and recorded at `--keep undo` and `all`, in turn; medians, ratios to the bare command, the ratio of
//! `undo` to the hybrid floor, and our peak memory.
//!
//!     cargo bench --bench compare -- [ROUNDS] [WORKLOAD...]
//!     cargo bench --bench compare -- namespace [ROUNDS] [WORKLOAD...]
//!     cargo bench --bench compare -- enforced [ROUNDS] [WORKLOAD...]
//!     cargo bench --bench compare -- inside [ROUNDS] [WORKLOAD...]
//!
//! With `namespace`, each workload is run bare and recorded at `--keep undo`, in the mount namespace of the recorder and
//! in one of its own, where its directory is bound to another: what a recording adds in each, and the ratio of the two.
//! With `inside`, each is run bare, under the hybrid floor, and recorded with and without `--mechanism inside`.
//! With `enforced`, each is recorded at `--keep undo` without rules, with rules about changes that are enforced, and with
//! one about reads, too; medians, and the ratio to the first.
//!
//! Needs cc; strace, git, python3 and tar where they are there. Inputs are made below the temporary
//! directory and removed at the end.

#![allow(clippy::unwrap_used, reason = "an instrument")]

mod measure;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use measure::{compile, run, shell};

/// One thing that is measured.
struct Workload {
    name: &'static str,
    /// Run before each run, outside of the clock.
    reset: &'static str,
    script: &'static str,
    /// A program without which it is left out.
    needs: &'static str,
}

const fn of(name: &'static str, needs: &'static str, reset: &'static str, script: &'static str) -> Workload {
    Workload { name, reset, script, needs }
}

const WORKLOADS: [Workload; 19] = [
    of("start-up (true)", "sh", ":", "exec true"),
    of("200,000 stats of one path", "sh", ":", "exec ./stats 200000 Makefile"),
    of("600 short processes", "seq", ":", "for i in $(seq 600); do /bin/true; done"),
    of(
        "Python start with imports",
        "python3",
        ":",
        "exec python3 -c 'import json, asyncio, email, http.client, unittest'",
    ),
    of("git status, 1,500 files", "git", ":", "cd repo && exec git status --short"),
    of("grep -r, 1,500 tracked files", "git", ":", "exec grep -r no-such-word repo/src"),
    of("grep -r, 5,000 untracked files", "sh", ":", "exec grep -r no-such-word small"),
    of("find /usr", "sh", ":", "exec find /usr -name no-such-name"),
    of("untar 1,500 files", "tar", "rm -rf ex; mkdir ex", "exec tar xf files.tar -C ex"),
    of("make -j2, 33 C files", "make", "rm -f c/*.o c/lib.a", "exec make -s -C c -j2"),
    of("make -j8, 33 C files", "make", "rm -f c/*.o c/lib.a", "exec make -s -C c -j8"),
    of("8 searches at once", "seq", ":", "for i in $(seq 8); do grep -r no-such-word small & done; wait"),
    of("cat of 5,000 untracked files", "sh", ":", "cat small/* > /dev/null"),
    of(
        "5,000 files read by a process with threads",
        "node",
        ":",
        "exec node -e 'const f = require(\"fs\"); for (const n of f.readdirSync(\"small\")) f.readFileSync(\"small/\" + n)'",
    ),
    of("cp -r of 5,000 files", "sh", "rm -rf copy", "exec cp -r small copy"),
    of("rm -rf of 5,000 files", "sh", "rm -rf copy; cp -r small copy", "exec rm -rf copy"),
    of("1 GiB read", "sh", ":", "exec cat big > /dev/null"),
    of(
        "1 GiB rewritten",
        "sh",
        "rm -f big2; cp big big2",
        "exec dd if=big of=big2 bs=1M conv=notrunc status=none",
    ),
    of(
        "rename of a directory of 100,000 entries",
        "seq",
        "[ -d moved ] && mv moved many || [ -d many ] || { mkdir many; cd many; seq 100000 | xargs touch; }",
        "exec mv many moved",
    ),
];

/// What recordings are compared with.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Mode {
    /// Other tracers.
    Peers,
    /// Recordings in a mount namespace.
    Namespace,
    /// Recordings with rules that are enforced.
    Enforced,
    /// Recordings of processes that note their own calls.
    Inside,
}

impl Mode {
    /// What the figures in parentheses are.
    fn in_parentheses(self) -> &'static str {
        match self {
            Mode::Peers | Mode::Inside => "; in parentheses the ratio to the bare command",
            Mode::Namespace => "",
            Mode::Enforced => "; in parentheses the ratio to the recording without rules",
        }
    }

    fn columns(self) -> &'static str {
        match self {
            Mode::Peers => {
                "| workload | bare | stops floor | hybrid floor | strace | undo | all | undo/hybrid | peak memory |"
            }
            Mode::Namespace => {
                "| workload | bare | recorded | added | bare in a namespace | recorded in it | added | ratio |"
            }
            Mode::Enforced => "| workload | no rules | rules about changes | and about reads |",
            Mode::Inside => "| workload | bare | hybrid floor | notify | inside |",
        }
    }
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|word| !word.starts_with("--")).collect();
    let mode = match arguments.first().map(String::as_str) {
        Some("namespace") => Mode::Namespace,
        Some("enforced") => Mode::Enforced,
        Some("inside") => Mode::Inside,
        _ => Mode::Peers,
    };
    let arguments = &arguments[usize::from(mode != Mode::Peers)..];
    let rounds: usize = arguments.iter().find_map(|word| word.parse().ok()).unwrap_or(5);
    let wanted: Vec<&String> = arguments.iter().filter(|word| word.parse::<usize>().is_err()).collect();
    let base = tempfile::tempdir().unwrap();
    make_inputs(base.path());
    let strace = has("strace");
    println!("{rounds} rounds, medians{}", mode.in_parentheses());
    println!("{}", mode.columns());
    println!("{}|", "|---".repeat(mode.columns().matches('|').count() - 1));
    for workload in &WORKLOADS {
        let named = wanted.is_empty() || wanted.iter().any(|name| workload.name.contains(name.as_str()));
        if named && has(workload.needs) {
            match mode {
                Mode::Peers => measure(workload, base.path(), rounds, strace),
                Mode::Namespace => measure_apart(workload, base.path(), rounds),
                Mode::Enforced => measure_enforced(workload, base.path(), rounds),
                Mode::Inside => measure_inside(workload, base.path(), rounds),
            }
        }
    }
}

fn measure(workload: &Workload, here: &Path, rounds: usize, strace: bool) {
    let program = |name: &str| here.join(name).display().to_string();
    let (floor, hybrid, out) = (program("floor"), program("floor_hybrid"), program("out"));
    let recorded = |keep| {
        let binary = env!("CARGO_BIN_EXE_agent-snapshot");
        [binary, "--quiet", "--snapshot-dir", &out, "--max-read-bytes", "2G", "--keep", keep]
    };
    let traced = ["strace", "-f", "--seccomp-bpf", "-o", "/dev/null", "-e", "trace=%file"];
    let traced: &[&str] = if strace { &traced } else { &[] };
    let wrappers: [&[&str]; 6] = [&[], &[&floor], &[&hybrid], traced, &recorded("undo"), &recorded("all")];
    let mut peaks = [0; 6];
    let times = in_turn(workload, here, &out, rounds, |number| {
        let (time, memory) = run(here, wrappers[number], workload.script, number > 3);
        peaks[number] = peaks[number].max(memory);
        time
    });
    let [bare, floor, hybrid, traced, undo, all] = times;
    let cell = |time: Duration| {
        format!("{:.3} s ({:.2})", time.as_secs_f64(), time.as_secs_f64() / bare.as_secs_f64())
    };
    println!(
        "| {} | {:.4} s | {} | {} | {} | {} | {} | {:.2} | {} and {} MiB |",
        workload.name,
        bare.as_secs_f64(),
        cell(floor),
        cell(hybrid),
        if strace { cell(traced) } else { "-".to_owned() },
        cell(undo),
        cell(all),
        undo.as_secs_f64() / hybrid.as_secs_f64(),
        peaks[4] >> 10,
        peaks[5] >> 10,
    );
}

/// Measures what a recording adds in the recorder's mount namespace and in one of the command's own.
fn measure_apart(workload: &Workload, here: &Path, rounds: usize) {
    let out = tempfile::tempdir().unwrap();
    let view = tempfile::tempdir().unwrap();
    let [directory, bundle, view] = [here.to_owned(), out.path().join("out"), view.path().to_owned()]
        .map(|path| path.display().to_string());
    let binary = env!("CARGO_BIN_EXE_agent-snapshot");
    let recorded = [binary, "--quiet", "--snapshot-dir", &bundle, "--max-read-bytes", "2G", "--keep", "undo"];
    let unshare = if nix::unistd::geteuid().is_root() { "-m" } else { "-rm" };
    let enter = r#"mount --bind "$1" "$2"; cd "$2"; shift 2; exec "$@""#;
    let apart = ["unshare", unshare, "sh", "-euc", enter, "sh", &directory, &view];
    let both = [&recorded[..], &apart].concat();
    let wrappers: [&[&str]; 4] = [&[], &recorded, &apart, &both];
    let times = in_turn(workload, here, &bundle, rounds, |number| {
        run(here, wrappers[number], workload.script, false).0
    });
    let [bare, recorded, bare_apart, recorded_apart] = times.map(|time| time.as_secs_f64());
    let (added, added_apart) = (recorded - bare, recorded_apart - bare_apart);
    println!(
        "| {} | {bare:.4} s | {recorded:.4} s | {added:.4} s | {bare_apart:.4} s | {recorded_apart:.4} s | \
         {added_apart:.4} s | {:.2} |",
        workload.name,
        added_apart / added,
    );
}

/// Measures what rules that are enforced add to a recording.
fn measure_enforced(workload: &Workload, here: &Path, rounds: usize) {
    let out = tempfile::tempdir().unwrap();
    let bundle = out.path().join("out").display().to_string();
    let binary = env!("CARGO_BIN_EXE_agent-snapshot");
    let recorded = [binary, "--quiet", "--snapshot-dir", &bundle, "--max-read-bytes", "2G", "--keep", "undo"];
    let changes = ["--enforce", "--allow-write", "@workspace", "--allow-write", "@tmp"];
    let reads = ["--deny-read", "@secrets"];
    let wrappers =
        [recorded.to_vec(), [&recorded[..], &changes].concat(), [&recorded[..], &changes, &reads].concat()];
    let times = in_turn(workload, here, &bundle, rounds, |number| {
        run(here, &wrappers[number], workload.script, false).0
    });
    let [recorded, changes, reads] = times.map(|time| time.as_secs_f64());
    println!(
        "| {} | {recorded:.4} s | {changes:.4} s ({:.2}) | {reads:.4} s ({:.2}) |",
        workload.name,
        changes / recorded,
        reads / recorded,
    );
}

/// Measures what is saved where processes note their own calls.
fn measure_inside(workload: &Workload, here: &Path, rounds: usize) {
    let bundle = here.join("out").display().to_string();
    let hybrid = here.join("floor_hybrid").display().to_string();
    let binary = env!("CARGO_BIN_EXE_agent-snapshot");
    let recorded = [binary, "--quiet", "--snapshot-dir", &bundle, "--max-read-bytes", "2G", "--keep", "undo"];
    let inside = [&recorded[..], &["--mechanism", "inside"]].concat();
    let wrappers = [vec![], vec![hybrid.as_str()], recorded.to_vec(), inside];
    let times = in_turn(workload, here, &bundle, rounds, |number| {
        run(here, &wrappers[number], workload.script, false).0
    });
    let times: [f64; 4] = times.map(|time: Duration| time.as_secs_f64());
    let [bare, ..] = times;
    let [_, hybrid, notify, inside] = times.map(|time| format!("{time:.4} s ({:.2})", time / bare));
    println!("| {} | {bare:.4} s | {hybrid} | {notify} | {inside} |", workload.name);
}

/// The medians of runs in turn, each without the snapshot of the one before: removing that would be a part of its time.
fn in_turn<const N: usize>(
    workload: &Workload,
    here: &Path,
    bundle: &str,
    rounds: usize,
    mut run: impl FnMut(usize) -> Duration,
) -> [Duration; N] {
    let mut times = [const { Vec::new() }; N];
    // The first round warms the caches.
    for round in 0..=rounds {
        for (number, times) in times.iter_mut().enumerate() {
            shell(here, &format!("rm -rf '{bundle}'"));
            shell(here, workload.reset);
            let time = run(number);
            if round > 0 {
                times.push(time);
            }
        }
    }
    times.map(median)
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort();
    times[times.len() / 2]
}

fn has(program: &str) -> bool {
    let mut command = Command::new("sh");
    command.args(["-c", &format!("command -v {program}")]).stdout(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

fn make_inputs(here: &Path) {
    let benches: PathBuf = [env!("CARGO_MANIFEST_DIR"), "benches"].iter().collect();
    let build = |source: &Path, name: &str| compile(source, &here.join(name));
    build(&benches.join("floor.c"), "floor");
    build(&benches.join("floor_hybrid.c"), "floor_hybrid");
    let stats = here.join("stats.c");
    let program = "#include <stdlib.h>\n#include <sys/stat.h>\nint main(int c, char **v) {\n  \
                   struct stat s;\n  for (int i = atoi(v[1]); i > 0; i--) stat(v[2], &s);\n  return c != 3;\n}\n";
    fs::write(&stats, program).unwrap();
    build(&stats, "stats");
    for directory in ["c", "small", "repo/src", "library"] {
        fs::create_dir_all(here.join(directory)).unwrap();
    }
    let header = |number: usize| {
        format!("/* {number} */\n{}", "int some_function(int argument);\n".repeat(60 + number % 40))
    };
    for number in 0..33 {
        let includes = "#include <stdio.h>\n#include <stdlib.h>\n#include <string.h>\n#include <unistd.h>\n";
        let body = format!("{includes}int f{number}(int x) {{ return printf(\"%d\", x * {number}); }}\n");
        fs::write(here.join(format!("c/f{number}.c")), body).unwrap();
    }
    let makefile = "lib.a: $(patsubst %.c,%.o,$(wildcard f*.c))\n\tar rcs $@ $^\n";
    fs::write(here.join("c/Makefile"), makefile).unwrap();
    fs::write(here.join("Makefile"), "").unwrap();
    for number in 0..5000 {
        fs::write(here.join(format!("small/{number}.h")), header(number)).unwrap();
    }
    for number in 0..1500 {
        let directory = here.join(format!("repo/src/d{}", number % 50));
        fs::create_dir_all(&directory).unwrap();
        fs::write(directory.join(format!("{number}.h")), header(number)).unwrap();
    }
    shell(here, "tar cf files.tar repo");
    shell(here, "dd if=/dev/urandom of=big bs=1M count=1024 status=none");
    if has("git") {
        let commit = "git -c user.name=a -c user.email=a@example.org commit -qm one";
        shell(here, &format!("cd repo && git init -q && git add -A && {commit}"));
    }
}
