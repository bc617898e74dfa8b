//! Duplicates of the descriptors by which the tracing process alone holds bytes, for as long as it does: if it
//! is killed, the front recovers these bytes.
//!
//! They go through a socket of their own, so that a front that is stopped blocks nobody. Neighbours:
//! `front.rs` keeps the duplicates, the journal of `snapshot` says when there are any.

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use super::descriptors::wait_readable;
use crate::snapshot::journal::DescriptorHolder;
use crate::trace::seqpacket;

/// How long the tracing process waits for the front to close what it released.
const PATIENCE: Duration = Duration::from_secs(1);

/// Stands for the journal itself: no inode has this number.
pub const JOURNAL: u32 = u32::MAX;
/// Stands for the unfinished blobs.parquet.
pub const BLOBS: u32 = u32::MAX - 1;

const HELD: u8 = b'h';
const RELEASED: u8 = b'r';
const ENDED: u8 = b'e';
const WAIT: u8 = b's';

/// What is held: a recording, of which a session has many, and an inode in its journal.
type Key = (u32, u32);

/// The end of the tracing process.
pub struct Duplicates {
    socket: OwnedFd,
    /// What was released while the socket was full, and recordings that ended then.
    unsent: Mutex<Vec<(u8, Key)>>,
}

/// The duplicates of one recording.
pub struct RecordingDuplicates {
    duplicates: Arc<Duplicates>,
    recording: u32,
}

/// The end of the front.
pub struct HeldFiles {
    socket: OwnedFd,
    /// Whether the tracing process has closed its end.
    has_ended: bool,
    files: HashMap<Key, File>,
}

/// Both ends.
pub fn pair() -> io::Result<(HeldFiles, Duplicates)> {
    let (front, tracer) = seqpacket::pair()?;
    let held = HeldFiles { socket: front, has_ended: false, files: HashMap::new() };
    Ok((held, Duplicates { socket: tracer, unsent: Mutex::default() }))
}

impl Duplicates {
    fn offer(&self, kind: u8, (recording, inode): Key, file: Option<BorrowedFd<'_>>) -> bool {
        let [a, b, c, d] = recording.to_le_bytes();
        let [e, f, g, h] = inode.to_le_bytes();
        seqpacket::offer(&self.socket, &[kind, a, b, c, d, e, f, g, h], file).is_ok()
    }

    fn tell(&self, kind: u8, key: Key) {
        let mut unsent = self.unsent.lock().unwrap_or_else(PoisonError::into_inner);
        unsent.push((kind, key));
        unsent.retain(|(kind, key)| !self.offer(*kind, *key, None));
    }

    /// Those of one recording.
    pub fn of_recording(self: &Arc<Self>, recording: u32) -> RecordingDuplicates {
        RecordingDuplicates { duplicates: Arc::clone(self), recording }
    }

    /// Has the front close all that it holds of a recording.
    pub fn ended(&self, recording: u32) {
        self.tell(ENDED, (recording, 0));
    }
}

impl DescriptorHolder for RecordingDuplicates {
    fn held(&self, inode: u32, file: BorrowedFd<'_>) {
        // A front that does not listen is stopped, or dead: this process has the bytes all the same.
        self.duplicates.offer(HELD, (self.recording, inode), Some(file));
    }

    fn released(&self, inode: u32) {
        self.duplicates.tell(RELEASED, (self.recording, inode));
    }

    fn wait_for_releases(&self) {
        let socket = self.duplicates.socket.as_fd();
        if self.duplicates.offer(WAIT, (0, 0), None) && wait_readable([socket], Some(PATIENCE)) == [true] {
            let _ = seqpacket::receive(&self.duplicates.socket, &mut [0]);
        }
    }
}

impl HeldFiles {
    /// Whether the tracing process has closed its end: then the socket is always readable.
    pub fn has_ended(&self) -> bool {
        self.has_ended
    }

    /// Takes one message; whether there may be more.
    pub fn receive(&mut self) -> bool {
        let mut message = [0; 9];
        let received = seqpacket::receive(&self.socket, &mut message);
        self.has_ended |= matches!(received, Ok((0, _)));
        let Ok((9, file)) = received else { return false };
        let [kind, a, b, c, d, e, f, g, h] = message;
        let key = (u32::from_le_bytes([a, b, c, d]), u32::from_le_bytes([e, f, g, h]));
        match (kind, file) {
            (HELD, Some(file)) => drop(self.files.insert(key, file.into())),
            (RELEASED, _) => drop(self.files.remove(&key)),
            (ENDED, _) => self.files.retain(|(recording, _), _| *recording != key.0),
            _ => drop(seqpacket::offer(&self.socket, &[WAIT], None)),
        }
        true
    }

    /// What is held at the end of the tracing process: by recording, and by the number of the inode in its journal.
    pub fn into_files(mut self) -> BTreeMap<u32, HashMap<u32, File>> {
        while self.receive() {}
        let mut files: BTreeMap<u32, HashMap<u32, File>> = BTreeMap::new();
        for ((recording, inode), file) in self.files {
            files.entry(recording).or_default().insert(inode, file);
        }
        files
    }
}

impl AsFd for HeldFiles {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn end_of_the_tracing_process_is_noticed_after_all_that_it_sent() {
        let (mut held, duplicates) = pair().unwrap();
        let duplicates = Arc::new(duplicates);
        let file = tempfile::tempfile().unwrap();
        for recording in [1, 2] {
            duplicates.of_recording(recording).held(7, file.as_fd());
        }
        duplicates.ended(2);
        drop(duplicates);
        for _ in 0..3 {
            assert!(held.receive() && !held.has_ended());
        }
        assert!(!held.receive() && held.has_ended());
        let files = held.into_files();
        assert_eq!(
            files.into_iter().map(|(one, of)| (one, of.into_keys().collect::<Vec<_>>())).collect::<Vec<_>>(),
            [(1, vec![7])]
        );
    }
}
