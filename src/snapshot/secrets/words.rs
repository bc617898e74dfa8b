//! Masks the values in words of a command line, in targets of symlinks and in other texts that look like secrets.
//!
//! A value is known by the name of the option, variable, key or header that it is the value of, by the program whose
//! option it is (`programs.rs`), by being the password of a URL, or by its shape (`tokens.rs`).

use std::borrow::Cow;
use std::ops::Range;

use smallvec::SmallVec;

use super::programs;
use super::tokens::tokens_in;

/// What takes the place of a masked value.
pub const REDACTED: &[u8] = b"<REDACTED>";

/// The ends of names whose value is a secret, in lower case and with `_` between words.
const ENDS: [&str; 31] = [
    "password",
    "passwd",
    "passphrase",
    "passcode",
    "_pwd",
    "sshpass",
    "storepass",
    "keypass",
    "secret",
    "token",
    "api_key",
    "apikey",
    "access_key",
    "accesskey",
    "access_key_secret",
    "account_key",
    "accountkey",
    "secret_key",
    "secretkey",
    "secret_key_base",
    "private_key",
    "privatekey",
    "auth_key",
    "authkey",
    "signing_key",
    "encryption_key",
    "master_key",
    "subscription_key",
    "functions_key",
    "credential",
    "credentials",
];

/// The last words of names whose value is a secret. Within a longer word they mean something else (`compass`,
/// `author`).
const LAST_WORDS: [&str; 9] = ["pass", "pw", "pwd", "auth", "creds", "cookie", "cookies", "psk", "otp"];

/// The first words of options that have no value, or whose value is no secret.
const FLAGS: [&str; 6] = ["no", "ask", "prompt", "skip", "without", "disable"];

/// The headers of HTTP whose value is all that follows.
const HEADERS: [&str; 4] = [AUTHORIZATION, "proxy_authorization", "cookie", "set_cookie"];
const AUTHORIZATION: &str = "authorization";

/// The parameters of URLs whose value is a secret, besides those that are so anywhere.
const PARAMETERS: [&str; 8] =
    ["key", "sig", "signature", "x_amz_signature", "x_goog_signature", "sas", "code", "session"];

/// Values of the short names that are no secret.
const SETTINGS: [&str; 16] = [
    "0", "1", "2", "3", "auto", "basic", "bearer", "digest", "false", "no", "none", "null", "off", "on",
    "true", "yes",
];

/// How many lines for a shell within others are looked into.
const NESTED: usize = 8;

/// The words of a command line with each value that looks like a secret replaced by [`REDACTED`]; none if there is no
/// such value.
///
/// It is also found inside of a word that is a command line itself, such as that of `sh -c`.
pub fn mask(argv: &[Vec<u8>]) -> Option<Vec<Vec<u8>>> {
    let mut of_programs = programs::secrets(argv);
    of_programs.sort_by_key(|(number, part)| (*number, part.start));
    let mut of_programs = of_programs.into_iter().peekable();
    let mut last: &[u8] = b"";
    let mut masked: Vec<Cow<[u8]>> = Vec::with_capacity(argv.len());
    for (number, word) in argv.iter().enumerate() {
        let is_option = last.starts_with(b"-");
        let is_value = is_option && last.iter().all(|byte| is_of_name(*byte)) && is_secret_value(last, word);
        // The word after `-c`, or `-lc`, is a program: an assignment that it begins with is not all of it.
        let is_program = is_option && last.ends_with(b"c");
        let mut parts = Vec::new();
        while let Some((_, part)) = of_programs.next_if(|(of, _)| *of == number) {
            parts.push(part);
        }
        match assignment(word).filter(|_| !is_program) {
            _ if is_value && !word.starts_with(b"-") => parts.push(0..word.len()),
            Some(value) => parts.push(value..word.len()),
            None => find_in_text(word, &mut parts),
        }
        masked.push(replaced(word, parts));
        last = word;
    }
    let is_masked = masked.iter().zip(argv).any(|(masked, word)| **masked != **word);
    is_masked.then(|| masked.into_iter().map(Cow::into_owned).collect())
}

/// Masks a command line in place, as [`mask`] does; whether it had a secret.
pub fn redact(argv: &mut Vec<Vec<u8>>) -> bool {
    mask(argv).map(|masked| *argv = masked).is_some()
}

/// Masks what looks like a secret in a text of several words, such as a file or a line for a shell.
pub fn mask_text(text: &[u8]) -> Cow<'_, [u8]> {
    let mut parts = Vec::new();
    find_in_text(text, &mut parts);
    replaced(text, parts)
}

/// Adds where secrets are in a text.
fn find_in_text(text: &[u8], parts: &mut Vec<Range<usize>>) {
    parts.extend(values(text));
    parts.extend(tokens_in(text));
    if text.iter().any(u8::is_ascii_whitespace) {
        of_commands(text, 0..text.len(), NESTED, parts);
    }
}

/// The text with these parts of it replaced.
fn replaced(text: &[u8], mut parts: Vec<Range<usize>>) -> Cow<'_, [u8]> {
    if parts.is_empty() {
        return Cow::Borrowed(text);
    }
    parts.sort_by_key(|part| (part.start, part.end));
    let mut out = Vec::with_capacity(text.len());
    let mut end = 0;
    for part in parts {
        if part.start >= end {
            out.extend_from_slice(&text[end..part.start]);
            out.extend_from_slice(REDACTED);
        }
        // What overlaps is one.
        end = end.max(part.end);
    }
    out.extend_from_slice(&text[end..]);
    Cow::Owned(out)
}

/// Adds where options of programs have a secret in the part `range` of a text that may be lines for a shell, also in
/// lines within its quotes.
fn of_commands(text: &[u8], range: Range<usize>, nested: usize, parts: &mut Vec<Range<usize>>) {
    let mut words: Vec<Range<usize>> = Vec::new();
    let mut at = range.start;
    let flush = |words: &mut Vec<Range<usize>>, parts: &mut Vec<Range<usize>>| {
        let plain: Vec<&[u8]> = words.iter().map(|word| &text[word.clone()]).collect();
        for (number, part) in programs::secrets(&plain) {
            let start = words[number].start;
            parts.push(start + part.start..start + part.end);
        }
        words.clear();
    };
    while at < range.end {
        let length = word_length(&text[at..range.end]);
        if length == 0 {
            // A line that goes on is the same command; an operator ends it.
            if !matches!(text[at], b' ' | b'\t' | b'<' | b'>') {
                flush(&mut words, parts);
            }
            at += 1;
            continue;
        }
        let word = inside_quotes(text, at..at + length);
        if nested > 0 && word.len() < length && text[word.clone()].iter().any(u8::is_ascii_whitespace) {
            of_commands(text, word.clone(), nested - 1, parts);
        }
        words.push(word);
        at += length;
    }
    flush(&mut words, parts);
}

/// Where the value begins in a word that is an assignment of a secret, or an option with one.
fn assignment(word: &[u8]) -> Option<usize> {
    let name = word.iter().take_while(|byte| is_of_name(**byte)).count();
    let is_one = word.get(name) == Some(&b'=') && word.len() > name + 1;
    (is_one && is_secret_value(&word[..name], &word[name + 1..])).then_some(name + 1)
}

/// Where the values in a text are, in order and apart from each other.
fn values(text: &[u8]) -> Vec<Range<usize>> {
    let mut found = Vec::new();
    let mut at = 0;
    while at < text.len() {
        if !is_of_name(text[at]) {
            at += 1;
            continue;
        }
        let end = at + text[at..].iter().take_while(|byte| is_of_name(**byte)).count();
        let value = value_of(text, at..end).filter(|value| !value.is_empty());
        at = value.as_ref().map_or(end, |value| value.end);
        found.extend(value);
    }
    found
}

/// The value whose name is at `name`, or the user in the URL whose scheme is there.
fn value_of(text: &[u8], name: Range<usize>) -> Option<Range<usize>> {
    let (word, rest) = (&text[name.clone()], &text[name.end..]);
    // What no value follows is most of a text.
    let follows = matches!(rest.first()?, b'=' | b':' | b' ' | b'\t' | b'\\') || is_quote(rest[0]);
    if !follows {
        return None;
    }
    if let Some(url) = rest.strip_prefix(b"://") {
        return user_of(word, url).map(|user| name.end + 3 + user.start..name.end + 3 + user.end);
    }
    if let Some(value) = bearer(word, rest) {
        return Some(name.end + value.start..name.end + value.end);
    }
    let quotes = rest.iter().take_while(|byte| is_quote(**byte) || **byte == b'\\').count();
    let blanks = |at: usize| rest[at..].iter().take_while(|byte| matches!(byte, b' ' | b'\t')).count();
    let sign = quotes + blanks(quotes);
    let is_option = word.starts_with(b"-");
    let start = match rest.get(sign)? {
        b'-' if is_option => return None,
        _ if is_option && quotes == 0 && sign > 0 => sign,
        b'=' if sign == 0 => 1,
        // `==` compares, and `::` separates names.
        sign_byte @ (b'=' | b':') if rest.get(sign + 1) != Some(sign_byte) => sign + 1 + blanks(sign + 1),
        _ => return None,
    };
    let has_colon = rest[sign] == b':';
    let is_parameter = name.start > 0 && matches!(text[name.start - 1], b'?' | b'&') && rest[0] == b'=';
    let is_header =
        has_colon && HEADERS.iter().any(|header| is_name(word, header)) || is_name(word, AUTHORIZATION);
    let value = &rest[start..];
    let length = if is_header { header_length(value) } else { word_length(value) };
    let value = inside_quotes(value, 0..length);
    let value = start + value.start..start + value.end;
    let is_secret = is_header
        || is_parameter && PARAMETERS.iter().any(|parameter| is_name(word, parameter))
        // In a sentence, such a word is followed by a colon, too.
        || telling(word).filter(|telling| *telling == Telling::Surely || quotes > 0 || !has_colon)
            .is_some_and(|telling| is_secret_of(telling, &rest[value.clone()]));
    is_secret.then(|| name.end + value.start..name.end + value.end)
}

/// The token behind `Bearer`.
fn bearer(word: &[u8], rest: &[u8]) -> Option<Range<usize>> {
    /// Shorter is a word of a sentence.
    const LEAST: usize = 16;
    if !word.eq_ignore_ascii_case(b"bearer") {
        return None;
    }
    let start = rest.iter().take_while(|byte| **byte == b' ').count();
    let is_of_token = |byte: &&u8| is_of_name(**byte) || matches!(byte, b'.' | b'~' | b'+' | b'/' | b'=');
    let length = rest[start..].iter().take_while(is_of_token).count();
    (start > 0 && length >= LEAST).then_some(start..start + length)
}

/// What is secret before the `@` of a URL.
fn user_of(scheme: &[u8], url: &[u8]) -> Option<Range<usize>> {
    let is_end =
        |byte: &u8| matches!(byte, b'/' | b'?' | b'#') || byte.is_ascii_whitespace() || is_quote(*byte);
    let authority = &url[..url.iter().position(is_end).unwrap_or(url.len())];
    let at = authority.iter().rposition(|byte| *byte == b'@')?;
    match authority[..at].iter().position(|byte| *byte == b':') {
        // An empty password says that the name is the secret.
        Some(colon) if colon + 1 == at => Some(0..colon),
        Some(colon) => Some(colon + 1..at),
        // The name alone is a token where a site takes no other; of ssh it is a user.
        None if scheme.starts_with(b"http") => Some(0..at),
        None => None,
    }
}

/// How long the word of a shell at the start of `text` is, quotes included.
fn word_length(text: &[u8]) -> usize {
    let mut at = 0;
    while let Some(byte) = text.get(at) {
        match byte {
            b'\\' => at += 2,
            quote if is_quote(*quote) => {
                let rest = &text[at + 1..];
                // A quote in the middle of a line is more likely to close what the whole value is in than to open
                // what ends in another line.
                let line = rest.iter().position(|byte| at > 0 && *byte == b'\n').unwrap_or(rest.len());
                match rest[..line].iter().position(|byte| byte == quote) {
                    Some(close) => {
                        at += close + 2;
                        // In JSON the value has ended.
                        if matches!(text.get(at), Some(b',' | b'}' | b']')) {
                            return at;
                        }
                    }
                    // It closes what the whole value is in.
                    None => return at,
                }
            }
            b';' | b'&' | b'|' | b'(' | b')' | b'<' | b'>' => break,
            byte if byte.is_ascii_whitespace() => break,
            _ => at += 1,
        }
    }
    at.min(text.len())
}

/// How long the value of a header is: up to the quote that closes it, or the end of the line.
fn header_length(text: &[u8]) -> usize {
    text.iter().position(|byte| is_quote(*byte) || matches!(byte, b'\n' | b'\r')).unwrap_or(text.len())
}

/// The range without the pair of quotes that it begins and ends with.
fn inside_quotes(text: &[u8], range: Range<usize>) -> Range<usize> {
    match &text[range.clone()] {
        [first, .., last] if is_quote(*first) && first == last => range.start + 1..range.end - 1,
        _ => range,
    }
}

fn is_quote(byte: u8) -> bool {
    matches!(byte, b'"' | b'\'' | b'`')
}

fn is_of_name(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-')
}

/// The most bytes of a name that are looked at, which are its last ones.
const LONGEST: usize = 64;

/// A name in lower case, with `_` between its words.
fn normalized(name: &[u8]) -> SmallVec<[u8; 2 * LONGEST]> {
    let name = &name[name.len().saturating_sub(LONGEST)..];
    let mut out = SmallVec::new();
    let mut was_lower = false;
    for byte in name {
        if was_lower && byte.is_ascii_uppercase() {
            out.push(b'_');
        }
        was_lower = byte.is_ascii_lowercase();
        out.push(if is_of_name(*byte) && *byte != b'-' { byte.to_ascii_lowercase() } else { b'_' });
    }
    out
}

fn is_name(word: &[u8], name: &str) -> bool {
    let is_same =
        |(one, other): (&u8, u8)| one.to_ascii_lowercase() == other || *one == b'-' && other == b'_';
    word.len() == name.len() && word.iter().zip(name.bytes()).all(is_same)
}

/// What a name says of its value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Telling {
    /// It is a secret.
    Surely,
    /// It is a secret unless it is one of [`SETTINGS`].
    Likely,
}

/// Whether `value` is a secret as the value of an option or a variable of this name.
pub(super) fn is_secret_value(name: &[u8], value: &[u8]) -> bool {
    telling(name).is_some_and(|telling| is_secret_of(telling, value))
}

fn is_secret_of(telling: Telling, value: &[u8]) -> bool {
    let is_setting = || SETTINGS.iter().any(|setting| value.eq_ignore_ascii_case(setting.as_bytes()));
    telling == Telling::Surely || !is_setting()
}

/// What the name of an option or a variable says of its value; none if it says nothing.
fn telling(name: &[u8]) -> Option<Telling> {
    let normal = normalized(name);
    let mut words = normal.split(|byte| *byte == b'_').filter(|word| !word.is_empty());
    let first = words.clone().next()?;
    let last = words.next_back()?;
    let is_one_word = words.next().is_none();
    if !is_one_word && FLAGS.iter().any(|flag| flag.as_bytes() == first) {
        return None;
    }
    if ENDS.iter().any(|end| normal.ends_with(end.as_bytes())) {
        return Some(Telling::Surely);
    }
    // The variable of the working directory.
    let is_directory = is_one_word && name.eq_ignore_ascii_case(b"pwd");
    let is_likely = LAST_WORDS.iter().any(|word| word.as_bytes() == last) && !is_directory;
    is_likely.then_some(Telling::Likely)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn masked(argv: &[&str]) -> String {
        let argv: Vec<Vec<u8>> = argv.iter().map(|word| word.as_bytes().to_vec()).collect();
        let masked = mask(&argv).unwrap_or(argv);
        masked.iter().map(|word| std::str::from_utf8(word).unwrap()).collect::<Vec<_>>().join("|")
    }

    #[test]
    fn values_of_options_and_assignments_are_masked() {
        for (argv, expected) in [
            (&["x", "--password", "hunter2", "y"][..], "x|--password|<REDACTED>|y"),
            (
                &["sh", "-c", "sh -c \"sh -c 'x --token hunter2'\"\necho 'it'"],
                "sh|-c|sh -c \"sh -c 'x --token <REDACTED>'\"\necho 'it'",
            ),
            (&["x", "--api-key=hunter2"], "x|--api-key=<REDACTED>"),
            (&["x", "-token", "hunter2"], "x|-token|<REDACTED>"),
            (&["x", "--password", "--verbose"], "x|--password|--verbose"),
            (&["env", "GITHUB_TOKEN=hunter2", "x"], "env|GITHUB_TOKEN=<REDACTED>|x"),
            (&["PGPASSWORD=hunter2"], "PGPASSWORD=<REDACTED>"),
            (&["env", "X_TOKEN=hun ter2;'x"], "env|X_TOKEN=<REDACTED>"),
            (&["x", "--header", "Authorization: Bearer hun ter2"], "x|--header|Authorization: <REDACTED>"),
            (
                &["x", "-d", r#"{"password": "hun ter2", "a": 1}"#],
                r#"x|-d|{"password": "<REDACTED>", "a": 1}"#,
            ),
            (&["git", "clone", "https://me:hunter2@host/x"], "git|clone|https://me:<REDACTED>@host/x"),
            (&["git", "clone", "https://hunter2@host/x"], "git|clone|https://<REDACTED>@host/x"),
            (
                &["curl", "https://h/x?access_token=hunter2&y=1"],
                "curl|https://h/x?access_token=<REDACTED>&y=1",
            ),
        ] {
            assert_eq!(masked(argv), expected);
        }
    }

    #[test]
    fn values_inside_of_a_command_line_are_masked() {
        for (line, expected) in [
            ("export API_TOKEN=hunter2; run", "export API_TOKEN=<REDACTED>; run"),
            ("API_TOKEN='hun ter2' run", "API_TOKEN='<REDACTED>' run"),
            ("API_TOKEN=\"hun ter2\"&&run", "API_TOKEN=\"<REDACTED>\"&&run"),
            ("x --password hunter2 -v", "x --password <REDACTED> -v"),
            ("x --password -v", "x --password -v"),
            ("x --password='hunter2'", "x --password='<REDACTED>'"),
            ("curl -H 'Authorization: Bearer hunter2' h", "curl -H 'Authorization: <REDACTED>' h"),
            ("sh -c \"X_SECRET='hunter2' x\"", "sh -c \"X_SECRET='<REDACTED>' x\""),
            ("sh -c \"X_SECRET=hunter2\" y", "sh -c \"X_SECRET=<REDACTED>\" y"),
            ("X_SECRET=hun\\ ter2 y", "X_SECRET=<REDACTED> y"),
            ("X_SECRET=a'b c'\"d e\" y", "X_SECRET=<REDACTED> y"),
        ] {
            assert_eq!(masked(&["bash", "-c", line]), format!("bash|-c|{expected}"));
        }
    }

    #[test]
    fn short_names_and_options_of_programs_are_masked() {
        for (argv, expected) in [
            (&["x", "--db-pass", "hunter2"][..], "x|--db-pass|<REDACTED>"),
            (&["plink", "-pw", "hunter2"], "plink|-pw|<REDACTED>"),
            (&["http", "--auth", "me:hunter2"], "http|--auth|<REDACTED>"),
            (&["x", "--auth=hunter2", "DB_PASS=hunter2"], "x|--auth=<REDACTED>|DB_PASS=<REDACTED>"),
            (&["x", "dbPass=hunter2"], "x|dbPass=<REDACTED>"),
            (&["curl", "-H", "Cookie: a=hunter2; b=hunter2"], "curl|-H|Cookie: <REDACTED>"),
            (&["curl", "-u", "me:hunter2", "h"], "curl|-u|me:<REDACTED>|h"),
            (&["/usr/bin/curl", "-ume:hunter2"], "/usr/bin/curl|-ume:<REDACTED>"),
            (&["curl", "-sSu", "me:hunter2"], "curl|-sSu|me:<REDACTED>"),
            (&["curl", "--user", "hunter2:"], "curl|--user|<REDACTED>:"),
            (&["curl", "--proxy-user=me:hunter2"], "curl|--proxy-user=me:<REDACTED>"),
            (&["curl", "-b", "session=hunter2"], "curl|-b|session=<REDACTED>"),
            (&["sudo", "mysql", "-u", "me", "-phunter2", "-p"], "sudo|mysql|-u|me|-p<REDACTED>|-p"),
            (&["sshpass", "-p", "hunter2", "ssh", "-p22", "h"], "sshpass|-p|<REDACTED>|ssh|-p22|h"),
            (&["redis-cli", "-a", "hunter2"], "redis-cli|-a|<REDACTED>"),
            (&["docker", "login", "-u", "me", "-p", "hunter2"], "docker|login|-u|me|-p|<REDACTED>"),
            (&["smbclient", "-U", "me%hunter2"], "smbclient|-U|me%<REDACTED>"),
            (&["openssl", "rsa", "-passin", "pass:hunter2"], "openssl|rsa|-passin|<REDACTED>"),
            (
                &["aws", "configure", "set", "aws_secret_access_key", "hunter2"],
                "aws|configure|set|aws_secret_access_key|<REDACTED>",
            ),
            (&["curl", "https://h/x?sig=hunter2&y=1"], "curl|https://h/x?sig=<REDACTED>&y=1"),
            (&["x", "Bearer 0123456789abcdef"], "x|Bearer <REDACTED>"),
            (&["git", "clone", "https://hunter2:@h/x"], "git|clone|https://<REDACTED>:@h/x"),
            (
                &["sh", "-c", "cd x && mysql -phunter2 db; curl -u 'me:hunter2' h"],
                "sh|-c|cd x && mysql -p<REDACTED> db; curl -u 'me:<REDACTED>' h",
            ),
            (
                &["sh", "-c", "ssh h \"mysql -p'hunter2'\" | sh -c 'curl -u me:hunter2 h'"],
                "sh|-c|ssh h \"mysql -p<REDACTED>\" | sh -c 'curl -u me:<REDACTED> h'",
            ),
            (&["x", "ghp_0123456789abcdefghijABCDEFGHIJ0123456789"], "x|<REDACTED>"),
        ] {
            assert_eq!(masked(argv), expected);
        }
    }

    #[test]
    fn other_words_stay() {
        for argv in [
            &["ls", "-l"][..],
            &["PWD=/x", "OLDPWD=/y"],
            &["x", "--password-file", "/x", "--token-path=/y"],
            &["x", "--tokens", "5"],
            &["ssh", "ssh://git@host/x", "me@host"],
            &["a token b", "std::token::x", "if token == 5", "--x=token", "y"],
            &["X_TOKEN="],
            &[
                "x",
                "--pass-through",
                "yes",
                "--no-password",
                "x",
                "--bypass",
                "y",
                "--compass=z",
                "--author",
                "me",
            ],
            &["ansible", "--ask-pass", "host", "--auth=none", "AUTH=basic", "--pass=1"],
            &["ssh", "-p22", "h"],
            &["mkdir", "-p", "foo"],
            &["docker", "run", "-p", "80:80", "-u", "me:us", "x"],
            &["psql", "-u", "me:us", "-p", "5432"],
            &["mysql", "-p", "db", "--port=3306"],
            &["curl", "-u", "me", "-fsSL", "https://h/x?y=1", "-b", "jar"],
            &["find", ".", "-name", "mysql", "-print"],
            &["sh", "-c", "echo mysql -print; find / -name curl -uid 5"],
            &["set", "-e", "x"],
            &["test", "pass: 3, fail: 2", "author: me", "auth: x"],
            &["a bearer of news"],
            &["task-0123456789abcdef0123456789"],
        ] {
            assert_eq!(masked(argv), argv.join("|"));
        }
    }

    #[test]
    fn deep_quotes_are_no_deep_recursion() {
        let text = "' \" ".repeat(20_000);
        assert_eq!(masked(&["sh", "-c", &text]), format!("sh|-c|{text}"));
    }

    proptest::proptest! {
        #[test]
        fn any_words_are_masked_and_masked_again_are_the_same(words: Vec<Vec<u8>>) {
            if let Some(once) = mask(&words) {
                proptest::prop_assert_eq!(once.len(), words.len());
            }
        }

        #[test]
        fn a_value_is_never_left(value in "[a-zA-Z0-9/+=._~-]{8,20}", quote in "['\"]?") {
            let line = format!("run X_TOKEN={quote}{value}{quote} more --password {quote}{value}{quote}");
            for argv in [vec![line.clone()], vec!["sh".to_owned(), "-c".to_owned(), line]] {
                let argv: Vec<Vec<u8>> = argv.into_iter().map(String::into_bytes).collect();
                let masked = mask(&argv).unwrap().concat();
                let is_left = masked.windows(value.len()).any(|window| window == value.as_bytes());
                proptest::prop_assert!(!is_left || value.starts_with('-'), "{}", String::from_utf8_lossy(&masked));
            }
        }
    }
}
