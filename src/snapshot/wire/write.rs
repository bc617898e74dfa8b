//! Manifest to JSON, one record at a time.

use std::borrow::Borrow;
use std::cell::{Cell, RefCell};
use std::io::{self, BufWriter, Seek, SeekFrom, Write};

use serde::ser::{SerializeMap, SerializeSeq as _};
use serde::{Serialize, Serializer};
use serde_json::ser::{CompactFormatter, Formatter};

use super::super::enforcement::{RefusedSubject, RefusedUse};
use super::super::manifest::*;
use super::super::network::{NetworkAddress, NetworkUse};
use super::text::{Base64, encode, needs_bytes, shown};

/// Where the digit of the format version is: before all that decides it.
const VERSION_AT: u64 = "{\n\"format_version\":".len() as u64;

/// Writes `manifest.json`: the header, then one record a line, taken from `files` as they come; those of Git's own
/// state follow as a list of their own. The format version is the oldest that has what they need.
///
/// `files` must be sorted by path bytes, one a path. Nothing but the record at hand and Git's are in memory.
/// The output is buffered here and flushed at the end.
pub fn write_manifest<I>(out: impl Write + Seek, header: &Header, files: I) -> io::Result<()>
where
    I: IntoIterator<Item: Borrow<FileRecord>>,
{
    let mut out = BufWriter::with_capacity(64 << 10, out);
    let start = out.stream_position()?;
    let document = ManifestDocument {
        header,
        files: RefCell::new(Some(files.into_iter())),
        git_files: RefCell::default(),
        needs_version_2: Cell::new(false),
    };
    let mut serializer = serde_json::Serializer::with_formatter(&mut out, LinePerElement::default());
    document.serialize(&mut serializer)?;
    out.write_all(b"\n")?;
    if document.needs_version_2.get() {
        out.seek(SeekFrom::Start(start + VERSION_AT))?;
        // An older reader would not know the digest of a sparse file, what the holes between its rows mean, a record
        // without states, nor Git's state.
        out.write_all(b"2")?;
        out.seek(SeekFrom::End(0))?;
    }
    out.flush()
}

struct ManifestDocument<'a, I> {
    header: &'a Header,
    /// serde borrows a value to write it, and an iterator can be used only once.
    files: RefCell<Option<I>>,
    /// Those of Git's state that came among them.
    git_files: RefCell<Vec<FileRecord>>,
    /// Whether a file that was written is sparse, has no states, or is Git's.
    needs_version_2: Cell<bool>,
}

impl<I: Iterator<Item: Borrow<FileRecord>>> Serialize for ManifestDocument<'_, I> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut object = JsonObject(serializer.serialize_map(None)?);
        object.put("format_version", &1)?;
        header(&mut object, self.header)?;
        object.put("files", &Records(self))?;
        let mut git_files = self.git_files.take();
        git_files.sort_by(|one, other| one.path.cmp(&other.path));
        object.put("git_files", &git_files)?;
        object.0.end()
    }
}

struct Records<'a, I>(&'a ManifestDocument<'a, I>);

impl<I: Iterator<Item: Borrow<FileRecord>>> Serialize for Records<'_, I> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut sequence = serializer.serialize_seq(None)?;
        for record in self.0.files.borrow_mut().take().into_iter().flatten() {
            let record: &FileRecord = record.borrow();
            let is_sparse = |state: &State| state.present().is_some_and(Present::is_sparse);
            if is_sparse(&record.before)
                || is_sparse(&record.after)
                || record.is_without_states()
                || record.is_git_state
            {
                self.0.needs_version_2.set(true);
            }
            if record.is_git_state {
                self.0.git_files.borrow_mut().push(record.clone());
                continue;
            }
            sequence.serialize_element(record)?;
        }
        sequence.end()
    }
}

/// Compact JSON with each key of the top level and each element of a list in it on its own line.
#[derive(Default)]
struct LinePerElement {
    depth: usize,
}

impl Formatter for LinePerElement {
    fn begin_object<W: ?Sized + Write>(&mut self, out: &mut W) -> io::Result<()> {
        if self.depth == 2 {
            out.write_all(b"\n")?;
        }
        self.depth += 1;
        CompactFormatter.begin_object(out)
    }

    fn end_object<W: ?Sized + Write>(&mut self, out: &mut W) -> io::Result<()> {
        self.depth -= 1;
        CompactFormatter.end_object(out)
    }

    fn begin_array<W: ?Sized + Write>(&mut self, out: &mut W) -> io::Result<()> {
        self.depth += 1;
        CompactFormatter.begin_array(out)
    }

    fn end_array<W: ?Sized + Write>(&mut self, out: &mut W) -> io::Result<()> {
        self.depth -= 1;
        CompactFormatter.end_array(out)
    }

    fn begin_object_key<W: ?Sized + Write>(&mut self, out: &mut W, first: bool) -> io::Result<()> {
        CompactFormatter.begin_object_key(out, first)?;
        if self.depth == 1 { out.write_all(b"\n") } else { Ok(()) }
    }
}

/// A JSON object that is being written, with the rules of the format for what is left out.
pub(crate) struct JsonObject<M>(pub(crate) M);

impl<M: SerializeMap> JsonObject<M> {
    pub(crate) fn put<T: Serialize + ?Sized>(&mut self, key: &str, value: &T) -> Result<(), M::Error> {
        self.0.serialize_entry(key, value)
    }

    pub(crate) fn put_some<T: Serialize>(&mut self, key: &str, value: &Option<T>) -> Result<(), M::Error> {
        value.as_ref().map_or(Ok(()), |value| self.put(key, value))
    }

    pub(crate) fn put_true(&mut self, key: &str, value: bool) -> Result<(), M::Error> {
        if value { self.put(key, &true) } else { Ok(()) }
    }

    pub(crate) fn text(&mut self, key: &str, bytes: &[u8]) -> Result<(), M::Error> {
        self.put(key, shown(bytes).as_ref())?;
        if needs_bytes(bytes) { self.put(&format!("{key}_bytes"), &Base64(bytes)) } else { Ok(()) }
    }

    pub(crate) fn text_some(&mut self, key: &str, bytes: &Option<Vec<u8>>) -> Result<(), M::Error> {
        bytes.as_ref().map_or(Ok(()), |bytes| self.text(key, bytes))
    }

    pub(crate) fn texts(&mut self, key: &str, list: &[Vec<u8>]) -> Result<(), M::Error> {
        self.put(key, &Each(|| list.iter().map(|bytes| shown(bytes))))?;
        if list.iter().any(|bytes| needs_bytes(bytes)) {
            self.put(&format!("{key}_bytes"), &Each(|| list.iter().map(Base64)))?;
        }
        Ok(())
    }
}

/// A list made while it is written.
pub(crate) struct Each<F>(pub(crate) F);

impl<F: Fn() -> I, I: Iterator<Item: Serialize>> Serialize for Each<F> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq((self.0)())
    }
}

/// Serializes a type as the object that `fill` makes of it.
macro_rules! object {
    ($type:ident, $fill:expr) => {
        impl Serialize for $type {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                let mut object = JsonObject(serializer.serialize_map(None)?);
                $fill(&mut object, self)?;
                object.0.end()
            }
        }
    };
}

object!(Header, header);
object!(Recallable, recallable);
object!(Suppressed, suppressed);
object!(LeftOutUse, left_out_use);
object!(PrivateMount, private_mount);
object!(GitRepository, repository);
object!(NetworkUse, network_use);
object!(RefusedUse, refused_use);
object!(Exec, exec);
object!(RecordedProcess, process);
object!(FileRecord, file);
object!(PathUse, path_use);
object!(State, state);
object!(GitStatus, git);

fn header<M: SerializeMap>(object: &mut JsonObject<M>, header: &Header) -> Result<(), M::Error> {
    object.put("id", &header.id)?;
    object.put("kind", &header.kind)?;
    object.put_some("name", &header.name)?;
    object.put_some("session", &header.session)?;
    object.put_some("step", &header.step)?;
    object.put("tool", &header.tool)?;
    object.put("host", &header.host)?;
    object.texts("command", &header.command)?;
    object.text_some("title", &header.title)?;
    object.put_true("redacted", header.redacted)?;
    object.put("exit_status", &header.exit_status)?;
    object.put_some("exit_signal", &header.exit_signal)?;
    object.put("timed_out", &header.timed_out)?;
    object.text("start_cwd", &header.start_cwd)?;
    object.text_some("working_tree", &header.working_tree)?;
    object.text_some("git_directory", &header.git_directory)?;
    object.text_some("home", &header.home)?;
    object.text_some("temporary_directory", &header.temporary_directory)?;
    object.put("uid", &header.uid)?;
    object.put("gid", &header.gid)?;
    object.put("started_at", &header.started_at)?;
    object.put("finished_at", &header.finished_at)?;
    object.put("keep", &header.keep)?;
    object.put_some("existence_only", &header.existence_only)?;
    object.put_true("killed", header.killed)?;
    object.put_true("running", header.running)?;
    object.put_true("recovered", header.recovered)?;
    object.put_true("imported", header.imported)?;
    object.put("complete", &header.complete)?;
    object.put("warnings", &header.warnings)?;
    object.put("suppressed", &header.suppressed)?;
    if !header.private_mounts.is_empty() {
        object.put("private_mounts", &header.private_mounts)?;
    }
    if !header.unseen.is_empty() {
        object.texts("unseen", &header.unseen)?;
    }
    object.put("git_repositories", &header.git_repositories)?;
    object.put("network", &header.network)?;
    object.put_some("enforcement", &header.enforcement)?;
    if !header.refused.is_empty() {
        object.put("refused", &header.refused)?;
    }
    object.put_some("recall", &header.recall)?;
    object.put("processes", &header.processes)
}

fn recallable<M: SerializeMap>(object: &mut JsonObject<M>, recallable: &Recallable) -> Result<(), M::Error> {
    object.put("refused", &recallable.refused)?;
    object.texts("kernel_files", &recallable.kernel_files)?;
    object.texts("locked_files", &recallable.locked_files)
}

fn suppressed<M: SerializeMap>(object: &mut JsonObject<M>, rule: &Suppressed) -> Result<(), M::Error> {
    object.put("rule", &rule.rule)?;
    object.put("reads", &rule.reads)?;
    object.put("writes", &rule.writes)?;
    object.texts("changed", &rule.changed)?;
    object.put_some("changes", &rule.changes)?;
    object.put_true("changes_cut", rule.changes_cut)?;
    object.put_some("read", &rule.read)
}

fn left_out_use<M: SerializeMap>(object: &mut JsonObject<M>, change: &LeftOutUse) -> Result<(), M::Error> {
    object.text("path", &change.path)?;
    object.put_true("beneath", change.beneath)?;
    object.put("operations", &change.operations)?;
    object.put("process", &change.process)
}

fn private_mount<M: SerializeMap>(object: &mut JsonObject<M>, mount: &PrivateMount) -> Result<(), M::Error> {
    object.put("fstype", &mount.fstype)?;
    object.text("mount_point", &mount.mount_point)?;
    object.put("uses", &mount.uses)?;
    object.put("changes", &mount.changes)
}

fn repository<M: SerializeMap>(object: &mut JsonObject<M>, git: &GitRepository) -> Result<(), M::Error> {
    object.text("root", &git.root)?;
    object.put("head", &git.head)?;
    object.put_some("branch", &git.branch)?;
    object.put_true("dirty", git.dirty)?;
    object.put_some("head_after", &git.head_after)?;
    object.put_some("branch_after", &git.branch_after)
}

fn network_use<M: SerializeMap>(object: &mut JsonObject<M>, used: &NetworkUse) -> Result<(), M::Error> {
    object.put("process", &used.process)?;
    object.put("operation", &used.operation)?;
    network_address(object, &used.address)?;
    object.put("count", &used.count)?;
    object.put_some("errno", &used.errno)
}

fn network_address<M: SerializeMap>(
    object: &mut JsonObject<M>,
    address: &NetworkAddress,
) -> Result<(), M::Error> {
    object.put("family", address.family())?;
    if let Some((host, port)) = address.host_and_port() {
        object.put("address", &host)?;
        object.put("port", &port)?;
    }
    match address {
        NetworkAddress::Unix(path) if !path.is_empty() => object.text("path", path),
        _ => Ok(()),
    }
}

fn refused_use<M: SerializeMap>(object: &mut JsonObject<M>, refused: &RefusedUse) -> Result<(), M::Error> {
    match &refused.subject {
        RefusedSubject::Path { path, through, .. } => {
            object.text("path", path)?;
            object.text_some("through", through)?;
        }
        RefusedSubject::Address { address, .. } => network_address(object, address)?,
    }
    object.put("operation", refused.subject.operation())?;
    object.put("rule", &refused.rule)?;
    object.put("process", &refused.process)?;
    object.put("count", &refused.count)
}

fn exec<M: SerializeMap>(object: &mut JsonObject<M>, exec: &Exec) -> Result<(), M::Error> {
    object.text("exe", &exec.exe)?;
    object.texts("argv", &exec.argv)?;
    object.put_true("argv_truncated", exec.argv_truncated)?;
    object.put_true("redacted", exec.redacted)?;
    if exec.interpreters.is_empty() { Ok(()) } else { object.texts("interpreters", &exec.interpreters) }
}

fn process<M: SerializeMap>(object: &mut JsonObject<M>, process: &RecordedProcess) -> Result<(), M::Error> {
    object.put("id", &process.id)?;
    object.put("pid", &process.pid)?;
    object.put_some("parent", &process.parent)?;
    exec(object, &process.image)?;
    object.text("cwd", &process.cwd)?;
    object.put_some("exit_status", &process.exit_status)?;
    object.put_some("started_us", &process.started_us)?;
    object.put_some("ended_us", &process.ended_us)?;
    if process.execs.is_empty() { Ok(()) } else { object.put("execs", &process.execs) }
}

fn file<M: SerializeMap>(object: &mut JsonObject<M>, file: &FileRecord) -> Result<(), M::Error> {
    object.text("path", &file.path)?;
    object.put("operations", &file.operations)?;
    object.put("processes", &file.processes)?;
    if !file.uses.is_empty() {
        object.put("uses", &file.uses)?;
    }
    if !file.seen.is_nothing() {
        object.put("seen", &file.seen)?;
    }
    object.put_some("process_count", &file.process_count)?;
    object.put_true("inherited", file.inherited)?;
    object.put_true("changed_by_name", file.changed_by_name)?;
    object.put_true("mount_point", file.mount_point)?;
    object.put_some("changed_between_us", &file.changed_between_us)?;
    object.text_some("renamed_from", &file.renamed_from)?;
    object.text_some("renamed_to", &file.renamed_to)?;
    if !file.linked_from.is_empty() {
        object.texts("linked_from", &file.linked_from)?;
    }
    if !file.is_without_states() {
        object.put("before", &file.before)?;
        object.put("after", &file.after)?;
    }
    object.put_some("git", &file.git)?;
    object.put_some("git_after", &file.git_after)
}

fn path_use<M: SerializeMap>(object: &mut JsonObject<M>, used: &PathUse) -> Result<(), M::Error> {
    object.put("process", &used.process)?;
    object.put("operations", &used.operations)?;
    object.text_some("exe", &used.exe)
}

fn state<M: SerializeMap>(object: &mut JsonObject<M>, state: &State) -> Result<(), M::Error> {
    match state {
        State::Absent { tombstone } => {
            object.put("exists", &false)?;
            object.put_true("tombstone", *tombstone)
        }
        State::Present(there) => {
            object.put("exists", &true)?;
            present(object, there)
        }
        // Such a record has no states at all.
        State::NotKept => Ok(()),
    }
}

fn present<M: SerializeMap>(object: &mut JsonObject<M>, there: &Present) -> Result<(), M::Error> {
    object.put("type", &there.file_type)?;
    object.put("mode", &there.mode)?;
    object.put("mtime", &there.mtime)?;
    object.put("mtime_nsec", &there.mtime_nsec)?;
    object.put("size", &there.size)?;
    object.put("uid", &there.uid)?;
    object.put("gid", &there.gid)?;
    object.put("dev", &there.dev)?;
    object.put("ino", &there.ino)?;
    object.put("nlink", &there.nlink)?;
    object.text_some("target", &there.target)?;
    object.put_some("rdev", &there.rdev)?;
    object.put_some("entries_digest", &there.entries_digest)?;
    object.put_some("entry_types_digest", &there.entry_types_digest)?;
    if !there.xattrs.is_empty() {
        xattrs(object, there)?;
    }
    if !there.inode_flags.is_empty() {
        object.put("inode_flags", &there.inode_flags)?;
    }
    object.put_true("sparse", there.is_sparse())?;
    object.put_some("digest", &there.digest)?;
    object.put_some("blob", &there.blob)?;
    object.put_some("blob_omitted", &there.blob_omitted)
}

/// `xattrs` {shown name: base64}; where a name is not UTF-8, `xattrs_bytes` {base64 name: base64}
/// holds them all, since two names can be shown alike.
fn xattrs<M: SerializeMap>(object: &mut JsonObject<M>, there: &Present) -> Result<(), M::Error> {
    let shown_names: std::collections::BTreeMap<_, _> =
        there.xattrs.iter().map(|(name, value)| (shown(name), Base64(value))).collect();
    object.put("xattrs", &shown_names)?;
    if there.xattrs.keys().any(|name| needs_bytes(name)) {
        let exact: std::collections::BTreeMap<_, _> =
            there.xattrs.iter().map(|(name, value)| (encode(name), Base64(value))).collect();
        object.put("xattrs_bytes", &exact)?;
    }
    Ok(())
}

fn git<M: SerializeMap>(object: &mut JsonObject<M>, git: &GitStatus) -> Result<(), M::Error> {
    object.put("in_repo", &true)?;
    object.text("root", &git.root)?;
    object.put("head", &git.head)?;
    object.text("relative_path", &git.relative_path)?;
    object.put_some("oid", &git.oid)?;
    object.put("tracked", &git.tracked)?;
    object.put("dirty", &git.dirty)?;
    object.put("ignored", &git.ignored)
}

impl Serialize for Digest {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}
