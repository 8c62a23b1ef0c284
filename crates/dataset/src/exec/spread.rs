//! Redistributes rows: where `repartition` requests it, and where a table with few partitions is the input of a user
//! function.
//!
//! The planner adds and removes DataFusion's `RepartitionExec` as it sees fit. A [`SpreadExec`] stays in place: the
//! planner treats it like any other step. [`SpreadRows`] inserts it before the other rules run, and [`SettleSpreads`]
//! removes it where it turns out to have nothing to do.

use std::fmt;
use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::compute::concat_batches;
use datafusion::common::Statistics;
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode, TreeNodeRecursion};
use datafusion::error::{DataFusionError, Result};
use datafusion::execution::TaskContext;
use datafusion::physical_expr::{EquivalenceProperties, PhysicalExpr};
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_plan::execution_plan::{Boundedness, EmissionType, ReplaceChildrenOptions};
use datafusion::physical_plan::metrics::MetricsSet;
use datafusion::physical_plan::repartition::RepartitionExec;
use datafusion::physical_plan::statistics::{ChildStats, StatisticsArgs};
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::{
    DisplayAs, DisplayFormatType, ExecutionPlan, ExecutionPlanProperties, Partitioning, PlanProperties,
    SendableRecordBatchStream, replace_children_if_necessary,
};
use futures::stream::Fuse;
use futures::{StreamExt, TryStreamExt, stream};

use tidemill_dataflow::flow::batch_bytes;

use crate::exec::step::SLICE_ROWS;
use crate::exec::step::{one_input, with_new_children};
use crate::exec::stream_step::has_stream;
use crate::exec::user_function::MapExec;

/// Leading rows per partition that are distributed as one contiguous share each: a table up to this size keeps its
/// order across the partitions.
const FIRST_ROWS: usize = SLICE_ROWS;
/// The leading rows are held until they are complete, unless they are large.
const FIRST_BYTES: usize = 32 << 20;
/// After this many batches per partition, it does not matter if some partitions get a few rows more, and slices have at
/// least this length.
const EVEN_BATCHES: usize = 8;
const SLICE_ROWS_MIN: usize = 1024;

/// How rows are distributed.
#[derive(Clone, Debug)]
pub(crate) enum SpreadMethod {
    /// By hash of the keys into this number of partitions.
    ByHash(Vec<Arc<dyn PhysicalExpr>>, usize),
    /// Evenly into this number of partitions.
    Evenly(usize),
    /// Evenly into this number of partitions, if there are fewer.
    AtLeast(usize),
}

/// Distributes rows.
pub(crate) struct SpreadExec {
    input: Arc<dyn ExecutionPlan>,
    spread: SpreadMethod,
    /// The step that does it; `None` if there is nothing to do.
    deal: Option<Arc<RepartitionExec>>,
    properties: Arc<PlanProperties>,
}

impl SpreadExec {
    /// For a repartitioning that the program requested; `None` for any other step. Streams have their own partitions.
    fn try_replace(node: &Arc<dyn ExecutionPlan>) -> Option<Result<Self>> {
        let asked = node.downcast_ref::<RepartitionExec>()?;
        let spread = match asked.partitioning() {
            Partitioning::Hash(keys, partitions) => SpreadMethod::ByHash(keys.clone(), *partitions),
            other => SpreadMethod::Evenly(other.partition_count()),
        };
        (!has_stream(node)).then(|| SpreadExec::new(Arc::clone(asked.input()), spread))
    }

    pub(crate) fn new(input: Arc<dyn ExecutionPlan>, spread: SpreadMethod) -> Result<Self> {
        let there = input.output_partitioning().partition_count();
        let partitioning = match &spread {
            SpreadMethod::ByHash(keys, partitions) => Partitioning::Hash(keys.clone(), *partitions),
            SpreadMethod::AtLeast(partitions) if *partitions <= there => {
                let properties = Arc::clone(input.properties());
                return Ok(SpreadExec { input, spread, deal: None, properties });
            }
            SpreadMethod::Evenly(partitions) | SpreadMethod::AtLeast(partitions) => {
                Partitioning::RoundRobinBatch(*partitions)
            }
        };
        let dealt: Arc<dyn ExecutionPlan> = match &partitioning {
            Partitioning::RoundRobinBatch(partitions) => {
                Arc::new(SliceExec { input: Arc::clone(&input), into: *partitions })
            }
            _ => Arc::clone(&input),
        };
        let deal = RepartitionExec::try_new(dealt, partitioning)?;
        let properties = PlanProperties::new(
            EquivalenceProperties::new(input.schema()),
            deal.partitioning().clone(),
            EmissionType::Incremental,
            Boundedness::Bounded,
        );
        Ok(SpreadExec { input, spread, deal: Some(Arc::new(deal)), properties: Arc::new(properties) })
    }

    /// The step that distributes the rows; `None` if there is nothing to do.
    pub(crate) fn deal(&self) -> Option<&RepartitionExec> {
        self.deal.as_deref()
    }
}

impl fmt::Debug for SpreadExec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SpreadExec").field("spread", &self.spread).finish_non_exhaustive()
    }
}

impl DisplayAs for SpreadExec {
    fn fmt_as(&self, _: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.spread {
            SpreadMethod::ByHash(keys, partitions) => {
                let keys = keys.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
                write!(f, "SpreadExec: by hash of {keys} into {partitions} partitions")
            }
            SpreadMethod::Evenly(partitions) | SpreadMethod::AtLeast(partitions) => {
                write!(f, "SpreadExec: evenly into {partitions} partitions")
            }
        }
    }
}

impl ExecutionPlan for SpreadExec {
    fn name(&self) -> &'static str {
        "SpreadExec"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        &self.properties
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        vec![&self.input]
    }

    /// It distributes rows itself.
    fn benefits_from_input_partitioning(&self) -> Vec<bool> {
        vec![false]
    }

    fn apply_expressions(
        &self,
        see: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        if let SpreadMethod::ByHash(keys, _) = &self.spread {
            for key in keys {
                if see(key)? == TreeNodeRecursion::Stop {
                    return Ok(TreeNodeRecursion::Stop);
                }
            }
        }
        Ok(TreeNodeRecursion::Continue)
    }

    fn replace_children(
        self: Arc<Self>,
        mut children: Vec<Arc<dyn ExecutionPlan>>,
        _: ReplaceChildrenOptions,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let input = children.pop().ok_or_else(|| DataFusionError::Internal("a spread has one input".into()))?;
        Ok(Arc::new(SpreadExec::new(input, self.spread.clone())?))
    }

    with_new_children!(Recompute);

    fn child_stats_requests(&self, partition: Option<usize>) -> Vec<ChildStats> {
        vec![if partition.is_some() { ChildStats::Skip } else { ChildStats::At(None) }]
    }

    fn statistics_from_inputs(&self, inputs: &[Arc<Statistics>], args: &StatisticsArgs) -> Result<Arc<Statistics>> {
        match (args.partition(), inputs) {
            (None, [input]) => Ok(Arc::clone(input)),
            _ => Ok(Arc::new(Statistics::new_unknown(&self.schema()))),
        }
    }

    fn execute(&self, partition: usize, context: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        match &self.deal {
            Some(deal) => deal.execute(partition, context),
            None => self.input.execute(partition, context),
        }
    }

    fn metrics(&self) -> Option<MetricsSet> {
        self.deal.as_ref().and_then(|deal| deal.metrics())
    }
}

/// Splits batches so that a slice of each goes to every partition when they are distributed round-robin. The leading
/// rows are combined into one batch before that, so that the partitions of a small table are in table order.
pub(crate) struct SliceExec {
    input: Arc<dyn ExecutionPlan>,
    into: usize,
}

impl fmt::Debug for SliceExec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SliceExec").field("into", &self.into).finish_non_exhaustive()
    }
}

impl DisplayAs for SliceExec {
    fn fmt_as(&self, _: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SliceExec: into {}", self.into)
    }
}

impl ExecutionPlan for SliceExec {
    fn name(&self) -> &'static str {
        "SliceExec"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        self.input.properties()
    }

    one_input!(self, input => Ok(Arc::new(SliceExec { input, into: self.into })));

    fn execute(&self, partition: usize, context: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        let input = self.input.execute(partition, context)?.fuse();
        let slicing = PartitionSlicer { input, into: self.into, rows: 0 };
        let slices = stream::try_unfold(slicing, |mut slicing| async move {
            Ok::<_, DataFusionError>(slicing.next().await?.map(|slices| (slices, slicing)))
        });
        let slices = slices.map_ok(|slices| stream::iter(slices.into_iter().map(Ok))).try_flatten();
        Ok(Box::pin(RecordBatchStreamAdapter::new(self.schema(), slices)))
    }
}

/// One partition that is being split.
struct PartitionSlicer {
    input: Fuse<SendableRecordBatchStream>,
    into: usize,
    /// Number of rows split so far.
    rows: usize,
}

impl PartitionSlicer {
    async fn next(&mut self) -> Result<Option<Vec<RecordBatch>>> {
        let batch = if self.rows == 0 { self.first().await? } else { self.input.next().await.transpose()? };
        Ok(batch.map(|batch| self.cut(&batch)))
    }

    /// The leading rows as one batch.
    async fn first(&mut self) -> Result<Option<RecordBatch>> {
        let (mut batches, mut rows, mut bytes) = (Vec::new(), 0, 0);
        while rows < FIRST_ROWS * self.into && bytes < FIRST_BYTES {
            let Some(batch) = self.input.next().await.transpose()? else { break };
            (rows, bytes) = (rows + batch.num_rows(), bytes + batch_bytes(&batch) as usize);
            batches.push(batch);
        }
        match &batches[..] {
            [] => Ok(None),
            [batch] => Ok(Some(batch.clone())),
            [batch, ..] => Ok(Some(concat_batches(&batch.schema(), &batches)?)),
        }
    }

    fn cut(&mut self, batch: &RecordBatch) -> Vec<RecordBatch> {
        let rows = batch.num_rows();
        let is_even = self.rows > EVEN_BATCHES * SLICE_ROWS * self.into;
        let slices = if is_even { self.into.min((rows / SLICE_ROWS_MIN).max(1)) } else { self.into };
        self.rows += rows;
        let ends = (1..=slices).map(|slice| rows * slice / slices);
        let mut from = 0;
        let slice = |end: usize| {
            let slice = batch.slice(from, end - from);
            from = end;
            slice
        };
        ends.map(slice).filter(|slice| slice.num_rows() > 0).collect()
    }
}

/// The rule that inserts spreads into the planner's plan: for every repartitioning that the program requested, and
/// below user functions, which may be slow, if there are fewer partitions than threads. Ordered rows are left alone.
#[derive(Debug)]
pub(crate) struct SpreadRows;

impl SpreadRows {
    pub(crate) const NAME: &str = "spread_rows";
}

impl PhysicalOptimizerRule for SpreadRows {
    fn optimize(&self, plan: Arc<dyn ExecutionPlan>, config: &ConfigOptions) -> Result<Arc<dyn ExecutionPlan>> {
        plan.transform_up(|node| {
            if let Some(spread) = SpreadExec::try_replace(&node) {
                return Ok(Transformed::yes(Arc::new(spread?) as _));
            }
            let Some(input) = node.downcast_ref::<MapExec>().map(|map| Arc::clone(map.children()[0])) else {
                return Ok(Transformed::no(node));
            };
            let spread = at_least(&input, config)?;
            spread.map_or_else(
                || Ok(Transformed::no(Arc::clone(&node))),
                |spread| Ok(Transformed::yes(replace_children_if_necessary(Arc::clone(&node), vec![spread])?)),
            )
        })
        .data()
    }

    fn name(&self) -> &str {
        Self::NAME
    }

    fn schema_check(&self) -> bool {
        true
    }
}

/// The rule that spreads the result over all partitions, for callers that want a share of it on every worker.
#[derive(Debug)]
pub(crate) struct SpreadResult;

impl PhysicalOptimizerRule for SpreadResult {
    fn optimize(&self, plan: Arc<dyn ExecutionPlan>, config: &ConfigOptions) -> Result<Arc<dyn ExecutionPlan>> {
        Ok(at_least(&plan, config)?.unwrap_or(plan))
    }

    fn name(&self) -> &str {
        "spread_result"
    }

    fn schema_check(&self) -> bool {
        true
    }
}

/// The rows in as many partitions as there are threads. `None` if they must stay in place: they are ordered, the
/// program has placed them, or they are endless.
fn at_least(plan: &Arc<dyn ExecutionPlan>, config: &ConfigOptions) -> Result<Option<Arc<dyn ExecutionPlan>>> {
    let stays = !config.optimizer.enable_round_robin_repartition
        || plan.output_ordering().is_some()
        || is_spread(plan)
        || has_stream(plan);
    if stays {
        return Ok(None);
    }
    let spread = SpreadExec::new(Arc::clone(plan), SpreadMethod::AtLeast(config.execution.target_partitions))?;
    Ok(Some(Arc::new(spread)))
}

/// Whether rows are in the partitions that the program requested.
fn is_spread(plan: &Arc<dyn ExecutionPlan>) -> bool {
    /// Steps that leave rows in their partitions.
    const IN_PLACE: [&str; 7] = [
        "CoalesceBatchesExec",
        "CooperativeExec",
        "FilterExec",
        "MapExec",
        "ProjectionExec",
        "SplitExec",
        "UnnestExec",
    ];
    match plan.downcast_ref::<SpreadExec>() {
        Some(SpreadExec { spread: SpreadMethod::AtLeast(_), input, .. }) => is_spread(input),
        Some(_) => true,
        None => IN_PLACE.contains(&plan.name()) && is_spread(plan.children()[0]),
    }
}

/// The rule that, at the end, removes spreads without work, and redundant repartitionings of the planner after one that
/// the program requested.
#[derive(Debug)]
pub(crate) struct SettleSpreads;

impl PhysicalOptimizerRule for SettleSpreads {
    fn optimize(&self, plan: Arc<dyn ExecutionPlan>, _: &ConfigOptions) -> Result<Arc<dyn ExecutionPlan>> {
        plan.transform_up(|node| {
            if let Some(spread) = node.downcast_ref::<SpreadExec>().filter(|spread| spread.deal.is_none()) {
                return Ok(Transformed::yes(Arc::clone(&spread.input)));
            }
            match node.downcast_ref::<RepartitionExec>() {
                Some(again)
                    if matches!(again.partitioning(), Partitioning::RoundRobinBatch(_)) && is_spread(again.input()) =>
                {
                    Ok(Transformed::yes(Arc::clone(again.input())))
                }
                _ => Ok(Transformed::no(node)),
            }
        })
        .data()
    }

    fn name(&self) -> &str {
        "settle_spreads"
    }

    fn schema_check(&self) -> bool {
        true
    }
}
