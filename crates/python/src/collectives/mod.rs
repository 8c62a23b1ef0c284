//! The upper-case collectives: convert the caller's arguments to a native `CollectiveCall`.
//!
//! Every method has a blocking and a nonblocking form. The functions in the files of this folder convert the arguments
//! to a `CollectiveCall`, once for both.

#![allow(non_snake_case)] // MPI and mpi4py write them so.

mod blocks;
mod reductions;
mod vectors;

use std::time::Instant;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use tidemill_collective::{CallOptions, Collective, CollectiveCall, Communicator, StartResult};

use crate::comm::Comm;
use crate::errors::{class, fail, from_collective, mismatched};
use crate::handles::{Operation, Raised};
use crate::message::{MemoryAccess, MessageMemory};
use crate::request::{self, RequestResources, RequestStage};
use crate::wait::{Owners, blocking, detached};
use blocks::{allgather, alltoall, gather, scatter};
use reductions::{reduce, reduce_scatter, reduce_scatter_block, reduce_to_all};
use vectors::{alltoallv, gatherv, scatterv};

pub use reductions::reduce_local;

/// Whether the method waits until the operation completes, or returns a request.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum CallMode {
    Blocking,
    Nonblocking,
}

use CallMode::{Blocking, Nonblocking};

/// The result of a method: a request, or nothing.
type Answer<'py> = PyResult<Option<Bound<'py, PyAny>>>;

/// The caller's options for the algorithm.
#[inline]
fn options(algorithm: Option<&str>, repeatable: bool) -> PyResult<CallOptions> {
    let algorithm = match algorithm {
        None => None,
        Some(name) => Some(
            name.parse()
                .map_err(|e: tidemill_collective::algorithms::UnknownName| PyValueError::new_err(e.to_string()))?,
        ),
    };
    Ok(CallOptions { algorithm, chunk: None, repeatable })
}

/// Whether `object` is `MPI.IN_PLACE`, or `None`, which means the same in mpi4py.
#[inline]
fn is_in_place(object: &Bound<'_, PyAny>) -> PyResult<bool> {
    static IN_PLACE: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    Ok(object.is_none() || object.is(IN_PLACE.import(object.py(), "tidemill.mpi._buffers", "IN_PLACE")?))
}

/// The messages of a call, held until it completes.
#[derive(Default)]
struct CallBuffers<'py> {
    owners: [Option<Bound<'py, PyAny>>; 2],
    unpack: Option<Bound<'py, PyAny>>,
    raised: Option<Raised>,
}

impl<'py> CallBuffers<'py> {
    fn new(send: Option<&MessageMemory<'py>>, recv: Option<&MessageMemory<'py>>) -> Self {
        CallBuffers {
            owners: [send.map(|m| m.owner.clone()), recv.map(|m| m.owner.clone())],
            unpack: recv.and_then(|m| m.unpack.clone()),
            raised: None,
        }
    }

    fn owners(&self) -> Owners {
        self.owners.iter().flatten().map(|o| o.clone().unbind()).collect()
    }
}

/// Runs or starts a call.
///
/// `held` owns the memory of the call's regions.
#[inline]
fn run<'py>(
    py: Python<'py>,
    comm: &Communicator,
    call: &CollectiveCall<'_>,
    held: CallBuffers<'py>,
    mode: CallMode,
) -> Answer<'py> {
    if mode == Blocking {
        if let Some(bytes) = comm.adaptive_bytes(call) {
            detached(py, || comm.adapt(bytes))?;
        }
        // SAFETY: `held` owns the memory until this returns; if the wait is abandoned, `owners` does.
        let started = unsafe { comm.start(call) };
        let waits_since = matches!(started, Ok(StartResult::Pending(_))).then(Instant::now);
        blocking(py, started, held.raised.as_ref(), || held.owners())?;
        if let Some(since) = waits_since {
            comm.note_wait(call.collective, since.elapsed());
        }
        if let Some(unpack) = &held.unpack {
            unpack.call1((None::<u64>,))?;
        }
        return Ok(None);
    }
    // SAFETY: the request owns the memory.
    let request = unsafe { comm.start_nonblocking(call) }.map_err(|e| from_collective(py, &e))?;
    let kept = RequestResources {
        owners: held.owners(),
        unpack: held.unpack.map(Bound::unbind),
        raised: held.raised,
        ..RequestResources::default()
    };
    request::make(py, RequestStage::Active(request, kept)).map(Some)
}

#[cold]
fn differ(py: Python<'_>, what: &str, send: impl std::fmt::Display, recv: impl std::fmt::Display) -> PyErr {
    mismatched(py, format!("mismatch in send and receive {what}: {send} and {recv}"))
}

/// Checks that a rank's own block has the same length in both buffers, in bytes: a caller may send numbers and receive
/// `MPI.BYTE`.
#[inline]
fn same_bytes(py: Python<'_>, send: &MessageMemory<'_>, recv_bytes: usize) -> PyResult<()> {
    if send.bytes() == recv_bytes {
        return Ok(());
    }
    Err(differ(py, "bytes", send.bytes(), recv_bytes))
}

#[inline]
fn root_of(py: Python<'_>, comm: &Communicator, root: i32) -> PyResult<u32> {
    if (root as u32) < comm.size() {
        return Ok(root as u32);
    }
    let last = comm.size() - 1;
    Err(fail(py, class::ROOT, format!("root {root} is not in comm \"{}\", which has ranks 0 to {last}", comm.name())))
}

pub fn barrier<'py>(py: Python<'py>, comm: &Communicator, options: CallOptions, mode: CallMode) -> Answer<'py> {
    run(py, comm, &CollectiveCall { options, ..CollectiveCall::new(Collective::Barrier) }, CallBuffers::default(), mode)
}

#[inline]
fn bcast<'py>(
    py: Python<'py>,
    comm: &Communicator,
    buf: &Bound<'py, PyAny>,
    root: i32,
    options: CallOptions,
    mode: CallMode,
) -> Answer<'py> {
    let root = root_of(py, comm, root)?;
    // The root's buffer is only read, so it may be read-only.
    let access = if comm.rank() == root { MemoryAccess::Read } else { MemoryAccess::Update };
    let mut message = MessageMemory::new(buf, access, 1)?;
    if comm.rank() == root {
        message.unpack = None;
    }
    let call = CollectiveCall {
        dtype: message.dtype,
        root,
        count: message.count,
        recv: Some(message.region),
        options,
        ..CollectiveCall::new(Collective::Bcast)
    };
    run(py, comm, &call, CallBuffers::new(None, Some(&message)), mode)
}

/// `comm.Name(arguments)` and `comm.Iname(arguments)`.
macro_rules! twice {
    ($(
        $(#[$doc:meta])*
        $name:ident, $iname:ident, $source:literal,
        ($($arg:ident : $kind:ty $(= $default:tt)?),*),
        |$py:ident, $comm:ident, $options:ident, $mode:ident| $body:expr;
    )*) => {
        #[pymethods]
        impl Comm {
            $(
                $(#[$doc])*
                #[doc = ""]
                #[doc = concat!("Source: MPI 4.1 section ", $source, ".")]
                #[pyo3(signature = ($($arg $(= $default)?),*, *, algorithm=None, repeatable=false))]
                #[inline]
                #[allow(clippy::too_many_arguments)]
                fn $name<'py>(&self, $py: Python<'py>, $($arg: $kind,)* algorithm: Option<&str>, repeatable: bool) -> PyResult<()> {
                    let ($comm, $options, $mode) = (self.get($py)?, options(algorithm, repeatable)?, Blocking);
                    $body.map(|_: Option<Bound<'py, PyAny>>| ())
                }

                #[doc = concat!("Start `", stringify!($name), "` and return its request, which uses the buffers until it completes.")]
                #[doc = ""]
                #[doc = concat!("Source: MPI 4.1 section 6.12 and ", $source, ".")]
                #[pyo3(signature = ($($arg $(= $default)?),*, *, algorithm=None, repeatable=false))]
                #[allow(clippy::too_many_arguments)]
                fn $iname<'py>(&self, $py: Python<'py>, $($arg: $kind,)* algorithm: Option<&str>, repeatable: bool) -> PyResult<Bound<'py, PyAny>> {
                    let ($comm, $options, $mode) = (self.get($py)?, options(algorithm, repeatable)?, Nonblocking);
                    Ok($body?.expect("a non-blocking call gives a request"))
                }
            )*
        }
    };
}

twice! {
    /// Broadcast the root's buffer to the buffers of all ranks, which have the same length.
    Bcast, Ibcast, "6.4",
    (buf: &Bound<'py, PyAny>, root: i32 = 0),
    |py, comm, how, mode| bcast(py, comm, buf, root, how, mode);

    /// Combine the arrays of all ranks elementwise with `op`; the root gets the result. `recvbuf` may be `None` on
    /// other ranks.
    Reduce, Ireduce, "6.9.1",
    (sendbuf: &Bound<'py, PyAny>, recvbuf: Option<&Bound<'py, PyAny>>, op: Option<&Bound<'py, Operation>> = None, root: i32 = 0),
    |py, comm, how, mode| reduce(py, comm, sendbuf, recvbuf, op, root, how, mode);

    /// Combine the arrays of all ranks elementwise with `op`; all ranks get the result, bitwise equal.
    Allreduce, Iallreduce, "6.9.6",
    (sendbuf: &Bound<'py, PyAny>, recvbuf: &Bound<'py, PyAny>, op: Option<&Bound<'py, Operation>> = None),
    |py, comm, how, mode| reduce_to_all(py, comm, Collective::Allreduce, sendbuf, recvbuf, op, how, mode);

    /// Combine the arrays of ranks up to and including this one.
    Scan, Iscan, "6.11.1",
    (sendbuf: &Bound<'py, PyAny>, recvbuf: &Bound<'py, PyAny>, op: Option<&Bound<'py, Operation>> = None),
    |py, comm, how, mode| reduce_to_all(py, comm, Collective::Scan, sendbuf, recvbuf, op, how, mode);

    /// Combine the arrays of lower ranks; the receive buffer of rank 0 does not change.
    Exscan, Iexscan, "6.11.2",
    (sendbuf: &Bound<'py, PyAny>, recvbuf: &Bound<'py, PyAny>, op: Option<&Bound<'py, Operation>> = None),
    |py, comm, how, mode| reduce_to_all(py, comm, Collective::Exscan, sendbuf, recvbuf, op, how, mode);

    /// Combine the arrays of all ranks; rank i gets block i of the result. All blocks have the same length.
    Reduce_scatter_block, Ireduce_scatter_block, "6.10.1",
    (sendbuf: &Bound<'py, PyAny>, recvbuf: &Bound<'py, PyAny>, op: Option<&Bound<'py, Operation>> = None),
    |py, comm, how, mode| reduce_scatter_block(py, comm, sendbuf, recvbuf, op, how, mode);

    /// Combine the arrays of all ranks; rank i gets block i of the result, `recvcounts[i]` elements.
    Reduce_scatter, Ireduce_scatter, "6.10.2",
    (sendbuf: &Bound<'py, PyAny>, recvbuf: &Bound<'py, PyAny>, recvcounts: Option<Vec<usize>> = None, op: Option<&Bound<'py, Operation>> = None),
    |py, comm, how, mode| reduce_scatter(py, comm, sendbuf, recvbuf, recvcounts, op, how, mode);

    /// Collect the arrays of all ranks at the root, in rank order. `recvbuf` may be `None` on other ranks.
    Gather, Igather, "6.5",
    (sendbuf: &Bound<'py, PyAny>, recvbuf: Option<&Bound<'py, PyAny>>, root: i32 = 0),
    |py, comm, how, mode| gather(py, comm, sendbuf, recvbuf, root, how, mode);

    /// Like `Gather`, with blocks of different lengths: `recvbuf` is ``[buffer, counts]`` or ``[buffer, (counts,
    /// displacements), datatype]``.
    Gatherv, Igatherv, "6.5",
    (sendbuf: &Bound<'py, PyAny>, recvbuf: Option<&Bound<'py, PyAny>>, root: i32 = 0),
    |py, comm, how, mode| gatherv(py, comm, sendbuf, recvbuf, Some(root), how, mode);

    /// Collect the arrays of all ranks on all ranks, in rank order.
    Allgather, Iallgather, "6.7",
    (sendbuf: &Bound<'py, PyAny>, recvbuf: &Bound<'py, PyAny>),
    |py, comm, how, mode| allgather(py, comm, sendbuf, recvbuf, how, mode);

    /// Like `Allgather`, with blocks of different lengths.
    Allgatherv, Iallgatherv, "6.7",
    (sendbuf: &Bound<'py, PyAny>, recvbuf: &Bound<'py, PyAny>),
    |py, comm, how, mode| gatherv(py, comm, sendbuf, Some(recvbuf), None, how, mode);

    /// Send block i of the root's array to rank i. `sendbuf` may be `None` on other ranks.
    Scatter, Iscatter, "6.6",
    (sendbuf: Option<&Bound<'py, PyAny>>, recvbuf: &Bound<'py, PyAny>, root: i32 = 0),
    |py, comm, how, mode| scatter(py, comm, sendbuf, recvbuf, root, how, mode);

    /// Like `Scatter`, with blocks of different lengths.
    Scatterv, Iscatterv, "6.6",
    (sendbuf: Option<&Bound<'py, PyAny>>, recvbuf: &Bound<'py, PyAny>, root: i32 = 0),
    |py, comm, how, mode| scatterv(py, comm, sendbuf, recvbuf, root, how, mode);

    /// Exchange blocks: block j of rank i becomes block i of rank j.
    Alltoall, Ialltoall, "6.8",
    (sendbuf: &Bound<'py, PyAny>, recvbuf: &Bound<'py, PyAny>),
    |py, comm, how, mode| alltoall(py, comm, sendbuf, recvbuf, how, mode);

    /// Like `Alltoall`, with blocks of different lengths.
    Alltoallv, Ialltoallv, "6.8",
    (sendbuf: &Bound<'py, PyAny>, recvbuf: &Bound<'py, PyAny>),
    |py, comm, how, mode| alltoallv(py, comm, sendbuf, recvbuf, false, how, mode);

    /// Like `Alltoallv`, with a datatype for each rank and displacements in bytes.
    Alltoallw, Ialltoallw, "6.8",
    (sendbuf: &Bound<'py, PyAny>, recvbuf: &Bound<'py, PyAny>),
    |py, comm, how, mode| alltoallv(py, comm, sendbuf, recvbuf, true, how, mode);
}

#[pymethods]
impl Comm {
    /// Wait until every rank has called it.
    ///
    /// Source: MPI 4.1 section 6.3.
    #[pyo3(signature = (*, algorithm=None))]
    fn Barrier(&self, py: Python<'_>, algorithm: Option<&str>) -> PyResult<()> {
        barrier(py, self.get(py)?, options(algorithm, false)?, Blocking).map(|_| ())
    }

    /// Start `Barrier` and return its request.
    ///
    /// Source: MPI 4.1 section 6.12.1.
    #[pyo3(signature = (*, algorithm=None))]
    fn Ibarrier<'py>(&self, py: Python<'py>, algorithm: Option<&str>) -> PyResult<Bound<'py, PyAny>> {
        let request = barrier(py, self.get(py)?, options(algorithm, false)?, Nonblocking)?;
        Ok(request.expect("a non-blocking call gives a request"))
    }
}
