//! `import`: makes a snapshot of an exported archive, in the library or in a directory. `archive::import` reads it.

use std::fs::{self, File};
use std::io::{IsTerminal as _, Read};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use serde::Serialize;

use super::exit::{Exit, Nothing, UsageError, VerbResult};
use super::out::Console;
use super::paths::shell_word;
use super::progress;
use crate::archive::import::{Archive, CheckedArchive, scratch_for};
use crate::cli::Import;
use crate::library::index::PathHashes;
use crate::library::{Entry, ID_LENGTH, Library, Place, is_id};
use crate::snapshot::layout::{MANIFEST, SnapshotDir};
use crate::snapshot::{Digest, Error, Header, Snapshot, printable};

/// Runs `import`.
pub fn run(args: &Import, console: &mut Console) -> VerbResult {
    let sha256 = args.sha256.as_deref().map(digest).transpose()?;
    let is_standard = args.file.as_os_str() == "-";
    let name = printable(args.file.as_os_str().as_bytes());
    let name = if is_standard { "standard input" } else { name.as_ref() };
    if let Some(dir) = &args.dir {
        check_directory(dir)?;
    }
    let (input, length): (Box<dyn Read>, u64) = if is_standard {
        if std::io::stdin().is_terminal() {
            return Err(UsageError("the archive would be read from the terminal".to_owned()).into());
        }
        (Box::new(std::io::stdin().lock()), 0)
    } else {
        let file = File::open(&args.file).map_err(Error::io("open", &args.file))?;
        let found = file.metadata().map_err(Error::io("stat", &args.file))?;
        if found.is_dir() {
            return Err(UsageError(format!("{name} is a directory, not an archive")).into());
        }
        (Box::new(file), found.len())
    };
    let bar = progress::bytes("import", length);
    let archive = Archive::open(bar.wrap_read(input), name)?;
    if archive.header().running {
        return Err(
            Error::Format(format!("{name} has a recording that had not ended, which no export has")).into()
        );
    }
    let (snapshot, word) = match &args.dir {
        Some(dir) => {
            let checked = archive.check(sha256.as_ref(), &scratch_for(dir))?;
            let snapshot = commit(checked, dir, || {
                let dir = printable(dir.as_os_str().as_bytes());
                UsageError(format!("{dir} has got a snapshot meanwhile")).into()
            })?;
            (snapshot, shell_word(dir.as_os_str().as_bytes()).into_owned())
        }
        None => {
            let id = id_in_library(archive.header(), name)?;
            let place = Place::of_this_user();
            let is_there = || Nothing(format!("{id} is in the library already")).into();
            if let Some(library) = Library::find()?
                && library.directory_of(&id).join(MANIFEST).symlink_metadata().is_ok()
            {
                return Err(is_there());
            }
            let checked = archive.check(sha256.as_ref(), &scratch_for(&place.root))?;
            if let Some(instead) = &place.instead {
                console.say(format_args!("{instead}"));
            }
            let library = Library::create(&place)?;
            let snapshot = commit(checked, &library.directory_of(&id), is_there)?;
            library.append(&Entry::of(&snapshot), &PathHashes::of(&snapshot))?;
            (snapshot, id)
        }
    };
    bar.finish_and_clear();
    if args.json {
        let path = printable(snapshot.path().as_os_str().as_bytes());
        console.json(&ImportJson { id: &snapshot.header().id, directory: &path })?;
    } else {
        writeln!(console, "imported {word} (agent-snapshot show {word})")?;
    }
    Ok(Exit::Success)
}

fn digest(hex: &str) -> Result<Digest, UsageError> {
    let hex = hex.strip_prefix("sha256:").unwrap_or(hex);
    let digest = format!("sha256:{}", hex.to_ascii_lowercase()).parse();
    digest.map_err(|_| UsageError(format!("--sha256 {hex} is not 64 hexadecimal digits")))
}

fn check_directory(dir: &Path) -> anyhow::Result<()> {
    let shown = printable(dir.as_os_str().as_bytes());
    match fs::read_dir(dir).map(|mut entries| entries.next().is_none()) {
        Ok(true) => Ok(()),
        Ok(false) => {
            Err(UsageError(format!("{shown} is not empty: name a new or an empty directory")).into())
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
        Err(error) if error.kind() == std::io::ErrorKind::NotADirectory => {
            Err(UsageError(format!("{shown} is not a directory")).into())
        }
        Err(error) => Err(Error::io("list", dir)(error).into()),
    }
}

/// Makes the directory at `path` and commits the bundle to it, unless somebody else has put a snapshot there.
fn commit(
    checked: CheckedArchive,
    path: &Path,
    is_there: impl FnOnce() -> anyhow::Error,
) -> anyhow::Result<Snapshot> {
    let directory = SnapshotDir::create(path)?;
    if directory.is_committed() {
        return Err(is_there());
    }
    let made = directory.made().clone();
    Ok(checked.commit(directory).inspect_err(|_| made.remove())?)
}

/// The name that the snapshot has in the library; an error if it can't be there.
fn id_in_library(header: &Header, name: &str) -> anyhow::Result<String> {
    let id = header.id.get(..ID_LENGTH).filter(|id| is_id(id));
    let Some(id) = id else {
        let id = printable(header.id.as_bytes());
        let message = format!(
            "{name} has the identifier {id:?}, which no recording of a library has: name a directory"
        );
        return Err(Error::Unsafe(message).into());
    };
    if !header.kind.is_recording() {
        return Err(UsageError(format!("{name} has a rescue: name a directory for it")).into());
    }
    Ok(id.to_owned())
}

#[derive(Serialize)]
struct ImportJson<'a> {
    id: &'a str,
    directory: &'a str,
}
