//! ioctl with FS_IOC_SETFLAGS and FS_IOC_FSSETXATTR, file_getattr, file_setattr.

mod support;

use support::legacy::*;
use support::{Answer, CWD, Case, case, fails, fd, file, ok, skip, symlink};

const SYS_FILE_GETATTR: c_long = 468;
const SYS_FILE_SETATTR: c_long = 469;

const FS_IOC_GETFLAGS: u32 = 0x8008_6601;
const FS_IOC_SETFLAGS: u32 = 0x4008_6602;
const FS_IOC_FSGETXATTR: u32 = 0x801c_581f;
const FS_IOC_FSSETXATTR: u32 = 0x401c_5820;

/// Not every filesystem has these.
#[track_caller]
fn if_possible(answer: Answer) {
    match answer {
        Err(ENOTTY) => skip("the filesystem has no such flags"),
        other => {
            ok(other);
        }
    }
}

const CASES: &[Case] = &[
    case("sets_flags", &["ioctl"])
        .given(|| file("f"))
        .when(|| {
            let f = fd(sys!(SYS_open, c"f", O_RDONLY));
            let mut flags = 0u64;
            if_possible(sys!(SYS_ioctl, f, FS_IOC_GETFLAGS, &raw mut flags));
            if_possible(sys!(SYS_ioctl, f, FS_IOC_SETFLAGS, &raw mut flags));
        })
        .then("f | read,metadata | file | file"),
    case("sets_extended_flags", &["ioctl"])
        .given(|| file("f"))
        .when(|| {
            let f = fd(sys!(SYS_open, c"f", O_RDONLY));
            let mut flags = [0u8; 28];
            if_possible(sys!(SYS_ioctl, f, FS_IOC_FSGETXATTR, flags.as_mut_ptr()));
            if_possible(sys!(SYS_ioctl, f, FS_IOC_FSSETXATTR, flags.as_mut_ptr()));
        })
        .then("f | read,metadata | file | file"),
    case("asks_for_flags", &["ioctl"])
        .given(|| file("f"))
        .when(|| {
            let f = fd(sys!(SYS_open, c"f", O_RDONLY));
            let mut flags = 0u64;
            if_possible(sys!(SYS_ioctl, f, FS_IOC_GETFLAGS, &raw mut flags));
            fails(ENOTTY, sys!(SYS_ioctl, f, TIOCGWINSZ, &raw mut flags));
        })
        .then("f | read | file | file"),
    case("looks_for_holes", &["lseek"])
        .given(|| file("f"))
        .when(|| {
            let f = fd(sys!(SYS_open, c"f", O_RDONLY));
            fails(ENXIO, sys!(SYS_lseek, f, 1 << 20, SEEK_HOLE));
        })
        .then("f | read | file | file"),
    case("asks_and_sets_by_path", &["file_getattr", "file_setattr"])
        .given(|| {
            file("a");
            file("b");
            symlink("a", "l");
        })
        .when(|| {
            let mut attributes = [0u8; 24];
            let space = attributes.as_mut_ptr();
            if_possible(sys!(SYS_FILE_GETATTR, CWD, c"b", space, 24, 0));
            if_possible(sys!(SYS_FILE_SETATTR, CWD, c"l", space, 24, 0));
        })
        .then(
            "a | metadata | file | file
             b | existence | file | file
             l | existence | symlink | symlink",
        ),
    case("asks_and_sets_by_descriptor", &["file_getattr", "file_setattr"])
        .given(|| file("f"))
        .when(|| {
            let mut attributes = [0u8; 24];
            let f = fd(sys!(SYS_open, c"f", O_RDONLY));
            let space = attributes.as_mut_ptr();
            if_possible(sys!(SYS_FILE_GETATTR, f, c"", space, 24, AT_EMPTY_PATH));
            if_possible(sys!(SYS_FILE_SETATTR, f, c"", space, 24, AT_EMPTY_PATH));
        })
        .then("f | read,metadata | file | file"),
    case("asks_and_sets_what_is_absent", &["file_getattr", "file_setattr"])
        .when(|| {
            let mut attributes = [0u8; 24];
            let space = attributes.as_mut_ptr();
            fails(ENOENT, sys!(SYS_FILE_GETATTR, CWD, c"a", space, 24, 0));
            fails(ENOENT, sys!(SYS_FILE_SETATTR, CWD, c"b", space, 24, AT_SYMLINK_NOFOLLOW));
            fails(ENOENT, sys!(SYS_FILE_SETATTR, CWD, c"", space, 24, 0));
        })
        .then(
            "a | existence | absent | absent
             b | existence | absent | absent",
        ),
];

fn main() {
    support::run(&[CASES]);
}
