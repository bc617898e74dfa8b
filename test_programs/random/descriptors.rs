//! Operations on descriptors that are kept while their names move.

use crate::support::legacy::*;
use std::ffi::CString;

use crate::calls;
use crate::names::{self, join};
use crate::support::{Answer, CWD};
use crate::world::{Kind, World};

#[derive(Clone)]
pub struct Descriptor {
    pub fd: c_int,
    /// Where it was when it was opened.
    pub path: Vec<u8>,
    pub directory: bool,
    pub writable: bool,
}

/// More are closed: a program has its limits.
const KEPT: usize = 12;

pub fn of(answer: Answer) -> Option<c_int> {
    answer.ok().and_then(|fd| c_int::try_from(fd).ok())
}

pub fn remember(world: &mut World, fd: c_int, path: &[u8], directory: bool, writable: bool) {
    world.descriptors.push(Descriptor { fd, path: path.to_vec(), directory, writable });
    if world.descriptors.len() > KEPT {
        let closed = world.descriptors.remove(0);
        let _ = sys!(SYS_close, closed.fd);
    }
}

impl World {
    pub fn directory_descriptor(&mut self) -> Option<(c_int, Vec<u8>)> {
        let inside = |descriptor: &&Descriptor| {
            descriptor.directory && names::below(&descriptor.path, &self.scope).is_some()
        };
        let known: Vec<_> =
            self.descriptors.iter().filter(inside).map(|known| (known.fd, known.path.clone())).collect();
        (!known.is_empty()).then(|| known[self.rng.index(known.len())].clone())
    }

    /// Writes to what is mapped and still has bytes there.
    pub fn write_mappings(&mut self) {
        for (address, length, fd) in std::mem::take(&mut self.mappings) {
            if usize::try_from(size(fd)).unwrap_or(0) < length {
                continue;
            }
            let at = self.rng.index(length);
            let value = self.rng.next().to_le_bytes()[0];
            // SAFETY: the mapping is our own, and the file still covers all of it.
            unsafe { *std::ptr::with_exposed_provenance_mut::<u8>(address + at) = value };
            self.say_of(&format!("write to the mapping of {fd}"), Ok(0));
        }
    }
}

fn size(fd: c_int) -> i64 {
    sys!(SYS_lseek, fd, 0, SEEK_END).unwrap_or(0)
}

/// Opens something and keeps it.
pub fn keep(world: &mut World) {
    let (path, flags) = match world.rng.below(4) {
        0 => (world.directory(), O_RDONLY | O_DIRECTORY),
        1 => (world.directory(), O_PATH | O_DIRECTORY),
        2 => (world.file(), O_RDWR),
        _ => (world.file(), O_RDONLY),
    };
    let spelled = world.spell(&path);
    let answer = calls::open(world, &spelled, flags, 0);
    world.say(&format!("keep({flags:#o})"), &spelled, answer);
    if let Some(fd) = of(answer) {
        remember(world, fd, &path, flags & O_DIRECTORY != 0, flags & O_ACCMODE != O_RDONLY);
    }
}

/// Does something through a descriptor that was kept.
pub fn use_one(world: &mut World) {
    if world.descriptors.is_empty() {
        return keep(world);
    }
    let at = world.rng.index(world.descriptors.len());
    let Descriptor { fd, path, directory, writable } = world.descriptors[at].clone();
    let answer = match world.rng.below(15) {
        0..5 if writable => return change_bytes(world, fd, true),
        0..2 if directory => {
            let answer = sys!(SYS_fchdir, fd);
            if answer.is_ok() {
                world.cwd = path;
            }
            ("fchdir", answer)
        }
        0..3 if directory => {
            let mut buffer = [0_u8; 4096];
            ("getdents64", sys!(SYS_getdents64, fd, buffer.as_mut_ptr(), buffer.len()))
        }
        5 | 6 => {
            let mode = world.rng.pick(&[0o755, 0o700, 0o711]);
            ("fchmod", sys!(SYS_fchmod, fd, mode))
        }
        7 if world.privileged => {
            let owner = world.rng.pick(&[0, 1234]);
            ("fchown", sys!(SYS_fchown, fd, owner, owner))
        }
        8 => {
            let seconds = i64::try_from(world.rng.below(2_000_000_000)).unwrap();
            ("futimens", sys!(SYS_utimensat, fd, 0, [seconds, 5, seconds, 6].as_ptr(), 0))
        }
        9 => ("fsetxattr", sys!(SYS_fsetxattr, fd, c"user.a", c"value", 5, 0)),
        10 => ("fremovexattr", sys!(SYS_fremovexattr, fd, c"user.a")),
        11 => {
            let mut flags: c_int = 0;
            let _ = sys!(SYS_ioctl, fd, FS_IOC_GETFLAGS, &raw mut flags);
            flags ^= 0x80; // FS_NOATIME_FL
            ("FS_IOC_SETFLAGS", sys!(SYS_ioctl, fd, FS_IOC_SETFLAGS, &raw mut flags))
        }
        12 if !directory => {
            // The same file by another descriptor, with rights of its own.
            let name = CString::new(format!("/proc/self/fd/{fd}")).unwrap();
            let answer = sys!(SYS_open, name.as_c_str(), O_RDWR | O_CLOEXEC | O_NONBLOCK);
            world.say_of(&format!("open '/proc/self/fd/{fd}'"), answer);
            if let Some(again) = of(answer) {
                change_bytes(world, again, true);
                let _ = sys!(SYS_close, again);
            }
            return;
        }
        13 => return give_name(world, fd),
        14 => {
            world.descriptors.remove(at);
            ("close", sys!(SYS_close, fd))
        }
        _ => {
            let answer = sys!(SYS_fcntl, fd, F_DUPFD_CLOEXEC, 3);
            if let Some(again) = of(answer) {
                remember(world, again, &path, directory, writable);
            }
            ("dup", answer)
        }
    };
    world.say_of(&format!("{} {fd}", answer.0), answer.1);
}

/// linkat of a descriptor.
fn give_name(world: &mut World, fd: c_int) {
    let path = world.new_path();
    let new = world.spell(&path);
    let answer = if world.privileged && world.rng.chance(40) {
        sys!(SYS_linkat, fd, c"", new.dirfd, new.path.as_c_str(), AT_EMPTY_PATH)
    } else {
        let old = CString::new(format!("/proc/self/fd/{fd}")).unwrap();
        sys!(SYS_linkat, CWD, old.as_c_str(), new.dirfd, new.path.as_c_str(), AT_SYMLINK_FOLLOW)
    };
    world.say(&format!("linkat {fd}"), &new, answer);
    if answer.is_ok() {
        world.model.insert(path, Kind::File);
    }
}

/// A file without a name, that may get one.
pub fn temporary(world: &mut World) {
    let directory = world.directory();
    let spelled = world.spell(&directory);
    let access = world.rng.pick(&[O_RDWR, O_WRONLY]);
    let answer = calls::open(world, &spelled, O_TMPFILE | access, 0o600);
    world.say("open(O_TMPFILE)", &spelled, answer);
    let Some(fd) = of(answer) else { return };
    change_bytes(world, fd, access == O_RDWR);
    if world.rng.chance(70) {
        give_name(world, fd);
    }
    if world.rng.chance(50) {
        change_bytes(world, fd, access == O_RDWR);
    }
    remember(world, fd, &join(&directory, b"unnamed"), false, true);
}

/// Changes the bytes of an open file, in one of the ways that there are.
pub fn change_bytes(world: &mut World, fd: c_int, readable: bool) {
    let content = world.rng.content();
    let (bytes, length) = (content.as_ptr(), content.len());
    let other = world.descriptors.iter().find(|other| !other.directory).map(|other| other.fd);
    let offset = i64::try_from(world.rng.below(5000)).unwrap();
    let (what, answer) = match world.rng.below(13) {
        0 | 1 => ("write", sys!(SYS_write, fd, bytes, length)),
        2 => ("pwrite64", sys!(SYS_pwrite64, fd, bytes, length, offset)),
        3 => ("writev", sys!(SYS_writev, fd, [bytes as usize, length].as_ptr(), 1)),
        4 => ("pwritev2", sys!(SYS_pwritev2, fd, [bytes as usize, length].as_ptr(), 1, offset, 0, 0)),
        5 => ("ftruncate", sys!(SYS_ftruncate, fd, offset)),
        6 => {
            let how = world.rng.pick(&[0, FALLOC_FL_ZERO_RANGE, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE]);
            ("fallocate", sys!(SYS_fallocate, fd, how, offset, 4096))
        }
        7 => match other {
            Some(other) => ("sendfile", sys!(SYS_sendfile, fd, other, &raw const offset, 5000)),
            None => return,
        },
        8 => match other {
            Some(other) => {
                let (mut from, mut to) = (0_i64, offset);
                let answer = sys!(SYS_copy_file_range, other, &raw mut from, fd, &raw mut to, 5000, 0);
                ("copy_file_range", answer)
            }
            None => return,
        },
        9 => ("splice", splice(fd, &content[..length.min(4000)])),
        10 | 11 if readable && !world.racing => return map(world, fd),
        _ => ("lseek and write", {
            let _ = sys!(SYS_lseek, fd, offset, SEEK_SET);
            sys!(SYS_write, fd, bytes, length.min(1000))
        }),
    };
    world.say_of(&format!("{what} to {fd}"), answer);
}

fn splice(fd: c_int, bytes: &[u8]) -> Answer {
    let mut pipe = [0 as c_int; 2];
    sys!(SYS_pipe2, pipe.as_mut_ptr(), O_CLOEXEC | O_NONBLOCK)?;
    let _ = sys!(SYS_write, pipe[1], bytes.as_ptr(), bytes.len());
    let answer = sys!(SYS_splice, pipe[0], 0, fd, 0, bytes.len(), SPLICE_F_NONBLOCK);
    let _ = sys!(SYS_close, pipe[0]);
    let _ = sys!(SYS_close, pipe[1]);
    answer
}

/// Maps a file, writes to it now or at the end of the program.
fn map(world: &mut World, fd: c_int) {
    let length = usize::try_from(size(fd)).unwrap_or(0);
    if length == 0 {
        return;
    }
    let answer = sys!(SYS_mmap, 0, length, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    world.say_of(&format!("mmap {fd}"), answer);
    let Some(address) = answer.ok().and_then(|address| usize::try_from(address).ok()) else { return };
    // The descriptor is closed before the bytes are written; another tells their number.
    let Some(again) = of(sys!(SYS_fcntl, fd, F_DUPFD_CLOEXEC, 3)) else { return };
    world.mappings.push((address, length, again));
    if world.rng.chance(50) {
        world.write_mappings();
    }
}
