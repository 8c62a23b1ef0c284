//! Collectives that move blocks of different lengths.

use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use tidemill_collective::{CallOptions, Collective, CollectiveCall, Communicator, DType, VectorBlock};

use super::{Answer, CallBuffers, CallMode, differ, is_in_place, root_of, run, same_bytes};
use crate::message::{MemoryAccess, MessageMemory, VectorMessage};

/// The part of a vector message in a call.
struct VectorPart<'py>(VectorMessage<'py>);

impl<'py> VectorPart<'py> {
    fn new(spec: &Bound<'py, PyAny>, access: MemoryAccess, comm: &Communicator) -> PyResult<Self> {
        VectorMessage::new(spec, access, comm.size() as usize, "resolve_blocks").map(VectorPart)
    }

    fn typed(spec: &Bound<'py, PyAny>, access: MemoryAccess, comm: &Communicator) -> PyResult<Self> {
        VectorMessage::new(spec, access, comm.size() as usize, "resolve_typed").map(VectorPart)
    }

    /// The size of one rank's block in bytes.
    fn bytes(&self, rank: usize) -> usize {
        self.0.blocks[rank].len * self.0.dtype.size_bytes()
    }

    /// Converts the blocks to elements of `dtype`, if their sizes allow it.
    fn in_elements_of(&mut self, py: Python<'_>, dtype: DType) -> PyResult<()> {
        let (from, to) = (self.0.dtype.size_bytes(), dtype.size_bytes());
        if from != to {
            for block in &mut self.0.blocks {
                let (start, len) = (block.start * from, block.len * from);
                if start % to != 0 || len % to != 0 {
                    return Err(differ(py, "datatypes", dtype, self.0.dtype));
                }
                *block = VectorBlock { start: start / to, len: len / to };
            }
        }
        self.0.dtype = dtype;
        Ok(())
    }
}

#[allow(clippy::too_many_arguments)]
pub(super) fn gatherv<'py>(
    py: Python<'py>,
    comm: &Communicator,
    sendbuf: &Bound<'py, PyAny>,
    recvbuf: Option<&Bound<'py, PyAny>>,
    root: Option<i32>,
    options: CallOptions,
    mode: CallMode,
) -> Answer<'py> {
    let (collective, root) = match root {
        Some(root) => (Collective::Gatherv, root_of(py, comm, root)?),
        None => (Collective::Allgatherv, comm.rank()),
    };
    let (rank, gets) = (comm.rank() as usize, comm.rank() == root);
    let in_place = gets && is_in_place(sendbuf)?;
    let mut recv = match recvbuf {
        _ if !gets => None,
        Some(buf) => {
            Some(VectorPart::new(buf, if in_place { MemoryAccess::Update } else { MemoryAccess::Write }, comm)?)
        }
        None => return Err(PyTypeError::new_err("message: expecting buffer or list/tuple")),
    };
    let send = if in_place { None } else { Some(MessageMemory::new(sendbuf, MemoryAccess::Read, 1)?) };
    if let (Some(send), Some(recv)) = (&send, &mut recv) {
        same_bytes(py, send, recv.bytes(rank))?;
        recv.in_elements_of(py, send.dtype)?;
    }
    let mut held = CallBuffers::new(send.as_ref(), None);
    if let Some(VectorPart(recv)) = &recv {
        held.owners[1] = Some(recv.owner.clone());
        held.unpack = recv.unpack.clone();
    }
    let blocks: &[VectorBlock] = recv.as_ref().map_or(&[], |r| &r.0.blocks);
    let call = CollectiveCall {
        dtype: send.as_ref().map(|m| m.dtype).or(recv.as_ref().map(|r| r.0.dtype)).unwrap_or(DType::U8),
        root: if collective == Collective::Gatherv { root } else { 0 },
        count: send.as_ref().map_or_else(|| blocks[rank].len, |m| m.count),
        send: send.as_ref().map(|m| m.region),
        recv: recv.as_ref().map(|r| r.0.region),
        recv_blocks: blocks,
        options,
        ..CollectiveCall::new(collective)
    };
    run(py, comm, &call, held, mode)
}

#[allow(clippy::too_many_arguments)]
pub(super) fn scatterv<'py>(
    py: Python<'py>,
    comm: &Communicator,
    sendbuf: Option<&Bound<'py, PyAny>>,
    recvbuf: &Bound<'py, PyAny>,
    root: i32,
    options: CallOptions,
    mode: CallMode,
) -> Answer<'py> {
    let root = root_of(py, comm, root)?;
    let (rank, at_root) = (comm.rank() as usize, comm.rank() == root);
    let mut send = match sendbuf {
        _ if !at_root => None,
        Some(buf) => Some(VectorPart::new(buf, MemoryAccess::Read, comm)?),
        None => return Err(PyTypeError::new_err("message: expecting buffer or list/tuple")),
    };
    let recv = if at_root && is_in_place(recvbuf)? {
        None
    } else {
        Some(MessageMemory::new(recvbuf, MemoryAccess::Write, 1)?)
    };
    if let (Some(send), Some(recv)) = (&mut send, &recv) {
        same_bytes(py, recv, send.bytes(rank))?;
        send.in_elements_of(py, recv.dtype)?;
    }
    let mut held = CallBuffers::new(None, recv.as_ref());
    held.owners[0] = send.as_ref().map(|s| s.0.owner.clone());
    let blocks: &[VectorBlock] = send.as_ref().map_or(&[], |s| &s.0.blocks);
    let call = CollectiveCall {
        dtype: recv.as_ref().map(|m| m.dtype).or(send.as_ref().map(|s| s.0.dtype)).unwrap_or(DType::U8),
        root,
        count: recv.as_ref().map_or_else(|| blocks[rank].len, |m| m.count),
        send: send.as_ref().map(|s| s.0.region),
        recv: recv.as_ref().map(|m| m.region),
        send_blocks: blocks,
        options,
        ..CollectiveCall::new(Collective::Scatterv)
    };
    run(py, comm, &call, held, mode)
}

#[allow(clippy::too_many_arguments)]
pub(super) fn alltoallv<'py>(
    py: Python<'py>,
    comm: &Communicator,
    sendbuf: &Bound<'py, PyAny>,
    recvbuf: &Bound<'py, PyAny>,
    typed: bool,
    options: CallOptions,
    mode: CallMode,
) -> Answer<'py> {
    let make = if typed { VectorPart::typed } else { VectorPart::new };
    let in_place = is_in_place(sendbuf)?;
    let mut recv = make(recvbuf, if in_place { MemoryAccess::Update } else { MemoryAccess::Write }, comm)?;
    let send = if in_place { None } else { Some(make(sendbuf, MemoryAccess::Read, comm)?) };
    if let Some(send) = &send {
        recv.in_elements_of(py, send.0.dtype)?;
    }
    let held = CallBuffers {
        owners: [send.as_ref().map(|s| s.0.owner.clone()), Some(recv.0.owner.clone())],
        unpack: recv.0.unpack.clone(),
        raised: None,
    };
    let call = CollectiveCall {
        dtype: recv.0.dtype,
        send: send.as_ref().map(|s| s.0.region),
        recv: Some(recv.0.region),
        send_blocks: send.as_ref().map_or(&recv.0.blocks, |s| &s.0.blocks),
        recv_blocks: &recv.0.blocks,
        options,
        ..CollectiveCall::new(Collective::Alltoallv)
    };
    run(py, comm, &call, held, mode)
}
