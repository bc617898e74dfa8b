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

/// Starts the journal; the way into the bundle that it tells of. Where there can be no journal, there is none,
/// and the second value says why.
pub fn start(
    setup: &Setup,
    directory: &Arc<SnapshotDir>,
    header: &Header,
    compression: Compression,
    holder: Box<dyn DescriptorHolder>,
) -> io::Result<(Capture, Option<io::Error>)> {
    match start_journaled(setup, directory, header, compression, holder) {
        Ok(capture) => Ok((capture, None)),
        Err(error) => {
            let _ = directory.discard_unfinished();
            let writer = BlobWriter::new(directory.unnamed_file()?, compression)?;
            Ok((Capture::new(writer, Arc::clone(directory)), Some(error)))
        }
    }
}

fn start_journaled(
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
    if sync {
        directory.sync_names()?;
    }
    let journal = Arc::new(journal);
    let log = GroupLog { journal: Arc::clone(&journal), directory: Arc::clone(directory), sync };
    let writer = BlobWriter::logged(blobs, compression, Some(log))?;
    Ok(Capture::new(writer, Arc::clone(directory)).journaled(journal))
}
