//! Simulates joining in one thread: rank 0's [`JoinLedger`], and workers that act as [`super::attach`] does, over
//! connections that deliver in order but as late as they like; then the first exchange, as in
//! [`crate::control::exchange`]. Workers end at any step, rank 0 too, and may come again until all are in their
//! places. A seed repeats a run: `SIMULATION_SEED=7 cargo test -p tidemill-net joining_simulation` runs one seed,
//! `SIMULATION_SEEDS=5000` runs 5000.
//!
//! Time passes only when nothing else can happen: timeouts are longer than any delay.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::ledger::{JoinAction, JoinAnswer, JoinLedger};
use crate::Rank;
use crate::control::simulation::{Random, SeedNote, seeds};
use crate::control::tree::ControlTree;
use crate::control::wire::{ControlKind, ControlMessage};

/// A run that takes so many steps has come to a standstill.
const STEPS_MAX: u32 = 1_000_000;

/// After so many steps for each worker in which nothing happens, nothing can.
const IDLE_STEPS: u32 = 400;

/// What the reader of one end of a connection finds.
enum Read {
    Nothing,
    Message(ControlMessage),
    End,
}

/// A connection: its end 0 has called end 1.
#[derive(Default)]
struct Connection {
    queues: [VecDeque<ControlMessage>; 2],
    closed: [bool; 2],
}

/// Why a worker does not start.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Failure {
    Lost(Rank),
    Missing(Vec<Rank>),
    /// Rank 0 did not answer.
    NoRoot,
}

impl Failure {
    fn named(&self) -> Vec<Rank> {
        match self {
            Failure::Lost(rank) => vec![*rank],
            Failure::Missing(ranks) => ranks.clone(),
            Failure::NoRoot => vec![Rank(0)],
        }
    }

    /// The message that announces it.
    fn message(&self) -> (ControlKind, Rank, Vec<u8>) {
        match self {
            Failure::Lost(rank) => (ControlKind::Lost, *rank, Vec::new()),
            Failure::Missing(ranks) => {
                (ControlKind::Failed, Rank(0), ranks.iter().flat_map(|rank| rank.0.to_le_bytes()).collect())
            }
            Failure::NoRoot => panic!("a worker that has not found rank 0 has nobody to tell"),
        }
    }

    fn announced(message: &ControlMessage) -> Option<Failure> {
        let (ranks, _) = message.payload.as_chunks::<4>();
        match message.kind {
            ControlKind::Lost => Some(Failure::Lost(message.rank)),
            ControlKind::Failed => {
                Some(Failure::Missing(ranks.iter().map(|rank| Rank(u32::from_le_bytes(*rank))).collect()))
            }
            _ => None,
        }
    }
}

/// How a worker's start ends.
#[derive(Clone, PartialEq, Eq, Debug)]
enum StartOutcome {
    Started,
    Failed(Failure),
    Killed,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Up {
    Unknown,
    Greeting(usize),
    Known(usize),
    Ended(usize),
}

struct ModelChild {
    connection: usize,
    serial: u32,
    ended: bool,
}

/// A worker in the first exchange. Its ends of connections are 0 towards the parent, 1 towards children.
struct ModelExchange {
    up: Option<usize>,
    /// By rank: the connection, and whether all parts of the subtree are here.
    children: Vec<(Rank, usize, bool)>,
    stage: ExchangeStage,
}

enum ExchangeStage {
    Collecting,
    /// It has reported a failure to its parent, and waits for rank 0's verdict.
    Reporting(Failure),
    /// It waits for the parts of all.
    Waiting,
}

/// A worker other than rank 0.
struct Model {
    /// Where it listens, in place of an address.
    address: u32,
    serial: Option<u32>,
    parent_address: Option<u32>,
    root: Option<usize>,
    /// Rank 0 has answered its call.
    met: bool,
    /// A leaf whose parent has ended.
    calls_again: bool,
    up: Up,
    /// Calls of children, in their order for each child.
    greeting: Vec<(Rank, usize)>,
    children: BTreeMap<Rank, ModelChild>,
    told: bool,
    /// Rank 0 has asked it to call again later.
    dismissed: bool,
    welcomed: bool,
    exchange: Option<ModelExchange>,
}

/// What rank 0 does.
enum RootStage {
    Joining,
    /// It tells all why the job does not start.
    Refusing(Failure, Vec<usize>),
    Exchanging(ModelExchange),
    Ended,
}

/// Who ends, and after how many events.
struct Trouble {
    kills: Vec<(u64, Rank)>,
    /// Whether launchers start them again.
    come_again: bool,
}

struct Simulation {
    random: Random,
    tree: ControlTree,
    ledger: JoinLedger,
    connections: Vec<Connection>,
    /// Workers that call rank 0, those admitted, and those in doubt.
    calling: Vec<(Rank, usize)>,
    links: BTreeMap<Rank, usize>,
    doubted: BTreeMap<Rank, usize>,
    /// Who has ended and has not come again, in order.
    ended: Vec<Rank>,
    were_all_here: bool,
    root: RootStage,
    /// By rank; rank 0 is never here.
    workers: Vec<Option<Model>>,
    outcomes: Vec<Option<StartOutcome>>,
    next_address: u32,
    /// How often rank 0 has no descriptor left for a leaf that waits.
    refusals_left: u32,
    trouble: Trouble,
    killed: BTreeSet<Rank>,
    /// What has happened: messages sent and received, connections opened and closed.
    events: u64,
    /// When all were in their places.
    complete_at: Option<u64>,
}

impl Simulation {
    fn new(seed: u64, size_max: u64, trouble: Trouble) -> Simulation {
        let mut random = Random(seed);
        let tree = ControlTree::new(3 + random.below(size_max - 2) as u32, Some(1 + random.below(4) as u32));
        Simulation {
            random,
            tree,
            ledger: JoinLedger::new(tree),
            connections: Vec::new(),
            calling: Vec::new(),
            links: BTreeMap::new(),
            doubted: BTreeMap::new(),
            ended: Vec::new(),
            were_all_here: false,
            root: RootStage::Joining,
            workers: (0..tree.size()).map(|_| None).collect(),
            outcomes: vec![None; tree.size() as usize],
            next_address: 0,
            refusals_left: 50,
            trouble,
            killed: BTreeSet::new(),
            events: 0,
            complete_at: None,
        }
    }

    fn connect(&mut self) -> usize {
        self.events += 1;
        self.connections.push(Connection::default());
        self.connections.len() - 1
    }

    fn send(&mut self, connection: usize, end: usize, kind: ControlKind, rank: Rank, payload: Vec<u8>) {
        if !self.connections[connection].closed[end] {
            self.events += 1;
            self.connections[connection].queues[end].push_back(ControlMessage::new(kind, rank, payload));
        }
    }

    fn read(&mut self, connection: usize, end: usize) -> Read {
        let connection = &mut self.connections[connection];
        match connection.queues[1 - end].pop_front() {
            Some(message) => {
                self.events += 1;
                Read::Message(message)
            }
            None if connection.closed[1 - end] => Read::End,
            None => Read::Nothing,
        }
    }

    /// Closes a connection as a process that ends does: if there are messages that it has not read, what it has sent
    /// may be lost.
    fn close(&mut self, connection: usize, end: usize) {
        let Connection { queues, closed } = &mut self.connections[connection];
        if !closed[end] && !queues[1 - end].is_empty() {
            let arrive_max = self.random.below(queues[end].len() as u64 + 1) as usize;
            queues[end].truncate(arrive_max);
        }
        self.close_gently(connection, end);
    }

    /// Closes a connection when the other side has read all that was sent.
    fn close_gently(&mut self, connection: usize, end: usize) {
        self.events += u64::from(!self.connections[connection].closed[end]);
        self.connections[connection].closed[end] = true;
    }

    /// Tells workers bad news, and closes the connections to them.
    fn dismiss(&mut self, connections: impl IntoIterator<Item = usize>, failure: &Failure) {
        let (kind, rank, payload) = failure.message();
        for connection in connections {
            self.send(connection, 1, kind, rank, payload.clone());
            self.close_gently(connection, 1);
        }
    }

    /// Whether this worker gives up its connection to rank 0.
    fn is_remote_leaf(&self, rank: Rank) -> bool {
        self.tree.is_leaf(rank) && self.tree.parent(rank) != Some(Rank(0))
    }

    // --- rank 0, as in `super::host` ---

    fn act(&mut self, actions: Vec<JoinAction>) {
        for action in actions {
            match action {
                JoinAction::Send { to, message } => {
                    let link = self.links[&to];
                    self.send(link, 1, message.kind, message.rank, message.payload);
                }
                JoinAction::Close { rank } => {
                    let link = self.links.remove(&rank).expect("only open ones are closed");
                    self.close(link, 1);
                }
                JoinAction::Admit { rank } => {
                    let link = self.doubted.remove(&rank).expect("only those in doubt");
                    self.link_up(rank, link);
                }
                JoinAction::Ended { rank } => self.ended.push(rank),
            }
        }
    }

    /// Rank 0 reads a message of a worker. Returns whether there was one.
    fn hear(&mut self, rank: Rank) -> bool {
        let Some(&link) = self.links.get(&rank) else { return false };
        let mut actions = Vec::new();
        match self.read(link, 1) {
            Read::Nothing => return false,
            Read::Message(message) => {
                self.ledger.heard(rank, message, &mut actions).expect("honest workers start");
            }
            Read::End => {
                self.links.remove(&rank);
                self.close(link, 1);
                self.ended.push(rank);
                self.ledger.closed(rank, &mut actions);
            }
        }
        self.act(actions);
        true
    }

    fn admit(&mut self) {
        if self.calling.is_empty() {
            return;
        }
        let (rank, link) = self.calling.remove(self.random.below(self.calling.len() as u64) as usize);
        while self.hear(rank) {}
        if let Some(&doubted) = self.doubted.get(&rank)
            && self.connections[doubted].closed[0]
        {
            self.doubted.remove(&rank);
            self.ledger.hung_up(rank);
        }
        let mut actions = Vec::new();
        match self.ledger.called(rank, self.tree.size(), "somewhere".into(), &mut actions) {
            Ok(JoinAnswer::Admitted) => self.link_up(rank, link),
            Ok(JoinAnswer::Doubted) => assert!(self.doubted.insert(rank, link).is_none()),
            Err(text) => panic!("there is one worker of each rank: {text}"),
        }
        self.met(rank, link);
        self.act(actions);
    }

    fn link_up(&mut self, rank: Rank, link: usize) {
        assert!(self.links.insert(rank, link).is_none());
        self.ended.retain(|ended| *ended != rank);
    }

    fn met(&mut self, rank: Rank, link: usize) {
        self.events += 1;
        let caller = self.workers[rank.index()].as_mut().expect("the calls of those that ended are removed");
        assert_eq!(caller.root, Some(link));
        caller.met = true;
    }

    fn root_step(&mut self) {
        match std::mem::replace(&mut self.root, RootStage::Ended) {
            RootStage::Joining => {
                self.root = RootStage::Joining;
                self.join_step();
            }
            RootStage::Refusing(failure, mut told) => {
                if let Some((rank, link)) = self.calling.pop() {
                    self.met(rank, link);
                    self.refuse(link, &failure);
                    told.push(link);
                }
                for &link in &told {
                    while matches!(self.read(link, 1), Read::Message(_)) {}
                }
                self.root = RootStage::Refusing(failure, told);
            }
            RootStage::Exchanging(mut exchange) => {
                self.outcomes[0] = self.exchange_step(Rank(0), &mut exchange);
                let others: Vec<usize> = self.other_links();
                match &self.outcomes[0] {
                    None => {}
                    Some(StartOutcome::Failed(failure)) => self.dismiss(others, &failure.clone()),
                    Some(_) => others.into_iter().for_each(|link| self.close(link, 1)),
                }
                if self.outcomes[0].is_none() {
                    self.root = RootStage::Exchanging(exchange);
                }
            }
            RootStage::Ended => {}
        }
    }

    /// Connections of rank 0 to workers that are not its children.
    fn other_links(&self) -> Vec<usize> {
        let is_other = |rank: &Rank| self.tree.parent(*rank) != Some(Rank(0));
        self.links.iter().filter(|(rank, _)| is_other(rank)).map(|(_, link)| *link).collect()
    }

    fn refuse(&mut self, link: usize, failure: &Failure) {
        let (kind, rank, payload) = failure.message();
        self.send(link, 1, kind, rank, payload);
    }

    fn join_step(&mut self) {
        let rank = Rank(1 + self.random.below(u64::from(self.tree.size()) - 1) as u32);
        if self.random.below(3) == 0 {
            self.admit();
        } else if self.refusals_left > 0 && self.random.below(100) == 0 {
            self.refusals_left -= 1;
            let mut actions = Vec::new();
            self.ledger.send_away(&mut actions);
            self.act(actions);
        } else {
            self.hear(rank);
        }
        self.were_all_here |= self.ledger.is_full();
        if self.ledger.is_complete() {
            self.complete_at = Some(self.events);
            for link in self.links.clone().into_values() {
                self.send(link, 1, ControlKind::Welcome, Rank(0), Vec::new());
            }
            let children = self.tree.children(Rank(0)).map(|child| (child, self.links[&child], false)).collect();
            self.root = RootStage::Exchanging(ModelExchange { up: None, children, stage: ExchangeStage::Collecting });
        }
    }

    // --- the others, as in `super::attach` ---

    fn start(&mut self, rank: Rank, calls_again: bool) {
        let root = self.connect();
        if !matches!(self.root, RootStage::Ended) {
            self.calling.push((rank, root));
        }
        self.next_address += 1;
        self.workers[rank.index()] = Some(Model {
            address: self.next_address,
            serial: None,
            parent_address: None,
            root: Some(root),
            met: false,
            calls_again,
            up: Up::Unknown,
            greeting: Vec::new(),
            children: BTreeMap::new(),
            told: self.tree.is_leaf(rank) && self.tree.parent(rank) == Some(Rank(0)),
            dismissed: false,
            welcomed: false,
            exchange: None,
        });
    }

    /// Ends the process of a worker, or its call.
    fn end(&mut self, rank: Rank) {
        let Some(model) = self.workers[rank.index()].take() else { return };
        model.root.into_iter().for_each(|root| self.close(root, 0));
        if let Up::Greeting(up) | Up::Known(up) | Up::Ended(up) = model.up {
            self.close(up, 0);
        }
        let children = model.children.into_values().map(|child| child.connection);
        children.chain(model.greeting.into_iter().map(|(_, c)| c)).for_each(|connection| self.close(connection, 1));
        // Rank 0 gives up a handshake with somebody who has hung up.
        self.calling.retain(|(called, _)| *called != rank);
    }

    fn kill(&mut self, rank: Rank) {
        // One that has failed has ended already.
        if matches!(self.outcomes[rank.index()], Some(StartOutcome::Failed(_) | StartOutcome::Killed)) {
            return;
        }
        self.killed.insert(rank);
        if rank != Rank(0) {
            self.end(rank);
            let comes_again = self.trouble.come_again && matches!(self.root, RootStage::Joining);
            self.outcomes[rank.index()] = (!comes_again).then_some(StartOutcome::Killed);
            return;
        }
        let told = match std::mem::replace(&mut self.root, RootStage::Ended) {
            RootStage::Refusing(_, told) => told,
            _ => Vec::new(),
        };
        let links: Vec<usize> = self.links.values().chain(self.doubted.values()).copied().chain(told).collect();
        links.into_iter().for_each(|link| self.close(link, 1));
        self.calling.clear();
        self.outcomes[0] = Some(StartOutcome::Killed);
    }

    /// A worker ends because the job does not start, and tells its children why.
    fn fail(&mut self, rank: Rank, failure: Failure) {
        if let Some(model) = &mut self.workers[rank.index()]
            && failure != Failure::NoRoot
        {
            let children = std::mem::take(&mut model.children).into_values().map(|child| child.connection);
            let greeting = std::mem::take(&mut model.greeting).into_iter().map(|(_, connection)| connection);
            let untold: Vec<usize> = children.chain(greeting).collect();
            self.dismiss(untold, &failure);
        }
        self.end(rank);
        self.outcomes[rank.index()] = Some(StartOutcome::Failed(failure));
    }

    fn worker_step(&mut self, rank: Rank) {
        if self.outcomes[rank.index()].is_some() {
            return;
        }
        let Some(mut model) = self.workers[rank.index()].take() else {
            // A launcher that starts a worker again has not noticed that the job is over.
            if !matches!(self.root, RootStage::Joining) && self.killed.contains(&rank) {
                self.outcomes[rank.index()] = Some(StartOutcome::Killed);
                return;
            }
            return self.start(rank, false);
        };
        if let Some(mut exchange) = model.exchange.take() {
            let outcome = self.exchange_step(rank, &mut exchange);
            model.exchange = Some(exchange);
            self.workers[rank.index()] = Some(model);
            match outcome {
                Some(StartOutcome::Failed(failure)) => self.fail(rank, failure),
                outcome => self.outcomes[rank.index()] = outcome,
            }
            return;
        }
        let failure = match self.random.below(4) {
            0 => self.hear_root(rank, &mut model),
            1 => self.hear_up(rank, &mut model),
            2 => {
                self.hear_greeting(&mut model);
                None
            }
            _ => {
                self.hear_leaf(&mut model);
                None
            }
        };
        let is_known = matches!(model.up, Up::Known(_));
        let is_up = is_known || self.tree.parent(rank) == Some(Rank(0));
        let are_here = self.tree.children(rank).all(|child| model.children.get(&child).is_some_and(|c| !c.ended));
        if let Some(root) = model.root
            && model.serial.is_some()
            && !model.told
            && is_up
            && are_here
        {
            model.told = true;
            self.send(root, 0, ControlKind::Attached, rank, Vec::new());
        }
        let has_parent = self.tree.parent(rank) != Some(Rank(0));
        let is_up_over = matches!(model.up, Up::Ended(_));
        let is_adrift = self.is_remote_leaf(rank) && (model.root.is_none() && !is_known || is_up_over);
        let is_placed = model.welcomed && (!has_parent || is_known || is_up_over);
        let is_orphan = model.welcomed && !is_placed && !matches!(model.up, Up::Greeting(_));
        if failure.is_none() && is_placed {
            self.place(rank, &mut model);
        }
        let calls_again = !model.dismissed;
        self.workers[rank.index()] = Some(model);
        if let Some(failure) = failure {
            self.fail(rank, failure);
        } else if is_orphan {
            self.fail(rank, Failure::Lost(self.tree.parent(rank).unwrap()));
        } else if is_adrift && !is_placed {
            self.end(rank);
            self.start(rank, calls_again);
        }
    }

    fn hear_root(&mut self, rank: Rank, model: &mut Model) -> Option<Failure> {
        let root = model.root.filter(|_| model.met && !model.welcomed)?;
        let message = match self.read(root, 0) {
            Read::Nothing => return None,
            Read::Message(message) => message,
            Read::End => {
                if !model.told || !self.is_remote_leaf(rank) {
                    return Some(Failure::Lost(Rank(0)));
                }
                self.close(root, 0);
                model.root = None;
                return None;
            }
        };
        match message.kind {
            ControlKind::Welcome if model.serial.is_none() => {
                model.serial = Some(u32::from_le_bytes(message.payload[4..].try_into().unwrap()));
                if !self.tree.is_leaf(rank) {
                    let address = model.address.to_le_bytes().to_vec();
                    self.send(root, 0, ControlKind::Listening, rank, address);
                }
            }
            ControlKind::Welcome => {
                assert!(model.told && !self.is_remote_leaf(rank), "rank {rank} is welcome too early");
                model.welcomed = true;
            }
            ControlKind::Parent => {
                if let Up::Greeting(up) | Up::Known(up) | Up::Ended(up) = model.up {
                    self.close(up, 0);
                }
                model.parent_address = message.payload.try_into().ok().map(u32::from_le_bytes);
                self.call_parent(rank, model);
            }
            ControlKind::Check => {
                let is_here = model.children.get_mut(&message.rank).is_some_and(|child| {
                    child.ended |= matches!(self.read(child.connection, 1), Read::End);
                    !child.ended
                });
                let kind = if is_here { ControlKind::Attached } else { ControlKind::Ended };
                self.send(root, 0, kind, message.rank, message.payload);
            }
            ControlKind::Later => {
                assert!(self.is_remote_leaf(rank));
                self.close(root, 0);
                (model.root, model.dismissed) = (None, true);
            }
            other => return Some(Failure::announced(&message).unwrap_or_else(|| panic!("rank 0 sends {other:?}"))),
        }
        None
    }

    fn call_parent(&mut self, rank: Rank, model: &mut Model) {
        let parent = self.tree.parent(rank).unwrap().index();
        let address = model.parent_address;
        model.up = Up::Unknown;
        // A parent that has ended meanwhile does not answer; rank 0 will say so. Nor does one that listens no more.
        let listens = |parent: &&mut Model| Some(parent.address) == address && parent.exchange.is_none();
        if address.is_some() && self.workers[parent].as_mut().filter(listens).is_some() {
            let up = self.connect();
            self.workers[parent].as_mut().unwrap().greeting.push((rank, up));
            let serial = model.serial.unwrap().to_le_bytes().to_vec();
            self.send(up, 0, ControlKind::Attached, rank, serial);
            model.up = Up::Greeting(up);
        }
    }

    fn hear_up(&mut self, rank: Rank, model: &mut Model) -> Option<Failure> {
        let (Up::Greeting(up) | Up::Known(up)) = model.up else { return None };
        let is_known = matches!(model.up, Up::Known(_));
        // What follows a welcome belongs to the first exchange.
        if model.welcomed && is_known {
            return None;
        }
        match self.read(up, 0) {
            Read::Nothing => return None,
            Read::Message(message) => match (message.kind, is_known) {
                (ControlKind::Attached, false) => model.up = Up::Known(up),
                (ControlKind::Welcome, true) => {
                    assert!(model.told && self.is_remote_leaf(rank), "rank {rank} is welcome too early");
                    model.welcomed = true;
                }
                (other, _) => {
                    let failure = Failure::announced(&message);
                    return Some(failure.unwrap_or_else(|| panic!("the parent of rank {rank} sends {other:?}")));
                }
            },
            Read::End if model.welcomed || self.is_remote_leaf(rank) => model.up = Up::Ended(up),
            Read::End => self.call_parent(rank, model),
        }
        None
    }

    fn hear_greeting(&mut self, model: &mut Model) {
        if model.greeting.is_empty() {
            return;
        }
        let (child, _) = model.greeting[self.random.below(model.greeting.len() as u64) as usize];
        let first = model.greeting.iter().position(|(caller, _)| *caller == child).unwrap();
        let (_, connection) = model.greeting.remove(first);
        let is_late = |serial| model.children.get(&child).is_some_and(|old| old.serial > serial);
        match self.read(connection, 1) {
            Read::Nothing => model.greeting.insert(first, (child, connection)),
            Read::End => self.close(connection, 1),
            Read::Message(message) => {
                let serial = u32::from_le_bytes(message.payload.try_into().unwrap());
                if is_late(serial) {
                    return self.close(connection, 1);
                }
                self.send(connection, 1, ControlKind::Attached, child, Vec::new());
                let before = model.children.insert(child, ModelChild { connection, serial, ended: false });
                before.into_iter().for_each(|child| self.close(child.connection, 1));
            }
        }
    }

    fn hear_leaf(&mut self, model: &mut Model) {
        let leaves: Vec<Rank> = model.children.keys().copied().filter(|&child| self.tree.is_leaf(child)).collect();
        if leaves.is_empty() || model.welcomed {
            return;
        }
        let leaf = leaves[self.random.below(leaves.len() as u64) as usize];
        let child = model.children.get_mut(&leaf).unwrap();
        if !child.ended && matches!(self.read(child.connection, 1), Read::End) {
            child.ended = true;
            let serial = child.serial.to_le_bytes().to_vec();
            if let Some(root) = model.root {
                self.send(root, 0, ControlKind::Ended, leaf, serial);
            }
        }
    }

    /// A worker whose place is certain welcomes its leaves, and takes part in the first exchange.
    fn place(&mut self, rank: Rank, model: &mut Model) {
        let children: Vec<(Rank, usize, bool)> =
            model.children.iter().map(|(&child, it)| (child, it.connection, false)).collect();
        assert_eq!(
            children.len(),
            self.tree.children(rank).count(),
            "rank {rank} is in its place without its children"
        );
        for &(child, connection, _) in &children {
            if self.tree.is_leaf(child) {
                self.send(connection, 1, ControlKind::Welcome, rank, Vec::new());
            }
        }
        std::mem::take(&mut model.greeting).into_iter().for_each(|(_, connection)| self.close(connection, 1));
        let up = match model.up {
            Up::Known(up) | Up::Ended(up) => Some(up),
            _ => model.root,
        };
        if let Some(root) = model.root
            && up != Some(root)
        {
            self.close(root, 0);
        }
        model.exchange = Some(ModelExchange { up, children, stage: ExchangeStage::Collecting });
    }

    // --- the first exchange, as in `crate::control::exchange` ---

    /// Returns how it ends, if it does.
    fn exchange_step(&mut self, rank: Rank, exchange: &mut ModelExchange) -> Option<StartOutcome> {
        let outcome = match &exchange.stage {
            ExchangeStage::Collecting => self.collect(rank, exchange),
            ExchangeStage::Reporting(own) => {
                let own = own.clone();
                let read = self.read(exchange.up.unwrap(), 0);
                let parent = self.tree.parent(rank).unwrap();
                match read {
                    Read::Nothing => None,
                    Read::Message(message) => Some(StartOutcome::Failed(Failure::announced(&message).unwrap_or(own))),
                    Read::End => Some(StartOutcome::Failed(Failure::Lost(parent))),
                }
            }
            ExchangeStage::Waiting => match self.read(exchange.up.unwrap(), 0) {
                Read::Nothing => None,
                Read::Message(message) if message.kind == ControlKind::Gathered => Some(StartOutcome::Started),
                Read::Message(message) => {
                    let failure = Failure::announced(&message);
                    Some(StartOutcome::Failed(failure.unwrap_or_else(|| panic!("{:?} in an exchange", message.kind))))
                }
                Read::End => Some(StartOutcome::Failed(Failure::Lost(self.tree.parent(rank).unwrap()))),
            },
        };
        let children: Vec<usize> = exchange.children.iter().map(|(_, connection, _)| *connection).collect();
        match &outcome {
            Some(StartOutcome::Started) => {
                children.into_iter().for_each(|c| self.send(c, 1, ControlKind::Gathered, Rank(0), Vec::new()));
            }
            Some(StartOutcome::Failed(failure)) => self.dismiss(children, failure),
            _ => {}
        }
        outcome
    }

    fn collect(&mut self, rank: Rank, exchange: &mut ModelExchange) -> Option<StartOutcome> {
        let turn = self.random.below(exchange.children.len() as u64 + 1) as usize;
        if let Some((child, connection, complete)) = exchange.children.get_mut(turn).filter(|child| !child.2) {
            let (child, subtree) = (*child, self.tree.subtree(*child));
            let found = match self.read(*connection, 1) {
                Read::Nothing => None,
                Read::End => Some(child),
                Read::Message(message) => match message.kind {
                    ControlKind::Gather => {
                        *complete = true;
                        None
                    }
                    ControlKind::Lost if message.rank != child && subtree.contains(&message.rank.0) => {
                        Some(message.rank)
                    }
                    ControlKind::Ended | ControlKind::Attached
                        if rank == Rank(0) && message.rank != child && subtree.contains(&message.rank.0) =>
                    {
                        None
                    }
                    other => panic!("rank {child} sends {other:?} about {} in an exchange", message.rank),
                },
            };
            match (found, exchange.up) {
                (Some(lost), None) => return Some(StartOutcome::Failed(Failure::Lost(lost))),
                (Some(lost), Some(up)) => {
                    self.send(up, 0, ControlKind::Lost, lost, Vec::new());
                    exchange.stage = ExchangeStage::Reporting(Failure::Lost(lost));
                    return None;
                }
                (None, _) => {}
            }
        } else if let Some(up) = exchange.up {
            match self.read(up, 0) {
                Read::Nothing => {}
                Read::End => return Some(StartOutcome::Failed(Failure::Lost(self.tree.parent(rank).unwrap()))),
                Read::Message(message) => {
                    let failure = Failure::announced(&message);
                    return Some(StartOutcome::Failed(
                        failure.unwrap_or_else(|| panic!("{:?} too early", message.kind)),
                    ));
                }
            }
        }
        if !exchange.children.iter().all(|(_, _, complete)| *complete) {
            return None;
        }
        let Some(up) = exchange.up else { return Some(StartOutcome::Started) };
        self.send(up, 0, ControlKind::Gather, rank, Vec::new());
        exchange.stage = ExchangeStage::Waiting;
        None
    }

    // --- all together ---

    /// Nothing happens until the next timeout. Returns whether there is one.
    fn time_passes(&mut self) -> bool {
        match std::mem::replace(&mut self.root, RootStage::Ended) {
            RootStage::Joining => {
                self.root = RootStage::Joining;
                if self.ledger.is_full() {
                    return false;
                }
                let ended = self.ended.first().copied().filter(|_| self.were_all_here);
                let failure = ended.map_or_else(|| Failure::Missing(self.ledger.absent()), Failure::Lost);
                let told: Vec<usize> = self.links.values().chain(self.doubted.values()).copied().collect();
                told.iter().for_each(|&link| self.refuse(link, &failure));
                self.root = RootStage::Refusing(failure, told);
                true
            }
            RootStage::Refusing(failure, told) => {
                told.into_iter().for_each(|link| self.close(link, 1));
                self.outcomes[0] = Some(StartOutcome::Failed(failure));
                true
            }
            stage => {
                self.root = stage;
                let is_waiting = |rank: &Rank| {
                    let model = self.workers[rank.index()].as_ref();
                    self.outcomes[rank.index()].is_none() && model.is_some_and(|model| !model.met)
                };
                let waiting: Vec<Rank> = (1..self.tree.size()).map(Rank).filter(is_waiting).collect();
                for &rank in &waiting {
                    let calls_again = self.workers[rank.index()].as_ref().unwrap().calls_again;
                    let parent = self.tree.parent(rank).unwrap();
                    self.fail(rank, if calls_again { Failure::Lost(parent) } else { Failure::NoRoot });
                }
                !waiting.is_empty()
            }
        }
    }

    /// Runs until every worker's start has ended in some way.
    fn run(&mut self) {
        let (mut idle, mut seen) = (0, 0);
        for _ in 0..STEPS_MAX {
            while let Some(at) = self.trouble.kills.iter().position(|(at, _)| *at <= self.events) {
                let (_, rank) = self.trouble.kills.swap_remove(at);
                self.kill(rank);
            }
            if self.outcomes.iter().all(Option::is_some) {
                return;
            }
            let rank = Rank(self.random.below(u64::from(self.tree.size())) as u32);
            let is_joining = matches!(self.root, RootStage::Joining);
            if rank == Rank(0) || (is_joining && self.random.below(3) == 0) {
                self.root_step();
            } else {
                self.worker_step(rank);
            }
            idle = if self.events == seen { idle + 1 } else { 0 };
            seen = self.events;
            if idle > IDLE_STEPS * self.tree.size() {
                idle = 0;
                if !self.time_passes() {
                    break;
                }
            }
        }
        let states = self.workers.iter().map(|worker| {
            let state = |m: &Model| {
                format!("{:?} {:?} {:?} {} {} {}", m.serial, m.root, m.up, m.told, m.welcomed, m.exchange.is_some())
            };
            worker.as_ref().map(state)
        });
        let states: Vec<_> = states.collect();
        let (absent, outcomes) = (self.ledger.absent(), &self.outcomes);
        panic!("a standstill, absent: {absent:?}, {:?}, {states:#?}, {outcomes:?}", self.tree);
    }

    /// All workers that survive start, or they name workers that were killed.
    fn check(&self) {
        // Who comes again after rank 0 has started without noticing its end finds nobody.
        let is_too_late =
            |rank, outcome: &_| self.killed.contains(&rank) && *outcome == Some(StartOutcome::Failed(Failure::NoRoot));
        let is_dead = |(rank, outcome): (_, &_)| *outcome == Some(StartOutcome::Killed) || is_too_late(rank, outcome);
        let outcomes = (0..self.tree.size()).map(Rank).zip(&self.outcomes);
        for (rank, outcome) in outcomes.clone() {
            if let Some(StartOutcome::Failed(failure)) = outcome
                && !is_too_late(rank, outcome)
            {
                let named = failure.named();
                let are_killed = !named.is_empty() && named.iter().all(|named| self.killed.contains(named));
                assert!(are_killed, "rank {rank}: {failure:?}, but {:?} were killed: {:?}", self.killed, self.outcomes);
            }
        }
        if outcomes.clone().any(is_dead) {
            return;
        }
        assert!(outcomes.clone().all(|(_, outcome)| *outcome == Some(StartOutcome::Started)), "{:?}", self.outcomes);
        // All links are those of the tree.
        for rank in (1..self.tree.size()).map(Rank) {
            let exchange = self.workers[rank.index()].as_ref().and_then(|model| model.exchange.as_ref()).unwrap();
            let parent = self.tree.parent(rank).unwrap();
            let above = match self.workers[parent.index()].as_ref() {
                Some(parent) => parent.children[&rank].connection,
                None => self.links[&rank],
            };
            assert_eq!(exchange.up, Some(above), "rank {rank} and its parent disagree");
        }
    }
}

/// Runs a seed in a job of up to `size_max` workers, and checks it.
fn simulate(seed: u64, size_max: u64, kills: Vec<(u64, Rank)>, come_again: bool) -> Simulation {
    let mut simulation = Simulation::new(seed, size_max, Trouble { kills, come_again });
    simulation.run();
    simulation.check();
    simulation
}

/// A worker that nobody waits for any more, or that two wait for, would keep the job from starting.
#[test]
fn joining_simulation_all_take_their_places_however_workers_end_and_come_again() {
    let (mut started, mut count) = (0, 0);
    for seed in seeds(1000) {
        let _note = SeedNote(seed);
        let mut random = Random(seed.wrapping_add(1 << 32));
        let undisturbed = simulate(seed, 30, Vec::new(), true);
        let complete_at = undisturbed.complete_at.expect("all joined");
        let others = u64::from(undisturbed.tree.size()) - 1;
        let count_kills = random.below(8);
        let kills = (0..count_kills).map(|_| (random.below(complete_at), Rank(1 + random.below(others) as u32)));
        let kills = kills.collect();
        let simulation = simulate(seed, 30, kills, true);
        count += 1;
        started += u32::from(simulation.outcomes.iter().all(|outcome| *outcome == Some(StartOutcome::Started)));
    }
    assert!(count < 100 || started > count / 2, "only {started} of {count} jobs started");
}

/// A worker that ends for good is named on all others, and they end, whenever it ends: while workers join, at the
/// moment when all have, and in the first exchange.
#[test]
fn joining_simulation_every_worker_that_ends_at_any_step_is_named() {
    for seed in seeds(8) {
        let _note = SeedNote(seed);
        let undisturbed = simulate(seed, 9, Vec::new(), false);
        for at in 0..undisturbed.events {
            for rank in (0..undisturbed.tree.size()).map(Rank) {
                let simulation = simulate(seed, 9, vec![(at, rank)], false);
                assert!(simulation.killed.contains(&rank));
            }
        }
    }
}

/// As above, with several that end about when all are in their places, and larger jobs.
#[test]
fn joining_simulation_several_end_when_all_have_joined() {
    for seed in seeds(1000) {
        let _note = SeedNote(seed);
        let mut random = Random(seed.wrapping_add(2 << 32));
        let undisturbed = simulate(seed, 30, Vec::new(), false);
        let complete_at = undisturbed.complete_at.expect("all joined");
        let (from, spread) = (complete_at.saturating_sub(random.below(60)), 1 + random.below(120));
        let (count, size) = (1 + random.below(4), u64::from(undisturbed.tree.size()));
        let kills = (0..count).map(|_| (from + random.below(spread), Rank(random.below(size) as u32))).collect();
        simulate(seed, 30, kills, random.below(2) == 0);
    }
}
