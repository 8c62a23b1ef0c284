//! Whole lines of many workers on one output, each with its rank as prefix.
//!
//! An `OutputStream` is one worker's stdout or stderr. It passes its bytes to an `OutputLines`, which appends what
//! may be shown to the bytes waiting for one output. Files and pipes only ever receive whole lines, however late
//! their ends come. A terminal also receives the beginning of a line once it is a little old (a question, say), and a
//! progress bar that redraws itself with `\r` keeps redrawing in one row while lines of others pass above it.

use std::time::{Duration, Instant};

use memchr::memchr;

/// A longer line is shown in pieces, so that memory stays bounded even if a worker never ends its line.
const LINE_BYTES_MAX: usize = 16 << 20;

/// How old the beginning of a line must be before a terminal shows it.
const PARTIAL_AGE: Duration = Duration::from_millis(100);

/// One output stream of one worker.
pub struct OutputStream {
    id: usize,
    prefix: Vec<u8>,
    partial: Vec<u8>,
    partial_since: Option<Instant>,
}

impl OutputStream {
    /// A stream with a unique number `id`, whose lines begin with `prefix`.
    pub fn new(id: usize, prefix: Vec<u8>) -> Self {
        Self { id, prefix, partial: Vec::new(), partial_since: None }
    }
}

/// Where the last byte shown left the cursor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OutputColumn {
    /// At the beginning of a row.
    Start,
    /// Within a line of this stream. `redrawn`: the row holds a progress bar; `returned`: the last byte was its `\r`.
    Within { stream: usize, redrawn: bool, returned: bool },
}

/// The lines of one output.
pub struct OutputLines {
    terminal: bool,
    column: OutputColumn,
}

impl OutputLines {
    /// An empty output; a `terminal` also shows lines that are not complete yet.
    pub fn new(terminal: bool) -> Self {
        Self { terminal, column: OutputColumn::Start }
    }

    /// Takes `bytes` of `stream` and appends what may be shown now to `out`.
    pub fn accept(&mut self, stream: &mut OutputStream, bytes: &[u8], now: Instant, out: &mut Vec<u8>) {
        let mut rest = bytes;
        while let Some(end) = memchr(b'\n', rest) {
            let (line, next) = rest.split_at(end + 1);
            if stream.partial.is_empty() {
                self.put(stream.id, &stream.prefix, line, out);
            } else {
                stream.partial.extend_from_slice(line);
                self.put_partial(stream, out);
            }
            rest = next;
        }
        if rest.is_empty() {
            return;
        }
        stream.partial.extend_from_slice(rest);
        stream.partial_since.get_or_insert(now);
        if stream.partial.len() >= LINE_BYTES_MAX {
            self.put_partial(stream, out);
        }
    }

    /// Shows the beginning of a line on a terminal, if it is old enough.
    pub fn age(&mut self, stream: &mut OutputStream, now: Instant, out: &mut Vec<u8>) {
        if self.ripe_at(stream).is_some_and(|ripe| now >= ripe) {
            self.put_partial(stream, out);
        }
    }

    /// When [`OutputLines::age`] will next have something to do.
    pub fn ripe_at(&self, stream: &OutputStream) -> Option<Instant> {
        stream.partial_since.filter(|_| self.terminal).map(|since| since + PARTIAL_AGE)
    }

    /// Ends the stream: its last line is shown even if it is incomplete.
    pub fn finish(&mut self, stream: &mut OutputStream, out: &mut Vec<u8>) {
        self.put_partial(stream, out);
        let ours = matches!(self.column, OutputColumn::Within { stream: id, .. } if id == stream.id);
        // Without prefixes, the bytes of a single worker arrive exactly as written.
        if ours && !stream.prefix.is_empty() {
            self.end_row(out);
        }
    }

    /// Shows one of the launcher's own lines.
    pub fn note(&mut self, line: &[u8], out: &mut Vec<u8>) {
        self.put(usize::MAX, b"", line, out);
    }

    fn put_partial(&mut self, stream: &mut OutputStream, out: &mut Vec<u8>) {
        stream.partial_since = None;
        if !stream.partial.is_empty() {
            let partial = std::mem::take(&mut stream.partial);
            self.put(stream.id, &stream.prefix, &partial, out);
            // Keep the buffer, unless one huge line made it huge.
            if partial.capacity() <= 1 << 16 {
                stream.partial = partial;
                stream.partial.clear();
            }
        }
    }

    /// Appends `bytes`, in which only the last byte may be `\n`.
    fn put(&mut self, id: usize, prefix: &[u8], bytes: &[u8], out: &mut Vec<u8>) {
        let (text, ended) = match bytes.split_last() {
            Some((b'\n', text)) => (text, true),
            _ => (bytes, false),
        };
        match self.column {
            OutputColumn::Within { stream, .. } if stream == id => {}
            _ => {
                self.end_row(out);
                out.extend_from_slice(prefix);
                self.column = OutputColumn::Within { stream: id, redrawn: false, returned: false };
            }
        }
        if self.terminal {
            self.put_redrawing(prefix, text, out)
        } else {
            out.extend_from_slice(text)
        }
        if ended {
            out.push(b'\n');
            self.column = OutputColumn::Start;
        }
    }

    /// On a terminal, `\r` goes back to the first column, over the prefix: what follows needs the prefix again.
    fn put_redrawing(&mut self, prefix: &[u8], text: &[u8], out: &mut Vec<u8>) {
        let OutputColumn::Within { redrawn, returned, .. } = &mut self.column else { return };
        for &byte in text {
            if *returned && byte != b'\r' {
                out.extend_from_slice(prefix);
            }
            out.push(byte);
            *returned = byte == b'\r';
            *redrawn |= *returned;
        }
    }

    /// Leaves the row of an unfinished line, so that another line can begin.
    fn end_row(&mut self, out: &mut Vec<u8>) {
        match self.column {
            OutputColumn::Start => {}
            OutputColumn::Within { redrawn: true, .. } => out.extend_from_slice(b"\r\x1b[K"),
            OutputColumn::Within { .. } => out.push(b'\n'),
        }
        self.column = OutputColumn::Start;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn streams(count: usize) -> Vec<OutputStream> {
        (0..count).map(|rank| OutputStream::new(rank, format!("[{rank}] ").into_bytes())).collect()
    }

    /// Feeds `(stream, bytes)` in order, ends every stream, and returns what was shown.
    fn show(terminal: bool, streams: &mut [OutputStream], steps: &[(usize, &[u8])]) -> Vec<u8> {
        let (mut lines, mut out, now) = (OutputLines::new(terminal), Vec::new(), Instant::now());
        for &(stream, bytes) in steps {
            lines.accept(&mut streams[stream], bytes, now, &mut out);
            lines.age(&mut streams[stream], now + PARTIAL_AGE, &mut out);
        }
        for stream in streams {
            lines.finish(stream, &mut out);
        }
        out
    }

    #[test]
    fn lines_stay_whole() {
        let out = show(false, &mut streams(2), &[(0, b"he"), (1, b"wor"), (0, b"llo\nx"), (1, b"ld\n")]);
        assert_eq!(out, b"[0] hello\n[1] world\n[0] x\n");
    }

    #[test]
    fn empty_lines_and_zero_bytes_pass() {
        let out = show(false, &mut streams(1), &[(0, b"\n\n\0\xff\r\n")]);
        assert_eq!(out, b"[0] \n[0] \n[0] \0\xff\r\n");
    }

    #[test]
    fn a_line_too_long_to_keep_is_shown_in_pieces_without_loss() {
        let long = vec![b'x'; LINE_BYTES_MAX + 5];
        let out = show(false, &mut streams(2), &[(0, &long), (0, b"y"), (1, b"z\n"), (0, b"w\n")]);
        let want = [b"[0] ".as_slice(), &long, b"\n[1] z\n[0] yw\n"].concat();
        assert!(out == want, "{} bytes, not {}", out.len(), want.len());
    }

    /// Without prefixes, one worker's output is unchanged, including an incomplete last line.
    #[test]
    fn without_prefix_nothing_is_added_for_one_worker() {
        let mut one = [OutputStream::new(0, Vec::new())];
        assert_eq!(show(false, &mut one, &[(0, b"a\nb")]), b"a\nb");
        let mut two = [OutputStream::new(0, Vec::new()), OutputStream::new(1, Vec::new())];
        assert_eq!(show(false, &mut two, &[(0, b"a"), (1, b"b\n")]), b"b\na");
    }

    #[test]
    fn a_terminal_sees_a_question_at_once() {
        let out = show(true, &mut streams(2), &[(0, b"name? "), (1, b"hi\n"), (0, b"ok\n")]);
        assert_eq!(out, b"[0] name? \n[1] hi\n[0] ok\n");
    }

    #[test]
    fn a_progress_bar_redraws_and_makes_room() {
        let out = show(true, &mut streams(2), &[(0, b"\r1%"), (0, b"\r2%"), (1, b"hi\n"), (0, b"\r3%\n")]);
        assert_eq!(out, b"[0] \r[0] 1%\r[0] 2%\r\x1b[K[1] hi\n[0] \r[0] 3%\n");
    }

    proptest! {
        /// Bytes that are lost, doubled or mixed between streams would show as a difference after the prefixes are
        /// removed.
        #[test]
        fn every_byte_arrives_in_its_own_line(
            chunks in prop::collection::vec((0usize..3, prop::collection::vec(prop::sample::select(b"ab\n\r\0".to_vec()), 0..20)), 0..40)
        ) {
            let steps: Vec<(usize, &[u8])> = chunks.iter().map(|(stream, bytes)| (*stream, bytes.as_slice())).collect();
            let out = show(false, &mut streams(3), &steps);
            for rank in 0..3 {
                let mut sent: Vec<u8> =
                    steps.iter().filter(|(stream, _)| *stream == rank).flat_map(|(_, bytes)| bytes.to_vec()).collect();
                if !sent.is_empty() && sent.last() != Some(&b'\n') {
                    sent.push(b'\n');
                }
                let prefix = format!("[{rank}] ").into_bytes();
                let got: Vec<u8> = out
                    .split_inclusive(|&byte| byte == b'\n')
                    .filter_map(|line| line.strip_prefix(prefix.as_slice()))
                    .flatten()
                    .copied()
                    .collect();
                prop_assert_eq!(got, sent);
            }
        }
    }
}
