//! The header of a `.npy` file: the start, the type and the layout of its values.
//!
//! The format is NEP 1's, versions 1.0 to 3.0: a magic number, the version, the length of a dictionary, the dictionary
//! as Python writes it, the values:
//!
//! ```text
//! \x93NUMPY | 1 | 0 | 118 0 | {'descr': '<f8', 'fortran_order': False, 'shape': (3, 2), } and spaces \n
//! ```
//!
//! From version 2.0 on the length has four bytes; in 3.0 the text is UTF-8 instead of Latin-1. The dictionary is parsed
//! strictly: it must have exactly these three keys, with values as written by NumPy.

use std::fmt;

const MAGIC: &[u8] = b"\x93NUMPY";
/// Bytes needed to determine the length of a header.
const PREFIX_BYTES: usize = MAGIC.len() + 2 + 4;
/// A longer header, with thousands of fields, is hardly intended.
const HEADER_BYTES_MAX: u64 = 1 << 20;
/// Maximum nesting of tuples and lists. Valid headers have two levels.
const DEPTH_MAX: u32 = 16;

/// A parsed header, see the module.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct NpyHeader {
    /// The offset of the values.
    pub start: u64,
    pub shape: Vec<u64>,
    /// Whether columns rather than rows are contiguous.
    pub is_fortran: bool,
    /// NumPy's description of the type.
    pub descr: PythonLiteral,
}

/// A Python literal, as far as headers contain them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum PythonLiteral {
    Text(String),
    Number(u64),
    Truth(bool),
    Tuple(Vec<PythonLiteral>),
    List(Vec<PythonLiteral>),
}

impl NpyHeader {
    /// The length of the header, up to the values, given the first bytes of a file.
    ///
    /// # Errors
    /// A description, if these do not start an array.
    pub(super) fn len(first: &[u8]) -> Result<u64, String> {
        if !first.starts_with(MAGIC) {
            return Err(match first {
                [b'P', b'K', 3, 4, ..] => {
                    "it is an archive of arrays, as np.savez writes; save each array with np.save".into()
                }
                _ => "it is not an array file: it does not begin with \\x93NUMPY".into(),
            });
        }
        let short = || "it ends inside its header".to_owned();
        let (len, from) = match first.get(MAGIC.len()..).ok_or_else(short)? {
            [1, 0, low, high, ..] => (u32::from(u16::from_le_bytes([*low, *high])), PREFIX_BYTES - 2),
            [2 | 3, 0, a, b, c, d, ..] => (u32::from_le_bytes([*a, *b, *c, *d]), PREFIX_BYTES),
            [major, minor, ..] if !matches!((*major, *minor), (1..=3, 0)) => {
                return Err(format!("its format has version {major}.{minor}, not 1.0, 2.0 or 3.0"));
            }
            _ => return Err(short()),
        };
        match from as u64 + u64::from(len) {
            all if all > HEADER_BYTES_MAX => {
                Err(format!("its header has {all} bytes, more than the limit of {HEADER_BYTES_MAX}"))
            }
            all => Ok(all),
        }
    }

    /// Parses a header from these bytes, whose number is that of [`NpyHeader::len`].
    ///
    /// # Errors
    /// A description, if they are not a header.
    pub(super) fn parse(bytes: &[u8]) -> Result<Self, String> {
        let start = Self::len(bytes)?;
        let version = bytes[MAGIC.len()];
        let from = if version == 1 { PREFIX_BYTES - 2 } else { PREFIX_BYTES };
        let dictionary = bytes.get(from..start as usize).ok_or("it ends inside its header")?;
        let text = match version {
            3 => String::from_utf8(dictionary.to_vec()).map_err(|_| "its header is not UTF-8")?,
            // The characters of Latin-1 are the first ones of Unicode.
            _ => dictionary.iter().map(|&byte| char::from(byte)).collect(),
        };
        let mut reader = LiteralParser { rest: &text, longs: version < 3 };
        let (mut descr, mut is_fortran, mut shape) = (None, None, None);
        reader.expect('{')?;
        while !reader.takes('}') {
            let key = match reader.literal(0)? {
                PythonLiteral::Text(key) => key,
                other => return Err(format!("its header has the key {other}")),
            };
            reader.expect(':')?;
            let value = reader.literal(0)?;
            let is_new = match (key.as_str(), value) {
                ("descr", value) => descr.replace(value).is_none(),
                ("fortran_order", PythonLiteral::Truth(value)) => is_fortran.replace(value).is_none(),
                ("shape", PythonLiteral::Tuple(axes)) => shape.replace(lengths(&axes)?).is_none(),
                (_, value) => return Err(format!("its header has {key:?}: {value}")),
            };
            if !is_new {
                return Err(format!("its header has {key:?} twice"));
            }
            if !reader.takes(',') {
                reader.expect('}')?;
                break;
            }
        }
        if let Some(next) = reader.next() {
            return Err(format!("unexpected {next:?} after the header"));
        }
        let missing = |key: &str| format!("its header has no {key:?}");
        Ok(NpyHeader {
            start,
            descr: descr.ok_or_else(|| missing("descr"))?,
            is_fortran: is_fortran.ok_or_else(|| missing("fortran_order"))?,
            shape: shape.ok_or_else(|| missing("shape"))?,
        })
    }

    /// The shape in Python's notation, or that of each row.
    pub(super) fn shape_from(&self, axis: usize) -> PythonLiteral {
        PythonLiteral::Tuple(self.shape.iter().skip(axis).map(|&length| PythonLiteral::Number(length)).collect())
    }
}

fn lengths(axes: &[PythonLiteral]) -> Result<Vec<u64>, String> {
    let length = |axis: &PythonLiteral| match axis {
        PythonLiteral::Number(length) => Ok(*length),
        other => Err(format!("its shape has {other}")),
    };
    axes.iter().map(length).collect()
}

/// Writes it in Python's notation.
impl fmt::Display for PythonLiteral {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let listed = |f: &mut fmt::Formatter<'_>, items: &[PythonLiteral]| {
            items.iter().enumerate().try_for_each(|(at, item)| write!(f, "{}{item}", if at > 0 { ", " } else { "" }))
        };
        match self {
            PythonLiteral::Text(text) => {
                f.write_str("'")?;
                text.chars().try_for_each(|one| match one {
                    '\\' | '\'' => write!(f, "\\{one}"),
                    _ if one.is_ascii_control() => write!(f, "\\x{:02x}", u32::from(one)),
                    _ => write!(f, "{one}"),
                })?;
                f.write_str("'")
            }
            PythonLiteral::Number(number) => number.fmt(f),
            PythonLiteral::Truth(true) => f.write_str("True"),
            PythonLiteral::Truth(false) => f.write_str("False"),
            PythonLiteral::Tuple(items) => {
                f.write_str("(")?;
                listed(f, items)?;
                f.write_str(if items.len() == 1 { ",)" } else { ")" })
            }
            PythonLiteral::List(items) => {
                f.write_str("[")?;
                listed(f, items)?;
                f.write_str("]")
            }
        }
    }
}

struct LiteralParser<'a> {
    rest: &'a str,
    /// Whether numbers may end with an `L`, as in Python 2.
    longs: bool,
}

impl LiteralParser<'_> {
    /// The next character that is not a space.
    fn next(&mut self) -> Option<char> {
        self.rest = self.rest.trim_start_matches([' ', '\t', '\n', '\r']);
        self.rest.chars().next()
    }

    fn takes(&mut self, wanted: char) -> bool {
        let found = self.next() == Some(wanted);
        if found {
            self.rest = &self.rest[wanted.len_utf8()..];
        }
        found
    }

    fn expect(&mut self, wanted: char) -> Result<(), String> {
        if self.takes(wanted) {
            return Ok(());
        }
        Err(match self.next() {
            Some(found) => format!("its header has {found:?}, but {wanted:?} was expected"),
            None => format!("its header ends, but {wanted:?} was expected"),
        })
    }

    fn literal(&mut self, depth: u32) -> Result<PythonLiteral, String> {
        if depth > DEPTH_MAX {
            return Err("its header has too many nested brackets".into());
        }
        match self.next() {
            Some(quote @ ('\'' | '"')) => self.text(quote).map(PythonLiteral::Text),
            Some('0'..='9') => self.number().map(PythonLiteral::Number),
            Some('(') => {
                let (mut items, ends_with_comma) = self.items('(', ')', depth)?;
                // In Python, parentheses around a single item mean nothing.
                match items.pop() {
                    Some(only) if items.is_empty() && !ends_with_comma => Ok(only),
                    last => Ok(PythonLiteral::Tuple(items.into_iter().chain(last).collect())),
                }
            }
            Some('[') => self.items('[', ']', depth).map(|(items, _)| PythonLiteral::List(items)),
            _ => {
                for (word, value) in [("True", true), ("False", false)] {
                    if let Some(rest) = self.rest.strip_prefix(word)
                        && !rest.starts_with(|next: char| next.is_alphanumeric() || next == '_')
                    {
                        self.rest = rest;
                        return Ok(PythonLiteral::Truth(value));
                    }
                }
                let shown: String = self.rest.chars().take(20).collect();
                Err(format!("its header has {shown:?}, but a value was expected"))
            }
        }
    }

    /// The items between brackets, and whether the last one is followed by a comma.
    fn items(&mut self, open: char, close: char, depth: u32) -> Result<(Vec<PythonLiteral>, bool), String> {
        self.expect(open)?;
        let (mut items, mut ends_with_comma) = (Vec::new(), false);
        while !self.takes(close) {
            items.push(self.literal(depth + 1)?);
            ends_with_comma = self.takes(',');
            if !ends_with_comma {
                self.expect(close)?;
                break;
            }
        }
        Ok((items, ends_with_comma))
    }

    fn number(&mut self) -> Result<u64, String> {
        let len = self.rest.find(|next: char| !next.is_ascii_digit()).unwrap_or(self.rest.len());
        let (digits, rest) = self.rest.split_at(len);
        self.rest = rest;
        if self.longs {
            self.rest = rest.strip_prefix('L').unwrap_or(rest);
        }
        digits.parse().map_err(|_| format!("its header has the number {digits}"))
    }

    fn text(&mut self, quote: char) -> Result<String, String> {
        let mut chars = self.rest[quote.len_utf8()..].chars();
        let mut text = String::new();
        let open = || "its header has an unterminated string".to_owned();
        loop {
            match chars.next().ok_or_else(open)? {
                found if found == quote => break,
                '\\' => {
                    let kind = chars.next().ok_or_else(open)?;
                    text.push(match kind {
                        '\\' | '\'' | '"' => kind,
                        'n' => '\n',
                        'r' => '\r',
                        't' => '\t',
                        'x' | 'u' | 'U' => {
                            let len = match kind {
                                'x' => 2,
                                'u' => 4,
                                _ => 8,
                            };
                            let digits: String = chars.by_ref().take(len).collect();
                            let is_whole = digits.len() == len && digits.bytes().all(|byte| byte.is_ascii_hexdigit());
                            let code = u32::from_str_radix(&digits, 16).ok().filter(|_| is_whole);
                            code.and_then(char::from_u32).ok_or_else(|| format!("its header has \\{kind}{digits}"))?
                        }
                        _ => return Err(format!("its header has \\{kind}")),
                    });
                }
                found if found.is_ascii_control() => return Err(format!("its header has a string with {found:?}")),
                found => text.push(found),
            }
        }
        self.rest = chars.as_str();
        Ok(text)
    }
}

/// A header of the given version with this dictionary.
#[cfg(any(test, fuzzing))]
pub(super) fn framed(version: u8, dictionary: &[u8]) -> Vec<u8> {
    let len = (dictionary.len() as u32).to_le_bytes();
    let len = if version == 1 { &len[..2] } else { &len };
    [MAGIC, &[version, 0], len, dictionary].concat()
}

/// For a fuzz target and a test with arbitrary bytes: either they are a header that survives writing and reading again,
/// or they are rejected. Panics otherwise. Returns whether they were a header.
#[cfg(any(test, fuzzing))]
pub(super) fn fuzz(bytes: &[u8]) -> bool {
    let Ok(found) = NpyHeader::parse(bytes) else { return false };
    assert_eq!(NpyHeader::len(bytes), Ok(found.start));
    assert!(found.start <= bytes.len() as u64);
    let (descr, is_fortran, shape) = (&found.descr, PythonLiteral::Truth(found.is_fortran), found.shape_from(0));
    let again = format!("{{'descr': {descr}, 'fortran_order': {is_fortran}, 'shape': {shape}}}");
    let again = NpyHeader::parse(&framed(3, again.as_bytes())).expect("what was written can be read");
    assert_eq!(NpyHeader { start: found.start, ..again }, found);
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A header of version 1.0 with this dictionary.
    fn header(dictionary: &str) -> Vec<u8> {
        framed(1, dictionary.as_bytes())
    }

    const PLAIN: &str = "{'descr': '<f8', 'fortran_order': False, 'shape': (3, 2), }   \n";

    fn text(text: &str) -> PythonLiteral {
        PythonLiteral::Text(text.into())
    }

    /// Headers written by NumPy, in all versions, and by Python 2.
    #[test]
    fn what_numpy_writes_is_read() {
        let plain =
            NpyHeader { start: 10 + PLAIN.len() as u64, shape: vec![3, 2], is_fortran: false, descr: text("<f8") };
        assert_eq!(NpyHeader::parse(&header(PLAIN)), Ok(plain.clone()));
        for version in [2, 3] {
            assert_eq!(
                NpyHeader::parse(&framed(version, PLAIN.as_bytes())),
                Ok(NpyHeader { start: plain.start + 2, ..plain.clone() })
            );
        }
        let fields =
            r#"{"shape": (5L,), 'fortran_order':True,'descr': [('a\'\x41ü', '>i4'), ('', '|V4'), ("b", '<f8', (3,))]}"#;
        let latin: Vec<u8> = fields.chars().map(|one| one as u8).collect();
        let mut bytes = header("");
        bytes[8] = latin.len() as u8;
        bytes.extend(latin);
        let found = NpyHeader::parse(&bytes).unwrap();
        assert_eq!((found.shape.as_slice(), found.is_fortran), (&[5][..], true));
        let shown = r"[('a\'Aü', '>i4'), ('', '|V4'), ('b', '<f8', (3,))]";
        assert_eq!(found.descr.to_string(), shown);
        let shape = |text: &str| NpyHeader::parse(&header(&PLAIN.replace("(3, 2)", text))).map(|header| header.shape);
        assert_eq!(shape("()"), Ok(vec![]));
        assert_eq!(shape("(3,)"), Ok(vec![3]));
        assert_eq!(shape("((3), 2)"), Ok(vec![3, 2]));
    }

    /// For NumPy, each of these would be another array, or none.
    #[test]
    fn what_numpy_does_not_write_is_refused() {
        for (from, to, told) in [
            ("(3, 2)", "(3)", "shape"),
            ("(3, 2)", "(-3, 2)", "but a value was expected"),
            ("(3, 2)", "[3, 2]", "shape"),
            ("(3, 2)", "(3, True)", "its shape has True"),
            ("(3, 2)", "(3, 99999999999999999999)", "number 99999999999999999999"),
            ("(3, 2)", "(3 2)", "but ')' was expected"),
            ("(3, 2)", "(3,, 2)", "but a value was expected"),
            ("False", "0", "fortran_order"),
            ("False", "Falsetto", "but a value was expected"),
            ("'shape'", "'shapes'", "shapes"),
            ("'shape'", "'descr'", "twice"),
            ("'shape'", "7", "the key 7"),
            (", 'shape': (3, 2), }", "}", "no \"shape\""),
            ("'<f8'", "'<f8", "expected"),
            ("'<f8'", "'\\q'", "\\q"),
            ("'<f8'", "'\\x4'", "\\x4"),
            ("'<f8'", "__import__('os')", "but a value was expected"),
            (", }   \n", ", } 1\n", "after the header"),
            (", }   \n", ", ", "but a value was expected"),
        ] {
            let changed = PLAIN.replace(from, to);
            assert_ne!(changed, PLAIN);
            let error = NpyHeader::parse(&header(&changed)).unwrap_err();
            assert!(error.contains(told), "{changed}: {error}");
        }
        let deep = PLAIN.replace("'<f8'", &format!("{}{}", "[".repeat(10_000), "]".repeat(10_000)));
        assert!(NpyHeader::parse(&header(&deep)).unwrap_err().contains("brackets"));
        for (bytes, told) in [
            (&b""[..], "not an array file"),
            (b"\x93NUM", "not an array file"),
            (b"PK\x03\x04....", "archive"),
            (b"\x93NUMPY", "ends inside"),
            (b"\x93NUMPY\x01", "ends inside"),
            (b"\x93NUMPY\x01\x00\x01", "ends inside"),
            (b"\x93NUMPY\x02\x00\x01\x00\x00", "ends inside"),
            (b"\x93NUMPY\x01\x00\x09\x00{", "ends inside"),
            (b"\x93NUMPY\x04\x00\x09\x00{", "version 4.0"),
            (b"\x93NUMPY\x01\x01\x09\x00{", "version 1.1"),
            (b"\x93NUMPY\x02\x00\xff\xff\xff\xff{", "more than"),
        ] {
            let error = NpyHeader::parse(bytes).unwrap_err();
            assert!(error.contains(told), "{bytes:?}: {error}");
        }
    }

    /// Whatever bytes a header contains, it is parsed or rejected; a parsed one survives writing and reading again.
    #[test]
    fn damaged_headers_are_read_or_refused() {
        const PARTS: [&str; 16] =
            ["{", "}", "(", ")", "[", "]", ",", ":", "'", "\"", "\\", "1", "descr", "True", " ", "\u{fc}"];
        let mut random = 11_u64;
        let mut draw = |below: usize| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (random >> 33) as usize % below
        };
        let whole = "{'descr': [('a', '<i4'), ('b\\n', '|u1')], 'fortran_order': False, 'shape': (3,), }\n";
        let mut read = 0;
        for round in 0..20_000 {
            let mut bytes = header(whole);
            for _ in 0..1 + draw(3) {
                let at = draw(bytes.len());
                match draw(3) {
                    0 => bytes[at] = draw(256) as u8,
                    1 => drop(bytes.remove(at)),
                    _ => drop(bytes.splice(at..at, PARTS[draw(PARTS.len())].bytes())),
                }
            }
            // Half of them contain their length.
            if round % 2 == 0 && bytes.len() > 10 {
                let len = (bytes.len() - 10) as u16;
                bytes[8..10].copy_from_slice(&len.to_le_bytes());
            }
            read += u32::from(fuzz(&bytes));
        }
        assert!((100..19_000).contains(&read), "{read} of 20000 were read");
    }
}
