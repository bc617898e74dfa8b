//! Recording a command: what the snapshot says, and what the command notices.

mod bypass;
mod content;
mod external_changes;
mod git;
mod hard_links;
mod inherited;
mod killed;
mod notifications;
mod resources;
mod suites;
mod syscalls;
mod terminal;
pub mod transparency;
