//! What `check` finds in a recording is what is refused where the same rules are enforced.

use std::collections::BTreeSet;
use std::fs;

use serde_json::Value;

use super::{below, enforced, refused};
use crate::support::Place;

/// Two places alike, with something outside of the workspace.
fn place() -> Place {
    let place = Place::new();
    fs::create_dir(place.base().join("outside")).unwrap();
    for name in ["outside/a", "outside/b.key", "secret"] {
        fs::write(place.base().join(name), "old").unwrap();
    }
    place.write("in/c.key", "old");
    place
}

/// The findings of `check`, as [`refused`] has them: a line for each operation.
fn found(place: &Place, rules: &[&str]) -> BTreeSet<String> {
    let run = place.verb("check", &[rules, &["--json"]].concat());
    let json: Value = serde_json::from_str(&run.stdout).unwrap_or_else(|error| panic!("{error}: {run:#?}"));
    let lines = json["findings"].as_array().unwrap().iter().flat_map(|finding| {
        let pattern = finding["pattern"].as_str().map(|text| format!(" {text}")).unwrap_or_default();
        let path = finding["path"].as_str().unwrap_or_else(|| panic!("{finding}"));
        let path = below(place, path);
        let rule = format!("{}{pattern}", finding["rule"].as_str().unwrap());
        let operations = finding["operations"].as_array().unwrap().iter();
        let operations = operations.map(|operation| operation.as_str().unwrap().to_owned());
        operations.map(|operation| format!("{rule} {path} {operation}")).collect::<Vec<_>>()
    });
    lines.collect()
}

#[test]
fn one_call_is_refused_where_check_finds_it() {
    let rules: [&[&str]; 6] = [
        &["--allow-write", "@workspace"],
        &["--deny-write", "*.key"],
        &["--deny-read", "../secret", "--deny-read", "*.key"],
        &["--allow-read", "@workspace", "--allow-read", "@system"],
        &["--allow-write", "./in", "--deny-read", "/**/b.key"],
        &["--deny-exec", "cat"],
    ];
    // Each of them makes one call that a rule may forbid.
    for script in [
        ": > ../outside/new",
        ": > ../outside/a",
        ": >> in/c.key",
        ": > in/new",
        "read x < ../secret",
        "read x < ../outside/b.key",
        "read x < in/c.key",
        "cd ../outside",
        "exec cat in/c.key",
        "exec rm ../outside/a",
        "exec rm in/c.key",
        "exec rmdir ../outside/a",
        "exec mkdir ../outside/d",
        "exec mkdir -p ../outside",
        "exec chmod 600 ../outside/a",
        "exec chmod 600 in/c.key",
        "exec ln -s x ../outside/l",
        "exec mkfifo in/p",
        "exec ls ../outside",
        "exec mv in/c.key in/d",
    ] {
        for rules in rules {
            let recorded = place();
            recorded.record_any(script);
            let refusing = place();
            let output = enforced(&refusing, rules, script);
            let refused: BTreeSet<String> = if refusing.out.exists() {
                refused(&refusing).into_iter().collect()
            } else {
                panic!("{output:?}")
            };
            let found = found(&recorded, rules);
            assert_eq!(refused, found, "{script} {rules:?}");
            let run = refusing.verb("check", &[rules, &["--json"]].concat());
            let judged: Value = serde_json::from_str(&run.stdout).unwrap();
            assert_eq!(judged["findings"], serde_json::json!([]), "{script} {rules:?}");
        }
    }
}
