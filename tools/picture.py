"""Makes ``docs/market.webp`` anew: the stocks of ``../shared/data/stocks`` as the page shows them now.

    .venv/bin/python tools/picture.py

It takes a minute or two, and wants a Chromium (``make setup-browser``). Look at the picture before it is committed.
"""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlencode

from PIL import Image
from playwright.sync_api import sync_playwright
from tidemill.viz import FrameReader, Server

ROOT = Path(__file__).parents[1]
DATA = Path(os.environ.get("TIDEMILL_DATA") or ROOT.parent / "shared" / "data") / "stocks"
FRAMES = ROOT / "out" / "picture"
PICTURE = ROOT / "docs" / "market.webp"
SIZE = {"width": 1200, "height": 760}

#: When the market was at its lowest.
DAY = "2009-03-10"
#: From where one looks, and at what.
CAMERA = (1.55, 1.04, 2.27, 0.0, 0.0, 0.0)
CHOSEN = ("AAPL", "BAC")


def make_frames() -> None:
    """Read thirteen years of prices, and embed them, as the guide does."""
    prices, sectors = DATA / "sp500_daily_2004_2016.csv.zst", DATA / "sp500_sectors_2018.csv"
    command = [sys.executable, "-m", "tidemill", "series", "-n", "2", prices, "--groups", sectors]
    subprocess.run([*command, "--title", "S&P 500, 2004-2016", "--out", FRAMES, "--overwrite"], check=True)


def take_picture() -> Image.Image:
    """Show one frame, by a link to the view, and the ways of a few stocks."""
    number = FrameReader(FRAMES).times.index(DAY)
    view = [("frame", number), ("colour", "Sector"), ("camera", ",".join(map(str, CAMERA))), ("size", 10)]
    link = urlencode([*view, *(("point", name) for name in CHOSEN)])
    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))))
    with Server(FRAMES) as server, sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=chromium, args=["--use-angle=swiftshader", "--enable-unsafe-swiftshader", "--no-sandbox"]
        )
        tab = browser.new_page(viewport=SIZE, color_scheme="light")
        tab.goto(f"{server.url}#{link}")
        tab.wait_for_function(
            "() => window.tidemill?.chosen.trails.places && tidemill.drawn().drawn === tidemill.drawn().of && !tidemill.loop.scheduled"
        )
        tab.wait_for_timeout(1000)
        picture = Image.open(io.BytesIO(tab.screenshot()))
        browser.close()
    return picture


if __name__ == "__main__":
    make_frames()
    take_picture().convert("RGB").save(PICTURE, quality=80, method=6)
    print(f"{PICTURE}: {PICTURE.stat().st_size:,} bytes")
