"""Graphs that go on from a checkpoint: every message counts once, whoever is killed, and what cannot take part is refused."""

from __future__ import annotations

import json
import re
from datetime import datetime
from pathlib import Path
from typing import Any

import graph_job
import launched
import pyarrow as pa
import pytest
import standing
import stream_kills
import tidemill as tm


def test_workers_that_are_killed(tmp_path: Path) -> None:
    (tmp_path / "pids").mkdir()
    stream_kills.run_and_kill(tmp_path, 3, lambda dice, kills: dice.uniform(0.3, 1), graph_job.__file__, tmp_path)
    assert json.loads((tmp_path / "found.json").read_text()) == graph_job.expected()


class Broken(Exception):
    """What a task fails with."""


def wait_for_checkpoint(place: Path) -> None:
    """Wait until a checkpoint has begun and ended: in a source, past which barriers go while it waits."""
    before = launched.epochs(place)
    launched.wait_until(lambda: len(launched.epochs(place) - before) > 1, "two checkpoints")


def test_it_goes_on_where_it_was(tmp_path: Path) -> None:
    """A source sends again what came behind its position, of which that is left out which the checkpoint has; ends are kept."""
    begun: list[Any] = []
    fails = [True]

    def letters(out: Any, context: Any) -> str:
        begun.append(context.position)
        for number in range(context.position or 0, 40):
            out.send((context.copy, number))
            if number == 10:
                context.position = 11
            if number == 20 and fails[0]:
                wait_for_checkpoint(tmp_path / "place")
        return "end"

    def keep(message: Any, context: Any) -> None:
        context.state = [*(context.state or []), message]
        if fails[0] and len(context.state) == 60:
            raise Broken

    def build() -> tm.Graph:
        graph = tm.Graph("letters")
        graph.connect(
            graph.source("letters", letters, parallelism=2),
            graph.sink("kept", keep, parallelism=1, each=True),
            tm.exchange.gather(),
        )
        return graph

    place = tm.stream.Checkpoint(tmp_path / "place", interval="20ms")
    with pytest.raises(tm.GraphError, match="Broken"):
        build().run(checkpoint=place)
    fails[0] = False
    wanted = [(copy, number) for copy in range(2) for number in range(40)]
    found = build().run(checkpoint=place)
    assert sorted(found["kept"][0]) == wanted
    assert sorted(build().run(checkpoint=place)["kept"][0]) == wanted, "run again after its end"
    # Without checkpoints the same functions begin anew, and the state is what the sink returns.
    assert sorted(build().run()["kept"][0]) == wanted
    assert begun[-1] is None


def test_other_rows_than_before_are_refused(tmp_path: Path) -> None:
    rows = [30]

    def some(out: Any, context: Any) -> None:
        for number in range(rows[0]):
            out.send(number)
            if rows[0] == 30 and number == 20:
                wait_for_checkpoint(tmp_path)
                raise Broken

    def build(parallelism: int = 1) -> tm.Graph:
        graph = tm.Graph("some")
        source = graph.source("some", some, parallelism=1)
        graph.connect(
            source,
            graph.sink("kept", lambda n, context: None, parallelism=parallelism, each=True),
            tm.exchange.partition(),
        )
        return graph

    with pytest.raises(tm.GraphError, match="Broken"):
        build().run(checkpoint=tm.stream.Checkpoint(tmp_path, interval="10ms"))
    rows[0] = 2
    with pytest.raises(tm.GraphError, match="from a position on it must send the same again"):
        build().run(checkpoint=tmp_path)
    # The rows of before and one more: with fewer, the source fails as well, and the first error of a run is reported.
    rows[0] = 31
    with pytest.raises(tm.GraphError, match=r'another number of copies of task "kept".*parallelism='):
        build(2).run(checkpoint=tmp_path)


def sum_by_time(folder: str, copies: int, fails: bool) -> Any:
    """Sums by rounds of time, where copy 0 is ahead when the checkpoint is made; what the sink keeps, or the error."""
    ahead = Path(folder) / "ahead"

    def times(out: Any, context: Any) -> None:
        for second in range(1 if fails and context.copy else 4):
            out.send({"at": [datetime(2026, 1, 31, 0, 0, second)], "n": [10 * second + context.copy]})
        out.flush()
        if fails and context.copy == 0:
            wait_for_checkpoint(Path(folder))
            ahead.touch()
        if fails:
            # Its end would complete the rounds.
            launched.wait_until(ahead.exists, "a checkpoint with rounds that are open")
            raise Broken

    def keep(sums: Any, context: Any) -> None:
        context.state = [*(context.state or []), *sums.to_dict()["n"]]

    graph = tm.Graph("seconds")
    schema = pa.schema([("at", pa.timestamp("us")), ("n", pa.int64())])
    source = graph.source("times", times, schema=schema, parallelism=copies)
    seconds = tm.exchange.Rounds(time="1s", on="at", start="2026-01-31")
    sink = graph.sink("kept", keep, parallelism=1, each=True)
    graph.connect(source, sink, tm.exchange.reduce({"n": "sum"}, rounds=seconds))
    try:
        return graph.run(checkpoint=tm.stream.Checkpoint(folder, interval="10ms"))["kept"][0]
    except tm.GraphError as error:
        return str(error)


def test_reductions_by_rounds_of_time_need_their_workers(tmp_path: Path) -> None:
    """Sums that are open lie where their stages ran: with other workers these are other stages, or do not exist, and the
    graph does not start. With as many workers, as the error says, it goes on.
    """
    place, sums = str(tmp_path / "place"), [3, 33, 63, 93]
    assert all("Broken" in said for said in standing.run(sum_by_time, place, 3, True, workers=2))
    reason = r'state of a task "combine of times\.out.*rounds were open there.*on as many workers, on as many hosts'
    assert re.search(reason, sum_by_time(place, 3, False))
    assert standing.run(sum_by_time, place, 3, False, workers=2) == [sums] * 2

    place = str(tmp_path / "alone")
    assert "Broken" in sum_by_time(place, 3, True)
    reason = "rounds were open at the checkpoint.*by rounds of time.*on as many workers, on as many hosts"
    assert all(re.search(reason, said) for said in standing.run(sum_by_time, place, 3, False, workers=2))
    assert sum_by_time(place, 3, False) == sums


def test_only_sources_have_positions() -> None:
    def place(message: Any, context: Any) -> None:
        context.position = message

    graph = tm.Graph("placed")
    source = graph.source("numbers", lambda out, context: out.send(1), parallelism=1)
    graph.connect(source, graph.sink("kept", place, parallelism=1, each=True), tm.exchange.gather())
    with pytest.raises(tm.GraphError, match=r"task 'kept' is not a source, so it has no position.*context\.state"):
        graph.run()


def nothing(*_: Any) -> None:
    pass


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({}, r"task 'sink' cannot take part in checkpoints: its function reads its input by itself.*each=True"),
    (
        {"comm": True},
        r"reads its input by itself.*each=True.*runs queries and solvers on that message; a stream cannot begin in the middle",
    ),
    ({"comm": True, "each": True}, "with comm=True its copies talk to each other in the middle of a call.*by rounds"),
    ({"each": True, "retries": 1}, "leave out retries="),
]


@pytest.mark.parametrize(("options", "reason"), REFUSED)
def test_what_cannot_take_part(tmp_path: Path, options: dict[str, Any], reason: str) -> None:
    graph = tm.Graph("refused")
    graph.connect(graph.source("source", nothing), graph.sink("sink", nothing, **options))
    with pytest.raises(tm.GraphError, match=reason):
        graph.run(checkpoint=tmp_path)


def test_what_keeps_rows_to_the_end_cannot_take_part(tmp_path: Path) -> None:
    graph = tm.Graph("sorted")
    source = graph.source("source", nothing, schema={"n": "int64"})
    graph.connect(source, graph.sink("sink", nothing, each=True), tm.exchange.sort("n"))
    with pytest.raises(tm.GraphError, match="keeps rows until its input ends"):
        graph.run(checkpoint=tmp_path)
    graph = tm.Graph("loop")
    task = graph.compute("task", lambda rows, out, context: None, parallelism=1)
    graph.feedback(task, task, tm.exchange.direct(rounds="strict"), limit=1)
    with pytest.raises(tm.GraphError, match="a graph with a loop makes no checkpoints"):
        graph.run(checkpoint=tmp_path)
