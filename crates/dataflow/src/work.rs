//! How long steps of a job work: what `tidemill top` shows as busy, with the time that a row takes.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

/// What one call of a function of the program should take, about: batches are cut to that, so that marks pass between calls.
pub(crate) const CALL: Duration = Duration::from_millis(75);
/// What may be queued in front of a step whose rows take long, in time.
pub(crate) const QUEUE: Duration = Duration::from_secs(1);
/// How many rows a function gets at first, when nobody knows yet how long it takes.
const FIRST_ROWS: usize = 8;
/// How fast the number of rows may grow from call to call.
const GROWTH: usize = 8;

/// The working time of a step, all of its copies on this worker together.
#[derive(Debug, Default)]
pub struct Work {
    busy_ns: AtomicU64,
    rows: AtomicU64,
    /// Calls that have not returned: a long one is seen while it lasts.
    running: Mutex<Vec<(u64, Instant)>>,
    begun: AtomicU64,
    copies: AtomicU64,
}

impl Work {
    /// Runs `call`, which works on so many rows, and counts how long it takes.
    pub fn time<T>(&self, rows: usize, call: impl FnOnce() -> T) -> T {
        let running = Running::begin(self);
        let made = call();
        drop(running);
        self.rows.fetch_add(rows as u64, Ordering::Relaxed);
        made
    }

    /// The same of what waits outside, such as for a server.
    pub async fn time_async<F: Future>(&self, rows: usize, call: F) -> F::Output {
        let running = Running::begin(self);
        let made = call.await;
        drop(running);
        self.rows.fetch_add(rows as u64, Ordering::Relaxed);
        made
    }

    fn busy_ns(&self) -> u64 {
        let running = self.running.lock();
        let now: u64 = running.iter().map(|(_, since)| since.elapsed().as_nanos() as u64).sum();
        self.busy_ns.load(Ordering::Relaxed) + now
    }
}

/// A call that has not returned. Ends with it, also when whoever waits for it gives up.
struct Running<'a> {
    work: &'a Work,
    number: u64,
    since: Instant,
}

impl<'a> Running<'a> {
    fn begin(work: &'a Work) -> Self {
        let (number, since) = (work.begun.fetch_add(1, Ordering::Relaxed), Instant::now());
        work.running.lock().push((number, since));
        Running { work, number, since }
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.work.running.lock().retain(|&(other, _)| other != self.number);
        self.work.busy_ns.fetch_add(self.since.elapsed().as_nanos() as u64, Ordering::Relaxed);
    }
}

/// How long a step of one worker has worked.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkReport {
    /// The task, or a function of the program within one: `enrich in window 1, first half 0`.
    pub step: String,
    /// Working time of its copies together, in nanoseconds.
    pub busy_ns: u64,
    /// Rows that it has taken.
    pub rows: u64,
    /// Its copies on this worker.
    pub copies: u64,
}

/// The steps of a run on this worker, by name.
#[derive(Debug, Default)]
pub(crate) struct Works(Mutex<BTreeMap<String, Arc<Work>>>);

impl Works {
    /// Where one more copy of a step counts.
    pub(crate) fn of(&self, step: &str) -> Arc<Work> {
        let mut works = self.0.lock();
        let work = works.entry(step.to_owned()).or_default();
        work.copies.fetch_add(1, Ordering::Relaxed);
        Arc::clone(work)
    }

    pub(crate) fn reports(&self) -> Vec<WorkReport> {
        let report = |(step, work): (&String, &Arc<Work>)| WorkReport {
            step: step.clone(),
            busy_ns: work.busy_ns(),
            rows: work.rows.load(Ordering::Relaxed),
            copies: work.copies.load(Ordering::Relaxed),
        };
        self.0.lock().iter().map(report).collect()
    }
}

/// How many rows a function of the program gets at a time: as many as take [`CALL`], by what calls before have taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pace {
    rows: usize,
    row_ns: u64,
}

impl Default for Pace {
    fn default() -> Self {
        Pace { rows: FIRST_ROWS, row_ns: 0 }
    }
}

impl Pace {
    pub(crate) fn rows(&self) -> usize {
        self.rows
    }

    /// What a row takes; 0: not known, or so little that it does not matter.
    pub(crate) fn row_ns(&self) -> u64 {
        self.row_ns
    }

    /// A call with so many rows has taken so long.
    pub(crate) fn learn(&mut self, rows: usize, took: Duration) {
        if rows == 0 {
            return;
        }
        let row_ns = (took.as_nanos() as u64 / rows as u64).max(1);
        // Down at once, for the next call would be as long; up in steps, for one fast call may be an exception.
        let fits = usize::try_from(CALL.as_nanos() as u64 / row_ns).unwrap_or(usize::MAX);
        self.rows = fits.clamp(1, self.rows.saturating_mul(GROWTH).max(1));
        self.row_ns = row_ns;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A pace that never shrank would hold up barriers, one that never grew would make fast functions slow.
    #[test]
    fn rows_follow_what_calls_take() {
        let mut pace = Pace::default();
        assert_eq!(pace.rows(), FIRST_ROWS);
        pace.learn(8, Duration::from_micros(8));
        assert_eq!(pace.rows(), 64);
        for _ in 0..4 {
            pace.learn(pace.rows(), Duration::from_nanos(pace.rows() as u64));
        }
        assert!(pace.rows() >= 8192, "a fast function gets whole batches");
        pace.learn(1000, Duration::from_secs(2));
        assert_eq!((pace.rows(), pace.row_ns()), (37, 2_000_000));
        pace.learn(37, Duration::from_secs(370));
        assert_eq!(pace.rows(), 1, "one row at least");
        pace.learn(0, Duration::from_secs(1));
        assert_eq!(pace.rows(), 1);
    }

    #[test]
    fn a_call_that_lasts_is_seen() {
        let works = Works::default();
        let work = works.of("slow");
        let during = work.time(3, || {
            std::thread::sleep(Duration::from_millis(2));
            works.reports()[0].busy_ns
        });
        let report = &works.reports()[0];
        assert!(during >= 2_000_000 && report.busy_ns >= during);
        assert_eq!((report.rows, report.copies), (3, 1));
    }
}
