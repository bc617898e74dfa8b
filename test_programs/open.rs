//! open, openat, openat2, creat.

mod support;

use std::sync::atomic::{AtomicUsize, Ordering};

use support::legacy::*;
use support::{CWD, Case, NOWHERE, case, dir, fails, fd, file, mode, ok, path_only, refused, symlink};

const READING: &[Case] = &[
    case("reads", &["open"])
        .given(|| file("f"))
        .when(|| {
            ok(sys!(SYS_open, c"f", O_RDONLY | O_CLOEXEC));
        })
        .then("f | read | file | file"),
    case("reads_at_the_working_directory", &["openat"])
        .given(|| file("f"))
        .when(|| {
            ok(sys!(SYS_openat, CWD, c"./f", O_RDONLY));
        })
        .then("f | read | file | file"),
    case("reads_at_a_directory", &["open", "openat"])
        .given(|| {
            dir("d");
            file("d/f");
        })
        .when(|| {
            let at = path_only(c"d");
            ok(sys!(SYS_openat, at, c"f", O_RDONLY));
        })
        .then(
            "d | existence | directory | directory
             d/f | read | file | file",
        ),
    case("reads_by_an_absolute_path_whatever_the_descriptor", &["openat", "getcwd"])
        .given(|| file("f"))
        .when(|| {
            let mut path = std::env::current_dir().unwrap().into_os_string().into_encoded_bytes();
            path.extend_from_slice(b"/f\0");
            ok(sys!(SYS_openat, 12345, path.as_ptr(), O_RDONLY));
        })
        .then("f | read | file | file"),
    case("a_bad_descriptor_names_nothing", &["openat"])
        .given(|| file("f"))
        .when(|| fails(EBADF, sys!(SYS_openat, 12345, c"f", O_RDONLY))),
    case("an_absent_file", &["open"])
        .when(|| fails(ENOENT, sys!(SYS_open, c"f", O_RDONLY)))
        .then("f | existence | absent | absent"),
    case("an_absent_directory", &["open"])
        .when(|| {
            fails(ENOENT, sys!(SYS_open, c"d/f", O_RDONLY));
            fails(ENOENT, sys!(SYS_open, c"e/./g/..//h", O_RDONLY));
        })
        .then(
            "d/f | existence | absent | absent
             e/g | existence | absent | absent",
        ),
    case("a_file_is_no_directory", &["open"]).given(|| file("f")).when(|| {
        fails(ENOTDIR, sys!(SYS_open, c"f/x", O_RDONLY));
        fails(ENOTDIR, sys!(SYS_open, c"f", O_RDONLY | O_DIRECTORY));
        fails(ENOTDIR, sys!(SYS_open, c"f/", O_RDONLY));
    }),
    case("a_bad_address", &["open", "openat", "creat", "openat2"]).when(|| {
        fails(EFAULT, sys!(SYS_open, NOWHERE, O_RDONLY));
        fails(EFAULT, sys!(SYS_openat, CWD, NOWHERE, O_RDWR | O_CREAT, 0o644));
        fails(EFAULT, sys!(SYS_creat, NOWHERE, 0o644));
        fails(EFAULT, sys!(SYS_openat2, CWD, c"f", NOWHERE, 24));
    }),
    case("an_empty_path", &["open", "openat"]).when(|| {
        fails(ENOENT, sys!(SYS_open, c"", O_RDONLY));
        fails(ENOENT, sys!(SYS_openat, CWD, c"", O_RDWR | O_CREAT, 0o644));
    }),
    case("a_path_that_is_too_long", &["open"]).when(|| {
        let path = ["x/".repeat(2500), "\0".to_owned()].concat();
        fails(ENAMETOOLONG, sys!(SYS_open, path.as_ptr(), O_RDONLY));
    }),
    case("refused_reading", &["open"])
        .only_user()
        .given(|| {
            file("f");
            mode("f", 0);
        })
        .when(|| fails(EACCES, sys!(SYS_open, c"f", O_RDONLY)))
        .then("f | existence | file | file"),
    case("through_dots_and_slashes", &["open"])
        .given(|| {
            dir("d");
            file("f");
        })
        .when(|| {
            ok(sys!(SYS_open, c"./d//.././f", O_RDONLY));
        })
        .then("f | read | file | file"),
    case("a_directory", &["open"])
        .given(|| dir("d"))
        .when(|| {
            ok(sys!(SYS_open, c"d", O_RDONLY));
        })
        .then("d | directory | directory | directory"),
    case("a_directory_with_a_slash", &["open"])
        .given(|| dir("d"))
        .when(|| {
            ok(sys!(SYS_open, c"d/", O_RDONLY | O_DIRECTORY));
        })
        .then("d | directory | directory | directory"),
    case("the_working_directory", &["open"])
        .when(|| {
            ok(sys!(SYS_open, c".", O_RDONLY | O_DIRECTORY));
        })
        .then(". | directory | directory | directory"),
    case("a_path_only", &["open"])
        .given(|| file("f"))
        .when(|| {
            // O_PATH beats what else is said.
            ok(sys!(SYS_open, c"f", O_PATH | O_RDWR | O_CREAT | O_TRUNC, 0o644));
        })
        .then("f | existence | file | file"),
    case("access_mode_three_reads_nothing", &["open"])
        .given(|| file("f"))
        .when(|| {
            ok(sys!(SYS_open, c"f", O_ACCMODE));
        })
        .then("f | existence | file | file"),
    case("a_fifo", &["open"])
        .given(|| {
            ok(sys!(SYS_mknod, c"p", S_IFIFO | 0o644, 0));
        })
        .when(|| {
            ok(sys!(SYS_open, c"p", O_RDONLY | O_NONBLOCK));
        })
        .then("p | read | fifo | fifo"),
];

const WRITING: &[Case] = &[
    case("writes", &["open"])
        .given(|| file("f"))
        .when(|| {
            let f = fd(sys!(SYS_open, c"f", O_WRONLY));
            ok(sys!(SYS_write, f, c"x", 1));
        })
        .then("f | write | file | file"),
    case("reads_and_writes", &["openat"])
        .given(|| file("f"))
        .when(|| {
            ok(sys!(SYS_openat, CWD, c"f", O_RDWR));
        })
        .then("f | read,write | file | file"),
    case("appends", &["open"])
        .given(|| file("f"))
        .when(|| {
            let f = fd(sys!(SYS_open, c"f", O_WRONLY | O_APPEND));
            ok(sys!(SYS_write, f, c"x", 1));
        })
        .then("f | write | file | file"),
    case("creates", &["open"])
        .when(|| {
            ok(sys!(SYS_open, c"f", O_WRONLY | O_CREAT, 0o644));
        })
        .then("f | write | absent | file"),
    case("creates_for_reading", &["open"])
        .when(|| {
            ok(sys!(SYS_open, c"f", O_RDONLY | O_CREAT, 0o644));
        })
        .then("f | read,write | absent | file"),
    case("creates_what_is_there_for_reading", &["open"])
        .given(|| file("f"))
        .when(|| {
            ok(sys!(SYS_open, c"f", O_RDONLY | O_CREAT, 0o644));
        })
        .then("f | read | file | file"),
    case("creates_exclusively", &["openat"])
        .when(|| {
            ok(sys!(SYS_openat, CWD, c"f", O_WRONLY | O_CREAT | O_EXCL, 0o644));
        })
        .then("f | write | absent | file"),
    case("creates_exclusively_what_is_there", &["open"])
        .given(|| file("f"))
        .when(|| fails(EEXIST, sys!(SYS_open, c"f", O_WRONLY | O_CREAT | O_EXCL, 0o644)))
        .then("f | existence | file | file"),
    case("creates_in_an_absent_directory", &["open"])
        .when(|| fails(ENOENT, sys!(SYS_open, c"d/f", O_WRONLY | O_CREAT, 0o644)))
        .then("d/f | existence | absent | absent"),
    case("truncates", &["open"])
        .given(|| file("f"))
        .when(|| {
            ok(sys!(SYS_open, c"f", O_WRONLY | O_TRUNC));
        })
        .then("f | write | file | file"),
    case("truncates_while_reading", &["open"])
        .given(|| file("f"))
        .when(|| {
            ok(sys!(SYS_open, c"f", O_RDONLY | O_TRUNC));
        })
        .then("f | read,write | file | file"),
    case("creat_makes_a_file", &["creat"])
        .when(|| {
            ok(sys!(SYS_creat, c"f", 0o644));
        })
        .then("f | write | absent | file"),
    case("creat_truncates", &["creat"])
        .given(|| file("f"))
        .when(|| {
            ok(sys!(SYS_creat, c"f", 0o644));
        })
        .then("f | write | file | file"),
    case("a_directory_can_not_be_written", &["open", "creat"])
        .given(|| dir("d"))
        .when(|| {
            fails(EISDIR, sys!(SYS_open, c"d", O_WRONLY));
            fails(EISDIR, sys!(SYS_creat, c"d", 0o644));
        })
        .then("d | existence | directory | directory"),
    case("refused_writing", &["open"])
        .only_user()
        .given(|| {
            file("f");
            mode("f", 0o400);
        })
        .when(|| fails(EACCES, sys!(SYS_open, c"f", O_RDWR | O_TRUNC)))
        .then("f | existence | file | file"),
    case("refused_creating", &["open"])
        .only_user()
        .given(|| {
            dir("d");
            mode("d", 0o555);
        })
        .when(|| fails(EACCES, sys!(SYS_open, c"d/f", O_WRONLY | O_CREAT, 0o644)))
        .then("d/f | existence | absent | absent"),
    case("a_temporary_file_without_a_name", &["openat"])
        .when(|| {
            ok(sys!(SYS_openat, CWD, c".", O_TMPFILE | O_RDWR, 0o644));
        })
        .then(". | directory | directory | directory"),
    case("a_temporary_file_gets_a_name", &["openat", "linkat"])
        .given(|| dir("d"))
        .when(|| {
            let f = fd(sys!(SYS_openat, CWD, c"d", O_TMPFILE | O_WRONLY, 0o644));
            let path = std::ffi::CString::new(format!("/proc/self/fd/{f}")).unwrap();
            ok(sys!(SYS_linkat, CWD, path.as_c_str(), CWD, c"d/f", AT_SYMLINK_FOLLOW));
        })
        .then(
            "d | directory | directory | directory
             d/f | write | absent | file",
        ),
    case("a_temporary_file_gets_a_name_by_its_descriptor", &["openat", "linkat"])
        .only_root()
        .given(|| dir("d"))
        .when(|| {
            let f = fd(sys!(SYS_openat, CWD, c"d", O_TMPFILE | O_WRONLY, 0o644));
            ok(sys!(SYS_linkat, f, c"", CWD, c"d/f", AT_EMPTY_PATH));
        })
        .then(
            "d | directory | directory | directory
             d/f | write | absent | file",
        ),
    case("a_temporary_file_for_reading_is_refused", &["openat"])
        .when(|| fails(EINVAL, sys!(SYS_openat, CWD, c".", O_TMPFILE | O_RDONLY, 0o644)))
        .then(". | existence | directory | directory"),
    case("through_magic_links", &["open"])
        .given(|| file("f"))
        .when(|| {
            let f = path_only(c"f");
            let path = std::ffi::CString::new(format!("/proc/self/fd/{f}")).unwrap();
            ok(sys!(SYS_open, path.as_c_str(), O_WRONLY));
            ok(sys!(SYS_open, c"/proc/thread-self/cwd/f", O_RDONLY));
        })
        .then("f | read,write,existence | file | file"),
];

const LINKS: &[Case] = &[
    case("through_a_link", &["open"])
        .given(|| {
            file("f");
            symlink("f", "l");
        })
        .when(|| {
            ok(sys!(SYS_open, c"l", O_RDONLY));
        })
        .then(
            "f | read | file | file
             l | existence | symlink | symlink",
        ),
    case("through_links_to_links_and_directories", &["open"])
        .given(|| {
            dir("d");
            file("d/f");
            symlink("d", "a");
            symlink("a/f", "b");
            symlink("b", "c");
        })
        .when(|| {
            ok(sys!(SYS_open, c"c", O_RDONLY));
        })
        .then(
            "a | existence | symlink | symlink
             b | existence | symlink | symlink
             c | existence | symlink | symlink
             d/f | read | file | file",
        ),
    case("not_through_a_link", &["open"])
        .given(|| {
            file("f");
            symlink("f", "l");
        })
        .when(|| {
            fails(ELOOP, sys!(SYS_open, c"l", O_RDONLY | O_NOFOLLOW));
            fails(EEXIST, sys!(SYS_open, c"l", O_WRONLY | O_CREAT | O_EXCL, 0o644));
        })
        .then("l | existence | symlink | symlink"),
    case("a_link_itself", &["open"])
        .given(|| symlink("f", "l"))
        .when(|| {
            ok(sys!(SYS_open, c"l", O_PATH | O_NOFOLLOW));
        })
        .then("l | existence | symlink | symlink"),
    case("through_a_link_and_a_slash", &["open"])
        .given(|| {
            dir("d");
            symlink("d", "l");
        })
        .when(|| {
            ok(sys!(SYS_open, c"l/", O_RDONLY | O_NOFOLLOW | O_DIRECTORY));
        })
        .then(
            "d | directory | directory | directory
             l | existence | symlink | symlink",
        ),
    case("a_dangling_link", &["open"])
        .given(|| symlink("f", "l"))
        .when(|| fails(ENOENT, sys!(SYS_open, c"l", O_RDONLY)))
        .then(
            "f | existence | absent | absent
             l | existence | symlink | symlink",
        ),
    case("creates_through_a_dangling_link", &["open"])
        .given(|| {
            dir("d");
            symlink("d/f", "l");
        })
        .when(|| {
            ok(sys!(SYS_open, c"l", O_WRONLY | O_CREAT, 0o644));
        })
        .then(
            "d/f | write | absent | file
             l | existence | symlink | symlink",
        ),
    case("writes_through_a_link", &["open"])
        .given(|| {
            file("f");
            symlink("f", "l");
        })
        .when(|| {
            ok(sys!(SYS_open, c"l", O_WRONLY | O_TRUNC));
        })
        .then(
            "f | write | file | file
             l | existence | symlink | symlink",
        ),
    case("a_loop_of_links", &["open"])
        .given(|| {
            symlink("b", "a");
            symlink("a", "b");
        })
        .when(|| fails(ELOOP, sys!(SYS_open, c"a", O_RDONLY)))
        .then(
            "a | existence | symlink | symlink
             b | existence | symlink | symlink",
        ),
];

#[repr(C)]
struct How {
    flags: u64,
    mode: u64,
    resolve: u64,
    tail: u64,
}

fn openat2(dirfd: c_int, path: &std::ffi::CStr, flags: c_int, resolve: u64) -> support::Answer {
    let mode = if flags & O_CREAT == 0 { 0 } else { 0o644 };
    let how = How { flags: flags as u64, mode, resolve, tail: 0 };
    sys!(SYS_openat2, dirfd, path, &raw const how, 32)
}

const HOW: &[Case] = &[
    case("how_reads", &["openat2"])
        .given(|| file("f"))
        .when(|| {
            ok(openat2(CWD, c"f", O_RDONLY, 0));
        })
        .then("f | read | file | file"),
    case("how_creates", &["openat2"])
        .when(|| {
            ok(openat2(CWD, c"f", O_RDWR | O_CREAT, 0));
        })
        .then("f | read,write | absent | file"),
    case("how_fails", &["openat2"])
        .when(|| fails(ENOENT, openat2(CWD, c"f", O_RDONLY, 0)))
        .then("f | existence | absent | absent"),
    case("how_of_a_wrong_size", &["openat2"]).given(|| file("f")).when(|| {
        let how = How { flags: 0, mode: 0, resolve: 0, tail: 1 };
        fails(EINVAL, sys!(SYS_openat2, CWD, c"f", &raw const how, 16));
        fails(E2BIG, sys!(SYS_openat2, CWD, c"f", &raw const how, 32));
    }),
    case("how_beneath", &["openat2"])
        .given(|| {
            dir("d");
            file("d/f");
        })
        .when(|| {
            let at = path_only(c"d");
            ok(openat2(at, c"f", O_RDONLY, RESOLVE_BENEATH));
        })
        .then(
            "d | existence | directory | directory
             d/f | read | file | file",
        ),
    case("how_not_beneath", &["openat2"])
        .given(|| {
            dir("d");
            file("f");
        })
        .when(|| {
            let at = path_only(c"d");
            fails(EXDEV, openat2(at, c"../f", O_RDWR, RESOLVE_BENEATH));
        })
        .then("d | existence | directory | directory"),
    case("how_in_another_root", &["openat2"])
        .given(|| {
            dir("d");
            dir("d/e");
            file("d/e/f");
            symlink("/e/f", "d/l");
        })
        .when(|| {
            let at = path_only(c"d");
            ok(openat2(at, c"/../../l", O_RDONLY, RESOLVE_IN_ROOT));
            ok(openat2(at, c"..", O_RDONLY, RESOLVE_IN_ROOT));
        })
        .then(
            "d | existence,directory | directory | directory
             d/e/f | read | file | file
             d/l | existence | symlink | symlink",
        ),
    case("how_in_another_root_in_a_circle", &["openat2"])
        .given(|| {
            dir("d");
            symlink("/l", "d/l");
        })
        .when(|| {
            let at = path_only(c"d");
            fails(ELOOP, openat2(at, c"l", O_RDONLY, RESOLVE_IN_ROOT));
        })
        .then(
            "d | existence | directory | directory
             d/l | existence | symlink | symlink",
        ),
    case("how_without_links", &["openat2"])
        .given(|| {
            file("f");
            symlink("f", "l");
        })
        .when(|| fails(ELOOP, openat2(CWD, c"l", O_RDONLY, RESOLVE_NO_SYMLINKS)))
        .then("l | existence | symlink | symlink"),
    case("how_with_a_flag_that_does_not_exist", &["openat2"])
        .given(|| file("f"))
        .when(|| refused(openat2(CWD, c"f", O_RDONLY | 1 << 29, 0)))
        .then("f | existence | file | file"),
];

const DIRECTORIES: &[Case] = &[
    case("after_chdir", &["chdir", "open"])
        .given(|| {
            dir("d");
            file("d/f");
        })
        .when(|| {
            ok(sys!(SYS_chdir, c"d"));
            ok(sys!(SYS_open, c"f", O_RDONLY));
            fails(ENOENT, sys!(SYS_open, c"../f", O_RDONLY));
        })
        .then(
            "d | directory | directory | directory
             d/f | read | file | file
             f | existence | absent | absent",
        ),
    case("in_a_thread_that_went_elsewhere", &["unshare", "chdir", "open"])
        .given(|| {
            dir("d");
            file("d/f");
            file("f");
        })
        .when(|| {
            let thread = std::thread::spawn(|| {
                ok(sys!(SYS_unshare, CLONE_FS));
                ok(sys!(SYS_chdir, c"d"));
                ok(sys!(SYS_open, c"f", O_RDONLY));
            });
            thread.join().unwrap();
            ok(sys!(SYS_open, c"f", O_WRONLY));
        })
        .then(
            "d | directory | directory | directory
             d/f | read | file | file
             f | write | file | file",
        ),
    case("after_another_thread_went_elsewhere", &["chdir", "access", "open"])
        .given(|| {
            dir("d");
            file("d/f");
            file("g");
        })
        .when(|| {
            const TURNS: usize = 40;
            static TURN: AtomicUsize = AtomicUsize::new(0);
            let wait = |turn| {
                while TURN.load(Ordering::SeqCst) != turn {
                    std::thread::yield_now();
                }
            };
            let thread = std::thread::spawn(move || {
                for at in 0..TURNS {
                    wait(2 * at + 1);
                    ok(sys!(SYS_chdir, [c"d", c".."][at % 2]));
                    TURN.fetch_add(1, Ordering::SeqCst);
                }
            });
            for at in 0..TURNS {
                fails(ENOENT, sys!(SYS_access, c"n", F_OK));
                TURN.fetch_add(1, Ordering::SeqCst);
                wait(2 * at + 2);
                ok(sys!(SYS_open, [c"f", c"g"][at % 2], O_RDONLY));
            }
            thread.join().unwrap();
        })
        .then(
            ". | directory | directory | directory
             d | directory | directory | directory
             d/f | read | file | file
             d/n | existence | absent | absent
             g | read | file | file
             n | existence | absent | absent",
        ),
    case("in_a_child_that_went_elsewhere", &["chdir", "open"])
        .given(|| {
            dir("d");
            file("d/f");
            file("f");
        })
        .when(|| {
            let child = ok(sys!(SYS_fork));
            if child == 0 {
                ok(sys!(SYS_chdir, c"d"));
                ok(sys!(SYS_open, c"f", O_RDONLY));
                return;
            }
            support::wait_for(child);
            ok(sys!(SYS_open, c"f", O_WRONLY));
        })
        .then(
            "d | directory | directory | directory
             d/f | read | file | file
             f | write | file | file",
        ),
];

/// Signals that come until one has come in time.
fn ticking(handler: extern "C" fn(c_int), flags: c_int) {
    let tick = timeval { tv_sec: 0, tv_usec: 20_000 };
    let timer = itimerval { it_interval: tick, it_value: tick };
    // SAFETY: a handler that makes system calls alone; structures that live long enough.
    unsafe {
        let mut action: sigaction = std::mem::zeroed();
        action.sa_sigaction = handler as sighandler_t;
        action.sa_flags = flags;
        sigaction(SIGALRM, &raw const action, std::ptr::null_mut());
    }
    ok(sys!(SYS_setitimer, ITIMER_REAL, &raw const timer, 0));
}

extern "C" fn nothing(_: c_int) {}

/// Lets an open for writing find a reader.
extern "C" fn come_to_read(_: c_int) {
    let _ = sys!(SYS_open, c"p", O_RDONLY | O_NONBLOCK);
}

const SIGNALS: &[Case] = &[
    case("is_interrupted", &["open"])
        .given(|| {
            ok(sys!(SYS_mknod, c"p", S_IFIFO | 0o644, 0));
        })
        .when(|| {
            // As the call ends the kernel has not decided yet whether it begins again: both tell nothing.
            ticking(nothing, 0);
            fails(EINTR, sys!(SYS_open, c"p", O_WRONLY));
        }),
    case("is_interrupted_and_begins_again", &["open"])
        .given(|| {
            ok(sys!(SYS_mknod, c"p", S_IFIFO | 0o644, 0));
        })
        .when(|| {
            ticking(come_to_read, SA_RESTART);
            ok(sys!(SYS_open, c"p", O_WRONLY));
        })
        .then("p | read,write | fifo | fifo"),
];

fn main() {
    support::run(&[READING, WRITING, LINKS, HOW, DIRECTORIES, SIGNALS]);
}
