//! Arrays between workers, in step: the communicator, schedules, algorithms and the tuner. Usable without Arrow.

pub mod algorithms;
mod dtype;
#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub mod fuzzing;
#[cfg(target_arch = "x86_64")]
mod half_lanes;
#[cfg(target_arch = "x86_64")]
mod long_double;
mod op;
pub mod parcel;
pub mod reduce;
pub mod schedule;
mod stream;
pub mod tuner;

pub use algorithms::{Algorithm, Block, Collective, Params, Unsupported};
pub use dtype::{DType, UnknownDType};
pub use op::{Op, OpError, PREDEFINED, UnknownOp, UserFunction, UserOp, UserResult};

mod call;
mod collectives;
mod communicator;
mod create;
mod direct;
mod exec;
mod p2p;
mod request;
mod typed;
pub use call::{Call, Options};
pub use communicator::{CollectiveError, Communicator};
pub use direct::direct_algorithms;
#[doc(hidden)]
pub use exec::Execution;
pub use request::{Request, Started};
pub use tuner::Table;
pub use typed::{Element, run_ranks};
