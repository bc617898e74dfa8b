//! Git's own commands undone in the working tree; the directory of a repository is not recorded.

use super::commands::{expect, record, undo};
use crate::support::*;

const REPOSITORY: &str = "git init -q; git config user.name a; git config user.email a@b; \
    mkdir src; echo one > src/one; echo two > src/two; printf '*.o\\n' > .gitignore; git add .; \
    git commit -qm first; echo changed > src/one; echo new > src/three; rm src/two; git add -A; git commit -qm second; \
    echo dirty >> src/one; echo object > src/x.o; echo untracked > untracked";

#[test]
fn git_commands_are_undone_in_the_working_tree() {
    if !has("git") {
        return;
    }
    undo(REPOSITORY, "git reset -q --hard HEAD~1");
    undo(REPOSITORY, "git clean -fdxq");
    undo(REPOSITORY, "git checkout -q -- .");
    undo(REPOSITORY, "git stash -q -u");
    undo(REPOSITORY, "git mv src lib; git rm -qf lib/three");
}

#[test]
fn removed_repository_is_restored_without_its_git_directory() {
    if !has("git") {
        return;
    }
    let place = Place::new();
    place.prepare(&format!("mkdir repo; cd repo; {REPOSITORY}"));
    let states = record(&place, "rm -rf repo");
    let run = place.verb("restore", &["--before"]).expect(0);
    expect(&place, &states.before, "rm -rf repo");
    assert!(run.stderr.contains("/repo/.git was changed by the command"), "{run:#?}");
}
