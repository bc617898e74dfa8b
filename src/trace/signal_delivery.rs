//! Signal-delivery-stops: which signals end a process with a core dump, and which syscalls must be restarted.
//!
//! The kernel lets the init of a PID namespace die of its own fault, but not while it is traced
//! (`force_sig_info_to_task`): the fault then repeats forever. So `tracer.rs` detaches from it.

use std::fs::File;
use std::io::{self, Read as _};
use std::os::fd::{AsFd as _, OwnedFd};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use super::memory::{Memory as _, RemoteAddr};
use super::observer::Caller;
use super::proc_fd;
use super::proc_status::ProcStatus;
use super::shared::Shared;
use super::sys::{self, Stopped, Tid, TraceeMemory, arch};
use super::syscalls::{self, Args, SyscallRow};
use super::wait_status::End;

/// The signals whose default action is a core dump (signal(7)).
const CORE_DUMPING: [i32; 10] = [
    libc::SIGQUIT,
    libc::SIGILL,
    libc::SIGTRAP,
    libc::SIGABRT,
    libc::SIGBUS,
    libc::SIGFPE,
    libc::SIGSEGV,
    libc::SIGXCPU,
    libc::SIGXFSZ,
    libc::SIGSYS,
];

/// What a signal that is about to be delivered does to its process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SignalEffect {
    /// It ends the process with a core dump, if core dumps are enabled.
    DumpsCore,
    /// It would end the process untraced, but the process is a traced init, whose fault repeats.
    Repeats,
    /// Anything else.
    Other,
}

/// What `signal`, for which `tracee` is in signal-delivery-stop, does.
///
/// The kernel has reset the action of a forced signal to the default by then, and delivers no blocked one. If
/// /proc can't be read, the signal is assumed to dump core.
pub(super) fn effect(tracee: &Stopped, signal: i32) -> SignalEffect {
    let tid = tracee.tid();
    if !CORE_DUMPING.contains(&signal) || has_other_action(tid, signal).unwrap_or(false) {
        return SignalEffect::Other;
    }
    match is_init(tid) {
        Some(true) => {}
        Some(false) | None => return SignalEffect::DumpsCore,
    }
    // A signal that was sent, not caused by a fault, has no effect on an init, traced or not.
    if tracee.signal_code().is_ok_and(|code| code > 0) { SignalEffect::Repeats } else { SignalEffect::Other }
}

/// Whether the process of `tid` ignores or handles a signal below 32.
///
/// /proc/TID/stat is the cheapest of the files that have this.
fn has_other_action(tid: Tid, signal: i32) -> Option<bool> {
    // One read returns all of it: some fifty numbers.
    let mut stat = [0; 2048];
    let length = File::open(format!("/proc/{tid}/stat")).and_then(|mut file| file.read(&mut stat)).ok()?;
    actions(&stat[..length]).map(|actions| actions >> (signal - 1) & 1 == 1)
}

/// The signals below 32 that are ignored or handled, by the text of /proc/PID/stat (proc_pid_stat(5)).
fn actions(stat: &[u8]) -> Option<u64> {
    /// The number of the first field after the name, which may hold any bytes.
    const STATE: usize = 3;
    const SIGIGNORE: usize = 33;
    let name = stat.iter().rposition(|byte| *byte == b')')?;
    let mut fields = std::str::from_utf8(&stat[name + 1..]).ok()?.split_ascii_whitespace();
    let ignored: u64 = fields.nth(SIGIGNORE - STATE)?.parse().ok()?;
    let caught: u64 = fields.next()?.parse().ok()?;
    Some(ignored | caught)
}

/// Whether the process of `tid` is the init of a PID namespace below ours.
fn is_init(tid: Tid) -> Option<bool> {
    let status = ProcStatus::of(tid)?;
    // One id for each namespace, from ours to its own.
    let mut ids = status.line("NStgid:")?.split_whitespace();
    Some(ids.next_back() == Some("1") && ids.next().is_some())
}

/// An init that is no longer traced, and is dying of its fault.
#[derive(Debug)]
pub struct DyingInit {
    /// Its process.
    pub tgid: Tid,
    signal: i32,
    descriptor: OwnedFd,
}

impl DyingInit {
    /// Detaches from a thread of an init, which then dies of its fault.
    ///
    /// If it is the leader, returns what tells when its process has ended: waitpid will not.
    pub fn detach(
        tracee: Stopped,
        tgid: Tid,
        signal: i32,
    ) -> Result<Option<DyingInit>, (Stopped, io::Error)> {
        let prepared = pidfd_of_leader(tracee.tid(), tgid)
            .and_then(|descriptor| repeat_fault(&tracee, signal).map(|()| descriptor));
        match prepared {
            Ok(descriptor) => {
                tracee.detach()?;
                Ok(descriptor.map(|descriptor| DyingInit { tgid, signal, descriptor }))
            }
            Err(error) => Err((tracee, error)),
        }
    }

    /// How it ended, once it has.
    pub fn end(&self) -> Option<End> {
        let mut fds = [PollFd::new(&self.descriptor, PollFlags::IN)];
        if poll(&mut fds, Some(&Timespec::default())) != Ok(1) {
            return None;
        }
        let killed = End::Killed { signal: self.signal, core_dumped: false };
        Some(sys::exit_code(self.descriptor.as_fd()).map_or(killed, End::from_raw))
    }
}

/// A pidfd of the process, if `tid` is its leader.
fn pidfd_of_leader(tid: Tid, tgid: Tid) -> io::Result<Option<OwnedFd>> {
    if tid != tgid {
        return Ok(None);
    }
    let pid = Pid::from_raw(tgid.0).ok_or(io::ErrorKind::InvalidInput)?;
    Ok(Some(pidfd_open(pid, PidfdFlags::empty())?))
}

/// Moves the instruction pointer back to the instruction that caused the signal if it is past that: after a
/// breakpoint, and after a system call that a filter traps.
fn repeat_fault(tracee: &Stopped, signal: i32) -> io::Result<()> {
    let at = tracee.registers()?.instruction_pointer();
    let mut before = [0; 4];
    // The instruction may be at the beginning of the first page.
    let memory = TraceeMemory(tracee.tid());
    let is_read = [4, 2, 1].into_iter().any(|length: u8| {
        let bytes = &mut before[4 - usize::from(length)..];
        memory.read_exact(RemoteAddr(at.wrapping_sub(length.into())), bytes).is_ok()
    });
    let length = if is_read { arch::past_fault(signal, before) } else { 0 };
    if length > 0 { tracee.set_instruction_pointer(at - length) } else { Ok(()) }
}

/// Makes the kernel restart a read-only syscall that a signal interrupted before its notification was
/// received.
///
/// It has not begun, yet after a handler without SA_RESTART it would return EINTR, which it would not
/// untraced. One that has begun, and waits for the other end of a FIFO, returns EINTR untraced, too.
pub(super) fn restart_interrupted<P>(tracee: &Stopped, shared: &Shared<P>) {
    /// The kernel's internal results of an interrupted syscall (linux/errno.h): restarted unless a handler
    /// without SA_RESTART runs, and restarted in any case.
    const ERESTARTSYS: i64 = -512;
    const ERESTARTNOINTR: i64 = -513;
    let Ok(registers) = tracee.registers() else { return };
    if registers.result() != ERESTARTSYS {
        return;
    }
    let (number, arguments) = (registers.number(), registers.arguments());
    let Some(row) = syscalls::row_of(number) else { return };
    let tid = tracee.tid();
    if row.is_read_only(&arguments)
        && (!shared.is_interruptible(tid, &(number, arguments))
            || has_room(shared.caller(tid), row, number, &arguments))
    {
        let _ = tracee.set_result(ERESTARTNOINTR);
    }
}

/// Whether a syscall is a send that need not wait: then it was interrupted before it began. One like it, by the same
/// thread, may have been answered before.
///
/// If its socket can't be examined, it may have waited.
fn has_room(Caller { tid, tgid }: Caller, row: &SyscallRow, number: u64, arguments: &Args) -> bool {
    let is_send = number != libc::SYS_connect.cast_unsigned();
    if !is_send || !syscalls::may_wait_for_peer(number, arguments) {
        return false;
    }
    let fd = i32::try_from(arguments[0] & 0xffff_ffff).unwrap_or(-1);
    if is_nonblocking(tid, fd).unwrap_or(false) {
        return true;
    }
    let Ok(decoded) = syscalls::decode(row, arguments, &TraceeMemory(tid)) else { return false };
    // What it waits for may be room at the peer, which poll tells of a connected socket alone.
    let unix = u16::try_from(libc::AF_UNIX).unwrap_or(0).to_ne_bytes();
    if decoded.sockets.iter().any(|used| used.address.starts_with(&unix)) {
        return false;
    }
    sys::descriptor_of(tgid, fd).is_some_and(|socket| {
        let mut fds = [PollFd::new(&socket, PollFlags::OUT)];
        poll(&mut fds, Some(&Timespec::default())) == Ok(1) && fds[0].revents().contains(PollFlags::OUT)
    })
}

/// Whether a descriptor has O_NONBLOCK, by /proc/TID/fdinfo.
fn is_nonblocking(tid: Tid, fd: i32) -> Option<bool> {
    let info = std::fs::read_to_string(format!("/proc/{tid}/fdinfo/{fd}")).ok()?;
    Some(proc_fd::flags(&info)? & libc::O_NONBLOCK != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn handled_and_ignored_signals_are_those_without_the_default_action() {
        let bit = |signal: i32| 1_u64 << (signal - 1);
        let text = format!(
            "7 (a) b) (c) S {} {} {} 0",
            vec!["1"; 29].join(" "),
            bit(libc::SIGQUIT),
            bit(libc::SIGSEGV) | bit(libc::SIGSYS)
        );
        let expected = bit(libc::SIGQUIT) | bit(libc::SIGSEGV) | bit(libc::SIGSYS);
        assert_eq!(actions(text.as_bytes()), Some(expected));
        assert_eq!(actions(b"7 (cat) S 1"), None);
        // Rust's runtime ignores SIGPIPE and handles SIGSEGV.
        let own = actions(&std::fs::read("/proc/self/stat").unwrap()).unwrap();
        assert_eq!(own & bit(libc::SIGSEGV), bit(libc::SIGSEGV));
        assert_eq!(own & bit(libc::SIGPIPE), bit(libc::SIGPIPE));
    }
}
