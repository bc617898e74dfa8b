//! truncate, ftruncate, and the calls that overwrite through a descriptor which was opened for appending.

mod support;

use support::legacy::*;
use support::{Case, NOWHERE, case, dir, fails, fd, file, mode, ok, symlink};

const CASES: &[Case] = &[
    case("truncates_and_extends", &["truncate", "ftruncate"])
        .given(|| ["a", "b", "c"].into_iter().for_each(file))
        .when(|| {
            ok(sys!(SYS_truncate, c"a", 0));
            ok(sys!(SYS_truncate, c"b", 100));
            let c = fd(sys!(SYS_open, c"c", O_RDWR));
            ok(sys!(SYS_ftruncate, c, 3));
        })
        .then(
            "a | write | file | file
             b | write | file | file
             c | read,write | file | file",
        ),
    case("truncates_through_a_link", &["truncate"])
        .given(|| {
            file("f");
            symlink("f", "l");
        })
        .when(|| {
            ok(sys!(SYS_truncate, c"l", 0));
        })
        .then(
            "f | write | file | file
             l | existence | symlink | symlink",
        ),
    case("truncates_nothing", &["truncate", "ftruncate"])
        .given(|| {
            dir("d");
            file("f");
        })
        .when(|| {
            fails(ENOENT, sys!(SYS_truncate, c"x", 0));
            fails(EISDIR, sys!(SYS_truncate, c"d", 0));
            fails(ENOTDIR, sys!(SYS_truncate, c"f/x", 0));
            fails(ENOENT, sys!(SYS_truncate, c"", 0));
            fails(EFAULT, sys!(SYS_truncate, NOWHERE, 0));
            let f = fd(sys!(SYS_open, c"f", O_RDONLY));
            fails(EINVAL, sys!(SYS_ftruncate, f, 0));
            fails(EBADF, sys!(SYS_ftruncate, 12345, 0));
        })
        .then(
            "d | existence | directory | directory
             f | read,existence | file | file
             x | existence | absent | absent",
        ),
    case("overwrites_what_its_own_open_has_told", &["fcntl", "fallocate", "ioctl", "pwritev2"])
        .given(|| file("f"))
        .when(|| {
            let f = fd(sys!(SYS_open, c"f", O_RDWR | O_APPEND));
            ok(sys!(SYS_fcntl, f, F_SETFL, O_RDWR));
            ok(sys!(SYS_fallocate, f, 0, 0, 100));
            // FS_IOC_ZERO_RANGE, with struct space_resv; not every filesystem has it.
            let range = [0u64, 0, 4, 0, 0, 0];
            let _ = sys!(SYS_ioctl, f, 0x4030_5839, range.as_ptr());
            let part = iovec { iov_base: c"x".as_ptr().cast_mut().cast(), iov_len: 1 };
            ok(sys!(SYS_pwritev2, f, &raw const part, 1, 0, 0, 0));
        })
        .then("f | read,write | file | file"),
    case("is_refused_to_truncate", &["truncate"])
        .only_user()
        .given(|| {
            file("f");
            mode("f", 0o400);
        })
        .when(|| fails(EACCES, sys!(SYS_truncate, c"f", 0)))
        .then("f | existence | file | file"),
];

fn main() {
    support::run(&[CASES]);
}
