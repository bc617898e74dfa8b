//! A finding in words.

use serde::Serialize;

use crate::commands::log::title;
use crate::commands::paths::{masked_line, quoted};
use crate::commands::show::{address_text, cut};
use crate::library::short_id;
use crate::policy::{Finding, FindingSubject, RuleWord};
use crate::snapshot::{Header, Operations, printable};

/// How many characters of a command line are shown.
const COMMAND: usize = 80;

/// The identifier and the command of a recording.
pub fn id_and_command(header: &Header) -> (String, String) {
    let command = cut(&title(&header.command, header.title.as_deref()), COMMAND);
    (plain(short_id(&header.id)), command)
}

/// The rule that denies, or that there is none which allows, in the words of the command line.
pub fn rule(word: RuleWord, text: Option<&[u8]>) -> String {
    match text {
        Some(text) => format!("--{} {}", word.name(), quoted(text)),
        None => format!("no --{} matches", word.name()),
    }
}

/// A process of a finding.
#[derive(Debug, Serialize)]
pub struct Process {
    id: u32,
    command: String,
}

impl Process {
    /// The process of the number `id`, with its command line as for a shell; secrets in it are masked.
    pub fn new(id: u32, header: &Header) -> Process {
        let found = header.processes.iter().find(|process| process.id == id);
        let argv = found.map(|process| &process.image.argv[..]).unwrap_or_default();
        let command = masked_line(argv);
        Process { id, command }
    }

    /// The command line as it is shown.
    pub fn short_command(&self) -> String {
        cut(&self.command, COMMAND)
    }
}

/// The parts of what is said of a finding.
pub struct FindingText {
    word: RuleWord,
    /// The path, quoted if necessary, or the address.
    pub subject: String,
    uses: String,
    by: String,
    rule: String,
}

impl FindingText {
    /// Puts a finding into words.
    pub fn new(finding: &Finding, header: &Header) -> FindingText {
        let (subject, uses) = match &finding.subject {
            FindingSubject::Path { path, operations, through, left_out_by } => {
                let mut uses = names(*operations);
                if let Some(through) = through {
                    uses += &format!(" through its other name {}", quoted(through));
                }
                if let Some(rule) = left_out_by {
                    uses += &format!(" (not recorded: {})", plain(rule));
                }
                (quoted(path).into_owned(), uses)
            }
            FindingSubject::Beneath { path, left_out_by } => {
                let uses = format!("changes beneath it (not recorded: {})", plain(left_out_by));
                (quoted(path).into_owned(), uses)
            }
            FindingSubject::Somewhere { left_out_by } => {
                ("somewhere".to_owned(), format!("changes (not recorded: {})", plain(left_out_by)))
            }
            FindingSubject::Address(used) => {
                let mut uses = used.operation.name().to_owned();
                if used.errno.is_some() {
                    uses += ", failed";
                }
                (address_text(&used.address), uses)
            }
        };
        let by = match finding.processes.as_slice() {
            [] => String::new(),
            [first, others @ ..] => {
                let more = match others.len() {
                    0 => String::new(),
                    1 => " and another process".to_owned(),
                    count => format!(" and {count} other processes"),
                };
                let command = Process::new(*first, header).short_command();
                format!("{command} (process {first}){more}")
            }
        };
        let rule = rule(finding.word, finding.text.as_deref());
        FindingText { word: finding.word, subject, uses, by, rule }
    }

    /// What is said behind the subject.
    pub fn details(&self) -> String {
        let by = if self.by.is_empty() { String::new() } else { format!(" by {}", self.by) };
        format!("{}{by}: {}", self.uses, self.rule)
    }

    /// All of it.
    pub fn line(&self) -> String {
        format!("{} {}: {}", self.word.name(), self.subject, self.details())
    }
}

fn names(operations: Operations) -> String {
    let names: Vec<_> = operations.iter().map(|operation| operation.name()).collect();
    names.join(", ")
}

/// A text of a snapshot, for a terminal.
pub fn plain(text: &str) -> String {
    printable(text.as_bytes()).into_owned()
}
