//! Lloyd's step with the distance tile, for any number of features; Hamerly's bounds let most rows skip the search.
//!
//! Each row keeps an upper bound on the distance to its center and a lower bound on the distance to every other. When
//! the centers move, the bounds move by as much. A row whose upper bound is below its lower bound, or below half the
//! distance from its center to the nearest other center, keeps its label without a look at its features. The rows that
//! fail are gathered into full panels, so that the search is as fast for few rows as for all.
//!
//! The bounds are `f32`, rounded outward, and allow for the tile's rounding: labels are exactly those of Lloyd's
//! algorithm.
//!
//! Source: Hamerly, "Making k-means even faster" (2010).

use super::bounds::{BoundsPause, CentreMotion, DOWN, TighteningPolicy, UP};
use super::exact::{self, RoundingBounds, squared_distance};
#[cfg(target_arch = "x86_64")]
use super::first_pass::{self, FirstPass};
use super::rows::{PANEL_MAX, PointPanel, PointRows};
use super::sums::{ClusterSums, NONE};
use super::tile::{NearestCentres, TiledCentres, search};
use crate::pool::{Pool, share};
use crate::simd::{FloatElement, Isa, Kernel, Simd, WIDE, dispatch};

/// Rows whose bounds are checked at a time.
const BLOCK: usize = 256;

/// The state of one fit.
pub(crate) struct DenseFit<T> {
    pub(crate) labels: Vec<u32>,
    /// Empty without bounds.
    upper: Vec<f32>,
    lower: Vec<f32>,
    /// The centers for which the bounds were computed; empty if there are no bounds.
    previous: Vec<f64>,
    rest: BoundsPause,
    scratch: Vec<DenseScratch<T>>,
}

/// The working data of one thread.
struct DenseScratch<T> {
    panel: PointPanel<T>,
    nearest: NearestCentres<T>,
    /// Rows whose bounds failed.
    pending: Vec<usize>,
    delta: ClusterSums,
    searched: u64,
    /// Rows that had a first pass in this step, and those that it left open.
    #[cfg(target_arch = "x86_64")]
    looked: u64,
    #[cfg(target_arch = "x86_64")]
    open_total: u64,
    #[cfg(target_arch = "x86_64")]
    open: Vec<usize>,
    /// The centers that may be nearest to a row.
    #[cfg(target_arch = "x86_64")]
    candidates: Vec<usize>,
    #[cfg(target_arch = "x86_64")]
    look: FirstPass,
    /// Rows of the block that change their label, with the new one.
    moved: Vec<(usize, u32)>,
}

impl<T: FloatElement> DenseFit<T> {
    pub(crate) fn new(n: usize, k: usize, d: usize, threads: usize, bounded: bool) -> Self {
        let bounds = if bounded { n } else { 0 };
        DenseFit {
            labels: vec![NONE; n],
            upper: vec![0.0; bounds],
            lower: vec![0.0; bounds],
            previous: Vec::new(),
            rest: BoundsPause::default(),
            scratch: (0..threads)
                .map(|_| DenseScratch {
                    panel: PointPanel::new(d),
                    nearest: NearestCentres::new(),
                    pending: Vec::new(),
                    delta: ClusterSums::new(k, d),
                    searched: 0,
                    #[cfg(target_arch = "x86_64")]
                    looked: 0,
                    #[cfg(target_arch = "x86_64")]
                    open_total: 0,
                    #[cfg(target_arch = "x86_64")]
                    open: Vec::new(),
                    #[cfg(target_arch = "x86_64")]
                    candidates: Vec::new(),
                    #[cfg(target_arch = "x86_64")]
                    look: FirstPass::default(),
                    moved: Vec::new(),
                })
                .collect(),
        }
    }

    /// A state without bounds, for rows that have labels.
    pub(crate) fn with_labels(labels: Vec<u32>, k: usize, d: usize, threads: usize) -> Self {
        DenseFit { labels, ..DenseFit::new(0, k, d, threads, false) }
    }

    /// Assigns every row to its nearest center, and updates `total` for the rows that change. Returns how many rows
    /// were searched.
    pub(crate) fn step(
        &mut self,
        pool: &Pool,
        isa: Isa,
        rows: PointRows<'_, T>,
        centres: &TiledCentres<T>,
        total: &mut ClusterSums,
    ) -> u64 {
        let bounded = self.upper.len() == rows.n() && rows.n() > 0 && self.rest.left == 0;
        let motion =
            (bounded && !self.previous.is_empty()).then(|| CentreMotion::new(pool, isa, &self.previous, centres));
        self.previous.clear();
        if bounded {
            self.previous.extend_from_slice(&centres.exact);
        }
        let rounding = RoundingBounds::new::<T>(rows.d(), centres.norm_max);
        let mut parts = Vec::new();
        let (mut labels, mut upper, mut lower) = (&mut self.labels[..], &mut self.upper[..], &mut self.lower[..]);
        for (thread, scratch) in self.scratch.iter_mut().enumerate() {
            let range = share(rows.n(), BLOCK, thread, pool.threads());
            let bounds = if bounded { range.len() } else { 0 };
            let (mine, rest) = labels.split_at_mut(range.len());
            labels = rest;
            let (upper_mine, rest) = upper.split_at_mut(bounds);
            upper = rest;
            let (lower_mine, rest) = lower.split_at_mut(bounds);
            lower = rest;
            let part = DensePart { first: range.start, labels: mine, upper: upper_mine, lower: lower_mine, scratch };
            parts.push(part);
        }
        #[cfg(target_arch = "x86_64")]
        let coarse = first_pass::CoarseCentres::new(isa, &centres.exact, rows.d());
        pool.each(&mut parts, |_, part| {
            let step = DenseStep {
                part,
                rows,
                centres,
                rounding,
                motion: motion.as_ref(),
                #[cfg(target_arch = "x86_64")]
                coarse: coarse.as_ref(),
            };
            dispatch(isa, step);
        });
        for scratch in self.scratch.iter().filter(|scratch| scratch.delta.changed > 0) {
            total.merge(&scratch.delta);
        }
        let searched = self.scratch.iter().map(|scratch| scratch.searched).sum();
        // The first step with bounds searches all rows, because it computes the bounds.
        if !bounded || motion.is_some() {
            self.rest.after(rows.n(), searched);
        }
        searched
    }
}

/// One thread's rows.
struct DensePart<'a, T> {
    first: usize,
    labels: &'a mut [u32],
    upper: &'a mut [f32],
    lower: &'a mut [f32],
    scratch: &'a mut DenseScratch<T>,
}

struct DenseStep<'a, 'b, T> {
    part: &'a mut DensePart<'b, T>,
    rows: PointRows<'a, T>,
    centres: &'a TiledCentres<T>,
    rounding: RoundingBounds,
    motion: Option<&'a CentreMotion>,
    /// The centers for the first pass, if the instruction set has one and it pays.
    #[cfg(target_arch = "x86_64")]
    coarse: Option<&'a first_pass::CoarseCentres>,
}

impl<T: FloatElement> Kernel<T> for DenseStep<'_, '_, T> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd<Elem = T>>(mut self, s: S) {
        let scratch = &mut *self.part.scratch;
        scratch.delta.clear();
        scratch.searched = 0;
        let n = self.part.labels.len();
        #[cfg(target_arch = "x86_64")]
        if let Some(coarse) = self.coarse {
            (scratch.looked, scratch.open_total) = (0, 0);
            scratch.look.begin(coarse, n, self.rows.d());
        }
        let mut pending = std::mem::take(&mut self.part.scratch.pending);
        pending.clear();
        let mut tightening = TighteningPolicy::default();
        for block in (0..n).step_by(BLOCK) {
            let block = block..(block + BLOCK).min(n);
            let last = block.end == n;
            #[cfg(target_arch = "x86_64")]
            if self.coarse.is_some() {
                // SAFETY: the first pass is used only with an instruction set that supports it.
                unsafe { self.part.scratch.look.extend(&self.rows, self.part.first, block.end) };
            }
            match self.motion {
                None => pending.extend(block),
                Some(motion) => self.filter(motion, block, &mut pending, &mut tightening),
            }
            self.part.scratch.searched += pending.len() as u64;
            let taken = self.settle(s, &pending, last);
            pending.drain(..taken);
            self.part.scratch.searched -= pending.len() as u64;
            self.relocate();
        }
        #[cfg(target_arch = "x86_64")]
        {
            self.part.scratch.look.end();
            let mut open = std::mem::take(&mut self.part.scratch.open);
            self.settle_by_tile(s, &open, true);
            open.clear();
            self.part.scratch.open = open;
            self.relocate();
        }
        self.part.scratch.pending = pending;
    }
}

impl<T: FloatElement> DenseStep<'_, '_, T> {
    /// Moves the bounds of the rows in `block` with the centers, and adds the rows that they leave undecided to
    /// `pending`.
    #[inline(always)]
    fn filter(
        &mut self,
        motion: &CentreMotion,
        block: std::ops::Range<usize>,
        pending: &mut Vec<usize>,
        tightening: &mut TighteningPolicy,
    ) {
        let old = pending.len();
        let (farthest, most, second) = motion.farthest;
        for i in block {
            let label = self.part.labels[i];
            let upper = (self.part.upper[i] + motion.moved[label as usize]) * UP;
            let others = if label == farthest { second } else { most };
            let lower = (self.part.lower[i] - others) * DOWN;
            self.part.upper[i] = upper;
            self.part.lower[i] = lower;
            let decided = upper < lower.max(motion.separation[label as usize]);
            if !decided {
                pending.push(i);
            }
        }
        #[cfg(target_arch = "x86_64")]
        let looks = self.coarse.is_some();
        #[cfg(not(target_arch = "x86_64"))]
        let looks = false;
        if !tightening.pays(self.centres.k, looks) {
            return;
        }
        let mut kept = old;
        for at in old..pending.len() {
            let i = pending[at];
            let label = self.part.labels[i] as usize;
            let raw = self.rows.raw(self.part.first + i);
            let distance = squared_distance(raw, self.rows.shift(), self.centres.get(label)).sqrt();
            let upper = distance as f32 * UP;
            self.part.upper[i] = upper;
            let decided = upper < self.part.lower[i].max(motion.separation[label]);
            if !decided {
                pending[kept] = i;
                kept += 1;
            }
        }
        tightening.tried += (pending.len() - old) as u32;
        tightening.kept += (pending.len() - kept) as u32;
        pending.truncate(kept);
    }

    /// Searches full panels of `pending`, and with `all` also the remainder; returns how many rows it took.
    #[inline(always)]
    fn settle<S: Simd<Elem = T>>(&mut self, s: S, pending: &[usize], all: bool) -> usize {
        #[cfg(target_arch = "x86_64")]
        if let Some(coarse) = self.coarse {
            return self.settle_by_look(s, coarse, pending, all);
        }
        self.settle_by_tile(s, pending, all)
    }

    /// Uses the distance tile.
    #[inline(always)]
    fn settle_by_tile<S: Simd<Elem = T>>(&mut self, s: S, pending: &[usize], all: bool) -> usize {
        let points = WIDE * S::LANES;
        let (rows, first) = (self.rows, self.part.first);
        let mut found = SearchResult::new();
        let mut taken = 0;
        while pending.len() - taken >= if all { 1 } else { points } {
            let (now, next) = pending[taken..].split_at(points.min(pending.len() - taken));
            let scratch = &mut *self.part.scratch;
            scratch.panel.fill(s, &rows, now.len(), |lane| first + now[lane]);
            let ahead = next.len().min(points);
            search(s, &scratch.panel, self.centres, &mut scratch.nearest, |part, parts| {
                rows.prefetch(ahead, |lane| first + next[lane], part, parts);
            });
            for lane in 0..points {
                found.squared[lane] = scratch.panel.norms[lane];
                found.best[lane] = scratch.nearest.best[lane].to_f64();
                found.second[lane] = scratch.nearest.second[lane].to_f64();
                found.label[lane] = scratch.nearest.index[lane].to_f64() as u32;
            }
            found.error = [self.rounding.relative; PANEL_MAX];
            found.judge(points, self.rounding, self.rounding.relative, !self.part.upper.is_empty());
            for (lane, &i) in now.iter().enumerate() {
                if found.certain[lane] {
                    self.accept(i, found.label[lane], found.upper[lane], found.lower[lane]);
                } else {
                    let (label, best, second) = exact::nearest(&rows, first + i, &self.centres.exact);
                    self.accept(i, label as u32, best.sqrt() as f32 * UP, second.sqrt() as f32 * DOWN);
                }
            }
            taken += now.len();
        }
        taken
    }

    /// Uses the first pass. Rows that it leaves open are compared exactly with the few centers that can be nearest; if
    /// these are many, or unknown, the rows go to the tile.
    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    fn settle_by_look<S: Simd<Elem = T>>(
        &mut self,
        s: S,
        coarse: &first_pass::CoarseCentres,
        pending: &[usize],
        all: bool,
    ) -> usize {
        let rounding = RoundingBounds::coarse(self.centres.norm_max);
        let precision = coarse.precision();
        let mut found = SearchResult::new();
        let mut taken = 0;
        while pending.len() - taken >= if all { 1 } else { first_pass::POINTS } {
            // If most rows stay open, for example because one center is far beyond all others, the first pass is a
            // waste.
            let scratch = &mut *self.part.scratch;
            if scratch.looked >= 1024 && scratch.open_total * 4 > scratch.looked {
                return taken + self.settle_by_tile(s, &pending[taken..], all);
            }
            let (now, next) = pending[taken..].split_at(first_pass::POINTS.min(pending.len() - taken));
            // SAFETY: the first pass is used only with an instruction set that supports it, and `run` has begun it with
            // `coarse`.
            let glance = unsafe { scratch.look.search(coarse, now, &next[..next.len().min(first_pass::POINTS)]) };
            for lane in 0..first_pass::POINTS {
                let scale = f64::from(glance.scale[lane]);
                found.squared[lane] = glance.norms[lane];
                found.error[lane] = f64::from(glance.errors[lane]);
                found.best[lane] = f64::from(glance.best[lane]) * scale;
                found.second[lane] = f64::from(glance.second[lane]) * scale;
                found.label[lane] = glance.index[lane] as u32;
            }
            if let Some(precision) = &precision {
                found.judge_distances(first_pass::POINTS, precision);
                for (lane, &i) in now.iter().enumerate() {
                    if found.certain[lane] {
                        continue;
                    }
                    let (squared, lost) = (found.squared[lane], found.error[lane]);
                    let far = f64::from(found.upper[lane]);
                    let Some(limit) = precision.beyond(squared, lost, far) else { continue };
                    if glance.candidates(lane, self.centres.k, limit, &mut scratch.candidates) {
                        let row = self.part.first + i;
                        let (label, best, second) =
                            exact::nearest_of(&self.rows, row, &self.centres.exact, &scratch.candidates);
                        found.label[lane] = label as u32;
                        found.upper[lane] = best.sqrt() as f32 * UP;
                        // All others are at least `far` away.
                        found.lower[lane] = second.sqrt().min(far) as f32 * DOWN;
                        found.certain[lane] = true;
                    }
                }
            } else {
                found.judge(first_pass::POINTS, rounding, first_pass::NORM_ERROR, !self.part.upper.is_empty());
            }
            scratch.looked += now.len() as u64;
            for (lane, &i) in now.iter().enumerate() {
                if found.certain[lane] {
                    self.accept(i, found.label[lane], found.upper[lane], found.lower[lane]);
                } else {
                    self.part.scratch.open.push(i);
                }
            }
            taken += now.len();
            let mut open = std::mem::take(&mut self.part.scratch.open);
            let settled = self.settle_by_tile(s, &open, false);
            self.part.scratch.open_total += settled as u64;
            open.drain(..settled);
            self.part.scratch.open = open;
        }
        taken
    }

    /// Records the label of row `i` of this part if it is new, and writes its bounds.
    #[inline(always)]
    fn accept(&mut self, i: usize, label: u32, upper: f32, lower: f32) {
        if self.part.labels[i] != label {
            self.part.scratch.moved.push((i, label));
            self.rows.prefetch(1, |_| self.part.first + i, 0, 1);
        }
        if !self.part.upper.is_empty() {
            self.part.upper[i] = upper;
            self.part.lower[i] = lower;
        }
    }

    /// Moves the recorded rows; the memory of most has arrived by now.
    #[inline(always)]
    fn relocate(&mut self) {
        let DenseScratch { moved, delta, .. } = &mut *self.part.scratch;
        for (i, label) in moved.drain(..) {
            delta.relocate(&self.rows, self.part.first + i, self.part.labels[i], label);
            self.part.labels[i] = label;
        }
    }
}

/// The search results for a panel of points, and their consequences.
struct SearchResult {
    /// Squared norms of the points.
    squared: [f64; PANEL_MAX],
    /// Errors of `best` and `second`, as `RoundingBounds::relative`.
    error: [f64; PANEL_MAX],
    best: [f64; PANEL_MAX],
    second: [f64; PANEL_MAX],
    label: [u32; PANEL_MAX],
    certain: [bool; PANEL_MAX],
    upper: [f32; PANEL_MAX],
    lower: [f32; PANEL_MAX],
}

impl SearchResult {
    fn new() -> Self {
        SearchResult {
            squared: [0.0; PANEL_MAX],
            error: [0.0; PANEL_MAX],
            best: [0.0; PANEL_MAX],
            second: [0.0; PANEL_MAX],
            label: [0; PANEL_MAX],
            certain: [false; PANEL_MAX],
            upper: [0.0; PANEL_MAX],
            lower: [0.0; PANEL_MAX],
        }
    }

    /// Whether each label is certain, given the errors of `best` and `second`. With `bounds`, computes bounds on the
    /// distances, too; `relative` is the error of a squared norm.
    #[inline(always)]
    fn judge(&mut self, points: usize, rounding: RoundingBounds, relative: f64, bounds: bool) {
        assert!(points <= PANEL_MAX, "a panel holds at most {PANEL_MAX} points");
        let mut errors = [(0.0, 0.0); PANEL_MAX];
        for (lane, error) in errors.iter_mut().enumerate().take(points) {
            let norm = (self.squared[lane] * (1.0 + relative)).sqrt();
            let (best, second) = (self.best[lane], self.second[lane]);
            let rounding = rounding.with(self.error[lane]);
            *error = (rounding.of(norm, best), rounding.of(norm, second));
            self.certain[lane] = second - best > error.0 + error.1;
        }
        if !bounds {
            return;
        }
        for (lane, (best_error, second_error)) in errors.into_iter().enumerate().take(points) {
            let (squared, best, second) = (self.squared[lane], self.best[lane], self.second[lane]);
            let slack = relative * squared;
            self.upper[lane] = (squared + 2.0 * (best + best_error) + slack).max(0.0).sqrt() as f32 * UP;
            self.lower[lane] = (squared + 2.0 * (second - second_error) - slack).max(0.0).sqrt() as f32 * DOWN;
        }
    }

    /// Whether each label is certain, and bounds on the distances, for errors that are bounded in distances: `error` is
    /// the `lost` of `CoarsePrecision::bounds`.
    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    fn judge_distances(&mut self, points: usize, precision: &first_pass::CoarsePrecision) {
        assert!(points <= PANEL_MAX, "a panel holds at most {PANEL_MAX} points");
        for lane in 0..points {
            let (squared, lost) = (self.squared[lane], self.error[lane]);
            let (_, high) = precision.bounds(squared, lost, self.best[lane]);
            let (low, _) = precision.bounds(squared, lost, self.second[lane]);
            self.upper[lane] = high as f32 * UP;
            self.lower[lane] = low as f32 * DOWN;
            self.certain[lane] = high < low;
        }
    }
}
