//! Storage for the distances and weights between one worker's points and all points.

use super::{PADDING, split};
use crate::memory::AlignedBuffer;
use crate::pool::Pool;
use crate::simd::FloatElement;
use std::ops::Range;
use std::str::FromStr;

/// How a distance or weight is stored. `error` is the maximum error; the unit is at least the largest value.
///
/// | storage   | bytes | error                                                    |
/// |-----------|-------|----------------------------------------------------------|
/// | `F32`     | 4     | 2^-24 of the number                                      |
/// | `F16`     | 2     | 2^-11 of the number, 2^-40 of the unit below 2^-29 of it |
/// | `Fixed16` | 2     | 1 / 131070 of the unit                                   |
///
/// A weight above 0 stays above 0, because 0 means that there is none: a weight that would become 0 becomes the
/// smallest number instead, 2^-39 or 1 / 65535 of the unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CellStorage {
    /// IEEE single precision.
    F32,
    /// IEEE half precision, scaled so that the unit is 2^15.
    F16,
    /// Integers; the unit is 65535.
    Fixed16,
}

impl FromStr for CellStorage {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        match name {
            "float32" => Ok(CellStorage::F32),
            "float16" => Ok(CellStorage::F16),
            "fixed16" => Ok(CellStorage::Fixed16),
            _ => Err(format!("unknown storage {name:?}: use \"float32\", \"float16\" or \"fixed16\"")),
        }
    }
}

/// Stored numbers from 0 to 1, in rows of `stride`.
pub(super) enum CellTable {
    F32(AlignedBuffer<f32>),
    F16(AlignedBuffer<u16>),
    Fixed16(AlignedBuffer<u16>),
}

/// Stored distances.
pub(super) enum DistanceCells {
    Table(CellTable),
    /// Distances between row vectors and column vectors. Columns lie in panels of `PADDING`: feature 0 of all, then
    /// feature 1, ...
    Vectors {
        rows: Vec<f32>,
        columns: AlignedBuffer<f32>,
        d: usize,
    },
}

/// Distances from some points, the rows, to `n` points, the columns, with a weight for each unless all weights are
/// equal.
pub struct DistanceBlock {
    pub(super) cells: DistanceCells,
    /// `rows x stride`; 0 where a distance is missing.
    pub(super) weights: Option<CellTable>,
    pub(super) rows: usize,
    pub(super) n: usize,
    pub(super) stride: usize,
    /// The column of the same point as row 0, if rows are among the columns.
    pub(super) first: Option<usize>,
}

impl DistanceBlock {
    /// Allocates `rows x n` distances, all 0, to be [`DistanceBlock::fill`]ed. `first` is the column of the same point
    /// as row 0; `None` if rows are not among the columns.
    ///
    /// # Panics
    /// If there are no columns, or if rows extend beyond the last column.
    #[must_use]
    pub fn new(rows: usize, n: usize, first: Option<usize>, storage: CellStorage) -> Self {
        let cells = CellTable::zeroed(storage, rows * n.next_multiple_of(PADDING));
        Self::with(DistanceCells::Table(cells), rows, n, first)
    }

    /// Distances between vectors of `d` features, computed on demand. Rows are `rows x d`, columns `n x d`.
    ///
    /// # Panics
    /// If a shape does not fit.
    #[must_use]
    pub fn of_vectors(rows: &[f32], columns: &[f32], d: usize, first: Option<usize>) -> Self {
        assert!(d > 0 && rows.len().is_multiple_of(d) && columns.len().is_multiple_of(d), "vectors must be complete");
        let (count, n) = (rows.len() / d, columns.len() / d);
        let mut panels = AlignedBuffer::zeroed(n.next_multiple_of(PADDING) * d);
        for (j, vector) in columns.chunks_exact(d).enumerate() {
            let panel = &mut panels.as_mut_slice()[j / PADDING * PADDING * d..];
            for (f, &x) in vector.iter().enumerate() {
                panel[f * PADDING + j % PADDING] = x;
            }
        }
        Self::with(DistanceCells::Vectors { rows: rows.to_vec(), columns: panels, d }, count, n, first)
    }

    fn with(cells: DistanceCells, rows: usize, n: usize, first: Option<usize>) -> Self {
        assert!(n > 0, "distances need at least one column");
        assert!(first.is_none_or(|first| first + rows <= n), "rows extend beyond the last column");
        DistanceBlock { cells, weights: None, rows, n, stride: n.next_multiple_of(PADDING), first }
    }

    /// Number of rows.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Number of columns.
    #[must_use]
    pub fn n(&self) -> usize {
        self.n
    }

    /// Bytes of cells and weights.
    #[must_use]
    pub fn len_bytes(&self) -> usize {
        let cells = match &self.cells {
            DistanceCells::Table(cells) => cells.len_bytes(),
            DistanceCells::Vectors { rows, columns, .. } => size_of_val(&rows[..]) + size_of_val(columns.as_slice()),
        };
        cells + self.weights.as_ref().map_or(0, CellTable::len_bytes)
    }

    /// Whether distances have individual weights.
    #[must_use]
    pub fn is_weighted(&self) -> bool {
        self.weights.is_some()
    }

    /// Stores `block`, whole rows from row `at` on, in units of `unit`, which no distance may exceed. NaN, a missing
    /// distance, becomes 0, and so does the distance of a point to itself.
    ///
    /// # Panics
    /// If the block does not consist of existing rows, or if distances come from vectors.
    pub fn fill<T: FloatElement>(&mut self, pool: &Pool, at: usize, block: &[T], unit: f64) {
        let (n, stride, first) = (self.n, self.stride, self.first);
        let count = block.len() / n;
        assert!(block.len() == count * n && at + count <= self.rows, "the block must consist of existing rows");
        let inverse = 1.0 / unit;
        let seen = move |i: usize, j: usize| {
            let value = block[i * n + j].to_f64() * inverse;
            if value.is_nan() || first.is_some_and(|first| first + at + i == j) { 0.0 } else { value }
        };
        let DistanceCells::Table(cells) = &mut self.cells else { panic!("distances come from vectors") };
        cells.keep(pool, at..at + count, n, stride, 0, seen);
    }

    /// Allocates a weight for each distance, all 0, to be [`DistanceBlock::weigh`]ed.
    pub fn make_weights(&mut self, storage: CellStorage) {
        self.weights = Some(CellTable::zeroed(storage, self.rows * self.stride));
    }

    /// Sets the weights of whole rows from row `at` on, in units of `unit`, which no weight may exceed. Other rows keep
    /// 0. The weight of a point and itself is 0; other weights above 0 stay above 0.
    ///
    /// # Panics
    /// If the block does not consist of existing rows, or if weights are not allocated.
    pub fn weigh<T: FloatElement>(&mut self, pool: &Pool, at: usize, block: &[T], unit: f64) {
        let (n, stride, first) = (self.n, self.stride, self.first);
        let count = block.len() / n;
        assert!(block.len() == count * n && at + count <= self.rows, "the block must consist of existing rows");
        let weights = self.weights.as_mut().expect("there is room for weights");
        let inverse = 1.0 / unit;
        weights.keep(pool, at..at + count, n, stride, 1, |i, j| {
            let same = first.is_some_and(|first| first + at + i == j);
            if same { 0.0 } else { block[i * n + j].to_f64() * inverse }
        });
    }

    /// For each column, the number of the first column that it is connected to. Two columns are connected if a row has
    /// weight on both, directly or through others.
    ///
    /// # Panics
    /// If there are no weights, or rows are not among the columns.
    #[must_use]
    pub fn components(&self) -> Vec<u32> {
        let weights = self.weights.as_ref().expect("components are those of weights");
        let first = self.first.expect("rows are among the columns");
        let mut parents: Vec<u32> = (0..self.n as u32).collect();
        fn root(parents: &mut [u32], mut i: u32) -> u32 {
            while parents[i as usize] != i {
                parents[i as usize] = parents[parents[i as usize] as usize];
                i = parents[i as usize];
            }
            i
        }
        for i in 0..self.rows {
            for j in (0..self.n).filter(|j| weights.is_positive(i * self.stride + j)) {
                let (a, b) = (root(&mut parents, (first + i) as u32), root(&mut parents, j as u32));
                let (least, other) = (a.min(b), a.max(b));
                parents[other as usize] = least;
            }
        }
        (0..self.n as u32).map(|i| root(&mut parents, i)).collect()
    }
}

impl CellTable {
    fn zeroed(storage: CellStorage, count: usize) -> Self {
        match storage {
            CellStorage::F32 => CellTable::F32(AlignedBuffer::zeroed(count)),
            CellStorage::F16 => CellTable::F16(AlignedBuffer::zeroed(count)),
            CellStorage::Fixed16 => CellTable::Fixed16(AlignedBuffer::zeroed(count)),
        }
    }

    fn len_bytes(&self) -> usize {
        match self {
            CellTable::F32(cells) => size_of_val(cells.as_slice()),
            CellTable::F16(cells) | CellTable::Fixed16(cells) => size_of_val(cells.as_slice()),
        }
    }

    fn is_positive(&self, at: usize) -> bool {
        match self {
            CellTable::F32(cells) => cells.as_slice()[at] > 0.0,
            CellTable::F16(cells) | CellTable::Fixed16(cells) => cells.as_slice()[at] > 0,
        }
    }

    /// Stores `seen(row, column)`, counted from the first of `rows`; values above 0 become at least `least` of the
    /// available steps.
    fn keep(
        &mut self,
        pool: &Pool,
        rows: Range<usize>,
        n: usize,
        stride: usize,
        least: u16,
        seen: impl Fn(usize, usize) -> f64 + Sync,
    ) {
        let range = rows.start * stride..rows.end * stride;
        let floor = |value: f64| if value > 0.0 { least } else { 0 };
        match self {
            CellTable::F32(cells) => keep(pool, &mut cells.as_mut_slice()[range], n, stride, |i, j| {
                let value = seen(i, j);
                (value as f32).max(f32::from(floor(value)) * f32::MIN_POSITIVE)
            }),
            CellTable::F16(cells) => keep(pool, &mut cells.as_mut_slice()[range], n, stride, |i, j| {
                let value = seen(i, j);
                to_half(value).max(floor(value))
            }),
            CellTable::Fixed16(cells) => keep(pool, &mut cells.as_mut_slice()[range], n, stride, |i, j| {
                let value = seen(i, j);
                // For positive numbers, `as` rounds down.
                ((value * 65535.0 + 0.5) as u16).max(floor(value))
            }),
        }
    }
}

/// Writes `value(row, column)` to the first `n` of every `stride` cells.
fn keep<T: Send>(pool: &Pool, cells: &mut [T], n: usize, stride: usize, value: impl Fn(usize, usize) -> T + Sync) {
    let rows = cells.len() / stride;
    pool.each(&mut split(cells, rows, stride, pool), |_, (first, part)| {
        for (i, row) in part.chunks_exact_mut(stride).enumerate() {
            for (j, cell) in row[..n].iter_mut().enumerate() {
                *cell = value(*first + i, j);
            }
        }
    });
}

/// Half precision of a number from 0 to 1, scaled so that 1 is 2^15; rounds to nearest, ties to even.
fn to_half(value: f64) -> u16 {
    // In `f32` with the exponent reduced by 112, the upper bits are those of half precision, even below its normal
    // range.
    let bits = ((value * 32768.0) as f32 * 2f32.powi(-112)).to_bits();
    ((bits + 0xfff + (bits >> 13 & 1)) >> 13) as u16
}
