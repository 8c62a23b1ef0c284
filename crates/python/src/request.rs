//! Requests: native operations in progress, and those driven by Python code (object messages, generalized requests).

#![allow(non_snake_case)] // MPI and mpi4py write them so.

use std::sync::Arc;

use numpy::PyArray1;
use parking_lot::Mutex;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBytes, PyList, PyType};
use tidemill_collective::parcel::ParcelSlot;
use tidemill_collective::{self as native, CollectiveError, Communicator, StartResult};

use crate::errors::{class, fail, from_collective};
use crate::handles::{ANY, PROC_NULL, Raised, Status};
use crate::wait::{Owners, any_without_gil, detach, explain, without_gil};

/// Bodies up to this length are copied into a bytes object; longer ones stay where they arrived.
const COPIED_BYTES_MAX: usize = 4096;

/// Body, arrays, source, tag, bytes of the message.
pub type ParcelContents<'py> = (Bound<'py, PyAny>, Bound<'py, PyList>, i32, i32, u64);

/// The outcome of a completed request.
#[derive(Default)]
pub struct RequestOutcome {
    pub status: Option<ReceiveOutcome>,
    pub cancelled: bool,
    /// The object of a lower-case receive.
    pub object: Option<Py<PyAny>>,
    pub error: Option<Box<PyErr>>,
}

/// A completed receive in terms of the communicator's ranks.
#[derive(Clone, Copy)]
pub struct ReceiveOutcome {
    pub source: i32,
    pub tag: i32,
    pub nbytes: u64,
}

impl ReceiveOutcome {
    pub const FROM_NOBODY: ReceiveOutcome = ReceiveOutcome { source: PROC_NULL, tag: ANY, nbytes: 0 };

    #[inline]
    pub fn new(comm: &Communicator, status: &tidemill_net::ReceiveStatus) -> Self {
        ReceiveOutcome { source: comm.rank_of(status.source) as i32, tag: status.tag, nbytes: status.len }
    }
}

impl RequestOutcome {
    fn report(&self, status: Option<&Bound<'_, Status>>) {
        let Some(status) = status.map(Bound::get) else { return };
        match self.status {
            Some(received) => status.fill(received.source, received.tag, received.nbytes),
            None => status.fill(ANY, ANY, 0),
        }
        status.Set_cancelled(self.cancelled);
    }

    fn fetch(self, status: Option<&Bound<'_, Status>>) -> PyResult<Option<Py<PyAny>>> {
        self.report(status);
        match self.error {
            Some(error) => Err(*error),
            None => Ok(self.object),
        }
    }
}

/// The resources of a native operation, kept until it completes, and what to do then.
#[derive(Default)]
pub struct RequestResources {
    pub is_receive: bool,
    pub owners: Owners,
    /// Called after completion: moves received data to its destination.
    pub unpack: Option<Py<PyAny>>,
    pub raised: Option<Raised>,
    /// For a receive of an object: where it arrives, and the function that makes the object.
    pub parcel: Option<(ParcelSlot, Py<PyAny>)>,
}

pub enum RequestStage {
    /// `REQUEST_NULL`, or a persistent request that is not active.
    Idle,
    Active(native::Request, RequestResources),
    /// A Python object with `step(block) -> bool`, `source`, `tag`, `nbytes` and `result`.
    Driven(Py<PyAny>),
    /// Completed, but the outcome was not fetched yet.
    Over(RequestOutcome),
}

/// An operation in progress, or none.
///
/// The weak reference list is here, so that the Python subclass adds no field to instances and `make` can build them.
#[pyclass(subclass, frozen, weakref, module = "tidemill._tidemill")]
pub struct Request {
    state: Mutex<RequestStage>,
    persistent: bool,
    /// Set in a copy: the request that has the state, which is never itself a copy.
    original: Option<Py<Request>>,
}

/// The class `tidemill.mpi.Request`, whose instances calls return.
fn request_class(py: Python<'_>) -> PyResult<&Bound<'_, PyType>> {
    static CLASS: PyOnceLock<Py<PyType>> = PyOnceLock::new();
    CLASS.import(py, "tidemill.mpi._request", "Request")
}

/// A new `tidemill.mpi.Request`.
pub fn make(py: Python<'_>, state: RequestStage) -> PyResult<Bound<'_, PyAny>> {
    let class = request_class(py)?.as_type_ptr();
    let request = PyClassInitializer::from(Request { state: Mutex::new(state), persistent: false, original: None });
    // This is what a call of the class ultimately does. The way there, with its arguments, took 30 ns of a short
    // message's 390, and PyO3 documents no shorter one.
    // SAFETY: `tidemill.mpi.Request` is a subclass, and adds nothing that must be initialized.
    unsafe {
        let made = pyo3::impl_::pymethods::tp_new_impl::<PyClassInitializer<Request>, Request>(py, request, class)?;
        Ok(Bound::from_owned_ptr(py, made))
    }
}

/// The request of a non-blocking call on `comm`.
pub fn started<'py>(
    py: Python<'py>,
    comm: &Communicator,
    started: Result<StartResult, CollectiveError>,
    kept: RequestResources,
) -> PyResult<Bound<'py, PyAny>> {
    let state = match started {
        Ok(StartResult::Pending(request)) => {
            comm.endpoint().leave_to_background();
            RequestStage::Active(request, kept)
        }
        Ok(StartResult::Done(status)) => RequestStage::Over(kept.outcome(py, comm, Ok(status))),
        // A failure of this message belongs to the request, as in MPI; other failures belong to the call.
        Err(CollectiveError::Net(error @ tidemill_net::NetError::Truncated { .. })) => {
            RequestStage::Over(RequestOutcome {
                error: Some(Box::new(explain(py, &error, None))),
                ..RequestOutcome::default()
            })
        }
        Err(error) => return Err(from_collective(py, &error)),
    };
    make(py, state)
}

impl RequestResources {
    /// The outcome of the operation, now that it has completed.
    fn outcome(
        self,
        py: Python<'_>,
        comm: &Communicator,
        result: Result<tidemill_net::ReceiveStatus, PyErr>,
    ) -> RequestOutcome {
        let made = result.and_then(|status| {
            if let Some((slot, finish)) = &self.parcel {
                return parcel_outcome(py, comm, slot, finish.bind(py));
            }
            if let Some(unpack) = &self.unpack {
                unpack.call1(py, (self.is_receive.then_some(status.len),))?;
            }
            let status = self.is_receive.then(|| ReceiveOutcome::new(comm, &status));
            Ok(RequestOutcome { status, ..RequestOutcome::default() })
        });
        made.unwrap_or_else(|error| RequestOutcome { error: Some(Box::new(error)), ..RequestOutcome::default() })
    }
}

/// The contents of a receive, as Python objects that own the memory it arrived in.
pub fn contents<'py>(py: Python<'py>, comm: &Communicator, slot: &ParcelSlot) -> PyResult<ParcelContents<'py>> {
    let parcel = slot.take().ok_or_else(|| fail(py, class::REQUEST, "the receive was cancelled"))?;
    let body = if parcel.body.len() <= COPIED_BYTES_MAX {
        PyBytes::new(py, &parcel.body).into_any()
    } else {
        PyArray1::from_vec(py, parcel.body).into_any()
    };
    let arrays = PyList::new(py, parcel.arrays.into_iter().map(|array| PyArray1::from_vec(py, array)))?;
    let source = parcel.source.map_or(-1, |world| comm.rank_of(world) as i32);
    Ok((body, arrays, source, parcel.tag, parcel.message_bytes))
}

/// The outcome of a completed receive: the object that `finish(body, arrays)` makes.
fn parcel_outcome(
    py: Python<'_>,
    comm: &Communicator,
    slot: &ParcelSlot,
    finish: &Bound<'_, PyAny>,
) -> PyResult<RequestOutcome> {
    let (body, arrays, source, tag, nbytes) = contents(py, comm, slot)?;
    let object = finish.call1((body, arrays))?;
    let status = Some(ReceiveOutcome { source, tag, nbytes });
    Ok(RequestOutcome { status, object: (!object.is_none()).then(|| object.unbind()), ..RequestOutcome::default() })
}

impl Request {
    /// The request that has the state: this one, or the one that this is a copy of.
    #[inline]
    fn holder(&self) -> &Request {
        self.original.as_ref().map_or(self, Py::get)
    }

    /// Makes progress; with `block`, until the operation completes. Takes and returns the outcome if it has completed.
    #[inline]
    fn drive(&self, py: Python<'_>, block: bool) -> PyResult<Option<RequestOutcome>> {
        let own = &self.holder().state;
        // The state is taken out while Python code or another thread may run; a second waiter finds it idle.
        let state = std::mem::replace(&mut *own.lock(), RequestStage::Idle);
        let next = match state {
            RequestStage::Idle => return Ok(Some(RequestOutcome::default())),
            RequestStage::Over(outcome) => return Ok(Some(outcome)),
            RequestStage::Active(mut request, kept) => {
                let polled = if block { request.poll_briefly() } else { request.test() };
                let result = match polled {
                    Ok(Some(status)) => Some(Ok(status)),
                    Ok(None) if !block => None,
                    Ok(None) => match without_gil(py, &mut request, kept.raised.as_ref()) {
                        Ok(status) => Some(Ok(status)),
                        Err(error) if error.matches(py, crate::errors::comm_error(py)?)? => Some(Err(error)),
                        Err(error) => {
                            // A signal handler raised: the operation is still in progress.
                            *own.lock() = RequestStage::Active(request, kept);
                            return Err(error);
                        }
                    },
                    Err(error) => Some(Err(explain(py, &error, kept.raised.as_ref()))),
                };
                match result {
                    Some(result) => return Ok(Some(kept.outcome(py, request.communicator(), result))),
                    None => RequestStage::Active(request, kept),
                }
            }
            RequestStage::Driven(driver) => {
                match driver.call_method1(py, "step", (block,)).and_then(|d| d.is_truthy(py)) {
                    Ok(true) => return Ok(Some(outcome_of(driver.bind(py))?)),
                    Ok(false) => RequestStage::Driven(driver),
                    Err(error) if error.matches(py, crate::errors::comm_error(py)?)? => {
                        return Ok(Some(RequestOutcome { error: Some(Box::new(error)), ..RequestOutcome::default() }));
                    }
                    Err(error) => {
                        *own.lock() = RequestStage::Driven(driver);
                        return Err(error);
                    }
                }
            }
        };
        *own.lock() = next;
        Ok(None)
    }

    /// Waits until the operation completes, and ends the request; returns the object of an object receive.
    #[inline]
    fn end(&self, py: Python<'_>, status: Option<&Bound<'_, Status>>) -> PyResult<Option<Py<PyAny>>> {
        self.drive(py, true)?.unwrap_or_default().fetch(status)
    }

    /// Makes some progress; returns whether the operation has completed. The outcome stays, and is passed to `look`.
    fn poll(&self, py: Python<'_>, look: impl FnOnce(&RequestOutcome)) -> PyResult<bool> {
        if self.is_idle() {
            look(&RequestOutcome::default());
            return Ok(true);
        }
        let Some(outcome) = self.drive(py, false)? else { return Ok(false) };
        look(&outcome);
        *self.holder().state.lock() = RequestStage::Over(outcome);
        Ok(true)
    }

    fn is_idle(&self) -> bool {
        matches!(*self.holder().state.lock(), RequestStage::Idle)
    }
}

fn outcome_of(driver: &Bound<'_, PyAny>) -> PyResult<RequestOutcome> {
    let source: Option<i32> = driver.getattr("source")?.extract()?;
    let status = match source {
        Some(source) => {
            let (tag, nbytes) = (driver.getattr("tag")?.extract()?, driver.getattr("nbytes")?.extract()?);
            Some(ReceiveOutcome { source, tag, nbytes })
        }
        None => None,
    };
    let cancelled = driver.getattr("cancelled")?.extract()?;
    let object = driver.getattr("result")?;
    Ok(RequestOutcome { status, cancelled, object: (!object.is_none()).then(|| object.unbind()), error: None })
}

#[pymethods]
impl Request {
    #[new]
    #[pyo3(signature = (request=None, persistent=false))]
    fn new(request: Option<&Bound<'_, PyAny>>, persistent: bool) -> PyResult<Self> {
        // MPI.Request(other) represents the same operation: when one of the two is waited for, both become null.
        let original = match request {
            Some(other) => {
                let other = other.cast::<Request>()?;
                let first = other.get().original.as_ref().map_or(other, |original| original.bind(other.py()));
                let is_null = first.get().is_idle() && !first.get().persistent;
                (!is_null).then(|| first.clone().unbind())
            }
            None => None,
        };
        Ok(Request { state: Mutex::new(RequestStage::Idle), persistent, original })
    }

    /// Wait until the operation completes; return the object of a lower-case receive, else `None`.
    #[pyo3(signature = (status=None))]
    fn _wait(&self, py: Python<'_>, status: Option<&Bound<'_, Status>>) -> PyResult<Option<Py<PyAny>>> {
        self.end(py, status)
    }

    /// Waits until the operation completes.
    ///
    /// Always returns `True`. Source: MPI 4.1 section 3.7.3.
    #[pyo3(signature = (status=None))]
    fn Wait(&self, py: Python<'_>, status: Option<&Bound<'_, Status>>) -> PyResult<bool> {
        self.end(py, status)?;
        Ok(true)
    }

    /// Make some progress; return whether the operation has completed. Source: MPI 4.1 section 3.7.3.
    #[pyo3(signature = (status=None))]
    fn Test(&self, py: Python<'_>, status: Option<&Bound<'_, Status>>) -> PyResult<bool> {
        match self.drive(py, false)? {
            Some(outcome) => outcome.fetch(status).map(|_| true),
            None => Ok(false),
        }
    }

    /// Make some progress; return whether the operation has completed. The result stays.
    fn _poll(&self, py: Python<'_>) -> PyResult<bool> {
        self.poll(py, |_| ())
    }

    /// Return whether the operation has completed, without freeing the request. Source: MPI 4.1 section 3.7.6.
    #[pyo3(signature = (status=None))]
    fn Get_status(&self, py: Python<'_>, status: Option<&Bound<'_, Status>>) -> PyResult<bool> {
        self.poll(py, |outcome| outcome.report(status))
    }

    /// Waits for all requests in a list natively. `statuses` is empty or of equal length.
    #[staticmethod]
    fn _wait_all(py: Python<'_>, requests: &Bound<'_, PyAny>, statuses: &Bound<'_, PyList>) -> PyResult<()> {
        let mut failed = None;
        let wanted = !statuses.is_empty();
        // Callers usually pass a list, which need not be copied.
        let requests = match requests.cast::<PyList>() {
            Ok(list) => list.clone(),
            Err(_) => PyList::new(requests.py(), requests.try_iter()?.collect::<PyResult<Vec<_>>>()?)?,
        };
        for (i, request) in requests.iter().enumerate() {
            let request =
                request.cast::<Request>().map_err(|_| PyTypeError::new_err("expected a list of requests"))?.get();
            let status = if wanted { Some(statuses.get_item(i)?) } else { None };
            let status = status.as_ref().map(|s| s.cast::<Status>()).transpose()?;
            // All of them are ended, even if one fails.
            let outcome = request.drive(py, true)?.unwrap_or_default();
            if let Err(error) = outcome.fetch(status) {
                failed.get_or_insert(error);
            }
        }
        failed.map_or(Ok(()), Err)
    }

    /// Waits until one in a list completes, or none is in progress; `_poll` says which. `False` if one of them is
    /// driven by Python code, so that native code cannot wait for it.
    #[staticmethod]
    fn _wait_any(py: Python<'_>, requests: &Bound<'_, PyAny>) -> PyResult<bool> {
        let requests: Vec<Bound<'_, PyAny>> = requests.try_iter()?.collect::<PyResult<_>>()?;
        let mut taken = Vec::new();
        let mut answer = None;
        for request in &requests {
            let request =
                request.cast::<Request>().map_err(|_| PyTypeError::new_err("expected a list of requests"))?.get();
            let mut state = request.holder().state.lock();
            match &*state {
                RequestStage::Idle => continue,
                RequestStage::Over(_) => answer = Some(true),
                RequestStage::Driven(_) => answer = answer.or(Some(false)),
                RequestStage::Active(..) => {}
            }
            // Taken out during the wait, as in `drive`.
            match std::mem::replace(&mut *state, RequestStage::Idle) {
                RequestStage::Active(native, kept) => taken.push((request, native, kept)),
                other => *state = other,
            }
        }
        let result = match answer {
            Some(answer) => Ok(answer),
            None => {
                let mut natives: Vec<&mut native::Request> = taken.iter_mut().map(|(_, native, _)| native).collect();
                any_without_gil(py, &mut natives).map(|()| true)
            }
        };
        for (request, native, kept) in taken {
            *request.holder().state.lock() = RequestStage::Active(native, kept);
        }
        // The caller finds failures when it polls the requests.
        result
    }

    /// Cancel a receive that no message has matched. Complete the request with a wait or test afterwards.
    ///
    /// Source: MPI 4.1 section 3.8.4. Sends and collectives cannot be cancelled.
    fn Cancel(&self, py: Python<'_>) -> PyResult<()> {
        let mut state = self.holder().state.lock();
        match &mut *state {
            RequestStage::Idle => Err(fail(py, class::REQUEST, "the request is REQUEST_NULL (or inactive)")),
            RequestStage::Active(request, kept) => {
                let withdrawn = match &kept.parcel {
                    Some((slot, _)) => slot.cancel(),
                    None => request.cancel(),
                };
                if withdrawn {
                    *state = RequestStage::Over(RequestOutcome { cancelled: true, ..RequestOutcome::default() });
                }
                Ok(())
            }
            RequestStage::Driven(driver) => {
                let driver = driver.clone_ref(py);
                drop(state);
                driver.call_method0(py, "cancel").map(|_| ())
            }
            RequestStage::Over(_) => Ok(()),
        }
    }

    /// Lets the operation continue by itself; its memory is kept until it completes.
    fn _release(&self, py: Python<'_>) -> PyResult<()> {
        let state = std::mem::replace(&mut *self.holder().state.lock(), RequestStage::Idle);
        match state {
            RequestStage::Idle if !self.persistent => Err(fail(py, class::REQUEST, "the request is REQUEST_NULL")),
            RequestStage::Active(request, kept) => {
                detach(py, || request.detach(Some(Box::new(kept.owners))));
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Takes over the operation of another request; for persistent requests.
    fn _adopt(&self, py: Python<'_>, other: &Bound<'_, Request>) -> PyResult<()> {
        let mut state = self.holder().state.lock();
        if !matches!(*state, RequestStage::Idle) {
            return Err(fail(py, class::REQUEST, "the persistent request is active; wait for it first"));
        }
        *state = std::mem::replace(&mut *other.get().holder().state.lock(), RequestStage::Idle);
        Ok(())
    }

    /// Lets a Python object drive the request.
    fn _drive(&self, driver: Py<PyAny>) {
        *self.holder().state.lock() = RequestStage::Driven(driver);
    }

    /// A number that a request shares with its copies.
    #[getter]
    fn _shared(&self) -> usize {
        std::ptr::from_ref(self.holder()).addr()
    }

    /// Whether nothing is in progress or waiting to be fetched.
    #[getter]
    fn _is_idle(&self) -> bool {
        self.is_idle()
    }
}

impl Drop for Request {
    fn drop(&mut self) {
        // A dropped request: what it uses must live until the operation completes.
        if let RequestStage::Active(request, kept) = std::mem::replace(self.state.get_mut(), RequestStage::Idle) {
            Python::attach(|py| give_up_forgotten(py, request, kept.owners));
        }
    }
}

fn give_up_forgotten(py: Python<'_>, request: native::Request, owners: Owners) {
    // Not cancelled: the message for a dropped receive must not go to another one.
    let owners: Box<dyn std::any::Any + Send> = Box::new(owners);
    detach(py, || request.detach(Some(owners)));
}

/// A slot for the exception of a user function.
pub fn raised() -> Raised {
    Arc::new(Mutex::new(None))
}
