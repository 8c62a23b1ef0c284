//! The terminal from which a job was started: keyboard input goes to rank 0, which runs in the background and may not
//! read the terminal itself.

use std::io::{self, IsTerminal};
use std::os::fd::{AsFd, BorrowedFd};
use std::process::ChildStdin;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::PollFlags;

/// How often a background job checks whether it has become the foreground job.
const FOREGROUND_INTERVAL: Duration = Duration::from_millis(500);

/// Carries input from the terminal to rank 0.
pub struct KeyboardInput {
    to: ChildStdin,
    typed: Vec<u8>,
}

impl KeyboardInput {
    /// Whether our standard input is a terminal. Rank 0 simply inherits any other kind of input.
    pub fn is_terminal() -> bool {
        io::stdin().is_terminal()
    }

    /// Carries keyboard input to `to`.
    pub fn new(to: ChildStdin) -> Self {
        Self { to, typed: Vec::new() }
    }

    /// What to poll for: room at rank 0 while input waits, otherwise keys and the end of rank 0.
    pub fn wants(&self) -> Vec<(BorrowedFd<'_>, PollFlags)> {
        if !self.typed.is_empty() {
            return vec![(self.to.as_fd(), PollFlags::POLLOUT)];
        }
        let mut wants = vec![(self.to.as_fd(), PollFlags::empty())];
        if in_foreground() {
            wants.push((stdin(), PollFlags::POLLIN));
        }
        wants
    }

    /// When to call [`KeyboardInput::wants`] again even if nothing happens.
    pub fn look_again_at(&self, now: Instant) -> Option<Instant> {
        (!in_foreground()).then(|| now + FOREGROUND_INTERVAL)
    }

    /// Does what `ready` allows; returns false when there is nothing more to carry (Ctrl-D, or rank 0 has closed its
    /// input).
    pub fn carry(&mut self, ready: &[PollFlags]) -> bool {
        ready.iter().all(|&what| match what {
            PollFlags::POLLIN => self.read(),
            PollFlags::POLLOUT => self.write(),
            _ => false,
        })
    }

    fn read(&mut self) -> bool {
        let mut buffer = [0; 4096];
        match nix::unistd::read(stdin(), &mut buffer) {
            Ok(0) => false,
            Ok(count) => {
                self.typed.extend_from_slice(&buffer[..count]);
                true
            }
            Err(error) => error == Errno::EINTR,
        }
    }

    fn write(&mut self) -> bool {
        // At most one line of a terminal waits, and a writable pipe takes it without blocking.
        match nix::unistd::write(&self.to, &self.typed) {
            Ok(count) => {
                self.typed.drain(..count);
                true
            }
            Err(error) => error == Errno::EINTR,
        }
    }
}

/// The width of the terminal on standard error, if it is one. Workers write to pipes and cannot ask for it
/// themselves.
pub fn columns() -> Option<u16> {
    let mut size = libc::winsize { ws_row: 0, ws_col: 0, ws_xpixel: 0, ws_ypixel: 0 };
    // SAFETY: the call fills the structure that it is given.
    let asked = unsafe { libc::ioctl(2, libc::TIOCGWINSZ, &raw mut size) };
    (asked == 0).then_some(size.ws_col).filter(|&columns| columns > 0)
}

fn stdin() -> BorrowedFd<'static> {
    // SAFETY: standard input belongs to the process as a whole and stays open until it ends.
    unsafe { BorrowedFd::borrow_raw(0) }
}

/// The kernel stops a background job that reads its terminal.
fn in_foreground() -> bool {
    nix::unistd::tcgetpgrp(stdin()) == Ok(nix::unistd::getpgrp())
}
