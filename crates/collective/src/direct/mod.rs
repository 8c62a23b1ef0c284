//! Direct collectives: ranks on one host read each other's contributions from shared memory, without messages.
//!
//! | collective | publishes | reads | memory traffic per rank |
//! |---|---|---|---|
//! | barrier | all, nothing | all | P lines |
//! | bcast, scatter | root | all | n, or n / P |
//! | reduce, gather | all | root | root: nP |
//! | allreduce, scan, exscan, reduce_scatter(_block) | all | all | nP, combined in rank order |
//! | allgather(v), alltoall | all | all | nP |
//!
//! Large allreduces read the peers' memory instead, see [`large`]. A bcast, reduce or allreduce of more than a slot
//! goes in chunks, one turn each, and one rank may already be at the next chunk. Operands are combined in rank order,
//! so any operation works, and the result does not depend on timing. Messages are faster for large payloads and many
//! ranks; [`choose`] decides, based on data that is the same on every rank.
//!
//! Source: the flat shared-memory collectives of Open MPI's `sm` and MPICH's release/gather (Jain et al., SC 2018),
//! with the stamp in the data's cache line.

mod area;
mod choose;
mod large;

use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use tidemill_net::{MemoryRegion, NetError, copy_slice};

pub(crate) use area::{DATA_BYTES, SharedArea};
pub use choose::direct_algorithms;
pub(crate) use choose::{BlockingRules, DirectChooser};
pub(crate) use large::LargeProgress;

use crate::{Collective, DType, ReduceOp, VectorBlock, reduce};
use area::SLOTS;

/// One rank's side of an area, over the life of a communicator.
pub(crate) struct DirectChannel {
    area: SharedArea,
    rank: usize,
    size: usize,
    /// The last turn begun.
    turn: u32,
    /// Every rank is done with this turn, as far as this rank knows.
    done_by_all: u32,
    chain: u32,
}

/// A call's work, as the direct collectives need it.
pub(crate) struct DirectOperation {
    pub collective: Collective,
    pub root: usize,
    pub dtype: DType,
    pub signature: u32,
    /// The caller's contribution; for in-place calls it may be part of `recv`.
    pub send: MemoryRegion,
    pub recv: MemoryRegion,
    /// In a vector variant: the block of each rank, in bytes. The lengths are the same on every rank.
    pub blocks: Option<Arc<[VectorBlock]>>,
}

impl DirectOperation {
    /// The block of a rank, in bytes; `len` bytes for each rank if all are equal.
    #[inline]
    fn block(&self, rank: usize, len: usize) -> VectorBlock {
        match &self.blocks {
            Some(blocks) => blocks[rank],
            None => VectorBlock { start: rank * len, len },
        }
    }
}

/// The progress of a call. Advanced between polls until the call is over.
pub(crate) struct DirectProgress {
    /// First byte of the current chunk.
    offset: usize,
    stage: DirectStage,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum DirectStage {
    /// A turn is about to begin.
    Publish,
    /// The contributions of this rank and later ones still have to be read.
    Read(usize),
}

impl DirectProgress {
    /// Changes whenever this rank has published something or finished with something.
    pub(crate) fn moved(&self) -> (usize, bool) {
        (self.offset, self.stage == DirectStage::Publish)
    }
}

/// Bytes of a turn of a chunked call. A broadcast's readers copy while the root publishes the next chunk, so its chunks
/// are smaller than a slot.
#[inline]
fn chunk_bytes(job: &DirectOperation) -> usize {
    if job.collective == Collective::Bcast { BCAST_CHUNK_BYTES } else { DATA_BYTES }
}

const BCAST_CHUNK_BYTES: usize = 16 << 10;

/// The result of polling a direct call.
pub(crate) enum DirectPoll {
    /// A peer has to act first.
    Waiting,
    /// Some work was done, and more is possible.
    Moved,
    /// The call is over.
    Done,
    /// A peer published under another signature: its call differs.
    Contradicted(usize),
    /// The operation failed.
    Failed(NetError),
}

impl DirectChannel {
    pub(crate) fn new(area: SharedArea, rank: usize, size: usize) -> Self {
        DirectChannel { area, rank, size, turn: 0, done_by_all: 0, chain: 0 }
    }

    pub(crate) fn area(&self) -> &SharedArea {
        &self.area
    }

    pub(crate) fn start() -> DirectProgress {
        DirectProgress { offset: 0, stage: DirectStage::Publish }
    }

    /// The rank for which a stuck call waits.
    pub(crate) fn waiting_for(&self, progress: &DirectProgress) -> Option<usize> {
        match progress.stage {
            DirectStage::Read(rank) => Some(rank),
            DirectStage::Publish => {
                let needed = self.turn.wrapping_add(1).wrapping_sub(SLOTS);
                (0..self.size).find(|&r| (self.area.done(r).load(Ordering::Relaxed).wrapping_sub(needed) as i32) < 0)
            }
        }
    }

    /// The fingerprint under which the next call publishes. It covers this call and all earlier direct calls, so that a
    /// difference that no rank happened to see at the time still shows at the next call.
    #[inline]
    pub(crate) fn chain(&mut self, signature: u32) -> u32 {
        self.chain = (self.chain.rotate_left(5) ^ signature).wrapping_mul(0x9e37_79b1);
        self.chain
    }

    /// A peer that made a different call under this number, according to the marks that every collective leaves.
    pub(crate) fn find_contradiction(&self, seq: u32, signature: u32) -> Option<usize> {
        (0..self.size).find(|&r| matches!(self.area.call(r, seq), Some((other, _)) if other != signature))
    }

    /// The first recent collective up to `seq` that `rank` called differently, and its call.
    pub(crate) fn divergence(&self, rank: usize, seq: u32) -> Option<(u32, [u64; 2])> {
        (seq.saturating_sub(SLOTS - 1)..=seq).find_map(|s| {
            let ((ours, _), (theirs, call)) = (self.area.call(self.rank, s)?, self.area.call(rank, s)?);
            (ours != theirs).then_some((s, call))
        })
    }

    /// The number of ranks that may sleep although this one has published something; they must be woken before a call
    /// returns.
    #[inline]
    pub(crate) fn sleepers(&self) -> u32 {
        // Orders the stamps and done marks before this read; the sleeper orders its announcement before its last look.
        fence(Ordering::SeqCst);
        self.area.sleepers().load(Ordering::Relaxed)
    }

    /// Makes the progress that is possible now.
    ///
    /// # Safety
    /// `job`'s regions are valid (`send` readable, `recv` writable), of the lengths its collective needs, and the same
    /// on each call for one `progress`. Calls on one `DirectChannel` are made one after the other.
    #[inline]
    pub(crate) unsafe fn poll(
        &mut self,
        job: &DirectOperation,
        op: &ReduceOp,
        progress: &mut DirectProgress,
    ) -> DirectPoll {
        loop {
            match progress.stage {
                DirectStage::Publish => {
                    let turn = self.turn.wrapping_add(1);
                    if !self.slot_is_free(turn) {
                        return DirectPoll::Waiting;
                    }
                    self.turn = turn;
                    if self.publishes(job) {
                        // SAFETY: the slot is free, and this is its rank.
                        unsafe { self.area.publish(self.rank, turn, job.signature, self.contribution(job, progress)) };
                    }
                    progress.stage = DirectStage::Read(self.first_to_read(job));
                }
                DirectStage::Read(from) => {
                    let reads_from = self.readers_sources(job);
                    for rank in from.max(reads_from.start)..reads_from.end {
                        match self.area.published(rank, self.turn) {
                            None => {
                                progress.stage = DirectStage::Read(rank);
                                return DirectPoll::Waiting;
                            }
                            Some(signature) if signature != job.signature => return DirectPoll::Contradicted(rank),
                            Some(_) => {}
                        }
                        // SAFETY: published under our own signature, hence with our own lengths.
                        if let Err(error) = unsafe { self.take(job, op, progress, rank) } {
                            return DirectPoll::Failed(error);
                        }
                    }
                    self.finish_turn(reads_from.len() == self.size);
                    progress.offset += chunk_bytes(job);
                    if progress.offset >= self.total(job) {
                        return DirectPoll::Done;
                    }
                    progress.stage = DirectStage::Publish;
                }
            }
        }
    }

    /// This rank no longer needs the turn's slots; `met_all` if it has read every rank's.
    #[inline]
    fn finish_turn(&mut self, met_all: bool) {
        self.area.done(self.rank).store(self.turn, Ordering::Release);
        if met_all {
            // A rank publishes a turn only when it is done with the one before.
            self.done_by_all = self.turn.wrapping_sub(1);
        }
    }

    #[inline]
    fn slot_is_free(&mut self, turn: u32) -> bool {
        let needed = turn.wrapping_sub(SLOTS);
        if self.done_by_all.wrapping_sub(needed) as i32 >= 0 {
            return true;
        }
        let done = (0..self.size).map(|r| self.area.done(r).load(Ordering::Acquire));
        // Turns wrap, so "smallest" is relative to the turn needed.
        let behind = done.map(|d| d.wrapping_sub(needed) as i32).min().unwrap_or(0);
        self.done_by_all = needed.wrapping_add_signed(behind);
        behind >= 0
    }

    #[inline]
    fn publishes(&self, job: &DirectOperation) -> bool {
        match job.collective {
            Collective::Bcast | Collective::Scatter => self.rank == job.root,
            _ => true,
        }
    }

    /// The ranks whose contributions this rank reads.
    #[inline]
    fn readers_sources(&self, job: &DirectOperation) -> std::ops::Range<usize> {
        match job.collective {
            Collective::Bcast if self.rank == job.root => 0..0,
            Collective::Bcast | Collective::Scatter => job.root..job.root + 1,
            Collective::Reduce | Collective::Gather if self.rank != job.root => 0..0,
            Collective::Scan => 0..self.rank + 1,
            Collective::Exscan => 0..self.rank,
            _ => 0..self.size,
        }
    }

    #[inline]
    fn first_to_read(&self, job: &DirectOperation) -> usize {
        self.readers_sources(job).start
    }

    /// Bytes of the whole call that go in chunks.
    #[inline]
    fn total(&self, job: &DirectOperation) -> usize {
        match job.collective {
            Collective::Bcast => job.recv.len,
            Collective::Reduce | Collective::Allreduce => job.send.len,
            _ => 0,
        }
    }

    fn contribution<'a>(&self, job: &'a DirectOperation, progress: &DirectProgress) -> &'a [u8] {
        let whole = if job.collective == Collective::Bcast { job.recv } else { job.send };
        let chunk = match job.collective {
            Collective::Bcast | Collective::Reduce | Collective::Allreduce => {
                progress.offset..(progress.offset + chunk_bytes(job)).min(whole.len)
            }
            _ => 0..whole.len,
        };
        // SAFETY: within the region, which is readable by `poll`'s contract.
        unsafe { std::slice::from_raw_parts(whole.ptr.add(chunk.start), chunk.len()) }
    }

    /// Copies or combines `rank`'s contribution to the current turn.
    ///
    /// # Safety
    /// It is published, under the job's signature.
    #[inline]
    unsafe fn take(
        &self,
        job: &DirectOperation,
        op: &ReduceOp,
        progress: &DirectProgress,
        rank: usize,
    ) -> Result<(), NetError> {
        let recv = |start: usize, len: usize| {
            assert!(start + len <= job.recv.len, "a direct collective stays within its receive buffer");
            // SAFETY: in bounds of the region, which is writable and ours by `poll`'s contract.
            unsafe { std::slice::from_raw_parts_mut(job.recv.ptr.add(start), len) }
        };
        // SAFETY: by the caller's promise; `len` is what the same call publishes on every rank.
        let theirs = |len: usize| unsafe { self.area.contribution(rank, self.turn, len) };
        let n = job.send.len;
        match job.collective {
            Collective::Barrier => {}
            Collective::Bcast => {
                let len = (job.recv.len - progress.offset).min(chunk_bytes(job));
                copy_slice(recv(progress.offset, len), theirs(len));
            }
            Collective::Scatter => {
                let len = job.recv.len;
                copy_slice(recv(0, len), &theirs(len * self.size)[self.rank * len..][..len]);
            }
            Collective::Gather | Collective::Allgather | Collective::Allgatherv => {
                let VectorBlock { start, len } = job.block(rank, n);
                copy_slice(recv(start, len), theirs(len));
            }
            Collective::Alltoall => {
                let len = n / self.size;
                copy_slice(recv(rank * len, len), &theirs(n)[self.rank * len..][..len]);
            }
            Collective::Reduce | Collective::Allreduce => {
                let len = (n - progress.offset).min(DATA_BYTES);
                return self.fold(job, op, rank, theirs(len), recv(progress.offset, len));
            }
            Collective::Scan | Collective::Exscan => return self.fold(job, op, rank, theirs(n), recv(0, n)),
            Collective::ReduceScatterBlock | Collective::ReduceScatter => {
                let VectorBlock { start, len } = job.block(self.rank, n / self.size);
                return self.fold(job, op, rank, &theirs(n)[start..][..len], recv(0, len));
            }
            _ => unreachable!("the communicator sends no other collective here"),
        }
        Ok(())
    }

    /// Combines in rank order: rank 0's contribution is copied, rank 1's read together with it, and so on.
    #[inline]
    fn fold(
        &self,
        job: &DirectOperation,
        op: &ReduceOp,
        rank: usize,
        theirs: &[u8],
        into: &mut [u8],
    ) -> Result<(), NetError> {
        if rank == 0 {
            copy_slice(into, theirs);
            return Ok(());
        }
        reduce::reduce_right(op, job.dtype, into, theirs).map_err(|error| NetError::Operation(error.to_string()))
    }
}
