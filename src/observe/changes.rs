//! Calls that can change something: prepared at their entry, judged by their result.
//!
//! What a call may destroy is safe before it goes on; nothing is recorded before it has
//! succeeded, or failed in a way that says something. A call that conflicts with one in flight is postponed.
//! Neighbours: `recorder.rs` calls in here, `rename.rs` knows what a moved directory takes along, the ledger
//! takes what has changed.

use std::fs::File;

use smallvec::SmallVec;

use super::effects::{Meaning, meaning};
use super::ignore::RuleId;
use super::ledger::apply::{Change, Kind};
use super::ledger::in_flight::{CallId, Footprint};
use super::ledger::names::{NameId, ProcessId};
use super::ledger::protect::Protected;
use super::processes::Standing;
use super::program;
use super::recorder::{Filesystems, Sight, State};
use super::rename::Moved;
use super::resolve::{self, Crossed, Resolved, Unresolved};
use super::view::Unseen;
use crate::fs::{self, FileStat};
use crate::observe::ledger::inodes::{Content, InodeId, Stat};
use crate::snapshot::{Exec, Operation, Operations, WarningKind};
use crate::trace::memory::{ARGV_LIMIT, Memory};
use crate::trace::observer::{Caller, Decision, SyscallEntry};
use crate::trace::sys::Tid;
use crate::trace::syscalls::{Access, DecodedSyscall, Dirfd, Effect, FileRef, Resolve, Special};

/// How many interpreters the kernel follows (execve(2)), the last one's own loader included.
const MAX_INTERPRETERS: usize = 6;

/// What is kept of a call from its entry to its result.
#[derive(Debug)]
pub struct Pending {
    pub(super) parts: SmallVec<[Part; 2]>,
    exec: Option<Box<PendingExec>>,
    special: Option<Special>,
    /// The call's name, for messages.
    name: &'static str,
    /// An open for reading whose path another thread may have rewritten: the file may be another one.
    opens: bool,
    /// Its place among the calls in flight, where others may have to wait for it.
    call: CallId,
    /// Where it mounts or unmounts.
    mount_point: Option<Vec<u8>>,
}

impl Pending {
    /// Of an open that was judged already, in a process where another thread may rewrite its path.
    pub(super) fn of_look(name: &'static str, call: CallId) -> Pending {
        Pending {
            parts: SmallVec::new(),
            exec: None,
            special: None,
            name,
            opens: true,
            call,
            mount_point: None,
        }
    }
}

/// One place of a pending call.
#[derive(Debug)]
pub(super) struct Part {
    pub effect: Effect,
    pub path: Vec<u8>,
    pub sight: Sight,
    pub stat: Option<FileStat>,
    crossed: Vec<Crossed>,
    /// openat2 may stop at a link or a mount before it comes to the path.
    strict: bool,
    /// Bytes that the call may destroy.
    pub protected: Option<Protected>,
    /// The inode whose times the call may set.
    sets_times: Option<InodeId>,
    /// What lies beneath a directory that moves.
    pub moved: Vec<Moved>,
}

impl Part {
    /// What the call does here, if it succeeds.
    fn meaning(&self) -> Meaning {
        meaning(self.effect, self.stat.as_ref())
    }
}

impl Footprint {
    /// Adds the working directory that the threads of a process share, or several processes: one may change
    /// it while another's call starts from it.
    pub(super) fn add_working_directory(&mut self, caller: Caller, standing: Standing, access: &Access) {
        // No path of a file is relative. Few processes share theirs, so which ones is not told apart.
        let shared = || match standing {
            Standing { shares_working_directory: true, .. } => b"working directory of several".to_vec(),
            _ => format!("working directory of {}", caller.tgid).into_bytes(),
        };
        if !standing.shares_paths() {
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
    pub(super) fn add(&mut self, effect: Effect, resolved: &Resolved) {
        let meaning = meaning(effect, resolved.stat.as_ref());
        self.walked.push(resolved.path.clone());
        self.walked.extend(resolved.crossed.iter().map(|link| link.path.clone()));
        self.walked.extend(resolved.left.iter().cloned());
        if effect == Effect::List {
            self.listed.push(resolved.path.clone());
        }
        if meaning.changes_name {
            self.changed.push(resolved.path.clone());
        }
        if let Some(stat) = resolved.stat.as_ref().filter(|_| meaning.changes_links) {
            self.links.push((stat.st_dev, stat.st_ino));
        }
    }
}

#[derive(Debug)]
struct PendingExec {
    image: Exec,
    interpreters: Vec<Resolved>,
    /// How many of them scripts name; the one after those is an ELF file's loader.
    of_scripts: usize,
}

impl PendingExec {
    /// The program that runs in the end, where no other format of the kernel takes it.
    fn runs(&self) -> &[u8] {
        match self.interpreters[..self.of_scripts].last() {
            Some(interpreter) => &interpreter.path,
            None => &self.image.exe,
        }
    }
}

/// What the result of a call says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Judgement {
    /// It did what it does.
    Done,
    /// It failed, and told whether something exists.
    Refused,
    /// It told nothing: EFAULT, ENOTDIR, or it will be restarted.
    Nothing,
}

impl State {
    /// Makes everything safe that a call may destroy, unless it has to wait for another one.
    pub fn prepare(&mut self, caller: Caller, call: &SyscallEntry<'_>) -> Decision<Pending> {
        // Such a call matters to what was only appended to, and names nothing else.
        let rewrites = |access: &Access| access.effect == Effect::Rewrite;
        if !self.ledger.appends && call.decoded.accesses.iter().any(rewrites) {
            return Decision::Continue;
        }
        let located: SmallVec<[(&Access, Result<Resolved, Unseen>); 2]> =
            call.decoded.accesses.iter().map(|access| (access, self.locate(caller, access))).collect();
        let mut footprint = Footprint::default();
        let (mut waits, mut doubtful) = (false, false);
        let standing = self.processes.standing(caller.tgid);
        for (access, resolved) in &located {
            doubtful |= resolved.as_ref().is_err_and(|unseen| self.is_doubtful(unseen));
            if let Ok(resolved) = resolved {
                waits |= matches!(access.effect, Effect::Open(_))
                    && self.may_wait(access.effect, &resolved.path, resolved.stat.as_ref());
                footprint.add(access.effect, resolved);
                footprint.add_working_directory(caller, standing, access);
            }
        }
        let process = self.processes.id(caller.tgid);
        if doubtful || self.ledger.in_flight.conflicts(&footprint) {
            if !call.overdue {
                return Decision::Postpone;
            }
            self.tell_overtaken(process, &footprint);
        }
        if unmounts(call.decoded) {
            self.capture.let_go_of_files();
        }
        let mut parts = SmallVec::new();
        let mut unnamed = None;
        let mut mount_point = None;
        for (access, resolved) in located {
            match resolved {
                Ok(resolved) => {
                    if access.effect == Effect::MountPoint {
                        mount_point = Some(resolved.path.clone());
                    }
                    let part = self.prepare_part(access.effect, resolved);
                    parts.push(Part { strict: access.resolve.strict, ..part });
                }
                Err(unseen) => {
                    self.threaten_nameless(caller, process, access, &unseen);
                    let name = match &unseen {
                        Unseen::Elsewhere(path) | Unseen::Unresolved(Unresolved::Served(path)) => {
                            Some(path.clone())
                        }
                        Unseen::Unresolved(_) => None,
                    };
                    unnamed = match &unseen {
                        Unseen::Unresolved(Unresolved::Served(path)) => {
                            (access.effect == Effect::Execute).then(|| (path.clone(), None))
                        }
                        _ => self.unnamed_program(caller, access),
                    };
                    if access.effect == Effect::MountPoint {
                        mount_point = name;
                    }
                    self.unseen(process, unseen);
                }
            }
        }
        self.prepare_moves(&mut parts);
        let exec = match parts.first() {
            Some(part) if part.effect == Effect::Execute => {
                Some((part.path.clone(), fs::open_regular(&part.path).ok()))
            }
            _ => unnamed,
        };
        let exec = exec
            .map(|(exe, file)| Box::new(self.prepare_exec(caller, call.decoded, &call.memory, exe, file)));
        let special = call.decoded.special;
        // Even one whose place has no name of ours.
        let moves = special == Some(Special::Namespace)
            || call.decoded.accesses.iter().any(|access| meaning(access.effect, None).moves)
            || parts.iter().any(|part| part.meaning().moves);
        let wanted = moves
            || !parts.is_empty()
            || exec.is_some()
            || matches!(
                special,
                Some(
                    Special::UnnamedOpen { .. }
                        | Special::Received { .. }
                        | Special::Credentials
                        | Special::Unmodelled
                        | Special::Compat
                        | Special::Filter { listener: true, .. }
                )
            );
        if !wanted {
            return Decision::Continue;
        }
        // Of the places that such a call names the last is where it mounts.
        let mount_point = mount_point.filter(|_| special == Some(Special::Namespace));
        if let Some(point) = &mount_point {
            self.mounts.begins(point, !self.processes.standing(caller.tgid).elsewhere);
            self.resolver.set_served(self.mounts.served());
        }
        let reads =
            |access: &Access| matches!(access.effect, Effect::Open(open) if open.is_read_only() && open.read);
        let opens = standing.shares_paths() && call.decoded.accesses.iter().any(reads);
        // Nobody waits for a call that may wait for something outside.
        let footprint = if waits { Footprint::default() } else { footprint };
        let id = self.ledger.in_flight.begin(footprint, moves);
        self.resolver.pause(self.ledger.in_flight.moves());
        Decision::AwaitResult(Pending { parts, exec, special, name: call.name, opens, call: id, mount_point })
    }

    /// Makes the bytes of a file safe that a call may change in place and that has no recorded name: it was
    /// removed, or has been replaced, while a descriptor stood for it.
    fn threaten_nameless(&mut self, caller: Caller, process: ProcessId, access: &Access, unseen: &Unseen) {
        if !matches!(unseen, Unseen::Unresolved(Unresolved::Nameless)) || access.effect == Effect::Rewrite {
            return;
        }
        let link = match &access.file {
            FileRef::Descriptor(fd) => format!("/proc/{}/fd/{fd}", caller.tid).into_bytes(),
            FileRef::Path { .. } => match self.locate(caller, &Access { follow: false, ..access.clone() }) {
                Ok(link) if link.stat.as_ref().is_some_and(resolve::is_on_procfs) => link.path,
                _ => return,
            },
            FileRef::WorkingDirectory => return,
        };
        let Ok(stat) = rustix::fs::stat(link.as_slice()) else { return };
        let meaning = meaning(access.effect, Some(&stat));
        if !matches!(meaning.kind, Kind::Written | Kind::Attributes) || !resolve::is_regular(&stat) {
            return;
        }
        self.threaten(&stat);
        // What the tree has made is nobody's before-state.
        let Some(id) = self.ledger.inodes.of(&stat) else { return };
        let inode = self.ledger.inodes.get(id);
        let kept = inode.written || matches!(inode.content, Content::Kept(_) | Content::Read(_));
        let Meaning { kind, operations, .. } = meaning;
        self.apply(Change { name: None, stat: Some(&stat), kind, operations, by: process });
        if !kept && kind == Kind::Written {
            self.warnings.lost(WarningKind::LateBeforeState, Some(process), || {
                "a file was changed through a descriptor after its name had gone".to_owned()
            });
        }
    }

    /// Whether a path may have led nowhere only because a call in flight was changing names on its way.
    pub(super) fn is_doubtful(&self, unseen: &Unseen) -> bool {
        let changing = self.ledger.in_flight.changes() || self.ledger.in_flight.moves();
        changing
            && matches!(unseen, Unseen::Unresolved(unresolved) if !matches!(unresolved, Unresolved::Served(_)))
    }

    /// Tells that a call went on though another one, which takes too long, may change what it names.
    fn tell_overtaken(&mut self, process: ProcessId, footprint: &Footprint) {
        self.warnings.lost(WarningKind::PathChangedAfterCheck, Some(process), || {
            let path = footprint.walked.first().map_or(&b""[..], Vec::as_slice);
            let path = String::from_utf8_lossy(path);
            format!("{path} was used while a call that did not end was changing names on the way to it")
        });
    }

    pub fn prepare_part(&mut self, effect: Effect, resolved: Resolved) -> Part {
        let Resolved { path, stat, crossed, .. } = resolved;
        let sight = self.sight_of_change(path.clone(), stat.as_ref());
        let meaning = meaning(effect, stat.as_ref());
        if let Sight::Suppressed(RuleId::GIT, _) = sight
            && meaning.changes
        {
            // A repository's first head is the one before any change of ours.
            self.repositories.note_change(&path);
        }
        let (mut protected, mut sets_times) = (None, None);
        if let (Some(stat), Sight::Record(name), true) = (&stat, &sight, meaning.changes) {
            self.meet_again(*name, stat);
        }
        if let (Some(stat), true) = (&stat, sight != Sight::Own) {
            if let Sight::Record(name) = sight
                && (meaning.threat.is_some() || matches!(effect, Effect::RenameFrom { .. }))
            {
                self.pin(name, &path, stat);
            }
            // By whichever name: the bytes are those of all.
            let appended =
                || self.ledger.inodes.of(stat).is_some_and(|id| self.ledger.inodes.get(id).appended);
            if let Some(threat) = meaning.threat
                && (effect != Effect::Rewrite || appended())
            {
                protected = self.protect(&path, stat, threat);
            }
            if matches!(meaning.kind, Kind::Written | Kind::Attributes) {
                self.threaten(stat);
            }
            if meaning.kind == Kind::Attributes {
                sets_times = self.ledger.inodes.of(stat);
            }
            if meaning.changes {
                self.take_attributes(&path, stat);
            }
        }
        if let Some(id) = sets_times {
            self.ledger.inodes.get_mut(id).times_in_flight += 1;
        }
        Part { effect, path, sight, stat, crossed, strict: false, protected, sets_times, moved: Vec::new() }
    }

    fn prepare_exec(
        &mut self,
        caller: Caller,
        decoded: &DecodedSyscall,
        memory: &dyn Memory,
        exe: Vec<u8>,
        file: Option<File>,
    ) -> PendingExec {
        let (argv, argv_truncated) =
            decoded.argv.and_then(|address| memory.read_argv(address, ARGV_LIMIT).ok()).unwrap_or_default();
        let image = Exec { exe, argv, argv_truncated };
        let (interpreters, of_scripts) = self.interpreters(caller, file);
        PendingExec { image, interpreters, of_scripts }
    }

    /// The interpreters that the kernel opens for a program, and how many of them scripts name.
    fn interpreters(&mut self, caller: Caller, program: Option<File>) -> (Vec<Resolved>, usize) {
        let (mut interpreters, mut of_scripts) = (Vec::new(), 0);
        let mut next = program;
        while let Some(file) = next.take()
            && interpreters.len() < MAX_INTERPRETERS
            && let Some(path) = program::interpreter(&file)
        {
            let Some(resolved) = self.resolve_for_kernel(caller, &path) else { break };
            // An ELF file's loader is the last; a script's interpreter may have one itself.
            if program::is_script(&file) {
                next = fs::open_regular(&resolved.path).ok();
                of_scripts += 1;
            }
            interpreters.push(resolved);
        }
        (interpreters, of_scripts)
    }

    /// Mends the interpreters of a program that was executed: binfmt_misc has others than the files name.
    fn find_what_runs(&mut self, caller: Caller, exec: &mut PendingExec) {
        let link = format!("/proc/{}/exe", caller.tid).into_bytes();
        if resolve::read_magic_link(&link).is_ok_and(|runs| runs == exec.runs()) {
            return;
        }
        // Of another mount namespace it may be the same file by another name, or one that has none here.
        let Ok((path, stat)) = self.resolver.named_object(&link) else { return };
        let identity = |stat: &FileStat| (stat.st_dev, stat.st_ino);
        let expected = fs::lstat(exec.runs()).ok().flatten();
        if expected.as_ref().map(identity) == Some(identity(&stat)) {
            return;
        }
        exec.interpreters.truncate(exec.of_scripts);
        let (its, _) = self.interpreters(caller, fs::open_regular(&path).ok());
        exec.interpreters.push(Resolved::object(path, stat));
        exec.interpreters.extend(its);
    }

    /// A program that is executed without having a name, by a descriptor or a magic link: the link's text,
    /// and the file where it may be read.
    fn unnamed_program(&mut self, caller: Caller, access: &Access) -> Option<(Vec<u8>, Option<File>)> {
        if access.effect != Effect::Execute {
            return None;
        }
        let link = match &access.file {
            FileRef::Descriptor(fd) => format!("/proc/{}/fd/{fd}", caller.tid).into_bytes(),
            FileRef::Path { .. } => {
                let link = self.locate(caller, &Access { follow: false, ..access.clone() }).ok()?;
                let magic = link.stat.as_ref().is_some_and(resolve::is_on_procfs);
                magic.then_some(link.path)?
            }
            FileRef::WorkingDirectory => return None,
        };
        let text = resolve::read_magic_link(&link).ok()?;
        Some((text, fs::open_regular_behind(&link).ok()))
    }

    /// Resolves a path that the kernel opens by itself for `caller`.
    fn resolve_for_kernel(&mut self, caller: Caller, path: &[u8]) -> Option<Resolved> {
        let access = Access {
            file: FileRef::Path { dirfd: Dirfd::Cwd, path: path.to_vec() },
            effect: Effect::Execute,
            follow: true,
            resolve: Resolve::default(),
        };
        self.locate(caller, &access).ok()
    }

    /// Records what a call did, now that its result is known; none where its thread died in it.
    pub fn conclude(&mut self, caller: Caller, pending: Pending, result: Option<i64>) {
        let process = self.processes.id(caller.tgid);
        let Pending { mut parts, exec, special, name, opens, call, mount_point } = pending;
        if special == Some(Special::Namespace) {
            self.mounts_settled(caller, mount_point.as_deref());
        }
        self.not_decoded(caller, process, special, name, result);
        if matches!(special, Some(Special::Credentials | Special::Namespace)) && result.is_some() {
            self.compare_credentials(caller);
        }
        match judge(&parts, result) {
            Judgement::Nothing => {}
            Judgement::Refused => {
                for part in &parts {
                    self.cross(process, &part.crossed);
                    if !stopped_on_the_way(part, result) {
                        self.refused(process, part);
                    }
                }
                // The program is there: an interpreter is not.
                if let (Some(exec), Some(ENOENT)) = (exec, result) {
                    self.missed_interpreters(process, exec.interpreters);
                }
            }
            Judgement::Done => {
                for part in &parts {
                    self.cross(process, &part.crossed);
                }
                self.descriptor_came(caller, process, special, result);
                match parts.as_mut_slice() {
                    [from, to] if matches!(from.effect, Effect::RenameFrom { .. }) => {
                        self.renamed(process, from, to);
                    }
                    parts => {
                        for part in parts {
                            self.apply_part(caller, process, part, result);
                        }
                    }
                }
                if opens && let Some(fd) = result.and_then(|fd| i32::try_from(fd).ok()) {
                    self.check_looked(caller, process, fd);
                }
                if special == Some(Special::Namespace) {
                    self.root_changed();
                    self.forget_names();
                }
            }
        }
        self.end_call(parts, call);
    }

    /// Notes that a call is over: others need not wait for it, and what it did not destroy need not be kept.
    fn end_call(&mut self, parts: SmallVec<[Part; 2]>, call: CallId) {
        for id in parts.iter().filter_map(|part| part.sets_times) {
            self.ledger.inodes.get_mut(id).times_in_flight -= 1;
        }
        self.release(parts.into_iter().filter_map(|part| part.protected));
        self.ledger.in_flight.end(call);
        self.resolver.pause(self.ledger.in_flight.moves());
    }

    /// A call that is not decoded may have done anything, unless the kernel does not have it
    /// (ENOSYS; for an ioctl ENOTTY): programs try those.
    fn not_decoded(
        &mut self,
        caller: Caller,
        process: ProcessId,
        special: Option<Special>,
        name: &str,
        result: Option<i64>,
    ) {
        const ENOSYS: i64 = -(libc::ENOSYS as i64);
        const ENOTTY: i64 = -(libc::ENOTTY as i64);
        const EBUSY: i64 = -(libc::EBUSY as i64);
        let refused = special == Some(Special::Unmodelled) && matches!(result, Some(..0));
        if refused || matches!(result, Some(ENOSYS | ENOTTY)) {
            return;
        }
        let who = caller.tgid;
        match special {
            Some(Special::Unmodelled) => {
                self.warnings.lost(WarningKind::UnmodelledSyscall, Some(process), || {
                    format!("process {who} made {name}, which is not modelled")
                });
            }
            Some(Special::Compat) => self.warnings.lost(WarningKind::CompatSyscall, Some(process), || {
                format!("process {who} made 32-bit or x32 calls, which are not decoded")
            }),
            Some(Special::Filter { listener: true, .. }) => match result {
                // A chain of filters has one supervisor, and looks have one of ours.
                Some(EBUSY) => self.warnings.note(WarningKind::Listener, Some(process), || {
                    format!(
                        "process {who} asked for a supervisor and was refused (--mechanism stops lets it)"
                    )
                }),
                Some(..0) => {}
                _ => self.warnings.lost(WarningKind::Listener, Some(process), || {
                    format!("process {who} installed a filter with a supervisor, which may act for it")
                }),
            },
            _ => {}
        }
    }

    /// Learns what a call has mounted or unmounted.
    fn mounts_settled(&mut self, caller: Caller, point: Option<&[u8]>) {
        let changed = self.mounts.look(caller.tid);
        self.mounts.note(&changed, self.ledger.names.next());
        if let Some(point) = point {
            self.mounts.ended(point);
        }
        self.resolver.set_served(self.mounts.served());
        // What others mount meanwhile is their own.
        for point in changed.overlays.iter().filter(|mounted| point == Some(mounted.as_slice())) {
            self.warnings.lost(WarningKind::MountNamespace, None, || {
                format!(
                    "the command mounted an overlay at {}: what it writes there is not recorded by the names \
                     that it has in the upper directory",
                    String::from_utf8_lossy(point)
                )
            });
        }
        for point in changed.came.iter().chain(&changed.went) {
            self.resolver.mounts_changed(point);
            // A device number is used again by the next file system that has none of its own.
            self.filesystems = Filesystems::default();
        }
    }

    /// A call may have changed the root of other processes, too: of those that share it (CLONE_FS).
    fn root_changed(&mut self) {
        let living: Vec<Tid> = self.processes.living().collect();
        for process in living {
            let root = rustix::fs::readlink(format!("/proc/{process}/root"), Vec::new());
            if root.is_ok_and(|root| root.as_bytes() != b"/")
                && let Some(standing) = self.processes.standing_mut(process)
            {
                standing.elsewhere = true;
            }
        }
    }

    /// An execve that failed looked for these.
    fn missed_interpreters(&mut self, process: ProcessId, interpreters: Vec<Resolved>) {
        for interpreter in interpreters {
            self.cross(process, &interpreter.crossed);
            match self.sight(interpreter.path, interpreter.stat.as_ref()) {
                Sight::Record(record) => {
                    self.ledger.names.get_mut(record).merge(Operation::Existence.into(), process);
                }
                Sight::Suppressed(rule, _) => self.suppressed.read(rule),
                Sight::Own => {}
            }
        }
    }

    /// A change that was refused tells whether something exists, no more.
    fn refused(&mut self, process: ProcessId, part: &Part) {
        match &part.sight {
            Sight::Record(record) => {
                if self.is_left_out(*record) {
                    self.suppressed.read(RuleId::FOREIGN_OWNER);
                } else {
                    self.ledger.names.get_mut(*record).merge(Operation::Existence.into(), process);
                }
            }
            Sight::Suppressed(rule, _) => self.suppressed.read(*rule),
            Sight::Own => {}
        }
    }

    pub fn apply_part(&mut self, caller: Caller, process: ProcessId, part: &mut Part, result: Option<i64>) {
        let appended = |stat| {
            let inode = self.ledger.inodes.of(stat).map(|id| self.ledger.inodes.get(id));
            inode.is_some_and(|inode| inode.appended)
        };
        if part.effect == Effect::Rewrite && !part.stat.as_ref().is_some_and(appended) {
            return;
        }
        let Meaning { operations, kind, copy_up, .. } = part.meaning();
        self.forget_if_led_on(part);
        let name = match &part.sight {
            Sight::Record(name) => Some(*name),
            Sight::Suppressed(rule, topmost) if kind != Kind::Used => {
                self.suppressed.write(*rule, topmost);
                None
            }
            Sight::Suppressed(rule, _) => return self.suppressed.read(*rule),
            Sight::Own => return,
        };
        if let Some(name) = name {
            if kind == Kind::Used && self.is_left_out(name) {
                return self.suppressed.read(RuleId::FOREIGN_OWNER);
            }
            if let (Some(effect), Some(stat)) = (copy_up, &part.stat) {
                self.note_copy_up(&part.path, stat, effect);
            }
            if let Effect::Open(open) = part.effect {
                if (open.write || open.truncate || open.create)
                    && let Some(fd) = result.and_then(|fd| i32::try_from(fd).ok())
                {
                    self.check_opened(caller, process, part, open, fd);
                }
                if operations.contains(Operation::Read)
                    && kind == Kind::Used
                    && let Some(stat) = &part.stat
                {
                    self.read_content(name, &part.path, stat);
                }
            }
        }
        if kind == Kind::Bound && part.stat.is_none() && makes_inode(part.effect) {
            self.forget_reused(&part.path);
        }
        self.change(process, part, name, kind, operations);
    }

    /// Notes that what the tree has just made at `path` is no inode of before, whose number it may have.
    fn forget_reused(&mut self, path: &[u8]) {
        if let Ok(Some(now)) = fs::lstat(path)
            && let Some(id) = self.ledger.inodes.of(&now)
        {
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
                self.keep(protected);
            }
            self.repositories.note_change(&part.path);
        }
        self.apply(Change { name, stat: part.stat.as_ref(), kind, operations, by });
        if kind == Kind::Attributes
            && let Some(stat) = &part.stat
        {
            self.note_times(&part.path, stat);
        }
    }

    /// Whether a name is another user's that nobody has changed yet.
    pub fn is_left_out(&self, name: NameId) -> bool {
        let name = self.ledger.names.get(name);
        name.foreign && name.changes == 0
    }

    /// A link that comes or goes may change where any path leads; a directory that goes, where those lead
    /// that went through it.
    fn forget_if_led_on(&mut self, part: &Part) {
        match part.effect {
            Effect::MakeSymlink => self.forget_names(),
            Effect::Remove | Effect::HardLinkFrom => {
                if part.stat.as_ref().is_some_and(resolve::is_link) {
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
            | Effect::List
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

    /// Forgets what is known of names: a link, a directory or a mount has moved.
    pub fn forget_names(&mut self) {
        self.resolver.forget();
        self.lookups.forget();
    }

    /// A process has executed a program: the call that did it has succeeded.
    pub fn executed(&mut self, caller: Caller, pending: Option<Pending>) {
        let process = self.processes.id(caller.tgid);
        self.compare_credentials(caller);
        let Some(Pending { parts, exec, call, .. }) = pending else { return };
        if let Some(mut exec) = exec {
            self.find_what_runs(caller, &mut exec);
            for part in &parts {
                self.cross(process, &part.crossed);
                if let Some(stat) = &part.stat {
                    self.note_set_id(process, &part.path, stat);
                }
                self.executed_file(process, &part.sight, &part.path, part.stat.as_ref());
            }
            for interpreter in exec.interpreters {
                self.cross(process, &interpreter.crossed);
                let sight = self.sight(interpreter.path.clone(), interpreter.stat.as_ref());
                self.executed_file(process, &sight, &interpreter.path, interpreter.stat.as_ref());
            }
            self.processes.execute(caller.tgid, exec.image);
        }
        self.end_call(parts, call);
    }

    fn executed_file(&mut self, process: ProcessId, sight: &Sight, path: &[u8], stat: Option<&FileStat>) {
        let operations = Operations::from(Operation::Read).with(Operation::Execute);
        match sight {
            Sight::Record(name) if self.is_left_out(*name) => self.suppressed.read(RuleId::FOREIGN_OWNER),
            Sight::Record(name) => {
                if let Some(stat) = stat {
                    self.read_content(*name, path, stat);
                }
                self.ledger.names.get_mut(*name).merge(operations, process);
            }
            Sight::Suppressed(rule, _) => self.suppressed.read(*rule),
            Sight::Own => {}
        }
    }

    /// Under no_new_privs, which our filter needs without privilege, a set-ID bit has no effect.
    fn note_set_id(&mut self, process: ProcessId, path: &[u8], stat: &FileStat) {
        let set_user = stat.st_mode & libc::S_ISUID != 0 && stat.st_uid != self.uid;
        if self.uid != 0 && (set_user || stat.st_mode & libc::S_ISGID != 0) {
            self.warnings.note(WarningKind::Setuid, Some(process), || {
                format!("{} ran without the privilege of its set-ID bit", String::from_utf8_lossy(path))
            });
        }
    }
}

/// Whether a call with this effect makes a new inode where nothing was.
fn makes_inode(effect: Effect) -> bool {
    matches!(effect, Effect::Open(_) | Effect::MakeDirectory | Effect::MakeNode | Effect::MakeSymlink)
}

/// Whether a call may be refused where a file of a mount is open.
fn unmounts(decoded: &DecodedSyscall) -> bool {
    decoded.special == Some(Special::Namespace)
        && decoded.accesses.iter().any(|access| access.effect == Effect::MountPoint)
}

const ENOENT: i64 = -(libc::ENOENT as i64);

/// Whether openat2 says that it left the path before its end: at a mount or out of its directory
/// (EXDEV), at a link (ELOOP), where nothing was cached (EAGAIN).
fn stopped_on_the_way(part: &Part, result: Option<i64>) -> bool {
    const EXDEV: i64 = -(libc::EXDEV as i64);
    const ELOOP: i64 = -(libc::ELOOP as i64);
    const EAGAIN: i64 = -(libc::EAGAIN as i64);
    match result {
        Some(EXDEV | EAGAIN) => part.strict,
        // At its last component where that is a link that is not to be followed.
        Some(ELOOP) => part.strict && !part.stat.as_ref().is_some_and(resolve::is_link),
        _ => false,
    }
}

fn judge(parts: &[Part], result: Option<i64>) -> Judgement {
    const EFAULT: i64 = -(libc::EFAULT as i64);
    const ENOTDIR: i64 = -(libc::ENOTDIR as i64);
    match result {
        // ERESTARTSYS and its kin: the kernel makes the call again.
        Some(EFAULT | ENOTDIR | -516..=-512) => Judgement::Nothing,
        Some(-4095..=-1) => Judgement::Refused,
        Some(_) => Judgement::Done,
        // Its thread died in it: the file system says whether it was in time.
        None => {
            let differs = |part: &Part| {
                let now = fs::lstat(&part.path).ok().flatten();
                now.as_ref().map(Stat::from) != part.stat.as_ref().map(Stat::from)
            };
            if parts.iter().any(differs) { Judgement::Done } else { Judgement::Refused }
        }
    }
}
