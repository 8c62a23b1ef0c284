"""Prices that come while a page is open: a file grows, `tidemill series --follow --view` makes frames, and the page has them."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import browsed
import launched
import numpy as np
import pytest
from browsed import Page
from tidemill.viz import FrameReader

pytestmark = browsed.NEEDED
browser = browsed.browser

IDS, WINDOW = 12, 20
PRICES = 50 * np.exp(np.cumsum(np.random.default_rng(0).normal(scale=0.02, size=(60, IDS)), axis=0))


def day(number: int) -> str:
    return str(np.busday_offset("2024-01-01", number, roll="forward"))


def rows(number: int) -> list[str]:
    """A day's rows."""
    return [f"{day(number)},s{one:02},{PRICES[number, one]:.4f}\n" for one in range(IDS)]


class Followed:
    """A growing file of prices that the command follows. A day is over once a row of the next has come, and never
    before.
    """

    def __init__(self, folder: Path, workers: int, days: int) -> None:
        self.file, self.out = folder / "prices.csv", folder / "out"
        self.file.write_text("date,ticker,price\n")
        self.days = 0
        self.add(days)
        self.running = launched.start(
            "series", "-n", str(workers), "--no-prefix", self.file, "--follow", "--settle", "3600", "--view",
            "--window", f"{WINDOW}d", "--shift", "1d", "--out", self.out,
        )  # fmt: skip
        assert self.running.stdout is not None
        self.url = ""
        while "http" not in self.url:
            line = self.running.stdout.readline().decode()
            assert line, self.running.stderr and self.running.stderr.read()
            self.url = line.split()[-1]

    def add(self, days: int) -> None:
        self.write("".join(row for number in range(self.days, self.days + days) for row in rows(number)))
        self.days += days

    def write(self, text: str) -> None:
        with self.file.open("a") as file:
            file.write(text)

    def end(self) -> None:
        self.running.send_signal(signal.SIGINT)
        printed, errors = self.running.communicate(timeout=launched.PATIENCE_S)
        assert (self.running.returncode, errors) == (0, b""), printed


@pytest.fixture(params=[1, 2], ids=["1 worker", "2 workers"])
def followed(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Followed]:
    # The last day is still open, so there is one fewer.
    followed = Followed(tmp_path, request.param, days=WINDOW + 3)
    yield followed
    followed.end()


def shows(page: Page, frames: int, last: str) -> None:
    """Wait until the page has so many frames, and is at the last of them, having gone there by itself."""
    page.until(f"() => tidemill.frames === {frames}")
    page.until(f"() => tidemill.playback.position === {frames - 1} && !tidemill.playback.playing")
    page.settled()
    assert page.get("[Number(scrub.max), Number(scrub.value)]") == [frames - 1, frames - 1]
    assert page.tab.inner_text("#time") == last
    page.until(f"() => document.querySelector('#status').textContent === '{IDS} points'")


def test_days_that_come_are_frames_of_the_open_page(browser: Any, followed: Followed) -> None:
    """A day must appear where a reader drags and plays time, once it is whole, and for later readers too."""
    page = Page(browser, followed.url)
    page.until("() => tidemill.frames === 3")
    assert page.get("scrub.max") == "2"
    page.tab.keyboard.press("End")
    page.settled()

    followed.add(1)
    shows(page, 4, day(WINDOW + 2))

    # A day in two pieces, the first of which ends within a row: it becomes a frame only once the next day has begun.
    text = "".join(rows(followed.days))
    cut = len(text) // 2 + 3
    assert text[cut - 1] != "\n"
    followed.write(text[:cut])
    shows(page, 5, day(WINDOW + 3))
    followed.write(text[cut:])
    followed.days += 1
    followed.add(1)
    shows(page, 6, day(WINDOW + 4))
    reader = FrameReader(followed.out)
    change = PRICES[WINDOW + 4] / PRICES[5] - 1
    np.testing.assert_allclose(reader[5].values["change in %"], 100 * change, atol=0.02)

    # Everything plays, new frames as well as old.
    seen = (
        "new Promise(done => { const seen = []; tidemill.set({ ...tidemill.playback, position: 0, framesPerS: 4, playing: true });"
        "const look = () => { seen.push(tidemill.loaded[0]); tidemill.playback.playing ? requestAnimationFrame(look) : done([...new Set(seen)]) };"
        "requestAnimationFrame(look) })"
    )
    assert set(page.get(seen)) >= set(range(6))
    shows(page, 6, day(WINDOW + 4))
    page.picture("followed")
    page.close()

    # Nobody looks for a while; then somebody does again.
    followed.add(2)
    launched.wait_until(lambda: reader.refresh() == 8, "the frames that nobody looks at")
    page = Page(browser, followed.url)
    assert page.get("[tidemill.frames, scrub.max]") == [8, "7"]
    page.tab.keyboard.press("End")
    page.settled()
    followed.add(1)
    shows(page, 9, day(WINDOW + 7))
    page.close()
