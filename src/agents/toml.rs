//! One switch in a table at the top of a TOML text, or one table in a table there, with comments and layout kept.

use serde_json::Value;
use toml_edit::{DocumentMut, Item, RawString, Table, TableLike, value};

use super::error::Defect;
use super::slot::Setting;

/// What `text` says of the switch `name` in `table`, as TOML writes it.
pub fn find(text: &str, table: &str, name: &str) -> Result<Setting, Defect> {
    let document = parse(text)?;
    let Some(switches) = switches(&document, table)? else { return Ok(Setting::Absent) };
    match switches.get(name) {
        None => Ok(Setting::Without),
        Some(item) => match item.as_bool() {
            Some(is_on) => Ok(Setting::Value(is_on.to_string())),
            None => Err(Defect::of_all(format!(
                "\"{table}.{name}\" is of the type {}, not a boolean",
                item.type_name()
            ))),
        },
    }
}

/// The text in which the switch `name` in `table` has this value, `true` or `false`.
pub fn set(text: &str, table: &str, name: &str, switch: &str) -> Result<String, Defect> {
    let mut document = parse(text)?;
    if switches(&document, table)?.is_none() {
        // A comment at the end belongs to no table: the new one comes after it.
        let gap = match text {
            "" => "",
            _ if text.ends_with('\n') => "\n",
            _ => "\n\n",
        };
        let after = format!("{text}{gap}[{table}]\n{name} = {switch}\n");
        return checked(text, after, table, name, Some(switch));
    }
    let switches = document.get_mut(table).and_then(Item::as_table_like_mut);
    let switches = switches.ok_or_else(|| unchangeable(table, name))?;
    let is_on = value(switch == "true");
    match switches.get_mut(name).and_then(Item::as_value_mut) {
        Some(present) => {
            let decor = present.decor().clone();
            *present = is_on.into_value().map_err(|_| unchangeable(table, name))?;
            *present.decor_mut() = decor;
        }
        None => drop(switches.insert(name, is_on)),
    }
    checked(text, document.to_string(), table, name, Some(switch))
}

/// The text without the switch, and without the table if it is empty then and `with_parent`.
pub fn remove(text: &str, table: &str, name: &str, with_parent: bool) -> Result<String, Defect> {
    let mut document = parse(text)?;
    let Some(switches) = document.get_mut(table).and_then(Item::as_table_like_mut) else {
        return Ok(text.to_owned());
    };
    switches.remove(name);
    if with_parent && switches.is_empty() {
        document.remove(table);
    }
    checked(text, document.to_string(), table, name, None)
}

/// What `text` says of the table `name` in `tables`, as JSON without spaces.
pub fn find_table(text: &str, [tables, name]: [&str; 2]) -> Result<Setting, Defect> {
    let document = parse(text)?;
    let Some(found) = switches(&document, tables)? else { return Ok(Setting::Absent) };
    let Some(item) = found.get(name) else { return Ok(Setting::Without) };
    if !item.is_table_like() {
        let is = item.type_name();
        return Err(Defect::of_all(format!("\"{tables}.{name}\" is of the type {is}, not a table")));
    }
    let whole: Value = ::toml::from_str(text).map_err(|error| Defect::of_all(error.message()))?;
    Ok(Setting::Value(whole[tables][name].to_string()))
}

/// The text with the table `name` in `tables`, whose content is given as JSON, at the end.
pub fn set_table(text: &str, [tables, name]: [&str; 2], table: &str) -> Result<String, Defect> {
    find_table(text, [tables, name])?;
    let json: Value = serde_json::from_str(table).map_err(|error| Defect::of_all(error.to_string()))?;
    let entries = json.as_object().ok_or_else(|| unchangeable(tables, name))?;
    let mut document = parse(text)?;
    take_table(&mut document, [tables, name]);
    let mut after = document.to_string();
    if !after.is_empty() {
        after += if after.ends_with('\n') { "\n" } else { "\n\n" };
    }
    after += &format!("[{tables}.{name}]\n");
    for (key, value) in entries {
        let value = toml_value(value).ok_or_else(|| unchangeable(tables, name))?;
        after += &format!("{key} = {value}\n");
    }
    checked_table(text, after, [tables, name], Some(&json))
}

/// The text without the table, and without what it was in if that is empty then and `with_parent`.
pub fn remove_table(text: &str, [tables, name]: [&str; 2], with_parent: bool) -> Result<String, Defect> {
    let mut document = parse(text)?;
    take_table(&mut document, [tables, name]);
    let is_empty = |item: &Item| item.as_table_like().is_some_and(TableLike::is_empty);
    if with_parent && document.get(tables).is_some_and(is_empty) {
        document.remove(tables);
    }
    checked_table(text, document.to_string(), [tables, name], None)
}

/// Removes a table, and leaves the comments above it to what follows.
fn take_table(document: &mut DocumentMut, [tables, name]: [&str; 2]) {
    let present = document.get_mut(tables).and_then(Item::as_table_like_mut);
    let Some(Item::Table(removed)) = present.and_then(|present| present.remove(name)) else { return };
    let above = removed.decor().prefix().and_then(RawString::as_str).unwrap_or_default();
    // The blank line is ours.
    let Some(above) = above.strip_suffix('\n').filter(|above| !above.trim().is_empty()) else { return };
    match following(document, removed.position()) {
        Some(next) => {
            let its = next.decor().prefix().and_then(RawString::as_str).unwrap_or_default();
            let both = format!("{above}{its}");
            next.decor_mut().set_prefix(both);
        }
        None => {
            let both = format!("{above}{}", document.trailing().as_str().unwrap_or_default());
            document.set_trailing(both);
        }
    }
}

/// The first table with a header behind a position.
fn following(table: &mut Table, position: Option<isize>) -> Option<&mut Table> {
    let mut found: Option<&mut Table> = None;
    for (_, item) in table.iter_mut() {
        let inner: Vec<&mut Table> = match item {
            Item::Table(table) => vec![table],
            Item::ArrayOfTables(tables) => tables.iter_mut().collect(),
            Item::None | Item::Value(_) => continue,
        };
        for inner in inner {
            let is_next = !inner.is_implicit() && inner.position() > position;
            let candidate = if is_next { Some(inner) } else { following(inner, position) };
            let is_before =
                |one: &Table| found.as_ref().is_none_or(|found| one.position() < found.position());
            if let Some(candidate) = candidate.filter(|one| is_before(one)) {
                found = Some(candidate);
            }
        }
    }
    found
}

fn toml_value(json: &Value) -> Option<toml_edit::Value> {
    match json {
        Value::Null => None,
        Value::Bool(is) => Some((*is).into()),
        Value::Number(number) => number.as_i64().map(Into::into).or_else(|| number.as_f64().map(Into::into)),
        Value::String(text) => Some(text.into()),
        Value::Array(items) => {
            items.iter().map(toml_value).collect::<Option<toml_edit::Array>>().map(Into::into)
        }
        Value::Object(entries) => {
            let entries = entries.iter().map(|(key, value)| Some((key.as_str(), toml_value(value)?)));
            entries.collect::<Option<toml_edit::InlineTable>>().map(Into::into)
        }
    }
}

fn checked_table(
    before: &str,
    after: String,
    [tables, name]: [&str; 2],
    table: Option<&Value>,
) -> Result<String, Defect> {
    let after = with_line_ends_of(before, after);
    match find_table(&after, [tables, name])?.value() == table.map(Value::to_string) {
        true => Ok(after),
        false => Err(unchangeable(tables, name)),
    }
}

fn parse(text: &str) -> Result<DocumentMut, Defect> {
    text.parse::<DocumentMut>().map_err(|error| {
        let before = error.span().and_then(|span| text.get(..span.start)).unwrap_or_default();
        let column = before.rsplit('\n').next().unwrap_or_default().chars().count() + 1;
        let what = error.message().lines().next().unwrap_or("it is no TOML").to_owned();
        Defect { at: Some((before.matches('\n').count() + 1, column)), what }
    })
}

fn switches<'a>(document: &'a DocumentMut, table: &str) -> Result<Option<&'a dyn TableLike>, Defect> {
    let Some(item) = document.get(table) else { return Ok(None) };
    let type_name = item.type_name();
    let is_no_table = || Defect::of_all(format!("\"{table}\" is of the type {type_name}, not a table"));
    item.as_table_like().map(Some).ok_or_else(is_no_table)
}

/// Gives a text that was edited the ends of lines that it had.
fn with_line_ends_of(before: &str, after: String) -> String {
    match before.contains("\r\n") {
        true => after.replace("\r\n", "\n").replace('\n', "\r\n"),
        false => after,
    }
}

/// Makes sure of a text that was edited, and gives it the ends of lines that it had.
fn checked(
    before: &str,
    after: String,
    table: &str,
    name: &str,
    switch: Option<&str>,
) -> Result<String, Defect> {
    let after = with_line_ends_of(before, after);
    match find(&after, table, name)?.value().as_deref() == switch {
        true => Ok(after),
        false => Err(unchangeable(table, name)),
    }
}

fn unchangeable(table: &str, name: &str) -> Defect {
    Defect::of_all(format!("{table}.{name} can't be changed here by a program"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn on(text: &str) -> String {
        set(text, "features", "hooks", "true").unwrap()
    }

    #[test]
    fn switch_is_added_in_the_style_of_the_text_and_goes_alone() {
        for (before, after) in [
            ("", "[features]\nhooks = true\n"),
            ("# only a comment", "# only a comment\n\n[features]\nhooks = true\n"),
            (
                "model = \"x\" # why\n\n[a.b]\nc = 1\n",
                "model = \"x\" # why\n\n[a.b]\nc = 1\n\n[features]\nhooks = true\n",
            ),
            (
                "[features] # mine\nweb = false # no\n\n[z]\n",
                "[features] # mine\nweb = false # no\nhooks = true\n\n[z]\n",
            ),
            ("features = { web = false }\n", "features = { web = false , hooks = true }\n"),
            ("features.web = false\n[z]\n", "features.web = false\nfeatures.hooks = true\n[z]\n"),
            ("[features]\r\nweb = 1\r\n", "[features]\r\nweb = 1\r\nhooks = true\r\n"),
            ("[features]\nhooks = false # for now\n", "[features]\nhooks = true # for now\n"),
        ] {
            assert_eq!(on(before), after, "{before:?}");
            assert_eq!(find(&on(before), "features", "hooks").unwrap(), Setting::Value("true".to_owned()));
        }
        for (before, with_parent, after) in [
            ("a = 1\n\n[features]\nhooks = true\n", true, "a = 1\n"),
            ("[features]\nhooks = true\n", false, "[features]\n"),
            ("[features]\nweb = 1 # one\nhooks = true\n# end\n", true, "[features]\nweb = 1 # one\n# end\n"),
            ("a = 1\n", true, "a = 1\n"),
        ] {
            assert_eq!(remove(before, "features", "hooks", with_parent).unwrap(), after, "{before:?}");
        }
    }

    #[test]
    fn table_is_added_at_the_end_and_goes_alone() {
        const NAMES: [&str; 2] = ["mcp_servers", "ours"];
        let value = r#"{"args":["mcp"],"command":"/a \"b\""}"#;
        let ours = "[mcp_servers.ours]\nargs = [\"mcp\"]\ncommand = '/a \"b\"'\n";
        for before in [
            "",
            "model = \"x\" # why\n",
            "a = 1\n\n[mcp_servers.other] # mine\ncommand = \"x\"\n\n[z]\nb = 2\n",
            "[mcp_servers.other]\ncommand = \"y\"\n\n# [mcp_servers.off]\n# command = \"kept\"\n",
        ] {
            let set = set_table(before, NAMES, value).unwrap();
            let gap = if before.is_empty() { "" } else { "\n" };
            assert_eq!(set, format!("{before}{gap}{ours}"));
            assert_eq!(find_table(&set, NAMES).unwrap(), Setting::Value(value.to_owned()));
            assert_eq!(remove_table(&set, NAMES, true).unwrap().trim_end(), before.trim_end());
            let followed = remove_table(&format!("{set}\n# next\n[next]\n"), NAMES, true).unwrap();
            assert_eq!(followed.trim_start(), format!("{before}\n# next\n[next]\n").trim_start());
            let other = value.replace("/a", "/c");
            assert_eq!(set_table(&set, NAMES, &other).unwrap().matches("[mcp_servers.ours]").count(), 1);
        }
        let replaced = r#"{"args":[],"command":"x","env":{"A":"b"},"n":1}"#;
        let set = set_table("a = 1\r\n", NAMES, replaced).unwrap();
        assert!(set.ends_with("env = { A = \"b\" }\r\nn = 1\r\n"), "{set:?}");
        for text in ["mcp_servers = 1\n", "[mcp_servers]\nours = 1\n", "mcp_servers = { a = {} }\n"] {
            assert!(set_table(text, NAMES, value).is_err(), "{text}");
        }
    }

    #[test]
    fn errors_and_other_types_are_named() {
        for (text, at, what) in [
            ("a = 1\nb = = 2\n", Some((2, 5)), ""),
            ("features = 7\n", None, "\"features\" is of the type integer, not a table"),
            ("[[features]]\na = 1\n", None, "\"features\" is of the type array of tables, not a table"),
            (
                "[features]\nhooks = \"yes\"\n",
                None,
                "\"features.hooks\" is of the type string, not a boolean",
            ),
        ] {
            let defect = find(text, "features", "hooks").unwrap_err();
            assert_eq!(defect.at, at, "{text}: {defect:?}");
            assert!(defect.what.starts_with(what) && !defect.what.is_empty(), "{text}: {defect:?}");
        }
        assert!(set("features = 7\n", "features", "hooks", "true").is_err());
    }
}
