//! A restore that is killed at any of its syscalls, and the second one that completes it.

use std::fs;
use std::os::unix::fs::{chown, symlink};

use nix::sys::signal::{Signal, kill};

use super::attributes::{access_list, chattr};
use super::random::cases;
use crate::support::*;

/// Runs a restore and kills it at the system call number `at` of its first thread; how many calls it
/// made, and its exit status where it came to its end before.
fn run_until(place: &Place, flags: &[&str], at: u64) -> (u64, Option<i32>) {
    trace_restore(place, flags, |pid, calls| {
        if calls >= at {
            let _ = kill(pid, Signal::SIGKILL);
        }
    })
}

/// Something of everything that a restore does.
fn prepared() -> (Place, States) {
    let place = Place::new();
    let store = place.base().join("store");
    fs::write(&store, "of the store").unwrap();
    fs::hard_link(&store, place.at("in-place")).unwrap();
    for number in 0..10 {
        place.write(&format!("edited-{number}"), format!("old {number}"));
        place.write(&format!("gone/{number}/file"), format!("gone {number}"));
    }
    place.write("large", vec![1; 3 << 20]);
    place.write("linked", "linked");
    fs::hard_link(place.at("linked"), place.at("also-linked")).unwrap();
    place.write("directory-to-file/inner/file", "x");
    place.write("file-to-directory", "x");
    place.write("shut/file", "old");
    place.write("modes", "x");
    chmod(place.at("shut"), 0o555);
    let states = States::of(&place, || {
        chmod(place.at("shut"), 0o755);
        place.write("shut/file", "new");
        place.write("shut/made", "new");
        chmod(place.at("shut"), 0o555);
        place.write("in-place", "written through another name, and longer");
        for number in 0..10 {
            place.write(&format!("edited-{number}"), format!("new {number}"));
            place.write(&format!("made/{number}/file"), format!("made {number}"));
        }
        fs::remove_dir_all(place.at("gone")).unwrap();
        place.write("large", vec![2; 2 << 20]);
        fs::remove_file(place.at("linked")).unwrap();
        fs::remove_file(place.at("also-linked")).unwrap();
        symlink("elsewhere", place.at("linked")).unwrap();
        fs::remove_dir_all(place.at("directory-to-file")).unwrap();
        place.write("directory-to-file", "now a file");
        fs::remove_file(place.at("file-to-directory")).unwrap();
        place.write("file-to-directory/inner/file", "now a directory");
        chmod(place.at("modes"), 0o600);
    });
    (place, states)
}

/// At every moment each file holds what it held or what is put back.
fn expect_nothing_half_written(states: &States) {
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
}

#[test]
fn second_restore_completes_a_killed_one() {
    let (place, states) = prepared();
    let (calls, status) = run_until(&place, &["--before"], u64::MAX);
    assert_eq!(status, Some(0));
    place.verb("restore", &[]).expect(0);
    states.expect(&place, false);

    let rounds = u64::from(cases(30));
    let mut completed = 0;
    for round in 0..rounds {
        // Spread over the whole run, each time elsewhere.
        let at = calls * (round * 618 % 1000) / 1000 + round % 3;
        let is_before = round % 2 == 0;
        let flags: &[&str] = if is_before { &["--before"] } else { &[] };
        run_until(&place, flags, at);
        expect_nothing_half_written(&states);
        let run = place.verb("restore", flags).expect(0);
        completed += u64::from(run.stderr.contains("had been interrupted"));
        states.expect(&place, is_before);
        for entry in fs::read_dir(place.base()).unwrap() {
            let name = entry.unwrap().file_name().into_string().unwrap();
            assert!(!name.ends_with(".unfinished"), "{name} after a kill at call {at}");
        }
        let again = place.verb("restore", flags).expect(0);
        assert!(again.stdout.starts_with("nothing to do"), "{again:#?} after a kill at call {at}");
    }
    println!("{calls} calls, {rounds} kills, {completed} restores completed");
    assert!(completed > 0);
    chmod(place.at("shut"), 0o755);
}

#[test]
fn killed_restore_is_undone_by_its_rescue() {
    let (place, states) = prepared();
    let (calls, _) = run_until(&place, &["--before"], u64::MAX);
    place.verb("restore", &[]).expect(0);
    for part in 1..8 {
        run_until(&place, &["--before"], calls * part / 8);
        let unfinished =
            fs::read_dir(place.base()).unwrap().map(|entry| entry.unwrap().path()).find(|path| {
                path.to_str().unwrap().ends_with(".unfinished") && path.join("manifest.json").exists()
            });
        if let Some(unfinished) = unfinished {
            place.verb_on("restore", &unfinished, &["--before"]).expect(0);
            assert!(!unfinished.exists());
        } else {
            // It was killed before it began to change anything, or after it had come to its end.
            place.verb("restore", &[]).expect(0);
        }
        states.expect(&place, false);
    }
    chmod(place.at("shut"), 0o755);
}

#[test]
fn restore_killed_repeatedly_completes_without_leftovers() {
    let (place, states) = prepared();
    let (calls, _) = run_until(&place, &["--before"], u64::MAX);
    place.verb("restore", &[]).expect(0);
    let unfinished = |place: &Place| {
        let names = fs::read_dir(place.base()).unwrap().map(|entry| entry.unwrap().file_name());
        names.filter(|name| name.to_str().unwrap().ends_with(".unfinished")).count()
    };
    let mut several = 0;
    for round in 0..u64::from(cases(10)) {
        let is_before = round % 2 == 0;
        let flags: &[&str] = if is_before { &["--before"] } else { &[] };
        run_until(&place, flags, calls * (40 + round * 7 % 50) / 100);
        // Some calls after it has a rescue of its own beside that of the one before.
        let mut two_since = None;
        trace_restore(&place, flags, |pid, calls| {
            if two_since.is_none() && unfinished(&place) > 1 {
                two_since = Some(calls);
            }
            if two_since.is_some_and(|since| calls >= since + round * 11) {
                let _ = kill(pid, Signal::SIGKILL);
            }
        });
        several += u32::from(unfinished(&place) > 1);
        place.verb("restore", flags).expect(0);
        states.expect(&place, is_before);
        assert_eq!(unfinished(&place), 0, "in round {round}");
        let left = |path: &&Vec<u8>| path.windows(16).any(|part| part == b".agent-snapshot-");
        assert_eq!(scan(&place.work).keys().find(left), None, "in round {round}");
        let again = place.verb("restore", flags).expect(0);
        assert!(again.stdout.starts_with("nothing to do"), "{again:#?} in round {round}");
    }
    println!("{several} times several rescues were unfinished");
    assert!(several > 0);
    chmod(place.at("shut"), 0o755);
}

/// A restore of a few paths of every kind, with as few calls as possible.
fn small_scene() -> (Place, States) {
    let place = Place::new();
    // Long enough to be written in several pieces.
    fs::write(place.base().join("store"), vec![b'o'; (2 << 20) + 5000]).unwrap();
    fs::hard_link(place.base().join("store"), place.at("in-place")).unwrap();
    place.write("edited", "old");
    // Written to a file without a name before anything changes.
    place.write("large", vec![b'o'; (1 << 20) + 5000]);
    place.write("gone/file", "gone");
    place.write("directory-to-socket/inner", "x");
    place.write("modes", "x");
    drop(std::os::unix::net::UnixListener::bind(place.at("socket")).unwrap());
    let states = States::of(&place, || {
        place.write("in-place", vec![b'n'; (3 << 20) + 7000]);
        place.write("edited", "new");
        place.write("large", "new");
        place.write("made", "new");
        fs::remove_dir_all(place.at("gone")).unwrap();
        fs::remove_file(place.at("socket")).unwrap();
        place.write("socket/inner", "now a directory");
        fs::remove_dir_all(place.at("directory-to-socket")).unwrap();
        drop(std::os::unix::net::UnixListener::bind(place.at("directory-to-socket")).unwrap());
        chmod(place.at("modes"), 0o600);
    });
    (place, states)
}

/// The calls of a restore between the first and the last that matter: `AGENT_SNAPSHOT_CASES` above them
/// takes each, else so many are taken.
pub fn kills(first: u64, last: u64, few: u32) -> impl Iterator<Item = u64> {
    let step = (last - first).div_ceil(u64::from(cases(few))).max(1);
    (first..last).step_by(usize::try_from(step).unwrap())
}

#[test]
fn second_restore_completes_one_killed_at_any_syscall() {
    let (place, states) = small_scene();
    let (calls, status) = run_until(&place, &["--before"], u64::MAX);
    assert_eq!(status, Some(0));
    states.expect(&place, true);
    for at in kills(calls / 4, calls, 40) {
        place.verb("restore", &[]).expect(0);
        run_until(&place, &["--before"], at);
        let planned = place.verb("restore", &["--before", "--dry-run"]);
        assert_eq!(planned.status, 0, "{planned:#?} after a kill at call {at}");
        let run = place.verb("restore", &["--before"]);
        assert_eq!(run.status, 0, "{run:#?} after a kill at call {at}");
        states.expect(&place, true);
        let again = place.verb("restore", &["--before"]).expect(0);
        assert!(again.stdout.starts_with("nothing to do"), "{again:#?} after a kill at call {at}");
        let left = fs::read_dir(place.base()).unwrap().map(|entry| entry.unwrap().file_name());
        let left: Vec<_> = left.filter(|name| name.to_str().unwrap().ends_with(".unfinished")).collect();
        assert!(left.is_empty(), "{left:?} after a kill at call {at}");
    }
}

#[test]
fn edit_after_a_kill_at_any_syscall_is_never_lost() {
    let (place, _) = small_scene();
    let (calls, _) = run_until(&place, &["--before"], u64::MAX);
    let names = ["in-place", "edited", "large", "made", "gone/file", "modes"];
    let mut edits = 0;
    for (number, at) in kills(calls / 2, calls, 25).enumerate() {
        let (place, _) = small_scene();
        run_until(&place, &["--before"], at);
        let path = place.at(names[number % names.len()]);
        use std::os::unix::fs::FileExt as _;
        let Ok(file) = fs::File::options().write(true).open(&path) else { continue };
        file.write_all_at(b"my own work", 0).unwrap();
        edits += 1;
        let run = place.verb("restore", &["--before"]);
        let found = fs::read(&path).unwrap();
        assert!(found.starts_with(b"my own work"), "{} at call {at}: {run:#?}", path.display());
        assert!(run.status == 1, "{} at call {at}: {run:#?}", path.display());
        place.verb("restore", &["--before", "--force"]).expect(0);
        let is_kept = fs::read_dir(place.base()).unwrap().any(|entry| {
            let rescue = entry.unwrap().path();
            let is_rescue = rescue.to_str().unwrap().contains("out-rescue-");
            let kept = || place.verb_on("cat", &rescue, &["--before", path.to_str().unwrap()]).stdout;
            is_rescue && kept().starts_with("my own work")
        });
        assert!(is_kept, "{} at call {at}", path.display());
    }
    assert!(edits > 0);
}

/// The first system call of a restore with its rescue there, and how many calls it makes.
#[track_caller]
fn calls_with_rescue(place: &Place, states: &States) -> (u64, u64) {
    let manifest = place.base().join("out-rescue-1.unfinished/manifest.json");
    let mut first = None;
    let (calls, status) = trace_restore(place, &["--before"], |_, calls| {
        first = first.or(manifest.exists().then_some(calls));
    });
    assert_eq!(status, Some(0));
    states.expect(place, true);
    (first.unwrap(), calls)
}

/// Kills one restore after the other at these system calls; the next one completes them.
#[track_caller]
fn expect_completion_after(place: &Place, states: &States, kills: &[u64]) {
    place.verb("restore", &[]).expect(0);
    for at in kills {
        run_until(place, &["--before"], *at);
    }
    let run = place.verb("restore", &["--before"]);
    assert_eq!(run.status, 0, "{run:#?} after kills at calls {kills:?}");
    println!("after kills at calls {kills:?}:");
    states.expect(place, true);
    let rescues = (1..10).map(|number| place.rescue(number));
    rescues.filter(|rescue| rescue.exists()).for_each(|rescue| fs::remove_dir_all(rescue).unwrap());
}

/// Kills a restore at each of its system calls since its rescue is there.
#[track_caller]
fn expect_completion_after_each_kill(place: &Place, states: &States) {
    let (first, calls) = calls_with_rescue(place, states);
    (first..calls).for_each(|at| expect_completion_after(place, states, &[at]));
}

#[test]
fn directories_made_by_a_killed_restore_in_a_set_group_id_directory_get_their_modes() {
    let place = Place::new();
    fs::create_dir(place.at("shared")).unwrap();
    chmod(place.at("shared"), 0o2775);
    place.write("shared/keeps/it/file", "x");
    place.write("shared/without/file", "x");
    chmod(place.at("shared/keeps"), 0o2775);
    chmod(place.at("shared/keeps/it"), 0o2750);
    chmod(place.at("shared/without"), 0o755);
    let states = States::of(&place, || {
        fs::remove_dir_all(place.at("shared/keeps")).unwrap();
        fs::remove_dir_all(place.at("shared/without")).unwrap();
    });
    expect_completion_after_each_kill(&place, &states);
}

#[test]
fn directories_that_a_killed_restore_gave_some_attributes_get_the_others() {
    let place = Place::new();
    let nobody = u32::MAX;
    let list =
        access_list(&[(1, 7, nobody), (2, 5, 1234), (4, 5, nobody), (0x10, 5, nobody), (0x20, 5, nobody)]);
    for name in ["listed", "given", "above/plain"] {
        place.write(&format!("{name}/file"), "x");
    }
    for name in ["access", "default"] {
        if set_xattr(place.at("listed"), &format!("system.posix_acl_{name}"), &list).is_err() {
            return println!("skipped: the filesystem has no access control lists");
        }
    }
    set_xattr(place.at("listed"), "user.mark", b"x").unwrap();
    chmod(place.at("listed"), 0o2755);
    // What is made in it inherits the list.
    set_xattr(place.at("above"), "system.posix_acl_default", &list).unwrap();
    if is_root() {
        chown(place.at("given"), Some(1234), Some(4321)).unwrap();
    }
    let states = States::of(&place, || {
        for name in ["listed", "given", "above/plain"] {
            fs::remove_dir_all(place.at(name)).unwrap();
        }
    });
    expect_completion_after_each_kill(&place, &states);
}

#[test]
fn inode_flags_that_a_killed_restore_was_to_give_are_given() {
    if !needs_root("chattr +i") {
        return;
    }
    let place = Place::new();
    for name in ["file", "log", "dir/file", "linked", "replaced", "nodump/file"] {
        place.write(name, "old");
    }
    place.hard_link("linked", "other");
    // What is made in `nodump` inherits the flag.
    let flags = [
        ("+i", "file"),
        ("+a", "log"),
        ("+i", "dir"),
        ("+i", "linked"),
        ("+a", "replaced"),
        ("+d", "nodump"),
    ];
    if !flags.iter().all(|(flag, name)| chattr(&place, flag, name)) {
        return println!("skipped: the filesystem has no inode flags");
    }
    let unlock = || {
        for name in ["file", "log", "dir", "linked", "replaced"] {
            chattr(&place, "-ia", name);
        }
    };
    let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let states = States::of(&place, || {
            unlock();
            for name in ["file", "log", "linked", "other", "replaced", "nodump/file"] {
                fs::remove_file(place.at(name)).unwrap();
            }
            fs::remove_dir_all(place.at("dir")).unwrap();
            symlink("elsewhere", place.at("replaced")).unwrap();
        });
        let (first, calls) = calls_with_rescue(&place, &states);
        for at in kills(first, calls, 40) {
            expect_completion_after(&place, &states, &[at]);
            // The second one has nothing to keep, and so no rescue.
            expect_completion_after(&place, &states, &[first, at]);
        }
    }));
    unlock();
    done.unwrap();
}
