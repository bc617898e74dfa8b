//! Ways to reach a file that bypass the path syscalls, and other programs that tests/record/ needs.

#[macro_use]
mod scenario;
mod machine;

use std::env;
use std::ffi::CString;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::time::{Duration, Instant};

use libc::*;
use scenario::{error, line, said};

fn argument(at: usize) -> String {
    env::args().nth(at).unwrap_or_default()
}

/// Receives one descriptor over the socket that is descriptor 3, and writes to it, or reads where it
/// may not.
fn receive() {
    let mut byte = 0u8;
    let mut part = iovec { iov_base: (&raw mut byte).cast(), iov_len: 1 };
    let mut control = [0u64; 3];
    let mut message: msghdr = c!(std::mem::zeroed());
    message.msg_iov = &raw mut part;
    message.msg_iovlen = 1;
    message.msg_control = control.as_mut_ptr().cast();
    message.msg_controllen = 24;
    assert_eq!(c!(recvmsg(3, &raw mut message, 0)), 1, "{}", error());
    use_descriptor(i32::try_from(control[2]).unwrap());
}

/// Receives over the socket that is descriptor 3 where the kernel can't write to the header of the message, or of the
/// second one of two, and writes to the descriptor that came all the same.
fn receive_and_fault() {
    let size = 4096;
    let second = argument(2) == "second";
    let pages =
        c!(mmap(std::ptr::null_mut(), 2 * size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    let edge = pages.wrapping_byte_add(size);
    let last = edge.cast::<mmsghdr>();
    let first = if second { last.wrapping_sub(1) } else { last };
    let mut byte = 0u8;
    let mut part = iovec { iov_base: (&raw mut byte).cast(), iov_len: 1 };
    let mut control = [[0u64; 3]; 2];
    for (message, control) in [first, last].into_iter().zip(&mut control) {
        // SAFETY: both are in the pages.
        let header = unsafe { &mut (*message).msg_hdr };
        header.msg_iov = &raw mut part;
        header.msg_iovlen = 1;
        header.msg_control = control.as_mut_ptr().cast();
        header.msg_controllen = 24;
    }
    assert_eq!(c!(mprotect(edge, size, PROT_READ)), 0);
    if second {
        assert_eq!(c!(recvmmsg(3, first, 2, 0, std::ptr::null_mut())), 1, "{}", error());
    } else {
        assert_eq!(c!(recvmsg(3, first.cast(), 0)), -1);
        assert_eq!(error(), "EFAULT");
    }
    use_descriptor(i32::try_from(control[1][2]).unwrap());
}

fn use_descriptor(fd: c_int) {
    if c!(write(fd, c"written\n".as_ptr().cast(), 8)) < 0 {
        line(&said(c!(read(fd, [0u8; 8].as_mut_ptr().cast(), 8)) as i64));
    }
}

/// Takes descriptor 9 of the process that is named, and writes to it.
fn take() {
    let pid: i32 = argument(2).parse().unwrap();
    let process = c!(syscall(SYS_pidfd_open, pid, 0));
    let fd = c!(syscall(SYS_pidfd_getfd, process, 9, 0));
    if fd < 0 {
        return line(&error());
    }
    use_descriptor(i32::try_from(fd).unwrap());
}

static RACED: [AtomicU8; 2] = [AtomicU8::new(b'a'), AtomicU8::new(0)];
static DONE: AtomicBool = AtomicBool::new(false);

extern "C" fn rewrite(_: *mut std::ffi::c_void) -> c_int {
    let mut other = false;
    while !DONE.load(Ordering::Relaxed) {
        RACED[0].store(if other { b'b' } else { b'a' }, Ordering::Relaxed);
        other = !other;
    }
    0
}

/// Opens `a` or `b` for reading many times, while another thread, or a process with the same memory,
/// rewrites which.
fn race() {
    let flags = if argument(2) == "write" { O_WRONLY } else { O_RDONLY };
    let in_process = argument(3) == "process";
    let mut stack = vec![0u8; 64 << 10];
    let (mut thread, mut process) = (None, 0);
    if in_process {
        let top = stack.as_mut_ptr_range().end;
        process = c!(clone(rewrite, top.cast(), CLONE_VM | SIGCHLD, std::ptr::null_mut()));
        assert!(process > 0);
    } else {
        thread = Some(std::thread::spawn(|| rewrite(std::ptr::null_mut())));
    }
    let [mut a, mut b] = [false; 2];
    // Until both were opened, and often enough for the kernel to have read another path than the recorder.
    let mut opens = 0;
    while !(a && b && opens >= 2000) {
        opens += 1;
        let fd = if argument(2) == "how" {
            let how = [0u64; 3]; // struct open_how: for reading
            i32::try_from(c!(syscall(SYS_openat2, AT_FDCWD, RACED.as_ptr(), how.as_ptr(), 24))).unwrap()
        } else {
            c!(open(RACED.as_ptr().cast(), flags))
        };
        let mut found: stat = c!(std::mem::zeroed());
        assert_eq!(c!(fstat(fd, &raw mut found)), 0);
        *(if found.st_size == 2 { &mut a } else { &mut b }) = true;
        c!(close(fd));
    }
    DONE.store(true, Ordering::Relaxed);
    if let Some(thread) = thread {
        thread.join().unwrap();
    } else {
        assert_eq!(c!(waitpid(process, std::ptr::null_mut(), 0)), process);
    }
    line(&format!("a {a} b {b}"));
}

/// Is not dumpable, and then changes what it has open.
fn undumpable() {
    let fd = c!(open(c"f".as_ptr(), O_RDONLY));
    assert_eq!(c!(prctl(PR_SET_DUMPABLE, 0)), 0);
    line(&said(c!(fchmod(fd, 0o600))));
}

/// open(path, O_WRONLY | O_TRUNC) as a 32-bit program calls it.
fn compat() {
    let path = low_argument();
    // open
    let answer = machine::compat(5, [path, (O_WRONLY | O_TRUNC).unsigned_abs(), 0]);
    if answer == -ENOSYS {
        scenario::end(77);
    }
    line(&format!("opened {}", answer >= 0));
}

/// execve(path, NULL, NULL) as a 32-bit program calls it.
fn compat_exec() {
    let path = low_argument();
    // execve
    machine::compat(11, [path, 0, 0]);
    scenario::end(77);
}

/// The address of the second argument where a 32-bit call can name it; a kernel without those calls ends this.
fn low_argument() -> u32 {
    extern "C" fn none(_: c_int) {
        scenario::end(77);
    }
    let none: extern "C" fn(c_int) = none;
    c!(signal(SIGSEGV, none as sighandler_t));
    let low = c!(mmap(
        std::ptr::null_mut(),
        4096,
        PROT_READ | PROT_WRITE,
        MAP_PRIVATE | MAP_ANONYMOUS | 0x40, // MAP_32BIT
        -1,
        0
    ));
    let path = argument(2);
    // SAFETY: the page is ours, and the path is short.
    unsafe { std::ptr::copy_nonoverlapping(path.as_ptr(), low.cast(), path.len()) };
    low as u32
}

/// getpid as x32 numbers it; a kernel without x32 has no such call.
fn x32() {
    line(&said(i64::from(c!(syscall(0x4000_0000 | SYS_getpid)) > 0)));
}

/// Asks for an io_uring.
fn ring() {
    let mut parameters = [0u32; 30];
    let fd = c!(syscall(SYS_io_uring_setup, 8, parameters.as_mut_ptr()));
    line(&if fd < 0 { error() } else { "a ring".to_owned() });
}

/// Writes nothing, to the memory of another process.
fn write_memory() {
    let nothing = iovec { iov_base: std::ptr::null_mut(), iov_len: 0 };
    let pid: pid_t = argument(2).parse().unwrap();
    let answer = c!(process_vm_writev(pid, &raw const nothing, 1, &raw const nothing, 1, 0));
    line(&said(i64::try_from(answer).unwrap()));
}

/// Executes what comes behind, with `fd` as descriptor 3.
fn execute_with(fd: c_int) {
    // The same number stays as it is.
    assert_eq!(c!(dup2(fd, 3)), 3);
    c!(fcntl(3, F_SETFD, 0));
    let words: Vec<_> = env::args().skip(2).map(|word| CString::new(word).unwrap()).collect();
    let mut argv: Vec<_> = words.iter().map(|word| word.as_ptr()).collect();
    argv.push(std::ptr::null());
    c!(execv(argv[0], argv.as_ptr()));
}

fn with_ring() {
    let mut parameters = [0u32; 30];
    match c!(syscall(SYS_io_uring_setup, 8, parameters.as_mut_ptr())) {
        -1 => scenario::end(77),
        ring => execute_with(c_int::try_from(ring).unwrap()),
    }
}

fn group() -> c_int {
    match c!(fanotify_init(FAN_CLASS_NOTIF | FAN_NONBLOCK, 0)) {
        -1 => scenario::end(77),
        group => group,
    }
}

fn with_group() {
    execute_with(group());
}

fn with_group_to_receive() {
    use nix::sys::socket::{ControlMessage, MsgFlags, sendmsg};
    use std::os::fd::AsRawFd as _;
    let (ours, theirs) = std::os::unix::net::UnixDatagram::pair().unwrap();
    let (part, group) = ([std::io::IoSlice::new(b"x")], [group()]);
    let rights = [ControlMessage::ScmRights(&group)];
    sendmsg::<()>(ours.as_raw_fd(), &part, &rights, MsgFlags::empty(), None).unwrap();
    c!(fcntl(group[0], F_SETFD, FD_CLOEXEC));
    execute_with(theirs.as_raw_fd());
}

/// Another process that shares memory and root, and changes that.
fn shared_root() {
    let mut stack = vec![0u8; 1 << 16];
    extern "C" fn child(_: *mut c_void) -> c_int {
        c!(chroot(c"d".as_ptr()))
    }
    let top = stack.as_mut_ptr_range().end;
    let pid = c!(clone(child, top.cast(), CLONE_FS | SIGCHLD, std::ptr::null_mut()));
    line(&scenario::wait(pid));
    let fd = c!(open(c"/f".as_ptr(), O_WRONLY | O_CREAT, 0o644));
    line(&said(i64::from(fd >= 0)));
}

/// Sleeps until it is killed, in a session of its own, with no descriptor of anyone's.
fn daemon_that_writes() {
    if scenario::fork(|| {
        c!(setsid());
        scenario::fork(|| {
            for fd in 0..3 {
                c!(close(fd));
            }
            // The test writes to the FIFO.
            let fd = c!(open(c"go".as_ptr(), O_RDONLY));
            scenario::heard(fd);
            c_int::from(std::fs::write("late", "from the daemon\n").is_err())
        });
        0
    }) > 0
    {
        scenario::wait(-1);
    }
}

/// Leaves a child behind that it can't attach to, or that stops to be traced, and says how ptrace has failed.
fn fails_to_trace() {
    let attaches = argument(2) == "attach";
    let child = scenario::fork(|| {
        if !attaches {
            line(&format!("TRACEME {}", said(c!(ptrace(PTRACE_TRACEME, 0, 0, 0)))));
            c!(raise(SIGSTOP));
        }
        loop {
            c!(pause());
        }
    });
    if attaches {
        line(&format!("ATTACH {}", said(c!(ptrace(PTRACE_ATTACH, child, 0, 0)))));
    } else {
        let mut status = 0;
        c!(waitpid(child, &raw mut status, WUNTRACED));
    }
    scenario::end(7);
}

/// Traces a child that asks for it, and ends: once the child has ended, so that it is killed, or while it is stopped by a
/// signal that it dies of: the tracer has waited for that stop, or has only looked.
fn traces() {
    let how = argument(2);
    let child = scenario::fork(|| {
        assert_eq!(c!(ptrace(PTRACE_TRACEME, 0, 0, 0)), 0, "{}", error());
        c!(raise(SIGSTOP));
        match how.as_str() {
            "ends" => scenario::end(5),
            "dies" | "looks" => {
                c!(raise(SIGUSR1));
                std::fs::write("free", "").unwrap();
                scenario::end(0);
            }
            _ => loop {
                c!(pause());
            },
        }
    });
    let wait = || {
        let mut status = 0;
        assert_eq!(c!(waitpid(child, &raw mut status, 0)), child, "{}", error());
        match WIFSTOPPED(status) {
            true => line(&format!("stop {}", WSTOPSIG(status))),
            false => line(&format!("exit {}", WEXITSTATUS(status))),
        }
    };
    wait();
    if how == "exitkill" {
        assert_eq!(c!(ptrace(PTRACE_SETOPTIONS, child, 0, PTRACE_O_EXITKILL)), 0, "{}", error());
    }
    assert_eq!(c!(ptrace(PTRACE_CONT, child, 0, 0)), 0, "{}", error());
    match how.as_str() {
        "exitkill" => {}
        "looks" => unsafe {
            let mut told = std::mem::zeroed::<siginfo_t>();
            let options = WSTOPPED | WNOWAIT;
            assert_eq!(c!(waitid(P_PID, child as id_t, &raw mut told, options)), 0, "{}", error());
            line(&format!("stop {}", told.si_status()));
        },
        _ => wait(),
    }
    scenario::end(7);
}

/// Has threads that make system calls, of which one executes this program again, as often as is named.
fn executes_in_threads() {
    let Some(left) = argument(2).parse::<u32>().unwrap().checked_sub(1) else { return };
    for _ in 0..3 {
        std::thread::spawn(|| {
            loop {
                let _ = std::fs::rename("own", "own2");
                let _ = std::fs::rename("own2", "own");
            }
        });
    }
    std::thread::spawn(move || {
        std::thread::sleep(std::time::Duration::from_micros(200));
        use std::os::unix::process::CommandExt as _;
        let words = ["executes_in_threads", &left.to_string()];
        panic!("{}", std::process::Command::new("/proc/self/exe").args(words).exec());
    });
    loop {
        let _ = std::fs::metadata("own");
    }
}

/// Prints when it is interrupted, and continues to read.
fn catches() {
    extern "C" fn caught(_: c_int, _: *mut siginfo_t, _: *mut c_void) {
        line("caught");
    }
    scenario::handle(SIGINT, SA_RESTART, caught);
    line("up");
    let mut text = String::new();
    std::io::stdin().read_line(&mut text).unwrap();
    line(&format!("read {}", text.trim()));
    scenario::end(3);
}

static STARTED: AtomicBool = AtomicBool::new(false);

/// Waits until the other one is about to make its call, and a little longer.
fn wait_until_started(round: u64) {
    while !STARTED.swap(false, Ordering::SeqCst) {
        std::hint::spin_loop();
    }
    let now = Instant::now();
    while now.elapsed() < Duration::from_micros(round % 50 * 5) {
        std::hint::spin_loop();
    }
}

/// For each of so many files: a process with our memory and descriptors is killed while it opens that to append to it. If
/// the descriptor is there all the same, this process writes to it.
fn killed_in_opens() {
    extern "C" fn opens(path: *mut c_void) -> c_int {
        STARTED.store(true, Ordering::SeqCst);
        c!(syscall(SYS_openat, AT_FDCWD, path, O_WRONLY | O_APPEND, 0));
        0
    }
    let mut stack = vec![0u8; 64 << 10];
    let next = c!(dup(0));
    for round in 0..argument(2).parse().unwrap() {
        c!(close(next));
        let path = CString::new(format!("f{round}")).unwrap();
        let top = stack.as_mut_ptr_range().end;
        let flags = CLONE_VM | CLONE_FILES | SIGCHLD;
        let child = c!(clone(opens, top.cast(), flags, path.as_ptr().cast_mut().cast()));
        assert!(child > 0, "{}", error());
        wait_until_started(round);
        c!(kill(child, SIGKILL));
        scenario::wait(child);
        c!(write(next, c"late\n".as_ptr().cast(), 5));
    }
}

/// For each of so many files: a process ends while another thread of it sets an extended attribute.
fn ends_beside_changes() {
    for round in 0..argument(2).parse().unwrap() {
        let path = CString::new(format!("f{round}")).unwrap();
        scenario::wait(scenario::fork(|| {
            std::thread::spawn(move || {
                let value = [b'z'; 3000];
                STARTED.store(true, Ordering::SeqCst);
                c!(setxattr(path.as_ptr(), c"user.mark".as_ptr(), value.as_ptr().cast(), value.len(), 0));
            });
            wait_until_started(round);
            0
        }));
    }
}

/// Asks for so many paths, most of them absent.
fn many() {
    let count: usize = argument(2).parse().unwrap();
    for number in 0..count {
        let path = format!("directory-{}/a-module-{number}.rs\0", number / 1000);
        c!(access(path.as_ptr().cast(), F_OK));
    }
}

/// Executes a program without a name, by the call that is named: a script in memory, which names its
/// interpreter, or this very program, which was removed.
fn unnamed() {
    let fd = if argument(3) == "script" {
        let fd = c!(memfd_create(c"s".as_ptr(), 0));
        let script = "#!./i word\n";
        assert_eq!(c!(write(fd, script.as_ptr().cast(), script.len())), script.len() as isize);
        fd
    } else {
        let fd = c!(open(c"p".as_ptr(), O_RDONLY | O_CLOEXEC));
        assert_eq!(c!(unlink(c"p".as_ptr())), 0);
        fd
    };
    let argv = [c"named".as_ptr(), c"--list".as_ptr(), std::ptr::null()];
    let environment: [*const c_char; 1] = [std::ptr::null()];
    if argument(2) == "execve" {
        let path = CString::new(format!("/proc/self/fd/{fd}")).unwrap();
        c!(execve(path.as_ptr(), argv.as_ptr(), environment.as_ptr()));
    } else {
        let flags = AT_EMPTY_PATH;
        c!(syscall(SYS_execveat, fd, c"".as_ptr(), argv.as_ptr(), environment.as_ptr(), flags));
    }
    line(&error());
}

fn main() {
    scenario::run(&[
        ("unnamed", unnamed),
        ("catches", catches),
        ("fails_to_trace", fails_to_trace),
        ("traces", traces),
        ("executes_in_threads", executes_in_threads),
        ("many", many),
        ("killed_in_opens", killed_in_opens),
        ("ends_beside_changes", ends_beside_changes),
        ("receive", receive),
        ("receive_and_fault", receive_and_fault),
        ("take", take),
        ("race", race),
        ("undumpable", undumpable),
        ("compat", compat),
        ("compat_exec", compat_exec),
        ("x32", x32),
        ("ring", ring),
        ("with_ring", with_ring),
        ("with_group", with_group),
        ("with_group_to_receive", with_group_to_receive),
        ("write_memory", write_memory),
        ("shared_root", shared_root),
        ("daemon", daemon_that_writes),
    ]);
}
