//! Judges a finished recording by a user's rules: which paths may be written and read, which addresses contacted.
//!
//! Pure but for the content of a file that decides whether it is a secret. Prints nothing.
//!
//! - `rules.rs`: the rules as given, and what they mean for one recording.
//! - `glob.rs`: patterns of paths; `net.rs`: patterns of addresses.
//! - `judge.rs`: what a recording did that they forbid; `names.rs`: by which other names.

mod glob;
mod judge;
mod names;
mod net;
mod rules;

pub use judge::{Finding, FindingSubject, PolicyReport, PolicyVerdict, judge};
pub use rules::{CompiledPolicy, PolicyPlaces, RuleWord, RuleWords};
