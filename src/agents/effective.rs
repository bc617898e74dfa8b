//! Which of several places an agent takes its shell from.

use std::path::{Path, PathBuf};

use super::error::{Defect, Error};
use super::file::SettingsFile;
use super::slot::Found;
use super::{Agent, Source, Surroundings};

/// Where an agent takes its shell from.
#[derive(Debug)]
pub struct Effective {
    /// The shell, and the place that sets it; none if no place does.
    pub shell: Option<(String, Place)>,
    /// The place that hides all that comes after it, though it sets no shell.
    pub hidden_by: Option<Place>,
    /// Why places could not be read.
    pub errors: Vec<Error>,
}

/// A place that sets a shell.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    /// A settings file.
    File(PathBuf),
    /// An environment variable.
    Variable(&'static str),
}

/// Asks all places in their order.
pub fn effective(agent: &Agent, here: &Surroundings) -> Effective {
    let mut effective = Effective { shell: None, hidden_by: None, errors: Vec::new() };
    for source in agent.sources(here) {
        let is_hidden = effective.hidden_by.is_some();
        let (found, place) = match source {
            // The first file with the list is the only one that counts.
            Source::File(_) | Source::Text(_) if is_hidden => continue,
            Source::File(path) => (in_file(agent, &path), Place::File(path)),
            Source::Text(name) => (in_text(agent, here, name), Place::Variable(name)),
            Source::Path(name) => {
                let value = here.variable(name).map(|value| value.to_string_lossy().into_owned());
                (Ok(value.map_or(Found::Absent, Found::Value)), Place::Variable(name))
            }
        };
        match found {
            Ok(Found::Absent) => {}
            Ok(Found::Without) if agent.slot.is_list() => effective.hidden_by = Some(place),
            Ok(Found::Without) => {}
            Ok(Found::Value(shell)) => {
                effective.shell = Some((shell, place));
                break;
            }
            Err(error) => effective.errors.push(error),
        }
    }
    effective
}

fn in_file(agent: &Agent, path: &Path) -> Result<Found, Error> {
    let file = SettingsFile::read(path)?;
    let text = file.text.as_deref().unwrap_or_default();
    let found = agent.slot.find(text).and_then(|found| agent.objection(text).map_or(Ok(found), Err));
    found.map_err(|defect| defect.of_file(&file.path))
}

fn in_text(agent: &Agent, here: &Surroundings, name: &str) -> Result<Found, Error> {
    let text = here.variable(name).unwrap_or_default();
    let found = agent.slot.find(&text.to_string_lossy());
    found.map_err(|Defect { what, .. }| Error::Refused(format!("${name}: {what}")))
}
