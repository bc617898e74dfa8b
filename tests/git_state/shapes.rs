//! The same accidents in repositories of other shapes.

use super::scenario::*;
use crate::support::*;

const SHAPES: &[Shape] = &[
    Shape {
        name: "linked worktree",
        setup: "cd repo; git worktree add -q ../w -b linked",
        directory: "w",
        ..PLAIN
    },
    Shape {
        name: "submodule",
        setup: "git init -qb main super; cd super; git submodule add -q ../repo sub; git commit -qm sub; cd sub; \
            for branch in topic side dropped; do git branch -q $branch origin/$branch; done",
        directory: "super/sub",
        ..PLAIN
    },
    Shape { name: "sha256", init: "--object-format=sha256", ..PLAIN },
    Shape { name: "reftable", init: "--ref-format=reftable", ..PLAIN },
    Shape {
        name: "split index",
        setup: "cd repo; git config core.splitIndex true; git update-index --split-index; echo s >src/s; git add src/s",
        ..PLAIN
    },
    Shape {
        name: "untracked cache",
        setup: "cd repo; git config core.untrackedCache true; git update-index --untracked-cache; git status",
        ..PLAIN
    },
    Shape { name: "fsmonitor", setup: FSMONITOR, ..PLAIN },
    Shape {
        name: "git directory elsewhere",
        setup: "cd repo; git init -q --separate-git-dir ../elsewhere.git",
        ..PLAIN
    },
];

/// Git on Linux has no fsmonitor daemon, and asks a hook. This one names what has changed since a tick of the clock
/// before the last answer.
const FSMONITOR: &str = r#"
    cd repo; cat >.git/hooks/query <<'HOOK'; chmod +x .git/hooks/query
#!/bin/sh
date -d '0.1 seconds ago' '+%s.%N' | tr '\n' '\0'
case $2 in
[0-9]*)
    find . -maxdepth 0 -newerct "@$2" -printf '/\0'
    find . -mindepth 1 -path ./.git -prune -o -newerct "@$2" -printf '%P\0' ;;
*) printf '/\0' ;;
esac
HOOK
    git config core.fsmonitor .git/hooks/query; git update-index --fsmonitor; git status
    grep -q FSMN .git/index
"#;

/// What is tried in each shape; what removes the repository is another thing in each.
const SCENARIOS: &[Scenario] = &[
    scenario("commit", DIRTY, "git commit -qam new"),
    scenario("checkout -b", DIRTY, "git checkout -qb fresh"),
    scenario("checkout of another branch", "", "git checkout -qf topic"),
    scenario("reset --hard", DIRTY, "git reset -q --hard HEAD~1"),
    scenario("stash -u", DIRTY, "git stash -qu"),
    scenario("rebase that stops", "git checkout -qf topic", "git rebase main"),
    scenario("branch -D", "", "git branch -qD dropped side; git tag -d v1"),
    scenario("config", "", "git config user.name somebody"),
    scenario(
        "gc of a dropped branch",
        "",
        "git branch -qD dropped; git reflog expire --expire=now --all; git gc -q --prune=now",
    ),
    scenario("removed working tree", DIRTY, "find . -mindepth 1 -delete"),
    scenario("everything removed", DIRTY, "cd \"$OLDPWD\"; rm -rf ./*"),
];

fn is_possible(shape: &Shape) -> bool {
    let place = Place::new();
    let init = shape.init.split_whitespace();
    place.can_run(&["git", "init", "-q"].into_iter().chain(init).collect::<Vec<_>>())
}

fn run(name: &str) {
    let shape = SHAPES.iter().find(|shape| shape.name == name).unwrap();
    if has("git") && is_possible(shape) {
        run_all(shape, SCENARIOS, &[&["--keep", "undo"]], User::Current);
    }
}

#[test]
#[ignore = "slow: many repositories"]
fn accidents_in_a_linked_working_tree_are_undone_and_redone() {
    run("linked worktree");
}

#[test]
#[ignore = "slow: many repositories"]
fn accidents_in_a_submodule_are_undone_and_redone() {
    run("submodule");
}

#[test]
#[ignore = "slow: many repositories"]
fn accidents_in_a_sha256_repository_are_undone_and_redone() {
    run("sha256");
}

#[test]
#[ignore = "slow: many repositories"]
fn accidents_with_a_reftable_are_undone_and_redone() {
    run("reftable");
}

#[test]
#[ignore = "slow: many repositories"]
fn accidents_with_a_split_index_are_undone_and_redone() {
    run("split index");
}

#[test]
#[ignore = "slow: many repositories"]
fn accidents_with_an_untracked_cache_are_undone_and_redone() {
    run("untracked cache");
}

#[test]
#[ignore = "slow: many repositories"]
fn accidents_with_an_fsmonitor_are_undone_and_redone() {
    run("fsmonitor");
}

#[test]
#[ignore = "slow: many repositories"]
fn accidents_with_a_git_directory_elsewhere_are_undone_and_redone() {
    run("git directory elsewhere");
}
