//! Who holds an object of a store: one at a time. Checkpoints and output that is about to appear are kept apart by it.
//!
//! | module       | what is in it                                                                     |
//! |--------------|-----------------------------------------------------------------------------------|
//! | `process`    | which process holds it, and when it is certain that it is gone                    |
//! | `protocol`   | who holds the object: decisions without a clock or a store, and why they are right |
//! | `client`     | asks the store and reads the clock                                                 |
//! | `simulation` | several that want it, with clocks, delays and failures from one seed; for tests   |

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

/// Who has written a record may take the object for its own for so long, counted from when it began to write.
pub const HELD: Duration = LeaseTerms::USUAL.held;
