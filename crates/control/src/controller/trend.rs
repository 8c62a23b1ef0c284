//! The sources' rate, recently and in the long term.

use std::collections::VecDeque;

/// For how many seconds rates are kept.
const RECENT_S: f64 = 3.0;
/// Fewer seconds than this are not enough.
const WHOLE_S: f64 = 0.9;
/// The time constant of the long-term mean, in seconds.
const LONG_S: f64 = 60.0;
/// A rate has fallen if it is below this fraction of the long-term mean.
const FALLEN: f64 = 0.9;
/// A rate is steady if its recent values have no direction: the means of their halves differ by at most this
/// fraction. All rates over those seconds then belong to the same state, however much they jump.
const STEADY: f64 = 0.15;

/// The sources' rate.
#[derive(Debug, Default)]
pub(super) struct Trend {
    /// Times, each with the rate over the second before; the newest last.
    seconds: VecDeque<(f64, f64)>,
    long: Option<f64>,
    fallen_s: Option<f64>,
}

impl Trend {
    pub(super) fn add(&mut self, now_s: f64, rate: f64) {
        let last_s = self.seconds.back().map(|(at_s, _)| *at_s);
        if last_s.is_some_and(|last_s| now_s <= last_s) {
            return;
        }
        self.seconds.push_back((now_s, rate));
        while self.seconds.front().is_some_and(|(at_s, _)| now_s - at_s > RECENT_S) {
            self.seconds.pop_front();
        }
        let recent = self.recent();
        if self.is_whole() && recent > 0.0 {
            let long = *self.long.get_or_insert(recent);
            // Frozen while the rate is lower, so that the higher rate is remembered.
            if recent >= long {
                let passed_s = last_s.map_or(0.0, |last_s| now_s - last_s);
                self.long = Some(long + (recent - long) * (1.0 - (-passed_s / LONG_S).exp()));
            }
        }
        self.fallen_s = if self.has_fallen() { self.fallen_s.or(Some(now_s)) } else { None };
    }

    /// The median of the recent seconds.
    pub(super) fn recent(&self) -> f64 {
        let mut rates: Vec<f64> = self.seconds.iter().map(|(_, rate)| *rate).collect();
        rates.sort_by(f64::total_cmp);
        rates.get(rates.len() / 2).copied().unwrap_or(0.0)
    }

    /// Whether there are enough observations.
    fn is_whole(&self) -> bool {
        let ends = self.seconds.front().zip(self.seconds.back());
        ends.is_some_and(|(first, last)| last.0 - first.0 >= WHOLE_S)
    }

    /// Forgets recent rates, which belong to another state of the job. What was usual stays.
    pub(super) fn forget_recent(&mut self) {
        let kept = self.seconds.len().saturating_sub(1);
        self.seconds.drain(..kept);
    }

    pub(super) fn has_fallen(&self) -> bool {
        self.long.is_some_and(|long| self.recent() < FALLEN * long)
    }

    /// For how many seconds the rate has been low.
    pub(super) fn fallen_for(&self, now_s: f64) -> f64 {
        self.fallen_s.map_or(0.0, |since_s| now_s - since_s)
    }

    pub(super) fn is_steady(&self) -> bool {
        let half = self.seconds.len() / 2;
        let mean = |from: usize, count: usize| {
            self.seconds.iter().skip(from).take(count).map(|(_, rate)| rate / count as f64).sum::<f64>()
        };
        let (before, after) = (mean(0, half), mean(half, self.seconds.len() - half));
        self.is_whole() && (before - after).abs() <= STEADY * before.max(after)
    }

    /// Forgets everything, because another rate is expected.
    pub(super) fn reset(&mut self) {
        *self = Self::default();
    }

    /// Makes the current rate the usual one.
    pub(super) fn forget_long(&mut self) {
        (self.long, self.fallen_s) = (None, None);
    }
}
