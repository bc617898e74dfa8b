//! Records a command, with processes of our own.
//!
//! - `setup.rs`: all decisions before the launch; `landlock.rs`: the domain of the command, with `--landlock`.
//! - `front.rs`: the process that the user waits for, the command's parent; `witness.rs`: the witness beside it.
//! - `tracing.rs`: the process that traces; `process_tree.rs`, what it knows of the tree; `control.rs`, its thread that
//!   listens to the front and to signals; `journal.rs` starts its journal, and `pruning.rs` `prune`.
//! - `steps.rs`: in its place for a session, which has a recording for each step.
//! - `channel.rs`: the messages between front and tracing process; `held.rs`: the bytes that only a descriptor holds,
//!   at both ends; `descriptors.rs`: the inherited descriptors, and waiting for others.
//! - `bundle.rs`: writes the snapshot; `report.rs`: the report.
//! - `recalling.rs`: recalls an earlier run, or keeps this one to be recalled; `relay.rs`: the process that carries the
//!   command's output then.

mod bundle;
mod channel;
mod control;
mod descriptors;
mod front;
mod held;
mod journal;
mod landlock;
mod process_tree;
mod pruning;
mod recalling;
mod relay;
mod report;
mod setup;
mod steps;
mod tracing;
mod witness;

use std::collections::HashMap;
use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use rustix::fs::{AtFlags, CWD, StatxFlags, statx};
use rustix::io::Errno;
use rustix::process::{PidfdFlags, getpid, pidfd_open};

use super::exit::Exit;
use super::paths::shell_word;
use super::recover::{add_to_log, not_recovered};
use crate::cli::{self, IfUnavailable};
use crate::library::ID_LENGTH;
use crate::recall::key::Inheritance;
use crate::snapshot::layout::SnapshotDir;
use crate::snapshot::printable;
use crate::snapshot::recover::{self, Recovery};
use crate::trace::attributes::ProcessAttributes;
use crate::trace::filter::Interception;
use crate::trace::launch::{self, InterceptionOptions, Program};
use crate::trace::question::is_recorded;
use crate::trace::sys;

use channel::{CommandEnd, RecordingOutcome};
use descriptors::fill_standard_streams;
pub use descriptors::wait_readable;
use front::{Ending, Front};
use landlock::Domain;
pub use recalling::RecallRequest;
use recalling::{Prepared, Recalling};
pub use report::{Messages, ShellNotes};
pub use setup::{Destination, SessionRules, has_rules, places_here, workspace_here};
use setup::{Setup, program, set_up};
use tracing::Handover;

/// Whether there is a program of this name or path that a recording could start.
pub fn is_program(name: &OsString) -> bool {
    setup::find_program(name).is_ok()
}

/// Records the command of `options`; if a signal ended it, that signal ends this process, too.
pub fn run(options: cli::RecordingOptions, destination: Destination, recall: Option<RecallRequest>) -> Exit {
    let messages = Messages::new(options.quiet);
    run_program(options, None, destination, recall, &messages)
}

/// Records the program in `file`, with the arguments of `options`, into the library, as a shell: its status is the
/// command's, whatever becomes of the recording.
pub fn run_as_shell(options: cli::RecordingOptions, file: PathBuf, messages: &Messages) -> Exit {
    run_program(options, Some(file), Destination::Library, None, messages)
}

fn run_program(
    options: cli::RecordingOptions,
    file: Option<PathBuf>,
    destination: Destination,
    recall: Option<RecallRequest>,
    messages: &Messages,
) -> Exit {
    // Before any descriptor of ours is opened, so that closed ones stay closed in the command.
    fill_standard_streams();
    // Before they are changed.
    let recall = recall.map(|request| (request, sys::io_priority().and_then(Inheritance::of_this_process)));
    let attributes = ProcessAttributes::replace();
    let rules = match setup::rules(&options, &destination) {
        Ok(rules) => rules,
        Err(refusal) => {
            messages.say(&refusal.message);
            return refusal.exit;
        }
    };
    let has_rules = rules.is_some();
    // A shell's command is to end as it does without a recording, unless it is to do less.
    let must_hold = match messages.are_of_shell() {
        true => rules.as_ref().is_some_and(|rules| rules.enforced.is_some()),
        false => has_rules,
    };
    let unavailable = options.if_unavailable.unwrap_or(match destination {
        Destination::Library | Destination::Session(_) if !must_hold => IfUnavailable::Run,
        // What is not recorded would never be judged.
        Destination::Library | Destination::Session(_) | Destination::Directory(_) => IfUnavailable::Fail,
    });
    // To whoever records all that they run, the command matters more than its recording.
    let is_optional = !matches!(destination, Destination::Directory(_)) && unavailable == IfUnavailable::Run;
    let strict = options.strict;
    let program = match program(&options, file, attributes) {
        Ok(program) => program,
        Err(refusal) => {
            messages.say(&refusal.message);
            return refusal.exit;
        }
    };
    let recalling = match recall {
        None => None,
        Some((request, inheritance)) => {
            match recalling::prepare(request, inheritance, &options, &program, messages) {
                Prepared::Recalled(exit) => return exit,
                Prepared::Run(recalling) => recalling,
            }
        }
    };
    if unavailable == IfUnavailable::Run && is_recorded() {
        messages.say("this is recorded already: there is no snapshot of its own");
        return execute(&program, messages);
    }
    let recall = recalling.as_ref().map(|recalling| recalling.setup());
    let (setup, directory) = match set_up(options, program.clone(), rules, recall, &destination, messages) {
        Ok(decided) => decided,
        Err(refusal) if is_optional => return run_unrecorded(&refusal.message, &program, messages),
        Err(refusal) => {
            messages.say(&refusal.message);
            return refusal.exit;
        }
    };
    setup.ignore.notes().iter().for_each(|note| messages.note(note));
    let named = setup.options.command.first().map(|name| printable(name.as_bytes()).into_owned());
    let named = named.unwrap_or_default();
    let made = directory.made().clone();
    let (id, path) = (setup.id.clone(), directory.real_path().to_owned());
    let mut recalling = recalling;
    let (mut ending, directory) = match start(setup, directory, recalling.as_deref_mut(), messages) {
        Ok((front, directory)) => {
            messages.has_begun(id.get(..ID_LENGTH).unwrap_or_default());
            (front.run(), Some(directory))
        }
        Err(why) => (Ending::Denied(why), None),
    };
    if let (Ending::Lost(held), Some(directory)) = (&mut ending, directory) {
        let mut held = std::mem::take(held);
        if matches!(destination, Destination::Session(_)) {
            steps::recover_lost(held, messages);
        } else {
            recover_lost(directory, held.remove(&0).unwrap_or_default(), messages);
        }
    }
    if !ending.leaves_a_snapshot() {
        // Directories that are not empty stay.
        made.remove();
    }
    match ending {
        Ending::Recorded(end, done) => {
            let id = id.get(..ID_LENGTH).unwrap_or_default();
            let difference = recalling
                .filter(|_| done.error.is_none())
                .and_then(|recalling| recalling.finish(&path, id, messages));
            let failure = report_outcome(&done, strict, messages).or(difference);
            // What was refused, the outcome says.
            let failure = failure.or_else(|| done.at_refusal.then_some(Exit::Failure));
            failure.unwrap_or_else(|| end_as(end))
        }
        Ending::Detached(end) => {
            if has_rules && !messages.are_of_shell() {
                messages
                    .say("the recording goes on, and its rules are not judged; check judges it at its end");
            }
            if has_rules && strict { Exit::Failure } else { end_as(end) }
        }
        Ending::TimedOut(done) => report_outcome(&done, strict, messages).unwrap_or(Exit::TimedOut),
        Ending::Denied(why) if unavailable == IfUnavailable::Run => run_unrecorded(&why, &program, messages),
        Ending::Failed(why) if is_optional => run_unrecorded(&why, &program, messages),
        Ending::Denied(why) | Ending::Failed(why) => {
            messages.say(&why);
            Exit::Failure
        }
        Ending::NotExecuted(errno) => not_executed(&named, &io::Error::from_raw_os_error(errno), messages),
        Ending::Lost(_) => Exit::Failure,
    }
}

/// Recovers what the killed tracing process had recorded, with the files that only a descriptor holds.
fn recover_lost(directory: SnapshotDir, mut held: HashMap<u32, File>, messages: &Messages) {
    let lost = "the tracing process was killed, and the command with it";
    let path = directory.real_path().to_owned();
    let recovered = match (held.remove(&held::JOURNAL), held.remove(&held::BLOBS)) {
        (Some(journal), Some(blobs)) => recover::put_back(directory, &journal, &blobs),
        _ => Ok(directory),
    };
    let recovered = recovered.and_then(|directory| recover::recover(directory, held));
    if recovered.is_ok() {
        add_to_log(&path, &mut |sentence| messages.say(sentence));
    }
    match recovered {
        Ok(Recovery::Done(recovered)) => {
            let place = shell_word(recovered.path.as_os_str().as_bytes());
            messages.say(&format!("{lost}; what had been changed was recovered and is in {place}"));
            not_recovered(&recovered).iter().for_each(|sentence| messages.say(sentence));
        }
        Ok(Recovery::Nothing | Recovery::Unneeded) => {
            messages.say(&format!("{lost}; nothing had been changed, and there is no snapshot"));
        }
        Err(error) => messages.say(&format!("{lost}; there is no snapshot: {error}")),
    }
}

/// Reports the outcome of the recording; an exit if that is a failure of ours.
fn report_outcome(done: &RecordingOutcome, strict: bool, messages: &Messages) -> Option<Exit> {
    if let Some(error) = &done.error {
        messages.warn_unrecorded(&format!("no snapshot was written: {error}"));
        return (!messages.are_of_shell()).then_some(Exit::Failure);
    }
    done.notes.iter().for_each(|note| messages.say(note));
    report::print(&done.report);
    let failure = done.policy.as_ref().and_then(|policy| {
        policy.findings.iter().for_each(|finding| messages.say(finding));
        policy.failure.as_deref()
    });
    if strict && !done.complete {
        messages.say("the recording is incomplete (--strict)");
        return Some(Exit::Failure);
    }
    if let Some(failure) = failure {
        let how = if strict { " (--strict)" } else { "" };
        messages.say(&format!("{failure}{how}"));
        return strict.then_some(Exit::Failure);
    }
    None
}

fn end_as(end: CommandEnd) -> Exit {
    if let CommandEnd::Killed(signal) = end {
        front::die_by(signal);
    }
    Exit::Command(end.exit_status())
}

/// Runs the program, and says why that is not recorded.
fn run_unrecorded(why: &str, program: &Program, messages: &Messages) -> Exit {
    messages.warn_unrecorded(&format!("{why}; the command runs unrecorded"));
    execute(program, messages)
}

/// Becomes the program.
fn execute(program: &Program, messages: &Messages) -> Exit {
    let error = program.execute();
    let named = program.argv.first().map(|name| printable(name.to_bytes()));
    not_executed(&named.unwrap_or_default(), &error, messages)
}

/// Reports why the command was not executed.
pub fn not_executed(named: &str, error: &io::Error, messages: &Messages) -> Exit {
    messages.say(&format!("execute {named}: {error}"));
    match error.raw_os_error() {
        Some(libc::ENOENT | libc::ENOTDIR) => Exit::NotFound,
        _ => Exit::NotExecutable,
    }
}

/// Starts the command's process, and the one that traces it; in those, this does not return.
fn start<'m>(
    setup: Setup,
    directory: SnapshotDir,
    recalling: Option<&mut Recalling>,
    messages: &'m Messages,
) -> Result<(Front<'m>, SnapshotDir), String> {
    let failed = |call: &'static str| move |error: io::Error| format!("start the recording: {call}: {error}");
    let no_statx = |error: Errno| format!("nothing can be recorded without statx(2): {error}");
    statx(CWD, "/", AtFlags::empty(), StatxFlags::INO).map_err(no_statx)?;
    let wanted = match setup.options.calls.mechanism {
        cli::Mechanism::Auto | cli::Mechanism::Inside => Interception::Notifications,
        cli::Mechanism::Stops => Interception::Stops,
        cli::Mechanism::EveryCall => Interception::EveryCall,
    };
    let descriptors = setup.recall.as_ref().map(|recall| recall.numbers()).unwrap_or_default();
    let for_recall = setup.recall.is_some();
    let wanted = InterceptionOptions {
        interception: wanted,
        for_recall,
        descriptors: &descriptors,
        refusable: setup.refusable(),
        inside: setup.options.calls.mechanism == cli::Mechanism::Inside
            && !for_recall
            && setup.refusable().is_none(),
    };
    let domain = setup.domain(&directory)?;
    let confine = || domain.as_ref().map_or(Ok(()), Domain::enter);
    let launch = || launch::spawn(&setup.program, wanted, confine);
    let spawned = match recalling {
        Some(recalling) => recalling.with_pipes(launch).map_err(failed("pipe"))?,
        None => launch(),
    };
    let spawned = spawned.map_err(|error| error.to_string())?;
    let command = spawned.command;
    let signals = || sys::signal_descriptor().map_err(failed("signalfd"));
    let (ours, theirs) = (signals()?, signals()?);
    let front = pidfd_open(getpid(), PidfdFlags::empty()).map_err(io::Error::from);
    let front = front.map_err(failed("pidfd_open"))?;
    let handover = Handover { front, spawned, signals: theirs };
    let (channel, held, setup, directory) =
        tracing::start(setup, directory, handover).map_err(failed("fork"))?;
    let Setup { options, inherited, .. } = setup;
    let front = Front::new(channel, held, command, ours, options.survivors, messages, inherited.descriptors);
    Ok((front, directory))
}
