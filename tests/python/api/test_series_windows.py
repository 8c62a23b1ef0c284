"""Windows and their view of a panel, distances, weights and references, compared with cases worked out by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from tidemill import series
from tidemill.series._frames import ChangeBins
from tidemill.series._panel import fill

NAN = float("nan")


def days(first: str, count: int) -> NDArray[np.datetime64]:
    """Return business days, which differ from calendar days."""
    return np.busday_offset(first, np.arange(count), roll="forward").astype("datetime64[us]")


def edges(*arguments: object, **options: bool) -> list[tuple[int, int]]:
    return [(window.begin, window.end) for window in series.windows(*arguments, **options)]  # type: ignore[arg-type]


def test_windows_count_days_that_have_data() -> None:
    """Holidays and weekends must not make windows shorter."""
    times = days("2024-01-01", 10)
    assert edges(times, "4d", "3d") == [(0, 4), (3, 7), (6, 10)]
    assert edges(times, 4, 3) == edges(times, "4d", "3d")
    assert edges(times, "10d", "1d") == [(0, 10)]
    assert edges(times, "4d", "3d", accumulate=True) == [(0, 4), (0, 7), (0, 10)]
    assert [window.label for window in series.windows(times, "4d", "3d")] == ["2024-01-04", "2024-01-09", "2024-01-12"]
    # These are gaps between windows, as requested.
    assert edges(times, "2d", "4d") == [(0, 2), (4, 6), (8, 10)]


def test_a_day_has_all_of_its_times() -> None:
    """With several times per day, 2d means two days and not two rows."""
    times = (days("2024-01-01", 4)[:, None] + np.array([9, 12, 15]) * np.timedelta64(1, "h")).ravel()
    assert edges(times, "2d", "1d") == [(0, 6), (3, 9), (6, 12)]
    assert edges(times, "2r", "5r") == [(0, 2), (5, 7), (10, 12)]
    assert series.windows(times, "2d", "1d")[0].label == "2024-01-02T15:00:00"


def test_windows_by_the_calendar() -> None:
    times = np.arange("2024-01-31", "2024-05-01", dtype="datetime64[D]").astype("datetime64[us]")
    # February 31 becomes the last day of the month: windows start on January 31, February 29, March 31.
    assert edges(times, "1mo", "1mo") == [(0, 29), (29, 60), (60, 90)]
    assert edges(times, "2w", "4w") == [(0, 14), (28, 42), (56, 70)]
    assert edges(days("2023-01-02", 261), "1y", "1y") == [(0, 261)]


@pytest.mark.parametrize("seed", range(20))
def test_windows_of_a_growing_panel_only_become_more(seed: int) -> None:
    """A written frame must remain that of its window, however many days follow."""
    rng = np.random.default_rng(seed)
    times = np.sort(rng.choice(np.arange("2020-01-01", "2022-01-01", dtype="datetime64[D]"), 200, replace=False))
    length, shift = rng.choice(["7d", "20d", "3w", "1mo"]), rng.choice(["1d", "5d"])
    if length[-1] in "wo":
        shift = rng.choice(["1w", "2mo"])
    known: list[series.Window] = []
    for end in range(60, 201, 20):
        now = series.windows(times[:end], length, shift)
        assert now[: len(known)] == known
        known = now


@pytest.mark.parametrize("seed", range(20))
def test_windows_of_days_that_grow_time_by_time_only_become_more(seed: int) -> None:
    """A window was full at the first time of its last day, and changed when the day's other times arrived."""
    rng = np.random.default_rng(seed)
    dates = np.sort(rng.choice(np.arange("2020-01-01", "2020-06-01", dtype="datetime64[D]"), 60, replace=False))
    hours = [[10, 12], *(sorted(rng.choice([10, 12, 14, 16], rng.integers(1, 5), replace=False)) for _ in dates[1:])]
    times = np.array(
        [date + np.timedelta64(int(hour), "h") for date, day in zip(dates, hours, strict=True) for hour in day],
        dtype="datetime64[us]",
    )
    length, shift = [("7d", "2d"), ("1d", "1d"), ("2w", "1w"), ("1mo", "1mo")][seed % 4]
    whole = series.windows(times, length, shift)
    known: list[series.Window] = []
    for end in range(len(times) + 1):
        try:
            now = series.windows(times[:end], length, shift, growing=True)
        except series.SeriesError:
            now = []
        assert now[: len(known)] == known
        assert now == whole[: len(now)]
        known = now
    # All except those that end with the last day, which may continue.
    assert known == [window for window in whole if window.end < len(times)]


def test_daily_windows_need_no_later_day() -> None:
    """In data with one time per day, always the same, the newest day is complete as soon as it arrives."""
    for clock in (0, 16):
        times = days("2024-01-01", 10) + np.timedelta64(clock, "h")
        assert series.windows(times, "4d", "3d", growing=True) == series.windows(times, "4d", "3d")
    assert edges(np.arange(5), "3r", 1, growing=True) == [(0, 3), (1, 4), (2, 5)]


@pytest.mark.parametrize(
    ("length", "shift", "message"),
    [
        ("11d", "1d", "no window is full: it is 11d long, but there are 10 days with data, 2024-01-01 to 2024-01-12"),
        ("5x", "1d", "--window (length=) '5x': write a length like 250d"),
        ("5d", "0d", "--shift (shift=) '0d': write a length like"),
        ("1y", "5d", "both count days or rows, or both go by the calendar"),
        ("5r", "5d", "both count days (d), or both rows (r)"),
    ],
)
def test_lengths_that_make_no_sense(length: str, shift: str, message: str) -> None:
    with pytest.raises(series.SeriesError) as caught:
        series.windows(days("2024-01-01", 10), length, shift)
    assert message in str(caught.value)


def test_times_that_are_numbers_have_no_days() -> None:
    assert edges(np.arange(5), "3r", 1) == edges(np.arange(5), 3, 1) == [(0, 3), (1, 4), (2, 5)]
    for length, shift in (("3d", "1d"), ("1w", "1w")):
        with pytest.raises(series.SeriesError, match="whole numbers, so windows are in rows"):
            series.windows(np.arange(5), length, shift)


def test_gaps_are_filled_with_the_value_before() -> None:
    rows = np.array([[1, NAN, NAN, 4], [NAN, NAN, 3, NAN], [5, 6, 7, 8]], dtype=float)
    assert fill(rows).tolist() == [[1, 1, 1, 4], [3, 3, 3, 3], [5, 6, 7, 8]]


def test_a_series_that_lacks_more_than_a_part_is_left_out() -> None:
    """The limit itself is allowed; one more is not; a series that is entirely absent does not count as dropped."""
    values = np.ones((20, 4))
    values[3, 1] = values[3:5, 2] = NAN
    values[:, 3] = NAN
    panel = series.Panel(days("2024-01-01", 20), np.array(["full", "one", "two", "never"]), values)
    window = series.windows(panel.times, "20d", "1d")[0]
    segment = panel.segment(window)
    assert (segment.ids.tolist(), segment.filled, segment.dropped) == (["full", "one"], 1, 1)
    assert panel.segment(window, missing_max=0.1).ids.tolist() == ["full", "one", "two"]
    assert panel.segment(window, missing_max=0).ids.tolist() == ["full"]
    with pytest.raises(series.SeriesError, match=r"--missing \(missing_max\) is a part"):
        panel.segment(window, missing_max=1)


def test_a_window_sees_only_itself() -> None:
    """A value from before the window must not fill its first gap: the series may have been absent for years."""
    values = np.array([[7.0], [NAN], [3.0], [4.0]])
    panel = series.Panel(days("2024-01-01", 4), np.array(["a"]), values)
    segment = panel.segment(series.windows(panel.times, "3d", "1d")[1], missing_max=0.5)
    assert segment.values.ravel().tolist() == [3, 3, 4]


def test_caps_are_means_of_the_days_on_which_they_are_known() -> None:
    caps = np.array([[1.0, NAN], [3.0, NAN], [NAN, NAN]])
    panel = series.Panel(days("2024-01-01", 3), np.array(["a", "b"]), np.ones((3, 2)), caps)
    found = panel.segment(series.windows(panel.times, "3d", "1d")[0]).caps
    assert found is not None
    assert found.tolist() == [2, 0]


def slow_distances(values: NDArray[np.float64], of: str, length: str) -> NDArray[np.float64]:
    """The documented formula, pair by pair, with NumPy's own correlation."""
    compared = {"changes": np.diff(np.log(values), axis=0), "differences": np.diff(values, axis=0), "values": values}[
        of
    ]
    c = np.corrcoef(compared.T)
    side = np.ones(values.shape[1])
    if length == "log":
        side = np.array([10 * abs(np.log(min(max(v[-1] / v[0], 0.1), 10))) for v in values.T])
    count = values.shape[1]
    return np.array(
        [
            [
                0 if i == j else np.sqrt(max(0, side[i] ** 2 + side[j] ** 2 - 2 * side[i] * side[j] * c[i, j]))
                for j in range(count)
            ]
            for i in range(count)
        ]
    )


@pytest.mark.parametrize("of", ["changes", "differences", "values"])
@pytest.mark.parametrize("length", ["one", "log"])
@pytest.mark.parametrize("seed", range(5))
def test_distances_are_those_of_the_formula(of: str, length: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    values = np.exp(rng.normal(scale=0.3, size=(rng.integers(5, 60), rng.integers(2, 20))).cumsum(axis=0))
    expected = slow_distances(values, of, length)
    found = series.distances(values, of=of, length=length)  # type: ignore[arg-type]
    np.testing.assert_allclose(found, expected, atol=1e-6 * expected.max())
    # A worker's rows equal those of the whole, at least almost bitwise.
    count = values.shape[1]
    for size in (1, 2, 3, count + 2):
        parts = [
            series.distances(values, of=of, length=length, rows=slice(count * r // size, count * (r + 1) // size))  # type: ignore[arg-type]
            for r in range(size)
        ]
        np.testing.assert_allclose(np.concatenate(parts), found, atol=1e-7 * expected.max())


def test_distances_of_series_that_do_not_change() -> None:
    """Constant series have no correlation: 0 with one that moves, 1 with each other, and nothing is NaN."""
    time = np.arange(1.0, 9.0)
    values = np.column_stack([np.full(8, 5.0), np.full(8, 7.0), np.exp(time / 7), 2 + np.sin(time)])
    for of in ("changes", "values"):
        apart = series.distances(values, of=of)  # type: ignore[arg-type]
        assert apart[0, 1] == 0
        assert apart[0, 3] == pytest.approx(np.sqrt(2))
    # A series that grows evenly has constant changes.
    assert series.distances(values, of="changes")[2, 0] == 0
    assert series.distances(values, of="values")[2, 0] == pytest.approx(np.sqrt(2))


def test_large_values_that_hardly_differ_are_not_constant() -> None:
    """A trillion and one differs from a trillion; rounding in the last place is not movement."""
    rng = np.random.default_rng(0)
    noise = rng.normal(size=60).cumsum()
    large = 1e12 + np.arange(60.0)
    flat = np.where(np.arange(60) % 2, 0.3, 0.1 + 0.2)
    values = np.column_stack([noise, large, flat])
    apart = series.distances(values, of="values")
    correlation = np.corrcoef(noise, np.arange(60.0))[0, 1]
    assert apart[0, 1] == pytest.approx(np.sqrt(2 - 2 * correlation), abs=1e-3)
    assert apart[0, 2] == pytest.approx(np.sqrt(2)), "a constant series, but for rounding"
    # Changes of the logarithm of the second are a trillionth: only rounding errors of the logarithm.
    changes = series.distances(np.column_stack([np.exp(noise), large]), of="changes")
    assert changes[0, 1] == pytest.approx(np.sqrt(2))


def test_lengths_are_cut_at_ten_times() -> None:
    values = np.array([[1.0, 1, 1, 1, 1], [1.1, 2, 100, 0.001, 1]])
    assert series._distance.lengths(values, "log") == pytest.approx(
        10 * np.log([1.1, 2, 10, 10, 1])
    )  # falling counts like rising


def test_euclidean_distances_and_functions() -> None:
    values = np.array([[0.0, 3.0, 0.0], [0.0, 4.0, -1.0]])
    assert series.distances(values, kind="euclidean", of="values")[0].tolist() == pytest.approx([0, 5, 1])

    def manhattan(values: NDArray[np.float64], rows: slice) -> NDArray[np.float64]:
        found: NDArray[np.float64] = np.abs(values[:, rows, None] - values[:, None]).sum(axis=0)
        return found

    assert series.distances(values, kind=manhattan, rows=slice(1, 3)).tolist() == [[7, 0, 8], [1, 8, 0]]
    for wrong, message in (
        (lambda values, rows: np.zeros((1, 3)), r"of shape \(1, 3\), not \(3, 3\)"),
        (lambda values, rows: np.full((3, 3), -1.0), "below 0"),
        (lambda values, rows: np.full((3, 3), NAN), "not a number"),
    ):
        with pytest.raises(series.SeriesError, match=message):
            series.distances(values, kind=wrong)


def test_values_that_have_no_logarithm_are_refused() -> None:
    values = np.array([[1.0, 2.0], [0.0, 3.0]])
    with pytest.raises(
        series.SeriesError, match=r"--of changes .* needs values above 0, but there is 0 in series 0; --of differences"
    ):
        series.distances(values)
    with pytest.raises(series.SeriesError, match=r"--length log .* needs values above 0"):
        series.distances(values, of="values", length="log")
    with pytest.raises(series.SeriesError, match="kind must be"):
        series.distances(values + 1, kind="cosine")  # type: ignore[arg-type]


def test_weights() -> None:
    """max(0.05 max M, M) to the power of a quarter, scaled so that the minimum is 1."""
    assert series.weights(np.array([1600.0, 80.0, 0.0, NAN]), 4) == pytest.approx([(1600 / 80) ** 0.25, 1, 1, 1])
    assert series.weights(np.array([16.0, 1.0]), 2) == pytest.approx([2, 1])
    assert series.weights(None, 3).tolist() == [1, 1, 1]
    assert series.weights(np.zeros(2), 2).tolist() == [1, 1]


@pytest.mark.parametrize("times", [days("2023-01-02", 251), np.arange(251)], ids=["dates", "numbers"])
def test_references_of_one_rate_mirror_each_other(times: NDArray[Any]) -> None:
    """A fall by 0.1 per year had a larger L than the rise, and a calendar year counted instead of 250 days with data."""
    assert list(series.REFERENCES) == ["constant", "+0.1 a year", "-0.1 a year", "+0.2 a year", "-0.2 a year"]
    made = series.references(times)
    assert made[0].tolist() == [1] * 5
    np.testing.assert_allclose(made[1], [1, 1 + 0.1 / 250, 1 / (1 + 0.1 / 250), 1 + 0.2 / 250, 1 / (1 + 0.2 / 250)])
    np.testing.assert_allclose(made[:, [1, 3]] * made[:, [2, 4]], 1)
    length = 2500 * np.log1p([0.1 / 250, 0.1 / 250, 0.2 / 250, 0.2 / 250])
    np.testing.assert_allclose(series._distance.lengths(made, "log"), [0, *length], atol=1e-9)
    assert length.round(3).tolist() == [1.0, 1.0, 1.999, 1.999]
    # Even steps, also over weekends: no series seems to move with a reference because it moves on Mondays.
    assert series.distances(made[:30], of="changes") == pytest.approx(np.zeros((5, 5)))


def test_references_take_a_step_for_each_day_that_has_data() -> None:
    """However many calendar days, or times, are in between."""
    times = days("2024-01-01", 10)
    hours = (times[:, None] + np.array([9, 12, 15, 16]) * np.timedelta64(1, "h")).ravel()
    expected = series.references(times)
    np.testing.assert_allclose(series.references(hours)[::4], expected)
    np.testing.assert_allclose(np.diff(np.log(series.references(hours)[:, 1])), np.log1p(0.1 / 250) / 4)
    np.testing.assert_array_equal(series.references(times + np.arange(10) * np.timedelta64(30, "D")), expected)
    assert series.references(times[:1]).tolist() == [[1] * 5]
    assert series.references(times[:0]).shape == (0, 5)


def test_bins_of_change() -> None:
    bins = ChangeBins()
    found = bins.of(np.array([-0.6, -0.5, -0.05, 0.0, 0.3, 0.5, NAN]))
    assert found.tolist() == ["below -50 %", "-50 to -20 %", "-10 to 0 %", "0 to 10 %", "20 to 50 %", "over 50 %", ""]
    assert bins.names == (
        "below -50 %", "-50 to -20 %", "-20 to -10 %", "-10 to 0 %", "0 to 10 %", "10 to 20 %", "20 to 50 %", "over 50 %",
    )  # fmt: skip
    # For short windows: nearly all would be in two of the default bins.
    fine = ChangeBins((0.5, 2))
    assert fine.names == ("below -2 %", "-2 to -0.5 %", "-0.5 to 0 %", "0 to 0.5 %", "0.5 to 2 %", "over 2 %")
    assert fine.of(np.array([-0.03, 0.004, 0.02])).tolist() == ["below -2 %", "0 to 0.5 %", "over 2 %"]
    for wrong in ((), (0, 1), (2, 1), (-1,), (NAN,)):
        with pytest.raises(series.SeriesError, match="increase from above 0"):
            ChangeBins(wrong)
