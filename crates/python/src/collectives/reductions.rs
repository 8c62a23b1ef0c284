//! Collectives that combine values.

use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use tidemill_collective::{CallOptions, Collective, CollectiveCall, Communicator, DType, ReduceOp, VectorBlock};

use super::blocks::gather_counts;
use super::{Answer, CallBuffers, CallMode, differ, is_in_place, root_of, run};
use crate::errors::from_collective;
use crate::handles::{Datatype, Operation, Raised};
use crate::message::{MemoryAccess, MessageMemory};
use crate::request;

/// Calls `then` with the native operation of an argument; `None` means `MPI.SUM`.
#[inline]
fn with_operation<R>(
    py: Python<'_>,
    operation: Option<&Bound<'_, Operation>>,
    datatype: Option<&Bound<'_, PyAny>>,
    held_raised: &mut Option<Raised>,
    then: impl FnOnce(&ReduceOp, &mut Option<Raised>) -> PyResult<R>,
) -> PyResult<R> {
    match operation {
        None => then(&ReduceOp::Sum, held_raised),
        Some(operation) => match operation.get().predefined() {
            Some(op) => then(op, held_raised),
            None => {
                let raised = request::raised();
                let op = operation.get().native(py, datatype, &raised)?;
                *held_raised = Some(raised);
                then(&op, held_raised)
            }
        },
    }
}

/// A message of a reduction, or its blocks.
///
/// For a user function, items of a derived datatype stay whole: the function may combine their contents, for example as
/// a matrix.
#[inline]
fn operand<'py>(
    spec: &Bound<'py, PyAny>,
    op: Option<&Bound<'py, Operation>>,
    access: MemoryAccess,
    blocks: usize,
) -> PyResult<MessageMemory<'py>> {
    let mut message = MessageMemory::new(spec, access, blocks)?;
    if let Some(op) = op
        && op.get().predefined().is_none()
        && let Some(datatype) = &message.datatype
        && datatype.cast::<Datatype>()?.get().dtype.is_none()
    {
        let item: usize = datatype.call_method0("Get_size")?.extract()?;
        if let Some(count) = message.bytes().checked_div(item) {
            (message.count, message.dtype) = (count, DType::Bytes(item));
        }
    }
    Ok(message)
}

/// The messages of a reduction: both, or only the receive buffer for an operation in place.
#[inline]
fn operands<'py>(
    py: Python<'py>,
    sendbuf: &Bound<'py, PyAny>,
    recvbuf: &Bound<'py, PyAny>,
    op: Option<&Bound<'py, Operation>>,
) -> PyResult<(Option<MessageMemory<'py>>, MessageMemory<'py>)> {
    if is_in_place(sendbuf)? {
        return Ok((None, operand(recvbuf, op, MemoryAccess::Update, 1)?));
    }
    let recv = operand(recvbuf, op, MemoryAccess::Write, 1)?;
    let send = operand(sendbuf, op, MemoryAccess::Read, 1)?;
    check_operands(py, &send, &recv, recv.count)?;
    Ok((Some(send).filter(|send| !is_same_memory(send, &recv)), recv))
}

/// Whether both are the same memory, which makes the operation one in place.
#[inline]
fn is_same_memory(send: &MessageMemory<'_>, recv: &MessageMemory<'_>) -> bool {
    send.region.ptr == recv.region.ptr && send.count > 0
}

#[inline]
fn check_operands(py: Python<'_>, send: &MessageMemory<'_>, recv: &MessageMemory<'_>, count: usize) -> PyResult<()> {
    if send.dtype != recv.dtype {
        return Err(differ(py, "datatypes", send.dtype, recv.dtype));
    }
    if send.count != count {
        return Err(differ(py, "counts", send.count, count));
    }
    Ok(())
}

/// Allreduce, scan and exscan.
#[inline]
#[allow(clippy::too_many_arguments)] // Python's own list, with what it resolves to.
pub(super) fn reduce_to_all<'py>(
    py: Python<'py>,
    comm: &Communicator,
    collective: Collective,
    sendbuf: &Bound<'py, PyAny>,
    recvbuf: &Bound<'py, PyAny>,
    op: Option<&Bound<'py, Operation>>,
    options: CallOptions,
    mode: CallMode,
) -> Answer<'py> {
    let (send, recv) = operands(py, sendbuf, recvbuf, op)?;
    let mut held = CallBuffers::new(send.as_ref(), Some(&recv));
    let mut raised = None;
    with_operation(py, op, recv.datatype.as_ref(), &mut raised, |op, raised| {
        held.raised = raised.take();
        let call = CollectiveCall {
            dtype: recv.dtype,
            op,
            count: recv.count,
            send: send.as_ref().map(|m| m.region),
            recv: Some(recv.region),
            options,
            ..CollectiveCall::new(collective)
        };
        run(py, comm, &call, held, mode)
    })
}

#[inline]
#[allow(clippy::too_many_arguments)]
pub(super) fn reduce<'py>(
    py: Python<'py>,
    comm: &Communicator,
    sendbuf: &Bound<'py, PyAny>,
    recvbuf: Option<&Bound<'py, PyAny>>,
    op: Option<&Bound<'py, Operation>>,
    root: i32,
    options: CallOptions,
    mode: CallMode,
) -> Answer<'py> {
    let root = root_of(py, comm, root)?;
    let (send, recv) = if comm.rank() == root {
        let recvbuf = recvbuf.ok_or_else(|| PyTypeError::new_err("message: expecting buffer or list/tuple"))?;
        let (send, recv) = operands(py, sendbuf, recvbuf, op)?;
        (send, Some(recv))
    } else {
        (Some(operand(sendbuf, op, MemoryAccess::Read, 1)?), None)
    };
    let Some(first) = send.as_ref().or(recv.as_ref()) else { unreachable!("one of them is always there") };
    let mut held = CallBuffers::new(send.as_ref(), recv.as_ref());
    let mut raised = None;
    with_operation(py, op, first.datatype.as_ref(), &mut raised, |op, raised| {
        held.raised = raised.take();
        let call = CollectiveCall {
            dtype: first.dtype,
            op,
            root,
            count: first.count,
            send: send.as_ref().map(|m| m.region),
            recv: recv.as_ref().map(|m| m.region),
            options,
            ..CollectiveCall::new(Collective::Reduce)
        };
        run(py, comm, &call, held, mode)
    })
}

#[inline]
#[allow(clippy::too_many_arguments)]
pub(super) fn reduce_scatter_block<'py>(
    py: Python<'py>,
    comm: &Communicator,
    sendbuf: &Bound<'py, PyAny>,
    recvbuf: &Bound<'py, PyAny>,
    op: Option<&Bound<'py, Operation>>,
    options: CallOptions,
    mode: CallMode,
) -> Answer<'py> {
    let size = comm.size() as usize;
    let (send, recv) = if is_in_place(sendbuf)? {
        (None, operand(recvbuf, op, MemoryAccess::Update, size)?)
    } else {
        let recv = operand(recvbuf, op, MemoryAccess::Write, 1)?;
        let send = operand(sendbuf, op, MemoryAccess::Read, size)?;
        check_operands(py, &send, &recv, recv.count)?;
        (Some(send).filter(|send| !is_same_memory(send, &recv)), recv)
    };
    let mut held = CallBuffers::new(send.as_ref(), Some(&recv));
    let mut raised = None;
    with_operation(py, op, recv.datatype.as_ref(), &mut raised, |op, raised| {
        held.raised = raised.take();
        let call = CollectiveCall {
            dtype: recv.dtype,
            op,
            count: recv.count,
            send: send.as_ref().map(|m| m.region),
            recv: Some(recv.region),
            options,
            ..CollectiveCall::new(Collective::ReduceScatterBlock)
        };
        run(py, comm, &call, held, mode)
    })
}

#[allow(clippy::too_many_arguments)]
pub(super) fn reduce_scatter<'py>(
    py: Python<'py>,
    comm: &Communicator,
    sendbuf: &Bound<'py, PyAny>,
    recvbuf: &Bound<'py, PyAny>,
    recvcounts: Option<Vec<usize>>,
    op: Option<&Bound<'py, Operation>>,
    options: CallOptions,
    mode: CallMode,
) -> Answer<'py> {
    let (size, rank) = (comm.size() as usize, comm.rank() as usize);
    let in_place = is_in_place(sendbuf)?;
    let recv = operand(recvbuf, op, if in_place { MemoryAccess::Update } else { MemoryAccess::Write }, 1)?;
    let counts = match recvcounts {
        Some(counts) => counts,
        None if in_place => return Err(PyTypeError::new_err("Reduce_scatter in place needs recvcounts")),
        None => gather_counts(py, comm, recv.count)?,
    };
    if counts.len() != size {
        return Err(PyValueError::new_err(format!("expecting {size} items, got {}", counts.len())));
    }
    let total: usize = counts.iter().sum();
    let mut start = 0;
    let blocks: Vec<VectorBlock> = counts
        .iter()
        .map(|&len| {
            start += len;
            VectorBlock { start: start - len, len }
        })
        .collect();
    let send = if in_place {
        if recv.count != total {
            return Err(differ(py, "counts", format!("the sum {total}"), recv.count));
        }
        None
    } else {
        let send = operand(sendbuf, op, MemoryAccess::Read, 1)?;
        check_operands(py, &send, &recv, total)?;
        let same = is_same_memory(&send, &recv);
        if recv.count != if same { total } else { counts[rank] } {
            return Err(differ(py, "counts", format!("recvcounts[{rank}] = {}", counts[rank]), recv.count));
        }
        Some(send).filter(|_| !same)
    };
    let mut held = CallBuffers::new(send.as_ref(), Some(&recv));
    let mut raised = None;
    with_operation(py, op, recv.datatype.as_ref(), &mut raised, |op, raised| {
        held.raised = raised.take();
        let call = CollectiveCall {
            dtype: recv.dtype,
            op,
            count: total,
            send: send.as_ref().map(|m| m.region),
            recv: Some(recv.region),
            send_blocks: &blocks,
            options,
            ..CollectiveCall::new(Collective::ReduceScatter)
        };
        run(py, comm, &call, held, mode)
    })
}

/// `inoutbuf = op(inbuf, inoutbuf)`, elementwise and without communication. Source: MPI 4.1 section 6.9.7.
#[pyfunction]
pub fn reduce_local<'py>(
    py: Python<'py>,
    inbuf: &Bound<'py, PyAny>,
    inoutbuf: &Bound<'py, PyAny>,
    op: &Bound<'py, Operation>,
) -> PyResult<()> {
    let (left, right) =
        (operand(inbuf, Some(op), MemoryAccess::Read, 1)?, operand(inoutbuf, Some(op), MemoryAccess::Update, 1)?);
    check_operands(py, &left, &right, right.count)?;
    let raised = request::raised();
    let native = op.get().native(py, right.datatype.as_ref(), &raised)?;
    native.check(right.dtype).map_err(|e| from_collective(py, &e.into()))?;
    let bytes = right.bytes();
    if bytes == 0 || left.region.ptr == right.region.ptr {
        return Ok(());
    }
    // SAFETY: both are readable and the second is writable for `bytes`; Python's arrays may partly overlap, so the left
    // one is copied.
    let (left, right_bytes) = unsafe {
        (
            std::slice::from_raw_parts(left.region.ptr, bytes).to_vec(),
            std::slice::from_raw_parts_mut(right.region.ptr, bytes),
        )
    };
    tidemill_collective::reduce::reduce_left(&native, right.dtype, &left, right_bytes)
        .map_err(|e| raised.lock().take().unwrap_or_else(|| from_collective(py, &e.into())))?;
    match &right.unpack {
        Some(unpack) => unpack.call1((None::<u64>,)).map(|_| ()),
        None => Ok(()),
    }
}
