//! Which files hold secrets, and which words of a command line do: the one table of both.
//!
//! Pure: whoever records or exports withholds the files ([`BlobOmitted::Withheld`](super::BlobOmitted::Withheld)) and
//! masks the words. Files are found by the names under which programs keep them, words by the name of the option or
//! variable that they are the value of. A secret anywhere else is not found.

use std::io;
use std::ops::Range;

use gix::bstr::ByteSlice as _;

/// What takes the place of a masked value.
pub const REDACTED: &[u8] = b"<REDACTED>";

/// The files that hold secrets, as the end of their path or of a directory above them, by patterns as in gitignore(5).
pub const TABLE: [&str; 12] = [
    ".ssh/id_*",
    ".netrc",
    ".aws/credentials",
    ".config/gcloud",
    ".git-credentials",
    ".npmrc",
    ".pypirc",
    ".docker/config.json",
    "gh/hosts.yml",
    ".kube/config",
    ".env*",
    PEM,
];

/// Such a file holds a secret only if its content is a private key.
const PEM: &str = "*.pem";
/// The public half of a key pair, which `.ssh/id_*` matches, too.
const PUBLIC: &[u8] = b".pub";
/// The end of the line that a private key in PEM (RFC 7468), or of OpenSSH, begins with.
const PRIVATE_KEY: &[u8] = b"PRIVATE KEY-----";

/// The ends of names whose value is a secret, in lower case and with `_` between words.
const NAMES: [&[u8]; 14] = [
    b"password",
    b"passwd",
    b"passphrase",
    b"_pwd",
    b"secret",
    b"token",
    b"apikey",
    b"api_key",
    b"access_key",
    b"secret_key",
    b"private_key",
    b"auth_key",
    b"credential",
    b"credentials",
];
/// The header of HTTP whose value has several words.
const AUTHORIZATION: &[u8] = b"authorization";

/// The files that are taken for secrets: those of the table, with what the user adds and removes.
#[derive(Debug, Clone)]
pub struct Secrets {
    globs: Vec<SecretGlob>,
}

#[derive(Debug, Clone)]
struct SecretGlob {
    glob: Vec<u8>,
    /// What every path has that it matches: most paths have none of these.
    literal: Vec<u8>,
    is_pem: bool,
}

impl SecretGlob {
    fn new(glob: Vec<u8>, is_pem: bool) -> SecretGlob {
        // What is between brackets, or behind a backslash, is no text of its own.
        let is_plain = !glob.iter().any(|byte| matches!(byte, b'[' | b'\\'));
        let runs = glob.split(|byte| matches!(byte, b'*' | b'?')).filter(|_| is_plain);
        let literal = runs.max_by_key(|run| run.len()).unwrap_or_default().to_vec();
        SecretGlob { glob, literal, is_pem }
    }

    fn may_match(&self, path: &[u8]) -> bool {
        path.contains_str(&self.literal)
    }

    fn matches(&self, path: &[u8]) -> bool {
        use gix::glob::wildmatch::Mode;
        gix::glob::wildmatch(self.glob.as_slice().into(), path.into(), Mode::NO_MATCH_SLASH_LITERAL)
    }
}

impl Default for Secrets {
    fn default() -> Secrets {
        let globs = TABLE.map(|word| SecretGlob::new(anywhere(word), word == PEM));
        Secrets { globs: globs.into() }
    }
}

/// A glob for whole paths that end as `word` says.
fn anywhere(word: &str) -> Vec<u8> {
    [b"**/", word.as_bytes()].concat()
}

impl Secrets {
    /// The table with the patterns `add`, which may begin with `/` or `~/`, and without the words `remove`.
    ///
    /// # Errors
    /// A sentence: the table does not have a word of `remove`, or the home directory is unknown.
    pub fn new(add: &[String], remove: &[String], home: Option<&[u8]>) -> Result<Secrets, String> {
        if let Some(unknown) = remove.iter().find(|word| !TABLE.contains(&word.as_str())) {
            return Err(format!("remove: {unknown:?} is none of {}", TABLE.join(", ")));
        }
        let kept = TABLE.iter().zip(Secrets::default().globs);
        let kept = kept.filter(|(word, _)| !remove.iter().any(|removed| removed == *word));
        let mut globs: Vec<SecretGlob> = kept.map(|(_, glob)| glob).collect();
        for word in add {
            let word = word.strip_suffix('/').unwrap_or(word);
            let glob = match (word.strip_prefix("~/"), home) {
                (Some(below), Some(home)) => [home, b"/", below.as_bytes()].concat(),
                (Some(_), None) => return Err(format!("add: {word:?}: the home directory is unknown")),
                (None, _) if word.starts_with('/') => word.into(),
                (None, _) => anywhere(word),
            };
            globs.push(SecretGlob::new(glob, false));
        }
        Ok(Secrets { globs })
    }

    /// Whether the file at the absolute `path` holds a secret. `has_private_key` is asked only if the content decides.
    pub fn is_secret(&self, path: &[u8], has_private_key: impl FnOnce() -> bool) -> bool {
        let globs = self.globs.iter().filter(|glob| glob.may_match(path));
        let (pem, others): (Vec<_>, Vec<_>) = globs.partition(|glob| glob.is_pem);
        let directories =
            || std::iter::successors(crate::fs::parent_of(path), |path| crate::fs::parent_of(path));
        let is_other = |glob: &&SecretGlob| {
            let itself = glob.matches(path) && !path.ends_with(PUBLIC);
            itself || directories().any(|path| glob.matches(path))
        };
        others.iter().any(is_other) || pem.iter().any(|glob| glob.matches(path)) && has_private_key()
    }
}

/// Finds out whether the bytes that are written to it have a private key.
#[derive(Debug, Default)]
pub struct PrivateKeyFinder {
    tail: Vec<u8>,
    found: bool,
}

impl PrivateKeyFinder {
    /// Whether there was one.
    pub fn has_found(&self) -> bool {
        self.found
    }
}

/// Whether what is read has a private key.
///
/// # Errors
/// It can't be read.
pub fn has_private_key(mut content: impl io::Read) -> io::Result<bool> {
    let mut finder = PrivateKeyFinder::default();
    io::copy(&mut content, &mut finder)?;
    Ok(finder.has_found())
}

impl io::Write for PrivateKeyFinder {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if !self.found {
            self.tail.extend_from_slice(bytes);
            self.found = self.tail.windows(PRIVATE_KEY.len()).any(|window| window == PRIVATE_KEY);
            let kept = self.tail.len().saturating_sub(PRIVATE_KEY.len() - 1);
            self.tail.drain(..kept);
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The words of a command line with each value that looks like a secret replaced by [`REDACTED`]; none if there is no
/// such value.
///
/// A value is that of an option or an assignment with a telling name (`--password X`, `--token=X`, `API_TOKEN=X`, also
/// `"token": "X"`), of an `Authorization` header, or what is before the `@` of a URL. It is also found inside of a word
/// that is a command line itself, such as that of `sh -c`.
pub fn mask(argv: &[Vec<u8>]) -> Option<Vec<Vec<u8>>> {
    let mut last: &[u8] = b"";
    let mut masked = Vec::with_capacity(argv.len());
    for word in argv {
        let is_value =
            last.starts_with(b"-") && last.iter().all(|byte| is_of_name(*byte)) && is_telling(last);
        // The word after `-c`, or `-lc`, is a program: an assignment that it begins with is not all of it.
        let is_program = last.starts_with(b"-") && last.ends_with(b"c");
        masked.push(match assignment(word).filter(|_| !is_program) {
            _ if is_value && !word.starts_with(b"-") => REDACTED.to_vec(),
            Some(value) => [&word[..value], REDACTED].concat(),
            None => mask_text(word),
        });
        last = word;
    }
    (masked != argv).then_some(masked)
}

/// Masks a command line in place, as [`mask`] does; whether it had a secret.
pub fn redact(argv: &mut Vec<Vec<u8>>) -> bool {
    mask(argv).map(|masked| *argv = masked).is_some()
}

/// Where the value begins in a word that is an assignment of a secret, or an option with one.
fn assignment(word: &[u8]) -> Option<usize> {
    let name = word.iter().take_while(|byte| is_of_name(**byte)).count();
    let is_one = word.get(name) == Some(&b'=') && word.len() > name + 1 && is_telling(&word[..name]);
    is_one.then_some(name + 1)
}

fn mask_text(text: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len());
    let mut end = 0;
    for value in values(text) {
        out.extend_from_slice(&text[end..value.start]);
        out.extend_from_slice(REDACTED);
        end = value.end;
    }
    out.extend_from_slice(&text[end..]);
    out
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
    if let Some(url) = rest.strip_prefix(b"://") {
        return user_of(word, url).map(|user| name.end + 3 + user.start..name.end + 3 + user.end);
    }
    let is_authorization = word.eq_ignore_ascii_case(AUTHORIZATION);
    if !is_authorization && !is_telling(word) {
        return None;
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
    let value = &rest[start..];
    let len = if is_authorization { header_length(value) } else { word_length(value) };
    let value = inside_quotes(value, 0..len);
    Some(name.end + start + value.start..name.end + start + value.end)
}

/// What is secret before the `@` of a URL.
fn user_of(scheme: &[u8], url: &[u8]) -> Option<Range<usize>> {
    let is_end =
        |byte: &u8| matches!(byte, b'/' | b'?' | b'#') || byte.is_ascii_whitespace() || is_quote(*byte);
    let authority = &url[..url.iter().position(is_end).unwrap_or(url.len())];
    let at = authority.iter().rposition(|byte| *byte == b'@')?;
    match authority[..at].iter().position(|byte| *byte == b':') {
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

/// Whether the value of an option or a variable of this name is a secret.
fn is_telling(name: &[u8]) -> bool {
    let name: Vec<u8> =
        name.iter().map(|byte| if *byte == b'-' { b'_' } else { byte.to_ascii_lowercase() }).collect();
    NAMES.iter().any(|end| name.ends_with(end))
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    fn is_secret(path: &str) -> bool {
        Secrets::default().is_secret(path.as_bytes(), || panic!("{path}: asked for its content"))
    }

    #[test]
    fn files_are_known_by_the_end_of_their_path() {
        for path in [
            "/home/me/.ssh/id_ed25519",
            "/root/.netrc",
            "/home/me/.aws/credentials",
            "/home/me/.config/gcloud",
            "/home/me/.config/gcloud/legacy/x/adc.json",
            "/home/me/.git-credentials",
            "/repo/.npmrc",
            "/home/me/.pypirc",
            "/home/me/.docker/config.json",
            "/home/me/.config/gh/hosts.yml",
            "/home/me/.kube/config",
            "/repo/.env",
            "/repo/.env.local",
            "/repo/.envrc",
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
            "/",
        ] {
            assert!(!is_secret(path), "{path}");
        }
    }

    #[test]
    fn the_content_of_a_pem_file_decides() {
        let secrets = Secrets::default();
        assert!(secrets.is_secret(b"/etc/key.pem", || true));
        assert!(!secrets.is_secret(b"/etc/cert.pem", || false));
        assert!(!secrets.is_secret(b"/x.pem/file", || true), "a directory has no content");

        let key = b"-----BEGIN OPENSSH PRIVATE KEY-----\n";
        for cut in 0..key.len() {
            let mut finder = PrivateKeyFinder::default();
            finder.write_all(&key[..cut]).unwrap();
            finder.write_all(&key[cut..]).unwrap();
            assert!(finder.has_found(), "{cut}");
        }
        let mut finder = PrivateKeyFinder::default();
        finder.write_all(b"-----BEGIN CERTIFICATE-----\nPRIVATE KEY").unwrap();
        assert!(!finder.has_found());
    }

    #[test]
    fn the_user_adds_and_removes() {
        let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
        let add = words(&["*.key", "~/vault/", "/etc/token", "conf/secret.*"]);
        let secrets = Secrets::new(&add, &words(&[".env*", "*.pem"]), Some(b"/home/me")).unwrap();
        let is_secret = |path: &str| secrets.is_secret(path.as_bytes(), || true);
        for path in ["/x/a.key", "/home/me/vault/a/b", "/etc/token", "/repo/conf/secret.toml", "/x/.netrc"] {
            assert!(is_secret(path), "{path}");
        }
        for path in ["/x/.env", "/x/key.pem", "/home/you/vault/a", "/x/etc/token", "/repo/secret.toml"] {
            assert!(!is_secret(path), "{path}");
        }
        let error = Secrets::new(&[], &words(&[".envs"]), None).unwrap_err();
        assert!(error.starts_with("remove: \".envs\" is none of .ssh/id_*, .netrc,"), "{error}");
        Secrets::new(&words(&["~/x"]), &[], None).unwrap_err();
    }

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
    fn other_words_stay() {
        for argv in [
            &["ls", "-l"][..],
            &["PWD=/x", "OLDPWD=/y"],
            &["x", "--password-file", "/x", "--token-path=/y"],
            &["x", "--tokens", "5"],
            &["ssh", "ssh://git@host/x", "me@host"],
            &["a token b", "std::token::x", "if token == 5", "--x=token", "y"],
            &["X_TOKEN="],
        ] {
            assert_eq!(masked(argv), argv.join("|"));
        }
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
