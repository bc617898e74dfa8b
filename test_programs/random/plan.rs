//! The tree that a program starts in, by its seed.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::os::unix::net::UnixListener;
use std::path::Path;

use crate::names::{self, join};
use crate::rng::Rng;
use crate::world::{Kind, Model};

enum Made {
    Directory,
    File { content: Vec<u8>, executable: bool },
    HardLink { of: Vec<u8> },
    Link { text: Vec<u8> },
    Fifo,
    Socket,
}

/// What is made, in order.
fn plan(seed: u64) -> Vec<(Vec<u8>, Made)> {
    let mut rng = Rng::new(seed ^ 0x7472_6565);
    let mut taken = BTreeMap::new();
    let mut made = Vec::new();
    let mut directories = vec![Vec::new()];
    let mut files: Vec<Vec<u8>> = Vec::new();
    // The parts of a program that know nothing of the rest start from these.
    for path in [&b"a"[..], b"b", b"a/c", b"b/d"] {
        taken.insert(path.to_vec(), ());
        directories.push(path.to_vec());
        made.push((path.to_vec(), Made::Directory));
    }
    for _ in 0..rng.below(22) + 6 {
        let directory = directories[rng.index(directories.len())].clone();
        let path = join(&directory, names::name(&mut rng));
        if taken.insert(path.clone(), ()).is_some() || names::depth(&path) > 4 {
            continue;
        }
        let what = match rng.below(20) {
            0..4 => {
                directories.push(path.clone());
                Made::Directory
            }
            4..12 => {
                files.push(path.clone());
                let executable = rng.chance(15);
                let content = if executable { script(&mut rng, &files) } else { rng.content() };
                Made::File { content, executable }
            }
            12..14 if !files.is_empty() => Made::HardLink { of: files[rng.index(files.len())].clone() },
            12..17 => {
                let to = if rng.chance(70) || files.is_empty() { &directories } else { &files };
                let target = to[rng.index(to.len())].clone();
                let up = b"../".repeat(names::depth(&path) - 1);
                let text = match rng.below(8) {
                    0 => b"nowhere".to_vec(),
                    1 => path.rsplit(|byte| *byte == b'/').next().unwrap().to_vec(),
                    2 => [b"./".as_slice(), &up, &target, b"/"].concat(),
                    _ if target.is_empty() && up.is_empty() => b".".to_vec(),
                    _ => [up.as_slice(), &target].concat(),
                };
                Made::Link { text }
            }
            17..19 => Made::Fifo,
            _ => Made::Socket,
        };
        made.push((path, what));
    }
    made
}

/// A program that the kernel takes, or does not.
fn script(rng: &mut Rng, files: &[Vec<u8>]) -> Vec<u8> {
    let interpreter = match rng.below(4) {
        0 => b"/bin/true".to_vec(),
        1 => b"/bin/sh -e".to_vec(),
        2 => files[rng.index(files.len())].clone(),
        _ => b"/nowhere/sh".to_vec(),
    };
    [b"#!", interpreter.as_slice(), b"\nexit 0\n"].concat()
}

/// Makes the tree in the working directory.
pub fn make(seed: u64) {
    for (path, what) in plan(seed) {
        let at = Path::new(OsStr::from_bytes(&path));
        match what {
            Made::Directory => fs::create_dir(at).unwrap(),
            Made::File { content, executable } => {
                fs::write(at, content).unwrap();
                if executable {
                    fs::set_permissions(at, fs::Permissions::from_mode(0o755)).unwrap();
                }
            }
            Made::HardLink { of } => fs::hard_link(OsStr::from_bytes(&of), at).unwrap(),
            Made::Link { text } => symlink(OsStr::from_bytes(&text), at).unwrap(),
            Made::Fifo => {
                let path = std::ffi::CString::new(path).unwrap();
                support_fifo(&path);
            }
            Made::Socket => drop(UnixListener::bind(at).unwrap()),
        }
    }
}

fn support_fifo(path: &std::ffi::CStr) {
    crate::support::ok(sys!(crate::support::legacy::SYS_mknod, path, libc::S_IFIFO | 0o644, 0));
}

/// What is known of the tree.
pub fn model(seed: u64) -> Model {
    let mut model = Model::default();
    for (path, what) in plan(seed) {
        let kind = match what {
            Made::Directory => Kind::Directory,
            Made::File { .. } | Made::HardLink { .. } => Kind::File,
            Made::Link { text } => Kind::Link(names::normal(&join(names::parent(&path), &text))),
            Made::Fifo | Made::Socket => Kind::Other,
        };
        model.insert(path, kind);
    }
    model
}
