//! Malicious bundles: refused with exit status 3, without a write, without much memory, without a panic.

use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::symlink;
use std::process::Command;

use agent_snapshot::snapshot::*;
use serde_json::{Value, json};

use crate::support::*;

/// A bundle that deletes, edits and makes files, and the file outside that the hostile ones aim at.
fn prepared() -> Place {
    let place = Place::new();
    place.write("dir/edited", "old");
    place.write("dir/gone", "x");
    place.make_bundle(|| {
        place.write("dir/edited", "new");
        fs::remove_file(place.at("dir/gone")).unwrap();
        place.write("dir/made", "y");
        symlink("edited", place.at("dir/link")).unwrap();
    });
    fs::create_dir(place.base().join("outside")).unwrap();
    fs::write(place.base().join("outside/victim"), "precious").unwrap();
    place
}

fn manifest(place: &Place) -> std::path::PathBuf {
    place.out.join("manifest.json")
}

/// Runs the binary in little memory.
fn run_small(place: &Place, args: &[&std::ffi::OsStr]) -> Run {
    let script = "ulimit -v 600000; exec \"$0\" \"$@\"";
    let output =
        place.program("sh").args(["-c", script, BINARY]).args(args).current_dir(&place.home).output();
    output.unwrap().into()
}

/// Asserts that every verb refuses the bundle and that nothing outside has changed.
#[track_caller]
fn expect_refused(place: &Place, what: &str, status: i32) {
    let before = scan(&place.work);
    let (snap, into) = (&place.out, place.base().join("into"));
    let runs: [&[&std::ffi::OsStr]; 4] = [
        &["verify".as_ref(), snap.as_os_str()],
        &[
            "restore".as_ref(),
            snap.as_os_str(),
            "--before".as_ref(),
            "--force".as_ref(),
            "--foreign".as_ref(),
        ],
        &["restore".as_ref(), snap.as_os_str(), "--into".as_ref(), into.as_os_str()],
        &["branch".as_ref(), snap.as_os_str(), into.as_os_str(), "--before".as_ref(), "--preserve".as_ref()],
    ];
    for args in runs {
        let run = run_small(place, args);
        assert_eq!(run.status, status, "{what}: {args:?}: {run:#?}");
        assert!(!run.stderr.contains("panicked"), "{what}: {run:#?}");
        assert!(run.stderr.len() < 10_000, "{what}: a message of {} bytes", run.stderr.len());
    }
    assert_eq!(fs::read_to_string(place.base().join("outside/victim")).unwrap(), "precious");
    assert_eq!(fs::read_dir(place.base().join("outside")).unwrap().count(), 1, "{what}");
    let after = scan(&place.work);
    assert_eq!(describe(&before, |_| true), describe(&after, |_| true), "{what}");
    assert!(!place.rescue(1).exists(), "{what}");
}

type Harm = Box<dyn Fn(&Place, &mut Value)>;

/// Finds the record whose path ends in `name`.
fn file<'a>(manifest: &'a mut Value, name: &str) -> &'a mut Value {
    let files = manifest["files"].as_array_mut().unwrap();
    files.iter_mut().find(|file| file["path"].as_str().unwrap().ends_with(name)).unwrap()
}

fn set_path(path: &'static str) -> Harm {
    Box::new(move |_, manifest| file(manifest, "/made")["path"] = json!(path))
}

fn in_state(side: &'static str, name: &'static str, change: fn(&mut Value)) -> Harm {
    Box::new(move |_, manifest| change(&mut file(manifest, name)[side]))
}

fn harms() -> Vec<(&'static str, Harm)> {
    let record = |harm: fn(&Place, &mut Value)| -> Harm { Box::new(harm) };
    vec![
        ("a parent directory", set_path("/tmp/../etc/passwd")),
        ("a dot", set_path("/tmp/./x")),
        ("a relative path", set_path("etc/passwd")),
        ("an empty path", set_path("")),
        ("an empty component", set_path("/tmp//x")),
        ("a slash at the end", set_path("/zzz/")),
        ("a NUL", set_path("/tmp/x\0y")),
        (
            "exact bytes that are another path",
            record(|_, manifest| file(manifest, "/made")["path_bytes"] = json!("Li4vLi4veA==")),
        ),
        (
            "a path of a million directories",
            record(|_, manifest| file(manifest, "/made")["path"] = json!("/z".repeat(1_000_000))),
        ),
        (
            "a path there twice",
            record(|_, manifest| {
                let twice = file(manifest, "/made").clone();
                manifest["files"].as_array_mut().unwrap().push(twice);
            }),
        ),
        ("rows out of order", record(|_, manifest| manifest["files"].as_array_mut().unwrap().reverse())),
        (
            "a path beneath a symbolic link",
            record(|place, manifest| {
                let outside = place.base().join("outside").into_os_string().into_string().unwrap();
                let link = file(manifest, "/link");
                link["after"]["target"] = json!(outside);
                link["before"] = link["after"].clone();
                let path = format!("{}/victim", link["path"].as_str().unwrap());
                let mut beneath = file(manifest, "/made").clone();
                beneath["path"] = json!(path);
                beneath["before"] = beneath["after"].clone();
                let files = manifest["files"].as_array_mut().unwrap();
                files.push(beneath);
                files.sort_by_key(|file| file["path"].as_str().unwrap().to_owned());
            }),
        ),
        (
            "a path that is both a file and a directory",
            record(|_, manifest| {
                let mut beneath = file(manifest, "/made").clone();
                beneath["path"] = json!(format!("{}/beneath", beneath["path"].as_str().unwrap()));
                let files = manifest["files"].as_array_mut().unwrap();
                files.push(beneath);
                files.sort_by_key(|file| file["path"].as_str().unwrap().to_owned());
            }),
        ),
        (
            "a blob that is missing",
            in_state("before", "/gone", |state| state["blob"] = json!("before:/none")),
        ),
        ("a length of an exabyte", in_state("before", "/gone", |state| state["size"] = json!(1_u64 << 60))),
        ("a length beyond all files", in_state("before", "/gone", |state| state["size"] = json!(u64::MAX))),
        ("a negative length", in_state("before", "/gone", |state| state["size"] = json!(-1))),
        ("a mode of another type", in_state("before", "/gone", |state| state["mode"] = json!(0o40755))),
        ("a mode beyond all modes", in_state("before", "/gone", |state| state["mode"] = json!(0o1_100_644))),
        ("a user that nobody is", in_state("before", "/gone", |state| state["uid"] = json!(u32::MAX))),
        ("a group that nobody is", in_state("after", "/made", |state| state["gid"] = json!(u32::MAX))),
        ("an unknown type", in_state("before", "/gone", |state| state["type"] = json!("wormhole"))),
        (
            "a second of too many nanoseconds",
            in_state("before", "/gone", |state| state["mtime_nsec"] = json!(1_000_000_000)),
        ),
        ("a digest that is none", in_state("before", "/gone", |state| state["digest"] = json!("sha256:00"))),
        ("a target of a file", in_state("before", "/gone", |state| state["target"] = json!("/etc"))),
        ("a link without a target", in_state("after", "/link", |state| state["target"] = json!(""))),
        ("a target with a NUL", in_state("after", "/link", |state| state["target"] = json!("a\0b"))),
        (
            "a target longer than any",
            in_state("after", "/link", |state| state["target"] = json!("x".repeat(5000))),
        ),
        ("a device number of a file", in_state("before", "/gone", |state| state["rdev"] = json!(259))),
        (
            "an attribute without a name",
            in_state("before", "/gone", |state| state["xattrs"] = json!({ "": "AA==" })),
        ),
        (
            "an attribute larger than any",
            in_state("before", "/gone", |state| state["xattrs"] = json!({ "user.x": "A".repeat(100_000) })),
        ),
        (
            "an object id that is a path",
            record(|_, manifest| {
                file(manifest, "/gone")["git"] = json!({
                    "in_repo": true, "root": "/repo", "head": "00", "relative_path": "x",
                    "oid": "../../../../../../etc/passwd", "tracked": true, "dirty": false, "ignored": false
                });
            }),
        ),
        (
            "a repository that is a relative path",
            record(|_, manifest| {
                file(manifest, "/gone")["git"] = json!({
                    "in_repo": true, "root": "../repo", "head": "00", "relative_path": "x",
                    "tracked": true, "dirty": false, "ignored": false
                });
            }),
        ),
        (
            "a path in the repository that leads out",
            record(|_, manifest| {
                file(manifest, "/gone")["git"] = json!({
                    "in_repo": true, "root": "/repo", "head": "00", "relative_path": "../../x",
                    "tracked": true, "dirty": false, "ignored": false
                });
            }),
        ),
        (
            "a rename from nowhere",
            record(|_, manifest| file(manifest, "/gone")["renamed_to"] = json!("../x")),
        ),
        (
            "a hard link from nowhere",
            record(|_, manifest| file(manifest, "/gone")["linked_from"] = json!(["../x"])),
        ),
        ("a start in a relative directory", record(|_, manifest| manifest["start_cwd"] = json!("x/y"))),
        ("a newer format", record(|_, manifest| manifest["format_version"] = json!(3))),
        ("no files", record(|_, manifest| drop(manifest.as_object_mut().unwrap().remove("files")))),
        ("files that are no list", record(|_, manifest| manifest["files"] = json!({}))),
    ]
}

#[test]
fn invalid_manifest_is_refused() {
    let place = prepared();
    let honest = fs::read(manifest(&place)).unwrap();
    for (what, harm) in harms() {
        let mut value: Value = serde_json::from_slice(&honest).unwrap();
        harm(&place, &mut value);
        fs::write(manifest(&place), serde_json::to_vec(&value).unwrap()).unwrap();
        expect_refused(&place, what, 3);
    }
    fs::write(manifest(&place), &honest).unwrap();
    place.verb("restore", &["--before"]).expect(0);
}

#[test]
fn invalid_bundle_files_are_refused() {
    let place = prepared();
    let honest = fs::read(manifest(&place)).unwrap();
    let blobs = place.out.join("blobs.parquet");
    let content = fs::read(&blobs).unwrap();
    for (what, bytes) in [
        ("nothing", Vec::new()),
        ("half a manifest", honest[..honest.len() / 2].to_vec()),
        ("brackets", vec![b'['; 64 << 20]),
        ("braces", br#"{"a":"#.repeat(1 << 20)),
        ("brackets behind an unknown key", [b"{\"new\":".to_vec(), vec![b'['; 64 << 20]].concat()),
        ("one long string", [b"{\"id\":\"".to_vec(), vec![b'a'; 64 << 20]].concat()),
        ("zeros", vec![0; 1 << 20]),
    ] {
        fs::write(manifest(&place), bytes).unwrap();
        expect_refused(&place, what, 3);
    }
    fs::write(manifest(&place), &honest).unwrap();
    for (what, bytes) in [
        ("no content", Vec::new()),
        ("half the content", content[..content.len() / 2].to_vec()),
        ("content without an end", content[..content.len() - 4].to_vec()),
        ("content that is text", b"PAR1 not at all PAR1".to_vec()),
    ] {
        fs::write(&blobs, bytes).unwrap();
        expect_refused(&place, what, 3);
    }
    fs::remove_file(&blobs).unwrap();
    expect_refused(&place, "content that is missing", 3);
    fs::create_dir(&blobs).unwrap();
    let status = place.verb("verify", &[]).status;
    assert!(status == 3 || status == 125, "{status}");
}

#[test]
fn gibibyte_of_brackets_is_refused_at_its_start() {
    let place = prepared();
    let mut command = Command::new("sh");
    let script =
        "yes '[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[' | head -c 1073741824 > \"$0\"";
    let made = command.args(["-c", script]).arg(manifest(&place)).status();
    if !made.is_ok_and(|status| status.success()) {
        return println!("skipped: less than 1 GiB is free");
    }
    expect_refused(&place, "a gibibyte of brackets", 3);
}

#[test]
fn bundle_of_symlinks_and_fifos_is_refused_without_blocking() {
    let place = prepared();
    let honest = fs::read(manifest(&place)).unwrap();
    let elsewhere = place.base().join("elsewhere.json");
    fs::write(&elsewhere, &honest).unwrap();
    fs::remove_file(manifest(&place)).unwrap();
    symlink(&elsewhere, manifest(&place)).unwrap();
    assert_ne!(place.verb("verify", &[]).status, 0);
    fs::remove_file(manifest(&place)).unwrap();
    nix::unistd::mkfifo(&manifest(&place), nix::sys::stat::Mode::S_IRWXU).unwrap();
    assert_ne!(place.verb("restore", &["--before"]).status, 0);
    assert_eq!(fs::read_to_string(place.at("dir/edited")).unwrap(), "new");
}

#[test]
fn content_that_contradicts_the_manifest_is_refused() {
    let place = Place::new();
    let store = place.base().join("store");
    fs::write(&store, "old").unwrap();
    fs::hard_link(&store, place.at("in-place")).unwrap();
    place.write("file", "old content");
    place.make_bundle(|| {
        place.write("in-place", "new");
        place.write("file", "new");
    });
    let honest = fs::read_to_string(manifest(&place)).unwrap();
    let lies = |content: &str| {
        let digest = Digest::of(content.as_bytes()).to_string();
        let wrong = Digest::of(b"something else").to_string();
        let length = |length: usize| format!("\"size\":{length},");
        let other_length = honest.replace(&length(content.len()), &length(content.len() + 1));
        [honest.replace(&digest, &wrong), other_length]
    };
    for lie in [lies("old"), lies("old content")].concat() {
        fs::write(manifest(&place), lie).unwrap();
        let run = place.verb("restore", &["--before", "--force"]);
        assert_eq!(run.status, 3, "{run:#?}");
        assert!(run.stderr.contains("that the manifest says"), "{run:#?}");
        assert!(!place.base().join("out-rescue-1.unfinished").exists());
        assert_eq!(fs::read_to_string(place.at("in-place")).unwrap(), "new");
        assert_eq!(fs::read_to_string(&store).unwrap(), "new");
        assert_eq!(fs::read_to_string(place.at("file")).unwrap(), "new");
        let run = place.verb("branch", &[place.base().join("b").to_str().unwrap(), "--before"]);
        assert_eq!(run.status, 3, "{run:#?}");
        fs::remove_dir_all(place.base().join("b")).unwrap();
    }
}

#[test]
fn record_in_a_git_directory_is_left_out() {
    let place = Place::new();
    place.write("repo/.git/hooks/keep", "x");
    place.write("repo/file", "x");
    place.make_bundle(|| {
        place.write("repo/.git/hooks/post-commit", "evil");
        place.write("repo/file", "y");
    });
    fs::remove_file(place.at("repo/.git/hooks/post-commit")).unwrap();
    place.write("repo/file", "x");
    // Where no recording has it.
    let mut edited = json(&manifest(&place));
    let git_files = std::mem::take(edited["git_files"].as_array_mut().unwrap());
    let files = edited["files"].as_array_mut().unwrap();
    files.extend(git_files);
    files.sort_by_key(|file| file["path"].as_str().unwrap().to_owned());
    fs::write(manifest(&place), edited.to_string()).unwrap();
    let run = place.verb("restore", &[]).expect(1);
    assert!(run.stdout.contains("post-commit: it is inside a repository's own directory"), "{}", run.stdout);
    assert!(!place.at("repo/.git/hooks/post-commit").exists());
    assert_eq!(fs::read_to_string(place.at("repo/file")).unwrap(), "y");
    let dir = place.base().join("b");
    place.verb("branch", &[dir.to_str().unwrap()]).expect(0);
    assert!(scan(&dir).keys().all(|path| !path.ends_with(b"post-commit")));
}

/// Swaps a directory for a symlink to one outside at the syscall number `at` of a restore.
fn swap_at(place: &Place, at: u64) -> bool {
    let mut swapped = false;
    trace_restore(place, &["--before"], |_, calls| {
        if calls >= at && !swapped {
            swapped = true;
            fs::rename(place.at("dir"), place.base().join("moved")).unwrap();
            symlink(place.base().join("outside"), place.at("dir")).unwrap();
        }
    });
    swapped
}

#[test]
fn symlink_swapped_in_during_a_restore_is_not_followed() {
    let mut swaps = 0;
    for part in 0..30 {
        let place = prepared();
        fs::write(place.base().join("outside/edited"), "new").unwrap();
        let before = scan(&place.base().join("outside"));
        if !swap_at(&place, 300 + part * 25) {
            break;
        }
        swaps += 1;
        let after = scan(&place.base().join("outside"));
        assert_eq!(describe(&before, |_| true), describe(&after, |_| true), "swapped at part {part}");
    }
    assert!(swaps > 0);
}

#[test]
fn planted_rescue_is_not_trusted() {
    let place = prepared();
    place.write("dir/edited", "mine");
    let path = place.at("dir/edited").as_os_str().as_bytes().to_vec();
    let mut planted = header();
    planted.kind = SnapshotKind::Rescue;
    planted.host.machine = "sha256:elsewhere".to_owned();
    let id = Snapshot::open(&place.out).unwrap().header().id.clone();
    planted.name = Some(format!("rescue of {id}"));
    let tree = scan(&place.work);
    commit(&place.base().join("out-rescue-1.unfinished"), &planted, |writer| {
        records(writer, &tree, &tree, |other| other == path)
    });
    let run = place.verb("restore", &["--before"]).expect(1);
    assert!(run.stderr.contains("dir/edited: edited since: a file of 4 bytes"), "{}", run.stderr);
}

#[test]
fn rescue_is_not_written_into_a_planted_directory() {
    let place = prepared();
    let elsewhere = place.base().join("elsewhere");
    fs::create_dir(&elsewhere).unwrap();
    let planted = |number: u32| place.base().join(format!("out-rescue-{number}.unfinished"));
    symlink(&elsewhere, planted(1)).unwrap();
    symlink(place.base().join("nowhere"), planted(2)).unwrap();
    fs::create_dir(planted(3)).unwrap();
    let is_theirs = is_root();
    if is_theirs {
        std::os::unix::fs::chown(planted(3), Some(65534), Some(65534)).unwrap();
    }
    let run = place.verb("restore", &["--before"]).expect(0);
    // One of our own is what a run that was killed early has left.
    let rescue = place.base().join(if is_theirs { "out-rescue-4" } else { "out-rescue-3" });
    assert!(run.stdout.contains(rescue.to_str().unwrap()), "{run:#?}");
    assert_eq!(fs::read_dir(&elsewhere).unwrap().count(), 0);
    assert!(!place.base().join("nowhere").exists());
    assert!(!is_theirs || fs::read_dir(planted(3)).unwrap().count() == 0);
    place.verb_on("restore", &rescue, &["--before"]).expect(0);
    assert_eq!(fs::read_to_string(place.at("dir/edited")).unwrap(), "new");
}

#[test]
fn snapshot_writable_by_another_user_is_foreign() {
    use std::os::unix::fs::{PermissionsExt as _, chown};
    let place = prepared();
    let snap = &place.out;
    let paths = [snap.clone(), manifest(&place), snap.join("blobs.parquet")];
    let expect_foreign = |why: &str| {
        let run = place.verb("restore", &["--before"]).expect(3);
        let told = format!("{} {why}: restore it in place with --foreign", snap.display());
        assert!(run.stderr.contains(&told), "{run:#?}");
        assert_eq!(fs::read_to_string(place.at("dir/edited")).unwrap(), "new");
    };
    let chmod = |path, mode| chmod(path, mode);
    let own = format!("may have been written by users other than {}", nix::unistd::geteuid());
    for path in &paths {
        let mode = fs::metadata(path).unwrap().permissions().mode();
        for bit in [0o020, 0o002] {
            chmod(path, mode | bit);
            expect_foreign(&own);
        }
        chmod(path, mode);
    }
    if needs_root("to give files away") {
        for path in &paths {
            chown(path, Some(65534), None).unwrap();
            expect_foreign(&own);
            chown(path, Some(0), None).unwrap();
        }
        paths.iter().for_each(|path| chown(path, Some(65534), None).unwrap());
        expect_foreign("belongs to user 65534");
        place.verb("restore", &["--before", "--foreign", "--dry-run"]).expect(0);
        paths.iter().for_each(|path| chown(path, Some(0), None).unwrap());
    }
    place.verb("restore", &["--before"]).expect(0);
}

#[test]
fn snapshot_directory_of_another_user_is_refused() {
    if !needs_root("to give a directory away") {
        return;
    }
    let place = Place::new();
    let theirs = place.home.join("theirs");
    fs::create_dir(&theirs).unwrap();
    give_away(&place.home);
    let record = |dir: &std::path::Path| {
        place.run(["--snapshot-dir".as_ref(), dir.as_os_str(), "--quiet".as_ref(), "true".as_ref()])
    };
    let refused = record(&theirs).expect(125);
    let told = "theirs belongs to user 65534: name a new directory or your own";
    assert!(refused.stderr.contains(told), "{refused:#?}");
    assert_eq!(fs::read_dir(&theirs).unwrap().count(), 0);
    // A new directory belongs to the user of the recorder, whoever owns its parent.
    record(&place.home.join("new")).expect(0);
    place.verb_on("restore", &place.home.join("new"), &["--before"]).expect(0);
}
