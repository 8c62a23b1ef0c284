"""``tidemill series``: the command in an empty folder, its output and files, bad input, real prices."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
import sys
from pathlib import Path

import launched
import numpy as np
import pytest
import tidemill as tm
from tidemill import series
from tidemill.apps import series as app
from tidemill.viz import FrameReader

ROOT = Path(__file__).parents[3]
STOCKS = Path(os.environ.get("TIDEMILL_DATA", ROOT / "../shared/data")) / "stocks"
PRICES, SECTORS = STOCKS / "sp500_daily_2004_2016.csv.zst", STOCKS / "sp500_sectors_2018.csv"

SMALL = ("--sample-ids", "30", "--sample-days", "120", "--window", "60d", "--shift", "20d")


@pytest.mark.parametrize("workers", [1, 2])
def test_without_arguments_there_is_a_market(workers: int, tmp_path: Path) -> None:
    """What `make demo` runs, smaller, in an empty folder."""
    done = subprocess.run(
        launched.command("series", "-n", str(workers), "--no-prefix", *SMALL),
        cwd=tmp_path, stdin=subprocess.DEVNULL, capture_output=True, timeout=launched.PATIENCE_S, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, b"")
    printed = done.stdout.decode()
    assert re.search(r"A generated market: 3,\d{3} rows of 30 ids at 120 times, 2005-01-03 to 2005-06-17", printed)
    assert "negative values: their absolute value" in printed
    assert "no reference series: an even rise has no changes to correlate; --of values and --length log have" in printed
    assert re.search(
        r"4 frames of 60d, 20d apart, of \d+ to \d+ points: stress 0\.\d+, alignment fit 0\.\d+, ", printed
    )
    assert re.search(rf"[\d,]+ windows a minute on {workers} worker\(s\), \d+ % of that time in communication", printed)
    assert re.search(r"seconds: generate [\d.e-]+, clean .*distances .*embed .*align .*write .*all ", printed)
    assert "tidemill view series-out shows them" in printed
    reader = FrameReader(tmp_path / "series-out")
    assert len(reader) == 4
    assert len(reader.categories["sector"]) > 5
    summary = json.loads((tmp_path / "series-out" / "summary.json").read_text())
    assert (summary["frames"], summary["workers"], len(summary["per_frame"])) == (4, workers, 4)
    assert summary["cleaning"]["counts"]["negative"] > 0
    assert summary["per_frame"][0]["alignment_fit"] is None
    assert sorted(path.name for path in tmp_path.iterdir()) == ["series-out"]


@pytest.mark.parametrize(
    ("name", "title"), [("a/prices.csv.gz", "prices"), ("my.prices.parquet", "my.prices"), ("days", "days")]
)
def test_the_page_is_called_like_the_file(name: str, title: str) -> None:
    assert app._title(name) == title


def test_the_market_is_the_same_for_a_seed(tmp_path: Path) -> None:
    first, sectors = series.write_market(tmp_path / "a", 30, 60)
    other, _ = series.write_market(tmp_path / "b", 30, 60)
    third, _ = series.write_market(tmp_path / "c", 30, 60, seed=1)
    assert first.read_bytes() == other.read_bytes() != third.read_bytes()
    assert len(sectors.read_text().splitlines()) == 31
    with pytest.raises(ValueError, match="at least 10 stocks and 30 days"):
        series.write_market(tmp_path / "d", 9, 60)


def test_the_crash_pulls_the_market_together(tmp_path: Path) -> None:
    """The generated market has what it is meant to show: sectors, splits, gaps, and a crash."""
    prices, sectors = series.write_market(tmp_path, 120, 600)
    panel, report = series.clean(prices)
    for rule in ("negative", "duplicates", "duplicates_that_differ", "splits", "gaps"):
        assert report.counts[rule] > 0, rule
    # The column accounts for all of the jumps.
    assert np.nanmax(np.abs(np.diff(np.log(panel.values), axis=0))) < 0.6
    groups = series.read_groups(sectors, panel.ids)
    windows = series.windows(panel.times, "60d", "60d")
    mean = []
    for window in windows:
        segment = panel.segment(window)
        apart = series.distances(segment.values)
        of = np.array([groups.groupings["sector"][name] for name in segment.ids.tolist()])
        same = (of[:, None] == of) & ~np.eye(len(of), dtype=bool)
        assert apart[same].mean() < apart[of[:, None] != of].mean() - 0.1
        mean.append(apart.mean())
    crash = next(number for number, window in enumerate(windows) if window.begin <= 365 < window.end)
    assert int(np.argmin(mean)) == crash


def refused(*arguments: str | Path) -> str:
    """What a job of two workers says of bad input."""
    done = launched.run("series", "-n", "2", "--no-prefix", *arguments)
    assert done.returncode == 1, done.stdout
    return done.stderr.decode()


@pytest.fixture
def prices(tmp_path: Path) -> Path:
    return series.write_market(tmp_path / "data", 12, 60)[0]


def test_bad_input(prices: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def refused_here(*arguments: str | Path) -> str:
        """What this process alone says of it, without starting others."""
        assert app.main([*map(str, arguments)]) == 1
        return capsys.readouterr().err

    out = ("--out", tmp_path / "out")
    short = ("--window", "20d", "--shift", "5d")
    assert "nothing.csv" in refused(tmp_path / "nothing.csv", *out)
    assert "no column 'px' for the values; there are: date, ticker, price, volume, split" in refused_here(
        prices, "--value", "px", *out
    )
    assert (
        "no window is full: it is 250d long, but there are 60 days with data, 2005-01-03 to 2005-03-25"
        in refused_here(prices, *out)
    )
    assert "--window (length=) '5 days'" in refused_here(prices, "--window", "5 days", *out)
    assert "--missing (missing_max) is a part of a window's times" in refused_here(
        tmp_path / "nothing.csv", "--missing", "5"
    )
    assert "--glyph XXXXX: no such id" in refused_here(prices, "--glyph", "XXXXX", *short, *out)
    groups = tmp_path / "groups.csv"
    groups.write_text("ticker,sector\nnobody,Oil\n")
    assert "no id of the groups' column 'ticker' is among the series: nobody against" in refused_here(
        prices, "--groups", groups, *short, *out
    )
    few = tmp_path / "few.csv"
    few.write_text(
        "date,id,value\n" + "".join(f"2024-01-{day:02},{name},{day}\n" for day in range(1, 11) for name in "abc")
    )
    assert "no window has 4 ids" in refused(few, "--window", "5d", *out)
    # Failed runs have left no frames behind.
    assert not (tmp_path / "out" / "index.jsonl").exists()


def test_frames_are_replaced_only_if_asked_for(prices: Path, tmp_path: Path) -> None:
    command = ("series", prices, "--window", "20d", "--shift", "10d", "--out", tmp_path / "out")
    assert launched.run(*command).returncode == 0
    assert "has frames already; --overwrite replaces them" in refused(*command[1:])
    again = launched.run(*command, "--overwrite", "--start", "independent", "--accumulate")
    assert again.returncode == 0, again.stderr
    assert len(FrameReader(tmp_path / "out")) == 5


def test_options_reach_the_frames(prices: Path, tmp_path: Path) -> None:
    """Each option changes the output, and the frames equal those of the same option in a program."""
    command = ("series", "--no-prefix", prices, "--window", "30d", "--shift", "30d")
    panel, _ = series.clean(prices)
    windows = series.windows(panel.times, "30d", "30d")
    iterations = {}
    made: dict[str, list[list[float]]] = {}
    for name, words, options in (
        ("plain", (), {}),
        ("title", ("--title", "Mine alone"), {}),
        ("max_iter", ("--max-iter", "3"), {"max_iter": 3}),
        ("tol", ("--tol", "0.1"), {"tol": 0.1}),
        ("annealing", ("--annealing",), {"annealing": True}),
        ("no_weights", ("--no-weights",), {"weighted": False}),
    ):
        out = tmp_path / name
        done = launched.run(*command, "--out", out, *words)
        assert done.returncode == 0, done.stderr
        assert FrameReader(out).title == ("Mine alone" if name == "title" else prices.stem)
        summary = json.loads((out / "summary.json").read_text())
        iterations[name] = [frame["iterations"] for frame in summary["per_frame"]]
        made[name] = [frame.positions.tolist() for frame in FrameReader(out)]
        expected = list(series.embed(panel, windows, **{"tol": 2e-5, **options}))
        assert iterations[name] == [frame.iterations for frame in expected]
        assert [frame["stress"] for frame in summary["per_frame"]] == [frame.stress for frame in expected]
    assert made["title"] == made["plain"]
    assert max(iterations["max_iter"]) == 3 < min(iterations["plain"])
    assert sum(iterations["tol"]) < sum(iterations["plain"])
    # Only the first window starts from nothing: its temperatures take iterations of their own.
    assert iterations["annealing"][0] > iterations["plain"][0]
    assert not np.allclose(made["no_weights"][0], made["plain"][0], atol=0.01)


def test_frames_are_aligned_to_common_points_or_to_a_table_of_points(prices: Path, tmp_path: Path) -> None:
    """The result of `--align common` makes the same frames once more, and would for later days, too."""
    command = ("series", "-n", "2", "--no-prefix", prices, "--window", "20d", "--shift", "10d")
    common, table = tmp_path / "common", tmp_path / "table"
    for out, align in ((common, "common"), (table, common / "common.csv")):
        done = launched.run(*command, "--align", align, "--out", out)
        assert done.returncode == 0, done.stderr
    one, other = (json.loads((out / "summary.json").read_text())["per_frame"] for out in (common, table))
    assert one == other and one[0]["alignment_fit"] is not None
    assert [frame.positions.tolist() for frame in FrameReader(common)] == [
        frame.positions.tolist() for frame in FrameReader(table)
    ]
    message = refused(prices, "--align", "frist", "--out", tmp_path / "none")
    assert "--align frist is none of previous, first, common, and as a file: " in message and "frist" in message


def test_options_of_files(tmp_path: Path) -> None:
    """Another delimiter, texts that stand for missing values, and a table of groups whose id column has an unknown
    name.
    """
    lines = [
        f"2024-01-{day:02};s{one};{'NA' if (day, one) == (5, 2) else day * one + 3};{1 + one}\n"
        for day in range(1, 11)
        for one in range(6)
    ]
    (tmp_path / "prices.csv").write_text("date;ticker;price;issued\n" + "".join(lines))
    (tmp_path / "groups.csv").write_text("ticker,sector\n" + "".join(f"{one % 2},s{one}\n" for one in range(6)))
    done = launched.run(
        "series", "--no-prefix", tmp_path / "prices.csv", "--delimiter", ";", "--null", "NA", "--null", ".", "--shares", "issued", "--missing", "0.2", "--window", "10d",
        "--groups", tmp_path / "groups.csv", "--group-id", "sector", "--out", tmp_path / "out",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    reader = FrameReader(tmp_path / "out")
    assert reader.categories["ticker"] == ["0", "1"] and reader.points == 6
    # Prices of s1 are from 4 to 13, and it has 2 shares.
    assert reader[0].values["capital"][reader.ids.index("s1")] == pytest.approx(17, rel=1e-3)
    assert json.loads((tmp_path / "out" / "summary.json").read_text())["cleaning"]["counts"]["gaps"] == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--glyph", "A=heart"), "a shape is one of circle, square"),
        (("--follow",), "--follow needs exactly one file"),
        (("--settle", "1"), "--settle is for --follow"),
        (("prices.csv", "--follow", "--settle", "soon"), "argument --settle: 'soon' is not a duration"),
        (("--max-iter", "0"), "--max-iter must be at least 1"),
        (("prices.csv", "--follow", "--align", "common"), "--follow does not have them: align to a FILE"),
        (("--port", "70000"), "--port is from 0 to 65535"),
    ],
)
def test_command_lines_that_make_no_sense(
    arguments: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        app.main(arguments)
    assert ended.value.code == 2
    assert message in capsys.readouterr().err


def test_view_serves_until_it_is_interrupted(tmp_path: Path) -> None:
    running = launched.start("series", "-n", "2", "--no-prefix", *SMALL, "--view", "--out", tmp_path / "out")
    assert running.stdout is not None
    lines = []
    while "Ctrl-C ends it" not in (line := running.stdout.readline().decode()):
        assert line, "it ended by itself"
        lines.append(line)
    # From the first frame on, and again below everything else.
    assert any(re.search(r"the frames are at http://127\.0\.0\.1:\d+/\?token=", line) for line in lines)
    assert re.match(r"the page is at http://127\.0\.0\.1:\d+/\?token=\S+; Ctrl-C ends it", line)
    running.send_signal(signal.SIGINT)
    _, errors = running.communicate(timeout=launched.PATIENCE_S)
    assert errors == b""
    assert running.returncode in (0, 130)


@pytest.mark.skipif(
    not (ROOT / ".venv/bin/tidemill").exists(), reason="`make setup` makes .venv, which the demo is run from"
)
def test_the_demo_does_not_wait_in_a_script(tmp_path: Path) -> None:
    """Without a terminal it ends when the frames are there; at one, and with VIEW=1, it serves them until Ctrl-C."""
    prices, sectors = series.write_market(tmp_path / "data", 12, 270)
    demo = [str(ROOT / "tools" / "demo")]
    env = {**os.environ, "DATA": str(prices), "MARKET_GROUPS": str(sectors)}
    env.pop("VIEW", None)
    done = subprocess.run(
        demo,
        cwd=tmp_path,
        env=env,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=launched.PATIENCE_S,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, b"")
    assert "tidemill view out/demo shows them" in done.stdout.decode()
    assert len(FrameReader(tmp_path / "out" / "demo")) == 5
    # A terminal, as a user has.
    ours, theirs = pty.openpty()
    running = subprocess.Popen(
        demo, cwd=tmp_path, env=env, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True
    )
    os.close(theirs)
    printed = b""
    while b"Ctrl-C ends it" not in printed:
        printed += os.read(ours, 1 << 16)
    assert b"http://127.0.0.1:" in printed
    assert running.poll() is None
    running.send_signal(signal.SIGINT)
    assert running.wait(timeout=launched.PATIENCE_S) in (0, 130)
    os.close(ours)


@pytest.mark.parametrize("workers", [1, 2])
def test_the_example(workers: int, prices: Path, tmp_path: Path) -> None:
    """With the user's own prices; the output goes to the current folder."""
    program = ROOT / "examples" / "market.py"
    assert len(program.read_text().splitlines()) < 150
    more, _ = series.write_market(tmp_path / "years", 14, 290)
    command = [str(program), str(more), str(tmp_path / "years" / "sectors.csv")]
    done = subprocess.run(
        [sys.executable, *command] if workers == 1 else launched.command("run", "-n", "2", *command),
        cwd=tmp_path, stdin=subprocess.DEVNULL, capture_output=True, timeout=launched.PATIENCE_S, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, b"")
    assert re.search(
        rf"5 frames in [\d.]+ s on {workers} worker\(s\); tidemill view market-out shows them", done.stdout.decode()
    )
    assert len(FrameReader(tmp_path / "market-out")) == 5


def test_the_example_without_groups(prices: Path, tmp_path: Path) -> None:
    """Only prices are shown, not the generated market."""
    more, _ = series.write_market(tmp_path / "years", 14, 280, seed=5)
    shown = example(tmp_path, more)
    assert "280 times" in shown and f"tidemill view {Path('market-out')} shows them" in shown
    reader = FrameReader(tmp_path / "market-out")
    assert (len(reader), list(reader.categories)) == (4, [])
    assert set(reader.ids) <= set(series.clean(more)[0].ids.tolist())


@pytest.mark.skipif(not PRICES.exists(), reason=f"{PRICES} is not there; TIDEMILL_DATA names the folder of data sets")
@pytest.mark.parametrize("groups", [(), (SECTORS,)])
def test_the_example_with_real_prices(groups: tuple[Path, ...], tmp_path: Path) -> None:
    """Real files have columns like `Symbol` and `Sector`. A few stocks over three years."""
    tickers = ["AAPL", "CVX", "GE", "IBM", "INTC", "JNJ", "JPM", "KO", "MSFT", "PFE", "PG", "WFC", "WMT", "XOM"]
    some = tm.read_csv(PRICES).filter(tm.col("ticker").is_in(tickers) & (tm.col("date").cast("str") < "2007"))
    some.write_csv(tmp_path / "prices")
    shown = example(tmp_path, tmp_path / "prices", *groups)
    assert "14 ids at 755 times, 2004-01-02 to 2006-12-29" in shown
    reader = FrameReader(tmp_path / "market-out")
    assert len(reader) == 51 and sorted(reader.ids) == tickers
    assert list(reader.categories) == (["Sector"] if groups else [])
    if groups:
        assert "Energy" in reader.categories["Sector"] and "Exxon Mobil Corp." in reader.labels


def example(folder: Path, *arguments: Path) -> str:
    """The example's output."""
    done = subprocess.run(
        [sys.executable, ROOT / "examples" / "market.py", *arguments],
        cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, timeout=launched.PATIENCE_S, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, b"")
    return done.stdout.decode()


@pytest.mark.skipif(not PRICES.exists(), reason=f"{PRICES} is not there")
def test_real_prices(tmp_path: Path) -> None:
    """505 stocks, a frame for each year: sectors are together, and 2008 pulls the market together."""
    done = launched.run(
        "series", "-n", "2", "--no-prefix", PRICES, "--groups", SECTORS, "--shift", "250d", "--out", tmp_path / "out",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    printed = done.stdout.decode()
    assert "1,539,811 rows of 505 ids at 3,273 times, 2004-01-02 to 2016-12-30" in printed
    assert "1 ids of the groups have no series: CBRE" in printed
    reader = FrameReader(tmp_path / "out")
    assert len(reader) == 13
    for shown in reader:
        sector = np.array(reader.codes["Sector"])[shown.rows]
        apart = np.sqrt(((shown.positions[:, None] - shown.positions[None]) ** 2).sum(axis=2))
        np.fill_diagonal(apart, np.inf)
        nearest = np.argsort(apart, axis=1)[:, :5]
        share = (sector[nearest] == sector[:, None]).mean()
        chance = ((np.bincount(sector[sector < 100]) / len(sector)) ** 2).sum()
        assert share > 2 * chance, (shown.time, share, chance)
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    mean = {frame["time"][:4]: frame["mean_distance"] for frame in summary["per_frame"]}
    assert mean["2008"] < 0.9 * mean["2005"]
    assert all(frame["stress"] < 0.35 for frame in summary["per_frame"])
