//! `policy from`: recordings pass the policy that is made from them, and others do not.

use std::fs;

use crate::support::{Place, User, has, program};

/// Writes the policy from the recording, and has it checked.
#[track_caller]
fn policy_of(place: &Place) -> String {
    let run = place.run(["policy".as_ref(), "from".as_ref(), place.out.as_os_str()]).expect(0);
    let file = place.base().join("policy.toml");
    fs::write(&file, &run.stdout).unwrap();
    place.verb("check", &["--policy", file.to_str().unwrap()]).expect(0);
    run.stdout
}

#[test]
fn a_recording_passes_its_policy_and_one_that_does_more_does_not() {
    let script = "echo x > new; cat own > copy; ls .. > /dev/null; ls -d / > /dev/null; sh -c :";
    for &user in User::all() {
        let place = Place::of(user);
        place.prepare("echo > own; echo > ../home/.netrc");
        assert!(place.record_with(&[], script).status.success());
        let policy = policy_of(&place);
        let file = place.base().join("policy.toml");
        let rules = ["--policy", file.to_str().unwrap()];
        assert!(policy.contains("\ndeny-read = [\"@secrets\"]\n"), "{policy}");
        for more in ["head -c 1 own", "cat ../home/.netrc"] {
            assert!(place.record_with(&[], &format!("{script}; {more}")).status.success());
            place.verb("check", &rules).expect(1);
        }
        if has("python3") {
            let connect =
                "import socket; socket.socket(socket.AF_INET, socket.SOCK_DGRAM).connect(('127.0.0.1', 9))";
            assert!(place.record_with(&[], &format!("{script}; python3 -c \"{connect}\"")).status.success());
            let run = place.verb("check", &rules).expect(1);
            assert!(run.stdout.contains("\ndeny-net "), "{run:#?}");
        }
        assert!(place.record_with(&[], script).status.success());
        place.verb("check", &rules).expect(0);
    }
}

#[test]
fn random_programs_pass_the_policies_that_are_made_from_them() {
    for &user in User::all() {
        for seed in 0..6 {
            let place = Place::of(user);
            let random = program("random");
            let setup = place.program(&random).args(["--setup", &seed.to_string()]).output().unwrap();
            assert!(setup.status.success(), "{setup:?}");
            let output =
                place.recording().arg(place.executable(&random)).arg(seed.to_string()).output().unwrap();
            assert!(output.status.success(), "seed {seed}: {output:?}");
            let run = place.run(["policy".as_ref(), "from".as_ref(), place.out.as_os_str()]);
            // No rules let a file pass that was changed and has a name which nobody knows.
            let is_unknown =
                run.stderr.contains(" names, of which ") || run.stderr.contains(" was changed and is gone");
            assert!(run.status == 0 || run.status == 1 && is_unknown, "seed {seed} as {user:?}: {run:#?}");
        }
    }
}
