//! Records of keys as rows, for snapshots and for disk.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, Int64Builder, LargeBinaryBuilder, ListBuilder, RecordBatch, UInt8Array};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Field, Int64Type, Schema, SchemaRef, UInt8Type};
use arrow::row::{RowConverter, SortField};
use tidemill_dataflow::TaskError;
use tidemill_dataflow::floats::canonical;

use crate::time::window::Micros;

/// A key's columns as bytes, which are equal if and only if the keys are. Never empty.
pub(crate) type Key = Arc<[u8]>;

/// How much of a key's state a record contains.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RecordKind {
    /// The key was removed.
    Removed,
    Whole,
    /// The changes since the previous record.
    Change,
}

/// The saved record of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct KeyRecord {
    pub kind: RecordKind,
    /// As the function encodes it; `None` if the key has only timers.
    pub state: Option<Vec<u8>>,
    pub timers: Vec<Micros>,
    pub alarms: Vec<Micros>,
    pub touched: Micros,
}

impl KeyRecord {
    pub(crate) const REMOVED: KeyRecord = KeyRecord {
        kind: RecordKind::Removed,
        state: None,
        timers: Vec::new(),
        alarms: Vec::new(),
        touched: Micros::MIN,
    };

    /// Its approximate size in bytes.
    pub(crate) fn bytes(&self) -> usize {
        64 + self.state.as_ref().map_or(0, Vec::len) + 8 * (self.timers.len() + self.alarms.len())
    }
}

/// Converts between keys with records, and rows. A row consists of the key's columns, the state, event-time timers,
/// clock timers, the time when the key was last touched (microseconds), and the kind of record (0 removed, 1 whole, 2
/// change).
pub(crate) struct RecordCodec {
    converter: RowConverter,
    keys: SchemaRef,
    schema: SchemaRef,
}

/// The number of columns of a record, without those of the key.
const RECORD_COLUMNS: usize = 5;

impl RecordCodec {
    /// # Errors
    /// If a column cannot be a key.
    pub(crate) fn new(keys: &SchemaRef) -> Result<Self, TaskError> {
        // Encodings may differ between batches, but keys must not.
        let plain = |field: &Field| match field.data_type() {
            DataType::Dictionary(_, values) => values.as_ref().clone(),
            data_type => data_type.clone(),
        };
        let key_fields: Vec<Field> =
            keys.fields().iter().map(|field| Field::new(field.name(), plain(field), true)).collect();
        let sorts = key_fields.iter().map(|field| SortField::new(field.data_type().clone())).collect();
        let times = || DataType::List(Arc::new(Field::new_list_field(DataType::Int64, true)));
        let record = [
            Field::new("state", DataType::LargeBinary, true),
            Field::new("timers", times(), false),
            Field::new("clock timers", times(), false),
            Field::new("touched", DataType::Int64, false),
            Field::new("kind", DataType::UInt8, false),
        ];
        let schema = key_fields.iter().cloned().chain(record).collect::<Vec<_>>();
        Ok(RecordCodec {
            converter: RowConverter::new(sorts)?,
            keys: Arc::new(Schema::new(key_fields)),
            schema: Arc::new(Schema::new(schema)),
        })
    }

    pub(crate) fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    /// The keys of rows, given their key columns.
    pub(crate) fn keys(&self, columns: &[ArrayRef]) -> Result<Vec<Key>, TaskError> {
        let columns = columns.iter().zip(self.keys.fields()).map(|(column, field)| {
            let column = match column.data_type() == field.data_type() {
                true => Arc::clone(column),
                false => cast(column, field.data_type())?,
            };
            canonical(&column)
        });
        let rows = self.converter.convert_columns(&columns.collect::<Result<Vec<_>, _>>()?)?;
        Ok(rows.iter().map(|row| Key::from(row.as_ref())).collect())
    }

    /// The columns of keys.
    pub(crate) fn columns<'a>(&self, keys: impl IntoIterator<Item = &'a Key>) -> Result<RecordBatch, TaskError> {
        let parser = self.converter.parser();
        let columns = self.converter.convert_rows(keys.into_iter().map(|key| parser.parse(key)))?;
        Ok(RecordBatch::try_new(Arc::clone(&self.keys), columns)?)
    }

    /// A row for each record.
    pub(crate) fn encode(&self, records: &[(Key, KeyRecord)]) -> Result<RecordBatch, TaskError> {
        let mut columns = self.columns(records.iter().map(|(key, _)| key))?.columns().to_vec();
        let mut states = LargeBinaryBuilder::new();
        let mut times = [ListBuilder::new(Int64Builder::new()), ListBuilder::new(Int64Builder::new())];
        let mut touched = Int64Builder::new();
        let mut kinds = Vec::with_capacity(records.len());
        for (_, record) in records {
            states.append_option(record.state.as_ref());
            times[0].append_value(record.timers.iter().map(|&at| Some(at)));
            times[1].append_value(record.alarms.iter().map(|&at| Some(at)));
            touched.append_value(record.touched);
            kinds.push(record.kind as u8);
        }
        let [mut timers, mut alarms] = times;
        columns.push(Arc::new(states.finish()));
        columns.push(Arc::new(timers.finish()));
        columns.push(Arc::new(alarms.finish()));
        columns.push(Arc::new(touched.finish()));
        columns.push(Arc::new(UInt8Array::from(kinds)));
        Ok(RecordBatch::try_new(Arc::clone(&self.schema), columns)?)
    }

    /// Decodes the records in rows.
    ///
    /// # Errors
    /// If the rows were not made by [`RecordCodec::encode`].
    pub(crate) fn decode(&self, rows: &RecordBatch) -> Result<Vec<(Key, KeyRecord)>, TaskError> {
        let count = self.keys.fields().len();
        let keys = self.keys(&rows.columns()[..count])?;
        let [states, timers, alarms, touched, kinds] = &rows.columns()[count..count + RECORD_COLUMNS] else {
            return Err("a record of a key lacks columns".into());
        };
        let states = states.as_binary::<i64>();
        let (touched, kinds) = (touched.as_primitive::<Int64Type>(), kinds.as_primitive::<UInt8Type>());
        let times = |of: &ArrayRef, row: usize| {
            let times = of.as_list::<i32>().value(row);
            times.as_primitive::<Int64Type>().values().to_vec()
        };
        let record = |(row, key): (usize, Key)| {
            let kind = match kinds.value(row) {
                0 => RecordKind::Removed,
                1 => RecordKind::Whole,
                2 => RecordKind::Change,
                other => return Err(format!("a record of a key has the unknown kind {other}").into()),
            };
            let state = states.is_valid(row).then(|| states.value(row).to_vec());
            let (timers, alarms) = (times(timers, row), times(alarms, row));
            Ok((key, KeyRecord { kind, state, timers, alarms, touched: touched.value(row) }))
        };
        keys.into_iter().enumerate().map(record).collect()
    }
}
