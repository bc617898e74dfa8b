//! Files with holes, from the recording to the undo: what is a hole costs nothing and stays one.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::Path;
use std::process::{Output, Stdio};

use agent_snapshot::snapshot::blobs::{BlobWriter, Compression, StoreLimit};

use crate::support::{BINARY, Place, python_with_modules, stderr};

const GIB: u64 = 1 << 30;

/// Makes `name` a file of `size` bytes with 4 KiB of data in it.
fn make(place: &Place, name: &str, size: u64, offset: u64) {
    let file = File::create(place.at(name)).unwrap();
    file.set_len(size).unwrap();
    file.write_all_at(&[7; 4096], offset).unwrap();
}

fn blocks(path: &Path) -> u64 {
    fs::symlink_metadata(path).unwrap().blocks()
}

fn run(place: &Place, args: &[&str]) -> Output {
    place.command().args(args).stdout(Stdio::piped()).output().unwrap()
}

/// The filesystem of temporary files, and one in memory.
fn places() -> Vec<Place> {
    let memory = Path::new("/dev/shm");
    if !memory.is_dir() {
        println!("skipped there: no /dev/shm");
    }
    let directories = [std::env::temp_dir(), memory.to_owned()];
    let there = directories.iter().filter(|directory| directory.is_dir());
    let place = |directory: &std::path::PathBuf| {
        let place = Place::in_directory(directory);
        // Else /dev is left out.
        let config = place.base().join("config/agent-snapshot");
        fs::create_dir(&config).unwrap();
        fs::write(config.join("ignore.json"), r#"["/proc", "/usr", "/bin", "/etc"]"#).unwrap();
        place
    };
    there.map(place).collect()
}

const NAMES: [&str; 8] = ["removed", "overwritten", "cut", "grown", "read", "renamed", "punched", "one"];

#[test]
fn undo_of_sparse_files_reads_and_writes_data_only() {
    for place in places() {
        for name in NAMES {
            make(&place, name, 20 * GIB, 5 * GIB);
        }
        make(&place, "linked", 20 * GIB, GIB);
        fs::hard_link(place.at("linked"), place.at("link")).unwrap();
        // It stays the file that it is, and is written in place.
        fs::hard_link(place.at("one"), place.at("other")).unwrap();
        let before: Vec<u64> = NAMES.map(|name| blocks(&place.at(name))).into();
        let output = place.record_with(
            &[],
            "rm removed link; printf new | dd of=overwritten bs=1 seek=1G conv=notrunc
             truncate -s 100 cut; truncate -s 30G grown; head -c 10 read >&2; mv renamed renamed2
             head -c 9M /dev/zero | tr '\\0' x | dd of=one bs=1M seek=6000 conv=notrunc
             fallocate -p -o 5G -l 4096 punched; printf made | dd of=made bs=1 seek=9G",
        );
        assert!(output.status.success(), "{output:?}");
        assert!(fs::metadata(place.out.join("blobs.parquet")).unwrap().len() < 1 << 20);
        let snapshot = place.snapshot();
        assert!(snapshot.header().complete, "{:?}", snapshot.header().warnings);
        for name in ["removed", "overwritten", "cut", "grown", "renamed", "punched", "link", "one"] {
            let state = place.file(&snapshot, name).before.present().unwrap();
            assert!(state.is_sparse() && state.blob.is_some(), "{name}: {state:?}");
        }
        let out = place.out.to_str().unwrap();
        let verified = run(&place, &["verify", out]);
        assert!(verified.status.success(), "{verified:?}");

        let undone = run(&place, &["restore", out, "--before"]);
        assert!(undone.status.success(), "{}", stderr(&undone));
        for (name, before) in NAMES.into_iter().zip(before) {
            let path = place.at(name);
            let mut data = [0; 4096];
            File::open(&path).unwrap().read_exact_at(&mut data, 5 * GIB).unwrap();
            assert_eq!((fs::metadata(&path).unwrap().len(), data), (20 * GIB, [7; 4096]), "{name}");
            assert!(blocks(&path) <= before + 64, "{name}: {} blocks, {before} before", blocks(&path));
        }
        let inode = |name: &str| fs::metadata(place.at(name)).unwrap().ino();
        assert_eq!(inode("one"), inode("other"));
        assert!(!place.at("made").exists());
        let verified = run(&place, &["verify", out, "--before"]);
        assert!(verified.status.success(), "{verified:?}");
        let mut made = fs::read_dir(place.base()).unwrap().map(|entry| entry.unwrap().path());
        let rescue = made.find(|path| path.to_string_lossy().contains("rescue")).unwrap();
        assert!(fs::metadata(rescue.join("blobs.parquet")).unwrap().len() < 1 << 20);

        let redone = run(&place, &["restore", rescue.to_str().unwrap(), "--before"]);
        assert!(redone.status.success(), "{}", stderr(&redone));
        assert_eq!(fs::metadata(place.at("made")).unwrap().len(), 9 * GIB + 4);
        assert!(blocks(&place.at("made")) < 64);
    }
}

#[test]
fn one_moved_byte_of_a_sparse_file_is_a_difference() {
    let place = Place::new();
    make(&place, "file", 20 * GIB, 5 * GIB);
    place.record("printf x | dd of=file bs=1 seek=7G conv=notrunc 2>/dev/null");
    let out = place.out.to_str().unwrap();
    assert_eq!(run(&place, &["verify", out]).status.code(), Some(0));
    let file = File::options().write(true).open(place.at("file")).unwrap();
    let modified = file.metadata().unwrap().modified().unwrap();
    file.write_all_at(b"x", 8 * GIB).unwrap();
    file.set_modified(modified).unwrap();
    assert_eq!(run(&place, &["verify", out]).status.code(), Some(1));
    // Zeros where there was a hole are the same content.
    file.write_all_at(b"\0", 8 * GIB).unwrap();
    assert_eq!(run(&place, &["verify", out]).status.code(), Some(0));
}

#[test]
fn cat_writes_zeros_to_a_pipe_and_holes_to_a_file() {
    let place = Place::new();
    let size = (64 << 20) + 4097;
    make(&place, "file", size, 1 << 20);
    place.record("rm file");
    let cat = |redirected: &str| {
        let script = format!("\"$0\" cat --before \"$1\" file {redirected}");
        let mut command = place.program("sh");
        let args = [BINARY, place.out.to_str().unwrap()];
        let output = command.args(["-c", &script]).args(args).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        output.stdout
    };
    let mut expected = vec![0; usize::try_from(size).unwrap()];
    expected[1 << 20..(1 << 20) + 4096].fill(7);
    assert!(cat("") == expected);
    assert!(cat("| cat") == expected);
    let path = place.at("to");
    cat("> to");
    assert!(fs::read(&path).unwrap() == expected);
    assert!(blocks(&path) < 64, "{}", blocks(&path));
    fs::write(&path, "first").unwrap();
    cat(">> to");
    assert!(fs::read(&path).unwrap() == [b"first", expected.as_slice()].concat());
    // In the midst of a file nothing is left as it is.
    fs::write(&path, vec![1; 100 << 20]).unwrap();
    cat("1<> to");
    assert!(fs::read(&path).unwrap()[..expected.len()] == expected);
}

#[test]
fn diff_names_a_sparse_file_without_a_patch() {
    let place = Place::new();
    make(&place, "file", 20 * GIB, GIB);
    place.write("text", "old\n");
    place.record("printf x | dd of=file bs=1 seek=7G conv=notrunc 2>/dev/null; echo new >text");
    let out = place.out.to_str().unwrap();
    let diff = run(&place, &["diff", out]);
    assert_eq!(diff.status.code(), Some(1));
    assert!(stderr(&diff).contains("diff file: a patch of a sparse file"), "{}", stderr(&diff));
    let text = String::from_utf8(diff.stdout).unwrap();
    assert!(text.contains("+new") && !text.contains("a/file"), "{text}");
    let status = run(&place, &["diff", out, "--name-status"]);
    assert_eq!((status.status.code(), status.stdout.as_slice()), (Some(0), b"M\tfile\nM\ttext\n".as_slice()));
}

/// The code block of docs/format.md that has `word` in it.
fn code_block(word: &str) -> &'static str {
    let mut blocks = include_str!("../docs/format.md").split("```").skip(1).step_by(2);
    let found = blocks.find(|block| block.contains(word)).unwrap();
    found.split_once('\n').unwrap().1
}

#[test]
fn documented_expressions_return_complete_contents() {
    let place = Place::new();
    let path = place.at("blobs.parquet");
    let file = File::options().read(true).write(true).create_new(true).open(&path).unwrap();
    let mut writer = BlobWriter::new(file, Compression::Snappy).unwrap();
    let size = (64 << 20) + 4097;
    let long: Vec<u8> = (0..17 << 20).map(|at: u32| at.to_le_bytes()[1]).collect();
    let mut contents = vec![
        ("before:/empty", vec![]),
        ("before:/small", b"small".to_vec()),
        ("before:/long", long),
        ("before:/none", vec![0; 65 << 20]),
    ];
    make(&place, "file", size, 1 << 20);
    contents.push(("before:/sparse", fs::read(place.at("file")).unwrap()));
    for (key, content) in &contents {
        let file = tempfile::tempfile().unwrap();
        file.set_len(content.len() as u64).unwrap();
        for (number, block) in content.chunks(4096).enumerate() {
            if block.iter().any(|byte| *byte != 0) {
                file.write_all_at(block, number as u64 * 4096).unwrap();
            }
        }
        writer.store_file(key, &file, StoreLimit::NONE).unwrap();
    }
    drop(writer.finish().unwrap());
    let expected: String = {
        use sha2::{Digest as _, Sha256};
        contents.sort();
        let line = |(key, content): &(&str, Vec<u8>)| {
            let digest: String = Sha256::digest(content).iter().map(|byte| format!("{byte:02x}")).collect();
            format!("{key} {} {digest}\n", content.len())
        };
        contents.iter().map(line).collect()
    };
    let show = "for key, content in sorted(contents.items()):
    print(key, len(content), hashlib.sha256(content).hexdigest())";
    let (pandas, sql) = (code_block("pandas.read_parquet"), code_block("list_reduce"));
    for (module, code) in [
        ("pandas", pandas.to_owned()),
        ("pyarrow.parquet", code_block("pyarrow.parquet").to_owned()),
        (
            "duckdb",
            format!(
                "duckdb.sql('SET enable_progress_bar = false')\ncontents = dict(duckdb.sql(r'''{sql}''').fetchall())"
            ),
        ),
    ] {
        let code = code.replace("out/blobs.parquet", "blobs.parquet");
        let script =
            format!("import hashlib\ntry: import {module}\nexcept ImportError: exit(77)\n{code}\n{show}");
        let mut python = place.program(python_with_modules());
        match python.args(["-c", &script]).output() {
            Ok(output) if output.status.code() == Some(77) => println!("skipped: no {module}"),
            Ok(output) => {
                assert_eq!(String::from_utf8_lossy(&output.stdout), expected, "{}", stderr(&output))
            }
            Err(error) => println!("skipped: no Python: {error}"),
        }
    }
}
