//! Joins files with the same schema into one, for formats with a footer, which cannot simply be concatenated.

use std::fs::File;
use std::path::{Path, PathBuf};

use arrow::ipc::CompressionType;
use arrow::ipc::reader::FileReader;
use arrow::ipc::writer::{FileWriter, IpcWriteOptions};
use datafusion::parquet::arrow::ArrowWriter;
use datafusion::parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use datafusion::parquet::basic::Compression;
use datafusion::parquet::file::properties::WriterProperties;

use crate::error::{DataSetError, Result};

/// Writes the rows of `parts`, in order, to the new file `out`: Parquet files if `parquet`, else Arrow IPC. `codec` has
/// the form that the format's own writer uses.
///
/// # Errors
/// Files that cannot be read or written, by name.
pub fn join_files(parquet: bool, parts: &[PathBuf], out: &Path, codec: &str) -> Result<()> {
    let failed = |path: &Path, error: &dyn std::fmt::Display| DataSetError::Io(format!("{}: {error}", path.display()));
    let open = |path: &Path| File::open(path).map_err(|error| failed(path, &error));
    let create = || File::create_new(out).map_err(|error| failed(out, &error));
    if parquet {
        let compression: Compression = codec.parse().map_err(|error| failed(out, &error))?;
        let settings = || WriterProperties::builder().set_compression(compression).build();
        let mut writer: Option<ArrowWriter<File>> = None;
        for part in parts {
            let reader = ParquetRecordBatchReaderBuilder::try_new(open(part)?).map_err(|error| failed(part, &error))?;
            let schema = reader.schema().clone();
            let writer = match &mut writer {
                Some(writer) => writer,
                None => {
                    let made = ArrowWriter::try_new(create()?, schema, Some(settings()));
                    writer.insert(made.map_err(|error| failed(out, &error))?)
                }
            };
            for rows in reader.build().map_err(|error| failed(part, &error))? {
                let rows = rows.map_err(|error| failed(part, &error))?;
                writer.write(&rows).map_err(|error| failed(out, &error))?;
            }
        }
        let writer = writer.ok_or_else(|| failed(out, &"there are no files to join"))?;
        let file = writer.into_inner().map_err(|error| failed(out, &error))?;
        return file.sync_all().map_err(|error| failed(out, &error));
    }
    let compression = match codec {
        "lz4" => Some(CompressionType::LZ4_FRAME),
        "zstd" => Some(CompressionType::ZSTD),
        _ => None,
    };
    let mut writer: Option<FileWriter<File>> = None;
    for part in parts {
        let reader = FileReader::try_new(open(part)?, None).map_err(|error| failed(part, &error))?;
        let writer = match &mut writer {
            Some(writer) => writer,
            None => {
                let options = IpcWriteOptions::default().try_with_compression(compression);
                let options = options.map_err(|error| failed(out, &error))?;
                let made = FileWriter::try_new_with_options(create()?, &reader.schema(), options);
                writer.insert(made.map_err(|error| failed(out, &error))?)
            }
        };
        for rows in reader {
            let rows = rows.map_err(|error| failed(part, &error))?;
            writer.write(&rows).map_err(|error| failed(out, &error))?;
        }
    }
    let mut writer = writer.ok_or_else(|| failed(out, &"there are no files to join"))?;
    writer.finish().map_err(|error| failed(out, &error))?;
    writer.get_ref().sync_all().map_err(|error| failed(out, &error))
}
