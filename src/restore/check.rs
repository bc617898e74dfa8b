//! Checks every content that a plan needs, before anything changes. A large one is written to the disk on the way.
//!
//! The file that it is written to has no name, so that nothing is left of it where the restore goes no further or is
//! killed. Neighbours: `run.rs` checks between the plan and the rescue; `apply/files.rs` gives the files their names.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd as _;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use rustix::fs::{AtFlags, CWD, Mode, OFlags};
use rustix::process::{Resource, getrlimit};

use super::apply::source;
use super::disk::begin_writing;
use super::error::{Error, failed};
use super::plan::{Action, PlanInput, RestorePlan, Step, needs_content};
use super::request::RestoreProgress;
use super::root::{Dentry, ParentLookup, Root, parent};
use crate::parallel;
use crate::snapshot::compare::state;
use crate::snapshot::source::{Contents, Unavailable};
use crate::snapshot::{self, FileType};

/// From this size on a content is written where it is checked: to read a smaller one twice costs little.
const LARGE: u64 = 1 << 20;
/// At most as many files without a name are open at once; fewer where the limit of open files is low.
const MOST_FILES: u64 = 4096;

/// New files with their content and without a name, by the record.
#[derive(Debug, Default)]
pub struct UnnamedFiles(Mutex<HashMap<usize, File>>);

impl UnnamedFiles {
    /// The file of `record`, with the name of `dentry`; none if there is none, or it can't get that name.
    pub fn name(&self, record: usize, dentry: &Dentry) -> Option<File> {
        let file = self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(&record)?;
        // AT_EMPTY_PATH would need a capability (linkat(2)), the path through /proc does not.
        let path = format!("/proc/self/fd/{}", file.as_raw_fd());
        let flags = AtFlags::SYMLINK_FOLLOW;
        rustix::fs::linkat(CWD, path, dentry.parent(), dentry.name(), flags).ok().map(|()| file)
    }
}

/// What came of the check.
#[derive(Debug)]
pub struct Checked {
    /// The contents that are unavailable, by path.
    pub unavailable: Vec<(Vec<u8>, Unavailable)>,
    /// What was written on the way.
    pub files: UnnamedFiles,
}

/// Reads all content that the plan needs.
pub fn check_contents(
    input: &PlanInput,
    plan: &RestorePlan,
    contents: &Contents,
    root: &Root,
    progress: &dyn RestoreProgress,
) -> Result<Checked, Error> {
    let is_needed = |step: &&Step| needs_content(input, step.record, &step.action);
    let needed: Vec<&Step> = plan.steps.iter().filter(is_needed).collect();
    let checker =
        Checker { input, contents, root, reserve: reserve(input, plan), slots: AtomicU64::new(slots()) };
    progress.start("check", needed.len());
    let checked = parallel::map_contents(&needed, &|| progress.tick(), |step| checker.check(step));
    progress.end();
    let (mut unavailable, mut files) = (Vec::new(), HashMap::new());
    for (step, checked) in needed.into_iter().zip(checked) {
        match checked {
            Ok(file) => files.extend(file.map(|file| (step.record, file))),
            Err(snapshot::Error::Unavailable(why)) => {
                unavailable.push((source(input, step.record).path.clone(), why));
            }
            Err(snapshot::Error::Sink(error)) => return Err(failed("check the content")(error)),
            Err(error) => return Err(error.into()),
        }
    }
    Ok(Checked { unavailable, files: UnnamedFiles(Mutex::new(files)) })
}

/// The room that everything else of the restore may need on a filesystem: for the rescue, and for new files.
fn reserve(input: &PlanInput, plan: &RestorePlan) -> u64 {
    let sizes = plan.steps.iter().map(|step| {
        let live = input.inspections.get(&step.record).and_then(|found| found.as_ref().ok()?.live.as_ref());
        let wanted = state(&input.files[step.record], input.wanted).present();
        let size = |at: &snapshot::Present| if at.file_type == FileType::File { at.size } else { 0 };
        live.map_or(0, size).saturating_add(wanted.map_or(0, size))
    });
    sizes.fold(0, u64::saturating_add)
}

/// How many files may be open: half of those that the limit still allows.
fn slots() -> u64 {
    let open = std::fs::read_dir("/proc/self/fd").map_or(0, |entries| entries.fold(0, |count, _| count + 1));
    let free = |limit: u64| limit.saturating_sub(open) / 2;
    getrlimit(Resource::Nofile).current.map_or(MOST_FILES, |limit| free(limit).min(MOST_FILES))
}

struct Checker<'a> {
    input: &'a PlanInput<'a>,
    contents: &'a Contents<'a>,
    root: &'a Root,
    reserve: u64,
    /// How many more files may be open.
    slots: AtomicU64,
}

impl Checker<'_> {
    /// Reads the content for `step`; returns the file that has it on the disk, if it was written to one.
    fn check(&self, step: &Step) -> Result<Option<File>, snapshot::Error> {
        let (record, wanted) = (source(self.input, step.record), self.input.wanted);
        if let Some(file) = self.file(step) {
            match self.contents.copy_to_file(record, wanted, &file) {
                Ok(_) => {
                    // While the next content is read; the file is flushed when it has its attributes.
                    begin_writing(&file);
                    return Ok(Some(file));
                }
                // Where it is written with its name, that fails, too, or there is room by then.
                Err(snapshot::Error::Sink(_)) => {}
                Err(error) => return Err(error),
            }
        }
        self.contents.prove(record, wanted).map(|_| None)
    }

    /// An empty file without a name on the filesystem of the path of `step`, if its content is large enough and there
    /// is plenty of room.
    fn file(&self, step: &Step) -> Option<File> {
        let record = &self.input.files[step.record];
        let size = state(record, self.input.wanted).present().map_or(0, |wanted| wanted.size);
        let is_new = matches!(step.action, Action::File { in_place: false, .. });
        if !is_new || size < LARGE {
            return None;
        }
        let take = |slots: u64| slots.checked_sub(1);
        self.slots.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).ok()?;
        let file = self.unnamed(&record.path).ok().flatten()?;
        let free = rustix::fs::fstatvfs(&file).ok()?;
        let needed = size.saturating_add(self.reserve);
        (free.f_bavail.saturating_mul(free.f_frsize) >= needed).then_some(file)
    }

    /// In the nearest directory above `path` that exists: those that are made in it inherit from it, too.
    fn unnamed(&self, path: &[u8]) -> io::Result<Option<File>> {
        let mut at = path;
        loop {
            match self.root.find(at)? {
                ParentLookup::Found(dentry) => {
                    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
                    let file = rustix::fs::openat(dentry.parent(), c".", flags, Mode::RUSR | Mode::WUSR)?;
                    return Ok(Some(File::from(file)));
                }
                ParentLookup::Missing => at = parent(at),
                ParentLookup::Blocked => return Ok(None),
            }
        }
    }
}
