//! A failure is the same error on every worker, names where it began, hangs nobody, and leaves the runner ready for
//! the next run; a slow consumer stops its producers.

mod common;

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use arrow::array::{AsArray, Int64Array, RecordBatch};
use arrow::datatypes::{DataType, Int64Type, SchemaRef};
use common::{Data, Kept, run_graph, schema, sink, source, tight};
use futures_core::Stream;
use tidemill_collective::{Communicator, ReduceOp, run_ranks};
use tidemill_dataflow::exchange::{Broadcast, Direct, Exchange, Gather, Partition, Reduce, Reduction, Union};
use tidemill_dataflow::placement::RoundRobin;
use tidemill_dataflow::{
    DataflowError, Graph, Overlay, RunProgress, Runner, RunnerSettings, StreamElement, TaskError, TaskSpec,
    WorkerStatus,
};

fn numbers() -> SchemaRef {
    schema(&[("n", DataType::Int64)])
}

fn batch(schema: &SchemaRef, from: i64, rows: i64) -> RecordBatch {
    RecordBatch::try_new(schema.clone(), vec![Arc::new(Int64Array::from_iter_values(from..from + rows))]).unwrap()
}

/// `batches` batches of 1000 rows from each copy.
fn many(batches: i64) -> Data {
    let schema = numbers();
    Arc::new(move |_| (0..batches).map(|at| batch(&schema, at * 1000, 1000)).collect())
}

/// A sink whose copy 1 fails on its third batch.
fn failing(how: fn(u32) -> Result<(), TaskError>) -> TaskSpec {
    TaskSpec::new("fragile", move |inputs, _, context| async move {
        let mut input = inputs.into_only();
        let mut seen = 0;
        while let Some(StreamElement::Batch(_)) = input.recv().await? {
            seen += 1;
            if context.copy() == 1 && seen == 3 {
                how(seen)?;
            }
        }
        Ok(())
    })
    .input("in")
}

/// A function that is called again receives the same batch; failed calls leave no trace, and the last error is the
/// run's.
#[test]
fn a_function_that_fails_is_called_again_with_the_same_batch() {
    let outcomes = run_ranks(2, |comm| {
        let runner = Runner::new(&comm, tight()).unwrap();
        let run = |failures: usize| {
            let calls = Arc::new(AtomicUsize::new(0));
            let kept = Kept::default();
            let count = Arc::clone(&calls);
            let double = TaskSpec::each("double", 2, move |batch, context| {
                // For every batch, this many calls fail.
                if context.copy() == 1 && count.fetch_add(1, Ordering::Relaxed) % (failures + 1) < failures {
                    return Err("not now".into());
                }
                let doubled = batch.column(0).as_primitive::<Int64Type>().unary::<_, Int64Type>(|n| 2 * n);
                Ok(Some(RecordBatch::try_new(batch.schema(), vec![Arc::new(doubled)])?))
            });
            let mut graph = Graph::new("again");
            let source = graph.add(source("source", &numbers(), 2, &many(3)));
            let double = graph.add(double.input("in").output("out", numbers()));
            let end = graph.add(sink("sink", 2, &kept));
            graph.connect(source, double, Direct);
            graph.connect(double, end, Direct);
            let outcome = runner.run(&graph);
            let sum = |batch: &RecordBatch| batch.column(0).as_primitive::<Int64Type>().values().iter().sum::<i64>();
            let total: i64 = kept.lock().unwrap().values().flatten().map(sum).sum();
            (outcome.map_err(|error| error.to_string()), total)
        };
        (run(0), run(2), run(3))
    });
    for (never, twice, too_often) in outcomes.unwrap() {
        assert!(never.0.is_ok() && twice.0.is_ok(), "{never:?} {twice:?}");
        assert_eq!((never.1, twice.1), (2999 * 3000, 2999 * 3000));
        let error = too_often.0.unwrap_err();
        assert!(error.contains("double") && error.contains("not now"), "{error}");
    }
}

/// A task that fails or panics fails the run on every worker with the same error; the next run works.
#[test]
fn a_failing_task_fails_the_run_everywhere() {
    type How = fn(u32) -> Result<(), TaskError>;
    let ways: [(How, &str); 2] =
        [(|seen| Err(format!("batch {seen} is bad").into()), "batch 3 is bad"), (|_| panic!("boom"), "panicked: boom")];
    for (how, words) in ways {
        for workers in [1, 2, 5] {
            let errors = run_ranks(workers, |comm| {
                let runner = Runner::new(&comm, tight()).unwrap();
                for attempt in 0..3 {
                    let kept = Kept::default();
                    let mut graph = Graph::new("test");
                    let from = graph.add(source("from", &numbers(), 4, &many(200)));
                    let to = graph.add(if attempt == 1 { failing(how).copies(3) } else { sink("to", 3, &kept) });
                    graph.connect(from, to, Partition::by_key(["n"]));
                    let result = runner.run(&graph);
                    if attempt == 1 {
                        let error = result.unwrap_err();
                        let DataflowError::Task { task, copy, message, .. } = &error else { panic!("{error}") };
                        assert_eq!((task.as_str(), *copy), ("fragile", 1));
                        assert!(message.contains(words), "{message}");
                    } else {
                        result.unwrap();
                    }
                }
                // The same text everywhere, including the worker's number.
                let mut graph = Graph::new("test");
                let from = graph.add(source("from", &numbers(), 4, &many(200)));
                let to = graph.add(failing(how).copies(3));
                graph.connect(from, to, Broadcast::default());
                runner.run(&graph).unwrap_err().to_string()
            })
            .unwrap();
            assert!(errors.iter().all(|error| *error == errors[0]), "{errors:?}");
            assert!(errors[0].contains(&format!("worker {}", 1 % workers)), "{}", errors[0]);
        }
    }
}

/// A function on its own thread may not notice that its run was given up. What it sends later must not reach the next
/// run, which would fail.
#[test]
fn rows_sent_after_a_run_was_given_up_are_dropped() {
    let (handed, all) = (Arc::new(Mutex::new([None, None])), Arc::new(AtomicUsize::new(0)));
    run_ranks(2, |comm| {
        let runner = Runner::new(&comm, tight()).unwrap();
        let mut graph = Graph::new("given up");
        let (hand, count) = (Arc::clone(&handed), Arc::clone(&all));
        let lets_go = TaskSpec::new("lets go", move |_, outputs, context| {
            hand.lock().unwrap()[context.worker() as usize] = Some(outputs.into_only());
            count.fetch_add(1, Ordering::SeqCst);
            std::future::pending()
        });
        let from = graph.add(lets_go.copies(2).output("out", numbers()));
        let count = Arc::clone(&all);
        let fails = TaskSpec::new("fails", move |_, _, _| {
            let count = Arc::clone(&count);
            async move {
                while count.load(Ordering::SeqCst) < 2 {
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
                Err("all have gone".into())
            }
        });
        let to = graph.add(fails.copies(2).input("in"));
        graph.connect(from, to, Partition::round_robin());
        let error = runner.run(&graph).unwrap_err().to_string();
        assert!(error.contains("all have gone"), "{error}");
        let mut output = handed.lock().unwrap()[comm.rank() as usize].take().unwrap();
        let mut ending = std::pin::pin!(output.finish());
        assert!(ending.as_mut().poll(&mut std::task::Context::from_waker(std::task::Waker::noop())).is_ready());
        comm.barrier().unwrap();
        let kept = Kept::default();
        let mut graph = Graph::new("next");
        let from = graph.add(source("from", &numbers(), 2, &many(10)));
        let to = graph.add(sink("to", 2, &kept));
        graph.connect(from, to, Partition::by_key(["n"]));
        runner.run(&graph).unwrap();
        comm.barrier().unwrap();
    })
    .unwrap();
}

/// The job's fault ends a run in the middle of an exchange on every worker.
#[test]
fn a_lost_worker_ends_the_run() {
    let errors = run_ranks(3, |comm| {
        let endpoint = comm.endpoint().clone();
        let mut graph = Graph::new("test");
        let from = graph.add(source("from", &numbers(), 3, &many(500)));
        let to = graph.add(
            TaskSpec::new("to", move |inputs, _, context| {
                let endpoint = endpoint.clone();
                async move {
                    let mut input = inputs.into_only();
                    let mut seen = 0;
                    while let Some(StreamElement::Batch(_)) = input.recv().await? {
                        seen += 1;
                        if context.copy() == 2 && seen == 5 {
                            endpoint.report_failure("the cable was pulled");
                        }
                    }
                    Ok(())
                }
            })
            .input("in"),
        );
        graph.connect(from, to, Partition::by_key(["n"]));
        let runner = Runner::new(&comm, tight()).unwrap();
        runner.run(&graph).unwrap_err().to_string()
    })
    .unwrap();
    errors.iter().for_each(|error| assert!(error.contains("the cable was pulled"), "{error}"));
}

/// A consumer that stops early stops nobody else: what still comes for it is dropped.
#[test]
fn a_consumer_may_stop_early() {
    fn check(exchange: impl Exchange + Clone + 'static, runs: [u32; 2]) {
        for workers in runs {
            let (_, reports) = run_graph(workers, &tight(), |graph, kept| {
                let from = graph.add(source("from", &numbers(), 3, &many(300)));
                let limit = graph.add(
                    TaskSpec::new("limit", |inputs, outputs, _| async move {
                        let mut input = inputs.into_only();
                        if let Some(StreamElement::Batch(batch)) = input.recv().await? {
                            outputs.into_only().send(batch.slice(0, 1)).await?;
                        }
                        Ok(())
                    })
                    .input("in")
                    .output("out", numbers())
                    .copies(3),
                );
                let to = graph.add(sink("to", 1, kept));
                graph.connect(from, limit, exchange.clone()).connect(limit, to, Gather::default());
            })
            .unwrap();
            let sent: u64 = reports.iter().map(|report| report.edge("from").unwrap().rows_sent).sum();
            assert!(sent > 0 && sent <= 900_000);
        }
    }
    check(Direct, [1, 2]);
    check(Partition::by_key(["n"]), [2, 3]);
    check(Broadcast::default(), [2, 3]);
}

/// Producers learn that nobody wants more, even through a task in between: endless ones end.
#[test]
fn consumers_that_stop_stop_their_producers() {
    fn check(exchange: impl Exchange + Clone + 'static) {
        for workers in [1, 2, 3, 5] {
            let (found, _) = run_graph(workers, &tight(), |graph, kept| {
                let from = graph.add(
                    TaskSpec::new("endless", |_, outputs, _| async move {
                        let mut output = outputs.into_only();
                        for from in 0.. {
                            if !output.is_wanted() {
                                break;
                            }
                            output.send(batch(&numbers(), from * 1000, 1000)).await?;
                        }
                        Ok(())
                    })
                    .output("out", numbers())
                    .copies(3),
                );
                let pass = graph.add(
                    TaskSpec::new("pass", |inputs, outputs, _| async move {
                        let (mut input, mut output) = (inputs.into_only(), outputs.into_only());
                        while output.is_wanted()
                            && let Some(StreamElement::Batch(batch)) = input.recv().await?
                        {
                            output.send(batch).await?;
                        }
                        Ok(())
                    })
                    .input("in")
                    .output("out", numbers())
                    .copies(3),
                );
                let first = graph.add(
                    TaskSpec::new("first", |inputs, outputs, _| async move {
                        let mut streams = inputs.into_only().into_streams();
                        let next = poll_fn(|context| Pin::new(&mut streams[2]).poll_next(context));
                        let batch = next.await.expect("it has no end")?;
                        outputs.into_only().send(batch.slice(0, 1)).await
                    })
                    .input("in")
                    .output("out", numbers())
                    .copies(1),
                );
                let to = graph.add(sink("to", 1, kept));
                graph.connect(from, pass, exchange.clone()).connect(pass, first, Gather::default());
                graph.connect(first, to, Direct);
            })
            .unwrap();
            assert_eq!(found.len(), 1);
        }
    }
    check(Direct);
    check(Partition::by_key(["n"]));
    check(Partition::round_robin());
    check(Broadcast::default());
    check(Broadcast::along(Overlay::Chain));
    check(Broadcast::along(Overlay::Double));
    check(Union::by(Broadcast::along(Overlay::Flat)));
}

/// Along a tree, workers that pass on what they do not want must neither withhold it from those that do, nor wait for
/// it themselves.
#[test]
fn consumers_of_a_broadcast_stop_for_themselves() {
    for (workers, copies) in [(1, 3), (2, 3), (3, 3), (4, 4), (5, 9)] {
        for overlay in [Overlay::Flat, Overlay::Binomial, Overlay::Chain, Overlay::Double] {
            for wants in 0..copies {
                let (kept, _) = run_graph(workers, &tight(), |graph, kept| {
                    let from = graph.add(source("from", &numbers(), 2, &many(60)));
                    let kept = Arc::clone(kept);
                    let some = TaskSpec::new("some", move |inputs, _, context| {
                        let kept = Arc::clone(&kept);
                        async move {
                            let mut input = inputs.into_only();
                            // The others stop one after the other.
                            let mut wanted = if context.copy() == wants { u32::MAX } else { context.copy() };
                            while wanted > 0
                                && let Some(StreamElement::Batch(batch)) = input.recv().await?
                            {
                                kept.lock().unwrap().entry(context.copy()).or_default().push(batch);
                                wanted -= 1;
                            }
                            Ok(())
                        }
                    });
                    let to = graph.add(some.input("in").copies(copies));
                    graph.connect(from, to, Broadcast::along(overlay));
                })
                .unwrap();
                let rows: usize = kept[&wants].iter().map(RecordBatch::num_rows).sum();
                assert_eq!(rows, 2 * 60 * 1000, "copy {wants} of {copies} on {workers} workers, {overlay:?}");
            }
        }
    }
}

/// A sender that waited for the copy whose turn it is would be as slow as the slowest copy, however many others
/// exist.
#[test]
fn a_copy_without_room_is_passed_over() {
    const BATCHES: i64 = 600;
    for workers in [1, 3] {
        let of_others = Arc::new(AtomicUsize::new(0));
        let (rows, _) = run_graph(workers, &tight(), |graph, kept| {
            let from = graph.add(source("from", &numbers(), 1, &many(BATCHES)));
            let (kept, of_others) = (Arc::clone(kept), Arc::clone(&of_others));
            let some = TaskSpec::new("some", move |inputs, _, context| {
                let (kept, of_others) = (Arc::clone(&kept), Arc::clone(&of_others));
                async move {
                    let (copy, mut input) = (context.copy(), inputs.into_only());
                    // Copy 1 receives nothing before the others have received everything that does not fit here.
                    while copy == 1 && of_others.load(Ordering::SeqCst) < 500 * 1000 {
                        tokio::time::sleep(Duration::from_millis(1)).await;
                    }
                    while let Some(StreamElement::Batch(batch)) = input.recv().await? {
                        of_others.fetch_add(if copy == 1 { 0 } else { batch.num_rows() }, Ordering::SeqCst);
                        kept.lock().unwrap().entry(copy).or_default().push(batch);
                    }
                    Ok(())
                }
            });
            let to = graph.add(some.input("in").copies(4));
            graph.connect(from, to, Partition::round_robin());
        })
        .unwrap();
        let rows = |copy: u32| rows.get(&copy).map_or(0, |b| b.iter().map(RecordBatch::num_rows).sum::<usize>());
        assert_eq!((0..4).map(rows).sum::<usize>(), BATCHES as usize * 1000);
    }
}

/// However fast the producer and slow the consumer, the queue stays within the window.
#[test]
fn a_slow_consumer_bounds_memory() {
    for (workers, copies) in [(1, 1), (2, 2), (3, 4)] {
        let exchanges: [fn(&mut Graph, tidemill_dataflow::TaskId, tidemill_dataflow::TaskId); 3] = [
            |graph, from, to| drop_ref(graph.connect(from, to, Partition::by_key(["n"]))),
            |graph, from, to| drop_ref(graph.connect(from, to, Broadcast::along(tidemill_dataflow::Overlay::Chain))),
            |graph, from, to| drop_ref(graph.connect(from, to, Gather::default())),
        ];
        for connect in exchanges {
            let (_, reports) = run_graph(workers, &tight(), |graph, _| {
                let from = graph.add(source("from", &numbers(), 2, &many(400)));
                let slow = TaskSpec::blocking("slow", |inputs, _, _| {
                    let mut input = inputs.into_only();
                    while input.recv_blocking()?.is_some() {
                        std::thread::sleep(Duration::from_micros(20));
                    }
                    Ok(())
                });
                let to = graph.add(slow.input("in").copies(copies));
                connect(graph, from, to);
            })
            .unwrap();
            // 2 x 3.2 MB go through windows of 64 KiB, one for each of the two sources; a block exceeds that by at
            // most one batch.
            let queued = reports.iter().map(|report| report.edges[0].queue_bytes_max).max().unwrap();
            assert!((1..2 * (64 << 10) + 2 * 20_000).contains(&queued), "{queued} bytes were queued");
        }
    }
}

fn drop_ref<T>(_: &mut T) {}

/// Workers that build different graphs learn what differs before anything runs.
#[test]
fn different_graphs_are_named() {
    let results = run_ranks(3, |comm| {
        let runner = Runner::new(&comm, tight()).unwrap();
        let mut graph = Graph::new("test");
        let kept = Kept::default();
        let from = graph.add(source("from", &numbers(), 2, &many(1)));
        let to = graph.add(sink("to", if comm.rank() == 1 { 3 } else { 4 }, &kept));
        graph.connect(from, to, Partition::by_key(["n"]));
        let error = runner.run(&graph).unwrap_err().to_string();
        // A graph that cannot run on one worker runs on none.
        let mut graph = Graph::new("test");
        let from = graph.add(source("from", &numbers(), 2, &many(1)));
        let to = graph.add(sink("to", 2, &kept));
        if comm.rank() != 2 {
            graph.connect(from, to, Direct);
        }
        let second = runner.run(&graph).unwrap_err().to_string();
        (error, second)
    })
    .unwrap();
    for (error, second) in results {
        assert!(error.contains("graphs differ") && error.contains("task \"to\""), "{error}");
        assert!(second.contains("graphs differ"), "{second}");
    }
}

/// Batches that do not match a port's declaration are refused where they are sent.
#[test]
fn wrong_batches_are_refused() {
    let other = schema(&[("m", DataType::Int64)]);
    let error = run_graph(2, &tight(), |graph, kept| {
        let other = other.clone();
        let task = TaskSpec::new("liar", move |_, outputs, _| {
            let batch = batch(&other, 0, 10);
            async move { outputs.into_only().send(batch).await }
        });
        let from = graph.add(task.output("out", numbers()));
        let to = graph.add(sink("to", 2, kept));
        graph.connect(from, to, Direct);
    })
    .unwrap_err()
    .to_string();
    assert!(error.contains("\"liar\"") && error.contains("column \"m\""), "{error}");
}

/// A caller that handles signals can give up a run, on all workers.
#[test]
fn a_run_can_be_given_up() {
    let errors = run_ranks(2, |comm| {
        let runner = Runner::new(&comm, RunnerSettings { threads: 1, ..RunnerSettings::default() }).unwrap();
        let mut graph = Graph::new("test");
        let endless = TaskSpec::new("endless", |_, outputs, _| async move {
            let (mut output, schema) = (outputs.into_only(), numbers());
            loop {
                output.send(batch(&schema, 0, 1000)).await?;
            }
        });
        let from = graph.add(endless.output("out", numbers()));
        let to = graph.add(TaskSpec::new("never", |_inputs, _, _| std::future::pending()).input("in"));
        graph.connect(from, to, Partition::by_key(["n"]));
        let rank = comm.rank();
        let mut look = |_: &RunProgress| if rank == 1 { Err("interrupted".to_owned()) } else { Ok(()) };
        runner.run_placed(&graph, &RoundRobin, &mut look).unwrap_err().to_string()
    })
    .unwrap();
    assert!(errors.iter().all(|error| error.contains("interrupted") && *error == errors[0]), "{errors:?}");
}

/// A runner whose workers report to worker 0 directly, or in a chain.
fn reporting(comm: &Communicator, report_fanout: Option<u32>) -> Runner {
    Runner::new(comm, RunnerSettings { threads: 1, report_fanout, ..RunnerSettings::default() }).unwrap()
}

/// Worker 0 learns how far the others are during the run.
#[test]
fn worker_0_learns_of_progress() {
    [None, Some(1)].into_iter().for_each(progress_is_heard_of);
}

fn progress_is_heard_of(fanout: Option<u32>) {
    let known = Arc::new(AtomicBool::new(false));
    run_ranks(3, |comm| {
        let runner = reporting(&comm, fanout);
        let mut graph = Graph::new("test");
        let until = Arc::clone(&known);
        let busy = TaskSpec::blocking("busy", move |_, _, _| {
            while !until.load(Ordering::SeqCst) {
                std::thread::sleep(Duration::from_millis(1));
            }
            Ok(())
        });
        let (from, to) = (graph.add(busy.output("out", numbers())), graph.add(sink("to", 3, &Kept::default())));
        graph.connect(from, to, Direct);
        let rank = u64::from(comm.rank());
        let mut look = |progress: &RunProgress| {
            progress.tell(10 + rank);
            if rank == 0 && progress.elsewhere() == 11 + 12 {
                known.store(true, Ordering::SeqCst);
            }
            Ok(())
        };
        runner.run_placed(&graph, &RoundRobin, &mut look).unwrap();
    })
    .unwrap();
}

/// Worker 0 receives each worker's newest status, and learns when a worker whose part is over sends no more.
#[test]
fn worker_0_learns_of_statuses() {
    statuses_are_heard_of(None, 2);
    // In a chain, also through a worker whose part is over.
    statuses_are_heard_of(Some(1), 1);
}

fn statuses_are_heard_of(fanout: Option<u32>, ends_first: u32) {
    let (met, known) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    let told = run_ranks(3, |comm| {
        let runner = reporting(&comm, fanout);
        let mut graph = Graph::new("test");
        let (first, last) = (Arc::clone(&met), Arc::clone(&known));
        // There is one copy on each worker. The copy on worker `ends_first` ends once all have reported.
        let busy = TaskSpec::blocking("busy", move |_, _, context| {
            let until = if context.copy() == ends_first { &first } else { &last };
            while !until.load(Ordering::SeqCst) {
                std::thread::sleep(Duration::from_millis(1));
            }
            Ok(())
        });
        let from = graph.add(busy.output("out", numbers()).copies(3));
        let to = graph.add(sink("to", 3, &Kept::default()));
        graph.connect(from, to, Direct);
        let (rank, mut looks, mut seen) = (comm.rank(), 0, Vec::new());
        let mut look = |progress: &RunProgress| {
            looks += 1;
            progress.tell_status(format!("{rank}: {looks}").into_bytes());
            seen = progress.statuses();
            let more = |worker: &WorkerStatus| {
                let text = String::from_utf8(worker.status.clone()).unwrap();
                let (of, looks) = text.split_once(": ").unwrap();
                assert_eq!(of, worker.worker.to_string());
                if worker.worker == ends_first { worker.over } else { looks.parse::<u32>().unwrap() > 3 }
            };
            if seen.len() == 2 {
                met.store(true, Ordering::SeqCst);
                known.store(seen.iter().all(more), Ordering::SeqCst);
            }
            Ok(())
        };
        runner.run_placed(&graph, &RoundRobin, &mut look).unwrap();
        seen.iter().map(|worker| (worker.worker, worker.over)).collect::<Vec<_>>()
    });
    let told = told.unwrap();
    assert!(told[0].len() == 2 && told[0].contains(&(ends_first, true)), "{told:?}");
    assert!(told[1].is_empty() && told[2].is_empty(), "only worker 0 is told: {told:?}");
}

/// The copies of a task compute together, each on its own thread, even if a worker runs several: collectives, small
/// and large, and messages around a ring.
#[test]
fn copies_have_a_communicator() {
    for (workers, copies) in [(1, 3), (2, 5), (3, 2), (3, 4)] {
        let sums = run_ranks(workers, |comm| {
            let runner = Runner::new(&comm, tight()).unwrap();
            let (sender, sums) = std::sync::mpsc::channel();
            let mut graph = Graph::new("test");
            let from = graph.add(source("from", &numbers(), 2, &many(50)));
            let task = TaskSpec::blocking("solver", move |inputs, _, context| {
                let mut input = inputs.into_only();
                let mut rows = 0i64;
                while let Some(StreamElement::Batch(batch)) = input.recv_blocking()? {
                    rows += batch.num_rows() as i64;
                }
                let comm = context.comm().ok_or("no communicator")?;
                assert_eq!((comm.rank(), comm.size()), (context.copy(), context.copies()));
                let mut sum = [0];
                comm.allreduce(&[rows], &mut sum, &ReduceOp::Sum)?;
                let (rank, size) = (comm.rank(), comm.size());
                for len in [0usize, 1, 1 << 18] {
                    let mine = vec![i64::from(rank); len];
                    let mut all = vec![0; len * size as usize];
                    comm.allgather(&mine, &mut all)?;
                    assert!(all.chunks(len.max(1)).zip(0i64..).all(|(part, rank)| part.iter().all(|of| *of == rank)));
                    let mut before = vec![-1; len];
                    if rank == 0 {
                        comm.send_slice(&mine, 1 % size, 7)?;
                    }
                    comm.recv_slice(&mut before, Some((rank + size - 1) % size), Some(7))?;
                    if rank > 0 {
                        comm.send_slice(&mine, (rank + 1) % size, 7)?;
                    }
                    assert!(before.iter().all(|of| *of == i64::from((rank + size - 1) % size)));
                }
                Ok(sender.send(sum[0])?)
            });
            let to = graph.add(task.input("in").copies(copies).with_comm());
            graph.connect(from, to, Partition::by_key(["n"]));
            // Each run has separate communicators.
            runner.run(&graph).unwrap();
            runner.run(&graph).unwrap();
            drop(graph);
            sums.iter().collect::<Vec<i64>>()
        })
        .unwrap();
        assert_eq!(sums.concat(), vec![100_000; 2 * copies as usize], "{copies} copies on {workers} workers");
    }
}

/// Copies that wait in a collective for one that fails would wait forever; the run's error is the failed copy's, on
/// every worker, and the next run works. A copy that leaves early is named by those that wait for it.
#[test]
fn copies_do_not_wait_for_one_that_fails_or_leaves() {
    for (workers, copies) in [(1, 3), (2, 2), (2, 5)] {
        for leaves in [false, true] {
            let errors = run_ranks(workers, |comm| {
                let runner = Runner::new(&comm, tight()).unwrap();
                let run = |sound: bool| {
                    let mut graph = Graph::new("test");
                    let from = graph.add(source("from", &numbers(), 1, &many(1)));
                    let task = TaskSpec::blocking("solver", move |_, _, context| {
                        let comm = context.comm().ok_or("no communicator")?;
                        if !sound && context.copy() == 1 {
                            return if leaves { Ok(()) } else { Err("it has diverged".into()) };
                        }
                        let mut sum = [0];
                        Ok(comm.allreduce(&[1i64], &mut sum, &ReduceOp::Sum)?)
                    });
                    let to = graph.add(task.input("in").copies(copies).with_comm());
                    graph.connect(from, to, Partition::by_key(["n"]));
                    runner.run(&graph).map(drop)
                };
                let error = run(false).unwrap_err().to_string();
                run(true).unwrap();
                error
            });
            for error in errors.unwrap() {
                let expected = if leaves { "1's function returned while" } else { "task \"solver\", copy 1" };
                assert!(error.contains(expected), "{copies} copies on {workers} workers: {error}");
            }
        }
    }
}

/// What a copy sends to a reduction is reduced locally, and never waits. A copy that continued forever would keep its
/// thread from all others, and nothing could end it.
#[test]
fn a_reduction_does_not_keep_the_thread() {
    for as_values in [true, false] {
        let numbers = numbers();
        let from = numbers.clone();
        let source = TaskSpec::new("source", move |_, outputs, context| {
            let (from, mut output) = (from.clone(), outputs.into_only());
            async move {
                while context.copy() > 0 {
                    match as_values {
                        true => output.send_values::<Int64Type>(&[1; 16]).await?,
                        false => output.send(batch(&from, 0, 16)).await?,
                    }
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
                Err("it was enough".into())
            }
        });
        let source = source.output("out", numbers);
        let error = run_graph(2, &RunnerSettings { threads: 1, ..RunnerSettings::default() }, |graph, kept| {
            let from = graph.add(source.clone().copies(4));
            let to = graph.add(sink("sink", 1, kept));
            graph.connect(from, to, Reduce::new(Reduction::new().sum("n")));
        });
        assert!(error.unwrap_err().to_string().contains("it was enough"));
    }
}
