//! What all agents have in common: our shell, whether the kernel lets us trace, privileges, the library.

use std::fs::{self, File};
use std::path::Path;

use indicatif::BinaryBytes;

use super::{Check, calls};
use crate::agents::installed::ProgramCopy;
use crate::agents::{PROGRAM, Surroundings};
use crate::cli::Enforce;
use crate::commands::check::Rules;
use crate::commands::config::{Config, Limits};
use crate::commands::init::{PRIVILEGES, beside_us, running_shell};
use crate::commands::record::{places_here, workspace_here};
use crate::commands::shell::is_switched_off;
use crate::library::{Library, Place};
use crate::observe::policy::ignore::Environment;
use crate::snapshot::layout::room_in;
use crate::snapshot::{printable, printable_path};
use crate::trace::proc_status::ProcStatus;
use crate::trace::question::is_recorded;
use crate::trace::sys::{Tid, has_own_procfs};

/// The capability that ptrace(2) asks for where Yama wants one.
const CAP_SYS_PTRACE: u32 = 19;

/// All checks, in the order of their importance.
pub fn checks() -> Vec<Check> {
    let status = ProcStatus::of(Tid(std::process::id().cast_signed()));
    let line = |name: &str| status.as_ref().and_then(|status| status.line(name));
    let mut checks = vec![shell()];
    checks.extend(copy());
    checks.extend(switched_off());
    let obstacle = outer_tracer(line("TracerPid:")).or_else(|| yama(line("CapEff:"))).or_else(procfs);
    let root = Place::of_this_user().root;
    let nearest = root.ancestors().find(|above| above.is_dir());
    checks.extend(calls::checks(obstacle.is_none(), nearest));
    checks.extend(obstacle);
    checks.extend(configuration());
    checks.push(policy());
    let config = Config::load(&Environment::from_process(b"/")).unwrap_or_default();
    checks.extend(privileges(line("NoNewPrivs:"), &config));
    checks.push(library());
    checks
}

fn shell() -> Check {
    match running_shell() {
        Ok(shell) => Check::fine("shell", shell),
        Err(error) => Check::finding(
            "shell",
            format!("{error:#}"),
            "install both programs into one directory: cargo install --path .",
        ),
    }
}

/// What is wrong with the copy of this program that agents are given, if they are.
fn copy() -> Option<Check> {
    let copy = ProgramCopy::of(&Surroundings::of_this_process().ok()?).filter(ProgramCopy::exists)?;
    let path = printable_path(&copy.path(PROGRAM));
    let advice = "agent-snapshot init AGENT copies this program there";
    match copy.is_same(&beside_us(PROGRAM).ok()?) {
        Ok(true) => None,
        Ok(false) => Some(
            Check::note("program", format!("{path}, which agents run, is of another version")).advise(advice),
        ),
        Err(error) => Some(Check::finding("program", format!("{path} can't be read: {error}"), advice)),
    }
}

fn switched_off() -> Option<Check> {
    is_switched_off().then(|| {
        Check::finding("environment", "AGENT_SNAPSHOT=off: nothing is recorded", "unset AGENT_SNAPSHOT")
    })
}

/// A process has one tracer, so what is traced already can't be recorded.
fn outer_tracer(tracer: Option<&str>) -> Option<Check> {
    if is_recorded() {
        return Some(Check::finding(
            "ptrace",
            "this is being recorded, so that it can't be recorded again",
            "run this outside of recorded commands",
        ));
    }
    let tracer = tracer.filter(|tracer| *tracer != "0")?;
    let comm = fs::read_to_string(format!("/proc/{tracer}/comm")).unwrap_or_default();
    let comm = printable(comm.trim_end().as_bytes()).into_owned();
    Some(Check::finding(
        "ptrace",
        format!("process {tracer} ({comm}) traces this one, so that it can't be recorded again"),
        "run this outside of recorded commands and debuggers",
    ))
}

/// What a recording reads of its processes is read there.
fn procfs() -> Option<Check> {
    let advice = "mount a procfs there: unshare --mount-proc, bwrap --proc /proc";
    let found = "/proc does not show the processes of this PID namespace";
    (!has_own_procfs()).then(|| Check::finding("procfs", found, advice))
}

fn yama(capabilities: Option<&str>) -> Option<Check> {
    let scope = fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope").ok()?;
    let set = capabilities.and_then(|set| u64::from_str_radix(set, 16).ok()).unwrap_or_default();
    let may_trace = set & 1 << CAP_SYS_PTRACE != 0;
    match scope.trim() {
        "3" => Some(Check::finding(
            "ptrace",
            "kernel.yama.ptrace_scope is 3: nobody may trace",
            "set it to 1 in /etc/sysctl.d and start the machine again",
        )),
        "2" if !may_trace => Some(Check::finding(
            "ptrace",
            "kernel.yama.ptrace_scope is 2: only root may trace",
            "sudo sysctl kernel.yama.ptrace_scope=1",
        )),
        _ => None,
    }
}

/// What is wrong with the configuration.
fn configuration() -> Option<Check> {
    let why = Limits::load().err()?;
    Some(Check::finding("config", why, "correct the file: until then, nothing is pruned after a recording"))
}

/// Whether there are rules for what is recorded here, and whether they are enforced.
fn policy() -> Check {
    let configured = Rules::default().with_configured(&workspace_here());
    let rules = configured.and_then(|rules| {
        if !rules.is_empty() {
            places_here().and_then(|places| rules.compiled(&places))?;
        }
        Ok(rules)
    });
    let rules = match rules {
        Ok(rules) => rules,
        Err(why) => {
            return Check::finding(
                "policy",
                why,
                "correct the file: until then, nothing that would be recorded is run",
            );
        }
    };
    if rules.is_empty() {
        return Check::note(
            "policy",
            "no rules are set: there is no [policy] in config.toml, and no .agent-snapshot.toml here",
        );
    }
    let files: Vec<_> = rules.files().map(|file| printable(file.as_os_str().as_encoded_bytes())).collect();
    let files = files.join(" and ");
    match rules.enforce {
        None => Check::note("policy", format!("the rules of {files} are judged, and not enforced"))
            .advise("enforce = true, in [policy] of config.toml"),
        Some(Enforce::BestEffort) => {
            Check::fine("policy", format!("the rules of {files} are enforced as far as possible"))
        }
        Some(Enforce::Refuse) => Check::fine("policy", format!("the rules of {files} are enforced")),
        Some(Enforce::End) => Check::fine(
            "policy",
            format!("the rules of {files} are enforced, and the first refusal ends a command"),
        ),
    }
}

fn privileges(no_new_privileges: Option<&str>, config: &Config) -> Option<Check> {
    if no_new_privileges == Some("1") {
        let found =
            "no_new_privs is set: sudo and other set-ID programs have no privilege here, recorded or not";
        return Some(Check::note("privileges", found));
    }
    if rustix::process::geteuid().is_root() {
        return None;
    }
    match config.shell.unrecorded.as_slice() {
        [] => Some(Check::note("privileges", PRIVILEGES)),
        programs => {
            let programs: Vec<_> = programs.iter().map(|program| printable(program.as_bytes())).collect();
            Some(Check::fine(
                "privileges",
                format!("config.toml has run unrecorded: {}", programs.join(", ")),
            ))
        }
    }
}

fn library() -> Check {
    let place = Place::of_this_user();
    let shown = printable_path(&place.root);
    if let Err(error) = Library::find() {
        return Check::finding(
            "library",
            error.to_string(),
            "make it yours alone, or choose another: AGENT_SNAPSHOT_LIBRARY",
        );
    }
    let room = nearest_directory(&place.root).and_then(|directory| room_in(&directory).ok());
    match (room, place.instead) {
        (Some(0), _) => Check::finding(
            "library",
            format!("{shown}: its filesystem is so full that no contents are kept"),
            "make room there, or choose another place: AGENT_SNAPSHOT_LIBRARY",
        ),
        (room, instead) => {
            let found = instead.as_ref().unwrap_or(&shown);
            let room = room.map(|bytes| format!(", room for {}", BinaryBytes(bytes))).unwrap_or_default();
            let found = format!("{found}{room}");
            if instead.is_some() { Check::note("library", found) } else { Check::fine("library", found) }
        }
    }
}

/// The nearest directory above or at a path that can be opened.
fn nearest_directory(path: &Path) -> Option<File> {
    path.ancestors().find_map(|above| File::open(above).ok())
}
