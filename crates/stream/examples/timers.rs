//! Keyed timers in Rust: which machines have been silent for ten seconds, and how many messages they had sent.
//!
//! `cargo run --release -p tidemill-stream --example timers`: two workers, which here are threads of one process. In a
//! job of several processes, the communicator comes from joining the job instead of [`run_ranks`]; nothing else
//! changes.

use std::future::ready;
use std::ops::Range;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};

use arrow::array::{ArrayRef, AsArray, Int64Array, RecordBatch, StringArray, TimestampMicrosecondArray};
use arrow::datatypes::{DataType, Field, Int64Type, Schema, SchemaRef, TimeUnit, TimestampMicrosecondType};
use bytes::Bytes;
use futures::future::BoxFuture;
use tidemill_collective::run_ranks;
use tidemill_dataflow::exchange::{Direct, Partition};
use tidemill_dataflow::placement::RoundRobin;
use tidemill_dataflow::stream::sink::Sink;
use tidemill_dataflow::stream::source::{Source, SourceEvent, WatermarkStrategy};
use tidemill_dataflow::{DataflowError, Graph, Runner, RunnerSettings, TaskError, TaskSpec};
use tidemill_stream::{KeyContext, KeyLogic, KeyOperator, KeyedBatch, Timer};

const SECOND_US: i64 = 1_000_000;
const SILENT_US: i64 = 10 * SECOND_US;
/// Messages: a machine, and the second in which it sent the message.
const MESSAGES: [(&str, i64); 9] =
    [("a", 0), ("b", 1), ("a", 2), ("b", 4), ("c", 5), ("c", 13), ("c", 21), ("b", 22), ("c", 30)];

fn messages() -> SchemaRef {
    let at = DataType::Timestamp(TimeUnit::Microsecond, None);
    Arc::new(Schema::new(vec![Field::new("machine", DataType::Utf8, false), Field::new("at", at, false)]))
}

/// The output: a machine, the number of its messages, and the second of the last.
fn silent_machines() -> SchemaRef {
    let number = |name| Field::new(name, DataType::Int64, false);
    Arc::new(Schema::new(vec![Field::new("machine", DataType::Utf8, false), number("messages"), number("last_s")]))
}

/// Emits the messages one by one; the field is the number of those emitted.
struct Messages(usize);

impl Source for Messages {
    fn poll_next(&mut self, _: &mut Context<'_>) -> Poll<Result<SourceEvent, TaskError>> {
        let Some((machine, second)) = MESSAGES.get(self.0) else { return Poll::Ready(Ok(SourceEvent::End)) };
        self.0 += 1;
        let machine: ArrayRef = Arc::new(StringArray::from(vec![*machine]));
        let at: ArrayRef = Arc::new(TimestampMicrosecondArray::from(vec![second * SECOND_US]));
        Poll::Ready(Ok(SourceEvent::rows(0, RecordBatch::try_new(messages(), vec![machine, at])?)))
    }

    fn snapshot(&mut self) -> Result<Vec<(String, Bytes)>, TaskError> {
        // A job that resumes from a checkpoint gets this in `TaskContext::restored`. This one makes no checkpoints, and
        // begins at 0.
        Ok(vec![("all".into(), Bytes::copy_from_slice(&(self.0 as u64).to_le_bytes()))])
    }
}

/// The state of a machine: its number of messages, and when it sent the last.
type Known = (i64, i64);

/// Processes the messages of each machine. A machine's data is in the key's state, so that it can be saved, move to
/// disk, and move to other workers. The logic itself holds only its output rows.
#[derive(Default)]
struct Silent(Vec<RecordBatch>);

impl Silent {
    /// Reports a machine that was silent.
    fn tell(&mut self, (count, last): Known, key: &KeyContext<'_, Known>) -> Result<(), String> {
        let numbers = [count, last / SECOND_US].map(|number| Arc::new(Int64Array::from(vec![number])) as ArrayRef);
        let columns = key.columns()?.columns().iter().cloned().chain(numbers).collect();
        self.0.push(RecordBatch::try_new(silent_machines(), columns).map_err(|error| error.to_string())?);
        Ok(())
    }
}

impl KeyLogic for Silent {
    type State = Known;

    fn on_rows(
        &mut self,
        batch: &KeyedBatch,
        _number: usize,
        rows: Range<usize>,
        key: &mut KeyContext<'_, Known>,
    ) -> Result<(), String> {
        for &at in &batch.rows.column(1).as_primitive::<TimestampMicrosecondType>().values()[rows] {
            let mut count = 1;
            if let Some((before, last)) = key.state {
                key.delete(Timer::Event(last + SILENT_US));
                // Rows may arrive before the stream's time, which must wait for other splits.
                if at > last + SILENT_US {
                    self.tell((before, last), key)?;
                } else {
                    count += before;
                }
            }
            // It fires when all rows before that time have arrived. `Timer::Clock` would use the machine's clock.
            key.set(Timer::Event(at + SILENT_US));
            key.state = Some((count, at));
        }
        Ok(())
    }

    fn on_timer(&mut self, _: Timer, key: &mut KeyContext<'_, Known>) -> Result<(), String> {
        // A key without a state and without timers is forgotten.
        let silent = key.state.take().ok_or("a machine without messages")?;
        self.tell(silent, key)
    }

    fn take_rows(&mut self) -> Result<Vec<RecordBatch>, String> {
        Ok(std::mem::take(&mut self.0))
    }

    fn encode(&mut self, &(count, last): &Known, _whole: bool) -> Result<Vec<u8>, String> {
        // The state is small, so any change saves all of it.
        Ok([count, last].map(i64::to_le_bytes).concat())
    }

    fn saved(&mut self, _: &mut Known) -> Result<(), String> {
        Ok(())
    }

    fn decode(&mut self, parts: &[Vec<u8>]) -> Result<Known, String> {
        let numbers = parts.last().map(|part| part.as_chunks().0);
        match numbers {
            Some([count, last]) => Ok((i64::from_le_bytes(*count), i64::from_le_bytes(*last))),
            _ => Err("a machine's state is not two numbers".into()),
        }
    }

    fn bytes(&mut self, _: &Known) -> Result<usize, String> {
        Ok(size_of::<Known>())
    }
}

/// A machine, its number of messages, and the second of the last.
pub type Found = (String, i64, i64);

/// Collects rows. A sink that writes elsewhere prepares its output in `prepare`, and makes it visible in `commit`, once
/// the checkpoint is durable.
struct Collect(Arc<Mutex<Vec<Found>>>);

impl Sink for Collect {
    fn write(&mut self, rows: RecordBatch) -> BoxFuture<'_, Result<(), TaskError>> {
        let machines = rows.column(0).as_string::<i32>();
        let [messages, lasts] = [1, 2].map(|column| rows.column(column).as_primitive::<Int64Type>().values());
        let rows = (0..rows.num_rows()).map(|row| (machines.value(row).to_owned(), messages[row], lasts[row]));
        self.0.lock().expect("nothing panics with it locked").extend(rows);
        Box::pin(ready(Ok(())))
    }

    fn prepare(&mut self, _epoch: u64) -> BoxFuture<'_, Result<Bytes, TaskError>> {
        Box::pin(ready(Ok(Bytes::new())))
    }

    fn commit(&mut self, _prepared: Bytes) -> BoxFuture<'_, Result<(), TaskError>> {
        Box::pin(ready(Ok(())))
    }
}

/// The silent machines, in the order of their last messages.
///
/// # Errors
/// The failure of a task.
pub fn silent(workers: u32) -> Result<Vec<Found>, DataflowError> {
    let found = Arc::new(Mutex::new(Vec::new()));
    let mut graph = Graph::new("timers");
    let source = TaskSpec::source("messages", Some(WatermarkStrategy::of("at")), |_| Ok(Messages(0)));
    let source = graph.add(source.output("rows", messages()).copies(1));
    // Column 0 is the key, both of the operator and of the partition that feeds it.
    let silent =
        TaskSpec::operator("silent", |context| KeyOperator::new(Silent::default(), &messages(), &[0], context));
    let silent = graph.add(silent.streaming().input("rows").output("silent", silent_machines()));
    let into = Arc::clone(&found);
    let sink = TaskSpec::sink("collect", move |_| Ok(Collect(Arc::clone(&into))));
    let sink = graph.add(sink.input("rows"));
    graph.connect(source, silent, Partition::by_key(["machine"]));
    graph.connect(silent, sink, Direct);
    let ran = run_ranks(workers, |comm| -> Result<(), DataflowError> {
        let runner = Runner::new(&comm, RunnerSettings { threads: 1, ..RunnerSettings::default() })?;
        // With `CheckpointSettings` in place of `None`, the job resumes from its last checkpoint, with states and
        // timers.
        runner.run_job(&graph, &RoundRobin, None, &mut |_| Ok(())).map(drop)
    });
    ran.expect("threads can be started").into_iter().collect::<Result<(), _>>()?;
    let mut found = std::mem::take(&mut *found.lock().expect("nothing panics with it locked"));
    found.sort_by_key(|(machine, _, last)| (*last, machine.clone()));
    Ok(found)
}

fn main() -> Result<(), DataflowError> {
    for (machine, messages, last) in silent(2)? {
        println!("{machine}: {messages} messages, the last in second {last}");
    }
    Ok(())
}
