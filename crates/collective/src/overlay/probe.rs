//! The rates of hosts from how long messages took when every host sent one to every other at the same time.
//!
//! A host's messages leave it together, or one after the other, as kernels and links like it. Either way, when k of
//! them have arrived, k messages' bytes have left. One that is late says nothing of its sender, if most others were
//! not: its receiver is slow. So the rate is the greatest of what the first k show, but of at least a third of all, because
//! the first few may have gone through a burst.

use super::HostRate;

/// The rates of hosts that exchanged messages of so many bytes; `seconds` has, for each receiver, the time until the
/// message of each sender was there.
///
/// # Panics
/// Unless every receiver has a time for every sender; its own does not count.
pub fn host_rates(seconds: &[Vec<f64>], bytes: f64) -> Vec<HostRate> {
    let hosts = seconds.len();
    let others = |host: usize| (0..hosts).filter(move |&other| other != host);
    (0..hosts)
        .map(|host| HostRate {
            input: rate(others(host).map(|from| seconds[host][from]).collect(), bytes),
            output: rate(others(host).map(|to| seconds[to][host]).collect(), bytes),
        })
        .collect()
}

fn rate(mut seconds: Vec<f64>, bytes: f64) -> f64 {
    seconds.sort_by(f64::total_cmp);
    let least = seconds.len().div_ceil(3);
    let shown = (1..).zip(&seconds).filter(|&(count, _)| count >= least);
    shown.map(|(count, seconds)| count as f64 * bytes / seconds.max(1e-9)).fold(0.0, f64::max)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Times when hosts share their links: all messages of a host at once, or one after the other.
    fn exchange(rates: &[HostRate], bytes: f64, is_in_turn: bool) -> Vec<Vec<f64>> {
        let hosts = rates.len();
        let others = (hosts - 1) as f64;
        let time = |to: usize, from: usize| {
            let turn = ((to + hosts - from) % hosts) as f64;
            let messages = if is_in_turn { turn } else { others };
            // A slow receiver shares its input among all who send.
            (messages * bytes / rates[from].output).max(others * bytes / rates[to].input)
        };
        (0..hosts).map(|to| (0..hosts).map(|from| time(to, from)).collect()).collect()
    }

    /// Of the two ends of a slow link the one would be a leaf in vain, and the other hold everybody up.
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
