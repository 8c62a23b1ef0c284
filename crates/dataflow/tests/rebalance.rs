//! Rebalancing: buckets move to other copies while rows come, and no count is wrong, whatever moves, waits or fails.
//! The operator itself notices every row that is missing, comes twice, or comes out of its key's order.

mod common;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use arrow::array::{ArrayRef, AsArray, Int64Array, RecordBatch};
use arrow::datatypes::{Int64Type, TimestampMillisecondType};
use bytes::Bytes;
use common::counting::{
    KEYS, Numbers, Outside, SPLITS, World, check, events, graph, run, run_graph, run_scaled, totals,
};
use tidemill_control::{plan_splits, spare_workers};
use tidemill_dataflow::checkpoint::{Snapshot, SnapshotPart};
use tidemill_dataflow::exchange::{Direct, Partition};
use tidemill_dataflow::keys::KeyHasher;
use tidemill_dataflow::operator::{EmitStatus, ReleasedParts};
use tidemill_dataflow::rebalance::{MoveReport, PendingRebalance, Rebalance, SplitMoves};
use tidemill_dataflow::route_map::{BUCKETS, RouteMap};
use tidemill_dataflow::stream::source::WatermarkStrategy;
use tidemill_dataflow::stream::{BarrierControl, EventTime};
use tidemill_dataflow::{Emitter, Graph, Operator, RunProgress, TaskContext, TaskError, TaskSpec};

fn random(seed: u64) -> impl FnMut(u64) -> u64 {
    let mut state = seed;
    move |n| {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 33) % n
    }
}

/// A map for one task.
fn only(task: &str, map: RouteMap) -> BTreeMap<String, RouteMap> {
    [(task.to_owned(), map)].into()
}

/// Requests new maps as long as a job runs, some at each look, and keeps the answers.
struct Mover {
    copies: u64,
    task: &'static str,
    at_once: u64,
    state: Mutex<Asked>,
}

#[derive(Default)]
struct Asked {
    open: Vec<PendingRebalance>,
    answers: Vec<Result<MoveReport, String>>,
    seed: u64,
}

impl Mover {
    fn new(task: &'static str, copies: u32, at_once: u64) -> Self {
        Mover { copies: copies.into(), task, at_once, state: Mutex::default() }
    }

    fn look(&self, progress: &RunProgress) {
        // Every worker looks; only one can move buckets.
        let Ok(mut state) = self.state.try_lock() else { return };
        let Asked { open, answers, seed } = &mut *state;
        open.retain_mut(|one| match one.outcome() {
            Some(outcome) => {
                answers.push(outcome);
                false
            }
            None => true,
        });
        if !open.is_empty() {
            return;
        }
        let Some(mut map) = progress.route(self.task) else { return };
        for _ in 0..self.at_once {
            *seed += 1;
            let mut random = random(*seed);
            let kind = random(4);
            let one = random(self.copies) as u32;
            let moves: Vec<(u32, u32)> = match kind {
                // All to one copy.
                0 => (0..BUCKETS).map(|bucket| (bucket, one)).collect(),
                // None at all.
                1 => Vec::new(),
                _ => (0..BUCKETS).map(|bucket| (bucket, random(self.copies) as u32)).collect(),
            };
            map = map.moved(&moves);
            open.push(progress.rebalance(only(self.task, map.clone())));
        }
    }

    fn answers(self) -> Vec<Result<MoveReport, String>> {
        let Asked { open, mut answers, .. } = self.state.into_inner().unwrap();
        answers.extend(
            open.into_iter().map(|mut one| one.outcome().expect("the run is over, and so is what it was asked")),
        );
        answers
    }
}

fn is_worker_0(progress: &RunProgress) -> bool {
    let mut asked = progress.rebalance(only("nothing", RouteMap::even(1, 1)));
    !matches!(asked.outcome(), Some(Err(reason)) if reason.contains("only worker 0"))
}

/// Many rebalances while rows come, some of everything to one copy, with a slow copy.
#[test]
fn counts_stay_exact_over_many_rebalances() {
    for (workers, pause) in [(2, Duration::ZERO), (3, Duration::from_millis(3)), (1, Duration::ZERO)] {
        let folder = tempfile::tempdir().unwrap();
        let world = World::default();
        let mover = Mover::new("count", workers, 8);
        let graph = graph(15_000, pause, None, &world);
        run_graph(workers, folder.path(), &graph, |progress| {
            if is_worker_0(progress) {
                mover.look(progress);
            }
            Ok(())
        })
        .unwrap();
        check(&world, 15_000);
        let answers = mover.answers();
        let done: Vec<MoveReport> = answers.iter().filter_map(|answer| answer.as_ref().ok()).copied().collect();
        println!(
            "{workers} workers: {} rebalances, {:?} at most",
            done.len(),
            done.iter().map(|moved| moved.waited).max()
        );
        assert!(done.len() > 8, "{answers:?}");
        assert!(done.windows(2).all(|two| two[0].epoch < two[1].epoch), "{done:?}");
        assert!(workers == 1 || done.iter().any(|moved| moved.bytes > 0 && moved.buckets > 0), "{done:?}");
        for reason in answers.iter().filter_map(|answer| answer.as_ref().err()) {
            assert!(reason.contains("end"), "{reason}");
        }
    }
}

/// Failures at any moment of a job whose buckets keep moving, followed by a job of the same or another size.
#[test]
fn failures_between_rebalances() {
    let mut random = random(11);
    for _ in 0..5 {
        let folder = tempfile::tempdir().unwrap();
        let world = World::default();
        let mut failures = 0;
        let mut workers = 2;
        loop {
            if random(2) == 0 {
                workers = 1 + random(4) as u32;
            }
            let fuse = (failures < 4).then(|| Arc::new(AtomicU64::new(1 + random(700))));
            let mover = Mover::new("count", workers, 4);
            let outcome = run(workers, folder.path(), 6000, fuse, &world, |progress| {
                if is_worker_0(progress) {
                    mover.look(progress);
                }
                Ok(())
            });
            let answers = mover.answers();
            match outcome {
                Ok(()) => break,
                Err(error) => {
                    assert!(error.to_string().contains("the fuse has blown"), "{error}");
                    failures += 1;
                }
            }
            for reason in answers.iter().filter_map(|answer| answer.as_ref().err()) {
                assert!(reason.contains("end"), "{reason}");
            }
        }
        check(&world, 6000);
    }
}

/// Where the splits of "numbers" are, and other places for some of them.
fn other_readers(progress: &RunProgress, mut random: impl FnMut(u64) -> u64) -> SplitMoves {
    let layout = progress.layout();
    let source = layout.tasks.iter().find(|task| task.name == "numbers").expect("it is there");
    let open: Vec<u32> =
        (0..).zip(&source.splits).filter(|(_, splits)| splits.is_some()).map(|(copy, _)| copy).collect();
    let one = open.get(random(open.len().max(1) as u64) as usize).copied().filter(|_| random(2) == 0);
    let mut moves = SplitMoves::new();
    for (from, splits) in (0..).zip(&source.splits) {
        for split in splits.iter().flatten() {
            let to = one.unwrap_or_else(|| open[random(open.len() as u64) as usize]);
            if to != from {
                moves.entry(from).or_default().insert(split.clone(), to);
            }
        }
    }
    moves
}

/// Keeps moving splits, and buckets with some of them, as long as a job runs.
#[derive(Default)]
struct SplitMover(Mutex<Asked>);

impl SplitMover {
    fn look(&self, progress: &RunProgress) {
        let mut state = self.0.lock().unwrap();
        let Asked { open, answers, seed } = &mut *state;
        open.retain_mut(|one| match one.outcome() {
            Some(outcome) => {
                answers.push(outcome);
                false
            }
            None => true,
        });
        let Some(map) = progress.route("count").filter(|_| open.is_empty()) else { return };
        *seed += 1;
        let mut random = random(*seed);
        let moves = other_readers(progress, &mut random);
        if moves.is_empty() {
            return;
        }
        let mut asked = Rebalance { splits: [("numbers".to_owned(), moves)].into(), ..Rebalance::default() };
        if random(3) == 0 {
            let copies = progress.layout().tasks[1].copy_workers.len() as u64;
            let buckets: Vec<(u32, u32)> = (0..BUCKETS).map(|bucket| (bucket, random(copies) as u32)).collect();
            asked.maps = only("count", map.moved(&buckets));
        }
        open.push(progress.apply(asked));
    }

    fn answers(self) -> Vec<Result<MoveReport, String>> {
        let Asked { open, mut answers, .. } = self.0.into_inner().unwrap();
        answers.extend(open.into_iter().filter_map(|mut one| one.outcome()));
        answers
    }
}

/// Splits that move while rows come, with failures at any moment, and a job of the same or another size behind each.
/// The operator notices rows that are missing, twice, out of order, or late.
#[test]
fn splits_move_between_failures() {
    let mut random = random(29);
    let (mut moved, mut taken) = (0, 0);
    // How many moves fit into a story depends on the machine; enough of them must be seen.
    for story in 0..40 {
        if story >= 4 && moved > 20 && taken > 40 {
            break;
        }
        let folder = tempfile::tempdir().unwrap();
        let world = World::default();
        let (mut failures, mut workers) = (0, 3);
        loop {
            if random(2) == 0 {
                workers = 2 + random(3) as u32;
            }
            let fuse = (story > 0 && failures < 4).then(|| Arc::new(AtomicU64::new(1 + random(700))));
            let mover = SplitMover::default();
            let outcome = run(workers, folder.path(), 6000, fuse, &world, |progress| {
                if is_worker_0(progress) {
                    mover.look(progress);
                }
                Ok(())
            });
            let answers = mover.answers();
            for answer in &answers {
                match answer {
                    Ok(report) => (moved, taken) = (moved + 1, taken + report.splits),
                    Err(reason) => assert!(reason.contains("end"), "{reason}"),
                }
            }
            match outcome {
                Ok(()) => break,
                Err(error) => {
                    assert!(error.to_string().contains("the fuse has blown"), "{error}");
                    failures += 1;
                }
            }
        }
        check(&world, 6000);
    }
    println!("{moved} moves of {taken} splits");
    assert!(moved > 20 && taken > 40, "{moved} moves of {taken} splits");
}

/// Keeps scaling a job to any number of its workers.
#[derive(Default)]
struct Scaler(Mutex<ScaledRun>);

#[derive(Default)]
struct ScaledRun {
    pending: Option<(PendingRebalance, BTreeSet<u32>)>,
    scaled: usize,
    refused: Vec<String>,
    seed: u64,
    is_started: bool,
}

impl Scaler {
    fn look(&self, progress: &RunProgress, active: u32) {
        let mut state = self.0.lock().unwrap();
        let ScaledRun { pending, scaled, refused, seed, is_started } = &mut *state;
        if let Some((one, spares)) = pending {
            let Some(outcome) = one.outcome() else { return };
            match outcome {
                Ok(_) => {
                    assert_eq!(progress.spares(), *spares);
                    *scaled += 1;
                }
                Err(reason) => refused.push(reason),
            }
        }
        *pending = None;
        let layout = progress.layout();
        let Some(count) = layout.tasks.iter().position(|task| task.name == "count") else { return };
        if !std::mem::replace(is_started, true) {
            assert_eq!(layout.active() as u32, active);
            let owners: BTreeSet<u32> = layout.tasks[count].owners.iter().copied().collect();
            assert!(owners.is_disjoint(&layout.spares), "{owners:?} at the start, of {:?}", layout.spares);
        }
        *seed += 1;
        let mut random = random(*seed);
        let size = layout.worker_hosts.len();
        let spares = spare_workers(&layout.worker_hosts, 1 + random(size as u64) as usize);
        let open: Vec<u32> = (0..size as u32).filter(|worker| !spares.contains(worker)).collect();
        let layout = layout.with_spares(spares.clone());
        let owners: Vec<u32> = (0..BUCKETS).map(|_| open[random(open.len() as u64) as usize]).collect();
        // Sometimes they are spare, or not, before anything moves.
        let owners = if random(4) == 0 { Vec::new() } else { vec![(count as u32, owners)] };
        let splits = plan_splits(&layout, true);
        *pending = Some((progress.scale(&layout, &owners, splits), spares));
    }
}

/// Workers that join and leave while rows come, with failures at any moment, and a job with other spare workers, or of
/// another size, behind each. The operator notices rows that are missing, twice, out of order, or late.
#[test]
fn workers_join_and_leave_between_failures() {
    let mut random = random(31);
    let mut scaled = 0;
    for story in 0..40 {
        if story >= 4 && scaled > 20 {
            break;
        }
        let folder = tempfile::tempdir().unwrap();
        let world = World::default();
        let (mut failures, mut workers) = (0, 3);
        loop {
            if random(3) == 0 {
                workers = 2 + random(3) as u32;
            }
            let active = 1 + random(u64::from(workers)) as u32;
            let fuse = (story > 0 && failures < 4).then(|| Arc::new(AtomicU64::new(1 + random(700))));
            let scaler = Scaler::default();
            let graph = graph(6000, Duration::ZERO, fuse, &world);
            let hosts = vec![0; workers as usize];
            let unaligned_after = (random(2) == 0).then_some(Duration::ZERO);
            let outcome = run_scaled(&hosts, active, folder.path(), &graph, unaligned_after, |progress| {
                if is_worker_0(progress) {
                    scaler.look(progress, active);
                }
                Ok(())
            });
            let run = scaler.0.into_inner().unwrap();
            scaled += run.scaled;
            assert!(run.refused.iter().all(|reason| reason.contains("end")), "{:?}", run.refused);
            match outcome {
                Ok(()) => break,
                Err(error) => {
                    assert!(error.to_string().contains("the fuse has blown"), "{error}");
                    failures += 1;
                }
            }
        }
        check(&world, 6000);
    }
    println!("scaled {scaled} times");
    assert!(scaled > 20, "scaled {scaled} times");
}

/// Who asks for what cannot be must hear why, and nothing may move.
#[test]
fn splits_that_cannot_move_say_why() {
    let folder = tempfile::tempdir().unwrap();
    let world = World::default();
    let moves = |from: u32, to: u32| -> SplitMoves { [(from, [("0".to_owned(), to)].into())].into() };
    let cases = [
        ("numbers", moves(0, 0), "is to move from copy 0 to copy 0"),
        ("numbers", moves(0, 7), "copy 7 is named, but it has 2"),
        ("numbers", SplitMoves::new(), "none is named"),
        ("count", moves(0, 1), "it is not a source"),
        ("letters", moves(0, 1), "no task \"letters\"; the tasks are numbers, count, outside"),
    ];
    let asked: Mutex<Vec<PendingRebalance>> = Mutex::default();
    run(2, folder.path(), 200_000, None, &world, |progress| {
        if !is_worker_0(progress) {
            return Ok(());
        }
        let mut asked = asked.lock().unwrap();
        if asked.is_empty() {
            let ask = |(task, moves, _): &(&str, SplitMoves, _)| {
                let splits = [((*task).to_owned(), moves.clone())].into();
                progress.apply(Rebalance { splits, ..Rebalance::default() })
            };
            asked.extend(cases.iter().map(ask));
        }
        let outcomes: Option<Vec<_>> = asked.iter_mut().map(PendingRebalance::outcome).collect();
        for (outcome, (.., reason)) in outcomes.iter().flatten().zip(&cases) {
            assert!(outcome.as_ref().is_err_and(|said| said.contains(reason)), "{outcome:?}");
        }
        if outcomes.is_some() {
            progress.request(BarrierControl::Stop);
        }
        Ok(())
    })
    .unwrap();
}

/// A job that resumes with the same number of copies has the map it had; with another number it distributes evenly.
#[test]
fn a_map_outlives_its_run() {
    let folder = tempfile::tempdir().unwrap();
    let world = World::default();
    let owners: Vec<u32> = (0..BUCKETS).map(|bucket| bucket % 2).collect();
    let new = RouteMap::new(7, owners);
    let (asked, looks) = (Mutex::new(None), AtomicU64::new(0));
    run(2, folder.path(), 200_000, None, &world, |progress| {
        if !is_worker_0(progress) {
            return Ok(());
        }
        let mut asked = asked.lock().unwrap();
        let one: &mut PendingRebalance = asked.get_or_insert_with(|| progress.rebalance(only("count", new.clone())));
        if let Some(outcome) = one.outcome() {
            let moved = outcome?;
            assert_eq!(moved.buckets, BUCKETS / 2);
            assert_eq!(progress.route("count").as_ref(), Some(&new));
            progress.request(BarrierControl::Stop);
        }
        Ok(())
    })
    .unwrap();
    let stop = |expected: RouteMap| {
        let looks = &looks;
        move |progress: &RunProgress| {
            assert_eq!(progress.route("count").as_ref(), Some(&expected));
            assert_eq!((progress.route("numbers"), progress.route("outside")), (None, None));
            looks.fetch_add(1, Ordering::SeqCst);
            progress.request(BarrierControl::Stop);
            Ok(())
        }
    };
    run(2, folder.path(), 200_000, None, &world, stop(new)).unwrap();
    run(3, folder.path(), 200_000, None, &world, stop(RouteMap::even(BUCKETS, 3))).unwrap();
    assert!(looks.load(Ordering::SeqCst) >= 2, "nobody looked");
}

/// An operator that keeps nothing.
struct Pass;

impl Operator for Pass {
    fn on_batch(&mut self, _: usize, batch: RecordBatch, emit: &mut Emitter) -> Result<EmitStatus, TaskError> {
        let keys = batch.column(0).as_primitive::<Int64Type>().clone();
        let ones = Int64Array::from(vec![1; keys.len()]);
        emit.send(RecordBatch::try_new(totals(), vec![Arc::new(keys), Arc::new(ones)])?);
        Ok(EmitStatus::Done)
    }

    fn moves() -> bool {
        true
    }
}

/// Another operator that keeps nothing, but does not declare that.
struct Silent(Pass);

impl Operator for Silent {
    fn on_batch(&mut self, input: usize, batch: RecordBatch, emit: &mut Emitter) -> Result<EmitStatus, TaskError> {
        self.0.on_batch(input, batch, emit)
    }
}

fn passing(rows: i64, pass: TaskSpec, world: &World) -> Graph {
    let mut graph = Graph::new("passing");
    let source = TaskSpec::source("numbers", None, move |context| Ok(Numbers::new(context, rows, None)));
    let source = graph.add(source.output("out", events()));
    let pass = graph.add(pass.streaming().input("in").output("out", totals()));
    let world = Arc::clone(world);
    let sink = TaskSpec::sink("outside", move |context| Ok(Outside::new(&world, context.copy())));
    let sink = graph.add(sink.input("in"));
    graph.connect(source, pass, Partition::by_key(["key"]));
    graph.connect(pass, sink, Partition::by_key(["key"]));
    graph
}

/// Operators that keep nothing, and sinks, only need to know the new map.
#[test]
fn tasks_that_keep_nothing_move_too() {
    for task in ["pass", "outside"] {
        let folder = tempfile::tempdir().unwrap();
        let world = World::default();
        let graph = passing(8000, TaskSpec::operator("pass", |_| Ok(Pass)), &world);
        let mover = Mover::new(task, 3, 5);
        run_graph(3, folder.path(), &graph, |progress| {
            if is_worker_0(progress) {
                mover.look(progress);
            }
            Ok(())
        })
        .unwrap();
        let rows: i64 = world.lock().unwrap().values().map(|rows| rows.len() as i64).sum();
        assert_eq!(rows, 8000 * 5);
        let answers = mover.answers();
        assert!(answers.iter().filter(|answer| answer.is_ok()).count() > 4, "{answers:?}");
    }
}

/// If one of several maps were applied without the others, tasks with the same keys would be separated.
#[test]
fn several_tasks_move_together_or_not_at_all() {
    let rows = 20_000;
    let folder = tempfile::tempdir().unwrap();
    let world = World::default();
    let graph = passing(rows, TaskSpec::operator("pass", |_| Ok(Pass)), &world);
    let asked: Mutex<Vec<PendingRebalance>> = Mutex::default();
    run_graph(2, folder.path(), &graph, |progress| {
        let mut asked = asked.lock().unwrap();
        if asked.is_empty() && is_worker_0(progress) {
            let all_to = |task: &str, copy: u32| {
                let version = progress.route(task).expect("it is dealt by key").version() + 1;
                (task.to_owned(), RouteMap::new(version, vec![copy; BUCKETS as usize]))
            };
            for copy in [2, 0] {
                asked.push(progress.rebalance([all_to("pass", 1), all_to("outside", copy)].into()));
            }
        }
        Ok(())
    })
    .unwrap();
    let outcomes: Vec<_> = asked.into_inner().unwrap().iter_mut().filter_map(PendingRebalance::outcome).collect();
    let [Err(refused), Ok(moved)] = &outcomes[..] else { panic!("{outcomes:?}") };
    assert!(refused.contains("task \"outside\" cannot move: the map names copy 2"), "{refused}");
    // The second request uses the version that the first would have used, and moves half of the buckets of each task.
    assert_eq!(moved.buckets, BUCKETS);
    assert_eq!(world.lock().unwrap().values().map(Vec::len).sum::<usize>() as i64, rows * 5);
}

/// Impossible requests are refused with the reason, and the job continues.
#[test]
fn invalid_requests_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let world = World::default();
    let graph = passing(4000, TaskSpec::operator("silent", |_| Ok(Silent(Pass))), &world);
    let even = || RouteMap::even(BUCKETS, 2);
    let named = |copy| even().moved(&[(3, copy)]);
    let cases = [
        ("nobody", named(1), "no task \"nobody\"; the tasks are numbers, silent, outside"),
        ("numbers", named(1), "none of its inputs is partitioned by key"),
        ("silent", named(1), "its operator does not say how its state can move"),
        ("outside", even(), "the map has version 1, but theirs has version 1"),
        ("outside", named(2), "the map names copy 2, but the task has 2"),
        ("outside", RouteMap::new(9, vec![0; 7]), "the map has 7 buckets, but the task's keys use 1024"),
    ];
    let asked: Mutex<Option<Vec<PendingRebalance>>> = Mutex::default();
    let elsewhere = AtomicU64::new(0);
    run_graph(2, folder.path(), &graph, |progress| {
        if !is_worker_0(progress) {
            elsewhere.fetch_add(1, Ordering::SeqCst);
            return Ok(());
        }
        let ask = || cases.iter().map(|(task, map, _)| progress.rebalance(only(task, map.clone()))).collect();
        asked.lock().unwrap().get_or_insert_with(ask);
        Ok(())
    })
    .unwrap();
    for (mut asked, (_, _, expected)) in asked.into_inner().unwrap().expect("somebody looked").into_iter().zip(cases) {
        let reason = asked.outcome().expect("it is answered").unwrap_err();
        assert!(reason.contains(expected), "{reason}");
    }
    assert!(elsewhere.load(Ordering::SeqCst) > 0);
    assert_eq!(world.lock().unwrap().values().map(Vec::len).sum::<usize>(), 4000 * 5);
}

/// Requests at the end of the job, however it ends, are answered.
#[test]
fn at_the_end_everything_is_answered() {
    let folder = tempfile::tempdir().unwrap();
    let world = World::default();
    let asked: Mutex<Vec<PendingRebalance>> = Mutex::default();
    run(2, folder.path(), 4000, None, &world, |progress| {
        if is_worker_0(progress) {
            progress.request(BarrierControl::Stop);
            let map = progress.route("count").expect("it is dealt by key").moved(&[(0, 1)]);
            asked.lock().unwrap().push(progress.rebalance(only("count", map)));
        }
        Ok(())
    })
    .unwrap();
    let asked = asked.into_inner().unwrap();
    assert!(!asked.is_empty());
    for mut one in asked {
        let reason = one.outcome().expect("it is answered").unwrap_err();
        assert!(reason.contains("end"), "{reason}");
    }
}

/// Without checkpoints there are no barriers with which a map could travel.
#[test]
fn a_run_without_checkpoints_refuses() {
    let world = World::default();
    let graph = passing(400, TaskSpec::operator("pass", |_| Ok(Pass)), &world);
    tidemill_collective::run_ranks(1, |comm| {
        let runner = tidemill_dataflow::Runner::new(&comm, tidemill_dataflow::RunnerSettings::default()).unwrap();
        let mut asked = None;
        let mut look = |progress: &RunProgress| {
            asked.get_or_insert_with(|| progress.rebalance(only("pass", RouteMap::even(BUCKETS, 1))));
            Ok(())
        };
        let placement = tidemill_dataflow::placement::RoundRobin;
        runner.run_placed(&graph, &placement, &mut look).unwrap();
        let reason = asked.and_then(|mut asked| asked.outcome()).map(Result::unwrap_err);
        assert!(reason.is_none_or(|reason| reason.contains("checkpoints, but this run makes none")));
    })
    .unwrap();
}

const BIN_MS: i64 = 100;
const BIN_BITS: u32 = 32;

/// Counts the rows of each key in each tenth of a second, and emits the count when that time has passed.
struct Bins {
    route: RouteMap,
    /// By bucket, bin and key.
    counts: BTreeMap<u32, BTreeMap<(i64, i64), i64>>,
    now: i64,
}

impl Bins {
    fn new(context: &TaskContext) -> Result<Self, TaskError> {
        let mut new = Bins { route: RouteMap::even(BUCKETS, 1), counts: BTreeMap::new(), now: i64::MIN };
        if let Some(restored) = context.restored() {
            for (&bucket, parts) in &restored.buckets {
                new.counts.insert(bucket, Bins::decode(&parts[0]));
            }
        }
        Ok(new)
    }

    fn encode(counts: &BTreeMap<(i64, i64), i64>) -> Bytes {
        let numbers = counts.iter().flat_map(|((bin, key), count)| [*bin, *key, *count]);
        numbers.flat_map(i64::to_le_bytes).collect::<Vec<u8>>().into()
    }

    fn decode(bytes: &Bytes) -> BTreeMap<(i64, i64), i64> {
        let word = |bytes: &[u8]| i64::from_le_bytes(bytes.try_into().unwrap());
        bytes.chunks_exact(24).map(|row| ((word(&row[..8]), word(&row[8..16])), word(&row[16..]))).collect()
    }

    fn fire(&mut self, emit: &mut Emitter) -> Result<EmitStatus, TaskError> {
        for counts in self.counts.values_mut() {
            while let Some(entry) = counts.first_entry() {
                let (bin, key) = *entry.key();
                if (bin + 1).saturating_mul(BIN_MS * 1000) > self.now {
                    break;
                }
                let count = Arc::new(Int64Array::from(vec![bin << BIN_BITS | entry.remove()]));
                let columns: Vec<ArrayRef> = vec![Arc::new(Int64Array::from(vec![key])), count];
                emit.send(RecordBatch::try_new(totals(), columns)?);
            }
        }
        Ok(EmitStatus::Done)
    }
}

impl Operator for Bins {
    fn on_batch(&mut self, _: usize, rows: RecordBatch, emit: &mut Emitter) -> Result<EmitStatus, TaskError> {
        let mut hashes = Vec::new();
        KeyHasher::new(vec![0]).hash(&rows, &mut hashes)?;
        let keys = rows.column(0).as_primitive::<Int64Type>().values();
        let times = rows.column(2).as_primitive::<TimestampMillisecondType>().values();
        for ((hash, &key), at) in hashes.into_iter().zip(keys).zip(times) {
            let counts = self.counts.entry(self.route.bucket(hash)).or_default();
            *counts.entry((at / BIN_MS, key)).or_default() += 1;
        }
        self.fire(emit)
    }

    fn on_watermark(&mut self, time: EventTime, emit: &mut Emitter) -> Result<EmitStatus, TaskError> {
        self.now = self.now.max(time.0);
        self.fire(emit)
    }

    fn on_end(&mut self, emit: &mut Emitter) -> Result<EmitStatus, TaskError> {
        self.now = i64::MAX;
        self.fire(emit)
    }

    fn moves() -> bool {
        true
    }

    fn release(&mut self, buckets: &[u32]) -> Result<ReleasedParts, TaskError> {
        let released = buckets.iter().filter_map(|bucket| Some((*bucket, Bins::encode(&self.counts.remove(bucket)?))));
        Ok(released.collect::<Vec<_>>().into())
    }

    fn acquire(&mut self, parts: Vec<(u32, Bytes)>) -> Result<(), TaskError> {
        self.counts.extend(parts.iter().map(|(bucket, part)| (*bucket, Bins::decode(part))));
        Ok(())
    }

    fn snapshot(&mut self, _: bool) -> Result<Snapshot, TaskError> {
        let buckets = self.counts.iter().map(|(bucket, counts)| (*bucket, SnapshotPart::Whole(Bins::encode(counts))));
        Ok(Snapshot { buckets: buckets.collect(), ..Snapshot::default() })
    }
}

/// Each count that waits for its time is emitted once, with the state of its key, while buckets keep moving, copies
/// fail, and the job resumes with other copies.
#[test]
fn timers_move_with_their_keys() {
    let rows = 8000;
    let mut random = random(3);
    for failures_max in [0, 3] {
        let folder = tempfile::tempdir().unwrap();
        let world = World::default();
        let (mut failures, mut moved) = (0, 0);
        loop {
            let workers = 2 + random(2) as u32;
            let fuse = (failures < failures_max).then(|| Arc::new(AtomicU64::new(1 + random(900))));
            let mut graph = Graph::new("bins");
            let times = WatermarkStrategy::of("time").out_of_order(Duration::from_millis(5));
            let source =
                TaskSpec::source("numbers", Some(times), move |context| Ok(Numbers::new(context, rows, fuse.clone())));
            let source = graph.add(source.output("out", events()));
            let bins = TaskSpec::operator("bins", Bins::new);
            let bins = graph.add(bins.streaming().input("in").output("out", totals()));
            let outside = Arc::clone(&world);
            let sink = TaskSpec::sink("outside", move |context| Ok(Outside::new(&outside, context.copy())));
            let sink = graph.add(sink.input("in"));
            graph.connect(source, bins, Partition::by_key(["key"]));
            graph.connect(bins, sink, Direct);
            let mover = Mover::new("bins", workers, 4);
            let outcome = run_graph(workers, folder.path(), &graph, |progress| {
                if is_worker_0(progress) {
                    mover.look(progress);
                }
                Ok(())
            });
            moved += mover.answers().iter().flatten().map(|moved| moved.bytes).sum::<u64>();
            match outcome {
                Ok(()) => break,
                Err(error) => {
                    assert!(error.to_string().contains("the fuse has blown"), "{error}");
                    failures += 1;
                }
            }
        }
        assert!(failures > 0 || failures_max == 0);
        let mut found: BTreeMap<(i64, i64), i64> = BTreeMap::new();
        for (key, value) in world.lock().unwrap().values().flatten() {
            *found.entry((*key, value >> BIN_BITS)).or_default() += value & ((1 << BIN_BITS) - 1);
        }
        let mut expected: BTreeMap<(i64, i64), i64> = BTreeMap::new();
        for n in 0..rows {
            *expected.entry((n % KEYS, n / BIN_MS)).or_default() += i64::from(SPLITS);
        }
        assert!(found == expected, "{} counts for {}", found.len(), expected.len());
        assert!(moved > 0, "nothing has moved");
    }
}
