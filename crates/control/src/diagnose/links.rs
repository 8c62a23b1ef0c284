//! Full links.

use super::{View, cause, words};
use crate::report::{Cause, CauseKind};

/// An earlier rate is worth mentioning if it was this many times higher.
const WAS_MORE: f64 = 1.3;

/// One full direction of a host's link.
struct HostSide {
    kind: CauseKind,
    /// The verb for the sentence: what the host does over the link now, and what it did before.
    verbs: [&'static str; 2],
    waiting: &'static str,
    weight: f64,
    /// The current traffic, and its peak.
    bytes_s: f64,
    peak: f64,
}

impl HostSide {
    fn cause(&self, view: &View<'_>, host: usize, evidence: Vec<String>) -> Cause {
        let HostSide { kind, verbs: [does, has_done], waiting, weight, bytes_s, peak } = *self;
        let sentence = format!(
            "{} {does} {}, all that its link takes; {waiting} {} of the time for it.",
            view.host(host),
            words::bits_s(bytes_s),
            words::percent(weight)
        );
        let mut cause = Cause { host: Some(host as u32), ..cause(kind, weight, sentence) };
        if peak > WAS_MORE * bytes_s {
            cause.evidence.push(format!("It has {has_done} {} before.", words::bits_s(peak)));
        }
        cause.evidence.extend(evidence);
        cause
    }
}

pub(super) fn causes(view: &View<'_>) -> Vec<Cause> {
    let mut causes = Vec::new();
    for (at, (host, limits)) in view.rates.hosts.iter().zip(&view.rates.limits).enumerate() {
        if limits.in_full {
            let side = HostSide {
                kind: CauseKind::Inbound,
                verbs: ["receives", "received"],
                waiting: "senders wait",
                weight: view.waits.inbound(at),
                bytes_s: host.in_bytes_s,
                peak: limits.in_peak,
            };
            causes.push(side.cause(view, at, pairs(view, |_, to| to as usize == at)));
        }
        if limits.out_full {
            let side = HostSide {
                kind: CauseKind::Outbound,
                verbs: ["sends", "sent"],
                waiting: "all senders together wait",
                weight: view.waits.outbound(at),
                bytes_s: host.out_bytes_s,
                peak: limits.out_peak,
            };
            causes.push(side.cause(view, at, pairs(view, |from, _| from as usize == at)));
        }
    }
    for (link, full) in view.rates.links.iter().zip(&view.rates.link_full) {
        if *full {
            let weight = view.waits.link(link.from as usize, link.to as usize);
            let sentence = format!(
                "The link from {} to {} carries {} and no more; all senders together wait {} of the time for it.",
                view.host(link.from as usize),
                view.host(link.to as usize),
                words::bits_s(link.bytes_s),
                words::percent(weight)
            );
            let mut cause = Cause { host: Some(link.to), ..cause(CauseKind::Link, weight, sentence) };
            cause.evidence.extend(pairs(view, |from, to| (from, to) == (link.from, link.to)));
            causes.push(cause);
        }
    }
    causes
}

/// Lists pairs of hosts, a line each.
fn pairs(view: &View<'_>, of: impl Fn(u32, u32) -> bool) -> Vec<String> {
    let links = view.rates.links.iter().filter(|link| of(link.from, link.to));
    let line = |link: &crate::report::HostLinkReport| {
        let rtt = link.rtt_us.map_or(String::new(), |us| format!(", round trip {:.1} ms", us as f64 / 1e3));
        format!(
            "{} to {}: {}, something waits in front of it {} of the time, {} queued{rtt}",
            view.host(link.from as usize),
            view.host(link.to as usize),
            words::bits_s(link.bytes_s),
            words::percent(link.busy),
            words::bytes(link.queued_bytes as f64)
        )
    };
    links.map(line).collect()
}
