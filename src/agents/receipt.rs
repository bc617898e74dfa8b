//! What `init` wrote into a settings file, so that it can be taken back byte for byte.
//!
//! A receipt is a file in a directory of its own, named after the agent and the path of the settings. It has the
//! one place where the text was changed, and the digest of the whole text after that: no other setting is copied.

use std::fs;
use std::io::{self, Write as _};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use serde::{Deserialize, Serialize};

use super::error::{Error, failed};
use crate::snapshot::Digest;

/// What was changed in a settings file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Receipt {
    /// Whether the file was there.
    pub existed: bool,
    /// The digest of the text that was left.
    after: String,
    /// Where the texts begin to differ, in bytes.
    at: usize,
    /// What was there before.
    removed: String,
    /// What is there since.
    inserted: String,
    /// The value that was replaced.
    pub replaced: Option<String>,
    /// Whether what the setting is in was there: `env` of `env.CLAUDE_CODE_SHELL`.
    pub parent_existed: bool,
    /// How many directories above the file were made.
    pub made_directories: usize,
    /// The file, if its path is UTF-8 text.
    pub settings: Option<String>,
}

impl Receipt {
    /// The receipt of a change from `before` to `after`.
    pub fn new(before: Option<&str>, after: &str) -> Receipt {
        let text = before.unwrap_or_default();
        let same = |one: &mut dyn Iterator<Item = char>, other: &mut dyn Iterator<Item = char>| -> usize {
            one.zip(other).take_while(|(one, other)| one == other).map(|(one, _)| one.len_utf8()).sum()
        };
        let at = same(&mut text.chars(), &mut after.chars());
        let end = same(&mut text[at..].chars().rev(), &mut after[at..].chars().rev());
        Receipt {
            existed: before.is_some(),
            after: digest(after),
            at,
            removed: text[at..text.len() - end].to_owned(),
            inserted: after[at..after.len() - end].to_owned(),
            replaced: None,
            parent_existed: false,
            made_directories: 0,
            settings: None,
        }
    }

    /// The text before the change (none if there was no file), if `text` is what the change left.
    pub fn take_back(&self, text: &str) -> Option<Option<String>> {
        if digest(text) != self.after {
            return None;
        }
        if !self.existed {
            return Some(None);
        }
        let rest = text.get(self.at..)?.strip_prefix(self.inserted.as_str())?;
        Some(Some([text.get(..self.at)?, &self.removed, rest].concat()))
    }
}

fn digest(text: &str) -> String {
    Digest::of(text.as_bytes()).to_string()
}

/// The receipt of one settings file, which may not exist.
#[derive(Debug, Clone)]
pub struct ReceiptFile(PathBuf);

impl ReceiptFile {
    /// The receipt of `settings` in the directory `root`.
    pub fn of(root: &Path, agent: &str, settings: &Path) -> ReceiptFile {
        let digest = Digest::of(settings.as_os_str().as_bytes()).to_string();
        let (_, hex) = digest.split_once(':').unwrap_or(("", &digest));
        ReceiptFile(root.join(format!("{agent}-{}.json", hex.get(..16).unwrap_or(hex))))
    }

    /// The agents and the settings files of all receipts in the directory `root`.
    ///
    /// # Errors
    /// The directory can't be read.
    pub fn all(root: &Path) -> Result<Vec<(String, PathBuf)>, Error> {
        let entries = match fs::read_dir(root) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries.map_err(failed("read", root))?,
        };
        let mut all = Vec::new();
        for entry in entries {
            let path = entry.map_err(failed("read", root))?.path();
            let stem = path.file_stem().and_then(|stem| stem.to_str()).and_then(|stem| stem.rsplit_once('-'));
            let settings = ReceiptFile(path.clone()).read()?.and_then(|receipt| receipt.settings);
            if let (Some((agent, _)), Some(settings)) = (stem, settings) {
                all.push((agent.to_owned(), settings.into()));
            }
        }
        all.sort();
        Ok(all)
    }

    /// Reads it; none where there is none, or one that a killed process has left unfinished.
    ///
    /// # Errors
    /// It is there and can't be read.
    pub fn read(&self) -> Result<Option<Receipt>, Error> {
        match fs::read(&self.0) {
            Ok(bytes) => Ok(serde_json::from_slice(&bytes).ok()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(failed("read", &self.0)(error)),
        }
    }

    /// When it was written; none where there is none.
    pub fn written(&self) -> Option<SystemTime> {
        fs::metadata(&self.0).and_then(|metadata| metadata.modified()).ok()
    }

    /// Writes it, at once.
    ///
    /// # Errors
    /// It can't be written.
    pub fn write(&self, receipt: &Receipt) -> Result<(), Error> {
        let write = || -> io::Result<()> {
            let directory = self.0.parent().ok_or(io::ErrorKind::InvalidInput)?;
            fs::create_dir_all(directory)?;
            let mut new = tempfile::NamedTempFile::new_in(directory)?;
            new.write_all(&serde_json::to_vec(receipt)?)?;
            new.as_file().sync_all()?;
            new.persist(&self.0).map_err(|error| error.error)?;
            Ok(())
        };
        write().map_err(failed("write", &self.0))
    }

    /// Removes it, if it is there.
    ///
    /// # Errors
    /// It can't be removed.
    pub fn remove(&self) -> Result<(), Error> {
        match fs::remove_file(&self.0) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(failed("remove", &self.0)(error)),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn change_is_taken_back_byte_for_byte_or_not_at_all() {
        for (before, after) in [
            (Some(""), "{}"),
            (Some("{}"), "{\"a\": 1}"),
            (Some("aaa"), "aaaa"),
            (Some("a\r\nä\r\n"), "a\r\näö\r\n"),
            (Some("{\"s\": \"zsh\"}"), "{\"s\": \"bash\"}"),
            (Some("same"), "same"),
            (None, "{}\n"),
        ] {
            let receipt = Receipt::new(before, after);
            assert_eq!(receipt.take_back(after), Some(before.map(str::to_owned)), "{before:?}");
            assert_eq!(receipt.take_back(&format!("{after} ")), None);
        }
    }

    #[test]
    fn receipt_is_found_by_agent_and_path() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path().join("made");
        let file = ReceiptFile::of(&root, "claude-code", Path::new("/a"));
        assert_eq!(file.read().unwrap(), None);
        let receipt = Receipt::new(Some("x"), "y");
        file.write(&receipt).unwrap();
        assert_eq!(file.read().unwrap(), Some(receipt));
        assert_eq!(ReceiptFile::of(&root, "aider", Path::new("/a")).read().unwrap(), None);
        assert_eq!(ReceiptFile::of(&root, "claude-code", Path::new("/b")).read().unwrap(), None);
        file.remove().unwrap();
        file.remove().unwrap();
        assert_eq!(file.read().unwrap(), None);
    }
}
