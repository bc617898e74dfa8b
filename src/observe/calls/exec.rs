//! Programs that are executed, and the interpreters that the kernel opens for them.
//!
//! Neighbours: `program.rs` reads which ones a file names, `changes.rs` has the calls.

use std::fs::File;

use super::part::Part;
use super::program;
use crate::fs::{self, FileStat};
use crate::observe::ledger::ids::ProcessId;
use crate::observe::recording::{Classification, Recording};
use crate::observe::resolve::view::Unseen;
use crate::observe::resolve::{self, Resolved, Unresolved};
use crate::snapshot::secrets::redact;
use crate::snapshot::{Exec, Operation, Operations, WarningKind};
use crate::trace::memory::{ARGV_LIMIT, Memory};
use crate::trace::observer::Caller;
use crate::trace::syscalls::{Access, DecodedSyscall, Dirfd, Effect, FileRef, Resolve};

/// How many interpreters the kernel follows (execve(2)), the last one's own loader included.
const MAX_INTERPRETERS: usize = 6;

#[derive(Debug)]
pub struct PendingExec {
    pub image: Exec,
    pub interpreters: Vec<Resolved>,
    /// How many of them scripts name, or binfmt_misc; the one after those is an ELF file's loader.
    of_scripts: usize,
}

impl PendingExec {
    /// The paths of the interpreters that scripts name, or binfmt_misc.
    pub fn of_scripts(&self) -> Vec<Vec<u8>> {
        self.interpreters[..self.of_scripts].iter().map(|interpreter| interpreter.path.clone()).collect()
    }

    /// The program that runs in the end, where no other format of the kernel takes it.
    fn runs(&self) -> &[u8] {
        match self.interpreters[..self.of_scripts].last() {
            Some(interpreter) => &interpreter.path,
            None => &self.image.exe,
        }
    }
}

impl Recording {
    pub fn prepare_exec(
        &mut self,
        caller: Caller,
        decoded: &DecodedSyscall,
        memory: &dyn Memory,
        exe: Vec<u8>,
        file: Option<File>,
    ) -> PendingExec {
        let (argv, argv_truncated) =
            decoded.argv.and_then(|address| memory.read_argv(address, ARGV_LIMIT).ok()).unwrap_or_default();
        let image = self.masked(Exec { exe, argv, argv_truncated, ..Exec::default() });
        let (interpreters, of_scripts) = self.interpreters(caller, file);
        PendingExec { image, interpreters, of_scripts }
    }

    /// A program without the secrets in its arguments, unless those are recorded.
    pub fn masked(&self, mut image: Exec) -> Exec {
        image.redacted = self.masks_arguments && redact(&mut image.argv);
        image
    }

    /// The interpreters that the kernel opens for a program, and how many of them scripts name.
    pub fn interpreters(&mut self, caller: Caller, program: Option<File>) -> (Vec<Resolved>, usize) {
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

    /// Corrects the interpreters of a program that was executed: binfmt_misc may have chosen others.
    pub fn find_what_runs(&mut self, caller: Caller, exec: &mut PendingExec) {
        let link = format!("/proc/{}/exe", caller.tid).into_bytes();
        if resolve::read_magic_link(&link).is_ok_and(|runs| runs == exec.runs()) {
            return;
        }
        // Of another mount namespace it may be the same file by another name, or one that has none here.
        let Ok(Resolved { path, stat: Some(stat), .. }) = self.object_of_link(caller, &link) else { return };
        let identity = |stat: &FileStat| (stat.st_dev, stat.st_ino);
        let expected = fs::lstat(exec.runs()).ok().flatten();
        if expected.as_ref().map(identity) == Some(identity(&stat)) {
            return;
        }
        exec.interpreters.truncate(exec.of_scripts);
        let (its, _) = self.interpreters(caller, fs::open_regular(&path).ok());
        exec.interpreters.push(Resolved::object(path, stat));
        exec.of_scripts += 1;
        exec.interpreters.extend(its);
    }

    /// Whether a process that had our credentials still has them after it has executed the program at `parts`.
    pub fn keeps_credentials(&self, caller: Caller, parts: &[Part], exec: &PendingExec) -> bool {
        let interpreters = exec.interpreters.iter().map(|interpreter| &interpreter.stat);
        let mut files = parts.iter().map(|part| &part.stat).chain(interpreters);
        let has_no_set_id = |stat: FileStat| stat.st_mode & (libc::S_ISUID | libc::S_ISGID) == 0;
        !parts.is_empty()
            && files.all(|stat| stat.is_some_and(has_no_set_id))
            && self.credentials.as_ref().is_some_and(|ours| ours.survive_execve(caller.tid))
    }

    /// A program that is executed at a path that has no record: its name and, where it may be read, its file.
    pub fn unseen_program(
        &mut self,
        caller: Caller,
        access: &Access,
        unseen: &Unseen,
    ) -> Option<(Vec<u8>, Option<File>)> {
        match unseen {
            Unseen::Unresolved(Unresolved::Served(path)) => {
                (access.effect == Effect::Execute).then(|| (path.clone(), None))
            }
            Unseen::Private(place) => self.program_in_view(caller, access, &place.path),
            Unseen::InForeignMountNamespace(path) => self.program_in_view(caller, access, path),
            Unseen::Unresolved(_) => self.unnamed_program(caller, access),
        }
    }

    /// A program that is executed by a path of the caller's namespace alone.
    fn program_in_view(
        &self,
        caller: Caller,
        access: &Access,
        path: &[u8],
    ) -> Option<(Vec<u8>, Option<File>)> {
        let reached = [format!("/proc/{}/root", caller.tid).as_bytes(), path].concat();
        let file = || fs::open_regular(&reached).ok();
        (access.effect == Effect::Execute).then(|| (path.to_vec(), file()))
    }

    /// A program that is executed without having a name, by a descriptor or a magic link: the symlink's text,
    /// and the file where it may be read.
    fn unnamed_program(&mut self, caller: Caller, access: &Access) -> Option<(Vec<u8>, Option<File>)> {
        if access.effect != Effect::Execute {
            return None;
        }
        let link = self.magic_link(caller, access)?;
        let text = resolve::read_magic_link(&link).ok()?;
        Some((text, fs::open_regular_behind(&link).ok()))
    }

    /// Resolves a path that the kernel opens by itself for `caller`.
    pub fn resolve_for_kernel(&mut self, caller: Caller, path: &[u8]) -> Option<Resolved> {
        let access = Access {
            file: FileRef::Path { dirfd: Dirfd::Cwd, path: path.to_vec() },
            effect: Effect::Execute,
            follow: true,
            resolve: Resolve::default(),
        };
        self.locate(caller, &access).ok()
    }

    /// Records the interpreters that an execve which failed has searched for.
    pub fn missed_interpreters(&mut self, process: ProcessId, interpreters: Vec<Resolved>) {
        for interpreter in interpreters {
            self.cross(process, &interpreter.crossed);
            match self.classify(interpreter.path, interpreter.stat.as_ref()) {
                Classification::Recorded(record) => {
                    self.ledger.merge(record, Operation::Existence.into(), process);
                }
                Classification::Suppressed(rule, _) => self.policy.suppressed.read(rule),
                Classification::Own => {}
            }
        }
    }

    pub fn executed_file(
        &mut self,
        process: ProcessId,
        classification: &Classification,
        path: &[u8],
        stat: Option<&FileStat>,
    ) {
        let operations = Operations::from(Operation::Read).with(Operation::Execute);
        match classification {
            Classification::Recorded(name) => {
                if let Some(rule) = self.left_out_by(*name) {
                    return self.policy.suppressed.used(rule, path, operations, process);
                }
                if let Some(stat) = stat {
                    self.protector().read_content(*name, path, stat);
                }
                self.ledger.merge(*name, operations, process);
            }
            Classification::Suppressed(rule, _) => {
                self.policy.suppressed.used(*rule, path, operations, process)
            }
            Classification::Own => {}
        }
    }

    /// Under no_new_privs, which our filter needs without privilege, a set-ID bit has no effect.
    pub fn note_set_id(&mut self, caller: Caller, path: &[u8], stat: &FileStat) {
        let process = self.processes.id(caller.tgid);
        let set_user = stat.st_mode & libc::S_ISUID != 0 && stat.st_uid != self.policy.uid;
        let group = rustix::process::getegid().as_raw();
        let set_group = stat.st_mode & libc::S_ISGID != 0 && stat.st_gid != group;
        if self.policy.drops_set_id && (set_user || set_group) && has_names_of(caller, stat) {
            self.byte_store.capture.losses().privilege(path);
            self.warnings.note(WarningKind::Setuid, Some(process), || {
                format!("{} ran without the privilege of its set-ID bit", String::from_utf8_lossy(path))
            });
        }
    }
}

/// Whether the owner of a program exists in the user namespace of the thread that executes it: otherwise a set-ID bit
/// has no effect there (user_namespaces(7)).
fn has_names_of(caller: Caller, stat: &FileStat) -> bool {
    let Ok(map) = std::fs::read_to_string(format!("/proc/{}/uid_map", caller.tid)) else { return true };
    let is_mapped = |line: &str| {
        let mut numbers = line.split_ascii_whitespace().map(|number| number.parse::<u64>().ok());
        let (Some(Some(first)), Some(Some(count))) = (numbers.nth(1), numbers.next()) else { return true };
        (first..first.saturating_add(count)).contains(&u64::from(stat.st_uid))
    };
    map.lines().any(is_mapped)
}
