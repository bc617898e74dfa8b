//! A library with many recordings, made of one.

use std::fs;
use std::path::Path;

use serde_json::Value;

/// One recording of so many changes the path `shared`.
const SHARE: usize = 500;

/// Makes `count` snapshots of the one in a library, with their lines in the log.
///
/// The one has created `directory/file` and `shared`. The others differ in paths and times, and their bytes are hard
/// links.
pub fn multiply(library: &Path, count: usize) {
    let snapshots = library.join("snapshots");
    let first = fs::read_dir(&snapshots).expect("list").next().expect("one is there").expect("list").path();
    let manifest: Value = read(&first.join("manifest.json"));
    let line: Value = read(&library.join("log.jsonl"));
    let mut log = Vec::new();
    for number in 0..count {
        let mut id = String::from("aa");
        (0..6).for_each(|digit| {
            id.push(char::from(b'a' + u8::try_from(number >> (4 * digit) & 15).expect("15 at most")))
        });
        let start =
            jiff::Timestamp::UNIX_EPOCH + jiff::SignedDuration::from_secs(1_767_225_600 + number as i64);
        let (start, end) = (start.to_string(), (start + jiff::SignedDuration::from_millis(500)).to_string());
        let mut copy = manifest.clone();
        let whole_id = format!("{id}{}", &manifest["id"].as_str().expect("an id")[8..]);
        (copy["id"], copy["started_at"], copy["finished_at"]) =
            (whole_id.into(), start.as_str().into(), end.as_str().into());
        let files = copy["files"].as_array_mut().expect("records");
        files.retain(|file| {
            !file["path"].as_str().expect("a path").ends_with("/shared") || number % SHARE == 0
        });
        for file in files.iter_mut() {
            let path = file["path"].as_str().expect("a path").to_owned();
            let path = path.replace("/file", &format!("/file{number}"));
            file["path"] = path.replace("/directory", &format!("/directory{}", number % 100)).into();
        }
        files.sort_by(|one, other| one["path"].as_str().cmp(&other["path"].as_str()));
        let directory = snapshots.join(&id);
        fs::create_dir(&directory).expect("make a directory");
        fs::hard_link(first.join("blobs.parquet"), directory.join("blobs.parquet")).expect("link");
        fs::write(directory.join("manifest.json"), copy.to_string()).expect("write");
        let mut line = line.clone();
        (line["id"], line["time"], line["finished"]) = (id.into(), start.into(), end.into());
        log.extend(format!("{line}\n").into_bytes());
    }
    fs::write(library.join("log.jsonl"), log).expect("write");
    fs::remove_dir_all(first).expect("remove the first one");
}

fn read(path: &Path) -> Value {
    serde_json::from_slice(&fs::read(path).expect("read")).expect("JSON")
}
