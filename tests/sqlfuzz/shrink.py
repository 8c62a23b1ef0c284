"""Makes a failing case small: takes parts of the query and rows of the tables away while it fails the same way."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from dataclasses import replace

from sqlfuzz.data import Table
from sqlfuzz.oracles import Failure
from sqlfuzz.queries import Query
from sqlfuzz.tree import node

Check = Callable[[Query, list[Table]], Failure | None]


def _smaller(query: Query) -> Iterator[Query]:
    for j, (name, part) in enumerate(query.parts):
        yield replace(query, parts=query.parts[:j] + query.parts[j + 1 :])
        for other in part.smaller():
            yield replace(query, parts=[*query.parts[:j], (name, other), *query.parts[j + 1 :]])
    if query.base is None or query.where is None:
        for other in query.body.smaller():
            yield replace(query, body=other)
        return
    for where in query.where.smaller():
        yield replace(query, where=where, body=node("query", query.base, " where ", where))
    for base in query.base.smaller():
        yield replace(query, base=base, body=node("query", base, " where ", query.where))


def shrink(
    query: Query, tables: list[Table], check: Check, patience_s: float = 30
) -> tuple[Query, list[Table], Failure]:
    """A smaller case that fails the same way, found within `patience_s`, in seconds.

    `check` says how a case fails; on several workers it says the same on all of them.
    """
    failure = check(query, tables)
    assert failure is not None
    end = time.monotonic() + patience_s
    going, tried = True, set[str]()
    while going and time.monotonic() < end:
        going = False
        # In any order: one that loses much is met soon, and few of the rest are tried in vain.
        others = [q for q in _smaller(query) if len(q.sql()) <= len(query.sql()) and q.sql() not in tried]
        for other in random.Random(len(others)).sample(others, len(others)):
            if time.monotonic() >= end:
                break
            tried.add(other.sql())
            found = check(other, tables)
            if found is not None and found.sort() == failure.sort():
                query, failure, going = other, found, True
                break
        for j, table in enumerate(tables):
            rows, step = table.rows, max(1, len(table.rows) // 2)
            while step and rows and time.monotonic() < end:
                at = 0
                while at < len(rows) and time.monotonic() < end:
                    fewer = rows[:at] + rows[at + step :]
                    trial = [*tables[:j], tables[j].with_rows(fewer), *tables[j + 1 :]]
                    found = check(query, trial)
                    if found is not None and found.sort() == failure.sort():
                        rows, tables, failure, going = fewer, trial, found, True
                        tried.clear()
                    else:
                        at += step
                step //= 2
            if table.source != "memory":
                trial = [*tables[:j], replace(tables[j], source="memory"), *tables[j + 1 :]]
                found = check(query, trial)
                if found is not None and found.sort() == failure.sort():
                    tables, failure = trial, found
    return query, tables, failure
