//! Operations on centers outside of a fit: labels of new rows, all distances, inertia, and the farthest rows.

use super::TileWidth;
use super::exact::{self, RoundingBounds, squared_distance};
use super::rows::{PointPanel, PointRows};
use super::tile::{NearestCentres, TiledCentres, search};
use crate::pool::{Pool, share};
use crate::simd::{FloatElement, Isa, Kernel, Simd, WIDE, dispatch};

/// Calls `found(row, label)` for every row of `range`, in order, with its nearest center.
pub(super) struct LabelSweep<'a, T, F> {
    pub(super) rows: PointRows<'a, T>,
    pub(super) range: std::ops::Range<usize>,
    pub(super) centres: &'a TiledCentres<T>,
    pub(super) found: F,
}

impl<T: FloatElement, F: FnMut(usize, u32)> Kernel<T> for LabelSweep<'_, T, F> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd<Elem = T>>(mut self, s: S) {
        let rounding = RoundingBounds::new::<T>(self.rows.d(), self.centres.norm_max);
        let mut panel = PointPanel::new(self.rows.d());
        let mut nearest = NearestCentres::new();
        let points = WIDE * S::LANES;
        for first in self.range.clone().step_by(points) {
            let count = points.min(self.range.end - first);
            panel.fill(s, &self.rows, count, |lane| first + lane);
            let (rows, next) = (&self.rows, first + count);
            let ahead = points.min(self.range.end - next);
            search(s, &panel, self.centres, &mut nearest, |part, parts| {
                rows.prefetch(ahead, |lane| next + lane, part, parts);
            });
            for lane in 0..count {
                let norm = (panel.norms[lane] * (1.0 + rounding.relative)).sqrt();
                let (best, second) = (nearest.best[lane].to_f64(), nearest.second[lane].to_f64());
                let certain = second - best > rounding.of(norm, best) + rounding.of(norm, second);
                let label = if certain {
                    nearest.index[lane].to_f64() as u32
                } else {
                    exact::nearest(&self.rows, first + lane, &self.centres.exact).0 as u32
                };
                (self.found)(first + lane, label);
            }
        }
    }
}

/// Lays out centers for an instruction set.
pub(super) fn lay_out<T: FloatElement>(isa: Isa, centres: &[f64], d: usize) -> TiledCentres<T> {
    TiledCentres::new(centres, d, dispatch::<T, _>(isa, TileWidth))
}

/// Splits `slice`, `per` elements for each of `n` rows, into each thread's share.
pub(super) fn split<'a, V>(mut slice: &'a mut [V], n: usize, per: usize, pool: &Pool) -> Vec<(usize, &'a mut [V])> {
    let mut parts = Vec::new();
    for thread in 0..pool.threads() {
        let range = share(n, 256, thread, pool.threads());
        let (mine, rest) = slice.split_at_mut(range.len() * per);
        slice = rest;
        parts.push((range.start, mine));
    }
    parts
}

/// The nearest of `centres` (`k x d`, less the shift) for each row; ties go to the first.
///
/// # Panics
/// If a shape does not fit.
pub fn assign<T: FloatElement>(pool: &Pool, isa: Isa, rows: PointRows<'_, T>, centres: &[f64], labels: &mut [i32]) {
    assert_eq!(labels.len(), rows.n(), "one label for each row");
    let centres = lay_out(isa, centres, rows.d());
    let mut parts = split(labels, rows.n(), 1, pool);
    pool.each(&mut parts, |_, (first, part)| {
        let (first, range) = (*first, *first..*first + part.len());
        let found = |i: usize, label: u32| part[i - first] = label as i32;
        dispatch(isa, LabelSweep { rows, range, centres: &centres, found });
    });
}

/// The sum over the rows of weight times squared distance to the center of their label.
///
/// # Panics
/// If a shape does not fit or a label names no center.
#[must_use]
pub fn inertia<T: FloatElement>(pool: &Pool, isa: Isa, rows: PointRows<'_, T>, centres: &[f64], labels: &[i32]) -> f64 {
    assert_eq!(labels.len(), rows.n(), "one label for each row");
    let mut sums = vec![0.0; pool.threads()];
    pool.each(&mut sums, |worker, sum| {
        let range = worker.share(rows.n(), 256);
        *sum = dispatch(isa, InertiaKernel { rows, range, centres, labels });
    });
    sums.iter().sum()
}

struct InertiaKernel<'a, T> {
    rows: PointRows<'a, T>,
    range: std::ops::Range<usize>,
    centres: &'a [f64],
    labels: &'a [i32],
}

impl<T: FloatElement> Kernel<T> for InertiaKernel<'_, T> {
    type Output = f64;

    #[inline(always)]
    fn run<S: Simd<Elem = T>>(self, _: S) -> f64 {
        self.range.map(|i| self.rows.weight(i) * own_distance(&self.rows, i, self.centres, self.labels)).sum()
    }
}

#[inline(always)]
fn own_distance<T: FloatElement>(rows: &PointRows<'_, T>, i: usize, centres: &[f64], labels: &[i32]) -> f64 {
    let (d, label) = (rows.d(), labels[i] as usize);
    squared_distance(rows.raw(i), rows.shift(), &centres[label * d..(label + 1) * d])
}

/// The `count` rows farthest from the center of their label, farthest first, with ties in row order. Omits rows without
/// weight or at distance 0. Each entry is a squared distance and a row.
///
/// # Panics
/// If a shape does not fit or a label names no center.
#[must_use]
pub fn farthest<T: FloatElement>(
    rows: PointRows<'_, T>,
    centres: &[f64],
    labels: &[i32],
    count: usize,
) -> Vec<(f64, usize)> {
    assert_eq!(labels.len(), rows.n(), "one label for each row");
    let mut far: Vec<(f64, usize)> = (0..rows.n())
        .filter(|&i| rows.weight(i) > 0.0)
        .map(|i| (own_distance(&rows, i, centres, labels), i))
        .filter(|&(distance, _)| distance > 0.0)
        .collect();
    let order = |a: &(f64, usize), b: &(f64, usize)| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1));
    if count == 0 || far.is_empty() {
        return Vec::new();
    }
    if far.len() > count {
        far.select_nth_unstable_by(count - 1, order);
        far.truncate(count);
    }
    far.sort_unstable_by(order);
    far
}

/// The distance of each row from each center, `n x k`.
///
/// # Panics
/// If a shape does not fit.
pub fn transform<T: FloatElement>(pool: &Pool, isa: Isa, rows: PointRows<'_, T>, centres: &[f64], distances: &mut [T]) {
    let k = centres.len() / rows.d();
    assert_eq!(distances.len(), rows.n() * k, "one distance for each row and centre");
    let mut parts = split(distances, rows.n(), k, pool);
    pool.each(&mut parts, |_, (first, part)| dispatch(isa, DistanceKernel { rows, first: *first, centres, part }));
}

struct DistanceKernel<'a, T> {
    rows: PointRows<'a, T>,
    first: usize,
    centres: &'a [f64],
    part: &'a mut [T],
}

impl<T: FloatElement> Kernel<T> for DistanceKernel<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd<Elem = T>>(self, _: S) {
        let (d, shift) = (self.rows.d(), self.rows.shift());
        let k = self.centres.len() / d;
        for (i, out) in self.part.chunks_exact_mut(k).enumerate() {
            let raw = self.rows.raw(self.first + i);
            for (out, centre) in out.iter_mut().zip(self.centres.chunks_exact(d)) {
                *out = T::from_f64(squared_distance(raw, shift, centre).sqrt());
            }
        }
    }
}
