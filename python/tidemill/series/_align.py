"""Alignment: rotates, reflects and shifts points to match others; and tables of points to align to."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tidemill.dataset import DataSet, DataSetError, col
from tidemill.ml import procrustes
from tidemill.series._errors import SeriesError
from tidemill.series._panel import Array
from tidemill.series._read import KNOWN, Source, open_texts, plain_id
from tidemill.series._relay import Base

__all__ = ["IDS_MIN", "base_of", "read_positions", "turned", "write_positions"]

#: With fewer points, three dimensions carry no information.
IDS_MIN = 4
_AXES = ("x", "y", "z")


def turned(
    ids: NDArray[np.str_], positions: Array, base: Base | None, weight: Array, *, fit_scaled: bool = False
) -> tuple[Array, float]:
    """Align positions (n, 3) with their base, and return the goodness of fit; NaN if there is no base.

    With `fit_scaled`, the fit is computed as if the points were scaled, too, although they are not: for a base that may
    have another size.
    """
    if base is not None:
        moving, fixed = _common(ids, base.ids)
        if len(moving) >= IDS_MIN:
            given = positions[moving], base.positions[fixed]
            found = procrustes(*given, weights=weight[moving])
            fit = procrustes(*given, weights=weight[moving], scale=True).fit if fit_scaled else found.fit
            return found.apply(positions), float(fit)
    return positions - positions.mean(axis=0), float("nan")


def _common(ids: NDArray[np.str_], others: NDArray[np.str_]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the positions of the common ids, in each."""
    if np.array_equal(ids, others):
        return np.arange(len(ids)), np.arange(len(ids))
    known = {name: place for place, name in enumerate(others.tolist())}
    both = [(place, known[name]) for place, name in enumerate(ids.tolist()) if name in known]
    places = np.array(both, dtype=np.int64).reshape(-1, 2)
    return places[:, 0], places[:, 1]


def base_of(positions: Mapping[str, ArrayLike]) -> Base:
    """Return points to align to, from their positions by id.

    Raises
    ------
    SeriesError
        If there are fewer than four, or one does not have three finite coordinates.
    """
    points = {str(name): np.asarray(point, dtype=np.float64) for name, point in positions.items()}
    for name, point in points.items():
        if point.shape != (3,) or not np.isfinite(point).all():
            raise SeriesError(f"positions to align to are three numbers for each id, and {name!r} has {point.tolist()}")
    if len(points) < IDS_MIN:
        raise SeriesError(f"there are positions to align to for {len(points)} ids; at least {IDS_MIN} are needed")
    return Base(np.array(list(points)), np.array(list(points.values())))


def read_positions(source: Source, *, id: str | None = None) -> dict[str, list[float]]:
    """Read points to align to, by id. Collective.

    Parameters
    ----------
    source : path, DataSet or Arrow table
        A row for each id: a column of ids with a usual name (``id``, ``ticker``, ``symbol``, ...), and columns ``x``,
        ``y`` and ``z``.
    id : str, optional
        The column of ids.

    Raises
    ------
    SeriesError
        On every worker: if columns are missing, a coordinate is not a number, or an id has two rows.
    """
    data = source if isinstance(source, DataSet) else open_texts(source)
    lower = {name.lower(): name for name in reversed(data.columns)}
    key = id if id is not None else next((lower[word] for word in KNOWN["id"] if word in lower), None)
    lacking = [axis for axis in _AXES if axis not in lower]
    if key is None or key not in data.columns or lacking:
        wanted = "an id" if key is None else repr(key) if key not in data.columns else lacking[0]
        raise SeriesError(
            f"positions to align to need columns of ids, x, y and z, but there is none for {wanted}; there are: {', '.join(data.columns)}"
        )
    try:
        told = data.select(
            id=col(key).cast("str"), **{axis: col(lower[axis]).cast("float64") for axis in _AXES}
        ).to_dict()
    except DataSetError as error:
        raise SeriesError(f"the positions to align to cannot be read: {error}") from error
    found: dict[str, list[float]] = {}
    for name, *point in zip(told["id"], *(told[axis] for axis in _AXES), strict=True):
        plain = plain_id(name or "")
        if plain in found:
            raise SeriesError(f"the positions to align to have {plain!r} twice; an id has one row")
        if plain:
            found[plain] = [float("nan") if value is None else value for value in point]
    return found


def write_positions(path: Path, base: Base) -> None:
    """Write points as a table for `read_positions`. Local."""
    with path.open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(["id", *_AXES])
        table.writerows([name, *point] for name, point in zip(base.ids.tolist(), base.positions.tolist(), strict=True))
