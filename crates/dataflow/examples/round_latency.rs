//! How long one message is on its way between two tasks, from `send` to the function that receives it.
//!
//! `tidemill run -n 2 target/release/examples/round_latency BYTES MESSAGES` measures between two processes; by itself
//! it measures between two workers of one process, and between two copies of one worker. Messages come alone: one at a
//! time, after pauses, in which the sender spins for a short pause and sleeps for a long one; and in rounds, where each
//! waits for the one before it to come back. Prints for each way the median and the 99th percentile in microseconds.

use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use arrow::array::{AsArray, Int64Array, RecordBatch};
use arrow::datatypes::{DataType, Field, Int64Type, Schema, SchemaRef};
use tidemill_collective::{Communicator, TuneTable, run_ranks};
use tidemill_dataflow::exchange::{Direct, RoundEnd, Rounds};
use tidemill_dataflow::placement::{PlacementPlan, TaskPlan};
use tidemill_dataflow::{Graph, Output, Runner, RunnerSettings, StreamElement, TaskError, TaskSpec};
use tidemill_net::Endpoint;
use tidemill_net::endpoint::EndpointSettings;
use tidemill_net::environment::LaunchContext;
use tidemill_net::rendezvous::join_launched;

/// Between messages that come alone.
const PAUSES: [Duration; 3] = [Duration::from_micros(5), Duration::from_micros(50), Duration::from_millis(2)];
/// A pause that is longer is slept through.
const SPIN_MAX: Duration = Duration::from_micros(200);
/// Messages after long pauses, which take their time.
const AFTER_LONG: usize = 200;

/// What is measured.
#[derive(Clone, Copy)]
struct Messages {
    words: usize,
    count: usize,
}

fn schema() -> SchemaRef {
    Arc::new(Schema::new(vec![Field::new("v", DataType::Int64, false)]))
}

/// Nanoseconds on a clock that all processes of a host share.
fn now_ns() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as i64)
}

/// Sends a message, each word of which is the time.
fn send(output: &mut Output, schema: &SchemaRef, words: usize) -> Result<(), TaskError> {
    let column = Int64Array::from_value(now_ns(), words);
    output.send_blocking(RecordBatch::try_new(SchemaRef::clone(schema), vec![Arc::new(column)])?)
}

fn first_word(batch: &RecordBatch) -> i64 {
    batch.column(0).as_primitive::<Int64Type>().value(0)
}

fn wait_for(pause: Duration) {
    if pause > SPIN_MAX {
        return std::thread::sleep(pause);
    }
    let begun = Instant::now();
    while begun.elapsed() < pause {
        std::hint::spin_loop();
    }
}

/// The first task on worker 0, the second one on the last.
fn apart(runner: &Runner, names: [&str; 2]) -> PlacementPlan {
    let last = runner.workers().len() as u32 - 1;
    let place = |(name, worker): (&str, u32)| TaskPlan { task: name.to_owned(), workers: vec![worker] };
    PlacementPlan { tasks: names.into_iter().zip([0, last]).map(place).collect() }
}

/// Nanoseconds that each message was on its way, on the last worker.
fn alone(runner: &Runner, messages: Messages, pause: Duration) -> Result<Vec<i64>, TaskError> {
    let count = if pause > SPIN_MAX { AFTER_LONG } else { messages.count };
    let schema = schema();
    let (sender, found) = channel();
    let of_message = SchemaRef::clone(&schema);
    let source = TaskSpec::blocking("source", move |_, outputs, _| {
        let mut output = outputs.into_only();
        for _ in 0..count {
            wait_for(pause);
            send(&mut output, &of_message, messages.words)?;
        }
        Ok(())
    });
    let target = TaskSpec::blocking("target", move |inputs, _, _| {
        let mut input = inputs.into_only();
        while let Some(StreamElement::Batch(batch)) = input.recv_blocking()? {
            sender.send(now_ns() - first_word(&batch))?;
        }
        Ok(())
    });
    let mut graph = Graph::new("alone");
    let source = graph.add(source.output("out", schema).copies(1));
    let target = graph.add(target.input("in").copies(1));
    graph.connect(source, target, Direct);
    runner.run_placed(&graph, &apart(runner, ["source", "target"]), &mut |_| Ok(()))?;
    drop(graph); // and with it the sender
    Ok(found.iter().collect())
}

/// Half the nanoseconds that each message took there and back, on worker 0.
fn rounds(runner: &Runner, messages: Messages) -> Result<Vec<i64>, TaskError> {
    let schema = schema();
    let (sender, found) = channel();
    let of_message = SchemaRef::clone(&schema);
    let head = TaskSpec::blocking("head", move |inputs, outputs, _| {
        let (mut input, mut output) = (inputs.into_only(), outputs.into_only());
        for _ in 0..messages.count {
            send(&mut output, &of_message, messages.words)?;
            let Some(StreamElement::Batch(batch)) = input.recv_blocking()? else { return Err("it ended".into()) };
            sender.send((now_ns() - first_word(&batch)) / 2)?;
        }
        Ok(())
    });
    let echo = TaskSpec::blocking("echo", |inputs, outputs, _| {
        let (mut input, mut output) = (inputs.into_only(), outputs.into_only());
        while let Some(StreamElement::Batch(batch)) = input.recv_blocking()? {
            output.send_blocking(batch)?;
        }
        Ok(())
    });
    let mut graph = Graph::new("rounds");
    let head = graph.add(head.input("in").output("out", SchemaRef::clone(&schema)).copies(1));
    let echo = graph.add(echo.input("in").output("out", schema).copies(1));
    graph.connect(head, echo, Rounds::new(Direct, RoundEnd::Strict));
    graph.feedback(echo, head, Rounds::new(Direct, RoundEnd::Strict));
    runner.run_placed(&graph, &apart(runner, ["head", "echo"]), &mut |_| Ok(()))?;
    drop(graph);
    Ok(found.iter().collect())
}

fn report(way: &str, what: &str, mut times_ns: Vec<i64>) {
    times_ns.sort_unstable();
    let Some(last) = times_ns.len().checked_sub(1) else { return };
    let at = |share: usize| times_ns[last * share / 100] as f64 / 1e3;
    println!("{way}, {what}: median {:.2} us, 99 % {:.2} us, least {:.2} us", at(50), at(99), at(0));
}

fn measure(comm: &Communicator, way: &str, messages: Messages) -> Result<(), TaskError> {
    let runner = Runner::new(comm, RunnerSettings::default())?;
    for pause in PAUSES {
        report(way, &format!("alone after {pause:?}"), alone(&runner, messages, pause)?);
    }
    report(way, "rounds", rounds(&runner, messages)?);
    Ok(())
}

fn main() -> Result<(), TaskError> {
    let given: Option<Vec<usize>> = std::env::args().skip(1).map(|word| word.parse().ok()).collect();
    let [bytes, count] = given.unwrap_or_default()[..] else {
        return Err("usage: round_latency BYTES MESSAGES".into());
    };
    let messages = Messages { words: bytes.div_ceil(8).max(1), count };
    let endpoint = Endpoint::open(join_launched(LaunchContext::from_process()?)?, EndpointSettings::default())?;
    let comm = Communicator::world(endpoint.clone(), Arc::new(TuneTable::default()))?;
    if comm.size() > 1 {
        measure(&comm, "processes", messages)?;
    } else {
        measure(&comm, "copies of one worker", messages)?;
        let measured =
            run_ranks(2, |comm| measure(&comm, "workers of one process", messages).map_err(|e| e.to_string()));
        measured?.into_iter().collect::<Result<(), _>>()?;
    }
    drop(comm);
    endpoint.leave();
    Ok(())
}
