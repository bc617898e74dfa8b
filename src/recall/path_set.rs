//! The paths that a command looked at, and one digest of what it saw there.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Mutex;

use rustix::fs::{Mode, OFlags};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use super::entry::is_output;
use super::mentions;
use super::probe::Probe;
use super::sight::{
    Compare, Facts, KnownContent, LookAt, Looked, Sight, Something, Times, look_in, mount_above,
    tells_changes, writes_back,
};
use crate::fs;
use crate::parallel;
use crate::snapshot::{
    FileRecord, FileType, Look, Operation, Operations, Present, Recallable, Seen, Snapshot,
};

/// How many paths of one directory are looked at in one go.
const GROUP: usize = 256;

/// A path that a command looked at.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
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
    /// Whether the command itself changed the file by another name only, or the number of its names, which moves the ctime.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub relinked: bool,
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
        let changed_inodes: HashSet<(u64, u64)> = snapshot
            .files()
            .iter()
            .filter(|record| record.operations.intersects(Operations::CHANGES))
            .flat_map(|record| [&record.before, &record.after])
            .filter_map(|state| state.present().map(Present::identity))
            .collect();
        let mut found: BTreeMap<Vec<u8>, (Watch, Sight)> = BTreeMap::new();
        let records = watched(snapshot.files());
        let live = LivePaths::look(records.iter().map(|(path, watched)| LookAt {
            path,
            seen: watched.seen.without_bytes(),
            compare: Compare::Bytes,
            known: None,
        }));
        for (path, Watched { record, seen }) in records {
            let changed_directory = changed_directories.contains(path);
            let live = live.found.get(path);
            let Some(record) = record else {
                // What is made there says that it is a directory, which is there and as it was.
                let watch =
                    Watch { path: path.to_vec(), seen, changed: changed_directory, ..Watch::default() };
                found.insert(path.to_vec(), (watch, live.map_or(Sight::Hidden, |live| live.sight.clone())));
                continue;
            };
            let mut sight = Sight::recorded(record.before.present());
            let live = live.and_then(|live| live.sight.something());
            let watch = Watch {
                path: record.path.clone(),
                seen,
                changed: record.operations.intersects(Operations::CHANGES) || changed_directory,
                relinked: is_relinked(record, &changed_inodes),
                compare: Compare::Bytes,
                known: started
                    .zip(live)
                    .and_then(|(started, live)| known_since_before(record, live, started)),
            };
            if let (Sight::Something(there), Some(started)) = (&mut sight, started) {
                there.facts = facts_before(record, &watch, &there.facts, live, started).ok_or_else(|| {
                    let shown = crate::snapshot::printable(&record.path);
                    format!("{shown}, whose attributes it asked for, was changed meanwhile")
                })?;
            }
            found.insert(record.path.clone(), (watch, sight));
        }
        for path in &kernel_files {
            let seen = Seen::CONTENT;
            let compare = Compare::KernelFile;
            let watch = Watch { path: path.clone(), seen, compare, ..Watch::default() };
            let at = LookAt { path, seen, compare, known: None };
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
            let text = format!(
                "{} {:?} {} {} {:?}\n",
                watch.path.len(),
                watch.seen,
                watch.changed,
                watch.relinked,
                watch.compare
            );
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
                        (_, true) => Times::Exact,
                        _ if watch.relinked => Times::Exact,
                        (_, false) => Times::Unchanged,
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
    let inode = |state: &crate::snapshot::State| state.present().map(Present::identity);
    let (before, after) = (inode(&record.before), inode(&record.after));
    // What takes the place of a removed file may get its inode number.
    let is_replaced = before != after || record.operations.contains(Operation::Delete);
    record.operations.intersects(Operations::CHANGES) && (is_replaced || before.is_none())
}

/// A path that is to be compared.
struct Watched<'a> {
    /// Its record, if it has one.
    record: Option<&'a FileRecord>,
    /// What of it was seen, or matters.
    seen: Seen,
}

/// The paths that the command looked at, and those where it made or executed something.
fn watched(files: &[FileRecord]) -> BTreeMap<&[u8], Watched<'_>> {
    let seen_ones = files.iter().filter(|record| !record.seen.is_nothing());
    let mut found: BTreeMap<&[u8], Watched<'_>> = seen_ones
        .map(|record| (record.path.as_slice(), Watched { record: Some(record), seen: record.seen }))
        .collect();
    let overwritten: HashSet<&[u8]> =
        files.iter().filter(|record| record.seen.is_nothing()).map(|record| record.path.as_slice()).collect();
    let parents =
        files.iter().filter(|record| is_output(record)).filter_map(|record| fs::parent_of(&record.path));
    for parent in parents.filter(|parent| !overwritten.contains(parent)) {
        let place = found.entry(parent).or_insert(Watched { record: None, seen: Seen::EXISTENCE });
        place.seen = place.seen.with(Look::Place);
    }
    let executed = files.iter().filter(|record| record.operations.contains(Operation::Execute));
    for record in executed {
        if let Some(program) = found.get_mut(record.path.as_slice()) {
            program.seen = program.seen.with(Look::Place);
        }
    }
    found
}

/// Whether a command changed the file of a record that it did not change itself.
fn is_relinked(record: &FileRecord, changed_inodes: &HashSet<(u64, u64)>) -> bool {
    let inode = record.before.present().map(Present::identity);
    !record.operations.intersects(Operations::CHANGES) && inode.is_some_and(|at| changed_inodes.contains(&at))
}

/// Whether what is at a path now is the file that was there before the command, as far as its times tell.
fn is_as_before(before: &Present, live: &Something, started: jiff::Timestamp) -> bool {
    let Some(now) = live.facts.signature else { return false };
    let modified = (before.mtime, i64::from(before.mtime_nsec));
    (now.dev, now.ino, now.size, now.mtime) == (before.dev, before.ino, before.size, modified)
        && now.changed_at() < started.as_nanosecond()
}

/// What no record tells of a path that was there before the command; none if it may have become another meanwhile.
///
/// `recorded` is what its record tells where the command changed it itself.
fn facts_before(
    record: &FileRecord,
    watch: &Watch,
    recorded: &Facts,
    live: Option<&Something>,
    started: jiff::Timestamp,
) -> Option<Facts> {
    let before = record.before.present()?;
    let asks = |look| watch.seen.contains(look);
    let (asks_of_attributes, asks_of_place) = (asks(Look::Xattrs), asks(Look::Place));
    let asks_of_others = asks(Look::InodeFlags) || asks(Look::Holes);
    if let Some(live) = live.filter(|live| is_as_before(before, live, started)) {
        return Some(live.facts.clone());
    }
    if record.operations.intersects(Operations::CHANGES) {
        // The command does not change how it is mounted; what it removed or renamed was no mount point.
        let mount = live.and_then(|live| live.facts.mount.clone()).or_else(|| mount_above(&record.path));
        return (!asks_of_others).then(|| Facts { mount, ..recorded.clone() });
    }
    // Entries of a directory are others, which its own attributes do not depend on.
    let is_same_directory = |live: &&Something| {
        let identity = live.facts.signature.map(|now| (now.dev, now.ino));
        before.file_type == FileType::Directory
            && identity == Some(before.identity())
            && (live.mode, live.owner) == (before.mode, (before.uid, before.gid))
    };
    if let Some(live) = live.filter(is_same_directory) {
        return Some(live.facts.clone());
    }
    let asks_of_time = asks(Look::Attributes) && !watch.relinked;
    let is_asked = asks_of_attributes || asks_of_place || asks_of_others || asks_of_time;
    (!is_asked).then(Facts::default)
}

/// What is known of the content of a file that was last changed well before the command started.
fn known_since_before(
    record: &FileRecord,
    live: &Something,
    started: jiff::Timestamp,
) -> Option<KnownContent> {
    let before = record.before.present().filter(|_| record.seen.contains(Look::Content))?;
    let (digest, signature) = (before.digest?, live.facts.signature?);
    let lasts = is_as_before(before, live, started) && tells_changes(&signature, started);
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = || rustix::fs::open(record.path.as_slice(), flags, Mode::empty());
    (lasts && file().is_ok_and(writes_back)).then_some(KnownContent { signature, digest })
}

/// What is now at the paths of several sets: each is looked at once.
#[derive(Debug, Default)]
pub struct LivePaths {
    found: HashMap<Vec<u8>, Looked>,
}

impl LivePaths {
    /// Looks at the paths of `sets`.
    pub fn of(sets: &[PathSet]) -> LivePaths {
        let watches = sets.iter().flat_map(|set| &set.watches);
        LivePaths::look(watches.map(|Watch { path, seen, compare, known, .. }| LookAt {
            path,
            seen: *seen,
            compare: *compare,
            known: known.as_ref(),
        }))
    }

    /// Looks at `paths`, each of which may be given more than once.
    fn look<'a>(paths: impl Iterator<Item = LookAt<'a>>) -> LivePaths {
        let mut wanted: BTreeMap<(&[u8], &[u8]), LookAt<'_>> = BTreeMap::new();
        for path in paths {
            let directory = fs::parent_of(path.path).unwrap_or(b"/");
            let at = wanted.entry((directory, path.path)).or_insert(path.clone());
            at.seen = at.seen.union(path.seen);
            at.known = at.known.or(path.known);
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
