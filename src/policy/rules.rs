//! The rules as the user gives them, and what they mean for one recording.
//!
//! Neighbours: `glob.rs` and `net.rs` have the patterns, `judge.rs` applies them.

use std::collections::BTreeMap;

use super::glob::PathGlob;
use super::judge::Forbidden;
use super::names::{NamedFile, inode_of};
use super::net::AddressRule;
use super::patterns::{PathMatch, PathRule, PatternMaker};
use crate::snapshot::secrets::{ContentSign, Secrets};
use crate::snapshot::wire::names;
use crate::snapshot::{Header, NetworkAddress, NetworkUse, Present, printable};

/// The word that a rule begins with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[allow(missing_docs, reason = "the words are those of the command line")]
pub enum RuleWord {
    AllowWrite,
    DenyWrite,
    AllowRead,
    DenyRead,
    AllowExec,
    DenyExec,
    AllowNet,
    DenyNet,
    AllowUnix,
}

names!(RuleWord {
    AllowWrite = "allow-write",
    DenyWrite = "deny-write",
    AllowRead = "allow-read",
    DenyRead = "deny-read",
    AllowExec = "allow-exec",
    DenyExec = "deny-exec",
    AllowNet = "allow-net",
    DenyNet = "deny-net",
    AllowUnix = "allow-unix",
});

impl RuleWord {
    /// The word with the rule that follows it, if that is one that denies.
    pub fn with(self, text: Option<&[u8]>) -> String {
        let text = text.map(|text| format!(" {}", String::from_utf8_lossy(text)));
        format!("{}{}", self.name(), text.unwrap_or_default())
    }
}

/// The rules as the user gives them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RuleWords(BTreeMap<RuleWord, Vec<Vec<u8>>>);

impl RuleWords {
    /// Adds rules of a word.
    pub fn add(&mut self, word: RuleWord, texts: impl IntoIterator<Item = Vec<u8>>) {
        self.0.entry(word).or_default().extend(texts);
    }

    /// Adds other rules.
    pub fn extend(&mut self, other: &RuleWords) {
        other.0.iter().for_each(|(word, texts)| self.add(*word, texts.iter().cloned()));
    }

    /// The rules of a word.
    pub fn of(&self, word: RuleWord) -> &[Vec<u8>] {
        self.0.get(&word).map_or(&[], Vec::as_slice)
    }

    /// Whether there is no rule.
    pub fn is_empty(&self) -> bool {
        self.0.values().all(Vec::is_empty)
    }

    /// All rules, each behind its word.
    pub fn lines(&self) -> Vec<String> {
        self.0.iter().flat_map(|(word, texts)| texts.iter().map(|text| word.with(Some(text)))).collect()
    }
}

/// What rules about paths allow or deny.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PathUseKind {
    /// Every change.
    Write,
    /// Of the content, by an execution too; where reading is allowed by rules, also listings.
    Read,
    /// As a program, or as the interpreter of one.
    Execute,
}

names!(PathUseKind { Write = "write", Read = "read", Execute = "exec" });

/// Whether a name alone is taken for a secret that needs this sign: a private key is one by its content, whatever its name.
fn is_sign_by_name(sign: ContentSign) -> bool {
    sign != ContentSign::Key
}

impl PathUseKind {
    /// The uses for which a new name of a file is judged: to read the file, and by a hard link also to change it. A rename is
    /// itself judged as a change.
    pub fn by_new_name(is_link: bool) -> impl Iterator<Item = PathUseKind> {
        std::iter::once(PathUseKind::Read).chain(is_link.then_some(PathUseKind::Write))
    }

    /// The words of its rules: the one that allows, and the one that denies.
    pub fn words(self) -> (RuleWord, RuleWord) {
        match self {
            PathUseKind::Write => (RuleWord::AllowWrite, RuleWord::DenyWrite),
            PathUseKind::Read => (RuleWord::AllowRead, RuleWord::DenyRead),
            PathUseKind::Execute => (RuleWord::AllowExec, RuleWord::DenyExec),
        }
    }
}

/// What rules say of a use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decision {
    /// No rule is about such uses.
    Free,
    /// A rule allows it.
    Allowed(RuleWord, Vec<u8>),
    /// A rule denies it.
    Denied(RuleWord, Vec<u8>),
    /// There are rules of this word, which allows, and none of them matches.
    NotAllowed(RuleWord),
}

impl Decision {
    /// Why it is forbidden: the word, and the rule if one denies it.
    pub fn forbidden(self) -> Option<(RuleWord, Option<Vec<u8>>)> {
        match self {
            Decision::Free | Decision::Allowed(..) => None,
            Decision::Denied(word, text) => Some((word, Some(text))),
            Decision::NotAllowed(word) => Some((word, None)),
        }
    }

    /// The same for one name of a file or socket: one that it got later is not one by which it was found.
    pub(super) fn forbidden_by_name(self, is_from_before: bool) -> Option<Forbidden> {
        match self {
            Decision::NotAllowed(_) if !is_from_before => None,
            decision => decision.forbidden(),
        }
    }
}

/// The places that patterns are relative to.
#[derive(Debug, Clone, Default)]
pub struct PolicyPlaces {
    /// The directory that the command was started in.
    pub start: Vec<u8>,
    /// The working tree that this was in.
    pub working_tree: Option<Vec<u8>>,
    /// Git's directory for that, where it lies outside.
    pub git_directory: Option<Vec<u8>>,
    /// The home directory.
    pub home: Option<Vec<u8>>,
    /// `$TMPDIR`.
    pub temporary: Option<Vec<u8>>,
    /// The directories in which programs are found by their names, from `$PATH`.
    pub programs: Vec<Vec<u8>>,
    /// The files that hold secrets.
    pub secrets: Secrets,
}

impl PolicyPlaces {
    /// The places of a recording, with the table of secrets as it is.
    pub fn of(header: &Header) -> PolicyPlaces {
        PolicyPlaces {
            start: header.start_cwd.clone(),
            working_tree: header.working_tree.clone(),
            git_directory: header.git_directory.clone(),
            home: header.home.clone(),
            temporary: header.temporary_directory.clone(),
            programs: Vec::new(),
            secrets: Secrets::default(),
        }
    }

    /// The directory of the project.
    pub fn workspace(&self) -> &[u8] {
        self.working_tree.as_deref().unwrap_or(&self.start)
    }
}

/// The rules for one recording.
#[derive(Debug, Clone, Default)]
pub struct CompiledPolicy {
    paths: BTreeMap<RuleWord, Vec<PathRule>>,
    addresses: BTreeMap<RuleWord, Vec<(Vec<u8>, AddressRule)>>,
    /// What the rules that deny name by a path, as it was when they were read.
    pub(super) named: Vec<NamedFile>,
    /// Whether the recording was made with these rules, so that it has every read that they forbid.
    pub(super) is_of_recording: bool,
    /// Whether it was made to find everything that rules would have to allow.
    allows_nothing: bool,
    /// Rules that allow: what is allowed must be so by these, too.
    stricter: Option<Box<CompiledPolicy>>,
}

impl CompiledPolicy {
    /// What the rules mean for a recording that was made in these places. `resolve` tells where a path leads now.
    ///
    /// # Errors
    /// A sentence that names the rule and what is wrong with it.
    pub fn new(
        words: &RuleWords,
        places: &PolicyPlaces,
        resolve: &dyn Fn(&[u8]) -> Vec<u8>,
    ) -> Result<CompiledPolicy, String> {
        let mut policy = CompiledPolicy::default();
        for (&word, texts) in &words.0 {
            let patterns = PatternMaker { places, resolve, word };
            for text in texts {
                let wrong = |why: String| wrong(word, text, &why);
                let address = match word {
                    RuleWord::AllowNet => AddressRule::parse_inet(text),
                    RuleWord::DenyNet => AddressRule::parse(text, |path| patterns.globs(path)),
                    RuleWord::AllowUnix => AddressRule::parse_unix(text, |path| patterns.paths(path)),
                    RuleWord::AllowWrite
                    | RuleWord::DenyWrite
                    | RuleWord::AllowRead
                    | RuleWord::DenyRead
                    | RuleWord::AllowExec
                    | RuleWord::DenyExec => {
                        let paths = patterns.paths(text).map_err(wrong)?;
                        let rule = PathRule { text: text.clone(), paths };
                        policy.paths.entry(word).or_default().push(rule);
                        continue;
                    }
                };
                policy.addresses.entry(word).or_default().push((text.clone(), address.map_err(wrong)?));
            }
        }
        Ok(policy)
    }

    /// The same rules and other ones, which make them stricter: what one of both denies is denied, and what is allowed must be
    /// so by both.
    #[must_use]
    pub fn and(mut self, mut other: CompiledPolicy) -> CompiledPolicy {
        for (_, word) in PathUseKind::ALL.map(PathUseKind::words) {
            let rules = other.paths.remove(&word).unwrap_or_default();
            self.paths.entry(word).or_default().extend(rules);
        }
        let denied = other.addresses.remove(&RuleWord::DenyNet).unwrap_or_default();
        self.addresses.entry(RuleWord::DenyNet).or_default().extend(denied);
        self.named.append(&mut other.named);
        self.stricter = Some(Box::new(other));
        self
    }

    /// These rules, and those that make them stricter.
    pub(super) fn both(&self) -> impl Iterator<Item = &CompiledPolicy> {
        std::iter::once(self).chain(self.stricter.as_deref())
    }

    /// The same rules, which mean the files that they name by any other name, too. `state` tells what is at a path now.
    #[must_use]
    pub fn of_files(mut self, state: &dyn Fn(&[u8]) -> Option<Present>) -> CompiledPolicy {
        let globs = |paths: &PathMatch| match paths {
            PathMatch::Globs(globs) => globs.clone(),
            PathMatch::Secrets(_) => Vec::new(),
        };
        let denying = PathUseKind::ALL.into_iter().flat_map(|kind| self.path_rules(kind.words().1));
        let sockets = self.address_rules(RuleWord::DenyNet).iter().filter_map(|(_, rule)| rule.paths());
        let named = |glob: PathGlob| {
            let path = glob.literal_path()?.to_vec();
            Some(NamedFile { state: state(&path)?, path })
        };
        let paths = denying.map(|rule| &rule.paths).chain(sockets);
        self.named = paths.flat_map(globs).filter_map(named).collect();
        self
    }

    /// The same rules, and of each word that allows one that matches nothing.
    #[must_use]
    pub(super) fn allowing_nothing(mut self) -> CompiledPolicy {
        let nothing = || PathMatch::Globs(Vec::new());
        for kind in PathUseKind::ALL {
            let rule = PathRule { text: Vec::new(), paths: nothing() };
            self.paths.entry(kind.words().0).or_default().push(rule);
        }
        for word in [RuleWord::AllowNet, RuleWord::AllowUnix] {
            self.addresses.entry(word).or_default().push((Vec::new(), AddressRule::Unix(Some(nothing()))));
        }
        self.allows_nothing = true;
        self
    }

    /// The same rules, for a recording that is made with them.
    #[must_use]
    pub fn of_recording(mut self) -> CompiledPolicy {
        self.is_of_recording = true;
        self
    }

    /// The rules about paths that begin with a word.
    pub(super) fn path_rules(&self, word: RuleWord) -> &[PathRule] {
        self.paths.get(&word).map_or(&[], Vec::as_slice)
    }

    pub(super) fn address_rules(&self, word: RuleWord) -> &[(Vec<u8>, AddressRule)] {
        self.addresses.get(&word).map_or(&[], Vec::as_slice)
    }

    /// The ports that rules name.
    pub(super) fn ports(&self) -> impl Iterator<Item = u16> {
        self.both().flat_map(|rules| rules.addresses.values().flatten()).filter_map(|(_, rule)| rule.port())
    }

    /// Whether there is a rule with a word.
    pub(super) fn has(&self, word: RuleWord) -> bool {
        self.both().any(|rules| !rules.path_rules(word).is_empty() || !rules.address_rules(word).is_empty())
    }

    /// Whether there is a rule about such uses of paths.
    pub fn judges(&self, kind: PathUseKind) -> bool {
        let (allow, deny) = kind.words();
        self.has(allow) || self.has(deny)
    }

    /// Whether there is a rule about socket addresses.
    pub fn judges_addresses(&self) -> bool {
        [RuleWord::AllowNet, RuleWord::DenyNet, RuleWord::AllowUnix].into_iter().any(|word| self.has(word))
    }

    /// A rule about such uses of paths, if there is one: the one by which a path is forbidden that can't be named.
    pub fn first_rule(&self, kind: PathUseKind) -> Option<String> {
        let (allow, deny) = kind.words();
        match self.path_rules(deny) {
            _ if self.has(allow) => Some(allow.with(None)),
            [rule, ..] => Some(deny.with(Some(&rule.text))),
            [] => None,
        }
    }

    /// The files and sockets that rules which deny name by a path, by device and inode number when the rules were read.
    pub fn named_files(&self) -> impl Iterator<Item = (&[u8], (u64, u64))> {
        self.named.iter().filter_map(|file| Some((file.path.as_slice(), inode_of(&file.state)?)))
    }

    /// Whether a path may not be read, as far as its name tells.
    pub fn may_forbid_reading(&self, path: &[u8]) -> bool {
        self.decide_by_name(PathUseKind::Read, path).forbidden().is_some()
    }

    /// What the rules say of a use of a path. `has` tells whether the content of the file has what makes it a secret, for
    /// rules that deny; it is asked only for reads, since any file may be changed to a private key.
    pub fn decide(&self, kind: PathUseKind, path: &[u8], has: &dyn Fn(ContentSign) -> bool) -> Decision {
        let (allow, deny) = kind.words();
        let has = if kind == PathUseKind::Read { has } else { &is_sign_by_name };
        let denies = |rule: &&PathRule| rule.paths.matches(path, has);
        self.decided(allow, deny, denies, |rule| rule.paths.matches(path, |_| false))
    }

    /// What the rules say of a use of a path, as far as its name tells.
    pub fn decide_by_name(&self, kind: PathUseKind, path: &[u8]) -> Decision {
        self.decide(kind, path, &is_sign_by_name)
    }

    /// Why the file at a path may not get the name `to`, by which a later command could use it: the path forbids that, and the
    /// name does not. `is_from_before` says whether the file had the path before the command.
    pub fn forbids_name(
        &self,
        kind: PathUseKind,
        from: &[u8],
        is_from_before: bool,
        to: &[u8],
        has: &dyn Fn(ContentSign) -> bool,
    ) -> Option<Forbidden> {
        // By any name, a private key is one.
        let has_by_name = |sign| is_sign_by_name(sign) && has(sign);
        let decision = self.decide(kind, from, &has_by_name);
        // What may not be changed by such a rule gets no other name at all.
        let is_denied = kind == PathUseKind::Write && matches!(decision, Decision::Denied(..));
        let forbidden = decision.forbidden_by_name(is_from_before).filter(|_| !is_denied)?;
        let is_allowed = || self.decide(kind, to, has).forbidden().is_none();
        (self.allows_nothing || is_allowed()).then_some(forbidden)
    }

    /// What the rules say of a use of something beneath a directory.
    pub fn decide_beneath(&self, kind: PathUseKind, directory: &[u8]) -> Decision {
        let (allow, deny) = kind.words();
        let denies = |rule: &&PathRule| rule.paths.may_match_beneath(directory);
        self.decided(allow, deny, denies, |rule| rule.paths.matches_all_beneath(directory))
    }

    fn decided(
        &self,
        allow: RuleWord,
        deny: RuleWord,
        denies: impl Fn(&&PathRule) -> bool,
        allows: impl Fn(&&PathRule) -> bool,
    ) -> Decision {
        if let Some(rule) = self.path_rules(deny).iter().find(denies) {
            return Decision::Denied(deny, rule.text.clone());
        }
        let mut decision = Decision::Free;
        for rules in self.both().map(|rules| rules.path_rules(allow)).filter(|rules| !rules.is_empty()) {
            match rules.iter().find(&allows) {
                Some(rule) => decision = Decision::Allowed(allow, rule.text.clone()),
                None => return Decision::NotAllowed(allow),
            }
        }
        decision
    }

    /// What the rules say of the use of an address.
    pub fn decide_address(&self, used: &NetworkUse) -> Decision {
        let matches = |(_, rule): &&(Vec<u8>, AddressRule)| rule.matches(used);
        if let Some((text, _)) = self.address_rules(RuleWord::DenyNet).iter().find(matches) {
            return Decision::Denied(RuleWord::DenyNet, text.clone());
        }
        let allow = match &used.address {
            // The kernel chooses the name of an unnamed socket.
            NetworkAddress::Unix(name) if name.is_empty() => return Decision::Free,
            NetworkAddress::Unix(_) => RuleWord::AllowUnix,
            NetworkAddress::Other(family) if family == "netlink" => return Decision::Free,
            NetworkAddress::Inet(_) | NetworkAddress::Inet6(_) | NetworkAddress::Other(_) => {
                RuleWord::AllowNet
            }
        };
        let mut decision = Decision::Free;
        for rules in self.both().map(|rules| rules.address_rules(allow)).filter(|rules| !rules.is_empty()) {
            match rules.iter().find(matches) {
                Some((text, _)) => decision = Decision::Allowed(allow, text.clone()),
                None => return Decision::NotAllowed(allow),
            }
        }
        decision
    }

    /// Why a socket address may not be used, if so, also by the other names of its socket, each with whether it had that name
    /// before the command.
    pub fn forbids_address<'n>(
        &self,
        used: &NetworkUse,
        others: impl IntoIterator<Item = (&'n [u8], bool)>,
    ) -> Option<Forbidden> {
        let by_other_name = |(name, is_from_before): (&[u8], bool)| {
            let address = NetworkAddress::Unix(name.to_vec());
            let decision = self.decide_address(&NetworkUse { address, ..used.clone() });
            decision.forbidden_by_name(is_from_before)
        };
        let by_its_own = self.decide_address(used).forbidden();
        by_its_own.or_else(|| others.into_iter().find_map(by_other_name))
    }
}

fn wrong(word: RuleWord, text: &[u8], why: &str) -> String {
    format!("--{} {}: the rule {why}", word.name(), printable(text))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn places() -> PolicyPlaces {
        PolicyPlaces {
            start: b"/w/sub".to_vec(),
            working_tree: Some(b"/w".to_vec()),
            git_directory: Some(b"/main/.git".to_vec()),
            home: Some(b"/home/me".to_vec()),
            temporary: Some(b"/scratch".to_vec()),
            programs: vec![b"/bin".to_vec(), b"/home/me/bin".to_vec()],
            secrets: Secrets::default(),
        }
    }

    fn allowed(text: &str, places: &PolicyPlaces) -> Result<PathRule, String> {
        rule(RuleWord::AllowWrite, text, places)
    }

    fn rule(word: RuleWord, text: &str, places: &PolicyPlaces) -> Result<PathRule, String> {
        let mut words = RuleWords::default();
        words.add(word, [text.as_bytes().to_vec()]);
        let resolve = |path: &[u8]| match path {
            b"/link" => b"/real".to_vec(),
            b"/bin/view" => b"/usr/bin/vim.basic".to_vec(),
            b"/home/me/bin/view" => b"/home/me/other".to_vec(),
            path => path.to_vec(),
        };
        Ok(CompiledPolicy::new(&words, places, &resolve)?.path_rules(word)[0].clone())
    }

    #[test]
    fn words_mean_places_of_the_recording() {
        for (text, matching, others) in [
            (
                "@workspace",
                &["/w", "/w/sub/x", "/w/.git/HEAD", "/main/.git/objects/x"][..],
                &["/wx", "/", "/main"][..],
            ),
            ("@tmp", &["/tmp/x", "/var/tmp", "/dev/shm/x", "/scratch/x"], &["/var", "/dev/null"]),
            ("@secrets", &["/home/me/.ssh/id_rsa", "/x/.env"], &["/home/me/.ssh/config"]),
            ("~", &["/home/me/x"], &["/home/you"]),
            ("~/.cache/*", &["/home/me/.cache/x/y"], &["/home/me/.cache"]),
            ("*.o", &["/w/sub/x.o", "/w/sub/a/x.o/y"], &["/w/x.o", "/x.o"]),
            ("build/", &["/w/sub/build/x", "/w/sub/a/build"], &["/w/build"]),
            ("./build", &["/w/sub/build/x"], &["/w/sub/a/build"]),
            (".", &["/w/sub/x"], &["/w/x"]),
            ("..", &["/w/x"], &["/x"]),
            ("/**/.env", &["/.env", "/x/y/.env"], &["/x/env"]),
            ("/link/*", &["/link/x"], &["/real/x"]),
        ] {
            let rule = allowed(text, &places()).unwrap();
            for path in matching {
                assert!(rule.paths.matches(path.as_bytes(), |_| false), "{text} {path}");
            }
            for path in others {
                assert!(!rule.paths.matches(path.as_bytes(), |_| false), "{text} {path}");
            }
        }
    }

    #[test]
    fn a_name_without_a_slash_is_a_program() {
        for (word, text, matching, others) in [
            (
                RuleWord::DenyExec,
                "view",
                &["/x/view", "/bin/view", "/usr/bin/vim.basic", "/home/me/other"][..],
                &["/x/v"][..],
            ),
            (
                RuleWord::AllowExec,
                "view",
                &["/bin/view", "/usr/bin/vim.basic", "/home/me/bin/view"],
                &["/w/sub/view", "/home/me/other"],
            ),
            (RuleWord::DenyExec, "v*", &["/x/view"], &["/x/y"]),
            (RuleWord::AllowExec, "v*", &["/bin/vi", "/home/me/bin/view"], &["/w/sub/view"]),
            (RuleWord::AllowExec, "./view", &["/w/sub/view"], &["/bin/view"]),
            (RuleWord::AllowExec, "@system", &["/usr/bin/x", "/bin/x"], &["/home/me/bin/x", "/w/x"]),
        ] {
            let rule = rule(word, text, &places()).unwrap();
            for path in matching {
                assert!(rule.paths.matches(path.as_bytes(), |_| false), "{word:?} {text} {path}");
            }
            for path in others {
                assert!(!rule.paths.matches(path.as_bytes(), |_| false), "{word:?} {text} {path}");
            }
        }
    }

    #[test]
    fn a_symlink_is_followed_by_what_is_denied_and_by_the_home_directory() {
        let resolve = |path: &[u8]| match path {
            b"/link" => b"/real".to_vec(),
            b"/home/me" => b"/data/me".to_vec(),
            path => path.to_vec(),
        };
        let mut words = RuleWords::default();
        words.add(RuleWord::AllowWrite, [b"~/*.o".to_vec()]);
        words.add(RuleWord::DenyWrite, [b"/link/*".to_vec()]);
        let policy = CompiledPolicy::new(&words, &places(), &resolve).unwrap();
        let matches = |rule: &PathRule, path: &str| rule.paths.matches(path.as_bytes(), |_| false);
        let [allowed, denied] =
            [RuleWord::AllowWrite, RuleWord::DenyWrite].map(|word| &policy.path_rules(word)[0]);
        assert!(["/link/x", "/real/x"].iter().all(|path| matches(denied, path)));
        assert!(["/home/me/x.o", "/data/me/x.o"].iter().all(|path| matches(allowed, path)));
    }

    #[test]
    fn stricter_rules_deny_more_and_allow_no_more() {
        let compiled = |rules: &[(RuleWord, &str)]| {
            let mut words = RuleWords::default();
            rules.iter().for_each(|(word, text)| words.add(*word, [text.as_bytes().to_vec()]));
            CompiledPolicy::new(&words, &places(), &|path| path.to_vec()).unwrap()
        };
        let stricter = compiled(&[
            (RuleWord::AllowWrite, "/w/a"),
            (RuleWord::AllowWrite, "/x"),
            (RuleWord::DenyRead, "/w/key"),
            (RuleWord::AllowNet, "10.0.0.0/8"),
            (RuleWord::DenyNet, "10.0.0.2"),
        ]);
        let policy = compiled(&[(RuleWord::AllowWrite, "@workspace"), (RuleWord::DenyWrite, "/w/a/b")]);
        let policy = policy.and(stricter);
        for (path, is_allowed) in
            [("/w/a/x", true), ("/w/a/b", false), ("/w/c", false), ("/x", false), ("/y", false)]
        {
            let decision = policy.decide(PathUseKind::Write, path.as_bytes(), &|_| false);
            assert_eq!(matches!(decision, Decision::Allowed(..)), is_allowed, "{path} {decision:?}");
        }
        assert!(policy.decide(PathUseKind::Read, b"/w/key", &|_| false).forbidden().is_some());
        assert_eq!(policy.decide(PathUseKind::Read, b"/w/other", &|_| false), Decision::Free);
        assert!(policy.has(RuleWord::AllowNet) && policy.judges(PathUseKind::Read));
        for (address, is_allowed) in [("10.0.0.1:1", true), ("10.0.0.2:1", false), ("11.0.0.1:1", false)] {
            let used = NetworkUse {
                process: 1,
                operation: crate::snapshot::NetworkOperation::Connect,
                address: NetworkAddress::Inet(address.parse().unwrap()),
                count: 1,
                errno: None,
            };
            assert_eq!(policy.decide_address(&used).forbidden().is_none(), is_allowed, "{address}");
        }
    }

    #[test]
    fn without_a_working_tree_the_workspace_is_the_start_directory() {
        let places = PolicyPlaces { working_tree: None, ..places() };
        let rule = allowed("@workspace", &places).unwrap();
        assert!(rule.paths.matches(b"/w/sub/x", |_| false) && !rule.paths.matches(b"/w/x", |_| false));
    }

    #[test]
    fn what_is_wrong_with_a_rule_is_one_sentence() {
        let nowhere = PolicyPlaces { home: None, ..places() };
        for (text, why) in [
            ("", "--allow-write : the rule is empty"),
            (
                "@work",
                "--allow-write @work: the rule is no preset: there are @workspace, @tmp, @system and @secrets",
            ),
            ("!x", "--allow-write !x: the rule begins with a !"),
            ("~root/x", "--allow-write ~root/x: the rule names the home directory of another user"),
            ("~/x", "--allow-write ~/x: the rule needs a home directory"),
            ("a[", "--allow-write a[: the rule has a [ without its ]"),
            ("x\ny[", "--allow-write x\\ny[: the rule has a ["),
        ] {
            let said = allowed(text, &nowhere).map(|_| ()).unwrap_err();
            assert!(said.starts_with(why) && !said.contains('\n'), "{text}: {said}");
        }
    }
}
