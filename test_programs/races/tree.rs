//! The tree in which random programs race, by its seed: half of it a Git repository.

use crate::support::legacy::*;
use std::ffi::CString;
use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::process::Command;

use crate::rng::Rng;
use crate::support::CWD;

/// The directories.
pub const DIRECTORIES: [&str; 5] = ["a", "a/c", "b", "repo/d", "repo/e"];

/// The names in each of them; Git ignores the last one.
pub const NAMES: [&str; 4] = ["v", "w", "x", "y"];

/// Content of a size on either side of where it is kept in another way.
pub fn content(rng: &mut Rng) -> Vec<u8> {
    let length = match rng.below(100) {
        0..8 => 0,
        8..14 => 1,
        14..40 => 1 + rng.index(200),
        40..55 => 4096,
        55..85 => rng.pick(&[65_535, 65_536, 65_537, 100_000]),
        85..97 => 5000 + rng.index(30_000),
        _ => rng.pick(&[(1 << 20) - 1, (1 << 20) + 1]),
    };
    rng.bytes(length)
}

/// Makes the tree in the working directory.
pub fn make(seed: u64) {
    let mut rng = Rng::new(seed ^ 0x7472_6565);
    let mut files: Vec<String> = Vec::new();
    for directory in DIRECTORIES {
        fs::create_dir_all(directory).unwrap();
        for name in NAMES {
            if rng.chance(20) {
                continue;
            }
            let path = format!("{directory}/{name}");
            match rng.below(20) {
                0..3 if !files.is_empty() => {
                    fs::hard_link(&files[rng.index(files.len())], &path).unwrap();
                    files.push(path);
                }
                3 | 4 => symlink(rng.pick(&["v", "../b", "../b/w", "nowhere", "w"]), &path).unwrap(),
                5 => fs::create_dir(&path).unwrap(),
                _ => {
                    fs::write(&path, content(&mut rng)).unwrap();
                    let mode = rng.pick(&[0o644, 0o600, 0o755]);
                    fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
                    files.push(path);
                }
            }
        }
    }
    for path in &files {
        let path = CString::new(path.as_str()).unwrap();
        if rng.chance(15) {
            let _ = sys!(SYS_setxattr, path.as_c_str(), c"user.a", c"value", 5, 0);
        }
    }
    if rng.chance(5) {
        // Longer than one row of the blobs.
        let bytes = rng.bytes(1 << 16).repeat(17 * 16);
        fs::write(&files[0], bytes).unwrap();
    }
    if rng.chance(50) {
        // Long before the index is written, or it could answer for none of them.
        for path in &files {
            let path = CString::new(path.as_str()).unwrap();
            let _ = sys!(
                SYS_utimensat,
                CWD,
                path.as_c_str(),
                [1_700_000_000_i64, 0, 1_700_000_000, 7].as_ptr(),
                0
            );
        }
    }
    repository();
    // Some of what Git tracks is dirty.
    for path in files.iter().filter(|path| path.starts_with("repo/")) {
        if rng.chance(30) {
            fs::write(path, content(&mut rng)).unwrap();
        }
    }
}

/// Makes `repo` a repository, all of it committed.
fn repository() {
    fs::write("repo/.gitignore", "y\n").unwrap();
    let script = "git init -q --template= . && git add -A &&
        git -c user.name=n -c user.email=e@example.com -c commit.gpgsign=false -c gc.auto=0 commit -qm c";
    let mut git = Command::new("sh");
    git.args(["-c", script]).current_dir("repo");
    git.env("GIT_CONFIG_GLOBAL", "/dev/null").env("GIT_CONFIG_NOSYSTEM", "1");
    assert!(git.status().unwrap().success(), "git");
}
