"""Joins by key with external data: a service, a database, a cache. Answers are cached."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from tidemill._tables.errors import DataSetError
from tidemill._tidemill import NativeTable

__all__ = ["Lookup", "Source"]

#: Returns rows for keys, each a dict or None: in the order of the keys, or by key. If it has a method ``of_rows``, that
#: is called instead, with a table and the names of its key columns, for sources that need the types of values.
Source = Callable[[list[Any]], "Mapping[Any, Mapping[str, Any] | None] | Iterable[Mapping[str, Any] | None]"]


class Lookup:
    """The step of `DataSet.lookup`: adds the looked-up columns to batches.

    Parameters
    ----------
    source
        As in `DataSet.lookup`; or, if it `takes_rows`, the ``of_rows`` of such a function.
    keys, how
        As in `DataSet.lookup`.
    added : NativeTable
        The schema of the added columns, as a table without rows.
    cache_rows : int
        Number of most recently used keys to cache, including those for which nothing was found.
    cache_s : float, optional
        How long answers stay in the cache, in seconds.
    takes_rows : bool, default=False
        Whether the source takes the rows of the keys.
    """

    def __init__(
        self,
        source: Callable[..., Any],
        name: str,
        keys: Sequence[str],
        added: NativeTable,
        how: str,
        cache_rows: int,
        cache_s: float | None,
        takes_rows: bool = False,
    ) -> None:
        self._source = source
        self._takes_rows = takes_rows
        self._name = name
        self._keys = keys
        self._added = added
        self._names = [name for name, _ in added.fields]
        self._inner = how == "inner"
        self._cache_rows = cache_rows
        self._cache_s = cache_s
        # The threads of a worker share found answers.
        self._lock = threading.Lock()
        self._known: OrderedDict[Any, tuple[float, Mapping[str, Any] | None]] = OrderedDict()

    def __call__(self, rows: NativeTable) -> list[NativeTable]:
        columns = [rows.column(key) for key in self._keys]
        keys = columns[0] if len(columns) == 1 else list(zip(*columns, strict=True))
        found = self._find(rows, keys)
        if self._inner:
            kept = [found.get(key) is not None for key in keys]
            if not all(kept):
                rows = rows.filter(kept)
                keys = [key for key, keep in zip(keys, kept, strict=True) if keep]
            if not keys:
                return []
        each = [found.get(key) or {} for key in keys]
        beside = NativeTable.from_lists([(name, [row.get(name) for row in each], None) for name in self._names])
        return [rows.beside(beside.cast(self._added))]

    def _find(self, rows: NativeTable, keys: list[Any]) -> dict[Any, Mapping[str, Any] | None]:
        """Return the cached or found answers for the keys of rows."""
        # Null keys match nothing.
        wanted = [key for key in dict.fromkeys(keys) if not _is_null(key)]
        found, missing = {}, []
        now = time.monotonic()
        with self._lock:
            for key in wanted:
                known = self._known.get(key)
                if known is None or now >= known[0]:
                    missing.append(key)
                else:
                    self._known.move_to_end(key)
                    found[key] = known[1]
        if not missing:
            return found
        answer = self._ask(missing, rows, keys)
        found |= answer
        until = now + self._cache_s if self._cache_s is not None else float("inf")
        with self._lock:
            for key, row in answer.items():
                self._known[key] = (until, row)
                self._known.move_to_end(key)
            while len(self._known) > self._cache_rows:
                self._known.popitem(last=False)
        return found

    def _ask(self, keys: list[Any], rows: NativeTable, of_rows: list[Any]) -> dict[Any, Mapping[str, Any] | None]:
        if self._takes_rows:
            # One row per key, in the order of the keys.
            first = [False] * len(of_rows)
            left = set(keys)
            for at, key in enumerate(of_rows):
                if key in left:
                    first[at] = True
                    left.remove(key)
            answer = self._source(rows.filter(first), self._keys)
        else:
            # A copy of the list, which the source may consume.
            answer = self._source(list(keys))
        if isinstance(answer, Mapping):
            found = {key: answer.get(key) for key in keys}
        else:
            listed = list(answer)
            if len(listed) != len(keys):
                raise DataSetError(
                    f"{self._name} returned {len(listed)} rows for {len(keys)} keys; it must return one, or None, for each"
                )
            found = dict(zip(keys, listed, strict=True))
        for key, row in found.items():
            if row is not None and not isinstance(row, Mapping):
                raise DataSetError(
                    f"{self._name} returned a {type(row).__name__} for {key!r}; a row must be a dict, or None"
                )
            if row and not row.keys() <= set(self._names):
                raise DataSetError(f"{self._name} returned the columns {list(row)} for {key!r}; expected {self._names}")
        return found


def _is_null(key: Any) -> bool:
    return key is None or (isinstance(key, tuple) and None in key)
