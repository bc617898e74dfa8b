//! The paths that a command looked at, and one digest of what it saw there.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Mutex;

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use super::mentions;
use super::probe::Probe;
use super::sight::{Compare, KnownContent, LookAt, Looked, Sight, Something, Times, look_in};
use crate::fs::{self, Signature};
use crate::restore::parallel;
use crate::snapshot::change::PathEffect;
use crate::snapshot::{
    BlobOmitted, FileRecord, FileType, Look, Operation, Operations, Recallable, Seen, Snapshot,
};

/// How many paths of one directory are looked at in one go.
const GROUP: usize = 256;

/// A path that a command looked at.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Watch {
    /// The path.
    #[serde(with = "super::entry::bytes")]
    #[serde(rename = "p")]
    pub path: Vec<u8>,
    /// What of it was seen.
    #[serde(rename = "s")]
    pub seen: Seen,
    /// Whether the command itself changed it afterwards.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub changed: bool,
    /// How its content is compared.
    #[serde(default, skip_serializing_if = "is_default")]
    pub compare: Compare,
    /// What is known of its content.
    #[serde(rename = "k", default, skip_serializing_if = "Option::is_none")]
    pub known: Option<KnownContent>,
}

fn is_default(compare: &Compare) -> bool {
    *compare == Compare::default()
}

/// The paths that a command looked at, sorted.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PathSet {
    /// The paths.
    pub watches: Vec<Watch>,
    /// What else it depended on.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub probes: Vec<Probe>,
    /// The home directory, whose times say nothing of what the command sees.
    pub home: Option<String>,
    /// A checksum of what was seen at each path, and of each probe, when the last entry was made: tells what is another now.
    #[serde(default)]
    pub last: Vec<u32>,
}

/// What was seen at the paths of a set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SightDigest {
    /// The digest over all of it, in hexadecimal digits.
    pub digest: String,
    /// A checksum for each path and each probe.
    pub checksums: Vec<u32>,
}

impl PathSet {
    /// The paths that a recorded command looked at, with what it saw there. Of the variables that do not count,
    /// those do that it asked for, except `ignored` ones.
    ///
    /// # Errors
    /// Why that can't be told, as a sentence.
    pub fn recorded(snapshot: &Snapshot, ignored: &[String]) -> Result<(PathSet, Vec<Sight>), String> {
        let header = snapshot.header();
        let Recallable { kernel_files, locked_files, .. } = header.recall.clone().unwrap_or_default();
        let started: Option<jiff::Timestamp> = header.started_at.parse().ok();
        let changed_directories: HashSet<&[u8]> = snapshot
            .files()
            .iter()
            .filter(|record| changes_directory(record))
            .filter_map(|record| fs::parent_of(&record.path))
            .collect();
        let mut found: BTreeMap<Vec<u8>, (Watch, Sight)> = BTreeMap::new();
        for record in snapshot.files().iter().filter(|record| !record.seen.is_nothing()) {
            let identity = match identity_of_secret(record) {
                Some(Ok(identity)) => Some(identity),
                Some(Err(why)) => return Err(why),
                None => None,
            };
            let compare = if identity.is_some() { Compare::Inode } else { Compare::Bytes };
            let watch = Watch {
                path: record.path.clone(),
                seen: record.seen,
                changed: record.operations.intersects(Operations::CHANGES)
                    || changed_directories.contains(record.path.as_slice()),
                compare,
                known: started.and_then(|started| known_since_before(record, started)),
            };
            let sight = Sight::recorded(record.before.present(), identity.as_ref());
            found.insert(record.path.clone(), (watch, sight));
        }
        for path in &kernel_files {
            let seen = Seen::CONTENT;
            let watch =
                Watch { path: path.clone(), seen, changed: false, compare: Compare::KernelFile, known: None };
            let at = LookAt { path, seen, compare: Compare::KernelFile, known: None };
            let looked = look_in(fs::parent_of(path).unwrap_or(b"/"), &[at]);
            found.insert(
                path.clone(),
                (watch, looked.into_iter().next().map_or(Sight::Hidden, |it| it.sight)),
            );
        }
        let (watches, sights) = found.into_values().unzip();
        let home = header.home.as_ref().map(|home| String::from_utf8_lossy(home).into_owned());
        let variables = mentions::of_run(snapshot).into_iter().map(str::to_owned);
        let variables = variables.filter(|name| !ignored.contains(name)).map(Probe::Variable);
        let probes = variables.chain(locked_files.into_iter().map(Probe::Lock)).collect();
        Ok((PathSet { watches, probes, home, last: Vec::new() }, sights))
    }

    /// A name for the set: sets with other paths have other ones.
    pub fn name(&self) -> String {
        let mut hasher = Sha256::new();
        for watch in &self.watches {
            let text =
                format!("{} {:?} {} {:?}\n", watch.path.len(), watch.seen, watch.changed, watch.compare);
            hasher.update(text);
            hasher.update(&watch.path);
        }
        hasher.update(format!("{:?}", self.probes));
        let digest: [u8; 32] = hasher.finalize().into();
        faster_hex::hex_string(&digest[..16])
    }

    /// What `sights`, one for each path, and `found`, one for each probe, come to.
    pub fn fingerprint<'s>(
        &self,
        sights: impl Iterator<Item = &'s Sight> + Clone,
        found: impl Fn(&Probe) -> String,
    ) -> SightDigest {
        let is_timed = |watch: &Watch, there: &Something| {
            watch.seen.contains(Look::Attributes) && FileType::from_mode(there.mode) == Some(FileType::File)
        };
        let mut times: Vec<(i64, u32)> = self
            .watches
            .iter()
            .zip(sights.clone())
            .filter_map(|(watch, sight)| {
                Some(sight.something().filter(|there| is_timed(watch, there))?.modified)
            })
            .collect();
        times.sort_unstable();
        let mut hasher = Sha256::new();
        let mut checksums = Vec::with_capacity(self.watches.len());
        for (watch, sight) in self.watches.iter().zip(sights) {
            let text = match sight {
                Sight::Nothing => "nothing".to_owned(),
                Sight::Hidden => "hidden".to_owned(),
                Sight::Something(there) => {
                    let kind = FileType::from_mode(there.mode);
                    let times = match (kind, watch.changed) {
                        (Some(FileType::Directory), true) => Times::Ignored,
                        (Some(FileType::Directory), false) if self.is_busy(watch, there) => Times::Ignored,
                        (Some(FileType::File), true) => {
                            let before = times.partition_point(|time| *time < there.modified);
                            let until = times.partition_point(|time| *time <= there.modified);
                            Times::Order(before, until - before)
                        }
                        _ => Times::Exact,
                    };
                    there.text(watch.seen, times)
                }
            };
            checksums.push(crc32fast::hash(text.as_bytes()));
            hasher.update(text);
            hasher.update([0]);
        }
        for text in self.probes.iter().map(found) {
            checksums.push(crc32fast::hash(text.as_bytes()));
            hasher.update(text);
            hasher.update([0]);
        }
        let digest: [u8; 32] = hasher.finalize().into();
        SightDigest { digest: faster_hex::hex_string(&digest), checksums }
    }

    /// Whether a directory changes all the time whatever the command does: `/`, those that are everybody's (`/tmp`), and
    /// the home directory.
    fn is_busy(&self, watch: &Watch, there: &Something) -> bool {
        there.mode & libc::S_ISVTX != 0
            || watch.path == b"/"
            || self.home.as_ref().is_some_and(|home| home.as_bytes() == watch.path)
    }

    /// What is not as it was when the last entry was made: the first path, or what else it is.
    pub fn first_difference(&self, now: &SightDigest) -> Option<String> {
        let pairs = self.last.iter().zip(&now.checksums);
        let named = |watch: &Watch| crate::snapshot::printable(&watch.path).into_owned();
        let all = self.watches.iter().map(named).chain(self.probes.iter().map(Probe::named));
        pairs.zip(all).find(|((last, now), _)| last != now).map(|(_, named)| named)
    }
}

/// Whether a command made, removed or replaced the name of a record, which changes the time of its directory.
fn changes_directory(record: &FileRecord) -> bool {
    let inode = |state: &crate::snapshot::State| state.present().map(|at| (at.dev, at.ino));
    let (before, after) = (inode(&record.before), inode(&record.after));
    // What takes the place of a removed file may get its inode number.
    let is_replaced = before != after || record.operations.contains(Operation::Delete);
    record.operations.intersects(Operations::CHANGES) && (is_replaced || before.is_none())
}

/// What is known of the content of a file that was last changed well before the command started.
fn known_since_before(record: &FileRecord, started: jiff::Timestamp) -> Option<KnownContent> {
    let before = record.before.present().filter(|_| record.seen.contains(Look::Content))?;
    let digest = before.digest?;
    let signature = Signature::from(&fs::lstat(&record.path).ok()??);
    let changed = i128::from(signature.ctime.0) * 1_000_000_000 + i128::from(signature.ctime.1);
    let is_old = changed + i128::from(fs::COARSE_STEP) < started.as_nanosecond();
    let modified = (before.mtime, i64::from(before.mtime_nsec));
    let is_same = (signature.dev, signature.ino, signature.size, signature.mtime)
        == (before.dev, before.ino, before.size, modified);
    (is_old && is_same).then_some(KnownContent { signature, digest })
}

/// The metadata that stands for the content of a secret; none if the content is none.
fn identity_of_secret(record: &FileRecord) -> Option<Result<Signature, String>> {
    let before = record.before.present()?;
    let is_withheld = before.blob_omitted == Some(BlobOmitted::Withheld);
    if !record.seen.contains(Look::Content) || before.digest.is_some() || !is_withheld {
        return None;
    }
    let shown = crate::snapshot::printable(&record.path);
    let now = fs::lstat(&record.path).ok().flatten().map(|stat| Signature::from(&stat));
    let modified = (before.mtime, i64::from(before.mtime_nsec));
    Some(match now {
        Some(now)
            if (now.dev, now.ino, now.size, now.mtime) == (before.dev, before.ino, before.size, modified)
                && !PathEffect::of(record).lasts()
                && !now.is_recent() =>
        {
            Ok(now)
        }
        _ => Err(format!("the secret {shown}, which it read, was changed")),
    })
}

/// What is now at the paths of several sets: each is looked at once.
#[derive(Debug, Default)]
pub struct LivePaths {
    found: HashMap<Vec<u8>, Looked>,
}

impl LivePaths {
    /// Looks at the paths of `sets`.
    pub fn of(sets: &[PathSet]) -> LivePaths {
        let mut wanted: BTreeMap<(&[u8], &[u8]), LookAt<'_>> = BTreeMap::new();
        for watch in sets.iter().flat_map(|set| &set.watches) {
            let directory = fs::parent_of(&watch.path).unwrap_or(b"/");
            let Watch { path, seen, compare, known, .. } = watch;
            let at = wanted.entry((directory, path)).or_insert(LookAt {
                path,
                seen: *seen,
                compare: *compare,
                known: known.as_ref(),
            });
            at.seen = at.seen.union(*seen);
            at.known = at.known.or(known.as_ref());
        }
        let mut groups: Vec<(&[u8], Vec<LookAt<'_>>)> = Vec::new();
        for ((directory, _), at) in wanted {
            match groups.last_mut() {
                Some((last, group)) if *last == directory && group.len() < GROUP => group.push(at),
                _ => groups.push((directory, vec![at])),
            }
        }
        let found = Mutex::new(HashMap::new());
        parallel::map(&groups, &|| {}, |(directory, paths)| {
            let looked = look_in(directory, paths);
            let named = paths.iter().map(|at| at.path.to_vec()).zip(looked);
            found.lock().unwrap_or_else(std::sync::PoisonError::into_inner).extend(named);
        });
        LivePaths { found: found.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner) }
    }

    /// What is at the paths of one of these sets.
    pub fn fingerprint(&self, set: &PathSet) -> SightDigest {
        const HIDDEN: &Sight = &Sight::Hidden;
        let sight = |watch: &Watch| self.found.get(&watch.path).map_or(HIDDEN, |looked| &looked.sight);
        let sights: Vec<&Sight> = set.watches.iter().map(sight).collect();
        set.fingerprint(sights.into_iter(), Probe::now)
    }

    /// Adds to a set what was learnt of its contents; whether that is anything.
    pub fn teach(&self, set: &mut PathSet) -> bool {
        let mut is_new = false;
        for watch in &mut set.watches {
            if let Some(learnt) = self.found.get(&watch.path).and_then(|looked| looked.learnt.as_ref()) {
                watch.known = Some(learnt.clone());
                is_new = true;
            }
        }
        is_new
    }
}
