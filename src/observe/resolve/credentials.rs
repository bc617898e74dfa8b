//! The credentials that decide what a thread may do with files (credentials(7), capabilities(7)), and in
//! which user namespace they count.
//!
//! Programs set them to what they are already (make does so before each command): that a call was made
//! says nothing.

use rustix::process::Pid;
use rustix::thread::{CapabilitySets, capabilities};

use crate::observe::processes::Rights;
use crate::trace::sys::Tid;

/// The lines of /proc/TID/status that tell of credentials, but for what capget(2) tells (proc_pid_status(5)): those
/// of users and groups, and those of capabilities.
const LINES: [&[&[u8]]; 2] = [&[b"Uid:", b"Gid:", b"Groups:"], &[b"CapBnd:", b"CapAmb:"]];

/// Credentials, to be compared with those of another thread.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Credentials {
    /// The lines of its status that tell its users and groups, in our user namespace.
    users: Vec<u8>,
    /// Those that tell of capabilities, and the name of its user namespace.
    others: Vec<u8>,
    /// Effective, permitted and inheritable ones.
    capabilities: CapabilitySets,
    /// The profile of AppArmor or the context of SELinux, if such a module is active.
    label: Option<Vec<u8>>,
}

/// The security label of a thread (proc_pid_attr(5)); none if the kernel has no module that gives any.
fn label_of(tid: Tid) -> Option<Vec<u8>> {
    std::fs::read(format!("/proc/{tid}/attr/current")).ok()
}

impl Credentials {
    /// Those of a thread; none if /proc does not show them.
    pub fn of(tid: Tid) -> Option<Credentials> {
        let status = std::fs::read(format!("/proc/{tid}/status")).ok()?;
        // What they are worth outside of it, only the first namespace tells (user_namespaces(7)).
        let namespace = rustix::fs::readlink(format!("/proc/{tid}/ns/user"), Vec::new()).ok()?;
        let [users, mut others] = LINES.map(|names| {
            let lines = status.split_inclusive(|byte| *byte == b'\n');
            lines.filter(|line| names.iter().any(|name| line.starts_with(name))).collect::<Vec<_>>().concat()
        });
        others.extend_from_slice(namespace.to_bytes());
        let capabilities = capabilities(Pid::from_raw(tid.0)).ok()?;
        Some(Credentials { users, others, capabilities, label: label_of(tid) })
    }

    /// What a thread with the credentials of `other` may do with files, where these are ours.
    ///
    /// Without a capability of ours, theirs can only add to what users and groups allow.
    pub fn compare(&self, other: &Credentials) -> Rights {
        if self == other {
            Rights::Ours
        } else if (&self.users, &self.label) == (&other.users, &other.label)
            && self.capabilities.effective.is_empty()
        {
            Rights::MoreThanOurs
        } else {
            Rights::Others
        }
    }

    /// Whether a thread that had these still has them after it has executed files without set-ID bits.
    ///
    /// Without those bits execve(2) changes no user and no group. Whether it has changed capabilities, capget(2) tells
    /// in 0.3 µs; reading the status takes 13 µs.
    pub fn survive_execve(&self, tid: Tid) -> bool {
        capabilities(Pid::from_raw(tid.0)).is_ok_and(|now| now == self.capabilities)
            && (self.label.is_none() || self.label == label_of(tid))
    }
}

#[cfg(test)]
mod tests {
    use rustix::thread::CapabilitySet;

    use super::*;

    #[test]
    fn a_thread_that_a_security_module_confines_has_other_rights() {
        let ours = Credentials::of(Tid(std::process::id().cast_signed())).unwrap();
        assert_eq!(ours.compare(&ours.clone()), Rights::Ours);
        let labelled = |label: &str| Credentials { label: Some(label.into()), ..ours.clone() };
        let none = CapabilitySet::empty();
        let capabilities = CapabilitySets { effective: none, permitted: none, inheritable: none };
        let unprivileged = Credentials { capabilities, ..labelled("unconfined") };
        for ours in [labelled("unconfined"), unprivileged] {
            assert_eq!(ours.compare(&labelled("man_filter (enforce)")), Rights::Others);
        }
    }
}
