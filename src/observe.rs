//! What a held call means for which path, and what was there before and after.
//!
//! - [`git`]: how Git knows a path, and whether it still has its bytes.
//! - [`ignore`]: which paths are not recorded, and under which rule.

pub mod git;
pub mod ignore;
