"""The benchmark of the viewer, which has no peer: loading, the page's own work for each picture, pictures a second, bytes, memory.

Points have ids, as stocks or cells have, and a grouping; `market` is what the main job makes, `tidemill series` of the generated market.

Chromium draws without a graphics card here (SwiftShader), on the same cores: pictures a second say little of a machine that has one. What is
ours are `fill` (a frame into the buffer for the card, once a frame), `turn` (the rest of a picture's script: clock, camera, draw calls and what
lies over the points) and `pick` (the point under the pointer).
"""

from __future__ import annotations

import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from .tables import table

TIMEOUT_S = 600
MARKET = "market"
#: How many points, or the main job's own frames.
CASES: dict[str, tuple[str, ...]] = {
    "full": (MARKET, "10000", "100000", "1000000"),
    "quick": (MARKET, "10000", "100000"),
    "tiny": (MARKET, "1000"),
}
ROUNDS = {"full": 15, "quick": 7, "tiny": 2}
FRAMES = 8
PLAY_S = {"full": 10, "quick": 5, "tiny": 1}
#: Of the generated market.
MARKETS: dict[str, tuple[str, ...]] = {
    "full": (),
    "quick": ("--shift", "25d"),
    "tiny": ("--sample-ids", "30", "--sample-days", "120", "--window", "60d", "--shift", "20d"),
}
CHROMIUM = ("chromium", "chromium-browser", "google-chrome")
FLAGS = ["--use-angle=swiftshader", "--enable-unsafe-swiftshader", "--no-sandbox", "--enable-precise-memory-info"]

#: Runs a thing again and again in the page; milliseconds.
TIMED = """([what, repeats]) => {
  const t = window.tidemill, line = t.dataset.frames[0], tensors = t.cache.get(0), target = new Uint16Array(t.slots.points * 4);
  const things = {
    fill: () => t.slots.fill(target, t.dataset, line, tensors, t.colouring),
    pick: () => t.seen.pick(400, 300, 9),
  };
  return Array.from({ length: repeats }, () => { const begin = performance.now(); things[what](); return performance.now() - begin });
}"""

#: Plays for a while, again and again; milliseconds of turns and between pictures.
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

#: What the page has asked the server for: bytes that came, as they were sent, by path, without headers of HTTP.
FETCHED = """() => performance.getEntriesByType('resource').filter(({ name }) => name.includes('/api/'))
  .map(({ name, encodedBodySize }) => [new URL(name).pathname, encodedBodySize])"""


def missing() -> str | None:
    """Why the viewer cannot be measured here."""
    try:
        import playwright.sync_api  # noqa: F401
    except ModuleNotFoundError:
        return "no Playwright; `make setup` installs it"
    return None if chromium() else "no Chromium; `make setup-browser` installs it"


def chromium() -> str | None:
    return next(filter(None, map(shutil.which, CHROMIUM)), None)


def measure(setting: str, only: Sequence[str] | None, rounds: int | None, say: Callable[[str], None]) -> dict[str, Any]:
    """Every case once, each in a browser of its own; what is short is repeated within. `only`: cases, or further numbers of points."""
    results: dict[str, Any] = {"repeats": rounds or ROUNDS[setting], "cases": []}
    if why := missing():
        say(f"the viewer is left out: {why}")
        return results
    for case in only or CASES[setting]:
        if case != MARKET and not case.isdecimal():
            raise SystemExit(f"--cases of the viewer are numbers of points, or {MARKET}, not {case!r}")
        say(f"viewer, {case}")
        with tempfile.TemporaryDirectory(prefix="viewer-") as folder:
            made = write_market(setting, Path(folder)) if case == MARKET else write_points(int(case), Path(folder))
            results["cases"].append({"case": case, **made, **look(Path(folder), results["repeats"], PLAY_S[setting])})
    return results


def write_market(setting: str, folder: Path) -> dict[str, Any]:
    command = [sys.executable, "-m", "tidemill", "series", "--overwrite", "--out", str(folder), *MARKETS[setting]]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(command)}\n{done.stderr}")
    return {}


def write_points(points: int, folder: Path) -> dict[str, Any]:
    """Clusters that drift."""
    import numpy as np
    from tidemill.viz import FrameWriter

    rng = np.random.default_rng(0)
    kind = rng.integers(9, size=points)
    where = rng.normal(size=(9, 3))[kind] * 3 + rng.normal(size=(points, 3)) * 0.5
    step = rng.normal(size=(points, 3)) * 0.05
    ids = np.char.add("p", np.arange(points).astype(str))
    begin = time.perf_counter()
    with FrameWriter(folder) as writer:
        for frame in range(FRAMES):
            writer.write_frame(where + frame * step, ids=ids, groups={"kind": kind})
    return {"write_s": (time.perf_counter() - begin) / FRAMES}


def look(folder: Path, repeats: int, play_s: float) -> dict[str, Any]:
    """Open the page on a folder of frames, and measure."""
    from playwright.sync_api import sync_playwright
    from tidemill.viz import FrameReader, Server

    reader = FrameReader(folder)
    of_frames = [len(reader[number].rows) for number in range(len(reader))]
    found: dict[str, Any] = {"frames": len(reader), "points": statistics.mean(of_frames)}
    index = (folder / "index.jsonl").stat().st_size
    stored = index + sum(path.stat().st_size for path in folder.glob("frame-*"))
    found["stored_bytes"] = stored / sum(of_frames)
    with Server(folder) as server, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium(), args=FLAGS)
        page = browser.new_page(viewport={"width": 1280, "height": 800})
        page.set_default_timeout(1000 * TIMEOUT_S)
        # Every question counts, and there is one for each frame.
        page.add_init_script("performance.setResourceTimingBufferSize(100000)")

        def fetched() -> int:
            return sum(size for _, size in page.evaluate(FETCHED))

        begin = time.perf_counter()
        page.goto(server.url)
        page.wait_for_function("() => window.tidemill && tidemill.drawn().drawn > 0 && tidemill.loaded[0] === 0")
        found["picture_s"], found["picture_bytes"] = time.perf_counter() - begin, fetched()
        page.wait_for_function("() => tidemill.drawn().drawn === tidemill.drawn().of")
        found["all_s"], found["all_bytes"] = time.perf_counter() - begin, fetched()
        last = page.evaluate(
            "tidemill.known.load([tidemill.dataset.points - 1]).then(() => tidemill.id(tidemill.dataset.points - 1))"
        )
        begin = time.perf_counter()
        page.fill("#query", last)
        page.wait_for_selector("#found > *")
        found["find_s"] = time.perf_counter() - begin
        page.fill("#query", "")
        found["fill_ms"] = page.evaluate(TIMED, ["fill", repeats])
        found["pick_ms"] = page.evaluate(TIMED, ["pick", repeats])
        played = page.evaluate(PLAYED, play_s)
        found["turn_ms"], found["picture_ms"] = played["turns"], played["pictures"]
        found["drawn"] = min(page.evaluate("tidemill.slots.points"), played["drawn"])
        heap = page.evaluate("performance.memory.usedJSHeapSize + tidemill.cache.bytes + 2 * 8 * tidemill.slots.points")
        found["memory_bytes"] = heap
        # All of time once, for what a frame takes on the way.
        page.evaluate("tidemill.set({ ...tidemill.playback, playing: true, loop: false, framesPerS: 30, position: 0 })")
        page.wait_for_function("() => tidemill.playback.position === tidemill.frames - 1 && !tidemill.playback.playing")
        by_path: dict[str, int] = {}
        for path, size in page.evaluate(FETCHED):
            by_path[path] = by_path.get(path, 0) + size
        frames = {path: size for path, size in by_path.items() if "/frame-" in path or "/sample-" in path}
        found["frames_fetched"] = len(frames)
        moved = sum(frames.values()) + sum(size for path, size in by_path.items() if path.endswith("/index"))
        found["fetched_bytes"] = moved / sum(of_frames)
        browser.close()
    return found


def section(results: dict[str, Any]) -> str:
    """What was measured, as people read it."""

    def told(times: Sequence[float]) -> str:
        return f"{statistics.median(times):.1f} ({min(times):.1f})"

    rows = [
        [
            f"{case['points']:,.0f}" + (" (market)" if case["case"] == MARKET else ""),
            str(case["frames"]),
            f"{case['stored_bytes']:.1f}",
            f"{case['fetched_bytes']:.1f}",
            f"{case['picture_s']:.1f}, {case['picture_bytes'] / 1e6:.2f}",
            f"{case['all_s']:.1f}, {case['all_bytes'] / 1e6:.2f}",
            f"{1000 * case['find_s']:.0f}",
            told(case["fill_ms"]),
            told(case["turn_ms"]),
            told(case["pick_ms"]),
            f"{1000 / statistics.median(case['picture_ms']):.0f}",
            f"{case['drawn']:,}",
            f"{case['memory_bytes'] / 1e6:.0f}",
        ]
        for case in results["cases"]
    ]
    heads = [
        "points", "frames", "stored B/point/frame", "fetched B/point/frame", "first picture s, MB", "all points s, MB", "find ms",
        "fill ms", "turn ms", "pick ms", "pictures/s", "drawn while moving", "memory MB",
    ]  # fmt: skip
    return "\n".join(
        [
            "## Viewer",
            "",
            "The page in headless Chromium, which draws in software here. *Stored*: files of frames and the index; *fetched*: the part of them that the",
            "page requests while all frames play, in bytes on the connection. *Market* is the result of `tidemill series` on the generated market.",
            f"Milliseconds are the median and, in parentheses, the least of {results['repeats']} times; for turns, of all pictures drawn during a period of play.",
            "",
            table(heads, rows),
            "",
        ]
    )
