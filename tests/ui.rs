//! `ui` on a real terminal: what it shows, what keys do to files, and that the terminal is as before in the end.

use std::fs;
use std::os::unix::process::ExitStatusExt as _;

use nix::sys::signal::Signal;
use nix::unistd::Pid;

use crate::support::{BINARY, Place, Run, Screen, Terminal, has, multiply};

/// Records a script, and returns the identifier of the recording.
fn record(place: &Place, script: &str) -> String {
    let mut command = place.command();
    let run: Run = command
        .args(["run", "--json", "--", "sh", "-c", script])
        .current_dir(&place.work)
        .output()
        .unwrap()
        .into();
    run.expect(0);
    newest(place)
}

fn newest(place: &Place) -> String {
    let log = place.command().args(["log", "-n", "1"]).current_dir(&place.work).output().unwrap();
    String::from_utf8(log.stdout).unwrap().split_whitespace().next().unwrap().to_owned()
}

/// The view of the recordings below `work`, on a terminal of 80 columns and 24 lines.
fn open(place: &Place) -> Option<Screen> {
    Screen::open(place, &[BINARY, "ui"], (80, 24), &[])
}

#[test]
fn a_recording_is_undone_and_redone_after_its_plan_was_seen() {
    let place = Place::new();
    place.write("notes", "call Ada\n");
    record(&place, "echo first > first");
    let id = record(&place, "rm notes; mkdir build; printf 'x\\n' > build/stamp");
    let Some(mut screen) = open(&place) else { return };
    screen.shows("1/2");
    screen.shows("-call Ada");
    assert!(screen.is_reversed(2, 1) && screen.has_colour());
    screen.press("j", "+first");
    screen.press("k", "deleted notes");
    let plan = screen.press("u", "y undo");
    assert!(plan.contains(&format!("undo {id}")) && plan.contains("3 paths would be put back"), "{plan}");
    assert!(plan.contains("create     ") && plan.contains("remove     "), "{plan}");
    assert!(!place.at("notes").exists(), "before it was confirmed");
    screen.press("y", "3 paths put back to the state before the command");
    screen.shows("(undone)");
    assert_eq!(fs::read_to_string(place.at("notes")).unwrap(), "call Ada\n");
    assert!(!place.at("build").exists());
    screen.press("r", "y redo");
    screen.press("y", "3 paths put back to the state after the command");
    assert!(!place.at("notes").exists() && place.at("build/stamp").exists());
    screen.keys("q");
    assert_eq!(screen.end().0.code(), Some(0));
}

#[test]
fn several_that_are_marked_are_undone_as_one() {
    let place = Place::new();
    for name in ["one", "two", "three"] {
        record(&place, &format!("echo {name} > {name}"));
    }
    let Some(mut screen) = open(&place) else { return };
    screen.shows("1/3");
    // The newest, and the oldest.
    screen.press(" j ", "2 marked");
    screen.press("u", "y undo");
    screen.press("y", "2 paths put back");
    let there = ["one", "two", "three"].map(|name| place.at(name).exists());
    assert_eq!(there, [false, true, false]);
    screen.keys("\x03");
    assert_eq!(screen.end().0.code(), Some(0));
}

#[test]
fn a_conflict_is_shown_and_nothing_is_changed_unless_that_is_chosen() {
    let place = Place::new();
    place.write("file", "before\n");
    record(&place, "echo after > file; echo new > other");
    place.write("file", "edited since\n");
    let Some(mut screen) = open(&place) else { return };
    screen.shows("1/1");
    let refused = screen.press("u", "f overwrite");
    assert!(refused.contains("nothing would be changed") && refused.contains("edited since"), "{refused}");
    // No key but the one that is offered does anything.
    screen.press("y\r", "f overwrite");
    assert_eq!(fs::read_to_string(place.at("file")).unwrap(), "edited since\n");
    let partial = screen.press("s", "y undo");
    assert!(
        partial.contains("leaving what has changed since") && partial.contains("left       "),
        "{partial}"
    );
    screen.press("f", "overwriting what has changed since");
    screen.press("", "y undo");
    screen.press("\x1b", "Recordings in");
    assert!(place.at("other").exists());
    screen.press("u", "f overwrite");
    screen.press("f", "y undo");
    // What stood in the way is kept, and said.
    screen.press("y", "2 paths put back");
    assert_eq!(fs::read_to_string(place.at("file")).unwrap(), "before\n");
    assert!(!place.at("other").exists());
}

#[test]
fn a_plan_that_has_become_another_one_is_shown_anew_and_not_done() {
    const OTHER: &str = "nothing was changed, since the plan is another one now";
    let place = Place::new();
    place.write("file", "before\n");
    record(&place, "echo after > file");
    place.write("file", "edited since\n");
    let Some(mut screen) = open(&place) else { return };
    screen.shows("1/1");
    screen.press("u", "f overwrite");
    screen.press("f", "overwriting what has changed since");
    screen.press("", "y undo");
    place.write("file", "edited once more\n");
    screen.press("y", OTHER);
    screen.press("", "y undo");
    assert_eq!(fs::read_to_string(place.at("file")).unwrap(), "edited once more\n");
    screen.press("y", "1 path put back");
    assert_eq!(fs::read_to_string(place.at("file")).unwrap(), "before\n");

    // Recordings that come after the plan.
    record(&place, "echo one > file");
    record(&place, "echo two > file");
    screen.shows("3/3");
    screen.press("k", "+one");
    screen.press("u", "f overwrite");
    screen.press("w", "y undo");
    let later = record(&place, "echo three > file");
    screen.press("y", OTHER);
    screen.shows(&format!("undo {later}"));
    assert_eq!(fs::read_to_string(place.at("file")).unwrap(), "three\n");
}

#[test]
fn what_was_undone_after_the_plan_of_a_redo_is_not_redone() {
    let place = Place::new();
    let first = record(&place, "echo one > one");
    let second = record(&place, "echo two > two");
    record(&place, "echo three > three");
    place.run(["undo", &first]).expect(0);
    let Some(mut screen) = open(&place) else { return };
    screen.shows("1/3");
    let plan = screen.press("r", "y redo");
    assert!(plan.contains(&format!("redo {first}")), "{plan}");
    place.run(["undo", &second]).expect(0);
    screen.press("y", "nothing was changed, since the plan is another one now");
    screen.shows(&format!("redo {second}"));
    assert!(!place.at("one").exists() && !place.at("two").exists());
}

#[test]
fn the_history_of_a_file_shows_each_of_its_versions() {
    let place = Place::new();
    record(&place, "echo one > file; echo x > other");
    record(&place, "echo y > other");
    record(&place, "echo two >> file");
    record(&place, "echo three > file");
    let Some(mut screen) = open(&place) else { return };
    screen.shows("+three");
    screen.press("h", "History of file");
    screen.shows("1/3");
    screen.press("j", "+two");
    let oldest = screen.press("j", "+one");
    assert!(!oldest.contains("created other"), "{oldest}");
    screen.press("\x1b", "Recordings in");
    screen.shows("+three");
    screen.shows("1/4");
}

#[test]
fn recordings_are_found_by_their_command_and_by_the_paths_that_they_changed() {
    let place = Place::new();
    record(&place, "mkdir deep; echo x > deep/Needle.txt");
    record(&place, "echo needle");
    record(&place, "echo z > $(printf 'n\\145\\145dle') # by another spelling");
    record(&place, "echo hay > hay");
    let Some(mut screen) = open(&place) else { return };
    screen.shows("1/3");
    screen.press("/", "/_");
    screen.press("spelling", "1/1");
    // One by its command, the other by its path alone.
    let has = |text: &str, count: &str| text.lines().next().is_some_and(|title| title.contains(count));
    screen.keys("\x15NEEDLE");
    screen.until(|text| has(text, "/2"));
    screen.keys("\r\x1b");
    screen.until(|text| has(text, "/3"));
}

#[test]
fn what_is_recorded_meanwhile_appears() {
    let place = Place::new();
    let Some(mut screen) = open(&place) else { return };
    screen.shows("nothing was recorded here");
    record(&place, "echo one > one");
    screen.shows("+one");
    record(&place, "echo two > two");
    // The selected one stays selected.
    let both = screen.shows("2/2");
    assert!(both.contains("+one"), "{both}");
}

#[test]
fn a_terminal_that_becomes_narrow_shows_one_pane() {
    let place = Place::new();
    record(&place, "echo one > one");
    let Some(mut screen) = open(&place) else { return };
    screen.shows("created one");
    screen.resize(40, 10);
    screen.until(|text| text.contains("? help") && !text.contains("created one"));
    screen.press("\t", "created one");
    screen.resize(120, 40);
    screen.until(|text| text.contains("1/1") && text.contains("created one"));
    let log = newest(&place);
    assert!(screen.text().contains(&format!("> {log} ")), "there is room for identifiers: {}", screen.text());
}

#[test]
fn nothing_has_a_colour_where_none_is_wanted_and_names_are_escaped() {
    let place = Place::new();
    record(&place, "echo x > \"$(printf 'a\\033[31mred\\n')\"");
    for environment in [("NO_COLOR", "1"), ("TERM", "dumb")] {
        let Some(mut screen) = Screen::open(&place, &[BINARY, "ui"], (80, 24), &[environment]) else {
            return;
        };
        screen.shows("created \"a\\033[31mred\"");
        assert!(!screen.has_colour() && screen.is_reversed(2, 1), "{environment:?}");
        screen.keys("q");
        assert_eq!(screen.end().0.code(), Some(0));
    }
}

#[test]
fn a_signal_that_ends_it_leaves_the_terminal_as_it_was() {
    let place = Place::new();
    record(&place, "echo one > one");
    for signal in [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP, Signal::SIGQUIT] {
        let Some(mut screen) = open(&place) else { return };
        screen.shows("created one");
        nix::sys::signal::kill(Pid::from_raw(screen.child.id().cast_signed()), signal).unwrap();
        assert_eq!(screen.end().0.signal(), Some(signal as i32), "{signal}");
    }
}

#[test]
fn without_its_terminal_it_ends() {
    let place = Place::new();
    record(&place, "echo one > one");
    let Some(mut screen) = open(&place) else { return };
    screen.shows("created one");
    assert_eq!(screen.hang_up().signal(), Some(Signal::SIGHUP as i32));
}

#[test]
fn it_is_stopped_and_continued_as_a_job() {
    let place = Place::new();
    record(&place, "echo one > one");
    let Some(mut terminal) = Terminal::new(place, &[], &[]) else { return };
    let leave = "\x1b[?1049l";
    terminal.line("cd \"$HOME/../work\"; echo moved", "moved");
    terminal.line(&format!("{BINARY} ui"), "created one");
    terminal.keys("\x1a");
    terminal.until(leave);
    terminal.until("Stopped");
    terminal.until("$ ");
    terminal.line(
        "stty -a | tr ' ;' '\\n\\n' | grep -x -e icanon -e -icanon -e echo -e -echo | tr '\\n' .",
        "icanon.echo.",
    );
    // In the background it is stopped before it touches the terminal.
    terminal.line("bg", "$ ");
    terminal.line("until jobs -s > list; [ -s list ]; do :; done; echo it-is-stop''ped", "it-is-stopped");
    terminal.keys("fg\n");
    terminal.until("\x1b[?1049h");
    terminal.until("created one");
    terminal.keys("q");
    terminal.until(leave);
    terminal.status(0);
    terminal.end();
}

#[test]
fn without_a_terminal_it_says_so() {
    let place = Place::new();
    let run = place.run(["ui"]).expect(2);
    assert_eq!(run.stdout, "");
    assert_eq!(run.stderr.lines().count(), 1, "{}", run.stderr);
    assert!(run.stderr.contains("have to be a terminal"), "{}", run.stderr);
}

/// Reading the log opens none of them; what is scrolled past is at most opened once.
#[test]
#[ignore = "slow: makes 10,000 recordings"]
fn slow_ten_thousand_recordings_are_scrolled_through_without_opening_them() {
    const COUNT: usize = 10_000;
    let place = Place::new();
    if !has("strace") {
        return;
    }
    record(&place, "mkdir directory; echo one > directory/file; echo two > shared");
    multiply(&place.home.join(".local/state/agent-snapshot"), COUNT);
    let trace = place.base().join("trace");
    let strace = ["strace", "-f", "-qq", "-e", "trace=openat,openat2", "-o", trace.to_str().unwrap()];
    let Some(mut screen) = Screen::open(&place, &[&strace[..], &[BINARY, "ui"]].concat(), (80, 24), &[])
    else {
        return;
    };
    screen.shows("1/10000");
    screen.shows("file9999");
    screen.keys(&"j".repeat(200));
    screen.shows("201/10000");
    screen.shows("file9799");
    screen.press("G", "10000/10000");
    screen.shows("file0");
    screen.press("g\x1b[6~", "/10000");
    screen.keys("q");
    assert_eq!(screen.end().0.code(), Some(0));
    let trace = fs::read_to_string(trace).unwrap();
    let opened = trace.lines().filter(|line| line.contains("manifest.json")).count();
    assert!((3..=2 * 205).contains(&opened), "{opened} manifests were opened");
}
