"""Tables of databases, read and written: SQLite always, PostgreSQL where there is a server."""

from __future__ import annotations

import datetime as dt
import sqlite3
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path

import launched
import pytest
import tidemill as tm
from datasets import rows
from local_servers.postgresql import PostgreSQL

ROWS = {"n": [1, None, 3], "x": [0.5, 2.0, None], "s": ["é", "", None]}

#: On every worker: all rows are there once, however they are partitioned, and errors are the same everywhere.
PROGRAM = """
import sys
import tidemill as tm

job, uri = tm.init(), sys.argv[1]
numbers = tm.from_dict({"n": [*range(1000), None], "s": [f"s{n}" for n in range(1001)]})
print("written", numbers.write_database("numbers", uri))
for partition_on in (None, "n"):
    data = tm.read_database("select n, s from numbers where s <> 's7'", uri, partition_on=partition_on)
    mine = data.collect_local().num_rows
    print(partition_on, data.count(), data.select(tm.sum("n")).to_dict(), 0 < mine < 1000)
data = tm.read_database("select n, s from numbers where n > 100000", uri, partition_on="n")
print("none", data.count())
for call in (
    lambda: numbers.write_database("numbers", uri),
    lambda: tm.read_database("select * from nothing", uri),
    lambda: tm.read_database("select * from numbers", uri, partition_on="s"),
):
    try:
        call()
    except tm.DataSetError as error:
        print(type(error).__name__, str(error).splitlines()[0][:60])
print("written", numbers.write_database("numbers", uri, if_exists="append"), tm.read_database("select * from numbers", uri).count())
"""


def check_job(uri: str, tmp_path: Path) -> str:
    app = tmp_path / "app.py"
    app.write_text(PROGRAM)
    done = launched.run("run", "-n", "2", app, uri)
    assert done.returncode == 0, done.stderr.decode()
    lines = done.stdout.decode().splitlines()
    mine, other = ([line[4:] for line in lines if line.startswith(f"[{rank}]")] for rank in (0, 1))
    assert mine == other
    assert mine[:4] == [
        "written 1001",
        "None 1000 {'n': [499493]} True",
        "n 1000 {'n': [499493]} True",
        "none 0",
    ]
    assert [line.split()[0] for line in mine[4:7]] == ["DataSetError"] * 3
    assert mine[7] == "written 1001 2002"
    return "\n".join(mine)


def test_sqlite(tmp_path: Path) -> None:
    """Written tables can be read back, existing tables stay unless replacing was requested, and errors say what to do."""
    uri = f"sqlite:///{tmp_path}/a.db"
    data = tm.from_dict(ROWS)
    assert data.write_database("t", uri) == 3
    assert rows(tm.read_database("select * from t", uri)) == rows(data)
    with pytest.raises(tm.DataSetError, match=r"(?s)table 't': .*already exists.*if_exists=\"append\""):
        data.write_database("t", uri)
    assert data.write_database("t", uri, if_exists="append") == 3
    assert tm.read_database("select * from t", uri).count() == 6
    data.write_database("t", uri, if_exists="replace")
    assert tm.read_database("select n + 1 as m from t", uri, partition_on="m").sort("m").to_dict() == {
        "m": [2, 4, None]
    }
    with pytest.raises(tm.DataSetError, match="no such table: nope"):
        tm.read_database("select * from nope", uri)
    with pytest.raises(tm.DataSetError, match="takes a query"):
        tm.read_database("create table other (x)", uri)
    with pytest.raises(tm.DataSetError, match=r"mysql://\.\.\.@host/db") as raised:
        tm.read_database("select 1", "mysql://me:secret@host/db")
    assert "secret" not in str(raised.value)


def test_connections_of_pythons_own(tmp_path: Path) -> None:
    """DB-API connections work, too; those passed in open stay open."""
    path = tmp_path / "a.db"
    with sqlite3.connect(path) as made:
        made.execute("create table t (n integer, s text)")
        made.execute("insert into t values (1, 'a'), (null, 'b')")
    expected = {"n": [1, None], "s": ["a", "b"]}
    assert tm.read_database("select * from t", made).to_dict() == expected
    assert tm.read_database("select * from t", lambda: sqlite3.connect(path)).to_dict() == expected
    assert made.execute("select count(*) from t").fetchone() == (2,)
    with pytest.raises(tm.DataSetError, match="same name: n, n"):
        tm.read_database("select n, n from t", made)
    with pytest.raises(tm.DataSetError, match="needs an ADBC connection"):
        tm.from_dict({"x": [1]}).write_database("u", made)
    made.close()


def test_workers_with_sqlite(tmp_path: Path) -> None:
    check_job(f"sqlite:///{tmp_path}/a.db", tmp_path)


@pytest.fixture(scope="module")
def postgresql(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PostgreSQL]:
    server = PostgreSQL(tmp_path_factory.mktemp("postgresql"))
    yield server
    server.remove()


def test_postgresql(postgresql: PostgreSQL) -> None:
    """All types common to both go there and back; partitions by numbers, dates and times have every row once."""
    columns = {
        **ROWS,
        "d": [dt.date(2024, 2, 29), None, dt.date(1969, 12, 31)],
        "t": [dt.datetime(2024, 1, 1, 12, 30), dt.datetime(2023, 1, 1), None],
        "b": [True, None, False],
        "y": [b"\x00\xff", b"", None],
    }
    data = tm.from_dict(columns)
    assert data.write_database("types", postgresql.uri) == 3
    found = tm.read_database("select * from types", postgresql.uri)
    assert rows(found) == rows(data)
    assert tm.read_database("select 1.25::numeric(9, 2) as p", postgresql.uri).to_dict()["p"][0] in (
        "1.25",
        Decimal("1.25"),
    )
    with pytest.raises(tm.DataSetError, match='"nope" does not exist'):
        tm.read_database("select * from nope", postgresql.uri)


def test_partitions_cover_everything(postgresql: PostgreSQL) -> None:
    """A row at a bound, or a null, would be lost or duplicated."""
    from tidemill.dataset._database import _parts, _read

    times = [dt.datetime(2024, 1, 1) + dt.timedelta(seconds=7 * n, microseconds=n) for n in range(50)]
    columns = {"n": [*range(-25, 25), None], "x": [n / 7 for n in range(50)] + [None], "t": [*times, None]}
    columns["d"] = [
        None if t is None else (dt.date(2024, 1, 1) + dt.timedelta(days=n)) for n, t in enumerate(columns["t"])
    ]
    data = tm.from_dict(columns)
    data.write_database("parts", postgresql.uri)
    for column in columns:
        for count in (2, 3, 7, 60):
            queries = _parts(postgresql.uri, "select * from parts -- all of them", column, count)
            parts = [_read(postgresql.uri, query) for query in queries]
            assert len(parts) == count
            found = [value for part in parts for value in part[column]]
            assert sorted(found, key=str) == sorted(columns[column], key=str), (column, count)


def test_workers_with_postgresql(postgresql: PostgreSQL, tmp_path: Path) -> None:
    check_job(postgresql.uri, tmp_path)
