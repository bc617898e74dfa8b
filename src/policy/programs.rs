//! What a recording executed that rules forbid: programs, and the interpreters of scripts.
//!
//! The list of processes has every execution, also of what has no record. The loader of a program is none.
//!
//! Neighbour: `judge.rs` judges all other uses of paths.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::judge::{Files, Finding, FindingSubject};
use super::names::FileNames;
use super::rules::{CompiledPolicy, Decision, PathUseKind, RuleWord};
use crate::snapshot::{Exec, Header, Operation, RecordedProcess, Snapshot};

/// What was executed that may not be, or not be read.
pub fn judge<'a>(
    snapshot: &'a Snapshot,
    policy: &'a CompiledPolicy,
    names: &FileNames<'a>,
    live: &dyn Files,
) -> Vec<Finding> {
    let kinds = PathUseKind::ALL.into_iter().filter(|kind| match kind {
        PathUseKind::Write => false,
        // What is denied is judged by its record.
        PathUseKind::Read => policy.has(RuleWord::AllowRead),
        PathUseKind::Execute => policy.has(RuleWord::AllowExec) || policy.has(RuleWord::DenyExec),
    });
    let kinds: Vec<_> = kinds.collect();
    if kinds.is_empty() {
        return Vec::new();
    }
    let mut findings = Vec::new();
    for (path, processes) in executed(snapshot.header()) {
        let mut all: Vec<(&[u8], bool)> = std::iter::once((path, true)).chain(names.others(path)).collect();
        // Without a record, it is taken for the file that is there now.
        if !names.knows(path)
            && let Some(state) = live.state(path)
        {
            all.extend(FileNames::by_rule(&policy.named, &state).map(|name| (name, true)));
        }
        // As the kernel shows a program whose name was removed.
        all.extend(path.strip_suffix(b" (deleted)").map(|name| (name, false)));
        for &kind in &kinds {
            let forbidden =
                all.iter().find_map(|(name, is_from_before)| match policy.decide_by_name(kind, name) {
                    Decision::Denied(word, text) if kind == PathUseKind::Execute => {
                        Some((*name, word, Some(text)))
                    }
                    Decision::NotAllowed(word) if *is_from_before => Some((*name, word, None)),
                    _ => None,
                });
            let Some((name, word, text)) = forbidden else { continue };
            let subject = FindingSubject::Path {
                path: name.to_vec(),
                operations: Operation::Execute.into(),
                through: (name != path).then(|| path.to_vec()),
                left_out_by: None,
            };
            findings.push(Finding { word, text, subject, processes: processes.iter().copied().collect() });
        }
    }
    findings
}

/// The programs and interpreters that were executed, and by which processes.
pub fn executed(header: &Header) -> BTreeMap<&[u8], BTreeSet<u32>> {
    let by_id: HashMap<u32, &RecordedProcess> =
        header.processes.iter().map(|process| (process.id, process)).collect();
    let mut executed: BTreeMap<&[u8], BTreeSet<u32>> = BTreeMap::new();
    for process in &header.processes {
        let parent = process.parent.and_then(|parent| by_id.get(&parent));
        // A process begins with the program of its parent.
        let is_inherited =
            |exec: &Exec| parent.is_some_and(|parent| programs(parent).any(|other| other == exec));
        let is_own = |exec: &&Exec| !process.execs.is_empty() || !is_inherited(exec);
        for exec in programs(process).filter(is_own) {
            for path in std::iter::once(&exec.exe).chain(&exec.interpreters) {
                executed.entry(path).or_default().insert(process.id);
            }
        }
    }
    executed
}

/// The programs of a process, in order.
fn programs(process: &RecordedProcess) -> impl Iterator<Item = &Exec> {
    let only = process.execs.is_empty().then_some(&*process.image);
    process.execs.iter().chain(only)
}
