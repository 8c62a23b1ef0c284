//! Checks distances and weights: cell by cell before they are stored, and for symmetry afterwards.

use super::GROUP;
use super::cells::{CellTable, DistanceBlock, DistanceCells};
use crate::pool::Pool;
use crate::simd::{FloatElement, Isa, Kernel, Simd, dispatch};
use std::ops::Range;

/// Why a cell is rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CellError {
    /// Not a number, although the weight is not 0.
    Nan,
    /// Positive infinity.
    Infinite,
    /// Below zero.
    Negative,
}

/// The results of [`inspect`] for some rows.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct BlockInspection {
    /// The largest value.
    pub max: f64,
    /// The first rejected cell: row and column.
    pub bad: Option<(usize, usize, CellError)>,
    /// The largest value of a point with itself, and its row.
    pub diagonal: Option<(f64, usize)>,
}

/// The position of a block's diagonal, and which of its cells may be NaN.
#[derive(Clone, Copy, Debug, Default)]
pub struct BlockDiagonal<'a, T> {
    /// The column of the same point as row 0 of the block.
    pub first: Option<usize>,
    /// Weights of the block's cells: NaN is accepted where they are 0.
    pub weights: Option<&'a [T]>,
    /// Alternatively, weights of the columns; those of the rows begin at `first`.
    pub columns: Option<&'a [f64]>,
}

/// Inspects whole rows of `n` cells each.
///
/// # Panics
/// If a shape does not fit.
#[must_use]
pub fn inspect<T: FloatElement>(pool: &Pool, block: &[T], n: usize, about: BlockDiagonal<'_, T>) -> BlockInspection {
    let rows = block.len() / n;
    assert!(rows * n == block.len(), "whole rows");
    assert!(about.weights.is_none_or(|weights| weights.len() == block.len()), "one weight for each cell");
    assert!(about.columns.is_none_or(|columns| columns.len() == n), "one weight for each column");
    let mut found = vec![BlockInspection::default(); pool.threads()];
    pool.each(&mut found, |worker, found| {
        for i in worker.share(rows, GROUP) {
            row(i, &block[i * n..(i + 1) * n], about, found);
        }
    });
    // Threads have their rows in order: the first thread that found something found the first cell.
    let mut all = BlockInspection::default();
    for one in found {
        all.max = all.max.max(one.max);
        all.bad = all.bad.or(one.bad);
        if one.diagonal.is_some_and(|(value, _)| all.diagonal.is_none_or(|(most, _)| value > most)) {
            all.diagonal = one.diagonal;
        }
    }
    all
}

fn row<T: FloatElement>(i: usize, cells: &[T], about: BlockDiagonal<'_, T>, found: &mut BlockInspection) {
    let n = cells.len();
    let own = about.first.map(|first| first + i).filter(|&own| own < n);
    // Comparisons with NaN are false: it never becomes the maximum, but it is not at least 0 either.
    let (mut max, mut good) = (T::default(), true);
    for &cell in cells {
        max = if cell > max { cell } else { max };
        good &= cell >= T::default();
    }
    if let Some(own) = own {
        let value = cells[own].to_f64();
        if found.diagonal.is_none_or(|(most, _)| value > most) {
            found.diagonal = Some((value, i));
        }
    }
    if max.to_f64().is_finite() {
        found.max = found.max.max(max.to_f64());
        if good {
            return;
        }
    }
    if found.bad.is_some() {
        return;
    }
    for (j, cell) in cells.iter().enumerate() {
        let value = cell.to_f64();
        let excused = |i: usize| about.columns.is_some_and(|columns| columns[i] == 0.0);
        let trouble = if value.is_nan() {
            let missing = about.weights.is_some_and(|weights| weights[i * n + j].to_f64() == 0.0);
            if missing || excused(j) || own.is_some_and(excused) {
                continue;
            }
            CellError::Nan
        } else if value < 0.0 {
            CellError::Negative
        } else if value.is_infinite() {
            CellError::Infinite
        } else {
            continue;
        };
        found.bad = Some((i, j, trouble));
        return;
    }
}

/// Distances or weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CellPlane {
    /// The distances.
    Distances,
    /// Their weights.
    Weights,
}

/// Compares stored cells with those across the diagonal, which another worker may hold.
#[derive(Clone, Copy)]
pub struct SymmetryCheck<'a> {
    /// This worker's distances.
    pub distances: &'a DistanceBlock,
    /// What to compare.
    pub plane: CellPlane,
}

impl SymmetryCheck<'_> {
    /// Stored cells, `rows x columns`, in their units.
    ///
    /// # Panics
    /// If there are no such rows or columns, or no weights.
    #[must_use]
    pub fn block(&self, isa: Isa, rows: Range<usize>, columns: Range<usize>) -> Vec<f32> {
        assert!(rows.end <= self.distances.rows && columns.end <= self.distances.n, "a block within the table");
        let mut out = vec![0.0; rows.len() * columns.len()];
        // A worker without rows has no columns of its own.
        if out.is_empty() {
            return out;
        }
        dispatch(isa, CopyKernel { of: *self, rows, columns, out: &mut out });
        out
    }

    /// The first cell of `columns`, by rows, that differs by more than `tolerance` from its counterpart in `others`,
    /// which is `columns x rows`: row, column and both values.
    ///
    /// # Panics
    /// If a shape does not fit.
    #[must_use]
    pub fn first_difference(
        &self,
        pool: &Pool,
        isa: Isa,
        columns: Range<usize>,
        others: &[f32],
        tolerance: f32,
    ) -> Option<(usize, usize, f32, f32)> {
        let (rows, width) = (self.distances.rows, columns.len());
        assert_eq!(others.len(), rows * width, "as many cells across the diagonal");
        let mut found = vec![None; pool.threads()];
        pool.each(&mut found, |worker, found| {
            // Square tiles, because one of the two is read across its rows.
            for first in worker.share(rows, GROUP).step_by(TILE) {
                let mine = first..worker.share(rows, GROUP).end.min(first + TILE);
                for at in columns.clone().step_by(TILE) {
                    let here = at..columns.end.min(at + TILE);
                    let cells = self.block(isa, mine.clone(), here.clone());
                    for (i, row) in mine.clone().zip(cells.chunks_exact(here.len())) {
                        for (j, &cell) in here.clone().zip(row) {
                            let other = others[(j - columns.start) * rows + i];
                            let sooner = found.is_none_or(|(least_i, least_j, _, _)| (i, j) < (least_i, least_j));
                            if (cell - other).abs() > tolerance && sooner {
                                *found = Some((i, j, cell, other));
                            }
                        }
                    }
                }
                if found.is_some() {
                    return;
                }
            }
        });
        found.into_iter().flatten().next()
    }
}

const TILE: usize = 64;

struct CopyKernel<'a> {
    of: SymmetryCheck<'a>,
    rows: Range<usize>,
    columns: Range<usize>,
    out: &'a mut [f32],
}

impl Kernel<f32> for CopyKernel<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd<Elem = f32>>(self, s: S) {
        let CopyKernel { of, rows, columns, out } = self;
        let (distances, width) = (of.distances, columns.len());
        let table = match (of.plane, &distances.cells) {
            (CellPlane::Weights, _) => Some(distances.weights.as_ref().expect("the distances have no weights")),
            (CellPlane::Distances, DistanceCells::Table(cells)) => Some(cells),
            (CellPlane::Distances, DistanceCells::Vectors { .. }) => None,
        };
        if let Some(CellTable::F32(cells)) = table {
            for (i, out) in rows.zip(out.chunks_exact_mut(width)) {
                out.copy_from_slice(&cells.as_slice()[i * distances.stride..][columns.clone()]);
            }
            return;
        }
        let tile = distances.tile();
        let mut buffer = match of.plane {
            CellPlane::Distances => distances.buffer(),
            CellPlane::Weights => distances.weight_buffer(),
        };
        let first = columns.start / super::PADDING * super::PADDING;
        for begin in rows.clone().step_by(tile.rows) {
            let end = rows.end.min(begin + tile.rows);
            for at in (first..columns.end).step_by(tile.columns) {
                let last = distances.stride.min(at + tile.columns);
                let (cells, step) = match of.plane {
                    CellPlane::Distances => distances.decode(s, begin..end, at..last, &mut buffer),
                    CellPlane::Weights => distances.decode_weights(begin..end, at..last, &mut buffer),
                };
                let (from, to) = (at.max(columns.start), last.min(columns.end));
                for i in begin..end {
                    let cells = &cells[(i - begin) * step..][from - at..to - at];
                    out[(i - rows.start) * width..][from - columns.start..to - columns.start].copy_from_slice(cells);
                }
            }
        }
    }
}
