//! Bytes as text in the JSON of the verbs, as in the manifest.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde::ser::SerializeMap;

use crate::snapshot::wire::shown;

/// Puts `bytes` into `object` as text, and also in base64 under `key_bytes` if they are not UTF-8.
pub fn put_text<M: SerializeMap>(object: &mut M, key: &str, bytes: &[u8]) -> Result<(), M::Error> {
    object.serialize_entry(key, &shown(bytes))?;
    if std::str::from_utf8(bytes).is_err() {
        object.serialize_entry(&format!("{key}_bytes"), &BASE64.encode(bytes))?;
    }
    Ok(())
}
