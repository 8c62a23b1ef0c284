//! The receiving half of the engine: matching, credit, landing places. It contains everything except the transports,
//! so that a borrowed transport can deliver into it.

use std::collections::VecDeque;

use super::contexts::ContextTable;
use super::engine::CallMismatch;
use super::matching::{MatchContext, MatchPattern, MessageBody, UnexpectedMessage};
use super::ops::{FramePayload, GroupId, MemoryRegion, OpIndex, OpTable, PendingOp, QueuedFrame, ReceiveStatus};
use super::transfer::{AssistedSend, OutgoingStream, PullQueue};
use crate::transport::LocalClaim;
use crate::{AcceptPayload, FrameHeader, FrameKind, FrameSink, NetError, OfferPayload, Rank, TransportError};

/// How many eager bytes a receiver stores at most for a sender that it does not receive from: a number of messages of
/// the largest eager size, limited to a share of what it stores for all `peers` together, but never less than the
/// minimum.
pub(super) fn credit_bytes(eager_bytes_max: usize, peers: usize) -> u64 {
    const MESSAGES: u64 = 64;
    const ALL_BYTES: u64 = 16 << 20;
    const BYTES_MIN: u64 = 1 << 20;
    (MESSAGES * eager_bytes_max as u64).min(ALL_BYTES / peers.max(1) as u64).max(BYTES_MIN)
}

/// What a stored message costs besides its bytes.
pub(super) const MESSAGE_COST_BYTES: u64 = 64;

pub(super) enum FrameLanding {
    Nothing,
    /// Directly into a receive's buffer.
    Op(OpIndex),
    /// Into a buffer of ours, for a message that no receive has matched yet.
    Unexpected(Vec<u8>),
    /// Into a buffer of ours, handled as a whole frame when complete.
    Frame(Vec<u8>),
}

pub(super) struct PeerLink {
    /// Index into `Engine::transports`; `None` for the worker itself.
    pub(super) transport: Option<usize>,
    pub(super) queue: VecDeque<QueuedFrame>,
    pub(super) streams: VecDeque<OutgoingStream>,
    pub(super) pulls: PullQueue,
    /// A queued frame that is partly sent must be continued before anything else.
    pub(super) streaming: bool,
    pub(super) credit: u64,
    /// The maximum credit, which is also the initial credit; the same at both ends.
    pub(super) credit_max: u64,
    /// Credit received from the peer and not returned yet.
    pub(super) owed: u64,
    pub(super) landing: FrameLanding,
    pub(super) eager_bytes_max: usize,
    pub(super) frame_bytes_max: usize,
    pub(super) single_copy: bool,
    /// Claims for shared copying of messages from the peer, and to it.
    pub(super) claims: Option<(LocalClaim, LocalClaim)>,
    /// Whether both sides are copying a message from the peer: only one at a time.
    pub(super) claimed: bool,
    pub(super) down: Option<String>,
    /// Whether the peer's program has ended, as announced on this link or over the control plane.
    pub(super) left: bool,
    /// Whether nothing more will come from it.
    pub(super) gone: bool,
    /// Whether the peer was told that this worker's program has ended.
    pub(super) told_left: bool,
}

/// Everything except the transports, so that a borrowed transport can deliver into it.
pub(super) struct EngineCore {
    pub(super) rank: Rank,
    pub(super) ops: OpTable,
    pub(super) contexts: ContextTable,
    pub(super) links: Vec<PeerLink>,
    /// Links with queued frames.
    pub(super) busy: Vec<Rank>,
    /// Links with messages to copy out of their peer's memory.
    pub(super) pulling: Vec<Rank>,
    pub(super) helps: Vec<AssistedSend>,
    pub(super) pool: Vec<Vec<u8>>,
    pub(super) contradictions: Vec<CallMismatch>,
    pub(super) lost: Vec<TransportError>,
}

pub(super) fn new_recv(group: GroupId, region: MemoryRegion) -> PendingOp {
    PendingOp::Recv { group, region, received: 0, status: ReceiveStatus::default(), sent_bytes: 0 }
}

pub(super) fn copy_message(
    source: Rank,
    tag: i32,
    data: &[u8],
    region: MemoryRegion,
) -> Result<ReceiveStatus, NetError> {
    let n = data.len().min(region.len);
    // SAFETY: `post_recv`'s caller keeps the region writable while the receive is pending, and `n` is within both.
    unsafe { crate::copy(data.as_ptr(), region.ptr, n) };
    check_length(source, tag, data.len() as u64, region.len)
}

pub(super) fn check_length(source: Rank, tag: i32, sent_bytes: u64, room: usize) -> Result<ReceiveStatus, NetError> {
    if sent_bytes > room as u64 {
        return Err(NetError::Truncated { from: source, sent_bytes, room_bytes: room as u64 });
    }
    Ok(ReceiveStatus { source, tag, len: sent_bytes })
}

impl EngineCore {
    pub(super) fn context(&mut self, id: u32) -> &mut MatchContext {
        self.contexts.get(id)
    }

    pub(super) fn enqueue(&mut self, dest: Rank, out: QueuedFrame) {
        let link = &mut self.links[dest.index()];
        if link.queue.is_empty() && link.streams.is_empty() {
            self.busy.push(dest);
        }
        link.queue.push_back(out);
    }

    /// Queues a control frame; one to this worker takes effect at once.
    pub(super) fn reply(&mut self, dest: Rank, header: FrameHeader, payload: &[u8]) {
        if dest == self.rank {
            self.frame(dest, &header, payload);
        } else {
            self.enqueue(
                dest,
                QueuedFrame { header, payload: FramePayload::inline(payload), sent: 0, completes: None },
            );
        }
    }

    pub(super) fn take_unexpected(
        &mut self,
        context: u32,
        pattern: &MatchPattern,
    ) -> Option<(Rank, UnexpectedMessage)> {
        self.context(context).take_unexpected(pattern)
    }

    pub(super) fn buffer(&mut self, len: usize) -> Vec<u8> {
        let mut buffer = self.pool.pop().unwrap_or_default();
        buffer.clear();
        buffer.reserve(len);
        buffer
    }

    pub(super) fn recycle(&mut self, buffer: Vec<u8>) {
        // Keep a few buffers of ordinary size; give bursts and very large ones back to the allocator.
        if self.pool.len() < 64 && buffer.capacity() <= 64 << 10 {
            self.pool.push(buffer);
        }
    }

    pub(super) fn return_credit(&mut self, src: Rank, len: u64) {
        if src == self.rank {
            return;
        }
        let link = &mut self.links[src.index()];
        link.owed += len + MESSAGE_COST_BYTES;
        if link.owed >= link.credit_max / 4 && !link.left && link.down.is_none() {
            let header = FrameHeader { seq: link.owed as u32, ..FrameHeader::new(FrameKind::Credit, 0) };
            link.owed = 0;
            self.reply(src, header, &[]);
        }
    }

    pub(super) fn check_signature(&mut self, src: Rank, header: &FrameHeader) {
        if self.context(header.context).contradicts(header) {
            self.contradictions.push(CallMismatch {
                context: header.context,
                seq: header.seq,
                rank: src,
                theirs: None,
                lengths: None,
            });
        }
    }

    /// Checks that a collective's message is as long as its receiver expects; otherwise the two ranks passed
    /// different counts.
    #[inline]
    pub(super) fn check_length_agreed(&mut self, src: Rank, header: &FrameHeader, sent_bytes: u64, room: usize) {
        // A difference already found through the fingerprints says more.
        if header.seq != 0 && sent_bytes != room as u64 && self.contradictions.is_empty() {
            self.contradictions.push(CallMismatch {
                context: header.context,
                seq: header.seq,
                rank: src,
                theirs: None,
                lengths: Some((sent_bytes, room as u64)),
            });
        }
    }

    pub(super) fn eager(&mut self, src: Rank, header: &FrameHeader, payload: &[u8]) {
        if self.contexts.is_closed(header.context) {
            return self.return_credit(src, header.len);
        }
        if let Some(op) = self.context(header.context).take_posted(src, header) {
            if header.seq != 0 {
                self.check_signature(src, header);
            }
            let Some(PendingOp::Recv { region, .. }) = self.ops.get_mut(op) else {
                unreachable!("posted ops are receives")
            };
            let region = *region;
            self.check_length_agreed(src, header, header.len, region.len);
            let result = copy_message(src, header.tag, payload, region);
            self.ops.complete(op, result);
            self.return_credit(src, header.len);
        } else {
            if header.seq != 0 {
                self.check_signature(src, header);
            }
            let mut data = self.buffer(payload.len());
            data.extend_from_slice(payload);
            self.context(header.context).push_unexpected(src, *header, MessageBody::Eager(data));
        }
    }

    /// Drops the messages that nobody has received, and those that come later, and returns their credit: otherwise
    /// their sender would eventually stop forever. Receives without a message fail: nothing else would end them, and
    /// a worker that leaves waits for its receives.
    pub(super) fn close_context(&mut self, context: u32) {
        let mut closed = self.contexts.close(context);
        for op in closed.drain_all_posted() {
            self.ops.complete(op, Err(NetError::Closed));
        }
        for (src, message) in closed.into_unexpected() {
            match message.body {
                MessageBody::Eager(data) => {
                    self.return_credit(src, message.header.len);
                    self.recycle(data);
                }
                MessageBody::Offer { .. } => self.decline(src, &message.header),
                // Dropped once it has landed.
                MessageBody::Landing => {}
            }
        }
    }

    /// Records that this worker has finished with a communicator: tells its `others`, and releases those that offer
    /// messages.
    pub(super) fn end_context(&mut self, context: u32, others: &[Rank]) {
        for (src, header) in self.context(context).end() {
            self.decline(src, &header);
        }
        for &rank in others {
            let link = &self.links[rank.index()];
            if !link.left && link.down.is_none() {
                let size = others.len() as u32 + 1;
                self.reply(rank, FrameHeader { context, token: size, ..FrameHeader::new(FrameKind::Ended, 0) }, &[]);
            }
        }
    }

    /// Records that `rank` has finished with a communicator of `size` ranks. What it sent before can still be
    /// received.
    fn peer_ended(&mut self, rank: Rank, context: u32, size: u32) {
        if self.contexts.is_closed(context) {
            return;
        }
        for op in self.context(context).source_ended(rank, size) {
            self.ops.complete(op, Err(NetError::PeerEnded { rank, call: String::new() }));
        }
    }

    /// Declines a message whose communicator is gone, so that its sender does not wait.
    fn decline(&mut self, src: Rank, header: &FrameHeader) {
        self.reply(src, FrameHeader { token: header.token, ..FrameHeader::new(FrameKind::Done, 0) }, &[]);
    }

    pub(super) fn offer(&mut self, src: Rank, header: &FrameHeader, offer: OfferPayload) {
        if self.contexts.is_closed(header.context) {
            return self.decline(src, header);
        }
        let posted = self.context(header.context).take_posted(src, header);
        if header.seq != 0 {
            self.check_signature(src, header);
        }
        match posted {
            Some(op) => self.accept(op, src, header, offer),
            None if self.context(header.context).is_over() => self.decline(src, header),
            None => {
                let body = MessageBody::Offer { total_len: offer.total_len, addr: offer.addr };
                self.context(header.context).push_unexpected(src, *header, body);
            }
        }
    }

    pub(super) fn finish_recv(&mut self, op: OpIndex) {
        let Some(PendingOp::Recv { region, status, sent_bytes, .. }) = self.ops.get_mut(op) else {
            unreachable!("only receives are finished")
        };
        let result = check_length(status.source, status.tag, *sent_bytes, region.len);
        self.ops.complete(op, result);
    }

    /// Returns room for the next `len` bytes of a message that arrives in pieces.
    pub(super) fn piece_room(&mut self, src: Rank, header: &FrameHeader) -> Result<*mut u8, String> {
        match self.ops.get_mut(header.token) {
            Some(PendingOp::Recv { region, received, status, .. })
                if status.source == src && *received + header.len <= region.len as u64 =>
            {
                // SAFETY: `received + len` is within the region, as just checked.
                Ok(unsafe { region.ptr.add(*received as usize) })
            }
            _ => Err(format!("sent a piece of message {}, which was not accepted that way", header.token)),
        }
    }

    pub(super) fn piece_landed(&mut self, header: &FrameHeader) {
        let Some(PendingOp::Recv { received, sent_bytes, region, .. }) = self.ops.get_mut(header.token) else {
            unreachable!("checked by piece_room")
        };
        *received += header.len;
        if *received == (*sent_bytes).min(region.len as u64) {
            self.finish_recv(header.token);
        }
    }

    pub(super) fn corrupt(&mut self, src: Rank, reason: String) {
        self.lost.push(TransportError::Corrupt { peer: src, reason });
    }

    pub(super) fn all_left(&self) -> Option<Rank> {
        let mut others = self.links.iter().enumerate().filter(|(r, _)| *r != self.rank.index());
        (self.links.len() > 1 && others.all(|(_, link)| link.left)).then(|| Rank(u32::from(self.rank.0 == 0)))
    }

    /// Records that `rank`'s program has ended: it sends nothing new, and receives nothing that it has not begun to
    /// receive. What it sent before can still be received.
    pub(super) fn peer_left(&mut self, rank: Rank) {
        if std::mem::replace(&mut self.links[rank.index()].left, true) {
            return;
        }
        let all_left = self.all_left().is_some();
        let mut over = Vec::new();
        for context in self.contexts.iter_mut() {
            over.extend(context.drain_posted(Some(rank)));
            if all_left {
                over.extend(context.drain_posted(None));
            }
        }
        let queue = &self.links[rank.index()].queue;
        for index in self.ops.indices() {
            // Queued frames are on their way, perhaps in part; other sends wait for an answer to their offer.
            if matches!(self.ops.get_mut(index), Some(PendingOp::Send { dest, .. }) if *dest == rank)
                && !queue.iter().any(|out| out.completes == Some(index))
            {
                over.push(index);
            }
        }
        over.into_iter().for_each(|op| self.ops.complete(op, Err(NetError::PeerLeft { rank })));
    }

    /// Records that `rank` has left and that nothing more comes from it: unfinished messages end here.
    pub(super) fn peer_gone(&mut self, rank: Rank) {
        self.peer_left(rank);
        let link = &mut self.links[rank.index()];
        link.gone = true;
        link.queue.clear();
        link.streams.clear();
        link.streaming = false;
        self.busy.retain(|busy| *busy != rank);
        self.settle_pulls(|from| from == rank);
        self.links[rank.index()].pulls = PullQueue::default();
        self.pulling.retain(|from| *from != rank);
        self.helps.retain(|help| help.dest != rank);
        for index in self.ops.indices() {
            let concerns = match self.ops.get_mut(index) {
                Some(PendingOp::Send { dest, .. }) => *dest == rank,
                Some(PendingOp::Recv { status, .. }) => status.source == rank,
                Some(PendingOp::Task { .. }) | None => false,
            };
            if concerns {
                self.ops.complete(index, Err(NetError::PeerLeft { rank }));
            }
        }
    }

    /// Withdraws the receives that no message has matched.
    pub(super) fn withdraw_recvs(&mut self) {
        for index in self.ops.indices() {
            if matches!(self.ops.get_mut(index), Some(PendingOp::Recv { .. }))
                && self.contexts.iter_mut().any(|context| context.unpost(index))
            {
                self.ops.complete(index, Err(NetError::Closed));
            }
        }
    }

    pub(super) fn fail_all(&mut self, error: &NetError) {
        self.contexts.clear();
        for link in &mut self.links {
            link.queue.clear();
            link.streams.clear();
        }
        self.busy.clear();
        self.settle_pulls(|_| true);
        for from in std::mem::take(&mut self.pulling) {
            self.links[from.index()].pulls = PullQueue::default();
        }
        self.helps.clear();
        for index in self.ops.indices() {
            self.ops.complete(index, Err(error.clone()));
        }
    }
}

impl FrameSink for EngineCore {
    fn frame(&mut self, src: Rank, header: &FrameHeader, payload: &[u8]) {
        let result = match header.kind() {
            Some(FrameKind::Eager) => {
                self.eager(src, header, payload);
                Ok(())
            }
            Some(FrameKind::Offer) => match bytemuck::try_pod_read_unaligned::<OfferPayload>(payload) {
                Ok(offer) => {
                    self.offer(src, header, offer);
                    Ok(())
                }
                Err(_) => Err("an offer has the wrong length".into()),
            },
            Some(FrameKind::Accept) => match bytemuck::try_pod_read_unaligned::<AcceptPayload>(payload) {
                Ok(accept) => self.accepted(src, header.token, accept),
                Err(_) => Err("an accept has the wrong length".into()),
            },
            Some(FrameKind::Piece) => self.piece_room(src, header).map(|room| {
                // SAFETY: `piece_room` checked that `len` bytes of the pending receive's region start at `room`.
                unsafe { crate::copy(payload.as_ptr(), room, payload.len()) };
                self.piece_landed(header);
            }),
            Some(FrameKind::Done) => match self.ops.get_mut(header.token) {
                Some(PendingOp::Send { dest, .. }) if *dest == src => {
                    self.ops.complete(header.token, Ok(ReceiveStatus::default()));
                    Ok(())
                }
                // It was still receiving the message when it left, and the send has ended with that error.
                _ if self.links[src.index()].left => Ok(()),
                _ => Err(format!("finished send {}, which is not pending", header.token)),
            },
            Some(FrameKind::Credit) => {
                let link = &mut self.links[src.index()];
                link.credit = (link.credit + u64::from(header.seq)).min(link.credit_max);
                Ok(())
            }
            Some(FrameKind::Left) => {
                self.peer_left(src);
                Ok(())
            }
            Some(FrameKind::Ended) => {
                self.peer_ended(src, header.context, header.token);
                Ok(())
            }
            None => Err(format!("unknown frame kind {}", header.kind_raw)),
        };
        if let Err(reason) = result {
            self.corrupt(src, reason);
        }
    }

    fn begin(&mut self, src: Rank, header: &FrameHeader) -> *mut u8 {
        let len = header.len as usize;
        let landing = match header.kind() {
            Some(FrameKind::Piece) => match self.piece_room(src, header) {
                Ok(room) => {
                    self.links[src.index()].landing = FrameLanding::Op(header.token);
                    return room;
                }
                Err(reason) => {
                    self.corrupt(src, reason);
                    FrameLanding::Frame(self.buffer(len))
                }
            },
            Some(FrameKind::Eager) if !self.contexts.is_closed(header.context) => {
                if header.seq != 0 {
                    self.check_signature(src, header);
                }
                match self.context(header.context).take_posted(src, header) {
                    Some(op) => {
                        let Some(PendingOp::Recv { region, status, sent_bytes, .. }) = self.ops.get_mut(op) else {
                            unreachable!("posted ops are receives")
                        };
                        *status = ReceiveStatus { source: src, tag: header.tag, len: header.len };
                        *sent_bytes = header.len;
                        let (ptr, room) = (region.ptr, region.len);
                        self.check_length_agreed(src, header, header.len, room);
                        if len <= room {
                            self.links[src.index()].landing = FrameLanding::Op(op);
                            return ptr;
                        }
                        // Too long for its buffer: land it elsewhere and report the error.
                        self.ops.complete(op, check_length(src, header.tag, header.len, room));
                        self.return_credit(src, header.len);
                        FrameLanding::Frame(self.buffer(len))
                    }
                    None => {
                        self.context(header.context).push_unexpected(src, *header, MessageBody::Landing);
                        FrameLanding::Unexpected(self.buffer(len))
                    }
                }
            }
            _ => FrameLanding::Frame(self.buffer(len)),
        };
        let link = &mut self.links[src.index()];
        link.landing = landing;
        match &mut link.landing {
            FrameLanding::Unexpected(buffer) | FrameLanding::Frame(buffer) => buffer.as_mut_ptr(),
            FrameLanding::Nothing | FrameLanding::Op(_) => unreachable!("set above"),
        }
    }

    fn landed(&mut self, src: Rank, header: &FrameHeader) {
        let len = header.len as usize;
        match std::mem::replace(&mut self.links[src.index()].landing, FrameLanding::Nothing) {
            FrameLanding::Op(op) if header.kind() == Some(FrameKind::Piece) => {
                debug_assert_eq!(op, header.token);
                self.piece_landed(header);
            }
            FrameLanding::Op(op) => {
                self.finish_recv(op);
                self.return_credit(src, header.len);
            }
            FrameLanding::Unexpected(mut data) => {
                // SAFETY: `begin` reserved `len` bytes and the transport has written all of them.
                unsafe { data.set_len(len) };
                // A receive may have been posted while the message was landing, or the communicator have ended.
                if self.contexts.is_closed(header.context) {
                    self.return_credit(src, header.len);
                    return self.recycle(data);
                }
                let context = self.context(header.context);
                match context.take_posted(src, header) {
                    Some(op) => {
                        context.forget_landing(src);
                        let Some(PendingOp::Recv { region, .. }) = self.ops.get_mut(op) else {
                            unreachable!("posted ops are receives")
                        };
                        let region = *region;
                        self.check_length_agreed(src, header, header.len, region.len);
                        let result = copy_message(src, header.tag, &data, region);
                        self.ops.complete(op, result);
                        self.return_credit(src, header.len);
                        self.recycle(data);
                    }
                    None => context.landed(src, data),
                }
            }
            FrameLanding::Frame(mut data) => {
                // SAFETY: as above.
                unsafe { data.set_len(len) };
                // An eager message lands here only if its error has been reported or its communicator is gone.
                if header.kind() != Some(FrameKind::Eager) {
                    self.frame(src, header, &data);
                }
                self.recycle(data);
            }
            FrameLanding::Nothing => unreachable!("a transport lands only what it began"),
        }
    }

    fn lost(&mut self, error: TransportError) {
        self.lost.push(error);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Too little credit makes each short message wait for an answer; too much fills the memory of a worker with many
    /// senders.
    #[test]
    fn credit_is_bounded_for_one_sender_and_for_all() {
        const MIB: u64 = 1 << 20;
        assert_eq!(credit_bytes(16 << 10, 1), MIB, "64 messages");
        assert_eq!(credit_bytes(64 << 10, 1), 4 * MIB);
        assert_eq!(credit_bytes(64 << 10, 8), 2 * MIB);
        assert_eq!(credit_bytes(64 << 10, 1000), MIB);
        assert_eq!(credit_bytes(4096, 0), MIB, "alone");
    }
}
