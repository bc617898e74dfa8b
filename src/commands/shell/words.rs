//! Which program a command line starts, as far as that can be told without running it.

/// Commands that come before the one that matters, and start no program.
const BEFORE: [&str; 13] = [
    ".", ":", "cd", "export", "set", "setopt", "shopt", "source", "true", "umask", "unalias", "unset",
    "unsetopt",
];

/// How deep `eval` may be nested.
const DEPTH: u32 = 8;

/// The first word of the first command, behind assignments, redirections, `cd` and the like; agents wrap the line
/// that matters in `eval`.
pub fn first_program(line: &[u8]) -> Option<Vec<u8>> {
    first_of(in_subshell(line).unwrap_or(line), DEPTH)
}

fn first_of(line: &[u8], depth: u32) -> Option<Vec<u8>> {
    for words in commands(line) {
        match words.split_first() {
            Some((name, arguments)) if name == b"eval" && depth > 0 => {
                return first_of(&arguments.join(&b' '), depth - 1);
            }
            Some((name, _)) if !is_before(name) => return Some(name.clone()),
            _ => {}
        }
    }
    None
}

/// The line that an agent has wrapped in commands that only serve the agent itself.
pub fn wrapped_line(line: &[u8]) -> Option<Vec<u8>> {
    in_subshell(line).map(<[u8]>::to_vec).or_else(|| in_exec(line)).or_else(|| in_eval(line))
}

/// What Codex begins a line with that sets the environment of its sandbox, and how the shell is started that has it.
const ENVIRONMENT: (&[u8], &[u8]) = (b"__CODEX_SNAPSHOT_", b"\n\nexec '");

/// The line of the shell that Codex starts in that environment.
fn in_exec(line: &[u8]) -> Option<Vec<u8>> {
    let (first, exec) = ENVIRONMENT;
    let at =
        line.windows(exec.len()).position(|window| window == exec).filter(|_| line.starts_with(first))?;
    let mut commands = commands(&line[at + 2..]);
    let words = commands.next()?;
    match (words.as_slice(), commands.next()) {
        ([name, _, option, line], None) if name == b"exec" && option.starts_with(b"-") => Some(line.clone()),
        _ => None,
    }
}

/// What Gemini CLI puts before a command and after it, to learn what the command leaves in the background.
const SUBSHELL: (&[u8], &[u8]) =
    (b"\n(\n  trap 'jobs -p > \"$_bgpids_file\"' EXIT\n", b"\n)\n__code=$?\nexit $__code");

fn in_subshell(line: &[u8]) -> Option<&[u8]> {
    let (before, after) = SUBSHELL;
    let at = line.windows(before.len()).position(|window| window == before)?;
    let is_its_own = |word: &[u8]| word.starts_with(b"_bgpids_file=") || word == b"shopt";
    let first = line[..at].split(|byte| byte.is_ascii_whitespace()).next()?;
    line[at + before.len()..].strip_suffix(after).filter(|_| is_its_own(first))
}

/// The line in an `eval`.
fn in_eval(line: &[u8]) -> Option<Vec<u8>> {
    let mut wrapped = None;
    for words in commands(line) {
        match words.as_slice() {
            [name, line, rest @ ..] if name == b"eval" && wrapped.is_none() => {
                // Some versions let eval see the redirection.
                if !rest.is_empty() && rest != [b"<".as_slice(), b"/dev/null"] {
                    return None;
                }
                wrapped = Some(line.clone());
            }
            [name, ..] if !is_set_up(&words) && name != b"pwd" => return None,
            _ => {}
        }
    }
    wrapped
}

/// The words of the only command of a line that starts a program, if it is the last one; apart from it there may be
/// what a sandbox sets up for its proxies.
pub fn only_command(line: &[u8]) -> Option<Vec<Vec<u8>>> {
    let mut commands: Vec<_> = commands(behind_waiting(line).unwrap_or(line)).collect();
    let last = commands.pop()?;
    commands.iter().all(|words| is_set_up(words)).then_some(last)
}

/// What is left of a line of Anthropic's sandbox-runtime behind the loop in which it waits for its proxies; none if there
/// is no such loop.
fn behind_waiting(line: &[u8]) -> Option<&[u8]> {
    const LAST: &[u8] = b"\nunset _srt_";
    let at =
        line.windows(LAST.len()).position(|words| words == LAST).filter(|_| line.starts_with(b"{ socat "))?;
    let rest = &line[at + 1..];
    rest.iter().position(|byte| *byte == b'\n').map(|end| &rest[end..])
}

/// Whether a command only sets up what comes after it: its descriptors, or the proxies of Anthropic's sandbox-runtime.
fn is_set_up(words: &[Vec<u8>]) -> bool {
    match words {
        [brace, rest @ ..] if brace == b"{" => is_set_up(rest),
        [builtin, rest @ ..] if builtin == b"builtin" => is_set_up(rest),
        [name] => is_before(name) || [&b"exec"[..], b"trap", b"}"].contains(&name.as_slice()),
        [name, ..] => is_before(name) || [&b"exit"[..], b"socat", b"trap"].contains(&name.as_slice()),
        [] => true,
    }
}

fn is_before(name: &[u8]) -> bool {
    BEFORE.iter().any(|before| before.as_bytes() == name)
}

/// The words of each command, without assignments before it.
fn commands(line: &[u8]) -> impl Iterator<Item = Vec<Vec<u8>>> {
    let mut tokens = Tokens(line);
    std::iter::from_fn(move || {
        let mut words: Vec<Vec<u8>> = Vec::new();
        loop {
            match tokens.next() {
                Some(Token::Word { is_assignment: true, .. }) if words.is_empty() => {}
                Some(Token::Word { text, .. }) => words.push(text),
                None if words.is_empty() => return None,
                Some(Token::End) | None => return Some(words),
            }
        }
    })
}

enum Token {
    /// A word without its quotes, and whether it assigns a variable.
    Word { text: Vec<u8>, is_assignment: bool },
    /// What ends a command.
    End,
}

/// The words of a line, without redirections and comments.
struct Tokens<'a>(&'a [u8]);

impl Iterator for Tokens<'_> {
    type Item = Token;

    fn next(&mut self) -> Option<Token> {
        loop {
            match self.0 {
                [] => return None,
                [b'\\', b'\n', rest @ ..] | [b' ' | b'\t', rest @ ..] => self.0 = rest,
                [b'#', ..] => {
                    let end = self.0.iter().position(|byte| *byte == b'\n').unwrap_or(self.0.len());
                    self.0 = &self.0[end..];
                }
                [b'<' | b'>', ..] | [b'&', b'>', ..] => self.redirection(),
                [b';' | b'&' | b'|' | b'(' | b')' | b'\n', rest @ ..] => {
                    self.0 = rest;
                    return Some(Token::End);
                }
                _ => {
                    let (text, is_assignment) = self.word();
                    let is_descriptor = text.iter().all(u8::is_ascii_digit);
                    if !(is_descriptor && matches!(self.0, [b'<' | b'>', ..])) {
                        return Some(Token::Word { text, is_assignment });
                    }
                }
            }
        }
    }
}

impl Tokens<'_> {
    /// Skips a redirection with its target.
    fn redirection(&mut self) {
        let is_operator = |byte: &u8| b"<>&|-".contains(byte);
        let end = self.0.iter().position(|byte| !is_operator(byte)).unwrap_or(self.0.len());
        let (operator, rest) = self.0.split_at(end);
        self.0 = rest.trim_ascii_start();
        if !operator.ends_with(b"&-") {
            self.word();
        }
    }

    /// Takes a word, and says whether it is an assignment.
    fn word(&mut self) -> (Vec<u8>, bool) {
        let (mut text, mut name_ends) = (Vec::new(), None);
        let mut was_quoted = false;
        loop {
            match self.0 {
                [] | [b' ' | b'\t' | b'\n' | b';' | b'&' | b'|' | b'(' | b')' | b'<' | b'>', ..] => break,
                [b'\\', b'\n', rest @ ..] => self.0 = rest,
                [b'\\', byte, rest @ ..] => {
                    text.push(*byte);
                    (self.0, was_quoted) = (rest, true);
                }
                [b'\'', rest @ ..] => {
                    let end = rest.iter().position(|byte| *byte == b'\'').unwrap_or(rest.len());
                    text.extend(&rest[..end]);
                    (self.0, was_quoted) = (rest.get(end + 1..).unwrap_or_default(), true);
                }
                [b'"', rest @ ..] => {
                    (self.0, was_quoted) = (rest, true);
                    self.double_quoted(&mut text);
                }
                [b'=', rest @ ..] => {
                    if name_ends.is_none() && !was_quoted {
                        name_ends = Some(text.len());
                    }
                    text.push(b'=');
                    self.0 = rest;
                }
                [b'$', b'(', ..] => self.substitution(&mut text),
                [byte, rest @ ..] => {
                    text.push(*byte);
                    self.0 = rest;
                }
            }
        }
        let is_assignment = name_ends.is_some_and(|end| is_variable(&text[..end]));
        (text, is_assignment)
    }

    /// Takes what is left of a string in double quotes.
    fn double_quoted(&mut self, text: &mut Vec<u8>) {
        loop {
            match self.0 {
                [] => return,
                [b'"', rest @ ..] => {
                    self.0 = rest;
                    return;
                }
                [b'\\', b'\n', rest @ ..] => self.0 = rest,
                [b'\\', byte @ (b'$' | b'`' | b'"' | b'\\'), rest @ ..] | [byte, rest @ ..] => {
                    text.push(*byte);
                    self.0 = rest;
                }
            }
        }
    }

    /// Takes a `$(...)` as it is written.
    fn substitution(&mut self, text: &mut Vec<u8>) {
        let mut depth = 0;
        while let [byte, rest @ ..] = self.0 {
            text.push(*byte);
            self.0 = rest;
            match byte {
                b'(' => depth += 1,
                b')' if depth == 1 => return,
                b')' => depth -= 1,
                _ => {}
            }
        }
    }
}

/// Whether this may stand before the `=` of an assignment.
fn is_variable(name: &[u8]) -> bool {
    let name = name.strip_suffix(b"+").unwrap_or(name);
    let is_letter = |byte: &u8| byte.is_ascii_alphanumeric() || *byte == b'_';
    name.first().is_some_and(|first| !first.is_ascii_digit()) && name.iter().all(is_letter)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_program_is_found_as_bash_would_start_it() {
        for (line, program) in [
            ("sudo rm x", Some("sudo")),
            ("  \n\tsudo rm x", Some("sudo")),
            ("A=1 B='two words' C+=\"x y\" sudo -n true", Some("sudo")),
            ("A=$(cat f; echo x) sudo", Some("sudo")),
            ("\"su\"do x", Some("sudo")),
            ("\\sudo x", Some("sudo")),
            ("s\\\nudo x", Some("sudo")),
            ("/usr/bin/sudo x", Some("/usr/bin/sudo")),
            ("2>&1 >>log sudo x", Some("sudo")),
            ("sudo</dev/null", Some("sudo")),
            ("&> log sudo", Some("sudo")),
            ("2>&- sudo", Some("sudo")),
            ("# a remark; rm\nsudo x", Some("sudo")),
            ("cd /repo && sudo make install", Some("sudo")),
            ("set -e; export A=b; (sudo x)", Some("sudo")),
            ("make && sudo make install", Some("make")),
            ("echo sudo", Some("echo")),
            ("sudoedit f", Some("sudoedit")),
            ("a'='b sudo", Some("a=b")),
            ("1=2 sudo", Some("1=2")),
            ("", None),
            ("A=1", None),
            ("cd; cd", None),
            ("'unterminated", Some("unterminated")),
            ("\"unterminated", Some("unterminated")),
            ("$(", Some("$(")),
            (">", None),
            ("eval", None),
        ] {
            let found = first_program(line.as_bytes()).map(|word| String::from_utf8(word).unwrap());
            assert_eq!(found.as_deref(), program, "{line}");
        }
    }

    #[test]
    fn line_that_an_agent_wraps_is_looked_into() {
        let wrap = |line: &str| {
            format!(
                "source /root/.claude/shell-snapshots/snapshot-bash-1-x.sh 2>/dev/null || true && shopt -u extglob \
                 2>/dev/null || true && eval '{line}' \\< /dev/null && pwd -P >| /tmp/claude-1-cwd"
            )
        };
        assert_eq!(first_program(wrap("A=1 sudo apt-get update").as_bytes()), Some(b"sudo".to_vec()));
        assert_eq!(first_program(wrap("git status && sudo x").as_bytes()), Some(b"git".to_vec()));
        let nested = (0..100).fold("sudo".to_owned(), |line, _| format!("eval {line}"));
        assert!(first_program(nested.as_bytes()).is_some());
    }

    #[test]
    fn line_that_is_wrapped_is_found_as_it_was_given() {
        let wrap = |line: &str| {
            format!(
                "source /h/s.sh 2>/dev/null || true && shopt -u extglob 2>/dev/null || true \
                 && eval {line} < /dev/null && pwd -P >| /tmp/claude-1f-cwd"
            )
        };
        for (quoted, line) in [
            ("'echo a > b; ls'", "echo a > b; ls"),
            (r#""echo it's""#, "echo it's"),
            (r#"'a'"'"'b'"#, "a'b"),
            (r"'make' \< /dev/null", "make"),
        ] {
            assert_eq!(wrapped_line(wrap(quoted).as_bytes()).as_deref(), Some(line.as_bytes()), "{quoted}");
        }
        let gemini = |line: &str| {
            format!(
                "shopt -u promptvars nullglob; _bgpids_file=/tmp/gemini-shell-x/bgpids.tmp\n(\n  \
                 trap 'jobs -p > \"$_bgpids_file\"' EXIT\n{line}\n)\n__code=$?\nexit $__code"
            )
        };
        for line in ["ls", "cat <<'EOF'\na\nEOF", "(a\n)\n# )", "printf '%s\\n' \"it's\""] {
            assert_eq!(wrapped_line(gemini(line).as_bytes()).as_deref(), Some(line.as_bytes()));
        }
        assert_eq!(first_program(gemini("cd a && sudo b").as_bytes()), Some(b"sudo".to_vec()));
        assert_eq!(wrapped_line(format!("rm x; {}", gemini("ls")).as_bytes()), None);
        assert_eq!(wrapped_line(gemini("ls").replace("exit", "true").as_bytes()), None);
        for line in
            ["", "ls", "eval 'a' && ls", "make && eval 'a'", "eval a b", "cd x && pwd", "eval 'a'; eval 'b'"]
        {
            assert_eq!(wrapped_line(line.as_bytes()), None, "{line}");
        }
    }
}
