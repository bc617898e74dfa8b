//! What the built binary does, seen from outside: a module for each behaviour.

#![allow(clippy::unwrap_used, reason = "tests")]

mod agents;
mod archive;
mod attest;
mod check;
mod ci;
mod day;
mod enforce;
mod enforce_config;
mod git_state;
mod hosts;
mod init;
mod keep;
mod library;
mod mcp;
mod observer;
mod package;
mod races;
mod readme;
mod recall;
mod record;
mod recover;
mod sandboxes;
mod shell;
mod show;
mod sparse;
mod support;
mod tables;
mod truth;
mod ui;
mod undo;
mod untrusted_input;
