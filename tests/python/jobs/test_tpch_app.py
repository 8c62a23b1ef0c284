"""``tidemill tpch``: all queries on several workers against DuckDB, and the command's errors."""

from __future__ import annotations

import argparse
import datetime
import shutil
import subprocess
import sys
from decimal import Decimal
from pathlib import Path

import launched
import pytest
from tidemill.apps import tpch
from tidemill.apps.tpch_queries import QUERIES, TABLES, query

pytest.importorskip("duckdb", reason="the answers to compare with are DuckDB's")

#: For 22 queries, and the start of the workers, on a machine that does other things too.
PATIENCE_S = 240.0


def run(workers: int, *args: str | Path) -> subprocess.CompletedProcess[str]:
    command = launched.command("run", "-n", str(workers), "-m", "tidemill.apps.tpch", *args)
    return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tpch") / "new" / "scale-0.01"
    done = run(2, "--scale", "0.01", "--data", folder, "--queries", "6")
    assert done.returncode == 0, done.stderr
    assert sorted(path.name for path in folder.iterdir()) == sorted(TABLES)
    assert [path.name for path in folder.parent.iterdir()] == ["scale-0.01"], "nothing is left beside the data"
    return folder


@pytest.mark.sampled(2)
@pytest.mark.parametrize("workers", [1, 2, 3])
@pytest.mark.parametrize("cached", [False, True])
def test_all_answers_are_those_of_duckdb(data: Path, workers: int, cached: bool) -> None:
    """From files that every worker can read, and from tables in parts on the workers."""
    done = run(workers, "--scale", "0.01", "--data", data, "--check", *["--cached"] * cached)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = [line.removeprefix("[0] ") for line in done.stdout.splitlines()]
    assert [line.split()[0] for line in lines[1:-1]] == [f"Q{number}" for number in QUERIES]
    assert all(line.endswith("as DuckDB") for line in lines[1:-1])


PLANS = """
import sys
from pathlib import Path
import tidemill as tm
from tidemill.apps.tpch_queries import QUERIES, TABLES, query

tables = {name: tm.read_parquet(Path(sys.argv[1]) / name) for name in TABLES}
for number in QUERIES:
    plan = tm.sql(query(number, 0.01), **tables).explain()
    if tm.init().rank == 0 and plan.startswith("on one worker"):
        print(f"Q{number}", plan.splitlines()[0])
"""


def test_every_query_runs_on_all_workers(data: Path, tmp_path: Path) -> None:
    """A single worker would give the same answers, so only the plans tell."""
    (tmp_path / "plans.py").write_text(PLANS)
    done = launched.run("run", "-n", "2", tmp_path / "plans.py", data)
    assert done.returncode == 0, done.stderr.decode()
    assert done.stdout.decode() == ""


def test_a_wrong_answer_is_named(
    data: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A comparison that never finds a difference would prove nothing, so DuckDB is asked for something else."""
    asked = tpch._duckdb
    monkeypatch.setattr(tpch, "_duckdb", lambda folder, text: asked(folder, text.replace("'3' month", "'4' month")))
    assert tpch.main(["--scale", "0.01", "--data", str(data), "--queries", "4,6", "--check"]) == 1
    out, err = capsys.readouterr()
    assert "differs: (1-URGENT, " in out and "Q6 " in out and out.count("as DuckDB") == 1
    assert err == "tidemill tpch: wrong or failed: Q4\n"


def test_a_query_that_fails_is_named_and_the_others_run(data: Path, tmp_path: Path) -> None:
    """Here because of a damaged file whose damage only its reader sees; both workers must be ready for the next query."""
    folder = shutil.copytree(data, tmp_path / "data")
    damaged = folder / "lineitem" / "lineitem.3.parquet"
    content = damaged.read_bytes()
    footer = int.from_bytes(content[-8:-4], "little") + 8
    # Values, not the index after them, which is read with the footer.
    length = (len(content) - footer) * 3 // 4
    damaged.write_bytes(content[:4] + bytes(length) + content[4 + length :])
    done = run(2, "--scale", "0.01", "--data", folder, "--queries", "1,2,6,13")
    assert done.returncode == 1, done.stdout
    assert done.stdout.count("lineitem.3.parquet") == 2 and done.stdout.count(" rows") == 2, done.stdout
    assert "wrong or failed: Q1, Q6\n" in done.stderr


def test_folders_that_are_no_data(data: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = run(2, "--scale", "0.01", "--data", tmp_path)
    assert done.returncode == 1 and "has files, but no table customer nor lineitem nor" in done.stderr
    assert done.stderr.count("tidemill tpch:") == 1
    done = run(2, "--scale", "0.1", "--data", data)
    assert done.returncode == 1 and "has data of scale 0.01, not 0.1" in done.stderr


def test_what_is_missing_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tpch.shutil, "which", lambda *_, **__: None)  # type: ignore[attr-defined]
    with pytest.raises(ValueError, match="pip install tpchgen-cli"):
        tpch._make(tmp_path / "new", 0.01)
    assert not (tmp_path / "new").exists()


def test_a_failing_generator_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tpch.shutil, "which", lambda *_, **__: sys.executable)  # type: ignore[attr-defined]
    with pytest.raises(ValueError, match="tpchgen-cli ended with 2"):
        tpch._make(tmp_path / "new", 0.01)
    assert list(tmp_path.iterdir()) == []


def test_the_command_line() -> None:
    assert tpch._numbers("1, 6,10-12") == [1, 6, 10, 11, 12]
    for wrong in ["", "0", "23", "1,x", "5-3", "20-30", "-1"]:
        with pytest.raises(argparse.ArgumentTypeError, match="is not a query; choose 1 to 22"):
            tpch._numbers(wrong)
    for wrong in ["0", "nan", "-1", "x"]:
        with pytest.raises(argparse.ArgumentTypeError, match="must be a number from"):
            tpch._scale(wrong)


def test_every_query_that_sorts_has_its_order_compared() -> None:
    """`_order` reads the query's text; a query that it does not understand would be compared without order."""
    sorting = [number for number in QUERIES if "order by" in query(number, 1.0)]
    assert sorting == [number for number in QUERIES if number not in (6, 14, 17, 19)]
    assert tpch._order(query(21, 1.0), ["s_name", "numwait"]) == [1, 0]
    assert tpch._order(query(6, 1.0), ["revenue"]) == []


def test_what_counts_as_the_same() -> None:
    day = datetime.date(1995, 1, 1)
    rows = [("a", Decimal("2.50"), day, None), ("b", Decimal("0.1667"), day, 7)]
    assert tpch._difference(list(reversed(rows)), [(*rows[0][:1], 2.5, day, None), ("b", 1 / 6, day, 7)], []) == ""
    assert "order of row 0" in tpch._difference(list(reversed(rows)), rows, [0])
    assert tpch._difference(rows, rows[:1], []).endswith("no row of DuckDB")
    for wrong in [
        ("b", 1 / 6, day, None),
        ("b", 0.1665, day, 7),
        ("b", None, day, 7),
        ("b", 1 / 6, None, 7),
        ("b", 1 / 6),
    ]:
        assert "here, (b, " in tpch._difference(rows, [rows[0], wrong], []), wrong
    assert tpch._same(1e12 + 1, 1e12) and not tpch._same(1.0 + 1e-8, 1.0) and tpch._same(float("inf"), float("inf"))
