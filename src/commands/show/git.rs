//! What became of Git's state, in a few words for each repository.
//!
//! Taken from the records of `git_files` and their stored contents alone: HEAD and references as they were on both
//! sides, and reflogs, which also tell where a reference was that no record has the old value of.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::io::{self, Write};

use super::super::paths::{Selection, counted, quoted};
use serde::Serialize;

use crate::git::{GitFile, below, git_dir_of, linked_worktree, packed_references};
use crate::snapshot::blobs::Side;
use crate::snapshot::change::PathEffect;
use crate::snapshot::compare::state;
use crate::snapshot::source::{ContentSource, Contents, locate};
use crate::snapshot::{FileRecord, FileType, GitRepository, Snapshot};

/// The most of a reference or of HEAD that is read.
const REFERENCE_LIMIT: u64 = 4 << 10;
/// The most of packed references or of a reflog that is read.
const LIST_LIMIT: u64 = 32 << 20;
/// How many references of a kind are named.
const NAMED: usize = 4;

/// What became of the state of one repository, or of one working tree that is linked to it.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub struct GitChanges {
    /// The root of the working tree, where the path of the git directory tells it, or the git directory.
    pub repository: String,
    /// The changes in words; not empty.
    pub changes: Vec<String>,
}

/// What became of Git's state, by repository.
pub fn git_changes(snapshot: &Snapshot) -> Vec<GitChanges> {
    let contents = Contents::new(snapshot);
    let mut directories: BTreeMap<&[u8], GitDirectory> = BTreeMap::new();
    for record in snapshot.files().iter().filter(|record| record.is_git_state) {
        let (git_dir, inside) = split(&record.path);
        directories.entry(git_dir).or_default().records.insert(inside, record);
    }
    for directory in directories.values_mut() {
        directory.references = references(directory, &contents);
    }
    let changes = directories.iter().filter_map(|(git_dir, directory)| {
        let common = linked_worktree(git_dir).map_or(*git_dir, |(common, _)| common);
        let references = directories.get(common).map_or(&directory.references, |common| &common.references);
        let root = git_dir.strip_suffix(b"/.git");
        let mut repositories = snapshot.header().git_repositories.iter();
        let repository = repositories.find(|repository| Some(repository.root.as_slice()) == root);
        let changes =
            directory.changes(references, repository, linked_worktree(git_dir).is_some(), &contents);
        (!changes.is_empty()).then(|| GitChanges { repository: label(git_dir), changes })
    });
    changes.collect()
}

/// The git directory that a path of Git's state is in, and the path in it.
fn split(path: &[u8]) -> (&[u8], &[u8]) {
    let above = path.iter().rposition(|byte| *byte == b'/').map_or(path, |slash| &path[..slash]);
    let git_dir = git_dir_of(path).unwrap_or(above);
    (git_dir, path.get(git_dir.len() + 1..).unwrap_or_default())
}

/// Whether a path of Git's state, or a directory above it in the git directory, is selected by its name.
pub fn names_git_state(selection: &Selection, path: &[u8]) -> bool {
    let mut ends = path.iter().enumerate().filter(|(_, byte)| **byte == b'/').map(|(end, _)| end);
    let git_dir = split(path).0;
    let is_inside = |end: usize| end >= git_dir.len() || path[..end].ends_with(b"/.git");
    let first = ends.find(|end| is_inside(*end));
    first.into_iter().chain(ends).chain([path.len()]).any(|end| selection.names(&path[..end]))
}

fn label(git_dir: &[u8]) -> String {
    if let Some((common, name)) = linked_worktree(git_dir) {
        return format!("{}, worktree {}", label(common), quoted(name));
    }
    if let Some(at) = git_dir.windows(b"/modules/".len()).rposition(|part| part == b"/modules/") {
        let (outer, name) = (&git_dir[..at], &git_dir[at + b"/modules/".len()..]);
        return format!("{}, submodule {}", label(outer), quoted(name));
    }
    quoted(git_dir.strip_suffix(b"/.git").unwrap_or(git_dir)).into_owned()
}

/// What a reference is: an object id in hexadecimal, or `ref: ` and a name.
type Value = String;

/// A reference that is another than before, on both sides.
type Moved = (Option<Value>, Option<Value>);

/// The records of one git directory, by their paths in it.
#[derive(Default)]
struct GitDirectory<'s> {
    records: BTreeMap<&'s [u8], &'s FileRecord>,
    /// The references that moved.
    references: BTreeMap<Vec<u8>, Moved>,
}

impl<'s> GitDirectory<'s> {
    fn get(&self, inside: &[u8]) -> Option<&'s FileRecord> {
        self.records.get(inside).copied()
    }

    fn exists(&self, inside: &[u8], side: Side) -> bool {
        self.get(inside).is_some_and(|record| state(record, side).present().is_some())
    }

    /// Whether something at or below `inside` is there on this side.
    fn has_any(&self, inside: &str, side: Side) -> bool {
        let is_inside = |path: &[u8]| below(path, inside.as_bytes()).is_some();
        let range = self.records.range(inside.as_bytes()..);
        range
            .take_while(|(path, _)| path.starts_with(inside.as_bytes()))
            .any(|(path, record)| is_inside(path) && state(record, side).present().is_some())
    }

    fn text(&self, inside: &[u8], side: Side, contents: &Contents) -> Option<Vec<u8>> {
        content(self.get(inside)?, side, REFERENCE_LIMIT, contents)
    }

    /// What HEAD is on this side, if the command changed it.
    fn head(&self, side: Side, contents: &Contents) -> Option<Value> {
        value(&self.text(b"HEAD", side, contents)?)
    }

    fn changes(
        &self,
        references: &BTreeMap<Vec<u8>, Moved>,
        repository: Option<&GitRepository>,
        is_worktree: bool,
        contents: &Contents,
    ) -> Vec<String> {
        let heads = Side::BOTH.map(|side| self.head(side, contents));
        let what = if is_worktree { "worktree" } else { "repository" };
        match Side::BOTH.map(|side| self.exists(b"HEAD", side)) {
            [false, true] => {
                return vec![format!("{what} {}", if is_worktree { "added" } else { "created" })];
            }
            [true, false] => {
                let at = repository.and_then(|repository| repository.head.as_deref());
                let branch = heads[0].as_deref().and_then(branch);
                let was: Vec<_> = [
                    at.map(|at| format!("HEAD was {}", short(at))),
                    branch.map(|branch| format!("on branch {}", quoted(branch.as_bytes()))),
                ]
                .into_iter()
                .flatten()
                .collect();
                let was = if was.is_empty() { String::new() } else { format!(" ({})", was.join(" ")) };
                return vec![format!("{what} removed{was}")];
            }
            _ => {}
        }
        let mut told = Vec::new();
        let commits = self.commits(references, repository, &heads, contents);
        if let [Some(before), Some(after)] = &commits
            && before != after
        {
            told.push(format!("HEAD {} → {}", short(before), short(after)));
        }
        if let [Some(before), Some(after)] = &heads {
            match [before, after].map(|head| branch(head)) {
                [None, Some(after)] => {
                    told.push(format!("detached HEAD → branch {}", quoted(after.as_bytes())))
                }
                [Some(before), None] => {
                    told.push(format!("branch {} → detached HEAD", quoted(before.as_bytes())))
                }
                [Some(before), Some(after)] if before != after => {
                    told.push(format!("branch {} → {}", quoted(before.as_bytes()), quoted(after.as_bytes())));
                }
                _ => {}
            }
        }
        self.tell_references(&commits, &mut told);
        self.tell_stashes(contents, &mut told);
        for (name, files) in OPERATIONS {
            let [before, after] = Side::BOTH.map(|side| files.iter().any(|file| self.has_any(file, side)));
            match (before, after) {
                (false, true) => told.push(format!("{name} started")),
                (true, false) => told.push(format!("{name} ended")),
                _ => {}
            }
        }
        let lasting = |inside: &[u8]| self.get(inside).is_some_and(|record| PathEffect::of(record).lasts());
        for (inside, word) in [("index", "index"), ("config", "config"), ("config.worktree", "config")] {
            if lasting(inside.as_bytes()) && !told.iter().any(|told| told == word) {
                told.push(word.to_owned());
            }
        }
        let changed_below = |directory: &str| {
            let changed = self.records.iter().filter(|(_, record)| PathEffect::of(record).lasts());
            let names = changed.filter_map(|(inside, _)| inside.strip_prefix(directory.as_bytes()));
            names.filter(|name| !name.is_empty()).collect::<Vec<_>>()
        };
        let hooks = changed_below("hooks/");
        if !hooks.is_empty() {
            told.push(format!("{}{}", if hooks.len() == 1 { "hook" } else { "hooks" }, named(&hooks)));
        }
        if !changed_below("reftable/").is_empty() {
            told.push("references (reftable)".to_owned());
        }
        self.tell_objects(&mut told);
        if told.is_empty() {
            let is_directory = |record: &FileRecord| {
                let present = record.after.present().or(record.before.present());
                present.is_some_and(|at| at.file_type == FileType::Directory)
            };
            let others = self
                .records
                .iter()
                .filter(|(_, record)| PathEffect::of(record).lasts() && !is_directory(record));
            let others: Vec<&[u8]> =
                others.map(|(inside, _)| if inside.is_empty() { b".git" } else { *inside }).collect();
            if others.len() > NAMED {
                told.push(counted(others.len(), "file", "files"));
            } else {
                told.extend(others.iter().map(|name| quoted(name).into_owned()));
            }
        }
        told
    }

    /// The commits of HEAD, as far as they are known.
    fn commits(
        &self,
        references: &BTreeMap<Vec<u8>, Moved>,
        repository: Option<&GitRepository>,
        heads: &[Option<Value>; 2],
        contents: &Contents,
    ) -> [Option<Value>; 2] {
        if let Some(GitRepository { head: Some(head), head_after, .. }) = repository {
            return [Some(head.clone()), Some(head_after.clone().unwrap_or_else(|| head.clone()))];
        }
        let lines = self.appended(b"logs/HEAD", contents);
        if let (Some(first), Some(last)) = (lines.first(), lines.last()) {
            return [Some(first.0.clone()), Some(last.1.clone())];
        }
        let of = |head: &Option<Value>, side: fn(&Moved) -> &Option<Value>| match head
            .as_deref()?
            .strip_prefix("ref: ")
        {
            Some(name) => references.get(name.as_bytes()).and_then(|moved| side(moved).clone()),
            None => head.clone(),
        };
        [of(&heads[0], |moved| &moved.0), of(&heads[1], |moved| &moved.1)]
    }

    /// The old and the new value of each line that was appended to a reflog.
    fn appended(&self, inside: &[u8], contents: &Contents) -> Vec<(Value, Value)> {
        let Some(record) = self.get(inside) else { return Vec::new() };
        let read = |side| content(record, side, LIST_LIMIT, contents).unwrap_or_default();
        let (before, after) = (read(Side::Before), read(Side::After));
        let appended = after.strip_prefix(before.as_slice()).unwrap_or_default();
        appended.split(|byte| *byte == b'\n').filter_map(reflog_line).collect()
    }

    fn tell_references(&self, commits: &[Option<Value>; 2], told: &mut Vec<String>) {
        const KINDS: [(&str, &str, &str); 4] = [
            ("refs/heads/", "branch", "branches"),
            ("refs/tags/", "tag", "tags"),
            ("refs/remotes/", "remote branch", "remote branches"),
            ("refs/", "reference", "references"),
        ];
        // HEAD is on it.
        let is_head = |moved: &Moved| {
            let [before, after] = commits;
            before.is_some() && before != after && (&moved.0, &moved.1) == (before, after)
        };
        let mut is_told: HashSet<&[u8]> = HashSet::new();
        for (prefix, one, many) in KINDS {
            let mut of_kind = Vec::new();
            for (name, moved) in &self.references {
                let is_own = matches!(name.as_slice(), b"refs/stash") || name.starts_with(b"refs/bisect/");
                if let Some(short) = name.strip_prefix(prefix.as_bytes())
                    && is_told.insert(name)
                    && !is_own
                {
                    of_kind.push((short, moved));
                }
            }
            let heads = of_kind.iter().filter(|(_, moved)| is_head(moved)).count();
            if heads == 1 && prefix == "refs/heads/" {
                of_kind.retain(|(_, moved)| !is_head(moved));
            }
            for word in ["created", "moved", "deleted"] {
                let of_word: Vec<_> = of_kind.iter().filter(|(_, moved)| fate(moved) == word).collect();
                let names: Vec<_> = of_word.iter().map(|(name, _)| *name).collect();
                match (names.as_slice(), of_word.first()) {
                    ([], _) => {}
                    ([name], Some((_, (Some(before), Some(after))))) => {
                        told.push(format!("{one} {} {} → {}", quoted(name), short(before), short(after)));
                    }
                    ([name], _) => told.push(format!("{one} {} {word}", quoted(name))),
                    (names, _) => told.push(format!("{} {many} {word}{}", names.len(), named(names))),
                }
            }
        }
    }

    fn tell_stashes(&self, contents: &Contents, told: &mut Vec<String>) {
        let stashes = |side| -> Option<BTreeSet<Value>> {
            let log = content(self.get(b"logs/refs/stash")?, side, LIST_LIMIT, contents).unwrap_or_default();
            Some(log.split(|byte| *byte == b'\n').filter_map(reflog_line).map(|(_, new)| new).collect())
        };
        let (Some(before), Some(after)) = (stashes(Side::Before), stashes(Side::After)) else { return };
        let [added, dropped] = [after.difference(&before), before.difference(&after)].map(Iterator::count);
        for (count, word) in [(added, "added"), (dropped, "dropped")] {
            if count > 0 {
                told.push(format!("{} {word}", counted(count, "stash", "stashes")));
            }
        }
    }

    fn tell_objects(&self, told: &mut Vec<String>) {
        let gone = self.records.iter().filter(|(_, record)| PathEffect::of(record) == PathEffect::Deleted);
        let gone: Vec<_> = gone.filter(|(inside, _)| inside.starts_with(b"objects/")).collect();
        let count = |kind| gone.iter().filter(|(_, record)| GitFile::of(&record.path) == kind).count();
        let objects = count(GitFile::LooseObject);
        let packs = gone.iter().filter(|(inside, _)| inside.ends_with(b".pack")).count();
        for (count, one, many) in [(objects, "object", "objects"), (packs, "pack", "packs")] {
            if count > 0 {
                told.push(format!("{} dropped", counted(count, one, many)));
            }
        }
    }
}

/// What became of a reference.
fn fate(moved: &Moved) -> &'static str {
    match moved {
        (None, _) => "created",
        (Some(_), None) => "deleted",
        (Some(_), Some(_)) => "moved",
    }
}

/// What Git is in the middle of, and the files that say so.
const OPERATIONS: [(&str, &[&str]); 5] = [
    ("rebase", &["rebase-merge", "rebase-apply"]),
    ("merge", &["MERGE_HEAD"]),
    ("cherry-pick", &["CHERRY_PICK_HEAD"]),
    ("revert", &["REVERT_HEAD"]),
    ("bisect", &["BISECT_LOG"]),
];

/// The references of `directory` that moved.
fn references(directory: &GitDirectory, contents: &Contents) -> BTreeMap<Vec<u8>, Moved> {
    let packed = directory.get(b"packed-refs");
    let packed = |side| {
        let list = packed.and_then(|record| content(record, side, LIST_LIMIT, contents)).unwrap_or_default();
        let named = packed_references(&list).into_iter();
        named.map(|(name, id)| (name.to_vec(), id.to_string())).collect::<BTreeMap<_, Value>>()
    };
    let packed = [packed(Side::Before), packed(Side::After)];
    let loose = directory.records.iter().filter(|(inside, record)| {
        let present = record.before.present().or(record.after.present());
        let is_file = present.is_some_and(|at| at.file_type != FileType::Directory);
        inside.starts_with(b"refs/") && is_file && !inside.ends_with(b".lock")
    });
    let loose: BTreeSet<Vec<u8>> = loose.map(|(inside, _)| inside.to_vec()).collect();
    // A packed one that is loose, too, and was not changed there, has not moved.
    let names = loose.iter().chain(packed.iter().flat_map(BTreeMap::keys));
    let names: BTreeSet<&Vec<u8>> = names.collect();
    let mut moved = BTreeMap::new();
    for name in names {
        let on = |side: Side, packed: &BTreeMap<Vec<u8>, Value>| {
            let loose = directory.text(name, side, contents).as_deref().and_then(value);
            loose.or_else(|| packed.get(name).cloned())
        };
        let mut before = on(Side::Before, &packed[0]);
        let after = on(Side::After, &packed[1]);
        if before.is_none() && after.is_some() {
            // It may be among packed ones that were not changed.
            let log = [b"logs/", name.as_slice()].concat();
            let first = directory.appended(&log, contents).into_iter().next();
            before = first.map(|(old, _)| old).filter(|old| old.bytes().any(|byte| byte != b'0'));
        }
        if before != after {
            moved.insert(name.clone(), (before, after));
        }
    }
    moved
}

/// The value in a file of a reference; a symlink is an old form of a symbolic one.
fn value(text: &[u8]) -> Option<Value> {
    let text = std::str::from_utf8(text).ok()?.trim();
    match text.strip_prefix("ref:") {
        Some(name) => Some(format!("ref: {}", name.trim())),
        None if text.starts_with("refs/") => Some(format!("ref: {text}")),
        None => {
            (!text.is_empty() && text.bytes().all(|byte| byte.is_ascii_hexdigit())).then(|| text.to_owned())
        }
    }
}

/// The branch of a symbolic HEAD.
fn branch(head: &str) -> Option<&str> {
    let name = head.strip_prefix("ref: ")?;
    Some(name.strip_prefix("refs/heads/").unwrap_or(name))
}

/// The old and the new value in a line of a reflog.
fn reflog_line(line: &[u8]) -> Option<(Value, Value)> {
    let mut words = line.splitn(3, |byte| *byte == b' ').map(value);
    Some((words.next()??, words.next()??))
}

/// The beginning of an object id, or the name that a symbolic reference has.
fn short(value: &str) -> String {
    match value.strip_prefix("ref: ") {
        Some(name) => quoted(name.as_bytes()).into_owned(),
        None if value.bytes().all(|byte| byte == b'0') => "no commit".to_owned(),
        None => value.get(..7).unwrap_or(value).to_owned(),
    }
}

/// A few names in parentheses; many are not named.
fn named(names: &[&[u8]]) -> String {
    if names.len() > NAMED {
        return String::new();
    }
    let names: Vec<_> = names.iter().map(|name| quoted(name)).collect();
    format!(" ({})", names.join(", "))
}

/// The stored content of a record, unless it is longer than `limit`.
fn content(record: &FileRecord, side: Side, limit: u64, contents: &Contents) -> Option<Vec<u8>> {
    state(record, side).present().filter(|present| present.size <= limit)?;
    let source = locate(record, side).ok()?;
    // Of the live file nothing is told.
    if !matches!(source, ContentSource::Blob { .. } | ContentSource::Target(_) | ContentSource::Empty) {
        return None;
    }
    let mut bytes = Limited { bytes: Vec::new(), limit };
    contents.copy(record, side, &mut bytes).ok()?;
    Some(bytes.bytes)
}

/// Takes no more than `limit` bytes.
struct Limited {
    bytes: Vec<u8>,
    limit: u64,
}

impl Write for Limited {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if (self.bytes.len() + bytes.len()) as u64 > self.limit {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        self.bytes.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
