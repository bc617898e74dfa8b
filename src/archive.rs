//! A snapshot as one tar, to be sent to others: written by `export`, read by `import`. Prints nothing.
//!
//! The archive has `manifest.json`, `blobs.parquet` if a record names a blob, and if it was asked for the recorded files
//! as a tree, in this order. `compression.rs` packs the tar, `tree.rs` has the names of the tree. Neighbours:
//! `snapshot` has the bundle itself, `snapshot::secrets` takes out of it what is not for others.

pub mod compression;
pub mod export;
pub mod import;
mod tree;

#[cfg(test)]
mod tests;
