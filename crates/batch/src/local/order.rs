//! Sort orders: the columns and their directions, and rows as bytes that compare accordingly, the same on every worker.

use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::compute::SortOptions;
use arrow::datatypes::SchemaRef;
use arrow::error::ArrowError;
use arrow::row::{RowConverter, Rows, SortField};

use super::compact::is_plain;
use crate::floats::canonical;

/// A column to sort by. By default nulls come first. NaNs, of either sign, come after all other numbers; both zeros are
/// equal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SortKey {
    /// The name of the column.
    pub column: String,
    pub(crate) options: SortOptions,
}

impl SortKey {
    /// Smallest first.
    pub fn ascending(column: impl Into<String>) -> Self {
        SortKey { column: column.into(), options: SortOptions { descending: false, nulls_first: true } }
    }

    /// Largest first, nulls last.
    pub fn descending(column: impl Into<String>) -> Self {
        SortKey { column: column.into(), options: SortOptions { descending: true, nulls_first: false } }
    }

    /// Whether nulls come first.
    #[must_use]
    pub fn nulls_first(mut self, nulls_first: bool) -> Self {
        self.options.nulls_first = nulls_first;
        self
    }

    /// A description: the column and its direction.
    pub fn describe(&self) -> String {
        let way = if self.options.descending { " descending" } else { "" };
        let nulls = if self.options.nulls_first == self.options.descending { " (nulls the other way)" } else { "" };
        format!("{}{way}{nulls}", self.column)
    }
}

/// The order of rows by some of their columns: all NaNs are one value, the largest, and both zeros are equal.
#[derive(Clone)]
pub struct RowOrder {
    columns: Vec<(usize, SortOptions)>,
    /// Whether all columns are plain numbers, which have compact keys.
    is_plain: bool,
    converter: Arc<RowConverter>,
}

impl RowOrder {
    /// The order of rows with this schema by these columns.
    ///
    /// # Errors
    /// If the schema lacks a column, or if a column's type has no order.
    pub fn new(schema: &SchemaRef, keys: &[SortKey]) -> Result<Self, ArrowError> {
        let column = |key: &SortKey| Ok((schema.index_of(&key.column)?, key.options));
        RowOrder::by_columns(schema, keys.iter().map(column).collect::<Result<_, ArrowError>>()?)
    }

    /// The order by the columns with these numbers.
    ///
    /// # Errors
    /// For types without an order, such as maps.
    ///
    /// # Panics
    /// If a column number is out of range for the schema.
    pub fn by_columns(schema: &SchemaRef, columns: Vec<(usize, SortOptions)>) -> Result<Self, ArrowError> {
        let data_type = |at: usize| schema.field(at).data_type();
        let field = |&(at, options): &(usize, SortOptions)| SortField::new_with_options(data_type(at).clone(), options);
        let converter = Arc::new(RowConverter::new(columns.iter().map(field).collect())?);
        let is_plain = columns.iter().all(|(at, _)| is_plain(data_type(*at)));
        Ok(RowOrder { columns, is_plain, converter })
    }

    /// The columns, if all are plain numbers.
    pub(crate) fn plain(&self) -> Option<impl Iterator<Item = (usize, SortOptions)>> {
        self.is_plain.then(|| self.columns.iter().copied())
    }

    /// An order in which rows with equal keys are adjacent.
    ///
    /// # Errors
    /// As [`RowOrder::new`].
    pub fn of_groups(schema: &SchemaRef, keys: &[String]) -> Result<Self, ArrowError> {
        RowOrder::new(schema, &keys.iter().map(SortKey::ascending).collect::<Vec<_>>())
    }

    /// Rows as bytes that compare in this order.
    ///
    /// # Errors
    /// If the column types differ from those that the order was made for.
    pub fn rows(&self, batch: &RecordBatch) -> Result<Rows, ArrowError> {
        let columns = self.columns.iter().map(|&(at, _)| canonical(batch.column(at))).collect::<Result<Vec<_>, _>>()?;
        self.converter.convert_columns(&columns)
    }
}

/// Bytes of a key that a [`prefix`] holds. No row's bytes are a prefix of another's, so two keys of at most this length
/// are equal if their prefixes are.
pub(crate) const PREFIX_BYTES: usize = 16;

/// The first bytes of a row as a number that compares like them: most comparisons end here.
#[inline]
pub(crate) fn prefix(row: &[u8]) -> u128 {
    match row.first_chunk::<PREFIX_BYTES>() {
        Some(bytes) => u128::from_be_bytes(*bytes),
        None => {
            let mut bytes = [0; PREFIX_BYTES];
            bytes[..row.len()].copy_from_slice(row);
            u128::from_be_bytes(bytes)
        }
    }
}
