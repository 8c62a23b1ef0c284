//! The pass over all distances in a SMACOF iteration: Guttman's transform and the stress, reading each cell once.
//!
//! For a row point `z`, it sums `w r (z - z_j)` over the columns, where `r = delta / |z - z_j|`, or 0 for coinciding
//! points, and `w (|z - z_j| - delta)^2`. The former is the row of `B(Z) Z` (de Leeuw, 1977).

use super::cells::DistanceBlock;
use super::decode::TileBuffer;
use super::{GROUP, PaddedPoints, padded, split};
use crate::memory::AlignedBuffer;
use crate::pool::Pool;
use crate::simd::{Isa, Kernel, Simd, dispatch};
use std::ops::Range;

/// Added to squared distances, so that coinciding points need no branch: far below the resolution of `f32` in units of
/// the largest.
const TINY: f32 = 1e-30;

/// Columns whose coefficients are computed before they are used, with more than four coordinates.
pub(super) const STRIP: usize = 256;

/// The inputs of a pass.
#[derive(Clone, Copy, Debug)]
pub struct GuttmanPass<'a> {
    /// The positions of the row points, `rows x k`.
    pub rows: &'a [f64],
    /// The positions of the column points, `n x k`.
    pub columns: &'a [f64],
    /// Coordinates per point.
    pub k: usize,
    /// One weight per column; `None` for the weights stored with the distances.
    pub weights: Option<&'a [f64]>,
    /// Subtracted from every distance, down to 0 at most: the temperature of annealing.
    pub shift: f64,
}

/// Writes the sums of each row, first `k` sums and then the stress: `rows x (k + 1)`.
///
/// # Panics
/// If a shape does not match, or if weights are neither given nor stored with the distances.
pub fn guttman(pool: &Pool, isa: Isa, distances: &DistanceBlock, pass: GuttmanPass<'_>, out: &mut [f64]) {
    let GuttmanPass { rows, columns, k, weights, shift } = pass;
    assert!(k > 0 && rows.len() == distances.rows * k && columns.len() == distances.n * k, "positions must be n x k");
    assert_eq!(out.len(), distances.rows * (k + 1), "k sums and a stress for each row");
    assert!(weights.is_none_or(|weights| weights.len() == distances.n), "one weight for each column");
    assert!(weights.is_some() || distances.is_weighted(), "weights of columns or of distances");
    let points = PaddedPoints::new(columns, k, distances.stride);
    let weights = weights.map(|weights| padded(weights, distances.stride));
    let pass = PassInputs { distances, rows, points: &points, weights: weights.as_ref(), shift: shift as f32 };
    pool.each(&mut split(out, distances.rows, k + 1, pool), |_, (first, part)| {
        part.fill(0.0);
        let (first, out) = (*first, &mut **part);
        match k {
            1 => dispatch(isa, FusedPass::<1> { pass, first, out }),
            2 => dispatch(isa, FusedPass::<2> { pass, first, out }),
            3 => dispatch(isa, FusedPass::<3> { pass, first, out }),
            4 => dispatch(isa, FusedPass::<4> { pass, first, out }),
            _ => dispatch(isa, StripPass { pass, first, out }),
        }
    });
}

/// The inputs of all threads.
#[derive(Clone, Copy)]
struct PassInputs<'a> {
    distances: &'a DistanceBlock,
    rows: &'a [f64],
    points: &'a PaddedPoints,
    weights: Option<&'a AlignedBuffer<f32>>,
    shift: f32,
}

impl<'a> PassInputs<'a> {
    /// The weights of a tile, and the step from row to row.
    #[inline(always)]
    fn weights<'b>(&self, rows: Range<usize>, columns: Range<usize>, buffer: &'b mut TileBuffer) -> (&'b [f32], usize)
    where
        'a: 'b,
    {
        match self.weights {
            Some(of_columns) => (&of_columns.as_slice()[columns], 0),
            None => self.distances.decode_weights(rows, columns, buffer),
        }
    }
}

/// One thread's rows, with all coordinates in registers.
struct FusedPass<'a, const K: usize> {
    pass: PassInputs<'a>,
    first: usize,
    out: &'a mut [f64],
}

impl<const K: usize> Kernel<f32> for FusedPass<'_, K> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd<Elem = f32>>(self, s: S) {
        let FusedPass { pass, first, out } = self;
        let distances = pass.distances;
        let (tile, mut buffer, mut weight_buffer) = (distances.tile(), distances.buffer(), distances.weight_buffer());
        let count = out.len() / (K + 1);
        for begin in (0..count).step_by(tile.rows) {
            let rows = tile.rows.min(count - begin);
            for column in (0..distances.stride).step_by(tile.columns) {
                let end = distances.stride.min(column + tile.columns);
                let seen = first + begin..first + begin + rows;
                let (weights, weight_step) = pass.weights(seen.clone(), column..end, &mut weight_buffer);
                let (cells, step) = distances.decode(s, seen, column..end, &mut buffer);
                let mut r = 0;
                while r < rows {
                    let i = first + begin + r;
                    let at = &mut out[(begin + r) * (K + 1)..];
                    let cells = (&cells[r * step..], step);
                    let weights = (&weights[r * weight_step..], weight_step);
                    if r + GROUP <= rows {
                        sweep::<S, K, GROUP>(s, &pass, i, column..end, cells, weights, at);
                        r += GROUP;
                    } else {
                        sweep::<S, K, 1>(s, &pass, i, column..end, cells, weights, at);
                        r += 1;
                    }
                }
            }
        }
    }
}

/// Adds the sums of `R` rows, from row `i` on, over some columns; cells and weights have the given step from row to
/// row. The sum of a row does not depend on `R`.
#[inline(always)]
fn sweep<S: Simd<Elem = f32>, const K: usize, const R: usize>(
    s: S,
    pass: &PassInputs<'_>,
    i: usize,
    columns: Range<usize>,
    (cells, step): (&[f32], usize),
    (weights, weight_step): (&[f32], usize),
    out: &mut [f64],
) {
    let width = columns.len();
    assert!(cells.len() >= (R - 1) * step + width && width.is_multiple_of(S::LANES), "cells of whole vectors");
    let z: [[S::V; K]; R] =
        std::array::from_fn(|r| std::array::from_fn(|c| s.splat(pass.rows[(i + r) * K + c] as f32)));
    let x: [&[f32]; K] = std::array::from_fn(|c| pass.points.coordinate(c, columns.start));
    let w: [&[f32]; R] = std::array::from_fn(|r| &weights[r * weight_step..]);
    assert!(x.iter().chain(&w).all(|values| values.len() >= width), "positions and weights of whole rows");
    let (zero, tiny, shift) = (s.splat(0.0), s.splat(TINY), s.splat(pass.shift));
    let mut sums = [[zero; K]; R];
    let mut stress = [zero; R];
    for j in (0..width).step_by(S::LANES) {
        // SAFETY: `j + LANES` is at most `width`, and everything loaded has that many elements, as asserted above.
        let xj: [S::V; K] = std::array::from_fn(|c| unsafe { s.load(x[c].as_ptr().add(j)) });
        for r in 0..R {
            // SAFETY: as above; rows of cells are `step` apart.
            let (cell, weight) = unsafe { (s.load(cells.as_ptr().add(r * step + j)), s.load(w[r].as_ptr().add(j))) };
            let delta = s.max(s.sub(cell, shift), zero);
            let way: [S::V; K] = std::array::from_fn(|c| s.sub(z[r][c], xj[c]));
            let square = way.iter().fold(tiny, |sum, &way| s.mul_add(way, way, sum));
            let inverse = s.rsqrt(square);
            let error = s.neg_mul_add(square, inverse, delta);
            stress[r] = s.mul_add(s.mul(weight, error), error, stress[r]);
            let coefficient = s.mul(s.mul(weight, delta), inverse);
            for c in 0..K {
                sums[r][c] = s.mul_add(coefficient, way[c], sums[r][c]);
            }
        }
    }
    for r in 0..R {
        for c in 0..K {
            out[r * (K + 1) + c] += total(s, sums[r][c]);
        }
        out[r * (K + 1) + K] += total(s, stress[r]);
    }
}

/// The sum of a vector's lanes.
#[inline(always)]
pub(super) fn total<S: Simd<Elem = f32>>(s: S, v: S::V) -> f64 {
    let mut lanes = [0.0f32; 16];
    // SAFETY: no set has more than 16 lanes of `f32`.
    unsafe { s.store(lanes.as_mut_ptr(), v) };
    lanes[..S::LANES].iter().map(|&lane| f64::from(lane)).sum()
}

/// One thread's rows, for any number of coordinates: first the coefficients of a strip of columns, then one coordinate
/// after the other.
struct StripPass<'a> {
    pass: PassInputs<'a>,
    first: usize,
    out: &'a mut [f64],
}

impl Kernel<f32> for StripPass<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd<Elem = f32>>(self, s: S) {
        let StripPass { pass, first, out } = self;
        let (distances, k) = (pass.distances, pass.points.k);
        let (tile, mut buffer, mut weight_buffer) = (distances.tile(), distances.buffer(), distances.weight_buffer());
        let mut coefficients = [0.0f32; STRIP];
        let count = out.len() / (k + 1);
        for begin in (0..count).step_by(tile.rows) {
            let rows = tile.rows.min(count - begin);
            for column in (0..distances.stride).step_by(tile.columns) {
                let end = distances.stride.min(column + tile.columns);
                let seen = first + begin..first + begin + rows;
                let (weights, weight_step) = pass.weights(seen.clone(), column..end, &mut weight_buffer);
                let (cells, step) = distances.decode(s, seen, column..end, &mut buffer);
                for r in 0..rows {
                    let i = first + begin + r;
                    let out = &mut out[(begin + r) * (k + 1)..(begin + r + 1) * (k + 1)];
                    for at in (column..end).step_by(STRIP) {
                        let width = STRIP.min(end - at);
                        let cells = &cells[r * step + at - column..][..width];
                        let weights = &weights[r * weight_step + at - column..][..width];
                        let coefficients = &mut coefficients[..width];
                        out[k] += strip(s, &pass, i, at, cells, weights, coefficients);
                        add(s, pass.points, &pass.rows[i * k..(i + 1) * k], at, coefficients, out);
                    }
                }
            }
        }
    }
}

/// Writes `w r` of some columns, and returns their stress.
#[inline(always)]
fn strip<S: Simd<Elem = f32>>(
    s: S,
    pass: &PassInputs<'_>,
    i: usize,
    at: usize,
    cells: &[f32],
    weights: &[f32],
    coefficients: &mut [f32],
) -> f64 {
    let k = pass.points.k;
    let width = cells.len();
    assert!(weights.len() == width && coefficients.len() == width && width.is_multiple_of(S::LANES));
    let (zero, shift) = (s.splat(0.0), s.splat(pass.shift));
    let mut stress = zero;
    for j in (0..width).step_by(S::LANES) {
        let mut square = s.splat(TINY);
        for c in 0..k {
            let x = &pass.points.coordinate(c, at)[j..j + S::LANES];
            // SAFETY: the slice has a vector's elements.
            let way = s.sub(s.splat(pass.rows[i * k + c] as f32), unsafe { s.load(x.as_ptr()) });
            square = s.mul_add(way, way, square);
        }
        // SAFETY: `j + LANES` is at most `width`, the length of both.
        let (cell, weight) = unsafe { (s.load(cells.as_ptr().add(j)), s.load(weights.as_ptr().add(j))) };
        let delta = s.max(s.sub(cell, shift), zero);
        let inverse = s.rsqrt(square);
        let error = s.neg_mul_add(square, inverse, delta);
        stress = s.mul_add(s.mul(weight, error), error, stress);
        // SAFETY: as above.
        unsafe { s.store(coefficients.as_mut_ptr().add(j), s.mul(s.mul(weight, delta), inverse)) };
    }
    total(s, stress)
}

/// Adds `coefficient (z - x)` for the columns from `at` on, coordinate by coordinate.
#[inline(always)]
pub(super) fn add<S: Simd<Elem = f32>>(
    s: S,
    points: &PaddedPoints,
    z: &[f64],
    at: usize,
    coefficients: &[f32],
    out: &mut [f64],
) {
    for (c, (&z, out)) in z.iter().zip(out.iter_mut()).enumerate() {
        let x = &points.coordinate(c, at)[..coefficients.len()];
        let (z, mut sum) = (s.splat(z as f32), s.splat(0.0));
        for j in (0..coefficients.len()).step_by(S::LANES) {
            // SAFETY: both have the same number of elements, a multiple of `LANES`.
            let (x, coefficient) = unsafe { (s.load(x.as_ptr().add(j)), s.load(coefficients.as_ptr().add(j))) };
            sum = s.mul_add(coefficient, s.sub(z, x), sum);
        }
        *out += total(s, sum);
    }
}
