//! What a worker has heard from the coordinator. Only what is newer counts: something that comes twice, or late,
//! changes nothing.

use tidemill_checkpoint::Barrier;
use tokio::sync::watch;

/// See the module.
pub(crate) struct EpochNotifications {
    /// The last barrier that sources were asked for.
    barrier: watch::Sender<Option<Barrier>>,
    /// The last epoch whose barrier is unaligned.
    unaligned: watch::Sender<u64>,
    /// The last epoch that is durable.
    durable: watch::Sender<u64>,
}

impl Default for EpochNotifications {
    fn default() -> Self {
        EpochNotifications {
            barrier: watch::Sender::new(None),
            unaligned: watch::Sender::new(0),
            durable: watch::Sender::new(0),
        }
    }
}

impl EpochNotifications {
    /// Sources are asked for a barrier.
    pub(crate) fn inject(&self, barrier: Barrier) {
        self.barrier.send_if_modified(|last| {
            let newer = last.as_ref().is_none_or(|last| last.epoch < barrier.epoch);
            if newer {
                *last = Some(barrier);
            }
            newer
        });
    }

    /// The last epoch that is.
    pub(crate) fn last_durable(&self) -> u64 {
        *self.durable.borrow()
    }

    /// An epoch is durable.
    pub(crate) fn durable(&self, epoch: u64) {
        raise(&self.durable, epoch);
    }

    /// A barrier is to overtake rows.
    pub(crate) fn unalign(&self, epoch: u64) {
        raise(&self.unaligned, epoch);
    }

    /// The epochs whose barriers are to.
    pub(crate) fn unaligned_epochs(&self) -> watch::Receiver<u64> {
        self.unaligned.subscribe()
    }

    /// The barriers that sources are asked for. Who begins to listen late hears the last one: it may be awaited.
    pub(crate) fn barriers(&self) -> watch::Receiver<Option<Barrier>> {
        let mut barriers = self.barrier.subscribe();
        if barriers.borrow().is_some() {
            barriers.mark_changed();
        }
        barriers
    }

    /// The epochs that are durable. Who begins to listen late hears the last one.
    pub(crate) fn epochs(&self) -> watch::Receiver<u64> {
        let mut epochs = self.durable.subscribe();
        if *epochs.borrow() > 0 {
            epochs.mark_changed();
        }
        epochs
    }
}

fn raise(last: &watch::Sender<u64>, epoch: u64) {
    last.send_if_modified(|last| {
        let newer = *last < epoch;
        *last = epoch.max(*last);
        newer
    });
}

#[cfg(test)]
mod tests {
    use tidemill_checkpoint::BarrierControl;

    use super::*;

    fn barrier(epoch: u64) -> Barrier {
        Barrier { epoch, control: BarrierControl::Checkpoint }
    }

    /// A source that is slow to begin, and never hears of the barrier it is asked for, holds up its checkpoint for
    /// ever.
    #[test]
    fn who_listens_late_hears_the_last() {
        let notifications = EpochNotifications::default();
        assert!(!notifications.barriers().has_changed().unwrap() && !notifications.epochs().has_changed().unwrap());
        notifications.inject(barrier(3));
        notifications.durable(2);
        let (mut barriers, mut epochs) = (notifications.barriers(), notifications.epochs());
        assert!(barriers.has_changed().unwrap() && epochs.has_changed().unwrap());
        assert_eq!((barriers.borrow_and_update().clone(), *epochs.borrow_and_update()), (Some(barrier(3)), 2));
    }

    /// A source that sends one barrier twice saves two places for one epoch; a sink that goes back commits nothing
    /// more.
    #[test]
    fn what_comes_twice_or_late_changes_nothing() {
        let notifications = EpochNotifications::default();
        let (mut barriers, mut epochs) = (notifications.barriers(), notifications.epochs());
        notifications.inject(barrier(3));
        notifications.durable(3);
        barriers.mark_unchanged();
        epochs.mark_unchanged();
        for epoch in [3, 2] {
            notifications.inject(barrier(epoch));
            notifications.durable(epoch);
            assert!(!barriers.has_changed().unwrap() && !epochs.has_changed().unwrap());
        }
        notifications.inject(barrier(4));
        assert_eq!(barriers.borrow_and_update().clone(), Some(barrier(4)));
    }
}
