//! utime, utimes, futimesat, utimensat.

mod support;

use support::legacy::*;
use support::{CWD, Case, NOWHERE, case, dir, fails, fd, file, ok, path_only, symlink};

const NOW: usize = 0;

const CASES: &[Case] = &[
    case("sets_times", &["utime", "utimes", "futimesat", "utimensat"])
        .given(|| {
            dir("e");
            ["a", "b", "e/c", "e/d"].into_iter().for_each(file);
        })
        .when(|| {
            let at = path_only(c"e");
            let times = [timeval { tv_sec: 7, tv_usec: 0 }; 2];
            ok(sys!(SYS_utime, c"a", NOW));
            ok(sys!(SYS_utimes, c"b", times.as_ptr()));
            ok(sys!(SYS_futimesat, at, c"c", times.as_ptr()));
            ok(sys!(SYS_utimensat, at, c"d", NOW, 0));
        })
        .then(
            "a | metadata | file | file
             b | metadata | file | file
             e | existence | directory | directory
             e/c | metadata | file | file
             e/d | metadata | file | file",
        ),
    case("sets_the_times_of_a_descriptor", &["futimesat", "utimensat"])
        .given(|| ["a", "b", "c"].into_iter().for_each(file))
        .when(|| {
            ok(sys!(SYS_futimesat, fd(sys!(SYS_open, c"a", O_RDONLY)), 0, NOW));
            ok(sys!(SYS_utimensat, fd(sys!(SYS_open, c"b", O_RDONLY)), 0, NOW, 0));
            match sys!(SYS_utimensat, path_only(c"c"), c"", NOW, AT_EMPTY_PATH) {
                Err(EINVAL) => support::skip("AT_EMPTY_PATH came with Linux 5.8"),
                other => {
                    ok(other);
                }
            }
        })
        .then(
            "a | read,metadata | file | file
             b | read,metadata | file | file
             c | existence,metadata | file | file",
        ),
    case("sets_the_times_of_a_link", &["utimensat"])
        .given(|| {
            file("f");
            symlink("f", "l");
        })
        .when(|| {
            ok(sys!(SYS_utimensat, CWD, c"l", NOW, AT_SYMLINK_NOFOLLOW));
        })
        .then("l | metadata | symlink | symlink"),
    case("sets_times_through_a_link", &["utime", "utimes", "futimesat", "utimensat"])
        .given(|| {
            file("f");
            symlink("f", "l");
        })
        .when(|| {
            ok(sys!(SYS_utime, c"l", NOW));
            ok(sys!(SYS_utimes, c"l", NOW));
            ok(sys!(SYS_futimesat, CWD, c"l", NOW));
            ok(sys!(SYS_utimensat, CWD, c"l", NOW, 0));
        })
        .then(
            "f | metadata | file | file
             l | existence | symlink | symlink",
        ),
    case("sets_no_times", &["utime", "utimes", "futimesat", "utimensat"])
        .given(|| file("f"))
        .when(|| {
            fails(ENOENT, sys!(SYS_utime, c"a", NOW));
            fails(ENOENT, sys!(SYS_utimes, c"b", NOW));
            fails(ENOENT, sys!(SYS_futimesat, CWD, c"c", NOW));
            fails(ENOENT, sys!(SYS_utimensat, CWD, c"d", NOW, 0));
            fails(ENOTDIR, sys!(SYS_utime, c"f/x", NOW));
            fails(ENOENT, sys!(SYS_utime, c"", NOW));
            fails(ENOENT, sys!(SYS_utimensat, CWD, c"", NOW, 0));
            fails(EFAULT, sys!(SYS_utime, NOWHERE, NOW));
            fails(EFAULT, sys!(SYS_utimes, NOWHERE, NOW));
            fails(EFAULT, sys!(SYS_futimesat, CWD, NOWHERE, NOW));
            fails(EFAULT, sys!(SYS_utimensat, CWD, NOWHERE, NOW, 0));
            fails(EFAULT, sys!(SYS_utimensat, CWD, 0, NOW, 0));
        })
        .then(
            "a | existence | absent | absent
             b | existence | absent | absent
             c | existence | absent | absent
             d | existence | absent | absent",
        ),
];

fn main() {
    support::run(&[CASES]);
}
