//! Builds a recorded state as a tree of its own: each path under a new or empty directory.
//!
//! Files are independent copies, never links to live ones, and no live file is touched. Neighbours:
//! `make.rs` makes the nodes, `snapshot::source` has the contents.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Write as _};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use rustix::fs::{AtFlags, Mode};

use super::error::{Error, failed_at};
use super::make::{self, Attributes, Policy, Shortfall};
use super::parallel::Tick;
use super::place::{Place, Spot};
use crate::snapshot::blobs::Side;
use crate::snapshot::compare::state;
use crate::snapshot::source::{Contents, Unavailable};
use crate::snapshot::{self, FileRecord, FileType, Present, printable};

/// Why a path of the state is not in the tree.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Skipped {
    /// Its content was never needed by the command, so it was not recorded.
    #[error("its content was not recorded, since the command did not use it")]
    NotRecorded,
    /// A device is made on request only, and by who may.
    #[error("it is a device")]
    Device,
    /// No recording has what is in a repository's own directory, where Git would run it.
    #[error("it is inside a repository's own directory")]
    Repository,
    /// Its content is unavailable.
    #[error("{0}")]
    Unavailable(Unavailable),
}

/// What was built.
#[derive(Debug, Default)]
pub struct Built {
    /// Regular files.
    pub files: usize,
    /// Directories of the record.
    pub directories: usize,
    /// Symbolic links, FIFOs, sockets and devices.
    pub others: usize,
    /// Bytes of content.
    pub bytes: u64,
    /// Paths of the state that are not in the tree.
    pub skipped: Vec<(Vec<u8>, Skipped)>,
    /// What could not be given to a path.
    pub shortfalls: Vec<(Vec<u8>, Shortfall)>,
}

/// What to build.
pub struct Plan<'a> {
    side: Side,
    policy: &'a Policy,
    /// What exists in the state and can be made.
    records: Vec<&'a FileRecord>,
    skipped: Vec<(Vec<u8>, Skipped)>,
}

/// Finds what of `records`, sorted by path bytes, there is to build; what has no content is skipped.
pub fn plan<'a, 's: 'a>(
    records: impl Iterator<Item = &'s FileRecord>,
    side: Side,
    policy: &'a Policy,
    contents: &Contents,
) -> Plan<'a> {
    let mut plan = Plan { side, policy, records: Vec::new(), skipped: Vec::new() };
    for record in records {
        let Some(present) = state(record, side).present() else { continue };
        let why = match present.file_type {
            _ if record.path.split(|byte| *byte == b'/').any(|name| name == b".git") => {
                Some(Skipped::Repository)
            }
            FileType::CharDevice | FileType::BlockDevice if !policy.privileges => Some(Skipped::Device),
            FileType::File if present.size > 0 => match contents.check(record, side) {
                Ok(()) => None,
                Err(Unavailable::NotRecorded) => Some(Skipped::NotRecorded),
                Err(why) => Some(Skipped::Unavailable(why)),
            },
            _ => None,
        };
        match why {
            None => plan.records.push(record),
            Some(why) => plan.skipped.push((record.path.clone(), why)),
        }
    }
    plan
}

impl Plan<'_> {
    /// How many paths there are to make.
    pub fn len(&self) -> usize {
        self.records.len()
    }

    /// Whether there is nothing to make.
    pub fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    /// Builds it under `dir`, which is made with its parents where it is not there.
    pub fn build(self, dir: &Path, contents: &Contents, tick: Tick<'_>) -> Result<Built, Error> {
        let name = dir.as_os_str().as_bytes();
        std::fs::create_dir_all(dir).map_err(failed_at("create", name))?;
        if std::fs::read_dir(dir).map_err(failed_at("list", name))?.next().is_some() {
            return Err(Error::NotEmpty(printable(name).into_owned()));
        }
        let place = Place::at(dir).map_err(failed_at("open", name))?;
        let mut builder =
            Builder { place, plan: &self, contents, links: HashMap::new(), built: Built::default() };
        for record in &self.records {
            if let Some(present) = state(record, self.side).present() {
                builder.make(record, present)?;
            }
            tick();
        }
        // Last, and from the leaves up: what is made in a directory changes its times and needs its
        // permissions.
        for record in self.records.iter().rev() {
            let present = state(record, self.side).present();
            if let Some(present) = present.filter(|present| present.file_type == FileType::Directory) {
                builder.finish_directory(record, present)?;
            }
        }
        let mut built = builder.built;
        built.skipped.extend(self.skipped.iter().cloned());
        built.skipped.sort_by(|one, other| one.0.cmp(&other.0));
        Ok(built)
    }
}

struct Builder<'a, 's> {
    place: Place,
    plan: &'a Plan<'a>,
    contents: &'a Contents<'s>,
    /// The first name of each file that had several.
    links: HashMap<(u64, u64), Spot>,
    built: Built,
}

impl Builder<'_, '_> {
    fn make(&mut self, record: &FileRecord, present: &Present) -> Result<(), Error> {
        let path = &record.path;
        if path == b"/" {
            return Ok(());
        }
        let spot = self.spot(path)?;
        match present.file_type {
            FileType::File => self.make_file(&spot, record, present),
            FileType::Directory => {
                self.built.directories += 1;
                match make::new_node(&spot, present) {
                    // Made already, as the parent of nothing that sorts before it.
                    Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
                    made => made.map_err(failed_at("create", path)),
                }
            }
            _ => {
                make::new_node(&spot, present).map_err(failed_at("create", path))?;
                self.built.others += 1;
                self.give(&spot, path, present)
            }
        }
    }

    fn make_file(&mut self, spot: &Spot, record: &FileRecord, present: &Present) -> Result<(), Error> {
        let path = &record.path;
        let inode = (present.dev, present.ino);
        if present.nlink > 1
            && let Some(first) = self.links.get(&inode)
        {
            self.built.files += 1;
            let flags = AtFlags::empty();
            return rustix::fs::linkat(first.parent(), first.name(), spot.parent(), spot.name(), flags)
                .map_err(|error| failed_at("link", path)(error.into()));
        }
        let mut file = make::new_file(spot).map_err(failed_at("create", path))?;
        match write_content(self.contents, record, self.plan.side, &mut file) {
            Ok(bytes) => self.built.bytes += bytes,
            Err(snapshot::Error::Unavailable(why)) => {
                self.built.skipped.push((path.clone(), Skipped::Unavailable(why)));
                let removed = rustix::fs::unlinkat(spot.parent(), spot.name(), AtFlags::empty());
                return removed.map_err(|error| failed_at("remove", path)(error.into()));
            }
            Err(snapshot::Error::Sink(error)) => return Err(failed_at("write", path)(error)),
            Err(error) => return Err(error.into()),
        }
        self.built.files += 1;
        self.give(spot, path, present)?;
        if present.nlink > 1 {
            self.links.insert(inode, spot.clone());
        }
        Ok(())
    }

    fn finish_directory(&mut self, record: &FileRecord, present: &Present) -> Result<(), Error> {
        if record.path == b"/" {
            return Ok(());
        }
        let spot = self.spot(&record.path)?;
        self.give(&spot, &record.path, present)
    }

    fn give(&mut self, spot: &Spot, path: &[u8], present: &Present) -> Result<(), Error> {
        let held = spot.hold().map_err(failed_at("open", path))?;
        let gone = || failed_at("open", path)(io::ErrorKind::NotFound.into());
        let shortfalls = Attributes::all(present, self.plan.policy)
            .give(&held.ok_or_else(gone)?)
            .map_err(failed_at("set the attributes of", path))?;
        self.built.shortfalls.extend(shortfalls.into_iter().map(|one| (path.to_vec(), one)));
        Ok(())
    }

    /// The place of `path`, whose parent directories are made where no record made them.
    fn spot(&self, path: &[u8]) -> Result<Spot, Error> {
        let spot = self.place.with_parents(path, Mode::from_raw_mode(0o777), &mut |_| {});
        spot.map_err(failed_at("open the parent of", path))
    }
}

/// Writes the content of `record` on `side` into an empty file.
fn write_content(
    contents: &Contents,
    record: &FileRecord,
    side: Side,
    file: &mut File,
) -> Result<u64, snapshot::Error> {
    if state(record, side).present().is_none_or(|present| present.size == 0) {
        return Ok(0);
    }
    let bytes = contents.copy_to_file(record, side, file)?;
    file.flush().map_err(snapshot::Error::Sink)?;
    Ok(bytes)
}
