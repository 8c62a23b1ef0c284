//! Groups: which rows have equal keys. Each key gets a number in the order in which it was first seen.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, RecordBatch, UInt32Array, make_array};
use arrow::compute::take;
use arrow::datatypes::{DataType, Float16Type, Float32Type, Float64Type, SchemaRef};
use arrow::error::ArrowError;
use arrow::row::{RowConverter, Rows, SortField};
use hashbrown::HashTable;

use crate::keys::KeyHasher;

/// Key columns as rows of bytes that are equal when the keys are.
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

    /// Whether any key column of each row is null.
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

/// The same values with one NaN and one zero, so that their bytes are equal when they are.
pub(crate) fn canonical(array: &ArrayRef) -> Result<ArrayRef, ArrowError> {
    fn has_floats(data_type: &DataType) -> bool {
        match data_type {
            DataType::Float16 | DataType::Float32 | DataType::Float64 => true,
            DataType::List(f) | DataType::LargeList(f) | DataType::FixedSizeList(f, _) | DataType::Map(f, _) => {
                has_floats(f.data_type())
            }
            DataType::Struct(fields) => fields.iter().any(|field| has_floats(field.data_type())),
            DataType::Dictionary(_, values) => has_floats(values),
            DataType::RunEndEncoded(_, values) => has_floats(values.data_type()),
            _ => false,
        }
    }
    Ok(match array.data_type() {
        DataType::Float64 => {
            let canonical = |x: f64| if x.is_nan() { f64::NAN } else { x + 0.0 };
            Arc::new(array.as_primitive::<Float64Type>().unary::<_, Float64Type>(canonical)) as _
        }
        DataType::Float32 => {
            let canonical = |x: f32| if x.is_nan() { f32::NAN } else { x + 0.0 };
            Arc::new(array.as_primitive::<Float32Type>().unary::<_, Float32Type>(canonical)) as _
        }
        DataType::Float16 => {
            let canonical = |x: half::f16| if x.is_nan() { half::f16::NAN } else { x + half::f16::ZERO };
            Arc::new(array.as_primitive::<Float16Type>().unary::<_, Float16Type>(canonical)) as _
        }
        data_type if has_floats(data_type) => {
            let data = array.to_data();
            let children =
                data.child_data().iter().map(|child| canonical(&make_array(child.clone())).map(|c| c.to_data()));
            let children = children.collect::<Result<Vec<_>, _>>()?;
            make_array(data.into_builder().child_data(children).build()?)
        }
        _ => array.clone(),
    })
}

/// See the module. Without key columns all rows are one group.
pub(crate) struct Groups {
    keys: KeyRows,
    table: HashTable<(u64, u32)>,
    rows: Rows,
    /// Key columns of the groups, in pieces.
    pieces: Vec<Vec<ArrayRef>>,
    count: u32,
    hashes: Vec<u64>,
}

impl Groups {
    pub(crate) fn new(schema: &SchemaRef, columns: Vec<usize>) -> Result<Self, ArrowError> {
        let keys = KeyRows::new(schema, columns)?;
        let rows = keys.empty();
        Ok(Groups { keys, table: HashTable::new(), rows, pieces: Vec::new(), count: 0, hashes: Vec::new() })
    }

    pub(crate) fn count(&self) -> usize {
        self.count as usize
    }

    /// Bytes it holds, about.
    pub(crate) fn bytes(&self) -> u64 {
        let pieces: usize = self.pieces.iter().flatten().map(|array| array.get_array_memory_size()).sum();
        (self.rows.size() + self.table.capacity() * 17 + pieces) as u64
    }

    /// Leaves the group of each row in `groups`.
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

    /// The key columns, a row for each group.
    pub(crate) fn key_columns(&self) -> Result<Vec<ArrayRef>, ArrowError> {
        (0..self.keys.columns.len())
            .map(|at| {
                let pieces: Vec<&dyn Array> = self.pieces.iter().map(|columns| columns[at].as_ref()).collect();
                arrow::compute::concat(&pieces)
            })
            .collect()
    }
}
