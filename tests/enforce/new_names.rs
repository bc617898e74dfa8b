//! Names that files get: what may not be read gets none by which a later command could read it.

use std::fs;

use super::{enforced, refused};
use crate::support::{Place, User, give_away, has, numbered};

const DIRECTORY: &str = "shut/**";
const FILES: [&str; 6] =
    ["shut/secret", "shut/d/secret", "a.key", "project/.env", "project/sub/.env.d/x", ".env"];

/// A command with a rule about some of these files, then another one that reads all that it may: what was refused to the
/// first, and whether the second has read any of those.
fn refused_and_read(user: User, rule: &str, script: &str) -> (Vec<String>, bool) {
    let place = Place::of(user);
    place.write("public", "public");
    let is_hidden = |name: &str| match rule {
        DIRECTORY => name.starts_with("shut/"),
        "*.key" => name.ends_with(".key"),
        "./.env" => name == ".env",
        _ => name.contains(".env"),
    };
    for name in FILES {
        place.write(name, if is_hidden(name) { "top" } else { "public" });
    }
    if user == User::Nobody {
        give_away(place.base());
    }
    let rules = ["--deny-read", rule];
    let output = enforced(&place, &rules, &format!("{}\ntrue", numbered(script)));
    assert!(output.status.success(), "{script}: {output:?}");
    let refused = refused(&place);
    fs::remove_dir_all(&place.out).unwrap();
    let output = enforced(&place, &rules, "find . -type f -exec cat {} +");
    let printed = String::from_utf8_lossy(&output.stdout);
    assert!(printed.contains("public"), "{output:?}");
    (refused, printed.contains("top"))
}

#[test]
fn what_may_not_be_read_gets_no_name_by_which_a_later_command_reads_it() {
    let exchange = "python3 -c 'import ctypes
ctypes.CDLL(None).syscall(SYS_renameat2, -100, b\"public\", -100, b\"shut/secret\", 2)'";
    for (rule, script, expected) in [
        (DIRECTORY, "mv shut/secret x", &["work/shut/secret delete"][..]),
        (DIRECTORY, "ln shut/secret x", &["work/shut/secret metadata"]),
        (DIRECTORY, "mv shut open", &["work/shut/d/secret delete", "work/shut/secret delete"]),
        (DIRECTORY, "mv shut/d open", &["work/shut/d/secret delete"]),
        (DIRECTORY, "mv shut/secret shut/e; mv shut/e x", &["work/shut/e delete"]),
        (DIRECTORY, "ln shut/secret shut/e; rm shut/secret; ln shut/e x", &["work/shut/e metadata"]),
        (DIRECTORY, exchange, &["work/shut/secret write"]),
        ("*.key", "mv a.key x", &["work/a.key delete"]),
        ("*.key", "ln -s a.key s; ln -L s x", &["work/a.key metadata"]),
        ("*.key", "echo top > b.key; mv b.key x", &["work/b.key delete"]),
        ("./.env", "mv .env x", &["work/.env delete"]),
        ("@secrets", "mv .env env~", &["work/.env delete"]),
        (
            "@secrets",
            "cd project; mv .env ../x; mv sub/.env.d/x ../y",
            &["work/project/.env delete", "work/project/sub/.env.d/x delete"],
        ),
    ] {
        for &user in User::all() {
            let (refused, read) = refused_and_read(user, rule, script);
            assert!(!read, "{script} as {user:?}");
            let expected: Vec<_> = expected.iter().map(|line| format!("deny-read {rule} {line}")).collect();
            assert_eq!(refused, expected, "{script} as {user:?}");
        }
    }
}

#[test]
fn what_may_not_be_read_may_move_where_it_may_not_be_read_either() {
    for (rule, script) in [
        (
            DIRECTORY,
            "mv shut/secret shut/e; ln shut/e shut/f; mkdir shut/g; mv shut/f shut/g; mv shut/g shut/h; rm -r shut/h",
        ),
        (DIRECTORY, "echo new > public; mv public shut/secret; mv a.key shut"),
        // A link to it is no name of it.
        (DIRECTORY, "ln -s shut/secret x; mv x y; ln y z; ln -s secret shut/s; mv shut/s s"),
        (
            DIRECTORY,
            "mv -T shut/secret shut/d 2>&1 | grep -q directory; ln shut/secret public 2>&1 | grep -q exists",
        ),
        ("*.key", "mv a.key b.key; ln b.key project/c.key; mv project other"),
        (
            "@secrets",
            "mv project other; mv .env .env.old; mv other/sub/.env.d .environment; ln .env.old .env",
        ),
        // As an editor saves it.
        ("@secrets", "echo new > env~; mv env~ .env"),
        // It has no private key.
        ("@secrets", "mv a.key x; ln x y.pem; mv y.pem z"),
    ] {
        for &user in User::all() {
            let (refused, read) = refused_and_read(user, rule, script);
            assert_eq!((refused, read), (Vec::new(), false), "{script} as {user:?}");
        }
    }
}

#[test]
fn what_may_not_be_changed_gets_no_name_by_which_a_later_command_changes_it() {
    let rules = ["--allow-write", "./open"];
    for &user in User::all() {
        let place = Place::of(user);
        for name in ["open/f", "shut/f"] {
            place.write(name, "old");
        }
        if user == User::Nobody {
            give_away(place.base());
        }
        enforced(&place, &rules, "ln shut/f open/l; ln open/f open/m; echo x > open/n; ln open/n open/o");
        assert_eq!(refused(&place), ["allow-write work/shut/f metadata"], "{user:?}");
        fs::remove_dir_all(&place.out).unwrap();
        enforced(&place, &rules, "for i in open/*; do echo new > $i; done");
        assert_eq!(fs::read_to_string(place.at("shut/f")).unwrap(), "old", "{user:?}");
    }
}

#[test]
fn with_allow_read_no_file_elsewhere_gets_a_name_that_is_allowed() {
    if !has("python3") {
        return;
    }
    let rules = ["--allow-read", "./open", "--allow-read", "@system"];
    for &user in User::all() {
        let place = Place::of(user);
        for name in ["open/f", "d/secret", "secret"] {
            place.write(name, "top");
        }
        if user == User::Nobody {
            give_away(place.base());
        }
        // What the command has made itself, it knows.
        let script = "mv secret open; ln secret open/s; mv d open; echo x > made; mv made open; mv open/f .; mv f open";
        enforced(&place, &rules, script);
        assert_eq!(
            refused(&place),
            [
                "allow-read work/d/secret delete",
                "allow-read work/secret delete",
                "allow-read work/secret metadata",
            ],
            "{user:?}"
        );
    }
}
