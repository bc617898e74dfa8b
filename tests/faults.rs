//! What goes wrong around a recording: nothing to execute, no space, no rights, no descriptors, too much
//! of everything. The command runs on as if alone, and what is lost is told.

use std::fs;
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use agent_snapshot::snapshot::{Snapshot, WarningKind};

use crate::support::{Place, lost};

/// A test program, by its whole name.
fn program(name: &str) -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let program = test.ancestors().nth(2).unwrap().join("examples").join(name);
    assert!(program.exists(), "{} is missing: cargo build --examples", program.display());
    program
}

#[test]
fn what_was_made_for_a_command_that_does_not_start_is_removed() {
    let place = Place::new();
    let script = place.work.join("script");
    fs::write(&script, "#!/no/such/interpreter\n").unwrap();
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
    let deep = place.base().join("a/b/c");
    for command in ["./script", "./missing", "no-such-command"] {
        let output = place.command().arg("--snapshot-dir").arg(&deep).arg(command).output().unwrap();
        assert_eq!(output.status.code(), Some(127), "{output:?}");
        assert!(!place.base().join("a").exists(), "{command}");
    }
    // What was there stays, and so does what somebody has put there meanwhile.
    fs::create_dir_all(&deep).unwrap();
    let output = place.command().arg("--snapshot-dir").arg(&deep).arg("./script").output().unwrap();
    assert_eq!(output.status.code(), Some(127));
    assert!(deep.exists());
}

#[test]
fn a_file_that_somebody_else_has_made_of_a_directory_is_told_and_left_out() {
    let place = Place::new();
    fs::create_dir(place.work.join("d")).unwrap();
    fs::write(place.work.join("d/f"), "beneath\n").unwrap();
    let mut command = place.command();
    command.arg("--snapshot-dir").arg(&place.out);
    command.args(["sh", "-c", "cat d/f; read line; cat d; cat other"]);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut seen = [0; 8];
    child.stdout.as_mut().unwrap().read_exact(&mut seen).unwrap();
    fs::remove_dir_all(place.work.join("d")).unwrap();
    fs::write(place.work.join("d"), "instead\n").unwrap();
    drop(child.stdin.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.stdout, b"instead\n");
    let snapshot = place.snapshot();
    assert_eq!(place.recorded(&snapshot), ["d/f read", "other existence"]);
    assert_eq!(lost(&snapshot), [WarningKind::ExternalChange]);
}

/// Numbers that a failure can be repeated with (xorshift64).
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 >> 16).unwrap() % limit
    }
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

/// Does to the tree what nobody sees: changes, moves, replaces and removes whatever is there.
fn meddle(work: &Path, random: &mut Random) {
    let all = names(work);
    let path = &all[random.below(all.len())];
    let other = &all[random.below(all.len())];
    // Whatever of it fails, fails.
    let _ = match random.below(9) {
        0 => fs::remove_file(path),
        1 => fs::remove_dir_all(path),
        2 => fs::rename(path, other),
        3 => fs::create_dir(path),
        4 => std::os::unix::fs::symlink(other, path),
        5 => fs::hard_link(path, other),
        6 if !path.is_dir() => fs::remove_file(path).and_then(|()| fs::create_dir(path)),
        7 => fs::remove_dir_all(path).and_then(|()| fs::write(path, "outside\n")),
        _ if !path.exists() || path.is_file() => fs::write(path, vec![b'x'; random.below(1 << 17)]),
        _ => Ok(()),
    };
}

/// Records a random program while somebody else works in the same directory; the manifest must be one
/// that we read, whatever it says.
fn record_meddled(seed: u64) {
    let place = Place::new();
    let program = program("truth_random");
    let setup = Command::new(&program).args(["--setup", &seed.to_string()]).current_dir(&place.work).status();
    assert!(setup.unwrap().success());
    let mut command = place.command();
    command.arg("--snapshot-dir").arg(&place.out).arg("--quiet");
    command.args(["sh", "-c", r#""$@"; find . -type f -exec cat {} + ; ls -lR; rm -rf a; cp -r b c; mv b d; find . -exec stat {} +"#, "sh"]);
    command.arg(&program).args([&seed.to_string(), "race"]);
    command.stdout(Stdio::null()).stderr(Stdio::null());
    let mut child = command.spawn().unwrap();
    let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
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
fn whatever_somebody_else_does_meanwhile_the_manifest_is_readable() {
    (0..12).for_each(record_meddled);
}

#[test]
#[ignore = "slow: hundreds of recordings"]
fn slow_whatever_somebody_else_does_meanwhile_the_manifest_is_readable() {
    (1000..1300).for_each(record_meddled);
}

/// How much a recording of so many paths takes at its peak, the manifest's writing included, and a
/// short line about it: `cargo test --release --test main a_million -- --ignored --nocapture`.
#[test]
#[ignore = "slow: an instrument, to be run alone"]
fn a_million_paths_take_less_than_400_bytes_each() {
    let peak = |count: usize| {
        let place = Place::new();
        let mut command = place.command();
        command.arg("--snapshot-dir").arg(&place.out).arg("--quiet").arg(program("same_ways"));
        assert!(command.arg("many").arg(count.to_string()).status().unwrap().success());
        let length = fs::metadata(place.out.join("manifest.json")).unwrap().len();
        let snapshot = place.snapshot();
        assert!(snapshot.files().len() > count);
        // Of all children that were waited for, the largest: the tracing process.
        let usage = nix::sys::resource::getrusage(nix::sys::resource::UsageWho::RUSAGE_CHILDREN).unwrap();
        (usize::try_from(usage.max_rss()).unwrap() << 10, length)
    };
    let (little, _) = peak(1000);
    let (much, manifest) = peak(1_000_000);
    let each = (much - little) / 1_000_000;
    println!("peak {} MiB, {each} bytes a path, a manifest of {} MiB", much >> 20, manifest >> 20);
    assert!(each < 400, "{each} bytes a path");
}
