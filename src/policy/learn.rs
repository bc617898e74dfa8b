//! Rules that allow what recordings did, and little more.
//!
//! What must be allowed is what `judge.rs` finds if nothing is.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;

use super::glob::escaped;
use super::judge::{Files, FindingSubject, judge};
use super::left_out;
use super::patterns::{PathMatch, PatternMaker};
use super::rules::{CompiledPolicy, PolicyPlaces, RuleWord, RuleWords};
use crate::git::below;
use crate::snapshot::{FileRecord, FileType, NetworkAddress, NetworkUse, Operation, Snapshot, State};

/// The places that become presets.
const PLACES: [&str; 3] = ["@workspace", "@tmp", "@system"];
/// Those that may stand for what was changed, executed or connected to there; of the system, each program is named.
const OWN_PLACES: [&str; 2] = ["@workspace", "@tmp"];
/// How many rules about what is beneath a directory become one about the directory.
const FOLDED: usize = 3;
/// The first of the ports that systems choose by themselves for a listening socket (ip(7)).
const EPHEMERAL: u16 = 32768;
/// Directories of the home directory in which each program has its own.
const SHARED: [&[u8]; 6] =
    [b"~", b"~/.cache", b"~/.config", b"~/.local", b"~/.local/share", b"~/.local/state"];

/// A rule, and what a person should know of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LearnedRule {
    /// The rule.
    pub text: Vec<u8>,
    /// The remark.
    pub remark: Option<String>,
}

/// What recordings did, as far as rules are about it.
#[derive(Debug, Default)]
pub struct Learner {
    presets: BTreeMap<RuleWord, BTreeSet<&'static [u8]>>,
    /// By the components of the path, the first of which is `~` or empty.
    paths: BTreeMap<RuleWord, Node>,
    /// The secrets that were read, and the processes that read them.
    secrets: BTreeMap<Vec<u8>, String>,
    /// What stays a rule of its own, with a remark.
    remarked: BTreeMap<(RuleWord, Vec<u8>), String>,
    hosts: BTreeMap<IpAddr, BTreeSet<u16>>,
    /// Whether addresses of another family were used.
    has_others: bool,
    sockets: BTreeSet<Vec<u8>>,
    /// Whether a socket of AF_UNIX was used.
    has_unix: bool,
}

/// A name below a directory.
#[derive(Debug, Default)]
struct Node {
    /// Whether it was used, and if so, whether it was alone: a directory, and not what is in it.
    used: Option<bool>,
    children: BTreeMap<Vec<u8>, Node>,
}

impl Learner {
    /// Adds what a recording did. `by` describes a process.
    ///
    /// # Errors
    /// A sentence.
    pub fn add(
        &mut self,
        snapshot: &Snapshot,
        places: &PolicyPlaces,
        live: &dyn Files,
        by: &dyn Fn(u32) -> String,
    ) -> Result<(), String> {
        let resolve = |path: &[u8]| live.resolved(path);
        let patterns = PatternMaker { places, resolve: &resolve, word: RuleWord::AllowRead };
        let presets = PLACES.map(str::as_bytes);
        let presets = presets.map(|text| patterns.paths(text).map(|paths| (text, paths)));
        let presets: Vec<_> = presets.into_iter().collect::<Result<_, String>>()?;
        let place = Placing { places, presets };
        let mut secrets = RuleWords::default();
        secrets.add(RuleWord::DenyRead, [b"@secrets".to_vec()]);
        let policy = CompiledPolicy::new(&secrets, places, &resolve)?.allowing_nothing();
        let records: HashMap<&[u8], &FileRecord> =
            snapshot.records().into_iter().map(|record| (record.path.as_slice(), record)).collect();
        for finding in judge(snapshot, &policy, live).findings {
            let (word, path, is_alone) = match finding.subject {
                FindingSubject::Path { path, operations, left_out_by, .. } => {
                    let is_directory = match finding.word {
                        RuleWord::AllowWrite => {
                            records.get(path.as_slice()).is_some_and(|record| is_directory(record))
                        }
                        _ => operations == Operation::Directory.into(),
                    };
                    let is_alone =
                        is_directory && (left_out_by.is_none() || finding.word != RuleWord::AllowWrite);
                    (finding.word, path, is_alone)
                }
                FindingSubject::Beneath { path, .. } => (finding.word, path, false),
                // No rule but one that allows everything would let it pass.
                FindingSubject::Somewhere { .. } => continue,
                FindingSubject::Address(used) => {
                    self.add_address(&used, &place);
                    continue;
                }
            };
            if word == RuleWord::DenyRead {
                let reader = finding.processes.first().map(|process| by(*process)).unwrap_or_default();
                let text = place.text(&path);
                if place.preset(&path, &PLACES).is_none() {
                    self.remarked
                        .insert((RuleWord::AllowRead, text.clone()), format!("a secret, read by {reader}"));
                }
                self.secrets.insert(text, reader);
            }
            let word = if word == RuleWord::DenyRead { RuleWord::AllowRead } else { word };
            self.add_path(word, &path, is_alone, &place);
        }
        let left_out::Needed { presets, paths: regions } = left_out::Needed::of(snapshot.header(), places);
        self.presets.entry(RuleWord::AllowRead).or_default().extend(presets);
        for (region, reads) in regions {
            match place.preset(&region, &PLACES) {
                Some(preset) => drop(self.presets.entry(RuleWord::AllowRead).or_default().insert(preset)),
                None => {
                    let remark = format!("reads there were left out of a recording: {reads}");
                    self.remarked.insert((RuleWord::AllowRead, place.text(&region)), remark);
                }
            }
        }
        Ok(())
    }

    fn add_path(&mut self, word: RuleWord, path: &[u8], is_alone: bool, place: &Placing) {
        let presets: &[&str] = match word {
            RuleWord::AllowRead => &PLACES,
            _ => &OWN_PLACES,
        };
        if let Some(preset) = place.preset(path, presets) {
            self.presets.entry(word).or_default().insert(preset);
            return;
        }
        let text = place.text(path);
        if self.remarked.contains_key(&(word, text.clone())) {
            return;
        }
        let mut node = self.paths.entry(word).or_default();
        for name in text.strip_suffix(b"/").unwrap_or(&text).split(|byte| *byte == b'/') {
            node = node.children.entry(name.to_vec()).or_default();
        }
        node.used = Some(is_alone && node.used.unwrap_or(true));
    }

    fn add_address(&mut self, used: &NetworkUse, place: &Placing) {
        let (host, port) = match &used.address {
            NetworkAddress::Inet(address) => (IpAddr::from(*address.ip()), address.port()),
            NetworkAddress::Inet6(address) => (IpAddr::from(*address.ip()).to_canonical(), address.port()),
            NetworkAddress::Unix(name) => {
                self.has_unix = true;
                let text = match name.split_first() {
                    None => return,
                    Some((0, name)) => [b"@".as_slice(), &printed(&escaped(name))].concat(),
                    Some(_) => match place.preset(name, &OWN_PLACES) {
                        Some(preset) => preset.to_vec(),
                        None => place.text(name),
                    },
                };
                self.sockets.insert(text);
                return;
            }
            NetworkAddress::Other(_) => {
                self.has_others = true;
                return;
            }
        };
        self.hosts.entry(host).or_default().insert(port);
    }

    /// The secrets that were read, and by whom.
    pub fn secrets(&self) -> impl Iterator<Item = (&[u8], &str)> {
        self.secrets.iter().map(|(path, by)| (path.as_slice(), by.as_str()))
    }

    /// The rules, by word.
    pub fn rules(&self) -> BTreeMap<RuleWord, Vec<LearnedRule>> {
        let plain = |text: Vec<u8>| LearnedRule { text, remark: None };
        let mut rules: BTreeMap<RuleWord, Vec<LearnedRule>> = BTreeMap::new();
        for word in [RuleWord::AllowWrite, RuleWord::AllowRead, RuleWord::AllowExec] {
            let mut texts: Vec<LearnedRule> = Vec::new();
            texts.extend(self.presets.get(&word).into_iter().flatten().map(|preset| plain(preset.to_vec())));
            let of_word = self.remarked.iter().filter(|((of, _), _)| *of == word);
            let remarked: Vec<_> = of_word
                .map(|((_, text), remark)| LearnedRule { text: text.clone(), remark: Some(remark.clone()) })
                .collect();
            let folded = self.paths.get(&word).map(|node| fold(word, &[], node)).unwrap_or_default();
            let is_covered = |text: &[u8]| {
                remarked
                    .iter()
                    .any(|rule| below(text.strip_suffix(b"/.").unwrap_or(text), &rule.text).is_some())
            };
            texts.extend(folded.into_iter().filter(|text| !is_covered(text)).map(plain));
            texts.extend(remarked);
            rules.insert(word, texts);
        }
        if rules[&RuleWord::AllowWrite].is_empty() {
            rules.insert(RuleWord::DenyWrite, vec![plain(b"/**".to_vec())]);
        }
        if self.secrets.is_empty() {
            rules.insert(RuleWord::DenyRead, vec![plain(b"@secrets".to_vec())]);
        }
        let mut hosts: Vec<LearnedRule> =
            self.hosts.iter().flat_map(|(host, ports)| addresses(*host, ports)).map(plain).collect();
        if self.has_others {
            let remark = Some("not only internet addresses, and others can't be named".to_owned());
            hosts.push(LearnedRule { text: b"*".to_vec(), remark });
        }
        let mut denied = Vec::new();
        denied.extend(hosts.is_empty().then(|| plain(b"*".to_vec())));
        denied.extend((!self.has_unix).then(|| plain(b"unix".to_vec())));
        rules.insert(RuleWord::AllowNet, hosts);
        rules.insert(RuleWord::DenyNet, denied);
        rules.insert(RuleWord::AllowUnix, self.sockets.iter().cloned().map(plain).collect());
        rules.retain(|_, rules| !rules.is_empty());
        rules
    }
}

/// The places of a recording, and its presets.
struct Placing<'a> {
    places: &'a PolicyPlaces,
    presets: Vec<(&'static [u8], PathMatch)>,
}

impl Placing<'_> {
    /// The first of these presets that means a path. A workspace that is all of `/` is none.
    fn preset(&self, path: &[u8], among: &[&str]) -> Option<&'static [u8]> {
        let is_one = |text: &[u8]| among.iter().any(|name| name.as_bytes() == text);
        let mut presets = self.presets.iter().filter(|(text, _)| is_one(text));
        let is_wide = |text: &[u8]| text == b"@workspace" && self.places.workspace() == b"/";
        let found = presets.find(|(text, paths)| !is_wide(text) && paths.matches(path, |_| false));
        found.map(|(text, _)| *text)
    }

    /// A path as a pattern, with `~` for the home directory.
    fn text(&self, path: &[u8]) -> Vec<u8> {
        let home = self.places.home.as_deref().filter(|home| *home != b"/");
        let text = match home.and_then(|home| below(path, home)) {
            Some(b"") => b"~".to_vec(),
            Some(rest) => [b"~/", escaped(rest).as_slice()].concat(),
            None if path == b"/" => b"/".to_vec(),
            None => escaped(path),
        };
        printed(&text)
    }
}

/// A pattern that can be written to a file of UTF-8: a `?` stands for each byte of anything else.
fn printed(pattern: &[u8]) -> Vec<u8> {
    let mut text = Vec::with_capacity(pattern.len());
    for chunk in pattern.utf8_chunks() {
        text.extend_from_slice(chunk.valid().as_bytes());
        text.extend(chunk.invalid().iter().map(|_| b'?'));
    }
    text
}

fn is_directory(record: &FileRecord) -> bool {
    let mut states = [&record.before, &record.after].into_iter().filter_map(State::present).peekable();
    states.peek().is_some() && states.all(|present| present.file_type == FileType::Directory)
}

/// The patterns for what was used at or beneath a path.
fn fold(word: RuleWord, path: &[&[u8]], node: &Node) -> Vec<Vec<u8>> {
    let text = path.join(b"/".as_slice());
    let mut texts = Vec::new();
    match node.used {
        Some(false) if !text.is_empty() => return vec![text],
        Some(_) => texts.push([text.as_slice(), b"/."].concat()),
        None => {}
    }
    for (name, child) in &node.children {
        let path: Vec<&[u8]> = path.iter().copied().chain([name.as_slice()]).collect();
        texts.extend(fold(word, &path, child));
    }
    if texts.len() > FOLDED && may_fold(word, path, &text) { vec![text] } else { texts }
}

/// Whether a directory may stand for what is in it.
fn may_fold(word: RuleWord, path: &[&[u8]], text: &[u8]) -> bool {
    // `~`, or an empty name for the root, is the first.
    let depth = path.len().saturating_sub(1);
    let least = match (path.first(), word) {
        (Some(&b"~"), _) => 1,
        (_, RuleWord::AllowExec) => 3,
        _ => 2,
    };
    let has_programs = word == RuleWord::AllowExec && path.last().is_some_and(|name| name.ends_with(b"bin"));
    depth >= least && !has_programs && !SHARED.contains(&text)
}

/// The rules for the ports of a host that were used.
fn addresses(host: IpAddr, ports: &BTreeSet<u16>) -> Vec<Vec<u8>> {
    let is_own = host.is_loopback() || host.is_unspecified();
    if is_own && ports.iter().any(|port| *port >= EPHEMERAL) || ports.len() > FOLDED {
        return vec![host.to_string().into_bytes()];
    }
    ports.iter().map(|port| std::net::SocketAddr::new(host, *port).to_string().into_bytes()).collect()
}
