//! `undo -i`: asks at the terminal which paths of the plan are to be undone, line by line as `git add -i` does.

use std::collections::BTreeSet;
use std::io::{self, BufRead as _, IsTerminal as _};

use crate::commands::diff::DiffKind;
use crate::commands::out::{Console, style};
use crate::commands::paths::{here, shown};
use crate::commands::restore::{Preview, name_interrupted, report_objections};
use crate::git::{below, git_dir_of, repository_of};
use crate::restore::outcome::RestoreOutcome;

const HELP: &str = "1 3-5  toggle these, each once, a directory with what is beneath it
a      all
n      none
d 2    show the diff of 2
g      go: undo what is marked
q      quit, and change nothing";

/// What was picked.
#[derive(Debug, PartialEq, Eq)]
pub enum Picked {
    /// All of the plan.
    All,
    /// These paths, each with everything beneath it.
    These(Vec<Vec<u8>>),
    /// Nothing is to be done.
    Nothing,
}

/// Whether somebody can be asked.
pub fn is_possible(console: &Console) -> bool {
    console.format.terminal && io::stdin().is_terminal()
}

/// Asks which paths of `plan` are to be undone.
pub fn pick(plan: &RestoreOutcome, preview: &Preview, console: &mut Console) -> anyhow::Result<Picked> {
    if let Some(interrupted) = &plan.interrupted {
        name_interrupted(interrupted, console);
        return Ok(Picked::Nothing);
    }
    if !plan.obstacles.is_empty() || !plan.unavailable.is_empty() {
        report_objections(plan, false, console);
        return Ok(Picked::Nothing);
    }
    let mut list = List::of(plan);
    if list.items.is_empty() {
        return Ok(Picked::All);
    }
    for item in list.items.iter_mut().filter(|item| !item.is_git) {
        item.lines = lines(&item.path, preview);
    }
    list.print(console)?;
    loop {
        let count = list.picked.len();
        write!(console, "{count} marked; toggle which (? for help, g to go)> ")?;
        console.flush()?;
        let mut line = String::new();
        if io::stdin().lock().read_line(&mut line)? == 0 {
            writeln!(console)?;
            console.say(format_args!("nothing was changed"));
            return Ok(Picked::Nothing);
        }
        match list.command(line.trim()) {
            Command::List => list.print(console)?,
            Command::Help => writeln!(console, "{HELP}")?,
            Command::Diff(path) => preview.write_one(&path, console)?,
            Command::Wrong(why) => console.say(format_args!("{why}")),
            Command::Quit => {
                console.say(format_args!("nothing was changed"));
                return Ok(Picked::Nothing);
            }
            Command::Go => return Ok(list.result()),
        }
    }
}

/// What a line asks for.
#[derive(Debug, PartialEq, Eq)]
enum Command {
    List,
    Help,
    Diff(Vec<u8>),
    Wrong(String),
    Quit,
    Go,
}

/// A path of the plan, or Git's state of a repository, which is undone whole or not at all.
#[derive(Debug)]
struct Item {
    path: Vec<u8>,
    /// What becomes of it, as it is listed.
    what: String,
    is_git: bool,
    /// How many lines come and go, behind two spaces; empty if the diff can't tell.
    lines: String,
    /// Why it can't be picked, if it can't.
    conflict: Option<String>,
}

#[derive(Debug)]
struct List {
    items: Vec<Item>,
    /// The indices of what is picked: a directory stands for all that is beneath it.
    picked: BTreeSet<usize>,
}

impl List {
    fn of(plan: &RestoreOutcome) -> List {
        let mut items: Vec<Item> = Vec::new();
        let blocking = if plan.has_blocking_conflicts { plan.conflicts.as_slice() } else { &[] };
        let conflict =
            |path: &[u8]| blocking.iter().find(|(conflict, _)| conflict == path).map(|(_, why)| why.clone());
        let changes = plan.changes.iter().map(|(path, change)| (path, change.name()));
        let conflicts = plan.conflicts.iter().map(|(path, _)| (path, "conflict"));
        for (path, what) in changes.chain(conflicts) {
            let is_git = git_dir_of(path).is_some();
            let conflict = conflict(path);
            let path = if is_git { repository_of(path).to_vec() } else { path.clone() };
            let what = match plan.merged.get(&path) {
                Some(merged) if merged.conflicts > 0 => "merge, conflict".to_owned(),
                Some(_) => "merge".to_owned(),
                None if is_git => "Git's state".to_owned(),
                None => what.replace('_', " "),
            };
            match items.iter_mut().find(|item| item.path == path) {
                Some(item) => item.conflict = item.conflict.take().or(conflict),
                None => items.push(Item { path, what, is_git, lines: String::new(), conflict }),
            }
        }
        items.sort_by(|one, other| one.path.cmp(&other.path));
        let mut list = List { items, picked: BTreeSet::new() };
        list.pick_all();
        list
    }

    fn pick_all(&mut self) {
        self.picked = (0..self.items.len()).collect();
        for index in 0..self.items.len() {
            if self.items[index].conflict.is_some() {
                self.unpick(index);
            }
        }
    }

    /// The indices of the items whose path `is_one` relates to that of an item.
    fn related(&self, index: usize, is_one: impl Fn(&[u8], &[u8]) -> bool) -> Vec<usize> {
        let path = &self.items[index].path;
        let others = self.items.iter().enumerate().filter(|(_, item)| is_one(&item.path, path));
        others.map(|(index, _)| index).collect()
    }

    /// Takes a path out with all that is beneath it, and the directories above it, which would stand for it.
    fn unpick(&mut self, index: usize) {
        let beneath = self.related(index, |item, path| below(item, path).is_some());
        let above = self.related(index, |item, path| below(path, item).is_some());
        self.picked.retain(|index| !beneath.contains(index) && !above.contains(index));
    }

    /// Toggles each of these once, and what is beneath it as it: a line that is beneath another one of them does not count.
    /// Nothing is toggled if one of them can't be.
    fn toggle_all(&mut self, indices: &[usize]) -> Result<(), String> {
        let before = self.picked.clone();
        let indices: BTreeSet<usize> = indices.iter().copied().collect();
        let is_topmost = |index: &usize| {
            let above = self.related(*index, |item, path| item != path && below(path, item).is_some());
            !above.iter().any(|above| indices.contains(above))
        };
        let topmost: Vec<usize> = indices.iter().copied().filter(is_topmost).collect();
        let toggled = topmost.into_iter().try_for_each(|index| self.toggle(index));
        if toggled.is_err() {
            self.picked = before;
        }
        toggled
    }

    fn toggle(&mut self, index: usize) -> Result<(), String> {
        if self.picked.contains(&index) {
            self.unpick(index);
            return Ok(());
        }
        let beneath = self.related(index, |item, path| below(item, path).is_some());
        if let Some(blocked) = beneath.iter().find(|index| self.items[**index].conflict.is_some()) {
            let options = if self.items[*blocked].is_git { "--force-git" } else { "--merge or --force" };
            return Err(format!("{} is a conflict: undo {options} takes it", blocked + 1));
        }
        self.picked.extend(beneath);
        Ok(())
    }

    fn command(&mut self, line: &str) -> Command {
        match line {
            "" => return Command::List,
            "?" | "h" | "help" => return Command::Help,
            "q" | "quit" => return Command::Quit,
            "g" | "go" if self.picked.is_empty() => return Command::Wrong("nothing is marked".to_owned()),
            "g" | "go" => return Command::Go,
            "a" | "all" => {
                self.pick_all();
                return Command::List;
            }
            "n" | "none" => {
                self.picked.clear();
                return Command::List;
            }
            _ => {}
        }
        if let Some(number) = line.strip_prefix('d') {
            return match self.numbers(number.trim()).as_deref() {
                Ok([index]) => Command::Diff(self.items[*index].path.clone()),
                Ok(_) => Command::Wrong("d takes one number".to_owned()),
                Err(why) => Command::Wrong(why.clone()),
            };
        }
        let toggled = self.numbers(line).and_then(|numbers| self.toggle_all(&numbers));
        toggled.map_or_else(Command::Wrong, |()| Command::List)
    }

    /// The indices of numbers and ranges, which are counted from 1.
    fn numbers(&self, text: &str) -> Result<Vec<usize>, String> {
        let mut indices = Vec::new();
        for word in text.split([' ', ',']).filter(|word| !word.is_empty()) {
            let (first, last) = word.split_once('-').unwrap_or((word, word));
            let (Ok(first), Ok(last)) = (first.parse::<usize>(), last.parse::<usize>()) else {
                return Err(format!(
                    "{} is no number of the list; ? lists what can be typed",
                    word.escape_debug()
                ));
            };
            if first == 0 || last > self.items.len() || first > last {
                return Err(format!("the list has the numbers 1 to {}", self.items.len()));
            }
            indices.extend(first - 1..last);
        }
        Ok(indices)
    }

    /// The topmost of the paths that are picked.
    fn result(&self) -> Picked {
        if self.picked.len() == self.items.len() {
            return Picked::All;
        }
        let picked = self.picked.iter().map(|index| &self.items[*index].path);
        let is_topmost =
            |path: &&Vec<u8>| !picked.clone().any(|other| other != *path && below(path, other).is_some());
        Picked::These(picked.clone().filter(is_topmost).cloned().collect())
    }

    fn print(&self, console: &mut Console) -> anyhow::Result<()> {
        let here = here();
        for (index, item) in self.items.iter().enumerate() {
            let mark = if self.picked.contains(&index) { "*" } else { " " };
            let (number, path) = (index + 1, shown(&item.path, &here));
            let lines = &item.lines;
            let what = console.paint(style::CHANGED, format_args!("{:11}", item.what)).to_string();
            let why = item.conflict.as_ref().map(|why| format!("  (conflict: {why})")).unwrap_or_default();
            writeln!(console, "{number:3} {mark} {what} {path}{lines}{why}")?;
        }
        Ok(())
    }
}

/// How many lines of a path come and go, for [`Item::lines`].
fn lines(path: &[u8], preview: &Preview) -> String {
    let Ok(change) = preview.change(path) else { return String::new() };
    let (mut added, mut removed) = (0, 0);
    for (_, body) in change.entries() {
        if body.kind == DiffKind::Binary {
            return "  binary".to_owned();
        }
        let (more, fewer) = body.lines().map_or((0, 0), |lines| lines.counts());
        (added, removed) = (added + more, removed + fewer);
    }
    if (added, removed) == (0, 0) { String::new() } else { format!("  +{added} -{removed}") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::restore::outcome::PathChange;

    fn list() -> List {
        let changes = ["/d", "/d/e", "/d/e/f", "/d/g", "/h", "/r/.git/HEAD", "/r/.git/index", "/x"]
            .map(|path| (path.as_bytes().to_vec(), PathChange::Replace));
        let conflicts = vec![(b"/x".to_vec(), "edited since".to_owned())];
        let plan = RestoreOutcome {
            changes: changes.to_vec(),
            conflicts,
            has_blocking_conflicts: true,
            ..RestoreOutcome::default()
        };
        List::of(&plan)
    }

    fn picked(list: &List) -> Vec<String> {
        match list.result() {
            Picked::These(paths) => {
                paths.iter().map(|path| String::from_utf8_lossy(path).into_owned()).collect()
            }
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_directory_stands_for_all_that_is_beneath_it() {
        let mut list = list();
        assert_eq!(picked(&list), ["/d", "/h", "/r/.git"]);
        // What is beneath it goes alone, and then it does not stand for all any more.
        assert_eq!(list.command("3"), Command::List);
        assert_eq!(picked(&list), ["/d/g", "/h", "/r/.git"]);
        assert_eq!(list.command("1"), Command::List);
        assert_eq!(picked(&list), ["/d", "/h", "/r/.git"]);
        assert_eq!(list.command("1, 5-6"), Command::List);
        assert_eq!(list.command("g"), Command::Wrong("nothing is marked".to_owned()));
        assert_eq!(list.command("2 6"), Command::List);
        assert_eq!(picked(&list), ["/d/e", "/r/.git"]);
        assert_eq!(list.command("n"), Command::List);
        assert_eq!(list.command("a"), Command::List);
        assert_eq!(picked(&list), ["/d", "/h", "/r/.git"]);
    }

    #[test]
    fn a_line_toggles_each_once() {
        let mut list = list();
        assert_eq!(list.command("n"), Command::List);
        assert_eq!(list.command("1-5"), Command::List);
        assert_eq!(picked(&list), ["/d", "/h"]);
        assert_eq!(list.command("5 4 1 5"), Command::List);
        assert_eq!(list.picked, BTreeSet::new());
        // What is beneath a directory becomes as the directory.
        assert_eq!(list.command("2"), Command::List);
        assert_eq!(list.command("1-4"), Command::List);
        assert_eq!(picked(&list), ["/d"]);
        assert_eq!(list.command("3-4"), Command::List);
        assert_eq!(list.picked, BTreeSet::new());
    }

    #[test]
    fn git_state_is_a_conflict_if_one_of_its_files_is() {
        let head = b"/r/.git/HEAD".to_vec();
        let plan = RestoreOutcome {
            changes: vec![(head.clone(), PathChange::Replace), (b"/r/f".to_vec(), PathChange::Replace)],
            conflicts: vec![(head, "it is at 1234567 now".to_owned())],
            has_blocking_conflicts: true,
            ..RestoreOutcome::default()
        };
        let mut list = List::of(&plan);
        assert_eq!(picked(&list), ["/r/f"]);
        let refused = "1 is a conflict: undo --force-git takes it".to_owned();
        assert_eq!(list.command("1"), Command::Wrong(refused));
    }

    #[test]
    fn what_is_typed_by_mistake_changes_nothing() {
        let mut list = list();
        for wrong in
            ["0", "8", "5-3", "-1", "x", "d", "d 1 2", "d 9", "1 x", "7", "5 7", "99999999999999999999"]
        {
            assert!(matches!(list.command(wrong), Command::Wrong(_)), "{wrong}");
        }
        assert_eq!(list.command("d5"), Command::Diff(b"/h".to_vec()));
        assert_eq!(picked(&list), ["/d", "/h", "/r/.git"]);
    }
}
