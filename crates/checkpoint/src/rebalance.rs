//! Moves of tasks' key buckets to other copies, as barriers and checkpoints see them.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tidemill_batch::route_map::RouteMap;

/// New route maps, which all take effect at one barrier, or not at all.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rebalance {
    /// By task, which copy owns which bucket. A map's version is greater than that of the task's previous map.
    pub maps: BTreeMap<String, RouteMap>,
}

/// The outcome of a rebalance.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MoveReport {
    /// The epoch at whose end buckets moved.
    pub epoch: u64,
    /// The number of buckets with a new owner, over all tasks.
    pub buckets: u32,
    /// Bytes of state that were handed over.
    pub bytes: u64,
    /// The longest time that a copy did not accept rows.
    pub waited: Duration,
}
