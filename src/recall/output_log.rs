//! What a command wrote to standard output and standard error, in one order.
//!
//! A sequence of frames: a byte for the stream (1 or 2), the length (four bytes, little endian), and the bytes.

use std::fs::File;
use std::io::{self, BufReader, Read, Write};

/// The most bytes of a frame.
pub const FRAME: usize = 64 << 10;

/// An output stream, by its descriptor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stream {
    /// Standard output.
    Out,
    /// Standard error.
    Error,
}

/// Writes one frame.
///
/// # Errors
/// It can't be written: what the log has then is of no use.
pub fn append(log: &mut impl Write, stream: Stream, bytes: &[u8]) -> io::Result<()> {
    let length = u32::try_from(bytes.len()).map_err(io::Error::other)?;
    let mut header = [0; 5];
    header[0] = match stream {
        Stream::Out => 1,
        Stream::Error => 2,
    };
    header[1..].copy_from_slice(&length.to_le_bytes());
    log.write_all(&header)?;
    log.write_all(bytes)
}

/// Hands each frame of a log to `take`, in order.
///
/// # Errors
/// The log can't be read or is damaged (`InvalidData`), or `take` fails.
pub fn replay(log: &File, mut take: impl FnMut(Stream, &[u8]) -> io::Result<()>) -> io::Result<()> {
    let mut log = BufReader::with_capacity(FRAME, log);
    let mut bytes = vec![0; FRAME];
    loop {
        let mut header = [0; 5];
        match log.read(&mut header[..1])? {
            0 => return Ok(()),
            _ => log.read_exact(&mut header[1..])?,
        }
        let damaged = || io::Error::new(io::ErrorKind::InvalidData, "the log of the output is damaged");
        let stream = match header[0] {
            1 => Stream::Out,
            2 => Stream::Error,
            _ => return Err(damaged()),
        };
        let length = u32::from_le_bytes([header[1], header[2], header[3], header[4]]);
        let bytes =
            usize::try_from(length).ok().and_then(|length| bytes.get_mut(..length)).ok_or_else(damaged)?;
        log.read_exact(bytes)?;
        take(stream, bytes)?;
    }
}

/// Whether two logs have the same bytes on each stream, and where both streams go to one place, in the same order.
///
/// # Errors
/// One of them can't be read.
pub fn is_same(one: &File, other: &File, in_order: bool) -> io::Result<bool> {
    Ok(digests(one, in_order)? == digests(other, in_order)?)
}

fn digests(log: &File, in_order: bool) -> io::Result<[[u8; 32]; 2]> {
    use sha2::{Digest as _, Sha256};
    use std::io::Seek as _;
    let mut reader = log.try_clone()?;
    reader.rewind()?;
    let mut hashers = [Sha256::new(), Sha256::new()];
    replay(&reader, |stream, bytes| {
        let which = usize::from(stream == Stream::Error && !in_order);
        hashers[which].update(bytes);
        Ok(())
    })?;
    Ok(hashers.map(|hasher| hasher.finalize().into()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Seek as _;

    fn log(frames: &[(Stream, &[u8])]) -> File {
        let mut file = tempfile::tempfile().unwrap();
        for (stream, bytes) in frames {
            append(&mut file, *stream, bytes).unwrap();
        }
        file.rewind().unwrap();
        file
    }

    #[test]
    fn frames_come_back_in_order_with_all_bytes() {
        let large = vec![7; FRAME];
        let frames: [(Stream, &[u8]); 4] = [
            (Stream::Out, b"a\0\xff"),
            (Stream::Error, b""),
            (Stream::Out, &large),
            (Stream::Error, b"no newline"),
        ];
        let mut found = Vec::new();
        replay(&log(&frames), |stream, bytes| {
            found.push((stream, bytes.to_vec()));
            Ok(())
        })
        .unwrap();
        assert_eq!(found, frames.map(|(stream, bytes)| (stream, bytes.to_vec())));
    }

    #[test]
    fn a_cut_or_foreign_log_is_an_error() {
        let mut cut = log(&[(Stream::Out, b"hello")]);
        cut.set_len(7).unwrap();
        assert!(replay(&cut, |_, _| Ok(())).is_err());
        cut = log(&[]);
        cut.write_all(b"\x03\0\0\0\0").unwrap();
        cut.rewind().unwrap();
        assert!(replay(&cut, |_, _| Ok(())).is_err());
    }

    #[test]
    fn logs_are_compared_by_stream_or_in_order() {
        let one = log(&[(Stream::Out, b"ab"), (Stream::Error, b"x")]);
        let other = log(&[(Stream::Out, b"a"), (Stream::Error, b"x"), (Stream::Out, b"b")]);
        assert!(is_same(&one, &other, false).unwrap());
        assert!(!is_same(&one, &other, true).unwrap());
    }
}
