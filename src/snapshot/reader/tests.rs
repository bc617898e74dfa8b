use super::super::samples::{commit, created, stored};
use super::*;

#[test]
fn a_committed_snapshot_gives_back_its_records_and_contents() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a/b/snap");
    let mut written = Vec::new();
    commit(&path, |writer| {
        let one = writer.store_bytes("after:/one", b"first").unwrap();
        let two = writer.store_bytes("after:/two", b"").unwrap();
        written = vec![created(b"/one", stored(&one)), created(b"/two", stored(&two))];
        written.clone()
    });
    let snapshot = Snapshot::open(&path).unwrap();
    assert_eq!(snapshot.files(), written);
    for (record, content) in written.iter().zip([b"first".as_slice(), b""]) {
        let after = record.after.present().unwrap();
        let mut read = Vec::new();
        let len = snapshot.read_blob(after.blob.as_ref().unwrap(), after.digest.as_ref(), &mut read).unwrap();
        assert_eq!((read.as_slice(), len), (content, content.len() as u64));
    }
}

#[test]
fn a_snapshot_is_shared_and_a_writer_is_sent_between_threads() {
    fn shared<T: Send + Sync>() {}
    fn sent<T: Send>() {}
    shared::<Snapshot>();
    sent::<super::super::blobs::BlobWriter>();
    sent::<super::super::layout::SnapshotDir>();
}
