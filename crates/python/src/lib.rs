//! Python bindings: the extension module `tidemill._tidemill`. One file per Python-visible area, without logic of its
//! own.
//!
//! Modules, lowest first; each uses only those above it:
//!
//! | module        | contents                                                 |
//! |---------------|----------------------------------------------------------|
//! | `errors`      | Errors of the native crates as Python exceptions         |
//! | `handles`     | Datatypes, operations and statuses                       |
//! | `array`       | Reads NumPy arrays from their object structs             |
//! | `kernels`     | K-means and its threads                                  |
//! | `launch`      | The `tidemill` command                                   |
//! | `mds`         | Multidimensional scaling                                 |
//! | `networks`    | Networks as compressed rows, and algorithms on them      |
//! | `wait`        | Waits without the GIL, between which signals are handled |
//! | `message`     | What a caller passes as a message, as memory             |
//! | `request`     | Requests                                                 |
//! | `parcel`      | Object messages                                          |
//! | `comm`        | Communicators                                            |
//! | `collectives` | The upper-case collectives                               |
//! | `job`         | Joining a job and leaving it                             |
//! | `report`      | Reports of runs as dicts                                 |
//! | `simulate`    | Programs on simulated clusters                           |
//! | `tune`        | Measurements of `tidemill tune`                          |
//! | `dataset`     | DataSets, expressions and streams                        |
//! | `graph`       | Task graphs                                              |

use pyo3::prelude::*;
use tidemill_dataflow::memory::HugePages;

mod array;
mod collectives;
mod comm;
mod dataset;
mod errors;
mod graph;
mod handles;
mod job;
mod kernels;
mod launch;
mod mds;
mod message;
mod networks;
mod parcel;
mod report;
mod request;
mod simulate;
mod tune;
mod wait;

#[global_allocator]
static MEMORY: HugePages = HugePages;

/// The native half of the `tidemill` package.
#[pymodule]
fn _tidemill(m: &Bound<'_, PyModule>) -> PyResult<()> {
    tidemill_net::endpoint::set_lock_wait(wait::wait_unlocked);
    m.add("__version__", env!("CARGO_PKG_VERSION"))?;
    m.add_class::<array::CallMemory>()?;
    m.add_class::<handles::Datatype>()?;
    m.add_class::<handles::Operation>()?;
    m.add_class::<handles::Status>()?;
    m.add_class::<request::Request>()?;
    m.add_class::<comm::MatchedMessage>()?;
    m.add_class::<comm::Comm>()?;
    m.add_class::<job::JobWorker>()?;
    m.add_function(wrap_pyfunction!(job::share_of_process, m)?)?;
    m.add_function(wrap_pyfunction!(collectives::reduce_local, m)?)?;
    m.add_function(wrap_pyfunction!(tune::tune, m)?)?;
    dataset::register(m)?;
    graph::register(m)?;
    kernels::register(m)?;
    launch::register(m)?;
    mds::register(m)?;
    networks::register(m)?;
    simulate::register(m)?;
    Ok(())
}
