//! Paths of a snapshot on the command line and in the output: which ones an argument selects, and how one
//! is quoted.
//!
//! A path is quoted as Git quotes it, so that it is one line and moves no cursor.

use std::borrow::Cow;
use std::collections::HashSet;
use std::ffi::{OsStr, OsString};
use std::fmt::Write as _;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Component, Path, PathBuf};

use anyhow::Context as _;

use super::exit::UsageError;
use crate::git::below;
use crate::policy::check_pattern;
use crate::snapshot::secrets::mask;
use crate::snapshot::{FileRecord, Snapshot, is_hidden};

/// The paths that arguments select: each with everything beneath it, or all paths if there are no
/// arguments.
#[derive(Debug)]
pub struct Selection {
    all: bool,
    wanted: HashSet<Vec<u8>>,
    unmatched: Vec<OsString>,
}

impl Selection {
    /// Finds what `args` mean in `snapshot`.
    ///
    /// An argument is absolute, or relative to the current directory; it is taken as written and with its
    /// parent resolved. If the snapshot has neither, a relative argument is taken relative to the
    /// directory that the command was started in, as `show` prints it.
    pub fn new(snapshot: &Snapshot, args: &[OsString]) -> anyhow::Result<Selection> {
        let mut selection = Selection { all: args.is_empty(), wanted: HashSet::new(), unmatched: Vec::new() };
        for arg in args {
            let known: Vec<_> = candidates(snapshot, arg)?
                .into_iter()
                .find(|tier| tier.iter().any(|path| knows(snapshot, path)))
                .unwrap_or_default();
            if known.is_empty() {
                selection.unmatched.push(arg.clone());
            }
            selection.wanted.extend(known);
        }
        Ok(selection)
    }

    /// All paths.
    pub fn all() -> Selection {
        Selection { all: true, wanted: HashSet::new(), unmatched: Vec::new() }
    }

    /// These paths, each with everything beneath it.
    pub fn of(paths: Vec<Vec<u8>>) -> Selection {
        Selection { all: false, wanted: paths.into_iter().collect(), unmatched: Vec::new() }
    }

    /// Whether `path` is one of the paths or beneath one.
    pub fn contains(&self, path: &[u8]) -> bool {
        self.all || ancestors(path).any(|ancestor| self.wanted.contains(ancestor))
    }

    /// Whether `path` itself was named.
    pub fn names(&self, path: &[u8]) -> bool {
        self.wanted.contains(path)
    }

    /// Whether `directory`, `path` in it, or something between them was named.
    pub fn names_between(&self, directory: &[u8], path: &[u8]) -> bool {
        let is_named =
            |ancestor: &&[u8]| ancestor.len() >= directory.len() && self.wanted.contains(*ancestor);
        ancestors(path).any(|ancestor| is_named(&ancestor))
    }

    /// Whether there were arguments; without them, all paths are selected.
    pub fn is_explicit(&self) -> bool {
        !self.all
    }

    /// The paths that were named, sorted.
    pub fn wanted(&self) -> Vec<Vec<u8>> {
        let mut wanted: Vec<_> = self.wanted.iter().cloned().collect();
        wanted.sort_unstable();
        wanted
    }

    /// The arguments that select no path of the snapshot.
    pub fn unmatched(&self) -> &[OsString] {
        &self.unmatched
    }
}

/// A pattern of [`Exclusions`] that means the same in any current directory.
pub fn anchored(glob: &OsStr) -> anyhow::Result<Vec<u8>> {
    let glob = glob.as_bytes().strip_suffix(b"/").unwrap_or(glob.as_bytes());
    Ok(match glob.contains(&b'/') {
        true => absolute(OsStr::from_bytes(glob))?.into_os_string().into_encoded_bytes(),
        false => glob.to_vec(),
    })
}

/// The paths that patterns leave out, each with everything beneath it.
///
/// A pattern with a slash is absolute or relative to the current directory, another one matches a name anywhere; `*`
/// and `?` stand for no slash, `**` for any path (gitignore(5)).
#[derive(Debug)]
pub struct Exclusions(Vec<Vec<u8>>);

impl Exclusions {
    /// The paths that `globs` match.
    pub fn new(globs: &[OsString]) -> anyhow::Result<Exclusions> {
        let whole = |glob: &OsString| {
            let text = glob.as_bytes();
            let fault = if text.is_empty() { Err("is empty") } else { check_pattern(text) };
            if let Err(why) = fault {
                return Err(UsageError(format!("--exclude {}: the pattern {why}", quoted(text))).into());
            }
            let glob = anchored(glob)?;
            Ok(if glob.contains(&b'/') { glob } else { [b"**/", &*glob].concat() })
        };
        Ok(Exclusions(globs.iter().map(whole).collect::<anyhow::Result<_>>()?))
    }

    /// Whether nothing is left out.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether `path` or a directory above it is left out.
    pub fn contain(&self, path: &[u8]) -> bool {
        use gix::glob::wildmatch::Mode;
        let matches = |path: &[u8]| {
            let is_match = |glob: &Vec<u8>| {
                gix::glob::wildmatch(glob.as_slice().into(), path.into(), Mode::NO_MATCH_SLASH_LITERAL)
            };
            self.0.iter().any(is_match)
        };
        !self.is_empty() && ancestors(path).any(matches)
    }
}

/// The record that `arg` names, by the rules of [`Selection`], or the absolute path that it means.
pub fn find<'s>(snapshot: &'s Snapshot, arg: &OsStr) -> anyhow::Result<Result<&'s FileRecord, Vec<u8>>> {
    let tiers = candidates(snapshot, arg)?;
    let found = tiers.iter().flatten().find_map(|path| snapshot.find(path));
    Ok(found.ok_or_else(|| tiers.into_iter().flatten().next().unwrap_or_default()))
}

/// The paths that `arg` can mean, the most likely first.
fn candidates(snapshot: &Snapshot, arg: &OsStr) -> anyhow::Result<[Vec<Vec<u8>>; 2]> {
    let here = live(arg)?;
    let arg = Path::new(arg);
    let start = Path::new(OsStr::from_bytes(&snapshot.header().start_cwd));
    let there = if arg.is_absolute() { Vec::new() } else { vec![lexical(&start.join(arg))] };
    Ok([here, there])
}

/// The absolute paths that `arg` can mean now: as it is written, and as it resolves.
pub fn live(arg: &OsStr) -> anyhow::Result<Vec<Vec<u8>>> {
    let absolute = absolute(arg)?;
    let mut found = vec![lexical(&absolute)];
    let resolved = lexical(&resolve_parent(&absolute));
    if !found.contains(&resolved) {
        found.push(resolved);
    }
    Ok(found)
}

/// The current directory; empty if it is gone.
pub fn here() -> Vec<u8> {
    std::env::current_dir().unwrap_or_default().into_os_string().into_encoded_bytes()
}

/// The path as it is written, from the root on. The current directory may be gone: it counts for a relative one alone.
pub fn absolute(path: &OsStr) -> anyhow::Result<PathBuf> {
    if path.is_empty() {
        return Err(UsageError("an empty path names nothing".to_owned()).into());
    }
    let path = Path::new(path);
    if path.is_absolute() {
        return Ok(path.to_owned());
    }
    Ok(std::env::current_dir().context("find the current directory")?.join(path))
}

/// Whether there is a record of `path` or of something beneath it.
fn knows(snapshot: &Snapshot, path: &[u8]) -> bool {
    let mut beneath = path.to_vec();
    if beneath != b"/" {
        beneath.push(b'/');
    }
    // Everything beneath a path is contiguous, although siblings such as `a-b` sort between it and `a`.
    let has_beneath = |records: &[FileRecord]| {
        let next = records.partition_point(|record| record.path < beneath);
        records.get(next).is_some_and(|record| record.path.starts_with(&beneath))
    };
    snapshot.find(path).is_some() || has_beneath(snapshot.files()) || has_beneath(snapshot.inputs())
}

/// `path` without `.`, `..` and empty components, going by its text alone.
fn lexical(path: &Path) -> Vec<u8> {
    let mut clean = PathBuf::from("/");
    for component in path.components() {
        match component {
            Component::Normal(name) => clean.push(name),
            Component::ParentDir => {
                clean.pop();
            }
            Component::RootDir | Component::CurDir | Component::Prefix(_) => {}
        }
    }
    clean.into_os_string().into_encoded_bytes()
}

/// The absolute path with as much of it resolved as exists.
pub fn resolved(path: &[u8]) -> Vec<u8> {
    let beneath = Path::new(OsStr::from_bytes(path)).join("x");
    resolve_parent(&beneath)
        .parent()
        .map_or_else(|| path.to_vec(), |real| real.as_os_str().as_bytes().to_vec())
}

/// The path with as much of its parent resolved as exists, since a recorded path has no symlink in its
/// parent.
fn resolve_parent(path: &Path) -> PathBuf {
    let Some(parent) = path.parent() else { return path.to_owned() };
    let real = parent.ancestors().find_map(|ancestor| {
        let real = ancestor.canonicalize().ok()?;
        Some(real.join(path.strip_prefix(ancestor).ok()?))
    });
    real.unwrap_or_else(|| path.to_owned())
}

/// `path` and all its parent directories, the root last.
fn ancestors(path: &[u8]) -> impl Iterator<Item = &[u8]> {
    std::iter::successors(Some(path), |path| match path.iter().rposition(|byte| *byte == b'/') {
        Some(0) if path.len() > 1 => Some(&path[..1]),
        Some(slash) if slash > 0 => Some(&path[..slash]),
        _ => None,
    })
}

/// The name to print for `path`: relative to `base` if it is beneath it, and quoted if necessary.
pub fn shown<'p>(path: &'p [u8], base: &[u8]) -> Cow<'p, str> {
    match below(path, base) {
        Some(b"") => Cow::Borrowed("."),
        Some(relative) => quoted(relative),
        None => quoted(path),
    }
}

/// `name` as Git prints it with `core.quotePath` off: in double quotes with C escapes if it contains a
/// quote, a backslash or anything invisible.
pub fn quoted(name: &[u8]) -> Cow<'_, str> {
    match std::str::from_utf8(name) {
        Ok(text) if !text.contains(must_be_quoted) => Cow::Borrowed(text),
        _ => {
            let mut out = String::with_capacity(name.len() + 8);
            out.push('"');
            quote_into(&mut out, name);
            out.push('"');
            Cow::Owned(out)
        }
    }
}

/// The inside of a quoted name, for names that are composed of parts.
pub fn quote_into(out: &mut String, name: &[u8]) {
    for chunk in name.utf8_chunks() {
        for char in chunk.valid().chars() {
            match char {
                '"' => out.push_str("\\\""),
                '\\' => out.push_str("\\\\"),
                '\n' => out.push_str("\\n"),
                '\t' => out.push_str("\\t"),
                '\r' => out.push_str("\\r"),
                '\x07' => out.push_str("\\a"),
                '\x08' => out.push_str("\\b"),
                '\x0b' => out.push_str("\\v"),
                '\x0c' => out.push_str("\\f"),
                char if must_be_quoted(char) => octal(out, char.encode_utf8(&mut [0; 4]).as_bytes()),
                char => out.push(char),
            }
        }
        octal(out, chunk.invalid());
    }
}

fn octal(out: &mut String, bytes: &[u8]) {
    for byte in bytes {
        // Writing to a String can't fail.
        let _ = write!(out, "\\{byte:03o}");
    }
}

/// Whether a name with `char` in it is quoted, which includes invisible and bidirectional controls.
pub fn must_be_quoted(char: char) -> bool {
    matches!(char, '"' | '\\') || is_hidden(char)
}

/// A word of a command, quoted for a POSIX shell, or as `$'...'` for bash if it contains anything
/// invisible.
pub fn shell_word(word: &[u8]) -> Cow<'_, str> {
    let plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"_-./:=@%+,~".contains(byte);
    match std::str::from_utf8(word) {
        Ok(text) if !word.is_empty() && word[0] != b'~' && word.iter().all(plain) => Cow::Borrowed(text),
        Ok(text) if !text.contains(|char| must_be_quoted(char) && !matches!(char, '"' | '\\')) => {
            Cow::Owned(format!("'{}'", text.replace('\'', "'\\''")))
        }
        _ => {
            let mut out = String::from("$'");
            for part in word.split_inclusive(|byte| *byte == b'\'') {
                let (part, quote) = match part.strip_suffix(b"'") {
                    Some(part) => (part, "\\'"),
                    None => (part, ""),
                };
                // Within $'...' a double quote may be escaped, too.
                quote_into(&mut out, part);
                out.push_str(quote);
            }
            out.push('\'');
            Cow::Owned(out)
        }
    }
}

/// A command, quoted for a shell.
pub fn shell_line<W: AsRef<[u8]>>(argv: &[W]) -> String {
    let words: Vec<_> = argv.iter().map(|word| shell_word(word.as_ref())).collect();
    words.join(" ")
}

/// The same, with the secrets in it masked.
pub fn masked_line(argv: &[Vec<u8>]) -> String {
    mask(argv).map_or_else(|| shell_line(argv), |masked| shell_line(&masked))
}

/// `1 process`, `1,000 processes`.
pub fn counted(count: usize, one: &str, many: &str) -> String {
    format!("{} {}", indicatif::HumanCount(count as u64), if count == 1 { one } else { many })
}

/// `1 path`, `1,000 paths`.
pub fn number_of_paths(count: usize) -> String {
    counted(count, "path", "paths")
}

#[cfg(test)]
mod tests;
