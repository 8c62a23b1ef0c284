//! Moves of tasks' key buckets, and of sources' splits, to other copies, as barriers and checkpoints see them.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tidemill_batch::route_map::RouteMap;

/// Splits of one source task that change owners: by the copy that reads them now, each with the copy that reads it
/// next.
pub type SplitMoves = BTreeMap<u32, BTreeMap<String, u32>>;

/// New route maps and owners of splits, which all take effect at one barrier, or not at all.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rebalance {
    /// By task, which copy owns which bucket. A map's version is greater than that of the task's previous map.
    pub maps: BTreeMap<String, RouteMap>,
    /// By source task, the splits that move.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub splits: BTreeMap<String, SplitMoves>,
    /// The workers that get no buckets and splits from then on, if they are other ones.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spares: Option<BTreeSet<u32>>,
}

/// The outcome of a rebalance.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MoveReport {
    /// The epoch at whose end buckets moved.
    pub epoch: u64,
    /// The number of buckets with a new owner, over all tasks.
    pub buckets: u32,
    /// The number of splits of sources that another copy has taken over. Splits that had ended stay.
    #[serde(default)]
    pub splits: u32,
    /// Bytes of state that were handed over.
    pub bytes: u64,
    /// The longest time that a copy did not accept rows.
    pub waited: Duration,
}
