//! The combined time of several streams: no later than that of any active stream. If none is active, it is the time of
//! the one furthest ahead, as in Flink: a stream that was idle first must not keep windows open that all others have
//! passed.

use super::mark::{EventTime, Mark};

#[derive(Clone, Copy, PartialEq, Eq)]
enum StreamActivity {
    Active,
    Idle,
    Over,
}

/// The idleness reported last.
#[derive(Clone, Copy, PartialEq, Eq)]
enum IdleState {
    Active,
    Idle,
    /// Idle, but a stream has advanced since, or all is to be reported again: this must be reported, and so must
    /// idleness if it returns.
    Stirred,
}

/// Combines the times of several streams, which are numbered; each begins active, at [`EventTime::MIN`].
pub struct WatermarkMerger {
    streams: Vec<(EventTime, StreamActivity)>,
    told: IdleState,
    time: EventTime,
}

impl Default for WatermarkMerger {
    fn default() -> Self {
        WatermarkMerger { streams: Vec::new(), told: IdleState::Active, time: EventTime::MIN }
    }
}

impl WatermarkMerger {
    /// The number of streams.
    #[expect(clippy::len_without_is_empty, reason = "nobody asks whether there are none")]
    pub fn len(&self) -> usize {
        self.streams.len()
    }

    /// Adds a stream.
    pub fn add(&mut self) {
        self.streams.push((EventTime::MIN, StreamActivity::Active));
    }

    /// A stream's time has advanced to `time`; backward steps are ignored.
    #[inline]
    pub fn advance(&mut self, stream: usize, time: EventTime) {
        let (at, state) = &mut self.streams[stream];
        *at = time.max(*at);
        *state = StreamActivity::Active;
        if self.told == IdleState::Idle {
            self.told = IdleState::Stirred;
        }
    }

    /// A stream has no rows for now.
    pub fn idle(&mut self, stream: usize) {
        self.streams[stream].1 = StreamActivity::Idle;
    }

    /// A stream has ended.
    pub fn end_stream(&mut self, stream: usize) {
        self.streams[stream].1 = StreamActivity::Over;
    }

    /// A stream goes elsewhere: it no longer counts, but may be there again.
    pub fn leave(&mut self, stream: usize) {
        self.streams[stream] = (EventTime::MIN, StreamActivity::Idle);
    }

    /// Forgets the time of all streams that have not ended, which announce it again: see
    /// [`Barrier::restarts_time`](super::Barrier::restarts_time). The combined time stays if it is that of all copies,
    /// whose splits only change places; otherwise it may be earlier than before.
    pub(super) fn restart(&mut self, of_all: bool) {
        let open = self.streams.iter_mut().filter(|(_, state)| *state != StreamActivity::Over);
        open.for_each(|stream| *stream = (EventTime::MIN, StreamActivity::Active));
        if of_all {
            self.restate(self.time);
        } else {
            (self.time, self.told) = (EventTime::MIN, IdleState::Active);
        }
    }

    /// Reports the combined time, or idleness, again, although it is known. From now on it is no earlier than `floor`.
    pub fn restate(&mut self, floor: EventTime) {
        (self.time, self.told) = (floor, IdleState::Stirred);
    }

    /// Whether a stream holds back the combined time: it is neither idle nor over.
    pub fn is_active(&self, stream: usize) -> bool {
        self.streams[stream].1 == StreamActivity::Active
    }

    /// The time of a stream.
    pub fn time_of(&self, stream: usize) -> EventTime {
        self.streams[stream].0
    }

    /// The combined time reported last.
    #[inline]
    pub fn time(&self) -> EventTime {
        self.time
    }

    /// The stream that holds back the combined time.
    pub fn slowest(&self) -> Option<usize> {
        let active = self.streams.iter().enumerate().filter(|(_, (_, state))| *state == StreamActivity::Active);
        active.min_by_key(|(_, (time, _))| *time).map(|(stream, _)| stream)
    }

    /// The time of the stream that is furthest ahead.
    pub fn ahead(&self) -> EventTime {
        self.streams.iter().map(|(time, _)| *time).max().unwrap_or(EventTime::MIN)
    }

    /// The next change of the combined time to report, if any.
    pub fn next_mark(&mut self) -> Option<Mark> {
        let active =
            self.streams.iter().filter(|(_, state)| *state == StreamActivity::Active).map(|(time, _)| *time).min();
        if active.is_none() && !self.streams.iter().any(|(_, state)| *state == StreamActivity::Idle) {
            return None;
        }
        let time = active.unwrap_or_else(|| self.ahead());
        // A stream that is active again may be behind; the reported time does not go back.
        if time > self.time || active.is_some() && self.told != IdleState::Active {
            self.time = time.max(self.time);
            self.told = IdleState::Active;
            return Some(Mark::Watermark(self.time));
        }
        if active.is_none() && self.told != IdleState::Idle {
            self.told = IdleState::Idle;
            return Some(Mark::Idle);
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const NOTHING: [Mark; 0] = [];

    fn at(us: i64) -> Mark {
        Mark::Watermark(EventTime(us))
    }

    fn news(time: &mut WatermarkMerger) -> Vec<Mark> {
        std::iter::from_fn(|| time.next_mark()).collect()
    }

    fn advance(time: &mut WatermarkMerger, stream: usize, us: i64) -> Vec<Mark> {
        time.advance(stream, EventTime(us));
        news(time)
    }

    fn idle(time: &mut WatermarkMerger, stream: usize) -> Vec<Mark> {
        time.idle(stream);
        news(time)
    }

    fn end_stream(time: &mut WatermarkMerger, stream: usize) -> Vec<Mark> {
        time.end_stream(stream);
        news(time)
    }

    fn of(streams: usize) -> WatermarkMerger {
        let mut time = WatermarkMerger::default();
        (0..streams).for_each(|_| time.add());
        time
    }

    /// If time runs ahead of a stream, its rows are lost; if an idle or ended stream holds it back, windows never
    /// close.
    #[test]
    fn the_slowest_active_stream_counts() {
        let mut time = of(3);
        assert_eq!(advance(&mut time, 0, 5), NOTHING);
        assert_eq!(advance(&mut time, 1, 7), NOTHING);
        assert_eq!(time.slowest(), Some(2));
        assert_eq!(idle(&mut time, 2), [at(5)]);
        assert_eq!(advance(&mut time, 0, 9), [at(7)]);
        assert_eq!(advance(&mut time, 2, 3), NOTHING, "a stream that is active again does not turn time back");
        assert_eq!(advance(&mut time, 1, 10), NOTHING);
        assert_eq!(end_stream(&mut time, 2), [at(9)]);
        assert_eq!((idle(&mut time, 0), idle(&mut time, 1)), (vec![at(10)], vec![Mark::Idle]));
        assert_eq!(advance(&mut time, 1, 10), [at(10)], "the end of idleness is reported");
        assert_eq!((end_stream(&mut time, 1), end_stream(&mut time, 0)), (vec![Mark::Idle], vec![]));
    }

    /// Otherwise, rows of the stream furthest ahead would stay in windows until another row arrives, if that stream was
    /// idle or ended before the others.
    #[test]
    fn if_all_are_idle_the_one_furthest_ahead_counts() {
        let mut time = of(3);
        assert_eq!((advance(&mut time, 0, 100), idle(&mut time, 0)), (vec![], vec![]));
        assert_eq!((advance(&mut time, 1, 50), idle(&mut time, 2)), (vec![], vec![at(50)]));
        assert_eq!(idle(&mut time, 1), [at(100), Mark::Idle]);
        assert_eq!(advance(&mut time, 1, 60), [at(100)], "time does not turn back for it");
        assert_eq!((advance(&mut time, 2, 200), end_stream(&mut time, 2)), (vec![], vec![]));
        assert_eq!(idle(&mut time, 1), [at(200), Mark::Idle]);
    }

    /// Idleness is reported again if a stream was active in between, even before there is any time, and even if nobody
    /// read the marks then.
    #[test]
    fn the_end_of_idleness_is_reported_without_a_time() {
        let mut time = of(2);
        assert_eq!(advance(&mut time, 0, i64::MIN), NOTHING);
        assert_eq!((idle(&mut time, 0), idle(&mut time, 1)), (vec![], vec![Mark::Idle]));
        for _ in 0..2 {
            assert_eq!(advance(&mut time, 0, i64::MIN), [at(i64::MIN)]);
            assert_eq!((advance(&mut time, 0, i64::MIN), idle(&mut time, 0)), (vec![], vec![Mark::Idle]));
            time.advance(0, EventTime::MIN);
            assert_eq!((idle(&mut time, 0), news(&mut time)), (vec![Mark::Idle], vec![]));
        }
        assert_eq!((time.time(), advance(&mut time, 1, 3)), (EventTime::MIN, vec![at(3)]));
    }

    /// A row of a split that moves is late if its next reader, which was further ahead, has not taken its time back.
    #[test]
    fn time_starts_anew_where_splits_move() {
        // One stream of two copies: its own time goes back.
        let mut one = of(1);
        assert_eq!(advance(&mut one, 0, 90), [at(90)]);
        one.restart(false);
        assert_eq!(news(&mut one), NOTHING);
        assert_eq!(advance(&mut one, 0, 40), [at(40)]);
        // All of them: what was said stays true, and all must say theirs before it goes on.
        let mut all = of(3);
        assert_eq!((advance(&mut all, 0, 90), advance(&mut all, 1, 40)), (vec![], vec![]));
        assert_eq!(end_stream(&mut all, 2), [at(40)]);
        all.restart(true);
        assert_eq!(news(&mut all), [at(40)]);
        assert_eq!(advance(&mut all, 1, 95), NOTHING, "the other one has yet to say its time");
        assert_eq!(advance(&mut all, 0, 50), [at(50)]);
        // A source that takes over a split which is behind.
        let mut splits = of(2);
        assert_eq!((advance(&mut splits, 0, 90), idle(&mut splits, 1)), (vec![], vec![at(90)]));
        splits.add();
        splits.advance(2, EventTime(40));
        splits.restate(EventTime(40));
        assert_eq!(news(&mut splits), [at(40)]);
        splits.leave(0);
        assert_eq!((news(&mut splits), idle(&mut splits, 2)), (vec![], vec![Mark::Idle]));
        splits.restate(EventTime(40));
        assert_eq!(news(&mut splits), [Mark::Idle]);
    }

    proptest! {
        /// Whatever streams do, and however rarely marks are read: time never goes back, never passes that of an active
        /// stream that was never idle, and covers all rows when no stream is active.
        #[test]
        fn time_never_goes_back(events in proptest::collection::vec((0usize..4, 0i64..50, 0u8..8, any::<bool>()), 0..200)) {
            let mut time = of(4);
            let mut streams = [(EventTime::MIN, true); 4];
            let mut last = EventTime::MIN;
            for (stream, us, what, asks) in events {
                if what == 0 && stream != 3 {
                    time.idle(stream);
                    streams[stream].1 = false;
                } else {
                    time.advance(stream, EventTime(us));
                    streams[stream] = (streams[stream].0.max(EventTime(us)), true);
                }
                for mark in asks.then(|| news(&mut time)).into_iter().flatten() {
                    let Mark::Watermark(now) = mark else { panic!("one stream is never idle") };
                    prop_assert!(now >= last && now <= streams[3].0);
                    last = now;
                }
                prop_assert_eq!(time.time(), last);
            }
            let all = streams.iter().map(|(time, _)| *time).max().unwrap();
            (0..4).for_each(|stream| time.idle(stream));
            let mut expected = vec![Mark::Idle];
            if all > last {
                expected.insert(0, Mark::Watermark(all));
            }
            prop_assert_eq!((news(&mut time), time.time()), (expected, all));
        }
    }
}
