//! `cat`: writes the recorded bytes of one path. Neighbour: `snapshot::source`, which has them.

use std::io;

use base64::engine::general_purpose::STANDARD as BASE64;
use base64::write::EncoderWriter;
use jiff::Timestamp;
use serde::ser::{Serialize, SerializeMap as _, Serializer};
use serde_json::Value;

use super::exit::{Exit, UsageError, VerbResult};
use super::level::without_record;
use super::open::open_or_last;
use super::out::{Console, OutputError};
use super::past::{Extent, Past, past};
use super::paths::{self, quoted};
use crate::cli::Cat;
use crate::library::reference::Reference;
use crate::snapshot::blobs::Side;
use crate::snapshot::compare::state;
use crate::snapshot::source::{ContentSource, Contents, Unavailable, locate};
use crate::snapshot::wire::JsonObject;
use crate::snapshot::{Error, FileRecord, Present, Snapshot};

/// Streams the content of `args.path` to the result; holes of a sparse file become zeros, unless the
/// result is a regular file.
///
/// If the bytes turn out to be bad in the middle, the result ends there, with an error.
pub fn run(args: &Cat, console: &mut Console) -> VerbResult {
    let Some((snapshot, path, version)) = find_version(args, console)? else { return Ok(Exit::Finding) };
    let record = snapshot.find(&path).expect("it was found there");
    write(&snapshot, record, version, args.json, console)
}

/// A part of the content, and what `--json` tells of the whole; none if there is no such content, which is said.
pub fn part(
    args: &Cat,
    offset: u64,
    limit: usize,
    console: &mut Console,
) -> anyhow::Result<Option<(Value, Vec<u8>)>> {
    let Some((snapshot, path, version)) = find_version(args, console)? else { return Ok(None) };
    let record = snapshot.find(&path).expect("it was found there");
    let mut window = Window { skip: offset, limit, bytes: Vec::new() };
    match Contents::new(&snapshot).copy(record, version.side(), &mut window) {
        Ok(_) => {}
        Err(Error::Sink(_)) if window.bytes.len() == limit => {}
        Err(Error::Unavailable(why)) => {
            say_unavailable(record, version, &why, console);
            return Ok(None);
        }
        Err(error) => return Err(error.into()),
    }
    let head = serde_json::to_value(CatJson { record, version, unavailable: None })?;
    Ok(Some((head, window.bytes)))
}

/// Keeps a part of what is written, and refuses what comes after it.
struct Window {
    skip: u64,
    limit: usize,
    bytes: Vec<u8>,
}

impl io::Write for Window {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let skipped = usize::try_from(self.skip).unwrap_or(usize::MAX).min(bytes.len());
        self.skip -= skipped as u64;
        let kept = (bytes.len() - skipped).min(self.limit - self.bytes.len());
        self.bytes.extend_from_slice(&bytes[skipped..skipped + kept]);
        match skipped + kept {
            0 if !bytes.is_empty() => Err(io::ErrorKind::WriteZero.into()),
            taken => Ok(taken),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Where the content is, and the path of its record there; none if nothing is known of it, which is said.
fn find_version(
    args: &Cat,
    console: &mut Console,
) -> anyhow::Result<Option<(Snapshot, Vec<u8>, VersionName)>> {
    if let Some(time) = args.at {
        return at(args, time, console);
    }
    let (snap, path) = match &args.path {
        Some(path) => (Some(args.snap.as_path()), path.as_os_str()),
        None if Reference::parse(args.snap.as_os_str().as_encoded_bytes()).is_some() => {
            return Err(UsageError("cat: no path was named".to_owned()).into());
        }
        None => (None, args.snap.as_os_str()),
    };
    let snapshot = open_or_last(snap, &args.access, console)?;
    let side = if args.before { Side::Before } else { Side::After };
    let path = match paths::find(&snapshot, path)? {
        Ok(record) => record.path.clone(),
        Err(path) => {
            let path = quoted(&path);
            console.say(format_args!("cat {path}: {}", without_record(&snapshot)));
            return Ok(None);
        }
    };
    Ok(Some((snapshot, path, VersionName::Side(side))))
}

/// Where what was at a path at `time` is.
fn at(
    args: &Cat,
    time: Timestamp,
    console: &mut Console,
) -> anyhow::Result<Option<(Snapshot, Vec<u8>, VersionName)>> {
    let arg = args.snap.clone().into_os_string();
    let Past { snapshot, roots, unknown } = past(&[arg], time, &args.access, &Extent::Itself, console)?;
    let path = roots.into_iter().next().unwrap_or_default();
    if let Some((_, why)) = unknown.first() {
        console.say(format_args!("cat {}: {why}", quoted(&path)));
        return Ok(None);
    }
    Ok(snapshot.map(|snapshot| (snapshot, path, VersionName::Time(time))))
}

/// Which version is written.
#[derive(Debug, Clone, Copy)]
enum VersionName {
    /// That before or after the command.
    Side(Side),
    /// That of a time, which is an after-state.
    Time(Timestamp),
}

impl VersionName {
    fn side(self) -> Side {
        match self {
            VersionName::Side(side) => side,
            VersionName::Time(_) => Side::After,
        }
    }
}

impl std::fmt::Display for VersionName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            VersionName::Side(side) => write!(f, "{} the command", side.name()),
            VersionName::Time(_) => write!(f, "at that time"),
        }
    }
}

fn write(
    snapshot: &Snapshot,
    record: &FileRecord,
    version: VersionName,
    json: bool,
    console: &mut Console,
) -> VerbResult {
    let contents = Contents::new(snapshot);
    let side = version.side();
    let written = if json {
        object(&contents, record, version, console)
    } else {
        raw(&contents, record, side, console)
    };
    match written {
        Ok(()) => Ok(Exit::Success),
        Err(Error::Unavailable(why)) => {
            if json {
                console.json(&CatJson { record, version, unavailable: Some(&why) })?;
            }
            say_unavailable(record, version, &why, console);
            Ok(Exit::Finding)
        }
        Err(Error::Sink(error)) => Err(OutputError::from(error).into()),
        Err(error) => Err(error.into()),
    }
}

fn say_unavailable(record: &FileRecord, version: VersionName, why: &Unavailable, console: &mut Console) {
    let hint = match (why, version, record.before.present()) {
        (Unavailable::Absent, VersionName::Side(Side::After), Some(_)) => "; --before shows what was",
        _ => "",
    };
    let path = quoted(&record.path);
    console.say(format_args!("cat {path}: its content {version} is unavailable: {why}{hint}"));
}

fn raw(contents: &Contents, record: &FileRecord, side: Side, console: &mut Console) -> Result<(), Error> {
    let is_sparse = state(record, side).present().is_some_and(Present::is_sparse);
    let file = if is_sparse { console.regular_file().map_err(Error::Sink)? } else { None };
    match file {
        Some(file) => contents.copy_to_file(record, side, &file),
        None => contents.copy(record, side, console.sink()),
    }
    .map(drop)
}

/// Writes one JSON object, whose last value is streamed.
fn object(
    contents: &Contents,
    record: &FileRecord,
    version: VersionName,
    console: &mut Console,
) -> Result<(), Error> {
    let side = version.side();
    contents.check(record, side)?;
    let head = serde_json::to_string(&CatJson { record, version, unavailable: None });
    let head = head.map_err(|error| Error::Sink(error.into()))?;
    let sink = console.sink();
    let write = |sink: &mut dyn io::Write, text: &str| sink.write_all(text.as_bytes()).map_err(Error::Sink);
    write(sink, head.strip_suffix('}').unwrap_or(&head))?;
    write(sink, ",\"content\":\"")?;
    let mut encoder = EncoderWriter::new(&mut *sink, &BASE64);
    contents.copy(record, side, &mut encoder)?;
    encoder.finish().map_err(Error::Sink)?;
    drop(encoder);
    write(sink, "\"}\n")
}

/// The object of `--json` without its `content`.
struct CatJson<'a> {
    record: &'a FileRecord,
    version: VersionName,
    unavailable: Option<&'a Unavailable>,
}

impl Serialize for CatJson<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut object = JsonObject(serializer.serialize_map(None)?);
        object.text("path", &self.record.path)?;
        let side = self.version.side();
        match self.version {
            VersionName::Side(side) => object.put("state", side.name())?,
            VersionName::Time(time) => object.put("at", &time.to_string())?,
        }
        if let Some(present) = state(self.record, side).present() {
            object.put("type", &present.file_type)?;
            object.put("size", &present.size)?;
            object.put_some("digest", &present.digest)?;
        }
        match (self.unavailable, locate(self.record, side)) {
            (Some(why), _) => object.put("unavailable", &why.to_string())?,
            (None, Ok(ContentSource::Blob { .. })) => object.put("source", "blob")?,
            (None, Ok(ContentSource::Git { oid, .. })) => {
                object.put("source", "git")?;
                object.put("oid", oid)?;
            }
            (None, Ok(ContentSource::Live { .. })) => object.put("source", "live")?,
            (None, Ok(ContentSource::Target(_) | ContentSource::Empty)) => object.put("source", "record")?,
            (None, Err(_)) => {}
        }
        object.0.end()
    }
}

#[cfg(test)]
mod tests;
