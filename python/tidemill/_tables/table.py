"""The result of a query, in memory."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from tidemill._needs import needed
from tidemill._tables import shown as _shown
from tidemill._tidemill import NativeTable

if TYPE_CHECKING:
    import numpy
    import pandas
    import polars
    import pyarrow

__all__ = ["Table"]


class Table:
    """Rows in memory. Any library that supports the Arrow PyCapsule interface can use it without copying.

    Attributes
    ----------
    num_rows : int
    columns : list of str
    schema : dict of str to str
        Arrow types by column.
    nbytes : int
        Size in memory.
    """

    __slots__ = ("_native",)

    def __init__(self, native: NativeTable) -> None:
        self._native = native

    @property
    def num_rows(self) -> int:
        """Number of rows."""
        return self._native.num_rows

    @property
    def schema(self) -> dict[str, str]:
        """Arrow types by column."""
        return dict(self._native.fields)

    @property
    def columns(self) -> list[str]:
        """Column names, in order."""
        return [name for name, _ in self._native.fields]

    @property
    def nbytes(self) -> int:
        """Size in memory, in bytes."""
        return self._native.nbytes

    def __len__(self) -> int:
        return self.num_rows

    def __getitem__(self, column: str) -> list[Any]:
        if column not in self.columns:
            raise KeyError(column)
        return self._native.column(column)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(self.to_pylist())

    def __repr__(self) -> str:
        """Return the first twenty rows, with types; nulls are ``null``."""
        return _shown.table_text(self._native)

    def _repr_html_(self) -> str:
        """The same for notebooks."""
        return _shown.table_html(self._native)

    def __reduce__(self) -> tuple[Any, ...]:
        return _from_ipc, (self._native.to_ipc(),)

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self._native.__arrow_c_stream__(requested_schema)

    def __arrow_c_schema__(self) -> object:
        return self._native.__arrow_c_schema__()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> numpy.ndarray:
        """Return an array of shape (rows, columns), for functions that take matrices, such as the estimators of
        `tidemill.ml`; always a copy.
        """
        import numpy as np

        if copy is False:
            raise ValueError("the columns of a table cannot become an array without a copy")
        columns = list(self.to_numpy().values())
        array = np.column_stack(columns) if columns else np.empty((self.num_rows, 0))
        return array if dtype is None else array.astype(dtype)

    @staticmethod
    def from_numpy(columns: Mapping[str, Any]) -> Table:
        """Return a table of arrays by column, all of one length; the arrays are copied. The inverse of `to_numpy`.

        Parameters
        ----------
        columns : mapping of str to numpy.ndarray or sequence
            Arrays of numbers, booleans, strings, bytes, ``datetime64`` and ``timedelta64`` (NaT is null), or of Python
            objects (None is null); masked arrays (masked elements are null); arrays with several axes, whose rows
            become lists; and lists of Python values. ``datetime64`` with a unit of days, weeks, months or years becomes
            a date.

        Raises
        ------
        DataSetError
            If lengths differ, or an array's type has no equivalent in tables, such as complex numbers.

        Examples
        --------
        >>> import numpy as np, tidemill as tm
        >>> tm.Table.from_numpy({"day": np.array(["2024-02-29"], "M8[D]"), "who": np.array(["ada"])}).to_pylist()
        [{'day': datetime.date(2024, 2, 29), 'who': 'ada'}]
        """
        # Usually all columns are numbers: convert them together.
        native = NativeTable.from_plain(dict(columns)) if isinstance(columns, Mapping) else None
        if native is None:
            from tidemill._tables.arrays import table_of_arrays

            native = table_of_arrays(columns)
        return Table(native)

    def to_numpy(self) -> dict[str, numpy.ndarray]:
        """Return an array of shape (rows,) for each column, with memory of its own.

        Numbers and booleans keep their dtype; dates, datetimes and durations are ``datetime64`` and ``timedelta64`` of
        their unit, in UTC if they have a time zone. A column of fixed-size lists of numbers becomes an array of shape
        (rows, size). Other columns, and columns with nulls, become objects, None for null.
        """
        times = {name: found for name, kind in self._native.fields if (found := _time_type(kind)) is not None}
        # A cast to a schema also selects its columns.
        numbers = self._native.cast([(name, "int64") for name in times]).to_arrays() if times else []
        counted = {name: data for name, _, data in numbers}
        arrays: dict[str, numpy.ndarray] = {}
        for name, kind, data in self._native.to_arrays():
            if data is not None:
                arrays[name] = data.view(kind)
            elif (counts := counted.get(name)) is not None:
                arrays[name] = counts.view(times[name])
            else:
                arrays[name] = _of_values(self._native.column(name), self.schema[name])
        return arrays

    def slice(self, skip: int, count: int) -> Table:
        """Return at most `count` rows after skipping the first `skip`, without copying."""
        return Table(self._native.slice(skip, count))

    def to_dict(self) -> dict[str, list[Any]]:
        """Return a list of Python values for each column; nulls are None."""
        return self._native.to_dict()

    def to_pylist(self) -> list[dict[str, Any]]:
        """Return a dict for each row."""
        columns = self.to_dict()
        return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]

    def to_arrow(self) -> pyarrow.Table:
        """Return a ``pyarrow.Table``, without copying; needs pyarrow (``pip install "tidemill[files]"``)."""
        pyarrow = needed("pyarrow", "to_arrow")
        # `pyarrow.table` checks for a pandas frame and imports pandas for this, which takes a third of a second.
        return pyarrow.RecordBatchReader.from_stream(self).read_all()

    def to_pandas(self, **options: Any) -> pandas.DataFrame:
        """Return a pandas DataFrame; needs pyarrow and pandas. `options` are passed to ``pyarrow.Table.to_pandas``."""
        needed("pandas", "to_pandas")
        needed("pyarrow", "to_pandas")
        return self.to_arrow().to_pandas(**options)

    def to_polars(self) -> polars.DataFrame:
        """Return a Polars DataFrame, without copying; needs Polars."""
        frame: polars.DataFrame = needed("polars", "to_polars").DataFrame(self)
        return frame


def _time_type(kind: str) -> str | None:
    """Return the NumPy dtype of an Arrow type that counts units of time."""
    if kind.startswith("Date"):
        return {"Date32": "M8[D]", "Date64": "M8[ms]"}[kind]
    found = re.match(r"(Timestamp|Duration)\((s|ms|µs|ns)\b", kind)
    return found and f"{'M' if found[1] == 'Timestamp' else 'm'}8[{found[2].replace('µ', 'u')}]"


def _of_values(values: list[Any], kind: str) -> numpy.ndarray:
    """Return an array of Python values of an Arrow type; with two axes for lists of numbers of equal length."""
    import numpy as np

    found = re.fullmatch(r"FixedSizeList\((\d+) x (?:non-null )?(U?Int\d+|Float\d+|Boolean)\)", kind)
    if found is None or any(row is None or None in row for row in values):
        return np.fromiter(values, dtype=object, count=len(values))
    dtype = found[2].lower().replace("boolean", "bool")
    return np.array(values, dtype=dtype).reshape(len(values), int(found[1]))


def _from_ipc(data: bytes) -> Table:
    return Table(NativeTable.from_ipc(data))
