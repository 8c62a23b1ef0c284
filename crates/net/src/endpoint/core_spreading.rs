//! Spreads workers that share cores evenly over them.
//!
//! A waiting worker yields its core instead of sleeping, and often wakes others together with it: if more workers
//! than cores make a burst of short calls, five may be on one core and three on the other. The kernel corrects this
//! within tens of milliseconds, since it considers past load, but bursts are shorter: each call then takes as long as
//! the fuller core needs, and while workers on the other core wait, they take time from the others on it. So workers
//! tell each other where they run, and a worker on an overfull core moves to a less occupied one. It moves once and
//! is not pinned there: the kernel stays free to move it again.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use parking_lot::Mutex;
use rustix::thread::{CpuSet, sched_getaffinity, sched_getcpu, sched_setaffinity};

use super::engine::coarse_now;
use crate::segment::SegmentRef;

/// How many yields lie between two looks at where the others are.
const YIELDS_PER_LOOK: u32 = 16;
/// How long a worker's announcement is valid: after that, the worker is computing or waiting for something else.
const FRESH_MS: u64 = 50;
/// The shortest time between two moves of a worker.
const REST_MS: u64 = 20;

const CPU_BITS: u32 = 16;

/// One worker's view.
pub(super) struct CoreSpreading {
    /// Where this worker last ran, and when: the processor in the low bits, milliseconds above.
    mine: SegmentRef<AtomicU64>,
    /// The same for the other workers of the host.
    others: Vec<SegmentRef<AtomicU64>>,
    yields: AtomicU32,
    /// Held during a look: a worker's threads take turns.
    look: Mutex<CoreSample>,
}

struct CoreSample {
    moved_ms: u64,
    /// The number of workers by processor.
    counts: Vec<u32>,
}

impl CoreSpreading {
    pub(super) fn new(mine: SegmentRef<AtomicU64>, others: Vec<SegmentRef<AtomicU64>>) -> Self {
        CoreSpreading {
            mine,
            others,
            yields: AtomicU32::new(0),
            look: Mutex::new(CoreSample { moved_ms: 0, counts: Vec::new() }),
        }
    }

    /// Called before a wait yields.
    #[inline]
    pub(super) fn yielding(&self) {
        let yields = self.yields.load(Ordering::Relaxed).wrapping_add(1);
        // Threads may occasionally lose a count; that is good enough.
        self.yields.store(yields, Ordering::Relaxed);
        if yields.is_multiple_of(YIELDS_PER_LOOK) {
            self.look(coarse_now().as_millis() as u64);
        }
    }

    fn look(&self, now_ms: u64) {
        let Some(mut look) = self.look.try_lock() else { return };
        let here = sched_getcpu();
        self.say(here, now_ms);
        let counts = &mut look.counts;
        counts.clear();
        counts.resize(here + 1, 0);
        counts[here] = 1;
        for other in &self.others {
            let said = other.load(Ordering::Relaxed);
            let (cpu, said_ms) = ((said & ((1 << CPU_BITS) - 1)) as usize, said >> CPU_BITS);
            if now_ms.saturating_sub(said_ms) <= FRESH_MS {
                if cpu >= counts.len() {
                    counts.resize(cpu + 1, 0);
                }
                counts[cpu] += 1;
            }
        }
        if counts[here] < 2 || now_ms.saturating_sub(look.moved_ms) < REST_MS {
            return;
        }
        // The current set: a program may have pinned its thread since the job began.
        let Ok(allowed) = sched_getaffinity(None) else { return };
        if let Some(there) = better(here, &look.counts, (0..CpuSet::MAX_CPU).filter(|&cpu| allowed.is_set(cpu))) {
            look.moved_ms = now_ms;
            // Announce it first: other workers on this core look later, and then stay.
            self.say(there, now_ms);
            move_to(there, &allowed);
        }
    }

    fn say(&self, cpu: usize, now_ms: u64) {
        self.mine.store(now_ms << CPU_BITS | cpu as u64, Ordering::Relaxed);
    }
}

/// A better processor for a worker that runs on `here`: the emptiest of the `allowed` ones, if it would have fewer
/// workers, including this one, than `here` has now.
fn better(here: usize, counts: &[u32], allowed: impl Iterator<Item = usize>) -> Option<usize> {
    let at = |cpu: usize| counts.get(cpu).copied().unwrap_or(0);
    allowed.min_by_key(|&cpu| at(cpu)).filter(|&cpu| at(cpu) + 1 < at(here))
}

/// Moves the calling thread, which may then run on any of the `allowed` processors again.
fn move_to(cpu: usize, allowed: &CpuSet) {
    let mut only = CpuSet::new();
    only.set(cpu);
    // Both calls fail only if the set of allowed processors has just changed, and then the system moves the thread
    // anyway.
    if sched_setaffinity(None, &only).is_ok() {
        let _ = sched_setaffinity(None, allowed);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use proptest::prelude::*;

    use super::*;
    use crate::segment::{PAGE_BYTES, Segment};

    fn said(cpu: usize, ms: u64) -> SegmentRef<AtomicU64> {
        let word: SegmentRef<AtomicU64> = Arc::new(Segment::private(PAGE_BYTES).unwrap()).shared(0);
        word.store(ms << CPU_BITS | cpu as u64, Ordering::Relaxed);
        word
    }

    proptest! {
        /// From any start, workers that look in turn must settle, spread as evenly as possible.
        #[test]
        fn they_come_to_rest_evenly(mut at in prop::collection::vec(0usize..6, 1..40)) {
            let counts = |at: &[usize]| (0..6).map(|cpu| at.iter().filter(|&&other| other == cpu).count() as u32).collect::<Vec<_>>();
            for _ in 0..2 {
                for worker in 0..at.len() {
                    if let Some(there) = better(at[worker], &counts(&at), 0..6) {
                        at[worker] = there;
                    }
                }
            }
            let counts = counts(&at);
            prop_assert!(counts.iter().max().unwrap() - counts.iter().min().unwrap() <= 1, "{counts:?}");
        }
    }

    /// A worker restricted to a few processors must stay on them.
    #[test]
    fn nobody_moves_to_a_forbidden_processor() {
        assert_eq!(better(0, &[4, 0, 1], [0, 2].into_iter()), Some(2));
        assert_eq!(better(0, &[4, 0, 1], [0].into_iter()), None);
        assert_eq!(better(0, &[2, 1], [0, 1].into_iter()), None, "one more there would be as many");
        assert_eq!(better(0, &[2], [0, 7].into_iter()), Some(7), "nobody has been there yet");
    }

    /// A thread must really move, and then be as free as before; an old announcement must not count.
    #[test]
    #[cfg_attr(miri, ignore = "system calls")]
    fn a_look_moves_the_thread_and_does_not_bind_it() {
        // In a separate thread: other threads of the test's process must not move.
        std::thread::spawn(|| {
            let allowed = sched_getaffinity(None).unwrap();
            if allowed.count() < 2 {
                println!("skipped: this process may use one processor only");
                return;
            }
            let (now_ms, here) = (1000, sched_getcpu());
            let old = CoreSpreading::new(
                said(0, 0),
                vec![said(here, now_ms - FRESH_MS - 1), said(here, now_ms - FRESH_MS - 1)],
            );
            old.look(now_ms);
            assert_eq!(old.look.lock().moved_ms, 0, "the others went elsewhere long ago");
            // The kernel may move this thread at any time, so the others claim to be everywhere except in one place.
            let free = (0..CpuSet::MAX_CPU).filter(|&cpu| allowed.is_set(cpu)).find(|&cpu| cpu != here).unwrap();
            let full = (0..CpuSet::MAX_CPU).filter(|&cpu| allowed.is_set(cpu) && cpu != free);
            let spread =
                CoreSpreading::new(said(0, 0), full.flat_map(|cpu| [said(cpu, now_ms), said(cpu, now_ms)]).collect());
            move_to(here, &allowed);
            spread.look(now_ms);
            let told = (spread.mine.load(Ordering::Relaxed) & ((1 << CPU_BITS) - 1)) as usize;
            assert_eq!(told, free, "it was on {here}");
            assert_eq!(sched_getaffinity(None).unwrap(), allowed);
        })
        .join()
        .unwrap();
    }
}
