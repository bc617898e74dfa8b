//! stat, lstat, newfstatat, statx, access, faccessat, faccessat2, statfs.

mod support;

use support::legacy::*;
use support::{CWD, Case, NOWHERE, case, dir, fails, fd, file, ok, path_only, symlink};

/// Space for any answer.
fn space() -> *mut u8 {
    Box::leak(Box::new([0u8; 512])).as_mut_ptr()
}

const PLAIN: &[Case] = &[
    case("each_of_them_asks", &["stat", "lstat", "access", "statfs"])
        .given(|| ["a", "b", "c", "d"].into_iter().for_each(file))
        .when(|| {
            ok(sys!(SYS_stat, c"a", space()));
            ok(sys!(SYS_lstat, c"b", space()));
            ok(sys!(SYS_access, c"c", R_OK));
            ok(sys!(SYS_statfs, c"d", space()));
        })
        .then(
            "a | existence | file | file
             b | existence | file | file
             c | existence | file | file
             d | existence | file | file",
        ),
    case("each_of_them_asks_for_what_is_absent", &["stat", "lstat", "access", "statfs"])
        .when(|| {
            fails(ENOENT, sys!(SYS_stat, c"a", space()));
            fails(ENOENT, sys!(SYS_lstat, c"b", space()));
            fails(ENOENT, sys!(SYS_access, c"c", R_OK));
            fails(ENOENT, sys!(SYS_statfs, c"d", space()));
        })
        .then(
            "a | existence | absent | absent
             b | existence | absent | absent
             c | existence | absent | absent
             d | existence | absent | absent",
        ),
    case("a_file_is_no_directory", &["stat", "lstat", "access", "statfs"])
        .given(|| {
            file("f");
            symlink("f", "l");
        })
        .when(|| {
            fails(ENOTDIR, sys!(SYS_stat, c"f/x", space()));
            fails(ENOTDIR, sys!(SYS_lstat, c"f/", space()));
            fails(ENOTDIR, sys!(SYS_access, c"f/x", F_OK));
            fails(ENOTDIR, sys!(SYS_statfs, c"f/x", space()));
        }),
    case("a_bad_address_and_an_empty_path", &["stat", "lstat", "access", "statfs"]).when(|| {
        for number in [SYS_stat, SYS_lstat, SYS_access, SYS_statfs] {
            fails(EFAULT, sys!(number, NOWHERE, 0));
            fails(ENOENT, sys!(number, c"", 0));
        }
    }),
    case("stat_goes_through_a_link", &["stat", "access", "statfs"])
        .given(|| {
            file("f");
            ["a", "b", "c"].into_iter().for_each(|path| symlink("f", path));
        })
        .when(|| {
            ok(sys!(SYS_stat, c"a", space()));
            ok(sys!(SYS_access, c"b", R_OK));
            ok(sys!(SYS_statfs, c"c", space()));
        })
        .then(
            "a | existence | symlink | symlink
             b | existence | symlink | symlink
             c | existence | symlink | symlink
             f | existence | file | file",
        ),
    case("lstat_does_not", &["lstat"])
        .given(|| {
            file("f");
            symlink("f", "l");
        })
        .when(|| {
            ok(sys!(SYS_lstat, c"l", space()));
        })
        .then("l | existence | symlink | symlink"),
    case("lstat_does_with_a_slash", &["lstat"])
        .given(|| {
            dir("d");
            symlink("d", "l");
        })
        .when(|| {
            ok(sys!(SYS_lstat, c"l/", space()));
        })
        .then(
            "d | existence | directory | directory
             l | existence | symlink | symlink",
        ),
    case("access_is_refused", &["access"])
        .only_user()
        .given(|| {
            file("f");
            support::mode("f", 0o400);
        })
        .when(|| fails(EACCES, sys!(SYS_access, c"f", W_OK)))
        .then("f | existence | file | file"),
    case("a_look_and_a_read_are_both_told", &["stat", "open"])
        .given(|| file("f"))
        .when(|| {
            ok(sys!(SYS_stat, c"f", space()));
            ok(sys!(SYS_open, c"f", O_RDONLY));
        })
        .then("f | read,existence | file | file"),
];

const AT: &[Case] = &[
    case("each_asks_at_a_directory", &["newfstatat", "statx", "faccessat", "faccessat2"])
        .given(|| {
            dir("e");
            ["e/a", "e/b", "e/c", "e/d"].into_iter().for_each(file);
        })
        .when(|| {
            let at = path_only(c"e");
            ok(sys!(SYS_newfstatat, at, c"a", space(), 0));
            ok(sys!(SYS_statx, at, c"b", 0, STATX_BASIC_STATS, space()));
            ok(sys!(SYS_faccessat, at, c"c", R_OK));
            ok(sys!(SYS_faccessat2, at, c"d", R_OK, AT_EACCESS));
        })
        .then(
            "e | existence | directory | directory
             e/a | existence | file | file
             e/b | existence | file | file
             e/c | existence | file | file
             e/d | existence | file | file",
        ),
    case("each_asks_for_what_is_absent", &["newfstatat", "statx", "faccessat", "faccessat2"])
        .when(|| {
            fails(ENOENT, sys!(SYS_newfstatat, CWD, c"a", space(), 0));
            fails(ENOENT, sys!(SYS_statx, CWD, c"b", 0, STATX_BASIC_STATS, space()));
            fails(ENOENT, sys!(SYS_faccessat, CWD, c"c", R_OK));
            fails(ENOENT, sys!(SYS_faccessat2, CWD, c"d", R_OK, AT_EACCESS));
        })
        .then(
            "a | existence | absent | absent
             b | existence | absent | absent
             c | existence | absent | absent
             d | existence | absent | absent",
        ),
    case("each_goes_through_a_link", &["newfstatat", "statx", "faccessat", "faccessat2"])
        .given(|| {
            file("f");
            ["a", "b", "c", "d"].into_iter().for_each(|path| symlink("f", path));
        })
        .when(|| {
            ok(sys!(SYS_newfstatat, CWD, c"a", space(), 0));
            ok(sys!(SYS_statx, CWD, c"b", 0, STATX_BASIC_STATS, space()));
            ok(sys!(SYS_faccessat, CWD, c"c", R_OK));
            ok(sys!(SYS_faccessat2, CWD, c"d", R_OK, 0));
        })
        .then(
            "a | existence | symlink | symlink
             b | existence | symlink | symlink
             c | existence | symlink | symlink
             d | existence | symlink | symlink
             f | existence | file | file",
        ),
    case("a_flag_keeps_each_from_it", &["newfstatat", "statx", "faccessat2"])
        .given(|| {
            file("f");
            ["a", "b", "c"].into_iter().for_each(|path| symlink("f", path));
        })
        .when(|| {
            ok(sys!(SYS_newfstatat, CWD, c"a", space(), AT_SYMLINK_NOFOLLOW));
            ok(sys!(SYS_statx, CWD, c"b", AT_SYMLINK_NOFOLLOW, STATX_BASIC_STATS, space()));
            ok(sys!(SYS_faccessat2, CWD, c"c", F_OK, AT_SYMLINK_NOFOLLOW));
        })
        .then(
            "a | existence | symlink | symlink
             b | existence | symlink | symlink
             c | existence | symlink | symlink",
        ),
    case("a_descriptor_that_is_asked_is_nothing", &["fstat", "newfstatat", "statx", "faccessat2"])
        .given(|| file("f"))
        .when(|| {
            let f = fd(sys!(SYS_open, c"f", O_RDONLY));
            ok(sys!(SYS_fstat, f, space()));
            ok(sys!(SYS_newfstatat, f, c"", space(), AT_EMPTY_PATH));
            ok(sys!(SYS_statx, f, c"", AT_EMPTY_PATH, STATX_BASIC_STATS, space()));
            ok(sys!(SYS_faccessat2, f, c"", R_OK, AT_EMPTY_PATH));
            // A null path is an empty one since Linux 6.11.
            let _ = sys!(SYS_newfstatat, f, 0, space(), AT_EMPTY_PATH);
            let _ = sys!(SYS_statx, f, 0, AT_EMPTY_PATH, STATX_BASIC_STATS, space());
        })
        .then("f | read | file | file"),
    case("the_working_directory_without_a_name", &["newfstatat"])
        .when(|| {
            ok(sys!(SYS_newfstatat, CWD, c"", space(), AT_EMPTY_PATH));
        })
        .then(". | existence | directory | directory"),
    case("an_empty_path_without_the_flag", &["newfstatat", "statx", "faccessat", "faccessat2"]).when(|| {
        fails(ENOENT, sys!(SYS_newfstatat, CWD, c"", space(), 0));
        fails(ENOENT, sys!(SYS_statx, CWD, c"", 0, STATX_BASIC_STATS, space()));
        fails(ENOENT, sys!(SYS_faccessat, CWD, c"", R_OK));
        fails(ENOENT, sys!(SYS_faccessat2, CWD, c"", R_OK, 0));
        fails(EFAULT, sys!(SYS_newfstatat, CWD, NOWHERE, space(), 0));
        fails(EFAULT, sys!(SYS_statx, CWD, NOWHERE, 0, STATX_BASIC_STATS, space()));
        fails(EFAULT, sys!(SYS_faccessat, CWD, NOWHERE, R_OK));
        fails(EFAULT, sys!(SYS_faccessat2, CWD, NOWHERE, R_OK, 0));
    }),
    case("a_file_is_no_directory_to_start_from", &["newfstatat"])
        .given(|| file("f"))
        .when(|| {
            let at = path_only(c"f");
            fails(ENOTDIR, sys!(SYS_newfstatat, at, c"x", space(), 0));
        })
        .then("f | existence | file | file"),
];

fn main() {
    support::run(&[PLAIN, AT]);
}
