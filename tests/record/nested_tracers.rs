//! Debuggers and tracers inside of a recording: they see what they see alone, and the recording is that of the same
//! commands without them.

use std::collections::BTreeMap;
use std::fs;

use agent_snapshot::snapshot::{Operation, Snapshot, WarningKind};

use crate::support::{MECHANISMS, Place, User, has, lost, program, stderr};

/// Addresses, process ids, times and counts as `N`.
fn masked(line: &str) -> String {
    let mut masked = String::new();
    let mut letters = line.chars().peekable();
    while let Some(letter) = letters.next() {
        let is_in_word = masked.chars().last().is_some_and(|last| last.is_ascii_alphanumeric());
        if !letter.is_ascii_digit() || is_in_word {
            masked.push(letter);
            continue;
        }
        let mut number = String::from(letter);
        while let Some(next) = letters.next_if(|next| next.is_ascii_alphanumeric() || *next == '.') {
            number.push(next);
        }
        masked += if number.len() > 2 { "N" } else { &number };
    }
    masked
}

/// What `strace -f -o` has written: the lines of each process, in the order of their texts, calls that were interrupted by
/// others' lines put together.
fn by_process(log: &str) -> Vec<Vec<String>> {
    let mut processes: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for line in log.lines() {
        let (process, rest) = line.split_once(' ').unwrap();
        let lines = processes.entry(process).or_default();
        let rest = rest.trim_start();
        if let Some(resumed) = rest.strip_prefix("<... ") {
            let (_, end) = resumed.split_once("resumed>").unwrap();
            lines.last_mut().unwrap().push_str(&masked(end.trim_start()));
        } else {
            // When a signal comes is chance.
            if !rest.starts_with("--- SIGCHLD") {
                // Nor what strace says of a line that is not at its end yet.
                let ends = ["<unfinished ...>", "<pid changed to"];
                let end = ends.iter().filter_map(|end| rest.find(end)).min().unwrap_or(rest.len());
                lines.push(masked(rest[..end].trim_end()));
            }
        }
    }
    let squeeze = |line: String| line.split_whitespace().collect::<String>();
    let mut processes: Vec<Vec<String>> =
        processes.into_values().map(|lines| lines.into_iter().map(squeeze).collect()).collect();
    processes.sort();
    processes
}

/// Status, standard output and standard error of a script, its numbers masked, the lines of `log` by process.
type Seen = (Option<i32>, Vec<String>, Vec<String>, Vec<Vec<String>>);

fn seen(place: &Place, mut command: std::process::Command) -> Seen {
    let _ = fs::remove_file(place.at("log"));
    let output = command.output().unwrap();
    let lines = |bytes: &[u8]| String::from_utf8_lossy(bytes).lines().map(masked).collect();
    let log = fs::read_to_string(place.at("log")).unwrap_or_default();
    (output.status.code(), lines(&output.stdout), lines(&output.stderr), by_process(&log))
}

/// Compares what a script does alone and recorded, by each mechanism and as each user.
fn is_the_same_recorded(prepare: impl Fn(&Place), script: &str) {
    for user in User::all() {
        for mechanism in MECHANISMS {
            let place = Place::of(*user);
            prepare(&place);
            let mut alone = place.program("sh");
            alone.args(["-c", script]);
            let alone = seen(&place, alone);
            let mut recorded = place.recorder(mechanism);
            recorded.args(["sh", "-c", script]);
            let recorded = seen(&place, recorded);
            assert_eq!(recorded, alone, "{mechanism} {user:?}");
            let snapshot = place.snapshot();
            assert_eq!(lost(&snapshot), [], "{mechanism} {user:?}");
            assert!(!has_warning(&snapshot), "{mechanism} {user:?}");
        }
    }
}

fn has_warning(snapshot: &Snapshot) -> bool {
    snapshot.header().warnings.iter().any(|warning| warning.kind == WarningKind::NestedTracer)
}

#[test]
fn strace_of_a_pipeline_prints_what_it_prints_alone() {
    if has("strace") {
        is_the_same_recorded(
            |place| place.write("f", "b\na\n"),
            "strace -f -o log -e trace=execve,openat,unlinkat,exit_group,dup2 sh -c 'cat f | sort > g; rm g h; exit 3'",
        );
    }
}

#[test]
fn strace_counts_what_it_counts_alone() {
    if has("strace") {
        is_the_same_recorded(
            |_| {},
            "strace -f -c -o counted sh -c 'echo hi > f; cat f; ls / > /dev/null'; awk '{print $NF}' counted | sort",
        );
    }
}

#[test]
fn strace_of_a_running_process_sees_its_end() {
    // strace tells of the FIFO's open only if it comes before that.
    const SCRIPT: &str = "
        : > said; sh -c 'echo up > up; read line < fifo; cat f; exit 4' & process=$!
        until test -s up; do sleep 0.02; done
        strace -f -o log -e trace=execve,exit_group,openat -p $process 2> said & strace=$!
        until grep -q attached said; do sleep 0.02; done
        echo go > fifo; wait $process; echo $?; wait $strace; echo $?; grep -c . said; rm up; sed -i /fifo/d log";
    if has("strace") {
        is_the_same_recorded(
            |place| {
                place.write("f", "content\n");
                place.prepare("mkfifo fifo; chmod 666 fifo");
            },
            SCRIPT,
        );
    }
}

#[test]
fn strace_that_is_interrupted_leaves_its_process_running() {
    const SCRIPT: &str = "
        : > said; sleep 100 & process=$!
        strace -o log -e trace=none -p $process 2> said & strace=$!
        until grep -q attached said; do sleep 0.02; done
        kill -INT $strace; wait $strace; echo $?; kill -0 $process && kill $process; wait $process 2> killed; echo $?";
    if has("strace") {
        is_the_same_recorded(|_| {}, SCRIPT);
    }
}

#[test]
fn strace_sees_the_calls_of_threads() {
    const SCRIPT: &str = "python=$(python3 -c 'import sys; print(sys.executable)')
strace -f -o log -e trace=write,exit_group $python -S -c \"
import os, threading
def work(number):
    for _ in range(3):
        os.write(file, str(number).encode())
file = os.open('written', os.O_WRONLY | os.O_CREAT)
threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]\"";
    if has("strace") && has("python3") {
        is_the_same_recorded(|place| drop(place.prepare("touch written; chmod 666 written")), SCRIPT);
    }
}

#[test]
fn strace_follows_an_execve_of_another_thread() {
    const SCRIPT: &str = "python=$(python3 -c 'import sys; print(sys.executable)')
strace -f -o log -e trace=execve,exit_group $python -S -c \"
import os, signal, threading
def sleeps():
    # pause, which is a ppoll where there is no such call; not at its entry.
    with open('/proc/self/syscall') as call, open('/proc/self/stat') as stat:
        return call.read().split()[0] in ('34', '73') and stat.read().split()[2] == 'S'
def work():
    while not sleeps():
        pass
    os.execv('/bin/sh', ['sh', '-c', 'exit 6'])
threading.Thread(target=work).start()
signal.pause()\" 2> said; echo $?";
    if has("strace") && has("python3") {
        is_the_same_recorded(|_| {}, SCRIPT);
    }
}

#[test]
fn strace_sees_the_end_of_all_threads_at_an_execve() {
    if !has("strace") {
        return;
    }
    for user in User::all() {
        for mechanism in MECHANISMS {
            for _ in 0..3 {
                let place = Place::of(*user);
                let program = place.executable(&program("bypass"));
                place.prepare("echo own > own; chmod 777 .");
                let mut command = place.recorder(mechanism);
                command.args(["strace", "-f", "-qq", "-o", "/dev/null", "-e", "trace=none"]).arg(program);
                let output = command.args(["executes_in_threads", "8"]).output().unwrap();
                // Of a thread of whose end it was not told, it says that there is no such child.
                assert_eq!(
                    (output.status.code(), stderr(&output)),
                    (Some(0), String::new()),
                    "{mechanism} {user:?}"
                );
                assert_eq!(lost(&place.snapshot()), [], "{mechanism} {user:?}");
            }
        }
    }
}

#[test]
fn strace_can_change_results_and_calls_are_recorded_as_made() {
    if !has("strace") {
        return;
    }
    for mechanism in MECHANISMS {
        let place = Place::new();
        place.write("f", "kept\n");
        let mut command = place.recorder(mechanism);
        command.args(["strace", "-o", "/dev/null", "-e", "inject=unlinkat:error=EPERM", "rm", "-f", "f"]);
        assert_eq!(command.output().unwrap().status.code(), Some(1), "{mechanism}");
        assert!(place.at("f").exists(), "{mechanism}");
        let snapshot = place.snapshot();
        assert!(!has_warning(&snapshot), "{mechanism}");
        let removed =
            place.recorded(&snapshot).iter().any(|line| line.contains("remove") || line.contains("delete"));
        assert!(!removed, "{mechanism}: {:?}", place.recorded(&snapshot));
    }
}

#[test]
fn gdb_runs_to_a_breakpoint_and_on_as_alone() {
    const SCRIPT: &str =
        "gdb -batch -nx -ex 'break f' -ex run -ex bt -ex next -ex step -ex continue -ex continue ./program";
    if has("gdb") && has("gcc") {
        is_the_same_recorded(
            |place| {
                let text = "#include <stdio.h>\nint f(int n) { puts(\"f\"); return n + 1; }\n\
                            int main(int n) { n = f(n); n = f(n); return n; }\n";
                place.write("program.c", text);
                place.prepare("gcc -g -O0 -o program program.c");
            },
            SCRIPT,
        );
    }
}

#[test]
fn gdb_attaches_and_detaches_as_alone() {
    const SCRIPT: &str = "
        sh -c 'echo up > up; read line < fifo; exit 4' & process=$!
        until test -s up; do sleep 0.02; done
        gdb -nx -batch -ex 'print $_siginfo.si_signo' -p $process > said 2> /dev/null; tail -n 1 said
        echo go > fifo; wait $process; echo $?; rm up";
    if has("gdb") {
        is_the_same_recorded(|place| drop(place.prepare("mkfifo fifo; chmod 666 fifo")), SCRIPT);
    }
}

#[test]
fn parent_that_waits_sees_its_child_that_asks_to_be_traced() {
    for (how, said) in [
        ("ends", "stop 19\nexit 5\n"),
        ("exitkill", "stop 19\n"),
        ("dies", "stop 19\nstop 10\n"),
        ("looks", "stop 19\nstop 10\n"),
    ] {
        for user in User::all() {
            for mechanism in MECHANISMS {
                let place = Place::of(*user);
                let bypass = place.executable(&program("bypass"));
                let mut command = place.recorder(mechanism);
                let output = command.arg(bypass).args(["traces", how]).output().unwrap();
                assert_eq!(String::from_utf8_lossy(&output.stdout), said, "{mechanism} {user:?}: {output:?}");
                assert_eq!(output.status.code(), Some(7), "{mechanism} {user:?}: {output:?}");
                // A child that is no longer traced runs on. Only if its tracer has not waited for the stop, it gets the
                // signal, of which it dies; and PTRACE_O_EXITKILL kills it.
                assert_eq!(place.at("free").exists(), how == "dies", "{mechanism} {user:?}");
                assert_eq!(lost(&place.snapshot()), [], "{mechanism} {user:?}");
            }
        }
    }
}

/// Each path with its operations, without those of the tracer.
fn uses(place: &Place, snapshot: &Snapshot) -> Vec<String> {
    let base = place.base().to_str().unwrap();
    let files = snapshot.files().iter().map(|file| {
        let operations: Vec<_> = file.operations.iter().map(Operation::name).collect();
        let path = String::from_utf8_lossy(&file.path).replace(base, "");
        format!(
            "{path} {} {:?} {:?}",
            operations.join("+"),
            file.before.present().is_some(),
            file.after.present().is_some()
        )
    });
    files.collect()
}

#[test]
fn recording_is_the_same_with_strace_and_without() {
    if !has("strace") {
        return;
    }
    for mechanism in MECHANISMS {
        let record = |tracer: &[&str]| {
            let place = Place::new();
            place.write("g", "old\n");
            let mut command = place.recorder(mechanism);
            command.args(tracer).args([
                "sh",
                "-c",
                "echo hi > f; cat f; rm g; cat < absent | wc -l; (exec ls f)",
            ]);
            let output = command.output().unwrap();
            assert_eq!(output.stdout, b"hi\n0\nf\n", "{mechanism}: {output:?}");
            let snapshot = place.snapshot();
            assert_eq!(lost(&snapshot), [], "{mechanism}");
            uses(&place, &snapshot)
        };
        let own = record(&[]);
        let traced = record(&["strace", "-f", "-o", "/dev/null"]);
        let missing: Vec<_> = own.iter().filter(|line| !traced.contains(line)).collect();
        assert!(missing.is_empty(), "{mechanism}: {missing:#?}");
    }
}

#[test]
fn tracer_of_a_tracer_is_refused_and_named() {
    for words in [&["strace", "true"][..], &["gdb", "-batch", "-ex", "run", "true"]] {
        if !has(words[0]) || !has("strace") {
            continue;
        }
        for mechanism in MECHANISMS {
            let place = Place::new();
            let mut command = place.recording();
            command.args(["--report", "summary", "--timeout", "60s", "--mechanism", mechanism, "--"]);
            let output = command.args(["strace", "-o", "/dev/null"]).args(words).output().unwrap();
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
    if !has("strace") {
        return;
    }
    for (how, said) in [("attach", "ATTACH EPERM\n"), ("traceme", "TRACEME EPERM\n")] {
        for mechanism in MECHANISMS {
            let place = Place::new();
            let mut command = place.recorder(mechanism);
            command.args(["strace", "-o", "/dev/null"]).arg(program("bypass"));
            let output = command.args(["fails_to_trace", how]).output().unwrap();
            assert_eq!(String::from_utf8_lossy(&output.stdout), said, "{mechanism}");
            assert_eq!(output.status.code(), Some(7), "{mechanism}: {output:?}");
            let snapshot = place.snapshot();
            let warnings = &snapshot.header().warnings;
            let ended = warnings.iter().find(|warning| warning.kind == WarningKind::Survivors).unwrap();
            assert!(ended.detail.contains("which could not trace it"), "{mechanism}: {ended:?}");
        }
    }
}
