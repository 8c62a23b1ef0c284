//! Object messages: a pickle with the arrays that travel apart. What they look like: `tidemill_collective::parcel`.

use numpy::PyArray1;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList};
use tidemill_collective::parcel::{ParcelSlot, encode};
use tidemill_collective::{CollectiveError, Communicator, Started};
use tidemill_net::{Matched, Region};

use crate::errors::{class, fail};
use crate::message::{Access, Message};
use crate::request::{self, Kept, Outcome, Received};
use crate::wait::{Owners, blocking};

/// Bodies up to this length are copied into a bytes object, longer ones stay where they arrived.
const COPIED_BYTES_MAX: usize = 4096;

/// Body, arrays, source, tag, bytes of the message.
pub type Contents<'py> = (Bound<'py, PyAny>, Bound<'py, PyList>, i32, i32, u64);

/// A parcel to be sent.
pub struct Outgoing<'py> {
    message: Bound<'py, PyBytes>,
    arrays: Vec<Bound<'py, PyAny>>,
    regions: Vec<Region>,
    key: i32,
}

impl<'py> Outgoing<'py> {
    pub fn new(
        py: Python<'py>,
        body: &Bound<'py, PyBytes>,
        arrays: Vec<Bound<'py, PyAny>>,
        key: i32,
    ) -> PyResult<Self> {
        if arrays.is_empty() && body.as_bytes().first() != Some(&0) {
            return Ok(Outgoing { message: body.clone(), arrays, regions: Vec::new(), key });
        }
        let mut owners = Vec::with_capacity(arrays.len());
        let mut regions = Vec::with_capacity(arrays.len());
        for array in &arrays {
            let message = Message::new(array, Access::Read, 1)?;
            regions.push(message.cut(message.bytes()));
            owners.push(message.owner);
        }
        let lengths: Vec<usize> = regions.iter().map(|region| region.len).collect();
        let message = PyBytes::new(py, &encode(body.as_bytes(), key, &lengths));
        Ok(Outgoing { message, arrays: owners, regions, key })
    }

    /// # Safety
    /// This, or what `owners` returns, lives until the request is over.
    pub unsafe fn start(
        &self,
        comm: &Communicator,
        dest: u32,
        tag: i32,
        synchronous: bool,
    ) -> Result<Started, CollectiveError> {
        let message = Region::of(self.message.as_bytes());
        // SAFETY: by this function's contract; bytes objects never change, arrays are the caller's to leave alone.
        unsafe { comm.send_parcel(dest, tag, message, self.key, &self.regions, synchronous) }
    }

    pub fn owners(&self) -> Owners {
        let arrays = self.arrays.iter().map(|array| array.clone().unbind());
        arrays.chain([self.message.clone().into_any().unbind()]).collect()
    }
}

/// What a receive has left, as Python objects that own the memory it arrived in.
fn contents<'py>(py: Python<'py>, comm: &Communicator, slot: &ParcelSlot) -> PyResult<Contents<'py>> {
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

/// Receives a parcel.
pub fn receive<'py>(
    py: Python<'py>,
    comm: &Communicator,
    source: Option<u32>,
    tag: Option<i32>,
    matched: Option<Matched>,
) -> PyResult<Contents<'py>> {
    let slot = ParcelSlot::default();
    let started = comm.recv_parcel(source, tag, matched, slot.clone());
    let waited = blocking(py, started, None, Owners::new);
    if let Err(error) = waited {
        // Given up by a signal handler: the message, if it is still to come, is for somebody else.
        slot.cancel();
        return Err(error);
    }
    contents(py, comm, &slot)
}

/// Begins to receive a parcel. Its memory is its own, so the request needs no owners.
pub fn receive_later<'py>(
    py: Python<'py>,
    comm: &Communicator,
    source: Option<u32>,
    tag: Option<i32>,
    matched: Option<Matched>,
    finish: Py<PyAny>,
) -> PyResult<Bound<'py, PyAny>> {
    let slot = ParcelSlot::default();
    let started = comm.recv_parcel(source, tag, matched, slot.clone());
    request::started(py, comm, started, Kept { parcel: Some((slot, finish)), ..Kept::default() })
}

/// The outcome of a receive that is over: the object that `finish(body, arrays)` makes.
pub fn outcome(py: Python<'_>, comm: &Communicator, slot: &ParcelSlot, finish: &Bound<'_, PyAny>) -> PyResult<Outcome> {
    let (body, arrays, source, tag, nbytes) = contents(py, comm, slot)?;
    let object = finish.call1((body, arrays))?;
    let status = Some(Received { source, tag, nbytes });
    Ok(Outcome { status, object: (!object.is_none()).then(|| object.unbind()), ..Outcome::default() })
}
