//! Bundles made by someone who means harm: refused with 3, nothing written, no memory eaten, no panic.

use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::symlink;
use std::process::Command;

use agent_snapshot::snapshot::*;
use serde_json::{Value, json};

use super::support::*;

/// A bundle that deletes, edits and makes files, and the file outside that the hostile ones aim at.
fn scene() -> Scene {
    let scene = Scene::new();
    scene.write("dir/edited", "old");
    scene.write("dir/gone", "x");
    scene.record(|| {
        scene.write("dir/edited", "new");
        fs::remove_file(scene.at("dir/gone")).unwrap();
        scene.write("dir/made", "y");
        symlink("edited", scene.at("dir/link")).unwrap();
    });
    fs::create_dir(scene.dir().join("outside")).unwrap();
    fs::write(scene.dir().join("outside/victim"), "precious").unwrap();
    scene
}

fn manifest(scene: &Scene) -> std::path::PathBuf {
    scene.snap().join("manifest.json")
}

/// Runs the binary in little memory.
fn run_small(args: &[&std::ffi::OsStr]) -> Run {
    let script = "ulimit -v 600000; exec \"$0\" \"$@\"";
    let output = Command::new("sh")
        .args(["-c", script, env!("CARGO_BIN_EXE_agent-snapshot")])
        .args(args)
        .env("NO_COLOR", "1")
        .output()
        .unwrap();
    output.into()
}

/// Sees that every verb refuses the bundle and that nothing outside has changed.
#[track_caller]
fn expect_refused(scene: &Scene, what: &str, status: i32) {
    let before = scan(&scene.root());
    let (snap, into) = (scene.snap(), scene.dir().join("into"));
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
        let run = run_small(args);
        assert_eq!(run.status, status, "{what}: {args:?}: {run:#?}");
        assert!(!run.stderr.contains("panicked"), "{what}: {run:#?}");
        assert!(run.stderr.len() < 10_000, "{what}: a message of {} bytes", run.stderr.len());
    }
    assert_eq!(fs::read_to_string(scene.dir().join("outside/victim")).unwrap(), "precious");
    assert_eq!(fs::read_dir(scene.dir().join("outside")).unwrap().count(), 1, "{what}");
    let after = scan(&scene.root());
    assert_eq!(told(&before, |_| true), told(&after, |_| true), "{what}");
    assert!(!scene.dir().join("snap-rescue-1").exists(), "{what}");
}

type Harm = Box<dyn Fn(&Scene, &mut Value)>;

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
    let record = |harm: fn(&Scene, &mut Value)| -> Harm { Box::new(harm) };
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
            record(|scene, manifest| {
                let outside = scene.dir().join("outside").into_os_string().into_string().unwrap();
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
        ("a start in a relative directory", record(|_, manifest| manifest["start_cwd"] = json!("x/y"))),
        ("a newer format", record(|_, manifest| manifest["format_version"] = json!(3))),
        ("no files", record(|_, manifest| drop(manifest.as_object_mut().unwrap().remove("files")))),
        ("files that are no list", record(|_, manifest| manifest["files"] = json!({}))),
    ]
}

#[test]
fn a_manifest_that_lies_is_refused() {
    let scene = scene();
    let honest = fs::read(manifest(&scene)).unwrap();
    for (what, harm) in harms() {
        let mut value: Value = serde_json::from_slice(&honest).unwrap();
        harm(&scene, &mut value);
        fs::write(manifest(&scene), serde_json::to_vec(&value).unwrap()).unwrap();
        expect_refused(&scene, what, 3);
    }
    fs::write(manifest(&scene), &honest).unwrap();
    verb("restore", &scene.snap(), &["--before"]).expect(0);
}

#[test]
fn bytes_that_are_no_bundle_are_refused() {
    let scene = scene();
    let honest = fs::read(manifest(&scene)).unwrap();
    let blobs = scene.snap().join("blobs.parquet");
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
        fs::write(manifest(&scene), bytes).unwrap();
        expect_refused(&scene, what, 3);
    }
    fs::write(manifest(&scene), &honest).unwrap();
    for (what, bytes) in [
        ("no content", Vec::new()),
        ("half the content", content[..content.len() / 2].to_vec()),
        ("content without an end", content[..content.len() - 4].to_vec()),
        ("content that is text", b"PAR1 not at all PAR1".to_vec()),
    ] {
        fs::write(&blobs, bytes).unwrap();
        expect_refused(&scene, what, 3);
    }
    fs::remove_file(&blobs).unwrap();
    expect_refused(&scene, "content that is missing", 3);
    fs::create_dir(&blobs).unwrap();
    let status = verb("verify", &scene.snap(), &[]).status;
    assert!(status == 3 || status == 125, "{status}");
}

#[test]
fn a_manifest_of_a_gibibyte_of_brackets_is_refused_at_its_start() {
    let scene = scene();
    let mut command = Command::new("sh");
    let script =
        "yes '[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[' | head -c 1073741824 > \"$0\"";
    let made = command.args(["-c", script]).arg(manifest(&scene)).status();
    if !made.is_ok_and(|status| status.success()) {
        return println!("skipped: no room for a gibibyte");
    }
    expect_refused(&scene, "a gibibyte of brackets", 3);
}

#[test]
fn a_bundle_of_links_and_pipes_is_refused_and_does_not_block() {
    let scene = scene();
    let honest = fs::read(manifest(&scene)).unwrap();
    let elsewhere = scene.dir().join("elsewhere.json");
    fs::write(&elsewhere, &honest).unwrap();
    fs::remove_file(manifest(&scene)).unwrap();
    symlink(&elsewhere, manifest(&scene)).unwrap();
    assert_ne!(verb("verify", &scene.snap(), &[]).status, 0);
    fs::remove_file(manifest(&scene)).unwrap();
    nix::unistd::mkfifo(&manifest(&scene), nix::sys::stat::Mode::S_IRWXU).unwrap();
    assert_ne!(verb("restore", &scene.snap(), &["--before"]).status, 0);
    assert_eq!(fs::read_to_string(scene.at("dir/edited")).unwrap(), "new");
}

#[test]
fn content_that_is_not_as_the_manifest_says_is_refused_and_nothing_takes_its_place() {
    let scene = Scene::new();
    let store = scene.dir().join("store");
    fs::write(&store, "old").unwrap();
    fs::hard_link(&store, scene.at("in-place")).unwrap();
    scene.write("file", "old content");
    scene.record(|| {
        scene.write("in-place", "new");
        scene.write("file", "new");
    });
    let honest = fs::read_to_string(manifest(&scene)).unwrap();
    let lies = |content: &str| {
        let digest = Digest::of(content.as_bytes()).to_string();
        let wrong = Digest::of(b"something else").to_string();
        let length = |length: usize| format!("\"size\":{length},");
        let other_length = honest.replace(&length(content.len()), &length(content.len() + 1));
        [honest.replace(&digest, &wrong), other_length]
    };
    for lie in [lies("old"), lies("old content")].concat() {
        fs::write(manifest(&scene), lie).unwrap();
        let run = verb("restore", &scene.snap(), &["--before", "--force"]);
        assert_eq!(run.status, 3, "{run:#?}");
        assert!(run.stderr.contains("that the manifest says"), "{run:#?}");
        assert!(!scene.dir().join("snap-rescue-1.unfinished").exists());
        assert_eq!(fs::read_to_string(scene.at("in-place")).unwrap(), "new");
        assert_eq!(fs::read_to_string(&store).unwrap(), "new");
        assert_eq!(fs::read_to_string(scene.at("file")).unwrap(), "new");
        let run = verb("branch", &scene.snap(), &[scene.dir().join("b").to_str().unwrap(), "--before"]);
        assert_eq!(run.status, 3, "{run:#?}");
        fs::remove_dir_all(scene.dir().join("b")).unwrap();
    }
}

#[test]
fn a_record_inside_a_repositorys_own_directory_is_left_out() {
    let scene = Scene::new();
    scene.write("repo/.git/hooks/keep", "x");
    scene.write("repo/file", "x");
    scene.record(|| {
        scene.write("repo/.git/hooks/post-commit", "evil");
        scene.write("repo/file", "y");
    });
    fs::remove_file(scene.at("repo/.git/hooks/post-commit")).unwrap();
    scene.write("repo/file", "x");
    let run = verb("restore", &scene.snap(), &[]).expect(1);
    assert!(run.stdout.contains("post-commit: it is inside a repository's own directory"), "{}", run.stdout);
    assert!(!scene.at("repo/.git/hooks/post-commit").exists());
    assert_eq!(fs::read_to_string(scene.at("repo/file")).unwrap(), "y");
    let dir = scene.dir().join("b");
    verb("branch", &scene.snap(), &[dir.to_str().unwrap()]).expect(0);
    assert!(scan(&dir).keys().all(|path| !path.ends_with(b"post-commit")));
}

/// Swaps a directory for a link to one outside at the system call number `at` of a restore.
fn swap_at(scene: &Scene, at: u64) -> bool {
    let mut swapped = false;
    trace_restore(scene, &["--before"], |_, calls| {
        if calls >= at && !swapped {
            swapped = true;
            fs::rename(scene.at("dir"), scene.dir().join("moved")).unwrap();
            symlink(scene.dir().join("outside"), scene.at("dir")).unwrap();
        }
    });
    swapped
}

#[test]
fn a_link_swapped_in_while_the_restore_runs_is_not_followed() {
    for part in 0..30 {
        let scene = scene();
        fs::write(scene.dir().join("outside/edited"), "new").unwrap();
        let before = scan(&scene.dir().join("outside"));
        if !swap_at(&scene, 300 + part * 25) {
            break;
        }
        let after = scan(&scene.dir().join("outside"));
        assert_eq!(told(&before, |_| true), told(&after, |_| true), "swapped at part {part}");
    }
}

#[test]
fn a_rescue_that_someone_else_planted_is_not_believed() {
    let scene = scene();
    scene.write("dir/edited", "mine");
    let path = scene.at("dir/edited").as_os_str().as_bytes().to_vec();
    let mut planted = header();
    planted.kind = SnapshotKind::Rescue;
    planted.host.machine = "sha256:elsewhere".to_owned();
    let id = Snapshot::open(&scene.snap()).unwrap().header().id.clone();
    planted.name = Some(format!("rescue of {id}"));
    let tree = scan(&scene.root());
    commit(&scene.dir().join("snap-rescue-1.unfinished"), &planted, |writer| {
        records(writer, &tree, &tree, |other| other == path)
    });
    let run = verb("restore", &scene.snap(), &["--before"]).expect(1);
    assert!(run.stderr.contains("dir/edited: a file of 4 bytes"), "{}", run.stderr);
}

#[test]
fn a_rescue_is_written_into_no_directory_that_someone_else_planted() {
    let scene = scene();
    let elsewhere = scene.dir().join("elsewhere");
    fs::create_dir(&elsewhere).unwrap();
    let planted = |number: u32| scene.dir().join(format!("snap-rescue-{number}.unfinished"));
    symlink(&elsewhere, planted(1)).unwrap();
    symlink(scene.dir().join("nowhere"), planted(2)).unwrap();
    fs::create_dir(planted(3)).unwrap();
    let is_theirs = is_root();
    if is_theirs {
        std::os::unix::fs::chown(planted(3), Some(65534), Some(65534)).unwrap();
    }
    let run = verb("restore", &scene.snap(), &["--before"]).expect(0);
    // One of our own is what a run that was killed early has left.
    let rescue = scene.dir().join(if is_theirs { "snap-rescue-4" } else { "snap-rescue-3" });
    assert!(run.stdout.contains(rescue.to_str().unwrap()), "{run:#?}");
    assert_eq!(fs::read_dir(&elsewhere).unwrap().count(), 0);
    assert!(!scene.dir().join("nowhere").exists());
    assert!(!is_theirs || fs::read_dir(planted(3)).unwrap().count() == 0);
    verb("restore", &rescue, &["--before"]).expect(0);
    assert_eq!(fs::read_to_string(scene.at("dir/edited")).unwrap(), "new");
}

#[test]
fn a_snapshot_that_another_user_can_have_written_is_foreign_whatever_its_header_says() {
    use std::os::unix::fs::{PermissionsExt as _, chown};
    let scene = scene();
    let snap = scene.snap();
    let paths = [snap.clone(), manifest(&scene), snap.join("blobs.parquet")];
    let expect_foreign = |why: &str| {
        let run = verb("restore", &snap, &["--before"]).expect(3);
        let told = format!("{} {why}: it is restored in place with --foreign only", snap.display());
        assert!(run.stderr.contains(&told), "{run:#?}");
        assert_eq!(fs::read_to_string(scene.at("dir/edited")).unwrap(), "new");
    };
    let chmod = |path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    let own = format!("may have been written by others than user {}", nix::unistd::geteuid());
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
        verb("restore", &snap, &["--before", "--foreign", "--dry-run"]).expect(0);
        paths.iter().for_each(|path| chown(path, Some(0), None).unwrap());
    }
    verb("restore", &snap, &["--before"]).expect(0);
}

#[test]
fn nothing_is_recorded_into_a_directory_of_another_user() {
    if !needs_root("to give a directory away") {
        return;
    }
    let scene = Scene::new();
    let home = scene.dir().join("home");
    let theirs = home.join("theirs");
    fs::create_dir_all(&theirs).unwrap();
    for path in [&home, &theirs] {
        std::os::unix::fs::chown(path, Some(65534), Some(65534)).unwrap();
    }
    let record = |dir: &std::path::Path| {
        run(["--snapshot-dir".as_ref(), dir.as_os_str(), "--quiet".as_ref(), "true".as_ref()])
    };
    let refused = record(&theirs).expect(125);
    let told = "theirs belongs to user 65534: name a new directory or your own";
    assert!(refused.stderr.contains(told), "{refused:#?}");
    assert_eq!(fs::read_dir(&theirs).unwrap().count(), 0);
    // One that is new is ours, whoever has its parent.
    record(&home.join("new")).expect(0);
    verb("restore", &home.join("new"), &["--before"]).expect(0);
}
