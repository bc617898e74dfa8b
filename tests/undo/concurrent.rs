//! Edits by other processes while a restore runs, and directories that a killed restore had opened.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, symlink};
use std::path::Path;

use nix::sys::signal::{Signal, kill};

use agent_snapshot::snapshot::{FileType, State};

use super::killed::kills;
use crate::support::*;

/// The bytes that any rescue holds of a path, and those that are there.
fn kept_or_there(place: &Place, path: &Path) -> Vec<String> {
    let mut found: Vec<String> = fs::read_to_string(path).into_iter().collect();
    for entry in fs::read_dir(place.base()).unwrap() {
        let rescue = entry.unwrap().path();
        if rescue.to_str().unwrap().contains("out-rescue-") && rescue.join("manifest.json").exists() {
            found.push(place.verb_on("cat", &rescue, &["--before", path.to_str().unwrap()]).stdout);
        }
    }
    found
}

/// One file that is written in place, one that is replaced, one that is removed.
fn edited_scene() -> Place {
    let place = Place::new();
    fs::write(place.base().join("store"), "old in the store").unwrap();
    fs::hard_link(place.base().join("store"), place.at("in-place")).unwrap();
    place.write("replaced", "old");
    place.make_bundle(|| {
        place.write("in-place", "new");
        place.write("replaced", "new");
        place.write("removed", "new");
    });
    place
}

#[test]
fn edit_at_any_syscall_is_in_the_file_or_the_rescue() {
    // Counted from the syscall that completes the rescue: files are changed only after it.
    let is_begun = |place: &Place| place.base().join("out-rescue-1.unfinished/manifest.json").exists();
    let place = edited_scene();
    let mut first = None;
    let (calls, status) = trace_restore(&place, &["--before"], |_, calls| {
        if first.is_none() && is_begun(&place) {
            first = Some(calls);
        }
    });
    let calls = calls - first.unwrap();
    assert_eq!(status, Some(0));
    for name in ["in-place", "replaced", "removed"] {
        let (mut lost, mut edits) = (Vec::new(), 0);
        for at in 0..=calls {
            let place = edited_scene();
            let path = place.at(name);
            let (mut first, mut edited) = (None, false);
            trace_restore(&place, &["--before"], |_, calls| {
                if first.is_none() && is_begun(&place) {
                    first = Some(calls);
                }
                if !edited && first.is_some_and(|first| calls >= first + at) {
                    edited = true;
                    fs::write(&path, "my own work").unwrap();
                }
            });
            edits += u32::from(edited);
            if edited && !kept_or_there(&place, &path).iter().any(|content| content == "my own work") {
                lost.push(at);
            }
        }
        // Between the last comparison of a file that is written in place and its first byte there is no
        // other call, and nothing that could keep another process from that file.
        assert!(edits > 0, "{name}");
        let most = if name == "in-place" { 1 } else { 0 };
        assert!(lost.len() <= most, "{name}: lost at the calls {lost:?} of {calls}");
    }
}

#[test]
fn edit_while_the_rescue_is_written_is_a_conflict() {
    fn edit(what: &str, path: &Path) {
        if what == "edited" {
            return fs::write(path, "my own work").unwrap();
        }
        fs::remove_file(path).unwrap();
        match what {
            "a directory" => fs::create_dir(path).unwrap(),
            "a symlink" => symlink("in-place", path).unwrap(),
            _ => {}
        }
    }
    for what in ["edited", "removed", "a directory", "a symlink"] {
        let mut refused = 0;
        for at in (0..).step_by(3) {
            let place = edited_scene();
            let path = place.at("replaced");
            let rescue = place.base().join("out-rescue-1.unfinished");
            let (mut begun, mut edited, mut is_over) = (0, false, false);
            let (_, status) = trace_restore(&place, &["--before"], |_, _| {
                begun += u32::from(rescue.exists());
                is_over |= rescue.join("manifest.json").exists();
                if begun > at && !edited && !is_over {
                    edited = true;
                    edit(what, &path);
                }
            });
            if !edited {
                break;
            }
            let is_edited = fs::read_to_string(&path).is_ok_and(|text| text == "my own work");
            assert_eq!(is_edited, what == "edited", "{what} at the call {at}");
            if is_over {
                // It stopped at this file, whose bytes the rescue had already.
                assert_eq!(status, Some(125), "{what} at the call {at}");
                continue;
            }
            refused += 1;
            assert_eq!(status, Some(1), "{what} at the call {at}");
            assert_eq!(fs::read_to_string(place.at("in-place")).unwrap(), "new");
            assert!(place.at("removed").exists() && !place.base().join("out-rescue-1").exists());
        }
        assert!(refused > 10, "{what}: {refused}");
    }
}

#[test]
fn edit_during_staging_is_a_conflict() {
    let place = Place::new();
    fs::write(place.base().join("store"), vec![b'o'; 3 << 20]).unwrap();
    fs::hard_link(place.base().join("store"), place.at("file")).unwrap();
    place.make_bundle(|| place.write("file", "new"));
    let path = place.at("file");
    let mut edited = false;
    let (_, status) = trace_restore(&place, &["--before"], |pid, _| {
        // The staged content has no other place than the rescue's directory.
        let is_staged = |fd: &fs::DirEntry| {
            fs::read_link(fd.path()).is_ok_and(|to| to.to_str().unwrap().contains("out-rescue-1"))
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
    let run = place.verb("restore", &["--before"]).expect(1);
    assert!(run.stderr.contains("/work/file: edited since: a file of 11 bytes"), "{run:#?}");
}

/// A tree of an ordinary user with a directory that may not be entered.
fn shut_tree() -> Place {
    let place = Place::of(User::Nobody);
    place.write("shut/deep/file", "old");
    place.write("shut/gone", "old");
    let before = scan(&place.work);
    place.write("shut/deep/file", "new");
    fs::remove_file(place.at("shut/gone")).unwrap();
    let after = scan(&place.work);
    let mut header = header();
    header.uid = NOBODY;
    commit(&place.out, &header, |writer| {
        let mut records = records(writer, &before, &after, |_| false);
        records.retain(|record| record.before.present().is_none_or(|at| at.file_type == FileType::File));
        for record in &mut records {
            for state in [&mut record.before, &mut record.after] {
                if let State::Present(present) = state {
                    (present.uid, present.gid) = (NOBODY, NOBODY);
                }
            }
        }
        records
    });
    give_away(place.base());
    for shut in ["shut/deep", "shut"] {
        chmod(place.at(shut), 0o000);
    }
    place
}

#[test]
fn directories_opened_by_a_killed_restore_are_closed_by_the_next() {
    if !needs_root("to become an ordinary user") {
        return;
    }
    let mode = |place: &Place, path: &str| fs::metadata(place.at(path)).unwrap().mode() & 0o7777;
    let (calls, status) = trace_restore(&shut_tree(), &["--before"], |_, _| {});
    assert_eq!(status, Some(0));
    let mut left_open = 0;
    for (number, at) in kills(calls / 4, calls, 40).enumerate() {
        let place = shut_tree();
        trace_restore(&place, &["--before"], |pid, calls| {
            if calls >= at {
                let _ = kill(pid, if number % 2 == 0 { Signal::SIGKILL } else { Signal::SIGTERM });
            }
        });
        left_open += u32::from(mode(&place, "shut") != 0);
        let run = place.verb("restore", &["--before"]).expect(0);
        assert_eq!(
            (mode(&place, "shut"), mode(&place, "shut/deep")),
            (0, 0),
            "killed at call {at}: {run:#?}"
        );
        assert_eq!(fs::read_to_string(place.at("shut/deep/file")).unwrap(), "old");
        assert_eq!(fs::read_to_string(place.at("shut/gone")).unwrap(), "old");
        for entry in fs::read_dir(place.base()).unwrap() {
            let name = entry.unwrap().file_name().into_string().unwrap();
            assert!(!name.ends_with(".unfinished"), "{name} after a kill at call {at}");
        }
    }
    assert!(left_open > 0);
}
