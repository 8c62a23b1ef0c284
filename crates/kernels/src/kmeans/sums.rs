//! Sums and weights of clusters, updated by changes: a row that moves is subtracted from one cluster and added to
//! another.

use super::rows::PointRows;
use crate::simd::FloatElement;

/// No cluster yet.
pub(crate) const NONE: u32 = u32::MAX;

/// Sums of the shifted rows of each cluster, in `f64`.
#[derive(Clone, Debug)]
pub(crate) struct ClusterSums {
    d: usize,
    /// `k x d`.
    pub(crate) sums: Vec<f64>,
    /// `k`.
    pub(crate) weights: Vec<f64>,
    /// Rows with a weight. Without any, the sums consist only of rounding errors.
    counts: Vec<i64>,
    /// Rows that changed their cluster.
    pub(crate) changed: u64,
}

impl ClusterSums {
    pub(crate) fn new(k: usize, d: usize) -> Self {
        ClusterSums { d, sums: apart(k * d, 0.0), weights: apart(k, 0.0), counts: apart(k, 0), changed: 0 }
    }

    pub(crate) fn clear(&mut self) {
        self.sums.fill(0.0);
        self.weights.fill(0.0);
        self.counts.fill(0);
        self.changed = 0;
    }

    /// Adds `weight` times row `i` to cluster `to`; a negative weight removes the row.
    #[inline(always)]
    pub(crate) fn add<T: FloatElement>(&mut self, rows: &PointRows<'_, T>, i: usize, weight: f64, to: u32) {
        let to = to as usize;
        let sums = &mut self.sums[to * self.d..(to + 1) * self.d];
        for ((sum, &x), &shift) in sums.iter_mut().zip(rows.raw(i)).zip(rows.shift()) {
            *sum += weight * x.minus(shift).to_f64();
        }
        self.weights[to] += weight;
        self.counts[to] += sign(weight);
    }

    /// Moves row `i`.
    #[inline(always)]
    pub(crate) fn relocate<T: FloatElement>(&mut self, rows: &PointRows<'_, T>, i: usize, from: u32, to: u32) {
        let weight = rows.weight(i);
        self.changed += 1;
        self.add(rows, i, weight, to);
        if from != NONE {
            self.add(rows, i, -weight, from);
        }
    }

    /// Moves a point given by its shifted coordinates.
    #[inline(always)]
    pub(crate) fn relocate_point<const D: usize>(&mut self, point: [f64; D], weight: f64, from: u32, to: u32) {
        self.changed += 1;
        self.add_sum(point.map(|x| weight * x), weight, sign(weight), to);
        if from != NONE {
            self.add_sum(point.map(|x| -weight * x), -weight, -sign(weight), from);
        }
    }

    /// Adds a precomputed sum of points with a total `weight`, `count` of which have a weight.
    #[inline(always)]
    pub(crate) fn add_sum<const D: usize>(&mut self, sum: [f64; D], weight: f64, count: i64, to: u32) {
        let to = to as usize;
        let sums: &mut [f64; D] = (&mut self.sums[to * D..(to + 1) * D]).try_into().expect("D features");
        for (total, x) in sums.iter_mut().zip(sum) {
            *total += x;
        }
        self.weights[to] += weight;
        self.counts[to] += count;
    }

    /// Sets the sums of clusters without rows to exactly zero: rounding may have left a remainder.
    pub(crate) fn sweep(&mut self) {
        for (j, _) in self.counts.iter().enumerate().filter(|(_, count)| **count == 0) {
            self.sums[j * self.d..(j + 1) * self.d].fill(0.0);
            self.weights[j] = 0.0;
        }
    }

    /// Adds all of `other`.
    pub(crate) fn merge(&mut self, other: &ClusterSums) {
        for (sum, x) in self.sums.iter_mut().zip(&other.sums) {
            *sum += x;
        }
        for (weight, x) in self.weights.iter_mut().zip(&other.weights) {
            *weight += x;
        }
        for (count, x) in self.counts.iter_mut().zip(&other.counts) {
            *count += x;
        }
        self.changed += other.changed;
    }
}

/// `len` times `value`, followed by unused memory, so that lists of different threads never share a cache line.
pub(crate) fn apart<T: Clone>(len: usize, value: T) -> Vec<T> {
    let mut list = Vec::with_capacity(len + 128usize.div_ceil(size_of::<T>()));
    list.resize(len, value);
    list
}

/// 1, 0 or -1.
fn sign(weight: f64) -> i64 {
    i64::from(weight > 0.0) - i64::from(weight < 0.0)
}
