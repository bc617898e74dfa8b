//! One string in a JSON text, with comments, order, indentation and line ends kept.

use jsonc_parser::ParseOptions;
use jsonc_parser::cst::{CstInputValue, CstNode, CstObject, CstRootNode};
use jsonc_parser::errors::ParseError;

use super::error::Defect;
use super::slot::Setting;

/// The mark that some editors put at the beginning of UTF-8.
const BYTE_ORDER_MARK: &str = "\u{feff}";

/// What `text` has at `keys`.
pub fn find(text: &str, keys: &[&str]) -> Result<Setting, Defect> {
    let document = Document::parse(text)?;
    let Some((last, above)) = keys.split_last() else { return Ok(Setting::Absent) };
    let Some(mut object) = document.object()? else { return Ok(Setting::Absent) };
    for key in above {
        match child(&object, key)? {
            None => return Ok(Setting::Absent),
            Some(node) => object = as_object(&node, &format!("{key:?}"))?,
        }
    }
    match child(&object, last)? {
        None => Ok(Setting::Without),
        Some(node) => {
            let string = node.as_string_lit().and_then(|string| string.decoded_value().ok());
            string.map(Setting::Value).ok_or_else(|| {
                Defect::of_all(format!("{:?} is {}, not a string", keys.join("."), kind(&node)))
            })
        }
    }
}

/// The text with `value` at `keys`.
pub fn set(text: &str, keys: &[&str], value: &str) -> Result<String, Defect> {
    let found = find(text, keys)?;
    let document = Document::parse(text)?;
    let Some((last, above)) = keys.split_last() else { return Ok(text.to_owned()) };
    let missing = |keys: &[&str]| {
        let innermost = CstInputValue::Object(vec![((*last).to_owned(), value.into())]);
        keys.iter()
            .rev()
            .fold(innermost, |inner, key| CstInputValue::Object(vec![((*key).to_owned(), inner)]))
    };
    let Some(mut object) = document.object()? else {
        document.root.set_value(missing(above));
        return checked(document.text(), keys, Some(value));
    };
    for (depth, key) in above.iter().enumerate() {
        match child(&object, key)? {
            Some(node) => object = as_object(&node, key)?,
            None => {
                object.append(key, missing(&above[depth + 1..]));
                return checked(document.text(), keys, Some(value));
            }
        }
    }
    match object.get(last).filter(|_| matches!(found, Setting::Value(_))) {
        Some(property) => property.set_value(value.into()),
        None => {
            object.append(last, value.into());
        }
    }
    checked(document.text(), keys, Some(value))
}

/// The text without what it has at `keys`, and without the object that this was in if that is empty then and
/// `with_parent`.
pub fn remove(text: &str, keys: &[&str], with_parent: bool) -> Result<String, Defect> {
    let document = Document::parse(text)?;
    let Some((last, above)) = keys.split_last() else { return Ok(text.to_owned()) };
    let Some(mut object) = document.object()? else { return Ok(text.to_owned()) };
    let mut parent = None;
    for key in above {
        let Some(node) = child(&object, key)? else { return Ok(text.to_owned()) };
        parent = object.get(key);
        object = as_object(&node, key)?;
    }
    if let Some(property) = object.get(last) {
        property.remove();
    }
    if let Some(parent) = parent.filter(|_| with_parent && is_empty(&object)) {
        parent.remove();
    }
    checked(document.text(), keys, None)
}

/// Whether an object has neither a property nor a comment.
fn is_empty(object: &CstObject) -> bool {
    object.properties().is_empty() && !object.children().iter().any(CstNode::is_comment)
}

/// A text, as it was parsed.
struct Document {
    mark: &'static str,
    root: CstRootNode,
}

impl Document {
    fn parse(text: &str) -> Result<Document, Defect> {
        let (mark, rest) = match text.strip_prefix(BYTE_ORDER_MARK) {
            Some(rest) => (BYTE_ORDER_MARK, rest),
            None => ("", text),
        };
        let options = ParseOptions {
            allow_comments: true,
            allow_trailing_commas: true,
            allow_loose_object_property_names: false,
            allow_missing_commas: false,
            allow_single_quoted_strings: false,
            allow_hexadecimal_numbers: false,
            allow_unary_plus_numbers: false,
            allow_bare_decimal_point_numbers: false,
            allow_non_finite_numbers: false,
            allow_extended_string_escapes: false,
        };
        let root = CstRootNode::parse(rest, &options).map_err(defect)?;
        Ok(Document { mark, root })
    }

    /// The object that the text is; none if it has no value.
    fn object(&self) -> Result<Option<CstObject>, Defect> {
        self.root.value().map(|value| as_object(&value, "it")).transpose()
    }

    fn text(&self) -> String {
        format!("{}{}", self.mark, self.root)
    }
}

/// Makes sure of a text that was edited.
fn checked(text: String, keys: &[&str], value: Option<&str>) -> Result<String, Defect> {
    match find(&text, keys)?.value().as_deref() == value {
        true => Ok(text),
        false => Err(Defect::of_all(format!("{} can't be changed here by a program", keys.join(".")))),
    }
}

fn defect(error: ParseError) -> Defect {
    let mut what = error.kind().to_string();
    if let Some(first) = what.get_mut(..1) {
        first.make_ascii_lowercase();
    }
    Defect { at: Some((error.line_display(), error.column_display())), what }
}

/// The value of a property that is there once.
fn child(object: &CstObject, key: &str) -> Result<Option<CstNode>, Defect> {
    let named = |property: &jsonc_parser::cst::CstObjectProp| property.decoded_name().as_deref() == Some(key);
    match object.properties().into_iter().filter(named).collect::<Vec<_>>().as_slice() {
        [] => Ok(None),
        [property] => Ok(property.value()),
        _ => Err(Defect::of_all(format!("{key:?} is there more than once"))),
    }
}

fn as_object(node: &CstNode, what: &str) -> Result<CstObject, Defect> {
    node.as_object().ok_or_else(|| Defect::of_all(format!("{what} is {}, not an object", kind(node))))
}

/// The type of a value, with its article.
fn kind(node: &CstNode) -> &'static str {
    match () {
        () if node.as_object().is_some() => "an object",
        () if node.as_array().is_some() => "an array",
        () if node.as_string_lit().is_some() => "a string",
        () if node.as_number_lit().is_some() => "a number",
        () if node.as_boolean_lit().is_some() => "a boolean",
        () => "null",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEYS: [&str; 2] = ["env", "CLAUDE_CODE_SHELL"];

    /// Sets and removes; what was written between.
    fn round(text: &str) -> String {
        let set = set(text, &KEYS, "/s").unwrap();
        assert_eq!(find(&set, &KEYS).unwrap(), Setting::Value("/s".to_owned()), "{set}");
        set
    }

    #[test]
    fn setting_is_added_in_the_style_of_the_text() {
        for (before, after) in [
            ("", "{\n  \"env\": {\n    \"CLAUDE_CODE_SHELL\": \"/s\"\n  }\n}\n"),
            ("{}", "{\n  \"env\": {\n    \"CLAUDE_CODE_SHELL\": \"/s\"\n  }\n}"),
            ("{\"a\": 1}\n", "{\n  \"a\": 1,\n  \"env\": {\n    \"CLAUDE_CODE_SHELL\": \"/s\"\n  }\n}\n"),
            ("{\n\t\"a\": 1\n}", "{\n\t\"a\": 1,\n\t\"env\": {\n\t\t\"CLAUDE_CODE_SHELL\": \"/s\"\n\t}\n}"),
            (
                "{\r\n    // why\r\n    \"env\": {\r\n        \"A\": \"1\" // one\r\n    },\r\n    \"b\": [1,2]\r\n}\r\n",
                "{\r\n    // why\r\n    \"env\": {\r\n        \"A\": \"1\", // one\r\n        \"CLAUDE_CODE_SHELL\": \"/s\"\r\n    },\r\n    \"b\": [1,2]\r\n}\r\n",
            ),
            ("{\"env\": {\"CLAUDE_CODE_SHELL\": \"/x\"}}", "{\"env\": {\"CLAUDE_CODE_SHELL\": \"/s\"}}"),
            ("\u{feff}{\"env\":{}}", "\u{feff}{\"env\":{\n    \"CLAUDE_CODE_SHELL\": \"/s\"\n  }}"),
        ] {
            assert_eq!(round(before), after, "{before:?}");
        }
    }

    #[test]
    fn setting_goes_and_all_else_stays() {
        for (before, with_parent, after) in [
            (
                "{\n  \"a\": 1,\n  \"env\": {\n    \"CLAUDE_CODE_SHELL\": \"/s\"\n  }\n}\n",
                true,
                "{\n  \"a\": 1\n}\n",
            ),
            ("{\n  \"env\": {\n    \"CLAUDE_CODE_SHELL\": \"/s\"\n  }\n}\n", false, "{\n  \"env\": {}\n}\n"),
            (
                "{\n  \"env\": {\n    // mine\n    \"CLAUDE_CODE_SHELL\": \"/s\",\n    \"B\": \"2\"\n  }\n}\n",
                true,
                "{\n  \"env\": {\n    // mine\n    \"B\": \"2\"\n  }\n}\n",
            ),
            ("{\"b\": 1}", true, "{\"b\": 1}"),
        ] {
            assert_eq!(remove(before, &KEYS, with_parent).unwrap(), after, "{before:?}");
        }
    }

    #[test]
    fn error_is_named_with_its_place() {
        for (text, at) in
            [("{\n  \"a\": 1,,\n}", (2, 10)), ("{\"a\": 'x'}", (1, 7)), ("{", (1, 1)), ("{}x", (1, 3))]
        {
            let defect = find(text, &KEYS).unwrap_err();
            assert_eq!(defect.at, Some(at), "{text:?}: {defect:?}");
            assert_eq!(set(text, &KEYS, "/s").unwrap_err(), defect);
        }
    }

    #[test]
    fn other_types_are_refused() {
        for (text, what) in [
            ("[]", "it is an array, not an object"),
            ("7", "it is a number, not an object"),
            ("null", "it is null, not an object"),
            (r#"{"env": []}"#, "\"env\" is an array, not an object"),
            (r#"{"env": "x"}"#, "\"env\" is a string, not an object"),
            (r#"{"env": {"CLAUDE_CODE_SHELL": 7}}"#, "\"env.CLAUDE_CODE_SHELL\" is a number, not a string"),
            (r#"{"env": {}, "env": {}}"#, "\"env\" is there more than once"),
        ] {
            assert_eq!(find(text, &KEYS).unwrap_err(), Defect::of_all(what), "{text}");
            assert_eq!(set(text, &KEYS, "/s").unwrap_err(), Defect::of_all(what), "{text}");
        }
    }
}
