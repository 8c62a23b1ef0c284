//! Decodes distances and weights for the loops: as `f32`, some rows by some columns.

use super::PADDING;
use super::cells::{CellTable, DistanceBlock, DistanceCells};
use crate::simd::Simd;
use std::ops::Range;

/// Vector features that are processed at a time, so that a panel of columns stays in the first-level cache.
const FEATURES: usize = 256;

/// Rows and columns of a tile, chosen so that the loops' other data stay in the caches, and vectors are read seldom.
#[derive(Clone, Copy)]
pub(super) struct TileShape {
    pub(super) rows: usize,
    pub(super) columns: usize,
}

/// A buffer for a decoded tile.
pub(super) struct TileBuffer(Vec<f32>);

impl DistanceBlock {
    /// The best tile for these cells; both numbers are multiples of what the loops process.
    pub(super) fn tile(&self) -> TileShape {
        match self.cells {
            DistanceCells::Vectors { .. } => TileShape { rows: 64, columns: 512 },
            DistanceCells::Table(CellTable::F32(_)) if !self.decodes_weights() => {
                TileShape { rows: super::GROUP, columns: 2048 }
            }
            DistanceCells::Table(_) => TileShape { rows: super::GROUP, columns: 1024 },
        }
    }

    fn decodes_weights(&self) -> bool {
        matches!(self.weights, Some(CellTable::F16(_) | CellTable::Fixed16(_)))
    }

    /// A buffer for [`DistanceBlock::decode`].
    pub(super) fn buffer(&self) -> TileBuffer {
        self.room(!matches!(self.cells, DistanceCells::Table(CellTable::F32(_))))
    }

    /// A buffer for [`DistanceBlock::decode_weights`].
    pub(super) fn weight_buffer(&self) -> TileBuffer {
        self.room(self.decodes_weights())
    }

    fn room(&self, wanted: bool) -> TileBuffer {
        let tile = self.tile();
        TileBuffer(vec![0.0; if wanted { tile.rows * tile.columns } else { 0 }])
    }

    /// The weights of rows and columns, like [`DistanceBlock::decode`].
    #[inline(always)]
    pub(super) fn decode_weights<'a>(
        &'a self,
        rows: Range<usize>,
        columns: Range<usize>,
        buffer: &'a mut TileBuffer,
    ) -> (&'a [f32], usize) {
        self.weights.as_ref().expect("checked by the caller").decode(self.stride, rows, columns, buffer)
    }

    /// Decodes rows and columns, at most a tile of them; `columns` begin at a multiple of the padding. Returns the
    /// cells and the step from row to row.
    #[inline(always)]
    pub(super) fn decode<'a, S: Simd<Elem = f32>>(
        &'a self,
        s: S,
        rows: Range<usize>,
        columns: Range<usize>,
        buffer: &'a mut TileBuffer,
    ) -> (&'a [f32], usize) {
        let (vectors, panels, d) = match &self.cells {
            DistanceCells::Table(cells) => return cells.decode(self.stride, rows, columns, buffer),
            DistanceCells::Vectors { rows, columns, d } => (rows, columns, *d),
        };
        let width = columns.len();
        for panel in columns.clone().step_by(PADDING) {
            let values = &panels.as_slice()[panel * d..(panel + PADDING) * d];
            let mut i = rows.start;
            while i < rows.end {
                let out = &mut buffer.0[(i - rows.start) * width + panel - columns.start..];
                // A row's sum does not depend on how many rows are processed together.
                if i + 8 <= rows.end {
                    between::<S, 8>(s, &vectors[i * d..], values, d, out, width);
                    i += 8;
                } else {
                    between::<S, 1>(s, &vectors[i * d..], values, d, out, width);
                    i += 1;
                }
            }
        }
        (&buffer.0, width)
    }
}

impl CellTable {
    #[inline(always)]
    fn decode<'a>(
        &'a self,
        stride: usize,
        rows: Range<usize>,
        columns: Range<usize>,
        buffer: &'a mut TileBuffer,
    ) -> (&'a [f32], usize) {
        let width = columns.len();
        let at = |i: usize| i * stride + columns.start..i * stride + columns.end;
        match self {
            CellTable::F32(cells) => return (&cells.as_slice()[at(rows.start).start..at(rows.end - 1).end], stride),
            CellTable::F16(cells) => {
                // Half precision, shifted into place, is 2^-112 of the number, and the unit is 2^15.
                let scale = 2f32.powi(112 - 15);
                for (i, out) in rows.zip(buffer.0.chunks_exact_mut(width)) {
                    for (out, &cell) in out.iter_mut().zip(&cells.as_slice()[at(i)]) {
                        *out = f32::from_bits(u32::from(cell) << 13) * scale;
                    }
                }
            }
            CellTable::Fixed16(cells) => {
                for (i, out) in rows.zip(buffer.0.chunks_exact_mut(width)) {
                    for (out, &cell) in out.iter_mut().zip(&cells.as_slice()[at(i)]) {
                        *out = f32::from(cell) * (1.0 / 65535.0);
                    }
                }
            }
        }
        (&buffer.0, width)
    }
}

/// Distances of `R` vectors to a panel of columns.
#[inline(always)]
fn between<S: Simd<Elem = f32>, const R: usize>(
    s: S,
    vectors: &[f32],
    panel: &[f32],
    d: usize,
    out: &mut [f32],
    step: usize,
) {
    assert!(vectors.len() >= R * d && panel.len() >= PADDING * d && out.len() >= (R - 1) * step + PADDING);
    let tiny = s.splat(f32::MIN_POSITIVE);
    for lane in (0..PADDING).step_by(S::LANES) {
        let mut total = [s.splat(0.0); R];
        // Sums over a few features each, so that thousands of features lose no more digits than these.
        for features in (0..d).step_by(FEATURES) {
            let mut sum = [s.splat(0.0); R];
            for f in features..d.min(features + FEATURES) {
                // SAFETY: the panel has `PADDING` columns for each of `d` features, and `lane` is a multiple of
                // `LANES`.
                let column = unsafe { s.load(panel.as_ptr().add(f * PADDING + lane)) };
                for (r, sum) in sum.iter_mut().enumerate() {
                    // SAFETY: there are `R` vectors of `d` features.
                    let way = s.sub(s.splat(unsafe { *vectors.get_unchecked(r * d + f) }), column);
                    *sum = s.mul_add(way, way, *sum);
                }
            }
            for (total, sum) in total.iter_mut().zip(sum) {
                *total = s.mul_add(sum, s.splat(1.0), *total);
            }
        }
        for (r, &square) in total.iter().enumerate() {
            let distance = s.mul(square, s.rsqrt(s.max(square, tiny)));
            // SAFETY: `out` has room for `R` rows, `step` apart, of `PADDING`.
            unsafe { s.store(out.as_mut_ptr().add(r * step + lane), distance) };
        }
    }
}
