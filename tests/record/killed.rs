//! SIGKILL at random moments: to any tracee, and to either process of the recorder.

use std::fs;
use std::io::{BufRead as _, BufReader, Read};
use std::os::unix::process::{CommandExt as _, ExitStatusExt};
use std::process::{Child, Stdio};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use crate::support::{
    BINARY, MECHANISMS, Place, Random, bytes, command_of, descendants, kill, lost, program, rounds, stderr,
    tracer_of, wait,
};
use agent_snapshot::snapshot::Snapshot;
use agent_snapshot::snapshot::layout::JOURNAL;
use nix::sys::signal::{self, Signal};
use nix::unistd::Pid;
use rustix::fs::XattrFlags;

/// Longer than any round takes on a busy machine: what takes longer hangs.
const PATIENCE: Duration = Duration::from_secs(120);

/// Work of many processes and threads, which ends by itself whichever of them is killed.
const TREE: &str = r#"
    for worker in 1 2 3 4; do
        (
            i=0
            while [ $i -lt 15 ]; do
                i=$((i + 1))
                echo $i > f$worker; mv f$worker g$worker; cat g$worker > /dev/null
                (rm g$worker; mkdir d$worker; : > d$worker/x; mv d$worker e$worker; rm -r e$worker) 2> /dev/null
                "$processes" exec_from_a_thread 2> /dev/null &
                "$processes" vforks &
                "$processes" clones &
                wait
            done
        ) 2> /dev/null &
    done
    wait
"#;

fn start(place: &Place) -> Child {
    let mut command = place.recording();
    command.args(["sh", "-c", TREE]);
    command
        .env("processes", program("processes"))
        .stdout(Stdio::piped())
        .stderr(fs::File::create(place.base().join("said")).unwrap());
    command.spawn().unwrap()
}

/// Runs `disturb` until the last process of the tree has closed its output and the front has ended;
/// ends all and fails where that does not come.
fn until_gone(child: &mut Child, mut disturb: impl FnMut(&mut Child)) {
    let mut stdout = child.stdout.take().unwrap();
    let (say, hear) = channel();
    let reader = std::thread::spawn(move || {
        let mut text = Vec::new();
        let _ = stdout.read_to_end(&mut text);
        let _ = say.send(());
    });
    let started = Instant::now();
    let mut gone = false;
    loop {
        gone |= hear.recv_timeout(Duration::from_millis(1)) != Err(RecvTimeoutError::Timeout);
        if gone && child.try_wait().unwrap().is_some() {
            break;
        }
        if started.elapsed() > PATIENCE {
            let tree = descendants(i32::try_from(child.id()).unwrap());
            let shown: Vec<String> = tree
                .iter()
                .map(|pid| {
                    let line =
                        |name: &str| fs::read_to_string(format!("/proc/{pid}/{name}")).unwrap_or_default();
                    format!("{pid} {} {}", line("stat"), line("wchan"))
                })
                .collect();
            kill(i32::try_from(child.id()).unwrap());
            for pid in &tree {
                kill(*pid);
            }
            panic!("it hangs:\n{}", shown.join("\n"));
        }
        disturb(child);
    }
    reader.join().unwrap();
}

/// Kills processes of the tree; how many.
fn kill_in_the_tree(random: &mut Random, wanted: usize) -> usize {
    let mut kills = 0;
    while kills < wanted {
        let place = Place::new();
        let mut child = start(&place);
        let front = i32::try_from(child.id()).unwrap();
        until_gone(&mut child, |_| {
            let Some(command) = command_of(front) else { return };
            let tree = [vec![command], descendants(command)].concat();
            // The root dies rarely, or little would happen.
            let spared = usize::from(random.below(50) != 0);
            // A command that is killed before it executes was not started.
            if kills < wanted && tree.len() > 1 {
                let victim = tree[spared + random.below(tree.len() - spared)];
                kills += usize::from(kill(victim));
            }
        });
        let status = child.wait().unwrap();
        let said = fs::read_to_string(place.base().join("said")).unwrap();
        assert!(status.success() || status.signal() == Some(9), "{status:?}: {said}");
        let snapshot = place.snapshot();
        let processes = &snapshot.header().processes;
        assert!(processes.iter().all(|process| process.exit_status.is_some()));
    }
    kills
}

/// Kills one of our own processes a while after the start.
fn kill_recorder(random: &mut Random, rounds: usize) {
    let mut whole = 0;
    for round in 0..rounds {
        let place = Place::new();
        let mut child = start(&place);
        let front = i32::try_from(child.id()).unwrap();
        let due = Instant::now() + Duration::from_micros(random.below(150_000) as u64);
        let mut killed = false;
        until_gone(&mut child, |child| {
            if !killed && Instant::now() >= due {
                let victim = if round % 2 == 0 { Some(front) } else { command_of(front).and_then(tracer_of) };
                killed = victim.is_some_and(kill) || child.try_wait().unwrap().is_some();
            }
        });
        if place.out.exists() {
            place.wait_for_lock();
        }
        if place.out.join(JOURNAL).exists() {
            assert!(!place.out.join("manifest.json").exists());
            place.verb("recover", &[]).expect(0);
        }
        if place.out.join("manifest.json").exists() {
            Snapshot::open(&place.out).unwrap();
            whole += 1;
        }
        let names = fs::read_dir(&place.out).into_iter().flatten().count();
        assert!(names <= 2, "something else was left");
    }
    println!("{whole} of {rounds} had a manifest");
}

/// A recording of a shell that destroys `f` and then stays; returns once it has.
fn destroy_and_stay(place: &Place, wrap: &[&str], options: &[&str]) -> Child {
    place.write("f", "precious\n");
    let mut command = place.program(wrap.first().unwrap_or(&BINARY));
    command.args(wrap.get(1..).unwrap_or_default());
    if !wrap.is_empty() {
        command.arg(BINARY);
    }
    command.arg("--snapshot-dir").arg(&place.out).args(options);
    command.args(["sh", "-c", "rm f; sleep 1000 & echo gone; wait"]);
    let mut child = command.process_group(0).stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "gone\n");
    child
}

/// Checks that a recording whose command was killed has all that it destroyed.
fn check_killed(place: &Place) {
    place.wait_for_lock();
    let snapshot = place.snapshot();
    assert_eq!(snapshot.header().exit_signal.as_deref(), Some("SIGKILL"));
    assert_eq!(snapshot.header().exit_status, 137);
    assert_eq!(lost(&snapshot), []);
    assert_eq!(bytes(&snapshot, place.file(&snapshot, "f"), true), b"precious\n");
    assert!(!place.at("f").exists());
}

#[test]
fn killing_the_front_or_its_group_leaves_a_snapshot_and_nothing_running() {
    for mechanism in MECHANISMS {
        for group in [false, true] {
            let place = Place::new();
            let mut child = destroy_and_stay(&place, &[], &["--mechanism", mechanism]);
            let front = i32::try_from(child.id()).unwrap();
            kill(if group { -front } else { front });
            assert_eq!(child.wait().unwrap().signal(), Some(9));
            // The pipe ends with the last tracee.
            child.stdout.take().unwrap().read_to_string(&mut String::new()).unwrap();
            check_killed(&place);
        }
    }
}

#[test]
fn command_killed_by_timeout_leaves_a_snapshot() {
    // It is told to kill at once, rather than after a time that may be too short.
    let place = Place::new();
    let mut timeout = destroy_and_stay(&place, &["timeout", "-s", "KILL", "1000"], &[]);
    signal::kill(Pid::from_raw(timeout.id().cast_signed()), Signal::SIGALRM).unwrap();
    assert_eq!(wait(&mut timeout).signal(), Some(9));
    check_killed(&place);
}

#[test]
fn command_killed_with_all_its_descendants_leaves_a_snapshot() {
    let place = Place::new();
    let mut child = destroy_and_stay(&place, &[], &[]);
    let front = i32::try_from(child.id()).unwrap();
    for pid in [vec![front], descendants(front)].concat() {
        kill(pid);
    }
    wait(&mut child);
    check_killed(&place);
}

#[test]
fn command_killed_by_python_leaves_a_snapshot() {
    let place = Place::new();
    place.write("f", "precious\n");
    let script = "
import os, signal, subprocess, sys
child = subprocess.Popen(sys.argv[1:], stdout=subprocess.PIPE, start_new_session=True)
assert child.stdout.readline() == b'gone\\n'
os.killpg(child.pid, signal.SIGKILL)
assert child.communicate() == (b'', None) and child.returncode == -9
";
    let mut python = place.program("python3");
    python.args(["-c", script, BINARY, "--snapshot-dir"]).arg(&place.out);
    let output = python.args(["sh", "-c", "rm f; echo gone; exec sleep 1000"]).output().unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    check_killed(&place);
}

/// A recording of a shell that stays, and of a survivor that waits for a line and then removes `f`; kills its front.
fn kill_front_beside_a_survivor(place: &Place, options: &[&str], survivor: &str) {
    place.write("f", "precious\n");
    nix::unistd::mkfifo(&place.at("fifo"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    let mut command = place.recording();
    command.args(options).args(["sh", "-c"]);
    command.arg(format!("({survivor} echo up; exec <&- >&-; read line < fifo; rm f) & exec sleep 1000"));
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut said = BufReader::new(child.stdout.take().unwrap());
    said.read_line(&mut String::new()).unwrap();
    kill(i32::try_from(child.id()).unwrap());
    wait(&mut child);
}

#[test]
fn survivors_are_recorded_on_in_the_background_when_the_front_is_killed() {
    let place = Place::new();
    kill_front_beside_a_survivor(&place, &["--survivors", "background"], "");
    let first = place.verb("show", &[]).expect(0);
    let _fifo = place.write_to_fifo("fifo", "go\n");
    assert!(first.stdout.contains("killed") && first.stdout.contains("were running"), "{first:?}");
    check_killed(&place);
}

#[test]
fn verb_waits_for_the_recorder_of_a_killed_recording() {
    let place = Place::new();
    // SIGTERM does not end it; SIGKILL does, after five seconds.
    kill_front_beside_a_survivor(&place, &[], "trap '' TERM;");
    let mut show = place.program(BINARY);
    show.arg("show").arg(&place.out).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut show = show.spawn().unwrap();
    let mut waits = String::new();
    BufReader::new(show.stderr.as_mut().unwrap()).read_line(&mut waits).unwrap();
    let _fifo = place.write_to_fifo("fifo", "go\n");
    let shown = show.wait_with_output().unwrap();
    assert!(waits.contains("waiting for process"), "{waits}");
    assert!(shown.status.success() && String::from_utf8_lossy(&shown.stdout).contains("killed"), "{shown:?}");
}

/// Enough for some of them to die after their call has taken effect.
const ROUNDS: usize = 200;

/// Records a scenario that lets a thread die in a call for each of many files, with nothing stored but for an undo; the
/// names of those files.
fn record_deaths(place: &Place, scenario: &str) -> impl Iterator<Item = String> {
    let mut command = place.recording();
    command.args(["--keep", "undo", "--"]).arg(program("bypass")).args([scenario, &ROUNDS.to_string()]);
    let output = command.output().unwrap();
    assert!(output.status.success(), "{output:?}");
    (0..ROUNDS).map(|round| format!("f{round}"))
}

#[test]
fn file_that_was_opened_by_a_process_that_died_in_the_call_is_recorded() {
    let place = Place::new();
    (0..ROUNDS).for_each(|round| place.write(&format!("f{round}"), "old\n"));
    let names = record_deaths(&place, "killed_in_opens");
    let snapshot = place.snapshot();
    assert_eq!(lost(&snapshot), []);
    let written: Vec<String> = names.filter(|name| fs::read(place.at(name)).unwrap() != b"old\n").collect();
    for name in &written {
        assert_eq!(bytes(&snapshot, place.file(&snapshot, name), true), b"old\n", "{name}");
    }
    println!("{} of {ROUNDS} were written to", written.len());
}

#[test]
fn attribute_that_was_set_by_a_thread_that_died_in_the_call_is_recorded() {
    let place = Place::new();
    for round in 0..ROUNDS {
        let name = format!("f{round}");
        place.write(&name, "");
        if rustix::fs::setxattr(place.at(&name), "user.mark", b"old", XattrFlags::empty()).is_err() {
            return println!("skipped: the filesystem has no extended attributes");
        }
    }
    let names = record_deaths(&place, "ends_beside_changes");
    let snapshot = place.snapshot();
    assert_eq!(lost(&snapshot), []);
    let value = |name: &String| {
        let mut value = [0; 4096];
        let length = rustix::fs::getxattr(place.at(name), "user.mark", &mut value[..]).unwrap();
        value[..length].to_vec()
    };
    let changed: Vec<String> = names.filter(|name| value(name) != b"old").collect();
    for name in &changed {
        let before = place.file(&snapshot, name).before.present().unwrap();
        assert_eq!(before.xattrs.get(&b"user.mark"[..]).unwrap(), b"old", "{name}");
    }
    println!("{} of {ROUNDS} were changed", changed.len());
}

#[test]
fn killing_any_tracee_leaves_a_complete_snapshot() {
    kill_in_the_tree(&mut Random::seeded(), 100);
}

#[test]
#[ignore = "slow: thousands of kills"]
fn slow_killing_any_tracee_leaves_a_complete_snapshot() {
    kill_in_the_tree(&mut Random::seeded(), rounds(2000));
}

#[test]
fn killing_the_recorder_leaves_nothing_running() {
    kill_recorder(&mut Random::seeded(), 12);
}

#[test]
#[ignore = "slow: hundreds of recordings"]
fn slow_killing_the_recorder_leaves_nothing_running() {
    kill_recorder(&mut Random::seeded(), rounds(300));
}
