//! Jobs for tests: a source, an operator that fails on demand, a sink.
#![allow(dead_code, reason = "not every test uses all of it")]

pub mod kafka;
pub mod redis;
pub mod server;

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use arrow::array::RecordBatch;
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use serde_json::Value;
use tidemill_collective::run_ranks;
use tidemill_connect::{MakeSink, MakeSource, SinkSpec, SourceSpec};
use tidemill_dataflow::checkpoint::{CheckpointSettings, CheckpointStore};
use tidemill_dataflow::exchange::Direct;
use tidemill_dataflow::operator::EmitStatus;
use tidemill_dataflow::placement::RoundRobin;
use tidemill_dataflow::rebalance::{PendingRebalance, Rebalance, SplitMoves};
use tidemill_dataflow::stream::BarrierControl;
use tidemill_dataflow::stream::sink::Sink;
use tidemill_dataflow::{
    DataflowError, Emitter, Graph, Operator, RunProgress, Runner, RunnerSettings, TaskContext, TaskError, TaskSpec,
};
use tidemill_storage::ObjectStores;

pub const BLOWN: &str = "the fuse has blown";

pub fn schema(fields: &[(&str, DataType)]) -> SchemaRef {
    let fields: Vec<Field> = fields.iter().map(|(name, t)| Field::new(*name, t.clone(), true)).collect();
    Arc::new(Schema::new(fields))
}

/// Random numbers of a test.
pub struct Random(pub u64);

impl Random {
    pub fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) % n
    }
}

/// Passes rows on until it has seen this many.
struct Fuse(Option<Arc<AtomicU64>>);

impl Operator for Fuse {
    fn on_batch(&mut self, _input: usize, batch: RecordBatch, emit: &mut Emitter) -> Result<EmitStatus, TaskError> {
        let rows = batch.num_rows() as u64;
        if let Some(left) = &self.0
            && left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| Some(left.saturating_sub(rows))).unwrap()
                <= rows
        {
            return Err(BLOWN.into());
        }
        emit.send(batch);
        Ok(EmitStatus::Done)
    }
}

/// A job that copies a stream.
pub struct Job<'a> {
    pub source: &'a Value,
    pub schema: Option<SchemaRef>,
    pub sink: &'a Value,
    pub checkpoints: &'a Path,
    pub interval: Duration,
}

impl Job<'_> {
    /// Runs it on `workers` workers until it ends, has passed on this many rows, or `look` stops it.
    pub fn run(
        &self,
        workers: u32,
        rows: Option<u64>,
        look: impl Fn(&RunProgress) -> Result<(), String> + Sync,
    ) -> Result<(), DataflowError> {
        let source = tidemill_connect::source(self.source, self.schema.clone(), &ObjectStores::default()).unwrap();
        let sink = tidemill_connect::sink(self.sink, &source.schema, &ObjectStores::default()).unwrap();
        let fuse = rows.map(|rows| Arc::new(AtomicU64::new(rows)));
        let graph = graph(&source, &sink, fuse);
        let outcomes = run_ranks(workers, |comm| {
            let settings =
                RunnerSettings { threads: 1, queue_bytes: 1, batch_bytes: 1 << 14, ..RunnerSettings::default() };
            let runner = Runner::new(&comm, settings).unwrap();
            let store = CheckpointStore::folder(self.checkpoints).unwrap();
            let checkpoints = CheckpointSettings { interval: self.interval, ..CheckpointSettings::new(store) };
            // Only worker 0 calls it.
            let mut look = |progress: &RunProgress| if comm.rank() == 0 { look(progress) } else { Ok(()) };
            runner.run_job(&graph, &RoundRobin, Some(&checkpoints), &mut look).map(drop)
        });
        outcomes.unwrap().into_iter().collect()
    }

    /// As `run`, until the fuse blows, which must happen.
    pub fn fail(&self, workers: u32, rows: u64) {
        let error = self.run(workers, Some(rows), |_| Ok(())).unwrap_err();
        assert!(error.to_string().contains(BLOWN), "{error}");
    }
}

/// Keeps moving all splits of a job's source to the next copy, as long as the job runs.
#[derive(Default)]
pub struct SplitMover {
    under_way: Mutex<Option<PendingRebalance>>,
    moved: AtomicU64,
}

impl SplitMover {
    pub fn look(&self, progress: &RunProgress) {
        let mut under_way = self.under_way.lock().unwrap();
        match under_way.as_mut().map(PendingRebalance::outcome) {
            Some(None) => return,
            Some(Some(Ok(report))) => drop(self.moved.fetch_add(report.splits.into(), Ordering::SeqCst)),
            // Copies that have ended take none.
            Some(Some(Err(reason))) => assert!(reason.contains("end"), "{reason}"),
            None => {}
        }
        *under_way = None;
        let layout = progress.layout();
        let Some(source) = layout.tasks.iter().find(|task| task.name == "read") else { return };
        let open: Vec<u32> =
            (0..).zip(&source.splits).filter(|(_, splits)| splits.is_some()).map(|(copy, _)| copy).collect();
        let mut moves = SplitMoves::new();
        for (at, from) in open.iter().enumerate().filter(|_| open.len() > 1) {
            let to = open[(at + 1) % open.len()];
            for split in source.splits[*from as usize].iter().flatten() {
                moves.entry(*from).or_default().insert(split.clone(), to);
            }
        }
        if !moves.is_empty() {
            let splits = [("read".to_owned(), moves)].into();
            *under_way = Some(progress.apply(Rebalance { splits, ..Rebalance::default() }));
        }
    }

    /// How many were taken over.
    pub fn moved(&self) -> u64 {
        self.moved.load(Ordering::SeqCst)
    }
}

/// Requests the job's end at a barrier, the first time `when` returns true.
pub fn stop_when(when: impl Fn() -> bool) -> impl Fn(&RunProgress) -> Result<(), String> {
    let asked = AtomicBool::new(false);
    move |progress| {
        if !asked.load(Ordering::SeqCst) && when() && !asked.swap(true, Ordering::SeqCst) {
            progress.request(BarrierControl::Stop);
        }
        Ok(())
    }
}

fn graph(source: &SourceSpec, sink: &SinkSpec, fuse: Option<Arc<AtomicU64>>) -> Graph {
    let mut graph = Graph::new("copying");
    let (make, schema): (MakeSource, SchemaRef) = (Arc::clone(&source.make), SchemaRef::clone(&source.schema));
    let read = TaskSpec::source("read", None, move |context| make(context)).output("out", schema.clone());
    let read = graph.add(if source.moves_splits { read.movable_splits() } else { read });
    let pass = TaskSpec::operator("pass", move |_| Ok(Fuse(fuse.clone())));
    let pass = graph.add(pass.streaming().input("in").output("out", schema));
    let make: MakeSink = Arc::clone(&sink.make);
    let write = graph.add(TaskSpec::sink("write", move |context| make(context)).input("in"));
    graph.connect(read, pass, Direct);
    graph.connect(pass, write, Direct);
    graph
}

/// Makes sinks outside of a job, one after another, and runs `body` on them on the runner's threads.
pub fn with_sinks<F>(sink: &Value, schema: &SchemaRef, body: F)
where
    F: AsyncFn(&dyn Fn() -> Box<dyn Sink>),
{
    let make = tidemill_connect::sink(sink, schema, &ObjectStores::default()).unwrap().make;
    let found: Arc<Mutex<Option<TaskContext>>> = Arc::default();
    let keep = Arc::clone(&found);
    let mut graph = Graph::new("making");
    let make_task = TaskSpec::new("make", move |_, _, context| {
        *keep.lock().unwrap() = Some(context);
        async { Ok(()) }
    });
    let make_task = graph.add(make_task.input("in"));
    let none = TaskSpec::new("none", |_, _, _| async { Ok(()) });
    let none = graph.add(none.output("out", SchemaRef::clone(schema)));
    graph.connect(none, make_task, Direct);
    run_ranks(1, |comm| {
        let runner = Runner::new(&comm, RunnerSettings { threads: 1, ..RunnerSettings::default() }).unwrap();
        runner.run(&graph).unwrap();
    })
    .unwrap();
    let context = found.lock().unwrap().take().unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    runtime.block_on(body(&|| make(&context).unwrap()));
}
