//! `cat`: writes the recorded bytes of one path. Neighbour: `snapshot::source`, which has them.

use std::io;

use base64::engine::general_purpose::STANDARD as BASE64;
use base64::write::EncoderWriter;
use serde::ser::{Serialize, SerializeMap as _, Serializer};

use super::exit::{Exit, VerbResult};
use super::level::without_record;
use super::open::open;
use super::out::{Console, OutputError};
use super::paths::{self, quoted};
use crate::cli::Cat;
use crate::snapshot::blobs::Side;
use crate::snapshot::compare::state;
use crate::snapshot::source::{ContentSource, Contents, Unavailable, locate};
use crate::snapshot::wire::JsonObject;
use crate::snapshot::{Error, FileRecord, Present};

/// Streams the content of `args.path` to the result; holes of a sparse file become zeros, unless the
/// result is a regular file.
///
/// If the bytes turn out to be bad in the middle, the result ends there, with an error.
pub fn run(args: &Cat, console: &mut Console) -> VerbResult {
    let snapshot = open(&args.snap, &args.access, console)?;
    let side = if args.before { Side::Before } else { Side::After };
    let record = match paths::find(&snapshot, &args.path)? {
        Ok(record) => record,
        Err(path) => {
            let path = quoted(&path);
            console.say(format_args!("cat {path}: {}", without_record(&snapshot)));
            return Ok(Exit::Finding);
        }
    };
    let contents = Contents::new(&snapshot);
    let written = if args.json {
        object(&contents, record, side, console)
    } else {
        raw(&contents, record, side, console)
    };
    match written {
        Ok(()) => Ok(Exit::Success),
        Err(Error::Unavailable(why)) => {
            if args.json {
                console.json(&CatJson { record, side, unavailable: Some(&why) })?;
            }
            let hint = match (&why, side, record.before.present()) {
                (Unavailable::Absent, Side::After, Some(_)) => "; --before shows what was",
                _ => "",
            };
            let (path, side) = (quoted(&record.path), side.name());
            console
                .say(format_args!("cat {path}: its content {side} the command is unavailable: {why}{hint}"));
            Ok(Exit::Finding)
        }
        Err(Error::Sink(error)) => Err(OutputError::from(error).into()),
        Err(error) => Err(error.into()),
    }
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
fn object(contents: &Contents, record: &FileRecord, side: Side, console: &mut Console) -> Result<(), Error> {
    contents.check(record, side)?;
    let head = serde_json::to_string(&CatJson { record, side, unavailable: None });
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
    side: Side,
    unavailable: Option<&'a Unavailable>,
}

impl Serialize for CatJson<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut object = JsonObject(serializer.serialize_map(None)?);
        object.text("path", &self.record.path)?;
        object.put("state", self.side.name())?;
        if let Some(present) = state(self.record, self.side).present() {
            object.put("type", &present.file_type)?;
            object.put("size", &present.size)?;
            object.put_some("digest", &present.digest)?;
        }
        match (self.unavailable, locate(self.record, self.side)) {
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
