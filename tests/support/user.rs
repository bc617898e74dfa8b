//! Who runs a test, and an ordinary user for those of root.

use std::path::Path;

use nix::unistd::geteuid;

/// The ordinary user that root becomes, and its group.
pub const NOBODY: u32 = 65_534;

/// Who runs a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum User {
    /// The one who runs the tests.
    Current,
    /// An ordinary user, though the tests are root's.
    Nobody,
}

impl User {
    /// Those as whom commands can be run; only who runs the tests if `TESTS_AS_ONE_USER` is set, as `.ci/run` does where it
    /// runs them as each user.
    pub fn all() -> &'static [User] {
        let has_others = std::env::var_os("TESTS_AS_ONE_USER").is_none() && needs_root("another user");
        if has_others { &[User::Current, User::Nobody] } else { &[User::Current] }
    }

    /// An ordinary user, who may be the one who runs the tests.
    pub fn ordinary() -> User {
        if is_root() { User::Nobody } else { User::Current }
    }

    /// Whether permissions do not apply.
    pub fn is_root(self) -> bool {
        self == User::Current && is_root()
    }
}

/// Whether the tests run as root.
pub fn is_root() -> bool {
    geteuid().is_root()
}

/// Whether the tests run as root; if not, the reason of a skip is printed.
pub fn needs_root(what: &str) -> bool {
    if !is_root() {
        println!("skipped: {what} needs root");
    }
    is_root()
}

/// Gives `root` and everything below it to [`NOBODY`].
pub fn give_away(root: &Path) {
    for entry in walkdir::WalkDir::new(root) {
        std::os::unix::fs::lchown(entry.unwrap().path(), Some(NOBODY), Some(NOBODY)).unwrap();
    }
}
