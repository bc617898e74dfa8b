//! What the built binary does, seen from outside: a module a subject.

#![allow(clippy::unwrap_used, reason = "tests")]

mod bytes;
mod calls;
mod faults;
mod names;
mod readme;
mod recording;
mod storm;
mod support;
mod terminal;
mod transparency;
mod truth;
mod truth_random;
mod undo;
mod ways;
