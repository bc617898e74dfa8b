//! What an entry keeps of a recorded run: what it left at each path that it changed, and how it ended.

use serde::{Deserialize, Serialize};

use super::path_set::{PathSet, SightDigest};
use super::probe::Probe;
use super::sight::{Compare, LookAt, Sight, Times, look_in};
use crate::fs;
use crate::snapshot::{FileRecord, FileType, Look, Operations, Seen, Snapshot};

/// Bytes as base64, the paths of a set and of an entry.
pub(super) mod bytes {
    use base64::Engine as _;
    use base64::engine::general_purpose::STANDARD;
    use serde::{Deserialize as _, Deserializer, Serializer, de::Error as _};

    pub fn serialize<S: Serializer>(bytes: &[u8], serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&STANDARD.encode(bytes))
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<u8>, D::Error> {
        let text = <std::borrow::Cow<'de, str>>::deserialize(deserializer)?;
        STANDARD.decode(text.as_bytes()).map_err(D::Error::custom)
    }
}

/// A run that can be recalled.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecalledRun {
    /// The recording in the library.
    pub recording: String,
    /// The exit status.
    pub exit_status: i32,
    /// When it was recorded, RFC 3339.
    pub recorded_at: String,
    /// How long the command took, in milliseconds.
    pub milliseconds: u64,
    /// What it changed, in the order in which that was modified.
    pub outputs: Vec<Output>,
    /// Where it left the offset of standard input, if that was a regular file.
    pub input_offset: Option<u64>,
    /// How many bytes the outputs and the log have.
    pub size: u64,
}

/// A path that the command changed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Output {
    /// The path.
    #[serde(with = "bytes")]
    pub path: Vec<u8>,
    /// What was there before.
    pub before: String,
    /// What the command left there.
    pub after: String,
    /// When it was modified last, if it is a file and the time was not set by a call: at a recall it is modified again.
    pub modified: Option<(i64, u32)>,
}

/// An output as it is now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OutputState {
    /// As it was before the command.
    Before,
    /// As the command left it.
    After,
    /// Neither: somebody else has changed it.
    Other,
}

impl Output {
    fn of(record: &FileRecord, started: jiff::Timestamp, ended: jiff::Timestamp) -> Output {
        let text = |state: Option<&crate::snapshot::Present>| text_of(&Sight::recorded(state));
        let after = record.after.present();
        let modified = after.filter(|after| after.file_type == FileType::File).and_then(|after| {
            let at = jiff::Timestamp::new(after.mtime, i32::try_from(after.mtime_nsec).ok()?).ok()?;
            // The clock of a file system may lag.
            let lag = jiff::SignedDuration::from_secs(2);
            let is_modified = record
                .before
                .present()
                .is_none_or(|before| (before.mtime, before.mtime_nsec) != (after.mtime, after.mtime_nsec));
            (is_modified && started.checked_sub(lag).ok()? <= at && at <= ended.checked_add(lag).ok()?)
                .then_some((after.mtime, after.mtime_nsec))
        });
        Output {
            path: record.path.clone(),
            before: text(record.before.present()),
            after: text(after),
            modified,
        }
    }

    /// What has become of it.
    pub fn state(&self) -> OutputState {
        let at = LookAt { path: &self.path, seen: OUTPUT, compare: Compare::Bytes, known: None };
        let looked = look_in(fs::parent_of(&self.path).unwrap_or(b"/"), &[at]);
        match looked.first().map(|looked| text_of(&looked.sight)) {
            Some(now) if now == self.after => OutputState::After,
            Some(now) if now == self.before => OutputState::Before,
            _ => OutputState::Other,
        }
    }
}

/// What tells an output from another.
const OUTPUT: Seen = Seen::CONTENT.with(Look::Xattrs);

fn text_of(sight: &Sight) -> String {
    match sight {
        Sight::Nothing => "nothing".to_owned(),
        Sight::Hidden => "hidden".to_owned(),
        Sight::Something(there) => there.text(OUTPUT, Times::Ignored),
    }
}

/// Whether a command changed what is at a path, or the file that is there.
pub(super) fn is_output(record: &FileRecord) -> bool {
    let exists = record.before.present().is_some() || record.after.present().is_some();
    exists && record.operations.intersects(Operations::CHANGES) && !record.is_inherited_alone()
}

/// The entry of a recording, the paths that it looked at, and what it saw there.
///
/// # Errors
/// Why it can't be recalled, as a sentence.
pub fn of_recording(
    snapshot: &Snapshot,
    name: &str,
    log_size: u64,
    ignored_variables: &[String],
) -> Result<(RecalledRun, PathSet, SightDigest), String> {
    let header = snapshot.header();
    let time = |text: &str| text.parse::<jiff::Timestamp>().map_err(|error| error.to_string());
    let (started, ended) = (time(&header.started_at)?, time(&header.finished_at)?);
    let (mut set, sights) = PathSet::recorded(snapshot, ignored_variables)?;
    let fingerprint = set.fingerprint(sights.iter(), Probe::recorded);
    set.last.clone_from(&fingerprint.checksums);
    let records: Vec<&FileRecord> = snapshot.files().iter().filter(|record| is_output(record)).collect();
    let sizes = records.iter().filter_map(|record| Some(record.after.present()?.size));
    let size = log_size + sizes.sum::<u64>();
    let mut outputs: Vec<Output> = records.iter().map(|record| Output::of(record, started, ended)).collect();
    outputs.sort_by_key(|output| output.modified);
    let milliseconds = u64::try_from(ended.duration_since(started).as_millis()).unwrap_or(0);
    let entry = RecalledRun {
        recording: name.to_owned(),
        exit_status: header.exit_status,
        recorded_at: header.started_at.clone(),
        milliseconds,
        outputs,
        input_offset: None,
        size,
    };
    Ok((entry, set, fingerprint))
}
