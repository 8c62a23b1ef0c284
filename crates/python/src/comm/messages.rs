//! Point-to-point communication of buffers.

use pyo3::prelude::*;
use tidemill_collective::{Communicator, StartResult};
use tidemill_net::{CallWait, MemoryRegion};

use super::Comm;
use crate::errors::{class, fail, from_collective};
use crate::handles::{ANY, PROC_NULL, Status};
use crate::message::{MemoryAccess, MessageMemory};
use crate::request::{self, ReceiveOutcome, RequestOutcome, RequestResources, RequestStage};
use crate::wait::{blocking, detach};

#[cold]
fn bad_rank(py: Python<'_>, comm: &Communicator, what: &str, rank: i32) -> PyErr {
    let (size, name) = (comm.size(), comm.name());
    fail(py, class::RANK, format!("{what} {rank} is not in comm \"{name}\", which has ranks 0 to {}", size - 1))
}

/// `None` for `PROC_NULL`.
#[inline]
pub(super) fn dest_of(py: Python<'_>, comm: &Communicator, dest: i32) -> PyResult<Option<u32>> {
    if (dest as u32) < comm.size() {
        return Ok(Some(dest as u32));
    }
    if dest == PROC_NULL { Ok(None) } else { Err(bad_rank(py, comm, "destination", dest)) }
}

pub(super) enum ReceiveSource {
    Rank(u32),
    Any,
    Nobody,
}

#[inline]
pub(super) fn source_of(py: Python<'_>, comm: &Communicator, source: i32) -> PyResult<ReceiveSource> {
    if (source as u32) < comm.size() {
        return Ok(ReceiveSource::Rank(source as u32));
    }
    match source {
        ANY => Ok(ReceiveSource::Any),
        PROC_NULL => Ok(ReceiveSource::Nobody),
        _ => Err(bad_rank(py, comm, "source", source)),
    }
}

impl ReceiveSource {
    pub(super) fn rank(&self) -> Option<u32> {
        match self {
            ReceiveSource::Rank(rank) => Some(*rank),
            _ => None,
        }
    }
}

#[inline]
pub(super) fn send_tag(py: Python<'_>, tag: i32) -> PyResult<i32> {
    if tag >= 0 { Ok(tag) } else { Err(fail(py, class::TAG, format!("tag {tag} is negative"))) }
}

#[inline]
pub(super) fn recv_tag(py: Python<'_>, tag: i32) -> PyResult<Option<i32>> {
    match tag {
        ANY => Ok(None),
        0.. => Ok(Some(tag)),
        _ => Err(fail(py, class::TAG, format!("tag {tag} is negative"))),
    }
}

#[inline]
pub(super) fn report(status: Option<&Bound<'_, Status>>, received: ReceiveOutcome) {
    if let Some(status) = status {
        status.get().fill(received.source, received.tag, received.nbytes);
    }
}

/// Calls the function that moves received bytes of a non-contiguous datatype into place.
pub(super) fn unpack(message: &MessageMemory<'_>, nbytes: u64) -> PyResult<()> {
    match &message.unpack {
        Some(unpack) => unpack.call1((nbytes,)).map(|_| ()),
        None => Ok(()),
    }
}

pub(super) fn send_region(message: &MessageMemory<'_>) -> MemoryRegion {
    message.cut(message.bytes())
}

pub(super) fn resources(message: &MessageMemory<'_>, is_receive: bool) -> RequestResources {
    RequestResources {
        is_receive,
        owners: message.owners(),
        unpack: message.unpack.as_ref().map(|u| u.clone().unbind()),
        ..RequestResources::default()
    }
}

/// The request of a message to or from `PROC_NULL`.
pub(super) fn with_nobody<'py>(py: Python<'py>, is_receive: bool) -> PyResult<Bound<'py, PyAny>> {
    let status = is_receive.then_some(ReceiveOutcome::FROM_NOBODY);
    request::make(py, RequestStage::Over(RequestOutcome { status, ..RequestOutcome::default() }))
}

/// When a send completes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum SendCompletion {
    /// When its memory may be reused.
    Locally,
    /// When its receive has started.
    Received,
}

impl Comm {
    #[inline]
    unsafe fn begin_send(
        comm: &Communicator,
        dest: u32,
        tag: i32,
        region: MemoryRegion,
        ends: SendCompletion,
    ) -> Result<StartResult, tidemill_collective::CollectiveError> {
        // SAFETY: by this function's contract, which is the same as that of the functions called.
        unsafe {
            match ends {
                SendCompletion::Locally => comm.send(dest, tag, region),
                SendCompletion::Received => comm.send_synchronous(dest, tag, region),
            }
        }
    }

    #[inline]
    fn blocking_send(
        &self,
        py: Python<'_>,
        buf: &Bound<'_, PyAny>,
        dest: i32,
        tag: i32,
        ends: SendCompletion,
    ) -> PyResult<()> {
        let comm = self.get(py)?;
        let tag = send_tag(py, tag)?;
        let Some(dest) = dest_of(py, comm, dest)? else { return Ok(()) };
        let message = MessageMemory::new(buf, MemoryAccess::Read, 1)?;
        // SAFETY: `message` owns the memory until this returns; if the wait is abandoned, `owners` does.
        let started = unsafe { Self::begin_send(comm, dest, tag, send_region(&message), ends) };
        blocking(py, started, None, || message.owners())?;
        Ok(())
    }

    fn nonblocking_send<'py>(
        &self,
        py: Python<'py>,
        buf: &Bound<'py, PyAny>,
        dest: i32,
        tag: i32,
        ends: SendCompletion,
    ) -> PyResult<Bound<'py, PyAny>> {
        let comm = self.get(py)?;
        let tag = send_tag(py, tag)?;
        let Some(dest) = dest_of(py, comm, dest)? else { return with_nobody(py, false) };
        let message = MessageMemory::new(buf, MemoryAccess::Read, 1)?;
        // SAFETY: the request owns the memory.
        match unsafe { Self::begin_send(comm, dest, tag, send_region(&message), ends) } {
            // The usual outcome for a short message: nothing needs to be kept.
            Ok(StartResult::Done(_)) => request::make(py, RequestStage::Over(RequestOutcome::default())),
            started => request::started(py, comm, started, resources(&message, false)),
        }
    }
}

#[pymethods]
impl Comm {
    /// Send a buffer; return when it may be reused.
    ///
    /// `buf` is a contiguous array or ``[buffer, count, datatype]`` (see `tidemill.mpi`). Raises `MPI.Exception` with
    /// class ``ERR_RANK`` or ``ERR_TAG``; `WorkerLost` and `PeerFailed` if the receiver is gone. Source: MPI 4.1
    /// section 3.2.
    #[pyo3(signature = (buf, dest, tag=0))]
    fn Send(&self, py: Python<'_>, buf: &Bound<'_, PyAny>, dest: i32, tag: i32) -> PyResult<()> {
        self.blocking_send(py, buf, dest, tag, SendCompletion::Locally)
    }

    /// Same as `Send`: buffering needs no attached buffer. Source: MPI 4.1 section 3.4.
    #[pyo3(signature = (buf, dest, tag=0))]
    fn Bsend(&self, py: Python<'_>, buf: &Bound<'_, PyAny>, dest: i32, tag: i32) -> PyResult<()> {
        let request = self.Ibsend(py, buf, dest, tag)?;
        request.call_method0("Wait")?;
        Ok(())
    }

    /// Send a buffer; return when its receive has started. Source: MPI 4.1 section 3.4.
    #[pyo3(signature = (buf, dest, tag=0))]
    fn Ssend(&self, py: Python<'_>, buf: &Bound<'_, PyAny>, dest: i32, tag: i32) -> PyResult<()> {
        self.blocking_send(py, buf, dest, tag, SendCompletion::Received)
    }

    /// Same as `Send`, for a receive that is known to be posted. Source: MPI 4.1 section 3.4.
    #[pyo3(signature = (buf, dest, tag=0))]
    fn Rsend(&self, py: Python<'_>, buf: &Bound<'_, PyAny>, dest: i32, tag: i32) -> PyResult<()> {
        self.blocking_send(py, buf, dest, tag, SendCompletion::Locally)
    }

    /// Start sending a buffer, which must not change until the request completes. Source: MPI 4.1 section 3.7.2.
    #[pyo3(signature = (buf, dest, tag=0))]
    fn Isend<'py>(&self, py: Python<'py>, buf: &Bound<'py, PyAny>, dest: i32, tag: i32) -> PyResult<Bound<'py, PyAny>> {
        self.nonblocking_send(py, buf, dest, tag, SendCompletion::Locally)
    }

    /// Start sending a copy of a buffer: the request completes immediately. Source: MPI 4.1 section 3.7.2.
    #[pyo3(signature = (buf, dest, tag=0))]
    fn Ibsend<'py>(
        &self,
        py: Python<'py>,
        buf: &Bound<'py, PyAny>,
        dest: i32,
        tag: i32,
    ) -> PyResult<Bound<'py, PyAny>> {
        let comm = self.get(py)?;
        let tag = send_tag(py, tag)?;
        let Some(dest) = dest_of(py, comm, dest)? else { return with_nobody(py, false) };
        let message = MessageMemory::new(buf, MemoryAccess::Read, 1)?;
        let region = send_region(&message);
        // SAFETY: the region is readable while `message` lives.
        let copy: Box<[u8]> = unsafe { std::slice::from_raw_parts(region.ptr, region.len) }.into();
        let region = MemoryRegion::of(&copy);
        // SAFETY: the copy is kept alive by the detached request, and does not move when the box does.
        match unsafe { comm.send(dest, tag, region) }.map_err(|e| from_collective(py, &e))? {
            StartResult::Done(_) => {}
            StartResult::Pending(request) => {
                request.detach(Some(Box::new(copy)));
                comm.endpoint().leave_to_background();
            }
        }
        request::make(py, RequestStage::Over(RequestOutcome::default()))
    }

    /// Start a synchronous send: the request completes when the receive has started. Source: MPI 4.1 section 3.7.2.
    #[pyo3(signature = (buf, dest, tag=0))]
    fn Issend<'py>(
        &self,
        py: Python<'py>,
        buf: &Bound<'py, PyAny>,
        dest: i32,
        tag: i32,
    ) -> PyResult<Bound<'py, PyAny>> {
        self.nonblocking_send(py, buf, dest, tag, SendCompletion::Received)
    }

    /// Same as `Isend`, for a receive that is known to be posted. Source: MPI 4.1 section 3.7.2.
    #[pyo3(signature = (buf, dest, tag=0))]
    fn Irsend<'py>(
        &self,
        py: Python<'py>,
        buf: &Bound<'py, PyAny>,
        dest: i32,
        tag: i32,
    ) -> PyResult<Bound<'py, PyAny>> {
        self.nonblocking_send(py, buf, dest, tag, SendCompletion::Locally)
    }

    /// Receive a message into a buffer, which may be longer than the message.
    ///
    /// Raises `MPI.Exception` with class ``ERR_TRUNCATE`` if the message is longer. Source: MPI 4.1 section 3.2.4.
    #[pyo3(signature = (buf, source=ANY, tag=ANY, status=None))]
    fn Recv(
        &self,
        py: Python<'_>,
        buf: &Bound<'_, PyAny>,
        source: i32,
        tag: i32,
        status: Option<&Bound<'_, Status>>,
    ) -> PyResult<()> {
        let comm = self.get(py)?;
        let tag = recv_tag(py, tag)?;
        let source = source_of(py, comm, source)?;
        if matches!(source, ReceiveSource::Nobody) {
            report(status, ReceiveOutcome::FROM_NOBODY);
            return Ok(());
        }
        let message = MessageMemory::new(buf, MemoryAccess::Write, 1)?;
        // SAFETY: `message` owns the memory until this returns; if the wait is abandoned, the receive is withdrawn or
        // `owners` keeps the memory.
        let started = unsafe { comm.recv(source.rank(), tag, send_region(&message)) };
        let got = blocking(py, started, None, || message.owners())?;
        unpack(&message, got.len)?;
        report(status, ReceiveOutcome::new(comm, &got));
        Ok(())
    }

    /// Start receiving a message. Source: MPI 4.1 section 3.7.2.
    #[pyo3(signature = (buf, source=ANY, tag=ANY))]
    fn Irecv<'py>(
        &self,
        py: Python<'py>,
        buf: &Bound<'py, PyAny>,
        source: i32,
        tag: i32,
    ) -> PyResult<Bound<'py, PyAny>> {
        let comm = self.get(py)?;
        let tag = recv_tag(py, tag)?;
        let source = source_of(py, comm, source)?;
        if matches!(source, ReceiveSource::Nobody) {
            return with_nobody(py, true);
        }
        let message = MessageMemory::new(buf, MemoryAccess::Write, 1)?;
        // SAFETY: the request owns the memory.
        let started = unsafe { comm.recv(source.rank(), tag, send_region(&message)) };
        request::started(py, comm, started, resources(&message, true))
    }

    /// Send one message and receive another at the same time. Source: MPI 4.1 section 3.10.
    #[pyo3(signature = (sendbuf, dest, sendtag=0, recvbuf=None, source=ANY, recvtag=ANY, status=None))]
    #[allow(clippy::too_many_arguments)] // The standard's own list.
    fn Sendrecv(
        &self,
        py: Python<'_>,
        sendbuf: &Bound<'_, PyAny>,
        dest: i32,
        sendtag: i32,
        recvbuf: Option<&Bound<'_, PyAny>>,
        source: i32,
        recvtag: i32,
        status: Option<&Bound<'_, Status>>,
    ) -> PyResult<()> {
        let comm = self.get(py)?;
        let (sendtag, recvtag) = (send_tag(py, sendtag)?, recv_tag(py, recvtag)?);
        let (dest, source) = (dest_of(py, comm, dest)?, source_of(py, comm, source)?);
        let incoming = match (&source, recvbuf) {
            (ReceiveSource::Nobody, _) => None,
            (_, Some(buf)) => Some(MessageMemory::new(buf, MemoryAccess::Write, 1)?),
            (_, None) => return Err(pyo3::exceptions::PyTypeError::new_err("message: expecting buffer or list/tuple")),
        };
        let outgoing = match dest {
            Some(dest) => Some((dest, MessageMemory::new(sendbuf, MemoryAccess::Read, 1)?)),
            None => None,
        };
        // Post the receive first, so that the message has a destination.
        let receiving = match &incoming {
            // SAFETY: as in `Recv`.
            Some(message) => Some(
                unsafe { comm.recv(source.rank(), recvtag, send_region(message)) }
                    .map_err(|e| from_collective(py, &e))?,
            ),
            None => None,
        };
        let mut failed = None;
        if let Some((dest, message)) = &outgoing {
            // SAFETY: as in `Send`.
            let started = unsafe { comm.send(*dest, sendtag, send_region(message)) };
            if let Err(error) = blocking(py, started, None, || message.owners()) {
                failed = Some(error);
            }
        }
        match (receiving, &incoming) {
            (Some(StartResult::Pending(request)), Some(message)) if failed.is_some() => {
                crate::wait::give_up(py, request, message.owners());
            }
            (Some(started), Some(message)) => {
                let got = blocking(py, Ok(started), None, || message.owners())?;
                unpack(message, got.len)?;
                report(status, ReceiveOutcome::new(comm, &got));
            }
            _ => report(status, ReceiveOutcome::FROM_NOBODY),
        }
        failed.map_or(Ok(()), Err)
    }

    /// Wait for a message that a receive would match, and return its status. Source: MPI 4.1 section 3.8.1.
    #[pyo3(signature = (source=ANY, tag=ANY, status=None))]
    fn Probe(&self, py: Python<'_>, source: i32, tag: i32, status: Option<&Bound<'_, Status>>) -> PyResult<bool> {
        let comm = self.get(py)?;
        let tag = recv_tag(py, tag)?;
        let source = source_of(py, comm, source)?;
        if matches!(source, ReceiveSource::Nobody) {
            report(status, ReceiveOutcome::FROM_NOBODY);
            return Ok(true);
        }
        let mut found = comm.iprobe(source.rank(), tag).map_err(|e| from_collective(py, &e))?;
        let mut wait = CallWait::default();
        loop {
            if let Some(got) = found {
                report(status, ReceiveOutcome::new(comm, &got));
                return Ok(true);
            }
            found =
                detach(py, || comm.probe_slice(source.rank(), tag, &mut wait)).map_err(|e| from_collective(py, &e))?;
            if found.is_none() {
                py.check_signals()?;
            }
        }
    }

    /// Return whether there is a message that a receive would match. Source: MPI 4.1 section 3.8.1.
    #[pyo3(signature = (source=ANY, tag=ANY, status=None))]
    fn Iprobe(&self, py: Python<'_>, source: i32, tag: i32, status: Option<&Bound<'_, Status>>) -> PyResult<bool> {
        let comm = self.get(py)?;
        let tag = recv_tag(py, tag)?;
        let source = source_of(py, comm, source)?;
        if matches!(source, ReceiveSource::Nobody) {
            report(status, ReceiveOutcome::FROM_NOBODY);
            return Ok(true);
        }
        let found = comm.iprobe(source.rank(), tag).map_err(|e| from_collective(py, &e))?;
        if let Some(got) = &found {
            report(status, ReceiveOutcome::new(comm, got));
        }
        Ok(found.is_some())
    }

    /// Starts to send in the hidden traffic of the communicator, where `key` (negative) replaces the tag.
    fn _isend_hidden<'py>(
        &self,
        py: Python<'py>,
        buf: &Bound<'py, PyAny>,
        dest: u32,
        key: i32,
    ) -> PyResult<Bound<'py, PyAny>> {
        let comm = self.get(py)?;
        let message = MessageMemory::new(buf, MemoryAccess::Read, 1)?;
        // SAFETY: the request owns the memory.
        let started = unsafe { comm.send_hidden(dest, key, send_region(&message)) };
        request::started(py, comm, started, resources(&message, false))
    }

    /// Starts to receive in the hidden traffic.
    fn _irecv_hidden<'py>(
        &self,
        py: Python<'py>,
        buf: &Bound<'py, PyAny>,
        source: u32,
        key: i32,
    ) -> PyResult<Bound<'py, PyAny>> {
        let comm = self.get(py)?;
        let message = MessageMemory::new(buf, MemoryAccess::Write, 1)?;
        // SAFETY: the request owns the memory.
        let started = unsafe { comm.recv_hidden(source, key, send_region(&message)) };
        request::started(py, comm, started, resources(&message, true))
    }
}
