//! What a held call means for which path, and what was there before and after.
//!
//! - [`ignore`]: which paths are not recorded, and under which rule.

pub mod ignore;
