//! One place of a call that can change something: protected at the entry, applied by the result.
//!
//! Neighbours: `effects.rs` says what each effect means, `changes.rs` has the calls that consist of these.

use std::cell::OnceCell;

use super::effects::{Meaning, meaning};
use crate::fs::{self, FileStat};
use crate::observe::capture::OnLoss;
use crate::observe::ledger::apply::{Change, Kind};
use crate::observe::ledger::ids::{InodeId, NameId, ProcessId};
use crate::observe::ledger::in_flight::Footprint;
use crate::observe::ledger::protect::Protected;
use crate::observe::ledger::{Ledger, now_us};
use crate::observe::policy::ignore::RuleId;
use crate::observe::policy::suppressed::LeftOut;
use crate::observe::processes::ProcessTraits;
use crate::observe::recording::{Classification, Recording};
use crate::observe::resolve::{self, Crossed, Resolved};
use crate::snapshot::{BlobOmitted, Operation, Operations};
use crate::trace::observer::Caller;
use crate::trace::proc_fd;
use crate::trace::syscalls::{Access, Dirfd, Effect, FileRef};

/// One place of a pending call.
#[derive(Debug)]
pub struct Part {
    pub effect: Effect,
    pub path: Vec<u8>,
    pub classification: Classification,
    pub stat: Option<FileStat>,
    pub crossed: Vec<Crossed>,
    /// openat2 may stop at a symlink or a mount before it comes to the path.
    pub strict: bool,
    /// It is in the upper directory of an overlay, through which the call changes it.
    pub is_copied_up: bool,
    /// Bytes that the call may destroy.
    pub protected: Option<Protected>,
    /// Why they can't be kept: then the call must be refused.
    pub loss: Option<BlobOmitted>,
    /// The inode whose times the call may set.
    pub sets_times: Option<InodeId>,
    /// What lies beneath a directory that moves.
    pub moved: Vec<Moved>,
    /// What was found once the call had been made.
    pub found: Found,
    /// When the call began, in microseconds since 1970.
    pub began_us: u64,
}

/// What is looked at after a call, at most once.
#[derive(Debug, Default)]
pub struct Found {
    at_path: OnceCell<Option<FileStat>>,
    opened: OnceCell<Option<FileStat>>,
}

/// A path beneath a directory that moves.
#[derive(Debug)]
pub struct Moved {
    /// Its name below the directory, with a slash in front.
    pub relative: Vec<u8>,
    pub stat: FileStat,
    pub classification: Classification,
    /// That of the name which it gets.
    pub target: Classification,
}

impl Part {
    /// Whether it is a rewrite, which matters only to a file that was only appended to, of another file.
    pub fn is_irrelevant_rewrite(&self, ledger: &Ledger) -> bool {
        self.effect == Effect::Rewrite && !self.stat.as_ref().is_some_and(|stat| ledger.is_appended(stat))
    }

    /// What is at its path once the call has been made.
    pub fn now(&self) -> Option<&FileStat> {
        self.found.at_path.get_or_init(|| fs::lstat(&self.path).ok().flatten()).as_ref()
    }

    /// Whether the call may have taken effect, if nobody knows its result. A change in place may leave no trace in what
    /// lstat(2) says: an open for writing leaves none, and the descriptor may be another process's too.
    pub fn may_be_done(&self) -> bool {
        let Meaning { kind, changes_name, .. } = self.meaning();
        match kind {
            // With O_CREAT and O_EXCL it fails where something is.
            Kind::Written | Kind::Appended | Kind::Attributes => {
                !matches!(self.effect, Effect::Open(open) if open.exclusive)
            }
            Kind::Used | Kind::Bound | Kind::Removed | Kind::Moved | Kind::Exchanged => {
                let identity = |stat: Option<&FileStat>| stat.map(|stat| (stat.st_dev, stat.st_ino));
                changes_name && identity(self.now()) != identity(self.stat.as_ref())
            }
        }
    }

    /// Whether the call, an open, has failed after it had created the file: Landlock and other security modules judge the
    /// open of what is there then. EEXIST says that another one was faster.
    pub fn was_created_in_vain(&self, result: Option<i64>) -> bool {
        const EEXIST: i64 = -(libc::EEXIST as i64);
        matches!(self.effect, Effect::Open(open) if open.create)
            && self.stat.is_none()
            && result != Some(EEXIST)
            && self.now().is_some()
    }

    /// What the call has opened as `fd`.
    pub fn opened(&self, caller: Caller, fd: i32) -> Option<&FileStat> {
        let stat = || rustix::fs::stat(proc_fd::link(caller.tid, fd).as_str()).ok();
        self.found.opened.get_or_init(stat).as_ref()
    }

    /// Whether the call has opened, as `fd`, the file that was prepared, or if there was none, the one that is at its path
    /// since.
    pub fn has_opened_it(&self, caller: Caller, fd: i32) -> bool {
        let prepared = self.stat.as_ref().or_else(|| self.now());
        prepared.zip(self.opened(caller, fd)).is_some_and(|(prepared, opened)| {
            (prepared.st_dev, prepared.st_ino) == (opened.st_dev, opened.st_ino)
        })
    }

    /// What the call does here, if it succeeds.
    pub fn meaning(&self) -> Meaning {
        meaning(self.effect, self.stat.as_ref())
    }
}

impl Footprint {
    /// Adds the working directory that the threads of a process share, or several processes: one may change
    /// it while another's call starts from it.
    pub fn add_working_directory(&mut self, caller: Caller, traits: ProcessTraits, access: &Access) {
        // No absolute path equals these names. All processes that share a working directory get the same one.
        let shared = || match traits {
            ProcessTraits { shares_working_directory: true, .. } => b"working directory of several".to_vec(),
            _ => format!("working directory of {}", caller.tgid).into_bytes(),
        };
        if !traits.shares_paths() {
            return;
        }
        match &access.file {
            FileRef::Path { dirfd: Dirfd::Cwd, path } if !path.starts_with(b"/") => {
                self.walked.push(shared())
            }
            FileRef::Path { .. } | FileRef::Descriptor(_) | FileRef::WorkingDirectory => {}
        }
        if access.effect == Effect::ChangeDirectory {
            self.walked.push(shared());
            self.changed.push(shared());
        }
    }

    /// Adds what a call does to one place.
    pub fn add(&mut self, effect: Effect, resolved: &Resolved) {
        let meaning = meaning(effect, resolved.stat.as_ref());
        self.walked.push(resolved.path.clone());
        self.walked.extend(resolved.crossed.iter().map(|symlink| symlink.path.clone()));
        self.walked.extend(resolved.left.iter().cloned());
        if lists(effect, resolved.stat.as_ref()) {
            self.listed.push(resolved.path.clone());
        }
        if meaning.changes_name {
            self.changed.push(resolved.path.clone());
        }
        if let Some(stat) = resolved.stat.as_ref().filter(|_| meaning.changes_link_count) {
            self.hard_links.push((stat.st_dev, stat.st_ino));
        }
    }
}

impl Recording {
    /// Takes the state of the directory of a name that changes, if it has none yet: the change alters its time and link count.
    fn meet_directory_of(&mut self, path: &[u8]) {
        let Some(directory) = fs::parent_of(path) else { return };
        let ledger = &mut self.ledger;
        if ledger.last_changed_in == directory || ledger.names.find(directory).is_some() {
            return;
        }
        directory.clone_into(&mut ledger.last_changed_in);
        if let Some(stat) = fs::lstat(directory).ok().flatten().filter(resolve::is_directory) {
            ledger.inodes.meet(&stat);
        }
    }

    /// Protects what a call may destroy at one place; `on_loss` says whether the call can still be refused.
    pub fn prepare_part(&mut self, effect: Effect, resolved: Resolved, on_loss: OnLoss) -> Part {
        let began_us = now_us();
        let Resolved { path, stat, crossed, .. } = resolved;
        let classification = if effect == Effect::Remove && self.lets_go(&path) {
            Classification::Suppressed(RuleId::GIT, path.clone())
        } else if asks_for_terminal(effect, &path) {
            self.classify_unnoted(path.clone(), stat.as_ref())
        } else {
            self.classify_for_write(path.clone(), stat.as_ref())
        };
        if let (Effect::Remove, Some(stat)) = (effect, &stat) {
            self.hold_made_pack(&path, stat);
        }
        let meaning = meaning(effect, stat.as_ref());
        if meaning.changes && self.is_git_state(&classification) {
            // A repository's first head is the one before any change of ours.
            self.repositories.note_change(&path);
        }
        let (mut protected, mut loss, mut sets_times) = (None, None, None);
        if let (Classification::Recorded(name), true) = (&classification, meaning.changes) {
            if meaning.changes_name {
                self.meet_directory_of(&path);
            }
            if let Some(stat) = &stat {
                self.protector().meet_again(*name, stat);
            }
            self.ask_git(*name, &path, stat.as_ref());
            self.note_index(*name, &path);
        }
        if let (Some(stat), true) = (&stat, classification != Classification::Own) {
            if let Classification::Recorded(name) = classification
                && (meaning.threat.is_some() || matches!(effect, Effect::RenameFrom { .. }))
            {
                self.protector().pin(name, &path, stat);
            }
            // Whichever name is used: the bytes belong to the inode.
            if let Some(threat) = meaning.threat
                && (effect != Effect::Rewrite || self.ledger.is_appended(stat))
            {
                match self.protector().try_protect(&path, stat, threat, on_loss) {
                    Ok(claim) => protected = claim,
                    Err(reason) => loss = Some(reason),
                }
            }
            if matches!(meaning.kind, Kind::Written | Kind::Attributes) {
                loss = loss.or(self.protector().try_threaten(stat, on_loss).err());
            }
            if meaning.kind == Kind::Attributes {
                sets_times = self.ledger.inodes.of(stat);
            }
            if meaning.changes {
                self.protector().take_attributes(&path, stat);
            }
        }
        if let Some(id) = sets_times {
            self.ledger.inodes.get_mut(id).times_in_flight += 1;
        }
        Part {
            effect,
            path,
            classification,
            stat,
            crossed,
            strict: false,
            is_copied_up: false,
            protected,
            loss,
            sets_times,
            moved: Vec::new(),
            found: Found::default(),
            began_us,
        }
    }

    /// A change that was refused tells whether something exists, no more.
    pub fn refused(&mut self, process: ProcessId, part: &Part) {
        match &part.classification {
            Classification::Recorded(record) => {
                if let Some(rule) = self.left_out_by(*record) {
                    self.policy.suppressed.read(rule);
                } else {
                    self.ledger.merge(*record, Operation::Existence.into(), process);
                    let needs_empty =
                        matches!(part.effect, Effect::RemoveDirectory | Effect::RenameTo { .. });
                    if needs_empty && self.ledger.for_recall {
                        // It may be what is in it that is in the way.
                        self.list_entries(*record);
                    }
                }
            }
            Classification::Suppressed(rule, _) => self.policy.suppressed.read(*rule),
            Classification::Own => {}
        }
    }

    pub fn apply_part(&mut self, caller: Caller, process: ProcessId, part: &mut Part, result: Option<i64>) {
        if part.is_irrelevant_rewrite(&self.ledger) {
            return;
        }
        let Meaning { operations, kind, copy_up, seen, .. } = part.meaning();
        self.forget_if_led_on(part);
        let name = match &part.classification {
            Classification::Recorded(name) => Some(*name),
            // What a process writes to its own directory of procfs is gone with it.
            Classification::Suppressed(rule, _) if self.is_procfs_of_the_tree(&part.path) => {
                return self.policy.suppressed.read(*rule);
            }
            Classification::Suppressed(rule, topmost)
                if kind != Kind::Used || writes_device(operations, part.stat.as_ref()) =>
            {
                let change = LeftOut { topmost, path: &part.path, operations, by: process };
                self.policy.suppressed.write(*rule, change);
                None
            }
            Classification::Suppressed(rule, _) => {
                self.policy.suppressed.used(*rule, &part.path, operations, process);
                return self.note_listing(operations, &part.path);
            }
            Classification::Own => return,
        };
        if let Some(name) = name {
            if let (Kind::Used, Some(rule)) = (kind, self.left_out_by(name)) {
                return self.policy.suppressed.used(rule, &part.path, operations, process);
            }
            if let (Some(effect), Some(stat)) = (copy_up, &part.stat) {
                self.protector().note_copy_up(&part.path, stat, effect);
            }
            if let Effect::Open(open) = part.effect {
                if (open.write || open.truncate || open.create)
                    && !open.without_descriptor
                    && !part.is_copied_up
                    && let Some(fd) = result.and_then(|fd| i32::try_from(fd).ok())
                {
                    self.check_opened(caller, process, part, open, fd);
                }
                if operations.contains(Operation::Read)
                    && kind == Kind::Used
                    && let Some(stat) = &part.stat
                {
                    self.protector().read_content(name, &part.path, stat);
                }
                if lists(part.effect, part.stat.as_ref()) {
                    self.list_entries(name);
                }
            }
        }
        if let Some(name) = name {
            self.ledger.see(name, seen);
        }
        if kind == Kind::Bound && part.stat.is_none() && makes_inode(part.effect) {
            self.forget_reused(part);
        }
        self.change(process, part, name, kind, operations);
    }

    /// Notes that what the tree has just made is no inode of before, whose number it may have.
    fn forget_reused(&mut self, part: &Part) {
        if let Some(id) = part.now().and_then(|now| self.ledger.inodes.of(now)) {
            self.ledger.inodes.forget(id);
        }
    }

    /// Applies what has happened to the name of a part, or to what it stands for by a name that is left out.
    pub fn change(
        &mut self,
        by: ProcessId,
        part: &mut Part,
        name: Option<NameId>,
        kind: Kind,
        operations: Operations,
    ) {
        if kind != Kind::Used {
            if let Some(protected) = part.protected.take() {
                self.protector().keep(protected);
            }
            self.repositories.note_change(&part.path);
        }
        // Who opens /dev/stdout writes to what the output was redirected to.
        let by_name = kind == Kind::Bound || !resolve::is_by_magic_link(&part.crossed);
        let (stat, began_us) = (part.stat.as_ref(), part.began_us);
        self.apply(Change { name, stat, kind, operations, by, by_name, began_us });
        if kind == Kind::Attributes
            && let Some(stat) = &part.stat
        {
            self.ledger.note_times(&part.path, stat);
        }
    }

    /// Forgets the names of mounts if one shows what had this name, or lies on it: the name has gone, or is another's now.
    pub fn forget_mounts_of(&mut self, path: &[u8]) {
        if self.mounts.depend_on(path) {
            self.mounts.names_changed();
            self.set_served();
            self.forget_names();
        }
    }

    /// A symlink that comes or goes may change where any path leads; a directory that goes, where those lead
    /// that went through it.
    pub fn forget_if_led_on(&mut self, part: &Part) {
        if matches!(part.effect, Effect::Remove | Effect::RemoveDirectory) {
            self.forget_mounts_of(&part.path);
        }
        match part.effect {
            Effect::MakeSymlink => self.forget_names(),
            Effect::Remove | Effect::HardLinkFrom => {
                if part.stat.as_ref().is_some_and(resolve::is_symlink) {
                    self.forget_names();
                }
            }
            Effect::RemoveDirectory => {
                self.resolver.forget_directory(&part.path);
                self.lookups.forget_turns();
            }
            // A rename forgets when it is applied.
            Effect::Open(_)
            | Effect::Query
            | Effect::Stat
            | Effect::Ask(_)
            | Effect::ChangeDirectory
            | Effect::ChangeRoot
            | Effect::Execute
            | Effect::Truncate
            | Effect::Rewrite
            | Effect::MakeDirectory
            | Effect::MakeNode
            | Effect::RenameFrom { .. }
            | Effect::RenameTo { .. }
            | Effect::HardLinkTo
            | Effect::Metadata
            | Effect::MountPoint => {}
        }
    }
}

/// Whether a call opens the controlling terminal only to ask whether there is one, as bash does at each start.
fn asks_for_terminal(effect: Effect, path: &[u8]) -> bool {
    matches!(effect, Effect::Open(open) if open.nonblocking && open.read && open.write) && path == b"/dev/tty"
}

/// Whether a call opens a directory to list it: no call after that says anything new.
pub fn lists(effect: Effect, stat: Option<&FileStat>) -> bool {
    matches!(effect, Effect::Open(open) if open.read && !open.path_only && !open.temporary)
        && stat.is_some_and(resolve::is_directory)
}

/// Whether a call opens a block device for writing: what is on it changes, though no file that has a name here.
fn writes_device(operations: Operations, stat: Option<&FileStat>) -> bool {
    operations.contains(Operation::Write)
        && stat.is_some_and(|stat| stat.st_mode & libc::S_IFMT == libc::S_IFBLK)
}

/// Whether a call with this effect makes a new inode where nothing was.
fn makes_inode(effect: Effect) -> bool {
    matches!(effect, Effect::Open(_) | Effect::MakeDirectory | Effect::MakeNode | Effect::MakeSymlink)
}
