//! A first look at which centre is nearest, in whole numbers of few bits: much faster than in floating point, with an error
//! that is bounded. Rows that it leaves open go on to the distance tile.
//!
//! | module  | multiply-adds a cycle | numbers            | needs             |
//! |---------|-----------------------|--------------------|-------------------|
//! | `tiles` | 340                   | two 8-bit digits   | AMX (Linux)       |
//! | `pairs` | 64                    | 16 bits            | AVX-512 VNNI      |
//!
//! Beside them the tile makes 32 in `f32` and 16 in `f64`, with AVX-512.

#[cfg(target_os = "linux")]
mod amx;
mod pairs;
#[cfg(target_os = "linux")]
mod tiles;

use super::rows::Rows;
use crate::simd::{Element, Isa};

/// Points that are looked at together: two vectors of 16.
pub(crate) const POINTS: usize = 32;
const _: () = assert!(POINTS <= super::rows::PANEL_MAX);

/// A bound of the relative error of the squared norms that a look knows.
pub(crate) const NORM_ERROR: f64 = 1.0 / (1 << 18) as f64;

/// Where it pays: there must be enough to multiply, and the numbers of centres travel as `f32`.
fn worthwhile(k: usize, d: usize) -> bool {
    d >= 16 && (8..1 << f32::MANTISSA_DIGITS).contains(&k)
}

/// The centres of one step, as a first look wants them.
pub(crate) enum Centres {
    Pairs(pairs::PairCentres),
    #[cfg(target_os = "linux")]
    Tiles(tiles::TileCentres),
}

impl Centres {
    /// From `k x d` centres; `None` where no first look pays, or the instruction set has none.
    pub(crate) fn new(isa: Isa, centres: &[f64], d: usize) -> Option<Self> {
        if !worthwhile(centres.len() / d, d) {
            return None;
        }
        #[cfg(target_os = "linux")]
        if isa.has_tiles() && d <= tiles::FEATURES_MAX {
            return Some(Centres::Tiles(tiles::TileCentres::new(centres, d)));
        }
        (isa.has_pairs() && d <= pairs::FEATURES_MAX).then(|| Centres::Pairs(pairs::PairCentres::new(centres, d)))
    }
}

/// What a first look found for a panel of points. `best` and `second` are `v` over the point's scale.
#[derive(Debug)]
pub(crate) struct Glance {
    pub(crate) scale: [f32; POINTS],
    inverse: [f32; POINTS],
    /// Squared norms.
    pub(crate) norms: [f64; POINTS],
    /// Bounds of the error of `v`, relative to `|x| |c| + |c|^2 / 2`.
    pub(crate) errors: [f32; POINTS],
    pub(crate) best: [f32; POINTS],
    pub(crate) second: [f32; POINTS],
    pub(crate) index: [f32; POINTS],
}

impl Glance {
    fn new() -> Self {
        Glance {
            scale: [1.0; POINTS],
            inverse: [1.0; POINTS],
            norms: [0.0; POINTS],
            errors: [0.0; POINTS],
            best: [f32::INFINITY; POINTS],
            second: [f32::INFINITY; POINTS],
            index: [0.0; POINTS],
        }
    }

    fn clear(&mut self) {
        self.best = [f32::INFINITY; POINTS];
        self.second = [f32::INFINITY; POINTS];
        self.index = [0.0; POINTS];
    }
}

/// One thread's rows for a first look, rounded once for all steps of a fit, and what it works with.
#[derive(Default)]
pub(crate) struct Look(State);

#[derive(Default)]
enum State {
    #[default]
    Empty,
    Pairs(Box<pairs::PairLook>),
    #[cfg(target_os = "linux")]
    Tiles(Box<tiles::TileLook>),
}

impl Look {
    /// Makes ready for a step. The `n` rows themselves come by `extend`.
    #[inline(always)]
    pub(crate) fn begin(&mut self, centres: &Centres, n: usize, d: usize) {
        match (centres, &mut self.0) {
            (Centres::Pairs(_), State::Pairs(_)) => {}
            (Centres::Pairs(_), state) => *state = State::Pairs(Box::new(pairs::PairLook::new(n, d))),
            #[cfg(target_os = "linux")]
            (Centres::Tiles(centres), State::Tiles(look)) => look.begin(centres),
            #[cfg(target_os = "linux")]
            (Centres::Tiles(centres), state) => {
                let mut look = Box::new(tiles::TileLook::new(n, d));
                look.begin(centres);
                *state = State::Tiles(look);
            }
        }
    }

    /// Ends a step.
    #[inline(always)]
    pub(crate) fn end(&mut self) {
        #[cfg(target_os = "linux")]
        if let State::Tiles(look) = &mut self.0 {
            look.end();
        }
    }

    /// Rounds the rows up to the `n`th of this thread, whose first is row `first`, unless that was done before.
    ///
    /// # Safety
    /// The processor has what the centres of [`Look::begin`] were made for.
    #[inline(always)]
    pub(crate) unsafe fn extend<T: Element>(&mut self, rows: &Rows<'_, T>, first: usize, n: usize) {
        // SAFETY: the caller's promise.
        unsafe {
            match &mut self.0 {
                State::Empty => {}
                State::Pairs(look) => look.extend(rows, first, n),
                #[cfg(target_os = "linux")]
                State::Tiles(look) => look.extend(rows, first, n),
            }
        }
    }

    /// Looks at 1 to [`POINTS`] rows of this thread; lanes beyond repeat the last. The memory of `next` is asked for.
    ///
    /// # Safety
    /// As [`Look::extend`], and `centres` are those of [`Look::begin`].
    #[inline(always)]
    pub(crate) unsafe fn search(&mut self, centres: &Centres, now: &[usize], next: &[usize]) -> &Glance {
        assert!((1..=POINTS).contains(&now.len()), "a panel holds 1 to {POINTS} rows, not {}", now.len());
        // SAFETY: the caller's promise.
        unsafe {
            match (&mut self.0, centres) {
                (State::Pairs(look), Centres::Pairs(centres)) => look.search(centres, now, next),
                #[cfg(target_os = "linux")]
                (State::Tiles(look), Centres::Tiles(centres)) => look.search(centres, now, next),
                _ => unreachable!("`begin` has made what the centres ask for"),
            }
        }
    }
}
