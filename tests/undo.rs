//! `verify`, `restore` and `branch`.
//!
//! Most bundles here are not recorded but made: a tree is looked at before and after a change, and
//! the bundle is what a perfect recorder would have written. So a fault is one of these verbs alone.

mod attributes;
mod branch;
mod commands;
mod concurrent;
mod conflicts;
mod full_disk;
mod git;
mod hard_links;
mod killed;
mod malicious_bundle;
mod permissions;
mod random;
mod restore;
mod resumed;
mod verify;
