//! mkdir, mkdirat, rmdir, unlinkat with AT_REMOVEDIR, chdir, fchdir, getdents, getdents64.

mod support;

use support::legacy::*;
use support::{CWD, Case, NOWHERE, case, dir, fails, fd, file, mode, ok, path_only, symlink};

const MAKE: &[Case] = &[
    case("makes_directories", &["mkdir", "mkdirat"])
        .when(|| {
            ok(sys!(SYS_mkdir, c"a", 0o755));
            let at = path_only(c"a");
            ok(sys!(SYS_mkdirat, at, c"b", 0o755));
            ok(sys!(SYS_mkdirat, CWD, c"c/", 0o755));
        })
        .then(
            "a | write,existence,directory | absent | directory
             a/b | write,directory | absent | directory
             c | write,directory | absent | directory",
        ),
    case("makes_none", &["mkdir", "mkdirat"])
        .given(|| {
            dir("d");
            file("f");
            symlink("nowhere", "l");
        })
        .when(|| {
            fails(EEXIST, sys!(SYS_mkdir, c"d", 0o755));
            fails(EEXIST, sys!(SYS_mkdirat, CWD, c"f", 0o755));
            fails(EEXIST, sys!(SYS_mkdir, c"l", 0o755));
            fails(ENOENT, sys!(SYS_mkdir, c"x/y", 0o755));
            fails(ENOTDIR, sys!(SYS_mkdir, c"f/y", 0o755));
            fails(ENOENT, sys!(SYS_mkdir, c"", 0o755));
            fails(EFAULT, sys!(SYS_mkdir, NOWHERE, 0o755));
            fails(EFAULT, sys!(SYS_mkdirat, CWD, NOWHERE, 0o755));
        })
        .then(
            "d | existence | directory | directory
             f | existence | file | file
             l | existence | symlink | symlink
             x/y | existence | absent | absent",
        ),
    case("is_refused_a_directory", &["mkdir"])
        .only_user()
        .given(|| {
            dir("d");
            mode("d", 0o555);
        })
        .when(|| fails(EACCES, sys!(SYS_mkdir, c"d/e", 0o755)))
        .then("d/e | existence | absent | absent"),
];

const REMOVE: &[Case] = &[
    case("removes_directories", &["rmdir", "unlinkat"])
        .given(|| {
            dir("a");
            dir("b");
            dir("b/c");
        })
        .when(|| {
            ok(sys!(SYS_rmdir, c"a"));
            ok(sys!(SYS_unlinkat, CWD, c"b/c/", AT_REMOVEDIR));
        })
        .then(
            "a | directory,delete | directory | tombstone
             b/c | directory,delete | directory | tombstone",
        ),
    case("removes_what_it_made", &["mkdir", "rmdir"])
        .when(|| {
            ok(sys!(SYS_mkdir, c"d", 0o755));
            ok(sys!(SYS_rmdir, c"d"));
        })
        .then("d | write,directory,delete | absent | tombstone"),
    case("removes_none", &["rmdir", "unlinkat"])
        .given(|| {
            dir("d");
            file("d/f");
            file("f");
            symlink("d", "l");
        })
        .when(|| {
            fails(ENOTEMPTY, sys!(SYS_rmdir, c"d"));
            fails(ENOENT, sys!(SYS_rmdir, c"x"));
            fails(ENOTDIR, sys!(SYS_rmdir, c"f"));
            fails(ENOTDIR, sys!(SYS_unlinkat, CWD, c"l", AT_REMOVEDIR));
            fails(ENOENT, sys!(SYS_rmdir, c""));
            fails(EFAULT, sys!(SYS_rmdir, NOWHERE));
        })
        .then(
            "d | existence | directory | directory
             x | existence | absent | absent",
        ),
];

const GO: &[Case] = &[
    case("goes_there", &["chdir", "fchdir"])
        .given(|| {
            dir("a");
            dir("a/b");
        })
        .when(|| {
            let a = path_only(c"a");
            ok(sys!(SYS_chdir, c"a"));
            ok(sys!(SYS_chdir, c"b"));
            ok(sys!(SYS_fchdir, a));
        })
        .then(
            "a | existence,directory | directory | directory
             a/b | directory | directory | directory",
        ),
    case("goes_through_a_link", &["chdir"])
        .given(|| {
            dir("d");
            symlink("d", "l");
        })
        .when(|| {
            ok(sys!(SYS_chdir, c"l"));
            // Relative to the target of the symlink, not to its directory.
            fails(ENOENT, sys!(SYS_chdir, c"x"));
        })
        .then(
            "d | directory | directory | directory
             d/x | existence | absent | absent
             l | existence | symlink | symlink",
        ),
    case("goes_nowhere", &["chdir", "fchdir"])
        .given(|| file("f"))
        .when(|| {
            let f = path_only(c"f");
            fails(ENOENT, sys!(SYS_chdir, c"x"));
            fails(ENOTDIR, sys!(SYS_chdir, c"f"));
            fails(ENOTDIR, sys!(SYS_fchdir, f));
            fails(EBADF, sys!(SYS_fchdir, 12345));
            fails(ENOENT, sys!(SYS_chdir, c""));
            fails(EFAULT, sys!(SYS_chdir, NOWHERE));
        })
        .then(
            "f | existence | file | file
             x | existence | absent | absent",
        ),
    case("is_refused_to_go", &["chdir"])
        .only_user()
        .given(|| {
            dir("d");
            mode("d", 0o600);
        })
        .when(|| fails(EACCES, sys!(SYS_chdir, c"d")))
        .then("d | existence | directory | directory"),
];

const LIST: &[Case] = &[
    case("lists", &["getdents", "getdents64"])
        .given(|| {
            dir("d");
            file("d/f");
        })
        .when(|| {
            let mut space = [0u8; 4096];
            let d = fd(sys!(SYS_open, c"d", O_RDONLY | O_DIRECTORY));
            ok(sys!(SYS_getdents64, d, space.as_mut_ptr(), 4096));
            ok(sys!(SYS_lseek, d, 0, SEEK_SET));
            ok(sys!(SYS_getdents, d, space.as_mut_ptr(), 4096));
        })
        .then("d | directory | directory | directory"),
    case("lists_no_file", &["getdents64"])
        .given(|| file("f"))
        .when(|| {
            let mut space = [0u8; 4096];
            let f = fd(sys!(SYS_open, c"f", O_RDONLY));
            fails(ENOTDIR, sys!(SYS_getdents64, f, space.as_mut_ptr(), 4096));
            fails(EBADF, sys!(SYS_getdents64, 12345, space.as_mut_ptr(), 4096));
        })
        .then("f | read | file | file"),
];

fn main() {
    support::run(&[MAKE, REMOVE, GO, LIST]);
}
