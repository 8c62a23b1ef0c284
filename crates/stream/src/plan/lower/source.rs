//! Sources, and tables within streaming queries.

use std::any::Any;
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use datafusion::datasource::memory::MemorySourceConfig;
use datafusion::datasource::source::DataSourceExec;
use datafusion::physical_plan::ExecutionPlan;
use tidemill_dataflow::stream::sink::DeliveryGuarantee;
use tidemill_dataflow::stream::source::{ListFiles, time_column};
use tidemill_dataflow::{TaskId, TaskSpec};
use tidemill_dataset::extend::SLICE_ROWS;
use tidemill_dataset::{DataSetError, Result};

use super::{BAD, JobLowering, PlanBranch, ROWS, RowFlow, SinkTask, columns_of};
use crate::plan::memory::table_stream;
use crate::plan::table::{StreamExec, StreamSource};
use crate::rows::steps::RowSteps;
use crate::time::times::StreamTimes;

/// A source of a graph.
pub(crate) struct SourceTask {
    pub(super) task: TaskId,
    /// The task's name.
    pub(super) task_name: String,
    pub(super) source: StreamSource,
    /// Whether later steps wait for event time.
    pub(super) waited: bool,
}

impl SourceTask {
    pub(crate) fn name(&self) -> &str {
        &self.source.name
    }

    /// Its specification, if it was made from one.
    pub(crate) fn spec(&self) -> Option<Arc<str>> {
        self.source.spec.clone()
    }

    /// Its name, and the function that lists the local files it would read.
    pub(crate) fn files(&self) -> Option<(&str, &ListFiles)> {
        Some((self.name(), self.source.files.as_ref()?))
    }

    /// The folder that it writes bad records to, if any.
    pub(crate) fn bad_folder(&self) -> Option<&Path> {
        self.source.bad_folder.as_deref()
    }

    pub(crate) fn guarantee(&self) -> DeliveryGuarantee {
        self.source.guarantee
    }

    /// Whether it has no event time although later steps wait for it.
    pub(crate) fn lacks_event_time(&self) -> bool {
        self.waited && self.source.times.is_none()
    }
}

/// The rows of an in-memory table.
pub(super) fn in_memory(plan: &Arc<dyn ExecutionPlan>) -> Result<Vec<RecordBatch>> {
    let any: &dyn Any = plan.as_ref();
    let memory = any.downcast_ref::<DataSourceExec>().and_then(|exec| {
        let any: &dyn Any = exec.data_source().as_ref();
        any.downcast_ref::<MemorySourceConfig>()
    });
    let memory = memory.ok_or_else(|| DataSetError::Internal("a table that is not in memory".into()))?;
    Ok(memory.partitions().iter().flatten().cloned().collect())
}

impl JobLowering<'_> {
    pub(super) fn source(&mut self, stream: &StreamExec, projected: SchemaRef) -> Result<RowFlow> {
        let mut source = stream.source.clone();
        // A stream that is read in two places, such as a self-join, encounters the same bad records in both.
        if self.sources.iter().any(|other| other.source.is_same(&source)) {
            source.bad_to = None;
        }
        let name = self.name(&format!("source {}", source.name));
        let make = Arc::clone(&source.make);
        let task = TaskSpec::source(name.clone(), source.times.clone(), move |copy| make(copy));
        let task = self.graph.add(self.source_task(task, &source));
        let copies = self.copies_of(&source);
        let mut steps = RowSteps::default();
        let column = source.times.as_ref().map(|times| time_column(&source.schema, &times.column));
        let mut times = StreamTimes::of_source(column.transpose().map_err(DataSetError::Query)?);
        if let Some(columns) = &stream.projection {
            steps.project(columns, &source.schema)?;
            times = times.project(&columns_of(columns));
        }
        let sources = BTreeSet::from([self.sources.len()]);
        if let Some(bad) = &source.bad_to {
            let from = PlanBranch { task, steps: RowSteps::default(), copies };
            self.sink("bad records, sink", &bad.sink, &[from], &bad.schema, BAD);
            self.bad_sinks.push(SinkTask { sink: bad.sink.clone(), sources: sources.clone() });
        }
        self.sources.push(SourceTask { task, task_name: name, source, waited: false });
        Ok(RowFlow { from: vec![PlanBranch { task, steps, copies }], schema: projected, times, sources })
    }

    pub(super) fn source_task(&self, task: TaskSpec, source: &StreamSource) -> TaskSpec {
        let task = task.output(ROWS, Arc::clone(&source.schema)).copies(self.copies_of(source));
        let task = if source.moves_splits { task.movable_splits() } else { task };
        match &source.bad_to {
            Some(bad) => task.output(BAD, Arc::clone(&bad.schema)),
            None => task,
        }
    }

    fn copies_of(&self, source: &StreamSource) -> u32 {
        if source.copies_max == 0 { self.copies } else { self.copies.min(source.copies_max) }
    }

    /// A table within a streaming query: a source that ends.
    pub(super) fn table(&mut self, plan: &Arc<dyn ExecutionPlan>) -> Result<RowFlow> {
        let rows = in_memory(plan)?;
        let source = table_stream("table", plan.schema(), &rows, None, SLICE_ROWS, 0.0);
        let rows = self.source(&StreamExec { source, projection: None }, plan.schema())?;
        // It ends soon, so no step waits for it.
        Ok(RowFlow { sources: BTreeSet::new(), ..rows })
    }
}
