//! Which of several places an agent takes its shell or hook from.

use std::path::{Path, PathBuf};

use super::error::{Defect, Error};
use super::file::SettingsFile;
use super::slot::{Setting, Slot};
use super::{Agent, ShellSource, Surroundings, json, variable};

/// Where an agent takes its shell, or the command of its hook, from.
#[derive(Debug, Default)]
pub struct Effective {
    /// The shell or command, and the place that sets it; none if no place does.
    pub shell: Option<(String, ShellSource)>,
    /// The place that hides the settings files that come after it, though it sets no shell.
    pub hidden_by: Option<ShellSource>,
}

/// The settings file that has the agent run no hook, and the setting there, if one does.
///
/// # Errors
/// One of its files can't be read, or has an error.
pub fn switched_off(agent: &Agent, here: &Surroundings) -> Result<Option<(PathBuf, String)>, Error> {
    let Some(Slot::Hook(slot)) = agent.slot() else { return Ok(None) };
    if let Some((switch, path)) = (agent.user_settings)(here).and_then(|hooks| agent.companion(&hooks)) {
        let found = in_file(agent, switch, &path)?;
        return Ok((found == Setting::Value("false".to_owned())).then(|| (path, switch.label())));
    }
    for source in (agent.sources)(here) {
        let ShellSource::File(path) = source else { continue };
        let file = SettingsFile::read(&path)?;
        let text = file.text.as_deref().unwrap_or_default();
        match json::switch(text, slot).map_err(|defect| defect.of_file(&file.path))? {
            Some(true) => break,
            Some(false) => return Ok(Some((file.path, slot.switch.unwrap_or_default().join(".")))),
            None => {}
        }
    }
    Ok(None)
}

/// Asks all places in their order, up to the first that sets a shell.
///
/// # Errors
/// One of them can't be read, or has an error.
pub fn effective(agent: &Agent, here: &Surroundings) -> Result<Effective, Error> {
    let mut effective = Effective::default();
    let slot = agent.slot();
    for source in (agent.sources)(here) {
        let found = match &source {
            // The first file with the list is the only one that counts.
            ShellSource::File(_) | ShellSource::Text(_) if effective.hidden_by.is_some() => continue,
            ShellSource::File(path) => slot.map_or(Ok(Setting::Absent), |slot| in_file(agent, slot, path))?,
            ShellSource::Text(name) => slot.map_or(Ok(Setting::Absent), |slot| in_text(slot, name))?,
            ShellSource::Path(name) => {
                let value = variable(name).map(|value| value.to_string_lossy().into_owned());
                value.map_or(Setting::Absent, Setting::Value)
            }
        };
        match found {
            Setting::Without if slot.is_some_and(Slot::is_list) => effective.hidden_by = Some(source),
            Setting::Absent | Setting::Without => {}
            Setting::Value(shell) => {
                effective.shell = Some((shell, source));
                break;
            }
        }
    }
    Ok(effective)
}

fn in_file(agent: &Agent, slot: Slot, path: &Path) -> Result<Setting, Error> {
    let file = SettingsFile::read(path)?;
    let text = file.text.as_deref().unwrap_or_default();
    let objection = || if slot.is_json() { agent.objection(text) } else { None };
    let found = slot.find(text).and_then(|found| objection().map_or(Ok(found), Err));
    found.map_err(|defect| defect.of_file(&file.path))
}

fn in_text(slot: Slot, name: &str) -> Result<Setting, Error> {
    let text = variable(name).unwrap_or_default();
    let found = slot.find(&text.to_string_lossy());
    found.map_err(|Defect { what, .. }| Error::Refused(format!("${name}: {what}")))
}
