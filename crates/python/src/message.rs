//! Converts what a caller passes as a message to memory: an array or bytes, `[array, MPI.DOUBLE]` and
//! `[array, count, MPI.DOUBLE]` directly, everything else through `tidemill.mpi._buffers`.

use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyList, PyString, PyTuple};
use tidemill_collective::{DType, VectorBlock};
use tidemill_net::MemoryRegion;

use crate::array;
use crate::handles::{Datatype, parse_dtype};
use crate::wait::Owners;

/// The memory of a message.
pub struct MessageMemory<'py> {
    pub region: MemoryRegion,
    /// The number of elements: of the whole message, or of one block if the call needs blocks.
    pub count: usize,
    pub dtype: DType,
    /// Keeps the memory alive.
    pub owner: Bound<'py, PyAny>,
    /// Moves received data to the caller's place, for non-contiguous datatypes.
    pub unpack: Option<Bound<'py, PyAny>>,
    /// The caller's datatype, for user functions.
    pub datatype: Option<Bound<'py, PyAny>>,
}

/// The result of `resolve` and `resolve_blocks` in `tidemill.mpi._buffers`.
type Resolved<'py> =
    (Bound<'py, PyAny>, usize, Bound<'py, PyString>, Option<Bound<'py, PyAny>>, Option<Bound<'py, PyAny>>);
type ResolvedBlocks<'py> = (Bound<'py, PyAny>, Vec<usize>, Vec<usize>, Bound<'py, PyString>, Option<Bound<'py, PyAny>>);

/// How the call uses the memory.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum MemoryAccess {
    Read,
    Write,
    /// Input and output, as in a broadcast or an operation in place.
    Update,
}

/// The borrowed items of a list or tuple. Nothing here runs Python code, so the items stay.
fn items<'a, 'py>(spec: &'a Bound<'py, PyAny>) -> Option<(usize, impl Fn(usize) -> Borrowed<'a, 'py, PyAny>)> {
    let py = spec.py();
    let raw = spec.as_ptr();
    let is_list = spec.is_exact_instance_of::<PyList>();
    if !is_list && !spec.is_exact_instance_of::<PyTuple>() {
        return None;
    }
    // SAFETY: checked to be a list or tuple; `get` is only called with indices less than its length.
    let len = unsafe { if is_list { ffi::PyList_Size(raw) } else { ffi::PyTuple_Size(raw) } } as usize;
    let get = move |i: usize| unsafe {
        // SAFETY: as above; items of a list or tuple are never null.
        let item = if is_list { ffi::PyList_GetItem(raw, i as _) } else { ffi::PyTuple_GetItem(raw, i as _) };
        Borrowed::from_ptr(py, item)
    };
    Some((len, get))
}

impl<'py> MessageMemory<'py> {
    /// One message, or `blocks` equal ones, one after another.
    #[inline]
    pub fn new(spec: &Bound<'py, PyAny>, access: MemoryAccess, blocks: usize) -> PyResult<Self> {
        if let Some(array) = array::memory(spec)
            && (array.writable || access == MemoryAccess::Read)
        {
            return Self::whole(spec, array, array.dtype, blocks);
        }
        match Self::listed(spec, access, blocks) {
            Some(message) => message,
            None => Self::slow(spec, access, blocks),
        }
    }

    /// All of an array.
    #[inline]
    fn whole(owner: &Bound<'py, PyAny>, array: array::PlainArray, dtype: DType, blocks: usize) -> PyResult<Self> {
        let len = array.len * array.dtype.size_bytes();
        let mut count = array.len;
        if dtype != array.dtype {
            let item = dtype.size_bytes();
            if !len.is_multiple_of(item) {
                return Err(PyValueError::new_err(format!(
                    "message: cannot infer count, buffer length {len} is not a multiple of datatype extent {item}"
                )));
            }
            count = len / item;
        }
        if blocks > 1 {
            if !count.is_multiple_of(blocks) {
                return Err(PyValueError::new_err(format!(
                    "message: cannot infer count, number of entries {count} is not a multiple of required number of blocks {blocks}"
                )));
            }
            count /= blocks;
        }
        let region = MemoryRegion { ptr: array.ptr, len };
        Ok(MessageMemory { region, count, dtype, owner: owner.clone(), unpack: None, datatype: None })
    }

    /// `[array, datatype]` and `[array, count, datatype]` with a plain array and a predefined datatype.
    #[inline]
    fn listed(spec: &Bound<'py, PyAny>, access: MemoryAccess, blocks: usize) -> Option<PyResult<Self>> {
        let (len, get) = items(spec)?;
        if !(2..=3).contains(&len) {
            return None;
        }
        let owner = get(0);
        let array = array::memory(&owner).filter(|a| a.writable || access == MemoryAccess::Read)?;
        let last = get(len - 1);
        let dtype = last.cast::<Datatype>().ok()?.get().dtype?;
        let mut message = if len == 2 {
            match Self::whole(&owner, array, dtype, blocks) {
                Ok(message) => message,
                Err(error) => return Some(Err(error)),
            }
        } else {
            // Only an exact int: converting anything else could run Python code that changes the list.
            let count = get(1);
            if !count.is_exact_instance_of::<pyo3::types::PyInt>() {
                return None;
            }
            let count: usize = count.extract().ok()?;
            let bytes = array.len * array.dtype.size_bytes();
            if count.checked_mul(blocks)?.checked_mul(dtype.size_bytes())? > bytes {
                return None;
            }
            let region = MemoryRegion { ptr: array.ptr, len: bytes };
            MessageMemory { region, count, dtype, owner: owner.to_owned(), unpack: None, datatype: None }
        };
        message.datatype = Some(last.to_owned());
        Some(Ok(message))
    }

    #[cold]
    fn slow(spec: &Bound<'py, PyAny>, access: MemoryAccess, blocks: usize) -> PyResult<Self> {
        let py = spec.py();
        static RESOLVE: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
        let resolve = RESOLVE.import(py, "tidemill.mpi._buffers", "resolve")?;
        let (update, write) = (access == MemoryAccess::Update, access != MemoryAccess::Read);
        let found = resolve.call1((spec, write, update, blocks))?;
        let (owner, count, element, unpack, datatype): Resolved<'py> = found.extract()?;
        let (ptr, len) = array::bytes(&owner)?;
        let dtype = parse_dtype(&element.to_cow()?)?;
        if count.checked_mul(blocks.max(1)).and_then(|n| n.checked_mul(dtype.size_bytes())).is_none_or(|n| n > len) {
            return Err(PyTypeError::new_err("message: the resolved buffer is too short"));
        }
        Ok(MessageMemory { region: MemoryRegion { ptr, len }, count, dtype, owner, unpack, datatype })
    }

    /// Only the first `bytes` of the memory.
    pub fn cut(&self, bytes: usize) -> MemoryRegion {
        MemoryRegion { ptr: self.region.ptr, len: bytes.min(self.region.len) }
    }

    /// The objects that keep the memory alive if the call ends before the operation.
    pub fn owners(&self) -> Owners {
        Owners::from_iter([self.owner.clone().unbind()])
    }

    /// The bytes of `count` elements.
    #[inline]
    pub fn bytes(&self) -> usize {
        self.count * self.dtype.size_bytes()
    }
}

/// The memory of the `v` calls: a block for each rank.
pub struct VectorMessage<'py> {
    pub region: MemoryRegion,
    pub blocks: Vec<VectorBlock>,
    pub dtype: DType,
    pub owner: Bound<'py, PyAny>,
    pub unpack: Option<Bound<'py, PyAny>>,
}

impl<'py> VectorMessage<'py> {
    /// `spec` with counts and displacements for `size` ranks. `function` is `resolve_blocks`, or `resolve_typed` for a
    /// datatype per rank.
    pub fn new(spec: &Bound<'py, PyAny>, access: MemoryAccess, size: usize, function: &str) -> PyResult<Self> {
        let resolve = spec.py().import("tidemill.mpi._buffers")?.getattr(function)?;
        let (update, write) = (access == MemoryAccess::Update, access != MemoryAccess::Read);
        let found = resolve.call1((spec, write, update, size))?;
        let (owner, counts, displacements, element, unpack): ResolvedBlocks<'py> = found.extract()?;
        let (ptr, len) = array::bytes(&owner)?;
        let dtype = parse_dtype(&element.to_cow()?)?;
        let blocks: Vec<VectorBlock> =
            counts.into_iter().zip(displacements).map(|(len, start)| VectorBlock { start, len }).collect();
        let end = blocks.iter().filter(|b| b.len > 0).map(|b| b.start.saturating_add(b.len)).max().unwrap_or(0);
        if blocks.len() != size || end.checked_mul(dtype.size_bytes()).is_none_or(|bytes| bytes > len) {
            return Err(PyValueError::new_err(format!(
                "message: the blocks end at entry {end}, but the buffer has {len} bytes (entries of {})",
                dtype.size_bytes()
            )));
        }
        Ok(VectorMessage { region: MemoryRegion { ptr, len }, blocks, dtype, owner, unpack })
    }
}
