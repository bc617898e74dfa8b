//! Which files hold secrets, by the names under which programs keep them.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock};

use gix::bstr::Finder;

use super::content::ContentSign;
use crate::fs::{file_name, parent_of};

/// The files that hold secrets, as the end of their path or of a directory above them, by patterns as in gitignore(5).
pub const TABLE: [&str; 74] = [
    ".ssh/id_*",
    ".netrc",
    "_netrc",
    ".aws/credentials",
    ".config/gcloud",
    ".git-credentials",
    ".npmrc",
    ".pypirc",
    ".docker/config.json",
    "gh/hosts.yml",
    ".kube/config",
    ".env*",
    ".aws/sso/cache",
    ".aws/cli/cache",
    ".azure",
    ".boto",
    ".s3cfg",
    ".oci/oci_api_key*",
    ".databrickscfg",
    "rclone.conf",
    ".rclone.conf",
    "doctl/config.yaml",
    ".fly/config.yml",
    ".kaggle/kaggle.json",
    ".cache/huggingface/token",
    ".pgpass",
    ".my.cnf",
    ".mylogin.cnf",
    ".htpasswd",
    ".vault-token",
    ".terraformrc",
    "credentials.tfrc.json",
    "*.tfstate",
    "*.tfstate.backup",
    ".cargo/credentials",
    ".cargo/credentials.toml",
    ".m2/settings.xml",
    ".m2/settings-security.xml",
    ".gradle/gradle.properties",
    ".gem/credentials",
    "composer/auth.json",
    "containers/auth.json",
    ".config/git/credentials",
    "glab-cli/config.yml",
    ".config/hub",
    ".gnupg/private-keys-v1.d",
    ".gnupg/secring.gpg",
    ".password-store",
    "sops/age/keys.txt",
    "keyrings/*.keyring",
    "*.kdbx",
    "*.p12",
    "*.pfx",
    "*.jks",
    "*.keystore",
    "etc/shadow",
    "etc/gshadow",
    ".claude/.credentials.json",
    ".codex/auth.json",
    ".gemini/oauth_creds.json",
    ".*_history",
    "fish_history",
    "*.pem",
    "*.key",
    "*.p8",
    "*.pk8",
    "*.ppk",
    "*.asc",
    ".git/config",
    ".gitconfig",
    ".config/git/config",
    ".curlrc",
    ".wgetrc",
    "pip.conf",
];

/// Such a file holds a secret only if it has a private key.
const KEYS: [&str; 6] = ["*.pem", "*.key", "*.p8", "*.pk8", "*.ppk", "*.asc"];
/// Such a file holds a secret only if it has a value that would be masked.
const SETTINGS: [&str; 6] =
    [".git/config", ".gitconfig", ".config/git/config", ".curlrc", ".wgetrc", "pip.conf"];
/// The public half of a key pair, which `.ssh/id_*` matches, too.
const PUBLIC: &[u8] = b".pub";

/// The files that are taken for secrets: those of the table, with what the user adds and removes, and any file with a
/// private key. Clones share them.
#[derive(Debug, Clone)]
pub struct Secrets(Arc<SecretGlobs>);

#[derive(Debug)]
struct SecretGlobs {
    globs: Vec<SecretGlob>,
    /// Those whose last component is a plain name, by that name.
    named: Numbers,
    /// Those whose last component is `*` and a text with an extension, by the extension.
    extensions: Numbers,
    /// The others, each behind the byte with which its last component begins, if that is no wildcard.
    patterns: Vec<(Option<u8>, usize)>,
    /// Those of the table that the user removed: such a file is no secret, whatever is in it.
    removed: Vec<SecretGlob>,
}

/// Indices of globs, by a component or an extension that a path must have for them to match.
#[derive(Debug)]
struct Numbers {
    by_text: HashMap<Vec<u8>, Vec<usize>, foldhash::fast::RandomState>,
    /// By the first byte of a text, its lengths, a bit each: most components of paths are of none, and need not be hashed.
    lengths: [u32; 256],
}

impl Numbers {
    fn new() -> Numbers {
        Numbers { by_text: HashMap::default(), lengths: [0; 256] }
    }

    fn bit(text: &[u8]) -> (usize, u32) {
        (usize::from(text.first().copied().unwrap_or_default()), 1 << text.len().min(31))
    }

    fn add(&mut self, text: &[u8], number: usize) {
        let (first, length) = Numbers::bit(text);
        self.lengths[first] |= length;
        self.by_text.entry(text.to_vec()).or_default().push(number);
    }

    fn get(&self, text: &[u8]) -> &[usize] {
        let (first, length) = Numbers::bit(text);
        match self.lengths[first] & length {
            0 => &[],
            _ => self.by_text.get(text).map_or(&[], Vec::as_slice),
        }
    }
}

#[derive(Debug)]
struct SecretGlob {
    glob: Vec<u8>,
    /// What every path has that it matches: most paths have none of these.
    literal: Finder<'static>,
    /// What the content must have.
    sign: Option<ContentSign>,
}

impl SecretGlob {
    fn new(glob: Vec<u8>, sign: Option<ContentSign>) -> SecretGlob {
        // What is between brackets, or behind a backslash, is no text of its own.
        let runs = glob.split(|byte| matches!(byte, b'*' | b'?')).filter(|_| is_plain(&glob));
        let literal = Finder::new(runs.max_by_key(|run| run.len()).unwrap_or_default()).into_owned();
        SecretGlob { glob, literal, sign }
    }

    fn of_table(word: &str) -> SecretGlob {
        let sign = if KEYS.contains(&word) {
            Some(ContentSign::KeyMarker)
        } else {
            SETTINGS.contains(&word).then_some(ContentSign::MaskedValue)
        };
        SecretGlob::new(anywhere(word), sign)
    }

    /// The last component, if only a path that ends with it matches.
    fn name(&self) -> Option<&[u8]> {
        let name = self.glob.rsplit(|byte| *byte == b'/').next()?;
        is_text(name).then_some(name)
    }

    /// The byte with which the last component begins, if that is no wildcard.
    fn start(&self) -> Option<u8> {
        let first = self.glob.rsplit(|byte| *byte == b'/').next()?.first()?;
        (!b"*?[\\".contains(first)).then_some(*first)
    }

    /// The extension, if the last component is `*` and a text that has one.
    fn extension(&self) -> Option<&[u8]> {
        let end = self.glob.rsplit(|byte| *byte == b'/').next()?.strip_prefix(b"*")?;
        extension_of(end).filter(|_| is_text(end))
    }

    fn matches(&self, path: &[u8]) -> bool {
        use gix::glob::wildmatch::Mode;
        self.literal.find(path).is_some()
            && gix::glob::wildmatch(self.glob.as_slice().into(), path.into(), Mode::NO_MATCH_SLASH_LITERAL)
    }
}

/// What is behind the last dot of a name, if there is one.
fn extension_of(name: &[u8]) -> Option<&[u8]> {
    name.iter().rposition(|byte| *byte == b'.').map(|dot| &name[dot + 1..])
}

/// Whether a part of a glob matches itself alone.
fn is_text(part: &[u8]) -> bool {
    is_plain(part) && !part.iter().any(|byte| matches!(byte, b'*' | b'?'))
}

fn is_plain(glob: &[u8]) -> bool {
    !glob.iter().any(|byte| matches!(byte, b'[' | b'\\'))
}

/// A glob for whole paths that end as `word` says.
fn anywhere(word: &str) -> Vec<u8> {
    [b"**/", word.as_bytes()].concat()
}

impl Default for Secrets {
    fn default() -> Secrets {
        static TABLE_ALONE: LazyLock<Secrets> =
            LazyLock::new(|| Secrets::of(TABLE.map(SecretGlob::of_table).into(), Vec::new()));
        TABLE_ALONE.clone()
    }
}

impl Secrets {
    fn of(globs: Vec<SecretGlob>, removed: Vec<SecretGlob>) -> Secrets {
        let (mut named, mut extensions, mut patterns) = (Numbers::new(), Numbers::new(), Vec::new());
        for (number, glob) in globs.iter().enumerate() {
            match (glob.name(), glob.extension()) {
                (Some(name), _) => named.add(name, number),
                (None, Some(extension)) => extensions.add(extension, number),
                (None, None) => patterns.push((glob.start(), number)),
            }
        }
        Secrets(Arc::new(SecretGlobs { globs, named, extensions, patterns, removed }))
    }

    /// The table with the patterns `add`, which may begin with `/` or `~/`, and without the words `remove`.
    ///
    /// # Errors
    /// A sentence: the table does not have a word of `remove`, or the home directory is unknown.
    pub fn new(add: &[String], remove: &[String], home: Option<&[u8]>) -> Result<Secrets, String> {
        if let Some(unknown) = remove.iter().find(|word| !TABLE.contains(&word.as_str())) {
            return Err(format!("remove: {unknown:?} is none of {}", TABLE.join(", ")));
        }
        let is_removed = |word: &&str| remove.iter().any(|removed| removed == word);
        let (removed, kept): (Vec<_>, Vec<_>) = TABLE.into_iter().partition(is_removed);
        let mut globs: Vec<SecretGlob> = kept.into_iter().map(SecretGlob::of_table).collect();
        for word in add {
            let word = word.strip_suffix('/').unwrap_or(word);
            let glob = match (word.strip_prefix("~/"), home) {
                (Some(below), Some(home)) => [home, b"/", below.as_bytes()].concat(),
                (Some(_), None) => return Err(format!("add: {word:?}: the home directory is unknown")),
                (None, _) if word.starts_with('/') => word.into(),
                (None, _) => anywhere(word),
            };
            globs.push(SecretGlob::new(glob, None));
        }
        let removed = removed.into_iter().map(SecretGlob::of_table).collect();
        Ok(Secrets::of(globs, removed))
    }

    /// What makes the file at the absolute `path` a secret by its name: nothing more, or also a sign in its content.
    /// None if the name says nothing.
    fn named(&self, path: &[u8]) -> Option<Option<ContentSign>> {
        let SecretGlobs { globs, named, extensions, patterns, .. } = &*self.0;
        let mut sign = None;
        let paths = std::iter::successors(Some(path), |path| parent_of(path));
        for (depth, above) in paths.enumerate() {
            let name = file_name(above);
            let with_extension = extension_of(name).map_or(&[][..], |extension| extensions.get(extension));
            let first = name.first();
            let may_match = patterns.iter().filter(|(start, _)| start.is_none() || start.as_ref() == first);
            let numbers =
                named.get(name).iter().chain(with_extension).chain(may_match.map(|(_, number)| number));
            for glob in numbers.filter_map(|number| globs.get(*number)) {
                // What is beneath a directory has not its content, and a public key is none.
                let is_none =
                    if glob.sign.is_some() { depth > 0 } else { depth == 0 && path.ends_with(PUBLIC) };
                if is_none || !glob.matches(above) {
                    continue;
                }
                if glob.sign.is_none() {
                    return Some(None);
                }
                sign = glob.sign;
            }
        }
        sign.map(Some)
    }

    /// Whether the file at the absolute `path` holds a secret. `has` is asked only if the content decides.
    pub fn is_secret(&self, path: &[u8], has: impl FnOnce(ContentSign) -> bool) -> bool {
        match self.named(path) {
            Some(None) => true,
            Some(Some(sign)) => has(sign),
            None => !self.0.removed.iter().any(|glob| glob.matches(path)) && has(ContentSign::Key),
        }
    }

    /// Whether the name of the file at the absolute `path` alone makes it a secret.
    pub fn is_secret_by_name(&self, path: &[u8]) -> bool {
        self.is_secret(path, |_| false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_secret(path: &str) -> bool {
        Secrets::default().is_secret_by_name(path.as_bytes())
    }

    #[test]
    fn each_word_of_the_table_is_found_as_the_end_of_a_path() {
        for word in TABLE {
            let path = format!("/home/me/{}", word.replace('*', "x"));
            let secrets = Secrets::default();
            assert!(secrets.is_secret(path.as_bytes(), |sign| sign != ContentSign::Key), "{path}");
            let needs_content = KEYS.contains(&word) || SETTINGS.contains(&word);
            assert_eq!(secrets.is_secret_by_name(path.as_bytes()), !needs_content, "{path}");
            let longer =
                format!("{}/of-another-name{}", "/home/me", word.replace('*', "x").replace('/', "-"));
            let is_glob = word.starts_with('*');
            assert!(is_glob || !secrets.is_secret_by_name(longer.as_bytes()), "{longer}");
        }
        for word in KEYS.iter().chain(&SETTINGS) {
            assert!(TABLE.contains(word), "{word}");
        }
    }

    #[test]
    fn files_are_known_by_the_end_of_their_path() {
        for path in [
            "/home/me/.config/gcloud/legacy/x/adc.json",
            "/home/me/.aws/sso/cache/0123.json",
            "/home/me/.azure/msal_token_cache.json",
            "/repo/.env.local",
            "/repo/.envrc",
            "/repo/terraform.tfstate",
            "/root/.bash_history",
            "/home/me/.local/share/fish/fish_history",
            "/home/me/.gnupg/private-keys-v1.d/0A.key",
        ] {
            assert!(is_secret(path), "{path}");
        }
        for path in [
            "/home/me/.ssh/id_ed25519.pub",
            "/home/me/.ssh/known_hosts",
            "/home/me/.aws/config",
            "/home/me/aws/credentials",
            "/home/me/.config/gcloudy",
            "/repo/config.json",
            "/repo/environment",
            "/repo/x.env",
            "/repo/settings.xml",
            "/repo/docs/history",
            "/etc/passwd",
            "/",
        ] {
            assert!(!is_secret(path), "{path}");
        }
    }

    #[test]
    fn content_decides_where_the_name_does_not() {
        let secrets = Secrets::default();
        let asked = |path: &[u8]| {
            let mut asked = None;
            secrets.is_secret(path, |sign| {
                asked = Some(sign);
                false
            });
            asked
        };
        assert_eq!(asked(b"/etc/key.pem"), Some(ContentSign::KeyMarker));
        assert_eq!(asked(b"/repo/.git/config"), Some(ContentSign::MaskedValue));
        assert_eq!(asked(b"/x.pem/file"), Some(ContentSign::Key), "a directory has no content");
        assert_eq!(asked(b"/x/.netrc"), None);
    }

    #[test]
    fn the_user_adds_and_removes() {
        let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
        let add = words(&["*.secret", "~/vault/", "/etc/token", "conf/secret.*", "odd/[ab]c*", "odd/?d*x"]);
        let secrets = Secrets::new(&add, &words(&[".env*", "*.pem"]), Some(b"/home/me")).unwrap();
        let is_secret = |path: &str| secrets.is_secret(path.as_bytes(), |sign| sign != ContentSign::Key);
        assert!(!secrets.is_secret(b"/x/key.pem", |_| true) && secrets.is_secret(b"/x/other", |_| true));
        for path in [
            "/x/a.secret",
            "/home/me/vault/a/b",
            "/etc/token",
            "/repo/conf/secret.toml",
            "/x/.netrc",
            "/odd/bcd",
            "/odd/cd.x/y",
        ] {
            assert!(is_secret(path), "{path}");
        }
        for path in ["/x/.env", "/x/key.pem", "/home/you/vault/a", "/x/etc/token", "/repo/secret.toml"] {
            assert!(!is_secret(path), "{path}");
        }
        let error = Secrets::new(&[], &words(&[".envs"]), None).unwrap_err();
        assert!(error.starts_with("remove: \".envs\" is none of .ssh/id_*, .netrc,"), "{error}");
        Secrets::new(&words(&["~/x"]), &[], None).unwrap_err();
    }
}
