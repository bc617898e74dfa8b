//! The kernel's own answer, for random trees of symlinks and random spellings of paths.

use std::fs;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use proptest::collection::vec;
use proptest::prelude::*;
use rustix::fs::{CWD, Mode, OFlags};
use rustix::io::Errno;

use super::*;

/// One thing of a random tree.
#[derive(Debug, Clone)]
enum Node {
    Directory(String),
    File(String),
    Link(String, String),
}

/// Few names, so that paths meet.
fn name() -> impl Strategy<Value = String> {
    prop_oneof![6 => "[abc]", 1 => Just(".".to_owned()), 2 => Just("..".to_owned())]
}

fn spelling() -> impl Strategy<Value = String> {
    (vec(name(), 1..6), any::<bool>(), any::<bool>()).prop_map(|(names, doubled, slash)| {
        let path = names.join(if doubled { "//" } else { "/" });
        if slash { path + "/" } else { path }
    })
}

fn node() -> impl Strategy<Value = Node> {
    let place = || vec("[abc]", 1..4).prop_map(|names| names.join("/"));
    prop_oneof![
        3 => place().prop_map(Node::Directory),
        1 => place().prop_map(Node::File),
        // ROOT is where the tree is: an absolute target.
        4 => (place(), spelling(), any::<bool>()).prop_map(|(path, target, absolute)| {
            Node::Link(path, if absolute { format!("ROOT/{target}") } else { target })
        }),
    ]
}

fn make(root: &Path, nodes: &[Node]) {
    for node in nodes {
        // What is in the way of what, is.
        let _ = match node {
            Node::Directory(path) => fs::create_dir_all(root.join(path)),
            Node::File(path) => fs::write(root.join(path), "x"),
            Node::Link(path, target) => {
                let target = target.replace("ROOT", root.to_str().unwrap());
                std::os::unix::fs::symlink(target, root.join(path))
            }
        };
    }
}

/// The name of what the kernel finds, or its error.
fn kernel(base: &Path, path: &str, follow: bool) -> Result<Vec<u8>, Errno> {
    let base = rustix::fs::open(base, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).unwrap();
    let nofollow = if follow { OFlags::empty() } else { OFlags::NOFOLLOW };
    let found = rustix::fs::openat(&base, path, OFlags::PATH | OFlags::CLOEXEC | nofollow, Mode::empty())?;
    let link = format!("/proc/self/fd/{}", found.as_raw_fd());
    Ok(rustix::fs::readlinkat(CWD, link, Vec::new()).unwrap().into_bytes())
}

/// The real path of the parent, with the last component, where the kernel finds the parent and nothing
/// in it.
fn absent(base: &Path, path: &str) -> Option<Vec<u8>> {
    let (parent, name) = path.rsplit_once('/').unwrap_or((".", path));
    let parent = kernel(base, if parent.is_empty() { "/" } else { parent }, true).ok()?;
    Some([trim_root(&parent), b"/", name.as_bytes()].concat())
}

fn check(
    resolver: &mut Resolver,
    root: &Path,
    base: &str,
    path: &str,
    follow: bool,
) -> Result<(), TestCaseError> {
    let base = root.join(base);
    let Ok(base) = base.canonicalize() else { return Ok(()) };
    if !base.is_dir() {
        return Ok(());
    }
    let names = Viewpoint { prefix: Vec::new(), root: Vec::new(), mounts: None, process: 1, thread: 1 };
    let found = resolver.resolve(&names, base.as_os_str().as_bytes(), path.as_bytes(), follow);
    match (kernel(&base, path, follow), found) {
        (Ok(expected), Ok(found)) => {
            prop_assert_eq!(&found.path, &expected);
            prop_assert!(found.stat.is_some());
            for link in &found.crossed {
                let parent = Path::new(std::ffi::OsStr::from_bytes(parent_of(&link.path).unwrap()));
                prop_assert_eq!(parent.canonicalize().unwrap(), parent, "a link has its real name");
                prop_assert!(is_symlink(&link.stat));
            }
        }
        // A file that must be a directory.
        (Err(Errno::NOTDIR), Ok(found)) => prop_assert!(found.must_be_directory),
        (Err(Errno::NOTDIR), Err(error)) => prop_assert!(matches!(error, Unresolved::NotADirectory(_))),
        (Err(Errno::LOOP), Err(error)) => prop_assert!(matches!(error, Unresolved::Loop(_))),
        (Err(Errno::NOENT), Ok(found)) => {
            prop_assert!(found.stat.is_none());
            if let Some(expected) = absent(&base, path).filter(|_| !follow && !path.ends_with('/')) {
                prop_assert_eq!(&found.path, &expected);
            }
        }
        (expected, found) => prop_assert!(false, "the kernel says {expected:?}, and we {found:?}"),
    }
    Ok(())
}

#[test]
fn a_link_whose_target_ends_in_a_slash_leads_to_a_directory() {
    let place = tempfile::tempdir().unwrap();
    let root = place.path().canonicalize().unwrap();
    fs::write(root.join("file"), "x").unwrap();
    std::os::unix::fs::symlink("file/", root.join("link")).unwrap();
    check(&mut Resolver::default(), &root, ".", "link", true).unwrap();
}

#[test]
fn a_walk_stops_at_what_is_served_by_whatever_way_it_comes_there() {
    let place = tempfile::tempdir().unwrap();
    let root = place.path().canonicalize().unwrap();
    fs::create_dir_all(root.join("mnt/d")).unwrap();
    fs::create_dir(root.join("mntx")).unwrap();
    std::os::unix::fs::symlink("mnt/d", root.join("link")).unwrap();
    let open = fs::File::open(root.join("mnt/d")).unwrap();
    let magic = format!("/proc/{}/fd/{}", std::process::id(), open.as_raw_fd());
    let names = Viewpoint { prefix: Vec::new(), root: Vec::new(), mounts: None, process: 1, thread: 1 };
    let base = root.as_os_str().as_bytes();
    let mut resolver = Resolver::default();
    // Once while it can be met, and known, and once when it is served.
    for served in [false, true] {
        for path in ["mnt/d/none", "mnt", "mnt/../mnt/d", "link/x", &magic] {
            let found = resolver.resolve(&names, base, path.as_bytes(), true);
            let stopped = match &found {
                Err(Unresolved::Served(at)) => at.starts_with(root.join("mnt").as_os_str().as_bytes()),
                _ => false,
            };
            assert_eq!(stopped, served, "{path}: {found:?}");
        }
        for path in ["mntx/none", ".", "link"] {
            assert!(resolver.resolve(&names, base, path.as_bytes(), false).is_ok(), "{path}");
        }
        assert_eq!(resolver.named_object(magic.as_bytes()).is_ok(), !served);
        resolver.set_served(vec![root.join("mnt").into_os_string().into_encoded_bytes()], Vec::new());
    }
}

/// A resolver that has met the directories of `root`, which are named by relative paths.
fn having_met(root: &Path, directories: &[&str]) -> Resolver {
    let mut resolver = Resolver::default();
    for directory in directories {
        fs::create_dir_all(root.join(directory)).unwrap();
        meet(&mut resolver, root, directory);
    }
    resolver
}

fn meet(resolver: &mut Resolver, root: &Path, path: &str) {
    let names = Viewpoint { prefix: Vec::new(), root: Vec::new(), mounts: None, process: 1, thread: 1 };
    resolver.resolve(&names, root.as_os_str().as_bytes(), path.as_bytes(), true).unwrap();
}

fn changed_outside(resolver: &Resolver, root: &Path) -> Vec<String> {
    let root = format!("{}/", root.display());
    let names = resolver.changed_outside().into_iter().map(|path| String::from_utf8(path).unwrap());
    names.map(|path| path.strip_prefix(&root).unwrap().to_owned()).collect()
}

#[test]
fn directories_that_nobody_traced_has_replaced_are_told() {
    let place = tempfile::tempdir().unwrap();
    let root = place.path().canonicalize().unwrap();
    let met = ["same", "moved/in", "removed/in", "linked/in", "again/in", "again/other"];
    let mut resolver = having_met(&root, &met);
    assert_eq!(changed_outside(&resolver, &root), [""; 0]);
    fs::rename(root.join("moved"), root.join("elsewhere")).unwrap();
    fs::remove_dir_all(root.join("removed")).unwrap();
    fs::rename(root.join("linked"), root.join("target")).unwrap();
    std::os::unix::fs::symlink("target", root.join("linked")).unwrap();
    fs::rename(root.join("again/in"), root.join("away")).unwrap();
    fs::create_dir(root.join("again/in")).unwrap();
    assert_eq!(changed_outside(&resolver, &root), ["again/in", "linked", "moved", "removed"]);
    // One that is met again is another from then on, which changes nothing about what was before.
    resolver.forget();
    meet(&mut resolver, &root, "again/in/x");
    assert_eq!(changed_outside(&resolver, &root), ["again/in", "linked", "moved", "removed"]);
}

#[test]
fn directories_are_followed_through_traced_renames() {
    let place = tempfile::tempdir().unwrap();
    let root = place.path().canonicalize().unwrap();
    let met = ["a/in/deep", "b", "x/in", "y/in", "gone/in", "under/in"];
    let mut resolver = having_met(&root, &met);
    let name = |path: &str| [root.as_os_str().as_bytes(), b"/", path.as_bytes()].concat();
    // a replaces b, and goes on to c/d; another a comes.
    fs::rename(root.join("a"), root.join("b")).unwrap();
    resolver.renamed(&name("a"), &name("b"), false);
    fs::create_dir_all(root.join("c")).unwrap();
    fs::rename(root.join("b"), root.join("c/d")).unwrap();
    resolver.renamed(&name("b"), &name("c/d"), false);
    fs::create_dir_all(root.join("a/in/deep")).unwrap();
    meet(&mut resolver, &root, "a/in/deep/");
    // x and y are exchanged.
    fs::rename(root.join("x"), root.join("z")).unwrap();
    fs::rename(root.join("y"), root.join("x")).unwrap();
    fs::rename(root.join("z"), root.join("y")).unwrap();
    resolver.renamed(&name("x"), &name("y"), true);
    // A directory is renamed and removed by its new name.
    fs::rename(root.join("gone"), root.join("went")).unwrap();
    resolver.renamed(&name("gone"), &name("went"), false);
    for directory in ["went/in", "went"] {
        fs::remove_dir(root.join(directory)).unwrap();
        resolver.forget_directory(&name(directory));
    }
    // Another thing than before, as under a mount.
    fs::remove_dir_all(root.join("under")).unwrap();
    fs::create_dir(root.join("under")).unwrap();
    resolver.mounts_changed(&name("under"));
    assert_eq!(changed_outside(&resolver, &root), [""; 0]);
    // What an outsider does then is told by the names of now.
    fs::rename(root.join("c/d/in"), root.join("c/e")).unwrap();
    fs::remove_dir(root.join("y/in")).unwrap();
    assert_eq!(changed_outside(&resolver, &root), ["c/d/in", "y/in"]);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]
    #[test]
    fn every_spelling_leads_where_the_kernel_says(
        nodes in vec(node(), 0..14),
        asked in vec((spelling(), spelling(), any::<bool>(), any::<bool>()), 1..12),
    ) {
        let place = tempfile::tempdir().unwrap();
        // So deep that no `..` leads out to what others have made.
        let root = place.path().canonicalize().unwrap().join("d/".repeat(20));
        fs::create_dir_all(&root).unwrap();
        make(&root, &nodes);
        // One resolver, which remembers, for all of them; and each twice.
        let mut resolver = Resolver::default();
        for (base, path, follow, absolute) in asked.iter().chain(&asked) {
            let path = if *absolute { format!("{}/{path}", root.display()) } else { path.clone() };
            check(&mut resolver, &root, base, &path, *follow)?;
        }
    }
}
