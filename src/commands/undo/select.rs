//! Which paths are undone, if some are named.

use std::ffi::OsString;

use crate::commands::paths::{Selection, live};
use crate::library::log::is_at_or_below;
use crate::snapshot::change::PathEffect;
use crate::snapshot::net::Net;

/// The paths of a net that are undone if these are named, and those of them at which it has changed nothing.
pub fn select(net: &Net, paths: &[OsString]) -> anyhow::Result<(Selection, Vec<OsString>)> {
    if paths.is_empty() {
        return Ok((Selection::all(), Vec::new()));
    }
    let changed = || net.snapshot.files().iter().filter(|record| PathEffect::of(record).is_undone());
    let (mut selected, mut unchanged) = (Vec::new(), Vec::new());
    for path in paths {
        let is_changed = |path: &Vec<u8>| changed().any(|record| is_at_or_below(&record.path, path));
        let found: Vec<Vec<u8>> = live(path)?.into_iter().filter(is_changed).collect();
        if found.is_empty() {
            unchanged.push(path.clone());
        }
        selected.extend(found);
    }
    Ok((with_tied(net, selected), unchanged))
}

/// These paths, and the other names of the files that came to them or went from them, or that were written to: without
/// these, a file would be lost, there twice, or no hard link any more.
pub fn with_tied(net: &Net, mut selected: Vec<Vec<u8>>) -> Selection {
    let mut reached = Selection::of(selected.clone());
    loop {
        let is_next = |[from, to]: &&[Vec<u8>; 2]| reached.contains(from) != reached.contains(to);
        let next: Vec<Vec<u8>> = net.tied.iter().filter(is_next).flatten().cloned().collect();
        if next.is_empty() {
            break;
        }
        let lasts =
            |path: &Vec<u8>| net.snapshot.find(path).is_some_and(|record| PathEffect::of(record).lasts());
        selected.extend(next.iter().filter(|path| !reached.contains(path) && lasts(path)).cloned());
        reached = Selection::of([reached.wanted(), next].concat());
    }
    Selection::of(selected)
}
