//! libc, with the old system calls that some architectures do not have: there the newer calls stand for them, and are
//! to be recorded as the same.

pub use libc::*;

#[cfg(not(target_arch = "aarch64"))]
pub use libc::syscall as call;

#[cfg(target_arch = "aarch64")]
pub use newer::*;

#[cfg(target_arch = "aarch64")]
#[allow(non_upper_case_globals, reason = "as in libc")]
mod newer {
    use libc::*;

    macro_rules! old_calls {
        ($($name:ident = $number:expr),* $(,)?) => { $(pub const $name: c_long = $number;)* };
    }
    // No numbers of calls.
    old_calls!(
        SYS_open = -2,
        SYS_stat = -3,
        SYS_lstat = -4,
        SYS_access = -5,
        SYS_rename = -6,
        SYS_mkdir = -7,
        SYS_rmdir = -8,
        SYS_creat = -9,
        SYS_link = -10,
        SYS_unlink = -11,
        SYS_symlink = -12,
        SYS_readlink = -13,
        SYS_chmod = -14,
        SYS_chown = -15,
        SYS_lchown = -16,
        SYS_utime = -17,
        SYS_mknod = -18,
        SYS_uselib = -19,
        SYS_utimes = -20,
        SYS_futimesat = -21,
        SYS_fork = -22,
        SYS_getdents = -23,
    );

    /// libc does not have it for this architecture yet.
    pub const SYS_fchmodat2: c_long = 452;

    /// Any times, in place of those of another structure. What is no address of a structure stays.
    fn times(address: c_long) -> c_long {
        static TIMES: [timespec; 2] = [timespec { tv_sec: 1, tv_nsec: 0 }; 2];
        if address < 4096 { address } else { (&raw const TIMES) as c_long }
    }

    /// Makes a system call.
    ///
    /// # Safety
    /// As of syscall(2).
    pub unsafe fn call(
        number: c_long,
        a: c_long,
        b: c_long,
        c: c_long,
        d: c_long,
        e: c_long,
        f: c_long,
    ) -> c_long {
        const CWD: c_long = AT_FDCWD as c_long;
        const CREATE: c_long = (O_CREAT | O_WRONLY | O_TRUNC) as c_long;
        const NOFOLLOW: c_long = AT_SYMLINK_NOFOLLOW as c_long;
        let (number, words) = match number {
            SYS_open => (SYS_openat, [CWD, a, b, c, 0, 0]),
            SYS_stat => (SYS_newfstatat, [CWD, a, b, 0, 0, 0]),
            SYS_lstat => (SYS_newfstatat, [CWD, a, b, NOFOLLOW, 0, 0]),
            SYS_access => (SYS_faccessat, [CWD, a, b, 0, 0, 0]),
            SYS_rename => (SYS_renameat, [CWD, a, CWD, b, 0, 0]),
            SYS_mkdir => (SYS_mkdirat, [CWD, a, b, 0, 0, 0]),
            SYS_rmdir => (SYS_unlinkat, [CWD, a, AT_REMOVEDIR as c_long, 0, 0, 0]),
            SYS_creat => (SYS_openat, [CWD, a, CREATE, b, 0, 0]),
            SYS_link => (SYS_linkat, [CWD, a, CWD, b, 0, 0]),
            SYS_unlink => (SYS_unlinkat, [CWD, a, 0, 0, 0, 0]),
            SYS_symlink => (SYS_symlinkat, [a, CWD, b, 0, 0, 0]),
            SYS_readlink => (SYS_readlinkat, [CWD, a, b, c, 0, 0]),
            SYS_chmod => (SYS_fchmodat, [CWD, a, b, 0, 0, 0]),
            SYS_chown => (SYS_fchownat, [CWD, a, b, c, 0, 0]),
            SYS_lchown => (SYS_fchownat, [CWD, a, b, c, NOFOLLOW, 0]),
            SYS_utime | SYS_utimes => (SYS_utimensat, [CWD, a, times(b), 0, 0, 0]),
            SYS_mknod => (SYS_mknodat, [CWD, a, b, c, 0, 0]),
            SYS_futimesat => (SYS_utimensat, [a, b, times(c), 0, 0, 0]),
            SYS_fork => (SYS_clone, [SIGCHLD as c_long, 0, 0, 0, 0, 0]),
            SYS_getdents => (SYS_getdents64, [a, b, c, 0, 0, 0]),
            number => (number, [a, b, c, d, e, f]),
        };
        let [a, b, c, d, e, f] = words;
        // SAFETY: as of the caller; a negative number is refused.
        unsafe { syscall(number, a, b, c, d, e, f) }
    }
}
