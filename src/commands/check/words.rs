//! The rules of the command line, of policy files and of the configuration, as one policy.

use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use super::compiled;
use crate::cli::{Enforce, PolicyRules};
use crate::commands::config::{self, PolicyConfig, load_toml};
use crate::policy::{CompiledPolicy, PolicyPlaces, RuleWord, RuleWords};
use crate::snapshot::printable;

/// The rules that hold for a recording.
#[derive(Debug, Default)]
pub struct Rules {
    /// Those that were given.
    given: RuleWords,
    /// Those of the user's configuration, and where it is.
    user: RuleWords,
    user_file: PathBuf,
    /// Those of the project, which make the others stricter, and where they are.
    project: Option<(RuleWords, PathBuf)>,
    /// Whether they are enforced, and how: as the strictest says that tells of it.
    pub enforce: Option<Enforce>,
    /// Whether Landlock enforces them, too.
    pub landlock: bool,
}

impl Rules {
    /// Those that were given alone.
    ///
    /// # Errors
    /// One sentence, which names the policy file and the fault.
    pub fn given(rules: &PolicyRules, enforce: Option<Enforce>) -> Result<Rules, String> {
        let file: PolicyConfig = rules.policy.as_deref().map(load_toml).transpose()?.unwrap_or_default();
        let mut words = RuleWords::default();
        for (word, given) in [
            (RuleWord::AllowWrite, &rules.allow_write),
            (RuleWord::DenyWrite, &rules.deny_write),
            (RuleWord::AllowRead, &rules.allow_read),
            (RuleWord::DenyRead, &rules.deny_read),
            (RuleWord::AllowExec, &rules.allow_exec),
            (RuleWord::DenyExec, &rules.deny_exec),
            (RuleWord::AllowNet, &rules.allow_net),
            (RuleWord::DenyNet, &rules.deny_net),
            (RuleWord::AllowUnix, &rules.allow_unix),
        ] {
            words.add(word, given.iter().map(|text| text.as_encoded_bytes().to_vec()));
        }
        let (enforce, landlock) = (enforce.max(file.enforce), file.landlock);
        add(&mut words, file);
        Ok(Rules { given: words, enforce, landlock, ..Rules::default() })
    }

    /// The same, with those of the user's configuration, and of the project whose root is `workspace`.
    ///
    /// # Errors
    /// One sentence, which names the file and the fault.
    pub fn with_configured(mut self, workspace: &[u8]) -> Result<Rules, String> {
        let (user, file) = config::policy()?;
        self.enforce = self.enforce.max(user.enforce);
        self.landlock |= user.landlock;
        self.user_file = file;
        add(&mut self.user, user);
        if let Some((project, file)) = config::project_policy(workspace)? {
            self.enforce = self.enforce.max(project.enforce);
            self.landlock |= project.landlock;
            let mut words = RuleWords::default();
            add(&mut words, project);
            self.project = Some((words, file));
        }
        Ok(self)
    }

    fn words(&self) -> impl Iterator<Item = &RuleWords> {
        [&self.given, &self.user].into_iter().chain(self.project.iter().map(|(words, _)| words))
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.words().all(RuleWords::is_empty)
    }

    /// All of them, each behind its word.
    pub fn lines(&self) -> Vec<String> {
        self.words().flat_map(RuleWords::lines).collect()
    }

    /// Whether there are any that are enforced.
    pub fn are_enforced(&self) -> bool {
        self.enforce.is_some() && !self.is_empty()
    }

    /// The files of the configuration that have some of them.
    pub fn files(&self) -> impl Iterator<Item = &Path> {
        let user = Some(self.user_file.as_path()).filter(|_| !self.user.is_empty());
        user.into_iter().chain(self.project.iter().map(|(_, file)| file.as_path()))
    }

    /// What they mean in these places; those of a project, where its root is the start directory.
    ///
    /// # Errors
    /// A sentence that names the rule, and the file if it is in one of the configuration.
    pub fn compiled(&self, places: &PolicyPlaces) -> Result<CompiledPolicy, String> {
        let of = |file: &Path, words: &RuleWords, places: &PolicyPlaces| {
            let file = printable(file.as_os_str().as_bytes()).into_owned();
            compiled(words, places).map_err(|why| format!("read {file}: {why}"))
        };
        of(&self.user_file, &self.user, places)?;
        let mut words = self.given.clone();
        words.extend(&self.user);
        let policy = compiled(&words, places)?;
        let Some((words, file)) = &self.project else { return Ok(policy) };
        let start = file.parent().map(|root| root.as_os_str().as_bytes().to_vec()).unwrap_or_default();
        Ok(policy.and(of(file, words, &PolicyPlaces { start, ..places.clone() })?))
    }
}

/// Adds the rules of a file.
fn add(words: &mut RuleWords, file: PolicyConfig) {
    for (word, texts) in [
        (RuleWord::AllowWrite, file.allow_write),
        (RuleWord::DenyWrite, file.deny_write),
        (RuleWord::AllowRead, file.allow_read),
        (RuleWord::DenyRead, file.deny_read),
        (RuleWord::AllowExec, file.allow_exec),
        (RuleWord::DenyExec, file.deny_exec),
        (RuleWord::AllowNet, file.allow_net),
        (RuleWord::DenyNet, file.deny_net.into()),
        (RuleWord::AllowUnix, file.allow_unix),
    ] {
        words.add(word, texts.into_iter().map(String::into_bytes));
    }
}
