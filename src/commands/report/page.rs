//! The page: one file with all that it needs, which a browser shows without asking anybody for anything.
//!
//! Paths and diffs are in it as JSON, of which `page.js` shows what is unfolded: 50,000 elements would take a browser
//! seconds. The policy in the page allows that script and that style by their hashes, and nothing else.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use minijinja::value::{Serde, Value};
use minijinja::{Environment, context};
use serde::Serialize;
use sha2::{Digest as _, Sha256};

use super::super::show::cut;
use super::diffs::PathDiff;
use super::model::{Section, ShownAddress, ShownPath, ShownProcess};

const TEMPLATE: &str = include_str!("page.html");
const STYLE: &str = include_str!("page.css");
const SCRIPT: &str = include_str!("page.js");

/// What the script shows of a recording.
#[derive(Serialize)]
struct Lists<'a> {
    changes: &'a [ShownPath],
    reads: &'a [ShownPath],
    processes: &'a [ShownProcess],
    network: &'a [ShownAddress],
    span: Option<u64>,
}

/// The page of all `sections`.
pub fn page(sections: &[Section]) -> anyhow::Result<String> {
    let mut environment = Environment::new();
    environment.set_undefined_behavior(minijinja::UndefinedBehavior::Strict);
    environment.add_filter("truncated", |text: &str| cut(text, 80));
    // Of a template of this name all values are escaped.
    environment.add_template("page.html", TEMPLATE)?;
    let embedded = sections.iter().map(|section| {
        let Section { changes, reads, processes, network, span, diffs, .. } = section;
        let lists = embed(&Lists { changes, reads, processes, network, span: *span })?;
        let diffs = embed(&diffs.iter().collect::<Vec<&PathDiff>>())?;
        Ok(context! { lists, diffs })
    });
    let embedded = embedded.collect::<serde_json::Result<Vec<Value>>>()?;
    let page = environment.get_template("page.html")?.render(context! {
        sections => Value::from(Serde(sections)),
        embedded,
        style => Value::from_safe_string(STYLE.to_owned()),
        script => Value::from_safe_string(SCRIPT.to_owned()),
        style_hash => hash(STYLE),
        script_hash => hash(SCRIPT),
        version => env!("CARGO_PKG_VERSION"),
    })?;
    Ok(page)
}

/// JSON that is the same to who parses it, without the characters that end a `script` element or mean something else to
/// a parser of HTML. In JSON they occur inside of strings only.
fn embed(value: &impl Serialize) -> serde_json::Result<Value> {
    let json = serde_json::to_string(value)?;
    let mut text = String::with_capacity(json.len() + json.len() / 16);
    let mut rest = json.as_str();
    while let Some(at) = rest.find(['<', '>', '&']) {
        text += &rest[..at];
        text += match rest.as_bytes()[at] {
            b'<' => "\\u003c",
            b'>' => "\\u003e",
            _ => "\\u0026",
        };
        rest = &rest[at + 1..];
    }
    text += rest;
    Ok(Value::from_safe_string(text))
}

/// The hash of a script or style as a source of a Content-Security-Policy.
fn hash(text: &str) -> Value {
    Value::from_safe_string(format!("'sha256-{}'", BASE64.encode(Sha256::digest(text))))
}
