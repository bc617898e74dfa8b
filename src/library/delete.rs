//! Removes recordings, each with the rescues that are of no other one.
//!
//! Before its files go, a recording is renamed to `ID.deleted` in one step, so that nobody sees half of one, and so are
//! its rescues; then the log says that it is gone. What a kill leaves of that is completed by the next
//! [`Library::remove_leftovers`].
//!
//! Two locks say that nobody uses a recording, and both are taken without waiting: that of its directory, which its
//! recorder has, and that of its manifest, which whoever reads it has (`snapshot::usage`). Neighbours: `rescues.rs`,
//! `disk.rs`; `retention.rs` decides what goes.

use std::collections::HashSet;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use super::disk::DiskUse;
use super::error::failed;
use super::log::{self, Deletion, Event};
use super::rescues::{Rescue, Rescues, is_companion};
use super::{Error, ID_LENGTH, Library, is_absent, is_id};
use crate::snapshot::{recover, usage};

/// The end of the name of what is being deleted.
const DELETED: &str = ".deleted";

/// Why a recording is not deleted now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Obstacle {
    /// It goes on, or is being recovered.
    Running,
    /// All of it was killed, and it has not been recovered: only the journal in this directory has what it changed.
    Unrecovered(PathBuf),
    /// Another process has it, or one of its rescues, open.
    InUse,
    /// A restore of it has not ended: what that has overwritten is in this rescue alone.
    Unfinished(PathBuf),
    /// It is not there.
    Gone,
}

/// A recording that nobody uses, as long as this value lives.
#[derive(Debug)]
struct Claimed {
    path: PathBuf,
    /// The rescues that tell of it, as they were before it was claimed.
    concerned: Vec<Rescue>,
    /// Those that go with it.
    rescues: Vec<PathBuf>,
    _locks: Vec<File>,
}

/// The renamed directories of a recording and its rescues.
#[derive(Debug)]
struct SetAside {
    paths: Vec<PathBuf>,
    /// Whether the log says that it is gone.
    is_logged: bool,
}

/// The result of deleting a recording, or of a step of that: the obstacle is why it stays.
pub type Attempt<T> = Result<Result<T, Obstacle>, Error>;

/// Deletes recordings of a library.
#[derive(Debug)]
pub struct Deletions<'l> {
    library: &'l Library,
    rescues: Rescues<'l>,
}

impl<'l> Deletions<'l> {
    /// Prepares to delete recordings of `library`.
    ///
    /// # Errors
    /// The library can't be read.
    pub fn of(library: &'l Library) -> Result<Deletions<'l>, Error> {
        Ok(Deletions { library, rescues: Rescues::of(library)? })
    }

    /// What prevents a recording from being deleted now, by the rescues that were read; none if nothing does.
    ///
    /// # Errors
    /// The library can't be read.
    pub fn obstacle(&self, id: &str) -> Result<Option<Obstacle>, Error> {
        Ok(self.claim(id, usage::TRIES)?.err())
    }

    /// Deletes a recording with the rescues that belong to no other one, and returns how many bytes that has freed.
    ///
    /// # Errors
    /// The library can't be read or written; the recording is whole or gone.
    pub fn delete(&mut self, id: &str) -> Attempt<u64> {
        self.delete_together(&[(id, false)], usage::TRIES)?.remove(0)
    }

    /// Deletes recordings, each given with whether it is evicted, without waiting for whoever has one for a moment, and
    /// says what became of each. Rescues of several of them are left to [`Library::remove_leftovers`].
    ///
    /// # Errors
    /// The library can't be read; nothing was deleted.
    pub fn delete_batch(&mut self, going: &[(&str, bool)]) -> Result<Vec<Attempt<u64>>, Error> {
        self.delete_together(going, 1)
    }

    fn delete_together(&mut self, going: &[(&str, bool)], tries: u32) -> Result<Vec<Attempt<u64>>, Error> {
        self.rescues.refresh()?;
        let claimed: Vec<_> = going.iter().map(|(id, _)| self.claim(id, tries)).collect();
        // A restore may have begun and ended before the locks were taken.
        self.rescues.refresh()?;
        // Readers wait for the locks until all are renamed.
        let claimed = claimed.into_iter().zip(going);
        let mut set_aside: Vec<Attempt<SetAside>> =
            claimed.map(|(claimed, (id, _))| self.set_claimed_aside(id, claimed?)).collect();
        for (attempt, (id, evicted)) in set_aside.iter_mut().zip(going) {
            if let Ok(Ok(set_aside)) = attempt {
                set_aside.is_logged = self.library.log_deletion(id, *evicted).is_ok();
            }
        }
        let remove = |(set_aside, (id, evicted)): (Attempt<SetAside>, &(&str, bool))| match set_aside? {
            Ok(set_aside) => Ok(Ok(self.remove_set_aside(id, *evicted, &set_aside)?)),
            Err(obstacle) => Ok(Err(obstacle)),
        };
        Ok(set_aside.into_iter().zip(going).map(remove).collect())
    }

    /// Renames what goes, and releases it.
    fn set_claimed_aside(&self, id: &str, claimed: Result<Claimed, Obstacle>) -> Attempt<SetAside> {
        let claimed = match claimed {
            Ok(claimed) if self.rescues.of_recording(id) == claimed.concerned => claimed,
            Ok(_) => return Ok(Err(Obstacle::InUse)),
            Err(obstacle) => return Ok(Err(obstacle)),
        };
        let Some(aside) = set_aside(&claimed.path)? else { return Ok(Err(Obstacle::Gone)) };
        let mut paths = vec![aside];
        for rescue in &claimed.rescues {
            paths.extend(set_aside(rescue)?);
        }
        Ok(Ok(SetAside { paths, is_logged: false }))
    }

    /// Removes what was renamed, and returns how many bytes that has freed.
    fn remove_set_aside(&self, id: &str, evicted: bool, set_aside: &SetAside) -> Result<u64, Error> {
        let mut used = DiskUse::default();
        for path in &set_aside.paths {
            used.add(path);
        }
        set_aside.paths.iter().try_for_each(|path| remove(path))?;
        // On a full disk, the line may fit only once the files are removed.
        if !set_aside.is_logged {
            self.library.log_deletion(id, evicted)?;
        }
        Ok(used.freed())
    }

    /// Locks a recording and the rescues that go with it, so that nobody uses them.
    fn claim(&self, id: &str, tries: u32) -> Attempt<Claimed> {
        let path = self.library.directory_of(id);
        let directory = match open(&path) {
            Ok(directory) => directory,
            Err(error) if is_absent(&error) => return Ok(Err(Obstacle::Gone)),
            Err(error) => return Err(failed("open", &path)(error)),
        };
        // Where there are no locks, the journal tells who records.
        let is_recorded = |path: &Path| {
            recover::recorder(path).is_some_and(|begin| begin.recorder.is_alive() || begin.front.is_alive())
        };
        let Some(directory) = usage::claim_open(directory, tries).map_err(failed("lock", &path))? else {
            // A restore has this lock, too.
            return Ok(Err(if is_recorded(&path) { Obstacle::Running } else { Obstacle::InUse }));
        };
        if is_recorded(&path) {
            return Ok(Err(Obstacle::Running));
        }
        if recover::recorder(&path).is_some() {
            return Ok(Err(Obstacle::Unrecovered(path)));
        }
        let mut locks = vec![directory];
        let concerned = self.rescues.of_recording(id);
        let going: Vec<_> = concerned.iter().filter(|rescue| self.is_of_none_but(rescue, id)).collect();
        for path in going.iter().map(|rescue| &rescue.path) {
            // Whoever restores from it has this lock, and leaves the next rescue beside it.
            match open(path)
                .and_then(|rescue| usage::claim_open(rescue, tries))
                .map_err(failed("lock", path))?
            {
                Some(lock) => locks.push(lock),
                None => return Ok(Err(Obstacle::InUse)),
            }
        }
        for path in std::iter::once(&path).chain(going.iter().map(|rescue| &rescue.path)) {
            match usage::claim(path, tries) {
                Ok(Some(lock)) => locks.push(lock),
                Ok(None) => return Ok(Err(Obstacle::InUse)),
                // It is no snapshot, so nobody reads it.
                Err(_) => {}
            }
        }
        if let Some(rescue) = concerned.iter().find(|rescue| rescue.is_unfinished && !rescue.is_empty) {
            return Ok(Err(Obstacle::Unfinished(rescue.path.clone())));
        }
        let rescues = going.iter().map(|rescue| rescue.path.clone()).collect();
        // Another process may have deleted it.
        let is_same = fs::symlink_metadata(&path).is_ok_and(|named| {
            locks[0].metadata().is_ok_and(|open| (open.dev(), open.ino()) == (named.dev(), named.ino()))
        });
        Ok(if is_same {
            Ok(Claimed { path, concerned, rescues, _locks: locks })
        } else {
            Err(Obstacle::Gone)
        })
    }

    fn is_of_none_but(&self, rescue: &Rescue, id: &str) -> bool {
        rescue.ids.iter().all(|other| other == id || !self.library.directory_of(other).exists())
    }
}

impl Library {
    /// Completes deletions that were killed, removes directories in which a killed recording has left nothing, and
    /// returns how many bytes that has freed.
    ///
    /// # Errors
    /// The library can't be read or written.
    pub fn remove_leftovers(&self) -> Result<u64, Error> {
        let mut freed = 0;
        let log = log::read(self.root())?;
        let mut failure = None;
        for leftover in self.leftovers(&log)? {
            // The others are removed even if one can't be.
            match self.remove_leftover(&leftover, &log) {
                Ok(bytes) => freed += bytes,
                Err(error) => drop(failure.get_or_insert(error)),
            }
        }
        self.remove_unbegun()?;
        if log.is_worth_compacting() {
            // If that fails, on a full disk say, it is tried again the next time.
            let _ = self.compact_log();
        }
        failure.map_or(Ok(freed), Err)
    }

    fn compact_log(&self) -> Result<(), Error> {
        let names: HashSet<String> =
            self.names()?.into_iter().filter_map(|name| name.into_string().ok()).collect();
        let rescues = Rescues::of(self)?;
        let mut needed: HashSet<&str> = names.iter().filter_map(|name| name.get(..ID_LENGTH)).collect();
        needed.extend(rescues.all().iter().flat_map(|rescue| &rescue.ids).map(String::as_str));
        log::replace(self.root(), |log| {
            let is_worth_it = log.is_worth_compacting();
            Ok(is_worth_it.then(|| log.compacted(|id| names.contains(id), |id| needed.contains(id))))
        })
    }

    fn remove_leftover(&self, leftover: &Leftover, log: &log::Log) -> Result<u64, Error> {
        let Leftover { path, id, is_aside } = leftover;
        let is_unlogged = |id: &&String| !log.deleted.contains_key(*id) && !self.directory_of(id).exists();
        if let Some(id) = id.as_ref().filter(is_unlogged) {
            self.log_deletion(id, false)?;
        }
        let mut used = DiskUse::default();
        used.add(path);
        if *is_aside {
            remove(path)?;
        } else if let Ok(Some(_claimed)) = usage::claim(path, usage::TRIES)
            && let Some(aside) = set_aside(path)?
        {
            remove(&aside)?;
        } else {
            return Ok(0);
        }
        Ok(used.freed())
    }

    /// What killed deletions have left: directories that were set aside, and rescues of nothing but deleted recordings.
    ///
    /// # Errors
    /// The library can't be read.
    pub fn leftovers(&self, log: &log::Log) -> Result<Vec<Leftover>, Error> {
        let mut found = Vec::new();
        for name in self.names()? {
            let Some(name) = name.to_str().and_then(|name| name.strip_suffix(DELETED)) else { continue };
            if is_id(name) || is_companion(name) {
                let id = is_id(name).then(|| name.to_owned());
                found.push(Leftover { path: aside_of(&self.directory_of(name)), id, is_aside: true });
            }
        }
        let is_gone = |id: &String| {
            let aside = aside_of(&self.directory_of(id));
            (log.deleted.contains_key(id) || aside.exists()) && !self.directory_of(id).exists()
        };
        let rescues = Rescues::of(self)?;
        let orphans = rescues.all().iter().filter(|rescue| rescue.ids.iter().all(is_gone));
        found.extend(orphans.map(|rescue| Leftover { path: rescue.path.clone(), id: None, is_aside: false }));
        Ok(found)
    }

    /// Removes the directories of recordings that were killed before they had begun.
    fn remove_unbegun(&self) -> Result<(), Error> {
        for name in self.names()?.iter().filter(|name| name.to_str().is_some_and(is_id)) {
            let path = self.snapshots().join(name);
            // A recorder that has just made it waits for the lock, and then makes it again.
            if recover::has_not_begun(&path)
                && let Ok(Some(_locked)) = open(&path).and_then(|directory| usage::claim_open(directory, 1))
                && recover::has_not_begun(&path)
                && let Some(aside) = set_aside(&path)?
            {
                remove(&aside)?;
            }
        }
        Ok(())
    }

    /// The names of what is in the directory of the snapshots; none as long as another process is still making the library.
    ///
    /// # Errors
    /// It can't be listed.
    pub fn names(&self) -> Result<Vec<OsString>, Error> {
        let directory = self.snapshots();
        let entries = match fs::read_dir(&directory) {
            Err(error) if is_absent(&error) => return Ok(Vec::new()),
            entries => entries.map_err(failed("list", &directory))?,
        };
        let names = entries.map(|entry| Ok(entry?.file_name()));
        let mut names = names.collect::<io::Result<Vec<_>>>().map_err(failed("list", &directory))?;
        names.sort();
        Ok(names)
    }

    fn log_deletion(&self, id: &str, evicted: bool) -> Result<(), Error> {
        let time = jiff::Timestamp::now().to_string();
        log::append(self.root(), &Event::Deleted(Deletion { id: id.to_owned(), time, evicted }))
    }
}

/// What a killed deletion has left.
#[derive(Debug)]
pub struct Leftover {
    /// The directory.
    pub path: PathBuf,
    /// The recording that it was, if it was one.
    id: Option<String>,
    /// Whether it has been renamed already.
    is_aside: bool,
}

impl Leftover {
    /// Whether it was the recording with this identifier.
    pub fn is_of(&self, id: &str) -> bool {
        self.id.as_deref() == Some(id)
    }
}

fn open(path: &Path) -> io::Result<File> {
    let flags = rustix::fs::OFlags::DIRECTORY | rustix::fs::OFlags::CLOEXEC | rustix::fs::OFlags::NOFOLLOW;
    Ok(File::from(rustix::fs::open(path, flags, rustix::fs::Mode::empty())?))
}

fn aside_of(path: &Path) -> PathBuf {
    let mut name = path.file_name().unwrap_or(OsStr::new("")).to_owned();
    name.push(DELETED);
    path.with_file_name(name)
}

/// Gives a directory the name of what is being deleted, and returns that; none if it is gone.
fn set_aside(path: &Path) -> Result<Option<PathBuf>, Error> {
    let aside = aside_of(path);
    // A killed deletion of another one with this identifier.
    remove(&aside)?;
    match fs::rename(path, &aside) {
        Ok(()) => Ok(Some(aside)),
        Err(error) if is_absent(&error) => Ok(None),
        Err(error) => Err(failed("rename", path)(error)),
    }
}

/// Removes a directory with all that is in it; another process may do the same.
fn remove(path: &Path) -> Result<(), Error> {
    for _ in 0..3 {
        match fs::remove_dir_all(path) {
            Err(error) if is_absent(&error) && path.exists() => {}
            Ok(()) => return Ok(()),
            Err(error) if is_absent(&error) => return Ok(()),
            Err(error) => return Err(failed("remove", path)(error)),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;
    use crate::library::{Entry, Place};
    use crate::snapshot::layout::{JOURNAL, SnapshotDir};
    use crate::snapshot::samples::{commit, commit_into, header};
    use crate::snapshot::{Header, Snapshot};

    struct Sample {
        _dir: tempfile::TempDir,
        library: Library,
    }

    impl Sample {
        fn new(ids: &[&str]) -> Sample {
            let dir = tempfile::tempdir().unwrap();
            let library =
                Library::create(&Place { root: dir.path().join("library"), instead: None }).unwrap();
            ids.iter().for_each(|id| commit(&library.directory_of(id), |_| Vec::new()));
            Sample { _dir: dir, library }
        }

        /// A rescue whose restore had these words.
        fn rescue(&self, name: &str, words: &[&str]) {
            let target = SnapshotDir::create(&self.library.directory_of(name)).unwrap();
            let words = std::iter::once(&"agent-snapshot").chain(words);
            let command = words.map(|word| word.as_bytes().to_vec()).collect();
            commit_into(target, Header { command, ..header() }, |_| Vec::new());
        }

        fn delete(&self, id: &str, evicted: bool) -> Result<u64, Obstacle> {
            Deletions::of(&self.library).unwrap().delete_batch(&[(id, evicted)]).unwrap().remove(0).unwrap()
        }

        fn names(&self) -> String {
            let names = self.library.names().unwrap();
            names.iter().map(|name| name.to_string_lossy()).collect::<Vec<_>>().join(" ")
        }
    }

    #[test]
    fn a_rescue_goes_with_the_last_of_its_recordings() {
        let sample = Sample::new(&["aaaaaaaa", "bbbbbbbb"]);
        sample.rescue("bbbbbbbb-rescue-1", &["undo", "aaaaaaaa", "bbbbbbbb"]);
        sample.rescue("bbbbbbbb-rescue-2", &["restore", "/l/bbbbbbbb", "--before"]);
        let library = &sample.library;
        assert!(sample.delete("bbbbbbbb", false).unwrap() > 0);
        assert_eq!(sample.names(), "aaaaaaaa bbbbbbbb-rescue-1");
        assert_eq!(sample.delete("bbbbbbbb", false), Err(Obstacle::Gone));
        assert!(sample.delete("aaaaaaaa", true).is_ok());
        assert_eq!(sample.names(), "");
        let log = log::read(library.root()).unwrap();
        assert!(log.deleted["aaaaaaaa"].evicted && !log.deleted["bbbbbbbb"].evicted);
    }

    #[test]
    fn one_in_use_is_no_obstacle_to_the_others_of_a_batch() {
        let sample = Sample::new(&["aaaaaaaa", "bbbbbbbb", "cccccccc"]);
        sample.rescue("cccccccc-rescue-1", &["undo", "aaaaaaaa", "cccccccc"]);
        let library = &sample.library;
        let open = Snapshot::open(&library.directory_of("bbbbbbbb")).unwrap();
        let batch = [("aaaaaaaa", false), ("bbbbbbbb", false), ("cccccccc", true)];
        let mut deletions = Deletions::of(library).unwrap();
        let deleted: Vec<_> =
            deletions.delete_batch(&batch).unwrap().into_iter().map(Result::unwrap).collect();
        assert!(deleted[0].is_ok() && deleted[2].is_ok(), "{deleted:?}");
        assert_eq!(deleted[1], Err(Obstacle::InUse));
        assert_eq!(sample.names(), "bbbbbbbb cccccccc-rescue-1");
        assert!(library.remove_leftovers().unwrap() > 0);
        assert_eq!(sample.names(), "bbbbbbbb");
        drop(open);
        let log = log::read(library.root()).unwrap();
        assert!(log.deleted["cccccccc"].evicted && !log.deleted["aaaaaaaa"].evicted);
    }

    #[test]
    fn what_is_used_stays() {
        let sample = Sample::new(&["aaaaaaaa"]);
        let library = &sample.library;
        let directory = library.directory_of("aaaaaaaa");
        let open = Snapshot::open(&directory).unwrap();
        assert_eq!(Deletions::of(library).unwrap().obstacle("aaaaaaaa").unwrap(), Some(Obstacle::InUse));
        drop(open);
        sample.rescue("aaaaaaaa-rescue-1", &["restore", "/l/aaaaaaaa", "--before"]);
        let open = Snapshot::open(&library.directory_of("aaaaaaaa-rescue-1")).unwrap();
        assert_eq!(sample.delete("aaaaaaaa", false), Err(Obstacle::InUse));
        drop(open);
        let locked = SnapshotDir::create(&directory).unwrap();
        // Nobody records it: it is being restored.
        assert_eq!(sample.delete("aaaaaaaa", false), Err(Obstacle::InUse));
        drop(locked);
        sample.rescue("aaaaaaaa-rescue-2.unfinished", &["undo", "aaaaaaaa", "bbbbbbbb"]);
        let unfinished = library.directory_of("aaaaaaaa-rescue-2.unfinished");
        assert_eq!(sample.delete("aaaaaaaa", false), Err(Obstacle::Unfinished(unfinished.clone())));
        fs::rename(unfinished, library.directory_of("aaaaaaaa-rescue-2")).unwrap();
        assert!(sample.delete("aaaaaaaa", false).is_ok());
        assert_eq!(sample.names(), "");
    }

    #[test]
    fn rescue_that_is_being_restored_stays() {
        let sample = Sample::new(&["aaaaaaaa"]);
        sample.rescue("aaaaaaaa-rescue-1", &["undo", "aaaaaaaa"]);
        let restoring = SnapshotDir::create(&sample.library.directory_of("aaaaaaaa-rescue-1")).unwrap();
        assert_eq!(sample.delete("aaaaaaaa", false), Err(Obstacle::InUse));
        drop(restoring);
        assert!(sample.delete("aaaaaaaa", false).is_ok());
    }

    #[test]
    fn interrupted_restore_to_a_time_needs_each_recording() {
        let sample = Sample::new(&["aaaaaaaa", "bbbbbbbb"]);
        let library = &sample.library;
        sample.rescue("bbbbbbbb-rescue-1.unfinished", &["restore", "--at", "2026-01-01T00:00:00Z", "f"]);
        let unfinished = library.directory_of("bbbbbbbb-rescue-1.unfinished");
        for id in ["aaaaaaaa", "bbbbbbbb"] {
            assert_eq!(sample.delete(id, false), Err(Obstacle::Unfinished(unfinished.clone())));
        }
        fs::rename(unfinished, library.directory_of("bbbbbbbb-rescue-1")).unwrap();
        assert!(sample.delete("aaaaaaaa", false).is_ok());
        assert_eq!(sample.names(), "bbbbbbbb bbbbbbbb-rescue-1");
    }

    #[test]
    fn what_a_killed_deletion_has_left_is_removed() {
        let sample = Sample::new(&["aaaaaaaa", "bbbbbbbb", "cccccccc"]);
        let library = &sample.library;
        // Killed before its line, with a rescue; and one with a line whose rescue is left.
        sample.rescue("aaaaaaaa-rescue-1", &["restore", "/l/aaaaaaaa", "--before"]);
        sample.rescue("bbbbbbbb-rescue-1", &["restore", "/l/bbbbbbbb", "--before"]);
        sample.rescue("cccccccc-rescue-1", &["restore", "/l/cccccccc", "--before"]);
        // Of this one, nothing says that we have deleted it.
        sample.rescue("dddddddd-rescue-1", &["restore", "/l/dddddddd", "--before"]);
        set_aside(&library.directory_of("aaaaaaaa")).unwrap();
        set_aside(&library.directory_of("bbbbbbbb")).unwrap();
        library.log_deletion("bbbbbbbb", false).unwrap();
        fs::create_dir(library.directory_of("eeeeeeee")).unwrap();
        // Killed between the creation of its journal and the first bytes in that; and with a journal that can't be read.
        for id in ["gggggggg", "hhhhhhhh"] {
            let killed = SnapshotDir::create(&library.directory_of(id)).unwrap();
            killed.create_journal().unwrap();
            killed.temporary_file().unwrap();
        }
        fs::write(library.directory_of("hhhhhhhh").join(JOURNAL), "damaged").unwrap();
        // Without a journal, a copy may be all that is left of a file.
        let killed = SnapshotDir::create(&library.directory_of("iiiiiiii")).unwrap();
        killed.temporary_file().unwrap().1.write_all(b"content").unwrap();
        drop(killed);
        fs::create_dir(library.directory_of("ffffffff")).unwrap();
        let _recorder = SnapshotDir::create(&library.directory_of("ffffffff")).unwrap();
        assert!(library.remove_leftovers().unwrap() > 0);
        assert_eq!(sample.names(), "cccccccc cccccccc-rescue-1 dddddddd-rescue-1 ffffffff hhhhhhhh iiiiiiii");
        assert!(log::read(library.root()).unwrap().deleted.contains_key("aaaaaaaa"));
        assert_eq!(library.remove_leftovers().unwrap(), 0);
    }

    #[test]
    fn log_forgets_what_is_long_gone() {
        let sample = Sample::new(&["zzzzzzzz", "bbbbbbbb"]);
        let root = sample.library.root();
        let entry = Entry::of(&Snapshot::open(&sample.library.directory_of("zzzzzzzz")).unwrap());
        let mut lines = Vec::new();
        let mut add = |event: &Event| {
            serde_json::to_writer(&mut lines, event).unwrap();
            lines.push(b'\n');
        };
        let letter = |digit: u8| char::from(digit - b'0' + b'a');
        let id_of = |number: u32| format!("{number:08}").bytes().map(letter).collect::<String>();
        let time = |number: u32| format!("2026-01-01T00:00:00.{number:09}Z");
        for number in 0..3000 {
            let id = id_of(number);
            add(&Event::Recorded(Entry { id: id.clone(), ..entry.clone() }));
            add(&Event::Deleted(Deletion { id, time: time(number), evicted: number == 0 }));
        }
        for id in ["zzzzzzzz", "bbbbbbbb"] {
            add(&Event::Recorded(Entry { id: id.to_owned(), ..entry.clone() }));
        }
        // Deleted once, and imported again.
        let deletion = Deletion { id: "bbbbbbbb".to_owned(), time: time(0), evicted: false };
        add(&Event::Deleted(deletion));
        // The rescue of a recording that is gone is of another one, too.
        sample.rescue("bbbbbbbb-rescue-1", &["undo", &id_of(1), "bbbbbbbb"]);
        fs::write(root.join(log::LOG), &lines).unwrap();
        let with_unknown = [&lines[..], b"{\"event\":\"later\"}\n"].concat();
        fs::write(root.join(log::LOG), &with_unknown).unwrap();
        sample.library.remove_leftovers().unwrap();
        assert!(fs::read(root.join(log::LOG)).unwrap() == with_unknown);
        fs::write(root.join(log::LOG), &lines).unwrap();
        sample.library.remove_leftovers().unwrap();
        let log = log::read(root).unwrap();
        let recorded: Vec<&str> = log.recorded.iter().map(|entry| entry.id.as_str()).collect();
        assert_eq!(recorded, [&id_of(0), "zzzzzzzz", "bbbbbbbb"]);
        let is_there = |number| log.deleted.contains_key(&id_of(number));
        assert!(is_there(0) && is_there(1) && is_there(2999));
        assert!(!is_there(2) && log.deleted.len() == 1003, "{}", log.deleted.len());
        // Little is past by now.
        let once = fs::read(root.join(log::LOG)).unwrap();
        sample.library.remove_leftovers().unwrap();
        assert!(fs::read(root.join(log::LOG)).unwrap() == once);
    }
}
