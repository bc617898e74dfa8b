//! The page: one file with all that it needs, which a browser shows without asking anybody for anything.
//!
//! Paths and diffs are in it as JSON, of which `page.js` shows what is unfolded: 50,000 elements would take a browser
//! seconds. The policy in the page allows that script and that style by their hashes, and nothing else.

use askama::Template;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde::Serialize;
use sha2::{Digest as _, Sha256};

use super::super::show::cut;
use super::diffs::PathDiff;
use super::model::{Section, ShownAddress, ShownPath, ShownProcess};

const STYLE: &str = include_str!("page.css");
const SCRIPT: &str = include_str!("page.js");

/// The values of the template, in which all are escaped but style, script and embedded JSON.
#[derive(Template)]
#[template(path = "page.html")]
struct Page<'a> {
    sections: &'a [Section],
    /// The lists and the diffs of each section.
    embedded: Vec<(String, String)>,
    style: &'static str,
    script: &'static str,
    style_hash: String,
    script_hash: String,
}

impl Page<'_> {
    fn short(&self, command: &str) -> String {
        cut(command, 80)
    }

    fn grade(&self, section: &Section) -> &'static str {
        if section.succeeded { "good" } else { "bad" }
    }
}

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
    let embedded = sections.iter().map(|section| {
        let Section { changes, reads, processes, network, span, diffs, .. } = section;
        let lists = embed(&Lists { changes, reads, processes, network, span: *span })?;
        Ok((lists, embed(&diffs.iter().collect::<Vec<&PathDiff>>())?))
    });
    let page = Page {
        sections,
        embedded: embedded.collect::<serde_json::Result<_>>()?,
        style: STYLE,
        script: SCRIPT,
        style_hash: hash(STYLE),
        script_hash: hash(SCRIPT),
    };
    Ok(page.render()?)
}

/// JSON that is the same to who parses it, without the characters that end a `script` element or mean something else to
/// a parser of HTML. In JSON they occur inside of strings only.
fn embed(value: &impl Serialize) -> serde_json::Result<String> {
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
    Ok(text)
}

/// The hash of a script or style, as a source of a Content-Security-Policy has it.
fn hash(text: &str) -> String {
    BASE64.encode(Sha256::digest(text))
}
