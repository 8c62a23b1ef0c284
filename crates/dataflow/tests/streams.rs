//! Streams with checkpoints: whatever fails in between, and however many workers resume, every row counts exactly
//! once.

mod common;

use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use arrow::array::{AsArray, Int64Array, RecordBatch, TimestampMillisecondArray};
use arrow::datatypes::{Int64Type, TimestampMillisecondType};
use bytes::Bytes;
use common::counting::{
    Numbers, Outside, SPLITS, World, check, events, graph, graph_into, quiet, run, run_unaligned, totals,
};
use futures_util::future::BoxFuture;
use tidemill_collective::run_ranks;
use tidemill_dataflow::checkpoint::{CheckpointSettings, Manifest, Snapshot};
use tidemill_dataflow::exchange::{Direct, KeyedReduce, Partition, Reduction, RoundEnd, RoundUnit, Rounds, TimeSlices};
use tidemill_dataflow::operator::EmitStatus;
use tidemill_dataflow::placement::RoundRobin;
use tidemill_dataflow::stream::sink::Sink;
use tidemill_dataflow::stream::source::{Source, SourceEvent, WatermarkStrategy};
use tidemill_dataflow::stream::{BarrierControl, EventTime, Mark};
use tidemill_dataflow::{
    Emitter, Graph, Operator, RunProgress, Runner, RunnerSettings, StreamElement, TaskContext, TaskError, TaskSpec,
};
use tokio::time::{Instant, Sleep, sleep};

/// Failures at any moment, followed by a job of another size: what was committed before fits what is committed later.
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

/// The bytes of rows in flight in the newest checkpoint.
fn in_flight_bytes(folder: &std::path::Path) -> u64 {
    let Ok(epochs) = std::fs::read_dir(folder.join("epochs")) else { return 0 };
    let Some(newest) = epochs.map(|epoch| epoch.unwrap().path()).max() else { return 0 };
    let manifest = Manifest::decode(&std::fs::read(newest).unwrap()).unwrap();
    let in_flight = manifest.tasks.values().flat_map(|task| task.in_flight.values().flatten());
    in_flight.map(|(_, entry)| entry.len).sum()
}

/// Barriers overtake rows that wait for a slow task: those are part of the checkpoint and of the run that resumes
/// from it, with any number of workers, once and in order.
#[test]
fn overtaken_rows_count_once() {
    let mut in_flight = 0;
    for (round, unaligned_ms) in [0, 0, 5, 20].into_iter().enumerate() {
        let folder = tempfile::tempdir().unwrap();
        let world = World::default();
        let unaligned_after = Some(Duration::from_millis(unaligned_ms));
        for (step, workers) in [2, 2, 3, 1, 4, 2].into_iter().enumerate() {
            let fuse = (step < 5).then(|| Arc::new(AtomicU64::new(120 + 60 * round as u64)));
            let graph = graph(2000, Duration::from_millis(2), fuse, &world);
            match run_unaligned(workers, folder.path(), &graph, unaligned_after, quiet) {
                Ok(()) => break,
                Err(error) => assert!(error.to_string().contains("the fuse has blown"), "{error}"),
            }
            in_flight += in_flight_bytes(folder.path());
        }
        check(&world, 2000);
    }
    assert!(in_flight > 0, "nothing was ever in flight: the test shows nothing");
}

/// A stop waits for the rows before it, however long they take: another program may resume from there.
#[test]
fn nothing_is_in_flight_behind_a_stop() {
    let folder = tempfile::tempdir().unwrap();
    let world = World::default();
    let slow = graph(2000, Duration::from_millis(2), None, &world);
    let looks = AtomicU64::new(0);
    let stop = |progress: &RunProgress| {
        if looks.fetch_add(1, Ordering::SeqCst) == 2 {
            progress.request(BarrierControl::Stop);
        }
        Ok(())
    };
    run_unaligned(2, folder.path(), &slow, Some(Duration::ZERO), stop).unwrap();
    assert_eq!(in_flight_bytes(folder.path()), 0);
    run(3, folder.path(), 2000, None, &world, quiet).unwrap();
    check(&world, 2000);
}

/// A job that is restarted after its end has nothing to do, and changes nothing.
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

/// A savepoint: the job stops at a barrier, which is not a failure, and resumes with other workers as if nothing had
/// happened.
#[test]
fn a_stopped_job_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    let world = World::default();
    for workers in [2, 3, 1] {
        // Requested at the first look; if the job ends before that, its end counts instead.
        let asked = AtomicU64::new(0);
        let stop = |progress: &RunProgress| {
            if asked.fetch_add(1, Ordering::SeqCst) == 0 {
                progress.request(BarrierControl::Stop);
            }
            Ok(())
        };
        run(workers, folder.path(), 4000, None, &world, stop).unwrap();
    }
    assert!(world.lock().unwrap().values().map(Vec::len).sum::<usize>() > 0, "stopped jobs have committed");
    run(2, folder.path(), 4000, None, &world, quiet).unwrap();
    check(&world, 4000);
}

/// Has one batch, and then waits for more forever.
struct Endless {
    rows: Option<RecordBatch>,
}

impl Source for Endless {
    fn poll_next(&mut self, _: &mut Context<'_>) -> Poll<Result<SourceEvent, TaskError>> {
        match self.rows.take() {
            Some(rows) => Poll::Ready(Ok(SourceEvent::rows(0, rows))),
            None => Poll::Pending,
        }
    }

    fn snapshot(&mut self) -> Result<Vec<(String, Bytes)>, TaskError> {
        Ok(vec![("0".into(), Bytes::new())])
    }
}

/// Two splits: the second runs dry for a while and then has more rows, which wait behind the first split's rows.
struct Busy {
    steps: std::vec::IntoIter<(u32, Option<i64>)>,
}

impl Source for Busy {
    fn poll_next(&mut self, _: &mut Context<'_>) -> Poll<Result<SourceEvent, TaskError>> {
        // A batch waits this long for room.
        std::thread::sleep(Duration::from_millis(2));
        let at = std::time::Instant::now();
        Poll::Ready(match self.steps.next() {
            Some((split, Some(time))) => row(time).map(|rows| SourceEvent::rows(split, rows)),
            Some((split, None)) => Ok(SourceEvent::Idle { split, at }),
            None => Ok(SourceEvent::End),
        })
    }

    fn snapshot(&mut self) -> Result<Vec<(String, Bytes)>, TaskError> {
        Ok(Vec::new())
    }
}

fn row(time: i64) -> Result<RecordBatch, TaskError> {
    let column = || Arc::new(Int64Array::from(vec![time]));
    Ok(RecordBatch::try_new(events(), vec![column(), column(), Arc::new(TimestampMillisecondArray::from(vec![time]))])?)
}

/// Counts rows that come after their time.
struct Late(EventTime, Arc<AtomicU64>);

impl Operator for Late {
    fn on_batch(&mut self, _: usize, batch: RecordBatch, _: &mut Emitter) -> Result<EmitStatus, TaskError> {
        let times = batch.column(2).as_primitive::<TimestampMillisecondType>();
        let late = times.values().iter().filter(|&&ms| EventTime(ms * 1000) < self.0).count();
        self.1.fetch_add(late as u64, Ordering::SeqCst);
        Ok(EmitStatus::Done)
    }

    fn on_watermark(&mut self, time: EventTime, _: &mut Emitter) -> Result<EmitStatus, TaskError> {
        self.0 = time;
        Ok(EmitStatus::Done)
    }
}

/// A split must not become idle, and its rows late, because they wait with others for room.
#[test]
fn rows_that_wait_are_not_late() {
    let late = Arc::new(AtomicU64::new(0));
    let found = Arc::clone(&late);
    let mut graph = Graph::new("busy");
    let times = WatermarkStrategy::of("time").idle_after(Duration::from_millis(1));
    let source = TaskSpec::source("busy", Some(times), |_| {
        let steps = vec![(0, Some(0)), (1, Some(0)), (1, None), (0, Some(50)), (0, Some(90)), (1, Some(7))];
        Ok(Busy { steps: steps.into_iter() })
    });
    let source = graph.add(source.output("out", events()).copies(1));
    let late = TaskSpec::operator("late", move |_| Ok(Late(EventTime::MIN, Arc::clone(&late))));
    let late = graph.add(late.streaming().input("in").copies(1));
    graph.connect(source, late, Direct);
    let outcome = run_ranks(1, |comm| {
        let runner = Runner::new(&comm, RunnerSettings { threads: 1, ..RunnerSettings::default() }).unwrap();
        runner.run_job(&graph, &RoundRobin, None, &mut |_| Ok(())).map(drop)
    });
    outcome.unwrap().into_iter().collect::<Result<(), _>>().unwrap();
    assert_eq!(found.load(Ordering::SeqCst), 0);
}

/// What a copy of [`Pausing`] does next.
enum PausingStep {
    Row(i64),
    /// It looks at this time, and has nothing.
    Look(std::time::Instant),
    /// It waits until the test is so far.
    Await(u64),
    Say(u64),
}

/// How far the test is.
const IDLE_SEEN: u64 = 1;
const AWAKE_SEEN: u64 = 2;
const OTHER_SENT: u64 = 3;

struct Pausing {
    steps: std::iter::Peekable<std::vec::IntoIter<PausingStep>>,
    progress: Arc<AtomicU64>,
    begun: std::time::Instant,
}

impl Source for Pausing {
    fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Result<SourceEvent, TaskError>> {
        loop {
            match self.steps.peek() {
                None => return Poll::Ready(Ok(SourceEvent::End)),
                Some(PausingStep::Await(until)) if self.progress.load(Ordering::SeqCst) < *until => {
                    if self.begun.elapsed() > Duration::from_secs(60) {
                        return Poll::Ready(Err(format!("the test has not come to step {until}").into()));
                    }
                    std::thread::sleep(Duration::from_millis(1));
                    context.waker().wake_by_ref();
                    return Poll::Pending;
                }
                _ => {}
            }
            match self.steps.next() {
                Some(PausingStep::Row(time)) => {
                    return Poll::Ready(pausing_row(time).map(|rows| SourceEvent::rows(0, rows)));
                }
                Some(PausingStep::Look(at)) => return Poll::Ready(Ok(SourceEvent::Idle { split: 0, at })),
                Some(PausingStep::Say(step)) => _ = self.progress.fetch_max(step, Ordering::SeqCst),
                Some(PausingStep::Await(_)) | None => {}
            }
        }
    }

    fn snapshot(&mut self) -> Result<Vec<(String, Bytes)>, TaskError> {
        Ok(Vec::new())
    }
}

fn pausing_row(time: i64) -> Result<RecordBatch, TaskError> {
    let column = |value: i64| Arc::new(Int64Array::from(vec![value]));
    let time = Arc::new(TimestampMillisecondArray::from(vec![time]));
    Ok(RecordBatch::try_new(events(), vec![column(0), column(1), time])?)
}

/// A source that pauses in a slice and goes on in it: its rows wait for the end of the slice, and another source that
/// ends it first must not make them late.
#[test]
fn who_goes_on_in_a_slice_is_awaited() {
    let (progress, begun) = (Arc::new(AtomicU64::new(0)), std::time::Instant::now());
    let sums = Arc::new(Mutex::new(Vec::new()));
    let mut graph = Graph::new("pausing");
    let pause = Duration::from_secs(3600);
    let (of_source, of_target, found) = (Arc::clone(&progress), Arc::clone(&progress), Arc::clone(&sums));
    let source = TaskSpec::source("pausing", Some(WatermarkStrategy::of("time").idle_after(pause)), move |context| {
        use PausingStep::{Await, Look, Row, Say};
        // Copy 1 has no row in the slice: it may lose rows by rights if copy 0 ends before copy 1 is awake.
        let steps = match context.copy() {
            0 => vec![Row(1), Look(begun), Look(begun + pause), Await(IDLE_SEEN), Row(2), Await(OTHER_SENT)],
            _ => vec![Look(begun), Look(begun + pause), Await(AWAKE_SEEN), Row(12), Say(OTHER_SENT)],
        };
        Ok(Pausing { steps: steps.into_iter().peekable(), progress: Arc::clone(&of_source), begun })
    });
    let source = graph.add(source.output("out", events()).copies(2));
    let target = TaskSpec::new("sums", move |inputs, _, _| {
        let (progress, sums) = (Arc::clone(&of_target), Arc::clone(&found));
        async move {
            let mut input = inputs.into_only();
            while let Some(item) = input.recv().await? {
                match item {
                    StreamElement::Batch(rows) => {
                        let counts = rows.column(1).as_primitive::<Int64Type>().values();
                        sums.lock().unwrap().push(counts.iter().sum::<i64>());
                    }
                    StreamElement::Mark(Mark::Idle) => _ = progress.fetch_max(IDLE_SEEN, Ordering::SeqCst),
                    StreamElement::Mark(_) => _ = progress.fetch_max(AWAKE_SEEN, Ordering::SeqCst),
                }
            }
            Ok(())
        }
    });
    let target = graph.add(target.streaming().input("in").copies(1));
    let length_us = 10_000.try_into().unwrap();
    let slices = TimeSlices { column: 2, start_us: 0, length_us, out_of_order_us: None };
    let sum = KeyedReduce::new(["key"], Reduction::new().sum("place"));
    graph.connect(source, target, Rounds::new(sum, RoundEnd::Strict).of(RoundUnit::Time(slices)));
    let outcome = run_ranks(1, |comm| {
        let runner = Runner::new(&comm, RunnerSettings { threads: 1, ..RunnerSettings::default() }).unwrap();
        runner.run_job(&graph, &RoundRobin, None, &mut |_| Ok(())).map(drop)
    });
    outcome.unwrap().into_iter().collect::<Result<(), _>>().unwrap();
    assert_eq!(*sums.lock().unwrap(), [2, 1]);
}

/// Counts the rows that it passes on.
struct Counter {
    before: u64,
    rows: u64,
    /// What it began with and came to, of each run.
    kept: Arc<Mutex<Vec<(u64, u64)>>>,
}

impl Operator for Counter {
    fn begin(&mut self, context: &TaskContext) {
        let saved = context.restored().and_then(|restored| restored.splits.get("rows"));
        self.before = saved.map_or(0, |bytes| u64::from_le_bytes(bytes.as_ref().try_into().unwrap()));
        self.rows = self.before;
    }

    fn on_batch(&mut self, _: usize, batch: RecordBatch, emit: &mut Emitter) -> Result<EmitStatus, TaskError> {
        self.rows += batch.num_rows() as u64;
        emit.send(batch);
        Ok(EmitStatus::Done)
    }

    fn kept_at_end(&mut self) -> Result<Snapshot, TaskError> {
        self.kept.lock().unwrap().push((self.before, self.rows));
        let rows = Bytes::copy_from_slice(&self.rows.to_le_bytes());
        Ok(Snapshot { splits: vec![("rows".into(), rows)], ..Snapshot::default() })
    }
}

/// A task that ends because nobody takes its output keeps its state, for who goes on from there.
#[test]
fn who_ends_early_keeps_its_state() {
    let folder = tempfile::tempdir().unwrap();
    let kept = Arc::<Mutex<Vec<(u64, u64)>>>::default();
    for _ in 0..2 {
        let mut graph = Graph::new("early");
        let source = TaskSpec::source("busy", None, |_| {
            Ok(Busy { steps: (0..100).map(|time| (0, Some(time))).collect::<Vec<_>>().into_iter() })
        });
        let source = graph.add(source.output("out", events()).copies(1));
        let of_counter = Arc::clone(&kept);
        let counter =
            TaskSpec::operator("counter", move |_| Ok(Counter { before: 0, rows: 0, kept: Arc::clone(&of_counter) }));
        let counter = graph.add(counter.streaming().input("in").output("out", events()).copies(1));
        let first = TaskSpec::new("first", |inputs, _, _| async move {
            inputs.into_only().recv().await?;
            Ok(())
        });
        let first = graph.add(first.streaming().input("in").copies(1));
        graph.connect(source, counter, Direct);
        graph.connect(counter, first, Direct);
        let outcomes = run_ranks(1, |comm| {
            let runner = Runner::new(&comm, RunnerSettings { threads: 1, ..RunnerSettings::default() }).unwrap();
            let checkpoints = CheckpointSettings::in_folder(folder.path()).unwrap();
            runner.run_job(&graph, &RoundRobin, Some(&checkpoints), &mut |_| Ok(())).map(drop)
        });
        outcomes.unwrap().into_iter().collect::<Result<(), _>>().unwrap();
    }
    let kept = kept.lock().unwrap();
    let [(0, first), (second, _)] = kept[..] else { panic!("{kept:?}") };
    assert!(first > 0 && first == second, "{kept:?}");
}

/// Has a valid row and an invalid record at once.
struct Mixed(Option<RecordBatch>);

impl Source for Mixed {
    fn poll_next(&mut self, _: &mut Context<'_>) -> Poll<Result<SourceEvent, TaskError>> {
        let next = self.0.take().map_or(SourceEvent::End, |rows| SourceEvent::Rows {
            split: 0,
            bad: Some(rows.clone()),
            rows,
        });
        Poll::Ready(Ok(next))
    }

    fn snapshot(&mut self) -> Result<Vec<(String, Bytes)>, TaskError> {
        Ok(Vec::new())
    }
}

/// Invalid records leave through a separate port; without that port they are skipped.
#[test]
fn bad_records_have_a_port() {
    let run = |has_port: bool| {
        let seen = [Arc::<Kept>::default(), Arc::default()];
        let mut graph = Graph::new("mixed");
        let mut source = TaskSpec::source("mixed", None, |_| Ok(Mixed(Some(row(1)?)))).output("rows", events());
        if has_port {
            source = source.output("bad", events());
        }
        let source = graph.add(source.copies(1));
        for (port, seen) in ["rows", "bad"].into_iter().zip(&seen).take(1 + usize::from(has_port)) {
            let (seen, world) = (Arc::clone(seen), World::default());
            let sink = TaskSpec::sink(port, move |context| {
                Ok(Full { outside: Outside::new(&world, context.copy()), kept: 0, seen: Arc::clone(&seen) })
            });
            let sink = graph.add(sink.input("in").copies(1));
            graph.connect(source.port(port), sink, Direct);
        }
        let outcome = run_ranks(1, |comm| {
            let runner = Runner::new(&comm, RunnerSettings { threads: 1, ..RunnerSettings::default() }).unwrap();
            runner.run_job(&graph, &RoundRobin, None, &mut |_| Ok(())).map(drop)
        });
        outcome.unwrap().into_iter().collect::<Result<(), _>>().unwrap();
        seen.map(|seen| seen.all.load(Ordering::SeqCst))
    };
    assert_eq!((run(true), run(false)), ([1, 1], [1, 0]));
}

/// How many rows it may keep until a checkpoint.
const KEPT_MAX: usize = 1000;

/// Keeps rows until a checkpoint, and records the most that it has kept.
struct Full {
    outside: Outside,
    kept: usize,
    seen: Arc<Kept>,
}

/// For all copies: the most rows that one has kept, and the total that they received.
#[derive(Default)]
struct Kept {
    most: AtomicU64,
    all: AtomicU64,
}

impl Sink for Full {
    fn write(&mut self, rows: RecordBatch) -> BoxFuture<'_, Result<(), TaskError>> {
        self.kept += rows.num_rows();
        self.seen.most.fetch_max(self.kept as u64, Ordering::SeqCst);
        self.seen.all.fetch_add(rows.num_rows() as u64, Ordering::SeqCst);
        self.outside.write(rows)
    }

    fn prepare(&mut self, epoch: u64) -> BoxFuture<'_, Result<Bytes, TaskError>> {
        self.kept = 0;
        self.outside.prepare(epoch)
    }

    fn commit(&mut self, prepared: Bytes) -> BoxFuture<'_, Result<(), TaskError>> {
        self.outside.commit(prepared)
    }

    fn fullness(&self) -> f64 {
        self.kept as f64 / KEPT_MAX as f64
    }
}

/// Has nothing, and ends when others have received this many rows.
struct Waiting {
    seen: Arc<Kept>,
    rows: u64,
    look: Pin<Box<Sleep>>,
}

impl Source for Waiting {
    fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Result<SourceEvent, TaskError>> {
        while self.look.as_mut().poll(context).is_ready() {
            if self.seen.all.load(Ordering::SeqCst) >= self.rows {
                return Poll::Ready(Ok(SourceEvent::End));
            }
            self.look.as_mut().reset(Instant::now() + Duration::from_millis(5));
        }
        Poll::Pending
    }

    fn snapshot(&mut self) -> Result<Vec<(String, Bytes)>, TaskError> {
        Ok(Vec::new())
    }
}

/// Makes every checkpoint take a while.
struct Slow;

impl Sink for Slow {
    fn write(&mut self, _: RecordBatch) -> BoxFuture<'_, Result<(), TaskError>> {
        Box::pin(std::future::ready(Ok(())))
    }

    fn prepare(&mut self, _: u64) -> BoxFuture<'_, Result<Bytes, TaskError>> {
        Box::pin(async {
            sleep(Duration::from_millis(20)).await;
            Ok(Bytes::new())
        })
    }

    fn commit(&mut self, _: Bytes) -> BoxFuture<'_, Result<(), TaskError>> {
        Box::pin(std::future::ready(Ok(())))
    }
}

/// A sink that keeps rows for a checkpoint that comes in an hour, or that others take long to complete, would exhaust
/// the memory, or end the job.
#[test]
fn a_sink_that_is_full_gets_a_checkpoint() {
    for (workers, others_are_slow) in [(1, false), (3, false), (1, true), (3, true)] {
        let folder = tempfile::tempdir().unwrap();
        let world = World::default();
        let seen = Arc::<Kept>::default();
        let (of_sink, outside) = (Arc::clone(&seen), Arc::clone(&world));
        let mut graph = graph_into(4000, Duration::ZERO, None, move |context| Full {
            outside: Outside::new(&outside, context.copy()),
            kept: 0,
            seen: Arc::clone(&of_sink),
        });
        if others_are_slow {
            let of_source = Arc::clone(&seen);
            let waiting = TaskSpec::source("waiting", None, move |_| {
                let look = Box::pin(sleep(Duration::ZERO));
                Ok(Waiting { seen: Arc::clone(&of_source), rows: 4000 * u64::from(SPLITS), look })
            });
            let waiting = graph.add(waiting.output("out", events()).copies(1));
            let slow = graph.add(TaskSpec::sink("slow", |_| Ok(Slow)).input("in").copies(1));
            graph.connect(waiting, slow, Direct);
        }
        let outcomes = run_ranks(workers, |comm| {
            let settings =
                RunnerSettings { threads: 1, queue_bytes: 1, batch_bytes: 1 << 10, ..RunnerSettings::default() };
            let runner = Runner::new(&comm, settings).unwrap();
            let interval = Duration::from_secs(3600);
            let checkpoints = CheckpointSettings { interval, ..CheckpointSettings::in_folder(folder.path()).unwrap() };
            runner.run_job(&graph, &RoundRobin, Some(&checkpoints), &mut |_| Ok(())).map(drop)
        });
        outcomes.unwrap().into_iter().collect::<Result<(), _>>().unwrap();
        check(&world, 4000);
        let most = seen.most.load(Ordering::SeqCst) as usize;
        // Rows on their way precede the barrier; how many there are depends on scheduling.
        assert!((KEPT_MAX / 2..10 * KEPT_MAX).contains(&most), "{most} rows of 20000 were kept");
    }
}

/// Passes on what comes, and emits something whenever time advances or something ends.
struct Talkative;

impl Talkative {
    fn say(&self, emit: &mut Emitter) -> Result<EmitStatus, TaskError> {
        let column = || Arc::new(Int64Array::from(vec![-1]));
        emit.send(RecordBatch::try_new(totals(), vec![column(), column()])?);
        Ok(EmitStatus::Done)
    }
}

impl Operator for Talkative {
    fn on_batch(&mut self, _: usize, batch: RecordBatch, emit: &mut Emitter) -> Result<EmitStatus, TaskError> {
        let columns = vec![Arc::clone(batch.column(0)), Arc::clone(batch.column(1))];
        emit.send(RecordBatch::try_new(totals(), columns)?);
        Ok(EmitStatus::Done)
    }

    fn on_watermark(&mut self, _: EventTime, emit: &mut Emitter) -> Result<EmitStatus, TaskError> {
        self.say(emit)
    }

    fn on_input_end(&mut self, _: usize, emit: &mut Emitter) -> Result<EmitStatus, TaskError> {
        self.say(emit)
    }

    fn on_end(&mut self, emit: &mut Emitter) -> Result<EmitStatus, TaskError> {
        self.say(emit)
    }
}

/// Stops a job whose sources never end; one of them is slow to start, and one is far ahead of the others in time.
/// Rows emitted because of the ends behind the barrier, or of the time that these ends release, would come again when
/// the job resumes. A source that never received the barrier would continue forever.
#[test]
fn nothing_comes_behind_a_stop() {
    let folder = tempfile::tempdir().unwrap();
    let world = World::default();
    let mut graph = Graph::new("endless");
    let source = TaskSpec::source("numbers", Some(WatermarkStrategy::of("time")), |context| {
        let time = match context.copy() {
            // The others have no rows, and hold back time.
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
    let sink = TaskSpec::sink("outside", move |context| Ok(Outside::new(&outside, context.copy())));
    let sink = graph.add(sink.input("in"));
    graph.connect(source, talk, Partition::by_key(["key"]));
    graph.connect(talk, sink, Direct);
    let outcomes = run_ranks(3, |comm| {
        let runner = Runner::new(&comm, RunnerSettings { threads: 1, ..RunnerSettings::default() }).unwrap();
        let interval = Duration::ZERO;
        let checkpoints = CheckpointSettings { interval, ..CheckpointSettings::in_folder(folder.path()).unwrap() };
        let mut asked = 0;
        let mut stop = |progress: &RunProgress| {
            asked += 1;
            // More than once, since the caller does not know whether the request was received.
            if asked <= 2 {
                progress.request(BarrierControl::Stop);
            }
            Ok(())
        };
        runner.run_job(&graph, &RoundRobin, Some(&checkpoints), &mut stop).map(drop)
    });
    outcomes.unwrap().into_iter().collect::<Result<(), _>>().unwrap();
    let rows: Vec<_> = world.lock().unwrap().values().flatten().copied().collect();
    assert!(rows.is_empty() || rows == [(7, 7)], "{rows:?}");
}

/// A damaged checkpoint is skipped in favor of the previous one; if none can be read, the job does not silently start
/// afresh.
#[test]
fn damaged_checkpoints_are_skipped() {
    let folder = tempfile::tempdir().unwrap();
    let world = World::default();
    // Late enough for two checkpoints to exist.
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
    let exact = run_ranks(2, |comm| {
        let runner = Runner::new(&comm, RunnerSettings { threads: 1, ..RunnerSettings::default() }).unwrap();
        let settings = CheckpointSettings::in_folder(folder.path()).unwrap();
        let settings = CheckpointSettings { may_repeat: false, ..settings };
        let graph = graph(2000, Duration::ZERO, None, &world);
        runner.run_job(&graph, &RoundRobin, Some(&settings), &mut |_| Ok(())).unwrap_err().to_string()
    });
    for error in exact.unwrap() {
        let name = newest.file_name().unwrap().to_str().unwrap();
        assert!(error.contains("come again, which the job must not do") && error.contains(name), "{error}");
    }
    let wrong = run(2, folder.path(), 2000, Some(Arc::new(AtomicU64::new(3))), &world, quiet);
    assert!(wrong.unwrap_err().to_string().contains("the fuse has blown"), "it goes on from the other one");
    run(2, folder.path(), 2000, None, &world, quiet).expect("the number of the damaged one does not stand in its way");

    for path in epochs() {
        std::fs::write(path, "tidemill checkpoint 2 0000\n{}").unwrap();
    }
    let error = run(2, folder.path(), 2000, None, &world, quiet).unwrap_err().to_string();
    assert!(error.contains("none can be read; remove them to start fresh"), "{error}");
}

/// Two jobs in one place would mistake each other's checkpoints for their own.
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
        let runner = Runner::new(&comm, RunnerSettings::default()).unwrap();
        let checkpoints = CheckpointSettings::in_folder(folder.path()).unwrap();
        let mut graph = Graph::new("another");
        let source = TaskSpec::source("numbers", None, |context| Ok(Numbers::new(context, 10, None)));
        let source = graph.add(source.output("out", events()));
        let sink = graph.add(TaskSpec::new("nothing", |_, _, _| async { Ok(()) }).input("in").streaming());
        graph.connect(source, sink, Direct);
        runner.run_job(&graph, &RoundRobin, Some(&checkpoints), &mut |_| Ok(())).unwrap_err().to_string()
    });
    for error in other.unwrap() {
        assert!(error.contains("they belong to job \"counting\", not to \"another\""), "{error}");
    }
}

/// A task that keeps rows and cannot save them must not be in such a job: it would lose them.
#[test]
fn tasks_that_cannot_save_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let errors = run_ranks(2, |comm| {
        let runner = Runner::new(&comm, RunnerSettings::default()).unwrap();
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
