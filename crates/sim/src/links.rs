//! The links of a cluster in virtual time: which links a message occupies, and when it arrives.
//!
//! A worker spends `overhead_s` on each message that it sends or receives, one after the other. Messages within a
//! host occupy the sending worker's own link. Messages between hosts occupy the sending host's link, then, between
//! racks, the uplink of the sender's rack and the downlink of the receiver's, and then the receiving host's link. The
//! workers of a host share its two links, and the hosts of a rack its two. Each link takes messages in the order in
//! which they reach it. A message moves on while it is still arriving (cut-through), and arrives when its last byte
//! does. After Alexandrov et al., "LogGP" (1995).

use tidemill_collective::tuner::LinkCost;

use crate::cluster::Cluster;
use crate::random::SplitMix64;

/// How much was sent.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Traffic {
    /// Messages sent.
    pub messages: u64,
    /// Bytes sent.
    pub bytes: u64,
    /// Bytes sent between hosts.
    pub bytes_between_hosts: u64,
    /// Bytes sent between racks.
    pub bytes_between_racks: u64,
}

/// A link that takes one message after the other.
#[derive(Clone, Copy)]
struct LinkQueue {
    free_s: f64,
    busy_s: f64,
    per_byte_s: f64,
}

impl LinkQueue {
    fn new(per_byte_s: f64) -> LinkQueue {
        LinkQueue { free_s: 0.0, busy_s: 0.0, per_byte_s }
    }

    /// Takes `load` bytes, of which the first arrives at `first_s` and the last at `last_s`. Returns when the first
    /// and the last have moved on.
    fn pass(&mut self, load: f64, first_s: f64, last_s: f64) -> (f64, f64) {
        let start = self.free_s.max(first_s);
        let duration = load * self.per_byte_s;
        self.free_s = start + duration;
        self.busy_s += duration;
        (start, self.free_s.max(last_s))
    }
}

/// A message between hosts.
#[derive(Clone, Copy, PartialEq)]
pub(crate) struct Flight {
    pub(crate) from: u32,
    pub(crate) to: u32,
    stage: Stage,
    /// Its length, changed by jitter.
    load: f64,
    /// When the first and the last byte reach the next link.
    pub(crate) first_s: f64,
    last_s: f64,
}

/// The link that a message waits for.
#[derive(Clone, Copy, PartialEq)]
enum Stage {
    RackUp,
    RackDown,
    Host,
}

/// Where a message is.
pub(crate) enum Reach {
    /// It has reached the receiver, at this time.
    Arrived(f64),
    /// It has reached another link.
    Flying(Flight),
}

/// How long the busiest of each kind was busy, in seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Busy {
    /// A worker, sending and receiving messages.
    pub overhead_s: f64,
    /// A worker's link within its host.
    pub memory_s: f64,
    /// A host's link, sending.
    pub host_out_s: f64,
    /// A host's link, receiving.
    pub host_in_s: f64,
    /// A rack's links to the other racks.
    pub rack_s: f64,
}

pub(crate) struct Links<'a> {
    cluster: &'a Cluster,
    near: LinkCost,
    far: LinkCost,
    memory: Vec<LinkQueue>,
    out: Vec<LinkQueue>,
    into: Vec<LinkQueue>,
    up: Vec<LinkQueue>,
    down: Vec<LinkQueue>,
    /// The total work of all workers so far, in seconds: shared cores cannot have finished it earlier than that
    /// allows.
    worked_s: f64,
    overhead_s: Vec<f64>,
    random: SplitMix64,
    pub(crate) traffic: Traffic,
}

impl<'a> Links<'a> {
    pub(crate) fn new(cluster: &'a Cluster) -> Links<'a> {
        let (near, far) = cluster.model.links(cluster.within_host);
        let hosts = cluster.rack_of.len();
        let mut out = vec![LinkQueue::new(far.per_byte_s); hosts];
        let mut into = out.clone();
        for slow in &cluster.slow {
            out[slow.host as usize].per_byte_s /= slow.outgoing;
            into[slow.host as usize].per_byte_s /= slow.incoming;
        }
        let mut rack_hosts = vec![0u32; cluster.racks() as usize];
        cluster.rack_of.iter().for_each(|&rack| rack_hosts[rack as usize] += 1);
        let rack_link =
            |&count: &u32| LinkQueue::new(far.per_byte_s * cluster.oversubscription / f64::from(count.max(1)));
        let up: Vec<LinkQueue> = rack_hosts.iter().map(rack_link).collect();
        Links {
            cluster,
            near,
            far,
            memory: vec![LinkQueue::new(near.per_byte_s); cluster.host_of.len()],
            out,
            into,
            down: up.clone(),
            up,
            worked_s: 0.0,
            overhead_s: vec![0.0; cluster.host_of.len()],
            random: SplitMix64::scattered(cluster.seed),
            traffic: Traffic::default(),
        }
    }

    pub(crate) fn cluster(&self) -> &'a Cluster {
        self.cluster
    }

    /// Draws a factor of jitter.
    pub(crate) fn jitter(&mut self) -> f64 {
        self.cluster.jitter.draw(&mut self.random)
    }

    /// The processor time of each side for a message between two workers, in seconds.
    pub(crate) fn overhead_s(&self, from: u32, to: u32) -> f64 {
        let hosts = &self.cluster.host_of;
        if hosts[from as usize] == hosts[to as usize] { self.near.overhead_s } else { self.far.overhead_s }
    }

    /// The latency from one worker to another, in seconds, of a message that does not queue.
    pub(crate) fn latency_s(&self, from: u32, to: u32) -> f64 {
        let (hosts, racks) = (&self.cluster.host_of, &self.cluster.rack_of);
        let (source, target) = (hosts[from as usize] as usize, hosts[to as usize] as usize);
        match (source == target, racks[source] == racks[target]) {
            (true, _) => self.near.latency_s,
            (false, true) => self.far.latency_s,
            (false, false) => self.cluster.other_rack_latency_s,
        }
    }

    /// When work of `seconds` that can begin at `now` ends.
    pub(crate) fn compute(&mut self, now: f64, seconds: f64) -> f64 {
        self.worked_s += seconds;
        // Not a queue: work is not requested in order of time, and work that starts later would delay the rest.
        match self.cluster.shared_cores {
            Some(cores) => (now + seconds).max(self.worked_s / f64::from(cores)),
            None => now + seconds,
        }
    }

    /// When `rank` has finished `seconds` of processor time on messages.
    pub(crate) fn overhead(&mut self, rank: u32, now: f64, seconds: f64) -> f64 {
        self.overhead_s[rank as usize] += seconds;
        self.compute(now, seconds)
    }

    /// Sends a message at `now`. Returns when the sender's link is done with it, and where the message is then.
    pub(crate) fn leave(&mut self, from: u32, to: u32, bytes: f64, now: f64) -> (f64, Reach) {
        let hosts = &self.cluster.host_of;
        let (source, target) = (hosts[from as usize], hosts[to as usize]);
        let factor = self.jitter();
        let load = bytes * factor;
        self.traffic.messages += 1;
        self.traffic.bytes += bytes as u64;
        if source == target {
            let (_, left) = self.memory[from as usize].pass(load, now, now);
            return (left, Reach::Arrived(left + self.near.latency_s * factor));
        }
        self.traffic.bytes_between_hosts += bytes as u64;
        let racks = &self.cluster.rack_of;
        let far = racks[source as usize] != racks[target as usize];
        let latency_s = factor * if far { self.cluster.other_rack_latency_s } else { self.far.latency_s };
        if far {
            self.traffic.bytes_between_racks += bytes as u64;
        }
        let (start, left) = self.out[source as usize].pass(load, now, now);
        let stage = if far { Stage::RackUp } else { Stage::Host };
        let (first_s, last_s) = (start + latency_s, left + latency_s);
        (left, Reach::Flying(Flight { from, to, stage, load, first_s, last_s }))
    }

    /// Passes a message through the link that it has reached.
    pub(crate) fn pass(&mut self, flight: Flight) -> Reach {
        let host = |rank: u32| self.cluster.host_of[rank as usize] as usize;
        let rack = |rank: u32| self.cluster.rack_of[host(rank)] as usize;
        let (link, next) = match flight.stage {
            Stage::RackUp => (&mut self.up[rack(flight.from)], Stage::RackDown),
            Stage::RackDown => (&mut self.down[rack(flight.to)], Stage::Host),
            Stage::Host => {
                let link = &mut self.into[host(flight.to)];
                return Reach::Arrived(link.pass(flight.load, flight.first_s, flight.last_s).1);
            }
        };
        let (first_s, last_s) = link.pass(flight.load, flight.first_s, flight.last_s);
        Reach::Flying(Flight { stage: next, first_s, last_s, ..flight })
    }

    /// Passes a message through all links at once, for callers that handle messages in the order in which they leave.
    /// Returns when it arrives.
    pub(crate) fn deliver(&mut self, mut reach: Reach) -> f64 {
        loop {
            match reach {
                Reach::Arrived(at_s) => return at_s,
                Reach::Flying(flight) => reach = self.pass(flight),
            }
        }
    }

    pub(crate) fn busy(&self) -> Busy {
        let most = |links: &[LinkQueue]| links.iter().map(|link| link.busy_s).fold(0.0, f64::max);
        Busy {
            overhead_s: self.overhead_s.iter().copied().fold(0.0, f64::max),
            memory_s: most(&self.memory),
            host_out_s: most(&self.out),
            host_in_s: most(&self.into),
            rack_s: most(&self.up).max(most(&self.down)),
        }
    }
}
