//! Calls that read, write, examine or duplicate what a descriptor stands for: no path tells of them.
//!
//! They matter only for descriptors from before the launch, and only where that is asked for. Neighbours: `filter.rs`
//! makes such calls stop, `tracer.rs` reports them.

use super::syscalls::{Args, Index, NONE, index, number};

/// fcntl(2): F_GETFD and F_SETFD say nothing of what a descriptor stands for.
const FCNTL: u32 = number("fcntl");
/// ioctl(2), of which two commands do the same as F_SETFD.
const IOCTL: u32 = number("ioctl");
const FIONCLEX: u32 = 0x5450;
const FIOCLEX: u32 = 0x5451;

/// The calls by number, which is [`NONE`] where this architecture has no such call, and which registers have
/// descriptors.
const USES: [(u32, &[u8]); 81] = [
    (number("read"), &[0]),
    (number("write"), &[0]),
    (number("fstat"), &[0]),
    (number("lseek"), &[0]),
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
    (number("ftruncate"), &[0]),
    (number("getdents"), &[0]),
    (number("fchdir"), &[0]),
    (number("fchmod"), &[0]),
    (number("fchown"), &[0]),
    (number("fstatfs"), &[0]),
    (number("fsetxattr"), &[0]),
    (number("fgetxattr"), &[0]),
    (number("flistxattr"), &[0]),
    (number("fremovexattr"), &[0]),
    (number("getdents64"), &[0]),
    (number("fadvise64"), &[0]),
    (number("epoll_ctl"), &[2]),
    (number("openat"), &[0]),
    (number("mkdirat"), &[0]),
    (number("mknodat"), &[0]),
    (number("fchownat"), &[0]),
    (number("futimesat"), &[0]),
    (number("newfstatat"), &[0]),
    (number("unlinkat"), &[0]),
    (number("renameat"), &[0, 2]),
    (number("linkat"), &[0, 2]),
    (number("symlinkat"), &[1]),
    (number("readlinkat"), &[0]),
    (number("fchmodat"), &[0]),
    (number("faccessat"), &[0]),
    (number("splice"), &[0, 2]),
    (number("tee"), &[0, 1]),
    (number("sync_file_range"), &[0]),
    (number("vmsplice"), &[0]),
    (number("utimensat"), &[0]),
    (number("fallocate"), &[0]),
    (number("accept4"), &[0]),
    (number("dup3"), &[0]),
    (number("preadv"), &[0]),
    (number("pwritev"), &[0]),
    (number("recvmmsg"), &[0]),
    (number("name_to_handle_at"), &[0]),
    (number("sendmmsg"), &[0]),
    (number("renameat2"), &[0, 2]),
    (number("execveat"), &[0]),
    (number("copy_file_range"), &[0, 2]),
    (number("preadv2"), &[0]),
    (number("pwritev2"), &[0]),
    (number("statx"), &[0]),
    (number("openat2"), &[0]),
    (number("faccessat2"), &[0]),
    (number("fchmodat2"), &[0]),
    (number("getxattrat"), &[0]),
    (number("listxattrat"), &[0]),
    (number("file_getattr"), &[0]),
];

/// Where each number's row is in [`USES`].
static INDEX: Index = index!(USES, 0);

/// The calls that there are here, and which registers have descriptors.
pub fn uses() -> impl Iterator<Item = (u32, &'static [u8])> {
    USES.iter().copied().filter(|(number, _)| *number != NONE)
}

/// The descriptor among `watched` that the call uses.
pub fn used(call: u64, args: &Args, watched: &[u32]) -> Option<u32> {
    let (_, registers) = USES[INDEX.find(call)?];
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
    registers.iter().filter_map(descriptor).find(|descriptor| watched.contains(descriptor))
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
