//! What was there between the commands of a day: `history`, `cat --at` and `restore --at` against the copies.

use std::collections::BTreeSet;
use std::os::unix::ffi::OsStrExt as _;

use agent_snapshot::snapshot::{Digest, printable};

use super::Day;
use super::copies::{Compare, Fact, TreeCopy};

impl Day {
    /// The paths in the working tree that commands changed, without Git's state.
    fn changed_paths(&self) -> Vec<Vec<u8>> {
        let git = self.place.path(".git");
        let all: BTreeSet<&Vec<u8>> = self.steps.iter().flat_map(|step| &step.changed).collect();
        let is_file = |path: &&&Vec<u8>| path.starts_with(&self.place.path("")) && !path.starts_with(&git);
        all.iter().filter(is_file).map(|path| (*path).clone()).collect()
    }

    fn verb_on(&self, verb: &str, path: &[u8], arguments: &[&str]) -> (i32, Vec<u8>, String) {
        let mut command = self.place.command();
        command.env("AGENT_SNAPSHOT_LIBRARY", &self.library).arg(verb).args(arguments);
        let output = command.arg("--").arg(std::ffi::OsStr::from_bytes(path)).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        (output.status.code().unwrap(), output.stdout, said)
    }

    /// Asks for the content of paths at moments between two commands.
    pub(super) fn look_back(&mut self, count: usize) {
        let paths = self.changed_paths();
        let mut wrong = Vec::new();
        for _ in 0..count {
            let path = &paths[self.random.below(paths.len())];
            let index = self.random.below(self.steps.len());
            let step = &self.steps[index];
            let (status, content, said) = self.verb_on("cat", path, &["--at", &step.after_at]);
            let is_right = match step.after.get(path) {
                None => status == 1 && said.contains("nothing was there"),
                Some(Fact { content: Some((_, digest)), .. }) => {
                    status == 0 && said.is_empty() && Digest::of(&content) == *digest
                }
                Some(fact) => match fact.state.split_once(" -> ") {
                    Some((_, target)) => status == 0 && printable(&content) == target,
                    None => status == 1 && said.contains("it is a "),
                },
            };
            if !is_right {
                let fact = step.after.get(path);
                let shown = printable(path);
                wrong.push(format!(
                    "cat {shown} after command {index} at {} ({}): {status} {said}, {} bytes, should be {fact:?}",
                    step.after_at,
                    step.shown(),
                    content.len()
                ));
            }
        }
        assert!(wrong.is_empty(), "{}", crate::support::lines(&wrong));
    }

    /// Asks who has changed paths.
    pub(super) fn ask_for_histories(&mut self, count: usize) {
        let paths = self.changed_paths();
        for _ in 0..count {
            let path = &paths[self.random.below(paths.len())];
            let beneath = [path.as_slice(), b"/"].concat();
            let is_one = |altered: &Vec<u8>| altered == path || altered.starts_with(&beneath);
            // A history is that of a name: what was written by another hard link is in that one's.
            let has_other_names = |step: &super::Step| {
                step.after.iter().any(|(one, fact)| is_one(one) && !fact.names.is_empty())
            };
            if self.steps.iter().any(has_other_names) {
                continue;
            }
            let steps = self.steps.iter().rev().filter(|step| step.altered().any(is_one));
            let expected: Vec<&str> = steps.map(super::Step::id).collect();
            let (status, list, said) = self.verb_on("history", path, &["--json", "--limit", "1000"]);
            let what = format!("history of {}: {status} {said}", printable(path));
            assert_eq!(status, i32::from(expected.is_empty()), "{what}");
            if status == 0 {
                let list: serde_json::Value = serde_json::from_slice(&list).unwrap();
                let recordings = list["recordings"].as_array().unwrap();
                let ids: Vec<&str> = recordings.iter().map(|one| one["id"].as_str().unwrap()).collect();
                assert_eq!((ids, &list["changed_since"]), (expected, &false.into()), "{what}");
            }
        }
    }

    /// Puts the whole tree back to moments between two commands, and takes that back.
    pub(super) fn go_back(&mut self, count: usize) {
        let last = self.steps.last().unwrap().after.clone();
        for _ in 0..count {
            let index = self.random.below(self.steps.len());
            let step = &self.steps[index];
            let what = format!("restore --at after command {index}, {}", step.shown());
            let run = self.verb(&["restore", ".", ".git", "--at", &step.after_at, "--json"]);
            // The day looks at the repository itself, by a `git status` that refreshes the index: what is not known or
            // not certain of that is no fault.
            let reasons = run.stderr.lines().filter(|line| line.starts_with("  "));
            let (of_index, others): (Vec<_>, Vec<_>) =
                reasons.partition(|line| line.contains("/.git/index: "));
            if run.status == 1 && !of_index.is_empty() && others.is_empty() {
                continue;
            }
            assert!(run.status == 0 && others.is_empty(), "{what}: {run:#?}");
            // The home directory was not named.
            let is_inside = |path: &Vec<u8>| path.starts_with(self.place.work.as_os_str().as_bytes());
            let mut wanted: TreeCopy = last.clone();
            wanted.retain(|path, _| !is_inside(path));
            let inside = step.after.iter().filter(|(path, _)| is_inside(path));
            wanted.extend(inside.map(|(path, fact)| (path.clone(), fact.clone())));
            self.expect(&wanted, Compare::NotNames, &what);
            let outcome: serde_json::Value = serde_json::from_str(&run.stdout).unwrap();
            if let Some(rescue) = outcome["rescues"][0]["path"].as_str() {
                let back = self.verb(&["restore", "--before", rescue]);
                assert!(back.status == 0, "{what}, taken back: {back:#?}");
            }
            self.expect(&last, Compare::Everything, &format!("{what}, taken back"));
        }
    }
}
