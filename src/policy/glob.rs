//! Patterns of absolute paths, as in gitignore(5).
//!
//! Neighbour: `rules.rs` makes them of the words of the user.

use crate::fs::{joined, parent_of};
use crate::git::below;

/// A pattern of absolute paths; what is beneath a directory that it matches, matches, too, unless it ends with `/.`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PathGlob {
    glob: Vec<u8>,
    /// The directory, or path, that its first components name without a wildcard.
    prefix: Vec<u8>,
    /// Whether the prefix is all of it.
    is_literal: bool,
    /// Whether it does not match what is beneath.
    is_alone: bool,
}

impl PathGlob {
    /// The pattern that matches one path and everything beneath it.
    pub fn literal(path: &[u8]) -> PathGlob {
        PathGlob { glob: escaped(path), prefix: path.to_vec(), is_literal: true, is_alone: false }
    }

    /// The pattern `text` below the directory `base`, which is a path and no pattern.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn below(base: &[u8], text: &[u8]) -> Result<PathGlob, &'static str> {
        check(text)?;
        let is_alone = text.ends_with(b"/.");
        let base = escaped(base);
        let mut components: Vec<&[u8]> = Vec::new();
        for component in base.split(|byte| *byte == b'/').chain(text.split(|byte| *byte == b'/')) {
            match component {
                b"" | b"." => {}
                b".." => drop(components.pop()),
                component => components.push(component),
            }
        }
        let literals: Vec<_> = components.iter().map_while(|component| literal(component)).collect();
        let is_literal = literals.len() == components.len();
        Ok(PathGlob { glob: joined(&components), prefix: joined(&literals), is_literal, is_alone })
    }

    /// The same pattern with another path in place of the prefix, which leads there by symlinks.
    pub fn moved(&self, prefix: &[u8]) -> PathGlob {
        let kept = self.prefix.split(|byte| *byte == b'/').filter(|name| !name.is_empty()).count();
        let rest = self.glob.split(|byte| *byte == b'/').filter(|name| !name.is_empty()).skip(kept);
        let mut glob = if prefix == b"/" { Vec::new() } else { escaped(prefix) };
        for component in rest {
            glob.push(b'/');
            glob.extend_from_slice(component);
        }
        if glob.is_empty() {
            glob.push(b'/');
        }
        PathGlob { glob, prefix: prefix.to_vec(), ..*self }
    }

    /// The pattern.
    pub fn text(&self) -> &[u8] {
        &self.glob
    }

    /// The path that its first components name without a wildcard.
    pub fn prefix(&self) -> &[u8] {
        &self.prefix
    }

    /// The path, if it has no wildcard.
    pub fn literal_path(&self) -> Option<&[u8]> {
        self.is_literal.then_some(self.prefix.as_slice())
    }

    /// Whether it matches `path` or a directory above it.
    pub fn matches(&self, path: &[u8]) -> bool {
        if below(path, &self.prefix).is_none() {
            return false;
        }
        if self.is_alone {
            return self.is_match(path);
        }
        self.is_literal
            || std::iter::successors(Some(path), |path| parent_of(path)).any(|path| self.is_match(path))
    }

    /// Whether it matches everything beneath `directory`.
    pub fn matches_all_beneath(&self, directory: &[u8]) -> bool {
        if self.is_alone {
            return false;
        }
        let all = self.glob.strip_suffix(b"/**").filter(|_| !self.is_literal);
        let has_all = |directory: &[u8]| match all {
            Some(b"") => true,
            Some(glob) => wildmatch(glob, directory),
            None => false,
        };
        self.matches(directory) || std::iter::successors(Some(directory), |path| parent_of(path)).any(has_all)
    }

    /// Whether it can match something beneath `directory`.
    pub fn may_match_beneath(&self, directory: &[u8]) -> bool {
        below(&self.prefix, directory).is_some() || !self.is_alone && below(directory, &self.prefix).is_some()
    }

    fn is_match(&self, path: &[u8]) -> bool {
        wildmatch(&self.glob, path)
    }
}

/// Whether a name without slashes, such as that of an abstract socket, matches a pattern.
pub fn name_matches(glob: &[u8], name: &[u8]) -> bool {
    gix::glob::wildmatch(glob.into(), name.into(), gix::glob::wildmatch::Mode::empty())
}

fn wildmatch(glob: &[u8], path: &[u8]) -> bool {
    use gix::glob::wildmatch::Mode;
    gix::glob::wildmatch(glob.into(), path.into(), Mode::NO_MATCH_SLASH_LITERAL)
}

/// `path` as a pattern that matches nothing else.
pub fn escaped(path: &[u8]) -> Vec<u8> {
    let mut glob = Vec::with_capacity(path.len());
    for byte in path {
        if b"*?[\\".contains(byte) {
            glob.push(b'\\');
        }
        glob.push(*byte);
    }
    glob
}

/// The name that a component stands for; none if it has a wildcard.
fn literal(component: &[u8]) -> Option<Vec<u8>> {
    let mut name = Vec::with_capacity(component.len());
    let mut bytes = component.iter();
    while let Some(byte) = bytes.next() {
        match byte {
            b'\\' => name.push(*bytes.next()?),
            b'*' | b'?' | b'[' => return None,
            byte => name.push(*byte),
        }
    }
    Some(name)
}

/// Refuses a pattern that could never match.
pub fn check(text: &[u8]) -> Result<(), &'static str> {
    let mut bytes = text.iter().copied().peekable();
    while let Some(byte) = bytes.next() {
        match byte {
            b'\\' if bytes.next().is_none() => return Err("ends with a backslash"),
            b'[' => {
                // The first character of a class may be a bracket.
                bytes.next_if(|byte| matches!(byte, b'!' | b'^'));
                bytes.next_if_eq(&b']');
                let is_closed = loop {
                    match bytes.next() {
                        Some(b']') => break true,
                        Some(b'\\') => drop(bytes.next()),
                        None | Some(b'/') => break false,
                        Some(_) => {}
                    }
                };
                if !is_closed {
                    return Err("has a [ without its ]");
                }
            }
            _ => {}
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn glob(base: &str, text: &str) -> PathGlob {
        PathGlob::below(base.as_bytes(), text.as_bytes()).unwrap()
    }

    #[test]
    fn what_is_beneath_a_match_matches() {
        for (text, matching, others) in [
            ("src", &["/w/src", "/w/src/a/b"][..], &["/w/srcs", "/w/a/src", "/src", "/w"][..]),
            ("**/src", &["/w/src", "/w/a/src", "/w/a/b/src/c"], &["/src", "/v/src"]),
            ("src/**", &["/w/src/a", "/w/src/a/b"], &["/w/src", "/w"]),
            ("*.o", &["/w/x.o", "/w/x.o/y"], &["/w/a/x.o", "/w/x.c"]),
            ("a?/[bc]", &["/w/ax/b", "/w/ay/c/d"], &["/w/a/b", "/w/ax/d", "/w/a/x/b"]),
            ("../v/./x", &["/v/x"], &["/w/v/x"]),
            ("..", &["/w", "/etc"], &[]),
            ("a/.", &["/w/a"], &["/w/a/b", "/w"]),
            ("*/.", &["/w/a"], &["/w/a/b", "/w"]),
            ("../.", &["/"], &["/w", "/x"]),
            ("\\*", &["/w/*"], &["/w/a"]),
        ] {
            let glob = glob("/w", text);
            for path in matching {
                assert!(glob.matches(path.as_bytes()), "{text}: {path}");
            }
            for path in others {
                assert!(!glob.matches(path.as_bytes()), "{text}: {path}");
            }
        }
    }

    #[test]
    fn the_base_is_no_pattern() {
        let glob = glob("/w[1]*", "x");
        assert!(glob.matches(b"/w[1]*/x/y") && !glob.matches(b"/w1/x"));
        assert!(PathGlob::literal(b"/w*").matches(b"/w*/x") && !PathGlob::literal(b"/w*").matches(b"/ww"));
        assert!(PathGlob::literal(b"/").matches(b"/x"));
    }

    #[test]
    fn what_is_beneath_a_directory_may_or_must_match() {
        for (text, directory, all, some) in [
            ("/w/**", "/w", true, true),
            ("/w/**", "/w/a", true, true),
            ("/w", "/w/a", true, true),
            ("/w/a", "/w", false, true),
            ("/w/*.o", "/w", false, true),
            ("/w/*.o", "/v", false, false),
            ("/**", "/v", true, true),
            ("/w/*/x", "/v/w", false, false),
            ("/*/x/**", "/w/x", true, true),
            ("/w/.", "/w", false, true),
            ("/w/.", "/w/a", false, false),
        ] {
            let glob = glob("/", text);
            assert_eq!(glob.matches_all_beneath(directory.as_bytes()), all, "{text} {directory}");
            assert_eq!(glob.may_match_beneath(directory.as_bytes()), some, "{text} {directory}");
        }
    }

    #[test]
    fn a_pattern_moves_with_the_symlink_that_its_prefix_is() {
        let moved = glob("/home/me", "a/*.o").moved(b"/data/[x]/a");
        assert!(moved.matches(b"/data/[x]/a/y.o") && !moved.matches(b"/data/x/a/y.o"));
        assert_eq!(moved.prefix(), b"/data/[x]/a");
        assert!(glob("/", "/a").moved(b"/b/c").matches(b"/b/c/d"));
        assert!(glob("/", "/a/*").moved(b"/").matches(b"/x"));
    }

    #[test]
    fn a_pattern_that_can_never_match_is_refused() {
        for wrong in ["a\\", "[a", "a[/]b", "[]", "[!]"] {
            assert!(check(wrong.as_bytes()).is_err(), "{wrong}");
        }
        for right in ["[]]", "[!]a]", "\\[", "[a\\]b]", "**/a"] {
            assert!(check(right.as_bytes()).is_ok(), "{right}");
        }
    }
}
