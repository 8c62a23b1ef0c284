//! Object messages: a pickled body, and arrays that are sent separately; see `tidemill_collective::parcel`.
//!
//! The caller has checked the tags: negative ones are reserved for the hidden traffic of collectives.

use std::sync::atomic::Ordering;

use pyo3::prelude::*;
use pyo3::types::PyBytes;

use super::Comm;
use super::messages::{ReceiveSource, dest_of, recv_tag, send_tag, source_of, with_nobody};
use crate::handles::ANY;
use crate::parcel::{self, OutgoingParcel};
use crate::request::{self, ParcelContents, RequestResources};
use crate::wait::blocking;

impl Comm {
    /// A parcel with a unique key.
    fn parcel<'py>(
        &self,
        py: Python<'py>,
        body: &Bound<'py, PyBytes>,
        arrays: Vec<Bound<'py, PyAny>>,
    ) -> PyResult<OutgoingParcel<'py>> {
        let key = self.shared.as_ref().map_or(0, |s| s.next_key.fetch_add(1, Ordering::Relaxed));
        OutgoingParcel::new(py, body, arrays, -1 - (key & 0x3fff_ffff) as i32)
    }
}

#[pymethods]
impl Comm {
    /// Starts to send an object.
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
        request::started(py, comm, started, RequestResources { owners, ..RequestResources::default() })
    }

    /// The blocking form of `_isend_parcel`.
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
        // SAFETY: `outgoing` owns the memory until this returns; if the wait is abandoned, `owners` does.
        let started = unsafe { outgoing.start(comm, dest, tag, synchronous) };
        blocking(py, started, None, || outgoing.owners())?;
        Ok(())
    }

    /// Raises for an invalid tag.
    #[staticmethod]
    fn _check_tag(py: Python<'_>, tag: i32, receiving: bool) -> PyResult<()> {
        if receiving { recv_tag(py, tag).map(|_| ()) } else { send_tag(py, tag).map(|_| ()) }
    }

    /// Receives a parcel: body, arrays, source, tag, bytes of the message.
    fn _recv_parcel<'py>(&self, py: Python<'py>, source: i32, tag: i32) -> PyResult<Option<ParcelContents<'py>>> {
        let comm = self.get(py)?;
        let tag = (tag != ANY).then_some(tag);
        let source = source_of(py, comm, source)?;
        if matches!(source, ReceiveSource::Nobody) {
            return Ok(None);
        }
        parcel::receive(py, comm, source.rank(), tag, None).map(Some)
    }

    /// Starts to receive a parcel; `finish(body, arrays)` makes the object.
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
        if matches!(source, ReceiveSource::Nobody) {
            return with_nobody(py, true);
        }
        parcel::receive_later(py, comm, source.rank(), tag, None, finish)
    }
}
