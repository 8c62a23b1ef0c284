//! An edge on one worker: where arriving frames of it go, who is owed credit, and what must be passed on.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use arrow::buffer::Buffer;
use arrow::datatypes::SchemaRef;
use parking_lot::Mutex;
use tidemill_batch::local::{RoundEnd, RoundUnit};
use tidemill_batch::memory::Governor;
use tidemill_batch::route_map::RouteMap;
use tidemill_batch::wire::{ReceivedFrame, WireKind};
use tidemill_checkpoint::{EventTime, Mark};

use super::inlet::{Inlet, StreamPacket};
use super::tree_order::{TreeItem, TreeOrder};
use crate::flow::{EdgeMover, EdgeReduction, FlowEdge};
use crate::link::{CreditAccount, CreditDebt, CreditGuard, CreditValve, Links, NO_WINDOW_BYTES, WINDOW_BYTES_MIN};
use crate::metrics::{self, EdgeMetrics, EdgeReport};
use crate::overlay::WorkerTree;

/// What a stream may have on its way or queued, whatever the settings.
const WINDOW_BYTES_MAX: u64 = 4 << 20;

/// Set in a worker's number when a frame about credit is for the second of a broadcast's two trees.
const SECOND_TREE: u32 = 1 << 31;

/// A worker in one of the trees of a broadcast, as frames about credit name it.
pub(crate) fn tree_place(worker: u32, tree: usize) -> u32 {
    if tree == 0 { worker } else { worker | SECOND_TREE }
}

/// Blocks of a broadcast that wait for credit of a worker further down the tree.
struct BroadcastRelay {
    account: Arc<CreditAccount>,
    waiting: Mutex<VecDeque<(Buffer, Option<Arc<CreditGuard>>)>>,
}

/// See the module.
pub(crate) struct EdgeRuntime {
    pub id: u32,
    pub name: String,
    pub schema: SchemaRef,
    pub window_bytes: u64,
    pub batch_bytes: u64,
    pub governor: Governor,
    pub mover: EdgeMover,
    pub reduction: Option<EdgeReduction>,
    /// The map that a partition by key begins with, if not with its own.
    pub route: Option<Arc<RouteMap>>,
    /// The names of the tasks that it comes from and leads to.
    pub source_task: String,
    pub target_task: String,
    /// The numbers of these tasks in the flow.
    pub tasks: (usize, usize),
    pub handover: bool,
    pub rounds: Option<RoundEnd>,
    /// What is a round of what a source copy sends.
    pub round_unit: RoundUnit,
    /// The worker of each source copy and of each target copy.
    pub source_workers: Vec<u32>,
    pub target_workers: Vec<u32>,
    pub metrics: Arc<EdgeMetrics>,
    /// Of each target copy on this worker: its queue, and the number there of this edge's first stream.
    inlets: Vec<Option<(Arc<Inlet>, u32)>>,
    /// By source worker, for a broadcast: those that messages take in turn.
    trees: Vec<Vec<WorkerTree>>,
    /// By source copy of another worker that takes two trees in turn.
    orders: HashMap<u32, Mutex<TreeOrder<StreamPacket>>>,
    /// Credit of this worker's copies at others: by source copy and target copy (for a broadcast, [`tree_place`]).
    accounts: HashMap<(u32, u32), Arc<CreditAccount>>,
    /// What this worker's copies owe others, by the same.
    debts: HashMap<(u32, u32), Arc<CreditDebt>>,
    /// By source copy and place further down.
    relays: HashMap<(u32, u32), BroadcastRelay>,
    /// Streams of other workers that have not ended, and blocks that wait in relays.
    pending: AtomicI64,
    /// What a row takes this worker's copies that it leads to, in nanoseconds; 0: not known, or so little that it does
    /// not matter.
    row_ns: AtomicU64,
    /// How many rows these copies work on at a time, if rows take long.
    call_rows: AtomicU64,
}

/// How much memory an edge may take.
#[derive(Clone)]
pub(crate) struct EdgeLimits {
    pub governor: Governor,
    /// What all streams to one copy may have queued together.
    pub queue_bytes: u64,
    /// What small pieces are put together to.
    pub batch_bytes: u64,
}

impl EdgeRuntime {
    /// `inlets` are those of the target port's copies on this worker.
    pub(crate) fn new(
        id: u32,
        (edge, source_task, target_task): (&FlowEdge, &str, &str),
        workers: (Vec<u32>, Vec<u32>),
        inlets: &[Option<Arc<Inlet>>],
        links: &Arc<Links>,
        hosts: &[u32],
        limits: EdgeLimits,
    ) -> Self {
        let (source_workers, target_workers) = workers;
        let (me, sources) = (links.me, source_workers.len() as u32);
        let inlets = inlets.iter().map(|i| i.as_ref().map(|i| (Arc::clone(i), i.add_streams(sources)))).collect();
        let trees = match &edge.mover {
            EdgeMover::Broadcast(overlay) => (0..links.workers())
                .map(|w| match source_workers.contains(&w) {
                    true => overlay.trees(w, &target_workers, hosts),
                    false => Vec::new(),
                })
                .collect(),
            _ => Vec::new(),
        };
        let mut new = EdgeRuntime {
            id,
            name: edge.name.clone(),
            schema: SchemaRef::clone(&edge.schema),
            window_bytes: 0,
            batch_bytes: limits.batch_bytes,
            governor: limits.governor,
            mover: edge.mover.clone(),
            reduction: edge.reduction.clone(),
            route: edge.route.clone(),
            source_task: source_task.to_owned(),
            target_task: target_task.to_owned(),
            tasks: (edge.source.task, edge.target.task),
            handover: edge.handover,
            rounds: edge.rounds,
            round_unit: edge.round_unit,
            source_workers,
            target_workers,
            metrics: Arc::default(),
            inlets,
            trees,
            orders: HashMap::new(),
            accounts: HashMap::new(),
            debts: HashMap::new(),
            relays: HashMap::new(),
            pending: AtomicI64::new(0),
            row_ns: AtomicU64::new(0),
            call_rows: AtomicU64::new(1),
        };
        new.window_bytes = if edge.feedback { NO_WINDOW_BYTES } else { new.window(limits.queue_bytes) };
        let window = new.window_bytes;
        for source in 0..sources {
            let from = new.source_workers[source as usize];
            if !new.trees.is_empty() {
                new.add_broadcast(source, links);
                continue;
            }
            for target in 0..new.target_workers.len() as u32 {
                let to = new.target_workers[target as usize];
                if !new.has_stream(source, target) || from == to {
                    continue;
                }
                if from == me {
                    new.accounts.insert((source, target), CreditAccount::over(links.pacer(to), window));
                } else if to == me {
                    let valve = CreditValve::new(&new.governor, window);
                    let debt = CreditDebt::new(links, from, (id, source, target), valve);
                    new.debts.insert((source, target), debt);
                    new.pending.fetch_add(1, Ordering::Relaxed);
                }
            }
        }
        new
    }

    /// This worker's part in the broadcast of a copy.
    fn add_broadcast(&mut self, source: u32, links: &Arc<Links>) {
        let (me, from) = (links.me, self.source_workers[source as usize]);
        let trees = &self.trees[from as usize];
        for (number, tree) in trees.iter().enumerate() {
            for &child in &tree.children[me as usize] {
                let account = CreditAccount::over(links.pacer(child), self.window_bytes);
                let place = (source, tree_place(child, number));
                if from == me {
                    self.accounts.insert(place, account);
                } else {
                    self.relays.insert(place, BroadcastRelay { account, waiting: Mutex::default() });
                }
            }
            if let Some(parent) = tree.parent[me as usize] {
                let place = tree_place(me, number);
                let valve = CreditValve::new(&self.governor, self.window_bytes);
                self.debts.insert((source, place), CreditDebt::new(links, parent, (self.id, source, place), valve));
                self.pending.fetch_add(1, Ordering::Relaxed);
            }
        }
        if trees.len() > 1 && from != me {
            self.orders.insert(source, Mutex::new(TreeOrder::new()));
        }
    }

    /// Notes what a row takes who receives it, and how many it works on at a time. Senders of this worker then send so
    /// many at a time, and have fewer queued.
    pub(crate) fn note_row_cost(&self, row_ns: u64, call_rows: usize) {
        self.call_rows.store(call_rows as u64, Ordering::Relaxed);
        self.row_ns.store(row_ns, Ordering::Relaxed);
    }

    /// See [`EdgeRuntime::note_row_cost`].
    pub(crate) fn call_rows(&self) -> usize {
        self.call_rows.load(Ordering::Relaxed) as usize
    }

    /// See [`EdgeRuntime::note_row_cost`].
    pub(crate) fn row_ns(&self) -> u64 {
        self.row_ns.load(Ordering::Relaxed)
    }

    /// Each stream's part of what one copy's queue may hold.
    fn window(&self, queue_bytes: u64) -> u64 {
        let streams_to = |target| (0..self.sources()).filter(|&source| self.has_stream(source, target)).count();
        let streams = (0..self.targets()).map(streams_to).max().unwrap_or(1);
        (queue_bytes / streams.max(1) as u64).clamp(WINDOW_BYTES_MIN, WINDOW_BYTES_MAX)
    }

    pub(crate) fn sources(&self) -> u32 {
        self.source_workers.len() as u32
    }

    pub(crate) fn targets(&self) -> u32 {
        self.target_workers.len() as u32
    }

    /// Whether there is a stream from copy `source` to copy `target`.
    pub(crate) fn has_stream(&self, source: u32, target: u32) -> bool {
        match &self.mover {
            EdgeMover::Map(map) => map[source as usize] == Some(target),
            EdgeMover::Broadcast(_) | EdgeMover::Copies => true,
            EdgeMover::Partition(partitioner) => {
                partitioner.reach(source).is_none_or(|reach| reach.binary_search(&target).is_ok())
            }
        }
    }

    /// The queue of a copy on this worker, and the number in it of the stream from `source`.
    pub(crate) fn inlet(&self, source: u32, target: u32) -> Option<(Arc<Inlet>, u32)> {
        let (inlet, base) = self.inlets.get(target as usize)?.as_ref()?;
        Some((Arc::clone(inlet), base + source))
    }

    /// The credit of a copy of this worker towards a copy (for a broadcast, a worker) elsewhere.
    pub(crate) fn account(&self, source: u32, target: u32) -> &Arc<CreditAccount> {
        &self.accounts[&(source, target)]
    }

    /// The workers that a broadcasting copy of this worker sends to, by the tree that its blocks take in turn.
    pub(crate) fn children(&self, source: u32) -> impl Iterator<Item = &[u32]> {
        let me = self.source_workers[source as usize] as usize;
        self.trees[me].iter().map(move |tree| tree.children[me].as_slice())
    }

    /// Target copies on the worker of `source`.
    pub(crate) fn neighbours(&self, source: u32) -> impl Iterator<Item = u32> {
        let me = self.source_workers[source as usize];
        (0..self.targets()).filter(move |&target| self.target_workers[target as usize] == me)
    }

    /// The copy `target` of this worker, which has closed its queue, takes nothing more of the stream from `source`. A
    /// sender elsewhere is told; one of this worker sees it at the queue.
    pub(crate) fn stop(&self, source: u32, target: u32) {
        if !self.trees.is_empty() {
            self.stop_above(source, self.target_workers[target as usize]);
        } else if let Some(debt) = self.debts.get(&(source, target)) {
            debt.stop();
        }
    }

    /// Tells the workers above this one, `me`, in the trees of a broadcast that nothing more of it is wanted, once that
    /// is so for all copies here and all workers below. Whoever was the last of them asks, so that somebody sees all;
    /// to be told twice does nothing.
    fn stop_above(&self, source: u32, me: u32) {
        let mut here = (0..self.targets()).filter_map(|target| self.inlet(source, target));
        if !here.all(|(inlet, stream)| inlet.is_closed(stream)) {
            return;
        }
        if let Some(order) = self.orders.get(&source) {
            order.lock().close();
        }
        for (number, tree) in self.trees[self.source_workers[source as usize] as usize].iter().enumerate() {
            let Some(debt) = self.debts.get(&(source, tree_place(me, number))) else { continue };
            let mut below = tree.children[me as usize].iter().map(|&child| tree_place(child, number));
            if below.all(|place| self.relays[&(source, place)].account.is_stopped()) {
                debt.stop();
            }
        }
    }

    /// Whether nothing more is to come from others, or to be passed on.
    pub(crate) fn is_quiet(&self) -> bool {
        self.pending.load(Ordering::SeqCst) == 0
    }

    /// The most bytes that were queued at one of this worker's copies.
    pub(crate) fn queue_bytes_max(&self) -> u64 {
        self.inlets.iter().flatten().map(|(inlet, _)| inlet.peak_bytes()).max().unwrap_or(0)
    }

    /// What this worker has counted here, and how its copies are now.
    pub(crate) fn report(&self) -> EdgeReport {
        let mut report = self.metrics.report(&self.name, self.queue_bytes_max());
        let sources = self.source_workers.len() as u32;
        for (inlet, base) in self.inlets.iter().flatten() {
            let (queued, time, slowest) = inlet.now();
            report.queue_bytes += queued;
            if report.time.is_none() || time < report.time {
                report.time = time.or(report.time);
                report.held_by = slowest.and_then(|stream| stream.checked_sub(*base)).filter(|copy| *copy < sources);
            }
        }
        report
    }

    /// The time of the stream that is furthest ahead, at this worker's copies.
    pub(crate) fn ahead(&self) -> Option<EventTime> {
        self.inlets.iter().flatten().filter_map(|(inlet, _)| inlet.ahead()).max()
    }

    /// A frame of this edge has come from worker `from`. The engine is locked.
    ///
    /// # Errors
    /// In words, when it does not belong here.
    pub(crate) fn frame(&self, from: u32, frame: ReceivedFrame, links: &Links) -> Result<(), String> {
        let header = frame.header;
        let stream = (header.source, header.target);
        let stranger = || format!("a {:?} frame for copies {} -> {}", header.kind, header.source, header.target);
        match header.kind {
            WireKind::Credit => {
                if let Some(account) = self.accounts.get(&stream) {
                    account.release(header.rows);
                } else if let Some(relay) = self.relays.get(&stream) {
                    relay.account.release(header.rows);
                    self.relay(relay, header.target & !SECOND_TREE, links);
                } else {
                    return Err(stranger());
                }
            }
            WireKind::Stop => {
                if let Some(account) = self.accounts.get(&stream) {
                    account.stop();
                } else if let Some(relay) = self.relays.get(&stream) {
                    relay.account.stop();
                    self.relay(relay, header.target & !SECOND_TREE, links);
                    self.stop_above(header.source, links.me);
                } else {
                    return Err(stranger());
                }
            }
            WireKind::Batch | WireKind::End | WireKind::Watermark | WireKind::Idle | WireKind::Barrier
                if header.target >= u32::MAX - 1 && !self.trees.is_empty() =>
            {
                if header.kind != WireKind::Batch {
                    frame.verify().map_err(|error| error.to_string())?;
                }
                let tree = (u32::MAX - header.target) as usize;
                let debt = self.debts.get(&(header.source, tree_place(links.me, tree))).ok_or_else(stranger)?;
                let guard = (header.kind == WireKind::Batch)
                    .then(|| Arc::new(CreditGuard::remote(debt, frame.whole.len() as u64)));
                self.forward_broadcast(tree, &frame, guard, links)?;
            }
            WireKind::Batch => {
                let debt = self.debts.get(&stream).ok_or_else(stranger)?;
                let (inlet, number) = self.inlet(header.source, header.target).ok_or_else(stranger)?;
                let guard = Arc::new(CreditGuard::remote(debt, frame.whole.len() as u64));
                inlet.push(number, StreamPacket::Block(frame, guard));
            }
            WireKind::End => {
                if !self.debts.contains_key(&stream) {
                    return Err(stranger());
                }
                frame.verify().map_err(|error| error.to_string())?;
                let (inlet, number) = self.inlet(header.source, header.target).ok_or_else(stranger)?;
                inlet.push(number, StreamPacket::End { blocks: header.seq, rows: header.rows });
                self.pending.fetch_sub(1, Ordering::SeqCst);
            }
            WireKind::Watermark | WireKind::Idle | WireKind::Barrier => {
                if !self.debts.contains_key(&stream) {
                    return Err(stranger());
                }
                let (inlet, number) = self.inlet(header.source, header.target).ok_or_else(stranger)?;
                frame.verify().map_err(|error| error.to_string())?;
                inlet.push(number, StreamPacket::Mark { mark: Mark::of_frame(&frame)?, blocks: header.seq });
            }
            WireKind::Progress
            | WireKind::Status
            | WireKind::Inject
            | WireKind::Unalign
            | WireKind::Saved
            | WireKind::Durable
            | WireKind::Abort
            | WireKind::Finish
            | WireKind::Lent
            | WireKind::Returned
            | WireKind::Measured => {
                return Err(format!("worker {from} sent a {:?} frame here", header.kind));
            }
        }
        Ok(())
    }

    /// A broadcast frame: to all copies of this worker, and on to the workers below.
    fn forward_broadcast(
        &self,
        number: usize,
        frame: &ReceivedFrame,
        guard: Option<Arc<CreditGuard>>,
        links: &Links,
    ) -> Result<(), String> {
        let header = frame.header;
        let over = header.kind == WireKind::End;
        let (blocks, rows) = (header.seq, header.rows);
        let item = match &guard {
            Some(guard) => TreeItem::Block(StreamPacket::Block(frame.clone(), Arc::clone(guard))),
            None if over => TreeItem::End(StreamPacket::End { blocks, rows }),
            None => TreeItem::Mark(StreamPacket::Mark { mark: Mark::of_frame(frame)?, blocks }),
        };
        match self.orders.get(&header.source).map(Mutex::lock) {
            None => self.deliver(header.source, item.into_inner()),
            Some(mut order) => {
                order.push(number, item);
                while let Some(packet) = order.pop() {
                    self.deliver(header.source, packet);
                }
            }
        }
        let tree = &self.trees[self.source_workers[header.source as usize] as usize][number];
        for &child in &tree.children[links.me as usize] {
            let relay = &self.relays[&(header.source, tree_place(child, number))];
            self.pending.fetch_add(1, Ordering::SeqCst);
            relay.waiting.lock().push_back((frame.whole.clone(), guard.clone()));
            self.relay(relay, child, links);
        }
        if over {
            self.pending.fetch_sub(1, Ordering::SeqCst);
        }
        Ok(())
    }

    /// Hands what a copy broadcasts to all copies of this worker.
    fn deliver(&self, source: u32, packet: StreamPacket) {
        for target in 0..self.targets() {
            if let Some((inlet, stream)) = self.inlet(source, target) {
                inlet.push(stream, packet.clone());
            }
        }
    }

    fn relay(&self, relay: &BroadcastRelay, child: u32, links: &Links) {
        let mut waiting = relay.waiting.lock();
        let is_stopped = relay.account.is_stopped();
        while let Some((bytes, guard)) = waiting.front() {
            // Ends and marks are no batches: they need no credit, and whoever wants no batches still waits for them.
            if guard.is_some() && !is_stopped && !relay.account.try_acquire(bytes.len() as u64) {
                return;
            }
            let Some((bytes, guard)) = waiting.pop_front() else { return };
            if guard.is_some() && is_stopped {
                self.pending.fetch_sub(1, Ordering::SeqCst);
                continue;
            }
            metrics::add(&self.metrics.remote_blocks, u64::from(guard.is_some()));
            metrics::add(&self.metrics.remote_bytes, bytes.len() as u64);
            links.forward(child, bytes, guard);
            self.pending.fetch_sub(1, Ordering::SeqCst);
        }
    }

    /// The run is over or given up: whatever is still queued is dropped.
    pub(crate) fn clear(&self) {
        self.inlets.iter().flatten().for_each(|(inlet, _)| inlet.close());
        self.orders.values().for_each(|order| order.lock().close());
        self.relays.values().for_each(|relay| {
            let dropped = std::mem::take(&mut *relay.waiting.lock());
            drop(dropped);
        });
    }
}

#[cfg(test)]
mod tests {
    use arrow::array::{Int64Array, RecordBatch};
    use arrow::datatypes::{DataType, Field, Schema};
    use tidemill_batch::memory::MemorySettings;
    use tidemill_batch::wire::{BatchEncoder, Frame, WireHeader};
    use tidemill_net::{Endpoint, Rank};

    use super::*;
    use crate::flow::{FlowPort, Input};
    use crate::task::{CancelFlag, block_on};

    /// An edge from a copy on worker 1 to one on worker 0, as worker 0 has it, and the input there.
    fn edge(links: &Arc<Links>) -> (Arc<EdgeRuntime>, Input) {
        let schema: SchemaRef = Arc::new(Schema::new(vec![Field::new("n", DataType::Int64, false)]));
        let port = |task| FlowPort { task, port: 0 };
        let mover = EdgeMover::Map(vec![Some(0)]);
        let flow_edge = FlowEdge {
            name: "a -> b".into(),
            source: port(0),
            target: port(1),
            schema,
            mover,
            reduction: None,
            route: None,
            rounds: None,
            round_unit: RoundUnit::Message,
            feedback: false,
            handover: false,
        };
        let governor = Governor::new(MemorySettings::default());
        let limits = EdgeLimits { governor, queue_bytes: 1 << 20, batch_bytes: 1 << 10 };
        let inlet = Arc::new(Inlet::default());
        let inlets = [Some(Arc::clone(&inlet))];
        let edge =
            Arc::new(EdgeRuntime::new(0, (&flow_edge, "a", "b"), (vec![1], vec![0]), &inlets, links, &[0, 0], limits));
        let mut input = Input::new(inlet, 0, true, false, Arc::new(CancelFlag::default()).token());
        input.add_edge(&edge);
        (edge, input)
    }

    fn block(encoder: &mut BatchEncoder, seq: u64, schema: &SchemaRef) -> Frame {
        let rows = RecordBatch::try_new(schema.clone(), vec![Arc::new(Int64Array::from(vec![seq as i64; 3]))]).unwrap();
        let header = WireHeader { seq, rows: 3, ..WireHeader::new(WireKind::Batch, 0) };
        Frame::new(&header, &encoder.encode(&rows).unwrap())
    }

    fn end(blocks: u64, rows: u64) -> Frame {
        Frame::header_only(&WireHeader { seq: blocks, rows, ..WireHeader::new(WireKind::End, 0) })
    }

    /// Lost, doubled, swapped or damaged blocks, and counts that differ at the end: each is an error that names the
    /// edge.
    #[test]
    fn what_is_not_as_it_was_sent_is_an_error() {
        let endpoints = Endpoint::in_process(2).unwrap();
        let links = Links::new(endpoints[0].clone(), 9, 0, 0, &[Rank(0), Rank(1)], None, &Arc::default());
        type Change = fn(&mut Vec<Vec<u8>>);
        let cases: [(Change, &str); 6] = [
            (|_| {}, ""),
            (|frames| drop(frames.remove(1)), "block 2 arrived, but block 1 was expected"),
            (|frames| frames.swap(0, 1), "block 1 arrived, but block 0 was expected"),
            (|frames| frames.insert(1, frames[0].clone()), "block 0 arrived, but block 1 was expected"),
            (|frames| *frames[1].iter_mut().rev().find(|byte| **byte != 0).unwrap() ^= 1, "checksum"),
            (|frames| drop(frames.remove(2)), "9 rows in 3 blocks were sent, but 6 in 2 arrived"),
        ];
        for (change, expected) in cases {
            let (edge, mut input) = edge(&links);
            let mut encoder = BatchEncoder::new(&edge.schema).unwrap();
            let mut frames: Vec<Frame> = (0..3).map(|seq| block(&mut encoder, seq, &edge.schema)).collect();
            frames.push(end(3, 9));
            let mut frames: Vec<Vec<u8>> = frames.into_iter().map(|frame| frame.into_buffer().to_vec()).collect();
            change(&mut frames);
            for bytes in frames {
                let frame = ReceivedFrame::take(&mut Buffer::from(bytes)).unwrap();
                edge.frame(1, frame, &links).unwrap();
            }
            let mut rows = 0;
            let result = loop {
                match block_on(input.recv()) {
                    Ok(Some(item)) => rows += item.into_batch().unwrap().num_rows(),
                    other => break other,
                }
            };
            match (result, expected) {
                (Ok(_), "") => assert_eq!(rows, 9),
                (Err(error), expected) if !expected.is_empty() => {
                    let text = error.to_string();
                    assert!(text.contains("a -> b") && text.contains(expected), "{text}");
                }
                (result, expected) => panic!("{result:?} where {expected} was due"),
            }
            assert!(edge.is_quiet());
        }
        endpoints.iter().for_each(Endpoint::leave);
    }

    /// Frames for copies, workers and edges that are not here are refused, not indexed with.
    #[test]
    fn strangers_are_refused() {
        let endpoints = Endpoint::in_process(2).unwrap();
        let links = Links::new(endpoints[0].clone(), 9, 0, 0, &[Rank(0), Rank(1)], None, &Arc::default());
        let (edge, _input) = edge(&links);
        for kind in [
            WireKind::Batch,
            WireKind::End,
            WireKind::Credit,
            WireKind::Stop,
            WireKind::Progress,
            WireKind::Abort,
            WireKind::Finish,
        ] {
            for (source, target) in [(1, 0), (0, 1), (u32::MAX, 0), (0, u32::MAX), (7, u32::MAX)] {
                let frame = Frame::header_only(&WireHeader { source, target, rows: 1, ..WireHeader::new(kind, 0) });
                let frame = ReceivedFrame::take(&mut frame.into_buffer()).unwrap();
                assert!(edge.frame(1, frame, &links).is_err(), "{kind:?} {source} {target}");
            }
        }
        endpoints.iter().for_each(Endpoint::leave);
    }
}
