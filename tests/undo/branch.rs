//! `branch` (and so `restore --into`).

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{MetadataExt as _, symlink};
use std::path::{Path, PathBuf};

use agent_snapshot::snapshot::*;
use nix::sys::stat::Mode;

use crate::support::*;

fn branch(place: &Place, name: &str, flags: &[&str]) -> (Run, PathBuf) {
    let dir = place.base().join(name);
    let flags = [&[dir.to_str().unwrap()], flags].concat();
    (place.verb("branch", &flags), dir)
}

/// What stands under `dir` for the live `path`.
fn under(dir: &Path, path: &Path) -> PathBuf {
    dir.join(path.strip_prefix("/").unwrap())
}

/// The tree under `dir` that stands for `root`, with paths as they are live.
fn branched(dir: &Path, root: &Path) -> Tree {
    let prefix = dir.as_os_str().len();
    scan(&under(dir, root)).into_iter().map(|(path, entry)| (path[prefix..].to_vec(), entry)).collect()
}

fn rich_tree(place: &Place) {
    place.write("dir/inner/file", "one");
    place.write("empty", "");
    place.write("large", vec![7; 20 << 20]);
    place.write("script", "#!/bin/sh\n");
    chmod(place.at("script"), 0o755);
    fs::hard_link(place.at("script"), place.at("dir/same")).unwrap();
    symlink("../no/such", place.at("dir/dangling")).unwrap();
    symlink("/etc", place.at("dir/outside")).unwrap();
    nix::unistd::mkfifo(&place.at("fifo"), Mode::from_bits_truncate(0o640)).unwrap();
    fs::write(place.work.join(OsStr::from_bytes(b"n\xff\n")), "odd name").unwrap();
    fs::create_dir(place.at("shut")).unwrap();
    place.write("shut/inside", "kept");
    chmod(place.at("shut"), 0o500);
}

#[test]
fn both_states_are_built_beside_unchanged_live_files() {
    let place = Place::new();
    rich_tree(&place);
    let states = States::with(
        &place,
        |_| true,
        || {
            fs::remove_file(place.at("dir/dangling")).unwrap();
            place.write("dir/inner/file", "two");
            fs::remove_file(place.at("large")).unwrap();
            fs::create_dir(place.at("large")).unwrap();
        },
    );
    for (flags, expected) in [(&["--before"][..], &states.before), (&[], &states.after)] {
        let (run, dir) = branch(&place, &format!("branch{}", flags.len()), flags);
        run.expect(0);
        assert_eq!(describe(&branched(&dir, &place.work), |_| true), describe(expected, |_| true));
    }
    assert_eq!(scan(&place.work), states.after);
}

#[test]
fn target_directory_that_is_not_empty_is_refused() {
    let place = Place::new();
    place.write("file", "x");
    place.make_bundle(|| place.write("file", "y"));
    let target = place.base().join("b");
    fs::create_dir(&target).unwrap();
    branch(&place, "b", &[]).0.expect(0);
    let run = branch(&place, "b", &[]).0.expect(2);
    assert!(run.stderr.contains("is not empty"), "{}", run.stderr);
}

#[test]
fn set_id_bits_need_preserve() {
    let place = Place::new();
    place.write("tool", "x");
    place.make_bundle(|| {
        chmod(place.at("tool"), 0o6755);
    });
    let mode = |dir: &Path| fs::metadata(under(dir, &place.at("tool"))).unwrap().mode() & 0o7777;
    let (run, dir) = branch(&place, "plain", &[]);
    run.expect(0);
    assert_eq!(mode(&dir), 0o755);
    let (run, dir) = branch(&place, "whole", &["--preserve"]);
    run.expect(0);
    assert_eq!(mode(&dir), 0o6755);
}

#[test]
fn unneeded_content_is_left_out_and_missing_content_named() {
    let place = Place::new();
    place.write("asked", "only its existence");
    place.write("kept", "x");
    place.write("lost", "too large");
    let tree = scan(&place.work);
    commit(&place.out, &header(), |writer| {
        let mut records = records(writer, &tree, &tree, |path| !path.ends_with(b"work"));
        for record in &mut records {
            for state in [&mut record.before, &mut record.after] {
                let State::Present(present) = state else { continue };
                if record.path.ends_with(b"asked") {
                    (present.digest, present.blob) = (None, None);
                }
                if record.path.ends_with(b"lost") {
                    (present.blob, present.blob_omitted) = (None, Some(BlobOmitted::TooLarge));
                }
            }
        }
        records
    });
    let (run, dir) = branch(&place, "b", &[]);
    let run = run.expect(1);
    assert!(
        run.stdout.contains("left out") && run.stdout.contains("/work/lost: it was larger than the limit")
    );
    assert_eq!(fs::read_to_string(under(&dir, &place.at("kept"))).unwrap(), "x");
    assert!(!under(&dir, &place.at("lost")).exists() && !under(&dir, &place.at("asked")).exists());

    let (run, dir) = branch(&place, "one", &[place.at("kept").to_str().unwrap()]);
    run.expect(0);
    assert!(under(&dir, &place.at("kept")).exists());
    let (run, dir) = branch(&place, "none", &[place.at("nosuch").to_str().unwrap()]);
    let run = run.expect(1);
    assert!(run.stderr.contains("the snapshot has no record of") && !dir.exists(), "{run:#?}");
}
