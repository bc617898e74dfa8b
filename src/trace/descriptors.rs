//! Calls that read, write, examine or duplicate what a descriptor stands for: no path tells of them.
//!
//! They matter only for descriptors from before the launch, and only where that is asked for. Neighbours: `filter.rs`
//! makes such calls stop, `tracer.rs` reports them.

use smallvec::SmallVec;

use super::syscalls::{self, Args, Index, NONE, index, number};

/// fcntl(2): F_GETFD and F_SETFD say nothing of what a descriptor stands for.
const FCNTL: u32 = number("fcntl");
/// ioctl(2), of which two commands do the same as F_SETFD.
const IOCTL: u32 = number("ioctl");
const FIONCLEX: u32 = 0x5450;
const FIOCLEX: u32 = 0x5451;

/// The calls by number, which is [`NONE`] where this architecture has no such call, and which registers have
/// descriptors: those that the table of calls knows no descriptor of.
const USES: [(u32, &[u8]); 48] = [
    (number("read"), &[0]),
    (number("write"), &[0]),
    (number("fstat"), &[0]),
    (number("mmap"), &[4]),
    (IOCTL, &[0]),
    (number("pread64"), &[0]),
    (number("pwrite64"), &[0]),
    (number("readv"), &[0]),
    (number("writev"), &[0]),
    (number("dup"), &[0]),
    (number("dup2"), &[0]),
    (number("sendfile"), &[0, 1]),
    (number("connect"), &[0]),
    (number("accept"), &[0]),
    (number("sendto"), &[0]),
    (number("recvfrom"), &[0]),
    (number("sendmsg"), &[0]),
    (number("recvmsg"), &[0]),
    (number("shutdown"), &[0]),
    (number("bind"), &[0]),
    (number("listen"), &[0]),
    (number("getsockname"), &[0]),
    (number("getpeername"), &[0]),
    (number("setsockopt"), &[0]),
    (number("getsockopt"), &[0]),
    (FCNTL, &[0]),
    (number("flock"), &[0]),
    (number("fsync"), &[0]),
    (number("fdatasync"), &[0]),
    (number("getdents"), &[0]),
    (number("fstatfs"), &[0]),
    (number("getdents64"), &[0]),
    (number("fadvise64"), &[0]),
    (number("epoll_ctl"), &[2]),
    (number("splice"), &[0, 2]),
    (number("tee"), &[0, 1]),
    (number("sync_file_range"), &[0]),
    (number("vmsplice"), &[0]),
    (number("accept4"), &[0]),
    (number("dup3"), &[0]),
    (number("preadv"), &[0]),
    (number("pwritev"), &[0]),
    (number("inotify_add_watch"), &[0]),
    (number("fanotify_mark"), &[0, 3]),
    (number("recvmmsg"), &[0]),
    (number("sendmmsg"), &[0]),
    (number("copy_file_range"), &[0, 2]),
    (number("preadv2"), &[0]),
];

/// Where each number's row is in [`USES`].
static INDEX: Index = index!(USES, 0);

/// The calls that there are here, and which registers have descriptors.
pub fn uses() -> impl Iterator<Item = (u32, SmallVec<[u8; 2]>)> {
    let others =
        syscalls::rows().map(|row| row.sysno.0).filter(|number| INDEX.find((*number).into()).is_none());
    let numbers = USES.iter().map(|(number, _)| *number).filter(|number| *number != NONE).chain(others);
    numbers.map(|number| (number, registers(number.into()))).filter(|(_, registers)| !registers.is_empty())
}

/// The registers of a call that have descriptors.
fn registers(call: u64) -> SmallVec<[u8; 2]> {
    match INDEX.find(call) {
        Some(at) => USES[at].1.into(),
        None => syscalls::row_of(call).map(|row| row.descriptors().collect()).unwrap_or_default(),
    }
}

/// The descriptor among `watched` that the call uses.
pub fn used(call: u64, args: &Args, watched: &[u32]) -> Option<u32> {
    // Whether it is closed at an exec is no matter of the file.
    let harmless = match u32::try_from(call) {
        Ok(FCNTL) => [libc::F_GETFD, libc::F_SETFD].map(i32::cast_unsigned),
        Ok(IOCTL) => [FIONCLEX, FIOCLEX],
        _ => [u32::MAX; 2],
    };
    if harmless.map(u64::from).contains(&(args[1] & 0xffff_ffff)) {
        return None;
    }
    let descriptor = |register: &u8| u32::try_from(args[usize::from(*register)] & 0xffff_ffff).ok();
    registers(call).iter().filter_map(descriptor).find(|descriptor| watched.contains(descriptor))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptors_are_found_in_the_registers_of_the_call() {
        let args = |at: usize, value: u64| {
            let mut args = [100; 6];
            args[at] = value;
            args
        };
        let used_by = |name, args: &Args, watched: &[u32]| used(u64::from(number(name)), args, watched);
        assert_eq!(used_by("write", &args(0, 7), &[3, 7]), Some(7), "write");
        assert_eq!(used_by("setxattrat", &args(0, 7), &[7]), Some(7), "the directory of setxattrat");
        assert_eq!(used_by("move_mount", &args(2, 7), &[7]), Some(7), "where move_mount puts it");
        assert_eq!(used_by("openat", &args(1, 7), &[7]), None, "a path");
        assert_eq!(used_by("write", &args(1, 7), &[7]), None, "its buffer");
        assert_eq!(used_by("splice", &args(2, 7), &[7]), Some(7), "what splice writes to");
        assert_eq!(used_by("fcntl", &[7, 0, 0, 0, 0, 0], &[7]), Some(7), "F_DUPFD");
        assert_eq!(used_by("fcntl", &[7, 3, 0, 0, 0, 0], &[7]), Some(7), "F_GETFL");
        assert_eq!(used_by("fcntl", &[7, 1, 0, 0, 0, 0], &[7]), None, "F_GETFD");
        assert_eq!(used_by("ioctl", &[7, 0x5451, 0, 0, 0, 0], &[7]), None, "FIOCLEX");
        assert_eq!(used_by("ioctl", &[7, 0x5401, 0, 0, 0, 0], &[7]), Some(7), "TCGETS");
        assert_eq!(used_by("close", &args(0, 7), &[7]), None, "close");
    }
}
