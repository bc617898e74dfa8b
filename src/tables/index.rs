//! Which recordings the tables have: those of the table `recordings`, day by day.
//!
//! `_index/DATE.json` has what its files said when they were last read, so that a second export opens only what is new.
//! It can be removed at any time. Neighbour: `reader.rs` reads the files.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs;
use std::io;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::reader::TableReader;
use super::{TABLES, is_table_file, names_in, partition};
use crate::snapshot::Error;

/// The directory of the index.
const INDEX: &str = "_index";

/// The identifiers of the recordings of each day that was asked for.
#[derive(Debug)]
pub struct Index {
    directory: PathBuf,
    days: HashMap<String, BTreeSet<String>>,
}

/// What a file has, by its name.
type Listing = BTreeMap<String, Listed>;

#[derive(Serialize, Deserialize)]
struct Listed {
    /// A file of another size or time is read again.
    size: u64,
    modified: (i64, i64),
    recordings: Vec<String>,
}

impl Index {
    /// The index of the tables in a directory.
    pub fn new(directory: &Path) -> Index {
        Index { directory: directory.to_owned(), days: HashMap::new() }
    }

    /// The identifiers of the recordings of a day. Each day is listed once.
    pub fn day(&mut self, date: &str) -> Result<&mut BTreeSet<String>, Error> {
        if !self.days.contains_key(date) {
            let recordings = self.read(date)?;
            self.days.insert(date.to_owned(), recordings);
        }
        Ok(self.days.entry(date.to_owned()).or_default())
    }

    /// Has the days listed again.
    pub fn forget(&mut self) {
        self.days.clear();
    }

    fn read(&self, date: &str) -> Result<BTreeSet<String>, Error> {
        let path = self.directory.join(INDEX).join(format!("{date}.json"));
        let mut known: Listing =
            fs::read(&path).ok().and_then(|text| serde_json::from_slice(&text).ok()).unwrap_or_default();
        let partition = partition(&self.directory, TABLES[0], date);
        let (mut listing, mut is_new) = (Listing::new(), false);
        for name in names_in(&partition)? {
            let Some(name) = name.to_str().filter(|name| is_table_file(name)) else { continue };
            let path = partition.join(name);
            let stat = fs::metadata(&path).map_err(Error::io("stat", &path))?;
            let (size, modified) = (stat.len(), (stat.mtime(), stat.mtime_nsec()));
            let listed = match known.remove(name) {
                Some(listed) if (listed.size, listed.modified) == (size, modified) => listed,
                _ => {
                    is_new = true;
                    Listed { size, modified, recordings: TableReader::open(&path)?.recordings()? }
                }
            };
            listing.insert(name.to_owned(), listed);
        }
        if is_new || !known.is_empty() {
            // Without it the files are read again.
            let _ = write(&path, &listing);
        }
        Ok(listing.into_values().flat_map(|listed| listed.recordings).collect())
    }
}

fn write(path: &Path, listing: &Listing) -> io::Result<()> {
    let unfinished = path.with_extension("tmp");
    fs::create_dir_all(path.parent().unwrap_or(path))?;
    let mut options = fs::File::options();
    let file = options.write(true).create(true).truncate(true).mode(0o600).open(&unfinished)?;
    let mut file = io::BufWriter::new(file);
    serde_json::to_writer(&mut file, listing)?;
    file.into_inner().map_err(io::IntoInnerError::into_error)?;
    fs::rename(unfinished, path)
}
