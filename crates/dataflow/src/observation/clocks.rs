//! Clocks that add up time by activity. All are given the current time, and all count what is still going on when
//! they are read: a wait of a minute is visible long before the minute is over.

use std::cell::RefCell;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::time::Instant;

use parking_lot::Mutex;

/// Nanoseconds since the last call. An earlier time, from a thread that was slower to get here, counts as zero.
#[derive(Debug, Default)]
struct LastSeen(Option<Instant>);

impl LastSeen {
    fn advance(&mut self, now: Instant) -> u64 {
        let last = self.0.get_or_insert(now);
        let passed = now.saturating_duration_since(*last).as_nanos() as u64;
        *last = now.max(*last);
        passed
    }
}

/// The time spent waiting, summed over all concurrent waiters.
#[derive(Debug, Default)]
pub(crate) struct WaitClock(Mutex<WaitTimes>);

#[derive(Debug, Default)]
struct WaitTimes {
    seen: LastSeen,
    waiting: u64,
    waited_ns: u64,
}

impl WaitTimes {
    fn advance(&mut self, now: Instant) {
        self.waited_ns += self.waiting * self.seen.advance(now);
    }
}

impl WaitClock {
    /// Starts one more wait.
    pub(crate) fn begin(&self, now: Instant) {
        let mut times = self.0.lock();
        times.advance(now);
        times.waiting += 1;
    }

    /// Ends one wait.
    pub(crate) fn end(&self, now: Instant) {
        let mut times = self.0.lock();
        times.advance(now);
        times.waiting -= 1;
    }

    pub(crate) fn waited_ns(&self, now: Instant) -> u64 {
        let mut times = self.0.lock();
        times.advance(now);
        times.waited_ns
    }
}

/// The state of a link to another worker: messages that it has not accepted yet, senders that wait for room on it,
/// and senders that wait for credit of copies behind it. While it holds messages, credit cannot come back before it
/// has accepted them, so all senders then wait for the link.
#[derive(Debug, Default)]
pub(crate) struct LinkClock(Mutex<LinkState>);

#[derive(Debug, Default)]
struct LinkState {
    seen: LastSeen,
    messages: u64,
    room_senders: u64,
    credit_senders: u64,
    times: LinkTimes,
}

/// The times of a link, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct LinkTimes {
    pub busy_ns: u64,
    pub link_wait_ns: u64,
    pub credit_wait_ns: u64,
}

impl LinkState {
    fn senders(&mut self, for_room: bool) -> &mut u64 {
        if for_room { &mut self.room_senders } else { &mut self.credit_senders }
    }

    fn advance(&mut self, now: Instant) {
        let passed = self.seen.advance(now);
        if self.messages > 0 || self.room_senders > 0 {
            self.times.busy_ns += passed;
            self.times.link_wait_ns += (self.room_senders + self.credit_senders) * passed;
        } else {
            self.times.credit_wait_ns += self.credit_senders * passed;
        }
    }
}

impl LinkClock {
    fn at(&self, now: Instant, change: impl FnOnce(&mut LinkState)) {
        let mut state = self.0.lock();
        state.advance(now);
        change(&mut state);
    }

    /// Records a message that the link has not accepted at once.
    pub(crate) fn begin_message(&self, now: Instant) {
        self.at(now, |state| state.messages += 1);
    }

    /// Records that it has accepted one of these.
    pub(crate) fn end_message(&self, now: Instant) {
        self.at(now, |state| state.messages -= 1);
    }

    /// A sender starts to wait for credit, or for room on the link if it has credit.
    pub(crate) fn begin_wait(&self, now: Instant, for_room: bool) {
        self.at(now, |state| *state.senders(for_room) += 1);
    }

    /// A sender stops waiting.
    pub(crate) fn end_wait(&self, now: Instant, for_room: bool) {
        self.at(now, |state| *state.senders(for_room) -= 1);
    }

    pub(crate) fn times(&self, now: Instant) -> LinkTimes {
        let mut state = self.0.lock();
        state.advance(now);
        state.times
    }
}

/// Where a copy's time goes: it works while it is polled, or a thread of its own runs, unless that thread waits there;
/// otherwise the copy waits, for others to receive its output or for input. Costs two time readings per poll.
#[derive(Debug, Default)]
pub(crate) struct CopyClock(Mutex<CopyState>);

#[derive(Debug, Default)]
struct CopyState {
    seen: LastSeen,
    /// Whether it has begun and not ended.
    lives: bool,
    /// How many threads work: one that polls it, and one of its own.
    working: u32,
    /// How many sends wait.
    blocked: u32,
    /// How much outside work, such as of a server, it waits for.
    outside: u32,
    times: CopyTimes,
}

/// The times of a copy, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct CopyTimes {
    pub busy_ns: u64,
    pub blocked_ns: u64,
    pub idle_ns: u64,
}

impl CopyState {
    fn advance(&mut self, now: Instant) {
        let passed = self.seen.advance(now);
        if !self.lives {
            return;
        }
        *match (self.working, self.blocked, self.outside) {
            (1.., ..) => &mut self.times.busy_ns,
            (0, 1.., _) => &mut self.times.blocked_ns,
            (0, 0, 1..) => &mut self.times.busy_ns,
            (0, 0, 0) => &mut self.times.idle_ns,
        } += passed;
    }
}

thread_local! {
    /// The clock of the copy that is being polled on this thread, or that it works for.
    static CURRENT: RefCell<Option<Arc<CopyClock>>> = const { RefCell::new(None) };
}

impl CopyClock {
    fn at(&self, now: Instant, change: impl FnOnce(&mut CopyState)) {
        let mut state = self.0.lock();
        state.advance(now);
        change(&mut state);
    }

    fn begin_work(&self, now: Instant) {
        self.at(now, |state| state.working += 1);
    }

    fn end_work(&self, now: Instant) {
        self.at(now, |state| state.working -= 1);
    }

    /// A send starts to wait.
    pub(crate) fn begin_blocked(&self, now: Instant) {
        self.at(now, |state| state.blocked += 1);
    }

    /// A send stops waiting.
    pub(crate) fn end_blocked(&self, now: Instant) {
        self.at(now, |state| state.blocked -= 1);
    }

    pub(crate) fn times(&self, now: Instant) -> CopyTimes {
        let mut state = self.0.lock();
        state.advance(now);
        state.times
    }

    /// Runs a copy's future, timed by this clock.
    pub(crate) async fn time<F: Future>(self: &Arc<Self>, future: F) -> F::Output {
        let mut future = pin!(future);
        let _life = CopyLife::begin(self);
        poll_fn(|context| {
            let _poll = CopyPoll::begin(self);
            future.as_mut().poll(context)
        })
        .await
    }

    /// The calling thread works for the copy from now on, until [`CopyClock::leave`].
    pub(crate) fn enter(self: &Arc<Self>) {
        self.begin_work(Instant::now());
        CURRENT.set(Some(Arc::clone(self)));
    }

    /// The calling thread no longer works for a copy.
    pub(crate) fn leave() {
        CURRENT.take().iter().for_each(|clock| clock.end_work(Instant::now()));
    }

    /// Marks that the copy for which this thread works blocks it, until the returned value is dropped.
    pub(crate) fn pause() -> Option<CopyPause> {
        let clock = CURRENT.with_borrow(Clone::clone)?;
        clock.end_work(Instant::now());
        Some(CopyPause(clock))
    }
}

/// Lasts from the beginning of a copy to its end.
struct CopyLife<'a>(&'a CopyClock);

impl<'a> CopyLife<'a> {
    fn begin(clock: &'a CopyClock) -> Self {
        clock.at(Instant::now(), |state| state.lives = true);
        CopyLife(clock)
    }
}

impl Drop for CopyLife<'_> {
    fn drop(&mut self) {
        self.0.at(Instant::now(), |state| state.lives = false);
    }
}

/// A poll of a copy, which may be nested in a poll of another one.
struct CopyPoll<'a> {
    clock: &'a CopyClock,
    around: Option<Arc<CopyClock>>,
}

impl<'a> CopyPoll<'a> {
    fn begin(clock: &'a Arc<CopyClock>) -> Self {
        clock.begin_work(Instant::now());
        CopyPoll { clock, around: CURRENT.replace(Some(Arc::clone(clock))) }
    }
}

impl Drop for CopyPoll<'_> {
    fn drop(&mut self) {
        CURRENT.set(self.around.take());
        self.clock.end_work(Instant::now());
    }
}

/// Returned by [`CopyClock::pause`].
pub(crate) struct CopyPause(Arc<CopyClock>);

impl Drop for CopyPause {
    fn drop(&mut self) {
        self.0.begin_work(Instant::now());
    }
}

/// Outside work that a copy waits for: until this is dropped the copy counts as busy, polled or not.
pub(crate) struct OutsideWork(Option<Arc<CopyClock>>);

impl OutsideWork {
    /// Starts outside work for the copy that is being polled on this thread, if any.
    pub(crate) fn begin() -> Self {
        let clock = CURRENT.with_borrow(Clone::clone);
        clock.iter().for_each(|clock| clock.at(Instant::now(), |state| state.outside += 1));
        OutsideWork(clock)
    }
}

impl Drop for OutsideWork {
    fn drop(&mut self) {
        self.0.iter().for_each(|clock| clock.at(Instant::now(), |state| state.outside -= 1));
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// Times of a simulated clock.
    fn moments() -> impl Fn(u64) -> Instant {
        let begin = Instant::now();
        move |ns| begin + Duration::from_nanos(ns)
    }

    /// A wait that only counted at its end would hide a link that never accepts anything.
    #[test]
    fn waits_count_while_they_last() {
        let (clock, at) = (WaitClock::default(), moments());
        clock.begin(at(0));
        clock.begin(at(100));
        assert_eq!(clock.waited_ns(at(150)), 200);
        clock.end(at(160));
        assert_eq!(clock.waited_ns(at(200)), 260);
        assert_eq!(clock.waited_ns(at(190)), 260, "a slower thread takes nothing back");
        clock.end(at(200));
        assert_eq!(clock.waited_ns(at(900)), 260);
    }

    /// Slow copies and slow links both leave senders without credit; only the link's messages tell which it is.
    #[test]
    fn senders_wait_for_the_link_while_it_has_messages() {
        let (clock, at) = (LinkClock::default(), moments());
        clock.begin_wait(at(0), false);
        clock.begin_wait(at(0), false);
        clock.begin_message(at(10));
        clock.begin_message(at(20));
        clock.end_message(at(25));
        assert_eq!(clock.times(at(30)), LinkTimes { busy_ns: 20, link_wait_ns: 40, credit_wait_ns: 20 });
        clock.end_message(at(30));
        clock.end_wait(at(30), false);
        assert_eq!(clock.times(at(35)), LinkTimes { busy_ns: 20, link_wait_ns: 40, credit_wait_ns: 25 });
    }

    #[test]
    fn a_copy_works_waits_or_is_blocked() {
        let (clock, at) = (CopyClock::default(), moments());
        assert_eq!(clock.times(at(5)), CopyTimes::default(), "it has not begun");
        clock.at(at(10), |state| state.lives = true);
        clock.begin_work(at(10));
        clock.begin_blocked(at(14));
        clock.end_work(at(15));
        clock.begin_work(at(22));
        clock.end_blocked(at(22));
        clock.end_work(at(25));
        clock.at(at(30), |state| state.outside += 1);
        clock.at(at(40), |state| state.outside -= 1);
        clock.at(at(42), |state| state.lives = false);
        assert_eq!(clock.times(at(99)), CopyTimes { busy_ns: 5 + 3 + 10, blocked_ns: 7, idle_ns: 5 + 2 });
    }

    /// A thread that blocks within a copy's poll would make the copy look busy, and a clock left behind would count
    /// for the next copy.
    #[test]
    fn a_copy_that_blocks_its_thread_does_not_work() {
        let clock = Arc::new(CopyClock::default());
        let works = |clock: &CopyClock| clock.0.lock().working == 1;
        let seen = futures_util::FutureExt::now_or_never(clock.time(async {
            let before = works(&clock);
            let pause = CopyClock::pause();
            let during = works(&clock);
            drop(pause);
            (before, during, works(&clock))
        }));
        assert_eq!(seen, Some((true, false, true)));
        assert!(!works(&clock) && !clock.0.lock().lives && CopyClock::pause().is_none());
    }

    #[test]
    fn a_copy_works_while_its_own_thread_does() {
        let clock = Arc::new(CopyClock::default());
        let working = || clock.0.lock().working;
        clock.enter();
        assert_eq!(working(), 1);
        let polled = futures_util::FutureExt::now_or_never(clock.time(async { working() }));
        assert_eq!((polled, working()), (Some(2), 1));
        drop(CopyClock::pause().inspect(|_| assert_eq!(working(), 0)));
        assert_eq!(working(), 1);
        CopyClock::leave();
        CopyClock::leave();
        assert_eq!(working(), 0);
    }
}
