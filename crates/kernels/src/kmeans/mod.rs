//! K-means: Lloyd's algorithm on the rows of one worker.
//!
//! A [`KmeansFit`] keeps labels, bounds and sums between steps. Each [`KmeansFit::step`] assigns every row to its
//! nearest center and computes the sums and weights of the clusters; the caller adds those of all workers (one
//! all-reduce) and divides.
//!
//! | algorithm | work of a step                                             | chosen for                        |
//! |-----------|------------------------------------------------------------|-----------------------------------|
//! | `lloyd`   | all rows against all centers; few features: by `columns`   | few features and centers          |
//! | `hamerly` | the rows whose bounds fail, by the distance tile           | many features                     |
//! | `tree`    | the leaves of a k-d tree that more than one center reaches | few features, many centers        |
//!
//! All give the same labels: see `exact`. `rows` is the kernels' input, `tile` is the inner loop.

mod assign;
mod bounds;
mod columns;
mod dense;
mod exact;
#[cfg(target_arch = "x86_64")]
mod first_pass;
mod rows;
mod seed;
mod sums;
mod tile;
mod tree;

pub use assign::{assign, farthest, inertia, transform};
pub use rows::PointRows;
pub use seed::{RowStatistics, draw, locate, nearest_update, potentials, statistics};

use crate::pool::Pool;
use crate::simd::{FloatElement, Isa, Kernel, Simd};
use columns::ColumnFit;
use dense::DenseFit;
use std::str::FromStr;
use sums::ClusterSums;
use tree::TreeFit;

/// How a step avoids work; see the module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KmeansAlgorithm {
    /// All rows against all centers.
    Lloyd,
    /// Bounds on distances.
    Hamerly,
    /// A k-d tree over the rows; at most [`KmeansAlgorithm::TREE_FEATURES_MAX`] features.
    Tree,
}

impl KmeansAlgorithm {
    /// The most features the tree is made for.
    pub const TREE_FEATURES_MAX: usize = tree::FEATURES_MAX;

    /// The fastest for `n` rows, `d` features, `k` centers and at most `steps_max` steps.
    #[must_use]
    pub fn choose(n: usize, d: usize, k: usize, steps_max: usize) -> KmeansAlgorithm {
        // Building the tree costs as much as comparing every row with about 400 centers. With more centers, it pays off
        // within one step and the final pass for the labels.
        let pays = if steps_max <= 2 { k >= 256 } else { k > 32 };
        let few = d <= columns::FEATURES_MAX;
        if few && n >= 2000 && n / k >= 8 && pays {
            KmeansAlgorithm::Tree
        } else if k == 1 || steps_max <= 1 || d * k < 32 || few && k <= 32 {
            KmeansAlgorithm::Lloyd
        } else {
            KmeansAlgorithm::Hamerly
        }
    }

    /// Its name in lower case.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            KmeansAlgorithm::Lloyd => "lloyd",
            KmeansAlgorithm::Hamerly => "hamerly",
            KmeansAlgorithm::Tree => "tree",
        }
    }
}

impl FromStr for KmeansAlgorithm {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        [KmeansAlgorithm::Lloyd, KmeansAlgorithm::Hamerly, KmeansAlgorithm::Tree]
            .into_iter()
            .find(|algorithm| algorithm.name() == name)
            .ok_or_else(|| format!("unknown algorithm {name:?}: use \"lloyd\", \"hamerly\" or \"tree\""))
    }
}

/// The effect of one step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StepReport {
    /// Rows that changed their cluster.
    pub changed: u64,
    /// Rows that were compared with centers other than their own.
    pub searched: u64,
}

/// The state of one fit on the rows of one worker.
///
/// ```
/// use tidemill_kernels::{Isa, kmeans::{KmeansAlgorithm, KmeansFit, PointRows}, pool::{Pool, PoolConfig}};
/// let (x, shift) = ([0.0f32, 1.0, 10.0, 11.0], [0.0f32]);
/// let pool = Pool::new(PoolConfig::default());
/// let rows = PointRows::new(&x, &shift, None);
/// let mut fit = KmeansFit::new(&pool, Isa::best(), rows, 2, KmeansAlgorithm::Lloyd);
/// assert_eq!(fit.step(&pool, rows, &[0.0, 10.0]).changed, 4);
/// assert_eq!(fit.sums(), [1.0, 21.0]);
/// assert_eq!(fit.labels(&pool), [0, 0, 1, 1]);
/// ```
pub struct KmeansFit<T> {
    n: usize,
    d: usize,
    k: usize,
    isa: Isa,
    state: FitState<T>,
    total: ClusterSums,
    steps: u64,
}

enum FitState<T> {
    Columns(ColumnFit<T>),
    Dense(DenseFit<T>),
    Tree(TreeFit<T>),
}

/// Number of steps after which the sums are computed afresh, to remove accumulated rounding errors.
const RENEWAL: u64 = 64;

impl<T: FloatElement> KmeansFit<T> {
    /// Prepares a fit of `k` centers.
    ///
    /// # Panics
    /// If `k` is 0 or too large for labels of 31 bits, or if `KmeansAlgorithm::Tree` is requested for too many
    /// features.
    #[must_use]
    pub fn new(pool: &Pool, isa: Isa, rows: PointRows<'_, T>, k: usize, algorithm: KmeansAlgorithm) -> Self {
        let (n, d) = (rows.n(), rows.d());
        assert!(k > 0 && i32::try_from(k).is_ok(), "between 1 and 2^31 - 1 centres");
        let state = match algorithm {
            KmeansAlgorithm::Tree => FitState::Tree(TreeFit::new(pool, isa, rows, k)),
            KmeansAlgorithm::Lloyd if d <= columns::FEATURES_MAX && (2..1 << f32::MANTISSA_DIGITS).contains(&k) => {
                FitState::Columns(ColumnFit::new(pool, rows, k))
            }
            _ => FitState::Dense(DenseFit::new(n, k, d, pool.threads(), algorithm == KmeansAlgorithm::Hamerly)),
        };
        KmeansFit { n, d, k, isa, state, total: ClusterSums::new(k, d), steps: 0 }
    }

    /// Assigns every row to the nearest of `centres`, `k x d` less the shift of `rows`. The rows must be those of
    /// [`KmeansFit::new`].
    ///
    /// # Panics
    /// If the pool has a different number of threads than in [`KmeansFit::new`], or a shape differs.
    pub fn step(&mut self, pool: &Pool, rows: PointRows<'_, T>, centres: &[f64]) -> StepReport {
        assert_eq!((rows.n(), rows.d()), (self.n, self.d), "the rows must be those the fit was made for");
        assert_eq!(centres.len(), self.k * self.d, "the centres must be k x d");
        self.total.changed = 0;
        self.steps += 1;
        let renew = self.steps.is_multiple_of(RENEWAL);
        let searched = match &mut self.state {
            FitState::Columns(columns) => {
                let unsure = columns.step(pool, self.isa, rows, centres, &mut self.total, renew);
                if unsure > self.n as u64 / 8 && T::EPSILON < f64::from(f32::EPSILON) {
                    // f32 cannot distinguish these data: rows are crowded together, with a few others very far away.
                    let labels = self.labels(pool).into_iter().map(|label| label as u32).collect();
                    self.state = FitState::Dense(DenseFit::with_labels(labels, self.k, self.d, pool.threads()));
                }
                self.n as u64
            }
            FitState::Dense(dense) => {
                let centres = assign::lay_out(self.isa, centres, self.d);
                let searched = dense.step(pool, self.isa, rows, &centres, &mut self.total);
                if renew {
                    let changed = self.total.changed;
                    self.total.clear();
                    for (i, &label) in dense.labels.iter().enumerate() {
                        self.total.add(&rows, i, rows.weight(i), label);
                    }
                    self.total.changed = changed;
                }
                searched
            }
            FitState::Tree(tree) => tree.step(pool, self.isa, centres, &mut self.total, renew),
        };
        self.total.sweep();
        StepReport { changed: self.total.changed, searched }
    }

    /// The sums of the shifted rows of each cluster, `k x d`, weights applied.
    #[must_use]
    pub fn sums(&self) -> &[f64] {
        &self.total.sums
    }

    /// The weight of each cluster.
    #[must_use]
    pub fn weights(&self) -> &[f64] {
        &self.total.weights
    }

    /// The label of each row, after at least one step.
    ///
    /// # Panics
    /// If the pool has a different number of threads than in [`KmeansFit::new`].
    #[must_use]
    pub fn labels(&self, pool: &Pool) -> Vec<i32> {
        let mut labels = vec![0; self.n];
        match &self.state {
            FitState::Columns(columns) => columns.labels(pool, &mut labels),
            FitState::Dense(dense) => {
                for (out, &label) in labels.iter_mut().zip(&dense.labels) {
                    *out = label as i32;
                }
            }
            FitState::Tree(tree) => tree.labels(&mut labels),
        }
        labels
    }
}

/// The widest tile of an instruction set.
struct TileWidth;

impl<T: FloatElement> Kernel<T> for TileWidth {
    type Output = usize;

    #[inline(always)]
    fn run<S: Simd<Elem = T>>(self, _: S) -> usize {
        S::TILE
    }
}

#[cfg(test)]
mod tests;
