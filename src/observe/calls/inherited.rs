//! Files and directories on descriptors that the command inherits: its `> log`, its `< input`.
//!
//! Their first sight is the launch. Of a file that was opened for appending only the old size counts, and a directory
//! counts as listed.

use rustix::fs::{OFlags, fcntl_getfl};

use crate::fs::{self, FileStat};
use crate::observe::capture::Threat;
use crate::observe::ledger::apply::{Change, Kind};
use crate::observe::ledger::now_us;
use crate::observe::mounts::ServedDevices;
use crate::observe::recording::{Classification, Recording};
use crate::observe::resolve;
use crate::snapshot::{Operation, Operations, Stat, WarningKind};
use crate::trace::proc_fd;
use crate::trace::sys::{InheritedFd, Tid};

/// Up to this size, the old bytes are kept of a file that the command itself has opened for appending.
const COPIED: i64 = 1 << 20;

/// A regular file or a directory on a descriptor from before the launch.
#[derive(Debug, Clone)]
pub struct InheritedFile {
    number: i32,
    path: Vec<u8>,
    stat: FileStat,
    reads: bool,
    writes: bool,
    appends: bool,
    /// Whether the command itself may have opened it, before its recording began.
    is_own: bool,
    /// Whether that path was removed, while another hard link remains, whose path is not known.
    has_unknown_name: bool,
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
    /// The path by which it was opened.
    pub fn path(&self) -> &[u8] {
        &self.path
    }

    /// What it was found as.
    pub fn stat(&self) -> Stat {
        (&self.stat).into()
    }

    /// Whether what it stands for is a regular file that may be written through it.
    pub fn is_written(&self) -> bool {
        self.writes && resolve::is_regular(&self.stat)
    }

    /// One that the command itself may have opened, before its recording began: a change is its own.
    pub fn as_own(self) -> InheritedFile {
        InheritedFile { is_own: true, ..self }
    }

    /// The same file by another path.
    pub fn at(self, path: Vec<u8>) -> InheritedFile {
        InheritedFile { path, ..self }
    }

    fn of(fd: &InheritedFd) -> Option<InheritedFile> {
        let flags = fcntl_getfl(fd).ok()?;
        InheritedFile::behind(&format!("/proc/self/fd/{}", fd.number()), fd.number(), flags)
    }

    fn of_process(
        process: Tid,
        number: i32,
        after_exec: bool,
        served: &ServedDevices,
    ) -> Option<InheritedFile> {
        let link = proc_fd::link(process, number);
        // Most are pipes, sockets and the like.
        let target = rustix::fs::readlink(link.as_str(), Vec::new()).ok()?;
        if !target.to_bytes().starts_with(b"/") {
            return None;
        }
        let info = std::fs::read_to_string(format!("/proc/{process}/fdinfo/{number}")).ok()?;
        let flags = proc_fd::flags(&info)?;
        if after_exec && flags & libc::O_CLOEXEC != 0 {
            return None;
        }
        let flags = OFlags::from_bits_retain(flags.cast_unsigned());
        (!served.have(&link)).then(|| InheritedFile::behind(&link, number, flags))?
    }

    /// What is behind the magic link of a descriptor.
    fn behind(link: &str, number: i32, flags: OFlags) -> Option<InheritedFile> {
        if flags.contains(OFlags::PATH) {
            return None;
        }
        let is_recorded = |stat: &FileStat| resolve::is_regular(stat) || resolve::is_directory(stat);
        let object = rustix::fs::stat(link).ok().filter(is_recorded)?;
        let mut path = rustix::fs::readlink(link, Vec::new()).ok()?.into_bytes();
        let named = fs::lstat(&path).ok().flatten();
        let is_named =
            named.is_some_and(|named| (object.st_dev, object.st_ino) == (named.st_dev, named.st_ino));
        let mode = flags & OFlags::ACCMODE;
        let writes = mode != OFlags::RDONLY;
        if !is_named {
            let removed = path.strip_suffix(b" (deleted)")?.len();
            if !writes || !resolve::is_regular(&object) || object.st_nlink == 0 {
                return None;
            }
            path.truncate(removed);
        }
        Some(InheritedFile {
            number,
            path,
            stat: object,
            reads: mode != OFlags::WRONLY,
            writes,
            appends: flags.contains(OFlags::APPEND),
            is_own: false,
            has_unknown_name: !is_named,
        })
    }
}

/// The regular files and directories that a process has open, but for those on filesystems that the tree serves;
/// `after_exec` only those that it keeps when it executes a program.
pub fn files_of(process: Tid, after_exec: bool, served: &ServedDevices) -> Vec<InheritedFile> {
    let entries = std::fs::read_dir(format!("/proc/{process}/fd")).into_iter().flatten().flatten();
    let numbers = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let mut files: Vec<_> =
        numbers.filter_map(|number| InheritedFile::of_process(process, number, after_exec, served)).collect();
    files.sort_by_key(|file| file.number);
    if !after_exec {
        files.extend(mapped_by(process, served));
    }
    files
}

/// The regular files that a process may change by a mapping, though it may have closed them.
fn mapped_by(process: Tid, served: &ServedDevices) -> Vec<InheritedFile> {
    let maps = std::fs::read(format!("/proc/{process}/maps")).unwrap_or_default();
    let mapped = maps.split(|byte| *byte == b'\n').filter_map(|line| {
        // "address perms offset dev inode path" (proc_pid_maps(5)).
        let mut fields = line.splitn(6, |byte| *byte == b' ');
        let (address, permissions) = (fields.next()?, fields.next()?);
        let path = fields.nth(3)?.trim_ascii_start();
        let is_shared = permissions.starts_with(b"rw") && permissions.ends_with(b"s");
        (is_shared && path.starts_with(b"/")).then_some((address, path))
    });
    let file_of = |(address, path): (&[u8], &[u8])| {
        let link = format!("/proc/{process}/map_files/{}", String::from_utf8_lossy(address));
        let is_served = !served.is_empty() && served.have(&link);
        let named = if is_served { None } else { fs::lstat(path).ok()?.filter(resolve::is_regular) };
        let (number, path) = (-1, path.to_vec());
        named.map(|stat| InheritedFile {
            number,
            path,
            stat,
            reads: true,
            writes: true,
            appends: false,
            is_own: false,
            has_unknown_name: false,
        })
    };
    mapped.filter_map(file_of).collect()
}

impl Recording {
    /// Records an inherited file, used by the command from the start.
    pub fn inherit(&mut self, command: Tid, file: &InheritedFile) {
        let process = self.processes.id(command);
        if file.has_unknown_name {
            self.warnings.lost(WarningKind::InheritedDescriptor, Some(process), || {
                format!(
                    "{} was removed while it was open for writing, and another hard link of it remains: what is written to \
                     it from now on is not recorded",
                    String::from_utf8_lossy(&file.path)
                )
            });
            return;
        }
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
            // What may be mapped may be changed without a call. What the command itself has opened is undone, too, unless
            // it is a long log, which would be copied for each step.
            (true, true) if !(file.reads || file.is_own && file.stat.st_size <= COPIED) => Kind::Appended,
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
        let stat = Some(&file.stat);
        let began_us = now_us();
        self.apply(Change {
            name: Some(name),
            stat,
            kind,
            operations,
            by: process,
            by_name: false,
            began_us,
        });
        let known = self.ledger.names.get_mut(name);
        (known.inherited, known.changed_by_name) = (!file.is_own, false);
        if file.writes {
            self.journal_written(name, process);
        }
    }
}
