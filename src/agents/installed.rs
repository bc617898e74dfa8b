//! The copy of our program that agents are given. It stays where it is when the package that it came from is upgraded or
//! removed.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{PermissionsExt as _, fchown, lchown, symlink};
use std::path::{Path, PathBuf};

use super::error::{Error, failed};
use super::file::make_parents;
use super::{PROGRAM, SHELL, Surroundings};

/// The copy, which need not exist.
#[derive(Debug)]
pub struct ProgramCopy {
    directory: PathBuf,
}

impl ProgramCopy {
    /// That of this user; none where there is no home directory.
    pub fn of(here: &Surroundings) -> Option<ProgramCopy> {
        Some(ProgramCopy { directory: here.data_home()?.join("agent-snapshot/bin") })
    }

    /// The path of our program, or of its other name.
    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    /// The directory that it is in.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Whether it is there.
    pub fn exists(&self) -> bool {
        self.path(PROGRAM).exists()
    }

    /// Whether it is the same as `program`.
    ///
    /// # Errors
    /// One of them can't be read.
    pub fn is_same(&self, program: &Path) -> io::Result<bool> {
        let copy = self.path(PROGRAM);
        Ok(fs::metadata(&copy)?.len() == fs::metadata(program)?.len()
            && (copy.canonicalize()? == program.canonicalize()? || fs::read(&copy)? == fs::read(program)?))
    }

    /// Makes it a copy of `program`, if it is none yet; whether it was made. An older one may be running, so it is replaced,
    /// not written to.
    ///
    /// # Errors
    /// It can't be written.
    pub fn install(&self, program: &Path) -> Result<bool, Error> {
        let (copy, shell) = (self.path(PROGRAM), self.path(SHELL));
        let has_shell = fs::read_link(&shell).is_ok_and(|target| target == Path::new(PROGRAM));
        if has_shell && self.is_same(program).unwrap_or(false) {
            return Ok(false);
        }
        let install = || -> io::Result<()> {
            let heir = make_parents(&copy)?;
            let mut builder = tempfile::Builder::new();
            builder.prefix(".agent-snapshot-");
            let mut new = builder.tempfile_in(&self.directory)?;
            io::copy(&mut File::open(program)?, &mut new)?;
            new.as_file().set_permissions(fs::Permissions::from_mode(0o755))?;
            let link = builder.make_in(&self.directory, |path| symlink(PROGRAM, path))?;
            if let Some((uid, gid)) = heir {
                fchown(new.as_file(), Some(uid), Some(gid))?;
                lchown(link.path(), Some(uid), Some(gid))?;
            }
            new.as_file().sync_all()?;
            new.persist(&copy).map_err(|error| error.error)?;
            link.persist(&shell).map_err(|error| error.error)?;
            File::open(&self.directory)?.sync_all()
        };
        install().map_err(failed("copy this program to", &copy))?;
        Ok(true)
    }

    /// Removes it; whether it was there.
    ///
    /// # Errors
    /// It can't be removed.
    pub fn remove(&self) -> Result<bool, Error> {
        let mut was_there = false;
        for path in [SHELL, PROGRAM].map(|name| self.path(name)) {
            match fs::remove_file(&path) {
                Ok(()) => was_there = true,
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(failed("remove", &path)(error)),
            }
        }
        // What else is in them stays, with them.
        for directory in self.directory.ancestors().take(2) {
            let _ = fs::remove_dir(directory);
        }
        Ok(was_there)
    }
}
