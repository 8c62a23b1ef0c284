//! The word shared by a worker that goes to sleep and those that wake it: who announces, who clears, and why no
//! wake-up is lost.
//!
//! ```text
//!  sleeper: announce (set bits); fence; look again; sleep while the word is unchanged
//!  ringer:  write data;          fence; read the word; if bits are set: clear them, advance the epoch, wake
//! ```
//!
//! The two fences order the pairs: either the sleeper's second look finds the data, or the ringer finds the bits
//! (Dekker). Clearing always advances the epoch, so a sleeper that has not quite fallen asleep sees a changed word.
//! Only the thread that clears the bits pays for a system call. Model-checked in `tests/loom.rs`.
//!
//! A thread that looks for work anyway can stand in for the sleepers that allow it. As long as it does, ringers let
//! them sleep; when it sleeps itself, they wake only it:
//!
//! ```text
//!  stand-in: set RELIEVED; look, look ...; clear RELIEVED; fence; look once more
//!  asleep:   set STAND_IN, clear RELIEVED; fence; look; sleep while the word is unchanged
//! ```
//!
//! The ringer that clears `STAND_IN` sets `RELIEVED`: the stand-in that wakes will look. The two fences order these
//! pairs as well: either the stand-in's last look finds the data, or the ringer finds the sleepers' bits.

use crate::sync::{AtomicU32, Ordering, fence};

/// Someone sleeps on the word itself (futex).
pub(crate) const ON_WORD: u32 = 1;
/// Someone sleeps on descriptors, including the owner's pipe.
pub(crate) const ON_PIPE: u32 = 2;
/// At least one of these sleepers does not allow a stand-in.
pub(crate) const INSISTS: u32 = 4;
/// A stand-in sleeps on the word.
pub(crate) const STAND_IN: u32 = 8;
/// A stand-in is awake.
const RELIEVED: u32 = 16;
const SLEEPERS: u32 = ON_WORD | ON_PIPE | INSISTS;
const EPOCH: u32 = 32;

/// Announces a sleeper. Returns the value that the word keeps until someone rings; look for work once more
/// afterwards.
#[inline]
pub(crate) fn announce(word: &AtomicU32, bits: u32) -> u32 {
    let ticket = word.fetch_or(bits, Ordering::Relaxed) | bits;
    fence(Ordering::SeqCst);
    ticket
}

/// Withdraws all announcements. Only when the owner has no other sleeper.
#[inline]
pub(crate) fn withdraw(word: &AtomicU32) {
    word.fetch_and(!SLEEPERS, Ordering::Relaxed);
}

/// Stands in for the sleepers that allow it.
#[inline]
pub(crate) fn relieve(word: &AtomicU32) {
    word.fetch_or(RELIEVED, Ordering::Relaxed);
}

/// Marks that no stand-in is awake any more; look for work once more afterwards.
#[inline]
pub(crate) fn resume(word: &AtomicU32) {
    word.fetch_and(!RELIEVED, Ordering::Relaxed);
    fence(Ordering::SeqCst);
}

/// Announces that a stand-in sleeps. `last`: no other one is awake. Otherwise like [`announce`].
pub(crate) fn announce_stand_in(word: &AtomicU32, last: bool) -> u32 {
    let ticket = word.fetch_or(STAND_IN, Ordering::Relaxed) | STAND_IN;
    if !last {
        fence(Ordering::SeqCst);
        return ticket;
    }
    // Ringers between the two steps wake nobody, but the fence follows both, so the next look finds their data.
    resume(word);
    ticket & !RELIEVED
}

/// Withdraws the announcement: the stand-in is awake.
pub(crate) fn withdraw_stand_in(word: &AtomicU32) {
    relieve(word);
    word.fetch_and(!STAND_IN, Ordering::Relaxed);
}

/// Reads the word and, if it announces sleepers without a stand-in, clears them. Returns the bits to wake. The caller
/// must have written its data and then made a `fence(SeqCst)`; one fence may serve many words.
#[inline]
pub(crate) fn ring_fenced(word: &AtomicU32) -> u32 {
    clear(word, |seen| {
        if seen & INSISTS != 0 {
            (seen & (SLEEPERS | STAND_IN), 0)
        } else if seen & RELIEVED != 0 {
            (0, 0)
        } else if seen & STAND_IN != 0 {
            (STAND_IN, RELIEVED)
        } else {
            (seen & SLEEPERS, 0)
        }
    })
}

/// Like [`ring_fenced`], for all sleepers, with or without a stand-in.
#[inline]
pub(crate) fn ring_all_fenced(word: &AtomicU32) -> u32 {
    clear(word, |seen| (seen & (SLEEPERS | STAND_IN), 0))
}

/// Like [`ring_fenced`], for a stand-in alone.
pub(crate) fn ring_stand_in_fenced(word: &AtomicU32) -> u32 {
    clear(word, |seen| (seen & STAND_IN, 0))
}

/// Clears the first set of bits that `choose` returns and sets the second, unless there is nothing to clear.
#[inline]
fn clear(word: &AtomicU32, choose: impl Fn(u32) -> (u32, u32)) -> u32 {
    let mut seen = word.load(Ordering::Relaxed);
    loop {
        let (bits, set) = choose(seen);
        if bits == 0 {
            return 0;
        }
        let cleared = (seen & !bits).wrapping_add(EPOCH) | set;
        match word.compare_exchange_weak(seen, cleared, Ordering::Relaxed, Ordering::Relaxed) {
            Ok(_) => return bits,
            // Someone else rang or announced. If bits are still set, this thread still has to clear them.
            Err(now) => seen = now,
        }
    }
}
