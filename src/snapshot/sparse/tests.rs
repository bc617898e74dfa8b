use std::fs;
use std::io::Read as _;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::PathBuf;

use proptest::prelude::*;
use tempfile::TempDir;

use super::super::digest::{digest_file, digest_file_like};
use super::super::live::{copy_keeping_holes, data_size};
use super::*;

const SPARSE: Digest = Digest::Sparse([0; 32]);
const BLOCK_LEN: u64 = BLOCK as u64;

/// The filesystem of temporary files, and one in memory.
fn places() -> Vec<TempDir> {
    let memory = tempfile::tempdir_in("/dev/shm");
    if memory.is_err() {
        println!("skipped there: no /dev/shm");
    }
    [tempfile::tempdir().unwrap()].into_iter().chain(memory).collect()
}

/// A file of `size` bytes with `data` at these offsets, and holes elsewhere.
fn sparse_file(dir: &TempDir, size: u64, data: &[(u64, Vec<u8>)]) -> File {
    let file =
        File::options().read(true).write(true).create(true).truncate(true).open(dir.path().join("file"));
    let file = file.unwrap();
    file.set_len(size).unwrap();
    for (offset, bytes) in data {
        file.write_all_at(bytes, *offset).unwrap();
    }
    file
}

fn content(file: &File) -> Vec<u8> {
    let mut bytes = Vec::new();
    file.try_clone().unwrap().seek(io::SeekFrom::Start(0)).unwrap();
    (&mut &*file).read_to_end(&mut bytes).unwrap();
    bytes
}

/// The digest as the documentation words it, with all in memory.
fn naive_digest(content: &[u8]) -> Digest {
    let mut hashed = (content.len() as u64).to_le_bytes().to_vec();
    let blocks: Vec<&[u8]> = content.chunks(BLOCK).collect();
    let is_data: Vec<bool> = blocks.iter().map(|block| block.iter().any(|byte| *byte != 0)).collect();
    let mut first = 0;
    for group in is_data.chunk_by(|one, next| one == next) {
        if group[0] {
            let bytes = blocks[first..first + group.len()].concat();
            hashed.extend((first as u64 * BLOCK_LEN).to_le_bytes());
            hashed.extend(&bytes);
            hashed.extend((bytes.len() as u64).to_le_bytes());
        }
        first += group.len();
    }
    let Digest::Sha256(digest) = Digest::of(&hashed) else { panic!() };
    Digest::Sparse(digest)
}

/// A size and data in it: whole blocks, parts of some, zeros, at the end and not.
fn any_data() -> impl Strategy<Value = (u64, Vec<(u64, Vec<u8>)>)> {
    let part = (0..64_u64, prop_oneof![Just(0), 0..BLOCK_LEN], 0..20_000_usize, any::<bool>());
    (0..64 * BLOCK_LEN, prop::collection::vec(part, 0..5)).prop_map(|(size, parts)| {
        let data = parts.into_iter().filter_map(|(block, within, len, zero)| {
            let offset = block * BLOCK_LEN + within;
            let len = len.min(usize::try_from(size.checked_sub(offset)?).unwrap());
            let bytes = (0..len).map(|at| if zero { 0 } else { u8::try_from(at % 251).unwrap() });
            Some((offset, bytes.collect()))
        });
        (size, data.collect())
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    #[test]
    fn the_sparse_digest_is_that_of_the_documentation((size, data) in any_data()) {
        for dir in places() {
            let file = sparse_file(&dir, size, &data);
            let bytes = content(&file);
            let expected = naive_digest(&bytes);
            prop_assert_eq!(Digest::of_like(&bytes, &expected), expected);
            prop_assert_eq!(digest_file_like(&file, &expected).unwrap(), (expected, size));
            // The same bytes without a hole.
            let whole = tempfile::tempfile_in(dir.path()).unwrap();
            whole.write_all_at(&bytes, 0).unwrap();
            prop_assert_eq!(digest_file_like(&whole, &expected).unwrap(), (expected, size));
        }
    }

    #[test]
    fn a_copy_has_the_bytes_and_no_more_blocks((size, data) in any_data()) {
        for dir in places() {
            let file = sparse_file(&dir, size, &data);
            let copy = tempfile::tempfile_in(dir.path()).unwrap();
            prop_assert_eq!(copy_keeping_holes(&file, &copy, size).unwrap(), size);
            prop_assert_eq!(content(&copy), content(&file));
            prop_assert!(copy.metadata().unwrap().blocks() <= file.metadata().unwrap().blocks());
            // Over what was there before, longer or shorter.
            for old in [3 * BLOCK + 5, 80 * BLOCK] {
                let over = tempfile::tempfile_in(dir.path()).unwrap();
                over.write_all_at(&vec![9; old], 0).unwrap();
                prop_assert_eq!(copy_keeping_holes(&file, &over, size).unwrap(), size);
                prop_assert_eq!(content(&over), content(&file));
                prop_assert!(over.metadata().unwrap().blocks() <= file.metadata().unwrap().blocks());
            }
        }
    }

    #[test]
    fn a_sink_of_bytes_gets_zeros_and_one_of_a_file_holes((size, data) in any_data()) {
        let dir = tempfile::tempdir().unwrap();
        let bytes = content(&sparse_file(&dir, size, &data));
        let (mut memory, file) = (Vec::new(), tempfile::tempfile_in(dir.path()).unwrap());
        let mut sinks: [&mut dyn Sink; 2] = [&mut memory, &mut SparseFile::at_end_of(&file).unwrap()];
        for sink in &mut sinks {
            let mut end = 0;
            for run in runs(&bytes) {
                sink.hole((run.start - end) as u64).unwrap();
                end = run.end;
                sink.data(&bytes[run]).unwrap();
            }
            sink.hole((bytes.len() - end) as u64).unwrap();
        }
        prop_assert_eq!(content(&file), bytes.clone());
        prop_assert_eq!(memory, bytes);
    }
}

#[test]
fn runs_are_maximal_and_of_whole_blocks() {
    let mut bytes = vec![0; 5 * BLOCK + 7];
    assert_eq!(runs(&bytes).count(), 0);
    for at in [BLOCK, 3 * BLOCK - 1, 5 * BLOCK + 6] {
        bytes[at] = 1;
    }
    let found: Vec<_> = runs(&bytes).collect();
    assert_eq!(found, [BLOCK..3 * BLOCK, 5 * BLOCK..5 * BLOCK + 7]);
    assert_eq!(runs(&[]).count(), 0);
}

#[test]
fn a_large_file_with_a_hole_is_sparse_and_no_other() {
    for dir in places() {
        let large = SPARSE_ABOVE + BLOCK_LEN;
        let with_hole = sparse_file(&dir, large, &[(BLOCK_LEN, vec![1; BLOCK])]);
        assert!(is_sparse(&with_hole, large).unwrap());
        assert!(matches!(digest_file(&with_hole).unwrap(), (Digest::Sparse(_), size) if size == large));
        assert_eq!(data_size(&with_hole).unwrap(), BLOCK_LEN);
        let small = sparse_file(&dir, SPARSE_ABOVE, &[]);
        assert_eq!(digest_file(&small).unwrap().0, Digest::of(&content(&small)));
        assert_eq!(data_size(&small).unwrap(), SPARSE_ABOVE);
        let whole = sparse_file(&dir, 0, &[(0, vec![0; usize::try_from(large).unwrap()])]);
        assert!(matches!(digest_file(&whole).unwrap(), (Digest::Sha256(_), size) if size == large));
        assert_eq!(digest_file_like(&whole, &SPARSE).unwrap().0, naive_digest(&content(&whole)));
    }
}

#[test]
fn the_offset_of_a_file_stays_where_it_was() {
    let dir = tempfile::tempdir().unwrap();
    let mut file = sparse_file(&dir, SPARSE_ABOVE + 1, &[(9, vec![1])]);
    file.seek(io::SeekFrom::Start(5)).unwrap();
    digest_file(&file).unwrap();
    data_size(&file).unwrap();
    copy_keeping_holes(&file, &tempfile::tempfile().unwrap(), SPARSE_ABOVE + 1).unwrap();
    assert_eq!(file.stream_position().unwrap(), 5);
}

#[test]
fn a_file_that_was_cut_is_copied_and_hashed_as_far_as_it_goes() {
    for dir in places() {
        let file = sparse_file(&dir, 3 * BLOCK_LEN, &[(0, vec![1; 3 * BLOCK])]);
        let copy = tempfile::tempfile_in(dir.path()).unwrap();
        assert_eq!(copy_keeping_holes(&file, &copy, 5 * BLOCK_LEN).unwrap(), 3 * BLOCK_LEN);
    }
}

#[test]
fn the_documented_digest_is_the_same() {
    let document = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("docs/format.md");
    let document = fs::read_to_string(document).unwrap();
    let code = document.split("```").find(|block| block.contains("def sparse_sha256")).unwrap();
    let dir = tempfile::tempdir().unwrap();
    for (size, data) in [
        (0, vec![]),
        (BLOCK_LEN, vec![(0, vec![1])]),
        (5000, vec![(4999, vec![1])]),
        (SPARSE_ABOVE + 10, vec![(0, vec![2; 10_000]), (1 << 20, vec![3; BLOCK]), (SPARSE_ABOVE, vec![4])]),
        (SPARSE_ABOVE + BLOCK_LEN, vec![(BLOCK_LEN, vec![0; BLOCK]), (9 * BLOCK_LEN, vec![5; BLOCK])]),
    ] {
        let file = sparse_file(&dir, size, &data);
        let path = dir.path().join("file");
        let code = code.strip_prefix("python\n").unwrap();
        let code = format!("import hashlib, os\n{code}\nprint(sparse_sha256({path:?}))");
        let output = match std::process::Command::new("python3").arg("-c").arg(code).output() {
            Ok(output) => output,
            Err(error) => return println!("skipped: no python3: {error}"),
        };
        let text = String::from_utf8(output.stdout).unwrap();
        let told = String::from_utf8_lossy(&output.stderr);
        assert_eq!(text.trim(), digest_file_like(&file, &SPARSE).unwrap().0.to_string(), "{told}");
    }
}
