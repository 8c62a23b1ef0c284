//! How often a failed job is restarted, and after which pause.

use std::time::Duration;

/// A failure after a job has run this long is unrelated to earlier failures, so all restarts are allowed again.
const SOUND: Duration = Duration::from_secs(3600);
/// A failure within this time is probably due to something that persists: a server that is down, a full disk.
const SHORT: Duration = Duration::from_secs(30);
const PAUSE_MIN: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(30);

/// The failures of a job so far.
pub struct RestartHistory {
    allowed: u32,
    /// Failures since the job last ran this long (`SOUND`).
    pub failures: u32,
    /// Consecutive failures after a short run.
    short: u32,
}

impl RestartHistory {
    pub fn new(allowed: u32) -> Self {
        Self { allowed, failures: 0, short: 0 }
    }

    /// The pause before restarting a job that ran for `life` and failed; `None` if no restart is left.
    ///
    /// The pause is zero after the first failure, and then grows each time.
    pub fn after(&mut self, life: Duration) -> Option<Duration> {
        if life >= SOUND {
            self.failures = 0;
        }
        if self.failures == self.allowed {
            return None;
        }
        self.failures += 1;
        self.short = if life < SHORT { self.short + 1 } else { 0 };
        let doublings = self.short.checked_sub(2);
        Some(doublings.map_or(Duration::ZERO, |n| PAUSE_MIN.saturating_mul(2u32.saturating_pow(n)).min(PAUSE_MAX)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOMENT: Duration = Duration::from_secs(1);

    #[test]
    fn consecutive_failures_are_counted_and_their_pauses_grow() {
        let mut restarts = RestartHistory::new(40);
        let pauses: Vec<u128> = (0..40).map(|_| restarts.after(MOMENT).unwrap().as_millis()).collect();
        assert_eq!(pauses[..5], [0, 100, 200, 400, 800]);
        assert!(pauses[10..].iter().all(|&pause| pause == 30_000));
        assert_eq!(restarts.after(MOMENT), None);
        assert_eq!(RestartHistory::new(0).after(SOUND), None);
    }

    #[test]
    fn a_job_that_ran_well_may_fail_again() {
        let mut restarts = RestartHistory::new(2);
        for life in [MOMENT, MOMENT, SOUND, MOMENT] {
            assert!(restarts.after(life).is_some(), "{life:?}");
        }
        assert_eq!(restarts.after(SHORT), None);
        // A failure after a while does not count as one that follows at once.
        let mut restarts = RestartHistory::new(9);
        let pauses: Vec<u128> =
            [MOMENT, MOMENT, SHORT, MOMENT].map(|life| restarts.after(life).unwrap().as_millis()).into();
        assert_eq!(pauses, [0, 100, 0, 0]);
    }
}
