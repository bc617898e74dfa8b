//! Bundles for the tests of this module.

use std::fs::File;
use std::path::Path;
use std::process::Command;

use super::blobs::{BlobWriter, Compression, Stored};
use super::layout::{Commit, SnapshotDir};
use super::manifest::*;
use super::wire::write_manifest;

/// The Python that has the modules: `PYTHON`, or the first one of PATH.
pub fn python() -> Command {
    Command::new(std::env::var_os("PYTHON").unwrap_or_else(|| "python3".into()))
}

/// A header with every list empty.
pub fn header() -> Header {
    let id = "0123456789abcdef".to_owned();
    Header {
        tool: Tool { name: "agent-snapshot".to_owned(), version: "0.1.0".to_owned() },
        host: Host { arch: "x86_64".to_owned(), kernel: "6.1".to_owned(), machine: "sha256:00".to_owned() },
        uid: 1000,
        gid: 1000,
        started_at: "2026-01-02T03:04:05Z".to_owned(),
        finished_at: "2026-01-02T03:04:06Z".to_owned(),
        ..Header::new(id, SnapshotKind::Recording, vec![b"true".to_vec()], b"/".to_vec())
    }
}

/// A regular file of `size` bytes of which nothing else is known.
pub fn present(size: u64) -> Present {
    Present {
        mtime: 1_770_000_000,
        mtime_nsec: 5,
        size,
        uid: 1000,
        gid: 1000,
        dev: 2049,
        ino: 77,
        ..Present::new(FileType::File, libc::S_IFREG | 0o644)
    }
}

/// A directory.
pub fn directory() -> Present {
    Present { file_type: FileType::Directory, mode: libc::S_IFDIR | 0o755, ..present(4096) }
}

/// The state of a file whose content is stored.
pub fn stored(stored: &Stored) -> State {
    let blob = stored.blob.as_ref().map(ToString::to_string);
    State::Present(Box::new(Present { digest: Some(stored.digest), blob, ..present(stored.size) }))
}

/// A record of a path that was created.
pub fn created(path: &[u8], after: State) -> FileRecord {
    let before = State::Absent { tombstone: false };
    FileRecord { processes: vec![1], ..FileRecord::new(path, before, after, Operation::Write.into()) }
}

/// Commits a snapshot to `dir`: the files that `fill` stores and records.
pub fn commit(dir: &Path, fill: impl FnOnce(&mut BlobWriter) -> Vec<FileRecord>) {
    let target = SnapshotDir::create(dir).unwrap();
    commit_into(target, header(), fill);
}

/// Commits a snapshot to a directory that is open already.
pub fn commit_into(
    target: SnapshotDir,
    header: Header,
    fill: impl FnOnce(&mut BlobWriter) -> Vec<FileRecord>,
) {
    let mut writer = BlobWriter::new(target.unnamed_file().unwrap(), Compression::Snappy).unwrap();
    let files = fill(&mut writer);
    let blobs = writer.finish().unwrap();
    let manifest: File = target.unnamed_file().unwrap();
    write_manifest(&manifest, &header, &files).unwrap();
    target.commit(blobs, manifest, Commit::Only, false).unwrap().unlock();
}

/// Runs git in `dir`, apart from the configuration of whoever runs the tests, and returns its output.
pub fn git(dir: &Path, args: &[&str]) -> String {
    let output = Command::new("git")
        .args(args)
        .current_dir(dir)
        .env_clear()
        .env("PATH", std::env::var_os("PATH").unwrap_or_default())
        .envs([("HOME", "/nonexistent"), ("GIT_CONFIG_NOSYSTEM", "1")])
        .envs([("GIT_AUTHOR_NAME", "a"), ("GIT_AUTHOR_EMAIL", "a@b")])
        .envs([("GIT_COMMITTER_NAME", "a"), ("GIT_COMMITTER_EMAIL", "a@b")])
        .output()
        .unwrap();
    assert!(output.status.success(), "git {args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}
