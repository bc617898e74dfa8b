//! What goes wrong around a recording: nothing to execute, no space, no rights, no descriptors, too much
//! of everything. The command runs on as if alone, and what is lost is told.

use std::env;
use std::fs;
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use agent_snapshot::snapshot::{Snapshot, WarningKind};

use crate::support::{BINARY, Place, bytes, is_root, lost, stderr};

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
    // A link may lead out, by /proc/self/cwd for one, to where this process is; and the program may have
    // removed the directory itself.
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
        4 => std::os::unix::fs::symlink(other, path),
        5 => fs::hard_link(path, other),
        6 if !path.is_dir() => fs::remove_file(path).and_then(|()| fs::create_dir(path)),
        7 => fs::remove_dir_all(path).and_then(|()| fs::write(path, "outside\n")),
        _ if is_free_or_file => fs::write(path, vec![b'x'; random.below(1 << 17)]),
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
#[ignore = "slow"]
fn a_million_paths_take_less_than_400_bytes_each() {
    // Of all children that a process has waited for, the kernel tells the largest: it has none but ours.
    if env::var_os("AGENT_SNAPSHOT_TEST_PEAK").is_none() {
        let itself = "record::resources::a_million_paths_take_less_than_400_bytes_each";
        let mut alone = Command::new(env::current_exe().unwrap());
        alone.args(["--exact", itself, "--ignored", "--nocapture"]).env("AGENT_SNAPSHOT_TEST_PEAK", "1");
        assert!(alone.status().unwrap().success());
        return;
    }
    let peak = |count: usize| {
        let place = Place::new();
        let mut command = place.command();
        command.arg("--snapshot-dir").arg(&place.out).arg("--quiet").arg(program("same_ways"));
        assert!(command.arg("many").arg(count.to_string()).status().unwrap().success());
        let length = fs::metadata(place.out.join("manifest.json")).unwrap().len();
        let snapshot = place.snapshot();
        assert!(snapshot.files().len() > count);
        let usage = nix::sys::resource::getrusage(nix::sys::resource::UsageWho::RUSAGE_CHILDREN).unwrap();
        (usize::try_from(usage.max_rss()).unwrap() << 10, length)
    };
    let (little, _) = peak(1000);
    let (much, manifest) = peak(1_000_000);
    let each = (much - little) / 1_000_000;
    println!("peak {} MiB, {each} bytes a path, a manifest of {} MiB", much >> 20, manifest >> 20);
    assert!(each < 400, "{each} bytes a path");
}

#[test]
fn a_limit_of_64_descriptors_is_the_commands_alone() {
    let place = Place::new();
    for number in 0..300 {
        fs::write(place.work.join(format!("f{number}")), vec![b'x'; 100_000 + number]).unwrap();
    }
    let script = format!(
        "ulimit -n 64; exec {BINARY} --snapshot-dir {} sh -c 'ulimit -n; rm f*; ulimit -Hn'",
        place.out.display()
    );
    let mut command = Command::new("sh");
    place.isolate(&mut command);
    let output = command.args(["-c", &script]).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout), "64\n64\n", "{}", stderr(&output));
    let snapshot = place.snapshot();
    assert_eq!(lost(&snapshot), []);
    for number in 0..300 {
        let file = place.file(&snapshot, format!("f{number}"));
        assert_eq!(bytes(&snapshot, file, true).len(), 100_000 + number);
    }
}

/// Runs a script of bash in which `$record` is nothing, or the start of a recording; what it printed.
fn run_script(place: &Place, recorded: bool, script: &str) -> String {
    let record = format!("{BINARY} --snapshot-dir {}", place.out.display());
    let mut command = Command::new("timeout");
    place.isolate(&mut command);
    command.args(["--kill-after=5", "60", "bash", "-c", script]).env("looks", program("same_looks"));
    let output = command.env("record", if recorded { &record } else { "" }).output().unwrap();
    assert!(output.status.success(), "{script}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn limits_are_the_commands_and_ours_are_as_high_as_may_be() {
    let limits = "ulimit -S -t 50 -v 4000000 -d 3000000 -s 4096 -n 500 -i 100 -l 32 -f 100000";
    let alone = run_script(&Place::new(), false, &format!("{limits}; $record cat /proc/self/limits"));
    let place = Place::new();
    let recorded = run_script(&place, true, &format!("{limits}; $record cat /proc/self/limits"));
    assert_eq!(recorded, alone);
    let tracer = r#"sh -c 'cat /proc/$(sed -n "s/TracerPid:.//p" /proc/self/status)/limits'"#;
    let ours = run_script(&place, true, &format!("{limits}; $record {tracer}"));
    for line in ours
        .lines()
        .skip(1)
        .filter(|line| !["core", "nice", "realtime"].iter().any(|name| line.contains(name)))
    {
        let columns: Vec<_> = line[26..].split_whitespace().collect();
        assert_eq!(columns[0], columns[1], "{line}");
    }
    assert!(ours.contains("Max cpu time"), "{ours}");
}

#[test]
fn a_soft_limit_that_we_would_exceed_ends_no_recording() {
    for limit in ["-v 50000", "-d 4000", "-t 1"] {
        let place = Place::new();
        let script = format!("ulimit -S {limit}; exec $record sh -c 'read line < /etc/passwd; echo done'");
        assert_eq!(run_script(&place, true, &script), "done\n", "{limit}");
        assert_eq!(lost(&place.snapshot()), [], "{limit}");
    }
}

#[test]
fn opens_of_threads_are_answered_though_no_signal_may_be_queued() {
    let place = Place::new();
    assert_eq!(run_script(&place, true, "ulimit -i 0; exec $record $looks threads"), "opened\n");
    assert_eq!(place.recorded(&place.snapshot()), ["opened read+write"]);
}

#[test]
fn a_umask_that_lets_nobody_in_is_the_commands_alone() {
    let place = Place::new();
    let script = "umask 0777; exec $record/a/b sh -c 'umask; mkdir d; : > f; ls -ld d f | cut -c 1-10'";
    assert_eq!(run_script(&place, true, script), "0777\nd---------\n----------\n");
    let snapshot = Snapshot::open(&place.out.join("a/b")).unwrap();
    assert_eq!(place.recorded(&snapshot), ["d write+existence+directory", "f write+existence"]);
    let mode = |path: PathBuf| fs::metadata(path).unwrap().permissions().mode() & 0o7777;
    assert_eq!(mode(place.out.join("a")), 0o700);
    assert_eq!(mode(place.out.join("a/b")), 0o700);
    assert_eq!(mode(place.out.join("a/b/manifest.json")), 0o600);
}

#[test]
fn ten_mebibytes_of_arguments_are_passed_and_cut_in_the_manifest() {
    let place = Place::new();
    // Half of the stack may be arguments, and one is at most 128 KiB.
    let script = format!(
        "ulimit -s unlimited 2> /dev/null || ulimit -s 65536 || exit 77; a=$(head -c 100000 /dev/zero | tr '\\0' x)
         set --; i=0; while [ $i -lt 100 ]; do set -- \"$@\" $a; i=$((i + 1)); done
         exec {BINARY} --snapshot-dir {} sh -c 'echo $#; env echo \"$@\" | wc -c' \"$@\" last",
        place.out.display()
    );
    let mut command = Command::new("bash");
    place.isolate(&mut command);
    let output = command.args(["-c", &script]).output().unwrap();
    if output.status.code() == Some(77) || stderr(&output).contains("Argument list too long") {
        println!("skipped: so many arguments are not to be had here");
        return;
    }
    assert!(output.status.success(), "{}", stderr(&output));
    let said = String::from_utf8(output.stdout).unwrap();
    assert_eq!(
        said.split_whitespace().map(|word| word.parse().unwrap()).collect::<Vec<usize>>(),
        [100, 99 * 100_001 + 5]
    );
    let snapshot = place.snapshot();
    let images =
        snapshot.header().processes.iter().flat_map(|process| process.execs.iter().chain([&*process.image]));
    assert!(images.clone().any(|image| image.argv_truncated));
    assert!(images.clone().all(|image| image.argv.iter().map(Vec::len).sum::<usize>() <= 64 << 10));
    assert!(snapshot.header().complete);
}

#[test]
fn a_directory_that_can_not_be_written_is_refused_before_the_command() {
    let place = Place::new();
    let dir = place.base().join("dir");
    fs::create_dir(&dir).unwrap();
    fs::set_permissions(&dir, fs::Permissions::from_mode(0o555)).unwrap();
    let below = if nix::unistd::geteuid().is_root() { "/proc/sys/out".into() } else { dir.join("out") };
    let output = place.command().arg("--snapshot-dir").arg(&below).args(["touch", "ran"]).output().unwrap();
    assert_eq!(output.status.code(), Some(125));
    assert!(stderr(&output).contains(below.to_str().unwrap()), "{}", stderr(&output));
    assert!(!place.work.join("ran").exists());
}

/// A small file system at `out`, which is unmounted in the end.
struct Small<'a>(&'a Place);

impl<'a> Small<'a> {
    fn mount(place: &'a Place, options: &str) -> Option<Small<'a>> {
        if !is_root("a small file system") {
            return None;
        }
        fs::create_dir(&place.out).unwrap();
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", options, "tmpfs"]).arg(&place.out);
        if !mount.status().is_ok_and(|status| status.success()) {
            println!("skipped: mount is not allowed here");
            return None;
        }
        Some(Small(place))
    }
}

impl Drop for Small<'_> {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0.out).status();
    }
}

#[test]
fn a_disk_too_full_for_a_manifest_is_a_failure_of_ours_alone() {
    let place = Place::new();
    let Some(_small) = Small::mount(&place, "size=64k") else { return };
    let script = "i=0; while [ $i -lt 2000 ]; do test -e a/path/that/is/not/there/$i; i=$((i + 1)); done; echo done; exit 3";
    let output = place.record_with(&[], script);
    assert_eq!(output.stdout, b"done\n");
    assert_eq!(output.status.code(), Some(125), "{}", stderr(&output));
    assert!(stderr(&output).contains("no snapshot was written"), "{}", stderr(&output));
    assert!(stderr(&output).contains("manifest.json"), "{}", stderr(&output));
    assert_eq!(fs::read_dir(&place.out).unwrap().count(), 0);
}

#[test]
fn a_file_system_that_becomes_read_only_is_a_failure_of_ours_alone() {
    let place = Place::new();
    let Some(_small) = Small::mount(&place, "size=4m") else { return };
    place.record("echo one > file");
    let before = fs::read(place.out.join("manifest.json")).unwrap();
    let script = format!("echo two > file; mount -o remount,ro {}; echo $?", place.out.display());
    let output = place.record_with(&[], &script);
    if output.stdout != b"0\n" {
        println!("skipped: a file is still open for writing: {}", stderr(&output));
        return;
    }
    assert_eq!(output.status.code(), Some(125), "{}", stderr(&output));
    assert_eq!(fs::read(place.out.join("manifest.json")).unwrap(), before, "the older one is whole");
}

#[test]
fn where_no_thread_can_be_started_any_more_contents_are_stored_all_the_same() {
    if nix::unistd::geteuid().is_root() {
        println!("skipped: root has no limit of processes");
        return;
    }
    let place = Place::new();
    let content = |number: usize| vec![b'a' + u8::try_from(number).unwrap(); 17 << 20];
    for number in 0..3 {
        fs::write(place.work.join(format!("f{number}")), content(number)).unwrap();
    }
    // The tracing process has its threads of the start by now, and gets no other.
    let snapshot = place.record(
        "prlimit --nproc=1 --pid $(sed -n 's/TracerPid:\\t//p' /proc/self/status); exec cat f0 f1 f2 > /dev/null",
    );
    for number in 0..3 {
        let file = place.file(&snapshot, format!("f{number}"));
        assert!(bytes(&snapshot, file, true) == content(number));
    }
}
