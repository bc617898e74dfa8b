//! Where the library of this user is.

use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use super::error::{Error, failed};
use crate::snapshot::printable;

/// Where the library is, or is to be made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// Its directory.
    pub root: PathBuf,
    /// Why it is not where it would be looked for first, if the home directory can't be used.
    pub instead: Option<String>,
}

impl Place {
    /// The place of this user's library: `$AGENT_SNAPSHOT_LIBRARY`, else below `$XDG_STATE_HOME`, else below the
    /// home directory, else, if that is missing or can't be written to, in `/var/tmp`.
    pub fn of_this_user() -> Place {
        let variable = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
        if let Some(library) = variable("AGENT_SNAPSHOT_LIBRARY") {
            let root = std::path::absolute(&library).unwrap_or_else(|_| library.into());
            return Place { root, instead: None };
        }
        let uid = rustix::process::geteuid().as_raw();
        let home = own_home(variable("HOME").map(PathBuf::from), uid);
        let state = variable("XDG_STATE_HOME").map(PathBuf::from);
        // A relative value counts as unset (XDG Base Directory Specification); another user's is not ours.
        let state = state
            .filter(|state| state.is_absolute() && nearest(state).is_none_or(|stat| stat.uid() == uid))
            .or_else(|| home.as_ref().map(|home| home.join(".local/state")));
        match state {
            Some(state) if is_usable(&state.join("agent-snapshot")) => {
                Place { root: state.join("agent-snapshot"), instead: None }
            }
            other => {
                let root = PathBuf::from(format!("/var/tmp/agent-snapshot-{uid}"));
                let why = match other {
                    Some(state) => {
                        format!("{} can't be written to", printable(state.as_os_str().as_encoded_bytes()))
                    }
                    None => "there is no home directory".to_owned(),
                };
                let instead = Some(format!("{why}: the library is {}", root.display()));
                Place { root, instead }
            }
        }
    }
}

/// The home directory that the environment names if it belongs to this user, else that of the passwd entry: root
/// may have the environment of somebody else.
fn own_home(named: Option<PathBuf>, uid: u32) -> Option<PathBuf> {
    let is_own = |home: &PathBuf| {
        home.is_absolute() && fs::metadata(home).is_ok_and(|stat| stat.is_dir() && stat.uid() == uid)
    };
    named.filter(is_own).or_else(|| crate::fs::home_of(uid).filter(is_own))
}

/// The nearest directory above or at `path` that exists.
fn nearest(path: &Path) -> Option<fs::Metadata> {
    path.ancestors().find_map(|path| fs::metadata(path).ok())
}

/// Whether a directory can be written to, or made.
fn is_usable(path: &Path) -> bool {
    path.ancestors().find(|path| fs::symlink_metadata(path).is_ok()).is_some_and(|there| {
        rustix::fs::accessat(
            rustix::fs::CWD,
            there,
            rustix::fs::Access::WRITE_OK | rustix::fs::Access::EXEC_OK,
            rustix::fs::AtFlags::EACCESS,
        )
        .is_ok()
    })
}

/// Makes a directory that is this user's alone, with its parents.
pub fn make(path: &Path) -> Result<(), Error> {
    fs::DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(failed("make", path))
}

/// Checks that nobody but this user may write to the directory.
pub fn check(path: &Path) -> Result<(), Error> {
    let stat = fs::symlink_metadata(path).map_err(failed("open", path))?;
    let shown = printable(path.as_os_str().as_encoded_bytes());
    let uid = rustix::process::geteuid().as_raw();
    if !stat.is_dir() {
        return Err(failed("open", path)(io::ErrorKind::NotADirectory.into()));
    }
    if stat.uid() != uid {
        return Err(Error::Unsafe(format!("the library {shown} belongs to user {}", stat.uid())));
    }
    if stat.mode() & 0o022 != 0 {
        return Err(Error::Unsafe(format!("users other than you may write to the library {shown}")));
    }
    Ok(())
}
