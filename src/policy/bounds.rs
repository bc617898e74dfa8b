//! Bounds of what rules allow, in the terms of Landlock: directories that contain all allowed paths, and ports.
//!
//! Neighbour: `commands/record/landlock.rs` has the kernel refuse what is outside of them.

use super::net::AddressRule;
use super::patterns::{PathMatch, PathRule};
use super::rules::{CompiledPolicy, RuleWord};

/// Bounds outside of which rules allow nothing. Executions have none: for Landlock, a program's loader is executed, too.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Bounds {
    /// The paths at or beneath which changes are allowed; none if they are allowed everywhere.
    pub changed: Option<Vec<Vec<u8>>>,
    /// The same for reads.
    pub read: Option<Vec<Vec<u8>>>,
    /// The allowed ports of internet addresses; none if all are allowed.
    pub ports: Option<Vec<u16>>,
    /// Whether no abstract socket is allowed.
    pub without_abstract_sockets: bool,
}

impl Bounds {
    /// The words of the rules that these are the bounds of.
    pub fn words(&self) -> impl Iterator<Item = RuleWord> {
        let words = [
            (RuleWord::AllowWrite, self.changed.is_some()),
            (RuleWord::AllowRead, self.read.is_some()),
            (RuleWord::AllowNet, self.ports.is_some()),
            (RuleWord::AllowUnix, self.without_abstract_sockets),
        ];
        words.into_iter().filter_map(|(word, is_bound)| is_bound.then_some(word))
    }
}

impl CompiledPolicy {
    /// The bounds of these rules, and those of the rules that make them stricter: a use has to be within all of them.
    pub fn bounds(&self) -> Vec<Bounds> {
        self.both().map(CompiledPolicy::own_bounds).filter(|bounds| *bounds != Bounds::default()).collect()
    }

    fn own_bounds(&self) -> Bounds {
        let [net, unix] = [RuleWord::AllowNet, RuleWord::AllowUnix].map(|word| self.address_rules(word));
        let ports: Option<Vec<_>> = net.iter().map(|(_, rule)| rule.port()).collect();
        let is_of_path = |rule: &AddressRule| matches!(rule, AddressRule::Unix(Some(_)));
        Bounds {
            changed: prefixes(self.path_rules(RuleWord::AllowWrite)),
            read: prefixes(self.path_rules(RuleWord::AllowRead)),
            ports: ports.filter(|ports| !ports.is_empty()),
            without_abstract_sockets: !unix.is_empty() && unix.iter().all(|(_, rule)| is_of_path(rule)),
        }
    }
}

/// The literal paths that the patterns begin with; none if there is no rule, or one has no such path.
fn prefixes(rules: &[PathRule]) -> Option<Vec<Vec<u8>>> {
    let mut found = Vec::new();
    for rule in rules {
        match &rule.paths {
            PathMatch::Globs(globs) => found.extend(globs.iter().map(|glob| glob.prefix().to_vec())),
            PathMatch::Secrets(_) => return None,
        }
    }
    (!rules.is_empty()).then_some(found)
}

#[cfg(test)]
mod tests {
    use super::super::rules::{PolicyPlaces, RuleWords};
    use super::*;

    fn policy(rules: &[(RuleWord, &str)]) -> CompiledPolicy {
        let mut words = RuleWords::default();
        rules.iter().for_each(|(word, text)| words.add(*word, [text.as_bytes().to_vec()]));
        let places = PolicyPlaces { start: b"/w".to_vec(), ..PolicyPlaces::default() };
        CompiledPolicy::new(&words, &places, &|path| path.to_vec()).unwrap()
    }

    #[test]
    fn rules_that_allow_have_bounds() {
        use RuleWord::{AllowNet, AllowRead, AllowUnix, AllowWrite, DenyRead, DenyWrite};
        let rules = [
            (AllowWrite, "@workspace"),
            (AllowWrite, "/a/*/b"),
            (DenyWrite, ".git"),
            (AllowNet, "localhost:80"),
            (AllowUnix, "/run/s"),
        ];
        let bounds = Bounds {
            changed: Some(vec![b"/w".to_vec(), b"/a".to_vec()]),
            read: None,
            ports: Some(vec![80]),
            without_abstract_sockets: true,
        };
        assert_eq!(bounds.words().collect::<Vec<_>>(), [AllowWrite, AllowNet, AllowUnix]);
        assert_eq!(policy(&rules).bounds(), [bounds]);
        // A project's, too.
        assert_eq!(policy(&rules).and(policy(&rules[..1])).bounds().len(), 2);
        for unbound in
            [(DenyRead, "@secrets"), (AllowRead, "@secrets"), (AllowNet, "localhost"), (AllowUnix, "@name")]
        {
            assert_eq!(policy(&[unbound]).bounds(), [], "{unbound:?}");
        }
    }
}
