//! Our own programs, executed by a process of the tree: an agent undoes through its recorded shell.
//!
//! What it changes is not recorded, since its own rescue covers it. What the tree changed before that keeps the
//! state that it had then. Neighbours: `finish.rs` takes those states, `changes.rs` has every other call.

use std::ops::Range;
use std::os::unix::ffi::OsStrExt as _;
use std::sync::LazyLock;

use rustix::fs::{AtFlags, CWD, StatxFlags, makedev, statx};
use rustix::io::Errno;

use super::changes::{Located, OwnCall, Pending};
use super::effects::meaning;
use super::inherited::{self, InheritedFile};
use crate::fs::{self, FileStat};
use crate::observe::ledger::apply::Kind;
use crate::observe::ledger::ids::NameId;
use crate::observe::mounts::ServedDevices;
use crate::observe::processes::OwnProgram;
use crate::observe::recording::Recording;
use crate::observe::resolve::{self, Resolved};
use crate::snapshot::{Stat, WarningKind};
use crate::trace::observer::{Caller, Decision, SyscallEntry};
use crate::trace::sys::{Tid, mapped_ranges};
use crate::trace::syscalls::{Access, Effect, Special};

/// The file names of our programs, which are installed into one directory.
pub const NAMES: [&str; 2] = ["agent-snapshot", "agent-snapshot-bash"];

/// What a program is recognised by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProgramIdentity {
    dev: u64,
    ino: u64,
    owner: u32,
}

/// Our own programs: the one that runs, and the other one if the same user has put it beside this one.
pub fn own_programs() -> Vec<ProgramIdentity> {
    let Some(this) = identity_of("/proc/self/exe") else { return Vec::new() };
    let exe = std::fs::read_link("/proc/self/exe").unwrap_or_default();
    let beside = NAMES.iter().filter_map(|name| identity_of(exe.with_file_name(name)));
    let other = beside.filter(|program| *program != this && program.owner == this.owner);
    std::iter::once(this).chain(other).collect()
}

/// Whether /proc/self/exe is our program, and not another one that has loaded it, such as a dynamic loader that was
/// called by name: that is the /proc/PID/exe of every program started like this.
static IS_OUR_EXE: LazyLock<bool> = LazyLock::new(|| {
    let here = own_programs as *const () as usize;
    let this_process = Tid(std::process::id().cast_signed());
    let (Ok(exe), Ok(ranges)) = (std::fs::read_link("/proc/self/exe"), mapped_ranges(this_process)) else {
        return false;
    };
    let is_here = |range: &Range<u64>| range.contains(&(here as u64));
    ranges.iter().any(|(range, rest)| is_here(range) && rest.ends_with(exe.as_os_str().as_bytes()))
});

/// The identity of the program at `path`; none where there is none.
pub fn identity_of(path: impl rustix::path::Arg) -> Option<ProgramIdentity> {
    let path = path.into_c_str().ok()?;
    // No filesystem is asked: the process that executes the program may be the one that serves it.
    let flags = AtFlags::STATX_DONT_SYNC;
    let program = match statx(CWD, &*path, flags, StatxFlags::INO | StatxFlags::UID) {
        Ok(program) => program,
        // Nothing is recorded then, and a shell of ours must find the real one all the same.
        Err(Errno::NOSYS) => {
            let stat = rustix::fs::stat(&*path).ok()?;
            return Some(ProgramIdentity { dev: stat.st_dev, ino: stat.st_ino, owner: stat.st_uid });
        }
        Err(_) => return None,
    };
    let dev = makedev(program.stx_dev_major, program.stx_dev_minor);
    Some(ProgramIdentity { dev, ino: program.stx_ino, owner: program.stx_uid })
}

/// Whether the environment of a process has variables for the dynamic loader (ld.so(8)), by which it may run code of
/// others.
fn has_loader_variables(caller: Caller) -> bool {
    let environment = std::fs::read(format!("/proc/{}/environ", caller.tid)).unwrap_or_default();
    environment.split(|byte| *byte == 0).any(|variable| variable.starts_with(b"LD_"))
}

/// What a recording has that a call of another recording's tree may change.
#[derive(Debug, Default)]
pub struct Yielded {
    /// Whether its tree has changed some of it, or has it open.
    pub has_changed: bool,
    /// The names that the call may change, or what they stand for.
    pub names: Vec<NameId>,
    /// Those of them that are known for a file which the call names otherwise, with its device and inode number: it may
    /// have been renamed since.
    known_for: Vec<(NameId, (u64, u64))>,
    /// The paths to which the call renames or links something.
    moved_to: Vec<Vec<u8>>,
    /// What loses its last name by the call: another file may get its inode number then.
    gone: Vec<FileStat>,
}

impl Yielded {
    /// Whether there is nothing that the call may change.
    pub fn is_empty(&self) -> bool {
        self.names.is_empty() && self.moved_to.is_empty() && self.gone.is_empty()
    }
}

/// The paths that a call names, and what is there.
#[derive(Debug)]
pub struct CallTargets {
    paths: Vec<Vec<u8>>,
    /// By device and inode number.
    files: Vec<(u64, u64)>,
}

impl CallTargets {
    /// Whether they have a file in common, or one has a path at or beneath one of the other.
    pub fn overlap(&self, other: &CallTargets) -> bool {
        let is_near =
            |one: &[u8], other: &[u8]| resolve::is_below(one, other) || resolve::is_below(other, one);
        self.paths.iter().any(|one| other.paths.iter().any(|other| is_near(one, other)))
            || self.files.iter().any(|file| other.files.contains(file))
    }
}

/// The file or directory that loses its last name at a place by a call. One that is renamed keeps its inode number.
fn loses_last_name(access: &Access, place: &Resolved) -> Option<FileStat> {
    let kind = meaning(access.effect, place.stat.as_ref()).kind;
    let renames =
        matches!(access.effect, Effect::RenameFrom { .. } | Effect::RenameTo { exchange: true, .. });
    let is_last = |stat: &FileStat| stat.st_nlink == 1 || resolve::is_directory(stat);
    place.stat.filter(|stat| matches!(kind, Kind::Removed | Kind::Bound) && !renames && is_last(stat))
}

/// Whether a call makes or removes a name, or has it stand for something else.
fn changes_name(access: &Access, place: &Resolved) -> bool {
    meaning(access.effect, place.stat.as_ref()).changes_name
}

impl Recording {
    /// Notes whether the program that a process has just executed is one of ours.
    pub fn note_own_program(&mut self, caller: Caller) {
        let program = identity_of(format!("/proc/{}/exe", caller.tid));
        let own = program.is_some_and(|program| self.own_programs.contains(&program))
            && *IS_OUR_EXE
            && (self.enforcer.is_none() || !has_loader_variables(caller));
        let own = if own { OwnProgram::Runs } else { OwnProgram::No };
        self.processes.set_traits(caller.tgid, |traits| traits.own_program = own);
    }

    /// Whether a call is one of our own program, which continues unrecorded.
    pub fn is_own_call(&self, caller: Caller, call: &SyscallEntry<'_>) -> bool {
        self.processes.traits(caller.tgid).own_program != OwnProgram::No
            && !call.decoded.accesses.iter().any(|access| access.effect == Effect::Execute)
    }

    /// Lets a call of our own program continue that may change something, once the states are taken of what it
    /// may change.
    pub fn prepare_own_call(&mut self, caller: Caller, call: &SyscallEntry<'_>) -> Decision<Pending> {
        let located = self.locate_all(caller, call);
        let footprint = self.announcement(caller, &located).footprint;
        if let Some(postponed) = self.postponed_behind_others(&footprint)
            && !call.overdue
        {
            return postponed;
        }
        if let Some(errno) = self.enforce(caller, call, &located) {
            return Decision::Refuse(errno);
        }
        let is_first = self.processes.traits(caller.tgid).own_program == OwnProgram::Runs;
        if is_first || self.have_changed(&located) {
            self.take_interim_states();
        }
        if is_first {
            self.processes.set_traits(caller.tgid, |traits| traits.own_program = OwnProgram::Changes);
            let process = self.processes.id(caller.tgid);
            self.warnings.note(WarningKind::ExternalChange, Some(process), || {
                format!("process {} is agent-snapshot: what it changes is not recorded", caller.tgid)
            });
        }
        let mut own = OwnCall::default();
        for (access, place) in &located {
            let Ok(place) = place else { continue };
            if let Some(stat) = &place.stat {
                self.byte_store.capture.wait_for((stat.st_dev, stat.st_ino));
            }
            own.gone.extend(loses_last_name(access, place));
            own.names.extend(changes_name(access, place).then(|| place.path.clone()));
        }
        let id = self.ledger.in_flight.begin(footprint, true);
        self.resolver.pause(true);
        // Which file a descriptor stands for does not matter.
        let names_a_file =
            |special: &Special| matches!(special, Special::UnnamedOpen { .. } | Special::Received { .. });
        let special = call.decoded.special.filter(|special| !names_a_file(special));
        Decision::AwaitResult(Pending::of_own_call(call.name, special, id, own))
    }

    /// The targets of a call; none if it may wait for something outside of the tree.
    pub fn targets(&mut self, caller: Caller, call: &SyscallEntry<'_>) -> Option<CallTargets> {
        let located = self.locate_all(caller, call);
        let announcement = self.announcement(caller, &located);
        let stats = located.iter().filter_map(|(_, place)| place.as_ref().ok()?.stat);
        let files = stats.map(|stat| (stat.st_dev, stat.st_ino)).collect();
        (!announcement.waits).then(|| CallTargets { paths: announcement.footprint.walked.into_vec(), files })
    }

    /// Takes the states of what this tree has changed, or has open, before a call of another one that is recorded changes
    /// that, too.
    pub fn yield_to(&mut self, caller: Caller, call: &SyscallEntry<'_>) -> Yielded {
        let located = self.locate_all(caller, call);
        let mut yielded = Yielded::default();
        let mut is_known = false;
        let moves_directory = located.iter().any(|(access, place)| {
            let stat = place.as_ref().ok().and_then(|place| place.stat.as_ref());
            matches!(access.effect, Effect::RenameFrom { .. }) && stat.is_some_and(resolve::is_directory)
        });
        for (access, place) in &located {
            let Ok(place) = place else { continue };
            let inode = place.stat.as_ref().and_then(|stat| self.ledger.inodes.of(stat));
            let mut names: Vec<NameId> = self.ledger.names.find(&place.path).into_iter().collect();
            let is_directory = place.stat.as_ref().is_some_and(resolve::is_directory);
            let becomes_one = moves_directory && matches!(access.effect, Effect::RenameTo { .. });
            if is_directory && changes_name(access, place) || becomes_one {
                names.extend(self.ledger.names.below(&place.path));
            }
            is_known |= inode.is_some() || !names.is_empty();
            yielded.has_changed |= self.may_have_changed(place, &names);
            if !access.is_read_only() {
                let known = inode.and_then(|inode| self.ledger.inodes.get(inode).name);
                if let (Some(known), Some(stat)) = (known.filter(|name| !names.contains(name)), &place.stat) {
                    yielded.known_for.push((known, Stat::from(stat).identity()));
                    yielded.names.push(known);
                }
                yielded.names.extend(names);
            }
            if matches!(access.effect, Effect::RenameTo { .. } | Effect::HardLinkTo) {
                yielded.moved_to.push(place.path.clone());
            }
            yielded.gone.extend(loses_last_name(access, place));
        }
        if !is_known {
            return Yielded::default();
        }
        if yielded.has_changed {
            self.take_interim_states();
        }
        yielded
    }

    /// Whether the tree may have changed a place, or these names there, since states were last taken.
    fn may_have_changed(&self, place: &Resolved, names: &[NameId]) -> bool {
        let Some(interim) = &self.interim else {
            return !names.is_empty()
                || place.stat.as_ref().is_some_and(|stat| self.ledger.inodes.of(stat).is_some());
        };
        let is_open = |path: &[u8], stat: Stat| interim.open.may_contain(path, stat.identity());
        self.has_changed(place, names)
            || place.stat.is_some_and(|stat| is_open(&place.path, Stat::from(&stat)))
            || names.iter().any(|name| {
                let before = self.ledger.before(*name);
                before.is_some_and(|before| is_open(self.ledger.names.path(*name), before.before))
            })
    }

    /// Whether calls of the tree have changed a place, or these names there, since states were last taken.
    fn has_changed(&self, place: &Resolved, names: &[NameId]) -> bool {
        let Some(changes) = &self.ledger.changes_since_interim else { return false };
        let inode = place.stat.as_ref().and_then(|stat| self.ledger.inodes.of(stat));
        inode.is_some_and(|inode| changes.inodes.contains(&inode))
            || names.iter().any(|name| changes.names.contains_key(name))
    }

    /// Whether one of these places has changed by a call of the tree since states were last taken.
    fn have_changed(&self, located: &[Located<'_>]) -> bool {
        located.iter().filter_map(|(_, place)| place.as_ref().ok()).any(|place| {
            let name = self.ledger.names.find(&place.path);
            self.has_changed(place, name.as_slice())
        })
    }

    /// Notes that the states which it took when it yielded are its last ones: it ends, and the files are another
    /// recording's.
    pub fn keep_yielded_states(&mut self, yielded: &Yielded) {
        let Some(interim) = &mut self.interim else { return };
        let identity = |name: NameId| {
            let (_, after) = interim.afters.iter().find(|(found, _)| *found == name)?;
            Some(after.stat(name, &self.ledger)?.identity())
        };
        let renamed = yielded.known_for.iter().filter(|(name, file)| identity(*name) != Some(*file));
        let renamed: Vec<NameId> = renamed.map(|(name, _)| *name).collect();
        interim.yielded.extend(yielded.names.iter().filter(|name| !renamed.contains(name)));
    }

    /// Notes that the call to which it yielded has succeeded; `served` is what the tree serves. What has another path now
    /// has its present state before at that. Returns the files at such paths that the tree has open for writing.
    pub fn has_yielded(&mut self, yielded: &Yielded, served: &ServedDevices) -> Vec<(Tid, InheritedFile)> {
        self.ledger.changed_by_others.extend(&yielded.names);
        // Until the call was made, processes of this tree may have written to what they have open.
        self.ledger.extend_to_now(&yielded.names);
        for id in yielded.gone.iter().filter_map(|stat| self.ledger.inodes.of(stat)).collect::<Vec<_>>() {
            self.ledger.inodes.forget(id);
        }
        self.resolver.forget_all();
        self.lookups.forget();
        let moved_to: Vec<_> = yielded
            .moved_to
            .iter()
            .filter_map(|path| Some((path, Stat::from(&fs::lstat(path).ok()??).identity())))
            .collect();
        if moved_to.is_empty() {
            return Vec::new();
        }
        let renamed = yielded.names.iter().filter_map(|name| self.ledger.names.get(*name).before);
        let linked = moved_to.iter().filter_map(|(_, identity)| self.ledger.inodes.find(*identity));
        for inode in renamed.chain(linked).collect::<Vec<_>>() {
            self.ledger.inodes.supersede(inode);
        }
        let moved = |file: InheritedFile| {
            let is_linked = |(_, identity): &&(_, _)| file.stat().identity() == *identity;
            match moved_to.iter().find(is_linked) {
                Some((path, _)) => Some(file.at(path.to_vec())),
                None => {
                    let is_below = moved_to.iter().any(|(path, _)| resolve::is_below(file.path(), path));
                    is_below.then_some(file)
                }
            }
        };
        let open = self.processes.living().flat_map(|process| {
            let files = inherited::files_of(process, false, served).into_iter();
            let files = files.filter(InheritedFile::is_written).filter_map(&moved);
            files.map(|file| (process, file.as_own())).collect::<Vec<_>>()
        });
        open.collect()
    }

    /// Forgets what a call of our own program may have changed of what is known.
    pub fn conclude_own_call(&mut self, own: &OwnCall, has_succeeded: bool) {
        self.resolver.forget_all();
        self.lookups.forget();
        if has_succeeded {
            for id in own.gone.iter().filter_map(|stat| self.ledger.inodes.of(stat)).collect::<Vec<_>>() {
                self.ledger.inodes.forget(id);
            }
            for path in &own.names {
                self.forget_freed(path);
                self.ledger.put_by_us.extend(self.ledger.names.find(path));
            }
        }
    }

    /// Forgets the inode that had the number which something new at `path` has now; what has just been linked or
    /// renamed there keeps its own.
    fn forget_freed(&mut self, path: &[u8]) {
        let Ok(Some(now)) = fs::lstat(path) else { return };
        if let Some(id) = self.ledger.inodes.of(&now)
            && !self.ledger.inodes.get(id).is_unmodified(&(&now).into())
        {
            self.ledger.inodes.forget(id);
        }
    }
}
