use std::fs;
use std::io::Read as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::time::{Duration, UNIX_EPOCH};

use super::super::manifest::FileType as Kind;
use super::*;
use crate::fs::{lstat, open_regular};

fn bytes(path: &Path) -> &[u8] {
    path.as_os_str().as_bytes()
}

fn look(path: &Path) -> Present {
    present(&lstat(bytes(path)).unwrap().unwrap(), bytes(path)).unwrap()
}

#[test]
fn what_is_not_there_is_none() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    assert!(lstat(bytes(&file)).unwrap().is_none());
    fs::write(&file, "").unwrap();
    assert!(lstat(bytes(&file.join("below"))).unwrap().is_none());
    assert!(lstat(b"/a\0b").is_err());
}

#[test]
fn every_type_is_seen_without_being_opened() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    fs::write(at("file"), "12345").unwrap();
    symlink("nowhere/\u{e9}", at("link")).unwrap();
    nix::unistd::mkfifo(&at("fifo"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    let _socket = UnixListener::bind(at("socket")).unwrap();

    let file = look(&at("file"));
    let stat = fs::metadata(at("file")).unwrap();
    assert_eq!((file.file_type, file.size, file.rdev, &file.target), (Kind::File, 5, None, &None));
    assert_eq!((file.mode, file.uid, file.ino, file.dev), (stat.mode(), stat.uid(), stat.ino(), stat.dev()));
    assert_eq!((file.mtime, i64::from(file.mtime_nsec)), (stat.mtime(), stat.mtime_nsec()));
    let link = look(&at("link"));
    assert_eq!(link.file_type, Kind::Symlink);
    assert_eq!(link.target.as_deref(), Some("nowhere/\u{e9}".as_bytes()));
    assert_eq!(look(&at("fifo")).file_type, Kind::Fifo);
    assert_eq!(look(&at("socket")).file_type, Kind::Socket);
    assert_eq!(look(dir.path()).file_type, Kind::Directory);
    let null = look(Path::new("/dev/null"));
    assert_eq!((null.file_type, null.rdev), (Kind::CharDevice, Some(libc::makedev(1, 3))));
}

#[test]
fn only_a_regular_file_is_opened_and_nothing_blocks() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    fs::write(at("file"), "text").unwrap();
    symlink("file", at("link")).unwrap();
    nix::unistd::mkfifo(&at("fifo"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    let mut text = String::new();
    open_regular(bytes(&at("file"))).unwrap().read_to_string(&mut text).unwrap();
    assert_eq!(text, "text");
    assert_eq!(open_regular(bytes(&at("fifo"))).unwrap_err().kind(), io::ErrorKind::InvalidInput);
    assert_eq!(open_regular(bytes(dir.path())).unwrap_err().kind(), io::ErrorKind::InvalidInput);
    assert!(open_regular(bytes(&at("link"))).is_err());
}

#[test]
fn reading_and_listing_leave_the_access_times_alone() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("file");
    fs::write(&path, "text").unwrap();
    // Older than the modification: a mount with relatime would move it (mount(8)).
    let old = UNIX_EPOCH + Duration::from_secs(1);
    for place in [path.as_path(), dir.path()] {
        File::open(place).unwrap().set_times(fs::FileTimes::new().set_accessed(old)).unwrap();
    }
    open_regular(bytes(&path)).unwrap().read_to_end(&mut Vec::new()).unwrap();
    entries(bytes(dir.path())).unwrap();
    assert_eq!(fs::metadata(&path).unwrap().accessed().unwrap(), old);
    assert_eq!(fs::metadata(dir.path()).unwrap().accessed().unwrap(), old);
}

#[test]
fn the_digest_of_entries_is_that_of_their_sorted_names() {
    let dir = tempfile::tempdir().unwrap();
    let empty = entries_digest(bytes(dir.path())).unwrap();
    assert_eq!(empty, Digest::of(b""));
    for name in [b"b".as_slice(), b".a", b"\xff", b"a"] {
        fs::write(dir.path().join(std::ffi::OsStr::from_bytes(name)), "").unwrap();
    }
    assert_eq!(entries(bytes(dir.path())).unwrap(), [b".a".as_slice(), b"a", b"b", b"\xff"]);
    assert_eq!(entries_digest(bytes(dir.path())).unwrap(), Digest::of(b".a\0a\0b\0\xff\0"));
    let link = dir.path().join("link");
    symlink(".", &link).unwrap();
    assert!(entries(bytes(&link)).is_err());
}

#[test]
fn extended_attributes_are_read_and_links_are_not_followed() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("file");
    fs::write(&path, "").unwrap();
    let large = vec![7; 3000];
    for (name, value) in [("user.a", b"\0\xff".as_slice()), ("user.empty", b""), ("user.large", &large)] {
        if !set_xattr(&path, name, value) {
            return;
        }
    }
    let found: Vec<_> =
        xattrs(bytes(&path)).unwrap().into_iter().filter(|(name, _)| name.starts_with(b"user.")).collect();
    let expected = [(b"user.a".to_vec(), b"\0\xff".to_vec()), (b"user.empty".to_vec(), vec![])];
    assert_eq!(found[..2], expected);
    assert_eq!(found[2], (b"user.large".to_vec(), large));
    let link = dir.path().join("link");
    symlink("file", &link).unwrap();
    assert!(!xattrs(bytes(&link)).unwrap().contains_key(b"user.a".as_slice()));
    assert!(xattrs(bytes(&dir.path().join("none"))).is_err());
}

/// Sets an attribute, or says why it can't be had here.
fn set_xattr(path: &Path, name: &str, value: &[u8]) -> bool {
    let set = rustix::fs::lsetxattr(path, name, value, rustix::fs::XattrFlags::empty());
    if let Err(error) = set {
        println!("skipped: {name} can't be set on {}: {error}", path.display());
    }
    set.is_ok()
}

/// Runs `work` on a thread without root's privileges, in a directory of its own.
fn as_ordinary_user<T: Send>(work: impl FnOnce(&Path) -> T + Send) -> T {
    let dir = tempfile::tempdir().unwrap();
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            if nix::unistd::geteuid().is_root() {
                std::os::unix::fs::chown(dir.path(), Some(65534), None).unwrap();
                let user = rustix::thread::Uid::from_raw(65534);
                // Of this thread alone, not of the whole process as by setresuid(3).
                rustix::thread::set_thread_res_uid(user, user, user).unwrap();
            }
            work(dir.path())
        });
        thread.join().unwrap()
    })
}

#[test]
fn an_extended_attribute_that_may_not_be_read_is_told_from_none() {
    as_ordinary_user(|dir| {
        let path = dir.join("file");
        fs::write(&path, "").unwrap();
        if !set_xattr(&path, "user.secret", b"value") {
            return;
        }
        assert_eq!(xattrs(bytes(&path)).unwrap()[b"user.secret".as_slice()], b"value");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o000)).unwrap();
        let error = xattrs(bytes(&path)).unwrap_err();
        let why = "read its extended attribute user.secret: Permission denied (os error 13)";
        assert_eq!(error.to_string(), why);
        assert!(!error.readable.contains_key(b"user.secret".as_slice()));
        assert_eq!(io::Error::from(error).kind(), io::ErrorKind::PermissionDenied);
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0, "its permissions were opened");

        fs::remove_file(&path).unwrap();
        fs::write(&path, "").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o000)).unwrap();
        assert!(!xattrs(bytes(&path)).unwrap().contains_key(b"user.secret".as_slice()));
    });
}

#[test]
fn the_extended_attributes_of_a_symlink_are_its_own() {
    let dir = tempfile::tempdir().unwrap();
    let (file, link) = (dir.path().join("file"), dir.path().join("link"));
    fs::write(&file, "").unwrap();
    symlink("file", &link).unwrap();
    // Those of `user` are for files and directories alone (xattr(7)).
    if !set_xattr(&link, "trusted.own", b"of the link") {
        return;
    }
    assert_eq!(xattrs(bytes(&link)).unwrap()[b"trusted.own".as_slice()], b"of the link");
    assert!(!xattrs(bytes(&file)).unwrap().contains_key(b"trusted.own".as_slice()));
}

#[test]
fn extended_attributes_beyond_the_longest_list_are_told_from_none() {
    // Few filesystems take so many; tmpfs does.
    let Ok(dir) = tempfile::tempdir_in("/dev/shm") else { return println!("skipped: no /dev/shm") };
    let path = dir.path().join("file");
    fs::write(&path, "").unwrap();
    for number in 0..300 {
        if !set_xattr(&path, &format!("trusted.{number:0>200}"), b"") {
            return;
        }
    }
    assert_eq!(xattrs(bytes(&path)).unwrap().len(), 300);
    for number in 300..400 {
        assert!(set_xattr(&path, &format!("trusted.{number:0>200}"), b""));
    }
    let error = xattrs(bytes(&path)).unwrap_err();
    assert!(error.to_string().starts_with("list its extended attributes: Argument list too long"), "{error}");
}

#[test]
fn inode_flags_are_those_of_chattr() {
    use rustix::fs::IFlags;
    let dir = tempfile::tempdir().unwrap();
    let (path, link) = (dir.path().join("file"), dir.path().join("link"));
    fs::write(&path, "").unwrap();
    symlink("file", &link).unwrap();
    assert!(inode_flags(bytes(&path)).unwrap().is_empty());
    let file = File::open(&path).unwrap();
    let flags = match rustix::fs::ioctl_getflags(&file) {
        Ok(flags) => flags,
        Err(error) => return println!("skipped: the filesystem has no inode flags: {error}"),
    };
    for (bit, flag) in [
        (IFlags::NODUMP, InodeFlag::Nodump),
        (IFlags::APPEND, InodeFlag::Append),
        (IFlags::IMMUTABLE, InodeFlag::Immutable),
    ] {
        if let Err(error) = rustix::fs::ioctl_setflags(&file, flags | bit) {
            println!("skipped: {flag:?} can't be set here: {error}");
            continue;
        }
        let found = inode_flags(bytes(&path)).unwrap();
        let of_link = inode_flags(bytes(&link)).unwrap();
        rustix::fs::ioctl_setflags(&file, flags).unwrap();
        assert_eq!(found, [flag].into());
        assert!(of_link.is_empty());
    }
    assert!(inode_flags(bytes(&dir.path().join("none"))).is_err());
}

#[test]
fn what_the_kernel_makes_up_is_told_from_files() {
    let dir = tempfile::tempdir().unwrap();
    for (path, pseudo) in [
        (b"/proc/self/status".as_slice(), true),
        (b"/proc/no such thing/x", true),
        (b"/no such thing/x", false),
        (b"/no such thing", false),
        (b"/", false),
        (bytes(&dir.path().join("new")), false),
    ] {
        assert_eq!(is_pseudo_filesystem(path).unwrap(), pseudo, "{}", String::from_utf8_lossy(path));
    }
    assert!(is_pseudo_filesystem(b"relative and not there").is_err());
}
