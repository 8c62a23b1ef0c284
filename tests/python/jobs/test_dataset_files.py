"""DataSets of files and of other libraries' tables: what is written can be read back, and errors name what is wrong."""

from __future__ import annotations

import bz2
import datetime as dt
import gzip
import io
import itertools
import lzma
import math
import os
import random
import subprocess
from decimal import Decimal
from pathlib import Path
from typing import Any, Literal

import disks
import launched
import numpy as np
import permissions
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tidemill as tm
from datasets import rows

COLUMNS: dict[str, list[Any]] = {
    "n": [1, None, 3],
    "x": [0.5, 1.5, None],
    "s": ['with "quotes", comma', "", None],
    "b": [True, False, None],
    "d": [dt.date(2024, 2, 29), None, dt.date(1969, 7, 20)],
}


@pytest.fixture
def data() -> tm.DataSet:
    return tm.from_dict(COLUMNS)


def test_parquet_and_ipc_keep_everything(data: tm.DataSet, tmp_path: Path) -> None:
    for write, read in [(data.write_parquet, tm.read_parquet), (data.write_ipc, tm.read_ipc)]:
        path = tmp_path / write.__name__
        assert write(path) == 3
        assert rows(read(path)) == rows(data)


def test_json_keeps_types_that_json_has(data: tm.DataSet, tmp_path: Path) -> None:
    assert data.write_json(tmp_path / "out") == 3
    schema = {"n": "int64", "x": "float64", "s": "str", "b": "bool", "d": "date"}
    assert rows(tm.read_json(tmp_path / "out", schema=schema)) == rows(data)


def test_csv(data: tm.DataSet, tmp_path: Path) -> None:
    # CSV cannot distinguish an empty text from null.
    assert data.with_columns(s=tm.col("s").fill_null("")).write_csv(tmp_path / "out") == 3
    found = tm.read_csv(tmp_path / "out")
    assert found.columns == list(COLUMNS)
    assert found.schema["n"] == "Int64"
    assert rows(found.with_columns(s=tm.col("s").fill_null(""))) == rows(data.with_columns(s=tm.col("s").fill_null("")))


@pytest.mark.parametrize("compression", ["gzip", "bzip2", "xz", "zstd"])
def test_compressed_output(data: tm.DataSet, tmp_path: Path, compression: Any) -> None:
    data.select("n").write_csv(tmp_path / "csv", compression=compression)
    data.select("n", "x").write_json(tmp_path / "json", compression=compression)
    assert rows(tm.read_csv(tmp_path / "csv")) == rows(data.select("n"))
    assert rows(tm.read_json(tmp_path / "json")) == rows(data.select("n", "x"))


@pytest.mark.parametrize(
    ("compression", "codec"),
    [
        ("zstd", "ZSTD"),
        ("zstd(1)", "ZSTD"),
        ("gzip", "GZIP"),
        ("brotli", "BROTLI"),
        ("lz4", "LZ4"),
        ("snappy", "SNAPPY"),
        ("none", "UNCOMPRESSED"),
        (None, "UNCOMPRESSED"),
    ],
)
def test_codecs_of_parquet(tmp_path: Path, compression: Any, codec: str) -> None:
    """By the names that other libraries use; once a level was mandatory, and "none" unknown."""
    tm.from_dict({"x": [1, 2]}).write_parquet(tmp_path / "out", compression=compression)
    (file,) = (tmp_path / "out").iterdir()
    assert pq.ParquetFile(file).metadata.row_group(0).column(0).compression == codec


@pytest.mark.parametrize(
    ("compression", "magic"), [("lz4", b"\x04\x22\x4d\x18"), ("zstd", b"\x28\xb5\x2f\xfd"), (None, None)]
)
def test_compression_of_ipc(tmp_path: Path, compression: Any, magic: bytes | None) -> None:
    """The files have the requested compression, also in folders by columns."""
    data = tm.from_dict({"x": [*range(5000)] * 2, "k": [0] * 5000 + [1] * 5000})
    for name, keys in (("whole", []), ("parts", ["k"])):
        assert data.write_ipc(tmp_path / name, compression=compression, partition_by=keys) == 10_000
        files = list((tmp_path / name).rglob("*.arrow"))
        assert len(files) >= 1 + len(keys)
        for file in files:
            content = file.read_bytes()
            assert all((frame in content) == (frame == magic) for frame in (b"\x04\x22\x4d\x18", b"\x28\xb5\x2f\xfd"))
            table = pa.ipc.open_file(pa.memory_map(str(file))).read_all()
            assert table.column_names == ["x", "k"][: 2 - len(keys)]
        assert sorted(tm.read_ipc(tmp_path / name).to_dict()["x"]) == sorted([*range(5000)] * 2)
    assert data.filter(tm.col("x") < 0).write_ipc(tmp_path / "none", compression=compression) == 0
    assert tm.read_ipc(tmp_path / "none").columns == ["x", "k"]


def test_compressions_that_there_are_not(tmp_path: Path) -> None:
    data = tm.from_dict({"x": [1]})
    for write, words in (
        (data.write_ipc, 'unknown compression "snappy" for Arrow IPC files; use lz4, zstd or none'),
        (data.write_csv, 'unknown compression "snappy"; use gzip, bzip2, xz, zstd or none'),
        (data.write_json, 'unknown compression "snappy"; use gzip, bzip2, xz, zstd or none'),
        (data.write_text, 'unknown compression "snappy"; use gzip, bzip2, xz, zstd or none'),
    ):
        with pytest.raises(tm.DataSetError, match=words):
            write(tmp_path / "out", compression="snappy")  # type: ignore[operator]
        assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("suffix", "compress"), [(".gz", gzip.compress), (".bz2", bz2.compress), (".xz", lzma.compress)]
)
def test_compressed_input(tmp_path: Path, suffix: str, compress: Any) -> None:
    (tmp_path / f"a.csv{suffix}").write_bytes(compress(b"a,b\n1,x\n2,y\n"))
    (tmp_path / f"a.txt{suffix}").write_bytes(compress(b"one\ntwo\n"))
    assert rows(tm.read_csv(tmp_path / f"a.csv{suffix}")) == [(1, "x"), (2, "y")]
    assert tm.read_text(tmp_path / f"a.txt{suffix}").to_dict() == {"line": ["one", "two"]}


CUT = """
import sys
import tidemill as tm
from tidemill._tables.workers import collect_in_order

comm = tm.init().comm
for path in sys.argv[1:]:
    data = tm.read_csv(path)
    mine, counts = collect_in_order(data._native)
    everyone = comm.allgather((mine.column("n"), counts))
    # The rows of each partition, whoever has it, one partition after another.
    values, counts = zip(*[(iter(values), counts) for values, counts in everyone])
    found = [next(rows) for one in zip(*counts) for rows, count in zip(values, one) for _ in range(count)]
    partitions = sum(any(one) for one in zip(*counts))
    narrow = data.select("s").group_by("s").agg(rows=tm.col("s").count()).sort("s").to_dict()
    few = data.limit(3).to_dict()["n"]
    if comm.rank == 0:
        print(found == list(range(len(found))), len(found), partitions, data.count(), narrow, few)
    else:
        data.count()
"""


def squeezed(tmp_path: Path, text: bytes) -> list[Path]:
    """The same text compressed in several ways: with a recorded length, as two members, and without a length."""
    pyarrow = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    half = text.index(b"\n", len(text) // 3) + 1
    made = {
        "told.csv.zst": pyarrow.compress(text, codec="zstd", asbytes=True),
        "told.csv.gz": gzip.compress(text, 1),
        "members.csv.gz": gzip.compress(text[:half], 1) + gzip.compress(text[half:], 1),
    }
    stream = pyarrow.BufferOutputStream()
    with pyarrow.CompressedOutputStream(stream, "zstd") as out:
        out.write(text)
    made["untold.csv.zst"] = stream.getvalue().to_pybytes()
    for name, packed in made.items():
        assert len(packed) > 1 << 18, "too short to be cut"
        (tmp_path / name).write_bytes(packed)
    return [tmp_path / name for name in made]


@pytest.mark.parametrize(("workers", "threads"), [(1, 1), (1, 3), (2, 1), (3, 2)])
def test_compressed_files_are_cut_between_workers_and_threads(workers: int, threads: int, tmp_path: Path) -> None:
    """Each piece is decoded by itself: finds a line at a cut that is read twice or by nobody, pieces in the wrong
    order, or a wrong length.
    """
    rng = np.random.default_rng(0)
    noise = rng.integers(97, 123, (60_000, 12), dtype=np.uint8)
    lines = [b"%d,%s,%s\r\n" % (n, b"ab"[n % 2 : n % 2 + 1], noise[n, : 1 + n % 12].tobytes()) for n in range(60_000)]
    paths = squeezed(tmp_path, b"n,s,noise\n" + b"".join(lines))
    program = tmp_path / "app.py"
    program.write_text(CUT)
    run = launched.run("run", "-n", str(workers), "--threads", str(threads), "--no-prefix", program, *paths)
    assert run.returncode == 0, run.stderr.decode()
    pieces = min(4, workers * threads)
    expected = f"True 60000 {pieces} 60000 {{'s': ['a', 'b'], 'rows': [30000, 30000]}} [0, 1, 2]"
    assert run.stdout.decode().splitlines() == [expected] * len(paths)


def test_what_is_wrong_in_a_piece_of_a_compressed_file_is_named(tmp_path: Path) -> None:
    """The line number counts from the file's start, not the piece's, and names the first bad line, whichever piece is
    read first.
    """
    rng = np.random.default_rng(0)
    lines = [b"%d,%d\n" % (n, value) for n, value in enumerate(rng.integers(1 << 62, size=60_000).tolist())]
    lines[15_000] = b"15000,many\n"
    lines[50_000] = b"x\n"
    program = tmp_path / "app.py"
    program.write_text(
        "import sys\nimport tidemill as tm\nfor path in sys.argv[1:]:\n    try:\n"
        "        print(tm.read_csv(path).group_by().agg(x=tm.col('value').max()).to_dict())\n"
        "    except tm.DataSetError as error:\n        print(error)\n"
    )
    paths = squeezed(tmp_path, b"n,value\n" + b"".join(lines))
    cut = tmp_path / "cut.csv.gz"
    cut.write_bytes(paths[1].read_bytes()[:-1000])
    run = launched.run("run", "-n", "2", "--threads", "2", "--no-prefix", program, *paths, cut)
    assert run.returncode == 0, run.stderr.decode()
    said = run.stdout.decode().splitlines()
    assert len(said) == 2 * (len(paths) + 1)
    for path in paths:
        assert sum(f"{path}: line 15002: 'many' is not of type" in line for line in said) == 2, said
    assert sum("cut.csv.gz" in line for line in said) == 2, said


def test_layouts_of_csv(tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    file.write_text("# comment\n1;'a;b';-\n2;c;4\n")
    found = tm.read_csv(file, header=False, delimiter=";", quote="'", comment="#", null="-")
    assert found.to_dict() == {"column_1": [1, 2], "column_2": ["a;b", "c"], "column_3": [None, 4]}
    file.write_text('a,b\n1,"two\nlines"\n')
    assert tm.read_csv(file, newlines_in_values=True).to_dict() == {"a": [1], "b": ["two\nlines"]}
    assert tm.read_csv(file, newlines_in_values=True, schema={"a": "float64", "b": "str"}).schema["a"] == "Float64"


def test_types_of_csv_with_long_values_of_several_lines(tmp_path: Path) -> None:
    """DataFusion infers types in blocks of 8 KiB, each by itself; a row may also continue in the next block of 1 MiB."""
    line = "x" * 1000
    texts = [f"{line}\n" * lines + "end" for lines in (0, 1, 9, 30, 1)]
    (tmp_path / "a.csv").write_text("n,text\n" + "".join(f'{n},"{texts[n % 5]}"\n' for n in range(400)))
    data = tm.read_csv(tmp_path / "a.csv", newlines_in_values=True)
    assert data.schema["n"] == "Int64"
    assert data.sort("n").to_dict() == {"n": list(range(400)), "text": [texts[n % 5] for n in range(400)]}


def test_decimals_are_rounded_as_cast_rounds_them(tmp_path: Path) -> None:
    texts = ["1.005", "1.0049999", "-1.005", "2.5e0", "7", "0.125", "-0.005", "99999.994"]
    (tmp_path / "a.csv").write_text("d\n" + "\n".join(texts) + "\n")
    (tmp_path / "a.csv.zst").write_bytes(zstd(tmp_path / "a.csv"))
    lines = [f'{{"d":{text},"in":{{"d":"{text}"}},"l":[{text}]}}\n' for text in texts]
    (tmp_path / "a.json").write_text("".join(lines))
    for digits in (7, 38):
        kind = f"decimal({digits}, 2)"
        wide = tm.from_dict({"d": [Decimal(text) for text in texts]}, schema={"d": "decimal(20, 10)"})
        expected = wide.select(tm.col("d").cast(kind)).to_dict()["d"]
        assert expected[:3] == [Decimal("1.01"), Decimal("1.00"), Decimal("-1.01")]
        for file in ("a.csv", "a.csv.zst"):
            for on_error in ("raise", "skip"):
                read = tm.read_csv(tmp_path / file, schema={"d": kind}, on_error=on_error)  # type: ignore[arg-type]
                assert read.to_dict()["d"] == expected
        schema = {"d": kind, "in": f'Struct("d": Decimal128({digits}, 2))', "l": f"List(Decimal128({digits}, 2))"}
        assert tm.read_json(tmp_path / "a.json", schema=schema).to_pylist() == [
            {"d": value, "in": {"d": value}, "l": [value]} for value in expected
        ]
    short = [text for text in texts if "e" not in text]
    (tmp_path / "b.csv").write_text("d\n" + "\n".join([*short, "NA"]) + "\n")
    found = tm.read_csv(tmp_path / "b.csv", schema={"d": "decimal(7, 2)"}, null="NA").to_dict()["d"]
    assert found == [value for value, text in zip(expected, texts, strict=True) if "e" not in text] + [None]


def zstd(file: Path) -> bytes:
    return pa.compress(file.read_bytes(), codec="zstd", asbytes=True)  # type: ignore[no-any-return]


def test_folders_globs_and_odd_names(tmp_path: Path) -> None:
    for name, value in [("a.csv", 1), ("b [1] %20 ü.csv", 2), ("deep/c.csv", 3), (".hidden", 4), ("_SUCCESS", 5)]:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(f"x\n{value}\n")
    assert rows(tm.read_csv(tmp_path)) == [(1,), (2,), (3,)]
    assert rows(tm.read_csv(f"{tmp_path}/*.csv")) == [(1,), (2,)]
    assert rows(tm.read_csv([tmp_path / "a.csv", str(tmp_path / "b [1] %20 ü.csv")])) == [(1,), (2,)]


def test_text_of_many_blocks(tmp_path: Path) -> None:
    lines = [f"line {number} {'ä' * (number % 90)}" for number in range(60_000)]
    (tmp_path / "a.txt").write_text("\n".join(lines[:50_000]))
    (tmp_path / "b.txt").write_text("\r\n".join(lines[50_000:]) + "\r\n", newline="")
    found = tm.read_text(tmp_path)
    assert found.schema == {"line": "Utf8View"}
    assert sorted(found.to_dict()["line"]) == sorted(lines)
    words = found.select(word=tm.col("line").str.split(" ")).explode("word").group_by("word").count()
    assert words.filter(tm.col("word") == "line").to_dict() == {"word": ["line"], "count": [60_000]}


def test_npy(tmp_path: Path) -> None:
    for array in [np.arange(5), np.arange(6.0, dtype=">f4").reshape(3, 2), np.array([[True], [False]])]:
        np.save(tmp_path / "a.npy", array)
        found = np.array(list(tm.read_npy(tmp_path / "a.npy").to_dict().values())).T
        assert (found.squeeze() == array.squeeze()).all()
    assert tm.read_npy(tmp_path / "a.npy", columns=["flag"]).to_dict() == {"flag": [True, False]}
    np.save(tmp_path / "a.npy", np.zeros((2, 2, 2)))
    with pytest.raises(tm.DataSetError, match=r"a\.npy has shape \(2, 2, 2\)"):
        tm.read_npy(tmp_path / "a.npy")


def test_npy_of_any_order(tmp_path: Path) -> None:
    """Shares and batches that begin at the wrong row, or columns read as rows, give wrong values somewhere."""
    shapes = [(0, 3), (1, 1), (1, 5), (7, 1), (20_001, 3), (8192, 2), (40, 3000), (50_000, 40)]
    orders: list[Literal["C", "F"]] = ["C", "F"]
    for dtype, shape, order in itertools.product(["?", "i1", "<u2", ">i4", ">f8", "<f2"], shapes, orders):
        case = f"{dtype} {shape} {order}"
        array = np.asarray((np.arange(shape[0] * shape[1]) * 7919 % 251).reshape(shape).astype(dtype), order=order)
        np.save(tmp_path / "a.npy", array)
        found = tm.read_npy(tmp_path / "a.npy").collect().to_numpy()
        assert list(found) == [f"column_{at + 1}" for at in range(shape[1])], case
        for at, column in enumerate(found.values()):
            assert column.dtype == array.dtype.newbyteorder("="), case
            assert (column == array[:, at]).all(), case


def test_npy_of_records_and_times(tmp_path: Path) -> None:
    """Fields lie where the header says, with padding between them, and NaT is null; as NumPy writes them in each
    version of the format.
    """
    kind = np.dtype([("a", "u1"), ("b", ">f8"), ("ü", "<i2"), ("at", "<M8[ms]"), ("took", "<m8[us]")], align=True)
    assert kind.itemsize > 1 + 8 + 2 + 8 + 8
    array = np.zeros(20_000, kind)
    for name in "a", "b", "ü", "took":
        array[name] = np.arange(20_000) % 200
    array["at"] = np.datetime64("2024-02-29T12:00:00.123") + np.arange(20_000)
    array["at"][7] = "NaT"
    for version in (1, 0), (2, 0), (3, 0):
        with open(tmp_path / "a.npy", "wb") as file:
            # The later versions exist for what the first cannot express.
            saved = array if version != (1, 0) else array[["a", "b", "at"]].copy()
            np.lib.format.write_array(file, saved, version)
        data = tm.read_npy(tmp_path / "a.npy")
        assert data.columns == list(saved.dtype.names)
        table = data.collect()
        found = table.to_numpy()
        for name in set(saved.dtype.names) - {"at"}:
            assert found[name].dtype == kind[name].newbyteorder("=") and (found[name] == array[name]).all(), name
        times = table.to_dict()["at"]
        assert times[7] is None and times[:7] + times[8:] == np.delete(array["at"], 7).tolist()
    assert tm.read_npy(tmp_path / "a.npy", columns=list("vwxyz")).columns == list("vwxyz")
    # Concatenated, from files with different byte orders and axes.
    for name, order in ("1", "C"), ("2", "F"):
        np.save(
            tmp_path / f"{name}.npy", np.asarray([[1, 2], [3, 4]], dtype="<i4" if order == "C" else ">i4", order=order)
        )
    both = tm.read_npy([tmp_path / "1.npy", tmp_path / "2.npy"]).to_dict()
    assert both == {"column_1": [1, 3, 1, 3], "column_2": [2, 4, 2, 4]}


def test_npy_is_read_when_it_is_asked_for(tmp_path: Path) -> None:
    """An array larger than any memory: reading more of it than the query needs would never end."""
    with open(tmp_path / "a.npy", "wb") as file:
        header = {"descr": "<f8", "fortran_order": False, "shape": (1 << 35, 4)}
        np.lib.format.write_array_header_1_0(file, header)
        file.write(np.arange(8.0).tobytes())
        file.truncate(file.tell() - 64 + (1 << 40))
    found = tm.read_npy(tmp_path / "a.npy").limit(3).to_dict()
    assert list(found) == ["column_1", "column_2", "column_3", "column_4"] and len(found["column_1"]) == 3


def test_npy_is_read_for_the_columns_that_are_wanted(tmp_path: Path) -> None:
    """Of an array in Fortran order, other columns may be missing, and for a count, all: they are not read."""
    array = np.asfortranarray(np.arange(300_000).reshape(-1, 3))
    np.save(tmp_path / "a.npy", array)
    data = tm.read_npy(tmp_path / "a.npy", ["a", "b", "c"])
    os.truncate(tmp_path / "a.npy", (tmp_path / "a.npy").stat().st_size - array[:, 2].nbytes)
    assert data.select("b", "a").to_dict() == {"b": array[:, 1].tolist(), "a": array[:, 0].tolist()}
    assert data.select(b=tm.col("b").sum()).to_pylist() == [{"b": array[:, 1].sum()}]
    assert data.filter(tm.col("a") % 2 == 0).count() == 50_000
    with pytest.raises(tm.DataSetError, match=r"a\.npy became shorter while it was read"):
        data.collect()
    os.truncate(tmp_path / "a.npy", 0)
    assert data.count() == data.select(one=tm.lit(1)).count() == 100_000
    # Records, stored row by row: the result has just the wanted columns.
    kind = np.dtype({"names": ["k", "x", "y"], "formats": ["i1", "<f8", ">i2"], "offsets": [0, 4, 12], "itemsize": 14})
    records = np.zeros(70_000, kind)
    records["x"], records["y"] = np.arange(70_000) / 4, np.arange(70_000) % 1000
    np.save(tmp_path / "r.npy", records)
    found = tm.read_npy(tmp_path / "r.npy").select("y", "x")
    assert found.to_dict() == {"y": records["y"].tolist(), "x": records["x"].tolist()}


def test_partitioned_output(tmp_path: Path) -> None:
    data = tm.from_dict({"k": ["a", "b", "a"], "x": [1, 2, 3]})
    assert data.write_parquet(tmp_path / "out", partition_by=["k"]) == 3
    assert sorted(os.listdir(tmp_path / "out")) == ["k=a", "k=b"]
    assert rows(tm.read_parquet(tmp_path / "out/k=a")) == [(1,), (3,)]
    for hidden in ["out/_log/a", "out/k=a/.part", "out/k=a/_unfinished/k=c/part"]:
        (tmp_path / hidden).parent.mkdir(exist_ok=True, parents=True)
        (tmp_path / hidden).write_text("not to be read")
    back = tm.read_parquet(tmp_path / "out")
    assert back.columns == ["x", "k"]
    assert rows(back.select("k", "x")) == rows(data)
    assert "k=b" not in back.filter(tm.col("k") == "a").explain(), "files that cannot have rows are not read"
    assert data.write_csv(tmp_path / "csv", partition_by=["k"]) == 3
    (tmp_path / "csv/k=b").rename(tmp_path / "csv/k=ü b")
    assert "ü b" in tm.read_csv(tmp_path / "csv").to_dict()["k"]
    (tmp_path / "csv/k=ü b").rename(tmp_path / "csv/k=b")
    assert rows(tm.read_csv(tmp_path / "csv").select("k", "x")) == rows(data)
    with pytest.raises(
        tm.DataSetError, match=r"partition_by=\['x', 'k'\] are all columns; at least one must stay in the"
    ):
        data.write_csv(tmp_path / "all", partition_by=["x", "k"])


def test_empty_results_can_be_written(data: tm.DataSet, tmp_path: Path) -> None:
    nothing = data.filter(tm.col("n") > 99)
    assert nothing.to_dict() == {name: [] for name in COLUMNS}
    assert nothing.write_parquet(tmp_path / "out") == 0
    assert tm.read_parquet(tmp_path / "out").count() == 0


def test_output_is_all_or_nothing(data: tm.DataSet, tmp_path: Path) -> None:
    out = tmp_path / "out"
    data.write_csv(out)
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    with pytest.raises(tm.DataSetError, match=r"out exists; overwrite=True replaces it"):
        data.write_csv(out)
    with pytest.raises(tm.DataSetError, match="Cannot cast"):
        data.select(tm.col("s").cast("int64")).write_csv(out, overwrite=True)
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before
    assert data.select("n").write_csv(out, overwrite=True) == 3
    assert tm.read_csv(out).columns == ["n"]
    assert os.listdir(tmp_path) == ["out"], "nothing unfinished is left"


@pytest.mark.parametrize("compression", [None, "gzip", "zstd"])
def test_text_comes_back(tmp_path: Path, compression: Any) -> None:
    """A line more or less, or moved, would change the text; empty lines and a carriage return within a line count, too."""
    lines = ["", " spaces ", "a\rb", '"quoted", not', "ä" * 1000, ""] + [f"line {number}" for number in range(50_000)]
    data = tm.from_dict({"text": lines})
    assert data.write_text(tmp_path / "out", compression=compression) == len(lines)
    names = sorted(path.name for path in (tmp_path / "out").iterdir())
    assert all(name.endswith({None: ".txt", "gzip": ".txt.gz", "zstd": ".txt.zst"}[compression]) for name in names), (
        names
    )
    assert tm.read_text(tmp_path / "out").to_dict() == {"line": lines}
    assert data.sort("text").write_text(tmp_path / "out", overwrite=True, compression=compression) == len(lines)
    assert tm.read_text(tmp_path / "out").to_dict() == {"line": sorted(lines)}
    assert data.filter(tm.col("text") == "?").write_text(tmp_path / "none", compression=compression) == 0
    assert tm.read_text(tmp_path / "none").count() == 0
    coded = tm.from_arrow(pytest.importorskip("pyarrow").table({"text": ["b", "a"]}))
    assert coded.write_text(tmp_path / "two") == 2


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"a": ["x"], "b": ["y"]}, "lines have one column, but there are 2"),
        ({"a": [1]}, 'lines are strings, but "a" is Int64'),
        ({"a": ["x", None]}, r"row 2 of part-00000\.txt: \"a\" is null"),
        ({"a": ["x", "y", "two\nlines"]}, r'row 3 of part-00000\.txt: "two\\nlines" contains a line end'),
        ({"a": ["ends\r"]}, r"row 1 of part-00000\.txt: .* contains a line end"),
    ],
)
def test_what_is_no_text_is_not_written(tmp_path: Path, columns: dict[str, list[Any]], message: str) -> None:
    with pytest.raises(tm.DataSetError, match=message):
        tm.from_dict(columns).write_text(tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


DTYPES = [
    "bool",
    "int8",
    "int16",
    "int32",
    "int64",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "float16",
    "float32",
    "float64",
]


@pytest.mark.parametrize("dtype", DTYPES)
def test_arrays_come_back(tmp_path: Path, dtype: str) -> None:
    """One column and several, of each type, over several files, read by NumPy's own reader and by ours."""
    array = (np.arange(60_000).reshape(20_000, 3) * 7919 % 251).astype(dtype)
    for name, whole in ("one", array[:, :1]), ("three", array):
        data = tm.from_arrow(
            tm.Table.from_numpy({f"x{at}": np.ascontiguousarray(whole[:, at]) for at in range(whole.shape[1])})
        )
        assert data.write_npy(tmp_path / name) == 20_000
        parts = [np.load(path) for path in sorted((tmp_path / name).iterdir())]
        found = np.concatenate(parts)
        assert found.dtype == dtype and (found == whole.squeeze()).all() and found.ndim == len(name) // 5 + 1
        back = tm.read_npy(tmp_path / name, columns=data.columns)
        assert back.to_dict() == data.to_dict()
        # Many files do not make many partitions.
        assert "Union" not in back.explain("logical")


def test_columns_of_an_array_become_of_one_type(tmp_path: Path) -> None:
    data = tm.from_dict({"a": [1, 2], "b": [0.5, 1.5], "c": [True, False]})
    assert data.write_npy(tmp_path / "out") == 2
    file = next((tmp_path / "out").iterdir())
    assert (np.load(file) == [[1, 0.5, 1], [2, 1.5, 0]]).all()
    assert data.filter(tm.col("a") > 9).write_npy(tmp_path / "none") == 0
    assert np.load(tmp_path / "none" / "part-00000.npy").shape == (0, 3)
    for columns, message in [
        ({"a": [1], "s": ["x"]}, '"s" is Utf8'),
        ({"a": [1, None]}, r'row 2 of part-00000\.npy: "a" is null'),
    ]:
        with pytest.raises(tm.DataSetError, match=message):
            tm.from_dict(columns).write_npy(tmp_path / "bad")
    assert not (tmp_path / "bad").exists()
    np.save(tmp_path / "out" / "z.npy", np.zeros(3))
    with pytest.raises(tm.DataSetError, match=r"z\.npy has float64 and \(\), but the files before it"):
        tm.read_npy(tmp_path / "out")


def test_a_full_disk_names_the_folder(tmp_path: Path) -> None:
    """Whatever the format, the error names the file without room and the remedy; nothing is left, and the space is free
    again.
    """
    with disks.small(tmp_path, "1m") as small:
        data = tm.from_dict({"x": list(range(300_000))}).select(x=(tm.col("x") * 7919).cast("str"))
        parts = data.with_columns(part=tm.col("x").str.len())
        for write in [
            data.write_text,
            data.sort("x").write_text,
            data.select(n=tm.col("x").cast("int64")).write_npy,
            data.write_csv,
            data.sort("x").write_csv,
            lambda path: parts.write_csv(path, partition_by=["part"]),
            data.write_json,
            data.write_ipc,
            lambda path: data.write_parquet(path, compression="uncompressed"),
        ]:
            with pytest.raises(
                tm.DataSetError,
                match=r"/small/\.out\.unfinished-.*: No space left on device \(os error 28\)( \(on worker 0\))?; "
                r"/.*/small/out cannot be written there: free space, write to another folder",
            ):
                write(small / "out")
            assert list(small.iterdir()) == []
        assert tm.from_dict({"x": ["fits"]}).write_text(small / "out") == 1


def npy(array: Any) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def npz(array: Any) -> bytes:
    file = io.BytesIO()
    np.savez(file, array)
    return file.getvalue()


@pytest.mark.parametrize(
    ("files", "read", "message"),
    [
        ({}, lambda p: tm.read_csv(p / "none.csv"), r"there is no file or folder .*none\.csv"),
        ({}, lambda p: tm.read_csv(f"{p}/*.csv"), r"there are no files in .*\*\.csv"),
        ({}, lambda p: tm.read_csv(p), r"there are no files in"),
        ({"a.parquet": b"no parquet"}, lambda p: tm.read_parquet(p), r"a\.parquet cannot be read as Parquet"),
        ({"a.arrow": b"no arrow"}, lambda p: tm.read_ipc(p), r"a\.arrow cannot be read as Arrow IPC"),
        ({"a.json": b"{no json"}, lambda p: tm.read_json(p), r"a\.json cannot be read as JSON"),
        ({"a.npy": b"no npy"}, lambda p: tm.read_npy(p / "a.npy"), r"a\.npy cannot be read as \.npy"),
        ({"a.npy": npy(np.zeros((2, 2, 2)))}, lambda p: tm.read_npy(p), r"a\.npy has shape \(2, 2, 2\); .*1 or 2 axes"),
        ({"a.npy": npy(np.array(["a"]))}, lambda p: tm.read_npy(p), r"a\.npy is of type <U1; read_npy reads bool"),
        (
            {"a.bin.zst": b"1234"},
            lambda p: tm.read_records(p, {"k": 4}),
            r"a\.bin\.zst: its name says that it is compressed",
        ),
        ({"a.npy": npy(np.array(None))}, lambda p: tm.read_npy(p), r"a\.npy has shape \(\); .*1 or 2 axes"),
        ({"a.npy": npy(np.array([{}, 1]))}, lambda p: tm.read_npy(p), r"a\.npy is of type object; read_npy reads bool"),
        ({"a.npy": npy(np.zeros(2, "c16"))}, lambda p: tm.read_npy(p), r"a\.npy is of type complex128; .*with astype"),
        ({"a.npy": npy(np.zeros(2, "M8[D]"))}, lambda p: tm.read_npy(p), r"a\.npy is of type datetime64\[D\]; "),
        (
            {"a.npy": npy(np.zeros(2, ">f8"))[:-1]},
            lambda p: tm.read_npy(p),
            r"a\.npy cannot be read .*: it is truncated",
        ),
        ({"a.npy": npy(np.zeros(2))[:90]}, lambda p: tm.read_npy(p), r"a\.npy .*: it ends inside its header"),
        ({"a.npy": b""}, lambda p: tm.read_npy(p), r"a\.npy cannot be read as \.npy: it is not an array file"),
        (
            {"a.npy.gz": gzip.compress(npy(np.zeros(2)))},
            lambda p: tm.read_npy(p),
            r"a\.npy\.gz: its name says that it is compressed",
        ),
        ({"a.npz": npz(np.zeros(2))}, lambda p: tm.read_npy(p), r"a\.npz cannot be read as \.npy: .*archive.*np\.save"),
        ({"a.npy": npy(np.zeros((2, 0)))}, lambda p: tm.read_npy(p), r"a\.npy has no columns"),
        (
            {"a.npy": npy(np.zeros(2, [("s", "U3")]))},
            lambda p: tm.read_npy(p),
            r'a\.npy has the field "s" of type <U3; read_npy reads bool',
        ),
        (
            {"a.npy": npy(np.zeros(2, [("s", "f4", 3)]))},
            lambda p: tm.read_npy(p),
            r'a\.npy has the field "s" with several values',
        ),
        ({"a.npy": npy(np.zeros((2, 2)))}, lambda p: tm.read_npy(p, ["x"]), r"a\.npy has 2 columns, not 1"),
        (
            {"a.npy": npy(np.zeros((2, 2)))},
            lambda p: tm.read_npy(p, "xx"),
            r'a\.npy: two of its columns are named "x"',
        ),
        ({"a.csv": b""}, lambda p: tm.read_csv(p), r"a\.csv has no columns"),
        ({"a.csv": b"x\n1\n", "b.csv.gz": b""}, lambda p: tm.read_csv(p), r"compressed in different ways"),
        ({"a.csv": b"x\n1\ntwo\n"}, lambda p: tm.read_csv(p, infer_rows=1).collect(), r"reading .*a\.csv: .*'two'"),
        ({"a.csv": b"x,y\n1,2\n3\n"}, lambda p: tm.read_csv(p, infer_rows=1).collect(), r"reading .*a\.csv: .*line 3"),
        ({"a.txt": b"fine\n\xff\n"}, lambda p: tm.read_text(p).collect(), r"a\.txt: line 2 is not UTF-8"),
        ({"a.txt.gz": b"no gzip!!!"}, lambda p: tm.read_text(p).collect(), r"a\.txt\.gz: "),
        (
            {"a.csv": b"x,y,x\n1,2,3\n"},
            lambda p: tm.read_csv(p),
            r'a\.csv: two of its columns are named "x"; .*schema=',
        ),
    ],
)
def test_broken_files_are_named(tmp_path: Path, files: dict[str, bytes], read: Any, message: str) -> None:
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    with pytest.raises(tm.DataSetError, match=message):
        read(tmp_path)


@pytest.mark.parametrize("rows_", [10, 100_000])
@pytest.mark.parametrize(
    ("suffix", "compress"), [(".gz", gzip.compress), (".bz2", bz2.compress), (".xz", lzma.compress)]
)
def test_files_that_are_cut_short_are_named(tmp_path: Path, suffix: str, compress: Any, rows_: int) -> None:
    """The truncated one of two files is named, whether types are given or inferred, and whether bad rows are skipped or
    not.
    """
    lines = b"".join(b"%d,text %d\n" % (n, n * 7919 % 10_007) for n in range(rows_))
    for kind, whole in (("csv", b"n,s\n" + lines), ("txt", lines)):
        (tmp_path / kind).mkdir()
        packed = compress(whole)
        (tmp_path / kind / f"a.{kind}{suffix}").write_bytes(packed)
        (tmp_path / kind / f"b.{kind}{suffix}").write_bytes(packed[: len(packed) * 3 // 4])
    schema = {"n": "int64", "s": "str"}
    for read in (
        lambda: tm.read_csv(tmp_path / "csv").count(),
        lambda: tm.read_csv(tmp_path / "csv", schema=schema).select(tm.col("n").sum()).collect(),
        lambda: tm.read_csv(tmp_path / "csv", schema=schema, on_error="skip").count(),
        lambda: tm.read_csv(tmp_path / "csv" / f"b.csv{suffix}", schema=schema).write_parquet(tmp_path / "out"),
        lambda: tm.read_text(tmp_path / "txt").count(),
    ):
        with pytest.raises(tm.DataSetError, match=rf"b\.(csv|txt)\{suffix}") as raised:
            read()
        assert f"a.csv{suffix}" not in str(raised.value)


def test_files_are_not_blamed_for_what_a_query_computes(tmp_path: Path) -> None:
    big = {"x": [2**62, 2**62], "s": ["one", "2"], "z": [0, 1]}
    data = tm.from_dict(big)
    data.write_csv(tmp_path / "csv")
    data.write_parquet(tmp_path / "parquet")
    for read in (tm.from_dict(big), tm.read_csv(tmp_path / "csv"), tm.read_parquet(tmp_path / "parquet")):
        for wrong, words in (
            (tm.col("x").sum(), 'the sum of "x" is beyond the range of Int64'),
            (tm.col("x") + tm.col("x"), r"x \+ x is beyond the range of Int64"),
            (tm.col("x") // tm.col("z"), "(?i)divide by zero"),
            (tm.col("s").str.to_date("%Y"), '"one" does not match the format "%Y"'),
            (tm.col("s").cast("int64"), r"Cannot cast string 'one' to value of Int64 type, in cast\(s as Int64\);"),
        ):
            with pytest.raises(tm.DataSetError, match=words) as raised:
                read.select(y=wrong).collect()
            assert str(tmp_path) not in str(raised.value)
    with pytest.raises(tm.DataSetError, match="Cannot cast string 'one'") as raised:
        tm.read_csv(tmp_path / "csv").select(tm.col("s").cast("int64")).collect()
    assert str(tmp_path) not in str(raised.value)


def test_pyarrow_in_and_out(data: tm.DataSet) -> None:
    pa = pytest.importorskip("pyarrow")
    table = data.to_arrow()
    assert table.schema.field("d").type == pa.date32()
    assert table.to_pydict() == COLUMNS
    assert tm.from_arrow(table).to_dict() == COLUMNS
    assert tm.from_arrow(table.to_batches()[0]).to_dict() == COLUMNS
    assert pa.table(data).equals(table)
    kinds = pa.table({"c": pa.array(["a", None, "a"]).dictionary_encode(), "t": pa.array([[{"f": 1}], None, []])})
    back = tm.from_arrow(kinds)
    assert back.to_dict() == {"c": ["a", None, "a"], "t": [[{"f": 1}], None, []]}
    assert back.group_by("c").count().sort("c").to_dict() == {"c": ["a", None], "count": [2, 1]}
    assert pa.schema(back) == kinds.schema


def test_paths_above_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Below a link, ``..`` means what the kernel says."""
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "a" / "b")
    monkeypatch.chdir(tmp_path / "a")
    data = tm.from_dict({"x": [1]})
    for path, place in [("../up", "up"), ("./b/../same", "a/same"), (f"{tmp_path}/link/../beside", "a/beside")]:
        data.write_parquet(path)
        assert (tmp_path / place).is_dir()
        assert tm.read_parquet(path).to_dict() == {"x": [1]}
    assert data.write_csv("../up", overwrite=True) == 1
    with pytest.raises(tm.DataSetError, match="nowhere"):
        data.write_parquet("nowhere/../out")


@pytest.mark.parametrize("on_error", ["raise", "skip"])
def test_texts_that_stand_for_null_are_exact(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, on_error: Any) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "a.csv").write_text("k,q\na,1\nb,-\nc,N/A\n-,4\nx.y,(\n,7\n")
    data = tm.read_csv("~/a.csv", null=["N/A", "-", "("], columns=["q", "k"], on_error=on_error)
    assert data.schema["q"] == "Int64"
    assert data.to_dict() == {"q": [1, None, None, 4, None, 7], "k": ["a", "b", "c", None, "x.y", None]}
    # A text that merely contains the one for null is a value, and counts for the type.
    (tmp_path / "b.csv").write_text("q\n1\nN/A2\nN/A\n")
    assert tm.read_csv("~/b.csv", null="N/A", on_error=on_error).to_dict() == {"q": ["1", "N/A2", None]}
    with pytest.raises(tm.DataSetError, match=r"null= must be one or several strings"):
        tm.read_csv("~/a.csv", null=[1])  # type: ignore[list-item]


@pytest.mark.parametrize("library", ["polars", "pandas"])
def test_other_libraries_in_and_out(library: str) -> None:
    module = pytest.importorskip(library)
    columns = {"n": [1, 2], "s": ["a", "b"]}
    frame = module.DataFrame(columns)
    data = tm.from_arrow(frame)
    assert data.to_dict() == columns
    back = data.to_polars() if library == "polars" else data.to_pandas()
    assert back.equals(frame)


def runs() -> pa.Table:
    """Run-end encoded values: ``a, a, b, b, b``, at the top level and nested."""
    runs = pa.RunEndEncodedArray.from_arrays(pa.array([2, 5], pa.int32()), pa.array(["a", "b"]))
    within = pa.StructArray.from_arrays([runs], ["k"])
    return pa.table({"k": runs, "in": within, "v": [1, 2, 3, 4, 5]})


def test_run_end_encoded_values_are_written_out(tmp_path: Path) -> None:
    """Joins and groups would compare the runs."""
    with pa.OSFile(str(tmp_path / "a.arrow"), "wb") as file, pa.ipc.new_file(file, runs().schema) as writer:
        writer.write_table(runs())
    one = tm.from_dict({"x": [1]})
    for data in [
        tm.from_arrow(runs()),
        tm.from_local(runs()),
        tm.read_ipc(tmp_path / "a.arrow"),
        one.map_batches(lambda _: runs()),
        one.map_batches(lambda _: runs(), schema=runs().schema),
    ]:
        assert "RunEndEncoded" not in str(data.schema)
        other = tm.from_arrow(runs().slice(1, 3)).select("k", w="v")
        assert rows(data.join(other, on="k").select("v", "w")) == [(v, w) for v in (1, 2) for w in (2,)] + [
            (v, w) for v in (3, 4, 5) for w in (3, 4)
        ]
        assert rows(data.group_by("k").agg(tm.col("v").sum())) == [("a", 3), ("b", 12)]
        assert rows(data.group_by("in").agg(n=tm.count()).select("n")) == [(2,), (3,)]
        assert data.select("k").distinct().count() == 2
        assert data.sort("k", "v").to_dict()["k"] == ["a", "a", "b", "b", "b"]


@pytest.mark.parametrize("kind", [pa.list_view, pa.large_list_view])
def test_views_of_lists_are_lists(kind: Any) -> None:
    """Joins would consider all of them equal."""
    values = [[1], [2, 3], None, []]
    views = pa.table({"k": pa.array(values, kind(pa.int64())), "v": [1, 2, 3, 4]})
    within = views.append_column("in", pa.StructArray.from_arrays([views["k"].combine_chunks()], ["k"]))
    data = tm.from_arrow(within)
    assert "view" not in str(data.schema)
    for key in "k", "in":
        pairs = data.join(data.select(key, w="v"), on=key).select("v", "w")
        assert rows(pairs) == [(v, v) for v in (1, 2, 3, 4) if key == "in" or v != 3]
    assert data.sort("v").to_dict()["k"] == values


def test_unions_are_no_keys() -> None:
    union = pa.UnionArray.from_sparse(pa.array([0, 1], pa.int8()), [pa.array([1, 2]), pa.array(["a", "b"])])
    data = tm.from_arrow(pa.table({"k": union}))
    with pytest.raises(tm.DataSetError, match=r'cannot join by "k" of type Union.*cast it first'):
        data.join(data, on="k")


def test_dictionaries_of_more_values_than_their_keys_count(tmp_path: Path) -> None:
    """Keys of 8 bits distinguish only 128 values, and concatenated batches share them."""

    def some(start: int) -> pa.Table:
        values = pa.array([f"v{i}" for i in range(start, start + 100)]).dictionary_encode()
        return pa.table({"c": values.cast(pa.dictionary(pa.int8(), pa.string()))})

    parts = [some(start) for start in (0, 100, 200)]
    (tmp_path / "parquet").mkdir()
    (tmp_path / "ipc").mkdir()
    for number, part in enumerate(parts):
        pq.write_table(part, tmp_path / "parquet" / f"{number}.parquet")
        target = str(tmp_path / "ipc" / f"{number}.arrow")
        with pa.OSFile(target, "wb") as file, pa.ipc.new_file(file, part.schema) as writer:
            writer.write_table(part)
    one = tm.from_dict({"start": [0, 100, 200]})
    for data in [
        tm.from_arrow(pa.concat_tables(parts)),
        tm.read_parquet(tmp_path / "parquet"),
        tm.read_ipc(tmp_path / "ipc"),
        one.map_batches(lambda batch: [some(start) for start in batch.to_pydict()["start"]]),
        one.map_batches(lambda batch: [some(start) for start in batch.to_pydict()["start"]], schema=parts[0].schema),
    ]:
        assert data.distinct().count() == 300
        assert data.sort("c").to_dict()["c"] == sorted(f"v{i}" for i in range(300))
        assert data.join(tm.from_arrow(pa.concat_tables(parts)), on="c").count() == 300


def test_tables_go_in_and_out_without_copies() -> None:
    """The rows of the result lie where pyarrow's own have been."""
    before = pa.table({"n": pa.array(range(10_000)), "s": pa.array([f"word {i}" for i in range(10_000)])})
    after = pa.table(tm.from_arrow(before).collect())
    assert after.equals(before)
    for name, values in ("n", 1), ("s", 2):
        (own,) = before.column(name).chunks
        begin, size = own.buffers()[values].address, own.buffers()[values].size
        for chunk in after.column(name).chunks:
            assert begin <= chunk.buffers()[values].address < begin + size


def test_a_glob_of_folders_within_folders_has_each_file_once(tmp_path: Path) -> None:
    """``**`` matches a folder and those in it."""
    for number, folder in enumerate(("a", "a/b", "a/b/c", "d")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "n.csv").write_text(f"n\n{number}\n")
    for pattern in "**", "*", "**/*.csv":
        assert sorted(tm.read_csv(tmp_path / pattern).to_dict()["n"]) == [0, 1, 2, 3], pattern


def test_relations_of_duckdb() -> None:
    duckdb = pytest.importorskip("duckdb")
    relation = duckdb.sql("select range as n, range::varchar as s from range(5)")
    assert tm.from_arrow(relation).to_dict() == {"n": [0, 1, 2, 3, 4], "s": ["0", "1", "2", "3", "4"]}


def test_what_is_no_table_is_refused() -> None:
    with pytest.raises(TypeError, match="list has no __arrow_c_stream__"):
        tm.from_arrow([1, 2])  # type: ignore[arg-type]


def test_sql_reads_files(data: tm.DataSet, tmp_path: Path) -> None:
    data.write_parquet(tmp_path / "out.parquet")
    file = next((tmp_path / "out.parquet").iterdir())
    assert tm.sql(f"select n from '{file}' where n > 1").to_dict() == {"n": [3]}
    # Like the read functions.
    pq.write_table(pa.table({"n": pa.array([7], pa.int32()), "new": ["a"]}), tmp_path / "out.parquet" / "z.parquet")
    for path in (f"{tmp_path}/out.parquet", f"{tmp_path}/out.parquet/*", f"file://{tmp_path}/out.parquet"):
        assert tm.sql(f"select n, new from '{path}' where n > 3").to_dict() == {"n": [7], "new": ["a"]}
    (tmp_path / "a.json").write_text('{"n": 1}\n' * 1000 + '{"n": 2.5}\n')
    with pytest.raises(tm.DataSetError, match=r"a\.json: line 1001: 2\.5 is not an integer"):
        tm.sql(f"select sum(n) from '{tmp_path}/a.json'").collect()


def test_sorted_rows_are_written_in_their_order(tmp_path: Path) -> None:
    data = tm.from_dict({"x": [(i * 7919) % 100_003 for i in range(100_000)]}).sort("x")
    data.write_csv(tmp_path / "out")
    lines = [line for path in sorted((tmp_path / "out").rglob("*.csv")) for line in path.read_text().split()[1:]]
    assert [int(line) for line in lines] == data.to_dict()["x"] == sorted(map(int, lines))


def test_records(tmp_path: Path) -> None:
    raw = bytes(range(256)) * 30
    (tmp_path / "a.bin").write_bytes(raw)
    (tmp_path / "b.bin").write_bytes(raw[:12])
    data = tm.read_records(tmp_path, {"key": 2, "rest": 4})
    assert data.schema == {"key": "FixedSizeBinary(2)", "rest": "FixedSizeBinary(4)"}
    found = data.sort("key", "rest").to_pylist()
    whole = raw + raw[:12]
    assert [row["key"] + row["rest"] for row in found] == sorted(whole[at : at + 6] for at in range(0, len(whole), 6))
    assert data.sort("key", "rest").write_records(tmp_path / "out") == len(whole) // 6
    back = b"".join(path.read_bytes() for path in sorted((tmp_path / "out").iterdir()))
    assert back == b"".join(row["key"] + row["rest"] for row in found)
    turned = data.select("rest", "key").sort("key", "rest").to_pylist()
    assert [list(row.items()) for row in turned] == [list(row.items())[::-1] for row in found]
    assert data.select("key").sort("key").to_dict() == {"key": [row["key"] for row in found]}
    assert data.limit(3).to_pylist() == [{"key": raw[at : at + 2], "rest": raw[at + 2 : at + 6]} for at in (0, 6, 12)]
    # Data beyond a limit, or only counted, is not read.
    (tmp_path / "a.bin").write_bytes(raw[:18])
    assert (data.count(), len(data.limit(3).to_pylist())) == (len(found), 3)
    with pytest.raises(tm.DataSetError, match=r"a\.bin became shorter while it was read"):
        data.select("key").to_dict()
    with pytest.raises(tm.DataSetError, match="is not a multiple of the record size, 7 bytes"):
        tm.read_records(tmp_path / "b.bin", {"key": 7})
    with pytest.raises(tm.DataSetError, match="fixed number of bytes"):
        tm.from_dict({"x": [1]}).write_records(tmp_path / "x")


def test_a_checkpoint_is_made_once(tmp_path: Path) -> None:
    calls = []

    def seen(row: dict[str, Any]) -> dict[str, Any]:
        calls.append(row)
        return row

    data = tm.from_dict({"x": [1, 2, 3], "s": ["a", None, "c"]}).map(seen, {"x": "int64", "s": "str"})
    first = data.materialize(tmp_path / "here")
    again = data.materialize(tmp_path / "here")
    assert rows(first) == rows(again) == [(1, "a"), (2, None), (3, "c")]
    assert len(calls) == 3
    broken = data.map(lambda row: {"x": 1 // (row["x"] - 2)}, {"x": "int64"})
    with pytest.raises(tm.DataSetError):
        broken.materialize(tmp_path / "there")
    assert not (tmp_path / "there").exists()


def test_columns_of_json_that_only_some_files_have(tmp_path: Path) -> None:
    """Only the first file's columns would be read, and the others silently dropped."""
    rows = {"a": ['{"n": 1}', '{"n": 2, "s": "x"}'], "b": ['{"n": 2.5, "new": [1]}'], "c": ['{"n": null, "s": "y"}']}
    for name, lines in rows.items():
        (tmp_path / f"{name}.jsonl").write_text("\n".join(lines) + "\n")
    for on_error in ("raise", "skip"):
        data = tm.read_json(tmp_path, on_error=on_error)
        assert {name: kind.split("(")[0] for name, kind in data.schema.items()} == {
            "n": "Float64",
            "s": "Utf8",
            "new": "List",
        }
        assert sorted(data.to_pylist(), key=str) == sorted(
            [
                {"n": 1.0, "s": None, "new": None},
                {"n": 2.0, "s": "x", "new": None},
                {"n": 2.5, "s": None, "new": [1]},
                {"n": None, "s": "y", "new": None},
            ],
            key=str,
        )
    (tmp_path / "d.jsonl").write_text('{"n": "many"}\n')
    with pytest.raises(tm.DataSetError, match=r'column "n" is Float64 in .*b\.jsonl but Utf8 in .*d\.jsonl'):
        tm.read_json(tmp_path)


SHUT = """
import sys
import tidemill as tm

job, shut = tm.init(), sys.argv[1]
data = tm.from_dict({"x": [1]})
for act in [
    lambda: tm.read_csv(f"{shut}/a.csv"),
    lambda: tm.read_csv(f"{shut}/*.csv"),
    lambda: tm.sql(f"select * from '{shut}/a.csv'"),
    lambda: data.materialize(f"{shut}/point"),
    lambda: data.materialize(f"file://{shut}/point"),
]:
    try:
        act()
    except tm.DataSetError as error:
        print(error)
job.comm.Barrier()
"""


def test_what_may_not_be_looked_at_may_be_there(tmp_path: Path) -> None:
    """Files that this user may not see are not reported as missing, and every worker says the same."""
    shut, app = tmp_path / "shut", tmp_path / "app.py"
    shut.mkdir()
    (shut / "a.csv").write_text("x\n1\n")
    app.write_text(SHUT)
    command = [*permissions.heeding(), *launched.command("run", "-n", "2", app, shut)]
    shut.chmod(0)
    try:
        result = subprocess.run(command, capture_output=True, timeout=launched.PATIENCE_S, text=True)
    finally:
        shut.chmod(0o700)
    assert result.returncode == 0, result.stderr
    names = ["a.csv", "*.csv", "a.csv", "point", "point"]
    for rank in "01":
        lines = [line[4:] for line in result.stdout.splitlines() if line.startswith(f"[{rank}]")]
        assert lines == [f"{shut}/{name}: Permission denied (os error 13)" for name in names]


def test_checkpoints_by_the_url_of_a_folder(tmp_path: Path) -> None:
    """The second time, the folder lacked an object store's mark, and the checkpoint could not be created."""
    made = []

    def seen(table: Any) -> Any:
        made.append(len(table))
        return table

    data = tm.from_dict({"x": [1, 2, 3]}).map_batches(seen, schema={"x": "int64"})
    for place in [f"file://{tmp_path}/a%20b", f"file://{tmp_path}/a%20b", tmp_path / "a b", f"{tmp_path}/a b"]:
        assert data.materialize(place).sort("x").to_dict() == {"x": [1, 2, 3]}
    assert sum(made) == 3


def test_files_of_each_host_are_all_files_on_one(tmp_path: Path) -> None:
    """On a single host a program reads the same with `each_host` and without, columns of folders too."""
    (tmp_path / "year=2024").mkdir()
    (tmp_path / "year=2024" / "a.csv").write_text("n\n1\n")
    found = tm.read_csv(tmp_path, each_host=True).to_pylist()
    assert found == tm.read_csv(tmp_path).to_pylist() == [{"n": 1, "year": "2024"}]
    assert tm.read_text(tmp_path, each_host=True).count() == 2
    with pytest.raises(tm.DataSetError, match="there is no file or folder"):
        tm.read_json(tmp_path / "none", each_host=True)
    with pytest.raises(tm.DataSetError, match=r"quarantine=.* cannot be combined with each_host=True"):
        tm.read_csv(tmp_path, on_error="quarantine", quarantine=tmp_path.with_name("bad"), each_host=True)


@pytest.mark.parametrize(
    ("format", "options"),
    [
        ("csv", {}),
        ("csv", {"compression": "gzip", "delimiter": ";"}),
        ("json", {"compression": "zstd"}),
        ("parquet", {}),
        ("parquet", {"compression": "gzip(6)"}),
        ("ipc", {"compression": None}),
        ("ipc", {}),
    ],
)
def test_one_file(tmp_path: Path, format: str, options: dict[str, Any]) -> None:
    """The rows of all partitions go into one file, in order; nothing else is left, and an existing file is replaced
    only on request.
    """
    data = tm.from_dict({"n": list(range(30_000)), 'a "b"': ["x,y"] * 30_000}).sort("n", descending=True)
    path = tmp_path / "deep" / f"whole.{format}"
    write, read = getattr(data, f"write_{format}"), getattr(tm, f"read_{format}")
    assert write(path, single_file=True, **options) == 30_000
    assert [file.name for file in path.parent.iterdir()] == [path.name]
    layout = {"delimiter": options["delimiter"]} if "delimiter" in options else {}
    packed = path.with_name(f"{path.name}.{'gz' if options.get('compression') == 'gzip' else 'zst'}")
    if format in ("csv", "json") and "compression" in options:
        path.rename(packed)
        path = packed
    found = read(path, **layout).collect().to_dict()
    assert found == {"n": list(range(29_999, -1, -1)), 'a "b"': ["x,y"] * 30_000}
    with pytest.raises(tm.DataSetError, match="already exists; overwrite=True replaces it"):
        write(path, single_file=True, **options)
    assert getattr(data.limit(1), f"write_{format}")(path, single_file=True, overwrite=True, **options) == 1
    assert read(path, **layout).count() == 1
    with pytest.raises(tm.DataSetError, match="is a folder; single_file=True writes a file"):
        write(tmp_path / "deep", single_file=True, overwrite=True, **options)
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def test_files_that_lie_about_their_sizes(tmp_path: Path) -> None:
    """An Arrow file may claim any length: that is an error of the file, and nothing allocates for it."""
    table = pa.table({"a": list(range(1000)), "s": ["word"] * 1000})
    path = tmp_path / "a.arrow"
    for compression in ("lz4", "zstd"):
        with pa.ipc.new_file(path, table.schema, options=pa.ipc.IpcWriteOptions(compression=compression)) as out:
            out.write_table(table)
        whole = path.read_bytes()
        # A compressed buffer begins with its uncompressed length.
        at = whole.index((8 * 1000).to_bytes(8, "little"))
        for claimed in (1 << 46, (1 << 63) - 1, -2, 1 << 32):
            path.write_bytes(whole[:at] + claimed.to_bytes(8, "little", signed=True) + whole[at + 8 :])
            with pytest.raises(
                tm.DataSetError, match=r"a\.arrow cannot be read as Arrow IPC: a buffer of .* claims to decompress to"
            ):
                tm.read_ipc(path).count()
    # Its footer, and the first message of a stream.
    path.write_bytes(whole[:-10] + ((1 << 31) - 1).to_bytes(4, "little") + whole[-6:])
    with pytest.raises(tm.DataSetError, match="footer is longer than the file"):
        tm.read_ipc(path).count()
    path.write_bytes(b"\xff\xff\xff\xff" + ((1 << 31) - 8).to_bytes(4, "little") + b"\0" * 100)
    with pytest.raises(tm.DataSetError, match="lies outside the file of 108 bytes"):
        tm.read_ipc(path).count()


def test_damaged_files_are_errors_that_name_them(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Whatever bytes a file has, it gives rows or an error with its name: no panic, no internal error, no crash."""
    rng = random.Random(seed := 20261128)
    table = pa.table(
        {"a": [*range(300)], "s": [str(i % 7) * (i % 5) for i in range(300)], "l": [[i, None] for i in range(300)]}
    ).append_column("d", pa.array(["x", "y", None] * 100).dictionary_encode())
    ipc, stream, parquet, zstd = io.BytesIO(), io.BytesIO(), io.BytesIO(), io.BytesIO()
    with pa.ipc.new_file(ipc, table.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as file:
        file.write_table(table)
    with pa.ipc.new_stream(stream, table.schema) as plain:
        plain.write_table(table)
    pq.write_table(table, parquet, row_group_size=100, compression="snappy")
    pq.write_table(table, zstd, data_page_size=256, compression="zstd", use_dictionary=False, version="1.0")
    lines = b"".join(b'{"a": %d, "s": "text"}\n' % i for i in range(200))
    kinds = {
        "a.arrow": (tm.read_ipc, ipc.getvalue()),
        "b.arrow": (tm.read_ipc, stream.getvalue()),
        "a.parquet": (tm.read_parquet, parquet.getvalue()),
        "b.parquet": (tm.read_parquet, zstd.getvalue()),
        "a.json.gz": (tm.read_json, gzip.compress(lines)),
        "a.csv.gz": (tm.read_csv, gzip.compress(lines)),
    }
    for name, (read, data) in kinds.items():
        for case in range(80):
            changed = bytearray(data)
            for _ in range(rng.choice((1, 1, 4, 30))):
                # Sizes are in the metadata, at either end.
                at = rng.choice((rng.randrange(len(data)), rng.randrange(min(400, len(data))), -rng.randrange(1, 400)))
                changed[at % len(data)] = rng.choice((0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)))
            path = tmp_path / name
            path.write_bytes(changed[: rng.choice((len(changed), len(changed), rng.randrange(len(changed))))])
            try:
                read(path).collect()
            except tm.DataSetError as error:
                assert "internal" not in str(error), (seed, name, case, error)
    assert "panicked" not in capfd.readouterr().err, seed


def in_some_order(table: dict[str, Any]) -> list[tuple[Any, ...]]:
    return sorted(zip(*table.values(), strict=True), key=str)


def test_types_of_csv_come_of_all_files_and_lose_no_value(tmp_path: Path) -> None:
    """A column that begins empty, or a first file with only a header, once made every later value null."""
    for name, files, values in (
        ("header", ["a,b\n", "a,b\n1,x\n"], {"a": [1], "b": ["x"]}),
        ("empty", ["a,b\n1,\n2,\n", "a,b\n3,7\n"], {"a": [1, 2, 3], "b": [None, None, 7]}),
        ("wider", ["k,q\na,1\n", "k,q\nb,1.5\n"], {"k": ["a", "b"], "q": [1.0, 1.5]}),
        ("late", ["a,b\n" + "1,\n" * 1500 + "1,x\n"], {"a": [1] * 1501, "b": [None] * 1500 + ["x"]}),
    ):
        folder = tmp_path / name
        folder.mkdir()
        for number, text in enumerate(files):
            (folder / f"{number}.csv").write_text(text)
        for on_error in ("raise", "skip"):
            assert in_some_order(tm.read_csv(folder, on_error=on_error).to_dict()) == in_some_order(values), (
                name,
                on_error,
            )
        assert in_some_order(tm.sql(f"select * from '{folder}/*.csv'").to_dict()) == in_some_order(values), name


def test_types_of_some_columns_are_given(tmp_path: Path) -> None:
    """All others are inferred; a column that does not exist, or a schema that lacks some, fails at the read."""
    file = tmp_path / "codes.csv"
    file.write_text("code,n,day\n007,1,2024-01-01\n7,2,2024-01-02\n")
    assert tm.read_csv(file, schema_overrides={"code": "str"}).to_dict()["code"] == ["007", "7"]
    assert tm.read_csv(file, schema_overrides={"n": "float32"}).schema["n"] == "Float32"
    with pytest.raises(tm.DataSetError, match='names column "m"; there are: code, day, n'):
        tm.read_csv(file, schema_overrides={"m": "str"})
    with pytest.raises(tm.DataSetError, match="schema= lacks n, day"):
        tm.read_csv(file, schema={"code": "str"})


def test_nan_of_parquet_files_is_read(tmp_path: Path) -> None:
    """Statistics omit NaN: a file of NaN and 1.5 was read as if it had only 1.5."""
    for number, values in enumerate([[math.nan, 1.5], [None, 1.5]]):
        tm.from_dict({"f": values, "file": [number] * 2}).write_parquet(tmp_path / str(number))
    table = tm.read_parquet(tmp_path)
    assert sorted(map(str, table.to_dict()["f"])) == ["1.5", "1.5", "None", "nan"]
    assert table.group_by("f").agg(n=tm.count()).count() == 3
    assert math.isnan(table.select(m=tm.col("f").max()).to_dict()["m"][0])


def test_byte_order_marks_are_no_part_of_a_file(tmp_path: Path) -> None:
    """Editors write a byte order mark; JSON failed on it, and text kept it."""
    for name, text in (("a.json", '{"a": 1}\n'), ("a.txt", "one\n"), ("a.csv", "a\n1\n")):
        (tmp_path / name).write_bytes(b"\xef\xbb\xbf" + text.encode())
    assert tm.read_json(tmp_path / "a.json").to_dict() == {"a": [1]}
    assert tm.read_text(tmp_path / "a.txt").to_dict() == {"line": ["one"]}
    assert tm.read_csv(tmp_path / "a.csv").to_dict() == {"a": [1]}


def last_value(path: Path, lines: list[str], **options: Any) -> Any:
    """The last value of column ``v``, or the error; None where its row is skipped."""
    path.write_text("".join(f"{line}\n" for line in lines))
    read = tm.read_csv if path.suffix == ".csv" else tm.read_json
    try:
        found = read(path, **options).filter(tm.col("id") == 1500).to_dict()["v"]
    except tm.DataSetError as error:
        return str(error)
    return found[0] if found else None


@pytest.mark.filterwarnings("ignore::tidemill.BadRowsWarning")
def test_no_value_of_a_text_is_cut(tmp_path: Path) -> None:
    """Times of day, fractions of seconds, leap seconds and very long floats were lost after the rows from which types
    are inferred.
    """
    day, time = "2024-01-01", "2024-01-01 10:00:00"
    cases: list[tuple[str, str, Any]] = [
        (day, "2024-01-02 10:30:00", "has a time of day"),
        (day, "2024-01-02T00:00:00", dt.date(2024, 1, 2)),
        (time, "2024-01-01 10:00:00.5", dt.datetime(2024, 1, 1, 10, 0, 0, 500_000)),
        (time, "2024-01-01 10:00:00.1234567", "is finer than the type"),
        (time, "2016-12-31 23:59:60", "is a leap second"),
        (time, "2024-01-02", dt.datetime(2024, 1, 2)),
        ("1", "1.7", "is not of type Int64"),
        ("1.5", "1e400", "is too large"),
        ("1.5", "-inf", -math.inf),
        ("true", "yes", "is not of type Boolean"),
    ]
    options: list[dict[str, Any]] = [{}, {"null": "N/A"}, {"on_error": "skip"}, {"newlines_in_values": True}]
    for first, late, value in cases:
        lines = ["id,v", *(f"{number},{first}" for number in range(1500)), f"1500,{late}"]
        for how in options:
            found = last_value(tmp_path / "late.csv", lines, **how)
            if not isinstance(value, str):
                assert found == value, (late, how)
            elif "on_error" in how:
                assert found is None, (late, how)
            else:
                assert all(part in found for part in ("line 1502: ", late, value, '"v"')), (how, found)


def test_no_value_is_cut_to_fit_a_schema(tmp_path: Path) -> None:
    for kind, text, value in (
        ("date32", "2024-01-02 10:30:00", "has a time of day"),
        ("timestamp[s]", "2024-01-01T10:00:00.5", "is finer than the type"),
        ("timestamp[ms]", "2024-01-01T10:00:00.5", dt.datetime(2024, 1, 1, 10, 0, 0, 500_000)),
        ("timestamp[us]", "9999-12-31T23:59:59", dt.datetime(9999, 12, 31, 23, 59, 59)),
        ("timestamp[ns]", "9999-12-31T23:59:59", "is too far from 1970"),
        ("timestamp[us]", "2016-12-31T23:59:60Z", "is a leap second"),
    ):
        for file, lines in (("v.csv", ["id,v", f"1500,{text}"]), ("v.json", [f'{{"id": 1500, "v": "{text}"}}'])):
            found = last_value(tmp_path / file, lines, schema={"id": "int64", "v": kind})
            if isinstance(value, str) and not (file == "v.json" and "too far" in value):
                assert value in found and text in found and "line " in found, (kind, found)
            elif not isinstance(value, str):
                assert found == value, (kind, file)
    for number, kind in (("1e400", "float64"), ("1e39", "float32")):
        found = last_value(tmp_path / "v.json", [f'{{"id": 1500, "v": {number}}}'], schema={"id": "int64", "v": kind})
        assert "line 1: " in found, found


def test_codes_of_csv_stay_as_they_are(tmp_path: Path) -> None:
    columns = {
        "zip": ["02134", "90210"],
        "hex": ["00e1", "12e3"],
        "phone": ["+49170", "12"],
        "n": ["0", "-1"],
        "price": ["1.50", "2.25"],
        "exp": ["1E5", "2"],
        "ok": ["TRUE", "false"],
        "x": ["1.5", "-2.0"],
    }
    path = tmp_path / "codes.csv"
    path.write_text("\n".join([",".join(columns), *map(",".join, zip(*columns.values(), strict=True))]) + "\n")
    relaxed, strict = tm.read_csv(path), tm.read_csv(path, infer="strict")
    texts = [name for name, kind in relaxed.schema.items() if kind == "Utf8"]
    assert texts == ["zip", "hex", "phone"]
    assert [name for name, kind in strict.schema.items() if kind != "Utf8"] == ["n", "x"]
    assert all(strict.to_dict()[name] == columns[name] for name in ("zip", "hex", "phone", "price", "exp", "ok"))
    assert strict.to_dict()["x"] == [1.5, -2.0]
    # A code after the rows from which types are inferred.
    path.write_text("id\n7\n007\n")
    assert tm.read_csv(path, infer_rows=1).to_dict() == {"id": [7, 7]}
    with pytest.raises(tm.DataSetError, match=r'line 3: "007" is not of type Int64.*would be written otherwise'):
        tm.read_csv(path, infer="strict", infer_rows=1).collect()
    with pytest.raises(tm.DataSetError, match='infer=\'loose\': use "relaxed" or "strict"'):
        tm.read_csv(path, infer="loose")  # type: ignore[arg-type]


def test_encodings(tmp_path: Path) -> None:
    text = "name,n\n" + "".join(f"naïve Größe {number},{number}\n" for number in range(30_000))
    for encoding in ("utf-16", "latin-1", "cp1252", "utf-8", "utf-16le"):
        (tmp_path / "a.csv").write_bytes(text.encode(encoding))
        assert tm.read_csv(tmp_path / "a.csv", encoding=encoding).select(tm.col("n").sum()).to_dict()["n"] == [
            449985000
        ]
        assert tm.read_csv(tmp_path / "a.csv", encoding=encoding).limit(1).to_dict()["name"] == ["naïve Größe 0"]
    (tmp_path / "a.csv.gz").write_bytes(gzip.compress(text.encode("latin-1")))
    assert tm.read_csv(tmp_path / "a.csv.gz", encoding="latin-1").count() == 30_000
    assert tm.read_text(tmp_path / "a.csv.gz", encoding="latin-1").count() == 30_001
    (tmp_path / "b.json").write_bytes('{"a": "東京"}\n'.encode("shift_jis"))
    assert tm.read_json(tmp_path / "b.json", encoding="shift_jis").to_dict() == {"a": ["東京"]}
    (tmp_path / "a.csv").write_bytes(b"name\n\xff\xff\n")
    with pytest.raises(
        tm.DataSetError, match=r"a\.csv: it has bytes that are not valid Shift_JIS text; .* set encoding="
    ):
        tm.read_csv(tmp_path / "a.csv", encoding="shift_jis").collect()
    with pytest.raises(tm.DataSetError, match='unknown encoding="klingon"'):
        tm.read_csv(tmp_path / "a.csv", encoding="klingon")


def test_types_of_columns_that_folders_name(tmp_path: Path) -> None:
    data = tm.from_dict({"year": [2024, 2025], "n": [1, 2]})
    for format in ("csv", "json", "parquet", "ipc"):
        getattr(data, f"write_{format}")(tmp_path / format, partition_by=["year"])
        read = getattr(tm, f"read_{format}")
        table = read(tmp_path / format, partition_schema={"year": "int64"})
        assert table.filter(tm.col("year") == 2025).to_dict() == {"n": [2], "year": [2025]}, format
    with pytest.raises(tm.DataSetError, match=r"partition_schema= names column 'month'; there are: n, year"):
        tm.read_csv(tmp_path / "csv", partition_schema={"month": "int64"})


def test_a_column_of_the_files_names(tmp_path: Path) -> None:
    data = tm.from_dict({"k": ["a", "b"], "n": [1, 2]})
    for format in ("csv", "json", "parquet", "ipc", "text"):
        folder = tmp_path / format
        if format == "text":
            for key, line in (("a", "1"), ("b", "2")):
                (folder / f"k={key}").mkdir(parents=True)
                (folder / f"k={key}" / "lines.txt").write_text(f"{line}\n")
        else:
            getattr(data, f"write_{format}")(folder, partition_by=["k"])
        read = getattr(tm, f"read_{format}")
        for options in ({}, {"on_error": "skip"}):
            if options and format in ("parquet", "ipc"):
                continue
            found = read(folder, file_column="file", **options).sort("k").to_dict()
            paths = [sorted((folder / f"k={k}").iterdir())[0].as_posix() for k in "ab"]
            assert list(found) == [*("line" if format == "text" else "n",), "k", "file"], format
            assert (found["k"], found["file"]) == (["a", "b"], paths), format
            only = read(folder, file_column="file", **options).filter(tm.col("file") == paths[1])
            assert only.select("k").to_dict() == {"k": ["b"]} and only.count() == 1, format
    # Files whose columns differ, and a compressed one.
    pq.write_table(pa.table({"n": [3], "more": ["x"]}), tmp_path / "parquet" / "k=a" / "other.parquet")
    found = tm.read_parquet(tmp_path / "parquet", file_column="file").sort("n")
    assert [Path(name).name for name in found.to_dict()["file"]][2] == "other.parquet"
    (tmp_path / "rows.csv.gz").write_bytes(gzip.compress(b"n\n" + b"1\n" * 500_000))
    count = tm.read_csv(tmp_path / "rows.csv.gz", file_column="file").group_by("file").agg(rows=tm.count())
    assert count.to_dict() == {"file": [str(tmp_path / "rows.csv.gz")], "rows": [500_000]}
    with pytest.raises(tm.DataSetError, match='file_column="n": the files have such a column'):
        tm.read_csv(tmp_path / "csv", file_column="n")
