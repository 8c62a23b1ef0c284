//! Moves bytes between workers: transports, frames, credits, the rendezvous that joins a job, failure detection.
//!
//! Usable alone, without Arrow or the rest of Tidemill. Linux, 64-bit, little-endian.
//!
//! Modules, lowest first; each uses only those above it:
//!
//! | module        | what                                                         |
//! |---------------|--------------------------------------------------------------|
//! | `rank`        | The number of a worker within its job                        |
//! | `frame`       | A 32-byte header and a payload: all that crosses a transport |
//! | `notice`      | Messages on standard error that no error carries             |
//! | `secret`      | The shared secret of a job's workers                         |
//! | `fork`        | Protects the job from `fork`                                 |
//! | `bell`        | A descriptor with which one thread wakes another             |
//! | `sync`        | The atomics of the lock-free files, which loom replaces      |
//! | `threads`     | Native threads that take no signals                          |
//! | `copy`        | Memory copies that do not depend on addresses                |
//! | `segment`     | Memory that several workers map                              |
//! | `claim`       | Two workers copy one large message together                  |
//! | `doorbell`    | Sleep and wake-up across processes                           |
//! | `interfaces`  | The addresses of this host                                   |
//! | `error`       | Errors between workers                                       |
//! | `ring`        | A single-producer, single-consumer ring of frames            |
//! | `transport`   | The trait that all transports implement                      |
//! | `local`       | The transport between workers of one host                    |
//! | `handshake`   | How two workers connect and authenticate each other          |
//! | `control`     | The control plane: membership of the job                     |
//! | `environment` | What launchers set in the environment                        |
//! | `rendezvous`  | How workers join a job                                       |
//! | `measure`     | What the control plane takes of the processor                |
//! | `tcp`         | The transport between hosts                                  |
//! | `topology`    | Where workers run: hosts, sockets, cores                     |
//! | `endpoint`    | A worker's connection to its peers                           |

#[cfg(not(all(target_os = "linux", target_endian = "little", target_pointer_width = "64")))]
compile_error!("tidemill-net runs on 64-bit little-endian Linux");

mod bell;
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
mod handshake;
mod interfaces;
pub mod local;
pub mod measure;
#[doc(hidden)]
pub mod notice;
mod rank;
pub mod rendezvous;
mod ring;
mod secret;
mod segment;
mod sync;
pub mod tcp;
mod threads;
pub mod topology;
mod transport;

pub use control::{ControlError, ControlEvent, ControlHandle, ControlPlane, FAILURE_TIMEOUT, MessageTarget};
pub use copy::{copy, copy_or_move, copy_slice};
pub use doorbell::{Doorbell, DoorbellHandle, SleepGuard, WakeReason};
pub use endpoint::{
    CallDescriber, CallMismatch, CallWait, Endpoint, EndpointSettings, Engine, EngineTask, Envelope, FaultRegistry,
    GroupId, MatchPattern, MemoryRegion, OpenError, ProbedMessage, ReceiveStatus, TransportChoice,
};
pub use error::NetError;
pub use frame::{AcceptPayload, FrameHeader, FrameKind, HEADER_BYTES, OfferPayload};
pub use rank::Rank;
pub use segment::{Segment, SegmentError};
pub use threads::{interruptible, is_interrupted};
pub use transport::{
    FrameSink, LinkInfo, LocalClaim, OPEN_TIMEOUT, PushResult, Transport, TransportError, TransportLimits,
};
