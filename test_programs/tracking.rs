//! The calls that change what later calls mean, or could hide them: what comes after is seen all the
//! same. clone, clone3, unshare, setns, ptrace, seccomp, prctl, io_uring_setup, the setuid family, capset,
//! landlock_restrict_self, process_vm_writev, getrandom, mmap with MAP_DROPPABLE, memfd_secret.

mod machine;
mod support;

use support::legacy::*;
use support::{Answer, Case, case, fails, fd, file, mode, ok, refused, skip, wait_for};

fn read() {
    ok(sys!(SYS_open, c"f", O_RDONLY));
}

fn make(path: &std::ffi::CStr) {
    ok(sys!(SYS_open, path, O_WRONLY | O_CREAT | O_EXCL, 0o644));
}

/// What a child does while its parent waits.
fn in_child(child: Answer) {
    match child {
        Err(EPERM) => skip("not allowed here"),
        child => match ok(child) {
            0 => make(c"child"),
            child => {
                wait_for(child);
                make(c"parent");
            }
        },
    }
}

fn clone(flags: c_int) -> Answer {
    sys!(SYS_clone, flags | SIGCHLD, 0, 0, 0, 0)
}

fn clone3(flags: c_int) -> Answer {
    let mut arguments = [0u64; 11];
    arguments[0] = u64::try_from(flags).unwrap();
    arguments[4] = 17; // SIGCHLD
    // libc, too, falls back to clone where clone3 is not to be had.
    match sys!(SYS_clone3, arguments.as_ptr(), 88) {
        Err(ENOSYS) => clone(flags),
        other => other,
    }
}

const FAMILY: &str = "child | write | absent | file
                      parent | write | absent | file";

const CLONES: &[Case] = &[
    case("clones", &["clone"]).when(|| in_child(clone(0))).then(FAMILY),
    case("clones_with_clone3", &["clone3"]).when(|| in_child(clone3(0))).then(FAMILY),
    case("clones_untraced", &["clone"]).when(|| in_child(clone(CLONE_UNTRACED))).then(FAMILY),
    case("clones_untraced_with_clone3", &["clone3"]).when(|| in_child(clone3(CLONE_UNTRACED))).then(FAMILY),
    case("clones_with_mounts_of_its_own", &["clone"])
        .only_root()
        .when(|| in_child(clone(CLONE_NEWNS | CLONE_UNTRACED)))
        .then(FAMILY),
];

const NAMESPACES: &[Case] = &[
    case("unshares_its_mounts", &["unshare"])
        .only_root()
        .given(|| file("f"))
        .when(|| {
            if sys!(SYS_unshare, CLONE_NEWNS).is_err() {
                skip("no mount namespaces here");
            }
            read();
        })
        .then("f | read | file | file"),
    case("unshares_its_user", &["unshare"])
        .given(|| file("f"))
        .when(|| {
            if sys!(SYS_unshare, CLONE_NEWUSER | CLONE_NEWNS).is_err() {
                skip("no user namespaces here");
            }
            read();
        })
        .then("f | read | file | file"),
    case("joins_the_namespace_it_is_in", &["setns"])
        .given(|| file("f"))
        .when(|| {
            let mounts = fd(sys!(SYS_open, c"/proc/self/ns/mnt", O_RDONLY));
            let _ = sys!(SYS_setns, mounts, CLONE_NEWNS);
            refused(sys!(SYS_setns, 12345, 0));
        })
        .then(""),
];

const CREDENTIALS: &[Case] = &[
    case(
        "becomes_who_it_is",
        &[
            "setuid",
            "setgid",
            "setreuid",
            "setregid",
            "setresuid",
            "setresgid",
            "setfsuid",
            "setfsgid",
            "setgroups",
            "capset",
            "lsm_set_self_attr",
        ],
    )
    .given(|| file("f"))
    .when(|| {
        let (user, group) = (ok(sys!(SYS_getuid)), ok(sys!(SYS_getgid)));
        let mut header = [0x2008_0522u32, 0];
        let mut sets = [0u32; 6];
        ok(sys!(SYS_capget, header.as_mut_ptr(), sets.as_mut_ptr()));
        ok(sys!(SYS_capset, header.as_mut_ptr(), sets.as_mut_ptr()));
        // No label (Linux 6.8).
        const LSM_SET_SELF_ATTR: i64 = 460;
        let _ = sys!(LSM_SET_SELF_ATTR, 0, 0, 0, 0);
        // Only root may, in some namespaces not even root.
        let _ = sys!(SYS_setgroups, 0, 0);
        ok(sys!(SYS_setfsgid, group));
        ok(sys!(SYS_setfsuid, user));
        ok(sys!(SYS_setregid, group, group));
        ok(sys!(SYS_setreuid, user, user));
        ok(sys!(SYS_setresgid, group, group, group));
        ok(sys!(SYS_setresuid, user, user, user));
        ok(sys!(SYS_setgid, group));
        ok(sys!(SYS_setuid, user));
        read();
    })
    .then("f | read | file | file"),
    case("becomes_someone_who_may_not_read", &["setresuid"])
        .only_root()
        .given(|| {
            file("f");
            mode("f", 0o600);
            // Where the directory is lies beyond what that user may search.
            mode(".", 0o755);
            mode("..", 0o755);
        })
        .when(|| {
            ok(sys!(SYS_setresgid, 65534, 65534, 65534));
            ok(sys!(SYS_setgroups, 0, 0));
            ok(sys!(SYS_setresuid, 65534, 65534, 65534));
            fails(EACCES, sys!(SYS_open, c"f", O_RDONLY));
        })
        .then("f | existence | file | file"),
    case("restricts_itself", &["landlock_restrict_self"])
        .given(|| file("f"))
        .when(|| {
            const READ_FILE: u64 = 1 << 2;
            let handled = READ_FILE;
            let rules = match sys!(SYS_landlock_create_ruleset, &raw const handled, 8, 0) {
                Err(EOPNOTSUPP) => skip("no Landlock here"),
                other => fd(other),
            };
            ok(sys!(SYS_prctl, PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
            ok(sys!(SYS_landlock_restrict_self, rules, 0));
            fails(EACCES, sys!(SYS_open, c"f", O_RDONLY));
        })
        .then("f | existence | file | file"),
    case("creates_what_it_may_not_open", &["landlock_restrict_self"])
        .given(|| file("f"))
        .when(|| {
            const WRITE_FILE: u64 = 1 << 1;
            let handled = WRITE_FILE;
            let rules = match sys!(SYS_landlock_create_ruleset, &raw const handled, 8, 0) {
                Err(EOPNOTSUPP) => skip("no Landlock here"),
                other => fd(other),
            };
            ok(sys!(SYS_prctl, PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
            ok(sys!(SYS_landlock_restrict_self, rules, 0));
            fails(EACCES, sys!(SYS_open, c"f", O_CREAT | O_WRONLY, 0o644));
            fails(EACCES, sys!(SYS_open, c"new", O_CREAT | O_WRONLY, 0o644));
            fails(EEXIST, sys!(SYS_open, c"new", O_CREAT | O_EXCL | O_WRONLY, 0o644));
        })
        .then(
            "f | existence | file | file
             new | write,existence | absent | file",
        ),
];

const OTHERS: &[Case] = &[
    // What is noted of them only if the recording is to be recalled.
    case("gets_random_bytes", &["getrandom", "mmap"])
        .given(|| file("f"))
        .when(|| {
            const MAP_DROPPABLE: i32 = 8;
            let mut bytes = [0_u8; 4];
            ok(sys!(SYS_getrandom, bytes.as_mut_ptr(), bytes.len(), 0));
            let _ = sys!(SYS_mmap, 0, 4096, PROT_READ | PROT_WRITE, MAP_DROPPABLE | MAP_ANONYMOUS, -1, 0);
            ok(sys!(SYS_open, c"f", O_RDONLY));
        })
        .then("f | read | file | file"),
    // A recording refuses it, as where it is disabled.
    case("asks_for_secret_memory", &["memfd_secret"])
        .given(|| file("f"))
        .when(|| {
            let answer = sys!(SYS_memfd_secret, 0);
            assert!(matches!(answer, Ok(_) | Err(ENOSYS)), "{answer:?}");
            ok(sys!(SYS_open, c"f", O_RDONLY));
        })
        .then("f | read | file | file"),
    case("traces_no_one", &["ptrace"])
        .given(|| file("f"))
        .when(|| {
            refused(sys!(SYS_ptrace, PTRACE_ATTACH, 0, 0, 0));
            read();
        })
        .then("f | read | file | file"),
    case("has_a_filter", &["prctl", "seccomp"])
        .given(|| file("f"))
        .when(|| {
            let [load, compare, ret] = [0x20, 0x15, 0x06];
            let number = u32::try_from(SYS_getppid).unwrap();
            let steps = [
                sock_filter { code: load, jt: 0, jf: 0, k: 0 },
                sock_filter { code: compare, jt: 0, jf: 1, k: number },
                sock_filter { code: ret, jt: 0, jf: 0, k: SECCOMP_RET_TRACE },
                sock_filter { code: ret, jt: 0, jf: 0, k: SECCOMP_RET_ALLOW },
            ];
            let program = sock_fprog { len: 4, filter: steps.as_ptr().cast_mut() };
            ok(sys!(SYS_prctl, PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
            ok(sys!(SYS_prctl, PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &raw const program));
            ok(sys!(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &raw const program));
            // There is no tracer, as far as the program knows.
            fails(ENOSYS, sys!(SYS_getppid));
            read();
        })
        .then("f | read | file | file"),
    case("has_a_ring", &["io_uring_setup"])
        .given(|| file("f"))
        .when(|| {
            let mut parameters = [0u32; 30];
            let _ = sys!(SYS_io_uring_setup, 8, parameters.as_mut_ptr());
            read();
        })
        .then("f | read | file | file"),
    case("writes_memory_of_the_tree", &["process_vm_writev"])
        .given(|| file("f"))
        .when(|| {
            let (from, mut to) = ([1u8; 4], [0u8; 4]);
            let local = iovec { iov_base: from.as_ptr().cast_mut().cast(), iov_len: 4 };
            let remote = iovec { iov_base: to.as_mut_ptr().cast(), iov_len: 4 };
            // SAFETY: takes nothing.
            let own = unsafe { getpid() };
            ok(sys!(SYS_process_vm_writev, own, &raw const local, 1, &raw const remote, 1, 0));
            fails(
                ESRCH,
                sys!(SYS_process_vm_writev, c_int::MAX, &raw const local, 1, &raw const remote, 1, 0),
            );
            read();
        })
        .then("f | read | file | file"),
    case("calls_as_a_32_bit_program", &["getpid"])
        .given(|| file("f"))
        .when(|| {
            extern "C" fn unknown(_: c_int) {
                // SAFETY: ends the process.
                unsafe { _exit(support::SKIPPED) }
            }
            let unknown: extern "C" fn(c_int) = unknown;
            // SAFETY: the handler ends the process.
            unsafe { signal(SIGSEGV, unknown as sighandler_t) };
            // getpid
            let answer = machine::compat(20, [0; 3]);
            if answer == -ENOSYS {
                skip("the kernel does not have 32-bit calls");
            }
            read();
        })
        .then(
            "f | read | file | file
             ! | compat_syscall",
        ),
    case("calls_what_does_not_exist", &["seccomp"])
        .given(|| file("f"))
        .when(|| {
            for number in [400, 2000, -1] {
                if sys!(number) != Err(ENOSYS) {
                    skip("the kernel has these calls");
                }
            }
            read();
        })
        .then("f | read | file | file"),
];

fn main() {
    support::run(&[CLONES, NAMESPACES, CREDENTIALS, OTHERS]);
}
