//! Builds the forest: cells from a sample, rows to cells, then a branch over each thread's cells; all threads take
//! part, except in sampling.
//!
//! Space is first cut at medians of a sample, down to cells of about two thousand rows: this adapts to the data,
//! however uneven. Within a cell, halving the longest side a few times at once is good enough, and takes one counting
//! sort.

use super::{BoundingNode, Forest, PADDING, TreeBranch, TreeLeaf, TreePart, walk};
use crate::kmeans::rows::PointRows;
use crate::kmeans::sums::{ClusterSums, NONE};
use crate::pool::{Pool, share};
use crate::simd::{FloatElement, Isa};
use std::ops::Range;

/// Rows in the sample, target number of rows per cell, and maximum number of cells.
const SAMPLE: usize = 32_768;
const CELL_ROWS: usize = 2048;
const CELLS_MAX: usize = 4096; // numbers of 16 bits hold them

/// Maximum number of halvings of a cell by one sort.
const HALVINGS_MAX: u32 = 5;

/// A shifted row and its number.
#[derive(Clone, Copy)]
struct NumberedRow<T, const D: usize> {
    x: [T; D],
    row: u32,
}

/// A box around points.
type Bounds<const D: usize> = ([f64; D], [f64; D]);

/// A complete binary tree of cuts, with its root at 1. A point's cell is where it ends up at the bottom.
struct CutTree<T> {
    depth: u32,
    cuts: Vec<(T, u32)>,
}

impl<T: FloatElement> CutTree<T> {
    fn new<const D: usize>(sample: &mut [[T; D]], depth: u32) -> Self {
        let mut cuts = CutTree { depth, cuts: vec![(T::default(), 0); 1 << depth] };
        cuts.cut(sample, 1);
        cuts
    }

    fn cut<const D: usize>(&mut self, sample: &mut [[T; D]], at: usize) {
        if at >= self.cuts.len() || sample.is_empty() {
            return;
        }
        let (low, high) = bounds(sample, |point| *point);
        let feature = widest(&low, &high);
        let middle = sample.len() / 2;
        let order = |a: &[T; D], b: &[T; D]| a[feature].partial_cmp(&b[feature]).unwrap_or(std::cmp::Ordering::Equal);
        sample.select_nth_unstable_by(middle, order);
        self.cuts[at] = (sample[middle][feature], feature as u32);
        let (left, right) = sample.split_at_mut(middle);
        self.cut(left, 2 * at);
        self.cut(right, 2 * at + 1);
    }

    /// The cells of eight points at once: each step waits for the previous one, so a single point would mostly wait.
    #[inline(always)]
    fn cells<const D: usize>(&self, points: &[[T; D]; 8]) -> [u16; 8] {
        let mut at = [1; 8];
        for _ in 0..self.depth {
            for (at, x) in at.iter_mut().zip(points) {
                let (value, feature) = self.cuts[*at];
                *at = 2 * *at + usize::from(x[feature as usize] >= value);
            }
        }
        at.map(|at| (at - self.cuts.len()) as u16)
    }
}

/// The smallest box around points. Four at a time, because each comparison waits for the previous one.
#[inline(always)]
fn bounds<V, T: FloatElement, const D: usize>(points: &[V], x: impl Fn(&V) -> [T; D]) -> Bounds<D> {
    let infinity = T::from_f64(f64::INFINITY);
    let mut low = [[infinity; D]; 4];
    let mut high = [[T::from_f64(f64::NEG_INFINITY); D]; 4];
    let mut take = |lane: usize, point: &V| {
        let x = x(point);
        for f in 0..D {
            low[lane][f] = if x[f] < low[lane][f] { x[f] } else { low[lane][f] };
            high[lane][f] = if x[f] > high[lane][f] { x[f] } else { high[lane][f] };
        }
    };
    let chunks = points.chunks_exact(4);
    chunks.remainder().iter().for_each(|point| take(0, point));
    for chunk in chunks {
        for (lane, point) in chunk.iter().enumerate() {
            take(lane, point);
        }
    }
    (
        std::array::from_fn(|f| low.iter().map(|lane| lane[f].to_f64()).fold(f64::INFINITY, f64::min)),
        std::array::from_fn(|f| high.iter().map(|lane| lane[f].to_f64()).fold(f64::NEG_INFINITY, f64::max)),
    )
}

fn widest<const D: usize>(low: &[f64; D], high: &[f64; D]) -> usize {
    let mut widest = 0;
    for f in 1..D {
        if high[f] - low[f] > high[widest] - low[widest] {
            widest = f;
        }
    }
    widest
}

impl<T: FloatElement, const D: usize> Forest<T, D> {
    pub(super) fn new(pool: &Pool, _isa: Isa, rows: PointRows<'_, T>, k: usize) -> Self {
        let (n, threads) = (rows.n(), pool.threads());
        let shift: [T; D] = rows.shift().try_into().expect("D features");
        let (raw, _) = rows.block(0..n).as_chunks::<D>();
        let entry = |i: usize| NumberedRow { x: std::array::from_fn(|f| raw[i][f].minus(shift[f])), row: i as u32 };
        let cells = (n / CELL_ROWS).clamp(1, CELLS_MAX).next_power_of_two();
        let stride = (n / SAMPLE).max(1);
        let mut sample: Vec<[T; D]> = (0..n).step_by(stride).map(|i| entry(i).x).collect();
        let cuts = CutTree::new(&mut sample, cells.trailing_zeros());

        // Every thread sorts its own rows, so that no two write to the same place.
        let mut sorted: Vec<CellRows<T, D>> =
            (0..threads).map(|_| CellRows { entries: Vec::new(), ends: vec![0; cells] }).collect();
        pool.each(&mut sorted, |worker, sorted| {
            let range = worker.share(n, 1);
            let mut numbers = Vec::with_capacity(range.len() + 8);
            for first in range.clone().step_by(8) {
                let points = std::array::from_fn(|lane| entry((first + lane).min(range.end - 1)).x);
                numbers.extend_from_slice(&cuts.cells::<D>(&points));
            }
            numbers.truncate(range.len());
            for &number in &numbers {
                sorted.ends[number as usize] += 1;
            }
            let mut sum = 0;
            for end in &mut sorted.ends {
                sum += *end;
                *end = sum - *end;
            }
            sorted.entries = Vec::with_capacity(range.len());
            sorted.entries.resize(range.len(), NumberedRow { x: [T::default(); D], row: 0 });
            for (i, number) in range.zip(numbers) {
                let at = &mut sorted.ends[number as usize];
                sorted.entries[*at] = entry(i);
                *at += 1;
            }
        });

        let counts: Vec<usize> = (0..cells).map(|cell| sorted.iter().map(|one| one.cell(cell).len()).sum()).collect();
        let leaf_max = leaf_size(n, k);
        let mut owned: Vec<(Range<usize>, Option<TreeBranch<T, D>>)> =
            balanced(&counts, threads).into_iter().map(|range| (range, None)).collect();
        pool.each(&mut owned, |_, (range, branch)| {
            *branch = Some(TreeBranch::new(range.clone(), &counts, &sorted, &rows, leaf_max));
        });
        let part = |branch| TreePart {
            branch,
            delta: ClusterSums::new(k, D),
            scratch: walk::WalkScratch::default(),
            searched: 0,
        };
        let parts = owned.into_iter().map(|(_, branch)| part(branch.expect("every thread made its branch"))).collect();
        Forest { parts }
    }
}

/// Points in a leaf: few enough for most leaves to meet one or two centers, enough to fill vectors.
fn leaf_size(n: usize, k: usize) -> usize {
    (n / k / 16).clamp(48, 1024)
}

/// Splits cells with these counts into `threads` contiguous ranges of about equal sums.
fn balanced(counts: &[usize], threads: usize) -> Vec<Range<usize>> {
    let total: usize = counts.iter().sum();
    let (mut ranges, mut start, mut passed) = (Vec::new(), 0, 0);
    for thread in 0..threads {
        let goal = share(total, 1, thread, threads).end;
        let mut end = start;
        while end < counts.len() && (passed + counts[end] / 2 < goal || thread + 1 == threads) {
            passed += counts[end];
            end += 1;
        }
        ranges.push(start..end);
        start = end;
    }
    ranges
}

/// The rows of one thread, cell after cell.
struct CellRows<T, const D: usize> {
    entries: Vec<NumberedRow<T, D>>,
    /// The end of each cell.
    ends: Vec<usize>,
}

impl<T, const D: usize> CellRows<T, D> {
    fn cell(&self, cell: usize) -> &[NumberedRow<T, D>] {
        let start = if cell == 0 { 0 } else { self.ends[cell - 1] };
        &self.entries[start..self.ends[cell]]
    }
}

/// The context for growing a branch.
struct GrowContext<'a, T, const D: usize> {
    rows: &'a PointRows<'a, T>,
    leaf_max: usize,
    spare: Vec<NumberedRow<T, D>>,
    numbers: Vec<u8>,
}

/// Grows the subtree below one number of a range.
type Grow<'a, T, const D: usize> = dyn FnMut(&mut TreeBranch<T, D>, usize) -> Bounds<D> + 'a;

impl<T: FloatElement, const D: usize> TreeBranch<T, D> {
    fn new(
        cells: Range<usize>,
        counts: &[usize],
        sorted: &[CellRows<T, D>],
        rows: &PointRows<'_, T>,
        leaf_max: usize,
    ) -> Self {
        let n: usize = counts[cells.clone()].iter().sum();
        let mut branch = TreeBranch {
            nodes: Vec::new(),
            leaves: Vec::new(),
            points: std::array::from_fn(|_| Vec::with_capacity(n + PADDING)),
            labels: vec![T::default(); n + PADDING],
            weights: Vec::new(),
            rows: Vec::with_capacity(n),
        };
        let mut soil = GrowContext { rows, leaf_max, spare: Vec::new(), numbers: Vec::new() };
        let mut entries = Vec::new();
        if n > 0 {
            branch.join(cells, &|cell| counts[cell] > 0, &mut |branch, cell| {
                entries.clear();
                for one in sorted {
                    entries.extend_from_slice(one.cell(cell));
                }
                branch.grow(&mut entries, &mut soil)
            });
        }
        for feature in &mut branch.points {
            feature.resize(n + PADDING, T::default());
        }
        branch
    }

    /// Adds nodes over a range of numbers, some of which are filled; `grow` continues below each filled one. Numbers
    /// are split at their highest differing bit, which is how the space was cut.
    fn join(
        &mut self,
        mut numbers: Range<usize>,
        filled: &dyn Fn(usize) -> bool,
        grow: &mut Grow<'_, T, D>,
    ) -> Bounds<D> {
        // At most one of the halves is empty, because the ends are filled.
        while !filled(numbers.start) {
            numbers.start += 1;
        }
        while !filled(numbers.end - 1) {
            numbers.end -= 1;
        }
        if numbers.len() == 1 {
            return grow(self, numbers.start);
        }
        let last = numbers.end - 1;
        let bit = (numbers.start ^ last).ilog2();
        let middle = last >> bit << bit;
        let at = self.nodes.len();
        let first_leaf = self.leaves.len() as u32;
        self.nodes.push(BoundingNode { low: [0.0; D], high: [0.0; D], right: 0, first_leaf, end_leaf: 0 });
        let left = self.join(numbers.start..middle, filled, grow);
        let right_at = self.nodes.len() as u32;
        let right = self.join(middle..numbers.end, filled, grow);
        let low = std::array::from_fn(|f| left.0[f].min(right.0[f]));
        let high = std::array::from_fn(|f| left.1[f].max(right.1[f]));
        self.nodes[at] = BoundingNode { low, high, right: right_at, first_leaf, end_leaf: self.leaves.len() as u32 };
        (low, high)
    }

    /// Adds the node of `entries`, which it reorders, and everything below it.
    fn grow(&mut self, entries: &mut [NumberedRow<T, D>], soil: &mut GrowContext<'_, T, D>) -> Bounds<D> {
        let (low, high) = bounds(entries, |entry| entry.x);
        // Centers cannot distinguish equal points, so one leaf holds them all. A box with a side that overflows cannot
        // be halved either.
        let spread = (0..D).map(|f| high[f] - low[f]).fold(0.0, f64::max);
        if entries.len() <= soil.leaf_max || spread == 0.0 || spread.is_infinite() {
            let leaf = self.leaves.len() as u32;
            self.nodes.push(BoundingNode { low, high, right: 0, first_leaf: leaf, end_leaf: leaf + 1 });
            self.add_leaf(entries, soil.rows);
            return (low, high);
        }
        // The box is tight, so there is a point at both ends of its longest side: at least two numbers are filled.
        let ends = sort_by_halves(entries, &low, &high, soil);
        let start = |number: usize| if number == 0 { 0 } else { ends[number - 1] };
        self.join(0..ends.len(), &|number| ends[number] > start(number), &mut |branch, number| {
            branch.grow(&mut entries[start(number)..ends[number]], soil)
        })
    }

    fn add_leaf(&mut self, entries: &[NumberedRow<T, D>], rows: &PointRows<'_, T>) {
        let start = self.rows.len();
        for (f, points) in self.points.iter_mut().enumerate() {
            points.extend(entries.iter().map(|entry| entry.x[f]));
        }
        self.rows.extend(entries.iter().map(|entry| entry.row));
        let (mut sum, mut total, mut count) = ([0.0; D], 0.0, 0);
        for entry in entries {
            let weight = rows.weight(entry.row as usize);
            if rows.is_weighted() {
                self.weights.push(weight);
            }
            total += weight;
            count += u32::from(weight > 0.0);
            for (sum, x) in sum.iter_mut().zip(entry.x) {
                *sum += weight * x.to_f64();
            }
        }
        let end = self.rows.len() as u32;
        self.leaves.push(TreeLeaf { start: start as u32, end, owner: NONE, count, weight: total, sum });
    }
}

/// Repeatedly halves the box along its longest side, and sorts the entries by the piece they are in; returns the end of
/// each piece. Earlier cuts determine higher bits of a piece's number.
fn sort_by_halves<T: FloatElement, const D: usize>(
    entries: &mut [NumberedRow<T, D>],
    low: &[f64; D],
    high: &[f64; D],
    soil: &mut GrowContext<'_, T, D>,
) -> Vec<usize> {
    let wanted = (entries.len() / soil.leaf_max.max(1)).next_power_of_two().trailing_zeros();
    let halvings = wanted.clamp(1, HALVINGS_MAX);
    let mut sides: [f64; D] = std::array::from_fn(|f| high[f] - low[f]);
    let mut pieces = [1u32; D];
    // What each piece along a feature contributes to the number.
    let mut part = [[0u8; 1 << HALVINGS_MAX]; D];
    for halving in 0..halvings {
        let mut longest = 0;
        for f in 1..D {
            longest = if sides[f] > sides[longest] { f } else { longest };
        }
        sides[longest] /= 2.0;
        let bit = 1u8 << (halvings - 1 - halving);
        for piece in (0..pieces[longest] as usize).rev() {
            let above = part[longest][piece];
            part[longest][2 * piece] = above;
            part[longest][2 * piece + 1] = above | bit;
        }
        pieces[longest] *= 2;
    }
    let scale: [f64; D] =
        std::array::from_fn(|f| if high[f] > low[f] { f64::from(pieces[f]) / (high[f] - low[f]) } else { 0.0 });
    let mut ends = vec![0usize; 1 << halvings];
    soil.numbers.clear();
    for entry in entries.iter() {
        let mut number = 0;
        for f in 0..D {
            let piece = ((entry.x[f].to_f64() - low[f]) * scale[f]) as u32;
            number |= part[f][piece.min(pieces[f] - 1) as usize];
        }
        soil.numbers.push(number);
        ends[number as usize] += 1;
    }
    let mut sum = 0;
    for end in &mut ends {
        sum += *end;
        *end = sum - *end;
    }
    soil.spare.clear();
    soil.spare.extend_from_slice(entries);
    for (entry, &number) in soil.spare.iter().zip(&soil.numbers) {
        let at = &mut ends[number as usize];
        entries[*at] = *entry;
        *at += 1;
    }
    ends
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn balanced_ranges_cover_all_cells() {
        for counts in [vec![], vec![5], vec![0, 0, 9], vec![1; 64], vec![1000, 1, 1, 1]] {
            for threads in 1..5 {
                let ranges = balanced(&counts, threads);
                assert_eq!(ranges.len(), threads);
                assert_eq!(ranges[0].start, 0);
                assert_eq!(ranges[threads - 1].end, counts.len());
                assert!(ranges.windows(2).all(|pair| pair[0].end == pair[1].start));
            }
        }
    }

    fn check_branch<const D: usize>(branch: &TreeBranch<f64, D>, n: usize, leaf_max: usize) {
        let mut rows: Vec<u32> = branch.rows.clone();
        rows.sort_unstable();
        assert!(rows.iter().enumerate().all(|(i, &row)| row as usize == i) && rows.len() == n, "every row once");
        let mut start = 0;
        for leaf in &branch.leaves {
            assert_eq!(leaf.start, start, "leaves follow one another");
            assert!(leaf.end > leaf.start);
            start = leaf.end;
        }
        for node in &branch.nodes {
            let leaves = &branch.leaves[node.first_leaf as usize..node.end_leaf as usize];
            assert_eq!(node.right == 0, leaves.len() == 1);
            for at in leaves[0].start as usize..leaves[leaves.len() - 1].end as usize {
                let point = branch.point(at);
                assert!((0..D).all(|f| node.low[f] <= point[f] && point[f] <= node.high[f]), "a box holds its points");
            }
            let count = leaves[leaves.len() - 1].end - leaves[0].start;
            assert!(node.right != 0 || count as usize <= leaf_max || node.low == node.high);
        }
    }

    /// Skew, duplicates and adjacent numbers: halving must terminate and must not lose rows.
    #[test]
    fn branches_hold_every_row_once() {
        let skewed: Vec<f64> = (0..600).map(|i| 2f64.powi(i % 500)).collect();
        let twins: Vec<f64> = (0..600).map(|i| if i == 0 { 0.0 } else { 1.0 }).collect();
        let close: Vec<f64> = (0..600).map(|i| if i % 2 == 0 { 1.0 } else { 1.0 + f64::EPSILON }).collect();
        let one = vec![4.0];
        let huge: Vec<f64> = (0..600).map(|i| if i % 2 == 0 { 1e308 } else { -1e308 } / f64::from(i + 1)).collect();
        for x in [skewed, twins, close, one, huge] {
            let n = x.len();
            let line = PointRows::new(&x, &[0.0], None);
            let entries = (0..n).map(|i| NumberedRow { x: [x[i]], row: i as u32 }).collect();
            check_branch(
                &TreeBranch::<f64, 1>::new(0..1, &[n], &[CellRows { entries, ends: vec![n] }], &line, 48),
                n,
                48,
            );
            let plane = PointRows::new(&x[..n / 2 * 2], &[0.0; 2], None);
            let entries: Vec<_> =
                (0..n / 2).map(|i| NumberedRow { x: [x[2 * i], x[2 * i + 1]], row: i as u32 }).collect();
            let count = entries.len();
            check_branch(
                &TreeBranch::<f64, 2>::new(0..1, &[count], &[CellRows { entries, ends: vec![count] }], &plane, 5),
                count,
                5,
            );
        }
    }
}
