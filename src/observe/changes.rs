//! Calls that can change something: prepared while they are held, judged by their result.
//!
//! What a call may destroy is safe before it goes on; nothing is recorded before it has
//! succeeded, or failed in a way that says something. Neighbours: `recorder.rs` calls in here,
//! `rename.rs` knows what a moved directory takes along.

use std::fs::File;

use nix::sys::stat::FileStat;
use smallvec::SmallVec;

use super::capture::Fate;
use super::content::Holding;
use super::ignore::RuleId;
use super::program;
use super::recorder::{Sight, State};
use super::rename::Moved;
use super::resolve::{self, Crossed, Resolved};
use super::table::{ProcessId, RecordId, Stat};
use crate::snapshot::{Exec, Operation, Operations, WarningKind, live};
use crate::trace::memory::{ARGV_LIMIT, Memory};
use crate::trace::sys::Tid;
use crate::trace::syscalls::{Access, Decoded, Dirfd, Effect, Open, Place, Resolve, Special};
use crate::trace::tracer::{Caller, HeldCall};

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
    /// Whether it may change what a path leads to, or where relative ones start.
    moves: bool,
}

impl Pending {
    /// Of an open that was judged already, in a process where another thread may rewrite its path.
    pub(super) fn of_look(name: &'static str) -> Pending {
        Pending { parts: SmallVec::new(), exec: None, special: None, name, opens: true, moves: false }
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
    pub held: Option<Holding>,
    /// What lies beneath a directory that moves.
    pub moved: Vec<Moved>,
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
    /// Makes everything safe that the held call may destroy.
    pub fn prepare(&mut self, caller: Caller, call: &HeldCall<'_>) -> Option<Pending> {
        if unmounts(call.decoded) {
            self.capture.let_go_of_files();
        }
        let process = self.processes.id(caller.tgid);
        let mut parts = SmallVec::new();
        let mut unnamed = None;
        for access in &call.decoded.accesses {
            match self.locate(caller, access) {
                Ok(resolved) => {
                    let part = self.prepare_part(access.effect, resolved);
                    parts.push(Part { strict: access.resolve.strict, ..part });
                }
                Err(unseen) => {
                    self.unseen(process, unseen);
                    unnamed = self.unnamed_program(caller, access);
                }
            }
        }
        self.prepare_moves(&mut parts);
        let exec = match parts.first() {
            Some(part) if part.effect == Effect::Execute => {
                Some((part.path.clone(), live::open_regular(&part.path).ok()))
            }
            _ => unnamed,
        };
        let exec = exec
            .map(|(exe, file)| Box::new(self.prepare_exec(caller, call.decoded, &call.memory, exe, file)));
        let special = call.decoded.special;
        // Even one whose place has no name of ours.
        let moves = special == Some(Special::Namespace)
            || call.decoded.accesses.iter().any(|access| moves(access.effect))
            || parts.iter().any(moves_link);
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
                        | Special::Listener
                )
            );
        if !wanted {
            return None;
        }
        if moves {
            self.names_move(true);
        }
        let reads =
            |access: &Access| matches!(access.effect, Effect::Open(open) if open.looks_only() && open.read);
        let opens =
            self.processes.standing(caller.tgid).shares_memory && call.decoded.accesses.iter().any(reads);
        Some(Pending { parts, exec, special, name: call.name, opens, moves })
    }

    pub fn prepare_part(&mut self, effect: Effect, resolved: Resolved) -> Part {
        let Resolved { path, stat, crossed, .. } = resolved;
        let sight = self.sight_of_change(path.clone(), stat.as_ref());
        let mut held = None;
        if let Sight::Suppressed(RuleId::GIT, _) = sight
            && may_change(effect)
        {
            // A repository's first head is the one before any change of ours.
            self.repositories.note_change(&path);
        }
        if let Sight::Record(record) = sight {
            let fate = match effect {
                Effect::Open(open) if open.write || open.truncate => Some(Fate::Overwritten),
                Effect::Truncate => Some(Fate::Overwritten),
                Effect::Remove | Effect::RenameFrom { .. } | Effect::RenameTo { .. } => Some(Fate::Survive),
                _ => None,
            };
            if let Some(fate) = fate {
                held = self.hold_content(record, stat.as_ref(), fate);
            }
            if may_change(effect) {
                self.take_xattrs(record, stat.as_ref());
            }
            if effect == Effect::LinkFrom {
                self.name_again(record, stat.as_ref());
            }
        }
        Part { effect, path, sight, stat, crossed, strict: false, held, moved: Vec::new() }
    }

    fn prepare_exec(
        &mut self,
        caller: Caller,
        decoded: &Decoded,
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
                next = live::open_regular(&resolved.path).ok();
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
        let Ok((path, stat)) = resolve::named_object(&link) else { return };
        let identity = |stat: &FileStat| (stat.st_dev, stat.st_ino);
        let expected = resolve::lstat(exec.runs()).ok().flatten();
        if expected.as_ref().map(identity) == Some(identity(&stat)) {
            return;
        }
        exec.interpreters.truncate(exec.of_scripts);
        let (its, _) = self.interpreters(caller, live::open_regular(&path).ok());
        exec.interpreters.push(Resolved {
            path,
            stat: Some(stat),
            crossed: Vec::new(),
            must_be_directory: false,
        });
        exec.interpreters.extend(its);
    }

    /// A program that is executed without having a name, by a descriptor or a magic link: the link's text,
    /// and the file where it may be read.
    fn unnamed_program(&mut self, caller: Caller, access: &Access) -> Option<(Vec<u8>, Option<File>)> {
        if access.effect != Effect::Execute {
            return None;
        }
        let link = match &access.place {
            Place::Descriptor(fd) => format!("/proc/{}/fd/{fd}", caller.tid).into_bytes(),
            Place::Path { .. } => {
                let link = self.locate(caller, &Access { follow: false, ..access.clone() }).ok()?;
                let magic = link.stat.as_ref().is_some_and(resolve::is_on_procfs);
                magic.then_some(link.path)?
            }
            Place::WorkingDirectory => return None,
        };
        let text = resolve::read_magic_link(&link).ok()?;
        Some((text, live::open_regular_behind(&link).ok()))
    }

    /// Resolves a path that the kernel opens by itself for `caller`.
    fn resolve_for_kernel(&mut self, caller: Caller, path: &[u8]) -> Option<Resolved> {
        let access = Access {
            place: Place::Path { dirfd: Dirfd::Cwd, path: path.to_vec() },
            effect: Effect::Execute,
            follow: true,
            resolve: Resolve::default(),
        };
        self.locate(caller, &access).ok()
    }

    /// Records what a call did, now that its result is known; none where its thread died in it.
    pub fn apply(&mut self, caller: Caller, pending: Pending, result: Option<i64>) {
        let process = self.processes.id(caller.tgid);
        let Pending { mut parts, exec, special, name, opens, moves } = pending;
        if moves {
            self.names_move(false);
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
                    self.mounts.look();
                    self.root_changed();
                    self.forget_names();
                }
            }
        }
        self.release_all(parts.into_iter().filter_map(|part| part.held));
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
            Some(Special::Listener) => match result {
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
                    self.table.get_mut(record).merge(Operation::Existence.into(), process);
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
                let observation = self.table.get(*record);
                if observation.foreign && observation.changes == 0 {
                    self.suppressed.read(RuleId::FOREIGN_OWNER);
                } else {
                    self.table.get_mut(*record).merge(Operation::Existence.into(), process);
                }
            }
            Sight::Suppressed(rule, _) => self.suppressed.read(*rule),
            Sight::Own => {}
        }
    }

    pub fn apply_part(&mut self, caller: Caller, process: ProcessId, part: &mut Part, result: Option<i64>) {
        let operations = operations_of(part);
        let changes = operations.intersects(Operations::CHANGES) && !writes_to_device(part);
        self.forget_if_led_on(part);
        let record = match &part.sight {
            Sight::Record(record) => *record,
            Sight::Suppressed(rule, topmost) => {
                if changes {
                    self.suppressed.write(*rule, topmost);
                    self.repositories.note_change(&part.path);
                } else {
                    self.suppressed.read(*rule);
                }
                return;
            }
            Sight::Own => return,
        };
        if !changes && self.table.get(record).foreign && self.table.get(record).changes == 0 {
            return self.suppressed.read(RuleId::FOREIGN_OWNER);
        }
        self.note_copy_up(record, part);
        if let Effect::Open(open) = part.effect {
            if (open.write || open.truncate || open.create)
                && let Some(fd) = result.and_then(|fd| i32::try_from(fd).ok())
            {
                self.check_opened(caller, process, record, part, open, fd);
            }
            if operations.contains(Operation::Read) && !changes {
                self.read_content(record, part.stat.as_ref());
            }
        }
        self.table.get_mut(record).merge(operations, process);
        if changes {
            self.changed(process, record, part, operations);
        }
    }

    /// Notes that a record's path, or what it stands for, has changed.
    fn changed(&mut self, process: ProcessId, record: RecordId, part: &mut Part, operations: Operations) {
        if let Some(held) = part.held.take() {
            self.keep_content(held);
        }
        let replaces = operations.contains(Operation::Write) || operations.contains(Operation::Delete);
        self.count_change(record);
        let observation = self.table.get_mut(record);
        observation.replaced |= replaces;
        observation.written |= operations.contains(Operation::Write);
        observation.append_only &= !operations.contains(Operation::Write);
        observation.deleted |= operations.contains(Operation::Delete);
        observation.touched |= operations.contains(Operation::Metadata);
        if operations.contains(Operation::Delete) {
            self.note_gone(record);
        }
        self.note_names(process, part, operations);
        self.repositories.note_change(&part.path);
    }

    /// Counts a change of a record, which makes what is known of looks at it doubtful.
    pub fn count_change(&mut self, record: RecordId) {
        let observation = self.table.get_mut(record);
        observation.changes = observation.changes.wrapping_add(1);
        if observation.foreign && observation.changes == 1 {
            // From now on it is recorded; looks at it were known as left out.
            self.lookups.forget();
        }
    }

    /// A change in place is one of all names; one of a name may leave the file without any.
    fn note_names(&mut self, process: ProcessId, part: &Part, operations: Operations) {
        match part.effect {
            Effect::Open(_) | Effect::Truncate | Effect::Metadata => {
                self.changed_in_place(process, part.stat.as_ref(), operations);
            }
            Effect::Remove => self.unnamed(part.stat.as_ref()),
            _ => {}
        }
    }

    /// A link that comes or goes may change where any path leads; a directory that goes, where those lead
    /// that went through it.
    fn forget_if_led_on(&mut self, part: &Part) {
        match part.effect {
            Effect::MakeSymlink => self.forget_names(),
            Effect::Remove | Effect::LinkFrom if moves_link(part) => self.forget_names(),
            Effect::RemoveDirectory => {
                self.resolver.forget_directory(&part.path);
                self.lookups.forget_turns();
            }
            _ => {}
        }
    }

    /// Notes that a call which may change what paths lead to begins, or is over: meanwhile the kernel may
    /// have done it already, and nothing that is known of names is used, nor anything learnt.
    fn names_move(&mut self, begins: bool) {
        if begins {
            self.working.move_begins();
        } else {
            self.working.move_ends();
        }
        self.resolver.pause(self.working.moves());
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
        let Some(Pending { parts, exec: Some(mut exec), .. }) = pending else { return };
        self.find_what_runs(caller, &mut exec);
        let operations = Operations::from(Operation::Read).with(Operation::Execute);
        for part in parts {
            self.cross(process, &part.crossed);
            if let Some(stat) = &part.stat {
                self.note_set_id(process, &part.path, stat);
            }
            self.executed_file(process, part.sight, part.stat.as_ref(), operations);
        }
        for interpreter in exec.interpreters {
            self.cross(process, &interpreter.crossed);
            let sight = self.sight(interpreter.path, interpreter.stat.as_ref());
            self.executed_file(process, sight, interpreter.stat.as_ref(), operations);
        }
        self.processes.execute(caller.tgid, exec.image);
    }

    fn executed_file(
        &mut self,
        process: ProcessId,
        sight: Sight,
        stat: Option<&FileStat>,
        operations: Operations,
    ) {
        match sight {
            Sight::Record(record)
                if self.table.get(record).foreign && self.table.get(record).changes == 0 =>
            {
                self.suppressed.read(RuleId::FOREIGN_OWNER);
            }
            Sight::Record(record) => {
                self.read_content(record, stat);
                self.table.get_mut(record).merge(operations, process);
            }
            Sight::Suppressed(rule, _) => self.suppressed.read(rule),
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

/// What goes into a pipe, a terminal or another device changes no file.
fn writes_to_device(part: &Part) -> bool {
    let device = |stat: &FileStat| !matches!(stat.st_mode & libc::S_IFMT, libc::S_IFREG | libc::S_IFDIR);
    matches!(part.effect, Effect::Open(_)) && part.stat.as_ref().is_some_and(device)
}

/// Whether a call may be refused where a file of a mount is open.
fn unmounts(decoded: &Decoded) -> bool {
    decoded.special == Some(Special::Namespace)
        && decoded.accesses.iter().any(|access| access.effect == Effect::MountPoint)
}

/// Whether a call with this effect may change what a path leads to, or where relative ones start.
fn moves(effect: Effect) -> bool {
    matches!(
        effect,
        Effect::ChangeDirectory
            | Effect::ChangeRoot
            | Effect::RemoveDirectory
            | Effect::MakeSymlink
            | Effect::RenameFrom { .. }
            | Effect::RenameTo { .. }
    )
}

/// Whether a call takes a symbolic link away, or gives it another name.
fn moves_link(part: &Part) -> bool {
    matches!(part.effect, Effect::Remove | Effect::LinkFrom)
        && part.stat.as_ref().is_some_and(resolve::is_link)
}

/// Whether a call with this effect can change what a record tells of a path that exists.
fn may_change(effect: Effect) -> bool {
    match effect {
        Effect::Open(open) => open.write || open.truncate,
        Effect::Query
        | Effect::List
        | Effect::ChangeDirectory
        | Effect::ChangeRoot
        | Effect::Execute
        | Effect::LinkFrom
        | Effect::MountPoint => false,
        _ => true,
    }
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
                let now = resolve::lstat(&part.path).ok().flatten();
                now.as_ref().map(Stat::from) != part.stat.as_ref().map(Stat::from)
            };
            if parts.iter().any(differs) { Judgement::Done } else { Judgement::Refused }
        }
    }
}

/// What a call that succeeded did to one of its places.
fn operations_of(part: &Part) -> Operations {
    let directory = Operations::from(Operation::Directory);
    match part.effect {
        Effect::Query | Effect::LinkFrom | Effect::MountPoint => Operation::Existence.into(),
        Effect::Open(open) => operations_of_open(open, part.stat.as_ref()),
        Effect::List | Effect::ChangeDirectory | Effect::ChangeRoot => directory,
        Effect::Execute => Operations::from(Operation::Read).with(Operation::Execute),
        Effect::Truncate
        | Effect::MakeNode
        | Effect::MakeSymlink
        | Effect::LinkTo
        | Effect::RenameTo { .. } => Operation::Write.into(),
        Effect::Remove | Effect::RenameFrom { .. } => Operation::Delete.into(),
        Effect::RemoveDirectory => directory.with(Operation::Delete),
        Effect::MakeDirectory => directory.with(Operation::Write),
        Effect::Metadata => Operation::Metadata.into(),
    }
}

fn operations_of_open(open: Open, stat: Option<&FileStat>) -> Operations {
    if open.path_only {
        return Operation::Existence.into();
    }
    if open.temporary || stat.is_some_and(resolve::is_directory) {
        return Operation::Directory.into();
    }
    let mut operations = Operations::NONE;
    if open.read {
        operations = operations.with(Operation::Read);
    }
    if open.write || open.truncate || stat.is_none() {
        operations = operations.with(Operation::Write);
    }
    if operations.is_empty() { Operation::Existence.into() } else { operations }
}
