//! The layout of an inbox's segment, and the memory of its rings.
//!
//! ```text
//!  0      header, written once by the owner       see Header words below
//!  64     where the owner runs, for workers that share cores
//!  128    doorbell word
//!  256    per peer, 128 bytes: | returned slots, returned bytes, producer taken, rank | claim words |
//!  ...    page boundary; per peer: | slots x 128 | bulk |   written by that peer, read by the owner
//! ```

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::Rank;
use crate::claim::{ChunkClaim, ClaimWords};
use crate::ring::{REST_BYTES, RingMemory, RingShape, SLOT_BYTES};
use crate::segment::{PAGE_BYTES, Segment, SegmentError, SegmentRef};

/// The first word of every inbox: "tidemill" read as a little-endian number.
const MAGIC: u64 = u64::from_le_bytes(*b"tidemill");
/// The version of the segment's format. Workers of one job must run the same build; this detects those that do not.
const VERSION: u64 = 2;

const PLACE_OFFSET: usize = 64;
const DOORBELL_OFFSET: usize = 128;
const PEERS_OFFSET: usize = 256;
const PEER_BYTES: usize = 128;
const TAKEN_OFFSET: usize = 16;
const RANK_OFFSET: usize = 20;
const CLAIM_OFFSET: usize = 64;

/// The sizes of an inbox, the same on both sides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct InboxLayout {
    /// Peers that may write to this inbox.
    pub peer_count: u32,
    pub shape: RingShape,
}

impl InboxLayout {
    fn rings_offset(self) -> usize {
        (PEERS_OFFSET + PEER_BYTES * self.peer_count as usize).next_multiple_of(PAGE_BYTES)
    }

    fn slots_bytes(self) -> usize {
        (self.shape.slots as usize * SLOT_BYTES).next_multiple_of(PAGE_BYTES)
    }

    fn ring_bytes(self) -> usize {
        self.slots_bytes() + (self.shape.bulk_bytes as usize).next_multiple_of(PAGE_BYTES)
    }

    /// Bytes of the whole segment.
    pub fn len(self) -> usize {
        self.rings_offset() + self.ring_bytes() * self.peer_count as usize
    }

    fn peer_offset(self, peer_index: u32) -> usize {
        assert!(peer_index < self.peer_count, "peer {peer_index} of {}", self.peer_count);
        PEERS_OFFSET + PEER_BYTES * peer_index as usize
    }

    /// The owner's doorbell word.
    pub fn doorbell(self, segment: &Arc<Segment>) -> SegmentRef<AtomicU32> {
        segment.shared(DOORBELL_OFFSET)
    }

    /// Where the owner runs, encoded as `endpoint/core_spreading.rs` describes.
    pub fn place(self, segment: &Arc<Segment>) -> SegmentRef<AtomicU64> {
        segment.shared(PLACE_OFFSET)
    }

    /// The claim of the peer with this index.
    pub fn claim(self, segment: &Arc<Segment>, peer_index: u32) -> ChunkClaim<SegmentRef<ClaimWords>> {
        ChunkClaim::over(segment.shared(self.peer_offset(peer_index) + CLAIM_OFFSET))
    }

    /// Reserves the writing end of a ring. Returns `false` if it is taken.
    pub fn take_producer(self, segment: &Arc<Segment>, peer_index: u32) -> bool {
        let taken: SegmentRef<AtomicU32> = segment.shared(self.peer_offset(peer_index) + TAKEN_OFFSET);
        taken.swap(1, Ordering::Relaxed) == 0
    }

    /// The index of `rank` among the peers of this inbox.
    pub fn index_of(self, segment: &Arc<Segment>, rank: Rank) -> Option<u32> {
        (0..self.peer_count).find(|&index| {
            let found: SegmentRef<AtomicU32> = segment.shared(self.peer_offset(index) + RANK_OFFSET);
            found.load(Ordering::Acquire) == rank.0
        })
    }

    /// The ring that the peer with this index writes to.
    pub fn ring(self, segment: &Arc<Segment>, peer_index: u32) -> MappedRing {
        let offset = self.rings_offset() + self.ring_bytes() * peer_index as usize;
        let slots = segment.range(offset, self.ring_bytes());
        MappedRing {
            slots,
            // SAFETY: within the range just checked.
            bulk: unsafe { slots.add(self.slots_bytes()) },
            returned: segment.shared(self.peer_offset(peer_index)),
        }
    }

    /// Faults in the pages of a ring.
    pub fn populate(self, segment: &Segment, peer_index: u32) {
        segment.populate(self.rings_offset() + self.ring_bytes() * peer_index as usize, self.ring_bytes());
    }
}

/// Fills in the header of a fresh segment.
pub(crate) fn write_header(segment: &Arc<Segment>, layout: InboxLayout, peers: &[Rank], nonce: [u64; 2]) {
    for (index, peer) in peers.iter().enumerate() {
        let rank: SegmentRef<AtomicU32> = segment.shared(layout.peer_offset(index as u32) + RANK_OFFSET);
        rank.store(peer.0, Ordering::Release);
    }
    let words: SegmentRef<[AtomicU64; 5]> = segment.shared(0);
    for (word, value) in words.iter().zip(header_words(layout, nonce)) {
        word.store(value, Ordering::Release);
    }
}

/// Checks that an opened segment is the announced inbox.
pub(crate) fn check_header(
    segment: &Arc<Segment>,
    layout: InboxLayout,
    nonce: [u64; 2],
    pid: u32,
) -> Result<(), SegmentError> {
    let words: SegmentRef<[AtomicU64; 5]> = segment.shared(0);
    let fields = ["magic number", "format version", "ring sizes", "nonce", "nonce"];
    for ((word, expected), field) in words.iter().zip(header_words(layout, nonce)).zip(fields) {
        if word.load(Ordering::Acquire) != expected {
            return Err(SegmentError::Mismatch { pid, reason: format!("its {field} differs") });
        }
    }
    Ok(())
}

/// The offset of the nonce in a segment, for the probe of single copies.
pub(crate) const NONCE_OFFSET: usize = 24;

fn header_words(layout: InboxLayout, nonce: [u64; 2]) -> [u64; 5] {
    let shape = layout.shape;
    let sizes =
        (layout.peer_count as u64) << 40 | (shape.slots.trailing_zeros() as u64) << 32 | shape.bulk_bytes as u64;
    [MAGIC, VERSION, sizes, nonce[0], nonce[1]]
}

/// A ring within a mapped segment.
pub(crate) struct MappedRing {
    slots: NonNull<u8>,
    bulk: NonNull<u8>,
    /// The slots and bytes returned. Also keeps the segment mapped.
    returned: SegmentRef<[AtomicU64; 2]>,
}

// SAFETY: the pointers stay valid through `returned`, and the rules of `RingMemory` order all access to them.
unsafe impl Send for MappedRing {}

impl MappedRing {
    #[inline]
    fn slot(&self, slot: usize) -> *mut u8 {
        // SAFETY: the ring passes only slots below `RingShape::slots`, for which `InboxLayout::ring` checked the
        // range.
        unsafe { self.slots.as_ptr().add(slot * SLOT_BYTES) }
    }
}

// SAFETY: `InboxLayout::ring` computes the same addresses on both sides, within the segment, which starts zeroed and
// which `returned` keeps mapped.
unsafe impl RingMemory for MappedRing {
    #[inline]
    fn stamp(&self, slot: usize) -> &AtomicU64 {
        // SAFETY: in range (see `slot`), aligned like the slot, and only ever accessed atomically.
        unsafe { &*self.slot(slot).cast() }
    }

    #[inline]
    fn returned_slots(&self) -> &AtomicU64 {
        &self.returned[0]
    }

    #[inline]
    fn returned_bytes(&self) -> &AtomicU64 {
        &self.returned[1]
    }

    #[inline]
    unsafe fn write_slot(&self, slot: usize, rest: &[u8; REST_BYTES], inline: &[u8]) {
        debug_assert!(8 + REST_BYTES + inline.len() <= SLOT_BYTES);
        // SAFETY: header and inline payload lie within the slot, behind its stamp; by contract nobody else accesses
        // it. Benefit: no slices over memory that another process writes.
        unsafe {
            let at = self.slot(slot).add(8);
            at.copy_from_nonoverlapping(rest.as_ptr(), REST_BYTES);
            at.add(REST_BYTES).copy_from_nonoverlapping(inline.as_ptr(), inline.len());
        }
    }

    #[inline]
    unsafe fn write_bulk(&self, offset: usize, payload: &[u8]) {
        // SAFETY: the ring keeps the range within the bulk part; by contract nobody else accesses it.
        unsafe { crate::copy(payload.as_ptr(), self.bulk.as_ptr().add(offset), payload.len()) };
    }

    #[inline]
    unsafe fn with_slot<R>(
        &self,
        slot: usize,
        inline_len: usize,
        read: impl FnOnce(&[u8; REST_BYTES], &[u8]) -> R,
    ) -> R {
        debug_assert!(8 + REST_BYTES + inline_len <= SLOT_BYTES);
        // SAFETY: within the slot, which by contract is published and not returned, so that a peer that keeps the
        // protocol does not write to it now. A peer that breaks the protocol can change the bytes a sink reads, but
        // it could have sent other bytes in the first place; sinks treat payloads as untrusted bytes.
        unsafe {
            let at = self.slot(slot).add(8);
            read(&*at.cast(), std::slice::from_raw_parts(at.add(REST_BYTES), inline_len))
        }
    }

    #[inline]
    unsafe fn with_bulk<R>(&self, offset: usize, len: usize, read: impl FnOnce(&[u8]) -> R) -> R {
        // SAFETY: as in `with_slot`; the ring has checked `len`, so that the range is within the bulk part.
        read(unsafe { std::slice::from_raw_parts(self.bulk.as_ptr().add(offset), len) })
    }
}
