//! Chooses the overlay with the lowest forecast time, given the rates of hosts.
//!
//! Pure and without a clock: given equal rates, every rank makes the same choice. Floating-point operations are the
//! same everywhere, and ties are broken in a fixed order.

use std::fmt;

use super::model::{OverlayForecast, OverlayModel, lower_bound};
use super::shards::shards;
use super::weighted::{HostStreams, TreeRule, TreeShape, trees};
use super::{HostRate, Overlay, OverlayPart};

/// The number of roots to try: the hosts that send and receive fastest.
const ROOTS: usize = 16;
/// A simpler way is kept if it is slower by no more than this factor.
const TOLERANCE: f64 = 1.02;
/// Bytes a second: a host that seems to have stopped counts as very slow.
const RATE_MIN: f64 = 1.0;

/// How an all-reduce runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum OverlayKind {
    /// The ring of all ranks.
    Ring,
    /// Recursive halving and doubling.
    HalvingDoubling,
    /// Shards that are as large as their owners' rates allow.
    Shards,
    /// One pair of weighted trees; with degree 1 a chain.
    Tree(TreeShape),
    /// Two pairs of weighted trees with different inner hosts.
    DoubleTree(TreeShape),
}

impl fmt::Display for OverlayKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shape = |f: &mut fmt::Formatter<'_>, shape: &TreeShape, what: &str| match shape.rule {
            _ if shape.degree == 1 => write!(f, "{what}chain"),
            TreeRule::FewestHops => write!(f, "{what}flat tree of degree {}", shape.degree),
            TreeRule::LeastCost => write!(f, "{what}deep tree of degree {}", shape.degree),
        };
        match self {
            OverlayKind::Ring => f.write_str("ring"),
            OverlayKind::HalvingDoubling => f.write_str("halving_doubling"),
            OverlayKind::Shards => f.write_str("shards"),
            OverlayKind::Tree(tree) => shape(f, tree, ""),
            OverlayKind::DoubleTree(tree) => shape(f, tree, "double "),
        }
    }
}

/// The choice, and its expected time.
#[derive(Clone, Debug, PartialEq)]
pub struct OverlayChoice {
    /// The kind of overlay.
    pub kind: OverlayKind,
    /// The trees over ranks; `None` for the ring and for halving and doubling.
    pub overlay: Option<Overlay>,
    /// The expected time.
    pub forecast: OverlayForecast,
    /// The least time that any overlay could take.
    pub bound: OverlayForecast,
}

/// An overlay over hosts.
struct HostOverlay {
    kind: OverlayKind,
    overlay: Option<Overlay>,
    forecast: OverlayForecast,
}

/// The best way to all-reduce `bytes` among ranks on hosts with these rates; `host_of` contains each rank's host.
///
/// # Panics
/// If `host_of` names a host without rates, or if a host has no ranks.
pub fn choose(rates: &[HostRate], host_of: &[u32], bytes: u64, model: &OverlayModel) -> OverlayChoice {
    let (rates, bytes) = (moving(rates), bytes.max(1) as f64);
    let mut ways = candidates(&rates, host_of, bytes, model);
    let best = ways.iter().map(|way| way.forecast).min_by(order).expect("there is always a ring");
    let chosen = ways
        .iter()
        .position(|way| {
            way.forecast.mean_s <= best.mean_s * TOLERANCE && way.forecast.worst_s <= best.worst_s * TOLERANCE
        })
        .expect("the best is no worse than itself");
    let way = ways.swap_remove(chosen);
    OverlayChoice {
        kind: way.kind,
        overlay: way.overlay.map(|overlay| over_ranks(&overlay, host_of)),
        forecast: way.forecast,
        bound: lower_bound(&rates, bytes),
    }
}

/// The time that a choice made with other rates would take with these rates.
pub fn reconsider(
    choice: &OverlayChoice,
    rates: &[HostRate],
    host_of: &[u32],
    bytes: u64,
    model: &OverlayModel,
) -> OverlayForecast {
    let (rates, bytes) = (moving(rates), bytes.max(1) as f64);
    match (&choice.kind, &choice.overlay) {
        (OverlayKind::HalvingDoubling, _) => model.halving_doubling(&rates, host_of, bytes),
        (_, Some(overlay)) => model.forecast(&rates, &over_hosts(overlay, host_of), bytes),
        (_, None) => model.ring(&rates, host_of, bytes),
    }
}

/// The faster one of the ring and halving and doubling.
pub(crate) fn without_overlay(rates: &[HostRate], host_of: &[u32], bytes: u64, model: &OverlayModel) -> OverlayChoice {
    let (rates, bytes) = (moving(rates), bytes.max(1) as f64);
    let (ring, halving) = (model.ring(&rates, host_of, bytes), model.halving_doubling(&rates, host_of, bytes));
    let (kind, forecast) = if ring.mean_s <= TOLERANCE * halving.mean_s {
        (OverlayKind::Ring, ring)
    } else {
        (OverlayKind::HalvingDoubling, halving)
    };
    OverlayChoice { kind, overlay: None, forecast, bound: lower_bound(&rates, bytes) }
}

/// The rates with zeros replaced, so that they can be divisors.
fn moving(rates: &[HostRate]) -> Vec<HostRate> {
    let moving = |rate: &HostRate| HostRate { input: rate.input.max(RATE_MIN), output: rate.output.max(RATE_MIN) };
    rates.iter().map(moving).collect()
}

fn order(one: &OverlayForecast, other: &OverlayForecast) -> std::cmp::Ordering {
    one.mean_s.total_cmp(&other.mean_s).then(one.worst_s.total_cmp(&other.worst_s))
}

/// All candidates, simpler ones first.
fn candidates(rates: &[HostRate], host_of: &[u32], bytes: f64, model: &OverlayModel) -> Vec<HostOverlay> {
    let plain = |kind, forecast| HostOverlay { kind, overlay: None, forecast };
    let mut ways = vec![
        plain(OverlayKind::Ring, model.ring(rates, host_of, bytes)),
        plain(OverlayKind::HalvingDoubling, model.halving_doubling(rates, host_of, bytes)),
    ];
    if rates.len() < 2 {
        return ways;
    }
    let way = |kind, parts: Vec<OverlayPart>| {
        let overlay = Overlay::new(rates.len() as u32, parts).expect("these are trees");
        HostOverlay { kind, forecast: model.forecast(rates, &overlay, bytes), overlay: Some(overlay) }
    };
    let best = |ways: Vec<HostOverlay>| ways.into_iter().min_by(|a, b| order(&a.forecast, &b.forecast));
    ways.push(way(OverlayKind::Shards, shards(rates)));
    let roots = roots(rates);
    let none = HostStreams::none(rates.len());
    for degree in 1..=3 {
        for rule in [TreeRule::FewestHops, TreeRule::LeastCost] {
            // In a chain, only the end can take a child.
            if degree == 1 && rule == TreeRule::LeastCost {
                continue;
            }
            let shape = TreeShape { degree, rule };
            let single = |&root: &u32| way(OverlayKind::Tree(shape), vec![trees(rates, root, shape, &none)]);
            let Some(single) = best(roots.iter().map(single).collect()) else { continue };
            let first = single.overlay.as_ref().expect("it was just made").parts()[0].clone();
            let streams = HostStreams::of(&first);
            let first_s = single.forecast.mean_s;
            let double = |&root: &u32| {
                let second = trees(rates, root, shape, &streams);
                let second_s = way(single.kind, vec![second.clone()]).forecast.mean_s;
                let parts = in_proportion(&first, &second, first_s, second_s);
                way(OverlayKind::DoubleTree(shape), parts)
            };
            let double = best(roots.iter().map(double).collect());
            ways.push(single);
            ways.extend(double);
        }
    }
    ways
}

/// Two pairs of trees whose shares are inverse to the time that each would take alone.
fn in_proportion(first: &OverlayPart, second: &OverlayPart, first_s: f64, second_s: f64) -> Vec<OverlayPart> {
    let share = ((1024.0 * second_s / (first_s + second_s)).round() as u32).clamp(1, 1023);
    vec![OverlayPart { share, ..first.clone() }, OverlayPart { share: 1024 - share, ..second.clone() }]
}

/// The hosts that send and receive fastest.
fn roots(rates: &[HostRate]) -> Vec<u32> {
    let slower = |host: u32| rates[host as usize].input.min(rates[host as usize].output);
    let mut roots: Vec<u32> = (0..rates.len() as u32).collect();
    roots.sort_by(|&a, &b| slower(b).total_cmp(&slower(a)).then(a.cmp(&b)));
    roots.truncate(ROOTS);
    roots
}

/// Each host's lowest rank.
fn leaders(host_of: &[u32]) -> Vec<u32> {
    let hosts = host_of.iter().max().map_or(0, |last| last + 1);
    let first = |host| host_of.iter().position(|&of| of == host).expect("every host has a rank");
    (0..hosts).map(|host| first(host) as u32).collect()
}

/// An overlay of hosts as an overlay of ranks: the lowest rank of a host represents it, and its other ranks are
/// children of that rank.
fn over_ranks(overlay: &Overlay, host_of: &[u32]) -> Overlay {
    let leaders = leaders(host_of);
    let spread = |parents: &[Option<u32>]| {
        let parent = |(rank, &host): (usize, &u32)| {
            let leader = leaders[host as usize];
            if leader as usize == rank { parents[host as usize].map(|up| leaders[up as usize]) } else { Some(leader) }
        };
        host_of.iter().enumerate().map(parent).collect()
    };
    map_trees(overlay, host_of.len() as u32, spread)
}

/// The overlay of hosts for an overlay of ranks.
fn over_hosts(overlay: &Overlay, host_of: &[u32]) -> Overlay {
    let leaders = leaders(host_of);
    let gather = |parents: &[Option<u32>]| {
        let parent = |&leader: &u32| parents[leader as usize].map(|up| host_of[up as usize]);
        leaders.iter().map(parent).collect()
    };
    map_trees(overlay, leaders.len() as u32, gather)
}

fn map_trees(overlay: &Overlay, size: u32, map: impl Fn(&[Option<u32>]) -> Vec<Option<u32>>) -> Overlay {
    let part = |part: &OverlayPart| OverlayPart {
        share: part.share,
        reduce: map(&part.reduce),
        broadcast: map(&part.broadcast),
    };
    Overlay::new(size, overlay.parts().iter().map(part).collect()).expect("trees stay trees")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes a second of 1 Mbit/s.
    const MBIT: f64 = 1e6 / 8.0;
    const BYTES: u64 = 64 << 20;

    fn even(hosts: usize) -> Vec<HostRate> {
        vec![HostRate { input: 940.0 * MBIT, output: 940.0 * MBIT }; hosts]
    }

    fn choked(hosts: usize, slow: usize, mbit: f64) -> Vec<HostRate> {
        let mut rates = even(hosts);
        rates[1..=slow].iter_mut().for_each(|rate| rate.input = mbit * MBIT);
        rates
    }

    fn each(hosts: usize) -> Vec<u32> {
        (0..hosts as u32).collect()
    }

    /// Both directions drawn from a normal distribution, clipped to 50 to 940 Mbit/s.
    fn normal(hosts: usize, mean: f64, deviation: f64, mut seed: u64) -> Vec<HostRate> {
        let mut uniform = || {
            // Splitmix64.
            seed = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mixed = (seed ^ seed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
            ((mixed ^ mixed >> 31) >> 11) as f64 / (1_u64 << 53) as f64
        };
        let mut draw = || {
            let sum: f64 = (0..12).map(|_| uniform()).sum();
            (mean + deviation * (sum - 6.0)).clamp(50.0, 940.0) * MBIT
        };
        (0..hosts).map(|_| HostRate { input: draw(), output: 940.0 * MBIT }).collect()
    }

    fn best_tree(rates: &[HostRate], rule: TreeRule) -> f64 {
        let ways = candidates(rates, &each(rates.len()), BYTES as f64, &OverlayModel::TYPICAL);
        let of_rule = |way: &&HostOverlay| way.kind == OverlayKind::Tree(TreeShape { degree: 2, rule });
        ways.iter().find(of_rule).unwrap().forecast.mean_s
    }

    /// The published model's results for 20 hosts, 940 Mbit/s and 64 MiB: flat trees, deep trees, ring. A tree whose
    /// cost lacks a term is several times slower.
    #[test]
    fn trees_take_what_the_model_of_their_source_says() {
        let rows = [
            (even(20), 1.85, 1.62, 1.09),
            (choked(20, 1, 100.0), 2.03, 1.68, 10.20),
            (choked(20, 1, 200.0), 1.89, 1.54, 5.10),
            (choked(20, 4, 200.0), 2.04, 2.18, 5.10),
            (choked(20, 8, 200.0), 2.23, 2.38, 5.10),
            (choked(20, 10, 200.0), 2.34, 2.74, 5.10),
            (choked(20, 12, 200.0), 5.54, 5.75, 5.10),
        ];
        for (rates, flat, deep, ring) in rows {
            let model = OverlayModel::TYPICAL;
            let found = [
                best_tree(&rates, TreeRule::FewestHops),
                best_tree(&rates, TreeRule::LeastCost),
                model.ring(&rates, &each(20), BYTES as f64).mean_s,
            ];
            println!("{found:.2?} published {flat} {deep} {ring}");
            for (found, published) in found.into_iter().zip([flat, deep, ring]) {
                assert!((0.8..1.25).contains(&(found / published)), "{found} instead of {published}");
            }
        }
    }

    #[test]
    fn choices_are_near_the_lower_bound() {
        let mut cases = vec![even(20), choked(20, 1, 100.0), choked(20, 4, 200.0), choked(20, 12, 200.0)];
        for seed in 0..8 {
            cases.push(normal(20, 500.0, 200.0, seed));
            cases.push(normal(20, 700.0, 300.0, seed));
        }
        for (case, rates) in cases.iter().enumerate() {
            let choice = choose(rates, &each(20), BYTES, &OverlayModel::TYPICAL);
            let ratio = choice.forecast.mean_s / choice.bound.mean_s;
            println!("case {case}: {} {:?}, bound {:?}: {ratio:.3}", choice.kind, choice.forecast, choice.bound);
            assert!(ratio <= 1.15, "case {case}: {choice:?}");
            assert!(choice.forecast.mean_s >= choice.bound.mean_s * 0.999, "case {case}: below the bound");
        }
    }

    /// Each host is an inner host of only one pair, so it sends and receives little more than twice the vector.
    #[test]
    fn two_pairs_of_trees_have_nearly_the_bandwidth_of_a_ring() {
        let ways = candidates(&even(20), &each(20), BYTES as f64, &OverlayModel::TYPICAL);
        ways.iter().for_each(|way| println!("{}: {:?}", way.kind, way.forecast));
        let double = ways.iter().filter(|way| matches!(way.kind, OverlayKind::DoubleTree(_)));
        let double = double.map(|way| way.forecast.mean_s).fold(f64::INFINITY, f64::min);
        assert!(double < 1.35 * ways[0].forecast.mean_s, "{double} {:?}", ways[0].forecast);
    }

    #[test]
    fn the_ring_stays_where_nothing_is_wrong() {
        let choice = choose(&even(20), &each(20), BYTES, &OverlayModel::TYPICAL);
        assert_eq!((choice.kind, choice.overlay), (OverlayKind::Ring, None));
        // The ring's forty steps are most of the time of a short vector.
        let choice = choose(&even(20), &each(20), 64 << 10, &OverlayModel::TYPICAL);
        assert_ne!(choice.kind, OverlayKind::Ring);
    }

    /// Ranks that made different choices would wait for each other forever.
    #[test]
    fn ranks_of_a_host_hang_on_their_leader() {
        let host_of = [0, 0, 1, 2, 1, 2, 3, 3];
        let rates = choked(4, 1, 100.0);
        let choice = choose(&rates, &host_of, BYTES, &OverlayModel::TYPICAL);
        let overlay = choice.overlay.clone().unwrap();
        assert_eq!(overlay.size(), 8);
        for part in overlay.parts() {
            for tree in [&part.reduce, &part.broadcast] {
                assert_eq!([tree[1], tree[4], tree[5], tree[7]], [Some(0), Some(2), Some(3), Some(6)]);
            }
        }
        assert_eq!(reconsider(&choice, &rates, &host_of, BYTES, &OverlayModel::TYPICAL), choice.forecast);
        let worse = reconsider(&choice, &choked(4, 3, 50.0), &host_of, BYTES, &OverlayModel::TYPICAL);
        assert!(worse.mean_s > choice.forecast.mean_s);
    }

    #[test]
    fn few_hosts_and_no_rates_are_no_trouble() {
        for hosts in 1..6 {
            let still = vec![HostRate { input: 0.0, output: 0.0 }; hosts];
            for rates in [even(hosts), still] {
                let choice = choose(&rates, &each(hosts), BYTES, &OverlayModel::TYPICAL);
                assert!(choice.forecast.mean_s.is_finite(), "{choice:?}");
            }
        }
    }

    #[test]
    fn choosing_takes_milliseconds() {
        for hosts in [20, 64] {
            let start = std::time::Instant::now();
            let choice = choose(&normal(hosts, 500.0, 200.0, 1), &each(hosts), BYTES, &OverlayModel::TYPICAL);
            println!("{hosts} hosts: {} in {:?}", choice.kind, start.elapsed());
        }
    }
}
