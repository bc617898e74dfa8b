//! `branch` (and so `restore --into`).

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};

use agent_snapshot::snapshot::*;
use nix::sys::stat::Mode;

use super::support::*;

fn branch(scene: &Scene, name: &str, flags: &[&str]) -> (Run, PathBuf) {
    let dir = scene.dir().join(name);
    let snap = scene.snap();
    let args = [OsStr::new("branch"), snap.as_os_str(), dir.as_os_str()];
    (run(args.into_iter().chain(flags.iter().map(OsStr::new))), dir)
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

fn rich_tree(scene: &Scene) {
    scene.write("dir/inner/file", "one");
    scene.write("empty", "");
    scene.write("large", vec![7; 20 << 20]);
    scene.write("script", "#!/bin/sh\n");
    fs::set_permissions(scene.at("script"), fs::Permissions::from_mode(0o755)).unwrap();
    fs::hard_link(scene.at("script"), scene.at("dir/same")).unwrap();
    symlink("../no/such", scene.at("dir/dangling")).unwrap();
    symlink("/etc", scene.at("dir/outside")).unwrap();
    nix::unistd::mkfifo(&scene.at("fifo"), Mode::from_bits_truncate(0o640)).unwrap();
    fs::write(scene.root().join(OsStr::from_bytes(b"n\xff\n")), "odd name").unwrap();
    fs::create_dir(scene.at("shut")).unwrap();
    scene.write("shut/inside", "kept");
    fs::set_permissions(scene.at("shut"), fs::Permissions::from_mode(0o500)).unwrap();
}

#[test]
fn both_states_are_built_whole_and_the_live_files_are_not_touched() {
    let scene = Scene::new();
    rich_tree(&scene);
    let before = scan(&scene.root());
    record_with(
        &scene.root(),
        &scene.snap(),
        |_| true,
        || {
            fs::remove_file(scene.at("dir/dangling")).unwrap();
            scene.write("dir/inner/file", "two");
            fs::remove_file(scene.at("large")).unwrap();
            fs::create_dir(scene.at("large")).unwrap();
        },
    );
    let after = scan(&scene.root());
    for (flags, expected) in [(&["--before"][..], &before), (&[], &after)] {
        let (run, dir) = branch(&scene, &format!("branch{}", flags.len()), flags);
        run.expect(0);
        assert_eq!(told(&branched(&dir, &scene.root()), |_| true), told(expected, |_| true));
    }
    let now = scan(&scene.root());
    assert_eq!(now.len(), after.len());
    for (path, entry) in &now {
        assert_eq!(entry.present, after[path].present, "{}", printable(path));
    }
}

#[test]
fn a_directory_that_is_not_empty_is_refused() {
    let scene = Scene::new();
    scene.write("file", "x");
    scene.record(|| scene.write("file", "y"));
    let target = scene.dir().join("b");
    fs::create_dir(&target).unwrap();
    branch(&scene, "b", &[]).0.expect(0);
    let run = branch(&scene, "b", &[]).0.expect(2);
    assert!(run.stderr.contains("is not empty"), "{}", run.stderr);
}

#[test]
fn set_id_bits_come_with_preserve_only() {
    let scene = Scene::new();
    scene.write("tool", "x");
    scene.record(|| {
        fs::set_permissions(scene.at("tool"), fs::Permissions::from_mode(0o6755)).unwrap();
    });
    let mode = |dir: &Path| fs::metadata(under(dir, &scene.at("tool"))).unwrap().mode() & 0o7777;
    let (run, dir) = branch(&scene, "plain", &[]);
    run.expect(0);
    assert_eq!(mode(&dir), 0o755);
    let (run, dir) = branch(&scene, "whole", &["--preserve"]);
    run.expect(0);
    assert_eq!(mode(&dir), 0o6755);
}

#[test]
fn content_that_was_never_needed_is_left_out_and_that_which_is_missing_is_named() {
    let scene = Scene::new();
    scene.write("asked", "only its existence");
    scene.write("kept", "x");
    scene.write("lost", "too large");
    let tree = scan(&scene.root());
    commit(&scene.snap(), &header(), |writer| {
        let mut records = records(writer, &tree, &tree, |path| !path.ends_with(b"tree"));
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
    let (run, dir) = branch(&scene, "b", &[]);
    let run = run.expect(1);
    assert!(
        run.stdout.contains("left out") && run.stdout.contains("/tree/lost: it was larger than the limit")
    );
    assert_eq!(fs::read_to_string(under(&dir, &scene.at("kept"))).unwrap(), "x");
    assert!(!under(&dir, &scene.at("lost")).exists() && !under(&dir, &scene.at("asked")).exists());

    let (run, dir) = branch(&scene, "one", &[scene.at("kept").to_str().unwrap()]);
    run.expect(0);
    assert!(under(&dir, &scene.at("kept")).exists());
    let (run, dir) = branch(&scene, "none", &[scene.at("nosuch").to_str().unwrap()]);
    let run = run.expect(1);
    assert!(run.stderr.contains("the snapshot knows nothing of") && !dir.exists(), "{run:#?}");
}
