//! Several processes that use one file or directory at the same moment: the recording is compared with the
//! tree before and after, then undone and redone.
//!
//! `RACES_LOAD=1` keeps two processors busy meanwhile; `AGENT_SNAPSHOT_MECHANISM` chooses the mechanism,
//! else the slow tests go through both.
//! Neighbours: `truth.rs` has the comparison, `test_programs/races/` the programs.

use std::collections::{BTreeMap, BTreeSet};
use std::env;
use std::process::{Child, Command};

use agent_snapshot::snapshot::Snapshot;

use crate::support::{Place, Tree, program, scan, shown};
use crate::truth::{compare, wrong_gaps};

mod aimed;
mod fuzz;

type Paths<'a> = BTreeSet<&'a [u8]>;

/// The mechanism that is chosen for all recordings.
fn mechanism() -> String {
    env::var("AGENT_SNAPSHOT_MECHANISM").unwrap_or_else(|_| "auto".to_owned())
}

/// The mechanisms that a slow test goes through.
fn mechanisms() -> Vec<String> {
    match env::var("AGENT_SNAPSHOT_MECHANISM") {
        Ok(one) => vec![one],
        Err(_) => vec!["auto".to_owned(), "stops".to_owned()],
    }
}

/// A number from the environment.
fn number(name: &str) -> Option<usize> {
    env::var(name).ok().map(|number| number.parse().unwrap_or_else(|_| panic!("{name}={number}")))
}

/// Two processes that do nothing but use a processor each, where `RACES_LOAD` wants that.
struct Load(Vec<Child>);

impl Load {
    fn new(wanted: bool) -> Load {
        let count = if wanted || number("RACES_LOAD").is_some_and(|load| load > 0) { 2 } else { 0 };
        let busy =
            || Command::new("sh").args(["-c", "while [ -e /proc/$PPID ]; do :; done"]).spawn().unwrap();
        Load((0..count).map(|_| busy()).collect())
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        for child in &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Sets up a place, and returns what is there.
fn set_up(arguments: &[&str]) -> (Place, Tree) {
    let place = Place::new();
    let setup = place.program(program("races")).arg("--setup").args(arguments).output().unwrap();
    assert!(setup.status.success(), "{}", shown(&setup));
    let before = scan(&place.work);
    (place, before)
}

/// What is wrong in the recording of `place`, and with its undo and redo, a sentence that starts with a path
/// each.
fn wrong(place: &Place, before: &Tree, after: &Tree, snapshot: &Snapshot) -> Vec<String> {
    let mut wrong = compare(&place.work, before, after, snapshot);
    let recorded = snapshot.files().iter().map(|record| record.path.as_slice()).collect();
    wrong.extend(wrong_gaps(before, after, snapshot));
    wrong.extend(there_and_back(place, before, after, &recorded));
    wrong
}

/// Undoes and redoes; what differs then from the tree as it was.
fn there_and_back(place: &Place, before: &Tree, after: &Tree, recorded: &Paths<'_>) -> Vec<String> {
    let mut wrong = Vec::new();
    for (what, flags, wanted) in [("undo", &["--before"][..], before), ("redo", &[], after)] {
        let run = place.verb("restore", flags);
        if run.status == 0 {
            let differs = different(place, &scan(&place.work), wanted, recorded);
            wrong.extend(differs.into_iter().map(|line| format!("{line} after {what}")));
        } else {
            let root = place.work.to_str().unwrap();
            let said = run.stderr.replace(&format!("{root}/"), "");
            wrong.extend(said.lines().map(|line| format!("{} ({what}: {})", line.trim(), run.status)));
            return wrong;
        }
    }
    wrong
}

/// What a restore should have restored and has not, one path a line. A file may have names that the recording
/// never saw: those hard links stay, and so does what was written through a removed name, which is a gap.
fn different(place: &Place, now: &Tree, wanted: &Tree, recorded: &Paths<'_>) -> Vec<String> {
    let root = place.work.as_os_str().as_encoded_bytes();
    let (now_linked, wanted_linked) = (linked(now, recorded), linked(wanted, recorded));
    let paths: BTreeSet<&Vec<u8>> = now.keys().chain(wanted.keys()).collect();
    let mut lines = Vec::new();
    for path in paths {
        let mut differ = |what: &str| {
            let shown = path.strip_prefix(root).unwrap_or(path);
            let shown = shown.strip_prefix(b"/").unwrap_or(shown).escape_ascii();
            lines.push(format!("{shown}: {what}"));
        };
        let (now, wanted) = match (now.get(path), wanted.get(path)) {
            (Some(now), Some(wanted)) => {
                if recorded.contains(path.as_slice()) && now.content != wanted.content {
                    differ("has other bytes");
                }
                (&now.present, &wanted.present)
            }
            (None, _) => {
                differ("is not there");
                continue;
            }
            (_, None) => {
                differ("is there");
                continue;
            }
        };
        if now.file_type != wanted.file_type {
            differ(&format!("is a {:?}, not a {:?},", now.file_type, wanted.file_type));
            continue;
        }
        if !recorded.contains(path.as_slice()) {
            continue;
        }
        if (now.mode, now.uid, now.gid) != (wanted.mode, wanted.uid, wanted.gid) {
            differ("has another mode or owner");
        }
        if now.target != wanted.target || now.rdev != wanted.rdev {
            differ("has another target");
        }
        if now.xattrs != wanted.xattrs {
            differ("has other extended attributes");
        }
        if now_linked.get(path) != wanted_linked.get(path) {
            differ("is linked otherwise");
        }
    }
    lines
}

/// The first of the recorded names of each file.
fn linked<'a>(tree: &'a Tree, recorded: &Paths<'_>) -> BTreeMap<&'a Vec<u8>, &'a Vec<u8>> {
    let mut first = BTreeMap::new();
    let files =
        tree.iter().filter(|(path, found)| found.content.is_some() && recorded.contains(path.as_slice()));
    files.map(|(path, found)| (path, *first.entry(found.inode()).or_insert(path))).collect()
}
