//! How fast a link is, derived from what the kernel has counted about it.
//!
//! The rate is the acknowledged bytes, divided by the time in which the connection had something to send and the other
//! end accepted it. That is the rate of the path in between, no matter how much this worker had to send. It covers the
//! last third of a second, since acknowledgments come in bursts.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use tidemill_net::LinkInfo;

/// The time that the rate covers.
const SPAN: Duration = Duration::from_millis(300);
/// The kernel counts busy time in ticks of its clock, which may be as long as this.
const BUSY_MIN: Duration = Duration::from_millis(10);
/// If a link was busy throughout a span, at least this fraction of it is counted as busy.
const ALL_THE_TIME: f64 = 0.9;
/// A connection that has carried less shows nothing about its rate yet.
const LIFE_BYTES_MIN: u64 = 1 << 20;

/// What the kernel had counted at a moment.
#[derive(Clone, Copy, Debug)]
struct RateSample {
    at: Instant,
    acked_bytes: u64,
    busy: Duration,
}

/// The measurement that the module describes.
#[derive(Debug, Default)]
pub(crate) struct LinkRate {
    samples: VecDeque<RateSample>,
}

/// A link's recent rate.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct RateEstimate {
    pub bytes_s: f64,
    /// Whether it was always busy: with more to send, the rate would have been the same.
    pub is_busy: bool,
}

/// The time in which a connection had something to send and the other end accepted it.
fn busy(info: &LinkInfo) -> Duration {
    Duration::from_micros(info.busy_us.saturating_sub(info.receiver_limited_us))
}

fn bytes_s(bytes: u64, busy: Duration) -> f64 {
    bytes as f64 / busy.max(BUSY_MIN).as_secs_f64()
}

/// The rate over a connection's whole life, if it has carried enough to tell.
pub(crate) fn life_rate(info: &LinkInfo) -> Option<f64> {
    (info.acked_bytes >= LIFE_BYTES_MIN).then(|| bytes_s(info.acked_bytes, busy(info)))
}

impl LinkRate {
    /// Adds what the kernel has counted until `now`. Returns `None` the first time.
    pub(crate) fn sample(&mut self, now: Instant, info: &LinkInfo) -> Option<RateEstimate> {
        let sample = RateSample { at: now, acked_bytes: info.acked_bytes, busy: busy(info) };
        // A new connection counts from 0.
        if self.samples.back().is_some_and(|last| last.acked_bytes > sample.acked_bytes || last.busy > sample.busy) {
            self.samples.clear();
        }
        // Keep one sample older than the span, so that the samples cover at least the span.
        while self.samples.get(1).is_some_and(|second| now.duration_since(second.at) >= SPAN) {
            self.samples.pop_front();
        }
        self.samples.push_back(sample);
        let first = self.samples.front().filter(|first| first.at < now)?;
        let (passed, busy) = (now.duration_since(first.at), sample.busy - first.busy);
        Some(RateEstimate {
            bytes_s: bytes_s(sample.acked_bytes - first.acked_bytes, busy),
            is_busy: busy.as_secs_f64() >= ALL_THE_TIME * passed.as_secs_f64(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn info(acked_bytes: u64, busy_ms: u64) -> LinkInfo {
        LinkInfo { acked_bytes, busy_us: 1000 * busy_ms, ..LinkInfo::default() }
    }

    /// If an idle link counted as slow, it would be kept slow; a link that becomes slow must be noticed soon.
    #[test]
    fn a_rate_is_of_busy_time_and_of_late() {
        let (begin, mut rate) = (Instant::now(), LinkRate::default());
        let at = |ms| begin + Duration::from_millis(ms);
        assert_eq!(rate.sample(at(0), &info(0, 0)), None);
        let estimate = rate.sample(at(100), &info(100_000, 50)).unwrap();
        assert_eq!(estimate, RateEstimate { bytes_s: 2e6, is_busy: false });
        let estimate = rate.sample(at(1000), &info(100_000, 50)).unwrap();
        assert!(!estimate.is_busy);
        // From here on it is busy, and ten times slower.
        let late: Vec<_> = (1..=10)
            .map(|n| rate.sample(at(1000 + 50 * n), &info(100_000 + 10_000 * n, 50 + 50 * n)).unwrap())
            .collect();
        assert!(late[..3].iter().all(|estimate| !estimate.is_busy), "the span has idle time in it");
        assert_eq!(late[9], RateEstimate { bytes_s: 2e5, is_busy: true });
        assert_eq!(rate.sample(at(2000), &info(5, 1)), None, "another connection");
    }

    /// What the other end does not accept says nothing about the link.
    #[test]
    fn time_that_the_receiver_takes_is_not_the_links() {
        let (begin, mut rate) = (Instant::now(), LinkRate::default());
        rate.sample(begin, &info(0, 0));
        let held_up = LinkInfo { receiver_limited_us: 50_000, ..info(100_000, 100) };
        let estimate = rate.sample(begin + Duration::from_millis(100), &held_up).unwrap();
        assert_eq!(estimate, RateEstimate { bytes_s: 2e6, is_busy: false });
        assert_eq!(life_rate(&info(4_000_000, 2000)), Some(2e6));
        assert_eq!(life_rate(&info(4000, 2000)), None);
    }
}
