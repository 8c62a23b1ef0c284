//! Rounds in jobs that make checkpoints: whatever fails in between, and however many workers go on, the n-th result is
//! of the n-th message of every copy, and appears once.

mod common;

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use arrow::array::{ArrayRef, Int64Array, RecordBatch, TimestampMicrosecondArray};
use arrow::datatypes::{DataType, SchemaRef, TimeUnit};
use bytes::Bytes;
use common::counting::{Outside, World, quiet, run_graph, run_on};
use common::schema;
use tidemill_dataflow::exchange::*;
use tidemill_dataflow::stream::source::{Source, SourceEvent};
use tidemill_dataflow::{Graph, Overlay, TaskContext, TaskError, TaskSpec};

const COPIES: u32 = 4;
const ROUNDS: i64 = 150;

/// A key and a number.
type Row = (i64, i64);

fn rows_schema() -> SchemaRef {
    let time = DataType::Timestamp(TimeUnit::Microsecond, None);
    schema(&[("k", DataType::Int64), ("n", DataType::Int64), ("t", time)])
}

/// The n-th message of a copy.
fn message(copy: u32, n: i64) -> Vec<Row> {
    vec![(n % 5, 1 << (8 * copy)), (9, n)]
}

/// Sends its messages, each copy at a speed of its own, and fails when it is told to.
struct Beats {
    copy: u32,
    next: i64,
    fuse: Option<Arc<AtomicU64>>,
    pause: Option<Pin<Box<tokio::time::Sleep>>>,
}

impl Beats {
    fn new(context: &TaskContext, fuse: Option<Arc<AtomicU64>>) -> Self {
        let saved = context.restored().and_then(|restored| restored.splits.values().next().cloned());
        let next = saved.map_or(0, |next| i64::from_le_bytes(next.as_ref().try_into().unwrap()));
        Beats { copy: context.copy(), next, fuse, pause: None }
    }
}

impl Source for Beats {
    fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Result<SourceEvent, TaskError>> {
        if let Some(pause) = &mut self.pause {
            if pause.as_mut().poll(context).is_pending() {
                return Poll::Pending;
            }
            self.pause = None;
        }
        if self.next == ROUNDS {
            return Poll::Ready(Ok(SourceEvent::End));
        }
        if self.fuse.as_ref().is_some_and(|fuse| fuse.fetch_sub(1, Ordering::SeqCst) == 1) {
            return Poll::Ready(Err("the fuse has blown".into()));
        }
        let rows = message(self.copy, self.next);
        let times = TimestampMicrosecondArray::from_value(self.next, rows.len());
        self.next += 1;
        // In turn one is ahead and the other.
        let is_slow = (self.next / 40 + i64::from(self.copy)) % 3 == 0;
        self.pause = is_slow.then(|| Box::pin(tokio::time::sleep(Duration::from_millis(1))));
        let column = |of: fn(&Row) -> i64| Arc::new(Int64Array::from_iter_values(rows.iter().map(of)));
        let columns = [column(|row| row.0), column(|row| row.1)].map(|column| column as ArrayRef);
        let columns = columns.into_iter().chain([Arc::new(times) as ArrayRef]).collect();
        let rows = RecordBatch::try_new(rows_schema(), columns)?;
        Poll::Ready(Ok(SourceEvent::rows(0, rows)))
    }

    fn snapshot(&mut self) -> Result<Vec<(String, Bytes)>, TaskError> {
        Ok(vec![(self.copy.to_string(), Bytes::copy_from_slice(&self.next.to_le_bytes()))])
    }
}

/// Runs the job with failures, each time with one of `workers`, until it ends. Returns what the sink's copies have
/// made appear, in order.
fn run(workers: &[u32], copies: u32, seed: u64, exchange: impl Exchange + Clone + 'static) -> Vec<Vec<Row>> {
    let (folder, world) = (tempfile::tempdir().unwrap(), World::default());
    let mut failures = 0;
    for (attempt, &workers) in workers.iter().cycle().enumerate() {
        let fuse = (attempt < 4).then(|| Arc::new(AtomicU64::new(60 + (seed * 7919 + attempt as u64 * 131) % 170)));
        let of_sink = Arc::clone(&world);
        let mut graph = Graph::new("rounds");
        let source = TaskSpec::source("beats", None, move |context| Ok(Beats::new(context, fuse.clone())));
        let source = graph.add(source.output("out", rows_schema()).copies(COPIES));
        let sink = TaskSpec::sink("outside", move |context| Ok(Outside::new(&of_sink, context.copy())));
        let sink = graph.add(sink.input("in").copies(copies));
        graph.connect(source, sink, exchange.clone());
        // Two are on a host, so that there are trees.
        let hosts: Vec<u32> = (0..workers).map(|worker| worker - worker % 2).collect();
        match run_on(&hosts, folder.path(), &graph, None, quiet) {
            Ok(()) => break,
            Err(error) => assert!(error.to_string().contains("the fuse has blown"), "{error}"),
        }
        failures += 1;
    }
    assert!(failures > 1, "it shows nothing");
    let mut found = vec![Vec::new(); copies as usize];
    // By epoch, and the copy.
    for (unit, rows) in world.lock().unwrap().iter() {
        let copy: usize = std::str::from_utf8(unit).unwrap().split(' ').nth(1).unwrap().parse().unwrap();
        found[copy].extend(rows);
    }
    found
}

fn strict<E: Exchange>(exchange: E) -> Rounds<E> {
    Rounds::new(exchange, RoundEnd::Strict)
}

fn messages() -> impl Iterator<Item = Row> {
    (0..ROUNDS).flat_map(|n| (0..COPIES).flat_map(move |copy| message(copy, n)))
}

fn sorted(rows: impl IntoIterator<Item = Row>) -> Vec<Row> {
    let mut rows: Vec<Row> = rows.into_iter().collect();
    rows.sort_unstable();
    rows
}

/// With other workers every time, so that what was open in one tree goes on in another.
#[test]
fn reductions_go_on_across_failures() {
    let sum = |rows: Vec<Row>| rows.iter().fold((0, 0), |sum, row| (sum.0 + row.0, sum.1 + row.1));
    let expected: Vec<Row> =
        (0..ROUNDS).map(|n| sum((0..COPIES).flat_map(|copy| message(copy, n)).collect())).collect();
    for seed in 0..3 {
        let reduction = Reduction::new().sum("k").sum("n");
        assert_eq!(run(&[2, 3, 1, 4], 2, seed, strict(Reduce::new(reduction.clone()).to(1)))[1], expected);
        let found = run(&[3, 2], 3, seed, strict(AllReduce::new(reduction)));
        assert!(found.iter().all(|copy| *copy == expected), "every copy has all results");
    }
}

/// Copies of a task have the rounds of their streams again, wherever they run; of a task with other copies each has the
/// rows that are now its own.
#[test]
fn rounds_of_streams_go_on_across_failures() {
    for seed in 0..3 {
        let found = run(&[2, 3, 1], 2, seed, strict(Gather::to(1)));
        assert_eq!(found[1], messages().collect::<Vec<_>>());
        let found = run(&[3, 2], 3, seed, strict(Broadcast::default()));
        assert!(found.iter().all(|copy| *copy == messages().collect::<Vec<_>>()));
        let found = run(&[2, 1, 3], 3, seed, strict(Partition::by_key(["k"])));
        assert_eq!(sorted(found.concat()), sorted(messages()));
        let found = run(&[3, 1, 2], COPIES, seed, strict(Direct));
        assert_eq!(sorted(found.concat()), sorted(messages()));
        let found = run(&[2, 3], 3, seed, strict(KeyedGather::new(["k"])));
        assert_eq!(sorted(found.concat()), sorted(messages()));
        // Its tree is that of the workers: they stay.
        let found = run(&[3], 3, seed, strict(KeyedReduce::new(["k"], Reduction::new().sum("n"))));
        let all = (0..COPIES).map(|copy| 1 << (8 * copy)).sum();
        let expected = (0..ROUNDS).flat_map(|n| [(n % 5, all), (9, i64::from(COPIES) * n)]);
        assert_eq!(sorted(found.concat()), sorted(expected));
    }
}

/// What is open in the stages of trees goes on there, and nothing is combined twice.
#[test]
fn keyed_trees_go_on_across_failures() {
    for (seed, overlay) in [(0, Overlay::Flat), (1, Overlay::Binomial)] {
        let reduce = KeyedReduce::new(["k"], Reduction::new().sum("n")).along(overlay);
        let found = run(&[4], 3, seed, strict(reduce));
        let all = (0..COPIES).map(|copy| 1 << (8 * copy)).sum();
        let expected = (0..ROUNDS).flat_map(|n| [(n % 5, all), (9, i64::from(COPIES) * n)]);
        assert_eq!(sorted(found.concat()), sorted(expected));
    }
}

/// Rows of slices that were not over go on with them.
#[test]
fn rounds_of_time_go_on_across_failures() {
    let length_us = 10.try_into().unwrap();
    let slices = TimeSlices { column: 2, start_us: 0, length_us, out_of_order_us: Some(0) };
    let slice = |at: i64| (0..COPIES).flat_map(move |copy| (10 * at..10 * at + 10).flat_map(move |n| message(copy, n)));
    for seed in 0..2 {
        let found = run(&[2, 3, 1], 2, seed, strict(Gather::to(1)).of(RoundUnit::Time(slices)));
        assert_eq!(found[1], (0..ROUNDS / 10).flat_map(slice).collect::<Vec<_>>());
        let reduce = KeyedReduce::new(["k"], Reduction::new().sum("n")).along(Overlay::Flat);
        let found = run(&[4], 3, seed, strict(reduce).of(RoundUnit::Time(slices)));
        let sums = (0..ROUNDS / 10).flat_map(|at| {
            let mut sums = std::collections::BTreeMap::new();
            slice(at).for_each(|(k, n)| *sums.entry(k).or_insert(0) += n);
            sums
        });
        assert_eq!(sorted(found.concat()), sorted(sums));
    }
}

/// An epoch that is given up, or that a copy does not see before its end, must not lose what it had.
#[test]
fn epochs_are_rounds() {
    let sum = |rows: &[Row]| rows.iter().fold((0, 0), |sum, row| (sum.0 + row.0, sum.1 + row.1));
    let all: Vec<Row> = messages().collect();
    for seed in 0..3 {
        let reduction = Reduction::new().sum("k").sum("n");
        let found = run(&[2, 3, 1, 4], 1, seed, strict(Reduce::new(reduction)).of(RoundUnit::Epoch));
        assert_eq!(sum(&found[0]), sum(&all));
        assert!(found[0].len() < ROUNDS as usize, "a result is of many messages");
        let found = run(&[2, 3], 2, seed, strict(Gather::to(0)).of(RoundUnit::Epoch));
        assert_eq!(sorted(found.concat()), sorted(all.clone()));
        let found = run(&[3], 3, seed, strict(KeyedReduce::new(["k"], Reduction::new().sum("n"))).of(RoundUnit::Epoch));
        assert_eq!(found.concat().iter().map(|row| row.1).sum::<i64>(), sum(&all).1);
    }
}

/// How far a sender is in a round of rows is in no checkpoint.
#[test]
fn rounds_of_rows_make_no_checkpoints() {
    let mut graph = Graph::new("rows");
    let source = TaskSpec::source("beats", None, move |context| Ok(Beats::new(context, None)));
    let source = graph.add(source.output("out", rows_schema()).copies(1));
    let sink = TaskSpec::sink("outside", |context| Ok(Outside::new(&World::default(), context.copy())));
    let sink = graph.add(sink.input("in").copies(1));
    graph.connect(source, sink, strict(Direct).of(RoundUnit::Rows(10.try_into().unwrap())));
    let folder = tempfile::tempdir().unwrap();
    let error = run_graph(1, folder.path(), &graph, quiet).unwrap_err().to_string();
    assert!(error.contains("goes by rounds of rows"), "{error}");
}

/// What goes round in a loop is in no checkpoint; to begin without it would be wrong in silence.
#[test]
fn loops_make_no_checkpoints() {
    let mut graph = Graph::new("loop");
    let body = |_: tidemill_dataflow::Inputs, _: tidemill_dataflow::Outputs, _| async { Ok(()) };
    let task = graph.add(TaskSpec::new("head", body).streaming().input("in").output("out", rows_schema()).copies(2));
    graph.feedback(task, task, strict(Broadcast::default()));
    let folder = tempfile::tempdir().unwrap();
    let error = run_graph(2, folder.path(), &graph, quiet).unwrap_err().to_string();
    assert!(error.contains("a job with a loop makes no checkpoints"), "{error}");
}
