//! What a command asks of the kernel, of other processes and of whoever has started it: it counts, or it refuses.

use std::fs;
use std::process::Stdio;

use nix::fcntl::{Flock, FlockArg};

use super::refusals::is_refused;
use super::{recall, recall_with};
use crate::support::{BINARY, Place};

fn python(code: &str) -> String {
    format!("PYTHONHASHSEED=0 /usr/bin/python3 -SEc '{code}'")
}

/// A system call with integers, by Python.
fn system_call(arguments: &str) -> String {
    python(&format!("import ctypes; ctypes.CDLL(None).syscall({arguments})"))
}

#[test]
fn what_tells_of_others_is_refused() {
    let place = Place::new();
    let others = "processes that it had not started";
    let system = "the state of the system";
    for (script, why) in [
        ("stat -f -c %T .", "how much space is free"),
        ("df . > /dev/null", "how much space is free"),
        ("kill -0 $PPID", others),
        ("kill -0 0", others),
        ("kill -0 1 || true", others),
        ("ionice -p 1", others),
        ("chrt -p 1", others),
        ("prlimit --nofile --pid 1", others),
        ("ionice -P 1", others),
        (&python("import os; os.getpriority(os.PRIO_USER, 0)"), others),
        (&python("import os; os.getpriority(os.PRIO_PGRP, 0)"), others),
        (&python("import os; os.getsid(1)"), others),
        (&python("import os; os.pidfd_open(1)"), others),
        (&python("import socket; socket.socket()"), "a socket of the network"),
        (&python("import socket; socket.if_nameindex()"), "it used the network (bind netlink)"),
        (
            &python("import socket, fcntl; fcntl.ioctl(socket.socket(socket.AF_UNIX), 0x8912, bytes(16))"),
            "a socket of the network or for its interfaces",
        ),
        (&system_call("250, 0, -3, 0"), "keyrings"),
        (&system_call("240, b\"/none\", 0, 0, 0"), "POSIX message queues"),
        (&system_call("29, 4711, 4096, 0"), "System V shared memory"),
        (&system_call("68, 4711, 0"), "System V shared memory"),
        (&system_call("64, 4711, 1, 0"), "System V shared memory"),
        (&system_call("103, 10, 0, 0"), system),
        (&python("import fcntl; fcntl.fcntl(open(\"f\"), fcntl.F_GETLEASE)"), "a lease"),
        ("ls /proc > /dev/null", "it listed /proc"),
        ("ls /dev > /dev/null", "it listed /dev"),
        ("ls /proc/self/task > /dev/null", "it listed /proc/self/task"),
        ("cat /proc/self/task/*/comm", "it used /proc/self/task/"),
        ("cat /proc/self/fdinfo/0", "it used /proc/self/fdinfo/0"),
    ] {
        place.write("f", "");
        is_refused(&place, &["--recall-failures", "--allow-random"], script, why);
    }
}

#[test]
fn what_tells_of_the_command_itself_is_recalled() {
    let place = Place::new();
    place.prepare("mkdir d; echo hit > d/in; ln -s in d/link; echo > lock");
    for script in [
        "kill -0 $$",
        "sleep 100 & kill $!; wait $! || true",
        "setsid sh -c 'sleep 100 & kill -TERM 0' || true",
        "ionice; nice; chrt -p $$ > /dev/null; prlimit --nofile --pid $$",
        "ls -la d; ls /proc/self/fd | head -n 1; readlink /proc/self/fd/0",
        "find d; grep -r hit d; du -s d > /dev/null; tar cf t.tar d; rm t.tar",
        "cp -r d e; rm -r e",
        "ls /proc/sys/kernel | head -n 1; ls /sys/devices/system/cpu | head -n 1",
        "flock lock cat d/in; flock -n new cat d/in",
        &python("import os; os.getpriority(os.PRIO_PROCESS, 0); os.getpgid(0); os.getpgid(os.getpid())"),
        &python("import socket; socket.socketpair()"),
        &python("import fcntl; f = open(\"lock\", \"r+\"); fcntl.lockf(f, fcntl.LOCK_EX | fcntl.LOCK_NB)"),
        &python("import signal; signal.raise_signal(signal.SIGCONT)"),
        &python("import fcntl; f = open(\"lock\"); fcntl.flock(f, 2); fcntl.flock(f, 8)"),
    ] {
        // The second run may find what the first has made.
        let runs = [1, 2, 3].map(|_| recall_with(&place, &["--recall-failures", "--allow-random"], script));
        assert!(runs[2].from.is_some(), "{script}: {runs:?}");
    }
}

#[test]
fn lock_of_somebody_else_counts() {
    let place = Place::new();
    place.write("lock", "");
    let script = "flock -n lock echo got it || echo held";
    recall(&place, script).expect_miss("got it\n");
    recall(&place, script).expect_hit("got it\n");
    let held = Flock::lock(fs::File::open(place.at("lock")).unwrap(), FlockArg::LockExclusive).unwrap();
    recall(&place, script).expect_miss("held\n");
    is_refused(&place, &[], script, "a lock that somebody else held");
    // Unlocks it, also if a process that another test starts has not closed its copy of the descriptor yet.
    drop(held);
    recall(&place, script).expect_hit("got it\n");
}

/// Runs `sh -c script` from a shell that has done `setup`, with redirections; what it printed and how it ended, and
/// whether that was recalled.
fn run(
    place: &Place,
    is_recalled: bool,
    (setup, redirections): (&str, &str),
    script: &str,
) -> (String, bool) {
    let recall = "run --recall --recall-failures --allow-random --json --timeout 120s --";
    let program = if is_recalled { format!("\"$0\" {recall}") } else { String::new() };
    let prefix = setup.strip_prefix("by ");
    let (setup, by) = if let Some(by) = prefix { ("", by) } else { (setup, "") };
    let outer = format!("{setup}\nexec {by} {program} sh -c \"$1\" {redirections}");
    let mut shell = place.program("sh");
    shell.args(["-c", &outer, BINARY, script]).stdin(Stdio::null());
    let output = shell.output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    let printed = String::from_utf8(output.stdout).unwrap();
    (format!("{printed}{:?}", output.status.code()), said.contains("recalled_from"))
}

#[test]
fn what_a_command_asks_its_start_for_counts() {
    let place = Place::new();
    place.prepare(
        "echo same > a; echo same > b; chmod 600 b; touch -d 2001-01-01 a; touch -d 2002-02-02 b; echo longer > c
         echo 'echo $TMUX' > inner; echo 'import os; print(os.environ.get(\"STY\"))' > sty.py",
    );
    let null = "";
    let slack = python("import ctypes; print(ctypes.CDLL(None).prctl(30))");
    let environment = python("import os; print(sorted(os.environ.items()))");
    let sty = "PYTHONHASHSEED=0 /usr/bin/python3 -SE sty.py";
    let mut stale = Vec::new();
    for (one, other, script) in [
        // What is inherited.
        (("", null), ("by nice -n 5", null), "nice"),
        (("", null), ("by ionice -c 3", null), "ionice"),
        (("", null), ("by chrt -b 0", null), "chrt -p $$ | cut -d : -f 2"),
        (("", null), ("by env -u HOME", null), "echo $HOME"),
        // Standard input.
        (("", "< a"), ("", "< b"), "readlink /proc/self/fd/0"),
        (("", "< a"), ("", "< b"), "stat -L -c '%a %Y' /dev/stdin"),
        (("", "< a"), ("", "<> a"), "echo x >&0"),
        (("", "< /dev/null"), ("", "<&-"), "cat"),
        (("", "< a"), ("touch -d 2003-03-03 a", "< a"), "date -r /dev/stdin +%Y"),
        // Descriptors beyond standard error.
        (("", null), ("", "3< /dev/null"), "test -e /proc/self/fd/3; echo $?"),
        (("", "3< a"), ("", "3< ."), "test -d /proc/self/fd/3; echo $?"),
        (("", "3< a"), ("", "3< c"), "stat -L -c %s - <&3"),
        (("", "3< a"), ("", "3< c"), &python("import os; print(os.fstat(3).st_size)")),
        // Variables that do not count, unless they are asked for.
        (("", null), ("export COLUMNS=20", null), "echo $COLUMNS"),
        (("export SHLVL=1", null), ("export SHLVL=2", null), "echo $SHLVL"),
        (("export OLDPWD=/", null), ("export OLDPWD=/usr", null), "cd - > /dev/null; pwd"),
        (("", null), ("export SSH_AUTH_SOCK=/x", null), "printenv SSH_AUTH_SOCK"),
        (("export TMUX=1", null), ("export TMUX=2", null), "env | grep TMUX"),
        (("export TMUX=1", null), ("export TMUX=2", null), ". ./inner"),
        (("export STY=1", null), ("export STY=2", null), sty),
        (("export XDG_SESSION_ID=1", null), ("export XDG_SESSION_ID=2", null), "echo $XDG_SESSION_ID"),
        (("export WINDOW=1", null), ("export WINDOW=2", null), &environment),
        (("export TMUX=1", "< inner"), ("export TMUX=2", "< inner"), "sh"),
        (("export TMUX=1", null), ("export TMUX=2", null), "printf 'echo $TM%s\\n' UX > made; sh made"),
        (
            ("export TMUX=1", null),
            ("export TMUX=2", null),
            "cp /usr/bin/printenv all; bash -c 'exec -a printenv ./all'",
        ),
        (("", null), ("by setpriv --securebits +noroot", null), "true"),
        (("", null), ("by choom -n 500 --", null), &slack),
    ] {
        run(&place, true, one, script);
        run(&place, true, one, script);
        for start in [other, one] {
            let recalled = run(&place, true, start, script).0;
            let alone = run(&place, false, start, script).0;
            if recalled != alone {
                stale.push(format!("{script} by {start:?}: {recalled}, and alone {alone}"));
            }
        }
    }
    assert!(stale.is_empty(), "{stale:#?}");
}

#[test]
fn output_to_a_file_that_the_command_uses_is_not_recalled() {
    let place = Place::new();
    place.write("log", "line\n");
    for script in ["tail -n 1 log; echo x", "echo x > log"] {
        run(&place, true, ("", ""), script);
        assert!(run(&place, true, ("", ""), script).1, "{script}");
        for _ in 0..2 {
            assert!(!run(&place, true, ("", ">> log"), script).1, "{script}");
        }
        place.write("log", "line\n");
    }
    let script = "cat log; echo y";
    for _ in 0..2 {
        run(&place, true, ("", ">> log"), script);
        place.write("log", "line\n");
    }
    assert!(!run(&place, true, ("", ""), script).1, "nothing was kept");
}

#[test]
fn variables_that_nobody_asks_for_do_not_count() {
    let place = Place::new();
    place.write("script", "echo from a script; set -e; export A=1\n");
    let start =
        |level: &str| format!("export SHLVL={level} OLDPWD=/{level} TMUX={level} SSH_AUTH_SOCK={level}");
    for script in ["echo x; ls", "sh script", "bash -c 'cd /; ls usr'", "env A=1 true"] {
        run(&place, true, (&start("1"), ""), script);
        assert!(run(&place, true, (&start("2"), ""), script).1, "{script}");
    }
}

#[test]
fn what_another_start_hands_on_is_another_run() {
    let place = Place::new();
    for by in ["by setpriv --securebits +noroot", "by choom -n 500 --", "by chrt -b 0", "by ionice -c 3"] {
        let script = format!("echo {}", by.len());
        run(&place, true, ("", ""), &script);
        assert!(run(&place, true, ("", ""), &script).1, "{by}");
        if run(&place, false, (by, ""), &script).0.ends_with("Some(0)") {
            assert!(!run(&place, true, (by, ""), &script).1, "{by}");
        }
    }
}
