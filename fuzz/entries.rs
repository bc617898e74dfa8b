//! What the fuzz targets and `tests/untrusted_input.rs` do with bytes: nothing of it may panic.

use std::io::Write as _;

use agent_snapshot::archive::import::Archive;
use agent_snapshot::observe::policy::ignore::{Environment, Ignore};
use agent_snapshot::observe::program as programs;
use agent_snapshot::snapshot::Snapshot;
use agent_snapshot::snapshot::sparse::Nowhere;
use agent_snapshot::trace::memory::{Fault, Memory, RemoteAddr};
use agent_snapshot::trace::syscalls;

/// A tracee's memory: one mapped stretch.
struct Stretch<'a>(&'a [u8]);

impl Memory for Stretch<'_> {
    fn read(&self, addr: RemoteAddr, into: &mut [u8]) -> Result<usize, Fault> {
        let start = usize::try_from(addr.0.checked_sub(0x1000).ok_or(Fault::Unmapped)?);
        let rest = self.0.get(start.unwrap_or(usize::MAX)..).filter(|rest| !rest.is_empty());
        let rest = rest.ok_or(Fault::Unmapped)?;
        let count = rest.len().min(into.len());
        into[..count].copy_from_slice(&rest[..count]);
        Ok(count)
    }
}

/// A call's number in the table, six words, and what is mapped at 0x1000.
pub fn call(bytes: &[u8]) {
    let Some((number, rest)) = bytes.split_first() else { return };
    let Some((words, memory)) = rest.split_at_checked(48) else { return };
    let mut arguments = [0; 6];
    for (word, bytes) in arguments.iter_mut().zip(words.as_chunks::<8>().0) {
        *word = u64::from_ne_bytes(*bytes);
    }
    let rows = syscalls::all_rows();
    let row = &rows[usize::from(*number) % rows.len()];
    let _ = syscalls::decode(row, &arguments, &Stretch(memory));
    let _ = Stretch(memory).read_argv(RemoteAddr(0x1000), 64 << 10);
}

/// The bytes of a file that is executed.
pub fn program(bytes: &[u8]) {
    let mut file = tempfile::tempfile().expect("a temporary file");
    file.write_all(bytes).expect("space for it");
    let _ = programs::interpreter(&file);
    let _ = programs::is_script(&file);
}

/// The bytes of an ignore.json.
pub fn ignore(bytes: &[u8]) {
    let place = tempfile::tempdir().expect("a temporary directory");
    let config = place.path().join("agent-snapshot");
    std::fs::create_dir(&config).expect("space for it");
    std::fs::write(config.join("ignore.json"), bytes).expect("space for it");
    let name = |path: &std::path::Path| path.as_os_str().as_encoded_bytes().to_vec();
    let home = place.path().join("home");
    let environment = Environment::new(Some(name(&home)), Some(name(place.path())), || None, b"/");
    if let Ok(list) = Ignore::load(&environment, &[]) {
        let _ = list.covering(b"/some/path");
        let _ = list.covering(&name(&home.join(".cache/x")));
    }
}

/// The bytes of a manifest.json.
pub fn manifest(bytes: &[u8]) {
    let place = tempfile::tempdir().expect("a temporary directory");
    std::fs::write(place.path().join("manifest.json"), bytes).expect("space for it");
    let _ = Snapshot::open(place.path());
}

/// The bytes of a blobs.parquet, beside a manifest that refers to two rows of it.
pub fn blobs(bytes: &[u8]) {
    const MANIFEST: &str = include_str!("manifest.json");
    let place = tempfile::tempdir().expect("a temporary directory");
    std::fs::write(place.path().join("manifest.json"), MANIFEST).expect("space for it");
    std::fs::write(place.path().join("blobs.parquet"), bytes).expect("space for it");
    if let Ok(snapshot) = Snapshot::open(place.path()) {
        for file in snapshot.files() {
            for state in [&file.before, &file.after] {
                if let Some(key) = state.present().and_then(|present| present.blob.as_deref()) {
                    let _ = snapshot.read_blob(key, None, &mut Nowhere);
                }
            }
        }
    }
}

/// The bytes of an exported archive.
pub fn archive(bytes: &[u8]) {
    let place = tempfile::tempdir().expect("a temporary directory");
    let _ = Archive::open(bytes, "it").and_then(|archive| archive.check(None, place.path()));
}
