//! Rows of the Laplacian of a weighted graph times vectors, `sum of c_ij (p_i - p_j)`, with the weights or the squared
//! distances of classical scaling as coefficients.

use super::cells::DistanceBlock;
use super::guttman::{STRIP, add, total};
use super::{PaddedPoints, split};
use crate::pool::Pool;
use crate::simd::{Isa, Kernel, Simd, dispatch};
use std::str::FromStr;

/// The coefficient of a pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LaplacianCoefficients {
    /// The weight.
    Weights,
    /// The squared distance.
    Squares,
    /// 1 if the weight of two different points is 0.
    Missing,
}

impl FromStr for LaplacianCoefficients {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        match name {
            "weights" => Ok(LaplacianCoefficients::Weights),
            "squares" => Ok(LaplacianCoefficients::Squares),
            "missing" => Ok(LaplacianCoefficients::Missing),
            _ => Err(format!("unknown coefficients {name:?}: use \"weights\", \"squares\" or \"missing\"")),
        }
    }
}

/// Writes, for each row, the `k` sums of `c_ij (p_i - p_j)` over the columns, and then the sum of `c_ij`:
/// `rows x (k + 1)`. `points` are `n x k`.
///
/// # Panics
/// If a shape does not match, if rows are not among the columns, or if required weights are missing.
pub fn laplacian(
    pool: &Pool,
    isa: Isa,
    distances: &DistanceBlock,
    coefficients: LaplacianCoefficients,
    points: &[f64],
    out: &mut [f64],
) {
    let k = points.len() / distances.n;
    assert!(k > 0 && points.len() == distances.n * k, "vectors must be n x k");
    assert_eq!(out.len(), distances.rows * (k + 1), "k sums and a degree for each row");
    assert!(coefficients == LaplacianCoefficients::Squares || distances.is_weighted(), "the distances have no weights");
    let first = distances.first.expect("rows are among the columns");
    let vectors = PaddedPoints::new(points, k, distances.stride);
    pool.each(&mut split(out, distances.rows, k + 1, pool), |_, (begin, part)| {
        part.fill(0.0);
        let rows = &points[(first + *begin) * k..];
        dispatch(isa, LaplacianRows { distances, coefficients, vectors: &vectors, rows, first: *begin, out: part });
    });
}

/// One thread's rows.
struct LaplacianRows<'a> {
    distances: &'a DistanceBlock,
    coefficients: LaplacianCoefficients,
    vectors: &'a PaddedPoints,
    /// The points from the thread's first row on.
    rows: &'a [f64],
    first: usize,
    out: &'a mut [f64],
}

impl Kernel<f32> for LaplacianRows<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd<Elem = f32>>(self, s: S) {
        let LaplacianRows { distances, coefficients, vectors, rows, first, out } = self;
        let k = vectors.k;
        let tile = distances.tile();
        let mut buffer = match coefficients {
            LaplacianCoefficients::Squares => distances.buffer(),
            _ => distances.weight_buffer(),
        };
        let mut strip = [0.0f32; STRIP];
        let count = out.len() / (k + 1);
        for begin in (0..count).step_by(tile.rows) {
            let end = count.min(begin + tile.rows);
            for column in (0..distances.stride).step_by(tile.columns) {
                let last = distances.stride.min(column + tile.columns);
                let seen = first + begin..first + end;
                let (cells, step) = match coefficients {
                    LaplacianCoefficients::Squares => distances.decode(s, seen, column..last, &mut buffer),
                    _ => distances.decode_weights(seen, column..last, &mut buffer),
                };
                for i in begin..end {
                    let out = &mut out[i * (k + 1)..(i + 1) * (k + 1)];
                    let point = &rows[i * k..(i + 1) * k];
                    for at in (column..last).step_by(STRIP) {
                        let strip = &mut strip[..STRIP.min(last - at)];
                        let cells = &cells[(i - begin) * step + at - column..][..strip.len()];
                        match coefficients {
                            LaplacianCoefficients::Weights => strip.copy_from_slice(cells),
                            LaplacianCoefficients::Squares => {
                                strip.iter_mut().zip(cells).for_each(|(out, &cell)| *out = cell * cell)
                            }
                            LaplacianCoefficients::Missing => missing(distances, first + i, at, cells, strip),
                        }
                        out[k] += sum(s, strip);
                        add(s, vectors, point, at, strip, out);
                    }
                }
            }
        }
    }
}

/// The sum of a strip, whose length is a multiple of `LANES`.
#[inline(always)]
fn sum<S: Simd<Elem = f32>>(s: S, values: &[f32]) -> f64 {
    let (one, mut sum) = (s.splat(1.0), s.splat(0.0));
    for vector in values.chunks_exact(S::LANES) {
        // SAFETY: the chunk has `LANES` elements.
        sum = s.mul_add(unsafe { s.load(vector.as_ptr()) }, one, sum);
    }
    total(s, sum)
}

/// 1 where the weight of row `i`, from column `at` on, is 0 and the points differ.
#[inline(always)]
fn missing(distances: &DistanceBlock, i: usize, at: usize, weights: &[f32], out: &mut [f32]) {
    for (out, &weight) in out.iter_mut().zip(weights) {
        *out = f32::from(u8::from(weight == 0.0));
    }
    let filled = distances.n.saturating_sub(at).min(out.len());
    out[filled..].fill(0.0);
    if let Some(own) = distances.first.and_then(|first| (first + i).checked_sub(at)).filter(|&own| own < out.len()) {
        out[own] = 0.0;
    }
}
