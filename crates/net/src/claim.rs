//! Two workers copy one large message together, from both ends, each chunk exactly once.
//!
//! The receiver takes chunks from the front, the sender from the back, until they meet. Both count the chunks they
//! have finished, and the transfer is complete when all are. One word holds what is left to take:
//!
//! ```text
//!  taking:   | generation 24 | front 20 | back 20 |     chunks front..back are untaken
//!  finished: | generation 24 | count 40           |
//! ```
//!
//! The generation keeps a late helper of an earlier transfer from taking chunks of the next one. A taken chunk must
//! be finished before the transfer can complete, so nothing is ever copied late. Model-checked in `tests/loom.rs`.

use crate::sync::{AtomicU64, Ordering};

/// The most chunks of a transfer: choose the chunk size so that a message needs no more.
pub const CHUNKS_MAX: u32 = (1 << 20) - 1;

const INDEX_BITS: u32 = 20;
const INDEX_MASK: u64 = (1 << INDEX_BITS) - 1;
const GENERATION_SHIFT: u32 = 2 * INDEX_BITS;
const GENERATION_MASK: u32 = (1 << 24) - 1;
const COUNT_MASK: u64 = (1 << GENERATION_SHIFT) - 1;

/// The two words of a claim, in memory that both sides share. Zero is a valid start.
pub type ClaimWords = [AtomicU64; 2];

/// One side's view of a claim. Both sides may use all of it, except that only the receiver may `start`.
#[derive(Clone, Debug)]
pub struct ChunkClaim<W> {
    words: W,
}

/// One transfer: its generation, which travels from the receiver to the sender, and its number of chunks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChunkTransfer {
    /// Less than 2^24.
    pub generation: u32,
    /// At most [`CHUNKS_MAX`].
    pub chunks: u32,
}

impl ChunkTransfer {
    fn base(self) -> u64 {
        ((self.generation & GENERATION_MASK) as u64) << GENERATION_SHIFT
    }
}

impl<W: std::ops::Deref<Target = ClaimWords>> ChunkClaim<W> {
    /// A claim over `words`.
    pub(crate) fn over(words: W) -> Self {
        Self { words }
    }

    /// Opens the next transfer, of `chunks` chunks. Receiver only, and only when the one before is complete (or its
    /// sender is lost). The sender must learn the generation from a message sent afterwards.
    ///
    /// # Panics
    /// If `chunks` is over [`CHUNKS_MAX`].
    pub fn start(&self, chunks: u32) -> ChunkTransfer {
        assert!(chunks <= CHUNKS_MAX, "{chunks} chunks");
        let before = (self.words[0].load(Ordering::Relaxed) >> GENERATION_SHIFT) as u32;
        let transfer = ChunkTransfer { generation: before.wrapping_add(1) & GENERATION_MASK, chunks };
        let base = transfer.base();
        // `finished` first: whoever takes a chunk of the new generation must be able to count it.
        self.words[1].store(base, Ordering::Relaxed);
        self.words[0].store(base | chunks as u64, Ordering::Release);
        transfer
    }

    /// Takes the first untaken chunk, from the receiver's end.
    #[inline]
    pub fn take_front(&self, transfer: ChunkTransfer) -> Option<u32> {
        self.take(transfer, |front, back| (front, front + 1, back))
    }

    /// Takes the last untaken chunk, from the sender's end.
    #[inline]
    pub fn take_back(&self, transfer: ChunkTransfer) -> Option<u32> {
        self.take(transfer, |front, back| (back - 1, front, back - 1))
    }

    #[inline]
    fn take(&self, transfer: ChunkTransfer, choose: impl Fn(u64, u64) -> (u64, u64, u64)) -> Option<u32> {
        let base = transfer.base();
        let mut seen = self.words[0].load(Ordering::Acquire);
        loop {
            let (front, back) = (seen >> INDEX_BITS & INDEX_MASK, seen & INDEX_MASK);
            // Checks `back` because the other side could write anything here: a chunk must never be out of range.
            if seen & !COUNT_MASK != base || front >= back || back > transfer.chunks as u64 {
                return None;
            }
            let (chunk, front, back) = choose(front, back);
            let next = base | front << INDEX_BITS | back;
            match self.words[0].compare_exchange_weak(seen, next, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return Some(chunk as u32),
                Err(now) => seen = now,
            }
        }
    }

    /// Counts `chunks` taken chunks as copied. Release: the copies come before.
    #[inline]
    pub fn finish(&self, chunks: u32) {
        // No need to check the generation: a taken chunk keeps its transfer from completing, so it is still the
        // current one.
        self.words[1].fetch_add(chunks as u64, Ordering::AcqRel);
    }

    /// Whether all chunks of the transfer are copied, by either side. Acquire: the copies are visible then. A later
    /// generation means that the receiver has seen this transfer complete.
    #[inline]
    pub fn is_complete(&self, transfer: ChunkTransfer) -> bool {
        let finished = self.words[1].load(Ordering::Acquire);
        finished & !COUNT_MASK != transfer.base() || finished & COUNT_MASK == transfer.chunks as u64
    }
}
