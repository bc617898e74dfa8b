//! `GIT binary patch`: streams a content, compressed, as lines of base 85.
//!
//! gitformat-patch does not describe it; see `diff.c` and `base85.c` of Git.

use std::io::{self, Write};

use gix::zlib::Compression;
use gix::zlib::stream::deflate;

const ALPHABET: &[u8; 85] =
    b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~";

/// The most bytes in a line, whose first letter is their number.
const LINE: usize = 52;

/// Writes what `content` writes, of `size` bytes, as one `literal` of a binary patch.
pub fn literal<E: From<io::Error>>(
    out: &mut dyn Write,
    size: u64,
    content: impl FnOnce(&mut dyn Write) -> Result<(), E>,
) -> Result<(), E> {
    writeln!(out, "literal {size}")?;
    let mut deflate =
        deflate::Write::new(Base85Lines { out, pending: Vec::with_capacity(LINE) }, Compression::DEFAULT);
    content(&mut deflate)?;
    deflate.flush()?;
    deflate.into_inner().finish()?;
    Ok(())
}

/// Encodes bytes as lines.
struct Base85Lines<'a> {
    out: &'a mut dyn Write,
    pending: Vec<u8>,
}

impl Write for Base85Lines<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut rest = bytes;
        while !rest.is_empty() {
            let (now, later) = rest.split_at(rest.len().min(LINE - self.pending.len()));
            self.pending.extend_from_slice(now);
            rest = later;
            if self.pending.len() == LINE {
                self.line()?;
            }
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Base85Lines<'_> {
    fn line(&mut self) -> io::Result<()> {
        let mut line = Vec::with_capacity(LINE / 4 * 5 + 2);
        // At most 52.
        let len = u8::try_from(self.pending.len()).unwrap_or_default();
        line.push(if len <= 26 { b'A' + len - 1 } else { b'a' + len - 27 });
        for group in self.pending.chunks(4) {
            let mut word = [0; 4];
            word[..group.len()].copy_from_slice(group);
            let mut number = u32::from_be_bytes(word);
            let mut digits = [0; 5];
            for digit in digits.iter_mut().rev() {
                *digit = ALPHABET[(number % 85) as usize];
                number /= 85;
            }
            line.extend_from_slice(&digits);
        }
        line.push(b'\n');
        self.pending.clear();
        self.out.write_all(&line)
    }

    fn finish(mut self) -> io::Result<()> {
        if !self.pending.is_empty() {
            self.line()?;
        }
        self.out.write_all(b"\n")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_have_52_bytes_and_end_with_an_empty_one() {
        let mut out = Vec::new();
        let noise: Vec<u8> = (0..1000_u32)
            .flat_map(|number| (number.wrapping_mul(number.wrapping_mul(2_654_435_761))).to_le_bytes())
            .collect();
        literal::<io::Error>(&mut out, 4000, |sink| sink.write_all(&noise)).unwrap();
        let text = String::from_utf8(out).unwrap();
        assert!(text.starts_with("literal 4000\nz") && text.ends_with("\n\n"), "{text}");
        assert!(text.lines().skip(1).filter(|line| line.starts_with('z')).all(|line| line.len() == 66));
    }
}
