//! `hook`: answers an agent that asks before it runs a command, so that the command is recorded.
//!
//! `agents::hook` knows the questions and answers; here is whether a command is to be recorded at all. Whatever goes
//! wrong, the answer leaves the command as it is and the exit status is 0: any other has an agent refuse it.

use std::fs;
use std::io::{self, Read as _};
use std::os::unix::fs::symlink;
use std::path::Path;

use super::asked;
use super::config::Config;
use super::exit::{Exit, UsageError, VerbResult};
use super::init::{our_shell, receipts, row};
use super::out::Console;
use super::shell::{is_switched_off, leaves_out};
use crate::agents::Means;
use crate::agents::hook::{Permission, Protocol, word};
use crate::cli::Hook;
use crate::library::notes::NoteEvent;
use crate::library::{Library, Place};
use crate::observe::policy::ignore::Environment;

/// No question is longer, and whoever asks must not be able to exhaust our memory.
const SIZE_LIMIT: u64 = 16 << 20;

/// Runs `hook`.
pub fn run(args: &Hook, console: &mut Console) -> VerbResult {
    let agent = row(args.agent);
    let Means::Hook(_, protocol) = agent.means else {
        return Err(UsageError(format!("{} is not set up by a hook", agent.title)).into());
    };
    let answer = answer(agent.name, protocol, args.auto_approve).unwrap_or_else(|error| {
        console.say(format_args!("the command runs unrecorded: {error:#}"));
        None
    });
    let answer = answer.as_deref().unwrap_or(protocol.pass);
    if !answer.is_empty() {
        writeln!(console, "{answer}")?;
    }
    Ok(Exit::Success)
}

/// The answer to the question on standard input; none leaves the command as it is.
fn answer(agent: &str, protocol: &Protocol, may_approve: bool) -> anyhow::Result<Option<String>> {
    let mut input = Vec::new();
    let mut stdin = io::stdin().lock();
    stdin.by_ref().take(SIZE_LIMIT + 1).read_to_end(&mut input)?;
    if input.len() as u64 > SIZE_LIMIT {
        // The agent may take a closed pipe for a failure.
        io::copy(&mut stdin, &mut io::sink())?;
        return Ok(None);
    }
    let Some(question) = protocol.read(&input) else { return Ok(None) };
    let config = Config::load(&Environment::from_process(b"/")).unwrap_or_default();
    if is_switched_off() || leaves_out(&config, question.command.as_bytes()) {
        return Ok(None);
    }
    let command = question.command.clone();
    let note = |why: Option<String>| {
        asked::note(command.as_bytes(), NoteEvent::Asked { agent: agent.to_owned(), why });
    };
    let shell = our_shell().inspect_err(|error| note(Some(format!("{error:#}"))))?;
    let link = protocol.sees_through_bash.then(|| link_called_bash(&shell).ok().flatten());
    let permission = match &link {
        _ if may_approve && protocol.objection.is_some() => Permission::Approve,
        // The user's rules would not be applied to what is in the wrapper.
        Some(None) => Permission::Ask,
        _ => Permission::None,
    };
    let shell = link.flatten().unwrap_or(shell);
    let answer = protocol.rewrite(question, &shell, permission);
    let needs_approval = protocol.objection.is_some() && permission != Permission::Approve;
    match &answer {
        Some(_) => note(None),
        None if needs_approval => note(Some("its hook was set up without --auto-approve".to_owned())),
        // It is rewritten already, or too long.
        None => {}
    }
    Ok(answer)
}

/// A symlink called `bash` to our shell, in the library; none if its path needs quotes.
///
/// An agent that applies its rules to the rewritten command applies them to what `bash -c` is given as well.
fn link_called_bash(shell: &str) -> anyhow::Result<Option<String>> {
    let place = Place::of_this_user();
    let link = receipts(&place)?.join("bash");
    let Some(shown) = link.to_str().filter(|link| word(link) == **link) else { return Ok(None) };
    if fs::read_link(&link).is_ok_and(|target| target == Path::new(shell)) {
        return Ok(Some(shown.to_owned()));
    }
    Library::create(&place)?;
    let directory = link.parent().unwrap_or(&place.root);
    fs::create_dir_all(directory)?;
    // Of several hooks at once, each leaves a link that is right.
    let new = tempfile::Builder::new().prefix(".bash-").make_in(directory, |path| symlink(shell, path))?;
    new.into_temp_path().persist(&link)?;
    Ok(Some(shown.to_owned()))
}
