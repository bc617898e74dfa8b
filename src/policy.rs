//! Judges a finished recording by a user's rules: which paths may be written, read and executed, which addresses contacted.
//!
//! Pure but for what the caller tells of live files. Prints nothing.
//!
//! - `rules.rs`: the rules as given, and what they mean for one recording.
//! - `patterns.rs`: patterns of paths as written; `glob.rs`: what they come to; `net.rs`: patterns of addresses.
//! - `judge.rs`: what a recording did that they forbid; `programs.rs`: what it executed; `names.rs`: by which other names.
//! - `explain.rs`: which rule decides on a path or an address.
//! - `bounds.rs`: bounds of what they allow, which the kernel can enforce.
//! - `learn.rs`: rules that allow what recordings did.
//! - `left_out.rs`: what rules of omission left out of it.

mod bounds;
mod explain;
mod glob;
mod judge;
mod learn;
mod left_out;
mod names;
mod net;
mod patterns;
mod programs;
mod rules;

pub use bounds::Bounds;
pub use explain::PathExplanation;
pub use glob::check as check_pattern;
pub use judge::{
    Files, Finding, FindingSubject, PolicyReport, PolicyVerdict, forbidden_content, judge, may_concern,
};
pub use learn::{LearnedRule, Learner};
pub use net::AskedAddress;
pub use rules::{CompiledPolicy, Decision, PathUseKind, PolicyPlaces, RuleWord, RuleWords};
