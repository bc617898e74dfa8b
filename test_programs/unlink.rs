//! unlink, unlinkat.

mod support;

use support::legacy::*;
use support::{CWD, Case, NOWHERE, case, dir, fails, fd, file, hard_link, mode, ok, path_only, symlink};

const CASES: &[Case] = &[
    case("removes_files", &["unlink", "unlinkat"])
        .given(|| {
            dir("d");
            ["a", "b", "d/c"].into_iter().for_each(file);
        })
        .when(|| {
            let at = path_only(c"d");
            ok(sys!(SYS_unlink, c"a"));
            ok(sys!(SYS_unlinkat, CWD, c"b", 0));
            ok(sys!(SYS_unlinkat, at, c"c", 0));
        })
        .then(
            "a | delete | file | tombstone
             b | delete | file | tombstone
             d | existence | directory | directory
             d/c | delete | file | tombstone",
        ),
    case("removes_a_link_and_not_its_target", &["unlink"])
        .given(|| {
            file("f");
            symlink("f", "l");
        })
        .when(|| {
            ok(sys!(SYS_unlink, c"l"));
        })
        .then("l | delete | symlink | tombstone"),
    case("removes_one_of_two_names", &["unlink"])
        .given(|| {
            file("f");
            hard_link("f", "g");
        })
        .when(|| {
            ok(sys!(SYS_unlink, c"f"));
        })
        .then("f | delete | file | tombstone"),
    case("removes_through_a_link", &["unlink"])
        .given(|| {
            dir("d");
            file("d/f");
            symlink("d", "l");
        })
        .when(|| {
            ok(sys!(SYS_unlink, c"l/f"));
        })
        .then(
            "d/f | delete | file | tombstone
             l | existence | symlink | symlink",
        ),
    case("removes_a_socket_and_a_fifo", &["unlink"])
        .given(|| {
            ok(sys!(SYS_mknod, c"p", S_IFIFO | 0o644, 0));
            ok(sys!(SYS_mknod, c"s", S_IFSOCK | 0o644, 0));
        })
        .when(|| {
            ok(sys!(SYS_unlink, c"p"));
            ok(sys!(SYS_unlink, c"s"));
        })
        .then(
            "p | delete | fifo | tombstone
             s | delete | socket | tombstone",
        ),
    case("removes_what_it_made", &["open", "unlink"])
        .when(|| {
            ok(sys!(SYS_open, c"f", O_WRONLY | O_CREAT | O_EXCL, 0o600));
            ok(sys!(SYS_unlink, c"f"));
        })
        .then("f | write,delete | absent | tombstone"),
    case("makes_anew_what_it_removed", &["open", "unlink"])
        .given(|| file("f"))
        .when(|| {
            ok(sys!(SYS_unlink, c"f"));
            ok(sys!(SYS_open, c"f", O_WRONLY | O_CREAT | O_EXCL, 0o600));
        })
        .then("f | write,delete | file | file"),
    case("writes_what_it_removed", &["open", "unlink"])
        .given(|| file("f"))
        .when(|| {
            let f = fd(sys!(SYS_open, c"f", O_WRONLY));
            ok(sys!(SYS_unlink, c"f"));
            ok(sys!(SYS_write, f, c"x", 1));
        })
        .then("f | write,delete | file | tombstone"),
    case("removes_nothing", &["unlink", "unlinkat"])
        .given(|| {
            dir("d");
            file("f");
        })
        .when(|| {
            fails(ENOENT, sys!(SYS_unlink, c"x"));
            fails(EISDIR, sys!(SYS_unlink, c"d"));
            fails(EISDIR, sys!(SYS_unlinkat, CWD, c"d", 0));
            fails(ENOTDIR, sys!(SYS_unlink, c"f/x"));
            fails(ENOTDIR, sys!(SYS_unlink, c"f/"));
            fails(ENOENT, sys!(SYS_unlink, c""));
            fails(EFAULT, sys!(SYS_unlink, NOWHERE));
            fails(EFAULT, sys!(SYS_unlinkat, CWD, NOWHERE, 0));
            fails(EBADF, sys!(SYS_unlinkat, 12345, c"f", 0));
        })
        .then(
            "d | existence | directory | directory
             x | existence | absent | absent",
        ),
    case("is_refused_to_remove", &["unlink"])
        .only_user()
        .given(|| {
            dir("d");
            file("d/f");
            mode("d", 0o555);
        })
        .when(|| fails(EACCES, sys!(SYS_unlink, c"d/f")))
        .then("d/f | existence | file | file"),
];

fn main() {
    support::run(&[CASES]);
}
