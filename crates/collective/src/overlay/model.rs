//! How long an all-reduce takes along an overlay, and a lower bound: streams modeled as fluids.
//!
//! All streams that a host receives, over all parts, share its input, and all that it sends share its output, in
//! proportion to the data they carry. The slices of a part follow each other at the rate of its slowest stream. So a
//! host has the part once its first slice has gone up and down to it, and the others have followed at the rate of the
//! slowest stream on their way. Different hosts wait for different streams, so the time of an all-reduce is given as
//! the mean over hosts and as the worst.

use super::shards::water_fill;
use super::{HostRate, Overlay, OverlayPart};

/// The costs of messages beyond their bytes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct OverlayModel {
    /// Seconds from the end of sending to the end of receiving.
    pub latency_s: f64,
    /// Processor seconds that a message takes on each side.
    pub overhead_s: f64,
}

/// Slices of an overlay's longest part, as far as their limits allow: enough to fill a pipeline, and each long enough
/// for the cost of a message not to matter.
const SLICES: usize = 64;
const SLICE_BYTES_MIN: usize = 128 << 10;
const SLICE_BYTES_MAX: usize = 1 << 20;

/// Bytes of a slice if the longest part has `longest` bytes.
pub(crate) fn slice_bytes(longest: usize) -> usize {
    (longest / SLICES).clamp(SLICE_BYTES_MIN, SLICE_BYTES_MAX)
}

impl OverlayModel {
    /// TCP between hosts.
    pub const TYPICAL: OverlayModel = OverlayModel { latency_s: 100e-6, overhead_s: 5e-6 };
}

/// Seconds until the hosts have the result.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct OverlayForecast {
    /// On average.
    pub mean_s: f64,
    /// Of the last host.
    pub worst_s: f64,
}

impl OverlayForecast {
    fn of(ends: &[f64]) -> OverlayForecast {
        let mean_s = ends.iter().sum::<f64>() / ends.len().max(1) as f64;
        OverlayForecast { mean_s, worst_s: ends.iter().copied().fold(0.0, f64::max) }
    }

    /// All hosts at the same time.
    fn even(end_s: f64) -> OverlayForecast {
        OverlayForecast { mean_s: end_s, worst_s: end_s }
    }
}

/// The traffic that hosts send or receive, in vectors, and the number of streams.
#[derive(Clone, Default)]
struct Traffic {
    vectors: Vec<f64>,
    streams: Vec<f64>,
}

impl Traffic {
    fn new(hosts: usize) -> Traffic {
        Traffic { vectors: vec![0.0; hosts], streams: vec![0.0; hosts] }
    }

    fn add(&mut self, host: usize, share: f64) {
        self.vectors[host] += share;
        self.streams[host] += 1.0;
    }

    fn plus(&self, other: &Traffic) -> Traffic {
        let sum = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a + b).collect();
        Traffic { vectors: sum(&self.vectors, &other.vectors), streams: sum(&self.streams, &other.streams) }
    }
}

/// The flows of one direction of the trees, or of both.
struct Flows {
    input: Traffic,
    output: Traffic,
}

impl Flows {
    fn of<'a>(hosts: usize, trees: impl Iterator<Item = (&'a [Option<u32>], f64)>, is_up: bool) -> Flows {
        let (mut input, mut output) = (Traffic::new(hosts), Traffic::new(hosts));
        for (parents, share) in trees {
            for (child, parent) in parents.iter().enumerate() {
                let Some(parent) = parent.map(|parent| parent as usize) else { continue };
                let (from, to) = if is_up { (child, parent) } else { (parent, child) };
                output.add(from, share);
                input.add(to, share);
            }
        }
        Flows { input, output }
    }

    /// Seconds per byte of the vector that a stream takes, regardless of its share: streams with more data get more.
    fn seconds(&self, rates: &[HostRate], from: usize, to: usize) -> f64 {
        (self.output.vectors[from] / rates[from].output).max(self.input.vectors[to] / rates[to].input)
    }

    fn streams(&self, from: usize, to: usize) -> f64 {
        self.output.streams[from] + self.input.streams[to]
    }
}

/// Hosts with parents before children.
fn top_down(parents: &[Option<u32>]) -> Vec<usize> {
    let mut hops = vec![u32::MAX; parents.len()];
    let mut way = Vec::new();
    for start in 0..parents.len() {
        let mut host = start;
        while hops[host] == u32::MAX {
            match parents[host] {
                Some(parent) => {
                    way.push(host);
                    host = parent as usize;
                }
                None => hops[host] = 0,
            }
        }
        let mut distance = hops[host];
        while let Some(host) = way.pop() {
            distance += 1;
            hops[host] = distance;
        }
    }
    let mut order: Vec<usize> = (0..parents.len()).collect();
    order.sort_by_key(|&host| (hops[host], host));
    order
}

impl OverlayModel {
    /// The time along an overlay whose ranks are hosts with these rates.
    pub fn forecast(&self, rates: &[HostRate], overlay: &Overlay, bytes: f64) -> OverlayForecast {
        let parts: Vec<&OverlayPart> = overlay.parts().iter().filter(|part| part.share > 0).collect();
        let total: f64 = parts.iter().map(|part| f64::from(part.share)).sum();
        let share = |part: &OverlayPart| f64::from(part.share) / total;
        let up = Flows::of(rates.len(), parts.iter().map(|part| (&part.reduce[..], share(part))), true);
        let down = Flows::of(rates.len(), parts.iter().map(|part| (&part.broadcast[..], share(part))), false);
        let both = Flows { input: up.input.plus(&down.input), output: up.output.plus(&down.output) };
        let mut ends = vec![0.0_f64; rates.len()];
        let longest = parts.iter().map(|part| bytes * share(part)).fold(0.0, f64::max);
        let slice_bytes = slice_bytes(longest as usize) as f64;
        for part in parts {
            let size = bytes * share(part);
            let slice = slice_bytes.min(size) / size;
            // While the first slices go up, nothing comes down, and vice versa.
            let hop = |flows: &Flows, from, to| {
                self.latency_s
                    + self.overhead_s * flows.streams(from, to)
                    + slice * bytes * flows.seconds(rates, from, to)
            };
            let (mut first, mut pace) = (vec![0.0_f64; rates.len()], 0.0_f64);
            for &host in top_down(&part.reduce).iter().rev() {
                let Some(parent) = part.reduce[host].map(|parent| parent as usize) else { continue };
                first[parent] = first[parent].max(first[host] + hop(&up, host, parent));
                pace = pace.max(both.seconds(rates, host, parent));
            }
            let mut paces = vec![pace; rates.len()];
            for host in top_down(&part.broadcast) {
                if let Some(parent) = part.broadcast[host].map(|parent| parent as usize) {
                    first[host] = first[parent] + hop(&down, parent, host);
                    paces[host] = paces[parent].max(both.seconds(rates, parent, host));
                }
                ends[host] = ends[host].max(first[host] + (1.0 - slice) * bytes * paces[host]);
            }
        }
        OverlayForecast::of(&ends)
    }

    /// The time of the ring of all ranks, in rank order. `host_of` contains each rank's host.
    pub fn ring(&self, rates: &[HostRate], host_of: &[u32], bytes: f64) -> OverlayForecast {
        let ranks = host_of.len();
        let pairs: Vec<(usize, usize)> = (0..ranks).map(|rank| (rank, (rank + 1) % ranks)).collect();
        let step_s = self.step(rates, host_of, &pairs, bytes / ranks as f64);
        OverlayForecast::even(2.0 * (ranks as f64 - 1.0) * step_s)
    }

    /// The time of recursive halving, then doubling.
    pub fn halving_doubling(&self, rates: &[HostRate], host_of: &[u32], bytes: f64) -> OverlayForecast {
        let ranks = host_of.len();
        let groups = 1 << ranks.ilog2();
        let folded = ranks - groups;
        // The first ranks pair up if the number of ranks is not a power of two.
        let leader = |group: usize| if group < folded { 2 * group } else { group + folded };
        let fold: Vec<(usize, usize)> = (0..folded).map(|group| (2 * group + 1, 2 * group)).collect();
        let unfold: Vec<(usize, usize)> = fold.iter().map(|&(from, to)| (to, from)).collect();
        let mut end_s = self.step(rates, host_of, &fold, bytes) + self.step(rates, host_of, &unfold, bytes);
        for step in 0..groups.ilog2() {
            let pairs: Vec<(usize, usize)> =
                (0..groups).map(|group| (leader(group), leader(group ^ (1 << step)))).collect();
            end_s += 2.0 * self.step(rates, host_of, &pairs, bytes / f64::from(2 << step));
        }
        OverlayForecast::even(end_s)
    }

    /// The time in which each pair's first rank sends `bytes` bytes to its second.
    fn step(&self, rates: &[HostRate], host_of: &[u32], pairs: &[(usize, usize)], bytes: f64) -> f64 {
        let mut flows = Flows { input: Traffic::new(rates.len()), output: Traffic::new(rates.len()) };
        let between = || {
            let hosts = pairs.iter().map(|&(from, to)| (host_of[from] as usize, host_of[to] as usize));
            hosts.filter(|(from, to)| from != to)
        };
        for (from, to) in between() {
            flows.output.add(from, 1.0);
            flows.input.add(to, 1.0);
        }
        let cost = |(from, to)| {
            self.latency_s + self.overhead_s * flows.streams(from, to) + bytes * flows.seconds(rates, from, to)
        };
        between().map(cost).fold(0.0, f64::max)
    }
}

/// A lower bound for any all-reduce among these hosts. Each host receives the whole vector, or what others have
/// combined of it, and waits for every host's contribution; and together they must do the work that the best shards do.
pub fn lower_bound(rates: &[HostRate], bytes: f64) -> OverlayForecast {
    if rates.len() < 2 {
        return OverlayForecast::default();
    }
    let level = if rates.len() > 2 { water_fill(rates).1 } else { 0.0 };
    let sends = |except: usize| {
        let others = rates.iter().enumerate().filter(|&(host, _)| host != except);
        others.map(|(_, rate)| 1.0 / rate.output).fold(0.0, f64::max)
    };
    let ends: Vec<f64> =
        rates.iter().enumerate().map(|(host, rate)| bytes * level.max(1.0 / rate.input).max(sends(host))).collect();
    OverlayForecast::of(&ends)
}
