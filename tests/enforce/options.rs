//! The option itself: what it needs, what the manifest says, and how the command ends.

use super::{enforced, refused};
use crate::support::{Place, json, stderr};

#[test]
fn the_manifest_says_what_was_enforced_and_refused() {
    let place = Place::new();
    let output =
        enforced(&place, &["--deny-write", "x", "--allow-write", "@workspace"], "echo > x; echo > x; exit 3");
    assert_eq!(output.status.code(), Some(3), "the status is the command's: {output:?}");
    let manifest = json(&place.out.join("manifest.json"));
    assert_eq!(
        manifest["enforcement"],
        serde_json::json!({"mode": "refuse", "rules": ["allow-write @workspace", "deny-write x"], "limits": []})
    );
    assert_eq!(
        manifest["refused"],
        serde_json::json!([{
            "path": place.at("x"), "operation": "write", "rule": "deny-write x", "process": 1, "count": 2
        }])
    );
    assert_eq!(manifest["complete"], true);
    let place = Place::new();
    place.record(": > x");
    let manifest = json(&place.out.join("manifest.json"));
    assert_eq!((manifest.get("enforcement"), manifest.get("refused")), (None, None));
}

#[test]
fn the_first_refusal_may_end_it_all() {
    let place = Place::new();
    let options = ["--enforce=end", "--deny-write", "x"];
    let output = place.record_with(&options, "sleep 1000 & : > x; sleep 1000");
    assert_eq!(output.status.code(), Some(125), "{output:?}");
    let told = "agent-snapshot: 1 call was refused by rules, which ended the command: write ";
    let said = stderr(&output);
    assert!(said.lines().filter(|line| line.starts_with("agent-snapshot: ")).count() == 1, "{said}");
    assert!(said.contains(told), "{said}");
    assert_eq!(refused(&place), ["deny-write x work/x write"]);
    let manifest = json(&place.out.join("manifest.json"));
    assert_eq!((&manifest["enforcement"]["mode"], &manifest["exit_status"]), (&"end".into(), &125.into()));
    // Without one it ends as it ends.
    let output = place.record_with(&options, ": > y; exit 4");
    assert_eq!(output.status.code(), Some(4), "{output:?}");
}

#[test]
fn options_that_contradict_enforcement_are_one_sentence() {
    let place = Place::new();
    for (options, why) in [
        (&["--enforce"][..], "--enforce needs a rule, such as --deny-read @secrets"),
        (
            &["--enforce", "--deny-write", "x", "--allow-io-uring"],
            "--enforce can't be combined with --allow-io-uring, whose operations are not seen",
        ),
        (
            &["--enforce", "--deny-write", "x", "--if-unavailable", "run"],
            "--enforce can't be combined with --if-unavailable run: what is not recorded is not refused",
        ),
    ] {
        let output = place.record_with(options, "echo on");
        assert_eq!(output.status.code(), Some(125), "{options:?}");
        assert_eq!(stderr(&output), format!("agent-snapshot: {why}\n"), "{options:?}");
        assert!(output.stdout.is_empty(), "{options:?}");
    }
}

#[test]
fn calls_of_which_nobody_can_say_what_they_use_are_refused() {
    if !crate::support::has("python3") {
        return;
    }
    let place = Place::new();
    let script = "python3 -c \"
import ctypes, errno, os
libc = ctypes.CDLL(None, use_errno=True)
def attempt(what, *arguments):
    ctypes.set_errno(0)
    libc.syscall(*arguments)
    print(what, errno.errorcode.get(ctypes.get_errno(), 'ok'))
OPEN_BY_HANDLE, GETFD = {'x86_64': (304, 438), 'aarch64': (265, 438)}[os.uname().machine]
attempt('handle', OPEN_BY_HANDLE, -100, None, 0)
attempt('getfd', GETFD, -1, 0, 0)
attempt('new', 5000)
try: open('/proc/self/mem', 'r+b')
except OSError as error: print('memory', errno.errorcode[error.errno])
\"";
    let output = enforced(&place, &["--deny-read", "../secret"], script);
    let printed = String::from_utf8_lossy(&output.stdout);
    assert!(printed.starts_with("handle EPERM\ngetfd EPERM\nnew ENOSYS\n"), "{output:?}");
    assert!(printed.ends_with("memory EACCES\n"), "{output:?}");
}
