"""Tables of NumPy arrays: the conversions of `Table.to_numpy` and `Table.from_numpy`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tidemill._tables.errors import DataSetError
from tidemill._tables.values import from_values
from tidemill._tidemill import NativeTable

if TYPE_CHECKING:
    import numpy

__all__ = ["table_of_arrays"]

#: Units of NumPy times that Arrow has, and the replacements for those that it does not.
_UNITS = {"D": "s", "h": "s", "m": "s", "s": "s", "ms": "ms", "us": "us", "ns": "ns", "W": "s", "M": "s", "Y": "s"}


def table_of_arrays(columns: Mapping[str, Any]) -> NativeTable:
    """Return a table of arrays, or of sequences that NumPy can convert, of one length.

    Raises
    ------
    DataSetError
        If a column cannot be made of an array, or lengths differ.
    TypeError
        If `columns` is not a mapping of names to arrays.
    """
    if not isinstance(columns, Mapping):
        raise TypeError(f'from_numpy takes arrays by column, {{"x": array}}, not a {type(columns).__name__}')
    arrays: dict[str, numpy.ndarray] = {}
    for given, values in columns.items():
        name = str(given)
        if name in arrays:
            raise DataSetError(f"from_numpy: two columns are named {name!r}")
        arrays[name] = _array(name, values)
    lengths = {name: len(array) for name, array in arrays.items()}
    if len(set(lengths.values())) > 1:
        raise DataSetError(f"columns have different lengths: {lengths}")
    made = [_one(name, array) for name, array in arrays.items()]
    if not made:
        return NativeTable.from_lists([])
    first, *rest = made
    for other in rest:
        first = first.beside(other)
    return first


def _array(name: str, values: Any) -> numpy.ndarray:
    import numpy as np

    if isinstance(values, np.ndarray):
        array = values
    else:
        if isinstance(values, (str, bytes)) or not hasattr(values, "__len__"):
            raise DataSetError(f"from_numpy: column {name!r} is an array or a list of values, not {values!r}")
        try:
            array = np.asarray(values)
        except ValueError:
            # Lists of different lengths.
            array = np.fromiter(values, dtype=object, count=len(values))
        if array.dtype.kind in "US" or array.ndim != 1:
            # Without conversion: NumPy would convert numbers next to strings to strings.
            array = np.fromiter(values, dtype=object, count=len(values))
    if array.ndim == 0:
        raise DataSetError(f"from_numpy: column {name!r} is one value, not an array with a value for each row")
    if array.dtype.kind == "V":
        raise DataSetError(
            f"from_numpy: column {name!r} holds records ({array.dtype}); pass each field as a column: "
            f"{{field: array[field] for field in array.dtype.names}}"
        )
    if array.dtype.kind == "c":
        raise DataSetError(
            f"from_numpy: column {name!r} holds complex numbers, which tables do not support; pass array.real and array.imag"
        )
    if array.dtype.kind == "f" and array.dtype.itemsize > 8:
        raise DataSetError(f"from_numpy: column {name!r} is of {array.dtype}; tables have floats of up to 64 bits")
    return array


def _one(name: str, array: numpy.ndarray) -> NativeTable:
    """Return a table with this column."""
    import numpy as np

    if isinstance(array, np.ma.MaskedArray):
        # Masked values are null.
        shown = _one(name, array.data)
        hidden = np.ma.getmaskarray(array)
        if array.ndim > 1:
            # A list can be null only as a whole.
            return _listed(name, np.ma.filled(array.astype(object), None).tolist()) if hidden.any() else shown
        return shown.with_nulls(hidden.tolist()) if hidden.any() else shown
    if array.ndim > 1:
        return _lists(name, array)
    if array.dtype.kind in "biuf":
        # In native byte order and contiguous, as Arrow requires.
        ready = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("="))
        made = NativeTable.from_plain({name: ready})
        assert made is not None, "an array of numbers in the machine's order is plain"
        return made
    if array.dtype.kind in "mM":
        return _times(name, array)
    return _listed(name, array.tolist())


def _listed(name: str, values: list[Any]) -> NativeTable:
    # pandas represents missing strings as NaN.
    if any(isinstance(value, str) for value in values):
        values = [None if isinstance(value, float) and value != value else value for value in values]
    try:
        return from_values(lambda lists: NativeTable.from_lists([(name, lists[0], None)]), [values])
    except (TypeError, OverflowError) as error:
        raise DataSetError(f"from_numpy: column {name!r}: {error}") from None


def _lists(name: str, array: numpy.ndarray) -> NativeTable:
    """Convert rows of arrays with two or more axes to fixed-size lists, the inverse of `to_numpy` for numbers."""
    rows, size = array.shape[0], array.shape[1]
    if array.dtype.kind == "O" or size == 0:
        return _listed(name, array.tolist())
    return _one(name, array.reshape((rows * size, *array.shape[2:]))).in_lists(name, size)


def _times(name: str, array: numpy.ndarray) -> NativeTable:
    """Convert times by their counts, which are exact in any unit; NaT is null."""
    import numpy as np

    unit, _ = np.datetime_data(array.dtype)
    if unit == "generic":
        raise DataSetError(
            f"from_numpy: column {name!r} is of {array.dtype}, without a unit; give it one, such as {array.dtype.kind}8[us]"
        )
    if unit not in _UNITS:
        raise DataSetError(
            f"from_numpy: column {name!r} is of {array.dtype}; tables have units from days to nanoseconds"
        )
    is_date = array.dtype.kind == "M" and unit in ("D", "W", "M", "Y")
    if array.dtype.kind == "m" and unit in ("M", "Y"):
        raise DataSetError(
            f"from_numpy: column {name!r} is of {array.dtype}: how long a month is depends on where it begins"
        )
    wanted = "D" if is_date else _UNITS[unit]
    moved = array.astype(f"{array.dtype.kind}8[{wanted}]")
    nothing = np.isnat(moved)
    counts = np.where(nothing, 0, moved.astype(np.int64))
    if is_date and (np.abs(counts) >= 2**31).any():
        raise DataSetError(f"from_numpy: column {name!r} has dates beyond those of 32 bits")
    kind = "date" if is_date else f"{'datetime' if array.dtype.kind == 'M' else 'duration'}[{wanted}]"
    made = _one(name, counts.astype(np.int32 if is_date else np.int64)).cast([(name, kind)])
    return made.with_nulls(nothing.tolist()) if nothing.any() else made
