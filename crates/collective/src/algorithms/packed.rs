//! The blocks of an allgather side by side, so that runs of them travel in one message even though the places of blocks
//! in `Recv` may differ between ranks (allgatherv).

use super::builder::ScheduleBuilder;
use super::{ScheduleParams, VectorBlock};
use crate::schedule::{BufferId, BufferRange};

/// All blocks of an allgather side by side in rank order: in `Recv` itself if blocks have equal lengths, else in
/// scratch.
pub(crate) struct PackedBlocks {
    whole: BufferRange,
    /// Where each block starts, and the end of the last.
    starts: Vec<usize>,
}

impl PackedBlocks {
    pub(crate) fn new(b: &mut ScheduleBuilder, p: &ScheduleParams) -> Self {
        let mut starts = vec![0];
        for rank in 0..p.size as usize {
            starts.push(starts[rank] + p.recv_block(rank as u32).len);
        }
        let len = starts[p.size as usize];
        let whole = if p.recv_blocks.is_empty() {
            BufferRange { buffer: BufferId::Recv, start: 0, len }
        } else {
            b.scratch(len)
        };
        PackedBlocks { whole, starts }
    }

    pub(crate) fn block(&self, rank: u32) -> BufferRange {
        self.blocks(rank, rank + 1)
    }

    /// Blocks of ranks `first..end`.
    pub(crate) fn blocks(&self, first: u32, end: u32) -> BufferRange {
        let start = self.starts[first as usize];
        self.whole.part(start, self.starts[end as usize] - start)
    }

    /// Blocks of `count` ranks from `first` up, around the circle: one run, or two.
    pub(crate) fn circle(&self, first: u32, count: u32) -> impl Iterator<Item = BufferRange> {
        let size = self.starts.len() as u32 - 1;
        let to_end = count.min(size - first);
        let runs = [(first, first + to_end), (0, count - to_end)];
        runs.into_iter().filter(|run| run.0 < run.1).map(|run| self.blocks(run.0, run.1))
    }

    /// Moves the blocks to their places in `Recv`.
    pub(crate) fn unpack(&self, b: &mut ScheduleBuilder, p: &ScheduleParams) {
        for (rank, &VectorBlock { start, len }) in p.recv_blocks.iter().enumerate() {
            b.copy(self.block(rank as u32), BufferRange { buffer: BufferId::Recv, start, len });
        }
        b.next_round();
    }
}
