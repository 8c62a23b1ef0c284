//! The engine: turns messages into frames and frames into messages, over the transports that the job opened.
//!
//! - Small messages are *eager*: one frame, straight from the sender's buffer. Each link has a credit of eager bytes,
//!   spent by sending and returned when the receiver has received the message, so a receiver that does not receive
//!   holds at most that much per sender.
//! - Larger messages, and any message without credit, are *offered*: the receiver answers when a receive matches, and
//!   then copies them straight out of the sender's memory if the transport can, and otherwise receives them in
//!   pieces.
//!
//! `Engine` is a plain state machine behind one lock: callers post ops and call `progress`; nothing here blocks.

use std::any::Any;
use std::collections::VecDeque;
use std::time::Duration;

use super::contexts::ContextTable;
use super::core::{EngineCore, FrameLanding, MESSAGE_COST_BYTES, PeerLink, copy_message, credit_bytes, new_recv};
use super::faults::FaultRegistry;
use super::matching::{MatchPattern, MessageBody, UnexpectedMessage};
use super::ops::{FramePayload, GroupId, MemoryRegion, OpIndex, OpTable, PendingOp, QueuedFrame, ReceiveStatus};
use super::transfer::PullQueue;
use crate::{FrameHeader, FrameKind, NetError, OfferPayload, PushResult, Rank, Transport, TransportError};

/// The envelope of a message: everything that a receive matches on, and the collective's fingerprint.
#[derive(Clone, Copy, Debug, Default)]
pub struct Envelope {
    /// The communicator's context.
    pub context: u32,
    /// The user tag, 0 for collectives.
    pub tag: i32,
    /// The collective number, 0 for point to point.
    pub seq: u32,
    /// The fingerprint of the collective call, 0 for point to point.
    pub signature: u32,
}

impl Envelope {
    fn header(&self, kind: FrameKind, len: u64) -> FrameHeader {
        FrameHeader {
            context: self.context,
            tag: self.tag,
            seq: self.seq,
            signature: self.signature,
            ..FrameHeader::new(kind, len)
        }
    }
}

/// A message that a matching probe took out of the queue; only [`Engine::post_matched`] can receive it.
pub struct ProbedMessage {
    source: Rank,
    message: UnexpectedMessage,
}

impl ProbedMessage {
    /// The message's source, tag and length.
    pub fn status(&self) -> ReceiveStatus {
        let len = match &self.message.body {
            MessageBody::Eager(data) => data.len() as u64,
            MessageBody::Offer { total_len, .. } => *total_len,
            MessageBody::Landing => unreachable!("a landing message is not matched"),
        };
        ReceiveStatus { source: self.source, tag: self.message.header.tag, len }
    }
}

/// Work in several rounds that advances whenever anyone drives the engine: a non-blocking collective.
pub trait EngineTask: Send {
    /// Does what is possible now. Returns `Some` when it has finished.
    fn step(&mut self, engine: &mut Engine) -> Option<Result<(), NetError>>;

    /// What it currently waits for, for stall reports; `None` stands for any worker.
    fn waiting_for(&self, engine: &Engine) -> Vec<Option<Rank>>;
}

/// A collective call that met a different one: the other worker, and its fingerprint. The communicator words the
/// error.
#[derive(Clone, Copy, Debug)]
pub struct CallMismatch {
    /// The context of the calls.
    pub context: u32,
    /// The collective number.
    pub seq: u32,
    /// The worker whose call differs from ours.
    pub rank: Rank,
    /// Its call, if already known; otherwise this worker asks for it.
    pub theirs: Option<[u64; 2]>,
    /// The length of a message that it sent, and the length expected here: the calls differ only in counts that only
    /// the two ends of a message know.
    pub lengths: Option<(u64, u64)>,
}

/// The phases in which a worker leaves, in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LeavePhase {
    No,
    /// Nothing more is posted. Matched receives finish, so that their senders may reuse their memory.
    Settling,
    /// Tells all workers with a link to this one. Ends when everything sent is received, or its receiver leaves too.
    Owing,
    /// The transports hand over what they still hold.
    Finishing,
}

/// The state machine that the module describes.
pub struct Engine {
    pub(super) tasks: Vec<(OpIndex, Box<dyn EngineTask>)>,
    pub(super) transports: Vec<Box<dyn Transport>>,
    pub(super) core: EngineCore,
    pub(super) faults: std::sync::Arc<FaultRegistry>,
    pub(super) faults_seen: u32,
    /// After a fault that ends the job nothing moves any more: the buffers of failed calls may be gone.
    pub(super) dead: bool,
    /// How far leaving the job has progressed.
    pub(super) leaving: LeavePhase,
    /// A mismatch was found and is being explained; meanwhile no call returns a result.
    pub(super) verdict_pending: bool,
    /// Something moved outside `progress`, by a caller's own means or by posting. It counts as progress; otherwise a
    /// task that waits for exactly that would never be stepped.
    pub(super) moved_aside: bool,
    /// `OpTable::completions` when tasks were last stepped.
    pub(super) stepped_at: u64,
    /// When a call last drove this engine, on the coarse monotonic clock.
    pub(super) driven_at: Duration,
    pub(super) drives: u32,
}

/// The kernel's coarse monotonic clock: a resolution of a few milliseconds at a cost of a few nanoseconds.
pub(super) fn coarse_now() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is valid for writing; the clock exists on every Linux this crate runs on.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC_COARSE, &raw mut time) };
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

impl Engine {
    /// An engine for worker `rank`; `routes[r]` is the index of the transport that reaches worker `r`. Endpoints
    /// create their own; this is for callers that drive engines by hand, as the simulator does.
    pub fn new(
        rank: Rank,
        transports: Vec<Box<dyn Transport>>,
        routes: &[Option<usize>],
        faults: std::sync::Arc<FaultRegistry>,
    ) -> Self {
        let links = routes
            .iter()
            .enumerate()
            .map(|(peer, &transport)| {
                let limits = transport.map(|t| transports[t].limits(Rank(peer as u32)));
                let eager_bytes_max = limits.map_or(4096, |l| l.eager_bytes_max.min(l.frame_bytes_max));
                let credit_max = credit_bytes(eager_bytes_max, routes.len() - 1);
                PeerLink {
                    transport,
                    queue: VecDeque::new(),
                    streams: VecDeque::new(),
                    pulls: PullQueue::default(),
                    streaming: false,
                    credit: credit_max,
                    credit_max,
                    owed: 0,
                    landing: FrameLanding::Nothing,
                    eager_bytes_max,
                    frame_bytes_max: limits.map_or(usize::MAX, |l| l.frame_bytes_max),
                    single_copy: limits.is_none_or(|l| l.single_copy),
                    claims: transport.and_then(|t| transports[t].claims(Rank(peer as u32))),
                    claimed: false,
                    down: None,
                    left: false,
                    gone: false,
                    told_left: false,
                }
            })
            .collect();
        let core = EngineCore {
            rank,
            ops: OpTable::default(),
            contexts: ContextTable::default(),
            links,
            busy: Vec::new(),
            pulling: Vec::new(),
            helps: Vec::new(),
            pool: Vec::new(),
            contradictions: Vec::new(),
            lost: Vec::new(),
        };
        Engine {
            tasks: Vec::new(),
            transports,
            core,
            faults,
            faults_seen: 0,
            dead: false,
            leaving: LeavePhase::No,
            verdict_pending: false,
            moved_aside: false,
            stepped_at: 0,
            driven_at: coarse_now(),
            drives: 0,
        }
    }

    /// Creates an empty group, which is complete.
    pub fn new_group(&mut self) -> GroupId {
        self.core.ops.new_group()
    }

    /// Whether the group has no pending op.
    pub fn is_complete(&self, group: GroupId) -> bool {
        self.core.ops.is_complete(group)
    }

    /// Takes the outcome of a complete group and frees the handle.
    ///
    /// # Errors
    /// The first error of any of its ops.
    pub fn take(&mut self, group: GroupId) -> Result<ReceiveStatus, NetError> {
        self.core.ops.take(group)
    }

    /// The first error so far of a group that stays in use.
    pub fn take_error(&mut self, group: GroupId) -> Option<NetError> {
        self.core.ops.take_error(group)
    }

    /// Gives up on a group: receives that have not begun are withdrawn, the rest runs on in the background, and
    /// `keepalive` (the buffers' owner) is dropped when it has finished.
    pub fn detach(&mut self, group: GroupId, keepalive: Option<Box<dyn Any + Send>>) {
        self.cancel_recvs(group);
        self.core.ops.detach(group, keepalive);
    }

    /// Withdraws receives of the group that no message has matched yet. Returns whether there were any; they complete
    /// with an empty status.
    pub fn cancel_recvs(&mut self, group: GroupId) -> bool {
        let mut any = false;
        for index in self.core.ops.indices() {
            if matches!(self.core.ops.get_mut(index), Some(PendingOp::Recv { group: g, .. }) if *g == group)
                && self.core.contexts.iter_mut().any(|c| c.unpost(index))
            {
                self.core.ops.complete(index, Ok(ReceiveStatus::default()));
                any = true;
            }
        }
        any
    }

    /// Whether pending ops may need progress while no call blocks.
    pub(super) fn has_pending(&self) -> bool {
        self.core.ops.pending_ops > 0 || !self.core.busy.is_empty()
    }

    /// Sends `region` to `dest`. Once the group is complete, the memory may be reused.
    ///
    /// # Safety
    /// `region` is readable until `group` is complete (or, after `detach`, until its keepalive is dropped).
    pub unsafe fn post_send(&mut self, group: GroupId, dest: Rank, envelope: &Envelope, region: MemoryRegion) {
        // SAFETY: by this function's contract.
        unsafe { self.post_send_as(group, dest, envelope, region, true) }
    }

    /// Like [`Engine::post_send`], but the group completes only when a receive has matched the message.
    ///
    /// # Safety
    /// As [`Engine::post_send`].
    pub unsafe fn post_send_synchronous(
        &mut self,
        group: GroupId,
        dest: Rank,
        envelope: &Envelope,
        region: MemoryRegion,
    ) {
        // SAFETY: by this function's contract.
        unsafe { self.post_send_as(group, dest, envelope, region, false) }
    }

    #[inline]
    unsafe fn post_send_as(
        &mut self,
        group: GroupId,
        dest: Rank,
        envelope: &Envelope,
        region: MemoryRegion,
        unasked: bool,
    ) {
        if self.core.links[dest.index()].left {
            self.core.ops.note(group, Err(self.faults.fatal().unwrap_or(NetError::PeerLeft { rank: dest })));
            return;
        }
        if let Some(error) = self.refusal() {
            self.core.ops.note(group, Err(error));
            return;
        }
        let link = &mut self.core.links[dest.index()];
        let Some(transport) = link.transport else {
            return self.send_to_self(group, envelope, region, unasked);
        };
        let cost = region.len as u64 + MESSAGE_COST_BYTES;
        if unasked && region.len <= link.eager_bytes_max && cost <= link.credit {
            link.credit -= cost;
            let header = envelope.header(FrameKind::Eager, region.len as u64);
            let payload = FramePayload::Region(region);
            let mut sent = 0;
            if link.queue.is_empty() && link.streams.is_empty() {
                match self.transports[transport].push(dest, &header, payload.as_slice(), &mut sent) {
                    Ok(PushResult::Sent) => return,
                    Ok(PushResult::Blocked) => {}
                    Err(error) => self.core.lost.push(error),
                }
            }
            let op = self.core.ops.insert(PendingOp::Send { group, dest, region });
            self.core.enqueue(dest, QueuedFrame { header, payload, sent, completes: Some(op) });
        } else {
            let op = self.core.ops.insert(PendingOp::Send { group, dest, region });
            let header =
                FrameHeader { token: op, ..envelope.header(FrameKind::Offer, size_of::<OfferPayload>() as u64) };
            let offer = OfferPayload { total_len: region.len as u64, addr: region.ptr as u64 };
            let payload = FramePayload::inline(bytemuck::bytes_of(&offer));
            self.core.enqueue(dest, QueuedFrame { header, payload, sent: 0, completes: None });
            self.drain_links();
        }
    }

    fn send_to_self(&mut self, group: GroupId, envelope: &Envelope, region: MemoryRegion, unasked: bool) {
        let me = self.core.rank;
        // No transport will report an arrival, but a task may be waiting for it.
        self.moved_aside = true;
        if unasked && region.len <= self.core.links[me.index()].eager_bytes_max {
            let header = envelope.header(FrameKind::Eager, region.len as u64);
            self.core.eager(me, &header, FramePayload::Region(region).as_slice());
        } else {
            let op = self.core.ops.insert(PendingOp::Send { group, dest: me, region });
            let header =
                FrameHeader { token: op, ..envelope.header(FrameKind::Offer, size_of::<OfferPayload>() as u64) };
            self.core.offer(me, &header, OfferPayload { total_len: region.len as u64, addr: region.ptr as u64 });
            self.step_pulls();
        }
    }

    /// Receives one message that matches `pattern` into `region`.
    ///
    /// # Safety
    /// `region` is writable, and nobody else touches it, until `group` is complete.
    pub unsafe fn post_recv(&mut self, group: GroupId, context: u32, pattern: MatchPattern, region: MemoryRegion) {
        if let Some(error) = self.refusal() {
            self.core.ops.note(group, Err(error));
            return;
        }
        let (source, unexpected) = match self.core.take_unexpected(context, &pattern) {
            Some(found) => found,
            None => {
                if let Some(error) = self.never(context, &pattern) {
                    self.core.ops.note(group, Err(error));
                    return;
                }
                let op = self.core.ops.insert(new_recv(group, region));
                self.core.context(context).post(op, pattern);
                return;
            }
        };
        self.receive_unexpected(group, source, unexpected, region);
    }

    /// Receives a message that a matching probe has taken. Same safety requirement as [`Engine::post_recv`].
    ///
    /// # Safety
    /// As for [`Engine::post_recv`].
    pub unsafe fn post_matched(&mut self, group: GroupId, matched: ProbedMessage, region: MemoryRegion) {
        self.receive_unexpected(group, matched.source, matched.message, region);
    }

    fn receive_unexpected(
        &mut self,
        group: GroupId,
        source: Rank,
        unexpected: UnexpectedMessage,
        region: MemoryRegion,
    ) {
        match unexpected.body {
            MessageBody::Eager(data) => {
                self.core.check_length_agreed(source, &unexpected.header, data.len() as u64, region.len);
                let result = copy_message(source, unexpected.header.tag, &data, region);
                self.core.ops.note(group, result);
                self.core.return_credit(source, data.len() as u64);
                self.core.recycle(data);
                if !self.core.busy.is_empty() {
                    self.drain_links();
                }
            }
            MessageBody::Offer { .. } if self.core.links[source.index()].gone => {
                // It ended without waiting until this was received.
                self.core.ops.note(group, Err(NetError::PeerLeft { rank: source }));
            }
            MessageBody::Offer { total_len, addr } => {
                let op = self.core.ops.insert(new_recv(group, region));
                self.core.accept(op, source, &unexpected.header, OfferPayload { total_len, addr });
                self.drain_links();
                self.step_pulls();
            }
            MessageBody::Landing => unreachable!("find_unexpected skips landing messages"),
        }
    }

    /// The source, tag and length of the first message that matches `pattern`, which stays in the queue.
    pub fn peek(&mut self, context: u32, pattern: &MatchPattern) -> Option<ReceiveStatus> {
        let (source, header, len) = self.core.context(context).peek_unexpected(pattern)?;
        Some(ReceiveStatus { source, tag: header.tag, len })
    }

    /// Takes the first message that matches `pattern` out of matching.
    pub fn take_matched(&mut self, context: u32, pattern: &MatchPattern) -> Option<ProbedMessage> {
        let (source, message) = self.core.take_unexpected(context, pattern)?;
        Some(ProbedMessage { source, message })
    }

    /// Whether a receive with `pattern` can never be served, because the possible senders have left or have finished
    /// with the communicator.
    #[inline]
    pub fn never(&mut self, context: u32, pattern: &MatchPattern) -> Option<NetError> {
        let gone = match pattern.source {
            Some(rank) => self.core.links[rank.index()].left.then_some(rank),
            None => self.core.all_left(),
        };
        if let Some(rank) = gone {
            return Some(NetError::PeerLeft { rank });
        }
        let ended = self.core.context(context).ended(pattern.source);
        ended.map(|rank| NetError::PeerEnded { rank, call: String::new() })
    }

    /// Records that collective `seq` of `context` begins here with fingerprint `signature`. `call` describes it, in
    /// the communicator's own code; [`Engine::call`] returns it.
    pub fn begin_collective(&mut self, context: u32, seq: u32, signature: u32, call: [u64; 2]) {
        if let Some(rank) = self.core.context(context).begin_collective(seq, signature, call) {
            self.core.contradictions.push(CallMismatch { context, seq, rank, theirs: None, lengths: None });
        }
    }

    /// Records a mismatch that a caller found by other means than a message.
    pub fn contradict(&mut self, contradiction: CallMismatch) {
        self.core.contradictions.push(contradiction);
    }

    /// The call that was started here as collective `seq` of `context`, if it was recent.
    pub fn call(&mut self, context: u32, seq: u32) -> Option<[u64; 2]> {
        self.core.context(context).call(seq)
    }

    /// Records that a call drives the engine now.
    #[inline]
    pub(super) fn note_drive(&mut self) {
        self.driven_at = coarse_now();
        self.drives = self.drives.wrapping_add(1);
    }

    /// How often calls have driven this engine.
    pub(super) fn drives(&self) -> u32 {
        self.drives
    }

    pub(super) fn idle_for(&self) -> Duration {
        coarse_now().saturating_sub(self.driven_at)
    }

    pub(super) fn is_dead(&self) -> bool {
        self.dead
    }

    pub(super) fn wait_for_verdict(&mut self) {
        self.verdict_pending = true;
    }

    #[inline]
    pub(super) fn is_waiting_for_verdict(&self) -> bool {
        self.verdict_pending
    }

    /// Whether a collective call met a different one. Results since then cannot be trusted.
    #[inline]
    pub(super) fn is_suspect(&self) -> bool {
        !self.core.contradictions.is_empty()
    }

    /// The next collective call that met a different one.
    pub(super) fn take_contradiction(&mut self) -> Option<CallMismatch> {
        self.core.contradictions.pop()
    }

    /// Closes the context of an ended communicator: drops its stray messages, and answers their senders as if the
    /// messages had been received.
    pub fn close_context(&mut self, context: u32) {
        self.core.close_context(context);
    }

    /// Records that this worker has finished with a communicator that it shares with `others`: calls there that need
    /// it end with [`NetError::PeerEnded`]. What it has sent, and the receives it has posted, proceed normally.
    pub fn end_context(&mut self, context: u32, others: &[Rank]) {
        if self.refusal().is_none() {
            self.core.end_context(context, others);
            self.drain_links();
        }
    }

    /// Marks the context as used (again): messages for it are kept.
    pub fn open_context(&mut self, context: u32) {
        self.core.contexts.open(context);
    }

    /// What the pending ops of a group, or the task behind it, wait for; `None` stands for any worker.
    pub fn waiting_for(&self, group: GroupId) -> Vec<Option<Rank>> {
        if let Some((_, task)) = self.tasks.iter().find(|(op, _)| self.core.ops.belongs(*op, group)) {
            return task.waiting_for(self);
        }
        let contexts = &self.core.contexts;
        self.core.ops.waiting_for(group, |op| contexts.iter().find_map(|c| c.posted_source(op)))
    }

    /// Moves what can move without waiting. Returns whether anything did.
    pub fn progress(&mut self) -> bool {
        if self.dead {
            return false;
        }
        if self.faults.epoch() != self.faults_seen {
            self.look_at_faults();
            if self.dead {
                return true;
            }
        }
        let mut moved = std::mem::take(&mut self.moved_aside);
        for transport in &mut self.transports {
            moved |= transport.poll(&mut self.core);
        }
        if !self.core.busy.is_empty() {
            moved |= self.drain_links();
        }
        if !self.core.pulling.is_empty() {
            moved |= self.step_pulls();
        }
        if !self.core.helps.is_empty() {
            moved |= self.step_helps();
        }
        if !self.core.lost.is_empty() {
            self.look_at_lost_links();
        }
        // A task waits for a message or the completion of an op, in a poll or when a call posts something.
        if !self.tasks.is_empty()
            && self.leaving == LeavePhase::No
            && (moved || self.core.ops.completions != self.stepped_at)
        {
            self.step_tasks();
            moved = true;
        }
        moved
    }

    /// Wakes sleeping peers that have been sent something since the last flush. Call it before a call returns or
    /// sleeps.
    #[inline]
    pub fn flush(&mut self) {
        for transport in &mut self.transports {
            transport.flush();
        }
    }

    /// Records that the caller has moved something outside the engine and may be able to continue, so nobody may
    /// sleep yet.
    pub fn note_moved(&mut self) {
        self.moved_aside = true;
    }

    /// Wakes a sleeping peer, for any purpose.
    pub fn wake(&mut self, peer: Rank) {
        if let Some(transport) = self.core.links[peer.index()].transport {
            self.transports[transport].wake(peer);
        }
    }

    /// Starts a task, which takes its first step at once. The returned group completes when the task has finished.
    pub fn add_task(&mut self, task: Box<dyn EngineTask>) -> GroupId {
        let group = self.new_group();
        if let Some(error) = self.refusal() {
            self.core.ops.note(group, Err(error));
            return group;
        }
        let op = self.core.ops.insert(PendingOp::Task { group });
        self.tasks.push((op, task));
        self.step_tasks();
        group
    }

    fn step_tasks(&mut self) {
        self.stepped_at = self.core.ops.completions;
        // Tasks need the whole engine, so they are taken out while they run. A task added meanwhile runs later.
        let mut tasks = std::mem::take(&mut self.tasks);
        tasks.retain_mut(|(op, task)| match task.step(self) {
            Some(result) => {
                // A fault in the middle of the step may have failed the op already.
                if self.core.ops.get_mut(*op).is_some() && !self.dead {
                    self.core.ops.complete(*op, result.map(|()| ReceiveStatus::default()));
                }
                false
            }
            None => true,
        });
        tasks.append(&mut self.tasks);
        self.tasks = tasks;
    }

    fn look_at_lost_links(&mut self) {
        for error in std::mem::take(&mut self.core.lost) {
            let (TransportError::PeerLost { peer, .. } | TransportError::Corrupt { peer, .. }) = &error;
            let link = &mut self.core.links[peer.index()];
            let first = link.down.is_none();
            match &error {
                // The control plane decides whether the peer died or left, and learns it at the same moment.
                TransportError::PeerLost { peer, reason } => {
                    link.down = Some(reason.clone());
                    if first && !link.left {
                        self.faults.link_down(*peer, reason.clone());
                    }
                }
                TransportError::Corrupt { peer, reason } => {
                    self.faults.fail(NetError::WorkerLost { rank: *peer, reason: format!("corrupt frame: {reason}") });
                }
            }
        }
        self.look_at_faults();
    }

    /// Records what the control plane has reported since the last look.
    fn look_at_faults(&mut self) {
        self.faults_seen = self.faults.epoch();
        if let Some(error) = self.faults.fatal() {
            self.dead = true;
            // In this order: tasks own receive buffers, into which peers may still write until the ops have ended.
            self.core.fail_all(&error);
            self.tasks.clear();
            return;
        }
        for rank in self.faults.leaving() {
            // With a link, the worker says so itself, after everything else it has sent.
            if let Some(transport) = self.core.links[rank.index()].transport
                && !self.is_linked(rank)
                && self.transports[transport].has_ended(rank)
            {
                self.core.peer_left(rank);
                self.moved_aside = true;
            }
        }
        for rank in self.faults.departed() {
            let link = &self.core.links[rank.index()];
            if link.gone {
                continue;
            }
            // What the departed worker sent before it left is still delivered: read its link to the end first. The
            // end of a connection is its closing; shared memory has ended once it is empty.
            if let Some(transport) = link.transport {
                while self.transports[transport].poll(&mut self.core) {}
                if !self.transports[transport].has_ended(rank) {
                    self.faults_seen = self.faults_seen.wrapping_sub(1);
                    continue;
                }
            }
            self.core.peer_gone(rank);
            // Tasks learn about their failed messages at their next step.
            self.moved_aside = true;
        }
    }

    /// Stops everything when the endpoint is closed.
    pub(super) fn close(&mut self) {
        self.dead = true;
        self.core.fail_all(&NetError::Closed);
        self.transports.clear();
    }

    /// The reason why nothing can be posted, if there is one.
    fn refusal(&self) -> Option<NetError> {
        (self.dead || self.leaving != LeavePhase::No).then(|| self.faults.fatal().unwrap_or(NetError::Closed))
    }

    /// Begins leaving, because this worker's program ends. [`Engine::has_left`] says when the worker may go.
    pub(super) fn begin_leaving(&mut self) {
        self.leaving = LeavePhase::Settling;
        self.core.withdraw_recvs();
    }

    /// Continues to leave. Returns `true` when nobody needs anything from this worker any more.
    pub(super) fn has_left(&mut self) -> bool {
        while self.progress() {}
        if self.dead {
            // The others learn the reason over the control plane; they must not learn first that this worker has
            // left.
            return true;
        }
        let has_sent = |core: &EngineCore| core.busy.is_empty();
        if self.leaving == LeavePhase::Settling
            && has_sent(&self.core)
            && !self.core.ops.any(|op| matches!(op, PendingOp::Recv { .. }))
        {
            self.leaving = LeavePhase::Owing;
        }
        if self.leaving == LeavePhase::Owing {
            self.tell_left();
        }
        // At once, if nothing is owed: nobody may come to wake this worker.
        if self.leaving == LeavePhase::Owing
            && has_sent(&self.core)
            && !self.core.ops.any(|op| matches!(op, PendingOp::Send { .. }))
        {
            self.leaving = LeavePhase::Finishing;
        }
        self.flush();
        if self.leaving != LeavePhase::Finishing {
            return false;
        }
        // Finish all links. A peer that has ended its own program no longer waits for what is still on its way.
        let mut over = true;
        for (peer, link) in self.core.links.iter().enumerate() {
            if let Some(transport) = link.transport {
                over &= self.transports[transport].finish(Rank(peer as u32)) || link.left;
            }
        }
        over
    }

    /// Announces on all links, including those that others have opened since, that this worker's program has ended.
    fn tell_left(&mut self) {
        for rank in self.untold() {
            if self.is_linked(rank) {
                self.core.links[rank.index()].told_left = true;
                self.core.reply(rank, FrameHeader::new(FrameKind::Left, 0), &[]);
            }
        }
        self.drain_links();
    }

    /// Present peers that have not been told that this worker's program has ended.
    fn untold(&self) -> Vec<Rank> {
        let links = (0..).map(Rank).zip(&self.core.links);
        let untold = |link: &PeerLink| link.transport.is_some() && !link.told_left && !link.gone && link.down.is_none();
        links.filter(|(_, link)| untold(link)).map(|(rank, _)| rank).collect()
    }

    /// Whether this worker waits for others at the end of its program and peers without a link to it do not know
    /// that. Such a peer may wait for this worker while this worker waits, perhaps through others, for that peer.
    pub(super) fn leaves_unnoticed(&self) -> bool {
        self.leaving == LeavePhase::Owing && !self.untold().is_empty()
    }

    /// The workers that this one, which is leaving, still waits for.
    pub(super) fn owes(&self) -> Vec<Option<Rank>> {
        let mut ranks = self.core.busy.clone();
        self.core.ops.each(|op| match op {
            PendingOp::Send { dest, .. } => ranks.push(*dest),
            PendingOp::Recv { status, .. } => ranks.push(status.source),
            PendingOp::Task { .. } => {}
        });
        ranks.sort_unstable();
        ranks.dedup();
        ranks.into_iter().map(Some).collect()
    }

    /// The descriptors that become ready when a transport without a doorbell has work.
    pub(super) fn epoll_fds(&self) -> Vec<std::os::fd::RawFd> {
        self.transports.iter().filter_map(|t| t.epoll_fd()).collect()
    }

    /// The name and limits of the transport that reaches `peer`; `None` for the worker itself.
    pub fn route(&self, peer: Rank) -> Option<(&'static str, crate::TransportLimits)> {
        let transport = &self.transports[self.core.links[peer.index()].transport?];
        Some((transport.name(), transport.limits(peer)))
    }

    /// Whether messages to `peer` go over a network.
    pub fn is_network_link(&self, peer: Rank) -> bool {
        self.route(peer).is_some_and(|(_, limits)| limits.network)
    }

    /// What the kernel knows about the connection to `peer`; `None` if there is none.
    pub fn link_info(&self, peer: Rank) -> Option<crate::LinkInfo> {
        self.transports.get(self.core.links[peer.index()].transport?)?.link_info(peer)
    }

    /// Limits how many bytes to `peer` wait in the kernel, if there is a connection to it; see
    /// [`Transport::limit_unsent`].
    pub fn limit_unsent(&self, peer: Rank, bytes: u32) {
        if let Some(transport) = self.core.links[peer.index()].transport.and_then(|at| self.transports.get(at)) {
            transport.limit_unsent(peer, bytes);
        }
    }

    /// Whether there is a link to `peer`; TCP connects when something is first sent.
    pub fn is_linked(&self, peer: Rank) -> bool {
        self.core.links[peer.index()].transport.is_some_and(|transport| self.transports[transport].is_linked(peer))
    }

    /// Copies out of a peer's memory, for collectives that agreed on the address. Returns `false` if the peer is
    /// gone; the job's fault reports that, so that every worker gives the same reason, and the caller keeps waiting.
    pub fn read_peer(&mut self, peer: Rank, addr: u64, into: &mut [u8]) -> bool {
        let transport = self.core.links[peer.index()].transport.expect("a peer is another worker");
        let result = self.transports[transport].read_peer(peer, addr, into);
        result.map_err(|error| self.core.lost.push(error)).is_ok()
    }
}
