//! A description of a collective call in sixteen bytes. Every rank records its own, fingerprints travel with every
//! message, and when two differ, the error shows both calls in words.

use tidemill_net::MemoryRegion;

use crate::algorithms::supported;
use crate::{Algorithm, Collective, DType, PREDEFINED, ReduceOp, VectorBlock};

/// How to run a collective; by default the tuner decides.
#[derive(Clone, Copy, Debug, Default)]
pub struct CallOptions {
    /// This algorithm and no other.
    pub algorithm: Option<Algorithm>,
    /// Elements of a pipelined chunk, with `algorithm`.
    pub chunk: Option<usize>,
    /// Combine in an order that depends only on the number of ranks, so that floats repeat bit for bit.
    pub repeatable: bool,
}

/// What order of combination a call requires. Each class is measured separately.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum CombineOrder {
    /// None: commutative operations, and collectives that only move data.
    Any,
    /// Rank order.
    InOrder,
    /// The canonical order.
    Repeatable,
}

impl CombineOrder {
    /// All classes.
    pub const ALL: [CombineOrder; 3] = [CombineOrder::Any, CombineOrder::InOrder, CombineOrder::Repeatable];

    /// The name in table files.
    pub fn name(self) -> &'static str {
        match self {
            CombineOrder::Any => "any",
            CombineOrder::InOrder => "in_order",
            CombineOrder::Repeatable => "repeatable",
        }
    }

    #[inline]
    pub(crate) fn new(commutative: bool, repeatable: bool) -> CombineOrder {
        match (repeatable, commutative) {
            (true, _) => CombineOrder::Repeatable,
            (false, false) => CombineOrder::InOrder,
            (false, true) => CombineOrder::Any,
        }
    }

    /// Whether `algorithm` can run `collective` in this order wherever ranks lie.
    pub fn allows(self, collective: Collective, algorithm: Algorithm) -> bool {
        use Collective::{Allreduce, Reduce};
        // Combining by host keeps rank order only for some placements, which a query does not describe.
        let by_host = algorithm == Algorithm::TwoLevel && matches!(collective, Reduce | Allreduce);
        supported(collective).iter().any(|entry| {
            entry.algorithm == algorithm
                && match self {
                    CombineOrder::Any => true,
                    CombineOrder::InOrder => entry.in_order && !by_host,
                    CombineOrder::Repeatable => entry.repeatable,
                }
        })
    }
}

/// A collective call. [`Collective`] says which buffers and blocks it needs; lengths are in elements of `dtype`.
#[derive(Clone, Copy, Debug)]
pub struct CollectiveCall<'a> {
    /// What to do.
    pub collective: Collective,
    /// The element type.
    pub dtype: DType,
    /// The operation of a reduction; ignored by others.
    pub op: &'a ReduceOp,
    /// The root, if the collective has one.
    pub root: u32,
    /// Elements; see [`Collective`].
    pub count: usize,
    /// The contribution; `None` for in place (or nothing).
    pub send: Option<MemoryRegion>,
    /// The result; `None` if this rank gets none, or for the root of an in-place scatter.
    pub recv: Option<MemoryRegion>,
    /// Blocks of `send`, for vector variants.
    pub send_blocks: &'a [VectorBlock],
    /// Blocks of `recv`, for vector variants.
    pub recv_blocks: &'a [VectorBlock],
    /// How to run it.
    pub options: CallOptions,
}

/// The call does not block. It never matches a blocking collective.
pub(crate) const NONBLOCKING: u64 = 1 << 7;
const _: () = assert!(Collective::ALL.len() < 128);

const NO_OP_CODE: u64 = 0xff;
const USER_OP_CODE: u64 = 0xfe;

/// Six bits hold the requested algorithm, because schedules of different algorithms do not match. 0: none was
/// requested, and the tuner chose.
const ALGORITHM_SHIFT: u32 = 26;
const _: () = assert!(Algorithm::ALL.len() < 64);

impl CollectiveCall<'_> {
    /// A call with neither buffers nor blocks, to be completed by struct update.
    pub fn new(collective: Collective) -> CollectiveCall<'static> {
        CollectiveCall {
            collective,
            dtype: DType::U8,
            op: &ReduceOp::NoOp,
            root: 0,
            count: 0,
            send: None,
            recv: None,
            send_blocks: &[],
            recv_blocks: &[],
            options: CallOptions::default(),
        }
    }

    /// Whether operands are combined.
    pub fn reduces(&self) -> bool {
        use Collective::*;
        matches!(self.collective, Reduce | Allreduce | ReduceScatter | ReduceScatterBlock | Scan | Exscan)
    }

    /// Whether the collective has a root.
    pub fn is_rooted(&self) -> bool {
        use Collective::*;
        matches!(self.collective, Bcast | Reduce | Gather | Gatherv | Scatter | Scatterv)
    }

    /// Whether only the two ranks that exchange a message know its length.
    fn has_own_counts(&self) -> bool {
        use Collective::*;
        matches!(self.collective, Gatherv | Scatterv | Alltoallv)
    }

    /// The blocks whose lengths are the same on every rank.
    pub(crate) fn common_blocks(&self) -> Option<&[VectorBlock]> {
        match self.collective {
            Collective::Allgatherv => Some(self.recv_blocks),
            Collective::ReduceScatter => Some(self.send_blocks),
            _ => None,
        }
    }

    /// The call in sixteen bytes: everything that must be the same on every rank.
    #[inline]
    pub(crate) fn code(&self) -> [u64; 2] {
        let op = if self.reduces() { op_code(self.op) } else { NO_OP_CODE };
        let counts = self.common_blocks();
        // Without a root, its bits hold a digest that distinguishes counts with the same sum.
        let root = if self.is_rooted() { self.root } else { counts.map_or(0, digest) };
        let repeatable = u64::from(self.options.repeatable);
        // In-place alltoalls are in place on every rank (MPI 4.1 section 6.8).
        let in_place =
            u64::from(self.send.is_none() && matches!(self.collective, Collective::Alltoall | Collective::Alltoallv));
        let algorithm = self.options.algorithm.map_or(0, |a| a as u64 + 1);
        let word = algorithm << ALGORITHM_SHIFT
            | in_place << 25
            | self.collective as u64
            | op << 8
            | self.dtype.code() << 16
            | repeatable << 24
            | u64::from(root) << 32;
        let elements = counts.map_or(self.count, |blocks| blocks.iter().map(|block| block.len).sum());
        let bytes = if self.has_own_counts() { u64::MAX } else { (elements * self.dtype.size_bytes()) as u64 };
        [word, bytes]
    }

    /// The same for a call along the overlay with this fingerprint. The fingerprint takes the place of the root, since
    /// collectives along overlays have none.
    #[inline]
    pub(crate) fn code_along(&self, overlay: Option<u64>) -> [u64; 2] {
        let [word, bytes] = self.code();
        [word | overlay.map_or(0, |overlay| (overlay ^ overlay >> 32) << 32), bytes]
    }
}

/// A digest of the lengths of some blocks; different lengths almost always have different digests.
fn digest(blocks: &[VectorBlock]) -> u32 {
    let mix =
        |sum: u64, block: &VectorBlock| (sum.rotate_left(5) ^ block.len as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (blocks.iter().fold(1, mix) >> 32) as u32
}

fn op_code(op: &ReduceOp) -> u64 {
    match op {
        ReduceOp::User(_) => USER_OP_CODE,
        other => other.code(),
    }
}

/// The fingerprint of a call; never 0, which means none.
#[inline]
pub(crate) fn signature(code: [u64; 2]) -> u32 {
    let mixed =
        (code[0] ^ code[1].rotate_left(32).wrapping_mul(0x9e37_79b9_7f4a_7c15)).wrapping_mul(0xd6e8_feb8_6659_fd93);
    (mixed >> 32) as u32 | 1
}

/// The call in words.
pub(crate) fn describe([word, bytes]: [u64; 2]) -> String {
    let Some(collective) = Collective::ALL.get((word & 0x7f) as usize) else { return "an unknown call".into() };
    let dtype = DType::from_code(word >> 16 & 0xff);
    let item = dtype.map_or(1, DType::size_bytes) as u64;
    let mut parts = Vec::new();
    if bytes != u64::MAX && *collective != Collective::Barrier {
        match dtype {
            Some(dtype) if item > 0 => parts.push(format!("{} x {dtype}", bytes / item)),
            _ => parts.push(format!("{bytes} bytes")),
        }
    } else if let (Some(dtype), true) = (dtype, bytes == u64::MAX) {
        parts.push(dtype.to_string());
    }
    match word >> 8 & 0xff {
        NO_OP_CODE => {}
        USER_OP_CODE => parts.push("op=user".into()),
        code => {
            if let Some((_, name)) = PREDEFINED.iter().find(|(op, _)| op.code() == code) {
                parts.push(format!("op={name}"));
            }
        }
    }
    let call = CollectiveCall { root: (word >> 32) as u32, ..CollectiveCall::new(*collective) };
    if call.is_rooted() {
        parts.push(format!("root={}", call.root));
    }
    if call.common_blocks().is_some() {
        parts.push(format!("counts with digest {:08x}", call.root));
    }
    for (bit, name) in [(24, "repeatable"), (25, "in place")] {
        if word >> bit & 1 == 1 {
            parts.push(name.into());
        }
    }
    if let Some(i) = (word >> ALGORITHM_SHIFT & 63).checked_sub(1)
        && let Some(algorithm) = Algorithm::ALL.get(i as usize)
    {
        parts.push(format!("algorithm={algorithm}"));
        if *algorithm == Algorithm::Overlay {
            parts.push(format!("overlay {:08x}", call.root));
        }
    }
    let nonblocking = if word & NONBLOCKING == 0 { "" } else { "i" };
    format!("{nonblocking}{collective}({})", parts.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A wrong word would send a user to the wrong line of the wrong program.
    #[test]
    fn calls_are_described_as_they_were_made() {
        let call = CollectiveCall {
            dtype: DType::F64,
            op: &ReduceOp::Max,
            count: 3,
            ..CollectiveCall::new(Collective::Allreduce)
        };
        assert_eq!(describe(call.code()), "allreduce(3 x float64, op=max)");
        let call = CollectiveCall { dtype: DType::I32, root: 2, count: 1, ..CollectiveCall::new(Collective::Bcast) };
        assert_eq!(describe(call.code()), "bcast(1 x int32, root=2)");
        let [word, bytes] = CollectiveCall::new(Collective::Barrier).code();
        assert_eq!(describe([word, bytes]), "barrier()");
        assert_eq!(describe([word | NONBLOCKING, bytes]), "ibarrier()");
        let blocks = [VectorBlock { start: 0, len: 2 }, VectorBlock { start: 9, len: 1 }];
        let call =
            CollectiveCall { dtype: DType::F32, recv_blocks: &blocks, ..CollectiveCall::new(Collective::Allgatherv) };
        assert!(describe(call.code()).starts_with("allgatherv(3 x float32, counts with digest "));
        for &algorithm in Algorithm::ALL {
            let options = CallOptions { algorithm: Some(algorithm), repeatable: true, ..CallOptions::default() };
            let call = CollectiveCall { root: u32::MAX, options, ..CollectiveCall::new(Collective::Reduce) };
            let overlay = if algorithm == Algorithm::Overlay { ", overlay ffffffff" } else { "" };
            let words =
                format!("reduce(0 x uint8, op=no_op, root=4294967295, repeatable, algorithm={algorithm}{overlay})");
            assert_eq!(describe(call.code()), words);
        }
    }

    /// Differences that the fingerprint misses would go unnoticed until a hang.
    #[test]
    fn signatures_tell_calls_apart() {
        let base = CollectiveCall {
            dtype: DType::F64,
            op: &ReduceOp::Sum,
            count: 3,
            ..CollectiveCall::new(Collective::Allreduce)
        };
        let blocks = |lens: [usize; 2]| lens.map(|len| VectorBlock { start: 0, len });
        let others = [
            CollectiveCall { count: 4, ..base },
            CollectiveCall { op: &ReduceOp::Max, ..base },
            CollectiveCall { dtype: DType::I64, ..base },
            CollectiveCall { collective: Collective::Scan, ..base },
            CollectiveCall { collective: Collective::Reduce, root: 1, ..base },
            CollectiveCall { collective: Collective::Reduce, root: 0, ..base },
            CollectiveCall {
                options: CallOptions { algorithm: Some(Algorithm::Flat), ..CallOptions::default() },
                ..base
            },
            CollectiveCall {
                options: CallOptions { algorithm: Some(Algorithm::Ring), ..CallOptions::default() },
                ..base
            },
            CollectiveCall { collective: Collective::Allgatherv, recv_blocks: &blocks([1, 2]), ..base },
            CollectiveCall { collective: Collective::Allgatherv, recv_blocks: &blocks([2, 1]), ..base },
            CollectiveCall { collective: Collective::ReduceScatter, send_blocks: &blocks([2, 1]), ..base },
            CollectiveCall { collective: Collective::ReduceScatter, send_blocks: &blocks([2, 2]), ..base },
        ];
        let mut seen: Vec<u32> = others.iter().map(|c| signature(c.code())).collect();
        seen.push(signature(base.code()));
        seen.sort_unstable();
        seen.dedup();
        assert_eq!(seen.len(), others.len() + 1);
    }
}
