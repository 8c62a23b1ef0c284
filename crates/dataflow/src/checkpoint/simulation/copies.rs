//! Copies of tasks as the drivers run them (`stream::source`, `operator`, `stream::sink`, `run::copy`), a step at a
//! time.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::rc::Rc;

use bytes::Bytes;
use tidemill_batch::route_map::RouteMap;
use tidemill_checkpoint::coordinator::ALL;
use tidemill_checkpoint::manifest::ReportBody;
use tidemill_checkpoint::marks::{MarkMerger, StreamGate, WatermarkMerger};
use tidemill_checkpoint::{
    Barrier, BarrierControl, EventTime, Mark, MoveReport, PartKey, RestoredState, Snapshot, SnapshotPart,
};
use tidemill_sim::SplitMix64;
use tokio::sync::watch;

use super::super::client::{self, SnapshotChain};
use super::super::notifications::EpochNotifications;
use super::{LAST, OutsideWorld, PreparedUnit, StoryPlan};
use crate::rebalance::{BucketOwnership, Moves};
use crate::unaligned::{RecordedItem, Recording};

/// What waits in a stream before its sender does; twice as much if a barrier is unaligned.
const LANE_MAX: usize = 6;

/// What a stream carries.
#[derive(Clone, Debug)]
pub(super) enum SimulatedPacket {
    Row {
        key: u32,
        n: u32,
        time: i64,
    },
    /// How many rows of a key there were: handed over.
    State {
        key: u32,
        n: u32,
    },
    /// A split with its next row, how far its time has advanced, and whether it holds time back: handed over.
    Split {
        split: u32,
        n: u32,
        time: EventTime,
        is_active: bool,
    },
    Mark(Mark),
    End,
}

/// A stream from copy to copy.
#[derive(Default)]
pub(super) struct SimulatedLane {
    packets: VecDeque<SimulatedPacket>,
    /// The last barrier that was taken from here.
    taken: Option<SimulatedPacket>,
    /// Its receiver has let go of it.
    closed: bool,
}

impl SimulatedLane {
    fn closed() -> Self {
        SimulatedLane { closed: true, ..SimulatedLane::default() }
    }

    fn push(&mut self, packet: SimulatedPacket) {
        if !self.closed {
            self.packets.push_back(packet);
        }
    }
}

/// What a copy is writing, or will.
pub(super) struct PendingWrite {
    pub file: String,
    /// `None`: what it keeps at its end.
    pub epoch: Option<u64>,
    pub whole: bool,
    pub parts: Vec<(PartKey, Bytes, bool)>,
    /// By port what was in flight, when all of it is known.
    in_flight: Vec<(u32, InFlight)>,
}

/// A key, a number and a time.
pub(super) type SimulatedRow = (u32, u32, i64);

/// Rows that are being recorded.
type InFlight = Rc<RefCell<Option<Vec<SimulatedRow>>>>;

impl PendingWrite {
    /// All that is to be written, if it is known.
    pub(super) fn settled(&mut self) -> bool {
        if self.in_flight.iter().any(|(_, rows)| rows.borrow().is_none()) {
            return false;
        }
        for (port, rows) in self.in_flight.drain(..) {
            let rows = rows.take().expect("just seen");
            if !rows.is_empty() {
                self.parts.push((PartKey::InFlight(port), encode(&rows), true));
            }
        }
        true
    }
}

fn encode(rows: &[SimulatedRow]) -> Bytes {
    serde_json::to_vec(rows).unwrap().into()
}

/// Keys, numbers and times of rows in flight.
pub(super) fn decode(bytes: &Bytes) -> Vec<SimulatedRow> {
    serde_json::from_slice(bytes).unwrap()
}

/// An input port: `flow::Input`.
struct SimulatedPort {
    marks: MarkMerger,
    /// Their lanes.
    streams: Vec<usize>,
    held: Vec<bool>,
    open: usize,
    ended: bool,
    /// The last epoch whose barrier has passed.
    passed: u64,
    recording: Option<(Recording<SimulatedRow>, InFlight)>,
    ahead: VecDeque<(usize, SimulatedPacket)>,
}

/// All input ports: `flow::Inputs`.
pub(super) struct CopyGather {
    ports: Vec<SimulatedPort>,
    marks: MarkMerger,
    /// Of the barrier that comes next, or of those before it: epoch, port, rows.
    overtaken: Vec<(u64, u32, InFlight)>,
}

enum GatheredItem {
    Row { key: u32, n: u32, time: i64 },
    Mark(Mark),
    PortEnd,
}

impl CopyGather {
    /// For each port the lanes that lead there.
    /// `replay` says which rows were in flight to each, and are this copy's.
    pub(super) fn new(lanes: Vec<Vec<usize>>, replay: Vec<Vec<SimulatedRow>>) -> Self {
        let mut marks = MarkMerger::default();
        (0..lanes.len()).for_each(|port| marks.add(port, false));
        let port = |(streams, replay): (Vec<usize>, Vec<SimulatedRow>)| {
            let mut marks = MarkMerger::default();
            (0..streams.len()).for_each(|stream| marks.add(stream, false));
            let row = |(key, n, time)| (usize::MAX, SimulatedPacket::Row { key, n, time });
            SimulatedPort {
                marks,
                held: vec![false; streams.len()],
                open: streams.len(),
                streams,
                ended: false,
                passed: 0,
                recording: None,
                ahead: replay.into_iter().map(row).collect(),
            }
        };
        CopyGather { ports: lanes.into_iter().zip(replay).map(port).collect(), marks, overtaken: Vec::new() }
    }

    fn recv(&mut self, lanes: &mut [SimulatedLane], unaligned: u64, random: &mut SplitMix64) -> Option<GatheredItem> {
        let count = self.ports.len();
        let first = random.below(count);
        'look: loop {
            if let Some(mark) = self.marks.next_mark() {
                return Some(GatheredItem::Mark(mark));
            }
            for at in (0..count).map(|i| (first + i) % count) {
                if self.ports[at].ended || self.marks.holds(at) {
                    continue;
                }
                self.overtaken
                    .extend(self.ports[at].overtake(lanes, unaligned).map(|rows| (unaligned, at as u32, rows)));
                match self.ports[at].recv(lanes, random) {
                    Some(GatheredItem::Mark(mark)) => {
                        self.marks.mark(at, mark);
                        continue 'look;
                    }
                    Some(GatheredItem::PortEnd) => {
                        self.ports[at].ended = true;
                        self.marks.end_stream(at);
                        return Some(GatheredItem::PortEnd);
                    }
                    Some(row) => return Some(row),
                    None => {}
                }
            }
            return None;
        }
    }

    fn is_over(&self) -> bool {
        self.ports.iter().all(|port| port.ended)
    }

    fn close(&self, lanes: &mut [SimulatedLane]) {
        self.ports.iter().for_each(SimulatedPort::abandon);
        for &lane in self.ports.iter().flat_map(|port| &port.streams) {
            lanes[lane] = SimulatedLane::closed();
        }
    }
}

/// What a recording is told of a packet.
fn seen(packet: &SimulatedPacket) -> RecordedItem<SimulatedRow> {
    match packet {
        SimulatedPacket::Row { key, n, time } => RecordedItem::Rows((*key, *n, *time)),
        SimulatedPacket::Mark(Mark::Barrier(barrier)) => RecordedItem::Barrier(barrier.epoch),
        SimulatedPacket::End => RecordedItem::End,
        SimulatedPacket::Mark(_) | SimulatedPacket::State { .. } | SimulatedPacket::Split { .. } => RecordedItem::Other,
    }
}

impl SimulatedPort {
    /// `Input::overtake`: the rows that an unaligned barrier overtakes.
    fn overtake(&mut self, lanes: &[SimulatedLane], epoch: u64) -> Option<InFlight> {
        if epoch <= self.passed {
            return None;
        }
        let packets = self.streams.iter().flat_map(|&lane| lanes[lane].packets.iter().chain(&lanes[lane].taken));
        let packets = packets.chain(self.ahead.iter().map(|(_, packet)| packet));
        let barrier = packets.filter_map(|packet| match packet {
            SimulatedPacket::Mark(Mark::Barrier(barrier)) => Some(barrier),
            _ => None,
        });
        let newest = barrier.max_by_key(|barrier| barrier.epoch)?.clone();
        if newest.epoch != epoch || newest.control != BarrierControl::Checkpoint {
            return None;
        }
        self.passed = epoch;
        let mut recording = Recording::new(epoch, self.marks.overtake(newest));
        self.held.fill(false);
        self.ahead.iter().for_each(|(stream, packet)| recording.note(*stream, seen(packet)));
        self.abandon();
        let rows = InFlight::default();
        self.recording = Some((recording, Rc::clone(&rows)));
        Some(rows)
    }

    /// Nobody needs what is being recorded.
    fn abandon(&self) {
        if let Some((_, rows)) = &self.recording {
            *rows.borrow_mut() = Some(Vec::new());
        }
    }

    /// Takes something of any stream that is not held.
    fn take(&self, lanes: &mut [SimulatedLane], random: &mut SplitMix64) -> Option<(usize, SimulatedPacket)> {
        let first = random.below(self.streams.len());
        let mut streams = (0..self.streams.len()).map(|i| (first + i) % self.streams.len());
        let stream = streams.find(|&s| !self.held[s] && !lanes[self.streams[s]].packets.is_empty())?;
        let lane = &mut lanes[self.streams[stream]];
        let packet = lane.packets.pop_front().expect("just seen");
        if let SimulatedPacket::Mark(Mark::Barrier(_)) = packet {
            lane.taken = Some(packet.clone());
        }
        Some((stream, packet))
    }

    /// `Input::record`.
    fn record(&mut self, lanes: &mut [SimulatedLane], random: &mut SplitMix64) {
        let Some((mut recording, rows)) = self.recording.take() else { return };
        while !recording.is_over() {
            let Some((stream, packet)) = self.take(lanes, random) else {
                self.recording = Some((recording, rows));
                return;
            };
            recording.note(stream, seen(&packet));
            self.ahead.push_back((stream, packet));
        }
        *rows.borrow_mut() = Some(recording.into_rows());
    }

    fn recv(&mut self, lanes: &mut [SimulatedLane], random: &mut SplitMix64) -> Option<GatheredItem> {
        loop {
            self.record(lanes, random);
            if let Some(mark) = self.marks.next_mark() {
                if let Mark::Barrier(barrier) = &mark {
                    self.passed = self.passed.max(barrier.epoch);
                }
                return Some(GatheredItem::Mark(mark));
            }
            let (stream, packet) = match self.ahead.pop_front() {
                Some(first) => first,
                None if self.open == 0 => return Some(GatheredItem::PortEnd),
                None => self.take(lanes, random)?,
            };
            match packet {
                SimulatedPacket::Row { key, n, time } => return Some(GatheredItem::Row { key, n, time }),
                SimulatedPacket::State { key, .. } => unreachable!("state of key {key} among rows"),
                SimulatedPacket::Split { split, .. } => unreachable!("split {split} among rows"),
                SimulatedPacket::Mark(mark) => {
                    let gate = self.marks.mark(stream, mark);
                    self.gate(gate, stream);
                }
                SimulatedPacket::End => {
                    self.open -= 1;
                    let gate = self.marks.end_stream(stream);
                    self.gate(gate, stream);
                }
            }
        }
    }

    fn gate(&mut self, gate: StreamGate, stream: usize) {
        if matches!(gate, StreamGate::Release | StreamGate::Hold { release: true }) {
            self.held.fill(false);
        }
        if matches!(gate, StreamGate::Hold { .. }) {
            self.held[stream] = true;
        }
    }
}

/// A source: gives the rows of its splits, and tells their time.
pub(super) struct CopySource {
    task: String,
    /// Splits, with the next row of each.
    places: BTreeMap<u32, u32>,
    /// The stream of each split in `time`.
    streams: BTreeMap<u32, usize>,
    route: RouteMap,
    time: WatermarkMerger,
    /// Streams on which the others hand over, by copy; `None`, when one has ended.
    from: Vec<Option<usize>>,
    /// What came there before the barrier that it belongs to.
    early: VecDeque<(u32, SimulatedPacket)>,
    /// As in `flow::SplitHandover`.
    parked: Vec<bool>,
    told_parked: bool,
    has_given: bool,
    barriers: Option<watch::Receiver<Option<Barrier>>>,
}

/// An operator: numbers the rows of each key. The second one behind it has to come to the same numbers.
pub(super) struct CountOperator {
    task: String,
    inputs: CopyGather,
    route: RouteMap,
    /// By which it sends to the second one, if it is the first.
    next: Option<RouteMap>,
    /// Streams on which the others hand over, by copy; `None`, when one has ended.
    from: Vec<Option<usize>>,
    counts: BTreeMap<u32, u32>,
    changed: BTreeSet<u32>,
    time: EventTime,
}

/// A sink.
pub(super) struct SimulatedSink {
    inputs: CopyGather,
    rows: Vec<(u32, u32)>,
    prepared: BTreeMap<(u64, String), Bytes>,
    last: u64,
    /// The last epoch that is durable.
    done: u64,
    durable: Option<watch::Receiver<u64>>,
    barriers: Option<watch::Receiver<Option<Barrier>>>,
    /// Behind which epoch it has asked for a checkpoint.
    asked: Option<u64>,
}

pub(super) enum CopyBody {
    Source(CopySource),
    Count(CountOperator),
    Outside(SimulatedSink),
}

/// What a copy does about a rebalance: `BucketHandover::run`.
struct CopyMove {
    epoch: u64,
    map: RouteMap,
    moves: Moves,
    /// What it hands over, and to whom.
    outgoing: VecDeque<(u32, SimulatedPacket)>,
    awaited: BTreeSet<u32>,
}

/// What a source copy does about a rebalance: `SplitHandover::run`.
struct SplitMove {
    barrier: Barrier,
    /// By next reader.
    lost: BTreeMap<u32, BTreeSet<u32>>,
    ready: BTreeSet<u32>,
    takers: BTreeSet<u32>,
    givers: BTreeSet<u32>,
    released: bool,
    outgoing: VecDeque<(u32, SimulatedPacket)>,
    taken: Vec<(u32, u32, EventTime, bool)>,
    moved: u32,
}

enum MovePhase {
    /// Its driver has not begun.
    Fresh,
    Running,
    /// It takes no rows before it has what it gains.
    Moving(CopyMove),
    /// A source reads nothing before it has what it gains.
    MovingSplits(SplitMove),
    /// Its outputs are to be ended; then it keeps this.
    Finishing(Snapshot),
    /// It is to keep this, at its end.
    Ending(Snapshot),
    /// Until all is written.
    Writing,
    /// A sink's: until everything is durable.
    Committing,
    Over,
}

/// A copy of a task.
pub(super) struct SimulatedCopy {
    pub id: (u32, u32),
    pub worker: usize,
    body: CopyBody,
    phase: MovePhase,
    restored: Option<RestoredState>,
    pub chain: SnapshotChain,
    tenure: BucketOwnership,
    /// The last epoch that was saved, or gone on from.
    last: u64,
    pub writes: VecDeque<PendingWrite>,
    /// The streams it sends on.
    out: Vec<usize>,
    /// Those on which it hands over.
    hand: Vec<usize>,
}

/// What a copy does a step with.
pub(super) struct StepContext<'a> {
    pub run: &'a str,
    pub notifications: &'a EpochNotifications,
    pub lanes: &'a mut [SimulatedLane],
    /// What the copy reports at once.
    pub said: &'a mut Vec<ReportBody>,
    pub world: &'a mut OutsideWorld,
    pub random: &'a mut SplitMix64,
}

/// What [`CountOperator`] saves of a bucket.
pub(super) fn pairs(part: &Bytes) -> impl Iterator<Item = (u32, u32)> {
    let word = |bytes: &[u8]| u32::from_le_bytes(bytes.try_into().unwrap());
    part.chunks_exact(8).map(move |pair| (word(&pair[..4]), word(&pair[4..])))
}

/// Who gets a key's rows.
pub(super) fn owner(key: u32, route: &RouteMap) -> u32 {
    route.copy(StoryPlan::bucket(key))
}

impl CopySource {
    /// `splits` are those of its task.
    pub(super) fn new(
        splits: &BTreeMap<u32, u32>,
        (copy, copies): (u32, u32),
        restored: Option<&RestoredState>,
        (task, route): (&str, &RouteMap),
        from: &[usize],
    ) -> Self {
        let places: BTreeMap<u32, u32> = match restored {
            Some(restored) => {
                let place = |bytes: &Bytes| u32::from_le_bytes(bytes.as_ref().try_into().unwrap());
                restored.splits.iter().map(|(name, bytes)| (name.parse().unwrap(), place(bytes))).collect()
            }
            None => splits.keys().filter(|&split| split % copies == copy).map(|&split| (split, 0)).collect(),
        };
        let mut time = WatermarkMerger::default();
        for (stream, (split, place)) in places.iter().enumerate() {
            time.add();
            if splits[split] == *place {
                time.end_stream(stream);
            }
        }
        let has_given = restored.is_some_and(|restored| restored.splits.is_empty() && !restored.split_names.is_empty());
        CopySource {
            task: task.to_owned(),
            streams: places.keys().copied().zip(0..).collect(),
            places,
            route: route.clone(),
            time,
            parked: vec![false; from.len()],
            from: from.iter().copied().map(Some).collect(),
            early: VecDeque::new(),
            told_parked: false,
            has_given,
            barriers: None,
        }
    }

    /// The splits that it has.
    pub(super) fn splits(&self) -> impl Iterator<Item = u32> {
        self.places.keys().copied()
    }

    /// The beginning of `SplitHandover::run`; `None` if the copy takes no part.
    fn begin_moving(&self, copy: u32, barrier: &Barrier) -> Option<SplitMove> {
        let moves = barrier.split_moves_of(&self.task)?;
        let mut lost: BTreeMap<u32, BTreeSet<u32>> = BTreeMap::new();
        for (split, to) in moves.get(&copy).into_iter().flatten() {
            lost.entry(*to).or_default().insert(split.parse().unwrap());
        }
        let gives =
            |(from, splits): &(&u32, &BTreeMap<String, u32>)| **from != copy && splits.values().any(|to| *to == copy);
        let givers: BTreeSet<u32> = moves.iter().filter(gives).map(|(from, _)| *from).collect();
        if lost.is_empty() && givers.is_empty() {
            return None;
        }
        let open = |copy: &u32| self.from[*copy as usize].is_some();
        let mark = SimulatedPacket::Mark(Mark::Barrier(barrier.clone()));
        Some(SplitMove {
            barrier: barrier.clone(),
            ready: lost.keys().copied().filter(open).collect(),
            lost,
            takers: BTreeSet::new(),
            outgoing: givers.iter().map(|&from| (from, mark.clone())).collect(),
            givers: givers.into_iter().filter(open).collect(),
            released: false,
            taken: Vec::new(),
            moved: 0,
        })
    }

    /// `RateSource::release` and `SourceClock::give_up`.
    fn release(&mut self, moving: &mut SplitMove, rows: &BTreeMap<u32, u32>) {
        moving.released = true;
        for to in std::mem::take(&mut moving.takers) {
            for split in &moving.lost[&to] {
                let Some(&n) = self.places.get(split).filter(|n| **n < rows[split]) else { continue };
                self.places.remove(split);
                let stream = self.streams.remove(split).expect("it has been read here");
                let is_active = self.time.is_active(stream);
                let time = self.time.time_of(stream).max(self.time.time());
                self.time.leave(stream);
                self.has_given = true;
                moving.moved += 1;
                moving.outgoing.push_back((to, SimulatedPacket::Split { split: *split, n, time, is_active }));
            }
            moving.outgoing.push_back((to, SimulatedPacket::Mark(Mark::Barrier(moving.barrier.clone()))));
        }
    }

    /// Something that another copy sends here.
    fn hear(&mut self, lanes: &mut [SimulatedLane], random: &mut SplitMix64) -> Option<(u32, SimulatedPacket)> {
        let there = |&from: &u32| self.from[from as usize].is_some_and(|lane| !lanes[lane].packets.is_empty());
        let there: Vec<u32> = (0..self.from.len() as u32).filter(there).collect();
        if there.is_empty() {
            return None;
        }
        let from = there[random.below(there.len())];
        let lane = self.from[from as usize].expect("just seen");
        Some((from, lanes[lane].packets.pop_front().expect("just seen")))
    }

    /// `Awaited::note`.
    fn note(&mut self, moving: &mut SplitMove, from: u32, packet: SimulatedPacket) {
        match packet {
            SimulatedPacket::Split { split, n, time, is_active } => moving.taken.push((split, n, time, is_active)),
            SimulatedPacket::Mark(Mark::Barrier(barrier)) => {
                assert_eq!(barrier.epoch, moving.barrier.epoch, "another hand-over is under way");
                if moving.ready.remove(&from) {
                    moving.takers.insert(from);
                } else {
                    moving.givers.remove(&from);
                }
            }
            SimulatedPacket::Mark(mark) => self.parked[from as usize] = mark == Mark::Idle,
            SimulatedPacket::End => {
                self.from[from as usize] = None;
                moving.ready.remove(&from);
                moving.givers.remove(&from);
            }
            packet => unreachable!("{packet:?} where a split was due"),
        }
    }

    /// `SplitHandover::take`, and `SourceClock::restate`.
    fn take(&mut self, taken: &[(u32, u32, EventTime, bool)]) {
        let mut floor = self.time.time();
        for &(split, n, time, is_active) in taken {
            let stream = self.time.len();
            self.time.add();
            self.time.advance(stream, time);
            if is_active {
                floor = floor.min(time);
            } else {
                self.time.idle(stream);
            }
            assert!(self.places.insert(split, n).is_none(), "split {split} was here already");
            self.streams.insert(split, stream);
        }
        self.time.restate(floor);
    }

    /// What it tells the others when it has no split left, or some again.
    fn tell(&self, copy: u32, hand: &[usize], mark: &Mark, lanes: &mut [SimulatedLane]) {
        let others = (0..).zip(hand).filter(|(to, _)| *to != copy);
        others.for_each(|(_, &lane)| lanes[lane].push(SimulatedPacket::Mark(mark.clone())));
    }

    fn snapshot(&self) -> Snapshot {
        let split = |(split, place): (&u32, &u32)| (split.to_string(), Bytes::copy_from_slice(&place.to_le_bytes()));
        Snapshot { splits: self.places.iter().map(split).collect(), ..Snapshot::default() }
    }
}

impl CountOperator {
    pub(super) fn new(
        task: &str,
        inputs: CopyGather,
        restored: Option<&RestoredState>,
        (route, next): (&RouteMap, Option<&RouteMap>),
        from: &[usize],
    ) -> Self {
        let parts = restored.into_iter().flat_map(|restored| restored.buckets.values().flatten());
        let counts = parts.flat_map(|part| pairs(part).collect::<Vec<_>>()).collect();
        let (route, next, from) = (route.clone(), next.cloned(), from.iter().copied().map(Some).collect());
        CountOperator {
            task: task.to_owned(),
            inputs,
            route,
            next,
            from,
            counts,
            changed: BTreeSet::new(),
            time: EventTime::MIN,
        }
    }

    /// Which of so many copies further down gets a key's rows.
    fn target(&self, key: u32, targets: usize) -> usize {
        self.next.as_ref().map_or(key as usize % targets, |route| owner(key, route) as usize)
    }

    fn snapshot(&mut self, whole: bool, random: &mut SplitMix64) -> Snapshot {
        let changed = std::mem::take(&mut self.changed);
        let keys = if whole { self.counts.keys().copied().collect() } else { changed.clone() };
        let buckets: BTreeSet<u32> = keys.into_iter().map(StoryPlan::bucket).collect();
        let part = |bucket: u32| {
            let whole = whole || random.once_in(3);
            let named = |key: &u32| StoryPlan::bucket(*key) == bucket && (whole || changed.contains(key));
            let pairs = self.counts.iter().filter(|(key, _)| named(key));
            let bytes = pairs.flat_map(|(key, n)| [*key, *n]).flat_map(u32::to_le_bytes).collect::<Vec<u8>>().into();
            (bucket, if whole { SnapshotPart::Whole(bytes) } else { SnapshotPart::Change(bytes) })
        };
        Snapshot { buckets: buckets.into_iter().map(part).collect(), ..Snapshot::default() }
    }

    /// The beginning of `BucketHandover::run`, and all that an operator releases.
    fn release(&mut self, copy: u32, barrier: &Barrier, map: &RouteMap) -> CopyMove {
        let moves = Moves::of(copy, &self.route, map);
        let mut outgoing = VecDeque::new();
        for (&to, buckets) in &moves.lost {
            let moved = |key: &u32| buckets.contains(&StoryPlan::bucket(*key));
            outgoing.extend(
                self.counts.extract_if(.., |key, _| moved(key)).map(|(key, n)| (to, SimulatedPacket::State { key, n })),
            );
            self.changed.retain(|key| !moved(key));
            outgoing.push_back((to, SimulatedPacket::Mark(Mark::Barrier(barrier.clone()))));
        }
        let awaited = moves.gained.keys().copied().filter(|&from| self.from[from as usize].is_some()).collect();
        CopyMove { epoch: barrier.epoch, map: map.clone(), moves, outgoing, awaited }
    }

    /// Takes one thing that another hands over, if there is any.
    fn acquire(&mut self, moving: &mut CopyMove, lanes: &mut [SimulatedLane], random: &mut SplitMix64) -> bool {
        let there = |&from: &u32| self.from[from as usize].is_some_and(|lane| !lanes[lane].packets.is_empty());
        let there: Vec<u32> = (0..self.from.len() as u32).filter(there).collect();
        if moving.awaited.is_empty() || there.is_empty() {
            return false;
        }
        let from = there[random.below(there.len())];
        let lane = self.from[from as usize].expect("just seen");
        match lanes[lane].packets.pop_front().expect("just seen") {
            SimulatedPacket::State { key, n } => {
                assert!(moving.moves.gained[&from].contains(&StoryPlan::bucket(key)), "key {key} comes from {from}");
                assert!(self.counts.insert(key, n).is_none(), "key {key} was here already");
            }
            SimulatedPacket::Mark(Mark::Barrier(barrier)) => {
                assert_eq!(barrier.epoch, moving.epoch, "another hand-over is under way");
                moving.awaited.remove(&from);
            }
            SimulatedPacket::End => {
                self.from[from as usize] = None;
                moving.awaited.remove(&from);
            }
            packet => unreachable!("{packet:?} where state was due"),
        }
        true
    }
}

impl SimulatedSink {
    pub(super) fn new(inputs: CopyGather) -> Self {
        let (rows, prepared) = Default::default();
        SimulatedSink { inputs, rows, prepared, last: 0, done: 0, durable: None, barriers: None, asked: None }
    }

    fn prepare(&mut self, epoch: u64, copy: u32, run: &str) {
        if !self.rows.is_empty() {
            let unit = PreparedUnit { epoch, run: run.into(), copy, rows: std::mem::take(&mut self.rows) };
            self.prepared.insert((epoch, format!("{epoch}.{copy}")), serde_json::to_vec(&unit).unwrap().into());
        }
    }

    fn snapshot(&self) -> Snapshot {
        let splits = self.prepared.iter().map(|((_, name), bytes)| (name.clone(), bytes.clone())).collect();
        Snapshot { splits, ..Snapshot::default() }
    }

    fn commit(&mut self, epoch: u64, world: &mut OutsideWorld) {
        while let Some(entry) = self.prepared.first_entry().filter(|entry| entry.key().0 <= epoch) {
            world.commit(entry.remove());
        }
    }
}

impl SimulatedCopy {
    pub(super) fn new(
        id: (u32, u32),
        worker: usize,
        body: CopyBody,
        restored: Option<RestoredState>,
        (out, hand): (Vec<usize>, Vec<usize>),
    ) -> Self {
        let last = restored.as_ref().map_or(0, |restored| restored.epoch);
        let (chain, tenure, writes) = Default::default();
        SimulatedCopy { id, worker, body, phase: MovePhase::Fresh, restored, chain, tenure, last, writes, out, hand }
    }

    pub(super) fn is_over(&self) -> bool {
        matches!(self.phase, MovePhase::Over)
    }

    /// The splits that it reads.
    pub(super) fn splits(&self) -> Vec<u32> {
        if let CopyBody::Source(source) = &self.body { source.splits().collect() } else { Vec::new() }
    }

    /// `CopyStates::save`.
    fn save(&mut self, run: &str, epoch: u64, whole: bool, mut snapshot: Snapshot) {
        self.last = epoch;
        self.tenure.at_snapshot().settle(whole, &mut snapshot.buckets);
        let file = client::state_file(run, epoch, self.id, "");
        let in_flight = match &mut self.body {
            CopyBody::Source(_) => Vec::new(),
            CopyBody::Count(CountOperator { inputs, .. }) | CopyBody::Outside(SimulatedSink { inputs, .. }) => {
                let overtaken = std::mem::take(&mut inputs.overtaken).into_iter();
                overtaken.filter(|(of, ..)| *of == epoch).map(|(_, port, rows)| (port, rows)).collect()
            }
        };
        self.writes.push_back(PendingWrite {
            file,
            epoch: Some(epoch),
            whole,
            parts: client::parts(snapshot),
            in_flight,
        });
    }

    fn send(&self, packet: &SimulatedPacket, lanes: &mut [SimulatedLane]) {
        self.out.iter().for_each(|&lane| lanes[lane].push(packet.clone()));
    }

    fn send_ends(&self, lanes: &mut [SimulatedLane]) {
        self.send(&SimulatedPacket::End, lanes);
        self.hand.iter().for_each(|&lane| lanes[lane].push(SimulatedPacket::End));
    }

    /// Does what comes next. Returns false when it can only wait.
    pub(super) fn step(&mut self, with: &mut StepContext) -> bool {
        match std::mem::replace(&mut self.phase, MovePhase::Over) {
            MovePhase::Over => return false,
            MovePhase::Fresh => self.phase = self.begin(with),
            MovePhase::Running => {
                self.phase = MovePhase::Running;
                let wanted = self.out.is_empty() || self.out.iter().any(|&lane| !with.lanes[lane].closed);
                let max =
                    if *with.notifications.unaligned_epochs().borrow() > self.last { 2 * LANE_MAX } else { LANE_MAX };
                if self.out.iter().any(|&lane| with.lanes[lane].packets.len() >= max) {
                    return false;
                }
                let next = match &mut self.body {
                    CopyBody::Source(_) => self.source(wanted, with),
                    CopyBody::Count(_) if !wanted => Some(MovePhase::Finishing(Snapshot::default())),
                    CopyBody::Count(_) => self.count(with),
                    CopyBody::Outside(_) => self.outside(with),
                };
                let Some(next) = next else { return false };
                match &self.body {
                    CopyBody::Count(CountOperator { inputs, .. }) | CopyBody::Outside(SimulatedSink { inputs, .. })
                        if !matches!(next, MovePhase::Running | MovePhase::Moving(_) | MovePhase::MovingSplits(_)) =>
                    {
                        inputs.close(with.lanes);
                        if let CopyBody::Count(CountOperator { from, .. }) = &self.body {
                            for &lane in from.iter().flatten() {
                                with.lanes[lane] = SimulatedLane::closed();
                            }
                        }
                    }
                    _ => {}
                }
                self.phase = next;
            }
            MovePhase::MovingSplits(moving) => return self.step_moving_splits(moving, with),
            MovePhase::Moving(mut moving) => {
                let stepped = self.step_moving(&mut moving, with);
                self.phase = match moving.outgoing.is_empty() && moving.awaited.is_empty() {
                    true => self.moved(moving, with),
                    false => MovePhase::Moving(moving),
                };
                return stepped;
            }
            MovePhase::Finishing(snapshot) => {
                self.send_ends(with.lanes);
                self.phase = MovePhase::Ending(snapshot);
            }
            MovePhase::Ending(snapshot) => {
                let file = client::state_file(with.run, self.last + 1, self.id, "-end");
                let (parts, in_flight) = (client::parts(snapshot), Vec::new());
                self.writes.push_back(PendingWrite { file, epoch: None, whole: true, parts, in_flight });
                self.phase = MovePhase::Writing;
            }
            MovePhase::Writing => {
                let written = self.writes.is_empty();
                self.phase = match &self.body {
                    _ if !written => MovePhase::Writing,
                    CopyBody::Outside(_) => MovePhase::Committing,
                    CopyBody::Source(_) | CopyBody::Count(_) => {
                        // Of one that had ended before; else they have ended already.
                        if self.restored.as_ref().is_some_and(|restored| restored.ended) {
                            self.send_ends(with.lanes);
                        }
                        MovePhase::Over
                    }
                };
                return written;
            }
            MovePhase::Committing => {
                let CopyBody::Outside(sink) = &mut self.body else { unreachable!("only sinks commit") };
                let epoch = *sink.durable.as_mut().expect("it has begun").borrow_and_update();
                let heard = std::mem::replace(&mut sink.done, epoch) != epoch;
                let was_left = !sink.prepared.is_empty();
                sink.commit(epoch, with.world);
                if epoch != ALL {
                    if was_left && sink.prepared.is_empty() {
                        with.said.push(ReportBody::Ended { parts: Vec::new() });
                        with.world.early += 1;
                    }
                    self.phase = MovePhase::Committing;
                    return heard;
                }
            }
        }
        true
    }

    /// Hands over one split, or hears of one. Returns false when it can only wait.
    fn step_moving_splits(&mut self, mut moving: SplitMove, with: &mut StepContext) -> bool {
        let CopyBody::Source(source) = &mut self.body else { unreachable!("asked of sources") };
        // That it is there it says before all else.
        let front = moving.outgoing.front().map(|(to, packet)| (self.hand[*to as usize], packet));
        let may_send = front.is_some_and(|(lane, packet)| {
            matches!(packet, SimulatedPacket::Mark(_)) || with.lanes[lane].packets.len() < LANE_MAX
        });
        let stepped = if may_send && with.random.once_in(2) {
            let (to, packet) = moving.outgoing.pop_front().expect("just seen");
            with.lanes[self.hand[to as usize]].push(packet);
            true
        } else {
            let early = source.early.pop_front();
            let heard = early.or_else(|| source.hear(with.lanes, with.random));
            let stepped = heard.is_some();
            if let Some((from, packet)) = heard {
                source.note(&mut moving, from, packet);
            }
            stepped
        };
        if moving.ready.is_empty() && !moving.released {
            source.release(&mut moving, &with.world.plan.splits());
        }
        let is_done = moving.released && moving.outgoing.is_empty() && moving.givers.is_empty();
        self.phase = if is_done { self.moved_splits(&moving, with) } else { MovePhase::MovingSplits(moving) };
        stepped || may_send
    }

    /// Hands over one thing, or takes one.
    fn step_moving(&mut self, moving: &mut CopyMove, with: &mut StepContext) -> bool {
        let CopyBody::Count(count) = &mut self.body else { unreachable!("asked of operators") };
        if with.random.once_in(2) && count.acquire(moving, with.lanes, with.random) {
            return true;
        }
        let lane = moving.outgoing.front().map(|(to, _)| self.hand[*to as usize]);
        if let Some(lane) = lane.filter(|&lane| with.lanes[lane].packets.len() < LANE_MAX) {
            let (_, packet) = moving.outgoing.pop_front().expect("just seen");
            with.lanes[lane].push(packet);
            return true;
        }
        count.acquire(moving, with.lanes, with.random)
    }

    /// It has what it gains: `CopyStates::moved`.
    fn moved(&mut self, moving: CopyMove, with: &mut StepContext) -> MovePhase {
        let CopyBody::Count(count) = &mut self.body else { unreachable!("asked of operators") };
        with.world.say(|| format!("    {:?} has moved at {}: {:?}", self.id, moving.epoch, count.counts));
        count.route = moving.map;
        let strange = count.counts.keys().find(|key| owner(**key, &count.route) != self.id.1);
        assert_eq!(strange, None, "{:?} keeps what is another's", self.id);
        self.tenure.moved(&moving.moves);
        with.said.push(ReportBody::Moved(MoveReport { epoch: moving.epoch, ..MoveReport::default() }));
        MovePhase::Running
    }

    /// It has the splits that it gains: the rest of `SourceDriver::on_barrier`.
    fn moved_splits(&mut self, moving: &SplitMove, with: &mut StepContext) -> MovePhase {
        let CopyBody::Source(source) = &mut self.body else { unreachable!("asked of sources") };
        if !moving.taken.is_empty() && std::mem::take(&mut source.told_parked) {
            source.tell(self.id.1, &self.hand, &Mark::Watermark(EventTime::MIN), with.lanes);
        }
        source.take(&moving.taken);
        with.world.say(|| format!("    {:?} has moved splits: {:?}", self.id, source.places));
        let (epoch, splits) = (moving.barrier.epoch, moving.moved);
        with.said.push(ReportBody::Moved(MoveReport { epoch, splits, ..MoveReport::default() }));
        self.emit_watermark(with.lanes);
        MovePhase::Running
    }

    /// What a driver does before its loop.
    fn begin(&mut self, with: &mut StepContext) -> MovePhase {
        let ended = self.restored.as_ref().is_some_and(|restored| restored.ended);
        match &mut self.body {
            CopyBody::Source(source) => {
                source.barriers = Some(with.notifications.barriers());
                if ended {
                    return MovePhase::Ending(source.snapshot());
                }
            }
            CopyBody::Count(_) if ended => return MovePhase::Ending(Snapshot::default()),
            CopyBody::Count(_) => {}
            CopyBody::Outside(sink) => {
                if let Some(restored) = &self.restored {
                    (sink.last, sink.done) = (restored.epoch, restored.epoch);
                    for (name, bytes) in &restored.splits {
                        let epoch = name.split('.').next().unwrap().parse().unwrap();
                        sink.prepared.insert((epoch, name.clone()), bytes.clone());
                    }
                    sink.commit(ALL, with.world);
                }
                sink.durable = Some(with.notifications.epochs());
                sink.barriers = Some(with.notifications.barriers());
            }
        }
        MovePhase::Running
    }

    fn source(&mut self, wanted: bool, with: &mut StepContext) -> Option<MovePhase> {
        let CopyBody::Source(source) = &mut self.body else { unreachable!("asked of sources") };
        let barriers = source.barriers.as_mut().expect("it has begun");
        if barriers.has_changed().unwrap_or(false) {
            let barrier = barriers.borrow_and_update().clone()?;
            let snapshot = source.snapshot();
            with.world.say(|| format!("    {:?} sends barrier {barrier:?} at {:?}", self.id, source.places));
            self.save(with.run, barrier.epoch, true, snapshot);
            let stop = barrier.control == BarrierControl::Stop;
            if let (CopyBody::Source(source), Some(map)) = (&mut self.body, barrier.route_of("count")) {
                // What it sends from here on is behind the barrier.
                source.route = map.clone();
            }
            self.send(&SimulatedPacket::Mark(Mark::Barrier(barrier.clone())), with.lanes);
            if stop {
                return Some(MovePhase::Finishing(Snapshot::default()));
            }
            let CopyBody::Source(source) = &mut self.body else { unreachable!("asked of sources") };
            if let Some(moving) = source.begin_moving(self.id.1, &barrier) {
                return Some(MovePhase::MovingSplits(moving));
            }
            if barrier.restarts_time() {
                source.take(&[]);
                self.emit_watermark(with.lanes);
            }
            return Some(MovePhase::Running);
        }
        let rows = with.world.plan.splits();
        let left = source.places.keys().copied().filter(|split| source.places[split] < rows[split]);
        let left: Vec<u32> = left.collect();
        if left.is_empty() && wanted && source.has_given {
            // `SourceDriver::stays`.
            if !std::mem::replace(&mut source.told_parked, true) {
                source.tell(self.id.1, &self.hand, &Mark::Idle, with.lanes);
                source.time.add();
                source.time.idle(source.time.len() - 1);
                self.emit_watermark(with.lanes);
                return Some(MovePhase::Running);
            }
            let is_over = |copy: usize| source.parked[copy] || source.from[copy].is_none();
            if !(0..source.from.len()).all(|copy| copy as u32 == self.id.1 || is_over(copy)) {
                let (from, packet) = source.hear(with.lanes, with.random)?;
                match packet {
                    SimulatedPacket::Mark(Mark::Barrier(_)) | SimulatedPacket::Split { .. } => {
                        source.early.push_back((from, packet));
                    }
                    SimulatedPacket::Mark(mark) => source.parked[from as usize] = mark == Mark::Idle,
                    SimulatedPacket::End => source.from[from as usize] = None,
                    packet => unreachable!("{packet:?} between sources"),
                }
                return Some(MovePhase::Running);
            }
        }
        if left.is_empty() || !wanted {
            with.world.say(|| format!("    {:?} ends at {:?}", self.id, source.places));
            return Some(MovePhase::Finishing(source.snapshot()));
        }
        let split = left[with.random.below(left.len())];
        let stream = source.streams[&split];
        if with.world.plan.idles && with.random.once_in(8) {
            source.time.idle(stream);
            self.emit_watermark(with.lanes);
            return Some(MovePhase::Running);
        }
        let n = source.places[&split];
        source.places.insert(split, n + 1);
        let (key, time) = (with.world.plan.key(split, n), i64::from(n));
        source.time.advance(stream, EventTime(time));
        if n + 1 == rows[&split] {
            source.time.end_stream(stream);
        }
        with.lanes[self.out[owner(key, &source.route) as usize]].push(SimulatedPacket::Row { key, n, time });
        self.emit_watermark(with.lanes);
        Some(MovePhase::Running)
    }

    /// A source tells what is new of its time.
    fn emit_watermark(&mut self, lanes: &mut [SimulatedLane]) {
        while let CopyBody::Source(CopySource { time, .. }) = &mut self.body
            && let Some(mark) = time.next_mark()
        {
            self.send(&SimulatedPacket::Mark(mark), lanes);
        }
    }

    fn count(&mut self, with: &mut StepContext) -> Option<MovePhase> {
        let CopyBody::Count(count) = &mut self.body else { unreachable!("asked of operators") };
        let targets = self.out.len();
        let unaligned = *with.notifications.unaligned_epochs().borrow();
        match count.inputs.recv(with.lanes, unaligned, with.random)? {
            GatheredItem::Row { key, n: told, time } => {
                assert!(
                    with.world.plan.idles || EventTime(time) >= count.time,
                    "a row of {time} behind {}",
                    count.time
                );
                assert_eq!(owner(key, &count.route), self.id.1, "a row of key {key} is another's");
                let mut n = LAST;
                if count.next.is_some() || told != LAST {
                    let counted = count.counts.entry(key).or_default();
                    *counted += 1;
                    n = *counted;
                    assert!(count.next.is_some() || n == told, "row {told} of key {key} is counted as {n}");
                    count.changed.insert(key);
                }
                with.lanes[self.out[count.target(key, targets)]].push(SimulatedPacket::Row { key, n, time });
            }
            GatheredItem::Mark(Mark::Barrier(barrier)) => {
                let whole = self.chain.is_broken() || self.tenure.wants_whole();
                let snapshot = count.snapshot(whole, with.random);
                with.world.say(|| format!("    {:?} saves {} with {:?}", self.id, barrier.epoch, count.counts));
                self.save(with.run, barrier.epoch, whole, snapshot);
                let stop = barrier.control == BarrierControl::Stop;
                self.send(&SimulatedPacket::Mark(Mark::Barrier(barrier.clone())), with.lanes);
                if stop {
                    return Some(MovePhase::Finishing(Snapshot::default()));
                }
                let CopyBody::Count(count) = &mut self.body else { unreachable!("asked of operators") };
                if let (Some(next), Some(map)) = (&mut count.next, barrier.route_of("again")) {
                    next.clone_from(map);
                }
                if let Some(map) = barrier.route_of(&count.task) {
                    return Some(MovePhase::Moving(count.release(self.id.1, &barrier, map)));
                }
            }
            GatheredItem::Mark(mark) => {
                if let Mark::Watermark(time) = mark {
                    assert!(time >= count.time, "time goes back from {} to {time}", count.time);
                    count.time = time;
                }
                self.send(&SimulatedPacket::Mark(mark), with.lanes);
            }
            GatheredItem::PortEnd if count.inputs.is_over() => {
                // The second one passes on what it gets.
                for &key in count.counts.keys().filter(|_| count.next.is_some()) {
                    with.lanes[self.out[count.target(key, targets)]].push(SimulatedPacket::Row {
                        key,
                        n: LAST,
                        time: i64::MAX,
                    });
                }
                return Some(MovePhase::Finishing(Snapshot::default()));
            }
            GatheredItem::PortEnd => {}
        }
        Some(MovePhase::Running)
    }

    fn outside(&mut self, with: &mut StepContext) -> Option<MovePhase> {
        let CopyBody::Outside(sink) = &mut self.body else { unreachable!("asked of sinks") };
        let durable = sink.durable.as_mut().expect("it has begun");
        if durable.has_changed().unwrap_or(false) {
            sink.done = *durable.borrow_and_update();
            sink.commit(sink.done, with.world);
            return Some(MovePhase::Running);
        }
        let max = with.world.plan.sink_max;
        let barrier = sink.barriers.as_ref().expect("it has begun").borrow().as_ref().map(|barrier| barrier.epoch);
        if max > 0 && barrier.is_none_or(|epoch| epoch <= sink.last) {
            if 2 * sink.rows.len() >= max && sink.asked.replace(sink.last) != Some(sink.last) {
                with.said.push(ReportBody::Full { behind: sink.last });
                with.world.full += 1;
            }
            if sink.rows.len() >= max
                && (sink.done >= sink.last || *with.notifications.unaligned_epochs().borrow() < sink.last)
            {
                // What is on its way must wait for the barrier that comes before it.
                return None;
            }
        }
        let copy = self.id.1;
        let unaligned = *with.notifications.unaligned_epochs().borrow();
        let over = match sink.inputs.recv(with.lanes, unaligned, with.random)? {
            GatheredItem::Row { key, n, .. } => {
                sink.rows.push((key, n));
                false
            }
            GatheredItem::Mark(Mark::Barrier(barrier)) => {
                sink.prepare(barrier.epoch, copy, with.run);
                sink.last = barrier.epoch;
                let snapshot = sink.snapshot();
                self.save(with.run, barrier.epoch, true, snapshot);
                barrier.control == BarrierControl::Stop
            }
            GatheredItem::Mark(_) => false,
            GatheredItem::PortEnd => sink.inputs.is_over(),
        };
        if !over {
            return Some(MovePhase::Running);
        }
        let CopyBody::Outside(sink) = &mut self.body else { unreachable!("asked of sinks") };
        sink.prepare(sink.last + 1, copy, with.run);
        Some(MovePhase::Ending(sink.snapshot()))
    }
}
