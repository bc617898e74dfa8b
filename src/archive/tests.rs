use std::path::Path;

use proptest::prelude::*;

use super::compression::ArchiveCompression;
use super::export::{ExportOptions, export};
use super::import::Archive;
use super::redact::Redaction;
use crate::snapshot::samples::{commit, created, directory, present, stored};
use crate::snapshot::secrets::Secrets;
use crate::snapshot::source::Contents;
use crate::snapshot::*;

fn symlink(target: &[u8]) -> State {
    let mode = libc::S_IFLNK | 0o777;
    let target = Some(target.to_vec());
    State::Present(Box::new(Present { target, ..Present::new(FileType::Symlink, mode) }))
}

fn options<'a>(
    secrets: Option<&'a Secrets>,
    compression: ArchiveCompression,
    scratch: &'a Path,
) -> ExportOptions<'a> {
    ExportOptions { secrets, compression, expand: true, scratch }
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
    let exported = export(snapshot, &options(None, compression, &scratch), &mut out).unwrap();
    assert_eq!((exported.bytes, exported.digest), (out.len() as u64, Digest::of(&out)));
    assert!(exported.left_out.is_empty() && exported.withheld.is_empty() && !exported.masked);
    out
}

/// The records of an archive, if it is accepted.
fn read(bytes: &[u8]) -> Result<Vec<FileRecord>, Error> {
    let checked = Archive::open(bytes, "it")?.check(None, &std::env::temp_dir())?;
    Ok(checked.snapshot().records().into_iter().cloned().collect())
}

#[test]
fn title_is_masked_as_the_command_is() {
    let dir = tempfile::tempdir().unwrap();
    let snapshot = sample(&dir.path().join("it"));
    let title = Some(b"deploy --token abc".to_vec());
    let header = Header { title, ..snapshot.header().clone() };
    let (secrets, contents) = (Secrets::default(), Contents::new(&snapshot));
    let masked = Redaction::new(&[], Some(&secrets), &contents).header(&header);
    assert_eq!(masked.title.as_deref(), Some(&b"deploy --token <REDACTED>"[..]));
    assert!(masked.redacted);
    assert_eq!(Redaction::new(&[], None, &contents).header(&header), header);
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

#[test]
fn a_secret_is_withheld_under_all_of_its_names() {
    let dir = tempfile::tempdir().unwrap();
    let pinned = |digit: &str, record: FileRecord| {
        let git = GitStatus {
            root: b"/r".to_vec(),
            head: Some("0".repeat(40)),
            relative_path: b"x".to_vec(),
            oid: Some(digit.repeat(40)),
            tracked: true,
            dirty: false,
            ignored: false,
        };
        FileRecord { git: Some(git), ..record }
    };
    let linked = |ino: u64, state: State| match state {
        State::Present(present) => State::Present(Box::new(Present { nlink: 2, ino, ..*present })),
        absent => absent,
    };
    let unread = |size: u64| State::Present(Box::new(present(size)));
    let read =
        |path: &[u8], state: State| FileRecord::new(path, state.clone(), state, Operation::Read.into());
    commit(dir.path(), |writer| {
        let secret = writer.store_bytes("after:/.env", b"secret").unwrap();
        let harmless = writer.store_bytes("after:/plain", b"harmless").unwrap();
        let key = writer.store_bytes("after:/key.pem", b"-----BEGIN PRIVATE KEY-----").unwrap();
        let cert = writer.store_bytes("after:/cert.pem", b"-----BEGIN CERTIFICATE-----").unwrap();
        let empty = writer.store_bytes("after:/empty", b"").unwrap();
        let linked_secret = writer.store_bytes("after:/z-hard-link", b"withheld before").unwrap();
        vec![
            created(b"/.env", stored(&secret)),
            created(b"/.netrc", stored(&empty)),
            pinned("2", read(b"/an-older-name-of-the-copy", linked(2, unread(15)))),
            created(b"/cert.pem", stored(&cert)),
            created(b"/copy", stored(&secret)),
            created(b"/copy-of-hard-link", linked(2, stored(&linked_secret))),
            created(b"/empty", stored(&empty)),
            created(b"/key.pem", stored(&key)),
            created(b"/link", symlink(b".env")),
            created(b"/plain", stored(&harmless)),
            read(b"/r/.git-credentials", linked(1, unread(15))),
            pinned("1", read(b"/r/.npmrc", unread(7))),
            pinned("1", read(b"/r/same", unread(7))),
            FileRecord {
                renamed_from: Some(b"/.env.old".to_vec()),
                ..created(b"/renamed", stored(&harmless))
            },
            created(b"/url", symlink(b"https://me:hunter2@host/")),
            created(b"/z-hard-link", linked(1, stored(&linked_secret))),
        ]
    });
    let snapshot = Snapshot::open(dir.path()).unwrap();
    let records = snapshot.records();
    let contents = Contents::new(&snapshot);
    let redacted = |secrets: Option<&Secrets>| {
        let redaction = Redaction::new(&records, secrets, &contents);
        let is_other =
            |(number, record): &(usize, &&FileRecord)| *redaction.record(*number, record) != ***record;
        let names = records.iter().enumerate().filter(is_other);
        names.map(|(_, record)| String::from_utf8(record.path.clone()).unwrap()).collect::<Vec<_>>()
    };
    assert!(redacted(None).is_empty());
    let names = redacted(Some(&Secrets::default()));
    // What was renamed from a secret has its content, and so has whatever else has that.
    let expected = [
        "/.env",
        "/an-older-name-of-the-copy",
        "/copy",
        "/copy-of-hard-link",
        "/key.pem",
        "/plain",
        "/r/.npmrc",
        "/r/same",
        "/renamed",
        "/url",
        "/z-hard-link",
    ];
    assert_eq!(names, expected);
}
