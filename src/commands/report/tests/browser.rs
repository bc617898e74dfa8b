//! The page in a real browser, which says in its log what it refused to do or was told by a script.
//!
//! `REPORT_SCREENSHOTS=DIR` keeps the screenshots.

use std::net::TcpListener;
use std::path::PathBuf;
use std::process::Command;
use std::{env, fs};

use super::*;
use crate::snapshot::{Operation, PathUse};

/// The names under which distributions have it.
const BROWSERS: [&str; 3] = ["chromium", "chromium-browser", "google-chrome"];

/// A browser with a profile of its own.
struct Browser {
    program: &'static str,
    place: tempfile::TempDir,
    /// Nobody may call it.
    server: TcpListener,
}

/// What became of a page.
struct Shown {
    /// The document in the end.
    dom: String,
    /// What was written to the console, by the browser too.
    console: Vec<String>,
}

impl Browser {
    fn find() -> Option<Browser> {
        let paths = env::var_os("PATH").unwrap_or_default();
        let is_there = |name: &&str| env::split_paths(&paths).any(|directory| directory.join(name).exists());
        let Some(program) = BROWSERS.into_iter().find(is_there) else {
            println!("skipped: chromium is not installed");
            return None;
        };
        let server = TcpListener::bind("127.0.0.1:0").unwrap();
        server.set_nonblocking(true).unwrap();
        Some(Browser { program, place: tempfile::tempdir().unwrap(), server })
    }

    /// The address that a page would have to call.
    fn address(&self) -> String {
        format!("http://{}/", self.server.local_addr().unwrap())
    }

    /// Shows `page` with these options.
    fn show(&self, page: &str, options: &[String]) -> Shown {
        let file = self.place.path().join("page.html");
        fs::write(&file, page).unwrap();
        let output = Command::new(self.program)
            .args(["--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run", "--hide-scrollbars"])
            // Its own services call nobody either.
            .args(["--disable-background-networking", "--disable-component-update", "--disable-sync"])
            .args(["--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"])
            .args(["--enable-logging=stderr", "--v=1"])
            .arg(format!("--user-data-dir={}", self.place.path().join("profile").display()))
            .args(options)
            .arg(format!("file://{}", file.display()))
            .output()
            .unwrap();
        let log = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{log}");
        let console = log.lines().filter(|line| line.contains(":CONSOLE")).map(str::to_owned).collect();
        Shown { dom: String::from_utf8(output.stdout).unwrap(), console }
    }

    /// Runs a script in the page, after its own, and returns what the script returns.
    ///
    /// The page's policy would not allow it, so the policy gets its hash.
    fn run(&self, page: &str, script: &str) -> Value {
        let script = format!("document.title = JSON.stringify((() => {{ {script} }})());");
        let hash = format!("script-src 'sha256-{}' ", BASE64.encode(Sha256::digest(&script)));
        let page = page.replacen("script-src ", &hash, 1);
        let page = page.replacen("\n</body>", &format!("<script>{script}</script>\n</body>"), 1);
        let shown = self.show(&page, &["--dump-dom".to_owned()]);
        assert_eq!(shown.console, [""; 0]);
        let title = elements(&shown.dom, "title")[0];
        let title =
            title.replace("&lt;", "<").replace("&gt;", ">").replace("&nbsp;", "\u{a0}").replace("&amp;", "&");
        serde_json::from_str(&title).unwrap_or_else(|error| panic!("{error}: {title}"))
    }

    /// Whether anybody called the server.
    fn was_called(&self) -> bool {
        self.server.accept().is_ok()
    }
}

/// A recording with this many changed paths, and half as many that were read.
fn large(count: usize) -> BundleTrees {
    let mut trees = hostile();
    for number in 0..count {
        let name = format!("src/module{}/part{}/file{number}.rs", number % 37, number % 11);
        let content = format!("fn f{number}() {{\n    // {number}\n}}\n");
        match number % 4 {
            0 | 1 => BundleTrees::write(&trees.after(), name, content),
            2 => BundleTrees::write(&trees.before(), name, content),
            _ => {
                BundleTrees::write(&trees.before(), &name, &content);
                BundleTrees::write(&trees.after(), name, content + "// more\n");
            }
        }
    }
    for number in 0..count / 2 {
        let name = format!("lib/package{}/{number}.h", number % 53);
        trees.both(&name, &"x".repeat(number % 1000));
    }
    let words: [&[u8]; 3] = [b"cc", b"-o", b"x"];
    let processes = (1..).take(count.min(3000) / 2 + 2);
    trees.header.processes = processes
        .map(|id| process(id, (id > 1).then_some(id / 2), &words, i32::from(id % 50 == 0)))
        .collect();
    trees.commit(|records| {
        for record in records {
            if record.path.starts_with(b"/nowhere/work/lib/") {
                record.operations = Operation::Read.into();
            }
        }
    });
    trees
}

#[test]
#[ignore = "slow: a real browser"]
fn slow_browser_runs_nothing_of_a_recording_and_fetches_nothing() {
    let Some(browser) = Browser::find() else { return };
    let address = browser.address();
    let trees = hostile();
    for (number, content) in [
        format!("<img src=\"{address}\"><script src=\"{address}\"></script>"),
        format!("</script><link rel=stylesheet href={address}><style>@import '{address}';</style>"),
        format!("<meta http-equiv=refresh content='0;url={address}'><iframe src='{address}'></iframe>"),
        "<a href=\"javascript:console.log(1)\">x</a><body onload=console.log(1)>".to_owned(),
    ]
    .iter()
    .enumerate()
    {
        BundleTrees::write(&trees.after(), format!("{number}.html"), content);
        // The same as a name, in which no slash may be.
        BundleTrees::write(&trees.after(), content.replace('/', "\u{29f8}"), content);
    }
    trees.commit(|_| {});
    let page = page(&trees, &[]);
    let shown = browser.show(&page, &["--dump-dom".to_owned()]);
    assert_eq!(shown.console, [""; 0]);
    let unfold = "
        for (let round = 0; round < 20; round += 1) {
          for (const details of document.querySelectorAll('details:not([open])')) { details.open = true; details.fill(); }
        }
        const count = (what) => document.querySelectorAll(what).length;
        return {
          diffs: count('pre.diff') === recordings[0].changes.filter((row) => row.f !== undefined).length,
          scripts: count('script'),
          foreign: count('main :is(img, iframe, script, style, link, meta, a, svg, b b)') + count('[onload], [onerror]'),
          markup: document.body.textContent.includes('<img src=\"'),
        };";
    let expected = json!({"diffs": true, "scripts": 4, "foreign": 0, "markup": true});
    assert_eq!(browser.run(&page, unfold), expected);
    assert!(!browser.was_called());

    // The check can fail: a page that is not escaped is told by the console.
    let foul =
        format!("<img src=\"{address}\"><script>console.log(1)</script><p style=\"color: red\">x</p></main>");
    let shown = browser.show(&page.replacen("</main>", &foul, 1), &["--dump-dom".to_owned()]);
    assert_eq!(shown.console.len(), 3, "{:?}", shown.console);
    assert!(!browser.was_called(), "the policy holds all the same");
}

#[test]
#[ignore = "slow: a real browser"]
fn slow_browser_answers_the_first_questions_within_two_clicks() {
    let Some(browser) = Browser::find() else { return };
    let mut trees = BundleTrees::new();
    for number in 0..200 {
        BundleTrees::write(&trees.after(), format!("build/{number}.o"), "x\n".repeat(number));
    }
    BundleTrees::write(&trees.after(), "outside", "x\n");
    trees.header.processes = vec![
        process(1, None, &[b"make"], 0),
        process(2, Some(1), &[b"cc", b"-c"], 0),
        process(3, Some(1), &[b"ld"], 1),
    ];
    trees.header.network = [(1, "10.0.0.1:80"), (2, "10.0.0.2:80")]
        .map(|(process, address)| {
            contact(process, NetworkOperation::Connect, NetworkAddress::Inet(address.parse().unwrap()))
        })
        .into();
    trees.commit(|records| {
        for record in records {
            record.processes = vec![1, 2];
            record.uses = [(1, Operation::Read), (2, Operation::Write)]
                .map(|(process, operation)| PathUse { process, operations: operation.into(), exe: None })
                .into();
            if record.path.ends_with(b"outside") {
                record.path = b"/etc/outside".to_vec();
            }
        }
    });
    let script = "
        const rows = (part) => [...recordings[0].part(part).querySelectorAll('.leaf .name, .file .name, .process .command')]
          .map((row) => row.textContent);
        const click = (label) => [...document.querySelectorAll('.answer')]
          .find((answer) => answer.textContent.includes(label)).click();
        click('outside');
        const outside = rows('changes');
        const by = recordings[0].part('changes').querySelector('.by');
        const writer = by.textContent;
        by.click();
        const process = rows('processes');
        click('Failed');
        const failed = [rows('processes'), recordings[0].part('changes').hidden];
        click('Contacted');
        const contacted = [rows('network'), recordings[0].part('changes').hidden];
        recordings[0].part('network').querySelector('.by').click();
        const ofMake = [rows('network'), rows('processes')[0].slice(0, 6)];
        click('Largest');
        const largest = rows('changes');
        input.value = '17.o created';
        apply();
        const found = [rows('changes'), document.getElementById('found').textContent];
        input.value = '';
        apply();
        return { outside, writer, process, failed, contacted, ofMake, largest, found, all: recordings[0].part('changes').innerText.includes('202 paths') };";
    let expected = json!({
        "outside": ["outside"],
        "writer": "cc 2",
        "process": ["2 cc -c changed 202 paths"],
        "failed": [["3 ld"], true],
        "contacted": [["10.0.0.1:80", "10.0.0.2:80"], true],
        "ofMake": [["10.0.0.1:80"], "1 make"],
        "largest": ["199.o"],
        "found": [["117.o", "17.o"], "2 matches"],
        "all": true,
    });
    assert_eq!(browser.run(&page(&trees, &[]), script), expected);
}

#[test]
#[ignore = "slow: a real browser"]
fn slow_browser_shows_few_and_many_paths_at_two_widths_in_light_and_dark() {
    let Some(browser) = Browser::find() else { return };
    let kept = env::var_os("REPORT_SCREENSHOTS").map(PathBuf::from);
    let place = kept.unwrap_or_else(|| browser.place.path().to_owned());
    for count in [10, 2_000, 50_000] {
        let page = page(&large(count), &[]);
        for width in [1280, 500] {
            for (scheme, name) in [(1, "light"), (0, "dark")] {
                if count > 2_000 && (width, name) != (1280, "light") {
                    // What differs by width and colours is seen with fewer.
                    continue;
                }
                let file = place.join(format!("{count}-{width}-{name}.png"));
                let options = [
                    format!("--screenshot={}", file.display()),
                    format!("--window-size={width},2400"),
                    format!("--blink-settings=preferredColorScheme={scheme}"),
                ];
                let shown = browser.show(&page, &options);
                assert_eq!(shown.console, [""; 0], "{}", file.display());
                assert!(fs::read(&file).unwrap().starts_with(b"\x89PNG"), "{}", file.display());
            }
        }
        let script = "
            const opened = Math.round(performance.now());
            filterBy('file1', recordings[0].article);
            const filtered = Math.round(performance.now()) - opened;
            return { opened, filtered, paths: recordings[0].changes.length };";
        let told = browser.run(&page, script);
        assert!(told["paths"].as_u64().unwrap() > count as u64);
        println!("{count} changed paths: {} bytes, times in ms: {told}", page.len());
    }
}
