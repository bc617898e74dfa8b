//! The configuration file: `agent-snapshot/config.toml` in the user's configuration directory.
//!
//! Neighbour: the ignore list is beside it (`observe::policy::ignore`).

use std::ffi::OsStr;
use std::io::{self, Read as _};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer};

use crate::cli::{Enforce, duration, size};
use crate::observe::policy::ignore::Environment;
use crate::recall::store;
use crate::snapshot::printable;
use crate::snapshot::secrets::Secrets;

/// Whoever can write the file must not be able to exhaust our memory.
const SIZE_LIMIT: u64 = 1 << 20;

/// What the file says. Unknown keys are refused, so that a slip is noticed.
#[derive(Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// `[shell]`.
    pub shell: ShellConfig,
    /// `[library]`.
    pub library: LibraryConfig,
    /// `[secrets]`.
    pub secrets: SecretsConfig,
    /// `[recall]`.
    pub recall: RecallConfig,
    /// `[session]`.
    pub session: SessionConfig,
    /// `[policy]`.
    pub policy: PolicyConfig,
}

/// Rules of what commands may do: the section of this file, a policy file, and the file of a project.
#[derive(Debug, Default, Clone, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
#[allow(missing_docs, reason = "the keys are the words of the command line")]
pub struct PolicyConfig {
    pub allow_write: Vec<String>,
    pub deny_write: Vec<String>,
    pub allow_read: Vec<String>,
    pub deny_read: Vec<String>,
    pub allow_exec: Vec<String>,
    pub deny_exec: Vec<String>,
    pub allow_net: Vec<String>,
    pub deny_net: DenyNet,
    pub allow_unix: Vec<String>,
    #[serde(deserialize_with = "enforce")]
    pub enforce: Option<Enforce>,
    pub landlock: bool,
}

/// `true` is all addresses, as the option without a value.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(untagged, expecting = "deny-net is true, or a list of addresses")]
#[allow(missing_docs, reason = "the two forms")]
pub enum DenyNet {
    All(bool),
    Some(Vec<String>),
}

impl Default for DenyNet {
    fn default() -> DenyNet {
        DenyNet::All(false)
    }
}

impl From<DenyNet> for Vec<String> {
    fn from(rule: DenyNet) -> Vec<String> {
        match rule {
            DenyNet::All(true) => vec!["*".to_owned()],
            DenyNet::All(false) => Vec::new(),
            DenyNet::Some(hosts) => hosts,
        }
    }
}

/// The key as it is written: as the option `--enforce`.
#[derive(Deserialize)]
#[serde(untagged, expecting = "enforce is true, false, \"end\" or \"best-effort\"")]
enum EnforceKey {
    Is(bool),
    How(EnforceWord),
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
enum EnforceWord {
    End,
    BestEffort,
}

fn enforce<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Enforce>, D::Error> {
    Ok(match EnforceKey::deserialize(deserializer)? {
        EnforceKey::Is(false) => None,
        EnforceKey::Is(true) => Some(Enforce::Refuse),
        EnforceKey::How(EnforceWord::End) => Some(Enforce::End),
        EnforceKey::How(EnforceWord::BestEffort) => Some(Enforce::BestEffort),
    })
}

/// What a session records as steps of their own.
#[derive(Debug, Default, Clone, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SessionConfig {
    /// Programs that are commands though no shell runs them.
    pub commands: Vec<String>,
}

/// Which files are taken for secrets, beside those of the table.
#[derive(Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SecretsConfig {
    /// Patterns of more files.
    pub add: Vec<String>,
    /// Words of the table that are no secrets.
    pub remove: Vec<String>,
}

impl SecretsConfig {
    /// The table with these.
    ///
    /// # Errors
    /// One sentence, which names the file and the fault.
    fn table(&self, environment: &Environment) -> Result<Secrets, String> {
        Secrets::new(&self.add, &self.remove, environment.home()).map_err(|why| {
            let path = path(environment).unwrap_or_default();
            format!("read {}: [secrets] {why}", printable(path.as_os_str().as_bytes()))
        })
    }
}

/// What agent-snapshot-bash does.
#[derive(Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ShellConfig {
    /// Programs that run unrecorded.
    pub unrecorded: Vec<String>,
}

/// What `run --recall` keeps, and what it takes for no input.
#[derive(Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct RecallConfig {
    /// The most bytes of all runs together.
    pub max_size: Option<String>,
    /// The most bytes of one run.
    pub max_entry: Option<String>,
    /// Variables of the environment that do not count.
    pub ignore_env: Vec<String>,
    /// Paths that are not looked at, and do not count.
    pub trust: Vec<String>,
}

/// What `run --recall` keeps, and what it takes for no input.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecallSettings {
    /// How much is kept.
    pub limits: store::StoreLimits,
    /// Variables of the environment that do not count.
    pub ignored_variables: Vec<String>,
    /// Paths that do not count.
    pub trusted: Vec<String>,
}

/// The limits of recall where the configuration has none.
const RECALL_LIMITS: store::StoreLimits = store::StoreLimits { max_size: 512 << 20, max_entry: 128 << 20 };

impl RecallConfig {
    fn checked(self) -> Result<RecallSettings, String> {
        let bytes = |name: &str, word: &Option<String>| {
            word.as_deref().map(size).transpose().map_err(|why| format!("{name}: {why}"))
        };
        let max_size = bytes("max-size", &self.max_size)?.unwrap_or(RECALL_LIMITS.max_size);
        let max_entry = bytes("max-entry", &self.max_entry)?;
        if max_entry.is_some_and(|entry| entry > max_size) {
            return Err("max-entry is more than max-size, which all runs together may take".to_owned());
        }
        let max_entry = max_entry.unwrap_or(RECALL_LIMITS.max_entry.min(max_size));
        let limits = store::StoreLimits { max_size, max_entry };
        Ok(RecallSettings { limits, ignored_variables: self.ignore_env, trusted: self.trust })
    }
}

/// The section `[recall]` of this user's configuration.
///
/// # Errors
/// One sentence, which names the file and the fault.
pub fn recall() -> Result<RecallSettings, String> {
    let environment = Environment::from_process(b"/");
    let path = path(&environment).unwrap_or_default();
    Config::load(&environment)?
        .recall
        .checked()
        .map_err(|why| format!("read {}: [recall] {why}", printable(path.as_os_str().as_bytes())))
}

/// How much the library keeps.
#[derive(Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct LibraryConfig {
    /// The most bytes.
    pub max_size: Option<String>,
    /// The longest time.
    pub max_age: Option<String>,
}

/// The limits of the library where the configuration has none: 5 GiB and 30 days.
const LIMITS: Limits = Limits { max_size: 5 << 30, max_age: Duration::from_secs(30 * 86_400) };

/// The limits of the library.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// How many bytes it may take.
    pub max_size: u64,
    /// How long recordings are kept.
    pub max_age: Duration,
}

impl Limits {
    /// The limits of this user's configuration.
    ///
    /// # Errors
    /// One sentence, which names the file and the fault.
    pub fn load() -> Result<Limits, String> {
        let environment = Environment::from_process(b"/");
        let config = Config::load(&environment)?;
        let path = path(&environment).unwrap_or_default();
        config
            .library
            .limits()
            .map_err(|why| format!("read {}: [library] {why}", printable(path.as_os_str().as_bytes())))
    }
}

impl LibraryConfig {
    /// The limits that it has, or else those of the default.
    fn limits(&self) -> Result<Limits, String> {
        let max_size =
            self.max_size.as_deref().map(size).transpose().map_err(|why| format!("max-size: {why}"))?;
        let max_age =
            self.max_age.as_deref().map(duration).transpose().map_err(|why| format!("max-age: {why}"))?;
        Ok(Limits {
            max_size: max_size.unwrap_or(LIMITS.max_size),
            max_age: max_age.unwrap_or(LIMITS.max_age),
        })
    }
}

/// The files that hold secrets, by this user's configuration.
///
/// # Errors
/// One sentence, which names the file and the fault.
pub fn secrets() -> Result<Secrets, String> {
    let environment = Environment::from_process(b"/");
    Config::load(&environment)?.secrets.table(&environment)
}

/// Where the file is; none if no home directory is known.
pub fn path(environment: &Environment) -> Option<PathBuf> {
    environment.config_file("config.toml")
}

impl Config {
    /// Reads the file; what it says without one is the default.
    ///
    /// # Errors
    /// One sentence, which names the file and the fault.
    pub fn load(environment: &Environment) -> Result<Config, String> {
        let Some(path) = path(environment) else { return Ok(Config::default()) };
        match read(&path) {
            Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
                Ok(Config::default())
            }
            text => parse(&path, text),
        }
    }
}

/// Reads a TOML file of the user.
///
/// # Errors
/// One sentence, which names the file and the fault.
pub fn load_toml<T: DeserializeOwned>(path: &Path) -> Result<T, String> {
    parse(path, read(path))
}

fn parse<T: DeserializeOwned>(path: &Path, text: io::Result<String>) -> Result<T, String> {
    let failed =
        |why: &dyn std::fmt::Display| format!("read {}: {why}", printable(path.as_os_str().as_bytes()));
    let text = text.map_err(|error| failed(&error))?;
    toml::from_str(&text).map_err(|error| {
        let line = error.span().map(|span| 1 + text[..span.start].matches('\n').count());
        let at = line.map_or_else(String::new, |line| format!("line {line}: "));
        failed(&format_args!("{at}{}", error.message().replace('\n', "; ")))
    })
}

/// Reads a small regular file, to which a symlink may lead.
fn read(path: &Path) -> io::Result<String> {
    let real = path.canonicalize()?;
    let mut text = String::new();
    let file = crate::fs::open_regular(real.as_os_str().as_bytes())?;
    file.take(SIZE_LIMIT + 1).read_to_string(&mut text)?;
    if text.len() as u64 > SIZE_LIMIT {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "larger than 1 MiB"));
    }
    Ok(text)
}

impl ShellConfig {
    /// Whether a program runs unrecorded: an entry with a slash is a path, any other one the name of a file.
    pub fn leaves_out(&self, program: &[u8]) -> bool {
        names(&self.unrecorded, program)
    }
}

impl SessionConfig {
    /// Whether a program is a command, by an entry of the same form.
    pub fn is_command(&self, program: &[u8]) -> bool {
        names(&self.commands, program)
    }
}

fn names(entries: &[String], program: &[u8]) -> bool {
    let name = Path::new(OsStr::from_bytes(program)).file_name().unwrap_or_default();
    entries.iter().any(|entry| {
        let word = if entry.contains('/') { program } else { name.as_bytes() };
        entry.as_bytes() == word
    })
}

/// The section `[policy]` of this user's configuration, and where it is; the default if the file has a fault and no policy.
///
/// # Errors
/// One sentence, which names the file and the fault.
pub fn policy() -> Result<(PolicyConfig, PathBuf), String> {
    let environment = Environment::from_process(b"/");
    let path = path(&environment).unwrap_or_default();
    match Config::load(&environment) {
        Ok(config) => Ok((config.policy, path)),
        Err(why) if may_have_policy(&path) => Err(why),
        Err(_) => Ok((PolicyConfig::default(), path)),
    }
}

/// Whether a file that can't be read as TOML may have a policy: it has the word, or can't be read at all.
fn may_have_policy(path: &Path) -> bool {
    let word = b"policy".as_slice();
    match std::fs::read(path) {
        Ok(text) => text.windows(word.len()).any(|window| window == word),
        Err(error) => error.kind() != io::ErrorKind::IsADirectory,
    }
}

/// The file of a project that makes a policy stricter.
pub const PROJECT: &str = ".agent-snapshot.toml";

/// What the file of a project says whose root is this directory, and where it is; none without one.
///
/// # Errors
/// One sentence, which names the file and the fault.
pub fn project_policy(root: &[u8]) -> Result<Option<(PolicyConfig, PathBuf)>, String> {
    let path = Path::new(OsStr::from_bytes(root)).join(PROJECT);
    match path.symlink_metadata() {
        Ok(_) => load_toml(&path).map(|policy| Some((policy, path))),
        // Nobody can have meant one that this user can't see.
        Err(_) => Ok(None),
    }
}

/// The section `[session]` of this user's configuration.
///
/// # Errors
/// One sentence, which names the file and the fault.
pub fn session() -> Result<SessionConfig, String> {
    Config::load(&Environment::from_process(b"/")).map(|config| config.session)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(text: &str) -> Result<Config, String> {
        let home = tempfile::tempdir().unwrap();
        let directory = home.path().join("agent-snapshot");
        std::fs::create_dir(&directory).unwrap();
        std::fs::write(directory.join("config.toml"), text).unwrap();
        let config_home = home.path().as_os_str().as_bytes().to_vec();
        let environment = Environment::new(None, Some(config_home), || None, b"/");
        let place = format!("read {}: ", directory.join("config.toml").display());
        Config::load(&environment).map_err(|why| {
            assert!(!why.contains('\n'), "{why}");
            why.strip_prefix(&place).unwrap_or_else(|| panic!("{why}")).to_owned()
        })
    }

    #[test]
    fn keys_are_read_and_all_are_optional() {
        assert_eq!(load("").unwrap(), Config::default());
        let config =
            load("[library]\nmax-size = \"5GiB\"\nmax-age = \"30d\"\n[shell]\nunrecorded = [\"sudo\"]\n");
        let config = config.unwrap();
        assert_eq!(config.shell.unrecorded, ["sudo"]);
        assert_eq!(config.library.max_size.as_deref(), Some("5GiB"));
    }

    #[test]
    fn limits_of_the_library_have_units() {
        let limits = |text: &str| load(text).unwrap().library.limits();
        assert_eq!(limits(""), Ok(LIMITS));
        let one = limits("[library]\nmax-size = \"100MiB\"\n").unwrap();
        assert_eq!(one, Limits { max_size: 100 << 20, ..LIMITS });
        let other = limits("[library]\nmax-age = \"2d\"\n").unwrap();
        assert_eq!(other.max_age, Duration::from_secs(2 * 86_400));
        let why = limits("[library]\nmax-size = \"much\"\n").unwrap_err();
        assert!(why.starts_with("max-size: a size is a whole number with a unit"), "{why}");
        let why = limits("[library]\nmax-age = \"-1d\"\n").unwrap_err();
        assert!(why.starts_with("max-age: a duration is"), "{why}");
    }

    #[test]
    fn each_fault_is_one_sentence_with_its_line() {
        for (text, why) in [
            ("[shell]\nunrecorded = sudo\n", "line 2: "),
            (
                "[shell]\nunrecorded = \"sudo\"\n",
                "line 2: invalid type: string \"sudo\", expected a sequence",
            ),
            (
                "\n[shel]\n",
                "line 2: unknown field `shel`, expected one of `shell`, `library`, `secrets`, `recall`",
            ),
            ("[shell]\nrecorded = []\n", "line 2: unknown field `recorded`, expected `unrecorded`"),
        ] {
            let said = load(text).unwrap_err();
            assert!(said.starts_with(why), "{text}: {said}");
        }
    }

    #[test]
    fn entry_is_a_name_or_a_path() {
        let shell = ShellConfig { unrecorded: vec!["sudo".to_owned(), "/opt/x".to_owned()] };
        for (program, leaves_out) in [
            ("sudo", true),
            ("/usr/bin/sudo", true),
            ("sudoedit", false),
            ("/opt/x", true),
            ("x", false),
            ("", false),
        ] {
            assert_eq!(shell.leaves_out(program.as_bytes()), leaves_out, "{program}");
        }
    }
}
