//! `--at`: what was at paths at a time, put together from the recordings and rescues of the library.
//!
//! `cat.rs` and `restore.rs` take it as a snapshot whose after-states are those of that time. Neighbours:
//! `library::sources` finds the bundles, `snapshot::timeline` decides.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::path::Path;

use jiff::Timestamp;
use rustix::fs::FileType;

use super::open::{open_directory, raise_descriptor_limit, scope};
use super::out::Console;
use super::paths::{Exclusions, live, quoted};
use crate::cli::SessionAccess;
use crate::fs::{FileStat, lstat, modification_time, parent_of};
use crate::git::below;
use crate::library::index::IndexedFiles;
use crate::library::scope::Scope;
use crate::library::sources::{Source, Sources};
use crate::library::{self, Library};
use crate::snapshot::timeline::{Doubt, Version, compose, other_names, paths, versions};
use crate::snapshot::{self, Snapshot, printable};

/// What was at some paths at a time.
pub struct Past {
    /// What was there as after-states, and what is there now as before-states; none if no recording has changed any of
    /// the paths.
    pub snapshot: Option<Snapshot>,
    /// The paths that were asked for, as they are recorded.
    pub roots: Vec<Vec<u8>>,
    /// The paths whose state at that time is unknown, and why; those that were asked for and no recording has changed among
    /// them.
    pub unknown: Vec<(Vec<u8>, String)>,
}

impl Past {
    /// Nothing is known of these paths.
    fn of_untouched(roots: Vec<Vec<u8>>) -> Past {
        let unknown = roots.iter().map(|root| as_untouched(root)).collect();
        Past { snapshot: None, roots, unknown }
    }
}

fn as_untouched(root: &[u8]) -> (Vec<u8>, String) {
    (root.to_owned(), "no recording in the library has changed it".to_owned())
}

/// What is asked for of paths.
pub enum Extent<'a> {
    /// What they were themselves.
    Itself,
    /// Also what was beneath them, but for these.
    AllBelow(&'a Exclusions),
}

/// How many of those that started after a time are opened: the first one has found what was there, unless clocks differ.
const AFTER: usize = 4;

/// Finds what was at `args` at a time. What is not certain is said.
pub fn past(
    args: &[OsString],
    time: Timestamp,
    access: &SessionAccess,
    extent: &Extent,
    console: &mut Console,
) -> anyhow::Result<Past> {
    let roots = args.iter().map(|arg| live(arg)).collect::<Result<Vec<_>, _>>()?;
    let Some(library) = Library::find()? else {
        let roots = roots.into_iter().filter_map(|candidates| candidates.into_iter().next()).collect();
        return Ok(Past::of_untouched(roots));
    };
    let sources = visible_sources(&library, access, console)?;
    let written: Vec<Vec<u8>> = roots.iter().filter_map(|candidates| candidates.first().cloned()).collect();
    // As it is recorded: in most cases with its parent resolved.
    let roots: Vec<Vec<u8>> = roots
        .into_iter()
        .filter_map(|mut candidates| {
            let known = candidates.iter().position(|path| sources.that_changed(path).next().is_some());
            (!candidates.is_empty()).then(|| candidates.swap_remove(known.unwrap_or(candidates.len() - 1)))
        })
        .collect();
    for (path, _) in written.iter().zip(&roots).filter(|(written, root)| written != root) {
        name_newer_symlinks(path, time, console)?;
    }
    let is_wanted = |path: &[u8]| match extent {
        Extent::Itself => false,
        Extent::AllBelow(exclusions) => {
            !exclusions.contain(path) && roots.iter().any(|root| below(path, root).is_some())
        }
    };
    raise_descriptor_limit();
    let mut bundles = Bundles { library: &library, access, numbers: BTreeSet::new(), parts: Vec::new() };
    let is_since = |number: &usize| sources.get(*number).finished.is_none_or(|finished| finished >= time);
    let since: BTreeSet<usize> = match extent {
        Extent::Itself => {
            let itself = |root| sources.that_changed_itself(root).filter(is_since);
            let has_started = |number: &usize| sources.get(*number).started <= time;
            let during = roots.iter().flat_map(|root| itself(root).filter(has_started));
            let after =
                roots.iter().flat_map(|root| itself(root).filter(|one| !has_started(one)).take(AFTER));
            during.chain(after).collect()
        }
        Extent::AllBelow(_) => {
            roots.iter().flat_map(|root| sources.that_changed(root).filter(is_since)).collect()
        }
    };
    bundles.open(since, &sources, console)?;
    bundles.open(of_linked_files(&roots, &sources), &sources, console)?;
    let mut wanted = paths(&bundles.parts, is_wanted);
    if let Extent::AllBelow(_) = extent {
        // Paths that were changed since only outside of recordings.
        let all: BTreeSet<usize> = roots.iter().flat_map(|root| sources.that_changed(root)).collect();
        for number in all.into_iter().filter(|number| !is_since(number)) {
            wanted.extend(paths(bundles.open_one(number, &sources, console)?.as_slice(), is_wanted));
        }
    }
    wanted.extend(roots.iter().cloned());
    // What was there before that.
    let last_before = |path: &Vec<u8>| sources.that_changed_itself(path).rfind(|number| !is_since(number));
    bundles.open(wanted.iter().filter_map(last_before).collect(), &sources, console)?;
    let find = |parts: &[Snapshot]| -> std::io::Result<Vec<Version>> {
        let mut found = versions(parts, &wanted, time)?;
        // What was made beneath a directory is taken to be new, unless something says otherwise.
        let is_new = |version: &&mut Version| {
            matches!(version.doubt, Some(Doubt::NotYetSeen(_))) && !roots.contains(&version.record.path)
        };
        found.iter_mut().filter(is_new).for_each(|version| version.doubt = None);
        Ok(found)
    };
    let mut found = find(&bundles.parts)?;
    let is_lacking = |version: &&Version| !version.has_content || version.doubt.is_some();
    if found.iter().any(|version| is_lacking(&version)) {
        // An earlier one may have bytes that later ones had no need to keep; another name of the file was written to.
        let lacking: BTreeSet<Vec<u8>> =
            found.iter().filter(is_lacking).map(|version| version.record.path.clone()).collect();
        let of = |paths: &BTreeSet<Vec<u8>>| {
            paths.iter().flat_map(|path| sources.that_changed_itself(path)).collect()
        };
        bundles.open(of(&lacking), &sources, console)?;
        bundles.open(of(&other_names(&bundles.parts, &lacking)), &sources, console)?;
        found = find(&bundles.parts)?;
    }
    if bundles.parts.is_empty() {
        return Ok(Past::of_untouched(roots));
    }
    // What was changed beneath a directory may be left out.
    let may_be_left_out = matches!(extent, Extent::AllBelow(_));
    let is_told = |root: &Vec<u8>| {
        found.iter().any(|version| version.record.path == *root)
            || may_be_left_out && sources.that_changed(root).next().is_some()
    };
    let is_untouched = |root: &&Vec<u8>| !is_told(root);
    let untouched: Vec<_> = roots.iter().filter(is_untouched).map(|root| as_untouched(root)).collect();
    let (unknown, known): (Vec<_>, Vec<_>) = found
        .into_iter()
        .partition(|version| version.doubt.as_ref().is_some_and(|doubt| doubt.is_ignorance()));
    let told = |version: &Version| Some((version.record.path.clone(), version.doubt.as_ref()?.to_string()));
    let doubts = known.iter().filter_map(told);
    let doubts: Vec<_> = doubts.map(|(path, doubt)| format!("{}: {doubt}", quoted(&path))).collect();
    console.say_list(format_args!("not certain:"), doubts.iter());
    Ok(Past {
        unknown: unknown.iter().filter_map(told).chain(untouched).collect(),
        snapshot: compose(bundles.parts, known),
        roots,
    })
}

/// The bundles that have changed, by any name, a file with several names that is at one of `roots` now.
fn of_linked_files(roots: &[Vec<u8>], sources: &Sources) -> BTreeSet<usize> {
    let there = roots.iter().filter_map(|root| lstat(root).ok().flatten());
    let files: Vec<_> =
        there.filter(|stat| stat.st_nlink > 1).map(|stat| (stat.st_dev, stat.st_ino)).collect();
    sources.that_changed_files(&IndexedFiles::linked(&files)).collect()
}

/// Names the symlinks above a path that are newer than a time: at that time, the path may have led elsewhere.
fn name_newer_symlinks(path: &[u8], time: Timestamp, console: &mut Console) -> std::io::Result<()> {
    for above in std::iter::successors(parent_of(path), |path| parent_of(path)) {
        let is_newer = |stat: &FileStat| {
            FileType::from_raw_mode(stat.st_mode) == FileType::Symlink
                && modification_time(stat).is_some_and(|made| made > time)
        };
        if lstat(above)?.as_ref().is_some_and(is_newer) {
            let [above, path] = [above, path].map(quoted);
            console.say(format_args!(
                "not certain: {above} is a symlink that was made after that time; {path} is taken for what it leads to \
                 now"
            ));
        }
    }
    Ok(())
}

/// The recordings of the library that the session may see, and all rescues.
pub fn visible_sources(
    library: &Library,
    access: &SessionAccess,
    console: &mut Console,
) -> anyhow::Result<Sources> {
    let scope = scope(access, true);
    let sources = Sources::of(library, |entry| scope.may_see(entry) || access.allow_cross_session)?;
    for (path, why) in &sources.unreadable {
        say_unreadable(path, why, console);
    }
    Ok(sources)
}

/// Writes down that a recording of another session is used.
pub fn note_use(source: &Source, library: &Library, access: &SessionAccess) -> Result<(), library::Error> {
    let scope = scope(access, true);
    match &source.entry {
        Some(entry) if !scope.may_see(entry) => library.audit(&entry.id, scope.session.as_deref()),
        _ => Ok(()),
    }
}

/// Bundles that were opened, each once.
struct Bundles<'a> {
    library: &'a Library,
    access: &'a SessionAccess,
    numbers: BTreeSet<usize>,
    parts: Vec<Snapshot>,
}

impl Bundles<'_> {
    fn open(
        &mut self,
        numbers: BTreeSet<usize>,
        sources: &Sources,
        console: &mut Console,
    ) -> anyhow::Result<()> {
        let new: Vec<usize> = numbers.difference(&self.numbers).copied().collect();
        for number in new {
            self.parts.extend(self.open_one(number, sources, console)?);
            self.numbers.insert(number);
        }
        Ok(())
    }

    /// Opens one, if the session may see it. One that can't be read is named: it does not hide what the others tell.
    fn open_one(
        &self,
        number: usize,
        sources: &Sources,
        console: &mut Console,
    ) -> anyhow::Result<Option<Snapshot>> {
        let source = sources.get(number);
        note_use(source, self.library, self.access)?;
        let Some(part) = open_or_name(source, console) else { return Ok(None) };
        let Scope { session, .. } = scope(self.access, true);
        let header = part.header();
        let is_visible = session.is_none()
            || self.access.allow_cross_session
            || header.kind.is_recording()
            || header.session == session;
        Ok(is_visible.then_some(part))
    }
}

/// Opens a bundle; none if it can't be read, which is said.
pub fn open_or_name(source: &Source, console: &mut Console) -> Option<Snapshot> {
    match open_directory(&source.directory, console) {
        Ok(snapshot) => Some(snapshot),
        Err(why) => {
            say_unreadable(&source.directory, &why, console);
            None
        }
    }
}

fn say_unreadable(directory: &Path, why: &snapshot::Error, console: &mut Console) {
    let path = printable(directory.as_os_str().as_encoded_bytes());
    console.say(format_args!("{path} can't be read, and what it changed is not known: {why}"));
}
