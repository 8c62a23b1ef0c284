//! Encodes rows as changes of keys.

use arrow::array::{Array, RecordBatch};
use arrow::datatypes::SchemaRef;
use redis::Pipeline;
use serde::{Deserialize, Serialize};
use tidemill_dataflow::TaskError;

use super::key::{KeyTemplate, texts};
use crate::options;
use crate::prepared_commit::put;

/// The target of rows, and the changes they make there.
#[derive(Clone, Deserialize)]
pub(super) struct ChangeOptions {
    /// The stream to which rows are added; without it they go into hashes.
    pub(super) stream: Option<String>,
    /// For the stream: the approximate number of entries to keep.
    entries_max: Option<u64>,
    /// For hashes: the columns whose values, joined by colons, are the key of a hash, see `KeyTemplate`. The other
    /// columns are its fields.
    #[serde(default)]
    key: Vec<String>,
    /// For hashes: the prefix of their keys.
    #[serde(default)]
    pub(super) prefix: String,
    /// For hashes: columns that are added to the stored values.
    #[serde(default)]
    pub(super) increment: Vec<String>,
    /// For hashes: how long one lives after the last write.
    expire_s: Option<u64>,
}

/// The changes of one key.
#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct KeyChange {
    /// Fields to set in the hash.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    set: Vec<(String, String)>,
    /// Fields to remove.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    unset: Vec<String>,
    /// Numbers to add to its fields, and whether each is an integer.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    add: Vec<(String, String, bool)>,
    #[serde(skip_serializing_if = "Option::is_none")]
    expire_s: Option<u64>,
    /// Fields of a stream entry.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    entry: Vec<(String, String)>,
    #[serde(skip_serializing_if = "Option::is_none")]
    entries_max: Option<u64>,
}

impl KeyChange {
    pub(super) fn apply(&self, key: &[u8], pipeline: &mut Pipeline) {
        if !self.set.is_empty() {
            pipeline.cmd("HSET").arg(key).arg(&self.set).ignore();
        }
        if !self.unset.is_empty() {
            pipeline.cmd("HDEL").arg(key).arg(&self.unset).ignore();
        }
        for (field, by, is_whole) in &self.add {
            let command = if *is_whole { "HINCRBY" } else { "HINCRBYFLOAT" };
            pipeline.cmd(command).arg(key).arg(field).arg(by).ignore();
        }
        if let Some(seconds) = self.expire_s {
            pipeline.cmd("EXPIRE").arg(key).arg(seconds).ignore();
        }
        if !self.entry.is_empty() {
            let command = pipeline.cmd("XADD").arg(key);
            if let Some(entries) = self.entries_max {
                command.arg("MAXLEN").arg("~").arg(entries);
            }
            command.arg("*").arg(&self.entry).ignore();
        }
    }
}

/// The mapping from rows to changes.
#[derive(Clone)]
pub(super) struct ChangeEncoder {
    schema: SchemaRef,
    stream: Option<String>,
    entries_max: Option<u64>,
    key: KeyTemplate,
    prefix: String,
    increment: Vec<usize>,
    pub(super) expire_s: Option<u64>,
}

impl ChangeEncoder {
    pub(super) fn new(given: &ChangeOptions, schema: &SchemaRef) -> Result<Self, String> {
        let columns = |option: &str, names: &[String]| -> Result<Vec<usize>, String> {
            names.iter().map(|name| options::column(schema, option, name)).collect()
        };
        let (key, increment) = (columns("key", &given.key)?, columns("increment", &given.increment)?);
        let is_hash = given.stream.is_none();
        if is_hash && key.is_empty() {
            return Err("`key` must name the columns that identify hashes, or `stream` a stream".into());
        }
        let is_plain = key.is_empty() && increment.is_empty() && given.prefix.is_empty() && given.expire_s.is_none();
        if !(is_hash || is_plain) {
            return Err("`key`, `prefix`, `increment` and `expire_s` are for hashes, but `stream` writes none".into());
        }
        if is_hash && given.entries_max.is_some() {
            return Err("`entries_max` is for a stream".into());
        }
        if let Some(column) = increment.iter().find(|column| !schema.field(**column).data_type().is_numeric()) {
            return Err(format!("column \"{}\" is not numeric, so it cannot be added", schema.field(*column).name()));
        }
        if let Some(column) = key.iter().find(|column| increment.contains(column)) {
            return Err(format!("column \"{}\" cannot be both a key and added", schema.field(*column).name()));
        }
        let encoder = ChangeEncoder {
            schema: SchemaRef::clone(schema),
            stream: given.stream.clone(),
            entries_max: given.entries_max,
            key: KeyTemplate::new(schema, &key),
            prefix: given.prefix.clone(),
            increment,
            expire_s: given.expire_s,
        };
        // Checks types before there are rows.
        let empty = RecordBatch::new_empty(SchemaRef::clone(schema));
        encoder.encode(&empty, &mut Vec::new()).map_err(|error| error.to_string())?;
        Ok(encoder)
    }

    /// Appends the changes of some rows to `out`, as records of keys and changes.
    pub(super) fn encode(&self, rows: &RecordBatch, out: &mut Vec<u8>) -> Result<(), TaskError> {
        let texts = texts(rows)?;
        for row in 0..rows.num_rows() {
            let mut change =
                KeyChange { expire_s: self.expire_s, entries_max: self.entries_max, ..KeyChange::default() };
            for (column, field) in self.schema.fields().iter().enumerate() {
                let name = field.name().clone();
                let value = texts[column].is_valid(row).then(|| texts[column].value(row).to_owned());
                match value {
                    _ if self.key.has(column) => {}
                    Some(value) if self.increment.contains(&column) => {
                        change.add.push((name, value, field.data_type().is_integer()));
                    }
                    Some(value) if self.stream.is_some() => change.entry.push((name, value)),
                    Some(value) => change.set.push((name, value)),
                    None if self.stream.is_none() && !self.increment.contains(&column) => change.unset.push(name),
                    None => {}
                }
            }
            let key = match &self.stream {
                Some(stream) => {
                    // An entry needs at least one field: a row of nulls gets one without a name, which is not one of
                    // its columns.
                    if change.entry.is_empty() {
                        change.entry.push((String::new(), String::new()));
                    }
                    stream.clone()
                }
                None => self.key.of(&self.prefix, &texts, row),
            };
            put(Some(key.as_bytes()), out);
            put(Some(&serde_json::to_vec(&change)?), out);
        }
        Ok(())
    }
}
