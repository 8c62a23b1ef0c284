"""Lookups: joins with what lies outside, and what is remembered of it."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import servers
import tidemill as tm


class Service:
    """Knows the squares of even numbers, and what it was asked."""

    def __init__(self) -> None:
        self.asked: list[Any] = []
        self._lock = threading.Lock()

    def __call__(self, keys: list[int]) -> list[dict[str, Any] | None]:
        with self._lock:
            self.asked += keys
        return [{"square": key * key, "name": f"n{key}"} if key % 2 == 0 else None for key in keys]


SCHEMA = {"square": "int64", "name": "str"}


def test_left_and_inner() -> None:
    data = tm.from_dict({"x": [4, 1, None, 2, 4], "y": [1, 2, 3, 4, 5]})
    service = Service()
    found = data.lookup(service, on="x", schema=SCHEMA).sort("y")
    assert found.columns == ["x", "y", "square", "name"]
    assert found.to_dict()["square"] == [16, None, None, 4, 16]
    assert set(service.asked) == {1, 2, 4}, "of a null nothing is asked"
    inner = data.lookup(Service(), on="x", schema=SCHEMA, how="inner").sort("y")
    assert inner.to_dict() == {"x": [4, 2, 4], "y": [1, 4, 5], "square": [16, 4, 16], "name": ["n4", "n2", "n4"]}
    none = tm.from_dict({"x": [1, 3]}).lookup(Service(), on="x", schema=SCHEMA, how="inner")
    assert none.to_dict() == {"x": [], "square": [], "name": []}


def test_several_columns_and_answers_by_key() -> None:
    def places(keys: list[tuple[str, int]]) -> dict[tuple[str, int], dict[str, str]]:
        return {key: {"place": "-".join(map(str, key))} for key in keys if key[1] > 1}

    data = tm.from_dict({"a": ["p", "q", "q"], "b": [1, 2, None]})
    found = data.lookup(places, on=["a", "b"], schema={"place": "str"}).sort("a", "b")
    assert found.to_dict()["place"] == [None, "q-2", None]


def looked_up(stream_keys: list[int], **options: Any) -> Service:
    """Look up the rows of a stream, each in a batch of its own and in order."""
    service = Service()
    rows = tm.from_dict({"x": stream_keys}).collect()
    stream = tm.stream.from_table(rows, rows_per_batch=1)
    seen: list[tm.Table] = []
    stream.lookup(service, on="x", schema=SCHEMA, **options).write_stream(seen.append)
    got = sorted((row["x"], row["square"]) for table in seen for row in table.to_pylist())
    assert got == sorted((x, x * x if x % 2 == 0 else None) for x in stream_keys)
    return service


def test_answers_are_remembered() -> None:
    """Also that there is none. Threads that ask at the same time may ask twice."""
    threads = 8
    asked = looked_up([2, 3] * 200).asked
    assert set(asked) == {2, 3} and len(asked) <= 2 * threads
    assert len(looked_up([2, 3] * 200, cache_rows=0).asked) == 400
    assert len(looked_up([2, 3] * 200, cache_for=0).asked) == 400


def test_what_was_used_last_is_remembered() -> None:
    from tidemill._tidemill import NativeTable
    from tidemill.dataset._lookup import Lookup

    service = Service()
    lookup = Lookup(service, "service", ["x"], NativeTable.empty(list(SCHEMA.items())), "left", 2, None)
    for key in [1, 2, 1, 3, 1, 2]:
        lookup(NativeTable.from_lists([("x", [key], None)]))
    assert service.asked == [1, 2, 3, 2]


def test_wrong_answers_are_named() -> None:
    data = tm.from_dict({"x": [1]})
    answers: dict[str, Any] = {
        r"<lambda> gave 2 rows for 1 keys": lambda keys: [None, None],
        r"<lambda> gave a int for 1; a row is a dict, or None": lambda keys: [7],
        r"<lambda> gave the columns \['other'\] for 1; announced were \['square'\]": lambda keys: [{"other": 1}],
        "ZeroDivisionError": lambda keys: [1 / 0],
    }
    for message, source in answers.items():
        with pytest.raises(tm.DataSetError, match=message):
            data.lookup(source, on="x", schema={"square": "int64"}).collect()
    with pytest.raises(tm.DataSetError, match="there is a column 'x' already"):
        data.lookup(Service(), on="x", schema={"x": "int64"})
    with pytest.raises(tm.DataSetError, match='"nothing"'):
        data.lookup(Service(), on="nothing", schema=SCHEMA)
    with pytest.raises(tm.DataSetError, match='how is "left" or "inner", not \'right\''):
        data.lookup(Service(), on="x", schema=SCHEMA, how="right")  # type: ignore[arg-type]
    with pytest.raises(tm.DataSetError, match="cache_rows is a number from 0 on, not -1"):
        data.lookup(Service(), on="x", schema=SCHEMA, cache_rows=-1)


def test_hashes_of_redis(redis_server: servers.Redis) -> None:
    with redis_server.client() as client:
        client.hset("user:1:de", mapping={"age": "30", "name": "ann", "more": "x"})
        client.hset("user:2:fr", mapping={"name": "bob"})
        client.hset("user:4:fr", mapping={"more": "x"})
    hashes = tm.stream.redis_hashes(redis_server.url, ["name", "age"], prefix="user:")
    data = tm.from_dict({"id": [1, 2, 3, 4], "land": ["de", "fr", "fr", "fr"]})
    schema = {"name": "str", "age": "int32"}
    found = data.lookup(hashes, on=["id", "land"], schema=schema, cache_for=0).sort("id")
    assert found.to_dict()["name"] == ["ann", "bob", None, None]
    assert found.to_dict()["age"] == [30, None, None, None]
    # A connection that the server has closed meanwhile is replaced.
    redis_server.restart()
    with redis_server.client() as client:
        client.hset("user:1:de", mapping={"name": "eve"})
    assert found.to_dict()["name"] == ["eve", None, None, None]
    with redis_server.client() as client:
        client.set("user:1:de", "no hash")
    with pytest.raises(tm.DataSetError, match=r"Redis at 127\.0\.0\.1:\d+: .*WRONGTYPE"):
        found.collect()
