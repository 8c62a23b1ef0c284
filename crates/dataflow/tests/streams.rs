//! Streams with checkpoints: whatever fails in between, and however many workers go on, every row counts exactly once.

mod common;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::future::{Future, ready};
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use arrow::array::{AsArray, Int64Array, RecordBatch, TimestampMillisecondArray};
use arrow::datatypes::{DataType, Int64Type, SchemaRef, TimeUnit};
use bytes::Bytes;
use common::schema;
use futures_util::future::BoxFuture;
use tidemill_collective::run_ranks;
use tidemill_dataflow::checkpoint::{CheckpointSettings, CheckpointStore, Part, Snapshot};
use tidemill_dataflow::exchange::{Direct, Partition};
use tidemill_dataflow::keys::KeyHasher;
use tidemill_dataflow::operator::Flow;
use tidemill_dataflow::placement::RoundRobin;
use tidemill_dataflow::route_map::{BUCKETS, RouteMap};
use tidemill_dataflow::stream::sink::Sink;
use tidemill_dataflow::stream::source::{EventTimes, Next, Source};
use tidemill_dataflow::stream::{Control, EventTime};
use tidemill_dataflow::{
    DataflowError, Emit, Graph, Operator, Progress, Runner, Settings, TaskContext, TaskError, TaskSpec,
};

const SPLITS: u32 = 5;
const KEYS: i64 = 37;
const ROWS_PER_BATCH: i64 = 40;

fn events() -> SchemaRef {
    schema(&[
        ("key", DataType::Int64),
        ("n", DataType::Int64),
        ("time", DataType::Timestamp(TimeUnit::Millisecond, None)),
    ])
}

fn totals() -> SchemaRef {
    schema(&[("key", DataType::Int64), ("count", DataType::Int64)])
}

/// Counts up in each of its splits, a batch at a time, and fails when it is told to.
struct Numbers {
    splits: Vec<(u32, i64)>,
    at: usize,
    rows: i64,
    /// Batches until it fails.
    fuse: Option<Arc<AtomicU64>>,
    pause: Option<Pin<Box<tokio::time::Sleep>>>,
}

impl Numbers {
    fn new(context: &TaskContext, rows: i64, fuse: Option<Arc<AtomicU64>>) -> Self {
        let splits = match context.restored() {
            Some(restored) => {
                let split = |(name, next): (&String, &Bytes)| {
                    (name.parse().unwrap(), i64::from_le_bytes(next.as_ref().try_into().unwrap()))
                };
                restored.splits.iter().map(split).collect()
            }
            None => (0..SPLITS).filter(|s| s % context.copies() == context.copy()).map(|s| (s, 0)).collect(),
        };
        Numbers { splits, at: 0, rows, fuse, pause: None }
    }
}

impl Source for Numbers {
    fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Result<Next, TaskError>> {
        if let Some(pause) = &mut self.pause {
            if pause.as_mut().poll(context).is_pending() {
                return Poll::Pending;
            }
            self.pause = None;
        }
        for step in 0..self.splits.len() {
            let at = (self.at + step) % self.splits.len();
            let (split, next) = &mut self.splits[at];
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
            let columns: Vec<arrow::array::ArrayRef> =
                vec![Arc::new(keys), Arc::new(Int64Array::from(numbers)), Arc::new(times)];
            let rows = RecordBatch::try_new(events(), columns)?;
            let split = *split;
            self.at = at + 1;
            self.pause = Some(Box::pin(tokio::time::sleep(Duration::from_millis(1))));
            return Poll::Ready(Ok(Next::Rows { split, rows }));
        }
        Poll::Ready(Ok(Next::End))
    }

    fn snapshot(&mut self) -> Result<Vec<(String, Bytes)>, TaskError> {
        let split = |(split, next): &(u32, i64)| (split.to_string(), Bytes::copy_from_slice(&next.to_le_bytes()));
        Ok(self.splits.iter().map(split).collect())
    }
}

/// Numbers the rows of each key, from 1; saves only buckets that have changed, mostly as changes.
struct Count {
    hasher: KeyHasher,
    route: RouteMap,
    counts: HashMap<i64, (u32, i64)>,
    changed: BTreeMap<u32, BTreeSet<i64>>,
    saved: u64,
    /// The last time it was told.
    time: EventTime,
}

impl Count {
    fn new(context: &TaskContext) -> Self {
        let mut counts = HashMap::new();
        for (&bucket, parts) in context.restored().iter().flat_map(|restored| &restored.buckets) {
            for pair in parts.iter().flat_map(|part| part.chunks_exact(16)) {
                let word = |at: usize| i64::from_le_bytes(pair[at..at + 8].try_into().unwrap());
                counts.insert(word(0), (bucket, word(8)));
            }
        }
        let (hasher, route) = (KeyHasher::new(vec![0]), RouteMap::even(BUCKETS, 1));
        Count { hasher, route, counts, changed: BTreeMap::new(), saved: 0, time: EventTime::MIN }
    }

    fn bytes(&self, keys: impl Iterator<Item = i64>) -> Bytes {
        keys.flat_map(|key| [key, self.counts[&key].1]).flat_map(i64::to_le_bytes).collect::<Vec<u8>>().into()
    }
}

impl Operator for Count {
    fn on_batch(&mut self, _input: usize, batch: RecordBatch, emit: &mut Emit) -> Result<Flow, TaskError> {
        let mut hashes = Vec::new();
        self.hasher.hash(&batch, &mut hashes)?;
        let keys = batch.column(0).as_primitive::<Int64Type>().clone();
        let mut out = Vec::new();
        for (&key, &hash) in keys.values().iter().zip(&hashes) {
            let bucket = self.route.bucket(hash);
            let (_, count) = self.counts.entry(key).or_insert((bucket, 0));
            *count += 1;
            out.push(*count);
            self.changed.entry(bucket).or_default().insert(key);
        }
        emit.send(RecordBatch::try_new(totals(), vec![Arc::new(keys), Arc::new(Int64Array::from(out))])?);
        Ok(Flow::Done)
    }

    fn on_watermark(&mut self, time: EventTime, _emit: &mut Emit) -> Result<Flow, TaskError> {
        if time < self.time {
            return Err(format!("time went back from {} to {time}", self.time).into());
        }
        self.time = time;
        Ok(Flow::Done)
    }

    fn snapshot(&mut self, whole: bool) -> Result<Snapshot, TaskError> {
        self.saved += 1;
        let mut changed = std::mem::take(&mut self.changed);
        if whole {
            changed.extend(self.counts.values().map(|(bucket, _)| (*bucket, BTreeSet::new())));
        }
        let mut snapshot = Snapshot::default();
        // Now and then a whole although a change would do: chains of both kinds occur.
        for (bucket, keys) in changed {
            let all: Vec<i64> = self.counts.iter().filter(|(_, (of, _))| *of == bucket).map(|(key, _)| *key).collect();
            let part = match (whole || (self.saved + u64::from(bucket)).is_multiple_of(3), keys) {
                (true, _) => Part::Whole(self.bytes(all.into_iter())),
                (false, keys) => Part::Change(self.bytes(keys.into_iter())),
            };
            snapshot.buckets.push((bucket, part));
        }
        Ok(snapshot)
    }
}

/// What the world outside has seen: rows by what committed them, so that doing so twice changes nothing.
type World = Arc<Mutex<BTreeMap<Vec<u8>, Vec<(i64, i64)>>>>;

struct Outside {
    world: World,
    copy: u32,
    rows: Vec<(i64, i64)>,
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

fn graph(rows: i64, fuse: Option<Arc<AtomicU64>>, world: &World) -> Graph {
    let mut graph = Graph::new("counting");
    let times = EventTimes::of("time").out_of_order(Duration::from_millis(5));
    let source = TaskSpec::source("numbers", Some(times), move |context| Ok(Numbers::new(context, rows, fuse.clone())));
    let source = graph.add(source.output("out", events()));
    let count = TaskSpec::operator("count", |context| Ok(Count::new(context)));
    let count = graph.add(count.streaming().input("in").output("out", totals()));
    let world = Arc::clone(world);
    let sink = TaskSpec::sink("outside", move |context| {
        Ok(Outside { world: Arc::clone(&world), copy: context.copy(), rows: Vec::new() })
    });
    let sink = graph.add(sink.input("in"));
    graph.connect(source, count, Partition::by_key(["key"]));
    graph.connect(count, sink, Direct);
    graph
}

fn run(
    workers: u32,
    folder: &std::path::Path,
    rows: i64,
    fuse: Option<Arc<AtomicU64>>,
    world: &World,
    look: impl Fn(&Progress) -> Result<(), String> + Sync,
) -> Result<(), DataflowError> {
    let graph = graph(rows, fuse, world);
    let outcomes = run_ranks(workers, |comm| {
        let settings = Settings { threads: 1, queue_bytes: 1, batch_bytes: 1 << 10, ..Settings::default() };
        let runner = Runner::new(&comm, settings).unwrap();
        let store = CheckpointStore::folder(folder).unwrap();
        let interval = Duration::from_millis(25);
        let checkpoints = CheckpointSettings { interval, keep: 2, ..CheckpointSettings::new(store) };
        runner.run_job(&graph, &RoundRobin, Some(&checkpoints), &mut |progress| look(progress)).map(drop)
    });
    outcomes.unwrap().into_iter().collect()
}

/// Every key's rows are numbered 1, 2, 3 ..., none twice, none left out.
fn check(world: &World, rows: i64) {
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

fn quiet(_: &Progress) -> Result<(), String> {
    Ok(())
}

/// Failures at any moment, followed by a job of another size: what was committed and what is committed later fit together.
#[test]
fn every_row_counts_once_across_failures() {
    let mut seed = 7u64;
    let mut random = move |n: u64| {
        seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (seed >> 33) % n
    };
    for round in 0..6 {
        let folder = tempfile::tempdir().unwrap();
        let world = World::default();
        let mut failures = 0;
        loop {
            let workers = 1 + random(4) as u32;
            let fuse = (failures < 4).then(|| Arc::new(AtomicU64::new(1 + random(250))));
            match run(workers, folder.path(), 2000, fuse, &world, quiet) {
                Ok(()) => break,
                Err(error) => {
                    assert!(error.to_string().contains("the fuse has blown"), "{error}");
                    failures += 1;
                }
            }
        }
        check(&world, 2000);
        assert!(round != 0 || failures > 0);
        let state = std::fs::read_dir(folder.path().join("epochs")).unwrap().count();
        assert!(state <= 2, "{state} manifests are kept");
    }
}

/// A job that is started again after its end has nothing to do, and changes nothing.
#[test]
fn a_finished_job_stays_finished() {
    let folder = tempfile::tempdir().unwrap();
    let world = World::default();
    run(2, folder.path(), 300, None, &world, quiet).unwrap();
    check(&world, 300);
    for workers in [2, 3, 1] {
        run(workers, folder.path(), 300, None, &world, quiet).unwrap();
        check(&world, 300);
    }
}

/// A savepoint: the job stops at a barrier, is no failure, and goes on with other workers as if nothing had been.
#[test]
fn a_stopped_job_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    let world = World::default();
    for workers in [2, 3, 1] {
        // Asked for at the first look; where the job ends before, it has its end instead.
        let asked = AtomicU64::new(0);
        let stop = |progress: &Progress| {
            if asked.fetch_add(1, Ordering::SeqCst) == 0 {
                progress.request(Control::Stop);
            }
            Ok(())
        };
        run(workers, folder.path(), 4000, None, &world, stop).unwrap();
    }
    assert!(world.lock().unwrap().values().map(Vec::len).sum::<usize>() > 0, "stopped jobs have committed");
    run(2, folder.path(), 4000, None, &world, quiet).unwrap();
    check(&world, 4000);
}

/// Has one batch, and waits for more without an end.
struct Endless {
    rows: Option<RecordBatch>,
}

impl Source for Endless {
    fn poll_next(&mut self, _: &mut Context<'_>) -> Poll<Result<Next, TaskError>> {
        match self.rows.take() {
            Some(rows) => Poll::Ready(Ok(Next::Rows { split: 0, rows })),
            None => Poll::Pending,
        }
    }

    fn snapshot(&mut self) -> Result<Vec<(String, Bytes)>, TaskError> {
        Ok(vec![("0".into(), Bytes::new())])
    }
}

/// Passes on what comes, and has something to say whenever time passes or something ends.
struct Talkative;

impl Talkative {
    fn say(&self, emit: &mut Emit) -> Result<Flow, TaskError> {
        let column = || Arc::new(Int64Array::from(vec![-1]));
        emit.send(RecordBatch::try_new(totals(), vec![column(), column()])?);
        Ok(Flow::Done)
    }
}

impl Operator for Talkative {
    fn on_batch(&mut self, _: usize, batch: RecordBatch, emit: &mut Emit) -> Result<Flow, TaskError> {
        let columns = vec![Arc::clone(batch.column(0)), Arc::clone(batch.column(1))];
        emit.send(RecordBatch::try_new(totals(), columns)?);
        Ok(Flow::Done)
    }

    fn on_watermark(&mut self, _: EventTime, emit: &mut Emit) -> Result<Flow, TaskError> {
        self.say(emit)
    }

    fn on_input_end(&mut self, _: usize, emit: &mut Emit) -> Result<Flow, TaskError> {
        self.say(emit)
    }

    fn on_end(&mut self, emit: &mut Emit) -> Result<Flow, TaskError> {
        self.say(emit)
    }
}

/// A job is stopped whose sources have no end, one of them slow to begin, and one far ahead of the others in time. Rows that
/// are made of the ends behind the barrier, or of the time that these set free, would come again when the job goes on; a
/// source that never hears of the barrier would go on for ever.
#[test]
fn nothing_comes_behind_a_stop() {
    let folder = tempfile::tempdir().unwrap();
    let world = World::default();
    let mut graph = Graph::new("endless");
    let source = TaskSpec::source("numbers", Some(EventTimes::of("time")), |context| {
        let time = match context.copy() {
            // The others have nothing, and hold back time.
            0 => Some(1000),
            1 => {
                std::thread::sleep(Duration::from_millis(300));
                None
            }
            _ => None,
        };
        let rows = time.map(|time| {
            let column = || Arc::new(Int64Array::from(vec![7]));
            let times = Arc::new(TimestampMillisecondArray::from(vec![time]));
            RecordBatch::try_new(events(), vec![column(), column(), times])
        });
        Ok(Endless { rows: rows.transpose()? })
    });
    let source = graph.add(source.output("out", events()));
    let talk = TaskSpec::operator("talk", |_| Ok(Talkative)).streaming().input("in").output("out", totals());
    let talk = graph.add(talk);
    let outside = Arc::clone(&world);
    let sink = TaskSpec::sink("outside", move |context| {
        Ok(Outside { world: Arc::clone(&outside), copy: context.copy(), rows: Vec::new() })
    });
    let sink = graph.add(sink.input("in"));
    graph.connect(source, talk, Partition::by_key(["key"]));
    graph.connect(talk, sink, Direct);
    let outcomes = run_ranks(3, |comm| {
        let runner = Runner::new(&comm, Settings { threads: 1, ..Settings::default() }).unwrap();
        let interval = Duration::ZERO;
        let checkpoints = CheckpointSettings { interval, ..CheckpointSettings::in_folder(folder.path()).unwrap() };
        let mut asked = 0;
        let mut stop = |progress: &Progress| {
            asked += 1;
            // More than once: who asks does not know that it has been heard.
            if asked <= 2 {
                progress.request(Control::Stop);
            }
            Ok(())
        };
        runner.run_job(&graph, &RoundRobin, Some(&checkpoints), &mut stop).map(drop)
    });
    outcomes.unwrap().into_iter().collect::<Result<(), _>>().unwrap();
    let rows: Vec<_> = world.lock().unwrap().values().flatten().copied().collect();
    assert!(rows.is_empty() || rows == [(7, 7)], "{rows:?}");
}

/// A checkpoint that is damaged is left out for the one before; when none can be read the job does not begin anew in silence.
#[test]
fn damaged_checkpoints_are_left_out() {
    let folder = tempfile::tempdir().unwrap();
    let world = World::default();
    // Late enough for two checkpoints to be there.
    let fuse = Arc::new(AtomicU64::new(220));
    run(1, folder.path(), 2000, Some(fuse), &world, quiet).unwrap_err();
    let epochs = || {
        let mut found: Vec<_> =
            std::fs::read_dir(folder.path().join("epochs")).unwrap().map(|entry| entry.unwrap().path()).collect();
        found.sort();
        found
    };
    let all = epochs();
    assert!(all.len() >= 2, "the test needs two checkpoints");
    let newest = all.last().unwrap();
    let bytes = std::fs::read(newest).unwrap();
    std::fs::write(newest, &bytes[..bytes.len() / 2]).unwrap();
    let wrong = run(2, folder.path(), 2000, Some(Arc::new(AtomicU64::new(3))), &world, quiet);
    assert!(wrong.unwrap_err().to_string().contains("the fuse has blown"), "it goes on from the other one");
    run(2, folder.path(), 2000, None, &world, quiet).expect("the number of the damaged one does not stand in its way");

    for path in epochs() {
        std::fs::write(path, "tidemill checkpoint 1 0000\n{}").unwrap();
    }
    let error = run(2, folder.path(), 2000, None, &world, quiet).unwrap_err().to_string();
    assert!(error.contains("none can be read; remove them to begin anew"), "{error}");
}

/// Two jobs in one place would take each other's checkpoints for their own.
#[test]
fn one_place_is_for_one_job() {
    let folder = tempfile::tempdir().unwrap();
    let world = World::default();
    run(1, folder.path(), 100, None, &world, quiet).unwrap();
    let lock = std::fs::File::open(folder.path().join("lock")).unwrap();
    lock.lock().unwrap();
    let error = run(2, folder.path(), 100, None, &world, quiet).unwrap_err().to_string();
    assert!(error.contains("another job writes there"), "{error}");
    drop(lock);

    let other = run_ranks(2, |comm| {
        let runner = Runner::new(&comm, Settings::default()).unwrap();
        let checkpoints = CheckpointSettings::in_folder(folder.path()).unwrap();
        let mut graph = Graph::new("another");
        let source = TaskSpec::source("numbers", None, |context| Ok(Numbers::new(context, 10, None)));
        let source = graph.add(source.output("out", events()));
        let sink = graph.add(TaskSpec::new("nothing", |_, _, _| async { Ok(()) }).input("in").streaming());
        graph.connect(source, sink, Direct);
        runner.run_job(&graph, &RoundRobin, Some(&checkpoints), &mut |_| Ok(())).unwrap_err().to_string()
    });
    for error in other.unwrap() {
        assert!(error.contains("they are of job \"counting\", not of \"another\""), "{error}");
    }
}

/// A task that keeps rows and cannot save them must not be in such a job: it would lose them.
#[test]
fn tasks_that_cannot_save_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let errors = run_ranks(2, |comm| {
        let runner = Runner::new(&comm, Settings::default()).unwrap();
        let mut graph = Graph::new("sorting");
        let source = TaskSpec::source("numbers", None, |context| Ok(Numbers::new(context, 10, None)));
        let source = graph.add(source.output("out", events()));
        let sink = graph.add(TaskSpec::new("forgetful", |_, _, _| async { Ok(()) }).input("in"));
        graph.connect(source, sink, Direct);
        let checkpoints = CheckpointSettings::in_folder(folder.path()).unwrap();
        runner.run_job(&graph, &RoundRobin, Some(&checkpoints), &mut |_| Ok(())).unwrap_err().to_string()
    });
    for error in errors.unwrap() {
        assert!(error.contains("task \"forgetful\""), "{error}");
    }
}
