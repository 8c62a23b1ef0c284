//! Columns as a NumPy array with shape (rows, columns), or (rows,) for a single column.
//!
//! The format is NEP 1's, version 1.0: a magic number, the length of a dictionary, the dictionary in Python's notation,
//! and the values.

use std::borrow::Cow;

use arrow::array::{Array, AsArray, RecordBatch};
use arrow::datatypes::{DataType, Schema};

use crate::error::{DataSetError, Result};
use crate::files::rejected::RejectedRow;

/// Long enough for any number of rows and columns, and a multiple of 64, because values should be aligned.
const HEADER_BYTES: usize = 128;

/// NumPy's name of the type without the byte order, and its size.
fn dtype(data_type: &DataType) -> Option<(&'static str, usize)> {
    Some(match data_type {
        DataType::Boolean => ("b1", 1),
        DataType::Int8 => ("i1", 1),
        DataType::Int16 => ("i2", 2),
        DataType::Int32 => ("i4", 4),
        DataType::Int64 => ("i8", 8),
        DataType::UInt8 => ("u1", 1),
        DataType::UInt16 => ("u2", 2),
        DataType::UInt32 => ("u4", 4),
        DataType::UInt64 => ("u8", 8),
        DataType::Float16 => ("f2", 2),
        DataType::Float32 => ("f4", 4),
        DataType::Float64 => ("f8", 8),
        _ => return None,
    })
}

pub(super) fn check(schema: &Schema) -> Result<()> {
    let fields = schema.fields();
    if let Some(field) = fields.iter().find(|field| dtype(field.data_type()).is_none()) {
        return Err(DataSetError::Query(format!(
            "an array holds numbers or booleans, but {:?} is {}; select others, or cast it",
            field.name(),
            field.data_type()
        )));
    }
    let Some(first) = fields.first() else {
        return Err(DataSetError::Query("an array needs at least one column".into()));
    };
    match fields.iter().find(|field| field.data_type() != first.data_type()) {
        None => Ok(()),
        Some(other) => Err(DataSetError::Query(format!(
            "an array has one type, but {:?} is {}, {:?} {}; cast them",
            first.name(),
            first.data_type(),
            other.name(),
            other.data_type()
        ))),
    }
}

pub(super) fn header(schema: &Schema, rows: u64) -> Vec<u8> {
    let (name, bytes) = schema.fields().first().and_then(|field| dtype(field.data_type())).expect("it was checked");
    let order = match bytes {
        1 => '|',
        _ if cfg!(target_endian = "big") => '>',
        _ => '<',
    };
    let shape = match schema.fields().len() {
        1 => format!("({rows},)"),
        columns => format!("({rows}, {columns})"),
    };
    let mut header = b"\x93NUMPY\x01\x00".to_vec();
    header.extend(((HEADER_BYTES - header.len() - 2) as u16).to_le_bytes());
    header.extend(format!("{{'descr': '{order}{name}', 'fortran_order': False, 'shape': {shape}, }}").bytes());
    header.resize(HEADER_BYTES - 1, b' ');
    header.push(b'\n');
    header
}

/// A column at a time, so that values move from one sequence to another.
pub(super) fn append(batch: &RecordBatch, block: &mut Vec<u8>) -> Result<(), RejectedRow> {
    RejectedRow::null(batch, "an array")?;
    let (_, bytes) = dtype(batch.column(0).data_type()).expect("it was checked");
    let (start, rows, width) = (block.len(), batch.num_rows(), batch.num_columns() * bytes);
    block.resize(start + rows * width, 0);
    for (at, column) in batch.columns().iter().enumerate() {
        let data = column.to_data();
        let values: Cow<'_, [u8]> = match column.as_boolean_opt() {
            Some(flags) => flags.values().iter().map(u8::from).collect(),
            None => Cow::Borrowed(&data.buffers()[0][data.offset() * bytes..][..rows * bytes]),
        };
        let rows = block[start..].chunks_exact_mut(width).zip(values.chunks_exact(bytes));
        rows.for_each(|(row, value)| row[at * bytes..][..bytes].copy_from_slice(value));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use arrow::datatypes::Field;

    use super::*;

    /// A header longer than its placeholder would overwrite the first values.
    #[test]
    fn the_longest_header_has_its_place() {
        let fields: Vec<Field> = (0..100_000).map(|_| Field::new("x", DataType::Float64, false)).collect();
        let header = header(&Schema::new(fields), u64::MAX);
        let text = String::from_utf8_lossy(&header[10..]).into_owned();
        assert!(text.contains(&format!("'shape': ({}, 100000), }} ", u64::MAX)) && text.ends_with('\n'), "{text}");
        assert_eq!(header.len(), HEADER_BYTES);
    }
}
