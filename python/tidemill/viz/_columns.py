"""Selects the columns of a table that describe points, by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["by_name"]


def by_name(
    points: Any, ids: Any, labels: Any, groups: Any, values: Any, coordinates: Sequence[str] | None
) -> tuple[Any, Any, Any, Any, Any]:
    """Return points, ids, labels, groups and values, with names replaced by columns of the table `points`.

    Arguments without names are returned unchanged.

    Raises
    ------
    ValueError
        If a column does not exist, does not hold numbers where these are needed, or no column gives the positions of
        points.
    """
    columns = _columns(points)
    grouped, valued = _names(groups, columns), _names(values, columns)
    named = {"ids": ids, "labels": labels}
    told = {what: name for what, name in named.items() if isinstance(name, str)}
    if not told and grouped is None and valued is None and coordinates is None:
        return points, ids, labels, groups, values
    if columns is None:
        raise ValueError(
            f"names of columns are given, and points is a {type(points).__name__} without columns: give a DataSet or a table"
        )
    if isinstance(coordinates, str):
        coordinates = [coordinates]
    used = [*told.values(), *(grouped or {}).values(), *(valued or {}).values()]
    for name in [*used, *(coordinates or ())]:
        if name not in columns:
            raise ValueError(f"there is no column {name!r}; there are {', '.join(map(repr, columns))}")
    found: dict[str, NDArray[np.float64]] = {}
    for name in columns if coordinates is None else coordinates:
        if coordinates is None and name in used:
            continue
        column = _numbers(_column(points, name))
        if column is not None:
            found[name] = column
        elif coordinates is not None:
            raise ValueError(f"column {name!r} does not hold numbers, so it cannot be a coordinate")
    if not found:
        raise ValueError("no numeric column is left for the positions of points: name some with coordinates=[...]")
    return (
        np.column_stack(list(found.values())),
        _column(points, told["ids"]) if "ids" in told else ids,
        [str(label) for label in _column(points, told["labels"])] if "labels" in told else labels,
        groups if grouped is None else {name: _column(points, column) for name, column in grouped.items()},
        values if valued is None else {name: _values(points, column) for name, column in valued.items()},
    )


def _columns(points: Any) -> list[str] | None:
    """Return the names of a table's columns. pandas, Polars and Tidemill have ``columns``, which in Arrow are the
    arrays.
    """
    names = getattr(points, "column_names", getattr(points, "columns", None))
    return None if names is None or callable(names) else [str(name) for name in names]


def _names(given: Any, columns: list[str] | None) -> dict[str, str] | None:
    """Return the titles of columns, and their names; None if these are not names of columns."""
    if isinstance(given, str):
        return {given: given}
    if isinstance(given, Mapping) and given and all(isinstance(name, str) for name in given.values()):
        return {str(called): name for called, name in given.items()}
    if (
        columns is not None
        and isinstance(given, list | tuple)
        and given
        and all(name in columns for name in given if isinstance(name, str))
    ):
        return {name: name for name in given} if all(isinstance(name, str) for name in given) else None
    return None


def _column(points: Any, name: str) -> NDArray[Any]:
    array = np.asarray(points[name])
    return array


def _numbers(column: NDArray[Any]) -> NDArray[np.float64] | None:
    """Return a column as numbers, NaN for nulls; None if it holds something else."""
    if column.dtype.kind in "fiu":
        return column.astype(np.float64)
    if column.dtype != object or not all(
        value is None or isinstance(value, (int, float, np.number)) for value in column
    ):
        return None
    return np.array([np.nan if value is None else float(value) for value in column])


def _values(points: Any, name: str) -> NDArray[np.float64]:
    column = _column(points, name)
    numbers = _numbers(column) if column.dtype != bool else column.astype(np.float64)
    if numbers is None:
        raise ValueError(f"column {name!r} does not hold numbers: show it with groups=")
    return numbers
