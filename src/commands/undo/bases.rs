//! The base of a merging redo: the content that the undo has put back. Its rescue has the digest of
//! that, the recording the bytes.

use std::ffi::OsStr;
use std::fs::{File, Metadata};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;

use anyhow::Context as _;
use rustix::fs::{MemfdFlags, memfd_create};

use crate::library::Library;
use crate::restore::merge::MOST;
use crate::snapshot::blobs::Side;
use crate::snapshot::compare::content_id;
use crate::snapshot::source::Contents;
use crate::snapshot::{FileRecord, FileType, Snapshot};

/// Gives `rescue` the contents that the undo had put back, of the files that were changed since, from the recordings that
/// have them.
pub fn provide_bases(rescue: &mut Snapshot, ids: &[&str], library: &Library) -> anyhow::Result<()> {
    let wanted: Vec<FileRecord> =
        rescue.files().iter().filter(|record| is_changed_since(record)).cloned().collect();
    if wanted.is_empty() {
        return Ok(());
    }
    let recordings = ids.iter().filter_map(|id| Snapshot::open(&library.directory_of(id)).ok());
    for recording in recordings {
        let contents = Contents::new(&recording);
        for record in &wanted {
            let promised = content_id(record, Side::After);
            let Some(source) = recording.find(&record.path) else { continue };
            if promised.is_none() || content_id(source, Side::Before) != promised {
                continue;
            }
            let file = memfd_create("base", MemfdFlags::CLOEXEC).context("make a file in memory")?;
            let file = File::from(file);
            // If it can't be had, the merge says which content is unavailable.
            if contents.copy_to_file(source, Side::Before, &file).is_ok() {
                let _ = rescue.provide(&record.path, Side::After, file);
            }
        }
    }
    Ok(())
}

fn is_changed_since(record: &FileRecord) -> bool {
    let Some(after) = record.after.present() else { return false };
    let is_promised = after.file_type == FileType::File && after.blob.is_none() && after.size <= MOST;
    let live = || std::fs::symlink_metadata(OsStr::from_bytes(&record.path));
    let time = (after.mtime, i64::from(after.mtime_nsec));
    let is_as_promised =
        |live: &Metadata| live.len() == after.size && (live.mtime(), live.mtime_nsec()) == time;
    is_promised && live().is_ok_and(|live| live.is_file() && !is_as_promised(&live))
}
