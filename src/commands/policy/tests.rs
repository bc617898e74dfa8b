use super::super::check::tests::{file, record, trees, written};
use super::super::testing::{BundleTrees, run};
use crate::snapshot::{
    FileRecord, FileType, NetworkAddress, NetworkOperation, NetworkUse, Operation, Present, State, Suppressed,
};

fn directory(ino: u64) -> State {
    State::Present(Box::new(Present { ino, ..Present::new(FileType::Directory, libc::S_IFDIR | 0o755) }))
}

fn read(path: &[u8]) -> FileRecord {
    record(path, &[Operation::Read], file(1, 1, 3), file(1, 1, 3))
}

fn connected(address: &str) -> NetworkUse {
    let address = NetworkAddress::Inet(address.parse().unwrap());
    NetworkUse { process: 1, operation: NetworkOperation::Connect, address, count: 1, errno: None }
}

/// A bundle that changes and reads these paths.
fn bundle(edit: impl FnOnce(&mut BundleTrees), records: Vec<FileRecord>) -> BundleTrees {
    let mut trees = trees();
    edit(&mut trees);
    trees.commit(|all| all.extend(records));
    trees
}

/// The policy from bundles, without its comments.
fn policy_from(bundles: &[&BundleTrees]) -> String {
    let mut line = vec!["policy".to_owned(), "from".to_owned()];
    line.extend(bundles.iter().map(|trees| trees.snap().to_str().unwrap().to_owned()));
    let ran = run(&line);
    assert_eq!((ran.status, ran.err.as_str()), (0, ""), "{}", ran.text());
    let rules = ran.text().lines().filter(|line| !line.starts_with('#') && !line.is_empty());
    rules.map(|line| format!("{line}\n")).collect()
}

/// Whether a bundle passes a policy.
fn passes(trees: &BundleTrees, policy: &str) -> bool {
    let file = trees.dir.path().join("policy.toml");
    std::fs::write(&file, policy).unwrap();
    let ran = run(&["check", trees.snap().to_str().unwrap(), "--policy", file.to_str().unwrap()]);
    assert!(ran.status < 2, "{}", ran.err);
    ran.status == 0
}

#[test]
fn the_narrowest_rules_are_few_and_in_the_users_terms() {
    let mut records = vec![
        written(b"/nowhere/work/a"),
        written(b"/tmp/x"),
        read(b"/etc/hosts"),
        record(b"/srv", &[Operation::Directory], directory(5), directory(5)),
        read(b"/srv/[data]/\xff"),
        record(b"/home/me/made", &[Operation::Write], State::Absent { tombstone: false }, directory(6)),
    ];
    for index in 0..20 {
        records.push(written(format!("/home/me/.npm/{index}/x").as_bytes()));
        records.push(written(format!("/home/me/.cache/app/{index}").as_bytes()));
    }
    let trees = bundle(
        |trees| {
            trees.header.network =
                vec![connected("10.0.0.1:443"), connected("127.0.0.1:40001"), connected("127.0.0.1:40002")];
            trees.header.suppressed = vec![Suppressed { reads: 3, ..suppressed("$HOME/.cache") }];
        },
        records,
    );
    let policy = policy_from(&[&trees]);
    let expected = r#"allow-write = [
    "@tmp",
    "@workspace",
    "~/.cache/app",
    "~/.npm",
    "~/made/.",
]
allow-read = [
    "@system",
    "/srv/.",
    "/srv/\\[data]/?",
    "~/.cache", # reads there were left out of a recording: 3
]
deny-read = ["@secrets"]
allow-exec = [
    "/bin/cp",
    "/bin/sh",
]
allow-net = [
    "10.0.0.1:443",
    "127.0.0.1",
]
deny-net = ["unix"]
"#;
    // As TOML quotes a backslash.
    assert_eq!(policy.replace("'/srv/\\[data]/?'", "\"/srv/\\\\[data]/?\""), expected);
    assert!(passes(&trees, &policy));
}

fn suppressed(rule: &str) -> Suppressed {
    Suppressed {
        rule: rule.to_owned(),
        reads: 0,
        writes: 0,
        changed: Vec::new(),
        changes: Some(Vec::new()),
        changes_cut: false,
        read: None,
    }
}

#[test]
fn what_does_one_thing_more_does_not_pass() {
    let listed = || record(b"/srv", &[Operation::Directory], directory(5), directory(5));
    let usual = || {
        let mut usual = vec![written(b"/nowhere/work/a"), read(b"/srv/data"), listed()];
        let home = ["few/1", "few/2", "few/3", "many/1", "many/2", "many/3", "many/4"];
        usual.extend(home.iter().map(|name| written(format!("/home/me/{name}").as_bytes())));
        usual
    };
    let network = |trees: &mut BundleTrees| trees.header.network = vec![connected("10.0.0.1:443")];
    let first = bundle(network, usual());
    let policy = policy_from(&[&first]);
    assert!(passes(&first, &policy));
    let with = |record: FileRecord| bundle(network, usual().into_iter().chain([record]).collect());
    for (more, expected) in [
        (written(b"/nowhere/work/sub/b"), true),
        (written(b"/home/me/few/4"), false),
        (written(b"/home/me/many/5"), true),
        (written(b"/home/me/other/x"), false),
        (written(b"/tmp/x"), false),
        (read(b"/usr/share/x"), true),
        (read(b"/srv/other"), false),
        (read(b"/nowhere/work/.env"), false),
        (record(b"/opt/x", &[Operation::Directory], directory(6), directory(6)), true),
        (record(b"/mnt", &[Operation::Directory], directory(6), directory(6)), false),
    ] {
        let path = String::from_utf8_lossy(&more.path).into_owned();
        let more = with(more);
        assert_eq!(passes(&more, &policy), expected, "{path}");
        assert!(passes(&more, &policy_from(&[&first, &more])), "{path}");
    }
    for address in ["10.0.0.1:80", "10.0.0.2:443"] {
        let more = |trees: &mut BundleTrees| {
            trees.header.network = vec![connected("10.0.0.1:443"), connected(address)];
        };
        assert!(!passes(&bundle(more, usual()), &policy), "{address}");
    }
    let more = |trees: &mut BundleTrees| {
        network(trees);
        let mut process = trees.header.processes[1].clone();
        (process.id, process.image) =
            (3, crate::snapshot::Exec { exe: b"/bin/curl".to_vec(), ..(*process.image).clone() }.into());
        trees.header.processes.push(process);
    };
    assert!(!passes(&bundle(more, usual()), &policy));
}

#[test]
fn secrets_that_were_read_are_called_out() {
    let trees = bundle(|_| {}, vec![read(b"/home/me/.netrc"), read(b"/nowhere/work/.env")]);
    let ran = run(&["policy", "from", trees.snap().to_str().unwrap()]);
    let by = "cp --token '<REDACTED>' 'a b'";
    for line in [
        "# Secrets were read, so there is no deny-read = [\"@secrets\"]:".to_owned(),
        format!("#   ~/.netrc  by {by}"),
        format!("#   /nowhere/work/.env  by {by}"),
        format!("    \"~/.netrc\", # a secret, read by {by}"),
        "deny-write = [\"/**\"]".to_owned(),
    ] {
        assert!(ran.text().lines().any(|other| other == line), "{line}\n{}", ran.text());
    }
    assert!(passes(&trees, ran.text()));
}

#[test]
fn a_recording_that_no_rules_let_pass_is_named() {
    let mut trees = trees();
    trees.header.complete = false;
    trees.commit(|_| {});
    let ran = run(&["policy", "from", trees.snap().to_str().unwrap()]);
    assert_eq!(ran.status, 1);
    assert!(ran.err.ends_with(" does not pass this policy: the recording is incomplete\n"), "{}", ran.err);
}
