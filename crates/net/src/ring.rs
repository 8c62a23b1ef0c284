//! A single-producer, single-consumer ring of frames in memory that two workers share.
//!
//! ```text
//!            one pair of cache lines per slot                bulk bytes, in cache lines
//!  slot: | stamp: len u32, turn u32 | header[8..32] | inline payload, <= 96 bytes |      | payload | payload | ... |
//! ```
//!
//! A frame takes one slot. A payload over [`INLINE_BYTES`] lies contiguously in the bulk part, so that it is handed
//! out as one slice. The stamp is written last (release), and the consumer polls it: a message of up to 32 bytes
//! costs one cache line, and neither side reads the other's index. The header's `len` is not stored separately; the
//! stamp holds it.
//!
//! Invariants:
//! - a slot's first eight bytes only ever hold stamps, so stale data cannot look like a new frame: slot `i` is full
//!   when its turn is the consumer's lap number and empty when it is one less; any other turn is corruption;
//! - both sides compute where a bulk payload lies by the same rule ([`place`]) from the lengths alone;
//! - the consumer returns space lazily, a quarter of a part at a time, in one line that the producer reads only when
//!   it seems to have run out. A frame is at most a quarter of the bulk part, so a drained ring always has room for
//!   one.
//!
//! Neither side trusts what the other writes: turns, lengths and returned counts are checked, and a bad one is
//! [`RingCorruption`]. Model-checked in `tests/loom.rs`.

use crate::frame::{FrameHeader, HEADER_BYTES};
use crate::sync::{AtomicU64, Ordering};

/// Bytes of a slot: two cache lines. Slots of one line were 15 ns slower at 8 bytes and 20 ns at 64, because
/// processors fetch lines in pairs: the consumer pulled in the producer's next slot along with the one it polls
/// (bench `local`).
pub(crate) const SLOT_BYTES: usize = 128;
/// Bulk payloads start on this boundary, so that the two sides never write to the same cache line.
const LINE_BYTES: u64 = 64;
/// Header bytes stored in a slot: all but `len`.
pub(crate) const REST_BYTES: usize = HEADER_BYTES - size_of::<u64>();
/// Largest payload that lies in the slot itself.
pub(crate) const INLINE_BYTES: usize = SLOT_BYTES - HEADER_BYTES;

/// The sizes of the two parts of a ring, both powers of two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RingShape {
    /// At most this many frames are in flight; at least 4.
    pub slots: u32,
    /// At most this many bytes of payload are in flight; at least 256.
    pub bulk_bytes: u32,
}

impl RingShape {
    /// Largest payload of one frame.
    pub fn frame_bytes_max(self) -> usize {
        self.bulk_bytes as usize / 4
    }

    /// Whether a ring of this shape keeps the invariants above.
    pub fn is_valid(self) -> bool {
        self.slots.is_power_of_two()
            && self.slots >= 4
            && self.slots <= 1 << 20
            && self.bulk_bytes.is_power_of_two()
            && self.bulk_bytes >= 256
            && self.bulk_bytes <= 1 << 30
    }
}

/// The memory of one ring. It has two implementations: shared mappings (`local/layout.rs`), and loom's cells in the
/// tests.
///
/// # Safety
/// Every method must refer to the same memory on both sides, valid for as long as `self` lives. The words of `stamp`,
/// `returned_slots` and `returned_bytes` start as zero. The ring passes only slots below `RingShape::slots` and bulk
/// ranges within `RingShape::bulk_bytes`.
pub(crate) unsafe trait RingMemory {
    /// The word that publishes a slot.
    fn stamp(&self, slot: usize) -> &AtomicU64;
    /// How many slots the consumer has returned since the start.
    fn returned_slots(&self) -> &AtomicU64;
    /// The position in the bulk part up to which the consumer has returned space, counted since the start.
    fn returned_bytes(&self) -> &AtomicU64;

    /// Fills a slot, except for its stamp.
    ///
    /// # Safety
    /// The caller is the producer, and the consumer has returned the slot.
    unsafe fn write_slot(&self, slot: usize, rest: &[u8; REST_BYTES], inline: &[u8]);

    /// Fills bulk bytes.
    ///
    /// # Safety
    /// As [`RingMemory::write_slot`], for the range.
    unsafe fn write_bulk(&self, offset: usize, payload: &[u8]);

    /// Reads a published slot, except for its stamp, with `inline_len` bytes of inline payload.
    ///
    /// # Safety
    /// The caller is the consumer, has seen the slot's stamp (acquire), and has not returned the slot yet.
    unsafe fn with_slot<R>(
        &self,
        slot: usize,
        inline_len: usize,
        read: impl FnOnce(&[u8; REST_BYTES], &[u8]) -> R,
    ) -> R;

    /// Reads bulk bytes.
    ///
    /// # Safety
    /// As [`RingMemory::with_slot`], for the range of the slot's payload.
    unsafe fn with_bulk<R>(&self, offset: usize, len: usize, read: impl FnOnce(&[u8]) -> R) -> R;
}

/// The other side wrote something that a ring of this format cannot hold. The ring is unusable from here on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum RingCorruption {
    /// A slot is neither empty nor full.
    #[error("a ring slot has turn {found}, but {expected} or the one before was expected")]
    Turn {
        /// What the slot holds.
        found: u32,
        /// The turn for the consumer's current lap.
        expected: u32,
    },
    /// A frame is longer than the ring allows.
    #[error("a frame claims {len} payload bytes, but at most {max} are possible")]
    Length {
        /// What the stamp says.
        len: usize,
        /// The ring's limit.
        max: usize,
    },
    /// The consumer returned space that it never had.
    #[error("the consumer of a ring returned space that it was never given")]
    Returned,
}

/// Where a payload of `len` bytes goes when `next` bulk bytes, counted since the start, have been used: at `next`, or
/// at the start of the next lap if it would not fit contiguously. Returns (start, end), with `end` rounded up to
/// whole cache lines.
#[inline]
fn place(next: u64, len: usize, bulk_bytes: u32) -> (u64, u64) {
    let len = (len as u64).next_multiple_of(LINE_BYTES);
    let left_in_lap = bulk_bytes as u64 - (next & (bulk_bytes as u64 - 1));
    let start = if len > left_in_lap { next + left_in_lap } else { next };
    (start, start + len)
}

/// The turn that marks slot number `count` (counted since the start) as full: 1 in the first lap.
#[inline]
fn turn(count: u64, shape: RingShape) -> u32 {
    ((count >> shape.slots.trailing_zeros()) as u32).wrapping_add(1)
}

/// The writing side. One per ring.
pub(crate) struct RingProducer<M> {
    memory: M,
    shape: RingShape,
    /// Slots used since the start.
    used_slots: u64,
    /// Bulk position since the start.
    used_bytes: u64,
    /// What the consumer had returned when the producer last looked.
    returned_slots: u64,
    returned_bytes: u64,
}

impl<M: RingMemory> RingProducer<M> {
    /// # Safety
    /// `memory` is a ring of `shape`, fresh, and has no other producer, now or ever.
    pub unsafe fn new(memory: M, shape: RingShape) -> Self {
        assert!(shape.is_valid(), "ring shape out of range: {shape:?}");
        Self { memory, shape, used_slots: 0, used_bytes: 0, returned_slots: 0, returned_bytes: 0 }
    }

    /// Hands over a whole frame, or returns `false` if there is currently no room.
    ///
    /// # Panics
    /// If `payload` is longer than [`RingShape::frame_bytes_max`] or than `header.len` says.
    #[inline]
    pub fn push(&mut self, header: &FrameHeader, payload: &[u8]) -> Result<bool, RingCorruption> {
        assert!(payload.len() <= self.shape.frame_bytes_max(), "frame of {} bytes exceeds the limit", payload.len());
        assert!(payload.len() as u64 == header.len, "payload and header.len differ");
        if self.used_slots - self.returned_slots == self.shape.slots as u64 {
            self.refresh()?;
            if self.used_slots - self.returned_slots == self.shape.slots as u64 {
                return Ok(false);
            }
        }
        let slot = self.used_slots as usize & (self.shape.slots as usize - 1);
        let inline = if payload.len() <= INLINE_BYTES {
            payload
        } else {
            let (start, end) = place(self.used_bytes, payload.len(), self.shape.bulk_bytes);
            if end - self.returned_bytes > self.shape.bulk_bytes as u64 {
                self.refresh()?;
                if end - self.returned_bytes > self.shape.bulk_bytes as u64 {
                    return Ok(false);
                }
            }
            let offset = start as usize & (self.shape.bulk_bytes as usize - 1);
            // SAFETY: `self` is the only producer; `place` keeps the range contiguous, and the check above ensures
            // that the consumer returned everything up to one lap before `end`.
            unsafe { self.memory.write_bulk(offset, payload) };
            self.used_bytes = end;
            &[]
        };
        let rest: &[u8; REST_BYTES] = header.as_bytes().last_chunk().expect("a header is longer than its rest");
        // SAFETY: `self` is the only producer, and fewer than `slots` slots are in use, so this one was returned.
        unsafe { self.memory.write_slot(slot, rest, inline) };
        let stamp = (turn(self.used_slots, self.shape) as u64) << 32 | payload.len() as u64;
        self.memory.stamp(slot).store(stamp, Ordering::Release);
        self.used_slots += 1;
        Ok(true)
    }

    /// Reads how much the consumer returned. Acquire: its reads of that space happened before we write there again.
    #[cold]
    fn refresh(&mut self) -> Result<(), RingCorruption> {
        let slots = self.memory.returned_slots().load(Ordering::Acquire);
        let bytes = self.memory.returned_bytes().load(Ordering::Acquire);
        // Counts only grow, and never exceed what was used.
        if !(self.returned_slots..=self.used_slots).contains(&slots)
            || !(self.returned_bytes..=self.used_bytes).contains(&bytes)
        {
            return Err(RingCorruption::Returned);
        }
        (self.returned_slots, self.returned_bytes) = (slots, bytes);
        Ok(())
    }
}

/// What [`RingConsumer::pop`] did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PopResult {
    /// The ring is empty.
    Nothing,
    /// A frame was handed out.
    Frame,
    /// A frame was handed out, and space was returned: the producer may be asleep, waiting for it.
    FrameAndSpace,
}

/// The reading side. One per ring.
pub(crate) struct RingConsumer<M> {
    memory: M,
    shape: RingShape,
    /// Slots read since the start.
    read_slots: u64,
    /// Bulk position since the start.
    read_bytes: u64,
    /// What the producer last learned.
    returned_slots: u64,
    returned_bytes: u64,
}

impl<M: RingMemory> RingConsumer<M> {
    /// # Safety
    /// `memory` is a ring of `shape`, fresh, and has no other consumer, now or ever.
    pub unsafe fn new(memory: M, shape: RingShape) -> Self {
        assert!(shape.is_valid(), "ring shape out of range: {shape:?}");
        Self { memory, shape, read_slots: 0, read_bytes: 0, returned_slots: 0, returned_bytes: 0 }
    }

    /// Hands the oldest frame to `take`, with its payload still in the ring's memory, and frees it afterwards.
    #[inline]
    pub fn pop(&mut self, take: impl FnOnce(&FrameHeader, &[u8])) -> Result<PopResult, RingCorruption> {
        let slot = self.read_slots as usize & (self.shape.slots as usize - 1);
        let stamp = self.memory.stamp(slot).load(Ordering::Acquire);
        let (found, expected) = ((stamp >> 32) as u32, turn(self.read_slots, self.shape));
        if found != expected {
            return if found == expected.wrapping_sub(1) {
                Ok(PopResult::Nothing)
            } else {
                Err(RingCorruption::Turn { found, expected })
            };
        }
        let (len, max) = (stamp as u32 as usize, self.shape.frame_bytes_max());
        if len > max {
            return Err(RingCorruption::Length { len, max });
        }
        let header = |rest: &[u8; REST_BYTES]| {
            let mut bytes = [0; HEADER_BYTES];
            bytes[..8].copy_from_slice(&(len as u64).to_le_bytes());
            bytes[8..].copy_from_slice(rest);
            FrameHeader::from_bytes(&bytes)
        };
        if len <= INLINE_BYTES {
            // SAFETY: `self` is the only consumer, it has just loaded the slot's stamp with acquire, and it returns
            // the slot only after the slices are gone.
            unsafe { self.memory.with_slot(slot, len, |rest, inline| take(&header(rest), inline)) };
        } else {
            // SAFETY: as above.
            let header = unsafe { self.memory.with_slot(slot, 0, |rest, _| header(rest)) };
            let (start, end) = place(self.read_bytes, len, self.shape.bulk_bytes);
            let offset = start as usize & (self.shape.bulk_bytes as usize - 1);
            // SAFETY: as above; and `len` is within the limit, so `place` yields a range within the bulk part.
            unsafe { self.memory.with_bulk(offset, len, |payload| take(&header, payload)) };
            self.read_bytes = end;
        }
        self.read_slots += 1;
        Ok(if self.give_back() { PopResult::FrameAndSpace } else { PopResult::Frame })
    }

    /// Returns read space to the producer, a quarter of a part at a time. Release: our reads of it come before.
    #[inline]
    fn give_back(&mut self) -> bool {
        let slots_due = self.read_slots - self.returned_slots >= self.shape.slots as u64 / 4;
        let bytes_due = self.read_bytes - self.returned_bytes >= self.shape.bulk_bytes as u64 / 4;
        if slots_due {
            self.memory.returned_slots().store(self.read_slots, Ordering::Release);
            self.returned_slots = self.read_slots;
        }
        if bytes_due {
            self.memory.returned_bytes().store(self.read_bytes, Ordering::Release);
            self.returned_bytes = self.read_bytes;
        }
        slots_due || bytes_due
    }
}
