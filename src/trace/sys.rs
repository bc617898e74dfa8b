//! The unsafe room: the kernel's calls that have no safe wrapper, one a block.
//!
//! Signals and wait statuses stay raw numbers here, since a real-time signal has no name
//! in `nix` and would be lost there. Neighbours: `launch.rs` starts the tree with these,
//! `tracer.rs` follows it.
#![allow(unsafe_code)]

use std::ffi::{CStr, c_void};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicI32, Ordering};
use std::time::{Duration, Instant};

use super::filter::Instruction;
use super::memory::{Memory, MemoryError, RemoteAddr};

/// The id of a thread (tid); of a process where it is its leader's (tgid).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Tid(pub libc::pid_t);

impl std::fmt::Display for Tid {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

/// What `fork` returned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fork {
    /// In the new process.
    Child,
    /// In the old one, with the new one's id.
    Parent(Tid),
}

fn check(result: libc::c_long) -> io::Result<libc::c_long> {
    if result == -1 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// Forks this process (fork(2)), which must have one thread only.
pub fn fork() -> io::Result<Fork> {
    // SAFETY: callers fork before they start a thread, so the child may go on as any process.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        0 => Ok(Fork::Child),
        child => Ok(Fork::Parent(Tid(child))),
    }
}

/// Ends this process at once, without running destructors or flushing buffers (_exit(2)).
pub fn exit_now(status: i32) -> ! {
    // SAFETY: _exit takes any integer and touches no memory of ours.
    unsafe { libc::_exit(status) }
}

/// Replaces this process by the program at `path`, with the environment that we got.
///
/// Returns the error where that fails (execve(2)).
pub fn execute(path: &CStr, argv: &[&CStr]) -> io::Error {
    unsafe extern "C" {
        static environ: *const *const libc::c_char;
    }
    let mut pointers: Vec<*const libc::c_char> = argv.iter().map(|argument| argument.as_ptr()).collect();
    pointers.push(std::ptr::null());
    // SAFETY: path and every argument are NUL-terminated and outlive the call; `pointers` ends with
    // a null; `environ` is libc's own, which nothing changes here.
    unsafe { libc::execve(path.as_ptr(), pointers.as_ptr(), environ) };
    io::Error::last_os_error()
}

/// Asks for `signal` when the thread that is our parent ends (PR_SET_PDEATHSIG, prctl(2)); 0 takes it back.
pub fn set_parent_death_signal(signal: i32) {
    // SAFETY: prctl with integers only.
    unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, signal, 0, 0, 0) };
}

/// Closes every descriptor from `first` to `last`, both included (close_range(2), Linux 5.9).
pub fn close_range(first: u32, last: u32) -> io::Result<()> {
    // SAFETY: callers name descriptors that no object of this process owns.
    check(unsafe { libc::syscall(libc::SYS_close_range, first, last, 0) }).map(drop)
}

/// Makes `fd`, which no object of this process owns, another name of `of` (dup3(2)), CLOEXEC.
pub fn replace_descriptor(of: &impl AsRawFd, fd: i32) -> io::Result<()> {
    // SAFETY: dup3 takes integers only; callers name descriptors that no object owns.
    check(libc::c_long::from(unsafe { libc::dup3(of.as_raw_fd(), fd, libc::O_CLOEXEC) })).map(drop)
}

/// The flags of an open descriptor that survives an execve, as open(2) takes them (fcntl(2)); none of
/// one that is closed then, or is not open.
pub fn inherited_flags(fd: i32) -> Option<i32> {
    // SAFETY: fcntl with integers only.
    let closes = unsafe { libc::fcntl(fd, libc::F_GETFD) };
    if closes == -1 || closes & libc::FD_CLOEXEC != 0 {
        return None;
    }
    // SAFETY: fcntl with integers only.
    let flags = unsafe { libc::fcntl(fd, libc::F_GETFL) };
    (flags != -1).then_some(flags)
}

/// What fstat(2) says of a descriptor that somebody else has opened.
pub fn status_of(fd: i32) -> Option<libc::stat> {
    let mut status = std::mem::MaybeUninit::<libc::stat>::uninit();
    // SAFETY: the kernel writes one stat there.
    if unsafe { libc::fstat(fd, status.as_mut_ptr()) } != 0 {
        return None;
    }
    // SAFETY: it did.
    Some(unsafe { status.assume_init() })
}

/// Gives `signal` its default disposition (signal(7)).
pub fn default_disposition(signal: i32) {
    // SAFETY: SIG_DFL is a valid disposition for every signal.
    unsafe { libc::signal(signal, libc::SIG_DFL) };
}

/// Sends `signal` to a process (kill(2)); real-time signals too.
pub fn kill(pid: Tid, signal: i32) -> io::Result<()> {
    // SAFETY: kill takes integers only.
    check(libc::c_long::from(unsafe { libc::kill(pid.0, signal) })).map(drop)
}

/// The signals that are blocked in this thread.
#[derive(Clone, Copy)]
pub struct SignalMask(libc::sigset_t);

impl SignalMask {
    /// Blocks every signal in this thread and returns what was blocked before.
    pub fn block_all() -> SignalMask {
        let mut all = std::mem::MaybeUninit::<libc::sigset_t>::zeroed();
        let mut before = std::mem::MaybeUninit::<libc::sigset_t>::zeroed();
        // SAFETY: both sets are writable, and all-zeroes is a valid sigset_t.
        unsafe { libc::sigfillset(all.as_mut_ptr()) };
        // SAFETY: as above; SIG_SETMASK with a filled set cannot fail.
        unsafe { libc::sigprocmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr()) };
        // SAFETY: zeroed at first, then written by sigprocmask.
        SignalMask(unsafe { before.assume_init() })
    }

    /// Makes this the mask of the thread.
    pub fn restore(&self) {
        // SAFETY: the set came from sigprocmask.
        unsafe { libc::sigprocmask(libc::SIG_SETMASK, &raw const self.0, std::ptr::null_mut()) };
    }

    /// Unblocks `signal` alone in this thread.
    pub fn unblock(signal: i32) {
        let mut set = std::mem::MaybeUninit::<libc::sigset_t>::zeroed();
        // SAFETY: the set is writable, and all-zeroes is a valid, empty sigset_t.
        unsafe { libc::sigaddset(set.as_mut_ptr(), signal) };
        // SAFETY: initialised above.
        unsafe { libc::sigprocmask(libc::SIG_UNBLOCK, set.as_ptr(), std::ptr::null_mut()) };
    }
}

/// A signal that was taken from the queue of this process, and who sent it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReceivedSignal {
    /// The number.
    pub signal: i32,
    /// The sender's process id, 0 where the kernel sent it.
    pub sender: u32,
    /// `si_code` (sigaction(2)).
    pub code: i32,
}

/// Asks for no SIGCHLD when a child or tracee merely stops (SA_NOCLDSTOP, sigaction(2)): there is one
/// stop for each held call, and waitpid tells of it anyway.
pub fn ignore_stops_of_children() {
    let mut action = std::mem::MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: all-zeroes is a valid sigaction: SIG_DFL, an empty mask, no flags.
    unsafe { action.assume_init_mut() }.sa_flags = libc::SA_NOCLDSTOP;
    // SAFETY: `action` is initialised, and the old one is not asked for.
    unsafe { libc::sigaction(libc::SIGCHLD, action.as_ptr(), std::ptr::null_mut()) };
}

/// A descriptor that becomes readable when a signal of this process other than SIGCHLD is pending
/// (signalfd(2)).
pub fn signal_descriptor() -> io::Result<OwnedFd> {
    let mut all = std::mem::MaybeUninit::<libc::sigset_t>::zeroed();
    // SAFETY: the set is writable.
    unsafe { libc::sigfillset(all.as_mut_ptr()) };
    // SAFETY: as above.
    unsafe { libc::sigdelset(all.as_mut_ptr(), libc::SIGCHLD) };
    // SAFETY: the set is initialised; -1 asks for a new descriptor.
    let fd = unsafe { libc::signalfd(-1, all.as_ptr(), libc::SFD_CLOEXEC | libc::SFD_NONBLOCK) };
    check(libc::c_long::from(fd))?;
    // SAFETY: a fresh descriptor that nobody else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Takes one pending signal from `descriptor`, if there is one.
pub fn take_signal(descriptor: BorrowedFd<'_>) -> Option<ReceivedSignal> {
    let mut info = std::mem::MaybeUninit::<libc::signalfd_siginfo>::zeroed();
    let size = size_of::<libc::signalfd_siginfo>();
    // SAFETY: the buffer is `size` bytes long and any bytes are a valid signalfd_siginfo.
    let count = unsafe { libc::read(descriptor.as_raw_fd(), info.as_mut_ptr().cast::<c_void>(), size) };
    if usize::try_from(count) != Ok(size) {
        return None;
    }
    // SAFETY: zeroed at first, then filled by the read.
    let info = unsafe { info.assume_init() };
    Some(ReceivedSignal {
        signal: i32::try_from(info.ssi_signo).ok()?,
        sender: info.ssi_pid,
        code: info.ssi_code,
    })
}

/// Waits for a change of any child or tracee, threads included, and returns its raw status
/// (waitpid(2) with __WALL). ECHILD when none is left.
pub fn wait_any() -> io::Result<(Tid, i32)> {
    loop {
        let mut status = 0;
        // SAFETY: `status` is writable.
        let tid = unsafe { libc::waitpid(-1, &raw mut status, libc::__WALL) };
        if tid > 0 {
            return Ok((Tid(tid), status));
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
}

/// The same, but for so long it asks again and again before it sleeps: waking a CPU that has nothing
/// else to do may cost more than all else of a stop. Whoever else wants this CPU gets it.
///
/// Returns none at `deadline`, where there is one: until then it sleeps in short steps, since waitpid
/// has no timeout.
pub fn wait_any_awake(awake: Duration, deadline: Option<Instant>) -> io::Result<Option<(Tid, i32)>> {
    const STEP: Duration = Duration::from_micros(100);
    let since = Instant::now();
    loop {
        if let Some(changed) = changed_by_now()? {
            return Ok(Some(changed));
        }
        let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        match left {
            Some(Duration::ZERO) => return Ok(None),
            _ if since.elapsed() < awake => std::thread::yield_now(),
            Some(left) => std::thread::sleep(left.min(STEP)),
            None => return wait_any().map(Some),
        }
    }
}

/// The same, without waiting: none where no child or tracee has changed.
pub fn changed_by_now() -> io::Result<Option<(Tid, i32)>> {
    let mut status = 0;
    // SAFETY: `status` is writable.
    let tid = unsafe { libc::waitpid(-1, &raw mut status, libc::__WALL | libc::WNOHANG) };
    check(libc::c_long::from(tid))?;
    Ok((tid > 0).then_some((Tid(tid), status)))
}

/// The options that every tracee of ours has (ptrace(2)); EXITKILL first of all.
const OPTIONS: libc::c_int = libc::PTRACE_O_EXITKILL
    | libc::PTRACE_O_TRACESYSGOOD
    | libc::PTRACE_O_TRACEFORK
    | libc::PTRACE_O_TRACEVFORK
    | libc::PTRACE_O_TRACECLONE
    | libc::PTRACE_O_TRACEEXEC
    | libc::PTRACE_O_TRACESECCOMP;

/// Makes this thread the tracer of `tid` without stopping it (PTRACE_SEIZE, ptrace(2)).
pub fn seize(tid: Tid) -> io::Result<()> {
    // SAFETY: no address is read or written by this request.
    check(unsafe { libc::ptrace(libc::PTRACE_SEIZE, tid.0, 0usize, OPTIONS as usize) }).map(drop)
}

/// Makes a seized tracee stop before it runs on in user mode (PTRACE_INTERRUPT).
pub fn interrupt(tid: Tid) -> io::Result<()> {
    // SAFETY: no address is read or written by this request.
    check(unsafe { libc::ptrace(libc::PTRACE_INTERRUPT, tid.0, 0usize, 0usize) }).map(drop)
}

/// What a new process shares with the one that makes it, as the call says that a stopped thread is in.
pub fn clone_flags(tid: Tid) -> CloneFlags {
    let Ok((number, [first, ..], _)) = interrupted_call(tid) else { return CloneFlags::default() };
    let flags = match libc::c_long::try_from(number) {
        Ok(libc::SYS_clone) => first,
        Ok(libc::SYS_clone3) => {
            // The first field of struct clone_args.
            let mut flags = [0; 8];
            match TraceeMemory(tid).read(RemoteAddr(first), &mut flags) {
                Ok(8) => u64::from_ne_bytes(flags),
                _ => 0,
            }
        }
        Ok(libc::SYS_vfork) => u64::from(libc::CLONE_VM.unsigned_abs()),
        _ => 0,
    };
    let has = |flag: libc::c_int| flags & u64::from(flag.unsigned_abs()) != 0;
    CloneFlags { memory: has(libc::CLONE_VM), working_directory: has(libc::CLONE_FS) }
}

/// What two processes share (clone(2)).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CloneFlags {
    /// Their memory (CLONE_VM).
    pub memory: bool,
    /// Their working directory, root and umask (CLONE_FS).
    pub working_directory: bool,
}

/// The signal that asks the tracing thread for an interruption; no program of Linux sends it.
const INTERRUPTER: libc::c_int = libc::SIGSTKFLT;

/// Whom the tracing thread is asked to interrupt; 0: nobody. The signal itself could not say: what comes
/// with one is lost at RLIMIT_SIGPENDING (sigqueue(3)).
static TO_INTERRUPT: AtomicI32 = AtomicI32::new(0);

/// Where [`Interrupter`] learns that it was done; -1 where there is none.
static INTERRUPTED: AtomicI32 = AtomicI32::new(-1);

/// Interrupts tracees of another thread of ours, which alone may ptrace them; one thread asks for it.
///
/// That thread waits for its tracees, and has nothing else that could wake it than a signal; its handler
/// does what it was woken for.
#[derive(Debug)]
pub struct Interrupter {
    tracer: Tid,
    done: OwnedFd,
}

impl Interrupter {
    /// For the tracees of this thread, which all signals but this one's stay blocked in.
    pub fn of_this_thread() -> io::Result<Interrupter> {
        // SAFETY: integers only.
        let done = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC) };
        check(libc::c_long::from(done))?;
        INTERRUPTED.store(done, Ordering::SeqCst);
        let mut action = std::mem::MaybeUninit::<libc::sigaction>::zeroed();
        // SAFETY: all-zeroes is a valid sigaction, and the field is written before it is used.
        unsafe { (*action.as_mut_ptr()).sa_sigaction = on_interrupter as *const () as usize };
        // SAFETY: as above.
        unsafe { (*action.as_mut_ptr()).sa_flags = libc::SA_RESTART };
        // SAFETY: the handler makes system calls alone and keeps errno.
        let set = unsafe { libc::sigaction(INTERRUPTER, action.as_ptr(), std::ptr::null_mut()) };
        check(libc::c_long::from(set))?;
        SignalMask::unblock(INTERRUPTER);
        // SAFETY: gettid takes nothing.
        let tracer = Tid(unsafe { libc::gettid() });
        // SAFETY: a fresh descriptor that nobody else owns; the handler writes while this process lives.
        Ok(Interrupter { tracer, done: unsafe { OwnedFd::from_raw_fd(done) } })
    }

    /// Makes `tid` stop before it runs on in user mode, and returns when that is certain.
    pub fn interrupt(&self, tid: Tid) {
        TO_INTERRUPT.store(tid.0, Ordering::SeqCst);
        let (process, thread) = (std::process::id(), self.tracer.0);
        // SAFETY: tgkill takes integers only.
        if unsafe { libc::syscall(libc::SYS_tgkill, process, thread, INTERRUPTER) } == 0 {
            let mut done = [0; 8];
            let _ = rustix::io::retry_on_intr(|| rustix::io::read(&self.done, &mut done));
        }
    }
}

extern "C" fn on_interrupter(_: libc::c_int) {
    let errno = nix::errno::Errno::last_raw();
    let tid = TO_INTERRUPT.swap(0, Ordering::SeqCst);
    if tid != 0 {
        let _ = interrupt(Tid(tid));
        let one = 1u64;
        let descriptor = INTERRUPTED.load(Ordering::SeqCst);
        // SAFETY: writes eight bytes to a descriptor that lives as long as this process.
        unsafe { libc::write(descriptor, (&raw const one).cast::<c_void>(), 8) };
    }
    nix::errno::Errno::set_raw(errno);
}

/// How a stopped tracee goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Resume {
    /// To the next event (PTRACE_CONT).
    Continue,
    /// To the next event or the next entry or exit of a call (PTRACE_SYSCALL).
    Syscall,
    /// It stays in its group-stop until SIGCONT (PTRACE_LISTEN).
    Listen,
}

/// Resumes a stopped tracee and delivers `signal` (0: none).
pub fn resume(tid: Tid, how: Resume, signal: i32) -> io::Result<()> {
    let request = match how {
        Resume::Continue => libc::PTRACE_CONT,
        Resume::Syscall => libc::PTRACE_SYSCALL,
        Resume::Listen => libc::PTRACE_LISTEN,
    };
    // SAFETY: no address is read or written by these requests.
    check(unsafe { libc::ptrace(request, tid.0, 0usize, i64::from(signal)) }).map(drop)
}

/// The message of the event that `tid` is stopped by (PTRACE_GETEVENTMSG).
pub fn event_message(tid: Tid) -> io::Result<u64> {
    let mut message: libc::c_ulong = 0;
    // SAFETY: the kernel writes one unsigned long there.
    check(unsafe { libc::ptrace(libc::PTRACE_GETEVENTMSG, tid.0, 0usize, &raw mut message) })?;
    Ok(message)
}

/// Where in a call a tracee is held, by the kernel's own answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SyscallStop {
    /// At its entry, by either mechanism: nothing has happened.
    Entry {
        /// The AUDIT_ARCH number of its ABI.
        arch: u32,
        /// The call's number, as in orig_rax.
        number: u64,
        /// The six argument registers.
        arguments: [u64; 6],
        /// What the seccomp filter that stopped it returned beside the action; none where none did.
        filter: Option<u32>,
    },
    /// At its exit, with the result as in rax: -errno where it failed.
    Exit {
        /// The result.
        result: i64,
    },
    /// Not in a call.
    None,
}

/// Asks where in a call `tid` is held (PTRACE_GET_SYSCALL_INFO, Linux 5.3).
pub fn syscall_stop(tid: Tid) -> io::Result<SyscallStop> {
    let mut info = std::mem::MaybeUninit::<libc::ptrace_syscall_info>::zeroed();
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

/// One register of a tracee that is held at the entry of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Register {
    /// The call's number; -1 skips the call, which then answers ENOSYS.
    Number,
    /// The first argument.
    FirstArgument,
    /// The result.
    Result,
    /// The address of the next instruction.
    InstructionPointer,
}

impl Register {
    /// Where it is in `struct user`.
    fn offset(self) -> usize {
        match self {
            Register::Number => std::mem::offset_of!(libc::user_regs_struct, orig_rax),
            Register::FirstArgument => std::mem::offset_of!(libc::user_regs_struct, rdi),
            Register::Result => std::mem::offset_of!(libc::user_regs_struct, rax),
            Register::InstructionPointer => std::mem::offset_of!(libc::user_regs_struct, rip),
        }
    }
}

/// Writes a register of a held tracee (PTRACE_POKEUSER).
pub fn set_register(tid: Tid, register: Register, value: u64) -> io::Result<()> {
    // SAFETY: the offset lies in `struct user`, and the value is an integer.
    check(unsafe { libc::ptrace(libc::PTRACE_POKEUSER, tid.0, register.offset(), value) }).map(drop)
}

/// The address of the instruction that a stopped tracee executes next.
pub fn instruction_pointer(tid: Tid) -> io::Result<u64> {
    registers(tid).map(|registers| registers.rip)
}

/// The `si_code` of the signal that `tid` is in its signal-delivery-stop for (PTRACE_GETSIGINFO).
pub fn signal_code(tid: Tid) -> io::Result<i32> {
    let mut info = std::mem::MaybeUninit::<libc::siginfo_t>::zeroed();
    // SAFETY: the kernel writes one siginfo_t there.
    check(unsafe { libc::ptrace(libc::PTRACE_GETSIGINFO, tid.0, 0usize, info.as_mut_ptr()) })?;
    // SAFETY: all-zeroes is valid, and the kernel filled it.
    Ok(unsafe { info.assume_init() }.si_code)
}

/// Lets a stopped tracee go on untraced, without its signal (PTRACE_DETACH). It keeps the filter.
pub fn detach(tid: Tid) -> io::Result<()> {
    // SAFETY: no address is read or written by this request.
    check(unsafe { libc::ptrace(libc::PTRACE_DETACH, tid.0, 0usize, 0usize) }).map(drop)
}

/// The raw status with which the process of a pidfd has ended (PIDFD_GET_INFO, Linux 6.15).
pub fn exit_code(pidfd: BorrowedFd<'_>) -> io::Result<i32> {
    /// The first version of struct pidfd_info (linux/pidfd.h).
    #[repr(C)]
    struct Info {
        mask: u64,
        cgroup: u64,
        ids: [u32; 11],
        exit_code: i32,
    }
    /// _IOWR(0xff, 11, struct pidfd_info)
    const GET_INFO: libc::Ioctl = 0xc040_ff0b;
    const EXIT: u64 = 1 << 3;
    const _: () = assert!(size_of::<Info>() == 64);
    let mut info = Info { mask: EXIT, cgroup: 0, ids: [0; 11], exit_code: 0 };
    // SAFETY: the kernel reads and writes as many bytes as the request says.
    let asked = unsafe { libc::ioctl(pidfd.as_raw_fd(), GET_INFO, &raw mut info) };
    check(libc::c_long::from(asked))?;
    if info.mask & EXIT == 0 {
        return Err(io::ErrorKind::Unsupported.into());
    }
    Ok(info.exit_code)
}

/// The memory of a tracee (process_vm_readv(2)).
#[derive(Debug, Clone, Copy)]
pub struct TraceeMemory(pub Tid);

impl Memory for TraceeMemory {
    fn read(&self, address: RemoteAddr, into: &mut [u8]) -> Result<usize, MemoryError> {
        let local = libc::iovec { iov_base: into.as_mut_ptr().cast::<c_void>(), iov_len: into.len() };
        let remote = libc::iovec { iov_base: address.0 as *mut c_void, iov_len: into.len() };
        // SAFETY: `local` is exactly the buffer; the remote side is checked by the kernel.
        let count = unsafe { libc::process_vm_readv(self.0.0, &raw const local, 1, &raw const remote, 1, 0) };
        usize::try_from(count).map_err(|_| match io::Error::last_os_error().raw_os_error() {
            Some(libc::EFAULT) => MemoryError::Unmapped,
            Some(libc::ESRCH) => MemoryError::Gone,
            _ => MemoryError::Unreadable,
        })
    }
}

/// Installs the filter in this thread (seccomp(2)), which it and all its descendants keep.
///
/// Without CAP_SYS_ADMIN the kernel wants no_new_privs, which is set only then.
pub fn install_filter(program: &[Instruction]) -> io::Result<()> {
    install(program, 0).map(drop)
}

/// The same for a filter with calls that wait for an answer; returns the end that answers them.
///
/// EBUSY where this process has such a filter already, EINVAL before Linux 5.19.
pub fn install_filter_with_listener(program: &[Instruction]) -> io::Result<OwnedFd> {
    // A call that was received is interrupted by fatal signals only.
    let flags = libc::SECCOMP_FILTER_FLAG_NEW_LISTENER | libc::SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV;
    let fd = i32::try_from(install(program, flags)?).map_err(io::Error::other)?;
    // SAFETY: a fresh descriptor that nobody else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn install(program: &[Instruction], flags: libc::c_ulong) -> io::Result<libc::c_long> {
    let length = u16::try_from(program.len())
        .map_err(|_| io::Error::new(io::ErrorKind::InvalidInput, "the filter program is too long"))?;
    let program = libc::sock_fprog { len: length, filter: program.as_ptr().cast_mut() };
    // SAFETY: `program` names `length` instructions that outlive the call; the kernel copies them.
    let install = || unsafe {
        libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, flags, &raw const program)
    };
    match check(install()) {
        Err(error) if error.raw_os_error() == Some(libc::EACCES) => {}
        other => return other,
    }
    // SAFETY: prctl with integers only.
    check(libc::c_long::from(unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) }))?;
    check(install())
}

/// Whether the kernel's messages of seccomp_unotify(2) have the sizes that we know.
pub fn notification_sizes_known() -> bool {
    let mut sizes = libc::seccomp_notif_sizes { seccomp_notif: 0, seccomp_notif_resp: 0, seccomp_data: 0 };
    // SAFETY: the kernel writes one seccomp_notif_sizes there.
    let asked = unsafe { libc::syscall(libc::SYS_seccomp, libc::SECCOMP_GET_NOTIF_SIZES, 0, &raw mut sizes) };
    asked == 0
        && usize::from(sizes.seccomp_notif) <= size_of::<libc::seccomp_notif>()
        && usize::from(sizes.seccomp_notif_resp) <= size_of::<libc::seccomp_notif_resp>()
}

/// A call that waits for its answer, by its id.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Notification {
    /// The answer's address; invalid once the thread is dead.
    pub id: u64,
    /// The thread that calls.
    pub tid: Tid,
    /// The AUDIT_ARCH number of its ABI.
    pub arch: u32,
    /// The call's number.
    pub number: u64,
    /// The six argument registers.
    pub arguments: [u64; 6],
}

/// Waits for the next call that wants an answer.
///
/// ENOENT where one was interrupted before it was received, and (Linux 6.11) where no process has the
/// filter any more.
pub fn receive_notification(listener: BorrowedFd<'_>) -> io::Result<Notification> {
    let mut message = std::mem::MaybeUninit::<libc::seccomp_notif>::zeroed();
    // SAFETY: the kernel wants zeroes and writes one seccomp_notif there.
    let received =
        unsafe { libc::ioctl(listener.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_RECV, message.as_mut_ptr()) };
    check(libc::c_long::from(received))?;
    // SAFETY: all-zeroes is valid, and the kernel filled it.
    let message = unsafe { message.assume_init() };
    Ok(Notification {
        id: message.id,
        tid: Tid(message.pid.cast_signed()),
        arch: message.data.arch,
        number: u64::from(message.data.nr.cast_unsigned()),
        arguments: message.data.args,
    })
}

/// Whether the call still waits: its thread lives, and its tid and memory are its own.
pub fn notification_waits(listener: BorrowedFd<'_>, id: u64) -> bool {
    // SAFETY: the kernel reads one u64.
    unsafe { libc::ioctl(listener.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_ID_VALID, &raw const id) == 0 }
}

/// Lets the call go on as if there were no filter. A thread that is dead needs no answer.
pub fn let_go_on(listener: BorrowedFd<'_>, id: u64) {
    let answer = libc::seccomp_notif_resp {
        id,
        val: 0,
        error: 0,
        flags: u32::try_from(libc::SECCOMP_USER_NOTIF_FLAG_CONTINUE).unwrap_or(1),
    };
    // SAFETY: the kernel reads one seccomp_notif_resp.
    unsafe { libc::ioctl(listener.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_SEND, &raw const answer) };
}

/// Has callers and the thread that answers them wake each other on one CPU (Linux 6.6).
pub fn wake_on_one_cpu(listener: BorrowedFd<'_>) -> io::Result<()> {
    /// SECCOMP_IOW(4, __u64) of linux/seccomp.h.
    const SET_FLAGS: libc::Ioctl = 0x4008_2104;
    /// SECCOMP_USER_NOTIF_FD_SYNC_WAKE_UP.
    const SYNC_WAKE_UP: libc::c_ulong = 1;
    // SAFETY: this request takes an integer.
    check(libc::c_long::from(unsafe { libc::ioctl(listener.as_raw_fd(), SET_FLAGS, SYNC_WAKE_UP) })).map(drop)
}

/// The call that a stopped tracee was in: its number, its arguments and the result so far
/// (PTRACE_GETREGS).
pub fn interrupted_call(tid: Tid) -> io::Result<(u64, [u64; 6], i64)> {
    let at = registers(tid)?;
    Ok((at.orig_rax, [at.rdi, at.rsi, at.rdx, at.r10, at.r8, at.r9], at.rax.cast_signed()))
}

fn registers(tid: Tid) -> io::Result<libc::user_regs_struct> {
    let mut registers = std::mem::MaybeUninit::<libc::user_regs_struct>::zeroed();
    // SAFETY: the kernel writes one user_regs_struct there.
    check(unsafe { libc::ptrace(libc::PTRACE_GETREGS, tid.0, 0usize, registers.as_mut_ptr()) })?;
    // SAFETY: all-zeroes is valid, and the kernel filled it.
    Ok(unsafe { registers.assume_init() })
}

/// Keeps freed memory for reuse instead of giving it back: large buffers otherwise cost a page
/// fault for every 4 KiB each time (mallopt(3)).
pub fn keep_large_buffers() {
    const KEEP: libc::c_int = 1 << 30;
    // SAFETY: mallopt with integers only, called before any thread is started.
    unsafe { libc::mallopt(libc::M_MMAP_THRESHOLD, KEEP) };
    // SAFETY: as above.
    unsafe { libc::mallopt(libc::M_TRIM_THRESHOLD, KEEP) };
}
