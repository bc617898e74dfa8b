//! Which recordings go, by what the user wants to keep.
//!
//! A recording is kept if any rule to keep keeps it; without such a rule all are. Then the oldest go until the library is
//! small enough. Some stay whatever the rules say: named ones, those that are in use, and, as long as that is possible
//! below the limit, the newest of each working tree that changed something, since `undo` is for these. `delete.rs`
//! removes what was chosen.

use std::collections::HashMap;
use std::fs::{self, File, Metadata, OpenOptions};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::time::{Duration, SystemTime};

use jiff::Timestamp;

use super::delete::Deletions;
use super::disk::DiskUse;
use super::log::EntryState;
use super::rescues::{Rescue, Rescues};
use super::{Entry, Error, Library};
use crate::snapshot::usage;

/// The name of the file whose modification time is that of the last automatic pruning.
pub const STAMP: &str = "pruned";

/// The shortest time between two automatic prunings.
const INTERVAL: Duration = Duration::from_secs(3600);

/// How many of the newest recordings that changed something stay in each working tree.
pub const NEWEST: usize = 20;

/// What is to be kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rules {
    /// The newest of all.
    pub keep_last: Option<usize>,
    /// Those that were started within this time.
    pub keep_within: Option<Duration>,
    /// How many bytes the library may take.
    pub max_size: Option<u64>,
}

/// What the rules come to.
#[derive(Debug, Default)]
pub struct Plan {
    /// The recordings that go, the oldest first.
    pub going: Vec<Going>,
    /// How many bytes the snapshots take now.
    pub size: u64,
    /// How many stay though no rule keeps them, since they are the newest of their working tree, or are named.
    pub protected: usize,
}

/// A recording that goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Going {
    /// The recording.
    pub entry: Entry,
    /// What it takes on the disk.
    pub bytes: u64,
    /// Whether it is one of the newest of its working tree.
    pub evicted: bool,
}

/// A recording, and what it takes on the disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sized {
    /// The recording.
    pub entry: Entry,
    /// The bytes of its directory and of the rescues that go with it.
    pub bytes: u64,
    /// When it, or the last restore of it, was started: a rescue may have the only copy of what was there until then.
    pub last_used: Timestamp,
}

/// The recordings of `library` with their sizes, the oldest first, and the size of all that is there.
///
/// # Errors
/// The library can't be read.
pub fn sizes(library: &Library) -> Result<(Vec<Sized>, u64), Error> {
    let mut used = DiskUse::default();
    let mut total = 0;
    let mut add = |path: &Path| {
        let bytes = used.add(path);
        total += bytes;
        bytes
    };
    let mut sizes: Vec<Sized> = Vec::new();
    for entry in library.entries()? {
        let bytes = add(&library.directory_of(&entry.id));
        // A recording whose time can't be read counts as new.
        let last_used = entry.time.parse().unwrap_or(Timestamp::MAX);
        sizes.push(Sized { entry, bytes, last_used });
    }
    let numbers: HashMap<String, usize> =
        sizes.iter().enumerate().map(|(number, sized)| (sized.entry.id.clone(), number)).collect();
    let rescues = Rescues::of(library)?;
    let own =
        |rescue: &Rescue| rescue.ids.iter().filter_map(|id| numbers.get(id).copied()).collect::<Vec<_>>();
    for rescue in rescues.all() {
        let started: Option<Timestamp> = rescue.started_at.as_ref().and_then(|time| time.parse().ok());
        for number in own(rescue) {
            let last_used = &mut sizes[number].last_used;
            *last_used = started.map_or(*last_used, |started| (*last_used).max(started));
        }
    }
    for rescue in rescues.all() {
        let bytes = add(&rescue.path);
        // The oldest go first, so that it goes with the newest.
        if let Some(newest) = own(rescue).into_iter().max_by_key(|number| (sizes[*number].last_used, *number))
        {
            sizes[newest].bytes += bytes;
        }
    }
    add(&library.snapshots());
    Ok((sizes, total))
}

/// Whether automatic pruning is due; if so, it is due again in an hour.
pub fn is_due(library: &Library) -> bool {
    let path = library.root().join(STAMP);
    let is_over = |metadata: &Metadata| {
        // A time in the future comes from a clock that was wrong.
        metadata.modified().map_or(true, |last| last.elapsed().map_or(true, |age| age >= INTERVAL))
    };
    match fs::symlink_metadata(&path) {
        Ok(metadata) => {
            is_over(&metadata)
                && File::open(&path)
                    .ok()
                    .and_then(|stamp| usage::claim_open(stamp, usage::TRIES).ok().flatten())
                    .is_some_and(|stamp| {
                        // Another recording may have been first.
                        stamp.metadata().is_ok_and(|metadata| is_over(&metadata))
                            && stamp.set_modified(SystemTime::now()).is_ok()
                    })
        }
        // A new library has nothing to prune.
        Err(_) => {
            let _ = OpenOptions::new().create_new(true).write(true).mode(0o600).open(&path);
            false
        }
    }
}

/// Chooses what goes, of the recordings that `may_go`.
///
/// # Errors
/// The library can't be read.
pub fn plan(library: &Library, rules: &Rules, may_go: impl Fn(&Entry) -> bool) -> Result<Plan, Error> {
    let (sizes, size) = sizes(library)?;
    let deletions = Deletions::of(library)?;
    // A recording stays if that can't be found out.
    let is_free = |entry: &Entry| may_go(entry) && matches!(deletions.obstacle(&entry.id), Ok(None));
    let (going, protected) = choose(&sizes, size, rules, Timestamp::now(), is_free);
    Ok(Plan { going, size, protected })
}

/// What goes of recordings, the oldest first, that take `size` bytes together with all else; and how many stay that no
/// rule keeps.
fn choose(
    sizes: &[Sized],
    size: u64,
    rules: &Rules,
    now: Timestamp,
    is_free: impl Fn(&Entry) -> bool,
) -> (Vec<Going>, usize) {
    let newest = newest_of_each_place(sizes);
    let keeps_all = rules.keep_last.is_none() && rules.keep_within.is_none();
    let is_kept = |number: usize, one: &Sized| {
        let is_last = rules.keep_last.is_some_and(|last| sizes.len() - number <= last);
        let is_young = rules
            .keep_within
            .is_some_and(|within| one.last_used.saturating_add(within).is_ok_and(|end| end >= now));
        keeps_all || is_last || is_young
    };
    let is_protected = |number: usize| newest[number] || sizes[number].entry.is_to_stay();
    // What was imported stays, so it must not drive out what was recorded.
    let imported: u64 = sizes.iter().filter(|one| one.entry.imported).map(|one| one.bytes).sum();
    let mut size = size.saturating_sub(imported);
    let mut goes = vec![None; sizes.len()];
    for (number, one) in sizes.iter().enumerate() {
        if !is_kept(number, one) && !is_protected(number) && is_free(&one.entry) {
            goes[number] = Some(false);
            size = size.saturating_sub(one.bytes);
        }
    }
    let mut by_use: Vec<(usize, &Sized)> = sizes.iter().enumerate().collect();
    by_use.sort_by_key(|(_, one)| one.last_used);
    for evicts in [false, true] {
        for (number, one) in by_use.iter().copied() {
            let is_enough = rules.max_size.is_none_or(|most| size <= most);
            if !is_enough
                && goes[number].is_none()
                && !one.entry.is_to_stay()
                && newest[number] == evicts
                && is_free(&one.entry)
            {
                goes[number] = Some(evicts);
                size = size.saturating_sub(one.bytes);
            }
        }
    }
    let stays = |number: &usize| goes[*number].is_none() && !is_kept(*number, &sizes[*number]);
    let protected = (0..sizes.len()).filter(stays).filter(|number| is_protected(*number)).count();
    let going = sizes.iter().zip(goes).filter_map(|(one, goes)| {
        goes.map(|evicted| Going { entry: one.entry.clone(), bytes: one.bytes, evicted })
    });
    (going.collect(), protected)
}

/// Which ones are among the newest of their working tree, or directory, that changed something.
fn newest_of_each_place(sizes: &[Sized]) -> Vec<bool> {
    let mut counts: HashMap<&[u8], usize> = HashMap::new();
    let mut newest = vec![false; sizes.len()];
    for (number, Sized { entry, .. }) in sizes.iter().enumerate().rev() {
        // What a killed recording has changed is unknown until it is recovered.
        if !entry.imported && (entry.changes().any() || entry.state == EntryState::Unrecovered) {
            let count = counts.entry(place_of(entry)).or_default();
            *count += 1;
            newest[number] = *count <= NEWEST;
        }
    }
    newest
}

/// The working tree that a recording was made in, or else its directory.
pub fn place_of(entry: &Entry) -> &[u8] {
    entry.working_tree.as_ref().map_or(&entry.cwd.0, |tree| &tree.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::library::log::{ByteText, Changes};
    use crate::snapshot::Header;
    use crate::snapshot::layout::SnapshotDir;
    use crate::snapshot::samples::{commit_into, header};

    const NOW: &str = "2026-03-01T00:00:00Z";
    const DAY: Duration = Duration::from_secs(86_400);

    /// Recordings in one directory, each of 10 bytes, one a day until now; those in `quiet` changed nothing.
    fn sizes(count: usize, quiet: &[usize]) -> Vec<Sized> {
        let now: Timestamp = NOW.parse().unwrap();
        let one = |number: usize| {
            let age = DAY * u32::try_from(count - 1 - number).unwrap();
            let mut entry = Entry::new(&header(), Changes::default());
            entry.id = format!("{number}");
            let last_used = now.checked_sub(age).unwrap();
            entry.time = last_used.to_string();
            entry.created = u64::from(!quiet.contains(&number));
            Sized { entry, bytes: 10, last_used }
        };
        (0..count).map(one).collect()
    }

    const NONE: Rules = Rules { keep_last: None, keep_within: None, max_size: None };

    fn chosen(sizes: &[Sized], rules: Rules) -> (Vec<usize>, Vec<bool>, usize) {
        let size = sizes.iter().map(|one| one.bytes).sum();
        let (going, protected) = choose(sizes, size, &rules, NOW.parse().unwrap(), |entry| entry.id != "1");
        let ids = going.iter().map(|one| one.entry.id.parse().unwrap()).collect();
        (ids, going.iter().map(|one| one.evicted).collect(), protected)
    }

    #[test]
    fn pruning_is_due_once_an_hour() {
        let dir = tempfile::tempdir().unwrap();
        let place = crate::library::Place { root: dir.path().join("library"), instead: None };
        let library = Library::create(&place).unwrap();
        assert!(!is_due(&library), "a new library has nothing to prune");
        assert!(!is_due(&library));
        let stamp = File::open(library.root().join(STAMP)).unwrap();
        let at = |seconds: u64| SystemTime::now() - Duration::from_secs(seconds);
        stamp.set_modified(at(3500)).unwrap();
        assert!(!is_due(&library));
        stamp.set_modified(at(3700)).unwrap();
        assert!(is_due(&library) && !is_due(&library));
        stamp.set_modified(SystemTime::now() + INTERVAL).unwrap();
        assert!(is_due(&library) && !is_due(&library));
    }

    #[test]
    fn any_rule_that_keeps_a_recording_keeps_it() {
        let sizes = sizes(30, &[]);
        assert_eq!(chosen(&sizes, NONE).0, [0; 0]);
        // 1 is in use, and 10 to 29 are the newest of their directory.
        let last = Rules { keep_last: Some(25), ..NONE };
        assert_eq!(chosen(&sizes, last), (vec![0, 2, 3, 4], vec![false; 4], 0));
        assert_eq!(chosen(&sizes, Rules { keep_last: Some(5), ..NONE }).2, 15);
        let within = Rules { keep_within: Some(27 * DAY), ..NONE };
        assert_eq!(chosen(&sizes, within).0, [0]);
        assert_eq!(chosen(&sizes, Rules { keep_last: Some(28), ..within }).0, [0]);
        assert_eq!(chosen(&sizes, Rules { keep_last: Some(25), ..within }).0, [0]);
    }

    #[test]
    fn the_oldest_go_until_the_rest_is_small_enough() {
        let sizes = sizes(30, &[]);
        let most = |max_size| Rules { max_size: Some(max_size), ..NONE };
        assert_eq!(chosen(&sizes, most(300)).0, [0; 0]);
        assert_eq!(chosen(&sizes, most(299)).0, [0]);
        assert_eq!(chosen(&sizes, most(280)).0, [0, 2]);
        // The newest twenty alone exceed it.
        let (ids, evicted, _) = chosen(&sizes, most(190));
        assert_eq!(ids, [0, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11]);
        assert_eq!(evicted, [[false; 9].as_slice(), &[true; 2]].concat());
        assert_eq!(chosen(&sizes, most(0)).0.len(), 29);
    }

    #[test]
    fn a_restore_makes_its_recording_as_young_as_itself() {
        let dir = tempfile::tempdir().unwrap();
        let place = crate::library::Place { root: dir.path().join("library"), instead: None };
        let library = Library::create(&place).unwrap();
        let add = |name: &str, header: Header| {
            let target = SnapshotDir::create(&library.directory_of(name)).unwrap();
            commit_into(target, header, |_| Vec::new());
        };
        for id in ["aaaaaaaa", "bbbbbbbb"] {
            add(id, Header { id: id.to_owned(), ..header() });
        }
        let restored = |name: &str, at: &str, ids: &[&str]| {
            let words = ["agent-snapshot", "undo"].iter().chain(ids);
            let command = words.map(|word| word.as_bytes().to_vec()).collect();
            add(name, Header { command, started_at: at.to_owned(), ..header() });
        };
        restored("bbbbbbbb-rescue-1", "2030-01-01T00:00:00Z", &["aaaaaaaa", "bbbbbbbb"]);
        restored("aaaaaaaa-rescue-1", "2030-01-02T00:00:00Z", &["aaaaaaaa"]);
        let (sizes, _) = super::sizes(&library).unwrap();
        let used = sizes.iter().map(|one| (one.entry.id.as_str(), one.last_used.to_string()));
        let used: HashMap<_, _> = used.collect();
        assert_eq!(used["aaaaaaaa"], "2030-01-02T00:00:00Z");
        assert_eq!(used["bbbbbbbb"], "2030-01-01T00:00:00Z");
    }

    #[test]
    fn what_was_restored_lately_goes_last() {
        let mut sizes = sizes(30, &[]);
        sizes[0].last_used = NOW.parse().unwrap();
        let within = Rules { keep_within: Some(27 * DAY), ..NONE };
        assert_eq!(chosen(&sizes, within).0, [0; 0]);
        let most = |max_size| Rules { max_size: Some(max_size), ..NONE };
        assert_eq!(chosen(&sizes, most(299)).0, [2]);
        // Of those that are not the newest twenty it is the last.
        assert_eq!(chosen(&sizes, most(220)).0, [2, 3, 4, 5, 6, 7, 8, 9]);
        assert_eq!(chosen(&sizes, most(210)).0, [0, 2, 3, 4, 5, 6, 7, 8, 9]);
    }

    #[test]
    fn imports_stay_and_drive_out_nothing() {
        let mut sizes = sizes(30, &[]);
        for one in &mut sizes[..29] {
            one.entry.imported = true;
        }
        assert_eq!(chosen(&sizes, Rules { max_size: Some(10), ..NONE }).0, [0; 0]);
        assert_eq!(chosen(&sizes, Rules { max_size: Some(9), ..NONE }).0, [29]);
        assert_eq!(chosen(&sizes, Rules { keep_last: Some(0), ..NONE }), (vec![], vec![], 30));
    }

    #[test]
    fn what_is_evicted_is_not_protected() {
        let evicting = Rules { keep_last: Some(0), max_size: Some(10), ..NONE };
        let (ids, _, protected) = chosen(&sizes(4, &[]), evicting);
        assert_eq!((ids, protected), (vec![0, 2, 3], 1), "1 is in use");
    }

    #[test]
    fn the_newest_of_each_place_are_those_that_changed_something() {
        let mut sizes = sizes(45, &[44, 43]);
        for one in sizes.iter_mut().step_by(2) {
            one.entry.working_tree = Some(ByteText(b"/other".to_vec()));
        }
        sizes[0].entry.name = Some("kept".to_owned());
        let (ids, _, protected) = chosen(&sizes, Rules { keep_last: Some(0), ..NONE });
        assert_eq!(ids, [2, 43, 44], "0 is named, 1 in use, 3 to 42 the newest of two places");
        assert_eq!(protected, 41);
        assert_eq!(chosen(&sizes, Rules { max_size: Some(0), ..NONE }).0.len(), 43);
    }
}
