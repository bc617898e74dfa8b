//! `verify`, `restore` and `branch`.
//!
//! Most bundles here are not recorded but made: of a tree before and after a change, as a perfect recorder
//! would have written them. A failure is then one of these verbs alone.

mod attributes;
mod branch;
mod commands;
mod concurrent;
mod conflicts;
mod full_disk;
mod git;
mod hard_links;
mod killed;
mod large;
mod malicious_bundle;
mod merge;
mod permissions;
pub mod random;
mod restore;
mod resumed;
mod verify;
