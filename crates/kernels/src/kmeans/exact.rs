//! Bounds on the rounding error of a distance, and the exact comparison for the cases where it could matter.
//!
//! The tile computes `v = |c|^2 / 2 - x.c` in the element type. Its error is at most
//! `E = (d + 4) u (|x| |c| + |c|^2 / 2)`, with `u` half of epsilon: `d + 1` roundings of the sum, and one each of `c`,
//! of `|c|^2 / 2` and of `x.c`. If the two smallest `v` differ by more than both errors, the tile's answer is the true
//! one. Otherwise all centers are compared again by `sum (x - c)^2` in `f64`, which does not cancel. So every kernel,
//! algorithm and instruction set gives a point the same label; of equal distances the lowest center wins.

use super::rows::PointRows;
use crate::simd::FloatElement;

/// Bounds on `E` for the centers of one step.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RoundingBounds {
    /// `(d + 4) u`, or its equivalent.
    pub(crate) relative: f64,
    norm_max: f64,
    /// Below this, products vanish rather than round.
    tiny: f64,
}

impl RoundingBounds {
    pub(crate) fn new<T: FloatElement>(d: usize, norm_max: f64) -> Self {
        let (tiny, huge) = if size_of::<T>() == 4 {
            (f64::from(f32::MIN_POSITIVE), f64::from(f32::MAX))
        } else {
            (f64::MIN_POSITIVE, f64::MAX)
        };
        // If |c|^2 / 2 overflows, the center looks far from all rows, so nothing is certain.
        let overflows = norm_max * norm_max >= huge;
        let relative = if overflows { f64::INFINITY } else { (d as f64 + 4.0) * T::EPSILON / 2.0 };
        RoundingBounds { relative, norm_max, tiny: (d as f64 + 4.0) * tiny }
    }

    /// For a first pass, where `relative` differs between points.
    #[cfg(target_arch = "x86_64")]
    pub(crate) fn coarse(norm_max: f64) -> Self {
        RoundingBounds { relative: f64::INFINITY, norm_max, tiny: f64::from(f32::MIN_POSITIVE) }
    }

    /// The same with another `relative`.
    #[inline(always)]
    pub(crate) fn with(self, relative: f64) -> Self {
        RoundingBounds { relative, ..self }
    }

    /// A bound on the error of a point's `v` for this center and every center with a larger `v`; `norm` is the point's.
    ///
    /// A center with `|c| > 4 |x|` has `v >= |c|^2 / 4`, hence `E <= 3 (d + 4) u v`; any other has
    /// `E <= 12 (d + 4) u |x|^2`. So a single far center does not spoil the bound for all points.
    #[inline(always)]
    pub(crate) fn of(&self, norm: f64, v: f64) -> f64 {
        let by_largest = norm * self.norm_max + 0.5 * self.norm_max * self.norm_max;
        let by_point = 12.0 * norm * norm + 5.0 * v.abs();
        self.relative * by_largest.min(by_point) + self.tiny
    }
}

/// The squared distance of a raw row, after the shift, from a center, in `f64`. Uses eight sums that are added in a
/// fixed order: the same on every instruction set, and fast on each.
#[inline(always)]
pub(crate) fn squared_distance<T: FloatElement>(raw: &[T], shift: &[T], centre: &[f64]) -> f64 {
    assert!(raw.len() == shift.len() && raw.len() == centre.len(), "a row, the shift and a centre are equally long");
    sum_of_squares(raw.len(), |f| raw[f].minus(shift[f]).to_f64() - centre[f])
}

/// The sum of the squares of `part(0)` to `part(d - 1)`.
#[inline(always)]
fn sum_of_squares(d: usize, part: impl Fn(usize) -> f64) -> f64 {
    let square = |f: usize| part(f) * part(f);
    // Bitwise equal to the sum below, but without adding the zeros.
    match d {
        1 => return square(0),
        2 => return square(0) + square(1),
        3 => return (square(0) + square(2)) + square(1),
        _ => {}
    }
    let mut sums = [0.0f64; 8];
    let whole = d / 8 * 8;
    for f in (0..whole).step_by(8) {
        for (j, sum) in sums.iter_mut().enumerate() {
            *sum += square(f + j);
        }
    }
    for f in whole..d {
        sums[f - whole] += square(f);
    }
    ((sums[0] + sums[4]) + (sums[2] + sums[6])) + ((sums[1] + sums[5]) + (sums[3] + sums[7]))
}

/// The nearest of `centres` (`k x d`) to row `i`, its squared distance, and the second smallest squared distance.
#[inline(always)]
pub(crate) fn nearest<T: FloatElement>(rows: &PointRows<'_, T>, i: usize, centres: &[f64]) -> (usize, f64, f64) {
    let (mut index, mut best, mut second) = (0, f64::INFINITY, f64::INFINITY);
    // Shifts once for all centers, if that is worth the memory.
    let (raw, shift, d) = (rows.raw(i), rows.shift(), rows.d());
    let point: Vec<f64> =
        if d < 16 { Vec::new() } else { raw.iter().zip(shift).map(|(x, &s)| x.minus(s).to_f64()).collect() };
    for (j, centre) in centres.chunks_exact(d).enumerate() {
        let distance = if point.is_empty() {
            squared_distance(raw, shift, centre)
        } else {
            let (point, centre) = (&point[..d], &centre[..d]);
            sum_of_squares(d, |f| point[f] - centre[f])
        };
        if distance < best {
            (index, best, second) = (j, distance, best);
        } else if distance < second {
            second = distance;
        }
    }
    (index, best, second)
}

/// As [`nearest`], for the centers with these numbers, which are ascending.
#[cfg(target_arch = "x86_64")]
pub(crate) fn nearest_of<T: FloatElement>(
    rows: &PointRows<'_, T>,
    i: usize,
    centres: &[f64],
    numbers: &[usize],
) -> (usize, f64, f64) {
    let (mut index, mut best, mut second) = (0, f64::INFINITY, f64::INFINITY);
    let (raw, shift, d) = (rows.raw(i), rows.shift(), rows.d());
    for &j in numbers {
        let distance = squared_distance(raw, shift, &centres[j * d..(j + 1) * d]);
        if distance < best {
            (index, best, second) = (j, distance, best);
        } else if distance < second {
            second = distance;
        }
    }
    (index, best, second)
}
