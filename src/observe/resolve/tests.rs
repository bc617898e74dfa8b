//! The kernel's own answer, for random trees of links and random spellings of paths.

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
    let names = Names { prefix: Vec::new(), root: Vec::new(), process: 1, thread: 1 };
    let found = resolver.resolve(&names, base.as_os_str().as_bytes(), path.as_bytes(), follow);
    match (kernel(&base, path, follow), found) {
        (Ok(expected), Ok(found)) => {
            prop_assert_eq!(&found.path, &expected);
            prop_assert!(found.stat.is_some());
            for link in &found.crossed {
                let parent = Path::new(std::ffi::OsStr::from_bytes(parent_of(&link.path).unwrap()));
                prop_assert_eq!(parent.canonicalize().unwrap(), parent, "a link has its real name");
                prop_assert!(is_link(&link.stat));
            }
        }
        // A file that must be a directory.
        (Err(Errno::NOTDIR), Ok(found)) => prop_assert!(found.must_be_directory),
        (Err(Errno::NOTDIR), Err(error)) => prop_assert!(matches!(error, Unresolved::NotADirectory)),
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
