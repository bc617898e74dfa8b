//! What a thread with other credentials than ours may read, by the mode bits (credentials(7)).
//!
//! Only for threads that changed their user or group in the tree; all others are judged by the
//! kernel itself, with our own credentials.

use nix::sys::stat::FileStat;

use super::resolve;
use crate::trace::tracer::Caller;

/// CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH (linux/capability.h).
const READS_ANYTHING: u64 = 1 << 1 | 1 << 2;

/// The filesystem credentials of a thread, from /proc/TID/status.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Credentials {
    uid: u32,
    groups: Vec<u32>,
    capabilities: u64,
}

impl Credentials {
    fn of(caller: Caller) -> Option<Credentials> {
        Credentials::parse(&std::fs::read_to_string(format!("/proc/{}/status", caller.tid)).ok()?)
    }

    fn parse(status: &str) -> Option<Credentials> {
        let line = |name: &str| status.lines().find_map(|line| line.strip_prefix(name));
        // Real, effective, saved and filesystem ids: the last one counts for files.
        let last = |name: &str| line(name)?.split_whitespace().last()?.parse().ok();
        let mut groups = vec![last("Gid:")?];
        groups.extend(line("Groups:")?.split_whitespace().filter_map(|group| group.parse::<u32>().ok()));
        let capabilities = u64::from_str_radix(line("CapEff:")?.trim(), 16).ok()?;
        Some(Credentials { uid: last("Uid:")?, groups, capabilities })
    }

    /// Whether one of the bits `wanted` (4 read, 1 search) is granted.
    fn grants(&self, stat: &FileStat, wanted: u32) -> bool {
        if self.capabilities & READS_ANYTHING != 0 {
            return true;
        }
        let shift = if stat.st_uid == self.uid {
            6
        } else if self.groups.contains(&stat.st_gid) {
            3
        } else {
            0
        };
        stat.st_mode >> shift & wanted != 0
    }
}

/// Whether `caller` may read what is at `path`, and search every directory on the way.
pub fn may_read(caller: Caller, path: &[u8], stat: &FileStat) -> bool {
    let Some(credentials) = Credentials::of(caller) else { return true };
    if !credentials.grants(stat, 4) {
        return false;
    }
    let parents = std::iter::successors(resolve::parent_of(path), |parent| resolve::parent_of(parent));
    parents
        .filter_map(|parent| resolve::lstat(parent).ok().flatten())
        .all(|directory| credentials.grants(&directory, 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_owner_is_judged_by_the_owners_bits_alone() {
        let status = "Uid:\t0\t0\t0\t1000\nGid:\t5\t5\t5\t6\nGroups:\t7 8 \nCapEff:\t0000000000000000\n";
        let credentials = Credentials::parse(status).unwrap();
        assert_eq!(credentials, Credentials { uid: 1000, groups: vec![6, 7, 8], capabilities: 0 });
        let mut stat = nix::sys::stat::lstat("/").unwrap();
        (stat.st_uid, stat.st_gid, stat.st_mode) = (1000, 9, 0o044);
        assert!(!credentials.grants(&stat, 4));
        stat.st_uid = 1;
        assert!(credentials.grants(&stat, 4));
        stat.st_gid = 8;
        assert!(credentials.grants(&stat, 4));
        stat.st_mode = 0o704;
        assert!(!credentials.grants(&stat, 4));
    }
}
