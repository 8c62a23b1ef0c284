//! Detects whether other programs take a thread's processor: the system counts how often a runnable thread was
//! preempted.

use std::cell::Cell;
use std::time::{Duration, Instant};

/// Time between checks.
const INTERVAL: Duration = Duration::from_millis(100);
/// Preemptions per second above which a thread is not alone. Two programs on one processor take turns 50 times a second
/// or more; the system's own work interrupts only a few times.
const ALONE_PER_S: f64 = 20.0;
/// Consecutive checks that must agree: a short burst is no reason to give up a processor.
const LOOKS: u32 = 3;

/// The observations of a thread so far.
#[derive(Clone, Copy)]
struct CrowdingSample {
    at: Instant,
    interruptions: u64,
    /// Consecutive checks that found others on its processor.
    crowded: u32,
}

thread_local! {
    static SEEN: Cell<Option<CrowdingSample>> = const { Cell::new(None) };
}

/// Whether the calling thread has been preempted again and again. Call it often: it only checks now and then.
pub(super) fn is_displaced() -> bool {
    let now = Instant::now();
    let before = SEEN.get();
    if before.is_some_and(|seen| now - seen.at < INTERVAL) {
        return false;
    }
    let Some(interruptions) = interruptions() else { return false };
    let crowded = before.map_or(0, |seen| {
        let more = interruptions.saturating_sub(seen.interruptions) as f64;
        if more / (now - seen.at).as_secs_f64() > ALONE_PER_S { seen.crowded + 1 } else { 0 }
    });
    SEEN.set(Some(CrowdingSample { at: now, interruptions, crowded }));
    crowded >= LOOKS
}

/// How often the calling thread has lost its processor without waiting for anything; `None` if the system does not
/// report it.
#[cfg(target_os = "linux")]
fn interruptions() -> Option<u64> {
    // SAFETY: all-zero is a valid `rusage`, which the call fills in.
    unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        (libc::getrusage(libc::RUSAGE_THREAD, &raw mut usage) == 0).then_some(usage.ru_nivcsw.max(0) as u64)
    }
}

#[cfg(not(target_os = "linux"))]
fn interruptions() -> Option<u64> {
    None
}
