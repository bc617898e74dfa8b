//! The calls that rules refused: the one place that puts them into words.

use std::collections::HashMap;

use indicatif::HumanCount;

use super::super::out::{Console, OutputError, style, visible};
use super::super::paths::quoted;
use super::network::{WIDTH, address_text, users};
use crate::snapshot::{EnforcementMode, Header, PROTECTED, RefusedSubject, RefusedUse};

/// How many refusals a summary names.
const NAMED: usize = 3;

/// All calls that one rule refused for one path or address in one way.
#[derive(Debug)]
pub struct Refusal<'h> {
    subject: &'h RefusedSubject,
    rule: &'h str,
    /// How many calls.
    pub count: u64,
    /// The processes that made them.
    pub processes: Vec<u32>,
}

/// The refusals of each rule, in the order of the manifest: those of all processes, or of one.
pub fn refusals(header: &Header, process: Option<u32>) -> Vec<Refusal<'_>> {
    let mut known: HashMap<(&RefusedSubject, &str), usize> = HashMap::new();
    let mut refusals: Vec<Refusal> = Vec::new();
    for RefusedUse { subject, rule, process: by, count } in &header.refused {
        if process.is_some_and(|process| process != *by) {
            continue;
        }
        let at = *known.entry((subject, rule)).or_insert_with(|| {
            refusals.push(Refusal { subject, rule, count: 0, processes: Vec::new() });
            refusals.len() - 1
        });
        refusals[at].count = refusals[at].count.saturating_add(*count);
        refusals[at].processes.push(*by);
    }
    refusals
}

impl Refusal<'_> {
    /// The path that the rule is about, if it is about one.
    pub fn path(&self) -> Option<&[u8]> {
        match self.subject {
            RefusedSubject::Path { path, .. } => Some(path),
            RefusedSubject::Address { .. } => None,
        }
    }

    /// The word that the rule begins with.
    pub fn word(&self) -> &str {
        self.rule.split(' ').next().unwrap_or_default()
    }

    /// The operation, and the path or address, escaped as on a terminal.
    pub fn what(&self) -> String {
        format!("{} {}", self.subject.operation(), self.name())
    }

    fn name(&self) -> String {
        match self.subject {
            RefusedSubject::Path { path, .. } => quoted(path).into_owned(),
            RefusedSubject::Address { address, .. } => address_text(address),
        }
    }

    /// The rule, in the words of the command line.
    pub fn why(&self) -> String {
        let rule = visible(self.rule.as_bytes());
        match self.rule {
            PROTECTED => rule,
            _ if rule.contains(' ') => format!("--{rule}"),
            _ => format!("no --{rule} matches"),
        }
    }

    /// Who made the calls, how often, and which rule refused them.
    pub fn details(&self, header: &Header) -> String {
        let through = match self.subject {
            RefusedSubject::Path { through: Some(through), .. } => {
                format!("through its other name {}, ", quoted(through))
            }
            _ => String::new(),
        };
        format!("{through}{}: {}", users(header, &self.processes, self.count), self.why())
    }

    /// All of it, in one line.
    pub fn line(&self, header: &Header) -> String {
        format!("{}, refused: {}", self.what(), self.details(header))
    }
}

/// How many calls were refused; none if there were none.
pub fn refused_calls(header: &Header) -> Option<String> {
    number_of_calls(header.refused_calls())
}

/// So many calls; none if there are none.
pub fn number_of_calls(count: u64) -> Option<String> {
    match count {
        0 => None,
        1 => Some("1 call".to_owned()),
        count => Some(format!("{} calls", HumanCount(count))),
    }
}

/// That calls were refused, and the first of them, in one sentence.
pub fn refused_sentence(header: &Header) -> Option<String> {
    let calls = refused_calls(header)?;
    let were = if header.refused_calls() == 1 { "was" } else { "were" };
    let ended = match &header.enforcement {
        Some(enforcement) if enforcement.mode == EnforcementMode::End => ", which ended the command",
        _ => "",
    };
    let refusals = refusals(header, None);
    let named: Vec<_> =
        refusals.iter().take(NAMED).map(|one| format!("{} ({})", one.what(), one.why())).collect();
    let more = match refusals.len() - named.len() {
        0 => String::new(),
        rest => format!(" and {rest} more"),
    };
    Some(format!("{calls} {were} refused by rules{ended}: {}{more}", named.join(", ")))
}

/// Writes a line for each path or address, operation and rule: of all processes, or of one.
pub fn write(header: &Header, process: Option<u32>, console: &mut Console) -> Result<(), OutputError> {
    let refusals = refusals(header, process);
    if refusals.is_empty() {
        let none = console.paint(style::FAINT, "nothing was refused").to_string();
        return writeln!(console, "{none}");
    }
    let widths = refusals.iter().map(|refusal| refusal.name().chars().count());
    let width = widths.filter(|width| *width <= WIDTH).max().unwrap_or(0);
    for refusal in &refusals {
        let (operation, name) = (refusal.subject.operation(), refusal.name());
        let details = console.paint(style::FAINT, refusal.details(header)).to_string();
        writeln!(console, "{operation:9} {name:width$}  {details}")?;
    }
    Ok(())
}

/// The rules that were enforced, and what of them was not.
pub fn enforced(header: &Header, in_full: bool) -> Vec<String> {
    /// How many rules are named otherwise.
    const RULES: usize = 6;
    let Some(enforcement) = &header.enforcement else { return Vec::new() };
    let named = if in_full { usize::MAX } else { RULES };
    let rules = enforcement.rules.iter().take(named).map(|rule| visible(rule.as_bytes()));
    let mut text = rules.collect::<Vec<_>>().join(", ");
    if enforcement.rules.len() > named {
        text += &format!(" and {} more", HumanCount((enforcement.rules.len() - named) as u64));
    }
    if enforcement.mode == EnforcementMode::End {
        text += ", until the first refusal";
    }
    let limits = enforcement.limits.iter().map(|limit| format!("but: {}", visible(limit.as_bytes())));
    std::iter::once(text).chain(limits).collect()
}

#[cfg(test)]
mod tests;
