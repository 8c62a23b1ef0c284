//! Rows to bytes: JSON lines and CSV.

use arrow::array::RecordBatch;
use arrow::error::ArrowError;
use serde::Deserialize;

/// How rows are written down.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum LineFormat {
    /// An object a line; nulls are left out.
    #[default]
    Json,
    /// Values between commas.
    Csv,
}

impl LineFormat {
    /// What files of it end with.
    pub(crate) fn ending(self) -> &'static str {
        match self {
            LineFormat::Json => "jsonl",
            LineFormat::Csv => "csv",
        }
    }

    /// Appends rows to `out`, a line each; before CSV's come its names, if `header` says so.
    ///
    /// # Errors
    /// For types that it has no way to write.
    pub(crate) fn encode(self, rows: &RecordBatch, header: bool, out: &mut Vec<u8>) -> Result<(), ArrowError> {
        match self {
            LineFormat::Json => {
                let mut writer = arrow::json::LineDelimitedWriter::new(out);
                writer.write(rows)?;
                writer.finish()
            }
            LineFormat::Csv => arrow::csv::WriterBuilder::new().with_header(header).build(out).write(rows),
        }
    }
}
