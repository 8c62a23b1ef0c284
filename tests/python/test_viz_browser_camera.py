"""The viewer under a mouse and keys: the camera turns, zooms, moves and comes back; size, opacity and colours change the picture."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import browsed
import numpy as np
import pytest
from browsed import DESKTOP, TOKEN, Page
from numpy.typing import NDArray
from PIL import Image
from tidemill.viz import FrameWriter, Server

pytestmark = browsed.NEEDED
browser = browsed.browser
folder = browsed.market(points=200, frames=3)
server = browsed.server

#: Where on the canvas drags begin: no panel is there.
MIDDLE = (500.0, 380.0)
#: What the shader makes of a colour in the middle of a point.
LIGHT = 0.94


@pytest.fixture
def page(browser: Any, server: Server) -> Iterator[Page]:
    opened = Page(browser, server.url, **DESKTOP)
    opened.tab.keyboard.press("Escape")
    yield opened
    opened.close()


def looked(page: Page) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """From where, relative to what is looked at, and what that is; once all is at rest."""
    page.settled()
    state = np.array(page.get("tidemill.view().camera"))
    return state[:3] - state[3:], state[3:]


def angles(away: NDArray[np.float64]) -> tuple[float, float]:
    """Around the upright axis, and down from it, in degrees."""
    x, y, z = away
    return float(np.degrees(np.arctan2(x, z))), float(np.degrees(np.arccos(y / np.linalg.norm(away))))


def drag(page: Page, by: tuple[float, float], button: Any = "left") -> None:
    mouse = page.tab.mouse
    mouse.move(*MIDDLE)
    mouse.down(button=button)
    mouse.move(MIDDLE[0] + by[0], MIDDLE[1] + by[1], steps=6)
    mouse.up(button=button)


def zoomed(page: Page, wheel: float) -> float:
    """Turn the wheel, and tell how far away the camera is then. The browser scrolls when it comes to it."""
    before = page.get("JSON.stringify(tidemill.view().camera)")
    page.tab.mouse.move(*MIDDLE)
    page.tab.mouse.wheel(0, wheel)
    page.until(f"() => JSON.stringify(tidemill.view().camera) !== '{before}'")
    return float(np.linalg.norm(looked(page)[0]))


def middle_of_the_box(page: Page) -> NDArray[np.float64]:
    """Where it is on the screen."""
    page.settled()
    m, width, height = page.get(
        "(() => { const { matrix, width, height } = tidemill.scene.screen(); return [[...matrix], width, height] })()"
    )
    return np.array([(m[12] / m[15] + 1) / 2 * width, (1 - m[13] / m[15]) / 2 * height])


def pixels(page: Page) -> NDArray[np.int_]:
    """The colours of the points' canvas: height, width, 3."""
    page.settled()
    data = page.get("document.querySelector('#points').toDataURL('image/png')").partition(",")[2]
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(data))).convert("RGB")).astype(int)


def well_coloured(page: Page) -> float:
    """How many of the points have on the screen the colour that the page says, as a part of all; others may lie before some."""
    picture = pixels(page)
    told = page.get(
        "[...Array(tidemill.slots.points).keys()].filter((row) => tidemill.seen.spotOf(row)).map((row) => {"
        " const { x, y } = tidemill.seen.spotOf(row); return [x, y, ...tidemill.seen.colourOf(row).match(/\\d+/g).map(Number)] })"
    )
    right = [np.abs(picture[int(y), int(x)] - LIGHT * np.array(colour)).max() < 12 for x, y, *colour in told]
    assert len(right) > 15
    return float(np.mean(right))


def swatches(page: Page) -> list[str]:
    found: list[str] = page.get("tidemill.categories().map((category) => category.colour)")
    return found


def test_a_drag_turns(page: Page) -> None:
    """Once around for a way as long as the page is high, and neither nearer nor aside; no point is chosen by it."""
    away, target = looked(page)
    drag(page, (90, -60))
    turned, same = looked(page)
    np.testing.assert_allclose(np.linalg.norm(turned), np.linalg.norm(away), rtol=1e-6)
    np.testing.assert_allclose(same, target, atol=1e-9)
    around, over = np.subtract(angles(turned), angles(away))
    a_pixel = 360 / DESKTOP["height"]
    assert abs(around - -90 * a_pixel) < 1 and abs(over - 60 * a_pixel) < 1
    assert page.get("tidemill.chosen.rows.length") == 0


def test_the_wheel_zooms(page: Page) -> None:
    away, target = looked(page)
    far = float(np.linalg.norm(away))
    few = page.colours()
    assert (near := zoomed(page, -400)) < 0.9 * far
    page.settled()
    # What is nearer is larger.
    assert page.colours() > 1.2 * few
    assert zoomed(page, 400) == pytest.approx(far, rel=0.01)
    assert zoomed(page, 400) > 1.1 * far > near
    after, same = looked(page)
    np.testing.assert_allclose(after / np.linalg.norm(after), away / far, atol=1e-6)
    np.testing.assert_allclose(same, target, atol=1e-9)


def test_a_drag_with_the_right_button_moves(page: Page) -> None:
    """What is seen must go with the pointer, and not be turned."""
    away, target = looked(page)
    before = middle_of_the_box(page)
    drag(page, (120, 70), button="right")
    after, moved = looked(page)
    np.testing.assert_allclose(after, away, atol=1e-6)
    assert np.linalg.norm(moved - target) > 0.1
    np.testing.assert_allclose(middle_of_the_box(page) - before, [120, 70], atol=4)


@pytest.mark.parametrize("way", ["key", "button"])
def test_all_comes_back(page: Page, way: str) -> None:
    """Also while the camera still glides after a drag, which would carry it away again."""
    at_first = np.concatenate(looked(page))
    picture = pixels(page)
    drag(page, (150, 40), button="right")
    zoomed(page, -300)
    assert np.abs(np.concatenate(looked(page)) - at_first).max() > 0.1
    assert np.abs(pixels(page) - picture).max() > 60
    drag(page, (-80, 90))
    if way == "key":
        page.tab.keyboard.press("0")
    else:
        page.tab.click("#reset")
    np.testing.assert_allclose(np.concatenate(looked(page)), at_first, atol=1e-9)
    assert (pixels(page) == picture).mean() > 0.999


def test_keys_turn_and_zoom(page: Page) -> None:
    away, target = looked(page)
    page.tab.keyboard.press("+")
    np.testing.assert_allclose(looked(page)[0], 0.85 * away, rtol=1e-6)
    for _ in range(2):
        page.tab.keyboard.press("-")
    np.testing.assert_allclose(looked(page)[0], away / 0.85, rtol=1e-6)
    before = np.array(angles(looked(page)[0]))
    for key, steps in (("ArrowRight", (5, 0)), ("ArrowDown", (0, 5)), ("ArrowLeft", (-5, 0)), ("ArrowUp", (0, -5))):
        page.tab.keyboard.press(key)
        turned, same = looked(page)
        np.testing.assert_allclose(angles(turned) - before, steps, atol=1e-6, err_msg=key)
        np.testing.assert_allclose(same, target, atol=1e-9)
        before = np.array(angles(turned))


def test_size_and_opacity_change_the_picture(page: Page) -> None:
    sizes = []
    for size in ("3", "8", "16"):
        page.tab.locator("#size").fill(size)
        page.settled()
        sizes.append(page.colours())
    assert sizes[2] > 1.5 * sizes[1] > 2 * sizes[0] > 0, sizes
    page.tab.locator("#size").fill("8")
    opaque = pixels(page)
    inked = np.ptp(opaque, axis=2) > 60
    page.tab.locator("#opacity").fill("0.2")
    pale = pixels(page)
    # What is seen through is nearer to the page behind it, which has hardly a colour.
    assert np.ptp(pale[inked], axis=1).mean() < 0.6 * np.ptp(opaque[inked], axis=1).mean()
    page.picture("seen-through")
    page.tab.locator("#opacity").fill("1")
    assert (pixels(page) == opaque).mean() > 0.999
    assert page.get("[tidemill.view().size, tidemill.view().opacity]") == [8, 1]


def test_a_scheme_changes_colours(page: Page) -> None:
    """In the legend and of the points themselves, and of both alike."""
    before, first = swatches(page), pixels(page)
    assert well_coloured(page) > 0.7
    page.tab.select_option("#scheme", "Tableau")
    after = swatches(page)
    # The last are the points of no sector, grey in all schemes.
    assert len(before) > 5 and all(a != b for a, b in zip(before[:-1], after[:-1], strict=True))
    painted = page.get(
        "[...document.querySelectorAll('#categories .swatch')].map((swatch) => getComputedStyle(swatch).backgroundColor)"
    )
    assert [colour.replace(",", "") for colour in painted] == after
    assert well_coloured(page) > 0.7
    changed = np.abs(pixels(page) - first).max(axis=2) > 20
    assert changed[np.ptp(first, axis=2) > 60].mean() > 0.7
    page.picture("tableau")
    # Another grouping has other groups.
    page.tab.select_option("#colour", "change")
    page.settled()
    assert swatches(page) != after and well_coloured(page) > 0.7


def test_a_ramp_changes_colours(page: Page) -> None:
    page.tab.select_option("#colour", "change in %")
    assert page.tab.is_visible("#ramp") and well_coloured(page) > 0.7
    first, bar = pixels(page), "getComputedStyle(document.querySelector('#ramp-bar')).backgroundImage"
    before = page.get(bar)
    page.tab.select_option("#scheme", "Blue to red")
    assert page.get(bar) != before and well_coloured(page) > 0.7
    changed = np.abs(pixels(page) - first).max(axis=2) > 20
    assert changed[np.ptp(first, axis=2) > 60].mean() > 0.5
    page.picture("ramp")


def test_between_two_frames_page_and_picture_agree(browser: Any, tmp_path: Path) -> None:
    """At rest nearer to the second frame, its time must not stand beside the count of the first, nor glyphs have another colour than
    their points."""
    grid = np.stack([*np.meshgrid(range(5), range(5)), np.zeros((5, 5))], axis=-1).reshape(25, 3)
    # Two at the corners of the box, so that its lines lie before none of the others.
    where = np.concatenate([[[-1, -1, -1], [5, 5, 1]], grid])
    height = np.linspace(0, 1, 27)
    with FrameWriter(tmp_path / "grid") as writer:
        writer.write_frame(where, ids=range(27), time="first", values={"height": height})
        writer.write_frame(where[:20], ids=range(20), time="second", values={"height": 1 - height[:20]})
    with Server(tmp_path / "grid", token=TOKEN) as server:
        page = Page(browser, server.url, **DESKTOP)
        for position, time, count in ((0.3, "first", 27), (0.7, "second", 20)):
            page.tab.locator("#scrub").fill(str(position))
            page.until(f"() => document.querySelector('#status').textContent === '{count} points'")
            assert page.tab.inner_text("#time") == time
            assert well_coloured(page) > 0.89
            page.picture(f"between-{time}")
        page.close()
