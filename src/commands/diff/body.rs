//! The bytes of both sides of an entry, as far as they are needed to say how they differ.

use std::io::Write;

use super::lines::LineDiff;
use super::plan::{Entry, Half};
use crate::git::BlobHasher;
use crate::snapshot::Error;
use crate::snapshot::source::{Contents, Unavailable};

/// Longer files are not compared by line: what a person reads is shorter, and a patch of the bytes
/// takes no memory.
pub const TEXT_LIMIT: u64 = 8 << 20;

/// How the contents of two sides differ.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// They don't; there are no bytes at hand.
    Same,
    /// In lines of text; the bytes of both sides are at hand.
    Text,
    /// In bytes.
    Binary,
}

/// The content of an entry.
#[derive(Debug)]
pub struct Body {
    /// How its two sides differ; an absent side is empty.
    pub kind: Kind,
    /// The bytes before, where they are at hand.
    pub old: Option<Vec<u8>>,
    /// The bytes after, where they are at hand.
    pub new: Option<Vec<u8>>,
}

/// Why an entry can't be told of.
pub enum Trouble<'s> {
    /// The bytes of one side can't be had.
    Unavailable(Half<'s>, Unavailable),
    /// The snapshot is bad.
    Snapshot(Error),
    /// The result can't be written.
    Output(std::io::Error),
}

impl<'s> Trouble<'s> {
    fn with(half: Half<'s>) -> impl FnOnce(Error) -> Trouble<'s> {
        move |error| match error {
            Error::Unavailable(why) => Trouble::Unavailable(half, why),
            Error::Sink(error) => Trouble::Output(error),
            error => Trouble::Snapshot(error),
        }
    }
}

impl From<std::io::Error> for Trouble<'_> {
    fn from(error: std::io::Error) -> Self {
        Trouble::Output(error)
    }
}

impl Body {
    /// Looks at both sides of `entry`.
    pub fn of<'s>(entry: &Entry<'s>, contents: &Contents) -> Result<Body, Trouble<'s>> {
        let halves = [entry.old, entry.new];
        if entry.both().is_some_and(|(old, new)| old.known_same(&new) == Some(true)) {
            return Ok(Body { kind: Kind::Same, old: None, new: None });
        }
        if halves.iter().flatten().any(|half| !half.is_link() && half.present.size > TEXT_LIMIT) {
            for half in halves.into_iter().flatten() {
                contents.check(half.record, half.side).map_err(|why| Trouble::Unavailable(half, why))?;
            }
            return Ok(Body { kind: Kind::Binary, old: None, new: None });
        }
        let load = |half: Option<Half<'s>>| {
            let mut bytes = Vec::new();
            match half {
                Some(half) => copy(half, contents, &mut bytes).map(|()| bytes),
                None => Ok(bytes),
            }
        };
        let (old, new) = (load(entry.old)?, load(entry.new)?);
        // As Git does, but to the end: patch(1) takes no line with a NUL byte.
        let kind = match () {
            () if entry.both().is_some() && old == new => Kind::Same,
            () if old.contains(&0) || new.contains(&0) => Kind::Binary,
            () => Kind::Text,
        };
        Ok(Body { kind, old: Some(old), new: Some(new) })
    }
}

impl Body {
    /// The lines of a text; none of anything else.
    pub fn lines(&self) -> Option<LineDiff<'_>> {
        match (self.kind, &self.old, &self.new) {
            (Kind::Text, Some(old), Some(new)) => Some(LineDiff::new(old, new)),
            _ => None,
        }
    }

    /// How much both sides have in common, in percent; of bytes that differ nobody asks further.
    pub fn similarity(&self) -> u64 {
        match self.kind {
            Kind::Same => 100,
            _ => self.lines().map_or(0, |lines| lines.similarity()),
        }
    }
}

/// Writes the content of `half` to `sink`.
pub fn copy<'s>(half: Half<'s>, contents: &Contents, sink: &mut dyn Write) -> Result<(), Trouble<'s>> {
    contents.copy(half.record, half.side, sink).map(drop).map_err(Trouble::with(half))
}

/// The id that Git gives the content of `half`, all zeros where nothing is there.
pub fn object_id<'s>(
    half: Option<Half<'s>>,
    bytes: Option<&[u8]>,
    hash: gix::hash::Kind,
    contents: &Contents,
) -> Result<String, Trouble<'s>> {
    let Some(half) = half else { return Ok(hash.null().to_string()) };
    let size = bytes.map_or(half.present.size, |bytes| bytes.len() as u64);
    let mut hasher = BlobHasher::new(hash, size);
    match bytes {
        Some(bytes) => hasher.update(bytes),
        None => copy(half, contents, &mut hasher)?,
    }
    Ok(hasher.finish().map_err(std::io::Error::other)?.to_string())
}
