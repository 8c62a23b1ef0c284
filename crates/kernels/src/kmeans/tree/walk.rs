//! One step through the forest: which centers reach a node, and what happens to a leaf.

use super::{MIXED, PADDING, TreeBranch, TreePart};
use crate::kmeans::exact::squared_distance;
use crate::kmeans::sums::{ClusterSums, NONE};
use crate::simd::{FloatElement, Kernel, Simd, WIDE};

/// A center and its number.
#[derive(Clone, Copy, Debug)]
pub(super) struct CentreCandidate<const D: usize> {
    x: [f64; D],
    index: u32,
}

/// All centers, in the form that the walk needs.
pub(super) fn candidates<const D: usize>(centres: &[f64]) -> Vec<CentreCandidate<D>> {
    let centre = |(j, x): (usize, &[f64])| CentreCandidate { x: x.try_into().expect("D features"), index: j as u32 };
    centres.chunks_exact(D).enumerate().map(centre).collect()
}

/// The working data of a walk besides the tree; kept between steps so that a step does not allocate.
pub(super) struct WalkScratch<T, const D: usize> {
    /// The candidates of every node on the path down, concatenated.
    stack: Vec<CentreCandidate<D>>,
    /// The candidates of one leaf, as elements.
    near: Vec<([T; D], T)>,
}

impl<T, const D: usize> Default for WalkScratch<T, D> {
    fn default() -> Self {
        WalkScratch { stack: Vec::new(), near: Vec::new() }
    }
}

/// A step over one thread's tree.
pub(super) struct TreeStep<'a, T, const D: usize> {
    pub(super) part: &'a mut TreePart<T, D>,
    pub(super) centres: &'a [CentreCandidate<D>],
}

impl<T: FloatElement, const D: usize> Kernel<T> for TreeStep<'_, T, D> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd<Elem = T>>(self, s: S) {
        let TreePart { branch, delta, scratch, searched } = self.part;
        scratch.stack.clear();
        scratch.stack.extend_from_slice(self.centres);
        if !branch.nodes.is_empty() {
            TreeWalk { branch, delta, scratch, searched }.go(s);
        }
    }
}

struct TreeWalk<'a, T, const D: usize> {
    branch: &'a mut TreeBranch<T, D>,
    delta: &'a mut ClusterSums,
    scratch: &'a mut WalkScratch<T, D>,
    searched: &'a mut u64,
}

impl<T: FloatElement, const D: usize> TreeWalk<'_, T, D> {
    /// Visits the nodes in preorder; `pending` holds the right children still to visit, with the candidates of their
    /// parents.
    #[inline(always)]
    fn go<S: Simd<Elem = T>>(&mut self, s: S) {
        let mut pending: Vec<(u32, u32, u32)> = Vec::with_capacity(64);
        let (mut node, mut from, mut to) = (0u32, 0usize, self.scratch.stack.len());
        loop {
            let visited = self.branch.nodes[node as usize];
            self.scratch.stack.truncate(to);
            filter(&mut self.scratch.stack, from, &visited.low, &visited.high);
            let (first, end) = (visited.first_leaf as usize, visited.end_leaf as usize);
            if self.scratch.stack.len() - to == 1 {
                let owner = self.scratch.stack[to].index;
                for leaf in first..end {
                    if self.branch.leaves[leaf].owner != owner {
                        self.give(leaf, owner);
                    }
                }
            } else if visited.right == 0 {
                self.compare(s, first, to, &visited.low, &visited.high);
            } else {
                let next_to = self.scratch.stack.len();
                pending.push((visited.right, to as u32, next_to as u32));
                (node, from, to) = (node + 1, to, next_to);
                continue;
            }
            let Some(next) = pending.pop() else { return };
            (node, from, to) = (next.0, next.1 as usize, next.2 as usize);
        }
    }

    /// Assigns all points of a leaf to one center.
    fn give(&mut self, leaf: usize, owner: u32) {
        let LeafSnapshot { start, end, old, count, weight, sum } = self.leaf(leaf);
        if old == MIXED {
            for at in start..end {
                let label = self.branch.labels[at].to_f64() as u32;
                if label != owner {
                    self.delta.relocate_point(self.branch.point(at), self.branch.weight(at), label, owner);
                }
            }
        } else {
            self.delta.add_sum(sum, weight, count, owner);
            if old != NONE {
                self.delta.add_sum(sum.map(|x| -x), -weight, -count, old);
            }
            self.delta.changed += (end - start) as u64;
        }
        self.branch.leaves[leaf].owner = owner;
    }

    fn leaf(&self, leaf: usize) -> LeafSnapshot<D> {
        let leaf = &self.branch.leaves[leaf];
        LeafSnapshot {
            start: leaf.start as usize,
            end: leaf.end as usize,
            old: leaf.owner,
            count: i64::from(leaf.count),
            weight: leaf.weight,
            sum: leaf.sum,
        }
    }

    /// Compares every point of a leaf with the candidates from `from` on.
    #[inline(always)]
    fn compare<S: Simd<Elem = T>>(&mut self, s: S, leaf: usize, from: usize, low: &[f64; D], high: &[f64; D]) {
        let LeafSnapshot { start, end, old, count, weight, sum } = self.leaf(leaf);
        *self.searched += (end - start) as u64;
        let changed_before = self.delta.changed;
        // A leaf that had one owner now gets a label for each point. In the sums, points without a label all go to the
        // first candidate at once, and those that belong elsewhere then move on.
        if old != MIXED {
            let owner = if old == NONE { self.scratch.stack[from].index } else { old };
            if old == NONE {
                self.delta.add_sum(sum, weight, count, owner);
            }
            self.branch.labels[start..end].fill(T::from_f64(f64::from(owner)));
            self.branch.leaves[leaf].owner = MIXED;
        }
        let candidates = &self.scratch.stack[from..];
        self.scratch.near.clear();
        for candidate in candidates {
            self.scratch.near.push((candidate.x.map(T::from_f64), T::from_f64(f64::from(candidate.index))));
        }
        let margin = margin::<T, D>(candidates, low, high);
        let infinity = s.splat(T::from_f64(f64::INFINITY));
        let step = WIDE * S::LANES;
        debug_assert!(step <= PADDING);
        for at in (start..end).step_by(step) {
            let (mut best, mut second, mut index) = ([infinity; WIDE], [infinity; WIDE], [infinity; WIDE]);
            // SAFETY: every list of points and the labels have `PADDING >= WIDE * LANES` elements after the last point,
            // and `at` is that of a point. Benefit: no bounds checks where the step spends its time.
            let (points, labels) = unsafe {
                let mut points = [[infinity; WIDE]; D];
                for (f, point) in points.iter_mut().enumerate() {
                    for (w, lanes) in point.iter_mut().enumerate() {
                        *lanes = s.load(self.branch.points[f].as_ptr().add(at + w * S::LANES));
                    }
                }
                let labels: [S::V; WIDE] =
                    std::array::from_fn(|w| s.load(self.branch.labels.as_ptr().add(at + w * S::LANES)));
                (points, labels)
            };
            for (centre, number) in &self.scratch.near {
                let number = s.splat(*number);
                for w in 0..WIDE {
                    let mut distance = s.splat(T::default());
                    for f in 0..D {
                        let difference = s.sub(points[f][w], s.splat(centre[f]));
                        distance = s.mul_add(difference, difference, distance);
                    }
                    s.keep_nearest(distance, number, &mut best[w], &mut second[w], &mut index[w]);
                }
            }
            for w in 0..WIDE {
                let first = at + w * S::LANES;
                if first >= end {
                    break;
                }
                let valid = if end - first >= S::LANES { u32::MAX } else { (1 << (end - first)) - 1 };
                let unsure = !s.bits(s.lt(s.splat(margin), s.sub(second[w], best[w])));
                let differ = s.bits(s.lt(labels[w], index[w])) | s.bits(s.lt(index[w], labels[w]));
                let lanes = (unsure | differ) & valid & (u32::MAX >> (32 - S::LANES as u32));
                if lanes != 0 {
                    let mut found = [T::default(); 16];
                    // SAFETY: no set has more than 16 lanes.
                    unsafe { s.store(found.as_mut_ptr(), index[w]) };
                    self.relabel(first, lanes, unsure, &found, from);
                }
            }
        }
        if old == NONE {
            self.delta.changed = changed_before + (end - start) as u64;
        }
    }

    /// Moves the points at `first` whose bits are set in `lanes`; those in `unsure` are compared again, exactly.
    fn relabel(&mut self, first: usize, mut lanes: u32, unsure: u32, found: &[T; 16], from: usize) {
        while lanes != 0 {
            let lane = lanes.trailing_zeros() as usize;
            lanes &= lanes - 1;
            let at = first + lane;
            let point = self.branch.point(at);
            let mut label = found[lane].to_f64() as u32;
            if unsure >> lane & 1 == 1 {
                let mut best = f64::INFINITY;
                for candidate in &self.scratch.stack[from..] {
                    let distance = squared_distance(&point, &[0.0; D], &candidate.x);
                    if distance < best {
                        (best, label) = (distance, candidate.index);
                    }
                }
            }
            let old = self.branch.labels[at].to_f64() as u32;
            if label != old {
                self.delta.relocate_point(point, self.branch.weight(at), old, label);
                self.branch.labels[at] = T::from_f64(f64::from(label));
            }
        }
    }
}

/// The contents of a leaf before it changes.
struct LeafSnapshot<const D: usize> {
    start: usize,
    end: usize,
    old: u32,
    count: i64,
    weight: f64,
    sum: [f64; D],
}

/// Appends those of its candidates from `from` on that may be nearest to some point of the box to `stack`, in order.
///
/// The candidate nearest to the middle, `z`, beats `c` in the whole box if it does so in the corner that lies farthest
/// toward `c`: the difference of the two squared distances is linear.
#[inline(always)]
fn filter<const D: usize>(stack: &mut Vec<CentreCandidate<D>>, from: usize, low: &[f64; D], high: &[f64; D]) {
    let to = stack.len();
    let mut best = (f64::INFINITY, from);
    for (at, candidate) in stack.iter().enumerate().skip(from) {
        let mut distance = 0.0;
        for f in 0..D {
            let difference = candidate.x[f] - 0.5 * (low[f] + high[f]);
            distance += difference * difference;
        }
        if distance < best.0 {
            best = (distance, at);
        }
    }
    let z = stack[best.1];
    for at in from..to {
        let c = stack[at];
        let (mut own, mut others) = (0.0, 0.0);
        for f in 0..D {
            let corner = if c.x[f] > z.x[f] { high[f] } else { low[f] };
            own += (corner - c.x[f]) * (corner - c.x[f]);
            others += (corner - z.x[f]) * (corner - z.x[f]);
        }
        // Only if it exceeds any rounding: a center kept needlessly costs a comparison, one dropped by mistake gives a
        // wrong label.
        let beaten = own * (1.0 - 1e-14) > others;
        if !beaten || c.index == z.index {
            stack.push(c);
        }
    }
}

/// A bound on the rounding error in the difference of two squared distances of points in the box.
///
/// With `r` the largest distance from a candidate to a point, and `a` the combined rounding of a center's coordinates,
/// the error of a squared distance is at most `(d + 4) u r^2 + 2 a r + a^2`.
#[inline(always)]
fn margin<T: FloatElement, const D: usize>(candidates: &[CentreCandidate<D>], low: &[f64; D], high: &[f64; D]) -> T {
    let unit = T::EPSILON / 2.0;
    let (mut reach, mut size) = (0.0f64, 0.0f64);
    for candidate in candidates {
        let (mut squared, mut norm) = (0.0, 0.0);
        for f in 0..D {
            let x = candidate.x[f];
            let difference = (x - low[f]).abs().max((x - high[f]).abs());
            squared += difference * difference;
            norm += x * x;
        }
        reach = reach.max(squared);
        size = size.max(norm);
    }
    let rounding = unit * size.sqrt();
    let each = (D as f64 + 4.0) * unit * reach + 2.0 * rounding * reach.sqrt() + rounding * rounding;
    let tiny = if size_of::<T>() == 4 { f64::from(f32::MIN_POSITIVE) } else { f64::MIN_POSITIVE };
    T::from_f64(2.0 * each * (1.0 + 1e-6) + 8.0 * D as f64 * tiny)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A center that is nearest to some corner must survive, or points there get a wrong label.
    #[test]
    fn filter_keeps_every_centre_nearest_to_a_corner() {
        let centres: Vec<f64> = (0..60).map(|i| f64::from((i * 29 + 7) % 31) / 10.0).collect();
        let all = candidates::<2>(&centres);
        for cell in 0..40 {
            let low = [f64::from(cell % 7) * 0.4, f64::from(cell % 5) * 0.5];
            let high = [low[0] + 0.3, low[1] + 0.4];
            let mut stack = all.clone();
            filter(&mut stack, 0, &low, &high);
            for corner in [low, high, [low[0], high[1]], [high[0], low[1]]] {
                let nearest = all
                    .iter()
                    .min_by(|a, b| {
                        let distance = |c: &CentreCandidate<2>| squared_distance(&corner, &[0.0; 2], &c.x);
                        distance(a).total_cmp(&distance(b))
                    })
                    .unwrap();
                assert!(stack[all.len()..].iter().any(|kept| kept.index == nearest.index));
            }
        }
    }
}
