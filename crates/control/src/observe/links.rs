//! The traffic between hosts, and which side of a full link is to blame.

use std::collections::BTreeMap;

use super::history::Span;
use crate::sample::LinkCounters;

/// A link is full if something waits in front of it for more than this fraction of the time.
const BUSY_MIN: f64 = 0.5;
/// A host's link is full if this fraction of the pairs that use it are full.
const FULL_SHARE: f64 = 0.65;
/// Waits shorter than this fraction of the time are ignored as chance.
const WAIT_MIN: f64 = 0.02;

/// The traffic from one place to another.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Flow {
    pub(super) bytes_s: f64,
    /// How many links carry something or have something waiting, and how many of them are full. They are counted, not
    /// weighted: a link that has just been choked carries nothing at all.
    used: u32,
    full: u32,
    pub(super) busy: f64,
    pub(super) link_wait: f64,
    pub(super) credit_wait: f64,
    pub(super) queued_bytes: u64,
    pub(super) rtt_us: Option<u64>,
}

impl Flow {
    fn is_full(&self) -> bool {
        self.full > 0 && 2 * self.full >= self.used
    }
}

/// The traffic between all hosts.
pub(super) struct Flows {
    hosts: usize,
    pairs: BTreeMap<(usize, usize), Flow>,
}

impl Flows {
    pub(super) fn new(hosts: usize) -> Self {
        Self { hosts, pairs: BTreeMap::new() }
    }

    /// Adds the links of a worker on `host`.
    pub(super) fn add(&mut self, host: usize, span: &Span<'_>, worker_hosts: &[u32]) {
        let old_links: BTreeMap<u32, &LinkCounters> = span.oldest.links.iter().map(|link| (link.peer, link)).collect();
        let nothing = LinkCounters::default();
        for new in &span.newest.links {
            let Some(to) = worker_hosts.get(new.peer as usize).map(|to| *to as usize).filter(|to| *to < self.hosts)
            else {
                continue;
            };
            let old = old_links.get(&new.peer).copied().unwrap_or(&nothing);
            let rate = |of: fn(&LinkCounters) -> u64| of(new).saturating_sub(of(old)) as f64 / span.seconds;
            let bytes_s = rate(|link| link.sent_bytes);
            let busy = (rate(|link| link.busy_ns) / 1e9).min(1.0);
            let link_wait = rate(|link| link.link_wait_ns) / 1e9;
            let credit_wait = rate(|link| link.credit_wait_ns) / 1e9;
            let flow = self.pairs.entry((host, to)).or_default();
            flow.bytes_s += bytes_s;
            // A permanent queue fills the link even if senders run out of credit first.
            let waits = link_wait > WAIT_MIN || (busy > 0.9 && credit_wait > WAIT_MIN);
            flow.used += u32::from(bytes_s > 0.0 || busy > BUSY_MIN);
            flow.full += u32::from(busy > BUSY_MIN && waits && limited_by_network(old, new, span.seconds));
            flow.busy = flow.busy.max(busy);
            flow.link_wait += link_wait;
            flow.credit_wait += credit_wait;
            flow.queued_bytes = flow.queued_bytes.saturating_add(new.queued_bytes);
            flow.rtt_us = flow.rtt_us.max(new.tcp.map(|tcp| tcp.rtt_us));
        }
    }

    /// The traffic by sending and receiving host, without what stays on a host.
    pub(super) fn pairs(&self) -> impl Iterator<Item = ((usize, usize), &Flow)> {
        self.pairs.iter().filter(|((from, to), _)| from != to).map(|(pair, flow)| (*pair, flow))
    }

    /// How many senders waited for credit of copies on their own host, on average.
    pub(super) fn local_credit_wait(&self, host: usize) -> f64 {
        self.pairs.get(&(host, host)).map_or(0.0, |flow| flow.credit_wait)
    }

    /// What a host receives.
    pub(super) fn inbound(&self, host: usize) -> Flow {
        sum(self.pairs().filter(|((_, to), _)| *to == host).map(|(_, flow)| flow))
    }

    /// What a host sends.
    pub(super) fn outbound(&self, host: usize) -> Flow {
        sum(self.pairs().filter(|((from, _), _)| *from == host).map(|(_, flow)| flow))
    }
}

/// The sum of the bytes, and how busy the least busy link is: what all links share is as busy as that.
fn sum<'a>(flows: impl Iterator<Item = &'a Flow>) -> Flow {
    let flows = flows.filter(|flow| flow.bytes_s > 0.0);
    let sum = flows.fold(Flow { busy: f64::INFINITY, ..Flow::default() }, |sum, flow| Flow {
        bytes_s: sum.bytes_s + flow.bytes_s,
        busy: sum.busy.min(flow.busy),
        ..sum
    });
    Flow { busy: sum.busy.min(1.0), ..sum }
}

/// Whether TCP reports that neither the sender's program nor the receiver's limited the link.
fn limited_by_network(old: &LinkCounters, new: &LinkCounters, seconds: f64) -> bool {
    let Some(tcp) = new.tcp else { return true };
    let old = old.tcp.unwrap_or_default();
    let busy_us = tcp.busy_us.saturating_sub(old.busy_us) as f64;
    let receiver_us = tcp.receiver_limited_us.saturating_sub(old.receiver_limited_us) as f64;
    // `app_limited` describes a single moment: a connection that was hardly ever idle is not limited by its program.
    receiver_us <= 0.5 * busy_us && (!tcp.app_limited || busy_us > 0.9 * seconds * 1e6)
}

/// Which hosts' links are full, and which pairs of hosts have full links that no host explains.
///
/// Acknowledgments arrive over the inbound link: if it is choked, what the host sends looks slow too. So inbound
/// links are blamed first, and their hosts' outbound traffic teaches nothing.
pub(super) struct Fullness {
    pub(super) inbound: Vec<bool>,
    pub(super) outbound: Vec<bool>,
    pairs: Vec<(usize, usize)>,
}

impl Fullness {
    pub(super) fn of(flows: &Flows) -> Self {
        let hosts = flows.hosts;
        // Several links that are full at once have a common cause; a single one may be full by itself.
        let most = |of: &dyn Fn(usize, usize) -> bool| {
            let pairs = || flows.pairs().filter(|((from, to), flow)| flow.used > 0 && of(*from, *to));
            let full = pairs().filter(|(_, flow)| flow.is_full()).count();
            full > 1 && full as f64 >= FULL_SHARE * pairs().count() as f64
        };
        let inbound: Vec<bool> = (0..hosts).map(|host| most(&|_, to| to == host)).collect();
        // A sender is not to blame if other hosts' inbound links limit its traffic.
        let outbound: Vec<bool> =
            (0..hosts).map(|host| !inbound[host] && most(&|from, to| from == host && !inbound[to])).collect();
        let explained = |from: usize, to: usize| inbound[to] || inbound[from] || outbound[from] || outbound[to];
        let full = flows.pairs().filter(|((from, to), flow)| flow.is_full() && !explained(*from, *to));
        let pairs = full.map(|(pair, _)| pair).collect();
        Self { inbound, outbound, pairs }
    }

    pub(super) fn pair(&self, from: usize, to: usize) -> bool {
        self.pairs.contains(&(from, to))
    }
}
