//! The files that processes may change without a call that is seen: those that are open for writing, and
//! those that are mapped.
//!
//! A change through a descriptor is attributed to the call that opened it. Neighbour: `examine.rs` examines
//! such a file at the end of a recording, whatever was found for its first snapshot.

use std::collections::HashSet;
use std::fs::{read_dir, read_to_string};
use std::io;
use std::path::Path;

use crate::fs;
use crate::observe::resolve;
use crate::trace::sys::Tid;

/// Device and inode numbers of the files.
#[derive(Debug)]
pub(in crate::observe) enum OpenFiles {
    /// These.
    These(HashSet<(u64, u64), foldhash::fast::RandomState>),
    /// Any: the kernel does not tell what some process has open.
    Any,
}

impl OpenFiles {
    /// The files that these processes may change.
    pub fn of(processes: impl Iterator<Item = Tid>) -> OpenFiles {
        let mut files = HashSet::default();
        for process in processes {
            let directory = format!("/proc/{process}");
            // One that has ended meanwhile has nothing open.
            if add_files(Path::new(&directory), &mut files).is_err() && Path::new(&directory).exists() {
                return OpenFiles::Any;
            }
        }
        OpenFiles::These(files)
    }

    /// Whether the file with these numbers may be one of them.
    pub fn may_hold(&self, identity: (u64, u64)) -> bool {
        match self {
            OpenFiles::These(files) => files.contains(&identity),
            OpenFiles::Any => true,
        }
    }
}

fn add_files(process: &Path, files: &mut HashSet<(u64, u64), foldhash::fast::RandomState>) -> io::Result<()> {
    // Each thread may have a table of descriptors of its own (unshare(2)).
    for thread in read_dir(process.join("task"))? {
        let thread = thread?.path();
        // A thread, or a descriptor, may be gone since.
        for entry in read_dir(thread.join("fd"))?.flatten() {
            let Ok(info) = read_to_string(thread.join("fdinfo").join(entry.file_name())) else { continue };
            let Ok(stat) = rustix::fs::stat(entry.path()) else { continue };
            if resolve::is_regular(&stat) && is_writable(&info) {
                files.insert((stat.st_dev, stat.st_ino));
            }
        }
    }
    // "address perms offset dev inode path" (proc_pid_maps(5)).
    for line in read_to_string(process.join("maps"))?.lines() {
        let mut fields = line.split_ascii_whitespace();
        if let (Some(permissions), Some(path)) = (fields.nth(1), line.find('/'))
            && permissions.as_bytes().get(3) == Some(&b's')
            && let Some(stat) = fs::lstat(&line.as_bytes()[path..]).ok().flatten()
        {
            files.insert((stat.st_dev, stat.st_ino));
        }
    }
    Ok(())
}

/// Whether the flags of a descriptor, as proc_pid_fdinfo(5) shows them, allow writing.
fn is_writable(info: &str) -> bool {
    let flags = info.lines().find_map(|line| line.strip_prefix("flags:"));
    let flags = flags.and_then(|flags| i32::from_str_radix(flags.trim(), 8).ok());
    flags.is_none_or(|flags| flags & libc::O_ACCMODE != libc::O_RDONLY)
}

#[cfg(test)]
mod tests {
    use std::fs::OpenOptions;
    use std::os::unix::fs::MetadataExt as _;

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
        assert!(matches!(files, OpenFiles::These(_)));
        let found = paths.each_ref().map(|path| {
            let metadata = path.metadata().unwrap();
            files.may_hold((metadata.dev(), metadata.ino()))
        });
        assert_eq!(found, [false, true, true, true]);
    }
}
