//! Output file formats.

use std::sync::Arc;

use datafusion::common::config::{CsvOptions, JsonOptions, ParquetOptions, TableParquetOptions};
use datafusion::common::parsers::CompressionTypeVariant;
use datafusion::datasource::file_format::FileFormatFactory;
use datafusion::datasource::file_format::csv::CsvFormatFactory;
use datafusion::datasource::file_format::json::JsonFormatFactory;
use datafusion::datasource::file_format::parquet::ParquetFormatFactory;

use crate::error::{DataSetError, Result};
use crate::files::ipc_sink::IpcFormat;
use crate::files::part_sink::PartFormat;

/// The format of output files.
#[derive(Debug, Clone)]
pub enum OutputFormat {
    /// Values separated by delimiters, with the column names in the first line.
    Csv {
        /// The separator of values.
        delimiter: u8,
        /// Whether the first line names the columns.
        has_header: bool,
        /// `""`, `gzip`, `bzip2`, `xz` or `zstd`.
        compression: String,
    },
    /// One JSON object per line.
    Json {
        /// As for CSV.
        compression: String,
    },
    /// Apache Parquet.
    Parquet {
        /// `uncompressed`, `snappy`, `lz4_raw`, or `gzip(level)`, `brotli(level)`, `zstd(level)`.
        compression: String,
    },
    /// Arrow IPC files.
    Ipc {
        /// `lz4`, `zstd` or `none`.
        compression: String,
    },
    /// One file per partition, in the order of the partitions.
    Parts(PartFormat),
}

impl OutputFormat {
    /// Records of a fixed length.
    pub fn records() -> Self {
        OutputFormat::Parts(PartFormat::Records)
    }

    /// Lines of text from a single column; `compression` as for CSV.
    ///
    /// # Errors
    /// `Query` for an unknown compression.
    pub fn text(compression: &str) -> Result<Self> {
        Ok(OutputFormat::Parts(PartFormat::Text(whole_file(compression)?.into())))
    }

    /// NumPy arrays.
    pub fn npy() -> Self {
        OutputFormat::Parts(PartFormat::Npy)
    }

    /// The format of partitions, if each is a separate file.
    pub(crate) fn part_format(&self, partition_by: &[String]) -> Option<&PartFormat> {
        match self {
            OutputFormat::Parts(format) if partition_by.is_empty() => Some(format),
            _ => None,
        }
    }

    /// `parquet`: the session's settings for Parquet files.
    pub(crate) fn factory(&self, parquet: &ParquetOptions) -> Result<Arc<dyn FileFormatFactory>> {
        Ok(match self {
            OutputFormat::Csv { delimiter, has_header, compression } => {
                Arc::new(CsvFormatFactory::new_with_options(CsvOptions {
                    delimiter: *delimiter,
                    has_header: Some(*has_header),
                    compression: whole_file(compression)?,
                    ..Default::default()
                }))
            }
            OutputFormat::Json { compression } => Arc::new(JsonFormatFactory::new_with_options(JsonOptions {
                compression: whole_file(compression)?,
                ..Default::default()
            })),
            OutputFormat::Parquet { compression } => {
                let global = ParquetOptions { compression: Some(compression.clone()), ..parquet.clone() };
                Arc::new(ParquetFormatFactory::new_with_options(TableParquetOptions { global, ..Default::default() }))
            }
            OutputFormat::Ipc { compression } => Arc::new(IpcFormat::new(compression)?),
            OutputFormat::Parts(_) => {
                return Err(DataSetError::Unsupported("folders by the values of columns, in this format".into()));
            }
        })
    }
}

fn whole_file(name: &str) -> Result<CompressionTypeVariant> {
    name.parse()
        .map_err(|_| DataSetError::Query(format!("unknown compression {name:?}; use gzip, bzip2, xz, zstd or none")))
}
