//! Parses links from lines of text, "source target [weight] ...", on all threads.
//!
//! The text is divided at line ends into one piece per thread. Source of the exact fast path for decimals: W. Clinger,
//! How to read floating point numbers accurately (1990): dividing a mantissa below 2^53 by a power of ten up to 10^22
//! rounds once.

use crate::error::NetworkError;
use std::ops::Range;
use tidemill_kernels::pool::{Pool, share};

/// The format of lines.
#[derive(Clone, Debug)]
pub struct LinkFormat {
    /// The separator of fields; by default, any run of spaces, tabs, commas and semicolons. Runs of spaces count as
    /// one.
    pub delimiter: Option<u8>,
    /// Lines that begin with one of these are skipped.
    pub comments: Vec<u8>,
    /// The required first byte of other lines, such as "a" in DIMACS.
    pub tag: Option<u8>,
    /// Whether the third field is a weight.
    pub weighted: bool,
    /// The number of the first line.
    pub first_line: u64,
}

/// The links of a text.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ParsedLinks {
    /// The source of each link. With `unsigned`, the bits of a `u64`.
    pub sources: Vec<i64>,
    /// The target of each link.
    pub targets: Vec<i64>,
    /// The weight of each link, if requested.
    pub weights: Vec<f64>,
    /// Whether an id exceeds the largest `i64`.
    pub unsigned: bool,
    /// Whether an id is negative.
    pub negative: bool,
    /// The number of lines.
    pub lines: u64,
}

/// Parses all links in `text`.
///
/// # Errors
/// `BadLine` with the first line without a valid link; `BadArgument` if no type fits all ids, neither `i64` nor `u64`.
pub fn parse_links(pool: &Pool, text: &[u8], format: &LinkFormat) -> Result<ParsedLinks, NetworkError> {
    let threads = if text.len() < 1 << 16 { 1 } else { pool.threads() };
    let cuts: Vec<usize> =
        (0..=threads).map(|thread| line_start(text, share(text.len(), 1, thread, threads).start)).collect();
    let mut pieces: Vec<Result<ParsedLinks, NetworkError>> = Vec::new();
    if threads == 1 {
        pieces.push(parse_piece(text, format));
    } else {
        pieces.resize(threads, Ok(ParsedLinks::default()));
        pool.each(&mut pieces, |worker, piece| {
            let range: Range<usize> = cuts[worker.thread]..cuts[worker.thread + 1];
            *piece = parse_piece(&text[range], format);
        });
    }
    let mut lines = format.first_line;
    let mut all = ParsedLinks::default();
    for piece in pieces {
        match piece {
            Ok(piece) => {
                lines += piece.lines;
                all.append(piece);
            }
            Err(NetworkError::BadLine { line, content, trouble }) => {
                return Err(NetworkError::BadLine { line: lines + line, content, trouble });
            }
            Err(error) => return Err(error),
        }
    }
    if all.unsigned && all.negative {
        return Err(NetworkError::argument(
            "some ids are negative and others exceed 9223372036854775807; no type holds both",
        ));
    }
    Ok(all)
}

impl ParsedLinks {
    fn append(&mut self, mut later: ParsedLinks) {
        if self.sources.is_empty() {
            later.lines += self.lines;
            later.unsigned |= self.unsigned;
            later.negative |= self.negative;
            *self = later;
            return;
        }
        self.sources.append(&mut later.sources);
        self.targets.append(&mut later.targets);
        self.weights.append(&mut later.weights);
        self.unsigned |= later.unsigned;
        self.negative |= later.negative;
        self.lines += later.lines;
    }
}

/// The start of the first line at or after `at`, or the end of the text.
fn line_start(text: &[u8], at: usize) -> usize {
    if at == 0 || at >= text.len() {
        return at.min(text.len());
    }
    text[at - 1..].iter().position(|&byte| byte == b'\n').map_or(text.len(), |end| at + end)
}

/// Parses the lines of a piece. Errors count lines from 0.
fn parse_piece(text: &[u8], format: &LinkFormat) -> Result<ParsedLinks, NetworkError> {
    let mut links = ParsedLinks::default();
    let guess = text.len() / 12;
    links.sources.reserve(guess);
    links.targets.reserve(guess);
    if format.weighted {
        links.weights.reserve(guess);
    }
    let mut cursor = LineCursor { text, at: 0, delimiter: format.delimiter };
    while cursor.at < text.len() {
        let start = cursor.at;
        if let Err(trouble) = cursor.line(format, &mut links) {
            let end = text[start..].iter().position(|&byte| byte == b'\n').map_or(text.len(), |end| start + end);
            let content = String::from_utf8_lossy(&text[start..end.min(start + 80)]).trim_end().to_owned();
            return Err(NetworkError::BadLine { line: links.lines, content, trouble });
        }
        links.lines += 1;
    }
    Ok(links)
}

struct LineCursor<'a> {
    text: &'a [u8],
    at: usize,
    delimiter: Option<u8>,
}

impl LineCursor<'_> {
    #[inline(always)]
    fn peek(&self) -> u8 {
        // The end of the text ends its last line.
        self.text.get(self.at).copied().unwrap_or(b'\n')
    }

    /// Parses one line, including its end.
    #[inline(always)]
    fn line(&mut self, format: &LinkFormat, links: &mut ParsedLinks) -> Result<(), &'static str> {
        self.skip_blanks();
        let first = self.peek();
        if first == b'\n' || format.comments.contains(&first) {
            self.skip_line();
            return Ok(());
        }
        if let Some(tag) = format.tag {
            if first != tag {
                return Err("the line does not begin with a mark of its format");
            }
            self.at += 1;
            self.skip_blanks();
        }
        let source = self.id(links)?;
        self.next_field("there is no second field")?;
        let target = self.id(links)?;
        if format.weighted {
            self.next_field("there is no weight")?;
            let weight = self.weight()?;
            links.weights.push(weight);
        }
        // The rest is ignored, but a field must end where its number ends.
        if !self.is_field_end() {
            return Err(if format.weighted { "the weight is not a number" } else { "the second id is not an integer" });
        }
        links.sources.push(source);
        links.targets.push(target);
        self.skip_line();
        Ok(())
    }

    #[inline(always)]
    fn skip_blanks(&mut self) {
        while matches!(self.peek(), b' ' | b'\t' | b'\r')
            && (self.delimiter != Some(self.peek()) || self.peek() == b' ')
        {
            self.at += 1;
        }
    }

    fn skip_line(&mut self) {
        while self.peek() != b'\n' {
            self.at += 1;
        }
        self.at += 1;
    }

    #[inline(always)]
    fn is_field_end(&self) -> bool {
        match self.peek() {
            b' ' | b'\t' | b'\r' | b'\n' => true,
            b',' | b';' if self.delimiter.is_none() => true,
            byte => self.delimiter == Some(byte),
        }
    }

    /// Skips the separator between fields.
    #[inline(always)]
    fn next_field(&mut self, trouble: &'static str) -> Result<(), &'static str> {
        if !self.is_field_end() {
            return Err("an id is not an integer");
        }
        match self.delimiter {
            None => {
                while matches!(self.peek(), b' ' | b'\t' | b',' | b';' | b'\r') {
                    self.at += 1;
                }
            }
            Some(b' ') => self.skip_blanks(),
            Some(delimiter) => {
                self.skip_blanks();
                if self.peek() != delimiter {
                    return Err(trouble);
                }
                self.at += 1;
                self.skip_blanks();
            }
        }
        if self.peek() == b'\n' { Err(trouble) } else { Ok(()) }
    }

    #[inline(always)]
    fn id(&mut self, links: &mut ParsedLinks) -> Result<i64, &'static str> {
        let negative = self.peek() == b'-';
        self.at += usize::from(negative);
        let start = self.at;
        let mut value = 0u64;
        let mut digit = self.peek().wrapping_sub(b'0');
        while digit < 10 {
            value = value.wrapping_mul(10).wrapping_add(u64::from(digit));
            self.at += 1;
            digit = self.peek().wrapping_sub(b'0');
        }
        match self.at - start {
            0 => return Err("an id is not an integer"),
            1..=18 => {}
            _ => {
                let digits = std::str::from_utf8(&self.text[start..self.at]).expect("digits");
                value = digits.parse().map_err(|_| "an id exceeds 64 bits")?;
            }
        }
        if negative {
            links.negative |= value > 0;
            return if value <= 1 << 63 { Ok((value as i64).wrapping_neg()) } else { Err("an id exceeds 64 bits") };
        }
        links.unsigned |= value > i64::MAX as u64;
        Ok(value as i64)
    }

    #[inline(always)]
    fn weight(&mut self) -> Result<f64, &'static str> {
        const EXACT_POWERS: [f64; 23] = [
            1e0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11, 1e12, 1e13, 1e14, 1e15, 1e16, 1e17, 1e18,
            1e19, 1e20, 1e21, 1e22,
        ];
        let start = self.at;
        let negative = self.peek() == b'-';
        self.at += usize::from(negative);
        let (mut mantissa, mut digits, mut decimals, mut point) = (0u64, 0usize, 0usize, false);
        loop {
            let byte = self.peek();
            let digit = byte.wrapping_sub(b'0');
            if digit < 10 {
                mantissa = mantissa.wrapping_mul(10).wrapping_add(u64::from(digit));
                digits += 1;
                decimals += usize::from(point);
            } else if byte == b'.' && !point {
                point = true;
            } else {
                break;
            }
            self.at += 1;
        }
        if digits > 0 && digits <= 19 && mantissa < 1 << 53 && decimals < EXACT_POWERS.len() && self.is_field_end() {
            let value = mantissa as f64 / EXACT_POWERS[decimals];
            return Ok(if negative { -value } else { value });
        }
        while !self.is_field_end() {
            self.at += 1;
        }
        let field = std::str::from_utf8(&self.text[start..self.at]).map_err(|_| "the weight is not a number")?;
        field.parse().map_err(|_| "the weight is not a number")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::pool;

    fn plain(weighted: bool) -> LinkFormat {
        LinkFormat { delimiter: None, comments: b"#%".to_vec(), tag: None, weighted, first_line: 1 }
    }

    fn read(text: &str, format: &LinkFormat) -> Result<ParsedLinks, String> {
        parse_links(&pool(2), text.as_bytes(), format).map_err(|error| error.to_string())
    }

    #[test]
    fn common_forms_are_read() {
        let links = read("# a comment\n1 2\r\n\n  3\t-4 extra\n5,6\n7;8", &plain(false)).unwrap();
        assert_eq!((links.sources, links.targets, links.lines), (vec![1, 3, 5, 7], vec![2, -4, 6, 8], 6));
        let links =
            read("1 2 0.1\n1 2 -3\n1 2 1e-3\n1 2 12345678901234567890.5\n1,2,.5\n1 2 5. x", &plain(true)).unwrap();
        assert_eq!(links.weights, [0.1, -3.0, 1e-3, 12345678901234567890.5, 0.5, 5.0]);
        let dimacs = LinkFormat { comments: b"cp".to_vec(), tag: Some(b'a'), ..plain(true) };
        let links = read("c hello\np sp 3 1\na 1 3 7\n", &dimacs).unwrap();
        assert_eq!((links.sources, links.targets, links.weights), (vec![1], vec![3], vec![7.0]));
        let tabs = LinkFormat { delimiter: Some(b'\t'), ..plain(true) };
        assert_eq!(read("1\t2\t 3\n", &tabs).unwrap().weights, [3.0]);
        let large = read("18446744073709551615 0\n", &plain(false)).unwrap();
        assert_eq!((large.sources[0] as u64, large.unsigned), (u64::MAX, true));
        assert_eq!(read("-9223372036854775808 0", &plain(false)).unwrap().sources, [i64::MIN]);
        assert_eq!(read("", &plain(false)).unwrap(), ParsedLinks::default());
    }

    #[test]
    fn bad_lines_are_named() {
        let lines = |text| read(text, &plain(true)).unwrap_err();
        assert_eq!(lines("1 2 3\n\n4\n"), "line 3: there is no second field: \"4\"");
        assert_eq!(lines("1 2\n"), "line 1: there is no weight: \"1 2\"");
        assert_eq!(lines("1 b 3\n"), "line 1: an id is not an integer: \"1 b 3\"");
        assert_eq!(lines("1.5 2 3\n"), "line 1: an id is not an integer: \"1.5 2 3\"");
        assert_eq!(lines("1 2 3x\n"), "line 1: the weight is not a number: \"1 2 3x\"");
        assert_eq!(lines("1 99999999999999999999 3"), "line 1: an id exceeds 64 bits: \"1 99999999999999999999 3\"");
        let both = read("-1 18446744073709551615", &plain(false)).unwrap_err();
        assert!(both.contains("no type holds both"), "{both}");
        assert_eq!(read("1 2x", &plain(false)).unwrap_err(), "line 1: the second id is not an integer: \"1 2x\"");
        let commas = LinkFormat { delimiter: Some(b','), ..plain(false) };
        assert_eq!(read("1 2\n", &commas).unwrap_err(), "line 1: there is no second field: \"1 2\"");
    }

    /// The pieces of threads must meet at line ends, and their errors must count the lines before them.
    #[test]
    fn threads_share_a_text() {
        let mut text: String = (0..20_000).map(|i| format!("{i} {}\n", i * 7)).collect();
        for threads in 1..5 {
            let links = parse_links(&pool(threads), text.as_bytes(), &plain(false)).unwrap();
            assert!(
                links.sources.iter().copied().eq(0..20_000)
                    && links.targets.iter().copied().eq((0..20_000).map(|i| i * 7))
            );
            assert_eq!(links.lines, 20_000);
        }
        text.push_str("oops\n");
        for threads in 1..5 {
            let error = parse_links(&pool(threads), text.as_bytes(), &plain(false)).unwrap_err();
            assert_eq!(error.to_string(), "line 20001: an id is not an integer: \"oops\"");
        }
    }
}
