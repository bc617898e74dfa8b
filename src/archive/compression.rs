//! How an archive is compressed: chosen by its name when it is written, known by its first bytes when it is read.

use std::ffi::OsStr;
use std::io::{self, BufRead, BufReader, Cursor, Read, Write};

use flate2::bufread::GzDecoder;
use flate2::write::GzEncoder;
use flate2::{Compression, GzBuilder};

/// How an archive is compressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs, reason = "the words of the command line")]
pub enum ArchiveCompression {
    None,
    Gz,
    Zst,
}

/// The levels of gzip(1) and zstd(1), so that the same content gives the same bytes.
const GZIP_LEVEL: u32 = 6;
const ZSTD_LEVEL: i32 = 3;

impl ArchiveCompression {
    /// The compression that the name of a file says.
    pub fn of_name(name: &OsStr) -> Option<ArchiveCompression> {
        let name = name.as_encoded_bytes();
        let ends = |ends: &[&[u8]]| ends.iter().any(|end| name.ends_with(end));
        match () {
            () if ends(&[b".tar"]) => Some(ArchiveCompression::None),
            () if ends(&[b".tar.gz", b".tgz"]) => Some(ArchiveCompression::Gz),
            () if ends(&[b".tar.zst", b".tzst"]) => Some(ArchiveCompression::Zst),
            () => None,
        }
    }
}

/// Compresses what is written to it.
pub enum Packer<W: Write> {
    /// Not at all.
    None(W),
    /// With gzip.
    Gz(GzEncoder<W>),
    /// With zstd.
    Zst(zstd::Encoder<'static, W>),
}

impl<W: Write> Packer<W> {
    /// Compresses to `out`.
    pub fn new(out: W, compression: ArchiveCompression) -> io::Result<Packer<W>> {
        Ok(match compression {
            ArchiveCompression::None => Packer::None(out),
            ArchiveCompression::Gz => {
                // Neither a time nor a name.
                Packer::Gz(GzBuilder::new().write(out, Compression::new(GZIP_LEVEL)))
            }
            ArchiveCompression::Zst => {
                let mut encoder = zstd::Encoder::new(out, ZSTD_LEVEL)?;
                encoder.include_checksum(true)?;
                Packer::Zst(encoder)
            }
        })
    }

    /// Ends the compressed data.
    pub fn finish(self) -> io::Result<W> {
        match self {
            Packer::None(out) => Ok(out),
            Packer::Gz(encoder) => encoder.finish(),
            Packer::Zst(encoder) => encoder.finish(),
        }
    }
}

impl<W: Write> Write for Packer<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Packer::None(out) => out.write(bytes),
            Packer::Gz(encoder) => encoder.write(bytes),
            Packer::Zst(encoder) => encoder.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Packer::None(out) => out.flush(),
            Packer::Gz(encoder) => encoder.flush(),
            Packer::Zst(encoder) => encoder.flush(),
        }
    }
}

type Packed<R> = BufReader<io::Chain<Cursor<Vec<u8>>, R>>;

/// Decompresses what is read through it.
pub enum Unpacker<R: Read> {
    /// Not at all.
    None(Packed<R>),
    /// With gzip: one member.
    Gz(Box<GzDecoder<Packed<R>>>),
    /// With zstd: one frame.
    Zst(zstd::Decoder<'static, Packed<R>>),
}

impl<R: Read> Unpacker<R> {
    /// Decompresses `input` as its first bytes say.
    pub fn new(mut input: R) -> io::Result<Unpacker<R>> {
        let mut magic = Vec::new();
        input.by_ref().take(4).read_to_end(&mut magic)?;
        let is_gz = magic.starts_with(&[0x1f, 0x8b]);
        let is_zst = magic == [0x28, 0xb5, 0x2f, 0xfd];
        let packed = BufReader::with_capacity(256 << 10, Cursor::new(magic).chain(input));
        Ok(match (is_gz, is_zst) {
            (true, _) => Unpacker::Gz(Box::new(GzDecoder::new(packed))),
            (_, true) => Unpacker::Zst(zstd::Decoder::with_buffer(packed)?.single_frame()),
            _ => Unpacker::None(packed),
        })
    }

    /// The input, if it has ended where the compressed data have.
    pub fn into_ended(self) -> io::Result<Option<R>> {
        let mut packed = match self {
            Unpacker::None(packed) => packed,
            Unpacker::Gz(decoder) => decoder.into_inner(),
            Unpacker::Zst(decoder) => decoder.finish(),
        };
        let is_at_end = packed.fill_buf()?.is_empty();
        Ok(is_at_end.then(|| packed.into_inner().into_inner().1))
    }
}

impl<R: Read> Read for Unpacker<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Unpacker::None(packed) => packed.read(buffer),
            Unpacker::Gz(decoder) => decoder.read(buffer),
            Unpacker::Zst(decoder) => decoder.read(buffer),
        }
    }
}
