//! A command does not notice that it is recorded: the same scenario has the same output and exit status alone
//! and under each mechanism.

use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, Output};

use crate::support::{BINARY, MECHANISMS, Place, has, needs_root, program, stderr};

/// A command that is ended where it hangs, with status 124.
fn limited(program: &str) -> Command {
    let mut command = Command::new("timeout");
    command.args(["--foreground", "--kill-after=5", "120", program]);
    command
}

/// What is compared of a run.
fn seen(output: &Output) -> String {
    let end = match output.status.signal() {
        Some(signal) => format!("signal {signal}"),
        None => format!("status {:?}", output.status.code()),
    };
    format!("{}--- stderr\n{}--- {end}\n", String::from_utf8_lossy(&output.stdout), stderr(output))
}

/// The lines from the first difference on.
fn different_lines(one: &str, other: &str) -> (String, String) {
    let same = one.lines().zip(other.lines()).take_while(|(one, other)| one == other).count();
    let rest =
        |text: &str| text.lines().skip(same.saturating_sub(2)).take(30).collect::<Vec<_>>().join("\n") + "\n";
    (rest(one), rest(other))
}

/// Runs the same command alone and recorded, each in a fresh place, and in a group of its own: a test that
/// is run without a terminal may be in an orphaned one, which SIGTSTP does not stop.
fn compare(what: &str, prepare: impl Fn(&Place, &mut Command), command: &[&str]) -> Result<(), String> {
    let place = Place::new();
    let mut alone = limited(command[0]);
    place.isolate(alone.process_group(0));
    prepare(&place, &mut alone);
    let alone = seen(&alone.args(&command[1..]).output().unwrap());
    for mechanism in MECHANISMS {
        let place = Place::new();
        let mut recorded = limited(BINARY);
        place.isolate(recorded.process_group(0));
        prepare(&place, &mut recorded);
        recorded.arg("--snapshot-dir").arg(&place.out).args(["--mechanism", mechanism]).args(command);
        if mechanism != "inside" {
            // There are no notes to fill up.
            recorded.env("NOTED_CALLS", "200");
        }
        let recorded = seen(&recorded.output().unwrap());
        if recorded != alone {
            return Err(format!(
                "{what} differs under {mechanism}\n=== alone\n{alone}=== recorded\n{recorded}"
            ));
        }
        place.snapshot();
    }
    println!("{what}:\n{alone}");
    Ok(())
}

/// Runs each scenario of a test program alone and recorded, and shows what differs, all of it.
fn compare_all(name: &str) {
    let program = program(name);
    let program = program.to_str().unwrap();
    let list = Command::new(program).arg("--list").output().unwrap();
    let list = String::from_utf8(list.stdout).unwrap();
    assert!(!list.is_empty(), "{program} has no scenarios");
    let differences: Vec<String> = list
        .lines()
        .filter_map(|scenario| compare(scenario, |_, _| {}, &[program, scenario]).err())
        .collect();
    assert!(differences.is_empty(), "{}", differences.join("\n"));
}

#[test]
fn signals_and_stops_work_as_alone() {
    compare_all("signals");
}

#[test]
fn noted_calls_are_made_as_alone() {
    compare_all("noted_calls");
}

#[test]
fn processes_and_threads_run_as_alone() {
    compare_all("processes");
}

/// Runs a script in which `$record` is nothing, or the start of a recording.
fn compare_launch(script: &str) {
    for mechanism in MECHANISMS {
        let run = |recorded: bool| {
            let place = Place::new();
            let record =
                format!("{BINARY} --snapshot-dir {} --mechanism {mechanism} --", place.out.display());
            let mut command = limited("sh");
            place.isolate(&mut command);
            command.env("record", if recorded { &record } else { "" });
            for name in ["signals", "processes", "inherited"] {
                command.env(name, program(name));
            }
            let output = seen(&command.args(["-c", script]).output().unwrap());
            if recorded {
                place.snapshot();
            }
            // The environment is shown.
            output.replace(&record, "").replace(place.base().to_str().unwrap(), "BASE")
        };
        // Warms the page cache: before Linux 5.18, the I/O priority tells whether the process has read from the disk.
        for recorded in [false, true] {
            run(recorded);
        }
        let (alone, recorded) = (run(false), run(true));
        let differences = different_lines(&alone, &recorded);
        assert!(alone == recorded, "{script}\n=== alone\n{}=== recorded\n{}", differences.0, differences.1);
        println!("{alone}");
    }
}

#[test]
fn command_inherits_the_recorders_attributes() {
    compare_launch("$record $inherited identity one '' 'two three'");
    compare_launch(
        "umask 027; ulimit -n 77; ulimit -c 0; ulimit -s 4096; nice -n 7 $record $inherited identity",
    );
    compare_launch("trap '' INT TERM USR1 HUP CHLD PIPE; cd /; exec $record $inherited identity");
    if !needs_root("an oom score below its own, another group and session") {
        return;
    }
    compare_launch("echo 500 > /proc/self/oom_score_adj; $record $inherited identity");
    compare_launch("setsid --wait sh -c '$record $inherited identity' | grep -v -e ^group -e ^NS");
    compare_launch("chrt --batch 0 ionice -c 3 $record $inherited identity");
    compare_launch("taskset 1 $record $inherited identity");
}

/// As in a container whose first process was put into the namespace by a runtime outside of it.
#[test]
fn process_group_and_session_may_lie_outside_of_the_pid_namespace() {
    let unshare = ["unshare", "--map-root-user", "--pid", "--fork", "--mount-proc"];
    if !Place::new().can_run(&[&unshare[..], &["true"]].concat()) {
        println!("skipped: no PID namespace can be created here");
        return;
    }
    compare_launch(&format!(
        "{} sh -c '$record sh -c \"cut -d \\  -f 5-6 /proc/self/stat; echo text > file; kill -TERM \\$\\$\"; echo $?'",
        unshare.join(" ")
    ));
}

#[test]
fn parent_death_signal_reaches_the_command() {
    if !has("setpriv") {
        return;
    }
    compare_launch(
        "mkfifo up told
         sh -c 'setpriv --pdeathsig USR1 $record sh -c \"trap \\\"echo told > told; exit\\\" USR1
             echo > up; while :; do sleep 0.1; done\" & read x < up; kill -9 $$'
         cat told",
    );
}

#[test]
fn descriptors_are_inherited_unchanged() {
    compare_launch("$record $inherited descriptors");
    compare_launch(
        "exec 9> high 8< /dev/null 7<> both; echo text >&9; $record $inherited descriptors < high 2>> log; cat log",
    );
    compare_launch("$record sh -c 'ls -l /proc/self/fd | wc -l; echo x >&8' 8> high; cat high");
    for closed in ["<&-", ">&-", "2>&-", "<&- >&-", "<&- >&- 2>&-"] {
        // A shell keeps them closed for its child, whose own start fills them with /dev/null.
        compare_launch(&format!(
            "$record sh -c 'for fd in 0 1 2; do test -e /proc/$$/fd/$fd; echo $fd $? >> seen; done' {closed}; cat seen"
        ));
        compare_launch(&format!("$record sh -c 'exec 5> first; ls /proc/$$/fd > list' {closed}; cat list"));
    }
}

#[test]
fn pipes_end_when_the_command_closes_them() {
    compare_launch("$record yes | head -n 3");
    compare_launch("$record sh -c 'yes; echo $? >&2' | head -n 1");
    compare_launch("echo one | $record cat");
    // The reader sees the end, though the command lives on.
    compare_launch(
        "mkfifo go; $record sh -c 'echo early; exec >&-; read line < go; echo $line >&2' | { cat; echo ended; echo go > go; }",
    );
    // The writer gets SIGPIPE, though the command lives on.
    compare_launch(
        "mkfifo go; { yes 2> note; echo $? > status; echo go > go; } | $record sh -c 'exec <&-; read line < go; echo $line'; cat status",
    );
    compare_launch(
        "mkfifo go; exec 3<> go; flock -n 3 $record flock -n go true; echo $?; flock -n go $record flock -n go echo never; echo $?",
    );
}

#[test]
fn program_without_a_libc_runs_as_alone() {
    let place = Place::new();
    let source = place.at("tiny.s");
    std::fs::write(&source, include_str!("../../testdata/tiny.s")).unwrap();
    let tiny = place.at("tiny");
    let built = Command::new("cc").args(["-nostdlib", "-static", "-o"]).args([&tiny, &source]).output();
    if !built.is_ok_and(|output| output.status.success()) {
        println!("skipped: there is no C compiler that links a program of its own");
        return;
    }
    compare("tiny", |_, _| {}, &[tiny.to_str().unwrap()]).unwrap();
    let snapshot = {
        let mut command = place.recording();
        command.arg(&tiny);
        assert_eq!(command.output().unwrap().status.code(), Some(42));
        place.snapshot()
    };
    assert_eq!(place.recorded(&snapshot), ["made write", "tiny read+execute"]);
}
