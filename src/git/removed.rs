//! Objects that were removed from a repository: whether it has them still, and how to get them back out of a
//! pack that has no name any more.
//!
//! The indexes of packs are read into memory, as that of a working tree is: truncating a mapped file would end
//! this process. A removed pack is mapped, since it can be larger than the memory: Git writes to no finished pack,
//! and only a program that has it open can still reach it. Neighbours: `layout.rs` tells the paths of objects;
//! `objects.rs` reads the objects of a repository that is open.

use std::collections::{BTreeSet, HashMap};
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsRawFd as _;
use std::path::PathBuf;

use gix::ObjectId;
use gix::bstr::ByteSlice as _;
use gix::hash::Kind;
use gix::odb::pack::cache::Never;
use gix::odb::pack::data::decode::entry::ResolvedBase;
use gix::odb::pack::{data, index};
use gix::zlib::stream::deflate;
use gix::zlib::{Compression, Decompress, FlushDecompress, Inflate, Status};

use super::files;
use super::layout::{in_objects_directory, is_loose};
use super::paths::path_of;
use crate::fs::{self, Signature};

/// More than thirty million objects.
const INDEX_LIMIT: u64 = 1 << 30;

/// What the index of a pack begins with, since Git 1.6.
const INDEX_MAGIC: &[u8] = b"\xfftOc\0\0\0\x02";

/// What resolving the deltas of one object may take. Git stores what is larger than `core.bigFileThreshold`
/// (512 MiB) whole.
const DELTA_LIMIT: usize = 2 << 30;

/// Boxed, since the table of its first bytes is part of it.
type PackIndex = Box<index::File<Vec<u8>>>;

/// The objects directory and the id of the loose object that has its file at `path`.
pub fn loose_object(path: &[u8]) -> Option<(&[u8], ObjectId)> {
    let (directory, below) = in_objects_directory(path)?;
    let (fan, rest) = below.split_once_str("/")?;
    let id = ObjectId::from_hex(&[fan, rest].concat()).ok().filter(|_| is_loose(fan, rest))?;
    Some((directory, id))
}

/// The path of the file that the object `id` has, when it is a loose one.
pub fn loose_path(directory: &[u8], id: &ObjectId) -> Vec<u8> {
    let mut hex = Kind::hex_buf();
    let (fan, rest) = id.hex_to_buf(&mut hex).split_at(2);
    [directory, fan.as_bytes(), rest.as_bytes()].join(&b'/')
}

/// The objects directory and the name, without its extension, of the pack that the file at `path` belongs to.
pub fn pack_file(path: &[u8]) -> Option<(&[u8], &[u8])> {
    let (directory, below) = in_objects_directory(path)?;
    let name = below.strip_prefix(b"pack/").filter(|name| !name.contains(&b'/'))?;
    let (stem, _extension) = name.split_once_str(".")?;
    stem.starts_with(b"pack-").then_some((directory, stem))
}

/// The objects that an objects directory has at the time of the question. Alternates don't count.
pub struct ObjectsDirectory {
    path: Vec<u8>,
    /// The signature of the directory of packs when it was listed; none if it has to be listed again.
    listed: Option<Signature>,
    /// By name, without an extension.
    packs: HashMap<Vec<u8>, LivePack>,
}

struct LivePack {
    signature: Signature,
    /// None where it can't be read.
    index: Option<PackIndex>,
}

impl ObjectsDirectory {
    /// Prepares questions about the objects directory at `path`, which need not be there.
    pub fn open(path: &[u8]) -> ObjectsDirectory {
        ObjectsDirectory { path: path.to_vec(), listed: None, packs: HashMap::new() }
    }

    /// Whether it has the object, loose or in a pack.
    pub fn has(&mut self, id: &ObjectId) -> bool {
        self.has_packed(id) || self.has_loose(id)
    }

    /// Those of the objects that it does not have.
    pub fn lacks<C: FromIterator<ObjectId>>(&mut self, ids: impl IntoIterator<Item = ObjectId>) -> C {
        self.list();
        ids.into_iter().filter(|id| !self.is_in_listed_pack(id) && !self.has_loose(id)).collect()
    }

    /// Whether one of its packs has the object.
    pub fn has_packed(&mut self, id: &ObjectId) -> bool {
        self.list();
        self.is_in_listed_pack(id)
    }

    fn is_in_listed_pack(&self, id: &ObjectId) -> bool {
        let mut indexes = self.packs.values().filter_map(|pack| pack.index.as_ref());
        indexes.any(|index| index.object_hash() == id.kind() && index.lookup(id).is_some())
    }

    fn has_loose(&self, id: &ObjectId) -> bool {
        let found = fs::lstat(&loose_path(&self.path, id)).ok().flatten();
        found.is_some_and(|found| fs::is_regular(&found) && found.st_size > 0)
    }

    /// Lists the packs again if they may be others than those that were listed.
    fn list(&mut self) {
        let directory = path_of(&[self.path.as_slice(), b"/pack"].concat());
        // It comes first: a later one could hide a change.
        let signature = directory.metadata().ok().as_ref().map(Signature::from);
        if signature.is_some() && signature == self.listed {
            return;
        }
        self.listed = signature.filter(|signature| !signature.is_recent());
        let mut known = std::mem::take(&mut self.packs);
        for entry in directory.read_dir().into_iter().flatten().flatten() {
            let name = entry.file_name();
            let Some(stem) = std::os::unix::ffi::OsStrExt::as_bytes(name.as_os_str()).strip_suffix(b".idx")
            else {
                continue;
            };
            let index = [self.path.as_slice(), b"/pack/", stem, b".idx"].concat();
            let pack = [self.path.as_slice(), b"/pack/", stem, b".pack"].concat();
            let found = |path: &[u8]| fs::lstat(path).ok().flatten().filter(fs::is_regular);
            let (Some(found), Some(_)) = (found(&index), found(&pack)) else { continue };
            let signature = Signature::from(&found);
            let live = match known.remove(stem).filter(|known| known.signature == signature) {
                Some(known) => known,
                None => LivePack { signature, index: fs::open_regular(&index).ok().and_then(read_index) },
            };
            self.packs.insert(stem.to_vec(), live);
        }
    }
}

/// Reads the index of a pack; none where it can't be parsed.
fn read_index(file: File) -> Option<PackIndex> {
    parse_index(files::read_open_written(file, INDEX_LIMIT, INDEX_MAGIC)?)
}

/// Takes the objects out of `ids` that the pack has whose index `bytes` are.
pub fn retain_unpacked(ids: &mut BTreeSet<ObjectId>, bytes: Vec<u8>) {
    if let Some(index) = parse_index(bytes) {
        ids.retain(|id| index.object_hash() != id.kind() || index.lookup(id).is_none());
    }
}

fn parse_index(bytes: Vec<u8>) -> Option<PackIndex> {
    // Its size tells the kind of hash, which it does not name.
    let fits = |hash: &Kind| index::File::from_data(bytes.as_slice(), PathBuf::new(), *hash).is_ok();
    let hash = [Kind::Sha1, Kind::Sha256].into_iter().find(fits)?;
    index::File::from_data(bytes, PathBuf::new(), hash).ok().map(Box::new)
}

/// A pack that was removed, by descriptors of its files.
pub struct RemovedPack {
    pack: data::File<gix::odb::pack::MMap>,
    index: PackIndex,
}

impl RemovedPack {
    /// Opens the two files, which may have no name, anew: offsets that `pack` and `index` share stay.
    ///
    /// # Errors
    /// One of them can't be read, or they don't belong together.
    pub fn open(pack: File, index: File) -> io::Result<RemovedPack> {
        let index =
            read_index(fs::reopen(&index)?).ok_or_else(|| damaged("the index of the pack is damaged"))?;
        let pack = fs::reopen(&pack)?;
        let path = PathBuf::from(format!("/proc/self/fd/{}", pack.as_raw_fd()));
        let pack = data::File::at(path, index.object_hash()).map_err(damaged)?;
        let pack = pack.with_alloc_limit_bytes(Some(DELTA_LIMIT));
        if pack.num_objects() != index.num_objects() || pack.checksum() != index.pack_checksum() {
            return Err(damaged("the index is not that of the pack"));
        }
        Ok(RemovedPack { pack, index })
    }

    /// Whether it has an object.
    pub fn has(&self, id: &ObjectId) -> bool {
        self.index.lookup(id).is_some()
    }

    /// Its length in bytes.
    pub fn length(&self) -> u64 {
        self.pack.data_len() as u64
    }

    /// How many of its bytes these objects take, compressed and as differences from others.
    pub fn size_of(&self, ids: &[ObjectId]) -> u64 {
        let starts = self.index.sorted_offsets();
        let end_of = |start: u64| starts.get(starts.partition_point(|other| *other <= start)).copied();
        let sizes = ids.iter().filter_map(|id| {
            let start = self.index.pack_offset_at_index(self.index.lookup(id)?);
            Some(end_of(start).unwrap_or(self.length()).saturating_sub(start))
        });
        // The offsets in a damaged index can be any numbers.
        sizes.fold(0, u64::saturating_add)
    }

    /// The ids of its objects, sorted.
    pub fn ids(&self) -> impl Iterator<Item = ObjectId> {
        (0..self.index.num_objects()).map(|at| self.index.oid_at_index(at).to_owned())
    }

    /// The ids of those that `directory` does not have.
    pub fn missing(&self, directory: &mut ObjectsDirectory) -> Vec<ObjectId> {
        directory.lacks(self.ids())
    }

    /// Writes the file of the loose object `id` to `out`, and returns the kind and the size of the object. What
    /// was written before an error is of no use.
    ///
    /// # Errors
    /// The pack does not have the object, or other bytes than those of its id; it can't be decoded within 2 GiB of
    /// memory; or writing fails.
    pub fn write_loose(&self, id: &ObjectId, out: impl Write) -> io::Result<(gix::objs::Kind, u64)> {
        let absent = || io::Error::new(io::ErrorKind::NotFound, format!("{id} is not in the pack"));
        let at = self.index.lookup(id).ok_or_else(absent)?;
        let entry = self.pack.entry(self.index.pack_offset_at_index(at)).map_err(damaged)?;
        let out = deflate::Write::new(out, Compression::BEST_SPEED);
        let mut out = gix::hash::io::Write::new(out, id.kind());
        let (kind, size) = match entry.header.as_kind() {
            // Not in memory: it may be large.
            Some(kind) => {
                let size = entry.decompressed_size;
                out.write_all(&gix::objs::encode::loose_header(kind, size))?;
                let bytes = self.pack.entry_slice(entry.data_offset..self.pack.data_len() as u64);
                inflate(bytes.unwrap_or_default(), size, &mut out)?;
                (kind, size)
            }
            None => {
                let mut bytes = Vec::new();
                let resolve = |id: &gix::oid, _: &mut Vec<u8>| {
                    let at = self.index.lookup(id);
                    let base = at.map(|at| self.pack.entry(self.index.pack_offset_at_index(at)));
                    Ok(base.transpose()?.map(ResolvedBase::InPack))
                };
                let decoded =
                    self.pack.decode_entry(entry, &mut bytes, &mut Inflate::default(), &resolve, &mut Never);
                let kind = decoded.map_err(damaged)?.kind;
                let size = bytes.len() as u64;
                out.write_all(&gix::objs::encode::loose_header(kind, size))?;
                out.write_all(&bytes)?;
                (kind, size)
            }
        };
        // Ends the compressed stream.
        out.flush()?;
        if out.hash.try_finalize().map_err(damaged)? != *id {
            return Err(damaged("the object has other bytes than those of its id"));
        }
        Ok((kind, size))
    }
}

/// Writes the `size` bytes of the zlib stream that `bytes` begin with to `out`.
fn inflate(mut bytes: &[u8], size: u64, out: &mut impl Write) -> io::Result<()> {
    let mut state = Decompress::new();
    let mut buffer = vec![0; 1 << 16];
    loop {
        let (read, written) = (state.total_in(), state.total_out());
        let status = state.decompress(bytes, &mut buffer, FlushDecompress::None).map_err(damaged)?;
        let step = |now: u64, before: u64| usize::try_from(now - before).unwrap_or(usize::MAX);
        let (read, written) = (step(state.total_in(), read), step(state.total_out(), written));
        bytes = bytes.get(read..).unwrap_or_default();
        out.write_all(buffer.get(..written).unwrap_or_default())?;
        if status == Status::StreamEnd && state.total_out() == size {
            return Ok(());
        }
        if status == Status::StreamEnd || state.total_out() > size || read == 0 && written == 0 {
            return Err(damaged("the object has not the size that the pack says"));
        }
    }
}

fn damaged(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}

#[cfg(test)]
mod tests;
