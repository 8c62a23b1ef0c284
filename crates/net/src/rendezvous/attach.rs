//! How a worker other than rank 0 joins: it finds rank 0, takes its place in the tree, and waits until all are in
//! theirs.
//!
//! A worker with children, or whose parent is rank 0, keeps its connection to rank 0 until then, so that it learns what
//! goes wrong. Any other leaf gives its connection up once its parent has confirmed that it knows the leaf. Then the
//! parent speaks for both: it reports the leaf's end to rank 0, and passes on rank 0's verdict. A leaf whose parent
//! ends joins again at rank 0, and waits there until the parent is back. A worker with children calls its parent again.

use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};

use super::{JoinConfig, JoinError, VERDICT_PATIENCE, resolve};
use crate::Rank;
use crate::control::exchange::{await_word, dismiss, flush_all, tell};
use crate::control::tree::ControlTree;
use crate::control::wire::{ControlKind, ControlLink, ControlMessage};
use crate::control::{ControlError, ReturnWay, TreeLinks};
use crate::handshake::PeerListener;
use crate::handshake::dial::DialAttempt;
use crate::handshake::gate::ConnectionAcceptor;
use crate::handshake::proof::{ConnectionClaim, ConnectionPurpose};
use crate::secret::JobKey;
use crate::threads::{poll_until, sleep};

/// How long a worker tries to reach its parent.
pub(super) const ATTACH_TIMEOUT: Duration = Duration::from_secs(30);

/// How long a name resolution is trusted: in a new cluster, names may appear late.
const RESOLVE_INTERVAL: Duration = Duration::from_secs(2);

/// How long a leaf waits before it calls rank 0 again that had no descriptor for it.
const LATER: Duration = Duration::from_secs(2);

/// How long a leaf whose parent has ended tries to reach rank 0 again. While rank 0 waits for workers it answers at
/// once; afterwards it may not answer at all.
const RECALL_PATIENCE: Duration = Duration::from_secs(10);

/// How many addresses of a parent its children try.
const ADDRESSES_MAX: usize = 16;

/// How many callers that are not known as children yet a parent keeps, for each of its children.
const GREETING_MAX: usize = 4;

/// This host's address on `link`.
pub(super) fn local_address(link: &ControlLink) -> Option<IpAddr> {
    link.stream().local_addr().ok().map(|address| address.ip().to_canonical())
}

/// The message that announces an error to others.
pub(super) fn bad_news(error: &JoinError) -> (ControlKind, Rank, String) {
    match error {
        JoinError::Control(ControlError::Lost { rank, reason }) => (ControlKind::Lost, *rank, reason.clone()),
        other => (ControlKind::Failed, Rank(0), other.to_string()),
    }
}

/// Finds rank 0, and returns when all workers are in their places.
pub(super) fn knock(config: &JoinConfig, key: &JobKey) -> Result<TreeLinks, JoinError> {
    let deadline = Instant::now() + config.timeout;
    let mut call_until = deadline;
    // The parent whose end makes this leaf call again.
    let mut ended_parent = None;
    loop {
        let mut root = find_root(config, key, call_until, ended_parent)?;
        let verdict_until = deadline.max(call_until) + VERDICT_PATIENCE;
        let welcome = match await_word(&mut root, Rank(0), verdict_until, config.timeout) {
            Ok(message) if message.kind == ControlKind::Welcome => message,
            Ok(message) => return Err(unexpected(Rank(0), message.kind)),
            Err(ControlError::Failed { reason }) => return Err(JoinError::Disagreement(reason)),
            Err(error) => return Err(error.into()),
        };
        let malformed = || ControlError::Lost { rank: Rank(0), reason: "it sent a malformed welcome".into() };
        let (tree, serial) = read_welcome(config.size, &welcome.payload).ok_or_else(malformed)?;
        let mut arrival = Arrival::new(config, key, tree, serial, root)?;
        match arrival.run(deadline) {
            Ok(Arrived::Welcomed) => return Ok(arrival.place()),
            // Rank 0 waits for the leaf, and for its parent if that has ended. It gives the leaf another serial number,
            // so that news of its first call are not mistaken for news of the next one.
            Ok(Arrived::Adrift) => {
                ended_parent = arrival.parent;
                call_until = Instant::now() + RECALL_PATIENCE;
            }
            Ok(Arrived::Dismissed) => {
                sleep(LATER)?;
                ended_parent = None;
                call_until = deadline.max(Instant::now() + VERDICT_PATIENCE);
            }
            Err(error) => {
                arrival.pass_on(&error);
                return Err(error);
            }
        }
    }
}

/// The tree, and this worker's serial number.
fn read_welcome(size: u32, payload: &[u8]) -> Option<(ControlTree, u32)> {
    let (fanout, serial) = payload.split_first_chunk::<4>()?;
    let tree = ControlTree::told(size, u32::from_le_bytes(*fanout))?;
    Some((tree, read_serial(serial)?))
}

fn read_serial(payload: &[u8]) -> Option<u32> {
    payload.try_into().ok().map(u32::from_le_bytes)
}

/// Connects to rank 0; for a leaf whose parent has ended, again.
fn find_root(
    config: &JoinConfig,
    key: &JobKey,
    deadline: Instant,
    ended_parent: Option<Rank>,
) -> Result<ControlLink, JoinError> {
    let start = Instant::now();
    let call = ConnectionClaim { purpose: ConnectionPurpose::Join, from: config.rank, to: Rank(0), size: config.size };
    let mut dial = DialAttempt::new(Vec::new(), key.clone(), call, start);
    let mut resolve_at = start;
    let mut resolve_error = None;
    let met = loop {
        let now = Instant::now();
        if dial.is_waiting() && now >= resolve_at {
            resolve_at = now + RESOLVE_INTERVAL;
            match resolve(&config.root) {
                Ok(addresses) => {
                    resolve_error = None;
                    dial.set_addresses(addresses);
                }
                Err(e) => resolve_error = Some(e.to_string()),
            }
        }
        let until = dial.next_deadline().map_or(deadline, |at| at.min(deadline));
        let mut fds: Vec<_> = dial.interest().into_iter().collect();
        poll_until(&mut fds, until)?;
        let ready = fds.first().map_or(PollFlags::empty(), PollFd::revents);
        let now = Instant::now();
        match dial.advance(now, ready) {
            Ok(Some(met)) => break met,
            Ok(None) => {}
            Err(error) => return Err(JoinError::Refused { root: config.root.clone(), reason: error.to_string() }),
        }
        // If the parent ended after all were in their places, rank 0 expects nobody any more.
        let is_over = ended_parent.is_some() && dial.is_not_expected();
        if now >= deadline || is_over {
            let last = resolve_error.unwrap_or_else(|| dial.last_error().to_string());
            if let Some(rank) = ended_parent {
                let reason =
                    format!("its process ended while workers joined, and worker 0 did not take this one back: {last}");
                return Err(ControlError::Lost { rank, reason }.into());
            }
            return Err(JoinError::NoRoot { root: config.root.clone(), waited_s: config.timeout.as_secs(), last });
        }
    };
    let link = ControlLink::new(met.stream);
    link.tune()?;
    Ok(link)
}

/// How a worker's arrival ends.
enum Arrived {
    /// All workers are in their places.
    Welcomed,
    /// This leaf's connection to its parent has ended.
    Adrift,
    /// Rank 0 has asked this leaf to call again later.
    Dismissed,
}

/// The connection to a parent that is not rank 0.
enum ParentLink {
    /// Rank 0 has not said where the parent listens.
    Unknown,
    Calling {
        dial: Box<DialAttempt>,
        give_up: Instant,
    },
    /// Connected; the parent has not confirmed it.
    Greeting {
        link: ControlLink,
        give_up: Instant,
    },
    Known(ControlLink),
    /// The connection has ended. If the job starts nevertheless, its first exchange will report that.
    Ended(ControlLink),
}

/// A child that has said who it is.
struct Child {
    link: ControlLink,
    serial: u32,
    /// The link has ended. If the job starts nevertheless, its first exchange will report that.
    ended: bool,
}

/// A worker on its way to its place in the tree.
struct Arrival<'a> {
    config: &'a JoinConfig,
    key: &'a JobKey,
    tree: ControlTree,
    serial: u32,
    /// The connection to rank 0, until a leaf gives it up.
    root: Option<ControlLink>,
    root_address: SocketAddr,
    addresses: Vec<IpAddr>,
    /// Accepts the calls of its children.
    gate: Option<ConnectionAcceptor>,
    /// Callers that have not said who they are.
    greeting: Vec<(Rank, ControlLink)>,
    children: Vec<Option<Child>>,
    /// The parent, if it is not rank 0.
    parent: Option<Rank>,
    parent_addresses: Vec<SocketAddr>,
    up: ParentLink,
    /// It has told rank 0 that it is in its place.
    told: bool,
    /// Rank 0 has asked it to call again later.
    dismissed: bool,
    /// All workers are in their places.
    welcomed: bool,
}

impl<'a> Arrival<'a> {
    fn new(
        config: &'a JoinConfig,
        key: &'a JobKey,
        tree: ControlTree,
        serial: u32,
        mut root: ControlLink,
    ) -> Result<Self, JoinError> {
        let me = config.rank;
        let addresses: Vec<IpAddr> = local_address(&root).into_iter().collect();
        let mut gate = None;
        if !tree.is_leaf(me) {
            let (acceptor, mut reached_at) = match listen(config, key, &addresses) {
                Ok(found) => found,
                Err(error) => {
                    let text = format!("worker {me} cannot listen for its children on the control plane: {error}");
                    // Rank 0 tells the others.
                    tell(std::slice::from_mut(&mut root), ControlKind::Failed, me, text.as_bytes());
                    return Err(JoinError::Disagreement(text));
                }
            };
            reached_at.truncate(ADDRESSES_MAX);
            let text: Vec<String> = reached_at.iter().map(SocketAddr::to_string).collect();
            root.queue(ControlKind::Listening, me, text.join(" ").as_bytes());
            gate = Some(acceptor);
        }
        let parent = tree.parent(me).filter(|&parent| parent != Rank(0));
        Ok(Arrival {
            config,
            key,
            tree,
            serial,
            root_address: root.stream().peer_addr()?,
            root: Some(root),
            addresses,
            children: tree.children(me).map(|_| None).collect(),
            told: parent.is_none() && gate.is_none(),
            gate,
            greeting: Vec::new(),
            parent,
            parent_addresses: Vec::new(),
            up: ParentLink::Unknown,
            dismissed: false,
            welcomed: false,
        })
    }

    fn run(&mut self, deadline: Instant) -> Result<Arrived, JoinError> {
        // Rank 0 may have begun to wait later than this worker.
        let placing = if self.tree.is_star() { Duration::ZERO } else { ATTACH_TIMEOUT + VERDICT_PATIENCE };
        let patience = deadline.max(Instant::now()) + placing + VERDICT_PATIENCE;
        let mut ready_leaves: Vec<Rank> = Vec::new();
        loop {
            // Handle all messages: nothing wakes us for one that was read together with the previous one.
            self.hear_root()?;
            self.hear_parent()?;
            let is_known = matches!(self.up, ParentLink::Known(_));
            // A parent that has come again may not have answered yet.
            if self.welcomed && (self.parent.is_none() || is_known || matches!(self.up, ParentLink::Ended(_))) {
                return Ok(Arrived::Welcomed);
            }
            // A parent is in its place only once this worker has called it, so the parent has ended since then.
            if self.welcomed
                && let Some(rank) = self.parent
                && !matches!(self.up, ParentLink::Greeting { .. })
            {
                return Err(ControlError::Lost { rank, reason: "its process ended".into() }.into());
            }
            let is_adrift = self.root.is_none() && !is_known || matches!(self.up, ParentLink::Ended(_));
            if self.is_remote_leaf() && is_adrift {
                return Ok(if self.dismissed { Arrived::Dismissed } else { Arrived::Adrift });
            }
            self.hear_children(&ready_leaves);
            self.tell_root();
            let ready = self.wait(patience)?;
            // Even if all are here: a caller that considers its call failed calls again.
            self.answer_callers(&ready.gate)?;
            self.call_parent(ready.dial)?;
            ready_leaves = ready.leaves;
            if Instant::now() >= patience {
                let silent = if self.root.is_some() { Rank(0) } else { self.parent.unwrap_or(Rank(0)) };
                let waited_s = (self.config.timeout + placing).as_secs();
                return Err(ControlError::TimedOut { missing: vec![silent], waited_s }.into());
            }
        }
    }

    /// Waits until something happens.
    fn wait(&mut self, patience: Instant) -> std::io::Result<ReadyLinks> {
        self.for_each_link(&mut |link| {
            // A broken link is found by the reading side, after what the other side has sent before.
            let _ = link.flush();
        });
        // Rank 0 says nothing after its welcome, and may end the connection.
        let mut links: Vec<&ControlLink> = self.root.iter().filter(|_| !self.welcomed).collect();
        links.extend(self.greeting.iter().map(|(_, link)| link));
        let before_leaves = links.len();
        let leaves: Vec<Rank> = self.leaves().filter(|(_, child)| !child.ended).map(|(rank, _)| rank).collect();
        links.extend(self.leaves().filter(|(_, child)| !child.ended).map(|(_, child)| &child.link));
        let mut until = patience;
        let mut dialing = None;
        match &self.up {
            ParentLink::Calling { dial, give_up } => {
                dialing = dial.interest();
                until = dial.next_deadline().into_iter().fold(until.min(*give_up), Instant::min);
            }
            ParentLink::Greeting { link, give_up } => {
                until = until.min(*give_up);
                links.push(link);
            }
            ParentLink::Known(link) => links.push(link),
            ParentLink::Unknown | ParentLink::Ended(_) => {}
        }
        let mut fds: Vec<PollFd<'_>> = links.into_iter().map(|link| PollFd::new(link, link.interest())).collect();
        let before_dial = fds.len();
        fds.extend(dialing);
        let before_gate = fds.len();
        if let Some(gate) = &self.gate {
            gate.interest(&mut fds);
            until = gate.next_deadline().into_iter().fold(until, Instant::min);
        }
        poll_until(&mut fds, until)?;
        let ready: Vec<PollFlags> = fds.iter().map(PollFd::revents).collect();
        let dial = ready[before_dial..before_gate].first().copied().unwrap_or(PollFlags::empty());
        let leaves = leaves.into_iter().zip(&ready[before_leaves..before_dial]);
        let leaves = leaves.filter(|(_, flags)| !flags.is_empty()).map(|(rank, _)| rank).collect();
        Ok(ReadyLinks { leaves, dial, gate: ready[before_gate..].to_vec() })
    }

    fn for_each_link(&mut self, act: &mut dyn FnMut(&mut ControlLink)) {
        self.root.iter_mut().for_each(&mut *act);
        self.children.iter_mut().flatten().for_each(|child| act(&mut child.link));
        if let ParentLink::Greeting { link, .. } | ParentLink::Known(link) = &mut self.up {
            act(link);
        }
    }

    /// The leaves among its children that have called.
    fn leaves(&self) -> impl Iterator<Item = (Rank, &Child)> {
        let places = self.tree.children(self.config.rank).zip(&self.children);
        places.filter(|(rank, _)| self.tree.is_leaf(*rank)).filter_map(|(rank, child)| Some((rank, child.as_ref()?)))
    }

    /// Whether this leaf gives up its connection to rank 0.
    fn is_remote_leaf(&self) -> bool {
        self.parent.is_some() && self.gate.is_none()
    }

    /// Handles what rank 0 has sent.
    fn hear_root(&mut self) -> Result<(), JoinError> {
        while !self.welcomed
            && let Some(root) = &mut self.root
        {
            let message = match root.receive() {
                Ok(Some(message)) => message,
                Ok(None) => return Ok(()),
                // Rank 0 knows that this leaf is connected to its parent.
                Err(_) if self.told && self.is_remote_leaf() => {
                    self.root = None;
                    return Ok(());
                }
                Err(reason) => return Err(ControlError::Lost { rank: Rank(0), reason }.into()),
            };
            match message.kind {
                ControlKind::Parent if self.parent == Some(message.rank) => self.call(&message)?,
                ControlKind::Check => self.check(message.rank, &message.payload),
                ControlKind::Later if self.is_remote_leaf() => {
                    (self.root, self.dismissed) = (None, true);
                }
                ControlKind::Welcome if self.told && !self.is_remote_leaf() => self.welcomed = true,
                _ => return Err(verdict(Rank(0), message)),
            }
        }
        Ok(())
    }

    /// Handles what the parent has sent.
    fn hear_parent(&mut self) -> Result<(), JoinError> {
        let Some(parent) = self.parent else { return Ok(()) };
        // What follows a welcome belongs to the first exchange.
        while !(self.welcomed && matches!(self.up, ParentLink::Known(_))) {
            self.up = match std::mem::replace(&mut self.up, ParentLink::Unknown) {
                ParentLink::Greeting { mut link, give_up } => match link.receive() {
                    Ok(None) => {
                        self.up = ParentLink::Greeting { link, give_up };
                        return Ok(());
                    }
                    Ok(Some(message)) if message.kind == ControlKind::Attached => ParentLink::Known(link),
                    Ok(Some(message)) => return Err(verdict(parent, message)),
                    Err(_) => self.lost_parent(link),
                },
                ParentLink::Known(mut link) => match link.receive() {
                    Ok(None) => {
                        self.up = ParentLink::Known(link);
                        return Ok(());
                    }
                    Ok(Some(message)) if message.kind == ControlKind::Welcome && self.told && self.is_remote_leaf() => {
                        self.welcomed = true;
                        ParentLink::Known(link)
                    }
                    Ok(Some(message)) => return Err(verdict(parent, message)),
                    Err(_) => self.lost_parent(link),
                },
                other => {
                    self.up = other;
                    return Ok(());
                }
            };
        }
        Ok(())
    }

    /// The connection to the parent has ended. A worker with children calls again; if the parent has ended rank 0 will
    /// say so.
    fn lost_parent(&self, link: ControlLink) -> ParentLink {
        if self.welcomed || self.is_remote_leaf() { ParentLink::Ended(link) } else { self.calling() }
    }

    fn calling(&self) -> ParentLink {
        let call = ConnectionClaim {
            purpose: ConnectionPurpose::Child,
            from: self.config.rank,
            to: self.parent.expect("only a worker with another parent than rank 0 calls"),
            size: self.config.size,
        };
        let now = Instant::now();
        let dial = Box::new(DialAttempt::new(self.parent_addresses.clone(), self.key.clone(), call, now));
        ParentLink::Calling { dial, give_up: now + ATTACH_TIMEOUT }
    }

    /// Rank 0 says where the parent listens, or that the parent has ended.
    fn call(&mut self, message: &ControlMessage) -> Result<(), JoinError> {
        let addresses = message.text().split_whitespace().map(str::parse).collect::<Result<Vec<SocketAddr>, _>>();
        let malformed = |_| ControlError::Lost { rank: Rank(0), reason: "it sent a malformed address".into() };
        let addresses = addresses.map_err(malformed)?;
        self.parent_addresses = addresses;
        self.up = if self.parent_addresses.is_empty() { ParentLink::Unknown } else { self.calling() };
        Ok(())
    }

    /// Rank 0 asks whether this worker is still connected to a leaf.
    fn check(&mut self, leaf: Rank, serial: &[u8]) {
        let mut children = self.tree.children(self.config.rank).zip(&mut self.children);
        let child = children.find(|(rank, _)| *rank == leaf).and_then(|(_, child)| child.as_mut());
        let is_here = child.is_some_and(|child| {
            child.ended |= child.link.receive().is_err();
            !child.ended
        });
        let kind = if is_here { ControlKind::Attached } else { ControlKind::Ended };
        if let Some(root) = &mut self.root {
            root.queue(kind, leaf, serial);
        }
    }

    /// Notices who calls, and which of the leaves that are ready to be read have ended.
    fn hear_children(&mut self, ready_leaves: &[Rank]) {
        for (rank, mut link) in std::mem::take(&mut self.greeting) {
            match link.receive() {
                Ok(None) => self.greeting.push((rank, link)),
                Ok(Some(message)) if message.kind == ControlKind::Attached => {
                    let Some(serial) = read_serial(&message.payload) else { continue };
                    let mut places = self.tree.children(self.config.rank).zip(&mut self.children);
                    // A message that comes late may be of a worker that was here before.
                    let place = places.find(|(child, _)| *child == rank).map(|(_, place)| place);
                    if let Some(place) = place.filter(|place| place.as_ref().is_none_or(|old| old.serial <= serial)) {
                        link.queue(ControlKind::Attached, self.config.rank, &[]);
                        *place = Some(Child { link, serial, ended: false });
                    }
                }
                // The caller gave up this call and calls again, or it is not welcome here.
                Ok(Some(_)) | Err(_) => {}
            }
        }
        for (rank, child) in self.tree.children(self.config.rank).zip(&mut self.children) {
            let Some(child) = child.as_mut().filter(|child| ready_leaves.contains(&rank) && !child.ended) else {
                continue;
            };
            // A leaf says nothing before all are in their places.
            if !matches!(child.link.receive(), Ok(None)) {
                child.ended = true;
                if let Some(root) = &mut self.root {
                    root.queue(ControlKind::Ended, rank, &child.serial.to_le_bytes());
                }
            }
        }
    }

    /// Tells rank 0 once this worker is in its place.
    fn tell_root(&mut self) {
        let is_up = self.parent.is_none() || matches!(self.up, ParentLink::Known(_));
        let are_children_here = self.children.iter().all(|child| child.as_ref().is_some_and(|child| !child.ended));
        if let Some(root) = &mut self.root
            && !self.told
            && is_up
            && are_children_here
        {
            root.queue(ControlKind::Attached, self.config.rank, &[]);
            self.told = true;
        }
    }

    fn answer_callers(&mut self, ready: &[PollFlags]) -> Result<(), JoinError> {
        let Some(gate) = &mut self.gate else { return Ok(()) };
        for met in gate.advance(Instant::now(), ready, &|_| false) {
            let is_child = self.tree.children(self.config.rank).any(|child| child == met.call.from);
            if !is_child || met.call.size != self.config.size {
                continue;
            }
            let link = ControlLink::new(met.stream);
            link.tune()?;
            if self.greeting.len() >= GREETING_MAX * self.children.len() {
                self.greeting.remove(0);
            }
            self.greeting.push((met.call.from, link));
        }
        Ok(())
    }

    fn call_parent(&mut self, ready: PollFlags) -> Result<(), JoinError> {
        let now = Instant::now();
        let failed = match &mut self.up {
            ParentLink::Calling { dial, give_up } => match dial.advance(now, ready) {
                Ok(Some(met)) => {
                    let mut link = ControlLink::new(met.stream);
                    link.tune()?;
                    link.queue(ControlKind::Attached, self.config.rank, &self.serial.to_le_bytes());
                    self.up = ParentLink::Greeting { link, give_up: *give_up };
                    return Ok(());
                }
                Ok(None) if now < *give_up => return Ok(()),
                Ok(None) => dial.last_error().to_owned(),
                Err(error) => error.to_string(),
            },
            ParentLink::Greeting { give_up, .. } if now >= *give_up => "it accepted the call, but fell silent".into(),
            _ => return Ok(()),
        };
        let (me, parent) = (self.config.rank, self.parent.expect("only such a worker calls"));
        let waited_s = ATTACH_TIMEOUT.as_secs();
        let text = format!(
            "worker {me} could not reach worker {parent}, its parent on the control plane, within {waited_s} s; last \
             attempt: {failed}"
        );
        // Rank 0 tells the others, and this worker too.
        if let Some(root) = &mut self.root {
            root.queue(ControlKind::Failed, me, text.as_bytes());
        }
        self.up = ParentLink::Unknown;
        Ok(())
    }

    /// Tells those that have called this worker why the job does not start: leaves may not be connected to rank 0 any
    /// more, and others may be in their places already, where they would take this worker for lost. If it ends for a
    /// reason of its own, leaves join again, and rank 0 waits for its successor.
    fn pass_on(&mut self, error: &JoinError) {
        if !matches!(error, JoinError::Disagreement(_) | JoinError::Control(ControlError::Lost { .. })) {
            return;
        }
        let (kind, rank, reason) = bad_news(error);
        let children = self.children.iter_mut().flatten().map(|child| &mut child.link);
        let untold = children.chain(self.greeting.iter_mut().map(|(_, link)| link));
        dismiss(untold, kind, rank, reason.as_bytes());
    }

    /// This worker's place, once all are in theirs. Tells the leaves that are not connected to rank 0 any more.
    fn place(self) -> TreeLinks {
        let children = self.tree.children(self.config.rank).zip(self.children);
        let welcome = |(rank, child): (Rank, Option<Child>)| {
            let mut link = child.expect("a worker is in its place when its children have called").link;
            if self.tree.is_leaf(rank) {
                link.queue(ControlKind::Welcome, self.config.rank, &[]);
            }
            link
        };
        let mut children: Vec<ControlLink> = children.map(welcome).collect();
        flush_all(&mut children, Instant::now() + VERDICT_PATIENCE);
        let up = match self.up {
            ParentLink::Greeting { link, .. } | ParentLink::Known(link) | ParentLink::Ended(link) => Some(link),
            ParentLink::Unknown | ParentLink::Calling { .. } => self.root,
        };
        let mut addresses = self.addresses;
        addresses.extend(children.iter().chain(&up).filter_map(local_address));
        addresses.sort();
        addresses.dedup();
        let return_way = if self.tree.is_star() {
            ReturnWay::None
        } else {
            ReturnWay::Root { address: self.root_address, key: self.key.clone() }
        };
        TreeLinks { tree: self.tree, up, children, others: Vec::new(), return_way, addresses, links_at_join: 0 }
    }
}

/// Where a worker's children call, and what accepts their calls.
fn listen(
    config: &JoinConfig,
    key: &JobKey,
    addresses: &[IpAddr],
) -> std::io::Result<(ConnectionAcceptor, Vec<SocketAddr>)> {
    let (listener, reached_at) = PeerListener::bind(addresses)?;
    let purpose = ConnectionPurpose::Child;
    let acceptor = ConnectionAcceptor::new(listener.socket, key.clone(), purpose, config.rank, config.size)?;
    Ok((acceptor, reached_at))
}

/// The error that a message from `from` announces, or is.
fn verdict(from: Rank, message: ControlMessage) -> JoinError {
    match message.kind {
        ControlKind::Failed => JoinError::Disagreement(message.text()),
        ControlKind::Lost => ControlError::Lost { rank: message.rank, reason: message.text() }.into(),
        other => unexpected(from, other),
    }
}

fn unexpected(from: Rank, kind: ControlKind) -> JoinError {
    let reason = format!("it sent {kind:?} where a welcome was expected");
    ControlError::Lost { rank: from, reason }.into()
}

/// What can go on after a wait.
struct ReadyLinks {
    leaves: Vec<Rank>,
    dial: PollFlags,
    gate: Vec<PollFlags>,
}
