//! A string column as lines.

use arrow::array::{AsArray, RecordBatch};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Schema};

use crate::error::{DataSetError, Result};
use crate::files::rejected::RejectedRow;

pub(super) fn check(schema: &Schema) -> Result<()> {
    let is_text = |data_type: &DataType| matches!(data_type, DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View);
    match &schema.fields()[..] {
        [field] => match field.data_type() {
            data_type if is_text(data_type) => Ok(()),
            DataType::Dictionary(_, values) if is_text(values) => Ok(()),
            other => Err(DataSetError::Query(format!(
                "lines are strings, but {:?} is {other}; cast it to str",
                field.name()
            ))),
        },
        fields => {
            Err(DataSetError::Query(format!("lines have one column, but there are {}; select one", fields.len())))
        }
    }
}

/// Rejects strings that would not be read back as they are.
pub(super) fn append(batch: &RecordBatch, block: &mut Vec<u8>) -> Result<(), RejectedRow> {
    RejectedRow::null(batch, "a text")?;
    let texts =
        cast(batch.column(0), &DataType::Utf8View).map_err(|e| RejectedRow { row: 0, reason: e.to_string() })?;
    for (row, text) in texts.as_string_view().iter().flatten().enumerate() {
        if memchr::memchr(b'\n', text.as_bytes()).is_some() || text.ends_with('\r') {
            let shown: String = text.chars().take(40).collect();
            let reason = format!("{shown:?} contains a line end, and would be read as several lines; replace it first");
            return Err(RejectedRow { row, reason });
        }
        block.extend_from_slice(text.as_bytes());
        block.push(b'\n');
    }
    Ok(())
}
