//! What the built binary does, seen from outside: a module a subject.

#![allow(clippy::unwrap_used, reason = "tests")]

mod calls;
mod names;
mod readme;
mod recording;
mod support;
mod truth;
mod truth_random;
mod undo;
