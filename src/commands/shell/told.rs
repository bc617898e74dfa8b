//! What was said before in this session: an agent runs several hundred commands, and need not read of one fault
//! several hundred times.
//!
//! An empty file is left for each fault, where the user's other programs leave what may be lost at a restart.

use std::fs::{self, DirBuilder, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use sha2::{Digest as _, Sha256};

use crate::library::session::session;

/// Whether `what` was not said before in this session; from now on it was. Each time is the first one if there is
/// no session, and none is if a session's sandbox has no place to remember it: what an agent's model reads must not
/// repeat it with each command.
pub fn is_first(what: &str) -> bool {
    let Some(session) = session(None) else { return true };
    // An identifier is any text, and may be long.
    let digest = Sha256::digest(session.as_bytes());
    let session = faster_hex::hex_string(&digest[..8]);
    let mark = format!("{session}.{what}");
    places().iter().find_map(|place| leave(place, &mark).ok()).unwrap_or(false)
}

/// The directories for marks, the best one first.
fn places() -> Vec<PathBuf> {
    let uid = rustix::process::geteuid().as_raw();
    let runtime = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    // Root may have the environment of somebody else.
    let is_own =
        |path: &PathBuf| path.is_absolute() && fs::metadata(path).is_ok_and(|stat| stat.uid() == uid);
    let runtime = runtime.filter(is_own).map(|runtime| runtime.join("agent-snapshot"));
    // The sandbox of Claude Code lets only the second one in /tmp be written.
    let temporary = [format!("/tmp/agent-snapshot-{uid}"), format!("/tmp/claude-{uid}/agent-snapshot")];
    runtime.into_iter().chain(temporary.map(PathBuf::from)).collect()
}

/// Those of the directories that are this user's alone; with `makes`, they are made.
pub fn own_places(makes: bool) -> impl Iterator<Item = PathBuf> {
    let is_own = move |place: &PathBuf| if makes { make_own(place) } else { check_own(place) }.is_ok();
    places().into_iter().filter(is_own)
}

/// Leaves a mark in a directory that is this user's alone; whether it was not there yet.
fn leave(directory: &Path, mark: &str) -> io::Result<bool> {
    make_own(directory)?;
    match OpenOptions::new().write(true).create_new(true).mode(0o600).open(directory.join(mark)) {
        Ok(_) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(false),
        Err(error) => Err(error),
    }
}

/// Makes a directory, and checks that it is this user's alone.
fn make_own(directory: &Path) -> io::Result<()> {
    match DirBuilder::new().mode(0o700).create(directory) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
        _ => check_own(directory),
    }
}

fn check_own(directory: &Path) -> io::Result<()> {
    let stat = fs::symlink_metadata(directory)?;
    if !stat.is_dir() || stat.uid() != rustix::process::geteuid().as_raw() || stat.mode() & 0o077 != 0 {
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    Ok(())
}
