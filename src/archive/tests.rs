use std::path::Path;

use proptest::prelude::*;

use super::compression::ArchiveCompression;
use super::export::{ExportOptions, export};
use super::import::Archive;
use crate::snapshot::samples::{commit, created, directory, stored};
use crate::snapshot::*;

fn symlink(target: &[u8]) -> State {
    let mode = libc::S_IFLNK | 0o777;
    let target = Some(target.to_vec());
    State::Present(Box::new(Present { target, ..Present::new(FileType::Symlink, mode) }))
}

/// A snapshot with a directory, a file and a symlink; a long path and a long target.
fn sample(dir: &Path) -> Snapshot {
    commit(dir, |writer| {
        let file = writer.store_bytes("after:/d/file", b"content").unwrap();
        let long = format!("/d/{}", "long".repeat(60)).into_bytes();
        vec![
            created(b"/d", State::Present(Box::new(directory()))),
            created(b"/d/file", stored(&file)),
            created(b"/d/link", symlink(&b"x".repeat(300))),
            created(&long, stored(&file)),
        ]
    });
    Snapshot::open(dir).unwrap()
}

fn archive(snapshot: &Snapshot, compression: ArchiveCompression) -> Vec<u8> {
    let mut out = Vec::new();
    let scratch = std::env::temp_dir();
    let options = ExportOptions { compression, expand: true, scratch: &scratch };
    let exported = export(snapshot, &options, &mut out).unwrap();
    assert_eq!((exported.bytes, exported.digest), (out.len() as u64, Digest::of(&out)));
    assert!(exported.left_out.is_empty());
    out
}

/// The records of an archive, if it is accepted.
fn read(bytes: &[u8]) -> Result<Vec<FileRecord>, Error> {
    let checked = Archive::open(bytes, "it")?.check(None, &std::env::temp_dir())?;
    Ok(checked.snapshot().records().into_iter().cloned().collect())
}

#[test]
fn what_was_written_is_read_in_each_compression() {
    let dir = tempfile::tempdir().unwrap();
    let snapshot = sample(dir.path());
    let records: Vec<_> = snapshot.records().into_iter().cloned().collect();
    for compression in [ArchiveCompression::None, ArchiveCompression::Gz, ArchiveCompression::Zst] {
        let bytes = archive(&snapshot, compression);
        assert_eq!(read(&bytes).unwrap(), records, "{compression:?}");
        for cut in [0, 1, 5, 100, bytes.len() / 2, bytes.len() - 1] {
            assert!(matches!(read(&bytes[..cut]), Err(Error::Format(_))), "{compression:?} cut to {cut}");
        }
    }
}

#[test]
fn a_name_tells_the_compression() {
    for (name, compression) in [
        ("a.tar", Some(ArchiveCompression::None)),
        ("a.b.tar.gz", Some(ArchiveCompression::Gz)),
        ("x.tgz", Some(ArchiveCompression::Gz)),
        ("x.tar.zst", Some(ArchiveCompression::Zst)),
        ("x.tzst", Some(ArchiveCompression::Zst)),
        ("x.zip", None),
        ("x.gz", None),
        ("tar", None),
    ] {
        assert_eq!(ArchiveCompression::of_name(name.as_ref()), compression, "{name}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn an_archive_with_a_changed_byte_is_refused_or_means_the_same(
        at: prop::sample::Index, change in 1_u8.., cut in prop::option::of(any::<prop::sample::Index>()),
    ) {
        let dir = tempfile::tempdir().unwrap();
        let snapshot = sample(dir.path());
        let records = snapshot.records();
        let mut bytes = archive(&snapshot, ArchiveCompression::None);
        *at.get_mut(&mut bytes) ^= change;
        let length = cut.map_or(bytes.len(), |cut| cut.index(bytes.len()));
        if let Ok(read) = read(&bytes[..length]) {
            // What may be absent of a manifest can have got another name.
            prop_assert_eq!(read.len(), records.len());
        }
    }
}
