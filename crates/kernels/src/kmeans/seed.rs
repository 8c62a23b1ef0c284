//! Seeding: squared distances to the nearest seed so far, and random draws in proportion to them.
//!
//! The draw of a row depends on its number in the whole data set, not on its worker, so seeds do not depend on how the
//! rows are distributed.
//!
//! Source: Arthur and Vassilvitskii, "k-means++" (2007); Bahmani et al., "Scalable k-means++" (2012).

use super::assign::{LabelSweep, lay_out, split};
use super::exact::squared_distance;
use super::rows::{PointPanel, PointRows};
use crate::pool::Pool;
use crate::random;
use crate::simd::{FloatElement, Isa, Kernel, Simd, WIDE, dispatch};

/// Sums over the shifted rows of one worker, in `f64`, without rounding the shifted values first.
#[derive(Clone, Debug, PartialEq)]
pub struct RowStatistics {
    /// Sum of each feature.
    pub sums: Vec<f64>,
    /// Sum of the square of each feature.
    pub squares: Vec<f64>,
    /// The same two with each row multiplied by its weight, and the sum of weights.
    pub weighted_sums: Vec<f64>,
    /// See `weighted_sums`.
    pub weighted_squares: Vec<f64>,
    /// See `weighted_sums`.
    pub weight: f64,
    /// Whether every value is finite.
    pub finite: bool,
}

/// One pass over the rows. A shift near the mean keeps the squares from drowning the spread.
#[must_use]
pub fn statistics<T: FloatElement>(pool: &Pool, isa: Isa, rows: PointRows<'_, T>) -> RowStatistics {
    let (n, d) = (rows.n(), rows.d());
    let mut parts: Vec<MomentSums> = (0..pool.threads()).map(|_| MomentSums::new(d)).collect();
    pool.each(&mut parts, |worker, part| {
        dispatch(isa, MomentKernel { rows, range: worker.share(n, 256), part });
    });
    let mut total = MomentSums::new(d);
    for part in &parts {
        total.merge(part);
    }
    let MomentSums { sums, squares, weighted_sums, weighted_squares, weight } = total;
    // A non-finite value makes all of its sums non-finite. The converse does not hold: squares may overflow.
    let finite = squares.iter().all(|square| square.is_finite()) || (0..n).all(|i| all_finite(rows.raw(i)));
    if rows.is_weighted() {
        return RowStatistics { sums, squares, weighted_sums, weighted_squares, weight, finite };
    }
    RowStatistics {
        weighted_sums: sums.clone(),
        weighted_squares: squares.clone(),
        sums,
        squares,
        weight: n as f64,
        finite,
    }
}

fn all_finite<T: FloatElement>(raw: &[T]) -> bool {
    raw.iter().all(|x| x.to_f64().is_finite())
}

/// Sums of one thread.
struct MomentSums {
    sums: Vec<f64>,
    squares: Vec<f64>,
    weighted_sums: Vec<f64>,
    weighted_squares: Vec<f64>,
    weight: f64,
}

impl MomentSums {
    fn new(d: usize) -> Self {
        let zeros = || vec![0.0; d];
        MomentSums { sums: zeros(), squares: zeros(), weighted_sums: zeros(), weighted_squares: zeros(), weight: 0.0 }
    }

    fn merge(&mut self, other: &MomentSums) {
        let pairs = [
            (&mut self.sums, &other.sums),
            (&mut self.squares, &other.squares),
            (&mut self.weighted_sums, &other.weighted_sums),
            (&mut self.weighted_squares, &other.weighted_squares),
        ];
        for (total, part) in pairs {
            total.iter_mut().zip(part).for_each(|(total, x)| *total += x);
        }
        self.weight += other.weight;
    }
}

struct MomentKernel<'a, T> {
    rows: PointRows<'a, T>,
    range: std::ops::Range<usize>,
    part: &'a mut MomentSums,
}

impl<T: FloatElement> Kernel<T> for MomentKernel<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd<Elem = T>>(self, _: S) {
        let (rows, part, d) = (self.rows, self.part, self.rows.d());
        // Several rows side by side, to fill vectors even with few features.
        let abreast = 64usize.div_ceil(d);
        let shift: Vec<f64> = rows.shift().iter().map(|x| x.to_f64()).cycle().take(abreast * d).collect();
        let (mut sums, mut squares) = (vec![0.0f64; abreast * d], vec![0.0f64; abreast * d]);
        let mut add = |values: &[T]| {
            for (((&x, shift), sum), square) in values.iter().zip(&shift).zip(&mut sums).zip(&mut squares) {
                let x = x.to_f64() - shift;
                *sum += x;
                *square += x * x;
            }
        };
        let mine = rows.block(self.range.clone());
        let chunks = mine.chunks_exact(abreast * d);
        add(chunks.remainder());
        chunks.for_each(&mut add);
        for f in 0..d {
            part.sums[f] = sums[f..].iter().step_by(d).sum();
            part.squares[f] = squares[f..].iter().step_by(d).sum();
        }
        if rows.is_weighted() {
            for i in self.range {
                let weight = rows.weight(i);
                part.weight += weight;
                for (f, &x) in rows.raw(i).iter().enumerate() {
                    let x = x.to_f64() - shift[f];
                    part.weighted_sums[f] += weight * x;
                    part.weighted_squares[f] += weight * x * x;
                }
            }
        }
    }
}

/// Updates `closest`, each row's squared distance to the seeds so far, for the new `seeds` (`m x d`, less the shift).
/// Where one is nearer, `index` is set to its number, counted from `first`. Returns the sum of weight times `closest`.
///
/// # Panics
/// If a shape does not fit.
pub fn nearest_update<T: FloatElement>(
    pool: &Pool,
    isa: Isa,
    rows: PointRows<'_, T>,
    seeds: &[f64],
    first: u32,
    closest: &mut [f64],
    index: &mut [u32],
) -> f64 {
    assert!(closest.len() == rows.n() && index.len() == rows.n(), "one distance and one index for each row");
    let centres = lay_out(isa, seeds, rows.d());
    let mut parts: Vec<_> = split(closest, rows.n(), 1, pool)
        .into_iter()
        .zip(split(index, rows.n(), 1, pool))
        .map(|((start, closest), (_, index))| (start, closest, index, 0.0))
        .collect();
    pool.each(&mut parts, |_, (start, closest, index, sum)| {
        let (start, range) = (*start, *start..*start + closest.len());
        let found = |i: usize, label: u32| {
            let distance = squared_distance(rows.raw(i), rows.shift(), centres.get(label as usize));
            if distance < closest[i - start] {
                closest[i - start] = distance;
                index[i - start] = first + label;
            }
            *sum += rows.weight(i) * closest[i - start];
        };
        dispatch(isa, LabelSweep { rows, range, centres: &centres, found });
    });
    parts.iter().map(|part| part.3).sum()
}

/// For each of `trials` (`m x d`, less the shift): what [`nearest_update`] would return with it as the only new seed,
/// up to rounding in the element type.
///
/// # Panics
/// If a shape does not fit.
#[must_use]
pub fn potentials<T: FloatElement>(
    pool: &Pool,
    isa: Isa,
    rows: PointRows<'_, T>,
    trials: &[f64],
    closest: &[f64],
) -> Vec<f64> {
    assert_eq!(closest.len(), rows.n(), "one distance for each row");
    let trials: Vec<T> = trials.iter().map(|&x| T::from_f64(x)).collect();
    let m = trials.len() / rows.d();
    let mut parts = vec![vec![0.0; m]; pool.threads()];
    pool.each(&mut parts, |worker, sums| {
        let range = worker.share(rows.n(), 256);
        dispatch(isa, PotentialKernel { rows, range, trials: &trials, closest, sums });
    });
    (0..m).map(|trial| parts.iter().map(|part| part[trial]).sum()).collect()
}

struct PotentialKernel<'a, T> {
    rows: PointRows<'a, T>,
    range: std::ops::Range<usize>,
    trials: &'a [T],
    closest: &'a [f64],
    sums: &'a mut [f64],
}

impl<T: FloatElement> Kernel<T> for PotentialKernel<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd<Elem = T>>(self, s: S) {
        let (d, points) = (self.rows.d(), WIDE * S::LANES);
        let mut panel = PointPanel::new(d);
        let mut distances = [T::default(); super::rows::PANEL_MAX];
        for first in self.range.clone().step_by(points) {
            let count = points.min(self.range.end - first);
            panel.fill(s, &self.rows, count, |lane| first + lane);
            let values = panel.values.as_slice();
            for (trial, sum) in self.trials.chunks_exact(d).zip(self.sums.iter_mut()) {
                let mut squared = [s.splat(T::default()); WIDE];
                for (x, &c) in values.chunks_exact(points).zip(trial) {
                    for (w, squared) in squared.iter_mut().enumerate() {
                        // SAFETY: each chunk has `WIDE * LANES` elements.
                        let difference = s.sub(unsafe { s.load(x.as_ptr().add(w * S::LANES)) }, s.splat(c));
                        *squared = s.mul_add(difference, difference, *squared);
                    }
                }
                for (w, &squared) in squared.iter().enumerate() {
                    // SAFETY: `distances` has room for the widest panel.
                    unsafe { s.store(distances.as_mut_ptr().add(w * S::LANES), squared) };
                }
                for (lane, &distance) in distances[..count].iter().enumerate() {
                    let (i, distance) = (first + lane, distance.to_f64());
                    let closest = self.closest[i];
                    *sum += self.rows.weight(i) * if distance < closest { distance } else { closest };
                }
            }
        }
    }
}

/// The rows that k-means|| draws in one round: row `i` with probability `scale * weight * closest`, independently.
/// `offset` is the number of the first row in the whole data set.
#[must_use]
pub fn draw<T: FloatElement>(
    rows: PointRows<'_, T>,
    closest: &[f64],
    scale: f64,
    seed: u64,
    round: u64,
    offset: u64,
) -> Vec<usize> {
    let drawn = |i: &usize| {
        let probability = scale * rows.weight(*i) * closest[*i];
        probability > 0.0 && random::uniform(seed, round, offset + *i as u64) < probability
    };
    (0..rows.n()).filter(drawn).collect()
}

/// For each of `targets`, the first row at which the running sum of weight times `closest` exceeds it. If rounding puts
/// a target beyond the end, the last row that contributes anything.
#[must_use]
pub fn locate<T: FloatElement>(rows: PointRows<'_, T>, closest: &[f64], targets: &[f64]) -> Vec<usize> {
    const BLOCK: usize = 1024;
    let value = |i: usize| rows.weight(i) * closest[i];
    let blocks: Vec<f64> =
        (0..rows.n()).step_by(BLOCK).map(|at| (at..(at + BLOCK).min(rows.n())).map(value).sum()).collect();
    let one = |&target: &f64| {
        let (mut sum, mut last) = (0.0, 0);
        for (block, &total) in blocks.iter().enumerate() {
            if total > 0.0 {
                last = block;
            }
            if sum + total > target {
                break;
            }
            sum += total;
        }
        // Within that block, or within the last one that contributes anything.
        let mut row = None;
        let start = last * BLOCK;
        for i in start..(start + BLOCK).min(rows.n()) {
            if value(i) > 0.0 {
                row = Some(i);
                sum += value(i);
                if sum > target {
                    break;
                }
            }
        }
        row.unwrap_or(0)
    };
    targets.iter().map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pool::PoolConfig;

    #[test]
    fn statistics_are_those_of_the_definition() {
        let pool = Pool::new(PoolConfig { threads: 2, ..PoolConfig::default() });
        for (n, d) in [(0, 3), (1, 1), (1000, 2), (777, 64), (300, 101)] {
            let x: Vec<f32> = (0..n * d).map(|i| random::uniform(1, 2, i as u64) as f32).collect();
            let shift: Vec<f32> = (0..d).map(|f| f as f32 / 10.0).collect();
            let weights: Vec<f64> = (0..n).map(|i| (i % 5) as f64).collect();
            for given in [None, Some(&weights[..])] {
                for isa in Isa::available() {
                    let found = statistics(&pool, isa, PointRows::new(&x, &shift, given));
                    for f in 0..d {
                        let column = |i: usize| f64::from(x[i * d + f]) - f64::from(shift[f]);
                        let weight = |i: usize| given.map_or(1.0, |weights| weights[i]);
                        let sum = |value: &dyn Fn(usize) -> f64| (0..n).map(value).sum::<f64>();
                        let close = |a: f64, b: f64| assert!((a - b).abs() < 1e-8 * (1.0 + b.abs()), "{a} {b}");
                        close(found.sums[f], sum(&|i| column(i)));
                        close(found.squares[f], sum(&|i| column(i) * column(i)));
                        close(found.weighted_sums[f], sum(&|i| weight(i) * column(i)));
                        close(found.weighted_squares[f], sum(&|i| weight(i) * column(i) * column(i)));
                        close(found.weight, sum(&weight));
                    }
                    assert!(found.finite);
                }
            }
        }
        // Squares may overflow although the values are finite.
        let big = [1e300f64; 4];
        assert!(statistics(&pool, Isa::best(), PointRows::new(&big, &[0.0; 2], None)).finite);
    }

    #[test]
    fn statistics_find_every_value_that_is_not_finite() {
        let pool = Pool::new(PoolConfig { threads: 2, ..PoolConfig::default() });
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            for at in 0..30 {
                let mut x = vec![1.0f32; 30];
                assert!(statistics(&pool, Isa::best(), PointRows::new(&x, &[0.0; 3], None)).finite);
                x[at] = bad;
                assert!(!statistics(&pool, Isa::best(), PointRows::new(&x, &[0.0; 3], None)).finite);
            }
        }
    }

    /// Rows are drawn in proportion: a target within a row's share of the running sum must find that row.
    #[test]
    fn locate_finds_the_share_of_each_row() {
        let n = 3000;
        let x = vec![0.0f64; n];
        let closest: Vec<f64> = (0..n).map(|i| f64::from(u32::from(i % 3 != 0)) * (i % 7) as f64).collect();
        let rows = PointRows::new(&x, &[0.0], None);
        let mut sum = 0.0;
        for i in 0..n {
            if closest[i] > 0.0 {
                assert_eq!(locate(rows, &closest, &[sum + 0.5 * closest[i]]), [i]);
            }
            sum += closest[i];
        }
        let last = (0..n).rfind(|&i| closest[i] > 0.0).unwrap();
        assert_eq!(locate(rows, &closest, &[2.0 * sum]), [last]);
    }
}
