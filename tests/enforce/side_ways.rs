//! Ways to a file that no rule names: each was one that worked.

use super::{enforced, refused};
use crate::support::{BINARY, Place, User, bytes, can_mount, has, lost};

fn place(user: User) -> Place {
    let place = Place::of(user);
    place.write("shut/secret", "secret\n");
    place.prepare("mkdir -p open");
    place
}

#[test]
fn a_descriptor_of_a_file_that_has_lost_its_name_is_no_way_to_read_it() {
    if !has("python3") {
        return;
    }
    let open = "import os; f = os.open('shut/secret', os.O_PATH);";
    let read = "print(open(f'/proc/self/fd/{f}').read())";
    for &user in User::all() {
        for lose in ["os.unlink('shut/secret');", "open('new', 'w'); os.rename('new', 'shut/secret');"] {
            let place = place(user);
            let script = format!("python3 -c \"{open} {lose} {read}\"");
            let output = enforced(&place, &["--deny-read", "shut"], &script);
            assert_eq!(String::from_utf8_lossy(&output.stdout), "", "{user:?} {output:?}");
            assert_eq!(refused(&place), ["deny-read shut work/shut/secret read"], "{user:?}");
        }
    }
}

#[test]
fn a_core_dump_is_not_left_where_nothing_may_be_written() {
    let pattern = std::fs::read_to_string("/proc/sys/kernel/core_pattern").unwrap();
    if pattern.starts_with(['|', '/']) {
        return;
    }
    for &user in User::all() {
        let place = place(user);
        let script = "cd shut; ulimit -c unlimited; sh -c 'kill -ABRT $$'; ls";
        let output = enforced(&place, &["--deny-write", "shut"], script);
        assert_eq!(String::from_utf8_lossy(&output.stdout), "secret\n", "{user:?} {output:?}");
        assert_eq!(refused(&place).len(), 1, "{user:?} {:?}", refused(&place));
    }
}

#[test]
fn links_of_another_procfs_lead_where_they_lead() {
    if !can_mount() {
        return;
    }
    let way = "/proc/self/cwd/shut/secret";
    let in_namespace = |script: &str| format!("unshare -Urmpf --mount-proc sh -c '{script}'");
    for &user in User::all() {
        let place = place(user);
        let script = in_namespace(&format!("cat {way} < /dev/null; cat < {way}"));
        let output = enforced(&place, &["--deny-read", "shut"], &script);
        assert_eq!(String::from_utf8_lossy(&output.stdout), "", "{user:?} {output:?}");
        let recorded = self::place(user);
        let snapshot = recorded.record(&in_namespace(&format!("cat {way}; echo new > /proc/self/cwd/new")));
        assert_eq!(lost(&snapshot), []);
        assert_eq!(bytes(&snapshot, recorded.file(&snapshot, "new"), false), b"new\n");
        assert!(recorded.recorded(&snapshot).contains(&"shut/secret read".to_owned()));
    }
}

#[test]
fn an_overlay_shows_nothing_that_may_not_be_read() {
    if !can_mount() {
        return;
    }
    let script = "unshare -Urm sh -c 'mkdir a b c; mount -t tmpfs t c; mkdir c/up c/work
        mount -t overlay o -o lowerdir=shut:open a && cat a/secret
        mount -t overlay o -o lowerdir=shut,upperdir=c/up,workdir=c/work b && mv b/secret b/other; cat c/up/other'";
    for &user in User::all() {
        let place = place(user);
        let output = enforced(&place, &["--deny-read", "shut"], script);
        assert_eq!(String::from_utf8_lossy(&output.stdout), "", "{user:?} {output:?}");
    }
}

#[test]
fn a_mount_that_only_a_descriptor_names_is_not_made() {
    if !can_mount() || !has("python3") {
        return;
    }
    // open_tree with OPEN_TREE_CLONE.
    let script = "python3 -c \"import ctypes
call = ctypes.CDLL(None, use_errno=True).syscall
print(call(428, -100, b'shut', 1), ctypes.get_errno())\"";
    let place = place(User::Current);
    let output = enforced(&place, &["--deny-read", "shut"], script);
    assert_eq!(String::from_utf8_lossy(&output.stdout), "-1 38\n", "{output:?}");
}

/// Mounts something, and runs a command with rules there: what it printed.
fn enforced_after(place: &Place, mount: &str, rules: &[&str], script: &str) -> String {
    let mut command = place.program("unshare");
    command.current_dir(&place.work).args(["-Urm", "sh", "-c", &format!("{mount} && exec \"$@\""), "sh"]);
    command.arg(place.executable(BINARY.as_ref())).arg("--snapshot-dir").arg(&place.out).arg("--enforce");
    let output = command.args(rules).args(["sh", "-c", script]).output().unwrap();
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn what_a_bind_mount_from_before_shows_is_what_rules_mean() {
    if !can_mount() {
        return;
    }
    let script =
        "cat open/secret; echo x > open/secret; rm open/secret; mv m/shut/secret m/x; ln m/shut/secret m/x
        cat shut/secret m/x; cat public m/public";
    for &user in User::all() {
        let place = place(user);
        place.write("public", "public\n");
        place.prepare("mkdir m");
        let mount = "mount --bind shut open && mount --bind . m";
        let printed =
            enforced_after(&place, mount, &["--deny-read", "./shut", "--deny-write", "./shut"], script);
        assert_eq!(printed, "public\npublic\n", "{user:?}");
        let by = |rule: &str, operation: &str| format!("{rule} ./shut work/shut/secret {operation}");
        let expected = [
            by("deny-read", "delete"),
            by("deny-read", "metadata"),
            by("deny-read", "read"),
            by("deny-write", "delete"),
            by("deny-write", "metadata"),
            by("deny-write", "write"),
        ];
        assert_eq!(refused(&place), expected, "{user:?}");
    }
}

#[test]
fn an_overlay_in_the_recorders_own_namespace_shows_nothing_that_may_not_be_read() {
    if !can_mount() {
        return;
    }
    let script =
        "mkdir a; mount -t overlay o -o lowerdir=shut:open a; mountpoint -q a && echo mounted; cat a/secret";
    for &user in User::all() {
        let place = place(user);
        let printed = enforced_after(&place, "true", &["--deny-read", "shut"], script);
        assert_eq!(printed, "mounted\n", "{user:?}");
    }
}

#[test]
fn an_overlay_has_no_directory_where_nothing_may_be_changed() {
    if !can_mount() {
        return;
    }
    for &user in User::all() {
        for (options, expected) in [
            ("upperdir=open/up,workdir=shut/work", "metadata"),
            ("upperdir=shut/up,workdir=open/work", "metadata"),
            ("upperdir=open/up,workdir=open/work", ""),
        ] {
            let make = "mkdir m open/up open/work shut/up shut/work";
            let script =
                format!("unshare -Urm mount -t overlay o -o lowerdir=open,{options} m; ls shut/*/ | wc -w");
            let place = place(user);
            place.prepare(make);
            enforced(&place, &["--deny-write", "shut/**"], &script);
            let refused: Vec<_> =
                refused(&place).iter().map(|line| line.rsplit(' ').next().unwrap().to_owned()).collect();
            assert_eq!(refused.join(" "), expected, "{options} {user:?}");
            let recorded = self::place(user);
            recorded.prepare(make);
            recorded.record_any(&script);
            let run = recorded.verb("check", &["--deny-write", "shut/**"]);
            assert_eq!(run.status, i32::from(!expected.is_empty()), "{options} {user:?}: {run:?}");
        }
    }
}
