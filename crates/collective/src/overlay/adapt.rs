//! When to measure the links of hosts, and when to change the overlay: a state machine without clock or wire. With the
//! same calls and measurements every rank has the same overlay before each call.

use std::fmt::Write;

use super::choose::{OverlayChoice, OverlayKind, choose, plain, reconsider};
use super::model::{OverlayForecast, OverlayModel};
use super::probe::host_rates;
use super::{HostRate, Overlay};

/// Calls with fewer bytes are left to the tuner: they are over before a link's rate shows.
pub const ADAPTIVE_BYTES_MIN: u64 = 1 << 20;
/// Of a call's bytes a host sends one part in so many to be measured.
const PROBE_PART: u64 = 16;
/// What it sends then, all messages together, is between these: enough to tell, and not too much.
const PROBE_BYTES: std::ops::RangeInclusive<u64> = 512 << 10..=4 << 20;
/// Between measurements calls take so many times as long as one.
const CALLS_PER_PROBE: f64 = 64.0;
/// A change is worth it if it takes no more than this part of the time.
const GAIN: f64 = 0.9;
/// A direction of a host that has less than this part of the usual rate is called slow.
const SLOW: f64 = 0.7;

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

    /// An all-reduce of so many bytes comes: whether links have to be measured before it.
    /// Then every host sends every other one a message of this length.
    pub fn begin_call(&mut self, bytes: u64) -> Option<u64> {
        if self.hosts < 2 || bytes < ADAPTIVE_BYTES_MIN {
            return None;
        }
        if bytes < self.bytes_left {
            self.bytes_left -= bytes;
            return None;
        }
        let sent = (bytes / PROBE_PART).clamp(*PROBE_BYTES.start(), *PROBE_BYTES.end());
        Some((sent / (self.hosts - 1)).max(1))
    }

    /// Takes a measurement: for each receiver, the seconds until the message of each sender was there; the messages had
    /// `message` bytes. Decides how all-reduces of about `bytes` go from here on. Whether that is another way.
    pub fn measure(&mut self, seconds: &[Vec<f64>], message: u64, bytes: u64) -> bool {
        self.measured.swap(0, 1);
        self.measured[0] = Some(host_rates(seconds, message as f64));
        let changed = self.decide(bytes);
        let measured_s = seconds.iter().flatten().copied().fold(0.0, f64::max);
        let call_s = self.decided.map_or(0.0, |(_, forecast, _)| forecast.mean_s).max(1e-9);
        self.bytes_left = (CALLS_PER_PROBE * measured_s / call_s * bytes as f64) as u64;
        changed
    }

    fn decide(&mut self, bytes: u64) -> bool {
        let Some(rates) = self.rates() else { return false };
        let model = OverlayModel::TYPICAL;
        let without = plain(&rates, &self.host_of, bytes, &model);
        let now =
            self.choice.as_ref().map_or(without, |choice| reconsider(choice, &rates, &self.host_of, bytes, &model));
        let best = choose(&rates, &self.host_of, bytes, &model);
        let is_better = best.forecast.mean_s <= GAIN * now.mean_s;
        // Back to what is simple as soon as nothing is lost by it.
        let is_needless = self.choice.is_some() && without.mean_s <= now.mean_s;
        let forecast = if is_better && best.overlay.is_some() {
            let forecast = best.forecast;
            self.choice = Some(best);
            forecast
        } else if is_needless {
            self.choice = None;
            without
        } else {
            self.decided = Some((bytes, now, without));
            return false;
        };
        self.decided = Some((bytes, forecast, without));
        true
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
        let mut usual: Vec<f64> = rates.iter().flat_map(|rate| [rate.input, rate.output]).collect();
        usual.sort_by(f64::total_cmp);
        let usual = usual[usual.len() / 2];
        let mut slow = String::new();
        for (host, rate) in (0..).zip(&rates) {
            let rank = self.host_of.iter().position(|&of| of == host).unwrap_or_default();
            for (what, rate) in [("receives", rate.input), ("sends", rate.output)] {
                if rate < SLOW * usual {
                    write!(slow, "; rank {rank}'s host {what} {:.0} Mbit/s", rate * 8e-6)?;
                }
            }
        }
        if !slow.is_empty() {
            write!(slow, " (usual are {:.0})", usual * 8e-6)?;
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

    /// What hosts with these rates measure.
    fn exchange(rates: &[HostRate], message: u64) -> Vec<Vec<f64>> {
        let all = ((rates.len() - 1) as u64 * message) as f64;
        let time = |to: usize, from: usize| (all / rates[from].output).max(all / rates[to].input);
        (0..rates.len()).map(|to| (0..rates.len()).map(|from| time(to, from)).collect()).collect()
    }

    /// Calls until the next measurement, which has this result; whether it changes anything, and how many.
    fn go_on(adaptive: &mut AdaptiveOverlay, rates: &[HostRate]) -> (bool, u32) {
        for calls in 0..1000 {
            if let Some(message) = adaptive.begin_call(BYTES) {
                return (adaptive.measure(&exchange(rates, message), message, BYTES), calls);
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
            assert_eq!(go_on(&mut adaptive, &even), (false, 0));
            assert_eq!(adaptive.overlay(), None);
            // Once it may be chance.
            assert!(!go_on(&mut adaptive, &slow).0);
            assert!(go_on(&mut adaptive, &slow).0);
            assert!(adaptive.overlay().unwrap().parts().iter().all(|part| part.reduce.iter().all(|up| *up != Some(1))));
            let text = adaptive.to_string();
            assert!(text.contains("rank 1's host receives 11 Mbit/s (usual are 100)"), "{text}");
            assert!(!go_on(&mut adaptive, &slow).0);
            let (changes, calls) = go_on(&mut adaptive, &even);
            assert!(changes && calls < 40, "{calls}: {adaptive}");
            assert_eq!(adaptive.overlay(), None);
        }
    }

    /// Rates that go up and down by a tenth are no reason to change anything.
    #[test]
    fn noise_changes_nothing() {
        let mut adaptive = AdaptiveOverlay::new(&[0, 1, 2, 3, 4, 5, 6, 7]);
        let mut seed = 1_u32;
        for _ in 0..200 {
            let mut rates = choked(8, None);
            for rate in &mut rates {
                seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                rate.input *= 1.0 - 0.1 * f64::from(seed >> 16) / 65536.0;
            }
            assert!(!go_on(&mut adaptive, &rates).0, "{adaptive}");
        }
    }

    #[test]
    fn measurements_cost_little_and_do_not_end() {
        for bytes in [1 << 20, 8 << 20, 64 << 20, 1 << 30] {
            let mut adaptive = AdaptiveOverlay::new(&[0, 0, 1, 1, 2, 2, 3, 3]);
            let (calls, rates) = (1000_u64, choked(4, None));
            let mut measured = 0;
            for _ in 0..calls {
                if let Some(message) = adaptive.begin_call(bytes) {
                    measured += 3 * message;
                    adaptive.measure(&exchange(&rates, message), message, bytes);
                }
            }
            // A call moves its bytes 1.5 times.
            assert!(measured as f64 <= 0.02 * calls as f64 * 1.5 * bytes as f64, "{bytes}: {measured}");
            assert!(measured > 4 << 20);
            assert_eq!(adaptive.begin_call(ADAPTIVE_BYTES_MIN - 1), None);
        }
        assert_eq!(AdaptiveOverlay::new(&[0, 0]).begin_call(BYTES), None);
        assert_eq!(AdaptiveOverlay::new(&[]).begin_call(BYTES), None);
    }
}
