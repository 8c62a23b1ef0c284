"""Unreadable rows: named by file and line, skipped, or put aside, and never too many."""

from __future__ import annotations

import gzip
import random
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
import standing
import tidemill as tm
from datasets import rows

SCHEMA = {"n": "int64", "s": "str"}


def skip(read: Any, path: Path, bad: int, **options: Any) -> list[tuple[Any, ...]]:
    """Return the rows read if `bad` of them are skipped."""
    data = read(path, on_error="skip", **options)
    if bad == 0:
        return rows(data)
    plural = "rows that cannot be read were" if bad > 1 else "row that cannot be read was"
    with pytest.warns(tm.BadRowsWarning, match=f"{bad} {plural} left out; the first: {path}, line "):
        found = rows(data)
    assert tm.last_report().skipped_rows == bad
    return found


def test_columns_of_folders(tmp_path: Path) -> None:
    """The same as when all rows are good."""
    names = ["a", "x y", "ü", "a=b", "50%", "%20", ""]
    for kind, bad in ("good", ""), ("mixed", "two\n"):
        for number, name in enumerate(names):
            folder = tmp_path / kind / f"k={name}" / f"m={number}"
            folder.mkdir(parents=True)
            (folder / "part.csv").write_text(f"x\n{bad}{number}\n")
    good = rows(tm.read_csv(tmp_path / "good"))
    assert len(good) == len(names)
    with pytest.warns(tm.BadRowsWarning, match=f"{len(names)} rows that cannot be read were left out"):
        assert rows(tm.read_csv(tmp_path / "mixed", schema={"x": "int64"}, on_error="skip")) == good


@pytest.mark.parametrize(
    ("text", "line", "reason"),
    [
        ("n,s\n1,a\n2\n3,c\n", 3, "2 values expected, 1 found"),
        ("n,s\n1,a\n2,b,x\n3,c\n", 3, "2 values expected, "),
        ("n,s\n1,a\ntwo,b\n3,c\n", 3, "'two' is not of type Int64, that of column \"n\""),
        ('n,s\n1,a\n2,"b\n3,c\n', 3, "a quote is not closed"),
        ("n,s\nx,a\n1,a\n3,c", 2, "'x' is not of type Int64"),
        ("n,s\n1,a\n3,c\ny,z", 4, "'y' is not of type Int64"),
        ("n,s\n1,a\n3,c\n4,d,e\n", 4, "2 values expected, "),
        ("n,s\n\n1,a\n\n3,c\n\n9,\udcff\n", 7, "it is not UTF-8"),
    ],
)
def test_one_bad_row_of_csv(tmp_path: Path, text: str, line: int, reason: str) -> None:
    file = tmp_path / "a.csv"
    content = text.encode(errors="surrogateescape")
    for name, whole in [("a.csv", content), ("a.csv.gz", gzip.compress(content))]:
        file = tmp_path / name
        file.write_bytes(whole)
        found = skip(tm.read_csv, file, 1, schema=SCHEMA)
        assert found == [(1, "a"), (3, "c")]
        bad = tm.read_csv(file, schema=SCHEMA, on_error="quarantine", quarantine=tmp_path / "bad")
        with pytest.warns(tm.BadRowsWarning):
            assert rows(bad) == found
        aside = tm.read_json(tmp_path / "bad").to_pylist()
        assert [(row["file"], row["line"]) for row in aside] == [(str(file), line)]
        assert reason in aside[0]["reason"]
        bad_line = content.split(b"\n")[line - 1].decode(errors="replace")
        assert aside[0]["text"] == bad_line
        for path in (tmp_path / "bad").iterdir():
            path.unlink()
        if "quote" in reason:
            # DataFusion takes the rest as one long value.
            continue
        with pytest.raises(tm.DataSetError) as raised:
            tm.read_csv(file, schema=SCHEMA).collect()
        assert f"reading {file}: line {line}: " in str(raised.value) and reason in str(raised.value)


@pytest.mark.parametrize(
    ("bad_line", "reason"),
    [('{"n": 2', "not closed"), ("no json", ""), ('{"n": "x", "s": "b"}', ""), ("[1, 2]", ""), ("\udcff", "")],
)
def test_one_bad_line_of_json(tmp_path: Path, bad_line: str, reason: str) -> None:
    file = tmp_path / "a.json"
    good = ['{"n": 1, "s": "a"}', '{"n": 3, "s": "c"}']
    for place in range(3):
        lines = [*good[:place], bad_line, *good[place:]]
        for end in ["", "\n"]:
            file.write_bytes(("\n".join(lines) + end).encode(errors="surrogateescape"))
            assert skip(tm.read_json, file, 1, schema=SCHEMA) == [(1, "a"), (3, "c")]
            bad = tm.read_json(file, schema=SCHEMA, on_error="quarantine", quarantine=tmp_path / "bad")
            with pytest.warns(tm.BadRowsWarning, match=rf"line {place + 1}: .*{reason}"):
                bad.collect()
            aside = tm.read_json(tmp_path / "bad").to_pylist()
            assert [row["line"] for row in aside] == [place + 1]
    with pytest.raises(tm.DataSetError, match=rf"reading {file}: line 3: "):
        tm.read_json(file, schema=SCHEMA).collect()


@pytest.mark.parametrize("compress", [False, True])
def test_numbers_of_json_are_not_cut(tmp_path: Path, compress: bool) -> None:
    """Arrow's decoder converts 2.5 to 2."""
    text = '{"n":1}\n{"n":2.5}\n{"n":1e3,"s":"x"}\n{"n":2.0}\n{"n":1e30}\n{"n":3,"l":[1.5]}\n'
    file = tmp_path / ("a.json.gz" if compress else "a.json")
    file.write_bytes(gzip.compress(text.encode()) if compress else text.encode())
    schema = {"n": "int64", "s": "str", "l": "List(Int64)"}
    whole = f'reading {file}: line 2: 2.5 is not an integer, but column "n" is Int64'
    for data in [
        tm.read_json(file, schema=schema),
        tm.read_json(file, infer_rows=1),
        tm.read_json(file, schema=schema).limit(3),
        tm.read_json(file, schema=schema).select(tm.col("n").sum()),
    ]:
        with pytest.raises(tm.DataSetError) as raised:
            data.collect()
        assert whole in str(raised.value)
    assert tm.read_json(file, schema=schema).select("s").count() == 6
    assert skip(tm.read_json, file, 3, schema=schema) == [(1, None, None), (1000, "x", None), (2, None, None)]
    quarantine = tm.read_json(file, schema=schema, on_error="quarantine", quarantine=tmp_path / "bad")
    with pytest.warns(tm.BadRowsWarning):
        quarantine.collect()
    bad = tm.read_json(tmp_path / "bad").sort("line").to_pylist()
    assert [(row["line"], row["text"]) for row in bad] == [
        (2, '{"n":2.5}'),
        (5, '{"n":1e30}'),
        (6, '{"n":3,"l":[1.5]}'),
    ]


def test_decimals_that_are_too_large_when_rounded(tmp_path: Path) -> None:
    file = tmp_path / "a.csv"
    file.write_text("d\n1\n999.994\n999.995\n")
    schema = {"d": "decimal(5, 2)"}
    with pytest.raises(tm.DataSetError, match=f"reading {file}: line 4: .*too large to store in a Decimal"):
        tm.read_csv(file, schema=schema).collect()
    assert skip(tm.read_csv, file, 1, schema=schema) == [(Decimal("1.00"),), (Decimal("999.99"),)]


def test_a_line_that_is_no_text(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"one\nt\xffo\r\nthree")
    assert skip(tm.read_text, tmp_path / "a.txt", 1) == [("one",), ("three",)]


def test_all_good_all_bad_and_nothing_at_all(tmp_path: Path) -> None:
    file = tmp_path / "a.csv"
    for text, good, bad in [("n,s\n", [], 0), ("n,s", [], 0), ("", [], 0), ("n,s\n1,a", [(1, "a")], 0)]:
        file.write_text(text)
        assert skip(tm.read_csv, file, bad, schema=SCHEMA) == good
    file.write_text("n,s\n" + "x\n" * 20_000)
    assert skip(tm.read_csv, file, 20_000, schema=SCHEMA) == []
    file.write_text("")
    with pytest.raises(tm.DataSetError, match="has no columns"):
        tm.read_csv(file, on_error="skip")


def test_layouts(tmp_path: Path) -> None:
    file = tmp_path / "a.csv"
    file.write_text("# c\n1;'a;b';-\n#2;c;4\nthree;d;5\n4;'';6\n")
    layout: dict[str, Any] = {"header": False, "delimiter": ";", "quote": "'", "comment": "#", "null": "-"}
    schema = {"a": "int64", "b": "str", "c": "int64"}
    good = tm.read_csv(file, **layout, schema=schema, on_error="skip")
    with pytest.warns(tm.BadRowsWarning, match=r"line 4: .*three"):
        assert good.to_dict() == {"a": [1, 4], "b": ["a;b", None], "c": [None, 6]}
    file.write_text('n,s\n1,"two\nlines"\nx,"more\nlines"\n2,b"\n3,"open\n4,d\n')
    good = tm.read_csv(file, schema=SCHEMA, newlines_in_values=True, on_error="skip")
    with pytest.warns(tm.BadRowsWarning, match=r"2 rows .*line 4: "):
        assert rows(good) == rows(tm.from_dict({"n": [1, 2, 4], "s": ["two\nlines", 'b"', "d"]}))


def test_types_are_found_out_from_rows_that_make_sense(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("n,x\n1\n2,0.5\n1,2,3\n3,1.5\n")
    (tmp_path / "a.json").write_text('{"n": 1}\n{"n"\n{"n": 2}\n')
    assert tm.read_csv(tmp_path / "a.csv", on_error="skip").schema == {"n": "Int64", "x": "Float64"}
    assert skip(tm.read_csv, tmp_path / "a.csv", 2) == [(2, 0.5), (3, 1.5)]
    assert skip(tm.read_json, tmp_path / "a.json", 1) == [(1,), (2,)]


def test_wrong_arguments(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("n\n1\n")
    for wrong in [{"on_error": "no"}, {"on_error": "quarantine"}, {"quarantine": tmp_path}]:
        with pytest.raises(ValueError, match=r"on_error"):
            tm.read_csv(tmp_path / "a.csv", **wrong)


def test_bad_rows_do_not_lie_among_those_that_are_read(tmp_path: Path) -> None:
    """The next read took the files of bad rows for data."""
    data = tmp_path / "data"
    (data / "part").mkdir(parents=True)
    (data / "a.json").write_text('{"n": 1}\n')
    (data / "part/b.json").write_text('{"n": 2}\n')
    for paths, quarantine in [
        (data, data),
        ([data / "a.json", data], data / "bad"),
        (data / "*", data / "part"),
        (iter([data / "*.json"]), data),
    ]:
        with pytest.raises(tm.DataSetError, match=r"quarantine=.* is within .*, which is read; use a separate folder"):
            tm.read_json(paths, on_error="quarantine", quarantine=quarantine)
    for paths, quarantine in [(data, data / "_bad"), (data / "a.json", data), (data, tmp_path / "bad")]:
        assert tm.read_json(paths, on_error="quarantine", quarantine=quarantine).count() in (1, 2)


MANY = """
import sys
from pathlib import Path
import warnings
import tidemill as tm

job, folder = tm.init(), Path(sys.argv[1])
schema = {"n": "int64", "s": "str"}
total = {"n": [int(sys.argv[2])], "s": [int(sys.argv[3])]}
for name in ["plain", "zipped"]:
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        data = tm.read_csv(folder / name, schema=schema, on_error="quarantine", quarantine=folder / f"bad-{name}")
        assert data.select(n=tm.count(), s=tm.col("n").sum()).to_dict() == total
    assert tm.last_report().skipped_rows == int(sys.argv[4]), tm.last_report().skipped_rows
    assert len(seen) == (job.rank == 0), seen
    job.comm.barrier()
    bad = tm.read_json(folder / f"bad-{name}").sort("file", "line").to_pylist()
    for row in bad:
        assert row["text"] == f"bad {row['line']}", row
    assert len(bad) == int(sys.argv[4])
    try:
        tm.read_csv(folder / name, schema=schema).collect()
    except tm.DataSetError as error:
        said = str(error)
    assert all(one == said for one in job.comm.allgather(said))
    if job.rank == 0:
        print(said)
"""


@pytest.mark.parametrize("size", [1, 2, 3])
def test_several_workers_count_lines_of_the_whole_file(tmp_path: Path, size: int) -> None:
    """Files are divided into pieces, whose line numbers are not known initially."""
    generator = random.Random(size)
    good, total, bad, first = 0, 0, 0, 0
    for name in ["plain", "zipped"]:
        (tmp_path / name).mkdir()
    for part in range(2):
        lines = ["n,s"]
        for line in range(2, 200_000):
            if generator.random() < 0.0002:
                lines.append(f"bad {line}")
                bad += 1
                first = first or line
            else:
                lines.append(f"{line},text {'x' * (line % 50)}")
                good, total = good + 1, total + line
        text = ("\n".join(lines) + ("\n" if part else "")).encode()
        (tmp_path / "plain" / f"{part}.csv").write_bytes(text)
        (tmp_path / "zipped" / f"{part}.csv.gz").write_bytes(gzip.compress(text, 1))
    said = standing.run_program(MANY, tmp_path, str(good), str(total), str(bad), workers=size)
    assert said[1:] == [""] * (size - 1)
    plain, zipped = said[0].splitlines()
    assert f"{tmp_path}/plain/0.csv: line {first}: 2 values expected, 1 found" in plain
    assert f"{tmp_path}/zipped/0.csv.gz: line {first}: 2 values expected, 1 found" in zipped
