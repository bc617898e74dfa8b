//! Starts the journal of a recording, and all that goes beside it.
//!
//! Neighbour: `tracing.rs` calls it before the command is released.

use std::fs::File;
use std::io;
use std::os::fd::AsFd as _;
use std::sync::Arc;

use super::held;
use super::setup::Setup;
use crate::cli;
use crate::observe::capture::{Capture, OnLoss};
use crate::observe::losses::Losses;
use crate::snapshot::Header;
use crate::snapshot::blobs::{BlobWriter, Compression, GroupLog};
use crate::snapshot::journal::{Begin, DescriptorHolder, ProcessMark, RecordingJournal};
use crate::snapshot::layout::SnapshotDir;

/// Starts the journal; the way into the bundle that it tells of. Where there can be no journal, there is none,
/// and the second value says why.
pub fn start(
    setup: &Setup,
    directory: &Arc<SnapshotDir>,
    header: &Header,
    holder: Box<dyn DescriptorHolder>,
    losses: Losses,
) -> io::Result<(Capture, Option<io::Error>)> {
    let compression = match setup.options.compression {
        cli::CompressionChoice::Snappy => Compression::Snappy,
        cli::CompressionChoice::Zstd => Compression::Zstd,
        cli::CompressionChoice::None => Compression::None,
    };
    let on_loss = match setup.options.on_loss {
        cli::OnLossChoice::Warn => OnLoss::Warn,
        cli::OnLossChoice::Refuse => OnLoss::Refuse,
    };
    match start_journaled(setup, directory, header, compression, holder) {
        Ok((writer, blobs, journal)) => {
            let capture = Capture::new(writer, blobs, Arc::clone(directory), on_loss, losses);
            Ok((capture.journaled(journal), None))
        }
        Err(error) => {
            let _ = directory.discard_unfinished();
            let blobs = directory.unnamed_file()?;
            let writer = BlobWriter::new(blobs.try_clone()?, compression)?;
            Ok((Capture::new(writer, blobs, Arc::clone(directory), on_loss, losses), Some(error)))
        }
    }
}

fn start_journaled(
    setup: &Setup,
    directory: &Arc<SnapshotDir>,
    header: &Header,
    compression: Compression,
    holder: Box<dyn DescriptorHolder>,
) -> io::Result<(BlobWriter, File, Arc<RecordingJournal>)> {
    // A name, so that a kill leaves it.
    let (name, blobs) = directory.temporary_file()?;
    let begin = Begin {
        id: header.id.clone(),
        recorder: ProcessMark::of(std::process::id()),
        front: setup.front,
        blobs: name,
        max_blob_bytes: setup.options.max_blob_bytes,
    };
    let sync = setup.options.sync;
    let journal = directory.create_journal()?;
    // The command may remove their names.
    holder.held(held::JOURNAL, journal.as_fd());
    holder.held(held::BLOBS, blobs.as_fd());
    let journal = RecordingJournal::start(journal, sync, &begin, header, holder)?;
    if sync {
        directory.sync_names()?;
    }
    let journal = Arc::new(journal);
    let log = GroupLog { journal: Arc::clone(&journal), directory: Arc::clone(directory), sync };
    let writer = BlobWriter::logged(blobs.try_clone()?, compression, Some(log))?;
    Ok((writer, blobs, journal))
}
