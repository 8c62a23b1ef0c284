//! How fast batches move between the workers of a job: messages, bytes and rows per second of a few exchanges.
//!
//! Under a launcher (`tidemill run -n 2 target/release/examples/exchanges`, `mpirun -n 2 ...`) the workers are
//! processes; without one they are two threads. An argument scales the amounts, 0.01 for a quick look. A second one
//! is each worker's memory budget in MiB, and a third one selects the cases whose names contain it.

use std::sync::Arc;

use arrow::array::{Float64Array, Int64Array, RecordBatch};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use tidemill_collective::{Communicator, TuneTable, run_ranks};
use tidemill_dataflow::exchange::{
    AllReduce, Broadcast, Exchange, Gather, KeyedReduce, Partition, Reduction, Sort, SortKey,
};
use tidemill_dataflow::{Graph, RunReport, Runner, RunnerSettings, TaskSpec};
use tidemill_net::Endpoint;
use tidemill_net::endpoint::EndpointSettings;
use tidemill_net::environment::LaunchContext;
use tidemill_net::rendezvous::join_launched;

fn schema() -> SchemaRef {
    Arc::new(Schema::new(vec![Field::new("k", DataType::Int64, false), Field::new("x", DataType::Float64, false)]))
}

/// Rows with distinct keys, in no order.
fn batch(schema: &SchemaRef, from: i64, rows: i64) -> RecordBatch {
    let k = Int64Array::from_iter_values((from..from + rows).map(|i| i.wrapping_mul(0x9e37_79b9_7f4a_7c15_u64 as i64)));
    let x = Float64Array::from_iter_values((0..rows).map(|i| i as f64));
    RecordBatch::try_new(schema.clone(), vec![Arc::new(k), Arc::new(x)]).expect("columns fit the schema")
}

type RunCase<'a> = Box<dyn Fn(&Case) -> RunReport + 'a>;

struct Case {
    name: &'static str,
    /// The total number of copies of the source; 0 means one on each worker.
    sources: u32,
    batches: f64,
    rows: i64,
}

fn run(runner: &Runner, case: &Case, scale: f64, exchange: impl Exchange + 'static) -> RunReport {
    let batches = ((case.batches * scale) as i64).max(10);
    let rows = case.rows;
    let mut graph = Graph::new(case.name);
    let source = TaskSpec::new("source", move |_, outputs, context| async move {
        let (schema, mut output) = (schema(), outputs.into_only());
        // Send a few batches, made in advance, over and over: only moving them is measured.
        let ready: Vec<RecordBatch> =
            (0..64).map(|at| batch(&schema, (i64::from(context.copy()) * 64 + at) * rows, rows)).collect();
        for at in 0..batches {
            output.send(ready[(at % 64) as usize].clone()).await?;
        }
        Ok(())
    });
    let source = source.output("out", schema());
    let source = graph.add(if case.sources == 0 { source } else { source.copies(case.sources) });
    let sink = TaskSpec::new("sink", |inputs, _, _| async move {
        let mut input = inputs.into_only();
        while input.recv().await?.is_some() {}
        Ok(())
    });
    let sink = graph.add(sink.input("in"));
    graph.connect(source, sink, exchange);
    runner.run(&graph).expect("the run succeeds")
}

fn measure(comm: &Communicator, scale: f64, settings: RunnerSettings) {
    let runner = Runner::new(comm, settings).expect("a job's workers agree");
    let case = |name, sources, batches, rows| Case { name, sources, batches, rows };
    let last = comm.size() - 1;
    let cases: Vec<(Case, RunCase<'_>)> = vec![
        (case("128 B to one other worker", 1, 1_000_000.0, 8), Box::new(|c| run(&runner, c, scale, Gather::to(last)))),
        (
            case("128 KiB to one other worker", 1, 20_000.0, 8192),
            Box::new(|c| run(&runner, c, scale, Gather::to(last))),
        ),
        (case("broadcast 128 B", 1, 1_000_000.0, 8), Box::new(|c| run(&runner, c, scale, Broadcast::default()))),
        (case("broadcast 128 KiB", 1, 20_000.0, 8192), Box::new(|c| run(&runner, c, scale, Broadcast::default()))),
        (
            case("partition by key, 128 B batches", 0, 500_000.0, 8),
            Box::new(|c| run(&runner, c, scale, Partition::by_key(["k"]))),
        ),
        (
            case("partition by key, 128 KiB batches", 0, 4_000.0, 8192),
            Box::new(|c| run(&runner, c, scale, Partition::by_key(["k"]))),
        ),
        (
            case("all-reduce of 128 KiB batches", 0, 4_000.0, 8192),
            Box::new(|c| run(&runner, c, scale, AllReduce::new(Reduction::new().sum("x")))),
        ),
        (
            case("keyed reduce of 128 KiB batches", 0, 500.0, 8192),
            Box::new(|c| run(&runner, c, scale, KeyedReduce::new(["k"], Reduction::new().sum("x")))),
        ),
        (
            case("sort of 128 KiB batches", 0, 500.0, 8192),
            Box::new(|c| run(&runner, c, scale, Sort::by([SortKey::ascending("k")]))),
        ),
    ];
    let only = std::env::args().nth(3).unwrap_or_default();
    for (case, run) in cases.iter().filter(|(case, _)| case.name.contains(&only)) {
        // A first run warms up memory and threads.
        run(&Case { batches: case.batches / 20.0, ..*case });
        let report = run(case);
        let seconds = report.wall_ns as f64 / 1e9;
        if comm.rank() == 0 {
            let sources = if case.sources == 0 { comm.size() } else { case.sources };
            let batches = (case.batches * scale).max(10.0) * f64::from(sources);
            let rows = batches * case.rows as f64;
            println!(
                "{:<34} {:>8.0} batches/s {:>7.1} Mrows/s {:>6.0} MB/s  blocked {:>6.1} ms  {} blocks out  {} MB spilled  {} MiB \
                 resident at most",
                case.name,
                batches / seconds,
                rows / seconds / 1e6,
                rows * 16.0 / seconds / 1e6,
                report.edges.iter().map(|edge| edge.blocked_ns).sum::<u64>() as f64 / 1e6,
                report.edges.iter().map(|edge| edge.remote_blocks).sum::<u64>(),
                report.spilled_bytes / 1_000_000,
                runner.governor().process_bytes_max() >> 20,
            );
        }
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let scale = std::env::args().nth(1).map_or(Ok(1.0), |text| text.parse())?;
    let mut settings = RunnerSettings::default();
    if let Some(text) = std::env::args().nth(2) {
        settings.memory.budget_bytes = text.parse::<u64>()? << 20;
    }
    let launch = LaunchContext::from_process()?;
    if launch.size == 1 {
        run_ranks(2, |comm| measure(&comm, scale, settings.clone()))?;
        return Ok(());
    }
    let endpoint = Endpoint::open(join_launched(launch)?, EndpointSettings::default())?;
    let comm = Communicator::world(endpoint.clone(), Arc::new(TuneTable::default()))?;
    measure(&comm, scale, settings);
    drop(comm);
    endpoint.leave();
    Ok(())
}
