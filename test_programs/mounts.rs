//! mount and umount2, the new mount calls, pivot_root, chroot, and the calls of the administrator:
//! swapon, swapoff, acct, quotactl, uselib, bpf.

mod support;

use support::legacy::*;
use support::{CWD, Case, NOWHERE, case, dir, fails, fd, file, ok, refused, skip, symlink};

const SYS_OPEN_TREE_ATTR: c_long = 467;
const OPEN_TREE_CLONE: c_int = 1;
const FSCONFIG_SET_PATH: c_int = 3;

/// A mount namespace of our own, that nothing gets out of.
fn own_mounts() {
    if sys!(SYS_unshare, CLONE_NEWNS).is_err() {
        skip("no mount namespaces here");
    }
    ok(sys!(SYS_mount, 0, c"/", 0, MS_REC | MS_PRIVATE, 0));
}

const MOUNTS: &[Case] = &[
    case("mounts_one_directory_on_another", &["unshare", "mount", "umount2"])
        .only_root()
        .given(|| {
            dir("d");
            dir("e");
        })
        .when(|| {
            own_mounts();
            ok(sys!(SYS_mount, c"d", c"e", 0, MS_BIND, 0));
            ok(sys!(SYS_umount2, c"e", 0));
        })
        .then(
            "d | existence | directory | directory
             e | existence | directory | directory",
        ),
    case("mounts_a_file_system", &["unshare", "mount", "umount2"])
        .only_root()
        .given(|| {
            dir("d");
            symlink("d", "l");
        })
        .when(|| {
            own_mounts();
            if sys!(SYS_mount, c"tmpfs", c"l", c"tmpfs", 0, 0).is_err() {
                skip("no tmpfs here");
            }
            ok(sys!(SYS_umount2, c"d", MNT_DETACH | UMOUNT_NOFOLLOW));
        })
        .then(
            "d | existence | directory | directory
             l | existence | symlink | symlink",
        ),
    case("mounts_by_descriptor", &["open_tree", "move_mount", "fsmount"])
        .only_root()
        .given(|| {
            dir("d");
            dir("e");
        })
        .when(|| {
            own_mounts();
            let tree = fd(sys!(SYS_open_tree, CWD, c"d", OPEN_TREE_CLONE));
            ok(sys!(SYS_move_mount, tree, c"", CWD, c"e", MOVE_MOUNT_F_EMPTY_PATH));
        })
        .then(
            "d | existence | directory | directory
             e | existence | directory | directory",
        ),
    case("mounts_nothing", &["mount", "umount2"])
        .given(|| {
            dir("d");
            file("f");
        })
        .when(|| {
            refused(sys!(SYS_mount, c"d", c"x", 0, MS_BIND, 0));
            refused(sys!(SYS_umount2, c"y", 0));
            refused(sys!(SYS_umount2, c"f", 0));
            fails(EFAULT, sys!(SYS_mount, c"d", NOWHERE, 0, MS_BIND, 0));
            fails(EFAULT, sys!(SYS_umount2, NOWHERE, 0));
        })
        .then(
            "d | existence | directory | directory
             f | existence | file | file
             x | existence | absent | absent
             y | existence | absent | absent",
        ),
    case("moves_and_picks_no_mount", &["move_mount", "fspick", "mount_setattr", "fsconfig", "fsmount"])
        .given(|| ["a", "b", "c", "d", "e"].into_iter().for_each(dir))
        .when(|| {
            refused(sys!(SYS_move_mount, CWD, c"a", CWD, c"b", 0));
            refused(sys!(SYS_fspick, CWD, c"c", 0));
            let read_only = [1u64, 0, 0, 0];
            refused(sys!(SYS_mount_setattr, CWD, c"d", 0, read_only.as_ptr(), 32));
            refused(sys!(SYS_fsconfig, 12345, FSCONFIG_SET_PATH, c"source", c"e", CWD));
            refused(sys!(SYS_fsmount, 12345, 0, 0));
        })
        .then(
            "a | existence | directory | directory
             b | existence | directory | directory
             c | existence | directory | directory
             d | existence | directory | directory
             e | existence | directory | directory",
        ),
    case("opens_trees", &["open_tree"])
        .given(|| {
            dir("d");
            symlink("d", "l");
            symlink("d", "m");
        })
        .when(|| {
            ok(sys!(SYS_open_tree, CWD, c"l", 0));
            ok(sys!(SYS_open_tree, CWD, c"m", AT_SYMLINK_NOFOLLOW));
            fails(ENOENT, sys!(SYS_open_tree, CWD, c"x", 0));
        })
        .then(
            "d | existence | directory | directory
             l | existence | symlink | symlink
             m | existence | symlink | symlink
             x | existence | absent | absent",
        ),
    case("opens_trees_with_attributes", &["open_tree_attr"])
        .given(|| dir("d"))
        .when(|| {
            ok(sys!(SYS_OPEN_TREE_ATTR, CWD, c"d", 0, 0, 0));
        })
        .then("d | existence | directory | directory"),
];

const ROOTS: &[Case] = &[
    case("pivots_nothing", &["pivot_root"])
        .given(|| {
            dir("a");
            dir("b");
        })
        .when(|| refused(sys!(SYS_pivot_root, c"a", c"b")))
        .then(
            "a | existence | directory | directory
             b | existence | directory | directory",
        ),
    case("gets_another_root", &["chroot"])
        .only_root()
        .given(|| {
            dir("d");
            file("d/f");
            symlink("/f", "d/l");
        })
        .when(|| {
            if sys!(SYS_chroot, c"d").is_err() {
                skip("no chroot here");
            }
            ok(sys!(SYS_open, c"/../l", O_RDONLY));
            ok(sys!(SYS_chdir, c"/"));
            ok(sys!(SYS_open, c"f", O_WRONLY));
        })
        .then(
            "d | directory | directory | directory
             d/f | read,write | file | file
             d/l | existence | symlink | symlink",
        ),
    case("gets_no_other_root", &["chroot"])
        .given(|| file("f"))
        .when(|| {
            refused(sys!(SYS_chroot, c"x"));
            fails(ENOTDIR, sys!(SYS_chroot, c"f"));
            fails(EFAULT, sys!(SYS_chroot, NOWHERE));
        })
        .then("x | existence | absent | absent"),
    case("is_refused_another_root", &["chroot"])
        .only_user()
        .given(|| dir("d"))
        .when(|| fails(EPERM, sys!(SYS_chroot, c"d")))
        .then("d | existence | directory | directory"),
];

const ADMINISTRATION: &[Case] = &[
    case("swaps_nothing", &["swapon", "swapoff"])
        .given(|| ["a", "b"].into_iter().for_each(file))
        .when(|| {
            refused(sys!(SYS_swapon, c"a", 0));
            refused(sys!(SYS_swapoff, c"b"));
        })
        .then(
            "a | existence | file | file
             b | existence | file | file",
        ),
    case("accounts_for_nothing", &["acct"])
        .given(|| dir("d"))
        .when(|| {
            refused(sys!(SYS_acct, c"d"));
            refused(sys!(SYS_acct, c"x"));
        })
        .then(
            "d | existence | directory | directory
             x | existence | absent | absent",
        ),
    case("has_no_quota", &["quotactl"])
        .given(|| ["a", "b"].into_iter().for_each(file))
        .when(|| {
            const Q_QUOTAON: u32 = 0x8000_0200;
            refused(sys!(SYS_quotactl, Q_QUOTAON, c"a", 2, c"b"));
        })
        .then(
            "a | existence | file | file
             b | existence | file | file",
        ),
    case("uses_no_library", &["uselib"])
        .given(|| file("f"))
        .when(|| refused(sys!(SYS_uselib, c"f")))
        .then("f | existence | file | file"),
    case("pins_nothing", &["bpf"])
        .given(|| file("f"))
        .when(|| {
            const OBJ_PIN: c_int = 6;
            const OBJ_GET: c_int = 7;
            let (pin, get) = ([c"x".as_ptr() as u64, 0], [c"f".as_ptr() as u64, 0]);
            refused(sys!(SYS_bpf, OBJ_PIN, pin.as_ptr(), 16));
            refused(sys!(SYS_bpf, OBJ_GET, get.as_ptr(), 16));
        })
        .then(
            "f | existence | file | file
             x | existence | absent | absent",
        ),
];

fn main() {
    support::run(&[MOUNTS, ROOTS, ADMINISTRATION]);
}
