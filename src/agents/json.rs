//! One string or object in a JSON text, or one entry of an array there, with comments, order, indentation and line ends
//! kept.

use jsonc_parser::ParseOptions;
use jsonc_parser::cst::{CstArray, CstInputValue, CstNode, CstObject, CstObjectProp, CstRootNode};
use jsonc_parser::errors::ParseError;
use serde_json::Value;

use super::error::Defect;
use super::slot::{HookSlot, Setting};

/// The mark that some editors put at the beginning of UTF-8.
const BYTE_ORDER_MARK: &str = "\u{feff}";

/// What the value of a setting is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ValueKind {
    /// A string.
    String,
    /// An object, whose value is its JSON without spaces.
    Object,
}

impl ValueKind {
    fn read(self, node: &CstNode) -> Option<String> {
        match self {
            ValueKind::String => node.as_string_lit()?.decoded_value().ok(),
            ValueKind::Object => node.as_object()?.to_serde_value().map(|object| object.to_string()),
        }
    }

    fn write(self, value: &str) -> Result<CstInputValue, Defect> {
        match self {
            ValueKind::String => Ok(value.into()),
            ValueKind::Object => serde_json::from_str(value)
                .map(input)
                .map_err(|error| Defect::of_all(format!("the value is no JSON: {error}"))),
        }
    }

    fn name(self) -> &'static str {
        match self {
            ValueKind::String => "a string",
            ValueKind::Object => "an object",
        }
    }
}

fn input(value: Value) -> CstInputValue {
    match value {
        Value::Null => CstInputValue::Null,
        Value::Bool(is) => CstInputValue::Bool(is),
        Value::Number(number) => CstInputValue::Number(number.to_string()),
        Value::String(text) => CstInputValue::String(text),
        Value::Array(items) => CstInputValue::Array(items.into_iter().map(input).collect()),
        Value::Object(entries) => {
            CstInputValue::Object(entries.into_iter().map(|(key, value)| (key, input(value))).collect())
        }
    }
}

/// What `text` has at `keys`.
pub fn find(text: &str, keys: &[&str], kind: ValueKind) -> Result<Setting, Defect> {
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
        Some(node) => kind.read(&node).map(Setting::Value).ok_or_else(|| {
            let (is, should_be) = (self::kind(&node), kind.name());
            Defect::of_all(format!("{:?} is {is}, not {should_be}", keys.join(".")))
        }),
    }
}

/// The text with `value` at `keys`.
pub fn set(text: &str, keys: &[&str], kind: ValueKind, value: &str) -> Result<String, Defect> {
    let found = find(text, keys, kind)?;
    let input = kind.write(value)?;
    let document = Document::parse(text)?;
    let Some((last, above)) = keys.split_last() else { return Ok(text.to_owned()) };
    let missing = |keys: &[&str]| {
        let innermost = CstInputValue::Object(vec![((*last).to_owned(), input.clone())]);
        keys.iter()
            .rev()
            .fold(innermost, |inner, key| CstInputValue::Object(vec![((*key).to_owned(), inner)]))
    };
    let Some(mut object) = document.object()? else {
        document.root.set_value(missing(above));
        return checked(document.text(), keys, kind, Some(value));
    };
    for (depth, key) in above.iter().enumerate() {
        match child(&object, key)? {
            Some(node) => object = as_object(&node, key)?,
            None => {
                object.append(key, missing(&above[depth + 1..]));
                return checked(document.text(), keys, kind, Some(value));
            }
        }
    }
    match object.get(last).filter(|_| matches!(found, Setting::Value(_))) {
        Some(property) => property.set_value(input),
        None => {
            object.append(last, input);
        }
    }
    checked(document.text(), keys, kind, Some(value))
}

/// The text without what it has at `keys`, and without the object that this was in if that is empty then and
/// `with_parent`.
pub fn remove(text: &str, keys: &[&str], kind: ValueKind, with_parent: bool) -> Result<String, Defect> {
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
    checked(document.text(), keys, kind, None)
}

/// The command of our hook among those that `text` has in an array.
pub fn find_hook(text: &str, slot: &HookSlot) -> Result<Setting, Defect> {
    let document = Document::parse(text)?;
    let Some(root) = document.object()? else { return Ok(Setting::Absent) };
    let Some(list) = list(&root, slot)? else { return Ok(Setting::Absent) };
    Ok(hooks(&list, slot).pop().map_or(Setting::Without, |(_, command)| Setting::Value(command)))
}

/// Whether `text` says that hooks are run; none if it does not say.
pub fn switch(text: &str, slot: &HookSlot) -> Result<Option<bool>, Defect> {
    let Some([outer, inner]) = slot.switch else { return Ok(None) };
    let value =
        Document::parse(text)?.object()?.and_then(|root| root.object_value(outer)?.get(inner)?.value());
    Ok(value.and_then(|value| value.as_boolean_lit()).map(|value| value.value()))
}

/// The text with a hook that runs `command` behind all others.
pub fn add_hook(text: &str, slot: &HookSlot, command: &str) -> Result<String, Defect> {
    let document = Document::parse(text)?;
    let root = match document.object()? {
        Some(root) => root,
        None => document.root.object_value_or_set(),
    };
    if let Some((key, value)) = slot.version
        && child(&root, key)?.is_none()
    {
        root.append(key, CstInputValue::Number(value.to_owned()));
    }
    let [outer, inner] = slot.list;
    let entry = (slot.entry)(command);
    match list(&root, slot)? {
        Some(list) => {
            list.ensure_multiline();
            list.append(entry);
        }
        None => {
            let entries = CstInputValue::Array(vec![entry]);
            match child(&root, outer)? {
                Some(node) => as_object(&node, outer)?.append(inner, entries),
                None => root.append(outer, CstInputValue::Object(vec![(inner.to_owned(), entries)])),
            };
        }
    }
    checked_hook(document.text(), slot, Some(command))
}

/// The text without our hooks, and without the array that they were in if that is empty then and `with_parent`.
pub fn remove_hook(text: &str, slot: &HookSlot, with_parent: bool) -> Result<String, Defect> {
    let document = Document::parse(text)?;
    let Some(root) = document.object()? else { return Ok(text.to_owned()) };
    let Some(entries) = list(&root, slot)? else { return Ok(text.to_owned()) };
    for (nodes, _) in hooks(&entries, slot) {
        // The entry as a whole, unless it has hooks of the user's own, too.
        let outermost = nodes.into_iter().find(|node| {
            let siblings = node.as_object().and_then(|entry| entry.array_value(slot.group?));
            siblings.is_none_or(|siblings| siblings.elements().len() == 1)
        });
        outermost.into_iter().for_each(CstNode::remove);
    }
    let [outer, inner] = slot.list;
    if with_parent && entries.children_exclude_trivia_and_tokens().is_empty() {
        let above = root.object_value(outer);
        above.as_ref().and_then(|above| above.get(inner)).into_iter().for_each(CstObjectProp::remove);
        if above.is_some_and(|above| is_empty(&above)) {
            root.get(outer).into_iter().for_each(CstObjectProp::remove);
        }
    }
    checked_hook(document.text(), slot, None)
}

/// The array of hooks.
fn list(root: &CstObject, slot: &HookSlot) -> Result<Option<CstArray>, Defect> {
    let [outer, inner] = slot.list;
    let Some(node) = child(root, outer)? else { return Ok(None) };
    let Some(node) = child(&as_object(&node, &format!("{outer:?}"))?, inner)? else { return Ok(None) };
    let kind = kind(&node);
    let array = node.as_array();
    array.map(Some).ok_or_else(|| Defect::of_all(format!("{:?} is {kind}, not an array", slot.label())))
}

/// Our hooks: the nodes of each, the outermost first, and its command.
fn hooks(list: &CstArray, slot: &HookSlot) -> Vec<(Vec<CstNode>, String)> {
    let mut hooks = Vec::new();
    for entry in list.elements() {
        let Some(object) = entry.as_object() else { continue };
        let inner = match slot.group {
            None => vec![vec![entry]],
            Some(group) => {
                let group = object.array_value(group).map(|group| group.elements()).unwrap_or_default();
                group.into_iter().map(|hook| vec![entry.clone(), hook]).collect()
            }
        };
        for nodes in inner {
            let hook = nodes.last().and_then(CstNode::as_object);
            let command = hook.and_then(|hook| hook.get(slot.command)?.value()?.as_string_lit());
            if let Some(command) = command.and_then(|command| command.decoded_value().ok())
                && slot.program(&command).is_some()
            {
                hooks.push((nodes, command));
            }
        }
    }
    hooks
}

fn checked_hook(text: String, slot: &HookSlot, command: Option<&str>) -> Result<String, Defect> {
    match find_hook(&text, slot)?.value().as_deref() == command {
        true => Ok(text),
        false => Err(Defect::of_all(format!("{} can't be changed here by a program", slot.label()))),
    }
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
fn checked(text: String, keys: &[&str], kind: ValueKind, value: Option<&str>) -> Result<String, Defect> {
    match find(&text, keys, kind)?.value().as_deref() == value {
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
    let named = |property: &CstObjectProp| property.decoded_name().as_deref() == Some(key);
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
    use super::super::hook::{CURSOR_SLOT, GEMINI_SLOT};
    use super::*;

    const KEYS: [&str; 2] = ["env", "CLAUDE_CODE_SHELL"];

    /// Sets and removes; what was written between.
    fn round(text: &str) -> String {
        let set = set(text, &KEYS, ValueKind::String, "/s").unwrap();
        assert_eq!(find(&set, &KEYS, ValueKind::String).unwrap(), Setting::Value("/s".to_owned()), "{set}");
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
            assert_eq!(remove(before, &KEYS, ValueKind::String, with_parent).unwrap(), after, "{before:?}");
        }
    }

    #[test]
    fn object_is_set_beside_others_and_goes_alone() {
        let (keys, value) = (["mcpServers", "ours"], r#"{"args":["mcp"],"command":"/p"}"#);
        for (before, with_parent) in [
            ("{\n  \"mcpServers\": {\n    \"other\": {\"command\": \"x\"} // mine\n  }\n}\n", false),
            (r#"{"a": 1}"#, true),
        ] {
            let set = set(before, &keys, ValueKind::Object, value).unwrap();
            assert_eq!(
                find(&set, &keys, ValueKind::Object).unwrap(),
                Setting::Value(value.to_owned()),
                "{set}"
            );
            let removed = remove(&set, &keys, ValueKind::Object, with_parent).unwrap();
            let packed = |text: &str| text.split_whitespace().collect::<String>();
            assert_eq!(packed(&removed), packed(before), "{set}");
        }
        let defect = find(r#"{"mcpServers": {"ours": 7}}"#, &keys, ValueKind::Object).unwrap_err();
        assert_eq!(defect, Defect::of_all("\"mcpServers.ours\" is a number, not an object"));
    }

    #[test]
    fn error_is_named_with_its_place() {
        for (text, at) in
            [("{\n  \"a\": 1,,\n}", (2, 10)), ("{\"a\": 'x'}", (1, 7)), ("{", (1, 1)), ("{}x", (1, 3))]
        {
            let defect = find(text, &KEYS, ValueKind::String).unwrap_err();
            assert_eq!(defect.at, Some(at), "{text:?}: {defect:?}");
            assert_eq!(set(text, &KEYS, ValueKind::String, "/s").unwrap_err(), defect);
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
            assert_eq!(find(text, &KEYS, ValueKind::String).unwrap_err(), Defect::of_all(what), "{text}");
            assert_eq!(
                set(text, &KEYS, ValueKind::String, "/s").unwrap_err(),
                Defect::of_all(what),
                "{text}"
            );
        }
    }

    const GEMINI: &str = "/b/agent-snapshot hook gemini";

    #[test]
    fn hook_is_added_behind_those_of_others_and_goes_alone() {
        let ours =
            r#"{"type": "command", "name": "agent-snapshot", "command": "/b/agent-snapshot hook gemini"}"#;
        for (before, with_parent) in [
            (r#"{"hooks": {"BeforeTool": [{"matcher": "x", "hooks": [{"command": "y"}]}]}}"#, false),
            (
                "{\n  // mine\n  \"hooks\": {\n    \"BeforeTool\": [\n      7, // seven\n    ]\n  }\n}\n",
                false,
            ),
            (r#"{"hooks": {"AfterTool": []}, "a": 1}"#, true),
            (r#"{"a": 1}"#, true),
        ] {
            let set = add_hook(before, &GEMINI_SLOT, GEMINI).unwrap();
            assert_eq!(find_hook(&set, &GEMINI_SLOT).unwrap(), Setting::Value(GEMINI.to_owned()), "{set}");
            let removed = remove_hook(&set, &GEMINI_SLOT, with_parent).unwrap();
            let packed = |text: &str| text.split_whitespace().collect::<String>().replace(",]", "]");
            assert_eq!(packed(&removed), packed(before), "{set}");
        }
        // Beside one of the user's own in the same entry.
        let shared = format!(r#"{{"hooks": {{"BeforeTool": [{{"hooks": [{{"command": "y"}}, {ours}]}}]}}}}"#);
        let removed = remove_hook(&shared, &GEMINI_SLOT, true).unwrap();
        assert_eq!(removed, r#"{"hooks": {"BeforeTool": [{"hooks": [{"command": "y"}]}]}}"#);
        // More than once, and in an array that was not there before.
        let twice = format!(
            r#"{{"a": 1, "hooks": {{"BeforeTool": [{{"hooks": [{ours}]}}, {{"hooks": [{ours}]}}]}}}}"#
        );
        assert_eq!(remove_hook(&twice, &GEMINI_SLOT, true).unwrap(), r#"{"a": 1}"#);
    }

    #[test]
    fn version_is_written_where_the_format_has_one() {
        let command = "/b/agent-snapshot hook cursor --auto-approve";
        assert_eq!(
            add_hook("", &CURSOR_SLOT, command).unwrap(),
            "{\n  \"version\": 1,\n  \"hooks\": {\n    \"preToolUse\": [\n      {\n        \"command\": \
             \"/b/agent-snapshot hook cursor --auto-approve\",\n        \"matcher\": \"Shell\"\n      }\n    ]\n  }\n}\n"
        );
        let set = add_hook(r#"{"version": 2}"#, &CURSOR_SLOT, command).unwrap();
        assert!(set.contains(r#""version": 2"#) && !set.contains(r#""version": 1"#), "{set}");
    }

    #[test]
    fn hooks_of_another_type_are_refused() {
        for (text, what) in [
            (r#"{"hooks": []}"#, "\"hooks\" is an array, not an object"),
            (r#"{"hooks": {"BeforeTool": {}}}"#, "\"hooks.BeforeTool\" is an object, not an array"),
            (r#"{"hooks": {"BeforeTool": null}}"#, "\"hooks.BeforeTool\" is null, not an array"),
            (r#"{"hooks": {"BeforeTool": [], "BeforeTool": []}}"#, "\"BeforeTool\" is there more than once"),
            ("[]", "it is an array, not an object"),
        ] {
            assert_eq!(find_hook(text, &GEMINI_SLOT).unwrap_err(), Defect::of_all(what), "{text}");
            assert_eq!(add_hook(text, &GEMINI_SLOT, GEMINI).unwrap_err(), Defect::of_all(what), "{text}");
        }
        for entries in ["7", "{}", r#"{"hooks": {}}"#, r#"{"hooks": [7, {"command": 7}]}"#] {
            let text = format!(r#"{{"hooks": {{"BeforeTool": [{entries}]}}}}"#);
            assert_eq!(find_hook(&text, &GEMINI_SLOT).unwrap(), Setting::Without, "{text}");
        }
    }
}
