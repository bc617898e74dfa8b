//! Overlays that the tree mounts: a change of what one shows is a change of its upper directory.
//!
//! The kernel copies a file up before it changes it, with the directories above it, and leaves a whiteout in the
//! place of what is removed. So each name of the upper directory on the way is prepared like any that a call may
//! change. Neighbours: `mounts/overlay.rs` finds what an overlay shows, `changes.rs` has the calls.

use smallvec::SmallVec;

use super::effects::meaning;
use super::part::Part;
use crate::fs::{self, parent_of};
use crate::observe::capture::OnLoss;
use crate::observe::ledger::ids::ProcessId;
use crate::observe::mounts::{Layers, OverlayDirectories};
use crate::observe::recording::Recording;
use crate::observe::resolve::view::Unseen;
use crate::observe::resolve::{self, Resolved};
use crate::snapshot::WarningKind;
use crate::trace::observer::Caller;
use crate::trace::syscalls::{Access, Dirfd, Effect, FileRef, Resolve};

impl Recording {
    /// Learns what the overlays show that `caller` has just mounted.
    pub fn note_overlays(&mut self, caller: Caller) {
        let Some(view) = self.view_of(caller) else { return };
        for overlay in self.mounts.new_overlays(&view) {
            let lower: Result<Vec<_>, _> =
                overlay.lower.iter().map(|path| self.overlay_directory(caller, path)).collect();
            let upper = overlay.upper.as_ref().map(|path| self.overlay_directory(caller, path)).transpose();
            let directories = match (upper, lower) {
                // Nothing is written to it, or what is written does not last.
                (Ok(None) | Err(Unseen::Private(..)), _) => {
                    OverlayDirectories { upper: None, lower: Vec::new() }
                }
                (Ok(Some(upper)), Ok(lower)) => OverlayDirectories { upper: Some(upper), lower },
                (Ok(_), Err(_)) | (Err(_), _) => continue,
            };
            self.mounts.note_overlay(&overlay, directories);
        }
    }

    /// A directory that a mount option names, by its name here.
    fn overlay_directory(&mut self, caller: Caller, path: &[u8]) -> Result<Vec<u8>, Unseen> {
        let file = FileRef::Path { dirfd: Dirfd::Cwd, path: path.to_vec() };
        let access = Access { file, effect: Effect::Query, follow: true, resolve: Resolve::default() };
        self.locate(caller, &access).map(|resolved| resolved.path)
    }

    /// The overlay that shows a place which a call may change.
    pub fn changed_layers(&mut self, process: ProcessId, effect: Effect, place: &Resolved) -> Option<Layers> {
        let layers = place.overlay.clone()?;
        let meaning = meaning(effect, place.stat.as_ref());
        // A hard link is made of a copy.
        let copies = meaning.changes || meaning.changes_name || effect == Effect::HardLinkFrom;
        if !copies || effect == Effect::MountPoint {
            return None;
        }
        let moves_directory = matches!(effect, Effect::RenameFrom { .. } | Effect::RenameTo { .. })
            && place.stat.as_ref().is_some_and(resolve::is_directory);
        if moves_directory {
            self.warnings.lost(WarningKind::MountNamespace, Some(process), || {
                format!(
                    "a directory was renamed on an overlay that the command mounted: what is beneath {} is not \
                     recorded",
                    String::from_utf8_lossy(&layers.upper_path())
                )
            });
        }
        Some(layers)
    }

    /// Protects what a call may change in the upper directory of an overlay.
    pub fn prepare_copy_up(
        &mut self,
        parts: &mut SmallVec<[Part; 2]>,
        effect: Effect,
        place: Resolved,
        layers: &Layers,
        on_loss: OnLoss,
    ) {
        let path = layers.upper_path();
        // The directories above it come into being with it.
        let above = std::iter::successors(parent_of(&path), |path| parent_of(path));
        let above = above.take_while(|above| above.len() > layers.upper.len());
        let missing: Vec<Vec<u8>> = above
            .filter(|above| !parts.iter().any(|part| part.path == *above))
            .filter(|above| matches!(fs::lstat(above), Ok(None)))
            .map(<[u8]>::to_vec)
            .collect();
        for directory in missing.into_iter().rev() {
            let directory = Resolved { path: directory, ..Resolved::default() };
            let part = self.prepare_part(Effect::MakeDirectory, directory, on_loss);
            parts.push(Part { is_copied_up: true, ..part });
        }
        let stat = fs::lstat(&path).ok().flatten();
        let effect = in_upper(effect, stat.is_some());
        let place = Resolved { path, stat, seen_at: None, overlay: None, ..place };
        let part = self.prepare_part(effect, place, on_loss);
        parts.push(Part { is_copied_up: true, ..part });
    }
}

/// What a call does to the name in the upper directory that belongs to the place which it changes.
fn in_upper(effect: Effect, exists: bool) -> Effect {
    match effect {
        Effect::Open(_)
        | Effect::Truncate
        | Effect::Rewrite
        | Effect::Metadata
        | Effect::RemoveDirectory
        | Effect::MakeDirectory
        | Effect::HardLinkFrom
            if exists =>
        {
            effect
        }
        // Its name goes, is replaced, or becomes a whiteout.
        _ if exists => Effect::Remove,
        Effect::MakeDirectory => effect,
        _ => Effect::MakeNode,
    }
}
