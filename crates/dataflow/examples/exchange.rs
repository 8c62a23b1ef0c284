//! Sends messages through a task graph and measures how long they take: the Rust counterpart of
//! `bench/harness/exchange_worker.py`.
//!
//! `tidemill run -n 2 target/release/examples/exchange OPERATION BYTES MESSAGES`, or any other launcher; without one
//! it is a job of one worker. Operations are `partition`, `reduce`, `gather` and `broadcast`; a message has BYTES
//! bytes, a multiple of 8; every source sends MESSAGES messages. `bench/peers/exchange_mpi.cc`, which does the same
//! by hand, describes each operation and the output.

use std::sync::Arc;
use std::sync::mpsc::channel;
use std::thread::sleep;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use arrow::array::{AsArray, Int64Array, RecordBatch};
use arrow::datatypes::{DataType, Field, Int64Type, Schema, SchemaRef};
use tidemill_collective::{Communicator, TuneTable};
use tidemill_dataflow::exchange::{Broadcast, Gather, Partition, Reduce, Reduction};
use tidemill_dataflow::{
    Graph, Input, Output, Runner, RunnerSettings, StreamElement, TaskContext, TaskError, TaskSpec,
};
use tidemill_net::Endpoint;
use tidemill_net::endpoint::EndpointSettings;
use tidemill_net::environment::LaunchContext;
use tidemill_net::rendezvous::join_launched;

/// The longest message that is sent as values, in words.
const SMALL_WORDS_MAX: i64 = 512;
/// How many messages are sent one at a time.
const SINGLE: i64 = 200;
/// The pause between them.
const PAUSE: Duration = Duration::from_millis(2);

#[derive(Clone, Copy)]
enum Operation {
    Partition,
    Reduce,
    Gather,
    Broadcast,
}

/// What the functions of the tasks receive besides their ports.
#[derive(Clone)]
struct Messages {
    schema: SchemaRef,
    words: i64,
    /// The number of messages from each source.
    count: i64,
}

impl Messages {
    fn batch(&self, values: impl IntoIterator<Item = i64>) -> Result<RecordBatch, TaskError> {
        let column = Int64Array::from_iter_values(values);
        Ok(RecordBatch::try_new(SchemaRef::clone(&self.schema), vec![Arc::new(column)])?)
    }

    async fn send_many(self, mut output: Output, context: TaskContext) -> Result<(), TaskError> {
        let source = i64::from(context.copy());
        let mut message = vec![0; self.words as usize];
        for number in 0..self.count {
            // Making a batch of a small message would take longer than sending it; for a large one, the batch saves a
            // copy.
            if self.words > SMALL_WORDS_MAX {
                output.send(self.batch((0..self.words).map(|at| source + number + at))?).await?;
                continue;
            }
            message.iter_mut().zip(source + number..).for_each(|(word, value)| *word = value);
            output.send_values::<Int64Type>(&message).await?;
        }
        Ok(())
    }

    /// Adds up everything that arrives.
    async fn receive_many(self, mut input: Input, mut output: Output) -> Result<(), TaskError> {
        let mut sum = 0;
        while let Some(StreamElement::Batch(batch)) = input.recv().await? {
            sum += words(&batch).iter().sum::<i64>();
        }
        output.send(self.batch([sum])?).await
    }

    /// Every word is the time at which it was sent.
    fn send_single(&self, mut output: Output) -> Result<(), TaskError> {
        for _ in 0..SINGLE {
            sleep(PAUSE);
            let now_ns = now_ns()?;
            output.send_blocking(self.batch((0..self.words).map(|_| now_ns))?)?;
        }
        Ok(())
    }

    /// Measures how long each message was in transit.
    fn receive_single(&self, mut input: Input, mut output: Output) -> Result<(), TaskError> {
        let mut latencies_ns = Vec::new();
        while let Some(StreamElement::Batch(batch)) = input.recv_blocking()? {
            latencies_ns.push(now_ns()? - words(&batch)[0]);
        }
        output.send_blocking(self.batch(latencies_ns)?)
    }
}

fn words(batch: &RecordBatch) -> &[i64] {
    batch.column(0).as_primitive::<Int64Type>().values()
}

/// The time on a clock that all processes of a host share.
fn now_ns() -> Result<i64, TaskError> {
    Ok(SystemTime::now().duration_since(UNIX_EPOCH)?.as_nanos() as i64)
}

/// Sources and targets have one copy on each worker, except that `gather` and `reduce` have one target, and
/// `broadcast` one source. Returns, on worker 0, what the targets have found.
fn run(runner: &Runner, operation: Operation, messages: &Messages, single: bool) -> Result<Vec<i64>, TaskError> {
    let schema = SchemaRef::clone(&messages.schema);
    let (sent, received) = (messages.clone(), messages.clone());
    let (source, target) = if single {
        (
            TaskSpec::blocking("source", move |_, outputs, _| sent.send_single(outputs.into_only())),
            TaskSpec::blocking("target", move |inputs, outputs, _| {
                received.receive_single(inputs.into_only(), outputs.into_only())
            }),
        )
    } else {
        (
            TaskSpec::new("source", move |_, outputs, context| sent.clone().send_many(outputs.into_only(), context)),
            TaskSpec::new("target", move |inputs, outputs, _| {
                received.clone().receive_many(inputs.into_only(), outputs.into_only())
            }),
        )
    };
    let source = source.output("out", SchemaRef::clone(&schema));
    let target = target.input("in").output("found", schema);
    let (sender, found) = channel();
    let result = TaskSpec::new("result", move |inputs, _, _| {
        let sender = sender.clone();
        async move {
            let mut input = inputs.into_only();
            while let Some(StreamElement::Batch(batch)) = input.recv().await? {
                words(&batch).iter().try_for_each(|&value| sender.send(value))?;
            }
            Ok(())
        }
    });

    let mut graph = Graph::new("exchange");
    let source = graph.add(if matches!(operation, Operation::Broadcast) { source.copies(1) } else { source });
    let one_target = matches!(operation, Operation::Reduce | Operation::Gather);
    let target = graph.add(if one_target { target.copies(1) } else { target });
    let result = graph.add(result.input("found").copies(1));
    match operation {
        Operation::Partition => graph.connect(source, target, Partition::round_robin()),
        Operation::Reduce => graph.connect(source, target, Reduce::new(Reduction::new().sum("v"))),
        Operation::Gather => graph.connect(source, target, Gather::default()),
        Operation::Broadcast => graph.connect(source, target, Broadcast::default()),
    };
    graph.connect(target, result, Gather::default());
    runner.run(&graph)?;
    drop(graph); // and with it the sender
    Ok(found.iter().collect())
}

fn measure(comm: &Communicator, operation: Operation, words: i64, count: i64) -> Result<(), TaskError> {
    let runner = Runner::new(comm, RunnerSettings::default())?;
    let schema = Arc::new(Schema::new(vec![Field::new("v", DataType::Int64, false)]));
    let messages = Messages { schema, words, count };
    run(&runner, operation, &messages, false)?;

    comm.barrier()?;
    let start = Instant::now();
    let totals = run(&runner, operation, &messages, false)?;
    let rate_s = start.elapsed().as_secs_f64();

    // A reduction yields nothing before everything has arrived.
    let mut latencies_ns = match operation {
        Operation::Reduce => Vec::new(),
        _ => run(&runner, operation, &messages, true)?,
    };
    latencies_ns.sort_unstable();
    let median_ns = latencies_ns.get(latencies_ns.len() / 2);
    let latency_s = median_ns.map_or("null".to_owned(), |&ns| format!("{:.9}", ns as f64 / 1e9));
    if comm.rank() == 0 {
        let digest: i64 = totals.iter().sum();
        println!("{{\"rate_s\": {rate_s:.9}, \"latency_s\": {latency_s}, \"digest\": \"{digest}\"}}");
    }
    Ok(())
}

fn arguments() -> Option<(Operation, i64, i64)> {
    let given: Vec<String> = std::env::args().skip(1).collect();
    let [operation, bytes, count] = given.as_slice() else { return None };
    let operation = match operation.as_str() {
        "partition" => Operation::Partition,
        "reduce" => Operation::Reduce,
        "gather" => Operation::Gather,
        "broadcast" => Operation::Broadcast,
        _ => return None,
    };
    let bytes: i64 = bytes.parse().ok().filter(|bytes| *bytes >= 8 && bytes % 8 == 0)?;
    Some((operation, bytes / 8, count.parse().ok()?))
}

fn main() -> Result<(), TaskError> {
    let (operation, words, count) =
        arguments().ok_or("usage: exchange partition|reduce|gather|broadcast BYTES MESSAGES, bytes a multiple of 8")?;
    let endpoint = Endpoint::open(join_launched(LaunchContext::from_process()?)?, EndpointSettings::default())?;
    let comm = Communicator::world(endpoint.clone(), Arc::new(TuneTable::default()))?;
    measure(&comm, operation, words, count)?;
    drop(comm);
    endpoint.leave();
    Ok(())
}
