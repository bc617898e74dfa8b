//! Whether the content of a file makes it a secret.

use std::io::{self, Read as _, Write};
use std::sync::LazyLock;

use gix::bstr::{ByteSlice as _, Finder};

use super::words::mask_text;
use crate::fs::{lstat, open_regular};

/// A file that has a secret in it because of its content is not longer, unless its name says more.
pub const LIMIT: u64 = 64 << 10;

/// What makes a file a secret by its content.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ContentSign {
    /// The first or the last line of a private key. Asked of files that are named as if they had one.
    KeyMarker,
    /// A private key. Asked of any file.
    Key,
    /// A value that [`mask_text`] masks. Asked of settings, in which few are.
    MaskedValue,
}

/// What no private key is without: PEM (RFC 7468) and OpenSSH, OpenPGP, and PuTTY.
const MARKERS: [&[u8]; 3] = [b"PRIVATE KEY-----", b"PRIVATE KEY BLOCK-----", b"PuTTY-User-Key-File-"];

/// How a private key begins.
const BEGIN: &[u8] = b"-----BEGIN ";

/// The fewest bytes of a private key that are on its second line.
const LINE: usize = 8;

/// Finds out whether the bytes that are written to it make a file a secret.
#[derive(Debug)]
pub struct SecretFinder {
    sign: ContentSign,
    /// All that was written, or as much as may be the beginning of a marker.
    bytes: Vec<u8>,
    /// How many were written.
    length: u64,
    found: bool,
}

impl SecretFinder {
    /// One that looks for `sign`.
    pub fn new(sign: ContentSign) -> SecretFinder {
        SecretFinder { sign, bytes: Vec::new(), length: 0, found: false }
    }

    /// Whether it was there.
    pub fn has_found(&self) -> bool {
        let is_short = self.length <= LIMIT;
        match self.sign {
            ContentSign::KeyMarker => self.found,
            ContentSign::Key => is_short && has_key(&self.bytes),
            ContentSign::MaskedValue => is_short && *mask_text(&self.bytes) != *self.bytes,
        }
    }
}

impl Write for SecretFinder {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.length += bytes.len() as u64;
        if self.sign == ContentSign::KeyMarker {
            if !self.found {
                self.bytes.extend_from_slice(bytes);
                self.found = MARKERS.iter().any(|marker| self.bytes.contains_str(marker));
                let longest = MARKERS.iter().map(|marker| marker.len()).max().unwrap_or_default();
                let kept = self.bytes.len().saturating_sub(longest - 1);
                self.bytes.drain(..kept);
            }
        } else if self.length <= LIMIT {
            self.bytes.extend_from_slice(bytes);
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Whether what is read has such a sign.
///
/// # Errors
/// It can't be read.
pub fn has_sign(content: impl io::Read, sign: ContentSign) -> io::Result<bool> {
    let mut finder = SecretFinder::new(sign);
    let most = if sign == ContentSign::KeyMarker { u64::MAX } else { LIMIT + 1 };
    io::copy(&mut content.take(most), &mut finder)?;
    Ok(finder.has_found())
}

/// Whether the file that is at a path now has such a sign. If it can't be read, that is so of a file whose name says that it
/// may.
pub fn may_have_sign(path: &[u8], sign: ContentSign) -> bool {
    match sign {
        ContentSign::Key => {
            let stat = lstat(path).ok().flatten();
            stat.is_some_and(|stat| may_have_key(path, stat.st_size.cast_unsigned()))
        }
        ContentSign::KeyMarker | ContentSign::MaskedValue => {
            open_regular(path).and_then(|file| has_sign(file, sign)).unwrap_or(true)
        }
    }
}

/// Whether the regular file at a path, of this size, has a private key. If it can't be read, it has none.
pub fn may_have_key(path: &[u8], size: u64) -> bool {
    /// Every key is longer than the words with which it begins.
    const SHORTEST: u64 = 16;
    let Some(room) = usize::try_from(size).ok().filter(|_| (SHORTEST..=LIMIT).contains(&size)) else {
        return false;
    };
    let Ok(file) = open_regular(path) else { return false };
    let mut bytes = vec![0; room + 1];
    match rustix::io::retry_on_intr(|| rustix::io::read(&file, &mut bytes[..])) {
        // It has grown since.
        Ok(count) if count > room => {
            has_sign(bytes.as_slice().chain(file), ContentSign::Key).unwrap_or(false)
        }
        Ok(count) => has_key(&bytes[..count]),
        Err(_) => false,
    }
}

/// Whether there is a private key: not only the words of its first line, as in a program that looks for them.
fn has_key(bytes: &[u8]) -> bool {
    if bytes.starts_with(MARKERS[2]) {
        return true;
    }
    static FINDER: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new(BEGIN));
    let mut from = 0;
    let begins = std::iter::from_fn(|| {
        let at = from + FINDER.find(&bytes[from..])?;
        from = at + BEGIN.len();
        Some(at)
    });
    begins.into_iter().any(|at| {
        let rest = &bytes[at + BEGIN.len()..];
        let label = rest.iter().take_while(|byte| byte.is_ascii_uppercase() || matches!(byte, b' ')).count();
        let marker = &MARKERS[..2];
        // The label ends with the first words of the marker.
        let Some(rest) = rest.get(label..).and_then(|rest| rest.strip_prefix(b"-----")) else { return false };
        let labelled = [&bytes[at + BEGIN.len()..at + BEGIN.len() + label], b"-----"].concat();
        if !marker.iter().any(|marker| labelled.ends_with(marker)) {
            return false;
        }
        // In JSON a line ends with an escape.
        let rest = rest.strip_prefix(b"\\r").unwrap_or(rest);
        let Some(rest) = rest
            .strip_prefix(b"\n")
            .or_else(|| rest.strip_prefix(b"\r\n"))
            .or_else(|| rest.strip_prefix(b"\\n"))
        else {
            return false;
        };
        let is_of_key =
            |byte: &&u8| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'/' | b'=' | b':' | b'-');
        rest.trim_start().iter().take_while(is_of_key).count() >= LINE
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marker_is_found_in_any_two_writes() {
        for key in [
            &b"-----BEGIN OPENSSH PRIVATE KEY-----\n"[..],
            b"-----BEGIN PGP PRIVATE KEY BLOCK-----",
            b"PuTTY-User-Key-File-3: x",
        ] {
            for cut in 0..key.len() {
                let mut finder = SecretFinder::new(ContentSign::KeyMarker);
                finder.write_all(&key[..cut]).unwrap();
                finder.write_all(&key[cut..]).unwrap();
                assert!(finder.has_found(), "{cut}");
            }
        }
        assert!(!has_sign(&b"-----BEGIN CERTIFICATE-----\nPRIVATE KEY"[..], ContentSign::KeyMarker).unwrap());
    }

    #[test]
    fn key_is_more_than_its_first_line() {
        let has_key = |text: &str| has_sign(text.as_bytes(), ContentSign::Key).unwrap();
        for text in [
            "x\n-----BEGIN PRIVATE KEY-----\nMIIEvQIBADANBg\n",
            "-----BEGIN RSA PRIVATE KEY-----\r\nProc-Type: 4,ENCRYPTED\r\n",
            "-----BEGIN OPENSSH PRIVATE KEY-----\nb3BlbnNzaC1rZXktdjE\n",
            "-----BEGIN PGP PRIVATE KEY BLOCK-----\n\nlQOYBGNxyzAAAA\n",
            r#"{"type": "service_account", "private_key": "-----BEGIN PRIVATE KEY-----\nMIIEvQIBADANBg\n"}"#,
            "PuTTY-User-Key-File-3: ssh-ed25519\n",
        ] {
            assert!(has_key(text), "{text}");
        }
        for text in [
            "-----BEGIN PUBLIC KEY-----\nMIIEvQIBADANBg\n",
            "-----BEGIN CERTIFICATE-----\nMIIEvQIBADANBg\n",
            r#"let begin = b"-----BEGIN PRIVATE KEY-----\n";"#,
            "grep -r 'BEGIN RSA PRIVATE KEY-----' .",
            "# has a PuTTY-User-Key-File-",
        ] {
            assert!(!has_key(text), "{text}");
        }
        let long = format!("{}\n-----BEGIN PRIVATE KEY-----\nMIIEvQIBADANBg\n", "x".repeat(1 << 16));
        assert!(!has_key(&long));
    }

    #[test]
    fn settings_have_values_that_are_masked() {
        let has_one = |text: &str| has_sign(text.as_bytes(), ContentSign::MaskedValue).unwrap();
        assert!(has_one("[remote \"origin\"]\n\turl = https://me:hunter2@host/x\n"));
        assert!(has_one("\textraheader = AUTHORIZATION: basic aHVudGVyMg==\n"));
        assert!(!has_one(
            "[remote \"origin\"]\n\turl = git@host:x\n\tfetch = +refs/heads/*:refs/remotes/origin/*\n"
        ));
    }
}
