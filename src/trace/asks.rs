//! Calls that tell a process something of the system or of other processes which no path tells, or that change such a
//! thing.
//!
//! This matters only where a recording may be recalled; some of them have a row in the table of system calls for what else
//! they do. Neighbours: `filter.rs` makes such calls stop, `tracer.rs` reports them.

use super::memory::{Fault, Memory, RemoteAddr};
use super::syscalls::{Args, Condition};

/// What a call asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ask {
    /// Random bytes; mmap with MAP_DROPPABLE, by which the C library prepares to get them without a call (getrandom in
    /// the vDSO, Linux 6.11).
    RandomBytes {
        /// Whether it may be the GNU C library that asks, for a key of malloc's own or for the name of a temporary
        /// file.
        may_be_of_libc: bool,
    },
    /// The space that is free on the file system of a path.
    FreeSpace(Vec<u8>),
    /// A lock on the file of this descriptor, or who holds one.
    Lock(i32),
    /// A lease: whether others have the file open.
    Lease,
    /// A key of the kernel's key retention service.
    Keys,
    /// A POSIX message queue.
    MessageQueue,
    /// System V shared memory, semaphores or message queues.
    SystemV,
    /// A socket that is not of AF_UNIX, or the network interfaces.
    Network,
    /// A process or thread; 0 is the caller.
    Process(i32),
    /// The processes of a group; 0 is the caller's own.
    Group(i32),
    /// All processes, or those of a user.
    Processes,
    /// The state of the system, such as its mounts, quotas, log or name.
    System,
}

/// What a row's call asks for, by its arguments; none if nothing after all.
type Decode = fn(&Args, &dyn Memory) -> Result<Option<Ask>, Fault>;

/// A call: its number, when it matters (always if there is no condition), and what it asks for.
type Row = (u32, &'static [Condition], Decode);

const ALWAYS: &[Condition] = &[];

/// The lower half of a register is not zero.
const fn not_zero(arg: u8) -> Condition {
    Condition::Has { arg, mask: u32::MAX }
}

const fn is(arg: u8, value: u32) -> Condition {
    Condition::Is { arg, value }
}

/// MAP_DROPPABLE of mmap (linux/mman.h, Linux 6.11).
const DROPPABLE: u32 = 0x8;

const NOT_OF_CALLER: &[Condition] = &[not_zero(0)];

/// F_GETLK, F_SETLK, F_SETLKW, F_OFD_GETLK, F_OFD_SETLK, F_OFD_SETLKW, F_SETLEASE, F_GETLEASE.
const LOCKING: &[Condition] =
    &[is(1, 5), is(1, 6), is(1, 7), is(1, 36), is(1, 37), is(1, 38), is(1, SETLEASE), is(1, GETLEASE)];
const SETLEASE: u32 = libc::F_SETLEASE.unsigned_abs();
const GETLEASE: u32 = libc::F_GETLEASE.unsigned_abs();

/// What a socket tells of the interfaces: SIOCGIFNAME and the like (netdevice(7)).
const INTERFACES: &[Condition] = &[
    is(1, 0x8910), // SIOCGIFNAME
    is(1, 0x8912), // SIOCGIFCONF
    is(1, 0x8913), // SIOCGIFFLAGS
    is(1, 0x8915), // SIOCGIFADDR
    is(1, 0x8917), // SIOCGIFDSTADDR
    is(1, 0x8919), // SIOCGIFBRDADDR
    is(1, 0x891b), // SIOCGIFNETMASK
    is(1, 0x891d), // SIOCGIFMETRIC
    is(1, 0x8921), // SIOCGIFMTU
    is(1, 0x8927), // SIOCGIFHWADDR
    is(1, 0x8933), // SIOCGIFINDEX
    is(1, 0x8935), // SIOCGIFPFLAGS
    is(1, 0x8938), // SIOCGIFCOUNT
    is(1, 0x8940), // SIOCGIFBR
    is(1, 0x8942), // SIOCGIFTXQLEN
    is(1, 0x8946), // SIOCETHTOOL
    is(1, 0x8970), // SIOCGIFMAP
];

/// All calls, by number.
pub const ROWS: &[Row] = &[
    // mmap(addr, length, prot, flags, fd, offset)
    (9, &[Condition::Has { arg: 3, mask: DROPPABLE }], |_, _| random(false)),
    (16, INTERFACES, |_, _| plain(Ask::Network)), // ioctl
    (29, ALWAYS, |_, _| plain(Ask::SystemV)),     // shmget
    (30, ALWAYS, |_, _| plain(Ask::SystemV)),     // shmat
    (31, ALWAYS, |_, _| plain(Ask::SystemV)),     // shmctl
    // socket(domain, type, protocol): of another family than AF_UNIX, whose number is 1
    (41, &[Condition::Has { arg: 0, mask: !1 }], |_, _| plain(Ask::Network)),
    // kill(pid, sig)
    (62, ALWAYS, |args, _| plain(killed(number(args, 0)))),
    (64, ALWAYS, |_, _| plain(Ask::SystemV)), // semget
    (65, ALWAYS, |_, _| plain(Ask::SystemV)), // semop
    (66, ALWAYS, |_, _| plain(Ask::SystemV)), // semctl
    (68, ALWAYS, |_, _| plain(Ask::SystemV)), // msgget
    (69, ALWAYS, |_, _| plain(Ask::SystemV)), // msgsnd
    (70, ALWAYS, |_, _| plain(Ask::SystemV)), // msgrcv
    (71, ALWAYS, |_, _| plain(Ask::SystemV)), // msgctl
    // fcntl(fd, cmd, arg)
    (72, LOCKING, |args, memory| {
        if is_unlock(args, memory) {
            return Ok(None);
        }
        let is_lease = [SETLEASE, GETLEASE].map(u32::cast_signed).contains(&number(args, 1));
        plain(if is_lease { Ask::Lease } else { Ask::Lock(number(args, 0)) })
    }),
    // flock(fd, operation): to give a lock back tells nothing
    (73, ALWAYS, |args, _| Ok((number(args, 1) & libc::LOCK_UN == 0).then(|| Ask::Lock(number(args, 0))))),
    (103, ALWAYS, |_, _| plain(Ask::System)), // syslog
    (121, NOT_OF_CALLER, process),            // getpgid
    (124, NOT_OF_CALLER, process),            // getsid
    // capget(hdrp, datap): the process is in memory
    (125, ALWAYS, |args, memory| {
        let mut pid = [0; 4];
        memory.read_exact(RemoteAddr(args[0].wrapping_add(4)), &mut pid)?;
        plain(Ask::Process(i32::from_ne_bytes(pid)))
    }),
    (129, ALWAYS, process),                   // rt_sigqueueinfo
    (136, ALWAYS, |_, _| plain(Ask::System)), // ustat
    // statfs(path, buf)
    (137, ALWAYS, |args, memory| plain(Ask::FreeSpace(memory.read_path(RemoteAddr(args[0]))?))),
    // getpriority(which, who), setpriority(which, who, prio): of PRIO_PROCESS, PRIO_PGRP, PRIO_USER
    (140, &[not_zero(0), not_zero(1)], |args, _| plain(group_or_process(args, 0))),
    (141, &[not_zero(0), not_zero(1)], |args, _| plain(group_or_process(args, 0))),
    (142, NOT_OF_CALLER, process),                  // sched_setparam
    (143, NOT_OF_CALLER, process),                  // sched_getparam
    (144, NOT_OF_CALLER, process),                  // sched_setscheduler
    (145, NOT_OF_CALLER, process),                  // sched_getscheduler
    (148, NOT_OF_CALLER, process),                  // sched_rr_get_interval
    (164, ALWAYS, |_, _| plain(Ask::System)),       // settimeofday
    (170, ALWAYS, |_, _| plain(Ask::System)),       // sethostname
    (171, ALWAYS, |_, _| plain(Ask::System)),       // setdomainname
    (179, ALWAYS, |_, _| plain(Ask::System)),       // quotactl
    (200, ALWAYS, process),                         // tkill
    (203, NOT_OF_CALLER, process),                  // sched_setaffinity
    (204, NOT_OF_CALLER, process),                  // sched_getaffinity
    (227, ALWAYS, |_, _| plain(Ask::System)),       // clock_settime
    (234, ALWAYS, process),                         // tgkill
    (239, ALWAYS, |_, _| plain(Ask::System)),       // get_mempolicy
    (240, ALWAYS, |_, _| plain(Ask::MessageQueue)), // mq_open
    (241, ALWAYS, |_, _| plain(Ask::MessageQueue)), // mq_unlink
    (248, ALWAYS, |_, _| plain(Ask::Keys)),         // add_key
    (249, ALWAYS, |_, _| plain(Ask::Keys)),         // request_key
    (250, ALWAYS, |_, _| plain(Ask::Keys)),         // keyctl
    // ioprio_set(which, who, ioprio), ioprio_get(which, who): of IOPRIO_WHO_PROCESS, which is 1, _PGRP, _USER
    (251, &[Condition::Has { arg: 0, mask: !1 }, not_zero(1)], |args, _| plain(group_or_process(args, 1))),
    (252, &[Condition::Has { arg: 0, mask: !1 }, not_zero(1)], |args, _| plain(group_or_process(args, 1))),
    (256, NOT_OF_CALLER, process),               // migrate_pages
    (274, NOT_OF_CALLER, process),               // get_robust_list
    (279, NOT_OF_CALLER, process),               // move_pages
    (297, ALWAYS, process),                      // rt_tgsigqueueinfo
    (298, ALWAYS, |_, _| plain(Ask::System)),    // perf_event_open
    (302, NOT_OF_CALLER, process),               // prlimit64
    (310, ALWAYS, process),                      // process_vm_readv
    (311, ALWAYS, process),                      // process_vm_writev
    (312, ALWAYS, |_, _| plain(Ask::Processes)), // kcmp
    (314, NOT_OF_CALLER, process),               // sched_setattr
    (315, NOT_OF_CALLER, process),               // sched_getattr
    // getrandom(buf, buflen, flags): the GNU C library asks for eight bytes, without waiting
    (318, ALWAYS, |args, _| random(args[1] == 8 && number(args, 2).cast_unsigned() == libc::GRND_NONBLOCK)),
    (434, ALWAYS, process),                   // pidfd_open
    (457, ALWAYS, |_, _| plain(Ask::System)), // statmount
    (458, ALWAYS, |_, _| plain(Ask::System)), // listmount
];

/// Whether fcntl gives a lock back, by `struct flock`, whose first field is the type: that tells nothing.
fn is_unlock(args: &Args, memory: &dyn Memory) -> bool {
    const SETTING: [i32; 4] = [libc::F_SETLK, libc::F_SETLKW, libc::F_OFD_SETLK, libc::F_OFD_SETLKW];
    let mut kind = [0; 2];
    SETTING.contains(&number(args, 1))
        && memory.read_exact(RemoteAddr(args[2]), &mut kind).is_ok()
        && i32::from(i16::from_ne_bytes(kind)) == libc::F_UNLCK
}

/// An argument of 32 bits: the upper half of its register is noise.
fn number(args: &Args, arg: usize) -> i32 {
    i32::from_ne_bytes(args[arg].to_ne_bytes().first_chunk().copied().unwrap_or_default())
}

#[expect(clippy::unnecessary_wraps, reason = "rows are of one type")]
fn plain(ask: Ask) -> Result<Option<Ask>, Fault> {
    Ok(Some(ask))
}

fn random(may_be_of_libc: bool) -> Result<Option<Ask>, Fault> {
    plain(Ask::RandomBytes { may_be_of_libc })
}

/// The process or thread in the first register.
fn process(args: &Args, _: &dyn Memory) -> Result<Option<Ask>, Fault> {
    plain(Ask::Process(number(args, 0)))
}

/// What kill(2) reaches.
fn killed(pid: i32) -> Ask {
    match pid {
        -1 | i32::MIN => Ask::Processes,
        ..=0 => Ask::Group(-pid),
        _ => Ask::Process(pid),
    }
}

/// Whom the two first registers select; `of_process` in the first one selects a process, the next number a group.
fn group_or_process(args: &Args, of_process: i32) -> Ask {
    let (which, who) = (number(args, 0), number(args, 1));
    match which.wrapping_sub(of_process) {
        0 => Ask::Process(who),
        1 => Ask::Group(who),
        _ => Ask::Processes,
    }
}

/// What the call with these registers asks for; none if nothing, or if its arguments can't be read, at which it fails.
pub fn asked(call: u64, args: &Args, memory: &dyn Memory) -> Option<Ask> {
    let at = ROWS.binary_search_by_key(&call, |(row, ..)| u64::from(*row)).ok()?;
    let (_, when, decode) = ROWS[at];
    let matters = when.is_empty() || when.iter().any(|condition| condition.holds(args));
    matters.then(|| decode(args, memory).ok().flatten()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A process without any memory.
    struct Nothing;

    impl Memory for Nothing {
        fn read(&self, _: RemoteAddr, _: &mut [u8]) -> Result<usize, Fault> {
            Err(Fault::Unmapped)
        }
    }

    #[test]
    fn rows_are_sorted_and_unique() {
        assert!(ROWS.is_sorted_by(|one, other| one.0 < other.0));
    }

    #[test]
    fn a_call_asks_by_its_registers() {
        let ask = |call, args: [i64; 3]| {
            let [one, two, three] = args.map(i64::cast_unsigned);
            asked(call, &[one, two, three, 0, 0, 0], &Nothing)
        };
        assert_eq!(ask(62, [7, 0, 0]), Some(Ask::Process(7)), "kill");
        assert_eq!(ask(62, [0, 15, 0]), Some(Ask::Group(0)));
        assert_eq!(ask(62, [-7, 15, 0]), Some(Ask::Group(7)));
        assert_eq!(ask(62, [-1, 15, 0]), Some(Ask::Processes));
        assert_eq!(ask(140, [0, 0, 0]), None, "getpriority of the caller");
        assert_eq!(ask(140, [0, 7, 0]), Some(Ask::Process(7)));
        assert_eq!(ask(140, [1, 0, 0]), Some(Ask::Group(0)));
        assert_eq!(ask(252, [1, 0, 0]), None, "ioprio_get of the caller");
        assert_eq!(ask(252, [2, 7, 0]), Some(Ask::Group(7)));
        assert_eq!(ask(252, [i64::from(i32::MIN), 0, 0]), Some(Ask::Processes), "of no kind that there is");
        assert_eq!(ask(41, [1, 1, 0]), None, "socket of AF_UNIX");
        assert_eq!(ask(41, [16, 1, 0]), Some(Ask::Network), "of AF_NETLINK");
        assert_eq!(ask(72, [3, 1, 0]), None, "F_GETFD");
        assert_eq!(ask(72, [3, 6, 0]), Some(Ask::Lock(3)), "F_SETLK");
        assert_eq!(ask(73, [3, 2, 0]), Some(Ask::Lock(3)), "LOCK_EX");
        assert_eq!(ask(73, [3, 8, 0]), None, "LOCK_UN");
        assert_eq!(ask(72, [3, 1024, 0]), Some(Ask::Lease), "F_SETLEASE");
        assert_eq!(ask(318, [1, 8, 1]), Some(Ask::RandomBytes { may_be_of_libc: true }));
        assert_eq!(ask(137, [1, 2, 0]), None, "an address that can't be read");
        assert_eq!(ask(0, [1, 2, 0]), None, "read");
    }
}
