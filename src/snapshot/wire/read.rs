//! JSON to manifest. Unknown keys are passed over; a required key that is missing is an error, and
//! so are exact bytes that contradict the text beside them.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{SocketAddrV4, SocketAddrV6};

use serde::de::Error as _;
use serde::{Deserialize, Deserializer};

use super::super::enforcement::{Enforcement, RefusedSubject, RefusedUse};
use super::super::manifest::*;
use super::super::network::{NetworkAddress, NetworkOperation, NetworkUse};
use super::text::{Base64, decode, needs_bytes, shown};

/// Exact bytes beside the text that shows them.
type Exact = Base64<Vec<u8>>;

/// A key that must be there, though it may be null.
fn nullable<'de, D: Deserializer<'de>, T: Deserialize<'de>>(deserializer: D) -> Result<Option<T>, D::Error> {
    Option::deserialize(deserializer)
}

fn bytes(key: &str, text: String, exact: Option<Exact>) -> Result<Vec<u8>, String> {
    match exact {
        None => Ok(text.into_bytes()),
        Some(Base64(exact)) if needs_bytes(&exact) && shown(&exact) == text => Ok(exact),
        Some(_) => Err(format!("`{key}_bytes` are not the bytes of `{key}`")),
    }
}

fn bytes_some(key: &str, text: Option<String>, exact: Option<Exact>) -> Result<Option<Vec<u8>>, String> {
    match (text, exact) {
        (Some(text), exact) => bytes(key, text, exact).map(Some),
        (None, None) => Ok(None),
        (None, Some(_)) => Err(format!("`{key}_bytes` without `{key}`")),
    }
}

fn list(key: &str, texts: Vec<String>, exact: Option<Vec<Exact>>) -> Result<Vec<Vec<u8>>, String> {
    let Some(exact) = exact else {
        return Ok(texts.into_iter().map(String::into_bytes).collect());
    };
    if exact.len() != texts.len() || exact.iter().zip(&texts).any(|(exact, text)| shown(&exact.0) != *text) {
        return Err(format!("`{key}_bytes` are not the bytes of `{key}`"));
    }
    Ok(exact.into_iter().map(|exact| exact.0).collect())
}

/// Reads a type through the shape that it has on the wire.
macro_rules! through {
    ($type:ident, $wire:ident) => {
        impl<'de> Deserialize<'de> for $type {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<$type, D::Error> {
                $wire::deserialize(deserializer)?.checked().map_err(D::Error::custom)
            }
        }
    };
}

through!(Manifest, ManifestWire);
through!(Suppressed, SuppressedWire);
through!(LeftOutUse, LeftOutWire);
through!(PrivateMount, PrivateMountWire);
through!(GitRepository, GitRepositoryWire);
through!(NetworkUse, NetworkUseWire);
through!(RefusedUse, RefusedUseWire);
through!(Exec, ExecWire);
through!(RecordedProcess, ProcessWire);
through!(FileRecord, FileWire);
through!(Recallable, RecallableWire);
through!(PathUse, PathUseWire);
through!(State, StateWire);
through!(GitStatus, GitWire);

/// A version that this build reads. Any other is rejected before a key can be missing.
struct SupportedVersion(u64);

impl<'de> Deserialize<'de> for SupportedVersion {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<SupportedVersion, D::Error> {
        match u64::deserialize(deserializer)? {
            version @ 1..=FORMAT_VERSION => Ok(SupportedVersion(version)),
            other => Err(D::Error::custom(format!(
                "format version {other} is not supported: this build reads 1 to {FORMAT_VERSION}"
            ))),
        }
    }
}

#[derive(Deserialize)]
struct ManifestWire {
    #[serde(rename = "format_version")]
    version: SupportedVersion,
    id: String,
    kind: SnapshotKind,
    name: Option<String>,
    session: Option<String>,
    step: Option<u32>,
    tool: Tool,
    host: Host,
    command: Vec<String>,
    command_bytes: Option<Vec<Exact>>,
    title: Option<String>,
    title_bytes: Option<Exact>,
    #[serde(default)]
    redacted: bool,
    exit_status: i32,
    exit_signal: Option<String>,
    #[serde(default)]
    timed_out: bool,
    start_cwd: String,
    start_cwd_bytes: Option<Exact>,
    working_tree: Option<String>,
    working_tree_bytes: Option<Exact>,
    git_directory: Option<String>,
    git_directory_bytes: Option<Exact>,
    home: Option<String>,
    home_bytes: Option<Exact>,
    temporary_directory: Option<String>,
    temporary_directory_bytes: Option<Exact>,
    uid: u32,
    gid: u32,
    started_at: String,
    finished_at: String,
    #[serde(default)]
    keep: Keep,
    existence_only: Option<u64>,
    #[serde(default)]
    killed: bool,
    #[serde(default)]
    running: bool,
    #[serde(default)]
    recovered: bool,
    #[serde(default)]
    imported: bool,
    complete: bool,
    warnings: Vec<Warning>,
    suppressed: Vec<Suppressed>,
    #[serde(default)]
    private_mounts: Vec<PrivateMount>,
    #[serde(default)]
    unseen: Vec<String>,
    unseen_bytes: Option<Vec<Exact>>,
    git_repositories: Vec<GitRepository>,
    #[serde(default)]
    network: Vec<NetworkUse>,
    enforcement: Option<Enforcement>,
    #[serde(default)]
    refused: Vec<RefusedUse>,
    processes: Vec<RecordedProcess>,
    files: Vec<FileRecord>,
    #[serde(default)]
    git_files: Vec<FileRecord>,
    recall: Option<Recallable>,
}

impl ManifestWire {
    fn checked(self) -> Result<Manifest, String> {
        if self.version.0 < 2 && self.files.iter().any(FileRecord::is_without_states) {
            return Err("missing keys `before` and `after` of a record".to_owned());
        }
        if self.git_files.iter().any(FileRecord::is_without_states) {
            return Err("missing keys `before` and `after` of a record of `git_files`".to_owned());
        }
        let header = Header {
            id: self.id,
            kind: self.kind,
            name: self.name,
            session: self.session,
            step: self.step,
            tool: self.tool,
            host: self.host,
            command: list("command", self.command, self.command_bytes)?,
            title: bytes_some("title", self.title, self.title_bytes)?,
            redacted: self.redacted,
            exit_status: self.exit_status,
            exit_signal: self.exit_signal,
            timed_out: self.timed_out,
            start_cwd: bytes("start_cwd", self.start_cwd, self.start_cwd_bytes)?,
            working_tree: bytes_some("working_tree", self.working_tree, self.working_tree_bytes)?,
            git_directory: bytes_some("git_directory", self.git_directory, self.git_directory_bytes)?,
            home: bytes_some("home", self.home, self.home_bytes)?,
            temporary_directory: bytes_some(
                "temporary_directory",
                self.temporary_directory,
                self.temporary_directory_bytes,
            )?,
            uid: self.uid,
            gid: self.gid,
            started_at: self.started_at,
            finished_at: self.finished_at,
            keep: self.keep,
            existence_only: self.existence_only,
            killed: self.killed,
            running: self.running,
            recovered: self.recovered,
            imported: self.imported,
            complete: self.complete,
            warnings: self.warnings,
            suppressed: self.suppressed,
            private_mounts: self.private_mounts,
            unseen: list("unseen", self.unseen, self.unseen_bytes)?,
            git_repositories: self.git_repositories,
            network: self.network,
            enforcement: self.enforcement,
            refused: self.refused,
            processes: self.processes,
            recall: self.recall,
        };
        let (mut files, git_files) = (self.files, self.git_files);
        if !git_files.is_empty() {
            files.extend(git_files.into_iter().map(|record| FileRecord { is_git_state: true, ..record }));
            files.sort_by(|one, other| one.path.cmp(&other.path));
        }
        Ok(Manifest { header, files })
    }
}

#[derive(Deserialize)]
struct RecallableWire {
    refused: Vec<String>,
    kernel_files: Vec<String>,
    kernel_files_bytes: Option<Vec<Exact>>,
    #[serde(default)]
    locked_files: Vec<String>,
    locked_files_bytes: Option<Vec<Exact>>,
}

impl RecallableWire {
    fn checked(self) -> Result<Recallable, String> {
        let kernel_files = list("kernel_files", self.kernel_files, self.kernel_files_bytes)?;
        let locked_files = list("locked_files", self.locked_files, self.locked_files_bytes)?;
        Ok(Recallable { refused: self.refused, kernel_files, locked_files })
    }
}

#[derive(Deserialize)]
struct SuppressedWire {
    rule: String,
    reads: u64,
    writes: u64,
    changed: Vec<String>,
    changed_bytes: Option<Vec<Exact>>,
    changes: Option<Vec<LeftOutUse>>,
    #[serde(default)]
    changes_cut: bool,
    read: Option<Vec<LeftOutUse>>,
}

impl SuppressedWire {
    fn checked(self) -> Result<Suppressed, String> {
        let changed = list("changed", self.changed, self.changed_bytes)?;
        let SuppressedWire { rule, reads, writes, changes, changes_cut, read, .. } = self;
        Ok(Suppressed { rule, reads, writes, changed, changes, changes_cut, read })
    }
}

#[derive(Deserialize)]
struct LeftOutWire {
    path: String,
    path_bytes: Option<Exact>,
    #[serde(default)]
    beneath: bool,
    operations: Operations,
    process: u32,
}

impl LeftOutWire {
    fn checked(self) -> Result<LeftOutUse, String> {
        let path = bytes("path", self.path, self.path_bytes)?;
        let LeftOutWire { beneath, operations, process, .. } = self;
        Ok(LeftOutUse { path, beneath, operations, process })
    }
}

#[derive(Deserialize)]
struct PrivateMountWire {
    fstype: String,
    mount_point: String,
    mount_point_bytes: Option<Exact>,
    uses: u64,
    changes: u64,
}

impl PrivateMountWire {
    fn checked(self) -> Result<PrivateMount, String> {
        let mount_point = bytes("mount_point", self.mount_point, self.mount_point_bytes)?;
        let PrivateMountWire { fstype, uses, changes, .. } = self;
        Ok(PrivateMount { fstype, mount_point, uses, changes })
    }
}

#[derive(Deserialize)]
struct GitRepositoryWire {
    root: String,
    root_bytes: Option<Exact>,
    #[serde(deserialize_with = "nullable")]
    head: Option<String>,
    branch: Option<String>,
    #[serde(default)]
    dirty: bool,
    head_after: Option<String>,
    branch_after: Option<String>,
}

impl GitRepositoryWire {
    fn checked(self) -> Result<GitRepository, String> {
        let root = bytes("root", self.root, self.root_bytes)?;
        let GitRepositoryWire { head, branch, dirty, head_after, branch_after, .. } = self;
        Ok(GitRepository { root, head, branch, dirty, head_after, branch_after })
    }
}

#[derive(Deserialize)]
struct NetworkUseWire {
    process: u32,
    operation: NetworkOperation,
    family: String,
    address: Option<String>,
    port: Option<u16>,
    path: Option<String>,
    path_bytes: Option<Exact>,
    count: u64,
    errno: Option<i32>,
}

impl NetworkUseWire {
    fn checked(self) -> Result<NetworkUse, String> {
        let NetworkUseWire { process, operation, family, address, port, path, path_bytes, count, errno } =
            self;
        let path = bytes_some("path", path, path_bytes)?;
        let address = network_address(family, address, port, path)?;
        Ok(NetworkUse { process, operation, address, count, errno })
    }
}

fn network_address(
    family: String,
    address: Option<String>,
    port: Option<u16>,
    path: Option<Vec<u8>>,
) -> Result<NetworkAddress, String> {
    let wrong = || format!("`address`, `port` and `path` are not those of family `{family}`");
    Ok(match (family.as_str(), address, port, path) {
        ("inet", Some(host), Some(port), None) => {
            NetworkAddress::Inet(SocketAddrV4::new(host.parse().map_err(|_| wrong())?, port))
        }
        ("inet6", Some(host), Some(port), None) => {
            let (host, scope) = host.split_once('%').unwrap_or((&host, "0"));
            let (host, scope) = (host.parse(), scope.parse());
            let (host, scope) = host.ok().zip(scope.ok()).ok_or_else(wrong)?;
            NetworkAddress::Inet6(SocketAddrV6::new(host, port, 0, scope))
        }
        ("unix", None, None, path) => NetworkAddress::Unix(path.unwrap_or_default()),
        ("inet" | "inet6" | "unix", ..) => return Err(wrong()),
        // What a later version says of another family is passed over.
        _ => NetworkAddress::Other(family),
    })
}

#[derive(Deserialize)]
struct RefusedUseWire {
    path: Option<String>,
    path_bytes: Option<Exact>,
    through: Option<String>,
    through_bytes: Option<Exact>,
    family: Option<String>,
    address: Option<String>,
    port: Option<u16>,
    operation: String,
    rule: String,
    process: u32,
    count: u64,
}

impl RefusedUseWire {
    fn checked(self) -> Result<RefusedUse, String> {
        let path = bytes_some("path", self.path, self.path_bytes)?;
        let through = bytes_some("through", self.through, self.through_bytes)?;
        let name = self.operation;
        let unknown = || format!("unknown operation `{name}`");
        let subject = match (self.family, path) {
            (Some(family), path) => {
                let address = network_address(family, self.address, self.port, path)?;
                let operation = NetworkOperation::ALL.into_iter().find(|known| known.name() == name);
                RefusedSubject::Address { address, operation: operation.ok_or_else(unknown)? }
            }
            (None, Some(path)) => {
                let operation = Operation::ALL.into_iter().find(|known| known.name() == name);
                RefusedSubject::Path { path, through, operation: operation.ok_or_else(unknown)? }
            }
            (None, None) => return Err("missing key `path` or `family` of what was refused".to_owned()),
        };
        Ok(RefusedUse { subject, rule: self.rule, process: self.process, count: self.count })
    }
}

#[derive(Deserialize)]
struct ExecWire {
    exe: String,
    exe_bytes: Option<Exact>,
    argv: Vec<String>,
    argv_bytes: Option<Vec<Exact>>,
    #[serde(default)]
    argv_truncated: bool,
    #[serde(default)]
    redacted: bool,
    #[serde(default)]
    interpreters: Vec<String>,
    interpreters_bytes: Option<Vec<Exact>>,
}

impl ExecWire {
    fn checked(self) -> Result<Exec, String> {
        Ok(Exec {
            exe: bytes("exe", self.exe, self.exe_bytes)?,
            argv: list("argv", self.argv, self.argv_bytes)?,
            argv_truncated: self.argv_truncated,
            redacted: self.redacted,
            interpreters: list("interpreters", self.interpreters, self.interpreters_bytes)?,
        })
    }
}

#[derive(Deserialize)]
struct ProcessWire {
    id: u32,
    pid: u32,
    parent: Option<u32>,
    exe: String,
    exe_bytes: Option<Exact>,
    argv: Vec<String>,
    argv_bytes: Option<Vec<Exact>>,
    #[serde(default)]
    argv_truncated: bool,
    #[serde(default)]
    redacted: bool,
    #[serde(default)]
    interpreters: Vec<String>,
    interpreters_bytes: Option<Vec<Exact>>,
    cwd: String,
    cwd_bytes: Option<Exact>,
    exit_status: Option<i32>,
    #[serde(default)]
    execs: Vec<Exec>,
    started_us: Option<u64>,
    ended_us: Option<u64>,
}

impl ProcessWire {
    fn checked(self) -> Result<RecordedProcess, String> {
        let image = ExecWire {
            exe: self.exe,
            exe_bytes: self.exe_bytes,
            argv: self.argv,
            argv_bytes: self.argv_bytes,
            argv_truncated: self.argv_truncated,
            redacted: self.redacted,
            interpreters: self.interpreters,
            interpreters_bytes: self.interpreters_bytes,
        };
        Ok(RecordedProcess {
            id: self.id,
            pid: self.pid,
            parent: self.parent,
            image: image.checked()?.into(),
            cwd: bytes("cwd", self.cwd, self.cwd_bytes)?,
            exit_status: self.exit_status,
            execs: self.execs,
            started_us: self.started_us,
            ended_us: self.ended_us,
        })
    }
}

#[derive(Deserialize)]
struct FileWire {
    path: String,
    path_bytes: Option<Exact>,
    operations: Operations,
    #[serde(default)]
    processes: Vec<u32>,
    #[serde(default)]
    uses: Vec<PathUse>,
    #[serde(default)]
    seen: Seen,
    process_count: Option<u32>,
    #[serde(default)]
    inherited: bool,
    #[serde(default)]
    changed_by_name: bool,
    #[serde(default)]
    mount_point: bool,
    changed_between_us: Option<(u64, u64)>,
    renamed_from: Option<String>,
    renamed_from_bytes: Option<Exact>,
    renamed_to: Option<String>,
    renamed_to_bytes: Option<Exact>,
    #[serde(default)]
    linked_from: Vec<String>,
    linked_from_bytes: Option<Vec<Exact>>,
    before: Option<State>,
    after: Option<State>,
    git: Option<GitStatus>,
    git_after: Option<GitStatus>,
}

impl FileWire {
    fn checked(self) -> Result<FileRecord, String> {
        let (before, after) = match (self.before, self.after) {
            (Some(before), Some(after)) => (before, after),
            (None, None) => (State::NotKept, State::NotKept),
            (None, Some(_)) => return Err("missing key `before` of a record with `after`".to_owned()),
            (Some(_), None) => return Err("missing key `after` of a record with `before`".to_owned()),
        };
        Ok(FileRecord {
            path: bytes("path", self.path, self.path_bytes)?,
            is_git_state: false,
            operations: self.operations,
            processes: self.processes,
            uses: self.uses,
            seen: self.seen,
            process_count: self.process_count,
            inherited: self.inherited,
            changed_by_name: self.changed_by_name,
            mount_point: self.mount_point,
            changed_between_us: self.changed_between_us,
            renamed_from: bytes_some("renamed_from", self.renamed_from, self.renamed_from_bytes)?,
            renamed_to: bytes_some("renamed_to", self.renamed_to, self.renamed_to_bytes)?,
            linked_from: list("linked_from", self.linked_from, self.linked_from_bytes)?,
            relinked: false,
            before,
            after,
            git: self.git,
            git_after: self.git_after,
        })
    }
}

#[derive(Deserialize)]
struct PathUseWire {
    process: u32,
    operations: Operations,
    exe: Option<String>,
    exe_bytes: Option<Exact>,
}

impl PathUseWire {
    fn checked(self) -> Result<PathUse, String> {
        let exe = bytes_some("exe", self.exe, self.exe_bytes)?;
        Ok(PathUse { process: self.process, operations: self.operations, exe })
    }
}

#[derive(Deserialize)]
struct StateWire {
    exists: bool,
    #[serde(default)]
    tombstone: bool,
    #[serde(rename = "type")]
    file_type: Option<FileType>,
    mode: Option<u32>,
    mtime: Option<i64>,
    mtime_nsec: Option<u32>,
    size: Option<u64>,
    uid: Option<u32>,
    gid: Option<u32>,
    dev: Option<u64>,
    ino: Option<u64>,
    nlink: Option<u64>,
    target: Option<String>,
    target_bytes: Option<Exact>,
    rdev: Option<u64>,
    entries_digest: Option<Digest>,
    entry_types_digest: Option<Digest>,
    #[serde(default)]
    xattrs: BTreeMap<String, Exact>,
    xattrs_bytes: Option<BTreeMap<String, Exact>>,
    #[serde(default)]
    inode_flags: BTreeSet<InodeFlag>,
    #[serde(default)]
    sparse: bool,
    digest: Option<Digest>,
    blob: Option<String>,
    blob_omitted: Option<BlobOmitted>,
}

impl StateWire {
    fn checked(self) -> Result<State, String> {
        if !self.exists {
            return Ok(State::Absent { tombstone: self.tombstone });
        }
        fn need<T>(value: Option<T>, key: &str) -> Result<T, String> {
            value.ok_or_else(|| format!("missing key `{key}` of a state that exists"))
        }
        fn owner(value: Option<u32>, key: &str) -> Result<u32, String> {
            match need(value, key)? {
                // To chown(2) it means to leave the owner as it is.
                u32::MAX => Err(format!("`{key}` is not a valid owner")),
                number => Ok(number),
            }
        }
        if matches!(self.entries_digest, Some(Digest::Sparse(_))) {
            return Err("`entries_digest` is that of a sparse file".to_owned());
        }
        if self.sparse != matches!(self.digest, Some(Digest::Sparse(_))) {
            return Err("`sparse` and the kind of `digest` contradict each other".to_owned());
        }
        Ok(State::Present(Box::new(Present {
            file_type: need(self.file_type, "type")?,
            mode: need(self.mode, "mode")?,
            mtime: need(self.mtime, "mtime")?,
            mtime_nsec: need(self.mtime_nsec, "mtime_nsec")?,
            size: need(self.size, "size")?,
            uid: owner(self.uid, "uid")?,
            gid: owner(self.gid, "gid")?,
            dev: need(self.dev, "dev")?,
            ino: need(self.ino, "ino")?,
            nlink: need(self.nlink, "nlink")?,
            target: bytes_some("target", self.target, self.target_bytes)?,
            rdev: self.rdev,
            entries_digest: self.entries_digest,
            entry_types_digest: self.entry_types_digest,
            xattrs: xattrs(self.xattrs, self.xattrs_bytes)?,
            inode_flags: self.inode_flags,
            digest: self.digest,
            blob: self.blob,
            blob_omitted: self.blob_omitted,
        })))
    }
}

fn xattrs(
    names: BTreeMap<String, Exact>,
    exact: Option<BTreeMap<String, Exact>>,
) -> Result<BTreeMap<Vec<u8>, Vec<u8>>, String> {
    let Some(exact) = exact else {
        return Ok(names.into_iter().map(|(name, value)| (name.into_bytes(), value.0)).collect());
    };
    exact
        .into_iter()
        .map(|(name, value)| match decode(name) {
            Ok(name) if names.contains_key(shown(&name).as_ref()) => Ok((name, value.0)),
            _ => Err("`xattrs_bytes` are not the bytes of `xattrs`".to_owned()),
        })
        .collect()
}

#[derive(Deserialize)]
struct GitWire {
    in_repo: bool,
    root: String,
    root_bytes: Option<Exact>,
    #[serde(deserialize_with = "nullable")]
    head: Option<String>,
    relative_path: String,
    relative_path_bytes: Option<Exact>,
    oid: Option<String>,
    tracked: bool,
    dirty: bool,
    ignored: bool,
}

impl GitWire {
    fn checked(self) -> Result<GitStatus, String> {
        if !self.in_repo {
            return Err("`git` of a path that is in no repository".to_owned());
        }
        Ok(GitStatus {
            root: bytes("root", self.root, self.root_bytes)?,
            head: self.head,
            relative_path: bytes("relative_path", self.relative_path, self.relative_path_bytes)?,
            oid: self.oid,
            tracked: self.tracked,
            dirty: self.dirty,
            ignored: self.ignored,
        })
    }
}

impl<'de> Deserialize<'de> for Digest {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Digest, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
    }
}
