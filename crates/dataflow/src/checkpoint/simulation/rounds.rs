//! Reductions by rounds in a simulation: one seed determines the story of a job from its first run to its end. The
//! nodes of the tree, what they save and go on from, and the alignment of their ports are the real ones; sources,
//! streams and the coordinator are modeled. A job may be cut off at any step, and go on with other workers and another
//! tree; a checkpoint may be given up; a source that waits for room has no ear for a barrier.
//!
//! Invariants: the n-th result is of the n-th message of every copy, and it appears once; where copies may leave early
//! and the tree changes, or a round is an epoch, each message is in one result. And the job ends.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use arrow::array::{ArrayRef, AsArray, Int64Array, RecordBatch};
use arrow::datatypes::{Int64Type, SchemaRef};
use tidemill_batch::local::{Reduction, RoundEnd, RoundUnit};
use tidemill_checkpoint::marks::MarkMerger;
use tidemill_checkpoint::{Barrier, BarrierControl, Mark, RestoredState, Snapshot};
use tidemill_sim::{SplitMix64, share_of_seeds};

use super::super::open_rounds::{RoundNode, RoundSource, RoundTree};

/// Seeds of a whole run of the test; see [`share_of_seeds`].
const SEEDS: u64 = 5000;
/// What waits in a stream before its sender does.
const LANE_MAX: usize = 3;
/// A job is not cut off later, and must end within so many steps.
const FAULTS_END: usize = 5000;
const STEPS_MAX: usize = 200_000;
/// Of a result: bits that count the messages of one split.
const COUNT_BITS: u32 = 8;

/// Of messages: one for each, by split; and their numbers, summed.
type RoundResult = (i64, i64);

fn batch(rows: &[RoundResult]) -> RecordBatch {
    let column = |of: fn(&RoundResult) -> i64| Arc::new(Int64Array::from_iter_values(rows.iter().map(of))) as ArrayRef;
    RecordBatch::try_from_iter_with_nullable([("of", column(|row| row.0), true), ("n", column(|row| row.1), true)])
        .unwrap()
}

fn results(rows: &RecordBatch) -> impl Iterator<Item = RoundResult> {
    let column = |at: usize| rows.column(at).as_primitive::<Int64Type>().values().to_vec();
    column(0).into_iter().zip(column(1))
}

/// What a checkpoint has.
#[derive(Clone, Default)]
struct SavedJob {
    /// The next message of each split.
    places: Vec<i64>,
    restored: RestoredState,
    /// What the sink has made appear.
    results: Vec<RoundResult>,
}

enum RoundPacket {
    Rows(RecordBatch),
    Barrier(u64),
    End,
}

/// A node with its ports.
struct SimulatedNode<'a> {
    node: RoundNode<'a>,
    lanes: Vec<VecDeque<RoundPacket>>,
    ended: Vec<bool>,
    marks: MarkMerger,
    over: bool,
    /// The last snapshot, and its epoch.
    saved: Option<(u64, Snapshot)>,
}

struct CopySource {
    splits: Vec<usize>,
    ended: bool,
    barrier: u64,
    /// Places of its splits at the barrier of an epoch.
    saved: Option<(u64, Vec<i64>)>,
}

/// The job's way.
struct RoundStory {
    kind: (RoundEnd, RoundUnit),
    messages: Vec<i64>,
    crash: usize,
    barrier: usize,
}

struct RoundRun<'a> {
    story: &'a RoundStory,
    tree: &'a RoundTree,
    nodes: Vec<SimulatedNode<'a>>,
    /// Where each copy and each worker sends: a node and its port; `None` is the root, which sends to the sink.
    copy_to: Vec<(usize, usize)>,
    worker_to: Vec<Option<(usize, usize)>>,
    copies: Vec<CopySource>,
    places: Vec<i64>,
    /// The barrier that is under way, and what the sink had when it came.
    epoch: u64,
    under_way: bool,
    sink_at: Option<usize>,
    sink: Vec<RoundResult>,
    durable: SavedJob,
}

fn schema() -> SchemaRef {
    batch(&[]).schema()
}

/// A tree for copies on random workers.
fn tree(copies: u32, random: &mut SplitMix64) -> RoundTree {
    let workers = 1 + random.below(5);
    let mut sources = vec![Vec::new(); workers];
    for copy in 0..copies {
        sources[random.below(workers)].push(RoundSource::Copy(copy));
    }
    let root = random.below(workers);
    let mut inside = vec![root];
    let members: Vec<usize> = (0..workers).filter(|&w| w != root && !sources[w].is_empty()).collect();
    for worker in members {
        let parent = inside[random.below(inside.len())];
        sources[parent].push(RoundSource::Worker(worker as u32));
        inside.push(worker);
    }
    RoundTree { sources, root: root as u32, copies }
}

impl<'a> RoundRun<'a> {
    fn new(story: &'a RoundStory, tree: &'a RoundTree, from: &SavedJob) -> Self {
        let reduction = Reduction::new().sum("of").sum("n");
        let (mut copy_to, mut worker_to) = (vec![(0, 0); tree.copies as usize], vec![None; tree.sources.len()]);
        let mut nodes = Vec::new();
        for (worker, sources) in tree.sources.iter().enumerate() {
            let mut node = RoundNode::new(tree, worker as u32, (&reduction, &schema()), story.kind);
            node.restore(&from.restored).unwrap();
            let mut marks = MarkMerger::default();
            for (port, source) in sources.iter().enumerate() {
                marks.add(port, false);
                match *source {
                    RoundSource::Copy(copy) => copy_to[copy as usize] = (worker, port),
                    RoundSource::Worker(child) => worker_to[child as usize] = Some((worker, port)),
                }
            }
            let lanes = sources.iter().map(|_| VecDeque::new()).collect();
            let (ended, over, saved) = (vec![false; sources.len()], false, None);
            nodes.push(SimulatedNode { node, lanes, ended, marks, over, saved });
        }
        let splits = |copy: usize| (copy..story.messages.len()).step_by(tree.copies as usize).collect();
        let source = |copy| CopySource { splits: splits(copy), ended: false, barrier: 0, saved: None };
        let copies = (0..tree.copies as usize).map(source).collect();
        let (places, sink, epoch) = (from.places.clone(), from.results.clone(), from.restored.epoch);
        let (under_way, sink_at, durable) = (false, None, from.clone());
        RoundRun { story, tree, nodes, copy_to, worker_to, copies, places, epoch, under_way, sink_at, sink, durable }
    }

    fn is_over(&self) -> bool {
        self.copies.iter().all(|copy| copy.ended) && self.nodes.iter().all(|node| node.over)
    }

    fn step(&mut self, random: &mut SplitMix64) {
        if random.once_in(self.story.barrier) && (!self.under_way || random.once_in(4)) {
            // One that is under way is given up.
            (self.epoch, self.under_way, self.sink_at) = (self.epoch + 1, true, None);
        }
        let actor = random.below(self.copies.len() + self.nodes.len());
        match actor.checked_sub(self.copies.len()) {
            None => self.step_source(actor, random),
            Some(node) => self.step_node(node, random),
        }
        if self.under_way && self.sink_at.is_some() {
            self.try_finish();
        }
    }

    fn step_source(&mut self, at: usize, random: &mut SplitMix64) {
        let copy = &mut self.copies[at];
        let (node, port) = self.copy_to[at];
        let lane = &mut self.nodes[node].lanes[port];
        if copy.ended || lane.len() >= LANE_MAX {
            return;
        }
        if self.under_way && copy.barrier < self.epoch && random.once_in(3) {
            copy.barrier = self.epoch;
            copy.saved = Some((self.epoch, copy.splits.iter().map(|&split| self.places[split]).collect()));
            lane.push_back(RoundPacket::Barrier(self.epoch));
            return;
        }
        let left = copy.splits.iter().copied().filter(|&split| self.places[split] < self.story.messages[split]);
        let left: Vec<usize> = left.collect();
        if left.is_empty() {
            copy.ended = true;
            lane.push_back(RoundPacket::End);
            return;
        }
        let split = left[random.below(left.len())];
        let n = self.places[split];
        self.places[split] += 1;
        lane.push_back(RoundPacket::Rows(batch(&[(1 << (COUNT_BITS * split as u32), n)])));
    }

    fn send(&mut self, from: usize, packet: RoundPacket) {
        match (self.worker_to[from], packet) {
            (Some((node, port)), packet) => self.nodes[node].lanes[port].push_back(packet),
            (None, _) if from as u32 != self.tree.root => {}
            (None, RoundPacket::Rows(rows)) => self.sink.extend(results(&rows)),
            (None, RoundPacket::Barrier(epoch)) if epoch == self.epoch => self.sink_at = Some(self.sink.len()),
            (None, RoundPacket::Barrier(_) | RoundPacket::End) => {}
        }
    }

    /// As the loop of the stage goes.
    fn step_node(&mut self, at: usize, random: &mut SplitMix64) {
        let full = self.worker_to[at].is_some_and(|(node, port)| self.nodes[node].lanes[port].len() >= LANE_MAX);
        if self.nodes[at].over || full {
            return;
        }
        while let Some(rows) = self.nodes[at].node.merge().unwrap() {
            self.send(at, RoundPacket::Rows(rows));
        }
        let of = &mut self.nodes[at];
        if let Some(mark) = of.marks.next_mark() {
            if let Mark::Barrier(Barrier { epoch, .. }) = mark {
                let round = of.node.end_epoch().unwrap();
                of.saved = Some((epoch, of.node.snapshot().unwrap()));
                round.into_iter().for_each(|row| self.send(at, RoundPacket::Rows(row)));
                self.send(at, RoundPacket::Barrier(epoch));
            }
            return;
        }
        if of.ended.iter().all(|&ended| ended) {
            of.over = true;
            let round = of.node.end_epoch().unwrap();
            round.into_iter().for_each(|row| self.send(at, RoundPacket::Rows(row)));
            return self.send(at, RoundPacket::End);
        }
        let aligning = (0..of.ended.len()).any(|port| of.marks.holds(port));
        let ready = |&port: &usize| {
            !of.ended[port] && !of.marks.holds(port) && of.node.takes(port, aligning) && !of.lanes[port].is_empty()
        };
        let ready: Vec<usize> = (0..of.ended.len()).filter(ready).collect();
        if ready.is_empty() {
            return;
        }
        let port = ready[random.below(ready.len())];
        match of.lanes[port].pop_front().expect("just seen") {
            RoundPacket::Rows(rows) => of.node.push(port, rows).unwrap(),
            RoundPacket::Barrier(epoch) => {
                let control = BarrierControl::Checkpoint;
                of.marks.mark(port, Mark::Barrier(Barrier { epoch, control }));
            }
            RoundPacket::End => {
                of.ended[port] = true;
                of.node.end(port);
                of.marks.end_stream(port);
            }
        }
        assert_eq!(of.node.unequal(), None);
    }

    /// Whether all have saved the epoch, or had ended: then it is durable, and what the sink had then appears.
    fn try_finish(&mut self) {
        let epoch = self.epoch;
        let is_saved = |saved: Option<u64>, ended: bool| saved == Some(epoch) || ended;
        let copies = self.copies.iter().all(|copy| is_saved(copy.saved.as_ref().map(|(of, _)| *of), copy.ended));
        let nodes = self.nodes.iter().all(|node| is_saved(node.saved.as_ref().map(|(of, _)| *of), node.over));
        if !copies || !nodes {
            return;
        }
        let mut saved = SavedJob { places: self.places.clone(), ..SavedJob::default() };
        for copy in &self.copies {
            if let Some((_, places)) = copy.saved.as_ref().filter(|(of, _)| *of == epoch) {
                copy.splits.iter().zip(places).for_each(|(&split, &place)| saved.places[split] = place);
            }
        }
        saved.restored.epoch = epoch;
        for (worker, of) in self.nodes.iter_mut().enumerate() {
            let snapshot = match of.saved.take_if(|(saved, _)| *saved == epoch) {
                Some((_, snapshot)) => snapshot,
                None => of.node.snapshot().unwrap(),
            };
            let shared: BTreeMap<_, _> = snapshot.shared.into_iter().collect();
            saved.restored.shared_by.insert(worker as u32, shared);
        }
        saved.results = self.sink[..self.sink_at.expect("the sink has the barrier")].to_vec();
        self.durable = saved;
        self.under_way = false;
    }
}

/// What the n-th results are, where nothing is mixed up.
fn expected(messages: &[i64]) -> Vec<RoundResult> {
    let round = |n: i64| {
        let of = (0..messages.len()).filter(|&split| n < messages[split]);
        of.fold((0, 0), |(count, sum), split| (count + (1 << (COUNT_BITS * split as u32)), sum + n))
    };
    (0..messages.iter().copied().max().unwrap_or(0)).map(round).collect()
}

/// Messages by split, and the sum of their numbers.
fn totals(found: &[RoundResult], splits: usize) -> (Vec<i64>, i64) {
    let of = |split: usize| {
        let count = |row: &RoundResult| row.0 >> (COUNT_BITS * split as u32) & ((1 << COUNT_BITS) - 1);
        found.iter().map(count).sum()
    };
    ((0..splits).map(of).collect(), found.iter().map(|row| row.1).sum())
}

/// Returns the number of runs, and of these those that went on with open rounds.
fn tell(seed: u64, crash_at: Option<usize>) -> (usize, usize) {
    let mut random = SplitMix64::new(seed);
    let splits = 1 + random.below(5);
    let end = if random.once_in(2) { RoundEnd::Strict } else { RoundEnd::Partial };
    let length = random.one_of(&[0, 5, 30, 150]) as i64;
    let messages = (0..splits).map(|_| match end {
        RoundEnd::Strict => length,
        RoundEnd::Partial => random.below(length as usize + 1) as i64,
    });
    let messages: Vec<i64> = messages.collect();
    let (crash, barrier) = (random.one_of(&[0, 20, 200, 1000]), random.one_of(&[3, 20, 100]));
    let crash = if crash_at.is_some() { 0 } else { crash };
    let unit = if random.once_in(4) { RoundUnit::Epoch } else { RoundUnit::Message };
    let story = RoundStory { kind: (end, unit), messages, crash, barrier };
    // Which of them change from run to run.
    let (other_trees, other_copies) = (random.once_in(2), end == RoundEnd::Partial && random.once_in(2));
    let exact = unit == RoundUnit::Message && (end == RoundEnd::Strict || !other_trees);
    let mut saved = SavedJob { places: vec![0; splits], ..SavedJob::default() };
    let first = tree(splits as u32, &mut random);
    let (mut runs, mut open, mut steps) = (0, 0, 0);
    loop {
        runs += 1;
        let copies = if other_trees && other_copies { 1 + random.below(splits) as u32 } else { splits as u32 };
        let other = other_trees.then(|| tree(copies, &mut random));
        let mut run = RoundRun::new(&story, other.as_ref().unwrap_or(&first), &saved);
        while !run.is_over() {
            steps += 1;
            assert!(steps < STEPS_MAX, "seed {seed}: the job does not end");
            run.step(&mut random);
            if crash_at == Some(steps) || steps < FAULTS_END && random.once_in(story.crash) {
                break;
            }
        }
        if run.is_over() {
            let found = run.sink;
            match exact {
                true => assert_eq!(found, expected(&story.messages), "seed {seed}"),
                false => assert_eq!(totals(&found, splits), totals(&expected(&story.messages), splits), "seed {seed}"),
            }
            return (runs, open);
        }
        saved = run.durable;
        let contributed: i64 = totals(&saved.results, splits).0.iter().sum();
        open += usize::from(contributed < saved.places.iter().sum());
    }
}

/// A round that has a message of another one, that has one twice or lacks one after a failure, or never ends.
#[test]
fn rounds_go_on_across_failures() {
    let seeds = match std::env::var("SIMULATION_SEED") {
        Ok(seed) => seed.parse().map(|seed: u64| seed..seed + 1).expect("SIMULATION_SEED is a number"),
        Err(_) => 0..share_of_seeds(SEEDS),
    };
    let (mut runs, mut open) = (0, 0);
    for seed in seeds.clone() {
        let told = tell(seed, None);
        (runs, open) = (runs + told.0, open + told.1);
    }
    assert!(seeds.count() == 1 || open > runs / 20, "of {runs} runs {open} went on with open rounds");
    println!("{runs} runs, {open} of them with open rounds");
}

/// The same story, cut off at each of its first steps.
#[test]
fn rounds_go_on_from_any_step() {
    for seed in 0..4 {
        (1..400).for_each(|step| _ = tell(seed, Some(step)));
    }
}
