//! `packed-refs`: a change of it, applied to what it is now.

use std::collections::{BTreeMap, BTreeSet};

use gix::ObjectId;
use gix::bstr::ByteSlice as _;

/// What a header begins with.
const HEADER: &[u8] = b"# pack-refs with:";

/// The name by which a file that can't be parsed is reported.
const FILE: &[u8] = b"packed-refs";

/// The references of a `packed-refs` file, by name.
struct PackedRefs<'a> {
    /// The first line, with its line feed, where it is a header.
    header: Option<&'a [u8]>,
    references: BTreeMap<&'a [u8], PackedRef<'a>>,
}

/// The lines of one reference, and the object that the first one names.
#[derive(Clone, Copy)]
struct PackedRef<'a> {
    oid: ObjectId,
    lines: &'a [u8],
}

/// Makes the change that leads from the bytes `from` to `to` in those of `live`: the references that differ
/// are set as `to` has them, all others stay as they are. An absent file is empty, in the result too.
///
/// # Errors
/// The names of the references that are neither as in `from` nor as in `to`, unless `force` sets these, too; or
/// `packed-refs` where a file can't be parsed.
pub fn merge_packed_refs(live: &[u8], from: &[u8], to: &[u8], force: bool) -> Result<Vec<u8>, Vec<Vec<u8>>> {
    if live == from || live == to {
        return Ok(to.to_vec());
    }
    let to_is_absent = to.is_empty();
    let parsed = |bytes| PackedRefs::parse(bytes).ok_or_else(|| vec![FILE.to_vec()]);
    let (mut merged, from, to) = (parsed(live)?, parsed(from)?, parsed(to)?);
    let mut conflicts = Vec::new();
    let mut added = false;
    let names = from.references.keys().chain(to.references.keys().filter(|name| !from.has(name)));
    for name in names.copied() {
        let (now, old, new) = (merged.oid(name), from.oid(name), to.oid(name));
        if old == new || now == new {
            continue;
        }
        if now != old && !force {
            conflicts.push(name.to_vec());
            continue;
        }
        match to.references.get(name) {
            Some(reference) => {
                added = true;
                merged.references.insert(name, *reference);
            }
            None => drop(merged.references.remove(name)),
        }
    }
    if !conflicts.is_empty() {
        conflicts.sort_unstable();
        return Err(conflicts);
    }
    if merged.header.is_none() && live.is_empty() {
        merged.header = to.header;
    } else if added && merged.header != to.header {
        // What the header says of peeled tags was written of its own lines only.
        merged.header = Some(b"# pack-refs with: sorted \n");
    }
    if merged.references.is_empty() && (live.is_empty() || to_is_absent) {
        return Ok(Vec::new());
    }
    Ok(merged.to_bytes())
}

/// The references of a file, and the objects that they name; none if it can't be parsed.
pub fn packed_references(bytes: &[u8]) -> BTreeMap<&[u8], ObjectId> {
    let references = PackedRefs::parse(bytes).map(|file| file.references).unwrap_or_default();
    references.into_iter().map(|(name, reference)| (name, reference.oid)).collect()
}

/// The references in which two files differ, and the objects that the second one names; none where one can't be
/// parsed.
pub fn changed_packed_refs(from: &[u8], to: &[u8]) -> Vec<(Vec<u8>, Option<ObjectId>)> {
    let (Some(from), Some(to)) = (PackedRefs::parse(from), PackedRefs::parse(to)) else { return Vec::new() };
    let names: BTreeSet<_> = from.references.keys().chain(to.references.keys()).copied().collect();
    let changed = names.into_iter().filter(|name| from.oid(name) != to.oid(name));
    changed.map(|name| (name.to_vec(), to.oid(name))).collect()
}

impl<'a> PackedRefs<'a> {
    /// Parses a file; none where Git would not read it either, or a name is there twice.
    fn parse(bytes: &'a [u8]) -> Option<PackedRefs<'a>> {
        let mut lines = bytes.lines_with_terminator().peekable();
        let header = lines.next_if(|line| line.starts_with(HEADER));
        let mut references = BTreeMap::new();
        // Where the next line begins.
        let mut at = header.map_or(0, <[u8]>::len);
        while let Some(line) = lines.next() {
            let peeled = lines.next_if(|line| line.starts_with(b"^"));
            let end = at + line.len() + peeled.map_or(0, <[u8]>::len);
            let (oid, name) = line.strip_suffix(b"\n")?.split_once_str(b" ")?;
            let oid = ObjectId::from_hex(oid).ok()?;
            if let Some(peeled) = peeled {
                ObjectId::from_hex(peeled.strip_prefix(b"^")?.strip_suffix(b"\n")?).ok()?;
            }
            if references.insert(name, PackedRef { oid, lines: &bytes[at..end] }).is_some() {
                return None;
            }
            at = end;
        }
        Some(PackedRefs { header, references })
    }

    fn has(&self, name: &[u8]) -> bool {
        self.references.contains_key(name)
    }

    fn oid(&self, name: &[u8]) -> Option<ObjectId> {
        self.references.get(name).map(|reference| reference.oid)
    }

    /// The file with these references, sorted by name.
    fn to_bytes(&self) -> Vec<u8> {
        let lines = self.references.values().map(|reference| reference.lines);
        self.header.into_iter().chain(lines).collect::<Vec<_>>().concat()
    }
}

#[cfg(test)]
mod tests;
