//! Links: all edges' traffic between two workers, over one context of a communicator.
//!
//! Sending needs no separate thread: the sender queues a frame, locks the engine and pushes as much as the link
//! accepts. While messages are in flight, further frames wait in the link's queue, and small ones are combined into
//! one message: a busy link coalesces automatically, an idle one delays nothing. Receiving is a task of the engine
//! ([`ReceivePump`]), run by whichever thread drives it.
//!
//! Lock order: the engine's, then a queue's. Values that the engine drops take neither lock: what they return (credit,
//! room on a link) is recorded in atomics or in `credits` and `dirty`, and processed by the next pump. Memory returns
//! to the [`BufferPool`], whose own lock is held only for this, or is marked for return to its lender.

mod credit;
mod loans;
mod pacer;
mod pump;
mod rate;

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::time::Instant;

use arrow::buffer::Buffer;
use parking_lot::Mutex;
use tidemill_batch::frame_buffers::{BufferPool, FrameBuffer};
use tidemill_batch::wire::{Frame, ReceivedFrame, WireHeader, WireKind};
use tidemill_control::{LinkCounters, TcpCounters};
use tidemill_net::control::ControlTree;
use tidemill_net::{Endpoint, Engine, Envelope, MemoryRegion, Rank};

pub(crate) use credit::{CreditAccount, CreditDebt, CreditGuard, CreditValve, NO_WINDOW_BYTES, WINDOW_BYTES_MIN};
pub(crate) use loans::MemoryLoans;
pub(crate) use pacer::LinkPacer;
pub(crate) use pump::{FrameHandler, ReceivePump};

use crate::observation::LinkClock;

/// How many bytes may be in flight on a link before further frames wait in its queue.
const IN_FLIGHT_BYTES_MAX: usize = 8 << 20;
/// How many messages may be in flight on a link before further frames wait.
const IN_FLIGHT_MAX: u32 = 16;
/// Frames up to this size are combined while a link is busy,
const SMALL_BYTES: usize = 16 << 10;
/// into messages of up to this size.
const BUNDLE_BYTES_MAX: usize = 64 << 10;

/// The sending half of a worker's links in one run. Index `w` is worker `w` of the run's communicator.
pub(crate) struct Links {
    pub(crate) run: u32,
    pub(crate) me: u32,
    endpoint: Endpoint,
    context: u32,
    peers: Vec<WorkerLink>,
    /// Whether any link goes over a network.
    is_paced: bool,
    /// Credit that the next pump returns; `None` when this worker's part is over.
    credits: Mutex<Option<Vec<(u32, WireHeader)>>>,
    /// Whether something waits for a pump: credits, frames about failures, forwarded frames.
    dirty: AtomicBool,
    rooms: Arc<BufferPool>,
    loans: Arc<MemoryLoans>,
    reports: ReportTree,
}

/// The workers through which this worker reports to worker 0 and receives from it: many workers cannot all connect to
/// one.
struct ReportTree {
    parent: Option<u32>,
    children: Vec<u32>,
    /// This worker, and those that report through it.
    subtree: Range<u32>,
}

impl ReportTree {
    fn new(me: u32, workers: u32, fanout: Option<u32>) -> Self {
        let tree = ControlTree::new(workers, fanout);
        let children = tree.children(Rank(me)).map(|child| child.0).collect();
        let parent = tree.parent(Rank(me)).map(|parent| parent.0);
        ReportTree { parent, children, subtree: tree.subtree(Rank(me)) }
    }
}

struct WorkerLink {
    rank: Rank,
    queue: Mutex<SendQueue>,
    in_flight_bytes: AtomicUsize,
    in_flight: AtomicU32,
    sent_bytes: AtomicU64,
    clock: LinkClock,
    /// Set if it goes over a network.
    pacer: Option<Arc<LinkPacer>>,
}

impl WorkerLink {
    fn note_queued(&self, bytes: usize) {
        self.pacer.iter().for_each(|pacer| pacer.queue(bytes));
    }

    fn note_discarded(&self, bytes: usize) {
        self.pacer.iter().for_each(|pacer| pacer.discard(bytes));
    }
}

/// What waits to be sent.
#[derive(Default)]
struct SendQueue {
    waiting: VecDeque<OutgoingFrames>,
    /// Whether this worker's part of the run is over. Anything queued afterwards would reach the next run: a function
    /// that a run has given up may continue, and send.
    closed: bool,
}

/// One or more frames that wait to be sent. Bytes are shared: a broadcast block goes to several workers.
struct OutgoingFrames {
    bytes: Buffer,
    guard: Option<Arc<CreditGuard>>,
    /// Lent frames that the bytes refer to.
    lent: Vec<Buffer>,
    /// Whether a newer frame replaces it.
    ages: bool,
}

impl OutgoingFrames {
    fn new(bytes: Buffer) -> Self {
        OutgoingFrames { bytes, guard: None, lent: Vec::new(), ages: false }
    }
}

/// Keeps a message's bytes while it is in flight, and makes room on its link afterwards.
struct SendInFlight {
    links: Arc<Links>,
    worker: u32,
    bytes: Buffer,
    /// Memory that its sender counts until the block has been passed on.
    _guard: Option<Arc<CreditGuard>>,
    /// Whether the link did not accept it at once.
    waits: bool,
}

impl Drop for SendInFlight {
    fn drop(&mut self) {
        // After completing a send, the engine steps the pump, which continues with the queue.
        let peer = &self.links.peers[self.worker as usize];
        peer.in_flight_bytes.fetch_sub(self.bytes.len(), Ordering::SeqCst);
        peer.in_flight.fetch_sub(1, Ordering::SeqCst);
        if self.waits {
            peer.clock.end_message(Instant::now());
        }
        peer.pacer.iter().for_each(|pacer| pacer.pass(self.bytes.len()));
    }
}

impl Links {
    pub(crate) fn new(
        endpoint: Endpoint,
        context: u32,
        me: u32,
        run: u32,
        workers: &[Rank],
        fanout: Option<u32>,
        loans: &Arc<MemoryLoans>,
    ) -> Arc<Self> {
        let engine = endpoint.lock();
        let peer = |&rank| WorkerLink {
            rank,
            queue: Mutex::default(),
            in_flight_bytes: AtomicUsize::new(0),
            in_flight: AtomicU32::new(0),
            sent_bytes: AtomicU64::new(0),
            clock: LinkClock::default(),
            pacer: engine.is_network_link(rank).then(|| Arc::new(LinkPacer::new(engine.link_info(rank)))),
        };
        let peers: Vec<WorkerLink> = workers.iter().map(peer).collect();
        drop(engine);
        Arc::new(Links {
            run,
            me,
            endpoint,
            context,
            is_paced: peers.iter().any(|peer| peer.pacer.is_some()),
            peers,
            credits: Mutex::new(Some(Vec::new())),
            dirty: AtomicBool::new(loans.has_returns()),
            rooms: Arc::default(),
            loans: Arc::clone(loans),
            reports: ReportTree::new(me, workers.len() as u32, fanout),
        })
    }

    pub(crate) fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    pub(crate) fn workers(&self) -> u32 {
        self.peers.len() as u32
    }

    /// A buffer for a frame to these workers, which may pass it on.
    pub(crate) fn buffer_for(&self, len: usize, to: impl Iterator<Item = u32>, passed_on: bool) -> FrameBuffer {
        self.loans.buffer(len, to, passed_on).unwrap_or_else(|| self.buffer(len))
    }

    /// A buffer for what only this worker reads.
    fn buffer(&self, len: usize) -> FrameBuffer {
        self.rooms.buffer(len)
    }

    /// The other workers.
    pub(crate) fn others(&self) -> impl Iterator<Item = u32> + use<> {
        let me = self.me;
        (0..self.workers()).filter(move |&worker| worker != me)
    }

    pub(crate) fn rank(&self, worker: u32) -> Rank {
        self.peers[worker as usize].rank
    }

    /// The clock that counts times of the link to a worker.
    pub(crate) fn clock(&self, worker: u32) -> &LinkClock {
        &self.peers[worker as usize].clock
    }

    /// What the links have carried so far, for those that have carried anything, and how long copies of this worker
    /// have waited for each other. Locks the engine.
    pub(crate) fn counters(&self) -> Vec<LinkCounters> {
        let (engine, now) = (self.endpoint.lock(), Instant::now());
        let counters = |worker: u32| {
            let peer = &self.peers[worker as usize];
            let info = if worker == self.me { None } else { engine.link_info(peer.rank) };
            let times = peer.clock.times(now);
            let waiting: usize = peer.queue.lock().waiting.iter().map(|waiting| waiting.bytes.len()).sum();
            let in_flight = waiting + peer.in_flight_bytes.load(Ordering::SeqCst);
            LinkCounters {
                peer: worker,
                sent_bytes: peer.sent_bytes.load(Ordering::Relaxed),
                queued_bytes: in_flight as u64 + info.map_or(0, |info| info.buffered_bytes),
                busy_ns: times.busy_ns,
                link_wait_ns: times.link_wait_ns,
                credit_wait_ns: times.credit_wait_ns,
                tcp: info.map(|info| TcpCounters {
                    delivery_bytes_s: info.delivery_bytes_s,
                    app_limited: info.app_limited,
                    rtt_us: info.rtt_us,
                    min_rtt_us: info.min_rtt_us,
                    acked_bytes: info.acked_bytes,
                    busy_us: info.busy_us,
                    receiver_limited_us: info.receiver_limited_us,
                    buffer_limited_us: info.buffer_limited_us,
                    retransmits: info.retransmits,
                }),
            }
        };
        let is_used = |link: &LinkCounters| link.sent_bytes > 0 || link.credit_wait_ns > 0;
        (0..self.workers()).map(counters).filter(is_used).collect()
    }

    /// The pacer of the link to a worker, if it goes over a network.
    pub(crate) fn pacer(&self, worker: u32) -> Option<&Arc<LinkPacer>> {
        self.peers[worker as usize].pacer.as_ref()
    }

    /// The worker with a rank.
    pub(crate) fn worker(&self, rank: Rank) -> Option<u32> {
        self.peers.iter().position(|peer| peer.rank == rank).map(|worker| worker as u32)
    }

    /// Sends a frame, at once if the link has room. Locks the engine.
    pub(crate) fn send(self: &Arc<Self>, worker: u32, frame: Frame) {
        self.send_shared(worker, frame.into_buffer());
    }

    /// Sends a frame that others receive too. Locks the engine.
    pub(crate) fn send_shared(self: &Arc<Self>, worker: u32, frame: Buffer) {
        let outgoing = match self.loans.offer(worker, &frame, self.run) {
            Some(offer) => OutgoingFrames { lent: vec![frame], ..OutgoingFrames::new(offer.into_buffer()) },
            None => OutgoingFrames::new(frame),
        };
        self.push(worker, outgoing);
        let mut engine = self.endpoint.lock();
        self.pump_peer(&mut engine, worker);
        engine.flush();
    }

    /// Queues a frame for the next pump. Does not lock the engine.
    fn enqueue(&self, worker: u32, frame: Buffer) {
        self.push(worker, OutgoingFrames::new(frame));
        self.mark_dirty();
    }

    /// Queues a frame for worker 0, which passes through others. Not for worker 0 itself. Does not lock the engine.
    /// Returns the frame, which is shared until it has been sent.
    pub(crate) fn report(&self, header: WireHeader, body: &[Buffer]) -> Buffer {
        let header = WireHeader { source: self.me, ..header };
        let frame = Frame::new(&header, body).into_buffer();
        self.enqueue(self.above(), frame.clone());
        frame
    }

    /// Like [`Links::report`], for what is useless once there is a newer one: at most one of these waits, however
    /// long the link is busy.
    pub(crate) fn report_newest(&self, header: WireHeader, body: &[Buffer]) {
        let header = WireHeader { source: self.me, ..header };
        self.enqueue_newest(self.above(), Frame::new(&header, body));
    }

    /// Like [`Links::report`], even after the last frame of this worker's part: others report through it.
    pub(crate) fn report_last(&self, header: WireHeader, body: &[Buffer]) {
        let header = WireHeader { source: self.me, ..header };
        self.enqueue_last(self.above(), Frame::new(&header, body));
    }

    /// This worker, and those that report through it.
    pub(crate) fn subtree(&self) -> Range<u32> {
        self.reports.subtree.clone()
    }

    fn above(&self) -> u32 {
        self.reports.parent.expect("worker 0 does not report to itself")
    }

    /// Passes on a report of another worker, within a pump, even when this worker's part is over.
    pub(crate) fn pass_up(&self, frame: &ReceivedFrame) {
        self.push_last(self.above(), frame.whole.clone());
    }

    /// On worker 0: queues a frame for all others, each of which passes it on. Does not lock the engine.
    pub(crate) fn announce(&self, header: WireHeader, body: &[Buffer]) {
        let frame = Frame::new(&header, body).into_buffer();
        self.reports.children.iter().for_each(|&child| self.push(child, OutgoingFrames::new(frame.clone())));
        self.mark_dirty();
    }

    /// Passes on what worker 0 tells all, within a pump, even when this worker's part is over.
    pub(crate) fn pass_down(&self, frame: &ReceivedFrame) {
        self.reports.children.iter().for_each(|&child| self.push_last(child, frame.whole.clone()));
    }

    /// Appends something to the queue, unless it is closed.
    fn push(&self, worker: u32, outgoing: OutgoingFrames) {
        let peer = &self.peers[worker as usize];
        let mut queue = peer.queue.lock();
        // Dropping it may take a lock, so do not do that under this lock.
        match queue.closed {
            true => drop(queue),
            false => {
                peer.note_queued(outgoing.bytes.len());
                queue.waiting.push_back(outgoing);
            }
        }
    }

    fn enqueue_newest(&self, worker: u32, frame: Frame) {
        let newest = OutgoingFrames { ages: true, ..OutgoingFrames::new(frame.into_buffer()) };
        let peer = &self.peers[worker as usize];
        let mut queue = peer.queue.lock();
        if let Some(waiting) = queue.waiting.iter_mut().find(|waiting| waiting.ages) {
            peer.note_queued(newest.bytes.len());
            peer.note_discarded(waiting.bytes.len());
            *waiting = newest;
        } else if !queue.closed {
            peer.note_queued(newest.bytes.len());
            queue.waiting.push_back(newest);
        }
        drop(queue);
        self.mark_dirty();
    }

    /// Queues a frame that came from elsewhere, within a pump.
    pub(crate) fn forward(&self, worker: u32, bytes: Buffer, guard: Option<Arc<CreditGuard>>) {
        self.push(worker, OutgoingFrames { guard, ..OutgoingFrames::new(bytes) });
    }

    /// Drops what waits; what is in flight continues.
    pub(crate) fn discard_queued(&self) {
        for peer in &self.peers {
            let dropped = std::mem::take(&mut peer.queue.lock().waiting);
            peer.note_discarded(dropped.iter().map(|dropped| dropped.bytes.len()).sum());
            drop(dropped);
        }
        if let Some(credits) = self.credits.lock().as_mut() {
            credits.clear();
        }
    }

    /// Stops sending, except what is queued already, and [`Links::enqueue_last`]. Drops credit that is still owed:
    /// every stream into this worker has ended.
    pub(crate) fn close(&self) {
        *self.credits.lock() = None;
        self.peers.iter().for_each(|peer| peer.queue.lock().closed = true);
    }

    /// Queues a frame about the end of the run for the next pump, even after the last frame of this worker's part.
    /// Does not lock the engine.
    pub(crate) fn enqueue_last(&self, worker: u32, frame: Frame) {
        self.push_last(worker, frame.into_buffer());
        self.mark_dirty();
    }

    fn push_last(&self, worker: u32, frame: Buffer) {
        let peer = &self.peers[worker as usize];
        peer.note_queued(frame.len());
        peer.queue.lock().waiting.push_back(OutgoingFrames::new(frame));
    }

    /// Whether this worker has sent everything that belongs to its part of the run.
    pub(crate) fn is_closed(&self) -> bool {
        self.credits.lock().is_none()
    }

    /// Sends a receiver's message to the sender of a stream. Does not lock the engine.
    fn notify_sender(&self, worker: u32, kind: WireKind, (edge, source, target): (u32, u32, u32), bytes: u64) {
        let header = WireHeader { edge, source, target, rows: bytes, ..WireHeader::new(kind, self.run) };
        if let Some(credits) = self.credits.lock().as_mut() {
            credits.push((worker, header));
            self.mark_dirty();
        }
    }

    /// Records that borrowed frames must be returned. Does not lock the engine.
    fn queue_return(&self) {
        if !self.is_closed() {
            self.mark_dirty();
        }
    }

    fn mark_dirty(&self) {
        if !self.dirty.swap(true, Ordering::SeqCst) {
            self.endpoint.rouse_driver();
        }
    }

    /// Whether a pump is due. The worker's I/O thread checks this in every round of its wait.
    #[inline]
    pub(crate) fn is_dirty(&self) -> bool {
        self.dirty.load(Ordering::Relaxed)
    }

    /// Runs [`Links::pump`] if it is due.
    #[inline]
    pub(crate) fn pump_if_due(self: &Arc<Self>, engine: &mut Engine) {
        if self.is_dirty() {
            self.pump(engine);
        }
    }

    /// Whether nothing waits and nothing is in flight.
    pub(crate) fn is_empty(&self) -> bool {
        !self.is_dirty()
            && self.peers.iter().all(|p| p.in_flight.load(Ordering::SeqCst) == 0 && p.queue.lock().waiting.is_empty())
    }

    /// Pushes what the links accept.
    pub(crate) fn pump(self: &Arc<Self>, engine: &mut Engine) {
        if self.dirty.swap(false, Ordering::SeqCst) {
            // Stays locked meanwhile: no credit may follow the message that ends this worker's part.
            let mut credits = self.credits.lock();
            if let Some(credits) = credits.as_mut() {
                let credits = credits.drain(..).map(|(worker, header)| (worker, Frame::header_only(&header)));
                for (worker, frame) in credits.chain(self.loans.to_return(self.run)) {
                    self.push(worker, OutgoingFrames::new(frame.into_buffer()));
                }
            }
        }
        self.others().for_each(|worker| self.pump_peer(engine, worker));
    }

    fn pump_peer(self: &Arc<Self>, engine: &mut Engine, worker: u32) {
        let peer = &self.peers[worker as usize];
        while peer.in_flight.load(Ordering::SeqCst) < IN_FLIGHT_MAX
            && peer.in_flight_bytes.load(Ordering::SeqCst) < IN_FLIGHT_BYTES_MAX
        {
            let Some(message) = next_message(&mut peer.queue.lock().waiting) else { break };
            self.post(engine, worker, message);
        }
        if let Some(pacer) = &peer.pacer {
            self.look(engine, peer.rank, pacer);
        }
    }

    /// Lets a link's pacer look at the link, if it is time.
    fn look(&self, engine: &Engine, rank: Rank, pacer: &LinkPacer) {
        let now = Instant::now();
        if pacer.is_look_due(now)
            && let Some(unsent_bytes) = pacer.look(now, engine.link_info(rank).as_ref())
        {
            engine.limit_unsent(rank, unsent_bytes as u32);
        }
    }

    /// The same for all links. Call it several times a second: nothing else shows what the kernel has sent meanwhile.
    pub(crate) fn look_at_links(&self) {
        if self.is_paced {
            let engine = self.endpoint.lock();
            for peer in &self.peers {
                peer.pacer.iter().for_each(|pacer| self.look(&engine, peer.rank, pacer));
            }
        }
    }

    fn post(
        self: &Arc<Self>,
        engine: &mut Engine,
        worker: u32,
        OutgoingFrames { bytes, guard, lent, .. }: OutgoingFrames,
    ) {
        lent.into_iter().for_each(|frame| self.loans.lend(worker, frame));
        let peer = &self.peers[worker as usize];
        peer.in_flight_bytes.fetch_add(bytes.len(), Ordering::SeqCst);
        peer.in_flight.fetch_add(1, Ordering::SeqCst);
        peer.sent_bytes.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        let mut message = SendInFlight { links: Arc::clone(self), worker, bytes, _guard: guard, waits: false };
        let group = engine.new_group();
        let envelope = Envelope { context: self.context, tag: 0, seq: 0, signature: 0 };
        // SAFETY: `message` owns the bytes, which do not move when it is moved; the engine keeps it until the send is
        // over, or the send is over already.
        unsafe { engine.post_send(group, peer.rank, &envelope, MemoryRegion::of(&message.bytes)) };
        if engine.is_complete(group) {
            // A send that fails at once does so because the job has failed, which every wait learns by itself.
            let _ = engine.take(group);
        } else {
            message.waits = true;
            peer.clock.begin_message(Instant::now());
            engine.detach(group, Some(Box::new(message)));
        }
    }
}

/// The next message of a queue: its first frame, with the small ones that follow.
fn next_message(queue: &mut VecDeque<OutgoingFrames>) -> Option<OutgoingFrames> {
    let mut first = queue.pop_front()?;
    let mut len = first.bytes.len();
    let mut count = 0;
    if len <= SMALL_BYTES {
        for next in queue.iter().take_while(|next| next.bytes.len() <= SMALL_BYTES) {
            if len + next.bytes.len() > BUNDLE_BYTES_MAX {
                break;
            }
            len += next.bytes.len();
            count += 1;
        }
    }
    if count == 0 {
        return Some(first);
    }
    let mut message = Vec::with_capacity(len);
    message.extend_from_slice(&first.bytes);
    for mut next in queue.drain(..count) {
        message.extend_from_slice(&next.bytes);
        first.lent.append(&mut next.lent);
    }
    Some(OutgoingFrames { lent: first.lent, ..OutgoingFrames::new(Buffer::from(message)) })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A copy may continue sending after its run was given up: that must neither delay the end nor reach the next
    /// run.
    #[test]
    fn nothing_follows_the_last_frame_of_a_run() {
        let endpoints = Endpoint::in_process(2).unwrap();
        let links = Links::new(endpoints[1].clone(), 9, 1, 0, &[Rank(0), Rank(1)], None, &Arc::default());
        let frame = |kind| Frame::header_only(&WireHeader::new(kind, 0));
        let queued = || links.peers[0].queue.lock().waiting.len();
        links.enqueue(0, frame(WireKind::Saved).into_buffer());
        assert_eq!(queued(), 1);
        links.close();
        links.enqueue_last(0, frame(WireKind::Finish));
        links.enqueue(0, frame(WireKind::Saved).into_buffer());
        links.enqueue_newest(0, frame(WireKind::Status));
        links.forward(0, frame(WireKind::Batch).into_buffer(), None);
        assert_eq!(queued(), 2);
        links.send(0, frame(WireKind::Batch));
        assert_eq!(
            (queued(), links.peers[0].in_flight.load(Ordering::SeqCst)),
            (0, 0),
            "both have left, as one message"
        );
        endpoints.iter().for_each(Endpoint::leave);
    }

    /// If the link accepts nothing, such frames would pile up; a frame that replaced rows would lose them.
    #[test]
    fn only_the_newest_of_frames_that_age_waits() {
        let endpoints = Endpoint::in_process(2).unwrap();
        let links = Links::new(endpoints[1].clone(), 9, 1, 0, &[Rank(0), Rank(1)], None, &Arc::default());
        let frame = |kind, body: &[u8]| Frame::new(&WireHeader::new(kind, 0), &[Buffer::from(body)]);
        let waits = || -> Vec<Buffer> {
            links.peers[0].queue.lock().waiting.iter().map(|waiting| waiting.bytes.clone()).collect()
        };
        links.enqueue(0, frame(WireKind::Saved, b"first").into_buffer());
        links.enqueue_newest(0, frame(WireKind::Status, b"old"));
        links.enqueue(0, frame(WireKind::Saved, b"last").into_buffer());
        links.enqueue_newest(0, frame(WireKind::Status, b"new"));
        let expected =
            [(WireKind::Saved, &b"first"[..]), (WireKind::Status, &b"new"[..]), (WireKind::Saved, &b"last"[..])];
        assert_eq!(waits(), expected.map(|(kind, body)| frame(kind, body).into_buffer()));
        endpoints.iter().for_each(Endpoint::leave);
    }

    /// Reordered frames would be an error, and copying large frames again a waste.
    #[test]
    fn small_frames_leave_together_and_in_order() {
        let sizes = [64, 128, 20_000, 64, 16_384, 16_384, 16_384, 16_384, 64];
        let mut queue: VecDeque<OutgoingFrames> = sizes
            .iter()
            .enumerate()
            .map(|(at, &size)| OutgoingFrames::new(Buffer::from(vec![at as u8; size])))
            .collect();
        let mut lens = Vec::new();
        let mut seen = Vec::new();
        while let Some(OutgoingFrames { bytes, .. }) = next_message(&mut queue) {
            lens.push(bytes.len());
            seen.extend_from_slice(&bytes);
        }
        assert_eq!(lens, [192, 20_000, 64 + 3 * 16_384, 16_384 + 64]);
        assert!(seen.is_sorted());
        assert_eq!(seen.len(), sizes.iter().sum::<usize>());
    }
}
