//! Accidents with Git in a plain repository, undone and redone.

use super::scenario::*;
use crate::support::*;

/// What happens every day.
const EVERYDAY: &[Scenario] = &[
    scenario("commit", DIRTY, "git commit -qam new"),
    scenario("checkout -b", DIRTY, "git checkout -qb fresh"),
    scenario("reset --hard", DIRTY, "git reset -q --hard HEAD~2"),
    scenario("stash -u", DIRTY, "git stash -qu"),
    scenario("branch -D", "", "git branch -qD dropped side"),
    scenario("rm -rf .git", DIRTY, "rm -rf .git"),
    scenario("rm -rf repo", DIRTY, "cd ..; rm -rf repo"),
];

/// Branches and history.
const HISTORY: &[Scenario] = &[
    scenario("commit --amend", DIRTY, "git commit -q --amend -am amended"),
    scenario("checkout of another branch", "", "git checkout -q topic"),
    scenario("checkout of a commit", DIRTY, "git checkout -q HEAD~1"),
    scenario("reset --soft", DIRTY, "git reset -q --soft HEAD~1"),
    scenario("merge", "", "git merge -qm merged side"),
    scenario("fast-forward merge", "git checkout -qb behind HEAD~1", "git merge -q main"),
    scenario("merge with a conflict", "", "git merge topic"),
    scenario("merge --abort", "git merge topic || true", "git merge --abort"),
    scenario("rebase", "git checkout -q side", "git rebase -q main"),
    scenario("rebase that stops", "git checkout -q topic", "git rebase main"),
    scenario("rebase --abort", "git checkout -q topic; git rebase main || true", "git rebase --abort"),
    scenario("cherry-pick", "", "git cherry-pick side"),
    scenario("cherry-pick that stops", "", "git cherry-pick topic"),
    scenario("revert", "", "git revert --no-edit HEAD"),
    scenario("am", "git format-patch -q -1 side -o ../patches", "git am -q ../patches/*"),
    scenario("am that stops", "git format-patch -q -1 topic -o ../patches", "git am -q ../patches/*"),
    scenario("bisect", "", "git bisect start; git bisect bad; git bisect good HEAD~3"),
    scenario("bisect reset", "git bisect start; git bisect bad; git bisect good HEAD~3", "git bisect reset"),
];

/// References, configuration and the index.
const REFERENCES: &[Scenario] = &[
    scenario("tag", "", "git tag new; git tag -am new newer"),
    scenario("tag -d", "", "git tag -d v1 late"),
    scenario("branch -m", "", "git branch -m main trunk"),
    scenario("branch -f", "", "git branch -f side main"),
    scenario("branch that is a directory", "git branch a", "git branch -D a; git branch a/b"),
    scenario("stash drop", "", "git stash drop -q"),
    scenario("stash drop of the older", "", "git stash drop -q 'stash@{1}'"),
    scenario("stash clear", "", "git stash clear"),
    scenario("stash pop", "", "git stash pop -q"),
    scenario("pack-refs", "git branch loose", "git pack-refs --all; git branch -qD loose"),
    scenario("update-ref -d", "", "git update-ref -d HEAD"),
    scenario("reflog expire", "", "git reflog expire --expire=now --all"),
    scenario(
        "config",
        "",
        "git config user.name somebody; git config --unset core.filemode; git config alias.x y",
    ),
    scenario("remote", "", "git remote add origin ../elsewhere"),
    scenario("notes", "", "git notes add -m note HEAD"),
    scenario("add", DIRTY, "git add -A"),
    scenario("reset", DIRTY, "git reset -q"),
    scenario("rm --cached", DIRTY, "git rm -rq --cached src"),
    scenario("removed index", DIRTY, "rm .git/index"),
    scenario("damaged files", "", "echo x >.git/HEAD; : >.git/config; echo y >>.git/logs/HEAD"),
    scenario(
        "hook",
        "",
        "printf '#!/bin/sh\\nexit 1\\n' >.git/hooks/pre-commit; chmod +x .git/hooks/pre-commit",
    ),
    scenario("clean -fdx", DIRTY, "git clean -qfdx; git tag cleaned"),
    scenario("filter", "", "git filter-branch -f --msg-filter 'sed s/commit/c/' main >/dev/null 2>&1"),
];

/// Objects and whole repositories.
const OBJECTS: &[Scenario] = &[
    scenario(
        "gc of a dropped branch",
        "",
        "git branch -qD dropped; git stash clear; git reflog expire --expire=now --all; git gc -q --prune=now",
    ),
    scenario("repack", "", "git tag repacked; git repack -adq"),
    scenario(
        "repack of what nothing has",
        "git branch -qD dropped; rm -r .git/logs",
        "git tag x; git repack -adq",
    ),
    scenario("prune", "git branch -qD dropped; git reflog expire --expire=now --all", "git tag x; git prune"),
    scenario("gc, and the repository is gone", "", "git gc -q; rm -rf .git"),
    scenario("gc, and the repository is moved away", "", "git gc -q; mv .git ../away; rm -rf ../away"),
    scenario(
        "packed, and then dropped",
        "",
        "git gc -q; git branch -qD dropped; git stash clear; git reflog expire --expire=now --all; git gc -q --prune=now",
    ),
    scenario(
        "renamed packs",
        "git gc -q",
        "git tag x; cd .git/objects/pack; for f in pack-*; do mv $f x$f; done",
    ),
    scenario(
        "what is no object",
        "",
        "echo /nowhere >.git/objects/info/alternates; touch .git/objects/pack/pack-1.keep",
    ),
    scenario("removed objects", "", "rm -rf .git/objects/??; rm -f .git/objects/pack/*"),
    scenario("removed packs", "", "rm -f .git/objects/pack/*"),
    scenario("init", "", "git init -q ../new; cd ../new; echo x >x; git add x; git commit -qm x"),
    scenario("init inside", "", "git init -q inside"),
    scenario("init again", "rm -rf .git", "git init -q; git add .; git commit -qm again"),
    scenario("clone", "", "git clone -q . ../clone"),
    scenario("clone --bare", "", "git clone -q --bare . ../bare.git"),
    scenario(
        "clone --mirror, and away",
        "",
        "git clone -q --mirror . ../away.git; rm -rf ../away.git; git tag x",
    ),
];

/// Several working trees and repositories.
const SEVERAL: &[Scenario] = &[
    scenario("worktree add", "", "git worktree add -q ../w -b w"),
    scenario(
        "worktree remove",
        "git worktree add -q ../w -b w; echo x >../w/x",
        "git worktree remove --force ../w",
    ),
    scenario(
        "worktree that is removed by hand",
        "git worktree add -q ../w",
        "rm -rf ../w; git worktree prune",
    ),
    scenario("worktree move", "git worktree add -q ../w", "git worktree move ../w ../v"),
    scenario(
        "submodule add",
        "git init -q ../lib; cd ../lib; echo l >l; git add l; git commit -qm l",
        "git submodule add -q ../lib lib; git commit -qm lib",
    ),
    scenario("submodule update", WITH_SUBMODULE, "git submodule update -q --remote"),
    scenario("submodule deinit", WITH_SUBMODULE, "git submodule -q deinit -f lib"),
    scenario("submodule rm", WITH_SUBMODULE, "git rm -qf lib; rm -rf .git/modules/lib"),
    scenario("fetch", WITH_REMOTE, "git fetch -q"),
    scenario("push", WITH_REMOTE, "git push -q origin main:pushed; git push -qd origin topic"),
    scenario("pull", WITH_REMOTE, "git pull -q --no-rebase --no-edit origin other"),
    scenario("remote rm", WITH_REMOTE, "git remote rm origin"),
];

const WITH_SUBMODULE: &str = "git init -q ../lib; (cd ../lib; echo l >l; git add l; git commit -qm l); \
    git submodule add -q ../lib lib; git commit -qm lib; (cd ../lib; echo more >l; git commit -qam more);";
const WITH_REMOTE: &str = "git clone -q --bare . ../remote.git; git remote add origin ../remote.git; git fetch -q; \
    git clone -q ../remote.git ../other; (cd ../other; git checkout -qb other; echo o >o; git add o; git commit -qm o; \
    git push -q origin other; git branch -q new; git push -q origin new);";

const UNDO: &[&str] = &["--keep", "undo"];
const CHANGES: &[&str] = &["--keep", "changes"];
const ALL: &[&str] = &["--keep", "all"];
const STOPS: &[&str] = &["--keep", "undo", "--mechanism", "stops"];

#[test]
fn everyday_accidents_are_undone_and_redone() {
    run_all(&PLAIN, EVERYDAY, &[UNDO], User::Current);
}

#[test]
fn an_ordinary_users_accidents_are_undone_and_redone() {
    if needs_root("another user") {
        run_all(&PLAIN, &EVERYDAY[..3], &[UNDO], User::Nobody);
    }
}

#[test]
#[ignore = "slow: the same with other options"]
fn everyday_accidents_are_undone_and_redone_however_they_are_recorded() {
    run_all(&PLAIN, EVERYDAY, &[ALL, CHANGES, STOPS], User::Current);
    if needs_root("another user") {
        run_all(&PLAIN, &EVERYDAY[3..], &[UNDO], User::Nobody);
    }
}

#[test]
#[ignore = "slow: many repositories"]
fn changes_of_history_are_undone_and_redone() {
    run_all(&PLAIN, HISTORY, &[UNDO], User::Current);
}

#[test]
#[ignore = "slow: many repositories"]
fn changes_of_references_are_undone_and_redone() {
    run_all(&PLAIN, REFERENCES, &[UNDO], User::Current);
}

#[test]
#[ignore = "slow: many repositories"]
fn removed_objects_and_new_repositories_are_undone_and_redone() {
    run_all(&PLAIN, OBJECTS, &[UNDO], User::Current);
}

#[test]
#[ignore = "slow: many repositories"]
fn changes_of_several_repositories_are_undone_and_redone() {
    run_all(&PLAIN, SEVERAL, &[UNDO], User::Current);
}
