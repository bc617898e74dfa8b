//! `verify`, `restore` and `branch`, by the built binary.
//!
//! Most bundles here are not recorded but made: a tree is looked at before and after a change, and
//! the bundle is what a perfect recorder would have written. So a fault is one of these verbs alone.
#![allow(clippy::unwrap_used)]

#[path = "undo/support.rs"]
#[allow(dead_code, reason = "what restores need comes with them")]
mod support;
#[path = "undo/verify.rs"]
mod verify;
