//! When to look again at something that is looked at now and then.

use std::time::{Duration, Instant};

/// Due at once, or so long after it was made, and then so long after each time that it was.
#[derive(Debug)]
pub struct LookTimer {
    interval: Duration,
    looked: Option<Instant>,
}

impl LookTimer {
    /// One that has not been asked yet.
    pub fn new(interval: Duration) -> Self {
        LookTimer { interval, looked: None }
    }

    /// One that is due an interval from now for the first time.
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
