//! Calls that tell a process something of the system or of other processes which no path tells, or that change such a
//! thing.
//!
//! This matters only where a recording may be recalled; some of them have a row in the table of system calls for what else
//! they do. Neighbours: `filter.rs` makes such calls stop, `tracer.rs` reports them.

use super::memory::{Fault, Memory, RemoteAddr};
use super::syscalls::{Args, Condition, Index, NONE, index, number};

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
pub type Row = (u32, &'static [Condition], Decode);

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

/// All calls, [`NONE`] in place of the number of those that this architecture does not have.
const ROWS: &[Row] = &[
    // mmap(addr, length, prot, flags, fd, offset)
    (number("mmap"), &[Condition::Has { arg: 3, mask: DROPPABLE }], |_, _| random(false)),
    (number("ioctl"), INTERFACES, |_, _| plain(Ask::Network)),
    (number("shmget"), ALWAYS, |_, _| plain(Ask::SystemV)),
    (number("shmat"), ALWAYS, |_, _| plain(Ask::SystemV)),
    (number("shmctl"), ALWAYS, |_, _| plain(Ask::SystemV)),
    // socket(domain, type, protocol): of another family than AF_UNIX, whose number is 1
    (number("socket"), &[Condition::Has { arg: 0, mask: !1 }], |_, _| plain(Ask::Network)),
    // kill(pid, sig)
    (number("kill"), ALWAYS, |args, _| plain(killed(int(args, 0)))),
    (number("semget"), ALWAYS, |_, _| plain(Ask::SystemV)),
    (number("semop"), ALWAYS, |_, _| plain(Ask::SystemV)),
    (number("semctl"), ALWAYS, |_, _| plain(Ask::SystemV)),
    (number("msgget"), ALWAYS, |_, _| plain(Ask::SystemV)),
    (number("msgsnd"), ALWAYS, |_, _| plain(Ask::SystemV)),
    (number("msgrcv"), ALWAYS, |_, _| plain(Ask::SystemV)),
    (number("msgctl"), ALWAYS, |_, _| plain(Ask::SystemV)),
    // fcntl(fd, cmd, arg)
    (number("fcntl"), LOCKING, |args, memory| {
        if is_unlock(args, memory) {
            return Ok(None);
        }
        let is_lease = [SETLEASE, GETLEASE].map(u32::cast_signed).contains(&int(args, 1));
        plain(if is_lease { Ask::Lease } else { Ask::Lock(int(args, 0)) })
    }),
    // flock(fd, operation): to give a lock back tells nothing
    (number("flock"), ALWAYS, |args, _| {
        Ok((int(args, 1) & libc::LOCK_UN == 0).then(|| Ask::Lock(int(args, 0))))
    }),
    (number("syslog"), ALWAYS, |_, _| plain(Ask::System)),
    (number("getpgid"), NOT_OF_CALLER, process),
    (number("getsid"), NOT_OF_CALLER, process),
    // capget(hdrp, datap): the process is in memory
    (number("capget"), ALWAYS, |args, memory| {
        let mut pid = [0; 4];
        memory.read_exact(RemoteAddr(args[0].wrapping_add(4)), &mut pid)?;
        plain(Ask::Process(i32::from_ne_bytes(pid)))
    }),
    (number("rt_sigqueueinfo"), ALWAYS, process),
    (number("ustat"), ALWAYS, |_, _| plain(Ask::System)),
    // statfs(path, buf)
    (number("statfs"), ALWAYS, |args, memory| plain(Ask::FreeSpace(memory.read_path(RemoteAddr(args[0]))?))),
    // getpriority(which, who), setpriority(which, who, prio): of PRIO_PROCESS, PRIO_PGRP, PRIO_USER
    (number("getpriority"), &[not_zero(0), not_zero(1)], |args, _| plain(group_or_process(args, 0))),
    (number("setpriority"), &[not_zero(0), not_zero(1)], |args, _| plain(group_or_process(args, 0))),
    (number("sched_setparam"), NOT_OF_CALLER, process),
    (number("sched_getparam"), NOT_OF_CALLER, process),
    (number("sched_setscheduler"), NOT_OF_CALLER, process),
    (number("sched_getscheduler"), NOT_OF_CALLER, process),
    (number("sched_rr_get_interval"), NOT_OF_CALLER, process),
    (number("settimeofday"), ALWAYS, |_, _| plain(Ask::System)),
    (number("sethostname"), ALWAYS, |_, _| plain(Ask::System)),
    (number("setdomainname"), ALWAYS, |_, _| plain(Ask::System)),
    (number("quotactl"), ALWAYS, |_, _| plain(Ask::System)),
    (number("tkill"), ALWAYS, process),
    (number("sched_setaffinity"), NOT_OF_CALLER, process),
    (number("sched_getaffinity"), NOT_OF_CALLER, process),
    (number("clock_settime"), ALWAYS, |_, _| plain(Ask::System)),
    (number("tgkill"), ALWAYS, process),
    (number("get_mempolicy"), ALWAYS, |_, _| plain(Ask::System)),
    (number("mq_open"), ALWAYS, |_, _| plain(Ask::MessageQueue)),
    (number("mq_unlink"), ALWAYS, |_, _| plain(Ask::MessageQueue)),
    (number("add_key"), ALWAYS, |_, _| plain(Ask::Keys)),
    (number("request_key"), ALWAYS, |_, _| plain(Ask::Keys)),
    (number("keyctl"), ALWAYS, |_, _| plain(Ask::Keys)),
    // ioprio_set(which, who, ioprio), ioprio_get(which, who): of IOPRIO_WHO_PROCESS, which is 1, _PGRP, _USER
    (number("ioprio_set"), &[Condition::Has { arg: 0, mask: !1 }, not_zero(1)], |args, _| {
        plain(group_or_process(args, 1))
    }),
    (number("ioprio_get"), &[Condition::Has { arg: 0, mask: !1 }, not_zero(1)], |args, _| {
        plain(group_or_process(args, 1))
    }),
    (number("migrate_pages"), NOT_OF_CALLER, process),
    (number("get_robust_list"), NOT_OF_CALLER, process),
    (number("move_pages"), NOT_OF_CALLER, process),
    (number("rt_tgsigqueueinfo"), ALWAYS, process),
    (number("perf_event_open"), ALWAYS, |_, _| plain(Ask::System)),
    (number("prlimit64"), NOT_OF_CALLER, process),
    (number("process_vm_readv"), ALWAYS, process),
    (number("process_vm_writev"), ALWAYS, process),
    (number("kcmp"), ALWAYS, |_, _| plain(Ask::Processes)),
    (number("sched_setattr"), NOT_OF_CALLER, process),
    (number("sched_getattr"), NOT_OF_CALLER, process),
    // getrandom(buf, buflen, flags): the GNU C library asks for eight bytes, without waiting
    (number("getrandom"), ALWAYS, |args, _| {
        random(args[1] == 8 && int(args, 2).cast_unsigned() == libc::GRND_NONBLOCK)
    }),
    (number("pidfd_open"), ALWAYS, process),
    (number("statmount"), ALWAYS, |_, _| plain(Ask::System)),
    (number("listmount"), ALWAYS, |_, _| plain(Ask::System)),
];

/// Where each number's row is in [`ROWS`].
static INDEX: Index = index!(ROWS, 0);

/// The calls that there are here.
pub fn rows() -> impl Iterator<Item = &'static Row> {
    ROWS.iter().filter(|(number, ..)| *number != NONE)
}

/// Whether fcntl gives a lock back, by `struct flock`, whose first field is the type: that tells nothing.
fn is_unlock(args: &Args, memory: &dyn Memory) -> bool {
    const SETTING: [i32; 4] = [libc::F_SETLK, libc::F_SETLKW, libc::F_OFD_SETLK, libc::F_OFD_SETLKW];
    let mut kind = [0; 2];
    SETTING.contains(&int(args, 1))
        && memory.read_exact(RemoteAddr(args[2]), &mut kind).is_ok()
        && i32::from(i16::from_ne_bytes(kind)) == libc::F_UNLCK
}

/// An argument of 32 bits: the upper half of its register is noise.
fn int(args: &Args, arg: usize) -> i32 {
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
    plain(Ask::Process(int(args, 0)))
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
    let (which, who) = (int(args, 0), int(args, 1));
    match which.wrapping_sub(of_process) {
        0 => Ask::Process(who),
        1 => Ask::Group(who),
        _ => Ask::Processes,
    }
}

/// What the call with these registers asks for; none if nothing, or if its arguments can't be read, at which it fails.
pub fn asked(call: u64, args: &Args, memory: &dyn Memory) -> Option<Ask> {
    let (_, when, decode) = ROWS[INDEX.find(call)?];
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
    fn rows_are_unique() {
        let mut numbers: Vec<u32> = rows().map(|row| row.0).collect();
        let count = numbers.len();
        numbers.sort_unstable();
        numbers.dedup();
        assert_eq!(numbers.len(), count);
    }

    #[test]
    fn a_call_asks_by_its_registers() {
        let ask = |name, args: [i64; 3]| {
            let [one, two, three] = args.map(i64::cast_unsigned);
            asked(u64::from(number(name)), &[one, two, three, 0, 0, 0], &Nothing)
        };
        assert_eq!(ask("kill", [7, 0, 0]), Some(Ask::Process(7)), "kill");
        assert_eq!(ask("kill", [0, 15, 0]), Some(Ask::Group(0)));
        assert_eq!(ask("kill", [-7, 15, 0]), Some(Ask::Group(7)));
        assert_eq!(ask("kill", [-1, 15, 0]), Some(Ask::Processes));
        assert_eq!(ask("getpriority", [0, 0, 0]), None, "getpriority of the caller");
        assert_eq!(ask("getpriority", [0, 7, 0]), Some(Ask::Process(7)));
        assert_eq!(ask("getpriority", [1, 0, 0]), Some(Ask::Group(0)));
        assert_eq!(ask("ioprio_get", [1, 0, 0]), None, "ioprio_get of the caller");
        assert_eq!(ask("ioprio_get", [2, 7, 0]), Some(Ask::Group(7)));
        assert_eq!(
            ask("ioprio_get", [i64::from(i32::MIN), 0, 0]),
            Some(Ask::Processes),
            "of no kind that there is"
        );
        assert_eq!(ask("socket", [1, 1, 0]), None, "socket of AF_UNIX");
        assert_eq!(ask("socket", [16, 1, 0]), Some(Ask::Network), "of AF_NETLINK");
        assert_eq!(ask("fcntl", [3, 1, 0]), None, "F_GETFD");
        assert_eq!(ask("fcntl", [3, 6, 0]), Some(Ask::Lock(3)), "F_SETLK");
        assert_eq!(ask("flock", [3, 2, 0]), Some(Ask::Lock(3)), "LOCK_EX");
        assert_eq!(ask("flock", [3, 8, 0]), None, "LOCK_UN");
        assert_eq!(ask("fcntl", [3, 1024, 0]), Some(Ask::Lease), "F_SETLEASE");
        assert_eq!(ask("getrandom", [1, 8, 1]), Some(Ask::RandomBytes { may_be_of_libc: true }));
        assert_eq!(ask("statfs", [1, 2, 0]), None, "an address that can't be read");
        assert_eq!(ask("read", [1, 2, 0]), None, "read");
    }
}
