//! `--enforce`: what the rules forbid is refused before it happens, and the command goes on.

mod agreement;
mod contents;
mod files;
mod landlock;
mod network;
mod new_names;
mod options;
mod programs;
mod session;
mod side_ways;
mod swaps;
mod tricks;

use std::process::Output;

use serde_json::Value;

use crate::support::{Place, json};

/// Records `sh -c script` in a place, with rules that are enforced.
fn enforced(place: &Place, rules: &[&str], script: &str) -> Output {
    place.record_with(&[&["--enforce"], rules].concat(), script)
}

/// What was refused, in short and sorted: the rule, the path below the place or else the address, how.
fn refused(place: &Place) -> Vec<String> {
    let manifest = json(&place.out.join("manifest.json"));
    let mut lines = refused_of(place, &manifest);
    lines.sort();
    lines.dedup();
    lines
}

fn refused_of(place: &Place, manifest: &Value) -> Vec<String> {
    let line = |refused: &Value| {
        let text = |key: &str| refused[key].as_str().unwrap_or_default();
        let subject = match refused["family"].as_str() {
            Some("unix") | None => below(place, text("path")),
            Some(_) => format!("{}:{}", text("address"), refused["port"]),
        };
        format!("{} {subject} {}", text("rule"), text("operation"))
    };
    manifest["refused"].as_array().into_iter().flatten().map(line).collect()
}

/// A path as it is called below a place.
fn below(place: &Place, path: &str) -> String {
    let base = place.base().to_str().unwrap();
    match path.strip_prefix(base) {
        Some("") => ".".to_owned(),
        Some(rest) => rest.trim_start_matches('/').to_owned(),
        None => path.to_owned(),
    }
}
