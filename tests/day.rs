//! A day of real commands in one repository, recorded one by one into the library; then undone and redone in every
//! order, and compared with copies of the tree that were taken between them.
//!
//! `DAY_SEED=N` and `DAY_COMMANDS=N` (`DAY_STEPS=N` for the slow ones in a session) repeat a day, with `DAY_SLOW=1` also the kinds of commands that only the slow
//! test has. Submodules: `commands.rs` makes the commands, `copies.rs` compares trees, `past.rs` asks what was
//! there between the commands, `hand.rs` is a day with edits by hand between the commands.

mod commands;
mod copies;
mod hand;
mod past;
mod session;

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::Command;
use std::rc::Rc;

use agent_snapshot::snapshot::{Snapshot, printable};

use self::commands::{DayCommand, Generator, SETUP, SUPPLIES};
use self::copies::{Compare, Fact, TreeCopy, changed, copy, differences, touch_each_other};
use self::session::Who;
use crate::support::{Place, Random, Run, lines, shown};

/// A repository, what was done in it, and what it was like in between.
struct Day {
    place: Rc<Place>,
    library: PathBuf,
    path: OsString,
    generator: Generator,
    random: Random,
    steps: Vec<Step>,
    /// The paths that a command touched which changed nothing else: their times are nobody's to undo.
    untimed: BTreeSet<Vec<u8>>,
    /// The session in which the commands are run, if there is one.
    session: Option<session::Session>,
}

/// One command, and the tree before and after it.
struct Step {
    command: DayCommand,
    /// The identifier of its recording; none if the command did not start.
    id: Option<String>,
    before: TreeCopy,
    after: TreeCopy,
    /// When the second copy was made.
    after_at: String,
    /// The paths that it changed.
    changed: BTreeSet<Vec<u8>>,
    /// Whether its recording says that it changed something.
    counts: bool,
}

impl Step {
    /// The paths that it changed in more than their times.
    fn altered(&self) -> impl Iterator<Item = &Vec<u8>> {
        self.changed.iter().filter(|path| Fact::differs(self.before.get(*path), self.after.get(*path)))
    }

    fn id(&self) -> &str {
        self.id.as_deref().unwrap()
    }

    fn shown(&self) -> String {
        format!(
            "{} ({}): {}",
            self.id.as_deref().unwrap_or("not recorded"),
            self.command.kind,
            self.command.script
        )
    }
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|number| number.parse().unwrap())
}

impl Day {
    /// A repository in which nothing has been done yet.
    fn new(test: &str, seed: u64, commands: usize, slow: bool) -> Day {
        let (seed, slow) = (number("DAY_SEED").unwrap_or(seed), slow || number("DAY_SLOW").is_some());
        println!(
            "DAY_SEED={seed} DAY_COMMANDS={commands} {} cargo test --test main {test} repeats this",
            if slow { "DAY_SLOW=1" } else { "" }
        );
        let place = Rc::new(Place::new());
        let [library, supplies] = ["library", "supplies"].map(|name| place.base().join(name));
        fs::create_dir(&supplies).unwrap();
        // Not a script that looks for the program each time.
        let mut path = std::env::var_os("PATH").unwrap_or_default();
        let python = place.program("python3").args(["-c", "import sys; print(sys.executable)"]).output();
        if let Ok(python) = python
            && let Some(directory) = PathBuf::from(String::from_utf8(python.stdout).unwrap()).parent()
        {
            path =
                std::env::join_paths([directory.to_owned()].into_iter().chain(std::env::split_paths(&path)))
                    .unwrap();
        }
        let generator = Generator::new(seed, &place.work, &supplies, slow);
        let random = Random::new(seed ^ 0x5bd1_e995);
        let (steps, untimed, session) = Default::default();
        let day = Day { place, library, path, generator, random, steps, untimed, session };
        day.prepare(SETUP, &day.place.work);
        day.prepare(SUPPLIES, &supplies);
        day
    }

    fn prepare(&self, script: &str, directory: &std::path::Path) {
        let mut command = self.program("sh");
        let output = command.args(["-euc", script]).current_dir(directory).output().unwrap();
        assert!(output.status.success(), "{}", shown(&output));
    }

    fn program(&self, program: &str) -> Command {
        let mut command = self.place.program(program);
        command.env("PATH", &self.path).env("AGENT_SNAPSHOT_LIBRARY", &self.library);
        command
    }

    /// Runs a verb in the tree.
    fn verb(&self, arguments: &[&str]) -> Run {
        let mut command = self.place.command();
        command.env("AGENT_SNAPSHOT_LIBRARY", &self.library).args(arguments).output().unwrap().into()
    }

    /// The names in the library that are, or are not, those of recordings.
    fn snapshots(&self, recordings: bool) -> BTreeSet<String> {
        let entries = fs::read_dir(self.library.join("snapshots")).into_iter().flatten();
        let entries = entries.map(|entry| entry.unwrap());
        // A session has made a directory for its next step, in which there is nothing.
        let begun =
            entries.filter(|entry| fs::read_dir(entry.path()).is_ok_and(|mut held| held.next().is_some()));
        let names = begun.map(|entry| entry.file_name().into_string().unwrap());
        names.filter(|name| name.contains(['-', '.']) != recordings).collect()
    }

    /// Records the next command.
    fn record(&mut self) {
        let command = self.generator.next();
        let before = match self.steps.last() {
            Some(last) => last.after.clone(),
            None => copy(&self.place),
        };
        self.record_command(command, before);
    }

    fn record_command(&mut self, command: DayCommand, before: TreeCopy) {
        let known = self.snapshots(true);
        let mut run = self.program(crate::support::BINARY);
        run.args(["run", "--session", "day", "--timeout", "300s", "--if-unavailable", "fail"]);
        run.args(command.options).args(["--", "sh", "-c", &command.script]).process_group(0);
        let output = run.output().unwrap();
        assert_ne!(output.status.code(), Some(125), "{}: {}", command.script, shown(&output));
        let new: Vec<_> = self.snapshots(true).difference(&known).cloned().collect();
        assert_eq!(new.len(), 1, "{}: {}", command.script, shown(&output));
        assert!(self.wait_for(&new[0]));
        self.push(command, new.into_iter().next(), before);
    }

    /// Adds a command that has just ended.
    fn push(&mut self, command: DayCommand, id: Option<String>, before: TreeCopy) {
        let after = copy(&self.place);
        let after_at = jiff::Timestamp::now().to_string();
        let changed = changed(&before, &after);
        self.steps.push(Step { command, id, before, after, after_at, changed, counts: false });
    }

    /// Waits for the end of a recording, which holds a lock on its directory; whether there is one.
    fn wait_for(&self, id: &str) -> bool {
        let path = self.library.join("snapshots").join(id);
        loop {
            let Ok(directory) = fs::File::open(&path) else { return false };
            let directory = nix::fcntl::Flock::lock(directory, nix::fcntl::FlockArg::LockExclusive).unwrap();
            // The last snapshot replaces the directory of the first one.
            let now = fs::metadata(&path).map(|now| now.ino()).ok();
            if now.is_none_or(|now| now == directory.metadata().unwrap().ino()) {
                return now.is_some();
            }
        }
    }

    /// Takes from the log which commands changed something; it must agree with the copies.
    fn read_log(&mut self) {
        let log = self.verb(&["log", "--json", "--reads", "--limit", "1000"]).expect(0);
        let log: serde_json::Value = serde_json::from_str(&log.stdout).unwrap();
        let entries: BTreeMap<&str, &serde_json::Value> = log["recordings"]
            .as_array()
            .unwrap()
            .iter()
            .map(|entry| (entry["id"].as_str().unwrap(), entry))
            .collect();
        let is_step = |id: &&str| self.steps.iter().any(|step| step.id() == *id);
        let is_change = |entry: &serde_json::Value| {
            ["created", "changed", "deleted"].iter().any(|count| entry[count] != 0) || entry["git"] == true
        };
        // What the program of a session runs for itself changes nothing.
        let others = entries.iter().filter(|(id, _)| !is_step(id));
        let mut wrong: Vec<String> =
            others.filter(|(_, entry)| is_change(entry)).map(|(_, entry)| entry.to_string()).collect();
        for step in &mut self.steps {
            let entry = entries[step.id()];
            step.counts = is_change(entry);
            let altered: Vec<_> = step.altered().map(|path| printable(path).into_owned()).collect();
            if step.counts == altered.is_empty() {
                wrong.push(format!("{}: {entry}, but the copies differ in {altered:?}", step.shown()));
            }
            let is_killed = step.command.kind.contains("killed");
            if (entry["state"] == "killed") != is_killed || entry["incomplete"] == true {
                wrong.push(format!("{}: {entry}", step.shown()));
            }
            if !step.counts {
                self.untimed.extend(step.changed.iter().cloned());
            }
        }
        assert!(wrong.is_empty(), "{}", lines(&wrong));
    }

    /// The indices of the commands that changed something, the oldest first.
    fn counting(&self) -> Vec<usize> {
        (0..self.steps.len()).filter(|index| self.steps[*index].counts).collect()
    }

    /// Asserts that the tree is as wanted.
    #[track_caller]
    fn expect(&self, wanted: &TreeCopy, how: Compare, what: &str) {
        let now = copy(&self.place);
        let wrong = differences(&now, wanted, how, &self.untimed);
        let tell = |(path, difference): &(&Vec<u8>, String)| {
            let by = self.steps.iter().enumerate().filter(|(_, step)| step.changed.contains(*path));
            let by: Vec<_> =
                by.map(|(index, step)| format!("\n      changed by {index}: {}", step.shown())).collect();
            format!("{}\n      {difference}{}", printable(path), by.concat())
        };
        let wrong: Vec<_> = wrong.iter().map(tell).collect();
        assert!(wrong.is_empty(), "{what}: {} paths differ:{}", wrong.len(), lines(&wrong));
    }

    /// What the tree has to be while the commands at these indices are undone.
    fn expected(&self, undone: &BTreeSet<usize>) -> TreeCopy {
        let mut tree = self.steps.last().unwrap().after.clone();
        for step in undone.iter().rev().map(|index| &self.steps[*index]) {
            for path in &step.changed {
                match step.before.get(path) {
                    Some(fact) => drop(tree.insert(path.clone(), fact.clone())),
                    None => drop(tree.remove(path)),
                }
            }
        }
        tree
    }

    /// Undoes one after the other, the newest first, and redoes them.
    fn undo_and_redo_one_by_one(&self) {
        let counting = self.counting();
        for &index in counting.iter().rev() {
            let step = &self.steps[index];
            let what = format!("undo of command {index}, {}", step.shown());
            let run = self.verb(&["undo"]);
            assert!(run.status == 0 && run.stdout.contains(step.id()), "{what}: {run:#?}");
            self.expect(&step.before, Compare::Everything, &what);
        }
        assert!(self.verb(&["undo"]).expect(1).stderr.contains("nothing to undo"));
        for &index in &counting {
            let step = &self.steps[index];
            let what = format!("redo of command {index}, {}", step.shown());
            let run = self.verb(&["redo"]);
            assert!(run.status == 0 && run.stdout.contains(step.id()), "{what}: {run:#?}");
            self.expect(&step.after, Compare::Everything, &what);
        }
        assert!(self.verb(&["redo"]).expect(1).stderr.contains("nothing to redo"));
    }

    /// For each command, the later ones that changed something at, above or below one of its paths.
    fn dependents(&self) -> BTreeMap<usize, BTreeSet<usize>> {
        let counting = self.counting();
        let later = |index: usize| {
            let later = counting.iter().copied().filter(|other| *other > index);
            later
                .filter(|other| touch_each_other(&self.steps[index].changed, &self.steps[*other].changed))
                .collect()
        };
        counting.iter().map(|index| (*index, later(*index))).collect()
    }

    /// Undoes commands in a random order, each when no later one depends on it, and redoes them.
    fn undo_independent_ones(&mut self, count: usize) {
        let dependents = self.dependents();
        let mut undone = BTreeSet::new();
        while undone.len() < count {
            let is_free = |index: &&usize| !undone.contains(*index) && dependents[*index].is_subset(&undone);
            let free: Vec<usize> = dependents.keys().filter(is_free).copied().collect();
            let Some(&index) = free.get(self.random.below(free.len().max(1))) else { break };
            undone.insert(index);
            let what = format!("undo of command {index} alone, {}", self.steps[index].shown());
            let run = self.verb(&["undo", self.steps[index].id()]);
            assert!(run.status == 0, "{what}: {run:#?}");
            self.expect(&self.expected(&undone), Compare::NotNames, &what);
        }
        while !undone.is_empty() {
            let depends = |index: usize| undone.iter().any(|other| dependents[other].contains(&index));
            let free: Vec<usize> = undone.iter().copied().filter(|index| !depends(*index)).collect();
            let index = free[self.random.below(free.len())];
            undone.remove(&index);
            let what = format!("redo of command {index} alone, {}", self.steps[index].shown());
            let run = self.verb(&["redo", self.steps[index].id()]);
            assert!(run.status == 0, "{what}: {run:#?}");
            self.expect(&self.expected(&undone), Compare::NotNames, &what);
        }
    }

    /// Tries to undo commands on which later ones depend.
    fn refuse_dependent_ones(&mut self, count: usize) {
        let last = self.steps.last().unwrap().after.clone();
        let dependents = self.dependents();
        let is_in_the_way = |index: &usize| {
            let step = &self.steps[*index];
            step.altered().any(|path| {
                let [before, after, now] = [&step.before, &step.after, &last].map(|tree| tree.get(path));
                let is_alone = [before, after].iter().flatten().all(|fact| fact.names.is_empty());
                is_alone
                    && Fact::conflicts(before, after)
                    && Fact::conflicts(now, before)
                    && Fact::conflicts(now, after)
            })
        };
        let mut refused: Vec<usize> = self.counting().into_iter().filter(is_in_the_way).collect();
        assert!(!refused.is_empty());
        for _ in 0..count.min(refused.len()) {
            let index = refused.swap_remove(self.random.below(refused.len()));
            let step = &self.steps[index];
            let what = format!("undo of command {index}, {}", step.shown());
            let run = self.verb(&["undo", step.id()]);
            assert!(run.status == 1, "{what}: {run:#?}");
            let named = |other: &&Step| run.stderr.contains(other.id());
            let later: Vec<&Step> = dependents[&index].iter().map(|other| &self.steps[*other]).collect();
            assert!(later.iter().any(named), "{what} names no later command: {run:#?}");
            let others = self.steps.iter().filter(named).filter(|other| other.id() != step.id());
            for other in others {
                assert!(
                    later.iter().any(|later| later.id() == other.id()),
                    "{what} names {}: {run:#?}",
                    other.shown()
                );
            }
            self.expect(&last, Compare::Everything, &what);
            assert!(run.stderr.contains("--with-later"), "{what}: {run:#?}");
            self.undo_with_later(index);
        }
    }

    /// Removes the rescues when all is redone, so that they don't make the next verbs slower.
    fn remove_rescues(&self) {
        for name in self.snapshots(false) {
            fs::remove_dir_all(self.library.join("snapshots").join(name)).unwrap();
        }
    }

    /// Undoes all as one, in some of the ways to name all, and redoes that as one.
    fn undo_all_at_once(&self, ways: usize) {
        let (first, last) = (&self.steps[0].before, &self.steps.last().unwrap().after);
        let number = self.counting().len().to_string();
        for arguments in
            [&["--session", "day"][..], &["-n", &number], &["--since", "24h"]].into_iter().take(ways)
        {
            let known = self.snapshots(false);
            let run = self.verb(&[&["undo"], arguments].concat());
            assert!(run.status == 0, "{arguments:?}: {run:#?}");
            self.expect(first, Compare::Everything, &format!("undo {arguments:?}"));
            let rescues = self.snapshots(false).difference(&known).count();
            assert_eq!(rescues, 1, "undo {arguments:?}");
            assert!(self.verb(&["undo"]).expect(1).stderr.contains("nothing to undo"));
            self.verb(&["redo"]).expect(0);
            self.expect(last, Compare::Everything, &format!("redo of undo {arguments:?}"));
            assert!(self.verb(&["redo"]).expect(1).stderr.contains("nothing to redo"));
        }
    }

    /// Undoes the command at `index` with all later ones that depend on it, and redoes them as one.
    fn undo_with_later(&self, index: usize) {
        let step = &self.steps[index];
        let what = format!("undo --with-later of command {index}, {}", step.shown());
        let run = self.verb(&["undo", "--with-later", "--json", step.id()]);
        assert!(run.status == 0, "{what}: {run:#?}");
        let outcome: serde_json::Value = serde_json::from_str(&run.stdout).unwrap();
        let ids: BTreeSet<&str> =
            outcome["recordings"].as_array().unwrap().iter().map(|id| id.as_str().unwrap()).collect();
        let undone: BTreeSet<usize> =
            (0..self.steps.len()).filter(|index| ids.contains(self.steps[*index].id())).collect();
        assert!(undone.first() == Some(&index) && undone.len() > 1, "{what}: {run:#?}");
        // A directory that a later command has moved away is made again for what is put back below it.
        let mut wanted = self.expected(&undone);
        copies::add_directories_above(&mut wanted, &copy(&self.place));
        self.expect(&wanted, Compare::NotNames, &format!("{what} (these were undone: {undone:?})"));
        self.verb(&["redo"]).expect(0);
        self.expect(&self.steps.last().unwrap().after, Compare::Everything, &format!("redo of {what}"));
    }

    /// Prints what the library takes, and asserts that it is little.
    fn measure(&self) {
        let (mut apparent, mut allocated) = (0, 0);
        for entry in walkdir::WalkDir::new(&self.library) {
            let stat = entry.unwrap().metadata().unwrap();
            apparent += if stat.is_file() { stat.len() } else { 0 };
            allocated += stat.blocks() * 512;
        }
        let (mut gone, mut new) = (0, 0);
        for step in &self.steps {
            for path in &step.changed {
                let content = |tree: &TreeCopy| tree.get(path).and_then(|fact| fact.content);
                let (before, after) = (content(&step.before), content(&step.after));
                if before != after {
                    gone += before.map_or(0, |(size, _)| size);
                    new += after.map_or(0, |(size, _)| size);
                }
            }
        }
        let commands = self.steps.len() as u64;
        println!(
            "{commands} commands changed or removed {} KiB and wrote {} KiB; the library has {} KiB, {} KiB allocated: \
             {:.2} times the bytes, {:.1} KiB a command",
            gone >> 10,
            new >> 10,
            apparent >> 10,
            allocated >> 10,
            allocated as f64 / gone as f64,
            (apparent as f64 / 1024.0) / commands as f64
        );
        let limit = 3 * gone + commands * (30 << 10);
        assert!(allocated < limit, "{allocated} bytes of the library are more than {limit}");
    }

    /// Asserts that every recording is a snapshot without a gap.
    fn check_recordings(&self) {
        for step in &self.steps {
            let snapshot = Snapshot::open(&self.library.join("snapshots").join(step.id())).unwrap();
            let lost: Vec<_> = snapshot.header().warnings.iter().filter(|warning| warning.lost).collect();
            assert!(lost.is_empty(), "{}: {lost:?}", step.shown());
        }
    }
}

/// A day without edits by hand.
fn day(test: &str, seed: u64, commands: usize, slow: bool) {
    let commands = number("DAY_COMMANDS").map_or(commands, |commands| commands.try_into().unwrap());
    let mut day = Day::new(test, seed, commands, slow);
    for _ in 0..commands {
        day.record();
    }
    day.read_log();
    day.check_recordings();
    day.measure();
    // What is asked of the past does not change which commands are undone.
    let choices = std::mem::replace(&mut day.random, Random::new(seed));
    day.ask_for_histories(if slow { 100 } else { 10 });
    day.look_back(if slow { 300 } else { 30 });
    day.random = choices;
    day.remove_rescues();
    day.undo_and_redo_one_by_one();
    day.remove_rescues();
    day.undo_all_at_once(if slow { 3 } else { 1 });
    day.refuse_dependent_ones(if slow { 10 } else { 3 });
    day.undo_independent_ones(if slow { 40 } else { 8 });
}

#[test]
fn commands_of_a_day_are_undone_and_redone() {
    day("commands_of_a_day_are_undone_and_redone", 1, 40, false);
}

#[test]
fn directory_of_a_day_is_put_back_to_any_time() {
    let mut day = Day::new("directory_of_a_day_is_put_back_to_any_time", 1, 40, false);
    for _ in 0..40 {
        day.record();
    }
    day.go_back(3);
}

/// A day whose commands, and the edits between them, are the steps of one session.
fn day_in_a_session(test: &str, who: Who, seed: u64, commands: usize, slow: bool) {
    let steps = number("DAY_STEPS").filter(|_| slow).or(number("DAY_COMMANDS").filter(|_| !slow));
    let commands = steps.map_or(commands, |commands| commands.try_into().unwrap());
    let mut day = Day::new(test, seed, commands, slow);
    if day.start_session(who).is_none() {
        return;
    }
    for _ in 0..commands {
        day.record_step();
        if day.random.below(3) == 0 {
            day.record_edit();
        }
    }
    // A step is undone while the session goes on.
    day.read_log();
    let last = *day.counting().last().unwrap();
    day.verb(&["undo", day.steps[last].id()]).expect(0);
    day.expect(&day.steps[last].before, Compare::Everything, "undo in the session");
    day.verb(&["redo"]).expect(0);
    day.end_session();
    day.check_recordings();
    day.remove_rescues();
    day.undo_and_redo_one_by_one();
    day.remove_rescues();
    day.undo_all_at_once(1);
    day.undo_independent_ones(if slow { 40 } else { 8 });
}

#[test]
fn steps_of_a_day_are_undone_and_redone() {
    day_in_a_session("steps_of_a_day_are_undone_and_redone", Who::Script, 2, 20, false);
}

#[test]
fn jobs_of_a_day_at_a_terminal_are_undone_and_redone() {
    day_in_a_session("jobs_of_a_day_at_a_terminal_are_undone_and_redone", Who::Person, 3, 20, false);
}

#[test]
#[ignore = "slow: hundreds of commands"]
fn slow_jobs_of_a_day_at_a_terminal_are_undone_and_redone() {
    day_in_a_session("slow_jobs_of_a_day_at_a_terminal_are_undone_and_redone", Who::Person, 3, 300, true);
}

#[test]
#[ignore = "slow: hundreds of commands"]
fn slow_steps_of_a_day_of_claude_code_are_undone_and_redone() {
    day_in_a_session(
        "slow_steps_of_a_day_of_claude_code_are_undone_and_redone",
        Who::ClaudeCode,
        4,
        300,
        true,
    );
}

#[test]
#[ignore = "slow: hundreds of commands"]
fn slow_commands_of_a_day_are_undone_and_redone() {
    day("commands_of_a_day_are_undone_and_redone", 1, 300, true);
}
