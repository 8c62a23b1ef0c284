//! A file that is being written.

use std::fs::File;
use std::io::{Read, Seek, Write};
use std::os::unix::fs::FileExt;

use datafusion::datasource::file_format::file_compression_type::FileCompressionType;
use datafusion::datasource::listing::ListingTableUrl;
use datafusion::error::Result;
use datafusion::execution::TaskContext;
use object_store::buffered::BufWriter;
use tidemill_dataflow::memory::{Governor, nameless_file, spill_error};
use tokio::io::{AsyncWrite, AsyncWriteExt};

use super::BLOCK_BYTES;
use crate::error::DataSetError;

type Object = Box<dyn AsyncWrite + Send + Unpin>;

pub(super) enum FormatWriter {
    /// Written directly, because a store would use a task for every part.
    Local(File),
    Object(Object),
    /// An object whose beginning is known only at the end: until then it is in this worker's spill directory.
    Held(WriterMemory, Object),
}

pub(super) struct WriterMemory {
    file: File,
    governor: Governor,
}

impl WriterMemory {
    fn new(governor: &Governor) -> Result<Self> {
        let file = nameless_file(governor).map_err(|error| DataSetError::Io(error.to_string()))?;
        Ok(WriterMemory { file, governor: governor.clone() })
    }

    /// Errors of the disk are not those of the object: they name the folder and the remedy.
    fn on_disk<T>(&mut self, work: impl FnOnce(&mut File) -> std::io::Result<T>) -> std::io::Result<T> {
        work(&mut self.file).map_err(|error| std::io::Error::other(spill_error(&self.governor, &error)))
    }
}

impl FormatWriter {
    /// `has_header`: the first bytes are replaced at the end.
    pub(super) fn create(
        url: &ListingTableUrl,
        compression: FileCompressionType,
        has_header: bool,
        context: &TaskContext,
        governor: &Governor,
    ) -> Result<Self> {
        let is_plain = compression == FileCompressionType::UNCOMPRESSED;
        if is_plain && let Ok(path) = url.get_url().to_file_path() {
            let file = File::create(&path).map_err(|error| DataSetError::Io(format!("{}: {error}", path.display())))?;
            return Ok(FormatWriter::Local(file));
        }
        let store = context.runtime_env().object_store(url.object_store())?;
        let object = compression.convert_async_writer(BufWriter::new(store, url.prefix().clone()))?;
        if !has_header {
            return Ok(FormatWriter::Object(object));
        }
        Ok(FormatWriter::Held(WriterMemory::new(governor)?, object))
    }

    pub(super) async fn write(&mut self, block: &[u8]) -> std::io::Result<()> {
        match self {
            FormatWriter::Local(file) => file.write_all(block),
            FormatWriter::Held(held, _) => held.on_disk(|file| file.write_all(block)),
            FormatWriter::Object(object) => object.write_all(block).await,
        }
    }

    /// Finishes the file, which begins with `header`.
    pub(super) async fn finish(self, header: &[u8]) -> std::io::Result<()> {
        match self {
            FormatWriter::Local(file) => file.write_all_at(header, 0),
            FormatWriter::Object(mut object) => object.shutdown().await,
            FormatWriter::Held(mut held, mut object) => {
                held.on_disk(|file| file.write_all_at(header, 0).and_then(|()| file.rewind()))?;
                let mut block = vec![0; BLOCK_BYTES];
                loop {
                    match held.on_disk(|file| file.read(&mut block))? {
                        0 => return object.shutdown().await,
                        read => object.write_all(&block[..read]).await?,
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::{Engine, EngineConfig};

    fn engine() -> Engine {
        Engine::new(&EngineConfig { threads: 1, workers: 1, memory_bytes: None, spill_dir: None }).unwrap()
    }

    /// If an object cannot be assembled because the worker's own disk is full, this must not look like an error of its
    /// store. `/dev/full` acts as a full disk.
    #[test]
    fn a_full_disk_is_not_the_stores() {
        let engine = engine();
        let governor = engine.governor().clone();
        let error = engine.run(async move {
            let file = File::options().write(true).open("/dev/full").unwrap();
            let mut writer = FormatWriter::Held(WriterMemory { file, governor }, Box::new(tokio::io::sink()));
            Ok(writer.write(b"rows").await.unwrap_err().to_string())
        });
        let (error, folder) = (error.unwrap(), engine.governor().settings().spill_dir.display().to_string());
        assert!(error.contains(&folder) && error.contains("--spill-dir"), "{error}");
    }

    /// If one of many files cannot be created, the error must name it.
    #[test]
    fn a_file_that_cannot_be_made_is_named() {
        let (engine, url) = (engine(), ListingTableUrl::parse("file:///nowhere/at/all.bin").unwrap());
        let context = engine.context().task_ctx();
        let made = FormatWriter::create(&url, FileCompressionType::UNCOMPRESSED, false, &context, engine.governor());
        let error = made.err().unwrap().to_string();
        assert!(error.contains("/nowhere/at/all.bin: No such file"), "{error}");
    }
}
