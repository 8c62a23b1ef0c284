//! Communicators: the methods of `tidemill._tidemill.Comm`, one line each, and point to point.

#![allow(non_snake_case)] // MPI and mpi4py write them so.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, Ordering};

use numpy::{PyArray1, PyArrayMethods, PyUntypedArrayMethods};
use parking_lot::Mutex;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use tidemill_collective::{Call, Collective, Communicator, DType, Started};
use tidemill_net::{Matched, Region, Wait};

use crate::errors::{class, fail, from_collective};
use crate::handles::{ANY, PROC_NULL, Status};
use crate::message::{Access, Message};
use crate::parcel::{self, Outgoing};
use crate::request::{self, Kept, Outcome, Received, State};
use crate::wait::{Owners, blocking, detach, detached};

/// A communicator or none. Handles made from one another share it, and are all invalid once it is freed.
#[pyclass(subclass, frozen, module = "tidemill._tidemill")]
pub struct Comm {
    shared: Option<Arc<Shared>>,
}

struct Shared {
    comm: Communicator,
    freed: AtomicBool,
    /// Names the next object message whose arrays travel apart.
    next_key: AtomicU32,
}

impl Comm {
    pub fn of(comm: Communicator) -> Self {
        let shared = Shared { comm, freed: AtomicBool::new(false), next_key: AtomicU32::new(0) };
        Comm { shared: Some(Arc::new(shared)) }
    }

    /// The native communicator.
    #[inline]
    pub fn get(&self, py: Python<'_>) -> PyResult<&Communicator> {
        match &self.shared {
            Some(shared) if !shared.freed.load(Ordering::Relaxed) => Ok(&shared.comm),
            _ => Err(fail(py, class::COMM, "the communicator is COMM_NULL (or was freed)")),
        }
    }
}

#[cold]
fn bad_rank(py: Python<'_>, comm: &Communicator, what: &str, rank: i32) -> PyErr {
    let (size, name) = (comm.size(), comm.name());
    fail(py, class::RANK, format!("{what} {rank} is not in comm \"{name}\", which has ranks 0 to {}", size - 1))
}

/// `None` for `PROC_NULL`.
#[inline]
fn dest_of(py: Python<'_>, comm: &Communicator, dest: i32) -> PyResult<Option<u32>> {
    if (dest as u32) < comm.size() {
        return Ok(Some(dest as u32));
    }
    if dest == PROC_NULL { Ok(None) } else { Err(bad_rank(py, comm, "destination", dest)) }
}

enum Source {
    Rank(u32),
    Any,
    Nobody,
}

#[inline]
fn source_of(py: Python<'_>, comm: &Communicator, source: i32) -> PyResult<Source> {
    if (source as u32) < comm.size() {
        return Ok(Source::Rank(source as u32));
    }
    match source {
        ANY => Ok(Source::Any),
        PROC_NULL => Ok(Source::Nobody),
        _ => Err(bad_rank(py, comm, "source", source)),
    }
}

impl Source {
    fn rank(&self) -> Option<u32> {
        match self {
            Source::Rank(rank) => Some(*rank),
            _ => None,
        }
    }
}

#[inline]
fn send_tag(py: Python<'_>, tag: i32) -> PyResult<i32> {
    if tag >= 0 { Ok(tag) } else { Err(fail(py, class::TAG, format!("tag {tag} is negative"))) }
}

#[inline]
fn recv_tag(py: Python<'_>, tag: i32) -> PyResult<Option<i32>> {
    match tag {
        ANY => Ok(None),
        0.. => Ok(Some(tag)),
        _ => Err(fail(py, class::TAG, format!("tag {tag} is negative"))),
    }
}

#[inline]
fn report(status: Option<&Bound<'_, Status>>, received: Received) {
    if let Some(status) = status {
        status.get().fill(received.source, received.tag, received.nbytes);
    }
}

/// Calls what moves received bytes of a non-contiguous datatype into place.
fn unpack(message: &Message<'_>, nbytes: u64) -> PyResult<()> {
    match &message.unpack {
        Some(unpack) => unpack.call1((nbytes,)).map(|_| ()),
        None => Ok(()),
    }
}

fn send_region(message: &Message<'_>) -> Region {
    message.cut(message.bytes())
}

fn kept(message: &Message<'_>, is_receive: bool) -> Kept {
    Kept {
        is_receive,
        owners: message.owners(),
        unpack: message.unpack.as_ref().map(|u| u.clone().unbind()),
        ..Kept::default()
    }
}

/// The request of a message to or from `PROC_NULL`.
pub fn with_nobody<'py>(py: Python<'py>, is_receive: bool) -> PyResult<Bound<'py, PyAny>> {
    let status = is_receive.then_some(Received::FROM_NOBODY);
    request::make(py, State::Over(Outcome { status, ..Outcome::default() }))
}

/// How a send ends.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Ends {
    /// When its memory may be reused.
    Locally,
    /// When its receive has begun.
    Received,
}

impl Comm {
    #[inline]
    unsafe fn begin_send(
        comm: &Communicator,
        dest: u32,
        tag: i32,
        region: Region,
        ends: Ends,
    ) -> Result<Started, tidemill_collective::CollectiveError> {
        // SAFETY: by this function's contract, which is that of the functions called.
        unsafe {
            match ends {
                Ends::Locally => comm.send(dest, tag, region),
                Ends::Received => comm.send_synchronous(dest, tag, region),
            }
        }
    }

    #[inline]
    fn blocking_send(&self, py: Python<'_>, buf: &Bound<'_, PyAny>, dest: i32, tag: i32, ends: Ends) -> PyResult<()> {
        let comm = self.get(py)?;
        let tag = send_tag(py, tag)?;
        let Some(dest) = dest_of(py, comm, dest)? else { return Ok(()) };
        let message = Message::new(buf, Access::Read, 1)?;
        // SAFETY: `message` owns the memory until this returns; should the wait be given up, `owners` does.
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
        ends: Ends,
    ) -> PyResult<Bound<'py, PyAny>> {
        let comm = self.get(py)?;
        let tag = send_tag(py, tag)?;
        let Some(dest) = dest_of(py, comm, dest)? else { return with_nobody(py, false) };
        let message = Message::new(buf, Access::Read, 1)?;
        // SAFETY: the request owns the memory.
        match unsafe { Self::begin_send(comm, dest, tag, send_region(&message), ends) } {
            // The usual end of a short message: nothing has to be kept.
            Ok(Started::Done(_)) => request::make(py, State::Over(Outcome::default())),
            started => request::started(py, comm, started, kept(&message, false)),
        }
    }

    /// Receives a matched message.
    fn take<'py>(
        &self,
        py: Python<'py>,
        matched: Matched,
        buf: &Bound<'py, PyAny>,
        status: Option<&Bound<'_, Status>>,
    ) -> PyResult<()> {
        let comm = self.get(py)?;
        let message = Message::new(buf, Access::Write, 1)?;
        // SAFETY: as in `Recv`.
        let started = unsafe { comm.recv_matched(matched, send_region(&message)) };
        let got = blocking(py, started, None, || message.owners())?;
        unpack(&message, got.len)?;
        report(status, Received::new(comm, &got));
        Ok(())
    }

    /// Waits for a message and takes it out of matching.
    fn matched(&self, py: Python<'_>, source: &Source, tag: Option<i32>) -> PyResult<Matched> {
        let comm = self.get(py)?;
        let mut wait = Wait::default();
        if let Some(matched) = comm.improbe(source.rank(), tag).map_err(|e| from_collective(py, &e))? {
            return Ok(matched);
        }
        loop {
            match detach(py, || comm.mprobe_slice(source.rank(), tag, &mut wait)) {
                Ok(Some(matched)) => return Ok(matched),
                Ok(None) => py.check_signals()?,
                Err(error) => return Err(from_collective(py, &error)),
            }
        }
    }

    /// A parcel with a key of its own.
    fn parcel<'py>(
        &self,
        py: Python<'py>,
        body: &Bound<'py, PyBytes>,
        arrays: Vec<Bound<'py, PyAny>>,
    ) -> PyResult<Outgoing<'py>> {
        let key = self.shared.as_ref().map_or(0, |s| s.next_key.fetch_add(1, Ordering::Relaxed));
        Outgoing::new(py, body, arrays, -1 - (key & 0x3fff_ffff) as i32)
    }
}

/// A message taken out of matching by `Mprobe`.
#[pyclass(subclass, frozen, module = "tidemill._tidemill")]
pub struct MatchedMessage {
    taken: Mutex<Option<(Matched, Py<Comm>)>>,
    nobody: AtomicU8,
}

/// `MatchedMessage::nobody`: a message from `PROC_NULL`, and the constant that stands for all of them.
const ONCE: u8 = 1;
const ALWAYS: u8 = 2;

impl MatchedMessage {
    fn take(&self, py: Python<'_>) -> PyResult<Option<(Matched, Py<Comm>)>> {
        match self.taken.lock().take() {
            Some(taken) => Ok(Some(taken)),
            None if self.nobody.load(Ordering::Relaxed) == ALWAYS => Ok(None),
            None if self.nobody.swap(0, Ordering::Relaxed) == ONCE => Ok(None),
            None => Err(fail(py, class::REQUEST, "the message is MESSAGE_NULL (or was received)")),
        }
    }
}

#[pymethods]
impl MatchedMessage {
    #[new]
    #[pyo3(signature = (message=None, nobody=false))]
    fn new(message: Option<&Bound<'_, MatchedMessage>>, nobody: bool) -> Self {
        let taken = message.and_then(|m| m.get().taken.lock().take());
        let of_nobody = message.is_some_and(|m| m.get().nobody.load(Ordering::Relaxed) != 0);
        let nobody = if nobody { ALWAYS } else { u8::from(of_nobody) };
        MatchedMessage { taken: Mutex::new(taken), nobody: nobody.into() }
    }

    /// Receives the message. Source: MPI 4.1 section 3.8.3.
    #[pyo3(signature = (buf, status=None))]
    fn Recv(&self, py: Python<'_>, buf: &Bound<'_, PyAny>, status: Option<&Bound<'_, Status>>) -> PyResult<()> {
        match self.take(py)? {
            Some((matched, comm)) => comm.get().take(py, matched, buf, status),
            None => {
                report(status, Received::FROM_NOBODY);
                Ok(())
            }
        }
    }

    /// Begins to receive the message. Source: MPI 4.1 section 3.8.3.
    fn Irecv<'py>(&self, py: Python<'py>, buf: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        let Some((matched, comm)) = self.take(py)? else { return with_nobody(py, true) };
        let comm = comm.get().get(py)?;
        let message = Message::new(buf, Access::Write, 1)?;
        // SAFETY: the request owns the memory.
        let started = unsafe { comm.recv_matched(matched, send_region(&message)) };
        request::started(py, comm, started, kept(&message, true))
    }

    /// The parcel of the message, as `Comm._recv_parcel` gives it; `None` from nobody.
    fn _recv_parcel<'py>(&self, py: Python<'py>) -> PyResult<Option<parcel::Contents<'py>>> {
        let Some((matched, comm)) = self.take(py)? else { return Ok(None) };
        let comm = comm.get().get(py)?;
        let source = comm.rank_of(matched.status().source);
        parcel::receive(py, comm, Some(source), None, Some(matched)).map(Some)
    }

    /// Begins to receive the parcel of the message.
    fn _irecv_parcel<'py>(&self, py: Python<'py>, finish: Py<PyAny>) -> PyResult<Bound<'py, PyAny>> {
        let Some((matched, comm)) = self.take(py)? else { return with_nobody(py, true) };
        let comm = comm.get().get(py)?;
        let source = comm.rank_of(matched.status().source);
        parcel::receive_later(py, comm, Some(source), None, Some(matched), finish)
    }

    /// Whether there is a message to receive.
    #[getter]
    fn _is_null(&self) -> bool {
        self.taken.lock().is_none() && self.nobody.load(Ordering::Relaxed) == 0
    }

    /// Whether it stands for a message from `PROC_NULL`.
    #[getter]
    fn _is_nobody(&self) -> bool {
        self.nobody.load(Ordering::Relaxed) != 0
    }
}

#[pymethods]
impl Comm {
    #[new]
    #[pyo3(signature = (comm=None))]
    fn new(comm: Option<&Bound<'_, Comm>>) -> Self {
        Comm { shared: comm.and_then(|c| c.get().shared.clone()) }
    }

    // The communicator itself

    /// This process's rank.
    #[inline]
    fn Get_rank(&self, py: Python<'_>) -> PyResult<u32> {
        Ok(self.get(py)?.rank())
    }

    /// How many ranks there are.
    #[inline]
    fn Get_size(&self, py: Python<'_>) -> PyResult<u32> {
        Ok(self.get(py)?.size())
    }

    /// This process's rank.
    #[getter]
    fn rank(&self, py: Python<'_>) -> PyResult<u32> {
        self.Get_rank(py)
    }

    /// How many ranks there are.
    #[getter]
    fn size(&self, py: Python<'_>) -> PyResult<u32> {
        self.Get_size(py)
    }

    fn _is_usable(&self) -> bool {
        self.shared.as_ref().is_some_and(|s| !s.freed.load(Ordering::Relaxed))
    }

    fn _is_same(&self, other: &Bound<'_, Comm>) -> bool {
        match (&self.shared, &other.get().shared) {
            (Some(a), Some(b)) => Arc::ptr_eq(a, b),
            _ => !self._is_usable() && !other.get()._is_usable(),
        }
    }

    fn _id(&self, py: Python<'_>) -> PyResult<u32> {
        Ok(self.get(py)?.id())
    }

    fn _world_ranks(&self, py: Python<'_>) -> PyResult<Vec<u32>> {
        Ok(self.get(py)?.world_ranks().iter().map(|r| r.0).collect())
    }

    fn _rename(&self, py: Python<'_>, name: &str) -> PyResult<()> {
        self.get(py)?.set_name(name);
        Ok(())
    }

    fn _name(&self, py: Python<'_>) -> PyResult<String> {
        Ok(self.get(py)?.name())
    }

    fn _free(&self, py: Python<'_>) -> PyResult<()> {
        self.get(py)?;
        if let Some(shared) = &self.shared {
            shared.freed.store(true, Ordering::Relaxed);
        }
        Ok(())
    }

    fn _dup(&self, py: Python<'_>) -> PyResult<Comm> {
        let comm = self.get(py)?;
        let new = self._split(py, Some(0), i64::from(comm.rank()))?.expect("every rank has a colour");
        new.get(py)?.set_name(&format!("{} (dup)", comm.name()));
        Ok(new)
    }

    /// One communicator for each colour; none for this rank without one.
    fn _split(&self, py: Python<'_>, color: Option<u32>, key: i64) -> PyResult<Option<Comm>> {
        let comm = self.get(py)?;
        // Gathered here and not by `Communicator::split`: a rank that never comes must not keep Ctrl-C from working.
        let mine = PyArray1::from_slice(py, &comm.split_words(color, key));
        let all = PyArray1::<u64>::zeros(py, 3 * comm.size() as usize, false);
        let region = |array: &Bound<'_, PyArray1<u64>>| Region { ptr: array.data().cast(), len: 8 * array.len() };
        let call = Call {
            dtype: DType::U64,
            count: 3,
            send: Some(region(&mine)),
            recv: Some(region(&all)),
            ..Call::new(Collective::Allgather)
        };
        // SAFETY: the arrays are nobody else's and live until this returns; should the wait be given up, `owners` has them.
        let started = unsafe { comm.start(&call) };
        blocking(py, started, None, || {
            Owners::from_iter([mine.clone().into_any().unbind(), all.clone().into_any().unbind()])
        })?;
        let words = all.to_vec().map_err(|e| fail(py, class::OTHER, e.to_string()))?;
        Ok(detached(py, || comm.split_agreed(color, &words))?.map(Comm::of))
    }

    fn _create_group(&self, py: Python<'_>, ranks: Vec<u32>, tag: i32) -> PyResult<Comm> {
        let comm = self.get(py)?;
        detached(py, || comm.create_group(&ranks, tag)).map(Comm::of)
    }

    // Point to point

    /// Sends a buffer; returns when it may be reused.
    ///
    /// `buf` is a contiguous array or ``[buffer, count, datatype]`` (see `tidemill.mpi`). Raises `MPI.Exception` with
    /// class ``ERR_RANK`` or ``ERR_TAG``; `WorkerLost` and `PeerFailed` when the receiver is gone.
    /// Source: MPI 4.1 section 3.2.
    #[pyo3(signature = (buf, dest, tag=0))]
    fn Send(&self, py: Python<'_>, buf: &Bound<'_, PyAny>, dest: i32, tag: i32) -> PyResult<()> {
        self.blocking_send(py, buf, dest, tag, Ends::Locally)
    }

    /// As `Send`; buffering needs no attached buffer here, so it only differs in name. Source: MPI 4.1 section 3.4.
    #[pyo3(signature = (buf, dest, tag=0))]
    fn Bsend(&self, py: Python<'_>, buf: &Bound<'_, PyAny>, dest: i32, tag: i32) -> PyResult<()> {
        let request = self.Ibsend(py, buf, dest, tag)?;
        request.call_method0("Wait")?;
        Ok(())
    }

    /// Sends a buffer; returns when its receive has begun. Source: MPI 4.1 section 3.4.
    #[pyo3(signature = (buf, dest, tag=0))]
    fn Ssend(&self, py: Python<'_>, buf: &Bound<'_, PyAny>, dest: i32, tag: i32) -> PyResult<()> {
        self.blocking_send(py, buf, dest, tag, Ends::Received)
    }

    /// As `Send`, for a receive that is known to be posted. Source: MPI 4.1 section 3.4.
    #[pyo3(signature = (buf, dest, tag=0))]
    fn Rsend(&self, py: Python<'_>, buf: &Bound<'_, PyAny>, dest: i32, tag: i32) -> PyResult<()> {
        self.blocking_send(py, buf, dest, tag, Ends::Locally)
    }

    /// Begins to send a buffer, which must not change until the request is over. Source: MPI 4.1 section 3.7.2.
    #[pyo3(signature = (buf, dest, tag=0))]
    fn Isend<'py>(&self, py: Python<'py>, buf: &Bound<'py, PyAny>, dest: i32, tag: i32) -> PyResult<Bound<'py, PyAny>> {
        self.nonblocking_send(py, buf, dest, tag, Ends::Locally)
    }

    /// Begins to send a copy of a buffer: the request is over at once. Source: MPI 4.1 section 3.7.2.
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
        let message = Message::new(buf, Access::Read, 1)?;
        let region = send_region(&message);
        // SAFETY: the region is readable while `message` lives.
        let copy: Box<[u8]> = unsafe { std::slice::from_raw_parts(region.ptr, region.len) }.into();
        let region = Region::of(&copy);
        // SAFETY: the copy is the keepalive of the detached request, and stays where it is when the box moves.
        match unsafe { comm.send(dest, tag, region) }.map_err(|e| from_collective(py, &e))? {
            Started::Done(_) => {}
            Started::Pending(request) => {
                request.detach(Some(Box::new(copy)));
                comm.endpoint().leave_to_background();
            }
        }
        request::make(py, State::Over(Outcome::default()))
    }

    /// Begins a synchronous send: the request is over when the receive has begun. Source: MPI 4.1 section 3.7.2.
    #[pyo3(signature = (buf, dest, tag=0))]
    fn Issend<'py>(
        &self,
        py: Python<'py>,
        buf: &Bound<'py, PyAny>,
        dest: i32,
        tag: i32,
    ) -> PyResult<Bound<'py, PyAny>> {
        self.nonblocking_send(py, buf, dest, tag, Ends::Received)
    }

    /// As `Isend`, for a receive that is known to be posted. Source: MPI 4.1 section 3.7.2.
    #[pyo3(signature = (buf, dest, tag=0))]
    fn Irsend<'py>(
        &self,
        py: Python<'py>,
        buf: &Bound<'py, PyAny>,
        dest: i32,
        tag: i32,
    ) -> PyResult<Bound<'py, PyAny>> {
        self.nonblocking_send(py, buf, dest, tag, Ends::Locally)
    }

    /// Receives a message into a buffer, which may be longer than the message.
    ///
    /// Raises `MPI.Exception` with class ``ERR_TRUNCATE`` when the message is longer.
    /// Source: MPI 4.1 section 3.2.4.
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
        if matches!(source, Source::Nobody) {
            report(status, Received::FROM_NOBODY);
            return Ok(());
        }
        let message = Message::new(buf, Access::Write, 1)?;
        // SAFETY: `message` owns the memory until this returns; should the wait be given up, the receive is withdrawn or
        // `owners` keeps it.
        let started = unsafe { comm.recv(source.rank(), tag, send_region(&message)) };
        let got = blocking(py, started, None, || message.owners())?;
        unpack(&message, got.len)?;
        report(status, Received::new(comm, &got));
        Ok(())
    }

    /// Begins to receive a message. Source: MPI 4.1 section 3.7.2.
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
        if matches!(source, Source::Nobody) {
            return with_nobody(py, true);
        }
        let message = Message::new(buf, Access::Write, 1)?;
        // SAFETY: the request owns the memory.
        let started = unsafe { comm.recv(source.rank(), tag, send_region(&message)) };
        request::started(py, comm, started, kept(&message, true))
    }

    /// Sends one message and receives another at the same time. Source: MPI 4.1 section 3.10.
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
            (Source::Nobody, _) => None,
            (_, Some(buf)) => Some(Message::new(buf, Access::Write, 1)?),
            (_, None) => return Err(pyo3::exceptions::PyTypeError::new_err("message: expecting buffer or list/tuple")),
        };
        let outgoing = match dest {
            Some(dest) => Some((dest, Message::new(sendbuf, Access::Read, 1)?)),
            None => None,
        };
        // The receive first, so that the message has a place to go.
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
            (Some(Started::Pending(request)), Some(message)) if failed.is_some() => {
                crate::wait::give_up(py, request, message.owners());
            }
            (Some(started), Some(message)) => {
                let got = blocking(py, Ok(started), None, || message.owners())?;
                unpack(message, got.len)?;
                report(status, Received::new(comm, &got));
            }
            _ => report(status, Received::FROM_NOBODY),
        }
        failed.map_or(Ok(()), Err)
    }

    /// Waits for a message that a receive would take, and looks at it. Source: MPI 4.1 section 3.8.1.
    #[pyo3(signature = (source=ANY, tag=ANY, status=None))]
    fn Probe(&self, py: Python<'_>, source: i32, tag: i32, status: Option<&Bound<'_, Status>>) -> PyResult<bool> {
        let comm = self.get(py)?;
        let tag = recv_tag(py, tag)?;
        let source = source_of(py, comm, source)?;
        if matches!(source, Source::Nobody) {
            report(status, Received::FROM_NOBODY);
            return Ok(true);
        }
        let mut found = comm.iprobe(source.rank(), tag).map_err(|e| from_collective(py, &e))?;
        let mut wait = Wait::default();
        loop {
            if let Some(got) = found {
                report(status, Received::new(comm, &got));
                return Ok(true);
            }
            found =
                detach(py, || comm.probe_slice(source.rank(), tag, &mut wait)).map_err(|e| from_collective(py, &e))?;
            if found.is_none() {
                py.check_signals()?;
            }
        }
    }

    /// Whether there is a message that a receive would take. Source: MPI 4.1 section 3.8.1.
    #[pyo3(signature = (source=ANY, tag=ANY, status=None))]
    fn Iprobe(&self, py: Python<'_>, source: i32, tag: i32, status: Option<&Bound<'_, Status>>) -> PyResult<bool> {
        let comm = self.get(py)?;
        let tag = recv_tag(py, tag)?;
        let source = source_of(py, comm, source)?;
        if matches!(source, Source::Nobody) {
            report(status, Received::FROM_NOBODY);
            return Ok(true);
        }
        let found = comm.iprobe(source.rank(), tag).map_err(|e| from_collective(py, &e))?;
        if let Some(got) = &found {
            report(status, Received::new(comm, got));
        }
        Ok(found.is_some())
    }

    /// Takes a message out of matching, waiting for it if `block`. `message` is the handle that gets it.
    #[pyo3(signature = (message, source, tag, status, block))]
    fn _match(
        slf: &Bound<'_, Self>,
        message: &Bound<'_, MatchedMessage>,
        source: i32,
        tag: i32,
        status: Option<&Bound<'_, Status>>,
        block: bool,
    ) -> PyResult<bool> {
        let py = slf.py();
        let comm = slf.get().get(py)?;
        let tag = recv_tag(py, tag)?;
        let source = source_of(py, comm, source)?;
        if matches!(source, Source::Nobody) {
            message.get().nobody.store(ONCE, Ordering::Relaxed);
            report(status, Received::FROM_NOBODY);
            return Ok(true);
        }
        let matched = if block {
            slf.get().matched(py, &source, tag)?
        } else {
            match comm.improbe(source.rank(), tag).map_err(|e| from_collective(py, &e))? {
                Some(matched) => matched,
                None => return Ok(false),
            }
        };
        report(status, Received::new(comm, &matched.status()));
        *message.get().taken.lock() = Some((matched, slf.clone().unbind()));
        Ok(true)
    }

    // Object messages

    // The caller has checked the tags of the next four: negative ones are for the hidden traffic of collectives.

    /// Begins to send a pickled object and the arrays that travel apart; see `tidemill_collective::parcel`.
    #[pyo3(signature = (body, arrays, dest, tag, synchronous=false))]
    fn _isend_parcel<'py>(
        &self,
        py: Python<'py>,
        body: &Bound<'py, PyBytes>,
        arrays: Vec<Bound<'py, PyAny>>,
        dest: i32,
        tag: i32,
        synchronous: bool,
    ) -> PyResult<Bound<'py, PyAny>> {
        let comm = self.get(py)?;
        let Some(dest) = dest_of(py, comm, dest)? else { return with_nobody(py, false) };
        let outgoing = self.parcel(py, body, arrays)?;
        // SAFETY: the request owns the memory.
        let started = unsafe { outgoing.start(comm, dest, tag, synchronous) };
        let owners = outgoing.owners();
        request::started(py, comm, started, Kept { owners, ..Kept::default() })
    }

    /// The blocking twin of `_isend_parcel`.
    #[pyo3(signature = (body, arrays, dest, tag, synchronous=false))]
    fn _send_parcel<'py>(
        &self,
        py: Python<'py>,
        body: &Bound<'py, PyBytes>,
        arrays: Vec<Bound<'py, PyAny>>,
        dest: i32,
        tag: i32,
        synchronous: bool,
    ) -> PyResult<()> {
        let comm = self.get(py)?;
        let Some(dest) = dest_of(py, comm, dest)? else { return Ok(()) };
        let outgoing = self.parcel(py, body, arrays)?;
        // SAFETY: `outgoing` owns the memory until this returns; should the wait be given up, `owners` does.
        let started = unsafe { outgoing.start(comm, dest, tag, synchronous) };
        blocking(py, started, None, || outgoing.owners())?;
        Ok(())
    }

    /// Raises for a tag that no message can have.
    #[staticmethod]
    fn _check_tag(py: Python<'_>, tag: i32, receiving: bool) -> PyResult<()> {
        if receiving { recv_tag(py, tag).map(|_| ()) } else { send_tag(py, tag).map(|_| ()) }
    }

    /// Receives a parcel: body, arrays, source, tag, bytes of the message.
    fn _recv_parcel<'py>(&self, py: Python<'py>, source: i32, tag: i32) -> PyResult<Option<parcel::Contents<'py>>> {
        let comm = self.get(py)?;
        let tag = (tag != ANY).then_some(tag);
        let source = source_of(py, comm, source)?;
        if matches!(source, Source::Nobody) {
            return Ok(None);
        }
        parcel::receive(py, comm, source.rank(), tag, None).map(Some)
    }

    /// Begins to receive a parcel; `finish(body, arrays)` makes the object of it.
    fn _irecv_parcel<'py>(
        &self,
        py: Python<'py>,
        source: i32,
        tag: i32,
        finish: Py<PyAny>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let comm = self.get(py)?;
        let tag = (tag != ANY).then_some(tag);
        let source = source_of(py, comm, source)?;
        if matches!(source, Source::Nobody) {
            return with_nobody(py, true);
        }
        parcel::receive_later(py, comm, source.rank(), tag, None, finish)
    }

    /// Begins to send in the hidden traffic of the communicator, where `key` (negative) takes the place of a tag.
    fn _isend_hidden<'py>(
        &self,
        py: Python<'py>,
        buf: &Bound<'py, PyAny>,
        dest: u32,
        key: i32,
    ) -> PyResult<Bound<'py, PyAny>> {
        let comm = self.get(py)?;
        let message = Message::new(buf, Access::Read, 1)?;
        // SAFETY: the request owns the memory.
        let started = unsafe { comm.send_hidden(dest, key, send_region(&message)) };
        request::started(py, comm, started, kept(&message, false))
    }

    /// Begins to receive in the hidden traffic.
    fn _irecv_hidden<'py>(
        &self,
        py: Python<'py>,
        buf: &Bound<'py, PyAny>,
        source: u32,
        key: i32,
    ) -> PyResult<Bound<'py, PyAny>> {
        let comm = self.get(py)?;
        let message = Message::new(buf, Access::Write, 1)?;
        // SAFETY: the request owns the memory.
        let started = unsafe { comm.recv_hidden(source, key, send_region(&message)) };
        request::started(py, comm, started, kept(&message, true))
    }
}
