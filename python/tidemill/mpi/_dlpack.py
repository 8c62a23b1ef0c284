"""Reads arrays of other libraries through DLPack: the host memory of a capsule, without consuming it.

NumPy's ``from_dlpack`` rejects element types that NumPy lacks, such as bfloat16, and consumes the capsule. A message
only needs to know where the bytes are, so this module reads the structure directly, and keeps the capsule alive as long
as the array.

Source: DLPack 1.1, ``dlpack.h``.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["TensorMemory", "array_of_capsule"]

#: Element types, by DLPack's code: NumPy's kind. Anything else is transferred as plain bytes.
_KINDS = {0: "i", 1: "u", 2: "f", 5: "c", 6: "b"}
_READ_ONLY = 1
_MAJOR = 1


class _Device(ctypes.Structure):
    _fields_ = [("kind", ctypes.c_int32), ("number", ctypes.c_int32)]


class _Type(ctypes.Structure):
    _fields_ = [("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16)]


class _Tensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device", _Device),
        ("ndim", ctypes.c_int32),
        ("dtype", _Type),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


class _Managed(ctypes.Structure):
    _fields_ = [("tensor", _Tensor), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p)]


class _Versioned(ctypes.Structure):
    _fields_ = [
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", _Tensor),
    ]


class TensorMemory:
    """The memory of a tensor in NumPy's array interface; keeps the capsule, and so the tensor, alive."""

    def __init__(self, capsule: Any, interface: dict[str, Any]) -> None:
        self._capsule = capsule
        self.__array_interface__ = interface


_valid = ctypes.pythonapi.PyCapsule_IsValid
_valid.restype, _valid.argtypes = ctypes.c_int, [ctypes.py_object, ctypes.c_char_p]
_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_pointer.restype, _pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]


def array_of_capsule(capsule: Any) -> NDArray[Any]:
    """Return the array in the result of ``__dlpack__``; it shares the memory.

    Raises
    ------
    BufferError
        If it is not a capsule of a tensor, has already been consumed, has a later major version, or has an invalid
        shape.
    """
    readonly = False
    if _valid(capsule, b"dltensor_versioned"):
        versioned = _Versioned.from_address(_pointer(capsule, b"dltensor_versioned"))
        if versioned.major != _MAJOR:
            raise BufferError(f"DLPack {versioned.major}.{versioned.minor} is not supported")
        tensor, readonly = versioned.tensor, bool(versioned.flags & _READ_ONLY)
    elif _valid(capsule, b"dltensor"):
        tensor = _Managed.from_address(_pointer(capsule, b"dltensor")).tensor
    else:
        raise BufferError("__dlpack__ returned no capsule of a tensor, or one that was used before")
    ndim = tensor.ndim
    if ndim < 0 or (ndim > 0 and not tensor.shape):
        raise BufferError(f"DLPack: a tensor of {ndim} dimensions without a shape")
    shape = tuple(tensor.shape[axis] for axis in range(ndim))
    if any(length < 0 for length in shape):
        raise BufferError(f"DLPack: a tensor of shape {shape}")
    itemsize, rest = divmod(tensor.dtype.bits * tensor.dtype.lanes, 8)
    if rest or not itemsize:
        raise BufferError(f"DLPack: elements of {tensor.dtype.bits} bits cannot be sent one by one")
    strides = tuple(tensor.strides[axis] * itemsize for axis in range(ndim)) if tensor.strides else None
    try:
        code, lanes = tensor.dtype.code, tensor.dtype.lanes
        # In some libraries, two lanes of floats are a complex number.
        kind = _KINDS[code] if lanes == 1 else {(2, 2): "c"}[code, lanes]
        dtype = np.dtype(f"{kind}{itemsize}")
    except (KeyError, TypeError):
        # A type unknown to NumPy: this many bytes per element.
        dtype, shape = np.dtype(np.uint8), (*shape, itemsize)
        strides = None if strides is None else (*strides, 1)
    if not tensor.data or 0 in shape:
        return np.empty(shape, dtype)
    if strides is not None and any(stride < 0 for stride in strides):
        raise BufferError("DLPack: a tensor with negative strides")
    interface = {
        "version": 3,
        "shape": shape,
        "typestr": dtype.str,
        "data": (tensor.data + tensor.byte_offset, readonly),
        "strides": strides,
    }
    return np.asarray(TensorMemory(capsule, interface))
