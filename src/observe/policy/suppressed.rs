//! What the rules leave out, counted by rule, with the topmost paths that were changed.

use std::collections::{BTreeMap, BTreeSet};

use super::ignore::{Ignore, RuleId};
use crate::observe::ledger::ids::ProcessId;
use crate::snapshot::{LeftOutUse, Operation, Operations, Suppressed};

/// How many topmost changed paths a rule names.
const NAMED_PATHS: usize = 100;
/// How many of all changed paths it names; what is beyond is told of the topmost one.
const LISTED_PATHS: usize = 1000;

#[derive(Debug, Default, Clone)]
struct Count {
    reads: u64,
    writes: u64,
    changed: BTreeSet<Vec<u8>>,
    /// By the path, and whether what is beneath it is meant.
    changes: BTreeMap<(Vec<u8>, bool), (Operations, ProcessId)>,
    is_cut: bool,
    /// By the path, if the rule is about owners and so about no place.
    read: BTreeMap<Vec<u8>, (Operations, ProcessId)>,
    read_is_cut: bool,
}

/// A change that is left out.
#[derive(Debug, Clone, Copy)]
pub struct LeftOut<'a> {
    /// The topmost path that the rule covers.
    pub topmost: &'a [u8],
    /// The path that is changed.
    pub path: &'a [u8],
    /// How it is changed.
    pub operations: Operations,
    /// Which process changes it.
    pub by: ProcessId,
}

/// The counts of all rules.
#[derive(Debug, Default)]
pub struct Counts(Vec<Count>);

impl Counts {
    fn of(&mut self, rule: RuleId) -> &mut Count {
        if self.0.len() <= rule.index() {
            self.0.resize(rule.index() + 1, Count::default());
        }
        &mut self.0[rule.index()]
    }

    /// Counts a use that changed nothing.
    pub fn read(&mut self, rule: RuleId) {
        self.of(rule).reads += 1;
    }

    /// Counts a use that changed nothing, and lists it if it read what another user owns.
    pub fn used(&mut self, rule: RuleId, path: &[u8], operations: Operations, by: ProcessId) {
        self.read(rule);
        let reading = Operations::from(Operation::Read).with(Operation::Directory).with(Operation::Execute);
        let operations = operations.intersection(reading);
        if rule != RuleId::FOREIGN_OWNER || operations.is_empty() {
            return;
        }
        let Count { read, read_is_cut, .. } = self.of(rule);
        if let Some((known, _)) = read.get_mut(path) {
            *known = known.union(operations);
        } else if read.len() < LISTED_PATHS {
            read.insert(path.to_vec(), (operations, by));
        } else {
            *read_is_cut = true;
        }
    }

    /// Counts a change.
    pub fn write(&mut self, rule: RuleId, change: LeftOut<'_>) {
        self.write_inherited(rule, change.topmost);
        self.list(rule, change);
    }

    /// Counts a change below `topmost` through a descriptor from before the launch.
    pub fn write_inherited(&mut self, rule: RuleId, topmost: &[u8]) {
        let count = self.of(rule);
        count.writes += 1;
        // In a git directory only what no undo misses is left out: temporary files, and objects of which there are
        // more copies.
        if rule != RuleId::GIT && count.changed.len() < NAMED_PATHS && !count.changed.contains(topmost) {
            count.changed.insert(topmost.to_vec());
        }
    }

    /// Lists a change.
    pub fn list(&mut self, rule: RuleId, LeftOut { topmost, path, operations, by }: LeftOut<'_>) {
        let Count { changes, is_cut, .. } = self.of(rule);
        let mut key = (path.to_vec(), false);
        if changes.len() >= LISTED_PATHS && !changes.contains_key(&key) {
            // Of what is left out in a git directory: `objects`.
            let above = if rule == RuleId::GIT { above_parent(path) } else { topmost };
            key = (above.to_vec(), true);
        }
        let is_full = changes.len() >= 2 * LISTED_PATHS && !changes.contains_key(&key);
        if is_full {
            *is_cut = true;
        } else {
            let listed = changes.entry(key).or_insert((Operations::NONE, by));
            listed.0 = listed.0.union(operations);
        }
    }

    /// The rules that left something out.
    pub fn of_rules(&self, ignore: &Ignore) -> Vec<Suppressed> {
        let rules = ignore.rules().zip(&self.0);
        let used = rules.filter(|(_, count)| count.reads + count.writes > 0 || !count.changes.is_empty());
        used.map(|(rule, count)| Suppressed {
            rule: String::from_utf8_lossy(ignore.name(rule)).into_owned(),
            reads: count.reads,
            writes: count.writes,
            changed: count.changed.iter().cloned().collect(),
            changes: Some(
                count.changes.iter().map(|((path, beneath), used)| left_out(path, *beneath, *used)).collect(),
            ),
            changes_cut: count.is_cut,
            read: (rule == RuleId::FOREIGN_OWNER && !count.read_is_cut)
                .then(|| count.read.iter().map(|(path, used)| left_out(path, false, *used)).collect()),
        })
        .collect()
    }
}

/// The directory above the one that a path is in.
fn above_parent(path: &[u8]) -> &[u8] {
    let parent = |path| crate::fs::parent_of(path).unwrap_or(path);
    parent(parent(path))
}

fn left_out(path: &[u8], beneath: bool, (operations, by): (Operations, ProcessId)) -> LeftOutUse {
    LeftOutUse { path: path.to_vec(), beneath, operations, process: by.0 }
}
