//! The cost of communication in a few numbers: the LogGP-like model behind the built-in choices and the simulator.

use tidemill_net::topology::HostLinks;

/// The cost of messages between two ranks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LinkCost {
    /// Seconds from the end of sending to the earliest end of receiving.
    pub latency_s: f64,
    /// Processor seconds per message on each side.
    pub overhead_s: f64,
    /// Seconds per byte on the link. Within a host each rank has its own; between hosts the ranks of a host share one.
    pub per_byte_s: f64,
}

/// The cost of everything that a schedule does.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CostModel {
    /// Between ranks of one host, by shared memory.
    pub same_host: LinkCost,
    /// Between ranks of one host that do not share memory: TCP over the loopback interface.
    pub loopback: LinkCost,
    /// Between ranks of different hosts.
    pub other_host: LinkCost,
    /// Seconds per byte of a result to combine two operands.
    pub reduce_per_byte_s: f64,
    /// Seconds per byte to copy within a rank.
    pub copy_per_byte_s: f64,
    /// Processor seconds that each side of a message takes beyond its overhead if ranks share cores: a waiting rank
    /// sleeps and has to be woken.
    pub switch_s: f64,
}

impl CostModel {
    /// Shared memory within hosts, else their loopback; 10 Gbit/s Ethernet with TCP between them.
    pub const TYPICAL: CostModel = CostModel {
        same_host: LinkCost { latency_s: 0.3e-6, overhead_s: 0.1e-6, per_byte_s: 1.0 / 10e9 },
        loopback: LinkCost { latency_s: 3e-6, overhead_s: 2e-6, per_byte_s: 1.0 / 5e9 },
        other_host: LinkCost { latency_s: 12e-6, overhead_s: 3e-6, per_byte_s: 1.0 / 1.15e9 },
        reduce_per_byte_s: 1.0 / 8e9,
        copy_per_byte_s: 1.0 / 10e9,
        switch_s: 2e-6,
    };

    /// The cost of messages within a host and between hosts, for hosts with these links.
    pub fn links(&self, within_host: HostLinks) -> (LinkCost, LinkCost) {
        let near = if within_host.shared_memory { self.same_host } else { self.loopback };
        let switch_s = if within_host.own_cores { 0.0 } else { self.switch_s };
        let switched = |link: LinkCost| LinkCost { overhead_s: link.overhead_s + switch_s, ..link };
        (switched(near), switched(self.other_host))
    }
}

impl Default for CostModel {
    fn default() -> Self {
        CostModel::TYPICAL
    }
}
