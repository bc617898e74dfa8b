//! The entries, in the directory `recall` of the library.
//!
//! `KEY/SET.set` has the paths of a set; `KEY/SET-FINGERPRINT.entry` what a run left that saw this there, and the file
//! of the same name with `.log` what it printed. Each is put in place by a rename, the entry last. The time of a set and
//! of an entry is that of their last use. Neighbours: `path_set.rs`, `entry.rs`.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use super::entry::RecalledRun;
use super::key::Key;
use super::path_set::{LivePaths, PathSet, SightDigest};
use crate::library::{Library, RECALL};

/// How many sets of paths a key has at most.
const SETS: usize = 20;
const SET: &str = "set";
const ENTRY: &str = "entry";
const LOG: &str = "log";
/// The file that says how many bytes all entries take, or somewhat more.
const SIZE: &str = "size";

/// How much may be kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StoreLimits {
    /// The bytes of all entries together.
    pub max_size: u64,
    /// Those of one entry.
    pub max_entry: u64,
}

/// When an entry may be recalled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Consistency {
    /// When everything that the command saw is as it was.
    Always,
    /// When it is younger than this, without a look.
    Younger(Duration),
}

/// The entries of a library.
#[derive(Debug, Clone)]
pub struct RecallStore {
    root: PathBuf,
    library: Library,
}

/// An entry that was found.
#[derive(Debug)]
pub struct Hit {
    /// What it keeps.
    pub entry: RecalledRun,
    /// What the command wrote.
    pub log: File,
    path: PathBuf,
    set: PathBuf,
}

/// What was found for a start.
#[derive(Debug)]
pub enum RecallAnswer {
    /// The command has seen all of this before.
    Hit(Box<Hit>),
    /// It has not; why, as a sentence, if anything is known of it at all.
    Miss(Option<String>),
}

/// What all entries come to.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Totals {
    /// How many there are.
    pub entries: u64,
    /// Of how many keys.
    pub keys: u64,
    /// Their bytes.
    pub bytes: u64,
}

/// A file with its size and the time of its last use.
#[derive(Debug)]
struct Used {
    path: PathBuf,
    at: SystemTime,
    bytes: u64,
}

impl RecallStore {
    /// The entries of `library`.
    pub fn of(library: &Library) -> RecallStore {
        RecallStore { root: library.root().join(RECALL), library: library.clone() }
    }

    /// A file without a name, for the log of an entry.
    ///
    /// # Errors
    /// The directory can't be made or written to.
    pub fn unnamed_file(&self) -> io::Result<File> {
        self.make(&self.root)?;
        let file = tempfile::tempfile_in(&self.root)?;
        file.set_permissions(fs::Permissions::from_mode(0o600))?;
        Ok(file)
    }

    fn make(&self, directory: &Path) -> io::Result<()> {
        fs::DirBuilder::new().mode(0o700).recursive(true).create(directory)
    }

    /// Looks for a run that has seen what is there now.
    ///
    /// # Errors
    /// The directory of the key can't be read.
    pub fn find(&self, key: &Key, consistency: Consistency) -> io::Result<RecallAnswer> {
        let directory = self.root.join(&key.0);
        if let Consistency::Younger(age) = consistency {
            let mut entries = used(&directory, ENTRY)?;
            entries.sort_by_key(|entry| std::cmp::Reverse(entry.at));
            let hit = entries
                .into_iter()
                .filter_map(|entry| self.open(&entry.path))
                .find(|hit| hit.is_younger(age));
            return Ok(match hit {
                Some(hit) => RecallAnswer::Hit(Box::new(hit)),
                None => RecallAnswer::Miss(Some("no run of it is younger than --ttl".to_owned())),
            });
        }
        let mut files = used(&directory, SET)?;
        files.sort_by_key(|set| std::cmp::Reverse(set.at));
        let read = |used: Used| read_json(&used.path).map(|set| (used.path, set));
        let (paths, mut sets): (Vec<PathBuf>, Vec<PathSet>) = files.into_iter().filter_map(read).unzip();
        let now = LivePaths::of(&sets);
        let mut why = None;
        for (path, set) in paths.iter().zip(&mut sets) {
            let fingerprint = now.fingerprint(set);
            let hit = self.open(&entry_path(&directory, path, &fingerprint));
            if now.teach(set) {
                let _ = write_json(path, set);
            }
            if let Some(hit) = hit {
                return Ok(RecallAnswer::Hit(Box::new(hit)));
            }
            why = why.or_else(|| {
                let different = set.first_difference(&fingerprint)?;
                Some(format!("{different} is not as it was"))
            });
        }
        Ok(RecallAnswer::Miss(
            why.or_else(|| (!paths.is_empty()).then(|| "its earlier runs saw something else".to_owned())),
        ))
    }

    /// The entry at `path`, if it is there and its recording is.
    fn open(&self, path: &Path) -> Option<Hit> {
        let entry: RecalledRun = read_json(path)?;
        let log = File::open(path.with_extension(LOG)).ok()?;
        let is_kept = crate::library::is_id(&entry.recording)
            && self.library.directory_of(&entry.recording).join(crate::snapshot::layout::MANIFEST).exists();
        let stem = path.file_stem()?.to_str()?;
        let set = path.with_file_name(stem.split_once('-')?.0).with_extension(SET);
        is_kept.then(|| Hit { entry, log, path: path.to_owned(), set })
    }

    /// Keeps an entry, and lets go of those that were not used for the longest time.
    ///
    /// # Errors
    /// It can't be written: there is no new entry then.
    pub fn put(
        &self,
        key: &Key,
        (set, fingerprint): (&PathSet, &SightDigest),
        entry: &RecalledRun,
        log: &File,
        limits: StoreLimits,
    ) -> io::Result<()> {
        self.make(&self.root)?;
        let _lock = self.lock()?;
        let directory = self.root.join(&key.0);
        self.make(&directory)?;
        let set_path = directory.join(set.name()).with_extension(SET);
        let mut set = set.clone();
        if let Some(earlier) = read_json::<PathSet>(&set_path) {
            for (watch, earlier) in set.watches.iter_mut().zip(earlier.watches) {
                watch.known = watch.known.take().or(earlier.known);
            }
        }
        write_json(&set_path, &set)?;
        let path = entry_path(&directory, &set_path, fingerprint);
        name_file(log, &path.with_extension(LOG))?;
        write_json(&path, entry)?;
        self.drop_sets(&directory);
        self.note_size(entry.size, limits.max_size)
    }

    /// Removes the sets of a key that are more than it may have, with their entries.
    fn drop_sets(&self, directory: &Path) {
        let mut sets = used(directory, SET).unwrap_or_default();
        sets.sort_by_key(|set| std::cmp::Reverse(set.at));
        for set in sets.iter().skip(SETS) {
            let name = set.path.file_stem().unwrap_or_default();
            for entry in used(directory, ENTRY).unwrap_or_default() {
                if entry
                    .path
                    .file_name()
                    .is_some_and(|file| file.as_encoded_bytes().starts_with(name.as_encoded_bytes()))
                {
                    remove_entry(&entry.path);
                }
            }
            let _ = fs::remove_file(&set.path);
        }
    }

    /// Counts `added` bytes, and lets go of entries if all take more than `max_size`: only then each is looked at.
    fn note_size(&self, added: u64, max_size: u64) -> io::Result<()> {
        let path = self.root.join(SIZE);
        let counted = fs::read_to_string(&path).ok().and_then(|text| text.trim().parse::<u64>().ok());
        let total = match counted.map(|counted| counted.saturating_add(added)) {
            Some(total) if total <= max_size => total,
            // With some room, so that the next ones need not look at each again.
            _ => self.evict(max_size - max_size / 10),
        };
        write_json(&path, &total)
    }

    /// Removes entries until the others take no more than `max_size` bytes, those first that can't be used any more, and
    /// returns what they take.
    fn evict(&self, max_size: u64) -> u64 {
        let mut entries = self.entries();
        entries.sort_by_key(|(entry, _)| std::cmp::Reverse(entry.at));
        let mut total = 0_u64;
        for (used, entry) in entries {
            let size = entry.as_ref().map_or(0, |entry| entry.size) + used.bytes;
            let is_usable = entry.is_some_and(|entry| self.library.directory_of(&entry.recording).exists());
            total += size;
            if !is_usable || total > max_size {
                remove_entry(&used.path);
                total -= size;
            }
        }
        for directory in self.keys() {
            let is_empty = used(&directory, ENTRY).is_ok_and(|entries| entries.is_empty());
            if is_empty {
                let _ = fs::remove_dir_all(&directory);
            }
        }
        total
    }

    fn keys(&self) -> Vec<PathBuf> {
        let entries = fs::read_dir(&self.root).into_iter().flatten().flatten();
        entries
            .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
            .map(|entry| entry.path())
            .collect()
    }

    fn entries(&self) -> Vec<(Used, Option<RecalledRun>)> {
        let entries =
            self.keys().into_iter().flat_map(|directory| used(&directory, ENTRY).unwrap_or_default());
        entries
            .map(|used| {
                let entry = read_json(&used.path);
                (used, entry)
            })
            .collect()
    }

    /// How much is kept.
    pub fn totals(&self) -> Totals {
        let entries = self.entries();
        let bytes =
            entries.iter().map(|(used, entry)| used.bytes + entry.as_ref().map_or(0, |entry| entry.size));
        Totals {
            entries: u64::try_from(entries.len()).unwrap_or(u64::MAX),
            keys: u64::try_from(self.keys().len()).unwrap_or(u64::MAX),
            bytes: bytes.sum(),
        }
    }

    /// Removes all entries, and says how much that was.
    ///
    /// # Errors
    /// They can't all be removed.
    pub fn clear(&self) -> io::Result<Totals> {
        if !self.root.exists() {
            return Ok(Totals::default());
        }
        let _lock = self.lock()?;
        let totals = self.totals();
        self.keys().iter().try_for_each(fs::remove_dir_all)?;
        write_json(&self.root.join(SIZE), &0_u64)?;
        Ok(totals)
    }

    /// Keeps others from changing the entries as long as the file lives.
    fn lock(&self) -> io::Result<File> {
        let file = File::options().create(true).append(true).open(self.root.join("lock"))?;
        rustix::fs::flock(&file, rustix::fs::FlockOperation::LockExclusive)?;
        Ok(file)
    }
}

impl Hit {
    /// Whether the run is younger than `age`.
    fn is_younger(&self, age: Duration) -> bool {
        let recorded: Option<jiff::Timestamp> = self.entry.recorded_at.parse().ok();
        let since = recorded.map(|at| jiff::Timestamp::now().duration_since(at));
        since.is_some_and(|since| !since.is_negative() && since.unsigned_abs() < age)
    }

    /// A path that the run looked at or changed, and that is now one of these files, by device and inode number.
    pub fn path_among(&self, files: &[(u64, u64)]) -> Option<Vec<u8>> {
        if files.is_empty() {
            return None;
        }
        let watched =
            read_json::<PathSet>(&self.set).into_iter().flat_map(|set| set.watches).map(|watch| watch.path);
        let outputs = self.entry.outputs.iter().map(|output| output.path.clone());
        watched.chain(outputs).find(|path| {
            let stat = crate::fs::lstat(path).ok().flatten();
            stat.is_some_and(|stat| files.contains(&(stat.st_dev, stat.st_ino)))
        })
    }

    /// Notes that the entry was used now.
    pub fn note_use(&self) {
        for path in [&self.path, &self.set] {
            if let Ok(file) = File::options().append(true).open(path) {
                let _ = file.set_modified(SystemTime::now());
            }
        }
    }
}

fn entry_path(directory: &Path, set: &Path, fingerprint: &SightDigest) -> PathBuf {
    let set = set.file_stem().unwrap_or_default().to_string_lossy();
    directory.join(format!("{set}-{}.{ENTRY}", fingerprint.digest))
}

/// The entry first: without it the log is nothing.
fn remove_entry(path: &Path) {
    let _ = fs::remove_file(path);
    let _ = fs::remove_file(path.with_extension(LOG));
}

/// The files in a directory with this extension; none if there is no directory.
fn used(directory: &Path, extension: &str) -> io::Result<Vec<Used>> {
    let entries = match fs::read_dir(directory) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let mut found = Vec::new();
    for entry in entries {
        let path = entry?.path();
        if path.extension().is_some_and(|found| found == extension)
            && let Ok(metadata) = path.metadata()
        {
            found.push(Used { at: metadata.modified()?, bytes: metadata.len(), path });
        }
    }
    Ok(found)
}

/// The value in a file; one that can't be read is as good as none.
fn read_json<T: serde::de::DeserializeOwned>(path: &Path) -> Option<T> {
    serde_json::from_slice(&fs::read(path).ok()?).ok()
}

/// Writes a file under a temporary name, and gives it its own when it is whole.
fn write_json(path: &Path, value: &impl serde::Serialize) -> io::Result<()> {
    let directory = path.parent().unwrap_or(Path::new("/"));
    let mut file = io::BufWriter::new(tempfile::NamedTempFile::new_in(directory)?);
    serde_json::to_writer(&mut file, value)?;
    file.flush()?;
    let file = file.into_inner().map_err(io::IntoInnerError::into_error)?;
    file.persist(path).map_err(|error| error.error)?;
    Ok(())
}

/// Gives a file without a name this one, in place of whatever has it.
fn name_file(file: &File, path: &Path) -> io::Result<()> {
    use std::os::fd::AsRawFd as _;
    let directory = path.parent().unwrap_or(Path::new("/"));
    let temporary = tempfile::Builder::new().make_in(directory, |temporary| {
        let link = format!("/proc/self/fd/{}", file.as_raw_fd());
        rustix::fs::linkat(
            rustix::fs::CWD,
            link,
            rustix::fs::CWD,
            temporary,
            rustix::fs::AtFlags::SYMLINK_FOLLOW,
        )
        .map_err(io::Error::from)
    });
    match temporary {
        Ok(temporary) => temporary.into_temp_path().persist(path).map_err(|error| error.error),
        // A file system without O_TMPFILE: it had a name, and can't get another one.
        Err(_) => {
            let mut copy = tempfile::NamedTempFile::new_in(directory)?;
            io::copy(&mut crate::fs::reopen(file)?, &mut copy)?;
            copy.persist(path).map(drop).map_err(|error| error.error)
        }
    }
}
