//! Simulates a whole job of [`TreeState`]s in one thread, with links that deliver late but in order, workers that
//! die, fall silent and leave, and orphans that connect. Time is a number, and a seed repeats a run exactly:
//! `SIMULATION_SEED=7 cargo test -p tidemill-net simulation` runs one seed, `SIMULATION_SEEDS=5000` runs 5000.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap, VecDeque};

use super::state::{TreeAction, TreeInput, TreeState};
use super::tree::ControlTree;
use super::wire::ControlMessage;
use super::{ControlEvent, MessageTarget};
use crate::Rank;

const TICK: u64 = 100;
const SILENT_TICKS_MAX: u32 = 4;
/// All injected events happen before this time.
const TROUBLE_UNTIL: u64 = 1500;
/// Longer than any patience, including rank 0's with an orphan right after the start.
const STOPPED_FOR: u64 = 16 * SILENT_TICKS_MAX as u64 * TICK;
/// Long enough, twice over, for a worker whose silent parent delays its first message.
const END: u64 = TROUBLE_UNTIL + 60 * SILENT_TICKS_MAX as u64 * TICK;

/// A small generator (SplitMix64), so that a seed keeps its meaning.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % bound
    }
}

/// What arrives over a connection.
enum Cargo {
    /// An orphan's first message.
    Hello,
    Message(ControlMessage),
    End,
}

#[derive(Default)]
struct Direction {
    queue: VecDeque<Cargo>,
    last_arrival: u64,
    /// Only this much of what is in transit arrives: its sender's host is gone.
    arrive_max: Option<usize>,
}

struct Connection {
    ends: [Rank; 2],
    directions: [Direction; 2],
    /// Whether the second end receives; otherwise what arrives there is kept.
    is_read: bool,
    kept: VecDeque<Cargo>,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Tick(Rank),
    Arrive {
        connection: usize,
        direction: usize,
    },
    Dialed(Rank),
    Kill {
        rank: Rank,
        silently: bool,
    },
    /// Its process is stopped (SIGSTOP) until it continues.
    Stop(Rank),
    Continue(Rank),
    Leave(Rank),
    Send {
        from: Rank,
        to: Option<Rank>,
    },
}

struct Node {
    state: TreeState,
    links: BTreeMap<Rank, usize>,
    alive: bool,
    stopped: bool,
    /// What has arrived while it was stopped.
    unheard: Vec<(usize, usize, Cargo)>,
    dialing: bool,
    left: bool,
    exits: bool,
    heard: Vec<ControlEvent>,
    sent: Vec<(Option<Rank>, u32)>,
}

struct Job {
    now: u64,
    random: Random,
    nodes: Vec<Node>,
    connections: Vec<Connection>,
    events: BinaryHeap<Reverse<(u64, u64, Event)>>,
    count: u64,
}

impl Job {
    fn new(tree: ControlTree, seed: u64) -> Job {
        let node = |rank| Node {
            state: TreeState::new(Rank(rank), tree, SILENT_TICKS_MAX),
            links: BTreeMap::new(),
            alive: true,
            stopped: false,
            unheard: Vec::new(),
            dialing: false,
            left: false,
            exits: false,
            heard: Vec::new(),
            sent: Vec::new(),
        };
        let nodes = (0..tree.size()).map(node).collect();
        let random = Random(seed);
        let mut job = Job { now: 0, random, nodes, connections: Vec::new(), events: BinaryHeap::new(), count: 0 };
        for rank in (0..tree.size()).map(Rank) {
            if let Some(parent) = tree.parent(rank) {
                let connection = job.connect(rank, parent, true);
                job.nodes[parent.index()].links.insert(rank, connection);
            }
            let first = job.random.below(TICK);
            job.plan(first, Event::Tick(rank));
        }
        job
    }

    fn connect(&mut self, from: Rank, to: Rank, is_read: bool) -> usize {
        let connection =
            Connection { ends: [from, to], directions: Default::default(), is_read, kept: VecDeque::new() };
        self.connections.push(connection);
        self.nodes[from.index()].links.insert(to, self.connections.len() - 1);
        self.connections.len() - 1
    }

    fn plan(&mut self, at: u64, event: Event) {
        self.count += 1;
        self.events.push(Reverse((at, self.count, event)));
    }

    fn put(&mut self, from: Rank, connection: usize, cargo: Cargo) {
        let delay = 1 + self.random.below(30);
        let direction = usize::from(self.connections[connection].ends[1] == from);
        let way = &mut self.connections[connection].directions[direction];
        way.queue.push_back(cargo);
        way.last_arrival = way.last_arrival.max(self.now + delay);
        let at = way.last_arrival;
        self.plan(at, Event::Arrive { connection, direction });
    }

    fn step(&mut self, rank: Rank, input: TreeInput) {
        let mut actions = Vec::new();
        self.nodes[rank.index()].state.handle(input, &mut actions);
        let mut unread = Vec::new();
        for action in actions {
            match action {
                TreeAction::Emit(event) => self.nodes[rank.index()].heard.push(event),
                TreeAction::Send { link, message } => {
                    let connection = self.nodes[rank.index()].links.get(&link).copied();
                    if let Some(connection) = connection {
                        self.put(rank, connection, Cargo::Message(message));
                    }
                }
                TreeAction::Close { link } => {
                    if let Some(connection) = self.nodes[rank.index()].links.remove(&link) {
                        self.put(rank, connection, Cargo::End);
                    }
                }
                TreeAction::Read { link } => unread.push(link),
                TreeAction::Dial => {
                    self.nodes[rank.index()].dialing = true;
                    let at = self.now + 1 + self.random.below(40);
                    self.plan(at, Event::Dialed(rank));
                }
                TreeAction::StopDialing => self.nodes[rank.index()].dialing = false,
                TreeAction::Dropped { .. } => panic!("nothing is long enough to be dropped"),
            }
        }
        for link in unread {
            if let Some(&connection) = self.nodes[rank.index()].links.get(&link) {
                self.connections[connection].is_read = true;
                for cargo in std::mem::take(&mut self.connections[connection].kept) {
                    self.deliver(connection, 0, cargo);
                }
            }
        }
    }

    fn deliver(&mut self, connection: usize, direction: usize, cargo: Cargo) {
        let ends = self.connections[connection].ends;
        let (from, to) = (ends[direction], ends[1 - direction]);
        let node = &mut self.nodes[to.index()];
        if node.stopped {
            return node.unheard.push((connection, direction, cargo));
        }
        if matches!(cargo, Cargo::Hello) && node.alive {
            if node.state.may_come_back(from) {
                node.links.insert(from, connection);
                self.step(to, TreeInput::Attached { from });
            } else {
                self.put(to, connection, Cargo::End);
            }
            return;
        }
        if !node.alive || node.links.get(&from) != Some(&connection) {
            return;
        }
        if direction == 0 && !self.connections[connection].is_read {
            self.connections[connection].kept.push_back(cargo);
            return;
        }
        match cargo {
            Cargo::Message(message) => self.step(to, TreeInput::Received { from, message }),
            _ => self.step(to, TreeInput::Closed { from, reason: "gone".into() }),
        }
    }

    fn end(&mut self, rank: Rank, silently: bool, partly: bool) {
        let node = &mut self.nodes[rank.index()];
        node.alive = false;
        for connection in std::mem::take(&mut node.links).into_values() {
            let direction = usize::from(self.connections[connection].ends[1] == rank);
            if partly {
                let under_way = self.connections[connection].directions[direction].queue.len();
                let arrive_max = self.random.below(under_way as u64 + 1) as usize;
                self.connections[connection].directions[direction].arrive_max = Some(arrive_max);
            }
            if !silently {
                self.put(rank, connection, Cargo::End);
            }
        }
    }

    fn run(&mut self) {
        while let Some(Reverse((at, _, event))) = self.events.pop() {
            self.now = at;
            if at > END {
                return;
            }
            match event {
                Event::Tick(rank) if self.nodes[rank.index()].alive && !self.nodes[rank.index()].stopped => {
                    self.step(rank, TreeInput::Tick);
                    let node = &self.nodes[rank.index()];
                    if node.exits && node.state.is_leave_certain() && self.random.below(2) == 0 {
                        if !node.state.is_needed() {
                            self.end(rank, false, false);
                            continue;
                        }
                        self.step(rank, TreeInput::Retire);
                    }
                    let next = at + TICK + self.random.below(5);
                    self.plan(next, Event::Tick(rank));
                }
                Event::Tick(_) => {}
                Event::Arrive { connection, direction } => {
                    let way = &mut self.connections[connection].directions[direction];
                    let Some(cargo) = way.queue.pop_front() else { continue };
                    match &mut way.arrive_max {
                        Some(0) if !matches!(cargo, Cargo::End) => continue,
                        Some(left) => *left = left.saturating_sub(1),
                        None => {}
                    }
                    self.deliver(connection, direction, cargo);
                }
                Event::Dialed(rank) => self.dialed(rank),
                Event::Kill { rank, silently } if self.nodes[rank.index()].alive => {
                    let partly = self.random.below(2) == 0;
                    self.end(rank, silently, partly);
                }
                Event::Kill { .. } => {}
                Event::Stop(rank) => self.nodes[rank.index()].stopped = true,
                Event::Continue(rank) => {
                    self.nodes[rank.index()].stopped = false;
                    for (connection, direction, cargo) in std::mem::take(&mut self.nodes[rank.index()].unheard) {
                        self.deliver(connection, direction, cargo);
                    }
                    self.plan(at, Event::Tick(rank));
                }
                Event::Leave(rank) => {
                    self.nodes[rank.index()].left = true;
                    self.step(rank, TreeInput::Leave);
                }
                Event::Send { from, to } => {
                    let node = &mut self.nodes[from.index()];
                    if node.alive && !node.left && !node.stopped {
                        let number = node.sent.len() as u32;
                        node.sent.push((to, number));
                        let bytes = number.to_le_bytes().to_vec();
                        let to = to.map_or(MessageTarget::All, MessageTarget::One);
                        self.step(from, TreeInput::Send { to, bytes });
                    }
                }
            }
        }
    }

    fn dialed(&mut self, rank: Rank) {
        if !self.nodes[rank.index()].alive || !self.nodes[rank.index()].dialing {
            return;
        }
        if !self.nodes[0].alive || self.nodes[rank.index()].stopped {
            let at = self.now + TICK;
            return self.plan(at, Event::Dialed(rank));
        }
        self.nodes[rank.index()].dialing = false;
        let connection = self.connect(rank, Rank(0), false);
        self.put(rank, connection, Cargo::Hello);
        self.step(rank, TreeInput::Attached { from: Rank(0) });
    }
}

/// What happens to a job.
struct Trouble {
    killed: BTreeSet<Rank>,
    /// Those of `killed` that continued too late.
    stopped: BTreeSet<Rank>,
    leaving: BTreeSet<Rank>,
}

/// Plans losses, departures and messages as the seed determines.
fn trouble(job: &mut Job, size: u32) -> Trouble {
    let [killed, stopped, leaving] = Default::default();
    let mut plan = Trouble { killed, stopped, leaving };
    // All at once, or one after the other.
    let spread = [1, 20, TROUBLE_UNTIL / 2][job.random.below(3) as usize];
    let from = job.random.below(TROUBLE_UNTIL / 2);
    let (kills, leaves) = (job.random.below(5), job.random.below(6));
    for _ in 0..kills {
        let rank = Rank(1 + job.random.below(u64::from(size) - 1) as u32);
        if plan.killed.insert(rank) {
            let at = from + job.random.below(spread);
            match job.random.below(4) {
                0 => job.plan(at, Event::Kill { rank, silently: true }),
                // It continues after it has been given up.
                1 => {
                    plan.stopped.insert(rank);
                    job.plan(at, Event::Stop(rank));
                    job.plan(at + STOPPED_FOR, Event::Continue(rank));
                }
                _ => job.plan(at, Event::Kill { rank, silently: false }),
            }
        }
    }
    for _ in 0..leaves {
        let rank = Rank(job.random.below(u64::from(size)) as u32);
        if !plan.killed.contains(&rank) && plan.leaving.insert(rank) {
            let at = from + job.random.below(spread);
            job.plan(at, Event::Leave(rank));
            job.nodes[rank.index()].exits = rank.0 != 0 && job.random.below(3) > 0;
        }
    }
    for _ in 0..8 * size {
        let from = Rank(job.random.below(u64::from(size)) as u32);
        let to = job.random.below(u64::from(size) * 5 / 4 + 1) as u32;
        let at = job.random.below(TROUBLE_UNTIL);
        job.plan(at, Event::Send { from, to: (to < size).then_some(Rank(to)) });
    }
    plan
}

fn check(job: &Job, tree: ControlTree, plan: &Trouble) {
    let is_sound = |mut rank: Rank| {
        while let Some(parent) = tree.parent(rank) {
            if plan.killed.contains(&parent) {
                return false;
            }
            rank = parent;
        }
        true
    };
    // As in a star, the end of a connection to rank 0 means nothing once rank 0 has left.
    let stopped = plan.stopped.iter().filter(|_| !plan.leaving.contains(&Rank(0)));
    for rank in stopped {
        let heard = &job.nodes[rank.index()].heard;
        let is_told = heard.iter().any(|event| matches!(event, ControlEvent::Lost { rank: Rank(0), .. }));
        assert!(is_told, "{rank} does not know that it was given up");
    }
    let survivors = (0..tree.size()).map(Rank).filter(|r| !plan.killed.contains(r) && !plan.leaving.contains(r));
    for rank in survivors {
        let (mut lost, mut left, mut messages) = (Vec::new(), Vec::new(), BTreeMap::<Rank, Vec<u32>>::new());
        for event in &job.nodes[rank.index()].heard {
            match event {
                ControlEvent::Lost { rank: who, reason } => {
                    assert!(plan.killed.contains(who), "{rank} took {who} for lost: {reason}");
                    lost.push(*who);
                }
                ControlEvent::Left { rank } => left.push(*rank),
                ControlEvent::Message { from, bytes } => {
                    let number = u32::from_le_bytes(bytes.as_slice().try_into().unwrap());
                    messages.entry(*from).or_default().push(number);
                }
            }
        }
        lost.sort();
        left.sort();
        assert!(lost.iter().eq(&plan.killed), "{rank} heard of the loss of {lost:?}, not {:?}", plan.killed);
        assert!(left.iter().eq(&plan.leaving), "{rank} heard {left:?} leave, not {:?}", plan.leaving);
        for from in (0..tree.size()).map(Rank) {
            let got = messages.remove(&from).unwrap_or_default();
            let sent = job.nodes[from.index()].sent.iter();
            let meant = sent.filter(|(to, _)| *to == Some(rank) || to.is_none() && from != rank);
            let meant: Vec<u32> = meant.map(|(_, number)| *number).collect();
            assert!(got.is_sorted_by(|a, b| a < b), "{rank} got messages of {from} twice or out of order: {got:?}");
            assert!(got.iter().all(|number| meant.contains(number)), "{rank} got what was not for it");
            if is_sound(from) && is_sound(rank) && !plan.killed.contains(&from) {
                assert_eq!(got, meant, "messages from {from} to {rank}");
            }
        }
    }
}

fn simulate(seed: u64) {
    let mut random = Random(seed);
    let size = 2 + random.below(40) as u32;
    let fanout = [None, Some(2), Some(2), Some(3), Some(5)][random.below(5) as usize];
    let tree = ControlTree::new(size, fanout);
    let mut job = Job::new(tree, seed.wrapping_add(1 << 32));
    let plan = trouble(&mut job, size);
    job.run();
    check(&job, tree, &plan);
}

pub(crate) fn seeds(count: u64) -> std::ops::Range<u64> {
    let number = |name| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    match number("SIMULATION_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("SIMULATION_SEEDS").unwrap_or(count),
    }
}

/// Prints the seed of a failing simulation.
pub(crate) struct SeedNote(pub(crate) u64);

impl Drop for SeedNote {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("SIMULATION_SEED={} repeats this", self.0);
        }
    }
}

/// Every survivor learns exactly which workers were lost and which left, once each. Messages arrive at most once and
/// in order, and all of them arrive if nobody on their way is lost. A worker that leaves takes no other with it.
#[test]
fn survivors_agree_on_who_is_lost_and_who_left() {
    for seed in seeds(400) {
        let _note = SeedNote(seed);
        simulate(seed);
    }
}

/// Without rank 0 the job cannot go on: all others learn of this loss and of no other.
#[test]
fn the_loss_of_rank_0_ends_the_job_for_all() {
    for seed in seeds(40) {
        let _note = SeedNote(seed);
        let mut random = Random(seed);
        let size = 2 + random.below(30) as u32;
        let tree = ControlTree::new(size, Some(2 + random.below(3) as u32));
        let mut job = Job::new(tree, seed);
        let (at, silently) = (random.below(TROUBLE_UNTIL), random.below(2) == 0);
        job.plan(at, Event::Kill { rank: Rank(0), silently });
        job.run();
        for node in &job.nodes[1..] {
            let lost: Vec<_> = node.heard.iter().collect();
            assert!(matches!(lost[..], [ControlEvent::Lost { rank: Rank(0), .. }]), "{lost:?}");
        }
    }
}
