//! When to measure the links of hosts, and when to change the overlay: a state machine without clock or wire. With the
//! same calls and measurements every rank has the same overlay before each call.

use std::fmt::Write;

use super::choose::{OverlayChoice, OverlayKind, choose, plain, reconsider};
use super::model::{OverlayForecast, OverlayModel};
use super::{HostRate, Overlay};

/// Calls with fewer bytes are left to the tuner: they are over before a link's rate shows.
pub const ADAPTIVE_BYTES_MIN: u64 = 1 << 20;
/// Of a call's bytes a host sends one part in so many to be measured.
const PROBE_PART: u64 = 16;
/// What it sends then, all messages together, is between these: enough to tell, and not too much.
const PROBE_BYTES: std::ops::RangeInclusive<u64> = 512 << 10..=4 << 20;
/// Between measurements calls carry so many times the bytes of one: it costs one part in twice as many.
const BYTES_PER_PROBE: u64 = 64;
/// A change is worth it if it takes no more than this part of the time.
const GAIN: f64 = 0.9;
/// A direction of a host that has less than this part of the best rate is called slow.
const SLOW: f64 = 0.8;

/// What to measure now: every host sends every other one a message of this length, so many times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProbePlan {
    /// Bytes of a message.
    pub bytes: u64,
    /// How often.
    pub rounds: u32,
}

/// The overlay of a communicator that measures its links.
#[derive(Debug)]
pub struct AdaptiveOverlay {
    /// Each rank's host.
    host_of: Vec<u32>,
    hosts: u64,
    /// Of the last two measurements: a host that was slow in one may have been busy.
    measured: [Option<Vec<HostRate>>; 2],
    /// Bytes of the calls until the next measurement.
    bytes_left: u64,
    /// `None`: no overlay, the tuner chooses.
    choice: Option<OverlayChoice>,
    /// Bytes of the call that was decided for, and what it should take along the choice and without an overlay.
    decided: Option<(u64, OverlayForecast, OverlayForecast)>,
}

impl AdaptiveOverlay {
    /// Nothing is measured; `host_of` has each rank's host.
    pub fn new(host_of: &[u32]) -> AdaptiveOverlay {
        let hosts = host_of.iter().max().map_or(1, |&last| u64::from(last) + 1);
        let host_of = host_of.to_vec();
        AdaptiveOverlay { host_of, hosts, measured: [None, None], bytes_left: 0, choice: None, decided: None }
    }

    /// An all-reduce of so many bytes comes: what has to be measured before it, if anything.
    pub fn begin_call(&mut self, bytes: u64) -> Option<ProbePlan> {
        if self.hosts < 2 || bytes < ADAPTIVE_BYTES_MIN {
            return None;
        }
        if bytes < self.bytes_left {
            self.bytes_left -= bytes;
            return None;
        }
        let sent = (bytes / PROBE_PART).clamp(*PROBE_BYTES.start(), *PROBE_BYTES.end());
        self.bytes_left = sent * BYTES_PER_PROBE;
        let rounds = if self.measured[0].is_none() { 2 } else { 1 };
        Some(ProbePlan { bytes: sent / (self.hosts - 1), rounds })
    }

    /// Takes a measurement.
    pub fn measure(&mut self, rates: Vec<HostRate>) {
        self.measured.swap(0, 1);
        self.measured[0] = Some(rates);
    }

    /// Decides how all-reduces of about so many bytes go from here on. Whether that is another way.
    pub fn decide(&mut self, bytes: u64) -> bool {
        let Some(rates) = self.rates() else { return false };
        let model = OverlayModel::TYPICAL;
        let without = plain(&rates, &self.host_of, bytes, &model);
        let now =
            self.choice.as_ref().map_or(without, |choice| reconsider(choice, &rates, &self.host_of, bytes, &model));
        let best = choose(&rates, &self.host_of, bytes, &model);
        let is_better = best.forecast.mean_s <= GAIN * now.mean_s;
        // Back to what is simple as soon as nothing is lost by it.
        let is_needless = self.choice.is_some() && without.mean_s <= now.mean_s;
        let is_change = if is_better && best.overlay.is_some() {
            self.decided = Some((bytes, best.forecast, without));
            self.choice = Some(best);
            true
        } else if is_needless {
            self.decided = Some((bytes, without, without));
            self.choice = None;
            true
        } else {
            self.decided = Some((bytes, now, without));
            false
        };
        is_change
    }

    /// The trees to use; `None`: the tuner's choice.
    pub fn overlay(&self) -> Option<&Overlay> {
        self.choice.as_ref()?.overlay.as_ref()
    }

    /// The greater of the last two measurements.
    fn rates(&self) -> Option<Vec<HostRate>> {
        let [new, old] = &self.measured;
        let new = new.as_ref()?;
        let old = old.as_ref().unwrap_or(new);
        let greater = |(new, old): (&HostRate, &HostRate)| HostRate {
            input: new.input.max(old.input),
            output: new.output.max(old.output),
        };
        Some(new.iter().zip(old).map(greater).collect())
    }
}

/// For people: what is used and why.
impl std::fmt::Display for AdaptiveOverlay {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (Some(rates), Some((bytes, forecast, without))) = (self.rates(), self.decided) else {
            return f.write_str(match self.hosts {
                1 => "no overlay: all ranks are on one host",
                _ => "no overlay: nothing is measured before the first all-reduce of 1 MiB or more",
            });
        };
        match self.choice.as_ref().map(|choice| choice.kind) {
            Some(OverlayKind::Shards) => f.write_str("shards by the rates of their owners")?,
            Some(kind) => write!(f, "{kind}")?,
            None => f.write_str("no overlay: none would be faster by a tenth")?,
        }
        let mib = bytes as f64 / f64::from(1 << 20);
        write!(
            f,
            "; {mib:.1} MiB should take {:.3} s on average, the last host {:.3} s",
            forecast.mean_s, forecast.worst_s
        )?;
        if self.choice.is_some() {
            write!(f, "; without an overlay {:.3} s", without.mean_s)?;
        }
        let best = rates.iter().flat_map(|rate| [rate.input, rate.output]).fold(0.0, f64::max);
        let mut slow = String::new();
        for (host, rate) in (0..).zip(&rates) {
            let rank = self.host_of.iter().position(|&of| of == host).unwrap_or_default();
            for (what, rate) in [("receives", rate.input), ("sends", rate.output)] {
                if rate < SLOW * best {
                    write!(slow, "; rank {rank}'s host {what} {:.0} Mbit/s", rate * 8e-6)?;
                }
            }
        }
        if !slow.is_empty() {
            write!(slow, " (the best {:.0})", best * 8e-6)?;
        }
        f.write_str(&slow)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BYTES: u64 = 8 << 20;

    fn choked(hosts: usize, slow: Option<(usize, f64)>) -> Vec<HostRate> {
        let mut rates = vec![HostRate { input: 12.5e6, output: 12.5e6 }; hosts];
        if let Some((host, part)) = slow {
            rates[host].input *= part;
        }
        rates
    }

    /// Calls until the next measurement, which has this result.
    fn go_on(adaptive: &mut AdaptiveOverlay, rates: &[HostRate]) -> bool {
        for _ in 0..1000 {
            if let Some(plan) = adaptive.begin_call(BYTES) {
                (0..plan.rounds).for_each(|_| adaptive.measure(rates.to_vec()));
                return adaptive.decide(BYTES);
            }
        }
        panic!("nothing is measured any more");
    }

    #[test]
    fn a_choked_link_is_avoided_until_it_is_free_again() {
        for hosts in [3, 4, 8, 20] {
            let mut adaptive = AdaptiveOverlay::new(&(0..hosts).collect::<Vec<_>>());
            let hosts = hosts as usize;
            let (even, slow) = (choked(hosts, None), choked(hosts, Some((1, 0.11))));
            assert!(!go_on(&mut adaptive, &even));
            assert_eq!(adaptive.overlay(), None);
            // Once it may be chance.
            assert!(!go_on(&mut adaptive, &slow));
            assert!(go_on(&mut adaptive, &slow));
            assert!(adaptive.overlay().unwrap().parts().iter().all(|part| part.reduce.iter().all(|up| *up != Some(1))));
            let text = adaptive.to_string();
            assert!(text.contains("rank 1's host receives 11 Mbit/s (the best 100)"), "{text}");
            assert!(!go_on(&mut adaptive, &slow));
            assert!(go_on(&mut adaptive, &even), "{adaptive}");
            assert_eq!(adaptive.overlay(), None);
        }
    }

    /// A random walk of a tenth is no reason to change anything.
    #[test]
    fn noise_changes_nothing() {
        let mut adaptive = AdaptiveOverlay::new(&[0, 1, 2, 3, 4, 5, 6, 7]);
        let mut seed = 1_u32;
        let mut changes = 0;
        for _ in 0..200 {
            let mut rates = choked(8, None);
            for rate in &mut rates {
                seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                rate.input *= 1.0 - 0.1 * f64::from(seed >> 16) / 65536.0;
            }
            changes += u32::from(go_on(&mut adaptive, &rates));
        }
        assert_eq!(changes, 0, "{adaptive}");
    }

    #[test]
    fn measurements_cost_a_hundredth_of_the_calls() {
        for bytes in [1 << 20, 8 << 20, 64 << 20, 1 << 30] {
            let mut adaptive = AdaptiveOverlay::new(&[0, 0, 1, 1, 2, 2, 3, 3]);
            assert_eq!(adaptive.begin_call(bytes).unwrap().rounds, 2);
            adaptive.measure(choked(4, None));
            let calls = 1000;
            let measured: u64 = (0..calls).filter_map(|_| adaptive.begin_call(bytes)).map(|plan| 3 * plan.bytes).sum();
            // A call moves its bytes twice at least.
            assert!(measured * 100 <= calls * 2 * bytes, "{bytes}: {measured}");
            assert!(measured > 0);
            assert_eq!(adaptive.begin_call(ADAPTIVE_BYTES_MIN - 1), None);
        }
        assert_eq!(AdaptiveOverlay::new(&[0, 0]).begin_call(BYTES), None);
        assert_eq!(AdaptiveOverlay::new(&[]).begin_call(BYTES), None);
    }
}
