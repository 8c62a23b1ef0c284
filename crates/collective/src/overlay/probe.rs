//! Infers the rates of hosts from the times of messages that every host sent to every other at the same time.
//!
//! A host's messages leave it together, or one after the other, depending on kernels and links. Either way, once k of
//! them have arrived, k messages' worth of bytes have left the host. A single late message says nothing about its
//! sender if most of the others were not late: its receiver is slow. So the rate is the highest of those that the first
//! k messages show. Here k is at least a third of all messages, because the first few may have left in a burst.

use super::HostRate;

/// A host with at least this fraction of the fastest host's rate keeps up with it.
const KEEPS_UP: f64 = 0.7;

/// The rates of hosts that exchanged messages of `bytes` bytes. `seconds` has, for each receiver, the time until the
/// message of each sender arrived, and 0 for messages that were not sent. A rate without any message to derive it from
/// is 0.
pub(crate) fn host_rates(seconds: &[Vec<f64>], bytes: f64) -> Vec<HostRate> {
    let hosts = seconds.len();
    let sent = |host: usize| (0..hosts).map(|to| seconds[to][host]).collect();
    let outputs: Vec<(f64, f64)> = (0..hosts).map(|host| rate(sent(host), bytes)).collect();
    let best = outputs.iter().map(|(rate, count)| rate / count).fold(0.0, f64::max);
    // With fewer receivers than senders, the receivers limit the senders. A sender that keeps up with the others could
    // have sent as much to additional receivers.
    let output = |&(rate, count): &(f64, f64)| {
        if rate >= KEEPS_UP * best * count { rate.max(rate / count * (hosts - 1) as f64) } else { rate }
    };
    let rates = seconds.iter().zip(&outputs);
    rates.map(|(from, to)| HostRate { input: rate(from.clone(), bytes).0, output: output(to) }).collect()
}

/// Bytes a second, and the number of messages, at least 1.
fn rate(mut seconds: Vec<f64>, bytes: f64) -> (f64, f64) {
    seconds.retain(|&seconds| seconds > 0.0);
    seconds.sort_by(f64::total_cmp);
    let least = seconds.len().div_ceil(3);
    let shown = (1..).zip(&seconds).filter(|&(count, _)| count >= least);
    let rate = shown.map(|(count, seconds)| count as f64 * bytes / seconds).fold(0.0, f64::max);
    (rate, seconds.len().max(1) as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Times when hosts share their links: all messages of a host at once, or one after the other.
    fn exchange(rates: &[HostRate], bytes: f64, is_in_turn: bool) -> Vec<Vec<f64>> {
        let hosts = rates.len();
        let others = (hosts - 1) as f64;
        let time = |to: usize, from: usize| {
            if to == from {
                return 0.0;
            }
            let turn = ((to + hosts - from) % hosts) as f64;
            let messages = if is_in_turn { turn } else { others };
            // A slow receiver's input is shared by all senders.
            (messages * bytes / rates[from].output).max(others * bytes / rates[to].input)
        };
        (0..hosts).map(|to| (0..hosts).map(|from| time(to, from)).collect()).collect()
    }

    /// If the wrong end of a slow link is blamed, one host becomes a leaf for nothing, and the other delays all.
    #[test]
    fn the_slow_end_is_the_slow_one() {
        for is_in_turn in [false, true] {
            for hosts in [3, 4, 8, 20] {
                for slow in [HostRate { input: 11.0, output: 100.0 }, HostRate { input: 100.0, output: 11.0 }] {
                    let mut rates = vec![HostRate { input: 100.0, output: 100.0 }; hosts];
                    rates[1] = slow;
                    let found = host_rates(&exchange(&rates, 1e3, is_in_turn), 1e3);
                    for (host, (found, rate)) in found.iter().zip(&rates).enumerate() {
                        let pairs = [(found.input, rate.input), (found.output, rate.output)];
                        let is_near = pairs.iter().all(|(found, rate)| (0.45..2.1).contains(&(found / rate)));
                        assert!(is_near, "{hosts} hosts, {is_in_turn}: host {host} has {rate:?}, found {found:?}");
                    }
                }
            }
        }
    }
}
