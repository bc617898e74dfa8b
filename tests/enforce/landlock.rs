//! `--landlock`: the kernel refuses, too, what it can tell from the rules that allow.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;

use super::{enforced, refused};
use crate::support::{BINARY, Place, User, is_root, json, program, scan, stderr, stdout};

/// Whether the kernel has Landlock at all.
pub fn has_landlock(place: &Place) -> bool {
    let output = place.record_with(&["--enforce", "--landlock", "--allow-write", "/"], ":");
    let has = output.status.success();
    if !has {
        println!("skipped: {}", stderr(&output));
    }
    has
}

#[test]
fn the_kernel_refuses_what_no_recorder_judges() {
    for &user in User::all() {
        let place = Place::of(user);
        if !has_landlock(&place) {
            return;
        }
        // Writing to a FIFO changes nothing; mounts are forbidden to whoever is in a domain.
        let script = "mkfifo ../p; (: <> ../p) 2> /dev/null || echo no fifo; \
            (unshare -Urm mount -t tmpfs none / || unshare -m mount -t tmpfs none /) 2> /dev/null || echo no mount";
        let [without, with] = [&[][..], &["--landlock"]].map(|landlock| {
            let rules = ["--allow-write", "@workspace", "--allow-write", "../p"];
            stdout(&enforced(&place, &[&rules, landlock].concat(), script))
        });
        assert!(!without.contains("no fifo"), "{without}");
        assert_eq!(with.lines().last(), Some("no mount"), "{with}");
        fs::remove_file(place.base().join("p")).unwrap();
        place.prepare("mkfifo ../q");
        let script = "(: <> ../q) 2> /dev/null || echo no fifo";
        let policy = place.base().join("policy.toml");
        fs::write(&policy, "enforce = true\nlandlock = true\nallow-write = ['@workspace']\n").unwrap();
        let output = place.record_with(&["--policy", policy.to_str().unwrap()], script);
        assert_eq!(stdout(&output), "no fifo\n", "{output:?}");
        let manifest = json(&place.out.join("manifest.json"));
        assert_eq!(manifest["enforcement"]["landlock"], serde_json::json!(["allow-write"]));
        assert_eq!((manifest.get("refused"), &manifest["complete"]), (None, &true.into()));
    }
}

/// What rules allow works in a domain, too, though it did not exist at the launch.
#[test]
fn what_is_made_or_moved_later_is_allowed_as_before() {
    let place = Place::new();
    if !has_landlock(&place) {
        return;
    }
    fs::create_dir_all(place.base().join("other/of")).unwrap();
    let rules =
        ["--allow-write", "@workspace", "--allow-write", "../other/new", "--allow-write", "../other/of/*.o"];
    let script = "mkdir -p ../other/new/d a/b && echo 1 > ../other/new/d/f && mv ../other/new/d a && \
        ln a/d/f a/b/g && mv a/b ../other/new && echo 2 > ../other/of/x.o && mv ../other/of/x.o . && \
        ln -s a l && echo 3 > l/h && truncate -s 1 a/h && rm -r a l ../other/new && echo done > /dev/null && \
        echo $$ > /dev/shm/$$ && rm /dev/shm/$$; echo $?; echo 4 > ../other/of/x.c; mv x.o ../other";
    let rules = [&rules[..], &["--allow-write", "/dev/shm", "--landlock"]].concat();
    let output = enforced(&place, &rules, script);
    assert_eq!(stdout(&output), "0\n", "{output:?}");
    // The recorder is stricter than the bounds that the kernel knows.
    assert_eq!(refused(&place), ["allow-write other/of/x.c write", "allow-write other/x.o write"]);
}

#[test]
fn our_own_program_works_in_a_domain() {
    let place = Place::new();
    if !has_landlock(&place) {
        return;
    }
    place.write("f", "old");
    let recorded = place.run(["run", "--", "sh", "-c", "echo new > f"].map(OsStr::new));
    assert_eq!(recorded.status, 0, "{recorded:?}");
    let rules = ["--enforce", "--landlock", "--allow-write", "@workspace", "--"];
    let undone = [&["run"], &rules[..], &[BINARY, "undo"]].concat();
    let undone = place.run(undone.into_iter().map(OsStr::new));
    assert_eq!(
        (undone.status, fs::read_to_string(place.at("f")).unwrap().as_str()),
        (0, "old"),
        "{undone:?}"
    );
}

#[test]
fn ports_and_abstract_sockets_have_bounds() {
    let place = Place::new();
    if !has_landlock(&place) {
        return;
    }
    let script = r#"exec python3 -c '
import socket
def tried(family, address):
    try:
        with socket.socket(family) as one: one.bind(address)
        return "bound"
    except OSError as error: return error.strerror
print(tried(socket.AF_INET, ("127.0.0.1", 1)), tried(socket.AF_INET, ("127.0.0.1", 0)), tried(socket.AF_UNIX, "s"))
'"#;
    let rules = ["--allow-net", "localhost:1", "--allow-unix", "@workspace", "--landlock"];
    let output = enforced(&place, &rules, script);
    let denied = "Permission denied";
    let privileged = if is_root() { "bound" } else { denied };
    assert_eq!(stdout(&output), format!("{privileged} {denied} bound\n"), "{output:?}");
    let manifest = json(&place.out.join("manifest.json"));
    assert_eq!(manifest["enforcement"]["landlock"], serde_json::json!(["allow-net", "allow-unix"]));
}

/// Random programs that may do all do the same in a domain.
#[test]
fn nothing_is_refused_that_rules_allow() {
    if !has_landlock(&Place::new()) {
        return;
    }
    let program = program("random");
    for &user in User::all() {
        for seed in 0..6_u64 {
            let run = |options: &[&str]| {
                let place = Place::of(user);
                let seed = seed.to_string();
                place.program(&program).args(["--setup", &seed]).output().unwrap();
                let mut command = place.recording();
                let output =
                    command.args(options).arg(place.executable(&program)).arg(&seed).output().unwrap();
                let base = place.base().as_os_str().as_encoded_bytes().to_vec();
                let tree = scan(&place.work).into_iter().map(|(path, entry)| {
                    let present = entry.present;
                    // The target of a symlink may be in the place.
                    let state = (present.file_type, present.mode, present.nlink);
                    (path[base.len()..].to_vec(), (state, entry.content))
                });
                (output.status.code(), stdout(&output), tree.collect::<BTreeMap<_, _>>())
            };
            let rules = ["--enforce", "--allow-write", "/", "--allow-read", "/", "--allow-unix", "/"];
            assert_eq!(run(&rules), run(&[&rules[..], &["--landlock"]].concat()), "{seed} as {user:?}");
        }
    }
}

#[test]
fn what_landlock_can_not_do_is_one_sentence() {
    let place = Place::new();
    let why = "--landlock is for rules that are enforced: it needs --enforce";
    for rules in [&["--allow-write", "."][..], &[]] {
        let output = place.record_with(&[&["--landlock"], rules].concat(), ":");
        assert_eq!((output.status.code(), stderr(&output)), (Some(125), format!("agent-snapshot: {why}\n")));
    }
    let none = "Landlock knows no rule but those that allow";
    let output = enforced(&place, &["--landlock", "--deny-write", "x"], ":");
    let why = format!("rules can't be enforced here: {none}; --enforce=best-effort enforces the rest");
    assert_eq!((output.status.code(), stderr(&output)), (Some(125), format!("agent-snapshot: {why}\n")));
    let output = place.record_with(&["--enforce=best-effort", "--landlock", "--deny-write", "x"], ": > x");
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    let manifest = json(&place.out.join("manifest.json"));
    assert_eq!(manifest["enforcement"]["limits"], serde_json::json!([none]));
    assert_eq!(refused(&place), ["deny-write x work/x write"]);
}
