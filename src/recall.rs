//! Recall: whether a command would see what an earlier run of it saw, and what that run left and printed.
//!
//! An entry is made from a recording: the key of how the command was started ([`key`]), the paths that it looked at
//! ([`path_set`]) and what it saw there ([`sight`]), and what else it depended on (`probe.rs`, `mentions.rs`). When all
//! of that is as it was, the outputs of the recording are put in place ([`replay`]) and its output is printed from a log
//! ([`output_log`]). What may not be recalled, and why, is in [`refusal`]; [`store`] keeps the entries in the library.
//! Prints nothing, and knows no tracing.

pub mod entry;
pub mod key;
mod mentions;
pub mod output_log;
pub mod path_set;
mod probe;
pub mod refusal;
pub mod replay;
pub mod sight;
pub mod store;
