//! What others do while a restore runs, and what it had opened when it was killed.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown};
use std::os::unix::process::CommandExt as _;
use std::path::Path;

use nix::sys::signal::{Signal, kill};

use agent_snapshot::snapshot::{FileType, State};

use super::support::*;

/// The bytes that any rescue holds of a path, and those that are there.
fn kept_or_there(scene: &Scene, path: &Path) -> Vec<String> {
    let mut found: Vec<String> = fs::read_to_string(path).into_iter().collect();
    for entry in fs::read_dir(scene.dir()).unwrap() {
        let rescue = entry.unwrap().path();
        if rescue.to_str().unwrap().contains("snap-rescue-") && rescue.join("manifest.json").exists() {
            found.push(verb("cat", &rescue, &["--before", path.to_str().unwrap()]).stdout);
        }
    }
    found
}

/// One file that is written in place, one that is replaced, one that is removed.
fn edited_scene() -> Scene {
    let scene = Scene::new();
    fs::write(scene.dir().join("store"), "old in the store").unwrap();
    fs::hard_link(scene.dir().join("store"), scene.at("in-place")).unwrap();
    scene.write("replaced", "old");
    scene.record(|| {
        scene.write("in-place", "new");
        scene.write("replaced", "new");
        scene.write("removed", "new");
    });
    scene
}

#[test]
fn an_edit_at_any_moment_is_in_the_file_or_in_the_rescue() {
    // Counted from the call by which the rescue is whole: from there on files are changed.
    let is_begun = |scene: &Scene| scene.dir().join("snap-rescue-1.unfinished/manifest.json").exists();
    let scene = edited_scene();
    let mut first = None;
    let (calls, status) = trace_restore(&scene, &["--before"], |_, calls| {
        if first.is_none() && is_begun(&scene) {
            first = Some(calls);
        }
    });
    let calls = calls - first.unwrap();
    assert_eq!(status, Some(0));
    for name in ["in-place", "replaced", "removed"] {
        let mut lost = Vec::new();
        for at in 0..=calls {
            let scene = edited_scene();
            let path = scene.at(name);
            let (mut first, mut edited) = (None, false);
            trace_restore(&scene, &["--before"], |_, calls| {
                if first.is_none() && is_begun(&scene) {
                    first = Some(calls);
                }
                if !edited && first.is_some_and(|first| calls >= first + at) {
                    edited = true;
                    fs::write(&path, "my own work").unwrap();
                }
            });
            if edited && !kept_or_there(&scene, &path).iter().any(|content| content == "my own work") {
                lost.push(at);
            }
        }
        // Between the last comparison of a file that is written in place and its first byte there is no
        // other call, and nothing that could keep another process from that file.
        let most = if name == "in-place" { 1 } else { 0 };
        assert!(lost.len() <= most, "{name}: lost at the calls {lost:?} of {calls}");
    }
}

#[test]
fn an_edit_while_content_is_staged_is_a_conflict() {
    let scene = Scene::new();
    fs::write(scene.dir().join("store"), vec![b'o'; 3 << 20]).unwrap();
    fs::hard_link(scene.dir().join("store"), scene.at("file")).unwrap();
    scene.record(|| scene.write("file", "new"));
    let path = scene.at("file");
    let mut edited = false;
    let (_, status) = trace_restore(&scene, &["--before"], |pid, _| {
        // The staged content has no other place than the rescue's directory.
        let is_staged = |fd: &fs::DirEntry| {
            fs::read_link(fd.path()).is_ok_and(|to| to.to_str().unwrap().contains("snap-rescue-1"))
                && fs::metadata(fd.path()).is_ok_and(|file| file.is_file() && file.len() > 1 << 20)
        };
        let fds = fs::read_dir(format!("/proc/{pid}/fd")).unwrap();
        if !edited && fds.flatten().any(|fd| is_staged(&fd)) {
            edited = true;
            fs::write(&path, "my own work").unwrap();
        }
    });
    assert!(edited && status != Some(0), "{status:?}");
    assert_eq!(fs::read_to_string(&path).unwrap(), "my own work");
    let run = verb("restore", &scene.snap(), &["--before"]).expect(1);
    assert!(run.stderr.contains("/tree/file: a file of 11 bytes"), "{run:#?}");
}

/// A tree of user 65534 with a directory that nobody may enter, and how to restore it as that user.
fn shut_scene() -> Scene {
    let scene = Scene::new();
    scene.write("shut/deep/file", "old");
    scene.write("shut/gone", "old");
    let before = scan(&scene.root());
    scene.write("shut/deep/file", "new");
    fs::remove_file(scene.at("shut/gone")).unwrap();
    let after = scan(&scene.root());
    let mut header = header();
    header.uid = 65534;
    commit(&scene.snap(), &header, |writer| {
        let mut records = records(writer, &before, &after, |_| false);
        records.retain(|record| record.before.present().is_none_or(|at| at.file_type == FileType::File));
        for record in &mut records {
            for state in [&mut record.before, &mut record.after] {
                if let State::Present(present) = state {
                    (present.uid, present.gid) = (65534, 65534);
                }
            }
        }
        records
    });
    for path in walkdir::WalkDir::new(scene.dir()) {
        chown(path.unwrap().path(), Some(65534), Some(65534)).unwrap();
    }
    for shut in ["shut/deep", "shut"] {
        fs::set_permissions(scene.at(shut), fs::Permissions::from_mode(0o000)).unwrap();
    }
    scene
}

#[test]
fn what_was_opened_to_get_in_is_closed_by_the_run_after_a_kill() {
    if !needs_root("to become an ordinary user") {
        return;
    }
    let restore = |scene: &Scene| {
        let mut command = agent_snapshot();
        command.uid(65534).gid(65534).arg("restore").arg(scene.snap()).arg("--before");
        command
    };
    let mode = |scene: &Scene, path: &str| fs::metadata(scene.at(path)).unwrap().mode() & 0o7777;
    let scene = shut_scene();
    if restore(&scene).output().is_err() {
        return println!("skipped: the binary is in a private directory");
    }
    let scene = shut_scene();
    let traced = |scene: &Scene| {
        let mut command = traced_restore(scene, &["--before"]);
        command.uid(65534).gid(65534);
        command
    };
    let (calls, status) = trace(&mut traced(&scene), |_, _| {});
    assert_eq!(status, Some(0));
    let mut left_open = 0;
    for at in calls / 4..calls {
        let scene = shut_scene();
        trace(&mut traced(&scene), |pid, calls| {
            if calls >= at {
                let _ = kill(pid, if at % 2 == 0 { Signal::SIGKILL } else { Signal::SIGTERM });
            }
        });
        left_open += u32::from(mode(&scene, "shut") != 0);
        let run = Run::from(restore(&scene).output().unwrap()).expect(0);
        assert_eq!(
            (mode(&scene, "shut"), mode(&scene, "shut/deep")),
            (0, 0),
            "killed at call {at}: {run:#?}"
        );
        assert_eq!(fs::read_to_string(scene.at("shut/deep/file")).unwrap(), "old");
        assert_eq!(fs::read_to_string(scene.at("shut/gone")).unwrap(), "old");
        for entry in fs::read_dir(scene.dir()).unwrap() {
            let name = entry.unwrap().file_name().into_string().unwrap();
            assert!(!name.ends_with(".unfinished"), "{name} after a kill at call {at}");
        }
    }
    assert!(left_open > 0);
}

#[test]
fn attributes_of_a_file_that_permits_nothing_come_back() {
    if !needs_root("to become an ordinary user") {
        return;
    }
    let scene = Scene::new();
    let flags = rustix::fs::XattrFlags::empty();
    let set = |name: &str, value: &[u8]| rustix::fs::setxattr(scene.at(name), "user.mark", value, flags);
    scene.write("marked", "x");
    scene.write("replaced", "old");
    if set("marked", b"one").is_err() {
        return println!("skipped: the file system has no extended attributes");
    }
    set("replaced", b"one").unwrap();
    let give = |path: &Path| {
        for path in walkdir::WalkDir::new(path) {
            chown(path.unwrap().path(), Some(65534), Some(65534)).unwrap();
        }
    };
    let shut = |name: &str| fs::set_permissions(scene.at(name), fs::Permissions::from_mode(0o000)).unwrap();
    give(&scene.dir());
    ["marked", "replaced"].into_iter().for_each(shut);
    let before = scan(&scene.root());
    set("marked", b"two").unwrap();
    fs::remove_file(scene.at("replaced")).unwrap();
    scene.write("replaced", "new");
    set("replaced", b"two").unwrap();
    give(&scene.root());
    shut("replaced");
    let after = scan(&scene.root());
    let mut header = header();
    header.uid = 65534;
    commit(&scene.snap(), &header, |writer| records(writer, &before, &after, |_| false));
    give(&scene.snap());
    let restore = |snap: &Path, flags: &[&str]| {
        let mut command = agent_snapshot();
        let run = command.uid(65534).gid(65534).arg("restore").arg(snap).args(flags).output();
        run.map(Run::from)
    };
    let states = States { before, after };
    if restore(&scene.snap(), &["--before", "--dry-run"]).is_err() {
        return println!("skipped: the binary is in a private directory");
    }
    restore(&scene.snap(), &["--before"]).unwrap().expect(0);
    states.expect(&scene, true);
    restore(&scene.dir().join("snap-rescue-1"), &["--before"]).unwrap().expect(0);
    states.expect(&scene, false);
}

#[test]
fn a_directory_keeps_its_content_where_its_successor_can_not_be_made() {
    if !needs_root("to make a device") {
        return;
    }
    let scene = Scene::new();
    let device = rustix::fs::makedev(1, 3);
    let kind = rustix::fs::FileType::CharacterDevice;
    let mode = rustix::fs::Mode::RUSR;
    if rustix::fs::mknodat(rustix::fs::CWD, scene.at("node"), kind, mode, device).is_err() {
        return println!("skipped: no devices can be made");
    }
    let mut header = header();
    header.host.machine = "sha256:elsewhere".to_owned();
    let before = scan(&scene.root());
    fs::remove_file(scene.at("node")).unwrap();
    scene.write("node/inner/file", "work");
    let after = scan(&scene.root());
    commit(&scene.snap(), &header, |writer| records(writer, &before, &after, |_| false));
    let run = verb("restore", &scene.snap(), &["--before", "--foreign"]).expect(1);
    assert!(run.stdout.contains("/tree/node: a device can't be brought back"), "{run:#?}");
    assert_eq!(fs::read_to_string(scene.at("node/inner/file")).unwrap(), "work");
}

#[test]
fn a_socket_takes_the_place_of_a_directory_again() {
    let scene = Scene::new();
    let socket = |name: &str| drop(std::os::unix::net::UnixListener::bind(scene.at(name)).unwrap());
    socket("node");
    socket("gone");
    let states = States::of(&scene, || {
        fs::remove_file(scene.at("node")).unwrap();
        fs::remove_file(scene.at("gone")).unwrap();
        scene.write("node/inner/file", "work");
        socket("made");
    });
    states.there_and_back(&scene);
}
