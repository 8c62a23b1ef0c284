//! Multidimensional scaling: SMACOF's operations on the distances from one worker's points to all points.
//!
//! | module        | contents                                                                               |
//! |---------------|----------------------------------------------------------------------------------------|
//! | [`DistanceBlock`] | stored distances and weights: f32, f16, fixed point, or vectors from which distances are computed |
//! | [`inspect`]   | problems with distances or weights, and their maximum                                  |
//! | [`guttman`]   | a row of B(Z) times Z, and the row's stress: the pass of a SMACOF iteration            |
//! | [`laplacian`] | rows of a weighted graph's Laplacian times vectors: conjugate gradients, classical scaling |
//! | [`SymmetryCheck`]  | cells that differ from those across the diagonal                                       |
//!
//! Distances are in units in which none exceeds 1, and so are positions: nothing overflows or cancels in `f32` that did
//! not do so in the user's units. Sums are `f32` within a few thousand cells and `f64` beyond. A row's sums depend only
//! on the row and the positions, not on the thread or worker: results are bitwise equal for any number of either.

mod cells;
mod check;
mod decode;
mod guttman;
mod laplacian;

pub use cells::{CellStorage, DistanceBlock};
pub use check::{BlockDiagonal, BlockInspection, CellError, CellPlane, SymmetryCheck, inspect};
pub use guttman::{GuttmanPass, guttman};
pub use laplacian::{LaplacianCoefficients, laplacian};

use crate::memory::AlignedBuffer;
use crate::pool::{Pool, share};

/// Rows are padded to a multiple of the widest vector, with distance and weight 0.
const PADDING: usize = 16;

/// Rows that the widest loops process together.
const GROUP: usize = 4;

/// Points coordinate by coordinate, in `f32`, padded with zeros.
struct PaddedPoints {
    values: AlignedBuffer<f32>,
    stride: usize,
    k: usize,
}

impl PaddedPoints {
    /// From `n x k`, in rows.
    fn new(points: &[f64], k: usize, stride: usize) -> Self {
        let mut values = AlignedBuffer::zeroed(k * stride);
        for (j, point) in points.chunks_exact(k).enumerate() {
            for (c, &x) in point.iter().enumerate() {
                values.as_mut_slice()[c * stride + j] = x as f32;
            }
        }
        PaddedPoints { values, stride, k }
    }

    /// Coordinate `c` of the points from `at` on.
    #[inline(always)]
    fn coordinate(&self, c: usize, at: usize) -> &[f32] {
        &self.values.as_slice()[c * self.stride + at..(c + 1) * self.stride]
    }
}

/// One number per column, padded with zeros.
fn padded(values: &[f64], stride: usize) -> AlignedBuffer<f32> {
    let mut out = AlignedBuffer::zeroed(stride);
    for (out, &value) in out.as_mut_slice().iter_mut().zip(values) {
        *out = value as f32;
    }
    out
}

/// Splits `out`, with `per` numbers for each of `rows` rows, into the threads' shares, each with the number of its
/// first row.
fn split<'a, T>(mut out: &'a mut [T], rows: usize, per: usize, pool: &Pool) -> Vec<(usize, &'a mut [T])> {
    let mut parts = Vec::new();
    for thread in 0..pool.threads() {
        let range = share(rows, GROUP, thread, pool.threads());
        let (mine, rest) = out.split_at_mut(range.len() * per);
        out = rest;
        parts.push((range.start, mine));
    }
    parts
}

#[cfg(test)]
mod tests;
