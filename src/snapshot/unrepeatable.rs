//! What is another thing at each run of a command, or is not recorded: no record tells of it, and no other run may rely on
//! it.

use std::collections::BTreeSet;

/// What a command was told, or has changed, that no path tells and no later run can compare.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Told {
    /// Random bytes.
    RandomBytes,
    /// The free space of a file system.
    FreeSpace,
    /// That somebody else holds a lock.
    Locks,
    /// Whether others have a file open.
    Lease,
    /// Something of the kernel's keyrings.
    Keys,
    /// Something of POSIX message queues.
    MessageQueues,
    /// Something of System V shared memory, semaphores or message queues.
    SystemV,
    /// Something of the network.
    Network,
    /// Something of processes that are not its own.
    OtherProcesses,
    /// Something of the system.
    System,
}

/// How many paths are noted.
const NOTED_PATHS: usize = 1000;

/// What a recording knows that its records do not say, if it is to be recalled.
#[derive(Debug, Clone, Default)]
pub struct Unrepeatable {
    /// What it was told.
    pub told: BTreeSet<Told>,
    /// The files on which it asked for a lock, while nobody else had one.
    pub locked_files: BTreeSet<Vec<u8>>,
    /// Whether agent-snapshot was run, whose calls are not recorded.
    pub ran_ourselves: bool,
    /// An object that was added to a repository.
    pub git_object: Option<Vec<u8>>,
    /// The descriptors beyond standard error that were inherited.
    pub inherited: Vec<u32>,
    /// The first of them that was used.
    pub used_descriptor: Option<u32>,
    unrecorded: BTreeSet<Vec<u8>>,
    listed: BTreeSet<Vec<u8>>,
    /// Whether there were more of these than are noted.
    pub has_more_unrecorded: bool,
}

impl Unrepeatable {
    /// Nothing yet, of a command that inherits these descriptors beyond standard error.
    pub fn new(inherited: Vec<u32>) -> Unrepeatable {
        Unrepeatable { inherited, ..Unrepeatable::default() }
    }

    /// Notes a path that was used and is not recorded.
    pub fn note_unrecorded(&mut self, path: Vec<u8>) {
        if self.unrecorded.len() < NOTED_PATHS {
            self.unrecorded.insert(path);
        } else if !self.unrecorded.contains(&path) {
            self.has_more_unrecorded = true;
        }
    }

    /// Notes that a directory was listed that is noted as used.
    pub fn note_listed(&mut self, path: Vec<u8>) {
        // Where there are more, too many paths were used.
        if self.listed.len() < NOTED_PATHS {
            self.listed.insert(path);
        }
    }

    /// The directories that were listed and are not recorded, sorted; the first ones.
    pub fn listed(&self) -> impl Iterator<Item = &[u8]> {
        self.listed.iter().map(Vec::as_slice)
    }

    /// The paths that were used and are not recorded, sorted; the first ones.
    pub fn unrecorded(&self) -> impl Iterator<Item = &[u8]> {
        self.unrecorded.iter().map(Vec::as_slice)
    }
}
