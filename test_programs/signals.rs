//! Signals, stops and interrupted calls, as a program meets them.

#[macro_use]
mod scenario;
mod machine;

use std::ffi::CString;
use std::ptr::{null, null_mut};
use std::sync::atomic::{AtomicI32, AtomicU32, Ordering::SeqCst};

use libc::*;
use scenario::{fork, handle, heard, line, mask, pipe, said, set, tell, wait, wait_with};

static COUNT: AtomicU32 = AtomicU32::new(0);
static FD: AtomicI32 = AtomicI32::new(-1);

extern "C" fn print(signal: c_int, info: *mut siginfo_t, _: *mut c_void) {
    // SAFETY: the kernel passes a whole siginfo to a handler with SA_SIGINFO.
    let info = unsafe { &*info };
    // SAFETY: a field of the union; what it means is printed for queued signals alone.
    let value = unsafe { info.si_value().sival_ptr } as usize;
    let value = if info.si_code == SI_QUEUE { value } else { 0 };
    line(&format!("handler {signal} code {} value {value}", info.si_code));
}

extern "C" fn fault(signal: c_int, info: *mut siginfo_t, context: *mut c_void) {
    // SAFETY: the kernel passes both to a handler with SA_SIGINFO.
    let (info, context) = unsafe { (&*info, &mut *context.cast::<ucontext_t>()) };
    // SAFETY: set for faults.
    let address = unsafe { info.si_addr() } as usize;
    let address = if signal == SIGSEGV { address } else { 0 };
    line(&format!("fault {signal} code {} at {address}", info.si_code));
    machine::skip_instruction(context);
}

extern "C" fn count(_: c_int, _: *mut siginfo_t, _: *mut c_void) {
    COUNT.fetch_add(1, SeqCst);
}

extern "C" fn tell_pipe(_: c_int, _: *mut siginfo_t, _: *mut c_void) {
    tell(FD.load(SeqCst));
}

/// Waits until a process sleeps in its call, so that a signal meets it there. Recorded, it may sleep before
/// its call, until that was seen: a signal then comes too early, as it would alone.
fn until_asleep(pid: pid_t) {
    let read = |name: &str| std::fs::read_to_string(format!("/proc/{pid}/{name}")).unwrap_or_default();
    for turn in 0.. {
        let stat = read("stat");
        match stat.rsplit(')').next().and_then(|rest| rest.trim().chars().next()) {
            Some('S') => {
                let place = read("wchan");
                // What runs again is nowhere; so is, on a kernel that hides it, whatever sleeps.
                if !place.contains("seccomp") && (place != "0" || turn > 100) {
                    break;
                }
            }
            Some('Z') | None => break,
            _ => {}
        }
        c!(usleep(1000));
    }
}

fn queued() {
    let signals: Vec<c_int> = (0..3).map(|at| SIGRTMIN() + at).chain([SIGRTMAX(), SIGUSR1]).collect();
    mask(SIG_BLOCK, &signals);
    let us = c!(getpid());
    let child = fork(|| {
        for value in 0..4 {
            for signal in &signals[..4] {
                let value = sigval { sival_ptr: (value * 1000 + *signal as usize) as *mut c_void };
                if c!(sigqueue(us, *signal, value)) != 0 {
                    return 1;
                }
            }
        }
        c!(kill(us, SIGUSR1));
        c!(kill(us, SIGUSR1));
        0
    });
    line(&wait(child));
    let waited = set(&signals[1..]);
    let none = timespec { tv_sec: 0, tv_nsec: 0 };
    loop {
        let mut info: siginfo_t = c!(std::mem::zeroed());
        let signal = c!(sigtimedwait(&raw const waited, &raw mut info, &raw const none));
        if signal < 0 {
            line(&scenario::error());
            break;
        }
        let value = if info.si_code == SI_QUEUE { c!(info.si_value().sival_ptr) as usize } else { 0 };
        line(&format!(
            "took {signal} code {} value {value} own {}",
            info.si_code,
            c!(info.si_pid()) == child
        ));
    }
    // The rest comes to a handler, in order.
    handle(signals[0], 0, print);
    mask(SIG_UNBLOCK, &signals);
    // And with nobody to block them.
    let value = sigval { sival_ptr: 7 as *mut c_void };
    for _ in 0..3 {
        c!(sigqueue(us, signals[0], value));
    }
}

fn traps() {
    handle(SIGTRAP, 0, print);
    machine::handled_breakpoint();
    c!(raise(SIGTRAP));
    c!(kill(getpid(), SIGTRAP));
    // Each step is counted.
    handle(SIGTRAP, 0, count);
    machine::single_steps();
    line(&format!("{} single steps", COUNT.load(SeqCst)));
    let plain = fork(|| {
        c!(libc::signal(SIGTRAP, SIG_DFL));
        machine::breakpoint();
        0
    });
    line(&wait(plain));
    let blocked = fork(|| {
        mask(SIG_BLOCK, &[SIGTRAP]);
        // Kills this process, blocked or not.
        machine::breakpoint();
        0
    });
    line(&wait(blocked));
    let ignored = fork(|| {
        c!(libc::signal(SIGTRAP, SIG_IGN));
        c!(raise(SIGTRAP));
        3
    });
    line(&wait(ignored));
}

fn faults() {
    let mut stack = vec![0u8; 64 << 10];
    let alternative = stack_t { ss_sp: stack.as_mut_ptr().cast(), ss_flags: 0, ss_size: stack.len() };
    assert_eq!(c!(sigaltstack(&raw const alternative, null_mut())), 0);
    for signal in [SIGSEGV, SIGILL, SIGFPE] {
        handle(signal, SA_ONSTACK, fault);
    }
    // The handler skips each instruction.
    machine::fault();
    machine::invalid();
    machine::division();
}

fn each_default() {
    for signal in (1..=64).filter(|signal| ![SIGSTOP, SIGTSTP, SIGTTIN, SIGTTOU, 32, 33].contains(signal)) {
        let child = fork(|| {
            let none = rlimit { rlim_cur: 0, rlim_max: 0 };
            c!(setrlimit(RLIMIT_CORE, &raw const none));
            c!(libc::signal(signal, SIG_DFL));
            c!(raise(signal));
            c!(kill(getpid(), signal));
            0
        });
        line(&format!("{signal}: {}", wait(child)));
    }
}

fn stops() {
    for threads in [0, 3] {
        let [hear, say] = pipe();
        let child = fork(|| {
            for _ in 0..threads {
                std::thread::spawn(|| {
                    loop {
                        c!(pause());
                    }
                });
            }
            tell(say);
            loop {
                c!(pause());
            }
        });
        heard(hear);
        for signal in [SIGSTOP, SIGTSTP, SIGTTIN, SIGTTOU, SIGSTOP] {
            c!(kill(child, signal));
            line(&wait_with(child, WUNTRACED));
            line(&wait_with(child, WUNTRACED | WCONTINUED | WNOHANG));
            c!(kill(child, SIGCONT));
            line(&wait_with(child, WUNTRACED | WCONTINUED));
        }
        c!(kill(child, SIGSTOP));
        line(&wait_with(child, WUNTRACED));
        // A pending signal waits for the continuation.
        c!(kill(child, SIGTERM));
        line(&wait_with(child, WUNTRACED | WNOHANG | WCONTINUED));
        c!(kill(child, SIGCONT));
        line(&wait(child));
    }
    let [hear, say] = pipe();
    let child = fork(|| {
        tell(say);
        loop {
            c!(pause());
        }
    });
    heard(hear);
    c!(kill(child, SIGSTOP));
    line(&wait_with(child, WUNTRACED));
    c!(kill(child, SIGKILL));
    line(&wait(child));
}

fn stops_of_a_group() {
    let [hear, say] = pipe();
    let leader = fork(|| {
        c!(setpgid(0, 0));
        tell(say);
        loop {
            c!(pause());
        }
    });
    heard(hear);
    let mut all = vec![leader];
    for _ in 0..3 {
        all.push(fork(|| {
            c!(setpgid(0, leader));
            tell(say);
            loop {
                // Calls that are seen, not only a pause.
                c!(access(c"nothing".as_ptr(), F_OK));
            }
        }));
        heard(hear);
    }
    for round in 0..5 {
        let signal = if round % 2 == 0 { SIGSTOP } else { SIGTSTP };
        c!(kill(-leader, signal));
        for pid in &all {
            line(&wait_with(*pid, WUNTRACED));
        }
        c!(kill(-leader, SIGCONT));
        for pid in &all {
            line(&wait_with(*pid, WCONTINUED));
        }
    }
    c!(kill(-leader, SIGKILL));
    for pid in &all {
        line(&wait(*pid));
    }
}

/// As an editor does at Ctrl-Z: restore the terminal, stop by the default action, go on.
extern "C" fn suspend(_: c_int, _: *mut siginfo_t, _: *mut c_void) {
    line("restore the terminal");
    c!(libc::signal(SIGTSTP, SIG_DFL));
    mask(SIG_UNBLOCK, &[SIGTSTP]);
    c!(raise(SIGTSTP));
    handle(SIGTSTP, 0, suspend);
    line("back again");
    tell(FD.load(SeqCst));
}

fn suspends_itself() {
    let [hear, say] = pipe();
    let child = fork(|| {
        FD.store(say, SeqCst);
        c!(setpgid(0, 0));
        handle(SIGTSTP, 0, suspend);
        tell(say);
        loop {
            c!(pause());
        }
    });
    heard(hear);
    for _ in 0..3 {
        c!(kill(child, SIGTSTP));
        line(&wait_with(child, WUNTRACED));
        c!(kill(child, SIGCONT));
        let continued = wait_with(child, WCONTINUED);
        heard(hear);
        line(&continued);
    }
    c!(kill(child, SIGTERM));
    line(&wait(child));
}

fn child_signals() {
    extern "C" fn sigchld(_: c_int, info: *mut siginfo_t, _: *mut c_void) {
        // SAFETY: the kernel passes a whole siginfo; SIGCHLD has a status.
        let (code, status) = unsafe { ((*info).si_code, (*info).si_status()) };
        line(&format!("SIGCHLD code {code} status {status}"));
        tell(FD.load(SeqCst));
    }
    let [hear, say] = pipe();
    FD.store(say, SeqCst);
    handle(SIGCHLD, SA_RESTART, sigchld);
    let child = fork(|| {
        loop {
            c!(pause());
        }
    });
    for signal in [SIGSTOP, SIGCONT, SIGTSTP, SIGCONT, SIGTERM] {
        c!(kill(child, signal));
        heard(hear);
    }
    line(&wait_with(child, WUNTRACED));
    let child = fork(|| 5);
    heard(hear);
    line(&wait(child));
    // Without WUNTRACED's kind of news.
    handle(SIGCHLD, SA_RESTART | SA_NOCLDSTOP, sigchld);
    let child = fork(|| {
        c!(raise(SIGSTOP));
        6
    });
    line(&wait_with(child, WUNTRACED));
    c!(kill(child, SIGCONT));
    heard(hear);
    line(&wait(child));
    // Nobody wants to know: no zombie.
    handle(SIGCHLD, SA_NOCLDWAIT, count);
    let child = fork(|| 7);
    line(&wait(child));
}

fn interrupted() {
    let fifo = c"fifo";
    assert_eq!(c!(mkfifo(fifo.as_ptr(), 0o600)), 0);
    for restart in [0, SA_RESTART] {
        let [hear, say] = pipe();
        let [answers, answer] = pipe();
        let child = fork(|| {
            FD.store(answer, SeqCst);
            handle(SIGUSR1, restart, tell_pipe);
            tell(say);
            line(&format!(
                "open {}",
                if c!(open(fifo.as_ptr(), O_RDONLY)) < 0 { scenario::error() } else { "done".into() }
            ));
            let mut byte = 0u8;
            let reading = pipe();
            let end = fork(|| {
                c!(usleep(100_000));
                tell(reading[1]);
                0
            });
            line(&format!("read {}", said(c!(libc::read(reading[0], (&raw mut byte).cast(), 1)) as i64)));
            line(&wait(end));
            0
        });
        heard(hear);
        until_asleep(child);
        c!(kill(child, SIGUSR1));
        // The handler has run; with SA_RESTART the open waits on for a writer.
        heard(answers);
        let writer = if restart == 0 { -1 } else { c!(open(fifo.as_ptr(), O_WRONLY)) };
        line(&wait(child));
        c!(close(writer));
    }
    // What has a remainder, or can't be restarted.
    let child = fork(|| {
        handle(SIGUSR1, SA_RESTART, count);
        let long = timespec { tv_sec: 1000, tv_nsec: 0 };
        let mut left = timespec { tv_sec: 0, tv_nsec: 0 };
        line(&format!("nanosleep {}", said(c!(nanosleep(&raw const long, &raw mut left)))));
        line(&format!("something is left: {}", left.tv_sec > 0));
        line(&format!("poll {}", said(c!(poll(null_mut(), 0, -1)))));
        line(&format!("pause {}", said(c!(pause()))));
        let usr1 = set(&[SIGUSR1]);
        let mut info: siginfo_t = c!(std::mem::zeroed());
        mask(SIG_BLOCK, &[SIGUSR1]);
        line(&format!("sigwaitinfo {}", said(c!(sigwaitinfo(&raw const usr1, &raw mut info)))));
        0
    });
    for _ in 0..4 {
        // Each call is met asleep; a stop and a continuation in between interrupt none that restarts.
        until_asleep(child);
        c!(usleep(20_000));
        c!(kill(child, SIGSTOP));
        wait_with(child, WUNTRACED);
        c!(kill(child, SIGCONT));
        c!(usleep(20_000));
        c!(kill(child, SIGUSR1));
        c!(usleep(20_000));
    }
    line(&wait(child));
}

/// A socket that listens at an address of the kernel's choice, or at the path `socket`, and whose queue is full.
fn full_listener(family: c_int) -> (c_int, sockaddr_storage, socklen_t) {
    let mut address: sockaddr_storage = c!(std::mem::zeroed());
    let mut len = size_of::<sockaddr_storage>() as socklen_t;
    let at: *mut sockaddr = (&raw mut address).cast();
    let listener = c!(socket(family, SOCK_STREAM, 0));
    if family == AF_UNIX {
        let mut path = sockaddr_un { sun_family: AF_UNIX as sa_family_t, sun_path: [0; 108] };
        for (to, from) in path.sun_path.iter_mut().zip(c"socket".to_bytes()) {
            *to = *from as _;
        }
        c!(unlink(path.sun_path.as_ptr()));
        // SAFETY: `address` is large enough, and aligned, for any.
        unsafe { at.cast::<sockaddr_un>().write(path) };
        len = size_of::<sockaddr_un>() as socklen_t;
        assert_eq!(c!(bind(listener, at, len)), 0, "{}", scenario::error());
    }
    assert_eq!(c!(listen(listener, 0)), 0, "{}", scenario::error());
    if family == AF_INET {
        assert_eq!(c!(getsockname(listener, at, &raw mut len)), 0);
    }
    // One connection fits into the queue of a backlog of 0.
    assert_eq!(c!(connect(c!(socket(family, SOCK_STREAM, 0)), at, len)), 0, "{}", scenario::error());
    (listener, address, len)
}

fn interrupted_sockets() {
    for restart in [0, SA_RESTART] {
        for family in [AF_INET, AF_UNIX] {
            let (listener, address, len) = full_listener(family);
            let ([hear, say], [answers, answer]) = (pipe(), pipe());
            let child = fork(|| {
                FD.store(answer, SeqCst);
                handle(SIGALRM, restart, tell_pipe);
                let socket = c!(socket(family, SOCK_STREAM, 0));
                tell(say);
                line(&format!("connect {}", said(c!(connect(socket, (&raw const address).cast(), len)))));
                0
            });
            heard(hear);
            until_asleep(child);
            c!(kill(child, SIGALRM));
            heard(answers);
            if restart != 0 {
                // Room for the connection that was restarted.
                c!(accept(listener, null_mut(), null_mut()));
            }
            line(&wait(child));
        }
        // Sends that are all alike, and one of which waits.
        let mut pair = [0; 2];
        assert_eq!(c!(socketpair(AF_UNIX, SOCK_STREAM, 0, pair.as_mut_ptr())), 0);
        let [answers, answer] = pipe();
        let child = fork(|| {
            FD.store(answer, SeqCst);
            handle(SIGALRM, restart, tell_pipe);
            handle(SIGUSR1, 0, count);
            let bytes = [0u8; 4096];
            let mut part = iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
            let mut message: msghdr = c!(std::mem::zeroed());
            (message.msg_iov, message.msg_iovlen) = (&raw mut part, 1);
            let sent = loop {
                let sent = c!(sendmsg(pair[0], &raw const message, 0));
                if sent < 0 || COUNT.load(SeqCst) > 0 {
                    break sent;
                }
            };
            line(&format!("sendmsg {}", said(sent as i64)));
            0
        });
        c!(close(pair[0]));
        until_asleep(child);
        c!(kill(child, SIGALRM));
        heard(answers);
        if restart != 0 {
            // It waits on; what ends it is a signal without SA_RESTART.
            until_asleep(child);
            c!(kill(child, SIGUSR1));
        }
        line(&wait(child));
    }
}

fn under_a_timer() {
    handle(SIGALRM, 0, count);
    // Longer than a call takes that stops at its entry and its exit, or nothing would go on.
    let often = timeval { tv_sec: 0, tv_usec: 2_000 };
    let timer = itimerval { it_interval: often, it_value: often };
    assert_eq!(c!(setitimer(ITIMER_REAL, &raw const timer, null_mut())), 0);
    let mut wrong = 0;
    let mut round = 0;
    while round < 3_000 || COUNT.load(SeqCst) < 20 {
        round += 1;
        let answer = if round % 4 == 0 {
            c!(open(c"nothing".as_ptr(), O_RDONLY))
        } else {
            c!(access(c"nothing".as_ptr(), F_OK))
        };
        let errno = std::io::Error::last_os_error().raw_os_error();
        wrong += u32::from(answer != -1 || errno != Some(ENOENT));
        if round % 100 == 0 {
            let fd = c!(open(c"file".as_ptr(), O_CREAT | O_WRONLY | O_TRUNC, 0o600));
            wrong += u32::from(fd < 0) + u32::from(c!(rename(c"file".as_ptr(), c"other".as_ptr())) != 0);
            c!(close(fd));
        }
    }
    let never = itimerval {
        it_interval: timeval { tv_sec: 0, tv_usec: 0 },
        it_value: timeval { tv_sec: 0, tv_usec: 0 },
    };
    c!(setitimer(ITIMER_REAL, &raw const never, null_mut()));
    line(&format!("{wrong} wrong answers, the timer rang: {}", COUNT.load(SeqCst) > 10));
}

fn orphaned_groups() {
    for signal in [SIGSTOP, SIGTSTP] {
        let [hear, say] = pipe();
        let [parents, go] = pipe();
        let middle = fork(|| {
            c!(setsid());
            let grandchild = fork(|| {
                c!(setpgid(0, 0));
                handle(SIGHUP, 0, print);
                handle(SIGCONT, 0, print);
                c!(close(go));
                if signal == SIGSTOP {
                    tell(say);
                    c!(raise(SIGSTOP));
                } else {
                    // The group is an orphan before it tries to stop: it may not.
                    heard(parents);
                    tell(say);
                    c!(raise(SIGTSTP));
                }
                line("goes on");
                tell(say);
                0
            });
            if signal == SIGSTOP {
                line(&wait_with(grandchild, WUNTRACED));
            }
            0
        });
        let ended = wait(middle);
        c!(close(go));
        c!(close(say));
        while heard(hear) {}
        line(&ended);
    }
}

fn deaths() {
    // A child learns of its parent's death; a subreaper adopts.
    assert_eq!(c!(prctl(PR_SET_CHILD_SUBREAPER, 1)), 0);
    let [hear, say] = pipe();
    let [ready, get_ready] = pipe();
    let middle = fork(|| {
        fork(|| {
            mask(SIG_BLOCK, &[SIGRTMIN() + 5]);
            c!(prctl(PR_SET_PDEATHSIG, SIGRTMIN() + 5));
            tell(get_ready);
            let waited = set(&[SIGRTMIN() + 5]);
            let mut info: siginfo_t = c!(std::mem::zeroed());
            let signal = c!(sigwaitinfo(&raw const waited, &raw mut info));
            line(&format!("told of the death by {signal}"));
            tell(say);
            9
        });
        heard(ready);
        8
    });
    let ended = wait(middle);
    heard(hear);
    line(&ended);
    line(&format!("adopted: {}", wait(-1)));
    line(&wait(-1));
    // pidfds and waitid.
    let child = fork(|| {
        loop {
            c!(pause());
        }
    });
    let pidfd = c!(syscall(SYS_pidfd_open, child, 0)) as c_int;
    line(&format!("pidfd {}", pidfd >= 0));
    c!(syscall(SYS_pidfd_send_signal, pidfd, SIGTERM, null::<siginfo_t>(), 0));
    let mut poll_fd = pollfd { fd: pidfd, events: POLLIN, revents: 0 };
    line(&format!("poll {}", said(c!(poll(&raw mut poll_fd, 1, -1)))));
    for flags in [WEXITED | WNOWAIT, WEXITED] {
        let mut info: siginfo_t = c!(std::mem::zeroed());
        let answer = c!(waitid(P_PIDFD, pidfd as id_t, &raw mut info, flags));
        line(&format!("waitid {answer} code {} status {}", info.si_code, c!(info.si_status())));
    }
    line(&wait(child));
}

fn masks_over_exec() {
    if std::env::args().nth(2).is_none() {
        mask(SIG_BLOCK, &[SIGUSR1, SIGRTMIN() + 3]);
        c!(libc::signal(SIGUSR2, SIG_IGN));
        handle(SIGHUP, 0, print);
        c!(raise(SIGUSR1));
        c!(alarm(1000));
        let words: Vec<CString> =
            ["/proc/self/exe", "masks_over_exec", "again"].map(|word| CString::new(word).unwrap()).into();
        let argv = [words[0].as_ptr(), words[1].as_ptr(), words[2].as_ptr(), null()];
        c!(execv(argv[0], argv.as_ptr()));
    }
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    status
        .lines()
        .filter(|text| text.starts_with("Sig") || text.starts_with("Shd"))
        .filter(|text| !text.starts_with("SigQ"))
        .for_each(line);
    line(&format!("an alarm is set: {}", c!(alarm(0)) > 0));
}

fn main() {
    scenario::run(&[
        ("queued", queued),
        ("traps", traps),
        ("faults", faults),
        ("each_default", each_default),
        ("stops", stops),
        ("stops_of_a_group", stops_of_a_group),
        ("suspends_itself", suspends_itself),
        ("child_signals", child_signals),
        ("interrupted", interrupted),
        ("interrupted_sockets", interrupted_sockets),
        ("under_a_timer", under_a_timer),
        ("orphaned_groups", orphaned_groups),
        ("deaths", deaths),
        ("masks_over_exec", masks_over_exec),
    ]);
}
