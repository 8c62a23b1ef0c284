//! Object messages: a pickle with arrays that are sent separately. For their format, see `tidemill_collective::parcel`.

use pyo3::prelude::*;
use pyo3::types::PyBytes;
use tidemill_collective::parcel::{ParcelSlot, encode};
use tidemill_collective::{CollectiveError, Communicator, StartResult};
use tidemill_net::{MemoryRegion, ProbedMessage};

use crate::message::{MemoryAccess, MessageMemory};
use crate::request::{self, ParcelContents, RequestResources, contents};
use crate::wait::{Owners, blocking};

/// A parcel to be sent.
pub struct OutgoingParcel<'py> {
    message: Bound<'py, PyBytes>,
    arrays: Vec<Bound<'py, PyAny>>,
    regions: Vec<MemoryRegion>,
    key: i32,
}

impl<'py> OutgoingParcel<'py> {
    pub fn new(
        py: Python<'py>,
        body: &Bound<'py, PyBytes>,
        arrays: Vec<Bound<'py, PyAny>>,
        key: i32,
    ) -> PyResult<Self> {
        if arrays.is_empty() && body.as_bytes().first() != Some(&0) {
            return Ok(OutgoingParcel { message: body.clone(), arrays, regions: Vec::new(), key });
        }
        let mut owners = Vec::with_capacity(arrays.len());
        let mut regions = Vec::with_capacity(arrays.len());
        for array in &arrays {
            let message = MessageMemory::new(array, MemoryAccess::Read, 1)?;
            regions.push(message.cut(message.bytes()));
            owners.push(message.owner);
        }
        let lengths: Vec<usize> = regions.iter().map(|region| region.len).collect();
        let message = PyBytes::new(py, &encode(body.as_bytes(), key, &lengths));
        Ok(OutgoingParcel { message, arrays: owners, regions, key })
    }

    /// # Safety
    /// This, or what `owners` returns, must live until the request completes.
    pub unsafe fn start(
        &self,
        comm: &Communicator,
        dest: u32,
        tag: i32,
        synchronous: bool,
    ) -> Result<StartResult, CollectiveError> {
        let message = MemoryRegion::of(self.message.as_bytes());
        // SAFETY: by this function's contract; bytes objects never change, and callers must not change the arrays.
        unsafe { comm.send_parcel(dest, tag, message, self.key, &self.regions, synchronous) }
    }

    pub fn owners(&self) -> Owners {
        let arrays = self.arrays.iter().map(|array| array.clone().unbind());
        arrays.chain([self.message.clone().into_any().unbind()]).collect()
    }
}

/// Receives a parcel.
pub fn receive<'py>(
    py: Python<'py>,
    comm: &Communicator,
    source: Option<u32>,
    tag: Option<i32>,
    matched: Option<ProbedMessage>,
) -> PyResult<ParcelContents<'py>> {
    let slot = ParcelSlot::default();
    let started = comm.recv_parcel(source, tag, matched, slot.clone());
    let waited = blocking(py, started, None, Owners::new);
    if let Err(error) = waited {
        // A signal handler raised: the message, if it still arrives, is left for another receive.
        slot.cancel();
        return Err(error);
    }
    contents(py, comm, &slot)
}

/// Starts to receive a parcel. Its memory is its own, so the request needs no owners.
pub fn receive_later<'py>(
    py: Python<'py>,
    comm: &Communicator,
    source: Option<u32>,
    tag: Option<i32>,
    matched: Option<ProbedMessage>,
    finish: Py<PyAny>,
) -> PyResult<Bound<'py, PyAny>> {
    let slot = ParcelSlot::default();
    let started = comm.recv_parcel(source, tag, matched, slot.clone());
    request::started(
        py,
        comm,
        started,
        RequestResources { parcel: Some((slot, finish)), ..RequestResources::default() },
    )
}
