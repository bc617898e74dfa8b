//! The bytes of both sides of an entry, as far as they are needed for the diff.

use std::io::Write;

use super::lines::LineDiff;
use super::plan::{DiffEntry, DiffSide};
use crate::commands::out::OutputError;
use crate::git::BlobHasher;
use crate::snapshot::Error;
use crate::snapshot::source::{Contents, Unavailable};

/// Longer files are not compared by lines but get a binary patch, which needs no memory.
pub const TEXT_LIMIT: u64 = 8 << 20;

/// How the contents of two sides differ.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DiffKind {
    /// They don't; no bytes were loaded.
    Same,
    /// In lines of text; the bytes of both sides are loaded.
    Text,
    /// In bytes.
    Binary,
}

/// The content of an entry.
#[derive(Debug)]
pub struct DiffBody {
    /// How its two sides differ; an absent side is empty.
    pub kind: DiffKind,
    /// The bytes before, if they are loaded.
    pub old: Option<Vec<u8>>,
    /// The bytes after, if they are loaded.
    pub new: Option<Vec<u8>>,
}

/// Why an entry can't be written.
pub enum DiffError<'s> {
    /// The bytes of one side are unavailable.
    Unavailable(DiffSide<'s>, Unavailable),
    /// The snapshot is invalid.
    Snapshot(Error),
    /// The result can't be written.
    Output(std::io::Error),
}

impl<'s> DiffError<'s> {
    fn with(half: DiffSide<'s>) -> impl FnOnce(Error) -> DiffError<'s> {
        move |error| match error {
            Error::Unavailable(why) => DiffError::Unavailable(half, why),
            Error::Sink(error) => DiffError::Output(error),
            error => DiffError::Snapshot(error),
        }
    }
}

impl From<DiffError<'_>> for anyhow::Error {
    fn from(error: DiffError) -> anyhow::Error {
        match error {
            DiffError::Unavailable(_, why) => Error::Unavailable(why).into(),
            DiffError::Snapshot(error) => error.into(),
            DiffError::Output(error) => OutputError::from(error).into(),
        }
    }
}

impl From<std::io::Error> for DiffError<'_> {
    fn from(error: std::io::Error) -> Self {
        DiffError::Output(error)
    }
}

impl DiffBody {
    /// Loads and compares both sides of `entry`.
    pub fn of<'s>(entry: &DiffEntry<'s>, contents: &Contents) -> Result<DiffBody, DiffError<'s>> {
        let halves = [entry.old, entry.new];
        if entry.both().is_some_and(|(old, new)| old.known_same(&new) == Some(true)) {
            return Ok(DiffBody { kind: DiffKind::Same, old: None, new: None });
        }
        if halves.iter().flatten().any(|half| !half.is_symlink() && half.present.size > TEXT_LIMIT) {
            for half in halves.into_iter().flatten() {
                contents.check(half.record, half.side).map_err(|why| DiffError::Unavailable(half, why))?;
            }
            return Ok(DiffBody { kind: DiffKind::Binary, old: None, new: None });
        }
        let load = |half: Option<DiffSide<'s>>| {
            let mut bytes = Vec::new();
            match half {
                Some(half) => copy(half, contents, &mut bytes).map(|()| bytes),
                None => Ok(bytes),
            }
        };
        let (old, new) = (load(entry.old)?, load(entry.new)?);
        Ok(DiffBody::of_bytes(entry, old, new))
    }

    /// Compares the bytes of both sides of `entry`.
    pub fn of_bytes(entry: &DiffEntry, old: Vec<u8>, new: Vec<u8>) -> DiffBody {
        // As in Git, but to the end of the file, since patch(1) takes no line with a NUL byte.
        let kind = match () {
            () if entry.both().is_some() && old == new => DiffKind::Same,
            () if old.contains(&0) || new.contains(&0) => DiffKind::Binary,
            () => DiffKind::Text,
        };
        DiffBody { kind, old: Some(old), new: Some(new) }
    }
}

impl DiffBody {
    /// The lines of a text; none of anything else.
    pub fn lines(&self) -> Option<LineDiff<'_>> {
        match (self.kind, &self.old, &self.new) {
            (DiffKind::Text, Some(old), Some(new)) => Some(LineDiff::new(old, new)),
            _ => None,
        }
    }

    /// The similarity of both sides, in percent; 0 for binary files that differ.
    pub fn similarity(&self) -> u64 {
        match self.kind {
            DiffKind::Same => 100,
            _ => self.lines().map_or(0, |lines| lines.similarity()),
        }
    }
}

/// Writes the content of `half` to `sink`.
pub fn copy<'s>(half: DiffSide<'s>, contents: &Contents, sink: &mut dyn Write) -> Result<(), DiffError<'s>> {
    contents.copy(half.record, half.side, sink).map(drop).map_err(DiffError::with(half))
}

/// The blob id of the content of `half`; all zeros if there is none.
pub fn object_id<'s>(
    half: Option<DiffSide<'s>>,
    bytes: Option<&[u8]>,
    hash: gix::hash::Kind,
    contents: &Contents,
) -> Result<String, DiffError<'s>> {
    let Some(half) = half else { return Ok(hash.null().to_string()) };
    let size = bytes.map_or(half.present.size, |bytes| bytes.len() as u64);
    let mut hasher = BlobHasher::new(hash, size);
    match bytes {
        Some(bytes) => hasher.update(bytes),
        None => copy(half, contents, &mut hasher)?,
    }
    Ok(hasher.finish().map_err(std::io::Error::other)?.to_string())
}
