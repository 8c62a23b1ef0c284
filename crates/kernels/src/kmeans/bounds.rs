//! Center data for Hamerly's bounds: how far centers have moved and are apart, and when bounds pay.

use super::exact::squared_distance;
use super::tile::TiledCentres;
use crate::pool::{Pool, share};
use crate::simd::{FloatElement, Isa, Kernel, Simd, dispatch};

/// Factors that enlarge or reduce a value by more than the rounding of two operations in `f32`.
pub(super) const UP: f32 = 1.0 + 4.0 * f32::EPSILON;
pub(super) const DOWN: f32 = 1.0 - 4.0 * f32::EPSILON;

/// What the bounds need to know about the centers of one step.
pub(super) struct CentreMotion {
    /// How far each center has moved, rounded up.
    pub(super) moved: Vec<f32>,
    /// The center that moved farthest, its distance, and the second largest distance.
    pub(super) farthest: (u32, f32, f32),
    /// Half the distance from each center to its nearest other center, rounded down.
    pub(super) separation: Vec<f32>,
}

impl CentreMotion {
    pub(super) fn new<T: FloatElement>(pool: &Pool, isa: Isa, previous: &[f64], centres: &TiledCentres<T>) -> Self {
        let (k, d) = (centres.k, centres.d);
        let zeros = vec![0.0f64; d];
        let mut moved = vec![0.0; k];
        let mut farthest = (0, 0.0f32, 0.0f32);
        for (j, moved) in moved.iter_mut().enumerate() {
            let distance = squared_distance(&previous[j * d..(j + 1) * d], &zeros, centres.get(j)).sqrt();
            *moved = distance as f32 * UP;
            if *moved > farthest.1 {
                farthest = (j as u32, *moved, farthest.1);
            } else {
                farthest.2 = farthest.2.max(*moved);
            }
        }
        let mut separation = vec![f32::INFINITY; k];
        let mut rest = &mut separation[..];
        let mut parts = Vec::new();
        for thread in 0..pool.threads() {
            let range = share(k, 1, thread, pool.threads());
            let (mine, others) = rest.split_at_mut(range.len());
            rest = others;
            parts.push((range.start, mine));
        }
        pool.each(&mut parts, |_, (first, part)| {
            dispatch(isa, CentreSeparation { first: *first, part, centres, zeros: &zeros })
        });
        CentreMotion { moved, farthest, separation }
    }
}

/// Half the distances from centers `first..` to their nearest other centers.
struct CentreSeparation<'a, T> {
    first: usize,
    part: &'a mut [f32],
    centres: &'a TiledCentres<T>,
    zeros: &'a [f64],
}

impl<T: FloatElement> Kernel<T> for CentreSeparation<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd<Elem = T>>(self, _: S) {
        for (i, half) in self.part.iter_mut().enumerate() {
            let own = self.first + i;
            let mut nearest = f64::INFINITY;
            for j in (0..self.centres.k).filter(|&j| j != own) {
                nearest = nearest.min(squared_distance(self.centres.get(own), self.zeros, self.centres.get(j)));
            }
            *half = (0.5 * nearest.sqrt()) as f32 * DOWN;
        }
    }
}

/// Disables bounds for some steps when they would decide too few rows to pay off: while the centers still move far, or
/// if all rows are about equally far from several centers.
#[derive(Default)]
pub(super) struct BoundsPause {
    /// Steps left, and the length of the last pause.
    pub(super) left: u32,
    length: u32,
}

impl BoundsPause {
    /// Maximum length of a pause.
    const MAX: u32 = 8;

    /// Records a step of `n` rows.
    pub(super) fn after(&mut self, n: usize, searched: u64) {
        if self.left > 0 {
            self.left -= 1;
        } else if searched > n as u64 / 10 * 9 {
            self.length = (2 * self.length).clamp(2, Self::MAX);
            self.left = self.length;
        } else {
            self.length = 0;
        }
    }
}

/// Decides, within a step, whether replacing a failing upper bound by the true distance pays.
#[derive(Default)]
pub(super) struct TighteningPolicy {
    pub(super) tried: u32,
    pub(super) kept: u32,
}

impl TighteningPolicy {
    /// One distance costs as much as searching about thirty centers, mostly for fetching the row; about a hundred with
    /// a first pass.
    pub(super) fn pays(&self, k: usize, looks: bool) -> bool {
        let worth = if looks { 100 } else { 30 };
        self.tried < 128 || u64::from(self.kept) * k as u64 > u64::from(self.tried) * worth
    }
}
