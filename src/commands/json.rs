//! Paths in the JSON of the verbs, each an object: its text is as in the manifest.

use std::fmt::Display;

use serde::ser::SerializeMap as _;
use serde::{Serialize, Serializer};

use crate::snapshot::wire::{Each, JsonObject};

/// A path, and what is said of it under a key.
pub struct PathJson<'a, T>(pub &'a [u8], pub &'static str, pub Option<T>);

impl<T: Serialize> Serialize for PathJson<'_, T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut object = JsonObject(serializer.serialize_map(None)?);
        object.text("path", self.0)?;
        object.put_some(self.1, &self.2)?;
        object.0.end()
    }
}

/// Paths of which nothing is said.
pub fn paths<'a>(paths: impl Iterator<Item = &'a [u8]> + Clone) -> impl Serialize {
    Each(move || paths.clone().map(|path| PathJson(path, "", None::<()>)))
}

/// Paths, each with a reason.
pub fn reasons<R: Display>(paths: &[(Vec<u8>, R)]) -> impl Serialize {
    Each(|| paths.iter().map(|(path, why)| PathJson(path, "reason", Some(why.to_string()))))
}
