//! Calls that somebody makes name something else at the very moment: `SCENARIO SECONDS`, in a directory that has
//! `open/file` and `shut/file`. Says `leaked` if a call has reached what is in `shut`, or how often it has not.

#[macro_use]
mod scenario;

use std::ffi::{CStr, CString};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, Ordering};
use std::time::{Duration, Instant};
use std::{env, ptr, thread};

use libc::*;

static DONE: AtomicBool = AtomicBool::new(false);
/// Whether anything was to be opened, and was.
static HAS_TRIED: AtomicBool = AtomicBool::new(false);
static HAS_OPENED: AtomicBool = AtomicBool::new(false);
const WORDS: [u32; 2] = [u32::from_ne_bytes(*b"open"), u32::from_ne_bytes(*b"shut")];

/// A path whose first four bytes are one of two words.
#[repr(C)]
struct Path {
    word: AtomicU32,
    rest: [AtomicU8; 60],
}

impl Path {
    const fn new() -> Path {
        Path { word: AtomicU32::new(WORDS[0]), rest: [const { AtomicU8::new(0) }; 60] }
    }

    fn set(&self, rest: &CStr) -> *const c_char {
        for (at, byte) in self.rest.iter().zip(rest.to_bytes_with_nul()) {
            at.store(*byte, Ordering::SeqCst);
        }
        ptr::from_ref(self).cast()
    }
}

static PATH: Path = Path::new();

fn swap(path: &Path) {
    for word in WORDS.iter().cycle() {
        path.word.store(*word, Ordering::Relaxed);
        if DONE.load(Ordering::Relaxed) {
            return;
        }
        // Otherwise the two are seldom on two processors at the right time.
        for _ in 0..20 {
            std::hint::spin_loop();
        }
    }
}

/// Makes attempts until one says that it has reached what it must not, or the time is over, there were some, and something
/// was opened that may be.
fn attempt(mut reaches: impl FnMut() -> bool) {
    const LONGEST: Duration = Duration::from_secs(20);
    const OFTEN: u32 = 11;
    let seconds = env::args().nth(2).and_then(|seconds| seconds.parse().ok()).unwrap_or(1.0);
    let (start, mut times) = (Instant::now(), 0);
    let is_due = || start.elapsed() >= Duration::from_secs_f64(seconds);
    let has_opened_nothing = || HAS_TRIED.load(Ordering::Relaxed) && !HAS_OPENED.load(Ordering::Relaxed);
    let mut leaked = false;
    let is_early = |times| !is_due() || (times < OFTEN || has_opened_nothing()) && start.elapsed() < LONGEST;
    while !leaked && is_early(times) {
        leaked = reaches();
        times += 1;
    }
    DONE.store(true, Ordering::SeqCst);
    println!(
        "{}",
        match times {
            _ if leaked => "leaked",
            _ if has_opened_nothing() => "kept from everything",
            0..OFTEN => "kept seldom",
            _ => "kept often",
        }
    );
}

/// The same, while another thread does something.
fn attempt_while(other: impl Fn() + Send + Sync, reaches: impl FnMut() -> bool) {
    thread::scope(|scope| {
        scope.spawn(&other);
        attempt(reaches);
    });
}

/// The same, while another process does something.
fn attempt_while_child(mut other: impl FnMut(), reaches: impl FnMut() -> bool) {
    let child = scenario::fork(|| {
        loop {
            other();
        }
    });
    attempt(reaches);
    c!(kill(child, SIGKILL));
    c!(waitpid(child, ptr::null_mut(), 0));
}

/// Whether what is open is the secret; closes it.
fn is_secret(fd: c_int) -> bool {
    HAS_TRIED.store(true, Ordering::Relaxed);
    if fd < 0 {
        return false;
    }
    HAS_OPENED.store(true, Ordering::Relaxed);
    let mut bytes = [0u8; 6];
    let count = c!(pread(fd, bytes.as_mut_ptr().cast(), 6, 0));
    c!(close(fd));
    count == 6 && bytes == *b"secret"
}

fn open_at(dirfd: c_int, path: *const c_char, flags: c_int) -> c_int {
    c!(openat(dirfd, path, flags, 0o644))
}

fn read() {
    let path = PATH.set(c"/file");
    attempt_while(|| swap(&PATH), || is_secret(open_at(AT_FDCWD, path, O_RDONLY)));
}

fn how() {
    let path = PATH.set(c"/file");
    let how = [0u64; 3];
    let open = || c!(syscall(SYS_openat2, AT_FDCWD, path, &raw const how, 24));
    attempt_while(|| swap(&PATH), || is_secret(open() as c_int));
}

/// Another thread reads whatever is open.
fn steal() {
    let path = PATH.set(c"/file");
    let stolen = AtomicBool::new(false);
    let look = || {
        for fd in (3..9).cycle() {
            let mut bytes = [0u8; 6];
            if c!(pread(fd, bytes.as_mut_ptr().cast(), 6, 0)) == 6 && bytes == *b"secret" {
                stolen.store(true, Ordering::SeqCst);
            }
            if DONE.load(Ordering::Relaxed) {
                return;
            }
        }
    };
    thread::scope(|scope| {
        scope.spawn(look);
        scope.spawn(|| swap(&PATH));
        attempt(|| is_secret(open_at(AT_FDCWD, path, O_RDONLY)) || stolen.load(Ordering::SeqCst));
    });
}

/// What a change of `shut` or of its file changes.
fn state() -> [Option<[i64; 4]>; 2] {
    [c"shut", c"shut/file"].map(|path| {
        // SAFETY: all-zeroes is a valid stat.
        let mut stat: stat = unsafe { std::mem::zeroed() };
        let is_there = c!(lstat(path.as_ptr(), &raw mut stat)) == 0;
        is_there.then_some([stat.st_mode.into(), stat.st_size, stat.st_mtime, stat.st_mtime_nsec])
    })
}

/// A call that changes what it names.
fn change(rest: &CStr, call: impl Fn(*const c_char)) {
    let (path, before) = (PATH.set(rest), state());
    attempt_while(
        || swap(&PATH),
        || {
            call(path);
            state() != before
        },
    );
}

fn write() {
    change(c"/file", |path| {
        c!(close(open_at(AT_FDCWD, path, O_WRONLY | O_TRUNC)));
    });
}

fn mode() {
    change(c"/file", |path| {
        c!(chmod(path, 0o600));
    });
}

fn times() {
    change(c"/file", |path| {
        c!(utimensat(AT_FDCWD, path, ptr::null(), 0));
    });
}

fn remove() {
    change(c"/file", |path| {
        c!(unlink(path));
        c!(close(open_at(AT_FDCWD, c"open/file".as_ptr(), O_WRONLY | O_CREAT)));
    });
}

fn rename_away() {
    change(c"/file", |path| {
        c!(rename(path, c"open/other".as_ptr()));
        c!(rename(c"open/other".as_ptr(), c"open/file".as_ptr()));
    });
}

fn make() {
    change(c"/new", |path| {
        c!(mkdir(path, 0o755));
        c!(rmdir(c"open/new".as_ptr()));
    });
}

fn make_link() {
    change(c"/new", |path| {
        c!(symlink(c"x".as_ptr(), path));
        c!(unlink(c"open/new".as_ptr()));
    });
}

/// The path is in memory that another process shares.
fn shared() {
    let flags = MAP_SHARED | MAP_ANONYMOUS;
    let memory = c!(mmap(ptr::null_mut(), 4096, PROT_READ | PROT_WRITE, flags, -1, 0));
    assert!(memory != MAP_FAILED);
    // SAFETY: the memory is zeroed, aligned and large enough, and it stays.
    let shared = unsafe { &*memory.cast::<Path>() };
    let path = shared.set(c"/file");
    attempt_while_child(|| swap(shared), || is_secret(open_at(AT_FDCWD, path, O_RDONLY)));
}

/// The path is in a private mapping of a file, to which another process writes.
fn mapped() {
    let fd = open_at(AT_FDCWD, c"open/text".as_ptr(), O_RDWR | O_CREAT);
    assert_eq!(c!(pwrite(fd, c"open/file".as_ptr().cast(), 10, 0)), 10);
    let path = c!(mmap(ptr::null_mut(), 4096, PROT_READ, MAP_PRIVATE, fd, 0));
    assert!(path != MAP_FAILED);
    let mut words = [c"shut", c"open"].into_iter().cycle();
    // With rules, the page becomes one of this process, with either word.
    HAS_OPENED.store(true, Ordering::Relaxed);
    attempt_while_child(
        || {
            let word = words.next().expect("for ever");
            c!(pwrite(fd, word.as_ptr().cast(), 4, 0));
        },
        || is_secret(open_at(AT_FDCWD, path.cast_const().cast(), O_RDONLY)),
    );
}

/// A symlink on the way leads elsewhere.
fn symlinks() {
    let mut targets = [c"../shut", c"../open"].into_iter().cycle();
    c!(symlink(c"../open".as_ptr(), c"open/way".as_ptr()));
    attempt_while_child(
        || {
            c!(symlink(targets.next().expect("for ever").as_ptr(), c"open/new".as_ptr()));
            c!(rename(c"open/new".as_ptr(), c"open/way".as_ptr()));
        },
        || is_secret(open_at(AT_FDCWD, c"open/way/file".as_ptr(), O_RDONLY)),
    );
}

/// A directory on the way is exchanged for a symlink.
fn exchanges() {
    c!(mkdir(c"open/way".as_ptr(), 0o755));
    c!(close(open_at(AT_FDCWD, c"open/way/file".as_ptr(), O_WRONLY | O_CREAT)));
    c!(symlink(c"../shut".as_ptr(), c"open/other".as_ptr()));
    attempt_while_child(
        || {
            let (one, other) = (c"open/way".as_ptr(), c"open/other".as_ptr());
            c!(syscall(SYS_renameat2, AT_FDCWD, one, AT_FDCWD, other, RENAME_EXCHANGE));
        },
        || is_secret(open_at(AT_FDCWD, c"open/way/file".as_ptr(), O_RDONLY)),
    );
}

/// The descriptor of a directory stands for another one.
fn descriptors() {
    c!(dup2(open_at(AT_FDCWD, c"open".as_ptr(), O_PATH | O_DIRECTORY), 100));
    attempt_while(exchange_descriptor, || is_secret(open_at(100, c"file".as_ptr(), O_RDONLY)));
}

/// Exchanges what descriptor 100 stands for.
fn exchange_descriptor() {
    let directories = [c"open", c"shut"].map(|path| open_at(AT_FDCWD, path.as_ptr(), O_PATH | O_DIRECTORY));
    for fd in directories.iter().cycle() {
        c!(dup2(*fd, 100));
        if DONE.load(Ordering::Relaxed) {
            return;
        }
    }
}

/// A directory is made by a name that leads through the descriptor.
fn through() {
    c!(dup2(open_at(AT_FDCWD, c"open".as_ptr(), O_PATH | O_DIRECTORY), 100));
    let before = state();
    attempt_while(exchange_descriptor, || {
        c!(mkdir(c"/proc/self/fd/100/new".as_ptr(), 0o755));
        c!(rmdir(c"open/new".as_ptr()));
        state() != before
    });
}

fn number_of(path: &CStr) -> Option<u64> {
    // SAFETY: all-zeroes is a valid stat.
    let mut stat: stat = unsafe { std::mem::zeroed() };
    (c!(lstat(path.as_ptr(), &raw mut stat)) == 0).then_some(stat.st_ino)
}

/// A file without a name, for which another one is exchanged, gets one, by which a later command could read it.
fn link_descriptor() {
    let secret = open_at(AT_FDCWD, c"shut/file".as_ptr(), O_PATH | O_CLOEXEC);
    let exchange = || {
        while !DONE.load(Ordering::Relaxed) {
            c!(dup2(secret, 100));
            c!(dup2(101, 100));
        }
    };
    let (from, to) = (c"/proc/self/fd/100".as_ptr(), c"open/new".as_ptr());
    attempt_while(exchange, || {
        let unnamed = open_at(AT_FDCWD, c"open".as_ptr(), O_TMPFILE | O_WRONLY | O_CLOEXEC);
        c!(dup2(unnamed, 101));
        c!(close(unnamed));
        c!(linkat(AT_FDCWD, from, AT_FDCWD, to, AT_SYMLINK_FOLLOW));
        let is_secret = number_of(c"open/new").is_some_and(|number| Some(number) == number_of(c"shut/file"));
        c!(unlink(to));
        is_secret
    });
}

/// Makes descriptor 100 that of a file, of a directory and, if it closes, of nothing in turn.
fn exchange_for_a_file(closes: bool, is_enough: impl Fn() -> bool) {
    let [file, directory] =
        [c"open/file", c"shut"].map(|path| open_at(AT_FDCWD, path.as_ptr(), O_PATH | O_CLOEXEC));
    while !is_enough() {
        c!(dup2(file, 100));
        c!(dup2(directory, 100));
        if closes {
            c!(close(100));
            c!(dup2(directory, 100));
        }
    }
}

fn path_through(process: u32, name: &str) -> CString {
    CString::new(format!("/proc/{process}/fd/100/{name}")).expect("it has no null")
}

/// A directory is made by a name that leads through a descriptor, which is seldom one of a directory.
fn absent() {
    let path = path_through(std::process::id(), "new");
    let before = state();
    let exchange = || exchange_for_a_file(true, || DONE.load(Ordering::Relaxed));
    attempt_while(exchange, || {
        c!(mkdir(path.as_ptr(), 0o755));
        state() != before
    });
}

/// A file is opened by a name that leads through such a descriptor of another process.
fn another() {
    let child = scenario::fork(|| {
        // The reader may be ended.
        c!(prctl(PR_SET_PDEATHSIG, SIGKILL));
        exchange_for_a_file(false, || false);
        0
    });
    let path = path_through(child.cast_unsigned(), "file");
    HAS_OPENED.store(true, Ordering::Relaxed);
    attempt(|| is_secret(open_at(AT_FDCWD, path.as_ptr(), O_RDONLY)));
    c!(kill(child, SIGKILL));
    c!(waitpid(child, ptr::null_mut(), 0));
}

/// The mode of a program is changed by the name that procfs has for it in a process that executes another one.
fn programs() {
    let child = scenario::fork(|| {
        c!(prctl(PR_SET_PDEATHSIG, SIGKILL));
        execute_in_turn(c"shut/swaps")
    });
    let path = CString::new(format!("/proc/{child}/exe")).expect("it has no null");
    let before = mode_of(c"shut/swaps");
    attempt(|| {
        c!(chmod(path.as_ptr(), 0o711));
        mode_of(c"shut/swaps") != before
    });
    c!(kill(child, SIGKILL));
    c!(waitpid(child, ptr::null_mut(), 0));
}

/// What the other process of `programs` does: executes this program by one of two names, and that by the other one.
fn turn() {
    let current = std::fs::read_link("/proc/self/exe").expect("it has a program");
    let is_shut = current.ends_with("shut/swaps");
    scenario::end(execute_in_turn(if is_shut { c"open/swaps" } else { c"shut/swaps" }));
}

fn execute_in_turn(program: &CStr) -> c_int {
    let arguments = [program.as_ptr(), c"turn".as_ptr(), ptr::null()];
    c!(execv(program.as_ptr(), arguments.as_ptr()))
}

fn mode_of(path: &CStr) -> u32 {
    // SAFETY: all-zeroes is a valid stat.
    let mut stat: stat = unsafe { std::mem::zeroed() };
    c!(lstat(path.as_ptr(), &raw mut stat));
    stat.st_mode
}

/// Another process, which shares the table of descriptors, exchanges one.
fn table() {
    c!(dup2(open_at(AT_FDCWD, c"open".as_ptr(), O_PATH | O_DIRECTORY), 100));
    let child = c!(syscall(SYS_clone, CLONE_FILES | SIGCHLD, 0, 0, 0, 0)) as pid_t;
    if child == 0 {
        exchange_descriptor();
    }
    attempt(|| is_secret(open_at(100, c"file".as_ptr(), O_RDONLY)));
    c!(kill(child, SIGKILL));
    c!(waitpid(child, ptr::null_mut(), 0));
}

/// The working directory is another one.
fn working_directory() {
    attempt_while(
        || {
            while !DONE.load(Ordering::Relaxed) {
                c!(chdir(c"open".as_ptr()));
                c!(chdir(c"../shut".as_ptr()));
                c!(chdir(c"..".as_ptr()));
            }
        },
        || is_secret(open_at(AT_FDCWD, c"file".as_ptr(), O_RDONLY)),
    );
}

/// The program to execute is another one, which ends with 7.
fn execute() {
    let path = PATH.set(c"/program");
    let arguments = [path, ptr::null()];
    attempt_while(
        || swap(&PATH),
        || {
            // The new process has this memory until it has executed.
            let (mut child, none) = (0, ptr::null::<c_void>());
            let arguments = arguments.as_ptr().cast();
            if c!(posix_spawn(&raw mut child, path, none.cast(), none.cast(), arguments, none.cast())) != 0 {
                return false;
            }
            let mut status = 0;
            c!(waitpid(child, &raw mut status, 0));
            WIFEXITED(status) && WEXITSTATUS(status) == 7
        },
    );
}

/// A socket address on this machine whose port is one of two, which the environment names.
fn ports() -> (sockaddr_in, [u16; 2]) {
    let port = |name: &str| env::var(name).expect("a port").parse::<u16>().expect("a port").to_be();
    let ports = [port("OPEN_PORT"), port("SHUT_PORT")];
    let address = sockaddr_in {
        sin_family: AF_INET as u16,
        sin_port: ports[0],
        sin_addr: in_addr { s_addr: u32::from_ne_bytes([127, 0, 0, 1]) },
        sin_zero: [0; 8],
    };
    (address, ports)
}

fn swap_ports(address: usize, ports: [u16; 2]) {
    for port in ports.into_iter().cycle() {
        let at = (address + std::mem::offset_of!(sockaddr_in, sin_port)) as *mut u16;
        // SAFETY: the address is one that lives longer than this.
        unsafe { at.write_volatile(port) };
        if DONE.load(Ordering::Relaxed) {
            return;
        }
    }
}

fn contact() {
    let (address, ports) = ports();
    let (at, size) = (&raw const address, size_of::<sockaddr_in>() as u32);
    let number = at.addr();
    attempt_while(
        || swap_ports(number, ports),
        || {
            let socket = c!(socket(AF_INET, SOCK_STREAM, 0));
            c!(connect(socket, at.cast(), size));
            let mut peer = address;
            let mut length = size;
            let is_connected = c!(getpeername(socket, (&raw mut peer).cast(), &raw mut length)) == 0;
            c!(close(socket));
            is_connected && peer.sin_port == ports[1]
        },
    );
}

/// Sends datagrams; the caller of this program sees where one arrives.
fn send() {
    let (address, ports) = ports();
    let number = (&raw const address).addr();
    let socket = c!(socket(AF_INET, SOCK_DGRAM, 0));
    // SAFETY: all-zeroes is a valid msghdr.
    let mut message: msghdr = unsafe { std::mem::zeroed() };
    message.msg_name = number as *mut c_void;
    message.msg_namelen = size_of::<sockaddr_in>() as u32;
    attempt_while(
        || swap_ports(number, ports),
        || {
            c!(sendmsg(socket, &raw const message, 0));
            false
        },
    );
}

/// Somebody has this memory who was created by a process that had borrowed it.
fn lend() {
    extern "C" fn swap_on(_: *mut c_void) -> c_int {
        swap(&PATH);
        0
    }
    extern "C" fn create(_: *mut c_void) -> c_int {
        start(swap_on, CLONE_VM | SIGCHLD)
    }
    fn start(entry: extern "C" fn(*mut c_void) -> c_int, flags: c_int) -> c_int {
        const SIZE: usize = 1 << 16;
        let stack = vec![0u128; SIZE / 16].leak();
        let top = stack.as_mut_ptr_range().end.cast();
        i32::from(c!(clone(entry, top, flags, ptr::null_mut())) < 0)
    }
    let path = PATH.set(c"/file");
    assert_eq!(start(create, CLONE_VM | CLONE_VFORK | SIGCHLD), 0);
    attempt(|| is_secret(open_at(AT_FDCWD, path, O_RDONLY)));
}

/// A process that has this memory opens a path, and then executes a program that has another path at the same address.
fn successor() {
    extern "C" fn open_and_execute(_: *mut c_void) -> c_int {
        c!(close(open_at(AT_FDCWD, AT, O_RDONLY)));
        let arguments = [c"swaps".as_ptr(), c"successor".as_ptr(), c"0".as_ptr(), c"".as_ptr(), ptr::null()];
        c!(execv(c"/proc/self/exe".as_ptr(), arguments.as_ptr()))
    }
    const AT: *const c_char = 0x2000_0000 as *const c_char;
    let is_successor = env::args().len() == 4;
    let flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE;
    let page = c!(mmap(AT.cast_mut().cast(), 4096, PROT_READ | PROT_WRITE, flags, -1, 0));
    assert!(page != MAP_FAILED);
    c!(strcpy(page.cast(), if is_successor { c"shut/file" } else { c"open/file" }.as_ptr()));
    if is_successor {
        std::process::exit(if is_secret(open_at(AT_FDCWD, AT, O_RDONLY)) { 7 } else { 0 });
    }
    let mut stack = vec![0u128; 1 << 12];
    let top: *mut c_void = stack.as_mut_ptr_range().end.cast();
    attempt(|| {
        let child = c!(clone(open_and_execute, top, CLONE_VM | CLONE_VFORK | SIGCHLD, ptr::null_mut()));
        let mut status = 0;
        assert_eq!(c!(waitpid(child, &raw mut status, 0)), child);
        WIFEXITED(status) && WEXITSTATUS(status) == 7
    });
}

/// Tries to replace the memory that the arguments are copied to, and then that memory's content.
fn unpin() {
    // There is none before there is another thread.
    thread::spawn(|| ()).join().expect("it does nothing");
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
    let pinned = maps.lines().find(|line| line.contains("memfd:"));
    assert_eq!(pinned.is_some(), env::var_os("IS_ENFORCED").is_some());
    if let Some((start, end)) = pinned.and_then(|line| line.split(' ').next()?.split_once('-')) {
        let [start, end] = [start, end].map(|hex| usize::from_str_radix(hex, 16).expect("an address"));
        let (at, length) = (start as *mut c_void, end - start);
        let flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED;
        let both = PROT_READ | PROT_WRITE;
        assert_eq!(c!(munmap(at, length)), -1);
        assert_eq!(c!(mprotect(at, length, both)), -1);
        assert_eq!(c!(mmap(at, length, both, flags, -1, 0)), MAP_FAILED);
        assert_eq!(
            c!(mremap(at, length, length, MREMAP_MAYMOVE | MREMAP_FIXED, start + (1 << 30))),
            MAP_FAILED
        );
        // A child without it would be ended before it has run.
        c!(madvise(at, length, MADV_DONTFORK));
        let mut status = 0;
        let child = scenario::fork(|| 0);
        c!(waitpid(child, &raw mut status, 0));
        assert!(WIFSIGNALED(status), "{status}");
        c!(madvise(at, length, MADV_DOFORK));
    }
    read();
}

fn main() {
    scenario::run(&[
        ("read", read),
        ("how", how),
        ("steal", steal),
        ("write", write),
        ("mode", mode),
        ("times", times),
        ("remove", remove),
        ("rename", rename_away),
        ("make", make),
        ("link", make_link),
        ("shared", shared),
        ("mapped", mapped),
        ("symlinks", symlinks),
        ("exchanges", exchanges),
        ("descriptors", descriptors),
        ("through", through),
        ("absent", absent),
        ("another", another),
        ("link-descriptor", link_descriptor),
        ("programs", programs),
        ("turn", turn),
        ("table", table),
        ("directory", working_directory),
        ("execute", execute),
        ("contact", contact),
        ("send", send),
        ("lend", lend),
        ("successor", successor),
        ("unpin", unpin),
    ]);
}
