//! The files with rules and settings that the traced tree has changed, compared again and again.
//!
//! Of a file that is opened for writing a change is told once, and what is written comes later: an
//! answer in between is from what was read in between. Neighbours: `git.rs` says which files these
//! are, and what a change of one means.

use std::collections::HashMap;
use std::path::Path;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use super::files::{self, Signature};
use super::index::{CLOCK_STEP, COARSE_STEP};
use super::repository::path_of;

/// How long the files are not looked at again, for each of them: a look takes a microsecond or two. Few
/// files are compared at about every question, and many take a small part of the time, too.
const LOOKED_AT_FOR: Duration = Duration::from_micros(20);

/// Longer files are told apart by their metadata alone.
const LIMIT: u64 = 1 << 20;

/// The files, as they were when they were looked at.
#[derive(Default)]
pub(super) struct Edited {
    files: HashMap<Vec<u8>, Version, foldhash::fast::RandomState>,
    looked_at: Option<Instant>,
}

/// What tells two versions of a file apart.
#[derive(PartialEq, Eq)]
struct Version {
    signature: Signature,
    /// The content, where the next change may come so soon that it leaves the times as they are.
    content: Option<Vec<u8>>,
}

impl Edited {
    /// Takes `path` up, as it is now; what is read of it from now on is of this version or a later one.
    pub(super) fn note(&mut self, path: &[u8]) {
        match Version::of(&path_of(path), false) {
            Some(version) => self.files.insert(path.to_vec(), version),
            None => self.files.remove(path),
        };
    }

    /// Takes out the files that have changed since they were looked at, unless that was done a moment
    /// ago.
    pub(super) fn changed(&mut self) -> Vec<Vec<u8>> {
        if self.files.is_empty() {
            return Vec::new();
        }
        let now = Instant::now();
        let pause = LOOKED_AT_FOR * u32::try_from(self.files.len()).unwrap_or(u32::MAX);
        if self.looked_at.is_some_and(|then| now - then < pause) {
            return Vec::new();
        }
        self.looked_at = Some(now);
        let changed = self.files.extract_if(|path, known| known.is_past(&path_of(path)));
        changed.map(|(path, _)| path).collect()
    }

    /// Lets the next question be answered by a look, however soon it comes.
    pub(super) fn look_again(&mut self) {
        self.looked_at = None;
    }
}

impl Version {
    /// The version of the regular file that `path` leads to, with its content if that is needed or
    /// `wanted`; none where there is no such file.
    fn of(path: &Path, wanted: bool) -> Option<Version> {
        let metadata = path.metadata().ok().filter(std::fs::Metadata::is_file)?;
        // The signature comes first: a later one could hide a change.
        let signature = Signature::from(&metadata);
        let wanted = wanted || signature.is_recent();
        let content = wanted.then(|| files::read_followed(path, LIMIT)).flatten();
        Some(Version { signature, content })
    }

    /// Whether another version is at `path` now.
    fn is_past(&mut self, path: &Path) -> bool {
        let Some(now) = Version::of(path, self.content.is_some()) else { return true };
        let is_past = now != *self;
        if !now.signature.is_recent() {
            self.content = None;
        }
        is_past
    }
}

impl Signature {
    /// Whether the file was changed so shortly ago that one more change may get the same time.
    fn is_recent(&self) -> bool {
        let (secs, nsecs) = self.ctime();
        let step = if nsecs == 0 { COARSE_STEP } else { CLOCK_STEP };
        let changed = i128::from(secs) * 1_000_000_000 + i128::from(nsecs);
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let age = i128::try_from(now.as_nanos()).unwrap_or(i128::MAX) - changed;
        // A clock elsewhere may be ahead of ours.
        age.abs() < i128::from(step)
    }
}
