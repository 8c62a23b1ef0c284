//! Leases on objects of a store: each has one holder at a time. They protect checkpoints and output that is about to
//! appear.
//!
//! | module       | contents                                                                            |
//! |--------------|-------------------------------------------------------------------------------------|
//! | `process`    | identifies the holder's process, and determines when it is certainly gone           |
//! | `protocol`   | decides who holds the object, without a clock or store, and explains why it is safe |
//! | `client`     | sends requests to the store and reads the clock                                     |
//! | `simulation` | several claimants, with clocks, delays and failures from one seed; for tests        |

mod client;
mod process;
mod protocol;
#[cfg(test)]
mod simulation;

use std::time::Duration;

pub use client::{ANSWER_MAX, ClaimOutcome, LeaseClient, is_gone, read};
pub use process::ProcessIdentity;
use protocol::LeaseTerms;
pub use protocol::{LeaseRecord, StoreAnswer};

/// How long the writer of a record may consider itself the holder, counted from when it began to write.
pub const HELD: Duration = LeaseTerms::USUAL.held;
