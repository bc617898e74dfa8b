//! The files that processes may change without a call that is seen: those that are open for writing, and
//! those that are mapped.
//!
//! A change through a descriptor is attributed to the call that opened it. Neighbour: `examine.rs` examines
//! such a file at the end of a recording, whatever its interim state was.

use std::collections::HashSet;
use std::fs::{DirEntry, read, read_dir, read_to_string};
use std::io;
use std::path::Path;

use rustix::fs::{AtFlags, CWD, StatxFlags, makedev, statx};

use crate::trace::proc_fd;
use crate::trace::proc_status::has_ended;
use crate::trace::sys::Tid;

/// The files that some processes may change.
#[derive(Debug)]
pub(in crate::observe) enum OpenFiles {
    /// These.
    Known(Found),
    /// Any: the kernel does not tell what some process has open.
    Any,
}

/// Open and mapped files.
#[derive(Debug, Default)]
pub(in crate::observe) struct Found {
    /// Device and inode numbers of both.
    identities: HashSet<(u64, u64), foldhash::fast::RandomState>,
    /// Paths of what is mapped: the device there may not be the one that lstat(2) tells (btrfs, overlays).
    mapped: HashSet<Vec<u8>, foldhash::fast::RandomState>,
}

impl OpenFiles {
    /// The files that these processes may change. No filesystem is asked, since they may serve one.
    pub fn of(processes: impl Iterator<Item = Tid>) -> OpenFiles {
        let mut found = Found::default();
        for process in processes {
            let directory = format!("/proc/{process}");
            // One that has ended meanwhile has nothing open.
            if found.add(Path::new(&directory)).is_err() && Path::new(&directory).exists() {
                return OpenFiles::Any;
            }
        }
        OpenFiles::Known(found)
    }

    /// No file at all.
    pub fn none() -> OpenFiles {
        OpenFiles::Known(Found::default())
    }

    /// Whether the file at `path` with these numbers may be one of them.
    pub fn may_contain(&self, path: &[u8], identity: (u64, u64)) -> bool {
        match self {
            OpenFiles::Known(found) => found.identities.contains(&identity) || found.mapped.contains(path),
            OpenFiles::Any => true,
        }
    }
}

impl Found {
    fn add(&mut self, process: &Path) -> io::Result<()> {
        let mut has_mappings = false;
        // Each thread may have a table of descriptors of its own (unshare(2)).
        for thread in read_dir(process.join("task"))? {
            let thread = thread?;
            match self.add_thread(&thread.path(), !has_mappings) {
                Ok(mapped) => has_mappings |= mapped,
                // It changes nothing any more.
                Err(_) if tid_of(&thread).is_some_and(has_ended) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Adds what a thread has open, and what its process has mapped, if that is wanted; whether it was told that.
    fn add_thread(&mut self, thread: &Path, wants_mappings: bool) -> io::Result<bool> {
        // A descriptor may be gone since.
        for entry in read_dir(thread.join("fd"))?.flatten() {
            let Ok(info) = read_to_string(thread.join("fdinfo").join(entry.file_name())) else {
                continue;
            };
            if !is_writable(&info) {
                continue;
            }
            let flags = AtFlags::STATX_DONT_SYNC;
            let Ok(file) = statx(CWD, entry.path(), flags, StatxFlags::INO) else { continue };
            self.identities.insert((makedev(file.stx_dev_major, file.stx_dev_minor), file.stx_ino));
        }
        let mappings = if wants_mappings { read(thread.join("maps"))? } else { Vec::new() };
        mappings.split(|byte| *byte == b'\n').for_each(|line| self.add_mapping(line));
        Ok(!mappings.is_empty())
    }

    /// Adds the file of a mapping, "address perms offset dev inode path" (proc_pid_maps(5)), if it is shared.
    fn add_mapping(&mut self, line: &[u8]) {
        let fields = String::from_utf8_lossy(line);
        let mut fields = fields.split_ascii_whitespace().skip(1);
        let (Some(permissions), Some(device), Some(inode)) = (fields.next(), fields.nth(1), fields.next())
        else {
            return;
        };
        if !permissions.ends_with('s') {
            return;
        }
        let device = device.split_once(':').and_then(|(major, minor)| {
            Some(makedev(u32::from_str_radix(major, 16).ok()?, u32::from_str_radix(minor, 16).ok()?))
        });
        if let (Some(device), Ok(inode)) = (device, inode.parse()) {
            self.identities.insert((device, inode));
        }
        if let Some(path) = line.iter().position(|byte| *byte == b'/') {
            self.mapped.insert(line[path..].to_vec());
        }
    }
}

/// The thread whose directory in procfs this is.
fn tid_of(directory: &DirEntry) -> Option<Tid> {
    directory.file_name().to_str()?.parse().ok().map(Tid)
}

/// Whether the flags of a descriptor, as proc_pid_fdinfo(5) shows them, allow writing.
fn is_writable(info: &str) -> bool {
    proc_fd::flags(info).is_none_or(|flags| flags & libc::O_ACCMODE != libc::O_RDONLY)
}

#[cfg(test)]
mod tests {
    use std::fs::OpenOptions;
    use std::os::unix::fs::MetadataExt as _;
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    #[test]
    fn files_that_are_open_for_writing_are_found() {
        let directory = tempfile::tempdir().unwrap();
        let paths = ["read", "written", "appended", "both"].map(|name| directory.path().join(name));
        for path in &paths {
            std::fs::write(path, "").unwrap();
        }
        let [read, written, appended, both] = &paths;
        let mut options = OpenOptions::new();
        let _open = [
            options.read(true).open(read).unwrap(),
            OpenOptions::new().write(true).open(written).unwrap(),
            OpenOptions::new().append(true).open(appended).unwrap(),
            options.write(true).open(both).unwrap(),
        ];
        // A process that has ended has nothing open.
        let processes = [Tid(std::process::id().cast_signed()), Tid(i32::MAX)];
        let files = OpenFiles::of(processes.into_iter());
        assert!(matches!(files, OpenFiles::Known(_)));
        let found = paths.each_ref().map(|path| {
            let metadata = path.metadata().unwrap();
            files.may_contain(b"/", (metadata.dev(), metadata.ino()))
        });
        assert_eq!(found, [false, true, true, true]);
    }

    #[test]
    fn threads_that_end_meanwhile_have_nothing_open() {
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    std::thread::scope(|scope| drop(scope.spawn(|| {})));
                }
            });
            let this = Tid(std::process::id().cast_signed());
            let all_known =
                (0..500).all(|_| matches!(OpenFiles::of([this].into_iter()), OpenFiles::Known(_)));
            done.store(true, Ordering::Relaxed);
            assert!(all_known);
        });
    }

    #[test]
    fn files_that_are_mapped_shared_are_found() {
        let mut found = Found::default();
        found.add_mapping(b"7f00-7f01 rw-s 00000000 fd:01 77                /a b");
        found.add_mapping(b"7f01-7f02 r--p 00000000 fd:01 78                /c");
        found.add_mapping(b"7f02-7f03 rw-p 00000000 00:00 0 ");
        found.add_mapping(b"");
        assert_eq!(found.identities.iter().copied().collect::<Vec<_>>(), [(makedev(0xfd, 1), 77)]);
        assert!(OpenFiles::Known(found).may_contain(b"/a b", (1, 2)));
    }
}
