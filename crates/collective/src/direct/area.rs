//! The memory that the ranks of one communicator on one host share for direct collectives.
//!
//! ```text
//!  header line: magic, ranks | sleepers line
//!  per rank: done line, SLOTS call lines, SLOTS stamp lines
//!  per rank: SLOTS x DATA
//! ```
//!
//! A collective is a sequence of *turns*, the same on every rank. In turn `t` a rank may publish up to `DATA_BYTES` in
//! its slot `t % SLOTS`: the bytes first, then the stamp (release). A small contribution lies in the stamp's own cache
//! line, so that publishing and reading it moves one line. Readers mark a turn done when they no longer need its slots;
//! a slot is reused only when every rank is done with its last turn.
//!
//! Memory safety does not depend on what other ranks write: lengths come from this rank's own call, never from the
//! area, so a broken peer can spoil the result but not this process.

use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use tidemill_net::Segment;

/// Turns that may be under way at once.
pub(crate) const SLOTS: u32 = 8;
/// Bytes a rank can publish in one turn.
pub(crate) const DATA_BYTES: usize = 32 << 10;
/// Bytes that fit beside the stamp.
pub(crate) const INLINE_BYTES: usize = LINE - 8;

const LINE: usize = 64;
/// A done line, a ring of call lines, a ring of stamp lines.
const LINES_PER_RANK: usize = 1 + 2 * SLOTS as usize;

/// One communicator's area, as mapped by one rank. All offsets are fixed by `ranks`.
pub(crate) struct SharedArea {
    base: NonNull<u8>,
    ranks: usize,
    /// Keeps the mapping.
    _segment: Segment,
}

// SAFETY: an area is shared memory that is only accessed through atomics and, for payload, by the protocol above.
unsafe impl Send for SharedArea {}

impl SharedArea {
    /// Bytes of an area for `ranks` ranks. Pages that are never touched cost nothing.
    pub(crate) fn bytes(ranks: usize) -> usize {
        data_start(ranks) + ranks * SLOTS as usize * DATA_BYTES
    }

    /// Wraps a zero-filled segment of at least [`SharedArea::bytes`].
    pub(crate) fn new(segment: Segment, ranks: usize) -> Self {
        assert!(segment.len() >= SharedArea::bytes(ranks), "an area of {ranks} ranks fits its segment");
        SharedArea { base: segment.base(), ranks, _segment: segment }
    }

    fn at(&self, offset: usize) -> NonNull<u8> {
        debug_assert!(offset < SharedArea::bytes(self.ranks));
        // SAFETY: offsets are computed below from indices within the area, which the segment holds.
        unsafe { self.base.add(offset) }
    }

    fn word32(&self, offset: usize) -> &AtomicU32 {
        // SAFETY: in bounds and aligned (offsets are whole lines); the memory is only ever accessed as atomics or,
        // for payload, raw bytes ordered by them; it lives as long as `self`.
        unsafe { self.at(offset).cast::<AtomicU32>().as_ref() }
    }

    fn word64(&self, offset: usize) -> &AtomicU64 {
        // SAFETY: as `word32`.
        unsafe { self.at(offset).cast::<AtomicU64>().as_ref() }
    }

    /// How many ranks sleep (or are about to) while they wait for a stamp or a done mark.
    pub(crate) fn sleepers(&self) -> &AtomicU32 {
        self.word32(LINE)
    }

    fn rank_lines(&self, rank: usize) -> usize {
        2 * LINE + rank * LINES_PER_RANK * LINE
    }

    /// The last turn `rank` is done with.
    pub(crate) fn done(&self, rank: usize) -> &AtomicU32 {
        self.word32(self.rank_lines(rank))
    }

    fn call_offset(&self, rank: usize, seq: u32) -> usize {
        self.rank_lines(rank) + (1 + (seq % SLOTS) as usize) * LINE
    }

    /// Records that this rank begins collective `seq`, for peers that need to know why an expected contribution is
    /// missing.
    #[inline]
    pub(crate) fn set_call(&self, rank: usize, seq: u32, signature: u32, call: [u64; 2]) {
        let at = self.call_offset(rank, seq);
        self.word64(at + 8).store(call[0], Ordering::Relaxed);
        self.word64(at + 16).store(call[1], Ordering::Relaxed);
        self.word64(at).store(u64::from(seq) << 32 | u64::from(signature), Ordering::Release);
    }

    /// Signature and call of `rank` under number `seq`, if it has begun that call recently. Diagnostic: a line that is
    /// being overwritten may mix two calls.
    pub(crate) fn call(&self, rank: usize, seq: u32) -> Option<(u32, [u64; 2])> {
        let at = self.call_offset(rank, seq);
        let word = self.word64(at).load(Ordering::Acquire);
        let call = [self.word64(at + 8).load(Ordering::Relaxed), self.word64(at + 16).load(Ordering::Relaxed)];
        ((word >> 32) as u32 == seq).then_some((word as u32, call))
    }

    fn stamp_offset(&self, rank: usize, turn: u32) -> usize {
        self.rank_lines(rank) + (1 + (SLOTS + turn % SLOTS) as usize) * LINE
    }

    fn data(&self, rank: usize, turn: u32, len: usize) -> *mut u8 {
        let inline = self.stamp_offset(rank, turn) + 8;
        let bulk = data_start(self.ranks) + (rank * SLOTS as usize + (turn % SLOTS) as usize) * DATA_BYTES;
        self.at(if len <= INLINE_BYTES { inline } else { bulk }).as_ptr()
    }

    /// Publishes `bytes` as `rank`'s contribution to `turn`.
    ///
    /// # Safety
    /// The caller is `rank`, and every rank is done with turn `turn - SLOTS`.
    #[inline]
    pub(crate) unsafe fn publish(&self, rank: usize, turn: u32, signature: u32, bytes: &[u8]) {
        debug_assert!(bytes.len() <= DATA_BYTES);
        // SAFETY: the slot is `DATA_BYTES` (or the rest of the line) long and ours, and nothing reads it until the
        // stamp is set.
        unsafe { tidemill_net::copy(bytes.as_ptr(), self.data(rank, turn, bytes.len()), bytes.len()) };
        let stamp = u64::from(signature) << 32 | u64::from(turn);
        self.word64(self.stamp_offset(rank, turn)).store(stamp, Ordering::Release);
    }

    /// The signature under which `rank` has published its contribution to `turn`, if it has.
    #[inline]
    pub(crate) fn published(&self, rank: usize, turn: u32) -> Option<u32> {
        let stamp = self.word64(self.stamp_offset(rank, turn)).load(Ordering::Acquire);
        (stamp as u32 == turn).then_some((stamp >> 32) as u32)
    }

    /// `rank`'s contribution to `turn`.
    ///
    /// # Safety
    /// `published(rank, turn)` was seen, with the signature of a call that publishes `len` bytes; this rank does not
    /// mark the turn done while the slice lives. (A peer that breaks the protocol could write meanwhile; the bytes are
    /// only copied or combined, never interpreted.)
    #[inline]
    pub(crate) unsafe fn contribution(&self, rank: usize, turn: u32, len: usize) -> &[u8] {
        debug_assert!(len <= DATA_BYTES);
        // SAFETY: in bounds; stable while the turn is not done, by the caller's promise.
        unsafe { std::slice::from_raw_parts(self.data(rank, turn, len), len) }
    }
}

fn data_start(ranks: usize) -> usize {
    (2 * LINE + ranks * LINES_PER_RANK * LINE).next_multiple_of(4096)
}
