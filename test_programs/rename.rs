//! rename, renameat, renameat2.

mod support;

use support::legacy::*;
use support::{CWD, Case, NOWHERE, case, dir, fails, fd, file, hard_link, ok, path_only, skip, symlink};

const FILES: &[Case] = &[
    case("renames_files", &["rename", "renameat", "renameat2"])
        .given(|| {
            dir("d");
            ["a", "c", "d/e"].into_iter().for_each(file);
        })
        .when(|| {
            let at = path_only(c"d");
            ok(sys!(SYS_rename, c"a", c"b"));
            ok(sys!(SYS_renameat, CWD, c"c", at, c"c"));
            ok(sys!(SYS_renameat2, at, c"e", CWD, c"e", 0));
        })
        .then(
            "a | delete | file | tombstone
             b | write | absent | file
             c | delete | file | tombstone
             d | existence | directory | directory
             d/c | write | absent | file
             d/e | delete | file | tombstone
             e | write | absent | file",
        ),
    case("replaces_a_file", &["rename"])
        .given(|| {
            file("a");
            file("b");
        })
        .when(|| {
            ok(sys!(SYS_rename, c"a", c"b"));
        })
        .then(
            "a | delete | file | tombstone
             b | write | file | file",
        ),
    case("saves_a_file_as_editors_do", &["open", "rename"])
        .given(|| file("f"))
        .when(|| {
            let new = fd(sys!(SYS_open, c"f~", O_WRONLY | O_CREAT | O_EXCL, 0o644));
            ok(sys!(SYS_write, new, c"new", 3));
            ok(sys!(SYS_rename, c"f~", c"f"));
        })
        .then(
            "f | write | file | file
             f~ | write,delete | absent | tombstone",
        ),
    case("renames_there_and_back", &["rename"])
        .given(|| file("a"))
        .when(|| {
            ok(sys!(SYS_rename, c"a", c"b"));
            ok(sys!(SYS_rename, c"b", c"a"));
        })
        .then(
            "a | write,delete | file | file
             b | write,delete | absent | tombstone",
        ),
    case("renames_a_link_and_not_its_target", &["rename"])
        .given(|| {
            file("f");
            symlink("f", "l");
            symlink("f", "m");
        })
        .when(|| {
            ok(sys!(SYS_rename, c"l", c"m"));
        })
        .then(
            "l | delete | symlink | tombstone
             m | write | symlink | symlink",
        ),
    case("two_names_of_one_file_stay", &["rename"])
        .given(|| {
            file("f");
            hard_link("f", "g");
        })
        .when(|| {
            ok(sys!(SYS_rename, c"f", c"g"));
            ok(sys!(SYS_rename, c"f", c"f"));
        })
        .then(
            "f | existence | file | file
             g | existence | file | file",
        ),
    case("renames_nothing", &["rename", "renameat"])
        .given(|| {
            file("f");
            dir("d");
        })
        .when(|| {
            fails(ENOENT, sys!(SYS_rename, c"x", c"f"));
            fails(ENOENT, sys!(SYS_renameat, CWD, c"y", CWD, c"z"));
            fails(EISDIR, sys!(SYS_rename, c"f", c"d"));
            fails(ENOTDIR, sys!(SYS_rename, c"d", c"f"));
            fails(ENOTDIR, sys!(SYS_rename, c"f/a", c"g"));
            fails(ENOENT, sys!(SYS_rename, c"f", c""));
            fails(EFAULT, sys!(SYS_rename, c"f", NOWHERE));
            fails(EFAULT, sys!(SYS_renameat, CWD, NOWHERE, CWD, c"g"));
        })
        .then(
            "d | existence | directory | directory
             f | existence | file | file
             x | existence | absent | absent
             y | existence | absent | absent
             z | existence | absent | absent",
        ),
];

const FLAGS: &[Case] = &[
    case("replaces_nothing_by_its_flag", &["renameat2"])
        .given(|| {
            ["a", "b", "c"].into_iter().for_each(file);
        })
        .when(|| {
            ok(sys!(SYS_renameat2, CWD, c"a", CWD, c"d", RENAME_NOREPLACE));
            fails(EEXIST, sys!(SYS_renameat2, CWD, c"b", CWD, c"c", RENAME_NOREPLACE));
        })
        .then(
            "a | delete | file | tombstone
             b | existence | file | file
             c | existence | file | file
             d | write | absent | file",
        ),
    case("exchanges_files", &["renameat2"])
        .given(|| {
            file("a");
            file("b");
        })
        .when(|| {
            ok(sys!(SYS_renameat2, CWD, c"a", CWD, c"b", RENAME_EXCHANGE));
        })
        .then(
            "a | write | file | file
             b | write | file | file",
        ),
    case("exchanges_a_file_and_a_link", &["renameat2"])
        .given(|| {
            file("f");
            symlink("nowhere", "l");
        })
        .when(|| {
            ok(sys!(SYS_renameat2, CWD, c"f", CWD, c"l", RENAME_EXCHANGE));
        })
        .then(
            "f | write | file | symlink
             l | write | symlink | file",
        ),
    case("exchanges_directories", &["renameat2"])
        .given(|| {
            dir("a");
            dir("b");
            file("a/x");
            file("b/y");
        })
        .when(|| {
            ok(sys!(SYS_renameat2, CWD, c"a", CWD, c"b", RENAME_EXCHANGE));
        })
        .then(
            "a | write | directory | directory
             a/x | delete | file | tombstone
             a/y | write | absent | file
             b | write | directory | directory
             b/x | write | absent | file
             b/y | delete | file | tombstone",
        ),
    case("exchanges_nothing", &["renameat2"])
        .given(|| file("a"))
        .when(|| fails(ENOENT, sys!(SYS_renameat2, CWD, c"a", CWD, c"b", RENAME_EXCHANGE)))
        .then(
            "a | existence | file | file
             b | existence | absent | absent",
        ),
    case("refuses_flags_together", &["renameat2"])
        .given(|| file("a"))
        .when(|| {
            let both = RENAME_EXCHANGE | RENAME_NOREPLACE;
            fails(EINVAL, sys!(SYS_renameat2, CWD, c"a", CWD, c"b", both));
        })
        .then(
            "a | existence | file | file
             b | existence | absent | absent",
        ),
    case("leaves_a_whiteout", &["renameat2"])
        .only_root()
        .given(|| file("a"))
        .when(|| match sys!(SYS_renameat2, CWD, c"a", CWD, c"b", RENAME_WHITEOUT) {
            Err(EINVAL | EPERM) => skip("the filesystem has no whiteouts"),
            other => {
                ok(other);
            }
        })
        .then(
            "a | delete | file | char_device
             b | write | absent | file",
        ),
];

const DIRECTORIES: &[Case] = &[
    case("renames_a_directory_with_all_beneath", &["rename"])
        .given(|| {
            dir("d");
            dir("d/s");
            file("d/f");
            file("d/s/g");
            symlink("nowhere", "d/l");
        })
        .when(|| {
            ok(sys!(SYS_rename, c"d", c"e"));
        })
        .then(
            "d | delete | directory | tombstone
             d/f | delete | file | tombstone
             d/l | delete | symlink | tombstone
             d/s | delete | directory | tombstone
             d/s/g | delete | file | tombstone
             e | write | absent | directory
             e/f | write | absent | file
             e/l | write | absent | symlink
             e/s | write | absent | directory
             e/s/g | write | absent | file",
        ),
    case("replaces_an_empty_directory", &["rename"])
        .given(|| {
            dir("d");
            file("d/f");
            dir("e");
        })
        .when(|| {
            ok(sys!(SYS_rename, c"d/", c"e/"));
        })
        .then(
            "d | delete | directory | tombstone
             d/f | delete | file | tombstone
             e | write | directory | directory
             e/f | write | absent | file",
        ),
    case("writes_beneath_after_a_rename", &["rename", "open"])
        .given(|| {
            dir("d");
            file("d/f");
        })
        .when(|| {
            ok(sys!(SYS_rename, c"d", c"e"));
            ok(sys!(SYS_open, c"e/f", O_WRONLY));
            ok(sys!(SYS_open, c"e/g", O_WRONLY | O_CREAT, 0o644));
            fails(ENOENT, sys!(SYS_open, c"d/f", O_RDONLY));
        })
        .then(
            "d | delete | directory | tombstone
             d/f | existence,delete | file | tombstone
             e | write | absent | directory
             e/f | write | absent | file
             e/g | write | absent | file",
        ),
    case("renames_no_directory", &["rename"])
        .given(|| {
            dir("d");
            file("d/f");
            dir("e");
            file("e/g");
        })
        .when(|| {
            fails(ENOTEMPTY, sys!(SYS_rename, c"d", c"e"));
            fails(EINVAL, sys!(SYS_rename, c"d", c"d/s"));
        })
        .then(
            "d | existence | directory | directory
             d/s | existence | absent | absent
             e | existence | directory | directory",
        ),
];

fn main() {
    support::run(&[FILES, FLAGS, DIRECTORIES]);
}
