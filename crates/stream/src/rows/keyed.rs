//! Rows on their way to the owner of their key, prepared next to the source. Late rows are dropped there, where which
//! rows are late does not depend on the speed of other copies.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, BooleanArray, RecordBatch};
use arrow::buffer::{BooleanBuffer, NullBuffer};
use arrow::compute::{filter_record_batch, not};
use arrow::datatypes::{Field, Schema, SchemaRef};
use datafusion::error::Result;
use datafusion::physical_expr::PhysicalExpr;
use tidemill_dataflow::exchange::Partition;
use tidemill_dataflow::operator::EmitStatus;
use tidemill_dataflow::stream::EventTime;
use tidemill_dataflow::{Emitter, Operator, TaskContext, TaskError};

use crate::rows::late_rows::{LATE_PORT, LateCount};
use crate::rows::steps::RowSteps;
use crate::state::groups::batch;
use crate::state::state_layout::StateLayout;
use crate::time::times::TimeOf;
use crate::time::window::Micros;

/// How rows get their keys; the same for a query on all workers.
pub(crate) struct KeyedRows {
    /// The rows' columns, followed by their keys. Keys are named by position, since their own names may not be unique.
    pub schema: SchemaRef,
    /// The number of columns before the keys.
    pub width: usize,
    keys: Vec<Arc<dyn PhysicalExpr>>,
    /// Whether rows with a null key are dropped.
    drop_nulls: bool,
    /// Determines which rows are late.
    time: Option<TimeOf>,
}

impl KeyedRows {
    pub(crate) fn new(
        rows: &SchemaRef,
        keys: Vec<Arc<dyn PhysicalExpr>>,
        drop_nulls: bool,
        time: Option<TimeOf>,
    ) -> Result<Self> {
        let types = keys.iter().map(|key| key.data_type(rows)).collect::<Result<Vec<_>>>()?;
        let types = rows.fields().iter().map(|field| field.data_type().clone()).chain(types);
        let fields: Vec<Field> = types.enumerate().map(|(at, of)| Field::new(at.to_string(), of, true)).collect();
        Ok(KeyedRows { schema: Arc::new(Schema::new(fields)), width: rows.fields().len(), keys, drop_nulls, time })
    }

    /// The layout of rows with this schema before keys were added; field names are prefixed with `of`.
    pub(crate) fn layout(&self, rows: &Schema, of: &str) -> StateLayout {
        StateLayout::of_rows(rows, of).keys(&self.keys, &self.schema.fields()[self.width..], of, self.width)
    }

    /// The layout of the keys alone.
    pub(crate) fn layout_of_keys(&self) -> StateLayout {
        StateLayout::default().keys(&self.keys, &self.schema.fields()[self.width..], "", 0)
    }

    /// The key columns.
    pub(crate) fn keys(&self) -> Vec<usize> {
        (self.width..self.schema.fields().len()).collect()
    }

    pub(crate) fn partition(&self) -> Partition {
        Partition::by_key(self.keys().into_iter().map(|key| key.to_string()))
    }

    /// Whether rows can be late.
    pub(crate) fn has_late(&self) -> bool {
        self.time.is_some()
    }

    /// Which rows are late; `None`: none.
    fn late(&self, rows: &RecordBatch, now: Micros) -> Result<Option<BooleanArray>> {
        let Some(of) = self.time.as_ref().filter(|_| now > Micros::MIN) else { return Ok(None) };
        let times = of.place.values(rows)?;
        let late = |time: Option<Micros>| time.is_some_and(|time| time.saturating_add(of.behind) < now);
        Ok(times.iter().any(late).then(|| times.iter().map(|time| Some(late(time))).collect()))
    }

    /// The needed rows of a batch, with their keys.
    fn of(&self, rows: RecordBatch) -> Result<RecordBatch> {
        let count = rows.num_rows();
        let keys = self.keys.iter().map(|key| key.evaluate(&rows)?.into_array(count)).collect::<Result<Vec<_>>>()?;
        let known = known(&keys).filter(|_| self.drop_nulls);
        let columns = rows.columns().iter().cloned().chain(keys).collect();
        let rows = batch(&self.schema, columns, count)?;
        match known {
            Some(known) => Ok(filter_record_batch(&rows, &BooleanArray::new(known, None))?),
            None => Ok(rows),
        }
    }
}

/// Which rows have no null key; `None`: all.
pub(crate) fn known(keys: &[ArrayRef]) -> Option<BooleanBuffer> {
    let nulls = keys.iter().fold(None, |nulls, key| NullBuffer::union(nulls.as_ref(), key.logical_nulls().as_ref()));
    nulls.filter(|nulls| nulls.null_count() > 0).map(NullBuffer::into_inner)
}

/// The task that prepares keyed rows.
pub(crate) struct KeyedTask {
    pub shape: Arc<KeyedRows>,
    pub steps: RowSteps,
    pub now: Micros,
    pub late: LateCount,
    /// The schema of late rows if they are wanted: their original columns.
    pub late_rows: Option<SchemaRef>,
}

impl Operator for KeyedTask {
    fn begin(&mut self, context: &TaskContext) {
        self.steps.begin(context);
    }

    fn calls_program(&self) -> bool {
        self.steps.calls_program()
    }

    fn on_batch(&mut self, _input: usize, rows: RecordBatch, emit: &mut Emitter) -> Result<EmitStatus, TaskError> {
        for rows in self.steps.apply(rows)? {
            let late = self.shape.late(&rows, self.now)?;
            let rows = match &late {
                Some(late) => {
                    match &self.late_rows {
                        Some(schema) => {
                            let rows = filter_record_batch(&rows, late)?;
                            emit.send_to(LATE_PORT, batch(schema, rows.columns().to_vec(), rows.num_rows())?);
                        }
                        None => self.late.add(late.true_count()),
                    }
                    filter_record_batch(&rows, &not(late)?)?
                }
                None => rows,
            };
            let rows = self.shape.of(rows)?;
            if rows.num_rows() > 0 {
                emit.send(rows);
            }
        }
        Ok(EmitStatus::Done)
    }

    fn on_watermark(&mut self, time: EventTime, _emit: &mut Emitter) -> Result<EmitStatus, TaskError> {
        self.now = time.0;
        Ok(EmitStatus::Done)
    }
}
