//! Random programs that write, link, rename and remove a few names, each step a recording: undone and redone in every
//! way, the tree is as it was, or the undo is refused and changes nothing.
//!
//! `LINKS_FROM=N LINKS_SEEDS=M` chooses the seeds; each that fails shows its steps.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt as _;

use super::undo::ids;
use super::{run, verb};
use crate::support::{Place, Random};

const NAMES: [&str; 4] = ["a", "b", "c", "d/e"];

/// What is at each path: its mode, its content, and the first name of the same file.
type Paths = BTreeMap<String, (u32, Option<String>, Option<String>)>;

fn paths(place: &Place) -> Paths {
    let mut first = BTreeMap::new();
    let mut paths = Paths::new();
    for entry in walkdir::WalkDir::new(&place.work).min_depth(1).sort_by_file_name() {
        let entry = entry.unwrap();
        let path = entry.path().strip_prefix(&place.work).unwrap().to_str().unwrap().to_owned();
        let stat = entry.metadata().unwrap();
        let found = stat.is_file().then(|| {
            (
                fs::read_to_string(entry.path()).unwrap(),
                first.entry(stat.ino()).or_insert_with(|| path.clone()),
            )
        });
        let (content, name) = found.map(|(content, name)| (content, name.clone())).unzip();
        paths.insert(path, (stat.mode(), content, name));
    }
    paths
}

/// A command line of one to three calls, each of which may fail.
fn step(random: &mut Random, number: usize) -> String {
    let mut script = String::new();
    for _ in 0..1 + random.below(5) / 3 {
        let [one, other] = [(); 2].map(|()| NAMES[random.below(NAMES.len())]);
        script += &match random.below(20) {
            0..=2 => format!("echo {number} > {one}"),
            3..=5 => format!("echo {number} >> {one}"),
            6..=7 => format!("echo {number} > new && mv new {one}"),
            8..=11 => format!("ln {one} {other}"),
            12 => format!("ln -f {one} {other}"),
            13..=14 => format!("rm -f {one}"),
            15..=16 => format!("mv -T {one} {other}"),
            17 => "mkdir d".to_owned(),
            18 => ["rmdir d", "rm -rf d", "mv -T d f", "mv -T f d"][random.below(4)].to_owned(),
            _ => format!("chmod {} {one}", ["600", "640", "444", "755"][random.below(4)]),
        };
        script += " 2>&-; ";
    }
    script + ":"
}

/// Undoes and redoes in one way after the other; how often it was refused, or what was wrong.
fn program(seed: u64) -> Result<usize, String> {
    let mut random = Random::new(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15));
    random.below(1);
    let place = Place::new();
    for number in 0..random.below(6) {
        // A name that no recording has used is known to none.
        let step = step(&mut random, number).replace("ln ", "true ");
        place.prepare(&format!("set +e; {step}"));
    }
    let mut history = History { trees: vec![paths(&place)], place, scripts: Vec::new(), ids: Vec::new() };
    for number in 10..13 + random.below(6) {
        let script = step(&mut random, number);
        run(&history.place, &["--quiet"], &script);
        let now = paths(&history.place);
        // What changes times alone is undone, too, but nothing of it is compared.
        if history.trees.last() != Some(&now) {
            history.trees.push(now);
            history.scripts.push(script);
            history.ids.push(ids(&history.place)[0].clone());
        }
    }
    let mut refused = 0;
    for _ in 0..2 {
        let way = random.below(3);
        let outcome = match way {
            0 => history.one_by_one(),
            1 => history.several_at_once(1 + random.below(history.ids.len().max(1))),
            _ => history.out_of_order(&mut random),
        };
        match outcome.map_err(|why| history.shown(seed, &why))? {
            0 => {}
            more => return Ok(refused + more),
        }
        refused = 0;
    }
    Ok(refused)
}

struct History {
    place: Place,
    scripts: Vec<String>,
    ids: Vec<String>,
    /// Before each script, and after the last one.
    trees: Vec<Paths>,
}

impl History {
    fn shown(&self, seed: u64, why: &str) -> String {
        let steps = self.ids.iter().zip(&self.scripts).zip(&self.trees[1..]);
        let steps: Vec<_> =
            steps.map(|((id, script), tree)| format!("{id} {script}\n    {tree:?}")).collect();
        format!("LINKS_FROM={seed} LINKS_SEEDS=1: {why}\n    {:?}\n{}\n", self.trees[0], steps.join("\n"))
    }

    /// Undoes or redoes, which makes the tree `wanted`.
    fn goes_to(&self, arguments: &[&str], wanted: &Paths) -> Result<(), String> {
        let said = verb(&self.place, arguments);
        let now = paths(&self.place);
        match said.status {
            0 if now == *wanted => Ok(()),
            _ => Err(format!(
                "{arguments:?}: is {now:?}\nand should be {wanted:?}\n{}{}",
                said.stdout, said.stderr
            )),
        }
    }

    fn redo_all(&self, trees: &[Paths]) -> Result<usize, String> {
        for tree in trees.iter().rev() {
            self.goes_to(&["redo"], tree)?;
        }
        Ok(0)
    }

    fn one_by_one(&self) -> Result<usize, String> {
        for tree in self.trees[..self.ids.len()].iter().rev() {
            self.goes_to(&["undo"], tree)?;
        }
        let undone: Vec<Paths> = self.trees.iter().skip(1).rev().cloned().collect();
        self.redo_all(&undone)
    }

    fn several_at_once(&self, count: usize) -> Result<usize, String> {
        let last = self.ids.len();
        if last == 0 {
            return Ok(0);
        }
        let count = count.min(last);
        self.goes_to(&["undo", "-n", &count.to_string()], &self.trees[last - count])?;
        self.redo_all(&self.trees[last..])
    }

    /// Undoes what can be undone, in any order. If that was all, and no file is said to have lost a hard link, the
    /// first tree is there.
    fn out_of_order(&self, random: &mut Random) -> Result<usize, String> {
        let mut left = self.ids.clone();
        let mut trees = Vec::new();
        let (mut refused, mut is_told, mut said_all) = (0, false, String::new());
        while !left.is_empty() && refused < 12 {
            let id = left[random.below(left.len())].clone();
            let before = paths(&self.place);
            let said = verb(&self.place, &["undo", &id]);
            said_all += &format!("{id}: {}{}", said.stdout, said.stderr);
            match said.status {
                0 => {
                    is_told |= said.stderr.contains("files of their own");
                    left.retain(|one| *one != id);
                    trees.push(before);
                }
                1 if paths(&self.place) == before => refused += 1,
                // A directory in which something is stays, and the rest is undone.
                1 if said.stdout.contains("left ") => {
                    is_told = true;
                    left.retain(|one| *one != id);
                    trees.push(before);
                }
                _ => return Err(format!("undo {id} of another order:\n{said:?}")),
            }
        }
        let now = paths(&self.place);
        if left.is_empty() && !is_told && now != self.trees[0] {
            return Err(format!("all is undone, and it is {now:?}\n{said_all}"));
        }
        self.redo_all(&trees).map_err(|why| format!("{said_all}{why}"))?;
        Ok(refused)
    }
}

fn check_all(from: u64, count: u64) {
    let outcomes: Vec<_> = (from..from + count).map(program).collect();
    let wrong: Vec<String> = outcomes.iter().filter_map(|outcome| outcome.clone().err()).collect();
    assert!(wrong.is_empty(), "{} of {count}:\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn random_steps_with_hard_links_are_undone_and_redone() {
    check_all(0, 6);
}

#[test]
#[ignore = "slow: a hundred programs"]
fn slow_random_steps_with_hard_links_are_undone_and_redone() {
    let number = |name: &str| std::env::var(name).ok().map(|number| number.parse().unwrap());
    check_all(number("LINKS_FROM").unwrap_or(1000), number("LINKS_SEEDS").unwrap_or(100));
}
