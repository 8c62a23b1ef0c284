//! Rows that cannot be written.

use arrow::array::{Array, RecordBatch};

/// A row that cannot be written.
#[derive(Debug)]
pub(crate) struct RejectedRow {
    /// Its number in the batch.
    pub(crate) row: usize,
    pub(crate) reason: String,
}

impl RejectedRow {
    /// The first null, for a format without nulls.
    pub(crate) fn null(batch: &RecordBatch, what: &str) -> Result<(), Self> {
        let column = |(at, column): (usize, &arrow::array::ArrayRef)| {
            let nulls = column.logical_nulls().filter(|nulls| nulls.null_count() > 0)?;
            let row = (0..nulls.len()).find(|&row| nulls.is_null(row))?;
            let name = batch.schema().field(at).name().clone();
            Some(RejectedRow {
                row,
                reason: format!("{name:?} is null, but {what} cannot hold nulls; use fill_null, or leave the row out"),
            })
        };
        batch.columns().iter().enumerate().filter_map(column).min_by_key(|refused| refused.row).map_or(Ok(()), Err)
    }
}
