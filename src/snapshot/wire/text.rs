//! Bytes as text: UTF-8 as it is, anything else through Latin-1 with the exact bytes in base64.

use std::borrow::Cow;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Bytes as the format shows them: UTF-8 as it is, anything else through Latin-1.
pub fn shown(bytes: &[u8]) -> Cow<'_, str> {
    match std::str::from_utf8(bytes) {
        Ok(text) => Cow::Borrowed(text),
        Err(_) => Cow::Owned(bytes.iter().map(|byte| char::from(*byte)).collect()),
    }
}

/// Whether the format needs the exact bytes beside the shown text.
pub(super) fn needs_bytes(bytes: &[u8]) -> bool {
    std::str::from_utf8(bytes).is_err()
}

/// Bytes that are base64 on the wire.
pub(super) struct Base64<B>(pub(super) B);

/// The base64 of `bytes`.
pub(super) fn encode(bytes: &[u8]) -> String {
    STANDARD.encode(bytes)
}

/// The bytes of a base64 text.
pub(super) fn decode(text: String) -> Result<Vec<u8>, base64::DecodeError> {
    STANDARD.decode(text)
}

impl<B: AsRef<[u8]>> Serialize for Base64<B> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&encode(self.0.as_ref()))
    }
}

impl<'de> Deserialize<'de> for Base64<Vec<u8>> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Base64<Vec<u8>>, D::Error> {
        let text = String::deserialize(deserializer)?;
        decode(text).map(Base64).map_err(|error| D::Error::custom(format!("base64: {error}")))
    }
}
