//! Mounts that the tree makes in the namespace that it was started in.

use std::ffi::OsString;
use std::fs;
use std::process::{Command, Output, Stdio};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use agent_snapshot::snapshot::{Operations, WarningKind};

use crate::support::{BINARY, Place, bytes, can_mount, has, lost, numbered, shown};
use crate::truth::record_exactly;

/// What the environment of all processes of one recording has.
const MARK: &str = "AGENT_SNAPSHOT_TEST_MOUNTS";

/// Records `script` in a mount namespace that the recorder itself is in, so that nothing stays mounted. All
/// of it is killed when it does not end within a minute.
fn record_in_own_namespace(place: &Place, options: &[&str], script: &str) -> Output {
    let mark = place.base().to_str().unwrap();
    let mut command = place.program("unshare");
    command.args(["-m", BINARY, "--snapshot-dir"]).arg(&place.out).args(options);
    command.args(["sh", "-c", script]).env(MARK, mark).stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = command.spawn().unwrap();
    let (ended, end) = channel::<()>();
    std::thread::scope(|scope| {
        let guard = scope.spawn(move || {
            let late = end.recv_timeout(Duration::from_secs(60)) == Err(RecvTimeoutError::Timeout);
            if late {
                kill_marked(mark);
            }
            late
        });
        let output = child.wait_with_output().unwrap();
        drop(ended);
        assert!(!guard.join().unwrap(), "it did not end: {output:?}");
        output
    })
}

/// Kills every process with the mark: a process that waits for a filesystem ends with who serves that.
fn kill_marked(mark: &str) {
    let mark = format!("{MARK}={mark}");
    for process in fs::read_dir("/proc").unwrap().flatten() {
        let Some(pid) = process.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        let environment = fs::read(process.path().join("environ")).unwrap_or_default();
        if environment.split(|byte| *byte == 0).any(|variable| variable == mark.as_bytes()) {
            let _ = nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), nix::sys::signal::SIGKILL);
        }
    }
}

#[test]
fn filesystem_served_by_a_tracee_does_not_deadlock() {
    // In the namespace of the recorder, and in one that the command makes.
    for (mechanism, shell) in
        [("auto", "sh"), ("stops", "sh"), ("auto", "unshare -m sh"), ("stops", "unshare -m sh")]
    {
        let place = Place::new();
        if !can_mount() {
            return;
        }
        if !has("bindfs") || !fs::exists("/dev/fuse").unwrap() {
            return;
        }
        for name in ["src", "mnt"] {
            fs::create_dir(place.at(name)).unwrap();
        }
        fs::write(place.at("src/f"), "content\n").unwrap();
        // Single-threaded, so that one call of the daemon holds up all others.
        let script = "bindfs --no-allow-other -s src mnt || exit; cat mnt/f; cd mnt; ls; echo new >g; cat ../src/g <f; cd ..
            mv mnt/g mnt/h; ln -s h mnt/l; cat mnt/l; cp /bin/true mnt/t; mnt/t; cat mnt/no/such; umount mnt && echo unmounted";
        let script = format!("exec {shell} -c '{script}'");
        let output = record_in_own_namespace(&place, &["--mechanism", mechanism], &script);
        assert_eq!(
            String::from_utf8_lossy(&output.stdout),
            "content\nf\nnew\nnew\nunmounted\n",
            "{mechanism}: {output:?}"
        );
        let snapshot = place.snapshot();
        // What the daemon does is seen, whoever asked for it.
        assert_eq!(bytes(&snapshot, place.file(&snapshot, "src/h"), false), b"new\n");
        assert_eq!(bytes(&snapshot, place.file(&snapshot, "src/f"), true), b"content\n");
        let recorded = place.recorded(&snapshot);
        assert!(!recorded.iter().any(|record| record.starts_with("mnt/")), "{recorded:?}");
        assert_eq!(lost(&snapshot), [WarningKind::MountNamespace], "{mechanism} {shell}");
    }
}

/// Records `script` in a namespace of its own, and then undoes it in the one of the test.
fn record_and_undo(place: &Place, script: &str) -> agent_snapshot::snapshot::Snapshot {
    let output = record_in_own_namespace(place, &[], script);
    assert!(output.status.success(), "{output:?}");
    let snapshot = place.snapshot();
    place.verb("restore", &["--before"]).expect(0);
    snapshot
}

#[test]
fn content_of_an_unmounted_filesystem_is_not_that_of_the_mount_point() {
    let place = Place::new();
    if !can_mount() {
        return;
    }
    for name in ["d", "e", "late"] {
        fs::create_dir(place.at(name)).unwrap();
        fs::write(place.at(name).join("f"), "precious\n").unwrap();
    }
    let snapshot = record_and_undo(
        &place,
        "cat e/f; mount -t tmpfs x d; echo over >d/f; echo other >d/g; umount d
         mount -t tmpfs x e; echo over >e/f; umount e; echo changed >e/f
         cat late/f; mount -t tmpfs x late; rm -f late/f; echo done >result",
    );
    for name in ["d/f", "e/f", "late/f"] {
        assert_eq!(fs::read_to_string(place.at(name)).unwrap(), "precious\n", "{name}");
    }
    assert!(!place.at("result").exists());
    assert_eq!(lost(&snapshot), []);
    let recorded = place.recorded(&snapshot);
    assert!(!recorded.iter().any(|record| record.starts_with("d/")), "{recorded:?}");
    assert_eq!(bytes(&snapshot, place.file(&snapshot, "e/f"), true), b"precious\n");
    let late = place.file(&snapshot, "late/f");
    assert_eq!(late.before, late.after);
}

#[test]
fn filesystem_with_a_reused_device_number_is_another() {
    let place = Place::new();
    if !can_mount() {
        return;
    }
    fs::create_dir(place.at("d")).unwrap();
    // It stays mounted, as long as its namespace does.
    let output = record_in_own_namespace(
        &place,
        &[],
        "mount -t proc x d && stat -c %d d && cat d/version && umount d && mount -t tmpfs x d && stat -c %d d && echo bytes >d/f",
    );
    assert!(output.status.success(), "{output:?}");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let mut lines = said.lines();
    if lines.next() != lines.last() {
        return println!("skipped: the device number was not reused");
    }
    let snapshot = place.snapshot();
    assert_eq!(bytes(&snapshot, place.file(&snapshot, "d/f"), false), b"bytes\n");
}

#[test]
fn file_with_two_names_by_a_bind_mount_is_one_file() {
    let place = Place::new();
    if !can_mount() {
        return;
    }
    for name in ["a", "b"] {
        fs::create_dir(place.at(name)).unwrap();
    }
    fs::write(place.at("a/f"), "old\n").unwrap();
    record_in_own_namespace(&place, &[], "cat a/f; mount --bind a b; cat b/f");
    assert_eq!(lost(&place.snapshot()), []);
    let snapshot =
        record_and_undo(&place, "echo new >a/f; mount --bind a b; echo newer >b/f; echo x >b/g; umount b");
    assert_eq!(lost(&snapshot), []);
    assert_eq!(place.recorded(&snapshot), ["a existence", "a/f write", "a/g write", "b existence"]);
    assert_eq!(bytes(&snapshot, place.file(&snapshot, "a/f"), true), b"old\n");
    assert_eq!(bytes(&snapshot, place.file(&snapshot, "a/f"), false), b"newer\n");
    assert_eq!(fs::read(place.at("a/f")).unwrap(), b"old\n");
    assert!(!place.at("a/g").exists());
}

#[test]
fn overlay_on_a_filesystem_that_the_command_mounted_is_private() {
    let place = Place::new();
    if !can_mount() {
        return;
    }
    let script = "mkdir t && mount -t tmpfs tmpfs t && cd t && mkdir low up work m && \
        mount -t overlay overlay -o lowerdir=low,upperdir=up,workdir=work m && echo new > m/f && cd .. && umount t/m t";
    if !Place::new().can_run(&["unshare", "-m", "sh", "-c", script]) {
        return;
    }
    let snapshot = record_and_undo(&place, script);
    assert_eq!(lost(&snapshot), []);
    assert_eq!(place.recorded(&snapshot), ["t write+existence+directory"]);
    assert!(!place.at("t").exists());
}

#[test]
fn overlay_on_a_recorded_directory_is_that_directory() {
    let place = Place::new();
    if !can_mount() {
        return;
    }
    let set_up = "mkdir -p low up m ../internal; echo low > low/f; echo gone > low/gone";
    let script = "mount -t overlay overlay -o lowerdir=low,upperdir=up,workdir=../internal m && \
        echo new > m/new && echo more >> m/f && rm m/gone && umount m";
    let other = Place::new();
    other.prepare(set_up);
    if !other.can_run(&["unshare", "-m", "sh", "-c", script]) {
        return;
    }
    place.prepare(set_up);
    let snapshot = record_and_undo(&place, script);
    assert_eq!(lost(&snapshot), []);
    let changes = snapshot.files().iter().filter(|file| file.operations.intersects(Operations::CHANGES));
    let changed: Vec<_> =
        changes.map(|file| file.path.clone()).filter(|path| path.starts_with(&place.path(""))).collect();
    assert_eq!(changed, ["up", "up/f", "up/gone", "up/new"].map(|name| place.path(name)));
    assert_eq!(fs::read_dir(place.at("up")).unwrap().count(), 0);
}

/// Mounts `other` at its argument and unmounts it, 300 times: mount(2) and umount2(2) without a program for each.
const BUSY: &str = r#"my ($from, $to) = ("other", @ARGV);
    for (1..300) {
        syscall(SYS_mount, $from, $to, 0, 0x1000, 0) == 0 or die "mount: $!";
        syscall(SYS_umount2, $to, 2) == 0 or die "umount2: $!";
    }"#;

/// The command that runs `script` in `sandbox`, with `perl` as `$1`, below a recorder that has mounts of its own if
/// `is_shared`, or alone.
fn sandboxed(place: &Place, sandbox: &[&str], is_shared: bool, is_recorded: bool, words: &[&str]) -> Command {
    let recorder = place.recorder("auto");
    let mut outer: Vec<OsString> = Vec::new();
    if is_shared {
        outer.extend(["unshare", "-m"].map(OsString::from));
    }
    if is_recorded {
        outer.push(recorder.get_program().to_owned());
        outer.extend(recorder.get_args().map(ToOwned::to_owned));
    }
    outer.extend(sandbox.iter().chain(words).map(OsString::from));
    let mut command = place.program(&outer[0]);
    command.args(&outer[1..]);
    command
}

#[test]
fn mounts_may_change_while_files_do() {
    let script = r#"mount --bind src view
        for point in busy1 busy2; do perl -e "$1" $point & done
        i=0; while [ $i -lt 60 ]; do
            i=$((i + 1)); echo $i > view/f$i; echo more >> src/f$i; mv view/f$i view/g$i
            test $((i % 2)) = 0 || rm view/g$i; cat busy1/x busy2/x view/l > /dev/null 2>&1 || :
        done
        wait; umount view"#;
    let busy = numbered(BUSY);
    let words = ["sh", "-euc", script, "sh", &busy];
    let set_up = |place: &Place| {
        place.prepare(
            "mkdir src other busy1 busy2 view; echo l > src/l; echo x > other/x
            for i in $(seq 60); do echo old > src/f$i; done",
        );
    };
    // In a namespace of its own, and in that of the recorder.
    for (sandbox, is_shared) in [(&["unshare", "-rm"][..], false), (&[], true)] {
        let [alone, place] = [Place::new(), Place::new()];
        if is_shared && !can_mount() || !place.can_run(&["unshare", "-rm", "perl", "-e", ""]) {
            continue;
        }
        [&alone, &place].into_iter().for_each(set_up);
        let bare = sandboxed(&alone, sandbox, is_shared, false, &words).output().unwrap();
        assert!(bare.status.success(), "it fails without us: {}", shown(&bare));
        let (output, _) = record_exactly(&place, &mut sandboxed(&place, sandbox, is_shared, true, &words));
        assert_eq!(shown(&output), shown(&bare));
    }
}

/// Makes 10,200 mounts of `other` with 201 calls: at `t/N`, and all of these at each `u/N`.
const MANY: &str = r#"my ($from, $t, $u, $type) = ("other", "t", "u", "tmpfs");
    for ($t, $u) { syscall(SYS_mount, $type, $_, $type, 0, 0) == 0 or die "mount: $!" }
    for (1..100) {
        mkdir(my $point = "t/$_"); mkdir "u/$_";
        syscall(SYS_mount, $from, $point, 0, 0x1000, 0) == 0 or die "mount: $!";
    }
    for (1..100) { my $point = "u/$_"; syscall(SYS_mount, $t, $point, 0, 0x5000, 0) == 0 or die "mount: $!" }"#;

#[test]
fn ten_thousand_mounts_are_no_obstacle() {
    if !can_mount() || !has("perl") {
        return;
    }
    let script = "mount --bind src view; echo new > view/f; cat view/g; mv view/g view/h; echo x > u/57/23/x; rm t/100/y; umount view";
    let many = numbered(MANY);
    for (outer, inner) in [("", r#"perl -e "$1"; "#), (r#"perl -e "$1"; "#, "")] {
        let place = Place::new();
        place.prepare(
            "mkdir src other view t u; echo f > src/f; echo g > src/g; echo x > other/x; echo y > other/y",
        );
        let recorder = place.recorder("auto");
        let mut command = place.program("unshare");
        command.args(["-m", "sh", "-euc", &format!(r#"{outer}shift; exec "$@""#), "sh", &many]);
        command.arg(recorder.get_program()).args(recorder.get_args());
        let inside = format!("{inner}{script}");
        command.args(["unshare", "-m", "sh", "-euc", &inside, "sh", &many]);
        let (output, snapshot) = if outer.is_empty() {
            record_exactly(&place, &mut command)
        } else {
            (command.output().unwrap(), place.snapshot())
        };
        assert_eq!(shown(&output), "exit status: 0\ng\n");
        let changes = snapshot.files().iter().filter(|file| file.operations.intersects(Operations::CHANGES));
        let changed: Vec<_> = changes.map(|file| file.path.clone()).collect();
        // With mounts of its own, the recorder has a hundred names for what lies in `other`.
        let wanted = ["src/f", "src/g", "src/h"].map(|name| place.path(name));
        assert!(wanted.iter().all(|name| changed.contains(name)), "{:?}", place.recorded(&snapshot));
        if outer.is_empty() {
            let others = ["other/x", "other/y"].map(|name| place.path(name));
            assert_eq!(changed, [&others[..], &wanted].concat());
        }
    }
}
