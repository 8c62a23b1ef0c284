//! Which blocking calls run without messages, and how: through slots of shared memory, or directly out of the peers'
//! memory.
//!
//! Every rank must come to the same answer, so it depends only on values that all of them share.

use super::DATA_BYTES;
use crate::algorithms::blocks_end;
use crate::call::{CollectiveCall, CombineOrder};
use crate::{Algorithm, Collective};

/// Smallest vector for which reading the peers' memory pays, without measurements.
const SINGLE_COPY_BYTES_MIN: usize = 128 << 10;

/// Largest vector that goes through the slots chunk by chunk, without measurements.
const CHUNKED_BYTES_MAX: usize = 128 << 10;

/// The same for a broadcast among ranks that share cores; larger ones are read from peers' memory. Such ranks take
/// turns, so a chunk that one has just written or read is still in the core's cache when the next one reads it.
const BCAST_TURNS_BYTES_MAX: usize = 4 << 20;

/// The rules for blocking calls on one host, flattened because every call looks them up.
#[derive(Default)]
pub(crate) struct BlockingRules(pub(crate) Vec<Vec<(usize, Algorithm)>>);

impl BlockingRules {
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The rule for a call of `bytes` in total.
    pub(crate) fn find(&self, call: &CollectiveCall, bytes: usize) -> Option<Algorithm> {
        let reduces = call.reduces();
        let order = CombineOrder::new(!reduces || call.op.is_commutative(), reduces && call.options.repeatable);
        let rules = self.0.get(call.collective as usize * CombineOrder::ALL.len() + order as usize)?;
        let rule = rules.iter().find(|(bytes_max, _)| bytes <= *bytes_max).or_else(|| rules.last());
        rule.map(|&(_, algorithm)| algorithm)
    }
}

/// How a communicator whose ranks share memory chooses.
#[derive(Default)]
pub(crate) struct DirectChooser {
    pub ranks: usize,
    /// Every rank has a core to itself.
    pub own_cores: bool,
    /// Every rank can read every other's memory.
    pub single_copy: bool,
    /// The measured rules.
    pub rules: BlockingRules,
}

impl DirectChooser {
    /// The algorithm without messages that runs a call of `bytes` in total; `None`: the call uses messages.
    #[inline]
    pub(crate) fn choose(&self, call: &CollectiveCall, bytes: impl FnOnce() -> usize) -> Option<Algorithm> {
        if call.options.algorithm.is_some() || self.rules.is_empty() {
            return self.untuned(call);
        }
        match self.rules.find(call, bytes()) {
            Some(rule) if !rule.is_direct() => None,
            Some(rule) if self.obstacle(rule, call).is_none() => Some(rule),
            _ => self.untuned(call),
        }
    }

    /// The choice without measurements: the requested algorithm, if it can run the call.
    #[inline]
    pub(crate) fn untuned(&self, call: &CollectiveCall) -> Option<Algorithm> {
        if let Some(asked) = call.options.algorithm {
            return self.obstacle(asked, call).is_none().then_some(asked);
        }
        if self.single_copy && self.single_copy_pays(call) && self.obstacle(Algorithm::SingleCopy, call).is_none() {
            return Some(Algorithm::SingleCopy);
        }
        let takes_turns = call.collective == Collective::Bcast && self.takes_turns();
        let bytes_max = if takes_turns { BCAST_TURNS_BYTES_MAX } else { CHUNKED_BYTES_MAX };
        let short = block_bytes_max(call) <= bytes_max;
        (short && self.obstacle(Algorithm::SharedMemory, call).is_none()).then_some(Algorithm::SharedMemory)
    }

    /// Whether this is a broadcast among ranks that take turns on cores.
    fn takes_turns(&self) -> bool {
        self.ranks > 2 && !self.own_cores
    }

    fn single_copy_pays(&self, call: &CollectiveCall) -> bool {
        use Collective::*;
        let bytes = call.count * call.dtype.size_bytes();
        match call.collective {
            Allreduce => bytes >= SINGLE_COPY_BYTES_MIN,
            Bcast if self.takes_turns() => bytes > BCAST_TURNS_BYTES_MAX,
            // Two ranks need one message, which the transport copies just as well.
            Bcast => self.ranks > 2 && bytes >= SINGLE_COPY_BYTES_MIN,
            Gather | Allgather | Scatter => bytes >= SINGLE_COPY_BYTES_MIN / 2,
            // Blocks that are this long on average.
            Allgatherv => {
                let elements: usize = call.recv_blocks.iter().map(|block| block.len).sum();
                elements * call.dtype.size_bytes() >= SINGLE_COPY_BYTES_MIN / 2 * self.ranks
            }
            Alltoall => bytes * self.ranks >= SINGLE_COPY_BYTES_MIN,
            _ => false,
        }
    }

    /// Why `algorithm` cannot run the call without messages, if it cannot.
    #[inline]
    pub(crate) fn obstacle(&self, algorithm: Algorithm, call: &CollectiveCall) -> Option<&'static str> {
        use Collective::*;
        let bytes = call.count * call.dtype.size_bytes();
        if call.options.repeatable && call.reduces() && self.ranks > 2 {
            return Some("it combines in rank order, not in canonical order, which `repeatable` requires");
        }
        match algorithm {
            _ if !direct_algorithms(call.collective).contains(&algorithm) => Some("it does not run this collective"),
            Algorithm::SharedMemory => {
                let part = match call.collective {
                    Gather | Allgather | Scan | Exscan => bytes,
                    Allgatherv => block_bytes_max(call),
                    Scatter | Alltoall | ReduceScatterBlock => bytes * self.ranks,
                    ReduceScatter => blocks_end(call.send_blocks) * call.dtype.size_bytes(),
                    // In chunks.
                    _ => 0,
                };
                (part > DATA_BYTES).then_some("a rank contributes more than the 32 KiB of a slot")
            }
            _ if !self.single_copy => Some("these workers cannot read each other's memory (`tidemill info` says why)"),
            _ if call.collective == Alltoall && call.send.is_none() => {
                Some("in place, it would overwrite data that other ranks still have to read")
            }
            _ => None,
        }
    }
}

/// The longest block of a vector variant, which every rank knows; otherwise the contribution of every rank.
#[inline]
fn block_bytes_max(call: &CollectiveCall) -> usize {
    let elements = match call.collective {
        Collective::Allgatherv => call.recv_blocks.iter().map(|block| block.len).max().unwrap_or(0),
        Collective::ReduceScatter => call.send_blocks.iter().map(|block| block.len).max().unwrap_or(0),
        _ => call.count,
    };
    elements * call.dtype.size_bytes()
}

const _: () = assert!(DATA_BYTES == 32 << 10, "the message above says so");

/// The algorithms without messages that can run `collective` for at least some sizes.
pub fn direct_algorithms(collective: Collective) -> &'static [Algorithm] {
    use Collective::*;
    match collective {
        Barrier | Reduce | Scan | Exscan | ReduceScatterBlock | ReduceScatter => &[Algorithm::SharedMemory],
        Bcast | Allreduce | Gather | Allgather | Allgatherv | Scatter | Alltoall => {
            &[Algorithm::SharedMemory, Algorithm::SingleCopy]
        }
        // Not every rank knows the lengths of the others' blocks, so they could not make the same choice.
        Gatherv | Scatterv | Alltoallv => &[],
    }
}
