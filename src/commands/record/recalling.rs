//! Recalls an earlier run of a command, or keeps a recording to be recalled.
//!
//! Neighbours: `record.rs` asks before it records and when it has; `relay.rs` carries the command's output; the module
//! `recall` knows what may be recalled.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, IsTerminal as _, Seek as _, Write as _};
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::ffi::OsStringExt as _;
use std::path::Path;

use indicatif::BinaryBytes;
use rustix::fs::FileType;
use rustix::io::{FdFlags, fcntl_dupfd_cloexec, fcntl_getfd};
use serde_json::json;

use super::relay::{Relay, RelayEnd};
use super::report::Messages;
use super::setup::start_directory;
use crate::cli::{RecordingOptions, ReportFormat};
use crate::commands::exit::Exit;
use crate::commands::paths::counted;
use crate::library::{Library, Place};
use crate::recall::entry::{RecalledRun, of_recording};
use crate::recall::key::{CommandStart, Inheritance, Key, input_offset};
use crate::recall::output_log::{self, Stream};
use crate::recall::refusal::Allowed;
use crate::recall::replay::put_back;
use crate::recall::store::{Consistency, Hit, RecallAnswer, RecallStore, StoreLimits};
use crate::snapshot::{FileRecord, Snapshot, printable};
use crate::trace::launch::Program;
use crate::trace::proc_fd;

/// How many descriptors beyond standard error can be watched.
const DESCRIPTORS: usize = 32;

/// How many differences `--recall=check` names.
const NAMED: usize = 20;

/// What is asked for of a recall.
#[derive(Debug, Clone)]
pub struct RecallRequest {
    /// Whether the command runs in any case, and is compared with the earlier run.
    pub checks: bool,
    /// How sure to be that nothing has changed.
    pub consistency: Consistency,
    /// What the user allows.
    pub allowed: Allowed,
    /// How much is kept.
    pub limits: StoreLimits,
    /// Variables of the environment that do not count.
    pub ignored_variables: Vec<String>,
}

/// What the recording needs to know of it.
#[derive(Debug, Clone)]
pub struct RecallSetup {
    /// What the user allows.
    pub allowed: Allowed,
    /// The descriptors beyond standard error that the command inherits, with what they stand for.
    pub descriptors: Vec<(u32, Vec<u8>)>,
}

impl RecallSetup {
    /// The descriptors of which every use matters.
    pub fn numbers(&self) -> Vec<u32> {
        self.descriptors.iter().map(|(number, _)| *number).collect()
    }
}

/// A recording that is to be kept, from before the launch to its end.
pub struct Recalling {
    request: RecallRequest,
    descriptors: Vec<InheritedDescriptor>,
    /// The regular files that standard output and standard error go to, by device and inode number.
    output_files: Vec<(u64, u64)>,
    /// Standard input, if that is a regular file: this process gives its own up when the command has it.
    input: Option<OwnedFd>,
    store: RecallStore,
    key: Key,
    /// The earlier run that saw the same.
    earlier: Option<Box<Hit>>,
    /// What the command writes.
    log: File,
    relay: Relay,
    has_one_output: bool,
}

/// What is to be done.
pub enum Prepared {
    /// The earlier run stands for this one.
    Recalled(Exit),
    /// The command runs, and is kept if that is possible.
    Run(Option<Box<Recalling>>),
}

/// Recalls an earlier run, or prepares to keep this one.
pub fn prepare(
    request: RecallRequest,
    inheritance: io::Result<Inheritance>,
    options: &RecordingOptions,
    program: &Program,
    messages: &Messages,
) -> Prepared {
    let prepared = inheritance
        .map_err(|error| error.to_string())
        .and_then(|inheritance| try_prepare(request, &inheritance, options, program, messages));
    prepared.unwrap_or_else(|why| {
        messages.note(&format!("nothing is recalled, and this run is not kept for recall: {why}"));
        Prepared::Run(None)
    })
}

fn try_prepare(
    request: RecallRequest,
    inheritance: &Inheritance,
    options: &RecordingOptions,
    program: &Program,
    messages: &Messages,
) -> Result<Prepared, String> {
    check_standard_input()?;
    let library = Library::create(&Place::of_this_user()).map_err(|error| error.to_string())?;
    let store = RecallStore::of(&library);
    let has_one_output = has_one_output();
    let directory = start_directory().map_err(|error| error.message)?;
    let descriptors = inherited_descriptors().map_err(|error| format!("list descriptors: {error}"))?;
    let kinds: Vec<(u32, u32)> = descriptors.iter().map(|found| (found.number, found.kind)).collect();
    let start = CommandStart {
        program: program.path.to_bytes(),
        arguments: &options.command,
        directory: &directory,
        inheritance,
        ignored_variables: &request.ignored_variables,
        descriptors: &kinds,
        has_one_output,
    };
    let key = start.key().map_err(|error| format!("read standard input: {error}"))?;
    if descriptors.len() > DESCRIPTORS {
        return Err(format!("the command inherits more than {DESCRIPTORS} descriptors"));
    }
    let output_files = output_files();
    let found =
        store.find(&key, request.consistency).map_err(|error| format!("read the library: {error}"))?;
    let found = match found {
        RecallAnswer::Hit(hit) => match hit.path_among(&output_files) {
            Some(path) => RecallAnswer::Miss(Some(own_output(&path))),
            None => RecallAnswer::Hit(hit),
        },
        miss @ RecallAnswer::Miss(_) => miss,
    };
    let (earlier, why) = match found {
        RecallAnswer::Hit(hit) if request.checks => (Some(hit), None),
        RecallAnswer::Hit(hit) => match put_back(&library, &hit.entry) {
            Ok(()) => {
                hit.note_use();
                if let Some(offset) = hit.entry.input_offset {
                    // As the command would leave it to whoever reads on.
                    let _ = rustix::fs::seek(io::stdin(), rustix::fs::SeekFrom::Start(offset));
                }
                program.attributes.restore();
                return Ok(Prepared::Recalled(print(&hit, options, messages)));
            }
            Err(why) => (None, Some(why)),
        },
        RecallAnswer::Miss(why) => (None, why),
    };
    if let Some(why) = why {
        messages.note(&format!("not recalled: {why}"));
    }
    if io::stdout().is_terminal() {
        messages.note("the command writes to a pipe, since its output is kept (--recall)");
    }
    let input = input_offset().map_err(|error| format!("read standard input: {error}"))?;
    let input = input.map(|_| fcntl_dupfd_cloexec(io::stdin(), 3)).transpose();
    let input = input.map_err(|error| format!("duplicate standard input: {error}"))?;
    let log = store.unnamed_file().map_err(|error| format!("write in the library: {error}"))?;
    let relay = Relay::start(&log, request.limits.max_entry, has_one_output)
        .map_err(|error| format!("make a pipe for the output: {error}"))?;
    Ok(Prepared::Run(Some(Box::new(Recalling {
        request,
        descriptors,
        output_files,
        input,
        store,
        key,
        earlier,
        log,
        relay,
        has_one_output,
    }))))
}

/// Whether standard output and standard error go to the same place.
fn has_one_output() -> bool {
    let place =
        |fd: std::os::fd::BorrowedFd<'_>| rustix::fs::fstat(fd).map(|stat| (stat.st_dev, stat.st_ino)).ok();
    let (out, error) = (io::stdout(), io::stderr());
    place(out.as_fd()).is_some_and(|out| Some(out) == place(error.as_fd()))
}

/// The regular files that standard output and standard error go to, by device and inode number.
fn output_files() -> Vec<(u64, u64)> {
    let (out, error) = (io::stdout(), io::stderr());
    let stats = [out.as_fd(), error.as_fd()].into_iter().filter_map(|fd| rustix::fs::fstat(fd).ok());
    let regular = stats.filter(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile);
    regular.map(|stat| (stat.st_dev, stat.st_ino)).collect()
}

/// Why a command is not recalled whose output goes to a file that it uses itself: what it finds there is not what
/// it found when its output went to a pipe.
fn own_output(path: &[u8]) -> String {
    format!("its output goes to {}, which it uses itself", printable(path))
}

/// Checks that standard input is a regular file, whose content counts, or /dev/null, or closed: what another one gives is
/// not known before the command has read it.
fn check_standard_input() -> Result<(), String> {
    let input = io::stdin();
    let examined = rustix::fs::fstat(&input).and_then(|stat| Ok((stat, fcntl_getfd(&input)?)));
    let (stat, flags) = examined.map_err(|error| format!("examine standard input: {error}"))?;
    let kind = match FileType::from_raw_mode(stat.st_mode) {
        _ if flags.contains(FdFlags::CLOEXEC) => return Ok(()),
        FileType::RegularFile => return Ok(()),
        FileType::CharacterDevice if stat.st_rdev == rustix::fs::makedev(1, 3) => return Ok(()),
        FileType::Fifo => "pipe",
        FileType::Socket => "socket",
        _ if input.is_terminal() => "terminal",
        _ => "device or directory",
    };
    Err(format!("standard input is a {kind}, not a regular file or /dev/null"))
}

/// A descriptor beyond standard error that the command inherits.
struct InheritedDescriptor {
    number: u32,
    /// The file type bits of its mode.
    kind: u32,
    /// What it stands for, as procfs names it.
    target: Vec<u8>,
}

/// The descriptors beyond standard error that the command inherits.
fn inherited_descriptors() -> io::Result<Vec<InheritedDescriptor>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc/self/fd")? {
        let entry = entry?;
        let Some(number) = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else {
            continue;
        };
        // The one that lists them is gone.
        let Ok(facts) = std::fs::read_to_string(format!("/proc/self/fdinfo/{number}")) else { continue };
        let Ok(target) = std::fs::read_link(entry.path()) else { continue };
        let is_closed_in_command = proc_fd::flags(&facts).is_some_and(|flags| flags & libc::O_CLOEXEC != 0);
        if number > 2 && !is_closed_in_command {
            let kind = rustix::fs::stat(entry.path()).map_or(0, |stat| stat.st_mode & libc::S_IFMT);
            found.push(InheritedDescriptor { number, kind, target: target.into_os_string().into_vec() });
        }
    }
    found.sort_by_key(|descriptor| descriptor.number);
    Ok(found)
}

/// Prints what the earlier run printed.
fn print(hit: &Hit, options: &RecordingOptions, messages: &Messages) -> Exit {
    let (mut out, mut error) = (io::stdout().lock(), io::stderr().lock());
    let printed = output_log::replay(&hit.log, |stream, bytes| match stream {
        Stream::Out => out.write_all(bytes),
        Stream::Error => error.write_all(bytes),
    });
    let printed = printed.and_then(|()| out.flush());
    drop((out, error));
    let RecalledRun { recording, exit_status, milliseconds, .. } = &hit.entry;
    match printed {
        Err(why) if why.kind() == io::ErrorKind::BrokenPipe => return Exit::ClosedPipe,
        Err(why) => {
            messages.say(&format!("print what {recording} printed: {why}"));
            return Exit::Failure;
        }
        Ok(()) => {}
    }
    let seconds = *milliseconds as f64 / 1000.0;
    match options.report {
        _ if options.json => print_json(recording, *exit_status),
        Some(ReportFormat::Json) => print_json(recording, *exit_status),
        Some(ReportFormat::Summary) => {
            messages.say(&format!("recalled from {recording}, which took {seconds:.1} s"))
        }
        Some(ReportFormat::None) => {}
        None if !options.quiet && io::stderr().is_terminal() => {
            messages.say(&format!("recalled from {recording}, which took {seconds:.1} s"));
        }
        None => {}
    }
    Exit::Command(*exit_status)
}

fn print_json(recording: &str, exit_status: i32) {
    let report = json!({ "recalled_from": recording, "exit_status": exit_status });
    super::report::print(&format!("{report}\n"));
}

impl Recalling {
    /// What the recording needs to know.
    pub fn setup(&self) -> RecallSetup {
        let watched = self.descriptors.iter().filter(|descriptor| descriptor.target != b"/dev/null");
        let descriptors = watched.map(|descriptor| (descriptor.number, descriptor.target.clone())).collect();
        RecallSetup { allowed: self.request.allowed.clone(), descriptors }
    }

    /// Does `launch` with the pipes as standard output and standard error.
    ///
    /// # Errors
    /// The descriptors can't be replaced.
    pub fn with_pipes<T>(&mut self, launch: impl FnOnce() -> T) -> io::Result<T> {
        self.relay.as_outputs(launch)
    }

    /// Waits for the rest of the output, and keeps the recording in `directory` if it may be recalled; an exit if it
    /// differs from the earlier run that it is compared with.
    pub fn finish(self, directory: &Path, id: &str, messages: &Messages) -> Option<Exit> {
        let relayed = self.relay.wait();
        let why = match self.keep(relayed, directory, id, messages) {
            Ok(exit) => return exit,
            Err(why) => why,
        };
        messages.note(&format!("not kept for recall: {why}"));
        if self.request.checks && self.earlier.is_some() {
            messages.say("nothing can be compared with the earlier run (--recall=check)");
            return Some(Exit::Failure);
        }
        None
    }

    fn keep(
        &self,
        relayed: RelayEnd,
        directory: &Path,
        id: &str,
        messages: &Messages,
    ) -> Result<Option<Exit>, String> {
        let snapshot = Snapshot::open(directory).map_err(|error| error.to_string())?;
        let recall = snapshot.header().recall.clone().unwrap_or_default();
        if let Some(first) = recall.refused.first() {
            let more = recall.refused.len() - 1;
            let more = if more > 0 {
                format!(", and {}", counted(more, "more reason", "more reasons"))
            } else {
                String::new()
            };
            return Err(format!("{first}{more}"));
        }
        let most = BinaryBytes(self.request.limits.max_entry);
        match relayed {
            RelayEnd::Complete => {}
            RelayEnd::TooLarge => return Err(format!("its output is larger than {most} (max-entry)")),
            RelayEnd::Closed => return Err("nobody read its output to the end".to_owned()),
            RelayEnd::Failed => return Err("its output could not be written to the library".to_owned()),
        }
        let log_size = self.log.metadata().map_err(|error| error.to_string())?.len();
        let is_own_output = |record: &&FileRecord| {
            let states = [record.before.present(), record.after.present()];
            states.into_iter().flatten().any(|state| self.output_files.contains(&state.identity()))
        };
        if let Some(record) = snapshot.files().iter().find(is_own_output) {
            return Err(own_output(&record.path));
        }
        let (entry, set, fingerprint) =
            of_recording(&snapshot, id, log_size, &self.request.ignored_variables)?;
        let offset = |input: &OwnedFd| rustix::fs::seek(input, rustix::fs::SeekFrom::Current(0));
        let input_offset = self.input.as_ref().map(offset).transpose().map_err(|error| error.to_string())?;
        let entry = RecalledRun { input_offset, ..entry };
        if entry.size > self.request.limits.max_entry {
            return Err(format!("it would take {}, more than {most} (max-entry)", BinaryBytes(entry.size)));
        }
        if let Some(earlier) = &self.earlier {
            let differences = self.differences(earlier, &entry).map_err(|error| error.to_string())?;
            if !differences.is_empty() {
                let name = &earlier.entry.recording;
                messages
                    .say(&format!("the same inputs gave another result than in {name} (--recall=check):"));
                differences.iter().take(NAMED).for_each(|difference| messages.say(difference));
                if differences.len() > NAMED {
                    messages.say(&format!("and {} more", differences.len() - NAMED));
                }
                return Ok(Some(Exit::Failure));
            }
            return Ok(None);
        }
        (&self.log).rewind().map_err(|error| error.to_string())?;
        self.store
            .put(&self.key, (&set, &fingerprint), &entry, &self.log, self.request.limits)
            .map_err(|error| format!("write in the library: {error}"))?;
        Ok(None)
    }

    /// What a run left or printed that its earlier run did not.
    fn differences(&self, earlier: &Hit, now: &RecalledRun) -> io::Result<Vec<String>> {
        let mut found = Vec::new();
        if earlier.entry.exit_status != now.exit_status {
            found.push(format!(
                "it ended with status {}, and then with {}",
                earlier.entry.exit_status, now.exit_status
            ));
        }
        if !output_log::is_same(&earlier.log, &self.log, self.has_one_output)? {
            found.push("it printed something else".to_owned());
        }
        let by_path = |entry: &RecalledRun| -> BTreeMap<Vec<u8>, String> {
            entry.outputs.iter().map(|output| (output.path.clone(), output.after.clone())).collect()
        };
        let (then, now) = (by_path(&earlier.entry), by_path(now));
        for path in then.keys().chain(now.keys().filter(|path| !then.contains_key(*path))) {
            let shown = printable(path);
            match (then.get(path), now.get(path)) {
                (Some(one), Some(other)) if one == other => {}
                (Some(_), Some(_)) => found.push(format!("{shown} differs")),
                (Some(_), None) => found.push(format!("{shown} was not changed any more")),
                (None, _) => found.push(format!("{shown} was changed, too")),
            }
        }
        Ok(found)
    }
}
