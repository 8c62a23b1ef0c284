//! Aggregates of count windows: a number of rows of each key, in order of arrival: rows `[k * slide, k * slide + size)`
//! of the key, for every k. A window produces its result with its last row; windows that are not full when the stream
//! ends produce none.
//!
//! Windows share panes, as those of time do ([`time_windows`](crate::operators::time_windows)). The state of a pane
//! consists of rows: a batch's contribution, its key, and the number of rows of the key up to then. The rows of a key
//! form a chain, in the order of their panes. When it is long, the rows of each pane are merged, and completed panes
//! are removed, except the last one, which gives the number of rows of the key.
//!
//! Keys are kept forever, or for a *time to live*: a row that is at least this much later than the last of its key
//! *restarts* the key, as if it had had no rows. So does a row that comes after the stream's time has passed that
//! point, because the key may have been forgotten by then; which rows restart a key does not depend on when it is
//! forgotten. State of a key that was saved before such a row is obsolete, and the row is marked to say so.
//!
//! | module  | contents                                   |
//! |---------|--------------------------------------------|
//! | `state` | the keys of a copy: their rows and results |
//! | `task`  | the operator                               |

mod state;
mod task;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use arrow::array::{ArrayRef, AsArray, BooleanArray, Int64Array, RecordBatch, UInt32Array};
use arrow::compute::take;
use arrow::datatypes::{DataType, Field, Int64Type, Schema, SchemaRef};
use datafusion::error::Result;
use datafusion::physical_expr::PhysicalExpr;
use tidemill_dataflow::checkpoint::StateSchema;

pub(crate) use task::CountTask;

use crate::rows::keyed::KeyedRows;
use crate::rows::late_rows::LateCount;
use crate::state::groups::{GroupAggregation, batch};
use crate::state::state_layout::StateLayout;
use crate::time::window::Micros;

/// Stored columns before the keys: the number of the key's rows so far, and the pane.
const SEEN: usize = 0;
const PANE: usize = 1;
/// If keys are forgotten: when the key expires, and whether it was restarted by this row.
const UNTIL: usize = 2;
const ANEW: usize = 3;

/// How long keys are remembered.
pub(crate) struct KeyTtl {
    /// The time of a row.
    pub time: Arc<dyn PhysicalExpr>,
    /// How far future times may lie behind the watermark.
    pub behind: Micros,
    /// The time after a key's last row.
    pub ttl: Micros,
}

/// An aggregation of count windows; the same for a query on all workers.
pub(crate) struct CountAggregation {
    of: GroupAggregation,
    size: i64,
    slide: i64,
    /// The number of rows in a pane.
    pane: i64,
    /// `None`: forever.
    ttl: Option<KeyTtl>,
    /// Counts rows without a time, if they need one.
    untimed: LateCount,
    /// The input: rows with their keys.
    pub keyed: Arc<KeyedRows>,
    kept_schema: SchemaRef,
    output: SchemaRef,
    window_at: usize,
}

impl CountAggregation {
    pub(crate) fn new(
        of: GroupAggregation,
        (size, slide): (i64, i64),
        ttl: Option<KeyTtl>,
        keyed: KeyedRows,
        (output, window_at): (SchemaRef, usize),
        untimed: LateCount,
    ) -> Self {
        let number = |name| Field::new(name, DataType::Int64, false);
        let mut before = vec![number("tidemill seen"), number("tidemill pane")];
        if ttl.is_some() {
            before.extend([number("tidemill until"), Field::new("tidemill anew", DataType::Boolean, false)]);
        }
        let fields = before.into_iter().map(Arc::new).chain(of.state_schema.fields().iter().cloned());
        let kept_schema = Arc::new(Schema::new(fields.collect::<Vec<_>>()));
        let (mut pane, mut rest) = (size, slide);
        while rest != 0 {
            (pane, rest) = (rest, pane % rest);
        }
        let keyed = Arc::new(keyed);
        CountAggregation { of, size, slide, pane, ttl, untimed, keyed, kept_schema, output, window_at }
    }

    /// The task's state.
    pub(crate) fn state(&self) -> StateSchema {
        let CountAggregation { size, slide, .. } = self;
        let keys = if self.ttl.is_some() { ", of keys for a time" } else { "" };
        StateSchema::new(format!("windows of {size} rows every {slide} rows{keys}"), self.layout().fields().collect())
    }

    fn layout(&self) -> StateLayout {
        StateLayout::of_aggregation(&self.of, self.before())
    }

    /// The number of stored columns before the keys.
    fn before(&self) -> usize {
        if self.ttl.is_some() { ANEW + 1 } else { PANE + 1 }
    }

    /// The number of windows that are complete after this many rows.
    fn complete(&self, rows: i64) -> i64 {
        if rows < self.size { 0 } else { (rows - self.size) / self.slide + 1 }
    }

    /// Whether all windows of a pane are complete after this many rows.
    fn over(&self, pane: i64, rows: i64) -> bool {
        pane * self.pane / self.slide < self.complete(rows)
    }

    /// The stored columns that are keys.
    fn keys(&self) -> Vec<usize> {
        (self.before()..self.before() + self.of.keys.len()).collect()
    }

    /// Makes stored rows of panes from the keys of their rows and from states.
    fn kept(&self, panes: &[CountPane], keys: &[ArrayRef], states: Vec<ArrayRef>) -> Result<RecordBatch> {
        let number =
            |of: fn(&CountPane) -> i64| Arc::new(Int64Array::from_iter_values(panes.iter().map(of))) as ArrayRef;
        let rows = UInt32Array::from_iter_values(panes.iter().map(|pane| pane.row));
        let mut columns = vec![number(|pane| pane.seen), number(|pane| pane.number)];
        if self.ttl.is_some() {
            columns.push(number(|pane| pane.until));
            columns.push(Arc::new(panes.iter().map(|pane| Some(pane.anew)).collect::<BooleanArray>()));
        }
        for key in keys {
            columns.push(take(key, &rows, None)?);
        }
        columns.extend(states);
        batch(&self.kept_schema, columns, panes.len())
    }
}

/// The contribution of some rows to a pane of a key.
struct CountPane {
    key: usize,
    number: i64,
    /// The number of the key's rows up to the last of these.
    seen: i64,
    /// When the key expires, if keys are forgotten.
    until: Micros,
    /// Whether the first of these rows is the first of the key.
    anew: bool,
    /// The index of one of these rows.
    row: u32,
}

fn numbers(column: &ArrayRef) -> &[i64] {
    column.as_primitive::<Int64Type>().values()
}
