//! A day with edits by hand between the commands, which nothing records: they are conflicts, and never lost.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use agent_snapshot::snapshot::{Snapshot, printable};

use super::copies::{Compare, Fact, TreeCopy, add_directories_above, copy};
use super::{Day, Step, number};
use crate::support::{bytes, chmod};

impl Day {
    /// Edits something that one of the last commands has changed.
    fn edit_by_hand(&mut self, edit: usize) {
        let mut texts = self.generator.texts();
        // Other attributes are put back whatever has become of the content.
        texts.retain(|name| {
            let path = self.place.path(name);
            let of_content = |step: &Step| Fact::conflicts(step.before.get(&path), step.after.get(&path));
            self.steps.iter().all(|step| !step.changed.contains(&path) || of_content(step))
        });
        let is_recent = |name: &&String| {
            let path = self.place.path(name);
            self.steps.iter().rev().take(4).any(|step| step.altered().any(|altered| *altered == path))
        };
        let recent: Vec<String> = texts.iter().filter(is_recent).cloned().collect();
        let from = if recent.is_empty() { texts } else { recent };
        let path = self.place.at(&from[self.random.below(from.len())]);
        match self.random.below(5) {
            0 => {
                let text = fs::read(&path).unwrap();
                fs::write(&path, [text, format!("by hand {edit}\n").into_bytes()].concat()).unwrap();
            }
            1 => fs::write(&path, format!("by hand {edit}")).unwrap(),
            2 => chmod(&path, 0o700 + u32::try_from(edit % 8).unwrap()),
            3 => fs::remove_file(&path).unwrap(),
            _ => fs::write(path.with_file_name(format!("by-hand{edit}.txt")), "new\n").unwrap(),
        }
    }
}

/// The paths that an undo of `step` would put back, though somebody has changed them since.
fn in_the_way<'s>(step: &'s Step, now: &TreeCopy) -> Vec<&'s Vec<u8>> {
    let is_other = |path: &&Vec<u8>| {
        let now = now.get(*path);
        Fact::conflicts(now, step.before.get(*path)) && Fact::conflicts(now, step.after.get(*path))
    };
    step.changed.iter().filter(is_other).collect()
}

/// What the tree has to be when `step` is undone, and the directories that stay for what is in them.
fn without(step: &Step, now: &TreeCopy) -> (TreeCopy, BTreeSet<Vec<u8>>) {
    let mut wanted = now.clone();
    for path in &step.changed {
        match step.before.get(path) {
            Some(fact) => drop(wanted.insert(path.clone(), fact.clone())),
            None => drop(wanted.remove(path)),
        }
    }
    let staying = add_directories_above(&mut wanted, now);
    (wanted, staying)
}

fn day_with_edits(test: &str, seed: u64, commands: usize, slow: bool) {
    let commands = number("DAY_COMMANDS").map_or(commands, |commands| commands.try_into().unwrap());
    let mut day = Day::new(test, seed, commands, slow);
    for command in 0..commands {
        if command % 3 == 2 {
            day.edit_by_hand(command);
        }
        let before = copy(&day.place);
        let command = day.generator.next();
        day.record_command(command, before);
    }
    day.read_log();
    let mut conflicts = 0;
    for index in day.counting().into_iter().rev() {
        let step = &day.steps[index];
        let what = format!("undo of command {index}, {}", step.shown());
        let now = copy(&day.place);
        let edited = in_the_way(step, &now);
        let (wanted, staying) = without(step, &now);
        let mut arguments = vec!["undo", "--json", step.id()];
        if !edited.is_empty() {
            conflicts += 1;
            let refused = day.verb(&["undo", step.id()]);
            let names_all = edited.iter().all(|path| refused.stderr.contains(&*printable(path)));
            assert!(refused.status == 1 && names_all, "{what}: {edited:?}: {refused:#?}");
            day.expect(&now, Compare::Everything, &what);
            arguments.push("--force");
        }
        let contents: Vec<_> = edited
            .iter()
            .filter(|path| {
                let content = |tree: &TreeCopy| tree.get(**path).and_then(|fact| fact.content);
                content(&now).is_some() && content(&now) != content(&wanted)
            })
            .map(|path| (*path, fs::read(std::str::from_utf8(path).unwrap()).unwrap()))
            .collect();
        let run = day.verb(&arguments);
        assert_eq!(run.status, i32::from(!staying.is_empty()), "{what}: {staying:?}: {run:#?}");
        day.expect(&wanted, Compare::States, &what);
        let outcome: serde_json::Value = serde_json::from_str(&run.stdout).unwrap();
        let left: BTreeSet<&str> =
            outcome["left"].as_array().unwrap().iter().map(|left| left["path"].as_str().unwrap()).collect();
        for path in &staying {
            assert!(left.contains(&*printable(path)), "{what}: {run:#?}");
        }
        if contents.is_empty() {
            continue;
        }
        let rescue = Snapshot::open(Path::new(outcome["rescues"][0]["path"].as_str().unwrap())).unwrap();
        for (path, content) in contents {
            let kept = bytes(&rescue, rescue.find(path).unwrap(), true);
            assert!(kept == content, "{what}: {} is lost", printable(path));
        }
    }
    println!("{conflicts} undos were conflicts with edits by hand");
    assert!(conflicts > 0);
}

#[test]
fn edits_by_hand_are_conflicts_and_not_lost() {
    day_with_edits("edits_by_hand_are_conflicts_and_not_lost", 2, 16, false);
}

#[test]
#[ignore = "slow: a hundred commands"]
fn slow_edits_by_hand_are_conflicts_and_not_lost() {
    day_with_edits("edits_by_hand_are_conflicts_and_not_lost", 2, 100, true);
}
