//! `uninstall`: takes back what every `init` has set, and removes the copy of this program that agents were given.
//!
//! `agents` knows where settings are; `init.rs` sets and takes back one.

use serde::Serialize;

use super::exit::{Exit, VerbResult};
use super::init::receipts;
use super::out::Console;
use crate::agents::Surroundings;
use crate::agents::installed::ProgramCopy;
use crate::agents::setup::{SettingsChange, SetupPlan};
use crate::agents::uninstall::{InstalledSetting, settings};
use crate::cli::Uninstall;
use crate::library::{Library, Place};
use crate::snapshot::printable_path;

/// Runs `uninstall`.
pub fn run(args: &Uninstall, console: &mut Console) -> VerbResult {
    let here = Surroundings::of_this_process()?;
    let place = Place::of_this_user();
    let receipts = receipts(&place)?;
    let mut done = UninstallJson::default();
    for InstalledSetting { name, slot, settings, is_away } in settings(&here, &receipts)? {
        let Some(slot) = slot else {
            done.failed.push(format!(
                "{}: another version of agent-snapshot has set {name} there",
                printable_path(&settings)
            ));
            continue;
        };
        if is_away {
            done.failed.push(format!(
                "{}: it is not there now, and names the program if it comes back",
                printable_path(&settings)
            ));
            continue;
        }
        let plan = SetupPlan::take_back(&name, slot, &settings, &receipts);
        let applied = plan.and_then(|plan| {
            plan.check()?;
            let change = plan.change().clone();
            plan.apply().map(|()| change)
        });
        match applied {
            Ok(SettingsChange::None) => {}
            Ok(_) => {
                done.taken_back.push(TakenBack { file: printable_path(&settings), setting: slot.label() })
            }
            Err(error) => done.failed.push(error.to_string()),
        }
    }
    // What could not be taken back may name the copy.
    if done.failed.is_empty()
        && let Some(copy) = ProgramCopy::of(&here)
        && copy.remove()?
    {
        done.removed = Some(printable_path(copy.directory()));
    }
    done.library = Library::find()?.map(|library| printable_path(library.root()));
    if args.json {
        console.json(&done)?;
    } else {
        print(&done, console)?;
    }
    Ok(if done.failed.is_empty() { Exit::Success } else { Exit::Finding })
}

/// What was done.
#[derive(Default, Serialize)]
struct UninstallJson {
    taken_back: Vec<TakenBack>,
    /// Why settings could not be taken back.
    failed: Vec<String>,
    /// The directory of the copy that was removed.
    removed: Option<String>,
    /// The library, which stays.
    library: Option<String>,
}

/// A setting that was taken back.
#[derive(Serialize)]
struct TakenBack {
    file: String,
    setting: String,
}

fn print(done: &UninstallJson, console: &mut Console) -> anyhow::Result<()> {
    for TakenBack { file, setting } in &done.taken_back {
        writeln!(console, "{file}: took back {setting}")?;
    }
    if let Some(directory) = &done.removed {
        writeln!(console, "removed the copy of this program in {directory}")?;
    }
    if done.taken_back.is_empty() && done.removed.is_none() && done.failed.is_empty() {
        writeln!(console, "nothing to take back: no settings name agent-snapshot")?;
    }
    if let Some(library) = &done.library {
        writeln!(console, "your recordings stay in {library}")?;
    }
    for failure in &done.failed {
        console.say(format_args!("not taken back: {failure}"));
    }
    console.say(format_args!(
        "what init has only printed, such as a line in ~/.bashrc, is yours to remove, and so is the package"
    ));
    Ok(())
}
