//! Turns: from the moment that a copy is polled until it waits, or gives its thread back. What it sends meanwhile may wait for
//! the turn's end, which is now: so small batches are put together by how busy their sender is, and never wait for a clock.

use std::cell::RefCell;
use std::sync::Arc;

/// Who has something that is to go at the turn's end.
pub(super) trait Waiting: Send + Sync {
    /// The turn is over: sends it.
    fn go(&self);
}

thread_local! {
    /// The turn that is under way on this thread, if one is.
    static UNDER_WAY: RefCell<Option<Vec<Arc<dyn Waiting>>>> = const { RefCell::new(None) };
}

/// A turn under way. Its end is when it is dropped. One within another ends by itself.
pub(crate) struct Turn {
    around: Option<Vec<Arc<dyn Waiting>>>,
}

impl Turn {
    pub(crate) fn begin() -> Turn {
        Turn { around: UNDER_WAY.replace(Some(Vec::new())) }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let waiting = UNDER_WAY.replace(self.around.take());
        waiting.into_iter().flatten().for_each(|waiting| waiting.go());
    }
}

/// A turn of a copy that blocks its thread: it goes on between what the copy does here, since nobody sees what else it does, until
/// somebody ends it.
#[derive(Default)]
pub struct LongTurn(Vec<Arc<dyn Waiting>>);

impl LongTurn {
    /// Does something in this turn.
    pub(crate) fn within<R>(&mut self, work: impl FnOnce() -> R) -> R {
        struct Inside<'a>(&'a mut LongTurn, Option<Vec<Arc<dyn Waiting>>>);
        impl Drop for Inside<'_> {
            fn drop(&mut self) {
                self.0.0 = UNDER_WAY.replace(self.1.take()).unwrap_or_default();
            }
        }
        let around = UNDER_WAY.replace(Some(std::mem::take(&mut self.0)));
        let _inside = Inside(self, around);
        work()
    }

    /// Whether nothing waits for its end.
    pub fn is_idle(&self) -> bool {
        self.0.is_empty()
    }

    /// The turn is over, and another one begins.
    pub fn end(&mut self) {
        self.0.drain(..).for_each(|waiting| waiting.go());
    }
}

/// Has `waiting` go at the end of the turn. `false`: there is none, and nobody would tell it.
pub(super) fn join(waiting: impl FnOnce() -> Arc<dyn Waiting>) -> bool {
    UNDER_WAY.with_borrow_mut(|under_way| match under_way {
        Some(all) => {
            all.push(waiting());
            true
        }
        None => false,
    })
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    #[derive(Default)]
    struct Count(AtomicU32);

    impl Waiting for Count {
        fn go(&self) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Who joined a turn and was not told of its end would keep rows for ever; one within another must not end that one.
    #[test]
    fn each_is_told_at_the_end_of_its_own_turn() {
        let (outer, inner) = (Arc::new(Count::default()), Arc::new(Count::default()));
        let told = |count: &Arc<Count>| count.0.load(Ordering::Relaxed);
        let to_join = |count: &Arc<Count>| join(|| Arc::clone(count) as _);
        assert!(!to_join(&outer), "no turn is under way");
        let turn = Turn::begin();
        assert!(to_join(&outer));
        {
            let _within = Turn::begin();
            assert!(to_join(&inner));
        }
        assert_eq!((told(&outer), told(&inner)), (0, 1));
        assert!(to_join(&inner));
        drop(turn);
        assert_eq!((told(&outer), told(&inner)), (1, 2));
        assert!(!to_join(&outer));
    }

    /// One that goes on must be there whenever something is done in it, and not outside; its end tells each once.
    #[test]
    fn a_long_turn_goes_on() {
        let (long, short) = (Arc::new(Count::default()), Arc::new(Count::default()));
        let told = |count: &Arc<Count>| count.0.load(Ordering::Relaxed);
        let to_join = |count: &Arc<Count>| join(|| Arc::clone(count) as _);
        let mut turn = LongTurn::default();
        assert!(turn.is_idle());
        for _ in 0..2 {
            assert!(turn.within(|| to_join(&long)));
            assert!(!to_join(&long), "outside");
        }
        let _around = Turn::begin();
        let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| turn.within(|| panic!("within"))));
        assert!(panicked.is_err() && to_join(&short) && !turn.is_idle());
        turn.end();
        assert_eq!((told(&long), told(&short), turn.is_idle()), (2, 0, true));
        assert!(turn.within(|| to_join(&long)));
        turn.end();
        assert_eq!(told(&long), 3);
    }
}
