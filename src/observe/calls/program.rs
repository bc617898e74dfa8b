//! The files that the kernel opens by itself when a program is executed: the interpreter that a
//! `#!` line names, and an ELF file's PT_INTERP (execve(2), elf(5)).
//!
//! Pure: bytes in, path out, whatever the bytes are.

use std::fs::File;

use crate::snapshot::digest::read_at;

/// How much of a script's first line the kernel reads (BINPRM_BUF_SIZE, Linux 5.1).
const HEADER: usize = 256;
/// The largest program header table that is read.
const MAX_PROGRAM_HEADERS: usize = 64 << 10;
const PT_INTERP: u32 = 3;

/// The path of the interpreter that `file` asks for, if any.
pub fn interpreter(file: &File) -> Option<Vec<u8>> {
    let mut header = [0; HEADER];
    let length = read_at(file, &mut header, 0).ok()?;
    let header = &header[..length];
    script_interpreter(header).or_else(|| {
        let (offset, entry, count) = program_headers(header)?;
        let mut table = vec![0; entry.checked_mul(count)?.min(MAX_PROGRAM_HEADERS)];
        let length = read_at(file, &mut table, offset).ok()?;
        let (offset, size) = interpreter_segment(&table[..length], entry)?;
        let mut path = vec![0; size];
        let length = read_at(file, &mut path, offset).ok()?;
        path.truncate(length);
        let end = path.iter().position(|byte| *byte == 0)?;
        path.truncate(end);
        Some(path).filter(|path| !path.is_empty())
    })
}

/// Whether the bytes are a script, whose interpreter may be a script again.
pub fn is_script(file: &File) -> bool {
    let mut start = [0; 2];
    read_at(file, &mut start, 0).is_ok_and(|length| length == 2) && &start == b"#!"
}

/// The path in a `#!` line, as the kernel cuts it: after blanks, up to a blank or the line's end.
fn script_interpreter(header: &[u8]) -> Option<Vec<u8>> {
    let line = header.strip_prefix(b"#!")?;
    let end = line.iter().position(|byte| matches!(byte, b'\n' | 0)).unwrap_or(line.len());
    let line = &line[..end];
    let start = line.iter().position(|byte| !matches!(byte, b' ' | b'\t'))?;
    let line = &line[start..];
    let end = line.iter().position(|byte| matches!(byte, b' ' | b'\t')).unwrap_or(line.len());
    Some(line[..end].to_vec()).filter(|path| !path.is_empty())
}

fn number<const N: usize>(bytes: &[u8], offset: usize) -> Option<u64> {
    let field = bytes.get(offset..offset.checked_add(N)?)?;
    let mut wide = [0; 8];
    wide[..N].copy_from_slice(field);
    Some(u64::from_le_bytes(wide))
}

/// Offset, entry size and count of the program headers of a little-endian ELF file.
fn program_headers(header: &[u8]) -> Option<(u64, usize, usize)> {
    if !header.starts_with(b"\x7fELF") || header.get(5) != Some(&1) {
        return None;
    }
    let (offset, entry, count) = match header.get(4)? {
        1 => (number::<4>(header, 28)?, number::<2>(header, 42)?, number::<2>(header, 44)?),
        2 => (number::<8>(header, 32)?, number::<2>(header, 54)?, number::<2>(header, 56)?),
        _ => return None,
    };
    let entry = usize::try_from(entry).ok()?;
    matches!(entry, 32 | 56).then_some((offset, entry, usize::try_from(count).ok()?))
}

/// Offset and size (at most PATH_MAX) of the PT_INTERP segment.
fn interpreter_segment(table: &[u8], entry: usize) -> Option<(u64, usize)> {
    let header = table.chunks_exact(entry).find(|header| number::<4>(header, 0) == Some(PT_INTERP.into()))?;
    let (offset, size) = if entry == 32 {
        (number::<4>(header, 4)?, number::<4>(header, 16)?)
    } else {
        (number::<8>(header, 8)?, number::<8>(header, 32)?)
    };
    Some((offset, usize::try_from(size).ok().filter(|size| (2..=4096).contains(size))?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    fn interpreter_of(bytes: &[u8]) -> Option<Vec<u8>> {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(bytes).unwrap();
        interpreter(&file)
    }

    #[test]
    fn a_script_names_its_interpreter_up_to_a_blank() {
        assert_eq!(interpreter_of(b"#!/bin/sh\necho").as_deref(), Some(&b"/bin/sh"[..]));
        assert_eq!(interpreter_of(b"#! \t/usr/bin/env -S x\n").as_deref(), Some(&b"/usr/bin/env"[..]));
        assert_eq!(interpreter_of(b"#!interp").as_deref(), Some(&b"interp"[..]));
        assert_eq!(interpreter_of(b"#!\n"), None);
        assert_eq!(interpreter_of(b"#!   "), None);
        assert_eq!(interpreter_of(b""), None);
    }

    #[test]
    fn our_own_program_names_its_loader() {
        let file = File::open(std::env::current_exe().unwrap()).unwrap();
        let path = interpreter(&file).unwrap();
        assert!(path.starts_with(b"/lib"), "{}", String::from_utf8_lossy(&path));
    }

    proptest::proptest! {
        #[test]
        fn no_bytes_at_all_panic(mut bytes: Vec<u8>, elf: bool) {
            if elf {
                bytes.splice(0..0, *b"\x7fELF\x02\x01");
            }
            interpreter_of(&bytes);
        }
    }
}
