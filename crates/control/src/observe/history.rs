//! The most recent samples of one worker.

use std::collections::VecDeque;

use crate::sample::WorkerSample;

/// Rates cover this many nanoseconds, slightly more than three seconds because samples come at uneven times.
const SPAN_NS: u64 = 3_200_000_000;
/// Shorter spans say nothing.
const SPAN_NS_MIN: u64 = 100_000_000;
/// One second, with some tolerance.
const SECOND_NS: u64 = 900_000_000;
const SECOND_NS_MAX: u64 = 1_200_000_000;
/// A worker that has been silent for this long no longer counts.
const SILENCE_S: f64 = 10.0;

/// A span has at least this many samples, if there are as many.
const SAMPLES_MIN: usize = 2;

/// The most recent samples of one worker, the newest last.
#[derive(Debug, Default)]
pub(super) struct History {
    samples: VecDeque<WorkerSample>,
    heard_s: f64,
}

impl History {
    /// Adds a sample unless it is the latest one already; starts again if its counters did.
    pub(super) fn push(&mut self, now_s: f64, sample: &WorkerSample) {
        if let Some(last) = self.samples.back() {
            if last.at_ns == sample.at_ns {
                return;
            }
            if sample.at_ns < last.at_ns || sample.cpu_ns < last.cpu_ns {
                self.samples.clear();
            }
        }
        self.heard_s = now_s;
        self.samples.push_back(sample.clone());
        self.keep_last(SPAN_NS);
    }

    /// Forgets all but the last second: what was before belongs to another state of the job.
    pub(super) fn keep_last_second(&mut self) {
        self.keep_last(SECOND_NS_MAX);
    }

    fn keep_last(&mut self, span_ns: u64) {
        let Some(newest_ns) = self.samples.back().map(|sample| sample.at_ns) else { return };
        while self.samples.len() > SAMPLES_MIN && newest_ns - self.samples[0].at_ns > span_ns {
            self.samples.pop_front();
        }
    }

    /// Forgets a worker that has been silent for long.
    pub(super) fn forget_if_silent(&mut self, now_s: f64) {
        if now_s - self.heard_s > SILENCE_S {
            self.samples.clear();
        }
    }

    /// The span that rates cover; `None` if there are too few samples.
    pub(super) fn span(&self) -> Option<Span<'_>> {
        Span::between(self.samples.front()?, self.samples.back()?)
    }

    /// The last second.
    pub(super) fn last_second(&self) -> Option<Span<'_>> {
        let newest = self.samples.back()?;
        let earlier = self.samples.iter().rev().find(|sample| newest.at_ns - sample.at_ns >= SECOND_NS);
        Span::between(earlier.or(self.samples.front())?, newest)
    }
}

/// Two samples of a worker.
#[derive(Clone, Copy)]
pub(super) struct Span<'a> {
    pub(super) oldest: &'a WorkerSample,
    pub(super) newest: &'a WorkerSample,
    pub(super) seconds: f64,
}

impl<'a> Span<'a> {
    fn between(oldest: &'a WorkerSample, newest: &'a WorkerSample) -> Option<Self> {
        let ns = newest.at_ns.saturating_sub(oldest.at_ns);
        (ns >= SPAN_NS_MIN).then_some(Self { oldest, newest, seconds: ns as f64 / 1e9 })
    }

    /// The seconds between the readings of buckets; `None` if that says nothing.
    pub(super) fn bucket_seconds(&self) -> Option<f64> {
        let ns = self.newest.buckets_at_ns.saturating_sub(self.oldest.buckets_at_ns);
        (ns >= SPAN_NS_MIN).then_some(ns as f64 / 1e9)
    }

    /// How much a counter rises per second.
    pub(super) fn rate(&self, counter: impl Fn(&WorkerSample) -> u64) -> f64 {
        counter(self.newest).saturating_sub(counter(self.oldest)) as f64 / self.seconds
    }
}
