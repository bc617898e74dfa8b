//! The same keys typed at a terminal to an interactive shell, whose command runs alone or recorded.

use std::fs;
use std::io::Read as _;
use std::process::Stdio;
use std::time::Instant;

use crate::support::{BINARY, MECHANISMS, PATIENCE, Place, Terminal, bytes, has, open_pty, program, wait};

/// A shell in which `$r` starts a recording, or is nothing; none where there is no such shell.
fn terminal(recorded: Option<&str>) -> Option<Terminal> {
    let place = Place::new();
    let record = recorded.map(|mechanism| {
        let out = place.out.display();
        format!("{BINARY} --snapshot-dir {out} --report none --mechanism {mechanism} --")
    });
    let bypass = program("bypass");
    let environment = [("r", &*record.unwrap_or_default()), ("bypass", bypass.to_str().unwrap())];
    Terminal::new(place, &[], &environment)
}

/// Alone, and recorded by each mechanism: what is typed has the same answers.
fn at_a_terminal(steps: impl Fn(&mut Terminal), check: impl Fn(&Place)) {
    compare(&[None, Some("auto"), Some("stops"), Some("every-call")], steps, check);
}

fn compare(ways: &[Option<&str>], steps: impl Fn(&mut Terminal), check: impl Fn(&Place)) {
    for recorded in ways.iter().copied() {
        println!("{recorded:?}");
        let Some(mut terminal) = terminal(recorded) else { return };
        steps(&mut terminal);
        let place = terminal.end();
        if recorded.is_some() {
            check(&place);
        }
    }
}

#[test]
fn ctrl_c_ends_the_command_and_the_loop_around_it() {
    let steps = |terminal: &mut Terminal| {
        terminal.line("$r sh -c 'echo up; echo here; exec sleep 1000'", "here\r");
        terminal.keys("\x03");
        terminal.status(130);
        let work = "$r sh -c \"echo round \\$1; exec sleep 1000\" sh $i";
        terminal.line(&format!("for i in 1 2 3; do {work}; done; echo never"), "round 1\r");
        terminal.keys("\x03");
        terminal.keys("echo next\n");
        let shown = terminal.until("next\r\nnext\r");
        assert!(!shown.contains("round 2") && !shown.contains("\nnever"), "{shown}");
    };
    at_a_terminal(steps, |place| {
        place.snapshot();
    });
}

#[test]
fn command_that_handles_ctrl_c_continues() {
    let steps = |terminal: &mut Terminal| {
        // bash itself may miss a signal that comes between two of its checks.
        terminal.line("$r $bypass catches; ", "up\r");
        for _ in 0..3 {
            terminal.keys("\x03");
            terminal.until("caught\r");
        }
        terminal.line("text", "read text\r");
        terminal.status(3);
        terminal.line("$r bash -c \"trap '' INT; echo up; read line; echo \\$line | tr a-z A-Z\"", "up\r");
        terminal.keys("\x03");
        terminal.line("ignored", "IGNORED\r");
        terminal.status(0);
        terminal.line("$r sh -c 'echo up; exec sleep 1000'", "up\r");
        terminal.keys("\x1c");
        terminal.status(131);
    };
    at_a_terminal(steps, |place| {
        place.snapshot();
    });
}

#[test]
fn ctrl_z_fg_and_bg_work_as_alone() {
    let steps = |terminal: &mut Terminal| {
        terminal.line("$r sh -c 'echo up; read line; echo $line > file; tr a-z A-Z'", "up\r");
        for _ in 0..3 {
            terminal.stop("\r\n$ ");
            terminal.status(148);
            terminal.foreground("fg", "read line");
        }
        terminal.line("written", "written\r");
        terminal.line("loud", "LOUD\r");
        terminal.stop("\r\n$ ");
        terminal.status(148);
        // In the background it stops when it reads from the terminal.
        terminal.line("bg", "&\r");
        // A `wait` that begins after the job has stopped would wait for ever.
        terminal.line("until [ -n \"$(jobs -s)\" ]; do :; done; jobs", "Stopped");
        terminal.foreground("fg", "read line");
        terminal.line("again", "AGAIN\r");
        terminal.keys("\x04");
        terminal.status(0);
        // A pipeline is one group.
        terminal.line("$r sh -c 'echo up >&2; exec sleep 1000' | cat", "up\r");
        terminal.stop("\r\n$ ");
        terminal.status(148);
        terminal.foreground("fg", "cat\r");
        terminal.keys("\x03");
        terminal.until("$ ");
        terminal.status(130);
    };
    compare(&[None, Some("auto"), Some("stops"), Some("every-call")], steps, |place| {
        place.snapshot();
    });
}

#[test]
fn inner_interactive_shell_has_its_own_jobs() {
    let steps = |terminal: &mut Terminal| {
        terminal.line("PS1='in> ' $r bash --norc --noprofile -i", "in> ");
        terminal.line("sh -c 'echo up; exec sleep 1000'", "up\r");
        terminal.stop("in> ");
        terminal.line("jobs; echo listed:$?.", "listed:0.");
        terminal.foreground("bg; fg", "sleep 1000' &\r");
        terminal.keys("\x03");
        terminal.until("in> ");
        terminal.status(130);
        terminal.line("echo kept > file; set +m; echo tty:$(tty | cut -c1-8).", "tty:/dev/pts.");
        terminal.line("exit 7", "$ ");
        terminal.status(7);
    };
    at_a_terminal(steps, |place| {
        let snapshot = place.snapshot();
        assert_eq!(bytes(&snapshot, place.file(&snapshot, "file"), false), b"kept\n");
    });
}

#[test]
fn editor_that_stops_itself_is_continued() {
    if !has("vim") {
        return;
    }
    let steps = |terminal: &mut Terminal| {
        fs::write(terminal.place.at("f"), "one\n").unwrap();
        terminal.line("TERM=vt100 $r vim -u NONE -i NONE -n -N f", "one");
        terminal.keys("otwo\x1b");
        terminal.until("two");
        terminal.stop("\r\n$ ");
        terminal.status(148);
        terminal.keys("fg\n");
        // It draws all again.
        terminal.until("one");
        terminal.until("two");
        terminal.keys("othree\x1b:wq\n");
        terminal.until("$ ");
        terminal.status(0);
        assert_eq!(fs::read(terminal.place.at("f")).unwrap(), b"one\ntwo\nthree\n");
    };
    at_a_terminal(steps, |place| {
        let snapshot = place.snapshot();
        let file = place.file(&snapshot, "f");
        assert_eq!(bytes(&snapshot, file, true), b"one\n");
        assert_eq!(bytes(&snapshot, file, false), b"one\ntwo\nthree\n");
    });
}

#[test]
fn closed_terminal_ends_the_command() {
    for mechanism in MECHANISMS {
        let Some(mut terminal) = terminal(Some(mechanism)) else { return };
        terminal.line("$r sh -c 'echo x > file; echo up; exec sleep 1000'", "up\r");
        let Terminal { master, mut shell, place, .. } = terminal;
        drop(master);
        wait(&mut shell);
        place.wait_for_lock();
        let snapshot = place.snapshot();
        assert_eq!(snapshot.header().exit_signal.as_deref(), Some("SIGHUP"));
        assert_eq!(bytes(&snapshot, place.file(&snapshot, "file"), false), b"x\n");
    }
}

/// The state of a process as procfs shows it, and its process group; none if there is no such process.
fn state_and_group(pid: &str) -> Option<(String, String)> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let mut fields = stat.rsplit(')').next()?.split_whitespace().map(str::to_owned);
    Some((fields.next()?, fields.nth(1)?))
}

#[test]
fn background_group_that_timeout_makes_stops_at_a_read_of_the_terminal() {
    let steps = |terminal: &mut Terminal| {
        // Without job control timeout is no leader of a group, so that it makes one, in the background.
        let inner = "echo pid:$$.; read line < /dev/tty; echo never";
        terminal.line(&format!("sh -c 'timeout 1000 $r sh -c \"$0\"; echo status:$?.' '{inner}'"), "pid:");
        let mut pid = terminal.until(".");
        // The line that was typed is shown, too.
        while pid.contains('$') {
            terminal.until("pid:");
            pid = terminal.until(".");
        }
        let pid = pid.trim_end_matches('.');
        let deadline = Instant::now() + PATIENCE;
        let group = loop {
            assert!(Instant::now() < deadline, "it does not stop, but {:?}", state_and_group(pid));
            match state_and_group(pid) {
                Some((state, group)) if state == "T" || state == "t" => break group,
                _ => std::thread::yield_now(),
            }
        };
        let timeout = nix::unistd::Pid::from_raw(group.parse().unwrap());
        nix::sys::signal::kill(timeout, nix::sys::signal::Signal::SIGTERM).unwrap();
        terminal.until("status:143.");
    };
    at_a_terminal(steps, |place| {
        assert_eq!(place.snapshot().header().exit_signal.as_deref(), Some("SIGTERM"));
    });
}

#[test]
fn orphaned_group_reads_the_terminal_in_vain() {
    let steps = |terminal: &mut Terminal| {
        // The shell that has started the group ends, so that nobody could continue it.
        let inner = "until [ -e go ]; do :; done; read line < /dev/tty; echo read:$? > read";
        terminal.line(&format!("(set -m; $r sh -c '{inner}' & ) ; : > go; echo started:$?."), "started:0.");
        let deadline = Instant::now() + PATIENCE;
        while !fs::read(terminal.place.at("read")).is_ok_and(|text| !text.is_empty()) {
            assert!(Instant::now() < deadline, "the read does not fail");
            std::thread::yield_now();
        }
        assert_eq!(fs::read(terminal.place.at("read")).unwrap(), b"read:1\n");
    };
    at_a_terminal(steps, Place::wait_for_lock);
}

#[test]
fn command_that_leads_its_session_is_hung_up() {
    for recorded in [false, true] {
        let place = Place::new();
        let (master, slave) = open_pty();
        // It waits for the signal, which a shell misses between two of its checks, and leaves a process in the
        // foreground, which is hung up when the leader ends.
        let script = "
import signal, subprocess, sys
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGHUP])
subprocess.Popen(['sleep', '1000'], preexec_fn=lambda: signal.pthread_sigmask(signal.SIG_SETMASK, []))
print('up', flush=True)
signal.sigwait([signal.SIGHUP])
print('hup', file=open('hup', 'w'))
sys.exit(3)
";
        let mut command = place.program("setsid");
        command.args(["--ctty", "--wait"]);
        if recorded {
            command.args([BINARY, "--snapshot-dir"]).arg(&place.out);
        }
        let stdio = || Stdio::from(slave.try_clone().unwrap());
        command.args(["python3", "-c", script]).stdin(stdio()).stdout(stdio()).stderr(stdio());
        let mut child = command.spawn().unwrap();
        drop((command, slave));
        let mut shown = Vec::new();
        while !shown.ends_with(b"up\r\n") {
            let mut byte = [0];
            (&master).read_exact(&mut byte).unwrap();
            shown.push(byte[0]);
        }
        drop(master);
        assert_eq!(wait(&mut child).code(), Some(3), "recorded: {recorded}");
        assert_eq!(fs::read(place.at("hup")).unwrap(), b"hup\n");
        if recorded {
            assert_eq!(place.snapshot().header().exit_status, 3);
        }
    }
}

#[test]
fn what_ignores_the_hangup_outlives_the_terminal() {
    for wrap in ["nohup", "setsid -w"] {
        for recorded in [None, Some("auto")] {
            let Some(mut terminal) = terminal(recorded) else { return };
            terminal.keys(&format!(
                "mkfifo fifo; {wrap} $r sh -c 'echo > up; read x < fifo; echo $x > late' &\n"
            ));
            let deadline = Instant::now() + PATIENCE;
            while !terminal.place.at("up").exists() {
                assert!(Instant::now() < deadline, "it does not start: {:?}", terminal.shown);
                std::thread::yield_now();
            }
            let Terminal { master, mut shell, place, .. } = terminal;
            drop(master);
            wait(&mut shell);
            let _fifo = place.write_to_fifo("fifo", "word\n");
            while !fs::read(place.at("late")).is_ok_and(|text| text == b"word\n") {
                assert!(Instant::now() < deadline, "{wrap}: it did not outlive the terminal");
                std::thread::yield_now();
            }
            if recorded.is_some() {
                place.wait_for_lock();
                let snapshot = place.snapshot();
                assert_eq!(snapshot.header().exit_status, 0);
                assert_eq!(bytes(&snapshot, place.file(&snapshot, "late"), false), b"word\n");
            }
        }
    }
}
