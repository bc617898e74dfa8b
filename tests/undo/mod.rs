//! `verify`, `restore` and `branch`.
//!
//! Most bundles here are not recorded but made: a tree is looked at before and after a change, and
//! the bundle is what a perfect recorder would have written. So a fault is one of these verbs alone.

mod beside;
mod branch;
mod full;
mod hostile;
mod interrupted;
mod killed;
mod programs;
mod real;
mod resist;
mod restore;
#[allow(dead_code, reason = "what restores need comes with them")]
mod support;
mod verify;
