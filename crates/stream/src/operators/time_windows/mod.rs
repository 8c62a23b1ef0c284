//! Aggregates of windows, in two halves. The first, beside the source, aggregates what one copy sees; the second, at
//! the copy that owns a key, combines the halves and lets windows *fire* when the watermark has passed their end.
//!
//! Windows share *panes*: stretches of time that no window's border cuts. A row goes into one pane, however many
//! windows overlap there, and a window is combined from its panes when it fires: from [coarser ones](pane_tree) if
//! there are many.
//!
//! The first half keeps no state across a barrier: it sends everything. For each pane, the second half keeps a growing
//! table, and below it tables of states that no longer change. A barrier freezes the growing one, which has exactly the
//! changes since the last barrier and becomes the snapshot; so the cost of a checkpoint is proportional to the changes,
//! and nothing is copied. When memory runs out, the tables are written to disk, and windows are combined from them a
//! few buckets of keys at a time.
//!
//! Windows with early results at steps of event time have panes that no end of a step cuts: a result at a step is
//! combined from the panes before its end, so it does not depend on what else has arrived by then. It covers the keys
//! that have rows in the step.
//!
//! Source of panes: Li, Maier, Tufte, Papadimos and Tucker, "No pane, no gain" (2005); of tables that a checkpoint cuts
//! off: O'Neil, Cheng, Gawlick and O'Neil, "The log-structured merge-tree" (1996).

mod handover;
mod merge;
mod pane_tree;
mod partial;

pub(crate) use merge::MergedWindows;
pub(crate) use partial::PartialWindows;

use std::sync::Arc;
use std::time::Duration;

use arrow::array::{Array, ArrayRef, RecordBatch, TimestampMicrosecondArray, UInt32Array};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef, TimeUnit};
use datafusion::error::Result;
use datafusion::physical_expr::PhysicalExpr;
use tidemill_dataflow::checkpoint::StateSchema;
use tidemill_dataflow::min_max;

use crate::rows::late_rows::{LateCount, LateOutput};
use crate::state::groups::{GroupAggregation, batch};
use crate::state::state_layout::StateLayout;
use crate::time::window::{EarlyResults, Micros};
use crate::time::window_assigner::WindowAssigner;

/// Columns before the keys.
const BEFORE: usize = 1;

/// A windowed aggregation; the same for a query on all workers.
pub(crate) struct WindowAggregation {
    pub of: Arc<GroupAggregation>,
    pub time: Arc<dyn PhysicalExpr>,
    /// How far future times may lie behind the watermark.
    pub behind: Micros,
    pub spans: WindowAssigner,
    pub lateness: Micros,
    /// When windows give early results: by the machine's clock, or at steps of event time (see
    /// [`WindowAssigner::steps`]).
    early: EarlyResults,
    /// The start of a pane, keys, states.
    pub pane_schema: SchemaRef,
    /// The same plus the number of rows: what the first half sends to the second.
    pub part_schema: SchemaRef,
    pub output: SchemaRef,
    /// The position of the window among the output columns.
    pub window_at: usize,
    pub late: LateCount,
    /// Where late rows go. If set, rows go directly to the second half, and there is no first.
    pub late_rows: Option<LateOutput>,
}

impl WindowAggregation {
    pub(crate) fn new(
        of: GroupAggregation,
        (time, behind): (Arc<dyn PhysicalExpr>, Micros),
        spans: WindowAssigner,
        (lateness, early): (Micros, EarlyResults),
        output: SchemaRef,
        window_at: usize,
        (late, late_rows): (LateCount, Option<LateOutput>),
    ) -> Self {
        let pane = Field::new(PANE, DataType::Timestamp(TimeUnit::Microsecond, None), false);
        let fields: Vec<Field> =
            std::iter::once(pane).chain(of.state_schema.fields().iter().map(|field| field.as_ref().clone())).collect();
        let pane_schema = Arc::new(Schema::new(fields));
        WindowAggregation {
            of: Arc::new(of),
            time,
            behind,
            spans,
            lateness,
            early,
            part_schema: with_rows(&pane_schema),
            pane_schema,
            output,
            window_at,
            late,
            late_rows,
        }
    }

    /// The state of the second half.
    pub(crate) fn state(&self) -> StateSchema {
        StateSchema::new(self.spans.described(), self.layout().fields().collect())
    }

    fn layout(&self) -> StateLayout {
        StateLayout::of_aggregation(&self.of, BEFORE)
    }

    /// Whether results say whether they are final.
    fn gives_early(&self) -> bool {
        self.early != EarlyResults::Never
    }

    /// The interval of early results by the machine's clock, if there are any.
    fn ticks(&self) -> Option<Duration> {
        match self.early {
            EarlyResults::Every(every) => Some(Duration::from_micros(every.max(1) as u64)),
            EarlyResults::Never | EarlyResults::Time(_) | EarlyResults::Rows(_) => None,
        }
    }

    /// When the last window that contains the pane no longer accepts rows.
    fn over(&self, pane: Micros) -> Micros {
        self.spans.last_end(pane).saturating_add(self.lateness)
    }

    /// States of a pane as rows with the pane's start.
    fn of_pane(&self, pane: Micros, states: &RecordBatch) -> Result<RecordBatch> {
        let rows = states.num_rows();
        let mut columns: Vec<ArrayRef> = vec![Arc::new(TimestampMicrosecondArray::from(vec![pane; rows]))];
        columns.extend_from_slice(states.columns());
        batch(&self.pane_schema, columns, rows)
    }
}

/// The column with the pane of a state.
const PANE: &str = "tidemill pane";

/// The columns of states, plus the number of rows of each, so that late ones can be counted.
pub(crate) fn with_rows(states: &Schema) -> SchemaRef {
    let rows = Field::new("tidemill rows", DataType::Int64, false);
    Arc::new(Schema::new(states.fields().iter().cloned().chain([Arc::new(rows)]).collect::<Vec<_>>()))
}

/// Rows by the pane that contains them: its start, and which rows (`None`: all). Rows without a time are in none.
/// `pane` returns the start and end of the pane of a time.
fn by_pane(
    times: &TimestampMicrosecondArray,
    pane: impl Fn(Micros) -> (Micros, Micros),
) -> Vec<(Micros, Option<UInt32Array>)> {
    if times.null_count() == 0
        && let Some((least, most)) = min_max(times)
    {
        let (start, end) = pane(least);
        if most < end {
            return vec![(start, None)];
        }
    }
    let values = times.values();
    let mut panes: Vec<((Micros, Micros), Vec<u32>)> = Vec::new();
    // Rows are roughly in order: the pane of a row is usually that of the row before.
    let mut at = 0;
    for (row, &time) in values.iter().enumerate() {
        if times.is_null(row) {
            continue;
        }
        if panes.get(at).is_none_or(|((start, end), _)| time < *start || time >= *end) {
            let of = pane(time);
            at = panes.iter().position(|(other, _)| *other == of).unwrap_or_else(|| {
                panes.push((of, Vec::new()));
                panes.len() - 1
            });
        }
        panes[at].1.push(row as u32);
    }
    panes.into_iter().map(|((start, _), rows)| (start, Some(UInt32Array::from(rows)))).collect()
}
