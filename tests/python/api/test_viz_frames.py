"""Frames on disk: they are read as written, have the documented size, and invalid input is refused."""

from __future__ import annotations

import json
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tidemill.viz import FrameError, FrameReader, FrameWriter, _selections, _write
from tidemill.viz._demo import write_market

safetensors = pytest.importorskip("safetensors.numpy")


def test_points_that_come_and_go_keep_their_places_names_and_categories(tmp_path: Path) -> None:
    """A point that took another's place when ids come, go or change their order would move to where that one is."""
    rng = np.random.default_rng(0)
    names = np.array([f"id {number}" for number in range(40)])
    with FrameWriter(tmp_path) as writer:
        frames = []
        for time in range(12):
            here = rng.permutation(40)[: rng.integers(0, 41)]
            where = rng.normal(size=(len(here), 3)) * [1, 100, 1e-6] + [5, 0, 0]
            parity = np.array([("even", "odd")[(n + time * (n == 7)) % 2] for n in here], dtype=object)
            weight = np.where(here % 5 == 0, np.nan, here * 1.5)
            writer.write_frame(
                where,
                ids=names[here],
                time=time,
                labels=names[here],
                groups={"parity": parity},
                values={"weight": weight},
            )
            frames.append((here, where, parity, weight))
    reader = FrameReader(tmp_path)
    assert len(reader) == 12
    for frame, (here, where, parity, weight) in zip(reader, frames, strict=True):
        order = np.argsort([reader.ids.index(name) for name in names[here]]) if len(here) else np.empty(0, int)
        assert [reader.ids[row] for row in frame.rows] == names[here][order].tolist()
        box = np.ptp(where, axis=0) if len(here) else 0.0
        assert (np.abs(frame.positions - where[order]) <= box / 131068 + 1e-6).all()
        assert frame.groups["parity"] == parity[order].tolist()
        np.testing.assert_allclose(frame.values["weight"], weight[order], atol=60 / 131068 + 1e-6)
    paths = reader.trajectories(list(range(reader.points)))
    for number, frame in enumerate(reader):
        np.testing.assert_array_equal(paths[number, frame.rows], frame.positions)
        assert np.isnan(np.delete(paths[number], frame.rows, axis=0)).all()


def test_a_point_takes_six_bytes_a_frame_and_any_reader_of_safetensors_opens_it(tmp_path: Path) -> None:
    """Frames would be twice as long if each contained ids, or categories that do not change."""
    rng = np.random.default_rng(0)
    ids = np.arange(5000)
    with FrameWriter(tmp_path) as writer:
        for time in range(3):
            writer.write_frame(rng.normal(size=(5000, 3)), ids=ids, time=time, groups={"tens": ids % 10})
    for path in tmp_path.glob("frame-*"):
        assert path.stat().st_size < 6.1 * 5000
        assert safetensors.load_file(path)["position"].shape == (5000, 3)
    assert safetensors.load_file(tmp_path / "points-000000.safetensors")["group.tens"].tolist() == (ids % 10).tolist()


def test_the_index_says_where_most_values_lie(tmp_path: Path) -> None:
    """The page's color scale ends there: with a few extreme values, all others would look the same."""
    with FrameWriter(tmp_path / "frames") as writer:
        far = np.append(np.arange(1000.0), [1e30, np.nan])
        writer.write_frame(np.zeros((1002, 3)), values={"v": far, "none": np.full(1002, np.nan)})
    line = json.loads((tmp_path / "frames" / "index.jsonl").read_text().splitlines()[-1])
    assert line["values"] == {"v": [0, 1e30], "none": [0, 0]}
    assert line["usual"] == {"v": [50, 500, 950]}


def test_groups_with_an_order_say_so_and_few_take_a_byte(tmp_path: Path) -> None:
    """Bins colored like sectors tell nothing; and of 256 categories, one would be mistaken for none."""
    kinds = [f"kind {number}" for number in range(256)]
    with FrameWriter(tmp_path / "map", categories={"sector": (), "bin": ["low", "high"]}) as writer:
        for turn, some in enumerate((kinds[:255], kinds)):
            for shift in range(2):
                order = np.roll(some, shift).tolist()
                groups = {"bin": [None, *["high"] * (len(some) - 1)], "sector": order}
                writer.write_frame(np.zeros((len(some), 3)), ids=some, groups=groups, time=2 * turn + shift)
    reader = FrameReader(tmp_path / "map")
    for number, frame in enumerate(reader):
        some = kinds[:255] if number < 2 else kinds
        assert frame.groups["sector"] == np.roll(some, number % 2).tolist()
        assert frame.groups["bin"] == [None, *["high"] * (len(some) - 1)]
    types = [
        safetensors.load_file(tmp_path / "map" / f"frame-{number:06}.safetensors")["group.sector"].dtype
        for number in (1, 3)
    ]
    assert types == [np.uint8, np.uint16]
    lines = [json.loads(line) for line in (tmp_path / "map" / "index.jsonl").read_text().splitlines()]
    told = {line["grouping"]: line.get("ordered") for line in lines if line.get("kind") == "categories"}
    assert told == {"sector": None, "bin": True}


def test_writing_goes_on_where_it_ended(tmp_path: Path) -> None:
    """A second writer that numbers points or categories from 0 would give old points new names."""
    for frames in (3, 2):
        with FrameWriter(tmp_path, mode="a") as writer:
            for _ in range(frames):
                reader = FrameReader(tmp_path)
                number = len(reader)
                ids = [f"p{number}", "always"]
                writer.write_frame(np.full((2, 2), number), ids=ids, groups={"of": [f"group {number}", "all"]})
    reader = FrameReader(tmp_path)
    assert reader.ids == ["p0", "always", "p1", "p2", "p3", "p4"]
    assert [frame.groups["of"] for frame in reader] == [["group 0", "all"]] + [
        ["all", f"group {n}"] for n in range(1, 5)
    ]
    with pytest.raises(FrameError, match='mode="w" replaces them'):
        FrameWriter(tmp_path)
    FrameWriter(tmp_path, mode="w")
    assert [path.name for path in tmp_path.iterdir()] == ["index.jsonl"]


def test_frames_that_others_record_are_those_of_the_writer(tmp_path: Path) -> None:
    """Frames made by several processes, in any order, would name other points or categories than the folder does."""
    rng = np.random.default_rng(0)
    ids = [["b", "a"], ["b"], ["c", "a", "b"]]
    groups = {"a": "x", "b": "y", "c": "x"}
    frames = [
        {
            "positions": rng.normal(size=(len(here), 3)),
            "ids": here,
            "labels": [one.upper() for one in here],
            "groups": {"kind": [groups[one] for one in here], "step": ["up", "down", "up"][: len(here)]},
            "values": {"weight": rng.normal(size=len(here))},
        }
        for here in ids
    ]
    news, steps = [["b", "a"], [], ["c"]], {"step": ("down", "up")}

    def name(writer: FrameWriter, number: int) -> None:
        new = news[number]
        if new:
            writer.add_points(new, labels=[one.upper() for one in new], groups={"kind": [groups[one] for one in new]})

    whole = FrameWriter(tmp_path / "whole", categories=steps)
    for number, frame in enumerate(frames):
        name(whole, number)
        whole.write_frame(**frame)
    recorder, known = _write.FrameRecorder(categories=steps), []
    for number in range(3):
        name(recorder, number)
        known.append(recorder.points)
    recorded = {number: recorder.record(number, known[number], **frames[number]) for number in (2, 0, 1)}
    parts = FrameWriter(tmp_path / "parts", categories=steps)
    with pytest.raises(FrameError, match="frame 1 was made to follow as many frames, but there are 0"):
        parts.put(recorded[1])
    for number in range(3):
        name(parts, number)
        parts.put(recorded[number])
    for file in (tmp_path / "whole").glob("*.safetensors"):
        assert file.read_bytes() == (tmp_path / "parts" / file.name).read_bytes(), file.name
    lines = [(tmp_path / one / "index.jsonl").read_text().splitlines()[1:] for one in ("whole", "parts")]
    assert lines[0] == lines[1]
    assert FrameReader(tmp_path / "parts")[0].groups["step"] == ["up", "down"]
    for wrong in ({"ids": ["d"]}, {"ids": ["a"], "groups": {"kind": ["z"]}}):
        with pytest.raises(FrameError, match="frame 3: a point or a category was not named with add_points"):
            recorder.record(3, 3, np.zeros((1, 3)), **wrong)


def test_a_reader_sees_whole_frames_as_they_come(tmp_path: Path) -> None:
    """A partially written line would be mistaken for a damaged index."""
    writer = FrameWriter(tmp_path, title="grows")
    reader = FrameReader(tmp_path)
    assert (len(reader), reader.title) == (0, "grows")
    writer.write_frame([[0, 0, 0]], metrics={"stress": 0.5, "fit": float("nan")}, heat_map=[[1, 2], [3, 4]])
    index = tmp_path / "index.jsonl"
    whole = index.read_bytes()
    index.write_bytes(whole[:-5])
    assert reader.refresh() == 0
    index.write_bytes(whole)
    assert reader.refresh() == 1
    assert reader[0].metrics == {"stress": 0.5}
    assert reader[0].heat_map is not None and reader[0].heat_map.tolist() == [[1, 2], [3, 4]]


@pytest.mark.parametrize(
    ("what", "named"),
    [
        ({"positions": np.zeros(3)}, "shape"),
        ({"positions": [[0, 0, np.inf]]}, "point 0 is not finite"),
        ({"positions": [[0, 0, 0], [0, -1e39, 0]]}, r"a coordinate of point 1 is -1e\+39, .* larger units"),
        ({"positions": [[1e308, 0], [-1e308, 0]]}, r"a coordinate of point 0 is 1e\+308"),
        ({"positions": np.zeros((2, 3)), "values": {"mass": [np.inf, 1e300]}}, r"value 'mass' of point 1 is 1e\+300"),
        ({"positions": np.zeros((2, 3)), "ids": ["a"]}, "1 ids for 2 points"),
        ({"positions": np.zeros((2, 3)), "ids": ["a", "a"]}, "'a' appears twice"),
        ({"positions": np.zeros((1, 3)), "groups": {"kind": ["a", "b"]}}, "'kind' has shape"),
        ({"positions": np.zeros((1, 3)), "values": {"price": [1, 2]}}, "'price' has shape"),
        ({"positions": np.zeros((1, 3)), "labels": []}, "0 labels"),
        ({"positions": np.zeros((1, 3)), "heat_map": [1, 2]}, "heat map"),
        ({"positions": np.zeros((1, 3)), "heat_map_range": [[0, 1], [0, 1]]}, "heat_map_range"),
        ({"positions": np.zeros((1, 3)), "heat_map": [[1]], "heat_map_range": [[1, 0], [0, 1]]}, "heat_map_range"),
    ],
)
def test_what_does_not_fit_is_refused_and_leaves_nothing(tmp_path: Path, what: dict[str, object], named: str) -> None:
    writer = FrameWriter(tmp_path)
    with pytest.raises(FrameError, match=named):
        writer.write_frame(**what)  # type: ignore[arg-type]
    assert [path.name for path in tmp_path.iterdir()] == ["index.jsonl"]
    assert len((tmp_path / "index.jsonl").read_text().splitlines()) == 1


def test_what_pandas_has_for_nothing_is_no_category(tmp_path: Path) -> None:
    """Comparisons with NA are neither true nor false, which ended the write with a TypeError that named no grouping."""
    pandas = pytest.importorskip("pandas")
    texts = pandas.Series(["x", pandas.NA, None], dtype="string")
    mixed = np.array([pandas.NA, float("nan"), "y"], dtype=object)
    numbers = pandas.Series([1, pandas.NA, 2], dtype="Int64")
    with FrameWriter(tmp_path / "frames") as writer:
        writer.write_frame(np.zeros((3, 3)), groups={"texts": texts, "mixed": mixed}, values={"numbers": numbers})
    (frame,) = FrameReader(tmp_path / "frames")
    assert frame.groups == {"texts": ["x", None, None], "mixed": [None, None, "y"]}
    np.testing.assert_array_equal(frame.values["numbers"], [1, np.nan, 2])


def test_names_that_the_page_could_not_tell_apart_are_refused(tmp_path: Path) -> None:
    """It listed them twice and showed the grouping both times; one with the name of readers' groups was replaced by
    these.
    """
    where = np.zeros((1, 3))
    with FrameWriter(tmp_path / "frames") as writer:
        with pytest.raises(FrameError, match=r"'my groups' is the page's name for .* another name"):
            writer.write_frame(where, groups={"my groups": ["a"]})
        with pytest.raises(FrameError, match="'val' is both a grouping and a value; give one"):
            writer.write_frame(where, groups={"val": ["a"]}, values={"val": [1]})
        writer.write_frame(where, groups={"kind": ["a"]}, values={"size": [1]})
        with pytest.raises(FrameError, match="frame 1: 'size' is both"):
            writer.write_frame(where, groups={"size": ["a"]})
    with FrameWriter(tmp_path / "frames", mode="a") as writer:
        with pytest.raises(FrameError, match="frame 1: 'size' is both"):
            writer.write_frame(where, groups={"size": ["a"]})
        with pytest.raises(FrameError, match="frame 1: 'kind' is both"):
            writer.write_frame(where, values={"kind": [1]})
    with pytest.raises(FrameError, match="categories: 'my groups' is"):
        FrameWriter(tmp_path / "frames", categories={"my groups": ["a"]}, mode="w")
    assert len(FrameReader(tmp_path / "frames")) == 1


@pytest.mark.filterwarnings("error")
def test_the_largest_numbers_are_read_again(tmp_path: Path) -> None:
    with FrameWriter(tmp_path) as writer:
        writer.write_frame([[1e37, 0], [-1e37, 1]], values={"mass": [-1e37, 1e37]})
    (frame,) = FrameReader(tmp_path)
    np.testing.assert_allclose(frame.positions[:, 0], [1e37, -1e37], rtol=1e-6)
    np.testing.assert_allclose(frame.values["mass"], [-1e37, 1e37], rtol=1e-6)


@pytest.mark.parametrize(
    "wrong",
    [
        {"values": {"price": [1]}},
        {"labels": ["one"]},
        {"edges": [("a", "nobody")]},
        {"groups": {"kind": ["new", "newer"], "other": ["only one"]}},
        {"ids": ["a", "a"]},
    ],
)
def test_a_frame_that_was_refused_leaves_no_categories(tmp_path: Path, wrong: dict[str, Any]) -> None:
    """The legend would show them forever, without points; nor may its points count as known."""
    writer = FrameWriter(tmp_path)
    good: dict[str, Any] = {"positions": np.zeros((2, 3)), "ids": ["a", "b"], "groups": {"kind": ["x", "y"]}}
    with pytest.raises(FrameError):
        writer.write_frame(**{**good, "groups": {"kind": ["new", "newer"]}, **wrong})
    writer.write_frame(**good)
    reader = FrameReader(tmp_path)
    assert (reader.categories, reader.ids) == ({"kind": ["x", "y"]}, ["a", "b"])


def test_an_id_twice_is_found_at_once(tmp_path: Path) -> None:
    """Among 200,000: searching all earlier ones for each would take hours."""
    ids = [f"p{number}" for number in range(200_000)]
    with pytest.raises(FrameError, match="'p199998' appears twice"):
        FrameWriter(tmp_path).write_frame(np.zeros((200_001, 3)), ids=[*ids, "p199998"])


def test_groups_that_readers_made_outlive_frames_that_are_written_anew(tmp_path: Path) -> None:
    """They are users' work: stored by id, because rows change; also for points that come with a later frame."""
    with FrameWriter(tmp_path) as writer:
        writer.write_frame(np.zeros((4, 3)), ids=["a", "b", "c", "d"])
    groups = [{"name": "mine", "rows": [0, 2]}, {"name": "other", "rows": [3, 1]}]
    (tmp_path / "selections.json").write_text(json.dumps(groups))
    writer = FrameWriter(tmp_path, mode="w")
    assert not (tmp_path / "selections.json").exists()
    writer.write_frame(np.zeros((3, 3)), ids=["c", "x", "b"])
    assert json.loads((tmp_path / "selections.json").read_text()) == [
        {"name": "mine", "rows": [0]}, {"name": "other", "rows": [2]},
    ]  # fmt: skip
    writer.write_frame(np.zeros((2, 3)), ids=["y", "a"])
    with pytest.warns(
        UserWarning, match="1 points of groups that readers had made [(]other[)] are no longer in any frame"
    ):
        writer.close()
    assert json.loads((tmp_path / "selections.json").read_text())[0] == {"name": "mine", "rows": [0, 4]}
    # Appending to the frames changes nothing.
    with FrameWriter(tmp_path, mode="a") as writer:
        writer.write_frame(np.zeros((1, 3)), ids=["d"])
    assert json.loads((tmp_path / "selections.json").read_text())[1] == {"name": "other", "rows": [2]}
    (tmp_path / "selections.json").write_text("[")
    with pytest.warns(UserWarning, match="groups that readers have made are lost with the frames: .*selections.json"):
        FrameWriter(tmp_path, mode="w").write_frame(np.zeros((1, 3)), ids=["a"])
    assert not (tmp_path / "selections.json").exists()


def test_a_group_that_is_made_just_before_frames_are_written_anew_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Groups were read before taking the lock that keeps readers from making more."""
    with FrameWriter(tmp_path) as writer:
        writer.write_frame(np.zeros((2, 3)), ids=["a", "b"])
    locked = _selections.locked

    def made_before(folder: Path) -> AbstractContextManager[None]:
        (folder / "selections.json").write_text('[{"name":"mine","rows":[1]}]')
        return locked(folder)

    monkeypatch.setattr(_selections, "locked", made_before)
    writer = FrameWriter(tmp_path, mode="w")
    monkeypatch.undo()
    writer.write_frame(np.zeros((2, 3)), ids=["b", "a"])
    writer.close()
    assert json.loads((tmp_path / "selections.json").read_text()) == [{"name": "mine", "rows": [0]}]


def test_groups_of_points_without_ids_are_those_of_the_same_numbers(tmp_path: Path) -> None:
    with FrameWriter(tmp_path) as writer:
        writer.write_frame(np.zeros((4, 3)))
    (tmp_path / "selections.json").write_text('[{"name":"mine","rows":[1,3]}]')
    with FrameWriter(tmp_path, mode="w") as writer:
        writer.write_frame(np.ones((4, 3)))
    assert json.loads((tmp_path / "selections.json").read_text()) == [{"name": "mine", "rows": [1, 3]}]
    with pytest.warns(UserWarning, match="2 points of groups"), FrameWriter(tmp_path, mode="w") as writer:
        writer.write_frame(np.ones((4, 3)), ids=["0", "1", "2", "3"])
    assert not (tmp_path / "selections.json").exists()


def test_a_heat_map_says_what_its_edges_are(tmp_path: Path) -> None:
    with FrameWriter(tmp_path) as writer:
        writer.write_frame([[0, 0, 0]], heat_map=[[1, 2], [3, 4]], heat_map_range=[(0, 0.5), (1, 7)])
        writer.write_frame([[0, 0, 0]], heat_map=[[1, 2], [3, 4]])
    assert [frame.heat_map_range for frame in FrameReader(tmp_path)] == [[[0, 0.5], [1, 7]], None]


def test_damaged_folders_are_explained(tmp_path: Path) -> None:
    with pytest.raises(FrameError, match="is not a folder"):
        FrameReader(tmp_path / "absent")
    with pytest.raises(FrameError, match=r"there is no index\.jsonl"):
        FrameReader(tmp_path)
    write_market(tmp_path, points=50, frames=2)
    frame = tmp_path / "frame-000001.safetensors"
    whole = frame.read_bytes()
    for length in (0, 7, 8, 40, len(whole) - 1):
        frame.write_bytes(whole[:length])
        with pytest.raises(FrameError, match="frame-000001"):
            FrameReader(tmp_path)[1]
    frame.write_bytes(whole[:8] + b"[" + whole[9:])
    with pytest.raises(FrameError, match="is invalid"):
        FrameReader(tmp_path)[1]
    index = tmp_path / "index.jsonl"
    lines = index.read_text().splitlines()
    index.write_text("\n".join([lines[0], "nonsense", ""]))
    with pytest.raises(FrameError, match="line 2"):
        FrameReader(tmp_path)
    index.write_text(json.dumps({"format": "tidemill-frames", "version": 99}) + "\n")
    with pytest.raises(FrameError, match="another release"):
        FrameReader(tmp_path)


def test_frames_of_very_many_points_have_an_even_sample_beside_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sample must contain exactly the points that the page expects: those whose row modulo 61 is small."""
    monkeypatch.setattr(_write, "SAMPLE_FROM", 2000)
    monkeypatch.setattr(_write, "_SAMPLE_POINTS", 500)
    rng = np.random.default_rng(0)
    with FrameWriter(tmp_path) as writer:
        for count in (1900, 3000, 6000, 5000):
            writer.write_frame(
                rng.normal(size=(count, 3)),
                ids=rng.permutation(6000)[:count],
                groups={"kind": rng.integers(4, size=count)},
                values={"weight": rng.normal(size=count)},
            )
    lines = [line for line in map(json.loads, (tmp_path / "index.jsonl").open()) if line.get("kind") == "frame"]
    assert ["sample" in line for line in lines] == [False, True, True, True]
    for line in lines[1:]:
        sample = line["sample"]
        assert sample["of"] == 61 and abs(sample["count"] - line["count"] * sample["strata"] / 61) < 20
        whole = safetensors.load_file(tmp_path / line["file"])
        part = safetensors.load_file(tmp_path / sample["file"])
        rows = np.arange(line["points"])
        if "present" in whole:
            known = rows[rows % 61 < sample["strata"]]
            rows = np.flatnonzero(np.unpackbits(whole["present"], count=line["points"], bitorder="little"))
            here = np.unpackbits(part["present"], count=len(known), bitorder="little").astype(bool)
            assert known[here].tolist() == rows[rows % 61 < sample["strata"]].tolist()
        taken = rows % 61 < sample["strata"]
        for name in whole:
            if name != "present":
                np.testing.assert_array_equal(part[name], whole[name][taken])
