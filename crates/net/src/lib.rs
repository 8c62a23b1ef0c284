//! Bytes between workers: transports, frames, credits, the rendezvous that joins a job, failure detection.
//!
//! Usable alone, without Arrow or the rest of Tidemill. Linux, 64-bit, little-endian.

#[cfg(not(all(target_os = "linux", target_endian = "little", target_pointer_width = "64")))]
compile_error!("tidemill-net runs on 64-bit little-endian Linux");

pub mod claim;
pub mod control;
mod copy;
mod doorbell;
pub mod endpoint;
pub mod environment;
mod error;
mod fork;
mod frame;
#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub mod fuzzing;
mod interfaces;
pub mod local;
#[doc(hidden)]
pub mod notice;
mod rank;
pub mod rendezvous;
mod ring;
mod segment;
mod sync;
pub mod tcp;
mod threads;
pub mod topology;
mod transport;

pub use control::{Control, ControlError, ControlEvent, ControlHandle, FAILURE_TIMEOUT, Target};
pub use copy::{copy, copy_or_move, copy_slice};
pub use doorbell::{Armed, Bell, Doorbell, Woken};
pub use endpoint::{
    Caller, Contradiction, Endpoint, Engine, Envelope, Faults, GroupId, Matched, OpenError, Pattern, Region, Settings,
    Status, Task, TransportChoice, Wait,
};
pub use error::NetError;
pub use frame::{Accept, HEADER_BYTES, Header, Kind, Offer};
pub use rank::Rank;
pub use segment::{Segment, SegmentError};
pub use threads::{interruptible, is_interrupted};
pub use transport::{Limits, OPEN_TIMEOUT, Push, Sink, Transport, TransportError};
