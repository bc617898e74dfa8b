//! A settings file: read where a symlink leads to, replaced whole or not at all.

use std::fs::{self, File};
use std::io::{self, Read as _, Write as _};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown, fchown};
use std::path::{Path, PathBuf};

use rustix::fs::{Access, AtFlags, CWD, XattrFlags};

use super::error::{Error, failed};
use crate::fs::{Signature, open_regular};
use crate::snapshot::{live, printable_path};

/// No settings are larger, and whatever else is at the path must not exhaust our memory.
const SIZE_LIMIT: u64 = 16 << 20;

/// A settings file as it was read; it need not exist.
#[derive(Debug)]
pub struct SettingsFile {
    /// Where it is, no component a symlink if it exists.
    pub path: PathBuf,
    /// Its content; none where there is no file.
    pub text: Option<String>,
    read: Option<Signature>,
}

impl SettingsFile {
    /// Reads the file at `named`, or the one to which a symlink there leads.
    ///
    /// # Errors
    /// It is there and can't be read, or is no text.
    pub fn read(named: &Path) -> Result<SettingsFile, Error> {
        let absent = |error: &io::Error| {
            matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
        };
        let path = match named.canonicalize() {
            Ok(path) => path,
            Err(error) if absent(&error) && !named.is_symlink() => {
                return Ok(SettingsFile { path: named.to_owned(), text: None, read: None });
            }
            Err(error) if absent(&error) => {
                return Err(Error::Refused(format!(
                    "{} is a symlink to a file that is not there",
                    printable_path(named)
                )));
            }
            Err(error) => return Err(failed("read", named)(error)),
        };
        let mut bytes = Vec::new();
        let file = open_regular(path.as_os_str().as_bytes()).map_err(failed("read", &path))?;
        let read = Signature::from(&file.metadata().map_err(failed("read", &path))?);
        file.take(SIZE_LIMIT + 1).read_to_end(&mut bytes).map_err(failed("read", &path))?;
        if bytes.len() as u64 > SIZE_LIMIT {
            return Err(Error::Refused(format!("{} is larger than 16 MiB", printable_path(&path))));
        }
        let text = String::from_utf8(bytes).map_err(|error| {
            let at = error.utf8_error().valid_up_to();
            Error::Refused(format!(
                "{} is no UTF-8 text: the byte at offset {at} is invalid",
                printable_path(&path)
            ))
        })?;
        Ok(SettingsFile { path, text: Some(text), read: Some(read) })
    }

    /// Checks whether [`SettingsFile::replace`] is allowed here, as far as that can be known.
    ///
    /// # Errors
    /// The file is read-only or somebody else's.
    pub fn check_writable(&self) -> Result<(), Error> {
        if self.read.is_none() {
            return Ok(());
        }
        rustix::fs::accessat(CWD, &self.path, Access::WRITE_OK, AtFlags::EACCESS)
            .map_err(|error| failed("write to", &self.path)(error.into()))?;
        let owner = fs::metadata(&self.path).map_err(failed("write to", &self.path))?.uid();
        let user = rustix::process::geteuid();
        if user.is_root() || user.as_raw() == owner {
            return Ok(());
        }
        Err(Error::Refused(format!(
            "{} belongs to user {owner}, who alone may change it",
            printable_path(&self.path)
        )))
    }

    /// How many directories must be made for the file.
    pub fn missing_directories(&self) -> usize {
        missing_above(&self.path)
    }

    /// Makes `text` the content at once, with the mode, owner and extended attributes that the file had.
    ///
    /// # Errors
    /// It can't be written, or was changed since it was read: nothing is changed.
    pub fn replace(&self, text: &str) -> Result<(), Error> {
        self.check_writable()?;
        let failed = |error| failed("write", &self.path)(error);
        let directory = self.path.parent().ok_or_else(|| failed(io::ErrorKind::InvalidInput.into()))?;
        let heir = make_parents(&self.path).map_err(failed)?;
        let write = || -> io::Result<()> {
            let mut builder = tempfile::Builder::new();
            builder.prefix(".agent-snapshot-");
            if self.read.is_none() {
                // What the umask leaves of it, as for any new file.
                builder.permissions(fs::Permissions::from_mode(0o666));
            }
            let mut new = builder.tempfile_in(directory)?;
            new.write_all(text.as_bytes())?;
            match heir {
                _ if self.read.is_some() => self.give_attributes(new.as_file())?,
                Some((uid, gid)) => fchown(new.as_file(), Some(uid), Some(gid))?,
                None => {}
            }
            new.as_file().sync_all()?;
            self.check_unchanged()?;
            match self.read {
                Some(_) => new.persist(&self.path).map_err(|error| error.error)?,
                None => new.persist_noclobber(&self.path).map_err(|error| error.error)?,
            };
            File::open(directory)?.sync_all()
        };
        write().map_err(failed)
    }

    /// Removes the file, and as many directories above it as are named, if they are empty.
    ///
    /// # Errors
    /// It can't be removed, or was changed since it was read.
    pub fn remove(&self, directories: usize) -> Result<(), Error> {
        self.check_writable()?;
        let remove = || self.check_unchanged().and_then(|()| fs::remove_file(&self.path));
        remove().map_err(failed("remove", &self.path))?;
        for directory in self.path.ancestors().skip(1).take(directories) {
            if fs::remove_dir(directory).is_err() {
                break;
            }
        }
        Ok(())
    }

    fn give_attributes(&self, new: &File) -> io::Result<()> {
        let stat = fs::metadata(&self.path)?;
        let ours = new.metadata()?;
        if (stat.uid(), stat.gid()) != (ours.uid(), ours.gid()) {
            fchown(new, Some(stat.uid()), Some(stat.gid()))?;
        }
        new.set_permissions(stat.permissions())?;
        let attributes = live::xattrs(self.path.as_os_str().as_bytes()).unwrap_or_else(|some| some.readable);
        for (name, value) in attributes {
            // Some, such as a security label, are the kernel's to give.
            let _ = rustix::fs::fsetxattr(new, name.as_slice(), &value, XattrFlags::empty());
        }
        Ok(())
    }

    /// An agent may write its settings at any time.
    fn check_unchanged(&self) -> io::Result<()> {
        let now = fs::metadata(&self.path).ok().map(|stat| Signature::from(&stat));
        if now == self.read { Ok(()) } else { Err(io::Error::other("it was changed meanwhile; try again")) }
    }
}

fn missing_above(path: &Path) -> usize {
    path.ancestors().skip(1).take_while(|above| !above.exists()).count()
}

/// Makes the directories above a path. The user and group to whom they and what is made in them belong, if root makes it in
/// somebody else's home directory.
pub fn make_parents(path: &Path) -> io::Result<Option<(u32, u32)>> {
    let missing = missing_above(path);
    let directory = path.parent().ok_or(io::ErrorKind::InvalidInput)?;
    fs::create_dir_all(directory)?;
    let Some(there) = path.ancestors().nth(missing + 1) else { return Ok(None) };
    let stat = fs::metadata(there)?;
    let is_others = rustix::process::geteuid().is_root() && stat.uid() != 0;
    let heir = is_others.then(|| (stat.uid(), stat.gid()));
    for made in directory.ancestors().take(missing) {
        heir.map_or(Ok(()), |(uid, gid)| chown(made, Some(uid), Some(gid)))?;
    }
    Ok(heir)
}
