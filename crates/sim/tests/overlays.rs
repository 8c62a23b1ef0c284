//! What overlays cost in virtual time on hosts whose links differ.

use tidemill_collective::algorithms::{ScheduleParams, schedule};
use tidemill_collective::overlay::{HostRate, Overlay, OverlayPart};
use tidemill_collective::{Algorithm, Collective};
use tidemill_sim::{Cluster, CostModel, LinkCost, rank_ends_s};

const HOSTS: u32 = 20;
/// The rate of a link without a fault, in bytes per second.
const RATE: f64 = 940e6 / 8.0;
const ITEM_BYTES: usize = 4;
/// The number of elements in the vector: 64 MB.
const COUNT: usize = 16_000_000;
const SLICE: usize = 64 << 10;

/// Each rank's parent in the complete binary tree that lists its ranks, from the top, in `ranks`.
fn binary(ranks: &[u32]) -> Vec<Option<u32>> {
    let mut parents = vec![None; ranks.len()];
    (1..ranks.len()).for_each(|place| parents[ranks[place] as usize] = Some(ranks[(place - 1) / 2]));
    parents
}

fn part(share: u32, ranks: &[u32]) -> OverlayPart {
    OverlayPart { share, reduce: binary(ranks), broadcast: binary(ranks) }
}

/// When each rank is done, if the hosts in `choked` receive at the rate `input`.
fn ends_s(algorithm: Algorithm, overlay: Option<&Overlay>, choked: &[u32], input: f64) -> Vec<f64> {
    let rate = |host| HostRate { input: if choked.contains(&host) { input } else { RATE }, output: RATE };
    let rates: Vec<HostRate> = (0..HOSTS).map(rate).collect();
    let other_host = LinkCost { latency_s: 100e-6, overhead_s: 5e-6, per_byte_s: 1.0 / RATE };
    let model = CostModel { other_host, ..CostModel::TYPICAL };
    let cluster = Cluster { rendezvous_bytes_min: 32 << 10, ..Cluster::of_rates(&rates, model) };
    let one = |rank| {
        let params = ScheduleParams { count: COUNT, chunk: SLICE, overlay, ..ScheduleParams::new(rank, HOSTS) };
        schedule(Collective::Allreduce, algorithm, &params).unwrap()
    };
    rank_ends_s(&(0..HOSTS).map(one).collect::<Vec<_>>(), ITEM_BYTES, &cluster)
}

fn latest(ends_s: &[f64], of: impl Fn(u32) -> bool) -> f64 {
    (0..).zip(ends_s).filter(|(rank, _)| of(*rank)).map(|(_, end_s)| *end_s).fold(0.0, f64::max)
}

/// A choked leaf delays only itself. If a round waited for it, it would delay everything below the leaf's parent, and
/// then everything above.
#[test]
fn a_choked_leaf_holds_up_nobody_else() {
    let ranks: Vec<u32> = (0..HOSTS).collect();
    let overlay = Overlay::new(HOSTS, vec![part(1, &ranks)]).unwrap();
    let leaf = HOSTS - 1;
    for input in [RATE / 10.0, RATE / 2.5] {
        let free = ends_s(Algorithm::Overlay, Some(&overlay), &[], RATE);
        let choked = ends_s(Algorithm::Overlay, Some(&overlay), &[leaf], input);
        println!("free {free:.3?}\nchoked {choked:.3?}");
        for rank in 0..leaf as usize {
            assert!(choked[rank] < 1.05 * free[rank], "rank {rank}: {} s instead of {}", choked[rank], free[rank]);
        }
        let alone_s = (COUNT * ITEM_BYTES) as f64 / input;
        assert!(choked[leaf as usize] < 1.05 * alone_s + free[leaf as usize], "{}", choked[leaf as usize]);
    }
}

/// The same for one of our trees: the leaf's call, and its parent's, end when the leaf has everything, but no other
/// call is delayed.
#[test]
fn a_choked_leaf_of_a_broadcast_holds_up_its_parent_at_most() {
    // In the shape of `binary`, the last rank is a leaf, and so is the one before it.
    let (free, choked) =
        (ends_s(Algorithm::Binary, None, &[], RATE), ends_s(Algorithm::Binary, None, &[HOSTS - 1], RATE / 10.0));
    let late: Vec<usize> = (0..HOSTS as usize).filter(|&rank| choked[rank] > 1.05 * free[rank]).collect();
    println!("free {free:.3?}\nchoked {choked:.3?}");
    assert!(late.len() == 2 && late[1] == HOSTS as usize - 1, "{late:?}: {free:?} {choked:?}");
}

/// If parts waited for each other, they would be no faster than one.
#[test]
fn two_trees_are_faster_than_one() {
    let ranks: Vec<u32> = (0..HOSTS).collect();
    let reversed: Vec<u32> = (0..HOSTS).rev().collect();
    let one = Overlay::new(HOSTS, vec![part(1, &ranks)]).unwrap();
    let two = Overlay::new(HOSTS, vec![part(1, &ranks), part(1, &reversed)]).unwrap();
    let star = |center| (0..HOSTS).map(|rank| (rank != center).then_some(center)).collect();
    let shard = |rank| OverlayPart { share: 1, reduce: star(rank), broadcast: star(rank) };
    let stars = Overlay::new(HOSTS, (0..HOSTS).map(shard).collect()).unwrap();
    let [one, two, stars] =
        [one, two, stars].map(|overlay| latest(&ends_s(Algorithm::Overlay, Some(&overlay), &[], RATE), |_| true));
    let least = (COUNT * ITEM_BYTES) as f64 / RATE;
    println!("one tree {one:.3} s, two {two:.3} s, stars {stars:.3} s; once over a link {least:.3} s");
    assert!(two < 0.75 * one, "{two} s, with one tree {one} s");
    assert!(stars < 2.2 * least, "{stars} s");
}
