"""Predicts the load of smart plugs and houses, and finds houses in which many plugs draw more than others: two queries of

    H. Ziekow, Z. Jerzak: The DEBS 2014 Grand Challenge. Proceedings of the 8th ACM International Conference on Distributed
    Event-Based Systems (DEBS 2014).

python examples/smart_plugs.py [READINGS.csv]                   id, timestamp, value, property, plug, household, house
tidemill run -n 4 examples/smart_plugs.py [READINGS.csv]        on four workers

Options: --slice 15m, the length of a slice; --day 1d, after which slices repeat; both in ``d``, ``h``, ``m`` or ``s``. Without a file
it reads the loads of a house in $TIDEMILL_DATA or ../shared/data or, if they are not there, generated ones.

Query 1, prediction. When slice ``i`` is over, it predicts the load of the slice after the next, for each plug and each house::

    load(i + 2) = (average(i) + median(average(i + 2 - n * slices of a day) for n = 1, 2, ...)) / 2

The average of a plug is that of its readings; the average of a house is the sum over its plugs. If no earlier day has that slice,
the prediction is ``average(i)``.

Query 2, outliers. For each house, every ten minutes: the percentage of plugs whose median load in the last hour is larger than the
median of all readings of all plugs in that hour, and the same for the last 24 hours.

Everything it remembers is state of the stream, so with ``checkpoint=`` the job resumes after a failure as if there had been none.
"""

from __future__ import annotations

import argparse
import os
from datetime import datetime, timedelta
from itertools import chain
from pathlib import Path
from statistics import median
from typing import Any

import tidemill as tm

DATA = Path(os.environ.get("TIDEMILL_DATA", Path(__file__).parents[1] / "../shared/data"))
HOUSE = DATA / "sensors/debs2014_house0.csv.gz"
COLUMNS = ["id", "timestamp", "value", "property", "plug", "household", "house"]
LOAD = 1
PLUG = ["house", "household", "plug"]
PREDICTED = {**dict.fromkeys(PLUG, "int64"), "slice": "timestamp[us]", "load": "float64", "days": "int64"}
#: The windows of query 2.
SIZES = ["1h", "24h"]
EPOCH = datetime(1970, 1, 1)


def made_up() -> list[tuple[float, ...]]:
    """Three days of two houses with three plugs each, a reading every five minutes."""
    times = range(1_377_986_400, 1_377_986_400 + 3 * 86_400, 300)
    plugs = [(plug, 0, house) for house in range(2) for plug in range(3)]
    loads = [
        (at, plug, (at // 3600 % 24 * (plug[0] + 1) + at // 300 * 7 % 5) * (plug[2] + 1))
        for at in times
        for plug in plugs
    ]
    return [(number, at, float(load), LOAD, *plug) for number, (at, plug, load) in enumerate(loads)]


def loads(path: str | Path | None) -> tm.Table:
    """The readings of loads, in order of time: at, house, household, plug, load."""
    if path is None:
        rows = tm.from_dict(dict(zip(COLUMNS, map(list, zip(*made_up(), strict=True)), strict=True)))
    else:
        rows = tm.read_csv(path, header=False).rename({f"column_{at}": name for at, name in enumerate(COLUMNS, 1)})
    rows = rows.filter(tm.col("property") == LOAD)
    rows = rows.select(*PLUG, at=tm.col("timestamp").cast("timestamp[s]"), load=tm.col("value").cast("float64"))
    return rows.sort("at").collect()


def averages(readings: tm.DataSet, slice_: str) -> tm.DataSet:
    """Average loads by slice: of each plug, and of each house, whose household and plug are null."""
    in_slice = readings.group_by(*PLUG, tm.stream.window(tm.stream.tumbling(slice_), on="at"))
    plugs = in_slice.agg(tm.col("load").mean()).rename({"window_start": "slice"}).drop("window_end")
    # The results for a slice that is over are put into that slice once more.
    houses = plugs.group_by("house", tm.stream.window(tm.stream.tumbling(slice_), on="slice")).agg(tm.col("load").sum())
    nobody = tm.lit(None).cast("int64")
    houses = houses.select("house", household=nobody, plug=nobody, slice="window_start", load="load")
    return plugs.union(houses)


def predict(readings: tm.DataSet, slice_: str, day: str) -> tm.DataSet:
    """Query 1. The averages of former days are state of the stream: a job that goes on from a checkpoint has them."""
    later, period = 2 * length(slice_), length(day)

    def next_but_one(key: dict[str, Any], rows: list[dict[str, Any]], context: tm.stream.KeyContext) -> Any:
        # By time of day; the rows of a plug or a house come in order of time.
        former = context.map_state("former")
        for row in rows:
            at = row["slice"] + later
            days = former.get((at - EPOCH) % period, [])
            load = (row["load"] + median(days)) / 2 if days else row["load"]
            former.setdefault((row["slice"] - EPOCH) % period, []).append(row["load"])
            yield {**key, "slice": at, "load": load, "days": len(days)}

    return averages(readings, slice_).key_by(*PLUG).process(next_but_one, PREDICTED)


def outliers(readings: tm.DataSet, size: str) -> tm.DataSet:
    """Query 2, of windows of one size."""
    window, load = tm.stream.window(tm.stream.sliding(size, "10m"), on="at"), tm.col("load")
    plugs = readings.group_by(*PLUG, window).agg(load.median())
    of_all = readings.group_by(window).agg(of_all=load.median()).select("window_end", "of_all")
    # A window's end tells time: its rows are combined as soon as it is over, and then dropped.
    larger = plugs.join(of_all, on="window_end").with_columns(larger=(load > tm.col("of_all")).cast("float64"))
    percents = larger.group_by("house", "window_end").agg(percent=100 * tm.col("larger").mean())
    return percents.select("house", "percent", end="window_end", size=tm.lit(size))


def length(text: str) -> timedelta:
    """A whole number of days, hours, minutes or seconds: ``15m``."""
    units = {"d": "days", "h": "hours", "m": "minutes", "s": "seconds"}
    return timedelta(**{units[text[-1]]: int(text[:-1])})


def main() -> None:
    parser = argparse.ArgumentParser(description="Predict the loads of smart plugs and find outliers.")
    parser.add_argument("readings", nargs="?", default=HOUSE if HOUSE.exists() else None)
    parser.add_argument("--slice", default="15m")
    parser.add_argument("--day", default="1d")
    options = parser.parse_args()
    job = tm.init()
    stream = tm.stream.from_table(loads(options.readings), time="at")
    predicted: list[dict[str, Any]] = []
    found: list[dict[str, Any]] = []
    tm.stream.write(
        [
            (predict(stream, options.slice, options.day), lambda table: predicted.extend(table.to_pylist())),
            *((outliers(stream, size), lambda table: found.extend(table.to_pylist())) for size in SIZES),
        ]
    )
    predicted, found = (list(chain.from_iterable(job.comm.allgather(rows))) for rows in (predicted, found))
    if job.rank > 0:
        return
    houses = [row for row in predicted if row["plug"] is None]
    print(f"{len(predicted) - len(houses)} predictions for plugs, {len(houses)} for houses; the last of houses:")
    for row in sorted(houses, key=lambda row: (row["slice"], row["house"]))[-6:]:
        print(f"  {row['slice']}  house {row['house']}: {row['load']:.1f} W, {row['days']} former days")
    for size in SIZES:
        rows = [row for row in found if row["size"] == size]
        print(f"{len(rows)} percentages of plugs above the median of {size}; the last ones:")
        for row in sorted(rows, key=lambda row: (row["end"], row["house"]))[-6:]:
            print(f"  {row['end']}  house {row['house']}: {row['percent']:.1f} %")


if __name__ == "__main__":
    main()
