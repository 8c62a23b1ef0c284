//! A thread that looks for work while it waits, on behalf of others that sleep.

use std::time::Duration;

use super::{Doorbell, WakeReason, sleep_on, word};
use crate::sync::{Ordering, fence};

/// See the module.
pub(crate) struct StandIn<'a>(&'a Doorbell);

impl<'a> StandIn<'a> {
    pub(super) fn begin(doorbell: &'a Doorbell) -> Self {
        let mut sleepers = doorbell.sleepers.lock();
        sleepers.stand_ins += 1;
        word::relieve(&doorbell.word);
        StandIn(doorbell)
    }

    /// Sleeps until a message comes, [`Doorbell::ring_stand_in`] is called, or `timeout` passes; returns `None` if
    /// another stand-in already sleeps. `look` runs after the announcement, and the thread sleeps only if it finds
    /// nothing.
    pub(crate) fn sleep(&mut self, timeout: Duration, look: impl FnOnce() -> bool) -> Option<WakeReason> {
        let Doorbell { word, sleepers, .. } = self.0;
        let ticket = {
            let mut sleepers = sleepers.lock();
            if sleepers.stand_in_sleeps {
                return None;
            }
            sleepers.stand_in_sleeps = true;
            sleepers.stand_ins -= 1;
            word::announce_stand_in(word, sleepers.stand_ins == 0)
        };
        let woken = if look() { WakeReason::Rung } else { sleep_on(word, ticket, word::STAND_IN, timeout) };
        let mut sleepers = sleepers.lock();
        sleepers.stand_in_sleeps = false;
        sleepers.stand_ins += 1;
        word::withdraw_stand_in(word);
        Some(woken)
    }

    /// Stops standing in. Returns `true` if it was the last stand-in; the caller must then look once more for work.
    pub(crate) fn end(&mut self) -> bool {
        let mut sleepers = self.0.sleepers.lock();
        sleepers.stand_ins -= 1;
        if sleepers.stand_ins == 0 {
            word::resume(&self.0.word);
        }
        sleepers.stand_ins == 0
    }
}

impl Doorbell {
    /// Wakes a sleeping stand-in. Write what it should find before the call.
    pub(crate) fn ring_stand_in(&self) {
        fence(Ordering::SeqCst);
        if word::ring_stand_in_fenced(&self.word) != 0 {
            self.bell().wake_sleepers(word::STAND_IN);
        }
    }
}
