"""A worker's part of a table: its share of the rows, which of them are bad, and why.

A share is contiguous and shares follow one another in rank order, so that row numbers do not depend on the number of
workers. Formats are in `_formats`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tidemill import _collective_errors
from tidemill.ml._job import Comm, allreduce

__all__ = ["Bad", "Column", "Features", "Share", "TableError", "encode", "locate_bad", "select", "standardize"]

#: Maximum number of bad rows of each rank that are reported to the others.
_BAD_SHOWN = 20


class TableError(ValueError):
    """A table cannot be used as requested; the message names the remedy."""


@dataclass(frozen=True)
class Column:
    """A column of the table: its name and whether it holds text."""

    name: str
    text: bool


@dataclass(frozen=True)
class Bad:
    """An unusable row. `place` is its line or row number, from 1; within the share until `locate_bad`."""

    place: int
    reason: str


@dataclass
class Share:
    """The rows that one rank has read."""

    columns: list[Column]
    #: The good rows of each column: float64 for numbers, a list of str for text.
    values: list[NDArray[np.float64] | list[str]]
    #: For each row of the share, whether it is good.
    good: NDArray[np.bool_]
    bad: list[Bad] = field(default_factory=list)
    #: The number of lines (of text) or rows (of a table) in this share, and before rank 0's first one.
    places: int = 0
    first_place: int = 1


@dataclass
class Features:
    """Numbers to cluster: float64 of shape (n, d), and the name of each column."""

    x: NDArray[np.float64]
    names: list[str]
    #: One sentence for each change of the columns.
    notes: list[str]


def select(columns: Sequence[Column], keep: str | None, drop: str | None) -> list[int]:
    """Return the numbers of the columns that two lists like ``"0,3-5,width"`` keep and drop.

    A word is a name, else a number from 0, else a range of numbers. Without `keep`, all are kept.
    """
    names = [column.name for column in columns]

    def numbers(words: str) -> list[int]:
        found: list[int] = []
        for word in (word.strip() for word in words.split(",")):
            first, dash, last = word.partition("-")
            if word in names:
                found.append(names.index(word))
            elif word.isdigit():
                found.append(int(word))
            elif dash and first.strip().isdigit() and last.strip().isdigit():
                found.extend(range(int(first), int(last) + 1))
            else:
                raise TableError(f"no column {word!r}; the columns are {_listed(names)}")
        if any(number >= len(names) for number in found):
            raise TableError(f"no column {max(found)}; the table has {len(names)}, from 0 to {len(names) - 1}")
        return found

    kept = list(dict.fromkeys(numbers(keep))) if keep else list(range(len(names)))
    dropped = set(numbers(drop)) if drop else set()
    kept = [number for number in kept if number not in dropped]
    if not kept:
        raise TableError("no column is left")
    return kept


def _listed(names: Sequence[str], most: int = 12) -> str:
    shown = ", ".join(map(repr, names[:most]))
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"


def locate_bad(comm: Comm, share: Share) -> tuple[list[Bad], int]:
    """Return the first bad rows of all ranks with their positions in the file, and the total number."""
    told = [(bad.place, bad.reason) for bad in share.bad[:_BAD_SHOWN]]
    everyone = comm.allgather((share.places, len(share.bad), told))
    found: list[Bad] = []
    before = share.first_place
    for places, _, told in everyone:
        found.extend(Bad(before + place, reason) for place, reason in told)
        before += places
    return found, sum(count for _, count, _ in everyone)


def encode(comm: Comm, share: Share, text: str, categories_max: int) -> Features:
    """Return the columns of all ranks as numbers: text becomes one column for each value (``"one-hot"``) or is left
    out.

    Raises
    ------
    TableError
        On every rank, if a column has more than `categories_max` distinct strings, or no column is left.
    """
    notes: list[str] = []
    blocks: list[NDArray[np.float64]] = []
    names: list[str] = []
    dropped = [column.name for column in share.columns if column.text and text == "drop"]
    n = int(share.good.sum())
    for column, values in zip(share.columns, share.values, strict=True):
        if not column.text:
            blocks.append(np.asarray(values, dtype=np.float64).reshape(n, 1))
            names.append(column.name)
        elif text == "one-hot":
            own = sorted(set(values))[: categories_max + 1]
            categories = sorted(set().union(*comm.allgather(own)))
            if len(categories) > categories_max:
                raise TableError(
                    f"text column {column.name!r} has more than {categories_max} different values; "
                    f"leave it out (--drop {column.name!r}), or allow more (--categories-max)"
                )
            position = {category: i for i, category in enumerate(categories)}
            block = np.zeros((n, len(categories)))
            block[np.arange(n), np.fromiter((position[str(value)] for value in values), np.intp, n)] = 1.0
            blocks.append(block)
            names.extend(f"{column.name}={category}" for category in categories)
            notes.append(f"text column {column.name!r} became {len(categories)} columns of 0 and 1")
    if dropped:
        notes.append(f"text columns left out: {_listed(dropped)} (--text one-hot keeps them)")
    if not blocks:
        raise TableError("all columns hold text: --text one-hot turns them into numbers")
    return Features(np.concatenate(blocks, axis=1), names, notes)


def standardize(
    comm: Comm, x: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Return `x` minus the mean and divided by the standard deviation of each column, over all ranks; and those two,
    (d,) each.

    A constant column is only centered. Two passes avoid a loss of precision for large means.
    """
    sums = allreduce(comm, np.append(x.sum(axis=0), len(x)))
    mean = sums[:-1] / max(sums[-1], 1.0)
    centred = x - mean
    deviation = np.sqrt(allreduce(comm, (centred**2).sum(axis=0)) / max(sums[-1], 1.0))
    # A remainder of equal values after rounding is not variation.
    deviation[deviation <= 1e-12 * np.abs(mean)] = 1.0
    deviation[deviation == 0] = 1.0
    return centred / deviation, mean, deviation


def fail_together(comm: Comm, work: Any) -> Any:
    """Return this rank's result of `work`; if it fails on one rank, all raise `TableError`."""
    return _collective_errors.fail_together(
        comm, work, lambda said, _: TableError(said), catches=(OSError, EOFError, ValueError)
    )
