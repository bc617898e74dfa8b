//! Which of the variables that do not count a run asked for: those whose names are in its arguments, or in a text
//! that it read.
//!
//! No call tells that a program reads its environment. A compiled program that does is not seen: each shell has the
//! name of `SHLVL` in it.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::io::Read as _;
use std::os::unix::ffi::OsStrExt as _;

use super::key::{IGNORED_VARIABLES, names};
use crate::fs::{self, file_name};
use crate::snapshot::{Exec, FileRecord, FileType, Look, Operation, Snapshot, State};

/// A larger file is data.
const TEXT_LIMIT: u64 = 16 << 20;

/// What makes a shell print all variables, or hand them on, if nothing comes after it.
const PRINTING: [&str; 6] = ["declare", "env", "export", "printenv", "set", "typeset"];

/// All variables in other languages, and what comes next where only one of them is meant.
const ENVIRONMENTS: [(&str, &[&str]); 6] = [
    ("os.environ", &["[", ".get", ".pop", ".setdefault"]),
    ("os.environb", &["[", ".get"]),
    ("import environ", &[]),
    ("process.env", &["[", "."]),
    ("ENVIRON", &["["]),
    ("%ENV", &[]),
];

/// The variables that were asked for, as in [`IGNORED_VARIABLES`].
pub fn of_run(snapshot: &Snapshot) -> BTreeSet<&'static str> {
    let mut found = Mentions::default();
    let processes = &snapshot.header().processes;
    let execs: Vec<&Exec> =
        processes.iter().flat_map(|process| process.execs.iter().chain([&*process.image])).collect();
    for exec in &execs {
        found.in_command(exec);
    }
    let arguments: BTreeSet<&[u8]> =
        execs.iter().flat_map(|exec| &exec.argv).map(|word| file_name(word)).collect();
    let is_file = |state: &State| state.present().is_some_and(|at| at.file_type == FileType::File);
    // A text that the run made itself has no content before.
    let is_read = |record: &&FileRecord| {
        record.seen.contains(Look::Content) && is_file(&record.before)
            || record.operations.contains(Operation::Read) && is_file(&record.after)
    };
    for record in snapshot.files().iter().filter(is_read) {
        found.in_file(&record.path, arguments.contains(file_name(&record.path)));
    }
    found.0
}

#[derive(Debug, Default)]
struct Mentions(BTreeSet<&'static str>);

impl Mentions {
    fn all(&mut self) {
        self.0.extend(IGNORED_VARIABLES);
    }

    fn in_command(&mut self, exec: &Exec) {
        let mut arguments = exec.argv.iter().skip(1);
        let is_plain = |word: &Vec<u8>| word.starts_with(b"-") || word.contains(&b'=');
        let called = exec.argv.first().unwrap_or(&exec.exe);
        let is_env = [&exec.exe, called].iter().any(|name| matches!(file_name(name), b"env" | b"printenv"));
        // What is not all recorded may name any.
        if is_env && arguments.all(is_plain) || exec.argv_truncated || exec.redacted {
            self.all();
        }
        for (before, argument) in exec.argv.iter().zip(exec.argv.iter().skip(1)) {
            // A word alone is no script, unless it is said to be one.
            let is_script = before.starts_with(b"-") && before.ends_with(b"c");
            self.in_text(argument, is_script || argument.iter().any(u8::is_ascii_whitespace));
            if argument == b"_" {
                self.0.insert("_");
            }
        }
    }

    fn in_file(&mut self, path: &[u8], is_argument: bool) {
        if self.0.len() == IGNORED_VARIABLES.len() {
            return;
        }
        let mut bytes = Vec::new();
        match fs::open_regular(path).map(|file| file.take(TEXT_LIMIT + 1).read_to_end(&mut bytes)) {
            Ok(Ok(_)) if bytes.len() as u64 > TEXT_LIMIT || bytes.starts_with(b"\x7fELF") => {}
            Ok(Ok(_)) => self.in_text(&bytes, is_argument || bytes.starts_with(b"#!")),
            // It is not known any more.
            Ok(Err(_)) | Err(_) => self.all(),
        }
    }

    fn in_text(&mut self, text: &[u8], is_script: bool) {
        let is_of_word = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
        for word in text.split(|byte| !is_of_word(*byte)) {
            // All names but one begin so, and the shortest has three letters.
            if word.len() > 2 && word[0].is_ascii_uppercase() {
                let found = |pattern: &&&str| names(pattern, OsStr::from_bytes(word));
                self.0.extend(IGNORED_VARIABLES.iter().filter(found));
            }
        }
        let ends = |rest: &[u8]| rest.first().is_none_or(|byte| !is_of_word(*byte));
        if after(text, b"$_").any(|(_, rest)| ends(rest)) || after(text, b"${_").any(|(_, rest)| ends(rest)) {
            self.0.insert("_");
        }
        if !is_script {
            return;
        }
        let ends_command =
            |rest: &[u8]| rest.trim_ascii_start().first().is_none_or(|byte| b";|&)}>`\"'".contains(byte));
        let ends_line = |rest: &[u8]| {
            let blanks = rest.iter().take_while(|byte| matches!(byte, b' ' | b'\t')).count();
            rest[blanks..].first().is_none_or(|byte| *byte == b'\n') || ends_command(&rest[blanks..])
        };
        if after(text, b"cd -").any(|(_, rest)| ends_line(rest)) || after(text, b"~-").next().is_some() {
            self.0.insert("OLDPWD");
        }
        for name in PRINTING {
            let prints = |(before, rest): (&[u8], &[u8])| {
                let rest = rest.strip_prefix(b" -p").or_else(|| rest.strip_prefix(b" -x")).unwrap_or(rest);
                begins_command(before) && ends(rest) && ends_line(rest)
            };
            if after(text, name.as_bytes()).any(prints) {
                self.all();
            }
        }
        for (environment, one) in ENVIRONMENTS {
            let is_whole =
                |rest: &[u8]| ends(rest) && !one.iter().any(|next| rest.starts_with(next.as_bytes()));
            if after(text, environment.as_bytes()).any(|(_, rest)| is_whole(rest)) {
                self.all();
            }
        }
    }
}

/// Whether a command of a shell may begin after this.
fn begins_command(before: &[u8]) -> bool {
    let end = before.iter().rposition(|byte| !matches!(byte, b' ' | b'\t')).map_or(0, |at| at + 1);
    let (before, is_apart) = (&before[..end], end < before.len());
    let follows = ["then", "do", "else", "exec", "command", "builtin", "!", "time"];
    before.last().is_none_or(|byte| b"\n;|&({`".contains(byte))
        || is_apart && follows.iter().any(|word| before.ends_with(word.as_bytes()))
}

/// What is before and after each place where `text` has `part`.
fn after<'t>(text: &'t [u8], part: &'t [u8]) -> impl Iterator<Item = (&'t [u8], &'t [u8])> {
    let places = memchr::memmem::find_iter(text, part);
    places.map(move |at| (&text[..at], &text[at + part.len()..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mentioned(text: &str) -> Vec<&'static str> {
        let mut found = Mentions::default();
        found.in_text(text.as_bytes(), true);
        found.0.into_iter().collect()
    }

    #[test]
    fn names_count_as_words() {
        assert_eq!(mentioned("echo $SHLVL ${OLDPWD:-x}"), ["OLDPWD", "SHLVL"]);
        assert_eq!(mentioned("getenv('XDG_SESSION_ID')"), ["XDG_SESSION_*"]);
        assert_eq!(mentioned("echo $_; echo ${_}"), ["_"]);
        assert!(mentioned("echo $_x MYSHLVL SHLVLS $__ a_ _").is_empty());
    }

    #[test]
    fn a_word_for_all_mentions_each() {
        for text in [
            "env",
            "env | sort",
            "x; printenv",
            "if x; then export -p; fi",
            "set\necho",
            "(set)",
            "declare -p",
            "print(os.environ)",
            "dict(os.environ.items())",
            "print(os.environb)",
            "from os import environ",
            "console.log(process.env)",
            "keys %ENV",
            "for (v in ENVIRON) x",
        ] {
            assert_eq!(mentioned(text).len(), IGNORED_VARIABLES.len(), "{text}");
        }
        for text in [
            "env A=1 make",
            "set -e",
            "export A=1",
            "the env is set",
            "os.environ['HOME']",
            "os.environb[b'HOME']",
            "process.env.HOME",
            "ENVIRON[\"HOME\"]",
            "os.environ.get('HOME')",
            "setx",
            "/usr/bin/env bash",
            "unset",
            "declare A=1",
        ] {
            assert_eq!(mentioned(text), [""; 0], "{text}");
        }
    }

    #[test]
    fn the_last_directory_is_named_by_a_sign() {
        assert_eq!(mentioned("cd - > /dev/null"), ["OLDPWD"]);
        assert_eq!(mentioned("cd -\nls"), ["OLDPWD"]);
        assert!(mentioned("cd -P x; cd --").is_empty());
    }
}
