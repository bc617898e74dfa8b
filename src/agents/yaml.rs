//! One item `NAME=value` of a list at the top of a YAML text, with comments and layout kept.
//!
//! The text is edited where the parser says that something is, and parsed again: an edit that changes anything else is
//! refused.

use std::ops::Range;

use saphyr_parser::{Event, Parser, StrInput};

use super::error::Defect;
use super::slot::Setting;

/// How deep values are nested at most.
const DEPTH: usize = 64;

/// What `list` in `text` assigns to `name`.
pub fn find(text: &str, list: &str, name: &str) -> Result<Setting, Defect> {
    let Some(found) = Settings::parse(text)?.list(list)? else { return Ok(Setting::Absent) };
    Ok(match found.assignments(name)?.pop() {
        Some((_, value)) => Setting::Value(value),
        None => Setting::Without,
    })
}

/// The text in which `list` assigns `value` to `name`.
pub fn set(text: &str, list: &str, name: &str, value: &str) -> Result<String, Defect> {
    let plain = format!("{name}={value}");
    let item = quoted(&plain);
    let after = match Settings::parse(text)?.list(list)? {
        None => format!("{}{list}:\n  - {item}\n", whole_lines(text)),
        Some(found) => match (found.assignments(name)?.pop(), found.items.last()) {
            (Some((index, _)), _) => {
                let Node { value: old, at } = &found.items[index];
                let is_plain = matches!(old, Value::Scalar(old) if *old == text[at.clone()]);
                let after = replaced(text, at.clone(), if is_plain { &plain } else { &item });
                match checked(text, after, list, name, Some(value)) {
                    Ok(after) => after,
                    Err(_) => replaced(text, at.clone(), &item),
                }
            }
            // Only one in brackets has none.
            (None, None) => replaced(text, found.start + 1..found.start + 1, &item),
            (None, Some(last)) => match line_of_item(text, last) {
                Some(line) => {
                    let dash = &text[line.start..last.at.start];
                    format!("{}{dash}{item}\n{}", whole_lines(&text[..line.end]), &text[line.end..])
                }
                None => replaced(text, last.at.end..last.at.end, &format!(", {item}")),
            },
        },
    };
    checked(text, after, list, name, Some(value))
}

/// The text in which `list` assigns nothing to `name`, and without the list if it is empty then and `with_parent`.
pub fn remove(text: &str, list: &str, name: &str, with_parent: bool) -> Result<String, Defect> {
    let mut after = text.to_owned();
    while let Some(found) = Settings::parse(&after)?.list(list)? {
        let Some((index, _)) = found.assignments(name)?.pop() else { break };
        let item = &found.items[index];
        after = match (found.items.len(), line_of_item(&after, item)) {
            (1, line) => {
                let bracket = || item.at.end + after[item.at.end..].find(']').unwrap_or(0);
                let end = line.map_or_else(|| end_of_line(&after, bracket()), |line| line.end);
                let left = if with_parent { String::new() } else { format!("{list}: []\n") };
                replaced(&after, found.key..end, &left)
            }
            (_, Some(line)) => replaced(&after, line, ""),
            (_, None) if index == 0 => replaced(&after, item.at.start..found.items[1].at.start, ""),
            (_, None) => replaced(&after, found.items[index - 1].at.end..item.at.end, ""),
        };
    }
    checked(text, after, list, name, None)
}

/// A key and its value.
type Entry = (Node, Node);

/// A value, and where it is in the text.
#[derive(Debug, Clone)]
struct Node {
    value: Value,
    at: Range<usize>,
}

#[derive(Debug, Clone, PartialEq)]
enum Value {
    Scalar(String),
    Alias(usize),
    List(Vec<Node>),
    Mapping(Vec<Entry>),
}

/// Wherever they are.
impl PartialEq for Node {
    fn eq(&self, other: &Node) -> bool {
        self.value == other.value
    }
}

/// The mapping that a text is.
struct Settings(Vec<Entry>);

/// A list at the top.
struct List {
    /// Where its key begins.
    key: usize,
    /// Where it begins itself.
    start: usize,
    items: Vec<Node>,
}

impl Settings {
    fn parse(text: &str) -> Result<Settings, Defect> {
        let mut reader = Reader::of(text);
        let mut documents = Vec::new();
        loop {
            match reader.next()? {
                (Event::StreamEnd, _) => break,
                (Event::DocumentStart(_), _) => {
                    let first = reader.next()?;
                    documents.push(reader.node(first, DEPTH)?.value);
                }
                _ => {}
            }
        }
        match documents.pop() {
            Some(_) if !documents.is_empty() => Err(Defect::of_all("it has more than one document")),
            None => Ok(Settings(Vec::new())),
            Some(Value::Mapping(entries)) => Ok(Settings(entries)),
            // Null.
            Some(Value::Scalar(text)) if text == "~" => Ok(Settings(Vec::new())),
            Some(_) => Err(Defect::of_all("it is no mapping")),
        }
    }

    fn list(self, name: &str) -> Result<Option<List>, Defect> {
        let is_it = |key: &Node| matches!(&key.value, Value::Scalar(key) if key == name);
        let mut found = self.0.into_iter().filter(|(key, _)| is_it(key));
        match (found.next(), found.next()) {
            (None, _) => Ok(None),
            (Some(_), Some(_)) => Err(Defect::of_all(format!("{name:?} is there twice"))),
            (Some((key, Node { value: Value::List(items), at })), None) => {
                Ok(Some(List { key: key.at.start, start: at.start, items }))
            }
            (Some(_), None) => Err(Defect::of_all(format!("{name:?} is not a list"))),
        }
    }

    /// All but the items of `list` that assign to `name`.
    fn others(self, list: &str, name: &str) -> Result<(Vec<Entry>, Vec<Node>), Defect> {
        let is_it = |key: &Node| matches!(&key.value, Value::Scalar(key) if key == list);
        let others = self.0.iter().filter(|(key, _)| !is_it(key)).cloned().collect();
        let Some(mut found) = self.list(list)? else { return Ok((others, Vec::new())) };
        for (index, _) in found.assignments(name)?.into_iter().rev() {
            found.items.remove(index);
        }
        Ok((others, found.items))
    }
}

impl List {
    /// The indexes of the items that assign to a name, and the values; the last one counts.
    fn assignments(&self, name: &str) -> Result<Vec<(usize, String)>, Defect> {
        let mut found = Vec::new();
        for (index, item) in self.items.iter().enumerate() {
            let Value::Scalar(text) = &item.value else {
                return Err(Defect::of_all(format!("item {} of the list is not a string", index + 1)));
            };
            if let Some((left, value)) = text.split_once('=')
                && left.trim() == name
            {
                found.push((index, value.trim().to_owned()));
            }
        }
        Ok(found)
    }
}

/// Makes nodes of what a parser reports.
struct Reader<'a> {
    parser: Parser<'a, StrInput<'a>>,
    /// Where each character begins, and the last one ends.
    offsets: Vec<usize>,
}

impl<'a> Reader<'a> {
    fn of(text: &'a str) -> Reader<'a> {
        let offsets = text.char_indices().map(|(offset, _)| offset).chain([text.len()]).collect();
        Reader { parser: Parser::new_from_str(text), offsets }
    }

    fn next(&mut self) -> Result<(Event<'a>, Range<usize>), Defect> {
        let end = self.offsets.len() - 1;
        match self.parser.next_event() {
            None => Ok((Event::StreamEnd, 0..0)),
            Some(Ok((event, span))) => {
                let [start, end] = [span.start, span.end].map(|marker| self.offsets[marker.index().min(end)]);
                Ok((event, start..end))
            }
            Some(Err(error)) => {
                let at = error.marker();
                Err(Defect { at: Some((at.line(), at.col() + 1)), what: error.info().to_owned() })
            }
        }
    }

    /// The node that begins with an event.
    fn node(&mut self, (event, at): (Event<'a>, Range<usize>), depth: usize) -> Result<Node, Defect> {
        let Some(depth) = depth.checked_sub(1) else { return Err(Defect::of_all("it is nested too deep")) };
        let mut end = at.end;
        let value = match event {
            Event::Scalar(text, ..) => Value::Scalar(text.into_owned()),
            Event::Alias(id) => Value::Alias(id),
            Event::SequenceStart(..) => {
                let mut items = Vec::new();
                end = loop {
                    match self.next()? {
                        (Event::SequenceEnd, at) => break at.end,
                        first => items.push(self.node(first, depth)?),
                    }
                };
                Value::List(items)
            }
            Event::MappingStart(..) => {
                let mut entries = Vec::new();
                end = loop {
                    match self.next()? {
                        (Event::MappingEnd, at) => break at.end,
                        first => {
                            let key = self.node(first, depth)?;
                            let first = self.next()?;
                            entries.push((key, self.node(first, depth)?));
                        }
                    }
                };
                Value::Mapping(entries)
            }
            _ => return Err(Defect::of_all("it ends too early")),
        };
        Ok(Node { value, at: at.start..end })
    }
}

/// The lines of an item that is alone on them, behind its dash.
fn line_of_item(text: &str, item: &Node) -> Option<Range<usize>> {
    let start = text[..item.at.start].rfind('\n').map_or(0, |end| end + 1);
    let is_alone = text[start..item.at.start].trim() == "-";
    is_alone.then(|| start..end_of_line(text, item.at.end))
}

/// Where the line ends that has the byte at an offset, its line feed included.
fn end_of_line(text: &str, offset: usize) -> usize {
    text[offset..].find('\n').map_or(text.len(), |length| offset + length + 1)
}

fn replaced(text: &str, range: Range<usize>, by: &str) -> String {
    [&text[..range.start], by, &text[range.end..]].concat()
}

/// Makes sure of a text that was edited: all else has the values that it had.
fn checked(
    before: &str,
    after: String,
    list: &str,
    name: &str,
    value: Option<&str>,
) -> Result<String, Defect> {
    let others = |text: &str| Settings::parse(text)?.others(list, name);
    let is_set = || find(&after, list, name).is_ok_and(|found| found.value().as_deref() == value);
    if is_set() && others(&after).is_ok_and(|after| others(before).is_ok_and(|before| before == after)) {
        return Ok(after);
    }
    Err(Defect::of_all(format!("{name} in {list} can't be changed here by a program")))
}

/// The text, its last line ended.
fn whole_lines(text: &str) -> String {
    if text.is_empty() || text.ends_with('\n') { text.to_owned() } else { format!("{text}\n") }
}

/// A string of YAML between double quotes, as JSON has it.
fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set_shell(text: &str) -> Result<String, Defect> {
        set(text, "set-env", "SHELL", "/s")
    }

    #[test]
    fn item_is_added_and_all_else_stays() {
        for (before, after) in [
            ("", "set-env:\n  - \"SHELL=/s\"\n"),
            ("# mine", "# mine\nset-env:\n  - \"SHELL=/s\"\n"),
            ("model: x # why\n", "model: x # why\nset-env:\n  - \"SHELL=/s\"\n"),
            ("model: x", "model: x\nset-env:\n  - \"SHELL=/s\"\n"),
            ("set-env:\n  - A=b # one\nmodel: x\n", "set-env:\n  - A=b # one\n  - \"SHELL=/s\"\nmodel: x\n"),
            ("set-env:\n- A=b", "set-env:\n- A=b\n- \"SHELL=/s\"\n"),
            ("set-env: [] # none\n", "set-env: [\"SHELL=/s\"] # none\n"),
            ("é: ü\nset-env: [Ä=ö]\n", "é: ü\nset-env: [Ä=ö, \"SHELL=/s\"]\n"),
            (
                "a: &x |\n  set-env:\n  - b\nb: *x\n",
                "a: &x |\n  set-env:\n  - b\nb: *x\nset-env:\n  - \"SHELL=/s\"\n",
            ),
            ("set-env: [A=b]\n", "set-env: [A=b, \"SHELL=/s\"]\n"),
            ("set-env:\n- SHELL=/x # mine\n- A=b\n", "set-env:\n- SHELL=/s # mine\n- A=b\n"),
            ("set-env: ['SHELL=/x', A=b]\n", "set-env: [\"SHELL=/s\", A=b]\n"),
        ] {
            assert_eq!(set_shell(before).unwrap(), after, "{before:?}");
        }
    }

    #[test]
    fn value_that_means_something_else_in_yaml_is_quoted() {
        for value in ["/a: b", "/a #b", "/a, b"] {
            let after = set("set-env: [SHELL=/x]\n", "set-env", "SHELL", value).unwrap();
            let item = serde_json::Value::from(format!("SHELL={value}"));
            assert_eq!(after, format!("set-env: [{item}]\n"));
        }
    }

    #[test]
    fn item_goes_and_all_else_stays() {
        for (before, with_parent, after) in [
            ("model: x\nset-env:\n  - SHELL=/s\n", true, "model: x\n"),
            ("set-env:\n  - A=b\n  - SHELL=/s\n", true, "set-env:\n  - A=b\n"),
            ("# a\nset-env: [A=b, SHELL=/s]\n", false, "# a\nset-env: [A=b]\n"),
            ("set-env: [SHELL=/s, A=b, \"SHELL=/x\"]\n", true, "set-env: [A=b]\n"),
            ("set-env:\n- SHELL=/s # mine\nmodel: x\n", false, "set-env: []\nmodel: x\n"),
            ("set-env: [\n  SHELL=/s\n] # here\n# next\nmodel: x\n", true, "# next\nmodel: x\n"),
            ("model: x\n", true, "model: x\n"),
        ] {
            assert_eq!(remove(before, "set-env", "SHELL", with_parent).unwrap(), after, "{before:?}");
        }
    }

    #[test]
    fn what_is_no_settings_is_refused() {
        for text in [
            "- a\n",
            "x\n",
            "a: 1\n---\nb: 2\n",
            "set-env: {A: b}\n",
            "set-env: A=b\n",
            "set-env:\n  - [a]\n",
            "set-env: []\nset-env: []\n",
            "{model: x}\n",
            " model: x\n",
            "model: x\n...\n",
        ] {
            assert_eq!(set_shell(text).unwrap_err().at, None, "{text}");
        }
        for (text, line) in [("a: [1\n", 1), ("a: 1\n b: 2\n", 2), ("a: \"x\n", 1)] {
            let at = set_shell(text).unwrap_err().at;
            assert!(at.is_some_and(|at| at.0 >= line), "{text:?}: {at:?}");
        }
    }
}
