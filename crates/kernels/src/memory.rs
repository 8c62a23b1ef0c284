//! Aligned memory for large buffers. If the program's allocator uses huge pages, as in the Python module, buffers start
//! on one: a fit touches all of its memory for the first time in its first step, and with small pages that takes longer
//! than the step itself.

const CACHE_LINE: usize = 64;
const HUGE_PAGE: usize = 2 << 20;

/// A list of fixed length that starts on a cache line, so that vectors do not straddle two; large ones start on a huge
/// page.
#[derive(Debug, Default)]
pub(crate) struct AlignedBuffer<T> {
    memory: Vec<T>,
    start: usize,
    len: usize,
}

impl<T: Copy + Default> AlignedBuffer<T> {
    /// `len` default values. If those are zero bits, large memory is not touched yet.
    pub(crate) fn zeroed(len: usize) -> Self {
        let bytes = len * size_of::<T>();
        let align = if bytes >= HUGE_PAGE { HUGE_PAGE } else { CACHE_LINE };
        // There must be room for a whole huge page, even beyond the end.
        let spare = if bytes >= HUGE_PAGE { 2 * HUGE_PAGE } else { CACHE_LINE };
        let memory = vec![T::default(); len + spare / size_of::<T>()];
        // The memory of a `Vec` does not move with the `Vec`.
        let past = memory.as_ptr().addr() % align;
        let start = (align - past) % align / size_of::<T>();
        AlignedBuffer { memory, start, len }
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
