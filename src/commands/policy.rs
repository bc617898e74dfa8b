//! `policy from`: a policy file that recordings pass, for a person to review.
//!
//! `policy::Learner` makes the rules; this writes them as TOML.

use std::collections::BTreeMap;

use super::check::{Live, Process, compiled, id_and_command, places};
use super::exit::{Exit, UsageError, VerbResult};
use super::open::{open, open_library, open_or_last};
use super::out::{Console, OutputError};
use super::paths::counted;
use crate::cli::{PolicyFrom, PolicyVerb};
use crate::policy::{LearnedRule, Learner, PolicyVerdict, RuleWord, RuleWords, judge};
use crate::snapshot::{Snapshot, printable};

/// How many recordings are listed.
const LISTED: usize = 20;

/// The rules, by word.
type Rules = BTreeMap<RuleWord, Vec<LearnedRule>>;

/// Runs `policy`.
pub fn run(verb: &PolicyVerb, console: &mut Console) -> VerbResult {
    let PolicyVerb::From(args) = verb;
    let snapshots = opened(args, console)?;
    let mut learner = Learner::default();
    for snapshot in &snapshots {
        let header = snapshot.header();
        if !header.kind.is_recording() {
            return Err(
                UsageError("a rescue has no command that a policy could be made from".to_owned()).into()
            );
        }
        let live = Live::of(snapshot);
        let by = |process| Process::new(process, header).short_command();
        let learned = places(header).and_then(|places| learner.add(snapshot, &places, &live, &by));
        learned.map_err(UsageError)?;
    }
    let rules = learner.rules();
    write(&snapshots, &learner, &rules, console)?;
    let mut words = RuleWords::default();
    for (word, rules) in rules {
        words.add(word, rules.into_iter().map(|rule| rule.text));
    }
    let mut status = Exit::Success;
    for snapshot in &snapshots {
        if let Some(why) = refusal(snapshot, &words)? {
            let (id, _) = id_and_command(snapshot.header());
            console.say(format_args!("{id} does not pass this policy: {}", printable(why.as_bytes())));
            status = Exit::Finding;
        }
    }
    Ok(status)
}

fn opened(args: &PolicyFrom, console: &mut Console) -> anyhow::Result<Vec<Snapshot>> {
    if args.all {
        return open_library(&args.access, console);
    }
    match args.snaps.as_slice() {
        [] => Ok(vec![open_or_last(None, &args.access, console)?]),
        snaps => snaps.iter().map(|snap| open(snap, &args.access, console)).collect(),
    }
}

/// Why a recording does not pass rules.
fn refusal(snapshot: &Snapshot, words: &RuleWords) -> Result<Option<String>, UsageError> {
    let policy = places(snapshot.header()).and_then(|places| compiled(words, &places)).map_err(UsageError)?;
    let report = judge(snapshot, &policy, &Live::of(snapshot));
    Ok(match report.verdict(false) {
        PolicyVerdict::Pass => None,
        PolicyVerdict::Fail => Some(counted(report.findings.len(), "finding", "findings")),
        PolicyVerdict::Unknown => report.unknown.into_iter().next(),
    })
}

fn write(
    snapshots: &[Snapshot],
    learner: &Learner,
    rules: &Rules,
    console: &mut Console,
) -> Result<(), OutputError> {
    let count = counted(snapshots.len(), "recording", "recordings");
    writeln!(
        console,
        "# What {count} did, by agent-snapshot policy from. Review it, then use it with --policy FILE."
    )?;
    for snapshot in snapshots.iter().take(LISTED) {
        let (id, command) = id_and_command(snapshot.header());
        writeln!(console, "#   {id}  {command}")?;
    }
    if snapshots.len() > LISTED {
        writeln!(console, "#   and {} more", snapshots.len() - LISTED)?;
    }
    let mut secrets = learner.secrets().peekable();
    if secrets.peek().is_some() {
        writeln!(console, "# Secrets were read, so there is no deny-read = [\"@secrets\"]:")?;
    }
    for (path, by) in secrets {
        writeln!(console, "#   {}  by {}", printable(path), printable(by.as_bytes()))?;
    }
    writeln!(console)?;
    for (word, rules) in rules {
        match (word, rules.as_slice()) {
            (RuleWord::DenyNet, [LearnedRule { text, .. }]) if text == b"*" => {
                writeln!(console, "deny-net = true")?
            }
            (_, [rule @ LearnedRule { remark: None, .. }]) => {
                writeln!(console, "{} = [{}]", word.name(), quoted(rule))?
            }
            (_, rules) => {
                writeln!(console, "{} = [", word.name())?;
                for rule in rules {
                    let remark =
                        rule.remark.as_ref().map(|remark| format!(" # {}", printable(remark.as_bytes())));
                    writeln!(console, "    {},{}", quoted(rule), remark.unwrap_or_default())?;
                }
                writeln!(console, "]")?;
            }
        }
    }
    Ok(())
}

/// A rule as a string of TOML.
fn quoted(rule: &LearnedRule) -> String {
    toml_edit::Value::from(String::from_utf8_lossy(&rule.text).as_ref()).to_string()
}

#[cfg(test)]
mod tests;
