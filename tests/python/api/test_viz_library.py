"""The library of plots: imports, refused files, search, and versions that are restored as saved."""

from __future__ import annotations

import io
import json
import os
import sqlite3
import stat
import threading
import time
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import seeds
import tidemill as tm
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from mutations import mutated
from pyarrow import feather
from pyarrow import parquet as pq
from tidemill.viz import FrameError, FrameReader, FrameWriter, Library
from tidemill.viz.library import Limits, UploadError

PVIZ = """<?xml version="1.0" encoding="utf-8"?>
<plotviz>
  <plot><title>Fungi &amp; more</title><pointsize>1</pointsize><camera><focus x="0" y="0" z="0"/></camera></plot>
  <clusters>
    <cluster><key>1</key><label>Glomus</label><visible>1</visible><color r="255" g="128" b="0" a="255"/><size>1</size></cluster>
    <cluster><key>2</key><label>Glomus</label><visible>0</visible><color r="0" g="0" b="255" a="255"/><shape>3</shape></cluster>
  </clusters>
  <points>
    <point><key>0</key><clusterkey>1</clusterkey><label>first</label><location x="0.5" y="-2" z="3e1"/></point>
    <point><key>7</key><clusterkey>2</clusterkey><label></label><location x="1" y="2" z="3"/></point>
    <point><key>9</key><clusterkey>5</clusterkey><location x="1" y="2" z="4"/></point>
  </points>
  <edges><edge><key>0</key><vertices><vertex key="0"/><vertex key="9"/></vertices></edge></edges>
</plotviz>
"""


@pytest.fixture
def library(tmp_path: Path) -> Library:
    return Library(tmp_path / "library", limits=Limits(bytes=4 << 20, points=1000, frames=50))


def write(folder: Path, name: str, data: str | bytes) -> Path:
    path = folder / name
    path.write_bytes(data.encode() if isinstance(data, str) else data)
    return path


def zipped(folder: Path, name: str, members: dict[str, Any]) -> Path:
    with zipfile.ZipFile(folder / name, "w", zipfile.ZIP_DEFLATED) as archive:
        for member, data in members.items():
            archive.writestr(member, data)
    return folder / name


def only_frame(library: Library, path: Path) -> tuple[Any, FrameReader, Any]:
    plot = library.add(path)
    reader = FrameReader(library.frames(plot.id))
    assert (plot.frames, plot.points) == (1, reader.points)
    return plot, reader, reader[0]


def is_empty(library: Library) -> bool:
    return library.plots() == [] and list((library.folder / "plots").iterdir()) == []


# ---- imports


def test_the_text_point_file(library: Library, tmp_path: Path) -> None:
    path = write(
        tmp_path,
        "points.txt",
        "\ufeff# index x y z cluster label\n3\t1\t2\t3\t1\ta label\r\n\n10 -1 2.5e0 3 -2 with blanks in it\n4 0 0 0 1\n",
    )
    plot, reader, frame = only_frame(library, path)
    assert (plot.kind, plot.title, plot.source) == ("text", "points", "points.txt")
    assert reader.ids == ["3", "10", "4"]
    assert reader.labels == ["a label", "with blanks in it", "4"]
    assert frame.groups == {"cluster": ["1", "-2", "1"]}
    np.testing.assert_allclose(frame.positions, [[1, 2, 3], [-1, 2.5, 3], [0, 0, 0]], atol=1e-4)


def test_xml_of_points_and_clusters(library: Library, tmp_path: Path) -> None:
    """Two clusters with the same name must stay two; colors and hidden clusters are those of the file."""
    plot, reader, frame = only_frame(library, write(tmp_path, "fungi.pviz", PVIZ))
    assert (plot.title, plot.kind) == ("Fungi & more", "xml")
    assert (reader.ids, reader.labels) == (["0", "7", "9"], ["first", "7", "9"])
    assert frame.groups == {"cluster": ["Glomus (1)", "Glomus (2)", "5"]}
    assert frame.edges is not None and frame.edges.tolist() == [[0, 2]]
    assert library.changes(plot.id) == [
        {"set": "colour", "grouping": "cluster", "category": "Glomus (1)", "value": "#ff8000"},
        {"set": "colour", "grouping": "cluster", "category": "Glomus (2)", "value": "#0000ff"},
        {"set": "hidden", "grouping": "cluster", "category": "Glomus (2)", "value": True},
    ]


def test_json_of_points_and_of_frames(library: Library, tmp_path: Path) -> None:
    told = {
        "title": "From JSON",
        "clusters": [{"key": 1, "label": "one", "color": "#00FF00"}, {"key": "b", "visible": False}],
        "points": [
            {"id": "p", "x": 1, "y": 2, "cluster": 1, "height": 2.5},
            {"id": 7, "x": 3, "y": 4, "z": 5, "cluster": "b", "label": "seven"},
        ],
        "edges": [["p", 7]],
    }
    told["points"][0]["z"] = 0  # type: ignore[index]
    plot, reader, frame = only_frame(library, write(tmp_path, "a.json", json.dumps(told)))
    assert (plot.title, reader.ids, reader.own_labels) == ("From JSON", ["p", "7"], ["", "seven"])
    assert frame.groups == {"cluster": ["one", "b"]} and frame.edges.tolist() == [[0, 1]]
    np.testing.assert_equal(frame.values["height"], [2.5, np.nan])
    assert [change["set"] for change in library.changes(plot.id)] == ["colour", "hidden"]
    _, _, frame = only_frame(library, write(tmp_path, "b.json", "[[1, 2], [3, 4]]"))
    assert frame.positions.tolist() == [[1, 2, 0], [3, 4, 0]]
    frames = {"frames": [{"time": "Monday", "points": [[0, 0, 0]]}, {"points": [[1, 1, 1], [2, 2, 2]]}]}
    plot = library.add(write(tmp_path, "c.json", json.dumps(frames)))
    assert FrameReader(library.frames(plot.id)).times == ["Monday", "1"]


def test_tables_of_all_kinds_are_alike(library: Library, tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    import pyarrow.csv
    import pyarrow.feather
    import pyarrow.parquet

    table = pa.table(
        {
            "ID": ["b", "a", "b"],
            "X": [1.0, 2.0, 3.0],
            "y": [1, 2, 3],
            "Time": [10, 9, 9],
            "cluster": [1, None, 2],
            "sector": ["x", None, "y, z"],
            "height": [0.5, None, 1.5],
            "risen": [True, False, True],
        }
    )
    pyarrow.parquet.write_table(table, tmp_path / "t.parquet")
    pyarrow.feather.write_feather(table, tmp_path / "t.arrow", compression="uncompressed")
    pyarrow.csv.write_csv(table, tmp_path / "t.csv")
    pyarrow.csv.write_csv(table, tmp_path / "t.tsv", pyarrow.csv.WriteOptions(delimiter="\t"))
    for name in ("t.parquet", "t.arrow", "t.csv", "t.tsv"):
        reader = FrameReader(library.frames(library.add(tmp_path / name).id))
        # By their time, not by their position in the file.
        assert reader.times == ["9", "10"] and reader.ids == ["a", "b"], name
        first, second = reader[0], reader[1]
        np.testing.assert_allclose(first.positions, [[2, 2, 0], [3, 3, 0]])
        assert first.groups["cluster"] == [None, "2"] and first.groups["sector"] == [None, "y, z"], name
        assert [str(kind).lower() for kind in first.groups["risen"]] == ["false", "true"]
        np.testing.assert_equal(first.values["height"], [np.nan, 1.5])
        assert [reader.ids[row] for row in second.rows] == ["b"]


def test_a_column_that_looks_like_numbers_for_long_is_texts(library: Library, tmp_path: Path) -> None:
    """Types inferred from the first rows alone would cause the others to be refused."""
    rows = "".join(f"{n},{n},0\n" for n in range(900)) + "last one,0,0\n"
    _, reader, _ = only_frame(library, write(tmp_path, "a.csv", "id,x,y\n" + rows))
    assert reader.ids[-2:] == ["899", "last one"]


def test_ids_of_uploads_are_the_texts_that_are_written(library: Library, tmp_path: Path) -> None:
    for ids in (
        ["007", "7", "0007"],
        ["1E5", "100000", "2E3"],
        ["true", "TRUE", "false"],
        ["000001", "600000", "1.50"],
    ):
        rows = "".join(f"{name},{place},0\n" for place, name in enumerate(ids))
        _, reader, _ = only_frame(library, write(tmp_path, "ids.csv", "id,x,y\n" + rows))
        assert list(reader.ids) == ids
    # Times are strings, too, in the order of their numbers.
    plot = library.add(write(tmp_path, "times.csv", "id,time,x,y\na,010,0,0\na,9,1,1\na,1.5,2,2\n"))
    assert [frame.time for frame in FrameReader(library.frames(plot.id))] == ["1.5", "9", "010"]


def test_a_series_of_files_by_index_and_by_name(library: Library, tmp_path: Path) -> None:
    """Frames in another order than in the index would be a different film."""
    files = {f"f{n}.txt": f"0 {n} 0 0 1\n{n} 1 1 1 2\n" for n in (10, 2, 1)}
    index = "# time series\nf10.txt\tthe first\nf1.txt\nf2.txt\tlast\n"
    archive = zipped(
        tmp_path, "s.zip", {**{f"in/{name}": text for name, text in files.items()}, "in/times.index": index}
    )
    plot = library.add(archive)
    reader = FrameReader(library.frames(plot.id))
    assert (plot.kind, plot.title, reader.times) == ("series", "s", ["the first", "f1", "last"])
    assert [frame.positions[0, 0] for frame in reader] == [10, 1, 2]
    paths = [write(tmp_path, name, text) for name, text in files.items()]
    plot = library.add(paths)
    assert FrameReader(library.frames(plot.id)).times == ["f1", "f2", "f10"]
    plot = library.add([*paths, write(tmp_path, "index.txt", index)])
    assert FrameReader(library.frames(plot.id)).times == ["the first", "f1", "last"]


def test_a_folder_of_frames_is_copied(library: Library, tmp_path: Path) -> None:
    with FrameWriter(tmp_path / "map", title="Mine") as writer:
        writer.write_frame([[0, 0, 0], [1, 1, 1]], ids=["a", "b"], edges=[("a", "b")])
    write(tmp_path / "map", "secret.txt", "not a frame")
    write(tmp_path / "map", "selections.json", '[{"name":"<mine>","rows":[1]},{"name":"both","rows":[0,1]}]')
    plot = library.add(tmp_path / "map")
    assert (plot.title, plot.kind) == ("Mine", "frames")
    # Groups that readers had made are in the original, over which versions are made.
    assert library.changes(plot.id, 0) == [
        {"set": "group", "name": "<mine>", "value": [1]},
        {"set": "group", "name": "both", "value": [0, 1]},
    ]
    assert not (library.frames(plot.id) / "selections.json").exists()
    assert (tmp_path / "map" / "selections.json").exists()
    assert not (library.frames(plot.id) / "secret.txt").exists()
    assert FrameReader(library.frames(plot.id))[0].edges is not None
    with pytest.raises(FrameError, match="no frames"):
        library.add(tmp_path / "library")


# ---- refused files

BAD = [
    ("a.doc", b"x", "does not show its format"),
    ("a.txt", b"", "no point"),
    ("a.txt", b"0 1 2 3 1\n1 2 3\n", "line 2: it has 3 fields"),
    ("a.txt", b"0 1 2 nan 1\n", "line 1: z is 'nan'"),
    ("a.txt", b"0 1 2 1e999 1\n", "line 1: z is '1e999'"),
    ("a.txt", b"0 1 2 3 1\n\n0 1 2 3 1\n", "line 3: the index 0 already appeared, in line 1"),
    ("a.txt", b"zero 1 2 3 1\n", "line 1: the index 'zero'"),
    ("a.txt", b"0 1 2 3 red\n", "line 1: the cluster 'red'"),
    ("a.txt", b"0 1 2 3 1 \xff\n", "line 1: it is not UTF-8"),
    ("a.txt", b"0 1 2 3 1 \0\n", "zero byte"),
    ("a.txt", b"0 1 2 3 1 " + b"x" * 70_000, "longer than"),
    ("a.txt", b"".join(b"%d 1 2 3 1\n" % n for n in range(1001)), "more than 1,000 points"),
    ("a.csv", b"id,x\na,1\n", "no column y"),
    ("a.csv", b"x,y\n1,2\n3\n", "line 3"),
    ("a.csv", b"x,y\n1,2\n3,high\n", "row 2: y is 'high'"),
    ("a.csv", b"x,y\n1,2\n3,\n", "row 2: y is empty"),
    ("a.csv", b"x,y\n1e308,2\n-1e308,3\n", "a coordinate of point 0 is 1e+308, and at most 1e+37"),
    ("a.csv", b"x,y,mass\n1,2,3\n3,4,1e300\n", "value 'mass' of point 1 is 1e+300"),
    ("a.txt", b"0 1 2 1e39 1\n", "a coordinate of point 0 is 1e+39"),
    ("a.csv", b"x,X,y\n1,2,3\n", "two columns"),
    ("a.csv", b"id,x,y\na,1,2\na,3,4\n", "'a' appears twice"),
    ("a.csv", b"0,0,1\n1,1,2\n", "its first line names column '0' twice; give each a name of its own, and put a line of names"),
    ("a.tsv", b"\xef\xbb\xbfx\ty\tx\n1\t1\t2\n", "names column 'x' twice"),
    ("a.csv", "x,y\n1,2\n".encode("utf-16"), "it is UTF-16 and not UTF-8; save the file"),
    ("a.csv", "x,y\n1,2\n".encode("utf-16-be"), "it is UTF-16 and not UTF-8; save the file"),
    ("a.csv", b"x,y,time\n1,2,\n", "row 1: the time is empty"),
    ("a.csv", b"x,y\n", "no row"),
    ("a.csv", b"x,y\n" + b"1,2\n" * 1001, "more than 1,000 rows"),
    ("a.parquet", b"PAR1 nonsense PAR1", "cannot be read as Parquet"),
    ("a.arrow", b"nonsense" * 10, "cannot be read as Arrow"),
    ("a.json", b'{"points": [[1, 2], [3, 4,]]}', "line 1, column"),
    ("a.json", b'{"points": [[1, NaN]]}', "NaN is not JSON"),
    ("a.json", b"[" * 100_000, "nested too deep"),
    ("a.json", b"{}", 'a list "points"'),
    ("a.json", b'{"points": [{"x": 1, "y": [1]}]}', "point 0: 'y' is neither"),
    ("a.json", b'{"points": [{"x": 1, "y": "a"}]}', "y is 'a'"),
    ("a.json", b'{"points": [[1]]}', "point 0"),
    ("a.json", b'{"points": [[1, 1e400]]}', "not finite"),
    ("a.json", b'{"points": [[1, 2]], "edges": [[0, 5]]}', "edge 0 has the end '5'"),
    ("a.json", b'{"points": [[1, 2]], "clusters": [{"key": 1, "color": "red"}]}', "cluster 0"),
    ("a.json", b'{"frames": [{"points": [[1, 2]]}, {"points": []}]}', "frame 1"),
    ("a.pviz", b"<plotviz><points>", "line 1: this is not XML"),
    ("a.pviz", b"<html/>", "<html>, not <plotviz>"),
    ("a.pviz", b"<plotviz/>", "no <point>"),
    ("a.xml", PVIZ.replace('x="1"', 'x="one"').encode(), "line 10: x of a location is 'one'"),
    ("a.xml", PVIZ.replace("<key>7</key>", "<key>0</key>").encode(), "line 10: the point '0' already appeared"),
    ("a.xml", PVIZ.replace("<key>7</key>", "").encode(), "line 10: a point has no <key>"),
    ("a.xml", PVIZ.replace('g="128"', 'g="300"').encode(), "line 5: g of a color"),
    ("a.xml", PVIZ.replace('<vertex key="9"/>', '<vertex key="8"/>').encode(), "the end '8', which is not a point"),
    ("a.xml", b"<plotviz>" + b"<a>" * 100, "nested more than"),
    ("a.xml", PVIZ.replace("first", "x" * 20_000).encode(), "longer than"),
    (
        "bomb.xml",
        b'<?xml version="1.0"?><!DOCTYPE plotviz [<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;&a;">]><plotviz>&b;</plotviz>',
        "line 1: a document type or entity is not allowed",
    ),
    (
        "file.xml",
        b'<!DOCTYPE plotviz [<!ENTITY f SYSTEM "file:///etc/passwd">]><plotviz>&f;</plotviz>',
        "a document type or entity is not allowed",
    ),
    ("a.zip", b"PK nonsense", "not an archive that can be unpacked"),
    ("a.index", b"b.txt\n", "there is no file 'b.txt' in the upload"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "data", "said"), BAD, ids=[f"{name}-{said[:30]}" for name, _, said in BAD])
def test_bad_uploads_are_explained_and_leave_nothing(
    library: Library, tmp_path: Path, name: str, data: bytes, said: str
) -> None:
    with pytest.raises(UploadError) as raised:
        library.add(write(tmp_path, name, data))
    message = str(raised.value)
    assert said in message and name in message and str(tmp_path) not in message and len(message) < 700
    assert is_empty(library)


GOOD = "0 0 0 0 1\n"


@pytest.mark.parametrize(
    ("members", "said"),
    [
        ({"a.txt": GOOD, "times.index": "a.txt\nb.txt\n"}, "line 2: there is no file 'b.txt'"),
        ({"a.txt": GOOD, "times.index": "a.txt\na.txt\n"}, "was named before"),
        ({"a.txt": GOOD, "b.txt": GOOD, "times.index": "a.txt\n"}, "does not name it"),
        ({"a.txt": GOOD, "times.index": "../a.txt\n"}, "there is no file"),
        ({"a.txt": GOOD, "one.index": "a.txt\n", "two.index": "a.txt\n"}, "two indexes"),
        ({"a.txt": GOOD, "b.txt": "0 0 0"}, "b.txt, line 1"),
        ({"a.zip": b"PK"}, "not in another archive"),
        ({"../../a.txt": GOOD}, "leads out of the archive"),
        ({"/etc/a.txt": GOOD}, "leads out of the archive"),
        ({"a.exe": GOOD}, "does not show its format"),
        ({"a.txt": b"0" * (5 << 20)}, "unpacked it is more than"),
        ({}, "no file in it"),
        ({f"{n}.txt": GOOD for n in range(52)}, "has 52 files"),
    ],
)
def test_bad_archives_are_explained_and_leave_nothing(
    library: Library, tmp_path: Path, members: dict[str, Any], said: str
) -> None:
    with pytest.raises(UploadError) as raised:
        library.add(zipped(tmp_path, "s.zip", members))
    assert said in str(raised.value) and is_empty(library)
    assert not (tmp_path / "a.txt").exists() and not Path("/etc/a.txt").exists()


def test_archives_with_links_lies_and_passwords(library: Library, tmp_path: Path) -> None:
    link = zipfile.ZipInfo("a.txt")
    link.external_attr = (stat.S_IFLNK | 0o777) << 16
    with zipfile.ZipFile(tmp_path / "link.zip", "w") as archive:
        archive.writestr(link, "/etc/passwd")
    with pytest.raises(UploadError, match="is a link"):
        library.add(tmp_path / "link.zip")
    # It claims to unpack to ten bytes.
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a.txt", GOOD * 10_000)
    size = (len(GOOD) * 10_000).to_bytes(4, "little")
    with pytest.raises(UploadError):
        library.add(write(tmp_path, "lie.zip", packed.getvalue().replace(size, (10).to_bytes(4, "little"))))
    whole = bytearray(packed.getvalue())
    whole[whole.index(b"PK\1\2") + 8] |= 1
    with pytest.raises(UploadError, match="encrypted"):
        library.add(write(tmp_path, "password.zip", bytes(whole)))
    assert is_empty(library)


def test_damaged_uploads_are_plots_or_upload_errors(library: Library, tmp_path: Path) -> None:
    """An archive whose directory claims to begin before its first byte was an `OSError` without a name."""
    dice = seeds.dice()
    text = "".join(f"{n} {n / 7} {n / 3} 0.5 {n % 3} point {n}\n" for n in range(60))
    columns = {axis: np.arange(60) / 7 for axis in "xyz"} | {"kind": ["a", "b"] * 30}
    table = pa.table(columns)
    parquet, arrow = io.BytesIO(), io.BytesIO()
    pq.write_table(table, parquet)
    feather.write_feather(table, arrow, compression="zstd")
    archive = zipped(tmp_path, "whole.zip", {"a.txt": text, "b.txt": text, "times.index": "a.txt\nb.txt\n"})
    points = json.dumps({"points": [{"x": n, "y": n, "z": n, "id": str(n)} for n in range(20)]})
    whole = {"a.parquet": parquet.getvalue(), "a.arrow": arrow.getvalue(), "a.zip": archive.read_bytes()}
    whole |= {"a.txt": text.encode(), "a.json": points.encode()}
    for name, data in whole.items():
        library.add(write(tmp_path, name, data))
    for number in range(250):
        name = dice.choice(list(whole))
        try:
            library.add(write(tmp_path, name, mutated(dice, whole[name])))
        except UploadError as error:
            message = str(error)
            assert str(tmp_path) not in message and "internal" not in message.lower(), (seeds.SEED, number, message)
        except Exception as error:
            raise AssertionError(f"{name}, number {number} of seed {seeds.SEED}") from error
    # The archive that revealed it: its directory claims to be longer than the file.
    lie = bytearray(whole["a.zip"])
    lie[-10:-6] = (len(lie) - 22).to_bytes(4, "little")
    with pytest.raises(UploadError, match=r"a\.zip: this is not an archive that can be unpacked"):
        library.add(write(tmp_path, "a.zip", bytes(lie)))


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    suffix=st.sampled_from([".csv", ".tsv", ".txt", ".json", ".xml", ".pviz", ".parquet", ".arrow", ".zip", ".index"]),
    data=st.one_of(
        st.binary(max_size=300),
        st.text(max_size=200).map(str.encode),
        st.lists(st.sampled_from(["x", "y", "z", "id", ",", "\n", "\t", " ", "1", "-0.5", '"', "nan", "<", ">", "/", "[", "]", "{", "}", ":", "points"]), max_size=60)
        .map("".join).map(str.encode),
        st.tuples(st.integers(0, len(PVIZ)), st.binary(max_size=6)).map(
            lambda cut: PVIZ.encode()[: cut[0]] + cut[1] + PVIZ.encode()[cut[0] + len(cut[1]) :]
        ),
    ),
)  # fmt: skip
def test_whatever_comes_is_a_plot_or_an_upload_error(
    tmp_path_factory: pytest.TempPathFactory, suffix: str, data: bytes
) -> None:
    """Any other exception would not be understandable for the user; and half a plot would stay forever."""
    folder = tmp_path_factory.mktemp("fuzz")
    library = Library(folder / "library", limits=Limits(bytes=1 << 20, points=100, frames=10))
    try:
        plot = library.add(write(folder, f"a{suffix}", data))
    except UploadError as error:
        assert f"a{suffix}" in str(error) and is_empty(library)
    else:
        for frame in FrameReader(library.frames(plot.id)):
            assert np.isfinite(frame.positions).all()


numbers = st.floats(-1e6, 1e6, width=32)
names = st.text(st.characters(exclude_categories=["Cs", "Cc", "Z"]), min_size=1, max_size=8)


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    points=st.dictionaries(
        st.integers(0, 10**6), st.tuples(numbers, numbers, numbers, st.integers(-5, 5), names), min_size=1, max_size=30
    )
)
def test_every_format_gives_the_same_points(
    tmp_path_factory: pytest.TempPathFactory, points: dict[int, tuple[float, float, float, int, str]]
) -> None:
    """The same points in four formats are the same plot: a reader that shifts columns or rows would show."""
    from xml.sax.saxutils import escape

    folder = tmp_path_factory.mktemp("formats")
    library = Library(folder / "library")
    rows = [(key, *point) for key, point in points.items()]
    text = "".join(f"{key}\t{x!r}\t{y!r}\t{z!r}\t{cluster}\t{label}\n" for key, x, y, z, cluster, label in rows)
    told = [dict(zip(("id", "x", "y", "z", "cluster", "label"), row, strict=True)) for row in rows]
    xml = "".join(
        f'<point><key>{k}</key><clusterkey>{c}</clusterkey><label>{escape(t)}</label><location x="{x!r}" y="{y!r}" z="{z!r}"/></point>'
        for k, x, y, z, c, t in rows
    )
    made = [
        write(folder, "a.txt", text),
        write(folder, "a.json", json.dumps({"points": told})),
        write(folder, "a.xml", f"<plotviz><points>{xml}</points></plotviz>"),
    ]
    readers = [FrameReader(library.frames(library.add(path).id)) for path in made]
    for reader in readers:
        frame = reader[0]
        assert reader.ids == [str(key) for key in points]
        assert frame.groups["cluster"] == [str(row[4]) for row in rows]
        assert reader.labels == [row[5].strip() or str(row[0]) for row in rows]
        np.testing.assert_array_equal(frame.positions, readers[0][0].positions)
    where = np.array([row[1:4] for row in rows])
    assert (np.abs(readers[0][0].positions - where) <= np.ptp(where, axis=0) / 131068 + 0.1).all()


# ---- description, search


def test_search_by_tag_collection_and_content(library: Library, tmp_path: Path) -> None:
    a = library.add(
        write(tmp_path, "a.txt", "0 0 0 0 1 Glomus intraradices\n"), tags=["fungi", "dna"], collection="Biology"
    )
    b = library.add(
        write(tmp_path, "b.csv", "id,x,y,sector\nAAPL,0,0,Technology\n"),
        title="A market",
        tags=["prices"],
        description="daily 100 %",
    )
    library.comment(b.id, "Look at the crash", author="Ada")
    library.save_version(b.id, "With colours", [])

    def found(search: str, **more: str) -> list[str]:
        return sorted(plot.title for plot in library.plots(search, **more))

    assert found("") == ["A market", "a"] and library.count() == 2
    for search, titles in {
        "glomus": ["a"], "INTRA": ["a"], "aapl": ["A market"], "tech": ["A market"], "crash ada": ["A market"],
        "with colours": ["A market"], "crash glomus": [], "tag:fungi": ["a"], "tag:FUNGI glomus": ["a"], "tag:fung": [],
        "in:Biology": ["a"], 'in:"Biology"': ["a"], "biology": ["a"], "100": ["A market"], "b.csv": ["A market"],
        '"': [], "%": [], "' OR 1=1 --": [], "original": [], "NEAR(": [], "*": [], "-": [], "a OR market": [],
    }.items():  # fmt: skip
        assert found(search) == titles, search
    assert found("", tag="dna") == ["a"] == found("", collection="Biology")
    assert library.tags() == {"dna": 1, "fungi": 1, "prices": 1} and library.collections() == {"Biology": 1}
    changed = library.update(a.id, title="<b>Fungi</b>", tags=["rna", " rna ", ""])
    assert (changed.title, changed.tags, changed.collection) == ("<b>Fungi</b>", ("rna",), "Biology")
    assert found("tag:fungi") == [] and found("fungi rna glomus") == ["<b>Fungi</b>"]
    library.remove_comment(b.id, library.comments(b.id)[0].number)
    assert found("crash") == []
    library.remove(b.id)
    assert found("aapl") == [] and [path.name for path in (library.folder / "plots").iterdir()] == [a.id]
    for wrong in (
        {"title": ""},
        {"title": "x" * 201},
        {"tags": ["x" * 61]},
        {"title": "a\0b"},
        {"tags": list(map(str, range(51)))},
    ):
        with pytest.raises(ValueError, match=r"at most|needs a title|control"):
            library.update(a.id, **wrong)  # type: ignore[arg-type]
    for call in (library.plot, library.frames, library.versions, library.comments, library.remove):
        with pytest.raises(KeyError, match="no plot"):
            call(b.id)


# ---- versions


def test_a_version_is_all_changes_up_to_it(library: Library, tmp_path: Path) -> None:
    """Branches must not see each other's changes, and reverted changes are as in the original."""
    plot = library.add(write(tmp_path, "fungi.pviz", PVIZ)).id
    about = {"grouping": "cluster", "category": "Glomus (1)"}
    red = {"set": "colour", **about, "value": "#ff0000"}
    star = {"set": "glyph", "point": "7", "value": "star"}
    group = {"set": "group", "name": "mine", "value": [0, 2]}
    one = library.save_version(plot, "one", [red, star], author="Ada", note="why")
    two = library.save_version(plot, "two", [{**star, "value": None}, group], parent=one.number)
    other = library.save_version(plot, "other", [{"set": "name", **about, "value": "<i>"}])
    original = library.changes(plot)
    assert [version.number for version in library.versions(plot)] == [0, 1, 2, 3]
    assert library.changes(plot, one.number) == [*original[1:], red, star]
    assert library.changes(plot, two.number) == [*original[1:], red, group]
    assert library.changes(plot, other.number)[:-1] == original
    assert library.plot(plot).versions == 3 and library.versions(plot)[1].author == "Ada"
    with pytest.raises(KeyError, match="no version 9"):
        library.save_version(plot, "x", [], parent=9)
    with pytest.raises(KeyError, match="no version 9"):
        library.changes(plot, 9)


def test_a_version_is_renamed_and_removed_and_those_built_on_it_stay(library: Library, tmp_path: Path) -> None:
    """A log without its base would show something else; a reused number would be mistaken for the removed one."""
    plot = library.add(write(tmp_path, "points.txt", "0 1 2 3 1\n1 2 3 4 2\n")).id
    star, group = {"set": "glyph", "point": "0", "value": "star"}, {"set": "group", "name": "mine", "value": [0]}
    library.save_version(plot, "one", [star, group])
    library.save_version(plot, "two", [{**star, "value": None}, {**star, "point": "1"}], parent=1)
    library.save_version(plot, "three", [{**star, "value": "cross"}], parent=2)
    before = [library.changes(plot, version) for version in (2, 3)]
    renamed = library.update_version(plot, 1, name=" first ", note="why")
    assert renamed == library.versions(plot)[1] and (renamed.name, renamed.note) == ("first", "why")
    assert library.update_version(plot, 1).name == "first" and library.changes(plot, 1) == [star, group]
    assert [found.id for found in library.plots("first")] == [plot]
    token = library.share(plot, version=1).token
    library.share(plot)
    library.remove_version(plot, 1)
    assert [(version.number, version.parent) for version in library.versions(plot)] == [(0, None), (2, 0), (3, 2)]
    assert [library.changes(plot, version) for version in (2, 3)] == before and list(library.logs(plot)) == [0, 2, 3]
    assert library.plot(plot).versions == 2 and library.plots("first") == []
    assert library.shared(token) is None and len(library.shares(plot)) == 1
    library.remove_version(plot, 3)
    assert library.save_version(plot, "four", [], parent=2).number == 4
    for call in (library.changes, library.remove_version, library.update_version):
        with pytest.raises(KeyError, match="no version 3 of the plot"):
            call(plot, 3)
    with pytest.raises(KeyError, match="no version 3"):
        library.save_version(plot, "five", [], parent=3)
    with pytest.raises(ValueError, match="0 is the original"):
        library.remove_version(plot, 0)
    with pytest.raises(ValueError, match="a version needs a name"):
        library.update_version(plot, 2, name=" ")


@pytest.mark.parametrize(
    "change",
    [
        7, {}, {"set": "nothing"}, {"set": "colour", "value": "#ff0000"}, {"set": ["colour"]},
        {"set": "colour", "grouping": "a", "category": "b", "value": "red"},
        {"set": "colour", "grouping": "a", "category": "b", "value": "url(http://elsewhere)"},
        {"set": "hidden", "grouping": "a", "category": "b", "value": 1},
        {"set": "glyph", "point": "a", "value": "skull"}, {"set": "glyph", "point": 1, "value": "star"},
        {"set": "label", "point": "a", "value": "x" * 1001}, {"set": "group", "name": "a", "value": [True]},
        {"set": "group", "name": "a", "value": [-1]}, {"set": "view", "value": ""},
    ],
)  # fmt: skip
def test_changes_that_make_no_sense_are_refused(library: Library, tmp_path: Path, change: Any) -> None:
    plot = library.add(write(tmp_path, "a.txt", GOOD)).id
    with pytest.raises(ValueError, match="change"):
        library.save_version(plot, "x", [change])
    assert len(library.versions(plot)) == 1


def test_only_what_belongs_into_a_change_is_kept(library: Library, tmp_path: Path) -> None:
    plot = library.add(write(tmp_path, "a.txt", GOOD)).id
    library.save_version(plot, "x", [{"set": "view", "value": "frame=1", "__proto__": {"evil": 1}, "more": 2}])
    assert library.changes(plot, 1) == [{"set": "view", "value": "frame=1"}]


# ---- shares, other programs, damage


def test_shares_are_kept_as_hashes_and_withdrawn(library: Library, tmp_path: Path) -> None:
    plot = library.add(write(tmp_path, "a.txt", GOOD)).id
    library.save_version(plot, "one", [])
    all_of_it, one = library.share(plot, name="Ada"), library.share(plot, version=1)
    assert library.shared(all_of_it.token) == (plot, None) and library.shared(one.token) == (plot, 1)
    assert [(share.name, share.version, share.token) for share in library.shares(plot)] == [
        ("Ada", None, ""),
        ("", 1, ""),
    ]
    for path in library.folder.rglob("*"):
        assert not path.is_file() or all_of_it.token.encode() not in path.read_bytes()
    library.withdraw(plot, all_of_it.number)
    assert library.shared(all_of_it.token) is None and library.shared(one.token) is not None
    with pytest.raises(KeyError, match="no share"):
        library.withdraw(plot, all_of_it.number)
    library.remove(plot)
    assert library.shared(one.token) is None


def test_many_write_at_once(library: Library, tmp_path: Path) -> None:
    """Two that save a version at the same time get two numbers; nobody gets an error that the database is locked."""
    path = write(tmp_path, "a.txt", GOOD)
    plot = library.add(path).id
    wrong: list[BaseException] = []

    def work() -> None:
        try:
            mine = Library(library.folder)
            for _ in range(5):
                mine.save_version(plot, "one of many", [])
                mine.comment(mine.add(path).id, "more")
        except BaseException as error:
            wrong.append(error)

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert [version.number for version in library.versions(plot)] == list(range(31))
    assert library.count() == 31 == len(list((library.folder / "plots").iterdir()))


def test_a_failure_at_any_step_leaves_the_library_as_it_was(
    library: Library, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the disk is full, or the program is stopped, there must be no plot without points, nor points without a plot."""
    path = write(tmp_path, "a.txt", GOOD)
    for name in ("rename", "iterdir", "replace", "stat"):
        with monkeypatch.context() as patch:

            def full(*_: Any, **__: Any) -> Any:
                raise OSError(28, "No space left on device")

            patch.setattr(Path, name, full)
            with pytest.raises((OSError, FrameError)):
                library.add(path)
        assert is_empty(library), name
    assert library.add(path).points == 1


def test_leftovers_are_removed_when_nobody_uploads(library: Library) -> None:
    plots = library.folder / "plots"
    for name, age_s in (("0123456789abcdef", 90_000), (".new-1", 90_000), (".new-2", 10), ("mine", 90_000)):
        (plots / name).mkdir()
        os.utime(plots / name, (time.time() - age_s,) * 2)
    Library(library.folder)
    assert [path.name for path in plots.iterdir()] == ["mine"]


def test_what_is_no_library_is_explained(tmp_path: Path) -> None:
    with FrameWriter(tmp_path / "map"):
        pass
    with pytest.raises(FrameError, match="is a folder of frames"):
        Library(tmp_path / "map")
    write(tmp_path, "library.sqlite", "no database at all, but long enough to have a header" * 10)
    with pytest.raises(FrameError, match=r"library\.sqlite"):
        Library(tmp_path)
    (tmp_path / "other").mkdir()
    with sqlite3.connect(tmp_path / "other" / "library.sqlite") as db:
        db.execute("CREATE TABLE mine (x)")
    with pytest.raises(FrameError, match="is not a library"):
        Library(tmp_path / "other")
    (tmp_path / "file").write_text("")
    with pytest.raises(FrameError, match="cannot be a library"):
        Library(tmp_path / "file")
    assert tm.viz.Library is Library
