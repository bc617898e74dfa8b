//! What the programs share that are run alone and recorded, for what they print to be compared.
//!
//! `--list` names the scenarios, one a line; the name of one runs it in the working directory. No process
//! id, address or time may be printed: they differ from run to run.

#![allow(dead_code, reason = "each program uses its part")]

use std::{env, process};

use libc::{c_int, pid_t};

/// A name, and what it does.
pub type Scenario = (&'static str, fn());

/// The program's `main`.
pub fn run(scenarios: &[Scenario]) {
    let name = env::args().nth(1).unwrap_or_default();
    if name == "--list" {
        scenarios.iter().for_each(|(name, _)| println!("{name}"));
    } else if let Some((_, scenario)) = scenarios.iter().find(|(known, _)| *known == name) {
        scenario();
    } else {
        eprintln!("usage: --list | SCENARIO");
        process::exit(2);
    }
}

/// Calls libc, whose functions take integers and pointers that the caller vouches for.
#[macro_export]
macro_rules! c {
    ($call:expr) => {{
        // SAFETY: the arguments are integers, or pointers to objects that outlive the call.
        #[allow(unused_unsafe, clippy::macro_metavars_in_unsafe, reason = "programs of calls alone")]
        let answer = unsafe { $call };
        answer
    }};
}

/// The name of the last error.
pub fn error() -> String {
    let errno = std::io::Error::last_os_error().raw_os_error().unwrap_or(0);
    format!("{:?}", nix::errno::Errno::from_raw(errno))
}

/// What a call returned, or the name of its error.
pub fn said(value: impl Into<i64>) -> String {
    match value.into() {
        -1 => error(),
        value => value.to_string(),
    }
}

/// Runs `child` in a new process, which ends with what it returns.
pub fn fork(child: impl FnOnce() -> c_int) -> pid_t {
    match c!(libc::fork()) {
        0 => {
            let status = child();
            end(status)
        }
        pid => {
            assert!(pid > 0, "fork: {}", error());
            pid
        }
    }
}

/// Ends this process at once.
pub fn end(status: c_int) -> ! {
    // SAFETY: takes any integer.
    unsafe { libc::_exit(status) }
}

/// Waits for a change of state of `pid`; the change in words.
pub fn wait_with(pid: pid_t, options: c_int) -> String {
    let mut status = 0;
    loop {
        let found = c!(libc::waitpid(pid, &raw mut status, options));
        if found > 0 {
            return status_text(status);
        }
        if found == 0 || std::io::Error::last_os_error().raw_os_error() != Some(libc::EINTR) {
            return error();
        }
    }
}

/// Waits for the end of `pid`; its status in words.
pub fn wait(pid: pid_t) -> String {
    wait_with(pid, libc::__WALL)
}

/// A wait status in words.
pub fn status_text(status: c_int) -> String {
    if libc::WIFEXITED(status) {
        format!("exited {}", libc::WEXITSTATUS(status))
    } else if libc::WIFSIGNALED(status) {
        let core = if libc::WCOREDUMP(status) { ", core dumped" } else { "" };
        format!("killed by {}{core}", libc::WTERMSIG(status))
    } else if libc::WIFSTOPPED(status) {
        format!("stopped by {} (event {})", libc::WSTOPSIG(status), status >> 16)
    } else if libc::WIFCONTINUED(status) {
        "continued".to_owned()
    } else {
        format!("status {status:#x}")
    }
}

/// A pipe: the end to read from, the end to write to.
pub fn pipe() -> [c_int; 2] {
    let mut ends = [0; 2];
    assert_eq!(c!(libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC)), 0);
    ends
}

/// Writes one byte.
pub fn tell(fd: c_int) {
    assert_eq!(c!(libc::write(fd, c"x".as_ptr().cast(), 1)), 1);
}

/// Waits for a byte or the end; whether there was a byte.
pub fn heard(fd: c_int) -> bool {
    let mut byte = 0u8;
    loop {
        match c!(libc::read(fd, (&raw mut byte).cast(), 1)) {
            -1 if std::io::Error::last_os_error().raw_os_error() == Some(libc::EINTR) => {}
            count => return count == 1,
        }
    }
}

/// Prints a line at once, with nothing of it left in a buffer that a fork would copy.
pub fn line(text: &str) {
    let text = format!("{text}\n");
    c!(libc::write(1, text.as_ptr().cast(), text.len()));
}

/// Installs a handler that gets a siginfo.
pub fn handle(
    signal: c_int,
    flags: c_int,
    handler: extern "C" fn(c_int, *mut libc::siginfo_t, *mut libc::c_void),
) {
    let mut action: libc::sigaction = c!(std::mem::zeroed());
    action.sa_sigaction = handler as *const () as usize;
    action.sa_flags = libc::SA_SIGINFO | flags;
    assert_eq!(c!(libc::sigaction(signal, &raw const action, std::ptr::null_mut())), 0, "{}", error());
}

/// A set of signals.
pub fn set(signals: &[c_int]) -> libc::sigset_t {
    let mut set: libc::sigset_t = c!(std::mem::zeroed());
    for signal in signals {
        c!(libc::sigaddset(&raw mut set, *signal));
    }
    set
}

/// Blocks or unblocks signals.
pub fn mask(how: c_int, signals: &[c_int]) {
    let set = set(signals);
    assert_eq!(c!(libc::sigprocmask(how, &raw const set, std::ptr::null_mut())), 0);
}
