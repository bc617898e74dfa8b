//! The operations on paths.

use crate::support::legacy::*;
use std::ffi::CString;

use crate::names::join;
use crate::support::{Answer, CWD};
use crate::world::{Kind, Spelled, World};
use crate::{descriptors, together};

type Operation = fn(&mut World);

const OPERATIONS: &[(u64, Operation)] = &[
    (14, open_for_writing),
    (5, open_for_reading),
    (4, open_in_a_way),
    (8, look),
    (3, truncate_path),
    (7, make_directory),
    (9, remove),
    (4, remove_directory),
    (14, rename),
    (6, make_link),
    (6, make_hard_link),
    (3, make_node),
    (2, bind_socket),
    (5, change_mode),
    (2, change_owner),
    (3, change_times),
    (4, change_xattr),
    (4, change_directory),
    (8, descriptors::keep),
    (14, descriptors::use_one),
    (3, descriptors::temporary),
    (7, together::child),
    (1, together::parallel),
    (2, together::execute),
];

pub fn one(world: &mut World) {
    let all: u64 = OPERATIONS.iter().map(|(weight, _)| weight).sum();
    let mut at = world.rng.below(all);
    for (weight, operation) in OPERATIONS {
        match at.checked_sub(*weight) {
            Some(rest) => at = rest,
            None => return operation(world),
        }
    }
}

/// Makes the call with a `dirfd` if it needs one, else one of the two.
macro_rules! at_or_plain {
    ($world:expr, $spelled:expr, $at:expr, $plain:expr) => {
        if $spelled.dirfd != CWD || $world.rng.chance(50) { $at } else { $plain }
    };
}

/// Opens in one of the three ways.
pub fn open(world: &mut World, spelled: &Spelled, flags: c_int, mode: u32) -> Answer {
    let (dirfd, path) = (spelled.dirfd, spelled.path.as_c_str());
    let flags = flags | O_CLOEXEC | O_NONBLOCK;
    if world.rng.chance(12) {
        let resolve = world.rng.pick(&[0, 0, RESOLVE_BENEATH, RESOLVE_IN_ROOT, RESOLVE_NO_SYMLINKS]);
        let creates = flags & O_CREAT != 0 || flags & O_TMPFILE == O_TMPFILE;
        let how = [u64::from(flags.unsigned_abs()), if creates { u64::from(mode) } else { 0 }, resolve];
        return sys!(SYS_openat2, dirfd, path, how.as_ptr(), size_of_val(&how));
    }
    at_or_plain!(
        world,
        spelled,
        sys!(SYS_openat, dirfd, path, flags, mode),
        sys!(SYS_open, path, flags, mode)
    )
}

/// The mode of what a path leads to, whatever the model takes it for.
fn found(spelled: &Spelled) -> Option<u32> {
    let mut stat = std::mem::MaybeUninit::<stat>::uninit();
    // SAFETY: the path ends in a NUL, and the buffer is of the kernel's size.
    let found = unsafe { fstatat(spelled.dirfd, spelled.path.as_ptr(), stat.as_mut_ptr(), 0) } == 0;
    // SAFETY: a call that succeeded has filled it.
    found.then(|| unsafe { stat.assume_init() }.st_mode)
}

fn mode(world: &mut World) -> u32 {
    world.rng.pick(&[0o644, 0o600, 0o755, 0o666, 0o700])
}

fn open_for_writing(world: &mut World) {
    let path = if world.rng.chance(60) { world.file() } else { world.new_path() };
    let spelled = world.spell(&path);
    let access = world.rng.pick(&[O_WRONLY, O_WRONLY, O_RDWR]);
    let flags = world.rng.pick(&[
        O_CREAT,
        O_CREAT | O_TRUNC,
        O_CREAT | O_TRUNC,
        O_CREAT | O_EXCL,
        O_APPEND,
        O_CREAT | O_APPEND,
        O_TRUNC,
        O_NOFOLLOW | O_CREAT,
        0,
    ]);
    let mode = mode(world);
    let plain = access == O_WRONLY && flags == O_CREAT | O_TRUNC && world.rng.chance(20);
    let spelled_plain = plain.then(|| world.spell_plain(&path));
    // creat(2) waits for a reader of a FIFO.
    let answer = if let Some(spelled) =
        spelled_plain.filter(|spelled| found(spelled).is_none_or(|mode| mode & S_IFMT != S_IFIFO))
    {
        let answer = sys!(SYS_creat, spelled.path.as_c_str(), mode);
        world.say("creat", &spelled, answer);
        answer
    } else {
        let answer = open(world, &spelled, access | flags, mode);
        world.say(&format!("open({:#o})", access | flags), &spelled, answer);
        answer
    };
    let Some(fd) = descriptors::of(answer) else { return };
    world.model.entry(path.clone()).or_insert(Kind::File);
    for _ in 0..world.rng.below(3) {
        descriptors::change_bytes(world, fd, access == O_RDWR);
    }
    if world.rng.chance(15) {
        descriptors::remember(world, fd, &path, false, true);
    } else {
        let _ = sys!(SYS_close, fd);
    }
}

fn open_for_reading(world: &mut World) {
    let path = world.file();
    let spelled = world.spell(&path);
    let answer = open(world, &spelled, O_RDONLY, 0);
    world.say("open", &spelled, answer);
    let Some(fd) = descriptors::of(answer) else { return };
    let mut bytes = [0_u8; 4096];
    let _ = sys!(SYS_read, fd, bytes.as_mut_ptr(), bytes.len());
    let _ = sys!(SYS_close, fd);
}

fn open_in_a_way(world: &mut World) {
    let path = world.any();
    let spelled = world.spell(&path);
    let flags = world.rng.pick(&[
        O_PATH,
        O_PATH | O_NOFOLLOW,
        O_RDONLY | O_DIRECTORY,
        O_RDONLY | O_TRUNC,
        O_RDONLY | O_CREAT,
        O_ACCMODE,
        O_RDWR,
        O_CREAT | O_DIRECTORY,
        O_RDONLY | O_NOFOLLOW,
    ]);
    let answer = open(world, &spelled, flags, 0o644);
    world.say(&format!("open({flags:#o})"), &spelled, answer);
    if let Some(fd) = descriptors::of(answer) {
        let _ = sys!(SYS_close, fd);
    }
}

fn look(world: &mut World) {
    let path = world.any();
    let spelled = world.spell(&path);
    let (dirfd, name) = (spelled.dirfd, spelled.path.as_c_str());
    let mut buffer = [0_u8; 4096];
    let (what, answer) = match world.rng.below(8) {
        0 => ("newfstatat", sys!(SYS_newfstatat, dirfd, name, buffer.as_mut_ptr(), 0)),
        1 => ("lstat", sys!(SYS_newfstatat, dirfd, name, buffer.as_mut_ptr(), AT_SYMLINK_NOFOLLOW)),
        2 => ("statx", sys!(SYS_statx, dirfd, name, 0, STATX_BASIC_STATS, buffer.as_mut_ptr())),
        3 => ("faccessat", sys!(SYS_faccessat, dirfd, name, R_OK)),
        4 => ("faccessat2", sys!(SYS_faccessat2, dirfd, name, W_OK, AT_SYMLINK_NOFOLLOW)),
        5 => ("readlinkat", sys!(SYS_readlinkat, dirfd, name, buffer.as_mut_ptr(), buffer.len())),
        6 => {
            let spelled = world.spell_plain(&path);
            let name = spelled.path.as_c_str();
            let answer = match world.rng.below(4) {
                0 => sys!(SYS_stat, name, buffer.as_mut_ptr()),
                1 => sys!(SYS_access, name, F_OK),
                2 => sys!(SYS_lgetxattr, name, c"user.a", buffer.as_mut_ptr(), buffer.len()),
                _ => sys!(SYS_statfs, name, buffer.as_mut_ptr()),
            };
            return world.say("look at", &spelled, answer);
        }
        _ => {
            let answer = open(world, &spelled, O_RDONLY | O_DIRECTORY, 0);
            if let Some(fd) = descriptors::of(answer) {
                let _ = sys!(SYS_getdents64, fd, buffer.as_mut_ptr(), buffer.len());
                let _ = sys!(SYS_close, fd);
            }
            ("list", answer)
        }
    };
    world.say(what, &spelled, answer);
}

fn truncate_path(world: &mut World) {
    let path = world.file();
    let spelled = world.spell_plain(&path);
    let length = world.rng.pick(&[0, 1, 10, 5000, 70_000]);
    let answer = sys!(SYS_truncate, spelled.path.as_c_str(), length);
    world.say(&format!("truncate({length})"), &spelled, answer);
}

fn make_directory(world: &mut World) {
    let path = if world.rng.chance(90) { world.new_path() } else { world.any() };
    let spelled = world.spell(&path);
    let mode = world.rng.pick(&[0o755, 0o700, 0o777]);
    let (dirfd, name) = (spelled.dirfd, spelled.path.as_c_str());
    let answer =
        at_or_plain!(world, spelled, sys!(SYS_mkdirat, dirfd, name, mode), sys!(SYS_mkdir, name, mode));
    world.say("mkdir", &spelled, answer);
    if answer.is_ok() {
        world.model.insert(path, Kind::Directory);
    }
}

fn remove(world: &mut World) {
    let path = if world.rng.chance(70) { world.file() } else { world.any() };
    let spelled = world.spell(&path);
    let (dirfd, name) = (spelled.dirfd, spelled.path.as_c_str());
    let answer = at_or_plain!(world, spelled, sys!(SYS_unlinkat, dirfd, name, 0), sys!(SYS_unlink, name));
    world.say("unlink", &spelled, answer);
    if answer.is_ok() {
        world.forget(&path);
    }
}

fn remove_directory(world: &mut World) {
    let path = if world.rng.chance(80) { world.directory() } else { world.any() };
    let spelled = world.spell(&path);
    let (dirfd, name) = (spelled.dirfd, spelled.path.as_c_str());
    let answer =
        at_or_plain!(world, spelled, sys!(SYS_unlinkat, dirfd, name, AT_REMOVEDIR), sys!(SYS_rmdir, name));
    world.say("rmdir", &spelled, answer);
    if answer.is_ok() {
        world.forget(&path);
    }
}

fn rename(world: &mut World) {
    let from = world.existing();
    let flags = world.rng.pick(&[0, 0, 0, RENAME_EXCHANGE, RENAME_EXCHANGE, RENAME_NOREPLACE]);
    let exchange = flags == RENAME_EXCHANGE;
    let to = match world.rng.below(10) {
        0..6 if exchange => world.existing(),
        0..2 => world.existing(),
        2 => join(&from, b"inside"),
        _ => world.new_path(),
    };
    let (old, new) = (world.spell(&from), world.spell(&to));
    let plain = old.dirfd == CWD && new.dirfd == CWD && flags == 0;
    let answer = match world.rng.below(3) {
        0 if plain => sys!(SYS_rename, old.path.as_c_str(), new.path.as_c_str()),
        1 if flags == 0 => {
            sys!(SYS_renameat, old.dirfd, old.path.as_c_str(), new.dirfd, new.path.as_c_str())
        }
        _ => sys!(SYS_renameat2, old.dirfd, old.path.as_c_str(), new.dirfd, new.path.as_c_str(), flags),
    };
    world.say(&format!("rename({flags}) {}", old.shown()), &new, answer);
    if answer.is_ok() && from != to {
        world.moved(&from, &to, exchange);
    }
}

fn make_link(world: &mut World) {
    let path = if world.rng.chance(90) { world.new_path() } else { world.any() };
    let target = if world.rng.chance(50) { world.directory() } else { world.any() };
    let text = match world.rng.below(12) {
        0..6 => crate::names::relative(crate::names::parent(&path), &target),
        6..9 => join(&world.root.clone(), &target),
        9 => [b"./".as_slice(), &target, b"/"].concat(),
        10 => [b"/proc/self/cwd/".as_slice(), &target].concat(),
        _ => crate::names::name(&mut world.rng).to_vec(),
    };
    let text = CString::new(text).unwrap();
    let spelled = world.spell(&path);
    let name = spelled.path.as_c_str();
    let answer = at_or_plain!(
        world,
        spelled,
        sys!(SYS_symlinkat, text.as_c_str(), spelled.dirfd, name),
        sys!(SYS_symlink, text.as_c_str(), name)
    );
    world.say(&format!("symlink '{}'", text.to_bytes().escape_ascii()), &spelled, answer);
    if answer.is_ok() {
        let kind = world.link(&path, text.to_bytes());
        world.model.insert(path, kind);
    }
}

fn make_hard_link(world: &mut World) {
    let from = world.file();
    let to = world.new_path();
    let (old, new) = (world.spell(&from), world.spell(&to));
    let flags = world.rng.pick(&[0, 0, AT_SYMLINK_FOLLOW]);
    let answer = if old.dirfd == CWD && new.dirfd == CWD && world.rng.chance(50) {
        sys!(SYS_link, old.path.as_c_str(), new.path.as_c_str())
    } else {
        sys!(SYS_linkat, old.dirfd, old.path.as_c_str(), new.dirfd, new.path.as_c_str(), flags)
    };
    world.say(&format!("link {}", old.shown()), &new, answer);
    if answer.is_ok() {
        let kind = world.model.get(&from).cloned().unwrap_or(Kind::File);
        world.model.insert(to, kind);
    }
}

fn make_node(world: &mut World) {
    let path = world.new_path();
    let spelled = world.spell(&path);
    let kinds: &[(u32, u64)] = if world.privileged {
        &[(S_IFIFO, 0), (S_IFREG, 0), (S_IFSOCK, 0), (S_IFCHR, 0x103), (S_IFBLK, 0x700)]
    } else {
        &[(S_IFIFO, 0), (S_IFREG, 0), (S_IFSOCK, 0)]
    };
    let (kind, device) = world.rng.pick(kinds);
    let name = spelled.path.as_c_str();
    let answer = at_or_plain!(
        world,
        spelled,
        sys!(SYS_mknodat, spelled.dirfd, name, kind | 0o644, device),
        sys!(SYS_mknod, name, kind | 0o644, device)
    );
    world.say(&format!("mknod({kind:#o})"), &spelled, answer);
    if answer.is_ok() {
        world.model.insert(path, if kind == S_IFREG { Kind::File } else { Kind::Other });
    }
}

fn bind_socket(world: &mut World) {
    let path = world.new_path();
    let spelled = world.spell_plain(&path);
    let bytes = spelled.path.to_bytes_with_nul();
    let mut address = [0_u8; 110];
    address[0] = u8::try_from(AF_UNIX).unwrap();
    if bytes.len() > 108 {
        return;
    }
    address[2..2 + bytes.len()].copy_from_slice(bytes);
    let Some(fd) = descriptors::of(sys!(SYS_socket, AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0)) else { return };
    let answer = sys!(SYS_bind, fd, address.as_ptr(), 2 + bytes.len());
    world.say("bind", &spelled, answer);
    if answer.is_ok() {
        world.model.insert(path, Kind::Other);
    }
    let _ = sys!(SYS_close, fd);
}

fn change_mode(world: &mut World) {
    let path = world.any();
    let spelled = world.spell(&path);
    let directory = found(&spelled).is_some_and(|found| found & S_IFMT == S_IFDIR);
    // An ordinary user has to come back to what it owns, and so has the recorder.
    let modes: &[u32] = match (world.privileged, directory) {
        (true, _) => &[0, 0o644, 0o755, 0o600, 0o1777, 0o4755, 0o2755, 0o111],
        (false, true) => &[0o755, 0o700, 0o777, 0o1777, 0o2755],
        (false, false) => &[0o755, 0o644, 0o600, 0o444, 0o400, 0o777],
    };
    let mode = world.rng.pick(modes);
    let (dirfd, name) = (spelled.dirfd, spelled.path.as_c_str());
    let answer = match world.rng.below(3) {
        0 if dirfd == CWD => sys!(SYS_chmod, name, mode),
        1 => sys!(SYS_fchmodat, dirfd, name, mode),
        _ => {
            let flags = world.rng.pick(&[0, AT_SYMLINK_NOFOLLOW]);
            sys!(SYS_fchmodat2, dirfd, name, mode, flags)
        }
    };
    world.say(&format!("chmod({mode:#o})"), &spelled, answer);
}

fn change_owner(world: &mut World) {
    let path = world.any();
    let spelled = world.spell(&path);
    let owner = if world.privileged { world.rng.pick(&[0, 1234, u32::MAX]) } else { u32::MAX };
    let (dirfd, name) = (spelled.dirfd, spelled.path.as_c_str());
    let answer = match world.rng.below(3) {
        0 if dirfd == CWD => sys!(SYS_chown, name, owner, owner),
        1 if dirfd == CWD => sys!(SYS_lchown, name, owner, owner),
        _ => {
            let flags = world.rng.pick(&[0, AT_SYMLINK_NOFOLLOW]);
            sys!(SYS_fchownat, dirfd, name, owner, owner, flags)
        }
    };
    world.say(&format!("chown({owner})"), &spelled, answer);
}

fn change_times(world: &mut World) {
    let path = world.any();
    let spelled = world.spell(&path);
    let (dirfd, name) = (spelled.dirfd, spelled.path.as_c_str());
    let seconds = i64::try_from(world.rng.below(2_000_000_000)).unwrap();
    let nanoseconds = i64::try_from(world.rng.below(1_000_000_000)).unwrap();
    let times = [seconds, nanoseconds, seconds, nanoseconds];
    let microseconds = [seconds, nanoseconds / 1000, seconds, nanoseconds / 1000];
    let answer = match world.rng.below(4) {
        0 if dirfd == CWD => sys!(SYS_utime, name, [seconds, seconds].as_ptr()),
        1 if dirfd == CWD => sys!(SYS_utimes, name, microseconds.as_ptr()),
        2 => sys!(SYS_futimesat, dirfd, name, microseconds.as_ptr()),
        _ => {
            let flags = world.rng.pick(&[0, AT_SYMLINK_NOFOLLOW]);
            sys!(SYS_utimensat, dirfd, name, times.as_ptr(), flags)
        }
    };
    world.say("utime", &spelled, answer);
}

fn change_xattr(world: &mut World) {
    let path = world.any();
    let spelled = world.spell_plain(&path);
    let name = spelled.path.as_c_str();
    let length = world.rng.index(30) + 1;
    let value = world.rng.bytes(length);
    let attribute = world.rng.pick(&[c"user.a", c"user.b"]);
    let (what, answer) = match world.rng.below(4) {
        0 => ("setxattr", sys!(SYS_setxattr, name, attribute, value.as_ptr(), value.len(), 0)),
        1 => ("lsetxattr", sys!(SYS_lsetxattr, name, attribute, value.as_ptr(), value.len(), 0)),
        2 => ("removexattr", sys!(SYS_removexattr, name, attribute)),
        _ => {
            let spelled = world.spell(&path);
            let arguments = [value.as_ptr() as u64, value.len() as u64];
            let answer =
                sys!(463, spelled.dirfd, spelled.path.as_c_str(), 0, attribute, arguments.as_ptr(), 16);
            return world.say("setxattrat", &spelled, answer);
        }
    };
    world.say(what, &spelled, answer);
}

fn change_directory(world: &mut World) {
    let path = if world.rng.chance(90) { world.directory() } else { world.any() };
    let spelled = world.spell_plain(&path);
    let answer = sys!(SYS_chdir, spelled.path.as_c_str());
    world.say("chdir", &spelled, answer);
    if answer.is_ok() {
        world.cwd = match world.model.get(&path) {
            Some(Kind::Link(target)) => target.clone(),
            _ => path,
        };
    }
}
