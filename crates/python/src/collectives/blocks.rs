//! Collectives that move blocks of equal length.

use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use tidemill_collective::{CallOptions, Collective, CollectiveCall, Communicator};

use super::{Answer, CallBuffers, CallMode, is_in_place, root_of, run, same_bytes};
use crate::message::{MemoryAccess, MessageMemory};
use crate::wait::detached;

/// The counts of all ranks, for callers that did not give them.
pub(super) fn gather_counts(py: Python<'_>, comm: &Communicator, mine: usize) -> PyResult<Vec<usize>> {
    let mut counts = vec![0u64; comm.size() as usize];
    detached(py, || comm.allgather(&[mine as u64], &mut counts))?;
    Ok(counts.into_iter().map(|n| n as usize).collect())
}

#[inline]
#[allow(clippy::too_many_arguments)]
pub(super) fn gather<'py>(
    py: Python<'py>,
    comm: &Communicator,
    sendbuf: &Bound<'py, PyAny>,
    recvbuf: Option<&Bound<'py, PyAny>>,
    root: i32,
    options: CallOptions,
    mode: CallMode,
) -> Answer<'py> {
    let root = root_of(py, comm, root)?;
    let recv = match recvbuf {
        _ if comm.rank() != root => None,
        Some(buf) => {
            let in_place = is_in_place(sendbuf)?;
            let access = if in_place { MemoryAccess::Update } else { MemoryAccess::Write };
            Some(MessageMemory::new(buf, access, comm.size() as usize)?)
        }
        None => return Err(PyTypeError::new_err("message: expecting buffer or list/tuple")),
    };
    let send = match &recv {
        Some(_) if is_in_place(sendbuf)? => None,
        _ => Some(MessageMemory::new(sendbuf, MemoryAccess::Read, 1)?),
    };
    gathered(py, comm, Collective::Gather, root, send, recv, options, mode)
}

#[inline]
pub(super) fn allgather<'py>(
    py: Python<'py>,
    comm: &Communicator,
    sendbuf: &Bound<'py, PyAny>,
    recvbuf: &Bound<'py, PyAny>,
    options: CallOptions,
    mode: CallMode,
) -> Answer<'py> {
    let in_place = is_in_place(sendbuf)?;
    let access = if in_place { MemoryAccess::Update } else { MemoryAccess::Write };
    let recv = MessageMemory::new(recvbuf, access, comm.size() as usize)?;
    let send = if in_place { None } else { Some(MessageMemory::new(sendbuf, MemoryAccess::Read, 1)?) };
    gathered(py, comm, Collective::Allgather, 0, send, Some(recv), options, mode)
}

#[inline]
#[allow(clippy::too_many_arguments)]
pub(super) fn gathered<'py>(
    py: Python<'py>,
    comm: &Communicator,
    collective: Collective,
    root: u32,
    send: Option<MessageMemory<'py>>,
    recv: Option<MessageMemory<'py>>,
    options: CallOptions,
    mode: CallMode,
) -> Answer<'py> {
    if let (Some(send), Some(recv)) = (&send, &recv) {
        same_bytes(py, send, recv.bytes())?;
    }
    // The send buffer determines the elements, since every rank has one.
    let Some(first) = send.as_ref().or(recv.as_ref()) else { unreachable!("one of them is always there") };
    let call = CollectiveCall {
        dtype: first.dtype,
        root,
        count: first.count,
        send: send.as_ref().map(|m| m.region),
        recv: recv.as_ref().map(|m| m.region),
        options,
        ..CollectiveCall::new(collective)
    };
    run(py, comm, &call, CallBuffers::new(send.as_ref(), recv.as_ref()), mode)
}

#[inline]
#[allow(clippy::too_many_arguments)]
pub(super) fn scatter<'py>(
    py: Python<'py>,
    comm: &Communicator,
    sendbuf: Option<&Bound<'py, PyAny>>,
    recvbuf: &Bound<'py, PyAny>,
    root: i32,
    options: CallOptions,
    mode: CallMode,
) -> Answer<'py> {
    let root = root_of(py, comm, root)?;
    let at_root = comm.rank() == root;
    let send = match sendbuf {
        _ if !at_root => None,
        Some(buf) => Some(MessageMemory::new(buf, MemoryAccess::Read, comm.size() as usize)?),
        None => return Err(PyTypeError::new_err("message: expecting buffer or list/tuple")),
    };
    let recv = if at_root && is_in_place(recvbuf)? {
        None
    } else {
        Some(MessageMemory::new(recvbuf, MemoryAccess::Write, 1)?)
    };
    if let (Some(send), Some(recv)) = (&send, &recv) {
        same_bytes(py, send, recv.bytes())?;
    }
    let Some(first) = recv.as_ref().or(send.as_ref()) else { unreachable!("one of them is always there") };
    let call = CollectiveCall {
        dtype: first.dtype,
        root,
        count: first.count,
        send: send.as_ref().map(|m| m.region),
        recv: recv.as_ref().map(|m| m.region),
        options,
        ..CollectiveCall::new(Collective::Scatter)
    };
    run(py, comm, &call, CallBuffers::new(send.as_ref(), recv.as_ref()), mode)
}

#[inline]
pub(super) fn alltoall<'py>(
    py: Python<'py>,
    comm: &Communicator,
    sendbuf: &Bound<'py, PyAny>,
    recvbuf: &Bound<'py, PyAny>,
    options: CallOptions,
    mode: CallMode,
) -> Answer<'py> {
    let size = comm.size() as usize;
    let in_place = is_in_place(sendbuf)?;
    let recv = MessageMemory::new(recvbuf, if in_place { MemoryAccess::Update } else { MemoryAccess::Write }, size)?;
    let send = if in_place { None } else { Some(MessageMemory::new(sendbuf, MemoryAccess::Read, size)?) };
    gathered(py, comm, Collective::Alltoall, 0, send, Some(recv), options, mode)
}
