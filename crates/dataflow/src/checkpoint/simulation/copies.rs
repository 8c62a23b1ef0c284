//! Copies of tasks as the drivers run them (`stream::source`, `operator`, `stream::sink`, `run::copy`), a step at a
//! time.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::rc::Rc;

use bytes::Bytes;
use tidemill_batch::route_map::RouteMap;
use tidemill_checkpoint::coordinator::ALL;
use tidemill_checkpoint::manifest::ReportBody;
use tidemill_checkpoint::marks::{Gate, MarkMerger, Watermarks};
use tidemill_checkpoint::{Barrier, Control, EventTime, Key, Mark, Moved, Part, Restored, Snapshot};
use tokio::sync::watch;

use super::super::hub::{self, Chain};
use super::super::news::EpochNotifications;
use super::{LAST, Plan, Random, Unit, World};
use crate::rebalance::{BucketOwnership, Moves};
use crate::unaligned::{Recording, StreamItem};

/// What waits in a stream before its sender does; twice as much if a barrier is in a hurry.
const LANE_MAX: usize = 6;

/// What a stream carries.
#[derive(Clone, Debug)]
pub(super) enum Packet {
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
    Mark(Mark),
    End,
}

/// A stream from copy to copy.
#[derive(Default)]
pub(super) struct Lane {
    packets: VecDeque<Packet>,
    /// The last barrier that was taken from here.
    taken: Option<Packet>,
    /// Its receiver has let go of it.
    closed: bool,
}

impl Lane {
    fn closed() -> Self {
        Lane { closed: true, ..Lane::default() }
    }

    fn push(&mut self, packet: Packet) {
        if !self.closed {
            self.packets.push_back(packet);
        }
    }
}

/// What a copy is writing, or will.
pub(super) struct Write {
    pub file: String,
    /// `None`: what it keeps at its end.
    pub epoch: Option<u64>,
    pub whole: bool,
    pub parts: Vec<(Key, Bytes, bool)>,
    /// By port what was in flight, when all of it is known.
    in_flight: Vec<(u32, InFlight)>,
}

/// A key, a number and a time.
pub(super) type Row = (u32, u32, i64);

/// Rows that are being recorded.
type InFlight = Rc<RefCell<Option<Vec<Row>>>>;

impl Write {
    /// All that is to be written, if it is known.
    pub(super) fn settled(&mut self) -> bool {
        if self.in_flight.iter().any(|(_, rows)| rows.borrow().is_none()) {
            return false;
        }
        for (port, rows) in self.in_flight.drain(..) {
            let rows = rows.take().expect("just seen");
            if !rows.is_empty() {
                self.parts.push((Key::InFlight(port), encode(&rows), true));
            }
        }
        true
    }
}

fn encode(rows: &[Row]) -> Bytes {
    serde_json::to_vec(rows).unwrap().into()
}

/// Keys, numbers and times of rows in flight.
pub(super) fn decode(bytes: &Bytes) -> Vec<Row> {
    serde_json::from_slice(bytes).unwrap()
}

/// An input port: `flow::Input`.
struct Port {
    marks: MarkMerger,
    /// Their lanes.
    streams: Vec<usize>,
    held: Vec<bool>,
    open: usize,
    ended: bool,
    /// The last epoch whose barrier has passed.
    passed: u64,
    recording: Option<(Recording<Row>, InFlight)>,
    ahead: VecDeque<(usize, Packet)>,
}

/// All input ports: `flow::Inputs`.
pub(super) struct CopyGather {
    ports: Vec<Port>,
    marks: MarkMerger,
    /// Of the barrier that comes next, or of those before it: epoch, port, rows.
    overtaken: Vec<(u64, u32, InFlight)>,
}

enum Got {
    Row { key: u32, n: u32, time: i64 },
    Mark(Mark),
    PortEnd,
}

impl CopyGather {
    /// For each port the lanes that lead there.
    /// `replay` says which rows were in flight to each, and are this copy's.
    pub(super) fn new(lanes: Vec<Vec<usize>>, replay: Vec<Vec<Row>>) -> Self {
        let mut marks = MarkMerger::default();
        (0..lanes.len()).for_each(|port| marks.add(port, false));
        let port = |(streams, replay): (Vec<usize>, Vec<Row>)| {
            let mut marks = MarkMerger::default();
            (0..streams.len()).for_each(|stream| marks.add(stream, false));
            let row = |(key, n, time)| (usize::MAX, Packet::Row { key, n, time });
            Port {
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

    fn recv(&mut self, lanes: &mut [Lane], hurry: u64, random: &mut Random) -> Option<Got> {
        let count = self.ports.len();
        let first = random.below(count);
        'look: loop {
            if let Some(mark) = self.marks.next_mark() {
                return Some(Got::Mark(mark));
            }
            for at in (0..count).map(|i| (first + i) % count) {
                if self.ports[at].ended || self.marks.holds(at) {
                    continue;
                }
                self.overtaken.extend(self.ports[at].overtake(lanes, hurry).map(|rows| (hurry, at as u32, rows)));
                match self.ports[at].recv(lanes, random) {
                    Some(Got::Mark(mark)) => {
                        self.marks.mark(at, mark);
                        continue 'look;
                    }
                    Some(Got::PortEnd) => {
                        self.ports[at].ended = true;
                        self.marks.over(at);
                        return Some(Got::PortEnd);
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

    fn close(&self, lanes: &mut [Lane]) {
        self.ports.iter().for_each(Port::abandon);
        for &lane in self.ports.iter().flat_map(|port| &port.streams) {
            lanes[lane] = Lane::closed();
        }
    }
}

/// What a recording is told of a packet.
fn seen(packet: &Packet) -> StreamItem<Row> {
    match packet {
        Packet::Row { key, n, time } => StreamItem::Rows((*key, *n, *time)),
        Packet::Mark(Mark::Barrier(barrier)) => StreamItem::Barrier(barrier.epoch),
        Packet::End => StreamItem::End,
        Packet::Mark(_) | Packet::State { .. } => StreamItem::Other,
    }
}

impl Port {
    /// `Input::overtake`: the rows that a barrier in a hurry overtakes.
    fn overtake(&mut self, lanes: &[Lane], epoch: u64) -> Option<InFlight> {
        if epoch <= self.passed {
            return None;
        }
        let packets = self.streams.iter().flat_map(|&lane| lanes[lane].packets.iter().chain(&lanes[lane].taken));
        let packets = packets.chain(self.ahead.iter().map(|(_, packet)| packet));
        let barrier = packets.filter_map(|packet| match packet {
            Packet::Mark(Mark::Barrier(barrier)) => Some(barrier),
            _ => None,
        });
        let newest = barrier.max_by_key(|barrier| barrier.epoch)?.clone();
        if newest.epoch != epoch || newest.control != Control::Checkpoint {
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
    fn take(&self, lanes: &mut [Lane], random: &mut Random) -> Option<(usize, Packet)> {
        let first = random.below(self.streams.len());
        let mut streams = (0..self.streams.len()).map(|i| (first + i) % self.streams.len());
        let stream = streams.find(|&s| !self.held[s] && !lanes[self.streams[s]].packets.is_empty())?;
        let lane = &mut lanes[self.streams[stream]];
        let packet = lane.packets.pop_front().expect("just seen");
        if let Packet::Mark(Mark::Barrier(_)) = packet {
            lane.taken = Some(packet.clone());
        }
        Some((stream, packet))
    }

    /// `Input::record`.
    fn record(&mut self, lanes: &mut [Lane], random: &mut Random) {
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

    fn recv(&mut self, lanes: &mut [Lane], random: &mut Random) -> Option<Got> {
        loop {
            self.record(lanes, random);
            if let Some(mark) = self.marks.next_mark() {
                if let Mark::Barrier(barrier) = &mark {
                    self.passed = self.passed.max(barrier.epoch);
                }
                return Some(Got::Mark(mark));
            }
            let (stream, packet) = match self.ahead.pop_front() {
                Some(first) => first,
                None if self.open == 0 => return Some(Got::PortEnd),
                None => self.take(lanes, random)?,
            };
            match packet {
                Packet::Row { key, n, time } => return Some(Got::Row { key, n, time }),
                Packet::State { key, .. } => unreachable!("state of key {key} among rows"),
                Packet::Mark(mark) => {
                    let gate = self.marks.mark(stream, mark);
                    self.gate(gate, stream);
                }
                Packet::End => {
                    self.open -= 1;
                    let gate = self.marks.over(stream);
                    self.gate(gate, stream);
                }
            }
        }
    }

    fn gate(&mut self, gate: Gate, stream: usize) {
        if matches!(gate, Gate::Release | Gate::Hold { release: true }) {
            self.held.fill(false);
        }
        if matches!(gate, Gate::Hold { .. }) {
            self.held[stream] = true;
        }
    }
}

/// A source: gives the rows of its splits, and tells their time.
pub(super) struct CopySource {
    /// Splits, with the next row of each.
    places: BTreeMap<u32, u32>,
    route: RouteMap,
    time: Watermarks,
    barriers: Option<watch::Receiver<Option<Barrier>>>,
}

/// An operator: numbers the rows of each key.
pub(super) struct Count {
    inputs: CopyGather,
    route: RouteMap,
    /// Streams on which the others hand over, by copy; `None`, when one has ended.
    from: Vec<Option<usize>>,
    counts: BTreeMap<u32, u32>,
    changed: BTreeSet<u32>,
    time: EventTime,
}

/// A sink.
pub(super) struct Outside {
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

pub(super) enum Body {
    Source(CopySource),
    Count(Count),
    Outside(Outside),
}

/// What a copy does about a rebalance: `Handover::run`.
struct Moving {
    epoch: u64,
    map: RouteMap,
    moves: Moves,
    /// What it hands over, and to whom.
    outgoing: VecDeque<(u32, Packet)>,
    awaited: BTreeSet<u32>,
}

enum Phase {
    /// Its driver has not begun.
    Fresh,
    Running,
    /// It takes no rows before it has what it gains.
    Moving(Moving),
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
pub(super) struct Copy {
    pub id: (u32, u32),
    pub worker: usize,
    body: Body,
    phase: Phase,
    restored: Option<Restored>,
    pub chain: Chain,
    tenure: BucketOwnership,
    /// The last epoch that was saved, or gone on from.
    last: u64,
    pub writes: VecDeque<Write>,
    /// The streams it sends on.
    out: Vec<usize>,
    /// Those on which it hands over.
    hand: Vec<usize>,
}

/// What a copy does a step with.
pub(super) struct Surroundings<'a> {
    pub run: &'a str,
    pub news: &'a EpochNotifications,
    pub lanes: &'a mut [Lane],
    /// What the copy reports at once.
    pub said: &'a mut Vec<ReportBody>,
    pub world: &'a mut World,
    pub random: &'a mut Random,
}

/// What [`Count`] saves of a bucket.
pub(super) fn pairs(part: &Bytes) -> impl Iterator<Item = (u32, u32)> {
    let word = |bytes: &[u8]| u32::from_le_bytes(bytes.try_into().unwrap());
    part.chunks_exact(8).map(move |pair| (word(&pair[..4]), word(&pair[4..])))
}

/// Who gets a key's rows.
pub(super) fn owner(key: u32, route: &RouteMap) -> u32 {
    route.copy(Plan::bucket(key))
}

impl CopySource {
    /// `splits` are those of its task.
    pub(super) fn new(
        splits: &BTreeMap<u32, u32>,
        (copy, copies): (u32, u32),
        restored: Option<&Restored>,
        route: &RouteMap,
    ) -> Self {
        let places: BTreeMap<u32, u32> = match restored {
            Some(restored) => {
                let place = |bytes: &Bytes| u32::from_le_bytes(bytes.as_ref().try_into().unwrap());
                restored.splits.iter().map(|(name, bytes)| (name.parse().unwrap(), place(bytes))).collect()
            }
            None => splits.keys().filter(|&split| split % copies == copy).map(|&split| (split, 0)).collect(),
        };
        let mut time = Watermarks::default();
        for (stream, (split, place)) in places.iter().enumerate() {
            time.add();
            if splits[split] == *place {
                time.over(stream);
            }
        }
        CopySource { places, route: route.clone(), time, barriers: None }
    }

    fn snapshot(&self) -> Snapshot {
        let split = |(split, place): (&u32, &u32)| (split.to_string(), Bytes::copy_from_slice(&place.to_le_bytes()));
        Snapshot { splits: self.places.iter().map(split).collect(), ..Snapshot::default() }
    }
}

impl Count {
    pub(super) fn new(inputs: CopyGather, restored: Option<&Restored>, route: &RouteMap, from: &[usize]) -> Self {
        let parts = restored.into_iter().flat_map(|restored| restored.buckets.values().flatten());
        let counts = parts.flat_map(|part| pairs(part).collect::<Vec<_>>()).collect();
        let (route, from) = (route.clone(), from.iter().copied().map(Some).collect());
        Count { inputs, route, from, counts, changed: BTreeSet::new(), time: EventTime::MIN }
    }

    fn snapshot(&mut self, whole: bool, random: &mut Random) -> Snapshot {
        let changed = std::mem::take(&mut self.changed);
        let keys = if whole { self.counts.keys().copied().collect() } else { changed.clone() };
        let buckets: BTreeSet<u32> = keys.into_iter().map(Plan::bucket).collect();
        let part = |bucket: u32| {
            let whole = whole || random.once_in(3);
            let named = |key: &u32| Plan::bucket(*key) == bucket && (whole || changed.contains(key));
            let pairs = self.counts.iter().filter(|(key, _)| named(key));
            let bytes = pairs.flat_map(|(key, n)| [*key, *n]).flat_map(u32::to_le_bytes).collect::<Vec<u8>>().into();
            (bucket, if whole { Part::Whole(bytes) } else { Part::Change(bytes) })
        };
        Snapshot { buckets: buckets.into_iter().map(part).collect(), ..Snapshot::default() }
    }

    /// The beginning of `Handover::run`, and all that an operator releases.
    fn release(&mut self, copy: u32, barrier: &Barrier, map: &RouteMap) -> Moving {
        let moves = Moves::of(copy, &self.route, map);
        let mut outgoing = VecDeque::new();
        for (&to, buckets) in &moves.lost {
            let moved = |key: &u32| buckets.contains(&Plan::bucket(*key));
            outgoing
                .extend(self.counts.extract_if(.., |key, _| moved(key)).map(|(key, n)| (to, Packet::State { key, n })));
            self.changed.retain(|key| !moved(key));
            outgoing.push_back((to, Packet::Mark(Mark::Barrier(barrier.clone()))));
        }
        let awaited = moves.gained.keys().copied().filter(|&from| self.from[from as usize].is_some()).collect();
        Moving { epoch: barrier.epoch, map: map.clone(), moves, outgoing, awaited }
    }

    /// Takes one thing that another hands over, if there is any.
    fn acquire(&mut self, moving: &mut Moving, lanes: &mut [Lane], random: &mut Random) -> bool {
        let there = |&from: &u32| self.from[from as usize].is_some_and(|lane| !lanes[lane].packets.is_empty());
        let there: Vec<u32> = (0..self.from.len() as u32).filter(there).collect();
        if moving.awaited.is_empty() || there.is_empty() {
            return false;
        }
        let from = there[random.below(there.len())];
        let lane = self.from[from as usize].expect("just seen");
        match lanes[lane].packets.pop_front().expect("just seen") {
            Packet::State { key, n } => {
                assert!(moving.moves.gained[&from].contains(&Plan::bucket(key)), "key {key} comes from {from}");
                assert!(self.counts.insert(key, n).is_none(), "key {key} was here already");
            }
            Packet::Mark(Mark::Barrier(barrier)) => {
                assert_eq!(barrier.epoch, moving.epoch, "another hand-over is under way");
                moving.awaited.remove(&from);
            }
            Packet::End => {
                self.from[from as usize] = None;
                moving.awaited.remove(&from);
            }
            packet => unreachable!("{packet:?} where state was due"),
        }
        true
    }
}

impl Outside {
    pub(super) fn new(inputs: CopyGather) -> Self {
        let (rows, prepared) = Default::default();
        Outside { inputs, rows, prepared, last: 0, done: 0, durable: None, barriers: None, asked: None }
    }

    fn prepare(&mut self, epoch: u64, copy: u32, run: &str) {
        if !self.rows.is_empty() {
            let unit = Unit { epoch, run: run.into(), copy, rows: std::mem::take(&mut self.rows) };
            self.prepared.insert((epoch, format!("{epoch}.{copy}")), serde_json::to_vec(&unit).unwrap().into());
        }
    }

    fn snapshot(&self) -> Snapshot {
        let splits = self.prepared.iter().map(|((_, name), bytes)| (name.clone(), bytes.clone())).collect();
        Snapshot { splits, ..Snapshot::default() }
    }

    fn commit(&mut self, epoch: u64, world: &mut World) {
        while let Some(entry) = self.prepared.first_entry().filter(|entry| entry.key().0 <= epoch) {
            world.commit(entry.remove());
        }
    }
}

impl Copy {
    pub(super) fn new(
        id: (u32, u32),
        worker: usize,
        body: Body,
        restored: Option<Restored>,
        (out, hand): (Vec<usize>, Vec<usize>),
    ) -> Self {
        let last = restored.as_ref().map_or(0, |restored| restored.epoch);
        let (chain, tenure, writes) = Default::default();
        Copy { id, worker, body, phase: Phase::Fresh, restored, chain, tenure, last, writes, out, hand }
    }

    pub(super) fn is_over(&self) -> bool {
        matches!(self.phase, Phase::Over)
    }

    pub(super) fn is_count(&self) -> bool {
        matches!(self.body, Body::Count(_))
    }

    /// `CopyStates::save`.
    fn save(&mut self, run: &str, epoch: u64, whole: bool, mut snapshot: Snapshot) {
        self.last = epoch;
        self.tenure.at_snapshot().settle(whole, &mut snapshot.buckets);
        let file = hub::state_file(run, epoch, self.id, "");
        let in_flight = match &mut self.body {
            Body::Source(_) => Vec::new(),
            Body::Count(Count { inputs, .. }) | Body::Outside(Outside { inputs, .. }) => {
                let overtaken = std::mem::take(&mut inputs.overtaken).into_iter();
                overtaken.filter(|(of, ..)| *of == epoch).map(|(_, port, rows)| (port, rows)).collect()
            }
        };
        self.writes.push_back(Write { file, epoch: Some(epoch), whole, parts: hub::parts(snapshot), in_flight });
    }

    fn send(&self, packet: &Packet, lanes: &mut [Lane]) {
        self.out.iter().for_each(|&lane| lanes[lane].push(packet.clone()));
    }

    fn send_ends(&self, lanes: &mut [Lane]) {
        self.send(&Packet::End, lanes);
        self.hand.iter().for_each(|&lane| lanes[lane].push(Packet::End));
    }

    /// Does what comes next. Returns false when it can only wait.
    pub(super) fn step(&mut self, with: &mut Surroundings) -> bool {
        match std::mem::replace(&mut self.phase, Phase::Over) {
            Phase::Over => return false,
            Phase::Fresh => self.phase = self.begin(with),
            Phase::Running => {
                self.phase = Phase::Running;
                let wanted = self.out.is_empty() || self.out.iter().any(|&lane| !with.lanes[lane].closed);
                let max = if *with.news.hurries().borrow() > self.last { 2 * LANE_MAX } else { LANE_MAX };
                if self.out.iter().any(|&lane| with.lanes[lane].packets.len() >= max) {
                    return false;
                }
                let next = match &mut self.body {
                    Body::Source(_) => self.source(wanted, with),
                    Body::Count(_) if !wanted => Some(Phase::Finishing(Snapshot::default())),
                    Body::Count(_) => self.count(with),
                    Body::Outside(_) => self.outside(with),
                };
                let Some(next) = next else { return false };
                match &self.body {
                    Body::Count(Count { inputs, .. }) | Body::Outside(Outside { inputs, .. })
                        if !matches!(next, Phase::Running | Phase::Moving(_)) =>
                    {
                        inputs.close(with.lanes);
                        if let Body::Count(Count { from, .. }) = &self.body {
                            for &lane in from.iter().flatten() {
                                with.lanes[lane] = Lane::closed();
                            }
                        }
                    }
                    _ => {}
                }
                self.phase = next;
            }
            Phase::Moving(mut moving) => {
                let stepped = self.step_moving(&mut moving, with);
                self.phase = match moving.outgoing.is_empty() && moving.awaited.is_empty() {
                    true => self.moved(moving, with),
                    false => Phase::Moving(moving),
                };
                return stepped;
            }
            Phase::Finishing(snapshot) => {
                self.send_ends(with.lanes);
                self.phase = Phase::Ending(snapshot);
            }
            Phase::Ending(snapshot) => {
                let file = hub::state_file(with.run, self.last + 1, self.id, "-end");
                let (parts, in_flight) = (hub::parts(snapshot), Vec::new());
                self.writes.push_back(Write { file, epoch: None, whole: true, parts, in_flight });
                self.phase = Phase::Writing;
            }
            Phase::Writing => {
                let written = self.writes.is_empty();
                self.phase = match &self.body {
                    _ if !written => Phase::Writing,
                    Body::Outside(_) => Phase::Committing,
                    Body::Source(_) | Body::Count(_) => {
                        // Of one that had ended before; else they have ended already.
                        if self.restored.as_ref().is_some_and(|restored| restored.ended) {
                            self.send_ends(with.lanes);
                        }
                        Phase::Over
                    }
                };
                return written;
            }
            Phase::Committing => {
                let Body::Outside(sink) = &mut self.body else { unreachable!("only sinks commit") };
                let epoch = *sink.durable.as_mut().expect("it has begun").borrow_and_update();
                let heard = std::mem::replace(&mut sink.done, epoch) != epoch;
                let was_left = !sink.prepared.is_empty();
                sink.commit(epoch, with.world);
                if epoch != ALL {
                    if was_left && sink.prepared.is_empty() {
                        with.said.push(ReportBody::Ended { parts: Vec::new() });
                        with.world.early += 1;
                    }
                    self.phase = Phase::Committing;
                    return heard;
                }
            }
        }
        true
    }

    /// Hands over one thing, or takes one.
    fn step_moving(&mut self, moving: &mut Moving, with: &mut Surroundings) -> bool {
        let Body::Count(count) = &mut self.body else { unreachable!("asked of operators") };
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
    fn moved(&mut self, moving: Moving, with: &mut Surroundings) -> Phase {
        let Body::Count(count) = &mut self.body else { unreachable!("asked of operators") };
        with.world.say(|| format!("    {:?} has moved at {}: {:?}", self.id, moving.epoch, count.counts));
        count.route = moving.map;
        let strange = count.counts.keys().find(|key| owner(**key, &count.route) != self.id.1);
        assert_eq!(strange, None, "{:?} keeps what is another's", self.id);
        self.tenure.moved(&moving.moves);
        with.said.push(ReportBody::Moved(Moved { epoch: moving.epoch, ..Moved::default() }));
        Phase::Running
    }

    /// What a driver does before its loop.
    fn begin(&mut self, with: &mut Surroundings) -> Phase {
        let ended = self.restored.as_ref().is_some_and(|restored| restored.ended);
        match &mut self.body {
            Body::Source(source) => {
                source.barriers = Some(with.news.barriers());
                if ended {
                    return Phase::Ending(source.snapshot());
                }
            }
            Body::Count(_) if ended => return Phase::Ending(Snapshot::default()),
            Body::Count(_) => {}
            Body::Outside(sink) => {
                if let Some(restored) = &self.restored {
                    (sink.last, sink.done) = (restored.epoch, restored.epoch);
                    for (name, bytes) in &restored.splits {
                        let epoch = name.split('.').next().unwrap().parse().unwrap();
                        sink.prepared.insert((epoch, name.clone()), bytes.clone());
                    }
                    sink.commit(ALL, with.world);
                }
                sink.durable = Some(with.news.epochs());
                sink.barriers = Some(with.news.barriers());
            }
        }
        Phase::Running
    }

    fn source(&mut self, wanted: bool, with: &mut Surroundings) -> Option<Phase> {
        let Body::Source(source) = &mut self.body else { unreachable!("asked of sources") };
        let barriers = source.barriers.as_mut().expect("it has begun");
        if barriers.has_changed().unwrap_or(false) {
            let barrier = barriers.borrow_and_update().clone()?;
            let snapshot = source.snapshot();
            with.world.say(|| format!("    {:?} sends barrier {barrier:?} at {:?}", self.id, source.places));
            self.save(with.run, barrier.epoch, true, snapshot);
            let stop = barrier.control == Control::Stop;
            if let (Body::Source(source), Some(map)) = (&mut self.body, barrier.route_of("count")) {
                // What it sends from here on is behind the barrier.
                source.route = map.clone();
            }
            self.send(&Packet::Mark(Mark::Barrier(barrier)), with.lanes);
            return Some(if stop { Phase::Finishing(Snapshot::default()) } else { Phase::Running });
        }
        let rows = with.world.plan.splits();
        let left = source.places.keys().copied().filter(|split| source.places[split] < rows[split]);
        let left: Vec<u32> = left.collect();
        if left.is_empty() || !wanted {
            with.world.say(|| format!("    {:?} ends at {:?}", self.id, source.places));
            return Some(Phase::Finishing(source.snapshot()));
        }
        let split = left[with.random.below(left.len())];
        let stream = source.places.keys().position(|known| *known == split).expect("it is one of its own");
        if with.world.plan.idles && with.random.once_in(8) {
            source.time.idle(stream);
            self.tell_time(with.lanes);
            return Some(Phase::Running);
        }
        let n = source.places[&split];
        source.places.insert(split, n + 1);
        let (key, time) = (with.world.plan.key(split, n), i64::from(n));
        source.time.advance(stream, EventTime(time));
        if n + 1 == rows[&split] {
            source.time.over(stream);
        }
        with.lanes[self.out[owner(key, &source.route) as usize]].push(Packet::Row { key, n, time });
        self.tell_time(with.lanes);
        Some(Phase::Running)
    }

    /// A source tells what is new of its time.
    fn tell_time(&mut self, lanes: &mut [Lane]) {
        while let Body::Source(CopySource { time, .. }) = &mut self.body
            && let Some(mark) = time.next_mark()
        {
            self.send(&Packet::Mark(mark), lanes);
        }
    }

    fn count(&mut self, with: &mut Surroundings) -> Option<Phase> {
        let Body::Count(count) = &mut self.body else { unreachable!("asked of operators") };
        let sinks = self.out.len();
        let hurry = *with.news.hurries().borrow();
        match count.inputs.recv(with.lanes, hurry, with.random)? {
            Got::Row { key, time, .. } => {
                assert!(
                    with.world.plan.idles || EventTime(time) >= count.time,
                    "a row of {time} behind {}",
                    count.time
                );
                assert_eq!(owner(key, &count.route), self.id.1, "a row of key {key} is another's");
                let n = count.counts.entry(key).or_default();
                *n += 1;
                count.changed.insert(key);
                with.lanes[self.out[key as usize % sinks]].push(Packet::Row { key, n: *n, time });
            }
            Got::Mark(Mark::Barrier(barrier)) => {
                let whole = self.chain.is_broken() || self.tenure.wants_whole();
                let snapshot = count.snapshot(whole, with.random);
                with.world.say(|| format!("    {:?} saves {} with {:?}", self.id, barrier.epoch, count.counts));
                self.save(with.run, barrier.epoch, whole, snapshot);
                let stop = barrier.control == Control::Stop;
                self.send(&Packet::Mark(Mark::Barrier(barrier.clone())), with.lanes);
                if stop {
                    return Some(Phase::Finishing(Snapshot::default()));
                }
                let Body::Count(count) = &mut self.body else { unreachable!("asked of operators") };
                if let Some(map) = barrier.route_of("count") {
                    return Some(Phase::Moving(count.release(self.id.1, &barrier, map)));
                }
            }
            Got::Mark(mark) => {
                if let Mark::Watermark(time) = mark {
                    assert!(time >= count.time, "time goes back from {} to {time}", count.time);
                    count.time = time;
                }
                self.send(&Packet::Mark(mark), with.lanes);
            }
            Got::PortEnd if count.inputs.is_over() => {
                for &key in count.counts.keys() {
                    with.lanes[self.out[key as usize % sinks]].push(Packet::Row { key, n: LAST, time: i64::MAX });
                }
                return Some(Phase::Finishing(Snapshot::default()));
            }
            Got::PortEnd => {}
        }
        Some(Phase::Running)
    }

    fn outside(&mut self, with: &mut Surroundings) -> Option<Phase> {
        let Body::Outside(sink) = &mut self.body else { unreachable!("asked of sinks") };
        let durable = sink.durable.as_mut().expect("it has begun");
        if durable.has_changed().unwrap_or(false) {
            sink.done = *durable.borrow_and_update();
            sink.commit(sink.done, with.world);
            return Some(Phase::Running);
        }
        let max = with.world.plan.sink_max;
        let barrier = sink.barriers.as_ref().expect("it has begun").borrow().as_ref().map(|barrier| barrier.epoch);
        if max > 0 && barrier.is_none_or(|epoch| epoch <= sink.last) {
            if 2 * sink.rows.len() >= max && sink.asked.replace(sink.last) != Some(sink.last) {
                with.said.push(ReportBody::Full { behind: sink.last });
                with.world.full += 1;
            }
            if sink.rows.len() >= max && (sink.done >= sink.last || *with.news.hurries().borrow() < sink.last) {
                // What is on its way must wait for the barrier that comes before it.
                return None;
            }
        }
        let copy = self.id.1;
        let hurry = *with.news.hurries().borrow();
        let over = match sink.inputs.recv(with.lanes, hurry, with.random)? {
            Got::Row { key, n, .. } => {
                sink.rows.push((key, n));
                false
            }
            Got::Mark(Mark::Barrier(barrier)) => {
                sink.prepare(barrier.epoch, copy, with.run);
                sink.last = barrier.epoch;
                let snapshot = sink.snapshot();
                self.save(with.run, barrier.epoch, true, snapshot);
                barrier.control == Control::Stop
            }
            Got::Mark(_) => false,
            Got::PortEnd => sink.inputs.is_over(),
        };
        if !over {
            return Some(Phase::Running);
        }
        let Body::Outside(sink) = &mut self.body else { unreachable!("asked of sinks") };
        sink.prepare(sink.last + 1, copy, with.run);
        Some(Phase::Ending(sink.snapshot()))
    }
}
