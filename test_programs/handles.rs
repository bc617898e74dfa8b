//! name_to_handle_at, open_by_handle_at, pidfd_getfd: files that a call does not name.

mod support;

use std::ffi::CStr;

use libc::*;
use support::{CWD, Case, case, dir, fails, fd, file, link, ok, path_only, refused};

/// struct file_handle with space for any handle.
#[repr(C)]
struct Handle {
    bytes: u32,
    kind: i32,
    handle: [u8; 128],
}

fn handle(dirfd: c_int, path: &CStr, flags: c_int) -> Handle {
    let mut handle = Handle { bytes: 128, kind: 0, handle: [0; 128] };
    let mut mount = 0;
    ok(sys!(SYS_name_to_handle_at, dirfd, path, &raw mut handle, &raw mut mount, flags));
    handle
}

fn open(handle: &Handle, flags: c_int) -> c_int {
    fd(sys!(SYS_open_by_handle_at, CWD, std::ptr::from_ref(handle), flags))
}

const HANDLES: &[Case] = &[
    case("takes_handles", &["name_to_handle_at"])
        .given(|| {
            dir("d");
            ["d/a", "b", "f"].into_iter().for_each(file);
            link("b", "l");
            link("f", "m");
        })
        .when(|| {
            handle(path_only(c"d"), c"a", 0);
            handle(CWD, c"l", AT_SYMLINK_FOLLOW);
            handle(CWD, c"m", 0);
        })
        .then(
            "b | existence | file | file
             d | existence | directory | directory
             d/a | existence | file | file
             l | existence | symlink | symlink
             m | existence | symlink | symlink",
        ),
    case("takes_no_handle", &["name_to_handle_at"])
        .when(|| {
            let mut handle = Handle { bytes: 128, kind: 0, handle: [0; 128] };
            let (handle, mut mount) = (&raw mut handle, 0);
            fails(ENOENT, sys!(SYS_name_to_handle_at, CWD, c"x", handle, &raw mut mount, 0));
            fails(ENOENT, sys!(SYS_name_to_handle_at, CWD, c"", handle, &raw mut mount, 0));
        })
        .then("x | existence | absent | absent"),
    case("takes_the_handle_of_a_descriptor", &["name_to_handle_at"])
        .given(|| file("f"))
        .when(|| {
            handle(fd(sys!(SYS_open, c"f", O_RDONLY)), c"", AT_EMPTY_PATH);
        })
        .then("f | read | file | file"),
    case("opens_handles", &["name_to_handle_at", "open_by_handle_at"])
        .only_root()
        .given(|| {
            dir("d");
            ["a", "b"].into_iter().for_each(file);
        })
        .when(|| {
            open(&handle(CWD, c"a", 0), O_RDONLY);
            let b = open(&handle(CWD, c"b", 0), O_WRONLY);
            ok(sys!(SYS_write, b, c"x", 1));
            open(&handle(CWD, c"d", 0), O_RDONLY | O_DIRECTORY);
        })
        .then(
            "a | read,existence | file | file
             b | write,existence | file | file
             d | existence,directory | directory | directory",
        ),
    case("opens_no_handle", &["open_by_handle_at"]).when(|| {
        let handle = Handle { bytes: 8, kind: 1, handle: [0xff; 128] };
        refused(sys!(SYS_open_by_handle_at, CWD, &raw const handle, O_RDONLY));
    }),
];

const TAKEN: &[Case] = &[case("takes_the_descriptor_of_a_process", &["pidfd_getfd"])
    .given(|| file("f"))
    .when(|| {
        let f = fd(sys!(SYS_open, c"f", O_RDONLY));
        let process = fd(sys!(SYS_pidfd_open, ok(sys!(SYS_getpid)), 0));
        ok(sys!(SYS_pidfd_getfd, process, f, 0));
        fails(EBADF, sys!(SYS_pidfd_getfd, process, 12345, 0));
    })
    .then("f | read | file | file")];

fn main() {
    support::run(&[HANDLES, TAKEN]);
}
