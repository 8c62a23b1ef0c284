"""Makes the pictures of ``docs/gallery.md`` anew, from the data in ``../shared/data`` (or ``TIDEMILL_DATA``).

    .venv/bin/python tools/gallery.py

It takes about a minute, and needs a Chromium (``make setup-browser``). Look at the pictures before you commit them; `tools/picture.py` makes
the one of the market.
"""

from __future__ import annotations

import io
import os
import shutil
import sys
import tempfile
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import matplotlib.pyplot as plt
import numpy as np
import tidemill as tm
from PIL import Image
from playwright.sync_api import sync_playwright
from tidemill.ml import MDS, KMeans
from tidemill.viz import FrameWriter, Server

ROOT = Path(__file__).parents[1]
DATA = Path(os.environ.get("TIDEMILL_DATA") or ROOT.parent / "shared" / "data")
IMAGES = ROOT / "docs" / "images"


def digits() -> None:
    """Handwritten digits, placed by MDS and coloured by k-means, as the viewer shows them."""
    table = np.loadtxt(DATA / "kmeans" / "optdigits_test.csv.gz", delimiter=",", skiprows=1)
    pixels, digit = table[:, :-1], table[:, -1].astype(int)
    points = MDS(n_components=3, metric="euclidean").fit(pixels).positions_
    clusters = KMeans(10, random_state=0).fit_predict(pixels)
    with tempfile.TemporaryDirectory() as folder:
        writer = FrameWriter(folder, mode="w", title="Handwritten digits")
        names = {"Cluster": [f"cluster {number}" for number in clusters], "Digit": [str(number) for number in digit]}
        writer.write_frame(points, ids=np.arange(len(points)), groups=names)
        chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))))
        with Server(folder) as server, sync_playwright() as playwright:
            browser = playwright.chromium.launch(
                executable_path=chromium,
                args=["--use-angle=swiftshader", "--enable-unsafe-swiftshader", "--no-sandbox"],
            )
            tab = browser.new_page(viewport={"width": 1000, "height": 620}, color_scheme="light")
            tab.goto(f"{server.url}#{urlencode([('colour', 'Cluster'), ('size', 7)])}")
            tab.wait_for_function("() => window.tidemill && tidemill.drawn().drawn === tidemill.drawn().of")
            tab.wait_for_timeout(2000)
            picture = Image.open(io.BytesIO(tab.screenshot())).convert("RGB")
            browser.close()
    picture.quantize(128).save(IMAGES / "digits.png", optimize=True)


def hashtags() -> None:
    """How often the most frequent hashtags were used in each hour, counted as a stream by ``examples/hashtags.py``."""
    sys.path.insert(0, str(ROOT / "examples"))
    import hashtags as example

    tags = example.hashtags(
        tm.stream.from_table(example.tweets(DATA / example.TWEETS.relative_to(example.DATA)), time="created_at")
    )
    counts = tags.group_by("tag", tm.stream.window(tm.stream.tumbling("1h"), on="created_at")).agg(used=tm.count())
    rows: list[dict[str, Any]] = []
    counts.write_stream(lambda table: rows.extend(table.to_pylist()))
    busiest = max(rows, key=lambda row: row["used"])["window_start"]
    near = [row for row in rows if abs((row["window_start"] - busiest).total_seconds()) < 2 * 86400]
    totals: dict[str, int] = {}
    for row in near:
        totals[row["tag"]] = totals.get(row["tag"], 0) + row["used"]
    top = sorted(totals, key=totals.__getitem__, reverse=True)[:4]
    figure, axes = plt.subplots(figsize=(8, 3.4), dpi=110)
    for tag in top:
        used = {row["window_start"]: row["used"] for row in near if row["tag"] == tag}
        hours = [busiest + timedelta(hours=hour) for hour in range(-48, 49)]
        axes.step(hours, [used.get(hour, 0) for hour in hours], where="post", label=f"#{tag}", linewidth=1.3)
    axes.set_ylabel("tweets in an hour")
    axes.legend(frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    figure.autofmt_xdate()
    figure.tight_layout()
    figure.savefig(IMAGES / "hashtags.png")


def plan() -> None:
    """The plan of a task graph, the first of ``docs/graph.md``."""
    graph = tm.Graph("squares")
    source = graph.source("numbers", print, schema={"n": "int64"}, parallelism=2)
    square = graph.compute("squares", print, schema={"last": "int64", "square": "int64"}, parallelism=4)
    sink = graph.sink("largest", print, parallelism=2)
    graph.connect(source, square, tm.exchange.partition("n"))
    graph.connect(square, sink, tm.exchange.keyed_reduce("last", {"square": "max"}))
    (IMAGES / "plan.svg").write_text(graph.explain("svg"))


if __name__ == "__main__":
    IMAGES.mkdir(exist_ok=True)
    digits()
    hashtags()
    plan()
    for image in sorted(IMAGES.iterdir()):
        print(f"{image.relative_to(ROOT)}: {image.stat().st_size:,} bytes")
