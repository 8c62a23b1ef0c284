//! How the workers of a run learn that all of them are done, and what failed first.
//!
//! A dissemination barrier: in round r, a worker sends a message to the worker 2^r places after it, and receives one
//! from the worker 2^r places before it. After lg P rounds every worker has heard from every other, directly or through
//! others, so a run of P workers does not need connections between all of them. A worker that waits for a missing one
//! reports it.
//!
//! Source: D. Hensgen, R. Finkel, U. Manber, "Two algorithms for barrier synchronization", 1988.

use super::fault::RunFault;

/// One worker's part.
pub(super) struct Ending {
    me: u32,
    workers: u32,
    /// Whether this worker's own part of the run is over.
    begun: bool,
    /// The current round.
    round: u32,
    /// By round: the message of the worker whose turn it is.
    heard: Vec<Option<Option<ReportedFault>>>,
    /// The lowest worker's fault, of those known here.
    first: Option<ReportedFault>,
}

/// A fault, and the worker that reported it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ReportedFault {
    reporter: u32,
    fault: RunFault,
}

/// A message to send: to a worker, in a round.
pub(super) type RoundMessage = (u32, u32);

impl Ending {
    pub(super) fn new(me: u32, workers: u32) -> Self {
        let rounds = workers.next_power_of_two().ilog2() as usize;
        Ending { me, workers, begun: false, round: 0, heard: vec![None; rounds], first: None }
    }

    fn rounds(&self) -> u32 {
        self.heard.len() as u32
    }

    /// The workers that this one sends to, by round.
    pub(super) fn successors(&self) -> impl Iterator<Item = u32> + use<> {
        let (me, workers) = (u64::from(self.me), u64::from(self.workers));
        (0..self.rounds()).map(move |round| ((me + (1 << round)) % workers) as u32)
    }

    fn predecessor(&self, round: u32) -> u32 {
        let workers = u64::from(self.workers);
        ((u64::from(self.me) + workers - (1 << round)) % workers) as u32
    }

    /// Records that this worker's part is over, well or with a fault.
    pub(super) fn begin(&mut self, own: Option<RunFault>) -> Vec<RoundMessage> {
        self.begun = true;
        self.note(own.map(|fault| ReportedFault { reporter: self.me, fault }));
        let mut messages: Vec<_> = self.successors().take(1).map(|to| (to, 0)).collect();
        messages.append(&mut self.advance());
        messages
    }

    pub(super) fn has_begun(&self) -> bool {
        self.begun
    }

    /// Handles a message of worker `from` in a round.
    ///
    /// # Errors
    /// A description, if it was not its turn.
    pub(super) fn hear(
        &mut self,
        (from, round): RoundMessage,
        fault: Option<ReportedFault>,
    ) -> Result<Vec<RoundMessage>, String> {
        if round >= self.rounds() || self.predecessor(round) != from || self.heard[round as usize].is_some() {
            return Err(format!("the end of round {round} out of turn"));
        }
        self.heard[round as usize] = Some(fault);
        Ok(self.advance())
    }

    /// Handles that worker `from` will send no more: each missing message is replaced by that fault.
    pub(super) fn give_up(&mut self, from: u32, fault: &RunFault) -> Vec<RoundMessage> {
        for round in self.round..self.rounds() {
            if self.predecessor(round) == from {
                let absent = ReportedFault { reporter: from, fault: fault.clone() };
                self.heard[round as usize].get_or_insert(Some(absent));
            }
        }
        self.advance()
    }

    /// Whether this worker cannot end before `worker` has sent a message.
    pub(super) fn awaits(&self, worker: u32) -> bool {
        if !self.begun {
            return worker != self.me;
        }
        (self.round..self.rounds())
            .any(|round| self.heard[round as usize].is_none() && self.predecessor(round) == worker)
    }

    /// Whether all workers' parts are over.
    pub(super) fn is_over(&self) -> bool {
        self.begun && self.round == self.rounds()
    }

    /// The fault that all workers report: of several, the lowest worker's.
    pub(super) fn first(&self) -> Option<&RunFault> {
        self.first.as_ref().map(|reported| &reported.fault)
    }

    /// The content of a message.
    pub(super) fn encode(&self) -> Option<Vec<u8>> {
        let reported = self.first.as_ref()?;
        Some([&reported.reporter.to_le_bytes()[..], &reported.fault.encode()].concat())
    }

    fn note(&mut self, fault: Option<ReportedFault>) {
        if let Some(fault) = fault
            && self.first.as_ref().is_none_or(|first| fault.reporter < first.reporter)
        {
            self.first = Some(fault);
        }
    }

    fn advance(&mut self) -> Vec<RoundMessage> {
        let mut messages = Vec::new();
        while self.begun
            && let Some(fault) = self.heard.get_mut(self.round as usize).and_then(Option::take)
        {
            self.note(fault);
            self.round += 1;
            messages.extend(self.successors().nth(self.round as usize).map(|to| (to, self.round)));
        }
        messages
    }
}

impl ReportedFault {
    /// Decodes the output of [`Ending::encode`]; `None` for anything else.
    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let (reporter, fault) = bytes.split_first_chunk::<4>()?;
        Some(ReportedFault { reporter: u32::from_le_bytes(*reporter), fault: RunFault::decode(fault)? })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn fault(rank: u32) -> RunFault {
        RunFault { rank, task: format!("task {rank}"), copy: 0, message: "failed".into() }
    }

    /// A message in transit: from, to, round, content.
    type Sent = (u32, u32, u32, Option<ReportedFault>);

    fn send(from: &Ending, messages: Vec<RoundMessage>, wire: &mut Vec<Sent>) {
        let says = from.encode().and_then(|bytes| ReportedFault::decode(&bytes));
        wire.extend(messages.into_iter().map(|(to, round)| (from.me, to, round, says.clone())));
    }

    proptest! {
        /// A worker that ended early would close its links to workers that still send. If a worker missed a fault,
        /// the run would fail on some workers and not on others.
        #[test]
        fn all_end_when_all_are_done_and_agree(
            workers in 1u32..40,
            failed in prop::collection::vec(any::<prop::sample::Index>(), 0..4),
            order in prop::collection::vec(any::<prop::sample::Index>(), 400),
        ) {
            let mut of: Vec<Ending> = (0..workers).map(|me| Ending::new(me, workers)).collect();
            let failed: Vec<u32> = failed.iter().map(|index| index.index(workers as usize) as u32).collect();
            let mut waiting: Vec<u32> = (0..workers).collect();
            let mut wire = Vec::new();
            for pick in order.iter().cycle() {
                let choices = waiting.len() + wire.len();
                if choices == 0 {
                    break;
                }
                prop_assert!(waiting.is_empty() || of.iter().all(|ending| !ending.is_over()));
                let at = pick.index(choices);
                if at < waiting.len() {
                    let me = waiting.swap_remove(at);
                    let messages = of[me as usize].begin(failed.contains(&me).then(|| fault(me)));
                    send(&of[me as usize], messages, &mut wire);
                } else {
                    let (from, to, round, says) = wire.swap_remove(at - waiting.len());
                    let messages = of[to as usize].hear((from, round), says).unwrap();
                    send(&of[to as usize], messages, &mut wire);
                }
            }
            let first = failed.iter().min().map(|&me| fault(me));
            for ending in &of {
                prop_assert!(ending.is_over() && (0..workers).all(|other| !ending.awaits(other)));
                prop_assert_eq!(ending.first(), first.as_ref());
            }
        }

        /// A worker that vanished is reported by those that wait for it, and all others learn of it.
        #[test]
        fn an_absent_worker_delays_nobody(workers in 2u32..40, absent in any::<prop::sample::Index>()) {
            let absent = absent.index(workers as usize) as u32;
            let mut of: Vec<Ending> = (0..workers).map(|me| Ending::new(me, workers)).collect();
            let mut wire = Vec::new();
            for me in (0..workers).filter(|&me| me != absent) {
                let ending = &mut of[me as usize];
                let mut messages = ending.begin(None);
                if ending.awaits(absent) {
                    messages.append(&mut ending.give_up(absent, &fault(absent)));
                }
                send(ending, messages, &mut wire);
            }
            while let Some((from, to, round, says)) = wire.pop() {
                if to != absent {
                    let messages = of[to as usize].hear((from, round), says).unwrap();
                    send(&of[to as usize], messages, &mut wire);
                }
            }
            for ending in of.iter().filter(|ending| ending.me != absent) {
                prop_assert!(ending.is_over());
                prop_assert_eq!(ending.first(), Some(&fault(absent)));
            }
        }
    }

    #[test]
    fn messages_out_of_turn_are_refused() {
        let mut ending = Ending::new(0, 5);
        assert_eq!(ending.successors().collect::<Vec<_>>(), [1, 2, 4]);
        assert!(ending.hear((1, 0), None).is_err() && ending.hear((4, 7), None).is_err());
        assert_eq!(ending.hear((4, 0), None), Ok(vec![]), "its own part is not over");
        assert!(ending.hear((4, 0), None).is_err(), "twice");
        assert_eq!(ending.begin(None), [(1, 0), (2, 1)]);
        assert_eq!(Ending::new(0, 1).begin(None), []);
    }
}
