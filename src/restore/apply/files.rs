//! New regular files: made under their temporary names on several threads.
//!
//! Neighbour: `nodes.rs` puts them into their places.

use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::OwnedFd;

use super::{Applier, ApplyContext, BATCH, BATCH_BYTES, PreparedNode, dentry, source};
use crate::fs;
use crate::parallel;
use crate::restore::check::UnnamedFiles;
use crate::restore::disk::{Unsynced, remove_temporary, temporary};
use crate::restore::error::{Error, failed_at};
use crate::restore::journal::{JournalEntry, PathText};
use crate::restore::node::{self, Shortfall};
use crate::restore::plan::PlanInput;
use crate::restore::root::{Dentry, Handle, Root};
use crate::snapshot::compare::state;
use crate::snapshot::source::Contents;
use crate::snapshot::{self, live};

/// A regular file that is to be made.
#[derive(Debug, Clone, Copy)]
pub(super) struct NewFile {
    pub record: usize,
    /// Whether it gets the content that is at its path now, not that of the snapshot.
    pub own_content: bool,
    /// Whether a directory has to be emptied before its place can be taken.
    pub waits: bool,
}

/// What the threads that make files share.
struct FileMaker<'a> {
    input: &'a PlanInput<'a>,
    root: &'a Root,
    contents: &'a Contents<'a>,
    unnamed: &'a UnnamedFiles,
    /// The identifier in temporary names.
    id: &'a str,
    unsynced: &'a Unsynced,
}

impl Applier<'_, '_, '_> {
    /// Queues a regular file to be made and put into its place.
    pub(super) fn add_file(&mut self, file: NewFile) -> Result<(), Error> {
        self.new_bytes += self.wanted(file.record).map_or(0, |wanted| wanted.size);
        self.new_files.push(file);
        if self.new_files.len() >= BATCH || self.new_bytes >= BATCH_BYTES {
            self.place_prepared()?;
        }
        Ok(())
    }

    /// Makes the queued files under their temporary names, with content and attributes.
    pub(super) fn make_files(&mut self) -> Result<(), Error> {
        self.new_bytes = 0;
        let files = std::mem::take(&mut self.new_files);
        for file in &files {
            self.log(&JournalEntry::Temporary { path: PathText(self.path(file.record).to_vec()) })?;
        }
        let context = self.context;
        let ApplyContext { input, root, contents, unnamed, journal, .. } = context;
        let maker = FileMaker { input, root, contents, unnamed, id: journal.id(), unsynced: &self.unsynced };
        let made = parallel::map_contents(&files, &|| {}, |file| maker.make(*file));
        let mut failure = None;
        for (file, made) in files.into_iter().zip(made) {
            match made {
                Ok((prepared, shortfalls)) => {
                    let path = &context.input.files[file.record].path;
                    let shortfalls = shortfalls.into_iter().map(|one| (path.clone(), one));
                    self.done.shortfalls.extend(shortfalls);
                    self.enqueue(prepared, file.waits);
                }
                Err(error) => failure = failure.or(Some(error)),
            }
        }
        failure.map_or(Ok(()), Err)
    }
}

impl FileMaker<'_> {
    /// Makes a file under its temporary name, and says what could not be given to it.
    fn make(
        &self,
        NewFile { record, own_content, .. }: NewFile,
    ) -> Result<(PreparedNode, Vec<Shortfall>), Error> {
        let path = &self.input.files[record].path;
        let dentry = dentry(self.root, path)?;
        let temporary = &dentry.sibling(&temporary(self.id, dentry.name()));
        let written = self.unnamed.name(record, temporary);
        let is_written = written.is_some();
        let mut file = written
            .map_or_else(|| node::new_file(temporary), Ok)
            .map_err(failed_at("create a file beside", path))?;
        let made = || {
            if own_content {
                copy(&dentry, &file).map_err(failed_at("copy", path))?;
            } else if !is_written {
                write_content(self.input, self.contents, record, &mut file)?;
            }
            let handle = Handle::new(OwnedFd::from(file)).map_err(failed_at("stat", path))?;
            let prepared = PreparedNode { record, inode: handle.inode() };
            let shortfalls = match state(&self.input.files[record], self.input.wanted).present() {
                Some(wanted) => node::attributes_of_new(wanted, self.input.policy, temporary)
                    .and_then(|attributes| attributes.give(&handle))
                    .map_err(failed_at("set the attributes of", path))?,
                None => Vec::new(),
            };
            self.unsynced.add(File::from(handle.into_fd())).map_err(failed_at("sync", path))?;
            Ok((prepared, shortfalls))
        };
        made().inspect_err(|_| {
            // The error is reported, and the journal has the name.
            let _ = remove_temporary(temporary);
        })
    }
}

/// Copies the regular file at `dentry`.
fn copy(dentry: &Dentry, to: &File) -> io::Result<()> {
    let from = fs::open_regular(&dentry.proc_path())?;
    let size = from.metadata()?.len();
    live::copy_keeping_holes(&from, to, size).map(drop)
}

/// Writes the wanted content of a record into an empty file.
pub(super) fn write_content(
    input: &PlanInput,
    contents: &Contents,
    record: usize,
    file: &mut File,
) -> Result<(), Error> {
    let path = &input.files[record].path;
    if state(&input.files[record], input.wanted).present().is_none_or(|wanted| wanted.size == 0) {
        return Ok(());
    }
    if let Some(content) = input.replaced.get(&record) {
        return file.write_all(content).map_err(failed_at("write", path));
    }
    let written = contents.copy_to_file(source(input, record), input.wanted, file);
    written.map(drop).map_err(|error| match error {
        snapshot::Error::Sink(error) => failed_at("write", path)(error),
        error => failed_at("get the content of", path)(io::Error::other(error)),
    })
}
