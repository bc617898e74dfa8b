//! `delete`, `prune`, `stats` and `fsck`: what goes, what stays, and kills in between.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant, SystemTime};

use nix::sys::signal::{Signal, kill};

use super::killed::record_and_kill;
use super::{library, log, newest, run, verb};
use crate::support::{Place, Run, SHELL, SmallFilesystem, User, chmod, is_root, trace_program, wait};
use agent_snapshot::snapshot::Snapshot;

/// The names in the directory of the snapshots, sorted.
fn names(place: &Place) -> Vec<String> {
    let entries = fs::read_dir(library(place).join("snapshots")).unwrap();
    let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

fn ids(place: &Place) -> Vec<String> {
    let listed = log(place, &["--all", "--reads"]);
    listed.iter().map(|entry| entry["id"].as_str().unwrap().to_owned()).collect()
}

fn json(run: &Run) -> serde_json::Value {
    serde_json::from_str(&run.stdout).unwrap_or_else(|error| panic!("{error}: {run:?}"))
}

fn session(place: &Place, session: &str, arguments: &[&str]) -> Run {
    place.command().env("AGENT_SNAPSHOT_SESSION", session).args(arguments).output().unwrap().into()
}

#[test]
fn recordings_are_deleted_by_what_names_them() {
    for user in User::all() {
        let place = Place::of(*user);
        for number in 0..5 {
            run(&place, &["--name", &format!("n{number}")], &format!("echo {number} > f"));
        }
        let all = ids(&place);
        let said = verb(&place, &["delete", "@", "@~1", "n1", &all[1][..4], "none", "--json"]).expect(1);
        let done = json(&said);
        let deleted: Vec<_> = done["deleted"].as_array().unwrap().iter().map(|one| &one["id"]).collect();
        assert_eq!(deleted, [&all[0], &all[1], &all[3]]);
        assert!(done["freed"].as_u64().unwrap() >= 3 * 4096, "{done}");
        assert!(said.stderr.contains("there is no snapshot none"), "{said:?}");
        assert_eq!(ids(&place), [all[2].as_str(), all[4].as_str()]);
        assert_eq!(names(&place).len(), 2);
        // What is gone already, a word that is too short, a directory, and another word.
        verb(&place, &["delete", &all[0]]).expect(0);
        verb(&place, &["delete", &all[0][..5]]).expect(1);
        verb(&place, &["delete", &all[2], &all[4][..3]]).expect(2);
        let path = library(&place).join("snapshots").join(&all[2]);
        verb(&place, &["delete", path.to_str().unwrap()]).expect(1);
        assert_eq!(ids(&place).len(), 2);
        verb(&place, &["show", &all[0]]).expect(3);
        verb(&place, &["undo"]).expect(1);
        assert_eq!(verb(&place, &["fsck"]).expect(0).stdout, "2 snapshots read: nothing is wrong\n");
    }
}

#[test]
fn deletion_respects_sessions() {
    let place = Place::new();
    session(&place, "one", &["run", "--name", "of-one", "sh", "-c", "echo > f"]).expect(0);
    session(&place, "two", &["run", "sh", "-c", "echo > g"]).expect(0);
    let denied = session(&place, "two", &["delete", "of-one"]).expect(1);
    assert!(denied.stderr.contains("belongs to another session"), "{denied:?}");
    let pruned =
        json(&session(&place, "one", &["prune", "--max-size", "0", "--dry-run", "--json"]).expect(0));
    assert_eq!(pruned["deleted"].as_array().unwrap().len(), 0, "the only one of this session has a name");
    let stats = json(&session(&place, "one", &["stats", "--json"]).expect(0));
    assert!(stats["recordings"] == 1 && stats["sessions"][0]["session"] == "one", "{stats}");
    assert_eq!(json(&verb(&place, &["stats", "--json"]).expect(0))["sessions"].as_array().unwrap().len(), 2);
    session(&place, "two", &["delete", "of-one", "--allow-cross-session"]).expect(0);
    let audit = fs::read_to_string(library(&place).join("audit.jsonl")).unwrap();
    assert_eq!(audit.lines().count(), 1, "{audit}");
    assert_eq!(log(&place, &[]).len(), 1);
}

#[test]
fn recordings_that_were_undone_with_a_deleted_one_stay_undone() {
    let place = Place::new();
    place.write("f", "0");
    for number in 1..=4 {
        run(&place, &[], &format!("printf {number} > f; echo > new{number}"));
    }
    let all = ids(&place);
    verb(&place, &["undo", "-n", "3"]).expect(0);
    assert_eq!(fs::read_to_string(place.at("f")).unwrap(), "1");
    // The rescue is beside the newest.
    verb(&place, &["delete", &all[0]]).expect(0);
    let undone = |place: &Place| -> Vec<bool> {
        log(place, &[]).iter().map(|entry| entry["undone"].is_string()).collect()
    };
    assert_eq!(undone(&place), [true, true, false]);
    verb(&place, &["undo", &all[1]]).expect(1);
    verb(&place, &["undo"]).expect(0);
    assert_eq!(fs::read_to_string(place.at("f")).unwrap(), "0");
    assert!(verb(&place, &["undo"]).expect(1).stderr.contains("nothing to undo"));
    verb(&place, &["redo"]).expect(0);
    verb(&place, &["redo", "--force"]).expect(0);
    assert_eq!(fs::read_to_string(place.at("f")).unwrap(), "4", "with what the deleted one had done");
    assert_eq!(undone(&place), [false, false, false]);
    verb(&place, &["delete", &all[1], &all[2], &all[3]]).expect(0);
    assert_eq!(names(&place), [""; 0]);
}

#[test]
fn redo_of_what_was_undone_with_a_deleted_one_names_that() {
    let place = Place::new();
    for name in ["b", "c"] {
        run(&place, &["--name", name], &format!("echo > {name}"));
    }
    let all = ids(&place);
    verb(&place, &["undo", "-n", "2"]).expect(0);
    verb(&place, &["delete", "c"]).expect(0);
    for words in [&["redo"][..], &["redo", "b"]] {
        let refused = verb(&place, words).expect(1);
        let why = format!("this would also redo {}, which is no longer in the library", all[0]);
        assert!(refused.stderr.contains(&why), "{refused:?}");
        assert!(!place.at("b").exists() && !place.at("c").exists());
    }
    verb(&place, &["redo", "--force"]).expect(0);
    assert!(place.at("b").exists() && place.at("c").exists());
}

#[test]
fn deletion_that_was_killed_before_its_line_is_completed_by_name() {
    let place = Place::new();
    run(&place, &[], "echo > f");
    let id = newest(&place);
    let path = library(&place).join("snapshots").join(&id);
    fs::rename(&path, path.with_extension("deleted")).unwrap();
    let said = verb(&place, &["delete", &id]).expect(0);
    assert!(said.stderr.contains("was deleted before"), "{said:?}");
    assert_eq!(names(&place), [""; 0]);
}

#[test]
fn what_is_running_or_used_or_interrupted_stays() {
    let place = Place::new();
    place.prepare("mkfifo go");
    place.write("f", "old");
    run(&place, &[], "echo new > f; echo > g");
    let id = newest(&place);
    let used = Snapshot::open(&library(&place).join("snapshots").join(&id)).unwrap();
    let refused = verb(&place, &["delete", &id]).expect(1);
    assert!(refused.stderr.ends_with("is in use by another process\n"), "{refused:?}");
    verb(&place, &["prune", "--max-size", "0"]).expect(0);
    assert!(log(&place, &[]).len() == 1);
    drop(used);
    let mut running =
        super::run_command(&place, &[], "echo > h; cat go").stdout(Stdio::null()).spawn().unwrap();
    let is_running = || log(&place, &["--reads"]).iter().find(|entry| entry["state"] == "running").cloned();
    let deadline = Instant::now() + Duration::from_secs(60);
    let entry = loop {
        if let Some(entry) = is_running() {
            break entry;
        }
        assert!(Instant::now() < deadline);
    };
    let running_id = entry["id"].as_str().unwrap();
    let refused = verb(&place, &["delete", running_id]).expect(1);
    assert!(refused.stderr.ends_with("is still being recorded\n"), "{refused:?}");
    verb(&place, &["prune", "--max-size", "0", "--keep-last", "0"]).expect(0);
    assert!(names(&place).contains(&running_id.to_owned()));
    assert_eq!(names(&place).len(), 1, "the other one went");
    verb(&place, &["fsck"]).expect(0);
    // It is opened when somebody reads it, who then finds its end.
    drop(fs::File::options().write(true).open(place.at("go")).unwrap());
    assert!(wait(&mut running).success());
    assert_eq!(log(&place, &[]).len(), 1);
    // An undo that is killed once its rescue is there.
    let has_begun = |place: &Place| {
        let is_begun = |name: &String| {
            name.ends_with(".unfinished")
                && library(place).join("snapshots").join(name).join("manifest.json").exists()
        };
        names(place).iter().any(is_begun)
    };
    let (_, status) = trace_program(&place, ["undo".as_ref(), "--all".as_ref()], |pid, _| {
        if has_begun(&place) {
            let _ = kill(pid, Signal::SIGKILL);
        }
    });
    assert_eq!(status, None);
    let refused = verb(&place, &["delete", running_id]).expect(1);
    assert!(refused.stderr.contains("is needed by a restore that was interrupted"), "{refused:?}");
    verb(&place, &["prune", "--max-size", "0"]).expect(0);
    assert_eq!(log(&place, &[]).len(), 1);
    verb(&place, &["undo"]).expect(0);
    verb(&place, &["delete", running_id]).expect(0);
    assert_eq!(names(&place), [""; 0]);
}

#[test]
fn killed_deletion_is_completed_by_the_next() {
    let place = Place::new();
    place.write("f", "old");
    let prepare = || -> [String; 2] {
        run(&place, &[], "echo 1 > f");
        run(&place, &[], "echo 2 > f");
        verb(&place, &["undo", "-n", "2"]).expect(0);
        verb(&place, &["redo"]).expect(0);
        let all = ids(&place);
        [all[0].clone(), all[1].clone()]
    };
    let [newer, older] = prepare();
    let arguments = |id: &str| ["delete".to_owned(), id.to_owned()];
    let is_half = || names(&place).iter().any(|name| name.ends_with(".deleted"));
    // At that call, or when the directory has been renamed.
    let traced = |id: &str, at: u64, or_half: bool| {
        let arguments = arguments(id);
        let arguments = arguments.each_ref().map(|word| word.as_ref());
        trace_program(&place, arguments, |pid, call| {
            if call >= at || or_half && is_half() {
                let _ = kill(pid, Signal::SIGKILL);
            }
        })
    };
    verb(&place, &["delete", &older]).expect(0);
    let (calls, status) = traced(&newer, u64::MAX, false);
    assert_eq!(status, Some(0));
    let mut halves = 0;
    for part in 24..48 {
        let [newer, older] = prepare();
        verb(&place, &["delete", &older]).expect(0);
        traced(&newer, calls * part / 48, part % 4 == 0);
        // Whole or gone, for each verb.
        let listed = ids(&place);
        assert!(listed.iter().all(|id| verb(&place, &["show", id]).status == 0), "{part}: {listed:?}");
        halves += usize::from(listed.is_empty() && !names(&place).is_empty());
        verb(&place, &["undo"]).expect(i32::from(listed.is_empty()));
        verb(&place, &["fsck", "--repair"]).expect(0);
        if !listed.is_empty() {
            verb(&place, &["delete", &newer]).expect(0);
        }
        verb(&place, &["delete", &newer]).expect(0);
        assert_eq!(names(&place), [""; 0], "{part}");
    }
    assert!(halves > 0);
}

#[test]
fn prune_deletes_what_the_dry_run_says() {
    let place = Place::new();
    place.write("f", "old");
    for number in 0..24 {
        run(&place, &[], &format!("echo {number} > f"));
    }
    run(&place, &[], "cat f");
    run(&place, &["--name", "kept"], "cat f");
    let deleted = |run: Run| -> Vec<String> {
        let json = json(&run.expect(0));
        json["deleted"].as_array().unwrap().iter().map(|one| one["id"].as_str().unwrap().to_owned()).collect()
    };
    let rules = ["prune", "--keep-last", "3", "--json"];
    let planned = deleted(verb(&place, &[&rules[..], &["--dry-run"]].concat()));
    assert_eq!(
        (planned.len(), ids(&place).len()),
        (4, 26),
        "the newest 20, the last 3 and the named one stay"
    );
    assert_eq!(deleted(verb(&place, &rules)), planned);
    assert_eq!(ids(&place).len(), 22);
    // Nothing is old, and nothing too large.
    assert_eq!(deleted(verb(&place, &["prune", "--json"])), [""; 0]);
    assert!(!verb(&place, &["log"]).expect(0).stdout.contains("gone"));
    let size = json(&verb(&place, &["stats", "--json"]).expect(0))["library_size"].as_u64().unwrap();
    let most = (size / 2).to_string();
    let said = json(&verb(&place, &["prune", "--max-size", &most, "--json"]).expect(0));
    let now = json(&verb(&place, &["stats", "--json"]).expect(0))["library_size"].as_u64().unwrap();
    assert!(now <= size / 2, "{now} of {size}");
    assert_eq!(said["size"], now);
    let text = verb(&place, &["log"]).expect(0).stdout;
    let evicted = said["deleted"].as_array().unwrap().iter().filter(|one| one["evicted"] == true).count();
    assert!(evicted > 5);
    assert!(text.contains(&format!("{evicted} of the newest 20 commands are gone")), "{text}");
    verb(&place, &["show", "kept"]).expect(0);
    verb(&place, &["fsck", "--repair"]).expect(0);
    assert!(verb(&place, &["log"]).expect(0).stdout.contains("are gone"));
    for _ in 0..20 {
        run(&place, &[], "echo more >> f");
    }
    assert!(!verb(&place, &["log"]).expect(0).stdout.contains("gone"));
}

fn configure(place: &Place, text: &str) {
    fs::create_dir_all(place.config.join("agent-snapshot")).unwrap();
    fs::write(place.config.join("agent-snapshot/config.toml"), text).unwrap();
}

#[test]
fn limits_of_the_configuration_apply_without_rules() {
    let place = Place::new();
    run(&place, &[], "cat /dev/null");
    configure(&place, "[library]\nmax-size = \"0\"\n");
    assert_eq!(json(&verb(&place, &["stats", "--json"]).expect(0))["max_size"], 0);
    configure(&place, "[library]\nmax-size = \"much\"\n");
    for verbs in [["prune", "--dry-run"], ["stats", "--json"]] {
        let refused = verb(&place, &verbs).expect(2);
        assert!(refused.stderr.contains("config.toml: [library] max-size: a size is"), "{refused:?}");
    }
    verb(&place, &["prune", "--keep-last", "1"]).expect(0);
    configure(&place, "[library]\nmax-size = \"0\"\n");
    verb(&place, &["prune"]).expect(0);
    assert_eq!(ids(&place), [""; 0]);
}

/// Waits until the recordings are as many.
fn wait_for(place: &Place, count: usize) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while ids(place).len() != count {
        assert!(Instant::now() < deadline, "{:?}", ids(place));
        std::thread::yield_now();
    }
}

#[test]
fn recording_prunes_the_library_once_an_hour() {
    let place = Place::new();
    configure(&place, "[library]\nmax-size = \"0\"\n");
    run(&place, &["--name", "kept"], "echo > f");
    run(&place, &[], "echo >> f");
    let stamp = library(&place).join("pruned");
    let set_back = || {
        let stamp = fs::File::open(&stamp).unwrap();
        stamp.set_modified(SystemTime::now() - Duration::from_secs(3601)).unwrap();
    };
    assert_eq!(ids(&place).len(), 2, "a new library is not pruned");
    set_back();
    run(&place, &[], "echo >> f");
    wait_for(&place, 1);
    // Not again within the hour.
    run(&place, &[], "echo >> f");
    assert!(stamp.metadata().unwrap().modified().unwrap().elapsed().unwrap() < Duration::from_secs(3000));
    assert_eq!(ids(&place).len(), 2);
    // The shell does so, too.
    set_back();
    let shell = place.program(SHELL).args(["-c", "echo >> f"]).output().unwrap();
    assert!(shell.status.success() && shell.stderr.is_empty(), "{shell:?}");
    wait_for(&place, 1);
}

#[test]
fn nothing_is_pruned_unasked_where_the_configuration_has_a_fault() {
    let place = Place::new();
    run(&place, &[], "cat /dev/null");
    let log = library(&place).join("log.jsonl");
    let text = fs::read_to_string(&log).unwrap();
    let year = text.split_once("\"time\":\"").unwrap().1[..4].to_owned();
    fs::write(&log, text.replace(&format!("\"{year}-"), "\"2020-")).unwrap();
    for fault in ["[recall]", "[library]\nmax-size = \"much\""] {
        configure(&place, &format!("[library]\nmax-age = \"36500d\"\n{fault}\n"));
        assert_eq!(verb(&place, &["prune", "--automatic"]).expect(0).stderr, "");
        assert_eq!(ids(&place).len(), 1);
    }
    configure(&place, "[library]\nmax-size = \"much\"\n");
    let doctor = verb(&place, &["doctor"]);
    assert!(doctor.stdout.contains("[library] max-size: a size is"), "{doctor:?}");
    configure(&place, "");
    verb(&place, &["prune", "--automatic"]).expect(0);
    assert_eq!(ids(&place), [""; 0]);
}

#[test]
fn library_that_can_not_be_written_to_is_read() {
    let place = Place::new();
    place.write("f", "old");
    run(&place, &[], "echo new > f");
    let id = newest(&place);
    let script = r#"
        export HOME="$1/home" XDG_CONFIG_HOME="$1/config"
        mount --bind "$HOME/.local" "$HOME/.local" && mount -o remount,bind,ro "$HOME/.local" || exit 77
        cd "$1/work"
        export AGENT_SNAPSHOT_LIBRARY="$HOME/.local/state/agent-snapshot"
        "$2" log && "$2" show @ && "$2" cat --before @ f && "$2" stats && "$2" fsck || exit 1
        "$2" prune --max-size 0 --keep-last 0; echo "prune $?"
        "$2" delete @; echo "delete $?"
    "#;
    if !crate::support::can_mount() {
        return;
    }
    let ran = place.run_unshared(script);
    assert!(ran.stdout.contains("delete 125"), "{ran:#?}");
    assert!(ran.stderr.contains("Read-only file system"), "{ran:#?}");
    assert_eq!(ran.status, 0, "{ran:#?}");
    assert_eq!(ids(&place), [id]);
}

#[test]
fn library_of_another_user_is_left_alone() {
    if !is_root() {
        println!("skipped: another user needs root");
        return;
    }
    let place = Place::new();
    run(&place, &[], "echo > f");
    let theirs = Place::of(User::Nobody);
    run(&theirs, &[], "echo > f");
    for (caller, other) in [(&place, &theirs), (&theirs, &place)] {
        for arguments in
            [&["delete", "@"][..], &["prune", "--max-size", "0"], &["stats"], &["fsck", "--repair"]]
        {
            let mut command: Command = caller.command();
            let refused: Run = command
                .env("AGENT_SNAPSHOT_LIBRARY", library(other))
                .args(arguments)
                .output()
                .unwrap()
                .into();
            assert!(![0, 101].contains(&refused.status), "{arguments:?}: {refused:?}");
        }
        assert_eq!(ids(other).len(), 1);
    }
}

#[test]
fn deletion_frees_a_full_disk() {
    let place = Place::new();
    let disk: PathBuf = place.base().join("small");
    let Some(_mounted) = SmallFilesystem::at(&disk, "size=2m") else { return };
    let here = |arguments: &[&str]| -> Run {
        let mut command = place.command();
        command.env("AGENT_SNAPSHOT_LIBRARY", disk.join("library")).args(arguments).output().unwrap().into()
    };
    place.write("f", vec![7; 100_000]);
    for _ in 0..3 {
        here(&["run", "sh", "-c", "date >> f"]).expect(0);
    }
    // The next line of the log takes a block of its own.
    let log = disk.join("library/log.jsonl");
    let text = fs::read_to_string(&log).unwrap();
    let rest = 4096 - (text.len() + "{\"event\":\"\"}\n".len()) % 4096;
    fs::write(&log, format!("{text}{{\"event\":\"{}\"}}\n", "x".repeat(rest))).unwrap();
    assert_eq!(fs::metadata(&log).unwrap().len() % 4096, 0);
    let fill = |path: &Path| fs::write(path, vec![0; 4 << 20]).unwrap_err();
    fill(&disk.join("filler"));
    here(&["log"]).expect(0);
    here(&["stats"]).expect(0);
    here(&["delete", "@~1"]).expect(0);
    fill(&disk.join("more"));
    here(&["prune", "--max-size", "0"]).expect(0);
    fs::remove_file(disk.join("filler")).unwrap();
    fs::remove_file(disk.join("more")).unwrap();
    assert_eq!(here(&["fsck"]).expect(0).stdout, "0 snapshots read: nothing is wrong\n");
    here(&["run", "sh", "-c", "date >> f"]).expect(0);
    here(&["undo"]).expect(0);
}

#[test]
fn recording_that_can_not_be_removed_does_not_keep_the_others() {
    let place = Place::of(User::ordinary());
    for _ in 0..3 {
        run(&place, &[], "cat /dev/null");
    }
    let all = ids(&place);
    let locked = library(&place).join("snapshots").join(&all[1]);
    fs::create_dir(locked.join("sub")).unwrap();
    fs::write(locked.join("sub/f"), "").unwrap();
    chmod(locked.join("sub"), 0o500);
    if is_root() {
        std::os::unix::fs::chown(locked.join("sub"), Some(0), Some(0)).unwrap();
    }
    let said = verb(&place, &["prune", "--keep-last", "0"]).expect(125);
    assert!(said.stderr.contains("Permission denied"), "{said:?}");
    assert_eq!(ids(&place), [""; 0]);
    assert_eq!(names(&place), [format!("{}.deleted", all[1])]);
    run(&place, &[], "cat /dev/null");
    verb(&place, &["delete", "@"]).expect(125);
    assert_eq!(ids(&place), [""; 0]);
    chmod(locked.with_extension("deleted").join("sub"), 0o700);
    fs::remove_dir_all(locked.with_extension("deleted").join("sub")).unwrap();
    verb(&place, &["fsck", "--repair"]).expect(0);
    assert_eq!(names(&place), [""; 0]);
}

#[test]
fn killed_recording_is_recovered_by_a_repair() {
    let place = Place::new();
    place.write("f", "old");
    let id = record_and_kill(&place, &[], "echo new > f");
    let found = verb(&place, &["fsck"]).expect(1).stdout;
    assert!(found.starts_with(&format!("not recovered: snapshots/{id}: ")), "{found}");
    assert!(verb(&place, &["fsck", "--repair"]).expect(0).stdout.starts_with(&format!("recovered {id}\n")));
    assert_eq!(log(&place, &[])[0]["state"], "killed");
    verb(&place, &["undo"]).expect(0);
    assert_eq!(fs::read_to_string(place.at("f")).unwrap(), "old");
}

#[test]
fn damaged_library_is_named_and_mended() {
    let place = Place::new();
    place.write("f", "old");
    for _ in 0..4 {
        run(&place, &[], "date +%N > f");
    }
    let all = ids(&place);
    let snapshots = library(&place).join("snapshots");
    fs::remove_dir_all(snapshots.join(&all[0])).unwrap();
    fs::write(snapshots.join(&all[1]).join("manifest.json"), "{").unwrap();
    fs::remove_file(snapshots.join(&all[2]).join("manifest.json")).unwrap();
    fs::write(library(&place).join("log.jsonl"), "{\"event\":\n".repeat(3)).unwrap();
    verb(&place, &["log"]).expect(0);
    verb(&place, &["stats"]).expect(0);
    verb(&place, &["prune", "--keep-last", "1"]).expect(0);
    let found = verb(&place, &["fsck"]).expect(1).stdout;
    for part in ["damaged: log.jsonl: 3 of its lines", &format!("damaged: snapshots/{}", all[1])] {
        assert!(found.contains(part), "{found}");
    }
    let left = json(&verb(&place, &["fsck", "--repair", "--json"]).expect(1));
    assert_eq!(left["problems"].as_array().unwrap().len(), 2, "{left}");
    verb(&place, &["delete", &all[1], &all[2]]).expect(0);
    verb(&place, &["fsck"]).expect(0);
    assert_eq!(ids(&place), [all[3].as_str()]);
}
