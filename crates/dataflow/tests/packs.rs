//! Small batches that are combined: their rows are the ones that were sent, in order; none waits for a turn that does
//! not end, and few blocks are sent for many batches.

mod common;

use std::pin::Pin;
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};

use arrow::array::*;
use arrow::datatypes::{DataType, Int32Type, Int64Type, SchemaRef};
use common::{Data, rows, run_graph, schema, sink, source, tight};
use proptest::prelude::*;
use tidemill_collective::run_ranks;
use tidemill_dataflow::exchange::{Broadcast, Direct, Gather};
use tidemill_dataflow::{Graph, Input, Output, Runner, RunnerSettings, StreamElement, TaskError, TaskSpec};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

fn numbers() -> SchemaRef {
    schema(&[("n", DataType::Int64)])
}

fn number(value: i64) -> RecordBatch {
    RecordBatch::try_new(numbers(), vec![Arc::new(Int64Array::from(vec![value]))]).unwrap()
}

fn values(batch: &RecordBatch) -> Vec<i64> {
    batch.column(0).as_primitive::<Int64Type>().values().to_vec()
}

/// Columns that can be packed, with nulls in some batches and not in others.
fn mixed(seed: usize, count: usize) -> RecordBatch {
    let some =
        |row: usize| (seed.is_multiple_of(3) || !(row + seed).is_multiple_of(5)).then_some((row * 7 + seed) % 1000);
    let ints: Int64Array = (0..count).map(|row| some(row).map(|n| n as i64)).collect();
    let flags: BooleanArray = (0..count).map(|row| some(row).map(|n| n.is_multiple_of(2))).collect();
    let texts: StringArray = (0..count).map(|row| some(row).map(|n| "x".repeat(n % 9))).collect();
    let lists = ListArray::from_iter_primitive::<Int32Type, _, _>(
        (0..count).map(|row| some(row).map(|n| (0..n % 4).map(|i| Some(i as i32)).collect::<Vec<_>>())),
    );
    let columns: [(&str, ArrayRef); 4] =
        [("i", Arc::new(ints)), ("b", Arc::new(flags)), ("t", Arc::new(texts)), ("l", Arc::new(lists))];
    let fields: Vec<(&str, DataType)> =
        columns.iter().map(|(name, column)| (*name, column.data_type().clone())).collect();
    RecordBatch::try_new(schema(&fields), columns.into_iter().map(|(_, column)| column).collect()).unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    /// Rows that change places, or are left in a pack at the end, differ from what each copy sent: small batches, and
    /// larger ones that must not overtake them, with credit for only a few of them.
    #[test]
    fn rows_keep_their_order(
        workers in 1u32..4, seed in 0usize..1000, sizes in prop::collection::vec(0usize..2000, 1..60), broadcast: bool,
    ) {
        let data: Data = Arc::new(move |copy| {
            let size = |at: usize, size: usize| if size.is_multiple_of(7) { size } else { size % 20 + at % 2 };
            sizes.iter().enumerate().map(|(at, &rows)| mixed(seed + at + copy as usize, size(at, rows))).collect()
        });
        let all = mixed(0, 0).schema();
        let copies = if broadcast { 1 } else { workers };
        let (kept, _) = run_graph(workers, &tight(), |graph, kept| {
            let from = graph.add(source("source", &all, copies, &data));
            let to = graph.add(sink("sink", workers, kept));
            match broadcast {
                true => graph.connect(from, to, Broadcast::default()),
                false => graph.connect(from, to, Direct),
            };
        }).unwrap();
        for copy in 0..workers {
            let sent = data(if broadcast { 0 } else { copy });
            prop_assert_eq!(rows(kept.get(&copy).map_or(&[][..], Vec::as_slice)), rows(&sent));
        }
    }
}

/// Packs exist to avoid one block for each of many small batches.
#[test]
fn many_small_batches_are_few_blocks() {
    const COUNT: i64 = 5000;
    let data: Data = Arc::new(|_| (0..COUNT).map(number).collect());
    let (kept, reports) = run_graph(2, &RunnerSettings { threads: 1, ..RunnerSettings::default() }, |graph, kept| {
        let from = graph.add(source("source", &numbers(), 1, &data));
        let to = graph.add(sink("sink", 2, kept));
        graph.connect(from, to, Broadcast::default());
    })
    .unwrap();
    for copy in 0..2 {
        let found: Vec<i64> = kept[&copy].iter().flat_map(values).collect();
        assert!(found.iter().copied().eq(0..COUNT), "copy {copy}");
    }
    let count =
        |of: fn(&tidemill_dataflow::EdgeReport) -> u64| -> u64 { reports.iter().map(|r| of(&r.edges[0])).sum() };
    assert!(count(|edge| edge.local_blocks) < 50 && count(|edge| edge.remote_blocks) < 50);
    assert_eq!((count(|edge| edge.rows_sent), count(|edge| edge.rows_received)), (COUNT as u64, 2 * COUNT as u64));
}

/// The numbers that have arrived at a sink's copy, as they arrive.
type Answers = UnboundedReceiver<i64>;
type Body = Pin<Box<dyn Future<Output = Result<(), TaskError>> + Send>>;

/// Runs a source on worker 0 that learns what arrives on worker 1. It hangs if anything it waits for waits for it.
fn answered(source: fn(Output, Answers) -> Body) {
    let (sender, answers) = unbounded_channel();
    let answers = Arc::new(Mutex::new(Some(answers)));
    run_ranks(2, |comm| {
        let (sender, answers) = (sender.clone(), Arc::clone(&answers));
        let from = TaskSpec::new("source", move |_, outputs, _| {
            source(outputs.into_only(), answers.lock().unwrap().take().expect("one copy"))
        });
        let to = TaskSpec::new("sink", move |inputs, _, context| {
            let sender = (context.copy() == 1).then(|| sender.clone());
            async move { keep(inputs.into_only(), sender).await }
        });
        let mut graph = Graph::new("answered");
        let from = graph.add(from.output("out", numbers()).copies(1));
        let to = graph.add(to.input("in").copies(2));
        graph.connect(from, to, Broadcast::default());
        Runner::new(&comm, RunnerSettings { threads: 1, ..RunnerSettings::default() }).unwrap().run(&graph).unwrap();
    })
    .unwrap();
}

async fn keep(mut input: Input, sender: Option<UnboundedSender<i64>>) -> Result<(), TaskError> {
    while let Some(StreamElement::Batch(batch)) = input.recv().await? {
        if let Some(sender) = &sender {
            // The source may have received enough.
            for value in values(&batch) {
                let _ = sender.send(value);
            }
        }
    }
    Ok(())
}

/// A copy that waits for the answer to what it has sent waits forever if that is held for the copy's next batch.
#[test]
fn batches_leave_before_their_sender_waits() {
    answered(|mut output, mut answers| {
        Box::pin(async move {
            let mut next = 0;
            for burst in [1, 2, 10, 1, 300, 3] {
                for at in next..next + burst {
                    output.send(number(at)).await?;
                }
                for at in next..next + burst {
                    assert_eq!(answers.recv().await, Some(at));
                }
                next += burst;
            }
            Ok(())
        })
    });
}

/// The first batch of a turn leaves although its sender does not even yield its thread.
#[test]
fn a_lone_batch_does_not_wait_for_the_end_of_the_turn() {
    answered(|mut output, mut answers| {
        Box::pin(async move {
            for at in 0..20 {
                output.send(number(at)).await?;
                while answers.try_recv().is_err() {
                    std::thread::yield_now();
                }
                // One turn for each.
                tokio::task::yield_now().await;
            }
            Ok(())
        })
    });
}

/// A sender on its own thread, or in a spawned task, has no turn that would end.
#[test]
fn batches_sent_outside_turns_leave_at_once() {
    answered(|mut output, mut answers| {
        Box::pin(async move {
            let (mut output, mut answers) = tokio::spawn(async move {
                for at in 0..20 {
                    output.send(number(at)).await.unwrap();
                }
                while answers.recv().await != Some(19) {}
                (output, answers)
            })
            .await?;
            let (done, is_done) = channel();
            std::thread::spawn(move || {
                for at in 20..40 {
                    output.send_blocking(number(at)).unwrap();
                }
                while answers.blocking_recv() != Some(39) {}
                drop(done.send((output, answers)));
            });
            // Even from a thread that waits without yielding.
            drop(is_done.recv()?);
            Ok(())
        })
    });
}

/// A mark, an end or a large batch must neither overtake combined batches nor let them wait. A gather has several
/// senders.
#[test]
fn later_items_do_not_overtake_packs() {
    let data: Data = Arc::new(|copy| {
        let large = RecordBatch::try_new(numbers(), vec![Arc::new(Int64Array::from_iter_values(100..10_000))]).unwrap();
        let mut all: Vec<_> = (0..100).map(number).collect();
        all.push(large);
        all.extend((10_000..10_000 + i64::from(copy)).map(number));
        all
    });
    let (kept, _) = run_graph(3, &RunnerSettings { threads: 1, ..RunnerSettings::default() }, |graph, kept| {
        let from = graph.add(source("source", &numbers(), 3, &data));
        let to = graph.add(sink("sink", 1, kept));
        graph.connect(from, to, Gather::default());
    })
    .unwrap();
    // Each copy's numbers count up: in three rising streams, each number occurs as often as it was sent.
    let mut next = [0i64; 3];
    for value in kept[&0].iter().flat_map(values) {
        let stream = next.iter_mut().find(|next| **next == value);
        *stream.unwrap_or_else(|| panic!("{value} is out of order")) += 1;
    }
    next.sort_unstable();
    assert_eq!(next, [10_000, 10_001, 10_002]);
}
