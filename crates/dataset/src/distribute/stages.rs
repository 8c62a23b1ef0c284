//! Cuts a physical plan into stages: where rows change partitions, or where many partitions become one.
//!
//! | in the plan                                   | becomes                                               |
//! |-----------------------------------------------|-------------------------------------------------------|
//! | a repartitioning by hash, or round-robin      | a partition exchange between two stages               |
//! | a merge of partitions, sorted or not          | a gather to one copy, which merges                    |
//! | a total sort, at the top                      | ranges, sorted by all copies                          |
//! | the build side of a join that all others need | a broadcast                                           |
//! | anything else                                 | a part of a stage, run by every copy on its partition |
//!
//! Plans are trees, so the graph of stages is one, too, and cannot deadlock.

use std::fmt::Write;
use std::ops::Range;
use std::sync::Arc;

use arrow::datatypes::Schema;
use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::datasource::sink::DataSinkExec;
use datafusion::error::DataFusionError;
use datafusion::physical_expr::expressions::Column;
use datafusion::physical_expr::{PhysicalExpr, PhysicalSortExpr};
use datafusion::physical_plan::coalesce_partitions::CoalescePartitionsExec;
use datafusion::physical_plan::joins::{HashJoinExec, PartitionMode};
use datafusion::physical_plan::repartition::RepartitionExec;
use datafusion::physical_plan::sorts::sort::SortExec;
use datafusion::physical_plan::sorts::sort_preserving_merge::SortPreservingMergeExec;
use datafusion::physical_plan::{
    ExecutionPlan, ExecutionPlanProperties, Partitioning, PlanProperties, displayable, replace_children_if_necessary,
};

use tidemill_dataflow::exchange::{Exchange, Sort, SortKey};

use super::arrival::ExchangeInput;
use crate::distribute::distributed_table::PartsExec;
use crate::error::{DataSetError, Result};
use crate::exec::join_exec::JoinExec;
use crate::exec::progress::ReadProgress;
use crate::exec::spread::SpreadExec;
use crate::files::per_host_files::OwnExec;
use crate::plan::numbers::beneath;

/// Operators whose copies share nothing except their inputs.
const APART: [&str; 34] = [
    "AggregateExec",
    "BoundedWindowAggExec",
    "BufferExec",
    "CoalesceBatchesExec",
    "CoalescePartitionsExec",
    "CooperativeExec",
    "DataSourceExec",
    "EmptyExec",
    "FilterExec",
    "GlobalLimitExec",
    "GroupExec",
    "HashJoinExec",
    "InterleaveExec",
    "JoinExec",
    "LazyMemoryExec",
    "LocalLimitExec",
    "MapExec",
    "MergeExec",
    "OwnExec",
    "PartialSortExec",
    "PartsExec",
    "PlaceholderRowExec",
    "ProjectionExec",
    "RunningExec",
    "SliceExec",
    "SortExec",
    "SortMergeJoinExec",
    "SortPreservingMergeExec",
    "SorterExec",
    "SplitExec",
    "StreamingTableExec",
    "UnnestExec",
    "WindowAggExec",
    "WindowExec",
];

/// How rows cross a cut.
#[derive(Clone)]
pub(super) enum RowExchange {
    /// To the copy that owns their hash.
    Hash(Vec<Arc<dyn PhysicalExpr>>),
    /// Batches go to copies round-robin.
    Turn,
    /// To one copy, keeping the order of each source's rows.
    Gather,
    /// To all copies.
    Broadcast,
    /// Sorted: to the copy of their range, with ranges in the order of the copies.
    Sort(Vec<SortKey>),
}

/// An edge between two stages.
pub(super) struct StageEdge {
    pub source: usize,
    pub target: usize,
    /// The target's copies that receive rows.
    pub copies: Range<usize>,
    pub way: RowExchange,
    pub arrival: Arc<ExchangeInput>,
}

/// The plan that every copy runs on its partition.
pub(super) struct QueryStage {
    pub plan: Arc<dyn ExecutionPlan>,
    pub copies: usize,
    pub kind: StageRole,
}

/// How a copy runs the stage's plan.
#[derive(Clone)]
pub(super) enum StageRole {
    /// It runs the partition with its number.
    Partition,
    /// The only copy runs all partitions.
    Whole,
    /// It writes the partition with its number to its sink, and returns the number of rows. There is one sink for all
    /// copies, or one for each.
    Write(Vec<Arc<DataSinkExec>>),
}

/// A plan divided into stages. The first stage produces the result.
pub(super) struct StagedPlan {
    pub stages: Vec<QueryStage>,
    pub cuts: Vec<StageEdge>,
    /// Why the plan runs on a single worker, if it does.
    pub undivided: Option<String>,
}

impl StagedPlan {
    /// Whether the sorted result is spread over several copies.
    pub(super) fn is_spread(&self) -> bool {
        self.cuts.iter().any(|cut| cut.target == 0 && matches!(cut.way, RowExchange::Sort(_)))
    }
}

impl StagedPlan {
    /// The stages with a counter above each scan.
    pub(super) fn counted(mut self, reading: &ReadProgress) -> Result<Self> {
        for stage in &mut self.stages {
            stage.plan = reading.counted(Arc::clone(&stage.plan))?;
        }
        Ok(self)
    }

    /// Cuts a plan, or keeps it whole if it contains unknown operators.
    pub(super) fn of(plan: &Arc<dyn ExecutionPlan>) -> Result<Self> {
        let mut stages = StagedPlan { stages: Vec::new(), cuts: Vec::new(), undivided: None };
        match stages.result(plan) {
            Ok(()) => Ok(stages),
            Err(DataSetError::Unsupported(reason)) => StagedPlan::undivided(plan, reason),
            Err(error) => Err(error),
        }
    }

    /// The whole plan as one stage, except for tables whose parts are on the workers: their rows are sent to it.
    fn undivided(plan: &Arc<dyn ExecutionPlan>, reason: String) -> Result<Self> {
        let whole = QueryStage { plan: Arc::clone(plan), copies: 1, kind: StageRole::Whole };
        let mut stages = StagedPlan { stages: vec![whole], cuts: Vec::new(), undivided: Some(reason) };
        let gathered = Arc::clone(plan).transform_up(|node| {
            if !lies_on_workers(&node) {
                return Ok(Transformed::no(node));
            }
            let arrival = stages.cut(&node, 0, 0..1, RowExchange::Gather, node.properties());
            Ok(Transformed::yes(arrival.map_err(DataFusionError::from)?))
        });
        stages.stages[0].plan = gathered?.data;
        Ok(stages)
    }

    /// The stage of the result. A total sort becomes ranges that all of its copies sort, instead of a merge by one
    /// copy.
    fn result(&mut self, plan: &Arc<dyn ExecutionPlan>) -> Result<()> {
        self.stages.push(QueryStage { plan: Arc::clone(plan), copies: 0, kind: StageRole::Partition });
        let spread = match self.spread(plan)? {
            Some(spread) => spread,
            None => self.rewrite(plan, 0, 0..plan.output_partitioning().partition_count())?,
        };
        self.stages[0].copies = spread.output_partitioning().partition_count();
        self.stages[0].plan = spread;
        Ok(())
    }

    /// The plan above a sort in ranges, if it is one above a merge of sorted partitions.
    fn spread(&mut self, plan: &Arc<dyn ExecutionPlan>) -> Result<Option<Arc<dyn ExecutionPlan>>> {
        if matches!(plan.name(), "ProjectionExec" | "CooperativeExec") {
            let Some(input) = self.spread(plan.children()[0])? else { return Ok(None) };
            return Ok(Some(replace_children_if_necessary(Arc::clone(plan), vec![input])?));
        }
        let merge = plan.downcast_ref::<SortPreservingMergeExec>().filter(|merge| merge.fetch().is_none());
        let Some(sort) = merge.and_then(|merge| merge.input().downcast_ref::<SortExec>()) else { return Ok(None) };
        let partitions = sort.properties().output_partitioning().partition_count();
        let keys = sort.expr().iter().map(|by| sort_key(by, &sort.schema())).collect::<Option<Vec<_>>>();
        match keys {
            Some(keys) if sort.fetch().is_none() => {
                Ok(Some(self.cut(sort.input(), 0, 0..partitions, RowExchange::Sort(keys), sort.properties())?))
            }
            _ => Ok(None),
        }
    }

    fn stage(&mut self, plan: &Arc<dyn ExecutionPlan>) -> Result<usize> {
        let copies = plan.output_partitioning().partition_count();
        let id = self.stages.len();
        self.stages.push(QueryStage { plan: Arc::clone(plan), copies, kind: StageRole::Partition });
        self.stages[id].plan = self.rewrite(plan, id, 0..copies)?;
        Ok(id)
    }

    /// The part of `plan` that stays in `stage`, which `copies` copies run.
    fn rewrite(
        &mut self,
        plan: &Arc<dyn ExecutionPlan>,
        stage: usize,
        copies: Range<usize>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let spread = plan.downcast_ref::<SpreadExec>().and_then(SpreadExec::deal);
        if let Some(repartition) = spread.or_else(|| plan.downcast_ref::<RepartitionExec>()) {
            let way = match repartition.partitioning() {
                _ if repartition.preserve_order() => return unsupported(plan, "keeps the order of rows"),
                Partitioning::Hash(keys, _) => RowExchange::Hash(keys.clone()),
                Partitioning::RoundRobinBatch(_) => RowExchange::Turn,
                _ => return unsupported(plan, "is neither by hash nor in turn"),
            };
            return self.cut(repartition.input(), stage, copies, way, plan.properties());
        }
        if copies.start > 0 && lies_on_workers(plan) {
            // Parts on workers are read in place, by copies with matching numbers.
            return self.cut(plan, stage, copies, RowExchange::Turn, plan.properties());
        }
        let children = plan.children();
        let partitions = |plan: &Arc<dyn ExecutionPlan>| plan.output_partitioning().partition_count();
        let mut inside = Vec::with_capacity(children.len());
        match plan.name() {
            "CoalescePartitionsExec" | "SortPreservingMergeExec" if partitions(children[0]) > 1 => {
                inside.push(self.cut(children[0], stage, copies, RowExchange::Gather, children[0].properties())?);
            }
            "UnionExec" => {
                let mut from = copies.start;
                for child in children {
                    let to = from + partitions(child);
                    inside.push(self.rewrite(child, stage, from..to)?);
                    from = to;
                }
            }
            _ if collects_left(plan) && partitions(children[1]) > 1 => {
                let (left, properties) = (children[0], children[0].properties());
                // Rows gathered for a broadcast can be broadcast from where they are.
                let source = match left.downcast_ref::<CoalescePartitionsExec>() {
                    Some(gather) if gather.fetch().is_none() => gather.input(),
                    _ => left,
                };
                inside.push(self.cut(source, stage, copies.clone(), RowExchange::Broadcast, properties)?);
                inside.push(self.rewrite(children[1], stage, copies)?);
            }
            // Some names have a suffix, such as `SortExec(TopK)`.
            name if APART.contains(&name.split('(').next().unwrap_or(name)) || collects_left(plan) => {
                for child in children {
                    if partitions(child) != copies.len() {
                        return unsupported(plan, "changes the number of partitions");
                    }
                    inside.push(self.rewrite(child, stage, copies.clone())?);
                }
            }
            _ => return unsupported(plan, "is not known to run on several workers"),
        }
        Ok(replace_children_if_necessary(Arc::clone(plan), inside)?)
    }

    fn cut(
        &mut self,
        plan: &Arc<dyn ExecutionPlan>,
        target: usize,
        copies: Range<usize>,
        way: RowExchange,
        properties: &Arc<PlanProperties>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let source = self.stage(plan)?;
        let label = format!("Arrival: stage {source}, {}", way.describe());
        let arrival = Arc::new(ExchangeInput::new(label, properties, matches!(way, RowExchange::Broadcast)));
        self.cuts.push(StageEdge { source, target, copies, way, arrival: Arc::clone(&arrival) });
        Ok(arrival)
    }

    /// A description of the stages, the same on every worker.
    pub(super) fn describe(&self) -> String {
        let mut text = String::new();
        if let Some(reason) = &self.undivided {
            let _ = writeln!(text, "on one worker: {reason}");
        }
        for (id, stage) in self.stages.iter().enumerate() {
            let plural = if stage.copies == 1 { "copy" } else { "copies" };
            let _ = writeln!(text, "stage {id}: {} {plural}", stage.copies);
            for line in displayable(stage.plan.as_ref()).indent(false).to_string().lines() {
                let _ = writeln!(text, "  {line}");
            }
        }
        text
    }
}

impl RowExchange {
    pub(super) fn describe(&self) -> String {
        match self {
            RowExchange::Hash(keys) => {
                let keys: Vec<String> = keys.iter().map(ToString::to_string).collect();
                format!("by hash of {}", keys.join(", "))
            }
            RowExchange::Turn => "in turn".into(),
            RowExchange::Gather => "gathered".into(),
            RowExchange::Broadcast => "broadcast".into(),
            RowExchange::Sort(keys) => Sort::by(keys.clone()).describe(),
        }
    }
}

/// A column to sort by, if the exchange can name and compare it.
fn sort_key(by: &PhysicalSortExpr, schema: &Schema) -> Option<SortKey> {
    // The exchange orders floats the same way by itself.
    let column = beneath(&by.expr).downcast_ref::<Column>()?;
    let unique = schema.fields().iter().filter(|field| field.name() == column.name()).count() == 1;
    let key = match by.options.descending {
        true => SortKey::descending(column.name()),
        false => SortKey::ascending(column.name()),
    };
    let plain = unique && !schema.field(column.index()).data_type().is_nested();
    plain.then(|| key.nulls_first(by.options.nulls_first))
}

/// Whether each worker has its own rows there.
fn lies_on_workers(plan: &Arc<dyn ExecutionPlan>) -> bool {
    plan.downcast_ref::<PartsExec>().is_some() || plan.downcast_ref::<OwnExec>().is_some()
}

/// Whether a join holds all of its left side in memory, once for all partitions of its right side.
pub(super) fn collects_left(plan: &Arc<dyn ExecutionPlan>) -> bool {
    match (plan.downcast_ref::<HashJoinExec>(), plan.downcast_ref::<JoinExec>()) {
        (Some(join), _) => *join.partition_mode() == PartitionMode::CollectLeft,
        (_, Some(join)) => join.collects_left(),
        _ => matches!(plan.name(), "CrossJoinExec" | "NestedLoopJoinExec"),
    }
}

fn unsupported<T>(plan: &Arc<dyn ExecutionPlan>, reason: &str) -> Result<T> {
    Err(DataSetError::Unsupported(format!("{} {reason}", plan.name())))
}
