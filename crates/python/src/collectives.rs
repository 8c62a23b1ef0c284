//! The upper-case collectives: what the caller passes becomes one native `Call`.
//!
//! Every method exists twice, blocking and non-blocking, and differs only in how its arguments become a `Call`; the
//! functions in the middle of the file do that once for both.

#![allow(non_snake_case)] // MPI and mpi4py write them so.

use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use tidemill_collective::{Block, Call, Collective, Communicator, DType, Op, Options};

use crate::comm::Comm;
use crate::errors::{class, fail, from_collective, mismatched};
use crate::handles::{Datatype, Operation, Raised};
use crate::message::{Access, Message, VectorMessage};
use crate::request::{self, Kept, State};
use crate::wait::{Owners, blocking, detached};

/// Whether the method returns when the operation is over, or a request.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    Blocking,
    Nonblocking,
}

use Mode::{Blocking, Nonblocking};

/// What a method returns: a request, or nothing.
type Answer<'py> = PyResult<Option<Bound<'py, PyAny>>>;

/// The caller's wishes about the algorithm.
#[inline]
fn options(algorithm: Option<&str>, repeatable: bool) -> PyResult<Options> {
    let algorithm = match algorithm {
        None => None,
        Some(name) => Some(
            name.parse()
                .map_err(|e: tidemill_collective::algorithms::UnknownName| PyValueError::new_err(e.to_string()))?,
        ),
    };
    Ok(Options { algorithm, chunk: None, repeatable })
}

/// Whether `object` is `MPI.IN_PLACE`, or `None`, which stands for it in mpi4py.
#[inline]
fn is_in_place(object: &Bound<'_, PyAny>) -> PyResult<bool> {
    static IN_PLACE: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    Ok(object.is_none() || object.is(IN_PLACE.import(object.py(), "tidemill.mpi._buffers", "IN_PLACE")?))
}

/// Messages of a call, held until it is over.
#[derive(Default)]
struct Held<'py> {
    owners: [Option<Bound<'py, PyAny>>; 2],
    unpack: Option<Bound<'py, PyAny>>,
    raised: Option<Raised>,
}

impl<'py> Held<'py> {
    fn new(send: Option<&Message<'py>>, recv: Option<&Message<'py>>) -> Self {
        Held {
            owners: [send.map(|m| m.owner.clone()), recv.map(|m| m.owner.clone())],
            unpack: recv.and_then(|m| m.unpack.clone()),
            raised: None,
        }
    }

    fn owners(&self) -> Owners {
        self.owners.iter().flatten().map(|o| o.clone().unbind()).collect()
    }
}

/// Runs a call or starts it.
///
/// `held` owns the memory of the call's regions.
#[inline]
fn run<'py>(py: Python<'py>, comm: &Communicator, call: &Call<'_>, held: Held<'py>, mode: Mode) -> Answer<'py> {
    if mode == Blocking {
        // SAFETY: `held` owns the memory until this returns; should the wait be given up, `owners` does.
        let started = unsafe { comm.start(call) };
        blocking(py, started, held.raised.as_ref(), || held.owners())?;
        if let Some(unpack) = &held.unpack {
            unpack.call1((None::<u64>,))?;
        }
        return Ok(None);
    }
    // SAFETY: the request owns the memory.
    let request = unsafe { comm.start_nonblocking(call) }.map_err(|e| from_collective(py, &e))?;
    let kept =
        Kept { owners: held.owners(), unpack: held.unpack.map(Bound::unbind), raised: held.raised, ..Kept::default() };
    request::make(py, State::Active(request, kept)).map(Some)
}

#[cold]
fn differ(py: Python<'_>, what: &str, send: impl std::fmt::Display, recv: impl std::fmt::Display) -> PyErr {
    mismatched(py, format!("mismatch in send and receive {what}: {send} and {recv}"))
}

/// Checks that a rank's own part is as long where it leaves as where it arrives. Bytes count: a caller may send numbers
/// and receive `MPI.BYTE`.
#[inline]
fn same_bytes(py: Python<'_>, send: &Message<'_>, recv_bytes: usize) -> PyResult<()> {
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

pub fn barrier<'py>(py: Python<'py>, comm: &Communicator, options: Options, mode: Mode) -> Answer<'py> {
    run(py, comm, &Call { options, ..Call::new(Collective::Barrier) }, Held::default(), mode)
}

#[inline]
fn bcast<'py>(
    py: Python<'py>,
    comm: &Communicator,
    buf: &Bound<'py, PyAny>,
    root: i32,
    options: Options,
    mode: Mode,
) -> Answer<'py> {
    let root = root_of(py, comm, root)?;
    // The root's buffer is only read, so it may be a read-only one.
    let access = if comm.rank() == root { Access::Read } else { Access::Update };
    let mut message = Message::new(buf, access, 1)?;
    if comm.rank() == root {
        message.unpack = None;
    }
    let call = Call {
        dtype: message.dtype,
        root,
        count: message.count,
        recv: Some(message.region),
        options,
        ..Call::new(Collective::Bcast)
    };
    run(py, comm, &call, Held::new(None, Some(&message)), mode)
}

/// An operation argument; `None` is `MPI.SUM`.
struct Chosen<'a, 'py> {
    operation: Option<&'a Bound<'py, Operation>>,
}

impl Chosen<'_, '_> {
    /// Gives `then` the native operation.
    #[inline]
    fn with<R>(
        &self,
        py: Python<'_>,
        datatype: Option<&Bound<'_, PyAny>>,
        held_raised: &mut Option<Raised>,
        then: impl FnOnce(&Op, &mut Option<Raised>) -> PyResult<R>,
    ) -> PyResult<R> {
        match self.operation {
            None => then(&Op::Sum, held_raised),
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
}

/// A message of a reduction, or its blocks.
///
/// Items of a derived datatype stay whole for a user function: it may combine what is in them, as of a matrix.
#[inline]
fn operand<'py>(
    spec: &Bound<'py, PyAny>,
    op: Option<&Bound<'py, Operation>>,
    access: Access,
    blocks: usize,
) -> PyResult<Message<'py>> {
    let mut message = Message::new(spec, access, blocks)?;
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

/// Messages of a reduction: both, or only the receive buffer for one in place.
#[inline]
fn operands<'py>(
    py: Python<'py>,
    sendbuf: &Bound<'py, PyAny>,
    recvbuf: &Bound<'py, PyAny>,
    op: Option<&Bound<'py, Operation>>,
) -> PyResult<(Option<Message<'py>>, Message<'py>)> {
    if is_in_place(sendbuf)? {
        return Ok((None, operand(recvbuf, op, Access::Update, 1)?));
    }
    let recv = operand(recvbuf, op, Access::Write, 1)?;
    let send = operand(sendbuf, op, Access::Read, 1)?;
    check_operands(py, &send, &recv, recv.count)?;
    Ok((Some(send).filter(|send| !is_same_memory(send, &recv)), recv))
}

/// The same memory twice is an operation in place.
#[inline]
fn is_same_memory(send: &Message<'_>, recv: &Message<'_>) -> bool {
    send.region.ptr == recv.region.ptr && send.count > 0
}

#[inline]
fn check_operands(py: Python<'_>, send: &Message<'_>, recv: &Message<'_>, count: usize) -> PyResult<()> {
    if send.dtype != recv.dtype {
        return Err(differ(py, "datatypes", send.dtype, recv.dtype));
    }
    if send.count != count {
        return Err(differ(py, "counts", send.count, count));
    }
    Ok(())
}

/// Allreduce, scan, exscan.
#[inline]
#[allow(clippy::too_many_arguments)] // Python's own list, with what it resolves to.
fn reduce_to_all<'py>(
    py: Python<'py>,
    comm: &Communicator,
    collective: Collective,
    sendbuf: &Bound<'py, PyAny>,
    recvbuf: &Bound<'py, PyAny>,
    op: Option<&Bound<'py, Operation>>,
    options: Options,
    mode: Mode,
) -> Answer<'py> {
    let (send, recv) = operands(py, sendbuf, recvbuf, op)?;
    let mut held = Held::new(send.as_ref(), Some(&recv));
    let mut raised = None;
    Chosen { operation: op }.with(py, recv.datatype.as_ref(), &mut raised, |op, raised| {
        held.raised = raised.take();
        let call = Call {
            dtype: recv.dtype,
            op,
            count: recv.count,
            send: send.as_ref().map(|m| m.region),
            recv: Some(recv.region),
            options,
            ..Call::new(collective)
        };
        run(py, comm, &call, held, mode)
    })
}

#[inline]
#[allow(clippy::too_many_arguments)]
fn reduce<'py>(
    py: Python<'py>,
    comm: &Communicator,
    sendbuf: &Bound<'py, PyAny>,
    recvbuf: Option<&Bound<'py, PyAny>>,
    op: Option<&Bound<'py, Operation>>,
    root: i32,
    options: Options,
    mode: Mode,
) -> Answer<'py> {
    let root = root_of(py, comm, root)?;
    let (send, recv) = if comm.rank() == root {
        let recvbuf = recvbuf.ok_or_else(|| PyTypeError::new_err("message: expecting buffer or list/tuple"))?;
        let (send, recv) = operands(py, sendbuf, recvbuf, op)?;
        (send, Some(recv))
    } else {
        (Some(operand(sendbuf, op, Access::Read, 1)?), None)
    };
    let Some(first) = send.as_ref().or(recv.as_ref()) else { unreachable!("one of them is always there") };
    let mut held = Held::new(send.as_ref(), recv.as_ref());
    let mut raised = None;
    Chosen { operation: op }.with(py, first.datatype.as_ref(), &mut raised, |op, raised| {
        held.raised = raised.take();
        let call = Call {
            dtype: first.dtype,
            op,
            root,
            count: first.count,
            send: send.as_ref().map(|m| m.region),
            recv: recv.as_ref().map(|m| m.region),
            options,
            ..Call::new(Collective::Reduce)
        };
        run(py, comm, &call, held, mode)
    })
}

#[inline]
#[allow(clippy::too_many_arguments)]
fn reduce_scatter_block<'py>(
    py: Python<'py>,
    comm: &Communicator,
    sendbuf: &Bound<'py, PyAny>,
    recvbuf: &Bound<'py, PyAny>,
    op: Option<&Bound<'py, Operation>>,
    options: Options,
    mode: Mode,
) -> Answer<'py> {
    let size = comm.size() as usize;
    let (send, recv) = if is_in_place(sendbuf)? {
        (None, operand(recvbuf, op, Access::Update, size)?)
    } else {
        let recv = operand(recvbuf, op, Access::Write, 1)?;
        let send = operand(sendbuf, op, Access::Read, size)?;
        check_operands(py, &send, &recv, recv.count)?;
        (Some(send).filter(|send| !is_same_memory(send, &recv)), recv)
    };
    let mut held = Held::new(send.as_ref(), Some(&recv));
    let mut raised = None;
    Chosen { operation: op }.with(py, recv.datatype.as_ref(), &mut raised, |op, raised| {
        held.raised = raised.take();
        let call = Call {
            dtype: recv.dtype,
            op,
            count: recv.count,
            send: send.as_ref().map(|m| m.region),
            recv: Some(recv.region),
            options,
            ..Call::new(Collective::ReduceScatterBlock)
        };
        run(py, comm, &call, held, mode)
    })
}

#[allow(clippy::too_many_arguments)]
fn reduce_scatter<'py>(
    py: Python<'py>,
    comm: &Communicator,
    sendbuf: &Bound<'py, PyAny>,
    recvbuf: &Bound<'py, PyAny>,
    recvcounts: Option<Vec<usize>>,
    op: Option<&Bound<'py, Operation>>,
    options: Options,
    mode: Mode,
) -> Answer<'py> {
    let (size, rank) = (comm.size() as usize, comm.rank() as usize);
    let in_place = is_in_place(sendbuf)?;
    let recv = operand(recvbuf, op, if in_place { Access::Update } else { Access::Write }, 1)?;
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
    let blocks: Vec<Block> = counts
        .iter()
        .map(|&len| {
            start += len;
            Block { start: start - len, len }
        })
        .collect();
    let send = if in_place {
        if recv.count != total {
            return Err(differ(py, "counts", format!("the sum {total}"), recv.count));
        }
        None
    } else {
        let send = operand(sendbuf, op, Access::Read, 1)?;
        check_operands(py, &send, &recv, total)?;
        let same = is_same_memory(&send, &recv);
        if recv.count != if same { total } else { counts[rank] } {
            return Err(differ(py, "counts", format!("recvcounts[{rank}] = {}", counts[rank]), recv.count));
        }
        Some(send).filter(|_| !same)
    };
    let mut held = Held::new(send.as_ref(), Some(&recv));
    let mut raised = None;
    Chosen { operation: op }.with(py, recv.datatype.as_ref(), &mut raised, |op, raised| {
        held.raised = raised.take();
        let call = Call {
            dtype: recv.dtype,
            op,
            count: total,
            send: send.as_ref().map(|m| m.region),
            recv: Some(recv.region),
            send_blocks: &blocks,
            options,
            ..Call::new(Collective::ReduceScatter)
        };
        run(py, comm, &call, held, mode)
    })
}

/// Everybody's count, for callers that did not give them.
fn gather_counts(py: Python<'_>, comm: &Communicator, mine: usize) -> PyResult<Vec<usize>> {
    let mut counts = vec![0u64; comm.size() as usize];
    detached(py, || comm.allgather(&[mine as u64], &mut counts))?;
    Ok(counts.into_iter().map(|n| n as usize).collect())
}

#[inline]
#[allow(clippy::too_many_arguments)]
fn gather<'py>(
    py: Python<'py>,
    comm: &Communicator,
    sendbuf: &Bound<'py, PyAny>,
    recvbuf: Option<&Bound<'py, PyAny>>,
    root: i32,
    options: Options,
    mode: Mode,
) -> Answer<'py> {
    let root = root_of(py, comm, root)?;
    let recv = match recvbuf {
        _ if comm.rank() != root => None,
        Some(buf) => {
            let in_place = is_in_place(sendbuf)?;
            let access = if in_place { Access::Update } else { Access::Write };
            Some(Message::new(buf, access, comm.size() as usize)?)
        }
        None => return Err(PyTypeError::new_err("message: expecting buffer or list/tuple")),
    };
    let send = match &recv {
        Some(_) if is_in_place(sendbuf)? => None,
        _ => Some(Message::new(sendbuf, Access::Read, 1)?),
    };
    gathered(py, comm, Collective::Gather, root, send, recv, options, mode)
}

#[inline]
fn allgather<'py>(
    py: Python<'py>,
    comm: &Communicator,
    sendbuf: &Bound<'py, PyAny>,
    recvbuf: &Bound<'py, PyAny>,
    options: Options,
    mode: Mode,
) -> Answer<'py> {
    let in_place = is_in_place(sendbuf)?;
    let access = if in_place { Access::Update } else { Access::Write };
    let recv = Message::new(recvbuf, access, comm.size() as usize)?;
    let send = if in_place { None } else { Some(Message::new(sendbuf, Access::Read, 1)?) };
    gathered(py, comm, Collective::Allgather, 0, send, Some(recv), options, mode)
}

#[inline]
#[allow(clippy::too_many_arguments)]
fn gathered<'py>(
    py: Python<'py>,
    comm: &Communicator,
    collective: Collective,
    root: u32,
    send: Option<Message<'py>>,
    recv: Option<Message<'py>>,
    options: Options,
    mode: Mode,
) -> Answer<'py> {
    if let (Some(send), Some(recv)) = (&send, &recv) {
        same_bytes(py, send, recv.bytes())?;
    }
    // What is sent names the elements: that is what every rank has.
    let Some(first) = send.as_ref().or(recv.as_ref()) else { unreachable!("one of them is always there") };
    let call = Call {
        dtype: first.dtype,
        root,
        count: first.count,
        send: send.as_ref().map(|m| m.region),
        recv: recv.as_ref().map(|m| m.region),
        options,
        ..Call::new(collective)
    };
    run(py, comm, &call, Held::new(send.as_ref(), recv.as_ref()), mode)
}

#[inline]
#[allow(clippy::too_many_arguments)]
fn scatter<'py>(
    py: Python<'py>,
    comm: &Communicator,
    sendbuf: Option<&Bound<'py, PyAny>>,
    recvbuf: &Bound<'py, PyAny>,
    root: i32,
    options: Options,
    mode: Mode,
) -> Answer<'py> {
    let root = root_of(py, comm, root)?;
    let at_root = comm.rank() == root;
    let send = match sendbuf {
        _ if !at_root => None,
        Some(buf) => Some(Message::new(buf, Access::Read, comm.size() as usize)?),
        None => return Err(PyTypeError::new_err("message: expecting buffer or list/tuple")),
    };
    let recv = if at_root && is_in_place(recvbuf)? { None } else { Some(Message::new(recvbuf, Access::Write, 1)?) };
    if let (Some(send), Some(recv)) = (&send, &recv) {
        same_bytes(py, send, recv.bytes())?;
    }
    let Some(first) = recv.as_ref().or(send.as_ref()) else { unreachable!("one of them is always there") };
    let call = Call {
        dtype: first.dtype,
        root,
        count: first.count,
        send: send.as_ref().map(|m| m.region),
        recv: recv.as_ref().map(|m| m.region),
        options,
        ..Call::new(Collective::Scatter)
    };
    run(py, comm, &call, Held::new(send.as_ref(), recv.as_ref()), mode)
}

#[inline]
fn alltoall<'py>(
    py: Python<'py>,
    comm: &Communicator,
    sendbuf: &Bound<'py, PyAny>,
    recvbuf: &Bound<'py, PyAny>,
    options: Options,
    mode: Mode,
) -> Answer<'py> {
    let size = comm.size() as usize;
    let in_place = is_in_place(sendbuf)?;
    let recv = Message::new(recvbuf, if in_place { Access::Update } else { Access::Write }, size)?;
    let send = if in_place { None } else { Some(Message::new(sendbuf, Access::Read, size)?) };
    gathered(py, comm, Collective::Alltoall, 0, send, Some(recv), options, mode)
}

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
fn gatherv<'py>(
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
fn scatterv<'py>(
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
fn alltoallv<'py>(
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

                #[doc = concat!("Begins `", stringify!($name), "` and returns its request. The buffers belong to the request until it is over.")]
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
    /// Copies the root's buffer to everybody's, which has the same length.
    Bcast, Ibcast, "6.4",
    (buf: &Bound<'py, PyAny>, root: i32 = 0),
    |py, comm, how, mode| bcast(py, comm, buf, root, how, mode);

    /// Combines everybody's array elementwise with `op`; the result goes to the root. `recvbuf` may be `None` elsewhere.
    Reduce, Ireduce, "6.9.1",
    (sendbuf: &Bound<'py, PyAny>, recvbuf: Option<&Bound<'py, PyAny>>, op: Option<&Bound<'py, Operation>> = None, root: i32 = 0),
    |py, comm, how, mode| reduce(py, comm, sendbuf, recvbuf, op, root, how, mode);

    /// Combines everybody's array elementwise with `op`; the result goes to everybody, the same bits everywhere.
    Allreduce, Iallreduce, "6.9.6",
    (sendbuf: &Bound<'py, PyAny>, recvbuf: &Bound<'py, PyAny>, op: Option<&Bound<'py, Operation>> = None),
    |py, comm, how, mode| reduce_to_all(py, comm, Collective::Allreduce, sendbuf, recvbuf, op, how, mode);

    /// Combines the arrays of ranks up to and including this one.
    Scan, Iscan, "6.11.1",
    (sendbuf: &Bound<'py, PyAny>, recvbuf: &Bound<'py, PyAny>, op: Option<&Bound<'py, Operation>> = None),
    |py, comm, how, mode| reduce_to_all(py, comm, Collective::Scan, sendbuf, recvbuf, op, how, mode);

    /// Combines the arrays of lower ranks; rank 0's result is left alone.
    Exscan, Iexscan, "6.11.2",
    (sendbuf: &Bound<'py, PyAny>, recvbuf: &Bound<'py, PyAny>, op: Option<&Bound<'py, Operation>> = None),
    |py, comm, how, mode| reduce_to_all(py, comm, Collective::Exscan, sendbuf, recvbuf, op, how, mode);

    /// Combines everybody's array and leaves block i of the result on rank i; all blocks have one length.
    Reduce_scatter_block, Ireduce_scatter_block, "6.10.1",
    (sendbuf: &Bound<'py, PyAny>, recvbuf: &Bound<'py, PyAny>, op: Option<&Bound<'py, Operation>> = None),
    |py, comm, how, mode| reduce_scatter_block(py, comm, sendbuf, recvbuf, op, how, mode);

    /// Combines everybody's array and leaves block i of the result, `recvcounts[i]` elements, on rank i.
    Reduce_scatter, Ireduce_scatter, "6.10.2",
    (sendbuf: &Bound<'py, PyAny>, recvbuf: &Bound<'py, PyAny>, recvcounts: Option<Vec<usize>> = None, op: Option<&Bound<'py, Operation>> = None),
    |py, comm, how, mode| reduce_scatter(py, comm, sendbuf, recvbuf, recvcounts, op, how, mode);

    /// Everybody's array to the root, in rank order. `recvbuf` may be `None` elsewhere.
    Gather, Igather, "6.5",
    (sendbuf: &Bound<'py, PyAny>, recvbuf: Option<&Bound<'py, PyAny>>, root: i32 = 0),
    |py, comm, how, mode| gather(py, comm, sendbuf, recvbuf, root, how, mode);

    /// As `Gather` with blocks of different lengths: `recvbuf` is ``[buffer, counts]``, ``[buffer, (counts, displacements), datatype]``.
    Gatherv, Igatherv, "6.5",
    (sendbuf: &Bound<'py, PyAny>, recvbuf: Option<&Bound<'py, PyAny>>, root: i32 = 0),
    |py, comm, how, mode| gatherv(py, comm, sendbuf, recvbuf, Some(root), how, mode);

    /// Everybody's array to everybody, in rank order.
    Allgather, Iallgather, "6.7",
    (sendbuf: &Bound<'py, PyAny>, recvbuf: &Bound<'py, PyAny>),
    |py, comm, how, mode| allgather(py, comm, sendbuf, recvbuf, how, mode);

    /// As `Allgather` with blocks of different lengths.
    Allgatherv, Iallgatherv, "6.7",
    (sendbuf: &Bound<'py, PyAny>, recvbuf: &Bound<'py, PyAny>),
    |py, comm, how, mode| gatherv(py, comm, sendbuf, Some(recvbuf), None, how, mode);

    /// Block i of the root's array to rank i. `sendbuf` may be `None` elsewhere.
    Scatter, Iscatter, "6.6",
    (sendbuf: Option<&Bound<'py, PyAny>>, recvbuf: &Bound<'py, PyAny>, root: i32 = 0),
    |py, comm, how, mode| scatter(py, comm, sendbuf, recvbuf, root, how, mode);

    /// As `Scatter` with blocks of different lengths.
    Scatterv, Iscatterv, "6.6",
    (sendbuf: Option<&Bound<'py, PyAny>>, recvbuf: &Bound<'py, PyAny>, root: i32 = 0),
    |py, comm, how, mode| scatterv(py, comm, sendbuf, recvbuf, root, how, mode);

    /// Block j of rank i becomes block i of rank j.
    Alltoall, Ialltoall, "6.8",
    (sendbuf: &Bound<'py, PyAny>, recvbuf: &Bound<'py, PyAny>),
    |py, comm, how, mode| alltoall(py, comm, sendbuf, recvbuf, how, mode);

    /// As `Alltoall` with blocks of different lengths.
    Alltoallv, Ialltoallv, "6.8",
    (sendbuf: &Bound<'py, PyAny>, recvbuf: &Bound<'py, PyAny>),
    |py, comm, how, mode| alltoallv(py, comm, sendbuf, recvbuf, false, how, mode);

    /// As `Alltoallv` with a datatype for each rank and displacements in bytes.
    Alltoallw, Ialltoallw, "6.8",
    (sendbuf: &Bound<'py, PyAny>, recvbuf: &Bound<'py, PyAny>),
    |py, comm, how, mode| alltoallv(py, comm, sendbuf, recvbuf, true, how, mode);
}

#[pymethods]
impl Comm {
    /// Waits until every rank has called it.
    ///
    /// Source: MPI 4.1 section 6.3.
    #[pyo3(signature = (*, algorithm=None))]
    fn Barrier(&self, py: Python<'_>, algorithm: Option<&str>) -> PyResult<()> {
        barrier(py, self.get(py)?, options(algorithm, false)?, Blocking).map(|_| ())
    }

    /// Begins `Barrier` and returns its request.
    ///
    /// Source: MPI 4.1 section 6.12.1.
    #[pyo3(signature = (*, algorithm=None))]
    fn Ibarrier<'py>(&self, py: Python<'py>, algorithm: Option<&str>) -> PyResult<Bound<'py, PyAny>> {
        let request = barrier(py, self.get(py)?, options(algorithm, false)?, Nonblocking)?;
        Ok(request.expect("a non-blocking call gives a request"))
    }
}

/// `inoutbuf = op(inbuf, inoutbuf)`, elementwise and without any communication. Source: MPI 4.1 section 6.9.7.
#[pyfunction]
pub fn reduce_local<'py>(
    py: Python<'py>,
    inbuf: &Bound<'py, PyAny>,
    inoutbuf: &Bound<'py, PyAny>,
    op: &Bound<'py, Operation>,
) -> PyResult<()> {
    let (left, right) = (operand(inbuf, Some(op), Access::Read, 1)?, operand(inoutbuf, Some(op), Access::Update, 1)?);
    check_operands(py, &left, &right, right.count)?;
    let raised = request::raised();
    let native = op.get().native(py, right.datatype.as_ref(), &raised)?;
    native.check(right.dtype).map_err(|e| from_collective(py, &e.into()))?;
    let bytes = right.bytes();
    if bytes == 0 || left.region.ptr == right.region.ptr {
        return Ok(());
    }
    // SAFETY: both are readable and the second writable for `bytes`; Python's arrays may overlap in part, so the left one
    // is copied.
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
