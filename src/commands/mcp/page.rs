//! Bounds what a tool returns: one list of it comes in pages, all else is cut, and both are told.

use serde_json::{Map, Value, json};

/// How many bytes of JSON a page has before it ends.
const PAGE: usize = 32 << 10;

/// The most items of a page.
pub const MOST: usize = 200;

/// How much of a value is kept, the most generous first: the bytes of a text, and the items of a list.
const BOUNDS: [(usize, usize); 3] = [(8 << 10, 100), (1 << 10, 30), (64, 10)];

/// A value that is still longer than this is shortened by the next bounds.
const WHOLE: usize = 16 << 10;

/// How many keys an object keeps. Only the extended attributes of a file can have more.
const KEYS: usize = 100;

/// Whether a page with these items is full.
pub fn is_full(items: &[Value], limit: usize) -> bool {
    items.len() >= limit.clamp(1, MOST) || items.iter().map(length).sum::<usize>() >= PAGE
}

/// The object, with only the first items of the list at `key`, until `is_full` says so of them. `next` tells from their
/// number where the next page begins, if there is one: the key `next_offset`. What was shortened is in `cut`.
pub fn page(
    mut object: Map<String, Value>,
    key: &str,
    is_full: impl Fn(&[Value]) -> bool,
    next: impl FnOnce(usize) -> Option<usize>,
) -> Value {
    let Some(Value::Array(items)) = object.remove(key) else { return Value::Object(object) };
    let mut cut = Vec::new();
    let mut paged = bounded(&Value::Object(object), "", &mut cut);
    let mut page = Vec::new();
    for item in items {
        if is_full(&page) {
            break;
        }
        page.push(bounded(&item, &format!("/{key}/{}", page.len()), &mut cut));
    }
    if let Some(next) = next(page.len()) {
        paged["next_offset"] = json!(next);
    }
    paged[key] = Value::Array(page);
    if !cut.is_empty() {
        cut.truncate(MOST);
        paged["cut"] = Value::Array(cut);
    }
    paged
}

/// The value, shortened if it is long; what was shortened is added to `cut`.
fn bounded(value: &Value, path: &str, cut: &mut Vec<Value>) -> Value {
    let mut bounds = Bounds::default();
    let mut shortened = Value::Null;
    for (bytes, items) in BOUNDS {
        bounds = Bounds { bytes, items, cut: Vec::new() };
        shortened = bounds.apply(value, path);
        if length(&shortened) <= WHOLE {
            break;
        }
    }
    cut.extend(bounds.cut);
    shortened
}

fn length(value: &Value) -> usize {
    value.to_string().len()
}

/// How much of a value is kept.
#[derive(Default)]
struct Bounds {
    bytes: usize,
    items: usize,
    /// What was cut: where, how much is kept, and of how much.
    cut: Vec<Value>,
}

impl Bounds {
    fn apply(&mut self, value: &Value, path: &str) -> Value {
        match value {
            Value::String(text) if text.len() > self.bytes => {
                let end = (0..=self.bytes).rfind(|end| text.is_char_boundary(*end)).unwrap_or(0);
                self.note(path, end, text.len());
                Value::String(text[..end].to_owned())
            }
            Value::Array(items) => {
                self.note(path, self.items, items.len());
                let kept = items.iter().take(self.items).enumerate();
                Value::Array(kept.map(|(at, item)| self.apply(item, &format!("{path}/{at}"))).collect())
            }
            Value::Object(entries) => {
                self.note(path, KEYS, entries.len());
                let kept = entries.iter().take(KEYS);
                Value::Object(
                    kept.map(|(key, entry)| (key.clone(), self.apply(entry, &format!("{path}/{key}"))))
                        .collect(),
                )
            }
            other => other.clone(),
        }
    }

    fn note(&mut self, path: &str, kept: usize, of: usize) {
        if of > kept {
            self.cut.push(json!({"at": path, "kept": kept, "of": of}));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn paged(items: Vec<Value>, limit: usize) -> Value {
        let count = items.len();
        let Value::Object(object) = json!({"list": items, "id": "x"}) else { unreachable!() };
        page(object, "list", |page| is_full(page, limit), |kept| (kept < count).then_some(kept))
    }

    #[test]
    fn pages_end_by_number_and_by_length() {
        let short = paged(vec![json!(1); 5], 2);
        assert_eq!(short, json!({"id": "x", "list": [1, 1], "next_offset": 2}));
        assert_eq!(paged(vec![json!(1); 5], 0)["next_offset"], 1);
        assert_eq!(paged(vec![json!(1); 5], 5), json!({"id": "x", "list": [1, 1, 1, 1, 1]}));
        assert_eq!(paged(vec![json!(1); 1000], usize::MAX)["next_offset"], MOST);
        let long = paged(vec![json!("y".repeat(5000)); 100], 100);
        assert!(long["next_offset"].as_u64().unwrap() < 10 && long.to_string().len() < 2 * PAGE, "{long}");
    }

    #[test]
    fn what_is_cut_is_told() {
        let long = json!({"text": "ä".repeat(9000), "list": vec![json!({"a": 1}); 150]});
        let mut cut = Vec::new();
        let short = bounded(&long, "/x", &mut cut);
        assert_eq!(short["list"].as_array().unwrap().len(), 100);
        assert_eq!(short["text"].as_str().unwrap().len(), 8192);
        let expected = [("/x/list", 100, 150), ("/x/text", 8192, 18000)];
        assert_eq!(cut, expected.map(|(at, kept, of)| json!({"at": at, "kept": kept, "of": of})));
        let mut cut = Vec::new();
        let huge = bounded(&json!(vec!["z".repeat(9000); 5000]), "", &mut cut);
        assert!(huge.to_string().len() <= WHOLE && !cut.is_empty());
        // Keys are not cut: what is left is longer than that, but no longer than it has to be.
        let entries = (0..200).map(|number| (format!("{number:0255}"), json!("v".repeat(9000)))).collect();
        let mut cut = Vec::new();
        let attributes = bounded(&Value::Object(entries), "", &mut cut);
        let length = attributes.to_string().len();
        assert!((WHOLE..2 * PAGE).contains(&length) && cut.len() == 101, "{length} {}", cut.len());
    }
}
