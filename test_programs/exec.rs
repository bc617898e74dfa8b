//! execve, execveat.

mod support;

use std::ffi::CStr;
use std::fs;

use support::legacy::*;
use support::{
    CWD, Case, NOWHERE, case, dir, fails, fd, file, mode, ok, path_only, program, refused, symlink,
};

/// The arguments that make this program, where it is what is executed, end at once.
fn arguments() -> *const *const c_char {
    let arguments = [c"program".as_ptr(), c"--exit".as_ptr(), std::ptr::null()];
    Box::leak(Box::new(arguments)).as_ptr()
}

/// Nothing of the environment is needed.
const NONE: usize = 0;

fn execve(path: &CStr) -> support::Answer {
    sys!(SYS_execve, path, arguments(), NONE)
}

fn script(path: &str, interpreter: &str) {
    fs::write(path, format!("#!{interpreter} --exit\n")).unwrap();
    mode(path, 0o755);
}

const RUNS: &[Case] = &[
    case("executes", &["execve"])
        .given(|| program("p"))
        .when(|| {
            ok(execve(c"p"));
        })
        .then("p | read,execute | file | file"),
    case("executes_at_a_directory", &["execveat"])
        .given(|| {
            dir("d");
            program("d/p");
        })
        .when(|| {
            ok(sys!(SYS_execveat, path_only(c"d"), c"p", arguments(), NONE, 0));
        })
        .then(
            "d | existence | directory | directory
             d/p | read,execute | file | file",
        ),
    case("executes_a_descriptor", &["execveat"])
        .given(|| program("p"))
        .when(|| {
            ok(sys!(SYS_execveat, path_only(c"p"), c"", arguments(), NONE, AT_EMPTY_PATH));
        })
        .then("p | read,existence,execute | file | file"),
    case("executes_through_a_link", &["execve"])
        .given(|| {
            program("p");
            symlink("p", "l");
        })
        .when(|| {
            ok(execve(c"l"));
        })
        .then(
            "l | existence | symlink | symlink
             p | read,execute | file | file",
        ),
    case("executes_a_script", &["execve"])
        .given(|| {
            program("i");
            script("s", "./i");
        })
        .when(|| {
            ok(execve(c"s"));
        })
        .then(
            "i | read,execute | file | file
             s | read,execute | file | file",
        ),
    case("executes_a_script_of_a_script", &["execve"])
        .given(|| {
            dir("d");
            program("d/i");
            symlink("d/i", "l");
            script("s", "l");
            script("t", "./s");
        })
        .when(|| {
            ok(execve(c"t"));
        })
        .then(
            "d/i | read,execute | file | file
             l | existence | symlink | symlink
             s | read,execute | file | file
             t | read,execute | file | file",
        ),
    case("executes_in_a_child", &["execve"])
        .given(|| {
            dir("d");
            program("d/p");
        })
        .when(|| {
            let child = ok(sys!(SYS_fork));
            if child == 0 {
                ok(sys!(SYS_chdir, c"d"));
                ok(execve(c"./p"));
            }
            support::wait_for(child);
        })
        .then(
            "d | directory | directory | directory
             d/p | read,execute | file | file",
        ),
];

const FAILS: &[Case] = &[
    case("executes_nothing", &["execve", "execveat"])
        .given(|| {
            file("f");
            dir("d");
            fs::write("t", "no program\n").unwrap();
            mode("t", 0o755);
        })
        .when(|| {
            fails(ENOENT, execve(c"x"));
            fails(EACCES, execve(c"f"));
            fails(EACCES, execve(c"d"));
            fails(ENOEXEC, execve(c"t"));
            fails(ENOTDIR, execve(c"f/x"));
            fails(ENOENT, execve(c""));
            fails(EFAULT, sys!(SYS_execve, NOWHERE, arguments(), NONE));
            fails(ENOENT, sys!(SYS_execveat, CWD, c"y", arguments(), NONE, 0));
            fails(ENOENT, sys!(SYS_execveat, CWD, c"", arguments(), NONE, 0));
        })
        .then(
            "d | existence | directory | directory
             f | existence | file | file
             t | existence | file | file
             x | existence | absent | absent
             y | existence | absent | absent",
        ),
    case("does_not_execute_a_link", &["execveat"])
        .given(|| {
            program("p");
            symlink("p", "l");
        })
        .when(|| fails(ELOOP, sys!(SYS_execveat, CWD, c"l", arguments(), NONE, AT_SYMLINK_NOFOLLOW)))
        .then("l | existence | symlink | symlink"),
    case("finds_no_interpreter", &["execve"])
        .given(|| script("s", "./i"))
        .when(|| fails(ENOENT, execve(c"s")))
        .then(
            "i | existence | absent | absent
             s | existence | file | file",
        ),
    case("only_checks", &["execveat"])
        .given(|| program("p"))
        .when(|| {
            // AT_EXECVE_CHECK, Linux 6.14.
            match sys!(SYS_execveat, CWD, c"p", arguments(), NONE, 0x10000) {
                Err(EINVAL) => support::skip("the kernel executes at once"),
                other => {
                    ok(other);
                }
            }
        })
        .then("p | existence | file | file"),
    case("is_busy", &["execve"])
        .given(|| program("p"))
        .when(|| {
            let p = fd(sys!(SYS_open, c"p", O_WRONLY));
            refused(execve(c"p"));
            ok(sys!(SYS_close, p));
        })
        .then("p | write,existence | file | file"),
];

fn main() {
    support::run(&[RUNS, FAILS]);
}
