//! Sends small records through a task graph, in batches of many rows as queries do: the Rust counterpart of
//! `bench/harness/records_worker.py`.
//!
//! `tidemill run -n 2 target/release/examples/records OPERATION RECORDS`, or any other launcher; without one it is a
//! job of one worker. Operations are `partition`, `reduce` and `broadcast`; every source sends RECORDS records.
//! `bench/peers/records_mpi.cc`, which does the same by hand, describes the records, each operation and the output.

use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::Instant;

use arrow::array::{ArrayRef, AsArray, Int64Array, RecordBatch};
use arrow::buffer::ScalarBuffer;
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

const WORDS: usize = 16;
const KEYS: usize = 1024;
/// The rows of a batch: 512 KiB, as by hand, so that the code that makes a batch and the code that receives it find
/// it in the cache.
const ROWS: i64 = 4096;

#[derive(Clone, Copy, PartialEq)]
enum Operation {
    Partition,
    Reduce,
    Broadcast,
}

fn key(number: i64) -> i64 {
    ((number * 2_654_435_761) & 0xffff_ffff) >> 22
}

fn int64s(names: &[String]) -> SchemaRef {
    Arc::new(Schema::new(names.iter().map(|name| Field::new(name, DataType::Int64, false)).collect::<Vec<_>>()))
}

/// Sends a column for each word. A batch is in one piece of memory.
async fn send(schema: SchemaRef, records: i64, mut output: Output, context: TaskContext) -> Result<(), TaskError> {
    let from = i64::from(context.copy());
    for first in (0..records).step_by(ROWS as usize) {
        let numbers = from + first..from + (first + ROWS).min(records);
        let rows = (numbers.end - numbers.start) as usize;
        let mut words = Vec::with_capacity(rows * WORDS);
        words.extend(numbers.clone().map(key));
        for word in 1..WORDS as i64 {
            words.extend(numbers.start + word..numbers.end + word);
        }
        let words = ScalarBuffer::from(words);
        let column = |word| Arc::new(Int64Array::new(words.slice(word * rows, rows), None)) as ArrayRef;
        output.send(RecordBatch::try_new(SchemaRef::clone(&schema), (0..WORDS).map(column).collect())?).await?;
    }
    Ok(())
}

/// Adds up everything that arrives, and records the keys.
async fn receive(found: SchemaRef, notes_keys: bool, mut input: Input, mut output: Output) -> Result<(), TaskError> {
    let (mut sum, mut seen) = (0, [false; KEYS]);
    while let Some(StreamElement::Batch(batch)) = input.recv().await? {
        for column in batch.columns() {
            sum += column.as_primitive::<Int64Type>().values().iter().sum::<i64>();
        }
        if notes_keys {
            batch.column(0).as_primitive::<Int64Type>().values().iter().for_each(|&key| seen[key as usize] = true);
        }
    }
    let known = seen.iter().filter(|seen| **seen).count() as i64;
    let columns = [sum, known].map(|value| Arc::new(Int64Array::from_iter_values([value])) as ArrayRef);
    output.send(RecordBatch::try_new(found, columns.into())?).await
}

/// Sources and targets have one copy on each worker, except that `reduce` has one target, and `broadcast` one source.
/// Returns, on worker 0, the sum of what the targets have found.
fn run(runner: &Runner, operation: Operation, records: i64) -> Result<[i64; 2], TaskError> {
    let names: Vec<String> = (0..WORDS).map(|word| format!("w{word}")).collect();
    let (schema, found) = (int64s(&names), int64s(&["sum".into(), "known".into()]));
    let (sent, told) = (SchemaRef::clone(&schema), SchemaRef::clone(&found));
    let notes_keys = operation != Operation::Reduce;
    let source = TaskSpec::new("source", move |_, outputs, context| {
        send(SchemaRef::clone(&sent), records, outputs.into_only(), context)
    });
    let target = TaskSpec::new("target", move |inputs, outputs, _| {
        receive(SchemaRef::clone(&told), notes_keys, inputs.into_only(), outputs.into_only())
    });
    let (sender, all) = channel();
    let result = TaskSpec::new("result", move |inputs, _, _| {
        let sender = sender.clone();
        async move {
            let mut input = inputs.into_only();
            while let Some(StreamElement::Batch(batch)) = input.recv().await? {
                for row in 0..batch.num_rows() {
                    sender.send([0, 1].map(|at| batch.column(at).as_primitive::<Int64Type>().value(row)))?;
                }
            }
            Ok(())
        }
    });
    let (source, target) = (source.output("out", schema), target.input("in").output("found", found));
    let mut graph = Graph::new("records");
    let source = graph.add(if operation == Operation::Broadcast { source.copies(1) } else { source });
    let target = graph.add(if operation == Operation::Reduce { target.copies(1) } else { target });
    let result = graph.add(result.input("found").copies(1));
    match operation {
        Operation::Partition => graph.connect(source, target, Partition::by_key(["w0"])),
        Operation::Reduce => {
            let sums = names.iter().fold(Reduction::new(), |sums, name| sums.sum(name));
            graph.connect(source, target, Reduce::new(sums))
        }
        Operation::Broadcast => graph.connect(source, target, Broadcast::default()),
    };
    graph.connect(target, result, Gather::default());
    runner.run(&graph)?;
    drop(graph); // and with it the sender
    Ok(all.iter().fold([0, 0], |[sum, known]: [i64; 2], [more, keys]| [sum.wrapping_add(more), known + keys]))
}

fn arguments() -> Option<(Operation, i64)> {
    let given: Vec<String> = std::env::args().skip(1).collect();
    let [operation, records] = given.as_slice() else { return None };
    let operation = match operation.as_str() {
        "partition" => Operation::Partition,
        "reduce" => Operation::Reduce,
        "broadcast" => Operation::Broadcast,
        _ => return None,
    };
    Some((operation, records.parse().ok()?))
}

fn main() -> Result<(), TaskError> {
    let (operation, records) = arguments().ok_or("usage: records partition|reduce|broadcast RECORDS")?;
    let endpoint = Endpoint::open(join_launched(LaunchContext::from_process()?)?, EndpointSettings::default())?;
    let comm = Communicator::world(endpoint.clone(), Arc::new(TuneTable::default()))?;
    let runner = Runner::new(&comm, RunnerSettings::default())?;
    run(&runner, operation, records)?;
    comm.barrier()?;
    let start = Instant::now();
    let [sum, known] = run(&runner, operation, records)?;
    let rate_s = start.elapsed().as_secs_f64();
    if comm.rank() == 0 {
        println!("{{\"rate_s\": {rate_s:.9}, \"digest\": \"{sum} {known}\"}}");
    }
    drop(runner);
    drop(comm);
    endpoint.leave();
    Ok(())
}
