//! Messages too large to send eagerly: copied out of their sender's memory, by both sides at once if they are long,
//! or sent in pieces where that is not possible ([`TransportLimits::single_copy`](crate::TransportLimits)).

use std::collections::VecDeque;
use std::time::Duration;

use super::core::{EngineCore, PeerLink};
use super::engine::{Engine, LeavePhase, coarse_now};
use super::ops::{MemoryRegion, OpIndex, OpTable, PendingOp, ReceiveStatus};
use crate::claim::{CHUNKS_MAX, ChunkTransfer};
use crate::copy::copy_or_move;
use crate::transport::PARTS_MAX;
use crate::{AcceptPayload, FrameHeader, FrameKind, OfferPayload, PushResult, Rank, Transport, TransportError};

/// How many bytes are copied out of a peer's memory before other work gets its turn.
const PULL_CHUNK_BYTES: usize = 128 << 10;
/// The same while the sender copies the last chunk of another message: short, so that both sides soon share the next
/// one.
const FILLING_CHUNK_BYTES: usize = 32 << 10;
/// How many bytes of one message are copied before another message of the same peer gets its turn.
const PULL_TURN_BYTES: usize = 4 << 20;
/// Messages from this size on are copied by both sides at once.
const SHARED_PULL_BYTES_MIN: usize = 64 << 10;
/// A peer in the middle of a chunk finishes it in microseconds, unless it is stopped or dead.
const CHUNK_TIMEOUT: Duration = Duration::from_millis(200);

/// An accepted message that leaves in pieces.
pub(super) struct OutgoingStream {
    pub(super) op: OpIndex,
    pub(super) token: u32,
    pub(super) region: MemoryRegion,
    pub(super) offset: usize,
    /// Bytes of the current piece's frame already handed over.
    pub(super) sent: usize,
}

/// Offered messages of one peer that are to be copied out of its memory; the first one, until its turn is over.
#[derive(Default)]
pub(super) struct PullQueue {
    waiting: VecDeque<PendingPull>,
    /// How many bytes of the first message were copied in this turn.
    turn_bytes: usize,
}

struct PendingPull {
    op: OpIndex,
    token: u32,
    addr: u64,
    len: usize,
    done: usize,
    shared: Option<SharedPull>,
}

/// The peer copies too, from the end of the message, in chunks of [`shared_chunk_bytes`].
#[derive(Clone, Copy)]
struct SharedPull {
    transfer: ChunkTransfer,
    /// Where in the message the shared part begins.
    start: usize,
}

/// The outcome of a pull's turn.
enum PullOutcome {
    Bytes(usize),
    /// All chunks are taken, but the sender has not finished its last one.
    Waits,
    Over,
    /// The peer is gone, which has been recorded.
    Failed,
}

/// A message of ours that we and its receiver copy together.
pub(super) struct AssistedSend {
    pub(super) dest: Rank,
    pub(super) from: MemoryRegion,
    pub(super) addr: u64,
    pub(super) transfer: ChunkTransfer,
}

/// The chunk size of a message that both sides copy, which both derive from the length alone. Small enough that the
/// two ends meet closely, large enough that the system call per chunk does not matter.
fn shared_chunk_bytes(len: usize) -> usize {
    let chunk = (len / 8).clamp(32 << 10, 256 << 10);
    chunk.max(len.div_ceil(CHUNKS_MAX as usize)).next_multiple_of(4096)
}

impl Engine {
    /// Makes receivers copy long messages alone, for workers that share cores: a helping sender first needs a core,
    /// and a receiver that waits for the sender's last chunk gives one up. Either all workers of a host call this or
    /// none.
    pub(super) fn copy_alone(&mut self) {
        self.core.links.iter_mut().for_each(|link| link.claims = None);
    }

    /// Pushes queued frames as far as the transports accept them.
    pub(super) fn drain_links(&mut self) -> bool {
        if self.leaving == LeavePhase::Finishing {
            // What is left is credit and the like, which the others no longer need.
            for rank in self.core.busy.drain(..) {
                self.core.links[rank.index()].queue.clear();
            }
            return false;
        }
        let mut moved = false;
        let mut i = 0;
        while i < self.core.busy.len() {
            let dest = self.core.busy[i];
            let link = &mut self.core.links[dest.index()];
            let Some(transport) = link.transport else { unreachable!("messages to oneself are not queued") };
            match drain_link(&mut *self.transports[transport], dest, link, &mut self.core.ops) {
                Ok(m) => moved |= m,
                Err(error) => {
                    self.core.lost.push(error);
                    link.queue.retain(|out| out.completes.is_some());
                    self.core.busy.swap_remove(i);
                    continue;
                }
            }
            if link.queue.is_empty() && link.streams.is_empty() {
                self.core.busy.swap_remove(i);
            } else {
                i += 1;
            }
        }
        self.moved_aside |= moved;
        moved
    }

    /// Copies a chunk of an offered message from each peer that has some.
    pub(super) fn step_pulls(&mut self) -> bool {
        let mut moved = false;
        let mut i = 0;
        while i < self.core.pulling.len() {
            let from = self.core.pulling[i];
            moved |= self.pull_from(from);
            if self.core.links[from.index()].pulls.waiting.is_empty() {
                self.core.pulling.swap_remove(i);
            } else {
                i += 1;
            }
        }
        self.moved_aside |= moved;
        self.drain_links();
        moved
    }

    fn pull_from(&mut self, from: Rank) -> bool {
        let several = self.short_pulls(from);
        if several >= 2 {
            return self.pull_several(from, several);
        }
        let Some(mut first) = self.core.links[from.index()].pulls.waiting.pop_front() else { return false };
        let pulled = self.pull_chunk(from, &mut first, PULL_CHUNK_BYTES);
        match pulled {
            PullOutcome::Bytes(n) => {
                let pulls = &mut self.core.links[from.index()].pulls;
                pulls.turn_bytes += n;
                if pulls.turn_bytes < PULL_TURN_BYTES {
                    pulls.waiting.push_front(first);
                } else {
                    pulls.turn_bytes = 0;
                    pulls.waiting.push_back(first);
                }
                true
            }
            PullOutcome::Over | PullOutcome::Failed => {
                self.core.links[from.index()].pulls.turn_bytes = 0;
                true
            }
            PullOutcome::Waits => {
                let second = self.core.links[from.index()].pulls.waiting.pop_front();
                let moved = second.is_some();
                if let Some(mut second) = second {
                    match self.pull_chunk(from, &mut second, FILLING_CHUNK_BYTES) {
                        PullOutcome::Bytes(_) | PullOutcome::Waits => {
                            self.core.links[from.index()].pulls.waiting.push_front(second)
                        }
                        PullOutcome::Over | PullOutcome::Failed => {}
                    }
                }
                self.core.links[from.index()].pulls.waiting.push_front(first);
                moved
            }
        }
    }

    /// How many of the first messages of `from` are short, untouched and not shared: one call copies them all.
    fn short_pulls(&self, from: Rank) -> usize {
        let mut left = PULL_CHUNK_BYTES;
        let short = |pull: &&PendingPull| {
            let short = pull.shared.is_none() && pull.done == 0 && pull.len <= left;
            left -= if short { pull.len } else { 0 };
            short
        };
        self.core.links[from.index()].pulls.waiting.iter().take(PARTS_MAX).take_while(short).count()
    }

    /// Copies the first `count` messages of `from`, at most [`PARTS_MAX`], completely and at once.
    fn pull_several(&mut self, from: Rank, count: usize) -> bool {
        let link = &mut self.core.links[from.index()];
        let mut parts: [(u64, &mut [u8]); PARTS_MAX] = Default::default();
        for (part, pull) in parts.iter_mut().zip(link.pulls.waiting.iter().take(count)) {
            let Some(PendingOp::Recv { region, .. }) = self.core.ops.get_mut(pull.op) else {
                unreachable!("a pull's receive is pending until the pull is over")
            };
            // SAFETY: `post_recv`'s caller keeps the region valid while the op is pending, and gives no byte to two
            // receives; `accept` cut `len` to it.
            *part = (pull.addr, unsafe { std::slice::from_raw_parts_mut(region.ptr, pull.len) });
        }
        let result = read(&mut self.transports, link.transport, from, &mut parts[..count]);
        for _ in 0..count {
            let pull = self.core.links[from.index()].pulls.waiting.pop_front().expect("counted");
            // If one failed, none may look complete.
            if result.is_ok() {
                self.core.finish_pull(from, &pull);
            }
        }
        self.core.lost.extend(result.err());
        true
    }

    /// Copies the next chunk of a message of `from`, at most `bytes_max` unless its sender copies too.
    fn pull_chunk(&mut self, from: Rank, pull: &mut PendingPull, bytes_max: usize) -> PullOutcome {
        let Some(PendingOp::Recv { region, .. }) = self.core.ops.get_mut(pull.op) else {
            unreachable!("a pull's receive is pending until the pull is over")
        };
        let region = *region;
        if pull.shared.is_none() {
            self.core.share(from, pull, region);
        }
        let link = &self.core.links[from.index()];
        let claim = link.claims.as_ref().map(|(claim, _)| claim);
        let (start, n) = match (pull.shared, claim) {
            (Some(shared), Some(claim)) => {
                let len = pull.len - shared.start;
                let chunk = shared_chunk_bytes(len);
                match claim.take_front(shared.transfer) {
                    Some(index) => {
                        let start = index as usize * chunk;
                        (shared.start + start, (len - start).min(chunk))
                    }
                    None if !claim.is_complete(shared.transfer) => return PullOutcome::Waits,
                    None => {
                        self.core.links[from.index()].claimed = false;
                        self.core.finish_pull(from, pull);
                        return PullOutcome::Over;
                    }
                }
            }
            _ => (pull.done, (pull.len - pull.done).min(bytes_max)),
        };
        let addr = pull.addr + start as u64;
        // SAFETY: `post_recv`'s caller keeps the region valid while the op is pending; `accept` cut `len` to it.
        let into = unsafe { std::slice::from_raw_parts_mut(region.ptr.add(start), n) };
        let result = read(&mut self.transports, link.transport, from, &mut [(addr, into)]);
        if let Err(error) = result {
            // A failed chunk is never counted: the message must not look complete.
            self.core.lost.push(error);
            return PullOutcome::Failed;
        }
        match (pull.shared, claim) {
            (Some(_), Some(claim)) => claim.finish(1),
            _ => {
                pull.done += n;
                if pull.done == pull.len {
                    self.core.finish_pull(from, pull);
                    return PullOutcome::Over;
                }
            }
        }
        PullOutcome::Bytes(n)
    }

    /// Copies a chunk, from the end, of each message of ours that its receiver copies from the front.
    pub(super) fn step_helps(&mut self) -> bool {
        let mut moved = false;
        let mut i = 0;
        while i < self.core.helps.len() {
            let help = &self.core.helps[i];
            let link = &self.core.links[help.dest.index()];
            let (Some((_, claim)), Some(transport)) = (&link.claims, link.transport) else {
                unreachable!("accepted only with a claim")
            };
            let Some(index) = claim.take_back(help.transfer) else {
                self.core.helps.swap_remove(i);
                continue;
            };
            let chunk = shared_chunk_bytes(help.from.len);
            let start = index as usize * chunk;
            let n = (help.from.len - start).min(chunk);
            // SAFETY: the send op is pending until the receiver's `Done`, which follows the last chunk.
            let from = unsafe { std::slice::from_raw_parts(help.from.ptr.add(start), n) };
            let result = self.transports[transport].write_peer(help.dest, help.addr + start as u64, from);
            if let Err(error) = result {
                self.core.lost.push(error);
                self.core.helps.swap_remove(i);
                continue;
            }
            claim.finish(1);
            // The receiver, whose own chunks are done, may have fallen asleep meanwhile, and no message announces
            // this chunk.
            if claim.is_complete(help.transfer) {
                self.transports[transport].wake(help.dest);
            }
            moved = true;
            i += 1;
        }
        moved
    }
}

/// Copies parts of offered messages of `from`, which `transport` reaches; `None` stands for the worker itself.
fn read(
    transports: &mut [Box<dyn Transport>],
    transport: Option<usize>,
    from: Rank,
    parts: &mut [(u64, &mut [u8])],
) -> Result<(), TransportError> {
    match transport {
        Some(transport) => transports[transport].read_peer_parts(from, parts),
        None => {
            for (addr, into) in parts {
                // SAFETY: a message to oneself: the send op keeps the source alive until `Done`.
                unsafe { copy_or_move(*addr as *const u8, into.as_mut_ptr(), into.len()) };
            }
            Ok(())
        }
    }
}

impl EngineCore {
    /// A receive matches an offer: copy the message out of the sender's memory, or ask for it in pieces.
    pub(super) fn accept(&mut self, op: OpIndex, src: Rank, header: &FrameHeader, offer: OfferPayload) {
        let Some(PendingOp::Recv { region, status, sent_bytes, .. }) = self.ops.get_mut(op) else {
            unreachable!("offers meet receives")
        };
        *status = ReceiveStatus { source: src, tag: header.tag, len: offer.total_len };
        *sent_bytes = offer.total_len;
        let region = *region;
        self.check_length_agreed(src, header, offer.total_len, region.len);
        let len = (offer.total_len as usize).min(region.len);
        if len == 0 {
            self.finish_recv(op);
            self.reply(src, FrameHeader { token: header.token, ..FrameHeader::new(FrameKind::Done, 0) }, &[]);
        } else if self.links[src.index()].single_copy {
            let mut pull = PendingPull { op, token: header.token, addr: offer.addr, len, done: 0, shared: None };
            self.share(src, &mut pull, region);
            let pulls = &mut self.links[src.index()].pulls;
            if pulls.waiting.is_empty() {
                self.pulling.push(src);
            }
            pulls.waiting.push_back(pull);
        } else {
            let accept = AcceptPayload { len: len as u64, addr: 0, token: u64::from(op), offset: 0 };
            let header = FrameHeader {
                token: header.token,
                ..FrameHeader::new(FrameKind::Accept, size_of::<AcceptPayload>() as u64)
            };
            self.reply(src, header, bytemuck::bytes_of(&accept));
        }
    }

    /// Lets the sender also copy the rest of a message, if that is long and no other message of it is being shared.
    fn share(&mut self, from: Rank, pull: &mut PendingPull, region: MemoryRegion) {
        let link = &mut self.links[from.index()];
        let left = pull.len - pull.done;
        let (true, false, Some((claim, _))) = (left >= SHARED_PULL_BYTES_MIN, link.claimed, &link.claims) else {
            return;
        };
        let transfer = claim.start(left.div_ceil(shared_chunk_bytes(left)) as u32);
        link.claimed = true;
        pull.shared = Some(SharedPull { transfer, start: pull.done });
        let addr = region.ptr as u64 + pull.done as u64;
        let token = u64::from(transfer.generation);
        let accept = AcceptPayload { len: left as u64, addr, token, offset: pull.done as u64 };
        let header =
            FrameHeader { token: pull.token, ..FrameHeader::new(FrameKind::Accept, size_of::<AcceptPayload>() as u64) };
        self.reply(from, header, bytemuck::bytes_of(&accept));
    }

    pub(super) fn accepted(&mut self, src: Rank, token: u32, accept: AcceptPayload) -> Result<(), String> {
        let Some(PendingOp::Send { dest, region, .. }) = self.ops.get_mut(token) else {
            // It has left since, and the send has ended with that error.
            let left = self.links[src.index()].left;
            return if left { Ok(()) } else { Err(format!("accepted send {token}, which is not pending")) };
        };
        let end = accept.offset.checked_add(accept.len);
        if *dest != src || end.is_none_or(|end| end > region.len as u64) {
            return Err(format!("accepted send {token}, which was not offered that way"));
        }
        // SAFETY: the offset is within the region, as just checked.
        let ptr = unsafe { region.ptr.add(accept.offset as usize) };
        let region = MemoryRegion { ptr, len: accept.len as usize };
        let link = &mut self.links[src.index()];
        if accept.addr != 0 {
            if link.claims.is_none() || region.len == 0 {
                return Err(format!("asked to share the copying of send {token}, which is not possible"));
            }
            let chunks = region.len.div_ceil(shared_chunk_bytes(region.len)) as u32;
            let transfer = ChunkTransfer { generation: accept.token as u32, chunks };
            self.helps.push(AssistedSend { dest: src, from: region, addr: accept.addr, transfer });
            return Ok(());
        }
        if link.queue.is_empty() && link.streams.is_empty() {
            self.busy.push(src);
        }
        link.streams.push_back(OutgoingStream { op: token, token: accept.token as u32, region, offset: 0, sent: 0 });
        Ok(())
    }

    fn finish_pull(&mut self, from: Rank, pull: &PendingPull) {
        self.finish_recv(pull.op);
        self.reply(from, FrameHeader { token: pull.token, ..FrameHeader::new(FrameKind::Done, 0) }, &[]);
    }

    /// Takes back the chunks that peers have not yet taken of messages that both sides copy, and waits for chunks
    /// that they are copying now: afterwards nobody writes into a receive buffer any more, and its owner may free it.
    pub(super) fn settle_pulls(&mut self, concerns: impl Fn(Rank) -> bool) {
        for from in self.pulling.iter().filter(|from| concerns(**from)) {
            let link = &self.links[from.index()];
            let Some((claim, _)) = &link.claims else { continue };
            for transfer in link.pulls.waiting.iter().filter_map(|pull| pull.shared).map(|shared| shared.transfer) {
                while claim.take_front(transfer).is_some() {
                    claim.finish(1);
                }
                let deadline = coarse_now() + CHUNK_TIMEOUT;
                while !claim.is_complete(transfer) && coarse_now() < deadline {
                    std::thread::yield_now();
                }
            }
        }
    }
}

fn drain_link(
    transport: &mut dyn Transport,
    dest: Rank,
    link: &mut PeerLink,
    ops: &mut OpTable,
) -> Result<bool, TransportError> {
    let mut moved = false;
    loop {
        // Queued frames go before further pieces, so that a small message never waits behind a large one; but a piece
        // that is partly sent is finished first.
        if !link.streaming {
            while let Some(out) = link.queue.front_mut() {
                let before = out.sent;
                let push = transport.push(dest, &out.header, out.payload.as_slice(), &mut out.sent)?;
                moved |= out.sent != before;
                match push {
                    PushResult::Blocked => return Ok(moved),
                    PushResult::Sent => {
                        moved = true;
                        if let Some(op) = out.completes {
                            ops.complete(op, Ok(ReceiveStatus::default()));
                        }
                        link.queue.pop_front();
                    }
                }
            }
        }
        let Some(stream) = link.streams.front_mut() else { return Ok(moved) };
        let n = (stream.region.len - stream.offset).min(link.frame_bytes_max);
        let header = FrameHeader { token: stream.token, ..FrameHeader::new(FrameKind::Piece, n as u64) };
        // SAFETY: the send op is pending while its stream is queued, so the region is readable.
        let piece = unsafe { std::slice::from_raw_parts(stream.region.ptr.add(stream.offset), n) };
        let before = stream.sent;
        let push = transport.push(dest, &header, piece, &mut stream.sent)?;
        moved |= stream.sent != before;
        match push {
            PushResult::Blocked => {
                link.streaming = stream.sent > 0;
                return Ok(moved);
            }
            PushResult::Sent => {
                moved = true;
                link.streaming = false;
                stream.offset += n;
                stream.sent = 0;
                if stream.offset == stream.region.len {
                    ops.complete(stream.op, Ok(ReceiveStatus::default()));
                    link.streams.pop_front();
                } else {
                    // Several large messages to one peer share the link.
                    link.streams.rotate_left(1);
                }
            }
        }
    }
}
