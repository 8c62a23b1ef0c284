//! The simulated network: the cost of a collective on machines that are not available, and a transport on which one
//! seed replays a whole job.
//!
//! Modules, lowest first; each uses only those above it:
//!
//! | module    | what                                                                          |
//! |-----------|-------------------------------------------------------------------------------|
//! | `random`  | Random choices that a seed replays                                            |
//! | [`cost`]  | The schedules of all ranks in virtual time, under a [`CostModel`]                 |
//! | `network` | A network in one thread and in virtual time, for [`tidemill_net::Transport`]s |

mod cost;
mod network;
mod random;

pub use cost::{RunCost, cost};
pub use network::{SimNetwork, SimOptions, SimTransport};
pub use random::{SplitMix64, share_of_seeds};
pub use tidemill_collective::tuner::{CostModel, LinkCost};
