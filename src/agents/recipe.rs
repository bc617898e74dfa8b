//! What has to be written by hand for a tool or agent, because it has no settings that a program could edit.

use super::hook::word;

/// What has to be known of a shell in a session.
const SESSION: &[&str] = &[
    "from the next terminal on, each job is a step: agent-snapshot undo takes the last one back, in any terminal",
    "sudo and other set-ID programs lose their privilege in it; AGENT_SNAPSHOT_SESSION=off before the shell, in the \
     settings of the terminal for example, starts it without a session",
];

/// The line that has an interactive shell go on in a session, where `test` holds.
fn in_a_session(test: &str, program: &str, shell: &str) -> String {
    format!("case $- in *i*) {test} && exec {} session -- {shell} ;; esac\n", word(program))
}

/// What one tool or agent needs.
#[derive(Debug)]
pub struct Recipe {
    /// What it is called on the command line.
    pub name: &'static str,
    /// Where the lines go.
    pub place: &'static str,
    /// The lines, from the paths of this program and of its shell.
    pub lines: fn(&str, &str) -> String,
    /// What has to be known besides.
    pub remarks: &'static [&'static str],
}

/// The tools and agents, in the order of the documentation.
pub static RECIPES: [Recipe; 10] = [
    Recipe {
        name: "goose",
        place: "the profile of your shell, such as ~/.profile",
        lines: |_, shell| format!("export GOOSE_SHELL={}\n", word(shell)),
        remarks: &[
            "goose takes GOOSE_SHELL from its environment only, not from config.yaml, and ignores SHELL",
            "Check it with: agent-snapshot doctor goose",
        ],
    },
    Recipe {
        name: "qwen",
        place: "the startup file of your shell, such as ~/.bashrc",
        lines: |_, shell| started_with_ours("qwen", "", "bash", shell),
        remarks: &[
            "Qwen Code runs each command by the bash that is first in PATH, and its hooks can't rewrite a command",
            "Gemini CLI can be started in the same way, with gemini for qwen: it then asks no hook, and tells its model \
             nothing of a rewritten command",
        ],
    },
    Recipe {
        name: "bubblewrap",
        place: "the startup file of your shell, such as ~/.bashrc",
        lines: |_, shell| started_with_ours("claude", "/sandbox", "bwrap", shell),
        remarks: &[
            "newer versions of Claude Code start its sandbox without the shell that its settings name, by the bwrap that \
             is first in PATH",
            "bwrap is recorded only where it starts agent-snapshot-bash: agent-snapshot init claude-code is needed, too",
        ],
    },
    Recipe {
        name: "bash",
        place: "the end of ~/.bashrc",
        lines: |program, _| {
            in_a_session(
                "[ -t 0 ] && [ -t 2 ] && [ -z \"$BASH_EXECUTION_STRING$AGENT_SNAPSHOT_SESSION\" ]",
                program,
                "bash",
            )
        },
        remarks: SESSION,
    },
    Recipe {
        name: "zsh",
        place: "the end of ~/.zshrc",
        lines: |program, _| {
            in_a_session(
                "[ -t 0 ] && [ -t 2 ] && [ -z \"$ZSH_EXECUTION_STRING$AGENT_SNAPSHOT_SESSION\" ]",
                program,
                "zsh",
            )
        },
        remarks: SESSION,
    },
    Recipe {
        name: "fish",
        place: "the end of ~/.config/fish/config.fish",
        lines: |program, _| {
            format!(
                "status is-interactive; and isatty stdin; and not set -q AGENT_SNAPSHOT_SESSION; and exec {} session -- fish\n",
                word(program)
            )
        },
        remarks: SESSION,
    },
    Recipe {
        name: "github-actions",
        place: "the workflow, at its top level or in a job",
        lines: |_, _| {
            "defaults:\n  run:\n    shell: agent-snapshot-bash --noprofile --norc -eo pipefail {0}\n"
                .to_owned()
        },
        remarks: &[
            "an earlier step has to put both programs into PATH: the action setup of agent-snapshot's repository, or a step \
             with a shell of its own (shell: bash)",
            "steps with uses: have no shell, and are not recorded",
        ],
    },
    Recipe {
        name: "make",
        place: "the Makefile",
        lines: |_, shell| {
            // make expands $, takes # for a comment, and reads the rest as a shell reads words.
            let shell = shell.replace('$', "$$").replace('#', r"\#").replace(' ', r"\ ").replace('\'', r"\'");
            format!("SHELL := {shell}\n")
        },
        remarks: &[
            "for a single run: make SHELL=... (make ignores SHELL in its environment)",
            "each line of a recipe is a recording of its own; agent-snapshot run -- make records all as one",
        ],
    },
    Recipe {
        name: "just",
        place: "the justfile",
        lines: |_, shell| format!("set shell := [{}, \"-cu\"]\n", serde_json::Value::from(shell)),
        remarks: &["recipes that begin with #! have a shell of their own, and are not recorded"],
    },
    Recipe {
        name: "npm",
        place: ".npmrc, in your home directory or in the project",
        lines: |_, shell| match word(shell) == shell {
            true => format!("script-shell={shell}\n"),
            false => format!("script-shell={}\n", serde_json::Value::from(shell)),
        },
        remarks: &["each script that npm run starts is a recording of its own"],
    },
];

/// A function of the user's shell that starts an agent with a directory first in PATH in which `shell` is called `program`;
/// the directory is the `subdirectory` of that for our data.
fn started_with_ours(agent: &str, subdirectory: &str, program: &str, shell: &str) -> String {
    let directory = format!("\"${{XDG_DATA_HOME:-$HOME/.local/share}}/agent-snapshot{subdirectory}\"");
    format!(
        "mkdir -p {directory} && ln -sfn {} {directory}/{program}\n\
         {agent}() {{ PATH={directory}:\"$PATH\" command {agent} \"$@\"; }}\n",
        word(shell)
    )
}

impl Recipe {
    /// The recipe with this name on the command line.
    pub fn named(name: &str) -> Option<&'static Recipe> {
        RECIPES.iter().find(|recipe| recipe.name == name)
    }
}
