//! Functions of copies in a simulation: one seed determines the story of a job, from its first run to its end, in one
//! thread and without a clock. How copies agree on calls ([`Turns`], [`RowTurns`]) and how they align barriers are the
//! real thing. Their environment is modeled: sources with watermarks, streams of bounded length, copies, which act as
//! [`BspTask`](super::task::BspTask) does, what they hear of each other, and a sink that shows what is durable.
//!
//! The story may have barriers at any time, of which some are given up for the next one; and crashes at any step, also
//! in the middle of a call, with other numbers of copies afterwards, among which rows that wait are dealt anew and
//! states are merged and split. Barriers overtake no rows, no bucket moves, and no window is left out.
//!
//! Invariants: copies say the same things in the same order; all of them are in the same epoch when they enter a call,
//! and it is for the same window; each row is in each of its windows once, in that order; of windows without rows those
//! are called that a timer is for; states are those of the calls before. And when faults stop, the job ends.
//!
//! `SIMULATION_SEED=17 cargo test -p tidemill-stream bsp::simulation` tries the story of seed 17 alone.

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

use tidemill_checkpoint::marks::MarkMerger;
use tidemill_checkpoint::{Barrier, BarrierControl, EventTime, Mark};
use tidemill_collective::ReduceOp;
use tidemill_dataflow::TaskError;
use tidemill_sim::{SplitMix64, share_of_seeds};

use super::OnBusy;
use super::row_turns::{RowTurn, RowTurns};
use super::task::{PaneRows, PaneWindows};
use super::turns::{Consensus, Moment, Turn, Turns};
use crate::time::window::Micros;
use crate::time::window_assigner::WindowAssigner;

/// Seeds of a whole run of the test; see [`share_of_seeds`].
const SEEDS: u64 = 10_000;
/// Packets that wait in a stream, at most.
const LANE_MAX: usize = 6;
/// Then faults stop; and the job must end within so many steps.
const FAULTS_END: usize = 3000;
const STEPS_MAX: usize = 200_000;
/// Row `n` of a split has this number, beside the split's.
const SPLIT_ROWS_MAX: i64 = 1000;

/// A row: its time, and its number among all.
type Row = (Micros, i64);

/// What a function is called for: the window's end, the number of the first row, or the epoch.
type CallId = i64;

/// The timer that a copy sets in the call for the window with this end: some copies, in some calls.
fn timer_in(end: Micros, place: usize) -> Option<Micros> {
    let kind = end / 10 % 7;
    (kind < 3 && place == 0).then_some(end + kind * 25 - 5)
}

/// What one copy has given in a call: its rows; and what all states sum up to, if it is the first copy.
#[derive(Clone, Debug)]
struct CallResult {
    of: CallId,
    rows: Vec<i64>,
    total: Option<i64>,
}

/// When the function is called.
#[derive(Clone)]
enum Calls {
    Windows(WindowAssigner),
    Rows(i64),
    Epochs,
}

struct Said {
    op: ReduceOp,
    numbers: Vec<i64>,
    /// So many copies have said it.
    by: usize,
}

/// What all copies of a run say.
#[derive(Default)]
struct Conversation {
    said: Vec<Said>,
    /// By call: what it is for, and the epoch in which copies enter it.
    calls: Vec<(CallId, u64)>,
    /// By copy: how often it has spoken, and whether it has heard all of it; and its calls.
    copies: Vec<(usize, bool, usize)>,
}

#[derive(Clone)]
struct SimulatedConsensus {
    all: Rc<RefCell<Conversation>>,
    place: usize,
}

impl SimulatedConsensus {
    /// A copy enters a call.
    fn enter(&self, of: CallId, epoch: u64) {
        let all = &mut *self.all.borrow_mut();
        let number = &mut all.copies[self.place].2;
        if all.calls.len() == *number {
            all.calls.push((of, epoch));
        }
        assert_eq!(all.calls[*number], (of, epoch), "copy {} in call {number}: its window and epoch", self.place);
        *number += 1;
    }
}

impl Consensus for SimulatedConsensus {
    fn propose(&mut self, numbers: Vec<i64>, op: &ReduceOp) -> Result<(), TaskError> {
        let all = &mut *self.all.borrow_mut();
        let (spoken, heard, _) = &mut all.copies[self.place];
        assert!(*heard, "copy {} says something before it has heard what all said", self.place);
        if all.said.len() == *spoken {
            all.said.push(Said { op: op.clone(), numbers, by: 1 });
        } else {
            let said = &mut all.said[*spoken];
            let combine: fn(i64, i64) -> i64 = match (&said.op, op) {
                (ReduceOp::Min, ReduceOp::Min) => i64::min,
                (ReduceOp::Sum, ReduceOp::Sum) => |one, other| one + other,
                (one, other) => panic!("copies make different calls: {one:?} and {other:?}"),
            };
            assert_eq!(said.numbers.len(), numbers.len(), "copies make different calls");
            said.numbers.iter_mut().zip(numbers).for_each(|(one, other)| *one = combine(*one, other));
            said.by += 1;
        }
        (*spoken, *heard) = (*spoken + 1, false);
        Ok(())
    }

    fn is_pending(&self) -> bool {
        !self.all.borrow().copies[self.place].1
    }

    /// A copy that waits for it asks again.
    fn outcome(&mut self, _: Moment, _: bool) -> Result<Option<Vec<i64>>, TaskError> {
        let all = &mut *self.all.borrow_mut();
        let (copies, (spoken, heard, _)) = (all.copies.len(), &mut all.copies[self.place]);
        if *heard || all.said[*spoken - 1].by < copies {
            return Ok(None);
        }
        *heard = true;
        Ok(Some(all.said[*spoken - 1].numbers.clone()))
    }
}

#[derive(Clone)]
enum Packet {
    Row(Row),
    Time(Micros),
    Result(CallResult),
    Barrier(u64),
    End,
}

/// The streams that come to a copy.
struct SimulatedInput {
    lanes: Vec<VecDeque<Packet>>,
    ended: Vec<bool>,
    marks: MarkMerger,
}

impl SimulatedInput {
    fn new(streams: usize) -> Self {
        let mut marks = MarkMerger::default();
        (0..streams).for_each(|stream| marks.add(stream, false));
        SimulatedInput { lanes: (0..streams).map(|_| VecDeque::new()).collect(), ended: vec![false; streams], marks }
    }

    fn is_over(&self) -> bool {
        self.ended.iter().all(|&ended| ended)
    }

    /// Takes something from one of the streams; returns it if it is no mark.
    fn take(&mut self, random: &mut SplitMix64) -> Option<Packet> {
        let ready = |&stream: &usize| !self.marks.holds(stream) && !self.lanes[stream].is_empty();
        let ready: Vec<usize> = (0..self.lanes.len()).filter(ready).collect();
        let &stream = ready.get(random.below(ready.len().max(1)))?;
        match self.lanes[stream].pop_front().expect("just seen") {
            Packet::Time(time) => _ = self.marks.mark(stream, Mark::Watermark(EventTime(time))),
            Packet::Barrier(epoch) => {
                let control = BarrierControl::Checkpoint;
                self.marks.mark(stream, Mark::Barrier(Barrier { epoch, control }));
            }
            Packet::End => {
                self.ended[stream] = true;
                self.marks.end_stream(stream);
            }
            row => return Some(row),
        }
        None
    }
}

struct CopySource {
    splits: Vec<usize>,
    /// Its watermark.
    time: Micros,
    ended: bool,
    barrier: u64,
    /// Places of its splits at the barrier of an epoch.
    saved: Option<(u64, Vec<usize>)>,
}

/// What a copy keeps.
#[derive(Clone, Default)]
struct CopyState {
    rows: Vec<Row>,
    called: i64,
    /// The function's: rows in calls of this copy, and of those that it has replaced.
    state: i64,
    timer: Option<Micros>,
}

enum CopyTurns {
    OfTime(Turns<SimulatedConsensus>),
    OfRows(RowTurns<SimulatedConsensus>),
}

/// As [`BspTask`](super::task::BspTask).
struct SimulatedBsp {
    place: usize,
    consensus: SimulatedConsensus,
    turns: CopyTurns,
    input: SimulatedInput,
    moment: Moment,
    /// It is to look again before anything else: there is more to do, or others have to come.
    busy: bool,
    /// It is in a call.
    call: Option<CallResult>,
    /// That was the last one at its moment.
    passes: bool,
    /// The barrier that it has passed last, and the next one, if it has come to it.
    epoch: u64,
    next_epoch: u64,
    /// The time of its input.
    reached: Micros,
    rows: Vec<Row>,
    state: i64,
    timer: Option<Micros>,
    over: bool,
    saved: Option<(u64, CopyState)>,
}

impl SimulatedBsp {
    fn new(calls: &Calls, consensus: SimulatedConsensus, copies: usize, sources: usize, from: CopyState) -> Self {
        let (place, among) = (consensus.place, consensus.clone());
        let of_time = |windows| CopyTurns::OfTime(Turns::among(among.clone(), windows, from.called, OnBusy::Wait));
        let turns = match calls {
            Calls::Windows(windows) => of_time(Some(windows.clone())),
            Calls::Epochs => of_time(None),
            Calls::Rows(size) => CopyTurns::OfRows(RowTurns::among(among, (place, copies), *size, from.called)),
        };
        SimulatedBsp {
            place,
            consensus,
            turns,
            input: SimulatedInput::new(sources),
            moment: Moment::Time,
            busy: false,
            call: None,
            passes: false,
            epoch: 0,
            next_epoch: 0,
            reached: Micros::MIN,
            rows: from.rows,
            state: from.state,
            timer: from.timer,
            over: false,
            saved: None,
        }
    }

    fn state(&self) -> CopyState {
        let called = match &self.turns {
            CopyTurns::OfTime(turns) => turns.called(),
            CopyTurns::OfRows(turns) => turns.called(),
        };
        CopyState { rows: self.rows.clone(), called, state: self.state, timer: self.timer }
    }

    /// Does something. Returns what goes to the sink.
    fn step(&mut self, random: &mut SplitMix64) -> Option<Packet> {
        if self.call.is_some() {
            return self.leave();
        }
        if std::mem::take(&mut self.passes) {
            return Some(self.pass());
        }
        if self.busy {
            return self.advance(true);
        }
        match self.input.marks.next_mark() {
            Some(Mark::Watermark(EventTime(time))) => {
                self.reached = time;
                let CopyTurns::OfTime(turns) = &mut self.turns else { return self.look() };
                turns.pass(time);
                let waits = !turns.is_pending();
                self.moment = Moment::Time;
                return self.advance(waits);
            }
            Some(Mark::Barrier(Barrier { epoch, .. })) => {
                (self.moment, self.next_epoch) = (Moment::Barrier, epoch);
                return self.advance(true);
            }
            Some(Mark::Idle) | None => {}
        }
        if self.input.is_over() {
            self.reached = Micros::MAX;
            if let CopyTurns::OfTime(turns) = &mut self.turns {
                turns.pass(self.reached);
            }
            self.moment = Moment::End;
            return self.advance(true);
        }
        match self.input.take(random) {
            Some(Packet::Row(row)) => {
                if let CopyTurns::OfTime(turns) = &self.turns
                    && let Some(windows) = turns.windows()
                {
                    assert!(windows.last_end(windows.pane(row.0).0) > turns.too_late(), "row {row:?} is late");
                }
                self.rows.push(row);
                self.look()
            }
            Some(_) => unreachable!("results are for the sink"),
            // A tick.
            None if random.once_in(3) => {
                if let CopyTurns::OfRows(turns) = &mut self.turns {
                    turns.tick();
                }
                self.look()
            }
            None => None,
        }
    }

    fn look(&mut self) -> Option<Packet> {
        self.moment = Moment::Time;
        match &self.turns {
            CopyTurns::OfRows(turns) => {
                let waits = turns.is_enough(self.rows.len());
                self.advance(waits)
            }
            CopyTurns::OfTime(turns) if turns.is_pending() => self.advance(false),
            CopyTurns::OfTime(_) => None,
        }
    }

    fn advance(&mut self, waits: bool) -> Option<Packet> {
        let by_epochs = matches!(&self.turns, CopyTurns::OfTime(turns) if turns.windows().is_none());
        let over = match &mut self.turns {
            CopyTurns::OfTime(turns) => {
                let windows = turns.windows().cloned();
                let mut panes: BTreeMap<Micros, PaneRows> = BTreeMap::new();
                for (time, _) in &self.rows {
                    windows.iter().for_each(|windows| panes.entry(windows.pane(*time).0).or_default().count += 1);
                }
                let ends = PaneWindows { panes: &panes, timer: self.timer, windows: windows.as_ref() };
                match (turns.next(self.moment, &ends, waits).unwrap(), windows) {
                    (Turn::Call(end), Some(windows)) => {
                        let of = windows.start(end)..end;
                        let rows = self.rows.iter().filter(|(time, _)| of.contains(time)).map(|row| row.1).collect();
                        self.rows.retain(|(time, _)| windows.last_end(windows.pane(*time).0) > end);
                        self.timer = timer_in(end, self.place);
                        self.enter(end, rows);
                        return None;
                    }
                    (turn, _) => turn == Turn::Over,
                }
            }
            CopyTurns::OfRows(turns) => {
                let first = self.rows.iter().map(|row| row.0).min();
                let since = || Ok(first.map_or(self.reached, |first| first.min(self.reached)));
                match turns.next(self.moment, self.rows.len(), since, waits).unwrap() {
                    RowTurn::Call { of, share } => {
                        // What tasks behind have been told, and results with the latest of these times keep to.
                        let early = self.rows[..share].iter().find(|row| row.0 < turns.now());
                        assert_eq!(early, None, "time was {} before a call of this row", turns.now());
                        let rows = self.rows.drain(..share).map(|row| row.1).collect();
                        self.enter(of.start, rows);
                        return None;
                    }
                    turn => turn == RowTurn::Over,
                }
            }
        };
        if !over || self.moment == Moment::Time {
            self.busy = self.moment != Moment::Time;
            return None;
        }
        if by_epochs {
            let rows = std::mem::take(&mut self.rows).into_iter().map(|row| row.1).collect();
            let epoch = if self.moment == Moment::End { self.epoch + 1 } else { self.next_epoch };
            self.enter(epoch as i64, rows);
            self.passes = true;
            return None;
        }
        Some(self.pass())
    }

    /// Begins a call, which sums up all states.
    fn enter(&mut self, of: CallId, rows: Vec<i64>) {
        self.consensus.enter(of, self.epoch);
        self.state += rows.len() as i64;
        self.consensus.propose(vec![self.state], &ReduceOp::Sum).unwrap();
        self.call = Some(CallResult { of, rows, total: None });
    }

    /// Leaves a call if all are in it.
    fn leave(&mut self) -> Option<Packet> {
        let total = self.consensus.outcome(self.moment, true).unwrap()?[0];
        let mut result = self.call.take()?;
        result.total = (self.place == 0).then_some(total);
        self.busy = true;
        Some(Packet::Result(result))
    }

    /// Passes a barrier, or comes to the end.
    fn pass(&mut self) -> Packet {
        self.busy = false;
        if self.moment == Moment::End {
            self.over = true;
            return Packet::End;
        }
        (self.moment, self.epoch) = (Moment::Time, self.next_epoch);
        self.saved = Some((self.epoch, self.state()));
        Packet::Barrier(self.epoch)
    }
}

/// What a checkpoint has.
#[derive(Clone)]
struct SavedJob {
    epoch: u64,
    /// The next row of each split.
    places: Vec<usize>,
    copies: Vec<CopyState>,
    /// What the sink has made appear.
    results: Vec<CallResult>,
}

impl SavedJob {
    /// What so many copies begin with.
    fn states(&self, calls: &Calls, copies: usize) -> Vec<CopyState> {
        let first = match calls {
            Calls::Rows(_) => 0,
            Calls::Windows(_) | Calls::Epochs => Micros::MIN,
        };
        let called = self.copies.first().map_or(first, |copy| copy.called);
        assert!(self.copies.iter().all(|copy| copy.called == called), "copies have made different calls");
        let timer = self.copies.iter().filter_map(|copy| copy.timer).min();
        let mut states = vec![CopyState { called, timer, ..CopyState::default() }; copies];
        for row in self.copies.iter().flat_map(|copy| &copy.rows) {
            states[copy_of(*row, copies)].rows.push(*row);
        }
        states[0].state = self.copies.iter().map(|copy| copy.state).sum();
        states
    }
}

fn copy_of((_, number): Row, copies: usize) -> usize {
    (number as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) as usize % copies
}

/// The job's way. Rates are of one step in so many; 0 is never.
struct Story {
    calls: Calls,
    splits: Vec<Vec<Row>>,
    crash: usize,
    barrier: usize,
}

impl Story {
    fn new(random: &mut SplitMix64) -> Self {
        let calls = match random.below(5) {
            0 => Calls::Epochs,
            1 => Calls::Rows(1 + random.below(9) as i64),
            2 => Calls::Windows(WindowAssigner::sliding(30, 10)),
            _ => Calls::Windows(WindowAssigner::sliding(10, 10)),
        };
        let splits = (0..1 + random.below(4) as i64).map(|split| {
            let mut time = random.below(30) as i64;
            let rows = 0..random.one_of(&[0, 5, 30, 80]) as i64;
            let row = |n| {
                time += random.one_of(&[0, 1, 3, 8, 40]) as i64;
                (time, split * SPLIT_ROWS_MAX + n)
            };
            rows.map(row).collect()
        });
        let splits = splits.collect();
        let (crash, barrier) = (random.one_of(&[0, 30, 200, 1000]), random.one_of(&[10, 50, 200]));
        Story { calls, splits, crash, barrier }
    }

    /// What is wrong with what the sink has in the end.
    fn check(&self, results: &[CallResult], seed: u64) {
        let all: Vec<Row> = self.splits.iter().flatten().copied().collect();
        let mut found: BTreeMap<CallId, Vec<i64>> = BTreeMap::new();
        for result in results {
            found.entry(result.of).or_default().extend(&result.rows);
        }
        found.values_mut().for_each(|rows| rows.sort_unstable());
        match &self.calls {
            Calls::Windows(windows) => {
                let mut expected: BTreeMap<CallId, Vec<i64>> = BTreeMap::new();
                for (time, number) in all {
                    for start in windows.windows(windows.pane(time).0) {
                        expected.entry(windows.end(start)).or_default().push(number);
                    }
                }
                expected.values_mut().for_each(|rows| rows.sort_unstable());
                let mut ends: VecDeque<Micros> = expected.keys().copied().collect();
                while let (Some(end), Some(&next)) = (ends.pop_front(), ends.front()) {
                    let timer = timer_in(end, 0).map_or(next, |timer| windows.first_end_after(timer.max(end)));
                    if timer < next {
                        expected.insert(timer, Vec::new());
                        ends.push_front(timer);
                    }
                }
                assert_eq!(found, expected, "seed {seed}: rows of each window");
            }
            Calls::Rows(size) => {
                let full = all.len() as i64 / size;
                assert_eq!(found.keys().copied().collect::<Vec<_>>(), (0..full).map(|n| n * size).collect::<Vec<_>>());
                assert!(found.values().all(|rows| rows.len() as i64 == *size), "seed {seed}: {found:?}");
            }
            Calls::Epochs => {}
        }
        let (mut rows, mut sum): (Vec<i64>, i64) = (found.values().flatten().copied().collect(), 0);
        let totals: Vec<(CallId, i64)> = results.iter().filter_map(|result| Some((result.of, result.total?))).collect();
        let expected: Vec<(CallId, i64)> = found
            .iter()
            .map(|(of, rows)| {
                sum += rows.len() as i64;
                (*of, sum)
            })
            .collect();
        assert_eq!(totals, expected, "seed {seed}: states at each call");
        if !matches!(self.calls, Calls::Windows(_)) {
            rows.sort_unstable();
            assert!(rows.is_sorted_by(|one, next| one < next), "seed {seed}: a row is in two calls");
            let all: usize = self.splits.iter().map(Vec::len).sum();
            assert!(matches!(self.calls, Calls::Rows(_)) || rows.len() == all, "seed {seed}: a row is in no call");
        }
    }
}

struct Run<'a> {
    story: &'a Story,
    sources: Vec<CopySource>,
    copies: Vec<SimulatedBsp>,
    places: Vec<usize>,
    sink: SimulatedInput,
    results: Vec<CallResult>,
    /// The barrier that is under way, and what the sink had when it came.
    epoch: u64,
    under_way: bool,
    sink_at: Option<usize>,
    durable: SavedJob,
}

impl<'a> Run<'a> {
    fn new(story: &'a Story, from: &SavedJob, (sources, copies): (usize, usize)) -> Self {
        let all = Conversation { copies: vec![(0, true, 0); copies], ..Conversation::default() };
        let all = Rc::new(RefCell::new(all));
        let states = from.states(&story.calls, copies).into_iter().enumerate();
        let copy = |(place, state)| {
            let consensus = SimulatedConsensus { all: Rc::clone(&all), place };
            let mut copy = SimulatedBsp::new(&story.calls, consensus, copies, sources, state);
            copy.epoch = from.epoch;
            copy
        };
        let source = |source: usize| {
            let splits = (source..story.splits.len()).step_by(sources).collect();
            CopySource { splits, time: Micros::MIN, ended: false, barrier: from.epoch, saved: None }
        };
        Run {
            story,
            sources: (0..sources).map(source).collect(),
            copies: states.map(copy).collect(),
            places: from.places.clone(),
            sink: SimulatedInput::new(copies),
            results: from.results.clone(),
            epoch: from.epoch,
            under_way: false,
            sink_at: None,
            durable: from.clone(),
        }
    }

    fn step(&mut self, random: &mut SplitMix64) {
        if random.once_in(self.story.barrier) && (!self.under_way || random.once_in(4)) {
            // One that is under way is given up.
            (self.epoch, self.under_way, self.sink_at) = (self.epoch + 1, true, None);
        }
        let actor = random.below(self.sources.len() + self.copies.len() + 1);
        match actor.checked_sub(self.sources.len()) {
            None => self.step_source(actor, random),
            Some(copy) if copy < self.copies.len() => {
                if !self.copies[copy].over && self.sink.lanes[copy].len() < LANE_MAX {
                    let packet = self.copies[copy].step(random);
                    self.sink.lanes[copy].extend(packet);
                }
            }
            Some(_) => self.step_sink(random),
        }
        if self.under_way && self.sink_at.is_some() {
            self.try_finish();
        }
    }

    fn step_source(&mut self, at: usize, random: &mut SplitMix64) {
        let source = &mut self.sources[at];
        if source.ended || self.copies.iter().any(|copy| copy.input.lanes[at].len() >= LANE_MAX) {
            return;
        }
        if self.under_way && source.barrier < self.epoch && random.once_in(3) {
            source.barrier = self.epoch;
            source.saved = Some((self.epoch, source.splits.iter().map(|&split| self.places[split]).collect()));
            return self.send_all(at, &Packet::Barrier(self.epoch));
        }
        let left = |split: &usize| self.places[*split] < self.story.splits[*split].len();
        let left: Vec<usize> = source.splits.iter().copied().filter(left).collect();
        let Some(&split) = left.get(random.below(left.len().max(1))) else {
            source.ended = true;
            return self.send_all(at, &Packet::End);
        };
        let row = self.story.splits[split][self.places[split]];
        let copies = self.copies.len();
        self.copies[copy_of(row, copies)].input.lanes[at].push_back(Packet::Row(row));
        self.places[split] += 1;
        // Of a split that has been read out nothing comes any more.
        let last =
            |&split: &usize| self.places[split].checked_sub(1).map_or(Micros::MIN, |n| self.story.splits[split][n].0);
        let time = left.iter().map(last).min().unwrap_or(Micros::MIN);
        if time > self.sources[at].time {
            self.sources[at].time = time;
            self.send_all(at, &Packet::Time(time));
        }
    }

    fn send_all(&mut self, source: usize, packet: &Packet) {
        self.copies.iter_mut().for_each(|copy| copy.input.lanes[source].push_back(packet.clone()));
    }

    fn step_sink(&mut self, random: &mut SplitMix64) {
        if let Some(Packet::Result(result)) = self.sink.take(random) {
            self.results.push(result);
        }
        while let Some(mark) = self.sink.marks.next_mark() {
            if let Mark::Barrier(barrier) = mark
                && barrier.epoch == self.epoch
            {
                self.sink_at = Some(self.results.len());
            }
        }
    }

    /// Whether all have saved the epoch, or had ended: then it is durable, and what the sink had then appears.
    fn try_finish(&mut self) {
        let epoch = self.epoch;
        let is_saved = |saved: Option<u64>, ended: bool| saved == Some(epoch) || ended;
        let sources =
            self.sources.iter().all(|source| is_saved(source.saved.as_ref().map(|saved| saved.0), source.ended));
        let copies = self.copies.iter().all(|copy| is_saved(copy.saved.as_ref().map(|saved| saved.0), copy.over));
        if !sources || !copies {
            return;
        }
        let mut places = self.places.clone();
        for source in &self.sources {
            if let Some((_, saved)) = source.saved.as_ref().filter(|(of, _)| *of == epoch) {
                source.splits.iter().zip(saved).for_each(|(&split, &place)| places[split] = place);
            }
        }
        let state = |copy: &SimulatedBsp| match &copy.saved {
            Some((of, state)) if *of == epoch => state.clone(),
            _ => copy.state(),
        };
        let copies = self.copies.iter().map(state).collect();
        let results = self.results[..self.sink_at.expect("the sink has the barrier")].to_vec();
        self.durable = SavedJob { epoch, places, copies, results };
        self.under_way = false;
    }

    fn is_over(&self) -> bool {
        self.copies.iter().all(|copy| copy.over) && self.sink.is_over()
    }
}

/// What has come of stories.
#[derive(Debug, Default)]
struct Told {
    runs: usize,
    /// Crashes while a copy was in a call.
    in_call: usize,
    /// Checkpoints that a run began from, which had rows that waited.
    waiting: usize,
}

impl Told {
    /// Tells the story of a seed, which may be cut off at one step.
    fn add(&mut self, seed: u64, crash_at: Option<usize>) {
        let mut random = SplitMix64::scattered(seed);
        let mut story = Story::new(&mut random);
        if crash_at.is_some() {
            story.crash = 0;
        }
        let (copies, change) = (1 + random.below(4), random.once_in(2));
        let mut saved =
            SavedJob { epoch: 0, places: vec![0; story.splits.len()], copies: Vec::new(), results: Vec::new() };
        let mut steps = 0;
        loop {
            self.runs += 1;
            self.waiting += usize::from(saved.copies.iter().any(|copy| !copy.rows.is_empty()));
            let copies = if change { 1 + random.below(4) } else { copies };
            let mut run = Run::new(&story, &saved, (1 + random.below(3), copies));
            while !run.is_over() {
                steps += 1;
                assert!(steps < STEPS_MAX, "seed {seed}: the job does not end");
                run.step(&mut random);
                if crash_at == Some(steps) || steps < FAULTS_END && random.once_in(story.crash) {
                    break;
                }
            }
            if run.is_over() {
                return story.check(&run.results, seed);
            }
            self.in_call += usize::from(run.copies.iter().any(|copy| copy.call.is_some()));
            saved = run.durable;
        }
    }
}

/// A call that copies enter in different epochs or for different windows, a row that is lost or comes twice, a state
/// that is of other calls, or copies that wait for each other without end.
#[test]
fn calls_go_on_across_failures() {
    let seeds = match std::env::var("SIMULATION_SEED") {
        Ok(seed) => seed.parse().map(|seed: u64| seed..seed + 1).expect("SIMULATION_SEED is a number"),
        Err(_) => 0..share_of_seeds(SEEDS),
    };
    let mut told = Told::default();
    for seed in seeds.clone() {
        let story = std::panic::AssertUnwindSafe(|| told.add(seed, None));
        std::panic::catch_unwind(story).unwrap_or_else(|_| panic!("the story of SIMULATION_SEED={seed} went wrong"));
    }
    println!("{told:?}");
    let enough = told.in_call > told.runs / 20 && told.waiting > told.runs / 20;
    assert!(seeds.count() == 1 || enough, "{told:?}: too little of it");
}

/// The same story, cut off at each of its first steps.
#[test]
fn calls_go_on_from_any_step() {
    for seed in 0..10 {
        (1..200).for_each(|step| Told::default().add(seed, Some(step)));
    }
}
