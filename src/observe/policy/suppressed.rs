//! What the rules leave out, counted by rule, with the topmost paths that were changed.

use std::collections::BTreeSet;

use super::ignore::{Ignore, RuleId};
use crate::snapshot::Suppressed;

/// How many changed paths a rule names.
const NAMED_PATHS: usize = 100;

#[derive(Debug, Default, Clone)]
struct Count {
    reads: u64,
    writes: u64,
    changed: BTreeSet<Vec<u8>>,
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

    /// Counts a change below `topmost`.
    pub fn write(&mut self, rule: RuleId, topmost: &[u8]) {
        let count = self.of(rule);
        count.writes += 1;
        // In a git directory only what no undo misses is left out: temporary files, and objects of which there are
        // more copies.
        if rule != RuleId::GIT && count.changed.len() < NAMED_PATHS && !count.changed.contains(topmost) {
            count.changed.insert(topmost.to_vec());
        }
    }

    /// The rules that left something out.
    pub fn of_rules(&self, ignore: &Ignore) -> Vec<Suppressed> {
        let rules = ignore.rules().zip(&self.0);
        let used = rules.filter(|(_, count)| count.reads + count.writes > 0);
        used.map(|(rule, count)| Suppressed {
            rule: String::from_utf8_lossy(ignore.name(rule)).into_owned(),
            reads: count.reads,
            writes: count.writes,
            changed: count.changed.iter().cloned().collect(),
        })
        .collect()
    }
}
