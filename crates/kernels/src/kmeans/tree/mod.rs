//! Lloyd's step in few features, by a k-d tree over the rows: most rows are assigned by the leaf, not one by one.
//!
//! The tree is built once for a fit. A step descends from the root with the centers that may be nearest to some point
//! of a node's box; a center that is farther than another from the whole box drops out. If one center is left, all rows
//! below belong to it, and if they did before, nothing is done. Only in leaves with two or more remaining centers are
//! points compared, vector by vector, with those few centers.
//!
//! Invariant: a leaf's `owner` is the label of all its points, or `MIXED`, and then `labels` holds one for each point.
//! Near ties are decided as everywhere (see `exact`), so labels are those of the dense step.
//!
//! Source: the filtering algorithm of Kanungo et al., "An efficient k-means clustering algorithm" (2002); Pelleg and
//! Moore, "Accelerating exact k-means with geometric reasoning" (1999).

mod build;
mod walk;

use super::rows::PointRows;
use super::sums::{ClusterSums, NONE};
use crate::pool::Pool;
use crate::simd::{FloatElement, Isa, dispatch};

/// The maximum number of features that a tree is compiled for.
pub(crate) const FEATURES_MAX: usize = 6;

/// A leaf whose points have individual labels.
const MIXED: u32 = NONE - 1;

/// Elements after the last point that a vector load may touch.
const PADDING: usize = super::rows::PANEL_MAX;

/// A tree for any number of features up to [`FEATURES_MAX`].
pub(crate) struct TreeFit<T>(Box<dyn AnyTree<T>>);

trait AnyTree<T>: Send + Sync {
    fn step(&mut self, pool: &Pool, isa: Isa, centres: &[f64], total: &mut ClusterSums, renew: bool) -> u64;
    fn labels(&self, out: &mut [i32]);
}

impl<T: FloatElement> TreeFit<T> {
    pub(crate) fn new(pool: &Pool, isa: Isa, rows: PointRows<'_, T>, k: usize) -> Self {
        assert!(k < MIXED as usize, "too many centres for labels of 32 bits");
        assert!(u32::try_from(rows.n()).is_ok(), "a tree holds fewer than 2^32 rows of one worker");
        TreeFit(match rows.d() {
            1 => Box::new(Forest::<T, 1>::new(pool, isa, rows, k)),
            2 => Box::new(Forest::<T, 2>::new(pool, isa, rows, k)),
            3 => Box::new(Forest::<T, 3>::new(pool, isa, rows, k)),
            4 => Box::new(Forest::<T, 4>::new(pool, isa, rows, k)),
            5 => Box::new(Forest::<T, 5>::new(pool, isa, rows, k)),
            6 => Box::new(Forest::<T, 6>::new(pool, isa, rows, k)),
            d => panic!("a tree takes at most {FEATURES_MAX} features, not {d}"),
        })
    }

    /// As `KmeansFit::step`; with `renew` the sums are computed afresh.
    pub(crate) fn step(&mut self, pool: &Pool, isa: Isa, centres: &[f64], total: &mut ClusterSums, renew: bool) -> u64 {
        self.0.step(pool, isa, centres, total, renew)
    }

    /// The label of each row, after a step.
    pub(crate) fn labels(&self, out: &mut [i32]) {
        self.0.labels(out);
    }
}

/// Trees over disjoint parts of space, one per thread.
struct Forest<T, const D: usize> {
    parts: Vec<TreePart<T, D>>,
}

/// One thread's tree and its working data.
struct TreePart<T, const D: usize> {
    branch: TreeBranch<T, D>,
    delta: ClusterSums,
    scratch: walk::WalkScratch<T, D>,
    searched: u64,
}

/// A tree over the points of one thread. The points of a leaf are contiguous, feature by feature.
struct TreeBranch<T, const D: usize> {
    /// In preorder: the left child follows its parent.
    nodes: Vec<BoundingNode<D>>,
    leaves: Vec<TreeLeaf<D>>,
    points: [Vec<T>; D],
    /// Stored as elements, for vector comparisons.
    labels: Vec<T>,
    /// Empty if all weigh 1.
    weights: Vec<f64>,
    /// The row of each point.
    rows: Vec<u32>,
}

#[derive(Clone, Copy)]
struct BoundingNode<const D: usize> {
    /// The smallest box around its points.
    low: [f64; D],
    high: [f64; D],
    /// The right child; 0 in a leaf.
    right: u32,
    first_leaf: u32,
    end_leaf: u32,
}

#[derive(Clone, Copy)]
struct TreeLeaf<const D: usize> {
    start: u32,
    end: u32,
    owner: u32,
    /// Points with a weight, and their weight and weighted sum.
    count: u32,
    weight: f64,
    sum: [f64; D],
}

impl<T: FloatElement, const D: usize> TreeBranch<T, D> {
    #[inline(always)]
    fn point(&self, at: usize) -> [f64; D] {
        std::array::from_fn(|f| self.points[f][at].to_f64())
    }

    #[inline(always)]
    fn weight(&self, at: usize) -> f64 {
        if self.weights.is_empty() { 1.0 } else { self.weights[at] }
    }

    /// Adds every point to the sums of its cluster.
    fn add_all(&self, sums: &mut ClusterSums) {
        for leaf in &self.leaves {
            if leaf.owner == MIXED {
                for at in leaf.start as usize..leaf.end as usize {
                    let label = self.labels[at].to_f64() as u32;
                    sums.relocate_point(self.point(at), self.weight(at), NONE, label);
                }
            } else {
                sums.add_sum(leaf.sum, leaf.weight, i64::from(leaf.count), leaf.owner);
            }
        }
    }
}

impl<T: FloatElement, const D: usize> AnyTree<T> for Forest<T, D> {
    fn step(&mut self, pool: &Pool, isa: Isa, centres: &[f64], total: &mut ClusterSums, renew: bool) -> u64 {
        let candidates = walk::candidates::<D>(centres);
        pool.each(&mut self.parts, |_, part| {
            part.delta.clear();
            part.searched = 0;
            dispatch(isa, walk::TreeStep { part, centres: &candidates });
            if renew {
                let changed = part.delta.changed;
                part.delta.clear();
                part.branch.add_all(&mut part.delta);
                part.delta.changed = changed;
            }
        });
        if renew {
            let changed = total.changed;
            total.clear();
            total.changed = changed;
        }
        for part in self.parts.iter().filter(|part| renew || part.delta.changed > 0) {
            total.merge(&part.delta);
        }
        self.parts.iter().map(|part| part.searched).sum()
    }

    fn labels(&self, out: &mut [i32]) {
        for branch in self.parts.iter().map(|part| &part.branch) {
            for leaf in &branch.leaves {
                let (start, end) = (leaf.start as usize, leaf.end as usize);
                for (&row, label) in branch.rows[start..end].iter().zip(&branch.labels[start..end]) {
                    let label = if leaf.owner == MIXED { label.to_f64() as i32 } else { leaf.owner as i32 };
                    out[row as usize] = label;
                }
            }
        }
    }
}
