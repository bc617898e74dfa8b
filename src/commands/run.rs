//! `run`: records a command into the library, or recalls an earlier run of it.
//!
//! `record.rs` does the work, as for a recording into a directory.

use super::exit::Exit;
use super::record::{self, Destination, RecallRequest, has_rules};
use crate::cli::{ConsistencyChoice, KeepLevel, RecallMode, RecallOptions, RecordingOptions, Run};
use crate::commands::config;
use crate::library::is_id;
use crate::recall::refusal::Allowed;
use crate::recall::store::Consistency;
use crate::snapshot::printable;

/// Runs `run`, whose status is the command's.
pub fn run(args: Run) -> Exit {
    let Run { recall, options } = args;
    // Nothing is run if an option is wrong, whatever --if-unavailable says.
    match check_names(&options).and_then(|()| request(&recall, &options)) {
        Ok(request) => record::run(options, Destination::Library, request),
        Err(why) => {
            record::Messages::new(options.quiet).say(&why);
            Exit::Failure
        }
    }
}

/// Refuses a name that would mean something else, and a path that is none.
///
/// # Errors
/// One sentence, which names the option.
fn check_names(options: &RecordingOptions) -> Result<(), String> {
    let is_taken = |name: &&str| is_id(name) || name.starts_with('@') || name.contains('/');
    if let Some(name) = options.name.as_deref().filter(is_taken) {
        let shown = printable(name.as_bytes());
        return Err(format!(
            "--name {shown} would be taken for an identifier or a directory: choose another name"
        ));
    }
    if options.ignore.iter().any(|path| path.is_empty()) {
        return Err("--ignore needs a path: it is empty".to_owned());
    }
    Ok(())
}

/// What is asked for of a recall, if anything.
///
/// # Errors
/// One sentence: the options or the configuration make no sense.
fn request(recall: &RecallOptions, options: &RecordingOptions) -> Result<Option<RecallRequest>, String> {
    let Some(mode) = recall.recall else { return Ok(None) };
    let consistency = match (recall.consistency, recall.ttl) {
        (ConsistencyChoice::Always, None) => Consistency::Always,
        (ConsistencyChoice::Lazy, Some(ttl)) => Consistency::Younger(ttl),
        (ConsistencyChoice::Always, Some(_)) => {
            return Err("--ttl is for --consistency lazy".to_owned());
        }
        (ConsistencyChoice::Lazy, None) => {
            return Err("--consistency lazy needs --ttl: how old an earlier run may be".to_owned());
        }
    };
    let why = match options {
        _ if options.keep == Some(KeepLevel::Undo) => {
            Some("--recall needs the bytes after each change: --keep changes (its default) or all")
        }
        _ if has_rules(options)? => Some(
            "--recall can't be combined with rules, also those of [policy]: what is recalled is not judged",
        ),
        _ => None,
    };
    if let Some(why) = why {
        return Err(why.to_owned());
    }
    let config::RecallSettings { limits, ignored_variables, trusted } = config::recall()?;
    let allowed = Allowed { failures: recall.recall_failures, random: recall.allow_random, paths: trusted };
    Ok(Some(RecallRequest {
        checks: mode == RecallMode::Check,
        consistency,
        allowed,
        limits,
        ignored_variables,
    }))
}
