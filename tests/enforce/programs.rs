//! Programs: the one that is executed, and the interpreters of scripts.

use std::fs;

use super::{enforced, refused};
use crate::support::{Place, User, chmod, give_away, stderr};

#[test]
fn a_program_that_is_denied_is_executed_by_no_name_and_for_no_script() {
    let denied = "deny-exec ./tool work/tool execute";
    for (script, expected) in [
        ("./tool", &[denied][..]),
        ("./script", &[denied]),
        ("ln tool t; ./t", &[denied]),
        ("ln -s tool t; ./t", &[denied]),
        ("mv tool t; ./t", &[denied]),
        ("./before", &[denied]),
        ("sh -c ./tool; env ./tool; exec ./tool", &[denied]),
        // Another file, whatever it has in it.
        ("cp tool t; ./t", &[]),
    ] {
        for &user in User::all() {
            let place = Place::of(user);
            fs::copy("/bin/true", place.at("tool")).unwrap();
            fs::hard_link(place.at("tool"), place.at("before")).unwrap();
            fs::write(place.at("script"), format!("#!{}\n", place.at("tool").display())).unwrap();
            chmod(place.at("script"), 0o755);
            if user == User::Nobody {
                give_away(place.base());
            }
            let output = enforced(&place, &["--deny-exec", "./tool"], script);
            assert_eq!(refused(&place), expected, "{script} as {user:?}: {output:?}");
            assert_eq!(output.status.success(), expected.is_empty(), "{script} as {user:?}: {output:?}");
        }
    }
}

#[test]
fn with_allow_exec_nothing_else_is_executed() {
    let place = Place::new();
    let shell = fs::canonicalize("/bin/sh").unwrap();
    let shell = shell.to_str().unwrap();
    let output = enforced(&place, &["--allow-exec", "sh", "--allow-exec", shell], "/bin/ls; echo on");
    assert_eq!(String::from_utf8_lossy(&output.stdout), "on\n");
    assert!(refused(&place)[0].starts_with("allow-exec "), "{output:?}");
}

#[test]
fn the_command_itself_may_be_denied() {
    let place = Place::new();
    let output =
        place.recording().args(["--enforce", "--deny-exec", "true"]).args(super::STOPS).arg("true").output();
    let output = output.unwrap();
    assert_eq!(output.status.code(), Some(126));
    assert!(stderr(&output).contains("Permission denied"), "{output:?}");
    assert!(!place.out.exists());
}
