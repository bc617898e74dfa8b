//! Executed programs: their interpreters, arguments and privileges.

use std::fs;

use agent_snapshot::snapshot::WarningKind;

use super::record_scenario;
use crate::support::{BINARY, Place, User, chmod, lost, program, stderr};

#[test]
fn unnamed_program_has_its_interpreter_and_image() {
    for call in ["execve", "execveat"] {
        for what in ["script", "program"] {
            let place = Place::new();
            place.write("i", "#!/bin/sh\necho ran $1\n");
            chmod(place.at("i"), 0o755);
            fs::copy(program("bypass"), place.at("p")).unwrap();
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
    fs::copy(std::str::from_utf8(loader).unwrap(), place.at("ld")).unwrap();
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
fn ten_mebibytes_of_arguments_are_truncated_in_the_manifest() {
    let place = Place::new();
    // Half of the stack may be arguments, and one is at most 128 KiB.
    let script = |record: &str| {
        format!(
            "ulimit -s unlimited 2> /dev/null || ulimit -s 65536 || exit; a=$(head -c 100000 /dev/zero | tr '\\0' x)
             set --; i=0; while [ $i -lt 100 ]; do set -- \"$@\" $a; i=$((i + 1)); done
             exec {record} sh -c 'echo $#; env echo \"$@\" | wc -c' \"$@\" last"
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
        [100, 99 * 100_001 + 5]
    );
    let snapshot = place.snapshot();
    let images =
        snapshot.header().processes.iter().flat_map(|process| process.execs.iter().chain([&*process.image]));
    assert!(images.clone().any(|image| image.argv_truncated));
    assert!(images.clone().all(|image| image.argv.iter().map(Vec::len).sum::<usize>() <= 64 << 10));
    assert!(snapshot.header().complete);
}
