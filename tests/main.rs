//! What the built binary does, seen from outside: a module a subject.

#![allow(clippy::unwrap_used, reason = "tests")]

mod calls;
mod recording;
mod storm;
mod support;
mod transparency;
mod undo;
