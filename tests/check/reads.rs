//! `--allow-read`: what else is read, listed or executed is a finding.

use super::findings;
use crate::support::{Place, User, give_away};

const RULES: [&str; 4] = ["--allow-read", "@workspace", "--allow-read", "@system"];

fn place(user: User) -> Place {
    let place = Place::of(user);
    place.prepare(
        "mkdir ../outside; echo > ../outside/old; echo > own; mkdir -p ../home/.cache; echo > ../home/.cache/x",
    );
    if user == User::Nobody {
        give_away(place.base());
    }
    place
}

#[test]
fn no_read_outside_goes_unseen() {
    for &user in User::all() {
        for (script, expected) in [
            ("cat own /etc/passwd > /dev/null; ls; : < /dev/null", &[][..]),
            ("cat ../outside/old", &["outside/old read"]),
            (": < ../outside/old", &["outside/old read"]),
            ("ls ../outside", &["outside directory"]),
            ("test -e ../outside/old; ls -ld ../outside; echo x > ../outside/new", &[]),
            ("mv ../outside/old x; cat x", &["outside/old read,delete"]),
            ("ln ../outside/old h; cat h", &["outside/old read,metadata"]),
            ("cat own; mv own ../outside/new", &[]),
            ("cat own; ln own ../outside/new", &[]),
        ] {
            let place = place(user);
            let output = place.record_with(&["--keep", "all"], script);
            assert!(output.status.success(), "{script}: {output:?}");
            let found = findings(&place, &place.verb("check", &[&RULES[..], &["--json"]].concat()));
            let found: Vec<_> = found.iter().map(|line| line.strip_prefix("allow-read ").unwrap()).collect();
            assert_eq!(found, expected, "{script} as {user:?}");
        }
    }
}

#[test]
fn a_recording_with_the_rule_has_the_reads_that_others_leave_out() {
    for &user in User::all() {
        let place = place(user);
        let script = "cat own ../home/.cache/x";
        assert!(place.record_with(&[], script).status.success());
        let run = place.verb("check", &RULES).expect(1);
        assert!(run.stdout.contains("unknown: ") && run.stdout.contains("$HOME/.cache"), "{run:#?}");
        let output = place.record_with(&[&RULES[..], &["--strict"]].concat(), script);
        assert_eq!(output.status.code(), Some(125), "{user:?} {output:?}");
        let found = findings(&place, &place.verb("check", &[&RULES[..], &["--json"]].concat()));
        assert_eq!(found, ["allow-read home/.cache/x read"], "{user:?}");
        // What is allowed is left out as ever, and does not make its own recording unknown.
        let allowed = [&RULES[..], &["--allow-read", "~/.cache/x", "--strict"]].concat();
        let output = place.record_with(&allowed, script);
        assert_eq!(output.status.code(), Some(0), "{user:?} {output:?}");
    }
}

#[test]
fn what_another_user_owns_is_not_read_unseen() {
    for &user in User::all() {
        let place = place(user);
        assert!(place.record_with(&[], "cat /etc/passwd > /dev/null").status.success());
        let run = place.verb("check", &["--allow-read", "@workspace", "--json"]);
        assert!(
            findings(&place, &run).contains(&"allow-read /etc/passwd read".to_owned()),
            "{user:?} {run:#?}"
        );
        let run = place.verb("check", &["--deny-read", "/etc/passwd", "--json"]);
        assert_eq!(findings(&place, &run), ["deny-read /etc/passwd read"], "{user:?}");
    }
}
