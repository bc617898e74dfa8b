//! Files and directories on descriptors that the command inherits: its `> log`, its `< input`.
//!
//! Their first sight is the launch. Of a file that was opened for appending only the old size counts, and a directory
//! counts as listed.

use rustix::fs::{OFlags, fcntl_getfl};

use crate::fs::{self, FileStat};
use crate::observe::capture::Threat;
use crate::observe::ledger::apply::{Change, Kind};
use crate::observe::recording::{Classification, Recording};
use crate::observe::resolve;
use crate::snapshot::{Operation, Operations};
use crate::trace::sys::{InheritedFd, Tid};

/// A regular file or a directory on a descriptor from before the launch.
#[derive(Debug, Clone)]
pub struct InheritedFile {
    number: i32,
    path: Vec<u8>,
    stat: FileStat,
    reads: bool,
    writes: bool,
    appends: bool,
}

/// What the command inherits.
#[derive(Debug, Default)]
pub struct Inherited {
    /// The descriptors that survive an exec.
    pub descriptors: Vec<InheritedFd>,
    /// Those of them that stand for a regular file or a directory with a name.
    pub files: Vec<InheritedFile>,
}

impl Inherited {
    /// Takes all inherited descriptors. Everything that this process opened itself must be close-on-exec.
    pub fn of_this_process() -> Inherited {
        let descriptors = InheritedFd::take_all();
        Inherited { files: descriptors.iter().filter_map(InheritedFile::of).collect(), descriptors }
    }

    /// Leaves out the files on standard output and standard error.
    pub fn leave_out_outputs(&mut self) {
        self.files.retain(|file| !matches!(file.number, 1 | 2));
    }
}

impl InheritedFile {
    fn of(fd: &InheritedFd) -> Option<InheritedFile> {
        let flags = fcntl_getfl(fd).ok()?;
        if flags.contains(OFlags::PATH) {
            return None;
        }
        let is_recorded = |stat: &FileStat| resolve::is_regular(stat) || resolve::is_directory(stat);
        let object = rustix::fs::fstat(fd).ok().filter(is_recorded)?;
        let link = format!("/proc/self/fd/{}", fd.number());
        let path = rustix::fs::readlink(link, Vec::new()).ok()?.into_bytes();
        let named = fs::lstat(&path).ok()??;
        if (object.st_dev, object.st_ino) != (named.st_dev, named.st_ino) {
            return None;
        }
        let mode = flags & OFlags::ACCMODE;
        Some(InheritedFile {
            number: fd.number(),
            path,
            stat: named,
            reads: mode != OFlags::WRONLY,
            writes: mode != OFlags::RDONLY,
            appends: flags.contains(OFlags::APPEND),
        })
    }
}

impl Recording {
    /// Records an inherited file, used by the command from the start.
    pub fn inherit(&mut self, command: Tid, file: &InheritedFile) {
        let process = self.processes.id(command);
        let classification = if file.writes {
            self.classify_for_write(file.path.clone(), Some(&file.stat))
        } else {
            self.classify(file.path.clone(), Some(&file.stat))
        };
        if file.writes {
            self.repositories.note_change(&file.path);
        }
        let name = match classification {
            Classification::Recorded(name) => name,
            Classification::Suppressed(rule, topmost) if file.writes => {
                // Whoever started the recording has chosen the file: it is counted, and not listed as a change.
                return self.policy.suppressed.write_inherited(rule, &topmost);
            }
            Classification::Suppressed(rule, _) => return self.policy.suppressed.read(rule),
            Classification::Own => return,
        };
        let is_directory = resolve::is_directory(&file.stat);
        let mut operations = Operations::NONE;
        if file.reads {
            operations = operations.with(if is_directory { Operation::Directory } else { Operation::Read });
        }
        if file.writes {
            self.ask_git(name, &file.path, Some(&file.stat));
            operations = operations.with(Operation::Write);
            self.protector().take_attributes(&file.path, &file.stat);
        }
        let kind = match (file.writes, file.appends) {
            (false, _) => Kind::Used,
            // What may be mapped may be changed without a call.
            (true, true) if !file.reads => Kind::Appended,
            (true, _) => Kind::Written,
        };
        match kind {
            Kind::Written => {
                if let Some(protected) = self.protector().protect(&file.path, &file.stat, Threat::Overwrite) {
                    self.protector().keep(protected);
                }
            }
            // Before it is overwritten or removed, its bytes are taken.
            Kind::Appended => {}
            _ if is_directory => self.list_entries(name),
            _ => self.protector().read_content(name, &file.path, &file.stat),
        }
        self.apply(Change { name: Some(name), stat: Some(&file.stat), kind, operations, by: process });
        let known = self.ledger.names.get_mut(name);
        (known.inherited, known.changed_by_name) = (true, false);
        if file.writes {
            self.journal_written(name, process);
        }
    }
}
