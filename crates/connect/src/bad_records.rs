//! What happens to records that cannot be decoded.
//!
//! Records that go to a sink become rows with the same columns for every source:
//!
//! | column      | contents                                                 |
//! |-------------|----------------------------------------------------------|
//! | `source`    | the record's topic, file, stream, queue or address       |
//! | `place`     | everything that identifies its place, as a JSON object   |
//! | `partition` | for Kafka                                                |
//! | `offset`    | for Kafka; for a line of a file, its first byte          |
//! | `timestamp` | when it was written, if that is known                    |
//! | `key`       | for Kafka, if it has one                                 |
//! | `value`     | its bytes; null if a Kafka record has no value           |
//! | `headers`   | for Kafka and RabbitMQ, if any: names and values         |
//! | `reason`    | what is wrong with it                                    |
//!
//! A source emits them together with the rows around them, so each of its snapshots covers both, and the sink receives
//! them with the same guarantee as the job's sinks receive rows.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock, Mutex};

use arrow::array::{
    ArrayRef, BinaryArray, Int32Array, Int64Array, RecordBatch, StringArray, TimestampMillisecondArray,
};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef, TimeUnit};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value, json};
use tidemill_dataflow::TaskError;

use crate::error::with_remedy;
use crate::headers::{self, Headers};

/// What to do with a bad record.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum OnError {
    /// The job fails, and reports where the record is.
    #[default]
    Raise,
    /// The record is skipped and counted.
    Skip,
    /// The record is skipped, counted, and written to a local folder together with its origin. A job that resumes after
    /// a failure may write it again.
    Quarantine(#[serde(deserialize_with = "local")] PathBuf),
    /// The record is skipped, counted, and emitted beside the rows, for a sink of the job.
    Sink(BytesAs),
}

/// How a sink represents bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum BytesAs {
    /// As bytes.
    Raw,
    /// As text: bytes become hexadecimal digits, as in JSON, and headers become JSON.
    Hex,
}

/// A folder. Without this check, a URL would also pass, as a folder called `s3:`.
fn local<'de, D: Deserializer<'de>>(deserializer: D) -> Result<PathBuf, D::Error> {
    let folder = String::deserialize(deserializer)?;
    if folder.is_empty() || folder.contains("://") {
        return Err(D::Error::custom(format!("quarantine={folder:?} must be a local folder")));
    }
    Ok(folder.into())
}

/// The number of skipped records, and the first of them.
#[derive(Debug, Default)]
pub struct BadRecords(Mutex<(u64, Option<String>)>);

impl BadRecords {
    fn note(&self, text: String) {
        let mut seen = self.0.lock().expect("nothing panics with it locked");
        seen.0 += 1;
        seen.1.get_or_insert(text);
    }

    /// The number since the last call, and what was wrong with the first.
    pub fn take(&self) -> (u64, Option<String>) {
        std::mem::take(&mut *self.0.lock().expect("nothing panics with it locked"))
    }
}

impl OnError {
    /// The schema of bad records for a sink, if they go to one.
    pub(crate) fn schema(&self) -> Option<SchemaRef> {
        match self {
            OnError::Sink(BytesAs::Raw) => Some(SchemaRef::clone(&RAW)),
            OnError::Sink(BytesAs::Hex) => Some(SchemaRef::clone(&HEX)),
            _ => None,
        }
    }

    /// The folder to which they are written, if any.
    pub(crate) fn folder(&self) -> Option<PathBuf> {
        if let OnError::Quarantine(folder) = self { Some(folder.clone()) } else { None }
    }
}

static RAW: LazyLock<SchemaRef> = LazyLock::new(|| schema(&DataType::Binary, headers::data_type()));
static HEX: LazyLock<SchemaRef> = LazyLock::new(|| schema(&DataType::Utf8, DataType::Utf8));

fn schema(bytes: &DataType, headers: DataType) -> SchemaRef {
    let timestamp = DataType::Timestamp(TimeUnit::Millisecond, None);
    Arc::new(Schema::new(vec![
        Field::new("source", DataType::Utf8, false),
        Field::new("place", DataType::Utf8, false),
        Field::new("partition", DataType::Int32, true),
        Field::new("offset", DataType::Int64, true),
        Field::new("timestamp", timestamp, true),
        Field::new("key", bytes.clone(), true),
        Field::new("value", bytes.clone(), true),
        Field::new("headers", headers, true),
        Field::new("reason", DataType::Utf8, false),
    ]))
}

/// Rows, and the bad records among them that go to a sink.
pub(crate) type Decoded = (RecordBatch, Option<RecordBatch>);

/// What is known of a record besides its place and its bytes.
#[derive(Default)]
pub(crate) struct RecordContext {
    pub(crate) timestamp_ms: Option<i64>,
    pub(crate) key: Option<Vec<u8>>,
    pub(crate) headers: Option<BadHeaders>,
}

/// Headers with the types their senders gave them.
pub(crate) enum BadHeaders {
    /// Bytes; names may repeat.
    List(Headers),
    /// JSON values.
    Object(Map<String, Value>),
}

/// A bad record on its way to a sink.
struct BadRow {
    source: String,
    place: String,
    partition: Option<i32>,
    offset: Option<i64>,
    timestamp_ms: Option<i64>,
    key: Option<Vec<u8>>,
    value: Option<Vec<u8>>,
    headers: Option<Headers>,
    reason: String,
}

/// What all copies of a source do with bad records, and the number they have met in this process.
#[derive(Clone, Default)]
pub(crate) struct BadRecordPolicy {
    on_error: OnError,
    counted: Arc<BadRecords>,
}

impl BadRecordPolicy {
    pub(crate) fn new(on_error: OnError) -> Self {
        BadRecordPolicy { on_error, counted: Arc::default() }
    }

    pub(crate) fn on_error(&self) -> &OnError {
        &self.on_error
    }

    /// The skipped records.
    pub(crate) fn counted(&self) -> Arc<BadRecords> {
        Arc::clone(&self.counted)
    }

    /// The handler for one copy, given its name.
    pub(crate) fn handler(&self, copy: String) -> BadRecordHandler {
        BadRecordHandler::new(self.on_error.clone(), &self.counted, copy)
    }
}

/// Handles the bad records of one copy as configured.
pub(crate) struct BadRecordHandler {
    on_error: OnError,
    counted: Arc<BadRecords>,
    /// The name of its file.
    name: String,
    file: Option<File>,
    /// Lines that are not written yet. Each write contains whole lines, because others may append to the same file.
    lines: Vec<u8>,
    /// Records for a sink that have not been emitted yet.
    rows: Vec<BadRow>,
}

impl BadRecordHandler {
    pub(crate) fn new(on_error: OnError, counted: &Arc<BadRecords>, copy: String) -> Self {
        // A task's name may contain a path.
        let plain = |c: char| if c.is_alphanumeric() || "-_.".contains(c) { c } else { '_' };
        let name: String = copy.chars().rev().take(100).collect::<Vec<_>>().into_iter().rev().map(plain).collect();
        BadRecordHandler {
            on_error,
            counted: Arc::clone(counted),
            name,
            file: None,
            lines: Vec::new(),
            rows: Vec::new(),
        }
    }

    /// Whether a bad record needs more than its bytes.
    pub(crate) fn keeps(&self) -> bool {
        matches!(self.on_error, OnError::Quarantine(_) | OnError::Sink(_))
    }

    /// Handles a bad record at `place`.
    ///
    /// # Errors
    /// The record itself, if bad records are errors; a failure to write it.
    pub(crate) fn bad(&mut self, place: &[(&str, Value)], reason: &str, bytes: &[u8]) -> Result<(), TaskError> {
        self.bad_with(place, reason, Some(bytes), RecordContext::default)
    }

    /// The same for a record that may have no bytes. `besides` is stored, too, so that the record can be sent again
    /// unchanged.
    ///
    /// # Errors
    /// As `bad`.
    pub(crate) fn bad_with(
        &mut self,
        place: &[(&str, Value)],
        reason: &str,
        bytes: Option<&[u8]>,
        besides: impl FnOnce() -> RecordContext,
    ) -> Result<(), TaskError> {
        let words: Vec<String> = place.iter().map(|(name, value)| format!("{name} {}", plain(value))).collect();
        let text = format!("{}: {reason}", words.join(", "));
        if self.on_error == OnError::Raise {
            return Err(format!("{text}; on_error \"skip\" or \"quarantine\" continues without it").into());
        }
        match &self.on_error {
            OnError::Quarantine(_) => writeln!(self.lines, "{}", line(place, reason, bytes, besides()))?,
            OnError::Sink(_) => self.rows.push(BadRow::new(place, reason, bytes, besides())),
            OnError::Raise | OnError::Skip => {}
        }
        self.counted.note(text);
        Ok(())
    }

    /// Returns the bad records so far that go to a sink, to be emitted together with the rows around them; or writes
    /// them to disk. This happens before later data are emitted, so that no checkpoint has passed a record that a power
    /// failure could lose.
    ///
    /// # Errors
    /// Those of the file.
    pub(crate) fn flush(&mut self) -> Result<Option<RecordBatch>, TaskError> {
        let rows = std::mem::take(&mut self.rows);
        if let (Some(schema), false) = (self.on_error.schema(), rows.is_empty()) {
            return Ok(Some(batch(&schema, &rows)?));
        }
        let OnError::Quarantine(folder) = &self.on_error else { return Ok(None) };
        if self.lines.is_empty() {
            return Ok(None);
        }
        let file = match &mut self.file {
            Some(file) => file,
            None => self.file.insert(open(folder, &self.name)?),
        };
        let written = file.metadata().and_then(|before| {
            let written = file.write_all(&self.lines).and_then(|()| file.sync_data());
            if written.is_err() {
                // Half a line would merge with the first line of the next run.
                let _ = file.set_len(before.len());
            }
            written
        });
        written.map_err(|error| failed(folder, &error))?;
        self.lines.clear();
        Ok(None)
    }
}

/// A record as it is written.
fn line(place: &[(&str, Value)], reason: &str, bytes: Option<&[u8]>, besides: RecordContext) -> Value {
    let mut line = object(place);
    line.insert("reason".into(), reason.into());
    let (name, value) = match bytes.map(std::str::from_utf8) {
        // An empty text differs from none.
        None => ("text", Value::Null),
        Some(Ok(text)) => ("text", text.into()),
        Some(Err(_)) => ("hex", hex(bytes.unwrap_or_default())),
    };
    line.insert(name.into(), value);
    if let Some(timestamp_ms) = besides.timestamp_ms {
        // A place may give the timestamp in another unit.
        line.entry("timestamp").or_insert_with(|| timestamp_ms.into());
    }
    line.extend(besides.key.map(|key| ("key".into(), told(&key))));
    line.extend(besides.headers.map(|headers| {
        let headers = match headers {
            BadHeaders::List(headers) => list(&headers),
            BadHeaders::Object(headers) => Value::Object(headers),
        };
        ("headers".into(), headers)
    }));
    Value::Object(line)
}

impl BadRow {
    fn new(place: &[(&str, Value)], reason: &str, bytes: Option<&[u8]>, besides: RecordContext) -> Self {
        let number =
            |wanted: &str| place.iter().find(|(name, _)| *name == wanted).and_then(|(_, value)| value.as_i64());
        let headers = besides.headers.map(|headers| match headers {
            BadHeaders::List(headers) => headers,
            BadHeaders::Object(headers) => headers.into_iter().map(|(name, value)| (name, bytes_of(value))).collect(),
        });
        BadRow {
            source: place.first().map_or_else(String::new, |(_, value)| text(value)),
            place: Value::Object(object(place)).to_string(),
            partition: number("partition").and_then(|number| number.try_into().ok()),
            offset: number("offset").or_else(|| number("byte")),
            timestamp_ms: besides.timestamp_ms,
            key: besides.key,
            value: bytes.map(<[u8]>::to_vec),
            headers,
            reason: reason.to_owned(),
        }
    }
}

fn batch(schema: &SchemaRef, rows: &[BadRow]) -> Result<RecordBatch, TaskError> {
    let texts = |of: fn(&BadRow) -> &str| Arc::new(StringArray::from_iter_values(rows.iter().map(of))) as ArrayRef;
    let is_raw = Arc::ptr_eq(schema, &RAW);
    let bytes = |of: fn(&BadRow) -> Option<&[u8]>| -> ArrayRef {
        match is_raw {
            true => Arc::new(rows.iter().map(of).collect::<BinaryArray>()),
            false => Arc::new(rows.iter().map(|row| of(row).map(digits)).collect::<StringArray>()),
        }
    };
    let headers: ArrayRef = match is_raw {
        true => headers::column(rows.iter().map(|row| row.headers.as_ref())),
        false => Arc::new(
            rows.iter().map(|row| row.headers.as_ref().map(|of| list(of).to_string())).collect::<StringArray>(),
        ),
    };
    let columns = vec![
        texts(|row| &row.source),
        texts(|row| &row.place),
        Arc::new(rows.iter().map(|row| row.partition).collect::<Int32Array>()),
        Arc::new(rows.iter().map(|row| row.offset).collect::<Int64Array>()),
        Arc::new(rows.iter().map(|row| row.timestamp_ms).collect::<TimestampMillisecondArray>()),
        bytes(|row| row.key.as_deref()),
        bytes(|row| row.value.as_deref()),
        headers,
        texts(|row| &row.reason),
    ];
    Ok(RecordBatch::try_new(SchemaRef::clone(schema), columns)?)
}

/// Headers as a list of objects.
fn list(headers: &Headers) -> Value {
    headers.iter().map(|(name, value)| json!({"name": name, "value": value.as_deref().map(told)})).collect()
}

fn object(place: &[(&str, Value)]) -> Map<String, Value> {
    place.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect()
}

/// The value of a header: a string as is, anything else as JSON.
fn bytes_of(value: Value) -> Option<Vec<u8>> {
    (!value.is_null()).then(|| text(&value).into_bytes())
}

fn text(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

/// Bytes in the form used outside of `text` and `hex`: a string, or an object with `hex` if they are not UTF-8.
pub(crate) fn told(bytes: &[u8]) -> Value {
    std::str::from_utf8(bytes).map_or_else(|_| json!({"hex": hex(bytes)}), Value::from)
}

fn hex(bytes: &[u8]) -> Value {
    digits(bytes).into()
}

fn digits(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

fn plain(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), |text| format!("\"{text}\""))
}

fn open(folder: &Path, name: &str) -> Result<File, TaskError> {
    let path = folder.join(format!("{name}.jsonl"));
    std::fs::create_dir_all(folder).map_err(|error| failed(folder, &error))?;
    let file = OpenOptions::new().create(true).append(true).open(path);
    // Also syncs the folder, which contains the file's name.
    file.and_then(|file| File::open(folder)?.sync_all().map(|()| file)).map_err(|error| failed(folder, &error))
}

fn failed(folder: &Path, error: &std::io::Error) -> TaskError {
    format!("quarantine {}: {}", folder.display(), with_remedy(error)).into()
}

#[cfg(test)]
mod tests {
    use arrow::array::{Array, AsArray};
    use arrow::datatypes::{Int32Type, Int64Type};

    use super::*;

    /// A sink receives everything that is known, with null for the rest, and the same bytes as text. Each record is
    /// emitted and counted once.
    #[test]
    fn bad_records_are_rows_of_a_sink() {
        let counted = Arc::default();
        let handler = |takes| {
            let on_error: OnError = serde_json::from_value(json!({"sink": takes})).unwrap();
            let mut handler = BadRecordHandler::new(on_error, &counted, "copy".into());
            let place = [("topic", json!("t")), ("partition", json!(3)), ("offset", json!(1u64 << 40))];
            let headers = BadHeaders::List(vec![("a".into(), Some(b"\xff".to_vec())), ("a".into(), None)]);
            let besides = || RecordContext { timestamp_ms: Some(7), key: Some(b"k".to_vec()), headers: Some(headers) };
            handler.bad_with(&place, "no row", None, besides).unwrap();
            handler.bad(&[("file", json!("f")), ("byte", json!(9))], "no row", b"\xff").unwrap();
            let rows = handler.flush().unwrap().unwrap();
            assert!(handler.flush().unwrap().is_none());
            rows
        };
        let raw = handler("raw");
        assert_eq!(raw.column(0).as_string::<i32>().iter().flatten().collect::<Vec<_>>(), ["t", "f"]);
        let places = raw.column(1).as_string::<i32>().iter().flatten();
        let places: Vec<Value> = places.map(|place| serde_json::from_str(place).unwrap()).collect();
        assert_eq!(
            places,
            [json!({"topic": "t", "partition": 3, "offset": 1u64 << 40}), json!({"file": "f", "byte": 9})]
        );
        assert_eq!(raw.column(2).as_primitive::<Int32Type>().iter().collect::<Vec<_>>(), [Some(3), None]);
        assert_eq!(raw.column(3).as_primitive::<Int64Type>().iter().collect::<Vec<_>>(), [Some(1 << 40), Some(9)]);
        assert_eq!(raw.column(5).as_binary::<i32>().iter().collect::<Vec<_>>(), [Some(b"k".as_slice()), None]);
        assert_eq!(raw.column(6).as_binary::<i32>().iter().collect::<Vec<_>>(), [None, Some(b"\xff".as_slice())]);
        assert_eq!((raw.column(7).as_list::<i32>().value(0).len(), raw.column(7).is_null(1)), (2, true));
        let hex = handler("hex");
        let texts = |column: usize| hex.column(column).as_string::<i32>().iter().collect::<Vec<_>>();
        assert_eq!((texts(5), texts(6)), (vec![Some("6b"), None], vec![None, Some("ff")]));
        let headers = r#"[{"name":"a","value":{"hex":"ff"}},{"name":"a","value":null}]"#;
        assert_eq!(texts(7), [Some(headers), None]);
        assert_eq!(counted.take().0, 4);
    }
}
