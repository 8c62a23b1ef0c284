//! Full links.

use super::{View, cause, words};
use crate::report::{Cause, CauseKind};

/// What has flowed before is worth a word if it was so much more.
const WAS_MORE: f64 = 1.3;

pub(super) fn causes(view: &View<'_>) -> Vec<Cause> {
    let mut causes = Vec::new();
    for (at, (host, limits)) in view.rates.hosts.iter().zip(&view.rates.limits).enumerate() {
        if limits.in_full {
            let weight = view.waits.inbound(at);
            let sentence = format!(
                "{} receives {}, all that its link takes; senders wait {} of the time for it.",
                view.host(at),
                words::bits_s(host.in_bytes_s),
                words::percent(weight)
            );
            let mut cause = Cause { host: Some(at as u32), ..cause(CauseKind::Inbound, weight, sentence) };
            if limits.in_peak > WAS_MORE * host.in_bytes_s {
                cause.evidence.push(format!("It has received {} before.", words::bits_s(limits.in_peak)));
            }
            cause.evidence.extend(pairs(view, |_, to| to as usize == at));
            causes.push(cause);
        }
        if limits.out_full {
            let weight = view.waits.outbound(at);
            let sentence = format!(
                "{} sends {}, all that its link takes; all senders together wait {} of the time for it.",
                view.host(at),
                words::bits_s(host.out_bytes_s),
                words::percent(weight)
            );
            let mut cause = Cause { host: Some(at as u32), ..cause(CauseKind::Outbound, weight, sentence) };
            if limits.out_peak > WAS_MORE * host.out_bytes_s {
                cause.evidence.push(format!("It has sent {} before.", words::bits_s(limits.out_peak)));
            }
            cause.evidence.extend(pairs(view, |from, _| from as usize == at));
            causes.push(cause);
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

/// Pairs of hosts, in a line each.
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
