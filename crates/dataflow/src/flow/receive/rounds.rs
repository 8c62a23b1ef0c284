//! Rounds that streams bring: of each stream what comes between two marks is of one round, and a round is complete when
//! every stream has brought its mark.

use std::collections::{BTreeMap, VecDeque};

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use tidemill_batch::local::RoundEnd;

use crate::checkpoint::{InFlightRouting, open_rounds, share_of};
use crate::error::TaskError;

/// The input stops reading a stream that has this many complete rounds waiting.
const AHEAD_ROUNDS_MAX: usize = 64;

#[derive(Default)]
struct RoundStream {
    /// Batches of the round that is not complete yet.
    open: Vec<RecordBatch>,
    complete: VecDeque<Vec<RecordBatch>>,
    /// Whether this source copy sends here at all.
    exists: bool,
    ended: bool,
    /// Nothing comes of it for now, and rounds go on without it; so many have, of what it is still to bring.
    idle: bool,
    behind: u64,
}

impl RoundStream {
    fn is_awaited(&self) -> bool {
        !self.ended && !self.idle && self.complete.is_empty()
    }
}

/// See the module.
pub(super) struct RoundCollector {
    end: RoundEnd,
    streams: Vec<RoundStream>,
    /// Rounds that have been taken.
    taken: u64,
    /// A round is what comes between two barriers, and no mark says where it ends.
    by_epoch: bool,
}

/// What a checkpoint has of a stream: how many batches its complete rounds have, and the one that is not complete.
#[derive(Serialize, Deserialize)]
struct StreamHeader {
    complete: Vec<usize>,
    open: usize,
    #[serde(default)]
    behind: u64,
}

/// What a checkpoint has of a port, beside rows.
#[derive(Serialize, Deserialize)]
struct PortHeader {
    taken: u64,
    /// `None` of a source copy that does not send here.
    streams: Vec<Option<StreamHeader>>,
}

/// What a port had kept when the job was cut off.
pub(crate) struct RoundReplay {
    /// By the copy then.
    pub parts: BTreeMap<u32, Bytes>,
    pub copy: u32,
    /// Where there are other copies now: who gets which row.
    pub dealing: Option<InFlightRouting>,
}

/// Stream `stream` ended after `rounds` messages, and others have sent more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ShortStream {
    pub stream: usize,
    pub rounds: u64,
}

impl RoundCollector {
    pub(super) fn new(end: RoundEnd, by_epoch: bool) -> Self {
        RoundCollector { end, streams: Vec::new(), taken: 0, by_epoch }
    }

    /// A barrier is about to pass, or all has come: where a round is what came since the last one, it is complete.
    /// Returns whether there is one.
    pub(super) fn end_epoch(&mut self, is_last: bool) -> bool {
        if !self.by_epoch || is_last && self.streams.iter().all(|stream| stream.open.is_empty()) {
            return false;
        }
        let exist = self.streams.iter_mut().filter(|stream| stream.exists);
        exist.for_each(|stream| stream.complete.push_back(std::mem::take(&mut stream.open)));
        true
    }

    /// One more stream; one that does not exist brings nothing, and no round waits for it.
    pub(super) fn add(&mut self, exists: bool) {
        self.streams.push(RoundStream { exists, ended: !exists, ..RoundStream::default() });
    }

    pub(super) fn push(&mut self, stream: u32, batch: RecordBatch) {
        self.wake(stream);
        self.streams[stream as usize].open.push(batch);
    }

    /// A stream is no longer idle: rounds wait for it again.
    pub(super) fn wake(&mut self, stream: u32) {
        self.streams[stream as usize].idle = false;
    }

    /// The round of a stream is over. Returns how many rows of it are left out: the round had gone on without them.
    pub(super) fn mark(&mut self, stream: u32) -> usize {
        let of = &mut self.streams[stream as usize];
        of.idle = false;
        let round = std::mem::take(&mut of.open);
        if of.behind > 0 {
            of.behind -= 1;
            return round.iter().map(RecordBatch::num_rows).sum();
        }
        of.complete.push_back(round);
        0
    }

    /// Nothing comes of a stream for now. Returns whether that is so of all that have not ended.
    pub(super) fn set_idle(&mut self, stream: u32) -> bool {
        self.streams[stream as usize].idle = true;
        self.streams.iter().all(|stream| stream.ended || stream.idle)
    }

    pub(super) fn end_stream(&mut self, stream: u32) {
        self.streams[stream as usize].ended = true;
    }

    /// Whether a stream is far ahead.
    pub(super) fn is_ahead(&self, stream: usize) -> bool {
        self.streams[stream].complete.len() >= AHEAD_ROUNDS_MAX
    }

    /// What it keeps, when all rounds that are complete have been taken.
    ///
    /// # Errors
    /// When a column cannot be encoded.
    pub(super) fn save(&self) -> Result<Bytes, TaskError> {
        let header = |stream: &RoundStream| StreamHeader {
            complete: stream.complete.iter().map(Vec::len).collect(),
            open: stream.open.len(),
            behind: stream.behind,
        };
        let streams = self.streams.iter().map(|stream| stream.exists.then(|| header(stream))).collect();
        let rows = self.streams.iter().flat_map(|stream| stream.complete.iter().chain([&stream.open])).flatten();
        open_rounds::pack(&PortHeader { taken: self.taken, streams }, &rows.cloned().collect::<Vec<_>>())
    }

    /// Before anything has come: goes on from what the copies of the task kept, of which this one may have to take a
    /// share.
    ///
    /// # Errors
    /// When other copies send now than then, and rounds were open; when something is damaged, or of another schema.
    pub(super) fn restore(&mut self, replay: RoundReplay, schema: &SchemaRef) -> Result<(), TaskError> {
        let RoundReplay { parts, copy, mut dealing } = replay;
        let is_dealt = matches!(dealing, Some(InFlightRouting::Assigned(_)));
        let unpack = |(then, bytes)| Ok((then, open_rounds::unpack::<PortHeader>(schema, bytes)?));
        let parts: Vec<(u32, (PortHeader, Vec<RecordBatch>))> =
            parts.into_iter().map(unpack).collect::<Result<_, TaskError>>()?;
        // Each copy has put rounds together of streams of its own: nothing may be open, and they not be equally far.
        let own_streams = |header: &PortHeader| header.streams.iter().flatten().count() > 1;
        let apart = parts.iter().any(|(_, (header, _))| own_streams(header))
            && parts.windows(2).any(|pair| pair[0].1.0.taken != pair[1].1.0.taken);
        let (mut found, mut lost) = (false, false);
        let is_needed = dealing.is_some();
        for (_, (header, rows)) in parts.into_iter().filter(|(then, _)| is_needed || *then == copy) {
            let same = header.streams.iter().map(Option::is_some).eq(self.streams.iter().map(|stream| stream.exists));
            // Where nothing is dealt each that gets the same streams has kept the same.
            if !same || found && !is_dealt {
                lost |= !same && (apart || !rows.is_empty());
                continue;
            }
            (self.taken, found) = (header.taken, true);
            let mut rows = rows.into_iter();
            for (stream, header) in self.streams.iter_mut().zip(header.streams) {
                let Some(StreamHeader { complete, open, behind }) = header else { continue };
                stream.behind = behind;
                let mut next = |count: usize| -> Result<Vec<RecordBatch>, TaskError> {
                    rows.by_ref()
                        .take(count)
                        .filter_map(|rows| share_of(&mut dealing, copy, rows).transpose())
                        .collect()
                };
                for (round, count) in complete.into_iter().enumerate() {
                    let share = next(count)?;
                    match stream.complete.get_mut(round) {
                        Some(known) => known.extend(share),
                        None => stream.complete.push_back(share),
                    }
                }
                stream.open.extend(next(open)?);
            }
        }
        match lost {
            true => {
                Err("rounds were open at the checkpoint, and other copies send now than then: let the task that sends \
                     have as many copies as it had (parallelism=); if it sends to a keyed reduction, or to any \
                     reduction by rounds of time, run the job on as many workers, on as many hosts; a reduction \
                     without keys of messages as rounds goes on with any"
                    .into())
            }
            false => Ok(()),
        }
    }

    /// The next round, if it is complete: its batches in the order of the streams.
    ///
    /// # Errors
    /// A stream that has ended too early, if that is an error.
    pub(super) fn take(&mut self) -> Result<Option<Vec<RecordBatch>>, ShortStream> {
        let has = |stream: &RoundStream| !stream.complete.is_empty();
        if !self.streams.iter().any(has) {
            return Ok(None);
        }
        let short = |stream: &RoundStream| stream.exists && stream.ended && !has(stream);
        if self.end == RoundEnd::Strict
            && let Some(stream) = self.streams.iter().position(short)
        {
            return Err(ShortStream { stream, rounds: self.taken });
        }
        if self.streams.iter().any(RoundStream::is_awaited) {
            return Ok(None);
        }
        self.taken += 1;
        let missing = self.streams.iter_mut().filter(|stream| stream.idle && !stream.ended && !has(stream));
        missing.for_each(|stream| stream.behind += 1);
        Ok(Some(self.streams.iter_mut().filter_map(|stream| stream.complete.pop_front()).flatten().collect()))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::{ArrayRef, AsArray, Int64Array};
    use arrow::datatypes::Int64Type;

    use tidemill_checkpoint::marks::MarkMerger;
    use tidemill_checkpoint::{Barrier, BarrierControl, Mark};
    use tidemill_sim::SplitMix64;

    use super::*;
    use crate::partitioner::{RowAssigner, RowAssignment};

    fn batch(number: i64) -> RecordBatch {
        let n: ArrayRef = Arc::new(Int64Array::from(vec![number]));
        RecordBatch::try_from_iter([("n", n)]).unwrap()
    }

    fn numbers(round: &[RecordBatch]) -> Vec<i64> {
        round.iter().flat_map(|batch| batch.column(0).as_primitive::<Int64Type>().values().to_vec()).collect()
    }

    /// Rows of different rounds that mix, or a round that comes before all its streams have ended it, show up here.
    #[test]
    fn a_round_has_what_each_stream_brought_between_its_marks() {
        let mut rounds = RoundCollector::new(RoundEnd::Strict, false);
        [true, false, true].into_iter().for_each(|exists| rounds.add(exists));
        for number in [20, 21] {
            rounds.push(2, batch(number));
        }
        rounds.mark(2);
        rounds.push(2, batch(22));
        assert_eq!(rounds.take(), Ok(None));
        rounds.push(0, batch(1));
        rounds.mark(0);
        assert_eq!(numbers(&rounds.take().unwrap().unwrap()), [1, 20, 21]);
        assert_eq!(rounds.take(), Ok(None));
        rounds.mark(0);
        rounds.mark(2);
        assert_eq!(numbers(&rounds.take().unwrap().unwrap()), [22], "a message without rows is one, too");
    }

    #[test]
    fn a_stream_that_ends_early_is_named_or_left_out() {
        for end in [RoundEnd::Strict, RoundEnd::Partial] {
            let mut rounds = RoundCollector::new(end, false);
            [true, true].into_iter().for_each(|exists| rounds.add(exists));
            for (stream, count) in [(0, 1), (1, 2)] {
                for number in 0..count {
                    rounds.push(stream, batch(number));
                    rounds.mark(stream);
                }
            }
            assert_eq!(numbers(&rounds.take().unwrap().unwrap()), [0, 0]);
            assert_eq!(rounds.take(), Ok(None), "it may still send");
            rounds.end_stream(0);
            match end {
                RoundEnd::Strict => assert_eq!(rounds.take(), Err(ShortStream { stream: 0, rounds: 1 })),
                RoundEnd::Partial => assert_eq!(numbers(&rounds.take().unwrap().unwrap()), [1]),
            }
        }
    }

    /// Who is idle and comes back brings rounds that have gone already: they are counted, and its next one is the next.
    #[test]
    fn rounds_go_on_without_a_stream_that_is_idle() {
        let mut rounds = RoundCollector::new(RoundEnd::Partial, false);
        [true, true].into_iter().for_each(|exists| rounds.add(exists));
        let bring = |rounds: &mut RoundCollector, stream: u32, number: i64| {
            rounds.push(stream, batch(number));
            rounds.mark(stream)
        };
        for number in 0..2 {
            bring(&mut rounds, 0, number);
        }
        assert_eq!(rounds.take(), Ok(None));
        assert!(!rounds.set_idle(1), "the other one is not");
        assert_eq!(numbers(&rounds.take().unwrap().unwrap()), [0]);
        assert_eq!(numbers(&rounds.take().unwrap().unwrap()), [1]);
        bring(&mut rounds, 0, 2);
        assert_eq!([10, 11].map(|number| bring(&mut rounds, 1, number)), [1, 1]);
        assert_eq!(rounds.take(), Ok(None), "it is awaited again");
        assert_eq!(bring(&mut rounds, 1, 12), 0);
        assert_eq!(numbers(&rounds.take().unwrap().unwrap()), [2, 12]);
        // It brings rows later, and says so before another one ends the round.
        rounds.set_idle(1);
        rounds.wake(1);
        bring(&mut rounds, 0, 3);
        assert_eq!(rounds.take(), Ok(None), "it is awaited again");
        bring(&mut rounds, 1, 13);
        assert_eq!(numbers(&rounds.take().unwrap().unwrap()), [3, 13]);
    }

    impl RoundCollector {
        fn has_rounds(&self) -> bool {
            self.streams.iter().any(|stream| !stream.complete.is_empty())
        }
    }

    /// By remainder.
    struct ByRemainder(i64);

    impl RowAssigner for ByRemainder {
        fn assign(&mut self, batch: &RecordBatch, targets: &mut Vec<u32>) -> Result<RowAssignment, TaskError> {
            targets.extend(batch.column(0).as_primitive::<Int64Type>().values().iter().map(|n| (n % self.0) as u32));
            Ok(RowAssignment::ByRow)
        }
    }

    /// Open rounds go on where they were, or are dealt to other copies, each row once; or the job hears that they
    /// cannot.
    #[test]
    fn open_rounds_go_on_in_other_copies() {
        let schema = batch(0).schema();
        let collector = |streams: usize| {
            let mut rounds = RoundCollector::new(RoundEnd::Strict, false);
            (0..streams).for_each(|_| rounds.add(true));
            rounds
        };
        // Of two copies: stream 1 has brought two rounds and a part of the next.
        let saved = |copy: i64| {
            let mut rounds = collector(2);
            for round in 0..2 {
                [10 * round, 10 * round + 2].iter().for_each(|n| rounds.push(1, batch(n + copy)));
                rounds.mark(1);
            }
            rounds.push(1, batch(20 + copy));
            rounds.save().unwrap()
        };
        let parts: BTreeMap<u32, Bytes> = [(0, saved(0)), (1, saved(1))].into();
        let take = |rounds: &mut RoundCollector| {
            let mut next = || {
                rounds.push(0, batch(99));
                rounds.mark(0);
                numbers(&rounds.take().unwrap().unwrap())
            };
            let (first, second) = (next(), next());
            rounds.mark(1);
            [first, second, {
                rounds.mark(0);
                numbers(&rounds.take().unwrap().unwrap())
            }]
        };
        let mut same = collector(2);
        same.restore(RoundReplay { parts: parts.clone(), copy: 1, dealing: None }, &schema).unwrap();
        assert_eq!(take(&mut same), [vec![99, 1, 3], vec![99, 11, 13], vec![21]]);

        let mut found = [Vec::new(), Vec::new(), Vec::new()];
        for copy in 0..3 {
            let dealing = Some(InFlightRouting::Assigned(Box::new(ByRemainder(3))));
            let mut rounds = collector(2);
            rounds.restore(RoundReplay { parts: parts.clone(), copy, dealing }, &schema).unwrap();
            for (all, rows) in found.iter_mut().zip(take(&mut rounds)) {
                assert!(rows.iter().all(|n| *n == 99 || n % 3 == i64::from(copy)));
                all.extend(rows.into_iter().filter(|n| *n != 99));
            }
        }
        found.iter_mut().for_each(|rows| rows.sort_unstable());
        assert_eq!(found, [vec![0, 1, 2, 3], vec![10, 11, 12, 13], vec![20, 21]]);

        let other = collector(3).restore(RoundReplay { parts, copy: 0, dealing: None }, &schema);
        assert!(other.unwrap_err().to_string().contains("other copies send now than then"));
    }

    /// What streams bring to a copy, and how it puts it together: as an input port does.
    struct PortModel {
        rounds: RoundCollector,
        marks: MarkMerger,
        /// By stream: numbers; `None` ends a round, or, of the last one, the stream. A barrier is negative.
        lanes: Vec<VecDeque<Option<i64>>>,
        ended: Vec<bool>,
        saved: Option<(Bytes, u64)>,
    }

    const BARRIER: i64 = -1;
    const END: i64 = -2;

    impl PortModel {
        fn new(streams: usize) -> Self {
            let (mut rounds, mut marks) = (RoundCollector::new(RoundEnd::Strict, false), MarkMerger::default());
            for stream in 0..streams {
                rounds.add(true);
                marks.add(stream, false);
            }
            PortModel { rounds, marks, lanes: vec![VecDeque::new(); streams], ended: vec![false; streams], saved: None }
        }

        /// Takes something; returns a round that is complete by that, with its number.
        fn step(&mut self, random: &mut SplitMix64) -> Option<(u64, Vec<i64>)> {
            let number = self.rounds.taken;
            if let Some(round) = self.rounds.take().unwrap() {
                return Some((number, numbers(&round)));
            }
            if let Some(Mark::Barrier(_)) = self.marks.next_mark() {
                self.saved = Some((self.rounds.save().unwrap(), self.rounds.taken));
            }
            let aligning = (0..self.lanes.len()).any(|stream| self.marks.holds(stream));
            let stream = random.below(self.lanes.len());
            if self.marks.holds(stream) || !aligning && self.rounds.is_ahead(stream) {
                return None;
            }
            match self.lanes[stream].pop_front()? {
                Some(BARRIER) => {
                    let barrier = Barrier { epoch: 1, control: BarrierControl::Checkpoint };
                    self.marks.mark(stream, Mark::Barrier(barrier));
                }
                Some(END) => {
                    self.ended[stream] = true;
                    self.rounds.end_stream(stream as u32);
                    self.marks.end_stream(stream);
                }
                Some(n) => self.rounds.push(stream as u32, batch(n)),
                None => _ = self.rounds.mark(stream as u32),
            }
            None
        }
    }

    /// A job that is cut off between any two steps, and goes on with other receiving copies: a round that then has a
    /// row twice, or of another round, or lacks one.
    #[test]
    fn rounds_of_streams_go_on_from_any_step() {
        const STREAMS: usize = 3;
        for seed in 0..400 {
            let mut random = SplitMix64::new(seed);
            let rounds = random.one_of(&[0, 3, 100]) as u64;
            // Of the n-th message of a stream; its number says which it is of.
            let message = |stream: usize, n: u64| {
                (0..(n as usize + stream) % 3).map(move |row| ((n as usize * STREAMS + stream) * 3 + row) as i64)
            };
            let (mut places, mut parts, mut taken, mut done) = (vec![0; STREAMS], BTreeMap::new(), 0, BTreeMap::new());
            let (mut then, mut runs) = (0, 0);
            loop {
                runs += 1;
                let copies = 1 + random.below(3);
                let mut ports: Vec<PortModel> = (0..copies).map(|_| PortModel::new(STREAMS)).collect();
                for (copy, port) in ports.iter_mut().enumerate() {
                    let assign = || InFlightRouting::Assigned(Box::new(ByRemainder(copies as i64)));
                    let (parts, dealing) = (BTreeMap::clone(&parts), (then != copies).then(assign));
                    let replay = RoundReplay { parts, copy: copy as u32, dealing };
                    port.rounds.restore(replay, &batch(0).schema()).unwrap();
                    assert_eq!(port.rounds.taken, taken);
                }
                let (mut sent, mut found) = (places.clone(), BTreeMap::clone(&done));
                // When each stream sends the barrier, and when the job is cut off.
                let barrier: Vec<u64> = sent.iter().map(|&from| from + random.below(30) as u64).collect();
                let cut = if runs < 6 { random.below(3000) } else { usize::MAX };
                let mut ended = [false; STREAMS];
                let mut steps = 0;
                while steps < cut && ports.iter().any(|port| port.ended.contains(&false) || port.rounds.has_rounds()) {
                    steps += 1;
                    assert!(steps < 200_000, "seed {seed}: it does not end");
                    let stream = random.below(STREAMS);
                    if !ended[stream] && ports.iter().all(|port| port.lanes[stream].len() < 8) {
                        if sent[stream] == barrier[stream] {
                            ports.iter_mut().for_each(|port| port.lanes[stream].push_back(Some(BARRIER)));
                        }
                        ended[stream] = sent[stream] == rounds;
                        for n in message(stream, sent[stream]).filter(|_| !ended[stream]) {
                            ports[n as usize % copies].lanes[stream].push_back(Some(n));
                        }
                        let last = ended[stream].then_some(END);
                        ports.iter_mut().for_each(|port| port.lanes[stream].push_back(last));
                        sent[stream] += u64::from(!ended[stream]);
                    }
                    let port = random.below(copies);
                    if let Some((round, rows)) = ports[port].step(&mut random) {
                        found.entry(round).or_insert_with(Vec::new).extend(rows);
                    }
                }
                if steps < cut {
                    let whole = |round: u64| {
                        let mut rows: Vec<i64> = (0..STREAMS).flat_map(|stream| message(stream, round)).collect();
                        rows.sort_unstable();
                        (round, rows)
                    };
                    found.values_mut().for_each(|rows: &mut Vec<i64>| rows.sort_unstable());
                    assert_eq!(found, (0..rounds).map(whole).collect(), "seed {seed}");
                    break;
                }
                if ports.iter().all(|port| port.saved.is_some()) {
                    let saved = ports.into_iter().map(|port| port.saved.expect("just seen"));
                    let saved: Vec<(Bytes, u64)> = saved.collect();
                    taken = saved[0].1;
                    parts = (0..).zip(saved).map(|(copy, (bytes, _))| (copy, bytes)).collect();
                    places = barrier.iter().map(|&at| at.min(rounds)).collect();
                    found.retain(|&round, _| round < taken);
                    (done, then) = (found, copies);
                }
            }
        }
    }

    #[test]
    fn a_stream_far_ahead_is_told() {
        let mut rounds = RoundCollector::new(RoundEnd::Strict, false);
        [true, true].into_iter().for_each(|exists| rounds.add(exists));
        let mut is_ahead_with_one_more = || {
            rounds.mark(1);
            rounds.is_ahead(1)
        };
        assert!((1..AHEAD_ROUNDS_MAX).all(|_| !is_ahead_with_one_more()) && is_ahead_with_one_more());
        assert!(rounds.is_ahead(1) && !rounds.is_ahead(0));
        rounds.mark(0);
        rounds.take().unwrap().unwrap();
        assert!(!rounds.is_ahead(1));
    }
}
