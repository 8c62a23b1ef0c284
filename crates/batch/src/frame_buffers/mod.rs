//! Memory for frames, outgoing and received. Large rooms are reused: the kernel hands out memory of that size page by
//! page, and a page fault takes longer than filling the page.

mod segment;

use std::mem::{MaybeUninit, take};
use std::panic::AssertUnwindSafe;
use std::ptr::NonNull;
use std::slice::from_raw_parts_mut;
use std::sync::{Arc, Weak};

use arrow::buffer::{Buffer, MutableBuffer};
use parking_lot::Mutex;

pub use segment::{Extent, SegmentAllocator};

/// Smaller ones come and go within memory that the allocator keeps.
const KEPT_BYTES_MIN: usize = 64 << 10;
/// What is kept for later use.
const IDLE_BYTES_MAX: usize = 8 << 20;

/// The rooms of one run.
#[derive(Default)]
pub struct BufferPool(Mutex<IdleBuffers>);

#[derive(Default)]
struct IdleBuffers {
    rooms: Vec<MutableBuffer>,
    bytes: usize,
}

impl BufferPool {
    /// An empty room for `len` bytes.
    pub fn buffer(self: &Arc<Self>, len: usize) -> FrameBuffer {
        if len < KEPT_BYTES_MIN {
            return FrameBuffer::new(len);
        }
        // The last is the one that the cache still knows. Not a much larger one: what stays in it for long would keep
        // the rest of it.
        let fits = |room: &MutableBuffer| (len..=2 * len).contains(&room.capacity());
        let mut idle = self.0.lock();
        let found = idle.rooms.iter().rposition(fits).map(|at| idle.rooms.remove(at));
        idle.bytes -= found.as_ref().map_or(0, MutableBuffer::capacity);
        drop(idle);
        // A little larger, so that it serves messages of about the same length.
        let memory = found.unwrap_or_else(|| MutableBuffer::with_capacity(len.next_multiple_of(KEPT_BYTES_MIN)));
        FrameBuffer(BufferMemory::Own(memory, Arc::downgrade(self)))
    }

    fn give_back(&self, mut memory: MutableBuffer) {
        memory.clear();
        let mut idle = self.0.lock();
        if idle.bytes + memory.capacity() <= IDLE_BYTES_MAX {
            idle.bytes += memory.capacity();
            idle.rooms.push(memory);
        }
    }
}

/// Room for one message, aligned for every type. It goes back when it, or what it became, is dropped.
pub struct FrameBuffer(BufferMemory);

enum BufferMemory {
    /// This worker's own.
    Own(MutableBuffer, Weak<BufferPool>),
    /// Others of the host can read it, too; if so told, all that it is for do.
    Shared(Extent, bool),
}

impl FrameBuffer {
    /// One that nobody uses again.
    #[inline]
    pub fn new(len: usize) -> Self {
        FrameBuffer(BufferMemory::Own(MutableBuffer::with_capacity(len), Weak::new()))
    }

    /// One that others of the host can read; `by_all`: and all that it is for do, and nobody else.
    #[inline]
    pub fn shared(place: Extent, by_all: bool) -> Self {
        FrameBuffer(BufferMemory::Shared(place, by_all))
    }

    /// Whether it is read where it is by all that it is for.
    #[inline]
    pub(crate) fn is_read_in_place(&self) -> bool {
        matches!(self.0, BufferMemory::Shared(_, true))
    }

    /// All of it, to be filled.
    #[inline]
    pub fn spare(&mut self) -> &mut [MaybeUninit<u8>] {
        match &mut self.0 {
            // SAFETY: the buffer has so many bytes there.
            BufferMemory::Own(memory, _) => unsafe {
                from_raw_parts_mut(memory.as_mut_ptr().cast(), memory.capacity())
            },
            BufferMemory::Shared(place, _) => place.spare(),
        }
    }

    /// Its first `len` bytes, as they have been filled; the room goes back when nothing refers to them.
    ///
    /// # Safety
    /// The first `len` bytes of [`FrameBuffer::spare`] have been filled.
    pub unsafe fn into_buffer(mut self, len: usize) -> Buffer {
        assert!(len <= self.spare().len(), "{len} bytes in a room for {}", self.spare().len());
        let ptr = match &mut self.0 {
            BufferMemory::Own(memory, rooms) => {
                // SAFETY: as said above.
                unsafe { memory.set_len(len) };
                if rooms.strong_count() == 0 {
                    return Buffer::from(take(memory));
                }
                NonNull::from(memory.as_slice()).cast()
            }
            BufferMemory::Shared(place, _) => place.ptr(),
        };
        // A panic elsewhere leaves rooms as they are.
        let owner = Arc::new(AssertUnwindSafe(self));
        // SAFETY: the buffer owns the room, whose memory has `len` bytes at `ptr` until it is dropped, and which nobody
        // else refers to.
        unsafe { Buffer::from_custom_allocation(ptr, len, owner) }
    }
}

impl Drop for FrameBuffer {
    fn drop(&mut self) {
        if let BufferMemory::Own(memory, rooms) = &mut self.0
            && let Some(rooms) = rooms.upgrade()
        {
            rooms.give_back(take(memory));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rooms that were given away while somebody still reads them would change data; ones that piled up would take all
    /// memory.
    #[test]
    fn rooms_are_used_again_and_bounded() {
        let rooms = Arc::new(BufferPool::default());
        let filled = |len: usize, byte: u8| {
            let mut room = rooms.buffer(len);
            room.spare()[..len].fill(MaybeUninit::new(byte));
            // SAFETY: just filled.
            unsafe { room.into_buffer(len) }
        };
        let first = filled(100_000, 1);
        let (place, slice) = (first.as_ptr(), first.slice_with_length(10, 1000));
        drop(first);
        let second = filled(100_000, 2);
        assert_ne!(second.as_ptr(), place, "a slice of the first is still there");
        assert!(slice.iter().all(|&byte| byte == 1));
        drop(slice);
        assert_ne!(filled(50_000, 3).as_ptr(), place, "too small to be kept");
        assert_eq!(filled(70_000, 4).as_ptr(), place);
        assert_eq!(filled(66_000, 5).len(), 66_000, "as long as what is in it, not as what was");
        let many: Vec<Buffer> = (0..100).map(|_| filled(1 << 20, 6)).collect();
        drop(many);
        {
            let idle = rooms.0.lock();
            assert_eq!(idle.rooms.iter().map(MutableBuffer::capacity).sum::<usize>(), idle.bytes);
            assert!((IDLE_BYTES_MAX / 2..=IDLE_BYTES_MAX).contains(&idle.bytes));
        }
        drop(rooms);
        assert!(second.iter().all(|&byte| byte == 2));
    }
}
