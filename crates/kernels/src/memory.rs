//! Memory for large buffers: aligned, and in huge pages where the kernel has some. A fit touches all of its memory for the
//! first time in its first step, and that takes longer than the step where pages are small.

const CACHE_LINE: usize = 64;
const HUGE_PAGE: usize = 2 << 20;

/// A list of fixed length that begins on a cache line, so that vectors do not straddle two; large ones on a huge page.
#[derive(Debug, Default)]
pub(crate) struct Aligned<T> {
    memory: Vec<T>,
    start: usize,
    len: usize,
}

impl<T: Copy + Default> Aligned<T> {
    /// `len` default values; see [`zeroed`].
    pub(crate) fn zeroed(len: usize) -> Self {
        let bytes = len * size_of::<T>();
        let align = if bytes >= HUGE_PAGE { HUGE_PAGE } else { CACHE_LINE };
        // A huge page must lie within: beyond the end is room for a whole one.
        let spare = if bytes >= HUGE_PAGE { 2 * HUGE_PAGE } else { CACHE_LINE };
        let memory = zeroed::<T>(len + spare / size_of::<T>());
        // The memory of a `Vec` does not move with the `Vec`.
        let past = memory.as_ptr().addr() % align;
        let start = (align - past) % align / size_of::<T>();
        Aligned { memory, start, len }
    }

    #[inline(always)]
    pub(crate) fn as_slice(&self) -> &[T] {
        &self.memory[self.start..self.start + self.len]
    }

    #[inline(always)]
    pub(crate) fn as_mut_slice(&mut self) -> &mut [T] {
        &mut self.memory[self.start..self.start + self.len]
    }
}

/// A list of default values. Where those are zero bits, large memory is not touched yet.
pub(crate) fn zeroed<T: Copy + Default>(len: usize) -> Vec<T> {
    let memory = vec![T::default(); len];
    advise(&memory);
    memory
}

/// An empty list with room for `len`.
pub(crate) fn reserved<T>(len: usize) -> Vec<T> {
    let memory = Vec::with_capacity(len);
    advise(&memory);
    memory
}

/// Asks for huge pages.
fn advise<T>(memory: &Vec<T>) {
    #[cfg(target_os = "linux")]
    {
        let (first, bytes) = (memory.as_ptr().addr(), memory.capacity() * size_of::<T>());
        let (start, end) = (first.next_multiple_of(HUGE_PAGE), (first + bytes) / HUGE_PAGE * HUGE_PAGE);
        if start < end {
            // SAFETY: the range lies within the memory of the list, and the advice changes nothing that can be read there.
            unsafe { libc::madvise(start as *mut libc::c_void, end - start, libc::MADV_HUGEPAGE) };
        }
    }
    #[cfg(not(target_os = "linux"))]
    let _ = memory;
}
