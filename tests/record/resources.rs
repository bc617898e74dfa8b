//! Limits of the machine and of the process: disk space, file sizes, descriptors, memory, threads.

use std::io::{Read as _, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::process::{Command, Output};
use std::{env, fs};

use agent_snapshot::snapshot::{BlobOmitted, Snapshot, WarningKind};

use crate::support::{BINARY, Place, SmallFilesystem, User, bytes, lost, program, rounds, stderr};

#[test]
fn full_disk_stops_the_capture_and_not_the_command() {
    let place = Place::new();
    let Some(_small) = SmallFilesystem::at(&place.out, "size=4m") else { return };
    let mut noise = vec![0; 12 << 20];
    fs::File::open("/dev/urandom").unwrap().read_exact(&mut noise).unwrap();
    place.write("big", &noise);
    let output = place.record_with(&[], "cat big > copy; cmp big copy && echo same");
    let snapshot = place.snapshot();
    assert_eq!(output.stdout, b"same\n");
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let copy = place.file(&snapshot, "copy").after.present().unwrap();
    assert_eq!(copy.blob_omitted, Some(BlobOmitted::NoSpace));
    assert!(copy.digest.is_some());
    assert_eq!(lost(&snapshot), [WarningKind::ContentOmitted]);
}

#[test]
fn disk_too_full_for_the_manifest_leaves_the_command_and_the_old_snapshot_alone() {
    let place = Place::new();
    let Some(_small) = SmallFilesystem::at(&place.out, "size=256k") else { return };
    place.record("echo one > file");
    let before = fs::read(place.out.join("manifest.json")).unwrap();
    let script = "i=0; while [ $i -lt 4000 ]; do test -e a/path/that/is/not/there/$i; i=$((i + 1)); done; echo done; exit 3";
    let output = place.record_with(&[], script);
    assert_eq!(output.stdout, b"done\n");
    assert_eq!(output.status.code(), Some(125), "{}", stderr(&output));
    assert!(stderr(&output).contains("no snapshot was written"), "{}", stderr(&output));
    assert!(stderr(&output).contains("manifest.json"), "{}", stderr(&output));
    assert_eq!(fs::read(place.out.join("manifest.json")).unwrap(), before);
    let names = fs::read_dir(&place.out).unwrap().map(|entry| entry.unwrap().file_name());
    let shown: Vec<_> = names.filter(|name| !name.as_encoded_bytes().starts_with(b".")).collect();
    assert_eq!(shown.len(), 2, "{shown:?}");
    assert!(stderr(&output).contains("agent-snapshot recover "), "{}", stderr(&output));
}

#[test]
fn full_disk_that_takes_no_journal_offers_no_recovery() {
    let place = Place::new();
    let small = place.at("small");
    let Some(_mounted) = SmallFilesystem::at(&small, "size=256k") else { return };
    let fill = fs::write(small.join("filler"), vec![1; 1 << 20]);
    assert_eq!(fill.unwrap_err().kind(), std::io::ErrorKind::StorageFull);
    let mut command = place.program(BINARY);
    let output =
        command.arg("--snapshot-dir").arg(small.join("out")).args(["sh", "-c", "echo done"]).output();
    let output = output.unwrap();
    assert_eq!((output.status.code(), output.stdout.as_slice()), (Some(125), &b"done\n"[..]));
    let said = stderr(&output);
    assert!(said.contains("there is no journal from which one could be made"), "{said}");
    assert!(!small.join("out").exists());
}

/// Records a script under a limit on the length of files, of so many blocks of 512 bytes.
fn record_limited(place: &Place, limit: &str, script: &str) -> Output {
    let script = format!(
        "ulimit -c 0; ulimit {limit}; exec {} --snapshot-dir {} sh -c '{script}'",
        place.executable(BINARY.as_ref()).display(),
        place.out.display()
    );
    place.program("sh").args(["-c", &script]).output().unwrap()
}

/// Whether we may raise a hard limit, by CAP_SYS_RESOURCE.
fn may_raise_limits() -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:\t")).unwrap();
    u64::from_str_radix(effective, 16).unwrap() >> 24 & 1 == 1
}

#[test]
fn file_size_limit_applies_to_the_command_alone() {
    let mut noise = vec![0; 3 << 20];
    fs::File::open("/dev/urandom").unwrap().read_exact(&mut noise).unwrap();
    let limits = [("-S -f 2048", "2048\nunlimited\n"), ("-f 2048", "2048\n2048\n")];
    for (user, (limit, seen)) in User::all().iter().flat_map(|user| limits.map(|limit| (*user, limit))) {
        let place = Place::of(user);
        place.write("big", &noise);
        place.write("small", "small\n");
        let script = "cat big small > /dev/null; ulimit -f; ulimit -Hf
            (cat big > copy) 2> /dev/null; echo $?; : > big; wc -c < copy";
        let output = record_limited(&place, limit, script);
        let said = String::from_utf8_lossy(&output.stdout);
        assert_eq!(said, format!("{seen}153\n1048576\n"), "{}", stderr(&output));
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        let snapshot = place.snapshot();
        assert_eq!(bytes(&snapshot, place.file(&snapshot, "small"), true), b"small\n");
        let big = place.file(&snapshot, "big").before.present().unwrap();
        if limit.starts_with("-S") || user.is_root() && may_raise_limits() {
            assert_eq!(lost(&snapshot), []);
            assert!(bytes(&snapshot, place.file(&snapshot, "big"), true) == noise);
        } else {
            // The limit applies to the recorder, too.
            assert_eq!(lost(&snapshot), [WarningKind::ContentOmitted]);
            assert_eq!(big.blob_omitted, Some(BlobOmitted::NoSpace));
            assert!(big.digest.is_some());
        }
    }
}

#[test]
fn manifest_over_the_file_size_limit_does_not_affect_the_command() {
    // Root may raise the limit.
    let place = Place::of(User::ordinary());
    let output = record_limited(&place, "-f 0", "test -e a; echo done; exit 3");
    assert_eq!(output.stdout, b"done\n");
    assert_eq!(output.status.code(), Some(125), "{}", stderr(&output));
    assert!(stderr(&output).contains("manifest.json"), "{}", stderr(&output));
    assert!(!place.out.join("manifest.json").exists());
}

#[test]
fn memory_does_not_grow_with_stored_content() {
    let place = Place::new();
    let file = fs::File::create(place.at("big")).unwrap();
    let mut noise = vec![0; 1 << 20];
    fs::File::open("/dev/urandom").unwrap().read_exact(&mut noise).unwrap();
    for round in 0..96u8 {
        noise[0] = round;
        (&file).write_all(&noise).unwrap();
    }
    let script = "cat big > copy; grep VmHWM /proc/$(sed -n 's/TracerPid:\\t//p' /proc/self/status)/status";
    let output = place.record_with(&["--max-read-bytes", "1G"], script);
    let text = String::from_utf8(output.stdout).unwrap();
    let kib: u64 = text.split_whitespace().nth(1).unwrap().parse().unwrap();
    // Two row groups and what compresses them take 72 MiB, and the pages of the program 30 MiB.
    assert!(kib < 120 << 10, "{text}");
    let snapshot = place.snapshot();
    assert_eq!(bytes(&snapshot, place.file(&snapshot, "copy"), false).len(), 96 << 20);
    assert_eq!(
        place.file(&snapshot, "copy").after.present().unwrap().blob.as_deref(),
        Some(&*format!("before:{}", String::from_utf8_lossy(&place.path("big"))))
    );
}

/// How much a recording of so many paths takes at its peak, the manifest's writing included, and a
/// short line about it: `cargo test --release --test main a_million -- --ignored --nocapture`.
#[test]
#[ignore = "slow"]
fn slow_a_million_paths_take_less_than_400_bytes_each() {
    // The kernel reports the largest of the children that a process has waited for: so it has only the
    // recorder.
    if env::var_os("AGENT_SNAPSHOT_TEST_PEAK").is_none() {
        let itself = "record::resources::slow_a_million_paths_take_less_than_400_bytes_each";
        let mut alone = Command::new(env::current_exe().unwrap());
        alone.args(["--exact", itself, "--ignored", "--nocapture"]).env("AGENT_SNAPSHOT_TEST_PEAK", "1");
        assert!(alone.status().unwrap().success());
        return;
    }
    let peak = |count: usize| {
        let place = Place::new();
        let mut command = place.recording();
        command.arg("--quiet").arg(program("bypass"));
        assert!(command.arg("many").arg(count.to_string()).status().unwrap().success());
        let length = fs::metadata(place.out.join("manifest.json")).unwrap().len();
        let snapshot = place.snapshot();
        assert!(snapshot.files().len() > count);
        let usage = nix::sys::resource::getrusage(nix::sys::resource::UsageWho::RUSAGE_CHILDREN).unwrap();
        (usize::try_from(usage.max_rss()).unwrap() << 10, length)
    };
    let (little, _) = peak(1000);
    let count = rounds(1_000_000);
    let (much, manifest) = peak(count);
    let each = (much - little) / count;
    println!("peak {} MiB, {each} bytes a path, a manifest of {} MiB", much >> 20, manifest >> 20);
    assert!(each < 400, "{each} bytes a path");
}

#[test]
fn descriptor_limit_applies_to_the_command_alone() {
    let place = Place::new();
    for number in 0..300 {
        place.write(&format!("f{number}"), vec![b'x'; 100_000 + number]);
    }
    let script = format!(
        "ulimit -n 64; exec {BINARY} --snapshot-dir {} sh -c 'ulimit -n; rm f*; ulimit -Hn'",
        place.out.display()
    );
    let mut command = place.program("sh");
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
    let mut command = place.program("timeout");
    command.args(["--kill-after=5", "60", "bash", "-c", script]).env("read_only", program("read_only"));
    let output = command.env("record", if recorded { &record } else { "" }).output().unwrap();
    assert!(output.status.success(), "{script}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn command_keeps_its_limits_and_the_tracer_raises_its_own() {
    let limits = "ulimit -S -t 50 -v 4000000 -d 3000000 -s 4096 -n 500 -i 100 -l 32 -f 100000";
    let alone = run_script(&Place::new(), false, &format!("{limits}; $record cat /proc/self/limits"));
    let place = Place::new();
    let recorded = run_script(&place, true, &format!("{limits}; $record cat /proc/self/limits"));
    assert_eq!(recorded, alone);
    let tracer = r#"sh -c 'cat /proc/$(sed -n "s/TracerPid:.//p" /proc/self/status)/limits'"#;
    let tracers = run_script(&place, true, &format!("{limits}; $record {tracer}"));
    for line in tracers
        .lines()
        .skip(1)
        .filter(|line| !["core", "nice", "realtime"].iter().any(|name| line.contains(name)))
    {
        let columns: Vec<_> = line[26..].split_whitespace().collect();
        assert_eq!(columns[0], columns[1], "{line}");
    }
    assert!(tracers.contains("Max cpu time"), "{tracers}");
}

#[test]
fn soft_limits_below_the_recorders_needs_are_raised() {
    // Enough to execute the program, and too little for its buffers.
    let address_space = fs::metadata(BINARY).unwrap().len() / 1024 + 8000;
    for limit in [&format!("-v {address_space}"), "-d 4000", "-t 1"] {
        let place = Place::new();
        let script = format!("ulimit -S {limit}; exec $record sh -c 'read line < /etc/passwd; echo done'");
        assert_eq!(run_script(&place, true, &script), "done\n", "{limit}");
        assert_eq!(lost(&place.snapshot()), [], "{limit}");
    }
}

#[test]
fn threads_open_files_without_queued_signals() {
    let place = Place::new();
    assert_eq!(run_script(&place, true, "ulimit -i 0; exec $record $read_only threads"), "opened\n");
    assert_eq!(place.recorded(&place.snapshot()), ["opened read+write"]);
}

#[test]
fn umask_applies_to_the_command_alone() {
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
fn content_is_stored_without_new_threads() {
    // Root has no limit of processes.
    let place = Place::of(User::ordinary());
    let content = |number: usize| vec![b'a' + u8::try_from(number).unwrap(); 17 << 20];
    for number in 0..3 {
        place.write(&format!("f{number}"), content(number));
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
