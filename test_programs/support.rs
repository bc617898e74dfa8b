//! What the test programs share: their command line, system calls with nothing in between, and small
//! steps to prepare files.
//!
//! A program is a list of cases. `--list` names them with the calls that they make and what they need;
//! `--setup CASE` prepares the working directory, `CASE` makes the calls, `--expect CASE` prints what a
//! recording of that must show below the working directory, one path a line: path, operations, type
//! before, type after. A line `!` and a word is a warning of something lost; there are no others.

#![allow(dead_code, reason = "each program uses its part")]

use std::ffi::CStr;
use std::fmt::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::{env, fs, process};

use libc::{c_int, c_long};

#[path = "legacy.rs"]
pub mod legacy;

/// The exit status of a case that this kernel or filesystem can't run.
pub const SKIPPED: i32 = 77;

/// One thing to record.
pub struct Case {
    name: &'static str,
    calls: &'static [&'static str],
    needs: &'static str,
    setup: fn(),
    run: fn(),
    expect: &'static str,
}

pub const fn case(name: &'static str, calls: &'static [&'static str]) -> Case {
    Case { name, calls, needs: "nothing", setup: || {}, run: || {}, expect: "" }
}

impl Case {
    /// What is there before the recording.
    pub const fn given(mut self, setup: fn()) -> Case {
        self.setup = setup;
        self
    }

    /// What is recorded.
    pub const fn when(mut self, run: fn()) -> Case {
        self.run = run;
        self
    }

    /// What the recording shows: `path | operations | type before | type after` lines.
    pub const fn then(mut self, expect: &'static str) -> Case {
        self.expect = expect;
        self
    }

    /// Only root can do it.
    pub const fn only_root(mut self) -> Case {
        self.needs = "root";
        self
    }

    /// Root would not be refused.
    pub const fn only_user(mut self) -> Case {
        self.needs = "user";
        self
    }
}

/// The program's `main`.
pub fn run(cases: &[&[Case]]) {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let find = |name| match cases.iter().copied().flatten().find(|case| case.name == name) {
        Some(case) => case,
        None => die(&format!("no case {name}")),
    };
    match arguments[..] {
        // What a program that was executed by a case does.
        ["--exit", ..] => {}
        ["--list"] => {
            for case in cases.iter().copied().flatten() {
                println!("{}\t{}\t{}", case.name, case.calls.join(","), case.needs);
            }
        }
        ["--setup", name] => (find(name).setup)(),
        ["--expect", name] => {
            let mut lines: Vec<String> = Vec::new();
            for line in find(name).expect.lines().map(str::trim).filter(|line| !line.is_empty()) {
                let fields: Vec<&str> = line.split('|').map(str::trim).collect();
                assert_eq!(fields.len(), if fields[0] == "!" { 2 } else { 4 }, "{line}");
                lines.push(fields.join("\t"));
            }
            lines.sort_unstable();
            print!(
                "{}",
                lines.iter().fold(String::new(), |mut all, line| {
                    let _ = writeln!(all, "{line}");
                    all
                })
            );
        }
        [name] => (find(name).run)(),
        _ => die("usage: --list | --setup CASE | --expect CASE | CASE"),
    }
}

fn die(message: &str) -> ! {
    eprintln!("{message}");
    process::exit(1);
}

/// Ends a case that can't be run here.
pub fn skip(reason: &str) -> ! {
    println!("skipped: {reason}");
    process::exit(SKIPPED);
}

/// What can be an argument of a system call.
pub trait Word {
    fn word(self) -> c_long;
}

macro_rules! words {
    ($($type:ty),*) => { $(
        impl Word for $type {
            fn word(self) -> c_long {
                self as c_long
            }
        }
    )* };
}
words!(i32, u32, i64, u64, usize);

impl Word for &CStr {
    fn word(self) -> c_long {
        self.as_ptr() as c_long
    }
}

impl<T> Word for *const T {
    fn word(self) -> c_long {
        self as c_long
    }
}

impl<T> Word for *mut T {
    fn word(self) -> c_long {
        self as c_long
    }
}

/// What a call gave: its value, or errno.
pub type Answer = Result<c_long, c_int>;

pub fn answer(number: c_long, words: &[c_long]) -> Answer {
    let word = |at: usize| words.get(at).copied().unwrap_or(0);
    // SAFETY: each case passes what its call takes, or what the kernel must refuse.
    let value = unsafe { legacy::call(number, word(0), word(1), word(2), word(3), word(4), word(5)) };
    if value == -1 { Err(errno()) } else { Ok(value) }
}

fn errno() -> c_int {
    std::io::Error::last_os_error().raw_os_error().unwrap_or(0)
}

/// Makes a system call by its number.
#[macro_export]
macro_rules! sys {
    ($number:expr $(, $word:expr)* $(,)?) => {
        $crate::support::answer($number, &[$($crate::support::Word::word($word)),*])
    };
}

/// The call succeeds.
#[track_caller]
pub fn ok(answer: Answer) -> c_long {
    match answer {
        Ok(value) => value,
        Err(libc::ENOSYS) => skip("the kernel does not have the call"),
        Err(libc::EOPNOTSUPP) => skip("the filesystem does not support the call"),
        Err(errno) => die(&format!("{}: failed with {errno}", std::panic::Location::caller())),
    }
}

/// A call that returns a descriptor succeeds.
#[track_caller]
pub fn fd(answer: Answer) -> c_int {
    c_int::try_from(ok(answer)).unwrap_or_else(|_| die("no descriptor"))
}

/// The call fails with `errno`.
#[track_caller]
pub fn fails(errno: c_int, answer: Answer) {
    match answer {
        Err(found) if found == errno => {}
        Err(libc::ENOSYS) => skip("the kernel does not have the call"),
        other => die(&format!("{}: {other:?} where {errno} was due", std::panic::Location::caller())),
    }
}

/// The call fails, with an error that depends on who asks.
#[track_caller]
pub fn refused(answer: Answer) {
    match answer {
        Err(libc::ENOSYS) => skip("the kernel does not have the call"),
        Err(_) => {}
        Ok(value) => die(&format!("{}: {value} where an error was due", std::panic::Location::caller())),
    }
}

/// An address that nothing is mapped at.
pub const NOWHERE: usize = 8;

/// AT_FDCWD.
pub const CWD: c_int = libc::AT_FDCWD;

pub fn path_only(path: &CStr) -> c_int {
    fd(sys!(legacy::SYS_open, path, libc::O_PATH))
}

/// A file with a few bytes.
pub fn file(path: &str) {
    fs::write(path, "content\n").unwrap();
}

pub fn dir(path: &str) {
    fs::create_dir(path).unwrap();
}

pub fn symlink(target: &str, path: &str) {
    std::os::unix::fs::symlink(target, path).unwrap();
}

pub fn hard_link(from: &str, to: &str) {
    fs::hard_link(from, to).unwrap();
}

pub fn mode(path: &str, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

/// A copy of this program.
pub fn program(path: &str) {
    fs::copy("/proc/self/exe", path).unwrap();
    mode(path, 0o755);
}

/// The exit status of a child process that runs `child`.
pub fn wait_for(pid: c_long) {
    let mut status = 0;
    let waited = ok(sys!(libc::SYS_wait4, pid, &raw mut status, libc::__WALL, 0));
    if waited != pid || status != 0 {
        die(&format!("the child ended with status {status:#x}"));
    }
}
