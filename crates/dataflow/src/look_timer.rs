//! Decides when to look again at something that is checked now and then.

use std::time::{Duration, Instant};

/// Due at once, or one interval after its creation, and then one interval after each time it was due.
#[derive(Debug)]
pub struct LookTimer {
    interval: Duration,
    looked: Option<Instant>,
}

impl LookTimer {
    /// A timer that is due at once.
    pub fn new(interval: Duration) -> Self {
        LookTimer { interval, looked: None }
    }

    /// A timer that is first due an interval from now.
    pub fn after(interval: Duration) -> Self {
        LookTimer { interval, looked: Some(Instant::now()) }
    }

    /// Whether it is time; if it is, the next time is an interval from now.
    pub fn is_due(&mut self) -> bool {
        let is_due = self.looked.is_none_or(|looked| looked.elapsed() >= self.interval);
        if is_due {
            self.looked = Some(Instant::now());
        }
        is_due
    }
}
