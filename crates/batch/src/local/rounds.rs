//! Reduces by rounds: the n-th messages of several streams give the n-th result.
//!
//! By then, a message has become a single row ([`MessageReducer`]). Rows of a stream therefore need no numbers: they
//! stay in order, and the n-th row belongs to round n.

use std::collections::VecDeque;
use std::num::NonZeroU64;

use arrow::array::RecordBatch;
use arrow::compute::concat_batches;
use arrow::datatypes::SchemaRef;

use super::reduce::Reduction;
use crate::batch_bytes;
use crate::error::TaskError;

/// Maximum number of rounds that are merged at once.
const ROUNDS_AT_ONCE: usize = 8192;
/// Maximum number of parts of a message that are kept before they are reduced together.
const PARTS_MAX: usize = 256;
/// A stream that is this far ahead of the slowest one waits: limits in rounds and bytes.
const AHEAD_ROUNDS_MAX: usize = 64;
const AHEAD_BYTES_MAX: u64 = 16 << 20;

/// What happens when a stream ends before the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RoundEnd {
    /// Fail: every stream must have the same number of messages.
    Strict,
    /// Continue the rounds without it.
    Partial,
}

/// What of a stream is of one round.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RoundUnit {
    /// A message.
    #[default]
    Message,
    /// So many rows, whichever messages they come in.
    Rows(NonZeroU64),
    /// What comes between two barriers of the job's checkpoints, or a barrier and the end.
    Epoch,
    /// The rows of a slice of event time.
    Time(TimeSlices),
}

/// Consecutive slices of event time. Slice n holds the times from `start_us + n * length_us` up to the start of the
/// next one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimeSlices {
    /// The position of the column with the times: of timestamps or dates.
    pub column: usize,
    /// Where slice 0 begins, in microseconds since 1970-01-01 UTC.
    pub start_us: i64,
    /// How long each is, in microseconds.
    pub length_us: NonZeroU64,
    /// How much earlier a row may be than one before it from the same copy: a slice is over once a row has come that is
    /// later than its end by this much. `None`: only once a watermark says so.
    pub out_of_order_us: Option<u64>,
}

impl TimeSlices {
    /// The slice of a time; negative if it is before all.
    pub fn slice_of(&self, time_us: i64) -> i64 {
        let slice = (i128::from(time_us) - i128::from(self.start_us)).div_euclid(self.length_us.get().into());
        slice.clamp(i64::MIN.into(), i64::MAX.into()) as i64
    }
}

/// Reduces each message, a batch of one row or more, to one row.
pub struct MessageReducer {
    reduction: Reduction,
    /// The schema of results.
    schema: SchemaRef,
    /// The schema of the last message, and the positions of the required columns in it.
    last: Option<(SchemaRef, Vec<usize>)>,
    zeros: Vec<u32>,
    /// What has come of a message of several batches.
    parts: Vec<RecordBatch>,
}

impl MessageReducer {
    /// Makes results with `schema`, which must be [`Reduction::schema`] without keys.
    pub fn new(reduction: &Reduction, schema: &SchemaRef) -> Self {
        let (last, zeros, parts) = Default::default();
        MessageReducer { reduction: reduction.clone(), schema: SchemaRef::clone(schema), last, zeros, parts }
    }

    /// Takes a part of a message.
    ///
    /// # Errors
    /// As [`MessageReducer::reduce`].
    pub fn push(&mut self, part: &RecordBatch) -> Result<(), TaskError> {
        let row = self.reduce(part)?;
        self.parts.push(row);
        if self.parts.len() == PARTS_MAX {
            let all = self.finish()?;
            self.parts.extend(all);
        }
        Ok(())
    }

    /// The message whose parts have come as one row; `None` if none has.
    ///
    /// # Errors
    /// As [`MessageReducer::reduce`].
    pub fn finish(&mut self) -> Result<Option<RecordBatch>, TaskError> {
        let parts = std::mem::take(&mut self.parts);
        match &parts[..] {
            [] => Ok(None),
            [one] => Ok(Some(one.clone())),
            _ => self.reduce(&concat_batches(&self.schema, &parts)?).map(Some),
        }
    }

    /// Reduces one message to one row.
    ///
    /// # Errors
    /// If values cannot be reduced, or if a column is missing.
    pub fn reduce(&mut self, message: &RecordBatch) -> Result<RecordBatch, TaskError> {
        let (_, at) = match &mut self.last {
            Some(last) if SchemaRef::ptr_eq(&last.0, message.schema_ref()) => last,
            last => {
                let names: Vec<String> = self.schema.fields().iter().map(|field| field.name().clone()).collect();
                last.insert((message.schema(), crate::schema::columns(message.schema_ref(), &names)?))
            }
        };
        let values = message.project(at)?.with_schema(SchemaRef::clone(&self.schema))?;
        if values.num_rows() == 1 {
            return Ok(values);
        }
        self.zeros.resize(self.zeros.len().max(values.num_rows()), 0);
        self.reduction.fold(&values, &self.zeros[..values.num_rows()], 1)
    }
}

/// Merges streams of rows, round by round. [`RoundEnd`] says what happens when a stream ends early.
pub struct RoundMerger {
    reduction: Reduction,
    schema: SchemaRef,
    end: RoundEnd,
    streams: Vec<RoundStream>,
    /// What had arrived of rounds that were open at a restored checkpoint; a row for each round from the next one on.
    restored: RoundStream,
    /// Rounds merged so far.
    merged: u64,
}

#[derive(Default)]
struct RoundStream {
    batches: VecDeque<RecordBatch>,
    rows: usize,
    bytes: u64,
    /// It begins so many rounds later: what it had for those has come by another way.
    later: u64,
    ended: bool,
}

/// What of a stream waits for other streams: the round that its first row is of, and its rows.
#[derive(Clone, Debug, PartialEq)]
pub struct OpenRounds {
    /// The number of the first round, from 0.
    pub first: u64,
    /// A row for each round.
    pub rows: RecordBatch,
}

impl RoundStream {
    /// Rounds from the next one on for which nothing more is needed of it.
    fn rounds(&self) -> u64 {
        self.later + self.rows as u64
    }

    fn push(&mut self, rows: RecordBatch) {
        self.rows += rows.num_rows();
        self.bytes += batch_bytes(&rows);
        self.batches.push_back(rows);
    }

    /// What it has for the next rounds, and to which of them that belongs.
    fn take_rounds(&mut self, rounds: usize, taken: &mut Vec<RecordBatch>, groups: &mut Vec<u32>) {
        let before = self.later.min(rounds as u64);
        self.later -= before;
        let before = before as usize;
        let count = self.take(rounds - before, taken);
        groups.extend(before as u32..(before + count) as u32);
    }

    /// Takes up to `rows` of its next rows.
    fn take(&mut self, rows: usize, taken: &mut Vec<RecordBatch>) -> usize {
        let mut left = rows.min(self.rows);
        let count = left;
        self.rows -= count;
        while left > 0 {
            let batch = self.batches.pop_front().expect("its rows are counted");
            let all = batch.num_rows();
            let bytes = batch_bytes(&batch);
            if all > left {
                let rest = batch.slice(left, all - left);
                self.bytes = self.bytes.saturating_sub(bytes) + batch_bytes(&rest);
                self.batches.push_front(rest);
            } else {
                self.bytes = self.bytes.saturating_sub(bytes);
            }
            taken.push(batch.slice(0, all.min(left)));
            left -= all.min(left);
        }
        count
    }
}

/// Stream `stream` ended after `rounds` messages, but other streams have sent more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnequalRounds {
    /// The stream.
    pub stream: usize,
    /// The number of its messages.
    pub rounds: u64,
}

impl RoundMerger {
    /// Merges `streams` streams of rows with `schema`.
    pub fn new(reduction: &Reduction, schema: &SchemaRef, streams: usize, end: RoundEnd) -> Self {
        let streams = (0..streams).map(|_| RoundStream::default()).collect();
        let (restored, merged) = (RoundStream { ended: true, ..RoundStream::default() }, 0);
        RoundMerger { reduction: reduction.clone(), schema: SchemaRef::clone(schema), end, streams, restored, merged }
    }

    /// Before anything has come: lets the rounds begin at number `first`, and each stream at a number of its own, which
    /// is not smaller.
    pub fn begin_at(&mut self, first: u64, streams: impl IntoIterator<Item = u64>) {
        self.merged = first;
        for (stream, start) in self.streams.iter_mut().zip(streams) {
            stream.later = start - first;
        }
    }

    /// Before anything has come, and after [`RoundMerger::begin_at`]: adds what had come of rounds that were open.
    ///
    /// # Errors
    /// When some round between has nothing; when values cannot be reduced.
    pub fn restore(&mut self, open: &[OpenRounds]) -> Result<(), TaskError> {
        let open: Vec<&OpenRounds> = open.iter().filter(|open| open.rows.num_rows() > 0).collect();
        let mut groups = Vec::new();
        for OpenRounds { first, rows } in &open {
            let from = first.checked_sub(self.merged).ok_or("an open round of the checkpoint had gone out already")?;
            groups.extend((0..rows.num_rows() as u64).map(|row| (from + row) as u32));
        }
        let Some(rounds) = groups.iter().max().map(|last| *last as usize + 1) else { return Ok(()) };
        let mut found = vec![false; rounds];
        groups.iter().for_each(|&round| found[round as usize] = true);
        if found.contains(&false) {
            return Err("an open round of the checkpoint is missing".into());
        }
        let rows = concat_batches(&self.schema, open.into_iter().map(|open| &open.rows))?;
        self.restored.push(self.reduction.fold(&rows, &groups, rounds)?);
        Ok(())
    }

    /// The number of rounds that have been merged.
    pub fn merged(&self) -> u64 {
        self.merged
    }

    /// The number of the round that the next row of a stream is of.
    pub fn next_of(&self, stream: usize) -> u64 {
        self.merged + self.streams[stream].rounds()
    }

    /// What of each stream waits for others, and then what was restored.
    ///
    /// # Errors
    /// When rows cannot be put together.
    pub fn open(&self) -> Result<Vec<OpenRounds>, TaskError> {
        let open = |stream: &RoundStream| -> Result<OpenRounds, TaskError> {
            let rows = concat_batches(&self.schema, &stream.batches)?;
            Ok(OpenRounds { first: self.merged + stream.later, rows })
        };
        self.streams.iter().chain([&self.restored]).map(open).collect()
    }

    /// Whether to read more of a stream; if not, it is too far ahead of the slowest one.
    pub fn takes(&self, stream: usize) -> bool {
        let RoundStream { rows, bytes, .. } = self.streams[stream];
        rows == 0 || rows < AHEAD_ROUNDS_MAX && bytes < AHEAD_BYTES_MAX
    }

    /// Adds rows of a stream.
    pub fn push(&mut self, stream: usize, rows: RecordBatch) {
        self.streams[stream].push(rows);
    }

    /// Marks the end of a stream.
    pub fn end(&mut self, stream: usize) {
        self.streams[stream].ended = true;
    }

    /// A stream that ended too early, if that is an error.
    pub fn unequal(&self) -> Option<UnequalRounds> {
        let most = self.streams.iter().map(RoundStream::rounds).max()?;
        let short = |stream: &RoundStream| stream.ended && stream.rounds() < most;
        let stream = self.streams.iter().position(short).filter(|_| self.end == RoundEnd::Strict)?;
        Some(UnequalRounds { stream, rounds: self.next_of(stream) })
    }

    /// The next rounds for which every unfinished stream has a row, as one row each, in order.
    ///
    /// # Errors
    /// If values cannot be reduced.
    pub fn merge(&mut self) -> Result<Option<RecordBatch>, TaskError> {
        let all = self.streams.iter().chain([&self.restored]);
        let open = all.clone().filter(|stream| !stream.ended).map(RoundStream::rounds).min();
        let rounds = open.or_else(|| all.map(RoundStream::rounds).max()).unwrap_or(0);
        let rounds = rounds.min(ROUNDS_AT_ONCE as u64) as usize;
        if rounds == 0 {
            return Ok(None);
        }
        let (mut rows, mut groups) = (Vec::new(), Vec::new());
        for stream in self.streams.iter_mut().chain([&mut self.restored]) {
            stream.take_rounds(rounds, &mut rows, &mut groups);
        }
        self.merged += rounds as u64;
        let rows = match &rows[..] {
            [one] => one.clone(),
            _ => concat_batches(&self.schema, &rows)?,
        };
        let alone = groups.iter().copied().eq(0..rounds as u32);
        Ok(Some(if alone { rows } else { self.reduction.fold(&rows, &groups, rounds)? }))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::{ArrayRef, AsArray, Int64Array};
    use arrow::datatypes::Int64Type;
    use proptest::prelude::*;

    use super::*;

    fn batch(numbers: &[i64]) -> RecordBatch {
        let n: ArrayRef = Arc::new(Int64Array::from(numbers.to_vec()));
        RecordBatch::try_from_iter_with_nullable([("n", n, true)]).unwrap()
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

        /// A comparison with sums computed by hand catches rounds that mix, lose or reorder messages.
        #[test]
        fn equals_sums_of_the_nth(
            streams in prop::collection::vec(prop::collection::vec(-99i64..99, 0..150), 1..5),
            cuts in prop::collection::vec((0usize..5, 1usize..40), 0..60),
        ) {
            let reduction = Reduction::new().sum("n");
            let mut merger = RoundMerger::new(&reduction, &batch(&[]).schema(), streams.len(), RoundEnd::Partial);
            let (mut sent, mut found) = (vec![0usize; streams.len()], Vec::<i64>::new());
            let whole = (0..streams.len()).map(|stream| (stream, usize::MAX));
            for (stream, rows) in cuts.into_iter().map(|(of, rows)| (of % streams.len(), rows)).chain(whole) {
                let end = sent[stream].saturating_add(rows).min(streams[stream].len());
                if end > sent[stream] {
                    merger.push(stream, batch(&streams[stream][sent[stream]..end]));
                    sent[stream] = end;
                }
                if rows == usize::MAX {
                    merger.end(stream);
                }
                while let Some(merged) = merger.merge().unwrap() {
                    found.extend(merged.column(0).as_primitive::<Int64Type>().values());
                }
            }
            let rounds = streams.iter().map(Vec::len).max().unwrap();
            let sum = |round: usize| streams.iter().filter_map(|stream| stream.get(round)).sum::<i64>();
            prop_assert_eq!(found, (0..rounds).map(sum).collect::<Vec<_>>());
        }
    }

    /// The merge does not wait for a stream that has ended, and names it even before the others have ended.
    #[test]
    fn a_stream_that_ends_early_is_named() {
        let reduction = Reduction::new().sum("n");
        let mut merger = RoundMerger::new(&reduction, &batch(&[]).schema(), 3, RoundEnd::Strict);
        merger.push(0, batch(&[1, 2]));
        merger.push(1, batch(&[3]));
        merger.push(2, batch(&[4]));
        assert_eq!(merger.merge().unwrap().unwrap().num_rows(), 1);
        assert_eq!(merger.unequal(), None);
        merger.end(2);
        assert_eq!(merger.unequal(), Some(UnequalRounds { stream: 2, rounds: 1 }));
    }

    /// Without a limit, a fast stream would end up in memory as a whole.
    #[test]
    fn a_stream_far_ahead_waits() {
        let mut merger = RoundMerger::new(&Reduction::new().sum("n"), &batch(&[]).schema(), 2, RoundEnd::Strict);
        merger.push(0, batch(&vec![1; AHEAD_ROUNDS_MAX]));
        assert!(!merger.takes(0) && merger.takes(1));
        merger.push(1, batch(&[1]));
        assert_eq!(merger.merge().unwrap().unwrap().num_rows(), 1);
        assert!(merger.takes(0));
    }

    #[test]
    fn a_message_becomes_one_row_of_its_columns() {
        let n: ArrayRef = Arc::new(Int64Array::from(vec![1, 2, 3]));
        let other: ArrayRef = Arc::new(Int64Array::from(vec![7, 8, 9]));
        let message = RecordBatch::try_from_iter_with_nullable([("other", other, true), ("n", n, true)]).unwrap();
        let mut reducer = MessageReducer::new(&Reduction::new().sum("n"), &batch(&[]).schema());
        assert_eq!(reducer.reduce(&message).unwrap(), batch(&[6]));
        assert_eq!(reducer.reduce(&message.slice(2, 1)).unwrap(), batch(&[3]));
    }
}
