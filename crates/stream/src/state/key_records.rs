//! What is kept of keys, as rows: in snapshots, and on disk.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, Int64Builder, LargeBinaryBuilder, ListBuilder, RecordBatch, UInt8Array};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Field, Int64Type, Schema, SchemaRef, UInt8Type};
use arrow::row::{RowConverter, SortField};
use tidemill_dataflow::TaskError;
use tidemill_dataflow::floats::canonical;

use crate::time::window::Micros;

/// A key's columns as bytes that are equal when the keys are. Never empty.
pub(crate) type Key = Arc<[u8]>;

/// How much of a key's state a record has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RecordKind {
    /// The key is gone.
    Removed,
    Whole,
    /// What has changed since the record before it.
    Change,
}

/// What is saved of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct KeyRecord {
    pub kind: RecordKind,
    /// As the function encodes it; `None`: it keeps nothing but timers.
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

    /// About how many bytes it takes.
    pub(crate) fn bytes(&self) -> usize {
        64 + self.state.as_ref().map_or(0, Vec::len) + 8 * (self.timers.len() + self.alarms.len())
    }
}

/// Turns keys and records into rows, and back. A row has the key's columns, then the state, event-time timers, clock
/// timers, when the key was touched last (microseconds), and the kind of record (0 removed, 1 whole, 2 change).
pub(crate) struct RecordCodec {
    converter: RowConverter,
    keys: SchemaRef,
    schema: SchemaRef,
}

/// Columns of a record, without those of the key.
const RECORD_COLUMNS: usize = 5;

impl RecordCodec {
    /// # Errors
    /// When a column cannot be a key.
    pub(crate) fn new(keys: &SchemaRef) -> Result<Self, TaskError> {
        // Encodings differ from batch to batch; keys do not.
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

    /// The keys of rows, given the columns of their keys.
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

    /// The records in rows.
    ///
    /// # Errors
    /// When the rows are not what [`RecordCodec::encode`] makes.
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
