//! A file under way.

use std::fs::File;
use std::io::{Read, Seek, Write};
use std::os::unix::fs::FileExt;

use datafusion::datasource::file_format::file_compression_type::FileCompressionType;
use datafusion::datasource::listing::ListingTableUrl;
use datafusion::error::{DataFusionError, Result};
use datafusion::execution::TaskContext;
use object_store::buffered::BufWriter;
use tidemill_dataflow::memory::{Governor, nameless_file};
use tokio::io::{AsyncWrite, AsyncWriteExt};

use super::BLOCK_BYTES;

type Object = Box<dyn AsyncWrite + Send + Unpin>;

pub(super) enum Writer {
    /// Written directly: a store would make a task of every part.
    Local(File),
    Object(Object),
    /// An object whose beginning is known at the end: it lies on this worker's disk until then.
    Held(File, Object),
}

impl Writer {
    /// `has_header`: what is written first is replaced at the end.
    pub(super) fn create(
        url: &ListingTableUrl,
        compression: FileCompressionType,
        has_header: bool,
        context: &TaskContext,
        governor: &Governor,
    ) -> Result<Self> {
        let is_plain = compression == FileCompressionType::UNCOMPRESSED;
        if is_plain && let Ok(path) = url.get_url().to_file_path() {
            return Ok(Writer::Local(File::create(path)?));
        }
        let store = context.runtime_env().object_store(url.object_store())?;
        let object = compression.convert_async_writer(BufWriter::new(store, url.prefix().clone()))?;
        if !has_header {
            return Ok(Writer::Object(object));
        }
        let held = nameless_file(governor).map_err(|error| DataFusionError::External(Box::new(error)))?;
        Ok(Writer::Held(held, object))
    }

    pub(super) async fn write(&mut self, block: &[u8]) -> std::io::Result<()> {
        match self {
            Writer::Local(file) | Writer::Held(file, _) => file.write_all(block),
            Writer::Object(object) => object.write_all(block).await,
        }
    }

    /// Ends the file, which begins with `header`.
    pub(super) async fn finish(self, header: &[u8]) -> std::io::Result<()> {
        match self {
            Writer::Local(file) => file.write_all_at(header, 0),
            Writer::Object(mut object) => object.shutdown().await,
            Writer::Held(mut file, mut object) => {
                file.write_all_at(header, 0)?;
                file.rewind()?;
                let mut block = vec![0; BLOCK_BYTES];
                loop {
                    match file.read(&mut block)? {
                        0 => return object.shutdown().await,
                        read => object.write_all(&block[..read]).await?,
                    }
                }
            }
        }
    }
}
