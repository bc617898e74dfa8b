//! What a recording did that rules forbid.
//!
//! Neighbours: `rules.rs` has the rules, `programs.rs` judges what was executed, `left_out.rs` what is not recorded.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::names::{FileNames, inode_of};
use super::rules::{CompiledPolicy, PathUseKind, RuleWord};
use super::{left_out, programs};
use crate::snapshot::blobs::Side;
use crate::snapshot::change::PathEffect;
use crate::snapshot::compare::LinkedFile;
use crate::snapshot::secrets::{ContentSign, blobs_have_sign};
use crate::snapshot::source::Contents;
use crate::snapshot::wire::names;
use crate::snapshot::{
    FileRecord, FileType, Header, NetworkAddress, NetworkOperation, NetworkUse, Operation, Operations,
    Present, Snapshot, State, WarningKind,
};

/// What a policy comes to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PolicyVerdict {
    /// Nothing is forbidden.
    Pass,
    /// There are findings.
    Fail,
    /// There are none, but the recording does not tell everything.
    Unknown,
}

names!(PolicyVerdict { Pass = "pass", Fail = "fail", Unknown = "unknown" });

/// Something that a rule forbids.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// The rule; one that allows if none of those matches.
    pub word: RuleWord,
    /// The rule as given, if it is one that denies.
    pub text: Option<Vec<u8>>,
    /// What it is about.
    pub subject: FindingSubject,
    /// The processes that did it, as far as they are known (ids of `processes`).
    pub processes: Vec<u32>,
}

/// What a finding is about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FindingSubject {
    /// A path was used in these ways.
    Path {
        /// The path.
        path: Vec<u8>,
        /// The forbidden ones of its uses.
        operations: Operations,
        /// The other name of the file, by which it was used.
        through: Option<Vec<u8>>,
        /// The rule that leaves the path out of the recording.
        left_out_by: Option<String>,
    },
    /// Something beneath a path was changed; the recording does not say what.
    Beneath {
        /// The path.
        path: Vec<u8>,
        /// The rule that leaves it out of the recording.
        left_out_by: String,
    },
    /// Something was changed; the recording does not say where.
    Somewhere {
        /// The rule that leaves it out of the recording.
        left_out_by: String,
    },
    /// A socket address was used.
    Address(NetworkUse),
}

impl FindingSubject {
    /// Adds the operations of another one on the same path.
    fn add_operations(&mut self, other: &FindingSubject) {
        if let FindingSubject::Path { operations, .. } = self
            && let FindingSubject::Path { operations: others, .. } = other
        {
            *operations = operations.union(*others);
        }
    }

    /// Its path, if it has one.
    pub fn path(&self) -> Option<&[u8]> {
        match self {
            FindingSubject::Path { path, .. } | FindingSubject::Beneath { path, .. } => Some(path),
            FindingSubject::Somewhere { .. } | FindingSubject::Address(_) => None,
        }
    }
}

/// What a recording did, judged by rules.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PolicyReport {
    /// What is forbidden: by path, then what has none, then by address.
    pub findings: Vec<Finding>,
    /// Why the recording may lack something; sentences.
    pub unknown: Vec<String>,
    /// What is not judged, though it is no gap; sentences.
    pub notes: Vec<String>,
}

impl PolicyReport {
    /// The verdict; a recording that may lack something passes only if that is allowed.
    pub fn verdict(&self, allow_incomplete: bool) -> PolicyVerdict {
        if !self.findings.is_empty() {
            PolicyVerdict::Fail
        } else if !allow_incomplete && !self.unknown.is_empty() {
            PolicyVerdict::Unknown
        } else {
            PolicyVerdict::Pass
        }
    }
}

/// What a recording need not tell of files.
pub trait Files {
    /// Whether the content of a record's file has what makes it a secret.
    fn has(&self, record: &FileRecord, sign: ContentSign) -> bool;
    /// Whether the content of the file at a path has that now.
    fn has_now(&self, path: &[u8], sign: ContentSign) -> bool;
    /// What is at a path now.
    fn state(&self, path: &[u8]) -> Option<Present>;
    /// Where a path leads now.
    fn resolved(&self, path: &[u8]) -> Vec<u8>;
}

/// Whether [`judge`] may find anything because of this record. If that holds for no record, its report is the same without
/// records. `keys_were_refused`: nothing was read that has a private key.
pub fn may_concern(policy: &CompiledPolicy, record: &FileRecord, keys_were_refused: bool) -> bool {
    // What was executed is judged by the names that records have.
    if policy.judges(PathUseKind::Execute) || policy.has(RuleWord::AllowRead) {
        return true;
    }
    let states = [&record.before, &record.after];
    let files = || states.into_iter().filter_map(State::present).filter(|state| inode_of(state).is_some());
    let is_named = |file: &Present| FileNames::by_rule(&policy.named, file).next().is_some();
    let is_linked = !record.linked_from.is_empty() || files().any(|file| file.nlink > 1);
    let may_read = |path: &Vec<u8>, has: &dyn Fn(ContentSign) -> bool| {
        policy.decide(PathUseKind::Read, path, has).forbidden().is_none()
    };
    let is_renamed = record.renamed_from.is_some() || record.renamed_to.is_some();
    let is_changed = !changes_of(record).is_empty();
    let is_read = record.operations.intersects(Operations::CONTENT_READS);
    let has = |sign| sign != ContentSign::Key || !keys_were_refused;
    let is_socket = || files().any(|file| file.file_type == FileType::Socket);
    is_changed && (is_linked || forbids_writing(policy, &record.path).is_some())
        || (is_read || is_linked || is_renamed) && !may_read(&record.path, &has)
        || record.linked_from.iter().any(|from| !may_read(from, &has))
        || (is_linked || is_renamed) && policy.judges_addresses() && is_socket()
        || files().any(is_named)
}

/// Judges a recording.
pub fn judge(snapshot: &Snapshot, policy: &CompiledPolicy, live: &dyn Files) -> PolicyReport {
    let report = judge_all(snapshot, policy, live);
    if cfg!(debug_assertions)
        && !snapshot.records().iter().any(|record| may_concern(policy, record, false))
        && let Ok(without) = Snapshot::without_records(snapshot.path(), snapshot.header().clone())
    {
        assert_eq!(report, judge_all(&without, policy, live), "records do not matter");
    }
    report
}

fn judge_all(snapshot: &Snapshot, policy: &CompiledPolicy, live: &dyn Files) -> PolicyReport {
    let header = snapshot.header();
    let mut by_path: BTreeMap<(Vec<u8>, bool), Vec<Finding>> = BTreeMap::new();
    let mut add = |finding: Finding| {
        let is_beneath = matches!(finding.subject, FindingSubject::Beneath { .. });
        let path = finding.subject.path().unwrap_or_default().to_vec();
        let known = by_path.entry((path, is_beneath)).or_default();
        // What a record tells, a list of what was left out may tell again.
        match known.iter_mut().find(|known| known.word == finding.word) {
            Some(known) => known.subject.add_operations(&finding.subject),
            None => known.push(finding),
        }
    };
    let names = FileNames::of(snapshot.files(), &policy.named);
    let changed_through = changed_through(snapshot.files());
    let linked = linked(snapshot.files());
    let mut unknown = gaps(header);
    for record in snapshot.records() {
        let through = changed_through.get(record.path.as_slice());
        let operations = changes_of(record);
        let (operations, by) = match through {
            Some(other) if operations.is_empty() => (Operation::Write.into(), *other),
            _ => (operations, record),
        };
        if !operations.is_empty()
            && let Some((word, text)) = forbids_writing(policy, &record.path)
        {
            let through = through.filter(|_| !std::ptr::eq(by, record)).map(|other| other.path.clone());
            add(finding_of(record, word, text, operations, through, by));
        }
        if let Some(link) = linked.get(record.path.as_slice())
            && let Some((name, word, text)) = forbids_linking(record, policy, &names)
        {
            let by = link.processes.clone();
            let finding = by_name(name, word, Some(text), Operation::Metadata.into(), record);
            add(Finding { processes: by, ..finding });
        }
        for (name, operations, (word, text)) in forbidden_reads(record, policy, &names, live) {
            add(by_name(name, word, text, operations, record));
        }
        for (from, to, operation) in names_given(snapshot, record) {
            let is_link = operation == Operation::Metadata;
            for kind in PathUseKind::by_new_name(is_link) {
                let Some((word, text)) = forbids_name(kind, from, to, policy, live) else { continue };
                let finding = finding_of(from, word, text, operation.into(), None, from);
                // Who makes a hard link does not use the record of the file.
                let by = if is_link { &to.processes } else { &finding.processes };
                add(Finding { processes: by.clone(), ..finding });
            }
        }
        let content = Operations::from(Operation::Write).with(Operation::Metadata);
        let changes = changes_of(record).intersection(content);
        if !changes.is_empty() {
            for name in names.changed_by_rule(&record.path) {
                if let Some((word, text)) = forbids_writing(policy, name) {
                    add(by_name(name, word, text, changes, record));
                }
            }
            unknown.extend(unknown_names(record, policy, &names));
        }
    }
    let listed = left_out::forbidden_reads(header, policy, live);
    for finding in programs::judge(snapshot, policy, &names, live).into_iter().chain(listed) {
        add(finding);
    }
    let mut somewhere = Vec::new();
    for rule in &header.suppressed {
        for change in left_out::changes(rule) {
            let forbidden = if change.beneath {
                policy.decide_beneath(PathUseKind::Write, &change.path).forbidden()
            } else {
                forbids_writing(policy, &change.path)
            };
            let Some((word, text)) = forbidden else { continue };
            let (path, left_out_by) = (change.path, rule.rule.clone());
            let subject = if change.beneath {
                FindingSubject::Beneath { path, left_out_by }
            } else {
                let (left_out_by, through) = (Some(left_out_by), None);
                let operations = change.operations.intersection(Operations::CHANGES);
                FindingSubject::Path { path, operations, through, left_out_by }
            };
            let processes = (change.process != 0).then_some(change.process).into_iter().collect();
            add(Finding { word, text, subject, processes });
        }
        let has_unlisted =
            rule.changes_cut || rule.changes.is_none() && rule.writes > 0 && rule.changed.is_empty();
        if has_unlisted
            && let Some((word, text)) = policy.decide_beneath(PathUseKind::Write, b"/").forbidden()
        {
            let subject = FindingSubject::Somewhere { left_out_by: rule.rule.clone() };
            somewhere.push(Finding { word, text, subject, processes: Vec::new() });
        }
    }
    let mut findings: Vec<_> = by_path.into_values().flatten().collect();
    findings.append(&mut somewhere);
    findings.extend(addresses(header, policy, &names));
    let mut report = PolicyReport { findings, unknown, notes: Vec::new() };
    left_out::judge_reads(header, policy, live, &mut report);
    report
}

/// Why a path may not be changed. By its name alone: what is changed may be a private key.
fn forbids_writing(policy: &CompiledPolicy, path: &[u8]) -> Option<Forbidden> {
    policy.decide_by_name(PathUseKind::Write, path).forbidden()
}

/// The name by which a file may not get another one, and the rule: a rule that denies changes means the inode, and a later
/// command would not know that the new name is one of it.
fn forbids_linking<'a>(
    record: &'a FileRecord,
    policy: &CompiledPolicy,
    names: &FileNames<'a>,
) -> Option<(&'a [u8], RuleWord, Vec<u8>)> {
    let others = names.others(&record.path).map(|(name, _)| name);
    std::iter::once(record.path.as_slice()).chain(others).find_map(|name| {
        let (word, text) = forbids_writing(policy, name)?;
        Some((name, word, text?))
    })
}

/// The records of the names that files got by hard links, by a name that each had.
fn linked(files: &[FileRecord]) -> HashMap<&[u8], &FileRecord> {
    let links = files.iter().flat_map(|record| record.linked_from.iter().map(move |from| (&**from, record)));
    links.collect()
}

/// The names that a file got by renames and hard links which a record tells: the records of the old and the new one, and how it
/// got it.
fn names_given<'a>(
    snapshot: &'a Snapshot,
    record: &'a FileRecord,
) -> impl Iterator<Item = (&'a FileRecord, &'a FileRecord, Operation)> {
    let find = |path: &Vec<u8>| snapshot.find(path);
    let links =
        record.linked_from.iter().filter_map(find).map(move |from| (from, record, Operation::Metadata));
    let came = record.renamed_from.iter().filter_map(find).map(move |from| (from, record));
    let went = record.renamed_to.iter().filter_map(find).map(move |to| (record, to));
    links.chain(came.chain(went).map(|(from, to)| {
        // An exchange deletes nothing.
        let is_deleted = from.operations.contains(Operation::Delete);
        (from, to, if is_deleted { Operation::Delete } else { Operation::Write })
    }))
}

/// Why a file may not get a name, by which a later command could use it, beside or in place of another.
fn forbids_name(
    kind: PathUseKind,
    from: &FileRecord,
    to: &FileRecord,
    policy: &CompiledPolicy,
    live: &dyn Files,
) -> Option<Forbidden> {
    let is_file = |state: &Present| state.file_type == FileType::File;
    let (before, after) = (from.before.present(), to.after.present());
    // What was made and is gone is nothing that could be read later.
    if before.is_none() && after.is_none() || ![before, after].into_iter().flatten().all(is_file) {
        return None;
    }
    let content = if before.is_some() { from } else { to };
    let has = |sign| live.has(content, sign);
    policy.forbids_name(kind, &from.path, before.is_some(), &to.path, &has)
}

/// The word of a rule, and the rule that denies.
pub(super) type Forbidden = (RuleWord, Option<Vec<u8>>);

fn finding_of(
    record: &FileRecord,
    word: RuleWord,
    text: Option<Vec<u8>>,
    operations: Operations,
    through: Option<Vec<u8>>,
    by: &FileRecord,
) -> Finding {
    let wanted = if through.is_some() { Operations::CHANGES } else { operations };
    let mut processes: Vec<u32> =
        by.uses.iter().filter(|used| used.operations.intersects(wanted)).map(|used| used.process).collect();
    processes.dedup();
    if processes.is_empty() {
        processes.clone_from(&by.processes);
    }
    let left_out_by = None;
    let subject = FindingSubject::Path { path: record.path.clone(), operations, through, left_out_by };
    Finding { word, text, subject, processes }
}

/// A use of what a record is about that is forbidden for one of its names.
fn by_name(
    name: &[u8],
    word: RuleWord,
    text: Option<Vec<u8>>,
    operations: Operations,
    record: &FileRecord,
) -> Finding {
    let mut finding = finding_of(record, word, text, operations, None, record);
    if name != record.path
        && let FindingSubject::Path { path, through, .. } = &mut finding.subject
    {
        *through = Some(std::mem::replace(path, name.to_vec()));
    }
    finding
}

/// That a file which was changed, or may have been, has names that are not known, or only to rules.
fn unknown_names(record: &FileRecord, policy: &CompiledPolicy, names: &FileNames<'_>) -> Option<String> {
    let is_same = |one: &Present, other: &Present| one.identity() == other.identity();
    let (before, after) = (record.before.present(), record.after.present());
    let (file, side, is_gone) = match (before, after) {
        (Some(before), Some(after)) if is_same(before, after) => (before, Side::Before, false),
        // It was written to and removed, or removed, made anew and removed again: the record has no order.
        (Some(before), None) => (before, Side::Before, true),
        // It got this name and was written to.
        (None, Some(after)) if names.is_changed(after) => (after, Side::After, false),
        _ => return None,
    };
    if file.file_type != FileType::File {
        return None;
    }
    let (path, known) = (String::from_utf8_lossy(&record.path), names.known(file, side));
    if policy.has(RuleWord::AllowWrite) && file.nlink > known {
        let nlink = file.nlink;
        Some(format!(
            "{path} has {nlink} names, of which {known} are known: another may be one that is not allowed"
        ))
    } else if is_gone && names.has_name_by_rule(file) {
        Some(format!("{path} was changed and is gone, and a file that a rule names was another name of it"))
    } else {
        None
    }
}

/// How the command changed the path of a record; empty if it did not.
fn changes_of(record: &FileRecord) -> Operations {
    // Whoever started the recording has chosen the file.
    if record.is_inherited_alone() {
        return Operations::NONE;
    }
    let changes = record.operations.intersection(Operations::CHANGES);
    let passes = |state: &State| {
        let node = state.present().map(|present| (present.file_type, present.dev, present.ino));
        node.filter(|(file_type, ..)| {
            matches!(file_type, FileType::CharDevice | FileType::Fifo | FileType::Socket)
        })
    };
    // What goes into a terminal, a pipe or /dev/null changes no file.
    let is_passed_through = changes == Operation::Write.into()
        && passes(&record.before).is_some()
        && passes(&record.before) == passes(&record.after);
    if is_passed_through { Operations::NONE } else { changes }
}

/// The reads of a record that are forbidden, by which name of the file: those of the content, and where rules allow reading,
/// also the listings of a directory.
fn forbidden_reads<'a>(
    record: &'a FileRecord,
    policy: &CompiledPolicy,
    names: &FileNames<'a>,
    live: &dyn Files,
) -> Vec<(&'a [u8], Operations, Forbidden)> {
    let reads = record.operations.intersection(Operations::CONTENT_READS);
    // Whoever started the recording has chosen the file.
    let looks = match record.is_inherited_alone() {
        true => Operations::NONE,
        false => record.operations.intersection(Operations::CONTENT_READS.with(Operation::Directory)),
    };
    if !policy.judges(PathUseKind::Read) || reads.is_empty() && looks.is_empty() {
        return Vec::new();
    }
    let has = |sign| live.has(record, sign);
    let forbidden = forbidden_by_name(record, policy, names, &has);
    let forbidden = forbidden.filter_map(|(name, (word, text))| {
        let operations = if text.is_some() { reads } else { looks };
        (!operations.is_empty()).then_some((name, operations, (word, text)))
    });
    forbidden.collect()
}

/// The names of a record's file by which it may not be read.
fn forbidden_by_name<'a>(
    record: &'a FileRecord,
    policy: &CompiledPolicy,
    names: &FileNames<'a>,
    has: &dyn Fn(ContentSign) -> bool,
) -> impl Iterator<Item = (&'a [u8], Forbidden)> {
    let own = std::iter::once((record.path.as_slice(), true));
    own.chain(names.others(&record.path)).filter_map(move |(name, is_from_before)| {
        let decision = policy.decide(PathUseKind::Read, name, has);
        Some((name, decision.forbidden_by_name(is_from_before)?))
    })
}

/// A file whose content is in a bundle's blobs, and which may not be read, with the rule.
pub fn forbidden_content(snapshot: &Snapshot, policy: &CompiledPolicy) -> Option<(Vec<u8>, Forbidden)> {
    let names = FileNames::of(snapshot.files(), &policy.named);
    let contents = Contents::new(snapshot);
    let mut held = snapshot.files().iter().filter(|record| {
        [&record.before, &record.after].into_iter().filter_map(State::present).any(|file| file.blob.is_some())
    });
    held.find_map(|record| {
        let has = |sign| blobs_have_sign(record, &contents, sign);
        let (name, forbidden) = forbidden_by_name(record, policy, &names, &has).next()?;
        Some((name.to_vec(), forbidden))
    })
}

/// The records of files that were changed through another of their names only, by path, with the record of that name.
fn changed_through(files: &[FileRecord]) -> HashMap<&[u8], &FileRecord> {
    let mut changed: HashMap<(u64, u64), &FileRecord> = HashMap::new();
    for record in files.iter().filter(|record| !changes_of(record).is_empty()) {
        for present in [&record.before, &record.after].into_iter().filter_map(State::present) {
            if present.nlink > 1 && LinkedFile::of(present).is_some() {
                changed.entry(present.identity()).or_insert(record);
            }
        }
    }
    let changed = &changed;
    let through = files.iter().filter_map(|record| {
        let before = record.before.present()?;
        let other = changed.get(&before.identity())?;
        let is_changed = changes_of(record).is_empty()
            && !record.is_inherited_alone()
            && PathEffect::of(record) == PathEffect::Changed;
        is_changed.then_some((record.path.as_slice(), *other))
    });
    through.collect()
}

/// The forbidden uses of addresses, those of one address by several processes as one.
fn addresses<'a>(header: &'a Header, policy: &CompiledPolicy, names: &FileNames<'a>) -> Vec<Finding> {
    let mut found: BTreeMap<_, (Finding, BTreeSet<u32>)> = BTreeMap::new();
    for used in &header.network {
        let others = match &used.address {
            // Nothing is there yet that could have another name.
            NetworkAddress::Unix(path) if used.operation != NetworkOperation::Bind => {
                Some(names.others(path))
            }
            _ => None,
        };
        let others = others.into_iter().flatten();
        let Some((word, text)) = policy.forbids_address(used, others) else { continue };
        let entry = found.entry((&used.address, used.operation)).or_insert_with(|| {
            let subject = FindingSubject::Address(NetworkUse { count: 0, ..used.clone() });
            (Finding { word, text, subject, processes: Vec::new() }, BTreeSet::new())
        });
        entry.1.insert(used.process);
        if let FindingSubject::Address(total) = &mut entry.0.subject {
            total.count = total.count.saturating_add(used.count);
            total.errno = total.errno.and(used.errno);
        }
    }
    let findings = found.into_values();
    findings.map(|(finding, by)| Finding { processes: by.into_iter().collect(), ..finding }).collect()
}

/// Why a recording may lack something.
fn gaps(header: &Header) -> Vec<String> {
    let mut gaps = Vec::new();
    if header.running {
        gaps.push("processes of the command lived on when the snapshot was made".to_owned());
    }
    for warning in &header.warnings {
        // What our own program changed is no gap of the recording, and nobody has recorded it.
        let is_own_program = warning.kind == WarningKind::ExternalChange && !warning.lost;
        if warning.lost || is_own_program {
            gaps.push(format!("{}: {}", warning.kind.name(), warning.detail));
        }
    }
    if !header.complete && gaps.is_empty() {
        gaps.push("the recording is incomplete".to_owned());
    }
    gaps
}
