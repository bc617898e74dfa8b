//! Decides what becomes of each target. Pure: records and looks in, actions and objections out.
//!
//! Neighbours: `look.rs` has looked, `rescue.rs` keeps what the actions will overwrite, `apply.rs`
//! carries them out.

mod hard_links;
mod obstacles;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::io;

use super::flags::has_flags;
use super::look::Look;
use super::make::{Attributes, Policy};
use super::place::parent;
use super::targets::{Links, opposite, own_time};
use crate::snapshot::blobs::Side;
use crate::snapshot::compare::state;
use crate::snapshot::layout;
use crate::snapshot::{FileRecord, FileType, Present};

/// What is asked for, and by whom.
pub struct Request<'a> {
    /// The records of the snapshot.
    pub files: &'a [FileRecord],
    /// The state that is to be put back.
    pub goal: Side,
    /// What of it is put back.
    pub policy: &'a Policy,
    /// Whether a target that is at neither of its states is overwritten.
    pub force: bool,
    /// The targets, in order.
    pub targets: &'a [usize],
    /// The names that are one file in the state that is to be put back, and in the other.
    pub links: [&'a Links; 2],
    /// What was found at the targets and at the other names of their files.
    pub looks: &'a HashMap<usize, io::Result<Look>>,
    /// The paths at which something is settled before anything is changed, where that was not done.
    pub begun: &'a BTreeSet<Vec<u8>>,
}

/// What becomes of one target.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// A regular file gets its content and attributes.
    File {
        /// Written into the file that is there, because it has names or a place that a new file would
        /// not have.
        in_place: bool,
        /// The content is that which is there already: the file only becomes one of its own.
        own_content: bool,
    },
    /// It becomes a name of the file of another record.
    Link {
        /// The index of that record.
        to: usize,
    },
    /// A directory, symbolic link, FIFO, socket or device is made.
    Node,
    /// What is there gets other attributes.
    Attributes(Attributes),
    /// What is there is removed.
    Remove,
}

/// A target that changes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Step {
    /// The index of its record.
    pub record: usize,
    /// What becomes of it.
    pub action: Action,
}

/// Why a path can't be put back whatever the user says.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Obstacle {
    /// It can't be looked at.
    #[error("it can't be looked at: {0}")]
    Hidden(String),
    /// The way to it is closed.
    #[error("a file or a symbolic link is in the place of a directory above it")]
    NoDirectory,
    /// Its directory can't be changed.
    #[error("{0}")]
    Directory(String),
    /// It is another user's in a directory where only owners remove files.
    #[error("it belongs to another user, and its directory lets only owners remove files")]
    Sticky,
    /// It is immutable or append-only.
    #[error("it is immutable or append-only (chattr)")]
    Immutable,
    /// Something is mounted on it.
    #[error("something is mounted on it")]
    Mount,
    /// Only its owner can change it.
    #[error("it belongs to another user")]
    Foreign,
}

/// Why a target is left as it is.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Left {
    /// A directory that would have to go holds what the snapshot does not know.
    #[error("it holds {} that the snapshot does not know", entries(.0))]
    Entries(Vec<Vec<u8>>),
    /// The directory that it is in stays, since what was in its place can't be brought back.
    #[error("the directory that it is in stays")]
    Above,
    /// No recording has what is in a repository's own directory.
    #[error("it is inside a repository's own directory")]
    Repository,
    /// A device is made by root only, and of a snapshot that is trusted.
    #[error("a device can't be brought back")]
    Device,
}

fn entries(names: &[Vec<u8>]) -> String {
    let first = names.first().map_or_else(String::new, |name| crate::snapshot::printable(name).into_owned());
    match names.len() {
        0 | 1 => first,
        count => format!("{first} and {} more", count - 1),
    }
}

/// What a restore will do, and what speaks against it.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// What changes, in the order of the paths.
    pub steps: Vec<Step>,
    /// Targets at neither of their states, by the index of their records.
    pub conflicts: Vec<usize>,
    /// Paths that can't be put back.
    pub obstacles: Vec<(Vec<u8>, Obstacle)>,
    /// Targets that are left as they are.
    pub left: Vec<(Vec<u8>, Left)>,
    /// Directories to be made that are no targets and of which nothing is recorded.
    pub parents: BTreeSet<Vec<u8>>,
    /// Directories whose owner must permit changes in them for a while.
    pub loosen: BTreeSet<Vec<u8>>,
    /// What has flags that forbid changes, and is to be changed.
    pub unlock: BTreeSet<Vec<u8>>,
    /// How many targets are at the state already.
    pub at_goal: usize,
}

impl Plan {
    /// Whether the plan may be carried out.
    pub fn is_clear(&self, force: bool) -> bool {
        self.obstacles.is_empty() && (force || self.conflicts.is_empty())
    }
}

/// The directories in which the steps of `plan` change names.
pub fn touched(request: &Request, plan: &Plan) -> BTreeSet<Vec<u8>> {
    let changes_names = |step: &&Step| match step.action {
        Action::File { in_place, .. } => !in_place,
        Action::Link { .. } | Action::Node | Action::Remove => true,
        Action::Attributes(_) => false,
    };
    let paths = plan.steps.iter().filter(changes_names).map(|step| &request.files[step.record].path);
    paths.chain(&plan.parents).map(|path| parent(path).to_vec()).collect()
}

/// Makes the plan.
pub fn plan(request: &Request) -> Plan {
    let mut planner = Planner { request, plan: Plan::default(), steps: BTreeMap::new() };
    for &index in request.targets {
        planner.decide(index);
    }
    planner.link();
    planner.keep_content_of_what_stays();
    planner.keep_unknown_entries();
    planner.make_parents();
    planner.find_obstacles();
    let mut plan = planner.plan;
    plan.steps = planner.steps.into_iter().map(|(record, action)| Step { record, action }).collect();
    plan
}

struct Planner<'a> {
    request: &'a Request<'a>,
    plan: Plan,
    steps: BTreeMap<usize, Action>,
}

impl<'a> Planner<'a> {
    fn record(&self, index: usize) -> &'a FileRecord {
        &self.request.files[index]
    }

    fn look(&self, index: usize) -> Option<&'a Look> {
        self.request.looks.get(&index).and_then(|look| look.as_ref().ok())
    }

    fn goal(&self, index: usize) -> Option<&'a Present> {
        state(self.record(index), self.request.goal).present()
    }

    fn other(&self, index: usize) -> Option<&'a Present> {
        state(self.record(index), opposite(self.request.goal)).present()
    }

    fn path(&self, index: usize) -> Vec<u8> {
        self.record(index).path.clone()
    }

    fn obstruct(&mut self, index: usize, obstacle: Obstacle) {
        let path = self.path(index);
        self.plan.obstacles.push((path, obstacle));
    }

    fn decide(&mut self, index: usize) {
        let look = match self.request.looks.get(&index) {
            Some(Ok(look)) => look,
            Some(Err(error)) => return self.obstruct(index, Obstacle::Hidden(error.to_string())),
            None => return,
        };
        if look.pseudo {
            return;
        }
        if self.record(index).path.split(|byte| *byte == b'/').any(|name| name == b".git") {
            return self.leave(index, Left::Repository);
        }
        if look.at_goal {
            self.plan.at_goal += 1;
        } else if !look.at_other && !self.request.begun.contains(&self.record(index).path) {
            self.plan.conflicts.push(index);
        }
        let action = match (self.goal(index), &look.live) {
            (None, None) => None,
            (None, Some(_)) => Some(Action::Remove),
            (Some(goal), live) => {
                let kept = live.as_ref().filter(|live| is_kept(goal, live, look));
                match (kept, goal.file_type) {
                    (Some(live), _) => self.attributes(index, goal, live).map(Action::Attributes),
                    (None, FileType::File) => Some(self.file(goal, look)),
                    (None, FileType::CharDevice | FileType::BlockDevice)
                        if !self.request.policy.user.is_root() || !self.request.policy.privileges =>
                    {
                        return self.leave(index, Left::Device);
                    }
                    (None, _) => Some(Action::Node),
                }
            }
        };
        if let Some(action) = action {
            self.steps.insert(index, action);
        }
    }

    fn leave(&mut self, index: usize, why: Left) {
        let path = self.path(index);
        self.plan.left.push((path, why));
    }

    fn file(&self, goal: &Present, look: &Look) -> Action {
        let in_place = look.live.as_ref().is_some_and(|live| {
            let has_other_names = live.nlink > 1 && (live.dev, live.ino) == (goal.dev, goal.ino);
            live.file_type == FileType::File && (has_other_names || look.mount)
        });
        Action::File { in_place, own_content: false }
    }

    /// The attributes that what is there lacks; none where it has them all.
    ///
    /// Permission bits are part of the state. The others are put back where they are as the other
    /// state has them: an attribute that someone else changed since is not of the command's doing.
    fn attributes(&self, index: usize, goal: &Present, live: &Present) -> Option<Attributes> {
        let record = self.record(index);
        let other = self.other(index).filter(|other| other.file_type == goal.file_type);
        let ours = |same_as: &dyn Fn(&Present) -> bool| other.is_some_and(same_as);
        let mut wanted = Attributes::default();
        let policy = self.request.policy;
        let permissions = policy.permissions(goal);
        if goal.file_type != FileType::Symlink && live.mode & 0o7777 != permissions {
            wanted.permissions = Some(permissions);
        }
        let owner = (goal.uid, goal.gid);
        if policy.ownership
            && (live.uid, live.gid) != owner
            && ours(&|at| (at.uid, at.gid) == (live.uid, live.gid))
            && self.may_give(live, owner)
        {
            wanted.owner = Some(owner);
            // chown(2) clears set-ID bits.
            wanted.permissions = (goal.file_type != FileType::Symlink).then_some(permissions);
        }
        if let (Some(mtime), Some(now)) = (own_time(record, goal), own_time(record, live))
            && mtime != now
            && ours(&|at| own_time(record, at) == Some(now))
        {
            wanted.mtime = Some(mtime);
        }
        let names: BTreeSet<_> =
            goal.xattrs.keys().chain(other.iter().flat_map(|other| other.xattrs.keys())).collect();
        for name in names {
            let value = goal.xattrs.get(name);
            if live.xattrs.get(name) != value
                && ours(&|at| at.xattrs.get(name) == live.xattrs.get(name))
                && policy.allows(name)
                && policy.user.may_set(name)
            {
                wanted.xattrs.push((name.clone(), value.cloned()));
            }
        }
        let is_ours = other.is_some_and(|other| {
            other.inode_flags == live.inode_flags || other.inode_flags == goal.inode_flags
        });
        if live.inode_flags != goal.inode_flags && is_ours && policy.privileges && has_flags(goal.file_type) {
            wanted.flags = Some(goal.inode_flags.clone());
        }
        if !self.request.policy.user.is_root()
            && live.uid != self.request.policy.user.uid
            && wanted.permissions.is_none()
        {
            // Only the owner may; and none of it is part of the state.
            return None;
        }
        (!wanted.is_empty()).then_some(wanted)
    }

    fn may_give(&self, live: &Present, (uid, gid): (u32, u32)) -> bool {
        let user = &self.request.policy.user;
        user.is_root() || live.uid == uid && (live.gid == gid || user.gids.contains(&gid))
    }

    /// Keeps what is in a directory whose successor can't be made.
    fn keep_content_of_what_stays(&mut self) {
        let stays = |(path, why): &(Vec<u8>, Left)| {
            let index = self.request.files.binary_search_by(|record| record.path.cmp(path)).ok()?;
            let is_directory = self.look(index)?.live.as_ref()?.file_type == FileType::Directory;
            (*why == Left::Device && is_directory).then(|| [path.as_slice(), b"/"].concat())
        };
        for above in self.plan.left.iter().filter_map(stays).collect::<Vec<_>>() {
            let is_beneath = |index: &usize| self.record(*index).path.starts_with(&above);
            let beneath: Vec<usize> = self.steps.keys().copied().filter(is_beneath).collect();
            for index in beneath {
                self.steps.remove(&index);
                self.leave(index, Left::Above);
            }
        }
    }

    /// Keeps each directory that would have to go and holds what the snapshot does not know.
    fn keep_unknown_entries(&mut self) {
        let mut removed: HashSet<Vec<u8>> = HashSet::new();
        let indices: Vec<usize> = self.steps.keys().rev().copied().collect();
        for index in indices {
            let Some(look) = self.look(index) else { continue };
            let path = self.path(index);
            let is_directory = look.live.as_ref().is_some_and(|live| live.file_type == FileType::Directory);
            let goes = match self.steps.get(&index) {
                Some(Action::Remove) => true,
                Some(Action::File { .. } | Action::Link { .. } | Action::Node) => false,
                _ => continue,
            };
            if is_directory {
                // What a killed restore has left there goes before anything else is done.
                let is_ours = |name: &Vec<u8>| layout::is_temporary(name);
                let child = |name: &Vec<u8>| [path.as_slice(), b"/", name].concat();
                let unknown: Vec<_> = look
                    .entries
                    .iter()
                    .filter(|name| !is_ours(name) && !removed.contains(&child(name)))
                    .cloned()
                    .collect();
                if !unknown.is_empty() {
                    self.steps.remove(&index);
                    self.plan.left.push((path, Left::Entries(unknown)));
                    continue;
                }
            }
            if goes {
                removed.insert(path);
            }
        }
        self.plan.left.sort_by(|one, other| one.0.cmp(&other.0));
    }
}

/// Whether what is there stays and at most gets other attributes.
fn is_kept(goal: &Present, live: &Present, look: &Look) -> bool {
    goal.file_type == live.file_type
        && match goal.file_type {
            FileType::File => look.same_content,
            FileType::Symlink => goal.target == live.target,
            FileType::CharDevice | FileType::BlockDevice => goal.rdev == live.rdev,
            FileType::Directory | FileType::Fifo | FileType::Socket => true,
        }
}

/// Whether `live` is what was seen as `before`, by its metadata.
pub fn is_unchanged(before: &Present, live: &Present) -> bool {
    let look = |at: &Present| (at.file_type, at.dev, at.ino, at.mode, at.target.clone());
    let content =
        |at: &Present| (at.file_type == FileType::File).then_some((at.size, at.mtime, at.mtime_nsec));
    look(before) == look(live) && content(before) == content(live)
}

/// Whether the content of a file that is written must come from the snapshot.
pub fn needs_content(record: &FileRecord, side: Side, action: &Action) -> bool {
    let is_empty = state(record, side).present().is_none_or(|goal| goal.size == 0);
    matches!(action, Action::File { own_content: false, .. }) && !is_empty
}
