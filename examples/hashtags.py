"""Counts hashtags in windows of time, and finds the ten most frequent ones in each window.

python examples/hashtags.py [TWEETS.csv]                    columns created_at and text, sorted by created_at
tidemill run -n 4 examples/hashtags.py [TWEETS.csv]         on four workers

Prints the top ten of the hour, and of the six hours, with the most hashtags. Without a file it counts the 40,000 tweets in
$TIDEMILL_DATA or ../shared/data or, if they are not there, a few generated ones.
"""

from __future__ import annotations

import os
import sys
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import tidemill as tm

DATA = Path(os.environ.get("TIDEMILL_DATA", Path(__file__).parents[1] / "../shared/data"))
TWEETS = DATA / "tweets/crisis_tweets_2012_2013.csv.gz"
MADE_UP = [
    {
        "created_at": datetime(2013, 1, 1) + timedelta(minutes=7 * n),
        "text": f"High #Tide, says #mill{n % 12}.#water{n % 5}",
    }
    for n in range(100)
]


def tweets(path: str | Path | None) -> tm.Table:
    """The rows of a file, or those that are made up."""
    if path is None:
        return tm.from_dict({name: [row[name] for row in MADE_UP] for name in MADE_UP[0]}).collect()
    return tm.read_csv(path, newlines_in_values=True).select("created_at", "text").sort("created_at").collect()


def hashtags(texts: tm.DataSet) -> tm.DataSet:
    """A row for each hashtag, in lower case, with the time of its tweet."""
    # What follows each "#", then the letters and digits that it begins with.
    parts = tm.col("text").str.lower().str.replace_match("(?s)^[^#]*#?", "").str.split("#")
    tag = tm.col("tag").str.replace_match(r"(?s)^([\p{L}\p{N}_]*).*$", r"\1")
    return texts.select("created_at", tag=parts).explode("tag").with_columns(tag=tag).filter(tm.col("tag") != "")


def counted(tags: tm.DataSet, size: str, slide: str) -> tm.DataSet:
    """A row for each window, with lists of its hashtags and of how often each was used."""
    counts = tags.group_by("tag", tm.stream.window(tm.stream.sliding(size, slide), on="created_at")).agg(
        used=tm.count()
    )
    # A result's time is the last moment of its window: all counts of a window meet as soon as it is over.
    counts = counts.with_columns(at=tm.col("window_end") - timedelta(microseconds=1))
    counts = counts.rename({"window_start": "start", "window_end": "end"})
    windows = counts.group_by("start", "end", tm.stream.window(tm.stream.tumbling(slide), on="at"))
    return windows.agg(tm.col("tag").to_list(), tm.col("used").to_list()).drop("window_start", "window_end")


def top_ten(tags: tm.DataSet, size: str, slide: str) -> list[dict[str, Any]]:
    """Of the windows that this worker puts together: their hashtags, the ten that are used most."""
    windows: list[dict[str, Any]] = []

    def rank(table: tm.Table) -> None:
        for row in table:
            ranked = sorted(zip(row["tag"], row["used"], strict=True), key=lambda pair: (-pair[1], pair[0]))
            windows.append({"start": row["start"], "end": row["end"], "used": sum(row["used"]), "top": ranked[:10]})

    counted(tags, size, slide).write_stream(rank)
    return windows


def main() -> None:
    path = sys.argv[1] if sys.argv[1:] else TWEETS if TWEETS.exists() else None
    tags = hashtags(tm.stream.from_table(tweets(path), time="created_at"))
    job = tm.init()
    for size, slide in (("1h", "1h"), ("6h", "1h")):
        everybody = job.comm.gather(top_ten(tags, size, slide))
        if everybody is None:
            continue
        windows = [window for windows in everybody for window in windows]
        busiest = min(windows, key=lambda window: (-window["used"], window["start"]))
        print(f"{len(windows)} windows of {size}; from {busiest['start']} to {busiest['end']}:")
        for place, (tag, used) in enumerate(busiest["top"], 1):
            print(f"{place:>3}. {used:>5} #{tag}")


if __name__ == "__main__":
    main()
