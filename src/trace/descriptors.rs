//! Calls that read, write, examine or duplicate what a descriptor stands for: no path tells of them.
//!
//! They matter only for descriptors from before the launch, and only where that is asked for. Neighbours: `filter.rs`
//! makes such calls stop, `tracer.rs` reports them.

use super::syscalls::Args;

/// fcntl(2): F_GETFD and F_SETFD say nothing of what a descriptor stands for.
const FCNTL: u32 = 72;
/// ioctl(2), of which two commands do the same as F_SETFD.
const IOCTL: u32 = 16;
const FIONCLEX: u32 = 0x5450;
const FIOCLEX: u32 = 0x5451;

/// The calls by number, and which registers have descriptors.
pub const USES: [(u32, &[u8]); 81] = [
    (0, &[0]),      // read
    (1, &[0]),      // write
    (5, &[0]),      // fstat
    (8, &[0]),      // lseek
    (9, &[4]),      // mmap
    (IOCTL, &[0]),  // ioctl
    (17, &[0]),     // pread64
    (18, &[0]),     // pwrite64
    (19, &[0]),     // readv
    (20, &[0]),     // writev
    (32, &[0]),     // dup
    (33, &[0]),     // dup2
    (40, &[0, 1]),  // sendfile
    (42, &[0]),     // connect
    (43, &[0]),     // accept
    (44, &[0]),     // sendto
    (45, &[0]),     // recvfrom
    (46, &[0]),     // sendmsg
    (47, &[0]),     // recvmsg
    (48, &[0]),     // shutdown
    (49, &[0]),     // bind
    (50, &[0]),     // listen
    (51, &[0]),     // getsockname
    (52, &[0]),     // getpeername
    (54, &[0]),     // setsockopt
    (55, &[0]),     // getsockopt
    (FCNTL, &[0]),  // fcntl
    (73, &[0]),     // flock
    (74, &[0]),     // fsync
    (75, &[0]),     // fdatasync
    (77, &[0]),     // ftruncate
    (78, &[0]),     // getdents
    (81, &[0]),     // fchdir
    (91, &[0]),     // fchmod
    (93, &[0]),     // fchown
    (138, &[0]),    // fstatfs
    (190, &[0]),    // fsetxattr
    (193, &[0]),    // fgetxattr
    (196, &[0]),    // flistxattr
    (199, &[0]),    // fremovexattr
    (217, &[0]),    // getdents64
    (221, &[0]),    // fadvise64
    (233, &[2]),    // epoll_ctl
    (257, &[0]),    // openat
    (258, &[0]),    // mkdirat
    (259, &[0]),    // mknodat
    (260, &[0]),    // fchownat
    (261, &[0]),    // futimesat
    (262, &[0]),    // newfstatat
    (263, &[0]),    // unlinkat
    (264, &[0, 2]), // renameat
    (265, &[0, 2]), // linkat
    (266, &[1]),    // symlinkat
    (267, &[0]),    // readlinkat
    (268, &[0]),    // fchmodat
    (269, &[0]),    // faccessat
    (275, &[0, 2]), // splice
    (276, &[0, 1]), // tee
    (277, &[0]),    // sync_file_range
    (278, &[0]),    // vmsplice
    (280, &[0]),    // utimensat
    (285, &[0]),    // fallocate
    (288, &[0]),    // accept4
    (292, &[0]),    // dup3
    (295, &[0]),    // preadv
    (296, &[0]),    // pwritev
    (299, &[0]),    // recvmmsg
    (303, &[0]),    // name_to_handle_at
    (307, &[0]),    // sendmmsg
    (316, &[0, 2]), // renameat2
    (322, &[0]),    // execveat
    (326, &[0, 2]), // copy_file_range
    (327, &[0]),    // preadv2
    (328, &[0]),    // pwritev2
    (332, &[0]),    // statx
    (437, &[0]),    // openat2
    (439, &[0]),    // faccessat2
    (452, &[0]),    // fchmodat2
    (464, &[0]),    // getxattrat
    (465, &[0]),    // listxattrat
    (468, &[0]),    // file_getattr
];

/// The descriptor among `watched` that the call uses.
pub fn used(number: u64, args: &Args, watched: &[u32]) -> Option<u32> {
    let (_, registers) = USES.iter().find(|(use_, _)| u64::from(*use_) == number)?;
    // Whether it is closed at an exec is no matter of the file.
    let harmless = match u32::try_from(number) {
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
        assert_eq!(used(1, &args(0, 7), &[3, 7]), Some(7), "write");
        assert_eq!(used(1, &args(1, 7), &[7]), None, "its buffer");
        assert_eq!(used(275, &args(2, 7), &[7]), Some(7), "what splice writes to");
        assert_eq!(used(72, &[7, 0, 0, 0, 0, 0], &[7]), Some(7), "F_DUPFD");
        assert_eq!(used(72, &[7, 3, 0, 0, 0, 0], &[7]), Some(7), "F_GETFL");
        assert_eq!(used(72, &[7, 1, 0, 0, 0, 0], &[7]), None, "F_GETFD");
        assert_eq!(used(16, &[7, 0x5451, 0, 0, 0, 0], &[7]), None, "FIOCLEX");
        assert_eq!(used(16, &[7, 0x5401, 0, 0, 0, 0], &[7]), Some(7), "TCGETS");
        assert_eq!(used(3, &args(0, 7), &[7]), None, "close");
    }
}
