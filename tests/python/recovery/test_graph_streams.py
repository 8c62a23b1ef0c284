"""Streams in the tasks of graphs that make checkpoints: each row counts once behind them, wherever a worker is killed."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import enclosed_job
import launched
import pytest
import stream_kills
import tidemill as tm
from tidemill.graph import _outbox

KINDS = {"n": "int64"}


def test_workers_that_are_killed(tmp_path: Path) -> None:
    (tmp_path / "pids").mkdir()
    stream_kills.run_and_kill(tmp_path, 4, lambda dice, kills: dice.uniform(0.3, 1), enclosed_job.__file__, tmp_path)
    assert json.loads((tmp_path / "found.json").read_text()) == enclosed_job.expected()


class Broken(Exception):
    """What an outbox fails with."""


def wait_for_checkpoint(place: Path) -> None:
    """Wait until a checkpoint has begun and ended."""
    before = launched.epochs(place)
    launched.wait_until(lambda: len(launched.epochs(place) - before) > 1, "two checkpoints")


def keep(rows: tm.Table, context: Any) -> None:
    context.state = [*(context.state or []), *(row["n"] for row in rows)]


def numbers(rows: int, place: Path | None = None) -> tm.DataSet:
    """A stream of numbers in batches of five; with `place`, each tenth batch is read when there is another checkpoint there."""

    def read(split: str, position: int | None) -> Iterator[tuple[list[dict[str, int]], int]]:
        for first in range(position or 0, rows, 5):
            if place is not None and first % 50 == 45:
                before = launched.epochs(place)
                launched.wait_until(lambda before=before: launched.epochs(place) - before, "a checkpoint")
            yield [{"n": n} for n in range(first, first + 5)], first + 5

    return tm.stream.from_function(read, KINDS)


def graph_of(program: Any, **options: Any) -> tm.Graph:
    graph = tm.Graph("program")
    source = graph.source("program", program, schema=KINDS, comm=True, parallelism=1, **options)
    graph.connect(source, graph.sink("kept", keep, parallelism=1, each=True), tm.exchange.gather())
    return graph


@pytest.mark.parametrize("piece_bytes", [_outbox.PIECE_BYTES, 100])
def test_it_fails_at_any_write_of_the_outbox(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, piece_bytes: int) -> None:
    """Before and after each write, of which the first fails at the first, the second run at the second, and so on: what was
    committed, but not sent, and what was sent, but is in no checkpoint of the graph. Also with rows that are more than fit in
    memory.
    """
    monkeypatch.setattr(_outbox, "PIECE_BYTES", piece_bytes)
    place = tmp_path / "place"
    inner = place / "streams"

    def program(out: Any, context: Any) -> None:
        stream = numbers(800, next(inner.glob("*/*"), place))
        with tm.group(context.comm):
            stream.write_stream(out.send)

    writes = itertools.count()
    fails_at = [0]
    put = _outbox.Outbox._put

    def failing(outbox: Any, name: str, data: bytes) -> None:
        number = next(writes)
        if number == fails_at[0]:
            raise Broken
        put(outbox, name, data)
        if number + 0.5 == fails_at[0]:
            raise Broken

    monkeypatch.setattr(_outbox.Outbox, "_put", failing)
    checkpoint = tm.stream.Checkpoint(place, interval="10ms")
    for at in range(8):
        writes, fails_at[0] = itertools.count(), at / 2
        with pytest.raises(tm.GraphError, match="Broken"):
            graph_of(program).run(checkpoint=checkpoint)
    fails_at[0] = -1
    assert sorted(graph_of(program).run(checkpoint=checkpoint)["kept"][0]) == list(range(800))
    again = graph_of(program).run(checkpoint=checkpoint)
    assert sorted(again["kept"][0]) == list(range(800)), "run again after its end"
    # Each is of a part that is kept: those of runs that failed before their part was prepared are gone.
    of_parts = [_outbox.Part.parsed(file.name) for file in place.glob("notes/outbox/*/*/rows/*")]
    pieces = {file.name for file in place.glob("notes/outbox/*/*/pieces/*")}
    assert pieces == {name for part in of_parts for name in part.piece_names()}
    assert bool(pieces) == (piece_bytes == 100)


def test_entries_that_no_checkpoint_needs_are_removed(tmp_path: Path) -> None:
    place = tmp_path / "place"

    def program(out: Any, context: Any) -> None:
        with tm.group(context.comm):
            numbers(1000, place).write_stream(out.send)

    result = graph_of(program).run(checkpoint=tm.stream.Checkpoint(place, interval="10ms", keep=1))
    assert sorted(result["kept"][0]) == list(range(1000))
    left = [file.name for file in (place / "notes/outbox").glob("*/*/rows/*")]
    numbered = [int(file.name.split(".")[0]) for file in (place / "notes/outbox").glob("*/*/sent/*/*")]
    assert len(left) == len(numbered) < max(numbered)


def test_streams_one_after_the_other_and_functions_of_the_program(tmp_path: Path) -> None:
    """Each stream has a name and checkpoints of its own; a sink may be any function, and one may commit by itself."""
    seen = list[int]()

    def program(out: Any, context: Any) -> str:
        with tm.group(context.comm):
            small, large = numbers(20).filter(tm.col("n") < 10), numbers(40).filter(tm.col("n") >= 20)
            tm.stream.write([(small, out.send), (small, lambda rows: seen.extend(rows.to_dict()["n"]))], name="first")
            large.write_stream(lambda rows: out.send({"n": [n + 100 for n in rows.to_dict()["n"]]}), name="second")
            large.write_stream(tm.stream.to_files(tmp_path / "files", format="csv"), name="third")
        return "end"

    result = graph_of(program).run(checkpoint=tmp_path / "place")
    assert sorted(result["kept"][0]) == [*range(10), *range(120, 140)]
    assert (sorted(seen), result["program"]) == (list(range(10)), {0: "end"})
    assert len(list((tmp_path / "place/streams").glob("*/*"))) == 3


def test_a_program_that_begins_anew(tmp_path: Path) -> None:
    """One that is no stream sends everything again; that which the checkpoint has is left out."""
    fails = [True]

    def program(out: Any, context: Any) -> None:
        for n in range(30):
            out.send({"n": [context.comm.allreduce(n)]})
            if fails[0] and n == 20:
                wait_for_checkpoint(tmp_path)
                raise Broken

    checkpoint = tm.stream.Checkpoint(tmp_path, interval="10ms")
    with pytest.raises(tm.GraphError, match="Broken"):
        graph_of(program).run(checkpoint=checkpoint)
    fails[0] = False
    assert graph_of(program).run(checkpoint=checkpoint)["kept"][0] == list(range(30))


def send_too(out: Any, context: Any) -> None:
    with tm.group(context.comm):
        numbers(5).write_stream(out.send)
    out.send({"n": [1]})


def send_first(out: Any, context: Any) -> None:
    out.send({"n": [1]})
    with tm.group(context.comm):
        numbers(5).write_stream(out.send)


def twice(out: Any, context: Any) -> None:
    with tm.group(context.comm):
        numbers(5).write_stream(out.send)
        numbers(5).write_stream(out.send)


def own_checkpoint(out: Any, context: Any) -> None:
    with tm.group(context.comm):
        numbers(5).write_stream(out.send, checkpoint="elsewhere")


def own_position(out: Any, context: Any) -> None:
    context.position = 1


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        (send_too, r"task 'program' sends rows of a stream, and messages of its own"),
        (send_first, r"task 'program' sends rows of a stream, and messages of its own"),
        (twice, r"task 'program' has two streams named 'stream'; give each a name="),
        (own_checkpoint, r"in its task 'program'; leave out checkpoint="),
        (own_position, r"task 'program': with comm=True a copy has no position of its own"),
    ],
)
def test_what_cannot_go_on(tmp_path: Path, program: Any, reason: str) -> None:
    with pytest.raises(tm.GraphError, match=reason):
        graph_of(program).run(checkpoint=tmp_path)


def test_copies_that_are_called_in_step(tmp_path: Path) -> None:
    """A solver behind a stream: its copies are called for the same messages, also after a restart, and talk in the middle of a call."""
    fails = [True]

    def source(out: Any, context: Any) -> None:
        for n in range(context.position or 0, 40):
            out.send(n)
            context.position = n + 1
            if fails[0] and n == 30:
                wait_for_checkpoint(tmp_path)
                raise Broken

    def solve(message: list[int], context: Any) -> None:
        total = context.comm.allreduce(message[0] * (context.copy + 1))
        context.state = [*(context.state or []), total]

    def build() -> tm.Graph:
        graph = tm.Graph("solver")
        solver = graph.sink("solve", solve, parallelism=3, each=True, comm=True)
        graph.connect(graph.source("numbers", source, parallelism=1), solver, tm.exchange.broadcast(rounds="strict"))
        return graph

    checkpoint = tm.stream.Checkpoint(tmp_path, interval="10ms")
    with pytest.raises(tm.GraphError, match="Broken"):
        build().run(checkpoint=checkpoint)
    fails[0] = False
    assert build().run(checkpoint=checkpoint)["solve"] == {copy: [6 * n for n in range(40)] for copy in range(3)}
