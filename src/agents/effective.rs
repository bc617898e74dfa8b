//! Which of several places an agent takes its shell from.

use std::path::Path;

use super::error::{Defect, Error};
use super::file::SettingsFile;
use super::slot::Setting;
use super::{Agent, ShellSource, Surroundings};

/// Where an agent takes its shell from.
#[derive(Debug, Default)]
pub struct Effective {
    /// The shell, and the place that sets it; none if no place does.
    pub shell: Option<(String, ShellSource)>,
    /// The place that hides the settings files that come after it, though it sets no shell.
    pub hidden_by: Option<ShellSource>,
}

/// Asks all places in their order, up to the first that sets a shell.
///
/// # Errors
/// One of them can't be read, or has an error.
pub fn effective(agent: &Agent, here: &Surroundings) -> Result<Effective, Error> {
    let mut effective = Effective::default();
    for source in agent.sources(here) {
        let found = match &source {
            // The first file with the list is the only one that counts.
            ShellSource::File(_) | ShellSource::Text(_) if effective.hidden_by.is_some() => continue,
            ShellSource::File(path) => in_file(agent, path)?,
            ShellSource::Text(name) => in_text(agent, here, name)?,
            ShellSource::Path(name) => {
                let value = here.variable(name).map(|value| value.to_string_lossy().into_owned());
                value.map_or(Setting::Absent, Setting::Value)
            }
        };
        match found {
            Setting::Without if agent.slot.is_list() => effective.hidden_by = Some(source),
            Setting::Absent | Setting::Without => {}
            Setting::Value(shell) => {
                effective.shell = Some((shell, source));
                break;
            }
        }
    }
    Ok(effective)
}

fn in_file(agent: &Agent, path: &Path) -> Result<Setting, Error> {
    let file = SettingsFile::read(path)?;
    let text = file.text.as_deref().unwrap_or_default();
    let found = agent.slot.find(text).and_then(|found| agent.objection(text).map_or(Ok(found), Err));
    found.map_err(|defect| defect.of_file(&file.path))
}

fn in_text(agent: &Agent, here: &Surroundings, name: &str) -> Result<Setting, Error> {
    let text = here.variable(name).unwrap_or_default();
    let found = agent.slot.find(&text.to_string_lossy());
    found.map_err(|Defect { what, .. }| Error::Refused(format!("${name}: {what}")))
}
