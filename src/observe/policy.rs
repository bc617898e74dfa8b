//! Which paths are not recorded, and how often each rule left one out.

pub mod ignore;
pub mod suppressed;

use rustix::fs::{Access, AtFlags, CWD};

use self::ignore::{Cover, Ignore, RuleId};
use self::suppressed::Counts;
use super::resolve;
use crate::fs::FileStat;
use crate::git;
use crate::snapshot::Suppressed;
use crate::snapshot::layout::has_contents;

/// Directories that are never recorded.
#[derive(Debug, Clone, Default)]
pub struct OwnDirectories {
    /// That of the snapshot.
    pub snapshot: Vec<u8>,
    /// The library, which the tree may not change.
    pub library: Option<Vec<u8>>,
    /// The part of the library that has what commands have printed.
    pub printed: Option<Vec<u8>>,
}

/// The rules of a recording, and what they left out.
pub struct Policy {
    ignore: Ignore,
    own: OwnDirectories,
    /// Our user.
    pub uid: u32,
    /// Whether set-ID programs lose their privilege because of the recording.
    pub drops_set_id: bool,
    /// How often each rule left something out.
    pub suppressed: Counts,
}

/// Why a path is not recorded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Exclusion {
    /// A rule leaves it out; the topmost path that the rule covers.
    Rule(RuleId, Vec<u8>),
    /// A rule leaves it out as long as it is not changed.
    UnlessChanged(RuleId),
    /// It is the snapshot's own, or the library's.
    Own,
}

impl Policy {
    /// The policy of a recording with directories of its own.
    pub fn new(ignore: Ignore, own: OwnDirectories) -> Policy {
        let uid = rustix::process::geteuid().as_raw();
        // If it is set already, they have none anyway.
        let drops_set_id = uid != 0 && !rustix::thread::no_new_privs().unwrap_or(false);
        Policy { ignore, own, uid, drops_set_id, suppressed: Counts::default() }
    }

    /// Whether a path is the library's own; with `moves`, also whether the library is below it.
    pub fn is_of_library(&self, path: &[u8], moves: bool) -> bool {
        let Some(library) = &self.own.library else { return false };
        resolve::is_below(path, library) || moves && resolve::is_below(library, path)
    }

    /// Whether a path of our own is that of a file that has contents of recorded files, or may have.
    pub fn may_hold_content(&self, path: &[u8]) -> bool {
        has_contents(path)
            || self.own.printed.as_ref().is_some_and(|printed| resolve::is_below(path, printed))
    }

    /// Whether a path is the snapshot's own, or the library's.
    pub fn is_own(&self, path: &[u8]) -> bool {
        resolve::is_below(path, &self.own.snapshot) || self.is_of_library(path, false)
    }

    /// Notes that the command has renamed a directory: the snapshot may be in it.
    pub fn renamed(&mut self, from: &[u8], to: &[u8]) {
        if resolve::is_below(&self.own.snapshot, from) {
            self.own.snapshot = [to, &self.own.snapshot[from.len()..]].concat();
        }
    }

    /// Why a path at which `stat` is found is not recorded; none where it is.
    pub fn exclusion(&self, path: &[u8], stat: Option<&FileStat>) -> Option<Exclusion> {
        if self.is_own(path) {
            return Some(Exclusion::Own);
        }
        match self.ignore.covering(path) {
            Some(Cover { rule: RuleId::GIT, .. }) if git::is_temporary_object(path) => {
                return Some(Exclusion::Rule(RuleId::GIT, path.to_vec()));
            }
            Some(Cover { rule, .. }) if rule != RuleId::GIT && self.ignore.is_watched(path) => return None,
            Some(Cover { rule, of_reads: true, .. }) => return Some(Exclusion::UnlessChanged(rule)),
            Some(Cover { rule, topmost, .. }) => return Some(Exclusion::Rule(rule, topmost.to_vec())),
            None => {}
        }
        let foreign = stat.is_some_and(|stat| stat.st_uid != self.uid && !may_write(path, stat));
        (foreign && !self.ignore.is_watched(path)).then_some(Exclusion::UnlessChanged(RuleId::FOREIGN_OWNER))
    }

    /// The rule of the list that leaves a path out.
    pub fn covering(&self, path: &[u8]) -> Option<RuleId> {
        self.ignore.covering(path).map(|cover| cover.rule)
    }

    /// Leaves out a repository's real Git directory.
    pub fn add_git_dir(&mut self, directory: &[u8]) {
        self.ignore.add_git_dir(directory);
    }

    /// The rules that left something out.
    pub fn suppressed(&self) -> Vec<Suppressed> {
        self.suppressed.of_rules(&self.ignore)
    }
}

/// Whether we may write what another user owns; a symlink is its owner's.
fn may_write(path: &[u8], stat: &FileStat) -> bool {
    if resolve::is_symlink(stat) {
        return rustix::process::geteuid().is_root();
    }
    rustix::fs::accessat(CWD, path, Access::WRITE_OK, AtFlags::EACCESS).is_ok()
}
