//! Random calls of several processes and threads on the same few names, made by a seed.
//!
//! What each of them does follows from the seed; the order does not. Each call is printed to stderr.

use crate::support::legacy::*;
use std::ffi::CString;
use std::io::Write as _;

use crate::rng::Rng;
use crate::support::{Answer, CWD};
use crate::together::{Party, at_once};
use crate::tree::{DIRECTORIES, NAMES};

/// Names that directories get.
const SPARE: [&str; 3] = ["n", "b/n", "repo/n"];

/// What all that run at once have in common.
#[derive(Clone)]
struct Plan {
    processes: u64,
    threads: u64,
    operations: u64,
    maps: bool,
    /// Paths that are used more than others.
    hot: Vec<(usize, &'static str)>,
}

impl Plan {
    fn new(rng: &mut Rng) -> Plan {
        let hot = (0..2 + rng.below(3)).map(|_| (rng.index(DIRECTORIES.len()), rng.pick(&NAMES)));
        let hot = hot.collect();
        Plan {
            processes: 2 + rng.below(3),
            threads: 1 + rng.below(2),
            operations: 8 + rng.below(14),
            maps: maps_files(rng),
            hot,
        }
    }
}

fn maps_files(rng: &mut Rng) -> bool {
    rng.chance(25)
}

/// Runs the program of a seed in the working directory.
pub fn run(seed: u64) {
    let mut rng = Rng::new(seed ^ 0x7261_6365);
    let plan = Plan::new(&mut rng);
    let processes: Vec<u64> = (0..plan.processes).map(|_| rng.next()).collect();
    at_once(0, processes.iter().map(|seed| |party: &mut Party| process(party, &plan, *seed)));
}

fn process(party: &mut Party, plan: &Plan, seed: u64) {
    let mut rng = Rng::new(seed);
    party.meet();
    let actors: Vec<Actor> = (0..plan.threads).map(|_| Actor::new(plan, rng.next())).collect();
    std::thread::scope(|scope| {
        for mut actor in actors {
            scope.spawn(move || actor.run());
        }
    });
}

struct Actor {
    plan: Plan,
    rng: Rng,
    root: Vec<u8>,
    /// Whether the working directory is still the root of the tree.
    at_root: bool,
    directories: Vec<c_long>,
    files: Vec<c_long>,
    mappings: Vec<(usize, usize)>,
}

/// A path and where it starts.
struct Spelled {
    dirfd: c_long,
    path: CString,
}

impl Spelled {
    fn shown(&self) -> String {
        let path = self.path.to_string_lossy();
        if self.dirfd == c_long::from(CWD) { path.into_owned() } else { format!("{}:{path}", self.dirfd) }
    }
}

type Operation = fn(&mut Actor) -> (String, Answer);

const OPERATIONS: &[(u64, Operation)] = &[
    (22, Actor::open_to_write),
    (8, Actor::use_a_file),
    (5, Actor::truncate),
    (12, Actor::rename),
    (6, Actor::rename_a_directory),
    (6, Actor::link),
    (3, Actor::symlink),
    (8, Actor::unlink),
    (3, Actor::make_directory),
    (3, Actor::remove_directory),
    (4, Actor::change_mode),
    (3, Actor::change_times),
    (4, Actor::change_xattr),
    (4, Actor::map),
    (3, Actor::temporary),
    (2, Actor::make_node),
    (3, Actor::change_directory),
    (6, Actor::only_read),
];

impl Actor {
    fn new(plan: &Plan, seed: u64) -> Actor {
        let root = std::env::current_dir().unwrap().into_os_string().into_encoded_bytes();
        let (directories, files, mappings) = (Vec::new(), Vec::new(), Vec::new());
        Actor { plan: plan.clone(), rng: Rng::new(seed), root, at_root: true, directories, files, mappings }
    }

    fn run(&mut self) {
        if self.rng.chance(50) {
            let _ = sys!(SYS_unshare, CLONE_FS);
        }
        for directory in DIRECTORIES {
            if self.rng.chance(60) {
                let path = CString::new(directory).unwrap();
                let fd = sys!(SYS_openat, CWD, path.as_c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC);
                self.directories.extend(fd);
            }
        }
        let all: u64 = OPERATIONS.iter().map(|(weight, _)| weight).sum();
        for _ in 0..self.plan.operations {
            let mut at = self.rng.below(all);
            for (weight, operation) in OPERATIONS {
                match at.checked_sub(*weight) {
                    Some(rest) => at = rest,
                    None => {
                        let (what, answer) = operation(self);
                        say(&what, answer);
                        break;
                    }
                }
            }
        }
        self.write_to_mappings();
    }

    /// Any of the paths, in any spelling.
    fn path(&mut self) -> Spelled {
        let (directory, name) = match self.rng.below(10) {
            0..7 => self.rng.pick(&self.plan.hot),
            _ => (self.rng.index(DIRECTORIES.len()), self.rng.pick(&NAMES)),
        };
        let cwd = c_long::from(CWD);
        let (dirfd, path) = match self.rng.below(10) {
            0..3 if !self.directories.is_empty() => (self.rng.pick(&self.directories), name.to_owned()),
            0..7 if self.at_root => (cwd, format!("{}/{name}", DIRECTORIES[directory])),
            3..7 => (cwd, name.to_owned()),
            7 => {
                let spare = self.rng.pick(&SPARE);
                return self.absolute(&format!("{spare}/{name}"));
            }
            _ => return self.absolute(&format!("{}/{name}", DIRECTORIES[directory])),
        };
        Spelled { dirfd, path: CString::new(path).unwrap() }
    }

    fn absolute(&self, path: &str) -> Spelled {
        let path = CString::new([&self.root, b"/".as_slice(), path.as_bytes()].concat()).unwrap();
        Spelled { dirfd: CWD.into(), path }
    }

    fn directory(&mut self) -> Spelled {
        let name = if self.rng.chance(70) { self.rng.pick(&DIRECTORIES) } else { self.rng.pick(&SPARE) };
        if self.at_root && self.rng.chance(50) {
            return Spelled { dirfd: CWD.into(), path: CString::new(name).unwrap() };
        }
        self.absolute(name)
    }

    fn open(&mut self, path: &Spelled, flags: c_int) -> Answer {
        let mode = self.rng.pick(&[0o644, 0o600, 0o755]);
        sys!(SYS_openat, path.dirfd, path.path.as_c_str(), flags | O_NONBLOCK | O_CLOEXEC, mode)
    }

    /// Closes a descriptor, or keeps it for later.
    fn done_with(&mut self, fd: c_long) {
        if self.rng.chance(25) && self.files.len() < 4 {
            self.files.push(fd);
        } else {
            let _ = sys!(SYS_close, fd);
        }
    }

    fn open_to_write(&mut self) -> (String, Answer) {
        let path = self.path();
        let access = self.rng.pick(&[O_WRONLY, O_WRONLY, O_RDWR]);
        let how = self.rng.pick(&[
            0,
            0,
            0,
            O_TRUNC,
            O_APPEND,
            O_CREAT,
            O_CREAT | O_TRUNC,
            O_CREAT | O_TRUNC,
            O_CREAT | O_APPEND,
            O_CREAT | O_EXCL,
            O_CREAT | O_EXCL,
        ]);
        let answer = self.open(&path, access | how);
        let mut what = format!("open({:#o}) {}", access | how, path.shown());
        if let Ok(fd) = answer {
            for _ in 0..self.rng.below(3) {
                what += &format!(", {}", self.change_bytes(fd));
            }
            self.done_with(fd);
        }
        (what, answer)
    }

    fn change_bytes(&mut self, fd: c_long) -> String {
        let content = crate::tree::content(&mut self.rng);
        let (bytes, length) = (content.as_ptr(), content.len());
        let offset = self.rng.pick(&[0, 0, 0, 10, 4096, 65_536]);
        match self.rng.below(8) {
            0 => format!("ftruncate({length}) = {:?}", sys!(SYS_ftruncate, fd, length)),
            1 | 2 => format!("write({length}) = {:?}", sys!(SYS_write, fd, bytes, length)),
            3 => {
                let how =
                    self.rng.pick(&[0, FALLOC_FL_ZERO_RANGE, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE]);
                format!("fallocate({how}) = {:?}", sys!(SYS_fallocate, fd, how, offset, 5000))
            }
            _ => format!("pwrite({length}, {offset}) = {:?}", sys!(SYS_pwrite64, fd, bytes, length, offset)),
        }
    }

    /// Does something through a descriptor that was kept, whose file may have another name by now, or none.
    fn use_a_file(&mut self) -> (String, Answer) {
        if self.files.is_empty() {
            return self.open_to_write();
        }
        let at = self.rng.index(self.files.len());
        let fd = self.files[at];
        match self.rng.below(7) {
            0 => {
                self.files.remove(at);
                (format!("close {fd}"), sys!(SYS_close, fd))
            }
            1 => (format!("fchmod {fd}"), sys!(SYS_fchmod, fd, self.rng.pick(&[0o640, 0o604]))),
            2 => (format!("futimens {fd}"), sys!(SYS_utimensat, fd, 0, [1_i64, 2, 3, 4].as_ptr(), 0)),
            3 => (format!("fsetxattr {fd}"), sys!(SYS_fsetxattr, fd, c"user.b", c"new", 3, 0)),
            4 => {
                let path = self.path();
                let old = CString::new(format!("/proc/self/fd/{fd}")).unwrap();
                let (to, flags) = (path.path.as_c_str(), AT_SYMLINK_FOLLOW);
                let answer = sys!(SYS_linkat, CWD, old.as_c_str(), path.dirfd, to, flags);
                (format!("linkat {fd} {}", path.shown()), answer)
            }
            _ => (format!("{fd}: {}", self.change_bytes(fd)), Ok(0)),
        }
    }

    fn truncate(&mut self) -> (String, Answer) {
        let path = self.path();
        let length = self.rng.pick(&[0, 1, 100, 65_536, 70_000]);
        if path.dirfd == c_long::from(CWD) {
            let answer = sys!(SYS_truncate, path.path.as_c_str(), length);
            return (format!("truncate({length}) {}", path.shown()), answer);
        }
        (format!("open(O_TRUNC) {}", path.shown()), self.open_and_close(&path, O_RDONLY | O_TRUNC))
    }

    fn open_and_close(&mut self, path: &Spelled, flags: c_int) -> Answer {
        let answer = self.open(path, flags);
        if let Ok(fd) = answer {
            let _ = sys!(SYS_close, fd);
        }
        answer
    }

    fn rename(&mut self) -> (String, Answer) {
        let (old, new) = (self.path(), self.path());
        self.rename_to(&old, &new)
    }

    fn rename_a_directory(&mut self) -> (String, Answer) {
        let old = self.directory();
        let new = if self.rng.chance(85) { self.directory() } else { self.path() };
        self.rename_to(&old, &new)
    }

    fn rename_to(&mut self, old: &Spelled, new: &Spelled) -> (String, Answer) {
        let flags = self.rng.pick(&[0, 0, 0, RENAME_EXCHANGE, RENAME_EXCHANGE, RENAME_NOREPLACE]);
        let (from, to) = (old.path.as_c_str(), new.path.as_c_str());
        let answer = if flags == 0 && self.rng.chance(50) {
            sys!(SYS_renameat, old.dirfd, from, new.dirfd, to)
        } else {
            sys!(SYS_renameat2, old.dirfd, from, new.dirfd, to, flags)
        };
        (format!("rename({flags}) {} {}", old.shown(), new.shown()), answer)
    }

    fn link(&mut self) -> (String, Answer) {
        let (old, new) = (self.path(), self.path());
        let (from, to) = (old.path.as_c_str(), new.path.as_c_str());
        let flags = self.rng.pick(&[0, 0, AT_SYMLINK_FOLLOW]);
        let answer = sys!(SYS_linkat, old.dirfd, from, new.dirfd, to, flags);
        (format!("link {} {}", old.shown(), new.shown()), answer)
    }

    fn symlink(&mut self) -> (String, Answer) {
        let new = self.path();
        let target = CString::new(self.rng.pick(&["v", "../b/w", "x", "nowhere"])).unwrap();
        let answer = sys!(SYS_symlinkat, target.as_c_str(), new.dirfd, new.path.as_c_str());
        (format!("symlink {target:?} {}", new.shown()), answer)
    }

    fn unlink(&mut self) -> (String, Answer) {
        let path = self.path();
        (format!("unlink {}", path.shown()), sys!(SYS_unlinkat, path.dirfd, path.path.as_c_str(), 0))
    }

    fn make_directory(&mut self) -> (String, Answer) {
        let path = if self.rng.chance(50) { self.path() } else { self.directory() };
        (format!("mkdir {}", path.shown()), sys!(SYS_mkdirat, path.dirfd, path.path.as_c_str(), 0o755))
    }

    fn remove_directory(&mut self) -> (String, Answer) {
        let path = if self.rng.chance(50) { self.path() } else { self.directory() };
        let answer = sys!(SYS_unlinkat, path.dirfd, path.path.as_c_str(), AT_REMOVEDIR);
        (format!("rmdir {}", path.shown()), answer)
    }

    fn change_mode(&mut self) -> (String, Answer) {
        let path = if self.rng.chance(80) { self.path() } else { self.directory() };
        let mode = self.rng.pick(&[0o755, 0o711, 0o700]);
        let answer = sys!(SYS_fchmodat, path.dirfd, path.path.as_c_str(), mode);
        (format!("chmod({mode:#o}) {}", path.shown()), answer)
    }

    fn change_times(&mut self) -> (String, Answer) {
        let path = self.path();
        let times = [1_000_000_000_i64, 5, 1_000_000_000, 6];
        let flags = self.rng.pick(&[0, AT_SYMLINK_NOFOLLOW]);
        let answer = sys!(SYS_utimensat, path.dirfd, path.path.as_c_str(), times.as_ptr(), flags);
        (format!("utimens {}", path.shown()), answer)
    }

    fn change_xattr(&mut self) -> (String, Answer) {
        let path = self.path();
        if path.dirfd != c_long::from(CWD) {
            return self.change_mode();
        }
        let name = self.rng.pick(&[c"user.a", c"user.b"]);
        match self.rng.below(3) {
            0 => (format!("removexattr {}", path.shown()), sys!(SYS_removexattr, path.path.as_c_str(), name)),
            _ => {
                let answer = sys!(SYS_setxattr, path.path.as_c_str(), name, c"changed", 7, 0);
                (format!("setxattr {}", path.shown()), answer)
            }
        }
    }

    fn map(&mut self) -> (String, Answer) {
        if !self.plan.maps {
            return self.open_to_write();
        }
        let path = self.path();
        let answer = self.open(&path, O_RDWR);
        if let Ok(fd) = answer {
            let length = usize::try_from(sys!(SYS_lseek, fd, 0, SEEK_END).unwrap_or(0)).unwrap();
            let (protection, flags) = (PROT_READ | PROT_WRITE, MAP_SHARED);
            if let Ok(at) = sys!(SYS_mmap, 0, length, protection, flags, fd, 0) {
                self.mappings.push((usize::try_from(at).unwrap(), length));
            }
            let _ = sys!(SYS_close, fd);
            if self.rng.chance(50) {
                self.write_to_mappings();
            }
        }
        (format!("map {}", path.shown()), answer)
    }

    /// Writes to what is mapped. The kernel copies the bytes: where the file has become shorter it says
    /// EFAULT, instead of SIGBUS.
    fn write_to_mappings(&mut self) {
        let Ok(pipe) = sys!(SYS_memfd_create, c"bytes", 0) else { return };
        let _ = sys!(SYS_pwrite64, pipe, c"mapped".as_ptr(), 6, 0);
        for (at, length) in &self.mappings {
            let offset = self.rng.index(*length);
            let count = (length - offset).min(6);
            let answer = sys!(SYS_pread64, pipe, at + offset, count, 0);
            say(&format!("write to a mapping of {length} bytes at {offset}"), answer);
        }
        let _ = sys!(SYS_close, pipe);
    }

    fn temporary(&mut self) -> (String, Answer) {
        let directory = self.directory();
        let answer = self.open(&directory, O_TMPFILE | O_RDWR);
        let mut what = format!("open(O_TMPFILE) {}", directory.shown());
        if let Ok(fd) = answer {
            what += &format!(", {}", self.change_bytes(fd));
            let path = self.path();
            let old = CString::new(format!("/proc/self/fd/{fd}")).unwrap();
            let (to, flags) = (path.path.as_c_str(), AT_SYMLINK_FOLLOW);
            let linked = sys!(SYS_linkat, CWD, old.as_c_str(), path.dirfd, to, flags);
            what += &format!(", linkat {} = {linked:?}", path.shown());
            self.done_with(fd);
        }
        (what, answer)
    }

    fn make_node(&mut self) -> (String, Answer) {
        let path = self.path();
        let kind = self.rng.pick(&[S_IFIFO, S_IFREG, S_IFSOCK]);
        let answer = sys!(SYS_mknodat, path.dirfd, path.path.as_c_str(), kind | 0o644, 0);
        (format!("mknod({kind:#o}) {}", path.shown()), answer)
    }

    fn change_directory(&mut self) -> (String, Answer) {
        if !self.at_root && self.rng.chance(50) {
            let root = self.absolute("");
            self.at_root = true;
            return ("chdir to the root".to_owned(), sys!(SYS_chdir, root.path.as_c_str()));
        }
        self.at_root = false;
        if !self.directories.is_empty() && self.rng.chance(50) {
            // An O_PATH descriptor will do.
            let fd = self.rng.pick(&self.directories);
            return (format!("fchdir {fd}"), sys!(SYS_fchdir, fd));
        }
        let path = self.directory();
        (format!("chdir {}", path.shown()), sys!(SYS_chdir, path.path.as_c_str()))
    }

    fn only_read(&mut self) -> (String, Answer) {
        let path = self.path();
        let mut buffer = [0_u8; 4096];
        let (dirfd, name, at) = (path.dirfd, path.path.as_c_str(), buffer.as_mut_ptr());
        let (what, answer) = match self.rng.below(4) {
            0 => ("stat", sys!(SYS_newfstatat, dirfd, name, at, 0)),
            1 => ("lstat", sys!(SYS_newfstatat, dirfd, name, at, AT_SYMLINK_NOFOLLOW)),
            2 => ("readlink", sys!(SYS_readlinkat, dirfd, name, at, buffer.len())),
            _ => ("open", self.open_and_close(&path, O_RDONLY)),
        };
        (format!("{what} {}", path.shown()), answer)
    }
}

/// Prints a call and its result, in one write(2).
fn say(what: &str, answer: Answer) {
    let tid = sys!(SYS_gettid).unwrap_or(0);
    let answer = match answer {
        Ok(value) => value.to_string(),
        Err(errno) => std::io::Error::from_raw_os_error(errno).to_string(),
    };
    let _ = std::io::stderr().write_all(format!("{tid} {what} = {answer}\n").as_bytes());
}
