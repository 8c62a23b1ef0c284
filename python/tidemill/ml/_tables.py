"""Rows of DataSets and Tables as matrices for estimators, and results of estimators as additional columns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeGuard

import numpy as np
from numpy.typing import NDArray

from tidemill._tidemill import NativeTable
from tidemill.dataset import DataSet, Table, col, from_local

__all__ = [
    "LocalRows",
    "NamedRows",
    "fitted_columns",
    "is_table",
    "local_rows",
    "mapped",
    "no_distances",
    "weights_and_rest",
    "with_columns",
]

_NUMBERS = ("Int", "UInt", "Float", "Decimal")


class LocalRows:
    """The rows of a table on this worker, as a matrix with column names."""

    def __init__(self, table: Table, columns: Sequence[str]) -> None:
        self.table = table
        self.columns = list(columns)
        self._array: NDArray[Any] | None = None

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        """Return the matrix (n, d): float32 if all its columns are, else float64; computed on first use.

        Raises
        ------
        ValueError
            If a column has nulls.
        """
        if self._array is None:
            self._array = _matrix(self.table, self.columns)
        return self._array if dtype is None else self._array.astype(dtype, copy=False)


class NamedRows:
    """A matrix with column names."""

    def __init__(self, x: NDArray[Any], columns: Sequence[str]) -> None:
        self.x, self.columns = x, list(columns)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        return self.x if dtype is None else self.x.astype(dtype, copy=False)


def fitted_columns(estimator: Any, x: DataSet | Table) -> list[str]:
    """Return the columns of a table that `estimator` was fitted on: by name, or if it has no names, those with numbers."""
    name, names = type(estimator).__name__, getattr(estimator, "feature_names_in_", None)
    found = _features(x, None if names is None else [str(column) for column in names], name, None)
    if len(found) != estimator.n_features_in_:
        raise ValueError(
            f"X has {len(found)} columns of numbers, but {name} is expecting {estimator.n_features_in_}, and was fitted without names: "
            "select the columns"
        )
    return found


def no_distances(estimator: str) -> TypeError:
    """Return the error for a DataSet where a distance matrix is needed."""
    return TypeError(
        f"X is a DataSet, whose rows have no order, so {estimator} cannot tell which column is whose distance: give metric='euclidean' or a "
        "function if its rows are vectors, or an array of distances"
    )


def is_table(x: object) -> TypeGuard[DataSet | Table]:
    """Return whether `x` is a Tidemill table: a DataSet or a Table."""
    return isinstance(x, DataSet | Table)


def local_rows(
    x: DataSet | Table, columns: Sequence[str] | None, estimator: str, without: str | None = None
) -> LocalRows:
    """Return the rows of this worker. For a DataSet, runs the query: collective.

    Parameters
    ----------
    columns : sequence of str, optional
        The features; by default all numeric columns, except `without`.

    Raises
    ------
    ValueError, TypeError
        The same on every worker: if a column does not exist or is not numeric, or there is no numeric column.
    """
    names = _features(x, columns, estimator, without)
    table = x.collect_local() if isinstance(x, DataSet) else x
    return LocalRows(table, names)


def _features(x: DataSet | Table, columns: Sequence[str] | None, estimator: str, without: str | None) -> list[str]:
    schema = x.schema
    numbers = [name for name, kind in schema.items() if kind.startswith(_NUMBERS)]
    if columns is None:
        found = [name for name in numbers if name != without]
        if not found:
            raise ValueError(f"{estimator} needs columns of numbers, and the table has none: {schema}")
        return found
    if isinstance(columns, str):
        raise TypeError(f"columns is a list of names, not the text {columns!r}: columns=[{columns!r}]")
    found = [str(name) for name in columns]
    for name in found:
        if name not in schema:
            raise ValueError(f"{estimator}: there is no column {name!r}; there are {', '.join(map(repr, schema))}")
        if name not in numbers:
            raise TypeError(
                f"{estimator}: column {name!r} is {schema[name]}, not numbers: cast it, or choose other columns"
            )
    if not found:
        raise ValueError(f"{estimator}: columns is empty")
    return found


def _matrix(table: Table, names: Sequence[str]) -> NDArray[Any]:
    schema = table.schema
    single = all(schema[name] in ("Float16", "Float32") for name in names)
    dtype = np.dtype(np.float32 if single else np.float64)
    # A cast to a schema also selects its columns.
    plain = Table(table._native.cast([(name, dtype.name) for name in dict.fromkeys(names)])).to_numpy()
    matrix = np.empty((table.num_rows, len(names)), dtype)
    for at, name in enumerate(names):
        column = plain[name]
        if column.dtype == object:
            nulls = sum(value is None for value in column)
            raise ValueError(
                f"column {name!r} has {nulls} null{'s' * (nulls != 1)}: leave these rows out with drop_nulls({name!r}), or fill them"
            )
        matrix[:, at] = column
    return matrix


def weights_and_rest(
    x: DataSet | Table, columns: Sequence[str] | None, weights: Any, estimator: str
) -> tuple[LocalRows, Any]:
    """Like `local_rows`, and return weights: those of a column if `weights` is its name, else unchanged."""
    if not isinstance(weights, str):
        return local_rows(x, columns, estimator), weights
    _features(x, [weights], estimator, None)
    rows = local_rows(x, columns, estimator, weights)
    return rows, _matrix(rows.table, [weights])[:, 0].astype(np.float64)


def _beside(table: Table, found: dict[str, NDArray[Any]]) -> NativeTable:
    """Return the columns of a table, with arrays as additional ones."""
    taken = [name for name in found if name in table.schema]
    if taken:
        raise ValueError(f"there is a column {taken[0]!r} already: drop it, or give the result another name")
    native: NativeTable = table._native.beside(Table.from_numpy(found)._native)
    return native


def mapped(
    data: DataSet,
    name: str,
    columns: Sequence[str],
    function: Callable[[NDArray[Any]], NDArray[Any]],
    fields: Sequence[tuple[str, str]],
) -> DataSet:
    """Return the rows of `data` with the results of `function` on their features, (n, d) -> (n,) or (n, len(fields)),
    as columns of these names and types. Lazy; existing columns are replaced.
    """
    there = set(data.columns)
    # A replacement of a column is stored next to it until it is selected.
    names = [f"{field} of {name}" if field in there else field for field, _ in fields]
    kinds = [kind for _, kind in fields]

    def on_table(native: NativeTable, _found: NativeTable | None = None) -> list[NativeTable]:
        table = Table(native)
        made = function(_matrix(table, columns)) if table.num_rows else np.empty(0)
        made = made.reshape(table.num_rows, len(fields))
        added = {
            field: np.ascontiguousarray(made[:, at], dtype=kind)
            for at, (field, kind) in enumerate(zip(names, kinds, strict=True))
        }
        return [native.beside(Table.from_numpy(added)._native)]

    schema = data._native.empty().beside(NativeTable.empty(list(zip(names, kinds, strict=True))))
    result = data._step(data._native.map_batches(name, on_table, schema))
    replaced = {field: at for field, at in zip((field for field, _ in fields), names, strict=True) if field in there}
    if not replaced:
        return result
    chosen = [col(replaced[field]).alias(field) if field in replaced else col(field) for field in data.columns]
    return result.select(*chosen, *(col(field) for field in names if field not in replaced.values()))


def with_columns(table: Table, found: dict[str, NDArray[Any]]) -> DataSet:
    """Return a DataSet of each worker's rows of a table, with arrays as additional columns."""
    return from_local(Table(_beside(table, found)) if found else table)
