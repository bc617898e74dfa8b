mod browser;

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use super::super::testing::{BundleTrees, Ran, run};
use super::markdown;
use crate::snapshot::{
    Exec, NetworkAddress, NetworkOperation, NetworkUse, Operation, PathUse, RecordedProcess, Warning,
    WarningKind,
};

/// Names and contents that are something else to HTML, JavaScript, JSON, Markdown or the eye.
const HOSTILE: [&[u8]; 14] = [
    b"<script>alert(1)<\\script>",
    b"--><img src=x onerror=alert(1)>",
    b"'\"><svg onload=alert(1)>",
    b"&lt;b&gt; &amp;",
    b"javascript:alert(1)",
    b"a|b`c``d`*_[x](y)",
    b"{{ 7 * 7 }}{% raw %}",
    "\u{202e}gnp.exe".as_bytes(),
    "\u{2066}\u{200b}\u{feff}\u{2028}".as_bytes(),
    b"\x1b[2J\x07\x7f",
    b"line\nfeed\ttab\rreturn",
    b"not utf-8 \xff\xfe",
    b"\\u003cscript\\u003e",
    b"__proto__",
];

fn process(id: u32, parent: Option<u32>, argv: &[&[u8]], status: i32) -> RecordedProcess {
    let argv: Vec<Vec<u8>> = argv.iter().map(|word| word.to_vec()).collect();
    let exe = [b"/bin/", argv[0].as_slice()].concat();
    RecordedProcess {
        id,
        pid: 1000 + id,
        parent,
        image: Exec { exe, argv, ..Exec::default() }.into(),
        cwd: b"/".to_vec(),
        exit_status: Some(status),
        execs: Vec::new(),
        started_us: Some(u64::from(id) * 1000),
        ended_us: Some(u64::from(id) * 1000 + 500),
    }
}

fn contact(process: u32, operation: NetworkOperation, address: NetworkAddress) -> NetworkUse {
    NetworkUse { process, operation, address, count: 1, errno: None }
}

/// A recording in which everything is hostile that can be.
fn hostile() -> BundleTrees {
    let mut trees = BundleTrees::new();
    let close = b"</script><script>alert(2)</script><!-- <script>".as_slice();
    for (number, name) in HOSTILE.iter().enumerate() {
        let content = [close, name, b"\n"].concat();
        let tree = if number % 2 == 0 { trees.before() } else { trees.after() };
        BundleTrees::write(&tree, OsStr::from_bytes(name), &content);
        let directory = [b"d ", *name].concat();
        BundleTrees::write(&trees.after(), Path::new(OsStr::from_bytes(&directory)).join("file"), content);
    }
    trees.header.command = HOSTILE.iter().map(|word| word.to_vec()).chain([close.to_vec()]).collect();
    trees.header.name = Some("<script>alert(3)</script>\u{202e}".to_owned());
    trees.header.processes = vec![process(1, None, &[close, HOSTILE[0], HOSTILE[11]], 7)];
    let names = HOSTILE.iter().copied().chain([close]);
    let names = names
        .flat_map(|name| [NetworkAddress::Unix(name.to_vec()), NetworkAddress::Unix([b"\0", name].concat())]);
    trees.header.network = names.map(|name| contact(1, NetworkOperation::Connect, name)).collect();
    trees.header.network.push(contact(
        1,
        NetworkOperation::Bind,
        NetworkAddress::Other("<b>\u{202e}".to_owned()),
    ));
    trees.header.complete = false;
    trees.header.warnings = vec![Warning {
        kind: WarningKind::ContentOmitted,
        lost: true,
        count: 1,
        detail: "<script>alert(4)</script> `x`\n> y \u{202e}".to_owned(),
        processes: vec![1],
    }];
    trees
}

fn report(trees: &BundleTrees, options: &[&str]) -> Ran {
    let snap = trees.snap().into_os_string();
    let mut args = vec!["report".into(), snap];
    args.extend(options.iter().map(|option| option.into()));
    run(&args)
}

fn page(trees: &BundleTrees, options: &[&str]) -> String {
    let ran = report(trees, &[&["-o", "-"], options].concat());
    assert_eq!((ran.status, ran.err.as_str()), (0, ""));
    String::from_utf8(ran.out).unwrap()
}

/// The elements of a name in a page, from the end of the start tag to the start of the end tag.
fn elements<'p>(page: &'p str, name: &str) -> Vec<&'p str> {
    let [start, end] = [format!("<{name}"), format!("</{name}>")];
    let parts = page.split(start.as_str()).skip(1);
    parts.map(|part| part.split_once('>').unwrap().1.split(end.as_str()).next().unwrap()).collect()
}

/// The lists and the diffs of the first recording.
fn data(page: &str) -> [Value; 2] {
    let scripts = elements(page, "script");
    [scripts[0], scripts[1]].map(|json| serde_json::from_str(json).unwrap())
}

fn of_path<'v>(lists: &'v Value, path: &str) -> &'v Value {
    let mut all = lists["changes"].as_array().unwrap().iter();
    all.find(|row| row["p"] == path).unwrap_or_else(|| panic!("{path} in {lists}"))
}

#[test]
fn what_a_recording_says_is_never_markup() {
    let trees = hostile();
    trees.commit(|_| {});
    let page = page(&trees, &[]);
    // Two elements of JSON and the script.
    assert_eq!(elements(&page, "script").len(), 3);
    assert_eq!(page.matches("</script").count(), 3);
    for tag in ["<img", "<svg", "<!-- ", "onerror=alert(1)>"] {
        assert!(!page.contains(tag), "{tag}");
    }
    for hidden in ['\u{202e}', '\u{2066}', '\u{200b}', '\u{feff}', '\u{2028}', '\x1b', '\x07', '\x7f', '\r'] {
        assert!(!page.contains(hidden), "{hidden:?}");
    }
    // Nothing is lost on the way: JSON has the text that the page shows.
    let [lists, diffs] = data(&page);
    let row = of_path(&lists, "/nowhere/work/<script>alert(1)<\\\\script>");
    assert_eq!(row["g"], "deleted");
    let diff = &diffs[usize::try_from(row["f"].as_u64().unwrap()).unwrap()];
    let content = "-</script><script>alert(2)</script><!-- <script><script>alert(1)<\\script>\n";
    assert_eq!(diff["t"], format!("@@ -1 +0,0 @@\n{content}"));
    assert_eq!(of_path(&lists, "/nowhere/work/not utf-8 \\377\\376")["g"], "created");
    assert_eq!(lists["processes"][0]["start"], 1000);
    let addresses: Vec<_> =
        lists["network"].as_array().unwrap().iter().map(|used| used["p"].as_str().unwrap()).collect();
    for address in
        ["\"<script>alert(1)<\\\\script>\"", "@--><img src=x onerror=alert(1)>", "\"not utf-8 \\377\\376\""]
    {
        assert!(addresses.contains(&address), "{addresses:?}");
    }
}

#[test]
fn the_policy_allows_the_script_and_the_style_by_their_hashes_alone() {
    let trees = hostile();
    trees.commit(|_| {});
    let page = page(&trees, &[]);
    let policy =
        page.split("Content-Security-Policy\" content=\"").nth(1).unwrap().split('"').next().unwrap();
    let hash = |text: &str| format!("'sha256-{}'", BASE64.encode(Sha256::digest(text)));
    let (script, style) = (elements(&page, "script")[2], elements(&page, "style")[0]);
    let expected = format!(
        "default-src 'none'; script-src {}; style-src {}; img-src data:; base-uri 'none'; form-action 'none'",
        hash(script),
        hash(style)
    );
    assert_eq!(policy, expected);
    assert!(!page.contains(" style=") && !page.contains(" onclick="), "the policy forbids them");
}

#[test]
fn gaps_are_first() {
    let trees = hostile();
    trees.commit(|_| {});
    let page = page(&trees, &[]);
    let at = |text: &str| page.find(text).unwrap();
    assert!(at("This record has gaps") < at("<dl class=\"facts\">"));
    let markdown = report(&trees, &["--markdown"]);
    let at = |text: &str| markdown.text().find(text).unwrap_or_else(|| panic!("{text}"));
    assert!(at("This record has gaps") < at("- Changed:"));
}

#[test]
fn a_file_is_replaced_only_if_it_is_told() {
    let trees = BundleTrees::new();
    trees.commit(|_| {});
    let place = trees.dir.path().join("out");
    fs::create_dir(&place).unwrap();
    let file = place.join("page.html");
    fs::write(&file, "mine").unwrap();
    let write =
        |path: &Path, options: &[&str]| report(&trees, &[&["-o", path.to_str().unwrap()], options].concat());
    let refused = write(&file, &[]);
    assert_eq!(refused.status, 2);
    assert_eq!(refused.err, format!("agent-snapshot: {} exists: --force replaces it\n", file.display()));
    assert_eq!(fs::read(&file).unwrap(), b"mine");

    let written = write(&file, &["--force", "--json"]);
    assert_eq!((written.status, written.err.as_str()), (0, ""));
    let bytes = fs::read(&file).unwrap().len();
    let expected =
        json!({"file": file.to_str().unwrap(), "bytes": bytes, "snapshots": [trees.header.id.as_str()]});
    assert_eq!(written.json(), expected);

    let symlink = place.join("symlink");
    std::os::unix::fs::symlink(&file, &symlink).unwrap();
    for (path, why) in [(&symlink, "is not a regular file"), (&place, "is not a regular file")] {
        let refused = write(path, &["--force"]);
        assert!(refused.status == 2 && refused.err.ends_with(&format!("{why}\n")), "{}", refused.err);
    }
    assert_eq!(write(&place.join("none/page.html"), &[]).status, 125);
    assert_eq!(report(&trees, &["-o", "-", "--json"]).status, 2);
    let mut left: Vec<_> = fs::read_dir(&place).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    left.sort();
    assert_eq!(left, ["page.html", "symlink"]);
}

#[test]
fn several_snapshots_have_a_section_each() {
    let trees = [hostile(), BundleTrees::new()];
    let args = trees.iter().map(|trees| {
        trees.commit(|_| {});
        trees.snap().into_os_string()
    });
    let args: Vec<_> = ["report".into()].into_iter().chain(args).collect();
    let ran = run(&[args.clone(), vec!["-o".into(), "-".into()]].concat());
    assert_eq!((ran.status, ran.err.as_str()), (0, ""));
    assert_eq!(elements(ran.text(), "article ").len(), 2);
    assert_eq!(elements(ran.text(), "script").len(), 5);
    let ran = run(&[args, vec!["--markdown".into()]].concat());
    assert_eq!(ran.text().matches("### Recorded: ").count(), 2);
}

#[test]
fn secrets_are_withheld_and_masked() {
    let mut trees = BundleTrees::new();
    let key = "-----BEGIN RSA PRIVATE KEY-----\nhunter2\n";
    for name in [".env", "key.pem", ".ssh/id_rsa"] {
        BundleTrees::write(&trees.before(), name, key);
        BundleTrees::write(&trees.after(), name, format!("{key}hunter3\n"));
    }
    // The content of a secret stays one under another name.
    BundleTrees::write(&trees.before(), ".netrc", "machine x password hunter4\n");
    BundleTrees::write(&trees.after(), "innocent", "machine x password hunter4\nmore\n");
    trees.header.command = [b"x".to_vec(), b"--password".to_vec(), b"hunter5".to_vec()].into();
    trees.header.processes = vec![process(1, None, &[b"x", b"--token=hunter6"], 0)];
    trees.commit(|records| trees.rename(records, ".netrc", "innocent"));
    for options in [&["-o", "-"][..], &["--markdown"]] {
        let ran = report(&trees, options);
        assert!(!ran.text().contains("hunter"), "{}", ran.text());
        assert!(ran.text().contains("REDACTED"));
        let ran = report(&trees, &[options, &["--no-redact"]].concat());
        assert!(ran.text().contains("hunter5"));
        for secret in ["hunter2", "hunter3", "hunter4"] {
            assert!(!ran.text().contains(secret), "{secret}");
        }
    }
    let withheld = of_path(&data(&page(&trees, &[]))[0], "/nowhere/work/.env").clone();
    assert_eq!(withheld["n"].as_array().unwrap().last().unwrap(), "withheld: it is taken for a secret");
}

#[test]
fn the_first_questions_are_answered() {
    let mut trees = BundleTrees::new();
    trees.both("same", "same\n");
    trees.both("changed", "old\n");
    BundleTrees::write(&trees.after(), "changed", "new\n");
    BundleTrees::write(&trees.after(), "large", vec![b'x'; 5000]);
    BundleTrees::write(&trees.after(), "outside", "x\n");
    trees.header.processes = vec![
        process(1, None, &[b"sh"], 0),
        process(2, Some(1), &[b"cc"], 1),
        process(3, Some(1), &[b"ld"], 2),
    ];
    trees.commit(|records| {
        for record in records {
            if record.path.ends_with(b"outside") {
                record.path = b"/etc/outside".to_vec();
            }
        }
    });
    let page = page(&trees, &[]);
    let answers: Vec<_> = elements(&page, "b").into_iter().filter(|text| !text.contains('<')).collect();
    assert_eq!(answers, ["2 created, 1 changed", "1 path", "2 processes", "large, 4.88 KiB"]);
    for filter in ["is:lasting", "is:outside", "is:failed", "&#34;/nowhere/work/large&#34;"] {
        assert!(page.contains(&format!("data-filter=\"{filter}\"")), "{filter}");
    }
    assert_eq!(of_path(&data(&page)[0], "/etc/outside")["o"], true);
}

#[test]
fn network_tells_who_contacted_what() {
    use NetworkOperation::{Bind, Connect, Send};
    let mut trees = BundleTrees::new();
    let inet = |text: &str| NetworkAddress::Inet(text.parse().unwrap());
    let unix = |name: &[u8]| NetworkAddress::Unix(name.to_vec());
    trees.header.processes = vec![process(1, None, &[b"curl"], 0), process(2, Some(1), &[b"a|b"], 0)];
    trees.header.network = vec![
        contact(1, Connect, inet("10.0.0.1:443")),
        NetworkUse { count: 2, errno: Some(libc::ENOENT), ..contact(1, Connect, unix(b"/run/a|`b`")) },
        NetworkUse { errno: Some(libc::EADDRINUSE), ..contact(1, Bind, inet("0.0.0.0:80")) },
        NetworkUse { count: 1200, ..contact(2, Connect, inet("10.0.0.1:443")) },
        contact(2, Send, NetworkAddress::Inet6("[::1]:53".parse().unwrap())),
        contact(2, Send, NetworkAddress::Other("netlink".to_owned())),
    ];
    trees.header.complete = false;
    trees.header.warnings = vec![Warning {
        kind: WarningKind::Network,
        lost: true,
        count: 7,
        detail: "after 10000 socket addresses, others are not recorded".to_owned(),
        processes: vec![2],
    }];
    trees.commit(|_| {});
    let page = page(&trees, &[]);
    let expected = json!([
        {"g": "connect", "p": "10.0.0.1:443", "u": [1, 2], "c": 1201},
        {"g": "connect", "p": "/run/a|`b`", "u": [1], "c": 2, "e": "No such file or directory"},
        {"g": "bind", "p": "0.0.0.0:80", "u": [1], "c": 1, "e": "Address already in use"},
        {"g": "send", "p": "[::1]:53", "u": [2], "c": 1},
        {"g": "send", "p": "netlink", "u": [2], "c": 1},
    ]);
    assert_eq!(data(&page)[0]["network"], expected);
    assert!(page.contains("data-filter=\"is:network\"><span>Contacted</span> <b>2 addresses</b>"), "{page}");
    let gap = "network: after 10000 socket addresses, others are not recorded (7 times)";
    assert!(elements(&page, "li").contains(&gap), "{page}");

    let ran = report(&trees, &["--markdown"]);
    let (before, table) = ran.text().split_once("\nNetwork:\n\n| | address | times | by | |\n").unwrap();
    assert!(before.contains(&format!("> This record has gaps:\n>\n> - `{gap}`\n")), "{before}");
    let expected = "|---|---|---:|---|---|
| connect | `10.0.0.1:443` | 1201 | `curl` 1, `a\\|b` 2 |  |
| connect | `` /run/a\\|`b` `` | 2 | `curl` 1 | failed: `No such file or directory` |
| bind | `0.0.0.0:80` | 1 | `curl` 1 | failed: `Address already in use` |
| send | `[::1]:53` | 1 | `a\\|b` 2 |  |
| send | `netlink` | 1 | `a\\|b` 2 |  |

";
    assert!(table.starts_with(expected), "{table}");

    // Without any, nothing is said of it.
    let trees = BundleTrees::new();
    trees.commit(|_| {});
    assert!(!report(&trees, &["--markdown"]).text().contains("Network"));
}

#[test]
fn markdown_has_a_table_and_the_diffs() {
    let trees = hostile();
    trees.commit(|_| {});
    let ran = report(&trees, &["--markdown"]);
    let text = ran.text();
    assert!(text.contains("| created | ```/nowhere/work/a\\|b`c``d`*_[x](y)``` |"), "{text}");
    assert!(text.contains("\n<details><summary>deleted <code>/nowhere/work/&lt;script>alert(1)"), "{text}");
    assert_eq!(text.matches("<details>").count(), text.matches("</details>").count());
    assert!(!text.contains("Left out to stay below"), "{text}");
    for hidden in ['\u{202e}', '\u{2028}', '\x1b', '\x07', '\r'] {
        assert!(!text.contains(hidden), "{hidden:?}");
    }

    // A fence is longer than what is in it; a path is told to be by who changed it.
    let mut trees = BundleTrees::new();
    BundleTrees::write(&trees.after(), "readme.md", "````\n</details><script>\n````\n");
    trees.header.processes = vec![process(1, None, &[b"cat"], 0), process(2, None, &[b"ls"], 0)];
    trees.commit(|records| {
        let used = |process, operation: Operation, exe: Option<&[u8]>| PathUse {
            process,
            operations: operation.into(),
            exe: exe.map(<[u8]>::to_vec),
        };
        records[0].processes = vec![1, 2];
        records[0].uses = vec![
            used(1, Operation::Read, None),
            used(2, Operation::Write, Some(b"/bin/sh")),
            used(2, Operation::Read, None),
        ];
    });
    let ran = report(&trees, &["--markdown"]);
    let diff = "`````diff\n@@ -0,0 +1,3 @@\n+````\n+</details><script>\n+````\n`````\n";
    assert!(ran.text().contains(diff), "{}", ran.text());
    assert!(ran.text().contains("| +3 −0 | `sh` 2 |\n"), "{}", ran.text());
    let row = of_path(&data(&page(&trees, &[]))[0], "/nowhere/work/readme.md").clone();
    assert_eq!((&row["w"], &row["u"]), (&json!([[2, "sh"]]), &json!([1])));
}

#[test]
fn markdown_stays_below_its_limit_and_says_so() {
    let trees = BundleTrees::new();
    for number in 0..300 {
        let line = format!("{number} {}\n", "x".repeat(90));
        BundleTrees::write(&trees.after(), format!("{number:04}.txt"), line.repeat(100));
    }
    trees.commit(|_| {});
    let ran = report(&trees, &["--markdown"]);
    let text = ran.text();
    assert!((markdown::LIMIT / 2..=markdown::LIMIT).contains(&text.len()), "{}", text.len());
    assert_eq!(text.matches("| created |").count(), 300);
    let shown = text.matches("<details>").count();
    let left = format!("Left out to stay below 1 MiB: {} diffs. `agent-snapshot show`", 300 - shown);
    assert!(text.contains(&left), "{}", &text[text.len() - 300..]);

    // Nothing else is too long for it either.
    let mut trees = hostile();
    trees.header.command = vec![vec![b'`'; 3 << 20]];
    let gap = |number| Warning {
        kind: WarningKind::ExternalChange,
        lost: true,
        count: 1,
        detail: format!("{number}{}", "y".repeat(5000)),
        processes: Vec::new(),
    };
    trees.header.warnings = (0..2000).map(gap).collect();
    trees.header.exit_signal = Some("z".repeat(2 << 20));
    trees.commit(|_| {});
    let ran = report(&trees, &["--markdown"]);
    assert!(ran.out.len() <= markdown::LIMIT, "{}", ran.out.len());
    assert!(ran.text().contains("Left out to stay below 1 MiB: "), "{}", ran.text());
}
