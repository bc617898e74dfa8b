//! What a program knows of its tree, and how it chooses paths and spells them.

use std::collections::BTreeMap;
use std::ffi::CString;
use std::io::Write as _;

use libc::{c_int, c_long};

use crate::calls;
use crate::descriptors::Descriptor;
use crate::names::{self, below, join, parent};
use crate::rng::Rng;
use crate::support::{Answer, CWD};

/// What is believed to be at a path. Calls through symlinks make it wrong, which does no harm.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Kind {
    Directory,
    File,
    /// With the path that it leads to.
    Link(Vec<u8>),
    Other,
}

pub type Model = BTreeMap<Vec<u8>, Kind>;

/// One program, or a part of one that runs at once with others.
#[derive(Clone)]
pub struct World {
    pub rng: Rng,
    /// The tree's root, absolute.
    pub root: Vec<u8>,
    pub model: Model,
    /// Where the thread works, as believed.
    pub cwd: Vec<u8>,
    pub descriptors: Vec<Descriptor>,
    /// Shared mappings: address, length, descriptor.
    pub mappings: Vec<(usize, usize, c_int)>,
    /// Only paths below are used.
    pub scope: Vec<u8>,
    /// Whether others use the same names at the same time.
    pub racing: bool,
    pub privileged: bool,
    /// How many programs this one is a part of.
    pub nested: u32,
}

/// A path as a call takes it.
pub struct Spelled {
    pub dirfd: c_int,
    pub path: CString,
}

impl World {
    pub fn new(rng: Rng, root: Vec<u8>) -> World {
        let privileged = sys!(libc::SYS_geteuid) == Ok(0);
        World {
            rng,
            root,
            model: Model::new(),
            cwd: Vec::new(),
            descriptors: Vec::new(),
            mappings: Vec::new(),
            scope: Vec::new(),
            racing: false,
            privileged,
            nested: 0,
        }
    }

    pub fn run(&mut self, operations: u64) {
        for _ in 0..operations {
            calls::one(self);
        }
    }

    /// Prints a call and its result.
    pub fn say(&self, what: &str, path: &Spelled, answer: Answer) {
        self.say_of(&format!("{what} {}", path.shown()), answer);
    }

    pub fn say_of(&self, what: &str, answer: Answer) {
        let tid: c_long = sys!(libc::SYS_gettid).unwrap_or(0);
        let answer = match answer {
            Ok(value) => value.to_string(),
            Err(errno) => std::io::Error::from_raw_os_error(errno).to_string(),
        };
        let _ = std::io::stderr().write_all(format!("{tid} {what} = {answer}\n").as_bytes());
    }

    fn known(&self, wanted: impl Fn(&Kind) -> bool) -> Vec<Vec<u8>> {
        let inside = |path: &[u8]| below(path, &self.scope).is_some();
        let known = self.model.iter().filter(|(path, kind)| inside(path) && wanted(kind));
        known.map(|(path, _)| path.clone()).collect()
    }

    fn one_of(&mut self, known: &[Vec<u8>]) -> Option<Vec<u8>> {
        (!known.is_empty()).then(|| known[self.rng.index(known.len())].clone())
    }

    pub fn directory(&mut self) -> Vec<u8> {
        let mut known = self.known(|kind| *kind == Kind::Directory);
        known.push(self.scope.clone());
        self.one_of(&known).unwrap_or_default()
    }

    /// A path where nothing should be.
    pub fn new_path(&mut self) -> Vec<u8> {
        let directory = self.directory();
        join(&directory, names::name(&mut self.rng))
    }

    pub fn existing(&mut self) -> Vec<u8> {
        let known = self.known(|_| true);
        self.one_of(&known).unwrap_or_else(|| self.new_path())
    }

    pub fn file(&mut self) -> Vec<u8> {
        if self.rng.chance(10) {
            return self.any();
        }
        let known = self.known(|kind| matches!(kind, Kind::File | Kind::Link(_)));
        self.one_of(&known).unwrap_or_else(|| self.new_path())
    }

    pub fn any(&mut self) -> Vec<u8> {
        if self.rng.chance(75) { self.existing() } else { self.new_path() }
    }

    /// Any way to write `path`, from any place that a path can start at.
    pub fn spell(&mut self, path: &[u8]) -> Spelled {
        let path = self.through_link(path);
        let directory = *self.model.get(&path).unwrap_or(&Kind::Other) == Kind::Directory;
        let (dirfd, mut text) = match self.rng.below(20) {
            0..10 => (CWD, names::relative(&self.cwd, &path)),
            10..14 => (CWD, join(&self.root, &path)),
            14..17 => match self.directory_descriptor() {
                Some((fd, at)) => (fd, names::relative(&at, &path)),
                None => (CWD, names::relative(&self.cwd, &path)),
            },
            17 => match self.directory_descriptor() {
                Some((fd, at)) => {
                    let start = match self.rng.below(3) {
                        0 => format!("/proc/self/fd/{fd}/"),
                        1 => format!("/dev/fd/{fd}/"),
                        _ => format!("/proc/thread-self/fd/{fd}/"),
                    };
                    (CWD, [start.into_bytes(), names::relative(&at, &path)].concat())
                }
                None => (CWD, [b"/proc/self/root".as_slice(), &join(&self.root, &path)].concat()),
            },
            18 => {
                let start = self.rng.pick(&[&b"/proc/self/cwd/"[..], b"/proc/thread-self/cwd/"]);
                (CWD, [start, &names::relative(&self.cwd, &path)].concat())
            }
            _ => {
                let start = format!("/proc/{}/cwd/", std::process::id());
                // Another thread's working directory may be another one.
                if self.nested == 0 {
                    (CWD, [start.as_bytes(), &names::relative(&self.cwd, &path)].concat())
                } else {
                    (CWD, [b"/proc/self/root".as_slice(), &join(&self.root, &path)].concat())
                }
            }
        };
        self.add_noise(&mut text);
        match self.rng.below(60) {
            0..2 => text.push(b'/'),
            2 => text.extend_from_slice(b"/."),
            3 => text.extend_from_slice(b"/.."),
            4 => text.extend_from_slice(b"//"),
            5..15 if directory => text.push(b'/'),
            _ => {}
        }
        Spelled { dirfd, path: CString::new(text).unwrap() }
    }

    /// The same for a call that has no `dirfd`.
    pub fn spell_plain(&mut self, path: &[u8]) -> Spelled {
        loop {
            let spelled = self.spell(path);
            if spelled.dirfd == CWD {
                return spelled;
            }
        }
    }

    /// Replaces the start of a path by a symlink to it.
    fn through_link(&mut self, path: &[u8]) -> Vec<u8> {
        if !self.rng.chance(20) {
            return path.to_vec();
        }
        let links = self.model.iter().filter_map(|(link, kind)| match kind {
            Kind::Link(target) if below(link, &self.scope).is_some() => {
                below(path, target).filter(|rest| !rest.is_empty()).map(|rest| join(link, rest))
            }
            _ => None,
        });
        let links: Vec<_> = links.collect();
        self.one_of(&links).unwrap_or_else(|| path.to_vec())
    }

    /// Adds what changes nothing: `.`, `//`, a step into a directory and back.
    fn add_noise(&mut self, text: &mut Vec<u8>) {
        if !self.rng.chance(30) {
            return;
        }
        let slashes: Vec<usize> =
            text.iter().enumerate().filter(|(_, byte)| **byte == b'/').map(|(at, _)| at).collect();
        if slashes.is_empty() {
            return text.splice(0..0, *b"./").for_each(drop);
        }
        let at = self.rng.pick(&slashes);
        let noise = match self.rng.below(4) {
            0 => b"/".to_vec(),
            1 => b"/.".to_vec(),
            2 => b"/././/".to_vec(),
            _ => {
                let name = names::name(&mut self.rng);
                // The name that follows is a directory, if anything comes after it.
                let next: Vec<u8> = text[at + 1..].iter().copied().take_while(|byte| *byte != b'/').collect();
                let more = at + 1 + next.len() < text.len();
                let name = if more && !next.is_empty() && next != b".." { &next } else { name };
                [b"/", name, b"/.."].concat()
            }
        };
        text.splice(at..at, noise);
    }

    /// Notes that something was removed, with all that is believed to be below.
    pub fn forget(&mut self, path: &[u8]) {
        self.model.retain(|known, _| below(known, path).is_none());
    }

    pub fn moved(&mut self, from: &[u8], to: &[u8], exchange: bool) {
        let take = |model: &mut Model, path: &[u8]| -> Vec<(Vec<u8>, Kind)> {
            let taken = model
                .iter()
                .filter_map(|(known, kind)| below(known, path).map(|rest| (rest.to_vec(), kind.clone())));
            let taken = taken.collect();
            model.retain(|known, _| below(known, path).is_none());
            taken
        };
        let put = |model: &mut Model, path: &[u8], taken: Vec<(Vec<u8>, Kind)>| {
            for (rest, kind) in taken {
                let path = if rest.is_empty() { path.to_vec() } else { join(path, &rest) };
                model.insert(path, kind);
            }
        };
        let first = take(&mut self.model, from);
        let second = take(&mut self.model, to);
        put(&mut self.model, to, first);
        if exchange {
            put(&mut self.model, from, second);
        }
        if let Some(rest) = below(&self.cwd, from) {
            self.cwd = if rest.is_empty() { to.to_vec() } else { join(to, rest) };
        }
    }

    /// Where a symlink at `path` with `text` leads.
    pub fn link(&self, path: &[u8], text: &[u8]) -> Kind {
        match below(text, &self.root) {
            Some(inside) if text.starts_with(b"/") => Kind::Link(names::normal(inside)),
            _ => Kind::Link(names::normal(&join(parent(path), text))),
        }
    }
}

impl Spelled {
    pub fn shown(&self) -> String {
        let path = self.path.to_bytes().escape_ascii();
        if self.dirfd == CWD { format!("'{path}'") } else { format!("{}:'{path}'", self.dirfd) }
    }
}
