//! One stream of blocks, from one copy to another or to all. It takes credit, numbers and counts what is sent, and
//! combines small batches.
//!
//! The first batch that a copy sends in a [turn](crate::task) leaves at once, whatever its size, so a single batch
//! never waits. Small ones after it wait in a [pack](super::pack) until the pack is full, something is sent that must
//! stay behind them, or the turn ends. Credit for a whole pack is taken with its first batch, so that the pack can be
//! sent without waiting; unused credit then comes back.

use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;
use std::time::Instant;

use arrow::array::RecordBatch;
use tidemill_batch::batch_bytes;
use tidemill_batch::gather::{RowGather, RowSubset};
use tidemill_batch::wire::{BatchEncoder, BodyPiece, Frame, FrameWriter, WireHeader, WireKind};
use tidemill_checkpoint::Mark;

use super::biased::{BiasedGuard, BiasedLock};
use super::pack::{PACK_BYTES_MAX, RowPack, SMALL_BYTES_MAX};
use crate::error::TaskError;
use crate::flow::receive::edge::{EdgeRuntime, tree_place};
use crate::flow::receive::inlet::{Inlet, StreamPacket};
use crate::link::{CreditAccount, CreditGuard, CreditValve, Links};
use crate::metrics;
use crate::observation::CopyClock;
use crate::task::{self, TurnWaiter};
use crate::unaligned::UnalignedSignal;
use crate::work::QUEUE;

/// A block is not much larger than this, or than a network link accepts at a time; larger batches are cut.
const BLOCK_BYTES_MAX: u64 = 4 << 20;
/// The credit that a batch within this process costs besides its bytes.
const BATCH_COST_BYTES: u64 = 64;
/// After this many bytes for copies of this worker, a sender yields the thread to them, so that they read the data
/// while it is still in the processor's cache.
const CACHED_BYTES: u64 = 512 << 10;

/// What all streams at one copy's end of an edge share: their owner, and what carries them.
pub(super) struct EdgeEnd {
    pub edge: Arc<EdgeRuntime>,
    pub source: u32,
    pub links: Arc<Links>,
    /// Barriers that must not wait for credit with what precedes them.
    pub signal: Option<UnalignedSignal>,
    /// The copy's clock.
    pub clock: Arc<CopyClock>,
}

/// A wait for credit of copies on a worker, which counts as long as it exists.
struct CreditWait<'a> {
    way: &'a EdgeEnd,
    worker: u32,
    /// Whether there is credit, so that it only waits for the link.
    for_link: bool,
}

impl<'a> CreditWait<'a> {
    fn begin(way: &'a EdgeEnd, worker: u32, for_link: bool) -> Self {
        let now = Instant::now();
        way.edge.metrics.blocked.begin(now);
        way.clock.begin_blocked(now);
        way.links.clock(worker).begin_wait(now, for_link);
        CreditWait { way, worker, for_link }
    }
}

impl Drop for CreditWait<'_> {
    fn drop(&mut self) {
        let now = Instant::now();
        self.way.edge.metrics.blocked.end(now);
        self.way.clock.end_blocked(now);
        self.way.links.clock(self.worker).end_wait(now, self.for_link);
    }
}

impl EdgeEnd {
    /// `target` is `u32::MAX` for the one stream to all workers.
    fn header(&self, kind: WireKind, target: u32, seq: u64, rows: u64) -> WireHeader {
        WireHeader {
            edge: self.edge.id,
            source: self.source,
            target,
            seq,
            rows,
            ..WireHeader::new(kind, self.links.run)
        }
    }
}

/// Where blocks are sent.
enum Destination {
    /// To a copy on this worker.
    Local { inlet: Arc<Inlet>, stream: u32, account: Arc<CreditAccount>, valve: Arc<CreditValve> },
    /// To other workers, along the trees that blocks take in turn; some broadcasts have two, all else one.
    Remote { target: u32, trees: Vec<Vec<WorkerCredit>>, encoder: Option<Box<BatchEncoder>> },
}

/// A worker that blocks are sent to, or this one, and the credit for it.
#[derive(Clone)]
struct WorkerCredit {
    worker: u32,
    account: Arc<CreditAccount>,
}

/// One destination, and what has been sent there.
struct LaneTarget {
    place: Destination,
    blocks: u64,
    rows: u64,
}

/// The stream that the module describes.
pub(super) struct Lane {
    way: Arc<EdgeEnd>,
    /// The accounts that a block takes credit from: for each place, by the tree that it takes.
    accounts: Vec<Vec<Vec<WorkerCredit>>>,
    /// By place: whether a sender may take more credit than there is when an unaligned barrier follows.
    may_owe: Vec<bool>,
    state: BiasedLock<LaneState>,
    /// Whether the pack holds anything.
    packing: AtomicBool,
    /// Whether it leads to a single copy, on this worker.
    is_to_one_here: bool,
}

struct LaneState {
    ends: Vec<LaneTarget>,
    /// `None` if batches cannot be combined.
    pack: Option<RowPack>,
    /// Credit taken for the pack, at each account.
    taken: u64,
    /// Bytes sent to copies of this worker since the sender last yielded the thread to them.
    unread: u64,
    /// Whether the end of the turn will be reported to the lane.
    in_turn: bool,
    /// An error at the end of a turn, when there was no caller to return it to.
    failed: Option<TaskError>,
}

/// How many rows of a batch make a block that is not too large.
fn rows_within(batch: &RecordBatch, bytes_max: u64) -> usize {
    let pieces = batch_bytes(batch).div_ceil(bytes_max).max(1) as usize;
    batch.num_rows().div_ceil(pieces).max(1)
}

/// The batch in pieces that are not too large for a block.
fn pieces(batch: RecordBatch, bytes_max: u64) -> impl Iterator<Item = RecordBatch> {
    let (rows, step) = (batch.num_rows(), rows_within(&batch, bytes_max));
    (0..rows).step_by(step).map(move |from| batch.slice(from, step.min(rows - from)))
}

/// What a block is made of.
#[derive(Clone, Copy)]
enum LaneRows<'a> {
    Batch(&'a RecordBatch),
    /// Some rows of several batches, of numbers with these widths.
    Part(&'a RowGather, &'a RowSubset, &'a [usize]),
}

impl LaneRows<'_> {
    fn len(&self) -> usize {
        match self {
            LaneRows::Batch(batch) => batch.num_rows(),
            LaneRows::Part(_, part, _) => part.len(),
        }
    }
}

impl LaneTarget {
    fn here(way: &EdgeEnd, target: u32) -> Option<LaneTarget> {
        let (inlet, stream) = way.edge.inlet(way.source, target)?;
        let account = CreditAccount::new(way.edge.window_bytes);
        let valve = CreditValve::new(&way.edge.governor, way.edge.window_bytes);
        Some(LaneTarget { place: Destination::Local { inlet, stream, account, valve }, blocks: 0, rows: 0 })
    }

    /// A copy on another worker.
    fn there(way: &EdgeEnd, target: u32) -> LaneTarget {
        let worker = way.edge.target_workers[target as usize];
        let account = Arc::clone(way.edge.account(way.source, target));
        Self::remote(target, vec![vec![WorkerCredit { worker, account }]])
    }

    /// All workers that a broadcast reaches through others.
    fn below(way: &EdgeEnd) -> Option<LaneTarget> {
        let tree = |(number, children): (usize, &[u32])| {
            let credit = |&worker: &u32| {
                let account = Arc::clone(way.edge.account(way.source, tree_place(worker, number)));
                WorkerCredit { worker, account }
            };
            children.iter().map(credit).collect()
        };
        let trees: Vec<Vec<WorkerCredit>> = way.edge.children(way.source).enumerate().map(tree).collect();
        trees.iter().any(|tree| !tree.is_empty()).then(|| Self::remote(u32::MAX, trees))
    }

    fn remote(target: u32, trees: Vec<Vec<WorkerCredit>>) -> LaneTarget {
        LaneTarget { place: Destination::Remote { target, trees, encoder: None }, blocks: 0, rows: 0 }
    }

    /// The tree that the next block takes.
    fn tree(&self) -> usize {
        match &self.place {
            Destination::Local { .. } => 0,
            Destination::Remote { trees, .. } => (self.blocks % trees.len() as u64) as usize,
        }
    }

    /// Hands a batch over to a copy of this worker; at least `cost` of credit has been taken for it: `credit`.
    fn hand_over(&mut self, way: &EdgeEnd, batch: RecordBatch, cost: u64, credit: u64) {
        let Destination::Local { inlet, stream, account, valve } = &self.place else {
            unreachable!("asked of a copy here")
        };
        let metrics = &way.edge.metrics;
        metrics::add(&metrics.local_blocks, 1);
        metrics::add(&metrics.local_bytes, cost);
        let rows = batch.num_rows() as u64;
        inlet.push(*stream, StreamPacket::Batch(batch, Arc::new(CreditGuard::weighed(account, valve, cost, credit))));
        self.count(rows);
    }

    fn count(&mut self, rows: u64) {
        self.blocks += 1;
        self.rows += rows;
    }

    /// The next block for other workers. It is counted only when it has been sent: a sender that gives up waiting for
    /// credit has sent nothing.
    fn frame(&mut self, way: &EdgeEnd, rows: LaneRows<'_>) -> Result<Frame, TaskError> {
        let tree = self.tree();
        let Destination::Remote { target, trees, encoder } = &mut self.place else {
            unreachable!("asked of workers elsewhere")
        };
        let workers = &trees[tree];
        let encoder = match encoder {
            Some(encoder) => encoder,
            None => encoder.insert(Box::new(BatchEncoder::new(&way.edge.schema)?)),
        };
        let header = way.header(WireKind::Batch, *target - tree as u32, self.blocks, rows.len() as u64);
        let to = workers.iter().map(|to| to.worker);
        // Unless there are no other workers, the receivers of a broadcast pass it on.
        let passed_on = *target == u32::MAX && workers.len() + 1 < way.links.workers() as usize;
        let room = |len| way.links.buffer_for(len, to, passed_on);
        let (gather, part, widths) = match rows {
            LaneRows::Batch(batch) => return Ok(Frame::new_in(room, &header, &encoder.encode(batch)?)),
            LaneRows::Part(gather, part, widths) => (gather, part, widths),
        };
        // The rows are picked directly into the buffer that is sent: a batch of them would be copied once more.
        let pieces = encoder.outline(part.len(), widths)?;
        let len = |piece: &BodyPiece| match piece {
            BodyPiece::Bytes(bytes) => bytes.len(),
            BodyPiece::Values(_, len) => *len,
        };
        let mut draft = FrameWriter::new(room, &header, pieces.iter().map(len).sum());
        for piece in &pieces {
            match piece {
                BodyPiece::Bytes(bytes) => draft.put(bytes),
                BodyPiece::Values(column, len) => draft.fill(*len, |out| gather.fill(*column, part, out)),
            }
        }
        Ok(draft.finish())
    }

    /// Sends a batch whose part in a pack has taken credit of `taken` bytes at each account.
    fn send_packed(&mut self, way: &EdgeEnd, batch: &RecordBatch, taken: u64) -> Result<(), TaskError> {
        if let Destination::Local { account, .. } = &self.place {
            let cost = batch_bytes(batch) + BATCH_COST_BYTES;
            account.settle(taken, cost);
            self.hand_over(way, batch.clone(), cost, cost);
            return Ok(());
        }
        let frame = self.frame(way, LaneRows::Batch(batch))?.into_buffer();
        let Destination::Remote { trees, .. } = &self.place else { unreachable!("just seen") };
        for WorkerCredit { worker, account } in &trees[self.tree()] {
            if account.is_stopped() {
                account.settle(taken, 0);
                continue;
            }
            account.settle(taken, frame.len() as u64);
            count_frame(way, frame.len() as u64);
            way.links.send_shared(*worker, frame.clone());
        }
        self.count(batch.num_rows() as u64);
        Ok(())
    }

    fn mark(&self, way: &EdgeEnd, mark: &Mark) {
        match &self.place {
            Destination::Local { inlet, stream, .. } => {
                inlet.push(*stream, StreamPacket::Mark { mark: mark.clone(), blocks: self.blocks });
            }
            // Along the tree of the block that follows it, and which it must not overtake.
            Destination::Remote { target, trees, .. } => {
                let tree = self.tree();
                let frame = || mark.frame(way.header(WireKind::Idle, *target - tree as u32, self.blocks, 0));
                trees[tree].iter().for_each(|to| way.links.send(to.worker, frame()));
            }
        }
    }

    fn end(&self, way: &EdgeEnd) {
        let (blocks, rows) = (self.blocks, self.rows);
        match &self.place {
            Destination::Local { inlet, stream, .. } => inlet.push(*stream, StreamPacket::End { blocks, rows }),
            Destination::Remote { target, trees, .. } => {
                for (tree, workers) in (0..).zip(trees) {
                    let header = way.header(WireKind::End, *target - tree, blocks, rows);
                    workers.iter().for_each(|to| way.links.send(to.worker, Frame::header_only(&header)));
                }
            }
        }
    }
}

fn count_frame(way: &EdgeEnd, bytes: u64) {
    metrics::add(&way.edge.metrics.remote_blocks, 1);
    metrics::add(&way.edge.metrics.remote_bytes, bytes);
}

impl Lane {
    /// The stream to one copy.
    pub(super) fn to_copy(way: &Arc<EdgeEnd>, target: u32) -> Arc<Lane> {
        Self::new(way, vec![LaneTarget::here(way, target).unwrap_or_else(|| LaneTarget::there(way, target))])
    }

    /// The stream to all copies: one to the workers below this one in the trees, and one to each copy here.
    pub(super) fn to_all(way: &Arc<EdgeEnd>) -> Arc<Lane> {
        let here = way.edge.neighbours(way.source).filter_map(|target| LaneTarget::here(way, target));
        Self::new(way, LaneTarget::below(way).into_iter().chain(here).collect())
    }

    fn new(way: &Arc<EdgeEnd>, ends: Vec<LaneTarget>) -> Arc<Lane> {
        let here = |account| WorkerCredit { worker: way.links.me, account: Arc::clone(account) };
        let accounts = ends.iter().map(|end| match &end.place {
            Destination::Local { account, .. } => vec![vec![here(account)]],
            Destination::Remote { trees, .. } => trees.clone(),
        });
        let accounts = accounts.collect();
        // No barrier overtakes a broadcast.
        let may_owe = ends.iter().map(|end| !matches!(end.place, Destination::Remote { target: u32::MAX, .. }));
        let may_owe = may_owe.collect();
        let is_to_one_here = matches!(ends.as_slice(), [LaneTarget { place: Destination::Local { .. }, .. }]);
        let state =
            LaneState { ends, pack: RowPack::new(&way.edge.schema), taken: 0, unread: 0, in_turn: false, failed: None };
        let (way, state, packing) = (Arc::clone(way), BiasedLock::new(state), AtomicBool::new(false));
        Arc::new(Lane { way, accounts, may_owe, state, packing, is_to_one_here })
    }

    /// Whether all receivers have closed their ends.
    pub(super) fn is_stopped(&self) -> bool {
        if self.packing.load(Ordering::Relaxed) {
            // Checked when the first of these batches came, and again once they have been sent.
            return false;
        }
        self.state.lock().ends.iter().all(|end| match &end.place {
            Destination::Local { inlet, stream, .. } => inlet.is_closed(*stream),
            Destination::Remote { trees, .. } => trees.iter().flatten().all(|to| to.account.is_stopped()),
        })
    }

    /// Waits until some lane has credit, or the barrier behind the data must not wait for it. Returns the first such
    /// lane from `first` on. Each lane leads to one copy. A lane whose receiver takes nothing more counts only if all
    /// do.
    pub(super) async fn first_with_room(lanes: &[Arc<Lane>], first: usize) -> usize {
        let in_turn = || (0..lanes.len()).map(|offset| (first + offset) % lanes.len());
        let mut wait = None;
        poll_fn(|context| {
            let mut open = in_turn().filter(|&at| !lanes[at].is_stopped()).peekable();
            if open.peek().is_none() {
                return Poll::Ready(first);
            }
            for at in open {
                let lane = &lanes[at];
                let account = &lane.accounts[0][0][0].account;
                if lane.packing.load(Ordering::Relaxed) || account.poll_room(lane.signal(0), context).is_ready() {
                    return Poll::Ready(at);
                }
            }
            // It waits for all of them; the wait is counted for the preferred lane.
            wait.get_or_insert_with(|| {
                let WorkerCredit { worker, account } = &lanes[first].accounts[0][0][0];
                CreditWait::begin(&lanes[first].way, *worker, account.has_credit())
            });
            Poll::Pending
        })
        .await
    }

    /// Takes credit from an account, see [`CreditAccount::acquire`], and counts how long it waits.
    async fn acquire(&self, to: &WorkerCredit, bytes: u64, signal: Option<&UnalignedSignal>, may_owe_all: bool) {
        let waited = to
            .account
            .acquire(bytes, signal, may_owe_all, |for_link| CreditWait::begin(&self.way, to.worker, for_link));
        waited.await;
    }

    /// Sends a batch, at once or combined with others before the turn is over.
    pub(super) async fn send(self: &Arc<Self>, batch: RecordBatch) -> Result<(), TaskError> {
        let row_ns = self.way.edge.row_ns();
        if row_ns > 0 && self.is_to_one_here {
            return self.send_paced(batch).await;
        }
        let bytes = batch_bytes(&batch);
        let packs = {
            let mut state = self.state.lock();
            if let Some(error) = state.failed.take() {
                return Err(error);
            }
            if bytes > SMALL_BYTES_MAX || state.pack.is_none() {
                false
            } else if !state.in_turn {
                // The first batch of a turn does not wait for the turn's end; outside a turn it would wait forever.
                self.join(&mut state);
                false
            } else if state.taken > 0 {
                return self.push(&mut state, batch, bytes);
            } else {
                true
            }
        };
        match packs {
            true => self.begin_pack(batch, bytes).await,
            false => self.send_now(batch, bytes).await,
        }
    }

    /// Sends a batch to a copy of this worker whose rows take long: as many rows at a time as it processes between
    /// two marks, and no more than it finishes soon, however small they are. Otherwise a barrier would wait behind
    /// everything that fits into the window's bytes.
    async fn send_paced(&self, batch: RecordBatch) -> Result<(), TaskError> {
        let way = &self.way;
        self.flush()?;
        let mut from = 0;
        while from < batch.num_rows() && !self.is_stopped() {
            // Asked again for each piece: a batch may last longer than the receiver keeps its number of rows.
            let step = way.edge.call_rows().max(1);
            let piece = batch.slice(from, step.min(batch.num_rows() - from));
            from += piece.num_rows();
            let cost = batch_bytes(&piece) + BATCH_COST_BYTES;
            let (queue_ns, row_ns) = (QUEUE.as_nanos() as u64, way.edge.row_ns());
            let weight = (piece.num_rows() as u64).saturating_mul(row_ns).min(queue_ns) as f64 / queue_ns as f64;
            let credit = cost.max((weight * way.edge.window_bytes as f64) as u64);
            // Nothing is locked while it waits for credit.
            self.acquire(&self.accounts[0][0][0], credit, way.signal.as_ref(), true).await;
            metrics::add(&way.edge.metrics.rows_sent, piece.num_rows() as u64);
            self.state.lock().ends[0].hand_over(way, piece, cost, credit);
        }
        Ok(())
    }

    /// Adds rows of the only column, given as bytes, to those that wait, without a batch; `false` means that they
    /// have to be sent as a batch.
    ///
    /// # Safety
    /// Nobody else uses the lane meanwhile, except through [`TurnWaiter::on_turn_end`].
    #[inline]
    pub(super) unsafe fn pack_values(&self, values: &[u8], rows: usize) -> Result<bool, TaskError> {
        let put = |state: &mut LaneState| {
            if state.taken == 0 || state.failed.is_some() || values.len() as u64 > SMALL_BYTES_MAX {
                return Ok(false);
            }
            match state.pack.as_mut().and_then(|pack| pack.push_values(values, rows)) {
                Some(full) => self.packed(state, full).map(|()| true),
                None => Ok(false),
            }
        };
        // SAFETY: as this function requires; and nothing is locked here.
        let put_at_home = unsafe { self.state.with_owner_thread(task::this_thread(), put) };
        put_at_home.unwrap_or_else(|| put(&mut self.state.lock()))
    }

    /// Registers for the end of the turn, if one is in progress.
    fn join(self: &Arc<Self>, state: &mut BiasedGuard<'_, LaneState>) -> bool {
        let Some(thread) = task::join(|| Arc::clone(self) as _) else { return false };
        state.in_turn = true;
        state.settle(thread);
        true
    }

    /// Takes credit for a pack that starts with this batch.
    async fn begin_pack(self: &Arc<Self>, batch: RecordBatch, bytes: u64) -> Result<(), TaskError> {
        let pack_bytes = self.collect_bytes_max().min(PACK_BYTES_MAX);
        // Credit is taken before the pack's cost is known. A full pack is sent, so it never exceeds this.
        let credit = pack_bytes + SMALL_BYTES_MAX;
        for at in 0..self.accounts.len() {
            // Nothing is sent before the pack, so the pack takes this tree.
            let tree = self.state.lock().ends[at].tree();
            for to in &self.accounts[at][tree] {
                self.acquire(to, credit, self.signal(at), false).await;
            }
        }
        let mut state = self.state.lock();
        state.taken = credit;
        state.pack.as_mut().expect("asked before").set_full_bytes(pack_bytes);
        self.push(&mut state, batch, bytes)?;
        // The turn may have ended while it waited for credit.
        match state.in_turn || self.join(&mut state) {
            true => Ok(()),
            false => self.send_pack(&mut state),
        }
    }

    /// Barriers that must not wait for credit at this place.
    fn signal(&self, at: usize) -> Option<&UnalignedSignal> {
        self.way.signal.as_ref().filter(|_| self.may_owe[at])
    }

    /// The largest block for place `at`.
    fn block_bytes_max(&self, at: usize) -> u64 {
        self.accounts[at].iter().flatten().map(|to| to.account.block_bytes_max()).fold(BLOCK_BYTES_MAX, u64::min)
    }

    /// How many bytes of rows to collect before sending them; more would occupy a slow link for long.
    pub(super) fn collect_bytes_max(&self) -> u64 {
        (0..self.accounts.len()).map(|at| self.block_bytes_max(at)).fold(BLOCK_BYTES_MAX, u64::min)
    }

    /// How many of a batch's rows, which any copy may receive, go to the copy of this lane: on a slow link the rest
    /// would take long.
    pub(super) fn rows_at_a_time(&self, batch: &RecordBatch) -> usize {
        match &self.accounts[0][0][0] {
            WorkerCredit { account, .. } if account.is_slow() => rows_within(batch, account.block_bytes_max()),
            _ => batch.num_rows(),
        }
    }

    /// Adds a batch to those that wait.
    fn push(&self, state: &mut LaneState, batch: RecordBatch, bytes: u64) -> Result<(), TaskError> {
        let full = state.pack.as_mut().expect("asked before").push(batch, bytes);
        self.packed(state, full)
    }

    /// Sends the pack if it is full, after something was added.
    fn packed(&self, state: &mut LaneState, full: bool) -> Result<(), TaskError> {
        if full {
            return self.send_pack(state);
        }
        self.packing.store(true, Ordering::Relaxed);
        Ok(())
    }

    fn send_pack(&self, state: &mut LaneState) -> Result<(), TaskError> {
        self.packing.store(false, Ordering::Relaxed);
        let taken = std::mem::take(&mut state.taken);
        let Some(pack) = state.pack.as_mut().filter(|pack| !pack.is_empty()) else { return Ok(()) };
        let batch = pack.take()?;
        metrics::add(&self.way.edge.metrics.rows_sent, batch.num_rows() as u64);
        state.ends.iter_mut().try_for_each(|end| end.send_packed(&self.way, &batch, taken))
    }

    async fn send_now(&self, batch: RecordBatch, bytes: u64) -> Result<(), TaskError> {
        let way = &self.way;
        self.flush()?;
        if self.is_stopped() {
            return Ok(());
        }
        metrics::add(&way.edge.metrics.rows_sent, batch.num_rows() as u64);
        // By number, since nothing is locked while it waits for credit. Nobody else sends meanwhile, and the pack is
        // empty.
        for (at, accounts) in self.accounts.iter().enumerate() {
            let is_here = matches!(self.state.lock().ends[at].place, Destination::Local { .. });
            if is_here {
                let cost = bytes + BATCH_COST_BYTES;
                self.acquire(&accounts[0][0], cost, self.signal(at), false).await;
                let mut state = self.state.lock();
                state.unread += cost;
                state.ends[at].hand_over(way, batch.clone(), cost, cost);
                continue;
            }
            if accounts.iter().flatten().all(|to| to.account.is_stopped()) {
                continue;
            }
            for piece in pieces(batch.clone(), self.block_bytes_max(at)) {
                self.send_block(at, LaneRows::Batch(&piece)).await?;
            }
        }
        if self.state.lock().unread >= CACHED_BYTES {
            self.state.lock().unread = 0;
            tokio::task::yield_now().await;
        }
        Ok(())
    }

    /// Sends a block to the workers of place `at`, as their accounts allow.
    async fn send_block(&self, at: usize, rows: LaneRows<'_>) -> Result<(), TaskError> {
        let way = &self.way;
        let (frame, to) = {
            let end = &mut self.state.lock().ends[at];
            let (frame, tree) = (end.frame(way, rows)?.into_buffer(), end.tree());
            let Destination::Remote { trees, .. } = &end.place else { unreachable!("a frame was made for it") };
            (frame, trees[tree].clone())
        };
        for to in &to {
            // Part of a broadcast that others want: without a receiver, nothing would limit it.
            if to.account.is_stopped() {
                continue;
            }
            self.acquire(to, frame.len() as u64, self.signal(at), false).await;
            count_frame(way, frame.len() as u64);
            way.links.send_shared(to.worker, frame.clone());
        }
        self.state.lock().ends[at].count(rows.len() as u64);
        Ok(())
    }

    /// Sends some rows of several batches, as [`Lane::send`] would send a batch of them.
    pub(super) async fn send_part(self: &Arc<Self>, gather: &RowGather, part: &RowSubset) -> Result<(), TaskError> {
        let is_to_one_there = match self.state.lock().ends.as_slice() {
            [LaneTarget { place: Destination::Remote { trees, .. }, .. }] => {
                matches!(&trees[..], [one] if one.len() == 1)
            }
            _ => false,
        };
        let widths = gather.widths().unwrap_or_default();
        let bytes = (part.len() * widths.iter().sum::<usize>()) as u64;
        if !is_to_one_there || !(SMALL_BYTES_MAX + 1..=self.block_bytes_max(0)).contains(&bytes) {
            return self.send(gather.part(part)?).await;
        }
        self.flush()?;
        if self.is_stopped() {
            return Ok(());
        }
        metrics::add(&self.way.edge.metrics.rows_sent, part.len() as u64);
        let rows = LaneRows::Part(gather, part, &widths);
        self.send_block(0, rows).await
    }

    /// Sends the pack.
    pub(super) fn flush(&self) -> Result<(), TaskError> {
        let mut state = self.state.lock();
        match state.failed.take() {
            Some(error) => Err(error),
            None => self.send_pack(&mut state),
        }
    }

    /// Sends a mark after everything that has been sent.
    pub(super) fn mark(&self, mark: &Mark) -> Result<(), TaskError> {
        self.flush()?;
        self.state.lock().ends.iter().for_each(|end| end.mark(&self.way, mark));
        Ok(())
    }

    /// Ends the stream. Flush it before.
    pub(super) fn end(&self) {
        self.state.lock().ends.iter().for_each(|end| end.end(&self.way));
    }
}

impl TurnWaiter for Lane {
    fn on_turn_end(&self) {
        let mut state = self.state.lock();
        state.in_turn = false;
        if let Err(error) = self.send_pack(&mut state) {
            state.failed = Some(error);
        }
    }
}
