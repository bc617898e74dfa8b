//! What Git would make of a file's bytes on their way into the object database, as an object id.
//!
//! Line endings, `$Id$` and encodings are done here as convert.c does them; a filter driver is a
//! program and never run. Only Git LFS, whose result is a digest, is computed.

use std::path::Path;

use gix::ObjectId;
use gix::attrs::StateRef;
use gix::bstr::BStr;
use gix::filter::plumbing::{eol, ident, worktree};
use gix::hash::Kind;
use sha2::{Digest, Sha256};

use super::error::Error;
use super::files;
use super::objects::BlobHasher;
use crate::fs::{self, FileStat};

/// The attributes that decide, in the order in which [`Conversion::new`] takes their states.
pub(super) const ATTRIBUTES: [&str; 6] = ["crlf", "ident", "filter", "eol", "text", "working-tree-encoding"];

/// Files beyond this are compared as they are: converting takes memory in proportion.
const LIMIT: u64 = 32 << 20;

/// A filter driver, as far as it matters without running it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Driver {
    /// Git LFS.
    Lfs,
    /// Any other program.
    Unknown,
}

/// `core.autocrlf`: what holds for files without attributes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Eol {
    /// Bytes are left alone.
    Binary,
    /// CRLF becomes LF.
    Text,
    /// CRLF becomes LF where the content is text by Git's heuristic and the index has no CRLF.
    Auto,
}

/// What lies between a file and its blob.
#[derive(Debug, Clone, Copy)]
pub(super) struct Conversion {
    eol: Eol,
    ident: bool,
    driver: Option<Driver>,
    /// Whether attributes name a driver, configured or not: what was configured when the file was added is
    /// unknown.
    names_driver: bool,
    encoding: Encoding,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Encoding {
    None,
    /// One that has a decoder here.
    Known(&'static str, Bom),
    Unknown,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Bom {
    Any,
    Required,
    Prohibited,
}

impl Conversion {
    /// The conversion of a file without attributes.
    pub(super) fn default(eol: Eol) -> Conversion {
        Conversion { eol, ident: false, driver: None, names_driver: false, encoding: Encoding::None }
    }

    /// The conversion that the states of [`ATTRIBUTES`] ask for, after convert_attrs of Git.
    pub(super) fn new(
        default: Eol,
        states: [StateRef<'_>; 6],
        driver: impl Fn(&BStr) -> Option<Driver>,
    ) -> Conversion {
        let [crlf, ident, filter, eol, text, encoding] = states;
        let of_text = |state| match state {
            StateRef::Set => Some(Eol::Text),
            StateRef::Unset => Some(Eol::Binary),
            StateRef::Value(value) if value.as_bstr() == "input" => Some(Eol::Text),
            StateRef::Value(value) if value.as_bstr() == "auto" => Some(Eol::Auto),
            _ => None,
        };
        let eol_is_set =
            matches!(eol, StateRef::Value(value) if value.as_bstr() == "lf" || value.as_bstr() == "crlf");
        let eol = match of_text(text).or_else(|| of_text(crlf)) {
            None if eol_is_set => Eol::Text,
            None => default,
            Some(eol) => eol,
        };
        Conversion {
            eol,
            ident: matches!(ident, StateRef::Set),
            driver: match filter {
                StateRef::Value(name) => driver(name.as_bstr()),
                _ => None,
            },
            names_driver: matches!(filter, StateRef::Value(_)),
            encoding: match encoding {
                StateRef::Value(name) => Encoding::named(name.as_bstr()),
                _ => Encoding::None,
            },
        }
    }

    /// Whether the file with `stat` is compared with its blob byte by byte: nothing lies between them, or
    /// the file is too large to be converted.
    pub(super) fn compares_bytes(&self, stat: &FileStat) -> bool {
        self.is_none()
            || self.driver.is_none() && self.encoding != Encoding::Unknown && fs::size(stat) > LIMIT
    }

    /// Whether a blob always has the bytes of its file.
    fn is_none(&self) -> bool {
        self.eol == Eol::Binary && self.converts_lines_alone()
    }

    /// Whether a blob that was made from the file, by this configuration or an earlier one, and that is as
    /// long as the file, has the file's bytes: line endings only lose theirs.
    pub(super) fn only_shortens(&self) -> bool {
        self.converts_lines_alone() && !self.names_driver
    }

    fn converts_lines_alone(&self) -> bool {
        !self.ident && self.driver.is_none() && self.encoding == Encoding::None
    }

    /// The id of the blob that Git would make of the file at `path`.
    ///
    /// `indexed` fetches the blob that the index has there now.
    ///
    /// # Errors
    /// Only a filter driver could decide it, or the file is not the one that `stat` describes.
    pub(super) fn object_id(
        &self,
        path: &Path,
        stat: &FileStat,
        hash: Kind,
        indexed: &mut dyn FnMut(u64) -> Option<Vec<u8>>,
    ) -> Result<ObjectId, Error> {
        match self.driver {
            None => {}
            Some(Driver::Lfs) => return lfs_pointer(path, stat).and_then(|pointer| blob_id(&pointer, hash)),
            Some(Driver::Unknown) => return Err(Error::NeedsFilter),
        }
        if self.encoding == Encoding::Unknown {
            return Err(Error::NeedsFilter);
        }
        if fs::size(stat) > LIMIT {
            return file_id(path, stat, hash);
        }
        let mut bytes = Vec::new();
        files::stream(path, stat, &mut |chunk| bytes.extend_from_slice(chunk)).ok_or(Error::FileChanged)?;
        if let Encoding::Known(name, bom) = self.encoding
            && let Some(decoded) = decoded(&bytes, name, bom)
        {
            bytes = decoded;
        }
        let digest = match self.eol {
            Eol::Binary => eol::AttributesDigest::Binary,
            Eol::Text => eol::AttributesDigest::TextInput,
            Eol::Auto => eol::AttributesDigest::TextAutoInput,
        };
        let mut converted = Vec::new();
        let mut index_object = |buffer: &mut Vec<u8>| {
            Ok(indexed(LIMIT).map(|blob| {
                *buffer = blob;
            }))
        };
        let options = eol::convert_to_git::Options::default();
        if eol::convert_to_git(&bytes, digest, &mut converted, &mut index_object, options)
            .map_err(|_| Error::NeedsFilter)?
        {
            std::mem::swap(&mut bytes, &mut converted);
        }
        if self.ident && ident::undo(&bytes, &mut converted).map_err(|_| Error::NeedsFilter)? {
            std::mem::swap(&mut bytes, &mut converted);
        }
        blob_id(&bytes, hash)
    }
}

/// The id of the blob that has exactly the bytes of the file at `path`.
pub(super) fn file_id(path: &Path, stat: &FileStat, hash: Kind) -> Result<ObjectId, Error> {
    let mut hasher = BlobHasher::new(hash, fs::size(stat));
    files::stream(path, stat, &mut |chunk| hasher.update(chunk)).ok_or(Error::FileChanged)?;
    hasher.finish()
}

/// The id of the blob that has exactly these bytes.
pub(super) fn blob_id(bytes: &[u8], hash: Kind) -> Result<ObjectId, Error> {
    let mut hasher = BlobHasher::new(hash, bytes.len() as u64);
    hasher.update(bytes);
    hasher.finish()
}

/// What `git lfs clean` makes of a file: a pointer, unless it is empty or a pointer already.
fn lfs_pointer(path: &Path, stat: &FileStat) -> Result<Vec<u8>, Error> {
    const VERSION: &str = "version https://git-lfs.github.com/spec/v1\n";
    const LONGEST_POINTER: usize = 1024;
    let mut digest = Sha256::new();
    let mut beginning = Vec::new();
    files::stream(path, stat, &mut |chunk| {
        let room = LONGEST_POINTER.saturating_sub(beginning.len());
        beginning.extend_from_slice(&chunk[..chunk.len().min(room)]);
        digest.update(chunk);
    })
    .ok_or(Error::FileChanged)?;
    let size = fs::size(stat);
    if size == 0 || (size < LONGEST_POINTER as u64 && beginning.starts_with(VERSION.as_bytes())) {
        return Ok(beginning);
    }
    let digest = faster_hex::hex_string(&digest.finalize());
    Ok(format!("{VERSION}oid sha256:{digest}\nsize {size}\n").into_bytes())
}

impl Encoding {
    fn named(name: &BStr) -> Encoding {
        let upper = name.to_ascii_uppercase();
        match upper.as_slice() {
            b"" => Encoding::None,
            b"UTF-8" | b"UTF8" => Encoding::None,
            b"UTF-16" | b"UTF16" => Encoding::Known("utf-16", Bom::Required),
            b"UTF-16LE" | b"UTF16LE" => Encoding::Known("utf-16le", Bom::Prohibited),
            b"UTF-16BE" | b"UTF16BE" => Encoding::Known("utf-16be", Bom::Prohibited),
            b"UTF-16LE-BOM" | b"UTF16LE-BOM" => Encoding::Known("utf-16", Bom::Required),
            // iconv and the decoder at hand agree on these; on others they may not.
            b"ISO-8859-15" => Encoding::Known("iso-8859-15", Bom::Any),
            b"SHIFT-JIS" | b"SHIFT_JIS" | b"SJIS" => Encoding::Known("shift_jis", Bom::Any),
            b"CP1251" | b"WINDOWS-1251" => Encoding::Known("windows-1251", Bom::Any),
            b"EUC-JP" => Encoding::Known("euc-jp", Bom::Any),
            b"KOI8-R" => Encoding::Known("koi8-r", Bom::Any),
            _ => Encoding::Unknown,
        }
    }
}

/// The UTF-8 of `bytes`; none where Git leaves them as they are, with a warning.
fn decoded(bytes: &[u8], name: &str, bom: Bom) -> Option<Vec<u8>> {
    let big = bytes.starts_with(b"\xfe\xff");
    let marked = big || bytes.starts_with(b"\xff\xfe");
    let unfit = match bom {
        Bom::Any => false,
        Bom::Required => !marked,
        Bom::Prohibited => marked,
    };
    if unfit || bytes.is_empty() {
        return None;
    }
    let name = if bom == Bom::Required && big { "utf-16be" } else { name };
    let encoding = worktree::encoding::for_label(name).ok()?;
    let mut decoded = Vec::new();
    let check = worktree::encode_to_git::RoundTripCheck::Skip;
    worktree::encode_to_git(bytes, encoding, &mut decoded, check).ok()?;
    Some(decoded)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_conversion_that_can_only_shorten_is_line_endings() {
        let none = |_: &BStr| None;
        let states = [StateRef::Unspecified; 6];
        assert!(Conversion::new(Eol::Binary, states, none).is_none());
        let mut text = states;
        text[4] = StateRef::from_bytes(b"auto");
        let text = Conversion::new(Eol::Binary, text, none);
        assert!(!text.is_none() && text.only_shortens());
        let mut ident = states;
        ident[1] = StateRef::Set;
        assert!(!Conversion::new(Eol::Binary, ident, none).only_shortens());
        let mut filter = states;
        filter[2] = StateRef::from_bytes(b"x");
        let unconfigured = Conversion::new(Eol::Binary, filter, none);
        assert!(unconfigured.is_none(), "an unconfigured driver is none");
        assert!(!unconfigured.only_shortens(), "it may have been configured when the file was added");
        assert!(!Conversion::new(Eol::Binary, filter, |_| Some(Driver::Unknown)).is_none());
    }
}
