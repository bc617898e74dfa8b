//! What was refused, as each verb tells it.

use super::{enforced, refused_sentence};
use crate::commands::testing::{BundleTrees, run};
use crate::snapshot::samples::header;
use crate::snapshot::{
    Enforcement, EnforcementMode, Exec, Header, NetworkAddress, NetworkOperation, Operation, RecordedProcess,
    RefusedSubject, RefusedUse,
};

fn path(path: &[u8], operation: Operation) -> RefusedSubject {
    RefusedSubject::Path { path: path.to_vec(), through: None, operation }
}

fn refused(subject: RefusedSubject, rule: &str, process: u32, count: u64) -> RefusedUse {
    RefusedUse { subject, rule: rule.to_owned(), process, count }
}

fn process(id: u32) -> RecordedProcess {
    RecordedProcess {
        id,
        pid: 100 + id,
        parent: None,
        image: Exec { exe: b"/bin/cat".to_vec(), argv: vec![b"cat".to_vec()], ..Exec::default() }.into(),
        cwd: b"/".to_vec(),
        exit_status: Some(1),
        execs: Vec::new(),
        started_us: None,
        ended_us: None,
    }
}

/// A recording in which two processes tried what is forbidden.
fn tried(header: Header) -> Header {
    let key = RefusedSubject::Path {
        path: b"/home/me/key".to_vec(),
        through: Some(b"/tmp/\x1b[2J".to_vec()),
        operation: Operation::Read,
    };
    let address = NetworkAddress::Inet("10.0.0.1:80".parse().unwrap());
    let connect = RefusedSubject::Address { address, operation: NetworkOperation::Connect };
    let rules = ["deny-read @secrets", "allow-write @workspace", "deny-net *"];
    Header {
        enforcement: Some(Enforcement {
            landlock: Vec::new(),
            mode: EnforcementMode::Refuse,
            rules: rules.iter().map(|rule| (*rule).to_owned()).collect(),
            limits: vec!["a limit".to_owned()],
        }),
        refused: vec![
            refused(key.clone(), "deny-read @secrets", 1, 1),
            refused(path(b"/etc/x", Operation::Write), "allow-write", 1, 1),
            refused(key, "deny-read @secrets", 2, 2),
            refused(connect, "deny-net *", 1, 1),
            refused(path(b"/home/me/library", Operation::Delete), "protected", 1, 1),
        ],
        processes: vec![process(1), process(2)],
        ..header
    }
}

fn trees() -> BundleTrees {
    let mut trees = BundleTrees::new();
    trees.header = tried(trees.header);
    trees.commit(|_| {});
    trees
}

fn verb(name: &str, trees: &BundleTrees, flags: &[&str]) -> crate::commands::testing::Ran {
    let snap = trees.snap();
    run(&[&[name, snap.to_str().unwrap()], flags].concat())
}

#[test]
fn refusals_of_several_processes_are_one_line() {
    let trees = trees();
    let ran = verb("show", &trees, &["--refused"]);
    let (header, list) = ran.text().split_once("\n\n").unwrap();
    assert_eq!(
        list,
        "read      /home/me/key      through its other name \"/tmp/\\033[2J\", 2 processes, 3 times: --deny-read @secrets\n\
         write     /etc/x            cat (process 1): no --allow-write matches\n\
         connect   10.0.0.1:80       cat (process 1): --deny-net *\n\
         delete    /home/me/library  cat (process 1): protected\n"
    );
    let lines: Vec<_> =
        header.lines().filter(|line| line.contains("nforced") || line.contains("efused")).collect();
    assert_eq!(
        lines,
        [
            "Enforced    deny-read @secrets, allow-write @workspace, deny-net *",
            "Enforced    but: a limit",
            "Refused     6 calls (--refused lists them)",
        ]
    );
    let of_one = verb("show", &trees, &["--refused", "--process", "2"]);
    assert!(of_one.text().contains("cat (process 2), 2 times: --deny-read"), "{}", of_one.text());
    let json = verb("show", &trees, &["--json"]).json();
    assert_eq!((json["refused"].as_array().unwrap().len(), &json["refused_calls"]), (5, &6.into()));
    let none = BundleTrees::new();
    none.commit(|_| {});
    let ran = verb("show", &none, &["--refused"]);
    assert!(ran.text().ends_with("\n\nnothing was refused\n"), "{}", ran.text());
    assert!(!ran.text().contains("Enforced") && !ran.text().contains("Refused"));
}

#[test]
fn a_summary_names_the_first_and_how_many_there_are() {
    assert_eq!(refused_sentence(&header()), None);
    let mut header = tried(header());
    assert_eq!(
        refused_sentence(&header).unwrap(),
        "6 calls were refused by rules: read /home/me/key (--deny-read @secrets), \
         write /etc/x (no --allow-write matches), connect 10.0.0.1:80 (--deny-net *) and 1 more"
    );
    header.refused.truncate(1);
    header.enforcement.iter_mut().for_each(|enforcement| enforcement.mode = EnforcementMode::End);
    assert_eq!(
        refused_sentence(&header).unwrap(),
        "1 call was refused by rules, which ended the command: read /home/me/key (--deny-read @secrets)"
    );
    assert_eq!(
        enforced(&header, true)[0],
        "deny-read @secrets, allow-write @workspace, deny-net *, until the first refusal"
    );
}

#[test]
fn check_tells_what_was_refused_apart_from_what_happened() {
    let trees = trees();
    let rule = ["--deny-read", "@secrets"];
    let with = |flags: &[&str]| verb("check", &trees, &[&rule, flags].concat());
    let ran = with(&[]);
    assert_eq!(
        (ran.status, ran.text()),
        (
            0,
            "6 calls were refused when the rules were enforced (show --refused lists them)\npass: nothing is forbidden\n"
        )
    );
    assert_eq!(with(&["--json"]).json()["refused"].as_array().unwrap().len(), 5);
    let sarif = with(&["--sarif"]).json();
    let run = &sarif["runs"][0];
    let results = run["results"].as_array().unwrap().iter().map(|result| {
        let rule = run.pointer(&format!("/tool/driver/rules/{}", result["ruleIndex"])).unwrap();
        assert_eq!((&rule["id"], &result["level"]), (&result["ruleId"], &"note".into()));
        let place = &result["locations"][0]["physicalLocation"]["artifactLocation"]["uri"];
        format!("{} {}", result["ruleId"].as_str().unwrap(), place.as_str().unwrap())
    });
    assert_eq!(
        results.collect::<Vec<_>>(),
        [
            "deny-read file:///home/me/key",
            "allow-write file:///etc/x",
            "deny-net file:///bin/cat",
            "protected file:///home/me/library",
        ]
    );
    crate::commands::check::tests::is_valid_sarif(&with(&["--sarif"]).out);
    let issues = with(&["--code-quality"]).json();
    let issues = issues.as_array().unwrap();
    assert_eq!(issues.len(), 4);
    assert!(issues.iter().all(|issue| issue["severity"] == "info"), "{issues:?}");
}

#[test]
fn reports_list_what_was_refused() {
    let trees = trees();
    let line = "write /etc/x, refused: cat (process 1): no --allow-write matches";
    let page = verb("report", &trees, &["-o", "-"]);
    assert!(page.text().contains(&format!("<li>{line}</li>")), "{}", page.text());
    let markdown = verb("report", &trees, &["-o", "-", "--markdown"]);
    assert!(markdown.text().contains(&format!("> - `{line}`\n")), "{}", markdown.text());
    let statement = verb("attest", &trees, &[]).json();
    assert_eq!(statement["predicate"]["monitorLog"]["refused"].as_array().unwrap().len(), 5);
    let policy = &statement["predicate"]["monitor"]["tracePolicy"];
    assert_eq!(policy["enforcement"]["mode"], "refuse");
}
