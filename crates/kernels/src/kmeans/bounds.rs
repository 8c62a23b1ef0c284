//! What Hamerly's bounds need besides the rows: how far centres have moved and lie apart, and when bounds are worth it.

use super::exact::squared_distance;
use super::tile::TiledCentres;
use crate::pool::{Pool, share};
use crate::simd::{FloatElement, Isa, Kernel, Simd, dispatch};

/// Larger and smaller by more than the rounding of two operations in `f32`.
pub(super) const UP: f32 = 1.0 + 4.0 * f32::EPSILON;
pub(super) const DOWN: f32 = 1.0 - 4.0 * f32::EPSILON;

/// What one step says about the centres, for the bounds.
pub(super) struct CentreMotion {
    /// How far each centre has moved, rounded up.
    pub(super) moved: Vec<f32>,
    /// The centre that moved furthest, how far, and how far the second did.
    pub(super) farthest: (u32, f32, f32),
    /// Half the distance from each centre to the nearest other, rounded down.
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

/// Half distances from centres `first..` to the nearest other one.
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

/// Steps without bounds, where they would decide too little to be worth their while: while the centres still move far,
/// or where all rows are about as far from several centres.
#[derive(Default)]
pub(super) struct BoundsPause {
    /// Steps to come, and how many there were the last time.
    pub(super) left: u32,
    length: u32,
}

impl BoundsPause {
    /// Most steps in one go.
    const MAX: u32 = 8;

    /// Takes note of a step of `n` rows.
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

/// Whether it has paid, in this step, to replace a failing upper bound by the true distance.
#[derive(Default)]
pub(super) struct TighteningPolicy {
    pub(super) tried: u32,
    pub(super) kept: u32,
}

impl TighteningPolicy {
    /// One distance costs as much as the search of about thirty centres, most of it for fetching the row; of a hundred
    /// where there is a first look.
    pub(super) fn pays(&self, k: usize, looks: bool) -> bool {
        let worth = if looks { 100 } else { 30 };
        self.tried < 128 || u64::from(self.kept) * k as u64 > u64::from(self.tried) * worth
    }
}
