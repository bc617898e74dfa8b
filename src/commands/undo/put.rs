//! The restore that an undo or redo is.

use std::collections::BTreeMap;

use crate::cli::UndoOptions;
use crate::commands::out::Console;
use crate::commands::paths::{Exclusions, Selection};
use crate::commands::restore::{Chosen, OutcomeForm, RestoreBar, UndoForm, limits, policy, put_back};
use crate::restore::outcome::RestoreOutcome;
use crate::restore::request::{ChangedLater, RestoreRequest};
use crate::restore::{rescue, run};
use crate::snapshot::Snapshot;
use crate::snapshot::blobs::Side;
use crate::snapshot::compare::KnownLinks;
use crate::snapshot::request::{MERGING, SKIPPING};

/// The request in its canonical form: that of one snapshot as a whole, or of paths of one, is the same as a `restore`.
pub fn command_of(
    verb: &str,
    snapshot: &Snapshot,
    ids: &[&str],
    selection: &Selection,
    options: &UndoOptions,
) -> anyhow::Result<Vec<Vec<u8>>> {
    let (limits, paths) = (limits(&options.extent)?, selection.wanted());
    let is_limited = limits.iter().any(|word| word != SKIPPING && word != MERGING);
    let command = match snapshot.parts() {
        // A redo is of one rescue of several.
        [only] if !is_limited || !paths.is_empty() || verb == "redo" => {
            rescue::command(only.path(), Side::Before, &paths)?
        }
        _ => [rescue::command_of_several(verb, ids), paths].concat(),
    };
    Ok([command, limits].concat())
}

/// Whether later changes may be why not all was put back.
pub fn is_hindered(outcome: &RestoreOutcome) -> bool {
    !outcome.is_whole() && !outcome.is_other_plan && outcome.interrupted.is_none()
}

/// The state before `snapshot` as what is to be put back.
pub struct Put<'a> {
    pub snapshot: &'a Snapshot,
    /// The paths of it.
    pub selection: &'a Selection,
    pub command: &'a [Vec<u8>],
    pub conflicts: &'a BTreeMap<Vec<u8>, String>,
    pub changed_later: Option<&'a ChangedLater<'a>>,
    pub known_links: &'a KnownLinks,
    /// As in the request.
    pub is_alone: bool,
}

impl Put<'_> {
    /// What would be done.
    pub fn plan(&self, options: &UndoOptions) -> anyhow::Result<RestoreOutcome> {
        self.with_request(options, |request| {
            let request = RestoreRequest { dry_run: true, ..*request };
            Ok(run::run(self.snapshot, &request, &RestoreBar::default())?)
        })
    }

    /// Does it, unless it is only to be planned, and reports it.
    pub fn back(
        &self,
        undo: UndoForm,
        options: &UndoOptions,
        console: &mut Console,
    ) -> anyhow::Result<RestoreOutcome> {
        let form = OutcomeForm { json: options.json, diff: options.diff, undo: Some(undo), at: None };
        self.with_request(options, |request| put_back(self.snapshot, request, &form, console))
    }

    fn with_request(
        &self,
        options: &UndoOptions,
        work: impl FnOnce(&RestoreRequest) -> anyhow::Result<RestoreOutcome>,
    ) -> anyhow::Result<RestoreOutcome> {
        let policies = self.snapshot.parts().iter().map(|part| policy(part, false, false));
        let policies = policies.collect::<anyhow::Result<Vec<_>>>()?;
        let Some(policy) = policies.into_iter().next() else { return Ok(RestoreOutcome::default()) };
        let exclusions = Exclusions::new(&options.extent.exclude)?;
        let choice = Chosen {
            selection: self.selection,
            exclusions: &exclusions,
            conflicts: self.conflicts,
            no_git: options.extent.no_git,
        };
        work(&RestoreRequest {
            is_whole: choice.is_whole(),
            is_alone: self.is_alone,
            yields_to_interrupted: true,
            leaves_mark: true,
            conflicts: self.conflicts,
            changed_later: self.changed_later,
            known_links: self.known_links,
            force: options.extent.force,
            force_git: options.extent.force_git,
            skip_conflicts: options.extent.skip_conflicts,
            merge: options.extent.merge,
            dry_run: options.dry_run,
            agreed: options.agreed.as_deref(),
            ..RestoreRequest::new(Side::Before, &policy, &choice, self.command)
        })
    }
}

/// Takes an interrupted restore back, unless something has changed since.
pub fn take_back(rescue: &Snapshot) -> anyhow::Result<RestoreOutcome> {
    let choice = Chosen {
        selection: &Selection::all(),
        exclusions: &Exclusions::new(&[])?,
        conflicts: &BTreeMap::new(),
        no_git: false,
    };
    let (policy, command) =
        (policy(rescue, false, false)?, rescue::command(rescue.path(), Side::Before, &[])?);
    let request =
        RestoreRequest { is_whole: true, ..RestoreRequest::new(Side::Before, &policy, &choice, &command) };
    Ok(run::run(rescue, &request, &RestoreBar::default())?)
}
