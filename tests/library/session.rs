//! `session`: which steps there are of what an agent or a person does, and that each is undone by itself.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use agent_snapshot::snapshot::{Snapshot, SnapshotKind, State};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use serde_json::Value;

use super::{library, log, verb};
use crate::support::{
    BINARY, MECHANISMS, PATIENCE, Place, Random, Terminal, User, assert_same, descendants, describe, has,
    kill, needs_root, numbered, pidfd_of, rounds, scan, tracer_of, wait, wait_for_end,
};
use crate::undo::random::cases;

/// An agent without a mind: what it is told to write it writes itself, what it is told to run it has a shell run.
const AGENT: &str = r#"
import ctypes, os, subprocess, sys, threading
running, files = {}, {}
for line in sys.stdin:
    verb, name, rest = line.rstrip("\n").split("\t")
    if verb == "write":
        open(name, "w").write(rest)
    elif verb == "open":
        files[name] = open(name, rest or "ab", buffering=0)
    elif verb == "map":
        # Not Python's own, which keeps a descriptor.
        libc = ctypes.CDLL(None)
        libc.mmap.restype = ctypes.c_void_p
        libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t] + [ctypes.c_int] * 3 + [ctypes.c_long]
        with open(name, "r+b") as file:
            files[name] = libc.mmap(None, 4096, 3, 1, file.fileno(), 0)
    elif verb == "poke":
        ctypes.memmove(files[name], rest.encode(), len(rest))
    elif verb == "append":
        files[name].write(rest.encode())
    elif verb == "close":
        files.pop(name).close()
    elif verb == "start into":
        # The files that it opens for a command are not its own any more.
        with open(name, "ab") as out:
            running[name] = subprocess.Popen(["sh", "-c", rest], stdin=subprocess.DEVNULL, stdout=out)
    elif verb == "survive":
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                open("go").read()
                open(name, "w").write(rest)
            os._exit(0)
    elif verb == "descriptor":
        rest = files[name].fileno()
    elif verb == "wait for a reader":
        threading.Thread(target=lambda: open(name, "w").close()).start()
    elif verb == "write on":
        running[name] = True
        def write_on(name):
            while running[name]:
                files[name].write(b".")
        threading.Thread(target=write_on, args=(name,)).start()
    elif verb == "stop":
        running[name] = False
    elif verb == "ring":
        ctypes.CDLL(None).syscall(SYS_io_uring_setup, 8, ctypes.create_string_buffer(120))
    elif verb == "remove":
        os.unlink(name)
    elif verb == "run":
        rest = subprocess.run(["sh", "-c", rest], stdin=subprocess.DEVNULL).returncode
    elif verb == "start":
        running[name] = subprocess.Popen(["sh", "-c", rest], stdin=subprocess.DEVNULL)
    elif verb == "wait":
        rest = running[name].wait()
    elif verb == "exec":
        try:
            rest = subprocess.call(rest.split())
        except OSError as error:
            rest = error.errno
    print(rest, flush=True)
"#;

/// Where Python is, and not a script that looks for it.
fn python(place: &Place) -> String {
    let found = place.program("python3").args(["-c", "import sys; print(sys.executable)"]).output().unwrap();
    String::from_utf8(found.stdout).unwrap().trim_end().to_owned()
}

/// An agent that does what it is told, in a session.
struct Agent {
    process: Child,
    orders: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
}

impl Agent {
    fn start(place: &Place, options: &[&str]) -> Agent {
        let mut command = place.command();
        command.args(["session", "--name", "s"]).args(options);
        command.args(["--", &python(place), "-c", &numbered(AGENT)]);
        Agent::of(command)
    }

    fn of(mut command: Command) -> Agent {
        // If this went to a file, other tests would write to that while a step has it open.
        command.stderr(Stdio::null());
        let mut process = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let orders = process.stdin.take();
        let answers = BufReader::new(process.stdout.take().unwrap());
        Agent { process, orders, answers }
    }

    #[track_caller]
    fn tell(&mut self, verb: &str, name: &str, rest: &str) -> String {
        self.order(verb, name, rest);
        let mut answer = String::new();
        self.answers.read_line(&mut answer).unwrap();
        answer.trim_end().to_owned()
    }

    /// The same of a session that may be killed: the answer, if it was done.
    fn try_to_tell(&mut self, verb: &str, name: &str, rest: &str) -> Option<String> {
        let orders = self.orders.as_mut().unwrap();
        let mut answer = String::new();
        writeln!(orders, "{verb}\t{name}\t{rest}").ok()?;
        let length = self.answers.read_line(&mut answer).ok()?;
        (length > 0).then(|| answer.trim_end().to_owned())
    }

    fn order(&mut self, verb: &str, name: &str, rest: &str) {
        writeln!(self.orders.as_mut().unwrap(), "{verb}\t{name}\t{rest}").unwrap();
    }

    fn end(mut self) {
        drop(self.orders.take());
        assert_eq!(wait(&mut self.process).code(), Some(0));
    }
}

/// The steps of the session, the first one first.
fn steps(place: &Place) -> Vec<Value> {
    let mut steps = log(place, &["--all", "--reads", "--session", "s"]);
    steps.sort_by_key(|step| step["step"].as_u64());
    steps
}

/// What a step is called, with its kind and what it changed.
fn title(step: &Value) -> String {
    let command = || {
        let words = step["command"].as_array().unwrap().iter().map(|word| word.as_str().unwrap());
        words.collect::<Vec<_>>().join(" ")
    };
    let title = step["title"].as_str().map_or_else(command, str::to_owned);
    let count = |key: &str| step[key].as_u64().unwrap();
    format!(
        "{} {title} +{}~{}-{}",
        step["kind"].as_str().unwrap_or("none"),
        count("created"),
        count("changed"),
        count("deleted")
    )
}

fn titles(place: &Place) -> Vec<String> {
    steps(place).iter().map(title).collect()
}

/// Undoes steps, the last one first; after each a file has this text.
#[track_caller]
fn undo_one_by_one(place: &Place, steps: &[Value], left: &[(&str, &str)]) {
    assert_eq!(steps.len(), left.len());
    for (step, (name, text)) in steps.iter().rev().zip(left) {
        verb(place, &["undo", step["id"].as_str().unwrap()]).expect(0);
        assert_eq!(fs::read_to_string(place.at(name)).unwrap(), *text);
    }
}

/// Waits until the log says so.
#[track_caller]
fn until(place: &Place, what: &str, holds: impl Fn(&[Value]) -> bool) -> Vec<Value> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let steps = steps(place);
        if holds(&steps) {
            return steps;
        }
        assert!(Instant::now() < deadline, "{what}: {:?}", steps.iter().map(title).collect::<Vec<_>>());
        std::thread::yield_now();
    }
}

#[test]
fn commands_and_edits_of_an_agent_are_steps_that_are_undone_by_themselves() {
    for user in User::all() {
        for mechanism in MECHANISMS {
            let place = Place::of(*user);
            place.write("code", "old\n");
            let before = scan(&place.work);
            let mut agent = Agent::start(&place, &["--mechanism", mechanism]);
            agent.tell("write", "code", "new");
            assert_eq!(agent.tell("run", "", "cp code copy; exit 3"), "3");
            agent.tell("write", "code", "newer");
            agent.tell("write", "more", "text");
            assert_eq!(agent.tell("run", "", "cat code > /dev/null"), "0");
            // It is there at once, while the session goes on.
            let copied = &steps(&place)[1];
            assert_eq!((&copied["status"], &copied["step"]), (&3.into(), &2.into()));
            verb(&place, &["undo", copied["id"].as_str().unwrap()]).expect(0);
            assert!(!place.at("copy").exists() && place.at("more").exists());
            agent.end();
            assert_eq!(
                titles(&place),
                [
                    "edit edit code +0~1-0",
                    "command sh -c cp code copy; exit 3 +1~0-0",
                    "edit edit code, more +1~1-0",
                    "command sh -c cat code > /dev/null +0~0-0",
                ],
                "{mechanism}"
            );
            assert!(steps(&place).iter().all(|step| step["incomplete"].is_null()));
            verb(&place, &["undo", "--session", "s"]).expect(0);
            assert_same(
                &describe(&scan(&place.work), |path| path.ends_with(b"code")),
                &describe(&before, |path| path.ends_with(b"code")),
                "all of the session undone",
            );
        }
    }
}

#[test]
fn a_command_that_can_not_be_executed_is_no_step() {
    let place = Place::new();
    let mut agent = Agent::start(&place, &[]);
    assert_eq!(agent.tell("exec", "", "./bash -c true"), "2");
    place.write("bash", "not executable");
    assert_eq!(agent.tell("exec", "", "./bash -c true"), "13");
    place.prepare("printf '\\177ELF' > bash; chmod +x bash");
    assert_eq!(agent.tell("exec", "", "./bash -c true"), "8");
    // Programs without a shell are the agent's own.
    assert_eq!(agent.tell("exec", "", "touch own"), "0");
    // What fails later says nothing of the command.
    agent.tell("run", "", "echo > none/x; echo > made");
    agent.end();
    assert_eq!(titles(&place), ["edit edit own +1~0-0", "command sh -c echo > none/x; echo > made +1~0-0"]);
    let left = fs::read_dir(library(&place).join("snapshots")).unwrap().count();
    assert_eq!(left, 2);
}

#[test]
fn a_program_that_the_configuration_names_is_a_command() {
    let place = Place::new();
    fs::create_dir(place.config.join("agent-snapshot")).unwrap();
    let config = place.config.join("agent-snapshot/config.toml");
    fs::write(&config, "[session]\ncommands = [\"touch\"]\n").unwrap();
    let mut agent = Agent::start(&place, &[]);
    assert_eq!(agent.tell("exec", "", "touch made"), "0");
    assert_eq!(agent.tell("exec", "", "cp made own"), "0");
    agent.end();
    assert_eq!(titles(&place), ["command touch made +1~0-0", "edit edit own +1~0-0"]);
    fs::write(&config, "[session]\ncommand = 1\n").unwrap();
    let refused = verb(&place, &["session", "--", "true"]).expect(125);
    assert!(refused.stderr.contains("unknown field `command`"), "{refused:?}");
}

#[test]
fn steps_are_listed_as_they_end() {
    let place = Place::new();
    let mut agent = Agent::start(&place, &[]);
    agent.tell("run", "", "echo > before");
    let mut follow = place.command();
    follow.args(["log", "--follow", "--long"]).stdout(Stdio::piped());
    let mut follow = follow.spawn().unwrap();
    let mut lines = BufReader::new(follow.stdout.take().unwrap()).lines();
    // It may not watch yet.
    let (stop, stopped) = std::sync::mpsc::channel::<()>();
    let told = std::thread::spawn(move || {
        let mut number = 0;
        while stopped.try_recv().is_err() {
            number += 1;
            agent.tell("run", "", &format!("echo > after{number}"));
        }
        agent.end();
    });
    let first = lines.next().unwrap().unwrap();
    assert!(first.contains("+1") && first.contains("echo > after"), "{first}");
    let details: Vec<_> = lines.by_ref().take(4).map(Result::unwrap).collect();
    assert!(details.iter().any(|line| line.trim() == "Session   s"), "{details:?}");
    stop.send(()).unwrap();
    told.join().unwrap();
    assert!(kill(i32::try_from(follow.id()).unwrap()));
    wait(&mut follow);
}

#[test]
fn an_edit_ends_when_nothing_more_is_changed() {
    let place = Place::new();
    let mut agent = Agent::start(&place, &[]);
    agent.tell("write", "one", "1");
    agent.tell("write", "two", "2");
    let ended = |steps: &[Value]| steps.len() == 1 && steps[0]["state"] == "ended";
    let steps = until(&place, "the edit does not end", ended);
    assert_eq!(title(&steps[0]), "edit edit one, two +2~0-0");
    agent.tell("write", "three", "3");
    agent.end();
    assert_eq!(titles(&place)[1..], ["edit edit three +1~0-0"]);
}

#[test]
fn what_is_written_to_an_open_file_is_of_the_edit_in_which_it_is_written() {
    let place = Place::new();
    place.write("log", "0");
    let mut agent = Agent::start(&place, &[]);
    agent.tell("open", "log", "");
    for number in 1..4 {
        agent.tell("append", "log", &number.to_string());
        agent.tell("run", "", "true");
    }
    agent.end();
    let edits: Vec<_> = steps(&place).into_iter().filter(|step| step["kind"] == "edit").collect();
    assert_eq!(edits.iter().map(title).collect::<Vec<_>>(), ["edit edit log +0~1-0"; 3]);
    assert_eq!(fs::read_to_string(place.at("log")).unwrap(), "0123");
    undo_one_by_one(&place, &edits, &["012", "01", "0"].map(|left| ("log", left)));
}

#[test]
fn what_is_written_through_a_mapping_is_of_the_edit_in_which_it_is_written() {
    let place = Place::new();
    place.write("data", "0000");
    let mut agent = Agent::start(&place, &[]);
    agent.tell("map", "data", "");
    agent.tell("poke", "data", "1");
    agent.tell("run", "", "true");
    agent.tell("poke", "data", "22");
    agent.tell("run", "", "true");
    agent.end();
    let edits: Vec<_> = steps(&place).into_iter().filter(|step| step["kind"] == "edit").collect();
    assert_eq!(edits.iter().map(title).collect::<Vec<_>>(), ["edit edit data +0~1-0"; 2]);
    undo_one_by_one(&place, &edits, &["1000", "0000"].map(|left| ("data", left)));
}

/// Has an agent change a file that a command has made, after it has waited for something since before.
#[track_caller]
fn later_edit_is_undone_first(wait_for: impl Fn(&Place, &mut Agent), end: impl Fn(&Place, &mut Agent)) {
    let place = Place::new();
    place.write("log", "0");
    let mut agent = Agent::start(&place, &[]);
    wait_for(&place, &mut agent);
    let before = scan(&place.work);
    agent.tell("write", "first", "1");
    agent.tell("run", "", "echo step > a");
    agent.tell("write", "a", "own");
    agent.tell("run", "", "true; :");
    end(&place, &mut agent);
    agent.end();
    let expected = ["edit edit first +1~0-0", "command sh -c echo step > a +1~0-0", "edit edit a +0~1-0"];
    assert_eq!(changes(&place), expected);
    verb(&place, &["undo", "--session", "s"]).expect(0);
    let no_time = |_: &[u8]| false;
    assert_same(&describe(&scan(&place.work), no_time), &describe(&before, no_time), "undone");
}

#[test]
fn an_edit_is_later_than_the_command_before_it_though_a_file_is_open_all_the_time() {
    later_edit_is_undone_first(|_, agent| drop(agent.tell("open", "log", "")), |_, _| {});
}

#[test]
fn an_edit_is_later_than_the_command_before_it_though_a_call_has_not_returned() {
    let wait_for = |place: &Place, agent: &mut Agent| {
        place.prepare("mkfifo fifo");
        agent.tell("wait for a reader", "fifo", "");
    };
    later_edit_is_undone_first(wait_for, |place, _| drop(fs::read(place.at("fifo")).unwrap()));
}

#[test]
fn what_is_written_to_an_open_file_that_a_command_renames_is_of_an_edit() {
    let place = Place::new();
    place.write("log", "0");
    let mut agent = Agent::start(&place, &[]);
    agent.tell("open", "log", "");
    agent.tell("append", "log", "1");
    agent.tell("run", "", "mv log old");
    agent.tell("append", "log", "2");
    agent.tell("run", "", "true; :");
    agent.end();
    let changed: Vec<_> = steps(&place).into_iter().filter(|step| !title(step).ends_with("+0~0-0")).collect();
    let expected = ["edit edit log +0~1-0", "command sh -c mv log old +1~0-1", "edit edit old +0~1-0"];
    assert_eq!(changed.iter().map(title).collect::<Vec<_>>(), expected);
    assert_eq!(fs::read_to_string(place.at("old")).unwrap(), "012");
    undo_one_by_one(&place, &changed, &[("old", "01"), ("log", "01"), ("log", "0")]);
}

#[test]
fn what_is_written_to_an_open_file_that_only_an_unknown_name_keeps_is_a_gap() {
    let place = Place::new();
    place.write("log", "0");
    fs::hard_link(place.at("log"), place.at("other")).unwrap();
    let mut agent = Agent::start(&place, &[]);
    agent.tell("open", "log", "");
    agent.tell("append", "log", "1");
    agent.tell("run", "", "rm log");
    agent.tell("append", "log", "2");
    agent.tell("run", "", "true; :");
    agent.end();
    assert_eq!(fs::read_to_string(place.at("other")).unwrap(), "012");
    let steps = steps(&place);
    let gaps: Vec<_> = steps.iter().filter(|step| step["incomplete"] == true).map(title).collect();
    assert_eq!(gaps, ["edit edit +0~0-0"; 2], "{:?}", steps.iter().map(title).collect::<Vec<_>>());
}

/// The commands and edits that changed something, as they are called.
fn changes(place: &Place) -> Vec<String> {
    titles(place).into_iter().filter(|title| !title.ends_with("+0~0-0")).collect()
}

#[test]
fn what_a_command_writes_to_a_file_that_the_program_has_open_is_of_the_command() {
    let place = Place::new();
    place.write("log", "0");
    let before = scan(&place.work);
    let mut agent = Agent::start(&place, &[]);
    agent.tell("open", "log", "");
    agent.tell("append", "log", "1");
    agent.tell("run", "", "echo a >> log; echo b >> log; cp log copy");
    agent.tell("append", "log", "2");
    agent.tell("run", "", "true; :");
    agent.tell("close", "log", "");
    agent.tell("write", "last", "");
    agent.end();
    let expected = [
        "edit edit log +0~1-0",
        "command sh -c echo a >> log; echo b >> log; cp log copy +1~1-0",
        "edit edit log +0~1-0",
        "edit edit last +1~0-0",
    ];
    assert_eq!(changes(&place), expected);
    verb(&place, &["undo", "--session", "s"]).expect(0);
    let no_time = |_: &[u8]| false;
    assert_same(&describe(&scan(&place.work), no_time), &describe(&before, no_time), "undone");
}

#[test]
fn what_a_command_writes_to_a_file_that_the_program_opened_for_it_is_of_the_command() {
    let place = Place::new();
    place.write("log", "0\n");
    place.prepare("mkfifo go");
    let mut agent = Agent::start(&place, &[]);
    agent.tell("start into", "log", "read -r line < go; echo $line; echo > done");
    agent.tell("run", "", "echo > other");
    fs::write(place.at("go"), "1\n").unwrap();
    agent.tell("wait", "log", "");
    agent.tell("run", "", "true; :");
    agent.end();
    assert_eq!(fs::read_to_string(place.at("log")).unwrap(), "0\n1\n");
    let titles = changes(&place);
    let expected = "command sh -c read -r line < go; echo $line; echo > done +1~1-0";
    assert_eq!((titles.len(), &*titles[0]), (2, expected), "{titles:?}");
    verb(&place, &["undo", "--session", "s"]).expect(0);
    assert_eq!(fs::read_to_string(place.at("log")).unwrap(), "0\n");
}

/// A file that the program makes where a running command has removed another one is not the command's.
#[test]
fn what_the_program_writes_where_a_command_removed_something_is_of_an_edit() {
    let place = Place::new();
    place.write("log", "0");
    place.prepare("mkfifo go removed");
    let mut agent = Agent::start(&place, &[]);
    agent.tell("start", "rm", "rm log; echo > removed; read -r line < go");
    fs::read(place.at("removed")).unwrap();
    agent.tell("open", "log", "");
    agent.tell("run", "", "true; :");
    agent.tell("append", "log", "1");
    agent.tell("close", "log", "");
    fs::write(place.at("go"), "\n").unwrap();
    agent.tell("wait", "rm", "");
    agent.tell("run", "", "echo 2 >> log");
    agent.end();
    assert_eq!(fs::read_to_string(place.at("log")).unwrap(), "12\n");
    let edits: Vec<_> = changes(&place).into_iter().filter(|title| title.starts_with("edit")).collect();
    assert_eq!(edits, ["edit edit log +1~0-0", "edit edit log +0~1-0"]);
    verb(&place, &["undo", "--session", "s"]).expect(0);
    assert_eq!(fs::read_to_string(place.at("log")).unwrap(), "0");
}

#[test]
fn what_outlives_the_program_is_of_an_edit() {
    let place = Place::new();
    place.prepare("mkfifo go");
    let mut agent = Agent::start(&place, &[]);
    agent.tell("survive", "late", "1");
    agent.end();
    assert!(titles(&place).is_empty());
    place.prepare("echo > go");
    until(&place, "it does not end", |steps| steps.len() == 1 && steps[0]["state"] == "ended");
    assert_eq!(changes(&place), ["edit edit late +1~0-0"]);
    assert!(steps(&place)[0].get("notes").is_none_or(|notes| notes == 0));
    verb(&place, &["undo", "--session", "s"]).expect(0);
    assert!(!place.at("late").exists());
}

#[test]
fn what_a_command_serves_is_used_by_others() {
    let place = Place::new();
    place.prepare("mkdir lower upper work mnt; echo low > lower/a");
    let mount = "fuse-overlayfs -o lowerdir=lower,upperdir=upper,workdir=work mnt";
    // fusermount3(1) has no privilege when it is recorded.
    if !needs_root("what mounts while it is recorded")
        || !place.can_run(&["sh", "-c", &format!("{mount} && umount mnt")])
    {
        return;
    }
    let mut agent = Agent::start(&place, &[]);
    assert_eq!(agent.tell("run", "", mount), "0");
    agent.tell("write", "mnt/a", "own");
    assert_eq!(agent.tell("run", "", "grep -q own mnt/a && echo > mnt/b"), "0");
    agent.tell("open", "mnt/c", "");
    assert_eq!(agent.tell("run", "", "cat mnt/c > /dev/null && rm mnt/a"), "0");
    agent.tell("close", "mnt/c", "");
    assert_eq!(agent.tell("run", "", "umount mnt"), "0");
    agent.end();
    // What is not looked at is named.
    assert!(steps(&place)[2]["incomplete"] == true, "{:#?}", steps(&place));
    assert!(place.at("upper/b").exists());
}

#[test]
fn what_a_shell_writes_on_after_its_job_is_of_one_of_both() {
    let place = Place::new();
    place.write("log", "0\n");
    let session = [BINARY, "session", "--name", "s", "--"];
    let Some(mut terminal) = Terminal::new(place, &session, &[]) else { return };
    for line in ["exec 7>> log", "sh -c 'echo job >> log'", "echo own >&7; exec 7>&-", "mv log moved"] {
        terminal.line(&format!("{line}; echo next."), "next.\r\n$ ");
    }
    let place = terminal.end();
    assert_eq!(fs::read_to_string(place.at("moved")).unwrap(), "0\njob\nown\n");
    verb(&place, &["undo", "--session", "s"]).expect(0);
    assert_eq!(fs::read_to_string(place.at("log")).unwrap(), "0\n");
}

/// A program that writes to a file, opened anew each time, while another thread of it runs commands.
const WRITING: &str = r#"
import os, random, subprocess, sys, threading, time
random = random.Random(int(sys.argv[1]))
pause = lambda: time.sleep(random.random() * 0.002)
def commands():
    for _ in range(4):
        pause()
        subprocess.run(["sh", "-c", "echo x >> other"])
thread = threading.Thread(target=commands)
thread.start()
for at in range(12):
    descriptor = os.open("f", os.O_WRONLY | os.O_CREAT | random.choice([0, os.O_TRUNC, os.O_APPEND]))
    for part in range(random.randint(1, 4)):
        pause()
        os.write(descriptor, b"%d-%d\n" % (at, part))
    pause()
    os.close(descriptor)
    pause()
thread.join()
"#;

/// The edits are cut at any moment: while an open has not returned, between an open, a write and a close.
#[test]
fn what_a_program_writes_while_commands_begin_is_undone() {
    if !has("python3") {
        return;
    }
    for seed in 1..=6 {
        let place = Place::new();
        place.write("f", "original\n");
        let mut command = place.command();
        command.args(["session", "--quiet", "--name", "s", "--", &python(&place), "-c", WRITING]);
        command.arg(seed.to_string());
        assert!(command.current_dir(&place.work).status().unwrap().success());
        // A gap is named where the program wrote on while a state was taken.
        if steps(&place).iter().any(|step| !step["incomplete"].is_null()) {
            continue;
        }
        verb(&place, &["undo", "--session", "s"]).expect(0);
        assert_eq!(fs::read_to_string(place.at("f")).unwrap(), "original\n", "{seed}");
    }
}

#[test]
fn what_the_program_has_written_before_a_command_empties_the_file_is_an_edit() {
    let place = Place::new();
    place.write("f", "");
    place.prepare("mkfifo go");
    let mut agent = Agent::start(&place, &[]);
    agent.tell("open", "f", "r+b");
    agent.tell("start", "a", "read x < go; echo > f");
    agent.tell("append", "f", "the program's");
    fs::write(place.at("go"), "\n").unwrap();
    agent.tell("wait", "a", "");
    agent.end();
    assert_eq!(titles(&place), ["command sh -c read x < go; echo > f +0~1-0", "edit edit f +0~1-0"]);
    verb(&place, &["undo", "--session", "s"]).expect(0);
    assert_eq!(fs::read_to_string(place.at("f")).unwrap(), "");
}

#[test]
fn what_is_written_between_two_edits_is_a_gap() {
    let place = Place::new();
    place.write("log", "");
    let mut agent = Agent::start(&place, &[]);
    agent.tell("open", "log", "");
    agent.tell("write on", "log", "");
    for _ in 0..20 {
        agent.tell("run", "", "true");
    }
    agent.tell("stop", "log", "");
    agent.end();
    let snapshots = library(&place).join("snapshots");
    let mut edits: Vec<Snapshot> = fs::read_dir(snapshots)
        .unwrap()
        .map(|entry| Snapshot::open(&entry.unwrap().path()).unwrap())
        .collect();
    edits.retain(|snapshot| snapshot.header().kind == SnapshotKind::Edit);
    edits.sort_by_key(|snapshot| snapshot.header().step);
    assert!(edits.len() > 1);
    let log =
        |snapshot: &Snapshot| snapshot.files().iter().find(|file| file.path.ends_with(b"/log")).cloned();
    for pair in edits.windows(2) {
        let [Some(one), Some(next)] = [log(&pair[0]), log(&pair[1])] else { continue };
        let written = |state: &State| state.present().map(|at| (at.size, at.mtime, at.mtime_nsec));
        let [left, found] = [written(&one.after), written(&next.before)];
        assert!(left == found || !pair[1].header().complete, "{left:?} {found:?}");
    }
}

#[test]
fn what_is_changed_by_a_name_in_dev_is_an_edit() {
    let place = Place::new();
    place.write("log", "0");
    let mut agent = Agent::start(&place, &[]);
    agent.tell("open", "log", "");
    let descriptor = agent.tell("descriptor", "log", "");
    agent.tell("run", "", "true");
    agent.tell("write", "/dev/null", "nothing");
    agent.tell("write", &format!("/dev/fd/{descriptor}"), "1");
    agent.tell("run", "", "true");
    agent.tell("write", &format!("/dev/..{}", place.at("made").display()), "1");
    agent.end();
    let edits: Vec<_> = titles(&place).into_iter().filter(|title| title.starts_with("edit")).collect();
    assert_eq!(edits, ["edit edit log +0~1-0", "edit edit made +1~0-0"]);
}

#[test]
fn no_edit_of_a_program_with_an_io_uring_is_complete() {
    let place = Place::new();
    let mut agent = Agent::start(&place, &["--allow-io-uring"]);
    agent.tell("run", "", "true");
    agent.tell("ring", "", "");
    agent.tell("run", "", "true");
    agent.tell("write", "made", "1");
    agent.tell("run", "", "true");
    agent.end();
    let told: Vec<_> = steps(&place).iter().map(|step| (title(step), step["incomplete"] == true)).collect();
    let command = || ("command sh -c true +0~0-0".to_owned(), false);
    let edit = |name: &str, created: u32| (format!("edit edit{name} +{created}~0-0"), true);
    assert_eq!(told, [command(), edit("", 0), command(), edit(" made", 1), command(), edit("", 0)]);
}

#[test]
fn commands_at_once_are_told_apart() {
    let place = Place::new();
    place.write("both", "0");
    place.prepare("mkfifo go_a go_b");
    let mut agent = Agent::start(&place, &[]);
    let script =
        |name: &str| format!("echo > {name}; echo {name} >> both; read x < go_{name}; echo > {name}2");
    for (name, length) in [("a", 3), ("b", 5)] {
        agent.tell("start", name, &script(name));
        let deadline = Instant::now() + PATIENCE;
        while fs::read_to_string(place.at("both")).unwrap().len() < length {
            assert!(Instant::now() < deadline);
            std::thread::yield_now();
        }
    }
    let state = |name: &str| {
        let steps = steps(&place);
        let step = steps.iter().find(|step| step["command"][2] == script(name)).unwrap();
        (step["state"].as_str().unwrap().to_owned(), step["created"].as_u64().unwrap())
    };
    assert_eq!([state("a"), state("b")], [("running".to_owned(), 0), ("running".to_owned(), 0)]);
    place.prepare("echo > go_b");
    agent.tell("wait", "b", "");
    assert_eq!([state("a"), state("b")], [("running".to_owned(), 0), ("ended".to_owned(), 2)]);
    place.prepare("echo > go_a");
    agent.tell("wait", "a", "");
    assert_eq!(state("a"), ("ended".to_owned(), 2));
    agent.end();
    let all = steps(&place);
    assert!(all.len() == 2 && all.iter().all(|step| step["changed"] == 1), "{all:?}");
    verb(&place, &["undo", "--session", "s"]).expect(0);
    assert_eq!(fs::read_to_string(place.at("both")).unwrap(), "0");
    assert!(["a", "a2", "b", "b2"].iter().all(|name| !place.at(name).exists()));
}

/// Commands that run at the same time and do what they are told.
fn in_turns(before: &[(&str, &str)], turns: &[(usize, &str)]) {
    let place = Place::new();
    before.iter().for_each(|(name, text)| place.write(name, *text));
    let tree = describe(&scan(&place.work), |_| false);
    let base = place.base().to_owned();
    let mut agent = Agent::start(&place, &[]);
    let mut going = BTreeMap::new();
    for &(command, line) in turns {
        if command == 0 {
            agent.tell("run", "", line);
            continue;
        }
        let [go, done] = ["go", "done"].map(|name| base.join(format!("{name}_{command}")));
        let go = going.entry(command).or_insert_with(|| {
            let (go, done) = (go.display(), done.display());
            place.prepare(&format!("mkfifo {go} {done}"));
            let follow = format!("while read -r line; do eval \"$line\"; echo > {done}; done < {go}");
            agent.tell("start", &command.to_string(), &follow);
            fs::OpenOptions::new().write(true).open(base.join(format!("go_{command}"))).unwrap()
        });
        writeln!(go, "{line}").unwrap();
        fs::read(done).unwrap();
    }
    for command in going.keys().copied().collect::<Vec<_>>() {
        going.remove(&command);
        agent.tell("wait", &command.to_string(), "");
    }
    agent.end();
    let incomplete: Vec<_> = steps(&place).into_iter().filter(|step| !step["incomplete"].is_null()).collect();
    let gaps = || incomplete.iter().map(|step| verb(&place, &["show", step["id"].as_str().unwrap()]).stdout);
    assert!(incomplete.is_empty(), "{turns:?}: {}", gaps().collect::<String>());
    if place.at("f").exists() {
        let history = verb(&place, &["history", "f"]).stderr;
        assert!(!history.contains("not in the library"), "{turns:?}: {history}");
    }
    let undone = verb(&place, &["undo", "--session", "s"]);
    assert!(undone.status == 0 || undone.stderr.contains("nothing to undo"), "{turns:?}: {undone:#?}");
    assert_same(&describe(&scan(&place.work), |_| false), &tree, &format!("{turns:?}"));
}

#[test]
fn commands_that_change_a_file_in_turns_are_undone_at_once() {
    let f = [("f", "0\n")];
    // The older one changes it after the newer one.
    in_turns(&f, &[(1, ":"), (0, "touch f; echo x > x"), (1, "echo one > f")]);
    in_turns(&f, &[(1, ":"), (0, "echo two > f; echo k > k"), (1, "echo one > f; rm k")]);
    in_turns(&f, &[(1, ":"), (2, ":"), (2, "echo 2 > f"), (1, "echo 0 > f"), (2, "echo 2 > f")]);
    in_turns(&[], &[(1, ":"), (2, "echo 2 > f"), (1, "rm f"), (2, "echo 2 > f")]);
    // The one that changed it first ends last.
    in_turns(&f, &[(1, ":"), (2, "echo 2 > f"), (1, "echo 1 > f")]);
    // In both orders.
    in_turns(&f, &[(1, "echo one > f"), (0, "echo two > f"), (1, "echo three > f")]);
    in_turns(&f, &[(1, "echo 1 > f"), (2, "echo 2 > f"), (1, "echo 3 > f"), (2, "echo 4 > f")]);
    in_turns(&f, &[(1, "rm f"), (2, "echo 2 > f"), (1, "mv f g"), (2, "echo 4 > f; rm g")]);
    // Another file takes its place meanwhile.
    in_turns(&f, &[(1, "echo 1 > f"), (2, "echo 2 > g; mv g f"), (1, "echo 3 > f")]);
    in_turns(&f, &[(1, "echo 1 > f"), (0, "rm f; echo 2 > f"), (1, "mv f g"), (0, "mv g f"), (1, "rm f")]);
    in_turns(&f, &[(1, "chmod 600 f"), (2, "echo 2 > g; mv g f"), (1, "chmod 640 f"), (2, "rm f")]);
}

#[test]
fn what_a_command_has_open_is_its_own_by_any_name() {
    let f = [("f", "0\n")];
    in_turns(&f, &[(1, "exec 3>>f; echo 1 >&3"), (2, "mv f g"), (1, "echo 2 >&3")]);
    in_turns(&f, &[(1, "exec 3<>f"), (2, "mv f g"), (1, "echo 2 >&3"), (2, "cat g")]);
    in_turns(&f, &[(1, "exec 3<>f"), (0, "mv f g"), (1, "echo 1 >&3"), (0, "mv g h"), (1, "echo 2 >&3")]);
    in_turns(&f, &[(1, "exec 3>f"), (0, "rm f; echo new > f"), (1, "echo 1 >&3")]);
    in_turns(&f, &[(1, "exec 3>f"), (0, "mv f g; echo new > f"), (1, "echo 1 >&3; cat f")]);
    in_turns(&f, &[(1, "exec 3>f; echo 1 >&3"), (0, "ln f g; rm f"), (1, "echo 2 >&3")]);
    in_turns(
        &f,
        &[(1, "exec 3>>f; echo 1 >&3"), (0, "echo x >> f"), (1, "echo 2 >&3"), (0, "rm f; echo y > f")],
    );
    // Both have it open, and one closes it before states are taken once more.
    in_turns(
        &[("f", "0\n"), ("g", "00\n")],
        &[
            (2, ":"),
            (1, "exec 3>>f; echo 1 >&3"),
            (2, "exec 3>>f; echo 2 >&3"),
            (1, "exec 3>&-; echo 1 > g"),
            (2, "echo 2 > g"),
        ],
    );
    // With the directory that it is in.
    in_turns(&f, &[(1, "mkdir d; echo 1 > d/f"), (0, "mv d e"), (1, ":")]);
    in_turns(&f, &[(1, "mkdir d; exec 3>d/f; echo 1 >&3"), (0, "mv d e"), (1, "echo 2 >&3")]);
    in_turns(&f, &[(1, "mkdir d; exec 3>d/f"), (2, "mv d e"), (1, "echo 2 >&3"), (2, "rm -r e")]);
    in_turns(
        &f,
        &[
            (1, "echo 1 > f; mkdir d"),
            (2, "mv f d; mv d e"),
            (1, "echo 3 >> e/f"),
            (2, "mv e/f f"),
            (1, "rm f"),
        ],
    );
    // As logs are rotated.
    let again = "echo 1 >&3; exec 3>log; echo 2 >&3";
    in_turns(
        &f,
        &[
            (1, "exec 3>log"),
            (0, "mv log log.1"),
            (1, again),
            (0, "mv log.1 log.2; mv log log.1"),
            (1, again),
        ],
    );
}

#[test]
fn what_others_put_in_its_place_is_not_of_a_command() {
    let linked = [("f", "0\n"), ("g", "00\n")];
    // Another name of the file.
    in_turns(&linked, &[(2, "ln -f f g"), (2, "rm g"), (0, "echo other > g"), (2, "echo 5 > f")]);
    in_turns(&linked, &[(0, "ln -f f g"), (2, "mv g h"), (0, "mkdir g"), (2, "chmod 600 f")]);
    // The directory above it.
    in_turns(&[("d/f", "0\n")], &[(2, "rm -rf d"), (1, "mkdir d"), (2, "echo 9 >> d/f")]);
    let own = "mkdir d; chmod 700 d; echo mine > d/own";
    in_turns(&[("d/f", "0\n")], &[(2, "rm -rf d"), (0, own), (2, "echo 9 >> d/f")]);
    in_turns(&[("d/f", "0\n")], &[(2, "mv -T d e"), (1, "mkdir d"), (2, "echo 4 > d/f")]);
    in_turns(&[("d/f", "0\n")], &[(1, "test -e e/f"), (0, "mv -T d e"), (1, "echo 6 > e/f")]);
    // What it has only open, or has made a link to.
    in_turns(&linked, &[(1, "exec 4>>g"), (2, "ln g x; rm g"), (1, "echo c >&4")]);
    in_turns(&linked, &[(2, "exec 3>>g"), (0, "mv -T g l"), (0, "echo 2 > l")]);
    in_turns(&linked, &[(0, "echo 2 > f"), (1, "test -f f && exec 3>>f"), (0, "echo 1 > f")]);
    for _ in 0..4 {
        in_turns(&linked, &[(2, "ln g h; true"), (1, "mv -T g l")]);
    }
}

#[test]
fn commands_that_change_files_at_once_are_undone_at_once() {
    let writes = |number: u8| {
        format!(
            "for i in 1 2 3 4 5 6 7 8 9; do echo {number} >> f; echo {number} >> g; echo {number}$i > h; test $i = 5 && \
             echo {number} > f; done"
        )
    };
    let programs = [
        [writes(1), writes(2), writes(3)],
        ["mv -T f g; echo 1 >> g", "echo 2 >> f; echo 2 >> f", ":"].map(str::to_owned),
        [
            "rm -f f; echo 1 > f; rm -f f; echo 1 > f",
            "rm -f f; echo 2 > f; rm -f f; echo 2 > f",
            "echo 3 > f",
        ]
        .map(str::to_owned),
        ["rm f", "echo 2 >> f", "ln f g"].map(str::to_owned),
        [
            "for i in 1 2 3; do echo 1 > x; mv x f; done",
            "for i in 1 2 3; do echo 2 > y; mv y f; done",
            "mv -T f h",
        ]
        .map(str::to_owned),
    ];
    for program in programs.iter().cycle().take(cases(8) as usize) {
        let place = Place::new();
        place.write("f", "0\n");
        place.write("h", "00\n");
        let tree = describe(&scan(&place.work), |_| false);
        let mut agent = Agent::start(&place, &[]);
        for (number, line) in program.iter().enumerate() {
            // Not replaced by its last command.
            agent.tell("start", &number.to_string(), &format!("{line}; exit 0"));
        }
        for number in 0..program.len() {
            agent.tell("wait", &number.to_string(), "");
        }
        agent.end();
        let undone = verb(&place, &["undo", "--session", "s"]);
        assert!(undone.status == 0 || undone.stderr.contains("nothing to undo"), "{program:?}: {undone:#?}");
        assert_same(&describe(&scan(&place.work), |_| false), &tree, &format!("{program:?}"));
    }
}

#[test]
fn hard_links_of_several_commands_are_undone_at_once() {
    let (f, g) = ([("f", "0\n")], [("g", "00\n")]);
    // What one has written to by another name, and the other removes.
    in_turns(&f, &[(1, "ln f h"), (2, "echo 1 > h"), (1, "rm f")]);
    in_turns(&f, &[(1, "ln f h"), (2, "echo 1 > h"), (1, "echo 2 > new; mv new f")]);
    // One has made a name, and the other writes on.
    in_turns(&[], &[(2, "echo 1 >> h"), (1, "ln h g"), (2, "echo 8 >> h")]);
    in_turns(&g, &[(1, "mv -T g f"), (2, "echo 13 >> g"), (2, "ln g h"), (1, "echo 2 >> h")]);
    // A name that was written to by another one, and was not changed before.
    in_turns(&f, &[(1, "test -e f"), (2, "ln f h"), (1, "echo 3 > f"), (1, "rm h")]);
    // A command that is not undone, since it changes no content, sets the times in between.
    in_turns(&f, &[(0, "echo 1 > f; ln f h"), (0, "touch -d @1 f"), (0, "echo 2 > h"), (0, "echo 3 >> f")]);
    // The file has lost a name before it is written to, but not before that command changed it for the first time.
    let void = "perl -e 'rename(q(h), q(f)) or die'";
    in_turns(&f, &[(0, "ln f h; echo g > g"), (1, void), (2, "mv g f"), (1, "echo 3 > h")]);
}

#[test]
fn files_that_come_and_go_meanwhile_are_undone_at_once() {
    let g = [("g", "00\n")];
    let made = &[(0, "rm g"), (1, "echo 4 > h"), (1, "echo 17 > g"), (0, "mv -T h g"), (1, "rm g")];
    in_turns(&g, made);
    // One leaves no change, and what it had made in between the other has found.
    in_turns(&[], &[(1, "echo 2 > f"), (2, "echo 3 >> f"), (1, "rm f")]);
    in_turns(&[], &[(1, "echo 2 > f"), (2, "echo 3 >> f"), (3, "echo 4 >> f"), (1, "rm f")]);
    // What one has only read, the other writes to.
    in_turns(&g, &[(1, "cat g"), (2, "echo 4 >> g"), (1, "echo 5 >> g")]);
    in_turns(&g, &[(1, "cp g h"), (2, "echo 4 >> g"), (1, "echo 5 >> g")]);
    // The number of the replaced file is the next one's.
    let again =
        &[(1, "ln h g || true"), (1, "echo 6 > h"), (2, "mv -T h g"), (2, "echo 28 >> h"), (1, "echo 7 > h")];
    in_turns(&g, again);
}

#[test]
fn commands_in_random_turns_are_undone_at_once() {
    let name = || prop::sample::select(&["f", "g", "d/f", "d/g", "e/f"][..]);
    let number = || 1..10_u8;
    let line = prop_oneof![
        3 => (name(), number()).prop_map(|(to, n)| format!("echo {n} > {to}")),
        2 => (name(), number()).prop_map(|(to, n)| format!("echo {n} >> {to}")),
        2 => name().prop_map(|at| format!("rm -f {at}")),
        3 => (name(), name()).prop_map(|(from, to)| format!("mv -T {from} {to}")),
        1 => (name(), name()).prop_map(|(from, to)| format!("ln -f {from} {to}")),
        1 => (name(), name()).prop_map(|(from, to)| format!("cp {from} {to}")),
        1 => name().prop_map(|at| format!("chmod 600 {at}")),
        2 => Just("mkdir d".to_owned()),
        1 => Just("mv -T d e".to_owned()),
        1 => Just("mv -T e d".to_owned()),
        1 => Just("rm -rf d".to_owned()),
        2 => name().prop_map(|at| format!("test -f {at} && exec 3>>{at}")),
        3 => number().prop_map(|n| format!("echo {n} >&3")),
        1 => Just("exec 3>&-".to_owned()),
    ];
    let turns = prop::collection::vec((0..3_usize, line), 2..8);
    let config =
        Config { cases: cases(8), failure_persistence: None, max_shrink_iters: 60, ..Config::default() };
    let outcome = TestRunner::new(config).run(&turns, |turns| {
        let turns: Vec<_> = turns.iter().map(|(command, line)| (*command, line.as_str())).collect();
        in_turns(&[("f", "0\n"), ("g", "00\n")], &turns);
        Ok(())
    });
    outcome.unwrap();
}

#[test]
fn jobs_of_a_shell_are_steps() {
    let place = Place::new();
    place.write("f", "text\n");
    let session = [BINARY, "session", "--name", "s", "--"];
    let Some(mut terminal) = Terminal::new(place, &session, &[("b", BINARY)]) else { return };
    let shown = [
        ("echo own > own", ""),
        ("cat f | tr a-z A-Z > upper; echo $?.", "0."),
        ("(cd ..; echo sub > work/sub; exit 4); echo $?.", "4."),
        ("for i in 1 2; do touch f$i; done", ""),
        ("x=$(cat f); echo $x.", "text."),
        ("sh -c 'echo nested > nested; kill $$'; echo $?.", "143."),
        ("rm f1 f2", ""),
        ("$b undo > /dev/null; ls f?; echo .", "f1  f2\r\n."),
        ("$b undo --session --dry-run | grep -c ^undo", "6\r"),
        ("sh -c 'echo up; exec sleep 1000' &", "up\r"),
    ];
    for (line, answer) in shown {
        terminal.line(line, answer);
        terminal.line("echo next.", "next.\r\n$ ");
    }
    let running = |steps: &[Value]| steps.last().is_some_and(|step| step["state"] == "running");
    until(&terminal.place, "the job does not run", running);
    terminal.line("kill %1; wait %1; echo $?.", "143.");
    terminal.until("$ ");
    let place = terminal.end();
    let titles = titles(&place);
    let expected = [
        "edit edit own +1~0-0",
        "command cat f | tr a-z A-Z +1~0-0",
        "command (...) +1~0-0",
        "command touch f1 +1~0-0",
        "command touch f2 +1~0-0",
        "command sh -c echo nested > nested; kill $$ +1~0-0",
        "command rm f1 f2 +0~0-2",
    ];
    assert_eq!(titles[..7], expected);
    assert!(titles[7].ends_with("undo +0~0-0") && titles[8].contains("ls"), "{titles:?}");
    assert_eq!(titles[10], "command sh -c echo up; exec sleep 1000 +0~0-0");
    let steps = steps(&place);
    assert_eq!(
        steps.iter().map(|step| step["status"].as_i64().unwrap()).collect::<Vec<_>>(),
        [0, 0, 4, 0, 0, 143, 0, 0, 0, 0, 143]
    );
    assert!(steps[6]["undone"].is_string());
}

#[test]
fn what_outlives_its_command_is_a_step_that_goes_on() {
    let place = Place::new();
    place.prepare("mkfifo go");
    let mut agent = Agent::start(&place, &[]);
    assert_eq!(agent.tell("run", "", "(read x < go; echo late > late) > /dev/null 2>&1 &"), "0");
    agent.tell("run", "", "echo 2 > second");
    let states = |steps: &[Value]| steps.iter().map(|step| step["state"].clone()).collect::<Vec<_>>();
    assert_eq!(states(&steps(&place)), ["running", "ended"]);
    // The program ends, and what it has left is recorded on.
    agent.end();
    assert_eq!(states(&steps(&place)), ["running", "ended"]);
    let running = steps(&place)[0]["id"].as_str().unwrap().to_owned();
    let refused = verb(&place, &["undo", &running]).expect(1).stderr;
    assert!(refused.contains("it can be undone once it has ended"), "{refused}");
    let rest = verb(&place, &["undo", "--session", "s"]).expect(0).stderr;
    assert!(rest.contains(&format!("{running} is still running: what it changes is not undone")), "{rest}");
    place.prepare("echo > go");
    let ended = until(&place, "it does not end", |steps| states(steps) == ["ended", "ended"]);
    assert_eq!(ended[0]["created"], 1);
}

#[test]
fn what_agents_keep_for_themselves_is_left_out() {
    for all in [false, true] {
        let place = Place::new();
        fs::create_dir(place.home.join(".gemini")).unwrap();
        let mut agent = Agent::start(&place, if all { &["--all"] } else { &[] });
        agent.tell("write", &place.home.join(".gemini/transcript").display().to_string(), "secret");
        agent.end();
        assert_eq!(steps(&place).len(), usize::from(all));
    }
}

#[test]
fn what_an_agent_removes_after_its_sandbox_is_no_edit() {
    let place = Place::new();
    if !place.can_run(&["bwrap", "--bind", "/", "/", "true"]) {
        return;
    }
    let mut agent = Agent::start(&place, &[]);
    let work = place.work.display().to_string();
    let sandbox = format!("bwrap --bind / / --ro-bind /dev/null {work}/guarded sh -c");
    for _ in 0..2 {
        assert_eq!(agent.tell("exec", "", &format!("{sandbox} echo>made")), "0");
        agent.tell("remove", "guarded", "");
    }
    // Whatever else is there by now is the user's.
    agent.tell("write", "guarded", "text");
    agent.tell("run", "", "true");
    agent.tell("remove", "guarded", "");
    agent.end();
    let titles = titles(&place);
    assert!(
        titles[0].starts_with("command bwrap") && titles[0].ends_with("sh -c echo>made +1~0-0"),
        "{titles:?}"
    );
    assert_eq!(
        titles[2..],
        ["edit edit guarded +1~0-0", "command sh -c true +0~0-0", "edit edit guarded +0~0-1"]
    );
    assert!(steps(&place).iter().all(|step| step["incomplete"].is_null()));
}

#[test]
fn what_a_program_changes_in_its_own_mount_namespace_is_a_complete_edit() {
    let place = Place::new();
    if !place.can_run(&["bwrap", "--bind", "/", "/", "true"]) {
        return;
    }
    let mut agent = Agent::start(&place, &[]);
    agent.tell("open", "log", "");
    let work = place.work.display();
    agent.tell("exec", "", &format!("bwrap --bind / / --bind {work} /mnt touch /mnt/made"));
    agent.end();
    let [edit] = &*steps(&place) else { panic!("{:?}", titles(&place)) };
    assert_eq!((title(edit).as_str(), &edit["incomplete"]), ("edit edit log, made +2~0-0", &Value::Null));
}

#[test]
fn a_job_that_begins_after_its_shell_has_ended_is_a_step() {
    let place = Place::new();
    place.prepare("mkfifo go");
    let session = [BINARY, "session", "--name", "s", "--"];
    let Some(mut terminal) = Terminal::new(place, &session, &[]) else { return };
    // Only the builtin waits: the first call that is seen comes when the shell has gone.
    terminal.line("exec 3<> go; (trap '' HUP; read -u 3 x; touch late) & disown; echo up.", "up.");
    let place = terminal.end();
    place.prepare("echo > go");
    let ended = |steps: &[Value]| steps.iter().any(|step| step["state"] == "ended" && step["created"] == 1);
    let steps = until(&place, "it does not end", ended);
    assert_eq!(title(steps.last().unwrap()), "command touch late +1~0-0");
}

#[test]
fn a_shell_in_a_shell_has_jobs_of_its_own() {
    let place = Place::new();
    let session = [BINARY, "session", "--name", "s", "--"];
    let Some(mut terminal) = Terminal::new(place, &session, &[]) else { return };
    terminal.line("touch outer", "$ ");
    terminal.line("bash --norc --noprofile -i", "$ ");
    terminal.line("touch inner; echo up.", "up.");
    terminal.line("exit", "exit\r\n$ ");
    let place = terminal.end();
    assert_eq!(titles(&place), ["command touch outer +1~0-0", "command touch inner +1~0-0"]);
}

#[test]
fn when_the_tracing_process_is_killed_no_step_is_lost() {
    for is_front in [false, true] {
        let place = Place::new();
        place.write("f", "before");
        place.prepare("mkfifo go");
        let mut agent = Agent::start(&place, &[]);
        agent.tell("run", "", "echo 1 > first");
        agent.tell("write", "edited", "text");
        agent.tell("start", "a", "echo after > f; rm edited; echo > said; read x < go");
        let deadline = Instant::now() + PATIENCE;
        while !place.at("said").exists() {
            assert!(Instant::now() < deadline);
            std::thread::yield_now();
        }
        let front = i32::try_from(agent.process.id()).unwrap();
        let traced = descendants(front);
        let tracer = traced.iter().find_map(|process| tracer_of(*process)).unwrap();
        let recorder = pidfd_of(tracer);
        if is_front {
            assert!(kill(front));
        }
        assert!(kill(tracer));
        let _ = wait(&mut agent.process);
        wait_for_end(&recorder);
        if is_front {
            // The next verb finds what it has left.
            let left = steps(&place).into_iter().find(|step| step["state"] == "unrecovered").unwrap();
            let directory = library(&place).join("snapshots").join(left["id"].as_str().unwrap());
            verb(&place, &["recover", &directory.display().to_string()]).expect(0);
        }
        let steps = steps(&place);
        let changed: Vec<_> =
            steps.iter().filter(|step| step["created"] != 0 || step["changed"] != 0).collect();
        assert_eq!(changed.len(), 3, "{steps:?}");
        verb(&place, &["undo", "--session", "s"]).expect(0);
        assert_eq!(fs::read_to_string(place.at("f")).unwrap(), "before");
        let left: Vec<_> = scan(&place.work).into_keys().collect();
        assert!(!place.at("edited").exists() && !place.at("first").exists(), "{left:?}");
    }
}

/// Who is killed in a session.
#[derive(Debug, Clone, Copy)]
enum Victim {
    Tracer,
    FrontAndTracer,
    Front,
    Program,
    /// All that the program has started.
    Commands,
}

const VICTIMS: [Victim; 5] =
    [Victim::Tracer, Victim::FrontAndTracer, Victim::Front, Victim::Program, Victim::Commands];

/// Kills somebody in a session after so many milliseconds: what had ended is there, what ran is recovered or goes on to
/// its end, and undoing all of it gives back what was there before.
fn kill_after(milliseconds: u64, victim: Victim, random: &mut Random) {
    let place = Place::new();
    (0..4).for_each(|number| place.write(&format!("f{number}"), format!("before {number}")));
    let before = describe(&scan(&place.work), |_| false);
    let mut agent = Agent::start(&place, &[]);
    agent.tell("run", "", "true");
    let front = i32::try_from(agent.process.id()).unwrap();
    let traced = descendants(front).into_iter().find_map(|process| Some((process, tracer_of(process)?)));
    let (program, tracer) = traced.unwrap();
    let recorder = pidfd_of(tracer);
    let killer = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(milliseconds));
        let victims = match victim {
            Victim::Tracer => vec![tracer],
            Victim::FrontAndTracer => vec![front, tracer],
            Victim::Front => vec![front],
            Victim::Program => vec![program],
            Victim::Commands => descendants(program),
        };
        for process in victims {
            kill(process);
        }
    });
    let mut done = Vec::new();
    for number in 0..50 {
        let file = format!("f{}", random.below(6));
        let (verb, line) = match random.below(5) {
            0 => ("write", format!("edit {number}")),
            1 => ("run", format!("echo {number} > {file}")),
            2 => ("run", format!("echo {number} >> {file}; rm -f f{}", random.below(6))),
            3 => ("run", format!("mkdir d{number}; mv {file} d{number}/moved")),
            _ => ("run", format!("(echo {number} > {file}) & echo x{number} > g; wait")),
        };
        let Some(status) = agent.try_to_tell(verb, &file, &line) else { break };
        // What is killed before it executes the shell is no step.
        if verb == "run" && status != "-9" {
            done.push(line);
        }
    }
    killer.join().unwrap();
    drop(agent.orders.take());
    let _ = wait(&mut agent.process);
    wait_for_end(&recorder);
    for step in steps(&place).iter().filter(|step| step["state"] == "unrecovered") {
        let directory = library(&place).join("snapshots").join(step["id"].as_str().unwrap());
        let run = verb(&place, &["recover", &directory.display().to_string()]);
        assert!(run.status == 0, "{run:?}");
    }
    let steps = steps(&place);
    let lines: Vec<&str> = steps.iter().filter_map(|step| step["command"][2].as_str()).collect();
    for line in &done {
        assert!(
            lines.contains(&line.as_str()),
            "{victim:?} after {milliseconds} ms: {line} is not in {lines:?}"
        );
    }
    if steps.iter().any(|step| step["created"] != 0 || step["changed"] != 0 || step["deleted"] != 0) {
        let run = verb(&place, &["undo", "--session", "s"]);
        assert!(run.status == 0, "{victim:?} after {milliseconds} ms: {run:?} {steps:#?}");
    }
    assert_same(&describe(&scan(&place.work), |_| false), &before, &format!("{victim:?} {steps:#?}"));
}

#[test]
fn kills_at_random_moments_lose_no_step() {
    let mut random = Random::seeded();
    for victim in VICTIMS {
        kill_after(20 + random.below(250) as u64, victim, &mut random);
    }
}

#[test]
#[ignore = "slow: hundreds of kills"]
fn slow_kills_at_random_moments_lose_no_step() {
    let mut random = Random::seeded();
    for victim in VICTIMS.into_iter().cycle().take(rounds(100)) {
        kill_after(10 + random.below(300) as u64, victim, &mut random);
    }
}
