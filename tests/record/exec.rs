//! Executed programs: their interpreters, arguments and privileges.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt as _;

use agent_snapshot::snapshot::{Operation, Operations, WarningKind};

use super::record_scenario;
use crate::support::{BINARY, Place, User, chmod, copy_program, lost, program, stderr};

#[test]
fn unnamed_program_has_its_interpreter_and_image() {
    for call in ["execve", "execveat"] {
        for what in ["script", "program"] {
            let place = Place::new();
            place.write("i", "#!/bin/sh\necho ran $1\n");
            chmod(place.at("i"), 0o755);
            copy_program(program("bypass"), place.at("p"));
            let (said, snapshot) = record_scenario(&place, &[], &["unnamed", call, what]);
            let (seen, recorded, exe) = match what {
                "script" => ("ran word\n", ["i read+execute"], b"/memfd:s (deleted)".to_vec()),
                _ => ("unnamed\n", ["p read+delete"], [&place.path("p"), b" (deleted)".as_slice()].concat()),
            };
            assert!(said.starts_with(seen), "{call} {what}: {said}");
            assert_eq!(place.recorded(&snapshot), recorded, "{call} {what}");
            assert_eq!(lost(&snapshot), []);
            let image = &snapshot.header().processes[0].image;
            assert_eq!(String::from_utf8_lossy(&image.exe), String::from_utf8_lossy(&exe), "{call} {what}");
            assert_eq!(image.argv, [b"named".to_vec(), b"--list".to_vec()]);
        }
    }
}

/// A copy of a test program, whose loader is `ld` in the working directory, copied there.
fn program_with_its_own_loader(place: &Place, name: &str) -> bool {
    let mut bytes = fs::read(program("bypass")).unwrap();
    let loader = b"/lib64/ld-linux-x86-64.so.2";
    let Some(at) = bytes.windows(loader.len()).position(|window| window == loader) else {
        println!("skipped: programs use another loader here");
        return false;
    };
    copy_program(std::str::from_utf8(loader).unwrap(), place.at("ld"));
    bytes[at..at + loader.len()].fill(0);
    bytes[at..at + 4].copy_from_slice(b"./ld");
    fs::write(place.at(name), bytes).unwrap();
    chmod(place.at(name), 0o755);
    true
}

#[test]
fn binfmt_misc_interpreter_is_recorded_as_executed() {
    // Linux 6.7: a user namespace has interpreters of its own.
    let register = "mount -t binfmt_misc x bm && echo \":t:E::foo::$PWD/i:\" > bm/register";
    for inside in [false, true] {
        let place = Place::new();
        fs::create_dir(place.at("bm")).unwrap();
        if !place.can_run(&["unshare", "-Urm", "sh", "-c", register])
            || !program_with_its_own_loader(&place, "i")
        {
            return;
        }
        place.write("x.foo", "what only its interpreter knows\n");
        chmod(place.at("x.foo"), 0o755);
        let (run, binary) = ("./x.foo 2> /dev/null; echo $?", BINARY);
        let record = format!("{binary} --snapshot-dir {}", place.out.display());
        let script = if inside {
            format!("{record} unshare -Urm sh -c '{register} && {run}'")
        } else {
            format!("unshare -Urm sh -c '{register} && {record} sh -c \"$1\"' sh '{run}'")
        };
        let output = place.program("sh").args(["-c", &script]).output().unwrap();
        assert_eq!(output.stdout, b"2\n", "{}", stderr(&output));
        let snapshot = place.snapshot();
        let mut recorded = place.recorded(&snapshot);
        recorded.retain(|record| !record.starts_with("bm"));
        let expected = ["i", "ld", "x.foo"].map(|name| format!("{name} read+execute"));
        assert_eq!(recorded, expected, "inside: {inside}");
    }
}

#[test]
fn set_user_id_program_is_reported() {
    // Root has the privilege.
    let place = Place::of(User::ordinary());
    if !place.can_run(&["su", "--version"]) {
        return;
    }
    let (output, snapshot) = place.record_any("su --version");
    assert!(output.status.success());
    assert_eq!(lost(&snapshot), []);
    assert!(snapshot.header().warnings.iter().any(|warning| warning.kind == WarningKind::Setuid));
}

#[test]
fn megabytes_of_arguments_are_truncated_in_the_manifest() {
    let place = Place::new();
    // The kernel takes 6 MB of arguments at most, and one of 128 KiB (execve(2)).
    let script = |record: &str| {
        format!(
            "ulimit -s unlimited 2> /dev/null || ulimit -s 65536 || exit; a=$(head -c 100000 /dev/zero | tr '\\0' x)
             args=(); while [ ${{#args[@]}} -lt 55 ]; do args+=($a); done
             exec {record} sh -c 'echo $#; env echo \"$@\" | wc -c' \"${{args[@]}}\" last"
        )
    };
    if !place.can_run(&["bash", "-c", &script("")]) {
        return;
    }
    let record = script(&format!("{BINARY} --snapshot-dir {}", place.out.display()));
    let output = place.program("bash").args(["-c", &record]).output().unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    let said = String::from_utf8(output.stdout).unwrap();
    assert_eq!(
        said.split_whitespace().map(|word| word.parse().unwrap()).collect::<Vec<usize>>(),
        [55, 54 * 100_001 + 5]
    );
    let snapshot = place.snapshot();
    let images =
        snapshot.header().processes.iter().flat_map(|process| process.execs.iter().chain([&*process.image]));
    assert!(images.clone().any(|image| image.argv_truncated));
    assert!(images.clone().all(|image| image.argv.iter().map(Vec::len).sum::<usize>() <= 64 << 10));
    assert!(snapshot.header().complete);
}

#[test]
fn each_use_tells_the_process_and_the_program_that_made_it() {
    for mechanism in ["auto", "stops"] {
        let place = Place::new();
        place.write("in", "b\na\n");
        place.write("kept", "");
        let script = "read line < in; (echo > out; exec env true); chmod 600 kept; cat kept; exec env cat in";
        let output = place.record_with(&["--mechanism", mechanism], script);
        assert!(output.status.success(), "{output:?}");
        let snapshot = place.snapshot();
        let processes = &snapshot.header().processes;
        let uses = |name: &str| {
            let uses = place.file(&snapshot, name).uses.iter().map(|used| {
                let process = processes.iter().find(|process| process.id == used.process).unwrap();
                let exe = used.exe.as_deref().unwrap_or(&process.image.exe);
                let exe = fs::canonicalize(OsStr::from_bytes(exe)).unwrap();
                let operations: Vec<_> = used.operations.iter().map(Operation::name).collect();
                let last = if used.exe.is_none() { "" } else { " before its last program" };
                let program = exe.file_name().unwrap().to_str().unwrap().to_owned();
                (used.process, format!("{} by {program}{last}", operations.join("+")))
            });
            uses.collect::<Vec<_>>()
        };
        let shell = fs::canonicalize("/bin/sh").unwrap();
        let shell = shell.file_name().unwrap().to_str().unwrap();
        let of_shell = format!("read by {shell} before its last program");
        assert_eq!(uses("in"), [(1, of_shell), (1, "read by cat".to_owned())], "{mechanism}");
        // What it had from its parent, and executed two programs after.
        assert_eq!(uses("out"), [(2, format!("write by {shell} before its last program"))]);
        let kept = uses("kept");
        assert_eq!(kept.len(), 2, "{kept:?}");
        assert!(kept[0].1.ends_with("metadata by chmod") && kept[1].1 == "read by cat", "{kept:?}");
        for record in snapshot.files() {
            let mut of_uses: Vec<u32> = record.uses.iter().map(|used| used.process).collect();
            of_uses.dedup();
            assert!(record.processes.iter().all(|process| of_uses.contains(process)), "{record:?}");
            let all = record.uses.iter().fold(Operations::NONE, |all, used| all.union(used.operations));
            assert_eq!(all, record.operations, "{record:?}");
        }
    }
}
