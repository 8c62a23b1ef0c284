//! Alignment: a barrier has arrived when every stream that has not ended has delivered it. Until then, streams that
//! have delivered it wait, so that no row of the next epoch is processed before the state of this one is saved.
//!
//! Source: Carbone et al., "Lightweight Asynchronous Snapshots for Distributed Dataflows" (2015).

use super::mark::Barrier;

/// The effect of a barrier on a stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum BarrierArrival {
    /// The stream waits. With `released`, streams that waited for an older, abandoned barrier continue.
    Wait { released: bool },
    /// The barrier has arrived on all streams, which continue.
    Aligned(Barrier),
    /// The barrier is older than the current one, and ignored.
    Stale,
}

/// The alignment of several streams, which are numbered.
#[derive(Default)]
pub(crate) struct BarrierAlignment {
    /// Whether each stream has delivered the barrier, and whether it has ended.
    streams: Vec<(bool, bool)>,
    barrier: Option<Barrier>,
    /// The last epoch that was aligned.
    done: u64,
}

impl BarrierAlignment {
    /// Adds a stream.
    pub(crate) fn add(&mut self) {
        self.streams.push((false, false));
    }

    /// A stream delivers a barrier.
    pub(crate) fn arrive(&mut self, stream: usize, barrier: Barrier) -> BarrierArrival {
        let current = self.barrier.as_ref().map_or(self.done, |current| current.epoch);
        if barrier.epoch < current || barrier.epoch == self.done {
            return BarrierArrival::Stale;
        }
        // The coordinator has abandoned the older barrier.
        let released = self.barrier.is_some() && barrier.epoch > current;
        if released {
            self.streams.iter_mut().for_each(|(here, _)| *here = false);
        }
        self.barrier = Some(barrier);
        self.streams[stream].0 = true;
        self.complete().map_or(BarrierArrival::Wait { released }, BarrierArrival::Aligned)
    }

    /// Completes a barrier that some streams have not delivered, and returns which. What the others deliver from now on
    /// comes after it.
    pub(crate) fn overtake(&mut self, barrier: &Barrier) -> Vec<bool> {
        let same = self.barrier.take().is_some_and(|awaited| awaited.epoch == barrier.epoch);
        let open = self.streams.iter().map(|&(here, over)| !(over || same && here)).collect();
        self.streams.iter_mut().for_each(|(here, _)| *here = false);
        self.done = barrier.epoch;
        open
    }

    /// A stream has ended, so its barrier is no longer awaited.
    pub(crate) fn end_stream(&mut self, stream: usize) -> Option<Barrier> {
        self.streams[stream].1 = true;
        self.complete()
    }

    /// Whether the stream has delivered a barrier that others have not.
    #[inline]
    pub(crate) fn holds(&self, stream: usize) -> bool {
        self.barrier.is_some() && self.streams[stream].0
    }

    fn complete(&mut self) -> Option<Barrier> {
        if !self.streams.iter().all(|&(here, over)| here || over) {
            return None;
        }
        let barrier = self.barrier.take()?;
        self.streams.iter_mut().for_each(|(here, _)| *here = false);
        self.done = barrier.epoch;
        Some(barrier)
    }
}

#[cfg(test)]
mod tests {
    use super::super::mark::BarrierControl;
    use super::*;

    fn barrier(epoch: u64) -> Barrier {
        Barrier { epoch, control: BarrierControl::Checkpoint }
    }

    /// A barrier that passes too early would save half an epoch; one that waits for an ended stream would wait forever.
    #[test]
    fn all_streams_or_their_ends() {
        let mut align = BarrierAlignment::default();
        (0..3).for_each(|_| align.add());
        let wait = BarrierArrival::Wait { released: false };
        assert_eq!(align.arrive(1, barrier(1)), wait);
        assert_eq!((align.holds(1), align.holds(0)), (true, false));
        assert_eq!(align.arrive(0, barrier(1)), wait);
        assert_eq!(align.end_stream(2), Some(barrier(1)));
        assert_eq!(align.arrive(0, barrier(2)), wait);
        assert_eq!(align.arrive(1, barrier(2)), BarrierArrival::Aligned(barrier(2)));
        assert!(!align.holds(0));
        assert_eq!(align.arrive(0, barrier(3)), wait);
        assert_eq!(align.end_stream(0), None, "it delivered the barrier before it ended");
        assert_eq!(align.end_stream(1), Some(barrier(3)));
    }

    /// If a stream wrongly counted as open, its rows of the next epoch would count in this one.
    #[test]
    fn overtaken_streams_are_those_without_the_barrier() {
        let mut align = BarrierAlignment::default();
        (0..3).for_each(|_| align.add());
        align.end_stream(2);
        align.arrive(0, barrier(1));
        assert_eq!(align.overtake(&barrier(1)), [false, true, false]);
        assert!(!align.holds(0));
        assert_eq!(align.arrive(1, barrier(1)), BarrierArrival::Stale);
        align.arrive(1, barrier(2));
        assert_eq!(align.overtake(&barrier(3)), [true, true, false], "an older barrier does not count for this one");
    }

    /// An abandoned checkpoint must not delay the next one.
    #[test]
    fn a_newer_barrier_ends_the_wait_for_an_older_one() {
        let mut align = BarrierAlignment::default();
        (0..2).for_each(|_| align.add());
        align.arrive(0, barrier(1));
        assert_eq!(align.arrive(1, barrier(2)), BarrierArrival::Wait { released: true });
        assert_eq!((align.holds(0), align.holds(1)), (false, true));
        assert_eq!(align.arrive(0, barrier(2)), BarrierArrival::Aligned(barrier(2)));
        assert_eq!(align.arrive(1, barrier(1)), BarrierArrival::Stale);
        assert_eq!(align.arrive(1, barrier(2)), BarrierArrival::Stale);
    }
}
