//! Reads NumPy arrays straight from their object structs: an upper-case call on a plain array asks neither Python nor
//! NumPy anything.
//!
//! The fields read here (`data`, `nd`, `dimensions`, `flags`, `descr.byteorder`, `descr.type_num`) lie at the same
//! offsets in NumPy 1 and 2 (NumPy's C API guarantees them for extension modules built against either).

use numpy::npyffi::{
    NPY_ARRAY_C_CONTIGUOUS, NPY_ARRAY_F_CONTIGUOUS, NPY_ARRAY_WRITEABLE, NpyTypes, PyArrayObject, get_type_object,
};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use tidemill_collective::DType;

/// A contiguous array of a plain numeric dtype in native byte order.
#[derive(Clone, Copy)]
pub struct Plain {
    /// First byte.
    pub ptr: *mut u8,
    /// Elements.
    pub len: usize,
    /// Of how many axes.
    pub axes: usize,
    /// What they are.
    pub dtype: DType,
    /// Whether it may be written.
    pub writable: bool,
}

/// NumPy's type numbers (`NPY_TYPES`), which are part of its ABI, up to the last one with a dtype of ours.
const DTYPES: [Option<DType>; 24] = [
    Some(DType::Bool),
    Some(DType::I8),
    Some(DType::U8),
    Some(DType::I16),
    Some(DType::U16),
    Some(DType::I32),
    Some(DType::U32),
    Some(DType::I64), // long
    Some(DType::U64),
    Some(DType::I64), // long long
    Some(DType::U64),
    Some(DType::F32),
    Some(DType::F64),
    Some(DType::LongDouble),
    Some(DType::C64),
    Some(DType::C128),
    Some(DType::CLongDouble),
    None, // object
    None, // bytes
    None, // str
    None, // void
    None, // datetime64
    None, // timedelta64
    Some(DType::F16),
];

/// `numpy.ndarray`, once NumPy has been imported.
fn array_type(py: Python<'_>) -> *mut ffi::PyTypeObject {
    static TYPE: PyOnceLock<usize> = PyOnceLock::new();
    // SAFETY: the GIL is held; NumPy is imported by this call if it was not, as its array API asks.
    *TYPE.get_or_init(py, || unsafe { get_type_object(py, NpyTypes::PyArray_Type) } as usize) as *mut _
}

/// Looks at `object` as an array; `None` if it is none, or not a plain one: then the slow path finds out why.
#[inline]
pub fn plain(object: &Bound<'_, PyAny>) -> Option<Plain> {
    let expected = array_type(object.py());
    // SAFETY: `object` is a live Python object.
    let is_array =
        unsafe { ffi::Py_TYPE(object.as_ptr()) == expected || ffi::PyObject_TypeCheck(object.as_ptr(), expected) != 0 };
    if !is_array {
        return None;
    }
    // SAFETY: instances of ndarray and of its subclasses begin with a `PyArrayObject`, and `descr` is never null. The
    // GIL is held, so nobody changes the array meanwhile. Benefit: 60 ns less per call than the buffer protocol.
    unsafe {
        let array = &(*object.as_ptr().cast::<PyArrayObject>()).fields;
        let descr = &(*array.descr).fields;
        if array.flags & (NPY_ARRAY_C_CONTIGUOUS | NPY_ARRAY_F_CONTIGUOUS) == 0
            || descr.byteorder == b'>' as std::ffi::c_char
        {
            return None;
        }
        let dtype = (*DTYPES.get(descr.type_num as usize)?)?;
        let mut len = 1;
        let axes = array.nd as usize;
        for axis in 0..axes {
            len *= *array.dimensions.add(axis) as usize;
        }
        let writable = array.flags & NPY_ARRAY_WRITEABLE != 0;
        Some(Plain { ptr: array.data.cast(), len, axes, dtype, writable })
    }
}

/// The bytes of a one-dimensional array of bytes that `tidemill.mpi._buffers` made.
pub fn bytes(object: &Bound<'_, PyAny>) -> PyResult<(*mut u8, usize)> {
    match plain(object) {
        Some(array) if array.dtype == DType::U8 => Ok((array.ptr, array.len)),
        _ => Err(pyo3::exceptions::PyTypeError::new_err("expected a contiguous array of bytes")),
    }
}
