//! Threads that wait for something that messages bring, and receive these messages themselves.

use std::time::Duration;

use super::{Endpoint, Engine, POLLS_BRIEF};
use crate::doorbell::StandIn;

/// A thread that looks for messages on behalf of waits that [give way](super::CallWait::giving_way). See
/// [`Endpoint::watch`].
pub struct EndpointWatch<'a> {
    endpoint: &'a Endpoint,
    stand_in: StandIn<'a>,
}

impl Endpoint {
    /// Makes the calling thread look for messages while it waits. As long as the returned value exists, messages wake
    /// no wait that gives way; [tasks](super::EngineTask) of the engine continue.
    pub fn watch(&self) -> EndpointWatch<'_> {
        EndpointWatch { endpoint: self, stand_in: self.0.doorbell.stand_in() }
    }

    /// Wakes the thread that sleeps in [`EndpointWatch::sleep`].
    pub fn rouse_watch(&self) {
        self.0.doorbell.ring_stand_in();
    }

    /// Makes someone drive the engine, as a message would: wakes sleeping calls, unless a thread watches.
    #[inline]
    pub fn rouse_driver(&self) {
        self.0.doorbell.bell().ring_for_message();
    }
}

impl EndpointWatch<'_> {
    /// Looks for messages for a microsecond or two, or until `step` is done. Only spins if another thread has the
    /// engine, since that thread may be looking as well.
    pub fn look(&self, mut step: impl FnMut(&mut Engine) -> bool) {
        let shared = &self.endpoint.0;
        match shared.engine.try_lock() {
            // Ignores faults: a call that waits reports them.
            Some(engine) => drop(shared.poll_briefly(engine, |engine| step(engine).then_some(Ok(())))),
            None => (0..POLLS_BRIEF.min(shared.polls)).for_each(|_| std::hint::spin_loop()),
        }
    }

    /// Sleeps until a message comes, someone calls [`Endpoint::rouse_watch`], or `timeout` passes, but not if `step`
    /// is done. Returns `false` at once if another thread already sleeps this way: one is enough.
    pub fn sleep(&mut self, timeout: Duration, mut step: impl FnMut(&mut Engine) -> bool) -> bool {
        let endpoint = self.endpoint;
        let look = || {
            let mut engine = endpoint.lock();
            let moved = engine.progress();
            engine.note_drive();
            let done = endpoint.0.attempt(&mut engine, &mut |engine| step(engine).then_some(Ok(()))).is_some();
            engine.flush();
            moved | done | std::mem::take(&mut engine.moved_aside)
        };
        self.stand_in.sleep(timeout, look).is_some()
    }
}

impl Drop for EndpointWatch<'_> {
    fn drop(&mut self) {
        if !self.stand_in.end() {
            return;
        }
        // Earlier messages have woken nobody.
        let mut engine = self.endpoint.lock();
        engine.note_moved();
        engine.progress();
        drop(self.endpoint.0.attempt::<()>(&mut engine, &mut |_| None));
        engine.flush();
    }
}
