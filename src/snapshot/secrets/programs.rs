//! Options whose name says nothing, of programs that take a secret in them.

use std::ops::Range;

use super::words::is_secret_value;
use crate::fs::file_name;

/// Which part of an option's value is the secret.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Secret {
    /// All of it; the value may be in the word itself or in the next one.
    Whole,
    /// All of it, which is in the word itself: a word that is only the option has no value.
    Attached,
    /// What is behind the first such byte; all that is before it if nothing is behind it.
    After(u8),
}

/// The options of programs.
struct SecretOptions {
    programs: &'static [&'static str],
    /// Whether its first word that is no option is another program, with options of its own.
    starts_another: bool,
    /// A word that the command line must have; none if it need not.
    verb: Option<&'static str>,
    options: &'static [(&'static str, Secret)],
}

use Secret::{After, Attached, Whole};

/// The options of programs which start no other, whatever else is in the command line.
const fn of(programs: &'static [&'static str], options: &'static [(&'static str, Secret)]) -> SecretOptions {
    SecretOptions { programs, starts_another: false, verb: None, options }
}

const TABLE: [SecretOptions; 14] = [
    of(
        &[
            "mysql",
            "mysqladmin",
            "mysqlbinlog",
            "mysqlcheck",
            "mysqldump",
            "mysqlimport",
            "mysqlpump",
            "mysqlshow",
            "mysqlslap",
            "mysqlsh",
            "mariadb",
            "mariadb-admin",
            "mariadb-dump",
            "mycli",
        ],
        &[("-p", Attached)],
    ),
    of(
        &["curl"],
        &[
            ("-u", After(b':')),
            ("--user", After(b':')),
            ("-U", After(b':')),
            ("--proxy-user", After(b':')),
            ("-E", After(b':')),
            ("--cert", After(b':')),
            ("-b", After(b'=')),
            ("--oauth2-bearer", Whole),
        ],
    ),
    of(&["http", "https", "xh", "xhs"], &[("-a", After(b':'))]),
    of(&["lftp"], &[("-u", After(b','))]),
    SecretOptions { starts_another: true, ..of(&["sshpass"], &[("-p", Whole)]) },
    of(&["redis-cli", "valkey-cli", "keydb-cli"], &[("-a", Whole)]),
    of(
        &[
            "mongo",
            "mongosh",
            "mongodump",
            "mongorestore",
            "mongoexport",
            "mongoimport",
            "mongostat",
            "cqlsh",
            "beeline",
        ],
        &[("-p", Whole)],
    ),
    of(
        &["ldapsearch", "ldapadd", "ldapmodify", "ldapdelete", "ldapwhoami", "ldappasswd"],
        &[("-w", Whole), ("-s", Whole)],
    ),
    of(&["smbclient", "rpcclient", "smbget", "net"], &[("-U", After(b'%'))]),
    SecretOptions {
        verb: Some("login"),
        ..of(
            &["docker", "podman", "buildah", "skopeo", "nerdctl", "helm", "oras", "crane", "az"],
            &[("-p", Whole)],
        )
    },
    of(
        &["zip", "unzip", "zipcloak", "sqlcmd", "bcp", "isql", "mosquitto_pub", "mosquitto_sub"],
        &[("-P", Whole)],
    ),
    of(&["7z", "7za", "7zr", "7zz", "rar", "unrar"], &[("-p", Attached)]),
    of(
        &["openssl"],
        &[("-passin", Whole), ("-passout", Whole), ("-pass", Whole), ("-k", Whole), ("-K", Whole)],
    ),
    of(&["ipmitool", "snmpget", "snmpwalk", "snmpset"], &[("-P", Whole), ("-A", Whole), ("-X", Whole)]),
];

/// What these are told is a name, and no program that is started.
const NAMING: [&str; 14] = [
    "apk", "apt", "apt-get", "cat", "command", "dnf", "echo", "find", "grep", "ls", "man", "rg", "type",
    "which",
];

/// Where secrets are in the words of a simple command: the number of the word, and what of it.
///
/// The program may be any of the words, since others start it: `sudo`, `docker exec`, `ssh`.
pub fn secrets<W: AsRef<[u8]>>(words: &[W]) -> Vec<(usize, Range<usize>)> {
    let first = words.first().map(|word| file_name(word.as_ref())).unwrap_or_default();
    let mut found = Vec::new();
    if NAMING.iter().any(|naming| naming.as_bytes() == first) {
        return found;
    }
    for (at, word) in words.iter().enumerate() {
        // `aws configure set`, `npm config set`: the next words are a name and its value.
        if let ([name, value, ..], b"set") = (&words[at + 1..], word.as_ref())
            && is_secret_value(name.as_ref(), value.as_ref())
        {
            found.push((at + 2, 0..value.as_ref().len()));
        }
        let name = file_name(word.as_ref());
        let table = TABLE.iter().find(|row| row.programs.iter().any(|program| program.as_bytes() == name));
        let Some(row) = table else { continue };
        let has_verb = |verb: &str| words[at..].iter().any(|word| word.as_ref() == verb.as_bytes());
        if row.verb.is_none_or(has_verb) {
            found.extend(of_program(row, words, at + 1));
        }
    }
    found
}

fn of_program<W: AsRef<[u8]>>(row: &SecretOptions, words: &[W], first: usize) -> Vec<(usize, Range<usize>)> {
    let mut found = Vec::new();
    let mut at = first;
    while let Some(word) = words.get(at).map(AsRef::as_ref) {
        at += 1;
        let of_option = |(option, secret): &(&str, Secret)| {
            let option = option.as_bytes();
            if is_alone(word, option) {
                let value = words.get(at).filter(|_| *secret != Attached)?.as_ref();
                return part(value, *secret).map(|part| (at, part));
            }
            let attached = word.strip_prefix(option).filter(|rest| !rest.is_empty())?;
            let attached = match (option.starts_with(b"--"), attached.strip_prefix(b"=")) {
                (true, value) => value?,
                // A longer word is another option, such as the `-passin` of one that has `-pass`.
                (false, _) if option.len() > 2 => return None,
                (false, _) => attached,
            };
            let start = word.len() - attached.len();
            part(attached, *secret).map(|part| (at - 1, start + part.start..start + part.end))
        };
        if let Some((number, part)) = row.options.iter().find_map(of_option) {
            found.push((number, part));
            at = at.max(number + 1);
        } else if row.starts_another && !word.starts_with(b"-") {
            break;
        }
    }
    found
}

/// Whether a word is the option with its value in the next word, maybe behind others that have none (`-su`).
fn is_alone(word: &[u8], option: &[u8]) -> bool {
    if word == option {
        return true;
    }
    let is_cluster =
        word.len() <= 6 && word.first() == Some(&b'-') && word[1..].iter().all(u8::is_ascii_alphabetic);
    // One that begins with the option has the rest as its value.
    option.len() == 2 && is_cluster && word[1] != option[1] && word.last() == option.last()
}

/// What of the value of an option is secret.
fn part(value: &[u8], secret: Secret) -> Option<Range<usize>> {
    let separator = match secret {
        Whole | Attached => return (!value.is_empty()).then_some(0..value.len()),
        After(separator) => value.iter().position(|byte| *byte == separator)?,
    };
    // Without a password, the name is one.
    let part = if separator + 1 < value.len() { separator + 1..value.len() } else { 0..separator };
    (!part.is_empty()).then_some(part)
}
