//! Starts the command so that it never runs untraced.
//!
//! One process forks the command's process and stays its parent, another one seizes it. The command's process
//! waits on a socket until it is seized, installs the filter, waits for its release and executes the command.
//! It inherits the signal dispositions and descriptors that this process was started with, since nothing has
//! changed them before the fork; the signal mask, the limits and the umask are restored.

use std::ffi::CString;
use std::hash::{BuildHasher as _, RandomState};
use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::process::{PTracer, Pid, set_ptracer};

use super::attributes::ProcessAttributes;
use super::error::Error;
use super::filter::{self, Actions, Instruction, Interception};
use super::seqpacket;
use super::sys::{self, Fork, Tid};
use super::syscalls::Refusable;

/// What to start.
#[derive(Clone)]
pub struct Program {
    /// The file to execute.
    pub path: CString,
    /// Its arguments, `argv[0]` first.
    pub argv: Vec<CString>,
    /// What it inherits besides descriptors and signal dispositions.
    pub attributes: ProcessAttributes,
}

impl Program {
    /// Replaces this process by the program, with what it inherits; returns only when that fails.
    pub fn execute(&self) -> io::Error {
        let argv: Vec<_> = self.argv.iter().map(CString::as_c_str).collect();
        self.attributes.restore();
        let error = sys::execute(&self.path, &argv);
        if error.raw_os_error() != Some(libc::ENOEXEC) {
            return error;
        }
        // As execvp(3) does: a text file without `#!` is a shell script.
        let mut shell = vec![c"/bin/sh", self.path.as_c_str()];
        shell.extend(argv.iter().skip(1));
        sys::execute(c"/bin/sh", &shell)
    }
}

/// A command that is seized, has its filter, and waits for its release.
pub struct Launched {
    /// Its process.
    pub command: Tid,
    /// How its syscalls are intercepted.
    pub interception: Interception,
    /// Where notifications are received, with [`Interception::Notifications`].
    pub listener: Option<OwnedFd>,
    /// What the register of a sixth argument has in read-only calls that their process has noted, if any may note them.
    pub noted: Option<u64>,
    socket: OwnedFd,
}

const GO: &[u8] = b"go";
const STOPS: &[u8] = b"stops";
const NOTIFICATIONS: &[u8] = b"notifications";
const NO_FILTER: &[u8] = b"no filter";
const NOT_CONFINED: &[u8] = b"not confined";

impl Launched {
    /// Lets the command execute.
    pub fn release(&self) -> io::Result<()> {
        if self.interception == Interception::EveryCall {
            // It stops at the end of its read and is resumed by PTRACE_SYSCALL: no syscall is missed.
            sys::interrupt(self.command)?;
        }
        seqpacket::send(&self.socket, GO, None)
    }

    /// The error of the command's execve, once the tree has ended; none where it succeeded.
    pub fn exec_error(self) -> Option<io::Error> {
        let mut errno = [0; 4];
        let (length, _) = seqpacket::receive(&self.socket, &mut errno).ok()?;
        (length == errno.len()).then(|| io::Error::from_raw_os_error(i32::from_le_bytes(errno)))
    }
}

/// The process of a command, which waits to be seized.
pub struct Spawned {
    /// Its process.
    pub command: Tid,
    socket: OwnedFd,
    noted: Option<u64>,
}

/// A command that is seized and installs its filter, which takes a while.
pub struct Launching {
    /// Its process.
    pub command: Tid,
    socket: OwnedFd,
    noted: Option<u64>,
}

/// What is wanted of the interception.
#[derive(Debug, Clone, Copy)]
pub struct InterceptionOptions<'a> {
    /// The fastest way that may be used.
    pub interception: Interception,
    /// Whether calls matter that do so only where a recording may be recalled.
    pub for_recall: bool,
    /// Descriptors of which every use matters.
    pub descriptors: &'a [u32],
    /// Which calls may be refused by rules, if any.
    pub refusable: Option<Refusable>,
    /// Whether processes may note their own read-only calls, with [`Interception::Notifications`].
    pub inside: bool,
}

/// Forks the process of the command, which waits until another process seizes it with [`Spawned::seize`]. It
/// ends when the last copy of this value is dropped. It calls `confine` before its filter is installed.
pub fn spawn(
    program: &Program,
    wanted: InterceptionOptions<'_>,
    confine: impl FnOnce() -> io::Result<()>,
) -> Result<Spawned, Error> {
    let random = RandomState::new();
    let pass = random.hash_one(0);
    let InterceptionOptions { interception, for_recall, descriptors, refusable, inside } = wanted;
    let noted = inside.then(|| random.hash_one(1));
    let notifying = (interception == Interception::Notifications && has_notifications()).then(|| {
        let actions = Actions { for_recall, refusable, noted, ..Actions::NOTIFICATIONS };
        filter::program(actions, pass, descriptors)
    });
    let (socket, theirs) = seqpacket::pair()?;
    match sys::fork()? {
        Fork::Child => {
            drop(socket);
            run_child(program, notifying.as_deref(), pass, wanted, confine, &theirs)
        }
        Fork::Parent(command) => Ok(Spawned { command, socket, noted }),
    }
}

impl Spawned {
    /// Seizes the command from this process, which need not be its parent; it then installs the filter that
    /// was wanted, or the next simpler one that the kernel allows.
    pub fn seize(self) -> Result<Launching, Error> {
        let Spawned { command, socket, noted } = self;
        // With Yama's ptrace_scope 1 a process says who besides its ancestors may trace it.
        seqpacket::send(&socket, &std::process::id().to_le_bytes(), None)?;
        let mut word = [0; 16];
        seqpacket::receive(&socket, &mut word)?;
        if !sys::has_own_procfs() {
            return Err(Error::ForeignProcfs);
        }
        sys::seize(command).map_err(Error::Denied)?;
        // Without it, no call would be seen. ESRCH means that the kernel has it, and the command is not stopped.
        if let Err(error) = sys::syscall_stop(command)
            && error.raw_os_error() != Some(libc::ESRCH)
        {
            return Err(Error::NoSyscallInfo(error));
        }
        seqpacket::send(&socket, GO, None)?;
        Ok(Launching { command, socket, noted })
    }
}

impl Launching {
    /// Waits until the filter is installed.
    pub fn installed(self) -> Result<Launched, Error> {
        let Launching { command, socket, noted } = self;
        let mut answer = [0; 16];
        let (length, listener) = seqpacket::receive(&socket, &mut answer)?;
        let interception = match &answer[..length] {
            NOTIFICATIONS if listener.is_some() => Interception::Notifications,
            STOPS => Interception::Stops,
            NO_FILTER => Interception::EveryCall,
            NOT_CONFINED => return Err(Error::NotConfined),
            _ => return Err(io::Error::other("the command's process ended before it was started").into()),
        };
        if let Some(listener) = &listener {
            // Without it, answers are only slower.
            let _ = sys::wake_on_one_cpu(listener.as_fd());
        }
        let noted = noted.filter(|_| interception == Interception::Notifications);
        Ok(Launched { command, interception, listener, noted, socket })
    }
}

/// Whether notifications can be used: they are fast (Linux 6.6), their messages have a known size, and interrupted calls
/// end as they would untraced.
pub fn has_notifications() -> bool {
    let name = rustix::system::uname();
    let release = name.release().to_string_lossy();
    let mut numbers = release.split(|byte: char| !byte.is_ascii_digit()).map(str::parse::<u32>);
    let (Some(Ok(major)), Some(Ok(minor))) = (numbers.next(), numbers.next()) else { return false };
    sys::arch::CAN_FORCE_RESTART && (major, minor) >= (6, 6) && sys::notification_sizes_known()
}

/// Installs the filter and tells the tracer which one it is, with the listener if it has one.
fn install(
    notifying: Option<&[Instruction]>,
    pass: u64,
    wanted: InterceptionOptions<'_>,
    socket: &OwnedFd,
) -> io::Result<()> {
    if let Some(listener) = notifying.and_then(|program| sys::install_filter_with_listener(program).ok()) {
        return sys::send_with_pass(socket.as_fd(), NOTIFICATIONS, listener.as_fd(), pass);
    }
    let actions = Actions { for_recall: wanted.for_recall, refusable: wanted.refusable, ..Actions::STOPS };
    let stops = wanted.interception != Interception::EveryCall
        && sys::install_filter(&filter::program(actions, pass, wanted.descriptors)).is_ok();
    seqpacket::send(socket, if stops { STOPS } else { NO_FILTER }, None)
}

/// Waits for the tracer's word; ends this process if the tracer is dead.
fn wait_for_go(socket: &OwnedFd) {
    let mut word = [0; 16];
    match seqpacket::receive(socket, &mut word) {
        Ok((length, _)) if &word[..length] == GO => {}
        _ => sys::exit_now(125),
    }
}

/// Waits to be told the tracer's process id, and allows it to trace this process (PR_SET_PTRACER).
fn allow_tracer(socket: &OwnedFd) {
    let mut id = [0; 4];
    let received = seqpacket::receive(socket, &mut id);
    let tracer = i32::from_le_bytes(id);
    match received {
        Ok((4, _)) => {
            // Without Yama nobody need be allowed, and the kernel does not know the option (EINVAL).
            let _ = Pid::from_raw(tracer).map(|tracer| set_ptracer(PTracer::ProcessID(tracer)));
            let _ = seqpacket::send(socket, GO, None);
        }
        _ => sys::exit_now(125),
    }
}

fn run_child(
    program: &Program,
    notifying: Option<&[Instruction]>,
    pass: u64,
    wanted: InterceptionOptions<'_>,
    confine: impl FnOnce() -> io::Result<()>,
    socket: &OwnedFd,
) -> ! {
    allow_tracer(socket);
    wait_for_go(socket);
    if confine().is_err() {
        let _ = seqpacket::send(socket, NOT_CONFINED, None);
        sys::exit_now(125);
    }
    if install(notifying, pass, wanted, socket).is_err() {
        sys::exit_now(125);
    }
    wait_for_go(socket);
    let errno = program.execute().raw_os_error().unwrap_or(libc::EIO);
    let _ = seqpacket::send(socket, &errno.to_le_bytes(), None);
    sys::exit_now(127);
}
