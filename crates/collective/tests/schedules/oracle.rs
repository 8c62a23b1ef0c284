//! The expected `Recv` of each collective, computed from all ranks' inputs in the simplest way.

use std::sync::LazyLock;

use crate::runner::{Alias, Memory, POISON, Random};
use tidemill_collective::{Algorithm, Collective, ScheduleParams, VectorBlock};

/// One collective call of all ranks.
#[derive(Clone, Debug)]
pub struct Case {
    pub collective: Collective,
    #[allow(dead_code)] // one of the two suites only shows it when a case fails
    pub algorithm: Algorithm,
    pub size: u32,
    pub root: u32,
    /// Elements of the vector or block; the vector variants take `counts` instead.
    pub count: usize,
    pub chunk: usize,
    pub hosts: Vec<u32>,
    pub commutative: bool,
    pub repeatable: bool,
    /// 0: no rank in place, 1: all ranks (rooted collectives: the root), 2: every other rank.
    pub in_place: u32,
    pub seed: u64,
}

/// Up to this number of ranks, every run tries all cases of a matrix: powers of two and both their neighbors.
const RANKS_ALWAYS: u32 = 9;

/// The share of the other cases that a run tries (`SIMULATION_EFFORT`; 1 in `make test-all`), and the seed of the draw.
static DRAW: LazyLock<(f64, u64)> = LazyLock::new(|| {
    let number = |name: &str| std::env::var(name).ok().map(|text| text.parse::<f64>().expect(name));
    (number("SIMULATION_EFFORT").unwrap_or(0.2), number("TIDEMILL_TEST_SEED").unwrap_or(0.0) as u64)
});

/// Whether the collective has a root.
pub fn is_rooted(collective: Collective) -> bool {
    use Collective::*;
    matches!(collective, Bcast | Reduce | Gather | Gatherv | Scatter | Scatterv)
}

/// Whether elements are combined.
pub fn reduces(collective: Collective) -> bool {
    use Collective::*;
    matches!(collective, Reduce | Allreduce | ReduceScatter | ReduceScatterBlock | Scan | Exscan)
}

/// A test for each collective, named after it, that calls a function with it.
macro_rules! each_collective {
    ($exhaust:ident) => {
        $crate::oracle::each_collective! { $exhaust:
            barrier: Barrier,
            bcast: Bcast,
            reduce: Reduce,
            allreduce: Allreduce,
            gather: Gather,
            gatherv: Gatherv,
            allgather: Allgather,
            allgatherv: Allgatherv,
            scatter: Scatter,
            scatterv: Scatterv,
            alltoall: Alltoall,
            alltoallv: Alltoallv,
            reduce_scatter_block: ReduceScatterBlock,
            reduce_scatter: ReduceScatter,
            scan: Scan,
            exscan: Exscan,
        }
    };
    ($exhaust:ident: $($name:ident: $collective:ident,)*) => {$(
        #[test]
        fn $name() {
            $exhaust(Collective::$collective);
        }
    )*};
}
pub(crate) use each_collective;

/// Combines elements in order; the default operation needs both sides in the right place.
pub fn compose(left: u64, right: u64) -> u64 {
    // Affine maps x -> a x + b modulo a prime: associative, not commutative.
    const P: u64 = 2_147_483_647;
    let ((a, b), (c, d)) = ((left >> 32, left & 0xffff_ffff), (right >> 32, right & 0xffff_ffff));
    ((a * c % P) << 32) | ((a * d + b) % P)
}

/// A value unique to this (rank, index), valid for [`compose`].
pub fn input(seed: u64, rank: u32, index: usize) -> u64 {
    let raw = Random(seed ^ (u64::from(rank) << 40) ^ index as u64).next();
    ((raw >> 33) % 2_147_483_646 + 1) << 32 | (raw & 0x7fff_fffe)
}

impl Case {
    /// Whether this run tries the case. The cost of a matrix grows with the third power of its ranks, so a run draws
    /// some of the cases with many ranks; over time, all of them run.
    pub fn is_drawn(&self) -> bool {
        let (share, seed) = *DRAW;
        let drawn = Random(seed ^ (self.seed << 24) ^ (u64::from(self.size) << 8) ^ self.collective as u64).next();
        self.size <= RANKS_ALWAYS || ((drawn >> 11) as f64) < share * (1u64 << 53) as f64
    }

    pub fn is_in_place(&self, rank: u32) -> bool {
        let here = match self.in_place {
            0 => false,
            1 => true,
            _ => rank % 2 == 1,
        };
        let rooted = matches!(
            self.collective,
            Collective::Reduce | Collective::Gather | Collective::Gatherv | Collective::Scatter | Collective::Scatterv
        );
        here && (!rooted || rank == self.root) && !matches!(self.collective, Collective::Barrier | Collective::Bcast)
    }

    /// Length of the block that rank `from` has for rank `to`, in the vector variants.
    fn len(&self, from: u32, to: u32) -> usize {
        use Collective::*;
        let pick = |key: u32| match self.count {
            0 => 0,
            n => Random(self.seed ^ 77 ^ (u64::from(key) << 20)).below(4 * n).saturating_sub(n),
        };
        match self.collective {
            Gatherv | Allgatherv => pick(from),
            Scatterv | ReduceScatter => pick(to),
            // In place, the data for a rank must be as long as the data from it.
            Alltoallv if self.in_place > 0 => pick(from.min(to) * 64 + from.max(to)),
            Alltoallv => pick(from * 64 + to),
            _ => self.count,
        }
    }

    /// Blocks of the given lengths with gaps between them, in an order that differs by rank.
    fn layout(&self, rank: u32, lens: &[usize]) -> Vec<VectorBlock> {
        let mut random = Random(self.seed ^ u64::from(rank) << 8);
        let mut order: Vec<usize> = (0..lens.len()).collect();
        for i in (1..order.len()).rev() {
            order.swap(i, random.below(i + 1));
        }
        let mut blocks = vec![VectorBlock::default(); lens.len()];
        let mut start = 0;
        for i in order {
            start += random.below(3);
            blocks[i] = VectorBlock { start, len: lens[i] };
            start += lens[i];
        }
        blocks
    }

    /// Blocks of `Send` and `Recv` by rank, in the form of [`ScheduleParams`].
    pub fn blocks(&self, rank: u32) -> (Vec<VectorBlock>, Vec<VectorBlock>) {
        use Collective::*;
        let all = 0..self.size;
        match self.collective {
            Gatherv if rank == self.root => {
                (vec![], self.layout(rank, &all.map(|r| self.len(r, 0)).collect::<Vec<_>>()))
            }
            Allgatherv => (vec![], self.layout(rank, &all.map(|r| self.len(r, 0)).collect::<Vec<_>>())),
            Scatterv if rank == self.root => {
                (self.layout(rank, &all.map(|r| self.len(0, r)).collect::<Vec<_>>()), vec![])
            }
            Alltoallv => {
                let send = all.clone().map(|r| self.len(rank, r)).collect::<Vec<_>>();
                let recv = all.map(|r| self.len(r, rank)).collect::<Vec<_>>();
                let recv = self.layout(rank, &recv);
                if self.is_in_place(rank) { (recv.clone(), recv) } else { (self.layout(rank + 1000, &send), recv) }
            }
            ReduceScatter => {
                let mut start = 0;
                let block = |to| {
                    let len = self.len(0, to);
                    start += len;
                    VectorBlock { start: start - len, len }
                };
                (all.map(block).collect(), vec![])
            }
            _ => (vec![], vec![]),
        }
    }

    /// The number of elements that this rank passes as `count`.
    fn own_count(&self, rank: u32) -> usize {
        use Collective::*;
        match self.collective {
            Gatherv | Allgatherv => self.len(rank, 0),
            Scatterv => self.len(0, rank),
            Barrier | Alltoallv | ReduceScatter => 0,
            _ => self.count,
        }
    }

    pub fn params<'a>(
        &'a self,
        rank: u32,
        send_blocks: &'a [VectorBlock],
        recv_blocks: &'a [VectorBlock],
    ) -> ScheduleParams<'a> {
        ScheduleParams {
            root: self.root,
            count: self.own_count(rank),
            send_blocks,
            recv_blocks,
            chunk: self.chunk,
            hosts: &self.hosts,
            commutative: self.commutative,
            repeatable: self.repeatable,
            in_place: self.is_in_place(rank),
            ..ScheduleParams::new(rank, self.size)
        }
    }

    /// The contribution of `rank`, as its whole `Send`, ignoring the layout: a list of blocks by receiving rank for
    /// collectives that send blocks, else one vector.
    fn contribution(&self, rank: u32) -> Vec<Vec<u64>> {
        use Collective::*;
        let mut next = 0;
        let mut block = |len: usize| {
            next += len;
            (next - len..next).map(|i| input(self.seed, rank, i)).collect::<Vec<_>>()
        };
        match self.collective {
            Barrier => vec![],
            Scatter | Scatterv if rank != self.root => vec![],
            Scatter | Scatterv | Alltoall | Alltoallv | ReduceScatterBlock | ReduceScatter => {
                (0..self.size).map(|to| block(self.len(rank, to))).collect()
            }
            _ => vec![block(self.own_count(rank))],
        }
    }

    /// Memory before the call, and the expected `Recv` after it.
    pub fn memory(&self, rank: u32, op: &dyn Fn(u64, u64) -> u64) -> (Memory, Vec<u64>) {
        use Collective::*;
        let (size, p, at_root) = (self.size, self.size as usize, rank == self.root);
        let (send_blocks, recv_blocks) = self.blocks(rank);
        let even: Vec<VectorBlock> = (0..p).map(|i| VectorBlock { start: i * self.count, len: self.count }).collect();
        let whole = |len| vec![VectorBlock { start: 0, len }];
        let or_even = |blocks: &Vec<VectorBlock>| if blocks.is_empty() { even.clone() } else { blocks.clone() };
        let end = |blocks: &[VectorBlock]| blocks.iter().map(|b| b.start + b.len).max().unwrap_or(0);
        let count = self.own_count(rank);

        // Send: our contribution, laid out.
        let mine = self.contribution(rank);
        let send_layout = match self.collective {
            _ if mine.is_empty() => vec![],
            Bcast => vec![],
            Scatter | Scatterv | Alltoall | Alltoallv | ReduceScatterBlock | ReduceScatter => or_even(&send_blocks),
            _ => whole(count),
        };
        let mut send = vec![POISON; end(&send_layout)];
        for (block, data) in send_layout.iter().zip(&mine) {
            send[block.start..block.start + block.len].copy_from_slice(data);
        }

        // Recv: the blocks that are written, and their contents.
        let others: Vec<Vec<Vec<u64>>> = (0..size).map(|r| self.contribution(r)).collect();
        let fold = |ranks: std::ops::Range<u32>, part: usize| {
            let vectors = ranks.map(|r| others[r as usize][part].clone());
            vectors.reduce(|left, right| left.iter().zip(&right).map(|(&l, &r)| op(l, r)).collect())
        };
        let (recv_layout, result): (Vec<VectorBlock>, Vec<Vec<u64>>) = match self.collective {
            Barrier => (vec![], vec![]),
            Bcast => (whole(count), others[self.root as usize].clone()),
            Reduce if !at_root => (vec![], vec![]),
            Reduce | Allreduce => (whole(count), fold(0..size, 0).into_iter().collect()),
            Gather | Gatherv if !at_root => (vec![], vec![]),
            Gather | Gatherv | Allgather | Allgatherv => {
                (or_even(&recv_blocks), others.iter().map(|o| o[0].clone()).collect())
            }
            Scatter | Scatterv => (whole(count), vec![others[self.root as usize][rank as usize].clone()]),
            Alltoall | Alltoallv => (or_even(&recv_blocks), others.iter().map(|o| o[rank as usize].clone()).collect()),
            ReduceScatterBlock | ReduceScatter => {
                (whole(self.len(0, rank)), fold(0..size, rank as usize).into_iter().collect())
            }
            Scan => (whole(count), fold(0..rank + 1, 0).into_iter().collect()),
            Exscan => (whole(count), fold(0..rank, 0).into_iter().collect()),
        };
        let in_place = self.is_in_place(rank);
        let mut recv = vec![POISON; end(&recv_layout)];
        let mut alias = Alias::None;
        if self.collective == Bcast && at_root {
            recv.clone_from(&mine[0]);
        }
        let mut expected;
        if in_place && matches!(self.collective, Scatter | Scatterv) {
            alias = Alias::RecvInSend(send_layout[rank as usize].start);
            return (Memory::new(send.clone(), vec![], alias), send);
        } else if in_place {
            let at = match self.collective {
                Gather | Gatherv | Allgather | Allgatherv => or_even(&recv_blocks)[rank as usize].start,
                _ => 0,
            };
            alias = Alias::SendInRecv(at);
            recv.resize(recv.len().max(at + send.len()), POISON);
            recv[at..at + send.len()].copy_from_slice(&send);
            expected = recv.clone();
            send.clear();
        } else {
            expected = recv.clone();
        }
        for (block, data) in recv_layout.iter().zip(&result) {
            expected[block.start..block.start + block.len].copy_from_slice(data);
        }
        if in_place && matches!(self.collective, ReduceScatterBlock | ReduceScatter) {
            // The rest of Recv, which held the input, is unspecified.
            expected.truncate(recv_layout[0].len);
        }
        (Memory::new(send, recv, alias), expected)
    }
}
