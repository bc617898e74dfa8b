//! The rules of the command line and of a policy file, as one list.

use serde::Deserialize;

use crate::cli::PolicyRules;
use crate::commands::config::load_toml;
use crate::policy::RuleWords;

/// A policy file. Unknown keys are refused, so that a slip is noticed.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
struct PolicyFile {
    allow_write: Vec<String>,
    deny_write: Vec<String>,
    deny_read: Vec<String>,
    deny_net: DenyNet,
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
    let both = |given: &[std::ffi::OsString], from_file: Vec<String>| {
        let given = given.iter().map(|text| text.as_encoded_bytes().to_vec());
        given.chain(from_file.into_iter().map(String::into_bytes)).collect()
    };
    Ok(RuleWords {
        allow_write: both(&rules.allow_write, file.allow_write),
        deny_write: both(&rules.deny_write, file.deny_write),
        deny_read: both(&rules.deny_read, file.deny_read),
        deny_net: both(&rules.deny_net, file.deny_net.into()),
    })
}
