//! How a source copy hands over splits that move (see [`crate::rebalance`]).
//!
//! The old reader gives up a split right behind the barrier, at the position that its snapshot has, and the new one
//! takes it over behind the same barrier in its own output. Later tasks align the barrier, so the rows of a split stay
//! in order. The old reader asks first whether the new one is still there: it may have ended when the barrier was
//! already on its way. Then the split stays.
//!
//! A new reader may have announced a later time than that of the split. So at such a barrier time starts anew
//! ([`Barrier::restarts_time`]): whoever combines the time of several streams waits until each has announced it again,
//! and the new reader announces that of the split.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Instant;

use arrow::array::{ArrayRef, AsArray, BooleanArray, Int64Array, LargeBinaryArray, RecordBatch, StringArray};
use arrow::datatypes::Int64Type;
use bytes::Bytes;
use tidemill_checkpoint::{Barrier, EventTime, Mark, MoveReport, SplitMoves};

use super::clock::SourceClock;
use super::source::Source;
use crate::error::TaskError;
use crate::flow::{SplitHandover, StreamElement};

/// A split on its way.
struct HandedSplit {
    name: String,
    position: Bytes,
    time: EventTime,
    /// Whether it holds time back.
    is_active: bool,
}

/// What a copy has taken over.
pub(super) struct TakenSplits {
    pub moved: MoveReport,
    pub count: usize,
    /// The earliest time of those that hold time back.
    pub first: Option<EventTime>,
}

/// What a copy still waits for, by other copy.
struct Awaited {
    epoch: u64,
    /// Whether they are there to take splits over.
    ready: BTreeSet<u32>,
    /// Those that are.
    takers: BTreeSet<u32>,
    /// Until they have handed over.
    givers: BTreeSet<u32>,
    taken: Vec<HandedSplit>,
}

impl SplitHandover {
    /// Whether the copy loses or gains splits.
    pub(super) fn takes_part(&self, moves: &SplitMoves) -> bool {
        moves.iter().any(|(from, splits)| *from == self.copy || splits.values().any(|to| *to == self.copy))
    }

    /// Hands over what the copy loses at a barrier, and takes over what it gains.
    pub(super) async fn run(
        &mut self,
        source: &mut impl Source,
        clock: &mut Option<SourceClock>,
        (barrier, moves): (&Barrier, &SplitMoves),
    ) -> Result<TakenSplits, TaskError> {
        let begun = Instant::now();
        let mut lost: BTreeMap<u32, BTreeSet<String>> = BTreeMap::new();
        for (split, to) in moves.get(&self.copy).into_iter().flatten() {
            lost.entry(*to).or_default().insert(split.clone());
        }
        let gives = |(from, splits): &(&u32, &BTreeMap<String, u32>)| {
            **from != self.copy && splits.values().any(|to| *to == self.copy)
        };
        let givers: BTreeSet<u32> = moves.iter().filter(gives).map(|(from, _)| *from).collect();
        for &from in &givers {
            self.output.mark_to(from, &Mark::Barrier(barrier.clone()))?;
        }
        let mut awaited = Awaited {
            epoch: barrier.epoch,
            ready: lost.keys().copied().collect(),
            takers: BTreeSet::new(),
            givers,
            taken: Vec::new(),
        };
        for (from, item) in std::mem::take(&mut self.early) {
            awaited.note(&mut self.parked, from, item)?;
        }
        // Only now: a copy may have handed over, and ended, before this one had the barrier.
        awaited.ready.retain(|&copy| !self.input.has_ended(copy));
        awaited.givers.retain(|&copy| !self.input.has_ended(copy));
        while !awaited.ready.is_empty() {
            self.hear(&mut awaited).await?;
        }
        let mut moved = MoveReport { epoch: barrier.epoch, ..MoveReport::default() };
        let mut handed = Vec::new();
        for to in std::mem::take(&mut awaited.takers) {
            let mut splits = Vec::new();
            for released in source.release(&lost[&to])? {
                let (time, is_active) =
                    clock.as_mut().map_or((EventTime::MIN, false), |clock| clock.give_up(&released.numbers));
                moved.bytes += released.position.len() as u64;
                splits.push(HandedSplit { name: released.name, position: released.position, time, is_active });
            }
            moved.splits += splits.len() as u32;
            handed.push((to, splits));
        }
        self.may_get |= moved.splits > 0;
        let Self { output, input, parked, .. } = self;
        let send = async {
            for (to, splits) in handed {
                if !splits.is_empty() {
                    output.send_to(to, rows(&splits)?).await?;
                }
                output.mark_to(to, &Mark::Barrier(barrier.clone()))?;
            }
            Ok::<(), TaskError>(())
        };
        let receive = async {
            while !awaited.givers.is_empty() {
                let Some((from, item)) = input.recv_each().await? else { break };
                awaited.note(parked, from, item)?;
            }
            Ok(awaited.taken)
        };
        let ((), taken) = tokio::try_join!(send, receive)?;
        let (count, first) = self.take(source, clock, taken)?;
        moved.waited = begun.elapsed();
        Ok(TakenSplits { moved, count, first })
    }

    async fn hear(&mut self, awaited: &mut Awaited) -> Result<(), TaskError> {
        match self.input.recv_each().await? {
            Some((from, item)) => awaited.note(&mut self.parked, from, item),
            None => {
                awaited.ready.clear();
                awaited.givers.clear();
                Ok(())
            }
        }
    }

    /// Returns how many splits there are, and the earliest time of those that hold time back.
    fn take(
        &mut self,
        source: &mut impl Source,
        clock: &mut Option<SourceClock>,
        taken: Vec<HandedSplit>,
    ) -> Result<(usize, Option<EventTime>), TaskError> {
        if taken.is_empty() {
            return Ok((0, None));
        }
        if std::mem::take(&mut self.told_parked) {
            for copy in self.others() {
                self.output.mark_to(copy, &Mark::Watermark(EventTime::MIN))?;
            }
        }
        let first = taken.iter().filter(|split| split.is_active).map(|split| split.time).min();
        let named = taken.iter().map(|split| (split.name.clone(), split.position.clone())).collect();
        let numbers = source.acquire(named)?;
        if let Some(clock) = clock {
            for (number, split) in numbers.into_iter().zip(&taken) {
                clock.take_over(number, (split.time, split.is_active));
            }
        }
        Ok((taken.len(), first))
    }

    fn others(&self) -> Vec<u32> {
        (0..self.parked.len() as u32).filter(|&copy| copy != self.copy).collect()
    }

    /// Tells the other copies that this one has no split left. Returns whether they did not know.
    pub(super) fn park(&mut self) -> Result<bool, TaskError> {
        if std::mem::replace(&mut self.told_parked, true) {
            return Ok(false);
        }
        for copy in self.others() {
            self.output.mark_to(copy, &Mark::Idle)?;
        }
        Ok(true)
    }

    /// Whether no other copy has a split left, so that none can come.
    pub(super) fn all_parked(&self) -> bool {
        self.others().into_iter().all(|copy| self.parked[copy as usize] || self.input.has_ended(copy))
    }

    /// Waits for news of other copies while nothing moves. May be abandoned and called again.
    pub(super) async fn hear_parked(&mut self) -> Result<(), TaskError> {
        match self.input.recv_each().await? {
            Some((from, Some(StreamElement::Mark(mark)))) if !matches!(mark, Mark::Barrier(_)) => {
                self.parked[from as usize] = mark == Mark::Idle;
                Ok(())
            }
            // The other copy has had the barrier first.
            Some((from, Some(item))) => {
                self.early.push((from, Some(item)));
                Ok(())
            }
            Some((_, None)) | None => Ok(()),
        }
    }
}

impl Awaited {
    /// What another copy has sent, which counts for this hand-over.
    fn note(&mut self, parked: &mut [bool], from: u32, item: Option<StreamElement>) -> Result<(), TaskError> {
        match item {
            Some(StreamElement::Batch(rows)) => self.taken.extend(splits(&rows)),
            Some(StreamElement::Mark(Mark::Barrier(barrier))) if barrier.epoch == self.epoch => {
                // If it both takes and gives, it says first that it is there.
                if self.ready.remove(&from) {
                    self.takers.insert(from);
                } else {
                    self.givers.remove(&from);
                }
            }
            Some(StreamElement::Mark(Mark::Barrier(barrier))) => {
                return Err(
                    format!("copy {from} hands over at epoch {}, not at epoch {}", barrier.epoch, self.epoch).into()
                );
            }
            Some(StreamElement::Mark(mark)) => parked[from as usize] = mark == Mark::Idle,
            None => {
                self.ready.remove(&from);
                self.givers.remove(&from);
            }
        }
        Ok(())
    }
}

fn rows(splits: &[HandedSplit]) -> Result<RecordBatch, TaskError> {
    let columns: Vec<ArrayRef> = vec![
        Arc::new(StringArray::from_iter_values(splits.iter().map(|split| &split.name))),
        Arc::new(LargeBinaryArray::from_iter_values(splits.iter().map(|split| &split.position))),
        Arc::new(Int64Array::from_iter_values(splits.iter().map(|split| split.time.0))),
        Arc::new(splits.iter().map(|split| Some(split.is_active)).collect::<BooleanArray>()),
    ];
    Ok(RecordBatch::try_new(SplitHandover::schema(), columns)?)
}

fn splits(rows: &RecordBatch) -> Vec<HandedSplit> {
    let (names, positions) = (rows.column(0).as_string::<i32>(), rows.column(1).as_binary::<i64>());
    let (times, active) = (rows.column(2).as_primitive::<Int64Type>(), rows.column(3).as_boolean());
    let split = |at: usize| HandedSplit {
        name: names.value(at).to_owned(),
        position: Bytes::copy_from_slice(positions.value(at)),
        time: EventTime(times.value(at)),
        is_active: active.value(at),
    };
    (0..rows.num_rows()).map(split).collect()
}
