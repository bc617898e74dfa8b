//! ptrace(2) and waitpid(2). Every request that needs a ptrace-stop is a method of [`Stopped`], the proof of
//! it.

use std::ffi::c_void;
use std::fs::File;
use std::io;
use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::FileExt as _;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicI32, Ordering};
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, eventfd};
use rustix::io::{Errno, retry_on_intr};
use rustix::process::{Pid, WaitId, WaitIdOptions, WaitIdStatus, waitid};

use super::address_space::mapped_ranges;
use super::arch::{self, Registers};
use super::process::{Tid, check, kill_thread};
use super::signals::unblock_signal;
use crate::trace::memory::{Fault, Memory, RemoteAddr};
use crate::trace::wait_status::{End, Stop, WaitStatus};

/// The options that every tracee of ours has (ptrace(2)); EXITKILL first of all.
pub(super) const OPTIONS: libc::c_int = libc::PTRACE_O_EXITKILL
    | libc::PTRACE_O_TRACESYSGOOD
    | libc::PTRACE_O_TRACEFORK
    | libc::PTRACE_O_TRACEVFORK
    | libc::PTRACE_O_TRACECLONE
    | libc::PTRACE_O_TRACEEXEC
    | libc::PTRACE_O_TRACESECCOMP;

/// Makes this thread the tracer of `tid` without stopping it (PTRACE_SEIZE).
pub fn seize(tid: Tid) -> io::Result<()> {
    // SAFETY: this request accesses no memory.
    check(unsafe { libc::ptrace(libc::PTRACE_SEIZE, tid.0, 0usize, OPTIONS as usize) }).map(drop)
}

/// Makes a seized tracee stop before it returns to user mode (PTRACE_INTERRUPT).
pub fn interrupt(tid: Tid) -> io::Result<()> {
    // SAFETY: this request accesses no memory.
    check(unsafe { libc::ptrace(libc::PTRACE_INTERRUPT, tid.0, 0usize, 0usize) }).map(drop)
}

/// What waitpid reported of a tracee.
#[derive(Debug)]
pub enum Waited {
    /// It has ended.
    Ended {
        /// The thread.
        tid: Tid,
        /// How.
        end: End,
    },
    /// It is in ptrace-stop.
    Stopped {
        /// The thread.
        tracee: Stopped,
        /// Why.
        stop: Stop,
    },
}

impl Waited {
    fn new(tid: Tid, status: i32) -> Waited {
        match WaitStatus::from_raw(status) {
            WaitStatus::Ended(end) => Waited::Ended { tid, end },
            WaitStatus::Stopped(stop) => {
                Waited::Stopped { tracee: Stopped { tid, not_send: PhantomData }, stop }
            }
        }
    }

    /// The thread.
    pub fn tid(&self) -> Tid {
        match self {
            Waited::Ended { tid, .. } => *tid,
            Waited::Stopped { tracee, .. } => tracee.tid,
        }
    }
}

/// Waits for any child or tracee of this thread, threads included (waitpid(2) with __WALL). ECHILD when none
/// is left, none at `deadline`, where there is one.
///
/// It polls for `spin` before it sleeps: waking an idle CPU may cost more than everything else of a stop.
/// It yields the CPU meanwhile. Until a deadline it sleeps in short steps, since waitpid has no timeout.
pub fn wait(spin: Duration, deadline: Option<Instant>) -> io::Result<Option<Waited>> {
    const STEP: Duration = Duration::from_micros(100);
    let mut since = None;
    loop {
        if let Some(waited) = try_wait()? {
            return Ok(Some(waited));
        }
        // Some clocks take longer to read than everything else here.
        let since = *since.get_or_insert_with(Instant::now);
        let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        match left {
            Some(Duration::ZERO) => return Ok(None),
            _ if since.elapsed() < spin => std::thread::yield_now(),
            Some(left) => std::thread::sleep(left.min(STEP)),
            None => match waitpid(0) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                other => return other,
            },
        }
    }
}

/// Does not wait: none where nothing has changed.
pub fn try_wait() -> io::Result<Option<Waited>> {
    waitpid(libc::WNOHANG)
}

/// Whether waitpid has something to report of a tracee: then it is not in the stop any more that was reported last.
pub fn has_news(tid: Tid) -> bool {
    matches!(peek_news(tid, WaitIdOptions::NOHANG), Ok(Some(_)))
}

/// What waitpid has to report of a tracee, which it reports again after this.
pub(super) fn peek_news(tid: Tid, options: WaitIdOptions) -> rustix::io::Result<Option<WaitIdStatus>> {
    let peek = WaitIdOptions::EXITED | WaitIdOptions::STOPPED | WaitIdOptions::NOWAIT | options;
    // Threads, too (__WALL).
    let peek = peek | WaitIdOptions::from_bits_retain(libc::__WALL.cast_unsigned());
    let pid = Pid::from_raw(tid.0).ok_or(Errno::SRCH)?;
    retry_on_intr(|| waitid(WaitId::Pid(pid), peek))
}

fn waitpid(options: libc::c_int) -> io::Result<Option<Waited>> {
    let mut status = 0;
    // SAFETY: `status` is writable.
    let tid = unsafe { libc::waitpid(-1, &raw mut status, libc::__WALL | options) };
    check(tid)?;
    Ok((tid > 0).then(|| Waited::new(Tid(tid), status)))
}

/// How a tracee is resumed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Resume {
    /// To the next event (PTRACE_CONT).
    Continue,
    /// To the next event or the next entry or exit of a syscall (PTRACE_SYSCALL).
    Syscall,
    /// It stays in its group-stop until SIGCONT (PTRACE_LISTEN).
    Listen,
    /// By one instruction (PTRACE_SINGLESTEP).
    Step,
}

/// Where in a syscall a tracee has stopped, by the kernel's own answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SyscallStop {
    /// At its entry, by the filter or PTRACE_SYSCALL: nothing of it has happened.
    Entry {
        /// The AUDIT_ARCH number of its ABI.
        arch: u32,
        /// The syscall's number.
        number: u64,
        /// The six argument registers.
        arguments: [u64; 6],
        /// SECCOMP_RET_DATA of the filter that stopped it; none where no filter did.
        filter: Option<u32>,
    },
    /// At its exit, with the result: -errno where it failed.
    Exit {
        /// The result.
        result: i64,
    },
    /// Not in a syscall.
    None,
}

/// Asks where in a syscall a tracee is (PTRACE_GET_SYSCALL_INFO, Linux 5.3); ESRCH unless it is in ptrace-stop.
pub fn syscall_stop(tid: Tid) -> io::Result<SyscallStop> {
    let mut info = MaybeUninit::<libc::ptrace_syscall_info>::zeroed();
    // SAFETY: the kernel writes at most the size that we pass.
    check(unsafe {
        libc::ptrace(
            libc::PTRACE_GET_SYSCALL_INFO,
            tid.0,
            size_of::<libc::ptrace_syscall_info>(),
            info.as_mut_ptr(),
        )
    })?;
    // SAFETY: all-zeroes is valid, and the kernel filled a prefix.
    let info = unsafe { info.assume_init() };
    Ok(match info.op {
        libc::PTRACE_SYSCALL_INFO_ENTRY | libc::PTRACE_SYSCALL_INFO_SECCOMP => {
            // SAFETY: `entry` is the union's arm for this op, and a prefix of `seccomp`.
            let entry = unsafe { info.u.entry };
            // SAFETY: any bytes are valid for the arm, and it is used for its own op alone.
            let data = unsafe { info.u.seccomp }.ret_data;
            let filter = (info.op == libc::PTRACE_SYSCALL_INFO_SECCOMP).then_some(data);
            SyscallStop::Entry { arch: info.arch, number: entry.nr, arguments: entry.args, filter }
        }
        libc::PTRACE_SYSCALL_INFO_EXIT => {
            // SAFETY: `exit` is the union's arm for this op.
            let exit = unsafe { info.u.exit };
            SyscallStop::Exit { result: exit.sval }
        }
        _ => SyscallStop::None,
    })
}

/// A tracee in ptrace-stop, as waitpid reported it. Resuming consumes it, so a tracee is resumed once.
///
/// A request fails with ESRCH if the tracee was killed meanwhile. Only the thread that traces may make
/// requests, hence not `Send`.
#[derive(Debug)]
#[must_use = "a tracee that is not resumed stays stopped"]
pub struct Stopped {
    tid: Tid,
    not_send: PhantomData<*const ()>,
}

impl Stopped {
    /// The thread.
    pub fn tid(&self) -> Tid {
        self.tid
    }

    /// Resumes it, with `signal` delivered (0: none). One that died meanwhile is no error.
    pub fn resume(self, how: Resume, signal: i32) -> Result<(), (Stopped, io::Error)> {
        let request = match how {
            Resume::Continue => libc::PTRACE_CONT,
            Resume::Syscall => libc::PTRACE_SYSCALL,
            Resume::Listen => libc::PTRACE_LISTEN,
            Resume::Step => libc::PTRACE_SINGLESTEP,
        };
        // SAFETY: these requests access no memory.
        match check(unsafe { libc::ptrace(request, self.tid.0, 0usize, i64::from(signal)) }) {
            Err(error) if error.raw_os_error() != Some(libc::ESRCH) => Err((self, error)),
            _ => Ok(()),
        }
    }

    /// Resumes it untraced, without its signal (PTRACE_DETACH). It keeps the filter.
    pub fn detach(self) -> Result<(), (Stopped, io::Error)> {
        // SAFETY: this request accesses no memory.
        match check(unsafe { libc::ptrace(libc::PTRACE_DETACH, self.tid.0, 0usize, 0usize) }) {
            Err(error) => Err((self, error)),
            Ok(_) => Ok(()),
        }
    }

    /// The message of the event that stopped it (PTRACE_GETEVENTMSG): a tid, for those that concern us.
    pub fn event_message(&self) -> io::Result<Tid> {
        let mut message: libc::c_ulong = 0;
        // SAFETY: the kernel writes one unsigned long there.
        check(unsafe { libc::ptrace(libc::PTRACE_GETEVENTMSG, self.tid.0, 0usize, &raw mut message) })?;
        i32::try_from(message).map(Tid).map_err(io::Error::other)
    }

    /// Asks where in a syscall it is.
    pub fn syscall_stop(&self) -> io::Result<SyscallStop> {
        syscall_stop(self.tid)
    }

    /// Its registers.
    pub fn registers(&self) -> io::Result<Registers> {
        Registers::of(self.tid)
    }

    /// Skips the syscall at whose entry it is: that returns `result`.
    pub fn skip(&self, result: i64) -> io::Result<()> {
        arch::skip(self.tid, result)
    }

    /// Changes an argument of the syscall at whose entry it is, or the register that had it.
    pub fn set_argument(&self, index: u8, value: u64) -> io::Result<()> {
        arch::set_argument(self.tid, index, value)
    }

    /// Changes the result of its syscall.
    pub fn set_result(&self, result: i64) -> io::Result<()> {
        arch::set_result(self.tid, result)
    }

    /// Changes the address of its next instruction.
    pub fn set_instruction_pointer(&self, address: u64) -> io::Result<()> {
        arch::set_instruction_pointer(self.tid, address)
    }

    /// The `si_code` of the signal of this signal-delivery-stop (PTRACE_GETSIGINFO).
    pub fn signal_code(&self) -> io::Result<i32> {
        let mut info = MaybeUninit::<libc::siginfo_t>::zeroed();
        // SAFETY: the kernel writes one siginfo_t there.
        check(unsafe { libc::ptrace(libc::PTRACE_GETSIGINFO, self.tid.0, 0usize, info.as_mut_ptr()) })?;
        // SAFETY: all-zeroes is valid, and the kernel filled it.
        Ok(unsafe { info.assume_init() }.si_code)
    }
}

/// The memory of a tracee (process_vm_readv(2)), which any thread of ours may read.
#[derive(Debug, Clone, Copy)]
pub struct TraceeMemory(pub Tid);

impl TraceeMemory {
    /// Reads by /proc/TID/mem (proc_pid_mem(5)), since some containers forbid the call and not the file.
    fn read_file(self, address: u64, into: &mut [u8]) -> Result<usize, Fault> {
        let memory = File::open(format!("/proc/{}/mem", self.0)).map_err(|_| Fault::Unreadable)?;
        match memory.read_at(into, address) {
            Ok(0) => Err(Fault::Gone),
            Ok(count) => Ok(count),
            Err(_) => Err(Fault::Unmapped),
        }
    }

    /// Reads what is mapped for writing or executing alone: process_vm_readv(2) does not, and the kernel does for the process.
    fn read_unreadable(self, address: u64, into: &mut [u8]) -> Result<usize, Fault> {
        let ranges = mapped_ranges(self.0).unwrap_or_default();
        let is_accessible = |permissions: &[u8]| !permissions.starts_with(b"---");
        let found = ranges.iter().find(|(range, rest)| range.contains(&address) && is_accessible(rest));
        let (range, _) = found.ok_or(Fault::Unmapped)?;
        let room = usize::try_from(range.end - address).unwrap_or(usize::MAX);
        let room = room.min(into.len());
        self.read_file(address, &mut into[..room])
    }
}

impl Memory for TraceeMemory {
    fn read(&self, address: RemoteAddr, into: &mut [u8]) -> Result<usize, Fault> {
        let address = arch::untagged(address.0);
        read_memory(self.0, address, into).or_else(|error| match error.raw_os_error() {
            Some(libc::EFAULT) => self.read_unreadable(address, into),
            Some(libc::ESRCH) => Err(Fault::Gone),
            _ => self.read_file(address, into),
        })
    }
}

/// Reads memory of a process (process_vm_readv(2)); how many bytes.
pub fn read_memory(tid: Tid, address: u64, into: &mut [u8]) -> io::Result<usize> {
    let local = libc::iovec { iov_base: into.as_mut_ptr().cast::<c_void>(), iov_len: into.len() };
    let remote = libc::iovec { iov_base: address as *mut c_void, iov_len: into.len() };
    // SAFETY: `local` is exactly the buffer; the kernel checks the remote side.
    let count = unsafe { libc::process_vm_readv(tid.0, &raw const local, 1, &raw const remote, 1, 0) };
    usize::try_from(count).map_err(|_| io::Error::last_os_error())
}

/// Writes to writable memory of a process (process_vm_writev(2)); an error if not all of it was written.
pub fn write_memory(tid: Tid, address: u64, bytes: &[u8]) -> io::Result<()> {
    let local = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    let address = arch::untagged(address);
    let remote = libc::iovec { iov_base: address as *mut c_void, iov_len: bytes.len() };
    // SAFETY: `local` is exactly the bytes, which are only read; the kernel checks the remote side.
    let count = unsafe { libc::process_vm_writev(tid.0, &raw const local, 1, &raw const remote, 1, 0) };
    if usize::try_from(count) == Ok(bytes.len()) {
        return Ok(());
    }
    // Some containers forbid the call and not the file.
    if count == -1 && matches!(io::Error::last_os_error().raw_os_error(), Some(libc::EPERM | libc::ENOSYS)) {
        return overwrite_memory(tid, address, bytes);
    }
    Err(io::Error::from_raw_os_error(libc::EFAULT))
}

/// Writes to memory of a process, read-only pages included (proc_pid_mem(5)).
pub fn overwrite_memory(tid: Tid, address: u64, bytes: &[u8]) -> io::Result<()> {
    let memory = File::options().write(true).open(format!("/proc/{tid}/mem"))?;
    memory.write_all_at(bytes, arch::untagged(address))
}

/// The signal by which [`Interrupter`] wakes the tracing thread; nothing on Linux sends it.
const WAKE: libc::c_int = libc::SIGSTKFLT;

/// The tracee to interrupt; 0: none. The signal itself could not carry it: what comes with a signal is lost
/// at RLIMIT_SIGPENDING (sigqueue(3)).
static TO_INTERRUPT: AtomicI32 = AtomicI32::new(0);

/// The eventfd by which the handler reports that it has run; it stays open as long as this process.
static INTERRUPTED: OnceLock<OwnedFd> = OnceLock::new();

/// Interrupts tracees of another thread of ours, which alone may do that; for one thread to use.
///
/// The tracing thread sleeps in waitpid, from which only a signal wakes it; the signal's handler makes the
/// request.
#[derive(Debug)]
pub struct Interrupter {
    tracer: Tid,
}

impl Interrupter {
    /// An interrupter for the tracees of this thread, where every other signal stays blocked.
    pub fn of_this_thread() -> io::Result<Interrupter> {
        INTERRUPTED
            .set(eventfd(0, EventfdFlags::CLOEXEC)?)
            .map_err(|_| io::Error::other("this process has an interrupter already"))?;
        let mut action = MaybeUninit::<libc::sigaction>::zeroed();
        // SAFETY: all-zeroes is a valid sigaction.
        let fields = unsafe { action.assume_init_mut() };
        fields.sa_sigaction = on_wake as *const () as usize;
        fields.sa_flags = libc::SA_RESTART;
        // SAFETY: `action` is initialised; the handler makes system calls alone and keeps errno.
        check(unsafe { libc::sigaction(WAKE, action.as_ptr(), std::ptr::null_mut()) })?;
        unblock_signal(WAKE);
        Ok(Interrupter { tracer: Tid(rustix::thread::gettid().as_raw_nonzero().get()) })
    }

    /// Makes `tid` stop before it returns to user mode, and waits until the request was made.
    pub fn interrupt(&self, tid: Tid) {
        TO_INTERRUPT.store(tid.0, Ordering::SeqCst);
        let sent = kill_thread(Tid(std::process::id().cast_signed()), self.tracer, WAKE).is_ok();
        if let (true, Some(interrupted)) = (sent, INTERRUPTED.get()) {
            let _ = retry_on_intr(|| rustix::io::read(interrupted, &mut [0; 8]));
        }
    }
}

extern "C" fn on_wake(_: libc::c_int) {
    // SAFETY: libc's errno of this thread, which lives as long as the thread.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: as above.
    let before = unsafe { *errno };
    let tid = TO_INTERRUPT.swap(0, Ordering::SeqCst);
    if tid != 0 {
        let _ = interrupt(Tid(tid));
        if let Some(interrupted) = INTERRUPTED.get() {
            // SAFETY: writes the eight bytes of an u64, as eventfd(2) takes them.
            unsafe { libc::write(interrupted.as_raw_fd(), (&raw const ONE).cast::<c_void>(), 8) };
        }
    }
    // SAFETY: as above.
    unsafe { *errno = before };
}

/// What the handler adds to the eventfd.
static ONE: u64 = 1;
