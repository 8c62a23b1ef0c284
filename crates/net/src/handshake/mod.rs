//! How two workers connect: one listens, the other calls, and both prove that they know the job's secret.
//!
//! Strangers, port scans, garbage and wrong secrets are refused and logged, and do no harm ([`gate`]).
//!
//! | module         | what                                         |
//! |----------------|----------------------------------------------|
//! | `proof`        | the handshake as a state machine             |
//! | `conversation` | one handshake on one socket                  |
//! | `gate`, `dial` | many handshakes: answering, calling          |
//! | `listener`     | where a worker listens                       |

pub(crate) mod conversation;
pub(crate) mod dial;
pub(crate) mod gate;
mod listener;
pub(crate) mod proof;

pub use listener::PeerListener;
