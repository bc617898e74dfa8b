//! Patterns of paths as the user writes them: relative, with `~`, or a preset such as `@tmp`.
//!
//! Neighbours: `rules.rs` has the words that they follow, `glob.rs` what they come to.

use super::glob::{PathGlob, check};
use super::rules::{PolicyPlaces, RuleWord};
use crate::git::below;
use crate::snapshot::secrets::{ContentSign, Secrets};

/// Where `@tmp` is, besides `$TMPDIR`.
const TEMPORARY: [&[u8]; 3] = [b"/tmp", b"/var/tmp", b"/dev/shm"];

/// Where `@system` is: programs, libraries, their configuration, and what the kernel shows as files.
pub(super) const SYSTEM: [&[u8]; 13] = [
    b"/bin",
    b"/dev",
    b"/etc",
    b"/lib",
    b"/lib32",
    b"/lib64",
    b"/libx32",
    b"/nix/store",
    b"/opt",
    b"/proc",
    b"/sbin",
    b"/sys",
    b"/usr",
];

/// The presets.
pub const PRESETS: [&[u8]; 4] = [b"@workspace", b"@tmp", b"@system", b"@secrets"];

/// A rule about paths.
#[derive(Debug, Clone)]
pub struct PathRule {
    /// As given.
    pub text: Vec<u8>,
    /// What it means.
    pub paths: PathMatch,
}

/// Which paths a rule means.
#[derive(Debug, Clone)]
pub enum PathMatch {
    /// Those that one of these matches.
    Globs(Vec<PathGlob>),
    /// Those of secret files.
    Secrets(Secrets),
}

impl PathMatch {
    /// Whether it means a path; `has` tells whether the content of the file has what makes it a secret.
    pub fn matches(&self, path: &[u8], has: impl FnOnce(ContentSign) -> bool) -> bool {
        match self {
            PathMatch::Globs(globs) => globs.iter().any(|glob| glob.matches(path)),
            PathMatch::Secrets(secrets) => secrets.is_secret(path, has),
        }
    }

    /// Whether it means everything beneath a directory.
    pub fn matches_all_beneath(&self, directory: &[u8]) -> bool {
        match self {
            PathMatch::Globs(globs) => globs.iter().any(|glob| glob.matches_all_beneath(directory)),
            PathMatch::Secrets(secrets) => secrets.is_secret_by_name(directory),
        }
    }

    /// Whether it may mean something beneath a directory.
    pub fn may_match_beneath(&self, directory: &[u8]) -> bool {
        match self {
            PathMatch::Globs(globs) => globs.iter().any(|glob| glob.may_match_beneath(directory)),
            PathMatch::Secrets(_) => true,
        }
    }
}

/// Makes patterns of the texts of rules.
pub struct PatternMaker<'a> {
    /// What they are relative to.
    pub places: &'a PolicyPlaces,
    /// Tells where a path leads now.
    pub resolve: &'a dyn Fn(&[u8]) -> Vec<u8>,
    /// The word that the texts follow.
    pub word: RuleWord,
}

impl PatternMaker<'_> {
    /// Which paths a text means.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn paths(&self, text: &[u8]) -> Result<PathMatch, String> {
        let literals =
            |paths: &[&[u8]]| PathMatch::Globs(paths.iter().map(|path| PathGlob::literal(path)).collect());
        Ok(match text {
            b"@workspace" => {
                let git = self.places.git_directory.as_deref();
                literals(&[self.places.workspace()].into_iter().chain(git).collect::<Vec<_>>())
            }
            b"@tmp" => {
                let temporary = self.places.temporary.as_deref();
                let system = TEMPORARY.map(|path| (self.resolve)(path));
                let system = system.iter().map(Vec::as_slice).chain(TEMPORARY);
                literals(&system.chain(temporary).collect::<Vec<_>>())
            }
            b"@system" => {
                let resolved = SYSTEM.map(|path| (self.resolve)(path));
                literals(&SYSTEM.into_iter().chain(resolved.iter().map(Vec::as_slice)).collect::<Vec<_>>())
            }
            b"@secrets" => PathMatch::Secrets(self.places.secrets.clone()),
            text => PathMatch::Globs(self.globs(text)?),
        })
    }

    /// A pattern with a slash is absolute, or relative to the start directory; another one matches a name anywhere
    /// beneath that, or names a program.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn globs(&self, text: &[u8]) -> Result<Vec<PathGlob>, String> {
        let start = self.places.start.as_slice();
        check(text)?;
        let glob = match text {
            b"" => return Err("is empty".to_owned()),
            [b'@', ..] => {
                return Err(
                    "is no preset: there are @workspace, @tmp, @system and @secrets; a path that begins \
                            with an @ is written ./@"
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
            name if matches!(self.word, RuleWord::AllowExec | RuleWord::DenyExec) => {
                return self.programs(name);
            }
            name => PathGlob::below(start, &[b"**/", name].concat())?,
        };
        Ok(self.as_named_and_resolved(glob))
    }

    /// The programs of a name: to allow one allows no other file that has got the name.
    fn programs(&self, name: &[u8]) -> Result<Vec<PathGlob>, String> {
        let anywhere = PathGlob::below(b"/", &[b"**/", name].concat())?;
        let mut globs = if self.word == RuleWord::DenyExec { vec![anywhere] } else { Vec::new() };
        for directory in &self.places.programs {
            globs.extend(self.as_named_and_resolved(PathGlob::below(directory, name)?));
        }
        Ok(globs)
    }

    /// Recorded paths have no symlink in a directory above them.
    fn as_named_and_resolved(&self, glob: PathGlob) -> Vec<PathGlob> {
        let resolved = (self.resolve)(glob.prefix());
        let follows = resolved != glob.prefix() && self.follows(glob.prefix(), &resolved);
        let moved = follows.then(|| glob.moved(&resolved));
        std::iter::once(glob).chain(moved).collect()
    }

    /// Whether a rule about a path is also about what it leads to by symlinks: one that the command has made must not allow
    /// anything.
    fn follows(&self, path: &[u8], resolved: &[u8]) -> bool {
        let is_of_system = |path: &[u8]| SYSTEM.iter().any(|directory| below(path, directory).is_some());
        match self.word {
            RuleWord::DenyWrite | RuleWord::DenyRead | RuleWord::DenyExec | RuleWord::DenyNet => true,
            RuleWord::AllowRead | RuleWord::AllowExec | RuleWord::AllowUnix => {
                is_of_system(path) && is_of_system(resolved)
            }
            RuleWord::AllowWrite | RuleWord::AllowNet => false,
        }
    }
}
