//! The file that the kernel writes when a signal dumps core (core(5)).
//!
//! Where it will be is known when the signal is about to be delivered; whether it was written,
//! when the process has ended.

use crate::fs::{self, FileStat};
use crate::observe::capture::Threat;
use crate::observe::ledger::apply::{Change, Kind};
use crate::observe::ledger::now_us;
use crate::observe::policy::suppressed::LeftOut;
use crate::observe::recording::{Classification, ExpectedCoreDump, Recording};
use crate::observe::resolve::Resolved;
use crate::snapshot::{Operation, WarningKind};
use crate::trace::observer::Caller;
use crate::trace::sys::Tid;
use crate::trace::syscalls::{Access, Dirfd, Effect, FileRef, Resolve};
use crate::trace::wait_status::End;

/// What `core_pattern` says.
#[derive(Debug, PartialEq, Eq)]
enum Pattern {
    /// A program takes it.
    Pipe,
    /// A path; relative to the process's working directory.
    Path(Vec<u8>),
    /// It holds what we can't foretell.
    Unknown,
}

impl Recording {
    /// Keeps what is at the place of a core dump that a signal may cause.
    pub fn expect_core_dump(&mut self, caller: Caller, signal: i32) {
        let pattern = std::fs::read("/proc/sys/kernel/core_pattern").unwrap_or_default();
        let uses_pid =
            std::fs::read("/proc/sys/kernel/core_uses_pid").is_ok_and(|flag| flag.starts_with(b"1"));
        let Pattern::Path(path) = expand(pattern.trim_ascii_end(), uses_pid, caller, signal) else { return };
        let file = FileRef::Path { dirfd: Dirfd::Cwd, path };
        let resolve = Resolve::default();
        let access = Access { file, effect: Effect::MakeNode, follow: false, resolve };
        let place = self.locate(caller, &access);
        if self.enforce_core_dump(caller, &place) {
            return;
        }
        // If it has no name in our mount namespace, the dump counts as unexpected.
        let Ok(Resolved { path, stat, .. }) = place else { return };
        let classification = self.classify_for_write(path.clone(), stat.as_ref());
        if let Classification::Recorded(name) = classification {
            self.ask_git(name, &path, stat.as_ref());
        }
        let protected = match &stat {
            Some(stat) if classification != Classification::Own => {
                self.protector().protect(&path, stat, Threat::Overwrite)
            }
            _ => None,
        };
        if let Classification::Recorded(name) = classification {
            let process = self.processes.id(caller.tgid);
            self.journal_written(name, process);
        }
        let former =
            self.core_dumps.insert(caller.tgid, ExpectedCoreDump { path, stat, classification, protected });
        self.protector().release(former.and_then(|former| former.protected));
    }

    /// Records the core dump of a process that has ended, if it left one.
    pub fn core_dump_is_over(&mut self, process: Tid, end: End) {
        let expected = self.core_dumps.remove(&process);
        if !matches!(end, End::Killed { core_dumped: true, .. }) {
            return self.protector().release(expected.and_then(|expected| expected.protected));
        }
        let id = self.processes.id(process);
        if let Some(ExpectedCoreDump { path, stat, classification, protected }) = expected {
            let now = fs::lstat(&path).ok().flatten();
            let version = |stat: &FileStat| (stat.st_ino, stat.st_mtime, stat.st_mtime_nsec, stat.st_size);
            if now.as_ref().map(version) == stat.as_ref().map(version) {
                self.protector().release(protected);
            } else {
                if let Some(protected) = protected {
                    self.protector().keep(protected);
                }
                let name = match classification {
                    Classification::Recorded(name) => Some(name),
                    Classification::Suppressed(rule, topmost) => {
                        let operations = Operation::Write.into();
                        let change = LeftOut { topmost: &topmost, path: &path, operations, by: id };
                        self.policy.suppressed.write(rule, change);
                        None
                    }
                    Classification::Own => return,
                };
                let kind = if stat.is_some() { Kind::Written } else { Kind::Bound };
                let operations = Operation::Write.into();
                let stat = stat.as_ref();
                let began_us = now_us();
                return self.apply(Change { name, stat, kind, operations, by: id, by_name: true, began_us });
            }
        }
        let pattern = std::fs::read("/proc/sys/kernel/core_pattern").unwrap_or_default();
        if pattern.starts_with(b"|") {
            self.warnings.note(WarningKind::CoreDump, Some(id), || {
                format!("process {process} dumped core into the system's handler")
            });
        } else {
            self.warnings.lost(WarningKind::CoreDump, Some(id), || {
                format!("process {process} dumped core to an unexpected file")
            });
        }
    }
}

fn expand(pattern: &[u8], uses_pid: bool, caller: Caller, signal: i32) -> Pattern {
    if pattern.starts_with(b"|") {
        return Pattern::Pipe;
    }
    let mut path = Vec::new();
    let mut has_pid = false;
    let mut bytes = pattern.iter().copied();
    while let Some(byte) = bytes.next() {
        if byte != b'%' {
            path.push(byte);
            continue;
        }
        match bytes.next() {
            Some(b'%') => path.push(b'%'),
            Some(b'p' | b'P') => {
                has_pid = true;
                path.extend_from_slice(caller.tgid.to_string().as_bytes());
            }
            Some(b'i' | b'I') => path.extend_from_slice(caller.tid.to_string().as_bytes()),
            Some(b's') => path.extend_from_slice(signal.to_string().as_bytes()),
            Some(b'e') => match std::fs::read(format!("/proc/{}/comm", caller.tid)) {
                Ok(name) => {
                    let name = name.trim_ascii_end().iter();
                    path.extend(name.map(|byte| if *byte == b'/' { b'!' } else { *byte }));
                }
                Err(_) => return Pattern::Unknown,
            },
            Some(_) => return Pattern::Unknown,
            None => break,
        }
    }
    if uses_pid && !has_pid {
        path.extend_from_slice(format!(".{}", caller.tgid).as_bytes());
    }
    Pattern::Path(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn expanded(pattern: &[u8], uses_pid: bool) -> Pattern {
        let caller = Caller { tid: Tid(12), tgid: Tid(7) };
        expand(pattern, uses_pid, caller, libc::SIGSEGV)
    }

    #[test]
    fn a_pattern_is_expanded_as_core_5_says() {
        assert_eq!(expanded(b"core", false), Pattern::Path(b"core".to_vec()));
        assert_eq!(expanded(b"core", true), Pattern::Path(b"core.7".to_vec()));
        assert_eq!(expanded(b"/var/c%%-%p-%s-%i%", true), Pattern::Path(b"/var/c%-7-11-12".to_vec()));
        assert_eq!(expanded(b"|/bin/handler %p", false), Pattern::Pipe);
        assert_eq!(expanded(b"core.%t", false), Pattern::Unknown);
    }
}
