//! Which paths are not recorded, and under which rule: `.git`, the configured list, `--ignore`.
//!
//! The list is `agent-snapshot/ignore.json` below the user's configuration directory; a first run
//! writes the default one. Rules are matched by whole components against the resolved, absolute
//! path of an observation, in one pass over its bytes. The third rule, files of another owner, is
//! judged where their metadata is; only its name is kept here, so that every rule has an id.
//!
//! Neighbours: `git` tells of git directories that are not named `.git`; the manifest's
//! `suppressed` shows the rules by their names.

use std::collections::HashMap;
use std::ffi::OsString;
use std::fmt;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{DirBuilderExt, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::fs::{joined, matches};

/// The list that a first run writes.
pub const DEFAULT_LIST: [&str; 10] = [
    "$HOME/.cache",
    "$HOME/.claude",
    "$HOME/.codex",
    "$HOME/.cursor",
    IGNORE_FILE,
    "/tmp/scratch-output",
    "/proc",
    "/dev",
    "reads:/usr",
    "reads:/bin",
];

/// The start of an entry that leaves out what is only looked at.
const OF_READS: &[u8] = b"reads:";

/// What agents keep in the directory for temporary files: the shell of Claude Code leaves its directory there, in a
/// sandbox below a directory of the user, and that of Gemini CLI the process IDs of what it leaves in the background.
pub const SCRATCH: [&str; 3] = ["claude-*-cwd", "/tmp/claude-UID/cwd-*", "gemini-shell-*"];

/// The ignore file as an entry, and the name of the rule that always covers it.
const IGNORE_FILE: &str = "$XDG_CONFIG_HOME/agent-snapshot/ignore.json";

/// No sensible list is longer, and whoever can write the file must not be able to exhaust our memory.
const SIZE_LIMIT: u64 = 1 << 20;

/// As many symlinks as the kernel crosses for one path (path_resolution(7)).
const LINK_LIMIT: u32 = 40;

/// Why the rules could not be loaded. Each of them ends a recording before its launch.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The ignore file is there and can't be read.
    #[error("read the ignore list {}: {source}", path.display())]
    Read {
        /// The ignore file.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// The ignore file is not a regular file, or too large to be a list of paths.
    #[error("read the ignore list {}: it is {what}", path.display())]
    Unfit {
        /// The ignore file.
        path: PathBuf,
        /// What it is instead.
        what: &'static str,
    },
    /// The ignore file is not a JSON array of strings.
    #[error("read the ignore list {}: it must be a JSON array of strings: {source}", path.display())]
    Malformed {
        /// The ignore file.
        path: PathBuf,
        /// Where it is wrong, and how.
        source: serde_json::Error,
    },
    /// An empty `--ignore`, which would otherwise mean the whole start directory.
    #[error("--ignore needs a path, not an empty argument")]
    EmptyArgument,
}

/// The places that entries are relative to.
#[derive(Debug, Clone)]
pub struct Environment {
    home: Option<Vec<u8>>,
    config_home: Option<Vec<u8>>,
    temporary: Vec<u8>,
    start_cwd: Vec<u8>,
}

impl Environment {
    /// Takes them from our own environment; `start_cwd` is the command's first directory.
    pub fn from_process(start_cwd: &[u8]) -> Environment {
        let passwd = || {
            let home = crate::fs::home_of(rustix::process::getuid().as_raw())?;
            Some(home.into_os_string().into_vec())
        };
        let var = |name| std::env::var_os(name).map(OsStringExt::into_vec);
        let environment = Environment::new(var("HOME"), var("XDG_CONFIG_HOME"), passwd, start_cwd);
        let temporary = std::env::temp_dir().into_os_string().into_vec();
        Environment { temporary, ..environment }
    }

    /// Makes one of the values of HOME and XDG_CONFIG_HOME and the passwd entry's home directory.
    ///
    /// A relative or empty value counts as unset, as the XDG specification has it for its own.
    pub fn new(
        home: Option<Vec<u8>>,
        config_home: Option<Vec<u8>>,
        passwd_home: impl FnOnce() -> Option<Vec<u8>>,
        start_cwd: &[u8],
    ) -> Environment {
        let absolute = |path: &Vec<u8>| path.starts_with(b"/");
        let home = home.filter(absolute).or_else(|| passwd_home().filter(absolute));
        let config_home =
            config_home.filter(absolute).or_else(|| home.as_deref().map(|home| join(home, b".config")));
        Environment { home, config_home, temporary: b"/tmp".to_vec(), start_cwd: start_cwd.to_vec() }
    }

    /// Replaces a variable that is the whole first component; none when it has no value.
    fn expand(&self, entry: &[u8]) -> Option<Vec<u8>> {
        let first = entry.iter().position(|byte| *byte == b'/').unwrap_or(entry.len());
        let (first, rest) = entry.split_at(first);
        let value = match first {
            b"$HOME" => self.home.as_deref()?,
            b"$XDG_CONFIG_HOME" => self.config_home.as_deref()?,
            _ => return Some(entry.to_vec()),
        };
        Some([value, rest].concat())
    }

    /// The user's home directory.
    pub fn home(&self) -> Option<&[u8]> {
        self.home.as_deref()
    }

    fn ignore_file(&self) -> Option<PathBuf> {
        self.config_file("ignore.json")
    }

    /// A file of our configuration directory; none if no home directory is known.
    pub fn config_file(&self, name: &str) -> Option<PathBuf> {
        let directory = self.expand(b"$XDG_CONFIG_HOME/agent-snapshot")?;
        Some(PathBuf::from(OsString::from_vec(directory)).join(name))
    }
}

/// A rule's number; rules keep theirs for the life of their [`Ignore`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RuleId(u32);

impl RuleId {
    /// Components named `.git`, and git directories elsewhere: what is changed there is Git's state.
    pub const GIT: RuleId = RuleId(0);
    /// Files of another owner that the user can't write.
    pub const FOREIGN_OWNER: RuleId = RuleId(1);

    /// Its number, consecutive from 0: an index of counters.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// The rules of a recording.
#[derive(Debug, Clone)]
pub struct Ignore {
    /// The rules as written; their index is their id.
    names: Vec<Vec<u8>>,
    /// A trie of components; the first node is `/`.
    nodes: Vec<Node>,
    notes: Vec<String>,
    watched: Option<Watched>,
}

/// Tells which paths are recorded though a rule covers them.
#[derive(Clone)]
struct Watched(Arc<PathTest>);

type PathTest = dyn Fn(&[u8]) -> bool + Send + Sync;

impl fmt::Debug for Watched {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Watched")
    }
}

/// A rule that covers a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cover<'p> {
    /// The rule.
    pub rule: RuleId,
    /// The topmost path that it covers: the path or an ancestor.
    pub topmost: &'p [u8],
    /// Whether it leaves out only what is not changed.
    pub of_reads: bool,
}

/// What a rule is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum RuleKind {
    /// A path and everything below it.
    Path,
    /// The same, as long as it is not changed.
    Reads,
    /// A `*` in the last name stands for any characters.
    Pattern,
}

#[derive(Debug, Default, Clone)]
struct Node {
    rule: Option<RuleId>,
    of_reads: Option<RuleId>,
    children: HashMap<Box<[u8]>, usize, foldhash::fast::RandomState>,
    /// Last names of entries that have a `*`.
    patterns: Vec<(Box<[u8]>, RuleId)>,
}

impl Node {
    /// The rule of a pattern that matches a name.
    fn matching(&self, name: &[u8]) -> Option<RuleId> {
        self.patterns.iter().find(|(pattern, _)| matches(pattern, name)).map(|(_, rule)| *rule)
    }
}

impl Ignore {
    /// Loads the user's list, writing the default one where there is none, and adds `additions`
    /// (the `--ignore` paths; relative ones start at the command's first directory).
    ///
    /// An entry covers what it names as written, made normal without asking for any file, and what
    /// it resolves to now.
    ///
    /// # Errors
    /// Whatever must end the recording before its launch. A missing list that can't be written is
    /// none: the default is used, and [`Ignore::notes`] says so.
    pub fn load(environment: &Environment, additions: &[Vec<u8>]) -> Result<Ignore, Error> {
        let mut ignore = Ignore::without_rules();
        let file = environment.ignore_file();
        let entries = match &file {
            Some(file) => ignore.read_or_create(file)?,
            None => {
                ignore.notes.push("no home directory is known: the default ignore list is used".to_owned());
                default_list()
            }
        };
        let mut seen = HashMap::new();
        for entry in entries {
            ignore.add_entry(environment, entry.as_bytes(), &mut seen);
        }
        ignore.add(environment, additions, &mut seen)?;
        ignore.add_entry(environment, IGNORE_FILE.as_bytes(), &mut seen);
        for name in SCRATCH {
            let below = name.replace("UID", &rustix::process::getuid().as_raw().to_string());
            let is_absolute = below.starts_with('/');
            let scratch =
                if is_absolute { below.into_bytes() } else { join(&environment.temporary, below.as_bytes()) };
            ignore.add_rule(name.as_bytes(), &scratch, RuleKind::Pattern, &mut seen);
        }
        Ok(ignore)
    }

    /// With the rules alone that no list has.
    fn without_rules() -> Ignore {
        Ignore {
            names: vec![b".git".to_vec(), b"foreign owner".to_vec()],
            nodes: vec![Node::default()],
            notes: Vec::new(),
            watched: None,
        }
    }

    /// Adds the `--ignore` paths.
    fn add(
        &mut self,
        environment: &Environment,
        additions: &[Vec<u8>],
        seen: &mut Seen,
    ) -> Result<(), Error> {
        for addition in additions {
            if addition.is_empty() {
                return Err(Error::EmptyArgument);
            }
            let (path, kind) = kind_of(addition);
            let absolute = match environment.expand(path) {
                Some(expanded) if expanded.starts_with(b"/") => expanded,
                _ => join(&environment.start_cwd, path),
            };
            self.add_rule(addition, &absolute, kind, seen);
        }
        Ok(())
    }

    /// Leaves out absolute paths; a `*` in the last name of one stands for any characters.
    pub fn leave_out(&mut self, paths: &[Vec<u8>]) {
        let mut seen = HashMap::new();
        for path in paths {
            let kind = if path.contains(&b'*') { RuleKind::Pattern } else { RuleKind::Path };
            self.add_rule(path, path, kind, &mut seen);
        }
    }

    /// What the user should be told once, each a sentence.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// Makes the git directory `path` part of the `.git` rule.
    pub fn add_git_dir(&mut self, path: &[u8]) {
        let path = normalise(path);
        // A repository that claims all of `/` would silence the whole recording.
        if path != b"/" && self.covering(&path).is_none_or(|cover| cover.rule != RuleId::GIT) {
            self.insert(&path, RuleKind::Reads, RuleId::GIT);
        }
    }

    /// The rule that covers the resolved, absolute `path`, if one does.
    ///
    /// If several do, the one that begins nearest to the root; one that leaves out only what is not changed if no
    /// other does, and among those that of Git's directories.
    pub fn covering<'p>(&self, path: &'p [u8]) -> Option<Cover<'p>> {
        let cover = |rule, end: usize, of_reads| Some(Cover { rule, topmost: path.get(..end)?, of_reads });
        let mut node = self.nodes.first();
        if let Some(rule) = node.and_then(|root| root.rule) {
            return cover(rule, 1, false);
        }
        let mut of_reads = node.and_then(|root| root.of_reads).and_then(|rule| cover(rule, 1, true));
        let mut start = 0;
        while start < path.len() {
            let rest = &path[start..];
            let length = rest.iter().position(|byte| *byte == b'/').unwrap_or(rest.len());
            let (component, end) = (&rest[..length], start + length);
            start = end + 1;
            if component.is_empty() {
                continue;
            }
            let pattern = node.and_then(|node| node.matching(component));
            node = node.and_then(|node| node.children.get(component)).and_then(|next| self.nodes.get(*next));
            if let Some(rule) = node.and_then(|node| node.rule).or(pattern) {
                return cover(rule, end, false);
            }
            let is_git = |cover: &Cover<'_>| cover.rule == RuleId::GIT;
            let found =
                if component == b".git" { Some(RuleId::GIT) } else { node.and_then(|node| node.of_reads) };
            if let Some(rule) = found
                && of_reads.is_none_or(|known| rule == RuleId::GIT && !is_git(&known))
            {
                of_reads = cover(rule, end, true);
            }
        }
        of_reads
    }

    /// Has the paths recorded of which `is_watched` is true, whatever rule covers them; in git directories, none.
    pub fn watch(&mut self, is_watched: impl Fn(&[u8]) -> bool + Send + Sync + 'static) {
        self.watched = Some(Watched(Arc::new(is_watched)));
    }

    /// Has all paths recorded but those on procfs, the devices, and what is below `additions`.
    ///
    /// # Errors
    /// As in [`Ignore::load`].
    pub fn watch_all_but(&mut self, environment: &Environment, additions: &[Vec<u8>]) -> Result<(), Error> {
        let mut left_out = Ignore::without_rules();
        let mut seen = HashMap::new();
        for entry in ["/proc", "/dev"] {
            left_out.add_entry(environment, entry.as_bytes(), &mut seen);
        }
        left_out.add(environment, additions, &mut seen)?;
        self.watch(move |path| left_out.covering(path).is_none_or(|cover| cover.rule == RuleId::GIT));
        Ok(())
    }

    /// Whether a path is recorded though a rule may cover it.
    pub fn is_watched(&self, path: &[u8]) -> bool {
        self.watched.as_ref().is_some_and(|Watched(is_watched)| is_watched(path))
    }

    /// The rule as it was written.
    pub fn name(&self, rule: RuleId) -> &[u8] {
        self.names.get(rule.index()).map_or(b"", Vec::as_slice)
    }

    /// All rules, in the order of their numbers.
    pub fn rules(&self) -> impl Iterator<Item = RuleId> + use<> {
        (0u32..).zip(0..self.names.len()).map(|(id, _)| RuleId(id))
    }

    fn add_entry(&mut self, environment: &Environment, entry: &[u8], seen: &mut Seen) {
        let (path, kind) = kind_of(entry);
        // Without a home directory there is nothing that the entry could cover.
        let Some(expanded) = environment.expand(path) else { return };
        if expanded.starts_with(b"/") {
            self.add_rule(entry, &expanded, kind, seen);
        } else {
            self.notes.push(format!(
                "the entry {:?} of the ignore list covers nothing: it is neither absolute nor begins with $HOME/ or $XDG_CONFIG_HOME/",
                String::from_utf8_lossy(entry)
            ));
        }
    }

    fn add_rule(&mut self, name: &[u8], absolute: &[u8], kind: RuleKind, seen: &mut Seen) {
        let written = normalise(absolute);
        let next = u32::try_from(self.names.len()).unwrap_or(u32::MAX);
        let rule = *seen.entry((written.clone(), kind)).or_insert(RuleId(next));
        if rule.0 == next {
            self.names.push(name.to_vec());
        }
        self.insert(&written, kind, rule);
        if let Some(resolved) = resolve(absolute) {
            self.insert(&resolved, kind, rule);
        }
    }

    /// Gives the normal, absolute `path` to `rule`, unless an earlier rule of the kind has it.
    fn insert(&mut self, path: &[u8], kind: RuleKind, rule: RuleId) {
        let (above, last) = match crate::fs::parent_of(path) {
            Some(above) if kind == RuleKind::Pattern => (above, path.rsplit(|byte| *byte == b'/').next()),
            _ => (path, None),
        };
        let mut at = 0;
        for component in components(above) {
            let next = self.nodes.len();
            at = *self.nodes[at].children.entry(component.into()).or_insert(next);
            if at == next {
                self.nodes.push(Node::default());
            }
        }
        let node = &mut self.nodes[at];
        match (kind, last) {
            (RuleKind::Pattern, Some(pattern)) => node.patterns.push((pattern.into(), rule)),
            (RuleKind::Reads, _) if rule == RuleId::GIT => node.of_reads = Some(rule),
            (RuleKind::Reads, _) => drop(node.of_reads.get_or_insert(rule)),
            _ => drop(node.rule.get_or_insert(rule)),
        }
    }

    fn read_or_create(&mut self, file: &Path) -> Result<Vec<String>, Error> {
        if let Some(list) = read_list(file)? {
            return Ok(list);
        }
        match create_list(file) {
            Ok(()) => return Ok(default_list()),
            // Another first run was quicker, and its list may already be edited.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                if let Some(list) = read_list(file)? {
                    return Ok(list);
                }
                self.notes.push(format!(
                    "the ignore list {} is a dangling symlink: the default list is used",
                    file.display()
                ));
            }
            Err(error) => self.notes.push(format!(
                "the ignore list {} can't be created ({error}): the default list is used",
                file.display()
            )),
        }
        Ok(default_list())
    }
}

/// The rules by what they are about.
type Seen = HashMap<(Vec<u8>, RuleKind), RuleId>;

/// The path of an entry as it is written, and what the rule is about.
fn kind_of(entry: &[u8]) -> (&[u8], RuleKind) {
    match entry.strip_prefix(OF_READS) {
        Some(path) => (path, RuleKind::Reads),
        None => (entry, RuleKind::Path),
    }
}

fn default_list() -> Vec<String> {
    DEFAULT_LIST.map(str::to_owned).to_vec()
}

/// Reads the list; none where there is no file, or where we may not even ask.
fn read_list(file: &Path) -> Result<Option<Vec<String>>, Error> {
    let unfit = |what| Error::Unfit { path: file.to_owned(), what };
    let unreadable = |source| Error::Read { path: file.to_owned(), source };
    // Symlinks are followed, since configuration often lives elsewhere; but never opened unseen: a
    // FIFO would block us, and opening a device can do things.
    let real = match file.canonicalize() {
        Ok(real) => real,
        Err(error) => {
            return match error.kind() {
                io::ErrorKind::NotFound | io::ErrorKind::NotADirectory | io::ErrorKind::PermissionDenied => {
                    Ok(None)
                }
                _ => Err(unreadable(error)),
            };
        }
    };
    if !real.symlink_metadata().map_err(unreadable)?.is_file() {
        return Err(unfit("not a regular file"));
    }
    let mut content = Vec::new();
    crate::fs::open_regular(real.as_os_str().as_bytes())
        .and_then(|file| file.take(SIZE_LIMIT + 1).read_to_end(&mut content))
        .map_err(unreadable)?;
    if content.len() as u64 > SIZE_LIMIT {
        return Err(unfit("larger than 1 MiB"));
    }
    match serde_json::from_slice(&content) {
        Ok(list) => Ok(Some(list)),
        Err(source) => Err(Error::Malformed { path: file.to_owned(), source }),
    }
}

/// Puts the default list in place whole, or not at all where something is there already.
fn create_list(file: &Path) -> io::Result<()> {
    let directory = file.parent().ok_or(io::ErrorKind::InvalidInput)?;
    // Root may have the home of somebody else, who could not use a directory of root's.
    let nearest = directory.ancestors().find_map(|above| fs::metadata(above).ok());
    if nearest.is_some_and(|nearest| nearest.uid() != rustix::process::geteuid().as_raw()) {
        return Err(io::Error::new(
            io::ErrorKind::PermissionDenied,
            "it would be in a directory of another user",
        ));
    }
    fs::DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
    let mut text = serde_json::to_string_pretty(&DEFAULT_LIST)?;
    text.push('\n');
    // Of a name that nobody has, another first run at this moment included; removed if it gets no other.
    let mut new =
        tempfile::Builder::new().prefix(".ignore.json.").make_in(directory, |path| File::create_new(path))?;
    new.as_file_mut().write_all(text.as_bytes())?;
    new.persist_noclobber(file)?;
    Ok(())
}

fn components(path: &[u8]) -> impl Iterator<Item = &[u8]> {
    path.split(|byte| *byte == b'/').filter(|component| !component.is_empty() && *component != b".")
}

fn join(base: &[u8], rest: &[u8]) -> Vec<u8> {
    [base, b"/", rest].concat()
}

/// Removes empty, `.` and `..` components of an absolute path without asking for any file.
fn normalise(path: &[u8]) -> Vec<u8> {
    let mut kept = Vec::new();
    for component in components(path) {
        if component == b".." {
            kept.pop();
        } else {
            kept.push(component);
        }
    }
    joined(kept)
}

/// Resolves every symlink of an absolute path; components that are not there stay as named, so
/// that an entry can precede what it covers. None where the symlinks have no end.
fn resolve(path: &[u8]) -> Option<Vec<u8>> {
    let mut resolved: Vec<Vec<u8>> = Vec::new();
    let mut pending: Vec<Vec<u8>> = components(path).map(<[u8]>::to_vec).collect();
    pending.reverse();
    let mut links = 0;
    while let Some(component) = pending.pop() {
        if component == b".." {
            resolved.pop();
            continue;
        }
        resolved.push(component);
        let candidate = joined(&resolved);
        if let Ok(target) = rustix::fs::readlink(candidate.as_slice(), Vec::new()) {
            links += 1;
            if links > LINK_LIMIT {
                return None;
            }
            resolved.pop();
            if target.as_bytes().starts_with(b"/") {
                resolved.clear();
            }
            let mut target: Vec<Vec<u8>> = components(target.as_bytes()).map(<[u8]>::to_vec).collect();
            target.reverse();
            pending.append(&mut target);
        }
    }
    Some(joined(&resolved))
}

#[cfg(test)]
mod tests;
