//! The JSON of `show`: the keys and records of the manifest, with a status and counts.

use serde::{Serialize, Serializer};
use serde_json::{Map, Value};

use super::git::{GitChanges, git_changes};
use super::header::seconds;
use super::list::{Filter, ShownStatus};
use crate::snapshot::change::Differences;
use crate::snapshot::{FileRecord, Header, Snapshot};

/// The keys of the manifest without `files`, then `seconds`, `refused_calls`, `counts`, `files`, `git_files` and `git_changes`.
#[derive(Serialize)]
pub struct ShowJson<'s> {
    #[serde(flatten)]
    header: &'s Header,
    #[serde(skip_serializing_if = "Option::is_none")]
    seconds: Option<f64>,
    /// How many calls rules refused.
    #[serde(skip_serializing_if = "Option::is_none")]
    refused_calls: Option<u64>,
    /// The number of selected records with each status.
    counts: Map<String, Value>,
    #[serde(serialize_with = "each")]
    files: Vec<&'s FileRecord>,
    /// The records of Git's state.
    #[serde(serialize_with = "each")]
    git_files: Vec<&'s FileRecord>,
    /// What became of Git's state, in words.
    git_changes: Vec<GitChanges>,
}

impl<'s> ShowJson<'s> {
    /// The document of the records that `filter` takes.
    pub fn new(snapshot: &'s Snapshot, filter: &Filter) -> ShowJson<'s> {
        let records = snapshot.records().into_iter().filter(|record| filter.selects(record));
        let (git_files, files): (Vec<_>, Vec<_>) = records.partition(|record| record.is_git_state);
        let counts = ShownStatus::ALL.iter().map(|status| {
            let count = files.iter().filter(|record| ShownStatus::of(record) == *status).count();
            (status.name().to_owned(), count.into())
        });
        ShowJson {
            header: snapshot.header(),
            seconds: seconds(snapshot.header()),
            refused_calls: Some(snapshot.header().refused_calls()).filter(|count| *count > 0),
            counts: counts.collect(),
            files,
            git_files,
            git_changes: git_changes(snapshot),
        }
    }
}

/// A record of the manifest and what became of it.
#[derive(Serialize)]
struct FileJson<'s> {
    status: &'static str,
    /// In what the two states of a changed path differ.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    differs: Vec<&'static str>,
    #[serde(flatten)]
    record: &'s FileRecord,
}

fn each<S: Serializer>(files: &[&FileRecord], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(files.iter().map(|record| {
        let status = ShownStatus::of(record);
        let differs = if status == ShownStatus::Changed { differs(record) } else { Vec::new() };
        FileJson { status: status.name(), differs, record }
    }))
}

fn differs(record: &FileRecord) -> Vec<&'static str> {
    let (Some(before), Some(after)) = (record.before.present(), record.after.present()) else {
        return Vec::new();
    };
    let differences = Differences::between(record, before, after);
    let words = [
        ("type", differences.file_type),
        ("mode", differences.permissions),
        ("owner", differences.owner),
        ("content", differences.content),
        ("target", differences.target),
        ("xattrs", differences.xattrs),
        ("inode_flags", differences.inode_flags),
        ("hard_links", differences.hard_links),
    ];
    words.into_iter().filter(|(_, differs)| *differs).map(|(word, _)| word).collect()
}
