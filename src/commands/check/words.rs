//! The rules of the command line and of a policy file, as one list.

use serde::Deserialize;

use crate::cli::PolicyRules;
use crate::commands::config::load_toml;
use crate::policy::{RuleWord, RuleWords};

/// A policy file. Unknown keys are refused, so that a slip is noticed.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
struct PolicyFile {
    allow_write: Vec<String>,
    deny_write: Vec<String>,
    allow_read: Vec<String>,
    deny_read: Vec<String>,
    allow_exec: Vec<String>,
    deny_exec: Vec<String>,
    allow_net: Vec<String>,
    deny_net: DenyNet,
    allow_unix: Vec<String>,
}

/// `true` is all addresses, as the option without a value.
#[derive(Debug, Deserialize)]
#[serde(untagged, expecting = "deny-net is true, or a list of addresses")]
enum DenyNet {
    All(bool),
    Some(Vec<String>),
}

impl Default for DenyNet {
    fn default() -> DenyNet {
        DenyNet::All(false)
    }
}

impl From<DenyNet> for Vec<String> {
    fn from(rule: DenyNet) -> Vec<String> {
        match rule {
            DenyNet::All(true) => vec!["*".to_owned()],
            DenyNet::All(false) => Vec::new(),
            DenyNet::Some(hosts) => hosts,
        }
    }
}

/// The rules that were given.
///
/// # Errors
/// One sentence, which names the policy file and the fault.
pub fn rule_words(rules: &PolicyRules) -> Result<RuleWords, String> {
    let file: PolicyFile = rules.policy.as_deref().map(load_toml).transpose()?.unwrap_or_default();
    let mut words = RuleWords::default();
    for (word, given, from_file) in [
        (RuleWord::AllowWrite, &rules.allow_write, file.allow_write),
        (RuleWord::DenyWrite, &rules.deny_write, file.deny_write),
        (RuleWord::AllowRead, &rules.allow_read, file.allow_read),
        (RuleWord::DenyRead, &rules.deny_read, file.deny_read),
        (RuleWord::AllowExec, &rules.allow_exec, file.allow_exec),
        (RuleWord::DenyExec, &rules.deny_exec, file.deny_exec),
        (RuleWord::AllowNet, &rules.allow_net, file.allow_net),
        (RuleWord::DenyNet, &rules.deny_net, file.deny_net.into()),
        (RuleWord::AllowUnix, &rules.allow_unix, file.allow_unix),
    ] {
        words.add(word, given.iter().map(|text| text.as_encoded_bytes().to_vec()));
        words.add(word, from_file.into_iter().map(String::into_bytes));
    }
    Ok(words)
}
