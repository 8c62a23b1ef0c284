//! Weighted reduce-scatter and all-gather: each host owns a shard of the elements, as large as its links allow.
//!
//! Everybody sends each shard to its owner, who combines it and sends it to everybody. Of M bytes a host that owns the
//! share x sends M (1 - x) and M x (n - 1), and receives as much: M (1 + (n - 2) x) each way. So a host whose slower
//! direction has the rate r is done no sooner than M (1 + (n - 2) x) / r, and the shares that make the latest owner's
//! end as early as possible fill all hosts up to one level: where the level is below M / r, the host owns none, and is
//! held up only by what it has to receive anyway.

use super::{HostRate, OverlayPart};

/// All shares together.
const SHARES: u32 = 1 << 20;

/// Shares of the elements that hosts own, with a sum of 1, and the level: seconds for each byte of the vector.
pub(crate) fn water_fill(rates: &[HostRate]) -> (Vec<f64>, f64) {
    let slower: Vec<f64> = rates.iter().map(|rate| rate.input.min(rate.output)).collect();
    let hosts = slower.len();
    if hosts <= 2 {
        // Each has to send and receive all, whoever combines.
        let total: f64 = slower.iter().sum();
        let level = slower.iter().fold(0.0_f64, |level, rate| level.max(1.0 / rate));
        return (slower.iter().map(|rate| rate / total).collect(), level);
    }
    let mut fastest: Vec<usize> = (0..hosts).collect();
    fastest.sort_by(|&a, &b| slower[b].total_cmp(&slower[a]).then(a.cmp(&b)));
    // With the k fastest as owners, the sum of (level * rate - 1) / (n - 2) is 1. Each host that can take something
    // below the level of those before lowers it.
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

/// The shards as an overlay: a part for each owner, whose trees are stars around it.
pub(crate) fn shards(rates: &[HostRate]) -> Vec<OverlayPart> {
    let hosts = rates.len() as u32;
    let star = |owner: u32| (0..hosts).map(|host| (host != owner).then_some(owner)).collect::<Vec<_>>();
    let (shares, _) = water_fill(rates);
    let cut = shares.iter().map(|share| (share * f64::from(SHARES)).round() as u32);
    (0..hosts)
        .zip(cut)
        .filter(|&(_, share)| share > 0)
        .map(|(owner, share)| OverlayPart { share, reduce: star(owner), broadcast: star(owner) })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rates(slower: &[f64]) -> Vec<HostRate> {
        slower.iter().map(|&rate| HostRate { input: rate, output: 2.0 * rate }).collect()
    }

    /// The least level over all shares on a grid: what a linear program would find, to the grid's precision.
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
            // Rounding to the grid moves an owner by a step at most.
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
        assert_eq!(shards(&rates(&[1.0, 1.0])).len(), 2);
        assert_eq!(shards(&rates(&[1.0])).len(), 1);
    }
}
