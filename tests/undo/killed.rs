//! A restore that is killed at any of its system calls, and the second run that completes it.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};

use nix::sys::signal::{Signal, kill};

use super::programs::cases;
use super::support::*;

/// Runs a restore and kills it at the system call number `at` of its first thread; how many calls it
/// made, and its exit status where it came to its end before.
fn run_until(scene: &Scene, flags: &[&str], at: u64) -> (u64, Option<i32>) {
    trace_restore(scene, flags, |pid, calls| {
        if calls >= at {
            let _ = kill(pid, Signal::SIGKILL);
        }
    })
}

/// Something of everything that a restore does.
fn scene() -> (Scene, States) {
    let scene = Scene::new();
    let store = scene.dir().join("store");
    fs::write(&store, "of the store").unwrap();
    fs::hard_link(&store, scene.at("in-place")).unwrap();
    for number in 0..10 {
        scene.write(&format!("edited-{number}"), format!("old {number}"));
        scene.write(&format!("gone/{number}/file"), format!("gone {number}"));
    }
    scene.write("large", vec![1; 3 << 20]);
    scene.write("linked", "linked");
    fs::hard_link(scene.at("linked"), scene.at("also-linked")).unwrap();
    scene.write("directory-to-file/inner/file", "x");
    scene.write("file-to-directory", "x");
    scene.write("shut/file", "old");
    scene.write("modes", "x");
    fs::set_permissions(scene.at("shut"), fs::Permissions::from_mode(0o555)).unwrap();
    let states = States::of(&scene, || {
        fs::set_permissions(scene.at("shut"), fs::Permissions::from_mode(0o755)).unwrap();
        scene.write("shut/file", "new");
        scene.write("shut/made", "new");
        fs::set_permissions(scene.at("shut"), fs::Permissions::from_mode(0o555)).unwrap();
        scene.write("in-place", "written through another name, and longer");
        for number in 0..10 {
            scene.write(&format!("edited-{number}"), format!("new {number}"));
            scene.write(&format!("made/{number}/file"), format!("made {number}"));
        }
        fs::remove_dir_all(scene.at("gone")).unwrap();
        scene.write("large", vec![2; 2 << 20]);
        fs::remove_file(scene.at("linked")).unwrap();
        fs::remove_file(scene.at("also-linked")).unwrap();
        symlink("elsewhere", scene.at("linked")).unwrap();
        fs::remove_dir_all(scene.at("directory-to-file")).unwrap();
        scene.write("directory-to-file", "now a file");
        fs::remove_file(scene.at("file-to-directory")).unwrap();
        scene.write("file-to-directory/inner/file", "now a directory");
        fs::set_permissions(scene.at("modes"), fs::Permissions::from_mode(0o600)).unwrap();
    });
    (scene, states)
}

/// At every moment each file holds what it held or what is put back.
fn expect_nothing_half_written(scene: &Scene, states: &States) {
    for (path, before) in &states.before {
        let (Some(old), Some(after)) = (&before.content, states.after.get(path)) else { continue };
        let Some(new) = &after.content else { continue };
        let now = fs::read(std::ffi::OsStr::new(std::str::from_utf8(path).unwrap())).unwrap();
        assert!(
            path.ends_with(b"/in-place") || now == *old || now == *new,
            "{}",
            String::from_utf8_lossy(path)
        );
    }
    let _ = scene;
}

#[test]
fn a_second_run_completes_what_a_killed_one_began() {
    let (scene, states) = scene();
    let (calls, status) = run_until(&scene, &["--before"], u64::MAX);
    assert_eq!(status, Some(0));
    verb("restore", &scene.snap(), &[]).expect(0);
    states.expect(&scene, false);

    let rounds = u64::from(cases(30));
    let mut completed = 0;
    for round in 0..rounds {
        // Spread over the whole run, each time elsewhere.
        let at = calls * (round * 618 % 1000) / 1000 + round % 3;
        let is_before = round % 2 == 0;
        let flags: &[&str] = if is_before { &["--before"] } else { &[] };
        run_until(&scene, flags, at);
        expect_nothing_half_written(&scene, &states);
        let run = verb("restore", &scene.snap(), flags).expect(0);
        completed += u64::from(run.stderr.contains("had been interrupted"));
        states.expect(&scene, is_before);
        for entry in fs::read_dir(scene.dir()).unwrap() {
            let name = entry.unwrap().file_name().into_string().unwrap();
            assert!(!name.ends_with(".unfinished"), "{name} after a kill at call {at}");
        }
        let again = verb("restore", &scene.snap(), flags).expect(0);
        assert!(again.stdout.starts_with("nothing to do"), "{again:#?} after a kill at call {at}");
    }
    println!("{calls} calls, {rounds} kills, {completed} restores completed");
    assert!(completed > 0);
    fs::set_permissions(scene.at("shut"), fs::Permissions::from_mode(0o755)).unwrap();
}

#[test]
fn a_killed_restore_can_be_undone_by_its_rescue() {
    let (scene, states) = scene();
    let (calls, _) = run_until(&scene, &["--before"], u64::MAX);
    verb("restore", &scene.snap(), &[]).expect(0);
    for part in 1..8 {
        run_until(&scene, &["--before"], calls * part / 8);
        let unfinished = fs::read_dir(scene.dir()).unwrap().map(|entry| entry.unwrap().path()).find(|path| {
            path.to_str().unwrap().ends_with(".unfinished") && path.join("manifest.json").exists()
        });
        if let Some(unfinished) = unfinished {
            verb("restore", &unfinished, &["--before"]).expect(0);
            assert!(!unfinished.exists());
        } else {
            // It was killed before it began to change anything, or after it had come to its end.
            verb("restore", &scene.snap(), &[]).expect(0);
        }
        states.expect(&scene, false);
    }
    fs::set_permissions(scene.at("shut"), fs::Permissions::from_mode(0o755)).unwrap();
}

#[test]
fn what_was_killed_twice_is_completed_without_leftovers() {
    let (scene, states) = scene();
    let (calls, _) = run_until(&scene, &["--before"], u64::MAX);
    verb("restore", &scene.snap(), &[]).expect(0);
    let unfinished = |scene: &Scene| {
        let names = fs::read_dir(scene.dir()).unwrap().map(|entry| entry.unwrap().file_name());
        names.filter(|name| name.to_str().unwrap().ends_with(".unfinished")).count()
    };
    let mut several = 0;
    for round in 0..u64::from(cases(10)) {
        let is_before = round % 2 == 0;
        let flags: &[&str] = if is_before { &["--before"] } else { &[] };
        for part in [40 + round * 7 % 50, 45 + round * 11 % 50, 50 + round * 13 % 45] {
            run_until(&scene, flags, calls * part / 100);
        }
        several += u32::from(unfinished(&scene) > 1);
        verb("restore", &scene.snap(), flags).expect(0);
        states.expect(&scene, is_before);
        assert_eq!(unfinished(&scene), 0, "in round {round}");
        let left = |path: &&Vec<u8>| path.windows(16).any(|part| part == b".agent-snapshot-");
        assert_eq!(scan(&scene.root()).keys().find(left), None, "in round {round}");
        let again = verb("restore", &scene.snap(), flags).expect(0);
        assert!(again.stdout.starts_with("nothing to do"), "{again:#?} in round {round}");
    }
    println!("{several} times several rescues were unfinished");
    assert!(several > 0);
    fs::set_permissions(scene.at("shut"), fs::Permissions::from_mode(0o755)).unwrap();
}
