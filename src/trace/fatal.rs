//! Signals that end a process with a core dump unless it handles them, and the death of a traced init.
//!
//! The kernel lets the init of a PID namespace die of a fault of its own, but not while it is traced
//! (`force_sig_info_to_task`): the fault then repeats for ever. So `tracer.rs` leaves it alone with it.

use std::fs::File;
use std::io::{self, Read as _};
use std::os::fd::{AsFd as _, OwnedFd};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use super::memory::{Memory as _, RemoteAddr};
use super::sys::{self, Register, Tid, TraceeMemory};
use super::wait_status::End;

/// The signals whose default action is a core dump (signal(7)).
const DUMPING: [i32; 10] = [
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
pub enum Effect {
    /// It ends the process with a core dump, where it may have one.
    Dumps,
    /// It would alone, but the process is a traced init, which goes on.
    Repeats,
    /// Anything else.
    Other,
}

/// What `signal`, for which `tid` is in its signal-delivery-stop, does.
///
/// The kernel has made the action of a forced signal the default one by then, and none that is blocked
/// is delivered. Where nothing can be read it is taken to dump core.
pub fn effect(tid: Tid, signal: i32) -> Effect {
    if !DUMPING.contains(&signal) || has_other_action(tid, signal).unwrap_or(false) {
        return Effect::Other;
    }
    match is_init(tid) {
        Some(true) => {}
        Some(false) | None => return Effect::Dumps,
    }
    // One that was sent changes nothing for an init, traced or not.
    if sys::signal_code(tid).is_ok_and(|code| code > 0) { Effect::Repeats } else { Effect::Other }
}

/// Whether the process of `tid` ignores or handles a signal below 32.
///
/// Of all files that say so, /proc/TID/stat costs the least.
fn has_other_action(tid: Tid, signal: i32) -> Option<bool> {
    // It is given whole, and has some fifty numbers.
    let mut stat = [0; 2048];
    let length = File::open(format!("/proc/{tid}/stat")).and_then(|mut file| file.read(&mut stat)).ok()?;
    actions(&stat[..length]).map(|actions| actions >> (signal - 1) & 1 == 1)
}

/// The signals below 32 that are ignored or handled, of the text of a /proc/PID/stat (proc_pid_stat(5)).
fn actions(stat: &[u8]) -> Option<u64> {
    /// The first field behind the name, which may hold any bytes.
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
    let status = std::fs::read_to_string(format!("/proc/{tid}/status")).ok()?;
    let ids = status.lines().find_map(|line| line.strip_prefix("NStgid:"))?;
    // From our namespace to its own.
    let mut ids = ids.split_whitespace();
    Some(ids.next_back() == Some("1") && ids.next().is_some())
}

/// An init that is no longer traced, and is about to die of its fault.
#[derive(Debug)]
pub struct DyingInit {
    /// Its process.
    pub tgid: Tid,
    signal: i32,
    descriptor: OwnedFd,
}

impl DyingInit {
    /// Leaves a thread alone with its fault; what tells of its process's end, where it is the leader and
    /// its death is thus not reported.
    pub fn leave(tid: Tid, tgid: Tid, signal: i32) -> io::Result<Option<DyingInit>> {
        let dying = if tid == tgid {
            let pid = Pid::from_raw(tgid.0).ok_or(io::ErrorKind::InvalidInput)?;
            Some(DyingInit { tgid, signal, descriptor: pidfd_open(pid, PidfdFlags::empty())? })
        } else {
            None
        };
        repeat_fault(tid, signal)?;
        sys::detach(tid)?;
        Ok(dying)
    }

    /// How it ended, once it has.
    pub fn end(&self) -> Option<End> {
        let mut fds = [PollFd::new(self.descriptor.as_fd(), PollFlags::POLLIN)];
        if poll(&mut fds, PollTimeout::ZERO) != Ok(1) {
            return None;
        }
        let killed = End::Killed { signal: self.signal, core_dumped: false };
        Some(sys::exit_code(self.descriptor.as_fd()).map_or(killed, End::from_raw))
    }
}

/// Has an instruction be executed again that is over when its signal comes: a breakpoint, and a system
/// call that a filter traps. All other faults repeat by themselves.
fn repeat_fault(tid: Tid, signal: i32) -> io::Result<()> {
    const BREAKPOINT: u8 = 0xcc;
    const SYSCALL: [u8; 2] = [0x0f, 0x05];
    let at = sys::instruction_pointer(tid)?;
    let mut before = [0; 2];
    let read = TraceeMemory(tid).read(RemoteAddr(at.wrapping_sub(2)), &mut before);
    let length = match signal {
        _ if read != Ok(2) => 0,
        libc::SIGTRAP if before[1] == BREAKPOINT => 1,
        libc::SIGSYS if before == SYSCALL => 2,
        _ => 0,
    };
    if length > 0 { sys::set_register(tid, Register::InstructionPointer, at - length) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_handled_and_an_ignored_signal_are_told_from_one_with_the_default_action() {
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
        assert_eq!(own & bit(libc::SIGQUIT), 0);
    }
}
