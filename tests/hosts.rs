//! Containers, sandboxes and hosts that lack what is there elsewhere: a command is recorded there as it is anywhere, or
//! one sentence says why not.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Output};

use agent_snapshot::snapshot::Snapshot;
use serde_json::Value;

use crate::support::{
    BINARY, NOBODY, Place, SHELL, User, bytes, can_mount, has, lost, needs_root, program, stderr,
};

/// What Docker's default profile lets fail without more capabilities than it gives, in the words of `seal`.
const DOCKER: [&str; 2] = [
    "EPERM=acct,add_key,bpf,delete_module,fanotify_init,finit_module,fsconfig,fsmount,fsopen,fspick,init_module,\
     io_uring_enter,io_uring_register,io_uring_setup,kcmp,keyctl,lookup_dcookie,mount,mount_setattr,move_mount,\
     move_pages,name_to_handle_at,open_by_handle_at,open_tree,perf_event_open,pidfd_getfd,pivot_root,\
     process_madvise,quotactl,reboot,request_key,set_mempolicy,setns,swapoff,swapon,umount2,unshare,userfaultfd,vhangup",
    "ENOSYS=clone3",
];

/// The capabilities that Docker gives.
const CAPABILITIES: &str = "--bounding-set=-all,+chown,+dac_override,+fsetid,+fowner,+mknod,+net_raw,+setgid,+setuid,\
                            +setfcap,+setpcap,+net_bind_service,+sys_chroot,+kill,+audit_write";

/// Makes, changes, moves and removes files in several processes.
const SCRIPT: &str =
    "cat read; echo new > made; echo more >> changed; rm removed; mv moved d; (echo child > child) & wait
    exit 3";

/// What comes of it.
const RECORDED: [&str; 8] = [
    "changed write",
    "child write",
    "d existence",
    "d/moved write",
    "made write",
    "moved existence+delete",
    "read read",
    "removed existence+delete",
];

/// The files that the script finds.
fn prepare(place: &Place) {
    for name in ["read", "changed", "removed", "moved"] {
        place.write(name, format!("{name}\n"));
    }
    place.prepare("mkdir d");
}

/// Words that run a program, the words after them, where a shell has done this first.
fn after(setup: &str) -> Vec<String> {
    ["sh", "-c", &format!("{setup}\nexec \"$@\""), "sh"].map(str::to_owned).into()
}

/// The same in mount and PID namespaces of its own.
fn unshared(setup: &str) -> Vec<String> {
    [vec!["unshare".to_owned(), "-mpf".to_owned(), "--mount-proc".to_owned()], after(setup)].concat()
}

/// Words that run a program as the user of a place, in namespaces that root has made.
fn as_user(place: &Place) -> Vec<String> {
    let nobody = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"];
    if place.is_of_current_user() { Vec::new() } else { nobody.map(str::to_owned).into() }
}

fn seal(place: &Place, rules: &[&str]) -> Vec<String> {
    let seal = place.executable(&program("seal")).display().to_string();
    [vec![seal], rules.iter().map(|&rule| rule.to_owned()).collect()].concat()
}

/// The words, run by root where they need that, though the place is another user's.
fn command(place: &Place, words: &[String], arguments: &[&str]) -> Command {
    let mut command = Command::new(&words[0]);
    place.isolate(&mut command);
    command.args(&words[1..]).args(arguments);
    command
}

/// Whether the words can run a program here; if not, the reason of a skip is printed.
fn can_run(place: &Place, words: &[String]) -> bool {
    crate::support::works(&mut command(place, words, &["true"]))
}

#[track_caller]
fn assert_recorded(place: &Place, host: &str, output: &Output) -> Snapshot {
    assert_eq!(output.status.code(), Some(3), "{host}: {output:?}");
    assert_eq!(stderr(output), "", "{host}");
    assert_eq!(output.stdout, b"read\n", "{host}");
    let snapshot = place.snapshot();
    assert_eq!(lost(&snapshot), [], "{host}: {:?}", snapshot.header().warnings);
    let mut recorded = place.recorded(&snapshot);
    // bindfs has no RENAME_NOREPLACE, so that mv looks whether the new name is there.
    recorded.iter_mut().filter(|_| host.contains("bindfs")).for_each(|record| {
        *record = record.replace("d/moved write+existence", "d/moved write");
    });
    assert_eq!(recorded, RECORDED, "{host}");
    assert_eq!(bytes(&snapshot, place.file(&snapshot, "removed"), true), b"removed\n", "{host}");
    assert_eq!(bytes(&snapshot, place.file(&snapshot, "child"), false), b"child\n", "{host}");
    snapshot
}

/// Records the script in a host that `words` make of a place, and undoes it there.
fn record_in(host: &str, user: User, words: impl Fn(&Place) -> Vec<String>) {
    let place = Place::of(user);
    prepare(&place);
    let words = words(&place);
    if !can_run(&place, &words) {
        return;
    }
    let binary = place.executable(BINARY.as_ref()).display().to_string();
    let out = place.out.display().to_string();
    let recording =
        [&binary, "--quiet", "--timeout", "120s", "--snapshot-dir", &out, "--", "sh", "-c", SCRIPT];
    let output = command(&place, &words, &recording).output().unwrap();
    assert_recorded(&place, &format!("{host} {user:?}"), &output);
    let output = command(&place, &words, &[&binary, "restore", "--before", &out]).output().unwrap();
    assert!(output.status.success(), "{host} {user:?}: {output:?}");
    let names = place.prepare("ls; cat [!d]*");
    assert_eq!(names, "changed\nd\nmoved\nread\nremoved\nchanged\nmoved\nread\nremoved\n", "{host} {user:?}");
}

#[test]
fn container_that_forbids_much_records_exactly() {
    for &user in User::all() {
        let as_user = |place: &Place| if has("setpriv") { as_user(place) } else { Vec::new() };
        record_in("no_new_privs", user, |place| {
            [as_user(place), vec!["setpriv".into(), "--no-new-privs".into()]].concat()
        });
        record_in("Docker's filter", user, |place| {
            let capabilities = vec!["setpriv".into(), CAPABILITIES.into()];
            let capabilities = if user.is_root() { capabilities } else { Vec::new() };
            [as_user(place), capabilities, seal(place, &DOCKER)].concat()
        });
        record_in("a listener of a sandbox", user, |place| {
            [as_user(place), seal(place, &["HOLD=all"])].concat()
        });
        for rule in [
            "EPERM=openat2,process_vm_readv,close_range,pidfd_getfd,seccomp",
            "ENOSYS=openat2,process_vm_readv,close_range,pidfd_getfd,seccomp",
        ] {
            record_in(rule, user, |place| [as_user(place), seal(place, &[rule])].concat());
        }
    }
}

#[test]
fn host_with_other_mounts_records_exactly() {
    for &user in User::all() {
        let bwrap = |place: &Place, more: &str| {
            let base = place.base().display();
            let line = format!(
                "bwrap --ro-bind / / --dev /dev --proc /proc --tmpfs /tmp {more} --bind {base} {base}"
            );
            let words = line.split_whitespace().map(str::to_owned).collect();
            [
                as_user(place),
                words,
                vec!["--chdir".to_owned(), place.work.display().to_string(), "--".to_owned()],
            ]
            .concat()
        };
        record_in("a read-only root", user, |place| bwrap(place, ""));
        record_in("no /dev/shm", user, |place| bwrap(place, "--tmpfs /dev --dev-bind /dev/null /dev/null"));
        if !can_mount() {
            continue;
        }
        for options in ["hidepid=2", "subset=pid", "hidepid=2,subset=pid"] {
            let setup = format!("mount -t proc -o {options} proc /proc || exit");
            record_in(options, user, |place| [unshared(&setup), as_user(place)].concat());
        }
        record_in("noexec", user, |place| {
            let base = place.base().display();
            let setup = format!(
                "mount --bind {base} {base} && mount -o remount,bind,noexec {base} && cd {base}/work || exit"
            );
            // Another user may have to execute a copy that is there.
            let is_there = place.executable(BINARY.as_ref()).starts_with(place.base());
            let setup = if is_there { "exit 77" } else { &setup };
            [unshared(setup), as_user(place)].concat()
        });
        if has("bindfs") && fs::exists("/dev/fuse").unwrap() {
            record_in("bindfs", user, |place| {
                let base = place.base().display();
                let allow = if user.is_root() { "" } else { "-o allow_other" };
                let setup = format!("bindfs {allow} {base} {base} && cd {base}/work || exit");
                [unshared(&setup), as_user(place)].concat()
            });
        }
    }
}

#[test]
fn user_without_a_passwd_entry_records_into_a_library() {
    const USER: u32 = 424_242;
    if !needs_root("another user") || !has("setpriv") {
        return;
    }
    let place = Place::of(User::Nobody);
    prepare(&place);
    for entry in walkdir::WalkDir::new(place.base()) {
        std::os::unix::fs::lchown(entry.unwrap().path(), Some(USER), Some(USER)).unwrap();
    }
    let binary = place.executable(BINARY.as_ref()).display().to_string();
    let line = format!("setpriv --reuid={USER} --regid={USER} --clear-groups env -u HOME -u XDG_CONFIG_HOME");
    let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
    let output =
        command(&place, &words, &[&binary, "run", "--quiet", "--", "sh", "-c", SCRIPT]).output().unwrap();
    assert_eq!((output.status.code(), stderr(&output).as_str()), (Some(3), ""), "{output:?}");
    let undone = command(&place, &words, &[&binary, "undo"]).output().unwrap();
    assert!(undone.status.success(), "{undone:?}");
    assert_eq!(place.prepare("ls"), "changed\nd\nmoved\nread\nremoved\n");
    fs::remove_dir_all(format!("/var/tmp/agent-snapshot-{USER}")).unwrap();
}

#[test]
fn few_descriptors_are_enough() {
    for &user in User::all() {
        for limit in [64, 32] {
            record_in("ulimit -n", user, |place| {
                [after(&format!("ulimit -n {limit}")), as_user(place)].concat()
            });
        }
    }
}

#[test]
fn limit_of_processes_is_no_half_recording() {
    if !needs_root("another user") || !has("setpriv") {
        return;
    }
    let mut recorded = 0;
    for limit in 1..=12 {
        // A user of whom nobody else has processes: the limit counts all.
        let user = 424_250 + limit;
        let place = Place::of(User::Nobody);
        place.write("f", "content\n");
        for entry in walkdir::WalkDir::new(place.base()) {
            std::os::unix::fs::lchown(entry.unwrap().path(), Some(user), Some(user)).unwrap();
        }
        let binary = place.executable(BINARY.as_ref()).display().to_string();
        let setup = format!(
            "exec setpriv --reuid={user} --regid={user} --clear-groups prlimit --nproc={limit} \"$@\""
        );
        let words = after(&setup);
        let out = place.out.display().to_string();
        let script = "read line < f; echo $line; echo new > g; exit 3";
        let recording =
            [&binary, "--quiet", "--timeout", "60s", "--snapshot-dir", &out, "--", "sh", "-c", script];
        let output = command(&place, &words, &recording).output().unwrap();
        println!("{limit}: {}", stderr(&output).trim_end());
        if output.status.code() == Some(3) {
            assert_eq!(
                (stderr(&output).as_str(), output.stdout.as_slice()),
                ("", &b"content\n"[..]),
                "{limit}"
            );
            let snapshot = place.snapshot();
            assert_eq!(lost(&snapshot), [], "{limit}");
            assert_eq!(place.recorded(&snapshot), ["f read", "g write"], "{limit}");
            recorded += 1;
        } else {
            assert_eq!(recorded, 0, "{limit}: fewer were enough");
            assert_eq!(output.status.code(), Some(125), "{limit}: {output:?}");
            assert!(output.stdout.is_empty() && !place.at("g").exists(), "{limit}: it ran");
            let said = stderr(&output);
            assert_eq!(said.lines().count(), 1, "{limit}: {said}");
            assert!(said.contains("Resource temporarily unavailable"), "{limit}: {said}");
            assert!(!place.out.exists(), "{limit}");
        }
    }
    assert!(recorded > 0, "some limit is enough");
}

#[test]
fn first_process_of_a_pid_namespace_records_orphans_and_ends_by_status() {
    let orphan = format!(
        "(cat read; (sleep 0.1; {}) &); exit 0",
        SCRIPT.replace("cat read;", "").replace("exit 3", "")
    );
    for (script, status) in [(SCRIPT, 3), ("kill -TERM $$", 143), ("kill -KILL $$", 137), (&orphan, 0)] {
        let place = Place::new();
        prepare(&place);
        let words = ["unshare", "-rpf", "--mount-proc"].map(str::to_owned);
        if !can_run(&place, &words) {
            return;
        }
        let out = place.out.display().to_string();
        let recording =
            [BINARY, "--quiet", "--timeout", "60s", "--snapshot-dir", &out, "--", "sh", "-c", script];
        let output = command(&place, &words, &recording).output().unwrap();
        assert_eq!(output.status.code(), Some(status), "{script}: {output:?}");
        let snapshot = place.snapshot();
        assert_eq!(snapshot.header().exit_status, status, "{script}");
        assert_eq!(lost(&snapshot), [], "{script}");
        if !script.starts_with("kill") {
            assert_eq!(place.recorded(&snapshot), RECORDED, "{script}");
        }
    }
}

#[test]
fn read_only_library_costs_one_line() {
    if !can_mount() || !has("setpriv") {
        return;
    }
    for &user in User::all() {
        let place = Place::of(user);
        prepare(&place);
        let shell = place.executable(SHELL.as_ref()).display().to_string();
        let library = place.base().join("library");
        fs::create_dir(&library).unwrap();
        let library = library.display();
        let owner = if user.is_root() { 0 } else { NOBODY };
        let setup = format!("mount -t tmpfs -o ro,mode=700,uid={owner} tmpfs {library} || exit");
        let words = [unshared(&setup), as_user(&place)].concat();
        let mut recorded = command(&place, &words, &[&shell, "-c", SCRIPT]);
        let output = recorded.env("AGENT_SNAPSHOT_LIBRARY", library.to_string()).output().unwrap();
        assert_eq!((output.status.code(), output.stdout.as_slice()), (Some(3), &b"read\n"[..]), "{output:?}");
        let said = stderr(&output);
        assert!(said.contains("Read-only file system") && said.contains("runs unrecorded"), "{said}");
        assert_eq!(said.lines().count(), 1, "{said}");
    }
}

/// What `doctor` says by `--json` where these rules hold.
fn doctor(place: &Place, rules: &[&str]) -> (i32, Vec<Value>) {
    let binary: PathBuf = place.executable(BINARY.as_ref());
    let mut command = place.program(program("seal"));
    let output = command.args(rules).arg(binary).args(["doctor", "--json"]).output().unwrap();
    let json: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{output:?}"));
    let checks = json["checks"].as_array().unwrap();
    let of_calls = |check: &&Value| check.get("call").is_some();
    (output.status.code().unwrap(), checks.iter().filter(of_calls).cloned().collect())
}

#[test]
fn doctor_names_the_call_that_a_filter_forbids() {
    // ptrace: PTRACE_SEIZE, PTRACE_GET_SYSCALL_INFO.
    let needed = [
        ("pidfd_open", "pidfd_open"),
        ("signalfd4", "signalfd"),
        ("eventfd2", "eventfd"),
        ("socketpair", "socketpair"),
        ("ptrace:16902", "ptrace (PTRACE_SEIZE)"),
        ("ptrace:16910", "ptrace (PTRACE_GET_SYSCALL_INFO)"),
        ("statx", "statx"),
    ];
    let replaced = [
        ("process_vm_readv", "process_vm_readv"),
        ("openat2", "openat2"),
        ("seccomp", "seccomp (SECCOMP_SET_MODE_FILTER)"),
        ("memfd_create", "memfd_create"),
        ("pidfd_getfd", "pidfd_getfd"),
        ("close_range", "close_range"),
        ("flock", "flock"),
    ];
    let user = User::ordinary();
    for (at, (call, name)) in needed.iter().chain(&replaced).enumerate() {
        for answer in ["EPERM", "ENOSYS", "KILL"] {
            let is_needed = at < needed.len();
            // Nothing of us works if statx kills, and what is killed for a call that has a substitute does not get there.
            if answer == "KILL" && (!is_needed || *call == "statx") {
                continue;
            }
            let place = Place::of(user);
            let (status, checks) = doctor(&place, &[&format!("{answer}={call}")]);
            let [check] = checks.as_slice() else { panic!("{answer} {call}: {checks:?}") };
            assert_eq!(check["call"], *name, "{answer} {call}");
            assert_eq!(check["by"], "filter", "{answer} {call}: {check}");
            let verdict = if is_needed { "finding" } else { "note" };
            assert_eq!(check["verdict"], verdict, "{answer} {call}: {check}");
            assert_eq!(status, i32::from(is_needed), "{answer} {call}: {check}");
        }
    }
    // The kernel has one listener for a process.
    let (status, checks) = doctor(&Place::of(user), &["HOLD=all"]);
    assert!(checks.is_empty() || checks[0]["by"] == "listener", "{checks:?}");
    assert_eq!(status, 0, "{checks:?}");
}

#[test]
fn command_runs_unrecorded_if_asked_where_a_call_is_missing_and_a_shell_says_so_once() {
    for (rule, word) in [
        ("ENOSYS=pidfd_open", "pidfd_open: Function not implemented"),
        ("EPERM=eventfd2", "eventfd: Operation not permitted"),
        ("EPERM=ptrace:16902", "PTRACE_SEIZE"),
        ("EPERM=ptrace:16910", "PTRACE_GET_SYSCALL_INFO"),
        ("EPERM=socketpair", "Operation not permitted"),
        ("EPERM=statx", "without statx"),
    ] {
        let place = Place::of(User::ordinary());
        let runtime = place.base().join("runtime");
        place.prepare("mkdir ../runtime");
        let run = || {
            let mut command = place.program(program("seal"));
            command.arg(rule).arg(place.executable(SHELL.as_ref())).args(["-c", "echo ran; exit 3"]);
            command.env("AGENT_SNAPSHOT_SESSION", "s").env("XDG_RUNTIME_DIR", &runtime).output().unwrap()
        };
        let [first, second] = [run(), run()];
        for output in [&first, &second] {
            assert_eq!(
                (output.status.code(), output.stdout.as_slice()),
                (Some(3), &b"ran\n"[..]),
                "{rule}: {output:?}"
            );
        }
        let said = stderr(&first);
        assert!(said.contains(word) && said.ends_with("; the command runs unrecorded\n"), "{rule}: {said}");
        assert_eq!(said.lines().count(), 1, "{rule}: {said}");
        assert_eq!(stderr(&second), "", "{rule}");
        for (unavailable, printed, status) in [("fail", "", 125), ("run", "ran\n", 3)] {
            let mut command = place.program(program("seal"));
            command.arg(rule).arg(place.executable(BINARY.as_ref())).arg("--snapshot-dir").arg(&place.out);
            command.args(["--if-unavailable", unavailable, "sh", "-c", "echo ran; exit 3"]);
            let output = command.output().unwrap();
            assert_eq!(output.stdout, printed.as_bytes(), "{rule}: {output:?}");
            assert_eq!(output.status.code(), Some(status), "{rule}: {output:?}");
            assert!(
                stderr(&output).contains(word) && stderr(&output).lines().count() == 1,
                "{rule}: {output:?}"
            );
            assert!(!place.out.exists(), "{rule}: {unavailable}");
        }
    }
}
