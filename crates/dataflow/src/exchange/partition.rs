//! Each row to one copy: to the one that owns its key's bucket, to the next in turn, or to the one a function names.

use std::sync::Arc;
use std::time::{Duration, Instant};

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use arrow::util::display::{ArrayFormatter, FormatOptions};
use tidemill_batch::keys::{self, KeyHasher};
use tidemill_batch::route_map::{BUCKETS, BUCKETS_MAX, RouteMap};
use tidemill_batch::schema::columns;

use super::{EdgeSignature, Exchange};
use crate::error::TaskError;
use crate::flow::{EdgeMover, Lowering, batch_bytes};
use crate::metrics::BucketCounts;
use crate::observation::{COUNTED_TEXT_MAX, SampledRows};
use crate::partitioner::{Partitioner, PartitionerContext, RowAssigner, RowAssignment};

/// Names the target copy of each row of a batch: `(batch, copies) -> targets`.
pub type TargetFunction = Arc<dyn Fn(&RecordBatch, u32) -> Result<Vec<u32>, TaskError> + Send + Sync>;

/// See the module.
#[derive(Clone)]
pub struct Partition {
    by: PartitionBy,
}

#[derive(Clone)]
enum PartitionBy {
    Key { columns: Vec<String>, buckets: u32, route: Option<Arc<RouteMap>> },
    Turn { strict: bool },
    Function { name: String, function: TargetFunction },
}

impl Partition {
    /// Rows with equal values in `columns` go to one copy. Any hashable types; nulls are equal to each other, as are
    /// all NaNs and both zeros.
    pub fn by_key<S: Into<String>>(columns: impl IntoIterator<Item = S>) -> Self {
        let columns = columns.into_iter().map(Into::into).collect();
        Partition { by: PartitionBy::Key { columns, buckets: BUCKETS, route: None } }
    }

    /// With so many buckets instead of 1024; at most [`BUCKETS_MAX`].
    #[must_use]
    pub fn buckets(mut self, count: u32) -> Self {
        if let PartitionBy::Key { buckets, .. } = &mut self.by {
            *buckets = count;
        }
        self
    }

    /// With this map from buckets to copies, instead of an even one.
    #[must_use]
    pub fn route(mut self, map: RouteMap) -> Self {
        if let PartitionBy::Key { buckets, route, .. } = &mut self.by {
            *buckets = map.buckets();
            *route = Some(Arc::new(map));
        }
        self
    }

    /// Batches in turn, each copy beginning with another. A copy that has no room is passed over while others have
    /// some, so that one slow copy does not hold up the rest.
    pub fn round_robin() -> Self {
        Partition { by: PartitionBy::Turn { strict: false } }
    }

    /// Batches strictly in turn, whatever room copies have: copies get equally many.
    pub fn in_turn() -> Self {
        Partition { by: PartitionBy::Turn { strict: true } }
    }

    /// Where `function` says; `name` stands for it in plans, and must change when it does.
    pub fn with(
        name: impl Into<String>,
        function: impl Fn(&RecordBatch, u32) -> Result<Vec<u32>, TaskError> + Send + Sync + 'static,
    ) -> Self {
        Partition { by: PartitionBy::Function { name: name.into(), function: Arc::new(function) } }
    }

    /// The mover alone, for exchanges that partition what a stage makes.
    pub(crate) fn mover(&self, schema: &SchemaRef, targets: u32) -> EdgeMover {
        EdgeMover::Partition(match &self.by {
            PartitionBy::Key { columns: names, buckets, route } => Arc::new(ByKey {
                hasher: KeyHasher::new(columns(schema, names).expect("checked before")),
                columns: columns(schema, names).expect("checked before").into(),
                route: route.clone().unwrap_or_else(|| Arc::new(RouteMap::even(*buckets, targets))),
            }),
            PartitionBy::Turn { strict } => Arc::new(ByTurn { strict: *strict }),
            PartitionBy::Function { function, .. } => Arc::new(ByFunction(Arc::clone(function))),
        })
    }
}

impl Exchange for Partition {
    fn describe(&self) -> String {
        match &self.by {
            PartitionBy::Key { columns, buckets, route: None } => {
                format!("partition by {} in {buckets} buckets", columns.join(", "))
            }
            PartitionBy::Key { columns, route: Some(route), .. } => {
                format!("partition by {} along {}", columns.join(", "), route.describe())
            }
            PartitionBy::Turn { strict: false } => "partition in turn".into(),
            PartitionBy::Turn { strict: true } => "partition strictly in turn".into(),
            PartitionBy::Function { name, .. } => format!("partition by function {name}"),
        }
    }

    fn check(&self, ends: &EdgeSignature<'_>) -> Result<SchemaRef, String> {
        let schema = ends.only()?;
        if let PartitionBy::Key { columns: names, buckets, route } = &self.by {
            if names.is_empty() || *buckets == 0 {
                return Err("a key needs at least one column and one bucket".into());
            }
            if *buckets > BUCKETS_MAX {
                return Err(format!(
                    "{buckets} buckets exceed the limit of {BUCKETS_MAX}; a few for each copy are enough"
                ));
            }
            columns(schema, names)?.iter().try_for_each(|&at| keys::check(schema.field(at)))?;
            if let Some(copy) = route.as_ref().and_then(|r| r.copies().find(|&copy| copy >= ends.target_copies)) {
                return Err(format!("the route map names copy {copy}, but there are only {}", ends.target_copies));
            }
        }
        Ok(SchemaRef::clone(schema))
    }

    fn allows_rounds(&self) -> bool {
        !matches!(self.by, PartitionBy::Turn { .. })
    }

    fn lower(&self, lowering: &mut Lowering<'_>) {
        let (source, target) = (lowering.sources()[0], lowering.target());
        let mover = self.mover(lowering.target_schema(), lowering.workers_of(target).len() as u32);
        lowering.connect(source, target, mover);
    }
}

/// What an exchange that partitions by key beside what else it does says of its buckets.
pub(super) fn describe_buckets(buckets: u32) -> String {
    if buckets == BUCKETS { String::new() } else { format!(" in {buckets} buckets") }
}

struct ByKey {
    hasher: KeyHasher,
    columns: Arc<[usize]>,
    route: Arc<RouteMap>,
}

struct AssignByKey {
    hasher: KeyHasher,
    columns: Arc<[usize]>,
    route: Arc<RouteMap>,
    hashes: Vec<u64>,
    /// Rows by bucket that others are not told of yet, and how many these are, of so many bytes.
    counts: Vec<u32>,
    rows: usize,
    bytes: u64,
    /// When others were last told.
    told: Instant,
    metrics: Arc<BucketCounts>,
    /// Those whose keys are counted.
    sampled: SampledRows,
}

/// Others are told of counts when there have been so many rows of each bucket, on average: to tell of a bucket takes
/// longer than to deal some rows.
const COUNTED_ROWS: usize = 16;
/// Or when this time has passed: rates of slow streams would come in lumps, or not at all, between two checkpoints.
const COUNTED_TIME: Duration = Duration::from_millis(100);

impl Partitioner for ByKey {
    fn start(&self, seat: &PartitionerContext) -> Box<dyn RowAssigner> {
        let buckets = self.route.buckets();
        let metrics = seat.metrics.buckets(buckets);
        Box::new(AssignByKey {
            hasher: self.hasher.clone(),
            columns: Arc::clone(&self.columns),
            route: Arc::clone(seat.route.as_ref().unwrap_or(&self.route)),
            hashes: Vec::new(),
            counts: vec![0; buckets as usize],
            rows: 0,
            bytes: 0,
            told: Instant::now(),
            metrics: Arc::clone(metrics),
            sampled: SampledRows::new(seat.source.into()),
        })
    }

    fn route(&self) -> Option<&Arc<RouteMap>> {
        Some(&self.route)
    }

    fn buckets(&self, batch: &RecordBatch) -> Option<(u32, Vec<u32>)> {
        let mut hashes = Vec::new();
        self.hasher.hash(batch, &mut hashes).ok()?;
        Some((self.route.buckets(), hashes.into_iter().map(|hash| self.route.bucket(hash)).collect()))
    }
}

impl RowAssigner for AssignByKey {
    fn assign(&mut self, batch: &RecordBatch, targets: &mut Vec<u32>) -> Result<RowAssignment, TaskError> {
        self.hasher.hash(batch, &mut self.hashes)?;
        let counts = &mut self.counts;
        targets.extend(self.hashes.iter().map(|&hash| {
            let bucket = self.route.bucket(hash);
            counts[bucket as usize] += 1;
            self.route.copy(bucket)
        }));
        self.rows += batch.num_rows();
        self.bytes += batch_bytes(batch);
        if self.rows >= COUNTED_ROWS * counts.len() || self.told.elapsed() >= COUNTED_TIME {
            self.flush_metrics();
        }
        if !self.sampled.skip(batch.num_rows()) {
            let mut frequent = self.metrics.frequent.lock();
            for row in self.sampled.of(batch.num_rows()) {
                let hash = self.hashes[row];
                frequent.add(hash, || (self.route.bucket(hash), key_text(batch, &self.columns, row)));
            }
        }
        Ok(RowAssignment::ByRow)
    }

    fn flush_metrics(&mut self) {
        if self.rows == 0 {
            return;
        }
        self.told = Instant::now();
        let bytes_per_row = std::mem::take(&mut self.bytes) / std::mem::take(&mut self.rows) as u64;
        for (bucket, count) in self.counts.iter_mut().enumerate().filter(|(_, count)| **count > 0) {
            let rows = u64::from(std::mem::take(count));
            self.metrics.add(bucket, rows, rows * bytes_per_row);
        }
    }

    fn reroute(&mut self, route: &Arc<RouteMap>) {
        self.route = Arc::clone(route);
    }
}

/// The key of a row for people, cut if it is long.
fn key_text(batch: &RecordBatch, columns: &[usize], row: usize) -> String {
    let options = FormatOptions::default().with_null("null").with_display_error(true);
    let text = |&column: &usize| match ArrayFormatter::try_new(batch.column(column), &options) {
        Ok(formatter) => formatter.value(row).to_string(),
        Err(error) => error.to_string(),
    };
    let mut text = columns.iter().map(text).collect::<Vec<_>>().join(", ");
    text.truncate(text.floor_char_boundary(COUNTED_TEXT_MAX));
    text
}

struct ByTurn {
    strict: bool,
}

struct AssignByTurn {
    next: u32,
    targets: u32,
    strict: bool,
}

impl Partitioner for ByTurn {
    fn start(&self, seat: &PartitionerContext) -> Box<dyn RowAssigner> {
        Box::new(AssignByTurn { next: seat.source % seat.targets, targets: seat.targets, strict: self.strict })
    }
}

impl AssignByTurn {
    fn turn(&mut self) -> u32 {
        let target = self.next;
        self.next = (target + 1) % self.targets;
        target
    }
}

impl RowAssigner for AssignByTurn {
    fn assign(&mut self, _batch: &RecordBatch, _targets: &mut Vec<u32>) -> Result<RowAssignment, TaskError> {
        Ok(RowAssignment::Whole(self.turn()))
    }

    fn assign_unseen(&mut self) -> Option<u32> {
        (!self.strict).then(|| self.turn())
    }

    /// Else whoever follows a copy without room would get its batches.
    fn reassigned(&mut self, target: u32) {
        self.next = (target + 1) % self.targets;
    }
}

struct ByFunction(TargetFunction);

struct AssignByFunction {
    function: TargetFunction,
    targets: u32,
}

impl Partitioner for ByFunction {
    fn start(&self, seat: &PartitionerContext) -> Box<dyn RowAssigner> {
        Box::new(AssignByFunction { function: Arc::clone(&self.0), targets: seat.targets })
    }
}

impl RowAssigner for AssignByFunction {
    fn assign(&mut self, batch: &RecordBatch, targets: &mut Vec<u32>) -> Result<RowAssignment, TaskError> {
        *targets = (self.function)(batch, self.targets)?;
        Ok(RowAssignment::ByRow)
    }
}
