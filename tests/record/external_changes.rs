//! Changes that other programs make while a command is recorded: they are reported, since their content is
//! unknown.

use std::fs::{self, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{OpenOptionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;

use agent_snapshot::snapshot::{Snapshot, WarningKind};

use crate::support::{Place, Random, chmod, lost, program, rounds};

/// Records `script`, and has `change` done once it has written a line; it goes on when its own standard
/// input ends.
fn record_while(place: &Place, script: &str, change: impl FnOnce()) {
    let mut command = place.recording();
    command.args(["sh", "-c", script]);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    child.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
    change();
    drop(child.stdin.take());
    assert!(child.wait_with_output().unwrap().status.success());
}

#[test]
fn directory_replaced_by_a_symlink_is_reported() {
    let place = Place::new();
    let directory = place.at("d");
    fs::create_dir(&directory).unwrap();
    record_while(&place, "test -e d/x; echo; read line; echo new >d/new", || {
        fs::rename(&directory, place.at("other")).unwrap();
        symlink("other", &directory).unwrap();
    });
    assert!(place.at("other/new").exists());
    let snapshot = place.snapshot();
    assert_eq!(lost(&snapshot), [WarningKind::ExternalChange]);
    let detail = &snapshot.header().warnings[0].detail;
    assert!(detail.contains(directory.to_str().unwrap()), "{detail}");
}

/// An agent removes its scratch directory while what a command has left in the background is still recorded.
#[test]
fn directory_that_a_rule_leaves_out_may_be_replaced() {
    let place = Place::new();
    for (name, expected) in [("gemini-shell-x", vec![]), ("other", vec![WarningKind::ExternalChange])] {
        let directory = place.at(name);
        fs::create_dir(&directory).unwrap();
        let script = format!("test -e {name}/x; echo; read line; echo new > {name}/new");
        let mut command = place.recording();
        command.env("TMPDIR", &place.work).args(["sh", "-c", &script]);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        child.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
        fs::rename(&directory, place.at(format!("{name}-moved"))).unwrap();
        symlink(format!("{name}-moved"), &directory).unwrap();
        drop(child.stdin.take());
        assert!(child.wait_with_output().unwrap().status.success());
        assert_eq!(lost(&place.snapshot()), expected, "{name}");
        fs::remove_dir_all(&place.out).unwrap();
    }
}

#[test]
fn directories_moved_and_recreated_by_the_command_are_no_external_change() {
    let place = Place::new();
    let snapshot = place.record(
        "mkdir -p a/b/c x/y; echo 1 >a/b/c/f; cat a/b/c/f x/y/none; mv a/b b; cat b/c/f; mkdir a/b; echo 2 >a/b/g
         mv b x/y/z; cat x/y/z/c/f; ln -s x link; cat link/y/z/c/f; rm -r x; rm link; mkdir -p x/y/z; cat x/y/z/none
         mv x a/b/; echo 3 >a/b/x/y/z/n; true",
    );
    assert_eq!(lost(&snapshot), []);
}

#[test]
fn external_change_of_a_symlink_or_mode_is_reported() {
    let change_mode = |path: &Path, mode| chmod(path, mode);
    for name in ["link", "file", "dir"] {
        let place = Place::new();
        symlink("file", place.at("link")).unwrap();
        fs::create_dir(place.at("dir")).unwrap();
        place.write("file", "content\n");
        change_mode(&place.at("file"), 0o644);
        change_mode(&place.at("dir"), 0o755);
        let path = place.at(name);
        record_while(
            &place,
            "cat link >/dev/null; ls -l file dir link >/dev/null; echo; read line; true",
            || match name {
                "link" => {
                    fs::remove_file(&path).unwrap();
                    symlink("other", &path).unwrap();
                }
                "file" => change_mode(&path, 0o600),
                _ => change_mode(&path, 0o700),
            },
        );
        let snapshot = place.snapshot();
        assert_eq!(lost(&snapshot), [WarningKind::ExternalChange], "{name}");
        let detail = &snapshot.header().warnings[0].detail;
        assert!(detail.contains(path.to_str().unwrap()), "{detail}");
    }
}

#[test]
fn change_through_another_name_is_no_external_change() {
    let place = Place::new();
    place.write("f", "content\n");
    fs::hard_link(place.at("f"), place.at("g")).unwrap();
    symlink("f", place.at("link")).unwrap();
    fs::hard_link(place.at("link"), place.at("alias")).unwrap();
    let snapshot = place.record(
        "cat f g; readlink link alias; chmod 600 g; rm alias; chown -h $(id -u) link; exec 3<f; cat f",
    );
    assert_eq!(lost(&snapshot), []);
}

#[test]
fn directory_replaced_by_a_file_is_reported_and_left_out() {
    let place = Place::new();
    fs::create_dir(place.at("d")).unwrap();
    place.write("d/f", "beneath\n");
    let mut command = place.recording();
    command.args(["sh", "-c", "cat d/f; read line; cat d; cat other"]);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut seen = [0; 8];
    child.stdout.as_mut().unwrap().read_exact(&mut seen).unwrap();
    fs::remove_dir_all(place.at("d")).unwrap();
    place.write("d", "instead\n");
    drop(child.stdin.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.stdout, b"instead\n");
    let snapshot = place.snapshot();
    assert_eq!(place.recorded(&snapshot), ["d/f read", "other existence"]);
    assert_eq!(lost(&snapshot), [WarningKind::ExternalChange]);
}

/// What lies below a directory, and a few names that may not be there.
fn names(work: &Path) -> Vec<PathBuf> {
    let mut found: Vec<PathBuf> = walkdir::WalkDir::new(work)
        .min_depth(1)
        .into_iter()
        .flatten()
        .map(|entry| entry.into_path())
        .collect();
    found.extend(["a", "b", "a/x", "b/x/y"].map(|name| work.join(name)));
    found
}

/// Writes a file; a FIFO that takes its place meanwhile is not waited for.
fn write_at_once(path: &Path, content: &[u8]) -> io::Result<()> {
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(true).custom_flags(libc::O_NONBLOCK);
    options.open(path)?.write_all(content)
}

/// Makes one untraced change: writes, renames, replaces or removes something in the tree.
fn meddle(work: &Path, random: &mut Random) {
    let all = names(work);
    let path = &all[random.below(all.len())];
    let other = &all[random.below(all.len())];
    // A symlink may lead out, through /proc/self/cwd for one; and the program may have removed the
    // directory itself.
    let Ok(root) = work.canonicalize() else { return };
    let within = |path: &Path| {
        path.parent()
            .and_then(|parent| parent.canonicalize().ok())
            .is_some_and(|parent| parent.starts_with(&root))
    };
    if !within(path) || !within(other) {
        return;
    }
    let is_free_or_file = path.symlink_metadata().map_or(true, |metadata| metadata.is_file());
    // Whatever of it fails, fails.
    let _ = match random.below(9) {
        0 => fs::remove_file(path),
        1 => fs::remove_dir_all(path),
        2 => fs::rename(path, other),
        3 => fs::create_dir(path),
        4 => symlink(other, path),
        5 => fs::hard_link(path, other),
        6 if !path.is_dir() => fs::remove_file(path).and_then(|()| fs::create_dir(path)),
        7 => fs::remove_dir_all(path).and_then(|()| write_at_once(path, b"outside\n")),
        _ if is_free_or_file => write_at_once(path, &vec![b'x'; random.below(1 << 17)]),
        _ => Ok(()),
    };
}

/// Records a random program while this process changes the same directory; the manifest must be readable.
fn record_meddled(seed: u64) {
    let place = Place::new();
    let program = program("random");
    let setup = Command::new(&program).args(["--setup", &seed.to_string()]).current_dir(&place.work).status();
    assert!(setup.unwrap().success());
    let mut command = place.recording();
    // cat waits for a FIFO that takes the place of a file after find has seen it.
    command.args(["--quiet", "--timeout", "60s"]);
    command.args(["sh", "-c", r#""$@"; find . -type f -exec cat {} + ; ls -lR; rm -rf a; cp -r b c; mv b d; find . -exec stat {} +"#, "sh"]);
    command.arg(&program).args([&seed.to_string(), "race"]);
    command.stdout(Stdio::null()).stderr(Stdio::null());
    let mut child = command.spawn().unwrap();
    let mut random = Random::new(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    let status = loop {
        meddle(&place.work, &mut random);
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
    };
    assert_ne!(status.code(), Some(125), "seed {seed}");
    if let Err(error) = Snapshot::open(&place.out) {
        panic!("seed {seed}: {error}");
    }
}

#[test]
fn manifest_is_readable_whatever_other_processes_do() {
    (0..12).for_each(record_meddled);
}

#[test]
#[ignore = "slow: hundreds of recordings"]
fn slow_manifest_is_readable_whatever_other_processes_do() {
    (1000..1000 + rounds(150) as u64).for_each(record_meddled);
}

#[test]
fn what_somebody_removes_while_states_are_taken_is_no_gap() {
    let names: Vec<String> = (0..2000).map(|number| format!("f{number:04}")).collect();
    for _ in 0..2 {
        let place = Place::new();
        let mut command = place.recording();
        command.args([
            "--keep",
            "undo",
            "sh",
            "-c",
            "for i in $(seq -w 0 1999); do echo x > f$i; done; echo",
        ]);
        let mut recorder = command.stdout(Stdio::piped()).spawn().unwrap();
        // When the shell has written this, it ends, and the states are taken.
        recorder.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
        thread::scope(|scope| {
            for part in names.chunks(250) {
                let work = &place.work;
                scope.spawn(move || part.iter().for_each(|name| drop(fs::remove_file(work.join(name)))));
            }
        });
        assert!(recorder.wait().unwrap().success());
        assert_eq!(lost(&place.snapshot()), []);
    }
}
