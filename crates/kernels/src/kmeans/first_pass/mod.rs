//! A first pass that finds the nearest center in small integers: much faster than in floating point, with a bounded
//! error. Rows that it cannot decide go to the distance tile.
//!
//! | module  | multiply-adds a cycle | numbers            | needs             |
//! |---------|-----------------------|--------------------|-------------------|
//! | `tiles` | 340                   | two 8-bit digits   | AMX (Linux)       |
//! | `pairs` | 64                    | 16 bits            | AVX-512 VNNI      |
//!
//! For comparison, the tile does 32 in `f32` and 16 in `f64`, with AVX-512.

#[cfg(target_os = "linux")]
mod amx;
mod pairs;
#[cfg(target_os = "linux")]
mod tiles;

use super::rows::PointRows;
use crate::simd::{FloatElement, Isa};

/// Points that are processed together: two vectors of 16.
pub(crate) const POINTS: usize = 32;
const _: () = assert!(POINTS <= super::rows::PANEL_MAX);

/// Maximum number of centers for an exact comparison of a row: more would take as long as the distance tile.
pub(crate) const CANDIDATES_MAX: usize = 8;

/// A bound on the relative error of the squared norms in a first pass.
pub(crate) const NORM_ERROR: f64 = 1.0 / (1 << 18) as f64;

/// Whether it pays: there must be enough to multiply, and center numbers must fit `f32`.
fn worthwhile(k: usize, d: usize) -> bool {
    d >= 16 && (8..1 << f32::MANTISSA_DIGITS).contains(&k)
}

/// The centers of one step, in the form that a first pass needs.
pub(crate) enum CoarseCentres {
    Pairs(pairs::PairCentres),
    #[cfg(target_os = "linux")]
    Tiles(tiles::TileCentres),
}

impl CoarseCentres {
    /// From `k x d` centers; `None` if a first pass does not pay, or the instruction set has none.
    pub(crate) fn new(isa: Isa, centres: &[f64], d: usize) -> Option<Self> {
        // If half a squared norm were infinite in f32, the center would look far from all rows.
        let fits = |centre: &[f64]| centre.iter().map(|x| x * x).sum::<f64>() < f64::from(f32::MAX);
        if !worthwhile(centres.len() / d, d) || !centres.chunks_exact(d).all(fits) {
            return None;
        }
        #[cfg(target_os = "linux")]
        if isa.has_tiles() && d <= tiles::FEATURES_MAX {
            return Some(CoarseCentres::Tiles(tiles::TileCentres::new(centres, d)));
        }
        (isa.has_pairs() && d <= pairs::FEATURES_MAX).then(|| CoarseCentres::Pairs(pairs::PairCentres::new(centres, d)))
    }
}

/// How precisely a first pass knows the centers of one step, if its error is bounded in distances.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct CoarsePrecision {
    /// The largest norm of a rounded center.
    norm_max: f64,
    /// The maximum distance of a rounded center from the center, absolute and relative to its norm.
    lost_max: f64,
    lost_relative: f64,
}

impl CoarsePrecision {
    /// Includes a center: the norm of the rounded one, and its distance from the center.
    fn include(&mut self, norm: f64, lost: f64) {
        // Allows for the rounding of both sums.
        let lost = lost * (1.0 + 1e-9);
        self.norm_max = self.norm_max.max(norm);
        self.lost_max = self.lost_max.max(lost);
        if lost > 0.0 {
            self.lost_relative = self.lost_relative.max(lost / norm);
        }
    }

    /// Lower and upper bounds on the distance of a point from a center: `squared` is the squared norm of the rounded
    /// point, `lost` its distance from the point, `v` as in the module. Both bounds increase with `v`.
    #[inline(always)]
    pub(crate) fn bounds(&self, squared: f64, lost: f64, v: f64) -> (f64, f64) {
        let (norm, distance) = (squared.sqrt(), squared + 2.0 * v);
        // The center is no farther from the origin than the point plus the distance between them; one percent covers
        // the rounding here.
        let centre = self.norm_max.min(1.01 * (norm + distance.max(0.0).sqrt()));
        // Five roundings of v in f32: the sum, |c|^2 / 2, the inverse of the scale, their product, and v itself.
        let rounding = 3.0 * f64::from(f32::EPSILON) * (norm + 0.5 * centre) * centre + f64::from(f32::MIN_POSITIVE);
        let lost = lost + self.lost_max.min(self.lost_relative * centre);
        let low = (distance - 2.0 * rounding).max(0.0).sqrt() - lost;
        let high = (distance + 2.0 * rounding).max(0.0).sqrt() + lost;
        (low.max(0.0), high)
    }

    /// A `v` such that every center with a larger one is at least `far` from the point; `None` if there is no such
    /// bound.
    pub(crate) fn beyond(&self, squared: f64, lost: f64, far: f64) -> Option<f64> {
        let reach = far + lost + self.lost_max.min(self.lost_relative * 1.01 * (squared.sqrt() + 2.0 * far));
        let centre = self.norm_max.min(1.01 * (squared.sqrt() + 2.0 * far));
        let rounding =
            4.0 * f64::from(f32::EPSILON) * (squared.sqrt() + centre) * centre + 2.0 * f64::from(f32::MIN_POSITIVE);
        let v = 0.5 * (reach * reach * (1.0 + 1e-9) + 2.0 * rounding - squared);
        (self.bounds(squared, lost, v).0 >= far).then_some(v)
    }
}

impl CoarseCentres {
    /// The precision of the centers; `None` if the error is bounded in another way.
    pub(crate) fn precision(&self) -> Option<CoarsePrecision> {
        match self {
            CoarseCentres::Pairs(centres) => Some(centres.precision),
            #[cfg(target_os = "linux")]
            CoarseCentres::Tiles(_) => None,
        }
    }
}

/// The results of a first pass for a panel of points. `best` and `second` are `v` over the point's scale.
#[derive(Debug)]
pub(crate) struct CoarseSearch {
    pub(crate) scale: [f32; POINTS],
    inverse: [f32; POINTS],
    /// Squared norms.
    pub(crate) norms: [f64; POINTS],
    /// If centers have a [`CoarsePrecision`], the distance of each rounded point from the point. Otherwise a bound on
    /// the error of `v`, relative to `|x| |c| + |c|^2 / 2`.
    pub(crate) errors: [f32; POINTS],
    pub(crate) best: [f32; POINTS],
    pub(crate) second: [f32; POINTS],
    pub(crate) index: [f32; POINTS],
    /// `v` of each center for all points, over their scale; or empty.
    kept: Vec<f32>,
}

impl CoarseSearch {
    fn new() -> Self {
        CoarseSearch {
            scale: [1.0; POINTS],
            inverse: [1.0; POINTS],
            norms: [0.0; POINTS],
            errors: [0.0; POINTS],
            best: [f32::INFINITY; POINTS],
            second: [f32::INFINITY; POINTS],
            index: [0.0; POINTS],
            kept: Vec::new(),
        }
    }

    /// Puts those of `k` centers whose `v` for a point is at most `limit` into `found`. Returns false if there are none
    /// or more than [`CANDIDATES_MAX`], or if no `v` were kept.
    pub(crate) fn candidates(&self, lane: usize, k: usize, limit: f64, found: &mut Vec<usize>) -> bool {
        found.clear();
        if self.kept.is_empty() {
            return false;
        }
        let scale = f64::from(self.scale[lane]);
        for (j, v) in self.kept.chunks_exact(POINTS).take(k).enumerate() {
            if f64::from(v[lane]) * scale <= limit {
                if found.len() == CANDIDATES_MAX {
                    return false;
                }
                found.push(j);
            }
        }
        !found.is_empty()
    }

    fn clear(&mut self) {
        self.best = [f32::INFINITY; POINTS];
        self.second = [f32::INFINITY; POINTS];
        self.index = [0.0; POINTS];
    }
}

/// One thread's rows for the first pass, rounded once for all steps of a fit, and its working data.
#[derive(Default)]
pub(crate) struct FirstPass(PassState);

#[derive(Default)]
enum PassState {
    #[default]
    Empty,
    Pairs(Box<pairs::PairPass>),
    #[cfg(target_os = "linux")]
    Tiles(Box<tiles::TilePass>),
}

impl FirstPass {
    /// Prepares a step. The `n` rows themselves come through `extend`.
    #[inline(always)]
    pub(crate) fn begin(&mut self, centres: &CoarseCentres, n: usize, d: usize) {
        match (centres, &mut self.0) {
            (CoarseCentres::Pairs(_), PassState::Pairs(_)) => {}
            (CoarseCentres::Pairs(_), state) => *state = PassState::Pairs(Box::new(pairs::PairPass::new(n, d))),
            #[cfg(target_os = "linux")]
            (CoarseCentres::Tiles(centres), PassState::Tiles(look)) => look.begin(centres),
            #[cfg(target_os = "linux")]
            (CoarseCentres::Tiles(centres), state) => {
                let mut look = Box::new(tiles::TilePass::new(n, d));
                look.begin(centres);
                *state = PassState::Tiles(look);
            }
        }
    }

    /// Ends a step.
    #[inline(always)]
    pub(crate) fn end(&mut self) {
        #[cfg(target_os = "linux")]
        if let PassState::Tiles(look) = &mut self.0 {
            look.end();
        }
    }

    /// Rounds this thread's rows up to the `n`th, unless they are rounded already; the thread's first row is row
    /// `first`.
    ///
    /// # Safety
    /// The processor supports what the centers of [`FirstPass::begin`] were made for.
    #[inline(always)]
    pub(crate) unsafe fn extend<T: FloatElement>(&mut self, rows: &PointRows<'_, T>, first: usize, n: usize) {
        // SAFETY: the caller's promise.
        unsafe {
            match &mut self.0 {
                PassState::Empty => {}
                PassState::Pairs(look) => look.extend(rows, first, n),
                #[cfg(target_os = "linux")]
                PassState::Tiles(look) => look.extend(rows, first, n),
            }
        }
    }

    /// Searches 1 to [`POINTS`] rows of this thread; the remaining lanes repeat the last. Prefetches the memory of
    /// `next`.
    ///
    /// # Safety
    /// As [`FirstPass::extend`], and `centres` are those of [`FirstPass::begin`].
    #[inline(always)]
    pub(crate) unsafe fn search(&mut self, centres: &CoarseCentres, now: &[usize], next: &[usize]) -> &CoarseSearch {
        assert!((1..=POINTS).contains(&now.len()), "a panel holds 1 to {POINTS} rows, not {}", now.len());
        // SAFETY: the caller's promise.
        unsafe {
            match (&mut self.0, centres) {
                (PassState::Pairs(look), CoarseCentres::Pairs(centres)) => look.search(centres, now, next),
                #[cfg(target_os = "linux")]
                (PassState::Tiles(look), CoarseCentres::Tiles(centres)) => look.search(centres, now, next),
                _ => unreachable!("`begin` has prepared for these centers"),
            }
        }
    }
}
