"""Helpers for tests of task graphs."""

from __future__ import annotations

import textwrap

#: The beginning of programs for several workers: rows of three source copies, and sinks that return what they get.
COMMON = """
import collections, itertools, math, os, sys, threading, time
import numpy as np
import pyarrow as pa
import tidemill as tm

job = tm.init()
x = tm.exchange
SCHEMA = {"k": "int64", "v": "int64", "s": "str"}

def rows_of(copy, count=500):
    return [{"k": None if i % 50 == 49 else (i * 7 + copy) % 13, "v": 1000 * copy + i, "s": f"text {i % 5}"} for i in range(count)]

def source(count=500, batch=64):
    def send(out, context):
        rows = rows_of(context.copy, count)
        for at in range(0, len(rows), batch):
            out.send(pa.RecordBatch.from_pylist(rows[at:at + batch]))
    return send

def key(row):
    return tuple((value is None, value) for value in row.values())

def received(rows, context):
    return [row for table in rows for row in table.to_pylist()]

def through(exchange, *, copies=3, targets=4, count=500, send=None, schema=SCHEMA):
    graph = tm.Graph("through")
    a = graph.source("a", send or source(count), schema=schema, parallelism=copies)
    b = graph.sink("b", received, parallelism=targets)
    graph.connect(a, b, exchange)
    result = graph.run()
    return [result["b"].get(copy, []) for copy in range(targets)]

def all_rows(count=500, copies=3):
    return [row for copy in range(copies) for row in rows_of(copy, count)]

def same(found, wanted):
    found, wanted = list(found), list(wanted)
    assert sorted(found, key=key) == sorted(wanted, key=key), (len(found), len(wanted), found[:5], wanted[:5])

def flat(parts):
    return [row for part in parts for row in part]
"""


def program(*parts: str) -> str:
    return "\n".join(textwrap.dedent(part) for part in (COMMON, *parts))
