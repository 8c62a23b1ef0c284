"""``tidemill kmeans``: what it finds in files, what it says about bad ones, what it writes."""

from __future__ import annotations

import csv
import gzip
import json
import os
import subprocess
import sys
import xml.etree.ElementTree
from pathlib import Path
from typing import Any

import launched
import numpy as np
import pytest
from numpy.typing import NDArray
from tidemill.apps import _formats, _table
from tidemill.apps.kmeans import main
from tidemill.ml._job import active

DATA = Path(os.environ.get("TIDEMILL_DATA", Path(__file__).parents[3] / "../shared/data")) / "kmeans"


class Rank:
    """A rank that reads alone: enough to check how ranks share a file."""

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size = rank, size

    def allgather(self, value: Any) -> list[Any]:
        return [value] * self.size


def everything(columns: list[_table.Column]) -> list[int]:
    return list(range(len(columns)))


def numbers(path: Path, size: int = 1, **options: Any) -> NDArray[Any]:
    shares = [_formats.read(Rank(rank, size), path, everything, **options) for rank in range(size)]  # type: ignore[arg-type]
    return np.concatenate([np.column_stack(share.values) for share in shares])


def write(path: Path, text: str) -> Path:
    if path.suffix == ".gz":
        path.write_bytes(gzip.compress(text.encode()))
    else:
        path.write_bytes(text.encode())
    return path


@pytest.mark.parametrize("size", [1, 2, 3, 7, 50])
@pytest.mark.parametrize("name", ["table.csv", "table.csv.gz"])
@pytest.mark.parametrize("ending", ["\n", "\r\n"])
@pytest.mark.parametrize("last", [True, False])
def test_each_line_belongs_to_one_rank(tmp_path: Path, size: int, name: str, ending: str, last: bool) -> None:
    """A line at the boundary of two parts must be read once, however many parts there are."""
    lines = ["a,b"] + [f"{i},{'1' * (i % 9 + 1)}" for i in range(40)]
    path = write(tmp_path / name, ending.join(lines) + (ending if last else ""))
    table = numbers(path, size)
    assert table[:, 0].tolist() == list(range(40))


@pytest.mark.parametrize("delimiter", [",", ";", "\t", "|", " "])
def test_delimiter_and_header_are_found(tmp_path: Path, delimiter: str) -> None:
    body = "".join(f"{i}{delimiter}{i}.5{delimiter}-1e{i}\n" for i in range(5))
    plain = _formats._sniff(write(tmp_path / "plain.txt", body), None, None)
    named = _formats._sniff(write(tmp_path / "named.txt", f"x{delimiter}y{delimiter}z\n{body}"), None, None)
    assert (plain.delimiter, plain.header, [c.name for c in plain.columns]) == (delimiter, False, ["0", "1", "2"])
    assert (named.delimiter, named.header, [c.name for c in named.columns]) == (delimiter, True, ["x", "y", "z"])


FRACTIONS = ["0.25,1.5,2.5", "7.125,0.5,9.5", "3.5,2.5,1.5"]
WHOLE = ["4,0,17", "9,255,3", "0,12,6"]


@pytest.mark.parametrize(
    ("first", "body", "header", "note"),
    [
        ("0,1,2", FRACTIONS, True, "is taken as a header; use --header no"),
        ("2019,2020,2021", FRACTIONS, True, "is taken as a header; use --header no"),
        ("label,0,1", WHOLE, True, None),
        ("0,1,2", WHOLE, False, "looks like a header, but is taken as a row of data; --header yes|no"),
        # Data: every line counts, one has a missing value, or the numbers do not count up.
        ("0,1,2", ["3,4,5", "6,7,8"], False, None),
        ("NA,1,2", FRACTIONS, False, None),
        ("5,1,2", FRACTIONS, False, None),
        ("0.5,1.5,2.5", FRACTIONS, False, None),
        ("0.1,0.2,0.3,0.4,0.5,0.6", ["9,1,8,2,7,3", "2,1,4,3,6,5"], False, "looks like a header"),
        ("0", ["1.5", "2.5"], False, "looks like a header"),
        ("country,1990,1991", ["France,1.5,2.5", "Chad,3.5,0.5"], True, "is taken as a header"),
    ],
)
def test_a_header_of_numbers(first: str, body: list[str], header: bool, note: str | None, tmp_path: Path) -> None:
    """Such a header was silently taken for data, and moved the centers."""
    layout = _formats._sniff(write(tmp_path / "t.csv", "\n".join([first, *body]) + "\n"), None, None)
    assert layout.header == header
    assert layout.note is None if note is None else note in (layout.note or "")
    for told in (True, False):
        asked = _formats._sniff(tmp_path / "t.csv", None, told)
        assert (asked.header, asked.note) == (told, None)


def test_a_header_of_numbers_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path / "years.csv", "\n".join(["2019,2020", *(f"{i % 3 * 10}.5,{i % 3}.25" for i in range(30))]))
    assert main([str(path), "-k", "3", "--no-out"]) == 0
    out, err = capsys.readouterr()
    assert (
        err
        == f"tidemill kmeans: {path}: the first line (2019, 2020) is taken as a header; use --header no if it is a row of data\n"
    )
    assert "30 rows" in out


def test_one_column_quotes_and_a_byte_order_mark(tmp_path: Path) -> None:
    assert numbers(write(tmp_path / "one.csv", "1\n2\n3\n")).tolist() == [[1], [2], [3]]
    path = tmp_path / "marked.csv"
    path.write_bytes(b'\xef\xbb\xbf"the, x",y\n"1",2\n\n 3 ,"4"\n')
    share = _formats.read(active(), path, everything)
    assert [column.name for column in share.columns] == ["the, x", "y"]
    assert np.column_stack(share.values).tolist() == [[1, 2], [3, 4]]


def test_bad_rows_are_named_with_their_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [f"{i},{i % 7}" for i in range(100)]
    rows[10], rows[60], rows[61], rows[90] = "1,2,3", "x,4", ",4", "nan,1"
    path = write(tmp_path / "bad.csv", "a,b\n" + "\n".join(rows) + "\n")
    assert main([str(path), "-k", "2", "--no-out"]) == 1
    error = capsys.readouterr().err
    for line, reason in ((12, "3 fields, but 2"), (62, "'x' is not a number"), (63, "nothing there"), (92, "'nan'")):
        assert f"{path}:{line}: " in error
        assert reason in error
    assert main([str(path), "-k", "2", "--bad-rows", "skip", "--out", str(tmp_path / "out")]) == 0
    assert "4 bad rows skipped" in capsys.readouterr().out
    labels = np.load(tmp_path / "out/labels.npy")
    assert np.flatnonzero(labels == -1).tolist() == [10, 60, 61, 90]


def test_bad_rows_beyond_the_first_rank_keep_their_line(tmp_path: Path) -> None:
    path = write(tmp_path / "bad.csv", "".join("1,2\n" if i != 70 else "1\n" for i in range(100)))
    shares = [_formats.read(Rank(rank, 3), path, everything) for rank in range(3)]  # type: ignore[arg-type]

    class Told(Rank):
        def allgather(self, value: Any) -> list[Any]:
            return [(s.places, len(s.bad), [(b.place, b.reason) for b in s.bad]) for s in shares]

    found, count = _table.locate_bad(Told(0, 3), shares[0])  # type: ignore[arg-type]
    assert count == 1
    assert found[0].place == 71


def test_not_text_at_all(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "bytes.csv"
    path.write_bytes(b"1,2\n" * 50 + b"\xff\xfe,3\n" + b"1,2\n" * 5)
    assert main([str(path), "-k", "1", "--no-out"]) == 1
    assert f"{path}:51: not UTF-8 text" in capsys.readouterr().err


@pytest.mark.parametrize("content", ["", "\n\n", "a,b\n"])
def test_nothing_to_cluster(tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str) -> None:
    assert main([str(write(tmp_path / "empty.csv", content)), "-k", "1", "--no-out"]) == 1
    assert "tidemill kmeans: " in capsys.readouterr().err


def test_missing_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path / "none.csv")]) == 1
    assert "no such file" in capsys.readouterr().err


def test_columns_are_chosen_by_name_number_and_range() -> None:
    columns = [_table.Column(name, False) for name in ("id", "width", "3", "label")]
    assert _table.select(columns, None, "label,0") == [1, 2]
    assert _table.select(columns, "width, 3", None) == [1, 2]
    assert _table.select(columns, "1-2", None) == [1, 2]
    for keep, message in (("depth", "no column 'depth'"), ("9", "no column 9"), ("0-3", "no column is left")):
        with pytest.raises(_table.TableError, match=message):
            _table.select(columns, keep, "0-3" if keep == "0-3" else None)


def test_text_columns(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    body = "".join(f"{i % 5},{'red' if i % 2 else 'blue'},{i % 3}\n" for i in range(30))
    path = write(tmp_path / "text.csv", "a,colour,b\n" + body)
    assert main([str(path), "-k", "2", "--out", str(tmp_path / "drop")]) == 0
    assert "left out: 'colour'" in capsys.readouterr().out
    assert main([str(path), "-k", "2", "--text", "one-hot", "--out", str(tmp_path / "hot")]) == 0
    assert "became 2 columns" in capsys.readouterr().out
    summary = json.loads((tmp_path / "hot/summary.json").read_text())
    assert summary["columns"] == ["a", "colour=blue", "colour=red", "b"]
    assert main([str(path), "--text", "one-hot", "--categories-max", "1", "--no-out"]) == 1
    assert "more than 1 different values" in capsys.readouterr().err


def test_npy_and_idx_and_parquet_read_the_same(tmp_path: Path) -> None:
    x = np.random.default_rng(0).integers(0, 255, (23, 6)).astype(np.uint8)
    np.save(tmp_path / "x.npy", x)
    header = b"\0\0\x08\x03" + b"".join(int(n).to_bytes(4, "big") for n in (23, 2, 3))
    (tmp_path / "x-idx3-ubyte").write_bytes(header + x.tobytes())
    (tmp_path / "x-idx3-ubyte.gz").write_bytes(gzip.compress(header + x.tobytes()))
    for name in ("x.npy", "x-idx3-ubyte", "x-idx3-ubyte.gz"):
        for size in (1, 4, 30):
            assert (numbers(tmp_path / name, size) == x).all()
    (tmp_path / "short-idx3-ubyte").write_bytes(header + x.tobytes()[:-1])
    with pytest.raises(_table.TableError, match="ends before"):
        numbers(tmp_path / "short-idx3-ubyte")


def test_parquet(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    pq = pytest.importorskip("pyarrow.parquet", reason="pyarrow is not installed")
    table = pa.table(
        {
            "a": list(range(25)),
            "kind": pa.array(["u", "v", "w", None, "u"] * 5).dictionary_encode(),
            "b": [0.5] * 24 + [None],
        }
    )
    pq.write_table(table, tmp_path / "t.parquet", row_group_size=7)
    for size in (1, 2, 9):
        shares = [_formats.read(Rank(rank, size), tmp_path / "t.parquet", everything) for rank in range(size)]  # type: ignore[arg-type]
        a = np.concatenate([share.values[0] for share in shares])
        assert a.tolist() == [i for i in range(24) if i % 5 != 3]
        assert sum(len(share.bad) for share in shares) == 6
    (tmp_path / "not.parquet").write_bytes(b"PAR1 or not")
    with pytest.raises(_table.TableError, match="not a Parquet file"):
        _formats.read(active(), tmp_path / "not.parquet", everything)


def test_what_it_writes(tmp_path: Path) -> None:
    out = tmp_path / "deep/out"
    assert main(["-k", "5", "--sample-rows", "3000", "--standardize", "--out", str(out)]) == 0
    labels = np.load(out / "labels.npy")
    summary = json.loads((out / "summary.json").read_text())
    assert np.bincount(labels).tolist() == summary["sizes"]
    with (out / "centres.csv").open() as table:
        rows = list(csv.reader(table))
    assert rows[0] == ["cluster", "size", "x", "y"]
    assert [int(row[1]) for row in rows[1:]] == summary["sizes"]
    picture = xml.etree.ElementTree.parse(out / "clusters.svg").getroot()
    assert len(picture.findall(".//{*}circle")) == 5


def test_standardized_centres_are_told_in_the_units_of_the_file(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    x = np.concatenate([rng.normal([0, 1000], [1, 100], (50, 2)), rng.normal([20, 5000], [1, 100], (50, 2))])
    np.save(tmp_path / "x.npy", x)
    assert (
        main([str(tmp_path / "x.npy"), "-k", "2", "--standardize", "--dtype", "float64", "--out", str(tmp_path)]) == 0
    )
    with (tmp_path / "centres.csv").open() as table:
        centres = np.array([[float(v) for v in row[2:]] for row in list(csv.reader(table))[1:]])
    expected = np.array([x[:50].mean(axis=0), x[50:].mean(axis=0)])
    np.testing.assert_allclose(centres[centres[:, 0].argsort()], expected)


def run(workers: int, out: Path, *arguments: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "tidemill", "kmeans", "-n", str(workers), *arguments, "--out", str(out)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stdout + result.stderr
    summary: dict[str, Any] = json.loads((out / "summary.json").read_text())
    assert summary.pop("workers") == workers
    return summary


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_the_command_on_several_workers(tmp_path: Path, workers: int) -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(500, 4)) + 6 * rng.integers(3, size=(500, 1))
    path = write(tmp_path / "x.csv", "".join(",".join(f"{v:.6f}" for v in row) + "\n" for row in x))
    alone = run(1, tmp_path / "alone", str(path), "-k", "3")
    several = run(workers, tmp_path / "several", str(path), "-k", "3")
    assert several.pop("inertia") == pytest.approx(alone.pop("inertia"))
    assert several == alone
    assert (np.load(tmp_path / "several/labels.npy") == np.load(tmp_path / "alone/labels.npy")).all()


def test_a_wrong_command_line_is_told_once() -> None:
    """Every worker detects it, but printing the usage eight times would not help."""
    done = launched.run("kmeans", "-n", "3", "--clusters", "many")
    err = done.stderr.decode()
    assert done.returncode == 2 and err.count("usage:") == 1, err
    assert "[0] tidemill kmeans: error: argument -k/--clusters: invalid int value: 'many'" in err


def test_the_example_gives_the_same_on_two_workers() -> None:
    program = str(Path(__file__).parents[3] / "examples/kmeans.py")
    printed = []
    for command in ([sys.executable], [sys.executable, "-m", "tidemill", "run", "-n", "2"]):
        result = subprocess.run([*command, program, "20000"], capture_output=True, text=True, timeout=120)
        assert result.returncode == 0, result.stdout + result.stderr
        printed.append([line.removeprefix("[0] ") for line in result.stdout.splitlines()][1:])
    assert printed[0] == printed[1]


@pytest.mark.parametrize("terminal", ["", "60"])
def test_the_bar_stays_out_of_logs(tmp_path: Path, terminal: str) -> None:
    environment = {**os.environ, "TIDEMILL_TERMINAL": terminal}
    command = [sys.executable, "-m", "tidemill.apps.kmeans", "--sample-rows", "300000", "--no-out"]
    result = subprocess.run(command, capture_output=True, timeout=120, env=environment, check=True)
    drawn = result.stderr.decode()
    assert ("\r" in drawn) == bool(terminal)
    assert all(len(line) < 60 for line in drawn.split("\r"))


@pytest.mark.skipif(not DATA.is_dir(), reason=f"no real data in {DATA}")
def test_real_data() -> None:
    """KDD Cup 1999 has text in columns 1, 2, 3 and 41, and no header; the digits have one."""
    kdd = _formats._sniff(DATA / "kddcup.data_10_percent.gz", None, None)
    assert (kdd.delimiter, kdd.header, len(kdd.columns)) == (",", False, 42)
    assert [i for i, column in enumerate(kdd.columns) if column.text] == [1, 2, 3, 41]
    digits = _formats._sniff(DATA / "optdigits_train.csv.gz", None, None)
    assert digits.header
    assert digits.columns[-1].name == "Class"
    assert main([str(DATA / "optdigits_train.csv.gz"), "-k", "10", "--drop", "Class", "--no-out"]) == 0
    assert main([str(DATA / "mnist_t10k-images-idx3-ubyte.gz"), "-k", "10", "--max-iter", "5", "--no-out"]) == 0


@pytest.mark.skipif(not DATA.is_dir(), reason=f"no real data in {DATA}")
def test_kdd_cup_on_two_workers(tmp_path: Path) -> None:
    """Finds rows lost or duplicated between workers, or clusters that differ from those of one worker."""
    told = {}
    for workers in 1, 2:
        out = tmp_path / str(workers)
        options = ["-k", "23", "--max-iter", "20", "--seed", "1", "--standardize", "--out", str(out)]
        command = launched.command("kmeans", "-n", str(workers), DATA / "kddcup.data_10_percent.gz", *options)
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        told[workers] = json.loads((out / "summary.json").read_text())
        assert len(np.load(out / "labels.npy")) == 494_021
    assert told[2]["workers"] == 2
    for summary in told.values():
        assert (summary["rows"], summary["bad_rows"], len(summary["columns"])) == (494_021, 0, 38)
        assert sum(summary["sizes"]) == 494_021
    assert told[2]["inertia"] == pytest.approx(told[1]["inertia"], rel=1e-3)
