//! The same few read-only calls, often enough that the process notes them (`--mechanism inside`), in the situations that
//! disturb that.

#[macro_use]
mod scenario;

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{CStr, CString};
use std::mem::MaybeUninit;
use std::ptr::{null, null_mut};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering::SeqCst};
use std::time::{Duration, Instant};

use agent_snapshot::trace::inside::layout;
use libc::*;
use scenario::{fork, heard, line, pipe, said, tell, wait_with};

/// How often a call is made: often enough that it is noted, and that the notes fill up from time to time. `NOTED_CALLS=N`
/// makes fewer, for slow machines.
fn many() -> usize {
    std::env::var("NOTED_CALLS").map_or(2_000, |calls| calls.parse().unwrap())
}

/// How many signals interrupt the program.
const ENOUGH: u32 = 300;

static HEARD: AtomicU32 = AtomicU32::new(0);

fn stat(path: &str) -> String {
    let path = CString::new(path).unwrap();
    let mut stat = MaybeUninit::<stat64>::zeroed();
    said(c!(stat64(path.as_ptr(), stat.as_mut_ptr())))
}

fn stat_at(directory: c_int, name: &str) -> String {
    let name = CString::new(name).unwrap();
    let mut stat = MaybeUninit::<stat64>::zeroed();
    said(c!(fstatat64(directory, name.as_ptr(), stat.as_mut_ptr(), AT_SYMLINK_NOFOLLOW)))
}

/// The first byte of a file.
fn first_byte(path: &str) -> String {
    let path = CString::new(path).unwrap();
    let file = c!(open64(path.as_ptr(), O_RDONLY | O_CLOEXEC));
    let mut byte = [0_u8];
    let count = c!(read(file, byte.as_mut_ptr().cast(), 1));
    c!(close(file));
    format!("{count} {}", byte[0])
}

fn open_directory(at: c_int, name: &str) -> c_int {
    let name = CString::new(name).unwrap();
    c!(openat64(at, name.as_ptr(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC))
}

fn prepare() {
    for directory in ["a", "b", "a/inner"] {
        std::fs::create_dir(directory).unwrap();
    }
    for (file, text) in [("a/one", "1"), ("b/two", "2"), ("a/inner/three", "3")] {
        std::fs::write(file, text).unwrap();
    }
}

/// Does something often, and prints each answer once.
fn often(mut call: impl FnMut(usize) -> String) {
    let mut answers: Vec<String> = (0..many()).map(&mut call).collect();
    answers.sort();
    answers.dedup();
    answers.iter().for_each(|answer| line(answer));
}

extern "C" fn call_again(_: c_int) {
    // Nothing that allocates: it may have interrupted malloc(3).
    let mut stat = MaybeUninit::<stat64>::zeroed();
    let found = c!(stat64(c"a/one".as_ptr(), stat.as_mut_ptr()));
    let file = c!(open64(c"b/two".as_ptr(), O_RDONLY | O_CLOEXEC));
    if found != 0 || file < 0 || c!(close(file)) != 0 {
        scenario::end(1);
    }
    // If the calls take longer than the interval, the handler would run for ever.
    if HEARD.fetch_add(1, SeqCst) + 1 == ENOUGH {
        set_timer(0);
    }
}

fn set_timer(microseconds: suseconds_t) {
    let interval = timeval { tv_sec: 0, tv_usec: microseconds };
    let timer = itimerval { it_interval: interval, it_value: interval };
    c!(setitimer(ITIMER_REAL, &raw const timer, null_mut()));
}

/// The handler makes such calls, too, wherever it has interrupted.
fn under_a_timer() {
    prepare();
    interrupted();
}

/// The same, when nobody may read this process's memory any more.
fn under_a_timer_undumpable() {
    prepare();
    often(|turn| stat(["a/one", "b/two"][turn % 2]));
    assert_eq!(first_byte("b/two"), "1 50");
    assert_eq!(c!(prctl(PR_SET_DUMPABLE, 0)), 0);
    interrupted();
}

fn interrupted() {
    let handler = call_again as extern "C" fn(c_int);
    c!(signal(SIGALRM, handler as sighandler_t));
    set_timer(300);
    let mut answers = BTreeSet::new();
    while HEARD.load(SeqCst) < ENOUGH {
        for turn in 0..many() {
            answers.insert(format!("{} {}", turn % 3, stat(["a/one", "a/none", "b/two"][turn % 3])));
            answers.insert(first_byte("a/one"));
        }
    }
    answers.iter().for_each(|answer| line(answer));
}

fn bad_addresses() {
    prepare();
    let flags = MAP_PRIVATE | MAP_ANONYMOUS;
    let pages: *mut c_char = c!(mmap(null_mut(), 8192, PROT_READ | PROT_WRITE, flags, -1, 0)).cast();
    c!(munmap(pages.add(4096).cast(), 4096));
    c!(pages.write_bytes(b'x', 4096));
    let mut result = MaybeUninit::<stat64>::zeroed();
    let ends_nowhere: *const c_char = c!(pages.add(4000));
    often(|_| said(c!(stat64(ends_nowhere, result.as_mut_ptr()))));
    often(|_| said(c!(stat64(null(), result.as_mut_ptr()))));
    often(|_| said(c!(stat64(c"a/one".as_ptr(), null_mut()))));
    for length in [180, 182, 183, 184, 185, 255, 256, 4095, 4096] {
        line(&format!("{length}: {}", stat(&"y".repeat(length))));
    }
    line(&stat(""));
}

fn children() {
    prepare();
    often(|_| stat("a/one"));
    for _ in 0..4 {
        let child = fork(|| {
            often(|_| stat("b/two"));
            0
        });
        line(&wait_with(child, 0));
        line(&stat("a/inner"));
        let status = std::process::Command::new("true").current_dir("a").status().unwrap();
        line(&format!("{status}"));
        often(|_| stat("a/none"));
    }
}

fn directories() {
    prepare();
    let (mut a, mut b) = (open_directory(AT_FDCWD, "a"), open_directory(AT_FDCWD, "b"));
    for _ in 0..3 {
        often(|turn| format!("{} {}", turn % 2, stat_at([a, b][turn % 2], "one")));
        // The same numbers stand for other directories.
        c!(close(a));
        c!(close(b));
        (b, a) = (open_directory(AT_FDCWD, "b"), open_directory(AT_FDCWD, "a"));
        often(|turn| format!("{} {}", turn % 2, stat_at([a, b][turn % 2], "two")));
        c!(dup2(a, b));
        often(|_| stat_at(b, "one"));
        c!(close(b));
        b = open_directory(AT_FDCWD, "b");
    }
    often(|_| {
        let inner = open_directory(a, "inner");
        let copy = c!(dup(inner));
        c!(close(inner));
        let found = stat_at(copy, "three") + &stat_at(copy, "four");
        c!(close(copy));
        found
    });
    let inner = open_directory(a, "inner");
    std::fs::rename("a/inner", "b/moved").unwrap();
    often(|_| stat_at(inner, "three") + &stat_at(a, "inner"));
    for (name, path) in [("a", "one"), ("../b", "moved/three"), ("moved", "../two"), ("../../a", "one")] {
        std::env::set_current_dir(name).unwrap();
        often(|_| stat(path) + &stat("."));
    }
    std::env::set_current_dir("..").unwrap();
    std::fs::remove_dir_all("b").unwrap();
    often(|_| stat_at(inner, "three") + &stat_at(inner, ".") + &stat_at(inner, ".."));
}

fn threads() {
    prepare();
    often(|_| stat("a/one"));
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| assert!((0..many()).all(|_| stat("b/two") == "0")));
        }
        often(|_| stat("a/none"));
    });
    often(|_| first_byte("a/one"));
}

/// Has a thread call something as long as another one does something.
fn meanwhile(call: impl Fn(usize) -> String + Sync, other: impl FnOnce()) {
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut answers = BTreeSet::new();
            for turn in 0.. {
                answers.insert(call(turn));
                if is_over.load(SeqCst) && turn > many() {
                    break;
                }
            }
            answers.iter().for_each(|answer| line(answer));
        });
        other();
        is_over.store(true, SeqCst);
    });
}

/// A signal may interrupt any of the threads anywhere.
fn threads_under_a_timer() {
    prepare();
    often(|turn| stat(["a/one", "b/two"][turn % 2]));
    meanwhile(|turn| format!("{} {}", turn % 2, stat(["a/one", "a/none"][turn % 2])), interrupted);
}

/// Each of two threads has a working directory of its own.
fn threads_that_move() {
    prepare();
    often(|_| stat("a/one"));
    meanwhile(
        |turn| {
            if turn == 0 {
                assert_eq!(c!(unshare(CLONE_FS)), 0);
            }
            if turn == many() {
                std::env::set_current_dir("b").unwrap();
            }
            if turn < many() { stat("a/one") } else { stat("two") }
        },
        || often(|turn| format!("{} {}", turn % 2, stat(["a/one", "two"][turn % 2]))),
    );
    often(|_| stat("b/none"));
}

/// Processes are created meanwhile, some of which have the same memory until they execute a program.
fn threads_and_processes() {
    prepare();
    often(|_| stat("a/one"));
    for _ in 0..2 {
        meanwhile(
            |turn| format!("{} {}", turn % 2, stat(["a/one", "a/none"][turn % 2])),
            || {
                let child = fork(|| {
                    often(|_| stat("b/two"));
                    0
                });
                line(&wait_with(child, 0));
                line(&format!("{}", std::process::Command::new("true").status().unwrap()));
            },
        );
    }
    let status = std::process::Command::new(std::env::current_exe().unwrap()).arg("stats").status();
    line(&format!("{}", status.unwrap()));
}

/// A descriptor is another directory from one moment to the next.
fn threads_that_exchange_descriptors() {
    prepare();
    let (a, b) = (open_directory(AT_FDCWD, "a"), open_directory(AT_FDCWD, "b"));
    let both = open_directory(AT_FDCWD, "a");
    often(|turn| stat_at([a, b][turn % 2], "one"));
    let answers = Mutex::new(BTreeMap::new());
    meanwhile(
        |turn| {
            // The directory may change with each call.
            let name = turn / 2 % 2;
            let answer = format!("{name} {}", stat_at(both, ["one", "two"][name]));
            *answers.lock().unwrap().entry(answer.clone()).or_insert(0) += 1;
            answer
        },
        || {
            let is_enough = || answers.lock().unwrap().values().filter(|times| **times > 50).count() == 4;
            for turn in 0.. {
                c!(dup2([a, b][turn % 2], both));
                std::thread::yield_now();
                if turn > many() && is_enough() {
                    break;
                }
            }
        },
    );
    c!(dup2(a, both));
    often(|_| stat_at(both, "none"));
}

/// Does nothing for a time that is another one in each turn.
fn wait_a_little(turn: usize) {
    (0..turn * 37 % 700).for_each(|_| std::hint::spin_loop());
}

/// Another process renames the directory where paths start, just when a call is judged.
fn renamed_meanwhile() {
    prepare();
    let ([go, may_go], [done, is_done]) = (pipe(), pipe());
    let child = fork(|| {
        for turn in 0..many() / 5 {
            heard(go);
            wait_a_little(turn);
            std::fs::rename("a/inner", "b/moved").unwrap();
            tell(is_done);
            heard(go);
            std::fs::rename("b/moved", "a/inner").unwrap();
            tell(is_done);
        }
        0
    });
    let (a, b) = (open_directory(AT_FDCWD, "a"), open_directory(AT_FDCWD, "b"));
    for turn in 0..many() / 5 {
        // It is closed at first, and then knows one directory, by what has been opened beneath.
        (0..3).for_each(|_| _ = stat_at(a, "one"));
        let inner = open_directory(a, "inner");
        stat_at(inner, "three");
        tell(may_go);
        stat_at(b, "two");
        heard(done);
        stat_at(inner, &format!("none{turn}"));
        c!(close(inner));
        tell(may_go);
        heard(done);
    }
    line(&wait_with(child, 0));
}

/// A thread creates a process that has the same working directory, and changes it, just when a call of another thread is judged.
fn directory_of_two_processes() {
    let turn = std::env::args().nth(2).map(|turn| turn.parse::<usize>().unwrap());
    let Some(turn) = turn else {
        prepare();
        for turn in 0..30 {
            let mut program = std::process::Command::new(std::env::current_exe().unwrap());
            let status = program.args(["directory_of_two_processes", &turn.to_string()]).status().unwrap();
            assert!(status.success());
        }
        return;
    };
    (0..60).for_each(|_| _ = stat("a/one"));
    stat("a/none");
    let [go, may_go] = pipe();
    let (begins, is_there, is_changed) =
        (AtomicBool::new(false), AtomicBool::new(false), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !begins.load(SeqCst) {
                std::hint::spin_loop();
            }
            wait_a_little(turn * 7);
            let child = c!(syscall(SYS_clone, CLONE_FS | SIGCHLD, 0, 0, 0, 0)) as pid_t;
            if child == 0 {
                heard(go);
                c!(chdir(c"b".as_ptr()));
                scenario::end(0);
            }
            is_there.store(true, SeqCst);
            assert_eq!(wait_with(child, 0), "exited 0");
            is_changed.store(true, SeqCst);
        });
        begins.store(true, SeqCst);
        wait_a_little(turn * 5);
        while !is_there.load(SeqCst) {
            stat("a/none");
        }
        tell(may_go);
        while !is_changed.load(SeqCst) {
            std::hint::spin_loop();
        }
        line(&stat(&format!("none{turn}")));
    });
}

/// What is changed in between is seen before and after.
fn changes() {
    prepare();
    for turn in 0..30 {
        let name = format!("a/new{turn}");
        (0..40).for_each(|_| assert_ne!(stat(&name), "0"));
        std::fs::write(&name, "new").unwrap();
        (0..40).for_each(|_| assert_eq!(first_byte(&name), "1 110"));
        std::fs::remove_file(&name).unwrap();
    }
    line(&stat("a/new0"));
}

/// Code in memory that others may use, too, stays as it is.
fn shared_code() {
    type Stat = extern "C" fn(*const c_char, *mut stat64) -> c_long;
    // mov $SYS_stat, %eax; syscall; ret
    const STAT: [u8; 8] = [0xb8, 4, 0, 0, 0, 0x0f, 0x05, 0xc3];
    if cfg!(not(target_arch = "x86_64")) {
        return;
    }
    prepare();
    std::fs::write("code", STAT).unwrap();
    let file = c!(open64(c"code".as_ptr(), O_RDWR | O_CLOEXEC));
    let code = c!(mmap(null_mut(), STAT.len(), PROT_READ | PROT_WRITE | PROT_EXEC, MAP_SHARED, file, 0));
    if code != MAP_FAILED {
        let call = c!(std::mem::transmute::<*mut c_void, Stat>(code));
        let mut stat = MaybeUninit::<stat64>::zeroed();
        often(|_| call(c"a/one".as_ptr(), stat.as_mut_ptr()).to_string());
    }
    assert_eq!(std::fs::read("code").unwrap(), STAT);
}

/// System calls are let through by where they are made (Syscall User Dispatch): libc makes all of its own.
fn user_dispatch() {
    const PR_SET_SYSCALL_USER_DISPATCH: c_int = 59;
    const BLOCK: u8 = 1;
    prepare();
    static SELECTOR: AtomicU8 = AtomicU8::new(0);
    let readable = |name: &CStr| c!(access(name.as_ptr(), R_OK));
    often(|_| readable(c"a/one").to_string());
    // SAFETY: looks up a function of libc.
    let function = unsafe { dlsym(RTLD_DEFAULT, c"access".as_ptr()) } as u64;
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let number = |hex| u64::from_str_radix(hex, 16).unwrap();
    let ranges = maps.lines().map(|line| line.split_once(' ').unwrap().0.split_once('-').unwrap());
    let mut ranges = ranges.map(|(start, end)| (number(start), number(end)));
    let (start, end) = ranges.find(|(start, end)| (*start..*end).contains(&function)).unwrap();
    let dispatch = |mode: u64| {
        let (start, length) = if mode == 0 { (0, 0) } else { (start, end - start) };
        let selector = if mode == 0 { null() } else { SELECTOR.as_ptr() };
        c!(prctl(PR_SET_SYSCALL_USER_DISPATCH, mode, start, length, selector))
    };
    if dispatch(1) != 0 {
        return;
    }
    SELECTOR.store(BLOCK, SeqCst);
    let answers: [c_int; 4] = std::array::from_fn(|turn| readable([c"a/one", c"a/none"][turn % 2]));
    SELECTOR.store(0, SeqCst);
    assert_eq!(answers, [0, -1, 0, -1]);
    assert_eq!(dispatch(0), 0);
    often(|_| readable(c"b/two").to_string());
}

/// A process that notes its calls is traced by its parent, which never sees it execute code that is not its own.
fn traced() {
    prepare();
    for round in 0..20 {
        let [from, to] = pipe();
        let child = fork(|| {
            c!(prctl(PR_SET_PDEATHSIG, SIGKILL));
            for turn in 0.. {
                assert_eq!(c!(access([c"a/one", c"b/two"][turn % 2].as_ptr(), R_OK)), 0);
                if turn == 100 {
                    tell(to);
                }
            }
            0
        });
        assert!(heard(from));
        (0..round * 40).for_each(|_| _ = c!(getppid()));
        assert_eq!(c!(ptrace(PTRACE_ATTACH, child, 0, 0)), 0);
        assert_eq!(wait_with(child, __WALL), "stopped by 19 (event 0)");
        let maps = std::fs::read_to_string(format!("/proc/{child}/maps")).unwrap();
        for _ in 0..200 {
            let state = std::fs::read_to_string(format!("/proc/{child}/syscall")).unwrap();
            let at = state.trim_end().rsplit_once(" 0x").unwrap().1;
            let at = u64::from_str_radix(at, 16).unwrap();
            let is_there = |line: &&str| {
                let (start, end) = line.split_once(' ').unwrap().0.split_once('-').unwrap();
                (u64::from_str_radix(start, 16).unwrap()..u64::from_str_radix(end, 16).unwrap()).contains(&at)
            };
            let mapping = maps.lines().find(is_there).unwrap();
            assert!(mapping.contains('/') || mapping.ends_with("[vdso]"), "{round}: {at:#x} {mapping}");
            assert_eq!(c!(ptrace(PTRACE_SINGLESTEP, child, 0, 0)), 0);
            assert_eq!(wait_with(child, __WALL), "stopped by 5 (event 0)");
        }
        c!(kill(child, SIGKILL));
        assert_eq!(wait_with(child, __WALL), "killed by 9");
        c!(close(from));
        c!(close(to));
    }
}

/// How many calls of this process did not wait, if it notes any: then it has a memfd mapped, which has no name.
fn noted() -> Option<u64> {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let ring = maps.lines().find(|line| line.ends_with(" /memfd: (deleted)"))?;
    let start = u64::from_str_radix(ring.split_once('-')?.0, 16).ok()?;
    let calls = (start + layout::CALLS - layout::RING) as *const AtomicU64;
    // SAFETY: a ring is mapped as long as the process runs.
    Some(unsafe { &*calls }.load(SeqCst))
}

/// Whether this process notes its own calls.
fn notes() {
    prepare();
    often(|_| stat("a/one"));
    line(&format!("{}", noted().is_some()));
}

/// Whether threads note their calls, and which.
fn thread_notes() {
    prepare();
    often(|_| stat("a/one"));
    for (name, call) in [("queries", stat as fn(&str) -> String), ("opens", first_byte)] {
        let before = noted();
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| (0..many()).for_each(|_| _ = call("b/two")));
            }
        });
        let noted = noted().zip(before).map_or(0, |(after, before)| after - before);
        line(&format!("{name} {}", noted > many() as u64 / 10));
    }
}

/// How many calls a process makes before it notes them.
fn first_noted() {
    let before = (0..1000).find(|_| {
        stat("a");
        noted().is_some()
    });
    line(&format!("{before:?}"));
    (0..100).for_each(|_| _ = stat("a"));
}

/// A process that is stopped, and continued at once, runs on: also while the recorder has it make calls, before the first
/// that it notes and before its first thread.
fn stops() {
    prepare();
    for round in 0..400 {
        let [from, to] = pipe();
        let child = fork(|| {
            tell(to);
            if round % 2 == 0 {
                (0..60).for_each(|_| assert_eq!(c!(access(c"a/one".as_ptr(), R_OK)), 0));
            } else {
                std::thread::spawn(|| {}).join().unwrap();
            }
            0
        });
        heard(from);
        // The signals come at other moments each time.
        let pause = |microseconds| {
            let since = Instant::now();
            while since.elapsed() < Duration::from_micros(microseconds) {}
        };
        for _ in 0..=round % 5 {
            pause(round % 21 * 20);
            c!(kill(child, SIGSTOP));
            pause(round % 8 * 20);
            c!(kill(child, SIGCONT));
        }
        line(&wait_with(child, WUNTRACED));
        c!(kill(child, SIGKILL));
        c!(close(from));
        c!(close(to));
    }
}

fn main() {
    match std::env::args().nth(1).as_deref() {
        Some("notes") => return notes(),
        Some("thread_notes") => return thread_notes(),
        Some("first_noted") => return first_noted(),
        Some("stats") => return often(|_| stat("a/one")),
        Some("stops") => return stops(),
        Some("traced") => return traced(),
        Some("undumpable") => return under_a_timer_undumpable(),
        _ => {}
    }
    scenario::run(&[
        ("under_a_timer", under_a_timer),
        ("shared_code", shared_code),
        ("user_dispatch", user_dispatch),
        ("bad_addresses", bad_addresses),
        ("children", children),
        ("directories", directories),
        ("threads", threads),
        ("threads_under_a_timer", threads_under_a_timer),
        ("threads_that_move", threads_that_move),
        ("threads_and_processes", threads_and_processes),
        ("threads_that_exchange_descriptors", threads_that_exchange_descriptors),
        ("renamed_meanwhile", renamed_meanwhile),
        ("directory_of_two_processes", directory_of_two_processes),
        ("changes", changes),
    ]);
}
