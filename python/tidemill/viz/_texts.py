"""Names of points, left in their files, since viewers need only few of millions.

Strings are stored as concatenated UTF-8 with the start of each (`_format.pack_texts`). Files are mapped, so that only
the strings in use are read. Searches compare bytes of many strings at once. They ignore the case of ASCII letters, and
also that of other letters, but one string at a time.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tidemill.viz import _format
from tidemill.viz._format import FrameError

__all__ = ["Texts"]

#: The number of strings that are processed together, so that intermediate results stay small.
_ROWS_AT_ONCE = 1 << 18

#: ASCII in lower case.
_FOLDED = np.frombuffer(bytes(range(256)).lower(), np.uint8)


class Texts:
    """Strings of points by row, over several files; a row may have none."""

    def __init__(self) -> None:
        self.rows = 0
        #: The first row of each part; its offsets and bytes.
        self._begins: list[int] = []
        self._parts: list[tuple[NDArray[np.uint32], NDArray[np.uint8]]] = []

    @property
    def empty(self) -> bool:
        """True if no row has a string."""
        return not self._parts

    def add(self, name: str, count: int, tensors: Mapping[str, NDArray[Any]]) -> None:
        """Add the strings of the next `count` rows, if the file has any.

        Raises
        ------
        FrameError
            If the file is inconsistent.
        """
        if f"{name}.bytes" in tensors:
            offsets, data = tensors[f"{name}.offsets"], tensors[f"{name}.bytes"]
            if offsets.shape != (count + 1,) or int(offsets[-1]) > data.size:
                raise FrameError(f"the texts {name!r} of {count} points do not fit together: is the file damaged?")
            self._begins.append(self.rows)
            self._parts.append((offsets, data))
        self.rows += count

    def __getitem__(self, row: int) -> str:
        """Return the string of a row, ``""`` if it has none."""
        part = bisect_right(self._begins, row) - 1
        if part < 0:
            return ""
        offsets, data = self._parts[part]
        at = row - self._begins[part]
        return data[offsets[at] : offsets[at + 1]].tobytes().decode() if at + 1 < len(offsets) else ""

    def all(self) -> list[str]:
        """Return the strings of all rows."""
        texts = [""] * self.rows
        for begin, (offsets, data) in zip(self._begins, self._parts, strict=True):
            found = _format.unpack_texts("", {".offsets": offsets, ".bytes": data})
            texts[begin : begin + len(found)] = found
        return texts

    def beginning(self, wanted: str, most: int) -> list[int]:
        """Return the first rows whose strings begin with this text, ignoring case; at most `most`."""
        return self._found(wanted, most, _beginning, str.startswith)

    def having(self, wanted: str, most: int) -> list[int]:
        """Return the first rows whose strings contain this text, ignoring case; at most `most`."""
        return self._found(wanted, most, _having, str.__contains__)

    def _found(
        self,
        wanted: str,
        most: int,
        rows_of: Callable[[NDArray[np.uint32], NDArray[np.uint8], bytes, int], list[int]],
        fits: Callable[[str, str], bool],
    ) -> list[int]:
        """Return the first rows whose strings match, by their bytes or, if the text has non-ASCII letters, one by one."""
        found: list[int] = []
        folded = wanted.lower()
        for begin, offsets, data in self._pieces():
            left = most - len(found)
            if folded.isascii():
                rows = rows_of(offsets, data, folded.encode(), left)
            else:
                rows = [row for row, text in _decoded(offsets, data) if fits(text.lower(), folded)]
            found += [begin + row for row in rows[:left]]
            if len(found) >= most:
                break
        return found

    def rows_of(self, wanted: Sequence[str]) -> dict[str, int]:
        """Return the rows of exactly these strings, without those that do not exist."""
        left: dict[int, list[bytes]] = {}
        for text in {text.encode() for text in wanted}:
            left.setdefault(len(text), []).append(text)
        found: dict[str, int] = {}
        for begin, offsets, data in self._pieces():
            lengths = np.diff(offsets.astype(np.int64))
            for length, texts in left.items():
                rows = np.flatnonzero(lengths == length)
                for text in texts if rows.size else ():
                    same = _same(rows, offsets, data, text)
                    if same.size:
                        found.setdefault(text.decode(), begin + int(same[0]))
        return found

    def _pieces(self) -> Iterator[tuple[int, NDArray[np.uint32], NDArray[np.uint8]]]:
        """Yield the first row, offsets and bytes of some strings at a time."""
        for begin, (offsets, data) in zip(self._begins, self._parts, strict=True):
            for first in range(0, len(offsets) - 1, _ROWS_AT_ONCE):
                yield begin + first, np.asarray(offsets[first : first + _ROWS_AT_ONCE + 1]), data


def _same(
    rows: NDArray[np.int64],
    offsets: NDArray[np.uint32],
    data: NDArray[np.uint8],
    wanted: bytes,
    folded: NDArray[np.uint8] | None = None,
) -> NDArray[np.int64]:
    """Return the rows whose strings, which are long enough, begin with these bytes."""
    for place, letter in enumerate(wanted):
        if not rows.size:
            break
        here = data[offsets[rows].astype(np.int64) + place]
        rows = rows[(here if folded is None else folded[here]) == letter]
    return rows


def _beginning(offsets: NDArray[np.uint32], data: NDArray[np.uint8], wanted: bytes, most: int) -> list[int]:
    rows = np.flatnonzero(np.diff(offsets.astype(np.int64)) >= len(wanted))
    found: list[int] = _same(rows, offsets, data, wanted, _FOLDED)[:most].tolist()
    return found


def _having(offsets: NDArray[np.uint32], data: NDArray[np.uint8], wanted: bytes, most: int) -> list[int]:
    text = data[offsets[0] : offsets[-1]].tobytes().lower()
    ends = offsets[1:].astype(np.int64) - int(offsets[0])
    found: list[int] = []
    at = text.find(wanted)
    while at >= 0 and len(found) < most:
        row = int(np.searchsorted(ends, at, side="right"))
        if at + len(wanted) <= ends[row]:
            found.append(row)
            at = text.find(wanted, int(ends[row]))
        else:
            # A match that extends into the next string belongs to neither.
            at = text.find(wanted, at + 1)
    return found


def _decoded(offsets: NDArray[np.uint32], data: NDArray[np.uint8]) -> Iterator[tuple[int, str]]:
    text = data[offsets[0] : offsets[-1]].tobytes()
    places = (offsets.astype(np.int64) - int(offsets[0])).tolist()
    for row in range(len(places) - 1):
        yield row, text[places[row] : places[row + 1]].decode()
