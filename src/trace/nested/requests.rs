//! ptrace(2) of a tracer, for one of its tracees: in its name, between its memory and the tracee.

use std::io;

use super::{Held, Nested};
use crate::trace::memory::{Fault, Memory as _, RemoteAddr};
use crate::trace::observer::Caller;
use crate::trace::sys::{self, Resume, Stopped, Tid, TraceeMemory};
use crate::trace::wait_status::Stop;

/// The options that a tracer can't have: those that do not exist, and those of seccomp.
pub(super) const UNKNOWN_OPTIONS: i32 = !(libc::PTRACE_O_TRACESYSGOOD
    | libc::PTRACE_O_TRACEFORK
    | libc::PTRACE_O_TRACEVFORK
    | libc::PTRACE_O_TRACECLONE
    | libc::PTRACE_O_TRACEEXEC
    | libc::PTRACE_O_TRACEVFORKDONE
    | libc::PTRACE_O_TRACEEXIT
    | libc::PTRACE_O_EXITKILL);

/// Longer than any register set.
const LONGEST_SET: u64 = 1 << 16;

/// The lower half of a register, as the kernel sees an `int`.
pub(super) fn low(word: u64) -> i32 {
    crate::trace::syscalls::low_half(word).cast_signed()
}

impl Nested {
    /// Carries out a request for a tracee: the result of the call, or none if it is the kernel's to carry out.
    pub fn request(&mut self, caller: Caller, arguments: [u64; 4]) -> Option<i64> {
        let [request, thread, addr, data] = arguments;
        let (request, tid) = (low(request).cast_unsigned(), Tid(low(thread)));
        let tracee = self.tracees.get_mut(&tid)?;
        if tracee.tracer != caller.tgid || tracee.thread.is_some_and(|thread| thread != caller.tid) {
            return Some(-i64::from(libc::ESRCH));
        }
        tracee.thread = Some(caller.tid);
        Some(self.carry_out(caller.tid, tid, request, addr, data).unwrap_or_else(|errno| -i64::from(errno)))
    }

    fn carry_out(&mut self, tracer: Tid, tid: Tid, request: u32, addr: u64, data: u64) -> Result<i64, i32> {
        let tracee = self.tracees.get_mut(&tid).ok_or(libc::ESRCH)?;
        match request {
            libc::PTRACE_KILL => {
                let _ = sys::kill_thread(tracee.process, tid, libc::SIGKILL);
                return Ok(0);
            }
            libc::PTRACE_INTERRUPT if tracee.is_seized => {
                tracee.is_trap_due = true;
                let _ = sys::interrupt(tid);
                return Ok(0);
            }
            libc::PTRACE_INTERRUPT => return Err(libc::EIO),
            _ => {}
        }
        if tracee.held.is_some() && sys::has_news(tid) {
            self.stop_is_over(tid);
            return Err(libc::ESRCH);
        }
        let held = tracee.held.as_ref().ok_or(libc::ESRCH)?;
        // It means the thread that had this number until another one of its process has executed a program.
        if held.stop == Stop::Exec && self.events.iter().any(|event| event.tracee == tid && !event.has_ended)
        {
            return Err(libc::ESRCH);
        }
        let is_signal = |data: u64| i32::try_from(data).is_ok_and(|signal| (0..=64).contains(&signal));
        match request {
            libc::PTRACE_CONT | libc::PTRACE_SYSCALL | libc::PTRACE_SINGLESTEP | libc::PTRACE_DETACH
                if !is_signal(data) =>
            {
                return Err(libc::EIO);
            }
            libc::PTRACE_CONT => self.release(tid, Resume::Continue, low(data)),
            libc::PTRACE_SYSCALL => self.release(tid, Resume::Syscall, low(data)),
            libc::PTRACE_SINGLESTEP => self.release(tid, Resume::Step, low(data)),
            libc::PTRACE_DETACH => self.detach(tid, Some(low(data))),
            libc::PTRACE_LISTEN if tracee.is_seized && matches!(held.stop, Stop::Group(_) | Stop::Trap) => {
                self.release(tid, Resume::Listen, 0);
            }
            libc::PTRACE_LISTEN => return Err(libc::EIO),
            libc::PTRACE_SETOPTIONS => {
                if low(data) & UNKNOWN_OPTIONS != 0 {
                    return Err(libc::EINVAL);
                }
                tracee.options = low(data);
                let wanted = tracee.options & super::MORE_STOPS;
                held.tracee.set_options(wanted).map_err(errno)?;
                tracee.told = wanted;
            }
            libc::PTRACE_GETSIGINFO if held.siginfo.is_some() => {
                let (signal, code) = held.siginfo.expect("just seen");
                let mut info = [0; size_of::<libc::siginfo_t>()];
                info[..4].copy_from_slice(&signal.to_ne_bytes());
                info[8..12].copy_from_slice(&code.to_ne_bytes());
                put(tracer, data, &info)?;
            }
            // Thus a tracer that has not seized tells a group-stop.
            libc::PTRACE_GETSIGINFO if !tracee.is_seized && matches!(held.stop, Stop::Group(_)) => {
                return Err(libc::EINVAL);
            }
            _ => return transfer(tracer, held, request, addr, data),
        }
        Ok(0)
    }
}

/// Moves data between a tracer's memory and its tracee.
fn transfer(tracer: Tid, held: &Held, request: u32, addr: u64, data: u64) -> Result<i64, i32> {
    let tracee: &Stopped = &held.tracee;
    match request {
        libc::PTRACE_POKETEXT | libc::PTRACE_POKEDATA | libc::PTRACE_POKEUSER => {
            tracee.poke(request, addr, data).map(|()| 0).map_err(errno)
        }
        libc::PTRACE_GETREGSET | libc::PTRACE_SETREGSET => {
            let mut part = [0; 2];
            TraceeMemory(tracer).read_words(RemoteAddr(data), &mut part).map_err(fault)?;
            let [base, length] = part;
            let length = usize::try_from(length.min(LONGEST_SET)).map_err(|_| libc::EFAULT)?;
            let mut buffer = vec![0; length];
            if request == libc::PTRACE_SETREGSET {
                TraceeMemory(tracer).read_exact(RemoteAddr(base), &mut buffer).map_err(fault)?;
            }
            let used = tracee.register_set(request, addr, &mut buffer).map_err(errno)?;
            if request == libc::PTRACE_GETREGSET {
                put(tracer, base, &buffer[..used])?;
            }
            put(tracer, data.wrapping_add(8), &(used as u64).to_ne_bytes())?;
            Ok(0)
        }
        _ if sys::bytes_read(request, addr).is_some() => {
            let (bytes, result) = tracee.read(request, addr, data).map_err(errno)?;
            // Requests for a structure that grows return how long it is, the others 0.
            let known = usize::try_from(result).ok().filter(|length| *length > 0);
            let bytes = &bytes[..known.map_or(bytes.len(), |length| length.min(bytes.len()))];
            put(tracer, if request == sys::ARCH_PRCTL { addr } else { data }, bytes)?;
            Ok(result)
        }
        _ => {
            let size = sys::bytes_written(request, addr).ok_or(libc::EIO)?;
            let mut bytes = vec![0; size];
            TraceeMemory(tracer).read_exact(RemoteAddr(data), &mut bytes).map_err(fault)?;
            tracee.write(request, addr, &bytes).map(|()| 0).map_err(errno)
        }
    }
}

/// Writes to a tracer's memory.
pub(super) fn put(tracer: Tid, address: u64, bytes: &[u8]) -> Result<(), i32> {
    if bytes.is_empty() {
        return Ok(());
    }
    sys::write_memory(tracer, address, bytes).map_err(|_| libc::EFAULT)
}

fn errno(error: io::Error) -> i32 {
    error.raw_os_error().unwrap_or(libc::EIO)
}

fn fault(_: Fault) -> i32 {
    libc::EFAULT
}
