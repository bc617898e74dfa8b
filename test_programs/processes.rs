//! Processes and threads: all syscalls that start one, execute, or end.

#[macro_use]
mod scenario;
mod machine;

use std::ffi::{CStr, CString, c_char};
use std::fs;
use std::process::Command;
use std::ptr::{null, null_mut};
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};

use libc::*;
use scenario::{end, error, fork, handle, heard, line, pipe, said, tell, wait, wait_with};

fn execute(words: &[&str]) -> c_int {
    let words: Vec<CString> = words.iter().map(|word| CString::new(*word).unwrap()).collect();
    let mut argv: Vec<*const c_char> = words.iter().map(|word| word.as_ptr()).collect();
    argv.push(null());
    c!(execv(argv[0], argv.as_ptr()))
}

fn vforks() {
    for round in 0..20 {
        let argv = [c"/bin/sh".as_ptr(), c"-c".as_ptr(), c"exit 4".as_ptr(), null()];
        // SAFETY: the child executes at once, or ends.
        #[allow(deprecated, reason = "the call itself is what is tried")]
        let child = unsafe { vfork() };
        if child == 0 {
            // SAFETY: as above.
            unsafe {
                if round % 2 == 0 {
                    execv(argv[0], argv.as_ptr());
                }
                _exit(5)
            }
        }
        line(&wait(child));
    }
}

fn spawns() {
    let mut actions: posix_spawn_file_actions_t = c!(std::mem::zeroed());
    c!(posix_spawn_file_actions_init(&raw mut actions));
    c!(posix_spawn_file_actions_addopen(&raw mut actions, 7, c"out".as_ptr(), O_CREAT | O_WRONLY, 0o600));
    let argv = [c"sh".as_ptr(), c"-c".as_ptr(), c"echo spawned >&7; exit 6".as_ptr(), null()];
    let argv = argv.as_ptr().cast::<*mut c_char>();
    let environment = [null_mut()];
    let mut child = 0;
    line(&format!(
        "{}",
        c!(posix_spawnp(
            &raw mut child,
            c"/bin/sh".as_ptr(),
            &raw const actions,
            null(),
            argv,
            environment.as_ptr()
        ))
    ));
    line(&wait(child));
    line(&fs::read_to_string("out").unwrap());
    let missing =
        c!(posix_spawn(&raw mut child, c"/no/such".as_ptr(), null(), null(), argv, environment.as_ptr()));
    line(&format!("{missing}"));
    line(&format!("{:?}", Command::new("./absent").spawn().map(|_| ()).map_err(|error| error.kind())));
    fs::write("data", "no program").unwrap();
    line(&format!("{:?}", Command::new("./data").spawn().map(|_| ()).map_err(|error| error.kind())));
}

/// Raw clone: 0 in the child, which shares no memory.
fn clone(flags: c_int) -> c_long {
    c!(syscall(SYS_clone, flags | SIGCHLD, 0, 0, 0, 0))
}

fn clone3(flags: u64) -> c_long {
    let arguments: [u64; 11] = [flags, 0, 0, 0, SIGCHLD as u64, 0, 0, 0, 0, 0, 0];
    c!(syscall(SYS_clone3, &raw const arguments, size_of_val(&arguments)))
}

fn child_writes(name: &str) -> c_int {
    i32::from(fs::write(name, "child").is_err())
}

fn clones() {
    for (name, flags) in [("plain", 0), ("untraced", CLONE_UNTRACED), ("parent", CLONE_PARENT_SETTID)] {
        let child = clone(flags & !CLONE_PARENT_SETTID);
        if child == 0 {
            let status = child_writes(name);
            end(status);
        }
        line(&format!("{name}: {}, {:?}", wait(child as pid_t), fs::read_to_string(name)));
    }
    for (name, flags) in [("plain3", 0), ("untraced3", CLONE_UNTRACED)] {
        let mut child = clone3(flags as u64);
        // What libc does where the kernel has no clone3.
        if child == -1 && error() == "ENOSYS" {
            child = clone(flags);
        }
        if child == 0 {
            let status = child_writes(name);
            end(status);
        }
        line(&format!("{name}: {}, {:?}", wait(child as pid_t), fs::read_to_string(name)));
    }
    // Without a signal at its end, waited for with __WCLONE.
    let child = c!(syscall(SYS_clone, 0, 0, 0, 0, 0));
    if child == 0 {
        end(3);
    }
    line(&wait_with(child as pid_t, __WCLONE));
    // A child of our parent: a sibling, which we may not wait for.
    fork(|| {
        let sibling = clone(CLONE_PARENT);
        if sibling == 0 {
            let status = child_writes("sibling");
            end(20 + status);
        }
        line(&wait(sibling as pid_t));
        0
    });
    let mut ends = [wait(-1), wait(-1)];
    ends.sort();
    line(&format!("{ends:?}"));
}

/// Which registers a clone leaves as they were, in the caller and in the child, and where it fails.
fn clones_keep_their_flags() {
    let untraced = CLONE_UNTRACED | SIGCHLD;
    // CLONE_SIGHAND without CLONE_VM is refused.
    for flags in [SIGCHLD, untraced, untraced | CLONE_SIGHAND, untraced | CLONE_VFORK] {
        for _ in 0..100 {
            let (answer, first) = machine::clone(flags);
            if answer == 0 {
                end(c_int::from(first != u64::from(flags.unsigned_abs())));
            }
            let ended = if answer > 0 { wait(answer as pid_t) } else { format!("{answer}") };
            line(&format!("{flags:#x} {first:#x} {ended}"));
        }
    }
}

fn shared_directory_and_descriptors() {
    fs::create_dir("sub").unwrap();
    let child = clone(CLONE_FS);
    if child == 0 {
        c!(chdir(c"sub".as_ptr()));
        c!(umask(0o077));
        end(0);
    }
    line(&wait(child as pid_t));
    fs::write("in-sub", "x").unwrap();
    c!(chdir(c"..".as_ptr()));
    line(&format!("{:?}", fs::metadata("sub/in-sub").map(|found| found.len())));
    let child = clone(CLONE_FILES);
    if child == 0 {
        let fd = c!(open(c"shared".as_ptr(), O_CREAT | O_WRONLY, 0o600));
        c!(dup2(fd, 50));
        end(0);
    }
    line(&wait(child as pid_t));
    line(&format!("write {}", said(c!(write(50, c"x".as_ptr().cast(), 1)) as i64)));
    line(&format!("open at a descriptor {}", said(c!(openat(50, c"x".as_ptr(), O_RDONLY)))));
    // Threads with directories and descriptors of their own.
    std::thread::scope(|scope| {
        scope.spawn(|| {
            assert_eq!(c!(unshare(CLONE_FS | CLONE_FILES)), 0);
            assert_eq!(c!(chdir(c"sub".as_ptr())), 0);
            fs::write("own", "x").unwrap();
            c!(close(50));
        });
    });
    line(&format!("{} {}", fs::metadata("sub/own").is_ok(), said(c!(fcntl(50, F_GETFD)))));
}

fn exec_from_a_thread() {
    for others in [0, 1, 20] {
        let child = fork(|| {
            for _ in 0..others {
                std::thread::spawn(|| {
                    loop {
                        c!(access(c"nothing".as_ptr(), F_OK));
                    }
                });
            }
            std::thread::spawn(|| {
                execute(&["/bin/sh", "-c", "echo executed; test -e /proc/self && exit 12"]);
            })
            .join()
            .unwrap();
            1
        });
        line(&wait(child));
    }
    // While the leader is in a call that is watched, and while it is stopped in a vfork.
    let child = fork(|| {
        c!(mkfifo(c"fifo".as_ptr(), 0o600));
        std::thread::spawn(|| {
            c!(usleep(20_000));
            execute(&["/bin/sh", "-c", "exit 13"]);
        });
        c!(open(c"fifo".as_ptr(), O_RDONLY));
        1
    });
    line(&wait(child));
    // A failed one leaves all threads.
    let child = fork(|| {
        std::thread::spawn(|| execute(&["/no/such"])).join().unwrap();
        14
    });
    line(&wait(child));
}

/// Ends this thread alone.
fn end_thread(status: c_int) -> ! {
    // SAFETY: the stack stays; nothing of this thread is used any more.
    unsafe { syscall(SYS_exit, status) };
    unreachable!()
}

fn leader_ends_first() {
    let [hear, say] = pipe();
    let child = fork(|| {
        std::thread::spawn(move || {
            c!(usleep(20_000));
            for _ in 0..50 {
                fs::write("after", "x").unwrap();
                fs::rename("after", "renamed").unwrap();
            }
            tell(say);
            end(15);
        });
        end_thread(2)
    });
    heard(hear);
    line(&wait(child));
    // The last thread that ends, not the leader, decides nothing: the leader's status counts.
    let child = fork(|| {
        std::thread::spawn(|| {
            c!(usleep(20_000));
            fs::write("late", "x").unwrap();
            end_thread(3)
        });
        end_thread(16)
    });
    line(&wait(child));
    // An exec after the leader's end.
    let child = fork(|| {
        std::thread::spawn(|| {
            c!(usleep(20_000));
            execute(&["/bin/sh", "-c", "echo x > executed; exit 17"]);
        });
        end_thread(0)
    });
    line(&wait(child));
    // Killed, with the leader dead.
    let child = fork(|| {
        std::thread::spawn(move || {
            c!(usleep(20_000));
            tell(say);
            loop {
                c!(access(c"nothing".as_ptr(), F_OK));
            }
        });
        end_thread(0)
    });
    heard(hear);
    c!(kill(child, SIGKILL));
    line(&wait(child));
    line(&format!("{} {}", fs::metadata("late").is_ok(), fs::metadata("executed").is_ok()));
}

fn many_threads() {
    let opened = AtomicU32::new(0);
    let barrier = std::sync::Barrier::new(500);
    std::thread::scope(|scope| {
        for number in 0..500 {
            let (opened, barrier) = (&opened, &barrier);
            std::thread::Builder::new()
                .stack_size(64 << 10)
                .spawn_scoped(scope, move || {
                    barrier.wait();
                    fs::write(format!("file{number}"), [number as u8]).unwrap();
                    if fs::read(format!("file{number}")).unwrap() == [number as u8] {
                        opened.fetch_add(1, SeqCst);
                    }
                })
                .unwrap();
        }
    });
    line(&format!("{} files", opened.load(SeqCst)));
}

fn many_processes() {
    let mut sum = 0;
    for _ in 0..100 {
        let children: Vec<pid_t> = (0..20).map(|number| fork(|| number)).collect();
        for (number, child) in (0..).zip(children) {
            sum += u32::from(wait(child) == format!("exited {number}"));
        }
    }
    line(&format!("{sum} ended as they should"));
    // A chain of them, each the child of the last.
    fn chain(depth: u32) -> c_int {
        if depth == 0 {
            return 9;
        }
        let child = fork(|| chain(depth - 1));
        i32::from(wait(child) != "exited 9") + 9
    }
    line(&wait(fork(|| chain(50))));
}

fn everyone_has_a_turn() {
    let busy = |rounds: u32| {
        for _ in 0..rounds {
            c!(access(c"nothing".as_ptr(), F_OK));
        }
        0
    };
    let oldest = fork(|| {
        c!(usleep(50_000));
        busy(2000)
    });
    let younger: Vec<pid_t> = (0..8).map(|_| fork(|| busy(u32::MAX))).collect();
    line(&wait(oldest));
    for pid in younger {
        c!(kill(pid, SIGKILL));
        line(&wait(pid));
    }
}

/// Installs a filter that gives `action` to one call, and lets all others pass.
fn filter(number: c_long, action: u32) {
    let step = |code: u32, jt, jf, k| sock_filter { code: code as u16, jt, jf, k };
    let mut program = [
        step(BPF_LD | BPF_W | BPF_ABS, 0, 0, 0),
        step(BPF_JMP | BPF_JEQ | BPF_K, 0, 1, number as u32),
        step(BPF_RET | BPF_K, 0, 0, action),
        step(BPF_RET | BPF_K, 0, 0, SECCOMP_RET_ALLOW),
    ];
    let program = sock_fprog { len: 4, filter: program.as_mut_ptr() };
    assert_eq!(c!(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)), 0);
    assert_eq!(c!(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &raw const program)), 0, "{}", error());
    // SAFETY: the array lives, and the program is as it was.
    let left = unsafe { (*program.filter.add(2)).k };
    assert_eq!(left, action, "the program is the caller's");
}

/// Whether there is a filter, before the program installs its own, afterwards, and in a child.
fn own_filters_are_told() {
    let told = || line(&format!("filter {}", said(c!(prctl(PR_GET_SECCOMP)))));
    told();
    filter(SYS_getppid, SECCOMP_RET_ALLOW);
    told();
    let child = fork(|| {
        told();
        0
    });
    line(&wait(child));
}

/// Calls that a filter of the program's own hands to a tracer, which it has not: ENOSYS (seccomp(2)).
fn own_filters_for_a_tracer() {
    for data in [0, 1, 0xffff] {
        let child = fork(|| {
            let numbers = [SYS_getppid, SYS_mkdirat, SYS_unlinkat, SYS_setxattr, SYS_clone, SYS_faccessat];
            numbers.into_iter().for_each(|number| filter(number, SECCOMP_RET_TRACE | data));
            line(&format!("access {}", said(c!(syscall(SYS_faccessat, AT_FDCWD, c".".as_ptr(), F_OK)))));
            line(&format!("getppid {}", said(c!(syscall(SYS_getppid)))));
            line(&format!("mkdir {}", said(c!(syscall(SYS_mkdirat, AT_FDCWD, c"traced".as_ptr(), 0o700)))));
            line(&format!("unlink {}", said(c!(syscall(SYS_unlinkat, AT_FDCWD, c"traced".as_ptr(), 0)))));
            line(&format!("setxattr {}", said(c!(syscall(SYS_setxattr, c".".as_ptr(), 0, 0, 0, 0)))));
            line(&format!("fork {}", said(c!(syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0)))));
            line(&format!("rmdir {}", said(c!(rmdir(c"traced".as_ptr())))));
            0
        });
        line(&wait(child));
    }
}

fn own_filters() {
    extern "C" fn sigsys(signal: c_int, info: *mut siginfo_t, _: *mut c_void) {
        // SAFETY: the kernel passes a whole siginfo; si_syscall lies behind the address.
        let (code, errno, call) =
            unsafe { ((*info).si_code, (*info).si_errno, *info.cast::<c_int>().add(6)) };
        line(&format!("trap {signal} code {code} data {errno} call {call}"));
    }
    // A call that is watched, and one that is not.
    for number in [SYS_mkdirat, SYS_getppid] {
        for action in [
            SECCOMP_RET_ERRNO | 99,
            SECCOMP_RET_TRAP | 5,
            SECCOMP_RET_KILL_PROCESS,
            SECCOMP_RET_KILL_THREAD,
            SECCOMP_RET_LOG,
            SECCOMP_RET_ALLOW,
        ] {
            let name = CString::new(format!("dir{number}-{action}")).unwrap();
            let child = fork(|| {
                handle(SIGSYS, 0, sigsys);
                filter(number, action);
                let answer = c!(syscall(number, AT_FDCWD, name.as_ptr(), 0o700));
                line(&if answer == -1 { error() } else { "made".to_owned() });
                0
            });
            line(&format!(
                "{action:#x}: {}, made {}",
                wait(child),
                fs::metadata(name.to_str().unwrap()).is_ok()
            ));
        }
    }
    // Only one thread is killed.
    let child = fork(|| {
        std::thread::spawn(|| {
            filter(SYS_mkdirat, SECCOMP_RET_KILL_THREAD);
            c!(syscall(SYS_mkdirat, AT_FDCWD, c"never".as_ptr(), 0o700));
        });
        while fs::read_dir("/proc/self/task").unwrap().count() > 1 {
            c!(usleep(1000));
        }
        7
    });
    line(&wait(child));
}

fn core_dumps() {
    let any = rlimit { rlim_cur: RLIM_INFINITY, rlim_max: RLIM_INFINITY };
    c!(setrlimit(RLIMIT_CORE, &raw const any));
    let mut limit: rlimit = c!(std::mem::zeroed());
    c!(getrlimit(RLIMIT_CORE, &raw mut limit));
    for signal in [SIGABRT, SIGSEGV, SIGQUIT, SIGTERM] {
        let child = fork(|| {
            c!(libc::signal(signal, SIG_DFL));
            c!(raise(signal));
            0
        });
        line(&wait(child));
    }
    let mut cores: Vec<bool> = Vec::new();
    for entry in fs::read_dir(".").unwrap() {
        cores.push(entry.unwrap().metadata().unwrap().len() > 4096);
    }
    line(&format!("{cores:?}"));
}

extern "C" fn trapped(_: c_int, _: *mut siginfo_t, _: *mut c_void) {
    line("handled");
}

/// What an init of a PID namespace may do to itself, and what it dies of.
fn crashing_inits() {
    let crashes: &[(&str, fn())] = &[
        ("fault", || c!(std::ptr::null_mut::<u8>().wrapping_add(8).write_volatile(1))),
        ("abort", || {
            // SAFETY: takes nothing.
            unsafe { abort() }
        }),
        ("invalid instruction", machine::invalid),
        ("breakpoint", machine::breakpoint),
        ("division", machine::division),
        ("ignored fault", || {
            c!(libc::signal(SIGSEGV, SIG_IGN));
            c!(std::ptr::null_mut::<u8>().wrapping_add(8).write_volatile(1));
        }),
        ("trapped call", || {
            filter(SYS_getppid, SECCOMP_RET_TRAP);
            c!(getppid());
        }),
        ("handled breakpoint", || {
            handle(SIGTRAP, 0, trapped);
            machine::handled_breakpoint();
        }),
        ("own signal", || {
            c!({
                raise(SIGSEGV);
            })
        }),
        ("thread", || {
            let crash = || c!(std::ptr::null_mut::<u8>().wrapping_add(8).write_volatile(1));
            std::thread::spawn(crash).join().unwrap();
        }),
    ];
    for flags in [CLONE_NEWPID, CLONE_NEWPID | CLONE_NEWUSER] {
        for (name, crash) in crashes {
            let child = fork(|| {
                if flags & CLONE_NEWUSER != 0 {
                    // An ordinary user, where it is not one already.
                    c!(setuid(65534));
                }
                if c!(unshare(flags)) == -1 {
                    line(&format!("unshare {}", error()));
                    return 0;
                }
                let init = fork(|| {
                    crash();
                    7
                });
                line(&format!("{name}: {}", wait(init)));
                0
            });
            wait(child);
        }
    }
}

fn undumpable() {
    c!(prctl(PR_SET_DUMPABLE, 0));
    fs::write("file", "x").unwrap();
    fs::rename("file", "other").unwrap();
    line(&format!("{:?} {}", fs::read_to_string("other"), c!(prctl(PR_GET_DUMPABLE))));
    line(&format!(
        "{:?}",
        Command::new("/bin/sh").args(["-c", "exit 3"]).status().map(|status| status.code())
    ));
}

fn other_ways() {
    // Paths at the edge of a page, behind it, too long, not there.
    let page =
        c!(mmap(null_mut(), 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)).cast::<u8>();
    c!(mprotect(page.wrapping_add(4096).cast(), 4096, PROT_NONE));
    let edge = page.wrapping_add(4092);
    c!(std::ptr::copy_nonoverlapping(c"abc".as_ptr().cast::<u8>(), edge, 4));
    line(&format!("edge {}", said(c!(mkdir(edge.cast(), 0o700)))));
    c!(std::ptr::write(edge.wrapping_add(3), b'd'));
    line(&format!("over the edge {}", said(c!(mkdir(edge.cast(), 0o700)))));
    for at in [0usize, 8, usize::MAX, 1 << 63] {
        line(&format!("{at:#x} {}", said(c!(syscall(SYS_mkdirat, AT_FDCWD, at, 0o700)))));
    }
    for length in [254, 255, 256, 4094, 4095, 4096, 9000] {
        let name = CString::new("a".repeat(length)).unwrap();
        line(&format!("{length} {}", said(c!(mkdir(name.as_ptr(), 0o700)))));
        let path = CString::new("./".repeat(length / 2)).unwrap();
        line(&format!(
            "{length} dots {}",
            said(c!(open(path.as_ptr(), O_RDONLY | O_DIRECTORY)) as i64 >> 16)
        ));
    }
    for number in [400, 5000, 0x4000_0001] {
        line(&format!("call {number}: {}", said(c!(syscall(number, 0, 0, 0)))));
    }
    line(&format!("empty {}", said(c!(open(c"".as_ptr(), O_RDONLY)))));
    line(&format!("bad descriptor {}", said(c!(openat(999, c"x".as_ptr(), O_RDONLY)))));
    line(&format!("flags {}", said(c!(open(c"x".as_ptr(), -1)))));
    let how: [u64; 3] = [u64::MAX, 0, 0];
    line(&format!("openat2 {}", said(c!(syscall(SYS_openat2, AT_FDCWD, c"x".as_ptr(), &raw const how, 24)))));
    let names: &[&CStr] =
        &[c"/proc/self/fd/0", c"/proc/self/cwd/x", c"/dev/fd/999", c"/proc/thread-self/root/proc"];
    for name in names {
        line(&format!("{name:?} {}", said(c!(access(name.as_ptr(), F_OK)))));
    }
}

fn main() {
    scenario::run(&[
        ("vforks", vforks),
        ("spawns", spawns),
        ("clones", clones),
        ("clones_keep_their_flags", clones_keep_their_flags),
        ("shared_directory_and_descriptors", shared_directory_and_descriptors),
        ("exec_from_a_thread", exec_from_a_thread),
        ("leader_ends_first", leader_ends_first),
        ("many_threads", many_threads),
        ("many_processes", many_processes),
        ("everyone_has_a_turn", everyone_has_a_turn),
        ("own_filters", own_filters),
        ("own_filters_are_told", own_filters_are_told),
        ("own_filters_for_a_tracer", own_filters_for_a_tracer),
        ("core_dumps", core_dumps),
        ("crashing_inits", crashing_inits),
        ("undumpable", undumpable),
        ("other_ways", other_ways),
    ]);
}
