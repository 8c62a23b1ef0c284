//! Memory for frames, both outgoing and received. Large buffers are reused: the kernel provides memory of that size
//! page by page, and a page fault takes longer than filling the page.

mod segment;

use std::mem::{MaybeUninit, take};
use std::panic::AssertUnwindSafe;
use std::ptr::NonNull;
use std::slice::from_raw_parts_mut;
use std::sync::{Arc, Weak};

use arrow::buffer::{Buffer, MutableBuffer};
use parking_lot::Mutex;

pub use segment::{Extent, SegmentAllocator};

/// Smaller buffers come from memory that the allocator keeps anyway.
const KEPT_BYTES_MIN: usize = 64 << 10;
/// Limit on idle memory that is kept for reuse.
const IDLE_BYTES_MAX: usize = 8 << 20;

/// The buffers of one run.
#[derive(Default)]
pub struct BufferPool(Mutex<IdleBuffers>);

#[derive(Default)]
struct IdleBuffers {
    rooms: Vec<MutableBuffer>,
    bytes: usize,
}

impl BufferPool {
    /// An empty buffer for `len` bytes.
    pub fn buffer(self: &Arc<Self>, len: usize) -> FrameBuffer {
        if len < KEPT_BYTES_MIN {
            return FrameBuffer::new(len);
        }
        // The last one is the most likely to be in the cache. A much larger one would not do: data that stays in it for
        // long would hold on to the rest of it.
        let fits = |room: &MutableBuffer| (len..=2 * len).contains(&room.capacity());
        let mut idle = self.0.lock();
        let found = idle.rooms.iter().rposition(fits).map(|at| idle.rooms.remove(at));
        idle.bytes -= found.as_ref().map_or(0, MutableBuffer::capacity);
        drop(idle);
        // Slightly larger, so that it fits later messages of about the same length.
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

/// Memory for one message, aligned for every type. It returns to the pool when it, or the buffer made from it, is
/// dropped.
pub struct FrameBuffer(BufferMemory);

enum BufferMemory {
    /// Owned by this worker.
    Own(MutableBuffer, Weak<BufferPool>),
    /// Also readable by other workers of the host; the flag says whether all of the frame's receivers read it in place.
    Shared(Extent, bool),
}

impl FrameBuffer {
    /// A buffer that is not reused.
    #[inline]
    pub fn new(len: usize) -> Self {
        FrameBuffer(BufferMemory::Own(MutableBuffer::with_capacity(len), Weak::new()))
    }

    /// A buffer that other workers of the host can read; `by_all`: all of its receivers, and no one else, read it in
    /// place.
    #[inline]
    pub fn shared(place: Extent, by_all: bool) -> Self {
        FrameBuffer(BufferMemory::Shared(place, by_all))
    }

    /// Whether all of its receivers read it in place.
    #[inline]
    pub(crate) fn is_read_in_place(&self) -> bool {
        matches!(self.0, BufferMemory::Shared(_, true))
    }

    /// The whole buffer, to be filled.
    #[inline]
    pub fn spare(&mut self) -> &mut [MaybeUninit<u8>] {
        match &mut self.0 {
            // SAFETY: the buffer has this many bytes there.
            BufferMemory::Own(memory, _) => unsafe {
                from_raw_parts_mut(memory.as_mut_ptr().cast(), memory.capacity())
            },
            BufferMemory::Shared(place, _) => place.spare(),
        }
    }

    /// The first `len` bytes, which have been filled. The memory returns to the pool when nothing refers to them any
    /// more.
    ///
    /// # Safety
    /// The first `len` bytes of [`FrameBuffer::spare`] have been filled.
    pub unsafe fn into_buffer(mut self, len: usize) -> Buffer {
        assert!(len <= self.spare().len(), "{len} bytes in a room for {}", self.spare().len());
        let ptr = match &mut self.0 {
            BufferMemory::Own(memory, rooms) => {
                // SAFETY: by this function's contract.
                unsafe { memory.set_len(len) };
                if rooms.strong_count() == 0 {
                    return Buffer::from(take(memory));
                }
                NonNull::from(memory.as_slice()).cast()
            }
            BufferMemory::Shared(place, _) => place.ptr(),
        };
        // A panic elsewhere does not affect buffers.
        let owner = Arc::new(AssertUnwindSafe(self));
        // SAFETY: the buffer owns the memory, which has `len` bytes at `ptr` until it is dropped and which nothing else
        // refers to.
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

    /// Buffers that were handed out again while still being read would corrupt data; without a bound they would use up
    /// all memory.
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
        assert_eq!(filled(66_000, 5).len(), 66_000, "the length of the new contents, not of the old");
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
