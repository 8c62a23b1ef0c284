//! Exchanges: how the output of one task reaches another. Each edge of a graph names one.
//!
//! | exchange           | who gets a row                                                     | made of                         |
//! |--------------------|--------------------------------------------------------------------|---------------------------------|
//! | [`Direct`]         | the copy with the sender's number                                  | one mover                       |
//! | [`Broadcast`]      | every copy                                                         | one mover, over a tree          |
//! | [`Gather`]         | one copy                                                           | one mover, or a tree            |
//! | [`Partition`]      | the copy that owns its key, comes next in turn, or a function names | one mover                       |
//! | [`KeyedReduce`]    | the copy that owns its key, reduced to one row for each key         | reduce, combine, perhaps in trees, reduce |
//! | [`KeyedGather`]    | the copy that owns its key, one key after the other                 | partition, sort                 |
//! | [`Reduce`]         | one copy, all reduced to one row                                    | reduce, a tree that combines    |
//! | [`AllReduce`]      | every copy, all reduced to one row                                  | the same, broadcast             |
//! | [`Sort`]           | the copy of its range, in order                                     | samples, partition, sort        |
//! | [`Join`]           | the copy that owns its key, beside its partners                     | two partitions, a hash join     |
//! | [`Union`]          | as the exchange beneath says; of several sources                    | a mover for each source         |
//! | [`Rounds`]         | as the exchange beneath says; message by message                    | the same, with marks between rounds |
//!
//! [`Broadcast`] from several copies is an all-gather: every copy gets what all copies sent.
//!
//! Each is a type in its own file, and lowers itself to movers and stages; programs can add their own.

mod broadcast;
mod direct;
mod gather;
mod join;
mod keyed_gather;
mod keyed_reduce;
mod keyed_tree;
mod partition;
mod reduce;
mod round_tree;
mod rounds;
mod slice_rows;
mod sort;
mod time_slices;
mod tree;
mod union;

use arrow::datatypes::SchemaRef;

pub use broadcast::Broadcast;
pub use direct::Direct;
pub use gather::Gather;
pub use join::Join;
pub use keyed_gather::KeyedGather;
pub use keyed_reduce::KeyedReduce;
pub use partition::{Partition, TargetFunction};
pub use reduce::{AllReduce, Reduce};
pub use rounds::Rounds;
pub use sort::Sort;
pub use union::Union;

pub use tidemill_batch::local::{
    ColumnOp, FoldFunction, JoinKind, Reduction, RoundEnd, RoundUnit, SortKey, TimeSlices,
};

use crate::flow::Lowering;
use crate::overlay::{OverlayChoice, WorkerNetwork};

/// The ends of an edge, as an exchange checks them.
pub struct EdgeSignature<'a> {
    /// What leaves each source.
    pub schemas: &'a [SchemaRef],
    /// Copies of each source.
    pub source_copies: Vec<u32>,
    /// Copies of the target.
    pub target_copies: u32,
}

impl EdgeSignature<'_> {
    /// The schema of the only source.
    ///
    /// # Errors
    /// When there are several.
    pub fn only(&self) -> Result<&SchemaRef, String> {
        match self.schemas {
            [schema] => Ok(schema),
            _ => Err(format!("it takes one source, but has {}", self.schemas.len())),
        }
    }
}

/// Where the copies at the ends of an edge run.
pub struct EdgeWorkers<'a> {
    /// The worker of each copy of the first source.
    pub sources: &'a [u32],
    /// The worker of each copy of the target.
    pub targets: &'a [u32],
    /// Where all workers are.
    pub network: &'a WorkerNetwork,
    /// What a round is, if the edge goes by rounds.
    pub rounds: Option<RoundUnit>,
}

impl EdgeWorkers<'_> {
    /// The overlay of a broadcast from `root` to `members`, and why.
    pub fn explain_downward(&self, choice: OverlayChoice, root: u32, members: &[u32]) -> String {
        choice.explain(choice.choose(root, members, self.network), root, members, &self.network.hosts)
    }

    /// The overlay of a reduction or gather from `members` to `root`, and why.
    pub fn explain_upward(&self, choice: OverlayChoice, root: u32, members: &[u32]) -> String {
        choice.explain(choice.choose_upward(root, members, self.network), root, members, &self.network.hosts)
    }
}

/// An edge's way of moving batches.
pub trait Exchange: Send + Sync {
    /// In words, with everything that matters: the same on every worker.
    fn describe(&self) -> String;

    /// The schema that arrives.
    ///
    /// # Errors
    /// In words, when the ends do not fit the exchange.
    fn check(&self, ends: &EdgeSignature<'_>) -> Result<SchemaRef, String>;

    /// Says what happens when a source runs out of rounds before the others; `None` without [`Rounds`].
    fn rounds(&self) -> Option<RoundEnd> {
        None
    }

    /// What of a source is of one round, with [`Rounds`].
    fn round_unit(&self) -> RoundUnit {
        RoundUnit::Message
    }

    /// Whether [`Rounds`] can wrap it: it can handle one message of each source by itself.
    fn allows_rounds(&self) -> bool {
        false
    }

    /// What it has chosen for copies that run there, for people; `None` where it has nothing to choose.
    fn explain(&self, _ends: &EdgeWorkers<'_>) -> Option<String> {
        None
    }

    /// Adds the movers and stages it is made of. Called after `check`, on every worker.
    fn lower(&self, lowering: &mut Lowering<'_>);
}
