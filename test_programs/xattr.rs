//! setxattr, getxattr, listxattr, removexattr, their l, f and at forms.

mod support;

use std::ffi::CStr;

use support::legacy::*;
use support::{Answer, CWD, Case, NOWHERE, case, dir, fails, fd, file, ok, path_only, symlink};

const SYS_SETXATTRAT: c_long = 463;
const SYS_GETXATTRAT: c_long = 464;
const SYS_LISTXATTRAT: c_long = 465;
const SYS_REMOVEXATTRAT: c_long = 466;

const NAME: &CStr = c"user.test";

fn space() -> *mut u8 {
    Box::leak(Box::new([0u8; 512])).as_mut_ptr()
}

fn set(path: &CStr) {
    ok(sys!(SYS_setxattr, path, NAME, c"value", 5, 0));
}

/// struct xattr_args.
#[repr(C)]
struct Value {
    value: u64,
    size: u32,
    flags: u32,
}

fn value() -> *const Value {
    let value = Value { value: c"value".as_ptr() as u64, size: 5, flags: 0 };
    Box::leak(Box::new(value))
}

fn setxattrat(dirfd: c_int, path: &CStr, flags: c_int) -> Answer {
    sys!(SYS_SETXATTRAT, dirfd, path, flags, NAME, value(), 16)
}

const SET: &[Case] = &[
    case("sets", &["setxattr", "lsetxattr", "fsetxattr"])
        .given(|| {
            ["a", "b", "c"].into_iter().for_each(file);
            symlink("a", "l");
        })
        .when(|| {
            ok(sys!(SYS_setxattr, c"l", NAME, c"value", 5, 0));
            ok(sys!(SYS_lsetxattr, c"b", NAME, c"value", 5, 0));
            ok(sys!(SYS_fsetxattr, fd(sys!(SYS_open, c"c", O_RDONLY)), NAME, c"value", 5, 0));
        })
        .then(
            "a | metadata | file | file
             b | metadata | file | file
             c | read,metadata | file | file
             l | existence | symlink | symlink",
        ),
    case("removes", &["removexattr", "lremovexattr", "fremovexattr"])
        .given(|| {
            ["a", "b", "c"].into_iter().for_each(file);
            [c"a", c"b", c"c"].into_iter().for_each(set);
        })
        .when(|| {
            ok(sys!(SYS_removexattr, c"a", NAME));
            ok(sys!(SYS_lremovexattr, c"b", NAME));
            ok(sys!(SYS_fremovexattr, fd(sys!(SYS_open, c"c", O_RDONLY)), NAME));
        })
        .then(
            "a | metadata | file | file
             b | metadata | file | file
             c | read,metadata | file | file",
        ),
    case("sets_those_of_a_link", &["lsetxattr", "lremovexattr"])
        .only_root()
        .given(|| {
            file("f");
            symlink("f", "l");
        })
        .when(|| {
            ok(sys!(SYS_lsetxattr, c"l", c"trusted.test", c"value", 5, 0));
            ok(sys!(SYS_lremovexattr, c"l", c"trusted.test"));
        })
        .then("l | metadata | symlink | symlink"),
    case("changes_nothing", &["setxattr", "lsetxattr", "removexattr", "lremovexattr", "fremovexattr"])
        .given(|| {
            ["a", "b", "c", "f"].into_iter().for_each(file);
            symlink("f", "l");
            set(c"f");
        })
        .when(|| {
            fails(ENOENT, sys!(SYS_setxattr, c"x", NAME, c"value", 5, 0));
            fails(EPERM, sys!(SYS_lsetxattr, c"l", NAME, c"value", 5, 0));
            fails(ENODATA, sys!(SYS_removexattr, c"a", NAME));
            fails(ENODATA, sys!(SYS_lremovexattr, c"b", NAME));
            fails(ENODATA, sys!(SYS_fremovexattr, fd(sys!(SYS_open, c"c", O_RDONLY)), NAME));
            fails(ENOTDIR, sys!(SYS_setxattr, c"f/x", NAME, c"value", 5, 0));
            fails(ENOENT, sys!(SYS_setxattr, c"", NAME, c"value", 5, 0));
            fails(EFAULT, sys!(SYS_setxattr, NOWHERE, NAME, c"value", 5, 0));
            fails(EFAULT, sys!(SYS_lremovexattr, NOWHERE, NAME));
        })
        .then(
            "a | existence | file | file
             b | existence | file | file
             c | read,existence | file | file
             l | existence | symlink | symlink
             x | existence | absent | absent",
        ),
];

const GET: &[Case] = &[
    case("asks", &["getxattr", "lgetxattr", "listxattr", "llistxattr"])
        .given(|| {
            ["a", "b", "c", "d"].into_iter().for_each(file);
            set(c"a");
            symlink("a", "l");
            symlink("a", "m");
        })
        .when(|| {
            ok(sys!(SYS_getxattr, c"l", NAME, space(), 512));
            fails(ENODATA, sys!(SYS_lgetxattr, c"b", NAME, space(), 512));
            ok(sys!(SYS_listxattr, c"c", space(), 512));
            ok(sys!(SYS_llistxattr, c"m", space(), 512));
            fails(ENOENT, sys!(SYS_getxattr, c"x", NAME, space(), 512));
        })
        .then(
            "a | existence | file | file
             b | existence | file | file
             c | existence | file | file
             l | existence | symlink | symlink
             m | existence | symlink | symlink
             x | existence | absent | absent",
        ),
    case("a_descriptor_that_is_asked_is_nothing", &["fgetxattr", "flistxattr"])
        .given(|| {
            file("f");
            set(c"f");
        })
        .when(|| {
            let f = fd(sys!(SYS_open, c"f", O_RDONLY));
            ok(sys!(SYS_fgetxattr, f, NAME, space(), 512));
            ok(sys!(SYS_flistxattr, f, space(), 512));
        })
        .then("f | read | file | file"),
];

const AT: &[Case] = &[
    case("sets_at_a_directory", &["setxattrat", "removexattrat"])
        .given(|| {
            dir("d");
            ["d/a", "b", "c"].into_iter().for_each(file);
            symlink("b", "l");
            set(c"d/a");
        })
        .when(|| {
            ok(sys!(SYS_REMOVEXATTRAT, path_only(c"d"), c"a", 0, NAME));
            ok(setxattrat(CWD, c"l", 0));
            ok(setxattrat(fd(sys!(SYS_open, c"c", O_RDONLY)), c"", AT_EMPTY_PATH));
        })
        .then(
            "b | metadata | file | file
             c | read,metadata | file | file
             d | existence | directory | directory
             d/a | metadata | file | file
             l | existence | symlink | symlink",
        ),
    case("asks_at_a_directory", &["getxattrat", "listxattrat"])
        .given(|| {
            dir("d");
            ["d/a", "b"].into_iter().for_each(file);
            set(c"d/a");
            symlink("b", "l");
        })
        .when(|| {
            let value = Value { value: space() as u64, size: 512, flags: 0 };
            let at = path_only(c"d");
            ok(sys!(SYS_GETXATTRAT, at, c"a", 0, NAME, &raw const value, 16));
            ok(sys!(SYS_LISTXATTRAT, CWD, c"l", AT_SYMLINK_NOFOLLOW, space(), 512));
            let f = fd(sys!(SYS_open, c"b", O_RDONLY));
            ok(sys!(SYS_LISTXATTRAT, f, c"", AT_EMPTY_PATH, space(), 512));
            fails(ENOENT, sys!(SYS_GETXATTRAT, CWD, c"x", 0, NAME, &raw const value, 16));
        })
        .then(
            "b | read | file | file
             d | existence | directory | directory
             d/a | existence | file | file
             l | existence | symlink | symlink
             x | existence | absent | absent",
        ),
    case("changes_nothing_at_a_directory", &["setxattrat", "removexattrat"])
        .given(|| {
            file("f");
            symlink("f", "l");
        })
        .when(|| {
            fails(ENODATA, sys!(SYS_REMOVEXATTRAT, CWD, c"f", 0, NAME));
            fails(EPERM, setxattrat(CWD, c"l", AT_SYMLINK_NOFOLLOW));
            fails(ENOENT, setxattrat(CWD, c"x", 0));
            fails(ENOENT, setxattrat(CWD, c"", 0));
        })
        .then(
            "f | existence | file | file
             l | existence | symlink | symlink
             x | existence | absent | absent",
        ),
];

fn main() {
    support::run(&[SET, GET, AT]);
}
