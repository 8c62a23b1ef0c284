//! What people write to describe a source, and what is made of it.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use serde::Deserialize;
use serde_json::Value;
use tidemill_dataflow::without_passwords;
use tokio::runtime::Handle;

use super::super::list::FilePattern;
use crate::bad_records::{BadRecordHandler, BadRecords, OnError};
use crate::decode::RecordDecoder;
use crate::error::ConnectError;
use crate::format::{self, LineFormat};
use crate::objects::OpenObjects;
use crate::{Guarantee, SourceSpec, options};

use super::reader::{FolderReader, OPEN_MAX, OPEN_MIN};
use super::{FolderSource, SHELVES};

const NAME: &str = "files source";

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct FileSourceOptions {
    /// A file, a folder with everything below, or a glob; or the URL of an object, or of all whose keys begin with it.
    pub(super) path: String,
    /// What the store of a URL has to be told.
    #[serde(default)]
    pub(super) storage_options: BTreeMap<String, String>,
    #[serde(default)]
    pub(super) format: LineFormat,
    /// Ends when all that is there at some moment has been read.
    #[serde(default)]
    pub(super) stop_at_end: bool,
    /// Between looks for new files; by default a second, and five for objects.
    pub(super) list_interval_ms: Option<u64>,
    /// Between looks for what was appended.
    #[serde(default = "tenth")]
    pub(super) poll_interval_ms: u64,
    #[serde(default)]
    pub(super) on_error: OnError,
    /// Of CSV: the first line of each file names its columns, in any order; others than the schema's are passed over.
    #[serde(default = "yes")]
    pub(super) has_header: bool,
    /// Of CSV.
    #[serde(default = "options::comma")]
    pub(super) delimiter: char,
}

fn tenth() -> u64 {
    100
}

fn yes() -> bool {
    true
}

pub(crate) fn source(spec: &Value, schema: Option<SchemaRef>, open: &OpenObjects) -> Result<SourceSpec, ConnectError> {
    let options: FileSourceOptions = options::read(NAME, spec)?;
    let wrong = |reason: String| ConnectError::option(NAME, reason);
    let place = FilePattern::of(&options.path, |url| open(url, &options.storage_options)).map_err(wrong)?;
    let layout = options.format.layout(options.delimiter).map_err(wrong)?;
    let schema = format::schema(NAME, layout, "line", schema)?;
    if options.poll_interval_ms == 0 {
        return Err(wrong("`poll_interval_ms` must be at least 1".into()));
    }
    let decoder = RecordDecoder::new(layout, SchemaRef::clone(&schema)).map_err(wrong)?;
    let bad: Arc<BadRecords> = Arc::default();
    let counted = Arc::clone(&bad);
    Ok(SourceSpec {
        name: format!("files {}", without_passwords(&options.path)),
        schema,
        copies_max: SHELVES,
        guarantee: Guarantee::ExactlyOnce,
        bad,
        bad_schema: options.on_error.schema(),
        bad_folder: options.on_error.folder(),
        files: place.local_files(),
        make: Arc::new(move |context| {
            let copy = format!("{}-{}", context.task(), context.copy());
            let bad = BadRecordHandler::new(options.on_error.clone(), &counted, copy);
            let reader = FolderReader {
                options: options.clone(),
                place: place.clone(),
                pool: Handle::current(),
                layout,
                decoder: decoder.clone(),
                bad,
                shelves: HashSet::new(),
                files: Vec::new(),
                names: HashSet::new(),
                known: BTreeMap::new(),
                some_gone: false,
                open_max: (OPEN_MAX / context.copies() as usize).max(OPEN_MIN),
            };
            Ok(Box::new(FolderSource::new(reader, context)?))
        }),
    })
}
