//! Calls that read, write or duplicate what a descriptor stands for: no path tells of them.
//!
//! They matter only for descriptors from before the launch, and only where that is asked for. Neighbours: `filter.rs`
//! makes such calls stop, `tracer.rs` reports them.

use super::syscalls::Args;

/// fcntl(2), which duplicates with two of its commands.
const FCNTL: u32 = 72;

/// The calls by number, and which registers have descriptors.
pub const USES: [(u32, &[u8]); 25] = [
    (0, &[0]),      // read
    (1, &[0]),      // write
    (17, &[0]),     // pread64
    (18, &[0]),     // pwrite64
    (19, &[0]),     // readv
    (20, &[0]),     // writev
    (32, &[0]),     // dup
    (33, &[0]),     // dup2
    (40, &[0, 1]),  // sendfile
    (44, &[0]),     // sendto
    (45, &[0]),     // recvfrom
    (46, &[0]),     // sendmsg
    (47, &[0]),     // recvmsg
    (FCNTL, &[0]),  // fcntl
    (275, &[0, 2]), // splice
    (276, &[0, 1]), // tee
    (278, &[0]),    // vmsplice
    (292, &[0]),    // dup3
    (295, &[0]),    // preadv
    (296, &[0]),    // pwritev
    (299, &[0]),    // recvmmsg
    (307, &[0]),    // sendmmsg
    (326, &[0, 2]), // copy_file_range
    (327, &[0]),    // preadv2
    (328, &[0]),    // pwritev2
];

/// The descriptor among `watched` that the call uses.
pub fn used(number: u64, args: &Args, watched: &[u32]) -> Option<u32> {
    let (_, registers) = USES.iter().find(|(use_, _)| u64::from(*use_) == number)?;
    let duplicates = [libc::F_DUPFD, libc::F_DUPFD_CLOEXEC].map(i64::from);
    if number == u64::from(FCNTL) && !duplicates.contains(&(args[1].cast_signed() & 0xffff_ffff)) {
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
        assert_eq!(used(72, &[7, 1, 0, 0, 0, 0], &[7]), None, "F_GETFD");
        assert_eq!(used(3, &args(0, 7), &[7]), None, "close");
    }
}
