//! readlink, readlinkat, symlink, symlinkat, link, linkat.

mod support;

use support::legacy::*;
use support::{CWD, Case, NOWHERE, case, dir, fails, fd, file, hard_link, ok, path_only, symlink};

fn space() -> *mut u8 {
    Box::leak(Box::new([0u8; 512])).as_mut_ptr()
}

const READLINK: &[Case] = &[
    case("reads_a_link", &["readlink", "readlinkat"])
        .given(|| {
            dir("d");
            symlink("nowhere", "a");
            symlink("nowhere", "d/b");
        })
        .when(|| {
            let at = path_only(c"d");
            ok(sys!(SYS_readlink, c"a", space(), 512));
            ok(sys!(SYS_readlinkat, at, c"b", space(), 512));
        })
        .then(
            "a | existence | symlink | symlink
             d | existence | directory | directory
             d/b | existence | symlink | symlink",
        ),
    case("reads_what_is_no_link", &["readlink", "readlinkat"])
        .given(|| file("f"))
        .when(|| {
            fails(EINVAL, sys!(SYS_readlink, c"f", space(), 512));
            fails(ENOENT, sys!(SYS_readlinkat, CWD, c"g", space(), 512));
            fails(ENOTDIR, sys!(SYS_readlink, c"f/x", space(), 512));
            fails(EFAULT, sys!(SYS_readlink, NOWHERE, space(), 512));
            fails(EFAULT, sys!(SYS_readlinkat, CWD, NOWHERE, space(), 512));
            fails(ENOENT, sys!(SYS_readlink, c"", space(), 512));
            fails(ENOENT, sys!(SYS_readlinkat, CWD, c"", space(), 512));
        })
        .then(
            "f | existence | file | file
             g | existence | absent | absent",
        ),
    case("reads_the_link_of_a_descriptor", &["readlinkat"])
        .given(|| symlink("nowhere", "l"))
        .when(|| {
            let l = fd(sys!(SYS_open, c"l", O_PATH | O_NOFOLLOW));
            ok(sys!(SYS_readlinkat, l, c"", space(), 512));
        })
        .then("l | existence | symlink | symlink"),
];

const SYMLINK: &[Case] = &[
    case("makes_a_link", &["symlink", "symlinkat"])
        .given(|| {
            dir("d");
            file("f");
        })
        .when(|| {
            let at = path_only(c"d");
            ok(sys!(SYS_symlink, c"f", c"a"));
            ok(sys!(SYS_symlinkat, c"../f", at, c"b"));
            ok(sys!(SYS_symlinkat, c"nowhere", CWD, c"c"));
        })
        .then(
            "a | write | absent | symlink
             c | write | absent | symlink
             d | existence | directory | directory
             d/b | write | absent | symlink",
        ),
    case("makes_no_link", &["symlink", "symlinkat"])
        .given(|| {
            file("f");
            symlink("nowhere", "l");
        })
        .when(|| {
            fails(EEXIST, sys!(SYS_symlink, c"x", c"f"));
            fails(EEXIST, sys!(SYS_symlinkat, c"x", CWD, c"l"));
            fails(ENOENT, sys!(SYS_symlink, c"x", c"d/l"));
            fails(ENOTDIR, sys!(SYS_symlink, c"x", c"f/l"));
            fails(ENOENT, sys!(SYS_symlink, c"", c"m"));
            fails(ENOENT, sys!(SYS_symlink, c"x", c""));
            fails(EFAULT, sys!(SYS_symlink, c"x", NOWHERE));
            fails(EFAULT, sys!(SYS_symlinkat, c"x", CWD, NOWHERE));
        })
        .then(
            "d/l | existence | absent | absent
             f | existence | file | file
             l | existence | symlink | symlink
             m | existence | absent | absent",
        ),
];

const LINK: &[Case] = &[
    case("gives_a_file_another_name", &["link", "linkat"])
        .given(|| {
            dir("d");
            file("f");
        })
        .when(|| {
            let at = path_only(c"d");
            ok(sys!(SYS_link, c"f", c"a"));
            ok(sys!(SYS_linkat, CWD, c"f", at, c"b", 0));
        })
        .then(
            "a | write | absent | file
             d | existence | directory | directory
             d/b | write | absent | file
             f | existence | file | file",
        ),
    case("gives_a_link_another_name", &["link", "linkat"])
        .given(|| {
            file("f");
            symlink("f", "l");
        })
        .when(|| {
            ok(sys!(SYS_link, c"l", c"a"));
            ok(sys!(SYS_linkat, CWD, c"l", CWD, c"b", AT_SYMLINK_FOLLOW));
        })
        .then(
            "a | write | absent | symlink
             b | write | absent | file
             f | existence | file | file
             l | existence | symlink | symlink",
        ),
    case("gives_what_a_descriptor_is_a_name", &["linkat"])
        .given(|| file("f"))
        .when(|| {
            let f = path_only(c"f");
            let path = std::ffi::CString::new(format!("/proc/self/fd/{f}")).unwrap();
            ok(sys!(SYS_linkat, CWD, path.as_c_str(), CWD, c"a", AT_SYMLINK_FOLLOW));
        })
        .then(
            "a | write | absent | file
             f | existence | file | file",
        ),
    case("gives_no_name", &["link", "linkat"])
        .given(|| {
            file("f");
            file("g");
            hard_link("f", "h");
            dir("d");
        })
        .when(|| {
            fails(EEXIST, sys!(SYS_link, c"f", c"g"));
            fails(EEXIST, sys!(SYS_linkat, CWD, c"f", CWD, c"h", 0));
            fails(EPERM, sys!(SYS_link, c"d", c"x"));
            fails(ENOENT, sys!(SYS_link, c"y", c"z"));
            fails(ENOTDIR, sys!(SYS_link, c"f", c"g/x"));
            fails(ENOENT, sys!(SYS_link, c"f", c""));
            fails(EFAULT, sys!(SYS_link, c"f", NOWHERE));
            fails(EFAULT, sys!(SYS_linkat, CWD, NOWHERE, CWD, c"z", 0));
        })
        .then(
            "d | existence | directory | directory
             f | existence | file | file
             g | existence | file | file
             h | existence | file | file
             x | existence | absent | absent
             y | existence | absent | absent
             z | existence | absent | absent",
        ),
];

fn main() {
    support::run(&[READLINK, SYMLINK, LINK]);
}
