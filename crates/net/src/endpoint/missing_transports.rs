//! Reports what is slower than it could be, once for the whole job: workers report their findings to rank 0, which
//! tells the user. The worker that received a reason from the kernel reports it; its peer only knows that there is
//! one.

use std::collections::BTreeSet;

use crate::control;
use crate::{Rank, notice};

/// How many reasons a worker reports at most: one reason for each peer, naming its process, would add up to one per
/// pair.
const REASONS_MAX: usize = 4;

/// This worker's reasons, each with the peers it concerns. A reason has the form `what is missing: why`.
#[derive(Default)]
pub(super) struct MissingTransports(Vec<(String, Vec<Rank>)>);

impl MissingTransports {
    pub(super) fn add(&mut self, peer: Rank, reason: &str) {
        if let Some((_, peers)) = self.0.iter_mut().find(|(known, _)| known == reason) {
            peers.push(peer);
        } else if self.0.len() < REASONS_MAX {
            self.0.push((reason.to_owned(), vec![peer]));
        }
    }

    /// Encodes them for [`tell`].
    pub(super) fn encode(&self) -> Vec<u8> {
        let line = |(reason, peers): &(String, Vec<Rank>)| {
            let peers: Vec<String> = peers.iter().map(Rank::to_string).collect();
            format!("{}\t{}\n", peers.join(" "), reason.replace('\n', " "))
        };
        self.0.iter().map(line).collect::<String>().into_bytes()
    }
}

/// Tells the user what the workers have reported, by rank: one line for each missing thing.
pub(super) fn tell(reports: &[&[u8]]) {
    words(reports).iter().for_each(|line| notice!("slower than possible: {line}"));
}

#[derive(Default)]
struct ReasonGroup<'a> {
    what: &'a str,
    from: BTreeSet<Rank>,
    to: BTreeSet<Rank>,
    /// In the order of the reporting ranks.
    reasons: Vec<&'a str>,
}

/// Skips invalid parts of a report, which cost no more than a line.
fn words(reports: &[&[u8]]) -> Vec<String> {
    let texts: Vec<_> = reports.iter().map(|bytes| String::from_utf8_lossy(bytes)).collect();
    let mut kinds: Vec<ReasonGroup> = Vec::new();
    for (rank, text) in (0..).map(Rank).zip(&texts) {
        for (peers, reason) in text.lines().filter_map(|line| line.split_once('\t')) {
            let what = reason.split(':').next().unwrap_or_default();
            let at = kinds.iter().position(|kind| kind.what == what).unwrap_or_else(|| {
                kinds.push(ReasonGroup { what, ..ReasonGroup::default() });
                kinds.len() - 1
            });
            let kind = &mut kinds[at];
            kind.from.insert(rank);
            kind.to.extend(peers.split(' ').filter_map(|peer| peer.parse().ok()).map(Rank));
            if !kind.reasons.contains(&reason) {
                kind.reasons.push(reason);
            }
        }
    }
    let ranks = |set: &BTreeSet<Rank>| control::ranks(&set.iter().copied().collect::<Vec<_>>());
    let line = |kind: &ReasonGroup| {
        let more = match kind.reasons.len() {
            1 => String::new(),
            all => format!(" (the first of {all} reasons; `job.workers` lists them for each worker)"),
        };
        format!("from rank(s) {} to rank(s) {}: {}{more}", ranks(&kind.from), ranks(&kind.to), kind.reasons[0])
    };
    kinds.iter().map(line).collect()
}

#[cfg(any(test, fuzzing))]
pub(super) fn fuzz(bytes: &[u8]) {
    let lines = words(&[bytes, bytes]);
    assert!(lines.iter().map(String::len).sum::<usize>() <= 400 * (bytes.len() + 1));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(lacks: &[(u32, &str)]) -> Vec<u8> {
        let mut all = MissingTransports::default();
        lacks.iter().for_each(|(peer, reason)| all.add(Rank(*peer), reason));
        all.encode()
    }

    /// A line from each worker about each other one would bury what matters to the user.
    #[test]
    fn a_job_reports_each_missing_thing_once() {
        let copies = "no single copies of large messages: process_vm_readv: not permitted";
        let reports =
            [report(&[(1, copies), (2, copies)]), report(&[(0, copies), (2, copies)]), report(&[(0, copies)])];
        let found = words(&reports.each_ref().map(Vec::as_slice));
        assert_eq!(found, [format!("from rank(s) 0, 1, 2 to rank(s) 0, 1, 2: {copies}")]);

        let other = |pid| format!("no shared memory on this host: cannot open descriptor 7 of process {pid}");
        let reports = [report(&[(1, &other(41)), (2, &other(42))]), report(&[(2, copies)]), report(&[])];
        let found = words(&reports.each_ref().map(Vec::as_slice));
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(found[0].starts_with(&format!("from rank(s) 0 to rank(s) 1, 2: {} (the first of 2 ", other(41))));
        assert_eq!(found[1], format!("from rank(s) 1 to rank(s) 2: {copies}"));
    }

    /// Many peers must not make a report long, and invalid bytes must not end the job.
    #[test]
    fn reports_are_short_and_invalid_lines_are_skipped() {
        let many: Vec<String> = (0..1000).map(|pid| format!("no shared memory: process {pid}")).collect();
        let lacks: Vec<(u32, &str)> = (1..).zip(many.iter().map(String::as_str)).collect();
        assert!(report(&lacks).len() < 200);
        assert_eq!(words(&[b"", b"\xff\xfe", b"no tab\n"]), Vec::<String>::new());
        assert_eq!(words(&[b"x -1 9\tw\n"]), ["from rank(s) 0 to rank(s) 9: w"]);
    }
}
