//! A restore that is killed at any of its system calls, and the second run that completes it.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};

use nix::sys::signal::{Signal, kill};

use super::random::cases;
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

/// A restore of a few paths of every kind, with as few calls as possible.
fn small_scene() -> (Scene, States) {
    let scene = Scene::new();
    // Long enough to be written in several pieces.
    fs::write(scene.dir().join("store"), vec![b'o'; (2 << 20) + 5000]).unwrap();
    fs::hard_link(scene.dir().join("store"), scene.at("in-place")).unwrap();
    scene.write("edited", "old");
    scene.write("gone/file", "gone");
    scene.write("directory-to-socket/inner", "x");
    scene.write("modes", "x");
    drop(std::os::unix::net::UnixListener::bind(scene.at("socket")).unwrap());
    let states = States::of(&scene, || {
        scene.write("in-place", vec![b'n'; (3 << 20) + 7000]);
        scene.write("edited", "new");
        scene.write("made", "new");
        fs::remove_dir_all(scene.at("gone")).unwrap();
        fs::remove_file(scene.at("socket")).unwrap();
        scene.write("socket/inner", "now a directory");
        fs::remove_dir_all(scene.at("directory-to-socket")).unwrap();
        drop(std::os::unix::net::UnixListener::bind(scene.at("directory-to-socket")).unwrap());
        fs::set_permissions(scene.at("modes"), fs::Permissions::from_mode(0o600)).unwrap();
    });
    (scene, states)
}

/// The calls of a restore between the first and the last that matter: `AGENT_SNAPSHOT_CASES` above them
/// takes each, else so many are taken.
fn kills(first: u64, last: u64, few: u32) -> impl Iterator<Item = u64> {
    let step = (last - first).div_ceil(u64::from(cases(few))).max(1);
    (first..last).step_by(usize::try_from(step).unwrap())
}

#[test]
fn a_second_run_completes_what_was_killed_at_any_call() {
    let (scene, states) = small_scene();
    let (calls, status) = run_until(&scene, &["--before"], u64::MAX);
    assert_eq!(status, Some(0));
    states.expect(&scene, true);
    for at in kills(calls / 4, calls, 40) {
        verb("restore", &scene.snap(), &[]).expect(0);
        run_until(&scene, &["--before"], at);
        let planned = verb("restore", &scene.snap(), &["--before", "--dry-run"]);
        assert_eq!(planned.status, 0, "{planned:#?} after a kill at call {at}");
        let run = verb("restore", &scene.snap(), &["--before"]);
        assert_eq!(run.status, 0, "{run:#?} after a kill at call {at}");
        states.expect(&scene, true);
        let again = verb("restore", &scene.snap(), &["--before"]).expect(0);
        assert!(again.stdout.starts_with("nothing to do"), "{again:#?} after a kill at call {at}");
        let left = fs::read_dir(scene.dir()).unwrap().map(|entry| entry.unwrap().file_name());
        let left: Vec<_> = left.filter(|name| name.to_str().unwrap().ends_with(".unfinished")).collect();
        assert!(left.is_empty(), "{left:?} after a kill at call {at}");
    }
}

#[test]
fn an_edit_after_a_kill_at_any_call_is_never_lost() {
    let (scene, _) = small_scene();
    let (calls, _) = run_until(&scene, &["--before"], u64::MAX);
    let names = ["in-place", "edited", "made", "gone/file", "modes"];
    for (number, at) in kills(calls / 2, calls, 25).enumerate() {
        let (scene, _) = small_scene();
        run_until(&scene, &["--before"], at);
        let path = scene.at(names[number % names.len()]);
        use std::os::unix::fs::FileExt as _;
        let Ok(file) = fs::File::options().write(true).open(&path) else { continue };
        file.write_all_at(b"my own work", 0).unwrap();
        let run = verb("restore", &scene.snap(), &["--before"]);
        let found = fs::read(&path).unwrap();
        assert!(found.starts_with(b"my own work"), "{} at call {at}: {run:#?}", path.display());
        assert!(run.status == 1, "{} at call {at}: {run:#?}", path.display());
        verb("restore", &scene.snap(), &["--before", "--force"]).expect(0);
        let is_kept = fs::read_dir(scene.dir()).unwrap().any(|entry| {
            let rescue = entry.unwrap().path();
            let is_rescue = rescue.to_str().unwrap().contains("snap-rescue-");
            let kept = || verb("cat", &rescue, &["--before", path.to_str().unwrap()]).stdout;
            is_rescue && kept().starts_with("my own work")
        });
        assert!(is_kept, "{} at call {at}", path.display());
    }
}
