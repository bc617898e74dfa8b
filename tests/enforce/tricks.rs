//! Tricks that would have the kernel make a call that no rule was applied to.

use std::fs;
use std::process::Output;

use agent_snapshot::snapshot::Operation;

use super::{enforced, refused};
use crate::support::{Place, User, has, json, needs_root, numbered, stdout};

/// Runs a session of Python with rules that are enforced.
fn session(place: &Place, rules: &[&str], python: &str) -> Output {
    let mut command = place.command();
    command.args(["session", "--enforce"]).args(rules).args(["--", "python3", "-c", python]);
    command.current_dir(&place.work).output().unwrap()
}

/// A process whose memory the recorder may not read is refused what rules could forbid.
#[test]
fn unreadable_process_is_refused_what_can_not_be_judged() {
    let place = Place::of(User::ordinary());
    place.prepare("echo old > secret; cp /bin/rm own-rm; chmod 111 own-rm");
    let output = enforced(&place, &["--deny-write", "secret"], "./own-rm -f secret");
    assert_ne!(output.status.code(), Some(0), "{output:?}");
    assert!(place.at("secret").exists(), "{output:?}");
    assert_eq!(json(&place.out.join("manifest.json"))["complete"], false);

    // The map of its memory is open by then.
    let script = r#"exec python3 -c '
import ctypes
open("known").read()
ctypes.CDLL(None).prctl(4, 0)
try: print(open("secret").read())
except OSError as error: print(error.strerror)
'"#;
    place.write("known", "known");
    let output = enforced(&place, &["--deny-read", "secret"], script);
    assert_eq!(stdout(&output), "Permission denied\n", "{output:?}");
}

/// The kernel reads for a process what is mapped for writing or executing alone, and nothing that is mapped for nothing; the
/// recorder could read all of it.
#[test]
fn a_path_is_read_where_the_kernel_reads_it() {
    let place = Place::new();
    place.prepare("echo old > secret");
    let script = r#"exec python3 -c '
import ctypes, errno, mmap
libc = ctypes.CDLL(None, use_errno=True)
page = mmap.mmap(-1, 2 * mmap.PAGESIZE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
page.write(bytes(mmap.PAGESIZE - 3) + b"secret")
at = ctypes.addressof(ctypes.c_char.from_buffer(page)) + mmap.PAGESIZE
for protection in 2, 4, 0:
    assert libc.mprotect(ctypes.c_void_p(at), mmap.PAGESIZE, protection) == 0
    calls = libc.open(ctypes.c_void_p(at - 3), 0), libc.unlink(ctypes.c_void_p(at - 3))
    print(calls, errno.errorcode.get(ctypes.get_errno()))
'"#;
    let rules = ["--deny-read", "secret", "--deny-write", "secret"];
    let output = enforced(&place, &rules, script);
    assert_eq!(stdout(&output), "(-1, -1) EACCES\n(-1, -1) EACCES\n(-1, -1) EFAULT\n", "{output:?}");
    let expected = ["deny-read secret work/secret read", "deny-write secret work/secret delete"];
    assert_eq!(refused(&place), expected);
    // A recording without rules has what was opened and removed.
    let (output, snapshot) = place.record_any(script);
    assert!(stdout(&output).starts_with("(3, 0)"), "{output:?}");
    let files = snapshot.files();
    let secret = files.iter().find(|file| file.path == place.path("secret")).unwrap();
    assert!(secret.operations.contains(Operation::Read) && secret.operations.contains(Operation::Delete));
}

/// Calls whose arguments, or effects, no recorder can see.
#[test]
fn calls_that_can_not_be_judged_fail() {
    let place = Place::new();
    let script = numbered(
        r#"exec python3 -c '
import ctypes, errno, fcntl, os, pty
libc = ctypes.CDLL(None, use_errno=True)
def tried(number, *arguments):
    result = libc.syscall(number, *arguments)
    return errno.errorcode[ctypes.get_errno()] if result < 0 else "made"
print("memfd_secret", tried(SYS_memfd_secret, 0))
print("clone3", tried(SYS_clone3, 0, 0))
leader, terminal = pty.openpty()
for name, request in (("TIOCSTI", 0x5412), ("TIOCLINUX", 0x541c)):
    try: print(name, fcntl.ioctl(terminal, request, b"x"))
    except OSError as error: print(name, errno.errorcode[error.errno])
'"#,
    );
    let output = enforced(&place, &["--deny-write", "x"], &script);
    let expected = "memfd_secret ENOSYS\nclone3 ENOSYS\nTIOCSTI EPERM\nTIOCLINUX EPERM\n";
    assert_eq!(stdout(&output), expected, "{output:?}");
    // A recording without rules can't read paths from such memory either.
    let (output, _) = place.record_any(&script);
    assert!(stdout(&output).starts_with("memfd_secret ENOSYS\nclone3 EINVAL\n"), "{output:?}");
    assert_eq!(json(&place.out.join("manifest.json"))["complete"], true);
}

#[test]
fn memory_of_the_recorder_is_protected_on_every_procfs() {
    if !needs_root("a mount") || !has("unshare") {
        return;
    }
    let place = Place::new();
    place.prepare("mkdir other");
    let script = "mount -t proc p other && { \
        recorder=$(sed -n 's/TracerPid:\\t//p' /proc/self/status); \
        (: < other/$recorder/mem) || echo refused; (: > other/$recorder/mem) || echo refused; umount other; }";
    let output = enforced(&place, &["--deny-read", "secret"], script);
    assert_eq!(stdout(&output), "refused\nrefused\n", "{output:?}");
    assert!(refused(&place).iter().all(|line| line.starts_with("protected work/other/")), "{output:?}");
}

#[test]
fn interpreters_of_what_the_program_of_a_session_starts_are_judged() {
    let place = Place::new();
    place.prepare(
        "cp /bin/sh own-sh; echo \"#!$PWD/own-sh\" > script; echo echo ran >> script; chmod 755 script",
    );
    let python = "import subprocess\ntry: print(subprocess.run([\"./script\"]))\nexcept OSError as e: print(e.strerror)";
    let output = session(&place, &["--deny-exec", "./own-sh"], python);
    assert_eq!(stdout(&output), "Permission denied\n", "{output:?}");
}

/// The rules of a session also hold when it can't begin another recording.
#[test]
fn rules_hold_where_nothing_can_be_recorded_any_more() {
    let place = Place::new();
    fs::write(place.at("secret"), "old").unwrap();
    let python = "import resource, subprocess
line = next(line for line in open('/proc/self/status') if line.startswith('TracerPid'))
for most in (12, 16, 20, 24):
    resource.prlimit(int(line.split()[1]), resource.RLIMIT_NOFILE, (most, most))
    for change in (lambda: open('secret', 'w').write('new'), lambda: subprocess.run(['sh', '-c', 'echo new > secret'])):
        try: change()
        except OSError: pass
";
    let output = session(&place, &["--deny-write", "./secret"], python);
    assert_eq!(fs::read_to_string(place.at("secret")).unwrap(), "old", "{output:?}");
}

/// acct(2) opens a file for the kernel, and its result is no descriptor.
#[test]
fn the_result_of_acct_is_no_descriptor() {
    let place = Place::new();
    // In a namespace of its own it accounts for no process of others.
    let off = "import ctypes, sys; sys.exit(ctypes.CDLL(None).acct(None))";
    if !needs_root("acct") || !place.can_run(&["unshare", "--pid", "--fork", "python3", "-c", off]) {
        return;
    }
    place.prepare("echo standard input > input; : > log");
    let script = "unshare --pid --fork python3 -c '
import ctypes
acct = ctypes.CDLL(None).acct
print(acct(b\"log\"), acct(None))' < input";
    let (output, snapshot) = place.record_any(script);
    assert_eq!(stdout(&output), "0 0\n", "{output:?}");
    assert!(snapshot.header().complete, "{:?}", snapshot.header().warnings);
    let output = enforced(&place, &["--allow-write", "./log"], script);
    assert_eq!(stdout(&output), "0 0\n", "{output:?}");
}
