//! `--provide PATH=FILE`: gives content that a snapshot lacks, withheld from an export say.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use super::exit::UsageError;
use super::paths::find;
use crate::fs;
use crate::snapshot::blobs::Side;
use crate::snapshot::{Error, Snapshot, printable};

/// Takes the contents of `words`, each `PATH=FILE`, for what the paths had on `side`.
pub fn provide(snapshot: &mut Snapshot, words: &[OsString], side: Side) -> anyhow::Result<()> {
    for word in words {
        let (path, file) = split(snapshot, word)?;
        let refused = |why: &dyn std::fmt::Display| {
            UsageError(format!("--provide {}: {why}", printable(word.as_bytes())))
        };
        let real = Path::new(file).canonicalize().map_err(|error| refused(&error))?;
        let file = fs::open_regular(real.as_os_str().as_bytes()).map_err(|error| refused(&error))?;
        snapshot.provide(&path, side, file).map_err(|error| match error {
            Error::Refused(why) => refused(&why),
            other => refused(&other),
        })?;
    }
    Ok(())
}

/// The recorded path and the file that a word names; either may contain `=`.
fn split<'w>(snapshot: &Snapshot, word: &'w OsStr) -> anyhow::Result<(Vec<u8>, &'w OsStr)> {
    let bytes = word.as_bytes();
    for (at, _) in bytes.iter().enumerate().filter(|(at, byte)| *at > 0 && **byte == b'=') {
        if let Ok(record) = find(snapshot, OsStr::from_bytes(&bytes[..at]))? {
            return Ok((record.path.clone(), OsStr::from_bytes(&bytes[at + 1..])));
        }
    }
    let why = if bytes.contains(&b'=') {
        "the snapshot has no record of that path"
    } else {
        "it must be PATH=FILE"
    };
    Err(UsageError(format!("--provide {}: {why}", printable(bytes))).into())
}
