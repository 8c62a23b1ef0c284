//! Writes bytes to one output of the launcher, without ever blocking the event loop.
//!
//! A reader that stops reading (a pager, a slow disk behind a pipe) must not keep the launcher from noticing Ctrl-C,
//! so bytes wait here until the output can take them. Others, such as the shell, share the file description, so it
//! must not be made non-blocking; instead each write is no larger than what `poll` has promised.

use std::io::{self, IsTerminal};
use std::os::fd::BorrowedFd;

use nix::errno::Errno;
use nix::sys::stat::{SFlag, fstat};

use crate::lines::OutputLines;

/// Worker outputs are read only while fewer bytes than this wait here.
const PENDING_BYTES_MAX: usize = 1 << 20;

/// Bytes that a pipe takes without blocking once `poll` calls it writable (`PIPE_BUF`, one page).
const PIPE_WRITE_BYTES: usize = 4096;
const FILE_WRITE_BYTES: usize = 1 << 16;

/// One output: the bytes that wait for it, and the state of its last line.
pub struct OutputSink {
    fd: BorrowedFd<'static>,
    terminal: bool,
    write_bytes_max: usize,
    closed: bool,
    /// The lines of this output.
    pub lines: OutputLines,
    /// Bytes to be written, of which the first `written` have been.
    pub pending: Vec<u8>,
    written: usize,
}

impl OutputSink {
    /// Standard output and error: two sinks, or one for both if they are the same terminal, pipe or file, because
    /// only a single writer can keep lines whole. The second value says which sink serves stdout and which stderr.
    pub fn standard() -> (Vec<Self>, [usize; 2]) {
        // SAFETY: both descriptors belong to the process as a whole and stay open until it ends.
        let fds = unsafe { [BorrowedFd::borrow_raw(1), BorrowedFd::borrow_raw(2)] };
        let identity = fds.map(|fd| fstat(fd).ok().map(|stat| (stat.st_dev, stat.st_ino)));
        if identity[0] == identity[1] {
            (vec![Self::new(fds[1])], [0, 0])
        } else {
            (vec![Self::new(fds[0]), Self::new(fds[1])], [0, 1])
        }
    }

    fn new(fd: BorrowedFd<'static>) -> Self {
        let kind = fstat(fd).map(|stat| SFlag::from_bits_truncate(stat.st_mode) & SFlag::S_IFMT);
        let terminal = fd.is_terminal();
        Self {
            fd,
            terminal,
            write_bytes_max: if kind == Ok(SFlag::S_IFREG) { FILE_WRITE_BYTES } else { PIPE_WRITE_BYTES },
            closed: kind.is_err(),
            lines: OutputLines::new(terminal),
            pending: Vec::new(),
            written: 0,
        }
    }

    /// Whether colors and redrawing make sense.
    pub fn is_terminal(&self) -> bool {
        self.terminal
    }

    /// The descriptor to poll while [`OutputSink::wants_write`].
    pub fn fd(&self) -> BorrowedFd<'static> {
        self.fd
    }

    /// Whether bytes wait.
    pub fn wants_write(&self) -> bool {
        !self.pending.is_empty()
    }

    /// Whether there is room for more bytes.
    pub fn has_room(&self) -> bool {
        self.pending.len() - self.written < PENDING_BYTES_MAX
    }

    /// Writes some of the waiting bytes; call it when `poll` reports room.
    ///
    /// # Errors
    /// Once, when nobody reads this output any more. From then on everything is dropped.
    pub fn write(&mut self) -> io::Result<()> {
        let end = self.pending.len().min(self.written + self.write_bytes_max);
        match nix::unistd::write(self.fd, &self.pending[self.written..end]) {
            Ok(count) => self.written += count,
            // A signal: the event loop handles it before the next write.
            Err(Errno::EINTR | Errno::EAGAIN) => {}
            Err(error) => {
                self.drop_pending();
                if !std::mem::replace(&mut self.closed, true) {
                    return Err(error.into());
                }
            }
        }
        if self.written == self.pending.len() {
            self.drop_pending();
        } else if self.written >= PENDING_BYTES_MAX / 2 {
            self.pending.drain(..self.written);
            self.written = 0;
        }
        Ok(())
    }

    /// Shows one of the launcher's own lines.
    pub fn note(&mut self, line: &[u8]) {
        self.lines.note(line, &mut self.pending);
        self.drop_if_closed();
    }

    /// Stops waiting for a reader that does not read: drops what waits, and whatever follows.
    pub fn abandon(&mut self) {
        self.closed |= self.wants_write();
        self.drop_if_closed();
    }

    /// Drops the waiting bytes if nobody can read them.
    pub fn drop_if_closed(&mut self) {
        if self.closed {
            self.drop_pending();
        }
    }

    fn drop_pending(&mut self) {
        self.pending.clear();
        self.written = 0;
    }
}
