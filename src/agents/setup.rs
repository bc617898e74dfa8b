//! Sets an agent's shell or hook in a settings file, and takes that back.
//!
//! A plan is made first, from the file and the receipt of an earlier setup; nothing is written until it is applied.

use std::path::Path;

use super::error::{Defect, Error};
use super::file::SettingsFile;
use super::receipt::{Receipt, ReceiptFile};
use super::slot::{ON, Setting, Slot};
use crate::snapshot::printable_path;

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
    /// It is removed, once the receipts of other settings in the file are these.
    Remove(Vec<(ReceiptFile, Receipt)>),
}

impl SetupPlan {
    /// Plans to set `slot` to `value` in the settings file `named`; receipts are kept in `receipts`, under `name`.
    ///
    /// # Errors
    /// The settings can't be read, have an error, or have another value and `force` is not given.
    pub fn set(
        name: &str,
        slot: Slot,
        named: &Path,
        value: &str,
        force: bool,
        receipts: &Path,
    ) -> Result<SetupPlan, Error> {
        let file = SettingsFile::read(named)?;
        let receipts = ReceiptFile::of(receipts, name, &file.path);
        let defect = |defect: Defect| defect.of_file(&file.path);
        let present = slot.find(file.text.as_deref().unwrap_or_default()).map_err(defect)?.value();
        if present.as_deref().is_some_and(|present| slot.agrees(present, value)) {
            return Ok(SetupPlan {
                file,
                change: SettingsChange::None,
                receipts,
                receipt: ReceiptChange::None,
            });
        }
        let (mut before, mut made_directories) = (file.text.clone(), file.missing_directories());
        let receipt = receipts.read()?;
        let is_known = |text: &str| receipt.as_ref().is_some_and(|receipt| receipt.take_back(text).is_some());
        if present.as_deref().is_some_and(|present| slot.is_ours(present))
            || file.text.as_deref().is_some_and(is_known)
        {
            // Of another version, or from another place.
            match taken_back(slot, &file, receipt.as_ref())? {
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
            let path = printable_path(&file.path);
            let what = match slot {
                Slot::Text => format!("{path} has a text of its own"),
                _ => format!("{path} sets {} to {other}", slot.label()),
            };
            return Err(Error::Refused(format!(
                "{what}: --force replaces it, and --remove then puts it back"
            )));
        }
        let after = slot.set(text, value).map_err(defect)?;
        let mut receipt = Receipt::new(before.as_deref(), &after);
        (receipt.replaced, receipt.parent_existed) = (replaced, parent_existed);
        receipt.made_directories = made_directories;
        receipt.settings = file.path.to_str().map(str::to_owned);
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
    pub fn take_back(name: &str, slot: Slot, named: &Path, receipts: &Path) -> Result<SetupPlan, Error> {
        let file = SettingsFile::read(named)?;
        let root = receipts;
        let receipts = ReceiptFile::of(root, name, &file.path);
        let receipt = receipts.read()?;
        let change = taken_back(slot, &file, receipt.as_ref())?;
        let others = match (&change, receipt) {
            (SettingsChange::Write(_), Some(made)) if !made.existed => made_too(name, &made, &file, root)?,
            _ => Vec::new(),
        };
        Ok(SetupPlan { file, change, receipts, receipt: ReceiptChange::Remove(others) })
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
            ReceiptChange::Remove(others) => {
                others.iter().try_for_each(|(file, receipt)| file.write(receipt))?;
                self.receipts.remove()
            }
            ReceiptChange::Write(_) | ReceiptChange::None => Ok(()),
        }
    }
}

/// The receipts of the other settings in a file that `init` had made for the first of them: the last takes the file away.
fn made_too(
    name: &str,
    made: &Receipt,
    file: &SettingsFile,
    root: &Path,
) -> Result<Vec<(ReceiptFile, Receipt)>, Error> {
    let mut others = Vec::new();
    for (other, settings) in ReceiptFile::all(root)? {
        let receipts = ReceiptFile::of(root, &other, &settings);
        if other != name
            && settings == file.path
            && let Some(mut receipt) = receipts.read()?
        {
            (receipt.existed, receipt.made_directories) = (false, made.made_directories);
            others.push((receipts, receipt));
        }
    }
    Ok(others)
}

/// What becomes of a file when what was set there is taken back: byte for byte if nobody has edited it since, else
/// as far as the setting goes.
fn taken_back(slot: Slot, file: &SettingsFile, receipt: Option<&Receipt>) -> Result<SettingsChange, Error> {
    let Some(text) = file.text.as_deref() else { return Ok(SettingsChange::None) };
    let directories = receipt.map_or(0, |receipt| receipt.made_directories);
    match receipt.and_then(|receipt| receipt.take_back(text)) {
        Some(Some(before)) => return Ok(SettingsChange::Write(before)),
        Some(None) => return Ok(SettingsChange::Remove(directories)),
        None => {}
    }
    let defect = |defect: Defect| defect.of_file(&file.path);
    // A switch is ours if we have turned it on, and it is on.
    let is_switch = matches!(slot, Slot::TomlTrue { .. }) && receipt.is_some();
    let is_ours = |value: String| slot.is_ours(&value) || is_switch && value == ON;
    if !slot.find(text).map_err(defect)?.value().is_some_and(is_ours) {
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Only its receipt tells a text of an older version from one of the user's own.
    #[test]
    fn whole_text_of_an_older_version_is_replaced_and_taken_back() {
        let place = tempfile::tempdir().unwrap();
        let (file, receipts) = (place.path().join("below/text"), place.path().join("receipts"));
        let set = |value: &str| SetupPlan::set("skill", Slot::Text, &file, value, false, &receipts);
        set("old\n").unwrap().apply().unwrap();
        set("new\n").unwrap().apply().unwrap();
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "new\n");
        std::fs::write(&file, "mine\n").unwrap();
        assert!(set("new\n").unwrap_err().to_string().contains("has a text of its own"));
        std::fs::write(&file, "new\n").unwrap();
        SetupPlan::take_back("skill", Slot::Text, &file, &receipts).unwrap().apply().unwrap();
        assert!(!place.path().join("below").exists());
    }
}
