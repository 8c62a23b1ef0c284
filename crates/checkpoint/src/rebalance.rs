//! Buckets of tasks' keys that move to other copies, as far as a barrier and a checkpoint know of it.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tidemill_batch::route_map::RouteMap;

/// New route maps, all of which are taken at one barrier, or none.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rebalance {
    /// By task which of its copies owns which bucket. A map's version is greater than that of the task's map before.
    pub maps: BTreeMap<String, RouteMap>,
}

/// What a rebalance has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MoveReport {
    /// The epoch at whose end buckets have moved.
    pub epoch: u64,
    /// Buckets with a new owner, of all tasks.
    pub buckets: u32,
    /// Bytes of state that were handed over.
    pub bytes: u64,
    /// The longest that a copy took no rows.
    pub waited: Duration,
}
