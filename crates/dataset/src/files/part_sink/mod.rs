//! Files in Tidemill's own formats, one per partition, in the order of the partitions, written by a [`DataSink`] that
//! keeps the order of rows.
//!
//! | format    | columns                              | file                                   |
//! |-----------|--------------------------------------|----------------------------------------|
//! | `Records` | any, each of a fixed number of bytes | no header                              |
//! | [`text`]  | one string column                    | one line per row, compressed or not    |
//! | [`npy`]   | any, all of the same numeric type    | NumPy's header, then the rows          |

mod npy;
mod text;
mod writer;

use std::fmt;
use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::datatypes::{Schema, SchemaRef};
use async_trait::async_trait;
use datafusion::common::GetExt;
use datafusion::datasource::file_format::file_compression_type::FileCompressionType;
use datafusion::datasource::listing::ListingTableUrl;
use datafusion::datasource::sink::DataSink;
use datafusion::error::DataFusionError;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_plan::{DisplayAs, DisplayFormatType};
use futures::StreamExt;
use tidemill_dataflow::memory::Governor;
use tidemill_storage::shown_url;

use crate::error::{DataSetError, Result};
use crate::files::records;
use crate::files::rejected::RejectedRow;
use writer::FormatWriter;

/// Approximate number of bytes per write.
const BLOCK_BYTES: usize = 1 << 20;

/// How rows are encoded.
#[derive(Debug, Clone)]
pub enum PartFormat {
    /// Records of a fixed length.
    Records,
    /// Lines of text.
    Text(FileCompressionType),
    /// A NumPy array.
    Npy,
}

impl PartFormat {
    /// Checks whether these columns can be written in this format.
    pub(crate) fn check(&self, schema: &Schema) -> Result<()> {
        match self {
            PartFormat::Records => records::check(schema),
            PartFormat::Text(_) => text::check(schema),
            PartFormat::Npy => npy::check(schema),
        }
    }

    /// The extension of file names.
    pub(crate) fn extension(&self) -> String {
        match self {
            PartFormat::Records => "bin".into(),
            PartFormat::Text(compression) => format!("txt{}", compression.get_ext()),
            PartFormat::Npy => "npy".into(),
        }
    }

    /// The header of a file; its length does not depend on the rows.
    pub(crate) fn header(&self, schema: &Schema, rows: u64) -> Vec<u8> {
        match self {
            PartFormat::Npy => npy::header(schema, rows),
            PartFormat::Records | PartFormat::Text(_) => Vec::new(),
        }
    }

    /// Appends rows to `block`, or returns the row that cannot be encoded and the reason.
    fn append(&self, batch: &RecordBatch, block: &mut Vec<u8>) -> Result<(), RejectedRow> {
        match self {
            PartFormat::Records => records::append(batch, block),
            PartFormat::Text(_) => text::append(batch, block),
            PartFormat::Npy => npy::append(batch, block),
        }
    }

    fn compression(&self) -> FileCompressionType {
        match self {
            PartFormat::Text(compression) => *compression,
            PartFormat::Records | PartFormat::Npy => FileCompressionType::UNCOMPRESSED,
        }
    }
}

/// Writes one file through the session's store for it.
#[derive(Debug)]
pub(crate) struct PartSink {
    pub(crate) file: ListingTableUrl,
    pub(crate) schema: SchemaRef,
    pub(crate) format: PartFormat,
    pub(crate) governor: Governor,
}

impl DisplayAs for PartSink {
    fn fmt_as(&self, _: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PartSink: {}", shown_url(self.file.get_url()))
    }
}

#[async_trait]
impl DataSink for PartSink {
    fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    async fn write_all(
        &self,
        mut data: SendableRecordBatchStream,
        context: &Arc<TaskContext>,
    ) -> datafusion::error::Result<u64> {
        let failed = |error: std::io::Error| {
            DataFusionError::from(DataSetError::Io(format!("{}: {error}", shown_url(self.file.get_url()))))
        };
        let has_header = !self.format.header(&self.schema, 0).is_empty();
        let mut file =
            FormatWriter::create(&self.file, self.format.compression(), has_header, context, &self.governor)?;
        let mut block = Vec::with_capacity(BLOCK_BYTES);
        if has_header {
            // A placeholder: the number of rows is known only at the end.
            file.write(&self.format.header(&self.schema, 0)).await.map_err(failed)?;
        }
        let mut rows = 0;
        while let Some(batch) = data.next().await {
            let batch = batch?;
            if let Err(RejectedRow { row, reason }) = self.format.append(&batch, &mut block) {
                let name = self.file.prefix().filename().unwrap_or_default().to_owned();
                return Err(DataSetError::Data(format!("row {} of {name}: {reason}", rows + row as u64 + 1)).into());
            }
            if block.len() >= BLOCK_BYTES {
                file.write(&block).await.map_err(failed)?;
                block.clear();
            }
            rows += batch.num_rows() as u64;
        }
        file.write(&block).await.map_err(failed)?;
        file.finish(&self.format.header(&self.schema, rows)).await.map_err(failed)?;
        Ok(rows)
    }
}
