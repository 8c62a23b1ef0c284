//! Messages that a probe removes from matching, so that the holder of the handle can receive them later.

use std::sync::atomic::{AtomicU8, Ordering};

use parking_lot::Mutex;
use pyo3::prelude::*;
use tidemill_net::{CallWait, ProbedMessage};

use super::Comm;
use super::messages::{ReceiveSource, recv_tag, report, resources, send_region, source_of, unpack, with_nobody};
use crate::errors::{class, fail, from_collective};
use crate::handles::Status;
use crate::message::{MemoryAccess, MessageMemory};
use crate::parcel;
use crate::request::{self, ParcelContents, ReceiveOutcome};
use crate::wait::{blocking, detach};

/// A message that `Mprobe` has removed from matching.
#[pyclass(subclass, frozen, module = "tidemill._tidemill")]
pub struct MatchedMessage {
    taken: Mutex<Option<(ProbedMessage, Py<Comm>)>>,
    nobody: AtomicU8,
    /// Set in a copy: the handle that owns the message, which is never itself a copy.
    original: Option<Py<MatchedMessage>>,
}

/// `MatchedMessage::nobody`: a message from `PROC_NULL`; also the constant for all of them.
const ONCE: u8 = 1;
const ALWAYS: u8 = 2;

impl MatchedMessage {
    /// The handle that owns the message: this one, or the one that this is a copy of.
    fn holder(&self) -> &MatchedMessage {
        self.original.as_ref().map_or(self, Py::get)
    }

    fn take(&self, py: Python<'_>) -> PyResult<Option<(ProbedMessage, Py<Comm>)>> {
        match self.holder().taken.lock().take() {
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
        // MPI.Message(other) represents the same message: when one of the two receives it, both become null.
        let original = message.and_then(|other| {
            let first = other.get().original.as_ref().map_or(other, |original| original.bind(other.py()));
            first.get().taken.lock().is_some().then(|| first.clone().unbind())
        });
        let of_nobody = message.is_some_and(|m| m.get().nobody.load(Ordering::Relaxed) != 0);
        let nobody = if nobody { ALWAYS } else { u8::from(of_nobody) };
        MatchedMessage { taken: Mutex::new(None), nobody: nobody.into(), original }
    }

    /// Receive the message. Source: MPI 4.1 section 3.8.3.
    #[pyo3(signature = (buf, status=None))]
    fn Recv(&self, py: Python<'_>, buf: &Bound<'_, PyAny>, status: Option<&Bound<'_, Status>>) -> PyResult<()> {
        match self.take(py)? {
            Some((matched, comm)) => comm.get().take(py, matched, buf, status),
            None => {
                report(status, ReceiveOutcome::FROM_NOBODY);
                Ok(())
            }
        }
    }

    /// Start receiving the message. Source: MPI 4.1 section 3.8.3.
    fn Irecv<'py>(&self, py: Python<'py>, buf: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        let Some((matched, comm)) = self.take(py)? else { return with_nobody(py, true) };
        let comm = comm.get().get(py)?;
        let message = MessageMemory::new(buf, MemoryAccess::Write, 1)?;
        // SAFETY: the request owns the memory.
        let started = unsafe { comm.recv_matched(matched, send_region(&message)) };
        request::started(py, comm, started, resources(&message, true))
    }

    /// The parcel of the message, like `Comm._recv_parcel`; `None` from `PROC_NULL`.
    fn _recv_parcel<'py>(&self, py: Python<'py>) -> PyResult<Option<ParcelContents<'py>>> {
        let Some((matched, comm)) = self.take(py)? else { return Ok(None) };
        let comm = comm.get().get(py)?;
        let source = comm.rank_of(matched.status().source);
        parcel::receive(py, comm, Some(source), None, Some(matched)).map(Some)
    }

    /// Starts to receive the parcel of the message.
    fn _irecv_parcel<'py>(&self, py: Python<'py>, finish: Py<PyAny>) -> PyResult<Bound<'py, PyAny>> {
        let Some((matched, comm)) = self.take(py)? else { return with_nobody(py, true) };
        let comm = comm.get().get(py)?;
        let source = comm.rank_of(matched.status().source);
        parcel::receive_later(py, comm, Some(source), None, Some(matched), finish)
    }

    /// Whether there is a message to receive.
    #[getter]
    fn _is_null(&self) -> bool {
        self.holder().taken.lock().is_none() && self.nobody.load(Ordering::Relaxed) == 0
    }

    /// Whether it represents a message from `PROC_NULL`.
    #[getter]
    fn _is_nobody(&self) -> bool {
        self.nobody.load(Ordering::Relaxed) != 0
    }

    /// A number that a handle shares with its copies.
    #[getter]
    fn _shared(&self) -> usize {
        std::ptr::from_ref(self.holder()).addr()
    }
}

impl Comm {
    /// Receives a matched message.
    fn take<'py>(
        &self,
        py: Python<'py>,
        matched: ProbedMessage,
        buf: &Bound<'py, PyAny>,
        status: Option<&Bound<'_, Status>>,
    ) -> PyResult<()> {
        let comm = self.get(py)?;
        let message = MessageMemory::new(buf, MemoryAccess::Write, 1)?;
        // SAFETY: as in `Recv`.
        let started = unsafe { comm.recv_matched(matched, send_region(&message)) };
        let got = blocking(py, started, None, || message.owners())?;
        unpack(&message, got.len)?;
        report(status, ReceiveOutcome::new(comm, &got));
        Ok(())
    }

    /// Waits for a message and removes it from matching.
    fn matched(&self, py: Python<'_>, source: &ReceiveSource, tag: Option<i32>) -> PyResult<ProbedMessage> {
        let comm = self.get(py)?;
        let mut wait = CallWait::default();
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
}

#[pymethods]
impl Comm {
    /// Removes a message from matching, waiting for it if `block`. `message` is the handle that gets it.
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
        if matches!(source, ReceiveSource::Nobody) {
            message.get().nobody.store(ONCE, Ordering::Relaxed);
            report(status, ReceiveOutcome::FROM_NOBODY);
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
        report(status, ReceiveOutcome::new(comm, &matched.status()));
        *message.get().taken.lock() = Some((matched, slf.clone().unbind()));
        Ok(true)
    }
}
