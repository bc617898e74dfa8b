//! The rules as the user gives them, and what they mean for one recording.
//!
//! Neighbours: `glob.rs` and `net.rs` have the patterns, `judge.rs` applies them.

use super::glob::{PathGlob, check};
use super::names::NamedFile;
use super::net::AddressRule;
use crate::snapshot::secrets::{ContentSign, Secrets};
use crate::snapshot::{FileRecord, Header, NetworkUse, Present, printable};

/// The word that a rule begins with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[allow(missing_docs, reason = "the words are those of the command line")]
pub enum RuleWord {
    AllowWrite,
    DenyWrite,
    DenyRead,
    DenyNet,
}

impl RuleWord {
    /// All words.
    pub const ALL: [RuleWord; 4] =
        [RuleWord::AllowWrite, RuleWord::DenyWrite, RuleWord::DenyRead, RuleWord::DenyNet];

    /// As on the command line, without the dashes.
    pub fn name(self) -> &'static str {
        match self {
            RuleWord::AllowWrite => "allow-write",
            RuleWord::DenyWrite => "deny-write",
            RuleWord::DenyRead => "deny-read",
            RuleWord::DenyNet => "deny-net",
        }
    }
}

/// The rules as the user gives them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RuleWords {
    /// What may be changed; if there is none, everything.
    pub allow_write: Vec<Vec<u8>>,
    /// What may not be changed.
    pub deny_write: Vec<Vec<u8>>,
    /// What may not be read.
    pub deny_read: Vec<Vec<u8>>,
    /// What may not be contacted.
    pub deny_net: Vec<Vec<u8>>,
}

impl RuleWords {
    /// Whether there is no rule.
    pub fn is_empty(&self) -> bool {
        *self == RuleWords::default()
    }
}

/// The places that patterns are relative to.
#[derive(Debug, Clone, Default)]
pub struct PolicyPlaces {
    /// The directory that the command was started in.
    pub start: Vec<u8>,
    /// The working tree that this was in.
    pub working_tree: Option<Vec<u8>>,
    /// The home directory.
    pub home: Option<Vec<u8>>,
    /// `$TMPDIR`.
    pub temporary: Option<Vec<u8>>,
    /// The files that hold secrets.
    pub secrets: Secrets,
}

impl PolicyPlaces {
    /// The places of a recording, with the table of secrets as it is.
    pub fn of(header: &Header) -> PolicyPlaces {
        PolicyPlaces {
            start: header.start_cwd.clone(),
            working_tree: header.working_tree.clone(),
            home: header.home.clone(),
            temporary: header.temporary_directory.clone(),
            secrets: Secrets::default(),
        }
    }

    /// What `@workspace` stands for.
    pub fn workspace(&self) -> &[u8] {
        self.working_tree.as_deref().unwrap_or(&self.start)
    }
}

/// Where `@tmp` is, besides `$TMPDIR`.
const TEMPORARY: [&[u8]; 3] = [b"/tmp", b"/var/tmp", b"/dev/shm"];

/// A rule about paths.
#[derive(Debug, Clone)]
pub(super) struct PathRule {
    /// As given.
    pub text: Vec<u8>,
    pub paths: PathMatch,
}

/// Which paths a rule means.
#[derive(Debug, Clone)]
pub(super) enum PathMatch {
    Globs(Vec<PathGlob>),
    Secrets(Secrets),
}

impl PathRule {
    /// Whether it means a path; `has` tells whether the content of the file has what makes it a secret.
    pub fn matches(&self, path: &[u8], has: impl FnOnce(ContentSign) -> bool) -> bool {
        match &self.paths {
            PathMatch::Globs(globs) => globs.iter().any(|glob| glob.matches(path)),
            PathMatch::Secrets(secrets) => secrets.is_secret(path, has),
        }
    }

    /// Whether it means everything beneath a directory.
    pub fn matches_all_beneath(&self, directory: &[u8]) -> bool {
        match &self.paths {
            PathMatch::Globs(globs) => globs.iter().any(|glob| glob.matches_all_beneath(directory)),
            PathMatch::Secrets(secrets) => secrets.is_secret_by_name(directory),
        }
    }

    /// Whether it may mean something beneath a directory.
    pub fn may_match_beneath(&self, directory: &[u8]) -> bool {
        match &self.paths {
            PathMatch::Globs(globs) => globs.iter().any(|glob| glob.may_match_beneath(directory)),
            PathMatch::Secrets(_) => true,
        }
    }
}

/// The rules for one recording.
#[derive(Debug, Clone, Default)]
pub struct CompiledPolicy {
    pub(super) allow_write: Vec<PathRule>,
    pub(super) deny_write: Vec<PathRule>,
    pub(super) deny_read: Vec<PathRule>,
    pub(super) deny_net: Vec<(Vec<u8>, AddressRule)>,
    /// What the rules that deny name by a path, as it was when they were read.
    pub(super) named: Vec<NamedFile>,
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
        // A symlink that the command has made must not allow what it leads to.
        let patterns = |word| PatternMaker { places, resolve, follows: word != RuleWord::AllowWrite };
        let paths = |word: RuleWord, texts: &[Vec<u8>]| {
            let patterns = patterns(word);
            let rule = |text: &Vec<u8>| {
                let paths = patterns.paths(text).map_err(|why| wrong(word, text, &why))?;
                Ok(PathRule { text: text.clone(), paths })
            };
            texts.iter().map(rule).collect::<Result<Vec<_>, String>>()
        };
        let address = |text: &Vec<u8>| {
            let rule = AddressRule::parse(text, |path| patterns(RuleWord::DenyNet).globs(path));
            Ok((text.clone(), rule.map_err(|why| wrong(RuleWord::DenyNet, text, &why))?))
        };
        Ok(CompiledPolicy {
            allow_write: paths(RuleWord::AllowWrite, &words.allow_write)?,
            deny_write: paths(RuleWord::DenyWrite, &words.deny_write)?,
            deny_read: paths(RuleWord::DenyRead, &words.deny_read)?,
            deny_net: words.deny_net.iter().map(address).collect::<Result<_, String>>()?,
            named: Vec::new(),
        })
    }

    /// The same rules, which mean the files that they name by any other name, too. `state` tells what is at a path now.
    #[must_use]
    pub fn of_files(mut self, state: &dyn Fn(&[u8]) -> Option<Present>) -> CompiledPolicy {
        let globs = |rule: &'_ PathRule| match &rule.paths {
            PathMatch::Globs(globs) => globs.clone(),
            PathMatch::Secrets(_) => Vec::new(),
        };
        let globs = self.deny_read.iter().chain(&self.deny_write).flat_map(globs);
        let named = |glob: PathGlob| {
            let path = glob.literal_path()?.to_vec();
            Some(NamedFile { state: state(&path)?, path })
        };
        self.named = globs.filter_map(named).collect();
        self
    }

    /// Whether there is a rule about reading.
    pub fn forbids_reading_any(&self) -> bool {
        !self.deny_read.is_empty()
    }

    /// Whether a path may not be read, as far as its name tells.
    pub fn may_forbid_reading(&self, path: &[u8]) -> bool {
        self.deny_read.iter().any(|rule| rule.matches(path, |sign| sign != ContentSign::Key))
    }

    /// The rule that forbids reading what a record is about, by this name of it.
    pub(super) fn forbids_reading(
        &self,
        path: &[u8],
        record: &FileRecord,
        has: &dyn Fn(&FileRecord, ContentSign) -> bool,
    ) -> Option<&PathRule> {
        self.deny_read.iter().find(|rule| rule.matches(path, |sign| has(record, sign)))
    }

    /// The rule that forbids the use of an address.
    pub(super) fn forbids_address(&self, used: &NetworkUse) -> Option<&[u8]> {
        let found = self.deny_net.iter().find(|(_, rule)| rule.matches(used));
        found.map(|(text, _)| text.as_slice())
    }
}

fn wrong(word: RuleWord, text: &[u8], why: &str) -> String {
    format!("--{} {}: the rule {why}", word.name(), printable(text))
}

/// Makes patterns of words.
struct PatternMaker<'a> {
    places: &'a PolicyPlaces,
    resolve: &'a dyn Fn(&[u8]) -> Vec<u8>,
    /// Whether a pattern also means what the symlinks in its first components lead to.
    follows: bool,
}

impl PatternMaker<'_> {
    fn paths(&self, text: &[u8]) -> Result<PathMatch, String> {
        let literals =
            |paths: &[&[u8]]| PathMatch::Globs(paths.iter().map(|path| PathGlob::literal(path)).collect());
        Ok(match text {
            b"@workspace" => literals(&[self.places.workspace()]),
            b"@tmp" => {
                let temporary = self.places.temporary.as_deref();
                let system = TEMPORARY.map(|path| (self.resolve)(path));
                let system = system.iter().map(Vec::as_slice).chain(TEMPORARY);
                literals(&system.chain(temporary).collect::<Vec<_>>())
            }
            b"@secrets" => PathMatch::Secrets(self.places.secrets.clone()),
            text => PathMatch::Globs(self.globs(text)?),
        })
    }

    /// A pattern with a slash is absolute, or relative to the start directory; another one matches a name anywhere
    /// beneath that.
    fn globs(&self, text: &[u8]) -> Result<Vec<PathGlob>, String> {
        let start = self.places.start.as_slice();
        check(text)?;
        let glob = match text {
            b"" => return Err("is empty".to_owned()),
            [b'@', ..] => {
                return Err(
                    "is no preset: there are @workspace, @tmp and @secrets; a path that begins with \
                            an @ is written ./@"
                        .to_owned(),
                );
            }
            [b'!', ..] => {
                return Err(
                    "begins with a !, which takes nothing back here: a deny outweighs an allow".to_owned()
                );
            }
            b"~" | [b'~', b'/', ..] => {
                let home = self.places.home.as_deref().ok_or("needs a home directory, and none is known")?;
                let real = PathGlob::below(&(self.resolve)(home), &text[1..])?;
                let mut globs = self.as_named_and_resolved(PathGlob::below(home, &text[1..])?);
                globs.extend((!globs.contains(&real)).then_some(real));
                return Ok(globs);
            }
            [b'~', ..] => return Err("names the home directory of another user: write its path".to_owned()),
            [b'/', ..] => PathGlob::below(b"/", text)?,
            b"." | b".." => PathGlob::below(start, text)?,
            text if text.strip_suffix(b"/").unwrap_or(text).contains(&b'/') => PathGlob::below(start, text)?,
            name => PathGlob::below(start, &[b"**/", name].concat())?,
        };
        Ok(self.as_named_and_resolved(glob))
    }

    /// Recorded paths have no symlink in a directory above them.
    fn as_named_and_resolved(&self, glob: PathGlob) -> Vec<PathGlob> {
        let resolved = (self.resolve)(glob.prefix());
        let moved = (self.follows && resolved != glob.prefix()).then(|| glob.moved(&resolved));
        std::iter::once(glob).chain(moved).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn places() -> PolicyPlaces {
        PolicyPlaces {
            start: b"/w/sub".to_vec(),
            working_tree: Some(b"/w".to_vec()),
            home: Some(b"/home/me".to_vec()),
            temporary: Some(b"/scratch".to_vec()),
            secrets: Secrets::default(),
        }
    }

    fn allowed(text: &str, places: &PolicyPlaces) -> Result<PathRule, String> {
        let words = RuleWords { allow_write: vec![text.as_bytes().to_vec()], ..RuleWords::default() };
        let resolve = |path: &[u8]| if path == b"/link" { b"/real".to_vec() } else { path.to_vec() };
        Ok(CompiledPolicy::new(&words, places, &resolve)?.allow_write.remove(0))
    }

    #[test]
    fn words_mean_places_of_the_recording() {
        for (text, matching, others) in [
            ("@workspace", &["/w", "/w/sub/x", "/w/.git/HEAD"][..], &["/wx", "/"][..]),
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
                assert!(rule.matches(path.as_bytes(), |_| false), "{text} {path}");
            }
            for path in others {
                assert!(!rule.matches(path.as_bytes(), |_| false), "{text} {path}");
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
        let words = RuleWords {
            allow_write: vec![b"~/*.o".to_vec()],
            deny_write: vec![b"/link/*".to_vec()],
            ..RuleWords::default()
        };
        let policy = CompiledPolicy::new(&words, &places(), &resolve).unwrap();
        let matches = |rule: &PathRule, path: &str| rule.matches(path.as_bytes(), |_| false);
        assert!(["/link/x", "/real/x"].iter().all(|path| matches(&policy.deny_write[0], path)));
        assert!(["/home/me/x.o", "/data/me/x.o"].iter().all(|path| matches(&policy.allow_write[0], path)));
    }

    #[test]
    fn without_a_working_tree_the_workspace_is_the_start_directory() {
        let places = PolicyPlaces { working_tree: None, ..places() };
        let rule = allowed("@workspace", &places).unwrap();
        assert!(rule.matches(b"/w/sub/x", |_| false) && !rule.matches(b"/w/x", |_| false));
    }

    #[test]
    fn what_is_wrong_with_a_rule_is_one_sentence() {
        let nowhere = PolicyPlaces { home: None, ..places() };
        for (text, why) in [
            ("", "--allow-write : the rule is empty"),
            ("@work", "--allow-write @work: the rule is no preset: there are @workspace, @tmp and @secrets"),
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
