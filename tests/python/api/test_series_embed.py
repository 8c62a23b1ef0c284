"""Frames: equal on any number of workers, with ids that come and go, alignment, groups, and the folder's contents."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import standing
import tidemill as tm
from numpy.typing import NDArray
from tidemill import series
from tidemill.ml import MDS
from tidemill.series._embed import _placed
from tidemill.series._relay import Base
from tidemill.viz import FrameReader

NAN = float("nan")


def market(ids: int = 24, days: int = 80, sectors: int = 3, seed: int = 0) -> series.Panel:
    """Return series that move alike within a sector; the first two start late, and the third ends early."""
    rng = np.random.default_rng(seed)
    common = rng.normal(scale=0.02, size=(days, sectors))
    own = rng.normal(scale=0.008, size=(days, ids))
    values = np.exp(3 + np.cumsum(common[:, np.arange(ids) % sectors] + own, axis=0))
    values[: days // 2, :2] = NAN
    values[days // 2 :, 2] = NAN
    times = np.busday_offset("2024-01-01", np.arange(days), roll="forward").astype("datetime64[us]")
    names = np.array([f"s{number:02}" for number in range(ids)])
    return series.Panel(times, names, values, np.broadcast_to(rng.gamma(1, 10, ids), (days, ids)).copy())


def spread(positions: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the distances of all pairs."""
    found: NDArray[np.float64] = np.sqrt(((positions[:, None] - positions[None]) ** 2).sum(axis=2))
    return found


def test_who_moves_alike_is_near() -> None:
    panel = market()
    frames = list(series.embed(panel, series.windows(panel.times, "40d", "5d")))
    assert [frame.window.label for frame in frames[:2]] == ["2024-02-23", "2024-03-01"]
    for frame in frames:
        sector = np.array([int(name[1:]) % 3 for name in frame.ids])
        apart = spread(frame.positions)
        same = (sector[:, None] == sector) & ~np.eye(len(sector), dtype=bool)
        assert apart[same].mean() < 0.5 * apart[sector[:, None] != sector].mean()
        assert 0 < frame.stress < 0.4
        assert frame.heat_map.sum() == len(frame.ids) * (len(frame.ids) - 1)
        # Most pairs have their original distance, on the heat map's diagonal.
        rows, columns = np.indices(frame.heat_map.shape)
        near = frame.heat_map[np.abs(rows - columns) <= 1].sum()
        assert near > 0.8 * frame.heat_map.sum()
    assert np.isnan(frames[0].fit)
    assert all(frame.fit > 0.8 for frame in frames[1:])


def test_a_heat_map_has_projected_distances_upwards_and_original_ones_to_the_right(tmp_path: Path) -> None:
    """Ten points with equal distances, which three dimensions cannot represent: all pairs are in one column."""
    panel = market(ids=10)

    def equal(values: NDArray[np.float64], rows: slice) -> NDArray[np.float64]:
        return 3 * (1 - np.eye(values.shape[1]))[rows]

    folder = series.FrameFolder(tmp_path / "map")
    frame, *_ = folder.write_all(series.embed(panel, series.windows(panel.times, "60d", "60d"), kind=equal))
    apart = spread(frame.positions)[~np.eye(len(frame.ids), dtype=bool)]
    assert np.ptp(apart) > 1
    expected, _, _ = np.histogram2d(
        apart, np.full(len(apart), 3.0), bins=len(frame.heat_map), range=[[0, frame.heat_max]] * 2
    )
    # Sums are added in another order there, so a pair at the edge of a cell may be in the next one.
    assert np.abs(frame.heat_map - expected).sum() <= 4
    assert np.count_nonzero(frame.heat_map.sum(axis=0)) == 1 < np.count_nonzero(frame.heat_map.sum(axis=1))
    written = FrameReader(tmp_path / "map")[0]
    assert written.heat_map is not None and written.heat_map.tolist() == frame.heat_map.tolist()
    assert written.heat_map_range == [[0, frame.heat_max], [0, frame.heat_max]]


@pytest.mark.parametrize(("ids", "side"), [(10, 8), (70, 8), (150, 12), (1700, 40)])
def test_what_a_frame_takes_on_disk(ids: int, side: int, tmp_path: Path) -> None:
    """A heat map of 6400 bytes was most of a frame with few points: it has no more cells than points, but at least 64."""
    panel = market(ids=ids)
    groups = series.Groups({"sector": {name: str(number % 3) for number, name in enumerate(panel.ids)}})
    folder = series.FrameFolder(tmp_path / "map", groups=groups)
    frames = list(folder.write_all(series.embed(panel, series.windows(panel.times, "20d", "20d"), max_iter=2)))
    assert {frame.heat_map.shape for frame in frames} == {(side, side)}
    for frame, file in zip(frames, sorted((tmp_path / "map").glob("frame-*")), strict=True):
        count = len(frame.ids)
        # For each point its position, two values, the bin of its change and a presence bit, plus the overhead of the
        # file.
        assert file.stat().st_size <= 12 * count + ids // 8 + 1 + max(4 * count, 256) + 600


def test_ids_come_and_go() -> None:
    """A window contains the ids with data for 95 % of it; a new one is placed near those that it moves with."""
    panel = market()
    frames = list(series.embed(panel, series.windows(panel.times, "20d", "10d")))
    there = [set(frame.ids.tolist()) for frame in frames]
    assert "s02" in there[0]
    assert "s02" not in there[-1]
    assert not {"s00", "s01"} & there[0]
    assert {"s00", "s01"} <= there[-1]
    assert [len(frame.ids) + frame.dropped for frame in frames] == [22, 22, 22, 24, 23, 23, 23]


def test_new_ids_are_placed_among_their_nearest() -> None:
    previous = Base(np.array(["a", "b", "c", "d"]), np.array([[0.0, 0, 0], [1, 0, 0], [0, 1, 0], [9, 9, 9]]))
    ids = np.array(["a", "b", "c", "d", "new"])
    apart = np.full((5, 5), 1e6)
    apart[4] = [1e-3, 1e3, 1e3, 1e3, 0]
    init = _placed(None, ids, slice(0, 5), apart, previous)
    assert init is not None
    assert init[:4].tolist() == previous.positions.tolist()
    assert init[4] == pytest.approx([0, 0, 0], abs=1e-4)
    # With fewer than four earlier points there is nothing to align to.
    assert _placed(None, np.array(["a", "b", "c", "x"]), slice(0, 4), np.ones((4, 4)), previous) is None


def test_a_window_in_which_nothing_moves_says_nothing_of_the_next() -> None:
    """All points were in one place, where the next window started, and stayed there forever."""
    still = market(ids=8)
    still.values[:45] = still.values[45]
    still = series.Panel(still.times, still.ids[3:], still.values[:, 3:])
    windows = series.windows(still.times, "20d", "10d")
    first, *others = series.embed(still, windows)
    assert (first.stress, np.ptp(first.positions)) == (0, 0)
    assert all(0 < frame.stress < 0.4 for frame in others[3:])
    # Nor does a line of two groups, each in one place.
    (frame,) = series.embed(still, windows[4:5])
    line = Base(frame.ids, frame.positions * [1, 0, 0])
    embedder = series.Embedder()
    embedder.past = embedder.past.behind(line, line, 8)
    (again,) = embedder.frames(still, windows[4:5])
    assert again.stress < 1.1 * frame.stress + 0.01


def test_an_id_that_is_called_like_a_reference_is_refused_with_what_helps() -> None:
    panel = market()
    panel.ids = np.array(["constant", *panel.ids[1:]])
    windows = series.windows(panel.times, "60d", "60d")
    with pytest.raises(
        series.SeriesError, match=r"id 'constant' has the name of a reference series: .*--references no"
    ):
        list(series.embed(panel, windows, of="values"))
    assert list(series.embed(panel, windows, of="values", with_references=False))


def embed_on_worker(shape: tuple[int, ...], options: dict[str, Any]) -> str:
    """On a worker: return the frames of a market as text without loss of precision."""
    from tidemill.series import _embed

    panel, usual = market(*shape), _embed.ALONE_IDS_MAX
    _embed.ALONE_IDS_MAX = options.pop("alone_ids_max", usual)
    try:
        frames = list(series.embed(panel, series.windows(panel.times, "40d", "5d"), **options))
    finally:
        _embed.ALONE_IDS_MAX = usual
    return json.dumps(
        [
            [f.window.label, f.ids.tolist(), f.positions.tolist(), f.stress, f.mean_distance, f.heat_map.tolist()]
            for f in frames
        ]
    )


def run(workers: int, shape: tuple[int, ...], **options: Any) -> list[Any]:
    texts = standing.run(embed_on_worker, shape, options, workers=workers)
    # Every worker has bitwise the same frames.
    assert len(set(texts)) == 1
    frames: list[Any] = json.loads(texts[0])
    return frames


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"alone_ids_max": 0},
        {"start": "independent"},
        {"of": "values", "length": "log", "align": "first"},
        {"start": "independent", "align": "common"},
        {"alone_ids_max": 0, "align": "common"},
    ],
    ids=str,
)
def test_any_number_of_workers_makes_the_same_frames(options: dict[str, Any]) -> None:
    """Bitwise, if windows are distributed; sums over shared rows may be rounded differently in another order."""
    expected = run(1, (), **options)
    assert len(expected) == 9
    for workers in (2, 3, 4):
        frames = run(workers, (), **options)
        if "alone_ids_max" not in options:
            assert frames == expected
        for frame, one in zip(frames, expected, strict=True):
            assert frame[:2] == one[:2]
            size = np.abs(one[2]).max()
            np.testing.assert_allclose(frame[2], one[2], atol=2e-3 * size)
            assert frame[3:5] == pytest.approx(one[3:5], rel=1e-4)
            assert np.abs(np.array(frame[5]) - one[5]).sum() <= 0.05 * np.sum(one[5])


def write_on_worker(folder: str, options: dict[str, Any]) -> tuple[list[Any], dict[str, tuple[int, int]]]:
    """On a worker: write frames of a market into a folder; return their figures, and what its relay has sent."""
    from tidemill.series import _embed

    sent: dict[str, tuple[int, int]] = {}

    class Watched(_embed.Relay):  # type: ignore[type-arg]
        def _leave(self) -> None:
            sent.update(self.sent)
            super()._leave()

    panel = market(ids=60, days=96)
    groups = series.Groups({"sector": {name: f"sector {number % 3}" for number, name in enumerate(panel.ids)}})
    usual, _embed.Relay = _embed.Relay, Watched  # type: ignore[misc]
    try:
        written = series.FrameFolder(folder, groups=groups, overwrite=True, lazily=True)
        embedder = series.Embedder(**options)
        return list(written.embed_all(embedder, panel, series.windows(panel.times, "40d", "1d"))), sent
    finally:
        _embed.Relay = usual  # type: ignore[misc]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("options", [{}, {"key_every": 1}, {"start": "independent", "align": "first"}], ids=str)
def test_frames_are_written_by_who_makes_them_and_the_same(options: dict[str, Any], tmp_path: Path) -> None:
    """With 57 windows, in chains of 8 or 1, frames are not sent between workers, except at ends of keys and chains, and
    files go to worker 0.
    """
    panel = market(ids=60, days=96)
    windows = series.windows(panel.times, "40d", "1d")
    ((expected, _),) = standing.run(write_on_worker, str(tmp_path / "1"), options, workers=1)
    assert expected == [frame.figures() for frame in series.embed(panel, windows, **options)]
    index = (tmp_path / "1" / "index.jsonl").read_text().splitlines()
    files = {path.name: path.read_bytes() for path in (tmp_path / "1").glob("*.safetensors")}
    assert len(windows) == len(expected) == sum(name.startswith("frame-") for name in files) == 57
    # Ids that come late are not in earlier frames; and a folder written by one worker alone is the same.
    assert sum(name.startswith("points-") for name in files) > 1
    alone = series.FrameFolder(
        tmp_path / "0", groups=series.Groups({"sector": {n: f"sector {i % 3}" for i, n in enumerate(panel.ids)}})
    )
    list(alone.write_all(series.embed(panel, windows, **options)))
    chains = -(-57 // options.get("key_every", 8))
    for workers in (0, 2, 4):
        folder = tmp_path / str(workers)
        if workers:
            results = standing.run(write_on_worker, str(folder), options, workers=workers)
            assert results[0][0] == expected
            assert not any(figures for figures, _ in results[1:])
            sent = {
                kind: tuple(np.sum([sent.get(kind, (0, 0)) for _, sent in results], axis=0).tolist())
                for kind in ("key", "past", "frame", "end")
            }
            # Worker 0 makes some frames itself, and receives each of the others as files with 11 bytes per point.
            assert 57 - 57 // workers - 8 <= sent["frame"][0] <= 57
            assert sent["frame"][1] < sent["frame"][0] * (3000 + 20 * 60)
            assert sent["key"][0] <= (chains - 1 if options.get("start") != "independent" else 0)
            assert sent["past"][0] <= chains - 1
            assert sent["end"][0] == workers - 1
        assert (folder / "index.jsonl").read_text().splitlines()[1:] == index[1:]
        assert {path.name: path.read_bytes() for path in folder.glob("*.safetensors")} == files


def test_keys_start_from_keys() -> None:
    """Which windows are keys does not depend on how many are requested at a time; with a large `key_every`, there is
    one chain.
    """
    panel = market()
    windows = series.windows(panel.times, "40d", "2d")
    whole = [frame.positions.tolist() for frame in series.embed(panel, windows, key_every=4)]
    for step in (1, 3):
        embedder = series.Embedder(key_every=4)
        parts = [windows[begin : begin + step] for begin in range(0, len(windows), step)]
        assert [frame.positions.tolist() for part in parts for frame in embedder.frames(panel, part)] == whole
    one, chain = (list(series.embed(panel, windows, key_every=n)) for n in (1, 100))
    assert [frame.positions.tolist() for frame in one] == [frame.positions.tolist() for frame in chain]
    assert one[3].positions.tolist() == whole[3]
    assert one[4].positions.tolist() != whole[4]
    with pytest.raises(series.SeriesError, match="key_every must be at least 1, not 0"):
        series.Embedder(key_every=0)


def test_more_workers_than_ids() -> None:
    """Workers without rows take part, and get the whole result."""
    shape = (6, 80, 1)
    for options in ({}, {"alone_ids_max": 0}, {"start": "independent"}):
        for frame, one in zip(run(7, shape, **options), run(1, shape, **options), strict=True):
            np.testing.assert_allclose(frame[2], one[2], atol=2e-3 * np.abs(one[2]).max())


def test_frames_are_aligned() -> None:
    """Independent windows have arbitrary rotations; after alignment, points move only as far as distances have changed."""
    panel = market(ids=40)
    windows = series.windows(panel.times, "60d", "1d")
    previous = list(series.embed(panel, windows, start="independent"))
    for one, other in pairwise(previous):
        both, here, there = np.intersect1d(one.ids, other.ids, return_indices=True)
        assert len(both) >= 37
        moved = np.sqrt(((one.positions[here] - other.positions[there]) ** 2).sum(axis=1))
        assert np.median(moved) < 0.25 * np.median(spread(one.positions))
    first = list(series.embed(panel, windows, start="independent", align="first"))
    np.testing.assert_allclose(first[0].positions, previous[0].positions)
    np.testing.assert_allclose(first[1].positions, previous[1].positions)
    assert not np.allclose(first[2].positions, previous[2].positions)


def test_frames_are_aligned_to_what_all_windows_have_in_common() -> None:
    """The ids of all windows, embedded over all times; each frame depends only on this, not on earlier frames."""
    panel = market()
    windows = series.windows(panel.times, "20d", "10d")
    embedder = series.Embedder(start="independent", align="common")
    frames = list(embedder.frames(panel, windows))
    common = embedder.fixed
    assert common is not None and common.ids.tolist() == panel.ids[3:].tolist()
    # This is an ordinary frame of these ids, with one long window.
    alone = series.Panel(panel.times, panel.ids[3:], panel.values[:, 3:], panel.caps[:, 3:])  # type: ignore[index]
    (whole,) = series.embed(alone, series.windows(panel.times, "80d", 1))
    np.testing.assert_allclose(common.positions, whole.positions, atol=1e-9)
    places = dict(zip(common.ids.tolist(), common.positions, strict=True))
    again = list(series.embed(panel, windows[::-1], start="independent", align=places))[::-1]
    for frame, one in zip(frames, again, strict=True):
        np.testing.assert_array_equal(frame.positions, one.positions)
        # The first frame is aligned, too.
        assert 0.3 < frame.fit == one.fit
    for one, other in pairwise(frames):
        _, here, there = np.intersect1d(one.ids, other.ids, return_indices=True)
        moved = np.sqrt(((one.positions[here] - other.positions[there]) ** 2).sum(axis=1))
        assert np.median(moved) < 0.5 * np.median(spread(one.positions))


def test_frames_lie_on_points_that_were_given_but_are_not_stretched() -> None:
    panel = market()
    windows = series.windows(panel.times, "40d", "40d")[:1]
    (frame,) = series.embed(panel, windows)
    rotation, _ = np.linalg.qr(np.random.default_rng(0).normal(size=(3, 3)))
    given = 3 * frame.positions @ rotation + [5, 6, 7]
    places = dict(zip(frame.ids.tolist(), given, strict=True)) | {"nobody": [0, 0, 0]}
    del places["s05"]
    (turned,) = series.embed(panel, windows, align=places)
    assert turned.fit == pytest.approx(1)
    np.testing.assert_allclose(spread(turned.positions), spread(frame.positions), atol=1e-9)
    np.testing.assert_allclose(np.corrcoef(turned.positions.ravel(), given.ravel())[0, 1], 1, atol=0.2)
    (on,) = series.embed(panel, windows, align={name: np.array(place) / 3 for name, place in places.items()})
    np.testing.assert_allclose(on.positions, given / 3, atol=1e-6)
    # Without common ids, it is centered like a first frame.
    (alone,) = series.embed(panel, windows, align={name: [0.0, 0, 1] for name in "abcd"})
    assert np.isnan(alone.fit)


def test_what_cannot_be_aligned_to_is_refused(tmp_path: Path) -> None:
    with pytest.raises(series.SeriesError, match="positions to align to for 3 ids; at least 4 are needed"):
        series.Embedder(align={name: [0, 0, 1] for name in "abc"})
    for wrong in ([1, 2], [1, 2, NAN]):
        with pytest.raises(series.SeriesError, match="three numbers for each id, and 'd' has"):
            series.Embedder(align={"a": [0, 0, 1], "d": wrong})
    panel = market(ids=8)
    panel.values[40:, 3:5] = NAN
    with pytest.raises(
        series.SeriesError, match=r"--align common .* needs 4 ids that all windows have, but there are 3;"
    ):
        list(series.embed(panel, series.windows(panel.times, "20d", "20d"), align="common"))
    path = tmp_path / "points.csv"
    path.write_text("Ticker,X,y,z,note\nA,1,2,3,x\n10.0,4,5,,x\n,1,1,1,x\n")
    found = series.read_positions(path)
    assert found.pop("A") == [1, 2, 3] and list(found) == ["10"] and np.isnan(found["10"][2])
    for text, message in (
        ("id,x,y\nA,1,2\n", "columns of ids, x, y and z, but there is none for z; there are: id, x, y"),
        ("what,x,y,z\nA,1,2,3\n", "there is none for an id"),
        ("id,x,y,z\nA,1,2,3\nA,1,2,3\n", "have 'A' twice"),
        ("id,x,y,z\nA,1,2,far\n", "the positions to align to cannot be read: .*far"),
    ):
        path.write_text(text)
        with pytest.raises(series.SeriesError, match=message):
            series.read_positions(path)


def test_weights_are_those_of_mds() -> None:
    """A frame is the result of MDS on the window's distances, weighted by market value or not."""
    panel = market(ids=12)
    # Two that are worth a hundred times as much as the others.
    assert panel.caps is not None
    panel.caps[:, [5, 8]] *= 100
    (window, *_) = series.windows(panel.times, "60d", "60d")
    (weighted,) = series.embed(panel, [window])
    (plain,) = series.embed(panel, [window], weighted=False)
    segment = panel.segment(window)
    assert segment.caps is not None
    # The fourth root of the value, which counts as at least a twentieth of the maximum.
    worth = np.maximum(segment.caps, 0.05 * segment.caps.max()) ** 0.25
    apart = series.distances(segment.values)
    for frame, weights in ((weighted, worth), (plain, None)):
        model = MDS(3, metric="precomputed", max_iter=300, tol=1e-6, acceleration=3, random_state=0)
        model.fit(apart, weights=weights)
        assert frame.stress == pytest.approx(model.normalized_stress_, rel=1e-6)
        np.testing.assert_allclose(spread(frame.positions), spread(model.positions_), atol=1e-6)
    assert not np.allclose(spread(weighted.positions), spread(plain.positions), atol=0.01)
    # Without a column of market values, all pairs have the same weight anyway.
    (bare,) = series.embed(series.Panel(panel.times, panel.ids, panel.values), [window])
    assert bare.positions.tolist() == plain.positions.tolist()


def test_references_are_points_where_they_say_something() -> None:
    panel = market()
    windows = series.windows(panel.times, "40d", "40d")
    names = set(series.REFERENCES)
    assert not names & set(next(series.embed(panel, windows)).ids.tolist())
    shown = next(series.embed(panel, windows, length="log"))
    assert shown.ids[-5:].tolist() == list(series.REFERENCES)
    # The constant one has length 0: series that end where they began are near it. All others are as far as their own
    # length.
    apart = spread(shown.positions)
    length = series._distance.lengths(panel.segment(windows[0]).values, "log")
    place = shown.ids.tolist().index("constant")
    assert np.corrcoef(apart[place, : len(length)], length)[0, 1] > 0.9
    assert names <= set(next(series.embed(panel, windows, with_references=True)).ids.tolist())
    assert not names & set(next(series.embed(panel, windows, of="values", with_references=False)).ids.tolist())
    # By Euclidean distance of changes, all five are where nothing moves: series are as far away as they move.
    still = next(series.embed(panel, windows, kind="euclidean", max_iter=1000))
    assert still.ids[-5:].tolist() == list(series.REFERENCES)
    values = panel.segment(windows[0]).values
    moved = np.sqrt((np.diff(np.log(values), axis=0) ** 2).sum(axis=0))
    apart = spread(still.positions)
    assert apart[-5:, -5:].max() < 0.1 * moved.mean()
    assert np.corrcoef(apart[-5, :-5], moved)[0, 1] > 0.8


@pytest.mark.parametrize("options", [{}, {"of": "differences"}, {"kind": "euclidean", "of": "values"}, {"kind": abs}])
def test_references_are_left_out_where_they_mean_nothing_and_why_is_said(options: dict[str, Any]) -> None:
    assert series.Embedder(**options).with_references is False
    distances = {"kind": "correlation", "of": "changes", "length": "one", **options}
    assert series._distance.why_no_references(**distances)


def test_windows_with_too_few_ids_are_left_out_and_told() -> None:
    panel = market(ids=6, sectors=1)
    windows = series.windows(panel.times, "38d", "1d")
    embedder = series.Embedder()
    frames = list(embedder.frames(panel, windows))
    # Around the middle, one has ended, and two have not been there long enough.
    assert len(embedder.left_out) > 0
    assert len(frames) + len(embedder.left_out) == len(windows)
    few = series.Panel(panel.times, panel.ids[3:6], panel.values[:, 3:6])
    with pytest.raises(series.SeriesError, match="no window has 4 ids"):
        list(series.embed(few, windows))
    for wrong in ({"start": "anew"}, {"align": "last"}, {"missing_max": 5}):
        with pytest.raises(series.SeriesError, match=r"not ['5]"):
            series.Embedder(**wrong)  # type: ignore[arg-type]


def test_windows_with_too_few_times_are_left_out_or_an_error() -> None:
    """With one or no change, all series correlate equally: frames of 2 days were perfect, with all points in one place."""
    panel = market()
    for options in ({"of": "changes"}, {"of": "differences"}, {"of": "values"}, {"kind": "euclidean"}):
        enough = {"values": 2}.get(options.get("of", ""), 2 if "kind" in options else 3)
        windows = series.windows(panel.times, f"{enough}d", "40d")
        assert len(list(series.embed(panel, windows, **options))) == len(windows) == 2
        with pytest.raises(
            series.SeriesError, match=f"no window has {enough} times, which .* needs, .* has {enough - 1};"
        ):
            list(series.embed(panel, series.windows(panel.times, f"{enough - 1}d", "40d"), **options))
    embedder = series.Embedder()
    mixed = [series.Window(0, 0, 20, "full"), series.Window(1, 20, 22, "short"), series.Window(2, 20, 40, "full")]
    assert [frame.window.number for frame in embedder.frames(panel, mixed)] == [0, 2]
    assert [window.number for window in embedder.left_out] == [1]
    with pytest.raises(series.SeriesError, match="a window of 1 times has no changes to compare"):
        series.distances(np.ones((1, 5)))


def test_errors_name_the_window_and_the_series() -> None:
    """They named points by number, without the window."""

    def off(values: NDArray[np.float64], rows: slice) -> NDArray[np.float64]:
        apart = np.abs(values[:, rows, None] - values[:, None]).sum(axis=0)
        apart[4 - rows.start, 4] = 100.0
        return apart  # type: ignore[no-any-return]

    panel = market()
    windows = series.windows(panel.times, "20d", "20d")
    with pytest.raises(series.SeriesError, match="window of 2024-01-26: The distance of 's06' to itself is 100, not 0"):
        list(series.embed(panel, windows, kind=off))
    panel.values[50, 7] = np.inf
    with pytest.raises(series.SeriesError, match=r"window of 2024-03-22: The distance of '.*' to '.*' is NaN"):
        list(series.embed(panel, windows))


def test_a_length_that_would_not_be_used_is_refused() -> None:
    """``--length log`` was ignored with Euclidean distance."""
    for kind in ("euclidean", lambda values, rows: values):
        with pytest.raises(series.SeriesError, match=r'--length log \(length="log"\) is of --distance correlation'):
            series.Embedder(kind=kind, length="log")
        with pytest.raises(series.SeriesError, match="is of --distance correlation"):
            series.distances(np.ones((5, 5)), kind=kind, length="log")


def test_a_panel_may_be_made_of_lists() -> None:
    """Lists were accepted, and failed in the embedding."""
    panel = market()
    lists = series.Panel(panel.times.tolist(), panel.ids.tolist(), panel.values.tolist())  # type: ignore[arg-type]
    assert next(series.embed(lists, series.windows(lists.times, "20d", "5d"))).ids.tolist()[0] == "s02"


@pytest.mark.parametrize("start", ["previous", "independent"])
@pytest.mark.parametrize("workers", [1, 2, 3])
def test_what_cannot_be_measured_is_an_error_on_every_worker(start: str, workers: int) -> None:
    """A value of 0 in a late window, which only one worker may encounter."""

    def embed() -> str:
        panel = market()
        panel.values[-3, 9] = 0
        try:
            return str(len(list(series.embed(panel, series.windows(panel.times, "40d", "5d"), start=start))))
        except series.SeriesError as error:
            return str(error)

    for text in standing.run(embed, workers=workers):
        assert "--of changes (of=\"changes\") needs values above 0, but there is 0 in 's09'" in text


def groups_of(path: Path, text: str, ids: list[str], **options: str) -> series.Groups:
    path.write_text(text)
    return series.read_groups(path, ids, **options)


def test_groups(tmp_path: Path) -> None:
    path = tmp_path / "groups.csv"
    text = "Symbol,Name,Sector,Size\nA,Alpha,Oil,1\nB,Beta,,2\nX,Gone,Oil,1\n"
    groups = groups_of(path, text, ["A", "B", "C"])
    assert groups.groupings == {"Sector": {"A": "Oil", "X": "Oil"}, "Size": {"A": "1", "B": "2", "X": "1"}}
    assert groups.labels["A"] == "Alpha"
    assert groups.notes == ["1 ids of the groups have no series: X", "1 series have no group: C"]
    assert groups_of(path, "thing,sector\nA,Oil\n", ["A"]).groupings == {"sector": {"A": "Oil"}}
    assert groups_of(path, "sector,thing\nOil,A\n", ["A"], id="thing").groupings == {"sector": {"A": "Oil"}}
    for wrong, options, message in (
        ("Symbol,Sector\nQ,Oil\n", {}, "no id of the groups' column 'Symbol' is among the series: Q against A, B"),
        ("Symbol,Sector\nA,Oil\nA,Gas\n", {}, "'A' twice, with different groups"),
        ("Symbol\nA\n", {}, "only the column 'Symbol'"),
        ("Symbol,Sector\n,Oil\n", {}, "the groups have no row with an id in their column 'Symbol'"),
        (
            "Symbol,Sector,Sector\nA,Oil,Gas\n",
            {},
            'groups.csv: two of its columns are named "Sector"; give each its own name',
        ),
        (
            "Symbol,Sector\nA,Oil\n",
            {"id": "Ticker"},
            "no column 'Ticker' of ids in the groups; there are: Symbol, Sector",
        ),
    ):
        with pytest.raises((series.SeriesError, tm.DataSetError)) as caught:
            groups_of(path, wrong, ["A", "B"], **options)
        assert message in str(caught.value)
    # Ids that were integers, until something made them floats.
    assert groups_of(path, "permno,sector\n10000.0,Oil\n", ["10000"]).groupings == {"sector": {"10000": "Oil"}}
    # As long as more may come, missing ids are not an error.
    growing = series.read_groups(path, ["1"], growing=True)
    assert growing.groupings == {"sector": {"10000": "Oil"}}
    assert growing.notes == [
        "no id of the groups' column 'permno' is among the series: 10000 against 1; name the column of ids (--group-id) if none will come"
    ]


def test_groups_called_like_what_is_added_keep_their_place(tmp_path: Path) -> None:
    """A column ``change`` of the groups was silently replaced by the bins."""
    panel = market()
    panel.caps_name = "traded value"
    own = {name: dict.fromkeys(panel.ids, "own") for name in ("change", "traded value")}
    folder = series.FrameFolder(tmp_path / "map", groups=series.Groups(own))
    for _ in folder.write_all(series.embed(panel, series.windows(panel.times, "40d", "40d"))):
        pass
    reader = FrameReader(tmp_path / "map")
    assert list(reader.categories) == ["change", "traded value", "change (computed)"]
    assert reader.categories["change"] == ["own"]
    assert set(reader[0].values) == {"change in %", "traded value (computed)"}


def test_the_folder_has_what_the_page_shows(tmp_path: Path) -> None:
    panel = market()
    groups = series.Groups(
        {"sector": {f"s{number:02}": f"sector {number % 3}" for number in range(20)}}, {"s05": "Five Inc."}
    )
    folder = series.FrameFolder(tmp_path / "map", groups=groups, glyphs={"s05": "star"}, title="A test")
    options: dict[str, Any] = {"of": "values"}
    frames = list(folder.write_all(series.embed(panel, series.windows(panel.times, "40d", "10d"), **options)))
    reader = FrameReader(tmp_path / "map")
    assert len(reader) == len(frames) == 5
    assert list(reader.categories) == ["sector", "change"]
    assert reader.categories["sector"] == ["reference", "sector 0", "sector 1", "sector 2"]
    assert reader.categories["change"] == list(series._frames.ChangeBins().names)
    for number, frame in enumerate(frames):
        shown = reader[number]
        assert shown.time == frame.window.label
        order = np.argsort(frame.ids)
        names = np.array(reader.ids)[shown.rows]
        np.testing.assert_allclose(shown.positions[np.argsort(names)], frame.positions[order], atol=1e-3)
    header = json.loads((tmp_path / "map" / "index.jsonl").read_text().splitlines()[0])
    assert header["glyphs"]["s05"] == "star"
    assert set(series.REFERENCES) < set(header["glyphs"])
    with pytest.raises(series.SeriesError, match=r"has frames already; --overwrite \(overwrite=True\) replaces them"):
        series.FrameFolder(tmp_path / "map")
    series.FrameFolder(tmp_path / "map", overwrite=True)
    assert len(FrameReader(tmp_path / "map")) == 0
