//! Keys from the bytes that a terminal sends (console_codes(4), and xterm's control sequences).
//!
//! The reader of crossterm waits in read(2) for the rest of a sequence, deaf to signals, and never returns once the
//! terminal is gone.

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

/// The longest sequence that is waited for.
const LONGEST: usize = 32;

/// Makes keys of bytes.
#[derive(Debug, Default)]
pub struct Keys {
    /// The beginning of a sequence whose rest has not come yet.
    begun: Vec<u8>,
}

/// What bytes begin with.
enum Found {
    /// So many bytes are a key, or nothing that is known.
    Key(usize, Option<KeyEvent>),
    /// More bytes have to come.
    Begun,
}

impl Keys {
    /// The keys that are complete with these bytes.
    pub fn take(&mut self, bytes: &[u8]) -> Vec<KeyEvent> {
        self.begun.extend_from_slice(bytes);
        let bytes = std::mem::take(&mut self.begun);
        let (mut keys, mut rest) = (Vec::new(), bytes.as_slice());
        while !rest.is_empty() {
            match first(rest) {
                Found::Key(length, key) => {
                    keys.extend(key);
                    rest = &rest[length..];
                }
                Found::Begun if rest.len() < LONGEST => {
                    self.begun = rest.to_vec();
                    break;
                }
                Found::Begun => break,
            }
        }
        keys
    }
}

fn plain(code: KeyCode) -> Option<KeyEvent> {
    Some(KeyEvent::new(code, KeyModifiers::NONE))
}

fn first(bytes: &[u8]) -> Found {
    match bytes {
        [0x1b, b'[', b'[', rest @ ..] => match rest {
            [] => Found::Begun,
            // A function key of the Linux console.
            [..] => Found::Key(4, None),
        },
        [0x1b, b'[', rest @ ..] => match rest.iter().position(|byte| matches!(byte, 0x40..=0x7e)) {
            Some(end) => Found::Key(end + 3, sequence(&rest[..end], rest[end]).and_then(plain)),
            None => Found::Begun,
        },
        [0x1b, b'O', end, ..] => Found::Key(3, sequence(b"", *end).and_then(plain)),
        [0x1b, b'O'] => Found::Begun,
        [0x1b, ..] => Found::Key(1, plain(KeyCode::Esc)),
        [b'\r' | b'\n', ..] => Found::Key(1, plain(KeyCode::Enter)),
        [b'\t', ..] => Found::Key(1, plain(KeyCode::Tab)),
        [0x7f | 0x08, ..] => Found::Key(1, plain(KeyCode::Backspace)),
        [control @ 0x01..=0x1a, ..] => {
            let letter = KeyCode::Char(char::from(control | 0x60));
            Found::Key(1, Some(KeyEvent::new(letter, KeyModifiers::CONTROL)))
        }
        [0x00..=0x1f, ..] => Found::Key(1, None),
        _ => character(bytes),
    }
}

/// The key of a control sequence with these parameters and this end.
fn sequence(parameters: &[u8], end: u8) -> Option<KeyCode> {
    let number = parameters.split(|byte| *byte == b';').next().unwrap_or_default();
    Some(match (end, number) {
        (b'A', _) => KeyCode::Up,
        (b'B', _) => KeyCode::Down,
        (b'C', _) => KeyCode::Right,
        (b'D', _) => KeyCode::Left,
        (b'H', _) | (b'~', b"1" | b"7") => KeyCode::Home,
        (b'F', _) | (b'~', b"4" | b"8") => KeyCode::End,
        (b'~', b"5") => KeyCode::PageUp,
        (b'~', b"6") => KeyCode::PageDown,
        (b'Z', _) => KeyCode::Tab,
        _ => return None,
    })
}

/// A character in UTF-8; a byte that is not of one is nothing.
fn character(bytes: &[u8]) -> Found {
    let start = &bytes[..bytes.len().min(4)];
    let (valid, rest) = match std::str::from_utf8(start) {
        Ok(text) => (text, None),
        Err(error) => {
            let valid = std::str::from_utf8(&start[..error.valid_up_to()]).unwrap_or_default();
            (valid, Some(error.error_len()))
        }
    };
    match (valid.chars().next(), rest) {
        (Some(char), _) => Found::Key(char.len_utf8(), plain(KeyCode::Char(char))),
        (None, Some(None)) if bytes.len() < 4 => Found::Begun,
        _ => Found::Key(1, None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn codes(keys: &[KeyEvent]) -> Vec<KeyCode> {
        keys.iter().map(|key| key.code).collect()
    }

    #[test]
    fn sequences_are_keys_however_they_are_cut() {
        use KeyCode::{Char, Down, End, Enter, Esc, Home, PageDown, PageUp, Tab, Up};
        let bytes = "\x1b[A\x1bOB\x1b[5~\x1b[6;2~\x1b[1~\x1bOFjé日\r\t\x1b[99~\x1b[[Aq\x1bq".as_bytes();
        let expected = [
            Up,
            Down,
            PageUp,
            PageDown,
            Home,
            End,
            Char('j'),
            Char('é'),
            Char('日'),
            Enter,
            Tab,
            Char('q'),
            Esc,
            Char('q'),
        ];
        assert_eq!(codes(&Keys::default().take(bytes)), expected);
        // An Esc at the end of what has come is the key.
        let cuts = (1..bytes.len()).filter(|at| bytes[at - 1] != 0x1b);
        for at in cuts {
            let mut keys = Keys::default();
            let (one, other) = (keys.take(&bytes[..at]), keys.take(&bytes[at..]));
            assert_eq!([codes(&one), codes(&other)].concat(), expected, "{at}");
        }
        assert_eq!(codes(&Keys::default().take(b"\x1b")), [Esc]);
    }

    #[test]
    fn controls_are_told_from_letters_and_what_is_no_key_is_passed_over() {
        let control = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
        assert_eq!(Keys::default().take(b"\x03"), [control]);
        assert_eq!(
            codes(&Keys::default().take(b"\xff\xfe\x00\x1fa\x7f")),
            [KeyCode::Char('a'), KeyCode::Backspace]
        );
        let mut keys = Keys::default();
        assert!(keys.take(b"\x1b[").is_empty() && keys.take(&[b'1'; 100]).is_empty());
        assert_eq!(codes(&keys.take(b"j")), [KeyCode::Char('j')]);
    }
}
