//! Measures how long a stream hesitates when state moves between its workers.
//!
//! `target/release/examples/rebalance [WORKERS] [MEGABYTES] [TIMES]`: workers are threads of one process that send
//! each other frames. Each sends some rows every millisecond, partitioned by key, to an operator that keeps MEGABYTES
//! in total. All of its state moves TIMES times, each part to the next copy. A row's latency is the time from its
//! creation to a sink behind the operator.

use std::collections::BTreeMap;
use std::future::{Future, ready};
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use arrow::array::{AsArray, Int64Array, RecordBatch};
use arrow::datatypes::{DataType, Field, Int64Type, Schema, SchemaRef};
use bytes::Bytes;
use futures_util::future::BoxFuture;
use tidemill_collective::run_ranks;
use tidemill_dataflow::checkpoint::{CheckpointSettings, Snapshot, SnapshotPart};
use tidemill_dataflow::exchange::{Direct, Partition};
use tidemill_dataflow::operator::{EmitStatus, ReleasedParts};
use tidemill_dataflow::placement::RoundRobin;
use tidemill_dataflow::rebalance::PendingRebalance;
use tidemill_dataflow::route_map::{BUCKETS, RouteMap};
use tidemill_dataflow::stream::BarrierControl;
use tidemill_dataflow::stream::sink::Sink;
use tidemill_dataflow::stream::source::{Source, SourceEvent};
use tidemill_dataflow::{
    Emitter, Graph, Operator, RunProgress, Runner, RunnerSettings, TaskContext, TaskError, TaskSpec,
};

const ROWS: i64 = 64;
/// The pause between rebalances.
const QUIET: Duration = Duration::from_millis(1500);

fn schema() -> SchemaRef {
    let field = |name: &str| Field::new(name, DataType::Int64, false);
    Arc::new(Schema::new(vec![field("key"), field("made_ns")]))
}

struct Ticks {
    begun: Instant,
    next: i64,
    pause: Pin<Box<tokio::time::Sleep>>,
}

impl Source for Ticks {
    fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Result<SourceEvent, TaskError>> {
        if self.pause.as_mut().poll(context).is_pending() {
            return Poll::Pending;
        }
        self.pause = Box::pin(tokio::time::sleep(Duration::from_millis(1)));
        let made = self.begun.elapsed().as_nanos() as i64;
        let keys = Int64Array::from_iter_values(self.next..self.next + ROWS);
        self.next += ROWS;
        let columns: Vec<arrow::array::ArrayRef> =
            vec![Arc::new(keys), Arc::new(Int64Array::from(vec![made; ROWS as usize]))];
        Poll::Ready(Ok(SourceEvent::rows(0, RecordBatch::try_new(schema(), columns)?)))
    }

    fn snapshot(&mut self) -> Result<Vec<(String, Bytes)>, TaskError> {
        Ok(Vec::new())
    }
}

/// Passes rows on, and keeps the same amount for each bucket.
struct Heavy(BTreeMap<u32, Vec<Bytes>>);

impl Heavy {
    fn new(context: &TaskContext, bytes: usize) -> Self {
        let route = RouteMap::even(BUCKETS, context.copies());
        let mine = (0..BUCKETS).filter(|&bucket| route.copy(bucket) == context.copy());
        Heavy(mine.map(|bucket| (bucket, vec![Bytes::from(vec![bucket as u8; bytes / BUCKETS as usize])])).collect())
    }
}

impl Operator for Heavy {
    fn on_batch(&mut self, _: usize, batch: RecordBatch, emit: &mut Emitter) -> Result<EmitStatus, TaskError> {
        emit.send(batch);
        Ok(EmitStatus::Done)
    }

    fn snapshot(&mut self, whole: bool) -> Result<Snapshot, TaskError> {
        let all = self
            .0
            .iter()
            .filter(|_| whole)
            .map(|(bucket, parts)| (*bucket, SnapshotPart::Whole(parts.concat().into())));
        Ok(Snapshot { buckets: all.collect(), ..Snapshot::default() })
    }

    fn moves() -> bool {
        true
    }

    fn release(&mut self, buckets: &[u32]) -> Result<ReleasedParts, TaskError> {
        let parts =
            |bucket: &u32| self.0.remove(bucket).into_iter().flatten().map(|part| (*bucket, part)).collect::<Vec<_>>();
        Ok(buckets.iter().flat_map(parts).collect::<Vec<_>>().into())
    }

    fn acquire(&mut self, parts: Vec<(u32, Bytes)>) -> Result<(), TaskError> {
        parts.into_iter().for_each(|(bucket, part)| self.0.entry(bucket).or_default().push(part));
        Ok(())
    }
}

/// When rows arrived, and how old they were then.
type Seen = Arc<Mutex<Vec<(Duration, Duration)>>>;

struct Clock {
    begun: Instant,
    seen: Seen,
}

impl Sink for Clock {
    fn write(&mut self, rows: RecordBatch) -> BoxFuture<'_, Result<(), TaskError>> {
        let now = self.begun.elapsed();
        let made = rows.column(1).as_primitive::<Int64Type>().values();
        let age = |made: &i64| (now, now.saturating_sub(Duration::from_nanos(*made as u64)));
        self.seen.lock().expect("nothing panics with it locked").extend(made.iter().map(age));
        Box::pin(ready(Ok(())))
    }

    fn prepare(&mut self, _: u64) -> BoxFuture<'_, Result<Bytes, TaskError>> {
        Box::pin(ready(Ok(Bytes::new())))
    }

    fn commit(&mut self, _: Bytes) -> BoxFuture<'_, Result<(), TaskError>> {
        Box::pin(ready(Ok(())))
    }
}

struct Moves {
    left: u32,
    asked: Option<(Duration, PendingRebalance)>,
    quiet_since: Duration,
    /// When each move was requested, and when it was known to be done.
    spans: Vec<(Duration, Duration)>,
}

fn main() {
    let mut arguments = std::env::args().skip(1).map(|argument| argument.parse::<u32>().expect("numbers"));
    let (workers, megabytes) = (arguments.next().unwrap_or(2), arguments.next().unwrap_or(100));
    let times = arguments.next().unwrap_or(5);
    let (begun, seen) = (Instant::now(), Seen::default());
    let mut graph = Graph::new("hesitation");
    let source = TaskSpec::source("ticks", None, move |_| {
        Ok(Ticks { begun, next: 0, pause: Box::pin(tokio::time::sleep(Duration::from_millis(1))) })
    });
    let source = graph.add(source.output("out", schema()));
    let bytes = megabytes as usize * 1_000_000;
    let heavy = TaskSpec::operator("heavy", move |context| Ok(Heavy::new(context, bytes))).streaming();
    let heavy = graph.add(heavy.input("in").output("out", schema()));
    let of_sink = Arc::clone(&seen);
    let sink = TaskSpec::sink("clock", move |_| Ok(Clock { begun, seen: Arc::clone(&of_sink) }));
    let sink = graph.add(sink.input("in"));
    graph.connect(source, heavy, Partition::by_key(["key"]));
    graph.connect(heavy, sink, Direct);

    let folder = tempfile::tempdir().expect("a folder");
    let moves = Moves { left: times, asked: None, quiet_since: Duration::ZERO, spans: Vec::new() };
    let moves = Mutex::new(moves);
    run_ranks(workers, |comm| {
        let first = comm.rank() == 0;
        let runner = Runner::new(&comm, RunnerSettings { threads: 2, ..RunnerSettings::default() }).expect("a runner");
        // Only requested checkpoints are made, so that only what moves is measured.
        let interval = Duration::ZERO;
        let checkpoints =
            CheckpointSettings { interval, ..CheckpointSettings::in_folder(folder.path()).expect("a store") };
        let mut look = |progress: &RunProgress| {
            if !first {
                return Ok(());
            }
            let moves = &mut *moves.lock().expect("nothing panics with it locked");
            let now = begun.elapsed();
            if let Some((since, asked)) = &mut moves.asked {
                let Some(outcome) = asked.outcome() else { return Ok(()) };
                let moved = outcome?;
                println!(
                    "epoch {}: {} buckets, {} bytes, waited {:.1?}",
                    moved.epoch, moved.buckets, moved.bytes, moved.waited
                );
                moves.spans.push((*since, now));
                (moves.asked, moves.quiet_since) = (None, now);
                // Gained state is saved whole the next time; that must not happen at the next barrier that moves
                // buckets.
                progress.request(BarrierControl::Checkpoint);
            } else if now > moves.quiet_since + QUIET {
                if moves.left == 0 {
                    progress.request(BarrierControl::Stop);
                    return Ok(());
                }
                moves.left -= 1;
                let map = progress.route("heavy").expect("it is dealt by key");
                let next: Vec<(u32, u32)> =
                    (0..BUCKETS).map(|bucket| (bucket, (map.copy(bucket) + 1) % workers)).collect();
                moves.asked = Some((now, progress.rebalance([("heavy".to_owned(), map.moved(&next))].into())));
            }
            Ok(())
        };
        runner.run_job(&graph, &RoundRobin, Some(&checkpoints), &mut look).map(drop).expect("a job that works");
    })
    .expect("workers");

    let seen = std::mem::take(&mut *seen.lock().expect("nothing panics with it locked"));
    let spans = moves.into_inner().expect("nothing panics with it locked").spans;
    let within =
        |at: Duration| spans.iter().position(|(from, to)| at >= *from && at <= *to + Duration::from_millis(300));
    let mut quiet: Vec<Duration> = seen.iter().filter(|(at, _)| within(*at).is_none()).map(|(_, age)| *age).collect();
    quiet.sort_unstable();
    let at = |share: f64| quiet[((quiet.len() - 1) as f64 * share) as usize];
    println!("{} rows; between rebalances latency is {:.2?} (median), {:.2?} (99 %)", seen.len(), at(0.5), at(0.99));
    for (number, _) in spans.iter().enumerate() {
        let most = seen.iter().filter(|(at, _)| within(*at) == Some(number)).map(|(_, age)| *age).max();
        println!("rebalance {}: latency is at most {:.1?}", number + 1, most.unwrap_or_default());
    }
}
