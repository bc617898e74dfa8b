//! The history of a path, and what was there at some time: `history`, `cat --at`, `restore --at`.

use std::fs;
use std::io::{BufRead as _, Write as _};
use std::thread::sleep;
use std::time::Duration;

use super::{library, log, newest, run, run_command, verb};
use crate::support::{Place, Run, User, scan};

/// The time now, such that the clock of files has passed it afterwards.
pub fn moment() -> String {
    // File times come from a clock of their own, which may stand still for 10 ms.
    sleep(Duration::from_millis(25));
    let now = jiff::Timestamp::now().to_string();
    sleep(Duration::from_millis(25));
    now
}

fn history(place: &Place, arguments: &[&str]) -> serde_json::Value {
    let run = verb(place, &[&["history", "--json"], arguments].concat()).expect(0);
    serde_json::from_str(&run.stdout).unwrap()
}

/// The effects on the path itself, the newest first.
fn effects(place: &Place, path: &str) -> Vec<String> {
    let history = history(place, &[path]);
    let recordings = history["recordings"].as_array().unwrap();
    let effect = |one: &serde_json::Value| one["changes"][0]["effect"].as_str().unwrap().to_owned();
    recordings.iter().map(effect).collect()
}

fn at(place: &Place, path: &str, time: &str) -> Run {
    verb(place, &["cat", path, "--at", time])
}

#[test]
fn history_lists_what_each_recording_did_to_a_path() {
    for user in [User::Current, User::Nobody] {
        let place = Place::of(user);
        run(&place, &[], "mkdir d; echo one > d/f");
        run(&place, &[], "cat d/f; echo > other");
        run(&place, &[], "echo longer > d/f");
        run(&place, &[], "chmod 600 d/f");
        run(&place, &[], "mv d/f d/g");
        run(&place, &[], "rm -r d");
        assert_eq!(effects(&place, "d/f"), ["deleted", "changed", "changed", "created"]);
        assert_eq!(effects(&place, "d/g"), ["deleted", "created"]);
        let shown = verb(&place, &["history", "d/f"]).expect(0);
        assert_eq!(shown.stderr, "");
        let lines: Vec<&str> = shown.stdout.lines().collect();
        assert!(
            lines[0].contains("renamed to d/g") && lines[0].ends_with("mv     sh -c 'mv d/f d/g'"),
            "{lines:#?}"
        );
        assert!(lines[1].contains("mode 0644 → 0600") && lines[1].contains("chmod"), "{lines:#?}");
        assert!(lines[2].contains("changed  ") && lines[2].contains("4 B → 7 B  "), "{lines:#?}");
        assert!(lines[3].contains("created"), "{lines:#?}");
        let directory = verb(&place, &["history", "d", "--limit", "3"]).expect(0);
        assert_eq!(directory.stdout.lines().count(), 4, "{directory:?}");
        assert!(
            directory.stdout.contains("-2  ") && directory.stdout.ends_with("and older ones (--limit)\n")
        );
        let diff = verb(&place, &["history", "d/f", "--diff"]).expect(0);
        assert!(diff.stdout.contains("\n-one\n+longer\n"), "{diff:?}");
        let unknown = verb(&place, &["history", "d/none"]).expect(1);
        assert!(unknown.stderr.contains("no recording in the library has changed"), "{unknown:?}");
    }
}

#[test]
fn file_that_commands_changed_by_another_name_alone_is_known_by_each() {
    let place = Place::new();
    place.prepare("echo one > a; ln a b; ln a c");
    let before = moment();
    run(&place, &[], "echo two > a");
    let between = moment();
    run(&place, &[], "echo three > c");
    for (time, text) in [(before, "one\n"), (between, "two\n"), (moment(), "three\n")] {
        for name in ["a", "b", "c"] {
            assert_eq!(at(&place, name, &time).expect(0).stdout, text, "{name}");
        }
        verb(&place, &["restore", "b", "--at", &time]).expect(0);
        assert_eq!(fs::read_to_string(place.at("a")).unwrap(), text);
    }
}

#[test]
fn history_tells_what_is_undone_and_what_nobody_recorded() {
    let place = Place::new();
    run(&place, &[], "echo one > f");
    run(&place, &[], "echo two > f");
    verb(&place, &["undo"]).expect(0);
    let list = history(&place, &["f"]);
    assert!(
        list["recordings"][0]["undone"].is_string() && list["recordings"][1]["undone"].is_null(),
        "{list}"
    );
    assert_eq!(list["changed_since"], false);
    assert!(verb(&place, &["history", "f"]).expect(0).stdout.contains("(undone)"));
    fs::write(place.at("f"), "by hand\n").unwrap();
    let said = verb(&place, &["history", "f"]).expect(0).stderr;
    assert!(said.contains("/f was changed since then by something that is not in the library"), "{said}");
    assert!(!history(&place, &["."])["recordings"].as_array().unwrap().is_empty());
}

#[test]
fn sessions_have_a_history_of_their_own() {
    let place = Place::new();
    run(&place, &["--session", "one"], "echo one > f");
    run(&place, &["--session", "two"], "echo two > f");
    let count = |arguments: &[&str]| history(&place, arguments)["recordings"].as_array().unwrap().len();
    assert_eq!([count(&["f"]), count(&["f", "--session", "one"])], [2, 1]);
    assert!(!library(&place).join("audit.jsonl").exists());
    assert_eq!(count(&["f", "--session", "one", "--allow-cross-session"]), 2);
    let audit = fs::read_to_string(library(&place).join("audit.jsonl")).unwrap();
    assert!(audit.lines().count() == 1 && audit.contains("\"caller\":\"one\""), "{audit}");
}

#[test]
fn index_that_is_missing_or_damaged_costs_no_answer() {
    let place = Place::new();
    for number in 0..4 {
        run(&place, &[], &format!("echo {number} > f; echo > other{number}"));
    }
    verb(&place, &["undo"]).expect(0);
    let index = library(&place).join("paths.idx");
    let expected = history(&place, &["f"]);
    let whole = fs::read(&index).unwrap();
    let check = |bytes: Option<Vec<u8>>| {
        match bytes {
            Some(bytes) => fs::write(&index, bytes).unwrap(),
            None => fs::remove_file(&index).unwrap(),
        }
        assert_eq!(history(&place, &["f"]), expected);
        assert_eq!(fs::read(&index).unwrap().len(), whole.len(), "it is made again");
    };
    check(None);
    check(Some(Vec::new()));
    check(Some(b"PIX9 of another version".to_vec()));
    for at in (0..whole.len()).step_by(37) {
        let mut damaged = whole.clone();
        damaged[at] ^= 0x10;
        check(Some(damaged));
        check(Some(whole[..at].to_vec()));
    }
    // Recordings that are gone do no harm.
    fs::remove_dir_all(library(&place).join("snapshots").join(newest(&place))).unwrap();
    assert_eq!(history(&place, &["f"])["recordings"].as_array().unwrap().len(), 3);
}

#[test]
fn version_of_a_time_is_found_whoever_has_its_bytes() {
    let place = Place::new();
    place.prepare("mkdir sub; echo zero > f; ln -s one link");
    let mut times = vec![(moment(), "zero\n")];
    for text in ["one", "two"] {
        run(&place, &[], &format!("echo {text} > f"));
        times.push((moment(), if text == "one" { "one\n" } else { "two\n" }));
    }
    place.prepare("echo by hand > f");
    times.push((moment(), "by hand\n"));
    run(&place, &[], "chmod 600 f; ln -sfn two link");
    times.push((moment(), "by hand\n"));
    run(&place, &[], "rm f");
    let gone = moment();
    run(&place, &[], "echo again > f");
    times.push((moment(), "again\n"));
    for (number, (time, text)) in times.iter().enumerate() {
        let found = at(&place, "f", time).expect(0);
        assert_eq!(found.stdout.as_str(), *text, "{times:?} {time}");
        // What was written by hand after that may have been written more than once.
        assert_eq!(
            found.stderr.contains("by something that is not in the library"),
            number == 2,
            "{found:?}"
        );
    }
    assert!(
        at(&place, "f", &gone).expect(1).stderr.contains("at that time is unavailable: nothing was there")
    );
    assert_eq!(at(&place, "link", &times[0].0).expect(0).stdout, "one");
    assert_eq!(at(&place, "../work/./sub/../link", "0.001s").expect(0).stdout, "two");
    assert_eq!(at(&place, "f", "1ms").expect(0).stdout, "again\n");
    let json: serde_json::Value =
        serde_json::from_str(&verb(&place, &["cat", "f", "--json", "--at", &times[1].0]).expect(0).stdout)
            .unwrap();
    assert_eq!((&json["content"], &json["source"]), (&"b25lCg==".into(), &"blob".into()));
    // Nobody knows what was there before the file was written by hand.
    let unknown = at(&place, "f", "1h").expect(1);
    assert!(unknown.stderr.contains("is not known"), "{unknown:?}");
    let refused = ["2999-01-01", "nonsense"].map(|time| at(&place, "f", time).expect(2).stderr);
    assert!(refused[0].contains("in the future"), "{refused:?}");
    verb(&place, &["cat", "f", "--at", "1h", "--before"]).expect(2);
    assert_eq!(verb(&place, &["cat", "f"]).expect(0).stdout, "again\n");
    assert_eq!(at(&place, "sub", "1s").status, 1);
}

#[test]
fn undo_is_part_of_what_was_there() {
    let place = Place::new();
    place.prepare("echo old > f; touch -d 2020-01-01 f");
    let mut times = vec![(moment(), "old\n")];
    run(&place, &[], "echo new > f");
    times.push((moment(), "new\n"));
    verb(&place, &["undo"]).expect(0);
    times.push((moment(), "old\n"));
    verb(&place, &["redo"]).expect(0);
    times.push((moment(), "new\n"));
    let id = newest(&place);
    verb(&place, &["restore", "--before", &id, "f"]).expect(0);
    times.push((moment(), "old\n"));
    for (time, text) in &times {
        let found = at(&place, "f", time).expect(0);
        assert_eq!((found.stdout.as_str(), found.stderr.as_str()), (*text, ""), "{times:?} {time}");
    }
}

#[test]
fn what_is_not_certain_is_said() {
    let place = Place::new();
    run(&place, &[], "echo one > f");
    let first = moment();
    // By hand, twice, and the second one says that it is older.
    place.prepare("echo hand > f; echo another > g; touch -d 2020-01-01 g; mv g f");
    let found = at(&place, "f", &first).expect(0);
    assert_eq!(found.stdout, "one\n");
    assert!(found.stderr.contains("by something that is not in the library"), "{found:?}");
    // In the middle of a recording.
    run(&place, &[], "echo two > f; sleep 0.2; rm f");
    let recorded = &log(&place, &[])[0];
    let end: jiff::Timestamp = recorded["finished"].as_str().unwrap().parse().unwrap();
    let middle = (end - jiff::SignedDuration::from_millis(50)).to_string();
    let found = at(&place, "f", &middle).expect(0);
    assert_eq!(found.stdout, "another\n");
    assert!(
        found.stderr.contains(&format!("{} was changing it", recorded["id"].as_str().unwrap())),
        "{found:?}"
    );
}

#[test]
fn restore_at_puts_back_a_tree_and_is_taken_back_by_its_rescue() {
    for user in [User::Current, User::Nobody] {
        let place = Place::of(user);
        place.prepare(
            "mkdir -p d/deep d/gone; echo one > d/f; echo two > d/deep/g; ln d/f d/hard; ln -s f d/link; echo x > d/gone/x
             echo mine > d/untouched; echo beside > beside; chmod 750 d/deep",
        );
        let before = scan(&place.at("d"));
        let time = moment();
        run(&place, &[], "echo changed > d/f; echo new > d/new; chmod 700 d/deep; ln -sfn g d/link");
        run(
            &place,
            &[],
            "rm -r d/gone; mkdir d/made; echo > d/made/m; mv d/deep d/away; echo other > beside",
        );
        place.prepare("echo by hand > d/f; echo by hand > d/away/g");
        let after = scan(&place.at("d"));
        let plan = verb(&place, &["restore", "d", "--at", &time, "--dry-run"]).expect(0);
        assert!(plan.stdout.contains("would be put back to the state of 2"), "{plan:?}");
        assert_same(&place, &after, "a dry run changes nothing");
        let run = verb(&place, &["restore", "d", "--at", &time, "--json"]).expect(0);
        let outcome: serde_json::Value = serde_json::from_str(&run.stdout).unwrap();
        assert_same(&place, &before, &format!("restored: {run:#?}"));
        assert_eq!(fs::read_to_string(place.at("beside")).unwrap(), "other\n");
        let rescue = outcome["rescues"][0]["path"].as_str().unwrap();
        verb(&place, &["restore", "--before", rescue]).expect(0);
        assert_same(&place, &after, "taken back");
        // Several paths, and one that was not there.
        verb(&place, &["restore", "d/f", "d/away/g", "--at", &time]).expect(1);
        verb(&place, &["restore", "d/f", "d/away/g", "--at", &time, "--skip-conflicts"]).expect(1);
        assert_eq!(fs::read_to_string(place.at("d/hard")).unwrap(), "one\n");
        assert!(place.at("d/away/g").exists());
        let again = verb(&place, &["restore", "d/f", "--at", &time]).expect(0);
        assert!(again.stdout.contains("nothing to do"), "{again:?}");
        verb(&place, &["restore", "nowhere", "--at", "1s"]).expect(1);
    }
}

#[test]
fn restore_at_names_a_path_that_nothing_is_known_of_beside_others() {
    let place = Place::new();
    place.prepare("echo one > f; mkdir -p d/untouched; echo mine > by-hand");
    let time = moment();
    run(&place, &[], "echo two > f; echo > d/new");
    for unknown in ["nowhere", "d/untouched", "by-hand"] {
        for words in [["f", unknown], [unknown, "f"]] {
            let refused = verb(&place, &[&["restore"][..], &words, &["--at", &time]].concat()).expect(1);
            let named = format!("/{unknown}: no recording in the library has changed it\n");
            assert!(refused.stderr.contains("nothing was changed:"), "{refused:?}");
            assert!(refused.stderr.contains(&named), "{refused:?}");
            assert_eq!(fs::read_to_string(place.at("f")).unwrap(), "two\n");
        }
    }
    let left = verb(&place, &["restore", "f", "nowhere", "--at", &time, "--skip-conflicts"]).expect(1);
    assert!(left.stderr.contains("left as they are:") && left.stderr.contains("/nowhere: "), "{left:?}");
    assert_eq!(fs::read_to_string(place.at("f")).unwrap(), "one\n");
    // What is left out on purpose is known.
    verb(&place, &["restore", "f", "d", "--exclude", "new", "--at", &time]).expect(0);
    assert!(place.at("d/new").exists());
    verb(&place, &["restore", "f", "d", "--at", &time]).expect(0);
    assert!(!place.at("d/new").exists());
}

#[test]
fn restore_at_of_a_directory_leaves_what_only_the_shell_had_redirected() {
    let place = Place::new();
    run(&place, &[], "echo one > f");
    place.prepare("echo first > log");
    let mut log = fs::OpenOptions::new().append(true).open(place.at("log")).unwrap();
    let time = moment();
    let mut command = run_command(&place, &[], "echo second; echo two > f");
    assert!(command.stdout(log.try_clone().unwrap()).status().unwrap().success());
    verb(&place, &["restore", ".", "--at", &time]).expect(0);
    log.write_all(b"third\n").unwrap();
    let read = |name: &str| fs::read_to_string(place.at(name)).unwrap();
    assert_eq!([read("f").as_str(), read("log").as_str()], ["one\n", "first\nsecond\nthird\n"]);
}

#[test]
fn restore_at_of_a_directory_puts_back_what_was_changed_by_hand_alone() {
    let place = Place::new();
    run(&place, &[], "mkdir d; echo one > d/x; echo one > d/y; echo one > d/z");
    let time = moment();
    place.prepare("echo by hand > d/x; rm d/y");
    let run = verb(&place, &["restore", "d", "--at", &time]).expect(0);
    assert!(run.stderr.contains("d/x: between") && run.stderr.contains("d/y: between"), "{run:?}");
    for name in ["d/x", "d/y", "d/z"] {
        assert_eq!(fs::read_to_string(place.at(name)).unwrap(), "one\n", "{name}");
    }
}

#[test]
fn path_that_was_not_there_when_it_was_first_recorded_may_have_been_there_before() {
    let place = Place::new();
    place.write("f", "zero\n");
    let time = moment();
    place.prepare("rm f");
    run(&place, &[], "echo one > f");
    let unknown = at(&place, "f", &time).expect(1);
    assert!(unknown.stderr.contains("what was there until then is not known"), "{unknown:?}");
    let refused = verb(&place, &["restore", "f", "--at", &time]).expect(1);
    assert!(refused.stderr.contains("nothing was changed"), "{refused:?}");
    assert_eq!(fs::read_to_string(place.at("f")).unwrap(), "one\n");
    // Beneath a directory, it goes.
    verb(&place, &["restore", ".", "--at", &time]).expect(0);
    assert!(!place.at("f").exists());
}

#[test]
fn same_content_in_another_file_is_a_doubt() {
    let place = Place::new();
    run(&place, &[], "echo one > f");
    run(&place, &[], "echo two > f");
    place.prepare("echo by hand > f");
    let time = moment();
    verb(&place, &["undo", "--force"]).expect(0);
    let found = at(&place, "f", &time).expect(0);
    assert_eq!((found.stdout.as_str(), found.stderr.as_str()), ("by hand\n", ""));
    verb(&place, &["delete", &newest(&place)]).expect(0);
    let found = at(&place, "f", &time).expect(0);
    assert!(found.stdout == "one\n" && found.stderr.contains("not certain"), "{found:?}");
}

#[test]
fn path_that_was_removed_by_hand_before_the_time_stays_away() {
    let place = Place::new();
    run(&place, &[], "mkdir -p d/deep; echo one > d/f; echo one > d/deep/f; echo one > d/other");
    place.prepare("rm -r d/deep d/f");
    let time = moment();
    let gone = at(&place, "d/deep/f", &time).expect(1);
    assert!(gone.stderr.contains("nothing was there") && !gone.stderr.contains("not certain"), "{gone:?}");
    run(&place, &[], "echo two > d/other");
    let run = verb(&place, &["restore", ".", "--at", &time]).expect(0);
    assert_eq!(run.stderr, "");
    assert!(!place.at("d/f").exists() && !place.at("d/deep").exists());
    assert_eq!(fs::read_to_string(place.at("d/other")).unwrap(), "one\n");
}

#[test]
fn symlink_that_is_newer_than_the_time_is_named() {
    let place = Place::new();
    run(&place, &[], "mkdir v1 v2; echo one > v1/f; echo two > v2/f; ln -s v1 current");
    let time = moment();
    assert_eq!(at(&place, "current/f", &time).expect(0).stderr, "");
    run(&place, &[], "ln -sfn v2 current");
    let found = at(&place, "current/f", &time).expect(0);
    assert_eq!(found.stdout, "two\n");
    assert!(found.stderr.contains("current is a symlink that was made after that time"), "{found:?}");
    // What was recorded there itself is found, whatever is in the place of the directory now.
    run(&place, &[], "mv v1 away; ln -s v2 v1");
    let found = at(&place, "v1/f", &time).expect(0);
    assert_eq!((found.stdout.as_str(), found.stderr.as_str()), ("one\n", ""));
}

#[test]
fn who_may_have_changed_a_path_is_not_accused() {
    let place = Place::new();
    run(&place, &[], "echo one > f; mkdir k; echo one > k/f");
    run(&place, &[], "mv k k2; mkdir other; echo other > other/f; ln -s other k");
    let path = place.at("k/f").display().to_string();
    let list = history(&place, &[&path]);
    assert_eq!((&list["path"], &list["changed_since"]), (&path.into(), &false.into()));
    let mut running = run_command(&place, &[], "echo two > f; echo; read line; echo three > f")
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    std::io::BufReader::new(running.stdout.as_mut().unwrap()).read_line(&mut String::new()).unwrap();
    let id = newest(&place);
    let said = verb(&place, &["history", "f"]).expect(0).stderr;
    assert!(said.contains(&format!("unless it was {id}, which is not finished yet")), "{said}");
    drop(running.stdin.take());
    running.wait().unwrap();
}

#[test]
fn damaged_recording_does_not_hide_what_the_others_tell() {
    let place = Place::new();
    run(&place, &[], "echo one > f");
    let time = moment();
    run(&place, &[], "echo two > f");
    let damaged = newest(&place);
    run(&place, &[], "echo three > f");
    fs::write(library(&place).join("snapshots").join(&damaged).join("manifest.json"), "{").unwrap();
    for arguments in [&["history", "f"][..], &["cat", "f", "--at", &time], &["restore", "f", "--at", &time]] {
        let run = verb(&place, arguments).expect(0);
        assert!(run.stderr.contains(&format!("{damaged} can't be read, and what it changed")), "{run:?}");
    }
    assert_eq!(fs::read_to_string(place.at("f")).unwrap(), "one\n");
}

#[test]
fn absolute_path_needs_no_current_directory() {
    let place = Place::new();
    run(&place, &[], "mkdir d; echo one > f");
    let time = moment();
    let path = place.at("f").display().to_string();
    for arguments in
        [&["history", &path][..], &["cat", &path, "--at", &time], &["restore", &path, "--at", &time]]
    {
        let words = [&[crate::support::BINARY], arguments].concat();
        let mut command = place.command();
        let shell = std::process::Command::new("sh")
            .args(["-c", "mkdir gone; cd gone; rmdir ../gone; exec \"$@\"", "sh"])
            .args(words)
            .envs(command.arg("x").get_envs().filter_map(|(key, value)| Some((key, value?))))
            .current_dir(&place.work)
            .output()
            .unwrap();
        assert!(shell.status.success(), "{shell:?}");
    }
    verb(&place, &["history", "f", "--limit", "0"]).expect(2);
    for verb_name in ["cat", "restore"] {
        let refused = verb(&place, &[verb_name, "--at", &time]).expect(2);
        assert!(refused.stderr.contains("<SNAP|PATH>"), "{refused:?}");
    }
}

/// Asserts that the tree `d` is as wanted, but for the times of directories and inode numbers.
#[track_caller]
fn assert_same(place: &Place, wanted: &crate::support::Tree, what: &str) {
    let facts = |tree: &crate::support::Tree| -> Vec<String> {
        let fact = |(path, entry): (&Vec<u8>, &crate::support::Entry)| {
            let at = &entry.present;
            let time = entry.content.as_ref().map(|_| (at.mtime, at.mtime_nsec));
            let links = entry.content.as_ref().map(|_| at.nlink);
            format!(
                "{} {:o} {:?} {:?} {time:?} {links:?}",
                String::from_utf8_lossy(path),
                at.mode,
                at.target,
                entry.content
            )
        };
        tree.iter().map(fact).collect()
    };
    pretty_assertions(&facts(&scan(&place.at("d"))), &facts(wanted), what);
}

#[track_caller]
fn pretty_assertions(now: &[String], wanted: &[String], what: &str) {
    let differing: Vec<_> = now.iter().filter(|fact| !wanted.contains(fact)).collect();
    let missing: Vec<_> = wanted.iter().filter(|fact| !now.contains(fact)).collect();
    assert!(differing.is_empty() && missing.is_empty(), "{what}: is {differing:#?}, should be {missing:#?}");
}

#[test]
fn bytes_under_another_name_of_the_file_are_found() {
    let place = Place::new();
    place.write("a", "one\n");
    run(&place, &[], "chmod 640 a; ln a b");
    let time = moment();
    run(&place, &[], "echo two > b");
    assert_eq!(history(&place, &["a"])["changed_since"], false);
    run(&place, &[], "chmod 600 a");
    let found = at(&place, "a", &time).expect(0);
    assert_eq!((found.stdout.as_str(), found.stderr.as_str()), ("one\n", ""));
    verb(&place, &["restore", "a", "--at", &time]).expect(0);
    assert_eq!(fs::read_to_string(place.at("b")).unwrap(), "one\n");
}

#[test]
fn large_content_that_is_stored_nowhere_is_named() {
    let place = Place::new();
    run(&place, &[], "head -c 2000000 /dev/zero > large");
    let time = moment();
    assert_eq!(at(&place, "large", &time).expect(0).stdout.len(), 2_000_000, "it is still there");
    run(&place, &[], "echo > large");
    assert_eq!(at(&place, "large", &time).expect(0).stdout.len(), 2_000_000, "the next one has kept it");
    run(&place, &[], "head -c 3000000 /dev/zero > large");
    let time = moment();
    place.prepare("echo > large");
    let unavailable = at(&place, "large", &time).expect(1);
    assert!(
        unavailable.stderr.contains("/large: its content at that time is unavailable"),
        "{unavailable:?}"
    );
    let refused = verb(&place, &["restore", "large", "--at", &time]).expect(1);
    assert!(refused.stderr.contains("/large"), "{refused:?}");
    assert_eq!(fs::read_to_string(place.at("large")).unwrap(), "\n");
}

#[test]
fn gits_state_of_a_time_is_put_back_if_it_is_named() {
    let place = Place::new();
    place.prepare("git init -q .; echo 1 > f; git add f; git commit -qm one");
    let time = moment();
    run(&place, &[], "echo 2 > f; git -c user.name=x -c user.email=x@y commit -qam two");
    let left = verb(&place, &["restore", ".", "--at", &time]).expect(1);
    assert!(
        left.stdout.contains("Git's state is put back with all paths, or if this one is named"),
        "{left:?}"
    );
    assert_eq!(fs::read_to_string(place.at("f")).unwrap(), "1\n");
    assert_eq!(place.prepare("git log --format=%s"), "two\none\n");
    verb(&place, &["restore", ".git", "--at", &time]).expect(0);
    assert_eq!(place.prepare("git log --format=%s; git status --short"), "one\n");
}

#[test]
fn session_without_a_name_is_that_of_the_environment() {
    let place = Place::new();
    run(&place, &["--session", "s"], "echo > f");
    let of_each =
        ["log", "ui", "undo", "redo", "show", "diff", "verify", "check", "attest", "prune", "stats"];
    let with_words =
        [vec!["history", "f"], vec!["policy", "from"], vec!["delete", "@"], vec!["recover", "@"]];
    for words in [&of_each.map(|verb| vec![verb])[..], &with_words].concat() {
        let words = [&words, &["--session"][..]].concat();
        let refused = verb(&place, &words).expect(2);
        let said = "agent-snapshot: this is not run in a session: --session ID names one\n";
        assert_eq!(refused.stderr, said, "{words:?}");
    }
    assert!(place.at("f").exists());
    let within: Run = place
        .command()
        .args(["undo", "--session"])
        .env("AGENT_SNAPSHOT_SESSION", "s")
        .output()
        .unwrap()
        .into();
    within.expect(0);
    assert!(!place.at("f").exists());
}

#[test]
fn session_is_shown_as_one() {
    let place = Place::new();
    place.write("f", "old\n");
    let session = &["--session", "s"][..];
    run(&place, session, "echo one > f; echo > temporary");
    run(&place, session, "echo two > f; rm temporary; echo > made");
    run(&place, session, "echo > undone");
    verb(&place, &["undo"]).expect(0);
    run(&place, &["--session", "other"], "echo other > other");
    let diff = verb(&place, &["diff", "--session", "s"]).expect(0);
    assert!(diff.stdout.contains("-old\n+two\n") && !diff.stdout.contains("one"), "{diff:?}");
    let show = verb(&place, &["show", "--session", "s", "--json"]).expect(0);
    let show: serde_json::Value = serde_json::from_str(&show.stdout).unwrap();
    let changed: Vec<_> = ["changed", "created"]
        .iter()
        .flat_map(|status| {
            let files =
                show["files"].as_array().unwrap().iter().filter(move |file| file["status"] == **status);
            files.map(|file| file["path"].as_str().unwrap().rsplit('/').next().unwrap().to_owned())
        })
        .collect();
    assert_eq!(changed, ["f", "made"]);
    let one = verb(&place, &["diff", "--session", "s", "@~2"]).expect(0);
    assert!(one.stdout.contains("-old\n+one\n"), "{one:?}");
    assert!(
        verb(&place, &["show", "--session", "none"])
            .expect(1)
            .stderr
            .contains("session none has no recording")
    );
    assert!(verb(&place, &["show"]).expect(0).stdout.contains("Session     other"));
}

#[test]
fn file_of_the_same_time_is_not_taken_for_the_one_that_was_there() {
    let place = Place::new();
    place.prepare("echo version=2 > a; echo version=1 > b; chmod 600 a; touch -d 2026-01-01 a b");
    run(&place, &[], "mv a b");
    run(&place, &[], "chmod 644 b");
    verb(&place, &["undo"]).expect(0);
    let time = moment();
    verb(&place, &["restore", ".", "--at", &time]).expect(0);
    assert_eq!(fs::read_to_string(place.at("b")).unwrap(), "version=2\n");
}
