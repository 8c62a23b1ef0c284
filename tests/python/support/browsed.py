"""A page of the viewer in a real browser, for tests: Chromium, without a graphics card.

`make setup-browser` installs it. Screenshots are stored in ``out/viewer``.
"""

from __future__ import annotations

import base64
import io
import json
import shutil
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import launched
import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image
from tidemill.viz import Server, _http
from tidemill.viz._demo import write_market

sync_api = pytest.importorskip("playwright.sync_api")

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
PICTURES = Path(__file__).parents[3] / "out" / "viewer"
AXE = Path(__file__).parents[3] / "web" / "node_modules" / "axe-core" / "axe.min.js"
TOKEN = "a-token-for-these-tests"

ARGUMENTS = [
    "--use-angle=swiftshader",
    "--enable-unsafe-swiftshader",
    # Only WebGL uses SwiftShader, which composes the page more slowly than the software compositor.
    "--disable-gpu-compositing",
    # Otherwise, Chromium loads the pages of its address bar for each context, which costs as much as the viewer's page.
    # This option replaces Playwright's list; the other features are those of that list that concern local pages.
    "--disable-features=PreloadTopChromeWebUI,WebUIOmniboxAimPopup,WebUIOmniboxFullPopup,WebUIOmniboxPopup,"
    "HttpsFirstBalancedModeAutoEnable,HttpsUpgrades,MediaRouter,NetworkTimeServiceQuerying,OptimizationHints,PaintHolding,"
    "PreconnectToSearch",
    # The sandbox needs permissions that containers lack; only trusted pages are opened here.
    "--no-sandbox",
]

DESKTOP: dict[str, Any] = {"width": 1100, "height": 720}
PHONE: dict[str, Any] = {"width": 390, "height": 844, "has_touch": True, "is_mobile": True, "device_scale_factor": 2}


def SIZES(test: Callable[..., None]) -> Callable[..., None]:
    """Run a test with one of both sizes, which is drawn for each run."""
    both = pytest.mark.parametrize("size", [DESKTOP, PHONE], ids=["desktop", "phone"])
    marked: Callable[..., None] = pytest.mark.sampled(1)(both(test))
    return marked


NEEDED = [
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium; `make setup-browser` installs it"),
    pytest.mark.skipif(
        not (_http.STATIC / "index.html").exists(), reason="the page is not built; `make setup` does it"
    ),
]

AXE_NEEDED = pytest.mark.skipif(not AXE.exists(), reason="no axe-core; `make setup` installs it into web/node_modules")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        yield browser
        browser.close()


def market(points: int, frames: int) -> Callable[[Path], Path]:
    """Return a fixture `folder`: frames of a generated market."""

    @pytest.fixture
    def folder(tmp_path: Path) -> Path:
        write_market(tmp_path / "market", points=points, frames=frames)
        return tmp_path / "market"

    return folder


@contextmanager
def viewed(*words: str | Path) -> Iterator[str]:
    """Run `tidemill view` with `words`, and yield the address that it prints. It must end successfully."""
    running = launched.start("view", *words)
    assert running.stdout is not None
    try:
        yield running.stdout.readline().decode().split()[-1]
    finally:
        running.send_signal(signal.SIGINT)
        _, errors = running.communicate(timeout=launched.PATIENCE_S)
    assert (running.returncode, errors) == (0, b"")


@pytest.fixture
def server(folder: Path) -> Iterator[Server]:
    """Serve the frames of `folder` from this process."""
    with Server(folder, token=TOKEN) as server:
        yield server


class Page:
    """A tab that shows the viewer. Any error on the page fails the test.

    Requests that match `hold` are not answered: they are collected in `held`.
    """

    def __init__(
        self,
        browser: Any,
        url: str,
        width: int = 1100,
        height: int = 720,
        wait: bool = True,
        hold: str | None = None,
        **more: Any,
    ) -> None:
        context = browser.new_context(
            viewport={"width": width, "height": height}, color_scheme=more.pop("color_scheme", "light"), **more
        )
        #: Whether it emulates a phone.
        self.phone = bool(more.get("is_mobile"))
        self.tab = context.new_page()
        self.tab.set_default_timeout(launched.PATIENCE_S * 1000)
        self.errors: list[str] = []
        self.tab.on("pageerror", lambda error: self.errors.append(str(error)))
        self.tab.on("console", lambda said: said.type == "error" and self.errors.append(said.text))
        self.held: list[Any] = []
        if hold is not None:
            self.tab.route(hold, lambda route: self.held.append(route))
        self.tab.goto(url)
        if wait:
            self.settled()

    def get(self, expression: str) -> Any:
        return self.tab.evaluate(expression)

    def until(self, expression: str) -> None:
        self.tab.wait_for_function(expression)

    def settled(self) -> None:
        """Wait until the requested frame is drawn."""
        self.until(
            "() => { const t = window.tidemill; return t && t.frames > 0 && t.loaded[0] === Math.floor(t.playback.position)"
            " && t.drawn().of > 0 && t.drawn().drawn === t.drawn().of && !t.loop.scheduled }"
        )

    def spot(self, name: str) -> tuple[float, float]:
        """Return the position of the point with this id on the screen, once the requested frame is drawn, since the
        page may be a frame behind.
        """
        self.settled()
        found = self.get(f"tidemill.rowsOf([{json.dumps(name)}]).then(([row]) => tidemill.seen.spotOf(row))")
        return found["x"], found["y"]

    def colours(self) -> int:
        """Count the colored pixels of the points' canvas; the page and the box are gray."""
        data = self.get("document.querySelector('#points').toDataURL('image/png')").partition(",")[2]
        pixels = np.asarray(Image.open(io.BytesIO(base64.b64decode(data))).convert("RGB")).astype(int)
        return int((np.ptp(pixels, axis=2) > 30).sum())

    def over(self, x: float, y: float, radius: float) -> NDArray[np.uint8]:
        """Return color and alpha of what is drawn over the points, in a square around a place: one row per pixel."""
        pixels = self.get(
            "(() => { const c = document.querySelector('#overlay'), r = c.width / c.clientWidth;"
            f"return [...c.getContext('2d').getImageData({x - radius} * r, {y - radius} * r, {2 * radius} * r, {2 * radius} * r).data]"
            "})()"
        )
        return np.array(pixels, np.uint8).reshape(-1, 4)

    def panel(self, name: str, shown: bool = True) -> None:
        """Open or close the ``legend``, or the text ``about`` a plot; on a phone, both are initially closed."""
        if self.tab.is_visible(f"#{name}") != shown:
            self.tab.click(f"#{name}-toggle")

    def lasso(self, *corners: tuple[float, float]) -> None:
        """Draw a lasso around places with the mouse."""
        self.tab.keyboard.press("g")
        self.tab.mouse.move(*corners[0])
        self.tab.mouse.down()
        for corner in corners[1:]:
            self.tab.mouse.move(*corner)
        self.tab.mouse.up()

    def touch(self, kind: str, *fingers: tuple[float, float]) -> None:
        """Put fingers down (``Start``), move them (``Move``), or lift them all (``End``)."""
        points = [{"x": x, "y": y, "id": number} for number, (x, y) in enumerate(fingers)]
        if not hasattr(self, "_devtools"):
            self._devtools = self.tab.context.new_cdp_session(self.tab)
        self._devtools.send("Input.dispatchTouchEvent", {"type": f"touch{kind}", "touchPoints": points})

    def picture(self, name: str) -> None:
        PICTURES.mkdir(parents=True, exist_ok=True)
        self.tab.screenshot(path=PICTURES / f"{name}{'-phone' if self.phone else ''}.png")

    def accessible(self) -> list[str]:
        """Return the violations that axe-core finds on the current page, by the rules of WCAG 2.2 AA and good practice."""
        self.get(AXE.read_text())
        rules = "['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa', 'wcag22aa', 'best-practice']"
        wrong: list[str] = self.get(
            f"axe.run({{ runOnly: {rules} }}).then(found => found.violations.flatMap("
            "rule => rule.nodes.map(node => `${rule.id}: ${node.html} ${node.failureSummary}`)))"
        )
        return wrong

    def close(self, *expected: str) -> None:
        """Close a page, which may have reported only `expected` errors."""
        # Errors during this count, too.
        self.tab.context.close()
        errors = [error for error in self.errors if not any(words in error for words in expected)]
        assert not errors, errors
