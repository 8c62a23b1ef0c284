//! When to say once more that a split has nothing: whoever counts how long has to know that it was looked at, and hears
//! so whenever it has been for twice as long.

use std::time::{Duration, Instant};

/// Before it is said for the second time.
const FIRST: Duration = Duration::from_millis(50);

/// A split that has nothing more for now.
#[derive(Clone, Debug)]
pub(crate) struct IdleSplit {
    since: Instant,
    /// When it is said again.
    next: Instant,
}

impl IdleSplit {
    /// From now on; that is said, too.
    pub(crate) fn new(now: Instant) -> Self {
        IdleSplit { since: now, next: now + FIRST }
    }

    /// The split has nothing. True: say so.
    pub(crate) fn of(split: &mut Option<IdleSplit>, now: Instant) -> bool {
        match split {
            Some(quiet) => quiet.goes_on(now),
            None => {
                *split = Some(IdleSplit::new(now));
                true
            }
        }
    }

    /// It still has nothing. True: say so.
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

    /// One that is not told of again is never idle beside others that go on; one that always is keeps everybody busy.
    #[test]
    fn it_is_said_when_it_was_so_for_twice_as_long() {
        let begun = Instant::now();
        let mut quiet = IdleSplit::new(begun);
        let told = (1..10_000).filter(|ms| quiet.goes_on(begun + Duration::from_millis(*ms)));
        assert_eq!(told.collect::<Vec<_>>(), [50, 100, 200, 400, 800, 1600, 3200, 6400]);
    }
}
