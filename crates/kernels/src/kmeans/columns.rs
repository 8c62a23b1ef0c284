//! Lloyd's step for few features, every row against every center: rows are stored as columns of `f32`, so that a step
//! only streams.
//!
//! As in the tile, `v = |c|^2 / 2 - x.c` orders the centers. Columns are `f32` whatever the type of the rows. If the
//! two smallest `v` of a row are too close for the rounding, the original row is compared again in `f64`: labels are
//! those of exact arithmetic. So are the sums, which also read the original rows.

use super::exact;
use super::rows::PointRows;
use super::sums::{ClusterSums, apart};
use crate::memory::AlignedBuffer;
use crate::pool::{Pool, share};
use crate::simd::{FloatElement, Isa, Kernel, Simd, WIDE, dispatch, prefetch};
use std::ops::Range;

/// The maximum number of features that it is compiled for: with more, the tile's transposition costs little compared
/// with its arithmetic.
pub(crate) const FEATURES_MAX: usize = 4;

/// Elements after the last point that a vector load may touch.
const PADDING: usize = super::rows::PANEL_MAX;

/// Rows of any number of features up to [`FEATURES_MAX`].
pub(crate) struct ColumnFit<T>(Box<dyn AnyColumns<T>>);

trait AnyColumns<T>: Send + Sync {
    fn step(
        &mut self,
        pool: &Pool,
        isa: Isa,
        rows: PointRows<'_, T>,
        centres: &[f64],
        total: &mut ClusterSums,
        renew: bool,
    ) -> u64;
    fn labels(&self, pool: &Pool, out: &mut [i32]);
}

impl<T: FloatElement> ColumnFit<T> {
    pub(crate) fn new(pool: &Pool, rows: PointRows<'_, T>, k: usize) -> Self {
        ColumnFit(match rows.d() {
            1 => Box::new(ColumnParts::<1>::new(pool, rows, k)),
            2 => Box::new(ColumnParts::<2>::new(pool, rows, k)),
            3 => Box::new(ColumnParts::<3>::new(pool, rows, k)),
            4 => Box::new(ColumnParts::<4>::new(pool, rows, k)),
            d => panic!("columns take at most {FEATURES_MAX} features, not {d}"),
        })
    }

    /// Assigns every row to its nearest center. Updates `total` for the rows that change; with `renew`, computes it
    /// afresh. Returns how many rows `f32` could not decide.
    pub(crate) fn step(
        &mut self,
        pool: &Pool,
        isa: Isa,
        rows: PointRows<'_, T>,
        centres: &[f64],
        total: &mut ClusterSums,
        renew: bool,
    ) -> u64 {
        self.0.step(pool, isa, rows, centres, total, renew)
    }

    /// The label of each row, after a step.
    pub(crate) fn labels(&self, pool: &Pool, out: &mut [i32]) {
        self.0.labels(pool, out);
    }
}

/// The data of all threads.
struct ColumnParts<const D: usize> {
    parts: Vec<ColumnPart<D>>,
}

/// The data of one thread. Aligned, because threads write to their own parts all the time.
#[repr(align(128))]
struct ColumnPart<const D: usize> {
    range: Range<usize>,
    /// Whether a step has filled the columns and labels.
    labelled: bool,
    /// Length of a column: the number of rows plus [`PADDING`].
    stride: usize,
    /// Column after column.
    points: AlignedBuffer<f32>,
    /// Center numbers as elements, for vector comparisons.
    labels: AlignedBuffer<f32>,
    /// The gain of each cluster in this step.
    gains: Vec<ClusterGain<D>>,
    changed: u64,
    unsure: u64,
    block: Box<BlockSearch>,
    /// Points of the block that may change their label.
    pending: Vec<usize>,
}

/// The gain of a cluster, stored together because a row adds to all of it.
#[derive(Clone, Copy)]
struct ClusterGain<const D: usize> {
    sum: [f64; D],
    weight: f64,
    /// Rows with a weight; not maintained if all weights are 1.
    count: i64,
}

impl<const D: usize> ClusterGain<D> {
    const NONE: Self = ClusterGain { sum: [0.0; D], weight: 0.0, count: 0 };
}

/// Points to search before handling the results: the search has no branches to wait for, and the memory of rows that
/// move is fetched meanwhile.
const BLOCK: usize = 1024;
const _: () = assert!(BLOCK.is_multiple_of(PADDING) && 64usize.is_multiple_of(PADDING));

/// The search results for a block of points.
#[repr(align(64))]
struct BlockSearch {
    found: [f32; BLOCK],
    numbers: [u32; BLOCK],
    /// One bit for each point whose label differs or is unsure, and one for each that is unsure.
    open: [u64; BLOCK / 64],
    unsure: [u64; BLOCK / 64],
}

impl<const D: usize> ColumnParts<D> {
    fn new<T: FloatElement>(pool: &Pool, rows: PointRows<'_, T>, k: usize) -> Self {
        assert!((k as u64) < f32::INTEGER_MAX, "labels travel as f32");
        let parts: Vec<ColumnPart<D>> = (0..pool.threads())
            .map(|thread| ColumnPart {
                range: share(rows.n(), PADDING, thread, pool.threads()),
                labelled: false,
                stride: 0,
                points: AlignedBuffer::default(),
                labels: AlignedBuffer::default(),
                gains: apart(k, ClusterGain::NONE),
                changed: 0,
                unsure: 0,
                block: Box::new(BlockSearch {
                    found: [0.0; BLOCK],
                    numbers: [0; BLOCK],
                    open: [0; BLOCK / 64],
                    unsure: [0; BLOCK / 64],
                }),
                pending: Vec::new(),
            })
            .collect();
        ColumnParts { parts }
    }
}

impl<T: FloatElement, const D: usize> AnyColumns<T> for ColumnParts<D> {
    fn step(
        &mut self,
        pool: &Pool,
        isa: Isa,
        rows: PointRows<'_, T>,
        centres: &[f64],
        total: &mut ClusterSums,
        renew: bool,
    ) -> u64 {
        let near = SingleCentre::<D>::all(centres);
        pool.each(&mut self.parts, |_, part| {
            dispatch(isa, ColumnStep { part, rows, centres: &near, exact: centres, renew })
        });
        if renew {
            total.clear();
        }
        for part in &self.parts {
            for (j, gain) in part.gains.iter().enumerate() {
                let count = if rows.is_weighted() { gain.count } else { gain.weight as i64 };
                total.add_sum(gain.sum, gain.weight, count, j as u32);
            }
        }
        total.changed = self.parts.iter().map(|part| part.changed).sum();
        self.parts.iter().map(|part| part.unsure).sum()
    }

    fn labels(&self, pool: &Pool, mut out: &mut [i32]) {
        let mut parts = Vec::new();
        for part in &self.parts {
            let (mine, rest) = out.split_at_mut(part.range.len());
            out = rest;
            parts.push((part, mine));
        }
        pool.each(&mut parts, |_, (part, out)| {
            for (out, &label) in out.iter_mut().zip(part.labels.as_slice()) {
                // SAFETY: a label is the number of a center. Benefit: a range check would take longer than the rest.
                *out = unsafe { label.to_int_unchecked() };
            }
        });
    }
}

/// A center in `f32`.
#[derive(Clone, Copy)]
struct SingleCentre<const D: usize> {
    x: [f32; D],
    /// `|c|^2 / 2`.
    half: f32,
    number: f32,
}

impl<const D: usize> SingleCentre<D> {
    fn all(centres: &[f64]) -> Vec<Self> {
        let (centres, _) = centres.as_chunks::<D>();
        let rounded = |(j, centre): (usize, &[f64; D])| {
            let squared: f64 = centre.iter().map(|x| x * x).sum();
            SingleCentre { x: centre.map(|x| x as f32), half: (squared / 2.0) as f32, number: j as f32 }
        };
        centres.iter().enumerate().map(rounded).collect()
    }
}

struct ColumnStep<'a, T, const D: usize> {
    part: &'a mut ColumnPart<D>,
    rows: PointRows<'a, T>,
    centres: &'a [SingleCentre<D>],
    exact: &'a [f64],
    renew: bool,
}

impl<T: FloatElement, const D: usize> Kernel<f32> for ColumnStep<'_, T, D> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd<Elem = f32>>(mut self, s: S) {
        let n = self.part.range.len();
        self.part.gains.fill(ClusterGain::NONE);
        (self.part.changed, self.part.unsure) = (0, 0);
        if !self.part.labelled {
            self.part.stride = n + PADDING;
            self.part.labels = AlignedBuffer::zeroed(self.part.stride);
            self.part.points = AlignedBuffer::zeroed(self.part.stride * D);
        }
        for first in (0..n).step_by(BLOCK) {
            let count = BLOCK.min(n - first);
            if self.part.labelled {
                self.search(s, first, count);
                self.settle(first, count);
            } else {
                self.load(first, count);
                self.search(s, first, count);
                self.settle_first(first, count);
            }
        }
        self.part.labelled = true;
        if self.renew {
            self.part.gains.fill(ClusterGain::NONE);
            let ColumnPart { range, labels, gains, .. } = &mut *self.part;
            let mut gains = GainRows::new(self.rows, gains);
            for (i, &label) in range.clone().zip(labels.as_slice()) {
                gains.add(i, label as u32, 1.0);
            }
        }
    }
}

impl<T: FloatElement, const D: usize> ColumnStep<'_, T, D> {
    /// Converts a block of rows to columns.
    #[inline(always)]
    fn load(&mut self, first: usize, count: usize) {
        let start = self.part.range.start + first;
        let shift: [T; D] = self.rows.shift().try_into().expect("D features");
        let (raw, _) = self.rows.block(start..start + count).as_chunks::<D>();
        for (f, column) in self.part.points.as_mut_slice().chunks_exact_mut(self.part.stride).enumerate() {
            for (out, x) in column[first..].iter_mut().zip(raw) {
                *out = x[f].minus(shift[f]).to_f64() as f32;
            }
        }
    }

    /// Finds the nearest center of each point of a block.
    #[inline(always)]
    fn search<S: Simd<Elem = f32>>(&mut self, s: S, first: usize, count: usize) {
        let infinity = s.splat(f32::INFINITY);
        let margin = RoundingMargin::new(s, D);
        let ColumnPart { stride, points: columns, labels, block, .. } = &mut *self.part;
        block.open.fill(0);
        block.unsure.fill(0);
        for at in (0..count).step_by(WIDE * S::LANES) {
            let (mut best, mut second, mut index) = ([infinity; WIDE], [infinity; WIDE], [infinity; WIDE]);
            let mut points = [[infinity; WIDE]; D];
            for (f, point) in points.iter_mut().enumerate() {
                for (w, point) in point.iter_mut().enumerate() {
                    let at = f * *stride + first + at + w * S::LANES;
                    // SAFETY: a column has `PADDING >= WIDE * LANES` elements after its points. Benefit: no bounds
                    // checks where the step spends its time.
                    *point = unsafe { s.load(columns.as_slice().as_ptr().add(at)) };
                }
            }
            for centre in self.centres {
                let number = s.splat(centre.number);
                for w in 0..WIDE {
                    let mut v = s.splat(centre.half);
                    for (point, &c) in points.iter().zip(&centre.x) {
                        v = s.neg_mul_add(point[w], s.splat(c), v);
                    }
                    s.keep_nearest(v, number, &mut best[w], &mut second[w], &mut index[w]);
                }
            }
            for w in 0..WIDE {
                let at = at + w * S::LANES;
                let margin = margin.of(s, points.map(|point| point[w]), best[w], second[w]);
                // SAFETY: as above; and `found` has room for whole vectors, as `BLOCK` is a multiple of `PADDING`.
                let label = unsafe {
                    s.store(block.found.as_mut_ptr().add(at), index[w]);
                    s.load(labels.as_slice().as_ptr().add(first + at))
                };
                // Also true for NaN, from values that are too large for f32.
                let unsure = !s.bits(s.lt(margin, s.sub(second[w], best[w])));
                let differ = s.bits(s.lt(label, index[w])) | s.bits(s.lt(index[w], label));
                let lanes = u64::MAX >> (64 - S::LANES);
                block.open[at / 64] |= (u64::from(unsure | differ) & lanes) << (at % 64);
                block.unsure[at / 64] |= (u64::from(unsure) & lanes) << (at % 64);
            }
        }
        // Clears bits beyond the last point.
        if !count.is_multiple_of(64) {
            block.open[count / 64] &= (1 << (count % 64)) - 1;
        }
    }

    /// Labels points that have no label yet.
    #[inline(always)]
    fn settle_first(&mut self, first: usize, count: usize) {
        self.decide(first, count);
        let ColumnPart { range, block, labels, gains, changed, .. } = &mut *self.part;
        labels.as_mut_slice()[first..first + count].copy_from_slice(&block.found[..count]);
        for (number, &found) in block.numbers.iter_mut().zip(&block.found) {
            *number = found as i32 as u32;
        }
        let mut gains = GainRows::new(self.rows, gains);
        for (i, &number) in (range.start + first..).zip(&block.numbers[..count]) {
            gains.add(i, number, 1.0);
        }
        *changed += count as u64;
    }

    /// Moves the points whose label differs.
    #[inline(always)]
    fn settle(&mut self, first: usize, count: usize) {
        let ColumnPart { block, pending, range, .. } = &mut *self.part;
        pending.clear();
        for (word, &bits) in block.open[..count.div_ceil(64)].iter().enumerate() {
            let mut bits = bits;
            while bits != 0 {
                let at = word * 64 + bits.trailing_zeros() as usize;
                bits &= bits - 1;
                prefetch(self.rows.raw(range.start + first + at).as_ptr());
                pending.push(at);
            }
        }
        self.decide(first, count);
        let ColumnPart { range, block, labels, gains, changed, pending, .. } = &mut *self.part;
        let mut gains = GainRows::new(self.rows, gains);
        let labels = &mut labels.as_mut_slice()[first..first + count];
        for &at in pending.iter() {
            let (label, old) = (block.found[at], labels[at]);
            if label != old {
                gains.add(range.start + first + at, label as u32, 1.0);
                gains.add(range.start + first + at, old as u32, -1.0);
                labels[at] = label;
                *changed += 1;
            }
        }
    }

    /// Determines the labels of the block's unsure points exactly.
    #[inline(always)]
    fn decide(&mut self, first: usize, count: usize) {
        let ColumnPart { range, block, unsure, .. } = &mut *self.part;
        for word in 0..count.div_ceil(64) {
            // Beyond the last point all bits are unsure and none is open.
            let mut bits = block.unsure[word] & block.open[word];
            while bits != 0 {
                let at = word * 64 + bits.trailing_zeros() as usize;
                bits &= bits - 1;
                *unsure += 1;
                block.found[at] = exact::nearest(&self.rows, range.start + first + at, self.exact).0 as f32;
            }
        }
    }
}

/// Rows in the form in which clusters gain them.
struct GainRows<'a, T, const D: usize> {
    rows: PointRows<'a, T>,
    shift: [T; D],
    clusters: &'a mut [ClusterGain<D>],
}

impl<'a, T: FloatElement, const D: usize> GainRows<'a, T, D> {
    #[inline(always)]
    fn new(rows: PointRows<'a, T>, clusters: &'a mut [ClusterGain<D>]) -> Self {
        GainRows { rows, shift: rows.shift().try_into().expect("D features"), clusters }
    }

    /// Adds row `i` to a cluster, or removes it, depending on the sign.
    #[inline(always)]
    fn add(&mut self, i: usize, label: u32, sign: f64) {
        let row: &[T; D] = self.rows.raw(i).try_into().expect("D features");
        let gain = &mut self.clusters[label as usize];
        let mut weight = sign;
        if self.rows.is_weighted() {
            let own = self.rows.weight(i);
            weight *= own;
            gain.count += if own > 0.0 { sign as i64 } else { 0 };
        }
        for (f, sum) in gain.sum.iter_mut().enumerate() {
            *sum += weight * row[f].minus(self.shift[f]).to_f64();
        }
        gain.weight += weight;
    }
}

/// A bound on the rounding error in the difference of a point's two smallest `v`: `12 |x|^2 + 5 |v|` for each, times
/// `(d + 8) u`; see `exact` for the derivation. There is one more rounding than in the tile, that of the point.
struct RoundingMargin<S: Simd> {
    per_squared_norm: S::V,
    per_v: S::V,
    tiny: S::V,
}

impl<S: Simd<Elem = f32>> RoundingMargin<S> {
    #[inline(always)]
    fn new(s: S, d: usize) -> Self {
        // Both together, plus a little for the rounding of the margin itself.
        let relative = (d as f32 + 8.0) * f32::EPSILON * 1.001;
        let tiny = (2 * d + 8) as f32 * f32::MIN_POSITIVE;
        RoundingMargin {
            per_squared_norm: s.splat(12.0 * relative),
            per_v: s.splat(5.0 * relative),
            tiny: s.splat(tiny),
        }
    }

    #[inline(always)]
    fn of<const D: usize>(&self, s: S, point: [S::V; D], best: S::V, second: S::V) -> S::V {
        let zero = s.splat(0.0);
        let squared = point.into_iter().fold(zero, |squared, x| s.mul_add(x, x, squared));
        // The larger of the two: the second is not below the best.
        let v = s.max(second, s.sub(zero, best));
        s.mul_add(squared, self.per_squared_norm, s.mul_add(v, self.per_v, self.tiny))
    }
}
