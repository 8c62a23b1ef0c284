//! Turns the star around rank 0, in which all workers have met, into the tree of the control plane.
//!
//! ```text
//! rank 0                           worker
//!   Welcome (fan-out)   ---->                      all
//!                       <----   Listening (where)  those with children and a parent
//!   Parent (where)      ---->                      those that are not children of rank 0
//!                                                  call their parents
//!                       <----   Attached           those that called or were called
//!   Welcome             ---->                      all
//! ```
//!
//! Until the last message every worker keeps its connection to rank 0, so that all learn what went wrong; then only
//! its children do.

use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};

use super::{JoinConfig, JoinError, VERDICT_PATIENCE};
use crate::Rank;
use crate::control::exchange::{flush_all, tell};
use crate::control::tree::ControlTree;
use crate::control::wire::{ControlKind, ControlLink};
use crate::control::{ControlError, ReturnWay, TreeLinks};
use crate::handshake::PeerListener;
use crate::handshake::dial::DialAttempt;
use crate::handshake::gate::ConnectionAcceptor;
use crate::handshake::proof::{ConnectionClaim, ConnectionPurpose};
use crate::secret::JobKey;
use crate::threads::poll_until;

/// How long a worker tries to reach its parent.
const ATTACH_TIMEOUT: Duration = Duration::from_secs(30);

/// How many addresses of a parent its children try.
const ADDRESSES_MAX: usize = 16;

/// The addresses of this host on `links`, without duplicates.
pub(super) fn local_addresses<'a>(links: impl IntoIterator<Item = &'a ControlLink>) -> Vec<IpAddr> {
    let local = links.into_iter().filter_map(|link| link.stream().local_addr().ok());
    let mut addresses: Vec<IpAddr> = local.map(|address| address.ip().to_canonical()).collect();
    addresses.sort();
    addresses.dedup();
    addresses
}

/// On rank 0: moves all workers, whose links are given by rank from 1, to their places. Leaves the links that remain.
pub(super) fn arrange(tree: ControlTree, links: &mut Vec<ControlLink>) -> Result<(), JoinError> {
    let outcome = arrange_all(tree, links);
    if let Err(error) = &outcome {
        let (kind, rank, text) = match error {
            JoinError::Control(ControlError::Lost { rank, reason }) => (ControlKind::Lost, *rank, reason.clone()),
            other => (ControlKind::Failed, Rank(0), other.to_string()),
        };
        tell(links, kind, rank, text.as_bytes());
    }
    let mut rank = 0;
    links.retain(|_| {
        rank += 1;
        tree.parent(Rank(rank)) == Some(Rank(0))
    });
    outcome
}

fn arrange_all(tree: ControlTree, links: &mut [ControlLink]) -> Result<(), JoinError> {
    let deadline = Instant::now() + ATTACH_TIMEOUT + VERDICT_PATIENCE;
    let ranks = || (1..tree.size()).map(Rank);
    let is_called = |rank: &Rank| !tree.is_leaf(*rank);
    let calls = |rank: &Rank| tree.parent(*rank) != Some(Rank(0));

    let listening = await_all(links, ranks().filter(is_called).collect(), ControlKind::Listening, deadline)?;
    for rank in ranks().filter(calls) {
        let parent = tree.parent(rank).expect("only rank 0 has none");
        links[rank.index() - 1].queue(ControlKind::Parent, parent, &listening[parent.index()]);
    }
    flush_all(links, deadline);
    let concerned = ranks().filter(|rank| is_called(rank) || calls(rank)).collect();
    await_all(links, concerned, ControlKind::Attached, deadline)?;
    for link in links.iter_mut() {
        link.queue(ControlKind::Welcome, Rank(0), &[]);
    }
    flush_all(links, deadline);
    Ok(())
}

/// Waits for a message of `kind` from each of `awaited`. Returns their payloads by rank, and nothing for the others.
fn await_all(
    links: &mut [ControlLink],
    awaited: Vec<Rank>,
    kind: ControlKind,
    deadline: Instant,
) -> Result<Vec<Vec<u8>>, JoinError> {
    let mut payloads: Vec<Option<Vec<u8>>> = vec![Some(Vec::new()); links.len() + 1];
    awaited.iter().for_each(|rank| payloads[rank.index()] = None);
    // A message may have been read earlier, together with the previous one.
    let mut ready: Vec<Rank> = awaited;
    loop {
        for rank in ready {
            let link = &mut links[rank.index() - 1];
            let lost = |reason| ControlError::Lost { rank, reason };
            match link.receive().map_err(lost)? {
                None => {}
                Some(message) if message.kind == kind => payloads[rank.index()] = Some(message.payload),
                Some(message) if message.kind == ControlKind::Failed => {
                    return Err(JoinError::Disagreement(message.text()));
                }
                Some(other) => {
                    return Err(lost(format!("it sent {:?} where {kind:?} was expected", other.kind)).into());
                }
            }
        }
        let missing: Vec<Rank> =
            (0..).zip(&payloads).filter(|(_, payload)| payload.is_none()).map(|(rank, _)| Rank(rank)).collect();
        if missing.is_empty() {
            return Ok(payloads.into_iter().flatten().collect());
        }
        let mut fds: Vec<_> = missing.iter().map(|rank| PollFd::new(&links[rank.index() - 1], PollFlags::IN)).collect();
        if !poll_until(&mut fds, deadline)? {
            return Err(ControlError::TimedOut { missing, waited_s: ATTACH_TIMEOUT.as_secs() }.into());
        }
        let is_ready: Vec<bool> = fds.iter().map(|fd| !fd.revents().is_empty()).collect();
        ready = missing.into_iter().zip(is_ready).filter(|(_, is_ready)| *is_ready).map(|(rank, _)| rank).collect();
    }
}

/// On the others: takes this worker's place in the tree. `root` is its connection to rank 0.
pub(super) fn take_place(
    config: &JoinConfig,
    key: &JobKey,
    tree: ControlTree,
    root: ControlLink,
) -> Result<TreeLinks, JoinError> {
    let address = root.stream().peer_addr()?;
    let mut addresses = local_addresses([&root]);
    let return_way = ReturnWay::Root { address, key: key.clone() };
    let mut arrival = Arrival::new(config, key, tree, root, &addresses)?;
    arrival.run()?;
    let Arrival { root, up, children, calls, .. } = arrival;
    let up = if calls { up } else { Some(root) };
    let children: Vec<ControlLink> = children.into_iter().flatten().collect();
    addresses.extend(local_addresses(&children));
    addresses.sort();
    addresses.dedup();
    Ok(TreeLinks { tree, up, children, return_way, addresses })
}

/// A worker on its way to its place in the tree.
struct Arrival<'a> {
    config: &'a JoinConfig,
    key: &'a JobKey,
    tree: ControlTree,
    root: ControlLink,
    /// Accepts the calls of its children.
    gate: Option<ConnectionAcceptor>,
    children: Vec<Option<ControlLink>>,
    /// Whether its parent is not rank 0.
    calls: bool,
    dial: Option<DialAttempt>,
    up: Option<ControlLink>,
    /// It has told rank 0 the outcome.
    told: bool,
    /// Rank 0 has said that all are in their places.
    welcomed: bool,
}

impl<'a> Arrival<'a> {
    fn new(
        config: &'a JoinConfig,
        key: &'a JobKey,
        tree: ControlTree,
        mut root: ControlLink,
        addresses: &[IpAddr],
    ) -> Result<Self, JoinError> {
        let me = config.rank;
        let mut gate = None;
        if !tree.is_leaf(me) {
            let (listener, mut reached_at) = PeerListener::bind(addresses)?;
            reached_at.truncate(ADDRESSES_MAX);
            let text: Vec<String> = reached_at.iter().map(SocketAddr::to_string).collect();
            root.queue(ControlKind::Listening, me, text.join(" ").as_bytes());
            let purpose = ConnectionPurpose::Child;
            gate = Some(ConnectionAcceptor::new(listener.socket, key.clone(), purpose, me, config.size)?);
        }
        let children = tree.children(me).map(|_| None).collect();
        let calls = tree.parent(me) != Some(Rank(0));
        let told = !calls && gate.is_none();
        Ok(Arrival { config, key, tree, root, gate, children, calls, dial: None, up: None, told, welcomed: false })
    }

    /// Returns when rank 0 says that all are in their places.
    fn run(&mut self) -> Result<(), JoinError> {
        let start = Instant::now();
        let give_up = start + ATTACH_TIMEOUT;
        let patience = give_up + 2 * VERDICT_PATIENCE;
        loop {
            // Handle all messages: nothing wakes us for one that was read together with the previous one.
            while !self.welcomed && self.hear_root()? {}
            if self.welcomed {
                return Ok(());
            }
            let is_sent = self.root.flush().unwrap_or(true);
            let flags = if is_sent { PollFlags::IN } else { PollFlags::IN | PollFlags::OUT };
            let mut fds = vec![PollFd::new(&self.root, flags)];
            fds.extend(self.dial.iter().filter_map(DialAttempt::interest));
            let before_gate = fds.len();
            self.gate.iter().for_each(|gate| gate.interest(&mut fds));
            let deadlines = self.gate.iter().filter_map(|gate| gate.next_deadline());
            let deadlines = deadlines.chain(self.dial.iter().filter_map(DialAttempt::next_deadline));
            // While this worker waits for others, rank 0 says in time what happens.
            let until = if self.told || self.up.is_some() || !self.calls { patience } else { give_up };
            poll_until(&mut fds, deadlines.fold(until, Instant::min))?;
            let ready: Vec<PollFlags> = fds.iter().map(PollFd::revents).collect();
            drop(fds);
            // Even if all are here: a caller that considers its call failed calls again.
            self.answer_children(&ready[before_gate..])?;
            self.call_parent(ready[before_gate - 1], give_up)?;
            if !self.told && (self.up.is_some() || !self.calls) && self.children.iter().all(Option::is_some) {
                self.root.queue(ControlKind::Attached, self.config.rank, &[]);
                self.told = true;
            }
            if Instant::now() >= patience {
                let error = ControlError::TimedOut { missing: vec![Rank(0)], waited_s: ATTACH_TIMEOUT.as_secs() };
                return Err(error.into());
            }
        }
    }

    /// Handles a message from rank 0, if there is one.
    fn hear_root(&mut self) -> Result<bool, JoinError> {
        let lost = |reason| ControlError::Lost { rank: Rank(0), reason };
        let Some(message) = self.root.receive().map_err(lost)? else { return Ok(false) };
        match message.kind {
            ControlKind::Parent if self.calls && self.dial.is_none() && self.up.is_none() => {
                let addresses =
                    message.text().split_whitespace().map(str::parse).collect::<Result<Vec<SocketAddr>, _>>();
                let addresses = addresses.map_err(|_| lost("it sent a malformed address".into()))?;
                let call = ConnectionClaim {
                    purpose: ConnectionPurpose::Child,
                    from: self.config.rank,
                    to: self.tree.parent(self.config.rank).expect("only rank 0 has none"),
                    size: self.config.size,
                };
                self.dial = Some(DialAttempt::new(addresses, self.key.clone(), call, Instant::now()));
                Ok(true)
            }
            ControlKind::Welcome if self.told => {
                self.welcomed = true;
                Ok(true)
            }
            ControlKind::Failed => Err(JoinError::Disagreement(message.text())),
            ControlKind::Lost => Err(ControlError::Lost { rank: message.rank, reason: message.text() }.into()),
            other => Err(unexpected(other)),
        }
    }

    fn answer_children(&mut self, ready: &[PollFlags]) -> Result<(), JoinError> {
        let Some(gate) = &mut self.gate else { return Ok(()) };
        for met in gate.advance(Instant::now(), ready, &|_| false) {
            let mut places = self.tree.children(self.config.rank).zip(&mut self.children);
            let place = places.find(|(rank, _)| *rank == met.call.from && met.call.size == self.config.size);
            if let Some((_, slot)) = place {
                let link = ControlLink::new(met.stream);
                link.tune()?;
                *slot = Some(link);
            }
        }
        Ok(())
    }

    fn call_parent(&mut self, ready: PollFlags, give_up: Instant) -> Result<(), JoinError> {
        let Some(dial) = &mut self.dial else { return Ok(()) };
        let now = Instant::now();
        let failed = match dial.advance(now, ready) {
            Ok(Some(met)) => {
                let link = ControlLink::new(met.stream);
                link.tune()?;
                (self.up, self.dial) = (Some(link), None);
                return Ok(());
            }
            Ok(None) if now < give_up => return Ok(()),
            Ok(None) => dial.last_error().to_owned(),
            Err(error) => error.to_string(),
        };
        let (me, parent) = (self.config.rank, self.tree.parent(self.config.rank).expect("only rank 0 has none"));
        let waited_s = ATTACH_TIMEOUT.as_secs();
        let text = format!(
            "worker {me} could not reach worker {parent}, its parent on the control plane, within {waited_s} s; last \
             attempt: {failed}"
        );
        // Rank 0 tells the others.
        self.root.queue(ControlKind::Failed, me, text.as_bytes());
        (self.dial, self.told) = (None, true);
        Ok(())
    }
}

fn unexpected(kind: ControlKind) -> JoinError {
    let reason = format!("it sent {kind:?} where a welcome was expected");
    ControlError::Lost { rank: Rank(0), reason }.into()
}
