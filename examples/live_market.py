"""A live market: prices stream in, a solver within the stream places each window's stocks, and an open page shows them move.

tidemill run -n 2 --restarts 9 examples/live_market.py [FOLDER]     two years of a generated market in a few seconds
tidemill view live-market-out                                       shows it, while it runs
If you kill a worker meanwhile, the job resumes from its last checkpoint, and makes the same frames as an undisturbed run.
"""

import sys
from datetime import timedelta
from pathlib import Path

import numpy as np
import tidemill as tm
from tidemill.ml import MDS, procrustes, using

MOMENT = timedelta(microseconds=1)
OUT = Path(sys.argv[1] if len(sys.argv) > 1 else "live-market-out")


def change(key, rows, context):
    """Clean the prices of a stock, day by day: its state is its last price, and prices until all of their day have come."""
    last, waiting = context.state or (None, {})
    for row in rows:
        waiting[row["date"]] = max(waiting.get(row["date"], (0, 0)), (row["split"] or 1, abs(row["price"])))
        context.set_timer(row["date"] + MOMENT)
    made = []
    for at in sorted(context.timers):
        split, price = waiting.pop(at - MOMENT)
        if last is not None:
            made.append({**key, "date": at - MOMENT, "change": float(np.log(price * split / last))})
        last = price
    context.state = (last, waiting)
    return made


def place(comm, rows, context):
    """Place the stocks of a window: all copies gather the changes, compute some rows of the distances each, and embed."""
    parts = comm.allgather([rows.to_numpy()[name] for name in ("ticker", "date", "change")])
    tickers, dates, changes = (np.concatenate(column) for column in zip(*parts, strict=True))
    ids, row = np.unique(tickers.astype(str), return_inverse=True)
    days, day = np.unique(dates, return_inverse=True)
    values = np.full((len(ids), len(days)), np.nan)
    values[row, day] = changes
    known = np.isfinite(values).mean(axis=1) > 0.9
    ids, values = ids[known], np.nan_to_num(values[known])
    values -= values.mean(axis=1, keepdims=True)
    values /= np.linalg.norm(values, axis=1, keepdims=True)
    mine = np.arange(len(ids) * comm.rank // comm.size, len(ids) * (comm.rank + 1) // comm.size)
    apart = np.sqrt(np.clip(2 - 2 * values[mine] @ values.T, 0, None))
    apart[np.arange(len(mine)), mine] = 0
    # Stocks start where they were. Any rotation of a map is as good, so turn it to match the one before.
    before = context.state or {}
    start = np.array([before.get(ticker, (0, 0, 0)) for ticker in ids]) if before else None
    with using(comm):
        points = MDS(n_components=3, tol=1e-3, random_state=0).fit(apart, init=start).positions_
    if start is not None:
        old = np.array([ticker in before for ticker in ids])
        points = procrustes(points[old], start[old]).apply(points)
    context.state = dict(zip(ids.tolist(), points, strict=True))
    end, (x, y, z) = np.full(len(ids), np.datetime64(context.window_end, "us")), points.T
    return tm.Table.from_numpy({"ticker": ids, "end": end, "x": x, "y": y, "z": z}) if comm.rank == 0 else None


def show(table):
    """Write a map as a frame. A map whose checkpoint was not complete when a worker died comes again, the same."""
    columns = table.to_dict()
    writer = tm.viz.FrameWriter(OUT, title="A live market", mode="a")
    if (label := f"{columns['end'][0]:%Y-%m-%d}") not in tm.viz.FrameReader(OUT).times:
        writer.write_frame(np.stack([columns[axis] for axis in "xyz"], axis=1), ids=columns["ticker"], time=label)


job = tm.init()
if job.rank == 0:
    tm.series.write_market(OUT / "data", ids=120, days=500)
job.comm.Barrier()
prices = tm.read_csv(str(OUT / "data" / "prices.csv"), schema_overrides={"split": "float64"})
prices = prices.with_columns(date=tm.col("date").cast("timestamp[us]")).sort("date", "ticker", "price").collect()
stream = tm.stream.from_table(prices, time="date", rows_per_batch=500, rows_per_s=12_000)
changes = stream.key_by("ticker").process(change, {"ticker": "str", "date": "timestamp[us]", "change": "float64"})
window = tm.stream.window(tm.stream.sliding("180d", "30d"), on="date")
schema = {"ticker": "str", "end": "timestamp[us]", "x": "float64", "y": "float64", "z": "float64"}
maps = changes.bsp(place, schema, window=window, by="ticker", merge=lambda states: states[0])
maps.write_stream(show, checkpoint=tm.stream.Checkpoint(OUT / "checkpoints", interval="500ms"))
