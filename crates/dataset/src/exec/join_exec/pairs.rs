//! The join of one partition. If its build side does not fit, it joins pairs of partitions on disk (a Grace hash join;
//! Kitsuregawa, Tanaka and Moto-oka, 1983).
//!
//! Rows whose keys are equal, or both null, are in the same pair, so each pair is a separate join of the same kind. A
//! pair whose build side still does not fit is partitioned again. That does not help if most rows have the same key:
//! the build side is then joined in pieces, each with all of the other side. No piece contains all matches of the other
//! side's rows, so the side that is divided must be the one whose rows the join outputs by themselves. A full join
//! divides first one side, then the other.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use arrow::array::{ArrayRef, BooleanArray, RecordBatch, RecordBatchOptions, new_null_array};
use arrow::compute::{filter_record_batch, is_not_null};
use datafusion::common::{JoinSide, JoinType};
use datafusion::error::{DataFusionError, Result};
use datafusion::execution::TaskContext;
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_plan::empty::EmptyExec;
use datafusion::physical_plan::limit::LimitStream;
use datafusion::physical_plan::metrics::{BaselineMetrics, Count, ExecutionPlanMetricsSet};
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::{
    EmptyRecordBatchStream, ExecutionPlan, ExecutionPlanProperties, SendableRecordBatchStream,
};
use futures::future::{BoxFuture, Shared};
use futures::stream::BoxStream;
use futures::{FutureExt, Stream, StreamExt, TryStreamExt, stream};
use tidemill_dataflow::TaskError;
use tidemill_dataflow::keys::KeyHasher;
use tidemill_dataflow::memory::{Governor, HashKeys, SpillFile, SpillPartitions};

use super::build::{BuildMemory, BuildRows};
use super::order::in_order;
use super::planned::PlannedJoin;
use super::slot::{Promise, ReplayExec};
use crate::error::DataSetError;
use crate::exec::spill::rows_of;
use crate::exec::step::as_planned;

/// If at least this percentage of rows falls into a single partition, they share a key that partitioning cannot split.
const HEAVY_PERCENT: u64 = 90;

/// DataFusion's join of the whole partition, waiting for its inputs.
pub(super) struct WholeJoin {
    pub(super) probe: Promise,
    pub(super) rows: SendableRecordBatchStream,
}

/// A build side, of one partition or of all.
pub(super) struct BuildSide {
    pub(super) built: Shared<BoxFuture<'static, Result<BuildOutcome, Arc<DataFusionError>>>>,
    /// Whether some partition joins it for all of them.
    pub(super) taken: AtomicBool,
}

/// What happened to the build side.
#[derive(Clone)]
pub(super) enum BuildOutcome {
    /// It was passed to DataFusion's joins.
    InMemory(Arc<BuildMemory>),
    /// Its partitions on disk.
    OnDisk(Vec<Arc<SpillFile>>),
}

/// The input to join with the build side.
pub(super) enum ProbeSide {
    /// The other side's rows in the same partition.
    Rows(SendableRecordBatchStream),
    /// All partitions share a build side whose rows are output by themselves: once it is on disk, a single partition
    /// joins it with the rows of all.
    All(Arc<dyn ExecutionPlan>, Arc<TaskContext>),
}

/// A join of pairs, see the module.
#[derive(Clone)]
pub(super) struct PairwiseJoin {
    pub(super) join: PlannedJoin,
    /// The context with the reserved memory.
    pub(super) context: Arc<TaskContext>,
    pub(super) governor: Governor,
    pub(super) partition: usize,
    pub(super) metrics: ExecutionPlanMetricsSet,
    pub(super) spilled_bytes: Count,
    /// Whether left rows with a null key are dropped: for `NOT IN (...)`, unless that is empty.
    pub(super) drops_null_keys: bool,
}

/// Partitions of both sides with the same keys.
struct PartPair {
    left: Arc<SpillFile>,
    right: Arc<SpillFile>,
    /// The level at which it would be partitioned next.
    level: u32,
    /// Left rows of all partitions together.
    left_rows_of_all: u64,
}

impl PartPair {
    fn is_worth_parting(&self) -> bool {
        self.level < SpillPartitions::LEVELS && self.left.rows() * 100 < self.left_rows_of_all * HEAVY_PERCENT
    }
}

impl PairwiseJoin {
    /// Reads a build side; one that fits goes to the promised receiver.
    pub(super) async fn build(
        self,
        mut left: SendableRecordBatchStream,
        promise: Promise,
    ) -> Result<BuildOutcome, Arc<DataFusionError>> {
        let mut build = BuildRows::new(&self.governor);
        while let Some(batch) = left.next().await {
            if let Err(batch) = build.push(batch.map_err(Arc::new)?) {
                let collected = stream::iter(build.into_batches().into_iter().chain([batch]).map(Ok));
                let parts = self.part(JoinSide::Left, collected.chain(left), 0).await;
                return Ok(BuildOutcome::OnDisk(parts.map_err(Arc::new)?));
            }
        }
        let (rows, held) = build.hand_over(left.schema());
        // If the receiver is gone, the rows are not wanted.
        let _ = promise.send(rows);
        Ok(BuildOutcome::InMemory(held))
    }

    /// The rows of the partition.
    pub(super) async fn run(
        self,
        building: Arc<BuildSide>,
        other: ProbeSide,
        whole: WholeJoin,
    ) -> Result<SendableRecordBatchStream> {
        let left = match building.built.clone().await.map_err(DataFusionError::Shared)? {
            BuildOutcome::InMemory(held) => {
                let other = match other {
                    ProbeSide::Rows(rows) => rows,
                    ProbeSide::All(plan, context) => plan.execute(self.partition, context)?,
                };
                // The receiver exists: it belongs to the returned stream.
                let _ = whole.probe.send(held.probe(other, self.join.has_keys()));
                return Ok(held.until_read(whole.rows));
            }
            BuildOutcome::OnDisk(left) => left,
        };
        drop(whole);
        let right = match other {
            ProbeSide::Rows(rows) => rows.boxed(),
            ProbeSide::All(..) if building.taken.swap(true, Ordering::Relaxed) => return Ok(self.nothing()),
            ProbeSide::All(plan, context) => {
                let partitions = 0..plan.output_partitioning().partition_count();
                let all = partitions.map(|partition| plan.execute(partition, Arc::clone(&context)));
                stream::select_all(all.collect::<Result<Vec<_>>>()?).boxed()
            }
        };
        let (fetch, metrics) = (self.join.exec().fetch(), BaselineMetrics::new(&self.metrics, self.partition));
        let rows = self.clone().with_parts(left, right).await?;
        let rows = match self.join.exec().properties().output_ordering() {
            Some(order) => in_order(rows, order, &self.context, &self.governor, self.spilled_bytes.clone())?,
            None => rows,
        };
        Ok(Box::pin(LimitStream::new(rows, 0, fetch, metrics)))
    }

    fn nothing(&self) -> SendableRecordBatchStream {
        Box::pin(EmptyRecordBatchStream::new(self.join.exec().schema()))
    }

    /// Partitions the other side, too, and joins the pairs.
    async fn with_parts(
        mut self,
        left: Vec<Arc<SpillFile>>,
        right: impl Stream<Item = Result<RecordBatch>>,
    ) -> Result<SendableRecordBatchStream> {
        let has_null = AtomicBool::new(false);
        let key = self.join.is_null_aware().then(|| Arc::clone(&self.join.on()[0].1));
        let right = right.map(|batch| {
            let batch = batch?;
            if let Some(key) = &key {
                has_null.fetch_or(value(key, &batch)?.logical_null_count() > 0, Ordering::Relaxed);
            }
            Ok(batch)
        });
        let right = self.part(JoinSide::Right, right, 0).await?;
        if has_null.into_inner() {
            // A comparison with null is unknown, so no row is certain not to be in the list.
            return Ok(self.nothing());
        }
        self.drops_null_keys = self.join.is_null_aware() && right.iter().any(|part| part.rows() > 0);
        Ok(Arc::new(self).pairs(left, right, 1))
    }

    /// Partitions the rows of one side by the hash of their keys.
    async fn part(
        &self,
        side: JoinSide,
        rows: impl Stream<Item = Result<RecordBatch>>,
        level: u32,
    ) -> Result<Vec<Arc<SpillFile>>> {
        let on = self.join.on().iter();
        let schema = self.join.schema_of(side);
        let keys = match side {
            JoinSide::Left => on.map(|(left, _)| Arc::clone(left)).collect(),
            _ => on.map(|(_, right)| Arc::clone(right)).collect(),
        };
        let mut parts = SpillPartitions::new(&self.governor, &schema, hash(keys), level).map_err(failed)?;
        let mut rows = pin!(rows);
        while let Some(batch) = rows.next().await {
            parts.write(&as_planned(batch?, &schema)?).map_err(failed)?;
        }
        let parts = parts.finish().map_err(failed)?;
        self.spilled_bytes.add(parts.iter().map(SpillFile::bytes).sum::<u64>() as usize);
        Ok(parts.into_iter().map(Arc::new).collect())
    }

    /// Joins the pairs one after the other.
    fn pairs(
        self: Arc<Self>,
        left: Vec<Arc<SpillFile>>,
        right: Vec<Arc<SpillFile>>,
        level: u32,
    ) -> SendableRecordBatchStream {
        let left_rows_of_all = left.iter().map(|part| part.rows()).sum();
        let pairs =
            left.into_iter().zip(right).map(move |(left, right)| PartPair { left, right, level, left_rows_of_all });
        let schema = self.join.exec().schema();
        let some = pairs.filter(|pair| pair.left.rows() + pair.right.rows() > 0);
        let rows = stream::iter(some).then(move |pair| Arc::clone(&self).pair(pair)).try_flatten();
        Box::pin(RecordBatchStreamAdapter::new(schema, rows))
    }

    fn pair(self: Arc<Self>, pair: PartPair) -> BoxFuture<'static, Result<SendableRecordBatchStream>> {
        let joined = async move {
            let (mut build, mut left) = (BuildRows::new(&self.governor), self.left_rows(&pair)?);
            while let Some(batch) = left.next().await {
                if build.push(batch?).is_err() {
                    drop(build);
                    if !pair.is_worth_parting() {
                        return self.in_pieces(pair);
                    }
                    let left = self.part(JoinSide::Left, rows_of(&pair.left)?, pair.level).await?;
                    let right = self.part(JoinSide::Right, rows_of(&pair.right)?, pair.level).await?;
                    return Ok(self.pairs(left, right, pair.level + 1));
                }
            }
            self.join(build, rows_of(&pair.right)?, self.join.kind(), JoinSide::Left)
        };
        joined.boxed()
    }

    /// The left rows of a pair that may be output.
    fn left_rows(&self, pair: &PartPair) -> Result<SendableRecordBatchStream> {
        let rows = rows_of(&pair.left)?;
        if !self.drops_null_keys {
            return Ok(rows);
        }
        let (schema, key) = (rows.schema(), Arc::clone(&self.join.on()[0].0));
        let rows = rows.map(move |batch| {
            let batch = batch?;
            let known: BooleanArray = is_not_null(&value(&key, &batch)?)?;
            Ok(filter_record_batch(&batch, &known)?)
        });
        Ok(Box::pin(RecordBatchStreamAdapter::new(schema, rows)))
    }

    /// Joins a pair with a heavy key.
    fn in_pieces(self: Arc<Self>, pair: PartPair) -> Result<SendableRecordBatchStream> {
        let (schema, pair) = (self.join.exec().schema(), Arc::new(pair));
        let rows = match self.join.kind() {
            kind @ (JoinType::Right | JoinType::RightSemi | JoinType::RightAnti | JoinType::RightMark) => {
                self.pieces(pair, kind, JoinSide::Right)?
            }
            JoinType::Full => {
                let with_left = Arc::clone(&self).pieces(Arc::clone(&pair), JoinType::Left, JoinSide::Left)?;
                let alone = Arc::clone(&self).pieces(pair, JoinType::RightAnti, JoinSide::Right)?;
                with_left.chain(alone.map(move |batch| self.beside_nulls(&batch?))).boxed()
            }
            kind => self.pieces(pair, kind, JoinSide::Left)?,
        };
        let (planned, schema) = (Arc::clone(&schema), schema);
        let rows = rows.map(move |batch| as_planned(batch?, &planned));
        Ok(Box::pin(RecordBatchStreamAdapter::new(schema, rows)))
    }

    /// Joins pieces of one side of a pair, as large as memory allows, with all of the other side.
    fn pieces(
        self: Arc<Self>,
        pair: Arc<PartPair>,
        kind: JoinType,
        cut: JoinSide,
    ) -> Result<BoxStream<'static, Result<RecordBatch>>> {
        let side = move |of: &Self, pair: &PartPair, is_left: bool| match is_left {
            true => of.left_rows(pair),
            false => rows_of(&pair.right),
        };
        let is_left = cut == JoinSide::Left;
        let begin = (side(&self, &pair, is_left)?, None);
        let pieces = stream::try_unfold(begin, move |(mut rows, mut next): (_, Option<RecordBatch>)| {
            let (of, pair) = (Arc::clone(&self), Arc::clone(&pair));
            async move {
                let mut build = BuildRows::new(&of.governor);
                // The first batch is taken even if there is no room for it.
                let first = match next.take() {
                    Some(batch) => Some(batch),
                    None => SendableRecordBatchStream::next(&mut rows).await.transpose()?,
                };
                let Some(first) = first else { return Ok(None) };
                build.push_anyway(first);
                while let Some(batch) = rows.next().await {
                    if let Err(batch) = build.push(batch?) {
                        next = Some(batch);
                        break;
                    }
                }
                let joined = of.join(build, side(&of, &pair, !is_left)?, kind, cut)?;
                Ok::<_, DataFusionError>(Some((joined, (rows, next))))
            }
        });
        Ok(pieces.try_flatten().boxed())
    }

    /// Joins rows of one side with those of the other.
    fn join(
        &self,
        build: BuildRows,
        probe: SendableRecordBatchStream,
        kind: JoinType,
        build_side: JoinSide,
    ) -> Result<SendableRecordBatchStream> {
        let slot = |side| ReplayExec::over(&(Arc::new(EmptyExec::new(self.join.schema_of(side))) as _));
        let (left, right) = (slot(JoinSide::Left), slot(JoinSide::Right));
        let plan = self.join.of_parts(Arc::clone(&left) as _, Arc::clone(&right) as _, kind, build_side)?;
        let (build, held) = build.hand_over(self.join.schema_of(build_side));
        let probe = held.probe(probe, self.join.has_keys());
        let (of_left, of_right) = if build_side == JoinSide::Left { (build, probe) } else { (probe, build) };
        left.give(0, of_left);
        right.give(0, of_right);
        Ok(held.until_read(plan.execute(0, Arc::clone(&self.context))?))
    }

    /// Unmatched right rows, as output by a full join.
    fn beside_nulls(&self, right: &RecordBatch) -> Result<RecordBatch> {
        let left = self.join.schema_of(JoinSide::Left);
        let nulls = left.fields().iter().map(|field| new_null_array(field.data_type(), right.num_rows()));
        let all: Vec<ArrayRef> = nulls.chain(right.columns().iter().cloned()).collect();
        let columns = match self.join.projection() {
            Some(chosen) => chosen.iter().map(|&at| Arc::clone(&all[at])).collect(),
            None => all,
        };
        let options = RecordBatchOptions::new().with_row_count(Some(right.num_rows()));
        Ok(RecordBatch::try_new_with_options(self.join.exec().schema(), columns, &options)?)
    }
}

/// Hashes of keys, different from those that assigned rows to this partition; without keys, all rows stay together.
fn hash(keys: Vec<Arc<dyn PhysicalExpr>>) -> HashKeys {
    if keys.is_empty() {
        return Box::new(|rows, hashes| {
            hashes.clear();
            hashes.resize(rows.num_rows(), 0);
            Ok(())
        });
    }
    let hasher = KeyHasher::new((0..keys.len()).collect());
    Box::new(move |rows, hashes| {
        let values = keys.iter().map(|key| Ok(("", value(key, rows)?))).collect::<Result<Vec<_>>>()?;
        Ok(hasher.hash(&RecordBatch::try_from_iter(values)?, hashes)?)
    })
}

fn value(key: &Arc<dyn PhysicalExpr>, rows: &RecordBatch) -> Result<ArrayRef> {
    key.evaluate(rows)?.into_array(rows.num_rows())
}

/// Converts an error of the disk.
fn failed(error: TaskError) -> DataFusionError {
    DataSetError::Io(error.to_string()).into()
}
