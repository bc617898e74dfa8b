//! The processes of the recorded tree, and what is remembered of each while it lives.
//!
//! Neighbours: `recorder.rs` reports starts and ends, `calls/changes.rs` the programs that are executed.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use super::ledger::ids::ProcessId;
use super::ledger::names::{User, Uses};
use crate::snapshot::{Exec, Operations, PathUse, RecordedProcess};
use crate::trace::sys::Tid;
use crate::trace::wait_status::End;

/// A process, living or ended.
#[derive(Debug)]
struct Process {
    pid: Tid,
    parent: Option<ProcessId>,
    /// The program that it executes, which its children share until they execute their own.
    image: Arc<Exec>,
    /// The one that it had from its parent.
    inherited: Arc<Exec>,
    /// Its own programs before `image`, in order.
    former: Vec<Arc<Exec>>,
    /// Whether `image` is its own, not what its parent executed.
    executed: bool,
    cwd: Vec<u8>,
    exit_status: Option<i32>,
    started: Instant,
    ended: Option<Instant>,
}

impl Process {
    /// What the manifest says of it; `origin` is when the command started.
    fn recorded(&self, id: u32, origin: Instant) -> RecordedProcess {
        let micros = |time: Instant| u64::try_from(time.duration_since(origin).as_micros()).ok();
        let last = (!self.former.is_empty()).then_some(&self.image);
        RecordedProcess {
            id,
            pid: self.pid.0.unsigned_abs(),
            parent: self.parent.map(|parent| parent.0),
            image: Arc::clone(&self.image),
            cwd: self.cwd.clone(),
            exit_status: self.exit_status,
            execs: self.former.iter().chain(last).map(|exec| Exec::clone(exec)).collect(),
            started_us: micros(self.started),
            ended_us: self.ended.and_then(micros),
        }
    }
}

/// Whether a process executes our own program.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum OwnProgram {
    /// It executes another one.
    #[default]
    No,
    /// It does, and has changed nothing yet.
    Runs,
    /// It does, and has changed something.
    Changes,
}

/// What a process may do with files.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Rights {
    /// What we may.
    #[default]
    Ours,
    /// That, and perhaps more: our users and groups, with capabilities that count in a user namespace of its own.
    MoreThanOurs,
    /// Something else, now or once: other credentials, or a Landlock domain.
    Others,
}

/// What a living process means for name resolution, rights and the manifest.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ProcessTraits {
    /// Its root or mount namespace may not be ours.
    pub in_foreign_mount_namespace: bool,
    /// Its rights on files.
    pub rights: Rights,
    /// Another thread may rewrite the path of a call between our reading of it and the kernel's.
    pub shares_memory: bool,
    /// Another process may change its working directory.
    pub shares_working_directory: bool,
    /// Whether it executes our own program, whose changes are not the tree's.
    pub own_program: OwnProgram,
    /// Whether it may have an io_uring, through which it changes files without a call.
    pub has_io_uring: bool,
}

impl ProcessTraits {
    /// Whether somebody else may change what a path of its calls is, or where it starts, while one is judged.
    pub fn shares_paths(self) -> bool {
        self.shares_memory || self.shares_working_directory
    }
}

#[derive(Debug)]
struct Living {
    id: ProcessId,
    traits: ProcessTraits,
}

/// All processes of the tree.
#[derive(Debug, Default)]
pub struct ProcessTable {
    all: Vec<Process>,
    living: HashMap<Tid, Living, foldhash::fast::RandomState>,
}

impl ProcessTable {
    /// Adds a process, or corrects the parent of one that is known.
    pub fn start(&mut self, pid: Tid, parent: Tid) -> ProcessId {
        let (parent_id, traits) = match self.living.get(&parent) {
            // A child has its own memory and working directory until the tracer reports that they are shared.
            Some(living) => {
                let own =
                    ProcessTraits { shares_memory: false, shares_working_directory: false, ..living.traits };
                (Some(living.id), own)
            }
            None => (None, ProcessTraits::default()),
        };
        if let Some(living) = self.living.get_mut(&pid) {
            let id = living.id;
            living.traits.in_foreign_mount_namespace |= traits.in_foreign_mount_namespace;
            living.traits.rights = living.traits.rights.max(traits.rights);
            if !self.all[index(id)].executed {
                living.traits.own_program = traits.own_program;
            }
            let image = parent_id.map(|parent| Arc::clone(&self.all[index(parent)].image));
            let process = &mut self.all[index(id)];
            if parent_id.is_some() && parent_id != Some(id) {
                process.inherited = image.unwrap_or_default();
                if !process.executed {
                    process.image = Arc::clone(&process.inherited);
                }
                process.parent = parent_id;
            }
            return id;
        }
        let image = parent_id.map(|parent| Arc::clone(&self.all[index(parent)].image)).unwrap_or_default();
        let id = ProcessId(u32::try_from(self.all.len() + 1).expect("fewer than four billion processes"));
        self.all.push(Process {
            pid,
            parent: parent_id,
            inherited: Arc::clone(&image),
            image,
            former: Vec::new(),
            executed: false,
            cwd: working_directory(pid),
            exit_status: None,
            started: Instant::now(),
            ended: None,
        });
        self.living.insert(pid, Living { id, traits });
        id
    }

    /// Adds a process that has run before, as a part of what `image` executes.
    pub fn adopt(&mut self, pid: Tid, image: Exec, traits: ProcessTraits) -> ProcessId {
        let id = self.start(pid, Tid(0));
        let image = Arc::new(image);
        let process = &mut self.all[index(id)];
        (process.inherited, process.image) = (Arc::clone(&image), image);
        self.set_traits(pid, |known| *known = traits);
        id
    }

    /// The number of a living process; one whose start was not reported is added.
    pub fn id(&mut self, pid: Tid) -> ProcessId {
        match self.living.get(&pid) {
            Some(living) => living.id,
            None => self.start(pid, Tid(0)),
        }
    }

    /// The number of a process, if it lives.
    pub fn living_id(&self, pid: Tid) -> Option<ProcessId> {
        self.living.get(&pid).map(|living| living.id)
    }

    /// Whether a process of the tree has this number, or had it.
    pub fn has_had(&self, pid: Tid) -> bool {
        self.living.contains_key(&pid) || self.all.iter().any(|process| process.pid == pid)
    }

    /// What a living process means for names and rights.
    pub fn traits(&self, pid: Tid) -> ProcessTraits {
        self.living.get(&pid).map(|living| living.traits).unwrap_or_default()
    }

    /// Changes them, if it lives.
    pub fn set_traits(&mut self, pid: Tid, set: impl FnOnce(&mut ProcessTraits)) {
        if let Some(living) = self.living.get_mut(&pid) {
            set(&mut living.traits);
        }
    }

    /// Notes that `pid` now executes `image`; until then its image is its parent's.
    pub fn execute(&mut self, pid: Tid, image: Exec) {
        let id = self.id(pid);
        self.set_traits(pid, |traits| traits.shares_memory = false);
        let process = &mut self.all[index(id)];
        let former = std::mem::replace(&mut process.image, Arc::new(image));
        if std::mem::replace(&mut process.executed, true) {
            process.former.push(former);
        }
    }

    /// Notes the end of a process.
    pub fn end(&mut self, pid: Tid, end: End) {
        if let Some(living) = self.living.remove(&pid) {
            let process = &mut self.all[index(living.id)];
            process.exit_status = Some(end.exit_status());
            process.ended = Some(Instant::now());
        }
    }

    /// What the manifest says of a process as it is now. Until it executes a program, its image is its parent's, and is
    /// left out.
    pub fn recorded(&self, id: ProcessId) -> RecordedProcess {
        let process = &self.all[index(id)];
        let image = if process.executed { Arc::clone(&process.image) } else { Arc::default() };
        RecordedProcess { image, ..process.recorded(id.0, self.all[0].started) }
    }

    /// What the manifest says of the uses of a path.
    pub fn recorded_uses(&self, uses: &Uses) -> Vec<PathUse> {
        let recorded = |(user, operations): (User, _)| {
            let exe = self.former_exe(user).map(<[u8]>::to_vec);
            PathUse { process: user.process().0, operations, exe }
        };
        uses.named().map(recorded).collect()
    }

    /// What the journal says of a use that is about to be made: also by which program, since the process may execute
    /// others.
    pub fn use_now(&self, process: ProcessId, operations: Operations) -> PathUse {
        let exe = &self.all[index(process)].image.exe;
        PathUse { process: process.0, operations, exe: (!exe.is_empty()).then(|| exe.clone()) }
    }

    /// The name of the program that a process executes.
    pub fn program(&self, process: ProcessId) -> String {
        let exe = &self.all[index(process)].image.exe;
        String::from_utf8_lossy(exe.rsplit(|byte| *byte == b'/').next().unwrap_or_default()).into_owned()
    }

    /// The program that a process executed after so many of its own, if it is not its last one.
    fn former_exe(&self, user: User) -> Option<&[u8]> {
        let process = &self.all[index(user.process())];
        let image = match user.programs().checked_sub(1).map(usize::from) {
            None => &process.inherited,
            Some(own) => process.former.get(own).unwrap_or(&process.image),
        };
        (image.exe != process.image.exe && !image.exe.is_empty()).then_some(&image.exe)
    }

    /// The processes that still live.
    pub fn living(&self) -> impl Iterator<Item = Tid> {
        self.living.keys().copied()
    }

    /// What the manifest says of all, in order of their start.
    pub fn all_recorded(&self) -> Vec<RecordedProcess> {
        let Some(first) = self.all.first() else { return Vec::new() };
        self.all.iter().zip(1..).map(|(process, id)| process.recorded(id, first.started)).collect()
    }
}

fn index(id: ProcessId) -> usize {
    id.0 as usize - 1
}

/// Where the relative paths of a process start; empty if that can't be told.
pub fn working_directory(pid: Tid) -> Vec<u8> {
    rustix::fs::readlink(format!("/proc/{pid}/cwd"), Vec::new())
        .map(|path| path.into_bytes())
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_arguments_of_a_process_are_kept_once_for_all_that_it_forks() {
        let mut table = ProcessTable::default();
        let own = Tid(std::process::id().cast_signed());
        table.start(own, Tid(0));
        let argv = vec![b"argument".to_vec(); 12_000];
        table.execute(own, Exec { exe: b"/bin/x".to_vec(), argv, ..Exec::default() });
        for child in 1..=100 {
            table.start(Tid(-child), own);
        }
        // One whose parent turns out to be another.
        table.start(Tid(-101), Tid(0));
        table.start(Tid(-101), own);
        table.execute(Tid(-1), Exec { exe: b"/bin/y".to_vec(), ..Exec::default() });
        let processes = table.all_recorded();
        drop(table);
        let image = &processes[0].image;
        assert_eq!(image.argv.len(), 12_000);
        assert_eq!(processes.iter().filter(|process| Arc::ptr_eq(&process.image, image)).count(), 101);
        // As its own, and as what it had from its parent.
        assert_eq!(Arc::strong_count(image), 101);
    }

    #[test]
    fn times_count_from_the_start_of_the_command() {
        let mut table = ProcessTable::default();
        let own = Tid(std::process::id().cast_signed());
        table.start(own, Tid(0));
        table.start(Tid(-1), own);
        table.end(Tid(-1), End::Exited(3));
        let [command, child] = table.all_recorded().try_into().unwrap();
        assert_eq!((command.started_us, command.ended_us), (Some(0), None));
        assert!(child.started_us.is_some() && child.started_us <= child.ended_us, "{child:?}");
        assert_eq!(child.exit_status, Some(3));
    }
}
