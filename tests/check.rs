//! Rules of what a command may do: `check`, and the same words on a recording.

mod calls;
mod policy;
mod programs;
mod reads;
mod recording;
mod ways;

use serde_json::Value;

use crate::support::{Place, Run};

/// The findings of `check --json`, in short: the rule, the path below the place or else the address, how.
fn findings(place: &Place, run: &Run) -> Vec<String> {
    let json: Value = serde_json::from_str(&run.stdout).unwrap_or_else(|error| panic!("{error}: {run:#?}"));
    assert_eq!(run.status, i32::from(json["verdict"] != "pass"), "{run:#?}");
    let base = format!("{}/", place.base().display());
    let line = |finding: &Value| {
        let word = finding["rule"].as_str().unwrap();
        let Some(path) = finding["path"].as_str() else { return format!("{word} {}", finding["network"]) };
        let path = path.strip_prefix(&base).unwrap_or(path);
        let operations: Vec<_> = finding["operations"].as_array().into_iter().flatten().collect();
        let operations: Vec<_> = operations.into_iter().map(|word| word.as_str().unwrap()).collect();
        format!("{word} {path} {}", operations.join(","))
    };
    json["findings"].as_array().unwrap().iter().map(line).collect()
}
