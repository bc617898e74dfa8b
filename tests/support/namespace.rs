//! The mount namespace of a recorded command, in which the directory of its place may have another name.

use std::ffi::OsString;
use std::fs;
use std::path::PathBuf;

use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};

use agent_snapshot::snapshot::SnapshotKind;

use super::{Place, is_root, works};

/// Moves the current thread into a mount namespace of its own: no test beside it sees what the thread and its children
/// mount from then on, and all of it ends with them.
pub fn unshare_mounts() -> nix::Result<()> {
    unshare(CloneFlags::CLONE_NEWNS)?;
    mount(None::<&str>, "/", None::<&str>, MsFlags::MS_REC | MsFlags::MS_PRIVATE, None::<&str>)
}

/// Where a recorded command runs. The recording has to be the same everywhere.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Namespace {
    /// In the mount namespace of the recorder.
    Shared,
    /// In one of its own, with the directory of the place bound to another one.
    Bound,
    /// The same in a root that bubblewrap makes.
    Bubblewrap,
    /// Where the recorder does, as a command of a session.
    Command,
    /// The same as what the program of a session does itself.
    Edit,
}

impl Namespace {
    /// Whether a command can run there; if not, the reason of a skip is printed.
    pub fn is_possible(self) -> bool {
        let place = Place::new();
        let words = self.words(&place);
        words.is_empty() || works(place.program(&words[0]).args(&words[1..]).arg("true"))
    }

    /// What comes before the words of a command that is to run there, in the directory of the place.
    pub fn words(self, place: &Place) -> Vec<OsString> {
        let is_ordinary = !(is_root() && place.is_of_current_user());
        let unshare = if is_ordinary { "-rm" } else { "-m" };
        // A program that is root there has rights that the recorder has not.
        let drop = if is_ordinary { "unshare --map-user=65534 --map-group=65534" } else { "" };
        let bind = format!(r#"mount --bind "$1" "$2"; cd "$2"; shift 2; exec {drop} "$@""#);
        let [work, view] = [place.work.clone(), self.directory(place)].map(PathBuf::into_os_string);
        let words: Vec<OsString> = match self {
            Namespace::Shared => return Vec::new(),
            Namespace::Command => {
                let script = r#"sh -c 'exec "$0" "$@"' "$@"; exit "$?""#;
                return ["sh", "-c", script, "sh"].map(OsString::from).into();
            }
            Namespace::Edit => return ["sh", "-c", r#""$@"; exit "$?""#, "sh"].map(OsString::from).into(),
            Namespace::Bound => ["unshare", unshare, "sh", "-euc", &bind, "sh"].map(OsString::from).into(),
            Namespace::Bubblewrap => ["bwrap", "--dev-bind", "/", "/", "--bind"].map(OsString::from).into(),
        };
        fs::create_dir_all(&view).unwrap();
        let chdir = ["--chdir".into(), view.clone()];
        let chdir = if self == Namespace::Bubblewrap { &chdir[..] } else { &[] };
        [&words, &[work, view][..], chdir].concat()
    }

    /// The name of the directory of the place there.
    pub fn directory(self, place: &Place) -> PathBuf {
        match self {
            Namespace::Shared | Namespace::Command | Namespace::Edit => place.work.clone(),
            Namespace::Bound | Namespace::Bubblewrap => place.base().join("view"),
        }
    }

    /// As which kind of step a command is recorded there, if it is one.
    pub fn step(self) -> Option<SnapshotKind> {
        match self {
            Namespace::Shared | Namespace::Bound | Namespace::Bubblewrap => None,
            Namespace::Command => Some(SnapshotKind::Command),
            Namespace::Edit => Some(SnapshotKind::Edit),
        }
    }
}
