//! Turns: a turn lasts from the moment a copy is polled until it waits or yields its thread. What it sends in between
//! may wait for the end of the turn, which comes soon. So small batches are combined depending on how busy their
//! sender is, and never wait for a clock.

use std::cell::RefCell;
use std::marker::PhantomData;
use std::sync::Arc;

/// Has work to do at the end of a turn.
pub(crate) trait TurnWaiter: Send + Sync {
    /// Called at the end of the turn, to do that work.
    fn on_turn_end(&self);
}

/// Who waits for the end of a turn, and the thread on which the turn ends: 0 if that may be any thread.
#[derive(Default)]
struct CurrentTurn {
    waiting: Vec<Arc<dyn TurnWaiter>>,
    thread: usize,
}

thread_local! {
    /// The turn in progress on this thread, if any.
    static UNDER_WAY: RefCell<Option<CurrentTurn>> = const { RefCell::new(None) };
    static HERE: u8 = const { 0 };
}

/// The number of this thread, which no other thread has while this one lives; not 0.
#[inline]
pub(crate) fn this_thread() -> usize {
    HERE.with(|here| std::ptr::from_ref(here).addr())
}

/// A turn in progress. It ends when it is dropped, on the same thread. A nested turn ends separately.
pub(crate) struct Turn {
    around: Option<CurrentTurn>,
    /// Not sent to another thread.
    _here: PhantomData<*const ()>,
}

impl Turn {
    pub(crate) fn begin() -> Turn {
        let turn = CurrentTurn { waiting: Vec::new(), thread: this_thread() };
        Turn { around: UNDER_WAY.replace(Some(turn)), _here: PhantomData }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let turn = UNDER_WAY.replace(self.around.take());
        turn.into_iter().flat_map(|turn| turn.waiting).for_each(|waiting| waiting.on_turn_end());
    }
}

/// A turn of a copy that blocks its thread. It continues between the copy's calls, since nobody sees what else the
/// copy does, until someone ends it.
#[derive(Default)]
pub struct LongTurn(Vec<Arc<dyn TurnWaiter>>);

impl LongTurn {
    /// Runs `work` within this turn.
    pub(crate) fn within<R>(&mut self, work: impl FnOnce() -> R) -> R {
        struct Inside<'a>(&'a mut LongTurn, Option<CurrentTurn>);
        impl Drop for Inside<'_> {
            fn drop(&mut self) {
                self.0.0 = UNDER_WAY.replace(self.1.take()).unwrap_or_default().waiting;
            }
        }
        let turn = CurrentTurn { waiting: std::mem::take(&mut self.0), thread: 0 };
        let around = UNDER_WAY.replace(Some(turn));
        let _inside = Inside(self, around);
        work()
    }

    /// Whether nothing waits for its end.
    pub fn is_idle(&self) -> bool {
        self.0.is_empty()
    }

    /// Ends the turn, and starts another one.
    pub fn end(&mut self) {
        self.0.drain(..).for_each(|waiting| waiting.on_turn_end());
    }
}

/// Registers `waiting` for the end of the turn. Returns the number of the thread on which the turn ends, or 0 if that
/// may be any thread; `None` outside a turn, where nobody would call `waiting`.
pub(crate) fn join(waiting: impl FnOnce() -> Arc<dyn TurnWaiter>) -> Option<usize> {
    UNDER_WAY.with_borrow_mut(|under_way| {
        let turn = under_way.as_mut()?;
        turn.waiting.push(waiting());
        Some(turn.thread)
    })
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    #[derive(Default)]
    struct Count(AtomicU32);

    impl TurnWaiter for Count {
        fn on_turn_end(&self) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// A waiter that never learned of the end of its turn would keep rows forever, and a nested turn must not end the
    /// outer one.
    #[test]
    fn each_is_told_at_the_end_of_its_own_turn() {
        let (outer, inner) = (Arc::new(Count::default()), Arc::new(Count::default()));
        let told = |count: &Arc<Count>| count.0.load(Ordering::Relaxed);
        let to_join = |count: &Arc<Count>| join(|| Arc::clone(count) as _);
        let here = Some(this_thread());
        assert_eq!(to_join(&outer), None, "no turn is under way");
        let turn = Turn::begin();
        assert_eq!(to_join(&outer), here);
        {
            let _within = Turn::begin();
            assert_eq!(to_join(&inner), here);
        }
        assert_eq!((told(&outer), told(&inner)), (0, 1));
        assert_eq!(to_join(&inner), here);
        drop(turn);
        assert_eq!((told(&outer), told(&inner)), (1, 2));
        assert_eq!(to_join(&outer), None);
        assert_ne!(std::thread::spawn(this_thread).join().unwrap(), this_thread());
    }

    /// A long turn must be current whenever something is done in it, and not otherwise. Its end calls each waiter
    /// once.
    #[test]
    fn a_long_turn_goes_on() {
        let (long, short) = (Arc::new(Count::default()), Arc::new(Count::default()));
        let told = |count: &Arc<Count>| count.0.load(Ordering::Relaxed);
        let to_join = |count: &Arc<Count>| join(|| Arc::clone(count) as _);
        let mut turn = LongTurn::default();
        assert!(turn.is_idle());
        for _ in 0..2 {
            assert_eq!(turn.within(|| to_join(&long)), Some(0), "whoever ends it");
            assert_eq!(to_join(&long), None, "outside");
        }
        let _around = Turn::begin();
        let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| turn.within(|| panic!("within"))));
        assert!(panicked.is_err() && to_join(&short).is_some() && !turn.is_idle());
        turn.end();
        assert_eq!((told(&long), told(&short), turn.is_idle()), (2, 0, true));
        assert!(turn.within(|| to_join(&long)).is_some());
        turn.end();
        assert_eq!(told(&long), 3);
    }
}
