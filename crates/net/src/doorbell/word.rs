//! The word between a worker that goes to sleep and those who wake it: who announces, who clears, and why no wake-up
//! is lost.
//!
//! ```text
//!  sleeper: announce (set bits); fence; look again; sleep while the word is unchanged
//!  ringer:  write data;          fence; read the word; if bits are set: clear them, count up, wake
//! ```
//!
//! The two fences order the pairs: either the sleeper's second look finds the data, or the ringer finds the bits
//! (Dekker). Clearing always counts the epoch up, so a sleeper that has not quite fallen asleep sees a changed word.
//! Only whoever clears the bits pays for a system call. Model-checked in `tests/loom.rs`.

use crate::sync::{AtomicU32, Ordering, fence};

/// Somebody sleeps on the word itself (futex).
pub(crate) const ON_WORD: u32 = 1;
/// Somebody sleeps on descriptors, among them the owner's pipe.
pub(crate) const ON_PIPE: u32 = 2;
const BITS: u32 = ON_WORD | ON_PIPE;
const EPOCH: u32 = 4;

/// Announces a sleeper. Returns the value the word keeps until somebody rings; after this, look once more for work.
#[inline]
pub(crate) fn announce(word: &AtomicU32, bits: u32) -> u32 {
    let ticket = word.fetch_or(bits, Ordering::Relaxed) | bits;
    fence(Ordering::SeqCst);
    ticket
}

/// Takes all announcements back. Only when the owner has no other sleeper.
#[inline]
pub(crate) fn withdraw(word: &AtomicU32) {
    word.fetch_and(!BITS, Ordering::Relaxed);
}

/// Reads the word and, if sleepers are announced, clears them. Returns the bits to wake. The caller has written what it
/// rings for, and then made a `fence(SeqCst)`; one fence may serve many words.
#[inline]
pub(crate) fn ring_fenced(word: &AtomicU32) -> u32 {
    let mut seen = word.load(Ordering::Relaxed);
    while seen & BITS != 0 {
        let cleared = (seen & !BITS).wrapping_add(EPOCH);
        match word.compare_exchange_weak(seen, cleared, Ordering::Relaxed, Ordering::Relaxed) {
            Ok(_) => return seen & BITS,
            // Somebody else rang or announced. If bits are still set, the duty is still ours.
            Err(now) => seen = now,
        }
    }
    0
}
