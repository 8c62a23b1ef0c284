//! The first half of a group-by with a single integer, date or time key: the partial aggregates of a partition's rows
//! for each key.
//!
//! Its groups are in a table of [`NumberKeys`]. DataFusion does everything else: the accumulators, the second half, and
//! groups by other keys.

use std::collections::VecDeque;
use std::sync::Arc;

use arrow::array::{ArrayRef, AsArray, BooleanArray, RecordBatch};
use arrow::datatypes::SchemaRef;
use datafusion::error::{DataFusionError, Result};
use datafusion::execution::TaskContext;
use datafusion::execution::memory_pool::{MemoryConsumer, MemoryReservation};
use datafusion::logical_expr::{EmitTo, GroupsAccumulator};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_plan::aggregates::{AggregateExec, AggregateMode, aggregate_expressions};
use datafusion::physical_plan::metrics::{BaselineMetrics, ExecutionPlanMetricsSet};
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::{ExecutionPlan, InputOrderMode, SendableRecordBatchStream};
use futures::{StreamExt, stream};

use crate::exec::number_keys::{NumberKeys, is_number};
use crate::exec::replaced_exec::{ReplacedExec, StepReplacement};

/// Replaces an [`AggregateExec`].
type GroupExec = ReplacedExec<ByNumber>;

/// If the input is ordered by its keys, DataFusion is faster.
#[derive(Clone)]
pub(crate) struct ByNumber;

impl StepReplacement for ByNumber {
    type Step = AggregateExec;
    const NAME: &'static str = "GroupExec";

    fn fits(&self, aggregate: &AggregateExec) -> bool {
        let [(key, _)] = aggregate.group_expr().expr() else { return false };
        *aggregate.mode() == AggregateMode::Partial
            && *aggregate.input_order_mode() == InputOrderMode::Linear
            && aggregate.group_expr().is_single()
            && aggregate.limit_options().is_none()
            && aggregate.aggr_expr().iter().all(|each| each.groups_accumulator_supported())
            && key.data_type(&aggregate.input().schema()).is_ok_and(|key| is_number(&key))
    }

    fn execute(
        &self,
        aggregate: &AggregateExec,
        partition: usize,
        context: Arc<TaskContext>,
        metrics: &ExecutionPlanMetricsSet,
    ) -> Result<SendableRecordBatchStream> {
        let input = aggregate.input().execute(partition, Arc::clone(&context))?;
        let metrics = BaselineMetrics::new(metrics, partition);
        let memory = MemoryConsumer::new(format!("group-by[{partition}]")).with_can_spill(true);
        let grouping = GroupBatches::new(aggregate, &context, memory.register(context.memory_pool()), metrics)?;
        let batches = stream::try_unfold((grouping, input), |(mut grouping, mut input)| async move {
            loop {
                if let Some(batch) = grouping.ready.pop_front() {
                    return Ok(Some((batch, (grouping, input))));
                }
                if grouping.is_over {
                    return Ok(None);
                }
                match input.next().await {
                    Some(batch) => grouping.take(&batch?)?,
                    None => {
                        grouping.emit()?;
                        grouping.is_over = true;
                    }
                }
            }
        });
        Ok(Box::pin(RecordBatchStreamAdapter::new(aggregate.schema(), batches)))
    }
}

/// The aggregation that a step performs, if its groups are by numbers.
pub fn grouped_by_numbers(plan: &dyn ExecutionPlan) -> Option<&AggregateExec> {
    plan.downcast_ref::<GroupExec>().map(GroupExec::step)
}

/// A million random keys look unique for the first few hundred thousand rows, and looking them up costs little.
const PROBE_ROWS_MIN: usize = 1 << 20;

/// The progress of one partition.
struct GroupBatches {
    schema: SchemaRef,
    key: Arc<dyn PhysicalExpr>,
    functions: Vec<GroupFunction>,
    groups: NumberKeys,
    /// The group of each row of a batch; kept to reuse its memory.
    indices: Vec<usize>,
    rows: usize,
    /// If nearly every row has its own key, rows are passed on unchanged: the number of rows after which this is
    /// decided, and the required ratio of groups to rows.
    probe: (usize, f64),
    skips: bool,
    batch_rows: usize,
    memory: MemoryReservation,
    metrics: BaselineMetrics,
    ready: VecDeque<RecordBatch>,
    is_over: bool,
}

/// An aggregate function.
struct GroupFunction {
    arguments: Vec<Arc<dyn PhysicalExpr>>,
    filter: Option<Arc<dyn PhysicalExpr>>,
    accumulator: Box<dyn GroupsAccumulator>,
}

impl GroupFunction {
    fn values(&self, batch: &RecordBatch) -> Result<(Vec<ArrayRef>, Option<BooleanArray>)> {
        let evaluate = |expr: &Arc<dyn PhysicalExpr>| expr.evaluate(batch)?.into_array(batch.num_rows());
        let arguments = self.arguments.iter().map(evaluate).collect::<Result<_>>()?;
        let filter =
            self.filter.as_ref().map(|filter| Ok::<_, DataFusionError>(evaluate(filter)?.as_boolean().clone()));
        Ok((arguments, filter.transpose()?))
    }
}

impl GroupBatches {
    fn new(
        aggregate: &AggregateExec,
        context: &TaskContext,
        memory: MemoryReservation,
        metrics: BaselineMetrics,
    ) -> Result<Self> {
        let arguments = aggregate_expressions(aggregate.aggr_expr(), aggregate.mode(), 1)?;
        let functions = aggregate.aggr_expr().iter().zip(arguments).zip(aggregate.filter_expr());
        let function = |((function, arguments), filter): ((&Arc<_>, _), &Option<_>)| {
            let function: &Arc<datafusion::physical_expr::aggregate::AggregateFunctionExpr> = function;
            Ok(GroupFunction { arguments, filter: filter.clone(), accumulator: function.create_groups_accumulator()? })
        };
        let options = &context.session_config().options().execution;
        Ok(GroupBatches {
            schema: aggregate.schema(),
            key: Arc::clone(&aggregate.group_expr().expr()[0].0),
            functions: functions.map(function).collect::<Result<_>>()?,
            groups: NumberKeys::default(),
            indices: Vec::new(),
            rows: 0,
            probe: (
                options.skip_partial_aggregation_probe_rows_threshold.max(PROBE_ROWS_MIN),
                options.skip_partial_aggregation_probe_ratio_threshold,
            ),
            skips: false,
            batch_rows: context.session_config().batch_size(),
            memory,
            metrics,
            ready: VecDeque::new(),
            is_over: false,
        })
    }

    fn take(&mut self, batch: &RecordBatch) -> Result<()> {
        let busy = self.metrics.elapsed_compute().clone();
        let _timed = busy.timer();
        let keys = self.key.evaluate(batch)?.into_array(batch.num_rows())?;
        let values = self.functions.iter().map(|each| each.values(batch)).collect::<Result<Vec<_>>>()?;
        if self.skips {
            let mut columns = vec![keys];
            for (function, (arguments, filter)) in self.functions.iter().zip(&values) {
                columns.extend(function.accumulator.convert_to_state(arguments, filter.as_ref())?);
            }
            self.give(columns)?;
            return Ok(());
        }
        self.groups.assign(&keys, &mut self.indices);
        for (function, (arguments, filter)) in self.functions.iter_mut().zip(&values) {
            let count = self.groups.count();
            function.accumulator.update_batch(arguments, &self.indices, filter.as_ref(), count)?;
        }
        let before = self.rows;
        self.rows += batch.num_rows();
        let (probe_rows, ratio) = self.probe;
        if before < probe_rows && self.rows >= probe_rows && self.groups.count() as f64 > ratio * self.rows as f64 {
            self.skips = true;
            return self.emit();
        }
        let bytes = self.groups.bytes() + self.functions.iter().map(|each| each.accumulator.size()).sum::<usize>();
        match self.memory.try_resize(bytes) {
            // The existing groups go to the second half, which can spill.
            Err(DataFusionError::ResourcesExhausted(_)) if self.groups.count() > 0 => self.emit(),
            resized => resized,
        }
    }

    /// Outputs the states of all groups, and starts over.
    fn emit(&mut self) -> Result<()> {
        let mut bytes = 0;
        if self.groups.count() > 0 {
            let mut columns = vec![self.groups.take(self.schema.field(0).data_type())];
            for function in &mut self.functions {
                columns.extend(function.accumulator.state(EmitTo::All)?);
            }
            bytes = self.give(columns)?;
        }
        // They stay in memory until the last of them is passed on.
        self.memory.resize(bytes);
        Ok(())
    }

    /// Returns the size of the rows to pass on.
    fn give(&mut self, columns: Vec<ArrayRef>) -> Result<usize> {
        let rows = RecordBatch::try_new(Arc::clone(&self.schema), columns)?;
        self.metrics.record_output(rows.num_rows());
        let starts = (0..rows.num_rows()).step_by(self.batch_rows);
        self.ready.extend(starts.map(|at| rows.slice(at, self.batch_rows.min(rows.num_rows() - at))));
        Ok(rows.get_array_memory_size())
    }
}
