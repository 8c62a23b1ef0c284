//! The simulated network: what a collective would cost on machines we do not have, and a transport on which one seed
//! replays a whole job.
//!
//! - [`cost`] runs the schedules of all ranks under a [`Model`] in virtual time and says how long they take;
//! - [`SimNetwork`] is a network for [`tidemill_net::Transport`]s in one thread: delays, reordering between pairs (never
//!   within one), exhausted credit, lost workers, all from one seed and in virtual time.

mod cost;
mod network;
mod random;

pub use cost::{Cost, cost};
pub use network::{SimNetwork, SimOptions, SimTransport};
pub use random::Random;
pub use tidemill_collective::tuner::{Link, Model};
