//! The bundle: `manifest.json` and `blobs.parquet`, written, read, checked and compared.
//!
//! Knows nothing of tracing, so that a verb which only reads a bundle can't be broken by it.

pub mod live;
pub mod manifest;

pub use manifest::*;
