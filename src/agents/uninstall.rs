//! What `init` may have set, whichever agents and projects it was called for.

use std::cmp::Reverse;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use super::error::Error;
use super::receipt::ReceiptFile;
use super::server::ServerPlace;
use super::slot::Slot;
use super::{AGENTS, Agent, Surroundings, skill};

/// A setting of an agent in a file.
#[derive(Debug, Clone)]
pub struct InstalledSetting {
    /// What it is called on the command line of `init`.
    pub name: String,
    /// The setting; none if only another version knows it.
    pub slot: Option<Slot>,
    /// The file.
    pub settings: PathBuf,
    /// Whether the file was set and is not there, and neither is its place.
    pub is_away: bool,
}

/// All settings that may be ours: of the user, of the project here, and where receipts say that `init` has set one. What was
/// set last comes first: of two settings in one file, each then leaves what the receipt of the other knows.
///
/// # Errors
/// The receipts can't be read.
pub fn settings(here: &Surroundings, receipts: &Path) -> Result<Vec<InstalledSetting>, Error> {
    let mut all = Vec::new();
    let mut add = |name: &str, settings: PathBuf| {
        let settings = settings.canonicalize().unwrap_or(settings);
        let is_same = |(_, known): &(_, InstalledSetting)| known.name == name && known.settings == settings;
        if !all.iter().any(is_same) {
            let slot = slot_in(name, &settings);
            let written = ReceiptFile::of(receipts, name, &settings).written();
            let is_away = !is_there(&settings) && written.is_some();
            all.push((written, InstalledSetting { name: name.to_owned(), slot, settings, is_away }));
        }
    };
    for agent in &AGENTS {
        for settings in [(agent.user_settings)(here), (agent.project_settings)(here)].into_iter().flatten() {
            if let Some((_, beside)) = agent.companion(&settings) {
                add(agent.name, beside);
            }
            add(agent.name, settings);
        }
        if let Some(place) = agent.server {
            let files = [(place.user)(here), (place.project)(here)];
            files.into_iter().flatten().for_each(|settings| add(&ServerPlace::receipt(agent.name), settings));
        }
    }
    [false, true]
        .into_iter()
        .filter_map(|project| skill::file(here, project))
        .for_each(|file| add(skill::NAME, file));
    ReceiptFile::all(receipts)?.into_iter().for_each(|(name, settings)| add(&name, settings));
    all.sort_by_key(|(written, _)| Reverse(*written));
    Ok(all.into_iter().map(|(_, setting)| setting).collect())
}

/// Whether the place of a settings file is there: a project may have been moved, a disk unmounted. A directory whose name
/// begins with a dot is an agent's own.
fn is_there(settings: &Path) -> bool {
    let is_own = |path: &&Path| path.file_name().is_some_and(|name| name.as_bytes().starts_with(b"."));
    settings.ancestors().find(is_own).unwrap_or(settings).parent().is_none_or(Path::exists)
}

/// What `init` sets in a file.
fn slot_in(name: &str, settings: &Path) -> Option<Slot> {
    if name == skill::NAME {
        return Some(Slot::Text);
    }
    let of_server = AGENTS.iter().find(|agent| ServerPlace::receipt(agent.name) == name);
    if let Some(agent) = of_server {
        return agent.server.map(|place| Slot::Server(place.slot));
    }
    let agent = Agent::named(name)?;
    let companion = agent.companion(settings).filter(|(_, beside)| beside == settings);
    companion.map(|(slot, _)| slot).or_else(|| agent.slot())
}
