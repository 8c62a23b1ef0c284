//! Simulates joining in one thread: rank 0's [`JoinLedger`], and workers that act as [`super::attach`] does, over
//! connections that deliver in order but as late as they like. Workers end and come again. A seed repeats a run:
//! `SIMULATION_SEED=7 cargo test -p tidemill-net joining_simulation` runs one seed, `SIMULATION_SEEDS=5000` runs 5000.

use std::collections::{BTreeMap, VecDeque};

use super::ledger::{JoinAction, JoinAnswer, JoinLedger};
use crate::Rank;
use crate::control::simulation::{Random, SeedNote, seeds};
use crate::control::tree::ControlTree;
use crate::control::wire::{ControlKind, ControlMessage};

/// A run that takes so many steps has come to a standstill.
const STEPS_MAX: u32 = 400_000;

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

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Up {
    Unknown,
    Greeting(usize),
    Known(usize),
    Ended,
}

struct ModelChild {
    connection: usize,
    serial: u32,
    ended: bool,
}

/// A worker other than rank 0.
struct Model {
    /// Where it listens, in place of an address.
    address: u32,
    serial: Option<u32>,
    parent_address: Option<u32>,
    root: Option<usize>,
    up: Up,
    /// Calls of children, in their order for each child.
    greeting: Vec<(Rank, usize)>,
    children: BTreeMap<Rank, ModelChild>,
    told: bool,
    welcomed: bool,
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
    /// By rank; rank 0 is never here.
    workers: Vec<Option<Model>>,
    next_address: u32,
    ends_left: u64,
    /// Rank 0 has said that all are in their places.
    over: bool,
}

impl Simulation {
    fn new(seed: u64) -> Simulation {
        let mut random = Random(seed);
        let tree = ControlTree::new(3 + random.below(28) as u32, Some(1 + random.below(4) as u32));
        let ends_left = random.below(8);
        Simulation {
            random,
            tree,
            ledger: JoinLedger::new(tree),
            connections: Vec::new(),
            calling: Vec::new(),
            links: BTreeMap::new(),
            doubted: BTreeMap::new(),
            workers: (0..tree.size()).map(|_| None).collect(),
            next_address: 0,
            ends_left,
            over: false,
        }
    }

    fn connect(&mut self) -> usize {
        self.connections.push(Connection::default());
        self.connections.len() - 1
    }

    fn send(&mut self, connection: usize, end: usize, kind: ControlKind, rank: Rank, payload: Vec<u8>) {
        if !self.connections[connection].closed[end] {
            self.connections[connection].queues[end].push_back(ControlMessage::new(kind, rank, payload));
        }
    }

    fn read(&mut self, connection: usize, end: usize) -> Read {
        let connection = &mut self.connections[connection];
        match connection.queues[1 - end].pop_front() {
            Some(message) => Read::Message(message),
            None if connection.closed[1 - end] => Read::End,
            None => Read::Nothing,
        }
    }

    fn close(&mut self, connection: usize, end: usize) {
        self.connections[connection].closed[end] = true;
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
                    assert!(self.links.insert(rank, link).is_none());
                }
                JoinAction::Ended { .. } => {}
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
            Ok(JoinAnswer::Admitted) => assert!(self.links.insert(rank, link).is_none()),
            Ok(JoinAnswer::Doubted) => assert!(self.doubted.insert(rank, link).is_none()),
            Err(text) => panic!("there is one worker of each rank: {text}"),
        }
        self.act(actions);
    }

    fn root_step(&mut self) {
        let rank = Rank(1 + self.random.below(u64::from(self.tree.size()) - 1) as u32);
        if self.random.below(3) == 0 {
            self.admit();
        } else if self.random.below(100) == 0 {
            let mut actions = Vec::new();
            self.ledger.send_away(&mut actions);
            self.act(actions);
        } else {
            self.hear(rank);
        }
        if self.ledger.is_complete() {
            self.over = true;
            for link in self.links.clone().into_values() {
                self.send(link, 1, ControlKind::Welcome, Rank(0), Vec::new());
            }
        }
    }

    // --- the others, as in `super::attach` ---

    fn start(&mut self, rank: Rank) {
        let root = self.connect();
        self.calling.push((rank, root));
        self.next_address += 1;
        self.workers[rank.index()] = Some(Model {
            address: self.next_address,
            serial: None,
            parent_address: None,
            root: Some(root),
            up: Up::Unknown,
            greeting: Vec::new(),
            children: BTreeMap::new(),
            told: self.tree.is_leaf(rank) && self.tree.parent(rank) == Some(Rank(0)),
            welcomed: false,
        });
    }

    fn end(&mut self, rank: Rank) {
        let Some(model) = self.workers[rank.index()].take() else { return };
        model.root.into_iter().for_each(|root| self.close(root, 0));
        if let Up::Greeting(up) | Up::Known(up) = model.up {
            self.close(up, 0);
        }
        let children = model.children.into_values().map(|child| child.connection);
        children.chain(model.greeting.into_iter().map(|(_, c)| c)).for_each(|connection| self.close(connection, 1));
        // Rank 0 gives up a handshake with somebody who has hung up.
        self.calling.retain(|(called, _)| *called != rank);
    }

    fn worker_step(&mut self, rank: Rank) {
        let Some(mut model) = self.workers[rank.index()].take() else { return self.start(rank) };
        match self.random.below(4) {
            0 => self.hear_root(rank, &mut model),
            1 => self.hear_up(rank, &mut model),
            2 => self.hear_greeting(&mut model),
            _ => self.hear_leaf(&mut model),
        }
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
        let is_adrift = self.is_remote_leaf(rank) && (model.root.is_none() && !is_known || model.up == Up::Ended);
        self.workers[rank.index()] = Some(model);
        if is_adrift {
            self.end(rank);
            self.start(rank);
        }
    }

    fn hear_root(&mut self, rank: Rank, model: &mut Model) {
        let Some(root) = model.root.filter(|_| !model.welcomed) else { return };
        let message = match self.read(root, 0) {
            Read::Nothing => return,
            Read::Message(message) => message,
            Read::End => {
                assert!(model.told && self.is_remote_leaf(rank), "rank 0 hangs up on rank {rank}");
                self.close(root, 0);
                model.root = None;
                return;
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
                for (&child, it) in model.children.iter().filter(|(child, _)| self.tree.is_leaf(**child)) {
                    let message = ControlMessage::new(ControlKind::Welcome, child, Vec::new());
                    self.connections[it.connection].queues[1].push_back(message);
                }
            }
            ControlKind::Parent => {
                if let Up::Greeting(up) | Up::Known(up) = model.up {
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
                model.root = None;
            }
            other => panic!("rank 0 sends {other:?}"),
        }
    }

    fn call_parent(&mut self, rank: Rank, model: &mut Model) {
        let parent = self.tree.parent(rank).unwrap().index();
        let address = model.parent_address;
        model.up = Up::Unknown;
        // A parent that has ended meanwhile does not answer; rank 0 will say so.
        if address.is_some() && self.workers[parent].as_ref().map(|parent| parent.address) == address {
            let up = self.connect();
            self.workers[parent].as_mut().unwrap().greeting.push((rank, up));
            let serial = model.serial.unwrap().to_le_bytes().to_vec();
            self.send(up, 0, ControlKind::Attached, rank, serial);
            model.up = Up::Greeting(up);
        }
    }

    fn hear_up(&mut self, rank: Rank, model: &mut Model) {
        model.up = match model.up {
            Up::Greeting(up) => match self.read(up, 0) {
                Read::Nothing => Up::Greeting(up),
                Read::Message(message) => {
                    assert_eq!(message.kind, ControlKind::Attached);
                    Up::Known(up)
                }
                Read::End => Up::Ended,
            },
            Up::Known(up) => match self.read(up, 0) {
                Read::Nothing => Up::Known(up),
                Read::Message(message) => {
                    assert_eq!((message.kind, model.told), (ControlKind::Welcome, true));
                    model.welcomed = true;
                    Up::Known(up)
                }
                Read::End => Up::Ended,
            },
            other => other,
        };
        if model.up == Up::Ended && !model.welcomed && !self.is_remote_leaf(rank) {
            self.call_parent(rank, model);
        }
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

    /// Runs until all are welcome. Returns whether nobody ended so late that rank 0 has not heard of it.
    fn run(&mut self) -> bool {
        for _ in 0..STEPS_MAX {
            let rank = Rank(self.random.below(u64::from(self.tree.size())) as u32);
            if rank == Rank(0) || (!self.over && self.random.below(3) == 0) {
                if !self.over {
                    self.root_step();
                }
            } else if self.ends_left > 0 && !self.over && self.random.below(40) == 0 {
                self.ends_left -= 1;
                self.end(rank);
            } else {
                self.worker_step(rank);
            }
            if !self.over {
                continue;
            }
            // Whoever ended without rank 0's knowledge is lost when the job starts: its first exchange fails.
            let serials = self.workers[1..].iter().map(|worker| worker.as_ref().and_then(|model| model.serial));
            if serials.clone().any(|serial| serial.is_none()) {
                return false;
            }
            if self.workers[1..].iter().flatten().all(|model| model.welcomed) {
                return true;
            }
        }
        let states = self.workers.iter().map(|worker| {
            let state = |m: &Model| format!("{:?} {:?} {:?} {} {}", m.serial, m.root, m.up, m.told, m.welcomed);
            worker.as_ref().map(state)
        });
        let states: Vec<_> = states.collect();
        panic!("a standstill, over: {}, absent: {:?}, {:?}, {states:#?}", self.over, self.ledger.absent(), self.tree);
    }

    /// All links are those of the tree, and rank 0 has no others.
    fn check(&self) {
        let is_kept = |&rank: &Rank| !self.is_remote_leaf(rank);
        assert!(self.links.keys().copied().eq((1..self.tree.size()).map(Rank).filter(is_kept)));
        for rank in (1..self.tree.size()).map(Rank) {
            let model = self.workers[rank.index()].as_ref().unwrap();
            let parent = self.tree.parent(rank).unwrap();
            if let Some(parent) = self.workers[parent.index()].as_ref() {
                let child = &parent.children[&rank];
                let (Up::Known(up) | Up::Greeting(up)) = model.up else { panic!("rank {rank} has no parent") };
                assert_eq!((up, child.ended), (child.connection, false), "rank {rank} and its parent disagree");
            }
            assert_eq!(model.children.len(), self.tree.children(rank).count());
        }
    }
}

/// A worker that nobody waits for any more, or that two wait for, would keep the job from starting.
#[test]
fn joining_simulation_all_take_their_places_however_workers_end_and_come_again() {
    let (mut started, mut count) = (0, 0);
    for seed in seeds(2000) {
        let _note = SeedNote(seed);
        let mut simulation = Simulation::new(seed);
        count += 1;
        if simulation.run() {
            simulation.check();
            started += 1;
        }
    }
    assert!(count < 100 || started > count / 2, "only {started} of {count} jobs started");
}
