//! The flow: a graph lowered to what runs, copies of tasks with their workers, and edges that only move.
//!
//! Every exchange becomes one or more *movers* and, where it also works on rows (a reduction, a sort, a join), *stages*:
//! tasks like those people write, placed beside the tasks they serve. So there is one way in which anything runs, blocks,
//! fails and is counted. Edges between copies of one process hand batches over as they are.

mod biased;
mod edge;
mod folding;
mod inlet;
mod input;
mod inputs;
mod lane;
mod lower;
mod meter;
mod output;
mod pack;
mod scatter;
mod stream_end;
mod turn;

use std::sync::Arc;

use arrow::array::{Array, AsArray, RecordBatch};
use arrow::datatypes::{DataType, SchemaRef};

pub(crate) use edge::{Edge, EdgeLimits};
pub(crate) use inlet::Inlet;
pub use input::{Input, InputStream, Item};
pub use inputs::Inputs;
pub(crate) use lower::lower;
pub use lower::{Lowering, Port, Stage};
pub(crate) use output::Outlet;
pub use output::{Output, Outputs};
pub use pack::SMALL_BYTES_MAX;
pub(crate) use scatter::Scatter;
pub use scatter::{Assign, Assignment, Partitioner, Seat};
pub use turn::LongTurn;
pub(crate) use turn::Turn;

use crate::checkpoint::StateSchema;
use crate::graph::{Executor, TaskFactory};
use crate::local::reduce::Reduce as Reduction;
use crate::memory::Governor;
use crate::overlay::Overlay;
use crate::rebalance::{Handover, Keeps, Named};
use crate::route_map::RouteMap;
use crate::run::Settings;

/// How an edge moves batches from the copies of one task to those of another.
#[derive(Clone)]
pub enum Mover {
    /// Copy `i` sends all it has to copy `map[i]`; `None` sends nothing.
    Map(Vec<Option<u32>>),
    /// Every copy sends all it has to all copies, along a tree of workers.
    Broadcast(Overlay),
    /// Each row goes where the partitioner says.
    Partition(Arc<dyn Partitioner>),
}

/// A task as it runs.
pub(crate) struct FlowTask {
    pub name: String,
    pub factory: TaskFactory,
    pub executor: Executor,
    pub comm: bool,
    /// Whether its copies know marks.
    pub streaming: bool,
    /// What it keeps, if it has said so.
    pub state: Option<StateSchema>,
    pub keeps: Keeps,
    pub inputs: usize,
    /// Schemas of the output ports.
    pub outputs: Vec<SchemaRef>,
    /// The worker of each copy.
    pub workers: Vec<u32>,
}

/// An edge as it runs.
pub(crate) struct FlowEdge {
    pub name: String,
    pub source: Port,
    pub target: Port,
    pub schema: SchemaRef,
    pub mover: Mover,
    /// What a source copy makes of all that it sends, which alone goes.
    pub reduction: Option<Reduction>,
    /// The map that a partition by key begins with, if not with its own.
    pub route: Option<Arc<RouteMap>>,
    /// A task hands over on it what moves between its copies; it is none of the ports that the task knows.
    pub handover: bool,
}

impl FlowEdge {
    /// What says to which of `copies` a row goes, if it is said row by row.
    pub(crate) fn dealing(&self, copies: u32) -> Option<Box<dyn Assign>> {
        let Mover::Partition(partitioner) = &self.mover else { return None };
        let seat = Seat { source: 0, targets: copies, metrics: Arc::default(), route: self.route.clone() };
        Some(partitioner.start(&seat))
    }
}

/// What runs.
#[derive(Default)]
pub(crate) struct Flow {
    pub tasks: Vec<FlowTask>,
    pub edges: Vec<FlowEdge>,
}

impl Flow {
    /// The map that deals the rows of a task.
    ///
    /// # Errors
    /// In words, when there is no such map: its buckets cannot be told from outside.
    pub(crate) fn route(&self, task: usize) -> Result<Arc<RouteMap>, String> {
        let mut found: Option<&Arc<RouteMap>> = None;
        for edge in self.edges.iter().filter(|edge| edge.target.task == task && !edge.handover) {
            let map = match &edge.mover {
                // Every copy gets all there is, whoever owns what.
                Mover::Broadcast(_) => continue,
                Mover::Partition(partitioner) => edge.route.as_ref().or_else(|| partitioner.route()),
                Mover::Map(_) => None,
            };
            let map = map.ok_or_else(|| format!("its input {} is not dealt by key", edge.name))?;
            if *found.get_or_insert(map) != map {
                return Err("its inputs are dealt by different route maps".into());
            }
        }
        found.cloned().ok_or_else(|| "none of its inputs is dealt by key".into())
    }
}

impl Flow {
    /// Why the buckets of a task cannot move, if they cannot.
    pub(crate) fn stays(&self, task: usize) -> Option<String> {
        match (self.route(task), self.tasks[task].keeps) {
            (Err(reason), _) => Some(reason),
            (Ok(_), Keeps::Nothing | Keeps::ByBucket) => None,
            (Ok(_), Keeps::Unknown) => Some(
                "it does not say how what it keeps can move; let its operator implement `moves`, `release` and `acquire`".into(),
            ),
        }
    }

    /// Adds the edges on which tasks hand over what moves.
    pub(crate) fn add_handovers(&mut self) {
        let keeps = |task: &usize| self.tasks[*task].keeps == Keeps::ByBucket && self.route(*task).is_ok();
        for task in (0..self.tasks.len()).filter(keeps).collect::<Vec<_>>() {
            let FlowTask { name, inputs, outputs, .. } = &self.tasks[task];
            self.edges.push(FlowEdge {
                name: format!("hand-over of {name}"),
                source: Port { task, port: outputs.len() },
                target: Port { task, port: *inputs },
                schema: Handover::schema(),
                mover: Mover::Partition(Arc::new(Named)),
                reduction: None,
                route: None,
                handover: true,
            });
        }
    }

    /// The edge on which a task hands over.
    pub(crate) fn handover(&self, task: usize) -> Option<usize> {
        self.edges.iter().position(|edge| edge.handover && edge.target.task == task)
    }
}

/// What the settings allow an edge.
pub(crate) fn edge_limits(settings: &Settings, governor: &Governor) -> EdgeLimits {
    EdgeLimits { governor: governor.clone(), queue_bytes: settings.queue_bytes, batch_bytes: settings.batch_bytes }
}

/// Bytes of a batch's rows: of a slice, only its part.
pub fn batch_bytes(batch: &RecordBatch) -> u64 {
    let fixed = |column: &dyn Array, width: usize| {
        let nulls = if column.nulls().is_some() { column.len().div_ceil(8) } else { 0 };
        column.len() * width + nulls
    };
    let column = |column: &dyn Array| match (column.data_type(), column.data_type().primitive_width()) {
        (_, Some(width)) => fixed(column, width),
        // Arrow counts the views only; what they refer to is most of it, and crosses with them.
        (DataType::Utf8View, _) => fixed(column, 16) + column.as_string_view().total_buffer_bytes_used(),
        (DataType::BinaryView, _) => fixed(column, 16) + column.as_binary_view().total_buffer_bytes_used(),
        _ => column.to_data().get_slice_memory_size().unwrap_or_else(|_| column.get_array_memory_size()),
    };
    batch.columns().iter().map(|c| column(c.as_ref()) as u64).sum()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::{ArrayRef, Int64Array, RecordBatch, StringArray, StringViewArray};

    use super::batch_bytes;

    /// Credit and the size of blocks go by this: a text must weigh about the same in each of its layouts, whole or sliced.
    #[test]
    fn texts_weigh_what_they_hold() {
        let texts = || (0..1000).map(|i| format!("{i:100}"));
        let columns: [ArrayRef; 2] =
            [Arc::new(StringArray::from_iter_values(texts())), Arc::new(StringViewArray::from_iter_values(texts()))];
        for column in columns {
            let batch = RecordBatch::try_from_iter([("t", column)]).unwrap();
            assert!((100_000..120_000).contains(&batch_bytes(&batch)));
            assert!((10_000..12_000).contains(&batch_bytes(&batch.slice(500, 100))));
        }
        let numbers =
            RecordBatch::try_from_iter([("n", Arc::new(Int64Array::from(vec![Some(1), None])) as _)]).unwrap();
        assert_eq!(batch_bytes(&numbers), 17);
    }
}
