"""Measures the viewer in headless Chromium: loading, the page's own work for each picture, pictures per second, memory, bytes.

    .venv/bin/python bench/viewer.py                  10,000, 100,000 and 1,000,000 points
    .venv/bin/python bench/viewer.py 10000000         so many

Points have ids, as stocks or cells have. Bytes are what the page has fetched of frames and points when the first of them are to be seen, and
when all are.

Chromium draws without a graphics card here (SwiftShader), on the same cores: pictures per second say little of a machine that has
one. What is ours are `fill` (a frame into the buffer for the card, once a frame), `turn` (the rest of a picture's script: clock,
camera, draw calls and what lies over the points) and `pick` (the point under the pointer). Median, and in brackets the least, of repeats.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from playwright.sync_api import sync_playwright
from tidemill.viz import FrameWriter, Server

FRAMES = 8
REPEATS = 15

#: Runs a thing again and again in the page; milliseconds.
TIMED = """([what, repeats]) => {
  const t = window.tidemill, line = t.dataset.frames[0], tensors = t.cache.get(0), target = new Uint16Array(t.slots.points * 4);
  const things = {
    fill: () => t.slots.fill(target, t.dataset, line, tensors, t.colouring),
    pick: () => t.seen.pick(400, 300, 9),
    count: () => t.seen.counts(),
  };
  return Array.from({ length: repeats }, () => { const begin = performance.now(); things[what](); return performance.now() - begin });
}"""

#: Plays for a while; the times of turns and pictures.
PLAYED = """(seconds) => new Promise((done) => {
  const t = window.tidemill, turns = [], pictures = [], begin = performance.now();
  let last = begin;
  t.set({ ...t.playback, playing: true, loop: true, framesPerS: 4, position: 0 });
  const look = (now) => {
    turns.push(t.loop.times.turnMs); pictures.push(now - last); last = now;
    if (now - begin < 1000 * seconds) requestAnimationFrame(look);
    else { t.set({ ...t.playback, playing: false }); done({ turns, pictures: pictures.slice(1), drawn: t.loop.detail.budget }) }
  };
  requestAnimationFrame(look);
})"""


#: Waits for a condition; what the page has fetched by then, but its own files, in MB.
FETCHED = """() => window.tidemill && (%s) && performance.getEntriesByType('resource')
  .filter(({ name }) => name.includes('/api/')).reduce((sum, { encodedBodySize }) => sum + encodedBodySize, 0) / 1e6"""


def told(times: list[float]) -> str:
    """Median and least."""
    return f"{np.median(times):.1f} ({min(times):.1f})"


def main() -> None:
    """Print a table in Markdown."""
    sizes = [int(word) for word in sys.argv[1:]] or [10_000, 100_000, 1_000_000]
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    if chromium is None:
        sys.exit("no Chromium; `make setup-browser` installs it")
    print(
        "| points | write ms/frame | bytes/point/frame | to first picture s, MB | to all points s, MB | find ms | fill ms | turn ms | pick ms | pictures/s | drawn while moving | heap MB |"
    )
    print("|---|---|---|---|---|---|---|---|---|---|---|---|")
    with sync_playwright() as playwright:
        for points in sizes:
            folder = Path(tempfile.mkdtemp(prefix="viewer-"))
            rng = np.random.default_rng(0)
            kind = rng.integers(9, size=points)
            where = rng.normal(size=(9, 3))[kind] * 3 + rng.normal(size=(points, 3)) * 0.5
            step = rng.normal(size=(points, 3)) * 0.05
            ids = np.char.add("p", np.arange(points).astype(str))
            begin = time.perf_counter()
            with FrameWriter(folder, mode="w") as writer:
                for frame in range(FRAMES):
                    writer.write_frame(where + frame * step, ids=ids, groups={"kind": kind})
            write_ms = 1000 * (time.perf_counter() - begin) / FRAMES
            bytes_all = sum(path.stat().st_size for path in folder.glob("frame-*"))
            browser = playwright.chromium.launch(
                executable_path=chromium,
                args=[
                    "--use-angle=swiftshader",
                    "--enable-unsafe-swiftshader",
                    "--no-sandbox",
                    "--enable-precise-memory-info",
                ],
            )
            with Server(folder) as server:
                page = browser.new_page(viewport={"width": 1280, "height": 800})
                page.set_default_timeout(300_000)
                begin = time.perf_counter()
                page.goto(server.url)
                fetched = lambda condition: page.wait_for_function(FETCHED % condition).json_value()  # noqa: B023, E731
                load_mb = fetched("tidemill.drawn().drawn > 0 && tidemill.loaded[0] === 0")
                load_s = time.perf_counter() - begin
                all_mb = fetched("tidemill.drawn().drawn === tidemill.drawn().of")
                all_s = time.perf_counter() - begin
                begin = time.perf_counter()
                page.fill("#query", f"P{points - 1}")
                page.wait_for_selector("#found > *")
                find_ms = 1000 * (time.perf_counter() - begin)
                page.fill("#query", "")
                fill = page.evaluate(TIMED, ["fill", REPEATS])
                pick = page.evaluate(TIMED, ["pick", REPEATS])
                played = page.evaluate(PLAYED, 10)
                heap = page.evaluate("performance.memory.usedJSHeapSize") / 2**20
                heap += page.evaluate("tidemill.cache.bytes + 2 * 8 * tidemill.slots.points") / 2**20
                drawn = min(points, played["drawn"])
                rate = 1000 / np.median(played["pictures"])
                print(
                    f"| {points:,} | {write_ms:.0f} | {bytes_all / FRAMES / points:.2f} | {load_s:.1f}, {load_mb:.2f} | "
                    f"{all_s:.1f}, {all_mb:.1f} | {find_ms:.0f} | {told(fill)} | "
                    f"{told(played['turns'])} | {told(pick)} | {rate:.0f} | {drawn:,} | {heap:.0f} |",
                    flush=True,
                )
            browser.close()
            shutil.rmtree(folder)


if __name__ == "__main__":
    main()
