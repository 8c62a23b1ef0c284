//! A scanner for one record, as strict as the JSON standard (RFC 8259), except within texts. `None` always means that
//! the input is not as expected; the diagnosis is left to Arrow's decoder.

use memchr::memchr;

/// Maximum nesting depth of skipped values; deeper ones are left to Arrow's decoder.
const DEPTH_MAX: usize = 64;

/// The position in a record.
pub(crate) struct RecordScanner<'a> {
    text: &'a str,
    at: usize,
}

/// A text as written between its quotes.
pub(crate) struct QuotedText<'a> {
    raw: &'a str,
    has_escapes: bool,
}

/// A number as written.
pub(crate) struct NumberText<'a> {
    pub text: &'a str,
    /// Without a point or an exponent.
    pub is_whole: bool,
}

impl<'a> RecordScanner<'a> {
    pub(crate) fn new(text: &'a str) -> Self {
        RecordScanner { text, at: 0 }
    }

    fn bytes(&self) -> &'a [u8] {
        self.text.as_bytes()
    }

    /// The next byte; at the end zero, which is valid only within texts.
    #[inline]
    pub(crate) fn peek(&self) -> u8 {
        self.bytes().get(self.at).copied().unwrap_or(0)
    }

    pub(crate) fn is_over(&self) -> bool {
        self.at >= self.text.len()
    }

    /// Skips whitespace.
    #[inline]
    pub(crate) fn blank(&mut self) {
        while matches!(self.peek(), b' ' | b'\n' | b'\r' | b'\t') {
            self.at += 1;
        }
    }

    #[inline]
    pub(crate) fn take(&mut self, byte: u8) -> Option<()> {
        (self.peek() == byte).then(|| self.at += 1)
    }

    /// Skips `word`, if it comes next.
    #[inline]
    pub(crate) fn take_word(&mut self, word: &[u8]) -> Option<()> {
        self.bytes()[self.at..].starts_with(word).then(|| self.at += word.len())
    }

    /// The text between quotes.
    #[inline]
    pub(crate) fn quoted(&mut self) -> Option<QuotedText<'a>> {
        self.take(b'"')?;
        let (begin, mut has_escapes) = (self.at, false);
        loop {
            self.at = quote_or_backslash(self.bytes(), self.at)?;
            if self.bytes()[self.at] == b'"' {
                break;
            }
            has_escapes = true;
            self.at += 2;
        }
        let raw = self.text.get(begin..self.at)?;
        self.at += 1;
        Some(QuotedText { raw, has_escapes })
    }

    /// A number.
    pub(crate) fn number(&mut self) -> Option<NumberText<'a>> {
        let begin = self.at;
        if self.peek() == b'-' {
            self.at += 1;
        }
        let first = self.peek();
        if self.digits()? > 1 && first == b'0' {
            return None;
        }
        let mut is_whole = true;
        if self.peek() == b'.' {
            (self.at, is_whole) = (self.at + 1, false);
            self.digits()?;
        }
        if matches!(self.peek(), b'e' | b'E') {
            (self.at, is_whole) = (self.at + 1, false);
            if matches!(self.peek(), b'+' | b'-') {
                self.at += 1;
            }
            self.digits()?;
        }
        Some(NumberText { text: self.text.get(begin..self.at)?, is_whole })
    }

    /// Skips one or more digits. Returns how many.
    fn digits(&mut self) -> Option<usize> {
        let begin = self.at;
        while self.peek().is_ascii_digit() {
            self.at += 1;
        }
        (self.at > begin).then_some(self.at - begin)
    }

    /// A boolean.
    pub(crate) fn boolean(&mut self) -> Option<bool> {
        match self.peek() {
            b't' => self.take_word(b"true").map(|()| true),
            _ => self.take_word(b"false").map(|()| false),
        }
    }

    /// Skips a value.
    #[inline]
    pub(crate) fn skip(&mut self, room: &mut String) -> Option<()> {
        self.skip_within(room, 0)
    }

    fn skip_within(&mut self, room: &mut String, depth: usize) -> Option<()> {
        match self.peek() {
            b'"' => self.quoted()?.text(room).map(|_| ()),
            b't' | b'f' => self.boolean().map(|_| ()),
            b'n' => self.take_word(b"null"),
            b'{' if depth < DEPTH_MAX => self.skip_many(b'}', room, |scan, room| {
                scan.quoted()?.text(room)?;
                scan.blank();
                scan.take(b':')?;
                scan.blank();
                scan.skip_within(room, depth + 1)
            }),
            b'[' if depth < DEPTH_MAX => self.skip_many(b']', room, |scan, room| scan.skip_within(room, depth + 1)),
            _ => self.number().map(|_| ()),
        }
    }

    /// Skips the contents of an object or a list, up to its `end`.
    fn skip_many(
        &mut self,
        end: u8,
        room: &mut String,
        mut skip: impl FnMut(&mut Self, &mut String) -> Option<()>,
    ) -> Option<()> {
        self.at += 1;
        self.blank();
        if self.take(end).is_some() {
            return Some(());
        }
        loop {
            skip(self, room)?;
            self.blank();
            if self.take(end).is_some() {
                return Some(());
            }
            self.take(b',')?;
            self.blank();
        }
    }
}

impl<'a> QuotedText<'a> {
    /// The unescaped text; `room` is the buffer for it, if one is needed.
    #[inline]
    pub(crate) fn text<'r>(&self, room: &'r mut String) -> Option<&'r str>
    where
        'a: 'r,
    {
        if !self.has_escapes {
            return Some(self.raw);
        }
        room.clear();
        let mut rest = self.raw;
        while let Some(at) = memchr(b'\\', rest.as_bytes()) {
            room.push_str(&rest[..at]);
            let (character, len) = escaped(&rest.as_bytes()[at + 1..])?;
            room.push(character);
            rest = rest.get(at + 1 + len..)?;
        }
        room.push_str(rest);
        Some(room)
    }

    /// The text, if it contains no escapes.
    pub(crate) fn plain(&self) -> Option<&'a str> {
        (!self.has_escapes).then_some(self.raw)
    }
}

/// The character of an escape after its backslash, and the length of the escape.
fn escaped(bytes: &[u8]) -> Option<(char, usize)> {
    let character = match bytes.first()? {
        b'"' => '"',
        b'\\' => '\\',
        b'/' => '/',
        b'b' => '\u{8}',
        b'f' => '\u{c}',
        b'n' => '\n',
        b'r' => '\r',
        b't' => '\t',
        b'u' => {
            let high = hexadecimal(bytes.get(1..5)?)?;
            if let Some(character) = char::from_u32(high) {
                return Some((character, 5));
            }
            // A surrogate pair for a character beyond 16 bits.
            let low = hexadecimal(bytes.get(5..)?.strip_prefix(b"\\u")?.get(..4)?)?;
            if !(0xd800..0xdc00).contains(&high) || !(0xdc00..0xe000).contains(&low) {
                return None;
            }
            return char::from_u32(0x1_0000 + ((high - 0xd800) << 10) + (low - 0xdc00)).map(|found| (found, 11));
        }
        _ => return None,
    };
    Some((character, 1))
}

fn hexadecimal(digits: &[u8]) -> Option<u32> {
    digits.iter().try_fold(0, |value, &digit| Some(value << 4 | char::from(digit).to_digit(16)?))
}

/// The position of the next quote or backslash. Works eight bytes at a time: texts are short, and a vectorized search
/// has a costly call.
#[inline]
fn quote_or_backslash(bytes: &[u8], from: usize) -> Option<usize> {
    const ONES: u64 = u64::from_ne_bytes([1; 8]);
    const HIGHS: u64 = u64::from_ne_bytes([0x80; 8]);
    // The lowest bit set belongs to the first zero byte (H. S. Warren: Hacker's Delight, section 6-1).
    let zero = |word: u64| word.wrapping_sub(ONES) & !word & HIGHS;
    let mut at = from;
    while let Some(chunk) = bytes.get(at..).and_then(|rest| rest.first_chunk::<8>()) {
        let word = u64::from_le_bytes(*chunk);
        let found = zero(word ^ u64::from_ne_bytes([b'"'; 8])) | zero(word ^ u64::from_ne_bytes([b'\\'; 8]));
        if found != 0 {
            return Some(at + found.trailing_zeros() as usize / 8);
        }
        at += 8;
    }
    let rest = bytes.get(at..)?;
    rest.iter().position(|byte| matches!(byte, b'"' | b'\\')).map(|found| at + found)
}
