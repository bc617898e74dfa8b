//! What an agent is told about its own recordings: how it lists and undoes its commands.
//!
//! A skill is a directory with a `SKILL.md`, whose front matter says when the agent is to read the rest.

use std::path::PathBuf;

use super::{Surroundings, claude_directory};

/// What it is called, on the command line and as the name of its directory.
pub const NAME: &str = "skill";

/// The text.
pub const SKILL: &str = "\
---
name: agent-snapshot
description: List, inspect and undo what your own shell commands did to files, untracked and ignored files included. \
Use it when a command changed, overwrote or deleted files by mistake, or to see what a command did.
---

# Undo your own shell commands

Each of your shell commands is recorded by agent-snapshot: which files it changed, and their bytes before. Run these
commands as you run any other.

| to | run |
|---|---|
| list your commands that changed files here, the newest first | `agent-snapshot log` |
| see what one did (`@` is the newest, `@~1` the one before it, or take an identifier from the list) | `agent-snapshot show @` |
| see it as a diff | `agent-snapshot diff @` |
| see the bytes that a file had before it | `agent-snapshot cat --before @ PATH` |
| see what an undo would do, and change nothing | `agent-snapshot undo --dry-run` |
| undo the newest command that changed something | `agent-snapshot undo` |
| undo a certain one | `agent-snapshot undo ID` |
| put back only some files | `agent-snapshot restore --before ID PATH...` |
| take back the last undo | `agent-snapshot redo` |

- An undo puts back exactly what the command changed, Git's state (HEAD, branches, index, stash) included. It names each
  conflict before it changes anything: a path that has changed since. Do not add `--force` unless the user agrees to
  lose that later change.
- If a later command changed the same paths, the undo names it; `--with-later` undoes both.
- Only files come back: not what was sent over a network, and no process.
- Exit status 1 is a finding (a conflict, or nothing to undo); `--json` prints one JSON object.
- Prefer this to `git checkout`, `git stash` and `git clean`, which also discard what the user has changed.
";

/// Where it is written, in the user's directory for skills, or in that of the project.
pub fn file(here: &Surroundings, in_project: bool) -> Option<PathBuf> {
    let above = if in_project { Some(here.directory.join(".claude")) } else { claude_directory(here) };
    Some(above?.join("skills/agent-snapshot/SKILL.md"))
}
