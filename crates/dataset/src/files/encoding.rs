//! The encoding of a file's bytes: compression, and a text encoding other than UTF-8.

use std::io::{self, Read};

use datafusion::datasource::file_format::file_compression_type::FileCompressionType;
use encoding_rs::{Decoder, DecoderResult, Encoding, UTF_8};

use crate::error::{DataSetError, Result};

/// Bytes read from a file at a time.
const BLOCK_BYTES: usize = 1 << 16;

/// The transformation from a file's bytes to text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FileEncoding {
    pub(crate) compression: FileCompressionType,
    /// `None` for UTF-8.
    encoding: Option<&'static Encoding>,
}

impl FileEncoding {
    /// Plain UTF-8.
    pub(crate) const NONE: FileEncoding =
        FileEncoding { compression: FileCompressionType::UNCOMPRESSED, encoding: None };

    /// The given compression and text encoding; the latter by one of its names in the WHATWG standard.
    ///
    /// # Errors
    /// `Query` for an unknown name.
    pub(crate) fn new(compression: FileCompressionType, encoding: Option<&str>) -> Result<Self> {
        let known = |name: &str| {
            Encoding::for_label(name.trim().as_bytes()).ok_or_else(|| {
                DataSetError::Query(format!(
                    "unknown encoding={name:?}; use \"utf-8\", \"utf-16\", \"latin-1\", \"windows-1252\", \
                     \"shift_jis\", \"gb18030\" or another name of the WHATWG encoding standard"
                ))
            })
        };
        // Python's names for two of them.
        let standard = |name: &str| match name.to_ascii_lowercase().replace('_', "-").as_str() {
            "latin-1" | "latin" => "latin1".to_owned(),
            "cp1252" => "windows-1252".to_owned(),
            _ => name.to_owned(),
        };
        let encoding = encoding.map(|name| known(&standard(name))).transpose()?;
        Ok(FileEncoding { compression, encoding: encoding.filter(|encoding| *encoding != UTF_8) })
    }

    /// Whether the file's bytes are those of its text, so that reading can start anywhere.
    pub(crate) fn is_plain(self) -> bool {
        self == FileEncoding::NONE
    }

    /// Whether decoding is so fast that it may be done twice.
    pub(crate) fn is_fast(self) -> bool {
        let is_fast = [FileCompressionType::ZSTD, FileCompressionType::GZIP].contains(&self.compression);
        is_fast && self.encoding.is_none()
    }

    /// The text of a file with this encoding, as UTF-8.
    ///
    /// # Errors
    /// `Io` if it does not have this compression.
    pub(crate) fn open(self, file: impl Read + Send + 'static) -> Result<Box<dyn Read + Send>> {
        let bytes = self.compression.convert_read(file)?;
        Ok(match self.encoding {
            Some(encoding) => Box::new(Utf8Reader::new(encoding, bytes)),
            None => bytes,
        })
    }

    /// The likely cause if reading such a file fails, for users.
    pub(crate) fn remedy(self) -> Option<String> {
        match self.encoding {
            Some(encoding) if self.compression == FileCompressionType::UNCOMPRESSED => {
                Some(format!("the file is not in {}: set encoding= to its encoding", encoding.name()))
            }
            None if self.compression == FileCompressionType::UNCOMPRESSED => None,
            _ => {
                Some("the file is truncated or damaged, or not compressed as its name says: fetch it again".to_owned())
            }
        }
    }
}

/// Converts another text encoding to UTF-8. Invalid bytes are an error, and not replaced.
struct Utf8Reader {
    bytes: Box<dyn Read + Send>,
    decoder: Decoder,
    block: Vec<u8>,
    /// The range of the block that has been read, but not decoded.
    start: usize,
    end: usize,
    is_over: bool,
    /// Text that has been decoded, but not returned.
    text: Vec<u8>,
    given: usize,
}

impl Utf8Reader {
    fn new(encoding: &'static Encoding, bytes: Box<dyn Read + Send>) -> Self {
        let decoder = encoding.new_decoder();
        let block = vec![0; BLOCK_BYTES];
        Utf8Reader { bytes, decoder, block, start: 0, end: 0, is_over: false, text: Vec::new(), given: 0 }
    }

    fn decode(&mut self) -> io::Result<()> {
        if self.start == self.end && !self.is_over {
            (self.start, self.end) = (0, self.bytes.read(&mut self.block)?);
            self.is_over = self.end == 0;
        }
        // In all encodings, a byte gives at most three bytes of UTF-8.
        self.text.resize(3 * BLOCK_BYTES, 0);
        let bytes = &self.block[self.start..self.end];
        let (result, read, written) =
            self.decoder.decode_to_utf8_without_replacement(bytes, &mut self.text, self.is_over);
        self.text.truncate(written);
        self.given = 0;
        self.start += read;
        match result {
            DecoderResult::Malformed(..) => {
                let name = self.decoder.encoding().name();
                Err(io::Error::new(io::ErrorKind::InvalidData, format!("it has bytes that are not valid {name} text")))
            }
            DecoderResult::InputEmpty | DecoderResult::OutputFull => Ok(()),
        }
    }
}

impl Read for Utf8Reader {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        while self.given == self.text.len() {
            if self.is_over {
                return Ok(0);
            }
            self.decode()?;
        }
        let some = into.len().min(self.text.len() - self.given);
        into[..some].copy_from_slice(&self.text[self.given..self.given + some]);
        self.given += some;
        Ok(some)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use super::*;

    fn text_of(bytes: Vec<u8>, encoding: &str) -> std::result::Result<String, String> {
        let packing =
            FileEncoding::new(FileCompressionType::UNCOMPRESSED, Some(encoding)).map_err(|error| error.to_string())?;
        let mut text = String::new();
        let mut reader = packing.open(Cursor::new(bytes)).map_err(|error| error.to_string())?;
        reader.read_to_string(&mut text).map(|_| text).map_err(|error| error.to_string())
    }

    #[test]
    fn texts_of_other_encodings() {
        let long = "naïve, Größe, 東京\n".repeat(20_000);
        let utf16: Vec<u8> = std::iter::once(0xFEFF).chain(long.encode_utf16()).flat_map(u16::to_le_bytes).collect();
        assert_eq!(text_of(utf16, "utf-16"), Ok(long.clone()));
        assert_eq!(text_of(long.clone().into_bytes(), "UTF-8"), Ok(long));
        assert_eq!(text_of(b"na\xefve \x80".to_vec(), "latin-1"), Ok("naïve €".to_owned()));
        assert!(text_of(b"\xff\xff".to_vec(), "shift_jis").unwrap_err().contains("not valid Shift_JIS"));
        assert!(text_of(vec![0x61, 0x00, 0x62], "utf-16le").unwrap_err().contains("not valid"));
        assert!(text_of(Vec::new(), "klingon").unwrap_err().contains("unknown encoding=\"klingon\""));
    }
}
