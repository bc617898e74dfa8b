//! One item `NAME=value` of a list at the top of a YAML text, with comments and layout kept.

use std::str::FromStr as _;

use yaml_edit::validator::{Severity, Validator, Violation};
use yaml_edit::{Mapping, Sequence, YamlError, YamlFile, YamlNode, YamlValue};

use super::error::Defect;
use super::slot::Setting;

/// What `list` in `text` assigns to `name`.
pub fn find(text: &str, list: &str, name: &str) -> Result<Setting, Defect> {
    let file = parse(text)?;
    let Some(mapping) = mapping(&file)? else { return Ok(Setting::Absent) };
    let Some(items) = items(&mapping, list)? else { return Ok(Setting::Absent) };
    Ok(match assignments(&items, name)?.pop() {
        Some((_, value)) => Setting::Value(value),
        None => Setting::Without,
    })
}

/// The text in which `list` assigns `value` to `name`.
pub fn set(text: &str, list: &str, name: &str, value: &str) -> Result<String, Defect> {
    let file = parse(text)?;
    let item = format!("{name}={value}");
    let after = match mapping(&file)? {
        None => format!("{}{list}:\n  - {}\n", whole_lines(text), quoted(&item)),
        Some(mapping) => {
            match items(&mapping, list)? {
                None => mapping.set(list, vec![YamlValue::from(item)]),
                Some(items) => match assignments(&items, name)?.pop() {
                    Some((index, _)) => drop(items.set(index, item)),
                    None => items.push(item),
                },
            }
            file.to_string()
        }
    };
    checked(text, after, list, name, Some(value))
}

/// The text in which `list` assigns nothing to `name`, and without the list if it is empty then and `with_parent`.
pub fn remove(text: &str, list: &str, name: &str, with_parent: bool) -> Result<String, Defect> {
    let file = parse(text)?;
    let Some(mapping) = mapping(&file)? else { return Ok(text.to_owned()) };
    let Some(items) = items(&mapping, list)? else { return Ok(text.to_owned()) };
    for (index, _) in assignments(&items, name)?.into_iter().rev() {
        items.remove(index);
    }
    if with_parent && items.is_empty() {
        mapping.remove(list);
    }
    checked(text, file.to_string(), list, name, None)
}

fn parse(text: &str) -> Result<YamlFile, Defect> {
    let file = YamlFile::from_str(text).map_err(|error| match error {
        YamlError::Parse { message, line, column } => Defect { at: line.zip(column), what: message },
        other => Defect::of_all(other.to_string()),
    })?;
    let is_error = |violation: &Violation| violation.severity == Severity::Error;
    match file
        .documents()
        .find_map(|document| Validator::new().validate(&document).into_iter().find(is_error))
    {
        None => Ok(file),
        Some(Violation { message, location, .. }) => {
            let place = location.as_deref().and_then(|place| place.split_once(':'));
            let at = place.and_then(|(line, column)| Some((line.parse().ok()?, column.parse().ok()?)));
            Err(Defect { at, what: message })
        }
    }
}

/// The mapping that the text is; none if it is empty.
fn mapping(file: &YamlFile) -> Result<Option<Mapping>, Defect> {
    let documents: Vec<_> = file.documents().collect();
    let document = match documents.as_slice() {
        [] => return Ok(None),
        [document] => document,
        _ => return Err(Defect::of_all("it has more than one document")),
    };
    match document.as_mapping() {
        None if document.as_sequence().is_some()
            || document.as_scalar().is_some_and(|scalar| !scalar.is_null()) =>
        {
            Err(Defect::of_all("it is no mapping"))
        }
        mapping => Ok(mapping),
    }
}

fn items(mapping: &Mapping, list: &str) -> Result<Option<Sequence>, Defect> {
    match mapping.get(list) {
        None => Ok(None),
        Some(YamlNode::Sequence(items)) => Ok(Some(items)),
        Some(_) => Err(Defect::of_all(format!("{list:?} is not a list"))),
    }
}

/// The indexes of the items that assign to a name, and the values; the last one counts.
fn assignments(items: &Sequence, name: &str) -> Result<Vec<(usize, String)>, Defect> {
    let mut found = Vec::new();
    for (index, item) in items.values().enumerate() {
        let Some(scalar) = item.as_scalar() else {
            return Err(Defect::of_all(format!("item {} of the list is not a string", index + 1)));
        };
        let text = scalar.as_string();
        if let Some((left, value)) = text.split_once('=')
            && left.trim() == name
        {
            found.push((index, value.trim().to_owned()));
        }
    }
    Ok(found)
}

/// Makes sure of a text that was edited: all else has the values that it had.
fn checked(
    before: &str,
    after: String,
    list: &str,
    name: &str,
    value: Option<&str>,
) -> Result<String, Defect> {
    let others = |text: &str| -> Result<Vec<(String, String)>, Defect> {
        let file = parse(text)?;
        let Some(mapping) = mapping(&file)? else { return Ok(Vec::new()) };
        let mut others = Vec::new();
        for key in mapping.keys() {
            let name = key.as_scalar().map(|key| key.as_string()).unwrap_or_default();
            if name != list {
                let value = mapping.get(&key).map(|value| value.to_string());
                others.push((name, value.unwrap_or_default().trim().to_owned()));
            }
        }
        for item in items(&mapping, list)?.iter().flat_map(|items| items.values().collect::<Vec<_>>()) {
            let text = item.as_scalar().map(|item| item.as_string()).unwrap_or_default();
            if text.split_once('=').is_none_or(|(left, _)| left.trim() != name) {
                others.push((list.to_owned(), text));
            }
        }
        Ok(others)
    };
    if find(&after, list, name)?.value().as_deref() == value && others(before)? == others(&after)? {
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
            ("model: x # why\n", "model: x # why\nset-env:\n- SHELL=/s\n"),
            ("model: x", "model: x\nset-env:\n- SHELL=/s"),
            ("set-env:\n  - A=b # one\nmodel: x\n", "set-env:\n  - A=b # one\n  - SHELL=/s\nmodel: x\n"),
            ("set-env: [A=b]\n", "set-env: [A=b, SHELL=/s]\n"),
            ("set-env:\n- SHELL=/x\n- A=b\n", "set-env:\n- SHELL=/s\n- A=b\n"),
        ] {
            assert_eq!(set_shell(before).unwrap(), after, "{before:?}");
        }
    }

    #[test]
    fn item_goes_and_all_else_stays() {
        for (before, with_parent, after) in [
            ("model: x\nset-env:\n  - SHELL=/s\n", true, "model: x\n"),
            ("set-env:\n  - A=b\n  - SHELL=/s\n", true, "set-env:\n  - A=b\n"),
            ("# a\nset-env: [A=b, SHELL=/s]\n", false, "# a\nset-env: [A=b]\n"),
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
        ] {
            assert_eq!(set_shell(text).unwrap_err().at, None, "{text}");
        }
        for (text, line) in [("a: [1\n", 1), ("a: 1\n b: 2\n", 2), ("a: \"x\n", 1)] {
            let at = set_shell(text).unwrap_err().at;
            assert!(at.is_some_and(|at| at.0 >= line), "{text:?}: {at:?}");
        }
    }
}
