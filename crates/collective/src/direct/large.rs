//! Collectives of large vectors within a host, by reading the peers' memory.
//!
//! In turn A, all ranks publish the addresses of their buffers; each rank then copies what it needs directly out of its
//! owner's memory. In turn C, all ranks have finished reading, and buffers may be reused. A rank copies its own part
//! while it would otherwise wait for the others: one half in turn A, the other in turn C.
//!
//! Allreduce computes in between. Every rank owns a slice of the vector: it reads its slice of every peer's
//! contribution, a cache-sized chunk at a time, and combines it into its own result. In turn B all have done so, and
//! each rank reads the other slices directly out of their owners' results. Each rank reads and combines n(P - 1) / P
//! elements and copies as many: each byte crosses once, and no intermediate buffer leaves the cache. Operands are
//! combined in rank order. Source: Rabenseifner's reduce-scatter + allgather, with the single-copy exchange of
//! Chakraborty et al., "Designing efficient shared address space reduction collectives" (IPDPS 2018).

use tidemill_net::{Engine, NetError, Rank, copy_or_move};

use super::{DirectChannel, DirectOperation, DirectPoll};
use crate::stream::{self, STREAM_BYTES_MIN};
use crate::{Collective, OpError, ReduceOp, VectorBlock, reduce};

/// Bytes combined at a time: small enough to stay in a core's cache with its operands.
const CHUNK_BYTES: usize = 128 << 10;
/// Bytes copied at a time: long reads cost fewer system calls, and the data need not stay in the cache.
const READ_BYTES: usize = 1 << 20;

/// The progress of a large allreduce.
pub(crate) struct LargeProgress {
    stage: LargeStage,
    /// Send and receive address of each rank.
    addresses: Vec<(u64, u64)>,
    scratch: [Vec<u8>; 2],
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum LargeStage {
    Announce(LargeTurn),
    /// Copy this rank's own part, from this byte on.
    Own(LargeTurn, usize),
    Await(LargeTurn, usize),
    /// Combine the chunk at this byte of the own slice.
    Combine(usize),
    /// Read the chunk at `offset` of the slice of the rank `step` above this one.
    Collect {
        step: usize,
        offset: usize,
    },
    /// Reading this rank's memory failed.
    Gone(usize),
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum LargeTurn {
    Addresses,
    Combined,
    Collected,
}

/// Why a chunk was not combined.
enum ChunkFailure {
    Gone(usize),
    Operation(OpError),
}

/// Bytes at address `from` of their owner, which go to byte `into` of the receive buffer.
struct CopyRange {
    from: u64,
    into: usize,
    len: usize,
}

impl LargeProgress {
    pub(crate) fn new(collective: Collective) -> Self {
        let scratch_bytes = if collective == Collective::Allreduce { CHUNK_BYTES } else { 0 };
        LargeProgress {
            stage: LargeStage::Announce(LargeTurn::Addresses),
            addresses: Vec::new(),
            scratch: [vec![0; scratch_bytes], vec![0; scratch_bytes]],
        }
    }

    pub(crate) fn waits_for(&self) -> Option<usize> {
        match self.stage {
            LargeStage::Await(_, rank) | LargeStage::Gone(rank) => Some(rank),
            _ => None,
        }
    }
}

impl DirectChannel {
    /// Makes the progress that is possible now, at most one chunk.
    ///
    /// # Safety
    /// As [`DirectChannel::poll`]. `ranks` are the workers of the communicator, and this worker can read their memory.
    pub(crate) unsafe fn poll_large(
        &mut self,
        job: &DirectOperation,
        op: &ReduceOp,
        progress: &mut LargeProgress,
        ranks: &[Rank],
        engine: &mut Engine,
    ) -> DirectPoll {
        match progress.stage {
            LargeStage::Announce(turn) => {
                let next = self.turn.wrapping_add(1);
                if !self.slot_is_free(next) {
                    return DirectPoll::Waiting;
                }
                self.turn = next;
                let words = [job.send.ptr as u64, job.recv.ptr as u64].map(u64::to_ne_bytes);
                // SAFETY: the slot is free, and this is its rank.
                unsafe { self.area.publish(self.rank, next, job.signature, words.as_flattened()) };
                progress.stage = self.own_from(job, turn, self.own_half(job, turn).0);
                DirectPoll::Moved
            }
            LargeStage::Own(turn, offset) => {
                // SAFETY: by this function's contract.
                let n = unsafe { self.copy_own(job, turn, offset) };
                progress.stage = self.own_from(job, turn, offset + n);
                DirectPoll::Moved
            }
            LargeStage::Await(turn, from) => {
                for rank in from..self.size {
                    match self.area.published(rank, self.turn) {
                        None => {
                            progress.stage = LargeStage::Await(turn, rank);
                            return DirectPoll::Waiting;
                        }
                        Some(signature) if signature != job.signature => return DirectPoll::Contradicted(rank),
                        Some(_) => {}
                    }
                    if turn == LargeTurn::Addresses {
                        // SAFETY: published under our own signature, so it is what `Announce` publishes.
                        progress.addresses.push(unsafe { self.published_addresses(rank) });
                    }
                }
                self.finish_turn(true);
                progress.stage = match turn {
                    LargeTurn::Addresses if job.collective == Collective::Allreduce => LargeStage::Combine(0),
                    LargeTurn::Addresses | LargeTurn::Combined => LargeStage::Collect { step: 1, offset: 0 },
                    LargeTurn::Collected => return DirectPoll::Done,
                };
                DirectPoll::Moved
            }
            LargeStage::Combine(offset) => {
                let (start, len) = self.slice(job, self.rank);
                let n = (len - offset).min(CHUNK_BYTES);
                if n > 0 {
                    // SAFETY: by this function's contract.
                    let combined = unsafe { self.combine(job, op, progress, ranks, engine, start + offset, n) };
                    match combined {
                        Ok(()) => {}
                        Err(ChunkFailure::Gone(rank)) => {
                            progress.stage = LargeStage::Gone(rank);
                            return DirectPoll::Waiting;
                        }
                        Err(ChunkFailure::Operation(error)) => {
                            return DirectPoll::Failed(NetError::Operation(error.to_string()));
                        }
                    }
                }
                let end = offset + n == len;
                progress.stage =
                    if end { LargeStage::Announce(LargeTurn::Combined) } else { LargeStage::Combine(offset + n) };
                DirectPoll::Moved
            }
            LargeStage::Collect { step, offset } => {
                if step == self.size {
                    progress.stage = LargeStage::Announce(LargeTurn::Collected);
                    return DirectPoll::Moved;
                }
                let owner = (self.rank + step) % self.size;
                let part = self.part(job, progress.addresses[owner], owner);
                let n = (part.len - offset).min(READ_BYTES);
                if n > 0 {
                    assert!(part.into + part.len <= job.recv.len, "a part lies within the receive buffer");
                    let from = part.from + offset as u64;
                    // SAFETY: a part of the receive buffer, ours by this function's contract.
                    let into = unsafe { std::slice::from_raw_parts_mut(job.recv.ptr.add(part.into + offset), n) };
                    if !engine.read_peer(ranks[owner], from, into) {
                        progress.stage = LargeStage::Gone(owner);
                        return DirectPoll::Waiting;
                    }
                }
                progress.stage = if offset + n == part.len {
                    LargeStage::Collect { step: step + 1, offset: 0 }
                } else {
                    LargeStage::Collect { step, offset: offset + n }
                };
                DirectPoll::Moved
            }
            LargeStage::Gone(_) => DirectPoll::Waiting,
        }
    }

    /// Copies a piece of the own part, from byte `offset` on; returns its length.
    ///
    /// # Safety
    /// As [`DirectChannel::poll_large`].
    unsafe fn copy_own(&self, job: &DirectOperation, turn: LargeTurn, offset: usize) -> usize {
        let part = self.part(job, (job.send.ptr as u64, job.recv.ptr as u64), self.rank);
        assert!(part.into + part.len <= job.recv.len, "a part lies within the receive buffer");
        let n = (self.own_half(job, turn).1 - offset).min(READ_BYTES);
        let from = (part.from + offset as u64) as *const u8;
        // SAFETY: the own part lies in the send buffer, and goes into a part of the receive buffer; both belong to the
        // caller by `poll_large`'s contract.
        unsafe {
            let into = job.recv.ptr.add(part.into + offset);
            if part.len >= STREAM_BYTES_MIN && (from as usize).abs_diff(into as usize) >= part.len {
                stream::copy(from, into, n);
            } else {
                copy_or_move(from, into, n);
            }
        }
        n
    }

    /// The send and receive address that `rank` has published.
    ///
    /// # Safety
    /// It has published in this turn, under our own signature.
    unsafe fn published_addresses(&self, rank: usize) -> (u64, u64) {
        // SAFETY: so it is what `Announce` publishes.
        let words = unsafe { self.area.contribution(rank, self.turn, 16) };
        let word = |at: usize| u64::from_ne_bytes(words[at..at + 8].try_into().expect("eight bytes"));
        (word(0), word(8))
    }

    /// What to copy of the own part, from byte `offset` on, before waiting for the others.
    fn own_from(&self, job: &DirectOperation, turn: LargeTurn, offset: usize) -> LargeStage {
        if offset < self.own_half(job, turn).1 { LargeStage::Own(turn, offset) } else { LargeStage::Await(turn, 0) }
    }

    /// The byte range of its own part that a rank copies in this turn.
    fn own_half(&self, job: &DirectOperation, turn: LargeTurn) -> (usize, usize) {
        let len = self.part(job, (0, 0), self.rank).len;
        match turn {
            LargeTurn::Addresses => (0, len / 2),
            LargeTurn::Combined => (0, 0),
            LargeTurn::Collected => (len / 2, len),
        }
    }

    /// What this rank copies from `owner`'s memory, given the addresses of its send and receive buffers, and where it
    /// goes.
    fn part(&self, job: &DirectOperation, (send, recv): (u64, u64), owner: usize) -> CopyRange {
        let at_root = self.rank == job.root;
        let nothing = CopyRange { from: 0, into: 0, len: 0 };
        match job.collective {
            Collective::Allreduce if owner == self.rank => nothing,
            Collective::Allreduce => {
                let (start, len) = self.slice(job, owner);
                CopyRange { from: recv + start as u64, into: start, len }
            }
            Collective::Alltoall => {
                let len = job.send.len / self.size;
                CopyRange { from: send + (self.rank * len) as u64, into: owner * len, len }
            }
            Collective::Gather if !at_root => nothing,
            Collective::Gather | Collective::Allgather | Collective::Allgatherv => {
                let VectorBlock { start, len } = job.block(owner, job.send.len);
                CopyRange { from: send, into: start, len }
            }
            Collective::Bcast if owner == job.root && !at_root => CopyRange { from: recv, into: 0, len: job.recv.len },
            Collective::Scatter if owner == job.root => {
                let len = job.recv.len;
                CopyRange { from: send + (self.rank * len) as u64, into: 0, len }
            }
            _ => nothing,
        }
    }

    /// First byte and length of `rank`'s slice: whole elements, with slices as equal as possible.
    fn slice(&self, job: &DirectOperation, rank: usize) -> (usize, usize) {
        let item = job.dtype.size_bytes();
        let elements = job.send.len / item;
        let bound = |r: usize| elements * r / self.size * item;
        (bound(rank), bound(rank + 1) - bound(rank))
    }

    /// Combines all ranks' bytes `at..at + n` into the own result, in rank order.
    #[allow(clippy::too_many_arguments)] // one step of `poll_large`, split off to be read on its own
    unsafe fn combine(
        &self,
        job: &DirectOperation,
        op: &ReduceOp,
        progress: &mut LargeProgress,
        ranks: &[Rank],
        engine: &mut Engine,
        at: usize,
        n: usize,
    ) -> Result<(), ChunkFailure> {
        // SAFETY: parts of the caller's buffers, valid by `poll_large`'s contract. When the call is in place they are
        // the same memory, and then only `into` is used.
        let (own, into) = unsafe {
            (
                std::slice::from_raw_parts(job.send.ptr.add(at), n),
                std::slice::from_raw_parts_mut(job.recv.ptr.add(at), n),
            )
        };
        let in_place = job.send.ptr == job.recv.ptr;
        let [lower, theirs] = &mut progress.scratch;
        let (lower, theirs) = (&mut lower[..n], &mut theirs[..n]);
        let addresses = &progress.addresses;
        let mut read = |rank: usize, into: &mut [u8]| {
            let read = engine.read_peer(ranks[rank], addresses[rank].0 + at as u64, into);
            if read { Ok(()) } else { Err(ChunkFailure::Gone(rank)) }
        };
        if !in_place {
            // The first foreign part lands in the result itself; everything after it is combined there.
            if self.rank == 0 {
                read(1, into)?;
                reduce::reduce_left(op, job.dtype, own, into).map_err(ChunkFailure::Operation)?;
            } else {
                read(0, into)?;
            }
            for rank in if self.rank == 0 { 2 } else { 1 }..self.size {
                if rank == self.rank {
                    reduce::reduce_right(op, job.dtype, into, own).map_err(ChunkFailure::Operation)?;
                } else {
                    read(rank, theirs)?;
                    reduce::reduce_right(op, job.dtype, into, theirs).map_err(ChunkFailure::Operation)?;
                }
            }
            return Ok(());
        }
        for rank in 0..self.rank {
            if rank == 0 {
                read(rank, lower)?;
            } else {
                read(rank, theirs)?;
                reduce::reduce_right(op, job.dtype, lower, theirs).map_err(ChunkFailure::Operation)?;
            }
        }
        if self.rank > 0 {
            reduce::reduce_left(op, job.dtype, lower, into).map_err(ChunkFailure::Operation)?;
        }
        for rank in self.rank + 1..self.size {
            read(rank, theirs)?;
            reduce::reduce_right(op, job.dtype, into, theirs).map_err(ChunkFailure::Operation)?;
        }
        Ok(())
    }
}
