//! The options of a file source, and how it is made from them.

use std::sync::Arc;
use std::time::Duration;

use arrow::datatypes::SchemaRef;
use serde::Deserialize;
use serde_json::Value;
use tidemill_storage::{ObjectStores, StorageOptions, redact_passwords};
use tokio::runtime::Handle;

use super::super::list::FilePattern;
use super::reader::{FolderReader, FolderReaderPlan};
use super::{FolderSource, SHELVES};
use crate::bad_records::BadRecordPolicy;
use crate::decode::RecordDecoder;
use crate::error::ConnectError;
use crate::format::{self, LineOptions};
use crate::read_options::ReadOptions;
use crate::{DeliveryGuarantee, MakeSource, SourceSpec, options};

const NAME: &str = "files source";

/// Default time between listings of files and objects.
const LIST_INTERVAL_MS: u64 = 1000;
const OBJECTS_INTERVAL_MS: u64 = 5000;
/// Default time between checks for appended data.
const POLL_INTERVAL_MS: u64 = 100;

#[derive(Deserialize)]
struct FileSourceOptions {
    /// A file, a folder with everything below it, or a glob; or the URL of an object, or of all objects whose keys
    /// begin with it.
    path: String,
    /// Options of the URL's store.
    #[serde(default)]
    storage_options: StorageOptions,
    /// Time between listings.
    list_interval_ms: Option<u64>,
    /// Time between checks for appended data.
    poll_interval_ms: Option<u64>,
    /// For CSV: whether the first line of each file names its columns, in any order. True by default; columns that are
    /// not in the schema are skipped.
    has_header: Option<bool>,
}

pub(crate) fn source(
    spec: &Value,
    schema: Option<SchemaRef>,
    stores: &ObjectStores,
) -> Result<SourceSpec, ConnectError> {
    type Groups = (FileSourceOptions, LineOptions, ReadOptions);
    let (options, lines, reading) = options::read_groups::<Groups>(NAME, spec)?;
    let wrong = |reason: String| ConnectError::option(NAME, reason);
    let place = FilePattern::of(&options.path, &options.storage_options, stores).map_err(wrong)?;
    let layout = lines.layout().map_err(wrong)?;
    let schema = format::schema(NAME, layout, "line", schema)?;
    let poll_interval_ms = options.poll_interval_ms.unwrap_or(POLL_INTERVAL_MS);
    if poll_interval_ms == 0 {
        return Err(wrong("`poll_interval_ms` must be at least 1".into()));
    }
    let list_interval_ms = if place.grows() { LIST_INTERVAL_MS } else { OBJECTS_INTERVAL_MS };
    let files = place.local_files();
    let plan = FolderReaderPlan {
        place,
        layout,
        decoder: RecordDecoder::new(layout, SchemaRef::clone(&schema)).map_err(wrong)?,
        has_header: options.has_header.unwrap_or(true),
        stop_at_end: reading.stop_at_end,
        list_interval: Duration::from_millis(options.list_interval_ms.unwrap_or(list_interval_ms)),
        poll_interval: Duration::from_millis(poll_interval_ms),
    };
    let bad = BadRecordPolicy::new(reading.on_error);
    let (handlers, name) = (bad.clone(), format!("files {}", redact_passwords(&options.path)));
    let make: MakeSource = Arc::new(move |context| {
        let bad = handlers.handler(format!("{}-{}", context.task(), context.copy()));
        let reader = FolderReader::new(plan.clone(), bad, Handle::current(), context.copies());
        Ok(Box::new(FolderSource::new(reader, context)?))
    });
    let spec = SourceSpec::new(name, schema, DeliveryGuarantee::ExactlyOnce, &bad, make);
    Ok(SourceSpec { copies_max: SHELVES, files, moves_splits: true, ..spec })
}
