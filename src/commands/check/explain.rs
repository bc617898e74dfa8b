//! `check --explain`: which rule decides on a path or an address, and why.

use std::ffi::OsStr;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};

use serde::Serialize;
use serde::ser::{SerializeMap as _, Serializer};

use super::text::rule;
use super::{Rules, places, policy_of, state_of};
use crate::cli::PolicyCheck;
use crate::commands::exit::{Exit, UsageError, VerbResult};
use crate::commands::open::open;
use crate::commands::out::{Console, style};
use crate::commands::paths::{absolute, quoted, resolved};
use crate::commands::record::places_here;
use crate::fs;
use crate::policy::{AskedAddress, CompiledPolicy, Decision, PathExplanation};
use crate::snapshot::secrets::{ContentSign, may_have_sign};
use crate::snapshot::wire::JsonObject;
use crate::snapshot::{Snapshot, printable};

/// Runs it for what the user asks about.
pub fn run(asked: &[u8], given: &Rules, args: &PolicyCheck, console: &mut Console) -> VerbResult {
    if asked.is_empty() {
        return Err(UsageError("--explain needs a path or an address".to_owned()).into());
    }
    let snapshot = args.snap.as_deref().map(|snap| open(snap, &args.access, console)).transpose()?;
    let places = match &snapshot {
        Some(snapshot) => places(snapshot.header()),
        None => places_here(),
    };
    let policy = places.and_then(|places| policy_of(given, &places)).map_err(UsageError)?;
    let explained = match AskedAddress::parse(asked) {
        Some(AskedAddress::Unix(path)) if !path.starts_with(b"/") && !path.starts_with(b"\0") => {
            of_address(asked, &AskedAddress::Unix(absolute_path(&path)?), &policy)
        }
        Some(address) => of_address(asked, &address, &policy),
        None => of_path(asked, &policy, snapshot.as_ref())?,
    };
    if args.json {
        console.json(&explained)?;
    } else {
        explained.print(console)?;
    }
    Ok(Exit::Success)
}

/// What is said of a path or an address.
#[derive(Serialize)]
struct Explained {
    #[serde(flatten)]
    subject: Subject,
    decisions: Vec<Explanation>,
}

/// What is asked about.
enum Subject {
    Path(Vec<u8>),
    Address(Vec<u8>),
}

impl Serialize for Subject {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut object = JsonObject(serializer.serialize_map(None)?);
        match self {
            Subject::Path(path) => object.text("path", path)?,
            Subject::Address(address) => object.text("address", address)?,
        }
        object.0.end()
    }
}

/// What is said of one use.
struct Explanation {
    /// Its name: `write`, `connect`.
    usage: String,
    port: Option<u16>,
    decision: Decision,
    why: String,
}

impl Explanation {
    fn is_allowed(&self) -> bool {
        matches!(self.decision, Decision::Free | Decision::Allowed(..))
    }
}

impl Serialize for Explanation {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut object = JsonObject(serializer.serialize_map(None)?);
        object.put("use", &self.usage)?;
        object.put_some("port", &self.port)?;
        object.put("allowed", &self.is_allowed())?;
        let (word, text) = match &self.decision {
            Decision::Free => (None, None),
            Decision::Allowed(word, text) | Decision::Denied(word, text) => (Some(word), Some(text)),
            Decision::NotAllowed(word) => (Some(word), None),
        };
        object.put_some("rule", &word.map(|word| word.name()))?;
        if let Some(text) = text {
            object.text("pattern", text)?;
        }
        object.put("why", &self.why)?;
        object.0.end()
    }
}

impl Explained {
    fn print(&self, console: &mut Console) -> anyhow::Result<()> {
        let subject = match &self.subject {
            Subject::Path(path) => quoted(path),
            Subject::Address(address) => printable(address),
        };
        writeln!(console, "{subject}")?;
        let usage = |explanation: &Explanation| match explanation.port {
            Some(port) => format!("{} to port {port}", explanation.usage),
            None if self.decisions.iter().any(|other| other.port.is_some()) => {
                format!("{} to others", explanation.usage)
            }
            None => explanation.usage.clone(),
        };
        let width =
            self.decisions.iter().map(|explanation| usage(explanation).len()).max().unwrap_or_default();
        for explanation in &self.decisions {
            let (word, color) =
                if explanation.is_allowed() { ("allowed", style::ADDED) } else { ("denied", style::CHANGED) };
            let word = console.paint(color, format_args!("{word:7}")).to_string();
            let why = console.paint(style::FAINT, &explanation.why).to_string();
            writeln!(console, "{:width$}  {word}  {why}", usage(explanation))?;
        }
        Ok(())
    }
}

fn of_address(asked: &[u8], address: &AskedAddress, policy: &CompiledPolicy) -> Explained {
    let decided = policy.explain_address(address).into_iter();
    let decisions = decided.map(|(port, decision)| {
        let why = deciding_rule(&decision).unwrap_or_else(|| "no rule is about it".to_owned());
        Explanation { usage: "connect".to_owned(), port, decision, why }
    });
    Explained { subject: Subject::Address(asked.to_vec()), decisions: decisions.collect() }
}

fn of_path(asked: &[u8], policy: &CompiledPolicy, snapshot: Option<&Snapshot>) -> anyhow::Result<Explained> {
    if is_host_name(asked) && fs::lstat(asked).ok().flatten().is_none() {
        let name = printable(asked);
        let why = format!(
            "{name} is a name: rules are about addresses, as recordings have them, such as 10.0.0.1:443"
        );
        return Err(UsageError(why).into());
    }
    let path = resolved(&absolute_path(asked)?);
    let has = |sign: ContentSign| may_have_sign(&path, sign);
    let decisions = policy.explain(&path, state_of(&path).as_ref(), snapshot, &has).into_iter();
    let decisions = decisions.map(|explained| {
        let (usage, why) = (explained.kind.name().to_owned(), why(&explained));
        Explanation { usage, port: None, decision: explained.decision, why }
    });
    let decisions = decisions.collect();
    Ok(Explained { subject: Subject::Path(path), decisions })
}

fn absolute_path(path: &[u8]) -> anyhow::Result<Vec<u8>> {
    Ok(absolute(OsStr::from_bytes(path))?.into_os_string().into_vec())
}

/// Whether a text is a host name and a port rather than a path.
fn is_host_name(text: &[u8]) -> bool {
    let Some(colon) = text.iter().rposition(|byte| *byte == b':') else { return false };
    let (host, port) = (&text[..colon], &text[colon + 1..]);
    !host.is_empty() && !host.contains(&b'/') && !port.is_empty() && port.iter().all(u8::is_ascii_digit)
}

/// The rule that decides, if there is one about such uses.
fn deciding_rule(decision: &Decision) -> Option<String> {
    match decision {
        Decision::Free => None,
        Decision::Allowed(word, text) | Decision::Denied(word, text) => Some(rule(*word, Some(text))),
        Decision::NotAllowed(word) => Some(rule(*word, None)),
    }
}

fn why(explained: &PathExplanation) -> String {
    let PathExplanation { kind, decision, other_name, pattern, outweighed } = explained;
    let Some(mut why) = deciding_rule(decision) else {
        let (allow, deny) = kind.words();
        return format!("no --{} is given, {}", allow.name(), rule(deny, None));
    };
    if let Some(pattern) = pattern
        && !matches!(decision, Decision::Denied(_, text) | Decision::Allowed(_, text) if text == pattern)
    {
        why += &format!(", which is {}", quoted(pattern));
    }
    if let Some(name) = other_name {
        why += &format!("; the file is also {}", quoted(name));
    }
    if let Some((word, text)) = outweighed {
        why += &format!("; outweighs {}", rule(*word, Some(text)));
    }
    why
}
