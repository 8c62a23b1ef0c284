"""The engine of keyed functions by itself, without a stream around it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tidemill as tm
from tidemill._streaming.process import KeyedLogic, KeyState
from tidemill._streaming.state import Declared
from tidemill._tidemill import NativeKeyedEngine, NativeTable

__all__ = ["NativeKeyedEngine", "call", "engine", "listed", "states", "tables"]


def engine(
    function: Any,
    schema: dict[str, str],
    ttl: int | None = None,
    folder: object = None,
    saves: bool = True,
    clock: Callable[[], int] | None = None,
    declared: Declared | None = None,
) -> NativeKeyedEngine:
    """Return an engine for keys `k`, whose type is in `schema`."""
    options = {} if clock is None else {"clock": clock}
    logic = KeyedLogic(function, function.__name__, ("k",), schema, declared, **options)
    return NativeKeyedEngine(logic, [("k", schema["k"])], ttl, saves, None if folder is None else str(folder), clock)


def tables(keys: dict[str, list[Any]], rows: dict[str, list[Any]] | None = None) -> tuple[NativeTable, NativeTable]:
    """Return tables of keys and of their rows."""
    return tm.from_dict(keys).collect()._native, tm.from_dict(rows or keys).collect()._native


def call(one: NativeKeyedEngine, key: Any, rows: dict[str, list[Any]] | None = None, bucket: int = 1) -> list[Any]:
    """Add rows of one key; returns the function's result."""
    keys, table = tables({"k": [key]}, rows)
    return listed(one.rows(keys, [bucket], [table.num_rows], table))


def listed(made: list[NativeTable]) -> list[dict[str, Any]]:
    """Return the rows of tables."""
    return [row for native in made for row in tm.Table(native).to_pylist()]


def states(one: NativeKeyedEngine) -> dict[Any, KeyState | None]:
    """Return the states in memory, by key."""
    return {tm.Table(key)["k"][0]: state for key, _, state, *_ in one.entries()}
