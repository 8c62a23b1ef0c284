"""Programs that change between the lives of a job: old states continue with nulls for what is new, or the job does not
begin.
"""

from __future__ import annotations

import json
import os
import re
import signal
from pathlib import Path
from typing import Any

import evolving_job
import launched
import pytest
import tidemill as tm
from tidemill._streaming.state import StateFields

JOB = Path(evolving_job.__file__)
ROWS, KEYS = evolving_job.ROWS, evolving_job.KEYS


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("results", "pids"):
        (tmp_path / name).mkdir()
    return tmp_path


def newest(folder: Path) -> int:
    """The newest checkpoint; 0 before the first."""
    return max((int(file.name) for file in launched.epochs(folder / "checkpoints")), default=0)


def results(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for file in (folder / "results").glob("[!.]*") for line in file.read_text().splitlines()]


def kept(folder: Path) -> dict[str, str]:
    """What ``tidemill checkpoints --state`` prints about the newest, by task."""
    listed = launched.run("checkpoints", "-n", "1", folder / "checkpoints", "--state").stdout.decode().splitlines()
    lines = [line.removeprefix("[0]").strip() for line in listed]
    ends = [at for at, line in enumerate(lines) if re.match(r"\d+ ", line)] + [len(lines)]
    return dict(line.split(", ", 1) for line in lines[ends[0] + 1 : ends[1]])


@pytest.mark.sampled(1, always=("function",))
@pytest.mark.parametrize("query", evolving_job.QUERIES)
def test_fields_that_are_added(folder: Path, query: str) -> None:
    """The job is killed, resumes with a program that keeps more, and is killed again: every row and key has one exact
    result, with nulls, or values from later rows, in place of what had not been kept.
    """
    before = launched.start("run", "-n", "2", JOB, folder, query, "1")
    launched.wait_until(lambda: before.poll() is not None or newest(folder) >= 8, "some checkpoints")
    assert before.poll() is None, before.communicate()
    os.kill(launched.pids_in(folder / "pids", 2)[0], signal.SIGKILL)
    before.communicate(timeout=launched.PATIENCE_S)
    for file in (folder / "pids").iterdir():
        file.unlink()
    first = {task: state for task, state in kept(folder).items() if "version 1" in state}

    goes_on, then = newest(folder), launched.start("run", "-n", "2", "--restarts", "3", JOB, folder, query, "2")
    # The new program's first checkpoint writes all states again, and later ones build on that.
    launched.wait_until(
        lambda: then.poll() is not None or newest(folder) >= goes_on + 5, "checkpoints of the new program"
    )
    assert then.poll() is None, then.communicate()
    second = kept(folder)
    changed = {task for task, state in first.items() if second[task] != state}
    assert changed
    assert all("version 2" in second[task] for task in changed), (first, second)
    os.kill(launched.pids_in(folder / "pids", 2)[1], signal.SIGKILL)
    _, err = then.communicate(timeout=launched.PATIENCE_S)
    assert then.returncode == 0, err.decode()
    assert b"starting the job again" in err

    rows = results(folder)
    if query in ("pairs", "groups"):
        assert sorted(row["row"] for row in rows) == list(range(ROWS))
        assert {row.get("x") for row in rows} > {None, 3 * (ROWS - 1)}
        assert all(row.get("x") in (None, 3 * row["row"]) for row in rows)
        # Results from before the change lack such a column; states kept then have a null in it.
        assert any("x" in row and row["x"] is None for row in rows)
        if query == "pairs":
            partners = {row["row"]: row["row"] + 1000 for row in rows}
            assert {row["row"]: row["partner"] for row in rows} == partners
        return
    assert sorted(row["key"] for row in rows) == list(range(KEYS))
    for row in rows:
        of_key = range(row["key"], ROWS, KEYS)
        assert (row["n"], row["sum"]) == (len(of_key), sum(of_key))
        # From the rows since.
        assert row["low"] in of_key
        assert "middle" not in row or row["middle"] > sum(of_key) / len(of_key)
    assert all(row["low"] > row["key"] for row in rows)


#: The states that each version declares, by query.
REFUSED: dict[str, dict[str, str]] = {
    "windows": {
        "counted": r'"window \d" that .*"count\(x\)" \(count of Int64\) is new and not nullable',
        "other type": r'"sum\(row\)" was sum of Int64 and Int32, but is now sum of Float64',
        "other function": r'"sum\(row\)" \(sum of Int64 and Int32\) was removed or renamed',
        "gone": r'"sum\(row\)" \(sum of Int64 and Int32\) was removed or renamed',
        "other key": r"its key was \(key: Int64\), but is now \(key: Int64, odd: Int64\)",
        "by rows": "it held windows of .*, but now holds windows of .*, with results by rows",
    },
    "pairs": {"not null": r'"join \d" that .*"left y" \(Int64\) is new and not nullable'},
    "function": {
        "other type": r'"process \d" that .*"sum" was Int64, but is now Float64',
        "gone": r'"sum" \(Int64\) was removed',
        "without names": "held states of a function, but now holds states of a function, without names",
    },
    "items": {
        "other type": r'"list seen, row" was Int64, but is now Float64',
        "other names": r'"names of map of" was Int64, but is now Utf8',
        "gone": r'"names of map of" \(Int64\) was removed or renamed',
        "other aggregate": '"aggregate sum" was Int64, but is now Float64',
        "no fields": r'"list seen, row" \(Int64\) was removed or renamed',
    },
}


@pytest.mark.parametrize("query", REFUSED)
def test_other_changes_are_refused(folder: Path, query: str) -> None:
    """An incompatible change is an error of every worker before the job begins, which names task, field, types and
    remedy; the old program can still resume from there.
    """
    stopped = launched.run("run", "-n", "1", JOB, folder, query, "1", "stop")
    assert stopped.returncode == 0, stopped.stderr.decode()
    at = newest(folder)
    others = launched.run("run", "-n", "2", JOB, folder, query, "refused", *REFUSED[query])
    assert others.returncode == 0, others.stderr.decode()
    told = [json.loads(line.partition("] ")[2]) for line in others.stdout.decode().splitlines()]
    assert sorted(version for version, _ in told) == sorted(2 * list(REFUSED[query]))
    for version, message in told:
        assert re.search(REFUSED[query][version], message), message
        assert "change the program back, or start fresh in another place" in message
    assert newest(folder) == at
    assert launched.run("run", "-n", "2", JOB, folder, query, "1", "stop").returncode == 0
    assert newest(folder) > at


def test_states_with_fields() -> None:
    """A function's state has the fields that it declared, or an error names key, field and type."""
    fields = StateFields(
        [("n", "Int64"), ("name", "Utf8"), ("ok", "Boolean"), ("mean", "Float64"), ("all", "List(Int64)")]
    )
    right: list[Any] = [None, {}, {"n": 1}, {"n": None, "name": "x", "ok": True, "mean": 2, "all": [1]}]
    assert [fields.wrong(state) for state in right] == [None] * 4
    assert fields.filled({"n": 1}) == {"n": 1, "name": None, "ok": None, "mean": None, "all": None}
    assert "must be a dict" in str(fields.wrong([1]))
    assert "has 'm', which state= does not name" in str(fields.wrong({"m": 1}))
    for name, value in {"n": "x", "name": 1, "ok": 1, "mean": True, "all": 3}.items():
        assert f"has {value!r} as {name!r}, which must be" in str(fields.wrong({name: value}))

    rows = tm.from_dict({"k": [1], "s": [1]}).select("k", at=tm.col("s").cast("timestamp[s]")).collect()
    keyed = tm.stream.from_table(rows, time="at").key_by("k")

    def wrong(key: Any, rows: Any, context: tm.stream.KeyContext) -> None:
        context.state = {"n": 1.5}

    with pytest.raises(tm.DataSetError, match=r"the state of the key \{'k': 1\} has 1.5 as 'n', which must be Int64"):
        keyed.process(wrong, {"k": "int64"}, state={"n": "int64"}).write_stream(print)
    with pytest.raises(tm.DataSetError, match="state= needs at least one field"):
        keyed.process(wrong, {"k": "int64"}, state={})


def test_items_with_fields() -> None:
    """Items of lists and maps have the declared types, or an error names the list or map, the value and the type; so
    does one for undeclared fields.
    """
    rows = tm.from_dict({"k": [1], "s": [1]}).select("k", at=tm.col("s").cast("timestamp[s]")).collect()
    keyed = tm.stream.from_table(rows, time="at").key_by("k")
    options: Any = {
        "lists": {"all": "int64"},
        "maps": {"of": ("str", {"n": "int64", "at": "timestamp[us]"})},
        "aggregates": {"sum": "int64", "pair": {"n": "int64"}},
    }

    def written(change: Any, **others: Any) -> None:
        def process(key: Any, rows: Any, context: tm.stream.KeyContext) -> None:
            change(context)

        keyed.process(process, {"k": "int64"}, **{**options, **others}).write_stream(print)

    def wrong(said: str, change: Any, **others: Any) -> None:
        with pytest.raises(tm.DataSetError, match=said):
            written(change, **others)

    written(lambda c: (c.list_state("all").extend([1, None]), c.map_state("of").update({"a": {"n": 1}, "b": {}})))
    written(lambda c: c.list_state("other").append("x"), lists=None)
    written(lambda c: (c.aggregate_state("sum", "sum").add(1), c.aggregate_state("pair", "max").add({"n": 1})))
    wrong("aggregate sum is 1.5, but must be int64", lambda c: c.aggregate_state("sum", "sum").add(1.5))
    wrong(
        "aggregate pair has 'x' as 'n', which must be Int64",
        lambda c: c.aggregate_state("pair", "max").add({"n": "x"}),
    )
    wrong("'all' is not among aggregates=, which names sum, pair", lambda c: c.aggregate_state("all", "sum"))
    wrong("an item of list all is 'x', but must be int64", lambda c: c.list_state("all").append("x"))
    wrong("an item of names of map of is 1, but must be str", lambda c: c.map_state("of").update({1: {"n": 1}}))
    wrong("an item of map of has 'x' as 'n', which must be Int64", lambda c: c.map_state("of").update(a={"n": "x"}))
    wrong("an item of map of has 'm', which the program does not name", lambda c: c.map_state("of").update(a={"m": 1}))
    wrong("an item of map of must be a dict of its fields", lambda c: c.map_state("of").update(a=1))
    wrong("'other' is not among lists=, which names all", lambda c: c.list_state("other"))
    wrong("'all' is not among maps=, which names of", lambda c: c.map_state("all"))
    for others, said in (
        ({"lists": {"all": {}}}, "list all has items of a type, or with at least one field"),
        ({"maps": {"of": "int64"}}, "map of needs a type of names and one of items"),
        ({"lists": {"all": "inty"}}, "inty"),
        ({"aggregates": {"sum": {}}}, "aggregate sum is of a type, or a dict with at least one field"),
    ):
        wrong(said, lambda c: None, **others)
