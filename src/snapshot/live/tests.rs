use std::fs;
use std::io::Read as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{MetadataExt as _, symlink};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::time::{Duration, UNIX_EPOCH};

use super::super::manifest::FileType as Kind;
use super::*;

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
        if let Err(error) = rustix::fs::lsetxattr(&path, name, value, rustix::fs::XattrFlags::empty()) {
            println!("skipped: the filesystem takes no user attributes: {error}");
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

#[test]
fn the_hash_of_the_machine_stays_the_same_and_hides_the_id() {
    assert_eq!(machine_id_hash(), machine_id_hash());
    let id = fs::read_to_string("/etc/machine-id").unwrap_or_default();
    assert!(id.trim().is_empty() || !machine_id_hash().to_string().contains(id.trim()));
}
