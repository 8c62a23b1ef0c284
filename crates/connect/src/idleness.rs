//! Decides when to report again that a split is idle. The receiver measures idle time and has to know that the split
//! was checked, so each report comes after twice the idle time of the previous one.

use std::time::{Duration, Instant};

/// Time before the second report.
const FIRST: Duration = Duration::from_millis(50);

/// A split that has nothing more for now.
#[derive(Clone, Debug)]
pub(crate) struct IdleSplit {
    since: Instant,
    /// The time of the next report.
    next: Instant,
}

impl IdleSplit {
    /// A split that is idle from now on; the caller reports that.
    pub(crate) fn new(now: Instant) -> Self {
        IdleSplit { since: now, next: now + FIRST }
    }

    /// Notes that the split has nothing. Returns whether to report it.
    pub(crate) fn of(split: &mut Option<IdleSplit>, now: Instant) -> bool {
        match split {
            Some(quiet) => quiet.goes_on(now),
            None => {
                *split = Some(IdleSplit::new(now));
                true
            }
        }
    }

    /// Notes that it still has nothing. Returns whether to report it.
    pub(crate) fn goes_on(&mut self, now: Instant) -> bool {
        let due = now >= self.next;
        if due {
            self.next = now + (now - self.since);
        }
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Without further reports, a split beside busy ones would never count as idle; constant reports would keep
    /// everything busy.
    #[test]
    fn it_is_said_when_it_was_so_for_twice_as_long() {
        let begun = Instant::now();
        let mut quiet = IdleSplit::new(begun);
        let told = (1..10_000).filter(|ms| quiet.goes_on(begun + Duration::from_millis(*ms)));
        assert_eq!(told.collect::<Vec<_>>(), [50, 100, 200, 400, 800, 1600, 3200, 6400]);
    }
}
