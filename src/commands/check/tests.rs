//! What is found in small bundles, and how it is told.

use std::process::Stdio;

use super::super::testing::{BundleTrees, Ran, run};
use crate::snapshot::samples::{created, present, python};
use crate::snapshot::{
    Exec, FileRecord, FileType, LeftOutUse, NetworkAddress, NetworkOperation, NetworkUse, Operation,
    Operations, PathUse, Present, RecordedProcess, State, Suppressed, Warning, WarningKind,
};

/// A process that executed a program of `/bin`.
pub fn process(id: u32, argv: &[&str]) -> RecordedProcess {
    let argv: Vec<Vec<u8>> = argv.iter().map(|word| word.as_bytes().to_vec()).collect();
    RecordedProcess {
        id,
        pid: 100 + id,
        parent: None,
        image: Exec { exe: [b"/bin/", argv[0].as_slice()].concat(), argv, ..Exec::default() }.into(),
        cwd: b"/nowhere/work".to_vec(),
        exit_status: Some(0),
        execs: Vec::new(),
        started_us: None,
        ended_us: None,
    }
}

/// A bundle whose command was started in /nowhere/work, by processes 1 and 2.
pub fn trees() -> BundleTrees {
    let mut trees = BundleTrees::new();
    trees.header.processes =
        vec![process(1, &["sh", "build.sh"]), process(2, &["cp", "--token", "x", "a b"])];
    trees.header.home = Some(b"/home/me".to_vec());
    trees
}

/// A path that process 2 used.
pub fn record(path: &[u8], operations: &[Operation], before: State, after: State) -> FileRecord {
    let operations = operations.iter().fold(Operations::NONE, |set, operation| set.with(*operation));
    let uses = vec![PathUse { process: 2, operations, exe: None }];
    FileRecord { before, operations, uses, processes: vec![2], ..created(path, after) }
}

fn absent() -> State {
    State::Absent { tombstone: false }
}

/// A regular file.
pub fn file(ino: u64, nlink: u64, size: u64) -> State {
    State::Present(Box::new(Present { ino, nlink, ..present(size) }))
}

/// A path at which process 2 made a file.
pub fn written(path: &[u8]) -> FileRecord {
    record(path, &[Operation::Write], absent(), file(1, 1, 3))
}

fn check(trees: &BundleTrees, args: &[&str]) -> Ran {
    let snap = trees.snap();
    let mut line = vec!["check", snap.to_str().unwrap()];
    line.extend(args);
    run(&line)
}

/// Checks a bundle of these records.
fn check_records(records: Vec<FileRecord>, args: &[&str]) -> Ran {
    let trees = trees();
    trees.commit(|all| all.extend(records));
    check(&trees, args)
}

#[test]
fn changes_outside_are_findings_with_operation_process_and_rule() {
    let records = || {
        vec![
            written(b"/nowhere/work/in"),
            written(b"/etc/out"),
            record(b"/etc/gone", &[Operation::Delete], file(2, 1, 3), State::Absent { tombstone: true }),
            record(b"/etc/mode", &[Operation::Existence, Operation::Metadata], file(3, 1, 3), file(3, 1, 3)),
            record(b"/etc/seen", &[Operation::Existence, Operation::Read], file(4, 1, 3), file(4, 1, 3)),
            record(b"/nowhere/work/gone", &[Operation::Write, Operation::Delete], absent(), absent()),
        ]
    };
    let ran = check_records(records(), &["--allow-write", "@workspace"]);
    assert_eq!((ran.status, ran.err.as_str()), (1, ""));
    let by = "by cp --token '<REDACTED>' 'a b' (process 2): no --allow-write matches";
    let expected = [("gone", "delete"), ("mode", "metadata"), ("out", "write")];
    let expected: String =
        expected.iter().map(|(name, word)| format!("allow-write /etc/{name}  {word} {by}\n")).collect();
    assert_eq!(ran.text(), expected + "fail: 3 findings\n");

    let ran = check_records(records(), &["--allow-write", ".", "--allow-write", "/etc"]);
    assert_eq!((ran.status, ran.text()), (0, "pass: nothing is forbidden\n"));
    let ran = check_records(records(), &["--deny-write", "/etc/[g]*", "--allow-write", "/**"]);
    assert_eq!(ran.status, 1);
    assert!(ran.text().ends_with(": --deny-write /etc/[g]*\nfail: 1 finding\n"), "{}", ran.text());
    let ran = check_records(records(), &["--deny-write", "gone"]);
    assert!(ran.text().starts_with("deny-write  /nowhere/work/gone  write, delete by"), "{}", ran.text());
}

#[test]
fn reads_are_of_content_alone() {
    let records = vec![
        record(b"/home/me/.netrc", &[Operation::Read], file(1, 1, 3), file(1, 1, 3)),
        record(b"/home/me/.npmrc", &[Operation::Existence], file(2, 1, 3), file(2, 1, 3)),
        record(b"/home/me/tool", &[Operation::Execute], file(3, 1, 3), file(3, 1, 3)),
        written(b"/home/me/new"),
    ];
    let ran = check_records(records, &["--deny-read", "@secrets", "--deny-read", "~/*", "--json"]);
    let json = ran.json();
    let found: Vec<_> =
        json["findings"].as_array().unwrap().iter().map(|one| (&one["path"], &one["pattern"])).collect();
    let expected = [("/home/me/.netrc", "@secrets"), ("/home/me/tool", "~/*")];
    assert_eq!(found.len(), 2, "{json}");
    for ((path, pattern), expected) in found.iter().zip(expected) {
        assert_eq!((path.as_str().unwrap(), pattern.as_str().unwrap()), expected);
    }
    assert_eq!(json["findings"][0]["processes"][0]["command"], "cp --token '<REDACTED>' 'a b'");
}

#[test]
fn what_passes_through_a_device_changes_nothing() {
    let node = |file_type, ino| {
        let format = match file_type {
            FileType::CharDevice => libc::S_IFCHR,
            FileType::BlockDevice => libc::S_IFBLK,
            _ => libc::S_IFIFO,
        };
        let rdev = (format != libc::S_IFIFO).then_some(259);
        State::Present(Box::new(Present { ino, rdev, ..Present::new(file_type, format | 0o666) }))
    };
    let used = |path: &[u8], file_type, after| {
        record(path, &[Operation::Write], node(file_type, 7), node(file_type, after))
    };
    let records = vec![
        used(b"/x/null", FileType::CharDevice, 7),
        used(b"/x/fifo", FileType::Fifo, 7),
        used(b"/x/replaced", FileType::Fifo, 8),
        used(b"/x/sda", FileType::BlockDevice, 7),
        record(
            b"/x/chmod",
            &[Operation::Write, Operation::Metadata],
            node(FileType::Fifo, 9),
            node(FileType::Fifo, 9),
        ),
    ];
    let ran = check_records(records, &["--allow-write", "@workspace", "--json"]);
    assert_eq!((ran.status, ran.err.as_str()), (1, ""));
    let json = ran.json();
    let paths: Vec<_> =
        json["findings"].as_array().unwrap().iter().map(|one| one["path"].as_str().unwrap()).collect();
    assert_eq!(paths, ["/x/chmod", "/x/replaced", "/x/sda"]);
}

#[test]
fn a_file_that_is_changed_through_another_name_is_changed() {
    let records = || {
        vec![
            record(b"/etc/passwd", &[Operation::Existence], file(9, 1, 3), file(9, 2, 5)),
            record(b"/nowhere/work/link", &[Operation::Write], absent(), file(9, 2, 5)),
            record(b"/etc/linked", &[Operation::Existence], file(8, 1, 3), file(8, 2, 3)),
            record(b"/nowhere/work/other", &[Operation::Write], absent(), file(8, 2, 3)),
        ]
    };
    let ran = check_records(records(), &["--allow-write", "@workspace"]);
    assert!(
        ran.text()
            .starts_with("allow-write /etc/passwd  write through its other name /nowhere/work/link by cp"),
        "{}",
        ran.text()
    );
    assert!(ran.text().ends_with("fail: 1 finding\n"), "{}", ran.text());
    let inherited = FileRecord { inherited: true, ..written(b"/var/log/build") };
    assert_eq!(check_records(vec![inherited], &["--allow-write", "@workspace"]).status, 0);
}

fn left_out(rule: &str, changes: &[(&str, bool)]) -> Suppressed {
    let changes = changes.iter().map(|(path, beneath)| LeftOutUse {
        path: path.as_bytes().to_vec(),
        beneath: *beneath,
        operations: Operation::Write.into(),
        process: 1,
    });
    Suppressed {
        rule: rule.to_owned(),
        reads: 5,
        writes: 9,
        changed: vec![b"/home/me/.cache".to_vec()],
        changes: Some(changes.collect()),
        changes_cut: false,
        read: None,
    }
}

#[test]
fn what_a_rule_left_out_is_judged() {
    let found = |suppressed: Suppressed, args: &[&str]| {
        let mut trees = trees();
        trees.header.suppressed = vec![suppressed];
        trees.commit(|_| {});
        check(&trees, args)
    };
    let changed = || left_out("$HOME/.cache", &[("/home/me/.cache/a", false), ("/home/me/.cache/b", true)]);
    let ran = found(changed(), &["--allow-write", "@workspace"]);
    assert_eq!(
        ran.text(),
        "allow-write /home/me/.cache/a  write (not recorded: $HOME/.cache) by sh build.sh (process 1): no --allow-write matches\n\
         allow-write /home/me/.cache/b  changes beneath it (not recorded: $HOME/.cache) by sh build.sh (process 1): no --allow-write matches\n\
         fail: 2 findings\n"
    );
    for (args, findings) in [
        (&["--allow-write", "~/.cache"][..], 0),
        (&["--allow-write", "~/.cache/**"], 0),
        (&["--allow-write", "~/.cache/a"], 1),
        (&["--allow-write", "~/.cache/*/x"], 2),
        (&["--deny-write", "~/.cache/b/x/y"], 1),
        (&["--deny-write", "/**/*.key"], 1),
        (&["--deny-write", "/etc"], 0),
        (&["--deny-read", "/etc"], 0),
    ] {
        let json = found(changed(), &[args, &["--json"]].concat()).json();
        assert_eq!(json["findings"].as_array().unwrap().len(), findings, "{args:?} {json}");
    }
    let cut = Suppressed { changes_cut: true, ..left_out("x", &[]) };
    let ran = found(cut, &["--allow-write", "@workspace"]);
    assert!(ran.text().starts_with("allow-write somewhere  changes (not recorded: x): no"), "{}", ran.text());
    let old = || Suppressed { changes: None, ..left_out("x", &[]) };
    assert_eq!(found(old(), &["--allow-write", "@workspace"]).status, 1);
    assert_eq!(found(old(), &["--allow-write", "~/.cache"]).status, 0);
    assert_eq!(found(Suppressed { changed: Vec::new(), ..old() }, &["--allow-write", "~/.cache"]).status, 1);
}

#[test]
fn reads_that_rules_left_out_are_named() {
    let mut trees = trees();
    trees.header.suppressed = vec![left_out("reads:/usr", &[]), left_out("foreign owner", &[])];
    trees.commit(|_| {});
    let ran = check(&trees, &["--deny-read", "@secrets"]);
    assert_eq!((ran.status, ran.text()), (0, "pass: nothing is forbidden\n"));
    assert_eq!(
        ran.err,
        "agent-snapshot: deny-read does not judge reads that these rules left out of the recording: reads:/usr, foreign owner\n"
    );
    let ran = check(&trees, &["--deny-read", "/usr/lib/secret"]);
    assert_eq!(ran.status, 1);
    assert!(
        ran.text().contains("deny-read /usr/lib/secret is about what the rule reads:/usr left out"),
        "{}",
        ran.text()
    );
}

#[test]
fn an_incomplete_recording_does_not_pass() {
    let warning =
        |lost, kind| Warning { kind, lost, count: 1, detail: "why\n".to_owned(), processes: vec![1] };
    let verdict = |edit: fn(&mut crate::snapshot::Header), args: &[&str]| {
        let mut trees = trees();
        edit(&mut trees.header);
        trees.commit(|_| {});
        let ran = check(&trees, &[&["--allow-write", "@workspace"], args].concat());
        (ran.status, ran.text().lines().last().unwrap().split(':').next().unwrap().to_owned())
    };
    for edit in [
        |header: &mut crate::snapshot::Header| header.complete = false,
        |header: &mut crate::snapshot::Header| header.running = true,
    ] {
        assert_eq!(verdict(edit, &[]), (1, "unknown".to_owned()));
        assert_eq!(verdict(edit, &["--allow-incomplete"]), (0, "pass".to_owned()));
    }
    for (lost, kind, status) in [
        (true, WarningKind::MountNamespace, 1),
        (false, WarningKind::Library, 0),
        (false, WarningKind::ExternalChange, 1),
    ] {
        let mut trees = trees();
        trees.header.complete = !lost;
        trees.header.warnings = vec![warning(lost, kind)];
        trees.commit(|_| {});
        let ran = check(&trees, &["--allow-write", "@workspace"]);
        assert_eq!(ran.status, status, "{kind:?} {}", ran.text());
        assert!(status == 0 || ran.text().contains(": why\\n\n"), "{}", ran.text());
    }
}

#[test]
fn addresses_are_judged() {
    let used = |process, address: &str, errno| NetworkUse {
        process,
        operation: NetworkOperation::Connect,
        address: NetworkAddress::Inet(address.parse().unwrap()),
        count: 2,
        errno,
    };
    let mut trees = trees();
    trees.header.network = vec![
        used(1, "10.0.0.1:443", None),
        used(1, "127.0.0.1:53", Some(111)),
        used(2, "10.0.0.1:443", Some(111)),
        NetworkUse { address: NetworkAddress::Unix(b"/run/x".to_vec()), ..used(2, "1.1.1.1:1", None) },
    ];
    trees.commit(|_| {});
    let ran = check(&trees, &["--deny-net"]);
    assert_eq!(
        ran.text(),
        "deny-net    10.0.0.1:443  connect by sh build.sh (process 1) and another process: --deny-net *\n\
         deny-net    127.0.0.1:53  connect, failed by sh build.sh (process 1): --deny-net *\n\
         fail: 2 findings\n"
    );
    assert_eq!(check(&trees, &["--deny-net=10.0.0.2"]).status, 0);
    assert_eq!(check(&trees, &["--deny-net=unix:/run/*"]).status, 1);
}

#[test]
fn one_rule_that_allows_denies_the_rest_of_its_kind() {
    let used = |address: NetworkAddress| NetworkUse {
        process: 1,
        operation: NetworkOperation::Connect,
        address,
        count: 1,
        errno: None,
    };
    let mut trees = trees();
    trees.header.network = vec![
        used(NetworkAddress::Inet("10.0.0.1:443".parse().unwrap())),
        used(NetworkAddress::Unix(b"/run/x".to_vec())),
        used(NetworkAddress::Unix(b"\0bus-1".to_vec())),
        used(NetworkAddress::Unix(Vec::new())),
        used(NetworkAddress::Other("packet".to_owned())),
        used(NetworkAddress::Other("netlink".to_owned())),
    ];
    trees.commit(|all| {
        all.push(record(b"/home/me/a", &[Operation::Read], file(1, 1, 3), file(1, 1, 3)));
        all.push(record(b"/home/me/d", &[Operation::Directory], file(2, 1, 3), file(2, 1, 3)));
        all.push(record(b"/home/me/e", &[Operation::Existence], file(3, 1, 3), file(3, 1, 3)));
    });
    for (args, expected) in [
        (&["--allow-net", "10.0.0.1:443"][..], &["allow-net   packet"][..]),
        (&["--allow-net", "10.0.0.0/8:80"], &["allow-net   10.0.0.1:443", "allow-net   packet"]),
        (
            &["--allow-net", "10.0.0.1", "--deny-net=:443"],
            &["allow-net   packet", "deny-net    10.0.0.1:443"],
        ),
        (&["--allow-unix", "/run"], &["allow-unix  @bus-1"]),
        (&["--allow-unix", "@bus-*"], &["allow-unix  /run/x"]),
        (&["--allow-unix", "@tmp"], &["allow-unix  /run/x", "allow-unix  @bus-1"]),
        (&["--allow-read", "/home/me/a", "--allow-read", "@system"], &["allow-read  /home/me/d"]),
        (&["--allow-read", "~", "--allow-read", "/bin", "--deny-read", "~/a"], &["deny-read   /home/me/a"]),
        (&["--allow-exec", "/bin/sh"], &["allow-exec  /bin/cp"]),
        (&["--allow-exec", "/bin", "--deny-exec", "cp"], &["deny-exec   /bin/cp"]),
    ] {
        let ran = check(&trees, args);
        let mut found: Vec<&str> =
            ran.text().lines().filter_map(|line| Some(line.rsplit_once("  ")?.0)).collect();
        found.sort_unstable();
        assert_eq!(found, expected, "{args:?}: {}", ran.text());
    }
    let refused = check(&trees, &["--allow-net", "unix:/run/x"]);
    assert_eq!(refused.status, 2);
    assert!(refused.err.contains("which --allow-unix allows"), "{}", refused.err);
}

#[test]
fn reads_that_were_left_out_do_not_pass_where_not_all_is_allowed() {
    let verdict = |rule: &str, args: &[&str]| {
        let mut trees = trees();
        let (rule, is_listed) = (rule.trim_end_matches(", listed"), rule.ends_with(", listed"));
        let read = LeftOutUse {
            path: b"/srv/x".to_vec(),
            beneath: false,
            operations: Operation::Read.into(),
            process: 1,
        };
        let changes = Some(Vec::new());
        let read = is_listed.then(|| vec![read]);
        trees.header.suppressed =
            vec![Suppressed { changes, changed: Vec::new(), writes: 0, read, ..left_out(rule, &[]) }];
        trees.commit(|_| {});
        let mut line = vec!["--json", "--allow-read", "/bin"];
        line.extend(args.iter().flat_map(|glob| ["--allow-read", glob]));
        let json = check(&trees, &line).json();
        (json["verdict"].as_str().unwrap().to_owned(), json["notes"].as_array().unwrap().len())
    };
    for (rule, globs, expected) in [
        ("reads:/usr", &["@workspace"][..], ("unknown", 0)),
        ("reads:/usr", &["@system"], ("pass", 0)),
        ("$HOME/.cache", &["@system"], ("unknown", 0)),
        ("$HOME/.cache", &["~/.cache/x"], ("unknown", 0)),
        ("$HOME/.cache", &["~/.cache"], ("pass", 0)),
        ("../left", &["."], ("unknown", 0)),
        ("../left", &["../left"], ("pass", 0)),
        ("foreign owner", &["@workspace"], ("unknown", 0)),
        ("foreign owner", &["@system"], ("pass", 1)),
        ("foreign owner, listed", &["@system"], ("fail", 0)),
        ("foreign owner, listed", &["@system", "/srv"], ("pass", 0)),
        (".git", &["./src"], ("unknown", 0)),
        (".git", &["@workspace"], ("pass", 1)),
    ] {
        assert_eq!(verdict(rule, globs), (expected.0.to_owned(), expected.1), "{rule} {globs:?}");
    }
}

#[test]
fn a_decision_is_explained() {
    let trees = trees();
    trees.commit(|_| {});
    let rules = [
        "--allow-write",
        "@workspace",
        "--deny-write",
        "*.lock",
        "--deny-read",
        "@secrets",
        "--allow-net",
        "10.0.0.1:443",
    ];
    let explain = |what: &str| check(&trees, &[&["--explain", what][..], &rules].concat());
    assert_eq!(
        explain("/nowhere/work/a.lock").text(),
        "/nowhere/work/a.lock\n\
         write  denied   --deny-write *.lock, which is /nowhere/work/**/*.lock; outweighs --allow-write @workspace\n\
         read   allowed  no --allow-read is given, no --deny-read matches\n\
         exec   allowed  no --allow-exec is given, no --deny-exec matches\n"
    );
    assert_eq!(
        explain("/home/me/.netrc").text(),
        "/home/me/.netrc\n\
         write  denied   no --allow-write matches\n\
         read   denied   --deny-read @secrets\n\
         exec   allowed  no --allow-exec is given, no --deny-exec matches\n"
    );
    assert_eq!(
        explain("10.0.0.1").text(),
        "10.0.0.1\n\
         connect to port 443  allowed  --allow-net 10.0.0.1:443\n\
         connect to others    denied   no --allow-net matches\n"
    );
    assert_eq!(explain("[::1]:443").text(), "[::1]:443\nconnect  denied   no --allow-net matches\n");
    let json = check(&trees, &[&["--explain", "/etc", "--json"][..], &rules].concat()).json();
    assert_eq!(json["path"], "/etc");
    let written = &json["decisions"][0];
    assert_eq!(
        (&written["use"], &written["allowed"], &written["rule"]),
        (&"write".into(), &false.into(), &"allow-write".into())
    );
    for (what, why) in [("", "needs a path"), ("example.org:443", "is a name")] {
        let ran = explain(what);
        assert!(ran.status == 2 && ran.err.contains(why), "{}", ran.err);
    }
}

#[test]
fn rules_come_from_a_file_too() {
    let trees = trees();
    trees.commit(|all| all.push(written(b"/etc/x")));
    let file = trees.dir.path().join("rules.toml");
    let with = |text: &str| {
        std::fs::write(&file, text).unwrap();
        check(&trees, &["--policy", file.to_str().unwrap()])
    };
    assert_eq!(with("allow-write = [\"@workspace\"]\n").status, 1);
    assert_eq!(with("allow-write = [\"@workspace\", \"/etc\"]\ndeny-net = true\n").status, 0);
    assert_eq!(with("deny-net = [\"10.0.0.1\"]\n").status, 0);
    assert_eq!(with("allow-exec = [\"/bin/sh\"]\n").status, 1);
    assert_eq!(
        with("allow-exec = [\"/bin/*\"]\nallow-net = [\"[::1]:1\"]\nallow-unix = [\"@x\"]\n").status,
        0
    );
    assert_eq!(with("allow-read = [\"@system\"]\ndeny-exec = [\"cp\"]\n").status, 1);
    let name = file.to_str().unwrap();
    for (text, why) in [
        ("allow-wrote = []\n", "line 1: unknown field `allow-wrote`, expected one of"),
        ("\ndeny-net = 1\n", "line 2: deny-net is true, or a list of addresses"),
        ("allow-write = \"x\"\n", "line 1: invalid type: string \"x\", expected a sequence"),
    ] {
        let ran = with(text);
        assert_eq!((ran.status, ran.text()), (2, ""), "{text}");
        let start = format!("agent-snapshot: read {name}: {why}");
        assert!(ran.err.starts_with(&start) && ran.err.matches('\n').count() == 1, "{}", ran.err);
    }
    let ran = with("deny-write = [\"@x\"]\n");
    assert!(ran.status == 2 && ran.err.starts_with("agent-snapshot: --deny-write @x: the rule is no preset"));
    let ran = with("");
    assert!(ran.status == 2 && ran.err.starts_with("agent-snapshot: check needs a rule: --allow-write GLOB"));
    let ran = check(&trees, &["--deny-net=example.org"]);
    assert!(
        ran.status == 2
            && ran.err.starts_with("agent-snapshot: --deny-net example.org: the rule is not an address")
    );
    assert_eq!(run(&["check", "/nowhere/at/all", "--deny-net"]).status, 3);
}

#[test]
fn sarif_holds_hostile_names_and_is_the_same_each_time() {
    let names: [&[u8]; 6] = [
        b"/nowhere/work/new\nline",
        b"/nowhere/work/a\"quote' and space",
        b"/nowhere/work/caf\xe9",
        b"/nowhere/work/<script>alert(1)</script>",
        b"/etc/{0}[link](javascript:x)%41\\",
        b"/nowhere/work/\x1b[2J:x",
    ];
    let mut trees = trees();
    trees.header.network = vec![NetworkUse {
        process: 1,
        operation: NetworkOperation::Send,
        address: NetworkAddress::Other("packet".to_owned()),
        count: 1,
        errno: None,
    }];
    trees.header.complete = false;
    trees.commit(|all| all.extend(names.iter().map(|name| written(name))));
    let args = ["--deny-write", "/**", "--deny-net", "--deny-read", "@secrets", "--sarif"];
    let ran = check(&trees, &args);
    assert_eq!(ran.status, 1);
    assert_eq!(ran.out, check(&trees, &args).out);
    let json = ran.json();
    let results = json["runs"][0]["results"].as_array().unwrap();
    let places: Vec<_> =
        results.iter().map(|one| &one["locations"][0]["physicalLocation"]["artifactLocation"]).collect();
    let uris: Vec<_> = places.iter().map(|place| place["uri"].as_str().unwrap()).collect();
    assert_eq!(
        uris,
        [
            "file:///etc/%7B0%7D%5Blink%5D%28javascript%3Ax%29%2541%5C",
            "%1B%5B2J%3Ax",
            "%3Cscript%3Ealert%281%29%3C/script%3E",
            "a%22quote%27%20and%20space",
            "caf%E9",
            "new%0Aline",
            "file:///bin/sh",
        ]
    );
    assert_eq!(json["runs"][0]["originalUriBaseIds"]["SRCROOT"]["uri"], "file:///nowhere/work/");
    let text = results[0]["message"]["text"].as_str().unwrap();
    assert!(text.starts_with("deny-write \"/etc/{{0}}\\[link\\](javascript:x)%41\\\\\": write by"), "{text}");
    is_valid_sarif(&ran.out);

    let nothing = check(&trees, &["--deny-net=10.0.0.1", "--sarif"]);
    assert_eq!(nothing.json()["runs"][0]["results"][0]["ruleId"], "incomplete");
    is_valid_sarif(&nothing.out);
    let passed = check(&trees, &["--deny-net=10.0.0.1", "--sarif", "--allow-incomplete"]);
    assert_eq!((passed.status, passed.json()["runs"][0]["results"].as_array().unwrap().len()), (0, 0));
    is_valid_sarif(&passed.out);
}

/// Validates a log with the schema of OASIS, if Python has jsonschema.
#[track_caller]
pub fn is_valid_sarif(log: &[u8]) {
    let python = |script: &str| {
        let mut command = python();
        command.args([
            "-c",
            script,
            concat!(env!("CARGO_MANIFEST_DIR"), "/testdata/sarif-schema-2.1.0.json"),
        ]);
        command
    };
    if !python("import jsonschema").output().is_ok_and(|output| output.status.success()) {
        println!("skipped: Python has no jsonschema");
        return;
    }
    let script = "import json, sys, jsonschema\n\
                  schema = json.load(open(sys.argv[1]))\n\
                  jsonschema.Draft7Validator(schema).validate(json.load(sys.stdin))";
    let mut validator = python(script).stdin(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    std::io::Write::write_all(&mut validator.stdin.take().unwrap(), log).unwrap();
    let output = validator.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}
