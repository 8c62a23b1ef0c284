//! The rows of one worker, and a panel of them laid out for the distance tile.
//!
//! Kernels never see `x`, only `x - shift`, rounded to the element type. With the mean as shift, squared norms are as
//! small as the spread of the data, so `|c|^2 / 2 - x.c` does not cancel when the data are far from the origin.

use crate::memory::AlignedBuffer;
use crate::simd::{FloatElement, Simd, WIDE, prefetch};

/// Rows of one worker: `n x d`, row after row.
#[derive(Clone, Copy, Debug)]
pub struct PointRows<'a, T> {
    x: &'a [T],
    shift: &'a [T],
    weights: Option<&'a [f64]>,
}

impl<'a, T: FloatElement> PointRows<'a, T> {
    /// Rows of `shift.len()` features each, from which `shift` is subtracted. `weights` has one number per row; `None`
    /// means that all are 1.
    ///
    /// # Panics
    /// If the lengths do not match, or if there are no features.
    #[must_use]
    pub fn new(x: &'a [T], shift: &'a [T], weights: Option<&'a [f64]>) -> Self {
        assert!(!shift.is_empty(), "rows need at least one feature");
        assert_eq!(x.len() % shift.len(), 0, "the rows must be complete");
        assert!(weights.is_none_or(|weights| weights.len() == x.len() / shift.len()), "one weight for each row");
        PointRows { x, shift, weights }
    }

    /// Number of rows.
    #[must_use]
    pub fn n(&self) -> usize {
        self.x.len() / self.d()
    }

    /// Number of features.
    #[must_use]
    pub fn d(&self) -> usize {
        self.shift.len()
    }

    /// The vector subtracted from every row.
    #[must_use]
    pub fn shift(&self) -> &'a [T] {
        self.shift
    }

    /// Row `i` as given, not shifted.
    #[inline(always)]
    pub(crate) fn raw(&self, i: usize) -> &'a [T] {
        &self.x[i * self.d()..(i + 1) * self.d()]
    }

    /// A range of rows as given, contiguous.
    #[inline(always)]
    pub(crate) fn block(&self, range: std::ops::Range<usize>) -> &'a [T] {
        &self.x[range.start * self.d()..range.end * self.d()]
    }

    /// Prefetches part `part` of `parts` of the rows `row(0)` to `row(count - 1)`.
    #[inline(always)]
    pub(crate) fn prefetch(&self, count: usize, row: impl Fn(usize) -> usize, part: usize, parts: usize) {
        let line = 64 / size_of::<T>();
        for lane in count * part / parts..count * (part + 1) / parts {
            let raw = self.raw(row(lane));
            for f in (0..raw.len()).step_by(line) {
                prefetch(&raw[f]);
            }
            prefetch(&raw[raw.len() - 1]);
        }
    }

    /// The weight of row `i`.
    #[inline(always)]
    pub(crate) fn weight(&self, i: usize) -> f64 {
        self.weights.map_or(1.0, |weights| weights[i])
    }

    /// Whether rows have weights.
    pub(crate) fn is_weighted(&self) -> bool {
        self.weights.is_some()
    }
}

/// The maximum number of points in a panel over all instruction sets: 16 lanes.
pub(crate) const PANEL_MAX: usize = WIDE * 16;

/// `WIDE * LANES` shifted rows, transposed: feature `f` of all points, then feature `f + 1`.
#[derive(Debug)]
pub(crate) struct PointPanel<T> {
    pub(crate) values: AlignedBuffer<T>,
    /// Squared norm of each shifted point, in the arithmetic of `T`.
    pub(crate) norms: [f64; PANEL_MAX],
}

impl<T: FloatElement> PointPanel<T> {
    pub(crate) fn new(d: usize) -> Self {
        PointPanel { values: AlignedBuffer::zeroed(d * PANEL_MAX), norms: [0.0; PANEL_MAX] }
    }

    /// Fills the panel with `count` rows, `row(0)` to `row(count - 1)`; the remaining lanes repeat the last.
    #[inline(always)]
    pub(crate) fn fill<S: Simd<Elem = T>>(
        &mut self,
        s: S,
        rows: &PointRows<'_, T>,
        count: usize,
        row: impl Fn(usize) -> usize,
    ) {
        let (d, points) = (rows.d(), WIDE * S::LANES);
        assert!(count > 0 && count <= points, "a panel holds 1 to {points} rows, not {count}");
        let mut pointers = [std::ptr::null(); PANEL_MAX];
        for (lane, pointer) in pointers[..points].iter_mut().enumerate() {
            *pointer = rows.raw(row(lane.min(count - 1))).as_ptr();
        }
        let values = self.values.as_mut_slice();
        assert!(values.len() >= d * points, "the panel was made for fewer features");
        let whole = d / S::BLOCK * S::BLOCK;
        // SAFETY: each pointer begins a row of `d` readable features, and only features below `d` are read; `values`
        // has room for `points` lanes of `d` features. Benefit: no bounds checks in a loop that runs for every row.
        unsafe {
            let out = values.as_mut_ptr();
            for f in (0..whole).step_by(S::BLOCK) {
                let mut at = pointers;
                for pointer in &mut at[..points] {
                    *pointer = pointer.add(f);
                }
                for w in 0..WIDE {
                    s.transpose(&at[w * S::LANES..(w + 1) * S::LANES], out.add(f * points + w * S::LANES), points);
                }
            }
            for f in whole..d {
                for (lane, pointer) in pointers[..points].iter().enumerate() {
                    *out.add(f * points + lane) = *pointer.add(f);
                }
            }
            let mut norms = [s.splat(T::default()); WIDE];
            for (f, &shift) in rows.shift.iter().enumerate() {
                let shift = s.splat(shift);
                for (w, norm) in norms.iter_mut().enumerate() {
                    let at = out.add(f * points + w * S::LANES);
                    let v = s.sub(s.load(at), shift);
                    s.store(at, v);
                    *norm = s.mul_add(v, v, *norm);
                }
            }
            let mut plain = [T::default(); PANEL_MAX];
            for (w, &norm) in norms.iter().enumerate() {
                s.store(plain.as_mut_ptr().add(w * S::LANES), norm);
            }
            for (norm, value) in self.norms[..points].iter_mut().zip(plain) {
                *norm = value.to_f64();
            }
        }
    }
}
