//! Subsets of the rows of several batches: the rows that an exchange sends to one copy.

use std::mem::MaybeUninit;

use arrow::buffer::Buffer;

use super::RowIndex;
#[cfg(target_arch = "x86_64")]
use super::row_mask::{CompressSupport, RowMask};

/// With up to this many targets, subsets are bit masks; with more, reading all values once per target no longer pays.
#[cfg(target_arch = "x86_64")]
const MARKED_TARGETS_MAX: u32 = 8;

/// Some of the rows of each batch, in order.
pub struct RowSubset {
    len: usize,
    rows: PartRows,
}

enum PartRows {
    /// Row numbers within each batch, for all batches, and the end of each batch's numbers.
    Numbers(Vec<u32>, Vec<usize>),
    #[cfg(target_arch = "x86_64")]
    Marks(CompressSupport, Vec<RowMask>),
}

/// The subset of each of `targets`, for batches with `rows` rows each. `assigned` contains the target of every row.
///
/// # Panics
/// If the lengths do not match, or if an assigned target does not exist.
pub(crate) fn split_by_target(targets: u32, assigned: &[u32], rows: &[usize]) -> Vec<RowSubset> {
    assert_eq!(assigned.len(), rows.iter().sum::<usize>(), "a target for each row");
    #[cfg(target_arch = "x86_64")]
    if let Some(compress) = CompressSupport::detect().filter(|_| targets <= MARKED_TARGETS_MAX) {
        return split_masks(compress, targets, assigned, rows);
    }
    split_numbers(targets, assigned, rows)
}

pub(super) fn split_numbers(targets: u32, mut assigned: &[u32], rows: &[usize]) -> Vec<RowSubset> {
    let mut counts = vec![0; targets as usize];
    assigned.iter().for_each(|&target| counts[target as usize] += 1);
    let mut parts: Vec<_> = counts.iter().map(|&count| (Vec::with_capacity(count), Vec::new())).collect();
    for &rows in rows {
        let (these, others) = assigned.split_at(rows);
        (0..).zip(these).for_each(|(row, &to)| parts[to as usize].0.push(row));
        parts.iter_mut().for_each(|(numbers, ends)| ends.push(numbers.len()));
        assigned = others;
    }
    let part =
        |(numbers, ends): (Vec<u32>, _)| RowSubset { len: numbers.len(), rows: PartRows::Numbers(numbers, ends) };
    parts.into_iter().map(part).collect()
}

#[cfg(target_arch = "x86_64")]
fn split_masks(compress: CompressSupport, targets: u32, mut assigned: &[u32], rows: &[usize]) -> Vec<RowSubset> {
    let total = assigned.len();
    let mut parts: Vec<_> = (0..targets).map(|_| Vec::with_capacity(rows.len())).collect();
    for &rows in rows {
        let (these, others) = assigned.split_at(rows);
        parts.iter_mut().zip(compress.mark(targets, these)).for_each(|(part, marks)| part.push(marks));
        assigned = others;
    }
    let part = |marks: Vec<RowMask>| RowSubset {
        len: marks.iter().map(RowMask::marked).sum(),
        rows: PartRows::Marks(compress, marks),
    };
    let parts: Vec<RowSubset> = parts.into_iter().map(part).collect();
    assert_eq!(parts.iter().map(RowSubset::len).sum::<usize>(), total, "targets are below {targets}");
    parts
}

impl RowSubset {
    /// The number of rows.
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no rows.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The rows one by one.
    pub(super) fn picks(&self) -> Vec<RowIndex> {
        let mut picks = Vec::with_capacity(self.len);
        match &self.rows {
            PartRows::Numbers(numbers, ends) => (0..).zip(by_batch(numbers, ends)).for_each(|(batch, rows)| {
                picks.extend(rows.iter().map(|&row| RowIndex { batch, row }));
            }),
            #[cfg(target_arch = "x86_64")]
            PartRows::Marks(_, marks) => (0..).zip(marks).for_each(|(batch, marks)| {
                picks.extend(marks.rows().map(|row| RowIndex { batch, row }));
            }),
        }
        picks
    }

    /// Fills `out` with these rows' numbers of `width` bytes, given the values of each batch. Returns `false` for a
    /// width that no number has.
    ///
    /// # Panics
    /// On a row that does not exist, or if `out` has a different length.
    pub(super) fn fill(&self, width: usize, values: &[Buffer], out: &mut [MaybeUninit<u8>]) -> bool {
        assert_eq!(out.len(), self.len * width, "as many bytes as the values have");
        let (numbers, ends) = match &self.rows {
            PartRows::Numbers(numbers, ends) => (numbers, ends),
            #[cfg(target_arch = "x86_64")]
            PartRows::Marks(compress, marks) => {
                return marks
                    .iter()
                    .zip(values)
                    .try_fold(out, |out, (marks, values)| {
                        let filled = compress.fill(width, values, marks, out)?;
                        Some(&mut out[filled..])
                    })
                    .is_some();
            }
        };
        let rows = by_batch(numbers, ends).zip(values);
        match width {
            1 => fill_numbers::<1>(rows, out),
            2 => fill_numbers::<2>(rows, out),
            4 => fill_numbers::<4>(rows, out),
            8 => fill_numbers::<8>(rows, out),
            16 => fill_numbers::<16>(rows, out),
            _ => return false,
        }
        true
    }
}

/// The rows of each batch.
fn by_batch<'a>(numbers: &'a [u32], ends: &'a [usize]) -> impl Iterator<Item = &'a [u32]> {
    let starts = std::iter::once(0).chain(ends.iter().copied());
    starts.zip(ends).map(|(start, &end)| &numbers[start..end])
}

/// Rows are read in order, so the processor prefetches by itself.
fn fill_numbers<'a, const WIDTH: usize>(
    rows: impl Iterator<Item = (&'a [u32], &'a Buffer)>,
    out: &mut [MaybeUninit<u8>],
) {
    let mut out = out.as_chunks_mut::<WIDTH>().0.iter_mut();
    for (rows, values) in rows {
        let values = values.as_chunks::<WIDTH>().0;
        for (&row, to) in rows.iter().zip(&mut out) {
            *to = values[row as usize].map(MaybeUninit::new);
        }
    }
}
