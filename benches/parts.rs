//! What the parts of a recording cost, each alone: decoding, path resolution, the table of records,
//! capture and the blob writer, the manifest both ways.
//!
//!     cargo bench --bench parts -- [PART]
//!
//! `compare.rs` measures the whole. Inputs are the same in each run, files are real ones below the
//! temporary directory.

#![allow(clippy::unwrap_used, reason = "an instrument")]

use std::fs::{self, File};
use std::hint::black_box;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use std::os::unix::fs::MetadataExt as _;

use agent_snapshot::observe::capture::Threat;
use agent_snapshot::observe::capture::{Capture, OnLoss, Source};
use agent_snapshot::observe::ledger::ids::ProcessId;
use agent_snapshot::observe::ledger::names::{Name, Names as Ledger, User};
use agent_snapshot::observe::losses::Losses;
use agent_snapshot::observe::resolve::{Resolver, Viewpoint};
use agent_snapshot::snapshot::blobs::{BlobWriter, Compression, StoreLimit, blob_key};
use agent_snapshot::snapshot::digest::digest_file;
use agent_snapshot::snapshot::layout::{Commit, SnapshotDir};
use agent_snapshot::snapshot::wire::write_manifest;
use agent_snapshot::snapshot::{BlobOmitted, FileRecord, Operation, Side, Snapshot, State};
use agent_snapshot::trace::memory::{ARGV_LIMIT, Fault, Memory, RemoteAddr};
use agent_snapshot::trace::sys::{Tid, TraceeMemory};
use agent_snapshot::trace::syscalls::{self, Args};
use criterion::{
    BatchSize, BenchmarkId, Criterion, SamplingMode, Throughput, criterion_group, criterion_main,
};

criterion_group! {
    name = parts;
    config = Criterion::default()
        .warm_up_time(Duration::from_millis(300))
        .measurement_time(Duration::from_secs(1))
        .sample_size(10)
        .without_plots();
    targets = decode, resolve, table, blobs, capture, manifest
}
criterion_main!(parts);

/// A tracee's memory: one stretch.
#[derive(Default)]
struct Stretch(Vec<u8>);

const START: u64 = 0x10000;

impl Stretch {
    fn map(&mut self, bytes: &[u8]) -> u64 {
        let at = START + self.0.len() as u64;
        self.0.extend_from_slice(bytes);
        at
    }
}

impl Memory for Stretch {
    fn read(&self, address: RemoteAddr, into: &mut [u8]) -> Result<usize, Fault> {
        let skip = address.0.checked_sub(START).and_then(|skip| usize::try_from(skip).ok());
        let rest = skip.and_then(|skip| self.0.get(skip..)).filter(|rest| !rest.is_empty());
        let rest = rest.ok_or(Fault::Unmapped)?;
        let count = rest.len().min(into.len());
        into[..count].copy_from_slice(&rest[..count]);
        Ok(count)
    }
}

fn decode(criterion: &mut Criterion) {
    const CWD: u64 = libc::AT_FDCWD.cast_unsigned() as u64;
    let mut memory = Stretch::default();
    let old = memory.map(b"/usr/lib/x86_64-linux-gnu/libc.so.6\0");
    let new = memory.map(b"target/debug/deps/something-0123456789abcdef.d\0");
    let words = [old, new, old, new, old, 0].map(u64::to_ne_bytes).concat();
    let argv = memory.map(&words);
    // What lies behind is longer than any first read of a string.
    memory.map(&[0; 4096]);
    let flags = (libc::O_RDONLY | libc::O_CLOEXEC).cast_unsigned().into();
    let calls: [(&str, Args); 5] = [
        ("openat", [CWD, old, flags, 0, 0, 0]),
        ("stat", [old, 0, 0, 0, 0, 0]),
        ("newfstatat", [CWD, old, 0, 0, 0, 0]),
        ("renameat2", [CWD, old, CWD, new, 0, 0]),
        ("execve", [old, argv, 0, 0, 0, 0]),
    ];
    let row = |name| syscalls::rows().find(|row| row.name == name).unwrap();
    let mut group = criterion.benchmark_group("decode");
    for (name, args) in calls {
        let row = row(name);
        group.bench_function(name, |bencher| {
            bencher.iter(|| {
                let decoded = syscalls::decode(row, black_box(&args), &memory).unwrap();
                let argv = decoded.argv.map(|argv| memory.read_argv(argv, ARGV_LIMIT).unwrap());
                black_box((decoded, argv))
            });
        });
    }
    // The same through the kernel, from a process that lives: this one.
    let here = TraceeMemory(Tid(std::process::id().cast_signed()));
    let page = memory.0.as_ptr().addr() as u64;
    let (row, args) = (row("openat"), [CWD, page + (old - START), flags, 0, 0, 0]);
    group.bench_function("openat through process_vm_readv", |bencher| {
        bencher.iter(|| black_box(syscalls::decode(row, black_box(&args), &here).unwrap()));
    });
    group.finish();
}

fn resolve(criterion: &mut Criterion) {
    const DEEP: &str = "one/two/three/four/five/six/seven/eight";
    let here = tempfile::tempdir().unwrap();
    let here = fs::canonicalize(here.path()).map(|path| (here, path)).unwrap();
    let root = here.1.as_path();
    fs::create_dir_all(root.join(DEEP)).unwrap();
    fs::write(root.join(DEEP).join("file"), "").unwrap();
    // Three links: an absolute one, and two that lead up again.
    std::os::unix::fs::symlink(root.join("one/two"), root.join("absolute")).unwrap();
    std::os::unix::fs::symlink("../two/three/four", root.join("one/two/up")).unwrap();
    std::os::unix::fs::symlink("../four/five/six", root.join("one/two/three/four/again")).unwrap();
    let paths = [
        ("deep", format!("{DEEP}/file")),
        ("absent", format!("{DEEP}/none")),
        ("absent with its directory", format!("{DEEP}/none/of/these")),
        ("through three links", "absolute/up/again/seven/eight/file".to_owned()),
    ];
    let process = std::process::id().cast_signed();
    let names = Viewpoint { prefix: Vec::new(), root: Vec::new(), mounts: None, process, thread: process };
    let base = root.as_os_str().as_bytes();
    let mut group = criterion.benchmark_group("resolve");
    for (name, path) in &paths {
        let mut resolver = Resolver::default();
        let found = resolver.resolve(&names, base, path.as_bytes(), true).unwrap();
        let links = if name.contains("links") { 3 } else { 0 };
        assert_eq!((found.stat.is_none(), found.crossed.len()), (name.contains("absent"), links), "{name}");
        for known in [false, true] {
            let id = BenchmarkId::new(*name, if known { "directories known" } else { "nothing known" });
            group.bench_function(id, |bencher| {
                bencher.iter(|| {
                    if !known {
                        resolver.forget();
                    }
                    black_box(resolver.resolve(&names, base, black_box(path.as_bytes()), true).unwrap())
                });
            });
        }
    }
    group.finish();
}

fn table(criterion: &mut Criterion) {
    const RECORDS: usize = 100_000;
    let path = |number: usize| {
        format!("/home/user/project/node_modules/package-{}/lib/module-{number}.js", number % 997)
            .into_bytes()
    };
    let paths: Vec<Vec<u8>> = (0..RECORDS).map(path).collect();
    let fill = |paths: Vec<Vec<u8>>| {
        let mut table = Ledger::default();
        for path in paths {
            table.add(path, Name { operations: Operation::Existence.into(), ..Default::default() });
        }
        table
    };
    let mut group = criterion.benchmark_group("table");
    group.sampling_mode(SamplingMode::Flat);
    group.throughput(Throughput::Elements(RECORDS as u64));
    group.bench_function("add 100,000 records", |bencher| {
        bencher.iter_batched(|| paths.clone(), fill, BatchSize::PerIteration);
    });
    let mut table = fill(paths.clone());
    group.bench_function("find and merge in 100,000 records", |bencher| {
        bencher.iter(|| {
            // Far from one to the next, as the calls of several processes are.
            for number in (0..RECORDS).map(|number| number * 7919 % RECORDS) {
                let record = table.find(&paths[number]).unwrap();
                let user = User::new(ProcessId(u32::try_from(number % 4 + 1).unwrap()), 1);
                table.get_mut(record).merge(Operation::Read.into(), user);
            }
        });
    });
    group.bench_function("sort 100,000 records", |bencher| bencher.iter(|| black_box(table.sorted())));
    group.finish();
}

const SMALL_FILES: usize = 5_000;
const LARGE: usize = 64 << 20;

/// The contents of source files: some 3 KiB each, no two the same.
fn small_contents() -> Vec<Vec<u8>> {
    let lines = |number| "int some_function(int argument);\n".repeat(60 + number % 40);
    (0..SMALL_FILES).map(|number| format!("/* {number} */\n{}", lines(number)).into_bytes()).collect()
}

/// Bytes that can't be compressed (xorshift64).
fn large_content() -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    std::iter::repeat_with(next).take(LARGE / 8).flat_map(u64::to_ne_bytes).collect()
}

/// A directory with the contents as files.
struct Files {
    directory: tempfile::TempDir,
    contents: Vec<Vec<u8>>,
    small: Vec<PathBuf>,
    large: PathBuf,
}

impl Files {
    fn new() -> Files {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: String| directory.path().join(name);
        let contents = small_contents();
        let small: Vec<PathBuf> = (0..SMALL_FILES).map(|number| at(format!("{number}.h"))).collect();
        small.iter().zip(&contents).for_each(|(path, content)| fs::write(path, content).unwrap());
        let large = at("large".to_owned());
        fs::write(&large, large_content()).unwrap();
        Files { directory, contents, small, large }
    }

    fn small_bytes(&self) -> Throughput {
        Throughput::ElementsAndBytes {
            elements: SMALL_FILES as u64,
            bytes: self.contents.iter().map(|content| content.len() as u64).sum(),
        }
    }
}

fn key(path: &Path) -> String {
    blob_key(Side::Before, path.as_os_str().as_bytes())
}

fn writer(compression: Compression) -> BlobWriter {
    BlobWriter::new(tempfile::tempfile().unwrap(), compression).unwrap()
}

fn blobs(criterion: &mut Criterion) {
    let files = Files::new();
    let codecs = [Compression::Snappy, Compression::Zstd, Compression::None];
    let mut group = criterion.benchmark_group("blobs");
    group.sampling_mode(SamplingMode::Flat);

    group.throughput(files.small_bytes());
    for codec in codecs {
        group.bench_function(
            BenchmarkId::new("store_bytes of 5,000 contents", format!("{codec:?}")),
            |bencher| {
                let store = |mut writer: BlobWriter| {
                    for (path, content) in files.small.iter().zip(&files.contents) {
                        writer.store_bytes(&key(path), content).unwrap();
                    }
                    writer.finish().unwrap()
                };
                bencher.iter_batched(|| writer(codec), store, BatchSize::PerIteration);
            },
        );
    }
    group.bench_function("store_file of 5,000 files", |bencher| {
        let store = |mut writer: BlobWriter| {
            for path in &files.small {
                let file = File::open(path).unwrap();
                writer.store_file(&key(path), &file, StoreLimit::NONE).unwrap();
            }
            writer.finish().unwrap()
        };
        bencher.iter_batched(|| writer(Compression::Snappy), store, BatchSize::PerIteration);
    });

    group.throughput(Throughput::Bytes(LARGE as u64));
    let large = File::open(&files.large).unwrap();
    for codec in codecs {
        group.bench_function(BenchmarkId::new("store_file of 64 MiB", format!("{codec:?}")), |bencher| {
            let store = |mut writer: BlobWriter| {
                writer.store_file("before:/large", &large, StoreLimit::NONE).unwrap();
                writer.finish().unwrap()
            };
            bencher.iter_batched(|| writer(codec), store, BatchSize::PerIteration);
        });
    }
    group.bench_function("digest of 64 MiB", |bencher| bencher.iter(|| digest_file(&large).unwrap()));
    group.finish();
}

/// Hands `paths` in as the recorder does before a call, and waits for the last one.
fn capture_all(capture: Capture, paths: &[PathBuf], threat: Threat, store: bool) -> Option<File> {
    let mut capture = capture;
    let mut contents = Vec::new();
    for path in paths {
        let metadata = path.symlink_metadata().unwrap();
        let identity = (metadata.dev(), metadata.ino());
        let source = Source { path: path.as_os_str().as_bytes(), identity, length: None };
        let captured = capture.protect(source, Some(threat));
        let admission =
            if store { capture.reserve(&key(path), &captured) } else { Err(BlobOmitted::TooLarge) };
        contents.push((capture.submit(key(path), captured, None, admission, false), metadata.len()));
    }
    let finished = capture.finish().unwrap();
    assert!(
        contents
            .into_iter()
            .map(|(ticket, size)| capture.outcome(ticket, size))
            .all(|outcome| outcome.digest.is_some() && outcome.blob.is_some() == store)
    );
    finished
}

fn capture(criterion: &mut Criterion) {
    let files = Files::new();
    let directory = Arc::new(SnapshotDir::create(&files.directory.path().join("snapshot")).unwrap());
    let start = || {
        let blobs = tempfile::tempfile().unwrap();
        let writer = BlobWriter::new(blobs.try_clone().unwrap(), Compression::Snappy).unwrap();
        let losses = Losses::new(Box::new(|_| true), None);
        Capture::new(writer, blobs, Arc::clone(&directory), OnLoss::Warn, losses)
    };
    let small = ("5,000 small files", files.small_bytes(), files.small.as_slice());
    let large = ("64 MiB", Throughput::Bytes(LARGE as u64), std::slice::from_ref(&files.large));
    let (survive, overwritten) = (Threat::Unlink, Threat::Overwrite);
    let mut group = criterion.benchmark_group("capture");
    group.sampling_mode(SamplingMode::Flat);
    // What is small is read into memory whatever the threat.
    for ((name, throughput, paths), how, fate, store) in [
        (&small, "stored", survive, true),
        (&small, "digest only", survive, false),
        (&large, "stored", survive, true),
        (&large, "copied and stored", overwritten, true),
        (&large, "digest only", survive, false),
    ] {
        group.throughput(throughput.clone());
        group.bench_function(BenchmarkId::new(*name, how), |bencher| {
            let run = |capture| capture_all(capture, paths, fate, store);
            bencher.iter_batched(start, run, BatchSize::PerIteration);
        });
    }
    group.finish();
}

const RECORDS: usize = 10_000;

/// The records of a recording, made of those of a small snapshot, the first 1,000 with a blob.
fn records(past: &Snapshot, blobs: &mut BlobWriter) -> Vec<FileRecord> {
    let kinds = ["/repo/deleted", "/repo/pinned"].map(|path| past.find(path.as_bytes()).unwrap());
    let record = |number: usize| {
        let path = format!("/repo/directory-{:02}/file-{number:05}", number / 100).into_bytes();
        let mut record = FileRecord { path, renamed_to: None, ..kinds[number % 2].clone() };
        for state in [&mut record.before, &mut record.after] {
            if let State::Present(present) = state {
                present.blob = None;
            }
        }
        if let (State::Present(before), true) = (&mut record.before, number < RECORDS / 10) {
            let content = number.to_string().into_bytes();
            let stored = blobs.store_bytes(&blob_key(Side::Before, &record.path), &content).unwrap();
            before.size = stored.size;
            before.digest = Some(stored.digest);
            before.blob = stored.blob.map(|key| key.to_string());
        }
        record
    };
    (0..RECORDS).map(record).collect()
}

fn manifest(criterion: &mut Criterion) {
    let past = [env!("CARGO_MANIFEST_DIR"), "testdata", "format-1"].iter().collect::<PathBuf>();
    let past = Snapshot::open(&past).unwrap();
    let here = tempfile::tempdir().unwrap();
    let target = SnapshotDir::create(here.path()).unwrap();
    let mut blobs = writer(Compression::Snappy);
    let files = records(&past, &mut blobs);
    let mut text = std::io::Cursor::new(Vec::new());
    write_manifest(&mut text, past.header(), &files).unwrap();

    let mut group = criterion.benchmark_group("manifest");
    group.sampling_mode(SamplingMode::Flat);
    let bytes = text.get_ref().len() as u64;
    group.throughput(Throughput::ElementsAndBytes { elements: RECORDS as u64, bytes });
    group.bench_function("write 10,000 records", |bencher| {
        bencher.iter(|| {
            text.set_position(0);
            write_manifest(&mut text, past.header(), &files).unwrap();
        });
    });
    let written = target.unnamed_file().unwrap();
    write_manifest(&written, past.header(), &files).unwrap();
    target.commit(blobs.finish().unwrap(), written, Commit::Only, false).unwrap();
    group.bench_function("open with 10,000 records", |bencher| {
        bencher.iter(|| black_box(Snapshot::open(here.path()).unwrap()));
    });
    group.finish();
}
