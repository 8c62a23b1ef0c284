//! Collective operations on arrays between workers: the communicator, schedules, algorithms and the tuner. Usable
//! without Arrow.
//!
//! Modules, lowest first; each uses only those above it:
//!
//! | module          | contents                                                       |
//! |-----------------|----------------------------------------------------------------|
//! | `dtype`         | Element types                                                  |
//! | `op`            | Reduction operations                                           |
//! | `overlay`       | The trees along which a vector travels, as data                |
//! | `schedule`      | One rank's part of a collective, as data                       |
//! | `algorithms`    | Pure functions that return schedules                           |
//! | `call`          | A collective call in sixteen bytes, to detect mismatched calls |
//! | `long_double`   | x87 extended precision in software                             |
//! | `parcel`        | Messages of any length with arrays attached                    |
//! | `stream`        | Copies that bypass the caches                                  |
//! | `reduce`        | Elementwise reduction kernels                                  |
//! | `exec`          | The executor of schedules                                      |
//! | `direct`        | Collectives through shared memory, without messages            |
//! | `request_state` | What a pending operation waits for                             |
//! | `waits`         | How long a rank waited in its recent collectives               |
//! | `tuner`         | Which algorithm and chunk size runs a collective               |
//! | `communicator`  | A group of workers with separate traffic                       |
//! | `direct_calls`  | A communicator's direct collectives                            |
//! | `request`       | Operations in progress                                         |
//! | `adaptive`      | All-reduces whose overlay follows the rates of links           |
//! | `collectives`   | Checks and starts collective calls                             |
//! | `create`        | New communicators from existing ones                           |
//! | `p2p`           | Messages between two ranks                                     |
//! | `typed`         | Collectives on Rust slices, and jobs of threads                |
//! | `pending`       | Reductions that run while their caller works                   |
//! | `measure`       | Measures algorithms, and turns the results into tuning rules   |
//! | `measure_links` | Measures the cost of messages, for the simulator               |

pub mod algorithms;
mod dtype;
#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub mod fuzzing;
#[cfg(target_arch = "x86_64")]
mod long_double;
pub mod measure;
pub mod measure_links;
mod op;
pub mod overlay;
pub mod parcel;
pub mod reduce;
pub mod schedule;
mod stream;
pub mod tuner;

pub use algorithms::{Algorithm, Collective, ScheduleParams, UnsupportedAlgorithm, VectorBlock};
pub use dtype::{DType, UnknownDType};
pub use op::{OpError, PREDEFINED, ReduceOp, UnknownOp, UserFunction, UserOp, UserResult};

mod adaptive;
mod call;
mod collectives;
mod communicator;
mod create;
mod direct;
mod direct_calls;
mod exec;
mod p2p;
mod pending;
mod request;
mod request_state;
mod typed;
mod waits;
pub use call::{CallOptions, CollectiveCall};
pub use communicator::{CollectiveError, Communicator};
pub use direct::direct_algorithms;
#[doc(hidden)]
pub use exec::ScheduleExecution;
pub use pending::PendingAllreduce;
pub use request::{Request, StartResult};
pub use tuner::TuneTable;
pub use typed::{CollectiveElement, run_ranks};
