"""Lookups: joins with outside data, and the cache of their answers."""

from __future__ import annotations

import threading
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any

import local_servers
import pyarrow as pa
import pytest
import tidemill as tm


class Service:
    """Knows the squares of even numbers, and records the keys it was asked for."""

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
    """Look up the rows of a stream, each in its own batch and in order."""
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
        r"<lambda> returned 2 rows for 1 keys": lambda keys: [None, None],
        r"<lambda> returned a int for 1; a row must be a dict, or None": lambda keys: [7],
        r"<lambda> returned the columns \['other'\] for 1; expected \['square'\]": lambda keys: [{"other": 1}],
        "ZeroDivisionError": lambda keys: [1 / 0],
    }
    for message, source in answers.items():
        with pytest.raises(tm.DataSetError, match=message):
            data.lookup(source, on="x", schema={"square": "int64"}).collect()
    with pytest.raises(tm.DataSetError, match="column 'x' already exists"):
        data.lookup(Service(), on="x", schema={"x": "int64"})
    with pytest.raises(tm.DataSetError, match='"nothing"'):
        data.lookup(Service(), on="nothing", schema=SCHEMA)
    with pytest.raises(tm.DataSetError, match='how must be "left" or "inner", not \'right\''):
        data.lookup(Service(), on="x", schema=SCHEMA, how="right")  # type: ignore[arg-type]
    with pytest.raises(tm.DataSetError, match="cache_rows must be a non-negative integer, not -1"):
        data.lookup(Service(), on="x", schema=SCHEMA, cache_rows=-1)


def test_hashes_of_redis(redis_server: local_servers.Redis) -> None:
    with redis_server.client() as client:
        client.hset("user:1:de", mapping={"age": "30", "name": "ann", "more": "x"})
        client.hset("user:2:fr", mapping={"name": "bob"})
        client.hset("user:4:fr", mapping={"more": "x"})
    hashes = tm.stream.redis_lookup(redis_server.url, ["name", "age"], prefix="user:")
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


TYPED: dict[str, pa.Array] = {
    "whole": pa.array([1, -2, None, 1, None], pa.int64()),
    "real": pa.array([1.0, 0.1, None, 1.0, None], pa.float64()),
    "money": pa.array([Decimal("1.50"), Decimal("-2.00"), None, Decimal("1.50"), None], pa.decimal128(9, 2)),
    "truth": pa.array([True, False, None, True, None]),
    "day": pa.array([date(2026, 1, 2), date(1969, 1, 2), None, date(2026, 1, 2), None]),
    "clock": pa.array([time(1, 2, 3, 4), time(1), None, time(1, 2, 3, 4), None], pa.time64("us")),
    "at": pa.array([datetime(2026, 1, 2), datetime(1969, 1, 2, 3, 4, 5, 6), None, datetime(2026, 1, 2), None]),
    "zoned": pa.array([0, 1, None, 0, None], pa.timestamp("ms", "Europe/Zurich")),
    "long": pa.array([timedelta(seconds=1.5), timedelta(days=2), None, timedelta(seconds=1.5), None]),
    "bytes": pa.array([b":", b"a:b", None, b"\\N", b"\\"], pa.binary()),
    "text": pa.array([":", "a:b", None, "\\N", "\\"]),
}


@pytest.mark.parametrize("name", TYPED)
def test_hashes_that_a_sink_has_written(redis_server: local_servers.Redis, name: str) -> None:
    """Python's texts of numbers, booleans and times differ from the sink's, and its None does not tell its type:
    existing hashes were not found.
    """
    texts = ["\\N", "a:b", ":", "a:\\", None]
    table = pa.table({"typed": TYPED[name], "text": texts, "n": range(5)})
    rows = tm.from_arrow(table)
    hashes = tm.stream.redis_lookup(redis_server.url, "n", prefix=f"{name}:")
    with redis_server.client() as client:
        for key in (["typed", "text"], ["text", "typed"]):
            sink = tm.stream.to_redis(redis_server.url, key=key, prefix=f"{name}:")
            tm.stream.from_table(rows.collect()).write_stream(sink)
            keys = client.keys(f"{name}:*")
            assert len(keys) == 5, keys
            assert hashes(table.select(key)) == [{"n": str(n)} for n in range(5)]
            for cached in (0, 100):
                found = rows.select(*key, at="n").lookup(hashes, on=key, schema={"n": "int64"}, cache_rows=cached)
                # A lookup finds nothing for a null.
                nulls = [None if None in row else row[2] for row in zip(*table.to_pydict().values(), strict=True)]
                assert found.sort("at").to_dict()["n"] == nulls
            client.delete(*keys)


def test_keys_without_a_type(redis_server: local_servers.Redis) -> None:
    """A None was taken for a text, and a number's hash was not found."""
    with redis_server.client() as client:
        client.hset("untyped::x", "n", "1")
        client.hset("untyped:\\N:x", "n", "2")
        client.hset("untyped:5:x", "n", "3")
    hashes = tm.stream.redis_lookup(redis_server.url, "n", prefix="untyped:")
    assert hashes([]) == []
    assert hashes([(5, "x"), (None, "x"), (6, "x")]) == [{"n": "3"}, {"n": "1"}, None]
    assert hashes([("a", "x"), (None, "x")]) == [None, {"n": "2"}]
    with pytest.raises(tm.DataSetError, match=r"part 0 of the keys is None .*as an Arrow table"):
        hashes([(None, "x")])
    for kind, n in ((pa.int8(), "1"), (pa.string(), "2")):
        assert hashes(pa.table({"a": pa.array([None], kind), "b": ["x"]})) == [{"n": n}]


def test_rows_and_keys_stay_together() -> None:
    """A source that takes rows gets each missing key once, in the order that its answers need; nulls and cached keys
    are left out.
    """

    class OfRows:
        def __init__(self) -> None:
            self.asked: list[list[int]] = []

        def __call__(self, keys: list[int]) -> list[Any]:
            raise AssertionError("it is to be given rows")

        def of_rows(self, rows: Any, on: list[str]) -> list[dict[str, int]]:
            keys = rows.column(on[0])
            self.asked.append(keys)
            return [{"square": key * key} for key in keys]

    source = OfRows()
    data = tm.from_dict({"x": [3, None, 1, 3, 2, 1], "y": list(range(6))})
    found = data.lookup(source, on="x", schema={"square": "int64"}).sort("y")
    assert found.to_dict()["square"] == [9, None, 1, 9, 4, 1]
    assert sorted(key for keys in source.asked for key in keys) == [1, 2, 3]
    # By now all are cached.
    asked = len(source.asked)
    assert found.to_dict()["square"] == [9, None, 1, 9, 4, 1] and len(source.asked) == asked
