//! Closed-form estimates of each algorithm's cost, for choices without measurements. The simulator of `tidemill-sim`
//! runs the real schedules under the same model; its tests check these formulas.
//!
//! Assumes that ranks are spread evenly over the hosts, with neighboring ranks together.

use super::{CostModel, LinkCost, TuneQuery};
use crate::{Algorithm, Collective};

/// The seconds that `algorithm` takes for the call, with chunks of `chunk_bytes` (0: no chunks).
pub(crate) fn seconds(model: &CostModel, q: &TuneQuery, algorithm: Algorithm, chunk_bytes: usize) -> f64 {
    let net = NetworkShape::new(model, q);
    let n = q.bytes as f64;
    let chunks = if chunk_bytes == 0 { 1.0 } else { (n / chunk_bytes as f64).ceil().max(1.0) };
    let (p, block) = (net.p, n / net.p);
    let (reduce, copy) = (model.reduce_per_byte_s, model.copy_per_byte_s);
    use Algorithm as A;
    use Collective as C;
    match (q.collective, algorithm) {
        (C::Barrier, A::Dissemination) => net.doublings().map(|d| net.shift(d, 0.0)).sum(),
        (C::Barrier, A::RecursiveDoubling) => net.exchanges(0.0, 0.0),
        (C::Barrier, shape) => 2.0 * net.tree(shape, 0.0, 1.0, 0.0),
        (C::Bcast, A::ScatterAllgather) => {
            let scatter: f64 = net.doublings().map(|d| net.edge(d, n * d / p)).sum();
            scatter + (p - 1.0) * net.shift(1.0, block)
        }
        (C::Bcast, shape) => net.tree(shape, n, chunks, 0.0),
        (C::Reduce, A::HalvingDoubling) => net.halvings(n, reduce) + net.halvings(n, 0.0) + net.fold(n, reduce),
        (C::Reduce, shape) => net.tree(shape, n, chunks, reduce),
        (C::Allreduce, A::Linear) => net.everybody(n) + (p - 1.0) * n * reduce,
        (C::Allreduce, A::RecursiveDoubling) => net.exchanges(n, reduce),
        (C::Allreduce, A::HalvingDoubling) => net.halving_doubling(n, reduce),
        (C::Allreduce, A::Ring) => (p - 1.0) * (2.0 * net.shift(1.0, block) + block * reduce),
        (C::Allreduce, A::TwoLevel) => {
            let (within, between) = (net.within_host(), net.between_hosts());
            let leaders = between.exchanges(n, reduce).min(between.halving_doubling(n, reduce));
            within.tree(A::Binomial, n, chunks, reduce) + leaders + within.tree(A::Binomial, n, chunks, 0.0)
        }
        (C::Allreduce, shape) => net.tree(shape, n, chunks, reduce) + net.tree(shape, n, chunks, 0.0),
        (C::Gather | C::Scatter, A::Binomial) => {
            let hops: f64 = net.doublings().map(|d| net.edge(d, block * d.min(p - d))).sum();
            hops + n / 2.0 * copy
        }
        (C::Gather | C::Scatter | C::Gatherv | C::Scatterv, _) => net.tree(A::Flat, block, 1.0, 0.0),
        (C::Allgather | C::Allgatherv, A::Ring) => (p - 1.0) * net.shift(1.0, block),
        (C::Allgather | C::Allgatherv, A::RecursiveDoubling) => {
            let doubling: f64 = net.doublings().map(|d| net.swap(d, block * d.min(p - d))).sum();
            doubling + net.fold(n / 2.0, 0.0)
        }
        (C::Allgather | C::Allgatherv, A::Bruck) => net.doublings().map(|d| net.shift(d, block * d.min(p - d))).sum(),
        (C::Allgather | C::Allgatherv, A::TwoLevel) => {
            let (within, between) = (net.within_host(), net.between_hosts());
            within.tree(A::Flat, block, 1.0, 0.0)
                + (between.p - 1.0) * between.shift(1.0, n / between.p)
                + within.tree(A::Binomial, n, chunks, 0.0)
        }
        (C::Allgather | C::Allgatherv, _) | (C::Alltoall | C::Alltoallv, A::Linear) => net.everybody(block),
        (C::Alltoall | C::Alltoallv, A::Bruck) => {
            net.doublings().map(|d| net.shift(d, n / 2.0) + n * copy).sum::<f64>() + 2.0 * n * copy
        }
        (C::Alltoall | C::Alltoallv, _) => net.shifts(block),
        (C::ReduceScatter | C::ReduceScatterBlock, A::Linear) => net.everybody(block) + (p - 1.0) * block * reduce,
        (C::ReduceScatter | C::ReduceScatterBlock, A::RecursiveHalving) => {
            let permute = if q.commutative && !q.repeatable { 0.0 } else { n * copy };
            // If no order has to be kept, the largest messages travel the farthest.
            let halving = if permute > 0.0 { net.halvings(n, reduce) } else { net.far_halvings(n, reduce) };
            permute + halving + net.fold(n, reduce)
        }
        (C::ReduceScatter | C::ReduceScatterBlock, A::Ring) => (p - 1.0) * (net.shift(1.0, block) + block * reduce),
        (C::ReduceScatter | C::ReduceScatterBlock, _) => net.shifts(block) + (p - 1.0) * block * reduce,
        (C::Scan | C::Exscan, A::Linear) => {
            // The lowest rank only sends, the highest only receives.
            net.everybody(n) - net.posting() + (p - 1.0) * n * reduce
        }
        (C::Scan | C::Exscan, A::RecursiveDoubling) => net.doublings().map(|d| net.shift(d, n) + n * reduce).sum(),
        (C::Scan | C::Exscan, _) => net.tree(A::Chain, n, chunks, reduce),
    }
}

/// A communicator as the formulas see it.
#[derive(Clone, Copy)]
struct NetworkShape {
    /// Within a host, and between hosts.
    near: LinkCost,
    far: LinkCost,
    /// The number of ranks, and the number of ranks on each host.
    p: f64,
    per_host: f64,
}

impl NetworkShape {
    fn new(model: &CostModel, q: &TuneQuery) -> NetworkShape {
        let p = f64::from(q.ranks.max(1));
        let (near, far) = model.links(q.within_host);
        NetworkShape { near, far, p, per_host: (p / f64::from(q.hosts.max(1))).max(1.0) }
    }

    fn hosts(&self) -> f64 {
        self.p / self.per_host
    }

    /// The ranks of one host.
    fn within_host(&self) -> NetworkShape {
        NetworkShape { p: self.per_host, ..*self }
    }

    /// One rank of each host.
    fn between_hosts(&self) -> NetworkShape {
        NetworkShape { p: self.hosts(), per_host: 1.0, ..*self }
    }

    /// Distances 1, 2, 4, ... below P.
    fn doublings(&self) -> impl Iterator<Item = f64> + use<> {
        let p = self.p;
        (0..32).map(|k| f64::from(1u32 << k)).take_while(move |&d| d < p)
    }

    /// One message within a host.
    fn local(&self, bytes: f64) -> f64 {
        let link = &self.near;
        link.latency_s + 2.0 * link.overhead_s + bytes * link.per_byte_s
    }

    /// One message from each of `flows` ranks of a host to other hosts.
    fn remote(&self, bytes: f64, flows: f64) -> f64 {
        let link = &self.far;
        link.latency_s + 2.0 * link.overhead_s + flows * bytes * link.per_byte_s
    }

    /// One message over `distance` ranks.
    fn edge(&self, distance: f64, bytes: f64) -> f64 {
        if distance < self.per_host { self.local(bytes) } else { self.remote(bytes, 1.0) }
    }

    /// All ranks exchange with the partner at a power of two.
    fn swap(&self, distance: f64, bytes: f64) -> f64 {
        if self.per_host.log2().fract() != 0.0 || self.p.log2().fract() != 0.0 {
            return self.shift(distance, bytes); // Then near partners, too, are on different hosts.
        }
        if distance < self.per_host { self.local(bytes) } else { self.remote(bytes, self.per_host) }
    }

    /// All ranks send to the rank `distance` above.
    fn shift(&self, distance: f64, bytes: f64) -> f64 {
        if self.hosts() <= 1.0 {
            return self.local(bytes);
        }
        self.remote(bytes, distance.min(self.p - distance).min(self.per_host)).max(self.local(bytes))
    }

    /// A shift by every distance, one after the other.
    fn shifts(&self, bytes: f64) -> f64 {
        (1..self.p as u32).map(|d| self.shift(f64::from(d), bytes)).sum()
    }

    /// All ranks to all ranks at once.
    fn everybody(&self, bytes: f64) -> f64 {
        let (local, remote) = (&self.near, &self.far);
        let (near, far) = (self.per_host - 1.0, self.p - self.per_host);
        // Links work while the processor handles the next message.
        let processor = self.posting();
        let links = (near * bytes * local.per_byte_s).max(far * bytes * self.per_host * remote.per_byte_s);
        let latency = if far > 0.0 { remote.latency_s } else { local.latency_s };
        links.max(processor) + processor + latency
    }

    /// The processor time for one message to, or from, every rank.
    fn posting(&self) -> f64 {
        let (near, far) = (self.per_host - 1.0, self.p - self.per_host);
        near * self.near.overhead_s + far * self.far.overhead_s
    }

    /// Ranks beyond a power of two hand over their vector and get one back.
    fn fold(&self, bytes: f64, reduce: f64) -> f64 {
        if self.p.log2().fract() == 0.0 { 0.0 } else { 2.0 * self.swap(1.0, bytes) + bytes * reduce }
    }

    /// Recursive doubling of whole vectors.
    fn exchanges(&self, bytes: f64, reduce: f64) -> f64 {
        let steps: f64 = self.powers().map(|d| self.swap(d, bytes) + bytes * reduce).sum();
        steps + self.fold(bytes, reduce)
    }

    /// Recursive halving from the nearest partner on.
    fn halvings(&self, bytes: f64, reduce: f64) -> f64 {
        self.powers().map(|d| self.swap(d, bytes / (2.0 * d)) + bytes / (2.0 * d) * reduce).sum()
    }

    /// Recursive halving from the farthest partner on.
    fn far_halvings(&self, bytes: f64, reduce: f64) -> f64 {
        self.powers().map(|d| self.swap(d, bytes * d / self.p) + bytes * d / self.p * reduce).sum()
    }

    fn halving_doubling(&self, bytes: f64, reduce: f64) -> f64 {
        self.halvings(bytes, reduce) + self.halvings(bytes, 0.0) + self.fold(bytes, reduce)
    }

    /// Distances between the groups of the largest power of two of ranks.
    fn powers(&self) -> impl Iterator<Item = f64> + use<> {
        let p = self.p;
        self.doublings().take_while(move |d| 2.0 * d <= p)
    }

    /// A vector down a tree in `chunks` chunks, or, with `reduce`, up.
    fn tree(&self, shape: Algorithm, bytes: f64, chunks: f64, reduce: f64) -> f64 {
        if self.p <= 1.0 {
            return 0.0;
        }
        let (local, remote) = (&self.near, &self.far);
        let (hosts, per_host) = (self.hosts(), self.per_host);
        let levels = |ranks: f64| ranks.log2().ceil();
        // Depth, children of the busiest node, and how many of these a chunk waits for on its way; near and far.
        let (depth, fan, wait) = match shape {
            Algorithm::Flat => ([1.0, f64::from(hosts > 1.0)], [per_host - 1.0, self.p - per_host], None),
            Algorithm::Binary => {
                // Subtrees do not end at host boundaries, so a few more edges cross hosts.
                let far = 2f64.min(hosts - 1.0);
                ([levels(per_host), levels(hosts)], [2f64.min(per_host - 1.0), far + f64::from(hosts > 1.0)], Some(1.5))
            }
            Algorithm::Chain => {
                let fan = [f64::from(per_host > 1.0), f64::from(hosts > 1.0)];
                ([self.p - hosts, hosts - 1.0], fan, Some(1.0))
            }
            _ => ([levels(per_host), levels(hosts)], [levels(per_host), levels(hosts)], Some(1.0)),
        };
        let chunk = bytes / chunks;
        let mut first = 0.0;
        let mut busy = 0.0;
        for (link, (depth, fan)) in [local, remote].into_iter().zip(depth.into_iter().zip(fan)) {
            let message = link.overhead_s + chunk * (link.per_byte_s + reduce);
            first += depth * (wait.unwrap_or(fan) * message + link.overhead_s + link.latency_s);
            busy += fan * message;
        }
        let link = if hosts > 1.0 { remote } else { local };
        first + (chunks - 1.0) * (busy + link.overhead_s)
    }
}
