//! Bundles of past format versions, kept in `testdata/`: they must be read for good.

use std::fs;
use std::path::PathBuf;

use super::super::blobs::{BlobWriter, blob_key};
use super::super::manifest::*;
use super::super::samples::{commit_into, created, directory, header, present, stored};
use super::super::{Side, Snapshot};
use super::MANIFEST;
use crate::snapshot::layout::SnapshotDir;

fn format_1() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("testdata/format-1")
}

const CONTENTS: [(&[u8], &[u8]); 3] =
    [(b"/repo/deleted", b"gone\n"), (b"/repo/empty", b""), (b"/repo/odd-\xff", b"\0\xff")];

/// What is in the bundle of format 1.
fn manifest(blobs: &mut BlobWriter) -> (Header, Vec<FileRecord>) {
    let git = |relative_path: &[u8], oid: Option<&str>| GitStatus {
        root: b"/repo".to_vec(),
        head: Some("1f".repeat(20)),
        relative_path: relative_path.to_vec(),
        oid: oid.map(str::to_owned),
        tracked: oid.is_some(),
        dirty: false,
        ignored: false,
    };
    let [deleted, empty, odd] = CONTENTS.map(|(path, content)| {
        let side = if path == b"/repo/deleted" { Side::Before } else { Side::After };
        stored(&blobs.store_bytes(&blob_key(side, path), content).unwrap())
    });
    let absent = || State::Absent { tombstone: false };
    let there = |present| State::Present(Box::new(present));
    let listed = there(Present { entries_digest: Some(Digest::Sha256([3; 32])), ..directory() });
    let link = there(Present {
        file_type: FileType::Symlink,
        mode: libc::S_IFLNK | 0o777,
        target: Some(b"pinned".to_vec()),
        ..present(6)
    });
    let attributes = [(b"user.\xff".to_vec(), vec![0]), (b"user.a".to_vec(), b"b".to_vec())];
    let pinned = there(Present { xattrs: attributes.into(), ..present(7) });
    let files = vec![
        FileRecord {
            operations: Operation::Directory.into(),
            before: listed.clone(),
            git: Some(git(b"", None)),
            ..created(b"/repo", listed)
        },
        FileRecord {
            operations: Operation::Delete.into(),
            before: deleted,
            renamed_to: Some(b"/repo/odd-\xff".to_vec()),
            ..created(b"/repo/deleted", State::Absent { tombstone: true })
        },
        created(b"/repo/empty", empty),
        FileRecord {
            operations: Operation::Existence.into(),
            before: link.clone(),
            ..created(b"/repo/link", link)
        },
        FileRecord {
            renamed_from: Some(b"/repo/deleted".to_vec()),
            process_count: Some(17),
            inherited: true,
            before: absent(),
            ..created(b"/repo/odd-\xff", odd)
        },
        FileRecord {
            operations: Operations::NONE.with(Operation::Read).with(Operation::Execute),
            before: pinned.clone(),
            git: Some(git(b"pinned", Some(&"2e".repeat(20)))),
            git_after: Some(git(b"pinned", None)),
            ..created(b"/repo/pinned", pinned)
        },
        created(
            b"/repo/too-large",
            there(Present { blob_omitted: Some(BlobOmitted::TooLarge), ..present(1 << 40) }),
        ),
    ];
    let exec = |exe: &[u8], truncated| Exec {
        exe: exe.to_vec(),
        argv: vec![exe.to_vec(), b"\xff".to_vec()],
        argv_truncated: truncated,
        ..Exec::default()
    };
    let header = Header {
        name: Some("past".to_owned()),
        session: Some("session".to_owned()),
        step: None,
        command: vec![b"env".to_vec(), b"\xff".to_vec()],
        exit_status: 143,
        exit_signal: Some("SIGTERM".to_owned()),
        timed_out: true,
        start_cwd: b"/repo".to_vec(),
        complete: false,
        warnings: vec![Warning {
            kind: WarningKind::Timeout,
            lost: true,
            count: 1,
            detail: "ended after 1 s".to_owned(),
            processes: vec![1],
        }],
        suppressed: vec![Suppressed {
            rule: ".git".to_owned(),
            reads: 3,
            writes: 1,
            changed: vec![b"/repo/.git/index".to_vec()],
            changes: None,
            changes_cut: false,
            read: None,
        }],
        git_repositories: vec![GitRepository {
            branch: None,
            branch_after: None,
            root: b"/repo".to_vec(),
            head: None,
            dirty: true,
            head_after: Some("1f".repeat(20)),
        }],
        processes: vec![RecordedProcess {
            id: 1,
            pid: 4711,
            parent: None,
            image: exec(b"/bin/tool", true).into(),
            cwd: b"/repo".to_vec(),
            exit_status: Some(143),
            execs: vec![exec(b"/bin/env", false), exec(b"/bin/tool", true)],
            started_us: None,
            ended_us: None,
        }],
        ..header()
    };
    (header, files)
}

/// Commits that bundle to `dir` as this build writes it.
fn write(dir: &std::path::Path) -> (Header, Vec<FileRecord>) {
    let target = SnapshotDir::create(dir).unwrap();
    let mut scratch = BlobWriter::new(tempfile::tempfile().unwrap(), Default::default()).unwrap();
    let (header, files) = manifest(&mut scratch);
    commit_into(target, header.clone(), |blobs| manifest(blobs).1);
    (header, files)
}

#[test]
fn the_bundle_of_format_1_is_read_for_good() {
    let scratch = tempfile::tempdir().unwrap();
    let (header, files) = write(scratch.path());
    let snapshot = Snapshot::open(&format_1()).unwrap();
    assert_eq!(snapshot.header(), &header);
    assert_eq!(snapshot.files(), files);
    for (path, content) in CONTENTS {
        let record = snapshot.find(path).unwrap();
        let state = record.after.present().or(record.before.present()).unwrap();
        let mut read = Vec::new();
        snapshot.read_blob(state.blob.as_ref().unwrap(), state.digest.as_ref(), &mut read).unwrap();
        assert_eq!(read, content);
    }
}

#[test]
fn the_manifest_is_written_as_it_was_for_format_1() {
    let scratch = tempfile::tempdir().unwrap();
    write(scratch.path());
    let written = fs::read_to_string(scratch.path().join(MANIFEST)).unwrap();
    // These keys came later, and absent ones mean the same.
    let later = [",\n\"keep\":\"all\"", ",\n\"git_files\":[]", ",\n\"network\":[]"];
    let written = later.iter().fold(written, |written, key| written.replace(key, ""));
    assert_eq!(written, fs::read_to_string(format_1().join(MANIFEST)).unwrap());
}
