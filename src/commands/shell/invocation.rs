//! What bash makes of its arguments, as far as it decides whether a command is recorded.
//!
//! In the order of bash's own `parse_long_options` and `parse_shell_options` (shell.c): long options come first, with
//! one hyphen or two, then clusters of letters, of which `o` and `O` take the next argument.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt as _;

/// The long options without an argument, but for those that print something and end.
const LONG: [&str; 12] = [
    "debug",
    "debugger",
    "dump-po-strings",
    "dump-strings",
    "login",
    "noediting",
    "noprofile",
    "norc",
    "posix",
    "pretty-print",
    "restricted",
    "verbose",
];

/// What bash is to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Invocation<'a> {
    /// The command line of `-c`.
    CommandLine(&'a [u8]),
    /// A script, from a file or from standard input.
    Script,
    /// What a person types.
    Interactive,
    /// To print its version or a usage, or to refuse its arguments.
    Nothing,
}

/// Reads bash's arguments, without its name; `at_terminal` says whether standard input and standard error are
/// terminals.
pub fn read(arguments: &[OsString], at_terminal: impl FnOnce() -> bool) -> Invocation<'_> {
    let mut rest = arguments;
    while let Some((first, others)) = rest.split_first() {
        let first = first.as_bytes();
        let name = first.strip_prefix(b"--").or_else(|| first.strip_prefix(b"-")).unwrap_or_default();
        rest = match name {
            b"help" | b"version" => return Invocation::Nothing,
            b"init-file" | b"rcfile" if others.is_empty() => return Invocation::Nothing,
            b"init-file" | b"rcfile" => &others[1..],
            _ if LONG.iter().any(|long| long.as_bytes() == name) => others,
            _ => break,
        };
    }
    let (mut has_command, mut reads_stdin, mut is_interactive) = (false, false, false);
    while let Some((first, others)) = rest.split_first() {
        let (sign, letters) = match first.as_bytes() {
            b"-" | b"--" => {
                rest = others;
                break;
            }
            [sign @ (b'-' | b'+'), letters @ ..] => (sign, letters),
            _ => break,
        };
        rest = others;
        for letter in letters {
            match letter {
                b'c' => has_command = true,
                b's' => reads_stdin = true,
                b'i' => is_interactive = *sign == b'-',
                // Without an argument they print a list.
                b'o' | b'O' => rest = rest.get(1..).unwrap_or_default(),
                b'-' => return Invocation::Nothing,
                _ => {}
            }
        }
    }
    match rest.first() {
        None if has_command => Invocation::Nothing,
        // Also with -i, which only has it read ~/.bashrc and control jobs: aider calls its shell so.
        Some(line) if has_command => Invocation::CommandLine(line.as_bytes()),
        _ if is_interactive => Invocation::Interactive,
        Some(_) if !reads_stdin => Invocation::Script,
        _ if at_terminal() => Invocation::Interactive,
        _ => Invocation::Script,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(at_terminal: bool, cases: &[(&str, Invocation<'_>)]) {
        for (arguments, expected) in cases {
            let words: Vec<OsString> = arguments.split_whitespace().map(OsString::from).collect();
            assert_eq!(read(&words, || at_terminal), *expected, "bash {arguments}");
        }
    }

    #[test]
    fn command_lines_are_found_behind_all_options() {
        let line = Invocation::CommandLine(b"LINE");
        let cases = [
            "-c LINE",
            "-lc LINE",
            "-cl LINE zero one",
            "-c -l LINE opencode /tmp",
            "--login -c LINE",
            "-login -c LINE",
            "--norc --rcfile f -c LINE",
            "-eo pipefail -c LINE",
            "-c -o pipefail +o posix -O extglob LINE",
            "-oc pipefail LINE",
            "-ooc pipefail errexit LINE",
            "+c LINE",
            "-c -- LINE",
            "-c - LINE",
            "-i -c LINE",
            "-ic LINE",
            "-sc LINE",
        ];
        check(true, &cases.map(|case| (case, line)));
    }

    #[test]
    fn scripts_are_told_from_what_is_typed() {
        use Invocation::{Interactive, Nothing, Script};
        let both = [
            ("script", Script),
            ("-eo pipefail script -c LINE", Script),
            ("-- script", Script),
            ("--posix -x script", Script),
            ("--init-file f script", Script),
            ("-l -i", Interactive),
            ("--version", Nothing),
            ("-help", Nothing),
            ("--norc --version -c LINE", Nothing),
            ("--no-such-option", Nothing),
            ("--rcfile", Nothing),
            ("-x --norc", Nothing),
            ("-c", Nothing),
            ("-ic", Nothing),
        ];
        let stdin =
            ["", "-s", "-s word", "-l", "--login", "-", "--", "-o", "-e -o pipefail", "-s -- -c LINE"];
        for at_terminal in [true, false] {
            check(at_terminal, &both);
            let expected = if at_terminal { Interactive } else { Script };
            check(at_terminal, &stdin.map(|case| (case, expected)));
        }
    }
}
