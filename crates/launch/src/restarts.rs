//! How often a job that fails is started again, and after which pause.

use std::time::Duration;

/// What a job fails of that has run for so long has nothing to do with the failures before: it may fail as often again.
const SOUND: Duration = Duration::from_secs(3600);
/// A job that has not run for so long fails of something that is still there: a server that is away, a full disk.
const SHORT: Duration = Duration::from_secs(30);
const PAUSE_MIN: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(30);

/// Failures of a job so far.
pub struct RestartHistory {
    allowed: u32,
    /// Since the job last ran soundly.
    pub failures: u32,
    /// After a short life, in a row.
    short: u32,
}

impl RestartHistory {
    pub fn new(allowed: u32) -> Self {
        Self { allowed, failures: 0, short: 0 }
    }

    /// The pause before a job that ran for `life` and failed is started again; none when that is not allowed any more.
    ///
    /// There is none after the first failure, and from then on a longer one each time.
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
    fn failures_in_a_row_are_counted_and_follow_each_other_more_and_more_slowly() {
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
        // A failure after a while is not one of those that follow at once.
        let mut restarts = RestartHistory::new(9);
        let pauses: Vec<u128> =
            [MOMENT, MOMENT, SHORT, MOMENT].map(|life| restarts.after(life).unwrap().as_millis()).into();
        assert_eq!(pauses, [0, 100, 0, 0]);
    }
}
