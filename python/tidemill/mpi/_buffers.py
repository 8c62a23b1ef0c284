"""The slow path of messages: every buffer argument that is not a plain array.

Native code reads plain contiguous arrays, ``[array, MPI.DOUBLE]`` and ``[array, count, MPI.DOUBLE]`` by itself and
calls `resolve` for the rest: other objects with a buffer, counts with displacements, type characters, and derived
datatypes, whose items are packed into an array before sending and unpacked after receiving.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from tidemill._errors import UnsupportedError
from tidemill.mpi._datatype import Datatype, Layout, by_code, predefined
from tidemill.mpi._lazy import np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tidemill.mpi._datatype import Bytes

    Unpack = Callable[[int | None], None]
    #: Memory, count, native element type, function to call after receiving, and the caller's datatype.
    Resolved = tuple[Bytes, int, str, Unpack | None, Datatype | None]
    #: Memory, counts, displacements, native element type, function to call after receiving.
    ResolvedBlocks = tuple[Bytes, list[int], list[int], str, Unpack | None]


class _Constant:
    """A constant with its own type, equal only to itself, even after pickling."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __repr__(self) -> str:
        return f"<MPI.{self._name}>"

    def __bool__(self) -> bool:
        return False

    def __reduce__(self) -> Any:
        from tidemill.mpi._handle import _predefined

        return _predefined, (self._name,)


class InPlaceType(_Constant):
    """Type of ``MPI.IN_PLACE``, which replaces the send buffer of an in-place collective."""


class BottomType(_Constant):
    """Type of ``MPI.BOTTOM``, which stands for no memory."""

    def __int__(self) -> int:
        return 0

    __index__ = __int__


class BufferAutomaticType(_Constant):
    """Type of ``MPI.BUFFER_AUTOMATIC``: lets buffered sends allocate what they need, which they always do in Tidemill."""


IN_PLACE: Final = InPlaceType("IN_PLACE")
BUFFER_AUTOMATIC: Final = BufferAutomaticType("BUFFER_AUTOMATIC")
BOTTOM: Final = BottomType("BOTTOM")

_GPU = (
    "the buffer is in the memory of a {where}; Tidemill sends from and receives into the memory of the host: "
    "copy it there first"
)

_A_LIST = "a list being [buffer, count, datatype]"
_SMALL = "for Python objects use the lowercase calls, such as bcast for Bcast"


def _no_buffer(given: object) -> str:
    return f"message: expecting buffer or list/tuple, not {type(given).__name__}; {_SMALL}"


def bytes_of(buffer: Any, *, writable: bool) -> Bytes:
    """Return the memory of an object as a flat byte array that shares it.

    Raises
    ------
    TypeError
        If the object has no memory to share, or the memory is on a GPU.
    ValueError
        If the memory is not contiguous, or is read-only but must be written.
    BufferError
        In these cases, if the memory comes from DLPack.
    """
    return _memory(buffer, writable)[0]


def _memory(buffer: Any, writable: bool) -> tuple[Bytes, str | None]:
    """Return the bytes of a buffer, and the code of the datatype it implies (``None`` if none)."""
    array = _array_of(buffer)
    if array is None:
        raise TypeError(_no_buffer(buffer))
    if writable and not array.flags.writeable:
        raise _unusable(array, "message: the buffer is read-only, but the call receives into it")
    if array.flags.c_contiguous:
        flat = array.reshape(-1)
    elif array.flags.f_contiguous:
        flat = array.T.reshape(-1)
    else:
        raise _unusable(
            array,
            "message: the buffer is not contiguous; send a copy (numpy.ascontiguousarray) or use a vector datatype",
        )
    if array.dtype.hasobject:
        raise TypeError("message: an array of Python objects cannot be sent as a buffer; use the lowercase calls")
    code = array.dtype.char if array.dtype.isnative and array.dtype.fields is None else None
    # As a plain array, since a subclass may have other items, such as `MPI.buffer`.
    return flat.view(np.uint8, np.ndarray) if flat.size else _empty(), code


def _empty() -> Bytes:
    return np.zeros(0, np.uint8)


def _unusable(array: NDArray[Any], text: str) -> Exception:
    """Return the error for memory that cannot be sent as it is, as in mpi4py: NumPy's class, or DLPack's for its
    tensors.
    """
    from tidemill.mpi._dlpack import TensorMemory

    return BufferError(text) if isinstance(array.base, TensorMemory) else ValueError(text)


def _array_of(buffer: Any) -> NDArray[Any] | None:
    if isinstance(buffer, np.ndarray):
        return buffer
    if hasattr(buffer, "__cuda_array_interface__"):
        raise TypeError("message: " + _GPU.format(where="GPU (__cuda_array_interface__)"))
    try:
        view = memoryview(buffer)
    except TypeError:
        view = None
    if view is not None:
        if not view.contiguous:
            raise ValueError("message: the buffer is not contiguous; send a copy")
        try:
            return np.asarray(view)
        except (ValueError, TypeError):  # a format unknown to NumPy
            flat = np.frombuffer(view, np.uint8) if view.nbytes else _empty()
            return flat.view(f"V{view.itemsize}") if view.itemsize > 1 and view.nbytes else flat
    if hasattr(buffer, "__dlpack__"):
        from tidemill.mpi._dlpack import array_of_capsule

        device, number = map(operator.index, buffer.__dlpack_device__())
        if device not in (1, 3, 11):  # host memory, plain or also accessible to a GPU
            raise TypeError("message: " + _GPU.format(where=f"GPU (DLPack device type {device}, number {number})"))
        return array_of_capsule(buffer.__dlpack__())
    if hasattr(buffer, "__array_interface__"):
        return np.asarray(buffer)
    return None


def datatype_of(given: Any) -> Datatype:
    """Return a datatype, given as such or by its code.

    Raises
    ------
    KeyError
        If the datatype does not exist.
    """
    if isinstance(given, Datatype):
        return given
    try:
        return by_code[given]
    except (KeyError, TypeError):
        raise KeyError(f"cannot map {given!r} to MPI datatype") from None


class _Spec:
    """The parts of a message: buffer, counts, displacements, datatype; omitted ones are ``None``."""

    def __init__(self, spec: Any, *, vector: bool, writable: bool) -> None:
        counts: Any = None
        displacements: Any = None
        datatype: Any = None
        if isinstance(spec, (list, tuple)):
            pair = tuple if vector else (tuple, list)
            if len(spec) == 2:
                buffer, counts = spec
                if isinstance(counts, (Datatype, str)):
                    counts, datatype = None, counts
                elif isinstance(counts, pair):
                    counts, displacements = counts
            elif len(spec) == 3:
                buffer, counts, datatype = spec
                if isinstance(counts, pair):
                    counts, displacements = counts
            elif len(spec) == 4:
                buffer, counts, displacements, datatype = spec
            else:
                raise ValueError(f"message: expecting 2 to 4 items, {_A_LIST}; {_SMALL}")
            if isinstance(buffer, (int, float, str)):
                raise TypeError(f"message: expecting buffer or list/tuple, {_A_LIST}, not {spec!r}; {_SMALL}")
        else:
            buffer = spec
            if buffer is None or buffer is BOTTOM or isinstance(buffer, _Constant):
                raise TypeError(_no_buffer(buffer))
        self.counts, self.displacements = counts, displacements
        self.has_memory = not (buffer is None or buffer is BOTTOM)
        if self.has_memory:
            self.memory, code = _memory(buffer, writable)
        else:
            self.memory, code = _empty(), None
        if datatype is None and code is None and (not self.has_memory or not isinstance(buffer, (list, tuple))):
            dtype = getattr(buffer, "dtype", None)
            kind = getattr(dtype, "str", "this buffer")
            if isinstance(dtype, np.dtype) and dtype.fields is None and not dtype.isnative:
                raise BufferError(
                    f"message: the array's byte order ({kind!r}) is not this machine's; convert it with astype, or name "
                    "a datatype to send the bytes as they are: [buffer, datatype]"
                )
            raise KeyError(f"cannot map {kind!r} to MPI datatype; name one: [buffer, datatype]")
        self.datatype = datatype_of(code if datatype is None else datatype)
        if not self.datatype and (counts is None or displacements is not None):
            lacking = "infer the count" if counts is None else "place the message"
            raise ValueError(f"message: cannot {lacking}: the datatype is DATATYPE_NULL (or was freed)")
        self.layout: Layout = self.datatype._laid()

    def default_count(self) -> int:
        """Return the number of items in the memory, if no count is given."""
        return self._items_after(0)

    def _items_after(self, offset_bytes: int) -> int:
        length, extent = self.memory.size - offset_bytes, self.layout.extent
        if length <= 0:
            return 0
        if extent <= 0:
            raise ValueError(f"message: cannot infer count, datatype extent {extent}")
        if length % extent:
            raise ValueError(
                f"message: cannot infer count, buffer length {length} is not a multiple of datatype extent {extent}"
            )
        return length // extent

    def check(self, offset_bytes: int, count: int) -> None:
        """Check that `count` items from `offset_bytes` are within the memory."""
        if count == 0:
            return
        if not self.has_memory:
            raise ValueError(f"message: buffer is None but count is {count}")
        end = offset_bytes + (count - 1) * self.layout.extent + self.layout.true_upper
        if end > self.memory.size or offset_bytes < 0:
            raise ValueError(
                f"message: buffer too small for requested count: {count} items need {end} bytes, it has {self.memory.size}"
            )


def _element(datatype: Datatype) -> tuple[str, int]:
    """Return the element type of a contiguous datatype for native code, and the number of elements."""
    if datatype._element is not None:
        return datatype._element, 1
    layout = datatype._laid()
    base = _single_base(datatype)
    if base is not None and base._element is not None:
        return base._element, layout.size // max(base._element_bytes, 1)
    return "uint8", layout.size


def _single_base(datatype: Datatype) -> Datatype | None:
    """Return the predefined datatype that a derived one repeats, if it is only one."""
    if datatype.is_named:
        return datatype
    bases = {id(base): base for base in map(_single_base, datatype.Get_contents()[3])}
    if len(bases) != 1:
        return None
    base = next(iter(bases.values()))
    # A pair has padding that its packed form does not have.
    return base if base is None or base._laid().is_contiguous else None


def resolve(spec: Any, write: bool, update: bool, blocks: int) -> Resolved:
    """Return the memory of one message, or of `blocks` equal consecutive ones.

    Parameters
    ----------
    spec : buffer or sequence
        ``buffer``, ``[buffer, datatype]``, ``[buffer, count]``, ``[buffer, (count, displacement)]``, these followed by
        a datatype, or ``[buffer, count, displacement, datatype]``. The count is that of one block.
    write : bool
        Whether the call receives into the memory.
    update : bool
        Whether the call also reads the memory's current content.
    blocks : int
        Number of blocks of the call.
    """
    message = _Spec(spec, vector=False, writable=write)
    layout, datatype = message.layout, message.datatype
    offset = 0
    if message.displacements is not None:
        displacement = operator.index(message.displacements)
        if displacement < 0:
            raise ValueError(f"message: negative displacement {displacement}")
        offset = displacement * layout.extent
        if not 0 <= offset <= message.memory.size:
            raise ValueError(f"message: displacement {displacement} out of bounds")
    blocks = max(blocks, 1)
    if message.counts is None:
        total = message._items_after(offset)
        if total % blocks:
            raise ValueError(
                f"message: cannot infer count, number of entries {total} is not a multiple of required number of "
                f"blocks {blocks}"
            )
        count = total // blocks
    else:
        count = operator.index(message.counts)
        if count < 0:
            raise ValueError(f"message: negative count {count}")
    message.check(offset, count * blocks)
    memory = message.memory[offset:]
    if datatype._element is not None:
        return memory, count, datatype._element, None, datatype
    element, each = _element(datatype)
    if layout.is_contiguous:
        return memory, count * each, element, None, datatype
    packed = (
        layout.pack(memory, count * blocks) if update or not write else np.zeros(count * blocks * layout.size, "u1")
    )
    return packed, count * each, element, _unpacker(layout, packed, memory, count * blocks) if write else None, datatype


def _unpacker(layout: Layout, packed: Bytes, memory: Bytes, count: int) -> Unpack:
    def unpack(nbytes: int | None) -> None:
        layout.unpack(packed if nbytes is None else packed[:nbytes], memory, count)

    return unpack


def _integers(values: Any, size: int) -> list[int]:
    integers = [operator.index(value) for value in values]
    if len(integers) != size:
        raise ValueError(f"expecting {size} items, got {len(integers)}")
    if any(value < 0 for value in integers):
        raise ValueError("message: negative count or displacement")
    return integers


def _is_integer(value: Any) -> bool:
    try:
        operator.index(value)
    except TypeError:
        return False
    return True


def resolve_blocks(spec: Any, write: bool, update: bool, size: int) -> ResolvedBlocks:
    """Return the memory of one block for each of `size` ranks.

    Parameters
    ----------
    spec : buffer or sequence
        ``[buffer, counts]``, ``[buffer, (counts, displacements)]``, these followed by a datatype, or ``[buffer, counts,
        displacements, datatype]``. A single number as counts applies to every rank; without counts the memory is split
        evenly, and the first ranks get the remainder. Without displacements the blocks are consecutive.
    """
    message = _Spec(spec, vector=True, writable=write)
    layout = message.layout
    if message.counts is None:
        each, more = divmod(message.default_count(), size)
        counts = [each + (rank < more) for rank in range(size)]
    elif _is_integer(message.counts):
        counts = [operator.index(message.counts)] * size
    else:
        counts = _integers(message.counts, size)
    if message.displacements is None:
        displacements = [sum(counts[:rank]) for rank in range(size)] if size < 64 else _starts(counts)
    elif _is_integer(message.displacements):
        displacements = [operator.index(message.displacements) * rank for rank in range(size)]
    else:
        displacements = _integers(message.displacements, size)
    for count, displacement in zip(counts, displacements, strict=True):
        message.check(displacement * layout.extent, count)
    element, each = _element(message.datatype)
    if message.datatype._element is not None or layout.is_contiguous:
        return message.memory, [n * each for n in counts], [n * each for n in displacements], element, None
    parts = [
        _Part(layout, message.memory[displacement * layout.extent :], count)
        for count, displacement in zip(counts, displacements, strict=True)
    ]
    return _packed_blocks(parts, write, update, element, each)


def _starts(counts: list[int]) -> list[int]:
    return np.concatenate([[0], np.cumsum(counts)[:-1]]).astype(int).tolist()  # type: ignore[no-any-return]


class _Part:
    """The first `count` items of a layout in `memory`."""

    def __init__(self, layout: Layout, memory: Bytes, count: int) -> None:
        self.layout, self.memory, self.count = layout, memory, count

    @property
    def nbytes(self) -> int:
        return self.count * self.layout.size


def _packed_blocks(parts: Sequence[_Part], write: bool, update: bool, element: str, each: int) -> ResolvedBlocks:
    """Consecutive blocks in separate memory."""
    starts = _starts([part.nbytes for part in parts])
    packed: Bytes = np.zeros(sum(part.nbytes for part in parts), np.uint8)
    if update or not write:
        for part, start in zip(parts, starts, strict=True):
            packed[start : start + part.nbytes] = part.layout.pack(part.memory, part.count)

    def unpack(nbytes: int | None) -> None:
        for part, start in zip(parts, starts, strict=True):
            part.layout.unpack(packed[start : start + part.nbytes], part.memory, part.count)

    counts = [part.count * each for part in parts]
    return packed, counts, _starts(counts), element, unpack if write else None


def resolve_typed(spec: Any, write: bool, update: bool, size: int) -> ResolvedBlocks:
    """Return the memory of one block for each of `size` ranks, each with its own datatype; displacements in bytes.

    Parameters
    ----------
    spec : sequence
        ``[buffer, datatypes]`` (one item each, all at the start), ``[buffer, (counts, displacements), datatypes]`` or
        ``[buffer, counts, displacements, datatypes]``. Counts or displacements that are ``None`` are as in the first
        form.
    """
    counts: Any = None
    displacements: Any = None
    if len(spec) == 2:
        buffer, datatypes = spec
    elif len(spec) == 3:
        buffer, (counts, displacements), datatypes = spec
    elif len(spec) == 4:
        buffer, counts, displacements, datatypes = spec
    else:
        raise ValueError("message: expecting 2 to 4 items")
    if buffer is BOTTOM and len(spec) > 2 and (counts is None or displacements is None):
        raise ValueError("message: MPI.BOTTOM needs counts and displacements")
    counts = [1] * size if counts is None else _integers(counts, size)
    displacements = [0] * size if displacements is None else _integers(displacements, size)
    if len(datatypes) != size:
        raise ValueError(f"expecting {size} items, got {len(datatypes)}")
    memory = _empty() if buffer is None or buffer is BOTTOM else bytes_of(buffer, writable=write)
    layouts = [datatype_of(datatype)._laid() for datatype in datatypes]
    if buffer is BOTTOM and any(counts):
        raise UnsupportedError("Tidemill has no datatypes of absolute addresses (MPI.BOTTOM); name the buffer instead")
    for count, displacement, layout in zip(counts, displacements, layouts, strict=True):
        if count and displacement + (count - 1) * layout.extent + layout.true_upper > memory.size:
            raise ValueError(f"message: buffer too small for {count} items at byte {displacement}")
    if all(layout.is_contiguous for layout in layouts):
        nbytes = [count * layout.size for count, layout in zip(counts, layouts, strict=True)]
        return memory, nbytes, displacements, "uint8", None
    parts = [
        _Part(layout, memory[displacement:], count)
        for count, displacement, layout in zip(counts, displacements, layouts, strict=True)
    ]
    packed, _, _, _, unpack = _packed_blocks(parts, write, update, "uint8", 1)
    nbytes = [part.nbytes for part in parts]
    return packed, nbytes, _starts(nbytes), "uint8", unpack


_BY_ELEMENT: dict[str, Datatype] = {}


def apply_user_function(
    function: Callable[[Any, Any, Any], None], left: int, right: int, nbytes: int, datatype: Any, element: str
) -> None:
    """Call a user's operation on `nbytes` bytes at two addresses; the second gets the result."""
    from tidemill.mpi._buffer import buffer

    if datatype is None:
        if not _BY_ELEMENT:
            for known in predefined.values():
                _BY_ELEMENT.setdefault(known._element or "", known)
        datatype = _BY_ELEMENT.get(element)
    a, b = buffer.fromaddress(left, nbytes, readonly=True), buffer.fromaddress(right, nbytes)
    function(a, b, datatype)
