//! Slices that the threads of a run write together, and work that is divided among them in chunks.

use std::marker::PhantomData;
use std::ops::Range;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use tidemill_kernels::pool::Pool;

/// A slice in which each thread writes its own elements.
///
/// Invariant, to be kept by callers of the unsafe methods: between two barriers of the threads, an element that one of
/// them writes is not read or written by any other.
pub(crate) struct SharedSlice<'a, T> {
    start: *mut T,
    len: usize,
    life: PhantomData<&'a mut [T]>,
}

// SAFETY: the slice is mutably borrowed as long as this lives, and callers separate threads (see the invariant).
unsafe impl<T: Send> Sync for SharedSlice<'_, T> {}

impl<'a, T> SharedSlice<'a, T> {
    pub(crate) fn new(slice: &'a mut [T]) -> Self {
        SharedSlice { start: slice.as_mut_ptr(), len: slice.len(), life: PhantomData }
    }

    /// Writes `value` at index `at`.
    ///
    /// # Safety
    /// `at` must be inside the slice; see the invariant.
    #[inline(always)]
    pub(crate) unsafe fn set(&self, at: usize, value: T) {
        debug_assert!(at < self.len);
        // SAFETY: by this function's contract.
        unsafe { *self.start.add(at) = value };
    }

    /// The elements of `range`.
    ///
    /// # Safety
    /// The range must be inside the slice; see the invariant.
    #[allow(clippy::mut_from_ref)]
    #[inline(always)]
    pub(crate) unsafe fn range(&self, range: Range<usize>) -> &mut [T] {
        debug_assert!(range.start <= range.end && range.end <= self.len);
        // SAFETY: by this function's contract.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(range.start), range.len()) }
    }
}

/// Distributes `0..n` to threads in chunks, so that a slow thread gets less.
pub(crate) struct Chunks {
    next: AtomicUsize,
    n: usize,
    grain: usize,
}

impl Chunks {
    pub(crate) fn new(n: usize, grain: usize) -> Self {
        Chunks { next: AtomicUsize::new(0), n, grain: grain.max(1) }
    }

    /// The next chunk, with its number.
    pub(crate) fn next(&self) -> Option<(usize, Range<usize>)> {
        let start = self.next.fetch_add(self.grain, Ordering::Relaxed);
        (start < self.n).then(|| (start / self.grain, start..(start + self.grain).min(self.n)))
    }
}

/// Runs `function` for every chunk of `0..n`, on all threads.
pub(crate) fn for_chunks<F: Fn(usize, Range<usize>) + Sync>(pool: &Pool, n: usize, grain: usize, function: F) {
    if n <= grain {
        if n > 0 {
            function(0, 0..n);
        }
        return;
    }
    let chunks = Chunks::new(n, grain);
    pool.run(|_| {
        while let Some((chunk, range)) = chunks.next() {
            function(chunk, range);
        }
    });
}

/// Sets `out[i]` to `function(i)`, on all threads.
pub(crate) fn fill_with<T: Send, F: Fn(usize) -> T + Sync>(pool: &Pool, out: &mut [T], function: F) {
    let n = out.len();
    let out = SharedSlice::new(out);
    for_chunks(pool, n, 1 << 14, |_, range| {
        for i in range {
            // SAFETY: chunks do not overlap.
            unsafe { out.set(i, function(i)) };
        }
    });
}

/// The sum of the values at `places`, in an order that depends only on their number. Four partial sums hide the latency
/// of additions.
///
/// # Safety
/// All places must be inside the slice. Benefit: this is the head of most inner loops, and checks slow it down by a
/// third.
#[inline(always)]
pub(crate) unsafe fn gather_sum(values: &[f64], places: &[u32]) -> f64 {
    /// Sums of short rows overlap with each other, and one loop is cheaper than two.
    const SHORT: usize = 256;
    if places.len() < SHORT {
        // SAFETY: by this function's contract.
        return places.iter().fold(0.0, |sum, &place| sum + unsafe { *values.get_unchecked(place as usize) });
    }
    let mut sums = [0.0; 4];
    let (fours, rest) = places.as_chunks::<4>();
    for four in fours {
        for lane in 0..4 {
            // SAFETY: by this function's contract.
            sums[lane] += unsafe { *values.get_unchecked(four[lane] as usize) };
        }
    }
    for (sum, &place) in sums.iter_mut().zip(rest) {
        // SAFETY: as above.
        *sum += unsafe { *values.get_unchecked(place as usize) };
    }
    (sums[0] + sums[1]) + (sums[2] + sums[3])
}

/// The same memory as atomics.
pub(crate) fn atomics(values: &mut [u32]) -> &[AtomicU32] {
    // SAFETY: an `AtomicU32` has the size and alignment of a `u32` here (checked below), and the borrow is exclusive.
    unsafe { std::slice::from_raw_parts(values.as_mut_ptr().cast(), values.len()) }
}

/// The bits of floats as atomics.
pub(crate) fn float_atomics(values: &mut [f64]) -> &[AtomicU64] {
    // SAFETY: as in `atomics`.
    unsafe { std::slice::from_raw_parts(values.as_mut_ptr().cast(), values.len()) }
}

const _: () = assert!(align_of::<AtomicU32>() == align_of::<u32>() && align_of::<AtomicU64>() == align_of::<f64>());
