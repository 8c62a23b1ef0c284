//! Buckets of a task's keys that move to other copies, as far as a barrier and a checkpoint know of it.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use tidemill_batch::route_map::RouteMap;

/// A new route map for a task.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rebalance {
    /// The task's name.
    pub task: String,
    /// Which of its copies owns which bucket. Its version is greater than that of the map before.
    pub map: RouteMap,
}

/// What a rebalance has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MoveReport {
    /// The epoch at whose end buckets have moved.
    pub epoch: u64,
    /// Buckets with a new owner.
    pub buckets: u32,
    /// Bytes of state that were handed over.
    pub bytes: u64,
    /// The longest that a copy took no rows.
    pub waited: Duration,
}
