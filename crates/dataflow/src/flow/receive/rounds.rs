//! Rounds that streams bring: of each stream what comes between two marks is of one round, and a round is complete when
//! every stream has brought its mark.

use std::collections::VecDeque;

use arrow::array::RecordBatch;
use tidemill_batch::local::RoundEnd;

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
}

/// See the module.
pub(super) struct RoundCollector {
    end: RoundEnd,
    streams: Vec<RoundStream>,
    /// Rounds that have been taken.
    taken: u64,
}

/// Stream `stream` ended after `rounds` messages, and others have sent more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ShortStream {
    pub stream: usize,
    pub rounds: u64,
}

impl RoundCollector {
    pub(super) fn new(end: RoundEnd) -> Self {
        RoundCollector { end, streams: Vec::new(), taken: 0 }
    }

    /// One more stream; one that does not exist brings nothing, and no round waits for it.
    pub(super) fn add(&mut self, exists: bool) {
        self.streams.push(RoundStream { exists, ended: !exists, ..RoundStream::default() });
    }

    pub(super) fn push(&mut self, stream: u32, batch: RecordBatch) {
        self.streams[stream as usize].open.push(batch);
    }

    /// The round of a stream is over. Returns whether the stream is far ahead now.
    pub(super) fn mark(&mut self, stream: u32) -> bool {
        let of = &mut self.streams[stream as usize];
        of.complete.push_back(std::mem::take(&mut of.open));
        of.complete.len() >= AHEAD_ROUNDS_MAX
    }

    pub(super) fn end_stream(&mut self, stream: u32) {
        self.streams[stream as usize].ended = true;
    }

    /// Streams that are far ahead.
    pub(super) fn ahead(&self) -> impl Iterator<Item = u32> {
        let far = |(_, stream): &(usize, &RoundStream)| stream.complete.len() >= AHEAD_ROUNDS_MAX;
        self.streams.iter().enumerate().filter(far).map(|(at, _)| at as u32)
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
        if !self.streams.iter().all(|stream| stream.ended || has(stream)) {
            return Ok(None);
        }
        self.taken += 1;
        Ok(Some(self.streams.iter_mut().filter_map(|stream| stream.complete.pop_front()).flatten().collect()))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::{ArrayRef, AsArray, Int64Array};
    use arrow::datatypes::Int64Type;

    use super::*;

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
        let mut rounds = RoundCollector::new(RoundEnd::Strict);
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
            let mut rounds = RoundCollector::new(end);
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

    #[test]
    fn a_stream_far_ahead_is_told() {
        let mut rounds = RoundCollector::new(RoundEnd::Strict);
        [true, true].into_iter().for_each(|exists| rounds.add(exists));
        assert!((1..AHEAD_ROUNDS_MAX).all(|_| !rounds.mark(1)) && rounds.mark(1));
        assert_eq!(rounds.ahead().collect::<Vec<_>>(), [1]);
        rounds.mark(0);
        rounds.take().unwrap().unwrap();
        assert_eq!(rounds.ahead().count(), 0);
    }
}
