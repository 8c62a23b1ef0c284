//! Groups: finds rows with equal keys. Keys are numbered in the order in which they first appear.

use arrow::array::{Array, ArrayRef, RecordBatch, UInt32Array};
use arrow::compute::take;
use arrow::datatypes::SchemaRef;
use arrow::error::ArrowError;
use arrow::row::{RowConverter, Rows, SortField};
use hashbrown::HashTable;

use crate::floats::canonical;
use crate::keys::KeyHasher;

/// Key columns as rows of bytes that are equal if the keys are.
pub(crate) struct KeyRows {
    columns: Vec<usize>,
    converter: RowConverter,
    hasher: KeyHasher,
}

impl KeyRows {
    pub(crate) fn new(schema: &SchemaRef, columns: Vec<usize>) -> Result<Self, ArrowError> {
        let fields = columns.iter().map(|&at| SortField::new(schema.field(at).data_type().clone())).collect();
        let converter = RowConverter::new(fields)?;
        Ok(KeyRows { hasher: KeyHasher::new(columns.clone()), columns, converter })
    }

    /// The rows, and their hashes.
    pub(crate) fn rows(&self, batch: &RecordBatch, hashes: &mut Vec<u64>) -> Result<Rows, ArrowError> {
        self.hasher.hash(batch, hashes)?;
        let columns: Vec<ArrayRef> =
            self.columns.iter().map(|&at| canonical(batch.column(at))).collect::<Result<_, _>>()?;
        self.converter.convert_columns(&columns)
    }

    pub(crate) fn empty(&self) -> Rows {
        self.converter.empty_rows(0, 0)
    }

    /// For each row, whether any key column is null.
    pub(crate) fn nulls(&self, batch: &RecordBatch) -> Vec<bool> {
        let mut nulls = vec![false; batch.num_rows()];
        for &at in &self.columns {
            if let Some(buffer) = batch.column(at).logical_nulls().filter(|nulls| nulls.null_count() > 0) {
                nulls.iter_mut().enumerate().for_each(|(row, null)| *null |= buffer.is_null(row));
            }
        }
        nulls
    }
}

/// The numbered groups, see the module. Without key columns, all rows form one group.
pub(crate) struct GroupTable {
    keys: KeyRows,
    table: HashTable<(u64, u32)>,
    rows: Rows,
    /// Key columns of the groups, in pieces.
    pieces: Vec<Vec<ArrayRef>>,
    count: u32,
    hashes: Vec<u64>,
}

impl GroupTable {
    pub(crate) fn new(schema: &SchemaRef, columns: Vec<usize>) -> Result<Self, ArrowError> {
        let keys = KeyRows::new(schema, columns)?;
        let rows = keys.empty();
        Ok(GroupTable { keys, table: HashTable::new(), rows, pieces: Vec::new(), count: 0, hashes: Vec::new() })
    }

    pub(crate) fn count(&self) -> usize {
        self.count as usize
    }

    /// Approximate number of bytes it holds.
    pub(crate) fn bytes(&self) -> u64 {
        let pieces: usize = self.pieces.iter().flatten().map(|array| array.get_array_memory_size()).sum();
        (self.rows.size() + self.table.capacity() * 17 + pieces) as u64
    }

    /// Writes the group of each row to `groups`.
    pub(crate) fn assign(&mut self, batch: &RecordBatch, groups: &mut Vec<u32>) -> Result<(), ArrowError> {
        groups.clear();
        if self.keys.columns.is_empty() {
            self.count = 1;
            groups.resize(batch.num_rows(), 0);
            return Ok(());
        }
        let rows = self.keys.rows(batch, &mut self.hashes)?;
        let mut new = Vec::new();
        for (row, (key, &hash)) in rows.iter().zip(&self.hashes).enumerate() {
            let found = self.table.find(hash, |&(h, group)| h == hash && self.rows.row(group as usize) == key);
            groups.push(match found {
                Some(&(_, group)) => group,
                None => {
                    let group = self.count;
                    self.count += 1;
                    self.rows.push(key);
                    self.table.insert_unique(hash, (hash, group), |&(hash, _)| hash);
                    new.push(row as u32);
                    group
                }
            });
        }
        if !new.is_empty() {
            let new = UInt32Array::from(new);
            let columns = self.keys.columns.iter().map(|&at| take(batch.column(at), &new, None));
            self.pieces.push(columns.collect::<Result<_, _>>()?);
        }
        Ok(())
    }

    /// The key columns, one row per group.
    pub(crate) fn key_columns(&self) -> Result<Vec<ArrayRef>, ArrowError> {
        (0..self.keys.columns.len())
            .map(|at| {
                let pieces: Vec<&dyn Array> = self.pieces.iter().map(|columns| columns[at].as_ref()).collect();
                arrow::compute::concat(&pieces)
            })
            .collect()
    }
}
