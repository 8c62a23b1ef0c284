"""Predicts the load of smart plugs and houses, and tells in which houses many plugs draw more than others: two queries of

    H. Ziekow, Z. Jerzak: The DEBS 2014 Grand Challenge. Proceedings of the 8th ACM International Conference on Distributed
    Event-Based Systems (DEBS 2014).

python examples/smart_plugs.py [READINGS.csv]                   id, timestamp, value, property, plug, household, house
tidemill run -n 4 examples/smart_plugs.py [READINGS.csv]        on four workers

Options: --slice 15m, the length of a slice; --day 1d, after which slices repeat; both in ``d``, ``h``, ``m`` or ``s``. Without a file
it reads the loads of a house, if they are in $TIDEMILL_DATA or ../shared/data, else some that it makes up.

Query 1, prediction. When slice ``i`` is over, the load of the slice after the next is predicted, of each plug and each house::

    load(i + 2) = (average(i) + median(average(i + 2 - n * slices of a day) for n = 1, 2, ...)) / 2

The average of a plug is that of its readings, that of a house the sum over its plugs. Where no former day has that slice, the
prediction is ``average(i)``.

Query 2, outliers. Of each house, the percentage of plugs whose median load in the last hour is larger than the median of all
readings of all plugs in that hour; every ten minutes.
"""

from __future__ import annotations

import argparse
import os
from collections import defaultdict
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
    in_slice = readings.group_by(*PLUG, tm.window(tm.tumbling(slice_), on="at"))
    plugs = in_slice.agg(tm.col("load").mean()).rename({"window_start": "slice"}).drop("window_end")
    # What is known when a slice is over is put into that slice once more.
    houses = plugs.group_by("house", tm.window(tm.tumbling(slice_), on="slice")).agg(tm.col("load").sum())
    nobody = tm.lit(None).cast("int64")
    houses = houses.select("house", household=nobody, plug=nobody, slice="window_start", load="load")
    return plugs.union(houses)


class Predictions:
    """A sink that keeps the slices of former days. All averages of a plug or a house come to one worker, in order of time."""

    def __init__(self, slice_: timedelta, day: timedelta) -> None:
        self.made: list[dict[str, Any]] = []
        self._slice, self._day = slice_, day
        #: By plug or house, and time of day.
        self._former: dict[tuple[Any, ...], list[float]] = defaultdict(list)

    def __call__(self, table: tm.Table) -> None:
        for row in table:
            of = tuple(row[name] for name in PLUG)
            former = self._former[of, self._time_of_day(row["slice"] + 2 * self._slice)]
            load = (row["load"] + median(former)) / 2 if former else row["load"]
            self.made.append({**row, "slice": row["slice"] + 2 * self._slice, "load": load, "days": len(former)})
            self._former[of, self._time_of_day(row["slice"])].append(row["load"])

    def _time_of_day(self, slice_: datetime) -> timedelta:
        return (slice_ - datetime(1970, 1, 1)) % self._day


def predict(readings: tm.DataSet, slice_: str, day: str) -> list[dict[str, Any]]:
    """Query 1: the predictions for plugs and houses that this worker makes."""
    predictions = Predictions(length(slice_), length(day))
    averages(readings, slice_).write_stream(predictions)
    return predictions.made


def hours(readings: tm.DataSet) -> tm.DataSet:
    """A row for each hour that ends at whole ten minutes, with lists: of each plug its house, its median load, its readings."""
    load = tm.col("load")
    plugs = readings.group_by(*PLUG, tm.window(tm.sliding("1h", "10m"), on="at")).agg(
        load.median(), readings=load.to_list()
    )
    # A result's time is the last moment of its window: all plugs of an hour meet as soon as it is over.
    plugs = plugs.with_columns(at=tm.col("window_end") - timedelta(microseconds=1))
    plugs = plugs.select("house", "load", "readings", "at", end="window_end")
    together = plugs.group_by("end", tm.window(tm.tumbling("10m"), on="at"))
    return together.agg(tm.col("house").to_list(), load.to_list(), tm.col("readings").to_list())


def outliers(readings: tm.DataSet) -> list[dict[str, Any]]:
    """Query 2: the percentages that this worker finds."""
    found: list[dict[str, Any]] = []

    def count(table: tm.Table) -> None:
        for hour in table:
            of_all = median(chain.from_iterable(hour["readings"]))
            larger = defaultdict(list)
            for house, load in zip(hour["house"], hour["load"], strict=True):
                larger[house].append(load > of_all)
            for house, plugs in larger.items():
                found.append({"end": hour["end"], "house": house, "percent": 100 * sum(plugs) / len(plugs)})

    hours(readings).write_stream(count)
    return found


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
    predicted = job.comm.gather(predict(stream, options.slice, options.day))
    found = job.comm.gather(outliers(stream))
    if predicted is None or found is None:
        return
    rows = sorted((row for rows in predicted for row in rows), key=lambda row: row["slice"])
    houses = [row for row in rows if row["plug"] is None]
    print(f"{len(rows) - len(houses)} predictions for plugs, {len(houses)} for houses; the last of houses:")
    for row in sorted(houses[-6:], key=lambda row: (row["slice"], row["house"])):
        print(f"  {row['slice']}  house {row['house']}: {row['load']:.1f} W, {row['days']} former days")
    percents = sorted((row for rows in found for row in rows), key=lambda row: (row["end"], row["house"]))
    print(f"{len(percents)} percentages of plugs above the median; the last ones:")
    for row in percents[-6:]:
        print(f"  {row['end']}  house {row['house']}: {row['percent']:.1f} %")


if __name__ == "__main__":
    main()
