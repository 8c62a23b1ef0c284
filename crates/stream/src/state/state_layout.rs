//! What copies of a task share in checkpoints, such as the time they had reached. Also the layout of their states, so
//! that a changed program can convert the states of a previous version.

use std::collections::{BTreeSet, HashMap};
use std::ops::Range;
use std::sync::Arc;

use arrow::array::{ArrayRef, RecordBatch, new_null_array};
use arrow::datatypes::{Field, Schema, SchemaRef};
use bytes::Bytes;
use datafusion::error::{DataFusionError, Result};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::aggregate::AggregateFunctionExpr;
use datafusion::physical_expr::expressions::Column;
use tidemill_dataflow::TaskError;
use tidemill_dataflow::checkpoint::{RestoredState, Snapshot, StateField, rows};

use crate::state::groups::{GroupAggregation, batch};
use crate::time::window::Micros;

/// The names of what copies share in checkpoints.
const FIRED: &str = "fired";
const CHANGED: &str = "changed";

/// A snapshot of what copies share: the time up to which windows have fired.
pub(crate) fn shared(fired: Micros) -> Snapshot {
    let fired = Bytes::copy_from_slice(&fired.to_le_bytes());
    Snapshot { shared: vec![(FIRED.into(), fired)], ..Snapshot::default() }
}

/// The same with the starts of fired windows that late rows have changed since, whose results must be emitted again.
pub(crate) fn shared_with(fired: Micros, changed: &BTreeSet<Micros>) -> Snapshot {
    let mut snapshot = shared(fired);
    let starts: Vec<u8> = changed.iter().flat_map(|start| start.to_le_bytes()).collect();
    snapshot.shared.push((CHANGED.into(), starts.into()));
    snapshot
}

fn changed_in(starts: &Bytes) -> Result<BTreeSet<Micros>, TaskError> {
    let (starts, []) = starts.as_chunks() else { return Err("a checkpoint has an invalid list of times".into()) };
    Ok(starts.iter().map(|start| Micros::from_le_bytes(*start)).collect())
}

/// The fired windows that late rows had changed, on any copy.
pub(crate) fn changed_of(restored: &RestoredState) -> Result<BTreeSet<Micros>, TaskError> {
    let mut all = BTreeSet::new();
    for starts in restored.shared.get(CHANGED).into_iter().flatten() {
        all.append(&mut changed_in(starts)?);
    }
    Ok(all)
}

/// The same for the copy that owned a bucket.
pub(crate) fn changed_by(restored: &RestoredState, bucket: u32) -> Result<BTreeSet<Micros>, TaskError> {
    restored.shared_of(bucket, CHANGED).map_or(Ok(BTreeSet::new()), changed_in)
}

/// The time up to which windows of a bucket had fired.
pub(crate) fn fired_by(restored: &RestoredState, bucket: u32) -> Result<Option<Micros>, TaskError> {
    restored.shared_of(bucket, FIRED).map(time_of).transpose()
}

/// Decodes a saved time.
pub(crate) fn time_of(bytes: &Bytes) -> Result<Micros, TaskError> {
    let time: [u8; 8] = bytes.as_ref().try_into().map_err(|_| "a checkpoint has an invalid time")?;
    Ok(Micros::from_le_bytes(time))
}

/// The time up to which windows had fired.
pub(crate) fn fired_of(restored: &RestoredState) -> Result<Micros, TaskError> {
    let mut last = Micros::MIN;
    for fired in restored.shared.get(FIRED).into_iter().flatten() {
        last = last.max(time_of(fired)?);
    }
    Ok(last)
}

/// A field of a state, and its columns.
struct StoredField {
    field: StateField,
    columns: Range<usize>,
    /// Makes the columns' initial values; `None`: they are null.
    function: Option<Arc<AggregateFunctionExpr>>,
}

/// The layout of a table of states: the columns of its fields, with fixed columns before and after them.
#[derive(Default)]
pub(crate) struct StateLayout(Vec<StoredField>);

impl StateLayout {
    fn columns(&self) -> Range<usize> {
        let start = self.0.first().map_or(0, |first| first.columns.start);
        start..self.0.last().map_or(start, |last| last.columns.end)
    }

    /// The columns of rows; their names are prefixed with `of`.
    pub(crate) fn of_rows(rows: &Schema, of: &str) -> Self {
        let mut layout = StateLayout::default();
        for (column, field) in rows.fields().iter().enumerate() {
            let what = (format!("{of}{}", field.name()), field.data_type().to_string());
            layout.add(what, (field.is_nullable(), false), column..column + 1, None);
        }
        layout
    }

    /// Keys after other columns.
    pub(crate) fn keys(mut self, keys: &[Arc<dyn PhysicalExpr>], fields: &[Arc<Field>], of: &str, from: usize) -> Self {
        for (number, (key, field)) in keys.iter().zip(fields).enumerate() {
            let any: &dyn std::any::Any = key.as_ref();
            let name = match any.downcast_ref::<Column>() {
                Some(column) => format!("{of}key {}", column.name()),
                None => format!("{of}key {}", number + 1),
            };
            let at = from + number;
            self.add((name, field.data_type().to_string()), (true, true), at..at + 1, None);
        }
        self
    }

    /// Keys and the states of aggregates, from column `from` on.
    pub(crate) fn of_aggregation(of: &GroupAggregation, from: usize) -> Self {
        let mut layout = StateLayout::default();
        for (at, field) in (from..).zip(of.key_schema.fields()) {
            layout.add((field.name().clone(), field.data_type().to_string()), (true, true), at..at + 1, None);
        }
        let mut at = of.keys.len();
        for (function, width) in of.functions.iter().zip(&of.widths) {
            let types = of.state_schema.fields()[at..at + width].iter().map(|field| field.data_type().to_string());
            let what = format!("{} of {}", function.fun().name(), types.collect::<Vec<_>>().join(" and "));
            let columns = from + at..from + at + width;
            let nullable = function.field().is_nullable();
            let what = (function.name().to_owned(), what);
            layout.add(what, (nullable, false), columns, Some(Arc::clone(function)));
            at += width;
        }
        layout
    }

    fn add(
        &mut self,
        (name, of): (String, String),
        (nullable, key): (bool, bool),
        columns: Range<usize>,
        function: Option<Arc<AggregateFunctionExpr>>,
    ) {
        // Joined rows may have two columns with the same name.
        let same = |name: &String| self.0.iter().any(|placed| &placed.field.name == name);
        let again = (2..).map(|more| format!("{name} ({more})"));
        let name = std::iter::once(name.clone()).chain(again).find(|name| !same(name)).expect("one of endless many");
        self.0.push(StoredField { field: StateField { name, of, nullable, key }, columns, function });
    }

    /// The fields of the layout.
    pub(crate) fn fields(&self) -> impl Iterator<Item = StateField> {
        self.0.iter().map(|placed| placed.field.clone())
    }

    /// Makes a reader of tables that were saved with the layout in the checkpoint. `schema` is the current schema.
    pub(crate) fn reader(&self, schema: &SchemaRef, restored: &RestoredState) -> Result<StateReader> {
        let all = self.columns();
        let places: HashMap<&str, &StoredField> =
            self.0.iter().map(|placed| (placed.field.name.as_str(), placed)).collect();
        let saved = restored.schema.iter().flat_map(|schema| &schema.fields);
        let saved: Vec<&StoredField> = match &restored.schema {
            Some(_) => saved.filter_map(|field| places.get(field.name.as_str()).copied()).collect(),
            None => self.0.iter().collect(),
        };
        let mut columns: Vec<usize> = (0..all.start).collect();
        columns.extend(saved.iter().flat_map(|placed| placed.columns.clone()));
        columns.extend(all.end..schema.fields().len());
        let mut from: Vec<ColumnOrigin> = Vec::new();
        for column in 0..schema.fields().len() {
            from.push(match columns.iter().position(|&then| then == column) {
                Some(at) => ColumnOrigin::Saved(at),
                None => {
                    let placed = self.0.iter().find(|placed| placed.columns.contains(&column));
                    let function =
                        placed.and_then(|placed| placed.function.clone().zip(Some(column - placed.columns.start)));
                    function.map_or(ColumnOrigin::Null, |(function, state)| ColumnOrigin::Nothing(function, state))
                }
            });
        }
        Ok(StateReader { then: Arc::new(schema.project(&columns)?), now: Arc::clone(schema), from })
    }
}

/// The origin of a column of states.
enum ColumnOrigin {
    /// A saved column.
    Saved(usize),
    Null,
    /// The initial value of this state of a function.
    Nothing(Arc<AggregateFunctionExpr>, usize),
}

/// Reads tables of a checkpoint, which may have fewer fields, or a different order.
pub(crate) struct StateReader {
    then: SchemaRef,
    now: SchemaRef,
    from: Vec<ColumnOrigin>,
}

impl StateReader {
    /// The rows with the current schema.
    pub(crate) fn read(&self, bytes: &Bytes) -> Result<RecordBatch> {
        let then = rows::decode(&self.then, bytes)?;
        let count = then.num_rows();
        let column = |(from, field): (&ColumnOrigin, &Arc<Field>)| -> Result<ArrayRef> {
            match from {
                ColumnOrigin::Saved(column) => Ok(Arc::clone(then.column(*column))),
                ColumnOrigin::Null => Ok(new_null_array(field.data_type(), count)),
                ColumnOrigin::Nothing(function, state) => nothing(function, *state, count),
            }
        };
        let columns = self.from.iter().zip(self.now.fields()).map(column).collect::<Result<_>>()?;
        batch(&self.now, columns, count)
    }
}

/// `count` copies of a function's initial state.
fn nothing(function: &Arc<AggregateFunctionExpr>, state: usize, count: usize) -> Result<ArrayRef> {
    let states = function.create_accumulator()?.state()?;
    let state = states.get(state).ok_or_else(|| DataFusionError::Internal(format!("states of {}", function.name())))?;
    state.to_array_of_size(count)
}

/// Saved parts by bucket: a full one, and changes since.
#[cfg(test)]
pub(crate) type SavedParts = std::collections::BTreeMap<u32, Vec<Bytes>>;

/// Adds a snapshot to the previous ones.
#[cfg(test)]
pub(crate) fn apply(parts: tidemill_dataflow::checkpoint::BucketStates, saved: &mut SavedParts) {
    use tidemill_dataflow::checkpoint::SnapshotPart;
    for (bucket, part) in parts {
        match part {
            SnapshotPart::Whole(bytes) if bytes.is_empty() => {
                assert!(saved.remove(&bucket).is_some(), "{bucket} was not saved")
            }
            SnapshotPart::Whole(bytes) => _ = saved.insert(bucket, vec![bytes]),
            SnapshotPart::Change(bytes) => saved.entry(bucket).or_default().push(bytes),
        }
    }
}
