//! When to measure the links of hosts, and when to change the overlay: a state machine without a clock or network.
//! Given the same calls and measurements, every rank has the same overlay before each call.

use std::fmt::Write;

use super::HostRate;
use super::choose::{OverlayChoice, choose, reconsider, without_overlay};
use super::model::{OverlayForecast, OverlayModel};
use super::probe::host_rates;

/// Calls with fewer bytes are left to the tuner: they end before the rate of a link shows.
pub const ADAPTIVE_BYTES_MIN: u64 = 1 << 20;
/// A host sends one part in this many of a call's bytes as a measurement.
const PROBE_PART: u64 = 16;
/// Bounds on the size of a measurement, all messages together: enough to show a rate, but not too costly.
const PROBE_BYTES: std::ops::RangeInclusive<u64> = 512 << 10..=4 << 20;
/// While links seem alike, the calls between measurements take this many times as long as a measurement.
const CALLS_PER_PROBE: f64 = 64.0;
/// The same while an overlay avoids slow links, which may have recovered.
const CALLS_PER_PROBE_AROUND: f64 = 32.0;
/// A change is worth it if it reduces the time to this fraction or less.
const GAIN: f64 = 0.9;
/// A direction of a host is called slow if it has less than this fraction of the usual rate.
const SLOW: f64 = 0.7;

/// The overlay of a communicator that measures its links.
#[derive(Debug)]
pub struct AdaptiveOverlay {
    /// The host of each rank.
    host_of: Vec<u32>,
    hosts: u64,
    /// The last two measurements. A host that was slow in only one of them may just have been busy.
    measured: [Option<Vec<HostRate>>; 2],
    /// How long the last measurement took.
    measured_s: f64,
    /// Bytes of calls until the next measurement.
    bytes_left: u64,
    /// `None` before the first measurement.
    choice: Option<OverlayChoice>,
    /// Bytes of the call for which the last decision was made.
    bytes: u64,
    /// The time that call should take without an overlay.
    without: OverlayForecast,
}

impl AdaptiveOverlay {
    /// An overlay without measurements; `host_of` contains each rank's host.
    pub fn new(host_of: &[u32]) -> AdaptiveOverlay {
        let hosts = host_of.iter().max().map_or(1, |&last| u64::from(last) + 1);
        let host_of = host_of.to_vec();
        let without = OverlayForecast::default();
        AdaptiveOverlay {
            host_of,
            hosts,
            measured: [None, None],
            measured_s: 0.0,
            bytes_left: 0,
            choice: None,
            bytes: 0,
            without,
        }
    }

    /// Announces an all-reduce of `bytes` bytes. If links have to be measured before it, returns the length of the
    /// message that every host then sends to every other.
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

    /// Takes a measurement: for each receiver, the seconds until each sender's message arrived.
    pub fn measure(&mut self, seconds: &[Vec<f64>], message: u64) {
        self.measured.swap(0, 1);
        self.measured[0] = Some(host_rates(seconds, message as f64));
        self.measured_s = longest(seconds);
    }

    /// If some host was slow in the last measurement: for every host, whether a second measurement should send it
    /// nothing. Acknowledgments that queue behind a slow input delay what that host sends, and a message to it delays
    /// what the others send.
    pub fn slow_receivers(&self) -> Option<Vec<bool>> {
        let rates = self.measured[0].as_ref()?;
        let limit = SLOW * usual(rates);
        let is_slow = |rate: &HostRate| rate.input < limit || rate.output < limit;
        rates.iter().any(is_slow).then(|| slow_inputs(rates))
    }

    /// The hosts with a slow input, according to the last two measurements; none before the first.
    pub fn slow_inputs(&self) -> Vec<bool> {
        self.rates().map_or_else(|| vec![false; self.hosts as usize], |rates| slow_inputs(&rates))
    }

    /// Takes that second measurement, with 0 for messages that were not sent.
    pub fn refine(&mut self, seconds: &[Vec<f64>], message: u64) {
        let refined = host_rates(seconds, message as f64);
        self.measured[0] = self.measured[0].take().map(|rates| greater(&rates, &refined));
        self.measured_s += longest(seconds);
    }

    /// Decides how all-reduces of about `bytes` bytes run from now on. Returns whether that is a change.
    pub fn decide(&mut self, bytes: u64) -> bool {
        let is_change = self.reconsider(bytes);
        let Some(choice) = &self.choice else { return false };
        let calls = if choice.overlay.is_some() { CALLS_PER_PROBE_AROUND } else { CALLS_PER_PROBE };
        self.bytes_left = (calls * self.measured_s / choice.forecast.mean_s.max(1e-9) * bytes as f64) as u64;
        is_change
    }

    fn reconsider(&mut self, bytes: u64) -> bool {
        let Some(rates) = self.rates() else { return false };
        let model = OverlayModel::TYPICAL;
        let without = without_overlay(&rates, &self.host_of, bytes, &model);
        (self.bytes, self.without) = (bytes, without.forecast);
        let now = self.choice.get_or_insert_with(|| without.clone());
        now.forecast = reconsider(now, &rates, &self.host_of, bytes, &model);
        let best = choose(&rates, &self.host_of, bytes, &model);
        // An overlay is dropped as soon as the simpler way is no slower.
        let is_needless = now.overlay.is_some() && without.forecast.mean_s <= now.forecast.mean_s;
        let next = if best.forecast.mean_s <= GAIN * now.forecast.mean_s {
            best
        } else if is_needless {
            without
        } else {
            return false;
        };
        let is_change = (next.kind, &next.overlay) != (now.kind, &now.overlay);
        *now = next;
        is_change
    }

    /// How calls run: along the overlay, if there is one. `None` before the first measurement.
    pub fn choice(&self) -> Option<&OverlayChoice> {
        self.choice.as_ref()
    }

    /// The higher rate of the last two measurements.
    fn rates(&self) -> Option<Vec<HostRate>> {
        let [new, old] = &self.measured;
        let new = new.as_ref()?;
        Some(greater(new, old.as_ref().unwrap_or(new)))
    }
}

fn greater(one: &[HostRate], other: &[HostRate]) -> Vec<HostRate> {
    let greater = |(one, other): (&HostRate, &HostRate)| HostRate {
        input: one.input.max(other.input),
        output: one.output.max(other.output),
    };
    one.iter().zip(other).map(greater).collect()
}

fn slow_inputs(rates: &[HostRate]) -> Vec<bool> {
    let limit = SLOW * usual(rates);
    rates.iter().map(|rate| rate.input < limit).collect()
}

/// The median over hosts and directions.
fn usual(rates: &[HostRate]) -> f64 {
    let mut all: Vec<f64> = rates.iter().flat_map(|rate| [rate.input, rate.output]).collect();
    all.sort_by(f64::total_cmp);
    all[all.len() / 2]
}

fn longest(seconds: &[Vec<f64>]) -> f64 {
    seconds.iter().flatten().copied().fold(0.0, f64::max)
}

/// A description for users: the overlay in use, and why.
impl std::fmt::Display for AdaptiveOverlay {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (Some(rates), Some(choice)) = (self.rates(), &self.choice) else {
            return f.write_str(match self.hosts {
                1 => "no overlay: all ranks are on one host",
                _ => "no overlay: nothing is measured before the first all-reduce of 1 MiB or more",
            });
        };
        let OverlayForecast { mean_s, worst_s } = choice.forecast;
        let mib = self.bytes as f64 / f64::from(1 << 20);
        write!(f, "{}: {mib:.1} MiB should take {mean_s:.3} s on average, the last host {worst_s:.3} s", choice.kind)?;
        if choice.overlay.is_some() {
            write!(f, "; without an overlay {:.3} s", self.without.mean_s)?;
        }
        let usual = usual(&rates);
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
    use super::super::OverlayKind;
    use super::*;

    const BYTES: u64 = 8 << 20;

    fn choked(hosts: usize, slow: Option<(usize, f64)>) -> Vec<HostRate> {
        let mut rates = vec![HostRate { input: 12.5e6, output: 12.5e6 }; hosts];
        if let Some((host, part)) = slow {
            rates[host].input *= part;
        }
        rates
    }

    /// The times that hosts with these rates measure when the skipped ones receive nothing: all messages of a host are
    /// as slow as the slowest.
    fn exchange(rates: &[HostRate], message: u64, skipped: &[bool]) -> Vec<Vec<f64>> {
        let hosts = rates.len();
        let bytes = |count: usize| (count as u64 * message) as f64;
        let receivers = skipped.iter().filter(|&&is_skipped| !is_skipped).count();
        let time = |to: usize, from: usize| {
            let sent = bytes(receivers - usize::from(!skipped[from]));
            if to == from || skipped[to] {
                0.0
            } else {
                (sent / rates[from].output).max(bytes(hosts - 1) / rates[to].input)
            }
        };
        (0..hosts).map(|to| (0..hosts).map(|from| time(to, from)).collect()).collect()
    }

    fn measure(adaptive: &mut AdaptiveOverlay, rates: &[HostRate], message: u64, bytes: u64) -> bool {
        adaptive.measure(&exchange(rates, message, &vec![false; rates.len()]), message);
        if let Some(slow) = adaptive.slow_receivers() {
            adaptive.refine(&exchange(rates, message, &slow), message);
        }
        adaptive.decide(bytes)
    }

    /// Makes calls until the next measurement, which has this result. Returns whether it changed anything, and the
    /// number of calls.
    fn go_on(adaptive: &mut AdaptiveOverlay, rates: &[HostRate]) -> (bool, u32) {
        for calls in 0..1000 {
            if let Some(message) = adaptive.begin_call(BYTES) {
                return (measure(adaptive, rates, message, BYTES), calls);
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
            assert_eq!(adaptive.choice().unwrap().kind, OverlayKind::Ring);
            // A single time may be chance.
            assert!(!go_on(&mut adaptive, &slow).0);
            assert!(go_on(&mut adaptive, &slow).0);
            let overlay = adaptive.choice().unwrap().overlay.clone().unwrap();
            assert!(overlay.parts().iter().all(|part| part.reduce.iter().all(|up| *up != Some(1))));
            let text = adaptive.to_string();
            assert!(text.contains("rank 1's host receives 11 Mbit/s (usual are 100)"), "{text}");
            assert!(!go_on(&mut adaptive, &slow).0);
            let (changes, calls) = go_on(&mut adaptive, &even);
            assert!(changes && calls < 40, "{calls}: {adaptive}");
            assert_eq!(adaptive.choice().unwrap().kind, OverlayKind::Ring);
        }
    }

    /// Rates that vary by a tenth are no reason to change anything.
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
                    measure(&mut adaptive, &rates, message, bytes);
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
