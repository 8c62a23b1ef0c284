//! Weighted reduce-scatter and all-gather: each host owns a shard of the elements that is as large as its links allow.
//!
//! Every host sends each shard to its owner, which combines the contributions and sends the result to every host. With
//! M bytes in total, a host that owns the share x sends M (1 - x) and M x (n - 1), and receives as much: M (1 + (n - 2)
//! x) each way. So a host whose slower direction has the rate r needs at least M (1 + (n - 2) x) / r. The shares that
//! let the last owner finish as early as possible fill all hosts up to one level. Where the level is below M / r, the
//! host owns nothing, and only the data that it has to receive anyway delays it.
//!
//! Such a host would receive more from all owners at once than its link can take, and TCP would lose more than it
//! gains. So in the broadcast trees it is a child of two owners, which relay all shards to it. These two send more and
//! the other owners send less, so the others own more in return.

use super::{HostRate, OverlayPart};

/// The sum of all shares.
const SHARES: u32 = 1 << 20;

/// The shares of the elements that hosts own, with a sum of 1, and the level: seconds per byte of the vector.
pub(crate) fn water_fill(rates: &[HostRate]) -> (Vec<f64>, f64) {
    let slower: Vec<f64> = rates.iter().map(|rate| rate.input.min(rate.output)).collect();
    let hosts = slower.len();
    if hosts <= 2 {
        // With two hosts at most, each has to send and receive everything, regardless of which one combines.
        let total: f64 = slower.iter().sum();
        let level = slower.iter().fold(0.0_f64, |level, rate| level.max(1.0 / rate));
        return (slower.iter().map(|rate| rate / total).collect(), level);
    }
    let mut fastest: Vec<usize> = (0..hosts).collect();
    fastest.sort_by(|&a, &b| slower[b].total_cmp(&slower[a]).then(a.cmp(&b)));
    // With the k fastest hosts as owners, the sum of (level * rate - 1) / (n - 2) is 1. Each host that can contribute
    // below the previous level lowers it.
    let extra = (hosts - 2) as f64;
    let (mut sum, mut level) = (0.0, f64::INFINITY);
    for (before, &host) in fastest.iter().enumerate() {
        if level * slower[host] <= 1.0 {
            break;
        }
        sum += slower[host];
        level = (extra + (before + 1) as f64) / sum;
    }
    (slower.iter().map(|rate| ((level * rate - 1.0) / extra).max(0.0)).collect(), level)
}

/// The owners that relay shards to a host that owns none: the first one relays the first half of the elements.
type Relays = Vec<Option<[usize; 2]>>;

/// Assigns two relays to every host without a share: the owners with the most spare output.
fn relays(rates: &[HostRate], shares: &[f64]) -> Relays {
    let owners: Vec<usize> = (0..rates.len()).filter(|&host| shares[host] > 0.0).collect();
    let mut passed = vec![0.5; rates.len()];
    let mut pick = |except: Option<usize>| {
        let busy = |host: &usize| (1.0 + passed[*host]) / rates[*host].output;
        let others = owners.iter().copied().filter(|&owner| Some(owner) != except);
        let owner = others.min_by(|a, b| busy(a).total_cmp(&busy(b)).then(a.cmp(b)))?;
        passed[owner] += 0.5;
        Some(owner)
    };
    let mut both = |host: usize| {
        if shares[host] > 0.0 {
            return None;
        }
        let first = pick(None)?;
        Some([first, pick(Some(first)).unwrap_or(first)])
    };
    (0..rates.len()).map(&mut both).collect()
}

/// Shares for owners of which some are relays: relaying a vector adds that much to an owner's output, and owners send
/// their shards to hosts without a share only through the relays.
fn fill_relays(rates: &[HostRate], shares: &[f64], relays: &Relays) -> Vec<f64> {
    let hosts = rates.len() as f64;
    let owners = shares.iter().filter(|&&share| share > 0.0).count() as f64;
    let mut passed = vec![0.0; rates.len()];
    relays.iter().flatten().flatten().for_each(|&relay| passed[relay] += 0.5);
    let share = |host: usize, level: f64| {
        if shares[host] == 0.0 {
            return 0.0;
        }
        let received = (level * rates[host].input - 1.0) / (hosts - 2.0);
        let sent = (level * rates[host].output - 1.0 - passed[host]) / (owners - 2.0).max(1e-9);
        received.min(sent).clamp(0.0, 1.0)
    };
    let all = |level: f64| (0..rates.len()).map(|host| share(host, level)).collect::<Vec<_>>();
    // Enough halvings for the shares to be exact up to rounding.
    let slowest = rates.iter().map(|rate| rate.input.min(rate.output)).fold(f64::INFINITY, f64::min);
    let (mut low, mut high) = (0.0, 2.0 * hosts / slowest);
    for _ in 0..64 {
        let level = (low + high) / 2.0;
        if all(level).iter().sum::<f64>() < 1.0 { low = level } else { high = level }
    }
    all(high)
}

/// The shards as an overlay: one part per owner, whose trees are stars around it, except for the hosts with relays.
pub(crate) fn shards(rates: &[HostRate]) -> Vec<OverlayPart> {
    let hosts = rates.len();
    let (mut shares, _) = water_fill(rates);
    let relays = relays(rates, &shares);
    if hosts > 2 && relays.iter().any(Option::is_some) {
        shares = fill_relays(rates, &shares, &relays);
    }
    let total: f64 = shares.iter().sum();
    let mut before = 0.0;
    let mut parts = Vec::new();
    for (owner, &part) in shares.iter().enumerate() {
        let share = (part / total * f64::from(SHARES)).round() as u32;
        if share == 0 {
            continue;
        }
        let half = usize::from(before + part / 2.0 > total / 2.0);
        before += part;
        let below = |host: usize, parent: usize| (host != owner).then_some(parent as u32);
        let relay = |host: usize| relays[host].map_or(owner, |relays| relays[half]);
        parts.push(OverlayPart {
            share,
            reduce: (0..hosts).map(|host| below(host, owner)).collect(),
            broadcast: (0..hosts).map(|host| below(host, relay(host))).collect(),
        });
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rates(slower: &[f64]) -> Vec<HostRate> {
        slower.iter().map(|&rate| HostRate { input: rate, output: 2.0 * rate }).collect()
    }

    /// The lowest level over all shares on a grid: what a linear program would find, to the grid's precision.
    fn oracle(slower: &[f64], steps: usize) -> f64 {
        fn try_all(slower: &[f64], owned: &mut Vec<usize>, left: usize, steps: usize) -> f64 {
            if owned.len() + 1 == slower.len() {
                owned.push(left);
                let extra = (slower.len() - 2) as f64;
                let end = |(&share, &rate): (&usize, &f64)| match share {
                    0 => 0.0,
                    share => (1.0 + extra * share as f64 / steps as f64) / rate,
                };
                let level = owned.iter().zip(slower).map(end).fold(0.0, f64::max);
                owned.pop();
                return level;
            }
            let mut best = f64::INFINITY;
            for share in 0..=left {
                owned.push(share);
                best = best.min(try_all(slower, owned, left - share, steps));
                owned.pop();
            }
            best
        }
        try_all(slower, &mut Vec::new(), steps, steps)
    }

    #[test]
    fn no_other_shares_are_better() {
        let steps = 60;
        let cases: [&[f64]; 6] = [
            &[1.0, 1.0, 1.0],
            &[1.0, 1.0, 0.1],
            &[5.0, 1.0, 2.0],
            &[1.0, 1.0, 1.0, 0.2],
            &[4.0, 3.0, 2.0, 1.0],
            &[0.1, 0.1, 9.0, 0.3],
        ];
        for slower in cases {
            let (shares, level) = water_fill(&rates(slower));
            let best = oracle(slower, steps);
            assert!((shares.iter().sum::<f64>() - 1.0).abs() < 1e-12, "{slower:?}: {shares:?}");
            assert!(level <= best * (1.0 + 1e-12), "{slower:?}: {level} above {best}");
            // Rounding to the grid moves an owner by at most one step.
            let step = slower.len() as f64 / steps as f64 / slower.iter().copied().fold(f64::INFINITY, f64::min);
            assert!(best <= level + step, "{slower:?}: {level} far below {best}");
            for (share, rate) in shares.iter().zip(slower) {
                let end = (1.0 + (slower.len() - 2) as f64 * share) / rate;
                assert!(*share == 0.0 || (end - level).abs() < 1e-9 * level, "{slower:?}: not level");
            }
        }
    }

    #[test]
    fn a_choked_host_owns_nothing() {
        let mut slower = vec![940.0; 20];
        slower[3] = 100.0;
        let parts = shards(&rates(&slower));
        assert_eq!(parts.len(), 19);
        assert!(parts.iter().all(|part| part.reduce[3].is_some()));
        // It receives from two relays, each of which passes on about half.
        let mut senders: Vec<_> = parts.iter().map(|part| part.broadcast[3]).collect();
        let first = senders.iter().filter(|&&sender| sender == senders[0]).count();
        assert!((8..=11).contains(&first), "{senders:?}");
        senders.sort_unstable();
        senders.dedup();
        assert_eq!(senders.len(), 2);
        assert_eq!(shards(&rates(&[1.0, 1.0])).len(), 2);
        assert_eq!(shards(&rates(&[1.0])).len(), 1);
    }
}
