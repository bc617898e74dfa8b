//! chmod, fchmod, fchmodat, fchmodat2, chown, fchown, lchown, fchownat.

mod support;

use support::legacy::*;
use support::{CWD, Case, NOWHERE, case, dir, fails, fd, file, ok, path_only, symlink};

const SYS_FCHMODAT2: c_long = 452;
/// An owner or group that stays as it is.
const SAME: c_int = -1;

const CHMOD: &[Case] = &[
    case("changes_modes", &["chmod", "fchmod", "fchmodat", "fchmodat2"])
        .given(|| {
            dir("e");
            ["a", "b", "e/c"].into_iter().for_each(file);
        })
        .when(|| {
            let (at, b) = (path_only(c"e"), fd(sys!(SYS_open, c"b", O_RDONLY)));
            ok(sys!(SYS_chmod, c"a", 0o600));
            ok(sys!(SYS_fchmod, b, 0o600));
            ok(sys!(SYS_fchmodat, at, c"c", 0o600));
        })
        .then(
            "a | metadata | file | file
             b | read,metadata | file | file
             e | existence | directory | directory
             e/c | metadata | file | file",
        ),
    case("changes_modes_with_flags", &["fchmodat2"])
        .given(|| {
            ["a", "b"].into_iter().for_each(file);
            symlink("a", "l");
        })
        .when(|| {
            ok(sys!(SYS_FCHMODAT2, CWD, c"a", 0o600, 0));
            ok(sys!(SYS_FCHMODAT2, path_only(c"b"), c"", 0o600, AT_EMPTY_PATH));
            // Symlinks have no mode.
            fails(EOPNOTSUPP, sys!(SYS_FCHMODAT2, CWD, c"l", 0o600, AT_SYMLINK_NOFOLLOW));
        })
        .then(
            "a | metadata | file | file
             b | existence,metadata | file | file
             l | existence | symlink | symlink",
        ),
    case("changes_the_mode_of_a_directory", &["chmod"])
        .given(|| dir("d"))
        .when(|| {
            ok(sys!(SYS_chmod, c"d", 0o700));
            ok(sys!(SYS_chmod, c".", 0o700));
        })
        .then(
            ". | metadata | directory | directory
             d | metadata | directory | directory",
        ),
    case("changes_the_mode_of_the_working_directory_without_a_name", &["fchmodat2"])
        .when(|| {
            ok(sys!(SYS_FCHMODAT2, CWD, c"", 0o700, AT_EMPTY_PATH));
        })
        .then(". | metadata | directory | directory"),
    case("changes_a_mode_through_a_link", &["chmod", "fchmodat"])
        .given(|| {
            file("f");
            symlink("f", "l");
            symlink("f", "m");
        })
        .when(|| {
            ok(sys!(SYS_chmod, c"l", 0o600));
            ok(sys!(SYS_fchmodat, CWD, c"m", 0o600));
        })
        .then(
            "f | metadata | file | file
             l | existence | symlink | symlink
             m | existence | symlink | symlink",
        ),
    case("changes_no_mode", &["chmod", "fchmod", "fchmodat", "fchmodat2"])
        .given(|| file("f"))
        .when(|| {
            fails(ENOENT, sys!(SYS_chmod, c"x", 0o600));
            fails(ENOENT, sys!(SYS_fchmodat, CWD, c"y", 0o600));
            fails(ENOTDIR, sys!(SYS_chmod, c"f/x", 0o600));
            fails(ENOENT, sys!(SYS_chmod, c"", 0o600));
            fails(EFAULT, sys!(SYS_chmod, NOWHERE, 0o600));
            fails(EBADF, sys!(SYS_fchmod, path_only(c"f"), 0o600));
            fails(ENOENT, sys!(SYS_fchmodat, CWD, c"", 0o600));
            fails(EFAULT, sys!(SYS_FCHMODAT2, CWD, NOWHERE, 0o600, 0));
        })
        .then(
            "f | existence | file | file
             x | existence | absent | absent
             y | existence | absent | absent",
        ),
];

const CHOWN: &[Case] = &[
    case("changes_owners", &["chown", "fchown", "lchown", "fchownat"])
        .given(|| {
            dir("e");
            ["a", "b", "e/c"].into_iter().for_each(file);
            symlink("a", "l");
        })
        .when(|| {
            let (at, b) = (path_only(c"e"), fd(sys!(SYS_open, c"b", O_RDONLY)));
            ok(sys!(SYS_chown, c"a", SAME, SAME));
            ok(sys!(SYS_fchown, b, SAME, SAME));
            ok(sys!(SYS_lchown, c"l", SAME, SAME));
            ok(sys!(SYS_fchownat, at, c"c", SAME, SAME, 0));
        })
        .then(
            "a | metadata | file | file
             b | read,metadata | file | file
             e | existence | directory | directory
             e/c | metadata | file | file
             l | metadata | symlink | symlink",
        ),
    case("changes_owners_with_flags", &["fchownat"])
        .given(|| {
            ["a", "b"].into_iter().for_each(file);
            symlink("a", "l");
            symlink("a", "m");
        })
        .when(|| {
            ok(sys!(SYS_fchownat, CWD, c"l", SAME, SAME, AT_SYMLINK_NOFOLLOW));
            ok(sys!(SYS_fchownat, CWD, c"m", SAME, SAME, 0));
            ok(sys!(SYS_fchownat, path_only(c"b"), c"", SAME, SAME, AT_EMPTY_PATH));
        })
        .then(
            "a | metadata | file | file
             b | existence,metadata | file | file
             l | metadata | symlink | symlink
             m | existence | symlink | symlink",
        ),
    case("changes_no_owner", &["chown", "lchown", "fchownat"])
        .given(|| file("f"))
        .when(|| {
            fails(ENOENT, sys!(SYS_chown, c"x", SAME, SAME));
            fails(ENOENT, sys!(SYS_lchown, c"y", SAME, SAME));
            fails(ENOTDIR, sys!(SYS_chown, c"f/x", SAME, SAME));
            fails(ENOENT, sys!(SYS_chown, c"", SAME, SAME));
            fails(ENOENT, sys!(SYS_fchownat, CWD, c"", SAME, SAME, 0));
            fails(EFAULT, sys!(SYS_lchown, NOWHERE, SAME, SAME));
            fails(EFAULT, sys!(SYS_fchownat, CWD, NOWHERE, SAME, SAME, 0));
        })
        .then(
            "x | existence | absent | absent
             y | existence | absent | absent",
        ),
    case("is_refused_an_owner", &["chown", "fchown"])
        .only_user()
        .given(|| ["a", "b"].into_iter().for_each(file))
        .when(|| {
            fails(EPERM, sys!(SYS_chown, c"a", 0, SAME));
            fails(EPERM, sys!(SYS_fchown, fd(sys!(SYS_open, c"b", O_RDONLY)), 0, SAME));
        })
        .then(
            "a | existence | file | file
             b | read,existence | file | file",
        ),
];

fn main() {
    support::run(&[CHMOD, CHOWN]);
}
