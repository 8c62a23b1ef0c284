//! The placement of buckets during the search, and what it costs: a move is priced without visiting all buckets.

use super::{
    plan::Load,
    problem::{Item, Problem},
};

/// The weight of the sum of CPU and network load, beside the larger of the two, which alone bounds what the job
/// carries.
pub(super) const BOTH: f64 = 0.1;
/// The penalty if all traffic crosses hosts, as a fraction of the objective.
pub(super) const TRAFFIC: f64 = 0.01;
/// The penalty for moving all state.
const STATE: f64 = 0.02;
/// The penalty for moving all buckets.
const BUCKETS: f64 = 0.01;
/// State that leaves a host should not take a large part of this many seconds.
const PAYBACK_S: f64 = 300.0;

fn full(cpu: f64, network: f64) -> f64 {
    cpu.max(network) + BOTH * (cpu + network)
}

/// A placement of buckets.
pub(super) struct State<'a> {
    pub(super) problem: &'a Problem,
    /// By item: its lane.
    pub(super) place: Vec<usize>,
    cpu: Vec<f64>,
    pub(super) lane_work: Vec<f64>,
    pub(super) lane_items: Vec<usize>,
    inbound: Vec<f64>,
    outbound: Vec<f64>,
    /// By link bound.
    links: Vec<f64>,
    /// By host: the bounds of links to it.
    links_to: Vec<Vec<usize>>,
    /// By host: its lanes.
    lanes_on: Vec<Vec<usize>>,
    /// The weight of how evenly everything is distributed, while the fullest part stays as full: several parts may be
    /// the fullest, and none of them can improve without the others.
    pub(super) evenness: f64,
    /// Penalties are fractions of this.
    pub(super) scale: f64,
    pub(super) traffic_all: f64,
    state_all: f64,
    penalty: f64,
    traffic: f64,
    /// The fullest hosts, lanes and links, kept so that the maximum without a few of them is cheap.
    tops: Tops,
}

#[derive(Default)]
struct Tops {
    cpu: Top,
    lane: Top,
    network: Top,
    evenness: f64,
}

/// The three largest of many values, with the host or lane that each belongs to.
#[derive(Clone, Copy)]
struct Top([(f64, usize); 3]);

impl Default for Top {
    fn default() -> Self {
        Self([(0.0, usize::MAX); 3])
    }
}

impl Top {
    fn of(values: impl Iterator<Item = f64>) -> Self {
        let mut top = Self::default();
        for (at, value) in values.enumerate() {
            if value > top.0[2].0 {
                top.0[2] = (value, at);
                top.0.sort_by(|a, b| b.0.total_cmp(&a.0));
            }
        }
        top
    }

    fn without(&self, a: usize, b: usize) -> f64 {
        self.0.iter().find(|(_, at)| *at != a && *at != b).map_or(0.0, |(value, _)| *value)
    }
}

/// What changes on the two sides of a move or a swap.
#[derive(Clone, Copy, Default)]
struct Side {
    work: f64,
    inbound: f64,
    outbound: f64,
}

impl<'a> State<'a> {
    /// Buckets where they are now, whether or not their hosts are drained.
    pub(super) fn of_homes(problem: &'a Problem) -> Self {
        let hosts = problem.hosts.len();
        let mut state = Self {
            problem,
            place: problem.items.iter().map(|item| item.home).collect(),
            cpu: problem.hosts.iter().map(|host| host.cpus_fixed).collect(),
            lane_work: vec![0.0; problem.lanes.len()],
            lane_items: vec![0; problem.lanes.len()],
            inbound: problem.hosts.iter().map(|host| host.in_fixed).collect(),
            outbound: problem.hosts.iter().map(|host| host.out_fixed).collect(),
            links: problem.links.iter().map(|link| link.fixed).collect(),
            links_to: vec![Vec::new(); hosts],
            lanes_on: vec![Vec::new(); hosts],
            evenness: 0.0,
            scale: 1.0,
            traffic_all: problem.items.iter().map(|item| item.sent).sum::<f64>().max(1e-9),
            state_all: problem.items.iter().map(|item| item.state_bytes).sum::<f64>().max(1e-9),
            penalty: 0.0,
            traffic: 0.0,
            tops: Tops::default(),
        };
        for (at, link) in problem.links.iter().enumerate() {
            state.links_to[link.to].push(at);
        }
        for (at, lane) in problem.lanes.iter().enumerate() {
            state.lanes_on[lane.host].push(at);
        }
        for item in 0..problem.items.len() {
            state.put(item, state.place[item], 1.0);
        }
        state.refresh();
        let load = state.load();
        state.scale = full(load.cpu, load.network).max(1e-6);
        state
    }

    /// Buckets where they are now, except for those on drained hosts and spare workers.
    pub(super) fn of(problem: &'a Problem) -> Self {
        let mut state = Self::of_homes(problem);
        let is_homeless = |item: &usize| problem.lanes[problem.items[*item].home].closed;
        let mut homeless: Vec<usize> = (0..problem.items.len()).filter(is_homeless).collect();
        let size = |item: usize| {
            let item = &problem.items[item];
            item.work + item.sent / state.traffic_all
        };
        homeless.sort_by(|a, b| size(*b).total_cmp(&size(*a)));
        for item in homeless {
            let task = problem.items[item].task;
            let lane = match problem.items[item].is_loaded() {
                true => {
                    (problem.lanes_of(task)).min_by(|a, b| state.priced(item, *a).total_cmp(&state.priced(item, *b)))
                }
                false => problem.lanes_of(task).min_by_key(|lane| state.lane_items[*lane]),
            };
            if let Some(lane) = lane {
                state.move_to(item, lane);
            }
        }
        state
    }

    /// Adds an item's load to a lane, or removes it.
    fn put(&mut self, item: usize, lane: usize, sign: f64) {
        let problem = self.problem;
        let host = problem.lanes[lane].host;
        let Item { work, sent, .. } = problem.items[item];
        let sent_by = problem.sent(item);
        self.cpu[host] += sign * work;
        self.lane_work[lane] += sign * work;
        if sign > 0.0 {
            self.lane_items[lane] += 1
        } else {
            self.lane_items[lane] -= 1
        }
        self.inbound[host] += sign * (sent - sent_by[host]);
        self.traffic += sign * (sent - sent_by[host]);
        for (from, bytes_s) in sent_by.iter().enumerate() {
            if from != host {
                self.outbound[from] += sign * bytes_s;
            }
        }
        for link in &self.links_to[host] {
            self.links[*link] += sign * sent_by[problem.links[*link].from];
        }
        self.penalty += sign * self.move_price(item, lane);
    }

    /// The unscaled penalty for having moved an item to a lane.
    pub(super) fn move_price(&self, item: usize, lane: usize) -> f64 {
        let item = &self.problem.items[item];
        if lane == item.home {
            return 0.0;
        }
        let from = &self.problem.hosts[self.problem.lanes[item.home].host];
        STATE * item.state_bytes / self.state_all
            + item.state_bytes / from.outbound / PAYBACK_S
            + BUCKETS / self.problem.items.len() as f64
    }

    pub(super) fn move_to(&mut self, item: usize, lane: usize) {
        self.put(item, self.place[item], -1.0);
        self.put(item, lane, 1.0);
        self.place[item] = lane;
        self.refresh();
    }

    fn refresh(&mut self) {
        let hosts = &self.problem.hosts;
        self.tops.cpu = Top::of((0..hosts.len()).map(|host| self.cpu_load(host, 0.0)));
        self.tops.lane = Top::of(self.lane_work.iter().copied());
        self.tops.network = Top::of((0..hosts.len()).map(|host| self.network_load(host)));
        self.tops.evenness = (0..hosts.len()).map(|host| self.evenness(host, Side::default())).sum::<f64>()
            + self.lane_work.iter().map(|work| self.lane_evenness(*work)).sum::<f64>();
    }

    fn cpu_load(&self, host: usize, more: f64) -> f64 {
        (self.cpu[host] + more) / self.problem.hosts[host].cpus
    }

    fn in_load(&self, host: usize, more: f64) -> f64 {
        (self.inbound[host] + more) / self.problem.hosts[host].inbound
    }

    fn out_load(&self, host: usize, more: f64) -> f64 {
        (self.outbound[host] + more) / self.problem.hosts[host].outbound
    }

    /// The load of a host's fullest link.
    pub(super) fn network_load(&self, host: usize) -> f64 {
        let links = self.links_to[host].iter().map(|link| self.links[*link] / self.problem.links[*link].capacity);
        links.fold(self.in_load(host, 0.0).max(self.out_load(host, 0.0)), f64::max)
    }

    fn evenness(&self, host: usize, side: Side) -> f64 {
        let squares = self.cpu_load(host, side.work).powi(2)
            + self.in_load(host, side.inbound).powi(2)
            + self.out_load(host, side.outbound).powi(2);
        squares / self.problem.hosts.len() as f64
    }

    fn lane_evenness(&self, work: f64) -> f64 {
        work.powi(2) / self.lane_work.len() as f64
    }

    /// How full the fullest parts are.
    pub(super) fn load(&self) -> Load {
        Load { cpu: self.tops.cpu.0[0].0.max(self.tops.lane.0[0].0), network: self.tops.network.0[0].0 }
    }

    /// The largest load of a host's parts relative to the fullest part of that kind: 1 means that the host has one of
    /// the fullest.
    pub(super) fn heat(&self, host: usize) -> f64 {
        let load = self.load();
        let lanes = self.lanes_on[host].iter().map(|lane| self.lane_work[*lane]);
        let cpu = lanes.fold(self.cpu_load(host, 0.0), f64::max);
        (self.network_load(host) / load.network.max(1e-9)).max(cpu / load.cpu.max(1e-9))
    }

    /// Whether a host's fullest link is its outbound one.
    pub(super) fn sends_most(&self, host: usize) -> bool {
        let out = self.out_load(host, 0.0);
        out > 0.0 && out >= self.network_load(host)
    }

    /// The objective with its penalties.
    pub(super) fn objective(&self) -> f64 {
        let load = self.load();
        full(load.cpu, load.network) + self.scale * (self.penalty + TRAFFIC * self.traffic / self.traffic_all)
    }

    /// What the search compares: of two equally good states, the more even one is cheaper.
    pub(super) fn price(&self) -> f64 {
        self.objective() + self.even_price(self.tops.evenness)
    }

    fn even_price(&self, evenness: f64) -> f64 {
        self.evenness * evenness / self.scale
    }

    /// The price if an item were in another lane.
    pub(super) fn priced(&self, item: usize, lane: usize) -> f64 {
        self.priced_both(item, lane, None)
    }

    /// The price if two items changed places.
    pub(super) fn priced_swap(&self, item: usize, other: usize) -> f64 {
        self.priced_both(item, self.place[other], Some(other))
    }

    fn priced_both(&self, item: usize, lane: usize, other: Option<usize>) -> f64 {
        let problem = self.problem;
        let old = self.place[item];
        let (from, to) = (problem.lanes[old].host, problem.lanes[lane].host);
        let mut sides = [Side::default(); 2];
        let mut penalty = self.penalty;
        let mut lanes = [self.lane_work[old], self.lane_work[lane]];
        let mut carry = |item: usize, old: usize, new: usize, source: usize| {
            let (was, is) = (problem.lanes[old].host, problem.lanes[new].host);
            let Item { work, sent, .. } = problem.items[item];
            let sent_by = problem.sent(item);
            let target = 1 - source;
            penalty += self.move_price(item, new) - self.move_price(item, old);
            lanes[source] -= work;
            lanes[target] += work;
            if was != is {
                sides[source].work -= work;
                sides[target].work += work;
                sides[source].inbound -= sent - sent_by[was];
                sides[target].inbound += sent - sent_by[is];
                // What a host sends to its own buckets does not leave it.
                sides[source].outbound += sent_by[was];
                sides[target].outbound -= sent_by[is];
            }
        };
        carry(item, old, lane, 0);
        if let Some(other) = other {
            carry(other, lane, old, 1);
        }
        if old == lane {
            return self.price();
        }
        let mut cpu = self.tops.lane.without(old, lane).max(lanes[0]).max(lanes[1]);
        let mut evenness = self.tops.evenness;
        for (lane, work) in [old, lane].into_iter().zip(lanes) {
            evenness += self.lane_evenness(work) - self.lane_evenness(self.lane_work[lane]);
        }
        if from == to {
            cpu = cpu.max(self.tops.cpu.0[0].0);
            let network = self.tops.network.0[0].0;
            return full(cpu, network)
                + self.scale * (penalty + TRAFFIC * self.traffic / self.traffic_all)
                + self.even_price(evenness);
        }
        cpu = cpu.max(self.tops.cpu.without(from, to));
        let mut network = self.tops.network.without(from, to);
        for (host, side) in [(from, sides[0]), (to, sides[1])] {
            cpu = cpu.max(self.cpu_load(host, side.work));
            network = network.max(self.in_load(host, side.inbound)).max(self.out_load(host, side.outbound));
            evenness += self.evenness(host, side) - self.evenness(host, Side::default());
        }
        for (host, sign) in [(from, -1.0), (to, 1.0)] {
            for link in &self.links_to[host] {
                let sender = problem.links[*link].from;
                let coming = problem.sent(item)[sender] - other.map_or(0.0, |other| problem.sent(other)[sender]);
                network = network.max((self.links[*link] + sign * coming) / problem.links[*link].capacity);
            }
        }
        let traffic = self.traffic + sides[0].inbound + sides[1].inbound;
        full(cpu, network) + self.scale * (penalty + TRAFFIC * traffic / self.traffic_all) + self.even_price(evenness)
    }
}
