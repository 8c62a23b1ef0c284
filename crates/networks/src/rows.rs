//! Compressed rows: the links of each node in one run of an array.
//!
//! Invariant: `offsets` begins with 0, never decreases, has one more entry than there are rows, and ends with the
//! number of targets; each target is less than `columns`. So algorithms may index by targets without further checks.

use crate::error::{NetworkError, ensure};
use crate::shared::{Chunks, fill_with, for_chunks};
use std::ops::Range;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use tidemill_kernels::pool::Pool;

/// Stands for a missing node.
pub const NO_NODE: u32 = u32::MAX;

/// Rows of links. In a network they are square: `rows == columns`. In a part of a network, the nodes from `rows` on are
/// ghosts without rows.
#[derive(Debug)]
pub struct CompressedRows {
    offsets: Vec<i64>,
    targets: Vec<u32>,
    weights: Option<Vec<f64>>,
    columns: usize,
    /// The index of the first negative or NaN weight, once it was looked for.
    bad_weight: OnceLock<Option<usize>>,
}

impl CompressedRows {
    /// Rows from arrays; see the module for the invariant.
    ///
    /// # Errors
    /// `BadArgument` and `NoSuchNode` for violations of the invariant.
    pub fn new(
        pool: &Pool,
        offsets: Vec<i64>,
        targets: Vec<u32>,
        weights: Option<Vec<f64>>,
        columns: usize,
    ) -> Result<Self, NetworkError> {
        ensure(offsets.first() == Some(&0), "offsets must begin with 0")?;
        ensure(offsets.is_sorted(), "offsets must not fall")?;
        ensure(offsets.last() == Some(&(targets.len() as i64)), "offsets must end with the number of targets")?;
        ensure(
            weights.as_ref().is_none_or(|weights| weights.len() == targets.len()),
            "there must be one weight for each target",
        )?;
        let rows = CompressedRows::of_parts(offsets, targets, weights, columns);
        check_size(rows.rows())?;
        check_size(columns)?;
        let all = AtomicBool::new(true);
        for_chunks(pool, rows.links(), 1 << 16, |_, range| {
            if rows.targets[range].iter().fold(0, |most, &target| most.max(target)) as usize >= columns {
                all.store(false, Ordering::Relaxed);
            }
        });
        if !all.into_inner() {
            let link = rows.targets.iter().position(|&target| target as usize >= columns).expect("seen above");
            return Err(NetworkError::NoSuchNode { link, node: rows.targets[link], nodes: columns });
        }
        Ok(rows)
    }

    /// For arrays that satisfy the invariant by construction.
    pub(crate) fn of_parts(offsets: Vec<i64>, targets: Vec<u32>, weights: Option<Vec<f64>>, columns: usize) -> Self {
        CompressedRows { offsets, targets, weights, columns, bad_weight: OnceLock::new() }
    }

    /// The same rows with targets that `renumber` has changed, each to less than `columns`.
    pub(crate) fn renumbered(mut self, columns: usize, renumber: impl FnOnce(&mut [u32])) -> Self {
        renumber(&mut self.targets);
        self.columns = columns;
        self
    }

    /// The number of nodes with rows.
    #[must_use]
    #[inline(always)]
    pub fn rows(&self) -> usize {
        self.offsets.len() - 1
    }

    /// The number of nodes that links can lead to.
    #[must_use]
    pub fn columns(&self) -> usize {
        self.columns
    }

    /// The number of links.
    #[must_use]
    pub fn links(&self) -> usize {
        self.targets.len()
    }

    /// The start of each row, followed by the end of the last.
    #[must_use]
    pub fn offsets(&self) -> &[i64] {
        &self.offsets
    }

    /// The targets of the links.
    #[must_use]
    #[inline(always)]
    pub fn targets(&self) -> &[u32] {
        &self.targets
    }

    /// The weights of the links.
    #[must_use]
    #[inline(always)]
    pub fn weights(&self) -> Option<&[f64]> {
        self.weights.as_deref()
    }

    /// The memory of the arrays in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let weights = self.weights.as_ref().map_or(0, |weights| size_of_val(weights.as_slice()));
        size_of_val(self.offsets.as_slice()) + size_of_val(self.targets.as_slice()) + weights
    }

    /// The indices of the links of `node`.
    #[must_use]
    #[inline(always)]
    pub fn range(&self, node: usize) -> Range<usize> {
        self.offsets[node] as usize..self.offsets[node + 1] as usize
    }

    /// The number of links of `node`.
    #[must_use]
    #[inline(always)]
    pub fn degree(&self, node: usize) -> usize {
        (self.offsets[node + 1] - self.offsets[node]) as usize
    }

    /// The targets of the links of `node`.
    #[must_use]
    #[inline(always)]
    pub fn neighbors(&self, node: usize) -> &[u32] {
        let range = self.range(node);
        debug_assert!(range.end <= self.targets.len());
        // SAFETY: offsets never decrease and end with the number of targets. Benefit: this is the head of every inner
        // loop.
        unsafe { self.targets.get_unchecked(range) }
    }

    /// The links of `node` with their weights, which default to 1.
    #[inline(always)]
    pub(crate) fn weighted(&self, node: usize) -> impl Iterator<Item = (u32, f64)> + '_ {
        let range = self.range(node);
        let weights = self.weights.as_deref();
        range.map(move |link| (self.targets[link], weights.map_or(1.0, |weights| weights[link])))
    }

    /// Calls `function` with each link of `node`, for inner loops: it checks only once per row whether there are
    /// weights.
    #[inline(always)]
    pub(crate) fn each_weighted(&self, node: usize, mut function: impl FnMut(u32, f64)) {
        let targets = self.neighbors(node);
        match self.weights() {
            None => targets.iter().for_each(|&target| function(target, 1.0)),
            Some(weights) => {
                targets.iter().zip(&weights[self.range(node)]).for_each(|(&target, &weight)| function(target, weight));
            }
        }
    }

    /// The node whose row contains `link`.
    #[must_use]
    pub fn source(&self, link: usize) -> usize {
        self.offsets.partition_point(|&offset| offset <= link as i64) - 1
    }

    /// The source of every link.
    #[must_use]
    pub fn sources(&self, pool: &Pool) -> Vec<u32> {
        let mut sources = vec![0; self.links()];
        let shared = crate::shared::SharedSlice::new(&mut sources);
        for_chunks(pool, self.rows(), 1 << 12, |_, range| {
            for node in range {
                // SAFETY: rows do not overlap.
                unsafe { shared.range(self.range(node)) }.fill(node as u32);
            }
        });
        sources
    }

    /// The sum of each row's weights, or its number of links.
    #[must_use]
    pub fn weight_sums(&self, pool: &Pool) -> Vec<f64> {
        let mut sums = vec![0.0; self.rows()];
        fill_with(pool, &mut sums, |node| match self.weights() {
            None => self.degree(node) as f64,
            Some(weights) => weights[self.range(node)].iter().sum(),
        });
        sums
    }

    /// Checks that no weight is negative or NaN; the result is cached.
    ///
    /// # Errors
    /// `BadWeight` with the first such weight.
    pub fn check_weights(&self) -> Result<(), NetworkError> {
        let Some(weights) = self.weights() else { return Ok(()) };
        let first = self.bad_weight.get_or_init(|| {
            // Not `weight < 0`: NaN must not pass. Without a branch per weight, this runs at memory speed.
            let is_bad = |weight: f64| weight.is_nan() | (weight < 0.0);
            let block =
                weights.chunks(1 << 12).position(|block| block.iter().fold(false, |bad, &w| bad | is_bad(w)))?;
            weights[block << 12..].iter().position(|&weight| is_bad(weight)).map(|at| (block << 12) + at)
        });
        match *first {
            None => Ok(()),
            Some(link) => Err(NetworkError::BadWeight {
                source: self.source(link),
                target: self.targets[link],
                weight: weights[link],
                need: "weights must be numbers, 0 or more",
            }),
        }
    }

    /// Whether every link has a reverse of the same weight. Rows must be sorted by target.
    #[must_use]
    pub fn is_symmetric(&self, pool: &Pool) -> bool {
        if self.rows() != self.columns {
            return false;
        }
        let reverse = self.transpose(pool);
        self.offsets == reverse.offsets && self.targets == reverse.targets && self.weights == reverse.weights
    }

    /// Checks that there is a row for each column.
    pub(crate) fn check_square(&self) -> Result<(), NetworkError> {
        ensure(self.rows() == self.columns, "a network needs as many rows as columns")
    }

    /// Chunks of rows with about `links_each` links.
    pub(crate) fn chunks(&self, links_each: usize) -> Chunks {
        let each = links_each.max(1) * self.rows() / self.links().max(1);
        Chunks::new(self.rows(), each.clamp(64, 1 << 16))
    }
}

/// Checks that `nodes` can be numbered with 32 bits, without using `NO_NODE`.
pub(crate) fn check_size(nodes: usize) -> Result<(), NetworkError> {
    ensure(nodes < NO_NODE as usize, "a worker's network has at most 4,294,967,294 nodes")
}
