"""The engine for functions on the rows of each key by itself, without a stream around it."""

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
    """An engine of keys `k`, of the type that `schema` gives it."""
    options = {} if clock is None else {"clock": clock}
    logic = KeyedLogic(function, function.__name__, ("k",), schema, declared, **options)
    return NativeKeyedEngine(logic, [("k", schema["k"])], ttl, saves, None if folder is None else str(folder), clock)


def tables(keys: dict[str, list[Any]], rows: dict[str, list[Any]] | None = None) -> tuple[NativeTable, NativeTable]:
    """Tables of keys and their rows."""
    return tm.from_dict(keys).collect()._native, tm.from_dict(rows or keys).collect()._native


def call(one: NativeKeyedEngine, key: Any, rows: dict[str, list[Any]] | None = None, bucket: int = 1) -> list[Any]:
    """Rows of one key come; returns what the function gives."""
    keys, table = tables({"k": [key]}, rows)
    return listed(one.rows(keys, [bucket], [table.num_rows], table))


def listed(made: list[NativeTable]) -> list[dict[str, Any]]:
    """The rows of tables."""
    return [row for native in made for row in tm.Table(native).to_pylist()]


def states(one: NativeKeyedEngine) -> dict[Any, KeyState | None]:
    """States in memory, by key."""
    return {tm.Table(key)["k"][0]: state for key, _, state, *_ in one.entries()}
