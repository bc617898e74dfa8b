//! Read-only syscalls under the conditions in which a tracee could notice their notification path.

use std::io::Write;
use std::sync::atomic::{AtomicU64, Ordering};

static TICKS: AtomicU64 = AtomicU64::new(0);

extern "C" fn tick(_: libc::c_int) {
    TICKS.fetch_add(1, Ordering::Relaxed);
}

/// Makes read-only syscalls while a timer interrupts them; prints how many failed with EINTR.
fn interrupted(ticks: u64) {
    // SAFETY: all-zeroes is a valid sigaction: no flags, so no SA_RESTART.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = tick as *const () as usize;
    let every = libc::timeval { tv_sec: 0, tv_usec: 100 };
    let timer = libc::itimerval { it_interval: every, it_value: every };
    // SAFETY: valid structures, and a handler that only counts.
    unsafe {
        libc::sigaction(libc::SIGALRM, &raw const action, std::ptr::null_mut());
        libc::setitimer(libc::ITIMER_REAL, &raw const timer, std::ptr::null_mut());
    }
    // An absent path, a device that never blocks, a path below a file, and a directory.
    let paths = [(c"absent", libc::ENOENT), (c"/dev/null", 0), (c"/dev/null/x", libc::ENOTDIR), (c"/", 0)];
    let (mut answered, mut other) = (0, 0);
    let mut judge = |answer: i32, expected: i32| {
        let errno = std::io::Error::last_os_error().raw_os_error().filter(|_| answer == -1).unwrap_or(0);
        answered += u32::from(errno == libc::EINTR);
        other += u32::from(errno != libc::EINTR && errno != expected);
    };
    let mut pair = [0; 2];
    // SAFETY: the kernel writes two descriptors there.
    assert_eq!(unsafe { libc::socketpair(libc::AF_UNIX, libc::SOCK_DGRAM, 0, pair.as_mut_ptr()) }, 0);
    let mut byte = 0u8;
    let mut part = libc::iovec { iov_base: (&raw mut byte).cast(), iov_len: 1 };
    // SAFETY: all-zeroes is a valid msghdr.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    (message.msg_iov, message.msg_iovlen) = (&raw mut part, 1);
    while TICKS.load(Ordering::Relaxed) < ticks {
        // Alike, so that nothing tells one from the one before; each has room.
        for _ in 0..4 {
            // SAFETY: the message and the byte outlive the calls.
            let (sent, received) = unsafe {
                (
                    libc::sendmsg(pair[0], &raw const message, 0),
                    libc::recv(pair[1], (&raw mut byte).cast(), 1, 0),
                )
            };
            judge(i32::try_from(sent.min(received)).unwrap(), 0);
        }
        for (path, expected) in paths {
            // SAFETY: a path with its NUL.
            judge(unsafe { libc::access(path.as_ptr(), libc::F_OK) }, expected);
        }
        for (path, expected) in paths {
            // SAFETY: as above.
            let opened = unsafe { libc::open(path.as_ptr(), libc::O_RDONLY) };
            judge(opened, expected);
            if opened >= 0 {
                // SAFETY: the descriptor is used nowhere else.
                unsafe { libc::close(opened) };
            }
        }
    }
    println!("EINTR {answered}, other {other}");
}

/// Makes read-only syscalls without end, with a child that does the same; writes every unexpected error to
/// `report`.
fn forever(report: &str) {
    let mut report = std::fs::OpenOptions::new().append(true).create(true).open(report).unwrap();
    // SAFETY: no thread runs but this one.
    unsafe { libc::fork() };
    println!("running");
    loop {
        // SAFETY: a path with its NUL.
        if unsafe { libc::access(c"absent".as_ptr(), libc::F_OK) } == -1 {
            let error = std::io::Error::last_os_error();
            if error.raw_os_error() != Some(libc::ENOENT) {
                writeln!(report, "{error}").unwrap();
            }
        }
    }
}

/// Asks for the listener of a filter of its own (seccomp_unotify(2)), and prints whether it got one.
fn listen() {
    let allow = libc::sock_filter { code: 6, jt: 0, jf: 0, k: libc::SECCOMP_RET_ALLOW };
    let program = libc::sock_fprog { len: 1, filter: (&raw const allow).cast_mut() };
    // SAFETY: integers, and one instruction that outlives the calls.
    let installed = unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
        libc::syscall(
            libc::SYS_seccomp,
            libc::SECCOMP_SET_MODE_FILTER,
            libc::SECCOMP_FILTER_FLAG_NEW_LISTENER,
            &raw const program,
        )
    };
    match std::io::Error::last_os_error().raw_os_error() {
        _ if installed >= 0 => println!("listener"),
        Some(libc::EBUSY) => println!("busy"),
        error => panic!("{error:?}"),
    }
}

/// Opens a file for reading from two threads, many times.
fn threads() {
    std::fs::write("opened", "").unwrap();
    let open = || (0..50).for_each(|_| drop(std::fs::File::open("opened").unwrap()));
    std::thread::scope(|scope| {
        scope.spawn(open);
        scope.spawn(open);
    });
    println!("opened");
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    match (arguments.next().as_deref(), arguments.next()) {
        (Some("interrupted"), Some(ticks)) => interrupted(ticks.parse().unwrap()),
        (Some("forever"), Some(report)) => forever(&report),
        (Some("listen"), None) => listen(),
        (Some("threads"), None) => threads(),
        _ => panic!("interrupted TICKS | forever REPORT | listen | threads"),
    }
}
