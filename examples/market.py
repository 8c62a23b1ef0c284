"""A stock market in space: from a table of prices to moving points in the browser, on all workers of a job.

tidemill run -n 2 examples/market.py                              a generated market
tidemill run -n 2 examples/market.py prices.csv                   yours: date, ticker, price, ...
tidemill run -n 2 examples/market.py prices.csv sectors.csv       and with groups: ticker, sector, ...
tidemill view market-out                                          shows it, even while it grows

Each window of 250 trading days becomes a frame. Stocks whose prices move together from day to day are near each other; when
everything falls at once, the market pulls together. `tidemill series` does the same, with all options.
"""

import sys
import time
from pathlib import Path

import numpy as np
import tidemill as tm
from tidemill.ml import MDS, procrustes

OUT = Path("market-out")


def main() -> None:
    job = tm.init()
    if {"-h", "--help"} & set(sys.argv):
        if job.rank == 0:
            print(__doc__)
        return
    sources = sys.argv[1:3]
    if not sources:
        sources = [str(OUT / "prices.csv"), str(OUT / "sectors.csv")]
        if job.rank == 0:
            tm.series.write_market(OUT)
        job.comm.Barrier()

    # 1. Data processing. Workers read the file together, send each row to the owner of its stock, and clean their stocks.
    panel, report = tm.series.clean(sources[0])
    groups = tm.series.read_groups(sources[1], panel.ids) if len(sources) > 1 else tm.series.Groups()
    # The first grouping, such as sectors; without one all stocks are in the same group.
    group_of = next(iter(groups.groupings.values()), {})
    if job.rank == 0:
        print(report)
    writer = tm.viz.FrameWriter(OUT, title="A market", mode="w") if job.rank == 0 else None

    begin = time.perf_counter()
    windows = tm.series.windows(panel.times, length="250d", shift="10d")
    before: dict[str, np.ndarray] = {}
    for window in windows:
        seen = panel.segment(window)
        n = len(seen.ids)

        # 2. Parallel learning. Each worker computes its rows of the distances, sqrt(2 (1 - c)) of the correlations c of
        # day-to-day changes; all embed them together.
        mine = slice(n * job.rank // job.size, n * (job.rank + 1) // job.size)
        apart = tm.series.distances(seen.values, rows=mine)
        # Stocks from the frame before start where they were, new ones in the middle of their group.
        start = placed(seen.ids, before, group_of) if before else None
        weights = tm.series.weights(seen.caps, n)
        model = MDS(n_components=3, acceleration=3, tol=1e-4).fit(apart, init=start, weights=weights)

        # 3. Alignment: any rotation of a map is as good, so turn it to match the one before.
        points = model.positions_
        old = np.flatnonzero([ticker in before for ticker in seen.ids])
        if len(old):
            fixed = np.array([before[ticker] for ticker in seen.ids[old]])
            points = procrustes(points[old], fixed, weights=weights[old]).apply(points)
        before = dict(zip(seen.ids.tolist(), points, strict=True))

        # 4. Visualization. A frame is in the open browser as soon as it is written.
        if writer is not None:
            tickers = seen.ids.tolist()
            writer.write_frame(
                points,
                ids=tickers,
                time=window.label,
                labels=[groups.labels.get(ticker, ticker) for ticker in tickers],
                groups={name: [of.get(ticker) for ticker in tickers] for name, of in groups.groupings.items()},
                values={"change in %": 100 * (seen.values[-1] / seen.values[0] - 1)},
                metrics={"stress": model.normalized_stress_},
            )
    if job.rank == 0:
        seconds = time.perf_counter() - begin
        print(f"{len(windows)} frames in {seconds:.1f} s on {job.size} worker(s); tidemill view {OUT} shows them")


def placed(tickers: np.ndarray, before: dict[str, np.ndarray], group_of: dict[str, str]) -> np.ndarray:
    """Where each stock starts, (n, 3)."""
    members: dict[str, list[np.ndarray]] = {}
    for ticker, where in before.items():
        members.setdefault(group_of.get(ticker, ""), []).append(where)
    middles = {group: np.mean(known, axis=0) for group, known in members.items()}
    everything = np.mean(list(before.values()), axis=0)
    return np.array([before.get(t, middles.get(group_of.get(t, ""), everything)) for t in tickers.tolist()])


if __name__ == "__main__":
    main()
