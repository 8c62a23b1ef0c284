//! What workers count about themselves during a run reaches worker 0, directly or through other workers.

mod common;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use arrow::array::{Int64Array, RecordBatch};
use arrow::datatypes::{DataType, SchemaRef};
use common::{schema, tight};
use tidemill_collective::run_ranks;
use tidemill_control::TaskRole;
use tidemill_dataflow::exchange::Partition;
use tidemill_dataflow::keys::KeyHasher;
use tidemill_dataflow::placement::RoundRobin;
use tidemill_dataflow::route_map::RouteMap;
use tidemill_dataflow::{
    Graph, RunProgress, Runner, RunnerSettings, StreamElement, TaskContext, TaskError, TaskSpec, WorkerSample,
};

const BUCKETS: u32 = 8;
const HEAVY: i64 = 7;

fn numbers() -> SchemaRef {
    schema(&[("n", DataType::Int64)])
}

/// What a copy of the source sends: half of it has one key.
fn rows(copy: u32) -> RecordBatch {
    let rows = 4000 * (i64::from(copy) + 1);
    let keys = (0..rows).map(|row| if row % 2 == 0 { HEAVY } else { 1000 + row % 97 });
    RecordBatch::try_new(numbers(), vec![Arc::new(Int64Array::from_iter_values(keys))]).unwrap()
}

async fn until(flag: &AtomicBool) {
    while !flag.load(Ordering::SeqCst) {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

fn source(
    done: &Arc<AtomicBool>,
    send: impl Fn(&TaskContext) -> Vec<RecordBatch> + Send + Sync + 'static,
    copies: u32,
) -> TaskSpec {
    let done = Arc::clone(done);
    let source = move |_, outputs: tidemill_dataflow::Outputs, context: TaskContext| {
        let (batches, done) = (send(&context), Arc::clone(&done));
        async move {
            let mut output = outputs.into_only();
            for batch in batches {
                output.send(batch).await?;
            }
            output.flush().await?;
            until(&done).await;
            Ok::<(), TaskError>(())
        }
    };
    TaskSpec::new("numbers", source).output("out", numbers()).copies(copies)
}

/// A sink that receives nothing before `begun`.
fn sink(begun: &Arc<AtomicBool>, copies: u32) -> TaskSpec {
    let begun = Arc::clone(begun);
    let sink = move |inputs: tidemill_dataflow::Inputs, _, _| {
        let begun = Arc::clone(&begun);
        async move {
            until(&begun).await;
            let mut input = inputs.into_only();
            while let Some(StreamElement::Batch(_)) = input.recv().await? {}
            Ok(())
        }
    };
    TaskSpec::new("count", sink).input("in").copies(copies)
}

/// Runs a graph until `look` at worker 0's progress sets `done`; gives up after a long while.
fn run(
    workers: u32,
    settings: &RunnerSettings,
    done: &Arc<AtomicBool>,
    build: impl Fn(&mut Graph) + Sync,
    look: impl Fn(&RunProgress) -> bool + Sync,
) {
    let outcomes = run_ranks(workers, |comm| {
        let mut graph = Graph::new("measured");
        build(&mut graph);
        let (runner, mut looks) = (Runner::new(&comm, settings.clone()).unwrap(), 0);
        let mut look = |progress: &RunProgress| {
            looks += 1;
            if progress.worker() == 0 && look(progress) {
                done.store(true, Ordering::SeqCst);
            }
            if looks < 3000 { Ok(()) } else { Err(format!("it has not come: {:?}", progress.samples())) }
        };
        runner.run_placed(&graph, &RoundRobin, &mut look).map(drop).map_err(|error| error.to_string())
    });
    assert_eq!(outcomes.unwrap(), vec![Ok(()); workers as usize]);
}

fn bucket_rows(samples: &[WorkerSample], worker: u32) -> BTreeMap<u32, u64> {
    let sample = samples.iter().find(|sample| sample.worker == worker);
    let buckets = sample.iter().flat_map(|sample| &sample.buckets);
    buckets.filter(|bucket| bucket.task == 1 && bucket.rows > 0).map(|bucket| (bucket.bucket, bucket.rows)).collect()
}

/// A controller that saw other rows than were sent would move the wrong buckets.
#[test]
fn worker_0_sees_the_rows_of_all_workers() {
    let workers = 3;
    let expected = |worker: u32| {
        let (mut hashes, mut buckets) = (Vec::new(), BTreeMap::new());
        KeyHasher::new(vec![0]).hash(&rows(worker), &mut hashes).unwrap();
        let route = RouteMap::even(BUCKETS, workers);
        hashes.iter().for_each(|&hash| *buckets.entry(route.bucket(hash)).or_insert(0) += 1);
        buckets
    };
    let total: u64 = (0..workers).map(|worker| rows(worker).num_rows() as u64).sum();
    // Reports pass through other workers.
    let settings = RunnerSettings { threads: 1, report_fanout: Some(1), ..RunnerSettings::default() };
    let done: Arc<AtomicBool> = Arc::default();
    let build = |graph: &mut Graph| {
        let source = graph.add(source(&done, |context| vec![rows(context.copy())], workers));
        let sink = graph.add(sink(&Arc::new(AtomicBool::new(true)), workers));
        graph.connect(source, sink, Partition::by_key(["n"]).buckets(BUCKETS));
    };
    run(workers, &settings, &done, build, |progress| {
        let (samples, layout) = (progress.samples(), progress.layout());
        let roles: Vec<_> = layout.tasks.iter().map(|task| (task.name.as_str(), task.role)).collect();
        assert_eq!(roles, [("numbers", TaskRole::Source), ("count", TaskRole::Sink)]);
        assert_eq!((layout.hosts.len(), layout.worker_hosts.as_slice()), (1, &[0; 3][..]));
        assert_eq!((&layout.tasks[1].copy_workers, &layout.tasks[1].inputs), (&vec![0, 1, 2], &vec![0]));
        let of_sink = samples.iter().flat_map(|sample| &sample.tasks).filter(|task| task.task == 1);
        let have_all = (0..workers).all(|worker| bucket_rows(&samples, worker) == expected(worker))
            && of_sink.map(|task| task.rows_in).sum::<u64>() == total;
        if have_all {
            for sample in &samples {
                let [heavy] = &sample.heavy_keys[..] else { panic!("{:?}", sample.heavy_keys) };
                assert_eq!((heavy.task, heavy.key.as_str()), (1, "7"));
                let share = heavy.rows as f64 / heavy.all_rows as f64;
                assert!((0.35..0.65).contains(&share), "{share}");
                assert!(sample.at_ns > 0 && sample.links.iter().any(|link| link.sent_bytes > 0));
            }
        }
        have_all
    });
}

/// If waits counted only when they end, a sender that waits forever would never be seen.
#[test]
fn waits_are_visible_while_they_last() {
    let done: Arc<AtomicBool> = Arc::default();
    let build = |graph: &mut Graph| {
        let send = |context: &TaskContext| if context.copy() == 1 { vec![rows(20); 20] } else { Vec::new() };
        let source = graph.add(source(&done, send, 2));
        let sink = graph.add(sink(&done, 2));
        graph.connect(source, sink, Partition::with("to the first", |batch, _| Ok(vec![0; batch.num_rows()])));
    };
    run(2, &tight(), &done, build, |progress| {
        let samples = progress.samples();
        let Some(sample) = samples.iter().find(|sample| sample.worker == 1) else { return false };
        let source = sample.tasks.iter().find(|task| task.task == 0).expect("a copy of it runs there");
        let waits =
            sample.links.iter().filter(|link| link.peer == 0).map(|link| link.link_wait_ns + link.credit_wait_ns);
        let (blocked, waits) = (Duration::from_nanos(source.blocked_ns), Duration::from_nanos(waits.sum()));
        assert!(source.busy_ns + source.blocked_ns + source.idle_ns <= sample.at_ns + 1_000_000);
        blocked.min(waits) > Duration::from_millis(300)
    });
}

/// A function that keeps its interpreter from others was invisible where it had a thread of its own.
#[test]
fn threads_of_copies_are_busy_unless_they_wait() {
    let done: Arc<AtomicBool> = Arc::default();
    let build = |graph: &mut Graph| {
        let done = Arc::clone(&done);
        let body = move |_, outputs: tidemill_dataflow::Outputs, context: TaskContext| {
            let done = Arc::clone(&done);
            async move {
                let _outputs = outputs;
                let work = move || {
                    context.enter_thread();
                    if context.copy() == 0 {
                        while !done.load(Ordering::SeqCst) {}
                    } else {
                        TaskContext::pause(|| {
                            while !done.load(Ordering::SeqCst) {
                                std::thread::sleep(Duration::from_millis(5));
                            }
                        });
                    }
                    TaskContext::leave_thread();
                };
                tokio::task::spawn_blocking(move || std::thread::spawn(work).join())
                    .await?
                    .map_err(|_| "it panicked")?;
                Ok::<(), TaskError>(())
            }
        };
        let functions = graph.add(TaskSpec::new("functions", body).output("out", numbers()).copies(2));
        let sink = graph.add(sink(&Arc::new(AtomicBool::new(true)), 2));
        graph.connect(functions, sink, Partition::round_robin());
    };
    run(2, &RunnerSettings::default(), &done, build, |progress| {
        let samples = progress.samples();
        let of = |worker| samples.iter().find(|sample| sample.worker == worker).and_then(|sample| sample.tasks.first());
        let (Some(works), Some(waits)) = (of(0), of(1)) else { return false };
        let is_seen = works.interpreter_ns > 50_000_000 && works.busy_ns >= works.interpreter_ns;
        is_seen && waits.idle_ns > 50_000_000 && waits.idle_ns > waits.busy_ns && waits.interpreter_ns < 50_000_000
    });
}
