//! What the built binary does, seen from outside: a module a subject.

#![allow(clippy::unwrap_used, reason = "tests")]

mod bytes;
mod calls;
mod faults;
mod git;
mod hidden;
mod inherited;
mod lanes;
mod ledger;
mod mounts;
mod names;
mod outside;
mod races;
mod readme;
mod recording;
mod show;
mod sparse;
mod storm;
mod suites;
mod support;
mod terminal;
mod tracing;
mod transparency;
mod truth;
mod truth_cases;
mod truth_overlay;
mod truth_random;
mod truth_strace;
mod undo;
mod ways;
