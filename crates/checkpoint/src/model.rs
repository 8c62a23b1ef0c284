//! A model of a job whose buckets move, explored exhaustively: every order in which sources, copies and the coordinator
//! may act, with a crash, or a manifest that cannot be written, at every step.
//!
//! [`Coordinator`], [`MarkMerger`], [`Manifest`] and [`RouteMap`] are the real ones. Two sources send rows of two
//! buckets to two copies of a task, which keep them; somebody asks for a checkpoint, and for a map by which the copies
//! exchange their buckets. Streams, hand-overs and reports are in order, each by itself. A message is lost only
//! together with the run: when a worker, a link or the coordinator fails, everything in flight is gone, and the job
//! goes on from the last manifest. The simulations of `tidemill-dataflow` tell longer stories of the same, at random.
//!
//! Invariants: a bucket's state is in one place, where its rows come to; a row and its receiver go by the same version
//! of the map; a manifest has each row that its sources have sent once, and no other; a run goes on by the map of its
//! manifest, which is the old one if the move is not in it; the job can always go on, and ends with each row once.

use std::collections::hash_map::DefaultHasher;
use std::collections::{BTreeMap, BTreeSet, HashSet, VecDeque};
use std::hash::{Hash, Hasher};
use std::sync::Arc;
use std::time::Duration;

use tidemill_batch::route_map::RouteMap;

use crate::coordinator::{
    CheckpointTiming, CoordinatedTask, Coordinator, CoordinatorAction, CoordinatorEvent, StartPoint, StoreFailure,
};
use crate::manifest::{CopyReport, Manifest, PartEntry, PartKey, ReportBody};
use crate::marks::{Barrier, BarrierControl, Mark, MarkMerger};
use crate::rebalance::{MoveReport, Rebalance};

const SOURCES: u32 = 0;
const TASK: u32 = 1;
/// The bucket of each row, by source.
type Rows = [&'static [u32]; 2];
/// A row's source and number.
type Row = (usize, usize);
/// What a task keeps of a bucket.
type Sums = BTreeSet<Row>;

#[derive(Clone, Debug)]
enum Packet {
    /// With the version of the map that it goes by.
    Row(Row, u32, u64),
    Barrier(Barrier),
    End,
}

#[derive(Clone, Debug)]
struct Source {
    next: usize,
    ended: bool,
    map: Arc<RouteMap>,
    injected: VecDeque<Barrier>,
}

#[derive(Clone, Debug)]
struct Copy {
    map: Arc<RouteMap>,
    marks: MarkMerger,
    lanes: [VecDeque<Packet>; 2],
    buckets: BTreeMap<u32, Sums>,
    /// Buckets that another copy has to hand over, and the epoch of that; until then no rows are taken.
    awaited: (BTreeSet<u32>, u64),
    open_streams: usize,
    ended: bool,
}

/// All that is, at a moment.
#[derive(Clone, Debug)]
struct World {
    sources: [Source; 2],
    copies: [Copy; 2],
    coordinator: Coordinator,
    /// By task and copy.
    reports: [[VecDeque<CopyReport>; 2]; 2],
    /// By receiver.
    handed_over: [VecDeque<(u32, Sums)>; 2],
    writing: Option<Box<Manifest>>,
    durable: Option<Arc<Manifest>>,
    claim: u64,
    /// Requests to come: a checkpoint, a move, and the same move again.
    asks: [bool; 3],
    /// Requests that wait for an answer.
    unanswered: BTreeSet<u64>,
    moved: bool,
    crashes_left: u32,
    failures_left: u32,
    over: bool,
}

/// Something that may happen next.
#[derive(Clone, Copy, Debug)]
enum Step {
    TakeBarrier(usize),
    SendRow(usize),
    /// A copy takes what a stream delivers.
    Take(usize, usize),
    TakeState(usize),
    Report(usize, usize),
    Stored,
    NotStored,
    Ask(usize),
    Crash,
}

/// An entry of a manifest that is itself what it refers to.
fn entry(content: String) -> PartEntry {
    PartEntry { len: content.len() as u64, file: content, offset: 0, sum: 0, whole: true }
}

fn encode(sums: &Sums) -> String {
    sums.iter().map(|(source, row)| format!("{source}.{row} ")).collect()
}

fn decode(text: &str) -> Sums {
    let row = |word: &str| {
        let (source, row) = word.split_once('.').expect("encoded here");
        (source.parse().expect("a number"), row.parse().expect("a number"))
    };
    text.split_whitespace().map(row).collect()
}

fn first_map() -> Arc<RouteMap> {
    Arc::new(RouteMap::even(2, 2))
}

/// Both buckets change places.
fn next_map() -> RouteMap {
    first_map().moved(&[(0, 1), (1, 0)])
}

impl World {
    fn new(from: Option<Arc<Manifest>>, claim: u64) -> Self {
        let member = |name: &str, route| CoordinatedTask {
            name: name.into(),
            copies: 2,
            route,
            why_not_movable: None,
            schema: None,
        };
        let mut members = vec![member("source", None), member("sum", Some(first_map()))];
        if let Some(map) = from.as_deref().and_then(|from| members[1].route_in(from)) {
            members[1].route = Some(map);
        }
        let map = members[1].route.clone().expect("just set");
        let day = Duration::from_secs(86_400);
        let timing = CheckpointTiming { interval: Duration::ZERO, unaligned_after: None, timeout: day };
        let begin = StartPoint { newest: from.as_ref().map_or(0, |from| from.epoch), from: from.clone(), claim };
        let positions = from.as_deref().map(positions).unwrap_or_default();
        let mut kept = from.as_deref().map(buckets).unwrap_or_default();
        let copy = |kept: &mut BTreeMap<u32, Sums>, copy| {
            let mut marks = MarkMerger::default();
            (0..2).for_each(|stream| marks.add(stream, false));
            let own = (0..2).filter(|bucket| map.copy(*bucket) == copy);
            Copy {
                map: Arc::clone(&map),
                marks,
                lanes: Default::default(),
                buckets: own.map(|bucket| (bucket, kept.remove(&bucket).unwrap_or_default())).collect(),
                awaited: Default::default(),
                open_streams: 2,
                ended: false,
            }
        };
        World {
            sources: positions.map(|next| Source {
                next,
                ended: false,
                map: Arc::clone(&map),
                injected: VecDeque::new(),
            }),
            copies: [copy(&mut kept, 0), copy(&mut kept, 1)],
            coordinator: Coordinator::new("job", members, timing, &begin),
            reports: Default::default(),
            handed_over: Default::default(),
            writing: None,
            durable: from,
            claim,
            asks: [true; 3],
            unanswered: BTreeSet::new(),
            moved: false,
            crashes_left: 0,
            failures_left: 0,
            over: false,
        }
    }

    fn steps(&self, rows: Rows) -> Vec<Step> {
        let mut steps = Vec::new();
        if self.over {
            return steps;
        }
        for (at, source) in self.sources.iter().enumerate().filter(|(_, source)| !source.ended) {
            if !source.injected.is_empty() {
                steps.push(Step::TakeBarrier(at));
            }
            // Also its end.
            if source.next <= rows[at].len() {
                steps.push(Step::SendRow(at));
            }
        }
        for (at, copy) in self.copies.iter().enumerate() {
            for stream in 0..2 {
                let waits = !copy.awaited.0.is_empty() || copy.marks.holds(stream);
                if !waits && !copy.lanes[stream].is_empty() {
                    steps.push(Step::Take(at, stream));
                }
            }
            if !copy.awaited.0.is_empty() && !self.handed_over[at].is_empty() {
                steps.push(Step::TakeState(at));
            }
        }
        for task in 0..2 {
            steps.extend(
                (0..2).filter(|copy| !self.reports[task][*copy].is_empty()).map(|copy| Step::Report(task, copy)),
            );
        }
        if self.writing.is_some() {
            steps.push(Step::Stored);
            if self.failures_left > 0 {
                steps.push(Step::NotStored);
            }
        }
        steps.extend((0..3).filter(|ask| self.asks[*ask] && (*ask < 2 || !self.asks[1])).map(Step::Ask));
        // A crash at an earlier step is the same, unless something was written since.
        if self.crashes_left > 0 {
            steps.push(Step::Crash);
        }
        steps
    }

    fn take(&mut self, step: Step, rows: Rows) {
        match step {
            Step::TakeBarrier(at) => {
                let source = &mut self.sources[at];
                let barrier = source.injected.pop_front().expect("a step that is possible");
                if let Some(map) = barrier.route_of("sum") {
                    source.map = Arc::new(map.clone());
                }
                let parts = vec![(PartKey::Split(at.to_string()), entry(source.next.to_string()))];
                let said = ReportBody::Saved { epoch: barrier.epoch, parts };
                self.report(SOURCES, at, said);
                self.copies.iter_mut().for_each(|copy| copy.lanes[at].push_back(Packet::Barrier(barrier.clone())));
            }
            Step::SendRow(at) => {
                let source = &mut self.sources[at];
                if let Some(&bucket) = rows[at].get(source.next) {
                    let row = Packet::Row((at, source.next), bucket, source.map.version());
                    self.copies[source.map.copy(bucket) as usize].lanes[at].push_back(row);
                    source.next += 1;
                } else {
                    source.ended = true;
                    let parts = vec![(PartKey::Split(at.to_string()), entry(source.next.to_string()))];
                    self.report(SOURCES, at, ReportBody::Ended { parts });
                    self.copies.iter_mut().for_each(|copy| copy.lanes[at].push_back(Packet::End));
                }
            }
            Step::Take(at, stream) => self.take_packet(at, stream),
            Step::TakeState(at) => {
                let (bucket, sums) = self.handed_over[at].pop_front().expect("a step that is possible");
                let copy = &mut self.copies[at];
                assert!(copy.awaited.0.remove(&bucket), "copy {at} gets bucket {bucket}, which it does not gain");
                assert!(copy.buckets.insert(bucket, sums).is_none(), "bucket {bucket} is there twice");
                self.end_move(at);
            }
            Step::Report(task, copy) => {
                let report = self.reports[task][copy].pop_front().expect("a step that is possible");
                self.tell(CoordinatorEvent::Report(report), rows);
            }
            Step::Stored => {
                let manifest = self.writing.take().expect("a step that is possible");
                check_manifest(&manifest, rows);
                let epoch = manifest.epoch;
                self.durable = Some(manifest.into());
                self.tell(CoordinatorEvent::Stored { epoch, result: Ok(()) }, rows);
            }
            Step::NotStored => {
                self.failures_left -= 1;
                let epoch = self.writing.take().expect("a step that is possible").epoch;
                let result = Err(StoreFailure { reason: "the disk is full".into(), fenced: false });
                self.tell(CoordinatorEvent::Stored { epoch, result }, rows);
            }
            Step::Ask(ask) => {
                self.asks[ask] = false;
                let control = match ask {
                    0 => BarrierControl::Checkpoint,
                    _ => BarrierControl::Rebalance(Rebalance { maps: [("sum".into(), next_map())].into() }),
                };
                if ask > 0 {
                    self.unanswered.insert(ask as u64);
                }
                self.tell(CoordinatorEvent::Request { id: ask as u64, control }, rows);
            }
            Step::Crash => self.crash(),
        }
    }

    fn report(&mut self, task: u32, copy: usize, said: ReportBody) {
        self.reports[task as usize][copy].push_back(CopyReport { task, copy: copy as u32, said });
    }

    fn take_packet(&mut self, at: usize, stream: usize) {
        let copy = &mut self.copies[at];
        match copy.lanes[stream].pop_front().expect("a step that is possible") {
            Packet::Row(row, bucket, version) => {
                assert_eq!(version, copy.map.version(), "row {row:?} goes by another map than copy {at}");
                let sums = copy.buckets.get_mut(&bucket);
                let sums = sums.unwrap_or_else(|| panic!("row {row:?} comes to copy {at}, which has not its bucket"));
                assert!(sums.insert(row), "row {row:?} comes twice");
            }
            Packet::Barrier(barrier) => _ = copy.marks.mark(stream, Mark::Barrier(barrier)),
            Packet::End => {
                copy.open_streams -= 1;
                copy.marks.end_stream(stream);
            }
        }
        while let Some(mark) = self.copies[at].marks.next_mark() {
            if let Mark::Barrier(barrier) = mark {
                self.pass(at, &barrier);
            }
        }
        self.end_if_over(at);
    }

    /// A copy has a barrier from all its streams.
    fn pass(&mut self, at: usize, barrier: &Barrier) {
        let said = ReportBody::Saved { epoch: barrier.epoch, parts: self.copies[at].parts() };
        self.report(TASK, at, said);
        let Some(map) = barrier.route_of("sum") else { return };
        let copy = &mut self.copies[at];
        for bucket in 0..map.buckets() {
            let (from, to) = (copy.map.copy(bucket) as usize, map.copy(bucket) as usize);
            if from != to && from == at {
                let sums = copy.buckets.remove(&bucket).expect("its own bucket");
                self.handed_over[to].push_back((bucket, sums));
            } else if from != to && to == at {
                copy.awaited.0.insert(bucket);
            }
        }
        copy.map = Arc::new(map.clone());
        copy.awaited.1 = barrier.epoch;
        self.end_move(at);
    }

    /// The copy reports if it has all that it gains.
    fn end_move(&mut self, at: usize) {
        if self.copies[at].awaited.0.is_empty() {
            let moved = MoveReport { epoch: self.copies[at].awaited.1, ..MoveReport::default() };
            self.report(TASK, at, ReportBody::Moved(moved));
            self.end_if_over(at);
        }
    }

    fn end_if_over(&mut self, at: usize) {
        let copy = &mut self.copies[at];
        if copy.open_streams == 0 && copy.awaited.0.is_empty() && !std::mem::replace(&mut copy.ended, true) {
            let parts = copy.parts();
            self.report(TASK, at, ReportBody::Ended { parts });
        }
    }

    /// The coordinator acts on an event.
    fn tell(&mut self, event: CoordinatorEvent, rows: Rows) {
        for action in self.coordinator.handle(Duration::ZERO, 0, event) {
            match action {
                CoordinatorAction::Inject(barrier) => {
                    let open = self.sources.iter_mut().filter(|source| !source.ended);
                    open.for_each(|source| source.injected.push_back(barrier.clone()));
                }
                CoordinatorAction::Store(manifest) => assert!(self.writing.replace(manifest).is_none()),
                CoordinatorAction::Answer { id, outcome } => {
                    assert!(self.unanswered.remove(&id), "{id} is answered, and was not asked, or was answered before");
                    // The second request has a map that is not newer than the one in use.
                    assert!(outcome.is_err() || !std::mem::replace(&mut self.moved, true), "moved twice");
                }
                CoordinatorAction::Fail(_) => return self.crash(),
                CoordinatorAction::Finished => {
                    self.over = true;
                    assert!(self.unanswered.is_empty(), "{:?} have no answer", self.unanswered);
                    let last = self.durable.as_ref().expect("the end is durable");
                    assert!(last.finished);
                    let all =
                        rows.iter().enumerate().flat_map(|(source, rows)| (0..rows.len()).map(move |n| (source, n)));
                    assert_eq!(buckets(last).into_values().flatten().collect::<Sums>(), all.collect());
                }
                CoordinatorAction::Durable(_) | CoordinatorAction::Warn(_) | CoordinatorAction::Unalign(_) => {}
            }
        }
    }

    /// All that is not durable is lost.
    fn crash(&mut self) {
        let mut next = World::new(self.durable.take(), self.claim + 1);
        next.crashes_left = self.crashes_left.saturating_sub(1);
        next.failures_left = self.failures_left;
        // Who had asked asks again, unless the move is in the manifest.
        let has_moved = next.copies[0].map.version() > first_map().version();
        next.asks = [false, !has_moved, has_moved];
        *self = next;
    }

    /// Each bucket's state is in one place.
    fn check(&self) {
        for bucket in 0..2 {
            let here = self.copies.iter().filter(|copy| copy.buckets.contains_key(&bucket)).count();
            let there = self.handed_over.iter().flatten().filter(|(of, _)| *of == bucket).count();
            assert_eq!(here + there, 1, "places of bucket {bucket}");
        }
    }

    /// Worlds with the same number go on in the same ways, but for collisions of two 64-bit hashes.
    fn number(&self) -> u128 {
        let text = format!("{self:?}");
        let hash = |seed: u64| {
            let mut hasher = DefaultHasher::new();
            (seed, &text).hash(&mut hasher);
            hasher.finish()
        };
        u128::from(hash(0)) << 64 | u128::from(hash(1))
    }
}

impl Copy {
    fn parts(&self) -> Vec<(PartKey, PartEntry)> {
        self.buckets.iter().map(|(bucket, sums)| (PartKey::Bucket(*bucket), entry(encode(sums)))).collect()
    }
}

/// How many rows each source had sent.
fn positions(manifest: &Manifest) -> [usize; 2] {
    let mut positions = [0; 2];
    for (name, entry) in manifest.tasks["source"].splits.values().flatten() {
        positions[name.parse::<usize>().expect("a number")] = entry.file.parse().expect("a number");
    }
    positions
}

fn buckets(manifest: &Manifest) -> BTreeMap<u32, Sums> {
    let newest = |entries: &Vec<PartEntry>| decode(&entries.last().expect("a part").file);
    manifest.tasks["sum"].buckets.iter().map(|(bucket, entries)| (*bucket, newest(entries))).collect()
}

/// It has each row that its sources have sent once, in its bucket.
fn check_manifest(manifest: &Manifest, rows: Rows) {
    let positions = positions(manifest);
    let buckets = buckets(manifest);
    for bucket in 0..2 {
        let sent = (0..2).flat_map(|source| (0..positions[source]).map(move |row| (source, row)));
        let sent: Sums = sent.filter(|&(source, row)| rows[source][row] == bucket).collect();
        assert_eq!(buckets.get(&bucket).cloned().unwrap_or_default(), sent, "bucket {bucket} in {manifest:?}");
    }
}

/// What has been explored.
#[derive(Debug, Default)]
struct Explored {
    worlds: usize,
    ends: usize,
    moves: usize,
    crashes: usize,
}

/// Visits every world that can come of the first one.
fn explore(rows: Rows, crashes: u32, failures: u32) -> Explored {
    let mut first = World::new(None, 1);
    (first.crashes_left, first.failures_left) = (crashes, failures);
    let mut seen = HashSet::from([first.number()]);
    let mut open = vec![first];
    let mut explored = Explored::default();
    while let Some(world) = open.pop() {
        explored.worlds += 1;
        world.check();
        let steps = world.steps(rows);
        assert!(!steps.is_empty() || world.over, "the job cannot go on: {world:#?}");
        explored.ends += usize::from(world.over);
        explored.moves += usize::from(world.over && world.moved);
        for step in steps {
            let mut next = world.clone();
            next.take(step, rows);
            explored.crashes += usize::from(matches!(step, Step::Crash));
            if seen.insert(next.number()) {
                open.push(next);
            }
        }
    }
    explored
}

/// A row that is lost or counted twice, two owners of a bucket, two maps at once, or a job that hangs, whatever fails
/// and when.
#[test]
fn every_order_of_a_move() {
    let explored = explore([&[0, 1], &[0]], 1, 1);
    println!("{explored:?}");
    assert!(explored.moves > 0 && explored.crashes > 1000, "{explored:?}");
}
