"""Datatypes: the predefined ones, and derived ones as runs of bytes.

A derived datatype is two arrays: the start of each run of bytes, relative to the buffer, and its length, in the order
of transfer. Contiguous types need no packing; others are packed into an array before sending and unpacked after
receiving.

Source: MPI 4.1 chapter 5.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tidemill import _tidemill
from tidemill._errors import UnsupportedError, fail
from tidemill.mpi import _constants as c
from tidemill.mpi._handle import Attributes
from tidemill.mpi._lazy import np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Bytes = NDArray[np.uint8]
    Offsets = NDArray[np.int64]

#: MPI name: (element type of the native code, type character or None, type string or None).
_PREDEFINED: dict[str, tuple[str, str | None, str]] = {
    "BYTE": ("uint8", "B", "u1"),
    "PACKED": ("uint8", "B", "u1"),
    "CHAR": ("int8", "c", "S1"),
    "SIGNED_CHAR": ("int8", "b", "i1"),
    "UNSIGNED_CHAR": ("uint8", "B", "u1"),
    "WCHAR": ("int32", "U", "U1"),
    "SHORT": ("int16", "h", "i2"),
    "INT": ("int32", "i", "i4"),
    "LONG": ("int64", "l", "i8"),
    "LONG_LONG": ("int64", "q", "i8"),
    "UNSIGNED_SHORT": ("uint16", "H", "u2"),
    "UNSIGNED": ("uint32", "I", "u4"),
    "UNSIGNED_LONG": ("uint64", "L", "u8"),
    "UNSIGNED_LONG_LONG": ("uint64", "Q", "u8"),
    "FLOAT": ("float32", "f", "f4"),
    "DOUBLE": ("float64", "d", "f8"),
    "LONG_DOUBLE": ("longdouble", "g", "f16"),
    "C_BOOL": ("bool", "?", "b1"),
    "INT8_T": ("int8", "b", "i1"),
    "INT16_T": ("int16", "h", "i2"),
    "INT32_T": ("int32", "i", "i4"),
    "INT64_T": ("int64", "l", "i8"),
    "UINT8_T": ("uint8", "B", "u1"),
    "UINT16_T": ("uint16", "H", "u2"),
    "UINT32_T": ("uint32", "I", "u4"),
    "UINT64_T": ("uint64", "L", "u8"),
    "FLOAT16_T": ("float16", "e", "f2"),
    "FLOAT32_T": ("float32", "f", "f4"),
    "FLOAT64_T": ("float64", "d", "f8"),
    "C_FLOAT_COMPLEX": ("complex64", "F", "c8"),
    "C_DOUBLE_COMPLEX": ("complex128", "D", "c16"),
    "C_LONG_DOUBLE_COMPLEX": ("clongdouble", "G", "c32"),
    "CXX_BOOL": ("bool", "?", "b1"),
    "CXX_FLOAT_COMPLEX": ("complex64", "F", "c8"),
    "CXX_DOUBLE_COMPLEX": ("complex128", "D", "c16"),
    "CXX_LONG_DOUBLE_COMPLEX": ("clongdouble", "G", "c32"),
    "AINT": ("int64", "p", "i8"),
    "OFFSET": ("int64", "p", "i8"),
    "COUNT": ("int64", "p", "i8"),
    "SHORT_INT": ("short_int", None, "V8"),
    "TWOINT": ("2int", None, "V8"),
    "LONG_INT": ("long_int", None, "V16"),
    "FLOAT_INT": ("float_int", None, "V8"),
    "DOUBLE_INT": ("double_int", None, "V16"),
    "LONG_DOUBLE_INT": ("long_double_int", None, "V32"),
    "CHARACTER": ("int8", "c", "S1"),
    "LOGICAL": ("int32", "i", "i4"),
    "INTEGER": ("int32", "i", "i4"),
    "REAL": ("float32", "f", "f4"),
    "DOUBLE_PRECISION": ("float64", "d", "f8"),
    "COMPLEX": ("complex64", "F", "c8"),
    "DOUBLE_COMPLEX": ("complex128", "D", "c16"),
    "LOGICAL1": ("int8", "b", "i1"),
    "LOGICAL2": ("int16", "h", "i2"),
    "LOGICAL4": ("int32", "i", "i4"),
    "LOGICAL8": ("int64", "l", "i8"),
    "INTEGER1": ("int8", "b", "i1"),
    "INTEGER2": ("int16", "h", "i2"),
    "INTEGER4": ("int32", "i", "i4"),
    "INTEGER8": ("int64", "l", "i8"),
    "REAL2": ("float16", "e", "f2"),
    "REAL4": ("float32", "f", "f4"),
    "REAL8": ("float64", "d", "f8"),
    "COMPLEX8": ("complex64", "F", "c8"),
    "COMPLEX16": ("complex128", "D", "c16"),
}
_ALIASES = {
    "C_COMPLEX": "C_FLOAT_COMPLEX",
    "INT_INT": "TWOINT",
    "UNSIGNED_INT": "UNSIGNED",
    "SIGNED_SHORT": "SHORT",
    "SIGNED_INT": "INT",
    "SIGNED_LONG": "LONG",
    "SIGNED_LONG_LONG": "LONG_LONG",
    "BOOL": "C_BOOL",
    "SINT8_T": "INT8_T",
    "SINT16_T": "INT16_T",
    "SINT32_T": "INT32_T",
    "SINT64_T": "INT64_T",
    "F_BOOL": "LOGICAL",
    "F_INT": "INTEGER",
    "F_FLOAT": "REAL",
    "F_DOUBLE": "DOUBLE_PRECISION",
    "F_COMPLEX": "COMPLEX",
    "F_FLOAT_COMPLEX": "COMPLEX",
    "F_DOUBLE_COMPLEX": "DOUBLE_COMPLEX",
}
#: Named in the standard, but without a hardware or NumPy type here. Using one as the type of a message raises.
_NULL_HERE = ["LOGICAL16", "INTEGER16", "REAL16", "COMPLEX4", "COMPLEX32", "BFLOAT16_T"]
_SPELLED = {"LONG_LONG": "MPI_LONG_LONG_INT", "TWOINT": "MPI_2INT", "C_FLOAT_COMPLEX": "MPI_C_FLOAT_COMPLEX"}
#: Bytes of data (without padding) of the pairs, and the offset of their second member.
_PAIRS = {
    "short_int": (2, 4),
    "2int": (4, 4),
    "long_int": (8, 8),
    "float_int": (4, 4),
    "double_int": (8, 8),
    "long_double_int": (16, 16),
}


class Layout:
    """Position of the bytes of one item: its runs in the order of transfer, and its bounds.

    Attributes
    ----------
    starts, lengths : ndarray of int64, shape (runs,)
        Bytes, relative to the buffer.
    elements : ndarray of int64, shape (runs, )
        Size in bytes of one basic element in each run, for counting elements.
    lower, extent : int
        Lower bound and distance to the next item, in bytes.
    """

    __slots__ = ("_given", "_index", "elements", "extent", "lengths", "lower", "size", "starts")
    starts: Offsets
    lengths: Offsets
    elements: Offsets
    size: int

    def __init__(self, starts: Any, lengths: Any, elements: Any, lower: int, extent: int) -> None:
        self._given = starts, lengths, elements
        self.lower, self.extent = int(lower), int(extent)
        self._index: tuple[int, Offsets] | None = None

    def __getattr__(self, name: str) -> Any:
        # The arrays are made on first use, so that predefined datatypes need no NumPy.
        if name not in ("starts", "lengths", "elements", "size"):
            raise AttributeError(name)
        self.starts, self.lengths, self.elements = (np.asarray(runs, np.int64) for runs in self._given)
        self.size = int(self.lengths.sum())
        return getattr(self, name)

    @property
    def true_lower(self) -> int:
        return int(self.starts.min()) if self.starts.size else 0

    @property
    def true_upper(self) -> int:
        return int((self.starts + self.lengths).max()) if self.starts.size else 0

    @property
    def is_contiguous(self) -> bool:
        """True if consecutive items are plain bytes from the start of the buffer."""
        if not self.starts.size:
            return self.extent == 0
        ends = self.starts + self.lengths
        in_order = bool((self.starts[1:] == ends[:-1]).all())
        return in_order and self.starts[0] == 0 and self.size == self.extent

    def placed(self, displacements: Any, counts: Any) -> tuple[Offsets, Offsets, Offsets]:
        """Return the runs of `counts[i]` items at each of `displacements[i]` (bytes), with adjacent runs merged."""
        counts = np.asarray(counts, np.int64)
        if self.is_contiguous and self.starts.size and (self.elements == self.elements[0]).all():
            # One run per block, of any length.
            places = np.asarray(displacements, np.int64)
            return merged(places, counts * self.extent, np.full(places.size, self.elements[0]))
        displacements = np.repeat(np.asarray(displacements, np.int64), counts)
        within = np.concatenate([np.arange(n) for n in counts]) if counts.size else np.zeros(0, np.int64)
        bases = displacements + within * self.extent
        starts = (bases[:, None] + self.starts[None, :]).ravel()
        lengths = np.tile(self.lengths, bases.size)
        elements = np.tile(self.elements, bases.size)
        return merged(starts, lengths, elements)

    def index(self) -> tuple[int, Offsets]:
        """Return the unit in bytes and, in units, the position of every unit of one item in the order of transfer."""
        if self._index is None:
            unit = math.gcd(8, self.extent, *map(int, np.unique(self.starts)), *map(int, np.unique(self.lengths)))
            parts = [np.arange(s, s + n) for s, n in zip(self.starts // unit, self.lengths // unit, strict=True)]
            self._index = unit, (np.concatenate(parts) if parts else np.zeros(0, np.int64))
        return self._index

    def units(self, buffer: Bytes, count: int) -> tuple[NDArray[Any], Offsets]:
        """Return the buffer as units, and the indices of those that `count` items cover."""
        if self.true_lower < 0:
            raise fail("ERR_TYPE", "datatypes that reach below the start of the buffer are not supported")
        unit, index = self.index()
        whole = buffer[: buffer.size // unit * unit].view(f"V{unit}")
        items = np.arange(count, dtype=np.int64) * (self.extent // unit)
        return whole, (items[:, None] + index[None, :]).ravel()

    def pack(self, buffer: Bytes, count: int) -> Bytes:
        """Return `count` items of `buffer` as plain bytes, shape (count * size,)."""
        whole, index = self.units(buffer, count)
        return whole[index].view(np.uint8)

    def unpack(self, packed: Bytes, buffer: Bytes, count: int) -> None:
        """Reverse `pack`; if `packed` holds fewer bytes than all items, the rest stays unchanged."""
        whole, index = self.units(buffer, count)
        unit = whole.dtype.itemsize
        filled = packed.size // unit
        whole[index[:filled]] = packed[: filled * unit].view(whole.dtype)


def merged(starts: Offsets, lengths: Offsets, elements: Offsets) -> tuple[Offsets, Offsets, Offsets]:
    """Return the same runs with adjacent ones merged and empty ones dropped."""
    keep = lengths > 0
    starts, lengths, elements = starts[keep], lengths[keep], elements[keep]
    if starts.size < 2:
        return starts, lengths, elements
    new = np.ones(starts.size, bool)
    new[1:] = (starts[1:] != starts[:-1] + lengths[:-1]) | (elements[1:] != elements[:-1])
    first = np.flatnonzero(new)
    return starts[first], np.add.reduceat(lengths, first), elements[first]


class Datatype(_tidemill.Datatype, Attributes["Datatype"]):
    """The type of a message's elements. ``MPI.DOUBLE`` and others are predefined; ``Create_*`` derive new ones.

    Derived datatypes work in point-to-point calls and in every collective that moves data. Reductions accept them with
    a user-defined operation.
    """

    _kind = "datatype"
    _layout: Layout | None
    _token: object | None
    _code: str | None = None
    _typestr: str | None = None
    #: Identified by size: ``INT32_T``, not ``INT``.
    _sized = False
    _combiner = c.COMBINER_NAMED
    _contents: tuple[list[int], list[int], list[int], list[Datatype]] = ([], [], [], [])

    def __new__(cls, datatype: Datatype | None = None) -> Datatype:
        if not isinstance(datatype, Datatype | None):
            raise TypeError(f"expecting a Datatype, not {type(datatype).__name__}")
        self = super().__new__(cls, datatype._element if datatype is not None else None)
        if datatype is None:
            self._layout = self._token = None
            self._name = "MPI_DATATYPE_NULL"
            self._attributes = {}
        else:
            self.__dict__.update(datatype.__dict__)
        return self

    @classmethod
    def _derive(
        cls, layout: Layout, combiner: int, contents: tuple[list[int], list[int], list[int], list[Datatype]]
    ) -> Any:
        self = super().__new__(cls, None)
        self._layout, self._token, self._name, self._attributes = layout, object(), "", {}
        self._combiner, self._contents = combiner, contents
        return self

    @classmethod
    def _basic(cls, name: str) -> Datatype:
        element, code, typestr = _PREDEFINED[name]
        self = super().__new__(cls, element)
        extent, pair = self._element_bytes, _PAIRS.get(element)
        if pair is None:
            self._layout = Layout([0], [extent], [extent], 0, extent)
        else:
            self._layout = Layout([0, pair[1]], [pair[0], 4], [pair[0], 4], 0, extent)
        self._token, self._name, self._attributes = object(), _SPELLED.get(name, "MPI_" + name), {}
        self._predefined_name, self._code, self._typestr, self._sized = name, code, typestr, name.endswith("_T")
        return self

    def _identity(self) -> object:
        return self._token

    def __reduce_ex__(self, protocol: Any) -> Any:
        if self._token is None or self._predefined_name is not None:
            return super().__reduce_ex__(protocol)
        base, combiner, arguments = self.decode()
        return _remade, (type(self), combiner, base, arguments, self._name)

    def _check_usable(self) -> None:
        if self._layout is None:
            raise fail("ERR_TYPE", "the datatype is DATATYPE_NULL (or was freed)")

    def _laid(self) -> Layout:
        if self._layout is None:
            raise fail("ERR_TYPE", "the datatype is DATATYPE_NULL (or was freed)")
        return self._layout

    def free(self) -> None:
        """Free the datatype unless it is null or predefined."""
        if self and not self.is_predefined:
            self.Free()
        elif not self._is_constant():
            self._layout = self._token = None

    def Free(self) -> None:
        """Set this handle to ``MPI.DATATYPE_NULL``. Messages in transit are not affected."""
        self._check_usable()
        if self.is_predefined:
            raise fail("ERR_TYPE", f"{self._name} is predefined and cannot be freed")
        self._delete_attributes()
        self._layout = self._token = None

    def Commit(self) -> Any:
        """Make the datatype ready for messages, which every datatype already is. Returns the datatype."""
        self._check_usable()
        return self

    def Get_size(self) -> int:
        """Return the bytes of data in one item."""
        return self._laid().size

    def Get_extent(self) -> tuple[int, int]:
        """Return the lower bound and the distance from one item to the next, in bytes."""
        layout = self._laid()
        return layout.lower, layout.extent

    def Get_true_extent(self) -> tuple[int, int]:
        """Return the lower bound and the width of the data itself, in bytes."""
        layout = self._laid()
        return layout.true_lower, layout.true_upper - layout.true_lower

    size = property(Get_size, doc="Bytes of data in one item.")
    extent = property(lambda self: self.Get_extent()[1], doc="Distance from one item to the next, in bytes.")
    lb = property(lambda self: self.Get_extent()[0], doc="Lower bound, in bytes.")
    ub = property(lambda self: sum(self.Get_extent()), doc="Upper bound, in bytes.")
    true_extent = property(lambda self: self.Get_true_extent()[1], doc="Width of the data, in bytes.")
    true_lb = property(lambda self: self.Get_true_extent()[0], doc="Where the data begins, in bytes.")
    true_ub = property(lambda self: sum(self.Get_true_extent()), doc="Where the data ends, in bytes.")

    def Get_name(self) -> str:
        """Return the name: ``"MPI_DOUBLE"`` for ``MPI.DOUBLE``."""
        return self._name

    def Set_name(self, name: str) -> None:
        """Set the name."""
        self._check_usable()
        self._name = name

    name = property(Get_name, Set_name, doc="The name of the datatype.")

    @property
    def is_predefined(self) -> bool:
        """True if the datatype is predefined by MPI."""
        return self._token is None or self._predefined_name is not None or self._combiner in _F90

    @property
    def is_named(self) -> bool:
        """True if the datatype is predefined by MPI."""
        self._check_usable()
        return self._combiner == c.COMBINER_NAMED

    # The way it was created.

    def Get_envelope(self) -> tuple[int, int, int, int, int]:
        """Return the numbers of integers, addresses, counts and datatypes it was created from, and how
        (``MPI.COMBINER_*``).
        """
        self._check_usable()
        integers, addresses, counts, datatypes = self._contents
        return len(integers), len(addresses), len(counts), len(datatypes), self._combiner

    def Get_contents(self) -> tuple[list[int], list[int], list[int], list[Datatype]]:
        """Return the integers, addresses, counts and datatypes it was created from; the caller may free the datatypes."""
        if self.is_named:
            raise fail("ERR_TYPE", "a predefined datatype has no contents")
        integers, addresses, counts, datatypes = self._contents
        return [*integers], [*addresses], [*counts], [d if d.is_predefined else Datatype(d) for d in datatypes]

    envelope = property(Get_envelope, doc="See `Get_envelope`.")
    contents = property(Get_contents, doc="See `Get_contents`.")

    @property
    def combiner(self) -> int:
        """The way it was created, one of ``MPI.COMBINER_*``."""
        return self.Get_envelope()[-1]

    def decode(self) -> tuple[Datatype, str, dict[str, Any]]:
        """Return the datatype it was created from, how, and the arguments by name."""
        return _decode(self)

    # New datatypes.

    def _made(
        self,
        combiner: int,
        displacements: Any,
        counts: Any,
        integers: list[int],
        addresses: list[int] | None = None,
        *,
        bounds: tuple[int, int] | None = None,
    ) -> Any:
        """Return `counts[i]` items at each of `displacements[i]` bytes; bounds from the items unless given."""
        layout = self._laid()
        displacements, counts = np.asarray(displacements, np.int64), np.asarray(counts, np.int64)
        if displacements.size != counts.size:
            raise ValueError(f"{counts.size} block lengths but {displacements.size} displacements")
        if (counts < 0).any():
            raise fail("ERR_COUNT", "negative count in a datatype")
        starts, lengths, elements = layout.placed(displacements, counts)
        if bounds is None:
            filled = counts > 0
            lowers = displacements[filled] + layout.lower
            uppers = displacements[filled] + layout.lower + counts[filled] * layout.extent
            lower = int(lowers.min()) if lowers.size else 0
            bounds = lower, (int(uppers.max()) if uppers.size else 0) - lower
        result = type(self)._derive(
            Layout(starts, lengths, elements, *bounds), combiner, (integers, addresses or [], [], [Datatype(self)])
        )
        return result

    def Dup(self) -> Any:
        """Return an independent copy."""
        self._check_usable()
        result = type(self)._derive(self._laid(), c.COMBINER_DUP, ([], [], [], [Datatype(self)]))
        result._code, result._typestr, result._sized = self._code, self._typestr, self._sized
        self._copy_attributes(result)
        return result

    def Create_dup(self) -> Any:
        """Same as `Dup`."""
        return self.Dup()

    def Create_contiguous(self, count: int) -> Any:
        """Return a datatype of `count` consecutive items."""
        return self._made(c.COMBINER_CONTIGUOUS, [0], [count], [count])

    def Create_vector(self, count: int, blocklength: int, stride: int) -> Any:
        """Return a datatype of `count` blocks of `blocklength` items, `stride` items from one block to the next."""
        return self._strided(c.COMBINER_VECTOR, count, blocklength, stride, stride * self._laid().extent)

    def Create_hvector(self, count: int, blocklength: int, stride: int) -> Any:
        """Return a datatype of `count` blocks of `blocklength` items, `stride` bytes from one block to the next."""
        return self._strided(c.COMBINER_HVECTOR, count, blocklength, stride, stride)

    def _strided(self, combiner: int, count: int, blocklength: int, stride: int, step_bytes: int) -> Any:
        if count < 0 or blocklength < 0:
            raise fail("ERR_COUNT", "negative count in a datatype")
        places = np.arange(count, dtype=np.int64) * step_bytes
        if combiner == c.COMBINER_VECTOR:
            return self._made(combiner, places, [blocklength] * count, [count, blocklength, stride])
        return self._made(combiner, places, [blocklength] * count, [count, blocklength], [stride])

    def Create_indexed(self, blocklengths: Sequence[int], displacements: Sequence[int]) -> Any:
        """Return a datatype of blocks of `blocklengths[i]` items at `displacements[i]` items."""
        places = np.asarray(displacements, np.int64) * self._laid().extent
        integers = [len(blocklengths), *blocklengths, *displacements]
        return self._made(c.COMBINER_INDEXED, places, blocklengths, integers)

    def Create_hindexed(self, blocklengths: Sequence[int], displacements: Sequence[int]) -> Any:
        """Return a datatype of blocks of `blocklengths[i]` items at `displacements[i]` bytes."""
        integers = [len(blocklengths), *blocklengths]
        return self._made(c.COMBINER_HINDEXED, displacements, blocklengths, integers, list(displacements))

    def Create_indexed_block(self, blocklength: int, displacements: Sequence[int]) -> Any:
        """Return a datatype of blocks of `blocklength` items at `displacements[i]` items."""
        places = np.asarray(displacements, np.int64) * self._laid().extent
        integers = [len(displacements), blocklength, *displacements]
        return self._made(c.COMBINER_INDEXED_BLOCK, places, [blocklength] * len(displacements), integers)

    def Create_hindexed_block(self, blocklength: int, displacements: Sequence[int]) -> Any:
        """Return a datatype of blocks of `blocklength` items at `displacements[i]` bytes."""
        integers, addresses = [len(displacements), blocklength], list(displacements)
        return self._made(c.COMBINER_HINDEXED_BLOCK, displacements, [blocklength] * len(addresses), integers, addresses)

    @classmethod
    def Create_struct(
        cls, blocklengths: Sequence[int], displacements: Sequence[int], datatypes: Sequence[Datatype]
    ) -> Any:
        """Return a datatype of `blocklengths[i]` items of `datatypes[i]` at `displacements[i]` bytes: a C struct,
        without the padding at its end (add it with `Create_resized`).
        """
        if not len(blocklengths) == len(displacements) == len(datatypes):
            raise ValueError("block lengths, displacements and datatypes must be equally many")
        parts, lowers, uppers = [], [], []
        for count, place, datatype in zip(blocklengths, displacements, datatypes, strict=True):
            layout = datatype._laid()
            if count < 0:
                raise fail("ERR_COUNT", "negative count in a datatype")
            parts.append(layout.placed([place], [count]))
            if count:
                lowers.append(place + layout.lower)
                uppers.append(place + layout.lower + count * layout.extent)
        runs = [np.concatenate(r) for r in zip(*parts, strict=True)] if parts else [np.zeros(0, np.int64)] * 3
        lower = min(lowers, default=0)
        layout = Layout(*merged(*runs), lower, max(uppers, default=0) - lower)
        contents = (
            [len(blocklengths), *blocklengths],
            list(displacements),
            list[int](),
            [Datatype(d) for d in datatypes],
        )
        return cls._derive(layout, c.COMBINER_STRUCT, contents)

    def Create_subarray(
        self, sizes: Sequence[int], subsizes: Sequence[int], starts: Sequence[int], order: int = c.ORDER_C
    ) -> Any:
        """Return a datatype of a box of `subsizes` items at `starts` in an array of `sizes` items; its extent is that
        of the whole array.
        """
        ndims = len(sizes)
        if not ndims or len(subsizes) != ndims or len(starts) != ndims:
            raise fail("ERR_ARG", "sizes, subsizes and starts must be equally many, and some")
        if any(not (a >= 0 and b >= 1 and a + b <= n) for n, b, a in zip(sizes, subsizes, starts, strict=True)):
            raise fail("ERR_ARG", f"a box of {list(subsizes)} at {list(starts)} does not lie in {list(sizes)}")
        items = np.arange(math.prod(sizes), dtype=np.int64).reshape(sizes, order="C" if order == c.ORDER_C else "F")
        box = items[tuple(slice(a, a + n) for a, n in zip(starts, subsizes, strict=True))]
        extent = self._laid().extent
        # Whole lines of the fastest dimension at a time.
        lines = (box if order == c.ORDER_C else box.T).reshape(-1, subsizes[-1 if order == c.ORDER_C else 0])
        integers = [ndims, *sizes, *subsizes, *starts, order]
        return self._made(
            c.COMBINER_SUBARRAY,
            lines[:, 0] * extent,
            [lines.shape[1]] * len(lines),
            integers,
            bounds=(0, math.prod(sizes) * extent),
        )

    def Create_darray(self, *args: Any, **kwargs: Any) -> Any:
        """Not available: describe the part with `Create_subarray` or `Create_indexed`."""
        raise UnsupportedError("Tidemill has no Datatype.Create_darray; use Create_subarray or Create_indexed")

    def Create_resized(self, lb: int, extent: int) -> Any:
        """Return a datatype of the same data with another lower bound and extent, in bytes."""
        layout = self._laid()
        resized = Layout(layout.starts, layout.lengths, layout.elements, lb, extent)
        return type(self)._derive(resized, c.COMBINER_RESIZED, ([], [lb, extent], [], [Datatype(self)]))

    def Resized(self, lb: int, extent: int) -> Any:
        """Same as `Create_resized`."""
        return self.Create_resized(lb, extent)

    @classmethod
    def Get_value_index(cls, value: Datatype, index: Datatype) -> Datatype:
        """Return the pair datatype of `MPI.MINLOC` with these members, or ``DATATYPE_NULL``."""
        value._check_usable()
        index._check_usable()
        for pair, member in (
            ("SHORT_INT", "SHORT"),
            ("TWOINT", "INT"),
            ("LONG_INT", "LONG"),
            ("FLOAT_INT", "FLOAT"),
            ("DOUBLE_INT", "DOUBLE"),
            ("LONG_DOUBLE_INT", "LONG_DOUBLE"),
        ):
            if value == predefined[member] and index == predefined["INT"]:
                return predefined[pair]
        return cls()

    @classmethod
    def Match_size(cls, typeclass: int, size: int) -> Datatype:
        """Return the predefined datatype of a class (``MPI.TYPECLASS_*``) with `size` bytes."""
        names = {
            c.TYPECLASS_INTEGER: {1: "INTEGER1", 2: "INTEGER2", 4: "INTEGER4", 8: "INTEGER8"},
            c.TYPECLASS_REAL: {2: "REAL2", 4: "REAL4", 8: "REAL8"},
            c.TYPECLASS_COMPLEX: {8: "COMPLEX8", 16: "COMPLEX16"},
            c.TYPECLASS_LOGICAL: {1: "LOGICAL1", 2: "LOGICAL2", 4: "LOGICAL4", 8: "LOGICAL8"},
        }
        name = names.get(typeclass, {}).get(size)
        if name is None:
            raise fail("ERR_ARG", f"no predefined datatype of this class has {size} bytes")
        return predefined[name]

    @classmethod
    def Create_f90_integer(cls, r: int) -> Datatype:
        """Return the integer datatype with `r` decimal digits: predefined, and the same for the same digits."""
        bits = next((bits for bits in (8, 16, 32, 64) if 10**r <= 2 ** (bits - 1)), None)
        if bits is None:
            raise fail("ERR_ARG", f"no integer datatype has {r} decimal digits")
        return _f90(c.COMBINER_F90_INTEGER, f"INTEGER{bits // 8}", (r,))

    @classmethod
    def Create_f90_real(cls, p: int, r: int) -> Datatype:
        """Return the real datatype with `p` decimal digits and decimal exponents up to `r`."""
        return _f90(c.COMBINER_F90_REAL, f"REAL{_float_bytes(p, r)}", (p, r))

    @classmethod
    def Create_f90_complex(cls, p: int, r: int) -> Datatype:
        """Return the complex datatype with `p` decimal digits and decimal exponents up to `r`."""
        return _f90(c.COMBINER_F90_COMPLEX, f"COMPLEX{2 * _float_bytes(p, r)}", (p, r))

    # Characters.

    @property
    def typechar(self) -> str:
        """Its character in `numpy.dtype.char`; ``"V"`` if there is none."""
        self._check_usable()
        return self._code or "V"

    @property
    def typestr(self) -> str:
        """Kind and size in bytes, as in NumPy's array interface without the byte order."""
        self._check_usable()
        return self._typestr or f"V{self.Get_extent()[1]}"

    def tocode(self) -> str:
        """Return the character of this datatype, as in ``[buffer, "d"]``.

        Raises
        ------
        ValueError
            If it has none.
        """
        if self._layout is None or self._code is None:
            raise ValueError("cannot map to character code or type string")
        return self._typestr if self._sized and self._typestr else self._code

    @classmethod
    def fromcode(cls, code: str) -> Datatype:
        """Return the datatype of a character or type string such as ``"d"`` or ``"f8"``.

        Raises
        ------
        ValueError
            If there is none.
        """
        try:
            return by_code[code]
        except KeyError:
            raise ValueError(f"cannot map {code!r} to an MPI datatype") from None

    # Manual packing.

    def Pack(self, inbuf: Any, outbuf: Any, position: int, comm: Any) -> int:
        """Append all items of `inbuf` to the bytes of `outbuf` at `position`; return the position after them."""
        from tidemill.mpi._buffers import bytes_of

        layout = self._laid()
        source, target = bytes_of(inbuf, writable=False), bytes_of(outbuf, writable=True)
        packed = layout.pack(source, items_in(layout, source.size))
        if position < 0 or position + packed.size > target.size:
            raise fail("ERR_TRUNCATE", f"{packed.size} bytes do not fit at {position} of {target.size}")
        target[position : position + packed.size] = packed
        return int(position + packed.size)

    def Unpack(self, inbuf: Any, position: int, outbuf: Any, comm: Any) -> int:
        """Fill `outbuf` with items from the bytes of `inbuf` at `position`; return the position after them."""
        from tidemill.mpi._buffers import bytes_of

        layout = self._laid()
        source, target = bytes_of(inbuf, writable=False), bytes_of(outbuf, writable=True)
        count = items_in(layout, target.size)
        end = position + count * layout.size
        if position < 0 or end > source.size:
            raise fail("ERR_TRUNCATE", f"{count} items need the bytes up to {end}, but there are only {source.size}")
        layout.unpack(source[position:end].copy(), target, count)
        return int(end)

    def Pack_size(self, count: int, comm: Any) -> int:
        """Return the number of bytes of `count` packed items."""
        return count * self._laid().size

    def Pack_external(self, datarep: str, inbuf: Any, outbuf: Any, position: int) -> int:
        """Not available: the portable representation ``external32`` is not supported."""
        raise UnsupportedError("Tidemill has no Datatype.Pack_external (the external32 representation); use Pack")

    def Unpack_external(self, datarep: str, inbuf: Any, position: int, outbuf: Any) -> int:
        """Not available: the portable representation ``external32`` is not supported."""
        raise UnsupportedError("Tidemill has no Datatype.Unpack_external (the external32 representation); use Unpack")

    def Pack_external_size(self, datarep: str, count: int) -> int:
        """Not available: the portable representation ``external32`` is not supported."""
        raise UnsupportedError("Tidemill has no Datatype.Pack_external_size (external32); use Pack_size")


def _float_bytes(digits: int, exponent: int) -> int:
    for nbytes, digits_max, exponent_max in ((4, 6, 37), (8, 15, 307)):
        if digits <= digits_max and exponent <= exponent_max:
            return nbytes
    raise fail("ERR_ARG", f"no datatype has {digits} decimal digits and exponents up to {exponent}")


_F90 = (c.COMBINER_F90_INTEGER, c.COMBINER_F90_REAL, c.COMBINER_F90_COMPLEX)
_f90_made: dict[tuple[int, tuple[int, ...]], Datatype] = {}


def _f90(combiner: int, name: str, digits: tuple[int, ...]) -> Datatype:
    """Return a datatype chosen by digits: a separate handle, predefined but without a name. Source: MPI 4.1 section
    19.1.5.
    """
    made = _f90_made.get((combiner, digits))
    if made is None:
        made = _f90_made[combiner, digits] = Datatype(predefined[name])
        made._predefined_name, made._name, made._token, made._attributes = None, "", object(), {}
        made._combiner, made._contents = combiner, ([*digits], [], [], [])
    return made


def items_in(layout: Layout, nbytes: int) -> int:
    """Return the number of whole items in a buffer of `nbytes`; the last one may lack its trailing padding."""
    if layout.extent <= 0:
        return 0
    count = nbytes // layout.extent
    return count + (nbytes - count * layout.extent >= layout.true_upper > 0)


def elements_in(datatype: Datatype, nbytes: int) -> int | None:
    """Return the number of basic elements in the first `nbytes` transferred bytes; ``None`` if they end within an
    element.
    """
    layout = datatype._laid()
    if layout.size == 0:
        return 0
    items, rest = divmod(nbytes, layout.size)
    per_item = int((layout.lengths // layout.elements).sum())
    total = items * per_item
    for length, element in zip(layout.lengths, layout.elements, strict=True):
        taken = min(rest, int(length))
        if taken % element:
            return None
        total += taken // int(element)
        rest -= taken
    return total


_NAMES = {getattr(c, name): name[len("COMBINER_") :] for name in dir(c) if name.startswith("COMBINER_")}


def _decode(datatype: Datatype) -> tuple[Datatype, str, dict[str, Any]]:
    if datatype.is_named:
        return datatype, "NAMED", {}
    integers, addresses, _, datatypes = datatype.Get_contents()
    combiner = datatype.combiner
    base = datatypes[0] if datatypes else datatype
    n = integers[0] if integers else 0
    arguments: dict[str, Any] = {}
    if combiner == c.COMBINER_CONTIGUOUS:
        arguments = {"count": n}
    elif combiner in (c.COMBINER_VECTOR, c.COMBINER_HVECTOR):
        arguments = {"count": n, "blocklength": integers[1], "stride": (integers[2:] + addresses)[0]}
    elif combiner in (c.COMBINER_INDEXED, c.COMBINER_HINDEXED):
        arguments = {"blocklengths": integers[1 : n + 1], "displacements": integers[n + 1 :] + addresses}
    elif combiner in (c.COMBINER_INDEXED_BLOCK, c.COMBINER_HINDEXED_BLOCK):
        arguments = {"blocklength": integers[1], "displacements": integers[2:] + addresses}
    elif combiner == c.COMBINER_STRUCT:
        arguments = {"blocklengths": integers[1:], "displacements": addresses, "datatypes": datatypes}
        base = DATATYPE_NULL
    elif combiner == c.COMBINER_SUBARRAY:
        sizes, subsizes, starts = (integers[1 + k * n : 1 + (k + 1) * n] for k in range(3))
        arguments = {"sizes": sizes, "subsizes": subsizes, "starts": starts, "order": integers[-1]}
    elif combiner in _F90:
        base = DATATYPE_NULL
        arguments = dict(zip(("r",) if len(integers) == 1 else ("p", "r"), integers, strict=True))
    elif combiner == c.COMBINER_RESIZED:
        arguments = {"lb": addresses[0], "extent": addresses[1]}
    return base, _NAMES[combiner], arguments


def _remade(kind: type[Datatype], combiner: str, base: Datatype, arguments: dict[str, Any], name: str) -> Any:
    """Restore a derived datatype after pickling."""
    if combiner == "STRUCT":
        made = kind.Create_struct(**arguments)
    elif combiner == "DUP":
        made = base.Dup()
    else:
        made = getattr(base, f"Create_{combiner.lower()}")(**arguments)
    made._name = name
    return made


DATATYPE_NULL = Datatype()
DATATYPE_NULL._predefined_name = "DATATYPE_NULL"
#: All predefined datatypes by their names in this package.
predefined: dict[str, Datatype] = {name: Datatype._basic(name) for name in _PREDEFINED}
predefined.update({alias: predefined[name] for alias, name in _ALIASES.items()})
predefined.update(dict.fromkeys(_NULL_HERE, DATATYPE_NULL))

#: Datatypes by type character, type string and buffer format.
by_code: dict[str, Datatype] = {
    "c": predefined["CHAR"],
    "S": predefined["CHAR"],
    "S1": predefined["CHAR"],
    "s": predefined["CHAR"],
    "B": predefined["BYTE"],
    "u1": predefined["UINT8_T"],
    "b": predefined["SIGNED_CHAR"],
    "U": predefined["WCHAR"],
    "U1": predefined["WCHAR"],
    "u": predefined["WCHAR"],
    "w": predefined["WCHAR"],
    "?": predefined["C_BOOL"],
    "b1": predefined["C_BOOL"],
    "h": predefined["SHORT"],
    "i": predefined["INT"],
    "l": predefined["LONG"],
    "q": predefined["LONG_LONG"],
    "n": predefined["AINT"],
    "p": predefined["AINT"],
    "H": predefined["UNSIGNED_SHORT"],
    "I": predefined["UNSIGNED"],
    "L": predefined["UNSIGNED_LONG"],
    "Q": predefined["UNSIGNED_LONG_LONG"],
    "N": predefined["COUNT"],
    "P": predefined["AINT"],
    "e": predefined["FLOAT16_T"],
    "f": predefined["FLOAT"],
    "d": predefined["DOUBLE"],
    "g": predefined["LONG_DOUBLE"],
    "F": predefined["C_FLOAT_COMPLEX"],
    "D": predefined["C_DOUBLE_COMPLEX"],
    "G": predefined["C_LONG_DOUBLE_COMPLEX"],
    "Zf": predefined["C_FLOAT_COMPLEX"],
    "Zd": predefined["C_DOUBLE_COMPLEX"],
    "Zg": predefined["C_LONG_DOUBLE_COMPLEX"],
    "i1": predefined["INT8_T"],
    "i2": predefined["INT16_T"],
    "i4": predefined["INT32_T"],
    "i8": predefined["INT64_T"],
    "u2": predefined["UINT16_T"],
    "u4": predefined["UINT32_T"],
    "u8": predefined["UINT64_T"],
    "f2": predefined["FLOAT16_T"],
    "f4": predefined["FLOAT"],
    "f8": predefined["DOUBLE"],
    "f16": predefined["LONG_DOUBLE"],
    "c8": predefined["C_FLOAT_COMPLEX"],
    "c16": predefined["C_DOUBLE_COMPLEX"],
    "c32": predefined["C_LONG_DOUBLE_COMPLEX"],
}
