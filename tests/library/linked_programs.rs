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
        place.prepare(&format!("set +e; {}", step(&mut random, number)));
    }
    // A name that no recording has changed is known to none.
    run(&place, &["--quiet"], "touch -c a b c d/e new 2>&-; :");
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
        let way = random.below(4);
        let outcome = match way {
            0 => history.one_by_one(),
            1 => history.several_at_once(1 + random.below(history.ids.len().max(1))),
            2 => history.by_path(&mut random),
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

    /// Undoes what can be undone, in any order.
    fn out_of_order(&self, random: &mut Random) -> Result<usize, String> {
        let mut undone = Undone::default();
        let mut left = self.ids.clone();
        while !left.is_empty() && undone.refused < 12 {
            let id = left[random.below(left.len())].clone();
            if self.undo(&["undo", &id], &mut undone)? {
                left.retain(|one| *one != id);
            }
        }
        self.end(undone, left.is_empty())
    }

    /// Undoes some paths, and then the rest.
    fn by_path(&self, random: &mut Random) -> Result<usize, String> {
        let mut undone = Undone::default();
        for _ in 0..1 + random.below(3) {
            let name = NAMES[random.below(NAMES.len())];
            let some = ["undo", "-n", "2", "--", name];
            let some = if random.below(2) == 0 { &some[..] } else { &["undo", "--", name] };
            self.undo(some, &mut undone)?;
        }
        undone.refused = 0;
        while self.undo(&["undo"], &mut undone)? {}
        let is_all = undone.said.ends_with("(agent-snapshot log lists what was recorded)\n");
        undone.refused -= usize::from(is_all);
        self.end(undone, is_all)
    }

    /// Undoes, unless it is refused and changes nothing.
    fn undo(&self, arguments: &[&str], undone: &mut Undone) -> Result<bool, String> {
        let before = paths(&self.place);
        let said = verb(&self.place, arguments);
        undone.said += &format!("{arguments:?}: {}{}", said.stdout, said.stderr);
        undone.is_told |= said.stderr.contains("files of their own");
        match said.status {
            0 => {}
            1 if paths(&self.place) == before => {
                undone.refused += 1;
                return Ok(false);
            }
            // A directory in which something is stays, and the rest is undone.
            1 if said.stdout.contains("left ") => undone.is_told = true,
            _ => return Err(undone.said.clone()),
        }
        undone.trees.push(before);
        Ok(true)
    }

    /// If all is undone, and nothing was said of what could not be, the first tree is there; and all is redone.
    fn end(&self, undone: Undone, is_all: bool) -> Result<usize, String> {
        let now = paths(&self.place);
        if is_all && !undone.is_told && now != self.trees[0] {
            return Err(format!("all is undone, and it is {now:?}\n{}", undone.said));
        }
        self.redo_all(&undone.trees).map_err(|why| format!("{}{why}", undone.said))?;
        Ok(undone.refused)
    }
}

/// What was undone so far.
#[derive(Default)]
struct Undone {
    /// Before each undo.
    trees: Vec<Paths>,
    refused: usize,
    /// Whether something is said to be another file than it was, or to be left.
    is_told: bool,
    said: String,
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
