//! The inputs of an algorithm: the collective, its name, and the numbers it depends on.

use std::fmt;
use std::str::FromStr;

use crate::overlay::Overlay;
use crate::schedule::{BufferId, BufferRange};

macro_rules! named_enum {
    ($(#[$doc:meta])* $name:ident, $what:literal { $($(#[$vdoc:meta])* $variant:ident = $text:literal,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum $name { $($(#[$vdoc])* $variant,)* }

        impl $name {
            /// All variants.
            pub const ALL: &'static [$name] = &[$($name::$variant,)*];

            /// The name used in tables and options.
            pub fn name(self) -> &'static str {
                match self { $($name::$variant => $text,)* }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(self.name())
            }
        }

        impl FromStr for $name {
            type Err = UnknownName;

            fn from_str(text: &str) -> Result<Self, UnknownName> {
                Self::ALL.iter().copied().find(|v| v.name() == text).ok_or_else(|| UnknownName {
                    what: $what,
                    text: text.to_owned(),
                    known: Self::ALL.iter().map(|v| v.name()).collect::<Vec<_>>().join(", "),
                })
            }
        }
    };
}

/// A text that does not name a collective or algorithm.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown {what} {text:?}; choose one of: {known}")]
pub struct UnknownName {
    what: &'static str,
    text: String,
    known: String,
}

named_enum! {
    /// A collective operation and the contents of its buffers, in elements. Block i is `i * count .. (i + 1) * count`.
    ///
    /// | collective | `Send` | `Recv` | with `in_place`, `Send` is |
    /// |---|---|---|---|
    /// | barrier | nothing | nothing | |
    /// | bcast | nothing | `count`, the source at the root | |
    /// | reduce | `count` | root: `count` | root: `Recv` |
    /// | allreduce, scan, exscan | `count` | `count` (exscan: rank 0's is left alone) | `Recv` |
    /// | gather | `count` | root: P blocks | root: block `root` of `Recv` |
    /// | gatherv | `count` (own) | root: `recv_blocks` | root: `recv_blocks[root]` |
    /// | allgather | `count` | P blocks | block `rank` of `Recv` |
    /// | allgatherv | `count` (own) | `recv_blocks` | `recv_blocks[rank]` |
    /// | scatter | root: P blocks | `count` | root: `Recv` is block `root` of `Send` |
    /// | scatterv | root: `send_blocks` | `count` (own) | root: `Recv` is `send_blocks[root]` |
    /// | alltoall | P blocks | P blocks | `Recv` |
    /// | alltoallv | `send_blocks` | `recv_blocks` | `Recv`; `send_blocks` equal `recv_blocks` |
    /// | reduce_scatter_block | P blocks | `count` | `Recv`, which is P blocks long |
    /// | reduce_scatter | `send_blocks`, without gaps, in rank order | `send_blocks[rank].len` | `Recv`, as long as `Send` |
    Collective, "collective" {
        /// No rank leaves before all have arrived.
        Barrier = "barrier",
        /// The root's vector to all ranks.
        Bcast = "bcast",
        /// The combination of all ranks' vectors to the root.
        Reduce = "reduce",
        /// The combination of all ranks' vectors to all ranks.
        Allreduce = "allreduce",
        /// Every rank's block to the root.
        Gather = "gather",
        /// Gather with blocks of different lengths.
        Gatherv = "gatherv",
        /// Every rank's block to all ranks.
        Allgather = "allgather",
        /// Allgather with blocks of different lengths.
        Allgatherv = "allgatherv",
        /// One of the root's blocks to each rank.
        Scatter = "scatter",
        /// Scatter with blocks of different lengths.
        Scatterv = "scatterv",
        /// Block i of rank j becomes block j of rank i.
        Alltoall = "alltoall",
        /// Alltoall with blocks of different lengths.
        Alltoallv = "alltoallv",
        /// Block i of the combination to rank i.
        ReduceScatterBlock = "reduce_scatter_block",
        /// The same with blocks of different lengths.
        ReduceScatter = "reduce_scatter",
        /// The combination of the vectors of ranks up to and including this one.
        Scan = "scan",
        /// The combination of the vectors of lower ranks.
        Exscan = "exscan",
    }
}

named_enum! {
    /// A way of running collectives; see the table of [`crate::algorithms`].
    Algorithm, "algorithm" {
        /// A star: the root exchanges messages with all ranks.
        Flat = "flat",
        /// A balanced binary tree, pipelined by chunk.
        Binary = "binary",
        /// A binomial tree.
        Binomial = "binomial",
        /// A chain, pipelined by chunk.
        Chain = "chain",
        /// Scatter, then allgather (van de Geijn).
        ScatterAllgather = "scatter_allgather",
        /// Exchanges everything with a partner at doubling distance.
        RecursiveDoubling = "recursive_doubling",
        /// Exchanges halves (reduce_scatter).
        RecursiveHalving = "recursive_halving",
        /// Recursive halving, then doubling (Rabenseifner).
        HalvingDoubling = "halving_doubling",
        /// Neighbor to neighbor.
        Ring = "ring",
        /// Store and forward at doubling distance.
        Bruck = "bruck",
        /// One partner per step, a different one each step.
        Pairwise = "pairwise",
        /// All ranks to all ranks, everything posted at once.
        Linear = "linear",
        /// Signals at doubling distance.
        Dissemination = "dissemination",
        /// Within hosts, then between their leaders.
        TwoLevel = "two_level",
        /// Through shared memory, without messages or a schedule. Only for blocking calls, on one host.
        SharedMemory = "shared_memory",
        /// Directly out of the peers' memory; otherwise like `SharedMemory`.
        SingleCopy = "single_copy",
        /// Along the trees of the communicator's overlay. Never chosen automatically, only on request.
        Overlay = "overlay",
        /// Along an overlay that follows the rates of links, if that is faster. Never chosen automatically.
        Adaptive = "adaptive",
    }
}

impl Algorithm {
    /// Whether it works without messages, and so has no schedule.
    pub fn is_direct(self) -> bool {
        matches!(self, Algorithm::SharedMemory | Algorithm::SingleCopy)
    }
}

/// A part of a buffer of a vector variant, in elements.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct VectorBlock {
    /// First element.
    pub start: usize,
    /// Elements.
    pub len: usize,
}

/// The first element after all blocks.
pub(crate) fn blocks_end(blocks: &[VectorBlock]) -> usize {
    blocks.iter().map(|block| block.start + block.len).max().unwrap_or(0)
}

/// The inputs of a schedule. These are local to a rank: `rank`, `in_place`, and, in the vector variants, whatever MPI
/// makes local (gatherv: `recv_blocks`, at the root only; scatterv: `send_blocks`, at the root only; alltoallv: both;
/// all: `start` of `recv_blocks`). Everything else is the same on every rank.
#[derive(Clone, Copy, Debug)]
pub struct ScheduleParams<'a> {
    /// This rank.
    pub rank: u32,
    /// Ranks of the communicator.
    pub size: u32,
    /// The root of rooted collectives; ignored by others.
    pub root: u32,
    /// Elements of a vector or of one block; see [`Collective`]. For gatherv, allgatherv and scatterv: this rank's.
    pub count: usize,
    /// Where the blocks lie in `Send`, by rank; see [`Collective`].
    pub send_blocks: &'a [VectorBlock],
    /// Where the blocks lie in `Recv`, by rank; see [`Collective`].
    pub recv_blocks: &'a [VectorBlock],
    /// Elements of a pipelined chunk; 0: the whole vector at once. Ignored by algorithms without chunks.
    pub chunk: usize,
    /// The host of each rank, in any numbering; empty: all on one host.
    pub hosts: &'a [u32],
    /// Whether operands may be exchanged.
    pub commutative: bool,
    /// Whether each element must be combined in the canonical order, whatever the message size and placement.
    pub repeatable: bool,
    /// Whether `Send` is a part of `Recv`; see [`Collective`]. For rooted collectives it counts at the root only.
    pub in_place: bool,
    /// The trees of [`Algorithm::Overlay`].
    pub overlay: Option<&'a Overlay>,
}

impl<'a> ScheduleParams<'a> {
    /// Params of a commutative operation with all other fields empty, to be completed by struct update.
    pub fn new(rank: u32, size: u32) -> ScheduleParams<'a> {
        ScheduleParams {
            rank,
            size,
            root: 0,
            count: 0,
            send_blocks: &[],
            recv_blocks: &[],
            chunk: 0,
            hosts: &[],
            commutative: true,
            repeatable: false,
            in_place: false,
            overlay: None,
        }
    }

    /// Whether contributions must be combined in rank order.
    pub(crate) fn in_order(&self) -> bool {
        !self.commutative || self.repeatable
    }

    /// The whole of a `Send` of `count` elements.
    pub(crate) fn own(&self) -> BufferRange {
        BufferRange { buffer: BufferId::Send, start: 0, len: self.count }
    }

    /// The whole of a `Recv` of `count` elements.
    pub(crate) fn result(&self) -> BufferRange {
        BufferRange { buffer: BufferId::Recv, start: 0, len: self.count }
    }

    /// Block `rank` of `Send`.
    pub(crate) fn send_block(&self, rank: u32) -> BufferRange {
        block(BufferId::Send, self.send_blocks, self.count, rank)
    }

    /// Block `rank` of `Recv`.
    pub(crate) fn recv_block(&self, rank: u32) -> BufferRange {
        block(BufferId::Recv, self.recv_blocks, self.count, rank)
    }

    /// The rank `distance` above this one, around the circle.
    pub(crate) fn above(&self, distance: u32) -> u32 {
        ((u64::from(self.rank) + u64::from(distance)) % u64::from(self.size)) as u32
    }

    /// The rank `distance <= size` below this one, around the circle.
    pub(crate) fn below(&self, distance: u32) -> u32 {
        self.above(self.size - distance)
    }

    /// Elements of `Send` that the collective may read.
    pub(crate) fn send_len(&self, collective: Collective) -> usize {
        use Collective::*;
        match collective {
            Alltoallv | ReduceScatter => self.send_blocks.iter().map(|b| b.start + b.len).max().unwrap_or(0),
            Alltoall | ReduceScatterBlock => self.size as usize * self.count,
            _ => self.count,
        }
    }

    pub(crate) fn check(&self, collective: Collective) {
        use Collective::*;
        let ScheduleParams { rank, size, root, .. } = *self;
        assert!(rank < size, "rank {rank} is out of range for a communicator of size {size}");
        assert!(root < size, "root {root} is out of range for a communicator of size {size}");
        let p = size as usize;
        assert!(self.hosts.is_empty() || self.hosts.len() == p, "hosts must name the host of every rank, or be empty");
        let at_root = rank == root;
        let send = matches!(collective, Alltoallv | ReduceScatter) || collective == Scatterv && at_root;
        let recv = matches!(collective, Alltoallv | Allgatherv) || collective == Gatherv && at_root;
        assert!(self.send_blocks.len() == if send { p } else { 0 }, "send_blocks of {collective}: 1 per rank or none");
        assert!(self.recv_blocks.len() == if recv { p } else { 0 }, "recv_blocks of {collective}: 1 per rank or none");
        if collective == Allgatherv {
            let own = self.recv_blocks[rank as usize].len;
            assert!(own == self.count, "rank {rank} sends {} elements, but recv_blocks say {own}", self.count);
        }
    }
}

fn block(buffer: BufferId, blocks: &[VectorBlock], count: usize, rank: u32) -> BufferRange {
    match blocks.get(rank as usize) {
        Some(block) => BufferRange { buffer, start: block.start, len: block.len },
        None => BufferRange { buffer, start: rank as usize * count, len: count },
    }
}
