//! How two workers connect: one listens, the other calls, and both prove that they know the job's secret.
//!
//! Strangers, port scans, garbage and wrong secrets are refused, logged and harmless ([`gate`]).
//!
//! | module         | what                                         |
//! |----------------|----------------------------------------------|
//! | `proof`        | the handshake as a state machine             |
//! | `conversation` | one handshake on one socket                  |
//! | `gate`, `dial` | many handshakes: called, calling             |
//! | `listener`     | where a worker listens, for all that may ask |

pub(crate) mod conversation;
pub(crate) mod dial;
pub(crate) mod gate;
mod listener;
pub(crate) mod proof;

pub use listener::PeerListener;
