"""Messages on an edge: tables, arrays, or any objects that can be pickled."""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from tidemill._tables.errors import DataSetError
from tidemill._tables.rows import parse_schema
from tidemill._tables.table import Table
from tidemill._tidemill import NativeTable, array_table, message_schema, object_table, payloads
from tidemill.graph._errors import GraphError

__all__ = ["PortType", "decode", "encode", "encode_one"]


class PortType:
    """The type of an output port's messages.

    Attributes
    ----------
    kind : {"table", "objects", "arrays"}
    schema : NativeTable
        Its columns, without rows.
    """

    def __init__(self, schema: object) -> None:
        if schema is None or isinstance(schema, str):
            self.kind = schema or "objects"
            found = message_schema(self.kind)
            if found is None:
                raise GraphError(
                    f'schema={schema!r}: a port sends "objects" (the default), "arrays", or tables, of which the schema '
                    'gives the types by column, such as {"n": "int64"}'
                )
            self.schema = found
            return
        self.kind = "table"
        try:
            given = parse_schema(schema)
        except DataSetError as error:
            raise GraphError(str(error)) from None
        try:
            self.schema = NativeTable.empty(given)
        except (DataSetError, TypeError, ValueError) as error:
            raise GraphError(f"schema={schema!r}: {error}") from None
        if not self.schema.fields:
            raise GraphError("schema={}: a table needs at least one column")

    @property
    def columns(self) -> list[str]:
        """Names of its columns."""
        return [name for name, _ in self.schema.fields]


def decode(table: NativeTable) -> list[Any]:
    """Return the messages in received data."""
    kind, blocks = payloads(table)
    if kind == "objects":
        return [message for block in blocks for message in _objects(*block)]
    if kind == "arrays":
        return [array for block in blocks for array in _arrays(*block)]
    return [Table(table)]


def _objects(data: Any, starts: Sequence[int]) -> Iterable[Any]:
    """Return the objects that are pickled one behind the other."""
    pickled = memoryview(data)
    return [pickle.loads(pickled[start:end]) for start, end in pairwise(starts)]


def _arrays(data: Any, dtype: str, shape: tuple[int, ...], count: int) -> Any:
    """Return an iterable of `count` arrays of a dtype and shape whose bytes lie behind each other."""
    if count == 1:
        return [data.view(dtype).reshape(shape)]
    if shape:
        return data.view(dtype).reshape((count, *shape))
    # Iterating over arrays without dimensions would give scalars.
    return [array.reshape(()) for array in data.view(dtype).reshape((count, 1))]


def encode_one(kind: str, message: Any) -> NativeTable:
    """Return the native form of a message."""
    return _table(message) if kind == "table" else encode(kind, [message])


def encode(kind: str, messages: Sequence[Any]) -> NativeTable:
    """Return objects or arrays in native form, one row each."""
    if kind == "objects":
        return object_table([np.frombuffer(pickle.dumps(message, protocol=5), np.uint8) for message in messages])
    return array_table([_array(message) for message in messages])


def _array(message: Any) -> tuple[Any, str, tuple[int, ...]]:
    array = np.asarray(message)
    if array.dtype.hasobject or array.dtype.names:
        raise GraphError(f"a port of arrays cannot send dtype {array.dtype}; a port of objects (no schema) can")
    flat = np.ascontiguousarray(array).reshape(-1)
    # Without elements there are no bytes to look at in another way.
    data = flat.view(np.uint8) if flat.nbytes else np.empty(0, np.uint8)
    return data, array.dtype.str, array.shape


def _table(message: Any) -> NativeTable:
    if isinstance(message, Table):
        return message._native
    if isinstance(message, dict) and (native := NativeTable.from_plain(message)) is not None:
        return native
    if isinstance(message, Mapping):
        columns = {str(name): values for name, values in message.items()}
        if columns and all(
            isinstance(values, np.ndarray) and values.dtype.kind in "biuf" for values in columns.values()
        ):
            return Table.from_numpy(columns)._native
        return NativeTable.from_lists([(name, list(values), None) for name, values in columns.items()])
    if hasattr(message, "__arrow_c_array__") and not hasattr(message, "__arrow_c_stream__"):
        import pyarrow

        message = pyarrow.Table.from_batches([pyarrow.record_batch(message)])
    if not hasattr(message, "__arrow_c_stream__"):
        raise GraphError(
            f"a port of tables cannot send {type(message).__name__}; send an Arrow table or batch, a dict of columns, or "
            "leave the schema out to send any object"
        )
    return NativeTable.take(message)
