//! The time of several streams together: no later than that of any one that still brings something.

use super::mark::{EventTime, Mark};

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Active,
    Idle,
    Over,
}

/// See the module. Streams are numbered; each begins active, at [`EventTime::MIN`].
#[derive(Default)]
pub(crate) struct Watermarks {
    streams: Vec<(EventTime, State)>,
    told: Option<Mark>,
    time: Option<EventTime>,
}

impl Watermarks {
    /// Adds a stream.
    pub(crate) fn add(&mut self) {
        self.streams.push((EventTime::MIN, State::Active));
    }

    /// A stream's time has come to be `time`; a step back is ignored. Returns what is new of all together.
    pub(crate) fn advance(&mut self, stream: usize, time: EventTime) -> Option<Mark> {
        let (at, state) = &mut self.streams[stream];
        *at = time.max(*at);
        *state = State::Active;
        self.news()
    }

    /// A stream has nothing for now.
    pub(crate) fn idle(&mut self, stream: usize) -> Option<Mark> {
        self.streams[stream].1 = State::Idle;
        self.news()
    }

    /// A stream has ended.
    pub(crate) fn over(&mut self, stream: usize) -> Option<Mark> {
        self.streams[stream].1 = State::Over;
        self.news()
    }

    /// What was told last of all streams' time.
    pub(crate) fn time(&self) -> EventTime {
        self.time.unwrap_or(EventTime::MIN)
    }

    /// The stream that holds the time of all back.
    pub(crate) fn slowest(&self) -> Option<usize> {
        let active = self.streams.iter().enumerate().filter(|(_, (_, state))| *state == State::Active);
        active.min_by_key(|(_, (time, _))| *time).map(|(stream, _)| stream)
    }

    /// The time of the stream that is furthest ahead.
    pub(crate) fn ahead(&self) -> EventTime {
        self.streams.iter().map(|(time, _)| *time).max().unwrap_or(EventTime::MIN)
    }

    fn news(&mut self) -> Option<Mark> {
        let active = self.streams.iter().filter(|(_, state)| *state == State::Active).map(|(time, _)| *time).min();
        let now = match active {
            // Nothing is known, which is no news unless there was idleness before.
            Some(EventTime::MIN) if self.told.is_none() => return None,
            // A stream that comes back from idleness may be behind; what was told stays true.
            Some(time) => Mark::Watermark(time.max(self.time())),
            None if self.streams.iter().any(|(_, state)| *state == State::Idle) => Mark::Idle,
            None => return None,
        };
        if self.told.as_ref() == Some(&now) {
            return None;
        }
        if let Mark::Watermark(time) = now {
            self.time = Some(time);
        }
        self.told = Some(now.clone());
        Some(now)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn at(us: i64) -> Option<Mark> {
        Some(Mark::Watermark(EventTime(us)))
    }

    /// A time that runs ahead of a stream loses its rows; one that an idle or ended stream holds back closes no window ever.
    #[test]
    fn the_slowest_stream_that_brings_something_counts() {
        let mut time = Watermarks::default();
        (0..3).for_each(|_| time.add());
        assert_eq!(time.advance(0, EventTime(5)), None);
        assert_eq!(time.advance(1, EventTime(7)), None);
        assert_eq!(time.slowest(), Some(2));
        assert_eq!(time.idle(2), at(5));
        assert_eq!(time.advance(0, EventTime(9)), at(7));
        assert_eq!(time.advance(2, EventTime(3)), None, "one that comes back late does not turn time back");
        assert_eq!(time.advance(1, EventTime(10)), None);
        assert_eq!(time.over(2), at(9));
        assert_eq!((time.idle(0), time.idle(1)), (at(10), Some(Mark::Idle)));
        assert_eq!(time.advance(1, EventTime(10)), at(10), "the end of idleness is news");
        assert_eq!((time.over(1), time.over(0)), (Some(Mark::Idle), None));
    }

    /// Idleness is told again when there was something in between, also before there is any time.
    #[test]
    fn the_end_of_idleness_is_news_without_a_time() {
        let mut time = Watermarks::default();
        (0..2).for_each(|_| time.add());
        assert_eq!(time.advance(0, EventTime::MIN), None);
        assert_eq!((time.idle(0), time.idle(1)), (None, Some(Mark::Idle)));
        for _ in 0..2 {
            assert_eq!(time.advance(0, EventTime::MIN), at(i64::MIN));
            assert_eq!((time.advance(0, EventTime::MIN), time.idle(0)), (None, Some(Mark::Idle)));
        }
        assert_eq!((time.time(), time.advance(1, EventTime(3))), (EventTime::MIN, at(3)));
    }

    proptest! {
        /// Whatever streams do: time never goes back, and never passes that of an active stream that was never idle.
        #[test]
        fn time_never_goes_back(events in proptest::collection::vec((0usize..3, 0i64..50, 0u8..8), 0..200)) {
            let mut time = Watermarks::default();
            (0..4).for_each(|_| time.add());
            let (mut last, mut steady) = (EventTime::MIN, EventTime::MIN);
            for (stream, us, what) in events {
                let news = match what {
                    0 => time.idle(stream),
                    1 => { steady = steady.max(EventTime(us)); time.advance(3, EventTime(us)) }
                    _ => time.advance(stream, EventTime(us)),
                };
                if let Some(Mark::Watermark(now)) = news {
                    prop_assert!(now >= last);
                    prop_assert!(now <= steady);
                    last = now;
                }
                prop_assert_eq!(time.time(), last);
            }
        }
    }
}
