//! What is a secret, and what of a snapshot others may see: all outputs ask here.
//!
//! - `files.rs`: which files hold secrets, by their names; `content.rs`: and by what is in them.
//! - `words.rs`: masks secrets in command lines, targets of symlinks and other text, by the names of options and
//!   variables, by what programs take for a password (`programs.rs`), and by the shape of tokens (`tokens.rs`).
//! - `redaction.rs`: takes all of this out of a snapshot that is to be shown to others.
//!
//! Who records withholds the files ([`BlobOmitted::Withheld`](super::BlobOmitted::Withheld)) and masks command lines. A
//! secret anywhere else is not found.

mod content;
mod files;
mod programs;
mod redaction;
mod tokens;
mod words;

pub use content::{ContentSign, LIMIT, has_sign, may_have_key, may_have_sign};
pub use files::{Secrets, TABLE};
pub use redaction::{CommandLines, Redacted, blobs_have_sign, masked, recorded_sign, redacted};
pub use words::{REDACTED, mask, redact};
