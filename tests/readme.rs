//! The documents are true: their examples print what they show, and what they name is there.
//!
//! In README.md and docs/*.md
//!
//! - sh runs each command (`$ `) of a `console` block, which must print the lines beneath it, and
//!   `[exit status N]` where that is not 0;
//! - an `sh` block after `<!-- recipe: NAME -->` in the README is an executable NAME in the search path.
//!
//! Each document has a home of its own, shown as /home/me, and its commands run in the repository `demo`
//! there (see [`DEMO`]), as an ordinary user. What differs between runs or machines is masked on both sides.

use std::fmt::Write as _;
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::{env, fs};

use agent_snapshot::cli::Cli;
use agent_snapshot::trace::syscalls;
use clap::Parser as _;
use regex::Regex;

use crate::support::{BINARY, SHELL};

/// Who root becomes to be an ordinary user.
const NOBODY: u32 = 65534;
/// What examples need and some machines lack.
const PROGRAMS: [&str; 3] = ["bash", "git", "jq"];

/// Makes the repository that the examples begin with.
const DEMO: &str = r"set -e
git init --quiet --initial-branch main
mkdir src
echo 'int main(void) { return 0; }' > src/main.c
echo 'int twice(int n) { return 2 * n; }' > src/util.c
printf 'hello: src/*.c\n\tcc -o $@ $^\n' > Makefile
echo hello > .gitignore
cat > tidy.sh <<'END'
#!/bin/sh
rm -rf src notes.txt
echo 'clean: ; rm -f hello' >> Makefile
mkdir build
echo done > build/stamp
END
printf '#!/bin/sh\necho done > result; echo oops > ~/.profile2\n' > build.sh
chmod +x tidy.sh build.sh
git add .
git commit --quiet --message first
echo 'call Ada' > notes.txt
";

fn repository() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn document(name: &str) -> String {
    fs::read_to_string(repository().join(name)).unwrap()
}

/// The names of all documents.
fn documents() -> Vec<String> {
    let docs = fs::read_dir(repository().join("docs")).unwrap();
    let mut names: Vec<String> =
        docs.map(|entry| format!("docs/{}", entry.unwrap().file_name().display())).collect();
    names.extend(["README.md", "CONTRIBUTING.md", "CHANGELOG.md"].map(str::to_owned));
    names.sort();
    names
}

/// What a document has the test do.
enum Step {
    Recipe { name: String, script: String },
    Example { command: String, shown: String },
}

/// The steps of a document, in order.
fn steps(text: &str) -> Vec<Step> {
    let mut steps = Vec::new();
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        let mut until = |end: &str| {
            let block: Vec<_> = lines.by_ref().take_while(|line| *line != end).collect();
            block.iter().fold(String::new(), |text, line| text + line + "\n")
        };
        if let Some(name) = line.strip_prefix("<!-- recipe: ").and_then(|name| name.strip_suffix(" -->")) {
            let block = until("```");
            let script = block.strip_prefix("```sh\n").expect("a recipe is an sh block").to_owned();
            steps.push(Step::Recipe { name: name.to_owned(), script });
        } else if line == "```console" {
            for line in until("```").lines() {
                match (line.strip_prefix("$ "), steps.last_mut()) {
                    (Some(command), _) => {
                        steps.push(Step::Example { command: command.to_owned(), shown: String::new() });
                    }
                    (None, Some(Step::Example { shown, .. })) => *shown = format!("{shown}{line}\n"),
                    (None, _) => panic!("a console block begins with a command, not with {line}"),
                }
            }
        }
    }
    steps
}

/// A home for the examples of one document, and the programs that they run.
struct Home {
    home: tempfile::TempDir,
    bin: tempfile::TempDir,
}

impl Home {
    fn new() -> Home {
        let home = tempfile::tempdir().unwrap();
        let bin = tempfile::tempdir().unwrap();
        fs::set_permissions(bin.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let demo = home.path().join("demo");
        fs::create_dir(&demo).unwrap();
        for directory in [home.path(), &demo] {
            if nix::unistd::geteuid().is_root() {
                chown(directory, Some(NOBODY), Some(NOBODY)).unwrap();
            }
        }
        let home = Home { home, bin };
        // Where it was built an ordinary user may not go.
        home.install("agent-snapshot", Path::new(BINARY));
        home.install("agent-snapshot-bash", Path::new(SHELL));
        home
    }

    /// Puts an executable copy of a file into the search path.
    ///
    /// Another process writes it: a descriptor of this one might be open in a child of another test, and then
    /// the file can't be executed (ETXTBSY).
    fn install(&self, name: &str, file: &Path) {
        let installed =
            Command::new("install").args(["-m", "755"]).arg(file).arg(self.bin.path().join(name)).status();
        assert!(installed.unwrap().success(), "install {name}");
    }

    /// What sh prints when it runs a script, and `[exit status N]`.
    fn run(&self, script: &str) -> String {
        let path = env::join_paths([
            self.bin.path(),
            "/usr/local/bin".as_ref(),
            "/usr/bin".as_ref(),
            "/bin".as_ref(),
        ]);
        let mut command = Command::new("/bin/sh");
        command
            .args(["-c", &format!("exec 2>&1\n{script}")])
            .current_dir(self.home.path().join("demo"))
            .env_clear()
            .env("HOME", self.home.path())
            .env("PATH", path.unwrap())
            .env("TZ", "UTC")
            .env("LC_ALL", "C.UTF-8")
            .env("GIT_CONFIG_NOSYSTEM", "1")
            .stdin(Stdio::null());
        for who in ["AUTHOR", "COMMITTER"] {
            command.env(format!("GIT_{who}_NAME"), "me").env(format!("GIT_{who}_EMAIL"), "me@example.org");
            command.env(format!("GIT_{who}_DATE"), "2026-11-21T07:00:00Z");
        }
        if nix::unistd::geteuid().is_root() {
            command.uid(NOBODY).gid(NOBODY);
        }
        let output = command.output().unwrap();
        let mut printed = String::from_utf8(output.stdout).unwrap();
        match output.status.code() {
            Some(0) => {}
            Some(status) => writeln!(printed, "[exit status {status}]").unwrap(),
            None => panic!("{script}: {}", output.status),
        }
        let [home, bin] = [&self.home, &self.bin].map(|directory| directory.path().canonicalize().unwrap());
        let printed = printed.replace(home.to_str().unwrap(), "/home/me");
        printed.replace(bin.to_str().unwrap(), "/home/me/.cargo/bin")
    }
}

/// A text without what differs between runs or machines.
fn masked(text: &str) -> String {
    let masks = [
        (r"\d+\.\d+ s\b", "TIME"),
        (r"\d+ bytes, sha256:[0-9a-f]{64}", "ARCHIVE"),
        (r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC", "DATE"),
        (r"\d{4}-\d\d-\d\d\.\d{6}\.\d+", "NAME"),
        (r"(?m)^Left out .*$", "LEFT OUT"),
        (r"(?m)^[a-z2-7]{8}  +\d+[smhd] ", "RECORDING "),
        (r"(?m)^(undo|redo) [a-z2-7]{8}:", "RECORDING:"),
        (r"(?m)^(would delete|deleted) [a-z2-7]{8}", "$1 RECORDING"),
        (r" +\d+\.\d\d KiB\b", " SIZE"),
        (r"/[a-z2-7]{8}-rescue-", "/RECORDING-rescue-"),
        (r"(?m)^\d+ paths? (was|were) only looked up", "SOME"),
        (r"\d+ paths compared", "SOME"),
        (r"(?m)  \d+ paths?$", "SOME"),
        (r#""existence":\d+"#, "SOME"),
    ];
    let mask = |text: String, (what, with): (&str, &str)| {
        Regex::new(what).unwrap().replace_all(&text, with).into_owned()
    };
    masks.into_iter().fold(text.to_owned(), mask)
}

/// The program that a command needs and that is not here.
fn missing(command: &str) -> Option<&'static str> {
    let words: Vec<&str> = command.split_whitespace().collect();
    let is_here = |program: &&str| {
        ["/usr/local/bin", "/usr/bin", "/bin"]
            .iter()
            .any(|directory| Path::new(directory).join(program).exists())
    };
    PROGRAMS.into_iter().find(|program| words.contains(program) && !is_here(program))
}

#[test]
fn every_example_prints_what_it_shows() {
    if let Some(program) = missing("git") {
        return println!("skipped: {program} is not installed");
    }
    let recipes = steps(&document("README.md"));
    let mut wrong = String::new();
    for name in documents() {
        let home = Home::new();
        assert_eq!(home.run(DEMO), "");
        for step in &recipes {
            if let Step::Recipe { name, script } = step {
                let file = home.bin.path().join("recipe");
                fs::write(&file, script).unwrap();
                home.install(name, &file);
            }
        }
        let text = document(&name);
        let mut examples = 0;
        for step in steps(&text) {
            let Step::Example { command, shown } = step else { continue };
            examples += 1;
            if let Some(program) = missing(&command) {
                println!("skipped: {program} is not installed: {command}");
                continue;
            }
            let printed = home.run(&command);
            if masked(&printed) != masked(&shown) {
                writeln!(wrong, "{name}: $ {command}\n--- shown\n{shown}--- printed\n{printed}").unwrap();
            }
        }
        assert_eq!(examples, text.matches("\n$ ").count(), "every example of {name} is run");
    }
    assert!(wrong.is_empty(), "\n{wrong}");
}

#[test]
fn the_first_command_of_the_readme_works_in_a_fresh_clone() {
    let readme = document("README.md");
    let (_, block) = readme.split_once("```sh\n").unwrap();
    let command = block.lines().next().unwrap();
    let rest = command.strip_prefix("cargo run --release -- ").expect("it records something");
    let home = Home::new();
    // What is committed: whoever follows the README has run the command in the working tree before the tests.
    let archive = "git -c safe.directory='*' -C \"$1\" archive HEAD | tar -xC \"$2\" && { [ -z \"$3\" ] || chown -R \"$3\" \"$2\"; }";
    let owner = if nix::unistd::geteuid().is_root() { format!("{NOBODY}:{NOBODY}") } else { String::new() };
    let demo = home.home.path().join("demo");
    let mut unpack = Command::new("sh");
    unpack.args(["-c", archive, "sh"]).args([repository(), &demo]).arg(owner);
    assert!(unpack.status().unwrap().success());
    let printed = home.run(&format!("agent-snapshot --report summary {rest}"));
    assert!(printed.starts_with("agent-snapshot: 1 created, 0 changed, 1 deleted, "), "{printed}");
    let printed = home.run("agent-snapshot restore --before target/first");
    assert!(printed.contains("\n2 paths put back to the state before the command\n"), "{printed}");
}

#[test]
fn every_command_line_in_the_documents_is_accepted() {
    let mut lines = 0;
    for name in documents() {
        let text = document(&name);
        let blocks = text.split("```").skip(1).step_by(2).filter_map(|block| block.strip_prefix("sh\n"));
        for line in blocks.flat_map(str::lines) {
            let Some(arguments) = line.strip_prefix("agent-snapshot ") else { continue };
            let arguments = arguments.split(['#', '|', '>']).next().unwrap().split_whitespace();
            let arguments = arguments.take_while(|word| *word != "||" && !word.starts_with('['));
            let parsed = Cli::try_parse_from(["agent-snapshot"].into_iter().chain(arguments));
            assert!(parsed.is_ok(), "{name}: {line}\n{}", parsed.unwrap_err());
            lines += 1;
        }
    }
    assert!(lines > 0, "the README shows the verbs");
}

#[test]
fn every_file_that_the_documents_name_is_there() {
    let link = Regex::new(r"\]\(([^)#:]+)(#[^)]*)?\)").unwrap();
    let path =
        Regex::new(r"`((?:src|tests|test_programs|testdata|benches|fuzz|docs|packaging|\.ci)/[\w./]*)`")
            .unwrap();
    let mut named = 0;
    for name in documents() {
        let text = document(&name);
        let directory = repository().join(&name).parent().unwrap().to_owned();
        let links = link.captures_iter(&text).map(|found| directory.join(&found[1]));
        let paths = path.captures_iter(&text).map(|found| repository().join(&found[1]));
        for file in links.chain(paths) {
            assert!(file.exists(), "{name} names {}", file.display());
            named += 1;
        }
    }
    assert!(named > 0, "the README links to the other documents");
}

#[test]
fn every_test_that_a_checklist_names_is_there() {
    let sources = walkdir::WalkDir::new(repository().join("src"))
        .into_iter()
        .chain(walkdir::WalkDir::new(repository().join("tests")))
        .map(|entry| entry.unwrap().into_path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "rs"));
    let code: String = sources.map(|path| fs::read_to_string(path).unwrap()).collect();
    let contributing = document("CONTRIBUTING.md");
    let (group, test) = (Regex::new(r"\*\(([^)]*)\)\*").unwrap(), Regex::new(r"`(\w+)`").unwrap());
    let groups = group.captures_iter(&contributing).map(|found| found.extract::<1>().1[0]);
    let names: Vec<&str> =
        groups.flat_map(|group| test.captures_iter(group).map(|found| found.extract::<1>().1[0])).collect();
    assert!(!names.is_empty(), "the checklists name tests");
    for name in names {
        assert!(code.contains(&format!("fn {name}(")), "there is no test {name}");
    }
}

#[test]
fn the_limits_list_every_call_of_the_table() {
    let limits = document("docs/limits.md");
    let list = limits.split("<!-- calls -->").nth(1).expect("the list is between two marks");
    let listed: Vec<_> = list.split_whitespace().map(|name| name.trim_matches([',', '`', '.'])).collect();
    let mut names: Vec<_> = syscalls::all_rows().iter().map(|row| row.name).collect();
    names.sort_unstable();
    let expected: Vec<_> = names.iter().map(|name| format!("`{name}`")).collect();
    assert_eq!(listed, names, "the list should be:\n{}", expected.join(", "));
}
