//! A global order: every copy gets a range of the keys, sorted, and copy `i`'s rows come before copy `i + 1`'s.
//!
//! The ranges are drawn from samples. Each source copy keeps what it is given until it has seen enough to sample from,
//! or all of it; one stage makes the splitters and tells them to all; then rows go straight to the copy of their range,
//! which sorts them, on disk if need be. While a copy waits for the splitters it goes on taking (to disk, when memory
//! is short), for what it takes may be what another copy waits for.
//!
//! ```text
//!  source -> [sample] ----------- rows, by range -----------> [sort] -> target
//!                | ^
//!         samples| | splitters
//!                v |
//!            [splitters]
//! ```

use std::sync::{Arc, OnceLock};

use arrow::array::{Array, AsArray, BinaryArray, RecordBatch, UInt64Array};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef, UInt64Type};
use tidemill_batch::local::Sorter;
use tidemill_batch::local::{RowOrder, SortKey};
use tidemill_batch::memory::SpillQueue;
use tidemill_batch::schema::columns;

use super::{EdgeSignature, Exchange};
use crate::error::TaskError;
use crate::flow::TaskFactory;
use crate::flow::{EdgeMover, ExchangeStage, FlowPort, Inputs, Lowering, Outputs, StreamElement, batch_bytes};
use crate::overlay::OverlayChoice;
use crate::partitioner::{Partitioner, PartitionerContext, RowAssigner, RowAssignment};
use crate::task::Executor;
use crate::task::TaskContext;

/// What a source copy looks at before it sends its sample, in an order that is no order.
const SAMPLE_BYTES: u64 = 64 << 20;
/// Rows of a copy's sample.
const SAMPLE_ROWS: usize = 2000;

/// See the module.
#[derive(Clone)]
pub struct Sort {
    keys: Arc<[SortKey]>,
    all: bool,
    /// Rows of a range are left as they come.
    unsorted: bool,
}

impl Sort {
    /// Sorts by these columns, the first first.
    pub fn by(keys: impl IntoIterator<Item = SortKey>) -> Self {
        Sort { keys: keys.into_iter().collect(), all: false, unsorted: false }
    }

    /// Only deals rows by ranges of these columns, about as many to each copy: what a copy gets is in no order.
    pub fn ranges(keys: impl IntoIterator<Item = SortKey>) -> Self {
        Sort { unsorted: true, ..Sort::by(keys) }
    }

    /// Draws the samples from all rows before any is sent. Without it, the first 64 MiB of each copy serve, unless the
    /// rows come in (or against) their order there already.
    #[must_use]
    pub fn sample_all(mut self) -> Self {
        self.all = true;
        self
    }
}

impl Exchange for Sort {
    fn describe(&self) -> String {
        let keys: Vec<String> = self.keys.iter().map(SortKey::describe).collect();
        let what = if self.unsorted { "partition by range of" } else { "sort by" };
        format!("{what} {}{}", keys.join(", "), if self.all { " (sampled whole)" } else { "" })
    }

    fn check(&self, ends: &EdgeSignature<'_>) -> Result<SchemaRef, String> {
        let schema = ends.only()?;
        if self.keys.is_empty() {
            return Err("a sort needs at least one key".into());
        }
        let names: Vec<String> = self.keys.iter().map(|key| key.column.clone()).collect();
        columns(schema, &names)?;
        RowOrder::new(schema, &self.keys).map_err(|error| error.to_string())?;
        Ok(SchemaRef::clone(schema))
    }

    fn lower(&self, lowering: &mut Lowering<'_>) {
        let (source, target) = (lowering.sources()[0], lowering.target());
        let schema = SchemaRef::clone(lowering.target_schema());
        let (senders, copies) = (lowering.workers_of(source).to_vec(), lowering.workers_of(target).len());
        let (keys, order) = (Arc::clone(&self.keys), RowOrder::new(&schema, &self.keys).expect("checked before"));
        let all_to_one = || EdgeMover::Map(vec![Some(0); senders.len()]);
        if copies == 1 && self.unsorted {
            return lowering.connect(source, target, all_to_one());
        }
        if copies == 1 {
            let sort = sort_stage(lowering, "sort", target, order);
            lowering.connect(source, sort.input(0), all_to_one());
            return lowering.connect_direct(sort.output(0), target);
        }
        // Where each source copy's splitters are, for its stage to set and its partitioner to follow.
        let cells: SampleCells = senders.iter().map(|_| OnceLock::new()).collect();
        let sampling = KeySampling { schema: SchemaRef::clone(&schema), keys, all: self.all, cells };
        let cells = Arc::clone(&sampling.cells);
        let factory: TaskFactory =
            Arc::new(move |inputs, outputs, context| Box::pin(sampling.clone().run(inputs, outputs, context)));
        let schemas = vec![SchemaRef::clone(&schema), sample_schema()];
        let sample = lowering.stage("sample", senders.clone(), 2, schemas, Executor::Thread, factory);

        let factory: TaskFactory = Arc::new(move |inputs, outputs, _| Box::pin(splitters(inputs, outputs, copies)));
        let first = lowering.workers_of(target)[0];
        let overlay = lowering.overlay(OverlayChoice::default(), first, &senders);
        let split = lowering.stage("splitters", vec![first], 1, vec![sample_schema()], Executor::Pool, factory);

        lowering.connect_direct(source, sample.input(0));
        lowering.connect(sample.output(1), split.input(0), all_to_one());
        lowering.connect(split.output(0), sample.input(1), EdgeMover::Broadcast(overlay));
        let by_range = EdgeMover::Partition(Arc::new(ByRange { order: order.clone(), cells }));
        if self.unsorted {
            return lowering.connect(sample.output(0), target, by_range);
        }
        let sort = sort_stage(lowering, "sort", target, order);
        lowering.connect(sample.output(0), sort.input(0), by_range);
        lowering.connect_direct(sort.output(0), target);
    }
}

/// A stage beside the copies of `beside` that sorts what each gets.
pub(super) fn sort_stage(lowering: &mut Lowering<'_>, label: &str, beside: FlowPort, order: RowOrder) -> ExchangeStage {
    let schema = SchemaRef::clone(lowering.target_schema());
    let (workers, schemas) = (lowering.workers_of(beside).to_vec(), vec![SchemaRef::clone(&schema)]);
    let factory: TaskFactory = Arc::new(move |inputs, outputs, context| {
        let (schema, order) = (SchemaRef::clone(&schema), order.clone());
        Box::pin(async move {
            let mut sorter = Sorter::new(&schema, order, context.governor(), context.reservation());
            let (mut input, mut output) = (inputs.into_only(), outputs.into_only());
            while let Some(StreamElement::Batch(batch)) = input.recv().await? {
                sorter.push(batch)?;
            }
            let mut sorted = sorter.finish()?;
            while let Some(batch) = sorted.next_batch()? {
                output.send(batch).await?;
            }
            Ok(())
        })
    });
    lowering.stage(label, workers, 1, schemas, Executor::Thread, factory)
}

/// A key as comparable bytes, and how many rows it stands for.
fn sample_schema() -> SchemaRef {
    let fields = vec![Field::new("key", DataType::Binary, false), Field::new("rows", DataType::UInt64, false)];
    Arc::new(Schema::new(fields))
}

type SampleCells = Arc<[OnceLock<Vec<Box<[u8]>>>]>;

#[derive(Clone)]
struct KeySampling {
    schema: SchemaRef,
    keys: Arc<[SortKey]>,
    all: bool,
    cells: SampleCells,
}

impl KeySampling {
    async fn run(self, mut inputs: Inputs, outputs: Outputs, context: TaskContext) -> Result<(), TaskError> {
        let order = RowOrder::new(&self.schema, &self.keys)?;
        let mut outputs = outputs.into_ports();
        let mut samples = outputs.pop().expect("the stage has two outputs");
        let mut rows = outputs.pop().expect("the stage has two outputs");
        let mut kept = SpillQueue::new(&self.schema, context.governor(), context.task());
        let mut sampler = KeySampler { order, keys: Vec::new(), every: 1, seen: 0, bytes: 0, firsts: Vec::new() };
        let budget = context.governor().settings().budget_bytes;
        let enough = if budget > 0 { SAMPLE_BYTES.min(budget / 8) } else { SAMPLE_BYTES };
        let mut sampled = false;
        let mut over = false;
        // Until the splitters have come: keep what comes, sample it, send the sample when it is large enough.
        let cell = &self.cells[context.copy() as usize];
        while cell.get().is_none() {
            match inputs.recv_any(|_| true).await? {
                Some((0, Some(StreamElement::Batch(batch)))) => {
                    if !sampled {
                        sampler.add(&batch)?;
                    }
                    kept.push(batch)?;
                }
                Some((0, None)) => over = true,
                Some((_, Some(StreamElement::Batch(batch)))) => {
                    let keys = batch.column(0).as_binary::<i32>();
                    let splitters = (0..keys.len()).map(|row| keys.value(row).into()).collect();
                    drop(cell.set(splitters));
                }
                // Marks do not come here: it is no streaming task.
                Some((_, Some(StreamElement::Mark(_)))) => {}
                Some((_, None)) | None => {
                    if cell.get().is_none() {
                        return Err("no splitters arrived".into());
                    }
                }
            }
            let ready = over || (!self.all && sampler.bytes >= enough && !sampler.is_in_order());
            if ready && !sampled {
                sampled = true;
                samples.send(sampler.sample()?).await?;
                // Its end tells the splitters' stage that this was all.
                samples.finish().await?;
            }
        }
        while let Some(batch) = kept.pop()? {
            rows.send(batch).await?;
        }
        drop(kept);
        while let Some((0, Some(StreamElement::Batch(batch)))) = inputs.recv_any(|port| port == 0).await? {
            rows.send(batch).await?;
        }
        Ok(())
    }
}

/// Keeps every so many-th row's key; fewer as there are more.
struct KeySampler {
    order: RowOrder,
    keys: Vec<Box<[u8]>>,
    every: u64,
    seen: u64,
    bytes: u64,
    /// The first key of each batch.
    firsts: Vec<Box<[u8]>>,
}

impl KeySampler {
    fn add(&mut self, batch: &RecordBatch) -> Result<(), TaskError> {
        let rows = self.order.rows(batch)?;
        self.firsts.push(rows.row(0).data().into());
        for row in 0..rows.num_rows() {
            if self.seen.is_multiple_of(self.every) {
                self.keys.push(rows.row(row).data().into());
                if self.keys.len() == 2 * SAMPLE_ROWS {
                    let mut keep = false;
                    self.keys.retain(|_| {
                        keep = !keep;
                        keep
                    });
                    self.every *= 2;
                }
            }
            self.seen += 1;
        }
        self.bytes += batch_bytes(batch);
        Ok(())
    }

    /// Whether batches begin in order, or against it, nearly always: then the first do not stand for all.
    fn is_in_order(&self) -> bool {
        let pairs = self.firsts.len().saturating_sub(1);
        let up = self.firsts.windows(2).filter(|pair| pair[0] <= pair[1]).count();
        let down = self.firsts.windows(2).filter(|pair| pair[0] >= pair[1]).count();
        up.max(down) * 10 >= pairs * 9
    }

    fn sample(&mut self) -> Result<RecordBatch, TaskError> {
        let keys = std::mem::take(&mut self.keys);
        let each = self.seen.div_ceil(keys.len().max(1) as u64);
        let rows = UInt64Array::from(vec![each; keys.len()]);
        let keys = BinaryArray::from_iter_values(keys);
        Ok(RecordBatch::try_new(sample_schema(), vec![Arc::new(keys), Arc::new(rows)])?)
    }
}

/// Makes splitters of all samples: the keys at which the next range begins.
async fn splitters(inputs: Inputs, outputs: Outputs, ranges: usize) -> Result<(), TaskError> {
    let mut input = inputs.into_only();
    let mut points: Vec<(Box<[u8]>, u64)> = Vec::new();
    while let Some(StreamElement::Batch(batch)) = input.recv().await? {
        let (keys, rows) = (batch.column(0).as_binary::<i32>(), batch.column(1).as_primitive::<UInt64Type>());
        points.extend((0..keys.len()).map(|at| (keys.value(at).into(), rows.value(at))));
    }
    points.sort_unstable();
    let total: u64 = points.iter().map(|(_, rows)| rows).sum();
    let mut before = 0;
    let mut chosen: Vec<&[u8]> = Vec::new();
    for (key, rows) in &points {
        while chosen.len() + 1 < ranges && before * ranges as u64 >= total * (chosen.len() as u64 + 1) {
            chosen.push(key);
        }
        before += rows;
    }
    // No samples, or fewer than ranges: the last ranges stay empty. One splitter at least, for a batch without rows
    // does not travel.
    if chosen.is_empty() {
        chosen.push(&[0xff]);
    }
    let rows = UInt64Array::from(vec![0; chosen.len()]);
    let keys = BinaryArray::from_iter_values(chosen);
    outputs.into_only().send(RecordBatch::try_new(sample_schema(), vec![Arc::new(keys), Arc::new(rows)])?).await
}

/// Sends rows to the copy of their range.
struct ByRange {
    order: RowOrder,
    cells: SampleCells,
}

struct AssignByRange {
    order: RowOrder,
    cells: SampleCells,
    source: usize,
}

impl Partitioner for ByRange {
    fn start(&self, seat: &PartitionerContext) -> Box<dyn RowAssigner> {
        let (order, cells) = (self.order.clone(), Arc::clone(&self.cells));
        Box::new(AssignByRange { order, cells, source: seat.source as usize })
    }
}

impl RowAssigner for AssignByRange {
    fn assign(&mut self, batch: &RecordBatch, targets: &mut Vec<u32>) -> Result<RowAssignment, TaskError> {
        let splitters = self.cells[self.source].get().ok_or("rows arrived before the splitters")?;
        let rows = self.order.rows(batch)?;
        let range = |key: &[u8]| splitters.partition_point(|splitter| &splitter[..] <= key) as u32;
        targets.extend(rows.iter().map(|row| range(row.data())));
        Ok(RowAssignment::ByRow)
    }
}
