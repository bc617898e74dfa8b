//! The rules that are enforced while the tree runs: what they forbid, and what was refused because of them.
//!
//! Knows paths, files and addresses, and no system calls. Neighbour: `calls/enforced.rs` asks before a call is made.

use std::cell::RefCell;
use std::collections::HashMap;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use foldhash::fast::RandomState;

use super::keyless::KeylessFiles;
use super::ledger::ids::ProcessId;
use super::network::{MOST, TooMany};
use super::resolve;
use crate::fs::{FileStat, Signature};
use crate::policy::{CompiledPolicy, Decision, PathUseKind, forbidden_content};
use crate::snapshot::layout::BLOBS;
use crate::snapshot::secrets::{ContentSign, may_have_key, may_have_sign};
use crate::snapshot::{
    Enforcement, EnforcementMode, NetworkAddress, NetworkUse, PROTECTED, RefusedSubject, RefusedUse, Snapshot,
};
use crate::sync::lock;

/// The rules that are to be enforced.
#[derive(Debug, Clone)]
pub struct EnforcedRules {
    /// What the command may do.
    pub policy: CompiledPolicy,
    /// What it may not change in any case: the rules themselves, our programs, the snapshot.
    pub protected: Vec<Vec<u8>>,
    /// The table of files without a private key, if there is a library to keep it in.
    pub keyless: Option<Vec<u8>>,
    /// Whether arguments of calls can be copied, so that what was judged is what the kernel uses.
    pub can_pin: bool,
    /// What the manifest says of them.
    pub manifest: Enforcement,
    /// What the tree has renamed, linked or unlinked; the steps of a session share it.
    pub names: KnownNames,
}

/// The names of files that have, or had, several. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct KnownNames(Arc<Names>);

#[derive(Debug, Default)]
struct Names {
    by_file: Mutex<HashMap<Identity, Vec<FileName>, RandomState>>,
    /// How often something was learnt or forgotten.
    version: AtomicU64,
}

impl KnownNames {
    fn lock(&self) -> MutexGuard<'_, HashMap<Identity, Vec<FileName>, RandomState>> {
        lock(&self.0.by_file)
    }

    fn note_change(&self) {
        self.0.version.fetch_add(1, Ordering::SeqCst);
    }
}

/// What tells a file from others, while it exists.
type Identity = (u64, u64);

/// A name of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
struct FileName {
    path: Vec<u8>,
    /// Whether the file had it before the tree did anything.
    is_from_before: bool,
}

/// A use of a place that is about to be made.
#[derive(Debug, Clone, Copy)]
pub struct Use<'a> {
    /// Of which kind of rules.
    pub kind: PathUseKind,
    /// The name by which it is used.
    pub path: &'a [u8],
    /// The other paths at which mounts show it.
    pub elsewhere: &'a [Vec<u8>],
    /// What is there.
    pub stat: Option<&'a FileStat>,
    /// Whether it is the file that is used, whatever its name: it is judged by all of its names.
    pub is_of_file: bool,
    /// Whether only rules count that deny.
    pub denied_only: bool,
    /// Whether only rules count that allow, since it learns nothing of a content.
    pub allowed_only: bool,
    /// Whether the file has lost the name.
    pub is_gone: bool,
}

/// Why a use is forbidden.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Forbidden {
    /// The name of the file that the rule is about.
    pub path: Vec<u8>,
    /// The rule.
    pub rule: String,
}

/// The content of a file at a time, as far as it says whether that is a private key.
#[derive(Debug, Clone, Copy)]
struct KnownContent {
    version: Signature,
    is_key: bool,
}

/// Judges uses before they are made, and keeps what was refused.
#[derive(Debug)]
pub struct Enforcer {
    rules: Arc<EnforcedRules>,
    /// The files that rules name, by what was there when they were read.
    named: HashMap<Identity, Vec<Vec<u8>>, RandomState>,
    keys: HashMap<Identity, KnownContent, RandomState>,
    keyless: KeylessFiles,
    refused: Vec<RefusedUse>,
    index: HashMap<(RefusedSubject, String, u32), usize>,
}

impl Enforcer {
    /// Nothing was refused yet.
    pub fn new(rules: Arc<EnforcedRules>) -> Enforcer {
        let mut named: HashMap<_, Vec<_>, _> = HashMap::default();
        for (path, identity) in rules.policy.named_files() {
            named.entry(identity).or_default().push(path.to_vec());
        }
        for path in &rules.protected {
            if let Ok(Some(stat)) = crate::fs::lstat(path)
                && resolve::is_regular(&stat)
            {
                named.entry((stat.st_dev, stat.st_ino)).or_default().push(path.clone());
            }
        }
        let (keys, refused, index) = (HashMap::default(), Vec::new(), HashMap::default());
        let table = rules.keyless.as_deref().map(|path| PathBuf::from(OsStr::from_bytes(path)));
        Enforcer { rules, named, keys, keyless: KeylessFiles::at(table), refused, index }
    }

    /// Whether there are rules about a kind of use.
    pub fn judges(&self, kind: PathUseKind) -> bool {
        self.rules.policy.judges(kind)
    }

    /// Whether there are rules about socket addresses.
    pub fn judges_addresses(&self) -> bool {
        self.rules.policy.judges_addresses()
    }

    /// Whether something was refused, and that ends the tree.
    pub fn is_to_end_tree(&self) -> bool {
        self.rules.manifest.mode == EnforcementMode::End && !self.refused.is_empty()
    }

    /// Changes when a name of a file is learnt or forgotten.
    pub fn names_version(&self) -> u64 {
        self.rules.names.0.version.load(Ordering::SeqCst)
    }

    /// Notes a name of a file.
    pub fn learn(&mut self, stat: &FileStat, path: &[u8], is_from_before: bool) {
        let mut known = self.rules.names.lock();
        let names = known.entry((stat.st_dev, stat.st_ino)).or_default();
        match names.iter_mut().find(|name| name.path == path) {
            Some(name) if name.is_from_before || !is_from_before => return,
            Some(name) => name.is_from_before = true,
            None => names.push(FileName { path: path.to_vec(), is_from_before }),
        }
        self.rules.names.note_change();
    }

    /// Forgets the file that had the number which a new one has now.
    pub fn forget(&mut self, stat: &FileStat) {
        let identity = (stat.st_dev, stat.st_ino);
        if self.rules.names.lock().remove(&identity).is_some() {
            self.rules.names.note_change();
        }
        self.named.remove(&identity);
        self.keys.remove(&identity);
    }

    /// Why a use is forbidden, if it is.
    pub fn forbids(&mut self, used: Use<'_>) -> Option<Forbidden> {
        let Use { kind, path, stat, .. } = used;
        if kind == PathUseKind::Write && !used.is_gone && self.is_protected(path) {
            return Some(Forbidden { path: path.to_vec(), rule: PROTECTED.to_owned() });
        }
        let mut others = if used.is_of_file { self.other_names(path, stat) } else { Vec::new() };
        // What is allowed at one path need not be so at the others.
        let elsewhere = used.elsewhere.iter().filter(|name| *name != path);
        others.extend(elsewhere.map(|name| FileName { path: name.clone(), is_from_before: false }));
        let protected = others.iter().find(|name| self.is_protected(&name.path));
        if let (PathUseKind::Write, Some(name)) = (kind, protected) {
            return Some(Forbidden { path: name.path.clone(), rule: PROTECTED.to_owned() });
        }
        if !self.judges(kind) {
            return None;
        }
        let rules = Arc::clone(&self.rules);
        let keys = RefCell::new(Keys { known: &mut self.keys, keyless: &self.keyless, path, stat });
        let judge = |name: &[u8], is_from_before| {
            let has = |sign| keys.borrow_mut().has(sign);
            let (word, text) = match rules.policy.decide(kind, name, &has) {
                Decision::Denied(word, text) if !used.allowed_only => (word, Some(text)),
                Decision::NotAllowed(word) if !used.denied_only && is_from_before => (word, None),
                _ => return None,
            };
            Some(Forbidden { path: name.to_vec(), rule: word.with(text.as_deref()) })
        };
        // What the kernel shows of a file that has no name is none, unless it is executed.
        let is_nameless = used.is_gone && kind != PathUseKind::Execute;
        let own = if is_nameless { None } else { judge(path, !used.is_gone) };
        own.or_else(|| others.iter().find_map(|name| judge(&name.path, name.is_from_before)))
    }

    /// What the rules say of a use of a path, as far as its name tells.
    pub fn decide_by_name(&self, kind: PathUseKind, path: &[u8]) -> Decision {
        self.rules.policy.decide_by_name(kind, path)
    }

    /// Why the file at a path may not get the name `to`, by which a later command could use it, if so.
    pub fn forbids_name(
        &mut self,
        kind: PathUseKind,
        from: &[u8],
        stat: &FileStat,
        is_from_before: bool,
        to: &[u8],
    ) -> Option<String> {
        let keys = Keys { known: &mut self.keys, keyless: &self.keyless, path: from, stat: Some(stat) };
        let keys = RefCell::new(keys);
        let has = |sign| keys.borrow_mut().has(sign);
        let (word, text) = self.rules.policy.forbids_name(kind, from, is_from_before, to, &has)?;
        Some(word.with(text.as_deref()))
    }

    /// Why a place may not be used that has no name by which it could be judged; none if no rule is about such uses.
    pub fn forbids_unnamed(&self, kind: PathUseKind) -> Option<String> {
        self.rules.policy.first_rule(kind)
    }

    /// Why a file of ours that may hold contents may not be read, if so: a rule about a file means its content wherever
    /// we keep it. Reads the manifest, which says of which files that is.
    pub fn forbids_content(&self, path: &[u8]) -> Option<Forbidden> {
        if !self.judges(PathUseKind::Read) {
            return None;
        }
        let protected = || Some(Forbidden { path: path.to_vec(), rule: PROTECTED.to_owned() });
        let file = Path::new(OsStr::from_bytes(path));
        let directory = file.parent().filter(|_| file.file_name() == Some(OsStr::new(BLOBS)));
        // Without a manifest nobody knows what is in it.
        let Some(snapshot) = directory.and_then(|directory| Snapshot::open(directory).ok()) else {
            return protected();
        };
        let (path, (word, text)) = forbidden_content(&snapshot, &self.rules.policy)?;
        Some(Forbidden { path, rule: word.with(text.as_deref()) })
    }

    /// Why something beneath a directory may not be read, if so.
    pub fn forbids_reading_beneath(&self, directory: &[u8]) -> Option<String> {
        match self.rules.policy.decide_beneath(PathUseKind::Read, directory) {
            Decision::Denied(word, text) => Some(word.with(Some(&text))),
            _ => None,
        }
    }

    /// Why a socket address may not be used, if so; `stat` is of the socket in the filesystem.
    pub fn forbids_address(&self, used: &NetworkUse, stat: Option<&FileStat>) -> Option<String> {
        let others = match &used.address {
            NetworkAddress::Unix(path) => self.other_names(path, stat),
            NetworkAddress::Inet(_) | NetworkAddress::Inet6(_) | NetworkAddress::Other(_) => Vec::new(),
        };
        let others = others.iter().map(|name| (name.path.as_slice(), name.is_from_before));
        let (word, text) = self.rules.policy.forbids_address(used, others)?;
        Some(word.with(text.as_deref()))
    }

    /// Whether a directory may not be moved, since something is in it that is protected.
    pub fn protects_beneath(&self, directory: &[u8]) -> bool {
        let mut beneath = self.rules.protected.iter().filter(|path| resolve::is_below(path, directory));
        beneath.any(|path| matches!(crate::fs::lstat(path), Ok(Some(_))))
    }

    /// Whether a path is that of the table of files without a private key.
    pub fn is_keyless(&self, path: &[u8]) -> bool {
        self.rules.keyless.as_deref() == Some(path)
    }

    fn is_protected(&self, path: &[u8]) -> bool {
        self.rules.protected.iter().any(|protected| resolve::is_below(path, protected))
            || is_process_memory(path)
    }

    /// The other names of a file.
    fn other_names(&self, path: &[u8], stat: Option<&FileStat>) -> Vec<FileName> {
        let Some(stat) = stat.filter(|stat| has_names(stat)) else { return Vec::new() };
        let identity = (stat.st_dev, stat.st_ino);
        let mut names: Vec<FileName> = self.rules.names.lock().get(&identity).cloned().unwrap_or_default();
        // Who has renamed it is known; a file with one name may have got the number of another one.
        let named = self.named.get(&identity).filter(|_| stat.st_nlink > 1).into_iter().flatten();
        names.extend(named.map(|path| FileName { path: path.clone(), is_from_before: true }));
        names.retain(|name| name.path != path);
        names
    }

    /// Notes a refusal.
    pub fn note(
        &mut self,
        ProcessId(process): ProcessId,
        subject: RefusedSubject,
        rule: String,
    ) -> Result<(), TooMany> {
        let key = (subject, rule, process);
        if let Some(at) = self.index.get(&key) {
            self.refused[*at].count += 1;
            return Ok(());
        }
        if self.refused.len() >= MOST {
            return Err(TooMany);
        }
        let (subject, rule, process) = key.clone();
        self.index.insert(key, self.refused.len());
        self.refused.push(RefusedUse { subject, rule, process, count: 1 });
        Ok(())
    }

    /// All refusals, in the order of the first.
    pub fn refused(&self) -> &[RefusedUse] {
        &self.refused
    }
}

/// Whether a rule that names something means it by its other names, too: a regular file or a socket.
pub fn has_names(stat: &FileStat) -> bool {
    matches!(stat.st_mode & libc::S_IFMT, libc::S_IFREG | libc::S_IFSOCK)
}

/// Whether a path is the memory of a process, by which it could be made to do anything: /proc/PID/mem, wherever a procfs is
/// mounted.
pub fn is_process_memory(path: &[u8]) -> bool {
    path.ends_with(b"/mem") && (path.starts_with(b"/proc/") || resolve::is_in_procfs(path))
}

/// What is asked of the content of a file that is about to be read.
struct Keys<'a> {
    known: &'a mut HashMap<Identity, KnownContent, RandomState>,
    keyless: &'a KeylessFiles,
    path: &'a [u8],
    stat: Option<&'a FileStat>,
}

impl Keys<'_> {
    fn has(&mut self, sign: ContentSign) -> bool {
        let stat = match (sign, self.stat) {
            // A file that is about to be made is empty.
            (_, None) => return false,
            (ContentSign::Key, Some(stat)) => stat,
            (_, Some(_)) => return may_have_sign(self.path, sign),
        };
        if !resolve::is_regular(stat) {
            return false;
        }
        let version = Signature::from(stat);
        let identity = (stat.st_dev, stat.st_ino);
        if let Some(known) = self.known.get(&identity).filter(|known| known.version == version) {
            return known.is_key;
        }
        if self.keyless.contains(&version) {
            return false;
        }
        let is_key = may_have_key(self.path, stat.st_size.cast_unsigned());
        if !version.is_recent() {
            self.known.insert(identity, KnownContent { version, is_key });
            if !is_key {
                self.keyless.add(&version);
            }
        }
        is_key
    }
}
