//! Rank 0's side of joining: carries messages between the workers and [`super::ledger`], until all are in their places
//! or the job cannot start.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};

use super::attach::{ATTACH_TIMEOUT, bad_news, local_address};
use super::ledger::{JoinAction, JoinAnswer, JoinLedger};
use super::{JoinConfig, JoinError, VERDICT_PATIENCE, descriptors, resolve};
use crate::control::exchange::has_ended;
use crate::control::tree::ControlTree;
use crate::control::wire::{ControlKind, ControlLink};
use crate::control::{ControlError, ReturnWay, TreeLinks, exchange};
use crate::handshake::conversation::HandshakeOutcome;
use crate::handshake::gate::ConnectionAcceptor;
use crate::handshake::proof::ConnectionPurpose;
use crate::secret::JobKey;
use crate::threads::{poll_until, sleep};
use crate::{Rank, notice};

/// How long rank 0 waits for latecomers, to tell them why the job does not start.
const REFUSAL_PATIENCE: Duration = Duration::from_secs(3);

/// How long rank 0 tries to bind a port that is in use: by an earlier job that is ending, or briefly by a worker that
/// connected to itself while trying to reach rank 0.
const BIND_PATIENCE: Duration = Duration::from_secs(3);

/// Admits the others, and returns when they are in their places.
pub(super) fn host(config: &JoinConfig, key: &JobKey, tree: ControlTree) -> Result<TreeLinks, JoinError> {
    let deadline = Instant::now() + config.timeout;
    let listener = match &config.listener {
        Some(fd) => TcpListener::from(fd.try_clone()?),
        None => bind(&config.root)?,
    };
    let gate = ConnectionAcceptor::new(listener, key.clone(), ConnectionPurpose::Join, Rank(0), config.size)?;
    admit_all(config, gate, tree, descriptors::links_max(), deadline)
}

/// Admits the others. While there are `links_max` connections, leaves that come before their parents are sent away.
fn admit_all(
    config: &JoinConfig,
    gate: ConnectionAcceptor,
    tree: ControlTree,
    links_max: usize,
    deadline: Instant,
) -> Result<TreeLinks, JoinError> {
    let mut admission = Admission {
        config,
        gate,
        links_max,
        ledger: JoinLedger::new(tree),
        links: BTreeMap::new(),
        doubted: BTreeMap::new(),
        refused: BTreeMap::new(),
        addresses: BTreeSet::new(),
        links_at_join: 0,
        ended: Vec::new(),
    };
    match admission.run(deadline) {
        Ok(()) => Ok(admission.finish(tree, deadline)),
        Err(error) => {
            admission.refuse_all(&error);
            Err(error)
        }
    }
}

struct Admission<'a> {
    config: &'a JoinConfig,
    gate: ConnectionAcceptor,
    links_max: usize,
    ledger: JoinLedger,
    /// Workers that have joined, except leaves that are connected to their parents.
    links: BTreeMap<Rank, ControlLink>,
    /// Workers whose rank another worker may still have.
    doubted: BTreeMap<Rank, ControlLink>,
    /// Workers because of which the job does not start. Their links stay open until they have surely received the
    /// reason.
    refused: BTreeMap<Rank, ControlLink>,
    addresses: BTreeSet<IpAddr>,
    /// How many links there were when the last worker joined.
    links_at_join: usize,
    /// Who has ended and has not come again, in order, and how that was noticed.
    ended: Vec<(Rank, String)>,
}

impl Admission<'_> {
    fn run(&mut self, mut deadline: Instant) -> Result<(), JoinError> {
        // The others give up a little later.
        let deadline_max = deadline + ATTACH_TIMEOUT + VERDICT_PATIENCE;
        let mut were_all_here = false;
        // When those that have all joined must be in their places.
        let mut placed_until: Option<Instant> = None;
        while !self.ledger.is_complete() {
            if self.ledger.is_full() && placed_until.is_none() {
                self.links_at_join = self.links.len();
                were_all_here = true;
                placed_until = Some(deadline_max.min(Instant::now() + ATTACH_TIMEOUT + VERDICT_PATIENCE));
            } else if !self.ledger.is_full() && placed_until.take().is_some() {
                // Leaves that were connected through a worker that has ended call again, and are not to be named.
                deadline = deadline.max(deadline_max.min(Instant::now() + VERDICT_PATIENCE));
            }
            let until = placed_until.unwrap_or(deadline);
            let ready = self.wait(until)?;
            let now = Instant::now();
            // A worker that ended while it waited may come again, so ends come first.
            for rank in ready.links {
                self.hear(rank)?;
            }
            for rank in ready.doubted {
                if self.doubted.get_mut(&rank).is_some_and(|link| link.receive().is_err()) {
                    self.doubted.remove(&rank);
                    self.ledger.hung_up(rank);
                }
            }
            // A wrong worker must not keep out those that came with it, since they have to learn the reason too.
            let met = self.gate.advance(now, &ready.gate, &|_| false);
            met.into_iter().map(|met| self.admit(met)).fold(Ok(()), Result::and)?;
            if now < until || self.ledger.is_complete() {
                continue;
            }
            let waited_s = self.config.timeout.as_secs();
            if !self.ledger.is_full() && now >= deadline {
                if were_all_here && let Some((rank, reason)) = self.ended.first().cloned() {
                    return Err(ControlError::Lost { rank, reason }.into());
                }
                return Err(JoinError::Missing { missing: self.ledger.absent(), waited_s, hint: self.gate.refusals() });
            }
            if placed_until.is_some_and(|until| now >= until) && self.ledger.is_full() {
                let missing = self.ledger.awaited();
                return Err(ControlError::TimedOut { missing, waited_s: ATTACH_TIMEOUT.as_secs() }.into());
            }
        }
        // The last of a star is in its place at once.
        if placed_until.is_none() {
            self.links_at_join = self.links.len();
        }
        Ok(())
    }

    /// Waits until something happens.
    fn wait(&self, until: Instant) -> std::io::Result<Ready> {
        let mut fds = Vec::new();
        self.gate.interest(&mut fds);
        let gate_len = self.gate.interest_len();
        let linked = self.links.values().chain(self.doubted.values());
        fds.extend(linked.map(|link| PollFd::new(link, link.interest())));
        poll_until(&mut fds, self.gate.next_deadline().map_or(until, |at| at.min(until)))?;
        let ready: Vec<PollFlags> = fds.iter().map(PollFd::revents).collect();
        let (gate, linked) = ready.split_at(gate_len);
        let is_ready = |(rank, flags): (&Rank, &PollFlags)| (!flags.is_empty()).then_some(*rank);
        let (links, doubted) = linked.split_at(self.links.len());
        Ok(Ready {
            gate: gate.to_vec(),
            links: self.links.keys().zip(links).filter_map(is_ready).collect(),
            doubted: self.doubted.keys().zip(doubted).filter_map(is_ready).collect(),
        })
    }

    /// Handles what a worker has sent, and its end.
    fn hear(&mut self, rank: Rank) -> Result<(), JoinError> {
        let mut actions = Vec::new();
        // The link may be gone after any message.
        while let Some(link) = self.links.get_mut(&rank) {
            // If it breaks, the reading side finds the reason, after what the worker has sent before.
            let _ = link.flush();
            match link.receive() {
                Ok(None) => break,
                Ok(Some(message)) => {
                    let heard = self.ledger.heard(rank, message, &mut actions);
                    self.act(&mut actions);
                    heard?;
                }
                Err(reason) => {
                    notice!(self.config.rank, "rank {rank} exited before the job started: {reason}");
                    self.links.remove(&rank);
                    self.ended.push((rank, reason));
                    self.ledger.closed(rank, &mut actions);
                    self.act(&mut actions);
                }
            }
        }
        Ok(())
    }

    /// Admits a worker that has proved that it belongs to this job, unless its launcher has made a mistake.
    fn admit(&mut self, met: HandshakeOutcome) -> Result<(), JoinError> {
        let rank = met.call.from;
        let peer = met.stream.peer_addr().map_or_else(|_| "an unknown address".into(), |a| a.to_string());
        let mut link = ControlLink::new(met.stream);
        link.tune()?;
        // What an earlier worker of this rank sent last decides whether this one is its successor.
        self.hear(rank)?;
        let mut actions = Vec::new();
        let answer = self.ledger.called(rank, met.call.size, peer, &mut actions);
        match answer {
            Ok(JoinAnswer::Admitted) => {
                self.link_up(rank, link);
                if self.links.len() > self.links_max {
                    self.ledger.send_away(&mut actions);
                }
            }
            Ok(JoinAnswer::Doubted) => drop(self.doubted.insert(rank, link)),
            Err(text) => {
                exchange::tell(std::slice::from_mut(&mut link), ControlKind::Failed, Rank(0), text.as_bytes());
                self.refused.insert(rank, link);
                return Err(JoinError::Disagreement(text));
            }
        }
        self.act(&mut actions);
        Ok(())
    }

    fn link_up(&mut self, rank: Rank, link: ControlLink) {
        self.addresses.extend(local_address(&link));
        self.links.insert(rank, link);
        self.ended.retain(|(ended, _)| *ended != rank);
    }

    fn act(&mut self, actions: &mut Vec<JoinAction>) {
        for action in actions.drain(..) {
            match action {
                JoinAction::Send { to, message } => {
                    if let Some(link) = self.links.get_mut(&to) {
                        link.queue_message(&message);
                        let _ = link.flush();
                    }
                }
                JoinAction::Close { rank } => drop(self.links.remove(&rank)),
                JoinAction::Admit { rank } => {
                    if let Some(link) = self.doubted.remove(&rank) {
                        self.link_up(rank, link);
                    }
                }
                JoinAction::Ended { rank } => {
                    notice!(self.config.rank, "rank {rank} exited before the job started: its process ended");
                    self.ended.push((rank, "its process ended".into()));
                }
            }
        }
    }

    /// Tells all that they are in their places, and keeps the connections to rank 0's children.
    fn finish(self, tree: ControlTree, deadline: Instant) -> TreeLinks {
        let Admission { mut gate, links, addresses, links_at_join, .. } = self;
        let (ranks, mut present): (Vec<Rank>, Vec<ControlLink>) = links.into_iter().unzip();
        present.iter_mut().for_each(|link| link.queue(ControlKind::Welcome, Rank(0), &[]));
        exchange::flush_all(&mut present, deadline.max(Instant::now() + VERDICT_PATIENCE));
        let of_all = ranks.into_iter().zip(present);
        let (of_children, of_others): (Vec<_>, Vec<_>) =
            of_all.partition(|(rank, _)| tree.parent(*rank) == Some(Rank(0)));
        let return_way = if tree.is_star() {
            ReturnWay::None
        } else {
            // Workers whose parent in the tree has ended call here.
            gate.expect(ConnectionPurpose::Return);
            ReturnWay::Gate(Box::new(gate))
        };
        TreeLinks {
            tree,
            up: None,
            children: of_children.into_iter().map(|(_, link)| link).collect(),
            others: of_others.into_iter().map(|(_, link)| link).collect(),
            return_way,
            addresses: addresses.into_iter().collect(),
            links_at_join,
        }
    }

    /// Tells all workers why the job does not start, including those that come a little later: otherwise they would
    /// try to reach this worker until their timeout. Parents tell the leaves that are connected to nobody else.
    fn refuse_all(mut self, error: &JoinError) {
        let until = Instant::now() + REFUSAL_PATIENCE;
        let (kind, rank, reason) = bad_news(error);
        let refuse = |links: &mut [ControlLink]| exchange::tell(links, kind, rank, reason.as_bytes());
        let mut awaited: BTreeSet<Rank> = self.ledger.absent().into_iter().collect();
        awaited.retain(|rank| !self.refused.contains_key(rank));
        let mut told: Vec<ControlLink> = self.links.into_values().chain(self.doubted.into_values()).collect();
        refuse(&mut told);
        told.extend(self.refused.into_values());
        // Keep the links open until the workers have hung up, so that they surely receive the reason: closing one with
        // unread messages would discard what it has not sent.
        while !awaited.is_empty() || !told.is_empty() || self.gate.has_pending() {
            let mut fds = Vec::new();
            self.gate.interest(&mut fds);
            let gate_len = self.gate.interest_len();
            fds.extend(told.iter().map(|link| PollFd::new(link, PollFlags::IN)));
            let polled = poll_until(&mut fds, self.gate.next_deadline().map_or(until, |at| at.min(until)));
            let ready: Vec<PollFlags> = fds.iter().map(PollFd::revents).collect();
            let now = Instant::now();
            let mut is_ready = ready[gate_len..].iter().map(|flags| !flags.is_empty());
            told.retain_mut(|link| !(is_ready.next() == Some(true) && has_ended(link)));
            for met in self.gate.advance(now, &ready[..gate_len], &|_| false) {
                awaited.remove(&met.call.from);
                let mut link = ControlLink::new(met.stream);
                refuse(std::slice::from_mut(&mut link));
                told.push(link);
            }
            if polled.is_err() || now >= until {
                return;
            }
        }
    }
}

/// What is ready after a wait.
struct Ready {
    gate: Vec<PollFlags>,
    links: Vec<Rank>,
    doubted: Vec<Rank>,
}

/// Rank 0's listening socket at `root`; a name that is not this host's has its own error.
fn bind(root: &str) -> Result<TcpListener, JoinError> {
    let fail = |reason: String| JoinError::Listen { root: root.into(), reason };
    let start = Instant::now();
    loop {
        let addresses: Vec<SocketAddr> = resolve(root).map_err(|e| fail(e.to_string()))?;
        let error = match TcpListener::bind(&addresses[..]) {
            Ok(listener) => return Ok(listener),
            Err(e) => e,
        };
        let in_use = error.kind() == std::io::ErrorKind::AddrInUse;
        if in_use && start.elapsed() < BIND_PATIENCE {
            sleep(Duration::from_millis(50))?;
            continue;
        }
        return Err(fail(match error.kind() {
            std::io::ErrorKind::AddrInUse => {
                "the port is in use; is another rank 0 of this job, or an earlier job, still running? Choose another \
                 port"
                    .into()
            }
            std::io::ErrorKind::AddrNotAvailable => {
                "this is not an address of this host; rank 0 must run on the host with that address".into()
            }
            _ => error.to_string(),
        }));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rendezvous::{JobSecret, join};

    /// If leaves that come before their parents took all descriptors, their parents could not join.
    #[test]
    fn leaves_without_parents_leave_room_for_them() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (root, secret) = (listener.local_addr().unwrap().to_string(), JobSecret::random());
        let config = |rank| JoinConfig::new(Rank(rank), 7, "test", secret.clone(), &root);
        // Ranks 2, 3, 5 and 6 are leaves with other parents. Where rank 0 keeps one of them it keeps no other.
        let leaves = [2, 3, 5, 6].map(config).map(|config| std::thread::spawn(move || join(config)));
        let key = JobKey::new(&secret, "test");
        let gate = ConnectionAcceptor::new(listener, key, ConnectionPurpose::Join, Rank(0), 7).unwrap();
        let (tree, config_0) = (ControlTree::new(7, Some(2)), config(0));
        let deadline = Instant::now() + config_0.timeout;
        let rank_0 = std::thread::spawn(move || admit_all(&config_0, gate, tree, 1, deadline));
        // Most leaves have been sent away by then, whatever the order; in any order all join.
        sleep(Duration::from_millis(200)).unwrap();
        let parents = [1, 4].map(config).map(|config| std::thread::spawn(move || join(config)));
        let joined = leaves.into_iter().chain(parents).map(|thread| thread.join().unwrap().unwrap());
        assert_eq!(joined.map(|control| control.links()).sum::<usize>(), 10);
        let place = rank_0.join().unwrap().unwrap();
        assert_eq!(place.children.len(), 2);
    }
}
