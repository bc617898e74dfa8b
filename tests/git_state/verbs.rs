//! Git's state in the verbs that don't restore it in place.

use super::scenario::*;
use crate::support::*;

#[test]
fn command_that_changed_only_gits_state_is_listed_undone_and_redone() {
    if !has("git") {
        return;
    }
    let accident = Accident::new(&PLAIN, "", User::Current);
    let before = accident.probe();
    let verb = |arguments: &[&str]| -> Run {
        let mut command = accident.place.command();
        command.current_dir(accident.place.at("repo")).args(arguments).output().unwrap().into()
    };
    verb(&["run", "git", "branch", "-qD", "dropped"]).expect(0);
    let after = accident.probe();
    let log = verb(&["log"]).expect(0).stdout;
    let words: Vec<_> = log.split_whitespace().skip(2).collect();
    assert_eq!(words, ["0", "git", "git", "branch", "-qD", "dropped"], "{log}");
    let json: serde_json::Value = serde_json::from_str(&verb(&["log", "--json"]).stdout).unwrap();
    let entry = &json["recordings"][0];
    assert_eq!((&entry["git"], &entry["changed"]), (&true.into(), &0.into()), "{json}");
    let show = verb(&["show", "@"]).expect(0).stdout;
    assert!(show.contains(": branch dropped deleted\n"), "{show}");
    verb(&["undo"]).expect(0);
    assert_text(&accident.probe(), &before, "undone");
    verb(&["redo"]).expect(0);
    assert_text(&accident.probe(), &after, "redone");
}

#[test]
fn a_tree_is_built_without_gits_state() {
    if !has("git") {
        return;
    }
    let mut accident = Accident::new(&PLAIN, DIRTY, User::Current);
    accident.record(&["--keep", "all"], "git commit -qam new");
    let place = &accident.place;
    let built = place.base().join("built");
    let arguments = [built.to_str().unwrap(), "--before"];
    for (verb, arguments) in [("branch", &arguments[..]), ("restore", &["--into", arguments[0], "--before"])]
    {
        let run = place.verb(verb, arguments).expect(0);
        assert!(!run.stdout.contains(".git/"), "{run:#?}");
        let found = std::fs::read_dir(built.join(place.at("repo").strip_prefix("/").unwrap())).unwrap();
        let names: Vec<_> = found.map(|entry| entry.unwrap().file_name()).collect();
        assert!(
            names.iter().any(|name| name == "src") && !names.iter().any(|name| name == ".git"),
            "{names:?}"
        );
        std::fs::remove_dir_all(&built).unwrap();
    }
}

#[test]
fn the_branch_is_in_the_manifest_and_another_one_at_the_end() {
    if !has("git") {
        return;
    }
    let mut accident = Accident::new(&PLAIN, "", User::Current);
    let mut branches = |command: &str| {
        accident.record(&["--keep", "undo"], command);
        let snapshot = accident.place.snapshot();
        let root = accident.place.path("repo");
        // Others may be on the search path.
        let git = snapshot.header().git_repositories.iter().find(|git| git.root == root).unwrap();
        (git.branch.clone(), git.branch_after.clone())
    };
    let name = |name: &str| Some(name.to_owned());
    assert_eq!(branches("touch new"), (name("main"), None));
    assert_eq!(branches("git checkout -q topic"), (name("main"), name("topic")));
    assert_eq!(branches("git checkout -q --detach"), (name("topic"), name("")));
    assert_eq!(branches("git checkout -q main"), (None, name("main")));
}
