//! What is executed, by whatever name, is judged.

use super::findings;
use crate::support::{Place, User, copy_program, give_away};

/// What `check` finds where there are `../prog`, `../alias`, another name of that, `../d/prog`, and `script`, whose
/// interpreter is `../shell`.
fn found(user: User, script: &str, rules: &[&str]) -> Vec<String> {
    let place = Place::of(user);
    place.prepare("mkdir ../d; printf '#!%s/shell\\nexit 0\\n' \"${PWD%/*}\" > script; chmod 755 script");
    for name in ["prog", "d/prog"] {
        copy_program("/bin/true", place.base().join(name));
    }
    copy_program("/bin/sh", place.base().join("shell"));
    place.hard_link("../prog", "../alias");
    if user == User::Nobody {
        give_away(place.base());
    }
    let output = place.record_with(&[], script);
    assert!(output.status.success(), "{script}: {output:?}");
    findings(&place, &place.verb("check", &[rules, &["--json"]].concat()))
}

#[test]
fn a_program_is_judged_by_each_of_its_names() {
    let prog = &["deny-exec prog execute"][..];
    let in_d = &["deny-exec d/prog execute"][..];
    for &user in User::all() {
        for (script, rule, expected) in [
            ("../prog", "../prog", prog),
            ("../prog", "prog", prog),
            ("ln -s ../prog l; ./l", "../prog", prog),
            ("../alias", "../prog", prog),
            ("ln ../d/prog h; ./h; rm h", "../d/*", in_d),
            ("mv ../d/prog x; ./x; mv x ../d/prog", "../d/prog", in_d),
            ("exec 9< ../prog; /proc/self/fd/9", "../prog", prog),
            ("(exec ../prog)", "../prog", prog),
            // Of a script, the script and its interpreter are executed.
            ("./script", "./script", &["deny-exec work/script execute"]),
            ("./script", "../shell", &["deny-exec shell execute"]),
            // A loader is only read, and so is what is copied.
            ("../prog; ./script", "/**/ld-*", &[]),
            ("cat ../prog script > /dev/null; cp ../prog c; ./c", "../prog", &[]),
            ("ls -l ../prog", "../prog", &[]),
        ] {
            assert_eq!(found(user, script, &["--deny-exec", rule]), expected, "{script} {rule} as {user:?}");
        }
    }
}

#[test]
fn what_is_not_allowed_is_a_finding() {
    for &user in User::all() {
        let rules = ["--allow-exec", "@system", "--allow-exec", "@workspace"];
        for (script, expected) in [
            ("true; ls > /dev/null; cp ../prog own; ./own", &[][..]),
            ("../prog", &["allow-exec prog execute"]),
            ("ln ../prog h; ./h", &["allow-exec prog execute"]),
            ("./script", &["allow-exec shell execute"]),
            ("cp ../prog own; ./own; mv own ../new", &[]),
        ] {
            assert_eq!(found(user, script, &rules), expected, "{script} as {user:?}");
        }
        // The places of programs are left out of a recording; its processes are not.
        let found = found(
            user,
            "ls > /dev/null; cat script > /dev/null",
            &["--allow-exec", "sh", "--allow-exec", "ls"],
        );
        assert!(matches!(&found[..], [one] if one.ends_with("/cat execute")), "{found:?}");
    }
}
