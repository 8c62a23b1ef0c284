//! How long the steps of a job work: what `tidemill top` shows as busy, with the time per row.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tidemill_machine::ThreadClock;

use crate::observation::OutsideWork;

/// Roughly how long one call of a function of the program should take: batches are cut accordingly, so that marks
/// pass between calls.
pub(crate) const CALL: Duration = Duration::from_millis(75);
/// How much time's worth of rows may be queued in front of a step whose rows take long.
pub(crate) const QUEUE: Duration = Duration::from_secs(1);
/// How many rows a function receives at first, while its speed is unknown.
const FIRST_ROWS: usize = 8;
/// How fast the number of rows may grow from call to call.
const GROWTH: usize = 8;
/// The rows of a call should take at least this many times as long as the call's fixed cost.
const FIXED_PARTS: u64 = 4;
/// After this many calls of about the same length, one call is made longer to measure the cost of a row.
const ALIKE_MAX: u32 = 32;

/// The working time of a step, summed over all of its copies on this worker.
#[derive(Debug, Default)]
pub struct StepWork {
    busy_ns: AtomicU64,
    rows: AtomicU64,
    /// Calls that have not returned: a long one is visible while it lasts.
    running: Mutex<Vec<(u64, Instant)>>,
    begun: AtomicU64,
    copies: AtomicU64,
    /// Whether the task's operator is a function of the program.
    is_program: AtomicBool,
}

impl StepWork {
    /// Runs `call`, which works on `rows` rows, and counts how long it takes.
    pub fn time<T>(&self, rows: usize, call: impl FnOnce() -> T) -> T {
        let running = StepTimer::begin(self);
        let made = call();
        drop(running);
        self.rows.fetch_add(rows as u64, Ordering::Relaxed);
        made
    }

    /// Like [`StepWork::time`], for calls that wait for something outside, such as a server.
    pub async fn time_async<F: Future>(&self, rows: usize, call: F) -> F::Output {
        let running = (StepTimer::begin(self), OutsideWork::begin());
        let made = call.await;
        drop(running);
        self.rows.fetch_add(rows as u64, Ordering::Relaxed);
        made
    }

    /// Marks that what it times are functions of the program, although it has a task's name.
    pub(crate) fn set_program(&self) {
        self.is_program.store(true, Ordering::Relaxed);
    }

    fn busy_ns(&self) -> u64 {
        let running = self.running.lock();
        let now: u64 = running.iter().map(|(_, since)| since.elapsed().as_nanos() as u64).sum();
        self.busy_ns.load(Ordering::Relaxed) + now
    }
}

/// Times a call that has not returned. It ends with the call, even if the caller stops waiting.
struct StepTimer<'a> {
    work: &'a StepWork,
    number: u64,
    since: Instant,
}

impl<'a> StepTimer<'a> {
    fn begin(work: &'a StepWork) -> Self {
        let (number, since) = (work.begun.fetch_add(1, Ordering::Relaxed), Instant::now());
        work.running.lock().push((number, since));
        StepTimer { work, number, since }
    }
}

impl Drop for StepTimer<'_> {
    fn drop(&mut self) {
        self.work.running.lock().retain(|&(other, _)| other != self.number);
        self.work.busy_ns.fetch_add(self.since.elapsed().as_nanos() as u64, Ordering::Relaxed);
    }
}

/// How long a step has worked on one worker.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkReport {
    /// The task, or a function of the program within one: `enrich in window 1, first half 0`.
    pub step: String,
    /// The working time of its copies together, in nanoseconds.
    pub busy_ns: u64,
    /// How many rows it has received.
    pub rows: u64,
    /// The number of its copies on this worker.
    pub copies: u64,
}

/// A thread that runs functions of the program for a copy, and nothing else.
#[derive(Debug)]
pub(crate) struct ProgramThread {
    task: String,
    /// Until it ends.
    clock: Mutex<Option<ThreadClock>>,
    ended_ns: AtomicU64,
}

impl ProgramThread {
    /// The calling thread ends its work.
    pub(crate) fn end(&self) {
        if let Some(clock) = self.clock.lock().take() {
            self.ended_ns.store(clock.cpu_ns(), Ordering::Relaxed);
        }
    }

    fn cpu_ns(&self) -> u64 {
        // While locked, the thread has not ended.
        self.clock.lock().map_or_else(|| self.ended_ns.load(Ordering::Relaxed), ThreadClock::cpu_ns)
    }
}

/// The steps of a run on this worker.
#[derive(Debug, Default)]
pub(crate) struct StepWorks {
    by_name: Mutex<BTreeMap<String, Arc<StepWork>>>,
    threads: Mutex<Vec<Arc<ProgramThread>>>,
}

impl StepWorks {
    /// The counter of a step, for one more copy.
    pub(crate) fn of(&self, step: &str) -> Arc<StepWork> {
        let mut works = self.by_name.lock();
        let work = works.entry(step.to_owned()).or_default();
        work.copies.fetch_add(1, Ordering::Relaxed);
        Arc::clone(work)
    }

    /// The calling thread, a new one, runs functions of the program for a copy of a task until [`ProgramThread::end`].
    pub(crate) fn thread(&self, task: &str) -> Arc<ProgramThread> {
        let clock = Mutex::new(ThreadClock::current());
        let thread = Arc::new(ProgramThread { task: task.to_owned(), clock, ended_ns: AtomicU64::new(0) });
        self.threads.lock().push(Arc::clone(&thread));
        thread
    }

    /// How long functions of the program have worked within a task. On threads of their own they may wait for anything,
    /// so only CPU time counts there.
    pub(crate) fn program_ns(&self, task: &str) -> u64 {
        let of_task = |(step, work): &(&String, &Arc<StepWork>)| match step.strip_suffix(task) {
            Some("") => work.is_program.load(Ordering::Relaxed),
            Some(function) => function.ends_with(" in "),
            None => false,
        };
        let called: u64 = self.by_name.lock().iter().filter(of_task).map(|(_, work)| work.busy_ns()).sum();
        let threads = self.threads.lock();
        called + threads.iter().filter(|thread| thread.task == task).map(|thread| thread.cpu_ns()).sum::<u64>()
    }

    pub(crate) fn reports(&self) -> Vec<WorkReport> {
        let report = |(step, work): (&String, &Arc<StepWork>)| WorkReport {
            step: step.clone(),
            busy_ns: work.busy_ns(),
            rows: work.rows.load(Ordering::Relaxed),
            copies: work.copies.load(Ordering::Relaxed),
        };
        self.by_name.lock().iter().map(report).collect()
    }
}

/// Decides how many rows a function of the program receives at a time, from the duration of earlier calls: as many as
/// take [`CALL`]. The fixed cost of a call, such as a request to a server, would be paid more often with fewer rows.
/// To tell that cost from the cost per row, the pacer compares calls of different length, and makes some if none occur
/// by themselves. The fixed cost is at most a fifth of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BatchPacer {
    rows: usize,
    row_ns: u64,
    /// The duration of a call without rows, as far as known.
    fixed_ns: u64,
    /// The last call's rows and duration.
    last: Option<(usize, u64)>,
    /// Calls since the last two of different length; `None` if all have had the same length.
    alike: Option<u32>,
}

impl Default for BatchPacer {
    fn default() -> Self {
        BatchPacer { rows: FIRST_ROWS, row_ns: 0, fixed_ns: 0, last: None, alike: None }
    }
}

impl BatchPacer {
    pub(crate) fn rows(&self) -> usize {
        self.rows
    }

    /// The duration of a row, including its part of the call; 0 if unknown.
    pub(crate) fn row_ns(&self) -> u64 {
        self.row_ns
    }

    /// Learns from a call with `rows` rows that took `took`.
    pub(crate) fn learn(&mut self, rows: usize, took: Duration) {
        if rows == 0 {
            return;
        }
        let (count, took_ns) = (rows as u64, took.as_nanos() as u64);
        self.alike = self.alike.map(|calls| calls.saturating_add(1));
        if let Some((before, before_ns)) = self.last.replace((rows, took_ns))
            && differ(rows, before)
        {
            self.alike = Some(0);
            // The line through both points. A row's cost is at least zero, and at most the call's duration divided by
            // its number of rows.
            let (few, many) = match rows < before {
                true => ((rows, took_ns), (before, before_ns)),
                false => ((before, before_ns), (rows, took_ns)),
            };
            let slope = many.1.saturating_sub(few.1) / (many.0 - few.0).max(1) as u64;
            let slope = slope.min(few.1 / few.0 as u64).min(many.1 / many.0 as u64);
            // If few rows take much longer than many, the function's behavior has changed.
            if few.1 <= 2 * many.1 {
                // One call may be an exception.
                self.fixed_ns = self.fixed_ns.midpoint(few.1 - slope * few.0 as u64);
            }
        }
        let each = (took_ns.saturating_sub(self.fixed_ns) / count).max(1);
        let call_ns = (CALL.as_nanos() as u64).max(FIXED_PARTS * self.fixed_ns);
        // Decrease at once, since the next call would be as long; increase in steps, since one fast call may be an
        // exception.
        let fits = usize::try_from(call_ns / each).unwrap_or(usize::MAX);
        self.rows = fits.clamp(1, self.rows.saturating_mul(GROWTH).max(1));
        // Otherwise a function that starts with a single row, and whose cost is all in the call, would get one row
        // forever.
        if !differ(self.rows, rows) && self.alike.is_none_or(|calls| calls >= ALIKE_MAX) {
            self.rows = self.rows.saturating_add(self.rows.div_ceil(2));
        }
        self.row_ns = (took_ns / count).max(1);
    }
}

/// How long the rows take that a step passes on, together with its waits for room on links. Where that is long, only a
/// moment's worth of rows should wait in front of the step: a barrier waits behind all of them, and bytes say nothing
/// of the time.
#[derive(Debug, Default)]
pub(crate) struct SendPace {
    rows: u64,
    time: Duration,
    row_ns: u64,
}

impl SendPace {
    /// Single calls say nothing: rows are collected, and then wait together.
    const SPAN: Duration = Duration::from_millis(250);
    const ROWS: u64 = 1 << 16;
    /// Rows that take less do not matter.
    const ROW_NS_MIN: u64 = 20_000;

    /// Adds rows that took `time`. Returns whether [`SendPace::row_ns`] has been determined anew.
    pub(crate) fn pass(&mut self, rows: usize, time: Duration) -> bool {
        (self.rows, self.time) = (self.rows + rows as u64, self.time + time);
        let is_known = self.time >= Self::SPAN || self.rows >= Self::ROWS;
        if is_known {
            let row_ns = self.time.as_nanos() as u64 / self.rows.max(1);
            self.row_ns = if row_ns < Self::ROW_NS_MIN { 0 } else { row_ns };
            (self.rows, self.time) = (0, Duration::ZERO);
        }
        is_known
    }

    /// The duration of a row, 0 if that does not matter.
    pub(crate) fn row_ns(&self) -> u64 {
        self.row_ns
    }

    /// How many rows pass in a moment.
    pub(crate) fn call_rows(&self) -> usize {
        (CALL.as_nanos() as u64 / self.row_ns.max(1)).max(1) as usize
    }
}

/// Returns true if two calls differ enough in length to tell the cost of a row from that of a call.
fn differ(rows: usize, others: usize) -> bool {
    rows.abs_diff(others).saturating_mul(4) >= rows.min(others)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Calls a function with these durations per call and per row, and returns how many rows it finally receives.
    fn settled(call: Duration, row: Duration, rows_max: usize) -> usize {
        let mut pace = BatchPacer::default();
        for _ in 0..40 {
            let rows = pace.rows().min(rows_max);
            pace.learn(rows, call + row * rows as u32);
        }
        pace.rows()
    }

    /// Rows are collected and then wait together: a pace from single calls would be anything. One that stayed slow
    /// would keep a step short of rows when its link is free again.
    #[test]
    fn a_pace_of_sending_covers_many_calls() {
        let mut pace = SendPace::default();
        for call in 0..20 {
            let time = if call % 4 == 3 { Duration::from_millis(100) } else { Duration::ZERO };
            if pace.pass(16, time) {
                assert_eq!(pace.row_ns(), 300_000_000 / (12 * 16));
                assert_eq!(pace.call_rows(), 48);
            }
        }
        assert!(pace.row_ns() > 0);
        let mut is_known = false;
        while !is_known {
            is_known = pace.pass(1000, Duration::from_micros(100));
        }
        is_known = false;
        while !is_known {
            is_known = pace.pass(1000, Duration::from_micros(100));
        }
        assert_eq!(pace.row_ns(), 0);
    }

    /// A pace that never shrank would delay barriers; one that never grew would make fast functions slow.
    #[test]
    fn rows_follow_what_calls_take() {
        let mut pace = BatchPacer::default();
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

    /// With few rows at a time, a function that asks a server once per call would take many times as long.
    #[test]
    fn a_high_fixed_cost_does_not_reduce_the_rows_per_call() {
        let ms = Duration::from_millis;
        assert!(settled(ms(200), ms(0), 8192) >= 8192, "nothing but the call");
        assert!(settled(ms(200), ms(0), 100) >= 100, "the same in small batches");
        assert!(settled(ms(5), Duration::from_nanos(50), 8192) >= 8192);
        assert_eq!(settled(ms(0), ms(2), 8192), 37, "nothing but the rows");
        let both = settled(ms(200), ms(2), 8192);
        assert!((300..=500).contains(&both), "{both} rows: the call is a fifth of it");
    }

    /// A source yields few rows at first, like a queue that has only just been asked, and then as many as requested.
    #[test]
    fn a_start_with_few_rows_does_not_limit_later_calls() {
        let ms = Duration::from_millis;
        for first in 1..10 {
            for alike in [1, 5, 100] {
                let mut pace = BatchPacer::default();
                (0..alike).for_each(|_| pace.learn(first.min(pace.rows()), ms(200)));
                for _ in 0..100 {
                    pace.learn(pace.rows().min(500), ms(200));
                }
                assert!(pace.rows() >= 500, "{} rows after {alike} calls of {first}", pace.rows());
                let (mut slow, mut most) = (BatchPacer::default(), 0);
                for call in 0..200 {
                    let rows = slow.rows().min(if call < alike { first } else { 500 });
                    most = most.max(rows);
                    slow.learn(rows, ms(200) * rows as u32);
                }
                assert!(most <= 8 && slow.rows() <= 2, "{most} rows of 200 ms each");
            }
        }
    }

    /// One call in ten takes much longer, because of the machine.
    #[test]
    fn one_slow_call_changes_little() {
        let (mut pace, mut longest) = (BatchPacer::default(), 0);
        for call in 0..200 {
            let rows = pace.rows().min(8192);
            longest = longest.max(if call > 20 { rows } else { 0 });
            let late = if call % 10 == 7 { Duration::from_millis(300) } else { Duration::ZERO };
            pace.learn(rows, Duration::from_millis(2) * rows as u32 + late);
        }
        assert!(longest <= 600, "a call of {longest} rows");
    }

    #[test]
    fn a_call_that_lasts_is_seen() {
        let works = StepWorks::default();
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
