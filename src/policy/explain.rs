//! Which rule decides on a path or an address, and why.
//!
//! Neighbour: `rules.rs` decides.

use std::collections::BTreeSet;

use super::names::FileNames;
use super::net::AskedAddress;
use super::patterns::PathMatch;
use super::rules::{CompiledPolicy, Decision, PathUseKind, RuleWord};
use crate::snapshot::secrets::ContentSign;
use crate::snapshot::{Present, Snapshot};

/// What rules say of a way to use a path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PathExplanation {
    /// The way.
    pub kind: PathUseKind,
    /// What they say.
    pub decision: Decision,
    /// The other name of the file that the decision is about.
    pub other_name: Option<Vec<u8>>,
    /// What the rule means, as a pattern of absolute paths; none of secrets.
    pub pattern: Option<Vec<u8>>,
    /// The rule that allows what another one denies.
    pub outweighed: Option<(RuleWord, Vec<u8>)>,
}

impl CompiledPolicy {
    /// What the rules say of each way to use a path, at which `state` is, by the names of its file that are known: by the
    /// rules, and by the recording if there is one.
    pub fn explain(
        &self,
        path: &[u8],
        state: Option<&Present>,
        snapshot: Option<&Snapshot>,
        has: &dyn Fn(ContentSign) -> bool,
    ) -> Vec<PathExplanation> {
        let files = snapshot.map(|snapshot| FileNames::of(snapshot.files(), &self.named)).unwrap_or_default();
        let by_rule = state.into_iter().flat_map(|state| FileNames::by_rule(&self.named, state));
        let mut names: Vec<(&[u8], bool)> = by_rule.map(|name| (name, false)).collect();
        let known = snapshot.and_then(|snapshot| snapshot.files().iter().find(|record| record.path == path));
        names.extend(known.into_iter().flat_map(|record| files.others(&record.path)));
        PathUseKind::ALL.into_iter().map(|kind| self.explain_use(kind, path, &names, has)).collect()
    }

    fn explain_use(
        &self,
        kind: PathUseKind,
        path: &[u8],
        others: &[(&[u8], bool)],
        has: &dyn Fn(ContentSign) -> bool,
    ) -> PathExplanation {
        let decide = |name: &[u8]| self.decide(kind, name, has);
        let decision = decide(path);
        let mut explanation =
            PathExplanation { kind, decision, other_name: None, pattern: None, outweighed: None };
        if explanation.decision.clone().forbidden().is_none() {
            let by_other = others.iter().find_map(|(name, is_from_before)| match decide(name) {
                decision @ Decision::Denied(..) => Some((name, decision)),
                decision @ Decision::NotAllowed(_) if *is_from_before => Some((name, decision)),
                _ => None,
            });
            if let Some((name, decision)) = by_other {
                explanation.other_name = Some(name.to_vec());
                explanation.decision = decision;
            }
        }
        if let Decision::Denied(word, text) | Decision::Allowed(word, text) = &explanation.decision {
            let name = explanation.other_name.as_deref().unwrap_or(path);
            let mut rules = self.both().flat_map(|rules| rules.path_rules(*word));
            let rule = rules.find(|rule| rule.text == *text);
            explanation.pattern = rule
                .and_then(|rule| match &rule.paths {
                    PathMatch::Globs(globs) => globs.iter().find(|glob| glob.matches(name)),
                    PathMatch::Secrets(_) => None,
                })
                .map(|glob| glob.text().to_vec());
        }
        if let Decision::Denied(..) = explanation.decision {
            let (allow, _) = kind.words();
            let allows = self.path_rules(allow).iter().find(|rule| rule.paths.matches(path, |_| false));
            explanation.outweighed = allows.map(|rule| (allow, rule.text.clone()));
        }
        explanation
    }

    /// What the rules say of a connection to an address; for any port, by the ports that rules name and all others (none).
    pub fn explain_address(&self, address: &AskedAddress) -> Vec<(Option<u16>, Decision)> {
        let decide = |port| self.decide_address(&address.connection(port));
        if let AskedAddress::Unix(_) | AskedAddress::Inet(_, Some(_)) = address {
            return vec![(None, decide(None))];
        }
        let named: BTreeSet<u16> = self.ports().collect();
        let other = (1..=u16::MAX).find(|port| !named.contains(port));
        let others = decide(other);
        let named = named.into_iter().map(|port| (Some(port), decide(Some(port))));
        named.filter(|(_, decision)| *decision != others).chain([(None, others.clone())]).collect()
    }
}
