//! The numbers of all system calls of Linux 7.0: arch/x86/entry/syscalls/syscall_64.tbl and, for aarch64,
//! scripts/syscall.tbl of the kernel's source. Numbers from 424 on are the same everywhere.

use std::cmp::Ordering;

use super::args::Sysno;
use crate::trace::sys::arch;

/// The numbers of one system call, each [`NONE`] where an architecture has no such call.
#[derive(Debug)]
pub struct Numbers {
    /// Its name in the kernel's tables.
    pub name: &'static str,
    /// Its number on x86_64.
    pub x86_64: u32,
    /// Its number on aarch64.
    pub aarch64: u32,
}

/// No number of any call.
pub const NONE: u32 = u32::MAX;

/// Room for all numbers of all architectures.
const ROOM: usize = 512;

/// Which numbers some call has here. Those between are left for new calls of one architecture alone.
static KNOWN: [bool; ROOM] = {
    let mut known = [false; ROOM];
    let mut at = 0;
    while at < CALLS.len() {
        let number = arch::number(&CALLS[at]);
        if number != NONE {
            known[number as usize] = true;
        }
        at += 1;
    }
    known
};

/// The highest number that a call has here.
pub const LAST: Sysno = {
    let (mut last, mut at) = (0, 0);
    while at < CALLS.len() {
        let number = arch::number(&CALLS[at]);
        if number != NONE && number > last {
            last = number;
        }
        at += 1;
    }
    Sysno(last)
};

/// Whether some kernel has a call of this number. An unknown one is [`Special::Unmodelled`](super::Special::Unmodelled).
pub fn is_known(sysno: Sysno) -> bool {
    usize::try_from(sysno.0).ok().and_then(|number| KNOWN.get(number)).copied().unwrap_or(false)
}

/// Where the row of each number is in a table of rows; [`index!`] makes it.
pub struct Index([u8; ROOM]);

/// The [`Index`] of the table `$rows`, for a constant; `$number` is the field of a row that has its number.
macro_rules! index {
    ($rows:ident, $($number:tt)+) => {{
        let mut index = $crate::trace::syscalls::Index::EMPTY;
        let mut at: u8 = 0;
        while (at as usize) < $rows.len() {
            index.add($rows[at as usize].$($number)+, at);
            at += 1;
        }
        index
    }};
}
pub(crate) use index;

impl Index {
    const NO_ROW: u8 = u8::MAX;

    /// The index of an empty table.
    pub const EMPTY: Index = Index([Index::NO_ROW; ROOM]);

    /// Adds the row at `at`, unless this architecture has no such call. For constants alone: it panics if the number has
    /// a row.
    pub const fn add(&mut self, number: u32, at: u8) {
        assert!(at < Index::NO_ROW);
        if number != NONE {
            assert!(self.0[number as usize] == Index::NO_ROW);
            self.0[number as usize] = at;
        }
    }

    /// Where the row of a number is, if it has one.
    pub fn find(&self, number: u64) -> Option<usize> {
        let at = *self.0.get(usize::try_from(number).ok()?)?;
        (at != Index::NO_ROW).then_some(usize::from(at))
    }
}

/// The number here of the system call `name`; [`NONE`] if this architecture has no such call. For constants alone: it
/// panics if no architecture has one.
pub const fn number(name: &str) -> u32 {
    let (mut low, mut high) = (0, CALLS.len());
    while low < high {
        let middle = usize::midpoint(low, high);
        match compare(CALLS[middle].name.as_bytes(), name.as_bytes()) {
            Ordering::Less => low = middle + 1,
            Ordering::Equal => return arch::number(&CALLS[middle]),
            Ordering::Greater => high = middle,
        }
    }
    panic!("no system call has this name")
}

/// The order of names, since that of slices is not for constants.
const fn compare(one: &[u8], other: &[u8]) -> Ordering {
    let mut at = 0;
    while at < one.len() && at < other.len() {
        if one[at] != other[at] {
            return if one[at] < other[at] { Ordering::Less } else { Ordering::Greater };
        }
        at += 1;
    }
    if one.len() < other.len() {
        Ordering::Less
    } else if one.len() > other.len() {
        Ordering::Greater
    } else {
        Ordering::Equal
    }
}

const fn call(name: &'static str, x86_64: u32, aarch64: u32) -> Numbers {
    Numbers { name, x86_64, aarch64 }
}

/// All calls, by name.
#[rustfmt::skip]
pub const CALLS: &[Numbers] = &[
    call("_sysctl", 156, NONE),
    call("accept", 43, 202),
    call("accept4", 288, 242),
    call("access", 21, NONE),
    call("acct", 163, 89),
    call("add_key", 248, 217),
    call("adjtimex", 159, 171),
    call("afs_syscall", 183, NONE),
    call("alarm", 37, NONE),
    call("arch_prctl", 158, NONE),
    call("bind", 49, 200),
    call("bpf", 321, 280),
    call("brk", 12, 214),
    call("cachestat", 451, 451),
    call("capget", 125, 90),
    call("capset", 126, 91),
    call("chdir", 80, 49),
    call("chmod", 90, NONE),
    call("chown", 92, NONE),
    call("chroot", 161, 51),
    call("clock_adjtime", 305, 266),
    call("clock_getres", 229, 114),
    call("clock_gettime", 228, 113),
    call("clock_nanosleep", 230, 115),
    call("clock_settime", 227, 112),
    call("clone", 56, 220),
    call("clone3", 435, 435),
    call("close", 3, 57),
    call("close_range", 436, 436),
    call("connect", 42, 203),
    call("copy_file_range", 326, 285),
    call("creat", 85, NONE),
    call("create_module", 174, NONE),
    call("delete_module", 176, 106),
    call("dup", 32, 23),
    call("dup2", 33, NONE),
    call("dup3", 292, 24),
    call("epoll_create", 213, NONE),
    call("epoll_create1", 291, 20),
    call("epoll_ctl", 233, 21),
    call("epoll_ctl_old", 214, NONE),
    call("epoll_pwait", 281, 22),
    call("epoll_pwait2", 441, 441),
    call("epoll_wait", 232, NONE),
    call("epoll_wait_old", 215, NONE),
    call("eventfd", 284, NONE),
    call("eventfd2", 290, 19),
    call("execve", 59, 221),
    call("execveat", 322, 281),
    call("exit", 60, 93),
    call("exit_group", 231, 94),
    call("faccessat", 269, 48),
    call("faccessat2", 439, 439),
    call("fadvise64", 221, 223),
    call("fallocate", 285, 47),
    call("fanotify_init", 300, 262),
    call("fanotify_mark", 301, 263),
    call("fchdir", 81, 50),
    call("fchmod", 91, 52),
    call("fchmodat", 268, 53),
    call("fchmodat2", 452, 452),
    call("fchown", 93, 55),
    call("fchownat", 260, 54),
    call("fcntl", 72, 25),
    call("fdatasync", 75, 83),
    call("fgetxattr", 193, 10),
    call("file_getattr", 468, 468),
    call("file_setattr", 469, 469),
    call("finit_module", 313, 273),
    call("flistxattr", 196, 13),
    call("flock", 73, 32),
    call("fork", 57, NONE),
    call("fremovexattr", 199, 16),
    call("fsconfig", 431, 431),
    call("fsetxattr", 190, 7),
    call("fsmount", 432, 432),
    call("fsopen", 430, 430),
    call("fspick", 433, 433),
    call("fstat", 5, 80),
    call("fstatfs", 138, 44),
    call("fsync", 74, 82),
    call("ftruncate", 77, 46),
    call("futex", 202, 98),
    call("futex_requeue", 456, 456),
    call("futex_wait", 455, 455),
    call("futex_waitv", 449, 449),
    call("futex_wake", 454, 454),
    call("futimesat", 261, NONE),
    call("get_kernel_syms", 177, NONE),
    call("get_mempolicy", 239, 236),
    call("get_robust_list", 274, 100),
    call("get_thread_area", 211, NONE),
    call("getcpu", 309, 168),
    call("getcwd", 79, 17),
    call("getdents", 78, NONE),
    call("getdents64", 217, 61),
    call("getegid", 108, 177),
    call("geteuid", 107, 175),
    call("getgid", 104, 176),
    call("getgroups", 115, 158),
    call("getitimer", 36, 102),
    call("getpeername", 52, 205),
    call("getpgid", 121, 155),
    call("getpgrp", 111, NONE),
    call("getpid", 39, 172),
    call("getpmsg", 181, NONE),
    call("getppid", 110, 173),
    call("getpriority", 140, 141),
    call("getrandom", 318, 278),
    call("getresgid", 120, 150),
    call("getresuid", 118, 148),
    call("getrlimit", 97, 163),
    call("getrusage", 98, 165),
    call("getsid", 124, 156),
    call("getsockname", 51, 204),
    call("getsockopt", 55, 209),
    call("gettid", 186, 178),
    call("gettimeofday", 96, 169),
    call("getuid", 102, 174),
    call("getxattr", 191, 8),
    call("getxattrat", 464, 464),
    call("init_module", 175, 105),
    call("inotify_add_watch", 254, 27),
    call("inotify_init", 253, NONE),
    call("inotify_init1", 294, 26),
    call("inotify_rm_watch", 255, 28),
    call("io_cancel", 210, 3),
    call("io_destroy", 207, 1),
    call("io_getevents", 208, 4),
    call("io_pgetevents", 333, 292),
    call("io_setup", 206, 0),
    call("io_submit", 209, 2),
    call("io_uring_enter", 426, 426),
    call("io_uring_register", 427, 427),
    call("io_uring_setup", 425, 425),
    call("ioctl", 16, 29),
    call("ioperm", 173, NONE),
    call("iopl", 172, NONE),
    call("ioprio_get", 252, 31),
    call("ioprio_set", 251, 30),
    call("kcmp", 312, 272),
    call("kexec_file_load", 320, 294),
    call("kexec_load", 246, 104),
    call("keyctl", 250, 219),
    call("kill", 62, 129),
    call("landlock_add_rule", 445, 445),
    call("landlock_create_ruleset", 444, 444),
    call("landlock_restrict_self", 446, 446),
    call("lchown", 94, NONE),
    call("lgetxattr", 192, 9),
    call("link", 86, NONE),
    call("linkat", 265, 37),
    call("listen", 50, 201),
    call("listmount", 458, 458),
    call("listns", 470, 470),
    call("listxattr", 194, 11),
    call("listxattrat", 465, 465),
    call("llistxattr", 195, 12),
    call("lookup_dcookie", 212, 18),
    call("lremovexattr", 198, 15),
    call("lseek", 8, 62),
    call("lsetxattr", 189, 6),
    call("lsm_get_self_attr", 459, 459),
    call("lsm_list_modules", 461, 461),
    call("lsm_set_self_attr", 460, 460),
    call("lstat", 6, NONE),
    call("madvise", 28, 233),
    call("map_shadow_stack", 453, 453),
    call("mbind", 237, 235),
    call("membarrier", 324, 283),
    call("memfd_create", 319, 279),
    call("memfd_secret", 447, 447),
    call("migrate_pages", 256, 238),
    call("mincore", 27, 232),
    call("mkdir", 83, NONE),
    call("mkdirat", 258, 34),
    call("mknod", 133, NONE),
    call("mknodat", 259, 33),
    call("mlock", 149, 228),
    call("mlock2", 325, 284),
    call("mlockall", 151, 230),
    call("mmap", 9, 222),
    call("modify_ldt", 154, NONE),
    call("mount", 165, 40),
    call("mount_setattr", 442, 442),
    call("move_mount", 429, 429),
    call("move_pages", 279, 239),
    call("mprotect", 10, 226),
    call("mq_getsetattr", 245, 185),
    call("mq_notify", 244, 184),
    call("mq_open", 240, 180),
    call("mq_timedreceive", 243, 183),
    call("mq_timedsend", 242, 182),
    call("mq_unlink", 241, 181),
    call("mremap", 25, 216),
    call("mseal", 462, 462),
    call("msgctl", 71, 187),
    call("msgget", 68, 186),
    call("msgrcv", 70, 188),
    call("msgsnd", 69, 189),
    call("msync", 26, 227),
    call("munlock", 150, 229),
    call("munlockall", 152, 231),
    call("munmap", 11, 215),
    call("name_to_handle_at", 303, 264),
    call("nanosleep", 35, 101),
    call("newfstatat", 262, 79),
    call("nfsservctl", 180, 42),
    call("open", 2, NONE),
    call("open_by_handle_at", 304, 265),
    call("open_tree", 428, 428),
    call("open_tree_attr", 467, 467),
    call("openat", 257, 56),
    call("openat2", 437, 437),
    call("pause", 34, NONE),
    call("perf_event_open", 298, 241),
    call("personality", 135, 92),
    call("pidfd_getfd", 438, 438),
    call("pidfd_open", 434, 434),
    call("pidfd_send_signal", 424, 424),
    call("pipe", 22, NONE),
    call("pipe2", 293, 59),
    call("pivot_root", 155, 41),
    call("pkey_alloc", 330, 289),
    call("pkey_free", 331, 290),
    call("pkey_mprotect", 329, 288),
    call("poll", 7, NONE),
    call("ppoll", 271, 73),
    call("prctl", 157, 167),
    call("pread64", 17, 67),
    call("preadv", 295, 69),
    call("preadv2", 327, 286),
    call("prlimit64", 302, 261),
    call("process_madvise", 440, 440),
    call("process_mrelease", 448, 448),
    call("process_vm_readv", 310, 270),
    call("process_vm_writev", 311, 271),
    call("pselect6", 270, 72),
    call("ptrace", 101, 117),
    call("putpmsg", 182, NONE),
    call("pwrite64", 18, 68),
    call("pwritev", 296, 70),
    call("pwritev2", 328, 287),
    call("query_module", 178, NONE),
    call("quotactl", 179, 60),
    call("quotactl_fd", 443, 443),
    call("read", 0, 63),
    call("readahead", 187, 213),
    call("readlink", 89, NONE),
    call("readlinkat", 267, 78),
    call("readv", 19, 65),
    call("reboot", 169, 142),
    call("recvfrom", 45, 207),
    call("recvmmsg", 299, 243),
    call("recvmsg", 47, 212),
    call("remap_file_pages", 216, 234),
    call("removexattr", 197, 14),
    call("removexattrat", 466, 466),
    call("rename", 82, NONE),
    call("renameat", 264, 38),
    call("renameat2", 316, 276),
    call("request_key", 249, 218),
    call("restart_syscall", 219, 128),
    call("rmdir", 84, NONE),
    call("rseq", 334, 293),
    call("rseq_slice_yield", 471, 471),
    call("rt_sigaction", 13, 134),
    call("rt_sigpending", 127, 136),
    call("rt_sigprocmask", 14, 135),
    call("rt_sigqueueinfo", 129, 138),
    call("rt_sigreturn", 15, 139),
    call("rt_sigsuspend", 130, 133),
    call("rt_sigtimedwait", 128, 137),
    call("rt_tgsigqueueinfo", 297, 240),
    call("sched_get_priority_max", 146, 125),
    call("sched_get_priority_min", 147, 126),
    call("sched_getaffinity", 204, 123),
    call("sched_getattr", 315, 275),
    call("sched_getparam", 143, 121),
    call("sched_getscheduler", 145, 120),
    call("sched_rr_get_interval", 148, 127),
    call("sched_setaffinity", 203, 122),
    call("sched_setattr", 314, 274),
    call("sched_setparam", 142, 118),
    call("sched_setscheduler", 144, 119),
    call("sched_yield", 24, 124),
    call("seccomp", 317, 277),
    call("security", 185, NONE),
    call("select", 23, NONE),
    call("semctl", 66, 191),
    call("semget", 64, 190),
    call("semop", 65, 193),
    call("semtimedop", 220, 192),
    call("sendfile", 40, 71),
    call("sendmmsg", 307, 269),
    call("sendmsg", 46, 211),
    call("sendto", 44, 206),
    call("set_mempolicy", 238, 237),
    call("set_mempolicy_home_node", 450, 450),
    call("set_robust_list", 273, 99),
    call("set_thread_area", 205, NONE),
    call("set_tid_address", 218, 96),
    call("setdomainname", 171, 162),
    call("setfsgid", 123, 152),
    call("setfsuid", 122, 151),
    call("setgid", 106, 144),
    call("setgroups", 116, 159),
    call("sethostname", 170, 161),
    call("setitimer", 38, 103),
    call("setns", 308, 268),
    call("setpgid", 109, 154),
    call("setpriority", 141, 140),
    call("setregid", 114, 143),
    call("setresgid", 119, 149),
    call("setresuid", 117, 147),
    call("setreuid", 113, 145),
    call("setrlimit", 160, 164),
    call("setsid", 112, 157),
    call("setsockopt", 54, 208),
    call("settimeofday", 164, 170),
    call("setuid", 105, 146),
    call("setxattr", 188, 5),
    call("setxattrat", 463, 463),
    call("shmat", 30, 196),
    call("shmctl", 31, 195),
    call("shmdt", 67, 197),
    call("shmget", 29, 194),
    call("shutdown", 48, 210),
    call("sigaltstack", 131, 132),
    call("signalfd", 282, NONE),
    call("signalfd4", 289, 74),
    call("socket", 41, 198),
    call("socketpair", 53, 199),
    call("splice", 275, 76),
    call("stat", 4, NONE),
    call("statfs", 137, 43),
    call("statmount", 457, 457),
    call("statx", 332, 291),
    call("swapoff", 168, 225),
    call("swapon", 167, 224),
    call("symlink", 88, NONE),
    call("symlinkat", 266, 36),
    call("sync", 162, 81),
    call("sync_file_range", 277, 84),
    call("syncfs", 306, 267),
    call("sysfs", 139, NONE),
    call("sysinfo", 99, 179),
    call("syslog", 103, 116),
    call("tee", 276, 77),
    call("tgkill", 234, 131),
    call("time", 201, NONE),
    call("timer_create", 222, 107),
    call("timer_delete", 226, 111),
    call("timer_getoverrun", 225, 109),
    call("timer_gettime", 224, 108),
    call("timer_settime", 223, 110),
    call("timerfd_create", 283, 85),
    call("timerfd_gettime", 287, 87),
    call("timerfd_settime", 286, 86),
    call("times", 100, 153),
    call("tkill", 200, 130),
    call("truncate", 76, 45),
    call("tuxcall", 184, NONE),
    call("umask", 95, 166),
    call("umount2", 166, 39),
    call("uname", 63, 160),
    call("unlink", 87, NONE),
    call("unlinkat", 263, 35),
    call("unshare", 272, 97),
    call("uprobe", 336, NONE),
    call("uretprobe", 335, NONE),
    call("uselib", 134, NONE),
    call("userfaultfd", 323, 282),
    call("ustat", 136, NONE),
    call("utime", 132, NONE),
    call("utimensat", 280, 88),
    call("utimes", 235, NONE),
    call("vfork", 58, NONE),
    call("vhangup", 153, 58),
    call("vmsplice", 278, 75),
    call("vserver", 236, NONE),
    call("wait4", 61, 260),
    call("waitid", 247, 95),
    call("write", 1, 64),
    call("writev", 20, 66),
];
