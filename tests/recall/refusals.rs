//! What is not recalled, and why.

use std::fs;
use std::process::Stdio;

use super::{recall, recall_with};
use crate::support::{BINARY, Place};

/// Runs a script twice, which must not be recalled for this reason; `show` has it, too.
#[track_caller]
pub fn is_refused(place: &Place, options: &[&str], script: &str, why: &str) {
    for _ in 0..2 {
        let run = recall_with(place, options, script);
        assert!(run.from.is_none(), "{script}: {run:?}");
        assert!(run.run.stderr.contains(why), "{script}: {run:?}");
        let shown = place.command().args(["show", "@"]).output().unwrap();
        let shown = String::from_utf8(shown.stdout).unwrap();
        assert!(
            shown.lines().any(|line| line.starts_with("No recall") && line.contains(why)),
            "{script}: {shown}"
        );
    }
}

#[test]
fn each_refusal_has_its_reason() {
    let place = Place::new();
    place.write("in", "1\n");
    let python = |code: &str| format!("PYTHONHASHSEED=0 /usr/bin/python3 -SEc '{code}'");
    let socket = "import socket; s = socket.socket(); s.bind((\"127.0.0.1\", 0))";
    for (script, why) in [
        ("exit 1", "it ended with status 1 (--recall-failures allows that)"),
        ("kill -TERM $$", "it was ended by SIGTERM"),
        ("head -c 1 /dev/urandom > /dev/null", "it used /dev/urandom (--allow-random allows that)"),
        ("cat /proc/uptime > /dev/null", "it used /proc/uptime, which is not looked at"),
        ("cat in; echo 2 >> in", "which was changed meanwhile"),
        (&python("import os; os.getrandom(16)"), "it asked for random bytes (--allow-random allows that)"),
        (&python("import mmap; mmap.mmap(-1, 4096, flags=0x28)"), "it asked for random bytes"),
        (&python(socket), "it used the network (bind 127.0.0.1 port 0)"),
        (
            "mkfifo f; cat f & echo x > f; wait; rm f; echo y > g; mkfifo f",
            "is no file, directory or symlink",
        ),
    ] {
        let _ = fs::remove_file(place.at("f"));
        is_refused(&place, &[], script, why);
    }
    is_refused(&place, &["--allow-random"], &format!("{BINARY} log"), "it used agent-snapshot itself");
    is_refused(&place, &["--ignore", "in"], "cat in", "it used");
    is_refused(&place, &["--survivors", "kill"], "sleep 300 >/dev/null 2>&1 &", "processes of it lived on");
}

#[test]
fn git_state_that_changes_is_no_output() {
    let place = Place::new();
    // Git writes its index again if a file may have changed in the same moment.
    let settle = "touch -d '1 hour ago' a; git status > /dev/null";
    place.prepare(&format!("git init -q; echo a > a; git add a; git commit -qm a; {settle}"));
    recall(&place, "git status --short; git log --format=%s").expect_miss("a\n");
    recall(&place, "git status --short; git log --format=%s").expect_hit("a\n");
    place.prepare(&format!("echo b >> a; git commit -qam b; {settle}"));
    recall(&place, "git status --short; git log --format=%s").expect_miss("b\na\n");
    let commit = "git -c user.name=a -c user.email=a@example.org commit -q --allow-empty -m more";
    is_refused(&place, &["--allow-random"], commit, "it changed Git's state");
}

#[test]
fn descriptors_that_are_inherited_count_only_if_they_are_used() {
    let place = Place::new();
    let run = |script: &str| {
        let mut shell = place.program("sh");
        let command =
            "exec \"$0\" run --recall --allow-random --json -- sh -c \"$1\" 3>file 4<&0 < /dev/null";
        shell.args(["-c", command, BINARY, script]).stdin(Stdio::piped());
        let output = shell.output().unwrap();
        String::from_utf8(output.stderr).unwrap()
    };
    run("echo quiet");
    assert!(run("echo quiet").contains("recalled_from"));
    for script in ["echo x >&3", "cat <&4", "exec 5>&3; echo x >&5", "echo x > /dev/fd/3"] {
        for _ in 0..2 {
            let said = run(script);
            assert!(
                said.contains("which it inherited") || said.contains("on a descriptor that it inherited"),
                "{script}: {said}"
            );
        }
    }
    place.write(
        "reuse.py",
        "import os\nos.close(3)\nassert os.open('reuse.py', os.O_RDONLY) == 3\nos.read(3, 9)\n",
    );
    let reuse = "PYTHONHASHSEED=0 /usr/bin/python3 -SE reuse.py";
    run(reuse);
    let said = run(reuse);
    assert!(said.contains("recalled_from"), "another file has the number: {said}");
}

#[test]
fn what_is_allowed_is_recalled() {
    let place = Place::new();
    for (options, script) in
        [(&["--recall-failures"][..], "exit 1"), (&["--allow-random"], "head -c 1 /dev/urandom > /dev/null")]
    {
        assert!(recall_with(&place, options, script).from.is_none());
        assert!(recall_with(&place, options, script).from.is_some(), "{script}");
    }
    fs::create_dir_all(place.config.join("agent-snapshot")).unwrap();
    let config = "[recall]\ntrust = [\"/proc/upt*\"]\nignore-env = [\"IGNORED*\"]\n";
    fs::write(place.config.join("agent-snapshot/config.toml"), config).unwrap();
    recall(&place, "cat /proc/uptime > /dev/null").expect_miss("");
    recall(&place, "cat /proc/uptime > /dev/null").expect_hit("");
    let with = |value: &str| {
        let mut command = super::recalling(&place, &[], "echo x");
        command.env("IGNORED_ONE", value);
        super::finish(command).from.is_some()
    };
    assert_eq!([with("1"), with("2")], [false, true]);
}

#[test]
fn no_path_is_trusted_that_was_not_noted() {
    let place = Place::new();
    fs::create_dir_all(place.config.join("agent-snapshot")).unwrap();
    let trusted = place.at("left out");
    let config = format!("[recall]\ntrust = [\"{}*\"]\n", trusted.display());
    fs::write(place.config.join("agent-snapshot/config.toml"), config).unwrap();
    place.prepare("mkdir 'left out'; cd 'left out'; seq 1100 | xargs touch");
    let some = "cat 'left out'/1?";
    recall_with(&place, &["--ignore", "left out"], some).expect_miss("");
    recall_with(&place, &["--ignore", "left out"], some).expect_hit("");
    is_refused(&place, &["--ignore", "left out"], "cat 'left out'/*", "it used more than 1000 paths");
}

#[test]
fn everything_that_a_start_hands_on_counts() {
    let place = Place::new();
    let script = "echo x";
    let run = |change: &dyn Fn(&mut std::process::Command)| {
        let mut command = super::recalling(&place, &[], script);
        change(&mut command);
        super::finish(command).from.is_some()
    };
    fs::create_dir(place.at("elsewhere")).unwrap();
    assert!(!run(&|_| {}));
    assert!(!run(&|command| {
        command.env("LANG", "de_DE");
    }));
    assert!(!run(&|command| {
        command.current_dir(place.at("elsewhere"));
    }));
    assert!(!run(&|command| super::with_umask(command, 0o077)));
    assert!(!run(&|command| {
        command.arg("another");
    }));
    assert!(run(&|command| {
        command.env("SHLVL", "7").env("OLDPWD", "/");
    }));
    assert!(run(&|_| {}));
}

#[test]
fn run_that_reads_a_secret_is_not_kept() {
    let place = Place::new();
    let secret = "hunter2-hunter2-hunter2";
    place.write(".env", secret);
    place.write("plain", "x");
    // Also where the command changes the file, so that its bytes are recorded for an undo.
    for script in ["cat .env", "cat .env; chmod 600 .env"] {
        let said = recall(&place, script).expect_miss(secret).run.stderr;
        assert!(
            said.contains("not kept for recall: it read ")
                && said.contains("/.env, which is taken for a secret"),
            "{said}"
        );
        recall(&place, script).expect_miss(secret);
    }
    let kept = place.home.join(".local/state/agent-snapshot/recall");
    for entry in walkdir::WalkDir::new(kept).into_iter().filter_map(Result::ok) {
        if entry.file_type().is_file() {
            let bytes = fs::read(entry.path()).unwrap();
            assert!(!String::from_utf8_lossy(&bytes).contains(secret), "{entry:?}");
        }
    }
    recall(&place, "cat plain").expect_miss("x");
    recall(&place, "cat plain").expect_hit("x");
}
