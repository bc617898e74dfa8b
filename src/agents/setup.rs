//! Sets an agent's shell in a settings file, and takes that back.
//!
//! A plan is made first, from the file and the receipt of an earlier setup; nothing is written until it is applied.

use std::path::Path;

use super::error::{Defect, Error, shown};
use super::file::SettingsFile;
use super::receipt::{Receipt, ReceiptFile};
use super::slot::Setting;
use super::{Agent, SHELL};

/// What is to be done to a settings file.
#[derive(Debug)]
pub struct SetupPlan {
    file: SettingsFile,
    change: SettingsChange,
    receipts: ReceiptFile,
    receipt: ReceiptChange,
}

/// What becomes of a settings file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SettingsChange {
    /// It is as it should be.
    None,
    /// This text is written.
    Write(String),
    /// It is removed, with so many directories above it: setting up had made them.
    Remove(usize),
}

/// What becomes of the receipt.
#[derive(Debug)]
enum ReceiptChange {
    None,
    Write(Receipt),
    Remove,
}

impl SetupPlan {
    /// Plans to make `shell` the agent's shell in the settings file `named`; receipts are kept in `receipts`.
    ///
    /// # Errors
    /// The settings can't be read, have an error, or name another shell and `force` is not given.
    pub fn set(
        agent: &Agent,
        named: &Path,
        shell: &str,
        force: bool,
        receipts: &Path,
    ) -> Result<SetupPlan, Error> {
        let file = SettingsFile::read(named)?;
        let receipts = ReceiptFile::of(receipts, agent.name, &file.path);
        let slot = agent.slot;
        let defect = |defect: Defect| defect.of_file(&file.path);
        let present = slot.find(file.text.as_deref().unwrap_or_default()).map_err(defect)?.value();
        if present.as_deref() == Some(shell) {
            return Ok(SetupPlan {
                file,
                change: SettingsChange::None,
                receipts,
                receipt: ReceiptChange::None,
            });
        }
        let (mut before, mut made_directories) = (file.text.clone(), file.missing_directories());
        if present.as_deref().is_some_and(is_ours) {
            // Of another version, or from another place.
            match taken_back(agent, &file, receipts.read()?.as_ref())? {
                SettingsChange::None => {}
                SettingsChange::Write(text) => before = Some(text),
                SettingsChange::Remove(directories) => (before, made_directories) = (None, directories),
            }
        }
        let text = before.as_deref().unwrap_or_default();
        let found = slot.find(text).map_err(defect)?;
        let parent_existed = found != Setting::Absent;
        let replaced = found.value();
        if let Some(other) = replaced.as_deref().filter(|_| !force) {
            let (path, label) = (shown(&file.path), slot.label());
            return Err(Error::Refused(format!(
                "{path} sets {label} to {other}: --force replaces it, and --remove then puts it back"
            )));
        }
        let after = slot.set(text, shell).map_err(defect)?;
        let mut receipt = Receipt::new(before.as_deref(), &after);
        (receipt.replaced, receipt.parent_existed) = (replaced, parent_existed);
        receipt.made_directories = made_directories;
        Ok(SetupPlan {
            file,
            change: SettingsChange::Write(after),
            receipts,
            receipt: ReceiptChange::Write(receipt),
        })
    }

    /// Plans to take back what was set in the settings file `named`.
    ///
    /// # Errors
    /// The settings can't be read, or have an error.
    pub fn take_back(agent: &Agent, named: &Path, receipts: &Path) -> Result<SetupPlan, Error> {
        let file = SettingsFile::read(named)?;
        let receipts = ReceiptFile::of(receipts, agent.name, &file.path);
        let change = taken_back(agent, &file, receipts.read()?.as_ref())?;
        Ok(SetupPlan { file, change, receipts, receipt: ReceiptChange::Remove })
    }

    /// The settings file.
    pub fn path(&self) -> &Path {
        &self.file.path
    }

    /// Its text now.
    pub fn before(&self) -> &str {
        self.file.text.as_deref().unwrap_or_default()
    }

    /// What becomes of it.
    pub fn change(&self) -> &SettingsChange {
        &self.change
    }

    /// Checks whether it can be done, as far as that can be known.
    ///
    /// # Errors
    /// The file is read-only or somebody else's.
    pub fn check(&self) -> Result<(), Error> {
        if self.change == SettingsChange::None { Ok(()) } else { self.file.check_writable() }
    }

    /// Does it.
    ///
    /// # Errors
    /// The file can't be written, or was changed meanwhile; then it is as it was.
    pub fn apply(self) -> Result<(), Error> {
        // A receipt that fits no text does no harm, so it is written first and removed last.
        if let ReceiptChange::Write(receipt) = &self.receipt {
            self.receipts.write(receipt)?;
        }
        match &self.change {
            SettingsChange::None => {}
            SettingsChange::Write(text) => self.file.replace(text)?,
            SettingsChange::Remove(directories) => self.file.remove(*directories)?,
        }
        match self.receipt {
            ReceiptChange::Remove => self.receipts.remove(),
            ReceiptChange::Write(_) | ReceiptChange::None => Ok(()),
        }
    }
}

/// What becomes of a file when what was set there is taken back: byte for byte if nobody has edited it since, else
/// as far as the setting goes.
fn taken_back(
    agent: &Agent,
    file: &SettingsFile,
    receipt: Option<&Receipt>,
) -> Result<SettingsChange, Error> {
    let Some(text) = file.text.as_deref() else { return Ok(SettingsChange::None) };
    let directories = receipt.map_or(0, |receipt| receipt.made_directories);
    match receipt.and_then(|receipt| receipt.take_back(text)) {
        Some(Some(before)) => return Ok(SettingsChange::Write(before)),
        Some(None) => return Ok(SettingsChange::Remove(directories)),
        None => {}
    }
    let slot = agent.slot;
    let defect = |defect: Defect| defect.of_file(&file.path);
    if !slot.find(text).map_err(defect)?.value().is_some_and(|value| is_ours(&value)) {
        return Ok(SettingsChange::None);
    }
    let after = match receipt.and_then(|receipt| receipt.replaced.as_deref()) {
        Some(replaced) => slot.set(text, replaced),
        None => slot.remove(text, receipt.is_some_and(|receipt| !receipt.parent_existed)),
    };
    let after = after.map_err(defect)?;
    let was_made = receipt.is_some_and(|receipt| !receipt.existed);
    Ok(if was_made && slot.is_blank(&after) {
        SettingsChange::Remove(directories)
    } else {
        SettingsChange::Write(after)
    })
}

/// Whether a shell is ours, of whichever version and place.
pub fn is_ours(shell: &str) -> bool {
    Path::new(shell).file_name().is_some_and(|name| name == SHELL)
}
