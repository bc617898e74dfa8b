//! What recordings hold of files that may not be read: nothing in the tree gets at it.

use std::path::PathBuf;

use super::{enforced, refused};
use crate::support::{BINARY, Place, User, has};

const SECRET: &str = "what nobody may read";

/// A place with something secret outside of its working directory.
fn place(user: User) -> Place {
    let place = Place::of(user);
    place.prepare(&format!("mkdir ../shut; echo '{SECRET}' > ../shut/secret; echo old > f"));
    place
}

/// Prints where the secret is found: in files below directories, and in the recorder's descriptors and memory.
const SEARCH: &str = r#"
import ctypes, os, stat, sys
needle = bytes(reversed(b"daer yam ydobon tahw"))
tracer = next(line.split()[1] for line in open("/proc/self/status") if line.startswith("TracerPid"))

def search(path):
    try:
        file = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    except OSError:
        return
    if stat.S_ISREG(os.fstat(file).st_mode) and needle in os.pread(file, 1 << 20, 0):
        print(path)
    os.close(file)

for root in sys.argv[1:]:
    for directory, _, names in os.walk(root):
        for name in names:
            search(os.path.join(directory, name))
for number in os.listdir(f"/proc/{tracer}/fd"):
    search(f"/proc/{tracer}/fd/{number}")

class Vector(ctypes.Structure):
    _fields_ = [("base", ctypes.c_void_p), ("length", ctypes.c_size_t)]

libc = ctypes.CDLL(None)
try:
    memory = os.open(f"/proc/{tracer}/mem", os.O_RDONLY)
except OSError:
    memory = None
for line in open(f"/proc/{tracer}/maps"):
    (start, end), rights = (int(one, 16) for one in line.split()[0].split("-")), line.split()[1]
    if not rights.startswith("rw") or end - start > 64 << 20:
        continue
    room = ctypes.create_string_buffer(end - start)
    ours, theirs = Vector(ctypes.addressof(room), end - start), Vector(start, end - start)
    if libc.process_vm_readv(int(tracer), ctypes.byref(ours), 1, ctypes.byref(theirs), 1, 0) > 0 and needle in room.raw:
        print("memory by process_vm_readv")
    if memory is not None and needle in os.pread(memory, end - start, start):
        print("memory by /proc")
"#;

#[test]
fn what_is_kept_for_an_undo_is_read_by_nothing() {
    // One of @system.
    if !has("/usr/bin/python3") {
        return;
    }
    for &user in User::all() {
        for mechanism in ["auto", "stops"] {
            for rules in [
                &["--deny-read", "../shut"][..],
                // Without a rule that denies, what has no name is not allowed by any.
                &[
                    "--allow-read=@system",
                    "--allow-read=@workspace",
                    "--allow-read=/proc",
                    "--allow-read=../out",
                ],
            ] {
                let place = place(user);
                std::fs::write(place.at("search.py"), SEARCH).unwrap();
                let script = "rm ../shut/secret; PATH=/usr/bin:/bin python3 search.py ../out";
                let rules = [&["--mechanism", mechanism], rules].concat();
                let output = enforced(&place, &rules, script);
                assert_eq!(String::from_utf8_lossy(&output.stdout), "", "{rules:?} {user:?} {output:?}");
                let refused = refused(&place);
                assert!(
                    refused.contains(&"protected out/.agent-snapshot-journal read".to_owned()),
                    "{rules:?} {user:?} {refused:?}"
                );
            }
        }
    }
}

#[test]
fn our_own_program_gets_no_content_that_may_not_be_read_and_all_other() {
    for &user in User::all() {
        let place = place(user);
        let run = |script: &str| {
            let output = place.command().args(["run", "--quiet", "sh", "-c", script]).output().unwrap();
            assert!(output.status.success(), "{output:?}");
        };
        run("echo new > f; cat ../shut/secret > /dev/null; rm ../shut/secret");
        run("echo newer > f");
        let program = place.executable(&PathBuf::from(BINARY)).display().to_string();
        let script = format!(
            "a={program}
            $a cat @~1 ../shut/secret --before; $a diff @~1; $a undo @~1 --force > /dev/null; echo $?; ls ../shut
            grep -rl '{SECRET}' ~/.local/state
            $a log | grep -c newer; $a show @~1 | grep -c 'rm ../shut'; $a diff @ | grep newer; $a undo > /dev/null; cat f"
        );
        let output = enforced(&place, &["--deny-read", "../shut"], &script);
        let printed = String::from_utf8_lossy(&output.stdout);
        assert_eq!(printed, "125\n1\n1\n+newer\nnew\n", "{user:?} {output:?}");
        assert_eq!(refused(&place), ["deny-read ../shut shut/secret read"], "{user:?}");
        assert_eq!(
            place.prepare(&format!("{program} undo @~1 > /dev/null; cat ../shut/secret f")),
            format!("{SECRET}\nold\n")
        );
    }
}

#[test]
fn our_own_program_says_what_it_may_not_read() {
    for &user in User::all() {
        let place = place(user);
        let run = place.command().args(["run", "--quiet", "rm", "../shut/secret"]).output().unwrap();
        assert!(run.status.success(), "{run:?}");
        let program = place.executable(&PathBuf::from(BINARY)).display().to_string();
        let script = format!("{program} fsck; echo $?; {program} recover ../out 2>&1; echo $?");
        let output = enforced(&place, &["--deny-read", "../shut"], &script);
        let printed = String::from_utf8_lossy(&output.stdout);
        assert!(printed.contains("not readable: snapshots/"), "{user:?} {output:?}");
        assert!(printed.contains("blobs.parquet: Permission denied"), "{user:?} {output:?}");
        assert!(printed.contains(".agent-snapshot-journal: Permission denied"), "{user:?} {output:?}");
        assert!(
            printed.contains("\n1\nagent-snapshot: ") && printed.ends_with("\n125\n"),
            "{user:?} {output:?}"
        );
    }
}

#[test]
fn our_own_program_that_is_told_to_load_code_is_any_program() {
    for &user in User::all() {
        let place = place(user);
        let run = place.command().args(["run", "--quiet", "sh", "-c", "echo new > f"]).output().unwrap();
        assert!(run.status.success(), "{run:?}");
        let program = place.executable(&PathBuf::from(BINARY)).display().to_string();
        let script = format!(
            "LD_LIBRARY_PATH=/nowhere {program} undo > /dev/null; cat f; {program} undo > /dev/null; cat f"
        );
        let output = enforced(&place, &["--deny-read", "absent"], &script);
        assert_eq!(String::from_utf8_lossy(&output.stdout), "new\nold\n", "{user:?} {output:?}");
    }
}

#[test]
fn a_file_without_a_private_key_is_known_until_it_changes() {
    let text = "nothing that would be secret at all, and many more words\n";
    let key =
        "-----BEGIN OPENSSH PRIVATE KEY-----\nb3BlbnNzaC1rZXktdjEA\n-----END OPENSSH PRIVATE KEY-----\n";
    for &user in User::all() {
        let place = place(user);
        place.write("notes", text);
        // The library.
        assert!(place.command().args(["run", "--quiet", "true"]).status().unwrap().success());
        let table = place.home.join(".local/state/agent-snapshot/keyless");
        let read = |place: &Place, script: &str| {
            let output = enforced(place, &["--deny-read", "@secrets"], script);
            (String::from_utf8_lossy(&output.stdout).into_owned(), refused(place))
        };
        // As long as one more change may get the same time, it is not kept.
        while std::fs::metadata(&table).is_ok_and(|table| table.len() == 0) || !table.exists() {
            assert_eq!(read(&place, "cat notes"), (text.to_owned(), Vec::new()), "{user:?}");
        }
        let script = format!(
            "t={}; (: > $t) || rm -f $t || mv $t x || truncate -s 1 $t || cat notes",
            table.display()
        );
        assert_eq!(read(&place, &script), (text.to_owned(), Vec::new()), "{user:?}");
        place.write("notes", key);
        let refusals = vec!["deny-read @secrets work/notes read".to_owned()];
        assert_eq!(read(&place, "cat notes"), (String::new(), refusals), "{user:?}");
    }
}
