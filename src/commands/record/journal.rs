//! Starts the journal of a recording, and all that goes beside it.
//!
//! Neighbour: `tracing.rs` calls it before the command is released.

use std::io;
use std::sync::Arc;

use super::setup::Setup;
use crate::observe::capture::Capture;
use crate::snapshot::Header;
use crate::snapshot::blobs::{BlobWriter, Compression, GroupLog};
use crate::snapshot::journal::{Begin, DescriptorHolder, Journal, ProcessMark};
use crate::snapshot::layout::SnapshotDir;

/// Starts the journal; the way into the bundle that it tells of.
pub fn start(
    setup: &Setup,
    directory: &Arc<SnapshotDir>,
    header: &Header,
    compression: Compression,
    holder: Box<dyn DescriptorHolder>,
) -> io::Result<Capture> {
    // A name, so that a kill leaves it.
    let (name, blobs) = directory.temporary_file()?;
    let begin = Begin {
        recorder: ProcessMark::of(std::process::id()),
        front: setup.front,
        blobs: name,
        max_blob_bytes: setup.options.max_blob_bytes,
    };
    let sync = setup.options.sync;
    let journal = Journal::start(directory.create_journal()?, sync, &begin, header, holder)?;
    let journal = Arc::new(journal);
    let log = GroupLog { journal: Arc::clone(&journal), directory: Arc::clone(directory), sync };
    let writer = BlobWriter::logged(blobs, compression, Some(log))?;
    Ok(Capture::new(writer, Arc::clone(directory)).journaled(journal))
}
