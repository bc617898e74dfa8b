//! The observer of a session: of which recording each call is.
//!
//! A session's tree has processes of its *program*, an agent or a shell, and those of the commands that this starts.
//! Each command is a *step* with a recording of its own. It begins with the execve of a shell that is given a command,
//! or, as a job of an interactive shell, with the first call of a process in the job's process group, and ends with its
//! last process. What the program changes itself is a step, too, an *edit*: it begins with a call that may change
//! something, and ends when a command begins, after two seconds without another change, or with the session. What the
//! program only reads is not recorded.
//!
//! Knows which process is of which step, and nothing of paths and contents: those are for the [`Recorder`] of each step.
//! Neighbours: `edits.rs` keeps the edits that have not ended, `commands/record/steps.rs` starts and commits the
//! recordings.
//!
//! The lock on the edits comes before the one on the members, and neither is taken under that of a recorder.

mod edits;

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use nix::errno::Errno as Error;
use nix::sys::signal::killpg;
use nix::unistd::{Pid, getpgid};

use self::edits::{Edit, Edits, Left, changes_shared_directory, may_change};
use super::calls::changes::Pending;
use super::calls::inherited::{self, InheritedFile};
use super::calls::own_program::{CallTargets, Yielded};
use super::mounts::{ServedDevices, ServedWatch};
use super::processes::{ProcessTraits, Rights, working_directory};
use super::recorder::{Events, Recorder};
use crate::snapshot::{Exec, SnapshotKind, WarningKind};
use crate::sync::lock;
use crate::trace::memory::{ARGV_LIMIT, Memory as _};
use crate::trace::observer::{Caller, Decision, Errno, Observer, SyscallEntry};
use crate::trace::proc_fd;
use crate::trace::sys::Tid;
use crate::trace::syscalls::{Effect, FileRef, Special};
use crate::trace::wait_status::End;

/// How many times, and for how long, the states are taken again of files that are still being written.
const LOOKS: u32 = 10;
const LOOKING: Duration = Duration::from_millis(100);
/// How often it is asked whether a process group still exists.
const POLL: Duration = Duration::from_millis(5);
/// How long after the end of its last process a job may get another one, if its shell has not waited for it.
const JOB_PATIENCE: Duration = Duration::from_secs(1);

/// The files that a process has open for writing.
type FilesOfProcess = (Tid, ProcessTraits, Vec<InheritedFile>);

/// What a process of the program becomes that executes something.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Launch {
    /// A shell with a command or a script.
    Command,
    /// A shell that reads commands from a terminal.
    Shell,
    /// An agent.
    Agent,
    /// Anything else.
    Other,
}

/// With what a step begins.
#[derive(Debug)]
pub struct Beginning {
    /// What it is: a command or an edit.
    pub kind: SnapshotKind,
    /// The arguments of the first program.
    pub argv: Vec<Vec<u8>>,
    /// The directory that it starts in.
    pub cwd: Vec<u8>,
    /// The arguments of the shell whose job it is, if it is one.
    pub shell: Option<Vec<Vec<u8>>>,
}

/// Starts the recordings of a session.
pub trait Steps: Send + Sync {
    /// What a program with these arguments is; `at_terminal` says whether its standard input is a terminal.
    fn launch(&self, exe: &[u8], argv: &[Vec<u8>], at_terminal: bool) -> Launch;
    /// Prepares what the next step begins with, ahead of time.
    fn prepare(&self);
    /// Starts the recording of a step; none if that fails, which it has told the user.
    fn begin(&self, beginning: Beginning) -> Option<Arc<dyn Step>>;
    /// Whether a file is none of the session's: the rules leave it out, or it was open before.
    fn leave_out(&self, path: &[u8]) -> bool;
    /// Whether a file was open before the session.
    fn was_open(&self, path: &[u8]) -> bool;
    /// Whether io_uring is let through, unseen.
    fn allow_io_uring(&self) -> bool;
    /// Whether rules are enforced.
    fn enforces(&self) -> bool;
}

/// A recording of a session.
pub trait Step: Send + Sync {
    /// Its recorder.
    fn recorder(&self) -> &Recorder;
    /// Commits it: its command ended like this, if it is one. An edit that changed nothing leaves nothing.
    fn end(&self, end: Option<End>);
    /// Drops it: its command was not executed.
    fn discard(&self);
}

/// Which part a process of the program has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Role {
    /// It starts commands by executing shells.
    Program,
    /// It is a shell that starts jobs.
    Shell,
    /// This shell forked it: it is a job as soon as it is in a process group of its own.
    Child(Tid),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    Program(Role),
    Step(u32),
    /// Of a command whose recording could not be started; or the process that is about to execute the program.
    Unrecorded,
}

#[derive(Debug)]
struct Member {
    place: Place,
    traits: ProcessTraits,
}

/// A step that has not ended.
struct Running {
    step: Arc<dyn Step>,
    /// The process group of a job.
    group: Option<Tid>,
    /// How many of its processes live.
    living: usize,
    /// The last of them that the program started itself, and how it ended.
    last: Tid,
    end: Option<End>,
    /// Since when none of them lives.
    empty: Option<Instant>,
}

#[derive(Default)]
struct Members {
    processes: HashMap<Tid, Member, foldhash::fast::RandomState>,
    running: HashMap<u32, Running, foldhash::fast::RandomState>,
    /// The number of the last step.
    last: u32,
}

/// What is kept of a call, with the step that it is of.
pub struct Routed {
    step: Arc<dyn Step>,
    pending: Pending,
    of: CallOf,
    /// Whether it mounts or unmounts something.
    mounts: bool,
    /// The other steps that it may change something for.
    yielded: Vec<YieldedStep>,
}

/// A step that yields to a call of another one.
struct YieldedStep {
    step: Arc<dyn Step>,
    /// What it has that the call may change.
    yielded: Yielded,
    /// Whether it is an edit that is cut after the call.
    is_cut: bool,
}

/// Whose a call is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CallOf {
    /// The program's.
    Edit,
    /// A command's.
    Command,
    /// The execve that a command begins with.
    Beginning,
    /// A command's that may change what the program has changed, or has open.
    CommandInEdit,
}

/// The observer of a session.
pub struct Session {
    /// The process of the program.
    root: Tid,
    steps: Box<dyn Steps>,
    events: Box<dyn Events>,
    /// What others served before the session, and what is served now.
    served: ServedDevices,
    mounted: Mutex<ServedWatch>,
    members: Mutex<Members>,
    edits: Mutex<Edits>,
    /// Told when an edit has changed something, a job has no living process, or a step has begun.
    woken: Condvar,
    has_empty_jobs: AtomicBool,
    /// Held while the step of a job is looked for and begun.
    beginning: Mutex<()>,
    /// Held while jobs end.
    ending: Mutex<()>,
    /// The calls in flight that may change something, by thread, of those that were made while several steps ran.
    in_flight: Mutex<HashMap<Tid, CallInFlight, foldhash::fast::RandomState>>,
}

/// A call in flight has a target in common with another one.
struct InTheWay;

/// A call in flight that may change something.
struct CallInFlight {
    step: Arc<dyn Step>,
    process: Tid,
    targets: CallTargets,
}

/// Where a call goes.
enum Route {
    Step(Arc<dyn Step>),
    /// It is the execve that this step begins with.
    Beginning(Arc<dyn Step>),
    Program,
    Unrecorded,
}

impl Session {
    /// A session of a program that has not been started.
    pub fn new(
        root: Tid,
        steps: Box<dyn Steps>,
        events: Box<dyn Events>,
        mut mounted: ServedWatch,
    ) -> Session {
        let served = mounted.now().clone();
        Session {
            root,
            steps,
            events,
            served,
            mounted: Mutex::new(mounted),
            members: Mutex::default(),
            edits: Mutex::default(),
            woken: Condvar::new(),
            has_empty_jobs: AtomicBool::new(false),
            beginning: Mutex::default(),
            ending: Mutex::default(),
            in_flight: Mutex::default(),
        }
    }

    /// Ends edits and jobs in time, and prepares steps, for as long as this process lives.
    pub fn keep_time(&self) {
        loop {
            let edits = lock(&self.edits);
            let quiet = edits.current.as_ref().and_then(Edit::quiet_in);
            let jobs = self.has_empty_jobs.load(Ordering::SeqCst).then_some(POLL);
            let wait = quiet.into_iter().chain(jobs).min().unwrap_or(Duration::MAX);
            // Unlocks them, even where there is no time to wait.
            drop(self.woken.wait_timeout(edits, wait));
            self.end_jobs(|running| {
                let gone = running.group.is_none_or(|group| killpg(pid(group), None) == Err(Error::ESRCH));
                gone || running.empty.is_some_and(|since| since.elapsed() >= JOB_PATIENCE)
            });
            let mut edits = lock(&self.edits);
            if edits.current.as_ref().and_then(Edit::quiet_in) == Some(Duration::ZERO) {
                self.cut(&mut edits, || {});
            }
            drop(edits);
            self.steps.prepare();
        }
    }

    /// Ends what is left at the end of the session.
    pub fn close(&self) {
        self.end_jobs(|_| true);
        lock(&self.edits).take_all().iter().for_each(|edit| edit.step.end(None));
    }

    /// Where a call of a process goes; a step is begun if it begins with this call.
    fn route(&self, caller: Caller, call: &SyscallEntry<'_>) -> Route {
        let members = lock(&self.members);
        let place = members.processes.get(&caller.tgid).map(|member| member.place);
        let role = match place {
            Some(Place::Step(number)) => {
                let running = members.running.get(&number);
                return running.map_or(Route::Unrecorded, |running| Route::Step(Arc::clone(&running.step)));
            }
            Some(Place::Unrecorded) => return Route::Unrecorded,
            Some(Place::Program(role)) => role,
            None => Role::Program,
        };
        drop(members);
        match role {
            Role::Program if executes(call) && caller.tgid != self.root => self.route_exec(caller, call),
            Role::Child(shell) => match group_of_job(caller.tgid, shell) {
                Some(group) => self.route_job(caller, call, (shell, group)),
                None => Route::Program,
            },
            Role::Program | Role::Shell => Route::Program,
        }
    }

    /// Where an execve of the program goes: a shell that it gives a command is a step.
    fn route_exec(&self, caller: Caller, call: &SyscallEntry<'_>) -> Route {
        match self.launch(caller, call) {
            Some((exe, argv, Launch::Command)) if self.may_execute(caller.tgid, &exe) => {
                self.begin(caller.tgid, argv, None, true)
            }
            _ => Route::Program,
        }
    }

    /// Where the first call of a job goes. A shell or an agent inside of a shell is a program of the session, too.
    fn route_job(&self, caller: Caller, call: &SyscallEntry<'_>, job: (Tid, Tid)) -> Route {
        // Two processes of a job may make their first calls at once.
        let _one = self.beginning.lock();
        let mut members = lock(&self.members);
        let running = members.running.iter_mut().find(|(_, running)| running.group == Some(job.1));
        if let Some((number, running)) = running {
            let (number, step) = (*number, Arc::clone(&running.step));
            running.living += 1;
            (running.last, running.end, running.empty) = (caller.tgid, None, None);
            drop(members);
            self.join(caller.tgid, number, &step, executes(call));
            return Route::Step(step);
        }
        drop(members);
        match self.launch(caller, call) {
            Some((_, _, Launch::Shell | Launch::Agent)) => Route::Program,
            Some((_, argv, _)) => self.begin(caller.tgid, argv, Some(job), true),
            None => self.begin(caller.tgid, image(caller.tgid).argv, Some(job), false),
        }
    }

    /// The program that a call executes, with its arguments, and what that is.
    fn launch(&self, caller: Caller, call: &SyscallEntry<'_>) -> Option<(Vec<u8>, Vec<Vec<u8>>, Launch)> {
        let access = call.decoded.accesses.iter().find(|access| access.effect == Effect::Execute)?;
        let exe = match &access.file {
            FileRef::Path { path, .. } => path.clone(),
            FileRef::Descriptor(fd) => read_link(&proc_fd::link(caller.tid, fd)),
            FileRef::WorkingDirectory => return None,
        };
        let argv = call.decoded.argv.and_then(|address| call.memory.read_argv(address, ARGV_LIMIT).ok());
        let (argv, _) = argv.unwrap_or_default();
        let launch = self.steps.launch(&exe, &argv, is_at_terminal(caller.tgid));
        Some((exe, argv, launch))
    }

    /// Begins a step with a process of the program; as a job, with its shell and process group.
    fn begin(&self, process: Tid, argv: Vec<Vec<u8>>, job: Option<(Tid, Tid)>, executes: bool) -> Route {
        self.end_jobs(|_| true);
        let beginning = Beginning {
            kind: SnapshotKind::Command,
            argv,
            cwd: working_directory(process),
            shell: job.map(|(shell, _)| image(shell).argv),
        };
        let begun = self.cut(&mut lock(&self.edits), || {
            let step = self.steps.begin(beginning);
            match &step {
                Some(step) => self.begin_with(process, step, job.map(|(_, group)| group), executes),
                None => self.set_place(process, Place::Unrecorded),
            }
            step
        });
        // The thread that keeps time prepares the next one.
        self.woken.notify_all();
        match begun {
            Some(step) if job.is_none() => Route::Beginning(step),
            Some(step) => Route::Step(step),
            None => Route::Unrecorded,
        }
    }

    /// Begins a step with a process of the program.
    fn begin_with(&self, process: Tid, step: &Arc<dyn Step>, group: Option<Tid>, executes: bool) {
        let mut members = lock(&self.members);
        members.last += 1;
        let number = members.last;
        let step_of = Arc::clone(step);
        let running = Running { step: step_of, group, living: 1, last: process, end: None, empty: None };
        members.running.insert(number, running);
        drop(members);
        self.note_what_runs_beside(step);
        self.join(process, number, step, executes);
    }

    /// Has a step that begins, and the commands that run beside it, note when they change each path.
    fn note_what_runs_beside(&self, step: &Arc<dyn Step>) {
        let others = self.others([], step);
        others.iter().for_each(|other| other.recorder().note_change_times());
        if !others.is_empty() {
            step.recorder().note_change_times();
        }
    }

    /// Makes a process of the program one of a step, before or without an execve.
    fn join(&self, process: Tid, number: u32, step: &Arc<dyn Step>, executes: bool) {
        let traits = self.traits_of(process);
        // A ring is closed by an execve.
        let traits = ProcessTraits { has_io_uring: traits.has_io_uring && !executes, ..traits };
        let files = inherited::files_of(process, executes, &self.served_by_tree()).into_iter();
        // What the program has opened is of the session.
        let files = files.map(|file| if self.steps.was_open(file.path()) { file } else { file.as_own() });
        step.recorder().adopt(process, image(process), traits, &files.collect::<Vec<_>>());
        self.set_place(process, Place::Step(number));
    }

    fn set_place(&self, process: Tid, place: Place) {
        if let Some(member) = lock(&self.members).processes.get_mut(&process) {
            member.place = place;
        }
    }

    /// What processes of the session serve by now.
    fn served_by_tree(&self) -> ServedDevices {
        let mut mounted = lock(&self.mounted);
        mounted.now().without(&self.served)
    }

    /// Whether a program may be there: execvp(3) tries one directory after another.
    fn may_execute(&self, process: Tid, exe: &[u8]) -> bool {
        if !self.served_by_tree().is_empty() {
            return true;
        }
        let start = if exe.starts_with(b"/") { "root" } else { "cwd" };
        let path = [format!("/proc/{process}/{start}/").as_bytes(), exe].concat();
        !matches!(crate::fs::lstat(&path), Ok(None))
    }

    /// Ends the jobs without a living process for which `is_over` holds.
    fn end_jobs(&self, is_over: impl Fn(&Running) -> bool) {
        // Nothing is changed before the states are taken that one has left.
        let _one = self.ending.lock();
        if !self.has_empty_jobs.load(Ordering::SeqCst) {
            return;
        }
        let mut members = lock(&self.members);
        let over: Vec<_> = members.running.extract_if(|_, one| one.empty.is_some() && is_over(one)).collect();
        let is_left = members.running.values().any(|one| one.empty.is_some());
        self.has_empty_jobs.store(is_left, Ordering::SeqCst);
        drop(members);
        over.iter().for_each(|(_, running)| self.end_command(running));
    }

    /// Ends the edit, once its calls in flight have ended, and does something before the next one. What the program has
    /// open for writing it may change at any time, and the next edit begins with it.
    fn cut<T>(&self, edits: &mut Edits, between: impl FnOnce() -> T) -> T {
        let last = edits.current.take();
        let done = between();
        if last.is_some() || !edits.yielded.is_empty() {
            self.hand_over(edits, last.iter().map(Edit::leave).collect());
        }
        last.into_iter().for_each(|edit| edits.end(edit));
        done
    }

    /// Ends a command. What it has changed and the program has open is the program's again.
    fn end_command(&self, running: &Running) {
        let mut edits = lock(&self.edits);
        let yielded = std::mem::take(&mut edits.yielded);
        if !yielded.is_empty() {
            let last = edits.current.take();
            let step = Arc::clone(&running.step);
            let of_command = Left { files: step.recorder().leave_files(&yielded), step };
            self.hand_over(&mut edits, last.iter().map(Edit::leave).chain([of_command]).collect());
            last.into_iter().for_each(|edit| edits.end(edit));
        }
        drop(edits);
        running.step.end(running.end);
    }

    /// Notes that a call of an edit has ended. If the edit was cut while the call was in flight, the next one begins again, with
    /// what the call has opened.
    fn edit_call_ended(&self, step: &Arc<dyn Step>) {
        let mut edits = lock(&self.edits);
        let mut last = edits.call_ended(step);
        if !last.is_empty() {
            last.extend(edits.current.take());
            self.hand_over(&mut edits, last.iter().map(Edit::leave).collect());
            last.into_iter().for_each(|edit| edits.end(edit));
        }
    }

    /// Begins the next edit with what the program has open, if that is anything, as these steps have left it. They can still
    /// take states: the program may go on writing, and may close what it has open.
    fn hand_over(&self, edits: &mut Edits, mut left: Vec<Left>) {
        let began = Instant::now();
        for looks in (0..LOOKS).rev() {
            let open = self.files_of_program(edits);
            let is_open =
                |path: &[u8]| open.iter().flat_map(|(.., files)| files).any(|file| file.path() == path);
            // A large file takes long to look at. One that stays open is a gap if it is not as it was left.
            let is_to_take = |path: &[u8]| began.elapsed() < LOOKING || !is_open(path);
            let is_outdated = |left: &Left| looks > 0 && left.files.outdated().any(is_to_take);
            if !left.iter().any(is_outdated) {
                let edit = if open.is_empty() { None } else { self.begin_edit(&open, &left) };
                // What is written while the edit begins may be in its first states already.
                if !left.iter().any(is_outdated) {
                    edits.current = edit;
                    return;
                }
                if let Some(edit) = edit {
                    edit.step.discard();
                }
            }
            let outdated = left.iter_mut().filter(|left| is_outdated(left));
            outdated.for_each(|left| left.files = left.step.recorder().leave_again(&left.files));
        }
    }

    /// The files that the program has open for writing, by process, but for those that a command is changing, which are
    /// noted as yielded; also the processes that may change any without a call.
    fn files_of_program(&self, edits: &mut Edits) -> Vec<FilesOfProcess> {
        let running = self.running();
        edits.yielded.clear();
        let is_of_program = |(process, member): (&Tid, &Member)| {
            matches!(member.place, Place::Program(_)).then_some((*process, member.traits))
        };
        let of_program: Vec<_> = lock(&self.members).processes.iter().filter_map(is_of_program).collect();
        let served = self.served_by_tree();
        let open = of_program.into_iter().map(|(process, traits)| {
            let files = inherited::files_of(process, false, &served).into_iter();
            let files = files.filter(|file| file.is_written() && !self.steps.leave_out(file.path()));
            let files = files.filter(|file| {
                let is_changing = running.iter().any(|step| step.recorder().has_changed(file));
                edits.yielded.extend(is_changing.then(|| file.clone()));
                !is_changing
            });
            (process, traits, files.map(InheritedFile::as_own).collect::<Vec<_>>())
        });
        open.filter(|(_, traits, files)| traits.has_io_uring || !files.is_empty()).collect()
    }

    /// Begins an edit with what the program has open, some of it as these steps have left it.
    fn begin_edit(&self, open: &[FilesOfProcess], left: &[Left]) -> Option<Edit> {
        let step = self.steps.begin(Beginning {
            kind: SnapshotKind::Edit,
            argv: image(self.root).argv,
            cwd: working_directory(self.root),
            shell: None,
        })?;
        self.note_what_runs_beside(&step);
        let mut edit = Edit::new(step);
        for (process, traits, files) in open {
            edit.adopt(*process, image(*process), *traits, files);
            for file in files.iter().filter(|file| !left.iter().all(|left| left.files.has(file))) {
                edit.step.recorder().lost(
                    WarningKind::ExternalChange,
                    &format!(
                        "{} was written while one edit ended and the next began",
                        String::from_utf8_lossy(file.path())
                    ),
                );
            }
        }
        Some(edit)
    }

    /// Decides about a call of the program itself.
    fn on_own_entry(&self, caller: Caller, call: &SyscallEntry<'_>) -> Decision<Routed> {
        let decoded = call.decoded;
        match decoded.special {
            Some(Special::IoUring) if !self.steps.allow_io_uring() => {
                return Decision::Refuse(Errno(libc::ENOSYS));
            }
            Some(Special::SecretMemory) => return Decision::Refuse(Errno(libc::ENOSYS)),
            Some(Special::Namespace | Special::Untraced { namespace: true, .. }) => {
                self.set_traits(caller, |traits| {
                    (traits.in_foreign_mount_namespace, traits.rights) = (true, Rights::Others);
                })
            }
            Some(Special::Landlock) => self.set_traits(caller, |traits| traits.rights = Rights::Others),
            Some(Special::IoUring) => self.set_traits(caller, |traits| traits.has_io_uring = true),
            _ => {}
        }
        let traits = self.traits_of(caller.tgid);
        if !may_change(decoded, traits.in_foreign_mount_namespace)
            && !changes_shared_directory(decoded, caller.tgid, traits)
        {
            return match self.steps.enforces() {
                true => self.enforce(caller, call),
                false => Decision::Continue,
            };
        }
        self.end_jobs(|_| true);
        let mut edits = lock(&self.edits);
        let Some(edit) = self.edit_of(caller.tgid, &mut edits) else { return self.without_recorder() };
        let step = Arc::clone(&edit.step);
        let Ok(targets) = self.targets_of(&edits, &step, caller, call) else { return Decision::Postpone };
        let Some(edit) = &mut edits.current else { return self.without_recorder() };
        let decision = edit.on_entry(caller, call);
        let yielded = self.let_others_yield(&decision, &edits, &step, caller, call);
        self.woken.notify_all();
        let decision = route(decision, Arc::clone(&step), CallOf::Edit, yielded, call);
        self.begin_call(&decision, step, caller, targets);
        decision
    }

    /// Decides about a call that no recorder can judge.
    fn without_recorder(&self) -> Decision<Routed> {
        match self.steps.enforces() {
            true => Decision::Refuse(Errno(libc::EACCES)),
            false => Decision::Continue,
        }
    }

    /// Decides about a call of the program itself that is not recorded, by the rules that are enforced.
    fn enforce(&self, caller: Caller, call: &SyscallEntry<'_>) -> Decision<Routed> {
        if call.decoded.asks_only() && call.decoded.special.is_none() {
            return Decision::Continue;
        }
        let mut edits = lock(&self.edits);
        let Some(edit) = self.edit_of(caller.tgid, &mut edits) else { return self.without_recorder() };
        let step = Arc::clone(&edit.step);
        route(edit.enforce(caller, call), step, CallOf::Edit, Vec::new(), call)
    }

    /// The edit, begun if there is none, whose recorder knows a process.
    fn edit_of<'e>(&self, process: Tid, edits: &'e mut Edits) -> Option<&'e mut Edit> {
        if edits.current.is_none() {
            let open = self.files_of_program(edits);
            edits.current = self.begin_edit(&open, &[]);
        }
        let edit = edits.current.as_mut()?;
        if !edit.knows(process) {
            edit.adopt(process, image(process), self.traits_of(process), &[]);
        }
        Some(edit)
    }

    fn traits_of(&self, process: Tid) -> ProcessTraits {
        lock(&self.members).processes.get(&process).map(|member| member.traits).unwrap_or_default()
    }

    fn set_traits(&self, caller: Caller, set: impl FnOnce(&mut ProcessTraits)) {
        if let Some(member) = lock(&self.members).processes.get_mut(&caller.tgid) {
            set(&mut member.traits);
        }
    }

    /// Notes that a call has ended; a step is dropped that was to begin with it, if it failed.
    fn call_ended(&self, caller: Caller, step: &Arc<dyn Step>, of: CallOf, succeeded: bool) {
        match of {
            CallOf::Edit => return self.edit_call_ended(step),
            // What the program has open may have another name now.
            CallOf::CommandInEdit => return self.cut(&mut lock(&self.edits), || {}),
            CallOf::Beginning if !succeeded => {}
            CallOf::Beginning | CallOf::Command => return,
        }
        let mut members = lock(&self.members);
        let Members { processes, running, .. } = &mut *members;
        let Some(member) = processes.get_mut(&caller.tgid) else { return };
        let Place::Step(number) = member.place else { return };
        running.remove(&number);
        member.place = Place::Program(Role::Program);
        drop(members);
        step.discard();
    }

    /// Keeps calls of other steps that have a target in common with this one waiting until it has ended.
    fn begin_call(
        &self,
        decision: &Decision<Routed>,
        step: Arc<dyn Step>,
        caller: Caller,
        targets: Option<CallTargets>,
    ) {
        if let (Decision::AwaitResult(_), Some(targets)) = (decision, targets) {
            lock(&self.in_flight).insert(caller.tid, CallInFlight { step, process: caller.tgid, targets });
        }
    }

    /// Decides about a call of a command.
    fn on_command_entry(
        &self,
        step: Arc<dyn Step>,
        caller: Caller,
        call: &SyscallEntry<'_>,
    ) -> Decision<Routed> {
        let in_foreign_mount_namespace = || self.traits_of(caller.tgid).in_foreign_mount_namespace;
        if call.decoded.is_read_only() || !may_change(call.decoded, in_foreign_mount_namespace()) {
            let decision = step.recorder().on_entry(caller, call);
            return route(decision, step, CallOf::Command, Vec::new(), call);
        }
        self.end_jobs(|_| true);
        let Ok(targets) = self.targets_of(&lock(&self.edits), &step, caller, call) else {
            return Decision::Postpone;
        };
        let decision = step.recorder().on_entry(caller, call);
        let yielded = self.let_others_yield(&decision, &lock(&self.edits), &step, caller, call);
        let is_in_edit = yielded.iter().any(|other| other.is_cut);
        let of = if is_in_edit { CallOf::CommandInEdit } else { CallOf::Command };
        let decision = route(decision, Arc::clone(&step), of, yielded, call);
        self.begin_call(&decision, step, caller, targets);
        decision
    }

    /// The targets of a call; none if no other step runs, or nobody waits for the call.
    ///
    /// # Errors
    /// It has to wait: a call of another step that has a target in common with it is in flight.
    fn targets_of(
        &self,
        edits: &Edits,
        step: &Arc<dyn Step>,
        caller: Caller,
        call: &SyscallEntry<'_>,
    ) -> Result<Option<CallTargets>, InTheWay> {
        let is_alone = self.others(edits.all(), step).is_empty();
        let targets = if is_alone { None } else { step.recorder().targets(caller, call) };
        let is_in_the_way = |other: &CallInFlight| {
            !Arc::ptr_eq(&other.step, step)
                && targets.as_ref().is_some_and(|targets| targets.overlap(&other.targets))
        };
        if !call.overdue && lock(&self.in_flight).values().any(is_in_the_way) {
            return Err(InTheWay);
        }
        Ok(targets)
    }

    /// Has the other steps take the states of what they have changed and a call may change, too, which is about to be made. Its
    /// own recorder has taken its states by then: what another step has open may be written to until that.
    fn let_others_yield(
        &self,
        decision: &Decision<Pending>,
        edits: &Edits,
        step: &Arc<dyn Step>,
        caller: Caller,
        call: &SyscallEntry<'_>,
    ) -> Vec<YieldedStep> {
        if !matches!(decision, Decision::AwaitResult(_)) {
            return Vec::new();
        }
        let edit = edits.current.as_ref().map(|edit| &edit.step);
        let yielded = self.others(edits.all(), step).into_iter().filter_map(|step| {
            let yielded = step.recorder().yield_to(caller, call);
            let is_edit = edit.is_some_and(|edit| Arc::ptr_eq(edit, &step));
            // One that has changed none of it goes on.
            let yields = if is_edit { yielded.has_changed } else { !yielded.is_empty() };
            yields.then_some(YieldedStep { step, yielded, is_cut: is_edit })
        });
        yielded.collect()
    }

    /// The commands that run.
    fn running(&self) -> Vec<Arc<dyn Step>> {
        lock(&self.members).running.values().map(|running| Arc::clone(&running.step)).collect()
    }

    /// The commands that run and these edits, but for one step.
    fn others<'e>(
        &self,
        edits: impl IntoIterator<Item = &'e Edit>,
        step: &Arc<dyn Step>,
    ) -> Vec<Arc<dyn Step>> {
        let mut others = self.running();
        others.extend(edits.into_iter().map(|edit| Arc::clone(&edit.step)));
        others.retain(|other| !Arc::ptr_eq(other, step));
        others
    }

    /// Tells the step of a process, or the edits that know it, of something.
    fn tell(&self, process: Tid, tell: impl Fn(&Recorder)) {
        let members = lock(&self.members);
        let step = match members.processes.get(&process).map(|member| member.place) {
            Some(Place::Step(number)) => members.running.get(&number).map(|one| Arc::clone(&one.step)),
            _ => None,
        };
        drop(members);
        if let Some(step) = step {
            return tell(step.recorder());
        }
        let edits = lock(&self.edits);
        edits.all().filter(|edit| edit.knows(process)).for_each(|edit| tell(edit.step.recorder()));
    }

    /// Tells every step, and an edit in any case.
    fn tell_all(&self, tell: impl Fn(&Recorder)) {
        self.running().iter().for_each(|step| tell(step.recorder()));
        let mut edits = lock(&self.edits);
        self.edit_of(self.root, &mut edits);
        edits.all().for_each(|edit| tell(edit.step.recorder()));
    }
}

impl Observer for Session {
    type Pending = Routed;

    fn on_entry(&self, caller: Caller, call: &SyscallEntry<'_>) -> Decision<Routed> {
        match self.route(caller, call) {
            Route::Step(step) => self.on_command_entry(step, caller, call),
            Route::Beginning(step) => {
                route(step.recorder().on_entry(caller, call), step, CallOf::Beginning, Vec::new(), call)
            }
            Route::Program if call.decoded.is_read_only() && self.steps.enforces() => {
                self.enforce(caller, call)
            }
            Route::Program if call.decoded.is_read_only() => Decision::Continue,
            Route::Program => self.on_own_entry(caller, call),
            // The process that is about to execute the program.
            Route::Unrecorded if caller.tgid == self.root => Decision::Continue,
            Route::Unrecorded => self.without_recorder(),
        }
    }

    fn on_result(&self, caller: Caller, routed: Routed, result: Option<i64>) {
        let succeeded = result.is_none_or(|result| result >= 0);
        let Routed { step, pending, of, mounts, yielded } = routed;
        step.recorder().on_result(caller, pending, result);
        if succeeded && !yielded.is_empty() {
            let served = self.served_by_tree();
            for YieldedStep { step: other, yielded, is_cut } in &yielded {
                // What the program has open is of the next edit.
                let gets = (!is_cut).then(|| step.recorder());
                other.recorder().has_yielded(yielded, gets, &served);
            }
        }
        if mounts {
            for other in self.others(lock(&self.edits).all(), &step) {
                other.recorder().mounts_changed(caller);
            }
        }
        self.call_ended(caller, &step, of, succeeded);
        lock(&self.in_flight).remove(&caller.tid);
    }

    fn read_only_call_is_over(&self, caller: Caller) {
        self.tell(caller.tgid, |recorder| recorder.read_only_call_is_over(caller));
    }

    fn unreadable(&self, caller: Caller, name: &'static str) {
        let place = lock(&self.members).processes.get(&caller.tgid).map(|member| member.place);
        match place {
            Some(Place::Step(_)) => self.tell(caller.tgid, |recorder| recorder.unreadable(caller, name)),
            Some(Place::Unrecorded) => {}
            // It may have been a change.
            Some(Place::Program(_)) | None => {
                if let Some(edit) = self.edit_of(caller.tgid, &mut lock(&self.edits)) {
                    edit.step.recorder().unreadable(caller, name);
                }
            }
        }
    }

    fn signal(&self, caller: Caller, signal: i32) {
        self.tell(caller.tgid, |recorder| recorder.signal(caller, signal));
    }

    fn executed(&self, caller: Caller, routed: Option<Routed>) {
        let process = caller.tgid;
        // Its other threads have vanished.
        lock(&self.in_flight).retain(|_, call| call.process != process);
        self.set_traits(caller, |traits| (traits.shares_memory, traits.has_io_uring) = (false, false));
        if let Some(Routed { step, pending, of, .. }) = routed {
            step.recorder().executed(caller, Some(pending));
            self.call_ended(caller, &step, of, true);
            if of != CallOf::Edit {
                return;
            }
        }
        let place = match lock(&self.members).processes.get(&process).map(|member| member.place) {
            Some(Place::Unrecorded) if process == self.root => Some(Place::Program(Role::Program)),
            place => place,
        };
        if let Some(Place::Program(role)) = place {
            let new = image(process);
            let launch = self.steps.launch(&new.exe, &new.argv, is_at_terminal(process));
            let role = match (role, launch) {
                (Role::Child(_), Launch::Other | Launch::Command) => role,
                (_, Launch::Shell) => Role::Shell,
                _ => Role::Program,
            };
            self.set_place(process, Place::Program(role));
            self.tell(process, |recorder| recorder.changed_image(process, new.clone()));
        } else {
            self.tell(process, |recorder| recorder.executed(caller, None));
        }
    }

    fn started(&self, process: Tid, parent: Tid) {
        let mut members = lock(&self.members);
        let Members { processes, running, .. } = &mut *members;
        let (place, traits) = match processes.get(&parent) {
            Some(Member { place: Place::Program(Role::Shell), traits }) => {
                (Place::Program(Role::Child(parent)), *traits)
            }
            Some(Member { place, traits }) => (*place, *traits),
            None => (Place::Program(Role::Program), ProcessTraits::default()),
        };
        let own = ProcessTraits { shares_memory: false, shares_working_directory: false, ..traits };
        let first = if process == self.root { Place::Unrecorded } else { Place::Program(Role::Program) };
        let member = processes.entry(process).or_insert(Member { place: first, traits: own });
        if let Place::Program(_) = member.place {
            member.place = place;
            if let Place::Step(number) = place
                && let Some(running) = running.get_mut(&number)
            {
                running.living += 1;
            }
        }
        let step = match member.place {
            Place::Step(number) => running.get(&number).map(|running| Arc::clone(&running.step)),
            _ => None,
        };
        drop(members);
        if let Some(step) = step {
            step.recorder().started(process, parent);
        }
        self.events.started(process);
    }

    fn shares_memory(&self, process: Tid, shares: bool) {
        self.set_traits(Caller { tid: process, tgid: process }, |traits| traits.shares_memory = shares);
        self.tell(process, |recorder| recorder.shares_memory(process, shares));
    }

    fn share_working_directory(&self, process: Tid, other: Tid) {
        for one in [process, other] {
            let caller = Caller { tid: one, tgid: one };
            self.set_traits(caller, |traits| traits.shares_working_directory = true);
        }
        self.tell(process, |recorder| recorder.share_working_directory(process, other));
    }

    fn ended(&self, process: Tid, end: End) {
        lock(&self.in_flight).retain(|_, call| call.process != process);
        self.tell(process, |recorder| recorder.ended(process, end));
        lock(&self.edits).process_ended(process);
        let mut members = lock(&self.members);
        let mut over = None;
        if let Some(Member { place: Place::Step(number), .. }) = members.processes.remove(&process)
            && let Some(running) = members.running.get_mut(&number)
        {
            running.living = running.living.saturating_sub(1);
            if running.last == process {
                running.end = Some(end);
            }
            match (running.living, running.group) {
                (0, None) => over = members.running.remove(&number),
                // Its shell may put another process into the group, as long as it has not waited for this one.
                (0, Some(_)) => {
                    running.empty = Some(Instant::now());
                    self.has_empty_jobs.store(true, Ordering::SeqCst);
                    self.woken.notify_all();
                }
                _ => {}
            }
        }
        let has_program = members.processes.values().any(|member| matches!(member.place, Place::Program(_)));
        drop(members);
        over.iter().for_each(|running| self.end_command(running));
        if !has_program {
            self.cut(&mut lock(&self.edits), || {});
        }
        self.events.ended(None, process, end);
    }

    fn stopped(&self, process: Tid, signal: i32) {
        self.events.stopped(process, signal);
    }

    fn continued(&self, process: Tid) {
        self.events.continued(process);
    }

    fn abandoned(&self, process: Tid) {
        self.tell(process, |recorder| recorder.abandoned(process));
    }

    fn gap(&self, what: &str) {
        self.tell_all(|recorder| recorder.gap(what));
    }

    fn failed(&self, bug: &str) {
        self.tell_all(|recorder| recorder.failed(bug));
    }
}

fn route(
    decision: Decision<Pending>,
    step: Arc<dyn Step>,
    of: CallOf,
    yielded: Vec<YieldedStep>,
    call: &SyscallEntry<'_>,
) -> Decision<Routed> {
    let mounts = || call.decoded.accesses.iter().any(|access| access.effect == Effect::MountPoint);
    match decision {
        Decision::Continue => Decision::Continue,
        Decision::Counted => Decision::Counted,
        Decision::MayWait => Decision::MayWait,
        Decision::AwaitResult(pending) => {
            Decision::AwaitResult(Routed { step, pending, of, mounts: mounts(), yielded })
        }
        Decision::Refuse(errno) => Decision::Refuse(errno),
        Decision::Stop => Decision::Stop,
        Decision::Opened(file) => Decision::Opened(file),
        Decision::Postpone => Decision::Postpone,
        Decision::PostponeBehind(thread) => Decision::PostponeBehind(thread),
    }
}

fn executes(call: &SyscallEntry<'_>) -> bool {
    call.decoded.accesses.iter().any(|access| access.effect == Effect::Execute)
}

/// The process group of a process that a shell has forked, if it is a job, or the shell has ended.
fn group_of_job(process: Tid, shell: Tid) -> Option<Tid> {
    let group = getpgid(Some(pid(process))).ok()?;
    (getpgid(Some(pid(shell))) != Ok(group)).then(|| Tid(group.as_raw()))
}

fn pid(process: Tid) -> Pid {
    Pid::from_raw(process.0)
}

fn read_link(link: &str) -> Vec<u8> {
    rustix::fs::readlink(link, Vec::new()).map(|text| text.into_bytes()).unwrap_or_default()
}

/// What a process executes.
fn image(process: Tid) -> Exec {
    let line = std::fs::read(format!("/proc/{process}/cmdline")).unwrap_or_default();
    let line = line.strip_suffix(b"\0").unwrap_or(&line);
    let argv = line.split(|byte| *byte == 0).map(<[u8]>::to_vec).collect();
    Exec { exe: read_link(&format!("/proc/{process}/exe")), argv, ..Exec::default() }
}

/// Whether a process reads from a terminal.
fn is_at_terminal(process: Tid) -> bool {
    let input = read_link(&proc_fd::link(process, 0));
    input.starts_with(b"/dev/pts/") || input.starts_with(b"/dev/tty") || input == b"/dev/console"
}
