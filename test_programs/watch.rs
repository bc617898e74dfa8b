//! inotify_add_watch, fanotify_init, fanotify_mark.

mod support;

use support::legacy::*;
use support::{CWD, Case, NOWHERE, case, dir, fails, fd, file, ok, skip, symlink};

const INOTIFY: &[Case] = &[
    case("watches", &["inotify_add_watch"])
        .given(|| {
            dir("d");
            file("f");
            symlink("f", "l");
            symlink("f", "m");
        })
        .when(|| {
            let watch = fd(sys!(SYS_inotify_init1, 0));
            ok(sys!(SYS_inotify_add_watch, watch, c"d", IN_CREATE));
            ok(sys!(SYS_inotify_add_watch, watch, c"l", IN_MODIFY));
            ok(sys!(SYS_inotify_add_watch, watch, c"m", IN_MODIFY | IN_DONT_FOLLOW));
        })
        .then(
            "d | existence | directory | directory
             f | existence | file | file
             l | existence | symlink | symlink
             m | existence | symlink | symlink",
        ),
    case("watches_nothing", &["inotify_add_watch"])
        .given(|| file("f"))
        .when(|| {
            let watch = fd(sys!(SYS_inotify_init1, 0));
            fails(ENOENT, sys!(SYS_inotify_add_watch, watch, c"x", IN_CREATE));
            fails(ENOTDIR, sys!(SYS_inotify_add_watch, watch, c"f", IN_CREATE | IN_ONLYDIR));
            fails(ENOENT, sys!(SYS_inotify_add_watch, watch, c"", IN_CREATE));
            fails(EFAULT, sys!(SYS_inotify_add_watch, watch, NOWHERE, IN_CREATE));
        })
        .then("x | existence | absent | absent"),
];

fn group() -> c_int {
    match sys!(SYS_fanotify_init, FAN_CLASS_NOTIF, O_RDONLY) {
        Err(EPERM) => skip("fanotify is not allowed"),
        other => fd(other),
    }
}

const FANOTIFY: &[Case] = &[
    case("marks", &["fanotify_init", "fanotify_mark"])
        .only_root()
        .given(|| {
            ["a", "b", "f"].into_iter().for_each(file);
            symlink("a", "l");
            symlink("f", "m");
        })
        .when(|| {
            let group = group();
            ok(sys!(SYS_fanotify_mark, group, FAN_MARK_ADD, FAN_MODIFY, CWD, c"l"));
            let unfollowed = FAN_MARK_ADD | FAN_MARK_DONT_FOLLOW;
            ok(sys!(SYS_fanotify_mark, group, unfollowed, FAN_MODIFY, CWD, c"m"));
            let b = fd(sys!(SYS_open, c"b", O_RDONLY));
            ok(sys!(SYS_fanotify_mark, group, FAN_MARK_ADD, FAN_MODIFY, b, 0));
            ok(sys!(SYS_fanotify_mark, group, FAN_MARK_FLUSH, 0, CWD, 0));
        })
        .then(
            "a | existence | file | file
             b | read | file | file
             l | existence | symlink | symlink
             m | existence | symlink | symlink
             ! | unmodelled_syscall",
        ),
    case("reports_handles", &["fanotify_init"])
        .only_root()
        .given(|| file("f"))
        .when(|| {
            let group = fd(sys!(SYS_fanotify_init, FAN_CLASS_NOTIF | FAN_REPORT_FID, O_RDONLY));
            ok(sys!(SYS_fanotify_mark, group, FAN_MARK_ADD, FAN_MODIFY, CWD, c"f"));
        })
        .then("f | existence | file | file"),
    case("marks_nothing", &["fanotify_mark"])
        .only_root()
        .when(|| {
            let group = group();
            fails(ENOENT, sys!(SYS_fanotify_mark, group, FAN_MARK_ADD, FAN_MODIFY, CWD, c"x"));
            fails(EFAULT, sys!(SYS_fanotify_mark, group, FAN_MARK_ADD, FAN_MODIFY, CWD, NOWHERE));
        })
        .then(
            "x | existence | absent | absent
             ! | unmodelled_syscall",
        ),
    case("may_not_mark", &["fanotify_mark"])
        .given(|| file("f"))
        .when(|| {
            let no_group = fd(sys!(SYS_open, c"f", O_RDONLY));
            fails(EINVAL, sys!(SYS_fanotify_mark, no_group, FAN_MARK_ADD, FAN_MODIFY, CWD, c"g"));
        })
        .then(
            "f | read | file | file
             g | existence | absent | absent",
        ),
];

fn main() {
    support::run(&[INOTIFY, FANOTIFY]);
}
