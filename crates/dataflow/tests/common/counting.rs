//! A job that counts the rows of each key, exactly once: sources that fail when told to, an operator that sees what is
//! missing or out of order, a sink that shows what was committed.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::future::{Future, ready};
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use arrow::array::{AsArray, Int64Array, RecordBatch, TimestampMillisecondArray};
use arrow::datatypes::{DataType, Int64Type, SchemaRef, TimeUnit, TimestampMillisecondType};
use bytes::Bytes;
use futures_util::future::BoxFuture;
use tidemill_collective::run_ranks;
use tidemill_dataflow::checkpoint::{CheckpointSettings, CheckpointStore, Snapshot, SnapshotPart};
use tidemill_dataflow::exchange::{Direct, Partition};
use tidemill_dataflow::keys::KeyHasher;
use tidemill_dataflow::operator::{EmitStatus, ReleasedParts};
use tidemill_dataflow::placement::RoundRobin;
use tidemill_dataflow::route_map::{BUCKETS, RouteMap};
use tidemill_dataflow::stream::EventTime;
use tidemill_dataflow::stream::sink::Sink;
use tidemill_dataflow::stream::source::{ReleasedSplit, Source, SourceEvent, WatermarkStrategy};
use tidemill_dataflow::{
    DataflowError, Emitter, Graph, Operator, RunProgress, Runner, RunnerSettings, TaskContext, TaskError, TaskSpec,
};

use super::schema;

pub const SPLITS: u32 = 5;
pub const KEYS: i64 = 37;
pub const ROWS_PER_BATCH: i64 = 40;
/// Of a row's place: which it is in its split. The split is above.
const PLACE_BITS: u32 = 32;

pub fn events() -> SchemaRef {
    schema(&[
        ("key", DataType::Int64),
        ("place", DataType::Int64),
        ("time", DataType::Timestamp(TimeUnit::Millisecond, None)),
    ])
}

pub fn totals() -> SchemaRef {
    schema(&[("key", DataType::Int64), ("count", DataType::Int64)])
}

/// Counts up in each of its splits, a batch at a time, and fails when it is told to.
pub struct Numbers {
    /// Splits with their next numbers; `None` for one that another copy has now.
    splits: Vec<Option<(u32, i64)>>,
    at: usize,
    rows: i64,
    /// Batches until it fails.
    fuse: Option<Arc<AtomicU64>>,
    pause: Option<Pin<Box<tokio::time::Sleep>>>,
}

impl Numbers {
    pub fn new(context: &TaskContext, rows: i64, fuse: Option<Arc<AtomicU64>>) -> Self {
        let splits: Vec<_> = match context.restored() {
            Some(restored) => {
                let split = |(name, next): (&String, &Bytes)| {
                    (name.parse().unwrap(), i64::from_le_bytes(next.as_ref().try_into().unwrap()))
                };
                restored.splits.iter().map(split).map(Some).collect()
            }
            None => (0..SPLITS).filter(|s| context.is_dealt(*s as usize)).map(|s| Some((s, 0))).collect(),
        };
        // The last one that has rows first: who sees it knows that the others exist, and does not let time advance past
        // them.
        let at = splits.iter().rposition(|split| split.is_some_and(|(_, next)| next < rows)).unwrap_or(0);
        Numbers { at, splits, rows, fuse, pause: None }
    }
}

impl Source for Numbers {
    fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Result<SourceEvent, TaskError>> {
        if let Some(pause) = &mut self.pause {
            if pause.as_mut().poll(context).is_pending() {
                return Poll::Pending;
            }
            self.pause = None;
        }
        for step in 0..self.splits.len() {
            let at = (self.at + step) % self.splits.len();
            let Some((split, next)) = &mut self.splits[at] else { continue };
            if *next >= self.rows {
                continue;
            }
            if let Some(fuse) = &self.fuse
                && fuse.fetch_sub(1, Ordering::SeqCst) == 1
            {
                return Poll::Ready(Err("the fuse has blown".into()));
            }
            let numbers: Vec<i64> = (*next..(*next + ROWS_PER_BATCH).min(self.rows)).collect();
            *next += numbers.len() as i64;
            let keys = Int64Array::from_iter_values(numbers.iter().map(|n| n % KEYS));
            let times = TimestampMillisecondArray::from_iter_values(numbers.iter().copied());
            let split = *split;
            let places = Int64Array::from_iter_values(numbers.iter().map(|n| i64::from(split) << PLACE_BITS | n));
            let columns: Vec<arrow::array::ArrayRef> = vec![Arc::new(keys), Arc::new(places), Arc::new(times)];
            let rows = RecordBatch::try_new(events(), columns)?;
            self.at = at + 1;
            self.pause = Some(Box::pin(tokio::time::sleep(Duration::from_millis(1))));
            return Poll::Ready(Ok(SourceEvent::rows(at as u32, rows)));
        }
        Poll::Ready(Ok(SourceEvent::End))
    }

    fn snapshot(&mut self) -> Result<Vec<(String, Bytes)>, TaskError> {
        let split = |(split, next): &(u32, i64)| (split.to_string(), Bytes::copy_from_slice(&next.to_le_bytes()));
        Ok(self.splits.iter().flatten().map(split).collect())
    }

    fn release(&mut self, splits: &BTreeSet<String>) -> Result<Vec<ReleasedSplit>, TaskError> {
        let mut released = Vec::new();
        for (number, known) in (0..).zip(&mut self.splits) {
            let rows = self.rows;
            if let Some((split, next)) =
                known.take_if(|(split, next)| *next < rows && splits.contains(&split.to_string()))
            {
                let position = Bytes::copy_from_slice(&next.to_le_bytes());
                released.push(ReleasedSplit { name: split.to_string(), position, numbers: vec![number] });
            }
        }
        Ok(released)
    }

    fn acquire(&mut self, splits: Vec<(String, Bytes)>) -> Result<Vec<u32>, TaskError> {
        let begin = self.splits.len() as u32;
        for (name, next) in splits {
            self.splits.push(Some((name.parse()?, i64::from_le_bytes(next.as_ref().try_into()?))));
        }
        Ok((begin..self.splits.len() as u32).collect())
    }
}

/// What is known of a key.
#[derive(Clone, Copy)]
struct Known {
    bucket: u32,
    count: i64,
    /// Of each split the next number that the key has there.
    next: [i64; SPLITS as usize],
}

/// Words of a key in a checkpoint.
const WORDS: usize = 2 + SPLITS as usize;

/// Numbers the rows of each key, from 1; saves only buckets that have changed, mostly as changes. Fails when a row is
/// missing, comes twice, or in another order than its split has it.
pub struct Count {
    hasher: KeyHasher,
    route: RouteMap,
    counts: HashMap<i64, Known>,
    changed: BTreeMap<u32, BTreeSet<i64>>,
    saved: u64,
    /// The last time it was told.
    time: EventTime,
    /// How long it takes for a batch.
    pub pause: Duration,
}

impl Count {
    pub fn new(context: &TaskContext) -> Self {
        let (hasher, route) = (KeyHasher::new(vec![0]), RouteMap::even(BUCKETS, 1));
        let (counts, changed) = Default::default();
        let mut new = Count { hasher, route, counts, changed, saved: 0, time: EventTime::MIN, pause: Duration::ZERO };
        for (&bucket, parts) in context.restored().iter().flat_map(|restored| &restored.buckets) {
            parts.iter().for_each(|part| new.read(bucket, part));
        }
        new
    }

    fn read(&mut self, bucket: u32, part: &Bytes) {
        for known in part.chunks_exact(8 * WORDS) {
            let word = |at: usize| i64::from_le_bytes(known[8 * at..8 * at + 8].try_into().unwrap());
            let next = std::array::from_fn(|split| word(2 + split));
            self.counts.insert(word(0), Known { bucket, count: word(1), next });
        }
    }

    fn bytes(&self, keys: impl Iterator<Item = i64>) -> Bytes {
        let words = |key: i64| [key, self.counts[&key].count].into_iter().chain(self.counts[&key].next);
        keys.flat_map(words).flat_map(i64::to_le_bytes).collect::<Vec<u8>>().into()
    }

    fn keys_of(&self, bucket: u32) -> Vec<i64> {
        self.counts.iter().filter(|(_, known)| known.bucket == bucket).map(|(key, _)| *key).collect()
    }
}

impl Operator for Count {
    fn on_batch(&mut self, _input: usize, batch: RecordBatch, emit: &mut Emitter) -> Result<EmitStatus, TaskError> {
        if !self.pause.is_zero() {
            std::thread::sleep(self.pause);
        }
        let mut hashes = Vec::new();
        self.hasher.hash(&batch, &mut hashes)?;
        let keys = batch.column(0).as_primitive::<Int64Type>().clone();
        let places = batch.column(1).as_primitive::<Int64Type>();
        let earliest = batch.column(2).as_primitive::<TimestampMillisecondType>().values().iter().min();
        if let Some(late) = earliest.filter(|time| **time * 1000 < self.time.0) {
            return Err(format!("a row of {late} ms is late, at {}", self.time).into());
        }
        let mut out = Vec::new();
        for ((&key, &hash), place) in keys.values().iter().zip(&hashes).zip(places.values()) {
            let bucket = self.route.bucket(hash);
            let known = self.counts.entry(key).or_insert(Known { bucket, count: 0, next: [key; SPLITS as usize] });
            let (split, n) = ((place >> PLACE_BITS) as usize, place & ((1 << PLACE_BITS) - 1));
            if known.next[split] != n {
                return Err(format!("row {n} of split {split} where {} of key {key} was due", known.next[split]).into());
            }
            known.next[split] = n + KEYS;
            known.count += 1;
            out.push(known.count);
            self.changed.entry(bucket).or_default().insert(key);
        }
        emit.send(RecordBatch::try_new(totals(), vec![Arc::new(keys), Arc::new(Int64Array::from(out))])?);
        Ok(EmitStatus::Done)
    }

    fn on_watermark(&mut self, time: EventTime, _emit: &mut Emitter) -> Result<EmitStatus, TaskError> {
        if time < self.time {
            return Err(format!("time went back from {} to {time}", self.time).into());
        }
        self.time = time;
        Ok(EmitStatus::Done)
    }

    fn snapshot(&mut self, whole: bool) -> Result<Snapshot, TaskError> {
        self.saved += 1;
        let mut changed = std::mem::take(&mut self.changed);
        if whole {
            changed.extend(self.counts.values().map(|known| (known.bucket, BTreeSet::new())));
        }
        let mut snapshot = Snapshot::default();
        // Now and then a whole although a change would do: chains of both kinds occur.
        for (bucket, keys) in changed {
            let part = match (whole || (self.saved + u64::from(bucket)).is_multiple_of(3), keys) {
                (true, _) => SnapshotPart::Whole(self.bytes(self.keys_of(bucket).into_iter())),
                (false, keys) => SnapshotPart::Change(self.bytes(keys.into_iter())),
            };
            snapshot.buckets.push((bucket, part));
        }
        Ok(snapshot)
    }

    fn moves() -> bool {
        true
    }

    fn release(&mut self, buckets: &[u32]) -> Result<ReleasedParts, TaskError> {
        let mut parts = Vec::new();
        for &bucket in buckets {
            // A part for each key: a bucket may have any number.
            for keys in self.keys_of(bucket).chunks(1) {
                parts.push((bucket, self.bytes(keys.iter().copied())));
            }
            self.counts.retain(|_, known| known.bucket != bucket);
            self.changed.remove(&bucket);
        }
        Ok(parts.into())
    }

    fn acquire(&mut self, parts: Vec<(u32, Bytes)>) -> Result<(), TaskError> {
        parts.iter().for_each(|(bucket, part)| self.read(*bucket, part));
        Ok(())
    }
}

/// What the world outside has seen: rows by what committed them, so that doing so twice changes nothing.
pub type World = Arc<Mutex<BTreeMap<Vec<u8>, Vec<(i64, i64)>>>>;

pub struct Outside {
    world: World,
    copy: u32,
    rows: Vec<(i64, i64)>,
}

impl Outside {
    pub fn new(world: &World, copy: u32) -> Self {
        Outside { world: Arc::clone(world), copy, rows: Vec::new() }
    }
}

impl Sink for Outside {
    fn write(&mut self, rows: RecordBatch) -> BoxFuture<'_, Result<(), TaskError>> {
        let (keys, counts) = (rows.column(0).as_primitive::<Int64Type>(), rows.column(1).as_primitive::<Int64Type>());
        self.rows.extend(keys.values().iter().copied().zip(counts.values().iter().copied()));
        Box::pin(ready(Ok(())))
    }

    fn prepare(&mut self, epoch: u64) -> BoxFuture<'_, Result<Bytes, TaskError>> {
        let rows = std::mem::take(&mut self.rows);
        if rows.is_empty() {
            return Box::pin(ready(Ok(Bytes::new())));
        }
        let mut bytes = format!("{epoch:08} {}\n", self.copy).into_bytes();
        bytes.extend(rows.iter().flat_map(|(key, count)| [*key, *count]).flat_map(i64::to_le_bytes));
        Box::pin(ready(Ok(bytes.into())))
    }

    fn commit(&mut self, prepared: Bytes) -> BoxFuture<'_, Result<(), TaskError>> {
        let end = prepared.iter().position(|&byte| byte == b'\n').unwrap();
        let word = |bytes: &[u8]| i64::from_le_bytes(bytes.try_into().unwrap());
        let rows = prepared[end + 1..].chunks_exact(16).map(|row| (word(&row[..8]), word(&row[8..]))).collect();
        self.world.lock().unwrap().insert(prepared[..end].to_vec(), rows);
        Box::pin(ready(Ok(())))
    }
}

/// Copy 0 takes `pause` for each batch.
pub fn graph(rows: i64, pause: Duration, fuse: Option<Arc<AtomicU64>>, world: &World) -> Graph {
    let world = Arc::clone(world);
    graph_into(rows, pause, fuse, move |context| Outside::new(&world, context.copy()))
}

/// [`graph`] with another sink.
pub fn graph_into<S: Sink + 'static>(
    rows: i64,
    pause: Duration,
    fuse: Option<Arc<AtomicU64>>,
    sink: impl Fn(&TaskContext) -> S + Send + Sync + 'static,
) -> Graph {
    let mut graph = Graph::new("counting");
    let times = WatermarkStrategy::of("time").out_of_order(Duration::from_millis(5));
    let source = TaskSpec::source("numbers", Some(times), move |context| Ok(Numbers::new(context, rows, fuse.clone())));
    let source = graph.add(source.movable_splits().output("out", events()));
    let count = TaskSpec::operator("count", move |context| {
        let pause = if context.copy() == 0 { pause } else { Duration::ZERO };
        Ok(Count { pause, ..Count::new(context) })
    });
    let count = graph.add(count.streaming().input("in").output("out", totals()));
    let sink = graph.add(TaskSpec::sink("outside", move |context| Ok(sink(context))).input("in"));
    graph.connect(source, count, Partition::by_key(["key"]));
    graph.connect(count, sink, Direct);
    graph
}

pub fn run(
    workers: u32,
    folder: &std::path::Path,
    rows: i64,
    fuse: Option<Arc<AtomicU64>>,
    world: &World,
    look: impl Fn(&RunProgress) -> Result<(), String> + Sync,
) -> Result<(), DataflowError> {
    run_graph(workers, folder, &graph(rows, Duration::ZERO, fuse, world), look)
}

pub fn run_graph(
    workers: u32,
    folder: &std::path::Path,
    graph: &Graph,
    look: impl Fn(&RunProgress) -> Result<(), String> + Sync,
) -> Result<(), DataflowError> {
    run_unaligned(workers, folder, graph, None, look)
}

/// [`run_graph`], in which barriers overtake rows after a while.
pub fn run_unaligned(
    workers: u32,
    folder: &std::path::Path,
    graph: &Graph,
    unaligned_after: Option<Duration>,
    look: impl Fn(&RunProgress) -> Result<(), String> + Sync,
) -> Result<(), DataflowError> {
    run_on(&vec![0; workers as usize], folder, graph, unaligned_after, look)
}

/// [`run_unaligned`] on workers of these hosts, as it were, each named by its first worker.
pub fn run_on(
    hosts: &[u32],
    folder: &std::path::Path,
    graph: &Graph,
    unaligned_after: Option<Duration>,
    look: impl Fn(&RunProgress) -> Result<(), String> + Sync,
) -> Result<(), DataflowError> {
    run_scaled(hosts, u32::MAX, folder, graph, unaligned_after, look)
}

/// [`run_on`], with so many active workers at the start; the others are spare.
pub fn run_scaled(
    hosts: &[u32],
    active: u32,
    folder: &std::path::Path,
    graph: &Graph,
    unaligned_after: Option<Duration>,
    look: impl Fn(&RunProgress) -> Result<(), String> + Sync,
) -> Result<(), DataflowError> {
    let workers = hosts.len() as u32;
    let outcomes = run_ranks(workers, |comm| {
        // In some runs checkpoints are reported by way of others.
        let report_fanout = (workers % 2 == 1).then_some(1);
        let settings = RunnerSettings {
            threads: 1,
            queue_bytes: 1,
            batch_bytes: 1 << 10,
            report_fanout,
            ..RunnerSettings::default()
        };
        let runner = Runner::new(&comm, settings).unwrap().on_hosts(hosts.to_vec());
        runner.set_active_workers(active);
        let store = CheckpointStore::folder(folder).unwrap();
        let interval = Duration::from_millis(25);
        let checkpoints = CheckpointSettings { interval, unaligned_after, keep: 2, ..CheckpointSettings::new(store) };
        runner.run_job(graph, &RoundRobin, Some(&checkpoints), &mut |progress| look(progress)).map(drop)
    });
    outcomes.unwrap().into_iter().collect()
}

/// Every key's rows are numbered 1, 2, 3 ..., none twice, none left out.
pub fn check(world: &World, rows: i64) {
    let world = world.lock().unwrap();
    let mut counts: BTreeMap<i64, Vec<i64>> = BTreeMap::new();
    for (key, count) in world.values().flatten() {
        counts.entry(*key).or_default().push(*count);
    }
    assert_eq!(counts.len() as i64, KEYS.min(rows));
    for (key, mut found) in counts {
        found.sort_unstable();
        let expected = (0..rows).filter(|n| n % KEYS == key).count() as i64 * i64::from(SPLITS);
        assert_eq!(found, (1..=expected).collect::<Vec<_>>(), "key {key}");
    }
}

pub fn quiet(_: &RunProgress) -> Result<(), String> {
    Ok(())
}
