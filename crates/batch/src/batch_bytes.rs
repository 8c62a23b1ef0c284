//! The size of a batch in bytes, the basis for credit, reservations and block sizes.

use arrow::array::{Array, AsArray, RecordBatch};
use arrow::datatypes::DataType;

/// Bytes of a batch's rows. For a slice, only its part counts.
pub fn batch_bytes(batch: &RecordBatch) -> u64 {
    let fixed = |column: &dyn Array, width: usize| {
        let nulls = if column.nulls().is_some() { column.len().div_ceil(8) } else { 0 };
        column.len() * width + nulls
    };
    let column = |column: &dyn Array| match (column.data_type(), column.data_type().primitive_width()) {
        (_, Some(width)) => fixed(column, width),
        // Arrow counts only the views; the data they refer to is most of the size, and is sent along with them.
        (DataType::Utf8View, _) => fixed(column, 16) + column.as_string_view().total_buffer_bytes_used(),
        (DataType::BinaryView, _) => fixed(column, 16) + column.as_binary_view().total_buffer_bytes_used(),
        _ => column.to_data().get_slice_memory_size().unwrap_or_else(|_| column.get_array_memory_size()),
    };
    batch.columns().iter().map(|c| column(c.as_ref()) as u64).sum()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::{ArrayRef, Int64Array, RecordBatch, StringArray, StringViewArray};

    use super::batch_bytes;

    /// Credit and block sizes depend on this: a string must weigh about the same in each of its layouts, whole or
    /// sliced.
    #[test]
    fn texts_weigh_what_they_hold() {
        let texts = || (0..1000).map(|i| format!("{i:100}"));
        let columns: [ArrayRef; 2] =
            [Arc::new(StringArray::from_iter_values(texts())), Arc::new(StringViewArray::from_iter_values(texts()))];
        for column in columns {
            let batch = RecordBatch::try_from_iter([("t", column)]).unwrap();
            assert!((100_000..120_000).contains(&batch_bytes(&batch)));
            assert!((10_000..12_000).contains(&batch_bytes(&batch.slice(500, 100))));
        }
        let numbers =
            RecordBatch::try_from_iter([("n", Arc::new(Int64Array::from(vec![Some(1), None])) as _)]).unwrap();
        assert_eq!(batch_bytes(&numbers), 17);
    }
}
