//! Processes in a mount namespace of their own, sandboxes among them.
//!
//! Neighbours: `views.rs` has what must be recorded as it is without the namespace.

use std::collections::BTreeMap;
use std::fs;
use std::process::Output;

use agent_snapshot::snapshot::{Operations, Snapshot, State, WarningKind};

use crate::support::{
    BINARY, Place, User, assert_same, bytes, can_mount, describe_recorded, has, json, lines, lost, numbered,
    scan, shown, stderr,
};
use crate::truth::{gaps, record_exactly};

/// The private mounts of the recording in `place`: type, mount point, and whether there were uses and changes.
fn private_mounts(place: &Place) -> Vec<(String, String, bool, bool)> {
    let manifest = json(&place.out.join("manifest.json"));
    let mounts = manifest["private_mounts"].as_array().cloned().unwrap_or_default();
    let text = |value: &serde_json::Value| value.as_str().unwrap().to_owned();
    let some = |value: &serde_json::Value| value.as_u64().unwrap() > 0;
    let mounts = mounts.iter().map(|mount| {
        let [fstype, point] = ["fstype", "mount_point"].map(|key| text(&mount[key]));
        (fstype, point, some(&mount["uses"]), some(&mount["changes"]))
    });
    mounts.collect()
}

/// Records `sh -c script`, which must succeed, be recorded exactly, and be undone.
#[track_caller]
fn record(place: &Place, script: &str) -> (String, Snapshot) {
    let (output, snapshot) = record_exactly(place, place.recorder("auto").args(["sh", "-c", script]));
    assert!(output.status.success(), "{}", shown(&output));
    (String::from_utf8(output.stdout).unwrap(), snapshot)
}

/// The places of all users in whose namespaces `sandbox` works.
fn places(sandbox: &str) -> impl Iterator<Item = Place> {
    let places = User::all().iter().map(|user| Place::of(*user));
    places.filter(move |place| place.can_run(&["sh", "-c", &format!("{sandbox} true")]))
}

/// The path of `name` in a place, as text.
fn text(place: &Place, name: &str) -> String {
    place.at(name).into_os_string().into_string().unwrap()
}

#[test]
fn directory_missing_in_a_foreign_mount_namespace_loses_nothing() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    let snapshot = place.record("unshare -m sh -c 'cat absent/d/f; mkdir absent; : > absent/g' 2> /dev/null");
    assert_eq!(place.file(&snapshot, "absent/d/f").after, State::Absent { tombstone: false });
    assert!(place.file(&snapshot, "absent/g").after.present().is_some());
    assert_eq!(lost(&snapshot), []);
}

#[test]
fn file_below_a_private_mount_is_not_the_one_that_it_hides() {
    for place in places("unshare -rm") {
        place.write("d/f", "below\n");
        place.write("f", "ours\n");
        let script =
            "unshare -rm sh -c 'cat f; test -e no/such/file; mount -t tmpfs x d && echo hidden > d/f &&
            ln -s ../f d/l && echo more >> d/l && cat d/f && umount d && cat d/f'";
        let (said, snapshot) = record(&place, script);
        assert_eq!(said, "ours\nhidden\nbelow\n");
        let recorded = ["d existence", "d/f read", "f read+write", "no/such/file existence"];
        assert_eq!(place.recorded(&snapshot), recorded);
        assert_eq!(bytes(&snapshot, place.file(&snapshot, "d/f"), false), b"below\n");
        assert_eq!(private_mounts(&place), [("tmpfs".to_owned(), text(&place, "d"), true, true)]);
    }
}

#[test]
fn filesystems_that_end_with_their_namespace_are_private() {
    let inner: [(&str, &str, &str); 8] = [
        ("tmpfs", "mount -t tmpfs x d", "echo new > d/f; cat d/f; rm d/f"),
        ("ramfs", "mount -t ramfs x d", "echo new > d/f; cat d/f; rm d/f"),
        ("proc", "mount -t proc x d", "echo 7 > d/sys/kernel/msgmni; cat d/version > /dev/null"),
        ("sysfs", "mount -t sysfs x d", "ls d/class > /dev/null"),
        ("devpts", "mount -t devpts x d", "chmod 600 d/ptmx"),
        ("mqueue", "mount -t mqueue x d", ": > d/queue; cat d/queue > /dev/null"),
        (
            "overlay",
            "mount -t tmpfs x t; mkdir t/up t/work; mount -t overlay x -o lowerdir=low,upperdir=t/up,workdir=t/work d",
            "echo new > d/new; echo more >> d/f; rm d/gone",
        ),
        // What only shows what lies elsewhere.
        ("overlay", "mount -t overlay x -o lowerdir=low:other d", "ls d > /dev/null"),
    ];
    for (fstype, mount, script) in inner {
        let sandbox = format!("unshare -rmpnif sh -euc '{mount}; {script}'");
        for user in User::all() {
            let set_up = || {
                let place = Place::of(*user);
                place.prepare(
                    "mkdir d t low other; echo low > low/f; echo gone > low/gone; echo other > other/o",
                );
                place
            };
            if !set_up().can_run(&["sh", "-c", &sandbox]) {
                continue;
            }
            let place = set_up();
            let before = describe_recorded(&scan(&place.work));
            let (_, snapshot) = record(&place, &sandbox);
            assert_eq!(describe_recorded(&scan(&place.work)), before, "{mount}");
            let changes =
                snapshot.files().iter().find(|file| file.operations.intersects(Operations::CHANGES));
            assert_eq!(changes.map(|file| file.path.escape_ascii().to_string()), None, "{mount}");
            let inside = place.recorded(&snapshot).into_iter().find(|record| record.starts_with("d/"));
            assert_eq!(inside, None, "{mount}");
            let changes = !script.starts_with("ls");
            let wanted = (fstype.to_owned(), text(&place, "d"), true, changes);
            let private = private_mounts(&place);
            assert!(private.contains(&wanted), "{mount}: {private:?}");
        }
    }
}

#[test]
fn private_mounts_are_left_out_where_there_are_none() {
    let place = Place::new();
    place.record("echo new > f");
    assert_eq!(json(&place.out.join("manifest.json")).get("private_mounts"), None);
}

#[test]
fn change_through_an_overlay_is_one_of_its_upper_directory() {
    // What the kernel makes in its own directory, `../internal`, is in no record.
    let mount = "mount -t overlay x -o lowerdir=low,upperdir=up,workdir=../internal m";
    for user in User::all() {
        let set_up = || {
            let place = Place::of(*user);
            place.prepare(
                "mkdir low low/d up m ../internal; echo low > low/f; echo gone > low/gone; echo kept > low/kept
                echo x > low/d/x; echo above > up/above",
            );
            place
        };
        let script = "echo new > m/new; echo more >> m/f; rm m/gone; cat m/kept m/above; echo over > m/above
            mkdir m/made; echo x > m/made/x; chmod 700 m/d; mv m/new m/made/new";
        let sandbox = format!("unshare -rm sh -euc '{mount}; {script}'");
        if !set_up().can_run(&["sh", "-c", &sandbox]) {
            continue;
        }
        let place = set_up();
        let (said, snapshot) = record(&place, &sandbox);
        assert_eq!(said, "kept\nabove\n");
        let changed = snapshot.files().iter().filter(|file| file.operations.intersects(Operations::CHANGES));
        let work = place.path("");
        let changed = changed.filter_map(|file| file.path.strip_prefix(work.as_slice()));
        let changed: Vec<_> = changed.map(|path| String::from_utf8_lossy(path).into_owned()).collect();
        let upper =
            ["up", "up/above", "up/d", "up/f", "up/gone", "up/made", "up/made/new", "up/made/x", "up/new"];
        assert_eq!(changed, upper);
        assert_eq!(private_mounts(&place), []);
        assert_eq!(fs::read(place.at("up/above")).unwrap(), b"above\n");
        assert_eq!(fs::read_dir(place.at("up")).unwrap().count(), 1);
    }
}

#[test]
fn change_through_an_overlay_is_found_however_it_is_reached() {
    const MOUNT: &str = "mount -t overlay x -o lowerdir=low,upperdir=up,workdir=../internal m";
    const SCRIPTS: &[&str] = &[
        "mount --bind m/d other; echo k >> other/h; mkdir other/z",
        // What is mounted next gets the device number.
        "umount m; mount -t overlay y -o lowerdir=low,upperdir=other/up,workdir=../work2 m; echo k >> m/f; mkdir m/n",
        "umount m; mount -t tmpfs t m; echo 1 > m/u; rm m/u",
        // By the working directory, a descriptor, and what is in /proc of one.
        "cd m; mount -t tmpfs t ../m; echo k > new; rm u; mkdir d/z; echo k >> d/h",
        "perl -e \"open F, q(<), q(m/g); chmod 0600, *F\"",
        "exec 3< m/f; echo k >> /proc/self/fd/3",
        "mv up up3; mkdir m/n; chmod 600 m/g",
        // It is made of a copy.
        "ln m/g m/g2; ln m/u m/d/u",
    ];
    for user in User::all() {
        let set_up = || {
            let place = Place::of(*user);
            place.prepare(
                "mkdir -p low/d up m other/up ../internal ../work2; echo 1 > low/f; echo 2 > low/g; echo 3 > low/d/h
                echo u > up/u",
            );
            place
        };
        if !set_up().can_run(&["unshare", "-rm", "sh", "-euc", MOUNT]) {
            continue;
        }
        for script in SCRIPTS {
            eprintln!("{script}");
            record(&set_up(), &format!("unshare -rm sh -euc '{MOUNT}; {script}'"));
        }
    }
}

#[test]
fn mount_is_named_by_what_it_shows_after_that_was_renamed_or_removed() {
    /// What the command does in its namespace before and after something is done outside.
    const WITH_OUTSIDE: &[(&str, &str, &str)] = &[
        ("mount --bind d e; stat e/x", "rm e/y; rmdir e; mkdir e", "mkdir e/z; ln -s q e/s"),
        ("mount --bind f g; stat g", "rm g; mv d/x g", "echo k >> g"),
        ("mount --bind f g; stat g", "mv g h; mv d/x g", "echo k >> g"),
        ("mount --bind f g; stat g", "mv f h; echo new > f", "perl -e \"truncate(q(g), 1)\""),
    ];
    const INSIDE: &[&str] = &[
        "mount --bind f g; stat g; mv f h; echo new > f; perl -e \"truncate(q(g), 1)\"",
        "mount --bind d e; cat e/x; mv d dd; mkdir d; echo z > d/x; perl -e \"chmod 0600, q(e/x); mkdir q(e/n)\"",
        "here=$PWD; mount --bind d e; cd e; mkdir s; cd s; umount -l $here/e; mv $here/d $here/dd; echo new > n",
    ];
    let set_up = |place: Place| {
        place.prepare("mkdir d e; echo 1 > f; echo 2 > g; echo x > d/x; echo y > e/y; mkfifo ../asked ../go");
        place
    };
    for (before, outside, after) in WITH_OUTSIDE {
        for place in places("unshare -rm").map(set_up) {
            eprintln!("{before}; {outside}; {after}");
            let inside = format!("{before}; echo > ../asked; read x < ../go; {after}");
            let outside = format!("read x < ../asked; {outside}; echo > ../go; wait");
            record(&place, &format!("unshare -rm sh -euc '{inside}' > /dev/null & {outside}"));
        }
    }
    for script in INSIDE {
        for place in places("unshare -rm").map(set_up) {
            eprintln!("{script}");
            record(&place, &format!("unshare -rm sh -euc '{script}' > /dev/null"));
        }
    }
}

#[test]
fn image_mounted_in_a_namespace_is_a_loss() {
    if !can_mount() || !has("mkfs.ext4") {
        return;
    }
    let sandbox = "unshare -m sh -euc 'mount -o loop image d; echo new > d/f; umount d'";
    let set_up = || {
        let place = Place::new();
        place.prepare("mkdir d; truncate -s 2M image; PATH=$PATH:/sbin:/usr/sbin mkfs.ext4 -q image");
        place
    };
    if !set_up().can_run(&["sh", "-c", sandbox]) {
        return;
    }
    let place = set_up();
    let snapshot = place.record(sandbox);
    assert!(lost(&snapshot).contains(&WarningKind::MountNamespace), "{:?}", snapshot.header().warnings);
    assert!(snapshot.find(&place.path("d/f")).is_none());
    // The upper directory of an overlay that lies there has no name, either.
    let place = set_up();
    let over = "unshare -m sh -euc 'mount -o loop image d; mkdir d/up d/work low m
        mount -t overlay x -o lowerdir=low,upperdir=d/up,workdir=d/work m; echo new > m/f'";
    let snapshot = place.record(over);
    assert!(lost(&snapshot).contains(&WarningKind::MountNamespace), "{:?}", snapshot.header().warnings);
}

#[test]
fn file_covered_by_a_mount_is_not_recorded() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    fs::create_dir(place.at("d")).unwrap();
    // The recorder itself is in the namespace, so that nothing stays mounted.
    let script =
        "cd d && mount -t tmpfs x . && echo below > f && cat f && echo above > ../d/f; cd ..; cat d/f";
    let mut command = place.program("unshare");
    command.args(["-m", BINARY, "--snapshot-dir"]).arg(&place.out).args(["sh", "-c", script]);
    let output = command.output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout), "below\nabove\n");
    // The record of d/f is of the file that this path leads to at the end.
    let snapshot = place.snapshot();
    assert_eq!(lost(&snapshot), [WarningKind::MountNamespace]);
    assert_eq!(bytes(&snapshot, place.file(&snapshot, "d/f"), false), b"above\n");
}

#[test]
fn file_covered_in_a_foreign_mount_namespace_is_recorded() {
    for place in places("unshare -rm") {
        place.prepare("mkdir d; echo old > d/g");
        let script = "unshare -rm sh -euc 'cd d; mount -t tmpfs x .; echo below > f; cat f g; rm g
            echo above > ../d/f; cat ../d/f'";
        let (said, snapshot) = record(&place, script);
        assert_eq!(said, "below\nold\nabove\n");
        assert_eq!(
            place.recorded(&snapshot),
            ["d existence+directory", "d/f read+write", "d/g read+existence+delete"]
        );
        assert_eq!(bytes(&snapshot, place.file(&snapshot, "d/f"), false), b"below\n");
    }
}

#[test]
fn filesystem_can_be_unmounted_after_a_large_read() {
    let place = Place::new();
    if !place.can_run(&["unshare", "-rm", "mount", "-t", "tmpfs", "x", "/tmp"]) {
        return;
    }
    fs::create_dir(place.at("d")).unwrap();
    let script = "mount -t tmpfs x d && head -c 30000000 /dev/zero > d/big && exec \"$@\"";
    let mut command = place.program("unshare");
    command.args(["-rm", "sh", "-c", script, "sh", BINARY, "--snapshot-dir"]);
    let output = command.arg(&place.out).args(["sh", "-c", "cat d/big > /dev/null; umount d"]).output();
    let output = output.unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    let snapshot = place.snapshot();
    assert_eq!(bytes(&snapshot, place.file(&snapshot, "d/big"), true).len(), 30_000_000);
}

#[test]
fn pivot_root_changes_no_name() {
    for place in places("unshare -rm") {
        place.prepare("mkdir -p d/old; echo content > d/f");
        let script = "unshare -rm sh -c 'mount --bind d d && cd d && /usr/sbin/pivot_root . old && cd / && echo pivoted > f
            echo new > created; echo above > /old$0/up; read line < /old$0/d/f; echo $line' $PWD";
        let (said, snapshot) = record(&place, script);
        assert_eq!(said, "pivoted\n");
        let recorded =
            ["d existence+directory", "d/created write", "d/f read+write", "d/old existence", "up write"];
        assert_eq!(place.recorded(&snapshot), recorded);
        assert!(snapshot.find(b"/f").is_none() && snapshot.find(b"/created").is_none());
        assert_eq!(private_mounts(&place), []);
    }
}

#[test]
fn bubblewrap_sandbox_is_recorded_by_the_names_of_outside() {
    let sandbox = "bwrap --ro-bind / / --bind . /mnt --proc /proc --dev /dev --tmpfs /run --unshare-all";
    for place in places(sandbox) {
        place.write("f", "old\n");
        let script = format!(
            "{sandbox} sh -c 'cat f /proc/self/cwd/f; echo new > /mnt/f; cat /dev/stdin < /mnt/f; echo no > g
            echo x > /run/f; rm /run/f; cat /run/f'"
        );
        let (output, snapshot) = record_exactly(&place, place.recorder("auto").args(["sh", "-c", &script]));
        assert_eq!(String::from_utf8_lossy(&output.stdout), "old\nold\nnew\n");
        // What is refused only asks whether it is there.
        assert_eq!(place.recorded(&snapshot), ["f read+write", "g existence"]);
        assert!(snapshot.find(b"/mnt/f").is_none());
        let private = private_mounts(&place);
        assert!(private.contains(&("tmpfs".to_owned(), "/run".to_owned(), true, true)), "{private:?}");
    }
}

#[test]
fn one_file_bound_over_another_is_that_file() {
    for place in places("unshare -rm") {
        place.prepare("echo source > source; echo target > target; echo other > other");
        let script =
            "unshare -rm sh -c 'mount --bind source target; cat target; echo new > target; chmod 600 target
            mv other target || mv other moved; rm target || umount target; cat target' 2> /dev/null";
        let (said, snapshot) = record(&place, script);
        assert_eq!(said, "source\ntarget\n");
        let recorded = [
            "moved write",
            "other existence+delete",
            "source read+write+existence+metadata",
            "target read+existence",
        ];
        assert_eq!(place.recorded(&snapshot), recorded);
        assert_eq!(bytes(&snapshot, place.file(&snapshot, "source"), true), b"source\n");
    }
}

#[test]
fn failed_changes_of_a_read_only_mount_are_existence() {
    for place in places("unshare -rm") {
        place.prepare("mkdir d; echo old > d/f");
        let script =
            "unshare -rm sh -c 'mount --bind d d; mount -o remount,bind,ro d; echo no > d/f; echo no > d/g
            rm -f d/f; mkdir d/h; chmod 600 d/f; mv d/f f; cat d/f' 2> /dev/null";
        let (said, snapshot) = record(&place, script);
        assert_eq!(said, "old\n");
        let changes = snapshot.files().iter().filter(|file| file.operations.intersects(Operations::CHANGES));
        let changed: Vec<_> = changes.map(|file| file.path.escape_ascii().to_string()).collect();
        // mv(1) copies what it can't rename, and then can't remove the original.
        assert_eq!(changed, [text(&place, "f")]);
        let [f, g, h] = ["d/f", "d/g", "d/h"].map(|name| place.file(&snapshot, name));
        assert_eq!(f.before, f.after);
        assert_eq!([&g.after, &h.after], [&State::Absent { tombstone: false }; 2]);
    }
}

#[test]
fn interpreter_of_a_script_is_recorded_by_its_outer_name() {
    for place in places("unshare -rm") {
        place.prepare(
            "mkdir tools view; cp /bin/sh tools/shell; printf '#!%s/view/shell\\necho $0\\n' \"$PWD\" > tools/script
            chmod 755 tools/script; ln -s script tools/link",
        );
        let (said, snapshot) = record(
            &place,
            "unshare -rm sh -euc 'mount --bind tools view; view/link; cd view; ./shell script'",
        );
        assert_eq!(said, "view/link\nscript\n");
        let recorded = [
            "tools existence+directory",
            "tools/link existence",
            "tools/script read+execute",
            "tools/shell read+execute",
            "view existence",
        ];
        assert_eq!(place.recorded(&snapshot), recorded);
    }
}

#[test]
fn file_opened_before_the_namespace_keeps_its_name() {
    for place in places("unshare -rm") {
        place.prepare("mkdir d; echo old > d/f; echo other > d/g");
        let script = "exec 3>> d/f 4< d/g; unshare -rm sh -euc 'mount -t tmpfs x d; echo more >&3; echo by name >> /proc/self/fd/3
            cat <&4; cat /proc/self/fd/4; echo private > d/f; cat d/f'";
        let (said, snapshot) = record(&place, script);
        assert_eq!(said, "other\nother\nprivate\n");
        assert_eq!(fs::read(place.at("d/f")).unwrap(), b"old\n");
        assert_eq!(place.recorded(&snapshot), ["d existence", "d/f write", "d/g read"]);
        assert_eq!(bytes(&snapshot, place.file(&snapshot, "d/f"), false), b"old\nmore\nby name\n");
    }
}

#[test]
fn descriptor_passed_out_of_a_namespace_is_the_file_of_outside() {
    const PASS: &str = r#"
import os, socket, sys
ours, theirs = socket.socketpair()
if os.fork() == 0:
    os.dup2(theirs.fileno(), 9)
    inside = "mount --bind src view; exec /usr/bin/python3 -c \"import os, socket; socket.send_fds(socket.socket(fileno=9), [b'x'], \
[os.open('view/f', os.O_RDWR), os.open('view/d', os.O_PATH)])\""
    os.execvp("unshare", ["unshare", "-rm", "sh", "-euc", inside])
_, (file, directory), _, _ = socket.recv_fds(ours, 1, 2)
os.wait()
os.write(file, b"changed")
os.mkdir("made", dir_fd=directory)
os.rename("x", "y", src_dir_fd=directory, dst_dir_fd=directory)
os.chdir(directory)
os.unlink("gone")
os.unlink("../linked")
"#;
    for place in places("/usr/bin/python3 -c 'import socket; socket.send_fds' && unshare -rm") {
        place.prepare("mkdir -p src/d view; echo old content > src/f; echo x > src/d/x; echo gone > src/d/gone; ln src/f src/linked");
        let (_, snapshot) =
            record_exactly(&place, place.recorder("auto").args(["/usr/bin/python3", "-c", PASS]));
        let recorded = [
            "src existence",
            "src/d existence+directory",
            "src/d/gone delete",
            "src/d/made write+directory",
            "src/d/x delete",
            "src/d/y write",
            "src/f read+write",
            "src/linked delete",
            "view existence",
        ];
        assert_eq!(place.recorded(&snapshot), recorded);
    }
}

/// What a sandbox leaves at paths that it needed as mount points.
fn made_and_removed(sandbox: &str, script: &str) {
    for place in places(sandbox) {
        place.prepare("mkdir project; echo kept > project/f");
        let before = scan(&place.work);
        let output = place.recorder("auto").args(["sh", "-euc", script]).output().unwrap();
        assert!(output.status.success(), "{}", shown(&output));
        let snapshot = place.snapshot();
        assert_eq!(gaps(&snapshot), Vec::<String>::new());
        assert_eq!(
            describe_recorded(&scan(&place.work)),
            describe_recorded(&before),
            "the sandbox left something"
        );
        for file in snapshot.files().iter().filter(|file| file.path.starts_with(&place.path(""))) {
            let same = match (&file.before, &file.after) {
                (State::Absent { .. }, after) => matches!(after, State::Absent { .. }),
                (State::Present(_), after) => after.present().is_some(),
                (State::NotKept, _) => false,
            };
            assert!(same, "{:?}", place.recorded(&snapshot));
        }
        let undone = place.verb("restore", &["--before"]).expect(0);
        assert!(undone.stdout.starts_with("nothing to do"), "{undone:#?}");
        assert_eq!(describe_recorded(&scan(&place.work)), describe_recorded(&before));
    }
}

#[test]
fn mount_points_that_a_sandbox_made_and_removed_are_not_undone() {
    // Made inside, where bubblewrap has names of its own while it prepares the root, and removed outside.
    made_and_removed(
        "bwrap --bind / / --tmpfs /run",
        "bwrap --bind / / --dev /dev --tmpfs $PWD/project/.agents --ro-bind project/f $PWD/project/.codex \
            --bind project $PWD/project/new/point true
         rmdir project/.agents project/new/point project/new; rm project/.codex",
    );
    // Made outside, used inside, and removed by what has the name of outside again.
    made_and_removed(
        "unshare -rm",
        "mkdir project/.agents; unshare -rm sh -euc 'mount -t tmpfs x project/.agents; echo x > project/.agents/f'
         rmdir project/.agents",
    );
    // Asked for by the inner name first.
    made_and_removed(
        "unshare -rm",
        "mkdir view; unshare -rm sh -euc 'mount --bind project view; test ! -e view/.agents; mkdir view/.agents'
         rmdir project/.agents view",
    );
}

#[test]
fn mount_points_that_a_sandbox_leaves_are_no_changes() {
    let sandbox = "bwrap --bind / / --dev /dev --ro-bind /dev/null $PWD/.profile --ro-bind d $PWD/new/point";
    let place = Place::new();
    if !place.can_run(&["bwrap", "--bind", "/", "/", "true"]) {
        return;
    }
    place.prepare("mkdir d");
    let before = scan(&place.work);
    let counts = |script: &str| {
        place.record(script);
        let shown = place.verb("show", &["--json"]).expect(0).stdout;
        let counts = serde_json::from_str::<serde_json::Value>(&shown).unwrap()["counts"].clone();
        [counts["created"].as_u64().unwrap(), counts["mount_point"].as_u64().unwrap()]
    };
    assert_eq!(counts(&format!("{sandbox} true")), [0, 3]);
    // Still there: an undo removes them.
    place.verb("restore", &["--before"]).expect(0);
    assert_same(&describe_recorded(&scan(&place.work)), &describe_recorded(&before), "undone");
    // Somebody has removed them.
    assert_eq!(counts(&format!("{sandbox} sh -c 'echo > f'")), [1, 3]);
    place.prepare("rm .profile; rm -r new");
    place.verb("restore", &["--before"]).expect(0);
    assert_same(&describe_recorded(&scan(&place.work)), &describe_recorded(&before), "removed and undone");
    // What serves for more than that, or was made by another process, is a change.
    assert_eq!(
        counts(&format!("{sandbox} true; chmod u+w .profile; echo x > .profile; echo x > new/f")),
        [3, 1]
    );
    place.verb("restore", &["--before"]).expect(0);
    assert_eq!(counts(&format!(": > .profile; mkdir -p new/point; {sandbox} true")), [3, 0]);
}

#[test]
fn mount_point_with_another_name_in_the_namespace_is_no_change() {
    // By a path that has to be walked, and by one whose directory is known. What is mounted is no mount point.
    const MOUNTS: &str = "
        use Cwd;
        sub mount { my ($from, $to, $type, $flags) = @_; syscall(SYS_mount, $from, $to, $type, $flags, 0) == 0 or die $! }
        mount('project', 'view', 0, 4096);
        mkdir 'view/walked'; mount('x', 'view/./walked', 'tmpfs', 0);
        mkdir 'view/known'; mount('x', 'view/known', 'tmpfs', 0);
        mkdir 'from'; mkdir 'to';
        mount('from', 'to', 0, 4096); -e getcwd() . '/to'; mount('x', 'to', 0, 4096 | 32 | 1); mount('x', './to', 'tmpfs', 0)";
    for place in places("perl -e 1 && unshare -rm") {
        place.prepare("mkdir project view");
        place.write("mounts.pl", numbered(MOUNTS));
        let output = place.recorder("auto").args(["unshare", "-rm", "perl", "mounts.pl"]).output().unwrap();
        assert!(output.status.success(), "{}", shown(&output));
        let snapshot = place.snapshot();
        let points = snapshot.files().iter().filter(|file| file.mount_point);
        let points: Vec<_> = points.map(|file| String::from_utf8_lossy(&file.path)).collect();
        assert_eq!(points, ["project/known", "project/walked", "to"].map(|name| text(&place, name)));
    }
}

#[test]
fn socket_in_a_namespace_has_the_path_of_its_record() {
    const SOCKETS: &str = "
        use Socket;
        sub unix { socket(my $socket, AF_UNIX, SOCK_STREAM, 0); ($socket, pack_sockaddr_un(shift)) }
        sub listening { my ($socket, $name) = unix(shift); bind($socket, $name) && listen($socket, 9) or die $!; $socket }
        sub used { my ($socket, $name) = unix(shift); connect($socket, $name) or die $! }
        my $first = listening('run/s'); used('view/s'); used('view/./s'); my $second = listening('view/t');
        chdir 'private'; my $third = listening('p'); used('p')";
    for place in places("perl -MSocket -e 1 && unshare -rm") {
        place.prepare("mkdir run view private");
        place.write("sockets.pl", SOCKETS);
        record(
            &place,
            "exec unshare -rm sh -euc 'mount --bind run view; mount -t tmpfs x private; perl sockets.pl'",
        );
        let manifest = json(&place.out.join("manifest.json"));
        let here = text(&place, "");
        let used = manifest["network"].as_array().unwrap().iter().filter_map(|used| {
            let path = used["path"].as_str()?.strip_prefix(&here)?;
            Some(format!("{} {path} {}", used["operation"].as_str()?, used["count"]))
        });
        let expected =
            ["connect private/p 1", "connect run/s 2", "bind private/p 1", "bind run/s 1", "bind run/t 1"];
        assert_eq!(used.collect::<Vec<_>>(), expected);
    }
}

#[test]
fn path_that_was_absent_at_its_first_use_is_absent_after_an_undo() {
    let mut wrong = Vec::new();
    for (theirs, ours) in [
        // Others make it, and the command removes it.
        ("mkdir -p x/y; echo theirs > x/y/f", "rm -r x"),
        ("echo theirs > x", "rm x"),
        ("mkdir x", "rmdir x"),
        ("echo theirs > x", "mv x z; rm z"),
    ] {
        let place = Place::new();
        let before = scan(&place.work);
        let mut command = place.recording();
        let script =
            format!("test -e x/y/f || test -e x; mkfifo ../go; echo > ../asked; read line < ../go; {ours}");
        place.prepare("mkfifo ../asked");
        let child = command.args(["sh", "-c", &script]).spawn().unwrap();
        place.prepare(&format!("read line < ../asked; {theirs}; echo > ../go"));
        let output: Output = child.wait_with_output().unwrap();
        assert!(output.status.success(), "{}", shown(&output));
        let undone = place.verb("restore", &["--before"]);
        if undone.status != 0 || describe_recorded(&scan(&place.work)) != describe_recorded(&before) {
            wrong.push(format!("{theirs}; {ours}: {undone:#?}"));
        }
    }
    assert!(wrong.is_empty(), "{}", lines(&wrong));
}

#[test]
fn what_others_make_at_a_path_that_was_absent_stays_after_an_undo() {
    let place = Place::new();
    place.prepare("mkfifo ../asked ../go");
    let script =
        "test -e x/mine; test -e y; echo > ../asked; read line < ../go; echo ours > x/ours; cat x/mine > z";
    let child = place.recording().args(["sh", "-c", script]).spawn().unwrap();
    place.prepare("read line < ../asked; mkdir x; echo mine > x/mine; echo mine > y; echo > ../go");
    assert!(child.wait_with_output().unwrap().status.success());
    let undone = place.verb("restore", &["--before"]);
    let tree: BTreeMap<_, _> =
        scan(&place.work).into_iter().map(|(path, entry)| (path, entry.content)).collect();
    let left: Vec<_> = tree.into_keys().filter(|path| *path != place.path("x").as_slice()).collect();
    let expected = ["x/mine", "y"].map(|name| place.path(name));
    assert_eq!(left[1..], expected, "{undone:#?}");
}

#[test]
fn private_mount_that_an_outsider_holds_is_told() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    place.prepare("mkdir d; mkfifo ../asked ../go ../held");
    let script =
        "unshare -m sh -euc 'mount -t tmpfs x d; echo new > d/f; echo $$ > ../asked; read line < ../go'";
    let child = place.recording().args(["sh", "-c", script]).spawn().unwrap();
    // It has the namespace when it writes, and is killed once the recording has ended.
    let holder = "read pid < ../asked; exec nsenter --wd=. -t $pid -m -- sh -c 'echo > ../held; exec tail -f /dev/null'";
    let mut holder = place.program("sh").args(["-c", holder]).spawn().unwrap();
    place.prepare("read line < ../held; echo > ../go");
    let output = child.wait_with_output();
    holder.kill().unwrap();
    holder.wait().unwrap();
    assert!(output.unwrap().status.success());
    let snapshot = place.snapshot();
    let warnings = &snapshot.header().warnings;
    assert_eq!(lost(&snapshot), []);
    assert!(warnings[0].detail.contains(&format!("process {}", holder.id())), "{warnings:?}");
    assert_eq!(private_mounts(&place), [("tmpfs".to_owned(), text(&place, "d"), true, true)]);
}

#[test]
fn what_is_changed_through_a_process_in_another_namespace_is_a_gap() {
    const FOREIGN: &str = "unshare -rm sh -c 'mount --bind a m; : > ready; exec sleep 100' & p=$!
        until test -e ready; do sleep 0.01; done; there=/proc/$p/root$PWD";
    let changes = [
        "rm $there/m/f",
        "mv $there/m/f $there/m/g",
        "mkdir $there/m/made",
        "chmod 600 $there/m/f",
        "cd $there && mv m/f m/g",
        "cd $there/m && rm f",
        "perl -e 'truncate q(m/f), 0 if chdir shift' $there",
    ];
    for change in changes {
        for place in places("unshare -rm") {
            place.write("a/f", "precious\n");
            place.prepare("mkdir m");
            let script = format!("{FOREIGN}; {change}; kill $p");
            let output = place.recorder("auto").args(["sh", "-c", &script]).output().unwrap();
            let snapshot = place.snapshot();
            assert_eq!(lost(&snapshot), [WarningKind::MountNamespace], "{change}: {}", shown(&output));
        }
    }
}

#[test]
fn procfs_below_the_root_of_a_process_in_another_namespace_is_no_gap() {
    for place in places("unshare -rm") {
        let script = "unshare -rm sh -c ': > ready; exec sleep 100' & p=$!
            until test -e ready; do sleep 0.01; done; cat /proc/$p/root/proc/self/comm; kill $p";
        let output = place.recorder("auto").args(["sh", "-c", script]).output().unwrap();
        assert_eq!(lost(&place.snapshot()), [], "{}", shown(&output));
    }
}

#[test]
fn what_is_changed_on_a_mount_that_only_a_descriptor_names_is_a_gap() {
    if !can_mount() || !has("perl") {
        return;
    }
    let place = Place::new();
    place.write("a/f", "precious\n");
    // open_tree(AT_FDCWD, "a", OPEN_TREE_CLONE), unlinkat(tree, "f", 0)
    let [open_tree, unlinkat] = [libc::SYS_open_tree, libc::SYS_unlinkat];
    let script = format!(
        "my ($from, $name) = qw(a f); my $tree = syscall({open_tree}, -100, $from, 1);
        syscall({unlinkat}, $tree, $name, 0) == 0 or die"
    );
    let output = place.recorder("auto").args(["perl", "-e", &script]).output().unwrap();
    assert!(!place.at("a/f").exists(), "{}", shown(&output));
    assert_eq!(lost(&place.snapshot()), [WarningKind::MountNamespace]);
}
