//! Duplicates of the descriptors by which the tracing process alone holds bytes, for as long as it does: if it
//! is killed, the front recovers these bytes.
//!
//! They go through a socket of their own, so that a front that is stopped blocks nobody. Neighbours:
//! `front.rs` keeps the duplicates, the journal of `snapshot` says when there are any.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Mutex, PoisonError};
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
const WAIT: u8 = b's';

/// The end of the tracing process.
pub struct Duplicates {
    socket: OwnedFd,
    /// What was released while the socket was full.
    unsent: Mutex<Vec<u32>>,
}

/// The end of the front.
pub struct HeldFiles {
    socket: OwnedFd,
    /// Whether the tracing process has closed its end.
    has_ended: bool,
    /// By the number of the inode in the journal.
    files: HashMap<u32, File>,
}

/// Both ends.
pub fn pair() -> io::Result<(HeldFiles, Duplicates)> {
    let (front, tracer) = seqpacket::pair()?;
    let held = HeldFiles { socket: front, has_ended: false, files: HashMap::new() };
    Ok((held, Duplicates { socket: tracer, unsent: Mutex::default() }))
}

impl Duplicates {
    fn offer(&self, kind: u8, inode: u32, file: Option<BorrowedFd<'_>>) -> bool {
        let [a, b, c, d] = inode.to_le_bytes();
        seqpacket::offer(&self.socket, &[kind, a, b, c, d], file).is_ok()
    }
}

impl DescriptorHolder for Duplicates {
    fn held(&self, inode: u32, file: BorrowedFd<'_>) {
        // A front that does not listen is stopped, or dead: this process has the bytes all the same.
        self.offer(HELD, inode, Some(file));
    }

    fn released(&self, inode: u32) {
        let mut unsent = self.unsent.lock().unwrap_or_else(PoisonError::into_inner);
        unsent.push(inode);
        unsent.retain(|inode| !self.offer(RELEASED, *inode, None));
    }

    fn wait_for_releases(&self) {
        if self.offer(WAIT, 0, None) && wait_readable([self.socket.as_fd()], Some(PATIENCE)) == [true] {
            let _ = seqpacket::receive(&self.socket, &mut [0]);
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
        let mut message = [0; 5];
        let received = seqpacket::receive(&self.socket, &mut message);
        self.has_ended |= matches!(received, Ok((0, _)));
        let Ok((5, file)) = received else { return false };
        let [kind, inode @ ..] = message;
        let inode = u32::from_le_bytes(inode);
        match (kind, file) {
            (HELD, Some(file)) => drop(self.files.insert(inode, file.into())),
            (RELEASED, _) => drop(self.files.remove(&inode)),
            _ => drop(seqpacket::offer(&self.socket, &[WAIT], None)),
        }
        true
    }

    /// What is held at the end of the tracing process.
    pub fn into_files(mut self) -> HashMap<u32, File> {
        while self.receive() {}
        self.files
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
        let file = tempfile::tempfile().unwrap();
        duplicates.held(7, file.as_fd());
        drop(duplicates);
        assert!(held.receive() && !held.has_ended());
        assert!(!held.receive() && held.has_ended());
        assert_eq!(held.into_files().into_keys().collect::<Vec<_>>(), [7]);
    }
}
