//! Which paths are not recorded, and how often each rule left one out.

pub mod ignore;
pub mod suppressed;
