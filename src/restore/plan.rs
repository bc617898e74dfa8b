//! Decides what becomes of each target. Pure: records and inspections in, actions and objections out.
//!
//! Neighbours: `inspect.rs` makes the inspections, `rescue.rs` keeps what the actions will overwrite,
//! `apply.rs` carries them out. Submodules: `hard_links.rs` and `obstacles.rs`.

mod hard_links;
mod obstacles;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::io;

use super::flags::has_flags;
use super::git;
use super::inspect::{Inspection, Place};
use super::node::{AttributeChanges, RestorePolicy, Shortfall};
use super::root::parent;
use super::targets::{HardLinks, opposite, own_time};
use crate::fs::child_of;
use crate::git::is_in_git_directory;
use crate::snapshot::blobs::Side;
use crate::snapshot::compare::state;
use crate::snapshot::layout;
use crate::snapshot::{FileRecord, FileType, Present};

/// The extended attribute of the capabilities that a program is given (capabilities(7)).
const CAPABILITIES: &[u8] = b"security.capability";

/// What a plan is made from.
pub struct PlanInput<'a> {
    /// The records of the snapshot.
    pub files: &'a [FileRecord],
    /// The wanted state.
    pub wanted: Side,
    /// What of it is put back.
    pub policy: &'a RestorePolicy,
    /// Whether a target that is in neither of its recorded states is overwritten.
    pub force: bool,
    /// The same for Git's state.
    pub force_git: bool,
    /// The targets, in order.
    pub targets: &'a [usize],
    /// The hard links of the wanted state, and those of the other one.
    pub hard_links: [&'a HardLinks; 2],
    /// The inspections of the targets and of the other names of their files.
    pub inspections: &'a HashMap<usize, io::Result<Inspection>>,
    /// In a dry run, the paths where something an interrupted restore had begun would be settled first.
    pub begun: &'a BTreeSet<Vec<u8>>,
    /// Paths that are conflicts, whatever is there now, and why.
    pub known_conflicts: &'a BTreeMap<Vec<u8>, String>,
    /// Files that had several names, by their device and inode numbers, although the snapshot may know one alone.
    pub known_files: &'a HashSet<(u64, u64)>,
    /// The contents that files get instead of the recorded ones, by the index of the record.
    pub replaced: &'a BTreeMap<usize, Vec<u8>>,
    /// Paths that are conflicts even by force, such as those that another process has locked, and what to say of it.
    pub hard_conflicts: &'a BTreeMap<Vec<u8>, String>,
}

impl PlanInput<'_> {
    /// Whether the target of record `index` is put back even if it is a conflict.
    pub fn is_forced(&self, index: usize) -> bool {
        let record = &self.files[index];
        if record.is_git_state {
            self.force_git && !self.hard_conflicts.contains_key(&record.path)
        } else {
            self.force
        }
    }
}

/// What becomes of one target.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// A regular file gets its content and attributes.
    File {
        /// It is written into the existing file, which has hard links or a mount that a new file would
        /// not have.
        in_place: bool,
        /// The content is there already: the name only gets a file of its own.
        own_content: bool,
    },
    /// It becomes a hard link to the file of another record.
    HardLink {
        /// The index of that record.
        to: usize,
    },
    /// The file itself, which is there by a name that it loses, gets this name again.
    Return {
        /// The index of the record of that name.
        from: usize,
    },
    /// A directory, symlink, FIFO, socket or device is made.
    Node,
    /// The existing file gets other attributes.
    Attributes(AttributeChanges),
    /// The existing file is removed.
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

/// Why a path can't be put back, even with `--force`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Obstacle {
    /// It can't be inspected.
    #[error("it can't be inspected: {0}")]
    Hidden(String),
    /// One of its parent directories is no directory now.
    #[error("a file or a symlink is in the place of a directory above it")]
    NoDirectory,
    /// Its directory can't be changed.
    #[error("{0}")]
    Directory(String),
    /// It is another user's, in a directory with the sticky bit.
    #[error("it belongs to another user, and its directory lets only owners remove files")]
    Sticky,
    /// It is immutable or append-only.
    #[error("it is immutable or append-only (chattr)")]
    Immutable,
    /// Something is mounted on it.
    #[error("something is mounted on it")]
    Mount,
    /// Only its owner can change its attributes.
    #[error("it belongs to another user")]
    Foreign,
    /// Another mount shows it at this path, too, and it was found in another state there.
    #[error("a bind mount shows it at {}, too, and it was found in another state there: name one of the two paths", crate::snapshot::printable(.0))]
    OtherPath(Vec<u8>),
}

/// Why a target is left as it is.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LeftReason {
    /// A directory that would be removed has entries that the snapshot does not know.
    #[error("it holds {} that the snapshot does not know", entries(.0))]
    Entries(Vec<Vec<u8>>),
    /// The directory that it is in stays, since what was in its place can't be made.
    #[error("the directory that it is in stays")]
    ParentState,
    /// It is in a `.git` directory, and not recorded as Git's state.
    #[error("it is inside a repository's own directory")]
    Repository,
    /// The path is a git directory, and something in it can't be put back.
    #[error("Git's state is left as it is, because of {}: {why}", crate::snapshot::printable(path))]
    GitState {
        /// What is in the way.
        path: Vec<u8>,
        /// Why.
        why: String,
    },
    /// The path is a git directory, which was not named when others were.
    #[error("Git's state is put back with all paths, or if this one is named")]
    GitNotNamed,
    /// The path is a git directory, and the user wants Git's state left.
    #[error("Git's state is left (--no-git)")]
    NoGit,
    /// It could make Git run programs, and the snapshot is someone else's.
    #[error("from another machine or user, nothing is taken that could make Git run programs")]
    GitProgram,
    /// It is in neither of its recorded states, and such paths are to be skipped.
    #[error("{0}")]
    Conflict(String),
    /// It is the file that belongs at another path, which is left as it is: without this name the file would be lost.
    #[error("it is the file that belongs at {}, which is left as it is", crate::snapshot::printable(.0))]
    FileOfAnother(Vec<u8>),
    /// The command made it where nobody could look when it ended.
    #[error("nothing is known of what the command left there: its directory could not be searched")]
    Unseen,
    /// Only root makes devices, and only from a trusted snapshot.
    #[error("a device can't be brought back")]
    Device,
}

impl LeftReason {
    /// Whether it is what the user asked for.
    pub fn is_wanted(&self) -> bool {
        *self == LeftReason::NoGit
    }
}

fn entries(names: &[Vec<u8>]) -> String {
    let first = names.first().map_or_else(String::new, |name| crate::snapshot::printable(name).into_owned());
    match names.len() {
        0 | 1 => first,
        count => format!("{first} and {} more", count - 1),
    }
}

/// What a restore will do, and the objections to it.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct RestorePlan {
    /// What changes, in the order of the paths.
    pub steps: Vec<Step>,
    /// Targets in neither of their recorded states, and those of `occupied`, by the index of their records.
    pub conflicts: Vec<usize>,
    /// Directories that something else is to replace, and why they stay.
    pub occupied: BTreeMap<usize, LeftReason>,
    /// Paths that can't be put back.
    pub obstacles: Vec<(Vec<u8>, Obstacle)>,
    /// Targets that are left as they are.
    pub left: Vec<(Vec<u8>, LeftReason)>,
    /// Attributes that the user can't give to a file that stays.
    pub shortfalls: Vec<(Vec<u8>, Shortfall)>,
    /// Directories to be made that are no targets and have no record.
    pub parents: BTreeSet<Vec<u8>>,
    /// Directories that have to be made writable for a while.
    pub make_writable: BTreeSet<Vec<u8>>,
    /// Paths whose inode flags have to be cleared for a while.
    pub clear_flags: BTreeSet<Vec<u8>>,
    /// How many targets are in the state already.
    pub at_wanted: usize,
}

impl RestorePlan {
    /// Whether conflicts forbid that the plan is carried out.
    pub fn has_blocking_conflicts(&self, input: &PlanInput) -> bool {
        self.conflicts.iter().any(|index| !input.is_forced(*index))
    }
}

/// The directories in which the steps of `plan` change entries.
pub fn touched(input: &PlanInput, plan: &RestorePlan) -> BTreeSet<Vec<u8>> {
    let changes_names = |step: &&Step| match step.action {
        Action::File { in_place, .. } => !in_place,
        Action::HardLink { .. } | Action::Return { .. } | Action::Node | Action::Remove => true,
        Action::Attributes(_) => false,
    };
    let paths = plan.steps.iter().filter(changes_names).map(|step| &input.files[step.record].path);
    paths.chain(&plan.parents).map(|path| parent(path).to_vec()).collect()
}

/// Makes the plan.
pub fn plan(input: &PlanInput) -> RestorePlan {
    let mut planner = Planner {
        input,
        plan: RestorePlan::default(),
        steps: BTreeMap::new(),
        places: HashMap::new(),
        shortfalls: Vec::new(),
    };
    for &index in input.targets {
        planner.decide(index);
    }
    planner.join_and_separate();
    planner.keep_content_of_what_stays();
    planner.keep_unknown_entries();
    planner.return_files();
    planner.make_parents();
    planner.find_obstacles();
    // A file that does not stay after all gets what it can when it is made.
    let stays = |index: &usize| matches!(planner.steps.get(index), None | Some(Action::Attributes(_)));
    let shortfalls = planner.shortfalls.into_iter().filter(|(index, _)| stays(index));
    let mut plan = planner.plan;
    plan.shortfalls = shortfalls.map(|(index, one)| (input.files[index].path.clone(), one)).collect();
    plan.steps = planner.steps.into_iter().map(|(record, action)| Step { record, action }).collect();
    plan
}

/// A directory, by device and inode number, and a path below it.
type Below<'a> = ((u64, u64), &'a [u8]);

struct Planner<'a> {
    input: &'a PlanInput<'a>,
    plan: RestorePlan,
    steps: BTreeMap<usize, Action>,
    /// The target that decides what is at each place, and its mount.
    places: HashMap<Below<'a>, (usize, u64)>,
    /// What the user can't give to the file that is at a target.
    shortfalls: Vec<(usize, Shortfall)>,
}

impl<'a> Planner<'a> {
    fn record(&self, index: usize) -> &'a FileRecord {
        &self.input.files[index]
    }

    fn inspect(&self, index: usize) -> Option<&'a Inspection> {
        self.input.inspections.get(&index).and_then(|inspection| inspection.as_ref().ok())
    }

    fn wanted(&self, index: usize) -> Option<&'a Present> {
        state(self.record(index), self.input.wanted).present()
    }

    fn other(&self, index: usize) -> Option<&'a Present> {
        state(self.record(index), opposite(self.input.wanted)).present()
    }

    fn path(&self, index: usize) -> Vec<u8> {
        self.record(index).path.clone()
    }

    fn obstruct(&mut self, index: usize, obstacle: Obstacle) {
        let path = self.path(index);
        self.plan.obstacles.push((path, obstacle));
    }

    fn decide(&mut self, index: usize) {
        let inspection = match self.input.inspections.get(&index) {
            Some(Ok(inspection)) => inspection,
            Some(Err(error)) => return self.obstruct(index, Obstacle::Hidden(error.to_string())),
            None => return,
        };
        if inspection.pseudo {
            return;
        }
        let record = self.record(index);
        if !record.is_git_state && is_in_git_directory(&record.path) {
            return self.leave(index, LeftReason::Repository);
        }
        if record.is_git_state
            && !self.input.policy.git_programs
            && !inspection.at_wanted
            && git::may_run_programs(record, self.input.wanted)
        {
            return self.leave(index, LeftReason::GitProgram);
        }
        if self.input.known_conflicts.contains_key(&record.path)
            || self.input.hard_conflicts.contains_key(&record.path)
        {
            self.plan.conflicts.push(index);
        } else if inspection.at_wanted {
            self.plan.at_wanted += 1;
        } else if !inspection.at_other
            && !self.input.begun.contains(&self.record(index).path)
            && !self.is_only_a_name(index)
        {
            self.plan.conflicts.push(index);
        }
        let action = match (self.wanted(index), &inspection.live) {
            _ if inspection.is_accepted || self.is_decided(index, inspection) => None,
            (None, None) => None,
            (None, Some(_)) => Some(Action::Remove),
            (Some(wanted), live) => {
                let kept = live.as_ref().filter(|live| is_kept(wanted, live, inspection));
                match (kept, wanted.file_type) {
                    (Some(live), _) => self.attributes(index, wanted, live).map(Action::Attributes),
                    (None, FileType::File) => Some(self.file(index, wanted, inspection)),
                    (None, _) => return self.make_node(index, wanted),
                }
            }
        };
        if let Some(action) = action {
            self.steps.insert(index, action);
        }
    }

    /// Whether another target, in another mount, has the same place and so decides what is there.
    fn is_decided(&mut self, index: usize, inspection: &'a Inspection) -> bool {
        let Some(Place { directory, below }) = &inspection.place else { return false };
        let (first, mount) = *self.places.entry((directory.inode, below)).or_insert((index, directory.mount));
        let live = |inspection: &Inspection| inspection.live.as_ref().map(Present::identity);
        let is_same = mount != directory.mount
            && !inspection.mount
            && self.inspect(first).is_some_and(|other| !other.mount && live(other) == live(inspection));
        if !is_same {
            return false;
        }
        let wanted = |index| Some(Present { blob: None, ..self.wanted(index)?.clone() });
        if wanted(first) != wanted(index) {
            // Which of the two is older is not recorded.
            self.obstruct(index, Obstacle::OtherPath(self.path(first)));
        }
        true
    }

    /// Has a new directory, symlink, FIFO, socket or device made at a target, as far as the user may.
    fn make_node(&mut self, index: usize, wanted: &Present) {
        let may_make_devices = self.input.policy.user.is_root() && self.input.policy.privileges;
        let may_make = match wanted.file_type {
            // An overlay's whiteout is a device that stands for nothing, which everybody may make (Linux 5.8).
            FileType::CharDevice => may_make_devices || wanted.rdev == Some(0),
            FileType::BlockDevice => may_make_devices,
            _ => true,
        };
        if may_make {
            self.steps.insert(index, Action::Node);
        } else {
            self.steps.remove(&index);
            self.leave(index, LeftReason::Device);
        }
    }

    /// Whether a target only loses the name of a file that keeps another one: then what has become of the content since is
    /// in nobody's way.
    fn is_only_a_name(&self, index: usize) -> bool {
        let live = |index| {
            let live = self.inspect(index)?.live.as_ref()?;
            live.linkable_identity().map(|_| live)
        };
        let Some(file) = live(index) else { return false };
        let loses_name = |index: usize| {
            self.wanted(index).is_none_or(|wanted| wanted.identity() != file.identity())
                && live(index).is_some_and(|live| live.identity() == file.identity())
        };
        let is_it = |left: &Present| {
            left.nlink > 1 && left.file_type == file.file_type && left.identity() == file.identity()
        };
        let losing = || self.input.targets.iter().filter(|index| loses_name(**index)).count() as u64;
        self.other(index).is_some_and(is_it) && loses_name(index) && file.nlink > losing()
    }

    fn leave(&mut self, index: usize, why: LeftReason) {
        let path = self.path(index);
        self.plan.left.push((path, why));
    }

    fn file(&self, index: usize, wanted: &Present, inspection: &Inspection) -> Action {
        // What the command wrote into the file is to be read under names that it never used, too. The live file
        // is another inode if a restore has made it.
        let was_kept = inspection.at_other
            && self.other(index).is_some_and(|other| other.identity() == wanted.identity());
        let in_place = inspection.live.as_ref().is_some_and(|live| {
            // A name that has gone can become a name of this file again.
            let is_shared = live.nlink > 1 || self.input.known_files.contains(&wanted.identity());
            let has_other_names = is_shared && (live.identity() == wanted.identity() || was_kept);
            live.file_type == FileType::File && (has_other_names || inspection.mount)
        });
        Action::File { in_place, own_content: false }
    }

    /// The attributes that the existing file lacks; none if it has them all. Notes those that the user can't give to it.
    ///
    /// Permission bits are part of the state. Any other attribute, owner and group each, is put back only if it is as in the
    /// other state: if it is not, someone else has changed it since, and not the command.
    fn attributes(&mut self, index: usize, wanted: &Present, live: &Present) -> Option<AttributeChanges> {
        let record = self.record(index);
        let other = self.other(index).filter(|other| other.file_type == wanted.file_type);
        let ours = |same_as: &dyn Fn(&Present) -> bool| other.is_some_and(same_as);
        let (mut changes, mut shortfalls) = (AttributeChanges::default(), Vec::new());
        let policy = self.input.policy;
        let user = &policy.user;
        // Whoever may write to the file may give it attributes of the namespace `user` (xattr(7)), its owner some others.
        let is_owner = user.is_root() || live.uid == user.uid;
        let permissions = policy.permissions(wanted);
        if wanted.file_type != FileType::Symlink && live.mode & 0o7777 != permissions {
            changes.permissions = Some(permissions);
            changes.lost_set_id = policy.lost_set_id(wanted);
        }
        let [is_our_owner, is_our_group] = [ours(&|at| at.uid == live.uid), ours(&|at| at.gid == live.gid)];
        // A set-ID program gets both or neither.
        let may_be_split = wanted.mode & (libc::S_ISUID | libc::S_ISGID) == 0;
        let is_put_back = |is_ours: bool| is_ours && (may_be_split || is_our_owner && is_our_group);
        let owner = (
            if is_put_back(is_our_owner) { wanted.uid } else { live.uid },
            if is_put_back(is_our_group) { wanted.gid } else { live.gid },
        );
        if policy.ownership && (live.uid, live.gid) != owner {
            if self.may_give(live, owner) {
                changes.owner = Some(owner);
                // chown(2) clears set-ID bits.
                changes.permissions = (wanted.file_type != FileType::Symlink).then_some(permissions);
            } else {
                shortfalls.push(Shortfall::Owner(owner.0, owner.1));
            }
        }
        if let (Some(mtime), Some(now)) = (own_time(record, wanted), own_time(record, live))
            && mtime != now
            && ours(&|at| own_time(record, at) == Some(now))
        {
            changes.mtime = Some(mtime);
        }
        // chown(2) clears these, too.
        let cleared = changes.owner.and(live.xattrs.get_key_value(CAPABILITIES));
        let recorded = wanted.xattrs.keys().chain(other.iter().flat_map(|other| other.xattrs.keys()));
        let names: BTreeSet<_> = recorded.chain(cleared.map(|(name, _)| name)).collect();
        for name in names {
            let (value, now) = (wanted.xattrs.get(name), live.xattrs.get(name));
            let is_put_back = now != value && ours(&|at| at.xattrs.get(name) == now) && policy.allows(name);
            let is_given_again = cleared.is_some_and(|(cleared, _)| cleared == name);
            let value = if is_put_back { value } else { now };
            if is_put_back || is_given_again {
                if user.may_set(name) && (is_owner || name.starts_with(b"user.")) {
                    changes.xattrs.push((name.clone(), value.cloned()));
                } else {
                    shortfalls.push(Shortfall::xattr(name));
                }
            }
        }
        let is_ours = other.is_some_and(|other| {
            other.inode_flags == live.inode_flags || other.inode_flags == wanted.inode_flags
        });
        if live.inode_flags != wanted.inode_flags
            && is_ours
            && policy.privileges
            && has_flags(wanted.file_type)
        {
            changes.flags = Some(wanted.inode_flags.clone());
        }
        if !is_owner && changes.permissions.is_none() {
            // Only the owner may, and none of it is part of the state.
            let xattrs = std::mem::take(&mut changes.xattrs);
            changes = AttributeChanges { xattrs, ..AttributeChanges::default() };
        }
        self.shortfalls.extend(shortfalls.into_iter().map(|one| (index, one)));
        (!changes.is_empty()).then_some(changes)
    }

    fn may_give(&self, live: &Present, (uid, gid): (u32, u32)) -> bool {
        let user = &self.input.policy.user;
        user.is_root() || live.uid == uid && (live.gid == gid || user.gids.contains(&gid))
    }

    /// Keeps what is in a directory that can't be replaced.
    fn keep_content_of_what_stays(&mut self) {
        let stays = |(path, why): &(Vec<u8>, LeftReason)| {
            let index = FileRecord::find(self.input.files, path)?;
            let is_directory = self.inspect(index)?.live.as_ref()?.file_type == FileType::Directory;
            (*why == LeftReason::Device && is_directory).then(|| [path.as_slice(), b"/"].concat())
        };
        for above in self.plan.left.iter().filter_map(stays).collect::<Vec<_>>() {
            let is_beneath = |index: &usize| self.record(*index).path.starts_with(&above);
            let beneath: Vec<usize> = self.steps.keys().copied().filter(is_beneath).collect();
            for index in beneath {
                self.steps.remove(&index);
                self.leave(index, LeftReason::ParentState);
            }
        }
    }

    /// Keeps each directory that would be removed and has entries that the snapshot does not know. Where something else is to
    /// take its place, that is a conflict.
    fn keep_unknown_entries(&mut self) {
        let mut removed: HashSet<Vec<u8>> = HashSet::new();
        let indices: Vec<usize> = self.steps.keys().rev().copied().collect();
        for index in indices {
            let Some(inspection) = self.inspect(index) else { continue };
            let path = self.path(index);
            let is_directory =
                inspection.live.as_ref().is_some_and(|live| live.file_type == FileType::Directory);
            let goes = match self.steps.get(&index) {
                Some(Action::Remove) => true,
                Some(
                    Action::File { .. } | Action::HardLink { .. } | Action::Return { .. } | Action::Node,
                ) => false,
                _ => continue,
            };
            if is_directory {
                // What an interrupted restore has left there is removed before anything else is done.
                let is_ours = |name: &Vec<u8>| layout::is_temporary(name);
                let child = |name: &Vec<u8>| child_of(&path, name);
                let unknown: Vec<_> = inspection
                    .entries
                    .iter()
                    .filter(|name| !is_ours(name) && !removed.contains(&child(name)))
                    .cloned()
                    .collect();
                if !unknown.is_empty() {
                    self.steps.remove(&index);
                    let why = LeftReason::Entries(unknown);
                    let is_git_state = self.record(index).is_git_state;
                    if !goes && !is_git_state && !self.input.force {
                        self.plan.conflicts.push(index);
                        self.plan.occupied.insert(index, why);
                    } else if !goes || !is_git_state || !git::is_namespace(&path) {
                        // Where no ref is to take its place, it is in nobody's way.
                        self.plan.left.push((path, why));
                    }
                    continue;
                }
            }
            if goes {
                removed.insert(path);
            }
        }
        self.plan.left.sort_by(|one, other| one.0.cmp(&other.0));
        self.plan.conflicts.sort_unstable();
    }
}

/// Whether the existing file stays, and at most gets other attributes.
fn is_kept(wanted: &Present, live: &Present, inspection: &Inspection) -> bool {
    wanted.file_type == live.file_type
        && match wanted.file_type {
            FileType::File => inspection.same_content,
            FileType::Symlink => wanted.target == live.target,
            FileType::CharDevice | FileType::BlockDevice => wanted.rdev == live.rdev,
            FileType::Directory | FileType::Fifo | FileType::Socket => true,
        }
}

/// Whether `live` is the file that was `before`, going by its metadata.
pub fn is_unchanged(before: &Present, live: &Present) -> bool {
    let identity = |at: &Present| (at.file_type, at.dev, at.ino, at.mode, at.target.clone());
    let content =
        |at: &Present| (at.file_type == FileType::File).then_some((at.size, at.mtime, at.mtime_nsec));
    identity(before) == identity(live) && content(before) == content(live)
}

/// Whether the content for `action` on the record `index` has to come from the snapshot.
pub fn needs_content(input: &PlanInput, index: usize, action: &Action) -> bool {
    let wanted = state(&input.files[index], input.wanted).present();
    // The target of a symlink is in the record, unless it was withheld.
    if *action == Action::Node {
        return wanted.is_some_and(|wanted| wanted.target.is_some() && wanted.blob_omitted.is_some());
    }
    let is_empty = wanted.is_none_or(|wanted| wanted.size == 0);
    matches!(action, Action::File { own_content: false, .. })
        && !is_empty
        && !input.replaced.contains_key(&index)
}
