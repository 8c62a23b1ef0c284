//! Collectives that move blocks of different lengths.

use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use tidemill_collective::{Block, Call, Collective, Communicator, DType, Options};

use super::{Answer, Held, Mode, differ, is_in_place, root_of, run, same_bytes};
use crate::message::{Access, Message, VectorMessage};

/// A vector message's part of a call.
struct Vector<'py>(VectorMessage<'py>);

impl<'py> Vector<'py> {
    fn new(spec: &Bound<'py, PyAny>, access: Access, comm: &Communicator) -> PyResult<Self> {
        VectorMessage::new(spec, access, comm.size() as usize, "resolve_blocks").map(Vector)
    }

    fn typed(spec: &Bound<'py, PyAny>, access: Access, comm: &Communicator) -> PyResult<Self> {
        VectorMessage::new(spec, access, comm.size() as usize, "resolve_typed").map(Vector)
    }

    /// Bytes of one rank's block.
    fn bytes(&self, rank: usize) -> usize {
        self.0.blocks[rank].len * self.0.dtype.size_bytes()
    }

    /// The blocks in elements of `dtype`, when their bytes allow that.
    fn in_elements_of(&mut self, py: Python<'_>, dtype: DType) -> PyResult<()> {
        let (from, to) = (self.0.dtype.size_bytes(), dtype.size_bytes());
        if from != to {
            for block in &mut self.0.blocks {
                let (start, len) = (block.start * from, block.len * from);
                if start % to != 0 || len % to != 0 {
                    return Err(differ(py, "datatypes", dtype, self.0.dtype));
                }
                *block = Block { start: start / to, len: len / to };
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
    options: Options,
    mode: Mode,
) -> Answer<'py> {
    let (collective, root) = match root {
        Some(root) => (Collective::Gatherv, root_of(py, comm, root)?),
        None => (Collective::Allgatherv, comm.rank()),
    };
    let (rank, gets) = (comm.rank() as usize, comm.rank() == root);
    let in_place = gets && is_in_place(sendbuf)?;
    let mut recv = match recvbuf {
        _ if !gets => None,
        Some(buf) => Some(Vector::new(buf, if in_place { Access::Update } else { Access::Write }, comm)?),
        None => return Err(PyTypeError::new_err("message: expecting buffer or list/tuple")),
    };
    let send = if in_place { None } else { Some(Message::new(sendbuf, Access::Read, 1)?) };
    if let (Some(send), Some(recv)) = (&send, &mut recv) {
        same_bytes(py, send, recv.bytes(rank))?;
        recv.in_elements_of(py, send.dtype)?;
    }
    let mut held = Held::new(send.as_ref(), None);
    if let Some(Vector(recv)) = &recv {
        held.owners[1] = Some(recv.owner.clone());
        held.unpack = recv.unpack.clone();
    }
    let blocks: &[Block] = recv.as_ref().map_or(&[], |r| &r.0.blocks);
    let call = Call {
        dtype: send.as_ref().map(|m| m.dtype).or(recv.as_ref().map(|r| r.0.dtype)).unwrap_or(DType::U8),
        root: if collective == Collective::Gatherv { root } else { 0 },
        count: send.as_ref().map_or_else(|| blocks[rank].len, |m| m.count),
        send: send.as_ref().map(|m| m.region),
        recv: recv.as_ref().map(|r| r.0.region),
        recv_blocks: blocks,
        options,
        ..Call::new(collective)
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
    options: Options,
    mode: Mode,
) -> Answer<'py> {
    let root = root_of(py, comm, root)?;
    let (rank, at_root) = (comm.rank() as usize, comm.rank() == root);
    let mut send = match sendbuf {
        _ if !at_root => None,
        Some(buf) => Some(Vector::new(buf, Access::Read, comm)?),
        None => return Err(PyTypeError::new_err("message: expecting buffer or list/tuple")),
    };
    let recv = if at_root && is_in_place(recvbuf)? { None } else { Some(Message::new(recvbuf, Access::Write, 1)?) };
    if let (Some(send), Some(recv)) = (&mut send, &recv) {
        same_bytes(py, recv, send.bytes(rank))?;
        send.in_elements_of(py, recv.dtype)?;
    }
    let mut held = Held::new(None, recv.as_ref());
    held.owners[0] = send.as_ref().map(|s| s.0.owner.clone());
    let blocks: &[Block] = send.as_ref().map_or(&[], |s| &s.0.blocks);
    let call = Call {
        dtype: recv.as_ref().map(|m| m.dtype).or(send.as_ref().map(|s| s.0.dtype)).unwrap_or(DType::U8),
        root,
        count: recv.as_ref().map_or_else(|| blocks[rank].len, |m| m.count),
        send: send.as_ref().map(|s| s.0.region),
        recv: recv.as_ref().map(|m| m.region),
        send_blocks: blocks,
        options,
        ..Call::new(Collective::Scatterv)
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
    options: Options,
    mode: Mode,
) -> Answer<'py> {
    let make = if typed { Vector::typed } else { Vector::new };
    let in_place = is_in_place(sendbuf)?;
    let mut recv = make(recvbuf, if in_place { Access::Update } else { Access::Write }, comm)?;
    let send = if in_place { None } else { Some(make(sendbuf, Access::Read, comm)?) };
    if let Some(send) = &send {
        recv.in_elements_of(py, send.0.dtype)?;
    }
    let held = Held {
        owners: [send.as_ref().map(|s| s.0.owner.clone()), Some(recv.0.owner.clone())],
        unpack: recv.0.unpack.clone(),
        raised: None,
    };
    let call = Call {
        dtype: recv.0.dtype,
        send: send.as_ref().map(|s| s.0.region),
        recv: Some(recv.0.region),
        send_blocks: send.as_ref().map_or(&recv.0.blocks, |s| &s.0.blocks),
        recv_blocks: &recv.0.blocks,
        options,
        ..Call::new(Collective::Alltoallv)
    };
    run(py, comm, &call, held, mode)
}
